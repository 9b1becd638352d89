/* ops/pointwise.c -- checked entries of element-wise operations. */
#include "ops/entry.h"

/* Rows that one thread takes at a time. */
static int64_t rows_grain(int64_t dim) { return mox_max_i64(1, MOX_GRAIN_ELEMENTS / mox_max_i64(dim, 1)); }

mox_status mox_op_swiglu(const mox_exec *e, const mox_swiglu_args *a, mox_err *err)
{
    const mox_check c = {"swiglu", err};
    MOX_TRY(mox_check_rows(&c, "gate", a->gate, a->rows, a->dim, a->gate_stride));
    MOX_TRY(mox_check_rows(&c, "up", a->up, a->rows, a->dim, a->up_stride));
    MOX_TRY(mox_check_rows(&c, "out", a->out, a->rows, a->dim, a->out_stride));
    if (a->dim > 0) mox_run_swiglu(e, a, a->rows, rows_grain(a->dim));
    return MOX_OK;
}

mox_status mox_op_sigmoid_gate(const mox_exec *e, const mox_sigmoid_gate_args *a, mox_err *err)
{
    const mox_check c = {"sigmoid_gate", err};
    MOX_TRY(mox_check_f32(&c, "x", a->x, a->n));
    MOX_TRY(mox_check_f32(&c, "gate", a->gate, a->n));
    mox_run_sigmoid_gate(e, a, a->n, MOX_GRAIN_ELEMENTS);
    return MOX_OK;
}

mox_status mox_op_add(const mox_exec *e, const mox_add_args *a, mox_err *err)
{
    const mox_check c = {"add", err};
    MOX_TRY(mox_check_f32(&c, "a", a->a, a->n));
    MOX_TRY(mox_check_f32(&c, "b", a->b, a->n));
    MOX_TRY(mox_check_f32(&c, "out", a->out, a->n));
    mox_run_add(e, a, a->n, MOX_GRAIN_ELEMENTS);
    return MOX_OK;
}

mox_status mox_op_scale_add(const mox_exec *e, const mox_scale_add_args *a, mox_err *err)
{
    const mox_check c = {"scale_add", err};
    MOX_TRY(mox_check_f32(&c, "a", a->a, a->n));
    MOX_TRY(mox_check_f32(&c, "b", a->b, a->n));
    MOX_TRY(mox_check_f32(&c, "out", a->out, a->n));
    MOX_TRY(mox_check_size(&c, "scale_len", a->scale_len, a->n > 0 ? 1 : 0));
    MOX_TRY(mox_check_f32(&c, "scale", a->scale, a->scale_len));
    mox_run_scale_add(e, a, a->n, MOX_GRAIN_ELEMENTS);
    return MOX_OK;
}

mox_status mox_op_scaled_add(const mox_exec *e, const mox_scaled_add_args *a, mox_err *err)
{
    const mox_check c = {"scaled_add", err};
    MOX_TRY(mox_check_f32(&c, "dst", a->dst, a->n));
    MOX_TRY(mox_check_f32(&c, "src", a->src, a->n));
    mox_run_scaled_add(e, a, a->n, MOX_GRAIN_ELEMENTS);
    return MOX_OK;
}

mox_status mox_op_copy_slice(const mox_exec *e, const mox_copy_slice_args *a, mox_err *err)
{
    const mox_check c = {"copy_slice", err};
    MOX_TRY(mox_check_rows(&c, "src", a->src, a->rows, a->cols, a->src_stride));
    MOX_TRY(mox_check_rows(&c, "dst", a->dst, a->rows, a->cols, a->dst_stride));
    if (a->cols > 0) mox_run_copy_slice(e, a, a->rows, rows_grain(a->cols));
    return MOX_OK;
}

mox_status mox_op_bf16_to_f32(const mox_exec *e, const mox_bf16_to_f32_args *a, mox_err *err)
{
    const mox_check c = {"bf16_to_f32", err};
    MOX_TRY(mox_check_array(&c, "src", a->src, a->n, 2));
    MOX_TRY(mox_check_f32(&c, "dst", a->dst, a->n));
    mox_run_bf16_to_f32(e, a, a->n, MOX_GRAIN_ELEMENTS);
    return MOX_OK;
}

mox_status mox_op_f32_to_bf16(const mox_exec *e, const mox_f32_to_bf16_args *a, mox_err *err)
{
    const mox_check c = {"f32_to_bf16", err};
    MOX_TRY(mox_check_f32(&c, "src", a->src, a->n));
    MOX_TRY(mox_check_array(&c, "dst", a->dst, a->n, 2));
    mox_run_f32_to_bf16(e, a, a->n, MOX_GRAIN_ELEMENTS);
    return MOX_OK;
}
