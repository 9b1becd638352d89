/* ops/simd/matmul.c -- products with stored weights, for one level.
 *
 * Activations are prepared once per call (acts.h); then every range of rows is
 * computed on its own: by dot products in file order for a few tokens (rows.h), by
 * tiles for many (tile.h).  A group whose gate and up would need activations prepared
 * in different ways falls back to the reference. */
#include "ops/kern.h"
#include "ops/simd/rows.h"
#include "ops/simd/tile.h"

#include <assert.h>

enum {
#if MOX_LEVEL == 1
    ROW_BLOCK = 2,
#else
    ROW_BLOCK = 4,
#endif
    SLAB = 32 * BLOCK_MAX, /* tokens whose results of LANES rows are collected */
    ROW_CHUNK = 256        /* rows of gate, then of up: long runs of each */
};

/* One matrix and the prepared activations of the tokens that meet it. */
typedef struct product {
    const mox_mat *m;
    act_plan p;
    const uint8_t *acts;
    int64_t n;
} product;

/* ---- few tokens ---- */

#define SWITCH_TOKENS(n, CALL) \
    switch (n) {               \
    case 1: CALL(1); break;    \
    case 2: CALL(2); break;    \
    case 3: CALL(3); break;    \
    default: CALL(4); break;   \
    }

/* out[r * 4 + t] for four rows of 4-bit codes. */
static void dot_four(const rows_in *in, int64_t row, int64_t n, float *out)
{
    /* More tokens, fewer rows: the sums must stay in registers. */
    const act_plan *p = in->p;
    if (p->integer && p->nibble && p->planes == 2) {
        if (n == 1) {
            for (int r = 0; r < 4; r += ROW_BLOCK) dot_nibbles(ROW_BLOCK, 1, 2, in, row + r, out + 4 * r);
        } else {
#define CALL(NT) for (int r = 0; r < 4; r++) dot_nibbles(1, NT, 2, in, row + r, out + 4 * r)
            SWITCH_TOKENS(n, CALL)
#undef CALL
        }
    } else if (p->integer && p->nibble) {
        if (n == 1) {
            for (int r = 0; r < 4; r += ROW_BLOCK) dot_nibbles(ROW_BLOCK, 1, 1, in, row + r, out + 4 * r);
        } else {
#define CALL(NT) for (int r = 0; r < 4; r++) dot_nibbles(1, NT, 1, in, row + r, out + 4 * r)
            SWITCH_TOKENS(n, CALL)
#undef CALL
        }
    } else if (p->nibble) {
        if (n == 1) {
            for (int r = 0; r < 4; r += ROW_BLOCK) dot_nibbles_f32(ROW_BLOCK, 1, in, row + r, out + 4 * r);
        } else {
#define CALL(NT) for (int r = 0; r < 4; r++) dot_nibbles_f32(1, NT, in, row + r, out + 4 * r)
            SWITCH_TOKENS(n, CALL)
#undef CALL
        }
    }
}

static void dot_one(const rows_in *in, int64_t row, int64_t n, float *out)
{
    const act_plan *p = in->p;
    if (p->nibble) {
        if (p->integer && p->planes == 2) {
#define CALL(NT) dot_nibbles(1, NT, 2, in, row, out)
            SWITCH_TOKENS(n, CALL)
#undef CALL
        } else if (p->integer) {
#define CALL(NT) dot_nibbles(1, NT, 1, in, row, out)
            SWITCH_TOKENS(n, CALL)
#undef CALL
        } else {
#define CALL(NT) dot_nibbles_f32(1, NT, in, row, out)
            SWITCH_TOKENS(n, CALL)
#undef CALL
        }
    } else if (p->integer) {
        if (p->planes == 2) {
#define CALL(NT) dot_codes(NT, 2, in, row, out)
            SWITCH_TOKENS(n, CALL)
#undef CALL
        } else {
#define CALL(NT) dot_codes(NT, 1, in, row, out)
            SWITCH_TOKENS(n, CALL)
#undef CALL
        }
    } else {
#define CALL(NT) dot_decoded(NT, in, row, out)
        SWITCH_TOKENS(n, CALL)
#undef CALL
    }
}

