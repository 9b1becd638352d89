/* ops/norm.c -- checked entries of the norms. */
#include "ops/entry.h"

static mox_status check_eps(const mox_check *c, float eps)
{
    if (eps >= 0.0f) return MOX_OK; /* NaN is not */
    return mox_refuse(c, MOX_E_ARG, "eps is %g, which is not a number from 0 up", (double)eps);
}

mox_status mox_op_sum_sq(const mox_exec *e, const mox_sum_sq_args *a, mox_err *err)
{
    const mox_check c = {"sum_sq", err};
    MOX_TRY(mox_check_size(&c, "n", a->n, 1));
    MOX_TRY(mox_check_f32(&c, "x", a->x, a->n));
    MOX_TRY(mox_check_f32(&c, "out", a->out, 1));
    mox_run_sum_sq(e, a, 1, 1);
    return MOX_OK;
}

mox_status mox_op_rms_apply(const mox_exec *e, const mox_rms_apply_args *a, mox_err *err)
{
    const mox_check c = {"rms_apply", err};
    MOX_TRY(mox_check_size(&c, "n", a->n, 1));
    MOX_TRY(check_eps(&c, a->eps));
    MOX_TRY(mox_check_f32(&c, "x", a->x, a->n));
    MOX_TRY(mox_check_f32(&c, "sum_sq", a->sum_sq, 1));
    MOX_TRY(mox_check_f32(&c, "out", a->out, a->n));
    MOX_TRY(mox_check_vec(&c, "weight", &a->weight, a->n, true));
    mox_run_rms_apply(e, a, a->n, MOX_GRAIN_ELEMENTS);
    return MOX_OK;
}

mox_status mox_op_rms_norm(const mox_exec *e, const mox_rms_norm_args *a, mox_err *err)
{
    const mox_check c = {"rms_norm", err};
    int64_t rows;
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(mox_check_size(&c, "heads", a->heads, 1));
    MOX_TRY(mox_check_size(&c, "dim", a->dim, 1));
    MOX_TRY(check_eps(&c, a->eps));
    MOX_TRY(mox_check_product(&c, "rows", a->n, a->heads, &rows));
    MOX_TRY(mox_check_heads(&c, "x", a->x, a->n, a->heads, a->dim, a->x_stride, a->x_head_stride));
    MOX_TRY(mox_check_heads(&c, "out", a->out, a->n, a->heads, a->dim, a->out_stride, a->out_head_stride));
    MOX_TRY(mox_check_vec(&c, "weight", &a->weight, a->dim, true));
    const bool same_steps = (a->n <= 1 || a->x_stride == a->out_stride) &&
                            (a->heads <= 1 || a->x_head_stride == a->out_head_stride);
    if (rows > 0 && a->out == a->x && !same_steps)
        return mox_refuse(&c, MOX_E_ARG, "out is x with other strides; in place needs the same ones");
    mox_run_rms_norm(e, a, rows, mox_grain(a->dim));
    return MOX_OK;
}

mox_status mox_op_residual_norm(const mox_exec *e, const mox_residual_norm_args *a, mox_err *err)
{
    const mox_check c = {"residual_norm", err};
    int64_t n;
    MOX_TRY(mox_check_size(&c, "rows", a->rows, 0));
    MOX_TRY(mox_check_size(&c, "dim", a->dim, 1));
    MOX_TRY(check_eps(&c, a->eps));
    MOX_TRY(mox_check_product(&c, "rows", a->rows, a->dim, &n));
    MOX_TRY(mox_check_f32(&c, "a", a->a, n));
    MOX_TRY(mox_check_f32(&c, "b", a->b, n));
    MOX_TRY(mox_check_f32(&c, "res", a->res, n));
    MOX_TRY(mox_check_f32(&c, "norm", a->norm, n));
    if (a->scale) {
        MOX_TRY(mox_check_size(&c, "scale_len", a->scale_len, 1));
        MOX_TRY(mox_check_f32(&c, "scale", a->scale, a->scale_len));
    }
    MOX_TRY(mox_check_vec(&c, "weight", &a->weight, a->dim, true));
    if (n > 0 && a->norm == a->res) return mox_refuse(&c, MOX_E_ARG, "norm and res are one buffer");
    mox_run_residual_norm(e, a, a->rows, mox_grain(a->dim));
    return MOX_OK;
}

mox_status mox_op_gated_rms_norm(const mox_exec *e, const mox_gated_rms_norm_args *a, mox_err *err)
{
    const mox_check c = {"gated_rms_norm", err};
    int64_t n;
    MOX_TRY(mox_check_size(&c, "rows", a->rows, 0));
    MOX_TRY(mox_check_size(&c, "dim", a->dim, 1));
    MOX_TRY(check_eps(&c, a->eps));
    MOX_TRY(mox_check_product(&c, "rows", a->rows, a->dim, &n));
    MOX_TRY(mox_check_f32(&c, "x", a->x, n));
    MOX_TRY(mox_check_f32(&c, "z", a->z, n));
    MOX_TRY(mox_check_f32(&c, "out", a->out, n));
    MOX_TRY(mox_check_vec(&c, "weight", &a->weight, a->dim, true));
    mox_run_gated_rms_norm(e, a, a->rows, mox_grain(a->dim));
    return MOX_OK;
}
