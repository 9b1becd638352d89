/* ops/simd/mla.c -- latent attention, and the products with the two halves of kv_b_proj
 * that fold or expand it.
 *
 * All heads read one latent vector per position, so a block of queries (online.h) is
 * LANES heads of a row.  The products have one small matrix per head: for many tokens it
 * is brought into rows of f32 strip by strip (values.h); for few tokens the speed is that
 * of reading it, and 4-bit codes are multiplied where they lie in their words. */
#include "ops/simd/simd.h"

#include "base/size.h"
#include "ops/simd/decode.h"
#include "ops/simd/online.h"
#include "ops/simd/rows.h"

#include <assert.h>

enum {
    DEPTH = 256,       /* terms of a product at a time */
    TOKEN_BLOCK = 32,
    ABSORB_FEW = 2,    /* tokens for which codes are not brought into f32 first */
    ACT_BYTES = 16384  /* prepared activations of few tokens */
};

/* One head: y[t, o] = sum_k x[t, k] W[k, o] over rows k (by_rows), or W[o, k] over columns. */
typedef struct head_product {
    mox_mat w; /* the rows of this head */
    bool by_rows;
    int64_t depth; /* terms */
    const float *x;
    float *y;
    int64_t n, x_stride, y_stride;
    bool many; /* whatever n is */
} head_product;

/* ---- many tokens ---- */

/* out[k][STRIP] = terms [k0, k0 + n) of outputs [o, o + n_out), 0 behind them. */
static void fill_terms(const head_product *h, int64_t k0, int64_t n, int64_t o, int64_t n_out, float *out)
{
    const int64_t row_bytes = mox_mat_row_bytes(&h->w.layout, h->w.cols);
    if (h->by_rows) {
        for (int64_t k = 0; k < n; k++)
            for (int64_t i = 0; i < STRIP; i += LANES)
                vf_store(out + k * STRIP + i, i < n_out ? decode_vector(&h->w, row_bytes, k0 + k, o + i) : vf_zero());
        return;
    }
    for (int64_t i = 0; i < STRIP; i += LANES)
        for (int64_t k = 0; k < n; k += LANES) {
            vi r[LANES];
            for (int64_t j = 0; j < LANES; j++)
                r[j] = i + j < n_out ? vi_bits(decode_vector(&h->w, row_bytes, o + i + j, k0 + k)) : vi_zero();
            transpose(r);
            for (int64_t j = 0; j < LANES && k + j < n; j++) vi_store(out + (k + j) * STRIP + i, r[j]);
        }
}

/* Terms [k0, k0 + n) of outputs [o, o + n_out) of every token, added to what is there unless k0 is 0.
 * x: of the first token, from term k0 on. */
static void add_terms(const head_product *h, int64_t k0, int64_t n, int64_t o, int64_t n_out, const float *x)
{
    _Alignas(64) float terms[DEPTH * STRIP], sum[TOKEN_BLOCK * STRIP];
    const uint8_t *rows[DEPTH];
    for (int64_t k = 0; k < n; k++) rows[k] = (const uint8_t *)(terms + k * STRIP);
    fill_terms(h, k0, n, o, n_out, terms);
    for (int64_t t0 = 0; t0 < h->n; t0 += TOKEN_BLOCK) {
        const int64_t n_t = mox_min_i64(TOKEN_BLOCK, h->n - t0);
        float *y = h->y + t0 * h->y_stride + o;
        memset(sum, 0, sizeof sum);
        for (int64_t t = 0; k0 > 0 && t < n_t; t++) memcpy(sum + t * STRIP, y + t * h->y_stride, (size_t)n_out * sizeof *y);
        const strip s = {.rows = rows, .type = MOX_DT_F32, .n_cols = STRIP, .p = x + t0 * h->x_stride, .p_row = h->x_stride};
        add_rows(&s, 0, n_t, 0, n, sum, STRIP, NULL);
        for (int64_t t = 0; t < n_t; t++) memcpy(y + t * h->y_stride, sum + t * STRIP, (size_t)n_out * sizeof *y);
    }
}