/* out[(row - begin) * 4 + t] for rows [begin, end), t < n <= ROWS_MAX. */
static void few_tokens(const product *x, int64_t begin, int64_t end, float *out)
{
    const rows_in in = {.m = x->m, .p = &x->p, .acts = x->acts, .row_bytes = mox_mat_row_bytes(&x->m->layout, x->m->cols),
                        .scale_bytes = mox_mat_scale_row_bytes(&x->m->layout, x->m->cols),
                        .n_chunks = x->p.cols_padded / CHUNK, .n_whole = x->p.cols / CHUNK};
    int64_t row = begin;
    if (x->p.nibble)
        for (; row + 4 <= end; row += 4) dot_four(&in, row, x->n, out + (row - begin) * 4);
    for (; row < end; row++) dot_one(&in, row, x->n, out + (row - begin) * 4);
}

/* ---- many tokens ---- */

#if MOX_LEVEL == 1
#define SWITCH_BLOCK(n, CALL) SWITCH_TOKENS(n, CALL)
#else
#define SWITCH_BLOCK(n, CALL)  \
    switch (n) {               \
    case 1: CALL(1); break;    \
    case 2: CALL(2); break;    \
    case 3: CALL(3); break;    \
    case 4: CALL(4); break;    \
    case 5: CALL(5); break;    \
    case 6: CALL(6); break;    \
    case 7: CALL(7); break;    \
    case 8: CALL(8); break;    \
    case 9: CALL(9); break;    \
    case 10: CALL(10); break;  \
    case 11: CALL(11); break;  \
    default: CALL(12); break;  \
    }
#endif

static void multiply_block(const product *x, const code_tile *tile, block b, int64_t u0, int64_t n_units, bool add, float *y)
{
    const act_plan *p = &x->p;
    const uint8_t *acts = x->acts + b.first * p->token_bytes;
    const bool wide = MOX_LEVEL < 3 && x->m->layout.bits == 8; /* with VNNI all codes are alike */
    if (wide) {
#define CALL(NT) multiply_codes(NT, true, tile, p, acts, u0, n_units, add, y, LANES)
        SWITCH_BLOCK(b.n, CALL)
#undef CALL
    } else {
#define CALL(NT) multiply_codes(NT, false, tile, p, acts, u0, n_units, add, y, LANES)
        SWITCH_BLOCK(b.n, CALL)
#undef CALL
    }
}

static void tile_codes(const product *x, int64_t row, int64_t n_rows, int64_t b0, int64_t b1, float *out)
{
    code_tile tile;
    const act_plan *p = &x->p;
    for (int64_t col = 0; col < p->cols; col += PANEL) {
        const int64_t n = p->cols - col < PANEL ? p->cols - col : PANEL, u0 = col / p->unit, n_units = (n + p->unit - 1) / p->unit;
        if (p->nibble) fill_nibbles(&tile, x->m, row, n_rows, col, n);
        else fill_codes(&tile, x->m, row, n_rows, col, n);
        if (n % p->unit) memset(tile.codes + n * LANES, 0, (size_t)((n_units * p->unit - n) * LANES));
        fill_units(tile.scale, x->m->scales, x->m, p, row, n_rows, u0, n_units);
        fill_units(tile.bias, x->m->biases, x->m, p, row, n_rows, u0, n_units);
        const int64_t first = block_at(x->n, b0).first;
        for (int64_t i = b0; i < b1; i++) {
            const block b = block_at(x->n, i);
            multiply_block(x, &tile, b, u0, n_units, col > 0, out + (b.first - first) * LANES);
        }
    }
}

static void tile_f32(const product *x, int64_t row, int64_t n_rows, int64_t b0, int64_t b1, float *out)
{
    f32_tile tile;
    const act_plan *p = &x->p;
    const int64_t first = block_at(x->n, b0).first;
    for (int64_t col = 0; col < p->cols; col += PANEL_F32) {
        const int64_t n = p->cols - col < PANEL_F32 ? p->cols - col : PANEL_F32;
        fill_f32(&tile, x->m, row, n_rows, col, n);
        for (int64_t i = b0; i < b1; i++) {
            const block b = block_at(x->n, i);
            const float *acts = (const float *)(const void *)(x->acts + b.first * p->token_bytes) + col * b.n;
            float *y = out + (b.first - first) * LANES;
#define CALL(NT) multiply_f32(NT, &tile, acts, n, col > 0, y, LANES)
            SWITCH_BLOCK(b.n, CALL)
#undef CALL
        }
    }
}

/* out[token][LANES] of the tokens of blocks [b0, b1), for rows [row, row + n_rows). */
static void many_tokens(const product *x, int64_t row, int64_t n_rows, int64_t b0, int64_t b1, float *out)
{
    if (x->p.integer) tile_codes(x, row, n_rows, b0, b1, out);
    else tile_f32(x, row, n_rows, b0, b1, out);
}

