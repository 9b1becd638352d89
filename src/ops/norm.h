/* ops/norm.h -- root-mean-square norms.
 *
 * gain(i) = weight[i] + offset, read from the file's own type.  offset is 1 for
 * checkpoints that store gains minus one.  A weight of type NONE is a gain of 1.
 * dim = 0 is MOX_E_ARG.  Sums are R64. */
#ifndef MOX_OPS_NORM_H
#define MOX_OPS_NORM_H

#include "ops/exec.h"

/* out[0] = sum x[i]^2, i < n.  One unit.  Class D. */
typedef struct mox_sum_sq_args {
    const float *x;
    float *out;
    int64_t n;
} mox_sum_sq_args;
mox_status mox_op_sum_sq(const mox_exec *e, const mox_sum_sq_args *a, mox_err *err);

/* out[i] = x[i] / sqrt(sum_sq[0] / n + eps) * gain(i); out may be x.  Unit: an
 * element.  Class P. */
typedef struct mox_rms_apply_args {
    const float *x, *sum_sq;
    float *out;
    int64_t n;
    mox_vec weight;
    float offset, eps;
} mox_rms_apply_args;
mox_status mox_op_rms_apply(const mox_exec *e, const mox_rms_apply_args *a, mox_err *err);

/* Every (token, head) row of dim elements on its own:
 *   out = x / sqrt(mean x^2 + eps) * gain
 * x and out [n, heads, dim] with strides; heads = 1 for a block norm; out may be
 * x with equal strides.  Unit: a (token, head) row.  Class P. */
typedef struct mox_rms_norm_args {
    const float *x;
    float *out;
    int64_t n, heads, dim;
    int64_t x_stride, x_head_stride, out_stride, out_head_stride;
    mox_vec weight; /* n == dim */
    float offset, eps;
} mox_rms_norm_args;
mox_status mox_op_rms_norm(const mox_exec *e, const mox_rms_norm_args *a, mox_err *err);

/* res = a + b * scale (scale[i % scale_len], NULL = 1), then norm = rms_norm(res).
 * [rows, dim] contiguous; res may be a or b.  Unit: a row.  res: B with mox_op_add
 * or mox_op_scale_add; norm: class P. */
typedef struct mox_residual_norm_args {
    const float *a, *b, *scale;
    int64_t scale_len;
    float *res, *norm;
    int64_t rows, dim;
    mox_vec weight;
    float offset, eps;
} mox_residual_norm_args;
mox_status mox_op_residual_norm(const mox_exec *e, const mox_residual_norm_args *a, mox_err *err);

/* out = x / sqrt(mean x^2 + eps) * weight * silu(z), rows of dim elements; the
 * weight is shared by all rows and has no offset.  [rows, dim] contiguous; out may
 * be x.  Unit: a row.  Class P. */
typedef struct mox_gated_rms_norm_args {
    const float *x, *z;
    float *out;
    int64_t rows, dim;
    mox_vec weight;
    float eps;
} mox_gated_rms_norm_args;
mox_status mox_op_gated_rms_norm(const mox_exec *e, const mox_gated_rms_norm_args *a, mox_err *err);

#endif
