/* ops/ref/norm.c -- reference kernels of the norms: sums and products in double,
 * one rounding at the end. */
#include "ops/kern.h"

#include "ops/ref/math.h"
#include "ops/ref/rms.h"

#include <assert.h>

void mox_sum_sq_ref(const mox_sum_sq_args *a, int64_t begin, int64_t end)
{
    if (begin < end) a->out[0] = (float)mox_ref_sum_sq(a->x, a->n);
}

void mox_rms_apply_ref(const mox_rms_apply_args *a, int64_t begin, int64_t end)
{
    const double inv_rms = 1.0 / sqrt((double)a->sum_sq[0] / (double)a->n + (double)a->eps);
    for (int64_t i = begin; i < end; i++)
        a->out[i] = (float)((double)a->x[i] * inv_rms * mox_ref_gain(&a->weight, a->offset, i));
}

void mox_rms_norm_ref(const mox_rms_norm_args *a, int64_t begin, int64_t end)
{
    assert(a->dim > 0 && a->heads > 0);
    for (int64_t row = begin; row < end; row++) {
        const int64_t t = row / a->heads, h = row % a->heads;
        const float *x = a->x + t * a->x_stride + h * a->x_head_stride;
        float *out = a->out + t * a->out_stride + h * a->out_head_stride;
        mox_ref_rms_row(x, a->dim, &a->weight, a->offset, a->eps, out);
    }
}

void mox_residual_norm_ref(const mox_residual_norm_args *a, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++) {
        float *res = a->res + row * a->dim;
        /* Both in f32: these are the bytes of mox_op_add and mox_op_scale_add. */
        for (int64_t i = row * a->dim; i < (row + 1) * a->dim; i++)
            a->res[i] = a->scale ? a->a[i] + a->b[i] * a->scale[i % a->scale_len] : a->a[i] + a->b[i];
        mox_ref_rms_row(res, a->dim, &a->weight, a->offset, a->eps, a->norm + row * a->dim);
    }
}

void mox_gated_rms_norm_ref(const mox_gated_rms_norm_args *a, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++) {
        const float *x = a->x + row * a->dim, *z = a->z + row * a->dim;
        const double inv_rms = mox_ref_inv_rms(x, a->dim, a->eps);
        float *out = a->out + row * a->dim;
        for (int64_t i = 0; i < a->dim; i++)
            out[i] = (float)((double)x[i] * inv_rms * mox_ref_gain(&a->weight, 0.0f, i) *
                             mox_ref_silu((double)z[i]));
    }
}
