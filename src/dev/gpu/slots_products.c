/* dev/gpu/slots_products.c -- slots that multiply with stored weights: embedding, products,
 * feed-forwards, experts.  See device.h.
 *
 * Which experts a token goes to stays on the device.  With few tokens each pair (token, slot) looks
 * its expert up; with more, pairs are sorted by expert, and one launch goes over all experts of the
 * layer, those without a pair included. */
#include "dev/gpu/device.h"

/* FOUR_: of matvec4.h; more tokens are better served together.  ROWWISE_ROWS: what matvec_row.h is worth it for.  LONG_COLS: from here on
 * waves have more chunks than they hold, and experts4.h brings them ahead. */
enum { EMBED_COLS = 1024, FOUR_TOKENS = MOX_DEV_TOGETHER, FOUR_ROWS = 16, TALL_ROWS = 16384, ROWWISE_ROWS = 1024, LONG_COLS = 4096 };

static mox_status slot_embed(mox_dev *d, const mox_embed_args *a, mox_err *err)
{
    MOX_TRY(mox_gpu_check_mat(&a->table, err));
    MOX_GPU_LAUNCH(d, embed, mox_ceil_div(a->table.cols, EMBED_COLS), a->n, 1, .table = mox_gpu_mat_of(&a->table), .ids = a->ids,
                   .out = a->out, .out_stride = a->out_stride);
    return MOX_OK;
}

/* The norm that is held, where n rows x of so many columns are what it makes, for the product that stores at y to take along: x becomes what
 * is normed.  Else no norm. */
static mox_gpu_normed take_norm(mox_dev *d, const float **x, int64_t *x_stride, const float *y, int64_t n, int64_t cols)
{
    mox_gpu_rms_norm p;
    if (!mox_gpu_see(d, MOX_GPU_KERNEL_rms_norm, n, &p, sizeof p)) return (mox_gpu_normed){0};
    const bool fits = p.out == *x && (n == 1 || p.out_stride == *x_stride) && p.dim == cols && (uintptr_t)p.weight.data % 16 == 0 &&
                      mox_gpu_is_wide(p.x, p.x_stride) && p.x != y; /* which groups would store while others read */
    if (!fits || !mox_gpu_drop(d)) return (mox_gpu_normed){0};
    *x = p.x;
    *x_stride = p.x_stride;
    return (mox_gpu_normed){.out = p.out, .weight = p.weight, .offset = p.offset, .eps = p.eps, .stride = p.out_stride};
}

/* A product by matvec4.h; one that is not tall is held back, as what it makes may be added to something. */
static void product_four(mox_dev *d, const mox_matmul_args *a, const mox_gpu_mat *w)
{
    mox_gpu_matvec4 p = {.w = *w, .x = a->x, .y = a->y, .x_stride = a->x_stride, .y_stride = a->y_stride, .bias = mox_gpu_vec_of(&a->bias)};
    if (w->rows >= TALL_ROWS) { /* so many groups would each repeat the norm */
        mox_gpu_launch(d, MOX_GPU_KERNEL_matvec4_tall, mox_ceil_div(w->rows, MOX_GPU_FOUR_TALL), a->n, 1, &p, sizeof p);
        return;
    }
    p.norm = take_norm(d, &p.x, &p.x_stride, a->y, a->n, w->cols);
    mox_gpu_hold(d, MOX_GPU_KERNEL_matvec4, a->n, mox_ceil_div(w->rows, FOUR_ROWS) + (p.norm.out ? 1 : 0), a->n, &p, sizeof p);
}

bool mox_gpu_product_adds(mox_dev *d, const mox_residual_norm_args *a)
{
    mox_gpu_matvec4 p;
    if (!mox_gpu_see(d, MOX_GPU_KERNEL_matvec4, a->rows, &p, sizeof p)) return false;
    /* With a norm, groups read what others add to. */
    const bool fits = p.y == a->b && p.w.rows == a->dim && p.y_stride == a->dim && a->res != a->b && a->res != p.x && !p.norm.out;
    if (!fits || !mox_gpu_drop(d)) return false;
    p.with = a->a;
    p.sum = a->res;
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    /* Groups that find no processor of the GPU while attention is on some begin late and end late, so there are half as many where that helps. */
    const int64_t one = mox_ceil_div(p.w.rows, FOUR_ROWS) * a->rows, two = mox_ceil_div(p.w.rows, MOX_GPU_FOUR_TWO) * a->rows;
    g->leaves_room = g->attention_groups > 0 && p.w.cols <= MOX_GPU_TWO_COLS && g->attention_groups + one > MOX_GPU_PROCESSORS &&
                     g->attention_groups + two <= MOX_GPU_PROCESSORS;
    mox_gpu_launch(d, g->leaves_room ? MOX_GPU_KERNEL_matvec4_two : MOX_GPU_KERNEL_matvec4, (g->leaves_room ? two : one) / a->rows, a->rows, 1, &p,
                   sizeof p);
    return true;
}

