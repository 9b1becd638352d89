/* ops/simd/rms.h -- the pieces of a root-mean-square norm that several kernels share.
 *
 * Squares are summed in f32.  Rows whose mean square leaves the range where that is
 * as good as double (or is NaN) go to the reference. */
#ifndef MOX_OPS_SIMD_RMS_H
#define MOX_OPS_SIMD_RMS_H

#include "ops/ref/rms.h"
#include "ops/simd/weights.h"

/* Four sums, so that none waits for the other. */
typedef struct square_sum {
    vf part[4];
} square_sum;

ALWAYS_INLINE square_sum square_sum_begin(void) { return (square_sum){{vf_zero(), vf_zero(), vf_zero(), vf_zero()}}; }
ALWAYS_INLINE void square_sum_add(square_sum *s, int part, vf v) { s->part[part] = vf_fma(v, v, s->part[part]); }
ALWAYS_INLINE float square_sum_end(const square_sum *s)
{
    return vf_sum(vf_add(vf_add(s->part[0], s->part[1]), vf_add(s->part[2], s->part[3])));
}

static inline float sum_of_squares(const float *x, int64_t n)
{
    square_sum s = square_sum_begin();
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int j = 0; j < 4; j++) square_sum_add(&s, j, vf_load(x + i + j * LANES));
    for (; i + LANES <= n; i += LANES) square_sum_add(&s, 0, vf_load(x + i));
    if (i < n) square_sum_add(&s, 1, vf_load_n(x + i, n - i));
    return square_sum_end(&s);
}

/* Whether a mean of squares summed in f32 is to be trusted. */
static inline bool rms_in_range(float mean) { return mean > 1e-30f && mean < INFINITY; }

/* Gains [i, i + n), n <= LANES; type is a constant: NONE, F32, BF16 or F16. */
ALWAYS_INLINE vf load_gain(const uint8_t *weight, mox_dtype type, float offset, int64_t i, int64_t n)
{
    if (type == MOX_DT_NONE) return vf_set(1.0f);
    return vf_add(load_numbers(weight + i * (type == MOX_DT_F32 ? 4 : 2), type, n), vf_set(offset));
}

/* Runs CALL(type) for a type that load_gain reads; other types must have been sorted out. */
#define SWITCH_GAIN(type, CALL)                  \
    switch (type) {                              \
    case MOX_DT_NONE: CALL(MOX_DT_NONE); break;  \
    case MOX_DT_F32: CALL(MOX_DT_F32); break;    \
    case MOX_DT_BF16: CALL(MOX_DT_BF16); break;  \
    default: CALL(MOX_DT_F16); break;            \
    }

static inline bool gain_is_common(mox_dtype t)
{
    return t == MOX_DT_NONE || t == MOX_DT_F32 || t == MOX_DT_BF16 || t == MOX_DT_F16;
}

ALWAYS_INLINE void rms_scale_row(mox_dtype type, const float *x, int64_t n, const uint8_t *weight, float offset, float inv_rms,
                                 float *out)
{
    const vf inv = vf_set(inv_rms);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store(out + i, vf_mul(vf_mul(vf_load(x + i), inv), load_gain(weight, type, offset, i, LANES)));
    if (i < n)
        vf_store_n(out + i, vf_mul(vf_mul(vf_load_n(x + i, n - i), inv), load_gain(weight, type, offset, i, n - i)), n - i);
}

/* out = x / sqrt(mean x^2 + eps) * gain, where sum is sum_of_squares(x); out may be x. */
static inline void rms_row(const float *x, float sum, int64_t n, const mox_vec *weight, float offset, float eps, float *out)
{
    const float mean = sum / (float)n + eps;
    if (!rms_in_range(mean) || !gain_is_common(weight->type)) {
        mox_ref_rms_row(x, n, weight, offset, eps, out);
        return;
    }
    const float inv = 1 / sqrtf(mean);
#define CALL(type) rms_scale_row(type, x, n, weight->data, offset, inv, out)
    SWITCH_GAIN(weight->type, CALL)
#undef CALL
}

#endif
