/* tests/check/check_sequences.c -- what devices do at once instead of one after the other.
 *
 * The result must be that of the operations on their own, which have tests and oracles: they are
 * called here with the reference kernels, and results held to their tolerances.  Matrices are aligned as those of
 * large models are, so that few tokens take the kernels that are for them, and more tokens the composition. */
#include "caches.h"
#include "device.h"

static void *aligned_copy(const void *src, int64_t bytes)
{
    void *copy = ck_bytes(bytes);
    memcpy(copy, src, (size_t)bytes);
    return copy;
}

static float *aligned_random(int64_t n) { return aligned_copy(ck_random(n, 1.0f), n * 4); }

/* 4 bits, groups of 64 with scales in BF16. */
static mox_mat four(int64_t rows, int64_t cols)
{
    mox_mat m = ck_mat(CK_Q4, 64, rows, cols);
    while (m.layout.scale_type != MOX_DT_BF16) m = ck_mat(CK_Q4, 64, rows, cols);
    const int64_t scales = rows * mox_mat_scale_row_bytes(&m.layout, cols);
    m.w = aligned_copy(m.w, rows * mox_mat_row_bytes(&m.layout, cols));
    m.scales = aligned_copy(m.scales, scales);
    m.biases = aligned_copy(m.biases, scales);
    return m;
}

static void close_to(const float *got, const float *want, int64_t n, const char *what)
{
    const double *w = or_widen(want, n);
    ck_class_s(got, w, n, or_max_abs(w, n), what);
}

/* ---- project ---- */

static void project_case(int64_t n_products, int64_t n, bool biases)
{
    enum { COLS = 256 };
    static const int64_t rows[MOX_PROJECT_MOST] = {40, 16, 23, 9};
    ck_label("%lld products, %lld tokens, biases %d", (long long)n_products, (long long)n, biases);
    mox_project_args a = {.n = n_products};
    mox_err err;
    const float *x = aligned_random(n * COLS);
    float *want[MOX_PROJECT_MOST];
    for (int i = 0; i < n_products; i++) {
        mox_matmul_args *p = &a.product[i];
        *p = (mox_matmul_args){.w = four(rows[i], COLS), .x = x, .y = ck_f32(n * rows[i]), .n = n, .x_stride = COLS, .y_stride = rows[i]};
        if (biases) p->bias = ck_vec(MOX_DT_F32, ck_random(rows[i], 4.0f), rows[i]);
        mox_matmul_args ref = *p;
        ref.y = want[i] = ck_f32(n * rows[i]);
        ck_ok(mox_op_matmul(&ck.ref, &ref, &err), &err);
    }
    ck_device_project(&a);
    for (int i = 0; i < n_products; i++) close_to(a.product[i].y, want[i], n * rows[i], "a product");
}

static void test_project(void)
{
    static const int64_t tokens[] = {1, 3, 4, 7};
    for (int64_t n_products = 2; n_products <= MOX_PROJECT_MOST; n_products++)
        for (int i = 0; i < 4; i++)
            for (int biases = 0; biases < 2; biases++) project_case(n_products, tokens[i], biases);
}

/* ---- a batch of two sequences, whose pages one table has ---- */

enum { FIRST = 5, SECOND = 1, ROWS = FIRST + SECOND, POS0 = 3, LEN = 16 };

typedef struct batch {
    mox_span spans[2];
    int32_t *pos;
    float *freq;
} batch;

static batch batch_on(const test_cache *c, int64_t rotary_dim)
{
    batch b = {.spans = {{.row0 = 0, .n = FIRST, .pos0 = POS0, .pages = c->pages, .n_pages = c->n_pages},
                         {.row0 = FIRST, .n = SECOND, .pos0 = LEN + 1, .pages = c->pages, .n_pages = c->n_pages}},
               .pos = ck_i32(ROWS), .freq = ck_f32(rotary_dim / 2)};
    for (int i = 0; i < ROWS; i++) b.pos[i] = (int32_t)(i < FIRST ? POS0 + i : LEN + 1 + i - FIRST);
    for (int64_t i = 0; i < rotary_dim / 2; i++) b.freq[i] = (float)pow(1e4, -2.0 * (double)i / (double)rotary_dim);
    return b;
}