static mox_status slot_matmul(mox_dev *d, const mox_matmul_args *a, mox_err *err)
{
    MOX_TRY(mox_gpu_check_mat(&a->w, err));
    MOX_TRY(mox_gpu_check_vec(&a->bias, err));
    const mox_gpu_mat w = mox_gpu_mat_of(&a->w);
    if (a->n <= FOUR_TOKENS && mox_gpu_mat_is_four(&w) && mox_gpu_is_wide(a->x, a->x_stride)) {
        if (w.cols >= LONG_COLS && w.rows >= LONG_COLS && w.rows < TALL_ROWS) {
            MOX_GPU_LAUNCH(d, experts4_down_long, mox_ceil_div(w.rows, 2 * FOUR_ROWS), a->n, 1, .down = {.first = w}, .shared_down = w,
                           .x = a->x, .out = a->y, .bias = mox_gpu_vec_of(&a->bias), .n_shared = 1, .width = w.cols,
                           .x_stride = a->x_stride, .out_stride = a->y_stride, .mode = MOX_GPU_SHARED_UNSCALED);
            return MOX_OK;
        }
        product_four(d, a, &w);
        return MOX_OK;
    }
    if (a->n <= (a->exact ? MOX_GPU_FEW_TO : FOUR_TOKENS) && w.rows <= ROWWISE_ROWS && mox_gpu_mat_is_rowwise(&w) && mox_gpu_is_wide(a->x, a->x_stride)) {
        if (a->n > FOUR_TOKENS) {
            MOX_GPU_LAUNCH(d, matvec_rows, mox_ceil_div(w.rows, MOX_GPU_ROWS_ROWS), mox_ceil_div(a->n, MOX_GPU_ROWS_TOKENS), 1, .w = w,
                           .x = a->x, .y = a->y, .n = a->n, .x_stride = a->x_stride, .y_stride = a->y_stride, .bias = mox_gpu_vec_of(&a->bias));
            return MOX_OK;
        }
        mox_gpu_matvec_row p = {.w = w, .x = a->x, .y = a->y, .x_stride = a->x_stride, .y_stride = a->y_stride,
                                .bias = mox_gpu_vec_of(&a->bias)};
        p.norm = take_norm(d, &p.x, &p.x_stride, a->y, a->n, w.cols);
        const int64_t groups = w.rows + (p.norm.out ? 1 : 0);
        p.rehearse = ((mox_dev_gpu *)d)->leaves_room && groups * a->n <= MOX_GPU_PROCESSORS;
        mox_gpu_launch(d, MOX_GPU_KERNEL_matvec_row, groups, a->n, 1, &p, sizeof p);
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
    if (mox_gpu_is_many(d, a->n, w.cols) && mox_gpu_is_wide(a->x, a->x_stride) && w.cols % 8 == 0)
        mox_gpu_launch(d, MOX_GPU_KERNEL_matmul_f32, mox_ceil_div(a->n, MOX_GPU_PRODUCT_TILE), mox_ceil_div(w.rows, MOX_GPU_PRODUCT_TILE), 1,
                       &p, sizeof p);
    else
        mox_gpu_launch(d, MOX_GPU_KERNEL_matvec, mox_ceil_div(w.rows, MOX_GPU_MATVEC_ROWS), mox_ceil_div(a->n, MOX_GPU_MATVEC_TOKENS), 1, &p,
                       sizeof p);
    return MOX_OK;
}

static mox_status slot_project(mox_dev *d, const mox_project_args *a, mox_err *err)
{
    enum { THREE = 3 }; /* as few.h has them */
    mox_gpu_mat w[MOX_PROJECT_MOST] = {0};
    mox_gpu_vec bias[MOX_PROJECT_MOST] = {0};
    float *y[MOX_PROJECT_MOST] = {0};
    bool fits = a->n > 1, few = a->n == THREE;
    int64_t groups = 0, long_groups = 0;
    for (int64_t i = 0; i < a->n && (fits || few); i++) {
        const mox_matmul_args *p = &a->product[i];
        MOX_TRY(mox_gpu_check_mat(&p->w, err));
        MOX_TRY(mox_gpu_check_vec(&p->bias, err));
        w[i] = mox_gpu_mat_of(&p->w);
        bias[i] = mox_gpu_vec_of(&p->bias);
        y[i] = p->y;
        groups += mox_ceil_div(w[i].rows, MOX_GPU_FOUR_TALL);
        long_groups += mox_ceil_div(w[i].rows, FOUR_ROWS);
        const bool alike = p->y_stride == w[i].rows && p->x == a->product[0].x;
        few = few && alike && !p->exact && mox_gpu_few_takes(d, &w[i], p->x, p->n, p->x_stride);
        fits = fits && alike && p->n <= FOUR_TOKENS && mox_gpu_is_wide(p->x, p->x_stride) && mox_gpu_mat_is_four(&w[i]);
    }
    if (few) {
        mox_gpu_few_project(d, a);
        return MOX_OK;
    }
    if (!fits) return mox_dev_project(d, a, err);
    const mox_matmul_args *first = &a->product[0];
    mox_gpu_project4 p = {.w0 = w[0], .w1 = w[1], .w2 = w[2], .w3 = w[3], .bias0 = bias[0], .bias1 = bias[1], .bias2 = bias[2],
                          .bias3 = bias[3], .y0 = y[0], .y1 = y[1], .y2 = y[2], .y3 = y[3], .x = first->x, .x_stride = first->x_stride};
    p.norm = take_norm(d, &p.x, &p.x_stride, first->y, first->n, w[0].cols);
    const bool is_long = w[0].cols > MOX_GPU_PROJECT4_COLS;
    const int64_t all = (is_long ? long_groups : groups) + (p.norm.out ? 1 : 0);
    const mox_gpu_kernel kernel = all * first->n <= MOX_GPU_PROCESSORS ? MOX_GPU_KERNEL_project4 : MOX_GPU_KERNEL_project4_many;
    mox_gpu_launch(d, is_long ? MOX_GPU_KERNEL_project4_long : kernel, all, first->n, 1, &p, sizeof p);
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
    if (n <= FOUR_TOKENS && mox_gpu_mat_is_four(&gate) && mox_gpu_mat_is_four(&up) && mox_gpu_is_wide(a->x, a->x_stride) &&
        a->y_stride == gate.rows) {
        MOX_GPU_LAUNCH(d, experts4_gate_up, mox_ceil_div(gate.rows, MOX_GPU_EXPERTS4_ROWS), n, 1, .gate = {.first = gate}, .up = {.first = up},
                       .shared_gate = gate, .shared_up = up, .x = a->x, .y = a->y, .n_shared = 1, .n_pairs = n, .x_stride = a->x_stride);
        return MOX_OK;
    }
    MOX_GPU_LAUNCH(d, gate_up, mox_ceil_div(a->gate->rows, MOX_GPU_MATVEC_ROWS), mox_ceil_div(n, MOX_GPU_MATVEC_TOKENS), 1,
                   .gate = gate, .up = up, .x = a->x, .y = a->y, .n = n, .x_stride = a->x_stride,
                   .y_stride = a->y_stride);
    return MOX_OK;
}

/* ---- experts ---- */

static mox_status slot_moe_acquire(mox_dev *d, const mox_moe_ffn_args *a, mox_err *err)
{
    const mox_dev_gpu *g = (mox_dev_gpu *)d;
    if (a->layer >= g->n_layers || g->layers[a->layer].n != a->n_experts || g->layers[a->layer].width != a->width ||
        g->layers[a->layer].dim != a->dim)
        return mox_fail(err, MOX_E_ARG, "device %s: it was not told of the experts of layer %d", d->name, a->layer);
    if (!g->layers[a->layer].come) return MOX_OK;
    return mox_gpu_may_divide(d, a) ? mox_gpu_cold_acquire(d, a, err) : mox_gpu_come_acquire(d, a, err);
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

/* Can the shared expert be one more slot of the routed ones, or is there none? */
static bool is_slot(const mox_gpu_experts *x, const mox_moe_finish_args *a, const mox_gpu_mat *gate, const mox_gpu_mat *up, const mox_gpu_mat *down)
{
    if (a->ffn.k > MOX_GPU_EXPERTS4_SLOTS) return false;
    return a->combine.mode == MOX_SHARED_NONE || (mox_gpu_mat_is_four(gate) && mox_gpu_mat_is_four(up) && mox_gpu_mat_is_four(down) &&
                                                  gate->rows == x->width && up->rows == x->width && down->rows == x->dim);
}

static void finish_together(mox_dev *d, const mox_moe_finish_args *a, const int32_t *ids, mox_gpu_mat gate, mox_gpu_mat up, mox_gpu_mat down)
{
    const mox_moe_ffn_args *f = &a->ffn;
    const mox_moe_combine_args *c = &a->combine;
    const mox_gpu_experts *x = &((mox_dev_gpu *)d)->layers[f->layer];
    const bool gated = c->mode == MOX_SHARED_GATED;
    const int64_t n_shared = c->mode == MOX_SHARED_NONE ? 0 : 1, n_slots = f->k + n_shared, n_pairs = f->n * n_slots;
    MOX_GPU_LAUNCH(d, experts4_gate_up, mox_ceil_div(f->width, MOX_GPU_EXPERTS4_ROWS), gated ? n_pairs + f->n : n_pairs, 1, .gate = x->gate,
                   .up = x->up, .shared_gate = gate, .shared_up = up, .scale = gated ? mox_gpu_mat_of(&a->shared.scale) : gate, .ids = ids,
                   .x = f->x, .y = f->mid, .logit = a->shared.logit, .k = f->k, .n_shared = n_shared, .n_pairs = n_pairs, .x_stride = f->dim);
    const mox_gpu_experts4_down p = {.down = x->down, .shared_down = down, .ids = ids, .w = c->w, .x = f->mid, .h = c->h,
                                     .gate = a->shared.logit, .out = c->out, .k = f->k, .n_shared = n_shared, .width = f->width,
                                     .x_stride = n_slots * f->width, .h_stride = f->dim, .out_stride = f->dim, .gate_stride = 1,
                                     .mode = mox_gpu_shared_mode(c->mode)};
    const bool is_long = f->dim >= LONG_COLS;
    mox_gpu_launch(d, is_long ? MOX_GPU_KERNEL_experts4_down_long : MOX_GPU_KERNEL_experts4_down,
                   mox_ceil_div(f->dim, is_long ? 2 * FOUR_ROWS : FOUR_ROWS), f->n, 1, &p, sizeof p);
}

/* Few tokens go by pair, and nothing is sorted. */
static mox_status finish(mox_dev *d, const mox_moe_finish_args *a, mox_err *err)
{
    const mox_moe_ffn_args *f = &a->ffn;
    const mox_gpu_experts *x = &((mox_dev_gpu *)d)->layers[f->layer];
    const mox_gpu_mat gate = mox_gpu_mat_of(&a->shared.gate), up = mox_gpu_mat_of(&a->shared.up), down = mox_gpu_mat_of(&a->shared.down);
    if (!x->is_four || f->n > FOUR_TOKENS || !mox_gpu_is_wide(f->x, f->dim) || !mox_gpu_is_wide(f->mid, f->width) ||
        !is_slot(x, a, &gate, &up, &down))
        return mox_dev_moe_finish(d, a, err);
    if (a->combine.mode == MOX_SHARED_GATED) {
        const mox_status status = mox_gpu_check_mat(&a->shared.scale, err);
        if (status != MOX_OK && x->come) f->source->release(f->source);
        MOX_TRY(status);
    }
    if (x->come) MOX_TRY(mox_gpu_come_all(d, f, err));
    finish_together(d, a, x->come ? f->batch_pairs : f->ids, gate, up, down);
    return MOX_OK;
}

static mox_status slot_moe_finish(mox_dev *d, const mox_moe_finish_args *a, mox_err *err)
{
    const mox_dev_gpu *g = (const mox_dev_gpu *)d;
    if (!g->layers[a->ffn.layer].come) return finish(d, a, err);
    if (g->divided) return mox_gpu_cold_finish(d, a, err);
    MOX_TRY(mox_gpu_come_guess(d, &a->ffn, err));
    MOX_TRY(finish(d, a, err));
    mox_gpu_come_ahead(d, &a->ffn);
    return MOX_OK;
}

void mox_gpu_fill_products(mox_dev_ops *ops)
{
    ops->embed = slot_embed;
    ops->matmul = slot_matmul;
    ops->project = slot_project;
    ops->gate_up_swiglu = slot_gate_up_swiglu;
    ops->moe_acquire = slot_moe_acquire;
    ops->moe_ffn = slot_moe_ffn;
    ops->moe_finish = slot_moe_finish;
}
