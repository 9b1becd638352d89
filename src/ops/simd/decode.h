/* ops/simd/decode.h -- stored weights of any layout as vectors of f32, the same numbers
 * that mox_mat_decode gives. */
#ifndef MOX_OPS_SIMD_DECODE_H
#define MOX_OPS_SIMD_DECODE_H

#include "ops/simd/weights.h"

/* LANES codes of 4 bits, one per lane. */
ALWAYS_INLINE vi load_nibbles(const uint8_t *p)
{
#if MOX_LEVEL == 1
    const __m128i v = _mm_cvtsi32_si128((int32_t)mox_load_u32(p));
#else
    const __m128i v = _mm_loadl_epi64((const void *)p);
#endif
    const __m128i mask = _mm_set1_epi8(15);
    const __m128i codes = _mm_unpacklo_epi8(_mm_and_si128(v, mask), _mm_and_si128(_mm_srli_epi16(v, 4), mask));
#if MOX_LEVEL == 1
    return _mm256_cvtepu8_epi32(codes);
#else
    return _mm512_cvtepu8_epi32(codes);
#endif
}

/* Number i of an array of scales or biases. */
ALWAYS_INLINE float load_scale(const uint8_t *numbers, mox_dtype t, int64_t i)
{
    if (t == MOX_DT_F32) return mox_load_as_f32(numbers, MOX_DT_F32, i);
    uint16_t half;
    memcpy(&half, numbers + 2 * i, 2);
    return t == MOX_DT_F16 ? _cvtsh_ss(half) : _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int32_t)((uint32_t)half << 16))));
}

/* W[row, col .. col + LANES), 0 from column cols on; for affine weights col is a multiple
 * of LANES, so that one group holds them all. */
ALWAYS_INLINE vf decode_vector(const mox_mat *m, int64_t row_bytes, int64_t row, int64_t col)
{
    const mox_mat_layout *l = &m->layout;
    const uint8_t *w = m->w + row * row_bytes;
    if (l->kind == MOX_MAT_AFFINE) {
        const int64_t group = row * (m->cols / l->group) + col / l->group;
        vi codes;
        if (l->bits == 4) {
            codes = load_nibbles(w + col / 2);
        } else if (l->bits == 8) {
            codes = vi_load_u8_wide(w + col);
        } else {
            uint8_t bytes[LANES];
            unpack_codes(w, l->bits, col, LANES, row_bytes, bytes);
            codes = vi_load_u8_wide(bytes);
        }
        return vf_fma(vf_from_int(codes), vf_set(load_scale(m->scales, l->scale_type, group)),
                      vf_set(load_scale(m->biases, l->scale_type, group)));
    }
    const bool fp8 = l->kind == MOX_MAT_FP8;
    if (col + LANES <= m->cols && (!fp8 || col / l->block_cols == (col + LANES - 1) / l->block_cols)) {
        const vf v = load_elements(w, l->kind, col);
        return fp8 ? vf_mul(v, vf_set(fp8_scale(m, row, col))) : v;
    }
    float spare[LANES] = {0};
    mox_mat_decode(m, row, col, m->cols - col < LANES ? m->cols - col : LANES, spare);
    return vf_load(spare);
}

#endif