static int64_t rows_of(const batch *b) { return b->spans[0].n + b->spans[1].n; }

/* The first row of each alone. */
static batch only_first(batch b)
{
    b.pos[1] = b.pos[FIRST];
    b.spans[0].n = b.spans[1].n = b.spans[1].row0 = 1;
    return b;
}

static test_cache same_cache(const test_cache *from)
{
    test_cache c = *from;
    c.c.data = aligned_copy(from->c.data, from->n_elements * mox_dtype_bytes(from->c.type));
    return c;
}

/* What a cache has at the places of the batch. */
static float *appended(const test_cache *c, const batch *b, int64_t heads, int64_t dim)
{
    float *all = ck_f32(ROWS * heads * dim);
    for (int i = 0; i < 2; i++)
        for (int64_t t = 0; t < b->spans[i].n * heads * dim; t++) {
            const int64_t at = cache_at(c, b->spans[i].pos0 + t / dim / heads, t / dim % heads) + t % dim;
            all[b->spans[i].row0 * heads * dim + t] =
                c->c.type == MOX_DT_F16 ? mox_f16_to_f32(((const uint16_t *)c->c.data)[at]) : ((const float *)c->c.data)[at];
        }
    return all;
}

/* Caches in f16 keep 11 bits, the last of which may turn. */
static void same_kept(const test_cache *got, const test_cache *want, const batch *b, int64_t heads, int64_t dim, const char *what)
{
    const float *g = appended(got, b, heads, dim), *w = appended(want, b, heads, dim);
    const int64_t n = rows_of(b) * heads * dim;
    if (got->c.type == MOX_DT_F32) close_to(g, w, n, what);
    else ck_close(g, or_widen(w, n), or_widen(w, n), n, 0, or_max_abs(or_widen(w, n), n) / 1024, what);
}

/* ---- gqa_heads ---- */

typedef struct heads_data {
    float *q, *k, *v;
    test_cache kc, vc;
} heads_data;

enum { HEADS = 4, KV = 2 };

static mox_gqa_heads_args heads_args(const heads_data *d, int64_t dim, const mox_gqa_heads_args *common)
{
    mox_gqa_heads_args a = *common;
    a.q_norm.x = a.q_norm.out = a.q_rope.x = d->q;
    a.k_norm.x = a.k_norm.out = a.k_rope.x = d->k;
    a.q_norm.heads = a.q_rope.heads = HEADS;
    a.k_norm.heads = a.k_rope.heads = KV;
    a.q_norm.x_stride = a.q_norm.out_stride = a.q_rope.stride = HEADS * dim;
    a.k_norm.x_stride = a.k_norm.out_stride = a.k_rope.stride = KV * dim;
    a.k_append.cache = d->kc.c;
    a.v_append.cache = d->vc.c;
    a.k_append.src = d->k;
    a.v_append.src = d->v;
    return a;
}

static heads_data same_data(const heads_data *from, int64_t dim)
{
    heads_data d = *from;
    d.q = or_copy(from->q, ROWS * HEADS * dim);
    d.k = or_copy(from->k, ROWS * KV * dim);
    d.v = or_copy(from->v, ROWS * KV * dim);
    d.kc = same_cache(&from->kc);
    d.vc = same_cache(&from->vc);
    return d;
}

