/* ops/layer.c -- the composite of layer.h, made of catalogue entries alone.
 *
 * I1  everything that can be refused is refused before the cache is touched, and
 *     out is written by the last operation only; so a refusal changes nothing that
 *     a caller can see (positions from len on are nobody's). */
#include "ops/layer.h"

#include "ops/entry.h"

#include <math.h>

/* The buffers of a forward pass, cut out of the caller's scratch. */
typedef struct scratch {
    float *hidden;        /* [n, dim]: normed input, then o_proj, then the residual stream */
    float *normed;        /* [n, dim]: the second norm, then the feed-forward's output     */
    float *q, *k, *v;     /* [n, heads or kv_heads, head_dim]; q is later the attention    */
    float *qr, *kr, *vr;  /* the same head-major, normed and rotated                       */
    float *gate, *up;     /* [n, ffn] */
    float *acts;          /* prepared activations of a product */
} scratch;

static bool add_product(int64_t *total, int64_t a, int64_t b)
{
    int64_t product;
    return mox_mul_i64(a, b, &product) && mox_add_i64(*total, product, total);
}

/* Columns of the widest product. */
static int64_t widest(const mox_layer_args *a)
{
    return mox_max_i64(mox_max_i64(a->dim, a->ffn), a->heads * a->head_dim);
}

int64_t mox_layer_scratch_floats(const mox_layer_args *a)
{
    int64_t per_token = 0, q, kv, total;
    if (a->n < 0 || a->dim < 0 || a->ffn < 0 || a->heads < 0 || a->kv_heads < 0 || a->head_dim < 0) return -1;
    if (!mox_mul_i64(a->heads, a->head_dim, &q) || !mox_mul_i64(a->kv_heads, a->head_dim, &kv)) return -1;
    if (!add_product(&per_token, 2, a->dim) || !add_product(&per_token, 2, a->ffn) ||
        !add_product(&per_token, 2, q) || !add_product(&per_token, 4, kv) ||
        !mox_mul_i64(per_token, a->n, &total))
        return -1;
    const int64_t acts = mox_matmul_scratch(a->n, widest(a));
    return acts >= 0 && mox_add_i64(total, acts / 4, &total) ? total : -1;
}

static scratch cut(const mox_layer_args *a)
{
    const int64_t d = a->n * a->dim, q = a->n * a->heads * a->head_dim, kv = a->n * a->kv_heads * a->head_dim;
    scratch s = {.hidden = a->scratch};
    s.normed = s.hidden + d;
    s.q = s.normed + d;
    s.qr = s.q + q;
    s.k = s.qr + q;
    s.kr = s.k + kv;
    s.v = s.kr + kv;
    s.vr = s.v + kv;
    s.gate = s.vr + kv;
    s.up = s.gate + a->n * a->ffn;
    s.acts = s.up + a->n * a->ffn;
    return s;
}

static mox_status check_shape(const mox_check *c, const char *name, const mox_mat *m, int64_t rows,
                              int64_t cols)
{
    MOX_TRY(mox_check_mat(c, name, m));
    if (m->rows == rows && m->cols == cols) return MOX_OK;
    return mox_refuse(c, MOX_E_ARG, "%s is [%lld, %lld], not [%lld, %lld]", name, (long long)m->rows,
                      (long long)m->cols, (long long)rows, (long long)cols);
}

static mox_status check_weights(const mox_check *c, const mox_layer_args *a)
{
    const mox_layer_weights *w = &a->w;
    const int64_t q = a->heads * a->head_dim, kv = a->kv_heads * a->head_dim;
    MOX_TRY(mox_check_vec(c, "input_norm", &w->input_norm, a->dim, true));
    MOX_TRY(mox_check_vec(c, "post_norm", &w->post_norm, a->dim, true));
    MOX_TRY(mox_check_vec(c, "q_norm", &w->q_norm, a->head_dim, true));
    MOX_TRY(mox_check_vec(c, "k_norm", &w->k_norm, a->head_dim, true));
    MOX_TRY(check_shape(c, "wq", &w->wq, q, a->dim));
    MOX_TRY(check_shape(c, "wk", &w->wk, kv, a->dim));
    MOX_TRY(check_shape(c, "wv", &w->wv, kv, a->dim));
    MOX_TRY(check_shape(c, "wo", &w->wo, a->dim, q));
    MOX_TRY(check_shape(c, "gate", &w->gate, a->ffn, a->dim));
    MOX_TRY(check_shape(c, "up", &w->up, a->ffn, a->dim));
    return check_shape(c, "down", &w->down, a->dim, a->ffn);
}

