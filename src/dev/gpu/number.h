/* dev/gpu/number.h -- numbers as files and caches store them, and functions of one number.
 *
 * Stored numbers are read at any byte address.  Conversions are exact; bits that have no
 * instruction on some target are moved by hand, the same way on all. */
#ifndef MOX_DEV_GPU_NUMBER_H
#define MOX_DEV_GPU_NUMBER_H

#include "dev/gpu/params.h"

GPU_FN float bf16_to_f32(uint32_t bits) { return gpu_bits_f32(bits << 16); }

/* OCP e4m3fn: no infinities, 0x7F and 0xFF are NaN. */
GPU_FN float e4m3_to_f32(uint32_t byte)
{
    const uint32_t sign = (byte & 0x80u) << 24, magnitude = byte & 0x7Fu;
    if (magnitude == 0x7Fu) return gpu_bits_f32(0x7FC00000u);
    if (magnitude < 8u) { /* zero and subnormals: steps of 2^-9 */
        const float v = (float)magnitude * 0.001953125f;
        return sign != 0u ? -v : v;
    }
    return gpu_bits_f32(sign | (magnitude + (120u << 3)) << 20);
}

/* 2^(byte - 127); 255 is NaN, and 0 is a subnormal of f32. */
GPU_FN float e8m0_to_f32(uint32_t byte)
{
    if (byte == 255u) return gpu_bits_f32(0x7FC00000u);
    return gpu_bits_f32(byte == 0u ? 0x00400000u : byte << 23);
}

/* Number i of an array of a stored format. */
GPU_FN float stored_number(const GPU_GLOBAL(u8) *data, int32_t type, int64_t i)
{
    if (type == MOX_GPU_BF16) return bf16_to_f32(gpu_bytes_u16(data, 2 * i));
    if (type == MOX_GPU_F16) return gpu_f16_to_f32(gpu_bytes_u16(data, 2 * i));
    if (type == MOX_GPU_F32) return gpu_bits_f32(gpu_bytes_u32(data, 4 * i));
    return e8m0_to_f32(gpu_bytes_u8(data, i));
}

/* weight[i] + offset; without a weight the gain is 1. */
GPU_FN float gain_at(mox_gpu_vec weight, float offset, int64_t i)
{
    if (weight.type == MOX_GPU_NONE) return 1.0f;
    return stored_number(weight.data, (int32_t)weight.type, i) + offset;
}

/* Gains first, first + step ... of n elements, at most 8 of them: gain[j] for those that are there.  The type is looked
 * at once, as no load may wait for a branch that another one waits for. */
enum { GAINS_MOST = 8 };
GPU_FN void load_gains(mox_gpu_vec weight, float offset, int64_t first, int64_t step, int64_t n, GPU_PRIVATE(f32) *gain)
{
    uint32_t bits[GAINS_MOST];
    GPU_UNROLL
    for (int32_t j = 0; j < GAINS_MOST; j++) {
        bits[j] = 0u;
        gain[j] = 1.0f;
    }
    if (weight.type == MOX_GPU_NONE) return;
    if (weight.type == MOX_GPU_F32) {
        GPU_UNROLL
        for (int32_t j = 0; j < GAINS_MOST; j++)
            if (first + j * step < n) bits[j] = gpu_bytes_u32(weight.data, 4 * (first + j * step));
    } else {
        GPU_UNROLL
        for (int32_t j = 0; j < GAINS_MOST; j++)
            if (first + j * step < n) bits[j] = gpu_bytes_u16(weight.data, 2 * (first + j * step));
    }
    GPU_UNROLL
    for (int32_t j = 0; j < GAINS_MOST; j++) {
        const float half_bits = weight.type == MOX_GPU_BF16 ? bf16_to_f32(bits[j]) : gpu_f16_to_f32(bits[j] & 0xFFFFu);
        gain[j] = (weight.type == MOX_GPU_F32 ? gpu_bits_f32(bits[j]) : half_bits) + offset;
    }
}

/* Gains first ... first + 7, a multiple of 8, of a vector at a multiple of 16 bytes: its bytes, which are asked for long
 * before they are numbers. */
typedef struct eight_gains {
    gpu_quad low, high;
} eight_gains;

GPU_FN eight_gains load_eight_gains(mox_gpu_vec weight, int64_t first)
{
    eight_gains g = {{{0u, 0u, 0u, 0u}}, {{0u, 0u, 0u, 0u}}};
    if (weight.type == MOX_GPU_F32) {
        gpu_bytes_quad(weight.data, 4 * first, &g.low);
        gpu_bytes_quad(weight.data, 4 * first + 16, &g.high);
    } else if (weight.type != MOX_GPU_NONE) {
        gpu_bytes_quad(weight.data, 2 * first, &g.low);
    }
    return g;
}

/* v[i] times gain i, i < 8; types are told apart once, not per number. */
GPU_FN void times_eight_gains(eight_gains g, mox_gpu_vec weight, float offset, GPU_PRIVATE(f32) *v)
{
    if (weight.type == MOX_GPU_BF16) {
        GPU_UNROLL
        for (int32_t i = 0; i < 8; i++) v[i] *= bf16_to_f32(g.low.w[i / 2] >> (i % 2 * 16)) + offset;
    } else if (weight.type == MOX_GPU_F16) {
        GPU_UNROLL
        for (int32_t i = 0; i < 8; i++) v[i] *= gpu_f16_to_f32(g.low.w[i / 2] >> (i % 2 * 16) & 0xFFFFu) + offset;
    } else if (weight.type == MOX_GPU_F32) {
        GPU_UNROLL
        for (int32_t i = 0; i < 8; i++) v[i] *= gpu_bits_f32(i < 4 ? g.low.w[i % 4] : g.high.w[i % 4]) + offset;
    }
}

/* ---- functions ---- */

/* Near 1 the difference to 1 is what is computed, so that even the last bit is right there:
 * routers compare these numbers. */
GPU_FN float sigmoid(float v)
{
    const float e = gpu_exp(-gpu_abs(v)), small = e / (1.0f + e);
    return v >= 0.0f ? 1.0f - small : small;
}

/* -inf gives NaN: a broken number stays visible. */
GPU_FN float silu(float v) { return v / (1.0f + gpu_exp(-v)); }

/* ln(1 + x), x >= 0: the rounding of 1 + x is divided out again. */
GPU_FN float log1p_of(float x)
{
    const float u = 1.0f + x;
    return u == 1.0f ? x : gpu_log(u) * (x / (u - 1.0f));
}

/* ln(1 + e^x) without overflow above or loss below. */
GPU_FN float softplus(float x) { return (x > 0.0f ? x : 0.0f) + log1p_of(gpu_exp(-gpu_abs(x))); }

GPU_FN int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
GPU_FN int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
