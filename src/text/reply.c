/* text/reply.c -- walks through a reply and tells thinking, text and calls apart.
 *
 * The whole text stays in `seen`, so positions never move:
 *
 *     0 ......... out ......... pos ......... n
 *     handed out      held back      not looked at
 *
 * I1  out <= pos <= n, and both only grow (pos falls back once over blanks where a mode
 *     wants to see them again).
 * I2  what is held back is blanks, or blanks and what may be a call (MODE_CALL).
 * I3  what is handed out is in the message before the caller hears of it.
 *
 * Modes: MODE_START until the first byte that is no blank, because thinking may open
 * there; MODE_BODY in text or thinking; MODE_CALL while a scan runs; MODE_AFTER behind a
 * call, where closing markers and blanks are eaten. */
#include "text/reply_internal.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef enum reply_mode { MODE_START, MODE_BODY, MODE_CALL, MODE_AFTER } reply_mode;

struct mox_reply {
    mox_part_fn *on_part;
    void *on_part_user;
    uint64_t id_seed;
    const mox_call_grammar *grammar;
    mox_reply_tools tools;

    mox_buffer seen_text;
    mox_seen seen;
    size_t out, pos;
    reply_mode mode;
    bool thinking;
    bool strip;       /* line breaks at pos are those around a thinking tag */
    bool has_text;    /* text that is not blank came behind the last call or thinking */
    bool cut_by_call; /* a call ended the thinking, so its tag may still come */
    bool closed;      /* finished or failed */

    mox_scan scan;
    size_t call_begin;
    size_t fence; /* no </think> begins in seen[call_begin, fence) */
    int closer;   /* of the grammar's, the next that may be eaten */

    mox_buffer text, thoughts, calls;
    size_t n_text, n_thoughts;
    int32_t n_calls;
    mox_region strings;
};

static const char think_open[] = "<think>", think_close[] = "</think>";
static const mox_call_grammar no_calls = {.gap = MOX_GAP_TEXT};

/* ---- the message ------------------------------------------------------------ */

static mox_status append(mox_buffer *to, size_t *n, const char *text, size_t n_more, mox_err *err)
{
    MOX_TRY(mox_buffer_reserve(to, *n + n_more + 1, 1, "a reply", err));
    memcpy((char *)to->data + *n, text, n_more);
    *n += n_more;
    ((char *)to->data)[*n] = '\0';
    return MOX_OK;
}

/* Hands out seen[out, end) as what the reply is in. */
static mox_status hand_out(mox_reply *r, size_t end, mox_err *err)
{
    const char *text = r->seen.text + r->out;
    const size_t n = end - r->out;
    if (n == 0) return MOX_OK;
    if (r->thinking) {
        MOX_TRY(append(&r->thoughts, &r->n_thoughts, text, n, err));
    } else {
        MOX_TRY(append(&r->text, &r->n_text, text, n, err));
        r->has_text = true;
    }
    r->out = end;
    r->strip = false;
    if (r->on_part) r->on_part(r->on_part_user, r->thinking ? MOX_PART_THINKING : MOX_PART_TEXT, -1, text, n);
    return MOX_OK;
}

static mox_status keep_string(mox_reply *r, const char *text, size_t n, const char **out, mox_err *err)
{
    void *copy;
    MOX_TRY(mox_region_take(&r->strings, n + 1, &copy, err));
    memcpy(copy, text, n);
    ((char *)copy)[n] = '\0';
    *out = copy;
    return MOX_OK;
}

static bool has_id(const mox_reply *r, const char *id, size_t n)
{
    const mox_call *calls = r->calls.data;
    for (int32_t i = 0; i < r->n_calls; i++) {
        if (strlen(calls[i].id) == n && memcmp(calls[i].id, id, n) == 0) return true;
    }
    return false;
}

