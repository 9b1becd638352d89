/* model/moe.c -- see moe.h. */
#include "model/moe.h"

#include "base/size.h"

enum { GUESS_ROWS = 4 }; /* of larger batches hardly an expert is not wanted */

static mox_status route(mox_run *r, const mox_moe *e, const float *x, float *logits, int32_t *ids, float *weights)
{
    mox_dev *d = r->dev;
    MOX_TRY(mox_run_product(r, &e->router, NULL, true, x, logits)); /* rounding here would choose other experts */
    if (e->router_kind == MOX_ROUTER_SIGMOID)
        return d->ops.router_sigmoid(d,
                                     &(mox_router_sigmoid_args){.logits = logits, .bias = mox_run_vec(r, &e->router_bias),
                                                                .ids = ids, .weights = weights, .n = r->n,
                                                                .n_experts = e->n_experts, .k = e->k, .n_groups = e->n_groups,
                                                                .kept_groups = e->kept_groups, .renormalize = e->renormalize,
                                                                .factor = e->factor},
                                     r->err);
    return d->ops.router_topk(d,
                              &(mox_router_topk_args){.logits = logits, .ids = ids, .weights = weights, .n = r->n,
                                                      .n_experts = e->n_experts, .k = e->k, .order = MOX_TOPK_SORTED,
                                                      .renormalize = e->renormalize},
                              r->err);
}

mox_moe_ffn_args mox_moe_take(mox_arena *a, const mox_moe *sizes, int64_t dim, int64_t n)
{
    const int64_t k = sizes->k, E = sizes->n_experts, width = sizes->width, pairs = n * k;
    return (mox_moe_ffn_args){
        .rows = MOX_TAKE(a, float, pairs * dim), .n = n, .k = k, .n_experts = E, .dim = dim, .width = width,
        .bucket_offsets = MOX_TAKE(a, int64_t, E + 1), .batch_offsets = MOX_TAKE(a, int64_t, E + 1),
        .bucket_pairs = MOX_TAKE(a, int32_t, pairs), .batch_pairs = MOX_TAKE(a, int32_t, pairs),
        .batch_tokens = MOX_TAKE(a, int32_t, pairs), .wanted = MOX_TAKE(a, int32_t, E), .batch = MOX_TAKE(a, mox_expert, E),
        .gate = MOX_TAKE(a, mox_mat, E), .up = MOX_TAKE(a, mox_mat, E), .down = MOX_TAKE(a, mox_mat, E),
        .mid = MOX_TAKE(a, float, (pairs + (sizes->shared_mode != MOX_SHARED_NONE ? n : 0)) * width),
        .acts = mox_arena_take(a, mox_matmul_scratch(pairs, mox_max_i64(dim, width)), 1)};
}

/* The expert that all tokens share, and its gate, where the family has them. */
static mox_moe_shared shared_args(mox_run *r, const mox_moe *e, int64_t dim)
{
    if (e->shared_mode == MOX_SHARED_NONE) return (mox_moe_shared){.mid = NULL};
    const mox_dense *f = &e->shared;
    mox_moe_shared s = {.gate = mox_run_mat(r, &f->gate), .up = mox_run_mat(r, &f->up), .down = mox_run_mat(r, &f->down),
                        .mid = MOX_TAKE(r->arena, float, r->n * f->width), .out = MOX_TAKE(r->arena, float, r->n * dim),
                        .logit = MOX_TAKE(r->arena, float, r->n),
                        .scratch = mox_arena_take(r->arena, mox_matmul_scratch(r->n, mox_max_i64(dim, f->width)), 1)};
    if (e->shared_mode == MOX_SHARED_GATED) s.scale = mox_run_mat(r, &e->shared_gate);
    return s;
}

/* What the layer that follows will probably want: its own router, on the residual stream as it is now.
 * The guess stays NULL where there is nothing to guess, or nobody who would use it. */
