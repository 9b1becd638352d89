/* model/run.h -- what the blocks of a model see while a batch passes through.
 *
 * A batch is n token rows; each row belongs to one span, each span to one sequence.
 * Blocks take activations from the arena and call the device; they never look at
 * the numbers, so the same code runs on every device and measures itself on the
 * planning one. */
#ifndef MOX_MODEL_RUN_H
#define MOX_MODEL_RUN_H

#include "base/arena.h"
#include "dev/dev.h"
#include "model/weights.h"

typedef struct mox_run {
    mox_dev *dev;
    mox_arena *arena;
    int32_t first, end;       /* layers that are here: all, or those of one of several devices */
    int32_t guess_end;        /* of the layers before it the routers are here: end, or one more */
    const mox_residency *residency;
    mox_expert_source *experts;
    const mox_cancel *cancel; /* may be NULL */
    bool deterministic;       /* forms are not chosen by the length of a span */
    int64_t n;                /* rows of the batch */
    const int32_t *tokens;    /* [n] */
    const int32_t *pos;       /* [n] */
    const mox_span *spans;    /* with the page table of each sequence */
    int64_t n_spans;
    const struct mox_layer_caches *caches; /* [n_layers] */
    float *const *recurrent;  /* [n_spans]: recurrent state of the span's sequence, of these layers */
    int64_t recurrent_at;     /* floats of the layers before */
    mox_err *err;
} mox_run;

/* The two paged caches of an attention layer: keys and values, or latents and
 * rotated keys. */
typedef struct mox_layer_caches {
    mox_cache first, second;
} mox_layer_caches;

/* Elements per position of those two; 0: the layer has no cache. */
typedef struct mox_cache_widths {
    int64_t first, second;
} mox_cache_widths;

/* ---- short spellings that every block uses ---- */

static inline mox_mat mox_run_mat(const mox_run *r, const mox_weight *w) { return mox_residency_mat(r->residency, w); }
static inline mox_vec mox_run_vec(const mox_run *r, const mox_vector *v) { return mox_residency_vec(r->residency, v); }

/* W, or NULL for one that is not known, is the next matrix that is read, after operations that read little, and begins a
 * list of n rows. */
static inline void mox_run_expect(const mox_run *r, const mox_weight *w, int64_t n)
{
    if (!r->dev->expect || !w) return;
    const mox_mat m = mox_run_mat(r, w);
    r->dev->expect(r->dev, &m, n);
}

/* y [n, rows] = W x, x [n, cols], both contiguous; bias may be NULL.  exact: in f32
 * whatever the precision of the run. */
static inline mox_matmul_args mox_run_product_args(const mox_run *r, const mox_weight *w, const mox_vector *bias, bool exact,
                                                   const float *x, float *y, void *scratch)
{
    return (mox_matmul_args){.w = mox_run_mat(r, w), .x = x, .y = y, .n = r->n, .x_stride = w->cols, .y_stride = w->rows,
                             .bias = bias ? mox_run_vec(r, bias) : (mox_vec){0}, .exact = exact, .scratch = scratch};
}
static inline mox_status mox_run_product(mox_run *r, const mox_weight *w, const mox_vector *bias, bool exact, const float *x,
                                         float *y)
{
    const size_t mark = mox_arena_mark(r->arena);
    void *scratch = mox_arena_take(r->arena, mox_matmul_scratch(r->n, w->cols), 1);
    const mox_matmul_args args = mox_run_product_args(r, w, bias, exact, x, y, scratch);
    const mox_status status = r->dev->ops.matmul(r->dev, &args, r->err);
    mox_arena_release(r->arena, mark);
    return status;
}
static inline mox_status mox_run_linear(mox_run *r, const mox_weight *w, const mox_vector *bias, const float *x, float *y)
{
    return mox_run_product(r, w, bias, false, x, y);
}

/* out [n, heads, dim] = rms_norm(x), both contiguous; out may be x. */
static inline mox_rms_norm_args mox_run_norm_args(const mox_run *r, const mox_vector *gain, float offset, float eps, const float *x,
                                                  float *out, int64_t heads, int64_t dim)
{
    return (mox_rms_norm_args){.x = x, .out = out, .n = r->n, .heads = heads, .dim = dim, .x_stride = heads * dim,
                               .x_head_stride = dim, .out_stride = heads * dim, .out_head_stride = dim,
                               .weight = mox_run_vec(r, gain), .offset = offset, .eps = eps};
}
static inline mox_status mox_run_norm(mox_run *r, const mox_vector *gain, float offset, float eps, const float *x,
                                      float *out, int64_t heads, int64_t dim)
{
    const mox_rms_norm_args args = mox_run_norm_args(r, gain, offset, eps, x, out, heads, dim);
    return r->dev->ops.rms_norm(r->dev, &args, r->err);
}

#endif
