/* model/gqa.c -- see gqa.h. */
#include "model/gqa.h"

#include "base/size.h"

#include <math.h>

enum { PARTS_SPANS = 5 }; /* devices with many threads cut a few rows finer: as if there were so many */

static mox_rope_args rotation(const mox_run *r, const mox_gqa *g, float *x, int64_t heads)
{
    return (mox_rope_args){.x = x, .n = r->n, .heads = heads, .stride = heads * g->dim, .head_stride = g->dim,
                           .rotary_dim = g->rope.dim, .inv_freq = g->rope.inv_freq, .mscale = g->rope.magnitude,
                           .pairing = MOX_ROPE_HALF, .pos = r->pos, .pos_stride = 1};
}

static mox_kv_append_args append(const mox_run *r, const mox_gqa *g, const mox_cache *cache, const float *src)
{
    return (mox_kv_append_args){.cache = *cache, .spans = r->spans, .n_spans = r->n_spans, .src = src, .heads = g->kv_heads,
                                .dim = g->dim, .stride = g->kv_heads * g->dim, .head_stride = g->dim};
}

/* Queries, or queries and gates, keys and values. */
static mox_status project(mox_run *r, const mox_gqa *g, const float *x, float *q, float *k, float *v)
{
    const size_t mark = mox_arena_mark(r->arena);
    void *scratch = mox_arena_take(r->arena, mox_matmul_scratch(r->n, g->wq.cols), 1);
    const mox_project_args args = {.product = {mox_run_product_args(r, &g->wq, &g->bq, false, x, q, scratch),
                                               mox_run_product_args(r, &g->wk, &g->bk, false, x, k, scratch),
                                               mox_run_product_args(r, &g->wv, &g->bv, false, x, v, scratch)},
                                   .n = 3};
    const mox_status status = r->dev->ops.project(r->dev, &args, r->err);
    mox_arena_release(r->arena, mark);
    return status;
}

static mox_status prepare(mox_run *r, const mox_gqa *g, const mox_layer_caches *caches, float *q, float *k, const float *v)
{
    return r->dev->ops.gqa_heads(r->dev,
                                 &(mox_gqa_heads_args){
                                     .q_norm = mox_run_norm_args(r, &g->q_norm, g->norm_offset, g->eps, q, q, g->heads, g->dim),
                                     .k_norm = mox_run_norm_args(r, &g->k_norm, g->norm_offset, g->eps, k, k, g->kv_heads, g->dim),
                                     .q_rope = rotation(r, g, q, g->heads),
                                     .k_rope = rotation(r, g, k, g->kv_heads),
                                     .k_append = append(r, g, &caches->first, k),
                                     .v_append = append(r, g, &caches->second, v)},
                                 r->err);
}

static mox_status forward(mox_run *r, const mox_mixer *mixer, int32_t layer, const float *x, float *y)
{
    const mox_gqa *g = mixer->data;
    mox_dev *d = r->dev;
    const int64_t q_width = g->heads * g->dim, kv_width = g->kv_heads * g->dim;
    float *q = MOX_TAKE(r->arena, float, r->n * q_width);   /* [n, H, K] */
    float *k = MOX_TAKE(r->arena, float, r->n * kv_width);  /* [n, KV, K] */
    float *v = MOX_TAKE(r->arena, float, r->n * kv_width);  /* [n, KV, K] */
    float *out = MOX_TAKE(r->arena, float, r->n * q_width); /* [n, H, K] */
    const int64_t n_parts = r->deterministic ? 0 : mox_attention_parts(mox_max_i64(r->n_spans, PARTS_SPANS), g->heads, g->dim);
    float *parts = r->deterministic ? NULL : MOX_TAKE(r->arena, float, n_parts);
    float *gate = NULL;                                     /* [n, H, K] */
    if (g->gated) {
        float *both = MOX_TAKE(r->arena, float, r->n * q_width * 2); /* [n, H, 2K] */
        gate = MOX_TAKE(r->arena, float, r->n * q_width);
        MOX_TRY(project(r, g, x, both, k, v));
        MOX_TRY(d->ops.split_q_gate(d, &(mox_split_q_gate_args){.in = both, .q = q, .gate = gate, .n = r->n,
                                                               .heads = g->heads, .dim = g->dim}, r->err));
    } else {
        MOX_TRY(project(r, g, x, q, k, v));
    }
    mox_run_expect(r, &g->wo, g->wo.rows);
    const mox_layer_caches *caches = &r->caches[layer];
    MOX_TRY(prepare(r, g, caches, q, k, v));
    MOX_TRY(d->ops.attention(d,
                             &(mox_attention_args){.q = q, .out = out, .k = caches->first, .v = caches->second,
                                                   .spans = r->spans, .n_spans = r->n_spans, .heads = g->heads,
                                                   .kv_heads = g->kv_heads, .dim = g->dim, .v_dim = g->dim,
                                                   .q_stride = q_width, .q_head_stride = g->dim, .out_stride = q_width,
                                                   .out_head_stride = g->dim, .scale = 1.0f / sqrtf((float)g->dim),
                                                   .causal = true, .window = g->window, .parts = parts, .n_parts = n_parts},
                             r->err));
    if (g->gated) MOX_TRY(d->ops.sigmoid_gate(d, &(mox_sigmoid_gate_args){.x = out, .gate = gate, .n = r->n * q_width}, r->err));
    return mox_run_linear(r, &g->wo, &g->bo, out, y);
}