/* Outputs [begin, end) of every token. */
static void many_tokens(const head_product *h, int64_t begin, int64_t end)
{
    for (int64_t o = begin; o < end; o += STRIP)
        for (int64_t k0 = 0; k0 < h->depth; k0 += DEPTH)
            add_terms(h, k0, mox_min_i64(DEPTH, h->depth - k0), o, mox_min_i64(STRIP, end - o), h->x + k0);
}

/* ---- few tokens ---- */

static void dot_rows(const rows_in *in, int64_t row, int64_t n, float *out)
{
    if (in->p->nibble) {
        switch (n) {
        case 1: dot_nibbles_f32(1, 1, in, row, out); break;
        case 2: dot_nibbles_f32(1, 2, in, row, out); break;
        case 3: dot_nibbles_f32(1, 3, in, row, out); break;
        default: dot_nibbles_f32(1, 4, in, row, out); break;
        }
        return;
    }
    switch (n) {
    case 1: dot_decoded(1, in, row, out); break;
    case 2: dot_decoded(2, in, row, out); break;
    case 3: dot_decoded(3, in, row, out); break;
    default: dot_decoded(4, in, row, out); break;
    }
}

/* Outputs [begin, end): rows of w, in the order of the file.  acts: the tokens, prepared. */
static void few_tokens(const head_product *h, const act_plan *p, const uint8_t *acts, int64_t begin, int64_t end)
{
    rows_in in = {.m = &h->w, .p = p, .row_bytes = mox_mat_row_bytes(&h->w.layout, h->w.cols),
                  .scale_bytes = mox_mat_scale_row_bytes(&h->w.layout, h->w.cols), .n_chunks = p->cols_padded / CHUNK,
                  .n_whole = p->cols / CHUNK};
    for (int64_t t = 0; t < h->n; t++) in.token[t] = acts + t * p->token_bytes;
    float out[ROW_BLOCK * 4];
    int64_t row = begin;
    if (p->nibble && h->n == 1)
        for (; row + ROW_BLOCK <= end; row += ROW_BLOCK) {
            dot_nibbles_f32(ROW_BLOCK, 1, &in, row, out);
            for (int i = 0; i < ROW_BLOCK; i++) h->y[row + i] = out[4 * i];
        }
    for (; row < end; row++) {
        dot_rows(&in, row, h->n, out);
        for (int64_t t = 0; t < h->n; t++) h->y[t * h->y_stride + row] = out[t];
    }
}

/* Outputs [begin, end) of a product over columns. */
static void multiply_columns(const head_product *h, int64_t begin, int64_t end)
{
    const act_plan p = plan_acts(&h->w.layout, h->w.cols, &(mox_matmul_how){.precision = MOX_PRECISION_EXACT});
    _Alignas(64) uint8_t acts[ACT_BYTES];
    if (h->many || h->n > PASS || h->n * p.token_bytes > ACT_BYTES) {
        many_tokens(h, begin, end);
        return;
    }
    prepare_tokens(&p, h->x, h->x_stride, NULL, acts, h->n, true, 0, h->n);
    few_tokens(h, &p, acts, begin, end);
}

/* One token over rows of 4-bit codes.  A vector of words holds columns 8 l + j in lane l
 * at place j; each place has a sum of its own, divided by 16^j at the end, and the bias
 * of a group is the same for all places.  next: where the codes of the next head begin. */
