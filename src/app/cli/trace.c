/* app/cli/trace.c -- see trace.h.
 *
 * Lines collect in a buffer of their own, because they are written inside a step.  A failed
 * write is remembered and told at the end. */
#include "app/cli/trace.h"

#include "app/cli/commands.h"
#include "app/cli/message.h"
#include "moxie/tools.h"

#include <stdio.h>

enum { NUMBER_BYTES = 24 };

static void flush(mox_cli_trace *t)
{
    if (t->status == MOX_OK) t->status = mox_out_write(&t->out, t->buffer, t->n, &t->err);
    t->n = 0;
}

static void put(mox_cli_trace *t, char before, long long number)
{
    if (t->n + NUMBER_BYTES > sizeof t->buffer) flush(t);
    if (before) t->buffer[t->n++] = before;
    t->n += (size_t)snprintf(t->buffer + t->n, NUMBER_BYTES - 1, "%lld", number);
}

int mox_cli_trace_begin(mox_cli_trace *t, const char *path, const mox_model *m)
{
    mox_inspection r;
    mox_model_inspect(m, &r);
    if (mox_out_open(&t->out, path, &t->err) != MOX_OK) return mox_cli_fail_running(&t->err);
    t->n = (size_t)snprintf(t->buffer, sizeof t->buffer, "moxie-trace 1 layers=%lld experts=%lld active=%lld slot_bytes=%lld",
                            (long long)r.n_layers, (long long)r.n_experts, (long long)r.n_experts_active,
                            (long long)mox_model_expert_slot_bytes(m));
    return EXIT_OK;
}

void mox_cli_trace_layer(void *trace, int32_t layer, const int32_t *ids, int64_t n)
{
    mox_cli_trace *t = trace;
    put(t, '\n', layer);
    for (int64_t i = 0; i < n; i++) put(t, ' ', ids[i]);
}

int mox_cli_trace_end(mox_cli_trace *t, int code)
{
    if (t->out.fd < 0 && t->status == MOX_OK) return code;
    if (t->n == sizeof t->buffer) flush(t);
    t->buffer[t->n++] = '\n';
    flush(t);
    if (t->status == MOX_OK && code == EXIT_OK) t->status = mox_out_commit(&t->out, &t->err);
    mox_out_discard(&t->out);
    const mox_status status = t->status;
    t->status = MOX_OK;
    return code == EXIT_OK && status != MOX_OK ? mox_cli_fail_running(&t->err) : code;
}