static mox_status check_sizes(const mox_check *c, const mox_layer_args *a)
{
    int64_t n_x, n_cache, table, end;
    MOX_TRY(mox_check_size(c, "n", a->n, 0));
    MOX_TRY(mox_check_size(c, "dim", a->dim, 1));
    MOX_TRY(mox_check_size(c, "ffn", a->ffn, 1));
    MOX_TRY(mox_check_size(c, "heads", a->heads, 1));
    MOX_TRY(mox_check_size(c, "kv_heads", a->kv_heads, 1));
    MOX_TRY(mox_check_size(c, "head_dim", a->head_dim, 1));
    if (a->heads % a->kv_heads != 0 || a->head_dim % 2 != 0)
        return mox_refuse(c, MOX_E_ARG,
                          "%lld heads over %lld key heads of %lld elements do not divide evenly",
                          (long long)a->heads, (long long)a->kv_heads, (long long)a->head_dim);
    if (!(a->eps >= 0.0f))
        return mox_refuse(c, MOX_E_ARG, "eps is %g, which is not a number from 0 up", (double)a->eps);
    const int64_t floats = mox_layer_scratch_floats(a);
    if (floats < 0) return mox_refuse(c, MOX_E_ARG, "the scratch memory of this layer is too large");
    MOX_TRY(mox_check_f32(c, "scratch", a->scratch, floats));
    MOX_TRY(mox_check_product(c, "x", a->n, a->dim, &n_x));
    MOX_TRY(mox_check_f32(c, "x", a->x, n_x));
    MOX_TRY(mox_check_f32(c, "out", a->out, n_x));
    if (!a->cache) return mox_refuse(c, MOX_E_ARG, "the cache is NULL");
    MOX_TRY(mox_check_size(c, "the cache's len", a->cache->len, 0));
    MOX_TRY(mox_check_product(c, "the cache", a->cache->capacity, a->kv_heads * a->head_dim, &n_cache));
    MOX_TRY(mox_check_f32(c, "the key cache", a->cache->k, n_cache));
    MOX_TRY(mox_check_f32(c, "the value cache", a->cache->v, n_cache));
    if (!mox_add_i64(a->cache->len, a->n, &end) || end > a->cache->capacity)
        return mox_refuse(c, MOX_E_FULL, "the cache holds %lld of %lld positions, so %lld more do not fit",
                          (long long)a->cache->len, (long long)a->cache->capacity, (long long)a->n);
    if (end > a->n_positions)
        return mox_refuse(c, MOX_E_ARG, "position %lld is wanted, but the tables have %lld",
                          (long long)end - 1, (long long)a->n_positions);
    MOX_TRY(mox_check_product(c, "cos", a->n_positions, a->head_dim / 2, &table));
    MOX_TRY(mox_check_f32(c, "cos", a->cos, table));
    return mox_check_f32(c, "sin", a->sin, table);
}

static mox_status project(const mox_exec *e, const mox_mat *w, const float *x, float *y, int64_t n, float *acts,
                          mox_err *err)
{
    const mox_matmul_args m = {.w = *w, .x = x, .y = y, .n = n, .x_stride = w->cols, .y_stride = w->rows, .scratch = acts};
    return mox_op_matmul(e, &m, err);
}

static mox_status turn(const mox_exec *e, const mox_layer_args *a, mox_qk_mode mode, mox_vec weight,
                       const float *in, float *out, int64_t heads, mox_err *err)
{
    const mox_qk_norm_rope_args r = {.in = in, .out = out, .n = a->n, .heads = heads, .dim = a->head_dim,
                                     .mode = mode, .weight = weight, .eps = a->eps, .cos = a->cos,
                                     .sin = a->sin, .n_positions = a->n_positions, .pos_offset = a->cache->len};
    return mox_op_qk_norm_rope(e, &r, err);
}

static mox_qk_mode mode_of(const mox_vec *weight)
{
    return weight->type == MOX_DT_NONE ? MOX_QK_ROPE : MOX_QK_NORM_ROPE;
}

