/* ops/simd/tile.h -- many tokens: LANES rows of weights as a tile that stays in the cache, for blocks of tokens.
 *
 * A tile covers PANEL columns; longer rows are done panel after panel, adding to the
 * totals in y.  What tiles of f32 are, and what both kinds of tiles of codes share (codes.h, square.h). */
#ifndef MOX_OPS_SIMD_TILE_H
#define MOX_OPS_SIMD_TILE_H

#include "ops/simd/acts.h"
#include "ops/simd/decode.h"

enum { PANEL = 2048, PANEL_F32 = 512 };

typedef struct f32_tile {
    _Alignas(64) float w[PANEL_F32 * LANES]; /* [column][row] */
} f32_tile;

/* ---- filling a tile: rows [row, row + n_rows) of m, columns [col, col + n) ---- */

/* The scales or biases of units [u0, u0 + n_units) as [unit][row]. */
ALWAYS_INLINE void fill_numbers(const mox_dtype TYPE, const int UNITS, float *out, const uint8_t *numbers, int64_t row_bytes,
                                const act_plan *p, int64_t n_rows, int64_t u0, int64_t n_units)
{
    for (int64_t u = 0; u < n_units; u += LANES) {
        vi r[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            r[i] = i < n_rows ? vi_bits(load_units(numbers + i * row_bytes, TYPE, UNITS, u0 + u, p->units)) : vi_zero();
        transpose(r);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (u + i < n_units) vi_store(out + (u + i) * LANES, r[i]);
    }
}

static void fill_units(float *out, const uint8_t *numbers, const mox_mat *m, const act_plan *p, int64_t row, int64_t n_rows,
                       int64_t u0, int64_t n_units)
{
    const int64_t row_bytes = mox_mat_scale_row_bytes(&m->layout, m->cols);
    const mox_dtype type = m->layout.scale_type;
    numbers += row * row_bytes;
    if (type == MOX_DT_BF16 && p->share == 1 && n_rows == LANES)
        fill_numbers(MOX_DT_BF16, 1, out, numbers, row_bytes, p, LANES, u0, n_units);
    else fill_numbers(type, p->share, out, numbers, row_bytes, p, n_rows, u0, n_units);
}

static void fill_f32(f32_tile *tile, const mox_mat *m, int64_t row, int64_t n_rows, int64_t col, int64_t n)
{
    const int64_t row_bytes = mox_mat_row_bytes(&m->layout, m->cols);
    for (int64_t c = 0; c < n; c += LANES) {
        vi r[LANES];
        for (int64_t i = 0; i < LANES; i++)
            r[i] = i < n_rows ? vi_bits(decode_vector(m, row_bytes, row + i, col + c)) : vi_zero();
        transpose(r);
        for (int64_t k = 0; k < LANES && c + k < n; k++) vi_store(tile->w + (c + k) * LANES, r[k]);
    }
}

/* ---- multiplying ---- */

/* The weights of the next tile, which lie behind those of this one: fetched into the
 * second cache while the first block of tokens is multiplied. */
typedef struct next_tile {
    const uint8_t *w, *scales, *biases; /* NULL: not now */
    int64_t unit_bytes, unit_scales;    /* to fetch with each unit */
} next_tile;

ALWAYS_INLINE void fetch_unit(const next_tile *next, int64_t u)
{
    for (int64_t at = 0; at < next->unit_bytes; at += 64) prefetch_second(next->w + u * next->unit_bytes + at);
    prefetch_second(next->scales + u * next->unit_scales);
    prefetch_second(next->biases + u * next->unit_scales);
}

ALWAYS_INLINE void multiply_f32(const int NT, const f32_tile *tile, const float *x, int64_t n, bool add, float *const *y)
{
    vf acc[BLOCK_MAX];
    for (int t = 0; t < NT; t++) acc[t] = add ? vf_load(y[t]) : vf_zero();
#pragma GCC unroll 2
    for (int64_t c = 0; c < n; c++, x += NT) {
        const vf w = vf_load(tile->w + c * LANES);
#pragma GCC unroll 12
        for (int t = 0; t < NT; t++) acc[t] = vf_fma(w, vf_set(x[t]), acc[t]);
    }
    for (int t = 0; t < NT; t++) vf_store(y[t], acc[t]);
}

#endif