static void heads_case(int64_t dim, int64_t rotary_dim, mox_dtype type, mox_rope_pairing pairing, bool alone)
{
    ck_label("heads of %lld, %lld turn, cache type %d, pairing %d, rows alone %d", (long long)dim, (long long)rotary_dim, (int)type, (int)pairing,
             (int)alone);
    const cache_shape shape = {.type = type, .page_len = 4, .head_major = true};
    heads_data data = {.q = ck_random(ROWS * HEADS * dim, 1.0f), .k = ck_random(ROWS * KV * dim, 1.0f), .v = ck_random(ROWS * KV * dim, 1.0f),
                       .kc = make_cache(shape, 2 * LEN, KV, dim)};
    data.vc = make_cache(shape, 2 * LEN, KV, dim);
    data.vc.pages = data.kc.pages;
    const batch both = alone ? only_first(batch_on(&data.kc, rotary_dim)) : batch_on(&data.kc, rotary_dim);
    const int64_t rows = rows_of(&both);
    const mox_rms_norm_args norm = {.n = rows, .dim = dim, .x_head_stride = dim, .out_head_stride = dim, .offset = 1.0f, .eps = 1e-2f};
    const mox_rope_args rope = {.n = rows, .head_stride = dim, .rotary_dim = rotary_dim, .inv_freq = both.freq, .mscale = 1.1f,
                                .pairing = pairing, .pos = both.pos, .pos_stride = 1};
    const mox_kv_append_args append = {.spans = both.spans, .n_spans = 2, .heads = KV, .dim = dim, .stride = KV * dim, .head_stride = dim};
    mox_gqa_heads_args common = {.q_norm = norm, .k_norm = norm, .q_rope = rope, .k_rope = rope, .k_append = append, .v_append = append};
    common.q_norm.weight = ck_vec(MOX_DT_BF16, ck_uniform(dim, 0.5f, 1.5f), dim);
    common.k_norm.weight = ck_vec(MOX_DT_F32, ck_uniform(dim, 0.5f, 1.5f), dim);
    const heads_data ref = same_data(&data, dim);
    const mox_gqa_heads_args a = heads_args(&data, dim, &common), b = heads_args(&ref, dim, &common);
    mox_err err;
    ck_ok(mox_op_rms_norm(&ck.ref, &b.q_norm, &err), &err);
    ck_ok(mox_op_rms_norm(&ck.ref, &b.k_norm, &err), &err);
    ck_ok(mox_op_rope(&ck.ref, &b.q_rope, &err), &err);
    ck_ok(mox_op_rope(&ck.ref, &b.k_rope, &err), &err);
    ck_ok(mox_op_kv_append(&ck.ref, &b.k_append, &err), &err);
    ck_ok(mox_op_kv_append(&ck.ref, &b.v_append, &err), &err);
    ck_device_gqa_heads(&a);
    close_to(data.q, ref.q, rows * HEADS * dim, "queries");
    same_kept(&data.kc, &ref.kc, &both, KV, dim, "keys");
    same_kept(&data.vc, &ref.vc, &both, KV, dim, "values");
}

static void test_gqa_heads(void)
{
    heads_case(64, 64, MOX_DT_F32, MOX_ROPE_HALF, false);
    heads_case(128, 32, MOX_DT_F32, MOX_ROPE_HALF, false);
    heads_case(64, 64, MOX_DT_F16, MOX_ROPE_HALF, false);
    heads_case(64, 64, MOX_DT_F32, MOX_ROPE_HALF, true);
    heads_case(64, 64, MOX_DT_F32, MOX_ROPE_INTERLEAVED, false); /* which the fused kernel does not do */
}

/* ---- mla_heads ---- */

typedef struct latent_shape {
    int64_t heads, nope, rope, rank;
    mox_dtype type;
    mox_rope_pairing pairing;
    float offset;
} latent_shape;

/* With results of its own. */
static mox_mla_heads_args latent_args(const mox_mla_heads_args *common, const test_cache *latent, const test_cache *k_pe)
{
    mox_mla_heads_args a = *common;
    mox_mla_split_args *s = &a.split;
    s->q_nope = ck_f32(ROWS * s->heads * s->nope);
    a.q_rope.x = s->q_pe = ck_f32(ROWS * s->heads * s->rope);
    a.norm.x = a.norm.out = s->latent = ck_f32(ROWS * s->rank);
    a.k_rope.x = s->k_pe = ck_f32(ROWS * s->rope);
    a.latent_append.src = s->latent;
    a.k_append.src = s->k_pe;
    a.latent_append.cache = latent->c;
    a.k_append.cache = k_pe->c;
    return a;
}

