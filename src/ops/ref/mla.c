/* ops/ref/mla.c -- reference kernels of folded latent attention: scalar, ascending
 * order, double accumulators.  Any rank, any length. */
#include "ops/kern.h"

#include "base/size.h"
#include "ops/ref/online.h"
#include "ops/span.h"

#include <assert.h>
#include <string.h>

void mox_mla_split_ref(const mox_mla_split_args *a, int64_t begin, int64_t end)
{
    const size_t nope = (size_t)a->nope * sizeof(float), rope = (size_t)a->rope * sizeof(float);
    for (int64_t i = begin * a->heads; i < end * a->heads; i++) {
        const float *q = a->q_full + i * (a->nope + a->rope);
        memcpy(a->q_nope + i * a->nope, q, nope);
        memcpy(a->q_pe + i * a->rope, q + a->nope, rope);
    }
    for (int64_t t = begin; t < end; t++) {
        const float *kv = a->kv + t * (a->rank + a->rope);
        memcpy(a->latent + t * a->rank, kv, (size_t)a->rank * sizeof(float));
        memcpy(a->k_pe + t * a->rope, kv + a->rank, rope);
    }
}

/* Contraction over the rows of K_h.  A tile of columns is decoded once for a tile
 * of tokens, so a long prompt does not decode the matrix once per token. */
enum { TILE_COLS = 32, TILE_TOKENS = 16 };

static void absorb_tile(const mox_mla_q_absorb_args *a, int64_t h, int64_t t0, int64_t n_t, int64_t c0,
                        int64_t n_c)
{
    double sum[TILE_TOKENS * TILE_COLS] = {0};
    float w[TILE_COLS];
    for (int64_t i = 0; i < a->nope; i++) {
        mox_mat_decode(&a->w, h * a->head_rows + i, c0, n_c, w);
        for (int64_t t = 0; t < n_t; t++) {
            const double q = (double)a->q_nope[((t0 + t) * a->heads + h) * a->nope + i];
            for (int64_t c = 0; c < n_c; c++) sum[t * TILE_COLS + c] += q * (double)w[c];
        }
    }
    for (int64_t t = 0; t < n_t; t++)
        for (int64_t c = 0; c < n_c; c++)
            a->out[((t0 + t) * a->heads + h) * a->rank + c0 + c] = (float)sum[t * TILE_COLS + c];
}

void mox_mla_q_absorb_ref(const mox_mla_q_absorb_args *a, int64_t begin, int64_t end)
{
    assert(a->w.cols == (a->by_rank ? a->nope : a->rank));
    for (int64_t h = begin; h < end; h++) {
        if (a->by_rank) { /* an ordinary product with the rows of this head */
            const mox_matmul_args m = {.w = mox_mat_rows(&a->w, h * a->head_rows, a->rank),
                                       .x = a->q_nope + h * a->nope, .y = a->out + h * a->rank, .n = a->n,
                                       .x_stride = a->heads * a->nope, .y_stride = a->heads * a->rank};
            mox_matmul_ref(&m, 0, a->rank);
            continue;
        }
        for (int64_t t = 0; t < a->n; t += TILE_TOKENS)
            for (int64_t c = 0; c < a->rank; c += TILE_COLS)
                absorb_tile(a, h, t, mox_min_i64(TILE_TOKENS, a->n - t), c,
                            mox_min_i64(TILE_COLS, a->rank - c));
    }
}

void mox_mla_out_ref(const mox_mla_out_args *a, int64_t begin, int64_t end)
{
    assert(a->w.cols == a->rank && a->row0 + a->v_dim <= a->head_rows);
    while (begin < end) {
        const int64_t h = begin / a->v_dim, stop = mox_min_i64(end, (h + 1) * a->v_dim);
        const mox_matmul_args m = {.w = mox_mat_rows(&a->w, h * a->head_rows + a->row0, a->v_dim),
                                   .x = a->ctx + h * a->rank, .y = a->out + h * a->v_dim, .n = a->n,
                                   .x_stride = a->heads * a->rank, .y_stride = a->heads * a->v_dim};
        mox_matmul_ref(&m, begin - h * a->v_dim, stop - h * a->v_dim);
        begin = stop;
    }
}

