/* ops/simd/level.h -- the vector operations that the kernels are written in, for the
 * level that this object is compiled for.
 *
 * A level is a set of instructions of one processor family.  The folder of the family
 * gives the types vi and vf (VBYTES bytes as whole numbers and as LANES floats),
 * the functions on them and what a level prefers (level.h there):
 *   CHAINS        sums that wait for nobody and stay in registers beside their operands
 *   ROW_BLOCK     rows of 4-bit weights that one token meets at a time in the products of mla.c, 2 or 4
 *   ROWS_OF_TWO   short rows of 4-bit weights that two tokens meet at a time, 1, 2 or 4
 *   ROWS_OF_MORE  rows of 4-bit weights that several tokens meet at a time otherwise, 1 or 2
 *   FEW_WHOLE     tokens that dot products take when activations are whole numbers: for more, tiles are
 *                 worth filling; FEW_MAX (acts.h) at most, and with mox_kern.by_rows and 4 bits
 *   BLOCK_MAX     tokens that meet LANES rows at a time, 4 or 12
 *   SQUARES       whether squares of bytes are multiplied at a time (square.h), and so whole numbers of several tokens;
 *                 the family then gives what x86/squares.h has
 *   DOT_ANY       vi_dot takes all unsigned bytes, not only those below 128
 *   DOT_ADDS      vi_dot adds to its sum in the same instruction, so that rows had better take turns (rows.h)
 *   SHARE, KCOLS  a vector has KCOLS columns of each of SHARE queries side by side (online.h),
 *   DOT_KEYS      and meets this many keys at a time, 2 or 4
 * What follows from those is here.  Kernels are static functions of one source, compiled
 * once per level; MOX_AT(name) gives the exported ones their suffix. */
#ifndef MOX_OPS_SIMD_LEVEL_H
#define MOX_OPS_SIMD_LEVEL_H

#if defined(__x86_64__)
#include "ops/x86/level.h"
#else
#include "ops/arm/level.h"
#endif

/* A square of LANES x LANES words of 32 bits: fours of rows within their quads of lanes, then
 * the quads. */
ALWAYS_INLINE void transpose(vi r[LANES])
{
    for (int g = 0; g < LANES; g += 4) {
        vf x[4] = {vf_bits(r[g]), vf_bits(r[g + 1]), vf_bits(r[g + 2]), vf_bits(r[g + 3])};
        vf_transpose4(x);
        for (int k = 0; k < 4; k++) r[g + k] = vi_bits(x[k]);
    }
    for (int k = 0; k < 4; k++) {
        vi x[LANES / 4];
        for (int g = 0; g < LANES / 4; g++) x[g] = r[4 * g + k];
        vi_transpose_quads(x);
        for (int g = 0; g < LANES / 4; g++) r[4 * g + k] = x[g];
    }
}

/* The f16 number at p in every lane. */
ALWAYS_INLINE vf vf_set_f16(const void *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return vf_set(f16_to_f32(half));
}

/* e^x to 2 ulp for |x| <= 87, anything beyond; NaN stays NaN. */
ALWAYS_INLINE vf vf_exp_near(vf x)
{
    const vf n = vf_round(vf_mul(x, vf_set(1.44269504f)));
    vf r = vf_fma(n, vf_set(-0.693359375f), x);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_set(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    p = vf_fma(vf_mul(p, r), r, vf_add(r, vf_set(1.0f)));
    return vf_scale2(p, n);
}

/* The same, below -87 clamped, above 89 infinite. */
ALWAYS_INLINE vf vf_exp(vf x)
{
    return vf_exp_near(vf_max(vf_set(-87.0f), vf_min(vf_set(89.0f), x))); /* operand order keeps NaN */
}

ALWAYS_INLINE vf vf_sigmoid(vf x)
{
    return vf_div(vf_set(1.0f), vf_add(vf_set(1.0f), vf_exp(vf_sub(vf_zero(), x))));
}

/* x / (1 + e^-x): a division by infinity far below, and NaN for -infinity, as the references have it. */
ALWAYS_INLINE vf vf_silu(vf x)
{
    return vf_div(x, vf_add(vf_set(1.0f), vf_exp(vf_sub(vf_zero(), x))));
}

#endif
