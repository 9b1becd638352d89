/* tests/check/check_layer.c -- the composite layer.
 *
 * The oracle is a scalar layer in double that keeps every key and value of the
 * sequence and looks at all of them for every token, without a cache. */
#include "caches.h"

typedef struct layer {
    mox_layer_args a;
    mox_layer_cache cache;
    double *wq, *wk, *wv, *wo, *gate, *up, *down; /* the dense values */
    float *inv_freq;
    int64_t n_scratch;
} layer;

typedef struct spec {
    int64_t n_max, dim, ffn, heads, kv_heads, head_dim, capacity;
    bool qk_norm, scales;
    ck_layout layout;
} spec;

static double *dense(const mox_mat *m)
{
    double *v = or_zeros(m->rows * m->cols);
    ck_mat_dense(m, v, NULL);
    return v;
}

static layer make_layer(spec s)
{
    ck_label("heads %lld/%lld x %lld, dim %lld, ffn %lld, qk_norm %d, scales %d, %s", (long long)s.heads,
             (long long)s.kv_heads, (long long)s.head_dim, (long long)s.dim, (long long)s.ffn, s.qk_norm,
             s.scales, ck_layout_name(s.layout));
    const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim, half = s.head_dim / 2;
    layer l = {.inv_freq = ck_f32(half)};
    mox_layer_weights *w = &l.a.w;
    w->wq = ck_mat(s.layout, 32, q, s.dim), w->wk = ck_mat(s.layout, 32, kv, s.dim);
    w->wv = ck_mat(s.layout, 32, kv, s.dim), w->wo = ck_mat(s.layout, 32, s.dim, q);
    w->gate = ck_mat(s.layout, 32, s.ffn, s.dim), w->up = ck_mat(s.layout, 32, s.ffn, s.dim);
    w->down = ck_mat(s.layout, 32, s.dim, s.ffn);
    l.wq = dense(&w->wq), l.wk = dense(&w->wk), l.wv = dense(&w->wv), l.wo = dense(&w->wo);
    l.gate = dense(&w->gate), l.up = dense(&w->up), l.down = dense(&w->down);
    w->input_norm = ck_vec(MOX_DT_F32, ck_uniform(s.dim, 0.5f, 1.5f), s.dim);
    w->post_norm = ck_vec(MOX_DT_BF16, ck_uniform(s.dim, 0.5f, 1.5f), s.dim);
    if (s.qk_norm) {
        w->q_norm = ck_vec(MOX_DT_BF16, ck_uniform(s.head_dim, 0.5f, 1.5f), s.head_dim);
        w->k_norm = ck_vec(MOX_DT_F32, ck_uniform(s.head_dim, 0.5f, 1.5f), s.head_dim);
    }
    if (s.scales) w->attn_scale = ck_uniform(s.dim, 0.1f, 1.0f), w->mlp_scale = ck_uniform(s.dim, 0.1f, 1.0f);
    l.cache = (mox_layer_cache){ck_f32(s.capacity * kv), ck_f32(s.capacity * kv), 0, s.capacity};
    float *c = ck_f32(s.capacity * half), *sn = ck_f32(s.capacity * half);
    for (int64_t i = 0; i < half; i++) l.inv_freq[i] = (float)pow(1e4, -(double)i / (double)half);
    for (int64_t i = 0; i < s.capacity * half; i++) {
        const float angle = (float)(i / half) * l.inv_freq[i % half];
        c[i] = (float)cos((double)angle), sn[i] = (float)sin((double)angle);
    }
    l.a.n = s.n_max, l.a.dim = s.dim, l.a.ffn = s.ffn, l.a.heads = s.heads, l.a.kv_heads = s.kv_heads;
    l.a.head_dim = s.head_dim, l.a.eps = 1e-6f, l.a.cos = c, l.a.sin = sn, l.a.n_positions = s.capacity;
    l.n_scratch = mox_layer_scratch_floats(&l.a);
    l.a.scratch = ck_f32(l.n_scratch);
    return l;
}

/* ---- the oracle ---- */

