/* dev/gpu/slots_cold.c -- experts of a few tokens that are not on the device, and that the processor computes.
 *
 * What the router chose, its weights and the rows that experts take come to the host in one go.  The source
 * says who is there.  The pairs of those move together, so that each token has fewer of them, and go the same
 * way as if there were no others; a token that has less than another is filled up with pairs of weight 0, of an
 * expert that it chose itself if one is there.
 * While the device computes them, the source has the rest computed by the processor, and their weighted sum is
 * added to what the layer returns.
 *
 * I1  with all experts of a batch there, nothing differs from a source that does not divide. */
#include "dev/gpu/device.h"

#include "base/alloc.h"

#include <assert.h>

bool mox_gpu_may_divide(const mox_dev *d, const mox_moe_ffn_args *a)
{
    return a->source->divide && a->n <= MOX_DEV_TOGETHER && a->dim <= ((const mox_dev_gpu *)d)->most.dim;
}

mox_status mox_gpu_cold_acquire(mox_dev *d, const mox_moe_ffn_args *a, mox_err *err)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    const int64_t n_pairs = a->n * a->k;
    int64_t n_wanted;
    const mox_fetch pieces[] = {{g->ids, a->ids, n_pairs * (int64_t)sizeof *g->ids},
                                {g->cold.w, a->w, n_pairs * (int64_t)sizeof *g->cold.w},
                                {g->cold.x, a->x, a->n * a->dim * (int64_t)sizeof *g->cold.x}};
    g->divided = false;
    MOX_TRY(mox_gpu_check_pairs(d, a, err));
    MOX_TRY(mox_gpu_fetch(d, pieces, sizeof pieces / sizeof *pieces, err));
    MOX_TRY(mox_gpu_list_wanted(d, a, &n_wanted, err));
    MOX_TRY(a->source->divide(a->source, a->layer, g->wanted, n_wanted, g->marked, err));
    for (int64_t i = 0; i < n_wanted; i++) {
        g->called[g->wanted[i]] = g->marked[i] ? g->wanted[i] : -1;
        g->divided = g->divided || !g->marked[i];
    }
    return MOX_OK;
}

/* Moves the pairs that stay with the device together, in g->ids and g->cold.hot_w, leaves the others in
 * g->cold.ids, and returns how many pairs each token has on the device. */
static int64_t part_pairs(mox_dev_gpu *g, const mox_moe_ffn_args *a)
{
    int64_t most = 0;
    int32_t any = -1;
    for (int64_t t = 0; t < a->n; t++) {
        int64_t n = 0;
        for (int64_t p = t * a->k; p < (t + 1) * a->k; p++) {
            const int32_t id = g->called[g->ids[p]];
            g->cold.ids[p] = id < 0 ? g->ids[p] : -1;
            if (id < 0) continue;
            any = id;
            n++;
        }
        most = mox_max_i64(most, n);
    }
    int64_t at = 0; /* never in front of what is still to be read */
    for (int64_t t = 0; t < a->n; t++) {
        const int64_t end = at + most;
        int32_t own = any;
        for (int64_t p = t * a->k; p < (t + 1) * a->k; p++) {
            if (g->cold.ids[p] >= 0) continue;
            g->cold.hot_w[at] = g->cold.w[p];
            g->ids[at++] = own = g->ids[p];
        }
        for (; at < end; at++) { /* of its own: another's might be infinite for this token, and 0 times that is not 0 */
            g->cold.hot_w[at] = 0.0f;
            g->ids[at] = own;
        }
    }
    return most;
}

/* The layer without its cold experts; releases the source. */
static mox_status finish_hot(mox_dev *d, const mox_moe_finish_args *a, int64_t k, mox_err *err)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    mox_moe_finish_args hot = *a;
    float *w = (float *)(void *)a->ffn.batch_tokens; /* scratch that no kernel of a GPU uses */
    hot.ffn.k = hot.combine.k = k;
    hot.combine.w = w;
    if (k > 0) {
        d->memory.upload(d, w, g->cold.hot_w, a->ffn.n * k * (int64_t)sizeof *w);
        return d->ops.moe_finish(d, &hot, err);
    }
    a->ffn.source->release(a->ffn.source);
    MOX_TRY(mox_dev_moe_shared(d, a, err));
    return d->ops.moe_combine(d, &hot.combine, err);
}

mox_status mox_gpu_cold_finish(mox_dev *d, const mox_moe_finish_args *a, mox_err *err)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    const mox_moe_ffn_args *f = &a->ffn;
    const int64_t n = f->n * f->dim;
    assert(g->divided);
    g->divided = false;
    MOX_TRY(finish_hot(d, a, part_pairs(g, f), err));
    MOX_TRY(f->source->compute(f->source,
                               &(mox_cold_args){.layer = f->layer, .ids = g->cold.ids, .x = g->cold.x, .w = g->cold.w, .sum = g->cold.sum,
                                                .n = f->n, .k = f->k, .cancel = f->cancel},
                               err));
    d->memory.upload(d, f->rows, g->cold.sum, n * (int64_t)sizeof *f->rows);
    return d->ops.add(d, &(mox_add_args){.a = a->combine.out, .b = f->rows, .out = a->combine.out, .n = n}, err);
}

mox_status mox_gpu_cold_reserve(mox_dev_gpu *g, mox_err *err)
{
    const mox_dev_sizes *most = &g->most;
    if (most->dim == 0) return MOX_OK;
    const size_t n = (size_t)mox_min_i64(most->n_rows, MOX_DEV_TOGETHER), pairs = n * (size_t)(most->n_pairs / most->n_rows);
    g->cold.ids = mox_alloc_array(pairs, sizeof *g->cold.ids);
    g->cold.w = mox_alloc_array(pairs, sizeof *g->cold.w);
    g->cold.hot_w = mox_alloc_array(pairs, sizeof *g->cold.hot_w);
    g->cold.x = mox_alloc_array(n * (size_t)most->dim, sizeof *g->cold.x);
    g->cold.sum = mox_alloc_array(n * (size_t)most->dim, sizeof *g->cold.sum);
    if (g->cold.ids && g->cold.w && g->cold.hot_w && g->cold.x && g->cold.sum) return MOX_OK;
    return mox_fail_memory(err, 2 * n * (size_t)most->dim * sizeof *g->cold.x, "rows that the processor computes");
}

void mox_gpu_cold_free(mox_dev_gpu *g)
{
    mox_free(g->cold.ids);
    mox_free(g->cold.w);
    mox_free(g->cold.hot_w);
    mox_free(g->cold.x);
    mox_free(g->cold.sum);
}
