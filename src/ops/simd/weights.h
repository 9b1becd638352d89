/* ops/simd/weights.h -- reading stored weights into vectors.
 *
 * Rows may start at any byte and end at the last byte of a mapping: nothing here
 * reads past the end of a row's codes or scales. */
#ifndef MOX_OPS_SIMD_WEIGHTS_H
#define MOX_OPS_SIMD_WEIGHTS_H

#include "ops/simd/level.h"
#include "tensor/matrix.h"

#include <math.h>

/* n <= LANES numbers of type t (BF16, F16 or F32); the rest of the vector is 0. */
ALWAYS_INLINE vf load_numbers(const uint8_t *p, mox_dtype t, int64_t n)
{
    if (n >= LANES) return t == MOX_DT_BF16 ? vf_load_bf16(p) : t == MOX_DT_F16 ? vf_load_f16(p) : vf_load_at(p);
#if MOX_LEVEL == 1
    if (t == MOX_DT_F32) {
        uint8_t bytes[4 * LANES] = {0};
        memcpy(bytes, p, (size_t)n * 4);
        return vf_load_at(bytes);
    }
    __m128i halves;
    if (n == 4) { /* rows of 768 columns end so */
        halves = _mm_loadl_epi64((const void *)p);
    } else {
        uint16_t numbers[8] = {0};
        memcpy(numbers, p, (size_t)n * 2);
        halves = _mm_loadu_si128((const void *)numbers);
    }
    return t == MOX_DT_BF16 ? vf_bits(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)) : _mm256_cvtph_ps(halves);
#else
    const __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (t == MOX_DT_F32) return _mm512_maskz_loadu_ps(mask, p);
    const __m256i halves = _mm256_maskz_loadu_epi16(mask, p);
    if (t == MOX_DT_F16) return _mm512_cvtph_ps(halves);
    return vf_bits(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
#endif
}

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
        const uint64_t codes = _pdep_u64(word, mask);
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
#if MOX_LEVEL == 1
    const vi nan = _mm256_cmpeq_epi32(vi_and(code, vi_set(0x7F)), vi_set(0x7F));
    return vf_bits(_mm256_or_si256(_mm256_or_si256(vi_bits(value), sign), nan));
#else
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(vi_and(code, vi_set(0x7F)), vi_set(0x7F));
    return vf_bits(_mm512_mask_set1_epi32(_mm512_or_si512(vi_bits(value), sign), nan, -1));
#endif
}

#endif