static mox_status guess_next(mox_run *r, const mox_moe *e, int32_t layer, const float *h, mox_moe_ffn_args *args)
{
    const mox_model *m = e->model;
    if (layer + 1 >= r->guess_end || !m->layers[layer + 1].experts) return MOX_OK;
    const mox_layer *next = &m->layers[layer + 1];
    const mox_moe *router = next->ffn.data;
    const int64_t rows = mox_min_i64(r->n, GUESS_ROWS); /* taken whatever r->n is, so that more rows never take less memory */
    float *x = MOX_TAKE(r->arena, float, rows * m->dims.dim);            /* [n, D] */
    int32_t *ids = MOX_TAKE(r->arena, int32_t, rows * router->k);        /* [n, k] */
    float *weights = MOX_TAKE(r->arena, float, rows * router->k);        /* [n, k], of no interest */
    float *logits = MOX_TAKE(r->arena, float, rows * router->n_experts); /* [n, E] */
    if (r->n > GUESS_ROWS) return MOX_OK;
    if (!r->experts->wants || !r->experts->wants(r->experts)) return MOX_OK;
    MOX_TRY(mox_run_norm(r, &next->norm_post, m->norm_offset, m->dims.eps, h, x, 1, m->dims.dim));
    MOX_TRY(route(r, router, x, logits, ids, weights));
    args->guess = ids;
    args->guess_k = router->k;
    return MOX_OK;
}

static mox_status forward(mox_run *r, const mox_ffn *ffn, int32_t layer, const float *x, float *h)
{
    const mox_moe *e = ffn->data;
    mox_dev *d = r->dev;
    const int64_t n = r->n, dim = e->router.cols;
    int32_t *ids = MOX_TAKE(r->arena, int32_t, n * e->k);     /* [n, k] */
    float *weights = MOX_TAKE(r->arena, float, n * e->k);     /* [n, k] */
    float *logits = MOX_TAKE(r->arena, float, n * e->n_experts); /* [n, E] */
    MOX_TRY(route(r, e, x, logits, ids, weights));
    mox_moe_ffn_args args = mox_moe_take(r->arena, e, dim, n);
    args.source = r->experts;
    args.layer = layer;
    args.x = x;
    args.ids = ids;
    args.w = weights;
    args.cancel = r->cancel;
    MOX_TRY(d->ops.moe_acquire(d, &args, r->err));
    const mox_status status = guess_next(r, e, layer, h, &args); /* while experts come */
    if (status != MOX_OK) {
        r->experts->release(r->experts);
        return status;
    }
    const mox_moe_shared shared = shared_args(r, e, dim);
    return d->ops.moe_finish(d,
                             &(mox_moe_finish_args){.ffn = args, .shared = shared,
                                                    .combine = {.h = h, .experts = args.rows, .w = weights, .mode = e->shared_mode,
                                                                .shared = shared.out, .gate = shared.logit, .gate_stride = 1, .out = h, .n = n,
                                                                .k = e->k, .dim = dim}},
                             r->err);
}

mox_status mox_moe_config(const mox_config *c, mox_moe *sizes, mox_err *err)
{
    static const char *const spellings[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    const char *key = spellings[0];
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++)
        if (mox_config_has(c, spellings[i])) key = spellings[i];
    MOX_TRY(mox_config_int(c, key, 1, 1 << 16, &sizes->n_experts, err));
    MOX_TRY(mox_config_int(c, "num_experts_per_tok", 1, 1 << 16, &sizes->k, err));
    if (sizes->k > sizes->n_experts)
        return mox_fail(err, MOX_E_FORMAT, "%s: num_experts_per_tok is %lld but there are only %lld experts", c->path,
                        (long long)sizes->k, (long long)sizes->n_experts);
    return mox_config_int(c, "moe_intermediate_size", 1, 1 << 20, &sizes->width, err);
}

static mox_status bind_stacks(mox_binder *b, mox_expert_weights *x, const mox_moe *e, int64_t dim, long long layer, mox_err *err)
{
    mox_weight gate, up, down;
    b->mlx = true;
    MOX_TRY(mox_bind_stack(b, &gate, e->n_experts, e->width, dim, err, "layers.%lld.mlp.switch_mlp.gate_proj", layer));
    MOX_TRY(mox_bind_stack(b, &up, e->n_experts, e->width, dim, err, "layers.%lld.mlp.switch_mlp.up_proj", layer));
    MOX_TRY(mox_bind_stack(b, &down, e->n_experts, dim, e->width, err, "layers.%lld.mlp.switch_mlp.down_proj", layer));
    if (b->n_missing) return MOX_OK;
    for (int64_t i = 0; i < e->n_experts; i++)
        x[i] = (mox_expert_weights){.gate = mox_weight_rows(&gate, i * e->width, e->width),
                                    .up = mox_weight_rows(&up, i * e->width, e->width),
                                    .down = mox_weight_rows(&down, i * dim, dim)};
    return MOX_OK;
}