static void absorb_nibbles(const mox_mat *m, int64_t n_rows, const float *x, const uint8_t *next, float *y)
{
    const int64_t row_bytes = m->cols / 2, scale_bytes = mox_mat_scale_row_bytes(&m->layout, m->cols), group = m->layout.group;
    const int64_t size = m->layout.scale_type == MOX_DT_F32 ? 4 : 2, n_groups = m->cols / group;
    const vi lanes = vi_lanes_shr(__builtin_ctz((unsigned)group) - 3); /* groups of lanes of 8 columns */
    for (int64_t col = 0; col < m->cols; col += CHUNK, next += n_rows * VBYTES) {
        const int64_t g = col / group;
        vf acc[8], bias = vf_zero();
        for (int j = 0; j < 8; j++) acc[j] = vf_zero();
        for (int64_t i = 0; i < n_rows; i++) {
            const uint8_t *scales = m->scales + i * scale_bytes + g * size, *biases = m->biases + i * scale_bytes + g * size;
            /* A whole vector where the rows below have the numbers to fill it; no lane looks at those. */
            const int64_t left = mox_min_i64(LANES, (n_rows - i) * n_groups - g);
            const vf xi = vf_set(x[i]), s = vf_mul(vf_permute(load_numbers(scales, m->layout.scale_type, left), lanes), xi);
            bias = vf_fma(vf_permute(load_numbers(biases, m->layout.scale_type, left), lanes), xi, bias);
            const vi v = load_chunk(m->w + i * row_bytes, col / 2, row_bytes);
            prefetch_first(next + i * VBYTES);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                /* The top nibble would be a sign, so it is moved down by one place. */
                const vi code = j < 7 ? vi_and(v, vi_set(15 << (4 * j))) : vi_and(vi_shr4(v), vi_set(15 << 24));
                acc[j] = vf_fma(vf_from_int(code), s, acc[j]);
            }
        }
        float out[8][LANES];
        for (int j = 0; j < 8; j++)
            vf_store(out[j], vf_fma(acc[j], vf_set(1.0f / (float)(1u << (4 * (j < 7 ? j : 6)))), bias));
        for (int64_t c = 0; c < CHUNK && col + c < m->cols; c++) y[col + c] = out[c % 8][c / 8];
    }
}

/* ---- the products ---- */

void MOX_AT(mox_mla_q_absorb)(const mox_mla_q_absorb_args *a, int64_t begin, int64_t end)
{
    assert(a->w.cols == (a->by_rank ? a->nope : a->rank));
    const bool nibbles = a->w.layout.kind == MOX_MAT_AFFINE && a->w.layout.bits == 4;
    for (int64_t h = begin; h < end; h++) {
        const head_product p = {.w = mox_mat_rows(&a->w, h * a->head_rows, a->by_rank ? a->rank : a->nope),
                                .by_rows = !a->by_rank, .depth = a->nope, .x = a->q_nope + h * a->nope, .y = a->out + h * a->rank, .n = a->n,
                                .x_stride = a->heads * a->nope, .y_stride = a->heads * a->rank, .many = a->deterministic};
        if (a->by_rank) {
            multiply_columns(&p, 0, a->rank);
        } else if (nibbles && a->n <= ABSORB_FEW && !p.many) {
            const uint8_t *next = p.w.w + a->head_rows * (a->rank / 2);
            for (int64_t t = 0; t < a->n; t++) absorb_nibbles(&p.w, a->nope, p.x + t * p.x_stride, next, p.y + t * p.y_stride);
        } else {
            many_tokens(&p, 0, a->rank);
        }
    }
}

void MOX_AT(mox_mla_out)(const mox_mla_out_args *a, int64_t begin, int64_t end)
{
    assert(a->w.cols == a->rank && a->row0 + a->v_dim <= a->head_rows);
    while (begin < end) {
        const int64_t h = begin / a->v_dim, stop = mox_min_i64(end, (h + 1) * a->v_dim);
        const head_product p = {.w = mox_mat_rows(&a->w, h * a->head_rows + a->row0, a->v_dim), .depth = a->rank,
                                .x = a->ctx + h * a->rank, .y = a->out + h * a->v_dim, .n = a->n, .x_stride = a->heads * a->rank,
                                .y_stride = a->heads * a->v_dim, .many = a->deterministic};
        multiply_columns(&p, begin - h * a->v_dim, stop - h * a->v_dim);
        begin = stop;
    }
}