static void latent_case(latent_shape s)
{
    ck_label("%lld heads of %lld + %lld, rank %lld, cache type %d, pairing %d, offset %g", (long long)s.heads, (long long)s.nope,
             (long long)s.rope, (long long)s.rank, (int)s.type, (int)s.pairing, (double)s.offset);
    const cache_shape shape = {.type = s.type, .page_len = 4, .head_major = true};
    test_cache latent = make_cache(shape, 2 * LEN, 1, s.rank), k_pe = make_cache(shape, 2 * LEN, 1, s.rope);
    k_pe.pages = latent.pages;
    const test_cache ref_latent = same_cache(&latent), ref_k_pe = same_cache(&k_pe);
    const batch both = batch_on(&latent, s.rope);
    const mox_rope_args rope = {.n = ROWS, .heads = 1, .stride = s.rope, .head_stride = s.rope, .rotary_dim = s.rope, .inv_freq = both.freq,
                                .mscale = 1.1f, .pairing = s.pairing, .pos = both.pos, .pos_stride = 1};
    const mox_kv_append_args append = {.spans = both.spans, .n_spans = 2, .heads = 1};
    mox_mla_heads_args common = {
        .split = {.q_full = ck_random(ROWS * s.heads * (s.nope + s.rope), 1.0f), .kv = ck_random(ROWS * (s.rank + s.rope), 1.0f), .n = ROWS,
                  .heads = s.heads, .nope = s.nope, .rope = s.rope, .rank = s.rank},
        .norm = {.n = ROWS, .heads = 1, .dim = s.rank, .x_stride = s.rank, .x_head_stride = s.rank, .out_stride = s.rank,
                 .out_head_stride = s.rank, .weight = ck_vec(MOX_DT_BF16, ck_uniform(s.rank, 0.5f, 1.5f), s.rank), .offset = s.offset,
                 .eps = 1e-2f},
        .q_rope = rope, .k_rope = rope, .latent_append = append, .k_append = append};
    common.q_rope.heads = s.heads;
    common.q_rope.stride = s.heads * s.rope;
    common.latent_append.dim = common.latent_append.stride = common.latent_append.head_stride = s.rank;
    common.k_append.dim = common.k_append.stride = common.k_append.head_stride = s.rope;
    const mox_mla_heads_args a = latent_args(&common, &latent, &k_pe), b = latent_args(&common, &ref_latent, &ref_k_pe);
    mox_err err;
    ck_ok(mox_op_mla_split(&ck.ref, &b.split, &err), &err);
    ck_ok(mox_op_rms_norm(&ck.ref, &b.norm, &err), &err);
    ck_ok(mox_op_rope(&ck.ref, &b.q_rope, &err), &err);
    ck_ok(mox_op_rope(&ck.ref, &b.k_rope, &err), &err);
    ck_ok(mox_op_kv_append(&ck.ref, &b.latent_append, &err), &err);
    ck_ok(mox_op_kv_append(&ck.ref, &b.k_append, &err), &err);
    ck_device_mla_heads(&a);
    ck_exact(a.split.q_nope, b.split.q_nope, ROWS * s.heads * s.nope * 4, "queries as they were");
    close_to(a.split.q_pe, b.split.q_pe, ROWS * s.heads * s.rope, "queries that turn");
    same_kept(&latent, &ref_latent, &both, 1, s.rank, "latent part");
    same_kept(&k_pe, &ref_k_pe, &both, 1, s.rope, "keys that turn");
}

static void test_mla_heads(void)
{
    latent_case((latent_shape){5, 40, 80, 200, MOX_DT_F32, MOX_ROPE_HALF, 0.0f});
    latent_case((latent_shape){4, 128, 64, 512, MOX_DT_F16, MOX_ROPE_INTERLEAVED, 0.0f});
    latent_case((latent_shape){2, 32, 16, 64, MOX_DT_F32, MOX_ROPE_INTERLEAVED, 1.0f}); /* whose norm the fused kernel does not do */
}

/* ---- gdn_mix ---- */

typedef struct mix_shape {
    int64_t n, k_heads, v_heads, k_dim, v_dim, width;
    mox_gdn_eps mode;
    bool chunked;
} mix_shape;

