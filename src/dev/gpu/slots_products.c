/* dev/gpu/slots_products.c -- slots that multiply with stored weights: embedding, products,
 * feed-forwards, experts.  See device.h.
 *
 * Which experts a token goes to stays on the device.  With few tokens each pair (token, slot) looks
 * its expert up; with more, pairs are sorted by expert, and one launch goes over all experts of the
 * layer, those without a pair included. */
#include "dev/gpu/device.h"

enum { EMBED_COLS = 1024, FOUR_TOKENS = MOX_DEV_TOGETHER, FOUR_ROWS = 16 }; /* of matvec4.h: more tokens are better served together */

static mox_status slot_embed(mox_dev *d, const mox_embed_args *a, mox_err *err)
{
    MOX_TRY(mox_gpu_check_mat(&a->table, err));
    MOX_GPU_LAUNCH(d, embed, mox_ceil_div(a->table.cols, EMBED_COLS), a->n, 1, .table = mox_gpu_mat_of(&a->table), .ids = a->ids,
                   .out = a->out, .out_stride = a->out_stride);
    return MOX_OK;
}

static mox_status slot_matmul(mox_dev *d, const mox_matmul_args *a, mox_err *err)
{
    MOX_TRY(mox_gpu_check_mat(&a->w, err));
    MOX_TRY(mox_gpu_check_vec(&a->bias, err));
    const mox_gpu_mat w = mox_gpu_mat_of(&a->w);
    if (a->n <= FOUR_TOKENS && mox_gpu_mat_is_four(&w)) {
        MOX_GPU_LAUNCH(d, matvec4, mox_ceil_div(w.rows, FOUR_ROWS), a->n, 1, .w = w, .x = a->x, .y = a->y, .n = a->n, .rows = w.rows,
                       .x_stride = a->x_stride, .y_stride = a->y_stride, .bias = mox_gpu_vec_of(&a->bias));
        return MOX_OK;
    }
    MOX_GPU_LAUNCH(d, matvec, mox_ceil_div(a->w.rows, MOX_GPU_MATVEC_ROWS), mox_ceil_div(a->n, MOX_GPU_MATVEC_TOKENS), 1,
                   .w = w, .x = a->x, .y = a->y, .n = a->n, .rows = a->w.rows, .x_stride = a->x_stride,
                   .y_stride = a->y_stride, .bias = mox_gpu_vec_of(&a->bias));
    return MOX_OK;
}

static mox_status slot_gate_up_swiglu(mox_dev *d, const mox_gate_up_swiglu_args *a, mox_err *err)
{
    if (a->n_groups != 1 || a->x_row || a->y_row)
        return mox_fail(err, MOX_E_UNSUPPORTED, "device %s: gate_up_swiglu takes one matrix of each; experts are for moe_ffn", d->name);
    MOX_TRY(mox_gpu_check_mat(a->gate, err));
    MOX_TRY(mox_gpu_check_mat(a->up, err));
    const int64_t n = a->offsets[1];
    MOX_GPU_LAUNCH(d, gate_up, mox_ceil_div(a->gate->rows, MOX_GPU_MATVEC_ROWS), mox_ceil_div(n, MOX_GPU_MATVEC_TOKENS), 1,
                   .gate = mox_gpu_mat_of(a->gate), .up = mox_gpu_mat_of(a->up), .x = a->x, .y = a->y, .n = n, .x_stride = a->x_stride,
                   .y_stride = a->y_stride);
    return MOX_OK;
}

/* ---- latent attention ---- */

static mox_status slot_mla_q_absorb(mox_dev *d, const mox_mla_q_absorb_args *a, mox_err *err)
{
    enum { COLS = 512 };
    MOX_TRY(mox_gpu_check_mat(&a->w, err));
    const int64_t blocks = mox_ceil_div(a->n, MOX_GPU_MATVEC_TOKENS);
    const mox_gpu_mat w = mox_gpu_mat_of(&a->w);
    if (a->by_rank)
        MOX_GPU_LAUNCH(d, matvec, mox_ceil_div(a->rank, MOX_GPU_MATVEC_ROWS), blocks, a->heads, .w = w, .x = a->q_nope, .y = a->out,
                       .n = a->n, .rows = a->rank, .head_rows = a->head_rows, .x_stride = a->heads * a->nope, .x_head_stride = a->nope,
                       .y_stride = a->heads * a->rank, .y_head_stride = a->rank);
    else
        MOX_GPU_LAUNCH(d, mla_absorb, mox_ceil_div(a->rank, COLS), a->heads, blocks, .w = w, .q = a->q_nope, .out = a->out, .n = a->n,
                       .heads = a->heads, .nope = a->nope, .rank = a->rank, .head_rows = a->head_rows);
    return MOX_OK;
}