static void matvec(const double *w, int64_t rows, int64_t cols, const double *x, double *y)
{
    for (int64_t r = 0; r < rows; r++) {
        y[r] = 0.0;
        for (int64_t c = cols - 1; c >= 0; c--) y[r] += w[r * cols + c] * x[c];
    }
}

static void norm(const double *x, int64_t n, const mox_vec *w, double eps, double *out)
{
    double sum = 0.0;
    for (int64_t i = n - 1; i >= 0; i--) sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++) out[i] = x[i] / sqrt(sum / (double)n + eps) * (double)mox_vec_at(w, i);
}

static void turn(const layer *l, const mox_vec *w, int64_t heads, int64_t pos, double *x)
{
    const int64_t hd = l->a.head_dim, half = hd / 2;
    for (int64_t h = 0; h < heads; h++, x += hd) {
        if (w->type != MOX_DT_NONE) norm(x, hd, w, (double)l->a.eps, x);
        for (int64_t i = 0; i < half; i++) {
            const double angle = (double)((float)pos * l->inv_freq[i]), x0 = x[i], x1 = x[i + half];
            x[i] = x0 * cos(angle) - x1 * sin(angle);
            x[i + half] = x1 * cos(angle) + x0 * sin(angle);
        }
    }
}

/* One token; keys and values [len, kv] hold all tokens so far and take this one. */
static void oracle_token(const layer *l, const double *x, int64_t pos, double *keys, double *values,
                         double *out)
{
    const mox_layer_args *a = &l->a;
    const int64_t hd = a->head_dim, q_dim = a->heads * hd, kv_dim = a->kv_heads * hd;
    double *ln = or_zeros(a->dim), *q = or_zeros(q_dim), *at = or_zeros(q_dim), *h = or_zeros(a->dim);
    double *scores = or_zeros(pos + 1), *gate = or_zeros(a->ffn), *up = or_zeros(a->ffn),
           *mlp = or_zeros(a->dim);
    norm(x, a->dim, &a->w.input_norm, (double)a->eps, ln);
    matvec(l->wq, q_dim, a->dim, ln, q);
    matvec(l->wk, kv_dim, a->dim, ln, keys + pos * kv_dim);
    matvec(l->wv, kv_dim, a->dim, ln, values + pos * kv_dim);
    turn(l, &a->w.q_norm, a->heads, pos, q);
    turn(l, &a->w.k_norm, a->kv_heads, pos, keys + pos * kv_dim);
    for (int64_t i = 0; i < a->heads; i++) {
        const int64_t kv = i / (a->heads / a->kv_heads) * hd;
        for (int64_t j = 0; j <= pos; j++) {
            scores[j] = 0.0;
            for (int64_t d = 0; d < hd; d++)
                scores[j] += q[i * hd + d] * keys[j * kv_dim + kv + d] / sqrt((double)hd);
        }
        book_softmax(scores, pos + 1, -INFINITY);
        for (int64_t j = 0; j <= pos; j++)
            for (int64_t d = 0; d < hd; d++) at[i * hd + d] += scores[j] * values[j * kv_dim + kv + d];
    }
    matvec(l->wo, a->dim, q_dim, at, h);
    for (int64_t i = 0; i < a->dim; i++)
        h[i] = x[i] + h[i] * (a->w.attn_scale ? (double)a->w.attn_scale[i] : 1.0);
    norm(h, a->dim, &a->w.post_norm, (double)a->eps, ln);
    matvec(l->gate, a->ffn, a->dim, ln, gate);
    matvec(l->up, a->ffn, a->dim, ln, up);
    for (int64_t i = 0; i < a->ffn; i++) gate[i] *= up[i] * 0.5 * (1.0 + tanh(0.5 * gate[i]));
    matvec(l->down, a->dim, a->ffn, gate, mlp);
    for (int64_t i = 0; i < a->dim; i++)
        out[i] = h[i] + mlp[i] * (a->w.mlp_scale ? (double)a->w.mlp_scale[i] : 1.0);
}

