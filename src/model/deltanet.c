/* model/deltanet.c -- see deltanet.h. */
#include "model/deltanet.h"

/* Added to the sum of squares of q and k; fixed by the trained models. */
static const float qk_eps = 1e-6f;

static int64_t channels(const mox_deltanet *g) { return 2 * g->k_heads * g->k_dim + g->v_heads * g->v_dim; }
static int64_t conv_floats(const mox_deltanet *g) { return (g->width - 1) * channels(g); }

typedef struct streams {
    float *qkv, *z, *b, *a; /* [n, channels], [n, v_heads * v_dim], [n, v_heads] twice */
} streams;

static mox_status project(mox_run *r, const mox_deltanet *g, const float *x, const streams *s)
{
    if (!g->grouped) {
        const size_t mark = mox_arena_mark(r->arena);
        void *scratch = mox_arena_take(r->arena, mox_matmul_scratch(r->n, g->qkv.cols), 1);
        const mox_project_args args = {.product = {mox_run_product_args(r, &g->qkv, NULL, false, x, s->qkv, scratch),
                                                   mox_run_product_args(r, &g->z, NULL, false, x, s->z, scratch),
                                                   mox_run_product_args(r, &g->b, NULL, false, x, s->b, scratch),
                                                   mox_run_product_args(r, &g->a, NULL, false, x, s->a, scratch)},
                                       .n = 4};
        const mox_status status = r->dev->ops.project(r->dev, &args, r->err);
        mox_arena_release(r->arena, mark);
        return status;
    }
    float *qkvz = MOX_TAKE(r->arena, float, r->n * g->qkvz.rows);
    float *ba = MOX_TAKE(r->arena, float, r->n * g->ba.rows);
    MOX_TRY(mox_run_linear(r, &g->qkvz, NULL, x, qkvz));
    MOX_TRY(mox_run_linear(r, &g->ba, NULL, x, ba));
    return r->dev->ops.gdn_split(r->dev,
                                 &(mox_gdn_split_args){.qkvz = qkvz, .ba = ba, .qkv = s->qkv, .z = s->z, .b = s->b, .a = s->a,
                                                       .n = r->n, .k_heads = g->k_heads, .v_heads = g->v_heads,
                                                       .k_dim = g->k_dim, .v_dim = g->v_dim},
                                 r->err);
}

/* What follows the products, of one sequence; mixed [n, channels], decay and beta [n, v_heads] are scratch. */
static mox_status mix_span(mox_run *r, const mox_deltanet *g, int64_t i_span, const streams *s, float *mixed, float *decay,
                           float *beta, float *out)
{
    const mox_span *span = &r->spans[i_span];
    const int64_t C = channels(g), H = g->v_heads, key = g->k_heads * g->k_dim, n = span->n, row0 = span->row0;
    float *conv_state = r->recurrent[i_span] + (g->state_at - r->recurrent_at), *state = conv_state + conv_floats(g);
    const float *x = s->qkv + row0 * C;
    float *m = mixed + row0 * C, *y = out + row0 * H * g->v_dim;
    return r->dev->ops.gdn_mix(
        r->dev,
        &(mox_gdn_mix_args){
            .gates = {.a = s->a + row0 * H, .b = s->b + row0 * H, .a_stride = H, .b_stride = H, .a_log = mox_run_vec(r, &g->a_log),
                      .dt_bias = mox_run_vec(r, &g->dt_bias), .g = decay + row0 * H, .beta = beta + row0 * H, .n = n, .heads = H},
            .conv = {.x = x, .state = conv_state, .weight = mox_run_vec(r, &g->conv), .out = m, .n = n, .channels = C,
                     .width = g->width, .x_stride = C, .out_stride = C},
            .shift = {.x = x, .state = conv_state, .n = n, .channels = C, .width = g->width, .x_stride = C},
            .qk_norm = {.q = m, .k = m + key, .n = n, .heads = g->k_heads, .dim = g->k_dim, .stride = C, .eps = qk_eps,
                        .mode = MOX_GDN_EPS_SUM},
            .rule = {.q = m, .k = m + key, .v = m + 2 * key, .q_stride = C, .k_stride = C, .v_stride = C, .g = decay + row0 * H,
                     .beta = beta + row0 * H, .state = state, .out = y, .n = n, .k_heads = g->k_heads, .v_heads = H,
                     .k_dim = g->k_dim, .v_dim = g->v_dim},
            .norm = {.x = y, .z = s->z + row0 * H * g->v_dim, .out = y, .rows = n * H, .dim = g->v_dim,
                     .weight = mox_run_vec(r, &g->norm), .eps = g->eps},
            .chunked = n >= MOX_GDN_CHUNK && !r->deterministic},
        r->err);
}

