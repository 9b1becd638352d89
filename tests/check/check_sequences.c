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

/* Of so many matrices on top of each other, each with that many rows. */
static mox_mat part_of(const mox_mat *all, int64_t i, int64_t rows)
{
    mox_mat m = *all;
    const int64_t scales = mox_mat_scale_row_bytes(&m.layout, m.cols);
    m.rows = rows;
    m.w += i * rows * mox_mat_row_bytes(&m.layout, m.cols);
    m.scales += i * rows * scales;
    m.biases += i * rows * scales;
    return m;
}

static void close_to(const float *got, const float *want, int64_t n, const char *what)
{
    const double *w = or_widen(want, n);
    ck_class_s(got, w, n, or_max_abs(w, n), what);
}

/* ---- project ---- */

static void project_case(int64_t n, bool biases)
{
    enum { COLS = 256 };
    static const int64_t rows[MOX_PROJECT_MOST] = {40, 16, 23};
    ck_label("%lld tokens, biases %d", (long long)n, biases);
    mox_project_args a = {.n = MOX_PROJECT_MOST};
    mox_err err;
    const float *x = aligned_random(n * COLS);
    float *want[MOX_PROJECT_MOST];
    for (int i = 0; i < MOX_PROJECT_MOST; i++) {
        mox_matmul_args *p = &a.product[i];
        *p = (mox_matmul_args){.w = four(rows[i], COLS), .x = x, .y = ck_f32(n * rows[i]), .n = n, .x_stride = COLS, .y_stride = rows[i]};
        if (biases) p->bias = ck_vec(MOX_DT_F32, ck_random(rows[i], 4.0f), rows[i]);
        mox_matmul_args ref = *p;
        ref.y = want[i] = ck_f32(n * rows[i]);
        ck_ok(mox_op_matmul(&ck.ref, &ref, &err), &err);
    }
    ck_device_project(&a);
    for (int i = 0; i < MOX_PROJECT_MOST; i++) close_to(a.product[i].y, want[i], n * rows[i], "a product");
}

static void test_project(void)
{
    static const int64_t tokens[] = {1, 3, 4, 7};
    for (int i = 0; i < 4; i++)
        for (int biases = 0; biases < 2; biases++) project_case(tokens[i], biases);
}

/* ---- gqa_heads ---- */

typedef struct heads_data {
    float *q, *k, *v;
    test_cache kc, vc;
} heads_data;

enum { HEADS = 4, KV = 2, FIRST = 5, SECOND = 1, ROWS = FIRST + SECOND, POS0 = 3, LEN = 16 };

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
    d.kc.c.data = aligned_copy(from->kc.c.data, from->kc.n_elements * mox_dtype_bytes(from->kc.c.type));
    d.vc.c.data = aligned_copy(from->vc.c.data, from->vc.n_elements * mox_dtype_bytes(from->vc.c.type));
    return d;
}

/* What the caches have at the places of the batch. */
static float *appended(const test_cache *c, const mox_span *spans, int64_t dim)
{
    float *all = ck_f32(ROWS * KV * dim);
    for (int i = 0; i < 2; i++)
        for (int64_t t = 0; t < spans[i].n * KV * dim; t++) {
            const int64_t at = cache_at(c, spans[i].pos0 + t / dim / KV, t / dim % KV) + t % dim;
            all[spans[i].row0 * KV * dim + t] =
                c->c.type == MOX_DT_F16 ? mox_f16_to_f32(((const uint16_t *)c->c.data)[at]) : ((const float *)c->c.data)[at];
        }
    return all;
}

/* Caches in f16 keep 11 bits, the last of which may turn. */
static void same_kept(const test_cache *got, const test_cache *want, const mox_span *spans, int64_t dim, const char *what)
{
    const float *g = appended(got, spans, dim), *w = appended(want, spans, dim);
    const int64_t n = ROWS * KV * dim;
    if (got->c.type == MOX_DT_F32) close_to(g, w, n, what);
    else ck_close(g, or_widen(w, n), or_widen(w, n), n, 0, or_max_abs(or_widen(w, n), n) / 1024, what);
}

static void heads_case(int64_t dim, int64_t rotary_dim, mox_dtype type, mox_rope_pairing pairing)
{
    ck_label("heads of %lld, %lld turn, cache type %d, pairing %d", (long long)dim, (long long)rotary_dim, (int)type, (int)pairing);
    const cache_shape shape = {.type = type, .page_len = 4, .head_major = true};
    heads_data data = {.q = ck_random(ROWS * HEADS * dim, 1.0f), .k = ck_random(ROWS * KV * dim, 1.0f), .v = ck_random(ROWS * KV * dim, 1.0f),
                       .kc = make_cache(shape, 2 * LEN, KV, dim)};
    data.vc = make_cache(shape, 2 * LEN, KV, dim);
    data.vc.pages = data.kc.pages;
    const mox_span spans[2] = {{.row0 = 0, .n = FIRST, .pos0 = POS0, .pages = data.kc.pages, .n_pages = data.kc.n_pages},
                               {.row0 = FIRST, .n = SECOND, .pos0 = LEN + 1, .pages = data.kc.pages, .n_pages = data.kc.n_pages}};
    int32_t *pos = ck_i32(ROWS);
    float *freq = ck_f32(rotary_dim / 2);
    for (int i = 0; i < ROWS; i++) pos[i] = (int32_t)(i < FIRST ? POS0 + i : LEN + 1 + i - FIRST);
    for (int64_t i = 0; i < rotary_dim / 2; i++) freq[i] = (float)pow(1e4, -2.0 * (double)i / (double)rotary_dim);
    const mox_rms_norm_args norm = {.n = ROWS, .dim = dim, .x_head_stride = dim, .out_head_stride = dim, .offset = 1.0f, .eps = 1e-2f};
    const mox_rope_args rope = {.n = ROWS, .head_stride = dim, .rotary_dim = rotary_dim, .inv_freq = freq, .mscale = 1.1f,
                                .pairing = pairing, .pos = pos, .pos_stride = 1};
    const mox_kv_append_args append = {.spans = spans, .n_spans = 2, .heads = KV, .dim = dim, .stride = KV * dim, .head_stride = dim};
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
    close_to(data.q, ref.q, ROWS * HEADS * dim, "queries");
    same_kept(&data.kc, &ref.kc, spans, dim, "keys");
    same_kept(&data.vc, &ref.vc, spans, dim, "values");
}

