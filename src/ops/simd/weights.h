/* ops/simd/weights.h -- reading stored weights into vectors.
 *
 * Rows may start at any byte and end at the last byte of a mapping: nothing here
 * reads past the end of a row's codes or scales. */
#ifndef MOX_OPS_SIMD_WEIGHTS_H
#define MOX_OPS_SIMD_WEIGHTS_H

#include "ops/simd/level.h"
#include "tensor/matrix.h"

#include <math.h>

/* Scales (or biases) of the units [first, first + LANES) of a row, where `share` (1 or
 * 2) units share a stored number; units at and beyond n_units give 0. */
ALWAYS_INLINE vf load_units(const uint8_t *row, mox_dtype t, int share, int64_t first, int64_t n_units)
{
    const int64_t size = t == MOX_DT_F32 ? 4 : 2;
    if (share == 1) {
        const int64_t left = n_units - first;
        return load_numbers(row + first * size, t, left < LANES ? left : LANES);
    }
    /* Pairs of units: half as many numbers, each twice. */
    int32_t twice[LANES];
    for (int i = 0; i < LANES; i++) twice[i] = i / 2;
    const int64_t left = (n_units - first + 1) / 2;
    return vf_permute(load_numbers(row + first / 2 * size, t, left < LANES / 2 ? left : LANES / 2), vi_load(twice));
}

/* n codes (a multiple of 8) from column col on, one byte each. */
static inline void unpack_codes(const uint8_t *row, int bits, int64_t col, int64_t n, int64_t row_bytes, uint8_t *out)
{
    const uint64_t mask = (((uint64_t)1 << bits) - 1) * 0x0101010101010101u;
    int64_t at = col * bits / 8;
    for (int64_t i = 0; i < n; i += 8, at += bits) {
        uint64_t word = 0;
        memcpy(&word, row + at, at + 8 <= row_bytes ? 8 : (size_t)(row_bytes - at));
        const uint64_t codes = spread_codes(word, bits, mask);
        memcpy(out + i, &codes, 8);
    }
}

/* The multiplier of an FP8 element. */
static inline float fp8_scale(const mox_mat *m, int64_t row, int64_t col)
{
    const mox_mat_layout *l = &m->layout;
    const int64_t grid_cols = (m->cols + l->block_cols - 1) / l->block_cols;
    return mox_load_as_f32(m->scales, l->scale_type, (m->row0 + row) / l->block_rows * grid_cols + col / l->block_cols);
}

/* LANES elements of an unquantized or FP8 row at column col, all inside the row. */
ALWAYS_INLINE vf load_elements(const uint8_t *row, mox_mat_kind kind, int64_t col)
{
    switch (kind) {
    case MOX_MAT_F32: return vf_load_at(row + 4 * col);
    case MOX_MAT_F16: return vf_load_f16(row + 2 * col);
    case MOX_MAT_BF16: return vf_load_bf16(row + 2 * col);
    default: break;
    }
    /* e4m3: its seven low bits under f32's exponent are the value times 2^-120. */
    const vi code = vi_load_u8_wide(row + col);
    const vi low = vi_shl(vi_and(code, vi_set(0x7F)), 20), sign = vi_shl(vi_and(code, vi_set(0x80)), 24);
    const vf value = vf_mul(vf_bits(low), vf_set(0x1p120f));
    return vf_bits(vi_ones_where_equal(vi_or(vi_bits(value), sign), vi_and(code, vi_set(0x7F)), vi_set(0x7F)));
}

#endif
