/* ops/ref/math.h -- functions of one number that several references share, in
 * double: a reference rounds to f32 once, when it stores. */
#ifndef MOX_OPS_REF_MATH_H
#define MOX_OPS_REF_MATH_H

#include <math.h>

/* Two branches, so that neither exp overflows. */
static inline double mox_ref_sigmoid(double v)
{
    if (v >= 0) return 1 / (1 + exp(-v));
    const double e = exp(v);
    return e / (1 + e);
}

/* v / (1 + e^-v), where -inf gives NaN: a broken number must stay visible. */
static inline double mox_ref_silu(double v) { return v / (1 + exp(-v)); }

static inline float mox_ref_swiglu(float gate, float up)
{
    return (float)(mox_ref_silu((double)gate) * (double)up);
}

#endif
