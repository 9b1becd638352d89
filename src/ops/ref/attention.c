/* ops/ref/attention.c -- reference kernels of attention and its caches: scalar,
 * ascending order, double accumulators.  Any head width, any length. */
#include "ops/kern.h"

#include "base/size.h"
#include "ops/q8.h"
#include "ops/ref/online.h"
#include "ops/span.h"

#include <assert.h>
#include <string.h>

void mox_kv_append_ref(const mox_kv_append_args *a, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++) {
        int64_t i;
        const mox_span *s = mox_span_of_row(a->spans, row, &i);
        for (int64_t h = 0; h < a->heads; h++) {
            const float *src = a->src + (s->row0 + i) * a->stride + h * a->head_stride;
            const int64_t at = mox_cache_offset(&a->cache, s->pages, s->pos0 + i, h);
            if (a->cache.type == MOX_DT_F32) {
                memcpy((float *)a->cache.data + at, src, (size_t)a->dim * sizeof *src);
            } else if (a->cache.type == MOX_DT_I8) {
                mox_q8_store(src, a->dim, (uint8_t *)a->cache.data + at);
            } else {
                uint16_t *dst = (uint16_t *)a->cache.data + at;
                for (int64_t d = 0; d < a->dim; d++) dst[d] = mox_f32_to_f16(src[d]);
            }
        }
    }
}

/* One query of one head over the keys [first, last): values [v0, v0 + n). */
static void attend(const mox_attention_args *a, const mox_span *s, const float *q, int64_t h, int64_t first,
                   int64_t last, int64_t v0, int64_t n, mox_online *o)
{
    const int64_t kv_head = h / (a->heads / a->kv_heads);
    mox_online_begin(o, n);
    for (int64_t j = first; j < last; j++) {
        const double dot = mox_cache_dot(&a->k, mox_cache_offset(&a->k, s->pages, j, kv_head), q, a->dim);
        const double weight = mox_online_weight(o, (double)a->scale * dot, n);
        mox_cache_add(&a->v, mox_cache_offset(&a->v, s->pages, j, kv_head), v0, weight, o->sum, n);
    }
}

void mox_attention_ref(const mox_attention_args *a, int64_t begin, int64_t end)
{
    assert(a->heads % a->kv_heads == 0);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t h = unit % a->heads;
        int64_t i;
        const mox_span *s = mox_span_of_row(a->spans, unit / a->heads, &i);
        if (mox_pieces_of(a, s).n > 1) continue;
        const int64_t row = s->row0 + i, pos = s->pos0 + i;
        const int64_t last = a->causal ? pos + 1 : s->pos0 + s->n;
        const int64_t first = a->window > 0 ? mox_max_i64(0, pos - a->window + 1) : 0;
        const float *q = a->q + row * a->q_stride + h * a->q_head_stride;
        float *out = a->out + row * a->out_stride + h * a->out_head_stride;
        for (int64_t v0 = 0; v0 < a->v_dim; v0 += MOX_PIECE) {
            const int64_t n = mox_min_i64(MOX_PIECE, a->v_dim - v0);
            mox_online o;
            attend(a, s, q, h, first, last, v0, n, &o);
            if (a->sinks) (void)mox_online_weight(&o, (double)a->sinks[h], n);
            for (int64_t d = 0; d < n; d++) out[v0 + d] = o.denom == 0.0 ? 0.0f : (float)(o.sum[d] / o.denom);
        }
    }
}

void mox_attention_parts_ref(const mox_attention_args *a, int64_t begin, int64_t end)
{
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t h = unit % a->heads, piece = unit / a->heads % MOX_ATTENTION_PIECES;
        const int64_t row = unit / a->heads / MOX_ATTENTION_PIECES;
        mox_pieces p;
        const mox_span *s = mox_split_span(a, row, &p);
        if (piece >= p.n) continue;
        int64_t first, last;
        mox_piece_range(&p, piece, &first, &last);
        const float *q = a->q + s->row0 * a->q_stride + h * a->q_head_stride;
        float *part = mox_part_of(a, row, h, piece);
        for (int64_t v0 = 0; v0 < a->v_dim; v0 += MOX_PIECE) {
            const int64_t n = mox_min_i64(MOX_PIECE, a->v_dim - v0);
            mox_online o;
            attend(a, s, q, h, first, last, v0, n, &o);
            part[0] = (float)o.max;
            const double shrink = o.denom == 0.0 ? 0.0 : exp(o.max - (double)part[0]); /* the maximum as it is stored */
            part[1] = (float)(o.denom * shrink);
            for (int64_t d = 0; d < n; d++) part[2 + v0 + d] = (float)(o.sum[d] * shrink);
        }
    }
}