static mox_status add_call(mox_reply *r, mox_err *err)
{
    const mox_scan *s = &r->scan;
    mox_call call;
    char made[64];
    const char *id = s->found_id;
    size_t n_id = s->n_found_id;
    if (!id || has_id(r, id, n_id)) {
        id = made;
        n_id = (size_t)snprintf(made, sizeof made, "call_%016" PRIx64 "_%" PRId32, r->id_seed, r->n_calls);
    }
    MOX_TRY(mox_buffer_reserve(&r->calls, (size_t)r->n_calls + 1, sizeof call, "a reply's calls", err));
    MOX_TRY(keep_string(r, id, n_id, &call.id, err));
    MOX_TRY(keep_string(r, s->found_name, s->n_found_name, &call.name, err));
    MOX_TRY(keep_string(r, s->found_arguments, s->n_found_arguments, &call.arguments, err));
    const int32_t index = r->n_calls++;
    ((mox_call *)r->calls.data)[index] = call;
    if (!r->on_part) return MOX_OK;
    r->on_part(r->on_part_user, MOX_PART_CALL_NAME, index, call.name, s->n_found_name);
    r->on_part(r->on_part_user, MOX_PART_CALL_ARGUMENTS, index, call.arguments, s->n_found_arguments);
    return MOX_OK;
}

/* ---- modes ------------------------------------------------------------------ */

static char byte_at(const mox_reply *r, size_t at) { return r->seen.text[at]; }

/* Blanks that may turn out to be nothing. */
static bool may_be_dropped(const mox_reply *r, char c) { return r->thinking ? c == '\n' : mox_is_blank(c); }

static void skip_to(mox_reply *r, size_t at) { r->out = r->pos = at; }

static void skip_blanks(mox_reply *r)
{
    while (r->pos < r->seen.n && mox_is_blank(byte_at(r, r->pos))) r->pos++;
}

/* Whether a call may begin at pos. */
static mox_match match_open(const mox_reply *r)
{
    mox_match best = MOX_MATCH_NO;
    if (r->n_calls == MOX_REPLY_CALLS_MAX) return best;
    for (const char *const *open = r->grammar->opens; *open; open++) {
        const mox_match match = mox_seen_match(&r->seen, r->pos, *open);
        if (match > best) best = match;
    }
    return best;
}

static void begin_call(mox_reply *r)
{
    mox_scan *s = &r->scan;
    *s = (mox_scan){.tools = &r->tools, .args = s->args, .name_copy = s->name_copy, .work = s->work,
                    .pos = r->pos, .from = r->pos};
    r->call_begin = r->pos;
    r->fence = r->pos;
    r->mode = MODE_CALL;
}

/* True when something was settled; the same below. */
static bool walk_start(mox_reply *r)
{
    skip_blanks(r);
    if (r->pos == r->seen.n && !r->seen.ended) return false;
    const mox_match match = r->pos < r->seen.n ? mox_seen_match(&r->seen, r->pos, think_open) : MOX_MATCH_NO;
    if (match == MOX_MATCH_PART) return false;
    if (match == MOX_MATCH_YES) {
        skip_to(r, r->pos + strlen(think_open));
        r->thinking = true;
    }
    r->pos = r->out;
    r->strip = r->thinking;
    r->mode = MODE_BODY;
    return true;
}

/* pos is at a '<'.  *plain: it is no marker. */
static bool walk_marker(mox_reply *r, bool *plain)
{
    const mox_match open = match_open(r);
    const mox_match close = r->thinking ? mox_seen_match(&r->seen, r->pos, think_close) : MOX_MATCH_NO;
    *plain = open == MOX_MATCH_NO && close == MOX_MATCH_NO;
    if (open == MOX_MATCH_YES) {
        begin_call(r);
    } else if (close == MOX_MATCH_YES) {
        skip_to(r, r->pos + strlen(think_close));
        r->thinking = false;
        r->strip = true;
    }
    return open == MOX_MATCH_YES || close == MOX_MATCH_YES;
}

static mox_status walk_body(mox_reply *r, bool *again, mox_err *err)
{
    *again = false;
    while (r->strip && r->out == r->pos && r->pos < r->seen.n && byte_at(r, r->pos) == '\n') skip_to(r, r->pos + 1);
    while (r->pos < r->seen.n && may_be_dropped(r, byte_at(r, r->pos))) r->pos++;
    if (r->pos == r->seen.n) {
        if (!r->seen.ended) return MOX_OK;
        if (r->thinking) skip_to(r, r->pos);
        return hand_out(r, r->pos, err);
    }
    if (byte_at(r, r->pos) == '<') {
        bool plain;
        *again = walk_marker(r, &plain);
        if (!plain) return MOX_OK;
    }
    size_t end = ++r->pos; /* behind the last byte that is surely not dropped */
    while (r->pos < r->seen.n && byte_at(r, r->pos) != '<') {
        if (!may_be_dropped(r, byte_at(r, r->pos++))) end = r->pos;
    }
    *again = true;
    return hand_out(r, end, err);
}

