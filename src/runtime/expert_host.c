/* runtime/expert_host.c -- see expert_host.h. */
#include "runtime/expert_host.h"

#include "model/moe.h"

#include <string.h>

/* For n tokens with k experts each, and nothing that they share. */
static mox_moe_ffn_args take(const mox_model *m, mox_arena *a, int64_t n, int64_t k)
{
    const mox_moe sizes = {.n_experts = m->n_experts, .k = k, .width = m->report.expert_width};
    mox_arena_release(a, 0);
    return mox_moe_take(a, &sizes, m->dims.dim, n);
}

int64_t mox_expert_host_bytes(const mox_model *m)
{
    mox_arena a;
    mox_arena_init_measure(&a);
    (void)take(m, &a, MOX_DEV_TOGETHER, m->report.n_experts_active);
    return (int64_t)a.peak;
}

mox_status mox_expert_host_init(mox_expert_host *h, const mox_model *m, const mox_context_opts *opts, mox_precision precision, mox_err *err)
{
    const mox_pool_opts threads = {.n_threads = opts->n_threads, .pin = opts->pin};
    *h = (mox_expert_host){.model = m};
    MOX_TRY(mox_dev_cpu_open(&h->cpu, &threads, NULL, precision, false, err));
    return mox_arena_init(&h->arena, (size_t)mox_expert_host_bytes(m), err);
}

void mox_expert_host_deinit(mox_expert_host *h)
{
    mox_arena_deinit(&h->arena);
    mox_dev_close(&h->cpu);
    h->model = NULL;
}

mox_status mox_expert_host_compute(mox_expert_host *h, mox_expert_source *source, const mox_cold_args *a, mox_err *err)
{
    mox_moe_ffn_args f = take(h->model, &h->arena, a->n, a->k);
    f.source = source;
    f.layer = a->layer;
    f.x = a->x;
    f.ids = a->ids;
    f.cancel = a->cancel;
    for (int64_t p = 0; p < a->n * a->k; p++) /* of these nobody writes the rows */
        if (a->ids[p] < 0) memset(f.rows + p * f.dim, 0, (size_t)f.dim * sizeof *f.rows);
    memset(a->sum, 0, (size_t)(a->n * f.dim) * sizeof *a->sum);
    MOX_TRY(h->cpu->ops.moe_acquire(h->cpu, &f, err));
    return h->cpu->ops.moe_finish(h->cpu,
                                  &(mox_moe_finish_args){.ffn = f,
                                                         .combine = {.h = a->sum, .experts = f.rows, .w = a->w, .out = a->sum, .n = a->n,
                                                                     .k = a->k, .dim = f.dim}},
                                  err);
}
