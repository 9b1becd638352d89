/* ops/ref/rms.h -- the pieces of a root-mean-square norm that several references
 * share, in double. */
#ifndef MOX_OPS_REF_RMS_H
#define MOX_OPS_REF_RMS_H

#include "tensor/matrix.h"

#include <math.h>

static inline double mox_ref_sum_sq(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

/* 1 / sqrt(mean x^2 + eps) */
static inline double mox_ref_inv_rms(const float *x, int64_t n, float eps)
{
    return 1 / sqrt(mox_ref_sum_sq(x, n) / (double)n + (double)eps);
}

/* weight[i] + offset, or 1 when there is no weight. */
static inline double mox_ref_gain(const mox_vec *weight, float offset, int64_t i)
{
    return weight->type == MOX_DT_NONE ? 1 : (double)mox_vec_at(weight, i) + (double)offset;
}

/* out = x / sqrt(mean x^2 + eps) * gain; out may be x. */
static inline void mox_ref_rms_row(const float *x, int64_t n, const mox_vec *weight, float offset, float eps,
                                   float *out)
{
    const double inv_rms = mox_ref_inv_rms(x, n, eps);
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)((double)x[i] * inv_rms * mox_ref_gain(weight, offset, i));
}

#endif