/* ---- attention ---- */

static query_block latent_block(const mox_cache *latent, const mox_cache *k_pe, int64_t rank, int64_t rope, float scale)
{
    return (query_block){.part = {{.cache = latent, .dim = rank}, {.cache = k_pe, .dim = rope}}, .n_parts = 2, .v = latent,
                         .scale = scale};
}

/* out[c] = sum[c] / denom, or 0 where denom is 0. */
static void divide(const float *sum, float denom, int64_t n, float *out)
{
    for (int64_t c = 0; c < n; c++) out[c] = denom == 0 ? 0 : sum[c] / denom;
}

/* rows[i]: where query i of the block reads and writes, in rows of q, q_pe and ctx. */
static void run_block(const mox_mla_attention_args *a, query_block *b, const int64_t *rows)
{
    online_state o;
    online_work w;
    for (int64_t i = 0; i < b->n; i++) {
        b->part[0].q[i] = a->q + rows[i] * a->rank;
        b->part[1].q[i] = a->q_pe + rows[i] * a->rope;
    }
    begin_block(b, &w);
    for (int64_t col = 0; col < a->rank; col += SUM_COLS) {
        const int64_t n = mox_min_i64(SUM_COLS, a->rank - col);
        clear_state(&o);
        attend_block(b, col, n, &o, &w);
        for (int64_t i = 0; i < b->n; i++) divide(o.sum + i * SUM_COLS, o.denom[i], n, a->ctx + rows[i] * a->rank + col);
    }
    b->n = 0;
}

void MOX_AT(mox_mla_attention)(const mox_mla_attention_args *a, int64_t begin, int64_t end)
{
    const mox_span *s = a->spans;
    for (int64_t row0 = 0; row0 * a->heads < end; row0 += s->n, s++) { /* rows before this span */
        query_block b = latent_block(&a->latent, &a->k_pe, a->rank, a->rope, a->scale);
        int64_t rows[LANES];
        b.pages = s->pages;
        const int64_t u0 = mox_max_i64(0, begin - row0 * a->heads), u1 = mox_min_i64(s->n * a->heads, end - row0 * a->heads);
        for (int64_t u = u0; u < u1; u++) {
            rows[b.n] = s->row0 * a->heads + u;
            b.first[b.n] = 0;
            b.last[b.n++] = s->pos0 + u / a->heads + 1;
            if (b.n == LANES) run_block(a, &b, rows);
        }
        if (b.n > 0) run_block(a, &b, rows);
    }
}

/* ---- expanded ---- */

enum { EXP_KEYS = 128, EXP_MAX = MOX_MLA_EXPANDED_MAX };

/* Keys, beside them the rotated ones, and values of one head at EXP_KEYS positions. */
typedef struct expanded_tile {
    _Alignas(64) float key[EXP_KEYS * EXP_MAX];
    _Alignas(64) float value[EXP_KEYS * EXP_MAX];
    _Alignas(64) float latent[EXP_KEYS * DEPTH]; /* columns that are being multiplied */
} expanded_tile;

/* Columns [col, col + n) of the vectors at positions [pos, pos + n_keys) as f32. */
static void widen(const mox_cache *c, const mox_span *s, int64_t pos, int64_t n_keys, int64_t col, int64_t n, float *out,
                  int64_t stride)
{
    const int64_t size = mox_dtype_bytes(c->type);
    for (int64_t j = 0; j < n_keys; j++, out += stride) {
        const uint8_t *row = (const uint8_t *)c->data + mox_cache_offset(c, s->pages, pos + j, 0) * size;
        for (int64_t i = 0; i < n; i += STRIP) {
            vf v[STRIP_VECTORS];
            const int64_t left = mox_min_i64(STRIP, n - i);
            if (c->type == MOX_DT_I8) load_strip(MOX_DT_I8, true, row, col + i, left, v);
            else if (c->type == MOX_DT_F16) load_strip(MOX_DT_F16, false, row, col + i, left, v);
            else load_strip(MOX_DT_F32, false, row, col + i, left, v);
            for (int k = 0; k < STRIP_VECTORS && k * LANES < left; k++)
                vf_store_n(out + i + k * LANES, v[k], left - k * LANES);
        }
    }
}

