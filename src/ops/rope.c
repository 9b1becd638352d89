/* ops/rope.c -- checked entries of the rotations. */
#include "ops/entry.h"

mox_status mox_op_rope(const mox_exec *e, const mox_rope_args *a, mox_err *err)
{
    const mox_check c = {"rope", err};
    int64_t n_pos = 0;
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(mox_check_size(&c, "heads", a->heads, 0));
    MOX_TRY(mox_check_size(&c, "rotary_dim", a->rotary_dim, 0));
    MOX_TRY(mox_check_size(&c, "pos_stride", a->pos_stride, 0));
    if (a->rotary_dim % 2 != 0)
        return mox_refuse(&c, MOX_E_ARG, "rotary_dim is %lld, which is odd", (long long)a->rotary_dim);
    if (a->pairing != MOX_ROPE_HALF && a->pairing != MOX_ROPE_INTERLEAVED)
        return mox_refuse(&c, MOX_E_ARG, "%d is no pairing", (int)a->pairing);
    MOX_TRY(mox_check_heads(&c, "x", a->x, a->n, a->heads, a->rotary_dim, a->stride, a->head_stride));
    if (a->n == 0) return MOX_OK;
    MOX_TRY(mox_check_f32(&c, "inv_freq", a->inv_freq, a->rotary_dim / 2));
    MOX_TRY(mox_check_product(&c, "pos", a->n - 1, a->pos_stride, &n_pos));
    MOX_TRY(mox_check_product(&c, "pos", n_pos, (int64_t)sizeof *a->pos, &n_pos));
    MOX_TRY(mox_check_i32(&c, "pos", a->pos, 1));
    for (int64_t t = 0; t < a->n; t++)
        if (a->pos[t * a->pos_stride] < 0)
            return mox_refuse(&c, MOX_E_ARG, "the position of token %lld is %d", (long long)t,
                              a->pos[t * a->pos_stride]);
    mox_run_rope(e, a, a->n, mox_grain(a->heads * a->rotary_dim));
    return MOX_OK;
}

mox_status mox_op_qk_norm_rope(const mox_exec *e, const mox_qk_norm_rope_args *a, mox_err *err)
{
    const mox_check c = {"qk_norm_rope", err};
    int64_t rows, n;
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(mox_check_size(&c, "heads", a->heads, 1));
    MOX_TRY(mox_check_size(&c, "dim", a->dim, 1));
    MOX_TRY(mox_check_product(&c, "rows", a->n, a->heads, &rows));
    MOX_TRY(mox_check_product(&c, "in", rows, a->dim, &n));
    MOX_TRY(mox_check_f32(&c, "in", a->in, n));
    MOX_TRY(mox_check_f32(&c, "out", a->out, n));
    if (n > 0 && a->in == a->out) return mox_refuse(&c, MOX_E_ARG, "in and out are one buffer");
    if (a->mode < MOX_QK_COPY || a->mode > MOX_QK_ROPE_INTERLEAVED)
        return mox_refuse(&c, MOX_E_ARG, "%d is no mode", (int)a->mode);
    if (a->mode == MOX_QK_NORM_ROPE) {
        MOX_TRY(mox_check_vec(&c, "weight", &a->weight, a->dim, true));
        if (!(a->eps >= 0.0f))
            return mox_refuse(&c, MOX_E_ARG, "eps is %g, which is not a number from 0 up", (double)a->eps);
    }
    if (a->mode != MOX_QK_COPY) {
        int64_t end, table;
        if (a->dim % 2 != 0) return mox_refuse(&c, MOX_E_ARG, "dim is %lld, which is odd", (long long)a->dim);
        MOX_TRY(mox_check_size(&c, "pos_offset", a->pos_offset, 0));
        if (!mox_add_i64(a->pos_offset, a->n, &end) || end > a->n_positions)
            return mox_refuse(&c, MOX_E_ARG,
                              "%lld tokens from position %lld on, but the tables have %lld positions",
                              (long long)a->n, (long long)a->pos_offset, (long long)a->n_positions);
        MOX_TRY(mox_check_product(&c, "cos", a->n_positions, a->dim / 2, &table));
        MOX_TRY(mox_check_f32(&c, "cos", a->cos, table));
        MOX_TRY(mox_check_f32(&c, "sin", a->sin, table));
    }
    mox_run_qk_norm_rope(e, a, rows, mox_grain(a->dim));
    return MOX_OK;
}
