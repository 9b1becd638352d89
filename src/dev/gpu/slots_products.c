/* dev/gpu/slots_products.c -- slots that multiply with stored weights: embedding, products,
 * feed-forwards, experts.  See device.h.
 *
 * Which experts a token goes to stays on the device.  With few tokens each pair (token, slot) looks
 * its expert up; with more, pairs are sorted by expert, and one launch goes over all experts of the
 * layer, those without a pair included. */
#include "dev/gpu/device.h"

/* FOUR_: of matvec4.h; more tokens are better served together.  ROWWISE_ROWS: what matvec_row.h is worth it for. */
enum { EMBED_COLS = 1024, FOUR_TOKENS = MOX_DEV_TOGETHER, FOUR_ROWS = 16, TALL_ROWS = 16384, ROWWISE_ROWS = 1024 };

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
    if (a->n <= FOUR_TOKENS && mox_gpu_mat_is_four(&w) && mox_gpu_is_wide(a->x, a->x_stride)) {
        const mox_gpu_matvec4 p = {.w = w, .x = a->x, .y = a->y, .n = a->n, .rows = w.rows, .x_stride = a->x_stride,
                                   .y_stride = a->y_stride, .bias = mox_gpu_vec_of(&a->bias)};
        const bool tall = w.rows >= TALL_ROWS;
        mox_gpu_launch(d, tall ? MOX_GPU_KERNEL_matvec4_tall : MOX_GPU_KERNEL_matvec4, mox_ceil_div(w.rows, tall ? 2 * FOUR_ROWS : FOUR_ROWS),
                       a->n, 1, &p, sizeof p);
        return MOX_OK;
    }
    if (a->n <= (a->exact ? MOX_GPU_FEW_TO : FOUR_TOKENS) && w.rows <= ROWWISE_ROWS && mox_gpu_mat_is_rowwise(&w) &&
        mox_gpu_is_wide(a->x, a->x_stride)) {
        MOX_GPU_LAUNCH(d, matvec_row, w.rows, a->n, 1, .w = w, .x = a->x, .y = a->y, .n = a->n, .rows = w.rows, .x_stride = a->x_stride,
                       .y_stride = a->y_stride, .bias = mox_gpu_vec_of(&a->bias));
        return MOX_OK;
    }
    if (!a->exact && mox_gpu_few_takes(d, &w, a->x, a->n, a->x_stride)) {
        mox_gpu_few_matmul(d, a);
        return MOX_OK;
    }
    if (mox_gpu_is_many(d, a->n, w.cols) && !a->exact) {
        mox_gpu_tile_matmul(d, a);
        return MOX_OK;
    }
    const mox_gpu_matvec p = {.w = w, .x = a->x, .y = a->y, .n = a->n, .rows = w.rows, .x_stride = a->x_stride, .y_stride = a->y_stride,
                              .bias = mox_gpu_vec_of(&a->bias)};
    if (mox_gpu_is_many(d, a->n, w.cols) && (uintptr_t)a->x % 16 == 0 && a->x_stride % 4 == 0 && w.cols % 8 == 0)
        mox_gpu_launch(d, MOX_GPU_KERNEL_matmul_f32, mox_ceil_div(a->n, MOX_GPU_PRODUCT_TILE), mox_ceil_div(w.rows, MOX_GPU_PRODUCT_TILE), 1,
                       &p, sizeof p);
    else
        mox_gpu_launch(d, MOX_GPU_KERNEL_matvec, mox_ceil_div(w.rows, MOX_GPU_MATVEC_ROWS), mox_ceil_div(a->n, MOX_GPU_MATVEC_TOKENS), 1, &p,
                       sizeof p);
    return MOX_OK;
}

static mox_status slot_project(mox_dev *d, const mox_project_args *a, mox_err *err)
{
    mox_gpu_mat w[MOX_PROJECT_MOST];
    mox_gpu_vec bias[MOX_PROJECT_MOST];
    bool fits = a->n == MOX_PROJECT_MOST, few = fits;
    int64_t groups = 0;
    for (int64_t i = 0; i < a->n && (fits || few); i++) {
        const mox_matmul_args *p = &a->product[i];
        MOX_TRY(mox_gpu_check_mat(&p->w, err));
        MOX_TRY(mox_gpu_check_vec(&p->bias, err));
        w[i] = mox_gpu_mat_of(&p->w);
        bias[i] = mox_gpu_vec_of(&p->bias);
        groups += mox_ceil_div(w[i].rows, FOUR_ROWS);
        const bool alike = p->y_stride == w[i].rows && p->x == a->product[0].x;
        few = few && alike && !p->exact && mox_gpu_few_takes(d, &w[i], p->x, p->n, p->x_stride);
        fits = fits && alike && p->n <= FOUR_TOKENS && mox_gpu_is_wide(p->x, p->x_stride) && mox_gpu_mat_is_four(&w[i]);
    }
    if (few) {
        mox_gpu_few_project(d, a);
        return MOX_OK;
    }
    if (!fits) return mox_dev_project(d, a, err);
    MOX_GPU_LAUNCH(d, matvec4_three, groups, a->product[0].n, 1, .w0 = w[0], .w1 = w[1], .w2 = w[2], .bias0 = bias[0], .bias1 = bias[1],
                   .bias2 = bias[2], .y0 = a->product[0].y, .y1 = a->product[1].y, .y2 = a->product[2].y, .x = a->product[0].x,
                   .x_stride = a->product[0].x_stride);
    return MOX_OK;
}