mox_status mox_gqa_config(const mox_config *c, mox_dims *d, mox_err *err)
{
    MOX_TRY(mox_config_int_or(c, "num_key_value_heads", 1, 1 << 16, d->heads, &d->kv_heads, err));
    if (d->heads % d->kv_heads != 0)
        return mox_fail(err, MOX_E_FORMAT, "%s: num_attention_heads %lld is not a multiple of num_key_value_heads %lld",
                        c->path, (long long)d->heads, (long long)d->kv_heads);
    if (mox_config_has(c, "head_dim")) return mox_config_int(c, "head_dim", 2, 1 << 16, &d->head_dim, err);
    if (d->dim % d->heads != 0)
        return mox_fail(err, MOX_E_FORMAT, "%s: hidden_size %lld is not a multiple of num_attention_heads %lld and there is no head_dim",
                        c->path, (long long)d->dim, (long long)d->heads);
    d->head_dim = d->dim / d->heads;
    return MOX_OK;
}

mox_status mox_gqa_bind(mox_model *m, mox_binder *b, int64_t layer, const mox_rope_table *rope, bool gated,
                        int64_t window, mox_err *err)
{
    const mox_dims *dims = &m->dims;
    mox_gqa *g = MOX_KEEP(m, mox_gqa, 1);
    if (!g) return mox_fail_memory(err, sizeof *g, "a layer");
    *g = (mox_gqa){.heads = dims->heads, .kv_heads = dims->kv_heads, .dim = dims->head_dim, .rope = *rope,
                   .eps = dims->eps, .norm_offset = m->norm_offset, .window = window, .gated = gated};
    const int64_t q = g->heads * g->dim, q_rows = gated ? 2 * q : q, kv = g->kv_heads * g->dim;
    const long long i = layer;
    MOX_TRY(mox_bind_matrix(b, &g->wq, q_rows, dims->dim, err, "layers.%lld.self_attn.q_proj", i));
    MOX_TRY(mox_bind_matrix(b, &g->wk, kv, dims->dim, err, "layers.%lld.self_attn.k_proj", i));
    MOX_TRY(mox_bind_matrix(b, &g->wv, kv, dims->dim, err, "layers.%lld.self_attn.v_proj", i));
    MOX_TRY(mox_bind_matrix(b, &g->wo, dims->dim, q, err, "layers.%lld.self_attn.o_proj", i));
    MOX_TRY(mox_bind_vector(b, &g->bq, q_rows, true, err, "layers.%lld.self_attn.q_proj.bias", i));
    MOX_TRY(mox_bind_vector(b, &g->bk, kv, true, err, "layers.%lld.self_attn.k_proj.bias", i));
    MOX_TRY(mox_bind_vector(b, &g->bv, kv, true, err, "layers.%lld.self_attn.v_proj.bias", i));
    MOX_TRY(mox_bind_vector(b, &g->bo, dims->dim, true, err, "layers.%lld.self_attn.o_proj.bias", i));
    MOX_TRY(mox_bind_vector(b, &g->q_norm, g->dim, false, err, "layers.%lld.self_attn.q_norm.weight", i));
    MOX_TRY(mox_bind_vector(b, &g->k_norm, g->dim, false, err, "layers.%lld.self_attn.k_norm.weight", i));
    m->layers[layer].mixer = (mox_mixer){.forward = forward, .data = g, .first = &g->wq, .n_first = q_rows + 2 * kv};
    m->layers[layer].cache = (mox_cache_widths){kv, kv};
    m->report.n_layers_attention++;
    return MOX_OK;
}
