/* tools/trace.c -- reading a recorded run.
 *
 * Refuses whatever `moxie` does not write: other versions, numbers that no model has, layers
 * and experts that the first line rules out, experts that do not ascend, a file that ends
 * early or goes on behind its end, counts that contradict the lines. */
#include "tools/trace.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/size.h"
#include "runtime/policy.h"

#include <string.h>

/* Far more than any model has, and few enough that an index of them fits in memory. */
enum { MOST_LAYERS = 1 << 12, MOST_EXPERTS = 1 << 14, MOST_KEYS = 1 << 22 };
#define MOST_SLOT_BYTES ((int64_t)1 << 40)
#define MOST_FILE_BYTES ((int64_t)1 << 30)
#define MOST_COUNT ((int64_t)1 << 53)

typedef struct scanner {
    const char *path, *at, *end;
    int64_t line;
} scanner;

static mox_status damaged(const scanner *s, const char *what, mox_err *err)
{
    return mox_fail(err, MOX_E_FORMAT, "%s: line %lld: %s; this is no complete trace of `moxie --trace`", s->path,
                    (long long)s->line, what);
}

static bool skip(scanner *s, const char *word)
{
    const size_t n = strlen(word);
    if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0) return false;
    s->at += n;
    return true;
}

static bool number(scanner *s, int64_t most, int64_t *out)
{
    const char *start = s->at;
    int64_t n = 0;
    for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++) {
        n = 10 * n + (*s->at - '0');
        if (n > most) return false;
    }
    *out = n;
    return s->at > start;
}

static bool field(scanner *s, const char *name, int64_t least, int64_t most, int64_t *out)
{
    return skip(s, name) && number(s, most, out) && *out >= least;
}

static bool end_line(scanner *s)
{
    if (!skip(s, "\n")) return false;
    s->line++;
    return true;
}

static mox_status read_header(scanner *s, mox_trace_info *i, mox_err *err)
{
    if (!skip(s, "moxie-trace ")) return damaged(s, "it does not begin with moxie-trace", err);
    if (!skip(s, "2 ")) return damaged(s, "another version of the format", err);
    int64_t n_moe;
    if (!field(s, "layers=", 1, MOST_LAYERS, &i->n_layers) || !field(s, " moe_layers=", 1, i->n_layers, &n_moe) ||
        !field(s, " experts=", 1, MOST_EXPERTS, &i->n_experts) ||
        !field(s, " active=", 1, i->n_experts, &i->n_active) || !field(s, " slot_bytes=", 1, MOST_SLOT_BYTES, &i->slot_bytes) ||
        i->n_layers * i->n_experts > MOST_KEYS || !end_line(s))
        return damaged(s, "layers, moe_layers, experts, active or slot_bytes are missing or out of range", err);
    i->n_all = n_moe * i->n_experts;
    return MOX_OK;
}

static mox_status begin_event(mox_trace *t, mox_trace_kind what, int64_t layer, mox_err *err)
{
    const size_t n = (size_t)t->n_events;
    MOX_TRY(mox_buffer_reserve(&t->events, n + 1, sizeof(mox_trace_event), "a trace", err));
    ((mox_trace_event *)t->events.data)[n] = (mox_trace_event){.what = what, .layer = (int32_t)layer, .first = t->n_ids};
    return MOX_OK;
}

/* Slots that are in use from here on. */
static mox_status read_slots(scanner *s, mox_trace *t, mox_err *err)
{
    int64_t n;
    if (!number(s, t->info.n_all, &n) || n == 0 || !end_line(s)) return damaged(s, "= without a number of slots", err);
    MOX_TRY(begin_event(t, MOX_TRACE_SLOTS, n, err));
    t->n_events++;
    return MOX_OK;
}

