/* dev/gpu/slots_experts.c -- experts that come from a source instead of staying on the device.
 *
 * The router has chosen on the device, so its choice is fetched first: the only time within a step that
 * the host waits for the device.  The source then hands over matrices in memory of the device, and the
 * kernels that compute with them are those that would if all experts were there.  So results are the same
 * bytes.
 *
 * A few tokens are computed when all their experts are there, by the kernels that take pairs, with numbers
 * of places for ids.  More of them go in groups, some by kernels that take places, too; for the others, where the experts of a group are goes into the layer's
 * table, and pairs of other groups have the id -1, which no kernel finds.
 *
 * I1  an entry of the table is read only for ids that the source handed over last.
 * I2  every successful acquire is released, once. */
#include "dev/gpu/device.h"

#include "base/cancel.h"

#include <string.h>

mox_status mox_gpu_check_pairs(const mox_dev *d, const mox_moe_ffn_args *a, mox_err *err)
{
    const mox_dev_gpu *g = (const mox_dev_gpu *)d;
    if (a->n * a->k <= g->most.n_pairs && a->n_experts <= g->most.n_experts) return MOX_OK;
    return mox_fail(err, MOX_E_ARG, "device %s: a batch of %lld pairs is more than it was told of", d->name, (long long)(a->n * a->k));
}

mox_status mox_gpu_list_wanted(mox_dev *d, const mox_moe_ffn_args *a, int64_t *n, mox_err *err)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    *n = 0;
    memset(g->marked, 0, (size_t)a->n_experts * sizeof *g->marked);
    for (int64_t i = 0; i < a->n * a->k; i++) {
        if (g->ids[i] < 0 || g->ids[i] >= a->n_experts)
            return mox_fail(err, MOX_E_DEVICE, "device %s: the router of layer %d chose expert %d of %lld", d->name, a->layer, g->ids[i],
                            (long long)a->n_experts);
        g->marked[g->ids[i]] = true;
    }
    for (int32_t x = 0; x < a->n_experts; x++)
        if (g->marked[x]) g->wanted[(*n)++] = x;
    return MOX_OK;
}

mox_status mox_gpu_come_acquire(mox_dev *d, const mox_moe_ffn_args *a, mox_err *err)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    int64_t n_wanted;
    g->divided = false;
    MOX_TRY(mox_gpu_check_pairs(d, a, err));
    MOX_TRY(d->memory.download(d, g->ids, a->ids, a->n * a->k * (int64_t)sizeof *g->ids, err));
    MOX_TRY(mox_gpu_list_wanted(d, a, &n_wanted, err));
    return a->source->acquire(a->source, a->layer, g->wanted, n_wanted, err);
}

/* Where the n experts of the batch are. */
static void write_table(mox_dev *d, const mox_moe_ffn_args *a, int64_t n)
{
    const mox_dev_gpu *g = (mox_dev_gpu *)d;
    const mox_gpu_experts *x = &g->layers[a->layer];
    bool changed = false;
    for (int64_t i = 0; i < n; i++) {
        const mox_expert *e = &g->batch[i];
        const mox_gpu_mat now[3] = {mox_gpu_mat_of(&e->gate), mox_gpu_mat_of(&e->up), mox_gpu_mat_of(&e->down)};
        for (int m = 0; m < 3; m++) {
            mox_gpu_mat *at = &x->come[m * x->n + e->id];
            changed = changed || at->w != now[m].w;
            *at = now[m];
        }
    }
    if (changed) d->memory.upload(d, x->memory, x->come, 3 * x->n * (int64_t)sizeof *x->come);
}

/* Experts of one shape lie alike in their places, so the address of one part says which place it is. */
static int32_t place_of(const mox_gpu_experts *x, const mox_expert *e)
{
    return (int32_t)(((uintptr_t)e->gate.w - (uintptr_t)x->gate.first.w) / (uintptr_t)x->step);
}

/* Ids of the n experts of the batch, or numbers of their places, to memory of the device that a->batch_pairs is; returns
 * one more than the largest that may come. */
static int64_t write_ids(mox_dev *d, const mox_moe_ffn_args *a, bool by_place, int64_t n)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    const int64_t n_pairs = a->n * a->k;
    int64_t end = by_place ? 0 : a->n_experts;
    for (int32_t x = 0; x < a->n_experts; x++) g->called[x] = -1;
    for (int64_t i = 0; i < n; i++) {
        const int32_t id = by_place ? place_of(&g->layers[a->layer], &g->batch[i]) : g->batch[i].id;
        g->called[g->batch[i].id] = id;
        end = mox_max_i64(end, id + 1);
    }
    for (int64_t i = 0; i < n_pairs; i++) g->masked[i] = g->called[g->ids[i]];
    d->memory.upload(d, a->batch_pairs, g->masked, n_pairs * (int64_t)sizeof *g->masked);
    return end;
}

mox_status mox_gpu_come_each(mox_dev *d, const mox_moe_ffn_args *a, bool by_place, mox_gpu_group_fn *compute, mox_err *err)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    mox_status status;
    for (;;) {
        int64_t n = 0;
        status = mox_cancelled(a->cancel) ? mox_fail(err, MOX_E_CANCELLED, "cancelled")
                                          : a->source->next(a->source, g->batch, a->n_experts, &n, a->cancel, err);
        if (status != MOX_OK || n == 0) break;
        if (!by_place) write_table(d, a, n);
        compute(d, a, a->batch_pairs, write_ids(d, a, by_place, n));
    }
    a->source->release(a->source);
    return status;
}

mox_status mox_gpu_come_all(mox_dev *d, const mox_moe_ffn_args *a, mox_err *err)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    const int64_t n_pairs = a->n * a->k;
    int64_t n = 0;
    const mox_status status = a->source->all(a->source, g->batch, &n, a->cancel, err);
    for (int64_t i = 0; i < n_pairs && status == MOX_OK; i++) {
        int64_t k = 0;
        while (g->batch[k].id != g->ids[i]) k++; /* it is there: all were acquired */
        g->masked[i] = place_of(&g->layers[a->layer], &g->batch[k]);
    }
    if (status == MOX_OK) d->memory.upload(d, a->batch_pairs, g->masked, n_pairs * (int64_t)sizeof *g->masked);
    a->source->release(a->source);
    return status;
}

mox_status mox_gpu_come_guess(mox_dev *d, const mox_moe_ffn_args *a, mox_err *err)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    const int64_t n = a->n * a->guess_k;
    if (!a->guess) return MOX_OK;
    mox_status status = n <= g->most.n_pairs ? MOX_OK : mox_fail(err, MOX_E_ARG, "device %s: a guess of %lld experts is more than it was told of",
                                                                 d->name, (long long)n);
    if (status == MOX_OK) status = d->memory.download(d, g->guess, a->guess, n * (int64_t)sizeof *g->guess, err);
    for (int64_t i = 0; i < n && status == MOX_OK; i++)
        if (g->guess[i] < 0 || g->guess[i] >= a->n_experts)
            status = mox_fail(err, MOX_E_DEVICE, "device %s: the router of layer %d chose expert %d of %lld", d->name, a->layer + 1,
                              g->guess[i], (long long)a->n_experts);
    if (status != MOX_OK) a->source->release(a->source);
    return status;
}

void mox_gpu_come_ahead(mox_dev *d, const mox_moe_ffn_args *a)
{
    const mox_dev_gpu *g = (mox_dev_gpu *)d;
    if (a->guess) a->source->ahead(a->source, a->layer + 1, g->guess, a->n * a->guess_k);
}
