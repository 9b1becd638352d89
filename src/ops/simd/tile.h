/* ops/simd/tile.h -- many tokens: LANES rows of weights, transposed on the fly into a
 * tile that stays in the cache, meet blocks of tokens held in registers.
 *
 * A tile covers PANEL columns; longer rows are done panel after panel, adding to the
 * totals in y.  Codes lie as [word of 4 columns][row][4 bytes] in the order of the
 * prepared activations, so one broadcast activation word multiplies LANES rows. */
#ifndef MOX_OPS_SIMD_TILE_H
#define MOX_OPS_SIMD_TILE_H

#include "ops/simd/acts.h"
#include "ops/simd/decode.h"

enum { PANEL = 2048, PANEL_F32 = 512 };

typedef struct code_tile {
    _Alignas(64) uint8_t codes[PANEL * LANES];
    _Alignas(64) float scale[PANEL / 32 * LANES], bias[PANEL / 32 * LANES]; /* [unit][row] */
} code_tile;

typedef struct f32_tile {
    _Alignas(64) float w[PANEL_F32 * LANES]; /* [column][row] */
} f32_tile;

/* ---- filling a tile: rows [row, row + n_rows) of m, columns [col, col + n) ---- */

/* Packed 4-bit codes: a word of 8 codes becomes two words of 4. */
static void fill_nibbles(code_tile *tile, const mox_mat *m, int64_t row, int64_t n_rows, int64_t col, int64_t n)
{
    const int64_t row_bytes = m->cols / 2;
    for (int64_t c = 0; c < n; c += 8 * LANES) {
        vi r[LANES];
        const int64_t bytes = n - c < 8 * LANES ? (n - c) / 2 : VBYTES;
        for (int64_t i = 0; i < LANES; i++) {
            if (i >= n_rows) {
                r[i] = vi_zero();
            } else if (bytes == VBYTES) {
                r[i] = vi_load(m->w + (row + i) * row_bytes + (col + c) / 2);
            } else {
                uint8_t spare[VBYTES] = {0};
                memcpy(spare, m->w + (row + i) * row_bytes + (col + c) / 2, (size_t)bytes);
                r[i] = vi_load(spare);
            }
        }
        transpose(r);
        uint8_t *out = tile->codes + c * LANES;
        for (int64_t w = 0; w < bytes / 4; w++, out += 2 * VBYTES) {
            vi_store(out, vi_and(r[w], vi_set8(15)));
            vi_store(out + VBYTES, vi_high_nibbles(r[w]));
        }
    }
}

/* Any other width, through bytes. */
static void fill_codes(code_tile *tile, const mox_mat *m, int64_t row, int64_t n_rows, int64_t col, int64_t n)
{
    const int bits = m->layout.bits;
    const int64_t row_bytes = m->cols * bits / 8;
    for (int64_t c = 0; c < n; c += VBYTES) {
        vi r[LANES];
        const int64_t left = n - c < VBYTES ? n - c : VBYTES;
        for (int64_t i = 0; i < LANES; i++) {
            uint8_t bytes[VBYTES] = {0};
            if (i < n_rows) unpack_codes(m->w + (row + i) * row_bytes, bits, col + c, left, row_bytes, bytes);
            r[i] = vi_load(bytes);
        }
        transpose(r);
        for (int64_t w = 0; w < left / 4; w++) vi_store(tile->codes + (c / 4 + w) * VBYTES, r[w]);
    }
}

static void fill_units(float *out, const uint8_t *numbers, const mox_mat *m, const act_plan *p, int64_t row, int64_t n_rows,
                       int64_t u0, int64_t n_units)
{
    const int64_t row_bytes = mox_mat_scale_row_bytes(&m->layout, m->cols);
    for (int64_t u = 0; u < n_units; u += LANES) {
        vi r[LANES];
        for (int64_t i = 0; i < LANES; i++)
            r[i] = i < n_rows ? vi_bits(load_units(numbers + (row + i) * row_bytes, m->layout.scale_type, p->share, u0 + u, p->units))
                              : vi_zero();
        transpose(r);
        for (int64_t i = 0; i < LANES && u + i < n_units; i++) vi_store(out + (u + i) * LANES, r[i]);
    }
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
    const uint8_t *w; /* NULL: not now */
    int64_t unit_bytes; /* to fetch with each unit */
} next_tile;

/* NT tokens of a block over units [u0, u0 + n_units): y[t][lane], set or added to. */
ALWAYS_INLINE void multiply_codes(const int NT, const int PLANES, const bool WIDE, const code_tile *tile, const act_plan *p,
                                  const uint8_t *acts, int64_t u0, int64_t n_units, next_tile next, bool add,
                                  float *const *y)
{
    const int64_t words = p->unit / 4, plane = words * 4 * NT;
    const uint8_t *x = acts + u0 * PLANES * plane;
    const float *scale = (const float *)(const void *)(acts + p->units * PLANES * plane) + u0 * NT, *sum = scale + p->units * NT;
    const uint8_t *codes = tile->codes;
    vf acc[BLOCK_MAX];
    for (int t = 0; t < NT; t++) acc[t] = add ? vf_load(y[t]) : vf_zero();
    for (int64_t u = 0; u < n_units; u++, codes += words * VBYTES) {
        vi i[BLOCK_MAX];
        if (next.w)
            for (int64_t at = 0; at < next.unit_bytes; at += 64) prefetch_second(next.w + (u0 + u) * next.unit_bytes + at);
        for (int t = 0; t < NT; t++) i[t] = vi_zero();
#pragma GCC unroll 2
        for (int k = 0; k < PLANES; k++) {
            if (k > 0)
                for (int t = 0; t < NT; t++) i[t] = vi_shl(i[t], 8);
#pragma GCC unroll 1
            for (int64_t w = 0; w < words; w++, x += 4 * NT) {
                const vi c = vi_load(codes + w * VBYTES);
#pragma GCC unroll 12
                for (int t = 0; t < NT; t++) i[t] = dot_broadcast(i[t], c, x, t, NT, WIDE);
            }
        }
        const vf s = vf_load(tile->scale + u * LANES), b = vf_load(tile->bias + u * LANES);
        for (int t = 0; t < NT; t++) {
            acc[t] = vf_fma(vf_mul(vf_from_int(i[t]), s), vf_set(scale[u * NT + t]), acc[t]);
            acc[t] = vf_fma(b, vf_set(sum[u * NT + t]), acc[t]);
        }
    }
    for (int t = 0; t < NT; t++) vf_store(y[t], acc[t]);
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
