/* ops/simd/decode.h -- stored weights of any layout as vectors of f32, the same numbers
 * that mox_mat_decode gives. */
#ifndef MOX_OPS_SIMD_DECODE_H
#define MOX_OPS_SIMD_DECODE_H

#include "ops/simd/weights.h"

/* Number i of an array of scales or biases. */
ALWAYS_INLINE float load_scale(const uint8_t *numbers, mox_dtype t, int64_t i)
{
    if (t == MOX_DT_F32) return mox_load_as_f32(numbers, MOX_DT_F32, i);
    uint16_t half;
    memcpy(&half, numbers + 2 * i, 2);
    return t == MOX_DT_F16 ? f16_to_f32(half) : mox_bf16_to_f32(half);
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
            uint8_t bytes[LANES < 8 ? 8 : LANES]; /* codes are unpacked in eights */
            const int64_t inside = LANES < 8 ? col % 8 : 0;
            unpack_codes(w, l->bits, col - inside, (int64_t)sizeof bytes, row_bytes, bytes);
            codes = vi_load_u8_wide(bytes + inside);
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
