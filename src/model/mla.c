/* model/mla.c -- see mla.h. */
#include "model/mla.h"

/* The norms inside the projections have this epsilon whatever the config says. */
static const float lora_eps = 1e-6f;

/* Queries, and what is cached of keys and values. */
static mox_status project(mox_run *r, const mox_mla *a, const float *x, float *q_full, float *kv)
{
    const size_t mark = mox_arena_mark(r->arena);
    void *scratch = mox_arena_take(r->arena, mox_matmul_scratch(r->n, a->wq.cols), 1);
    float *low = MOX_TAKE(r->arena, float, r->n * a->q_rank); /* [n, q_rank] */
    const mox_project_args args = {.product = {mox_run_product_args(r, &a->wq, &a->bq_a, false, x, a->q_rank ? low : q_full, scratch),
                                               mox_run_product_args(r, &a->wkv_a, &a->bkv_a, false, x, kv, scratch)},
                                   .n = 2};
    mox_status status = r->dev->ops.project(r->dev, &args, r->err);
    if (status == MOX_OK && a->q_rank) status = mox_run_norm(r, &a->q_norm, 0, lora_eps, low, low, 1, a->q_rank);
    if (status == MOX_OK && a->q_rank) status = mox_run_linear(r, &a->wq_b, NULL, low, q_full);
    mox_arena_release(r->arena, mark);
    return status;
}

static mox_rope_args rotation(const mox_run *r, const mox_mla *a, float *x, int64_t heads)
{
    return (mox_rope_args){.x = x, .n = r->n, .heads = heads, .stride = heads * a->rope_dim, .head_stride = a->rope_dim,
                           .rotary_dim = a->rope_dim, .inv_freq = a->rope.inv_freq, .mscale = a->rope.magnitude,
                           .pairing = a->interleaved ? MOX_ROPE_INTERLEAVED : MOX_ROPE_HALF, .pos = r->pos, .pos_stride = 1};
}

static mox_kv_append_args append(const mox_run *r, const mox_cache *cache, const float *src, int64_t width)
{
    return (mox_kv_append_args){.cache = *cache, .spans = r->spans, .n_spans = r->n_spans, .src = src, .heads = 1, .dim = width,
                                .stride = width, .head_stride = width};
}

static bool expands(const mox_run *r, const mox_mla *a, const mox_span *s)
{
    return !r->deterministic && mox_mla_expands(s, a->nope, a->rope_dim, a->rank, a->v_dim);
}

/* Each span in the form that is cheaper for its length; neighbours of one form together. */
static mox_status attend(mox_run *r, const mox_mla *a, mox_mla_expanded_args args)
{
    for (int64_t i = 0; i < r->n_spans; i += args.n_spans) {
        const bool expanded = expands(r, a, &r->spans[i]);
        args.spans = r->spans + i;
        args.n_spans = 1;
        while (i + args.n_spans < r->n_spans && expands(r, a, &args.spans[args.n_spans]) == expanded) args.n_spans++;
        if (expanded) MOX_TRY(r->dev->ops.mla_expanded(r->dev, &args, r->err));
        else MOX_TRY(mox_dev_mla_folded(r->dev, &args, r->err));
    }
    return MOX_OK;
}