void mox_attention_merge_ref(const mox_attention_args *a, int64_t begin, int64_t end)
{
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t h = unit % a->heads, row = unit / a->heads;
        mox_pieces p;
        const mox_span *s = mox_split_span(a, row, &p);
        float *out = a->out + s->row0 * a->out_stride + h * a->out_head_stride;
        double max = a->sinks ? (double)a->sinks[h] : -INFINITY, weight[MOX_ATTENTION_PIECES];
        for (int64_t i = 0; i < p.n; i++) { /* not fmax, which stops gcc 12 for ARM */
            const double top = (double)mox_part_of(a, row, h, i)[0];
            if (top > max || isnan(max)) max = top;
        }
        double denom = a->sinks && max > -INFINITY ? exp((double)a->sinks[h] - max) : 0.0;
        for (int64_t i = 0; i < p.n; i++) {
            const float *part = mox_part_of(a, row, h, i);
            weight[i] = part[1] == 0.0f ? 0.0 : exp((double)part[0] - max);
            denom += weight[i] * (double)part[1];
        }
        for (int64_t d = 0; d < a->v_dim; d++) {
            double sum = 0.0;
            for (int64_t i = 0; i < p.n; i++)
                if (weight[i] != 0.0) sum += weight[i] * (double)mox_part_of(a, row, h, i)[2 + d];
            out[d] = denom == 0.0 ? 0.0f : (float)(sum / denom);
        }
    }
}

void mox_attn_scores_ref(const mox_attn_scores_args *a, int64_t begin, int64_t end)
{
    assert(a->heads % a->kv_heads == 0 && a->n_keys <= a->k.page_len);
    for (int64_t h = begin; h < end; h++) {
        const int64_t kv_head = h / (a->heads / a->kv_heads);
        for (int64_t p = 0; p < a->n_keys; p++) {
            const int64_t at = mox_cache_offset(&a->k, NULL, p, kv_head);
            const double dot = mox_cache_dot(&a->k, at, a->q + h * a->dim, a->dim);
            a->scores[h * a->score_stride + p] = (float)((double)a->scale * dot);
        }
    }
}

void mox_attn_softmax_ref(const mox_attn_softmax_args *a, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++) {
        float *x = a->scores + row * a->stride;
        mox_online o;
        mox_online_begin(&o, 0);
        for (int64_t p = 0; p < a->n_keys; p++) (void)mox_online_weight(&o, (double)x[p], 0);
        for (int64_t p = 0; p < a->n_keys; p++) {
            const double e = x[p] == -INFINITY ? 0.0 : exp((double)x[p] - o.max);
            x[p] = o.denom == 0.0 ? 0.0f : (float)(e / o.denom);
        }
    }
}

void mox_attn_values_ref(const mox_attn_values_args *a, int64_t begin, int64_t end)
{
    double sum[MOX_PIECE];
    for (int64_t h = begin; h < end; h++) {
        const int64_t kv_head = h / (a->heads / a->kv_heads);
        for (int64_t d0 = 0; d0 < a->dim; d0 += MOX_PIECE) {
            const int64_t n = mox_min_i64(MOX_PIECE, a->dim - d0);
            for (int64_t d = 0; d < n; d++) sum[d] = 0.0;
            for (int64_t p = 0; p < a->n_keys; p++) {
                const double weight = (double)a->scores[h * a->score_stride + p];
                mox_cache_add(&a->v, mox_cache_offset(&a->v, NULL, p, kv_head), d0, weight, sum, n);
            }
            for (int64_t d = 0; d < n; d++) a->out[h * a->dim + d0 + d] = (float)sum[d];
        }
    }
}

void mox_split_q_gate_ref(const mox_split_q_gate_args *a, int64_t begin, int64_t end)
{
    const size_t bytes = (size_t)a->dim * sizeof(float);
    for (int64_t i = begin * a->heads; i < end * a->heads; i++) {
        memcpy(a->q + i * a->dim, a->in + 2 * i * a->dim, bytes);
        memcpy(a->gate + i * a->dim, a->in + (2 * i + 1) * a->dim, bytes);
    }
}

void mox_transpose_heads_ref(const mox_transpose_heads_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++)
        for (int64_t h = 0; h < a->heads; h++)
            memcpy(a->out + (t * a->heads + h) * a->dim, a->in + (h * a->n + t) * a->dim,
                   (size_t)a->dim * sizeof(float));
}
