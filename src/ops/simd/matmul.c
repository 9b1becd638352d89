/* ops/simd/matmul.c -- products with stored weights, for one level.
 *
 * Activations are prepared once per call (acts.h); then every range of rows is
 * computed on its own: by dot products in file order for a few tokens (rows.h), by
 * tiles or squares for many (tile.h, codes.h, square.h).  A group whose gate and up would need activations prepared
 * in different ways falls back to the reference. */
#include "base/size.h"
#include "ops/kern.h"
#include "ops/simd/rows.h"
#if SQUARES
#include "ops/simd/square.h"
#else
#include "ops/simd/codes.h"
#endif

#include <assert.h>

enum {
    ROW_CHUNK = 768,      /* rows of gate, then of up: long runs of each */
    PASS_ROWS = 16,       /* rows that stay in the first cache while passes follow each other */
    SLAB = 32 * BLOCK_MAX /* tokens whose results of LANES rows are collected */
};

/* One matrix and the prepared activations of the tokens that meet it. */
typedef struct product {
    const mox_mat *m;
    act_plan p;
    const uint8_t *acts;
    const int32_t *token; /* few: which of the prepared activations are a token's, or NULL: token after token */
    int64_t n;
    bool few;      /* are_few: which arrangement acts is in */
    bool fetched;  /* the first tile of the range was asked for already */
    rows_at after; /* what is read after the range */
    fetching ahead; /* squares: how far fetching is */
} product;

/* ---- few tokens ---- */

/* out[t * ROW_CHUNK + row - begin] for rows [begin, end) and up to PASS tokens; the last four
 * numbers of a token are written whole. */
typedef void dot_rows(const rows_in *in, int64_t begin, int64_t end, float *out);

/* 4-bit codes: the sums of four rows are added up together.  One token takes four short or two long rows at a time, and
 * one with by_rows (rows.h); two tokens take four short ones, but not with by_rows; otherwise as many as the sums of the
 * tokens stay in registers for.  Each is a function of its own so that the compiler keeps its loop in them. */
#define DEFINE_DOT_NIBBLES(name, RB, NT, LANES_OF)                                            \
    static void name(const rows_in *all, int64_t begin, int64_t end, float *out)              \
    {                                                                                         \
        const act_plan plan = *all->p; /* copies, which no store to out can change */         \
        const mox_mat m = *all->m;                                                            \
        rows_in own = *all;                                                                   \
        own.p = &plan;                                                                        \
        own.m = &m;                                                                           \
        const rows_in *in = &own;                                                             \
        for (int64_t row = begin; row < end; row += 4, out += 4) {                            \
            const int64_t n = end - row < 4 ? end - row : 4;                                  \
            vf acc[4][PASS];                                                                  \
            for (int64_t r = 0; r < n;) {                                                     \
                if (!own.fetch) own.ahead = ahead_of(RB, in, row + r, end);                   \
                if (r + RB <= n) {                                                            \
                    LANES_OF(RB, NT, in, row + r, acc + r);                                   \
                    r += RB;                                                                  \
                } else {                                                                      \
                    LANES_OF(1, NT, in, row + r, acc + r);                                    \
                    r++;                                                                      \
                }                                                                             \
            }                                                                                 \
            for (int64_t r = n; r < 4; r++)                                                   \
                for (int t = 0; t < NT; t++) acc[r][t] = vf_zero();                           \
            for (int t = 0; t < NT; t++)                                                      \
                vf_store_sum4(out + t * ROW_CHUNK, acc[0][t], acc[1][t], acc[2][t], acc[3][t]); \
        }                                                                                     \
    }