static mox_status read_event(scanner *s, mox_trace *t, mox_err *err)
{
    mox_trace_info *i = &t->info;
    const mox_trace_kind what = skip(s, "+ ") ? MOX_TRACE_AHEAD : skip(s, "- ") ? MOX_TRACE_LOST : MOX_TRACE_BATCH;
    int64_t layer, id, before = -1, n = 0;
    if (!number(s, i->n_layers - 1, &layer)) return damaged(s, "it does not begin with a layer of the model, or end", err);
    MOX_TRY(begin_event(t, what, layer, err));
    for (; skip(s, " "); n++) {
        if (!number(s, i->n_experts - 1, &id)) return damaged(s, "an expert that the model does not have", err);
        if (id <= before) return damaged(s, "experts do not ascend", err);
        before = id;
        MOX_TRY(mox_buffer_reserve(&t->ids, (size_t)t->n_ids + 1, sizeof(int32_t), "a trace", err));
        ((int32_t *)t->ids.data)[t->n_ids++] = (int32_t)id;
    }
    if (n > 1 && what != MOX_TRACE_BATCH) return damaged(s, "more than one expert behind + or -", err);
    if (n == 0 || !end_line(s)) return damaged(s, "something else than experts", err);
    t->n_events++;
    i->n_batches += what == MOX_TRACE_BATCH;
    i->n_requests += what == MOX_TRACE_BATCH ? n : 0;
    i->n_ahead += what == MOX_TRACE_AHEAD;
    return MOX_OK;
}

static bool read_policy(scanner *s, mox_trace_info *i)
{
    if (!skip(s, " policy=")) return false;
    size_t n = 0;
    while (s->at < s->end && *s->at != ' ' && *s->at != '\n' && n + 1 < sizeof i->policy) i->policy[n++] = *s->at++;
    i->policy[n] = '\0';
    return i->n_slots == 0 ? strcmp(i->policy, "none") == 0 : mox_policy_find(i->policy) != NULL;
}

static mox_status read_end(scanner *s, mox_trace_info *i, mox_err *err)
{
    if (!field(s, " tokens=", 0, MOST_COUNT, &i->n_tokens) || !field(s, " slots=", 0, i->n_all, &i->n_slots) ||
        !read_policy(s, i) || !field(s, " hits=", 0, MOST_COUNT, &i->hits) ||
        !field(s, " misses=", 0, MOST_COUNT, &i->misses))
        return damaged(s, "tokens, slots, policy, hits or misses are missing or out of range", err);
    if (i->hits + i->misses != (i->n_slots > 0 ? i->n_requests : 0))
        return damaged(s, "hits and misses are not as many as there are experts in the lines before", err);
    if (!end_line(s) || s->at != s->end) return damaged(s, "something follows the end", err);
    return MOX_OK;
}

static mox_status read_trace(scanner *s, mox_trace *t, mox_err *err)
{
    MOX_TRY(read_header(s, &t->info, err));
    while (!skip(s, "end")) {
        if (s->at == s->end) return damaged(s, "the file ends without an end", err);
        if (skip(s, "= ")) MOX_TRY(read_slots(s, t, err));
        else MOX_TRY(read_event(s, t, err));
    }
    if (t->info.n_batches == 0) return damaged(s, "nothing was traced", err);
    MOX_TRY(begin_event(t, MOX_TRACE_BATCH, 0, err));
    return read_end(s, &t->info, err);
}

mox_status mox_trace_open(mox_trace **out, const char *path, mox_err *err)
{
    *out = NULL;
    char *text;
    size_t n;
    MOX_TRY(mox_file_slurp(path, MOST_FILE_BYTES, &text, &n, err));
    mox_trace *t = mox_alloc_array(1, sizeof *t);
    scanner s = {.path = path, .at = text, .end = text + n, .line = 1};
    const mox_status status = t ? read_trace(&s, t, err) : mox_fail_memory(err, sizeof *t, "a trace");
    mox_free(text);
    if (status != MOX_OK) mox_trace_close(&t);
    *out = t;
    return status;
}

void mox_trace_close(mox_trace **trace)
{
    mox_trace *t = *trace;
    if (!t) return;
    mox_buffer_deinit(&t->events);
    mox_buffer_deinit(&t->ids);
    mox_free(t);
    *trace = NULL;
}

void mox_trace_get_info(const mox_trace *t, mox_trace_info *out) { *out = t->info; }
