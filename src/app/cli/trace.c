/* app/cli/trace.c -- see trace.h.
 *
 * Lines collect in a buffer of their own, because they are written inside a step.  A failed
 * write is remembered and told at the end. */
#include "app/cli/trace.h"

#include "app/cli/commands.h"
#include "app/cli/message.h"
#include "base/alloc.h"
#include "moxie/tools.h"

#include <stdio.h>

enum { NUMBER_BYTES = 24 };

static void flush(mox_cli_trace *t)
{
    if (t->status == MOX_OK) t->status = mox_out_write(&t->out, t->buffer, t->n, &t->err);
    t->n = 0;
}

static void put(mox_cli_trace *t, const char *before, int32_t number)
{
    if (t->n + NUMBER_BYTES > sizeof t->buffer) flush(t);
    t->n += (size_t)snprintf(t->buffer + t->n, NUMBER_BYTES, "%s%d", before, (int)number);
}

int mox_cli_trace_begin(mox_cli_trace **out, const char *path, const mox_model *m)
{
    mox_inspection r;
    mox_model_inspect(m, &r);
    if (r.n_experts == 0) {
        mox_cli_say("--trace: the model has no routed experts that could be asked for");
        return EXIT_USAGE;
    }
    mox_cli_trace *t = mox_alloc_array(1, sizeof *t);
    if (!t) {
        mox_cli_say("out of memory for a trace");
        return EXIT_FULL;
    }
    if (mox_out_open(&t->out, path, &t->err) != MOX_OK) {
        const int code = mox_cli_fail_running(&t->err);
        mox_free(t);
        return code;
    }
    t->n = (size_t)snprintf(t->buffer, sizeof t->buffer, "moxie-trace 2 layers=%lld moe_layers=%lld experts=%lld active=%lld slot_bytes=%lld",
                            (long long)r.n_layers, (long long)r.n_layers_moe, (long long)r.n_experts,
                            (long long)r.n_experts_active, (long long)mox_model_expert_slot_bytes(m));
    *out = t;
    return EXIT_OK;
}

void mox_cli_trace_line(void *trace, mox_trace_kind what, int32_t layer, const int32_t *ids, int64_t n)
{
    static const char *const begin[] = {[MOX_TRACE_BATCH] = "\n", [MOX_TRACE_AHEAD] = "\n+ ", [MOX_TRACE_LOST] = "\n- ",
                                        [MOX_TRACE_SLOTS] = "\n= "};
    mox_cli_trace *t = trace;
    put(t, begin[what], what == MOX_TRACE_SLOTS ? (int32_t)n : layer);
    for (int64_t i = 0; i < n && what != MOX_TRACE_SLOTS; i++) put(t, " ", ids[i]);
}

static void put_end(mox_cli_trace *t, const mox_context *c)
{
    mox_expert_stats s;
    mox_work work;
    mox_context_get_expert_stats(c, &s);
    mox_context_get_work(c, &work);
    flush(t);
    t->n = (size_t)snprintf(t->buffer, sizeof t->buffer, "\nend tokens=%lld slots=%lld policy=%s hits=%lld misses=%lld\n",
                            (long long)work.tokens, (long long)s.n_slots, s.policy ? s.policy : "none", (long long)s.hits,
                            (long long)s.misses);
    flush(t);
}

int mox_cli_trace_end(mox_cli_trace **trace, const mox_context *c, int code)
{
    mox_cli_trace *t = *trace;
    if (!t) return code;
    if (code == EXIT_OK) put_end(t, c);
    if (code == EXIT_OK && t->status == MOX_OK) t->status = mox_out_commit(&t->out, &t->err);
    mox_out_discard(&t->out);
    if (code == EXIT_OK && t->status != MOX_OK) code = mox_cli_fail_running(&t->err);
    mox_free(t);
    *trace = NULL;
    return code;
}
