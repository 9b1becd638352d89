/* ops/simd/square.h -- several tokens on levels that multiply squares of bytes (SQUARES in level.h).
 *
 * Codes become bytes, row by row in the order of the file, and nothing is transposed: LANES rows of a unit of columns meet
 * the lanes of a block, which are the high planes of its tokens, then the low ones.  The sums of a unit are whole
 * numbers; they are scaled for row and token, and added up until all columns are done.
 *
 * Squares and vectors take turns for SPAN units at a time, which is what lies in the first cache meanwhile: changing
 * between them costs as much as a unit does. */
#ifndef MOX_OPS_SIMD_SQUARE_H
#define MOX_OPS_SIMD_SQUARE_H

#include "ops/simd/fetch.h"
#include "ops/simd/tile.h"

enum {
    SPAN = 8,
    BLOCKS = 64 /* that meet a tile while its totals are kept */
};

typedef struct code_tile {
    _Alignas(64) uint8_t codes[SPAN * LANES * 64]; /* [unit][row][column] */
    _Alignas(64) float scale[PANEL / 32 * LANES], bias[PANEL / 32 * LANES]; /* [unit][row] */
    _Alignas(64) int32_t sums[SPAN][SQUARE_SUMS];
    _Alignas(64) float totals[BLOCKS][SQUARE_SUMS]; /* of a block: as add_unit has them */
    squares_shape shape;
} code_tile;

static void open_tile(code_tile *tile)
{
    tile->shape = (squares_shape){0};
    memset(tile->sums, 0, sizeof tile->sums); /* lanes that no block has are read as well */
}
static void close_tile(code_tile *tile) { squares_end(&tile->shape); }

/* Where the rows of a tile are. */
typedef struct square_rows {
    const uint8_t *w; /* the first of them */
    int64_t row_bytes, n;
    int bits;
} square_rows;

static square_rows rows_from(const mox_mat *m, int64_t row, int64_t n)
{
    const int64_t row_bytes = mox_mat_row_bytes(&m->layout, m->cols);
    return (square_rows){.w = m->w + row * row_bytes, .row_bytes = row_bytes, .n = n, .bits = m->layout.bits};
}

ALWAYS_INLINE void fill_rows(const int BITS, const int UNIT, const square_rows *rows, int64_t col, uint8_t *out)
{
    const int64_t row_bytes = rows->row_bytes;
    const uint8_t *w = rows->w;
    for (int64_t r = 0; r < rows->n; r++, w += row_bytes, out += UNIT) {
        if (BITS == 4) split_unit(w + col / 2, UNIT, out);
        else if (BITS == 8) memcpy(out, w + col, (size_t)UNIT);
        else unpack_codes(w, rows->bits, col, UNIT, row_bytes, out);
    }
    for (int64_t r = rows->n; r < LANES; r++, out += UNIT) memset(out, 0, (size_t)UNIT);
}

/* One unit of all rows, from column col on. */
static inline void fill_square(const square_rows *rows, int unit, int64_t col, uint8_t *out)
{
    if (rows->bits == 4 && unit == 64) fill_rows(4, 64, rows, col, out);
    else if (rows->bits == 4) fill_rows(4, 32, rows, col, out);
    else if (rows->bits == 8 && unit == 64) fill_rows(8, 64, rows, col, out);
    else if (unit == 64) fill_rows(0, 64, rows, col, out);
    else fill_rows(0, 32, rows, col, out);
}

/* The sums of the planes of up to 16 tokens, or of 8, of a row or of two neighbours: what vectors of LANES hold. */
ALWAYS_INLINE vi plane_sums(const int PLANES, const int32_t *sums, int64_t low, int v)
{
    if (PLANES == 1) return vi_load(sums + v * SQUARE_LANES);
    const int32_t *row = sums + 2 * v * SQUARE_LANES;
    return vi_add(vi_shl(vi_halves(row, row + SQUARE_LANES), 8), vi_halves(row + low, row + SQUARE_LANES + low));
}

/* acc[v] += the sums of one unit, scaled, in the order of codes.h: the same bytes.  A vector is one row of 16 tokens, or
 * with two planes two rows of 8. */