/* What the scan may see.  Inside thinking its end is a fence: no call goes over it. */
static void set_view(mox_reply *r)
{
    r->scan.in = r->seen;
    if (!r->thinking) return;
    mox_match match = MOX_MATCH_NO;
    while (r->fence < r->seen.n && match == MOX_MATCH_NO) {
        const char *angle = memchr(r->seen.text + r->fence, '<', r->seen.n - r->fence);
        r->fence = angle ? (size_t)(angle - r->seen.text) : r->seen.n;
        if (angle) match = mox_seen_match(&r->seen, r->fence, think_close);
        if (angle && match == MOX_MATCH_NO) r->fence++;
    }
    r->scan.in.n = r->fence;
    if (match != MOX_MATCH_YES) return;
    r->scan.in.ended = true;
    r->scan.in.complete = false;
}

/* The blanks between text and the call; what is thinking loses its line breaks. */
static mox_status end_text(mox_reply *r, mox_err *err)
{
    size_t end = r->call_begin;
    if (r->thinking || !r->has_text || r->grammar->gap == MOX_GAP_NOTHING) end = r->out;
    if (r->grammar->gap == MOX_GAP_NEWLINE && end > r->out && byte_at(r, end - 1) == '\n') end--;
    return hand_out(r, end, err);
}

static mox_status walk_call(mox_reply *r, bool *again, mox_err *err)
{
    mox_scan_result result = MOX_SCAN_MORE;
    set_view(r);
    MOX_TRY(r->grammar->step(&r->scan, &result, err));
    *again = result != MOX_SCAN_MORE || r->scan.in.ended;
    if (!*again) return MOX_OK;
    size_t end = result == MOX_SCAN_MORE ? r->scan.in.n : r->scan.pos;
    if (result != MOX_SCAN_WHOLE) {
        while (may_be_dropped(r, byte_at(r, end - 1))) end--;
        r->mode = MODE_BODY;
        r->pos = end;
        return hand_out(r, end, err);
    }
    MOX_TRY(end_text(r, err));
    r->cut_by_call = r->cut_by_call || r->thinking;
    r->thinking = r->strip = r->has_text = false;
    skip_to(r, end);
    r->mode = MODE_AFTER;
    r->closer = 0;
    return add_call(r, err);
}

/* Whether pos is at something that is eaten behind a call; then it is. */
static mox_match eat_closer(mox_reply *r)
{
    const char *const *closes = r->grammar->closes;
    mox_match best = MOX_MATCH_NO;
    for (int i = r->closer; closes[i]; i++) {
        const mox_match match = mox_seen_match(&r->seen, r->pos, closes[i]);
        if (match > best) best = match;
        if (match != MOX_MATCH_YES) continue;
        skip_to(r, r->pos + strlen(closes[i]));
        r->closer = i + 1;
        return match;
    }
    if (!r->cut_by_call) return best;
    const mox_match match = mox_seen_match(&r->seen, r->pos, think_close);
    if (match == MOX_MATCH_YES) {
        skip_to(r, r->pos + strlen(think_close));
        r->cut_by_call = false;
        r->strip = true;
    }
    return match > best ? match : best;
}

static bool walk_after(mox_reply *r)
{
    skip_blanks(r);
    if (r->pos == r->seen.n) {
        if (r->seen.ended) skip_to(r, r->pos);
        return false;
    }
    const mox_match eaten = eat_closer(r);
    if (eaten == MOX_MATCH_YES) return true;
    const mox_match open = match_open(r);
    if (open == MOX_MATCH_YES) {
        begin_call(r);
        return true;
    }
    if (eaten == MOX_MATCH_PART || open == MOX_MATCH_PART) return false;
    r->pos = r->out;
    r->mode = MODE_BODY;
    return true;
}

static mox_status walk(mox_reply *r, mox_err *err)
{
    bool again = true;
    mox_status status = MOX_OK;
    while (again && status == MOX_OK) {
        switch (r->mode) {
        case MODE_START: again = walk_start(r); break;
        case MODE_BODY: status = walk_body(r, &again, err); break;
        case MODE_CALL: status = walk_call(r, &again, err); break;
        default: again = walk_after(r);
        }
    }
    if (status != MOX_OK) r->closed = true;
    return status;
}