static mox_status slot_gate_up_swiglu(mox_dev *d, const mox_gate_up_swiglu_args *a, mox_err *err)
{
    if (a->n_groups != 1 || a->x_row || a->y_row)
        return mox_fail(err, MOX_E_UNSUPPORTED, "device %s: gate_up_swiglu takes one matrix of each; experts are for moe_ffn", d->name);
    MOX_TRY(mox_gpu_check_mat(a->gate, err));
    MOX_TRY(mox_gpu_check_mat(a->up, err));
    const int64_t n = a->offsets[1];
    const mox_gpu_mat gate = mox_gpu_mat_of(a->gate), up = mox_gpu_mat_of(a->up);
    if (mox_gpu_few_takes(d, &gate, a->x, n, a->x_stride) && mox_gpu_few_takes(d, &up, a->x, n, a->x_stride)) {
        mox_gpu_few_gate_up(d, a);
        return MOX_OK;
    }
    if (mox_gpu_is_many(d, n, a->gate->cols)) {
        mox_gpu_tile_gate_up(d, a);
        return MOX_OK;
    }
    MOX_GPU_LAUNCH(d, gate_up, mox_ceil_div(a->gate->rows, MOX_GPU_MATVEC_ROWS), mox_ceil_div(n, MOX_GPU_MATVEC_TOKENS), 1,
                   .gate = gate, .up = up, .x = a->x, .y = a->y, .n = n, .x_stride = a->x_stride, .y_stride = a->y_stride);
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
static void compute_experts(mox_dev *d, const mox_moe_ffn_args *a, const int32_t *ids, int64_t n_experts)
{
    const mox_gpu_experts *x = &((mox_dev_gpu *)d)->layers[a->layer];
    const mox_gpu_mat *mats = x->memory;
    const mox_gpu_moe_bucket p = {.ids = ids, .offsets = a->bucket_offsets, .pairs = a->bucket_pairs, .n_pairs = a->n * a->k,
                                  .n_experts = n_experts};
    const bool many = a->n > MOX_GPU_MANY; /* a group for all experts, or for each */
    mox_gpu_launch(d, many ? MOX_GPU_KERNEL_moe_sort : MOX_GPU_KERNEL_moe_bucket, many ? n_experts : 1, 1, 1, &p, sizeof p);
    if (mox_gpu_is_many(d, a->n, a->dim) && mox_gpu_tile_experts(d, a)) return;
    MOX_GPU_LAUNCH(d, experts_gate_up, mox_ceil_div(a->width, MOX_GPU_MATVEC_ROWS), 1, a->n_experts, .gate = mats, .up = mats + x->n,
                   .offsets = a->bucket_offsets, .x_row = a->bucket_pairs, .x = a->x, .y = a->mid, .rows = a->width, .x_stride = a->dim,
                   .y_stride = a->width, .x_divisor = a->k);
    MOX_GPU_LAUNCH(d, experts_down, mox_ceil_div(a->dim, MOX_GPU_MATVEC_ROWS), 1, a->n_experts, .gate = mats + 2 * x->n,
                   .offsets = a->bucket_offsets, .y_row = a->bucket_pairs, .x = a->mid, .y = a->rows, .rows = a->dim,
                   .x_stride = a->width, .y_stride = a->dim, .x_divisor = 1);
}

static mox_status slot_moe_ffn(mox_dev *d, const mox_moe_ffn_args *a, mox_err *err)
{
    const bool some = mox_gpu_takes_few(d, a);
    if (((mox_dev_gpu *)d)->layers[a->layer].come)
        return some ? mox_gpu_come_each(d, a, true, mox_gpu_few_experts, err) : mox_gpu_come_each(d, a, false, compute_experts, err);
    if (some) mox_gpu_few_experts(d, a, a->ids, a->n_experts);
    else compute_experts(d, a, a->ids, a->n_experts);
    return MOX_OK;
}

/* Few tokens go by pair, and nothing is sorted. */
static mox_status slot_moe_finish(mox_dev *d, const mox_moe_finish_args *a, mox_err *err)
{
    const mox_moe_ffn_args *f = &a->ffn;
    const mox_moe_combine_args *c = &a->combine;
    const mox_gpu_experts *x = &((mox_dev_gpu *)d)->layers[f->layer];
    if (!x->is_four || f->n > FOUR_TOKENS || !mox_gpu_is_wide(f->x, f->dim) || !mox_gpu_is_wide(f->mid, f->width))
        return mox_dev_moe_finish(d, a, err);
    const int32_t *ids = x->come ? f->batch_pairs : f->ids;
    if (x->come) MOX_TRY(mox_gpu_come_all(d, f, err));
    MOX_GPU_LAUNCH(d, moe4_gate_up, mox_ceil_div(f->width, FOUR_ROWS), f->n * f->k, 1, .gate = x->gate, .up = x->up, .ids = ids,
                   .x = f->x, .y = f->mid, .k = f->k, .x_stride = f->dim);
    MOX_GPU_LAUNCH(d, moe4_combine, mox_ceil_div(f->dim, FOUR_ROWS), f->n, 1, .down = x->down, .ids = ids, .w = c->w,
                   .x = f->mid, .h = c->h, .shared = c->shared, .gate = c->gate, .out = c->out, .k = f->k, .dim = f->dim,
                   .width = f->width, .gate_stride = c->gate_stride, .mode = mox_gpu_shared_mode(c->mode));
    return MOX_OK;
}

void mox_gpu_fill_products(mox_dev_ops *ops)
{
    ops->embed = slot_embed;
    ops->matmul = slot_matmul;
    ops->project = slot_project;
    ops->gate_up_swiglu = slot_gate_up_swiglu;
    ops->mla_q_absorb = slot_mla_q_absorb;
    ops->mla_out = slot_mla_out;
    ops->moe_acquire = slot_moe_acquire;
    ops->moe_ffn = slot_moe_ffn;
    ops->moe_finish = slot_moe_finish;
}