/* ---- where results go ---- */

typedef struct target {
    float *y;
    int64_t stride;
    const int32_t *rows; /* row of y for each token, or NULL */
    const mox_vec *bias; /* NULL or a vector of type NONE: no bias */
} target;

static float *target_row(const target *to, int64_t token) { return to->y + (to->rows ? to->rows[token] : token) * to->stride; }

/* y[r] = values[r * stride] + bias[row + r], r < n */
static void write_rows(const target *to, int64_t row, const float *values, int64_t stride, int64_t n, float *y)
{
    const mox_vec *bias = to->bias && to->bias->type != MOX_DT_NONE ? to->bias : NULL;
    for (int64_t r = 0; r < n; r++) y[r] = values[r * stride];
    if (bias)
        for (int64_t r = 0; r < n; r++) y[r] += mox_vec_at(bias, row + r);
}

static void product_rows(const product *x, const target *to, int64_t begin, int64_t end)
{
    if (x->n <= ROWS_MAX) {
        float out[ROW_CHUNK * 4];
        for (int64_t r0 = begin; r0 < end; r0 += ROW_CHUNK) {
            const int64_t r1 = r0 + ROW_CHUNK < end ? r0 + ROW_CHUNK : end;
            few_tokens(x, r0, r1, out);
            for (int64_t t = 0; t < x->n; t++) write_rows(to, r0, out + t, 4, r1 - r0, target_row(to, t) + r0);
        }
        return;
    }
    const int64_t n_blocks = block_count(x->n), slab = SLAB / BLOCK_MAX;
    float out[SLAB * LANES];
    for (int64_t row = begin; row < end; row += LANES) {
        const int64_t n_rows = end - row < LANES ? end - row : LANES;
        for (int64_t b0 = 0; b0 < n_blocks; b0 += slab) {
            const int64_t b1 = b0 + slab < n_blocks ? b0 + slab : n_blocks, first = block_at(x->n, b0).first;
            const block last = block_at(x->n, b1 - 1);
            many_tokens(x, row, n_rows, b0, b1, out);
            for (int64_t t = first; t < last.first + last.n; t++)
                write_rows(to, row, out + (t - first) * LANES, 1, n_rows, target_row(to, t) + row);
        }
    }
}

/* gate[i] = silu(gate[i]) * up[i]; n is a multiple of LANES. */
static void swiglu(float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES) {
        const vf g = vf_load(gate + i);
        vf_store(gate + i, vf_mul(vf_silu(g), vf_load(up + i)));
    }
}

static void gate_up_rows(const product *gate, const product *up, const target *to, int64_t begin, int64_t end)
{
    if (gate->n <= ROWS_MAX) {
        float g[ROW_CHUNK * 4], u[ROW_CHUNK * 4];
        for (int64_t r0 = begin; r0 < end; r0 += ROW_CHUNK) {
            const int64_t r1 = r0 + ROW_CHUNK < end ? r0 + ROW_CHUNK : end;
            few_tokens(gate, r0, r1, g);
            few_tokens(up, r0, r1, u);
            swiglu(g, u, (4 * (r1 - r0) + LANES - 1) / LANES * LANES);
            for (int64_t t = 0; t < gate->n; t++) {
                float *y = target_row(to, t);
                for (int64_t r = r0; r < r1; r++) y[r] = g[(r - r0) * 4 + t];
            }
        }
        return;
    }
    const int64_t n_blocks = block_count(gate->n), slab = SLAB / BLOCK_MAX;
    float g[SLAB * LANES], u[SLAB * LANES];
    for (int64_t row = begin; row < end; row += LANES) {
        const int64_t n_rows = end - row < LANES ? end - row : LANES;
        for (int64_t b0 = 0; b0 < n_blocks; b0 += slab) {
            const int64_t b1 = b0 + slab < n_blocks ? b0 + slab : n_blocks, first = block_at(gate->n, b0).first;
            const block last = block_at(gate->n, b1 - 1);
            const int64_t n = last.first + last.n - first;
            many_tokens(gate, row, n_rows, b0, b1, g);
            many_tokens(up, row, n_rows, b0, b1, u);
            swiglu(g, u, n * LANES);
            for (int64_t t = 0; t < n; t++) memcpy(target_row(to, first + t) + row, g + t * LANES, (size_t)n_rows * sizeof *g);
        }
    }
}

/* ---- the operations ---- */

