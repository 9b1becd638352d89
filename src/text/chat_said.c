/* text/chat_said.c -- what a model said, byte for byte, in the place of what the template
 * makes of it.
 *
 * A reply is parsed into a message and the template writes that message again, perhaps
 * with other blanks or another spelling of JSON.  The next prompt would then differ from
 * what the model has already computed.  So where a message begins as its prompt ended, and
 * what the template wrote parses into the same message as what was sampled, the sampled
 * bytes take its place.  Where the template means something else (it drops old thinking,
 * say), its word stands. */
#include "text/chat_internal.h"
#include "base/json_reader.h"
#include "text/tokenizer_internal.h"

#include <string.h>

/* ---- the same message? ---------------------------------------------------------------------- */

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

static bool same_text(const char *a, size_t n_a, const char *b, size_t n_b)
{
    while (n_a > 0 && is_blank(*a)) a++, n_a--;
    while (n_b > 0 && is_blank(*b)) b++, n_b--;
    while (n_a > 0 && is_blank(a[n_a - 1])) n_a--;
    while (n_b > 0 && is_blank(b[n_b - 1])) n_b--;
    return n_a == n_b && (n_a == 0 || memcmp(a, b, n_a) == 0);
}

/* The same values in the same order, spelled alike but for blanks. */
static mox_status compare_json(mox_json_reader *a, mox_json_reader *b, bool *same, mox_err *err)
{
    mox_json_token x, y;
    do {
        MOX_TRY(mox_json_next(a, &x, err));
        MOX_TRY(mox_json_next(b, &y, err));
        *same = x.type == y.type;
        if (*same && x.type >= MOX_JSON_NUMBER && x.type <= MOX_JSON_KEY)
            *same = x.n == y.n && memcmp(x.text, y.text, x.n) == 0;
    } while (*same && x.type != MOX_JSON_END);
    return MOX_OK;
}

static mox_status same_json(const char *a, const char *b, bool *same, mox_err *err)
{
    mox_json_reader ra, rb;
    mox_json_reader_init(&ra, (mox_json_span){"arguments", a, strlen(a), 0});
    mox_json_reader_init(&rb, (mox_json_span){"arguments", b, strlen(b), 0});
    const mox_status status = compare_json(&ra, &rb, same, err);
    mox_json_reader_deinit(&ra);
    mox_json_reader_deinit(&rb);
    return status;
}

static mox_status same_message(const mox_reply *a, const mox_reply *b, bool *same, mox_err *err)
{
    mox_message x, y;
    mox_reply_get_message(a, &x);
    mox_reply_get_message(b, &y);
    *same = same_text(x.text, x.n_text, y.text, y.n_text) && x.n_calls == y.n_calls &&
            mox_reply_is_thinking(a) == mox_reply_is_thinking(b) && /* one that was cut off stays open */
            same_text(x.thinking, x.n_thinking, y.thinking, y.n_thinking);
    for (int32_t i = 0; *same && i < x.n_calls; i++) {
        *same = strcmp(x.calls[i].name, y.calls[i].name) == 0;
        if (*same) MOX_TRY(same_json(x.calls[i].arguments, y.calls[i].arguments, same, err));
    }
    return MOX_OK;
}

typedef struct feeder {
    mox_reply *reply;
    mox_status status;
    mox_err *err;
} feeder;

static void feed(void *user, const char *text, size_t n)
{
    feeder *f = user;
    if (f->status == MOX_OK) f->status = mox_reply_push(f->reply, text, n, f->err);
}

static mox_status parse(const mox_reply_opts *opts, const char *text, size_t n, mox_reply **out, mox_err *err)
{
    mox_utf8_stream stream = {0};
    MOX_TRY(mox_reply_create(out, opts, err));
    feeder f = {*out, MOX_OK, err};
    mox_utf8_stream_push(&stream, text, n, feed, &f);
    mox_utf8_stream_end(&stream, feed, &f);
    return f.status == MOX_OK ? mox_reply_finish(*out, true, err) : f.status;
}

static mox_status mean_the_same(const mox_reply_opts *opts, const char *a, size_t n_a, const char *b, size_t n_b, bool *same,
                                mox_err *err)
{
    mox_reply *x = NULL, *y = NULL;
    mox_status status = parse(opts, a, n_a, &x, err);
    if (status == MOX_OK) status = parse(opts, b, n_b, &y, err);
    if (status == MOX_OK) status = same_message(x, y, same, err);
    mox_reply_destroy(&x);
    mox_reply_destroy(&y);
    return status;
}

/* ---- the prompt anew -------------------------------------------------------------------------- */

typedef struct builder {
    mox_writer text;
    mox_buffer plain;
    size_t n_plain;
} builder;

static mox_status add_plain(builder *b, size_t begin, size_t end, mox_err *err)
{
    mox_text_span *spans = b->plain.data;
    if (begin >= end) return MOX_OK;
    if (b->n_plain > 0 && spans[b->n_plain - 1].end == begin) {
        spans[b->n_plain - 1].end = end;
        return MOX_OK;
    }
    MOX_TRY(mox_buffer_reserve(&b->plain, b->n_plain + 1, sizeof *spans, "a prompt", err));
    ((mox_text_span *)b->plain.data)[b->n_plain++] = (mox_text_span){begin, end};
    return MOX_OK;
}

