/* ops/deltanet.c -- checked entries of the gated delta rule. */
#include "ops/entry.h"

enum { CONV_WIDTH_MAX = 8 };
/* A row of the state costs the whole sequence; sixteen rows share a line of output. */
enum { GRAIN_STATE_ROWS = 16, GRAIN_CHANNELS = 256 };

static mox_status check_value_heads(const mox_check *c, int64_t k_heads, int64_t v_heads)
{
    MOX_TRY(mox_check_size(c, "k_heads", k_heads, 1));
    MOX_TRY(mox_check_size(c, "v_heads", v_heads, 1));
    if (v_heads % k_heads == 0) return MOX_OK;
    return mox_refuse(c, MOX_E_ARG, "%lld value heads cannot share %lld key heads evenly", (long long)v_heads,
                      (long long)k_heads);
}

/* f32 [n, width] without gaps. */
static mox_status check_dense(const mox_check *c, const char *name, const float *p, int64_t n, int64_t width)
{
    return mox_check_rows(c, name, p, n, width, width);
}

mox_status mox_op_gdn_split(const mox_exec *e, const mox_gdn_split_args *a, mox_err *err)
{
    const mox_check c = {"gdn_split", err};
    int64_t keys, values, qkv, qkvz;
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(check_value_heads(&c, a->k_heads, a->v_heads));
    MOX_TRY(mox_check_size(&c, "k_dim", a->k_dim, 1));
    MOX_TRY(mox_check_size(&c, "v_dim", a->v_dim, 1));
    MOX_TRY(mox_check_product(&c, "q", a->k_heads, a->k_dim, &keys));
    MOX_TRY(mox_check_product(&c, "v", a->v_heads, a->v_dim, &values));
    if (!mox_add_i64(keys, keys, &qkv) || !mox_add_i64(qkv, values, &qkv) || !mox_add_i64(qkv, values, &qkvz))
        return mox_refuse(&c, MOX_E_ARG, "the heads are too wide");
    MOX_TRY(check_dense(&c, "qkvz", a->qkvz, a->n, qkvz));
    MOX_TRY(check_dense(&c, "ba", a->ba, a->n, 2 * a->v_heads));
    MOX_TRY(check_dense(&c, "qkv", a->qkv, a->n, qkv));
    MOX_TRY(check_dense(&c, "z", a->z, a->n, values));
    MOX_TRY(check_dense(&c, "b", a->b, a->n, a->v_heads));
    MOX_TRY(check_dense(&c, "a", a->a, a->n, a->v_heads));
    mox_run_gdn_split(e, a, a->n, mox_grain(qkvz));
    return MOX_OK;
}

static mox_status check_width(const mox_check *c, int64_t width)
{
    if (width >= 1 && width <= CONV_WIDTH_MAX) return MOX_OK;
    return mox_refuse(c, MOX_E_ARG, "width is %lld, which is not in 1..%d", (long long)width, CONV_WIDTH_MAX);
}

mox_status mox_op_conv1d_silu(const mox_exec *e, const mox_conv1d_silu_args *a, mox_err *err)
{
    const mox_check c = {"conv1d_silu", err};
    int64_t taps;
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(mox_check_size(&c, "channels", a->channels, 0));
    MOX_TRY(check_width(&c, a->width));
    MOX_TRY(mox_check_product(&c, "weight", a->channels, a->width, &taps));
    MOX_TRY(mox_check_vec(&c, "weight", &a->weight, taps, false));
    MOX_TRY(mox_check_rows(&c, "x", a->x, a->n, a->channels, a->x_stride));
    MOX_TRY(mox_check_rows(&c, "out", a->out, a->n, a->channels, a->out_stride));
    if (a->n == 0) return MOX_OK;
    MOX_TRY(check_dense(&c, "state", a->state, a->width - 1, a->channels));
    mox_run_conv1d_silu(e, a, a->channels, GRAIN_CHANNELS);
    return MOX_OK;
}

mox_status mox_op_conv1d_shift(const mox_exec *e, const mox_conv1d_shift_args *a, mox_err *err)
{
    const mox_check c = {"conv1d_shift", err};
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(mox_check_size(&c, "channels", a->channels, 0));
    MOX_TRY(check_width(&c, a->width));
    MOX_TRY(mox_check_rows(&c, "x", a->x, a->n, a->channels, a->x_stride));
    MOX_TRY(check_dense(&c, "state", a->state, a->width - 1, a->channels));
    mox_run_conv1d_shift(e, a, a->channels, MOX_GRAIN_ELEMENTS);
    return MOX_OK;
}