/* s->hidden holds the normed input; s->q receives the attention of every head. */
static mox_status attend(const mox_exec *e, const mox_layer_args *a, const scratch *s, mox_err *err)
{
    const mox_layer_weights *w = &a->w;
    MOX_TRY(project(e, &w->wq, s->hidden, s->q, a->n, s->acts, err));
    MOX_TRY(project(e, &w->wk, s->hidden, s->k, a->n, s->acts, err));
    MOX_TRY(project(e, &w->wv, s->hidden, s->v, a->n, s->acts, err));
    MOX_TRY(turn(e, a, mode_of(&w->q_norm), w->q_norm, s->q, s->qr, a->heads, err));
    MOX_TRY(turn(e, a, mode_of(&w->k_norm), w->k_norm, s->k, s->kr, a->kv_heads, err));
    MOX_TRY(turn(e, a, MOX_QK_COPY, (mox_vec){0}, s->v, s->vr, a->kv_heads, err));

    const int64_t hd = a->head_dim;
    const mox_cache k = {.data = a->cache->k, .type = MOX_DT_F32, .page_len = a->cache->capacity, .n_pages = 1,
                         .token_stride = hd, .head_stride = a->cache->capacity * hd};
    mox_cache v = k;
    v.data = a->cache->v;
    static const int32_t only_page = 0;
    const mox_span span = {.n = a->n, .pos0 = a->cache->len, .pages = &only_page, .n_pages = 1};
    mox_kv_append_args append = {.cache = k, .spans = &span, .n_spans = 1, .src = s->kr, .heads = a->kv_heads,
                                 .dim = hd, .stride = hd, .head_stride = a->n * hd};
    MOX_TRY(mox_op_kv_append(e, &append, err));
    append.cache = v;
    append.src = s->vr;
    MOX_TRY(mox_op_kv_append(e, &append, err));

    const mox_attention_args at = {.q = s->qr, .out = s->q, .k = k, .v = v, .spans = &span, .n_spans = 1,
                                   .heads = a->heads, .kv_heads = a->kv_heads, .dim = hd, .v_dim = hd,
                                   .q_stride = hd, .q_head_stride = a->n * hd, .out_stride = a->heads * hd,
                                   .out_head_stride = hd, .scale = (float)(1.0 / sqrt((double)hd)),
                                   .causal = true};
    return mox_op_attention(e, &at, err);
}

mox_status mox_op_layer_forward(const mox_exec *e, const mox_layer_args *a, mox_err *err)
{
    const mox_check c = {"layer_forward", err};
    MOX_TRY(check_sizes(&c, a));
    MOX_TRY(check_weights(&c, a));
    if (a->n == 0) return MOX_OK;
    const mox_layer_weights *w = &a->w;
    const scratch s = cut(a);
    const mox_rms_norm_args norm = {.x = a->x, .out = s.hidden, .n = a->n, .heads = 1, .dim = a->dim,
                                    .x_stride = a->dim, .out_stride = a->dim, .weight = w->input_norm,
                                    .eps = a->eps};
    MOX_TRY(mox_op_rms_norm(e, &norm, err));
    MOX_TRY(attend(e, a, &s, err));
    MOX_TRY(project(e, &w->wo, s.q, s.hidden, a->n, s.acts, err));
    const mox_residual_norm_args residual = {.a = a->x, .b = s.hidden, .scale = w->attn_scale,
                                             .scale_len = a->dim, .res = s.hidden, .norm = s.normed,
                                             .rows = a->n, .dim = a->dim, .weight = w->post_norm,
                                             .eps = a->eps};
    MOX_TRY(mox_op_residual_norm(e, &residual, err));
    MOX_TRY(project(e, &w->gate, s.normed, s.gate, a->n, s.acts, err));
    MOX_TRY(project(e, &w->up, s.normed, s.up, a->n, s.acts, err));
    const mox_swiglu_args act = {.gate = s.gate, .up = s.up, .out = s.gate, .rows = a->n, .dim = a->ffn,
                                 .gate_stride = a->ffn, .up_stride = a->ffn, .out_stride = a->ffn};
    MOX_TRY(mox_op_swiglu(e, &act, err));
    MOX_TRY(project(e, &w->down, s.gate, s.normed, a->n, s.acts, err));
    if (w->mlp_scale) {
        const mox_scale_add_args add = {.a = s.hidden, .b = s.normed, .scale = w->mlp_scale, .out = a->out,
                                        .n = a->n * a->dim, .scale_len = a->dim};
        MOX_TRY(mox_op_scale_add(e, &add, err));
    } else {
        const mox_add_args add = {.a = s.hidden, .b = s.normed, .out = a->out, .n = a->n * a->dim};
        MOX_TRY(mox_op_add(e, &add, err));
    }
    a->cache->len += a->n;
    return MOX_OK;
}