/* ---- the interface ---------------------------------------------------------- */

static const mox_call_grammar *grammar_of(mox_call_format format)
{
    switch (format) {
    case MOX_CALLS_HERMES: return &mox_grammar_hermes;
    case MOX_CALLS_QWEN_XML: return &mox_grammar_qwen_xml;
    case MOX_CALLS_DEEPSEEK_V3: return &mox_grammar_deepseek_v3;
    case MOX_CALLS_DEEPSEEK_V31: return &mox_grammar_deepseek_v31;
    case MOX_CALLS_GLM: return &mox_grammar_glm;
    case MOX_CALLS_KIMI: return &mox_grammar_kimi;
    default: return &no_calls;
    }
}

mox_status mox_reply_create(mox_reply **out, const mox_reply_opts *opts, mox_err *err)
{
    *out = NULL;
    mox_reply *r = mox_alloc_array(1, sizeof *r);
    if (!r) return mox_fail_memory(err, sizeof *r, "a reply");
    r->on_part = opts->on_part;
    r->on_part_user = opts->on_part_user;
    r->id_seed = opts->id_seed;
    r->grammar = grammar_of(opts->format);
    r->thinking = opts->thinking;
    r->seen.text = "";
    const mox_status status = mox_reply_tools_init(&r->tools, opts->tools, err);
    if (status != MOX_OK) {
        mox_reply_destroy(&r);
        return status;
    }
    *out = r;
    return MOX_OK;
}

void mox_reply_destroy(mox_reply **r)
{
    if (!*r) return;
    mox_reply *p = *r;
    mox_reply_tools_deinit(&p->tools);
    mox_region_deinit(&p->strings);
    mox_buffer *const buffers[] = {&p->seen_text, &p->scan.args, &p->scan.name_copy, &p->scan.work,
                                   &p->text,      &p->thoughts,  &p->calls};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) mox_buffer_deinit(buffers[i]);
    mox_free(p);
    *r = NULL;
}

mox_status mox_reply_push(mox_reply *r, const char *text, size_t n, mox_err *err)
{
    if (r->closed) return mox_fail(err, MOX_E_ARG, "a reply has ended or failed and takes no more text");
    if (n == 0) return MOX_OK;
    if (mox_utf8_valid_prefix((const unsigned char *)text, n) != n) {
        return mox_fail(err, MOX_E_ARG, "a reply takes whole characters of UTF-8, and these are not");
    }
    const mox_status status = mox_buffer_reserve(&r->seen_text, r->seen.n + n, 1, "a reply", err);
    if (status != MOX_OK) {
        r->closed = true;
        return status;
    }
    memcpy((char *)r->seen_text.data + r->seen.n, text, n);
    r->seen.text = r->seen_text.data;
    r->seen.n += n;
    return walk(r, err);
}

mox_status mox_reply_finish(mox_reply *r, bool complete, mox_err *err)
{
    if (r->closed) return mox_fail(err, MOX_E_ARG, "a reply has ended or failed already");
    r->seen.ended = true;
    r->seen.complete = complete;
    const mox_status status = walk(r, err);
    r->closed = true;
    return status;
}

/* All families name the tokens of their calls so. */
bool mox_reply_is_marker(mox_call_format format, const char *text, size_t n)
{
    if (memmem(text, n, "think", 5)) return true;
    return format != MOX_CALLS_UNKNOWN && (memmem(text, n, "tool", 4) || memmem(text, n, "arg_", 4));
}

bool mox_reply_has_open_thinking(const mox_reply *r) { return r->thinking; }
bool mox_reply_is_thinking(const mox_reply *r) { return r->thinking && r->mode != MODE_CALL; }

void mox_reply_get_message(const mox_reply *r, mox_message *out)
{
    *out = (mox_message){
        .text = r->text.data ? r->text.data : "",
        .n_text = r->n_text,
        .thinking = r->thoughts.data ? r->thoughts.data : "",
        .n_thinking = r->n_thoughts,
        .calls = r->calls.data,
        .n_calls = r->n_calls,
    };
}