static double *oracle(const layer *l, const double *x, int64_t n)
{
    const int64_t kv = l->a.kv_heads * l->a.head_dim, dim = l->a.dim;
    double *out = or_zeros(n * dim), *keys = or_zeros(n * kv), *values = or_zeros(n * kv);
    for (int64_t t = 0; t < n; t++) oracle_token(l, x + t * dim, t, keys, values, out + t * dim);
    return out;
}

/* ---- the tests ---- */

static void forward(layer *l, const float *x, float *out, int64_t n)
{
    mox_err err;
    const int64_t len = l->cache.len;
    l->a.cache = &l->cache, l->a.x = x, l->a.out = out, l->a.n = n;
    for (int64_t i = 0; i < l->n_scratch; i++) l->a.scratch[i] = NAN; /* nothing may be expected of it */
    ck_ok(mox_op_layer_forward(&ck.exec, &l->a, &err), &err);
    ck_true(l->cache.len == len + n, "len has advanced by n");
}

/* A prompt at once, then in two pieces, then token by token. */
static void layer_case(spec s)
{
    enum { N = 9 };
    s.n_max = N, s.capacity = N + 2;
    layer l = make_layer(s);
    float *x = ck_random(N * s.dim, 1.0f), *whole = ck_f32(N * s.dim), *parts = ck_f32(N * s.dim);
    const double *want = oracle(&l, or_widen(x, N * s.dim), N);
    forward(&l, x, whole, N);
    ck_class_s(whole, want, N * s.dim, or_max_abs(want, N * s.dim), "prompt");
    static const int64_t first[] = {8, 5, 1};
    for (int i = 0; i < 3; i++) {
        l.cache.len = 0;
        forward(&l, x, parts, first[i]);
        for (int64_t t = first[i]; t < N;) {
            const int64_t n = i == 1 ? N - t : 1;
            forward(&l, x + t * s.dim, parts + t * s.dim, n);
            t += n;
        }
        ck_class_s(parts, want, N * s.dim, or_max_abs(want, N * s.dim), "in parts");
        if (ck.at_ref) ck_exact(parts, whole, N * s.dim * 4, "the same bytes in parts");
    }
}

/* Three layers, each writing over its input. */
static void chain(void)
{
    enum { N = 5, LAYERS = 3 };
    const spec s = {.n_max = N, .dim = 32, .ffn = 48, .heads = 4, .kv_heads = 2, .head_dim = 8, .capacity = 8,
                    .qk_norm = true, .layout = CK_BF16};
    float *x = ck_random(N * s.dim, 1.0f);
    double *want = or_widen(x, N * s.dim);
    for (int i = 0; i < LAYERS; i++) {
        layer l = make_layer(s);
        ck_label("layer %d of a chain, in place", i);
        want = oracle(&l, want, N);
        forward(&l, x, x, N);
        ck_class_s(x, want, N * s.dim, or_max_abs(want, N * s.dim), "out");
    }
}

