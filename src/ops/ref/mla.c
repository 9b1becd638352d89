/* ops/ref/mla.c -- reference kernels of latent attention: scalar, ascending
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
                mox_cache_add(&a->latent, at, c0, weight, o.sum, n);
            }
            for (int64_t c = 0; c < n; c++)
                a->ctx[row * a->rank + c0 + c] = o.denom == 0.0 ? 0.0f : (float)(o.sum[c] / o.denom);
        }
    }
}

/* ---- expanded ---- */

enum { EXPANDED_KEYS = 16 };

typedef struct expanded_keys {
    float key[EXPANDED_KEYS][MOX_MLA_EXPANDED_MAX], value[EXPANDED_KEYS][MOX_MLA_EXPANDED_MAX];
} expanded_keys;

/* Keys and values of head h at positions [pos, pos + n). */
static void expand(const mox_mla_expanded_args *a, const mox_span *s, int64_t h, int64_t pos, int64_t n, expanded_keys *x)
{
    double key[EXPANDED_KEYS][MOX_MLA_EXPANDED_MAX] = {{0}}, value[EXPANDED_KEYS][MOX_MLA_EXPANDED_MAX] = {{0}};
    float w[MOX_MLA_EXPANDED_MAX];
    for (int64_t c0 = 0; c0 < a->rank; c0 += TILE_COLS) {
        const int64_t n_c = mox_min_i64(TILE_COLS, a->rank - c0);
        double latent[EXPANDED_KEYS][TILE_COLS];
        for (int64_t j = 0; j < n; j++)
            for (int64_t c = 0; c < n_c; c++)
                latent[j][c] = mox_cache_number(&a->latent, mox_cache_offset(&a->latent, s->pages, pos + j, 0), c0 + c);
        for (int64_t i = 0; i < a->nope && !a->by_rank; i++) {
            mox_mat_decode(&a->key, h * a->key_rows + i, c0, n_c, w);
            for (int64_t j = 0; j < n; j++)
                for (int64_t c = 0; c < n_c; c++) key[j][i] += latent[j][c] * (double)w[c];
        }
        for (int64_t c = 0; c < n_c && a->by_rank; c++) {
            mox_mat_decode(&a->key, h * a->key_rows + c0 + c, 0, a->nope, w);
            for (int64_t j = 0; j < n; j++)
                for (int64_t i = 0; i < a->nope; i++) key[j][i] += latent[j][c] * (double)w[i];
        }
        for (int64_t f = 0; f < a->v_dim; f++) {
            mox_mat_decode(&a->value, h * a->value_rows + a->value_row0 + f, c0, n_c, w);
            for (int64_t j = 0; j < n; j++)
                for (int64_t c = 0; c < n_c; c++) value[j][f] += latent[j][c] * (double)w[c];
        }
    }
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < a->nope; i++) x->key[j][i] = (float)key[j][i];
        for (int64_t f = 0; f < a->v_dim; f++) x->value[j][f] = (float)value[j][f];
    }
}

/* Row i of the span over the keys of a tile: continues state and out. */
static void attend_expanded(const mox_mla_expanded_args *a, const mox_span *s, int64_t h, int64_t i, int64_t pos, int64_t n,
                            const expanded_keys *x, float *state)
{
    const int64_t row = (s->row0 + i) * a->heads + h;
    float *out = a->out + row * a->v_dim;
    mox_online o = {.max = (double)state[0], .denom = (double)state[1]};
    for (int64_t f = 0; f < a->v_dim; f++) o.sum[f] = (double)out[f];
    for (int64_t j = 0; j < n && pos + j <= s->pos0 + i; j++) {
        const int64_t at = mox_cache_offset(&a->k_pe, s->pages, pos + j, 0);
        double dot = mox_cache_dot(&a->k_pe, at, a->q_pe + row * a->rope, a->rope);
        for (int64_t d = 0; d < a->nope; d++) dot += (double)a->q_nope[row * a->nope + d] * (double)x->key[j][d];
        const double weight = mox_online_weight(&o, (double)a->scale * dot, a->v_dim);
        for (int64_t f = 0; f < a->v_dim; f++) o.sum[f] += weight * (double)x->value[j][f];
    }
    const double shrink = o.denom == 0.0 ? 0.0 : exp(o.max - (double)(float)o.max); /* the maximum as it is stored */
    state[0] = (float)o.max;
    state[1] = (float)(o.denom * shrink);
    for (int64_t f = 0; f < a->v_dim; f++) out[f] = (float)(o.sum[f] * shrink);
}

void mox_mla_expanded_ref(const mox_mla_expanded_args *a, int64_t begin, int64_t end)
{
    expanded_keys x;
    int64_t rows = 0;
    for (int64_t i = 0; i < a->n_spans; i++) rows = mox_max_i64(rows, a->spans[i].row0 + a->spans[i].n);
    for (int64_t h = begin; h < end; h++)
        for (const mox_span *s = a->spans; s < a->spans + a->n_spans; s++) {
            float *state = a->state + (h * rows + s->row0) * 2;
            for (int64_t i = 0; i < s->n; i++) {
                state[2 * i] = -INFINITY;
                state[2 * i + 1] = 0.0f;
                memset(a->out + ((s->row0 + i) * a->heads + h) * a->v_dim, 0, (size_t)a->v_dim * sizeof(float));
            }
            for (int64_t pos = 0; s->n > 0 && pos < s->pos0 + s->n; pos += EXPANDED_KEYS) {
                const int64_t n = mox_min_i64(EXPANDED_KEYS, s->pos0 + s->n - pos);
                expand(a, s, h, pos, n, &x);
                for (int64_t i = 0; i < s->n; i++) attend_expanded(a, s, h, i, pos, n, &x, state + 2 * i);
            }
            for (int64_t i = 0; i < s->n; i++) {
                float *out = a->out + ((s->row0 + i) * a->heads + h) * a->v_dim;
                const float denom = state[2 * i + 1];
                for (int64_t f = 0; f < a->v_dim; f++)
                    out[f] = denom == 0.0f ? 0.0f : (float)((double)out[f] / (double)denom);
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
                mox_cache_add(&a->latent, at, c0, weight, o.sum, n);
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
