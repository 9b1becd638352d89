/* ops/simd/rope.c -- rotary position embedding, for one level.
 *
 * Sines and cosines are computed once per token and serve all its heads.  An angle is
 * reduced to [-pi/4, pi/4] in double, where the product with pi/2 inside a fused
 * multiply-add is exact, so that large positions lose nothing; what is left is a
 * polynomial in f32.  Angles too large for that, or not finite, go through libm. */
#include "ops/kern.h"
#include "ops/simd/level.h"

#include <assert.h>
#include <math.h>

enum { PAIRS = 128 }; /* that one pass over the heads turns */

/* angle = r + quadrant * pi/2, for |angle| < 2^30. */
ALWAYS_INLINE vf reduce(vf angle, vi *quadrant)
{
    return vf_reduce(angle, 0x1.45f306dc9c883p-1, 0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, quadrant);
}

/* x with its sign turned where bit 1 of n is set. */
ALWAYS_INLINE vf turn_sign(vf x, vi n) { return vf_bits(vi_xor(vi_bits(x), vi_shl(vi_and(n, vi_set(2)), 30))); }

ALWAYS_INLINE void sine_cosine(vf angle, vf *sine, vf *cosine)
{
    vi n;
    const vf r = reduce(angle, &n), z = vf_mul(r, r);
    vf s = vf_fma(z, vf_set(-1.9515295891e-4f), vf_set(8.3321608736e-3f));
    s = vf_fma(z, s, vf_set(-1.6666654611e-1f));
    s = vf_fma(vf_mul(z, r), s, r);
    vf c = vf_fma(z, vf_set(2.443315711809948e-5f), vf_set(-1.388731625493765e-3f));
    c = vf_fma(z, c, vf_set(4.166664568298827e-2f));
    c = vf_fma(vf_mul(z, z), c, vf_fma(z, vf_set(-0.5f), vf_set(1.0f)));
    *sine = turn_sign(vf_choose_odd(s, c, n), n);
    *cosine = turn_sign(vf_choose_odd(c, s, n), vi_add(n, vi_set(1)));
}

/* cosine[j], sine[j] of pair first + j, times mscale, j < n; whole vectors are written. */
static void angles(const mox_rope_args *a, float pos, int64_t first, int64_t n, float *cosine, float *sine)
{
    const vf scale = vf_set(a->mscale), limit = vf_set(0x1p30f);
    for (int64_t j = 0; j < n; j += LANES) {
        const int64_t left = n - j < LANES ? n - j : LANES;
        const vf angle = vf_mul(vf_set(pos), vf_load_n(a->inv_freq + first + j, left));
        vf s, c;
        sine_cosine(angle, &s, &c);
        vf_store(cosine + j, vf_mul(c, scale));
        vf_store(sine + j, vf_mul(s, scale));
        const vf size = vf_max(angle, vf_sub(vf_zero(), angle));
        if (vf_above(limit, size) == (1u << LANES) - 1) continue; /* all below it, and none NaN */
        for (int64_t i = j; i < j + left; i++) {
            const float exact = pos * a->inv_freq[first + i];
            cosine[i] = (float)(cos((double)exact) * (double)a->mscale);
            sine[i] = (float)(sin((double)exact) * (double)a->mscale);
        }
    }
}

ALWAYS_INLINE void turn_halves(float *x0, float *x1, const float *cosine, const float *sine, int64_t n)
{
    const vf v0 = vf_load_n(x0, n), v1 = vf_load_n(x1, n), c = vf_load_n(cosine, n), s = vf_load_n(sine, n);
    vf_store_n(x0, vf_sub(vf_mul(v0, c), vf_mul(v1, s)), n);
    vf_store_n(x1, vf_fma(v1, c, vf_mul(v0, s)), n);
}

/* cosine and sine hold an entry per element here, sine with the sign of its term. */
ALWAYS_INLINE void turn_neighbours(float *x, const float *cosine, const float *sine, int64_t n)
{
    const vf v = vf_load_n(x, n);
    vf_store_n(x, vf_fma(v, vf_load_n(cosine, n), vf_mul(vf_swap_pairs(v), vf_load_n(sine, n))), n);
}

/* [c0 c1 ..] -> [c0 c0 c1 c1 ..] and [s0 s1 ..] -> [-s0 s0 -s1 s1 ..], in place. */
static void double_up(float *cosine, float *sine, int64_t n)
{
    int32_t first[LANES], second[LANES];
    float sign[LANES];
    for (int l = 0; l < LANES; l++) {
        first[l] = l / 2;
        second[l] = (LANES + l) / 2;
        sign[l] = l % 2 ? 1.0f : -1.0f;
    }
    const vi low = vi_load(first), high = vi_load(second);
    for (int64_t j = (n - 1) / LANES * LANES; j >= 0; j -= LANES) { /* from the end: nothing is written before it is read */
        const vf c = vf_load(cosine + j), s = vf_load(sine + j);
        vf_store(cosine + 2 * j, vf_permute(c, low));
        vf_store(cosine + 2 * j + LANES, vf_permute(c, high));
        vf_store(sine + 2 * j, vf_mul(vf_permute(s, low), vf_load(sign)));
        vf_store(sine + 2 * j + LANES, vf_mul(vf_permute(s, high), vf_load(sign)));
    }
}

void MOX_AT(mox_rope)(const mox_rope_args *a, int64_t begin, int64_t end)
{
    assert(a->rotary_dim % 2 == 0);
    const int64_t half = a->rotary_dim / 2;
    _Alignas(64) float cosine[2 * PAIRS], sine[2 * PAIRS];
    for (int64_t t = begin; t < end; t++)
        for (int64_t first = 0; first < half; first += PAIRS) {
            const int64_t n = half - first < PAIRS ? half - first : PAIRS;
            angles(a, (float)a->pos[t * a->pos_stride], first, n, cosine, sine);
            float *x = a->x + t * a->stride;
            if (a->pairing == MOX_ROPE_INTERLEAVED) {
                double_up(cosine, sine, n);
                for (int64_t h = 0; h < a->heads; h++, x += a->head_stride) {
                    int64_t i = 0;
                    for (; i + LANES <= 2 * n; i += LANES) turn_neighbours(x + 2 * first + i, cosine + i, sine + i, LANES);
                    if (i < 2 * n) turn_neighbours(x + 2 * first + i, cosine + i, sine + i, 2 * n - i);
                }
            } else {
                for (int64_t h = 0; h < a->heads; h++, x += a->head_stride) {
                    float *x0 = x + first, *x1 = x0 + half;
                    int64_t i = 0;
                    for (; i + LANES <= n; i += LANES) turn_halves(x0 + i, x1 + i, cosine + i, sine + i, LANES);
                    if (i < n) turn_halves(x0 + i, x1 + i, cosine + i, sine + i, n - i);
                }
            }
        }
}
