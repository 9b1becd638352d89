/* dev/gpu/slots_rows.c -- slots that work row by row: pointwise, norms, rotation, routing,
 * combining.  See device.h. */
#include "dev/gpu/device.h"

enum { THREADS = 256, WAVES = THREADS / GPU_LANES, SHORT_ROW = 1024, LONG_ROW = 2048 };

static mox_status slot_add(mox_dev *d, const mox_add_args *a, mox_err *err)
{
    (void)err;
    MOX_GPU_LAUNCH(d, add, mox_ceil_div(a->n, THREADS), 1, 1, .a = a->a, .b = a->b, .out = a->out, .n = a->n);
    return MOX_OK;
}

static mox_status slot_copy_slice(mox_dev *d, const mox_copy_slice_args *a, mox_err *err)
{
    (void)err;
    MOX_GPU_LAUNCH(d, copy, mox_ceil_div(a->cols, THREADS), a->rows, 1, .src = a->src, .dst = a->dst, .n = a->rows, .heads = 1,
                   .dim = a->cols, .src_stride = a->src_stride, .dst_stride = a->dst_stride);
    return MOX_OK;
}

static mox_status slot_sigmoid_gate(mox_dev *d, const mox_sigmoid_gate_args *a, mox_err *err)
{
    (void)err;
    MOX_GPU_LAUNCH(d, sigmoid_gate, mox_ceil_div(a->n, THREADS), 1, 1, .x = a->x, .gate = a->gate, .n = a->n);
    return MOX_OK;
}

static bool is_long(int64_t dim) { return dim > LONG_ROW && dim <= MOX_GPU_NORM_LONG; }

/* Norms of few rows are held back: the product behind takes them along.  Those of long rows are not, as products would repeat them
 * for longer than they take. */
static void norm(mox_dev *d, const mox_gpu_rms_norm *p, int64_t n)
{
    const bool can_wait = p->heads == 1 && p->dim <= LONG_ROW && n <= MOX_DEV_TOGETHER && p->x != p->out;
    if (is_long(p->dim)) mox_gpu_launch(d, MOX_GPU_KERNEL_rms_norm_long, p->heads, n, 1, p, sizeof *p);
    else if (can_wait) mox_gpu_hold(d, MOX_GPU_KERNEL_rms_norm, n, 1, n, p, sizeof *p);
    else mox_gpu_launch(d, MOX_GPU_KERNEL_rms_norm, p->heads, n, 1, p, sizeof *p);
}

static mox_status slot_rms_norm(mox_dev *d, const mox_rms_norm_args *a, mox_err *err)
{
    MOX_TRY(mox_gpu_check_vec(&a->weight, err));
    const mox_gpu_rms_norm p = {.x = a->x, .out = a->out, .heads = a->heads, .dim = a->dim, .x_stride = a->x_stride,
                                .x_head_stride = a->x_head_stride, .out_stride = a->out_stride, .out_head_stride = a->out_head_stride,
                                .weight = mox_gpu_vec_of(&a->weight), .offset = a->offset, .eps = a->eps};
    if (a->heads > 1 && a->dim <= SHORT_ROW)
        mox_gpu_launch(d, MOX_GPU_KERNEL_rms_norm_heads, mox_ceil_div(a->heads, WAVES), a->n, 1, &p, sizeof p);
    else norm(d, &p, a->n);
    return MOX_OK;
}

static mox_status slot_residual_norm(mox_dev *d, const mox_residual_norm_args *a, mox_err *err)
{
    if (a->scale) return mox_fail(err, MOX_E_UNSUPPORTED, "device %s: residual_norm takes no scale", d->name);
    MOX_TRY(mox_gpu_check_vec(&a->weight, err));
    if (mox_gpu_product_adds(d, a)) {
        const mox_gpu_rms_norm p = {.x = a->res, .out = a->norm, .heads = 1, .dim = a->dim, .x_stride = a->dim, .out_stride = a->dim,
                                    .weight = mox_gpu_vec_of(&a->weight), .offset = a->offset, .eps = a->eps};
        norm(d, &p, a->rows);
        return MOX_OK;
    }
    const mox_gpu_residual_norm p = {.a = a->a, .b = a->b, .res = a->res, .norm = a->norm, .dim = a->dim,
                                     .weight = mox_gpu_vec_of(&a->weight), .offset = a->offset, .eps = a->eps};
    mox_gpu_launch(d, is_long(a->dim) ? MOX_GPU_KERNEL_residual_norm_long : MOX_GPU_KERNEL_residual_norm, a->rows, 1, 1, &p, sizeof p);
    return MOX_OK;
}

