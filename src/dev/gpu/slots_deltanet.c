/* dev/gpu/slots_deltanet.c -- slots of the gated delta rule.  See device.h. */
#include "dev/gpu/device.h"

enum { THREADS = 256, GDN_WAVES = 4 };

/* Part [from, from + dim) of every group of src, side by side to dst. */
static void regroup(mox_dev *d, const mox_gdn_split_args *a, const float *src, int64_t group, int64_t from, int64_t dim, float *dst,
                    int64_t dst_stride)
{
    MOX_GPU_LAUNCH(d, copy, mox_ceil_div(a->k_heads * dim, THREADS), a->n, 1, .src = src + from, .dst = dst, .n = a->n,
                   .heads = a->k_heads, .dim = dim, .src_stride = a->k_heads * group, .src_head_stride = group, .dst_stride = dst_stride,
                   .dst_head_stride = dim);
}

static mox_status slot_gdn_split(mox_dev *d, const mox_gdn_split_args *a, mox_err *err)
{
    (void)err;
    const int64_t key = a->k_heads * a->k_dim, value = a->v_heads * a->v_dim, r = a->v_heads / a->k_heads, own = r * a->v_dim;
    const int64_t group = 2 * a->k_dim + 2 * own, channels = 2 * key + value;
    regroup(d, a, a->qkvz, group, 0, a->k_dim, a->qkv, channels);
    regroup(d, a, a->qkvz, group, a->k_dim, a->k_dim, a->qkv + key, channels);
    regroup(d, a, a->qkvz, group, 2 * a->k_dim, own, a->qkv + 2 * key, channels);
    regroup(d, a, a->qkvz, group, 2 * a->k_dim + own, own, a->z, value);
    regroup(d, a, a->ba, 2 * r, 0, r, a->b, a->v_heads);
    regroup(d, a, a->ba, 2 * r, r, r, a->a, a->v_heads);
    return MOX_OK;
}

static mox_status slot_conv1d_silu(mox_dev *d, const mox_conv1d_silu_args *a, mox_err *err)
{
    MOX_TRY(mox_gpu_check_vec(&a->weight, err));
    MOX_GPU_LAUNCH(d, conv1d_silu, mox_ceil_div(a->channels, THREADS), a->n, 1, .x = a->x, .state = a->state, .out = a->out,
                   .channels = a->channels, .width = a->width, .x_stride = a->x_stride, .out_stride = a->out_stride,
                   .weight = mox_gpu_vec_of(&a->weight));
    return MOX_OK;
}

static mox_status slot_conv1d_shift(mox_dev *d, const mox_conv1d_shift_args *a, mox_err *err)
{
    (void)err;
    MOX_GPU_LAUNCH(d, conv1d_shift, mox_ceil_div(a->channels, THREADS), 1, 1, .x = a->x, .state = a->state, .n = a->n,
                   .channels = a->channels, .width = a->width, .x_stride = a->x_stride);
    return MOX_OK;
}

static mox_status slot_gdn_qk_norm(mox_dev *d, const mox_gdn_qk_norm_args *a, mox_err *err)
{
    (void)err;
    MOX_GPU_LAUNCH(d, gdn_qk_norm, mox_ceil_div(a->heads, GDN_WAVES), a->n, 2, .q = a->q, .k = a->k, .heads = a->heads, .dim = a->dim,
                   .stride = a->stride, .eps = a->mode == MOX_GDN_EPS_MEAN ? a->eps * (float)a->dim : a->eps);
    return MOX_OK;
}

static mox_status slot_gdn_gates(mox_dev *d, const mox_gdn_gates_args *a, mox_err *err)
{
    MOX_TRY(mox_gpu_check_vec(&a->a_log, err));
    MOX_TRY(mox_gpu_check_vec(&a->dt_bias, err));
    MOX_GPU_LAUNCH(d, gdn_gates, mox_ceil_div(a->n * a->heads, THREADS), 1, 1, .a = a->a, .b = a->b, .g = a->g, .beta = a->beta,
                   .a_log = mox_gpu_vec_of(&a->a_log), .dt_bias = mox_gpu_vec_of(&a->dt_bias), .n = a->n, .heads = a->heads,
                   .a_stride = a->a_stride, .b_stride = a->b_stride);
    return MOX_OK;
}