/* Bytes [begin, end) of a text; *span is the first of its plain spans that may reach them. */
static mox_status add_range(builder *b, const mox_marked_text *from, size_t begin, size_t end, size_t *span, mox_err *err)
{
    while (*span < from->n_plain && from->plain[*span].end <= begin) (*span)++;
    for (size_t i = *span; i < from->n_plain && from->plain[i].begin < end; i++) {
        const size_t low = from->plain[i].begin > begin ? from->plain[i].begin : begin;
        const size_t high = from->plain[i].end < end ? from->plain[i].end : end;
        MOX_TRY(add_plain(b, b->text.n + (low - begin), b->text.n + (high - begin), err));
    }
    return mox_write(&b->text, from->text + begin, end - begin, err);
}

/* The first plain span that ends behind begin. */
static size_t first_plain(const mox_prompt *p, size_t begin)
{
    size_t low = 0, high = p->n_plain;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (p->plain[mid].end <= begin) low = mid + 1;
        else high = mid;
    }
    return low;
}

static bool is_plain(const mox_prompt *p, size_t begin, size_t end)
{
    const size_t i = first_plain(p, begin);
    return i < p->n_plain && p->plain[i].begin < end;
}

/* Where what was said ends in what the template wrote: before the last special token that is
 * none of a call's, or else before blanks of the template's own. */
static size_t find_ending(const mox_chat *c, const mox_prompt *p, size_t begin, size_t end)
{
    const mox_tokenizer *t = c->tokenizer;
    mox_plain_spans plain = {.span = p->plain, .n = p->n_plain, .next = first_plain(p, begin)};
    const mox_added_token *token;
    size_t at = begin, token_begin, token_end, found = end;
    while (mox_added_find(&t->added, &t->unicode, (const unsigned char *)p->text, end, at, &plain, &token, &token_begin, &token_end)) {
        size_t n;
        const char *bytes = mox_tokenizer_bytes(t, token->id, &n);
        if (token->special && !mox_reply_is_marker(c->format, bytes, n)) found = token_begin;
        at = token_end;
    }
    if (found < end) return found;
    while (end > begin && is_blank(p->text[end - 1]) && !is_plain(p, end - 1, end)) end--;
    return end;
}

/* What the template wrote for a message, without what opens and what ends it.  False when it
 * begins differently from how its prompt ended. */
static bool find_rendered(const mox_chat *c, const mox_prompt *p, mox_text_span written, const mox_said *said, mox_text_span *out)
{
    if (written.end - written.begin < said->n_opening) return false;
    if (said->n_opening > 0 && memcmp(p->text + written.begin, said->opening, said->n_opening) != 0) return false;
    out->begin = written.begin + said->n_opening;
    out->end = find_ending(c, p, out->begin, written.end);
    return true;
}

static mox_status replay(const mox_chat *c, const mox_chat_request *request, const mox_text_span *written, size_t n_written,
                         const mox_prompt *p, builder *b, size_t *generation_at, mox_err *err)
{
    const mox_marked_text whole = {p->text, p->n, p->plain, p->n_plain};
    size_t done = 0, span = 0;
    *generation_at = p->generation_at;
    for (size_t i = 0; i < request->n_said; i++) {
        const mox_said *said = &request->said[i];
        mox_text_span old;
        if (said->message < 0 || (size_t)said->message >= n_written) continue;
        if (!find_rendered(c, p, written[said->message], said, &old) || old.begin < done) continue;
        const size_t n_old = old.end - old.begin;
        bool same = n_old == said->text.n && memcmp(p->text + old.begin, said->text.text, n_old) == 0;
        if (!same) {
            const mox_reply_opts opts = {.format = c->format, .tools = request->tools,
                                         .thinking = mox_chat_opens_thinking(said->opening, said->n_opening)};
            MOX_TRY(mean_the_same(&opts, p->text + old.begin, n_old, said->text.text, said->text.n, &same, err));
        }
        if (!same) continue;
        size_t said_span = 0;
        MOX_TRY(add_range(b, &whole, done, old.begin, &span, err));
        MOX_TRY(add_range(b, &said->text, 0, said->text.n, &said_span, err));
        done = old.end;
        if (p->generation_at >= done) *generation_at = b->text.n + (p->generation_at - done);
        else if (p->generation_at > old.begin) *generation_at = b->text.n - said->text.n; /* it was inside */
    }
    return add_range(b, &whole, done, p->n, &span, err);
}

mox_status mox_chat_replay(const mox_chat *c, const mox_chat_request *request, const mox_text_span *written,
                           size_t n_written, mox_prompt *p, mox_err *err)
{
    builder b = {0};
    size_t generation_at;
    mox_status status = replay(c, request, written, n_written, p, &b, &generation_at, err);
    if (status == MOX_OK) status = mox_buffer_reserve(&b.plain, 1, sizeof(mox_text_span), "a prompt", err);
    if (status != MOX_OK) {
        mox_writer_deinit(&b.text);
        mox_buffer_deinit(&b.plain);
        return status;
    }
    const bool thinking = p->thinking;
    mox_prompt_free(p);
    *p = (mox_prompt){.n = b.text.n, .plain = b.plain.data, .n_plain = b.n_plain, .generation_at = generation_at,
                      .thinking = thinking};
    p->text = mox_writer_take(&b.text);
    return MOX_OK;
}