static mox_status slot_gated_rms_norm(mox_dev *d, const mox_gated_rms_norm_args *a, mox_err *err)
{
    MOX_TRY(mox_gpu_check_vec(&a->weight, err));
    MOX_GPU_LAUNCH(d, gated_rms_norm, mox_ceil_div(a->rows, WAVES), 1, 1, .x = a->x, .z = a->z, .out = a->out, .rows = a->rows,
                   .dim = a->dim, .weight = mox_gpu_vec_of(&a->weight), .eps = a->eps);
    return MOX_OK;
}

static mox_status slot_rope(mox_dev *d, const mox_rope_args *a, mox_err *err)
{
    const float *inv_freq;
    MOX_TRY(mox_gpu_find_known(d, a->inv_freq, a->rotary_dim / 2, &inv_freq, err));
    MOX_GPU_LAUNCH(d, rope, mox_ceil_div(a->heads * (a->rotary_dim / 2), THREADS), a->n, 1, .x = a->x, .inv_freq = inv_freq, .pos = a->pos,
                   .heads = a->heads, .stride = a->stride, .head_stride = a->head_stride, .rotary_dim = a->rotary_dim,
                   .pos_stride = a->pos_stride, .mscale = a->mscale, .interleaved = a->pairing == MOX_ROPE_INTERLEAVED);
    return MOX_OK;
}

/* ---- routing and combining ---- */

static mox_status check_experts(mox_dev *d, int64_t n, mox_err *err)
{
    if (n <= MOX_GPU_ROUTER_EXPERTS) return MOX_OK;
    return mox_fail(err, MOX_E_UNSUPPORTED, "device %s: at most %d experts in a layer, not %lld", d->name, MOX_GPU_ROUTER_EXPERTS,
                    (long long)n);
}

static mox_status slot_router_topk(mox_dev *d, const mox_router_topk_args *a, mox_err *err)
{
    if (a->order != MOX_TOPK_SORTED || a->n_degenerate)
        return mox_fail(err, MOX_E_UNSUPPORTED, "device %s: router_topk sorts, and counts no degenerate rows", d->name);
    MOX_TRY(check_experts(d, a->n_experts, err));
    MOX_GPU_LAUNCH(d, router_topk, a->n, 1, 1, .logits = a->logits, .ids = a->ids, .weights = a->weights, .n_experts = a->n_experts,
                   .k = a->k, .renormalize = a->renormalize, .rehearse = ((mox_dev_gpu *)d)->leaves_room && a->n <= MOX_DEV_TOGETHER);
    return MOX_OK;
}

static mox_status slot_router_sigmoid(mox_dev *d, const mox_router_sigmoid_args *a, mox_err *err)
{
    MOX_TRY(mox_gpu_check_vec(&a->bias, err));
    MOX_TRY(check_experts(d, a->n_experts, err));
    MOX_GPU_LAUNCH(d, router_sigmoid, a->n, 1, 1, .logits = a->logits, .ids = a->ids, .weights = a->weights,
                   .bias = mox_gpu_vec_of(&a->bias), .n_experts = a->n_experts, .k = a->k, .n_groups = a->n_groups,
                   .kept_groups = a->kept_groups, .renormalize = a->renormalize, .factor = a->factor);
    return MOX_OK;
}

static mox_status slot_moe_combine(mox_dev *d, const mox_moe_combine_args *a, mox_err *err)
{
    if (a->slots) return mox_fail(err, MOX_E_UNSUPPORTED, "device %s: moe_combine takes no separate buffers", d->name);
    MOX_GPU_LAUNCH(d, moe_combine, mox_ceil_div(a->dim, THREADS), a->n, 1, .h = a->h, .experts = a->experts, .w = a->w,
                   .shared = a->shared, .gate = a->gate, .out = a->out, .k = a->k, .dim = a->dim, .gate_stride = a->gate_stride,
                   .mode = mox_gpu_shared_mode(a->mode));
    return MOX_OK;
}

void mox_gpu_fill_rows(mox_dev_ops *ops)
{
    ops->add = slot_add;
    ops->copy_slice = slot_copy_slice;
    ops->sigmoid_gate = slot_sigmoid_gate;
    ops->rms_norm = slot_rms_norm;
    ops->residual_norm = slot_residual_norm;
    ops->gated_rms_norm = slot_gated_rms_norm;
    ops->rope = slot_rope;
    ops->router_topk = slot_router_topk;
    ops->router_sigmoid = slot_router_sigmoid;
    ops->moe_combine = slot_moe_combine;
}