static void expand(const mox_mla_expanded_args *a, const mox_span *s, int64_t h, int64_t pos, int64_t n, expanded_tile *x)
{
    const head_product key = {.w = mox_mat_rows(&a->key, h * a->key_rows, a->by_rank ? a->rank : a->nope), .by_rows = a->by_rank,
                              .depth = a->rank, .y = x->key, .n = n, .x_stride = DEPTH, .y_stride = EXP_MAX};
    const head_product value = {.w = mox_mat_rows(&a->value, h * a->value_rows + a->value_row0, a->v_dim), .depth = a->rank,
                                .y = x->value, .n = n, .x_stride = DEPTH, .y_stride = EXP_MAX};
    for (int64_t k0 = 0; k0 < a->rank; k0 += DEPTH) {
        const int64_t n_k = mox_min_i64(DEPTH, a->rank - k0);
        widen(&a->latent, s, pos, n, k0, n_k, x->latent, DEPTH);
        for (int64_t o = 0; o < a->nope; o += STRIP) add_terms(&key, k0, n_k, o, mox_min_i64(STRIP, a->nope - o), x->latent);
        for (int64_t o = 0; o < a->v_dim; o += STRIP) add_terms(&value, k0, n_k, o, mox_min_i64(STRIP, a->v_dim - o), x->latent);
    }
    widen(&a->k_pe, s, pos, n, 0, a->rope, x->key + a->nope, EXP_MAX);
}

/* Rows [i, i + n) of a span over the n_keys expanded keys from pos on: continues state and out. */
static void attend_expanded(const mox_mla_expanded_args *a, const mox_span *s, int64_t h, int64_t i, int64_t n, int64_t pos,
                            int64_t n_keys, expanded_tile *x, float *state)
{
    const mox_cache key = {.data = x->key, .type = MOX_DT_F32, .page_len = EXP_KEYS, .token_stride = EXP_MAX, .n_pages = 1};
    mox_cache rotated = key, value = key;
    rotated.data = x->key + a->nope;
    value.data = x->value;
    query_block b = {.part = {{.cache = &key, .dim = a->nope}, {.cache = &rotated, .dim = a->rope}}, .n_parts = 2, .v = &value,
                     .n = n, .scale = a->scale};
    online_state o;
    online_work w;
    clear_state(&o);
    for (int64_t k = 0; k < n; k++) {
        const int64_t row = (s->row0 + i + k) * a->heads + h;
        b.part[0].q[k] = a->q_nope + row * a->nope;
        b.part[1].q[k] = a->q_pe + row * a->rope;
        b.last[k] = clamp_i64(s->pos0 + i + k + 1 - pos, 0, n_keys);
        o.max[k] = state[2 * k];
        o.denom[k] = state[2 * k + 1];
        memcpy(o.sum + k * SUM_COLS, a->out + row * a->v_dim, (size_t)a->v_dim * sizeof *o.sum);
    }
    begin_block(&b, &w);
    attend_block(&b, 0, a->v_dim, &o, &w);
    for (int64_t k = 0; k < n; k++) {
        state[2 * k] = o.max[k];
        state[2 * k + 1] = o.denom[k];
        memcpy(a->out + ((s->row0 + i + k) * a->heads + h) * a->v_dim, o.sum + k * SUM_COLS, (size_t)a->v_dim * sizeof *o.sum);
    }
}