static void refusals(void)
{
    enum { DIM = 16, CAP = 6, KV = 8 };
    mox_err err;
    const spec s = {.n_max = 4, .dim = DIM, .ffn = 24, .heads = 2, .kv_heads = 1, .head_dim = KV, .capacity = CAP,
                    .layout = CK_F32};
    layer l = make_layer(s);
    float *x = ck_random(4 * DIM, 1.0f), *out = ck_f32(4 * DIM);
    forward(&l, x, out, 4);
    ck_label("a full cache changes nothing");
    float *k = or_copy(l.cache.k, CAP * KV), *v = or_copy(l.cache.v, CAP * KV), *before = or_copy(out, 4 * DIM);
    l.a.n = 3;
    ck_refused(mox_op_layer_forward(&ck.exec, &l.a, &err), MOX_E_FULL);
    ck_true(l.cache.len == 4, "len");
    ck_exact(l.cache.k, k, CAP * KV * 4, "keys");
    ck_exact(l.cache.v, v, CAP * KV * 4, "values");
    ck_exact(out, before, 4 * DIM * 4, "out");
    l.a.n = 2; /* exactly full, and then not even one */
    const mox_layer_args good = l.a;
    ck_label("refusals");
#define REFUSED(change)                                                      \
    do {                                                                     \
        l.a = good;                                                          \
        change;                                                              \
        ck_refused(mox_op_layer_forward(&ck.exec, &l.a, &err), MOX_E_ARG);   \
        ck_true(l.cache.len == 4, "len after a refusal");                    \
        ck_exact(out, before, 4 * DIM * 4, "out after a refusal");           \
    } while (0)
    REFUSED(l.a.w.down.cols = 23);
    REFUSED(l.a.w.wo.rows = DIM - 1);
    REFUSED(l.a.w.post_norm.n = DIM - 1);
    REFUSED(l.a.n_positions = 5);
    REFUSED(l.a.heads = 3);
    REFUSED(l.a.head_dim = 7);
    REFUSED(l.a.scratch = NULL);
    REFUSED(l.a.cache = NULL);
    REFUSED(l.a.dim = INT64_MAX / 4);
    REFUSED(l.a.n = -1);
#undef REFUSED
    l.a = good, l.a.n = 0;
    ck_ok(mox_op_layer_forward(&ck.exec, &l.a, &err), &err);
    ck_true(l.cache.len == 4, "no token, no advance");
    l.a = good;
    ck_ok(mox_op_layer_forward(&ck.exec, &l.a, &err), &err);
    l.a.n = 1;
    ck_refused(mox_op_layer_forward(&ck.exec, &l.a, &err), MOX_E_FULL);
    l.a.n = INT64_MAX;
    ck_true(mox_layer_scratch_floats(&l.a) == -1, "absurd sizes have no scratch");
}

static void test_layer_forward(void)
{
    static const int64_t groups[] = {1, 2, 8};
    for (int g = 0; g < 3; g++)
        for (int flags = 0; flags < 4; flags++)
            layer_case((spec){.dim = 32, .ffn = 40, .heads = 8, .kv_heads = 8 / groups[g], .head_dim = 6,
                              .qk_norm = flags & 1, .scales = flags & 2, .layout = CK_F32});
    layer_case((spec){.dim = 64, .ffn = 96, .heads = 4, .kv_heads = 2, .head_dim = 32, .qk_norm = true,
                      .layout = CK_Q4});
    layer_case((spec){.dim = 64, .ffn = 32, .heads = 2, .kv_heads = 1, .head_dim = 64, .qk_norm = true,
                      .layout = CK_Q8});
    chain();
    refusals();
}

static void append_always_first(const mox_kv_append_args *a, int64_t begin, int64_t end)
{
    mox_span span = a->spans[0];
    span.pos0 = 0;
    mox_kv_append_args b = *a;
    b.spans = &span;
    mox_kv_append_ref(&b, begin, end);
}
static void rope_from_zero(const mox_qk_norm_rope_args *a, int64_t begin, int64_t end)
{
    mox_qk_norm_rope_args b = *a; /* queries turn with the cache, keys do not */
    if (a->mode != MOX_QK_COPY && a->heads == 1) b.pos_offset = 0;
    mox_qk_norm_rope_ref(&b, begin, end);
}
static void attention_not_causal(const mox_attention_args *a, int64_t begin, int64_t end)
{
    mox_attention_args b = *a;
    b.causal = false;
    mox_attention_ref(&b, begin, end);
}
static void residual_dropped(const mox_residual_norm_args *a, int64_t begin, int64_t end)
{
    mox_residual_norm_ref(a, begin, end);
    memcpy(a->res + begin * a->dim, a->norm + begin * a->dim, (size_t)((end - begin) * a->dim) * sizeof(float));
}
static void plant_append(mox_kern *k) { k->kv_append = append_always_first; }
static void plant_rope(mox_kern *k) { k->qk_norm_rope = rope_from_zero; }
static void plant_causal(mox_kern *k) { k->attention = attention_not_causal; }
static void plant_residual(mox_kern *k) { k->residual_norm = residual_dropped; }

const ck_op ck_ops_layer[] = {
    {"layer_forward", test_layer_forward, {plant_append, plant_rope, plant_causal, plant_residual}, NULL},
    {0},
};