static mox_status slot_mla_out(mox_dev *d, const mox_mla_out_args *a, mox_err *err)
{
    MOX_TRY(mox_gpu_check_mat(&a->w, err));
    MOX_GPU_LAUNCH(d, matvec, mox_ceil_div(a->v_dim, MOX_GPU_MATVEC_ROWS), mox_ceil_div(a->n, MOX_GPU_MATVEC_TOKENS), a->heads,
                   .w = mox_gpu_mat_of(&a->w), .x = a->ctx, .y = a->out, .n = a->n, .rows = a->v_dim, .head_rows = a->head_rows,
                   .first_row = a->row0, .x_stride = a->heads * a->rank, .x_head_stride = a->rank, .y_stride = a->heads * a->v_dim,
                   .y_head_stride = a->v_dim);
    return MOX_OK;
}

/* ---- experts ---- */

static mox_status slot_moe_acquire(mox_dev *d, const mox_moe_ffn_args *a, mox_err *err)
{
    const mox_dev_gpu *g = (mox_dev_gpu *)d;
    if (a->layer >= g->n_layers || g->layers[a->layer].n != a->n_experts || g->layers[a->layer].width != a->width ||
        g->layers[a->layer].dim != a->dim)
        return mox_fail(err, MOX_E_ARG, "device %s: it was not told of the experts of layer %d", d->name, a->layer);
    return g->layers[a->layer].come ? mox_gpu_come_acquire(d, a, err) : MOX_OK;
}

/* The pairs that have an id. */
static void compute_experts(mox_dev *d, const mox_moe_ffn_args *a, const int32_t *ids)
{
    const mox_gpu_experts *x = &((mox_dev_gpu *)d)->layers[a->layer];
    const mox_gpu_mat *mats = x->memory;
    MOX_GPU_LAUNCH(d, moe_bucket, 1, 1, 1, .ids = ids, .offsets = a->bucket_offsets, .pairs = a->bucket_pairs,
                   .n_pairs = a->n * a->k, .n_experts = a->n_experts);
    MOX_GPU_LAUNCH(d, experts_gate_up, mox_ceil_div(a->width, MOX_GPU_MATVEC_ROWS), 1, a->n_experts, .gate = mats, .up = mats + x->n,
                   .offsets = a->bucket_offsets, .x_row = a->bucket_pairs, .x = a->x, .y = a->mid, .rows = a->width, .x_stride = a->dim,
                   .y_stride = a->width, .x_divisor = a->k);
    MOX_GPU_LAUNCH(d, experts_down, mox_ceil_div(a->dim, MOX_GPU_MATVEC_ROWS), 1, a->n_experts, .gate = mats + 2 * x->n,
                   .offsets = a->bucket_offsets, .y_row = a->bucket_pairs, .x = a->mid, .y = a->rows, .rows = a->dim,
                   .x_stride = a->width, .y_stride = a->dim, .x_divisor = 1);
}

static mox_status slot_moe_ffn(mox_dev *d, const mox_moe_ffn_args *a, mox_err *err)
{
    const mox_gpu_experts *x = &((mox_dev_gpu *)d)->layers[a->layer];
    const mox_gpu_mat *mats = x->memory;
    if (x->is_four && a->n <= FOUR_TOKENS) {
        if (x->come) MOX_TRY(mox_gpu_come_all(d, a, err));
        MOX_GPU_LAUNCH(d, moe4_gate_up, mox_ceil_div(a->width, FOUR_ROWS), a->n * a->k, 1, .gate = mats, .up = mats + x->n, .ids = a->ids,
                       .x = a->x, .y = a->mid, .k = a->k, .x_stride = a->dim);
        MOX_GPU_LAUNCH(d, moe4_down, mox_ceil_div(a->dim, FOUR_ROWS), a->n * a->k, 1, .down = mats + 2 * x->n, .ids = a->ids, .x = a->mid,
                       .y = a->rows);
        return MOX_OK;
    }
    if (x->come) return mox_gpu_come_each(d, a, compute_experts, err);
    compute_experts(d, a, a->ids);
    return MOX_OK;
}

void mox_gpu_fill_products(mox_dev_ops *ops)
{
    ops->embed = slot_embed;
    ops->matmul = slot_matmul;
    ops->gate_up_swiglu = slot_gate_up_swiglu;
    ops->mla_q_absorb = slot_mla_q_absorb;
    ops->mla_out = slot_mla_out;
    ops->moe_acquire = slot_moe_acquire;
    ops->moe_ffn = slot_moe_ffn;
}