void MOX_AT(mox_matmul_prepare)(const mox_matmul_args *a, int64_t begin, int64_t end)
{
    const act_plan p = plan_acts(&a->w.layout, a->w.cols, a->precision);
    for (int64_t t = begin; t < end; t++) prepare_token(&p, a->x + t * a->x_stride, a->scratch, a->n, t);
}

void MOX_AT(mox_matmul)(const mox_matmul_args *a, int64_t begin, int64_t end)
{
    const product x = {.m = &a->w, .p = plan_acts(&a->w.layout, a->w.cols, a->precision), .acts = a->scratch, .n = a->n};
    const target to = {.y = a->y, .stride = a->y_stride, .bias = &a->bias};
    product_rows(&x, &to, begin, end);
}

/* Activations of a group lie at its first pair; every pair has room for the widest form. */
static uint8_t *group_acts(void *scratch, int64_t first, int64_t cols)
{
    return (uint8_t *)scratch + first * mox_matmul_scratch(1, cols);
}

/* Prepares pairs [begin, end) for the first matrix of their groups. */
static void prepare_pairs(const mox_mat *w, int64_t n_groups, const int64_t *offsets, const int32_t *x_row, const float *x,
                          int64_t x_stride, mox_precision precision, void *scratch, int64_t begin, int64_t end)
{
    int64_t g = 0;
    for (int64_t pair = begin; pair < end;) {
        while (g + 1 < n_groups && pair >= offsets[g + 1]) g++;
        const int64_t first = offsets[g], stop = end < offsets[g + 1] ? end : offsets[g + 1];
        const act_plan p = plan_acts(&w[g].layout, w[g].cols, precision);
        uint8_t *acts = group_acts(scratch, first, w[g].cols);
        for (; pair < stop; pair++)
            prepare_token(&p, x + (x_row ? x_row[pair] : pair) * x_stride, acts, offsets[g + 1] - first, pair - first);
    }
}

void MOX_AT(mox_matmul_grouped_prepare)(const mox_matmul_grouped_args *a, int64_t begin, int64_t end)
{
    prepare_pairs(a->w, a->n_groups, a->offsets, a->x_row, a->x, a->x_stride, a->precision, a->scratch, begin, end);
}

void MOX_AT(mox_gate_up_swiglu_prepare)(const mox_gate_up_swiglu_args *a, int64_t begin, int64_t end)
{
    prepare_pairs(a->gate, a->n_groups, a->offsets, a->x_row, a->x, a->x_stride, a->precision, a->scratch, begin, end);
}

void MOX_AT(mox_matmul_grouped)(const mox_matmul_grouped_args *a, int64_t begin, int64_t end)
{
    const int64_t rows = a->w[0].rows;
    while (begin < end) {
        const int64_t g = begin / rows, first = a->offsets[g], stop = end < (g + 1) * rows ? end : (g + 1) * rows;
        const product x = {.m = &a->w[g], .p = plan_acts(&a->w[g].layout, a->w[g].cols, a->precision),
                           .acts = group_acts(a->scratch, first, a->w[g].cols), .n = a->offsets[g + 1] - first};
        const target to = {.y = a->y_row ? a->y : a->y + first * a->y_stride, .stride = a->y_stride,
                           .rows = a->y_row ? a->y_row + first : NULL};
        if (x.n > 0) product_rows(&x, &to, begin - g * rows, stop - g * rows);
        begin = stop;
    }
}

void MOX_AT(mox_gate_up_swiglu)(const mox_gate_up_swiglu_args *a, int64_t begin, int64_t end)
{
    const int64_t rows = a->gate[0].rows;
    while (begin < end) {
        const int64_t g = begin / rows, first = a->offsets[g], stop = end < (g + 1) * rows ? end : (g + 1) * rows;
        const uint8_t *acts = group_acts(a->scratch, first, a->gate[g].cols);
        const product gate = {.m = &a->gate[g], .p = plan_acts(&a->gate[g].layout, a->gate[g].cols, a->precision),
                              .acts = acts, .n = a->offsets[g + 1] - first};
        const product up = {.m = &a->up[g], .p = plan_acts(&a->up[g].layout, a->up[g].cols, a->precision), .acts = acts,
                            .n = gate.n};
        const target to = {.y = a->y_row ? a->y : a->y + first * a->y_stride, .stride = a->y_stride,
                           .rows = a->y_row ? a->y_row + first : NULL};
        if (gate.n > 0 && same_plan(&gate.p, &up.p)) gate_up_rows(&gate, &up, &to, begin - g * rows, stop - g * rows);
        else if (gate.n > 0) mox_gate_up_swiglu_ref(a, begin, stop);
        begin = stop;
    }
}