ALWAYS_INLINE void add_unit(const int PLANES, const int32_t *sums, int64_t low, const float *scale, const float *bias, vf x, vf sum, vf acc[LANES])
{
    const vf s = vf_load(scale), b = vf_load(bias);
    const int n_v = LANES / PLANES; /* here, for a compiler that takes the division for a reason not to unroll */
#pragma GCC unroll 16
    for (int v = 0; v < n_v; v++) {
        const vf sv = PLANES == 1 ? vf_set(scale[v]) : vf_permute(s, vi_pair_of(v));
        const vf bv = PLANES == 1 ? vf_set(bias[v]) : vf_permute(b, vi_pair_of(v));
        acc[v] = vf_fma(vf_mul(vf_from_int(plane_sums(PLANES, sums, low, v)), sv), x, acc[v]);
        acc[v] = vf_fma(bv, sum, acc[v]);
    }
}

/* y[t][row] from totals as add_unit has them. */
ALWAYS_INLINE void put_rows(const float *totals, int64_t n, int planes, float *const *y)
{
    const int64_t tokens = SQUARE_LANES / planes; /* of a row */
    vi rows[LANES];
    for (int r = 0; r < LANES; r++) rows[r] = vi_bits(vf_load_n(totals + r * tokens, tokens));
    transpose(rows);
    float room[LANES][LANES];
    for (int i = 0; i < LANES; i++) vi_store(room[i], rows[i]);
    for (int64_t t = 0; t < n; t++) memcpy(y[t], room[t], sizeof room[t]);
}

/* What is asked for while a span is multiplied: few lines at a time, as few can be on their way. */
typedef struct square_fetch {
    fetching *codes;         /* weights from memory, or NULL, */
    int multiplying, adding; /*   lines of them for each unit while squares are multiplied, and while sums are added */
    const next_tile *next;   /* scales and biases of the next tile, or NULL */
    const uint8_t *acts;     /* those of the span that comes then, into the first cache, or NULL, */
    int64_t words;           /*   lines of them for each unit */
} square_fetch;

/* With the i-th unit of a span, unit u of all. */
ALWAYS_INLINE void fetch_with_unit(const square_fetch *f, int64_t u, int64_t i)
{
    for (int k = 0; f->codes && k < f->adding; k++) fetch_line(f->codes);
    if (f->next) {
        prefetch_second(f->next->scales + u * f->next->unit_scales);
        prefetch_second(f->next->biases + u * f->next->unit_scales);
    }
    for (int64_t k = 0; f->acts && k < f->words; k++) prefetch_first(f->acts + (i * f->words + k) * LINE);
}

/* The units [u, u + span) of a panel, which begins with unit u0, for a block of n tokens: added to totals. */
ALWAYS_INLINE void multiply_span(const int PLANES, code_tile *tile, const act_plan *p, const uint8_t *acts, int64_t n, int64_t u0, int64_t u,
                                 int64_t span, const square_fetch *fetch, float *totals)
{
    const block_strides by = strides_of(p, n);
    const float *scale = (const float *)(const void *)(acts + p->units * by.unit) + u0 * n, *sum = scale + p->units * n;
    squares_begin(&tile->shape, p->unit, by.word / 4);
    for (int64_t i = 0; i < span; i += 2) {
        const uint8_t *lanes = acts + (u0 + u + i) * by.unit;
        squares_multiply(&tile->shape, tile->codes + i * LANES * p->unit, lanes, by.word, i + 1 < span, tile->sums + i);
        for (int k = 0; fetch->codes && k < 2 * fetch->multiplying; k++) fetch_line(fetch->codes);
    }
    vf acc[LANES];
    const int n_v = LANES / PLANES;
#pragma GCC unroll 16
    for (int v = 0; v < n_v; v++) acc[v] = vf_load(totals + v * LANES);
#pragma GCC unroll 1
    for (int64_t i = u; i < u + span; i++) {
        fetch_with_unit(fetch, u0 + i, i - u);
        vf x = vf_load_n(scale + i * n, n), s = vf_load_n(sum + i * n, n);
        if (PLANES == 2) x = vf_twice(x), s = vf_twice(s); /* for both rows of a vector */
        add_unit(PLANES, tile->sums[i - u], low_lane(n), tile->scale + i * LANES, tile->bias + i * LANES, x, s, acc);
    }
#pragma GCC unroll 16
    for (int v = 0; v < n_v; v++) vf_store(totals + v * LANES, acc[v]);
}

#endif