void mox_mla_attention_ref(const mox_mla_attention_args *a, int64_t begin, int64_t end)
{
    mox_online o;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t i;
        const mox_span *s = mox_span_of_row(a->spans, unit / a->heads, &i);
        const int64_t row = (s->row0 + i) * a->heads + unit % a->heads;
        for (int64_t c0 = 0; c0 < a->rank; c0 += MOX_PIECE) {
            const int64_t n = mox_min_i64(MOX_PIECE, a->rank - c0);
            mox_online_begin(&o, n);
            for (int64_t j = 0; j <= s->pos0 + i; j++) {
                const int64_t at = mox_cache_offset(&a->latent, s->pages, j, 0);
                const double dot = mox_cache_dot(&a->latent, at, a->q + row * a->rank, a->rank) +
                                   mox_cache_dot(&a->k_pe, mox_cache_offset(&a->k_pe, s->pages, j, 0),
                                                 a->q_pe + row * a->rope, a->rope);
                const double weight = mox_online_weight(&o, (double)a->scale * dot, n);
                mox_cache_add(&a->latent, at + c0, weight, o.sum, n);
            }
            for (int64_t c = 0; c < n; c++)
                a->ctx[row * a->rank + c0 + c] = o.denom == 0.0 ? 0.0f : (float)(o.sum[c] / o.denom);
        }
    }
}

/* Adds what o found in the tile to columns [c0, c0 + n) of head h's state.  The new
 * maximum is rounded to f32 first and everything is made relative to it, so that
 * the stored maximum and the stored sums belong together. */
static void merge(const mox_mla_tile_args *a, int64_t h, const mox_online *o, float max, float old_max,
                  int64_t c0, int64_t n)
{
    const double keep = old_max == -INFINITY ? 0.0 : exp((double)old_max - (double)max);
    const double take = exp(o->max - (double)max);
    float *sum = a->sum + h * a->rank + c0;
    for (int64_t c = 0; c < n; c++) sum[c] = (float)((double)sum[c] * keep + o->sum[c] * take);
    if (c0 == 0) a->denom[h] = (float)((double)a->denom[h] * keep + o->denom * take);
}

void mox_mla_tile_ref(const mox_mla_tile_args *a, int64_t begin, int64_t end)
{
    mox_online o;
    for (int64_t h = begin; h < end; h++) {
        if (a->first) {
            a->max[h] = -INFINITY;
            a->denom[h] = 0.0f;
            for (int64_t c = 0; c < a->rank; c++) a->sum[h * a->rank + c] = 0.0f;
        }
        const float old_max = a->max[h];
        for (int64_t c0 = 0; c0 < a->rank; c0 += MOX_PIECE) {
            const int64_t n = mox_min_i64(MOX_PIECE, a->rank - c0);
            mox_online_begin(&o, n);
            for (int64_t j = a->begin; j < a->end; j++) {
                const int64_t at = mox_cache_offset(&a->latent, NULL, j, 0);
                const double dot = mox_cache_dot(&a->latent, at, a->q + h * a->rank, a->rank) +
                                   mox_cache_dot(&a->k_pe, mox_cache_offset(&a->k_pe, NULL, j, 0),
                                                 a->q_pe + h * a->rope, a->rope);
                const double weight = mox_online_weight(&o, (double)a->scale * dot, n);
                mox_cache_add(&a->latent, at + c0, weight, o.sum, n);
            }
            if (o.denom == 0.0) continue; /* nothing was seen */
            const float tile_max = (float)o.max, max = tile_max > old_max ? tile_max : old_max;
            merge(a, h, &o, max, old_max, c0, n);
            a->max[h] = max;
        }
    }
}

void mox_mla_finish_ref(const mox_mla_finish_args *a, int64_t begin, int64_t end)
{
    for (int64_t h = begin; h < end; h++)
        for (int64_t c = 0; c < a->rank; c++)
            a->ctx[h * a->rank + c] =
                a->denom[h] == 0.0f ? 0.0f : (float)((double)a->sum[h * a->rank + c] / (double)a->denom[h]);
}