#define I16(RB, NT, in, row, acc) lanes_nibbles(RB, NT, 2, false, in, row, acc)
#define I16_PLAIN(RB, NT, in, row, acc) lanes_nibbles(RB, NT, 2, true, in, row, acc)
#define I8(RB, NT, in, row, acc) lanes_nibbles(RB, NT, 1, false, in, row, acc)
#define I8_PLAIN(RB, NT, in, row, acc) lanes_nibbles(RB, NT, 1, true, in, row, acc)
#define F32(RB, NT, in, row, acc) lanes_nibbles_f32(RB, NT, false, in, row, acc)
#define F32_PLAIN(RB, NT, in, row, acc) lanes_nibbles_f32(RB, NT, true, in, row, acc)
#define DEFINE_ALL_TOKENS(kind, LANES_OF)                        \
    DEFINE_DOT_NIBBLES(kind##_alone_1, 1, 1, LANES_OF)           \
    DEFINE_DOT_NIBBLES(kind##_short_1, 4, 1, LANES_OF)           \
    DEFINE_DOT_NIBBLES(kind##_short_2, ROWS_OF_TWO, 2, LANES_OF) \
    DEFINE_DOT_NIBBLES(kind##_1, 2, 1, LANES_OF)                 \
    DEFINE_DOT_NIBBLES(kind##_2, ROWS_OF_MORE, 2, LANES_OF)      \
    DEFINE_DOT_NIBBLES(kind##_3, ROWS_OF_MORE, 3, LANES_OF)      \
    DEFINE_DOT_NIBBLES(kind##_4, ROWS_OF_MORE, 4, LANES_OF)
DEFINE_ALL_TOKENS(nibbles_i16, I16)
DEFINE_ALL_TOKENS(nibbles_i16_plain, I16_PLAIN)
DEFINE_ALL_TOKENS(nibbles_i8, I8)
DEFINE_ALL_TOKENS(nibbles_i8_plain, I8_PLAIN)
DEFINE_ALL_TOKENS(nibbles_f32, F32)
DEFINE_ALL_TOKENS(nibbles_f32_plain, F32_PLAIN)

/* Any other weight, row by row. */
#define DEFINE_DOT_ROW(name, NT, DOT)                                            \
    static void name(const rows_in *in, int64_t begin, int64_t end, float *out)  \
    {                                                                            \
        for (int64_t row = begin; row < end; row++, out++) {                     \
            float sums[PASS];                                                    \
            DOT(NT, in, row, sums);                                              \
            for (int t = 0; t < NT; t++) out[t * ROW_CHUNK] = sums[t];           \
        }                                                                        \
    }
#define CODES_I16(NT, in, row, out) dot_codes(NT, 2, in, row, out)
#define CODES_I8(NT, in, row, out) dot_codes(NT, 1, in, row, out)
#define DEFINE_ALL_ROWS(kind, DOT)        \
    DEFINE_DOT_ROW(kind##_1, 1, DOT)      \
    DEFINE_DOT_ROW(kind##_2, 2, DOT)      \
    DEFINE_DOT_ROW(kind##_3, 3, DOT)      \
    DEFINE_DOT_ROW(kind##_4, 4, DOT)
DEFINE_ALL_ROWS(codes_i16, CODES_I16)
DEFINE_ALL_ROWS(codes_i8, CODES_I8)
DEFINE_ALL_ROWS(codes_f32, dot_codes_f32)
DEFINE_ALL_ROWS(decoded, dot_decoded)

static dot_rows *choose_dot(const act_plan *p, bool plain, bool short_rows, int64_t n)
{
#define EACH_TOKENS(kind) kind##_1, kind##_2, kind##_3, kind##_4
#define NIBBLES(kind) {{EACH_TOKENS(kind)}, {kind##_short_1, kind##_short_2, kind##_3, kind##_4}}
    static dot_rows *const nibbles[3][2][2][PASS] = {{NIBBLES(nibbles_f32), NIBBLES(nibbles_f32_plain)},
                                                     {NIBBLES(nibbles_i8), NIBBLES(nibbles_i8_plain)},
                                                     {NIBBLES(nibbles_i16), NIBBLES(nibbles_i16_plain)}};
    static dot_rows *const alone[3][2] = {{nibbles_f32_alone_1, nibbles_f32_plain_alone_1},
                                          {nibbles_i8_alone_1, nibbles_i8_plain_alone_1},
                                          {nibbles_i16_alone_1, nibbles_i16_plain_alone_1}};
    static dot_rows *const codes[3][PASS] = {{EACH_TOKENS(codes_f32)}, {EACH_TOKENS(codes_i8)}, {EACH_TOKENS(codes_i16)}};
    static dot_rows *const others[PASS] = {EACH_TOKENS(decoded)};
#undef NIBBLES
#undef EACH_TOKENS
    const int planes = p->integer ? p->planes : 0;
    if (!p->affine) return others[n - 1];
    if (!p->nibble) return codes[planes][n - 1];
    if (p->by_rows && n == 1) return alone[planes][plain];
    return nibbles[planes][plain][short_rows][n - 1];
}

/* Rows [begin, end) behind their first FETCH_BLOCK, and those of what is read next. */
static fetching fetch_rows(const mox_mat *m, int64_t begin, int64_t end, const uint8_t *then)
{
    const int64_t row_bytes = mox_mat_row_bytes(&m->layout, m->cols);
    const uint8_t *from = m->w + begin * row_bytes, *to = m->w + end * row_bytes;
    return fetch_behind(to - from > FETCH_BLOCK ? from + FETCH_BLOCK : to, to, then);
}

/* out[t * ROW_CHUNK + row - begin] for rows [begin, end), at most ROW_CHUNK, and t < n <=
 * FEW_MAX: a few rows at a time, up to four tokens at a time.  then: what is read next. */
static void few_tokens(const product *x, int64_t begin, int64_t end, const rows_at *then, float *out)
{
    enum { AHEAD = 256 }; /* bytes of scales that are asked for early; the processor finds the others itself */
    const mox_mat_layout *l = &x->m->layout;
    rows_in in = {.m = x->m, .p = &x->p, .row_bytes = mox_mat_row_bytes(l, x->m->cols),
                  .scale_bytes = mox_mat_scale_row_bytes(l, x->m->cols), .n_chunks = x->p.cols_padded / CHUNK,
                  .n_whole = x->p.cols / CHUNK};
    const bool plain = l->group == 64 && l->scale_type == MOX_DT_BF16 && x->p.cols % CHUNK == 0;
    const int64_t step = x->n <= PASS ? ROW_CHUNK : PASS_ROWS;
    for (int64_t i = 0; then->scales && i < AHEAD; i += 64) {
        prefetch_second(then->scales + i);
        prefetch_second(then->biases + i);
    }
    const bool stripes = x->p.stripes && x->n > 1;
    fetching fetch;
    if (stripes) fetch = fetch_rows(x->m, begin, end, then->w);
    for (int64_t r0 = begin; r0 < end; r0 += step) {
        const int64_t r1 = r0 + step < end ? r0 + step : end;
        in.then = r1 < end ? x->m->w + r1 * in.row_bytes : then->w;
        for (int64_t t = 0, n; t < x->n; t += n) {
            n = mox_ceil_div(x->n - t, mox_ceil_div(x->n - t, PASS)); /* passes of even size */
            in.fetch = stripes && t == 0 ? &fetch : NULL;
            for (int64_t i = 0; i < n; i++) in.token[i] = x->acts + (x->token ? x->token[t + i] : t + i) * x->p.token_bytes;
            choose_dot(&x->p, plain, in.row_bytes <= SHORT_ROW && !x->p.by_rows, n)(&in, r0, r1, out + t * ROW_CHUNK + r0 - begin);
        }
    }
}

/* ---- many tokens ---- */

#if BLOCK_MAX == 4
#define SWITCH_BLOCK(n, CALL)  \
    switch (n) {               \
    case 1: CALL(1); break;    \
    case 2: CALL(2); break;    \
    case 3: CALL(3); break;    \
    default: CALL(4); break;   \
    }
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

/* Where the results of a tile go: LANES numbers for each token of its group. */
typedef struct tile_out {
    float *y;
    int64_t stride;
    const int32_t *rows; /* row of y for each token, or NULL */
    int64_t first;       /* the token of row 0 otherwise */
} tile_out;

static void find_places(const tile_out *to, block b, float *places[BLOCK_ROOM])
{
    for (int64_t t = 0; t < b.n; t++) {
        const int64_t token = b.first + t;
        places[t] = to->y + (to->rows ? to->rows[token] : token - to->first) * to->stride;
    }
}

static next_tile tile_at(const product *x, int64_t row)
{
    const mox_mat *m = x->m;
    const int64_t row_bytes = mox_mat_row_bytes(&m->layout, m->cols), scale_bytes = mox_mat_scale_row_bytes(&m->layout, m->cols);
    return (next_tile){.w = m->w + row * row_bytes, .scales = m->scales + row * scale_bytes, .biases = m->biases + row * scale_bytes,
                       .unit_bytes = LANES * row_bytes / x->p.units, .unit_scales = LANES * scale_bytes / x->p.units};
}

/* Asks for the first tile of rows [begin, end) all at once, unless the range before has; squares ask for the others. */
static void fetch_first(product *x, int64_t begin, int64_t end)
{
    if (!x->p.integer || x->p.cols == 0) return;
    if (SQUARES) x->ahead = fetch_rows(x->m, begin, end, x->after.w);
    if (x->fetched) return;
    if (SQUARES) {
        const int64_t row_bytes = mox_mat_row_bytes(&x->m->layout, x->m->cols), n = mox_min_i64(FETCH_BLOCK, (end - begin) * row_bytes);
        for (int64_t at = 0; at < n; at += LINE) prefetch_second(x->m->w + begin * row_bytes + at);
    }
    const next_tile first = tile_at(x, begin);
    for (int64_t u = 0; u < x->p.units; u++) fetch_unit(&first, u);
}

/* What is read after the tile of `row`, the last of its range or not. */
static next_tile tile_after(const product *x, int64_t row, bool last)
{
    next_tile next = tile_at(x, row + LANES);
    if (last) {
        next.w = x->after.w;
        next.scales = x->after.scales;
        next.biases = x->after.biases;
    }
    return next;
}

#if SQUARES
/* At most BLOCKS of them. */
static void tile_blocks(product *x, int64_t row, int64_t n_rows, bool last, int64_t b0, int64_t b1, code_tile *tile, const tile_out *to)
{
    const act_plan *p = &x->p;
    const next_tile next = tile_after(x, row, last);
    const square_rows rows = rows_from(x->m, row, n_rows);
    const int lines = (int)(LANES * rows.row_bytes / p->units / LINE); /* of a unit, asked for a few at a time */
    const int filling = lines / 4, multiplying = 3 * lines / 8, adding = lines - filling - multiplying;
    memset(tile->totals, 0, (size_t)(b1 - b0) * sizeof tile->totals[0]);
    for (int64_t col = 0; col < p->cols; col += PANEL) {
        const int64_t n = p->cols - col < PANEL ? p->cols - col : PANEL, u0 = col / p->unit, n_units = n / p->unit;
        fill_units(tile->scale, x->m->scales, x->m, p, row, n_rows, u0, n_units);
        fill_units(tile->bias, x->m->biases, x->m, p, row, n_rows, u0, n_units);
        for (int64_t u = 0; u < n_units; u += SPAN) {
            const int64_t span = mox_min_i64(SPAN, n_units - u);
            for (int64_t k = 0; k < span; k++) {
                fill_square(&rows, p->unit, (u0 + u + k) * p->unit, tile->codes + k * LANES * p->unit);
                for (int line = 0; b0 == 0 && line < filling; line++) fetch_line(&x->ahead);
            }
            for (int64_t i = b0; i < b1; i++) {
                const block b = block_at(p, x->n, i);
                square_fetch fetch = {.codes = i == 0 ? &x->ahead : NULL, .multiplying = multiplying, .adding = adding, .words = p->unit / 4,
                                      .next = i == 0 && next.scales ? &next : NULL};
                if (b1 - b0 > 1) { /* one alone stays in the first cache */
                    const block c = block_at(p, x->n, i + 1 < b1 ? i + 1 : b0);
                    const int64_t unit = u0 + u + (i + 1 < b1 ? 0 : SPAN);
                    fetch.acts = x->acts + c.first * p->block_bytes + unit * strides_of(p, c.n).unit;
                }
                const uint8_t *acts = x->acts + b.first * p->block_bytes;
                if (p->planes == 2) multiply_span(2, tile, p, acts, b.n, u0, u, span, &fetch, tile->totals[i - b0]);
                else multiply_span(1, tile, p, acts, b.n, u0, u, span, &fetch, tile->totals[i - b0]);
            }
        }
    }
    for (int64_t i = b0; i < b1; i++) {
        const block b = block_at(p, x->n, i);
        float *places[BLOCK_ROOM];
        find_places(to, b, places);
        put_rows(tile->totals[i - b0], b.n, p->planes, places);
    }
}

static void tile_codes(product *x, int64_t row, int64_t n_rows, bool last, int64_t b0, int64_t b1, code_tile *tile, const tile_out *to)
{
    for (int64_t i = b0; i < b1; i += BLOCKS) tile_blocks(x, row, n_rows, last, i, mox_min_i64(i + BLOCKS, b1), tile, to);
}
#else
/* f: what of the tile is still to be filled, or NULL; next: what to fetch meanwhile, or NULL. */
static void multiply_block(const product *x, const code_tile *tile, filling *f, block b, int64_t u0, int64_t n_units,
                           const next_tile *next, bool add, float *const *y)
{
    const act_plan *p = &x->p;
    const uint8_t *acts = x->acts + b.first * p->block_bytes;
#define CALL_KIND(NT, KIND)                                                                         \
    if (p->planes == 2) multiply_codes(NT, 2, KIND, tile, f, p, acts, u0, n_units, next, add, y);   \
    else multiply_codes(NT, 1, KIND, tile, f, p, acts, u0, n_units, next, add, y)
    if (p->nibble && f) {
#define CALL(NT) CALL_KIND(NT, CODE_FILLED)
        SWITCH_BLOCK(b.n, CALL)
#undef CALL
    } else if (p->nibble) {
#define CALL(NT) CALL_KIND(NT, CODE_PAIRS)
        SWITCH_BLOCK(b.n, CALL)
#undef CALL
    } else if (!DOT_ANY && x->m->layout.bits == 8) {
#define CALL(NT) CALL_KIND(NT, CODE_WIDE)
        SWITCH_BLOCK(b.n, CALL)
#undef CALL
    } else {
#define CALL(NT) CALL_KIND(NT, CODE_BYTES)
        SWITCH_BLOCK(b.n, CALL)
#undef CALL
    }
#undef CALL_KIND
}

static void tile_codes(const product *x, int64_t row, int64_t n_rows, bool last, int64_t b0, int64_t b1, code_tile *tile, const tile_out *to)
{
    filling f;
    const act_plan *p = &x->p;
    const next_tile next = tile_after(x, row, last);
    for (int64_t col = 0; col < p->cols; col += PANEL) {
        const int64_t n = p->cols - col < PANEL ? p->cols - col : PANEL, u0 = col / p->unit, n_units = n / p->unit;
        const bool whole = p->nibble && n_rows == LANES && n % CHUNK == 0;
        if (whole) begin_filling(&f, tile, x->m, p, row, col);
        else if (p->nibble) fill_nibbles(tile, x->m, row, n_rows, col, n);
        else fill_codes(tile, x->m, row, n_rows, col, n);
        fill_units(tile->scale, x->m->scales, x->m, p, row, n_rows, u0, n_units);
        fill_units(tile->bias, x->m->biases, x->m, p, row, n_rows, u0, n_units);
        for (int64_t i = b0; i < b1; i++) {
            const block b = block_at(&x->p, x->n, i);
            float *places[BLOCK_ROOM];
            find_places(to, b, places);
            multiply_block(x, tile, whole && i == b0 ? &f : NULL, b, u0, n_units, i == 0 && next.scales ? &next : NULL, col > 0, places);
        }
    }
}
#endif

static void tile_f32(const product *x, int64_t row, int64_t n_rows, int64_t b0, int64_t b1, const tile_out *to)
{
    f32_tile tile;
    const act_plan *p = &x->p;
    for (int64_t col = 0; col < p->cols; col += PANEL_F32) {
        const int64_t n = p->cols - col < PANEL_F32 ? p->cols - col : PANEL_F32;
        fill_f32(&tile, x->m, row, n_rows, col, n);
        for (int64_t i = b0; i < b1; i++) {
            const block b = block_at(&x->p, x->n, i);
            const float *acts = (const float *)(const void *)(x->acts + b.first * p->block_bytes) + col * b.n;
            float *places[BLOCK_ROOM];
            find_places(to, b, places);
#define CALL(NT) multiply_f32(NT, &tile, acts, n, col > 0, places)
            SWITCH_BLOCK(b.n, CALL)
#undef CALL
        }
    }
}

/* A sum of no columns. */
static void tile_nothing(const product *x, int64_t b0, int64_t b1, const tile_out *to)
{
    for (int64_t i = b0; i < b1; i++) {
        const block b = block_at(&x->p, x->n, i);
        float *places[BLOCK_ROOM];
        find_places(to, b, places);
        for (int64_t t = 0; t < b.n; t++) memset(places[t], 0, LANES * sizeof *places[t]);
    }
}

/* LANES results of the tokens of blocks [b0, b1), for rows [row, row + n_rows), the last of their range or not. */
static void many_tokens(product *x, int64_t row, int64_t n_rows, bool last, int64_t b0, int64_t b1, code_tile *tile, const tile_out *to)
{
    if (x->p.cols == 0) tile_nothing(x, b0, b1, to);
    else if (x->p.integer) tile_codes(x, row, n_rows, last, b0, b1, tile, to);
    else tile_f32(x, row, n_rows, b0, b1, to);
}

/* ---- where results go ---- */

typedef struct target {
    float *y;
    int64_t stride;
    const int32_t *rows; /* row of y for each token, or NULL */
    const mox_vec *bias; /* NULL or a vector of type NONE: no bias */
} target;

static float *target_row(const target *to, int64_t token) { return to->y + (to->rows ? to->rows[token] : token) * to->stride; }

/* y[r] = values[r] + bias[row + r], r < n */
static void write_rows(const target *to, int64_t row, const float *values, int64_t n, float *y)
{
    const mox_vec *bias = to->bias && to->bias->type != MOX_DT_NONE ? to->bias : NULL;
    memcpy(y, values, (size_t)n * sizeof *y);
    if (bias)
        for (int64_t r = 0; r < n; r++) y[r] += mox_vec_at(bias, row + r);
}

static void product_rows(product *x, const target *to, int64_t begin, int64_t end)
{
    if (x->few) {
        float out[ROW_CHUNK * FEW_MAX];
        for (int64_t r0 = begin; r0 < end; r0 += ROW_CHUNK) {
            const int64_t r1 = r0 + ROW_CHUNK < end ? r0 + ROW_CHUNK : end;
            const rows_at then = r1 < end ? find_row(x->m, r1) : x->after;
            few_tokens(x, r0, r1, &then, out);
            for (int64_t t = 0; t < x->n; t++) write_rows(to, r0, out + t * ROW_CHUNK, r1 - r0, target_row(to, t) + r0);
        }
        return;
    }
    const int64_t n_blocks = block_count(&x->p, x->n), slab = SLAB / x->p.block;
    const bool has_bias = to->bias && to->bias->type != MOX_DT_NONE;
    code_tile tile;
    open_tile(&tile);
    fetch_first(x, begin, end);
    for (int64_t row = begin; row < end; row += LANES) {
        const int64_t n_rows = mox_min_i64(LANES, end - row);
        if (n_rows == LANES && !has_bias) {
            many_tokens(x, row, LANES, row + LANES >= end, 0, n_blocks, &tile, &(tile_out){.y = to->y + row, .stride = to->stride, .rows = to->rows});
            continue;
        }
        float out[SLAB * LANES];
        for (int64_t b0 = 0; b0 < n_blocks; b0 += slab) {
            const int64_t b1 = mox_min_i64(b0 + slab, n_blocks), first = block_at(&x->p, x->n, b0).first;
            const block last = block_at(&x->p, x->n, b1 - 1);
            many_tokens(x, row, n_rows, row + LANES >= end, b0, b1, &tile, &(tile_out){.y = out, .stride = LANES, .first = first});
            for (int64_t t = first; t < last.first + last.n; t++)
                write_rows(to, row, out + (t - first) * LANES, n_rows, target_row(to, t) + row);
        }
    }
    close_tile(&tile);
}

/* gate[i] = silu(gate[i]) * up[i]; n is a multiple of LANES. */
static void swiglu(float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES) {
        const vf g = vf_load(gate + i);
        vf_store(gate + i, vf_mul(vf_silu(g), vf_load(up + i)));
    }
}

static void gate_up_rows(product *gate, product *up, const target *to, int64_t begin, int64_t end)
{
    if (gate->few) {
        float g[ROW_CHUNK * FEW_MAX], u[ROW_CHUNK * FEW_MAX];
        for (int64_t r0 = begin; r0 < end; r0 += ROW_CHUNK) {
            const int64_t r1 = r0 + ROW_CHUNK < end ? r0 + ROW_CHUNK : end;
            const rows_at between = find_row(up->m, r0), then = r1 < end ? find_row(gate->m, r1) : gate->after;
            few_tokens(gate, r0, r1, &between, g);
            few_tokens(up, r0, r1, &then, u);
            for (int64_t t = 0; t < gate->n; t++) {
                swiglu(g + t * ROW_CHUNK, u + t * ROW_CHUNK, (r1 - r0 + LANES - 1) / LANES * LANES);
                memcpy(target_row(to, t) + r0, g + t * ROW_CHUNK, (size_t)(r1 - r0) * sizeof *g);
            }
        }
        return;
    }
    const int64_t n_blocks = block_count(&gate->p, gate->n), slab = SLAB / gate->p.block;
    float g[SLAB * LANES], u[SLAB * LANES];
    code_tile tile;
    open_tile(&tile);
    fetch_first(gate, begin, end);
    fetch_first(up, begin, end);
    for (int64_t row = begin; row < end; row += LANES) {
        const int64_t n_rows = end - row < LANES ? end - row : LANES;
        for (int64_t b0 = 0; b0 < n_blocks; b0 += slab) {
            const int64_t b1 = b0 + slab < n_blocks ? b0 + slab : n_blocks, first = block_at(&gate->p, gate->n, b0).first;
            const block last = block_at(&gate->p, gate->n, b1 - 1);
            const int64_t n = last.first + last.n - first;
            many_tokens(gate, row, n_rows, row + LANES >= end, b0, b1, &tile, &(tile_out){.y = g, .stride = LANES, .first = first});
            many_tokens(up, row, n_rows, row + LANES >= end, b0, b1, &tile, &(tile_out){.y = u, .stride = LANES, .first = first});
            swiglu(g, u, n * LANES);
            for (int64_t t = 0; t < n; t++) memcpy(target_row(to, first + t) + row, g + t * LANES, (size_t)n_rows * sizeof *g);
        }
    }
    close_tile(&tile);
}

/* ---- the operations ---- */

void MOX_AT(mox_matmul_prepare)(const mox_matmul_args *a, int64_t begin, int64_t end)
{
    const act_plan p = plan_acts(&a->w.layout, a->w.cols, &a->how);
    prepare_tokens(&p, a->x, a->x_stride, NULL, a->scratch, a->n, are_few(&p, a->n), begin, end);
}

void MOX_AT(mox_matmul)(const mox_matmul_args *a, int64_t begin, int64_t end)
{
    product x = {.m = &a->w, .p = plan_acts(&a->w.layout, a->w.cols, &a->how), .acts = a->scratch, .n = a->n};
    x.few = are_few(&x.p, a->n);
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
                          int64_t x_stride, const mox_matmul_how *how, void *scratch, int64_t begin, int64_t end)
{
    int64_t g = 0;
    for (int64_t pair = begin; pair < end;) {
        while (g + 1 < n_groups && pair >= offsets[g + 1]) g++;
        const int64_t first = offsets[g], n = offsets[g + 1] - first, stop = end < offsets[g + 1] ? end : offsets[g + 1];
        const act_plan p = plan_acts(&w[g].layout, w[g].cols, how);
        prepare_tokens(&p, x_row ? x : x + first * x_stride, x_stride, x_row ? x_row + first : NULL,
                       group_acts(scratch, first, w[g].cols), n, are_few(&p, n), pair - first, stop - first);
        pair = stop;
    }
}

void MOX_AT(mox_matmul_grouped_prepare)(const mox_matmul_grouped_args *a, int64_t begin, int64_t end)
{
    prepare_pairs(a->w, a->n_groups, a->offsets, a->x_row, a->x, a->x_stride, &a->how, a->scratch, begin, end);
}

/* Whether all groups are few, so that what is prepared of a token serves all its experts.  It then lies at the place
 * of the token and not of a pair. */
static bool shares_acts(const mox_gate_up_swiglu_args *a)
{
    const act_plan p = plan_acts(&a->gate[0].layout, a->gate[0].cols, &a->how);
    return a->x_row && a->most_alike > 0 && a->n_x_rows <= a->offsets[a->n_groups] && are_few(&p, a->most_alike);
}

void MOX_AT(mox_gate_up_swiglu_prepare)(const mox_gate_up_swiglu_args *a, int64_t begin, int64_t end)
{
    if (shares_acts(a)) {
        const act_plan p = plan_acts(&a->gate[0].layout, a->gate[0].cols, &a->how);
        prepare_tokens(&p, a->x, a->x_stride, NULL, a->scratch, a->n_x_rows, true, begin, mox_min_i64(end, a->n_x_rows));
        return;
    }
    prepare_pairs(a->gate, a->n_groups, a->offsets, a->x_row, a->x, a->x_stride, &a->how, a->scratch, begin, end);
}

void MOX_AT(mox_matmul_grouped)(const mox_matmul_grouped_args *a, int64_t begin, int64_t end)
{
    const int64_t rows = a->w[0].rows;
    bool fetched = false;
    while (begin < end) {
        const int64_t g = begin / rows, first = a->offsets[g], n = a->offsets[g + 1] - first;
        const int64_t stop = end < (g + 1) * rows ? end : (g + 1) * rows;
        product x = {.m = &a->w[g], .p = plan_acts(&a->w[g].layout, a->w[g].cols, &a->how),
                     .acts = group_acts(a->scratch, first, a->w[g].cols), .n = n, .fetched = fetched};
        if (stop < end) x.after = find_row(&a->w[g + 1], 0);
        x.few = are_few(&x.p, n);
        const target to = {.y = a->y_row ? a->y : a->y + first * a->y_stride, .stride = a->y_stride,
                           .rows = a->y_row ? a->y_row + first : NULL};
        if (x.n > 0) product_rows(&x, &to, begin - g * rows, stop - g * rows);
        fetched = x.n > 0 && !x.few;
        begin = stop;
    }
}

void MOX_AT(mox_gate_up_swiglu)(const mox_gate_up_swiglu_args *a, int64_t begin, int64_t end)
{
    const int64_t rows = a->gate[0].rows;
    const bool shared = shares_acts(a);
    bool fetched = false;
    while (begin < end) {
        const int64_t g = begin / rows, first = a->offsets[g], n = a->offsets[g + 1] - first;
        const int64_t stop = end < (g + 1) * rows ? end : (g + 1) * rows;
        const uint8_t *acts = shared ? a->scratch : group_acts(a->scratch, first, a->gate[g].cols);
        const int32_t *token = shared ? a->x_row + first : NULL;
        product gate = {.m = &a->gate[g], .p = plan_acts(&a->gate[g].layout, a->gate[g].cols, &a->how), .acts = acts,
                        .token = token, .n = n, .fetched = fetched};
        gate.few = are_few(&gate.p, n);
        product up = {.m = &a->up[g], .p = plan_acts(&a->up[g].layout, a->up[g].cols, &a->how), .acts = acts,
                      .token = token, .n = n, .few = gate.few, .fetched = fetched};
        if (stop < end) {
            gate.after = find_row(&a->gate[g + 1], 0);
            up.after = find_row(&a->up[g + 1], 0);
        }
        const target to = {.y = a->y_row ? a->y : a->y + first * a->y_stride, .stride = a->y_stride,
                           .rows = a->y_row ? a->y_row + first : NULL};
        if (gate.n > 0 && same_plan(&gate.p, &up.p)) gate_up_rows(&gate, &up, &to, begin - g * rows, stop - g * rows);
        else if (gate.n > 0) mox_gate_up_swiglu_ref(a, begin, stop);
        fetched = gate.n > 0 && !gate.few;
        begin = stop;
    }
}