mox_status mox_op_gdn_qk_norm(const mox_exec *e, const mox_gdn_qk_norm_args *a, mox_err *err)
{
    const mox_check c = {"gdn_qk_norm", err};
    int64_t width;
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(mox_check_size(&c, "heads", a->heads, 1));
    MOX_TRY(mox_check_size(&c, "dim", a->dim, 1));
    MOX_TRY(mox_check_product(&c, "heads", a->heads, a->dim, &width));
    if (!(a->eps >= 0.0f))
        return mox_refuse(&c, MOX_E_ARG, "eps is %g, which is not a number from 0 up", (double)a->eps);
    if (a->mode != MOX_GDN_EPS_SUM && a->mode != MOX_GDN_EPS_MEAN)
        return mox_refuse(&c, MOX_E_ARG, "%d is no mode", (int)a->mode);
    MOX_TRY(mox_check_rows(&c, "q", a->q, a->n, width, a->stride));
    MOX_TRY(mox_check_rows(&c, "k", a->k, a->n, width, a->stride));
    mox_run_gdn_qk_norm(e, a, a->n, mox_grain(width));
    return MOX_OK;
}

mox_status mox_op_gdn_gates(const mox_exec *e, const mox_gdn_gates_args *a, mox_err *err)
{
    const mox_check c = {"gdn_gates", err};
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(mox_check_size(&c, "heads", a->heads, 1));
    MOX_TRY(mox_check_vec(&c, "a_log", &a->a_log, a->heads, false));
    MOX_TRY(mox_check_vec(&c, "dt_bias", &a->dt_bias, a->heads, false));
    MOX_TRY(mox_check_rows(&c, "a", a->a, a->n, a->heads, a->a_stride));
    MOX_TRY(mox_check_rows(&c, "b", a->b, a->n, a->heads, a->b_stride));
    MOX_TRY(check_dense(&c, "g", a->g, a->n, a->heads));
    MOX_TRY(check_dense(&c, "beta", a->beta, a->n, a->heads));
    mox_run_gdn_gates(e, a, a->n, mox_grain(a->heads));
    return MOX_OK;
}

/* What both forms of the recurrence demand; *rows is the number of rows of the state. */
static mox_status check_gdn(const mox_check *c, const mox_gdn_args *a, int64_t *rows)
{
    int64_t keys, state;
    MOX_TRY(mox_check_size(c, "n", a->n, 0));
    MOX_TRY(check_value_heads(c, a->k_heads, a->v_heads));
    MOX_TRY(mox_check_size(c, "k_dim", a->k_dim, 1));
    MOX_TRY(mox_check_size(c, "v_dim", a->v_dim, 1));
    MOX_TRY(mox_check_product(c, "k", a->k_heads, a->k_dim, &keys));
    MOX_TRY(mox_check_product(c, "v", a->v_heads, a->v_dim, rows));
    MOX_TRY(mox_check_product(c, "state", *rows, a->k_dim, &state));
    if (a->n == 0) return MOX_OK;
    MOX_TRY(mox_check_rows(c, "q", a->q, a->n, keys, a->q_stride));
    MOX_TRY(mox_check_rows(c, "k", a->k, a->n, keys, a->k_stride));
    MOX_TRY(mox_check_rows(c, "v", a->v, a->n, *rows, a->v_stride));
    MOX_TRY(check_dense(c, "g", a->g, a->n, a->v_heads));
    MOX_TRY(check_dense(c, "beta", a->beta, a->n, a->v_heads));
    MOX_TRY(mox_check_f32(c, "state", a->state, state));
    return check_dense(c, "out", a->out, a->n, *rows);
}

mox_status mox_op_gdn_recurrent(const mox_exec *e, const mox_gdn_args *a, mox_err *err)
{
    const mox_check c = {"gdn_recurrent", err};
    int64_t rows;
    MOX_TRY(check_gdn(&c, a, &rows));
    if (a->n == 0) return MOX_OK;
    mox_run_gdn_recurrent(e, a, rows, GRAIN_STATE_ROWS);
    return MOX_OK;
}

mox_status mox_op_gdn_chunk(const mox_exec *e, const mox_gdn_args *a, mox_err *err)
{
    const mox_check c = {"gdn_chunk", err};
    int64_t rows;
    MOX_TRY(check_gdn(&c, a, &rows));
    if (a->n == 0) return MOX_OK;
    mox_run_gdn_chunk(e, a, a->v_heads, 1);
    return MOX_OK;
}