/* One head of one span. */
static void run_expanded(const mox_mla_expanded_args *a, const mox_span *s, int64_t h, float *state, expanded_tile *x)
{
    for (int64_t i = 0; i < s->n; i++) {
        state[2 * i] = -INFINITY;
        state[2 * i + 1] = 0;
        memset(a->out + ((s->row0 + i) * a->heads + h) * a->v_dim, 0, (size_t)a->v_dim * sizeof *state);
    }
    for (int64_t pos = 0; s->n > 0 && pos < s->pos0 + s->n; pos += EXP_KEYS) {
        const int64_t n_keys = mox_min_i64(EXP_KEYS, s->pos0 + s->n - pos);
        expand(a, s, h, pos, n_keys, x);
        for (int64_t i = mox_max_i64(0, pos - s->pos0) / LANES * LANES; i < s->n; i += LANES)
            attend_expanded(a, s, h, i, mox_min_i64(LANES, s->n - i), pos, n_keys, x, state + 2 * i);
    }
    for (int64_t i = 0; i < s->n; i++) {
        float *out = a->out + ((s->row0 + i) * a->heads + h) * a->v_dim;
        divide(out, state[2 * i + 1], a->v_dim, out);
    }
}

void MOX_AT(mox_mla_expanded)(const mox_mla_expanded_args *a, int64_t begin, int64_t end)
{
    expanded_tile x;
    int64_t rows = 0;
    for (int64_t i = 0; i < a->n_spans; i++) rows = mox_max_i64(rows, a->spans[i].row0 + a->spans[i].n);
    for (int64_t h = begin; h < end; h++)
        for (const mox_span *s = a->spans; s < a->spans + a->n_spans; s++)
            run_expanded(a, s, h, a->state + (h * rows + s->row0) * 2, &x);
}

/* ---- tiles ---- */

void MOX_AT(mox_mla_tile)(const mox_mla_tile_args *a, int64_t begin, int64_t end)
{
    online_state o;
    online_work w;
    for (int64_t h = begin; h < end; h += LANES) {
        query_block b = latent_block(&a->latent, &a->k_pe, a->rank, a->rope, a->scale);
        b.n = mox_min_i64(LANES, end - h);
        for (int64_t i = 0; i < b.n; i++) {
            b.part[0].q[i] = a->q + (h + i) * a->rank;
            b.part[1].q[i] = a->q_pe + (h + i) * a->rope;
            b.first[i] = a->begin;
            b.last[i] = a->end;
        }
        if (a->begin < a->end) begin_block(&b, &w);
        for (int64_t col = 0; col < a->rank; col += SUM_COLS) {
            const int64_t n = mox_min_i64(SUM_COLS, a->rank - col);
            clear_state(&o);
            for (int64_t i = 0; !a->first && i < b.n; i++) {
                o.max[i] = a->max[h + i];
                o.denom[i] = a->denom[h + i];
                memcpy(o.sum + i * SUM_COLS, a->sum + (h + i) * a->rank + col, (size_t)n * sizeof *o.sum);
            }
            if (a->begin < a->end) attend_block(&b, col, n, &o, &w);
            for (int64_t i = 0; i < b.n; i++)
                memcpy(a->sum + (h + i) * a->rank + col, o.sum + i * SUM_COLS, (size_t)n * sizeof *o.sum);
        }
        /* Only now: every pass over columns begins with the old ones. */
        memcpy(a->max + h, o.max, (size_t)b.n * sizeof *o.max);
        memcpy(a->denom + h, o.denom, (size_t)b.n * sizeof *o.denom);
    }
}

void MOX_AT(mox_mla_finish)(const mox_mla_finish_args *a, int64_t begin, int64_t end)
{
    for (int64_t h = begin; h < end; h++) divide(a->sum + h * a->rank, a->denom[h], a->rank, a->ctx + h * a->rank);
}