static mox_status bind_fused(mox_binder *b, mox_expert_weights *x, const mox_moe *e, int64_t dim, long long layer, mox_err *err)
{
    mox_weight both, down; /* per expert: gate rows, then up rows */
    MOX_TRY(mox_bind_stack(b, &both, e->n_experts, 2 * e->width, dim, err, "layers.%lld.mlp.experts.gate_up_proj", layer));
    MOX_TRY(mox_bind_stack(b, &down, e->n_experts, dim, e->width, err, "layers.%lld.mlp.experts.down_proj", layer));
    if (b->n_missing) return MOX_OK;
    for (int64_t i = 0; i < e->n_experts; i++)
        x[i] = (mox_expert_weights){.gate = mox_weight_rows(&both, 2 * i * e->width, e->width),
                                    .up = mox_weight_rows(&both, (2 * i + 1) * e->width, e->width),
                                    .down = mox_weight_rows(&down, i * dim, dim)};
    return MOX_OK;
}

static mox_status bind_single(mox_binder *b, mox_expert_weights *x, const mox_moe *e, int64_t dim, long long layer, mox_err *err)
{
    for (long long i = 0; i < e->n_experts; i++) {
        MOX_TRY(mox_bind_matrix(b, &x[i].gate, e->width, dim, err, "layers.%lld.mlp.experts.%lld.gate_proj", layer, i));
        MOX_TRY(mox_bind_matrix(b, &x[i].up, e->width, dim, err, "layers.%lld.mlp.experts.%lld.up_proj", layer, i));
        MOX_TRY(mox_bind_matrix(b, &x[i].down, dim, e->width, err, "layers.%lld.mlp.experts.%lld.down_proj", layer, i));
    }
    return MOX_OK;
}

static mox_status bind_experts(mox_model *m, mox_binder *b, int64_t layer, const mox_moe *e, mox_err *err)
{
    mox_expert_weights *x = MOX_KEEP(m, mox_expert_weights, e->n_experts);
    if (!x) return mox_fail_memory(err, (size_t)e->n_experts * sizeof *x, "the experts of a layer");
    const long long i = layer;
    b->counting_experts = true;
    mox_status status;
    if (mox_bind_has(b, "layers.%lld.mlp.switch_mlp.gate_proj.weight", i)) status = bind_stacks(b, x, e, m->dims.dim, i, err);
    else if (mox_bind_has(b, "layers.%lld.mlp.experts.gate_up_proj", i)) status = bind_fused(b, x, e, m->dims.dim, i, err);
    else status = bind_single(b, x, e, m->dims.dim, i, err);
    b->counting_experts = false;
    m->layers[layer].experts = x;
    return status;
}

mox_status mox_moe_layer(mox_model *m, mox_binder *b, int64_t layer, const mox_moe *sizes, const char *shared_path,
                         mox_err *err)
{
    mox_moe *e = MOX_KEEP(m, mox_moe, 1);
    if (!e) return mox_fail_memory(err, sizeof *e, "a layer");
    *e = *sizes;
    e->model = m;
    const long long i = layer;
    MOX_TRY(mox_bind_matrix(b, &e->router, e->n_experts, m->dims.dim, err, "layers.%lld.mlp.gate", i));
    if (e->router_kind == MOX_ROUTER_SIGMOID)
        MOX_TRY(mox_bind_vector(b, &e->router_bias, e->n_experts, false, err, "layers.%lld.mlp.gate.e_score_correction_bias", i));
    MOX_TRY(bind_experts(m, b, layer, e, err));
    if (e->shared_mode != MOX_SHARED_NONE)
        MOX_TRY(mox_dense_bind(m, b, &e->shared, e->shared_width, err, "layers.%lld.mlp.%s", i, shared_path));
    if (e->shared_mode == MOX_SHARED_GATED)
        MOX_TRY(mox_bind_matrix(b, &e->shared_gate, 1, m->dims.dim, err, "layers.%lld.mlp.shared_expert_gate", i));
    m->layers[layer].ffn = (mox_ffn){.forward = forward, .data = e, .first = &e->router, .n_first = e->router.rows};
    m->n_experts = e->n_experts;
    m->report.n_layers_moe++;
    m->report.n_experts = e->n_experts;
    m->report.n_experts_active = e->k;
    m->report.expert_width = e->width;
    m->report.shared_expert_width = e->shared_width;
    m->report.params_active += e->k * 3 * e->width * m->dims.dim;
    return MOX_OK;
}