static int64_t mix_channels(const mix_shape *s) { return 2 * s->k_heads * s->k_dim + s->v_heads * s->v_dim; }

/* With states and results of its own. */
static mox_gdn_mix_args mix_args(const mix_shape *s, const mox_gdn_mix_args *common, const float *past, const float *state)
{
    const int64_t key = s->k_heads * s->k_dim, channels = mix_channels(s);
    mox_gdn_mix_args a = *common;
    float *mixed = ck_f32(s->n * channels), *kept = or_copy(past, (s->width - 1) * channels);
    a.rule.g = a.gates.g = ck_f32(s->n * s->v_heads);
    a.rule.beta = a.gates.beta = ck_f32(s->n * s->v_heads);
    a.conv.state = a.shift.state = kept;
    a.rule.q = a.qk_norm.q = a.conv.out = mixed;
    a.rule.k = a.qk_norm.k = mixed + key;
    a.rule.v = mixed + 2 * key;
    a.rule.state = or_copy(state, s->v_heads * s->v_dim * s->k_dim);
    a.norm.x = a.norm.out = a.rule.out = ck_f32(s->n * s->v_heads * s->v_dim);
    return a;
}

static mox_gdn_mix_args mix_common(const mix_shape *s)
{
    const int64_t n = s->n, heads = s->v_heads, channels = mix_channels(s), taps = channels * s->width;
    const float *x = ck_random(n * channels, 1.0f);
    return (mox_gdn_mix_args){
        .gates = {.a = ck_random(n * heads, 1.0f), .b = ck_random(n * heads, 1.0f), .a_stride = heads, .b_stride = heads,
                  .a_log = ck_vec(MOX_DT_F32, ck_uniform(heads, -1.0f, 1.0f), heads),
                  .dt_bias = ck_vec(MOX_DT_BF16, ck_random(heads, 1.0f), heads), .n = n, .heads = heads},
        .conv = {.x = x, .weight = ck_vec(MOX_DT_BF16, ck_random(taps, 0.5f), taps), .n = n, .channels = channels, .width = s->width,
                 .x_stride = channels, .out_stride = channels},
        .shift = {.x = x, .n = n, .channels = channels, .width = s->width, .x_stride = channels},
        .qk_norm = {.n = n, .heads = s->k_heads, .dim = s->k_dim, .stride = channels, .eps = 1e-2f, .mode = s->mode},
        .rule = {.q_stride = channels, .k_stride = channels, .v_stride = channels, .n = n, .k_heads = s->k_heads, .v_heads = heads,
                 .k_dim = s->k_dim, .v_dim = s->v_dim},
        .norm = {.z = ck_random(n * heads * s->v_dim, 1.0f), .rows = n * heads, .dim = s->v_dim,
                 .weight = ck_vec(MOX_DT_F32, ck_uniform(s->v_dim, 0.5f, 1.5f), s->v_dim), .eps = 1e-2f},
        .chunked = s->chunked};
}

