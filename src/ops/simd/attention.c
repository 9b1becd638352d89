/* ops/simd/attention.c -- softmax attention and its three steps (online.h, values.h).
 *
 * A range of units is cut into blocks of queries that read the same keys: for every
 * span and every key head, rows ascending, and within a row the heads that share the
 * key head.  One row of a long sequence is then read once for all heads of a group,
 * and the rows of a prompt share the keys that lie before them. */
#include "ops/simd/simd.h"

#include "base/size.h"
#include "ops/simd/online.h"

#include <assert.h>

/* ---- attention ---- */

/* Where the queries of a block write, beside what they read. */
typedef struct attention_block {
    query_block b;
    float *out[LANES];
    _Alignas(64) float sink[LANES];
} attention_block;

/* Takes one more score of every query into maximum and denominator of the state, or
 * none where it is -inf; the weight itself is lost.  shrink: what the sums must be
 * multiplied with. */
static void take_logits(online_state *o, const float *logits, float *shrink)
{
    const vf s = vf_load(logits), old = vf_load(o->max), max = vf_max(s, old); /* a NaN is not a maximum */
    const vf base = vf_max(max, vf_set(-FLT_MAX)), less = vf_weight(vf_sub(old, base));
    vf_store(o->max, max);
    vf_store(o->denom, vf_fma(vf_load(o->denom), less, vf_weight(vf_sub(s, base))));
    vf_store(shrink, less);
}

static void run_block(const mox_attention_args *a, attention_block *x)
{
    online_state o;
    online_work w;
    begin_block(&x->b, &w);
    for (int64_t i = x->b.n; i < LANES; i++) x->sink[i] = -INFINITY;
    for (int64_t col = 0; col < a->v_dim; col += SUM_COLS) {
        const int64_t n = mox_min_i64(SUM_COLS, a->v_dim - col);
        clear_state(&o);
        attend_block(&x->b, col, n, &o, &w);
        for (int i = 0; i < LANES; i++) w.shrink[i] = 1;
        if (a->sinks) take_logits(&o, x->sink, w.shrink);
        for (int64_t i = 0; i < x->b.n; i++) {
            const float factor = o.denom[i] == 0 ? 0 : w.shrink[i] / o.denom[i];
            const float *sum = o.sum + i * SUM_COLS;
            for (int64_t c = 0; c < n; c++) x->out[i][col + c] = sum[c] * factor;
        }
    }
    x->b.n = 0;
}

static void add_query(const mox_attention_args *a, const mox_span *s, int64_t row, int64_t h, attention_block *x)
{
    const int64_t i = x->b.n++, pos = s->pos0 + row;
    x->b.part[0].q[i] = a->q + (s->row0 + row) * a->q_stride + h * a->q_head_stride;
    x->out[i] = a->out + (s->row0 + row) * a->out_stride + h * a->out_head_stride;
    x->b.first[i] = a->window > 0 ? mox_max_i64(0, pos - a->window + 1) : 0;
    x->b.last[i] = a->causal ? pos + 1 : s->pos0 + s->n;
    x->sink[i] = a->sinks ? a->sinks[h] : -INFINITY;
    if (x->b.n == LANES) run_block(a, x);
}

void MOX_AT(mox_attention)(const mox_attention_args *a, int64_t begin, int64_t end)
{
    assert(a->heads % a->kv_heads == 0);
    const int64_t group = a->heads / a->kv_heads;
    const mox_span *s = a->spans;
    for (int64_t row0 = 0; row0 * a->heads < end; row0 += s->n, s++) { /* rows before this span */
        if (s->n == 0 || (row0 + s->n) * a->heads <= begin || mox_pieces_of(a, s).n > 1) continue;
        const int64_t u0 = mox_max_i64(0, begin - row0 * a->heads), u1 = mox_min_i64(s->n * a->heads, end - row0 * a->heads);
        for (int64_t kv = 0; kv < a->kv_heads; kv++) {
            attention_block x = {.b = {.part = {{.cache = &a->k, .head = kv, .dim = a->dim}}, .n_parts = 1, .v = &a->v,
                                       .v_head = kv, .pages = s->pages, .scale = a->scale}};
            for (int64_t row = u0 / a->heads; row * a->heads < u1; row++)
                for (int64_t h = kv * group; h < (kv + 1) * group; h++)
                    if (row * a->heads + h >= u0 && row * a->heads + h < u1) add_query(a, s, row, h, &x);
            if (x.b.n > 0) run_block(a, &x);
        }
    }
}

/* Heads [h, h + n) of one key head over the keys [first, last) of a split row. */
static void run_piece(const mox_attention_args *a, const mox_span *s, int64_t row, int64_t piece, int64_t first, int64_t last,
                      int64_t h, int64_t n_heads)
{
    const int64_t kv = h / (a->heads / a->kv_heads);
    query_block b = {.part = {{.cache = &a->k, .head = kv, .dim = a->dim}}, .n_parts = 1, .v = &a->v, .v_head = kv,
                     .pages = s->pages, .scale = a->scale, .n = n_heads};
    online_state o;
    online_work w;
    for (int64_t i = 0; i < n_heads; i++) {
        b.part[0].q[i] = a->q + s->row0 * a->q_stride + (h + i) * a->q_head_stride;
        b.first[i] = first;
        b.last[i] = last;
    }
    begin_block(&b, &w);
    for (int64_t col = 0; col < a->v_dim; col += SUM_COLS) {
        const int64_t n = mox_min_i64(SUM_COLS, a->v_dim - col);
        clear_state(&o);
        attend_block(&b, col, n, &o, &w);
        for (int64_t i = 0; i < n_heads; i++) {
            float *part = mox_part_of(a, row, h + i, piece);
            part[0] = o.max[i];
            part[1] = o.denom[i];
            memcpy(part + 2 + col, o.sum + i * SUM_COLS, (size_t)n * sizeof *part);
        }
    }
}