static void test_gqa_heads(void)
{
    heads_case(64, 64, MOX_DT_F32, MOX_ROPE_HALF);
    heads_case(128, 32, MOX_DT_F32, MOX_ROPE_HALF);
    heads_case(64, 64, MOX_DT_F16, MOX_ROPE_HALF);
    heads_case(64, 64, MOX_DT_F32, MOX_ROPE_INTERLEAVED); /* which the fused kernel does not do */
}

/* ---- moe_finish ---- */

static void expert_rows(const mox_expert *e, const mox_moe_ffn_args *f)
{
    float *gate = ck_f32(f->width), *up = ck_f32(f->width);
    mox_err err;
    for (int64_t p = 0; p < f->n * f->k; p++) {
        const mox_expert *x = &e[f->ids[p]];
        const mox_matmul_args one = {.x = f->x + p / f->k * f->dim, .n = 1, .x_stride = f->dim, .y_stride = f->width};
        mox_matmul_args g = one, u = one;
        g.w = x->gate, g.y = gate;
        u.w = x->up, u.y = up;
        ck_ok(mox_op_matmul(&ck.ref, &g, &err), &err);
        ck_ok(mox_op_matmul(&ck.ref, &u, &err), &err);
        for (int64_t i = 0; i < f->width; i++) gate[i] *= up[i] * 0.5f * (1.0f + tanhf(0.5f * gate[i]));
        ck_ok(mox_op_matmul(&ck.ref, &(mox_matmul_args){.w = x->down, .x = gate, .y = f->rows + p * f->dim, .n = 1, .x_stride = f->width,
                                                        .y_stride = f->dim}, &err), &err);
    }
}

enum { EXPERTS = 5, K = 2, DIM = 256, WIDTH = 256 };

static void finish_case(const mox_expert *experts, int64_t n, mox_shared_mode mode)
{
    ck_label("%lld tokens, shared mode %d", (long long)n, (int)mode);
    int32_t *ids = ck_i32(n * K);
    for (int64_t t = 0; t < n; t++) {
        ids[K * t] = (int32_t)ck_rand(EXPERTS);
        ids[K * t + 1] = (ids[K * t] + 1 + (int32_t)ck_rand(EXPERTS - 1)) % EXPERTS;
    }
    mox_moe_finish_args a = {
        .ffn = {.x = aligned_random(n * DIM), .ids = ids, .rows = ck_f32(n * K * DIM), .n = n, .k = K, .n_experts = EXPERTS, .dim = DIM,
                .width = WIDTH, .mid = ck_bytes(n * K * WIDTH * 4), .bucket_offsets = ck_bytes((EXPERTS + 1) * 8),
                .bucket_pairs = ck_i32(n * K), .batch_pairs = ck_i32(n * K)},
        .combine = {.h = ck_random(n * DIM, 1.0f), .w = ck_uniform(n * K, 0.1f, 1.0f), .mode = mode, .shared = ck_random(n * DIM, 1.0f),
                    .gate = ck_random(n, 1.0f), .gate_stride = 1, .out = ck_f32(n * DIM), .n = n, .k = K, .dim = DIM}};
    a.combine.experts = a.ffn.rows;
    mox_moe_finish_args ref = a;
    mox_err err;
    ref.combine.experts = ref.ffn.rows = ck_f32(n * K * DIM);
    ref.combine.out = ck_f32(n * DIM);
    expert_rows(experts, &ref.ffn);
    ck_ok(mox_op_moe_combine(&ck.ref, &ref.combine, &err), &err);
    ck_device_moe_finish(&a, experts);
    close_to(a.combine.out, ref.combine.out, n * DIM, "out");
}

static void test_moe_finish(void)
{
    const mox_mat gate = four(EXPERTS * WIDTH, DIM), up = four(EXPERTS * WIDTH, DIM), down = four(EXPERTS * DIM, WIDTH);
    mox_expert experts[EXPERTS];
    for (int32_t i = 0; i < EXPERTS; i++)
        experts[i] = (mox_expert){.id = i, .gate = part_of(&gate, i, WIDTH), .up = part_of(&up, i, WIDTH), .down = part_of(&down, i, DIM)};
    finish_case(experts, 1, MOX_SHARED_NONE);
    finish_case(experts, 3, MOX_SHARED_GATED);
    finish_case(experts, 4, MOX_SHARED_UNSCALED);
    finish_case(experts, 6, MOX_SHARED_GATED);
}

/* Plants are those of devices (device_plants.c). */
const ck_op ck_ops_sequences[] = {
    {"project", test_project, {NULL}, NULL},
    {"gqa_heads", test_gqa_heads, {NULL}, NULL},
    {"moe_finish", test_moe_finish, {NULL}, NULL},
    {0},
};
