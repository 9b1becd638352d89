/* ops/pointwise.h -- element by element. */
#ifndef MOX_OPS_POINTWISE_H
#define MOX_OPS_POINTWISE_H

#include "ops/exec.h"

/* out[r, i] = silu(gate[r, i]) * up[r, i],  silu(g) = g / (1 + e^-g).  Strides let
 * gate and up be the two halves of one buffer.  out may be gate or up.  NaN and
 * infinities are kept, never hidden.  Unit: a row.  Class P. */
typedef struct mox_swiglu_args {
    const float *gate, *up;
    float *out;
    int64_t rows, dim;
    int64_t gate_stride, up_stride, out_stride;
} mox_swiglu_args;
mox_status mox_op_swiglu(const mox_exec *e, const mox_swiglu_args *a, mox_err *err);

/* x[i] *= sigmoid(gate[i]), i < n, in place.  Unit: an element.  Class P. */
typedef struct mox_sigmoid_gate_args {
    float *x;
    const float *gate;
    int64_t n;
} mox_sigmoid_gate_args;
mox_status mox_op_sigmoid_gate(const mox_exec *e, const mox_sigmoid_gate_args *a, mox_err *err);

/* out[i] = a[i] + b[i]; out may be a or b.  Unit: an element.  Class E. */
typedef struct mox_add_args {
    const float *a, *b;
    float *out;
    int64_t n;
} mox_add_args;
mox_status mox_op_add(const mox_exec *e, const mox_add_args *a, mox_err *err);

/* out[i] = a[i] + b[i] * scale[i % scale_len]; out may be a or b.  A layer scale.
 * Unit: an element.  Class P. */
typedef struct mox_scale_add_args {
    const float *a, *b, *scale;
    float *out;
    int64_t n, scale_len;
} mox_scale_add_args;
mox_status mox_op_scale_add(const mox_exec *e, const mox_scale_add_args *a, mox_err *err);

/* dst[i] += s * src[i].  Unit: an element.  Class P. */
typedef struct mox_scaled_add_args {
    float *dst;
    const float *src;
    float s;
    int64_t n;
} mox_scaled_add_args;
mox_status mox_op_scaled_add(const mox_exec *e, const mox_scaled_add_args *a, mox_err *err);

/* dst[r, c] = src[r, c] for rows x cols of two strided buffers.  Unit: a row.  Class E. */
typedef struct mox_copy_slice_args {
    const float *src;
    float *dst;
    int64_t rows, cols, src_stride, dst_stride;
} mox_copy_slice_args;
mox_status mox_op_copy_slice(const mox_exec *e, const mox_copy_slice_args *a, mox_err *err);

/* bf16 <-> f32, n elements at any address.  To bf16 rounds to nearest even and
 * keeps NaN.  Unit: an element.  Class E. */
typedef struct mox_bf16_to_f32_args {
    const void *src;
    float *dst;
    int64_t n;
} mox_bf16_to_f32_args;
mox_status mox_op_bf16_to_f32(const mox_exec *e, const mox_bf16_to_f32_args *a, mox_err *err);
typedef struct mox_f32_to_bf16_args {
    const float *src;
    void *dst;
    int64_t n;
} mox_f32_to_bf16_args;
mox_status mox_op_f32_to_bf16(const mox_exec *e, const mox_f32_to_bf16_args *a, mox_err *err);

#endif