static void mix_case(mix_shape s)
{
    ck_label("%lld tokens, heads %lld of %lld and %lld of %lld, width %lld, mode %d, chunked %d", (long long)s.n, (long long)s.k_heads,
             (long long)s.k_dim, (long long)s.v_heads, (long long)s.v_dim, (long long)s.width, (int)s.mode, s.chunked);
    const int64_t past_floats = (s.width - 1) * mix_channels(&s), out_floats = s.n * s.v_heads * s.v_dim;
    const int64_t state_floats = s.v_heads * s.v_dim * s.k_dim;
    const mox_gdn_mix_args common = mix_common(&s);
    const float *past = ck_random(past_floats, 1.0f), *state = ck_random(state_floats, 1.0f);
    const mox_gdn_mix_args a = mix_args(&s, &common, past, state), b = mix_args(&s, &common, past, state);
    mox_err err;
    ck_ok(mox_op_gdn_gates(&ck.ref, &b.gates, &err), &err);
    ck_ok(mox_op_conv1d_silu(&ck.ref, &b.conv, &err), &err);
    ck_ok(mox_op_conv1d_shift(&ck.ref, &b.shift, &err), &err);
    ck_ok(mox_op_gdn_qk_norm(&ck.ref, &b.qk_norm, &err), &err);
    ck_ok(s.chunked ? mox_op_gdn_chunk(&ck.ref, &b.rule, &err) : mox_op_gdn_recurrent(&ck.ref, &b.rule, &err), &err);
    ck_ok(mox_op_gated_rms_norm(&ck.ref, &b.norm, &err), &err);
    ck_device_gdn_mix(&a);
    ck_exact(a.shift.state, b.shift.state, past_floats * 4, "state of the convolution");
    if (s.chunked) { /* class G: a device may go token by token */
        ck_class_g(a.rule.state, or_widen(b.rule.state, state_floats), state_floats, "state");
        ck_class_g(a.norm.out, or_widen(b.norm.out, out_floats), out_floats, "out");
        return;
    }
    close_to(a.rule.state, b.rule.state, state_floats, "state");
    close_to(a.norm.out, b.norm.out, out_floats, "out");
}

static void test_gdn_mix(void)
{
    mix_case((mix_shape){1, 2, 4, 128, 128, 4, MOX_GDN_EPS_SUM, false});
    mix_case((mix_shape){1, 3, 3, 40, 72, 3, MOX_GDN_EPS_MEAN, false});
    mix_case((mix_shape){1, 2, 4, 136, 32, 4, MOX_GDN_EPS_SUM, false}); /* from here on not for the fused kernels */
    mix_case((mix_shape){3, 2, 4, 32, 48, 4, MOX_GDN_EPS_SUM, false});
    mix_case((mix_shape){MOX_GDN_CHUNK + 2, 2, 4, 32, 48, 4, MOX_GDN_EPS_SUM, true});
}

/* ---- moe_finish ---- */

static void expert_row(const mox_expert *e, const float *x, float *out)
{
    const int64_t dim = e->gate.cols, width = e->gate.rows;
    float *gate = ck_f32(width), *up = ck_f32(width);
    const mox_matmul_args one = {.x = x, .n = 1, .x_stride = dim, .y_stride = width};
    mox_matmul_args g = one, u = one;
    mox_err err;
    g.w = e->gate, g.y = gate;
    u.w = e->up, u.y = up;
    ck_ok(mox_op_matmul(&ck.ref, &g, &err), &err);
    ck_ok(mox_op_matmul(&ck.ref, &u, &err), &err);
    for (int64_t i = 0; i < width; i++) gate[i] *= up[i] * 0.5f * (1.0f + tanhf(0.5f * gate[i]));
    ck_ok(mox_op_matmul(&ck.ref, &(mox_matmul_args){.w = e->down, .x = gate, .y = out, .n = 1, .x_stride = width, .y_stride = dim}, &err), &err);
}

enum { EXPERTS = 5, K = 2, DIM = 256, WIDTH = 256 };

/* The reference, of which shared.out and shared.logit are its own. */
static void finish_reference(const mox_expert *experts, const mox_moe_finish_args *a)
{
    const mox_moe_shared *s = &a->shared;
    const mox_expert shared = {.gate = s->gate, .up = s->up, .down = s->down};
    const int64_t n = a->ffn.n;
    mox_err err;
    for (int64_t p = 0; p < n * K; p++) expert_row(&experts[a->ffn.ids[p]], a->ffn.x + p / K * DIM, a->ffn.rows + p * DIM);
    for (int64_t t = 0; t < n && a->combine.mode != MOX_SHARED_NONE; t++) expert_row(&shared, a->ffn.x + t * DIM, s->out + t * DIM);
    if (a->combine.mode == MOX_SHARED_GATED)
        ck_ok(mox_op_matmul(&ck.ref, &(mox_matmul_args){.w = s->scale, .x = a->ffn.x, .y = s->logit, .n = n, .x_stride = DIM, .y_stride = 1},
                            &err), &err);
    ck_ok(mox_op_moe_combine(&ck.ref, &a->combine, &err), &err);
}