static mox_status slot_gdn_recurrent(mox_dev *d, const mox_gdn_args *a, mox_err *err)
{
    if (a->k_dim > MOX_GPU_GDN_K_DIM)
        return mox_fail(err, MOX_E_UNSUPPORTED, "device %s: key heads of the delta rule have at most %d elements, not %lld", d->name,
                        MOX_GPU_GDN_K_DIM, (long long)a->k_dim);
    MOX_GPU_LAUNCH(d, gdn_recurrent, mox_ceil_div(a->v_dim, GDN_WAVES), a->v_heads, 1, .q = a->q, .k = a->k, .v = a->v, .g = a->g,
                   .beta = a->beta, .state = a->state, .out = a->out, .n = a->n, .k_heads = a->k_heads, .v_heads = a->v_heads,
                   .k_dim = a->k_dim, .v_dim = a->v_dim, .q_stride = a->q_stride, .k_stride = a->k_stride, .v_stride = a->v_stride);
    return MOX_OK;
}

/* One token: two launches. */
static mox_status slot_gdn_mix(mox_dev *d, const mox_gdn_mix_args *a, mox_err *err)
{
    const mox_gdn_args *r = &a->rule;
    const int64_t key = r->k_heads * r->k_dim;
    const bool fits = r->n == 1 && r->k_dim <= MOX_GPU_GDN_STEP_DIM && r->v_dim <= MOX_GPU_GDN_STEP_DIM &&
                      a->conv.channels == 2 * key + r->v_heads * r->v_dim && a->qk_norm.heads == r->k_heads && r->q == a->conv.out &&
                      r->k == a->conv.out + key && r->v == a->conv.out + 2 * key && a->norm.dim == r->v_dim && r->k_dim % 4 == 0 &&
                      (uintptr_t)a->conv.out % 16 == 0 && (uintptr_t)r->state % 16 == 0;
    if (!fits) return mox_dev_gdn_mix(d, a, err);
    MOX_TRY(mox_gpu_check_vec(&a->conv.weight, err));
    MOX_TRY(mox_gpu_check_vec(&a->gates.a_log, err));
    MOX_TRY(mox_gpu_check_vec(&a->gates.dt_bias, err));
    MOX_TRY(mox_gpu_check_vec(&a->norm.weight, err));
    MOX_GPU_LAUNCH(d, gdn_mix, 2 * r->k_heads + r->v_heads, 1, 1, .x = a->conv.x, .state = a->shift.state, .out = a->conv.out,
                   .a = a->gates.a, .b = a->gates.b, .g = a->gates.g, .beta = a->gates.beta, .weight = mox_gpu_vec_of(&a->conv.weight),
                   .a_log = mox_gpu_vec_of(&a->gates.a_log), .dt_bias = mox_gpu_vec_of(&a->gates.dt_bias), .k_heads = r->k_heads, .v_heads = r->v_heads,
                   .k_dim = r->k_dim, .v_dim = r->v_dim, .channels = a->conv.channels, .width = a->conv.width,
                   .eps = a->qk_norm.mode == MOX_GDN_EPS_MEAN ? a->qk_norm.eps * (float)r->k_dim : a->qk_norm.eps);
    MOX_GPU_LAUNCH(d, gdn_step, r->v_heads, 1, 1, .mixed = a->conv.out, .g = r->g, .beta = r->beta, .z = a->norm.z, .state = r->state, .out = a->norm.out,
                   .norm = mox_gpu_vec_of(&a->norm.weight), .k_heads = r->k_heads, .v_heads = r->v_heads, .k_dim = r->k_dim,
                   .v_dim = r->v_dim, .eps = a->norm.eps);
    return MOX_OK;
}

void mox_gpu_fill_deltanet(mox_dev_ops *ops)
{
    ops->gdn_split = slot_gdn_split;
    ops->conv1d_silu = slot_conv1d_silu;
    ops->conv1d_shift = slot_conv1d_shift;
    ops->gdn_qk_norm = slot_gdn_qk_norm;
    ops->gdn_gates = slot_gdn_gates;
    ops->gdn_recurrent = slot_gdn_recurrent;
    ops->gdn_mix = slot_gdn_mix;
}