static mox_status forward(mox_run *r, const mox_mixer *mixer, int32_t layer, const float *x, float *y)
{
    (void)layer;
    const mox_deltanet *g = mixer->data;
    const int64_t n = r->n, C = channels(g), V = g->v_heads * g->v_dim;
    const streams s = {.qkv = MOX_TAKE(r->arena, float, n * C), .z = MOX_TAKE(r->arena, float, n * V),
                       .b = MOX_TAKE(r->arena, float, n * g->v_heads), .a = MOX_TAKE(r->arena, float, n * g->v_heads)};
    float *mixed = MOX_TAKE(r->arena, float, n * C);
    float *decay = MOX_TAKE(r->arena, float, n * g->v_heads), *beta = MOX_TAKE(r->arena, float, n * g->v_heads);
    float *out = MOX_TAKE(r->arena, float, n * V);
    MOX_TRY(project(r, g, x, &s));
    for (int64_t i = 0; i < r->n_spans; i++) MOX_TRY(mix_span(r, g, i, &s, mixed, decay, beta, out));
    return mox_run_linear(r, &g->out, NULL, out, y);
}

mox_status mox_deltanet_config(const mox_config *c, mox_deltanet *sizes, mox_err *err)
{
    MOX_TRY(mox_config_int(c, "linear_num_key_heads", 1, 1 << 16, &sizes->k_heads, err));
    MOX_TRY(mox_config_int(c, "linear_num_value_heads", 1, 1 << 16, &sizes->v_heads, err));
    MOX_TRY(mox_config_int(c, "linear_key_head_dim", 1, 1 << 14, &sizes->k_dim, err));
    MOX_TRY(mox_config_int(c, "linear_value_head_dim", 1, 1 << 14, &sizes->v_dim, err));
    MOX_TRY(mox_config_int(c, "linear_conv_kernel_dim", 1, 8, &sizes->width, err));
    if (sizes->v_heads % sizes->k_heads != 0)
        return mox_fail(err, MOX_E_FORMAT, "%s: linear_num_value_heads %lld is not a multiple of linear_num_key_heads %lld",
                        c->path, (long long)sizes->v_heads, (long long)sizes->k_heads);
    return MOX_OK;
}

float mox_deltanet_norm_offset(const mox_binder *b, int64_t n_layers)
{
    for (long long i = 0; i < n_layers; i++) {
        const mox_tensor_info *t = mox_bind_peek(b, "layers.%lld.linear_attn.conv1d.weight", i);
        if (t && t->n_dims > 0) return t->shape[t->n_dims - 1] != 1 ? 1.0f : 0.0f;
    }
    return 0.0f;
}

mox_status mox_deltanet_bind(mox_model *m, mox_binder *b, int64_t layer, const mox_deltanet *sizes, mox_err *err)
{
    mox_deltanet *g = MOX_KEEP(m, mox_deltanet, 1);
    if (!g) return mox_fail_memory(err, sizeof *g, "a layer");
    *g = *sizes;
    g->eps = m->dims.eps;
    g->state_at = m->recurrent_floats;
    m->layers[layer].recurrent_floats = conv_floats(g) + g->v_heads * g->v_dim * g->k_dim;
    m->recurrent_floats += m->layers[layer].recurrent_floats;
    const int64_t dim = m->dims.dim, V = g->v_heads * g->v_dim, key = g->k_heads * g->k_dim;
    const long long i = layer;
    g->grouped = mox_bind_has(b, "layers.%lld.linear_attn.in_proj_qkvz.weight", i);
    if (g->grouped) {
        MOX_TRY(mox_bind_matrix(b, &g->qkvz, 2 * key + 2 * V, dim, err, "layers.%lld.linear_attn.in_proj_qkvz", i));
        MOX_TRY(mox_bind_matrix(b, &g->ba, 2 * g->v_heads, dim, err, "layers.%lld.linear_attn.in_proj_ba", i));
    } else {
        MOX_TRY(mox_bind_matrix(b, &g->qkv, channels(g), dim, err, "layers.%lld.linear_attn.in_proj_qkv", i));
        MOX_TRY(mox_bind_matrix(b, &g->z, V, dim, err, "layers.%lld.linear_attn.in_proj_z", i));
        MOX_TRY(mox_bind_matrix(b, &g->b, g->v_heads, dim, err, "layers.%lld.linear_attn.in_proj_b", i));
        MOX_TRY(mox_bind_matrix(b, &g->a, g->v_heads, dim, err, "layers.%lld.linear_attn.in_proj_a", i));
    }
    MOX_TRY(mox_bind_vector(b, &g->conv, channels(g) * g->width, false, err, "layers.%lld.linear_attn.conv1d.weight", i));
    MOX_TRY(mox_bind_vector(b, &g->a_log, g->v_heads, false, err, "layers.%lld.linear_attn.A_log", i));
    MOX_TRY(mox_bind_vector(b, &g->dt_bias, g->v_heads, false, err, "layers.%lld.linear_attn.dt_bias", i));
    MOX_TRY(mox_bind_vector(b, &g->norm, g->v_dim, false, err, "layers.%lld.linear_attn.norm.weight", i));
    MOX_TRY(mox_bind_matrix(b, &g->out, dim, V, err, "layers.%lld.linear_attn.out_proj", i));
    if (m->norm_offset == 0.0f) b->mlx = true; /* the convolution is [C, K, 1] */
    m->layers[layer].mixer = (mox_mixer){.forward = forward, .data = g};
    m->report.n_layers_linear++;
    return MOX_OK;
}