static mox_status forward(mox_run *r, const mox_mixer *mixer, int32_t layer, const float *x, float *y)
{
    const mox_mla *a = mixer->data;
    mox_dev *d = r->dev;
    const int64_t n = r->n, H = a->heads;
    float *q_full = MOX_TAKE(r->arena, float, n * H * (a->nope + a->rope_dim));
    float *kv = MOX_TAKE(r->arena, float, n * (a->rank + a->rope_dim));
    float *q_nope = MOX_TAKE(r->arena, float, n * H * a->nope);
    float *q_pe = MOX_TAKE(r->arena, float, n * H * a->rope_dim);
    float *latent = MOX_TAKE(r->arena, float, n * a->rank);
    float *k_pe = MOX_TAKE(r->arena, float, n * a->rope_dim);
    float *q = MOX_TAKE(r->arena, float, n * H * a->rank);   /* absorbed */
    float *ctx = MOX_TAKE(r->arena, float, n * H * a->rank);
    float *out = MOX_TAKE(r->arena, float, n * H * a->v_dim);
    float *state = MOX_TAKE(r->arena, float, n * H * 2);
    const int64_t n_parts = r->deterministic ? 0 : mox_attention_parts(r->n_spans, H, a->rank);
    float *parts = r->deterministic ? NULL : MOX_TAKE(r->arena, float, n_parts);
    const mox_layer_caches *caches = &r->caches[layer];
    MOX_TRY(project(r, a, x, q_full, kv));
    MOX_TRY(d->ops.mla_heads(d,
                             &(mox_mla_heads_args){
                                 .split = {.q_full = q_full, .kv = kv, .q_nope = q_nope, .q_pe = q_pe, .latent = latent, .k_pe = k_pe,
                                           .n = n, .heads = H, .nope = a->nope, .rope = a->rope_dim, .rank = a->rank},
                                 .norm = mox_run_norm_args(r, &a->kv_norm, 0, lora_eps, latent, latent, 1, a->rank),
                                 .q_rope = rotation(r, a, q_pe, H), .k_rope = rotation(r, a, k_pe, 1), /* which is not normed */
                                 .latent_append = append(r, &caches->first, latent, a->rank),
                                 .k_append = append(r, &caches->second, k_pe, a->rope_dim)},
                             r->err));
    MOX_TRY(attend(r, a,
                   (mox_mla_expanded_args){.key = mox_run_mat(r, &a->key), .value = mox_run_mat(r, &a->value), .by_rank = a->split,
                                           .key_rows = a->split ? a->rank : a->nope + a->v_dim,
                                           .value_rows = a->split ? a->v_dim : a->nope + a->v_dim, .value_row0 = a->split ? 0 : a->nope,
                                           .q_nope = q_nope, .q_pe = q_pe, .out = out, .latent = caches->first, .k_pe = caches->second,
                                           .heads = H, .nope = a->nope, .rope = a->rope_dim, .rank = a->rank, .v_dim = a->v_dim,
                                           .scale = a->scale, .state = state, .q = q, .ctx = ctx, .parts = parts, .n_parts = n_parts}));
    return mox_run_linear(r, &a->wo, &a->bo, out, y);
}

mox_status mox_mla_bind(mox_model *m, mox_binder *b, int64_t layer, const mox_mla *sizes, mox_err *err)
{
    mox_mla *a = MOX_KEEP(m, mox_mla, 1);
    if (!a) return mox_fail_memory(err, sizeof *a, "a layer");
    *a = *sizes;
    const int64_t dim = m->dims.dim, q_rows = a->heads * (a->nope + a->rope_dim);
    const long long i = layer;
    if (a->q_rank) {
        MOX_TRY(mox_bind_matrix(b, &a->wq, a->q_rank, dim, err, "layers.%lld.self_attn.q_a_proj", i));
        MOX_TRY(mox_bind_vector(b, &a->bq_a, a->q_rank, true, err, "layers.%lld.self_attn.q_a_proj.bias", i));
        MOX_TRY(mox_bind_vector(b, &a->q_norm, a->q_rank, false, err, "layers.%lld.self_attn.q_a_layernorm.weight", i));
        MOX_TRY(mox_bind_matrix(b, &a->wq_b, q_rows, a->q_rank, err, "layers.%lld.self_attn.q_b_proj", i));
    } else {
        MOX_TRY(mox_bind_matrix(b, &a->wq, q_rows, dim, err, "layers.%lld.self_attn.q_proj", i));
    }
    MOX_TRY(mox_bind_matrix(b, &a->wkv_a, a->rank + a->rope_dim, dim, err, "layers.%lld.self_attn.kv_a_proj_with_mqa", i));
    MOX_TRY(mox_bind_vector(b, &a->bkv_a, a->rank + a->rope_dim, true, err, "layers.%lld.self_attn.kv_a_proj_with_mqa.bias", i));
    MOX_TRY(mox_bind_vector(b, &a->kv_norm, a->rank, false, err, "layers.%lld.self_attn.kv_a_layernorm.weight", i));
    a->split = mox_bind_has(b, "layers.%lld.self_attn.embed_q.weight", i);
    b->mlx |= a->split;
    if (a->split) {
        MOX_TRY(mox_bind_stack(b, &a->key, a->heads, a->rank, a->nope, err, "layers.%lld.self_attn.embed_q", i));
        MOX_TRY(mox_bind_stack(b, &a->value, a->heads, a->v_dim, a->rank, err, "layers.%lld.self_attn.unembed_out", i));
    } else {
        MOX_TRY(mox_bind_matrix(b, &a->key, a->heads * (a->nope + a->v_dim), a->rank, err, "layers.%lld.self_attn.kv_b_proj", i));
        a->value = a->key;
    }
    MOX_TRY(mox_bind_matrix(b, &a->wo, dim, a->heads * a->v_dim, err, "layers.%lld.self_attn.o_proj", i));
    MOX_TRY(mox_bind_vector(b, &a->bo, dim, true, err, "layers.%lld.self_attn.o_proj.bias", i));
    m->layers[layer].mixer = (mox_mixer){.forward = forward, .data = a};
    m->layers[layer].cache = (mox_cache_widths){a->rank, a->rope_dim};
    m->dims.v_dim = a->v_dim;
    m->report.n_layers_latent++;
    return MOX_OK;
}