void MOX_AT(mox_attention_parts)(const mox_attention_args *a, int64_t begin, int64_t end)
{
    const int64_t group = a->heads / a->kv_heads;
    for (int64_t unit = begin; unit < end;) {
        const int64_t h = unit % a->heads, piece = unit / a->heads % MOX_ATTENTION_PIECES;
        const int64_t row = unit / a->heads / MOX_ATTENTION_PIECES;
        const int64_t n = mox_min_i64(LANES, mox_min_i64(end - unit, group - h % group));
        mox_pieces p;
        const mox_span *s = mox_split_span(a, row, &p);
        unit += n;
        if (piece >= p.n) continue;
        int64_t first, last;
        mox_piece_range(&p, piece, &first, &last);
        run_piece(a, s, row, piece, first, last, h, n);
    }
}

/* ---- the three steps ---- */

void MOX_AT(mox_attn_scores)(const mox_attn_scores_args *a, int64_t begin, int64_t end)
{
    assert(a->heads % a->kv_heads == 0 && a->n_keys <= a->k.page_len);
    const int64_t group = a->heads / a->kv_heads;
    for (int64_t h = begin; h < end;) {
        const int64_t kv = h / group, n = mox_min_i64(LANES, mox_min_i64(end, (kv + 1) * group) - h);
        query_block b = {.part = {{.cache = &a->k, .head = kv, .dim = a->dim}}, .n_parts = 1, .n = n};
        for (int64_t i = 0; i < n; i++) b.part[0].q[i] = a->q + (h + i) * a->dim;
        online_work w;
        tile_rows rows;
        begin_block(&b, &w);
        for (int64_t pos = 0; pos < a->n_keys; pos += TILE) {
            const int64_t n_keys = tile_keys(pos, a->n_keys);
            find_tile(&b, pos, n_keys, &rows);
            score_tile(&b, &rows, NULL, n_keys, &w, w.p);
            for (int64_t i = 0; i < n; i++) {
                float *out = a->scores + (h + i) * a->score_stride + pos;
                for (int64_t j = 0; j < n_keys; j++) out[j] = a->scale * w.p[i * P_STRIDE + j];
            }
        }
        h += n;
    }
}

/* What a row of probabilities is made from; numbers behind the last are -inf. */
ALWAYS_INLINE vf load_scores(const float *x, int64_t n)
{
    if (n >= LANES) return vf_load(x);
    float spare[LANES];
    for (int64_t i = 0; i < LANES; i++) spare[i] = i < n ? x[i] : -INFINITY;
    return vf_load(spare);
}

ALWAYS_INLINE void store_scores(float *x, int64_t n, vf v)
{
    if (n >= LANES) {
        vf_store(x, v);
        return;
    }
    float spare[LANES];
    vf_store(spare, v);
    memcpy(x, spare, (size_t)n * sizeof *x);
}

void MOX_AT(mox_attn_softmax)(const mox_attn_softmax_args *a, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++) {
        float *x = a->scores + row * a->stride;
        vf top = vf_set(-FLT_MAX), sum = vf_zero();
        for (int64_t p = 0; p < a->n_keys; p += LANES) top = vf_max(load_scores(x + p, a->n_keys - p), top);
        const vf base = vf_set(vf_max_of(top));
        for (int64_t p = 0; p < a->n_keys; p += LANES) {
            const vf e = vf_weight(vf_sub(load_scores(x + p, a->n_keys - p), base));
            store_scores(x + p, a->n_keys - p, e);
            sum = vf_add(sum, e);
        }
        const float denom = vf_sum(sum);
        const vf factor = vf_set(denom == 0 ? 0 : 1 / denom);
        for (int64_t p = 0; p < a->n_keys; p += LANES)
            store_scores(x + p, a->n_keys - p, vf_mul(load_scores(x + p, a->n_keys - p), factor));
    }
}

void MOX_AT(mox_attn_values)(const mox_attn_values_args *a, int64_t begin, int64_t end)
{
    const int64_t group = a->heads / a->kv_heads;
    float once[LANES];
    for (int i = 0; i < LANES; i++) once[i] = 1;
    for (int64_t h = begin; h < end;) {
        const int64_t kv = h / group, n = mox_min_i64(LANES, mox_min_i64(end, (kv + 1) * group) - h);
        for (int64_t c = 0; c < a->dim; c += STRIP) {
            const uint8_t *rows[TILE];
            const int64_t n_cols = mox_min_i64(STRIP, a->dim - c);
            float sum[LANES * STRIP] = {0};
            for (int64_t pos = 0; pos < a->n_keys; pos += TILE) {
                const int64_t n_keys = tile_keys(pos, a->n_keys);
                find_rows(&a->v, NULL, kv, pos, n_keys, rows);
                const strip s = {.rows = rows, .type = a->v.type, .col = c, .n_cols = n_cols,
                                 .p = a->scores + h * a->score_stride + pos, .p_row = a->score_stride};
                add_rows(&s, 0, n, 0, n_keys, sum, STRIP, once);
            }
            for (int64_t i = 0; i < n; i++) memcpy(a->out + (h + i) * a->dim + c, sum + i * STRIP, (size_t)n_cols * sizeof *sum);
        }
        h += n;
    }
}