/* With results of its own. */
static mox_moe_finish_args finish_args(const mox_moe_finish_args *common)
{
    mox_moe_finish_args a = *common;
    const int64_t n = a.ffn.n;
    a.combine.experts = a.ffn.rows = ck_f32(n * K * DIM);
    a.combine.out = ck_f32(n * DIM);
    if (a.combine.mode == MOX_SHARED_NONE) return a;
    a.combine.shared = a.shared.out = ck_f32(n * DIM);
    a.combine.gate = a.shared.logit = ck_f32(n);
    return a;
}

/* A shared expert of shared_width. */
static void finish_case(const mox_expert *experts, int64_t n, mox_shared_mode mode, int64_t shared_width)
{
    ck_label("%lld tokens, shared mode %d, width %lld", (long long)n, (int)mode, (long long)shared_width);
    int32_t *ids = ck_i32(n * K);
    for (int64_t t = 0; t < n; t++) {
        ids[K * t] = (int32_t)ck_rand(EXPERTS);
        ids[K * t + 1] = (ids[K * t] + 1 + (int32_t)ck_rand(EXPERTS - 1)) % EXPERTS;
    }
    mox_moe_finish_args common = {
        .ffn = {.x = aligned_random(n * DIM), .ids = ids, .n = n, .k = K, .n_experts = EXPERTS, .dim = DIM, .width = WIDTH,
                .mid = ck_bytes(n * (K + 1) * WIDTH * 4), .bucket_offsets = ck_bytes((EXPERTS + 1) * 8), .bucket_pairs = ck_i32(n * K),
                .batch_pairs = ck_i32(n * K)},
        .combine = {.h = ck_random(n * DIM, 1.0f), .w = ck_uniform(n * K, 0.1f, 1.0f), .mode = mode, .gate_stride = 1, .n = n, .k = K,
                    .dim = DIM}};
    if (mode != MOX_SHARED_NONE)
        common.shared = (mox_moe_shared){.gate = four(shared_width, DIM), .up = four(shared_width, DIM), .down = four(DIM, shared_width),
                                         .mid = ck_bytes(n * shared_width * 4)};
    if (mode == MOX_SHARED_GATED) common.shared.scale = ck_mat(CK_Q8, 64, 1, DIM);
    const mox_moe_finish_args a = finish_args(&common), ref = finish_args(&common);
    finish_reference(experts, &ref);
    ck_device_moe_finish(&a, experts);
    close_to(a.combine.out, ref.combine.out, n * DIM, "out");
}

static void test_moe_finish(void)
{
    const mox_mat gate = four(EXPERTS * WIDTH, DIM), up = four(EXPERTS * WIDTH, DIM), down = four(EXPERTS * DIM, WIDTH);
    mox_expert experts[EXPERTS];
    for (int32_t i = 0; i < EXPERTS; i++)
        experts[i] = (mox_expert){.id = i, .gate = mox_mat_rows(&gate, i * WIDTH, WIDTH), .up = mox_mat_rows(&up, i * WIDTH, WIDTH),
                                  .down = mox_mat_rows(&down, i * DIM, DIM)};
    finish_case(experts, 1, MOX_SHARED_NONE, 0);
    finish_case(experts, 3, MOX_SHARED_GATED, WIDTH);
    finish_case(experts, 4, MOX_SHARED_UNSCALED, WIDTH);
    finish_case(experts, 2, MOX_SHARED_GATED, 2 * WIDTH); /* which is no slot like the others */
    finish_case(experts, 6, MOX_SHARED_GATED, WIDTH);     /* too many for pairs */
}

/* Plants are those of devices (device_plants.c). */
const ck_op ck_ops_sequences[] = {
    {"project", test_project, {NULL}, NULL},
    {"gqa_heads", test_gqa_heads, {NULL}, NULL},
    {"mla_heads", test_mla_heads, {NULL}, NULL},
    {"gdn_mix", test_gdn_mix, {NULL}, NULL},
    {"moe_finish", test_moe_finish, {NULL}, NULL},
    {0},
};
