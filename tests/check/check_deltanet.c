/* tests/check/check_deltanet.c -- what surrounds the delta rule: taking projections
 * apart, the causal convolution and its state, norms and gates. */
#include "oracle.h"

#include <stdlib.h>

/* ---- gdn_split ---- */

static void split_case(int64_t n, int64_t k_heads, int64_t r, int64_t dk, int64_t dv)
{
    mox_err err;
    ck_label("n %lld, heads %lld x %lld, dims %lld %lld", (long long)n, (long long)k_heads, (long long)r,
             (long long)dk, (long long)dv);
    const int64_t v_heads = k_heads * r, group = 2 * dk + 2 * r * dv, keys = k_heads * dk,
                  values = v_heads * dv;
    float *qkvz = ck_random(n * k_heads * group, 1.0f), *ba = ck_random(n * k_heads * 2 * r, 1.0f);
    float *qkv = ck_f32(n * (2 * keys + values)), *z = ck_f32(n * values), *b = ck_f32(n * v_heads),
          *a = ck_f32(n * v_heads);
    const mox_gdn_split_args args = {.qkvz = qkvz, .ba = ba, .qkv = qkv, .z = z, .b = b, .a = a, .n = n,
                                     .k_heads = k_heads, .v_heads = v_heads, .k_dim = dk, .v_dim = dv};
    ck_ok(mox_op_gdn_split(&ck.exec, &args, &err), &err);
    for (int64_t t = 0; t < n; t++) { /* by destination: where does each element come from? */
        const float *in = qkvz + t * k_heads * group, *in_ba = ba + t * 2 * v_heads;
        for (int64_t i = 0; i < keys; i++) {
            ck_true(qkv[t * (2 * keys + values) + i] == in[i / dk * group + i % dk], "q");
            ck_true(qkv[t * (2 * keys + values) + keys + i] == in[i / dk * group + dk + i % dk], "k");
        }
        for (int64_t i = 0; i < values; i++) {
            const int64_t head = i / dv, from = head / r * group + 2 * dk + head % r * dv + i % dv;
            ck_true(qkv[t * (2 * keys + values) + 2 * keys + i] == in[from], "v");
            ck_true(z[t * values + i] == in[from + r * dv], "z");
        }
        for (int64_t h = 0; h < v_heads; h++) {
            ck_true(b[t * v_heads + h] == in_ba[h / r * 2 * r + h % r], "b");
            ck_true(a[t * v_heads + h] == in_ba[h / r * 2 * r + r + h % r], "a");
        }
    }
}

static void test_gdn_split(void)
{
    split_case(1, 1, 1, 1, 1);
    split_case(3, 2, 3, 4, 5);
    split_case(2, 16, 2, 128, 128);
    split_case(0, 2, 2, 4, 4);
    mox_err err;
    ck_label("refusals");
    float x[64] = {0};
    const mox_gdn_split_args good = {.qkvz = x, .ba = x, .qkv = x + 1, .z = x + 2, .b = x + 3, .a = x + 4, .n = 1,
                                     .k_heads = 2, .v_heads = 3, .k_dim = 1, .v_dim = 1};
    ck_refused(mox_op_gdn_split(&ck.exec, &good, &err), MOX_E_ARG); /* 3 value heads over 2 key heads */
    mox_gdn_split_args a = good;
    a.v_heads = 2, a.z = NULL;
    ck_refused(mox_op_gdn_split(&ck.exec, &a, &err), MOX_E_ARG);
    a.k_dim = INT64_MAX / 2;
    ck_refused(mox_op_gdn_split(&ck.exec, &a, &err), MOX_E_ARG);
}

static void split_swaps_ba(const mox_gdn_split_args *a, int64_t begin, int64_t end)
{
    mox_gdn_split_args b = *a;
    b.a = a->b, b.b = a->a;
    mox_gdn_split_ref(&b, begin, end);
}
static void plant_split_ba(mox_kern *k) { k->gdn_split = split_swaps_ba; }

/* ---- conv1d_silu, conv1d_shift ---- */

static double silu(double x) { return 0.5 * x * (1.0 + tanh(0.5 * x)); }

static void conv_case(int64_t n, int64_t channels, int64_t width, mox_dtype type)
{
    mox_err err;
    ck_label("n %lld, channels %lld, width %lld", (long long)n, (long long)channels, (long long)width);
    const int64_t xs = channels + 3, os = channels + 1, past = width - 1;
    float *x = ck_random(n * xs, 1.0f), *state = ck_random(past * channels, 1.0f), *out = ck_f32(n * os);
    float *before = or_copy(state, past * channels);
    const mox_vec w = ck_vec(type, ck_random(channels * width, 0.7f), channels * width);
    const mox_conv1d_silu_args a = {.x = x, .state = state, .weight = w, .out = out, .n = n, .channels = channels,
                                    .width = width, .x_stride = xs, .out_stride = os};
    ck_ok(mox_op_conv1d_silu(&ck.exec, &a, &err), &err);
    ck_exact(state, before, past * channels * 4, "the state is only read");
    mox_conv1d_silu_args pieces = a;
    pieces.out = ck_f32(n * os);
    for (int64_t c = 0, step = 1; c < channels; c += step, step = step * 3 % 37)
        ck.exec.kern->conv1d_silu(&pieces, c, c + step < channels ? c + step : channels);
    ck_exact(pieces.out, out, n * os * 4, "channels in pieces");
    for (int64_t t = 0; t < n; t++)
        for (int64_t c = 0; c < channels; c++) { /* newest first: the last tap meets the token itself */
            double sum = 0.0, mag = 0.0;
            for (int64_t back = 0; back < width; back++) {
                const double v =
                    (double)(t >= back ? x[(t - back) * xs + c] : state[(past + t - back) * channels + c]);
                const double term = v * (double)mox_vec_at(&w, c * width + past - back);
                sum += term, mag += fabs(term);
            }
            const double want = silu(sum);
            ck_class_d(&out[t * os + c], &want, &mag, 1, "out");
        }
}

/* Cuts the sequence in every way into three pieces (empty ones too): the outputs
 * keep their bytes, and so does the final state. */
static void conv_splits(int64_t width)
{
    enum { N = 11, C = 70 };
    mox_err err;
    const int64_t past = width - 1;
    float *x = ck_random(N * C, 1.0f), *begin = ck_random(past * C, 1.0f), *whole = ck_f32(N * C),
          *out = ck_f32(N * C);
    const mox_vec w = ck_vec(MOX_DT_BF16, ck_random(C * width, 0.5f), C * width);
    float *state = or_copy(begin, past * C), *end = ck_f32(past * C);
    mox_conv1d_silu_args a = {.x = x, .state = state, .weight = w, .out = whole, .n = N, .channels = C,
                              .width = width, .x_stride = C, .out_stride = C};
    mox_conv1d_shift_args s = {.x = x, .state = state, .n = N, .channels = C, .width = width, .x_stride = C};
    ck_ok(mox_op_conv1d_silu(&ck.exec, &a, &err), &err);
    ck_ok(mox_op_conv1d_shift(&ck.exec, &s, &err), &err);
    if (past > 0) memcpy(end, state, (size_t)(past * C) * 4);
    for (int64_t i = 0; i <= N; i++)
        for (int64_t j = i; j <= N; j++) {
            ck_label("width %lld, cut at %lld and %lld", (long long)width, (long long)i, (long long)j);
            const int64_t cuts[4] = {0, i, j, N};
            if (past > 0) memcpy(state, begin, (size_t)(past * C) * 4);
            for (int64_t k = 0; k < N * C; k++) out[k] = NAN;
            for (int p = 0; p < 3; p++) {
                a.x = s.x = x + cuts[p] * C, a.out = out + cuts[p] * C, a.n = s.n = cuts[p + 1] - cuts[p];
                ck_ok(mox_op_conv1d_silu(&ck.exec, &a, &err), &err);
                ck_ok(mox_op_conv1d_shift(&ck.exec, &s, &err), &err);
            }
            ck_exact(out, whole, N * C * 4, "outputs");
            ck_exact(state, end, past * C * 4, "state");
        }
}

static void test_conv1d_silu(void)
{
    static const int64_t ns[] = {0, 1, 2, 3, 4, 5, 17}, channels[] = {1, 5, 64, 130};
    for (int64_t width = 1; width <= 8; width++)
        for (int i = 0; i < 7; i++)
            for (int c = 0; c < 4; c++) conv_case(ns[i], channels[c], width, c & 1 ? MOX_DT_BF16 : MOX_DT_F32);
    for (int64_t width = 1; width <= 8; width += width == 4 ? 4 : 1) conv_splits(width);
    mox_err err;
    ck_label("refusals");
    float x[16] = {0}, out[16];
    const mox_conv1d_silu_args good = {.x = x, .state = x, .weight = ck_vec(MOX_DT_F32, x, 16), .out = out, .n = 1,
                                       .channels = 4, .width = 4, .x_stride = 4, .out_stride = 4};
    ck_ok(mox_op_conv1d_silu(&ck.exec, &good, &err), &err);
    mox_conv1d_silu_args a = good;
    a.width = 9;
    ck_refused(mox_op_conv1d_silu(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.width = 0;
    ck_refused(mox_op_conv1d_silu(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.width = 3; /* the weight has the wrong length */
    ck_refused(mox_op_conv1d_silu(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.state = NULL;
    ck_refused(mox_op_conv1d_silu(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.n = 2, a.x_stride = 3;
    ck_refused(mox_op_conv1d_silu(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.weight = (mox_vec){0};
    ck_refused(mox_op_conv1d_silu(&ck.exec, &a, &err), MOX_E_ARG);
}

static void conv_reversed(const mox_conv1d_silu_args *a, int64_t begin, int64_t end)
{
    float *w = malloc((size_t)(a->channels * a->width) * sizeof *w);
    if (!w) return;
    for (int64_t i = 0; i < a->channels * a->width; i++)
        w[i] = mox_vec_at(&a->weight, i / a->width * a->width + a->width - 1 - i % a->width);
    mox_conv1d_silu_args b = *a;
    b.weight = (mox_vec){MOX_DT_F32, a->weight.n, (const uint8_t *)w};
    mox_conv1d_silu_ref(&b, begin, end);
    free(w);
}
static void conv_forgets_state(const mox_conv1d_silu_args *a, int64_t begin, int64_t end)
{
    float *zero = calloc((size_t)(a->channels * a->width), sizeof *zero);
    mox_conv1d_silu_args b = *a;
    b.state = zero;
    if (zero) mox_conv1d_silu_ref(&b, begin, end);
    free(zero);
}
static void conv_no_silu(const mox_conv1d_silu_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = 0; t < a->n; t++)
        for (int64_t c = begin; c < end; c++) {
            double sum = 0.0;
            for (int64_t j = 0; j < a->width; j++) {
                const int64_t r = t + j - a->width + 1;
                sum += (double)mox_vec_at(&a->weight, c * a->width + j) *
                       (double)(r < 0 ? a->state[(t + j) * a->channels + c] : a->x[r * a->x_stride + c]);
            }
            a->out[t * a->out_stride + c] = (float)sum;
        }
}
static void plant_conv_reversed(mox_kern *k) { k->conv1d_silu = conv_reversed; }
static void plant_conv_state(mox_kern *k) { k->conv1d_silu = conv_forgets_state; }
static void plant_conv_silu(mox_kern *k) { k->conv1d_silu = conv_no_silu; }

static void test_conv1d_shift(void)
{
    static const int64_t channels[] = {1, 3, 130};
    mox_err err;
    for (int64_t width = 1; width <= 8; width++)
        for (int64_t n = 0; n <= 10; n++)
            for (int i = 0; i < 3; i++) {
                const int64_t c = channels[i], past = width - 1, xs = c + 2;
                ck_label("width %lld, n %lld, channels %lld", (long long)width, (long long)n, (long long)c);
                float *x = ck_random(n * xs, 1.0f), *all = ck_f32((past + n) * c),
                      *state = ck_random(past * c, 1.0f);
                for (int64_t r = 0; r < past + n; r++)
                    memcpy(all + r * c, r < past ? state + r * c : x + (r - past) * xs, (size_t)c * 4);
                const mox_conv1d_shift_args a = {.x = x, .state = state, .n = n, .channels = c, .width = width,
                                                 .x_stride = xs};
                ck_ok(mox_op_conv1d_shift(&ck.exec, &a, &err), &err);
                ck_exact(state, all + n * c, past * c * 4, "state");
            }
    ck_label("refusals");
    float x[8] = {0};
    mox_conv1d_shift_args a = {.x = x, .state = x, .n = 1, .channels = 2, .width = 9, .x_stride = 2};
    ck_refused(mox_op_conv1d_shift(&ck.exec, &a, &err), MOX_E_ARG);
    a.width = 3, a.state = NULL;
    ck_refused(mox_op_conv1d_shift(&ck.exec, &a, &err), MOX_E_ARG);
    a.n = -1;
    ck_refused(mox_op_conv1d_shift(&ck.exec, &a, &err), MOX_E_ARG);
}

static void shift_reads_written(const mox_conv1d_shift_args *a, int64_t begin, int64_t end)
{
    const int64_t past = a->width - 1;
    for (int64_t r = past - 1; r >= 0; r--) /* from the end: a short chunk reads what was just written */
        for (int64_t c = begin; c < end; c++)
            a->state[r * a->channels + c] = a->n + r < past ? a->state[(a->n + r) * a->channels + c]
                                                            : a->x[(a->n + r - past) * a->x_stride + c];
}
static void plant_shift_order(mox_kern *k) { k->conv1d_shift = shift_reads_written; }

/* ---- gdn_qk_norm ---- */

static void qk_case(int64_t n, int64_t heads, int64_t dim, mox_gdn_eps mode, float scale)
{
    mox_err err;
    ck_label("n %lld, heads %lld, dim %lld, mode %d, scale %g", (long long)n, (long long)heads, (long long)dim,
             (int)mode, (double)scale);
    const int64_t keys = heads * dim, stride = 2 * keys + 5; /* the rest of the stream is v and must survive */
    float *stream = ck_random(n * stride, scale);
    if (n > 0)
        for (int64_t i = 0; i < dim; i++) stream[i] = stream[keys + i] = 0.0f; /* a zero head stays zero */
    float *before = or_copy(stream, n * stride);
    const mox_gdn_qk_norm_args a = {.q = stream, .k = stream + keys, .n = n, .heads = heads, .dim = dim,
                                    .stride = stride, .eps = 1e-6f, .mode = mode};
    ck_ok(mox_op_gdn_qk_norm(&ck.exec, &a, &err), &err);
    double *want = or_zeros(dim);
    for (int64_t t = 0; t < n; t++) {
        for (int64_t h = 0; h < 2 * heads; h++) { /* q heads, then k heads */
            const float *x = before + t * stride + h * dim;
            const double s = 1.0 / sqrt((double)dim), sq = or_dot(x, x, dim);
            for (int64_t i = 0; i < dim; i++) { /* MEAN in the other algebraic form: rms norm, then s or s^2 */
                want[i] = mode == MOX_GDN_EPS_MEAN ? (double)x[i] / sqrt(sq / (double)dim + (double)1e-6f) * s
                                                   : (double)x[i] / sqrt(sq + (double)1e-6f);
                if (h < heads) want[i] *= s;
            }
            ck_class_p(stream + t * stride + h * dim, want, dim, h < heads ? "q" : "k");
        }
        ck_exact(stream + t * stride + 2 * keys, before + t * stride + 2 * keys, 20, "the rest of the stream");
    }
}

static void test_gdn_qk_norm(void)
{
    static const int64_t dims[] = {1, 4, 7, 128, 300};
    for (int d = 0; d < 5; d++)
        for (int mode = 0; mode < 2; mode++) {
            qk_case(3, 2, dims[d], (mox_gdn_eps)mode, 1.0f);
            qk_case(2, 3, dims[d], (mox_gdn_eps)mode, 1e-3f); /* eps matters */
        }
    qk_case(0, 2, 8, MOX_GDN_EPS_SUM, 1.0f);
    mox_err err;
    ck_label("refusals");
    float x[32] = {0};
    const mox_gdn_qk_norm_args good = {.q = x, .k = x + 4, .n = 2, .heads = 1, .dim = 4, .stride = 8, .eps = 1e-6f};
    mox_gdn_qk_norm_args a = good;
    a.stride = 3;
    ck_refused(mox_op_gdn_qk_norm(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.dim = 0;
    ck_refused(mox_op_gdn_qk_norm(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.mode = (mox_gdn_eps)2;
    ck_refused(mox_op_gdn_qk_norm(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.eps = -1.0f;
    ck_refused(mox_op_gdn_qk_norm(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.k = NULL;
    ck_refused(mox_op_gdn_qk_norm(&ck.exec, &a, &err), MOX_E_ARG);
}

static void qk_norm_other_eps(const mox_gdn_qk_norm_args *a, int64_t begin, int64_t end)
{
    mox_gdn_qk_norm_args b = *a;
    b.mode = MOX_GDN_EPS_MEAN;
    mox_gdn_qk_norm_ref(&b, begin, end);
}
static void qk_norm_q_unscaled(const mox_gdn_qk_norm_args *a, int64_t begin, int64_t end)
{
    mox_gdn_qk_norm_ref(a, begin, end);
    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < a->heads * a->dim; i++) a->q[t * a->stride + i] *= sqrtf((float)a->dim);
}
static void plant_qk_eps(mox_kern *k) { k->gdn_qk_norm = qk_norm_other_eps; }
static void plant_qk_scale(mox_kern *k) { k->gdn_qk_norm = qk_norm_q_unscaled; }

/* ---- gdn_gates ---- */

static void check_gate(float g, double ln_want)
{
    const double want = exp(ln_want), mag = want * (1.0 + fabs(ln_want));
    ck_close(&g, &want, &mag, 1, 1e-6, 1e-45, "g");
}

static void gates_case(int64_t n, int64_t heads, mox_dtype type)
{
    mox_err err;
    ck_label("n %lld, heads %lld, %s", (long long)n, (long long)heads, mox_dtype_name(type));
    const int64_t as = heads + 2, bs = heads + 1;
    float *a = ck_random(n * as, 4.0f), *b = ck_random(n * bs, 4.0f), *g = ck_f32(n * heads),
          *beta = ck_f32(n * heads);
    const mox_vec a_log = ck_vec(type, ck_uniform(heads, -6.0f, 2.0f), heads);
    const mox_vec dt = ck_vec(MOX_DT_BF16, ck_random(heads, 1.0f), heads);
    const mox_gdn_gates_args args = {.a = a, .b = b, .a_stride = as, .b_stride = bs, .a_log = a_log, .dt_bias = dt,
                                     .g = g, .beta = beta, .n = n, .heads = heads};
    ck_ok(mox_op_gdn_gates(&ck.exec, &args, &err), &err);
    for (int64_t t = 0; t < n; t++)
        for (int64_t h = 0; h < heads; h++) {
            const long double x = (long double)a[t * as + h] + (long double)mox_vec_at(&dt, h);
            const long double softplus = x > 0 ? x + log1pl(expl(-x)) : log1pl(expl(x));
            check_gate(g[t * heads + h], (double)(-expl((long double)mox_vec_at(&a_log, h)) * softplus));
            const double want = 0.5 * (1.0 + tanh(0.5 * (double)b[t * bs + h]));
            ck_class_p(&beta[t * heads + h], &want, 1, "beta");
        }
}

static void test_gdn_gates(void)
{
    gates_case(1, 1, MOX_DT_F32);
    gates_case(5, 3, MOX_DT_F32);
    gates_case(3, 64, MOX_DT_BF16);
    gates_case(0, 4, MOX_DT_F32);
    /* {a_log, a + dt_bias, ln g}: where a naive softplus overflows or loses everything */
    static const double hard[][3] = {{-8, 100, -0.033546262790251185}, {-8, 90, -0.030191636511226067},
                                     {-20, 1000, -2.0611536224385579e-06}, {40, -40, -1.0}, {17, -17, -1.0},
                                     {0, 0, -0.69314718055994531}};
    mox_err err;
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++) {
        ck_label("a_log %g, x %g", hard[i][0], hard[i][1]);
        const float a = (float)hard[i][1], b = i & 1 ? 200.0f : -200.0f, a_log = (float)hard[i][0], zero = 0.0f;
        float g, beta;
        const mox_gdn_gates_args args = {.a = &a, .b = &b, .a_stride = 1, .b_stride = 1,
                                         .a_log = ck_vec(MOX_DT_F32, &a_log, 1),
                                         .dt_bias = ck_vec(MOX_DT_F32, &zero, 1),
                                         .g = &g, .beta = &beta, .n = 1, .heads = 1};
        ck_ok(mox_op_gdn_gates(&ck.exec, &args, &err), &err);
        if (hard[i][0] > 10) { /* e^17 log1p(e^-17) is not quite 1 */
            const long double ln = -expl((long double)hard[i][0]) * log1pl(expl((long double)hard[i][1]));
            check_gate(g, (double)ln);
        } else {
            check_gate(g, hard[i][2]);
        }
        ck_true(i & 1 ? beta == 1.0f : beta >= 0.0f && beta < 1e-30f, "beta at +-200");
    }
    ck_label("refusals");
    float x[4] = {0};
    const mox_gdn_gates_args good = {.a = x, .b = x, .a_stride = 2, .b_stride = 2,
                                     .a_log = ck_vec(MOX_DT_F32, x, 2), .dt_bias = ck_vec(MOX_DT_F32, x, 1),
                                     .g = x + 2, .beta = x + 2, .n = 1, .heads = 2};
    ck_refused(mox_op_gdn_gates(&ck.exec, &good, &err), MOX_E_ARG); /* dt_bias is too short */
    mox_gdn_gates_args a = good;
    a.dt_bias = a.a_log, a.a_log = (mox_vec){0};
    ck_refused(mox_op_gdn_gates(&ck.exec, &a, &err), MOX_E_ARG);
    a.a_log = a.dt_bias, a.n = 2, a.a_stride = 1;
    ck_refused(mox_op_gdn_gates(&ck.exec, &a, &err), MOX_E_ARG);
}

static void gates_naive(const mox_gdn_gates_args *a, int64_t begin, int64_t end)
{
    mox_gdn_gates_ref(a, begin, end);
    for (int64_t t = begin; t < end; t++)
        for (int64_t h = 0; h < a->heads; h++) {
            const float x = a->a[t * a->a_stride + h] + mox_vec_at(&a->dt_bias, h);
            a->g[t * a->heads + h] = expf(-expf(mox_vec_at(&a->a_log, h)) * logf(1.0f + expf(x)));
        }
}
static void gates_without_dt(const mox_gdn_gates_args *a, int64_t begin, int64_t end)
{
    mox_gdn_gates_args b = *a;
    float *zero = calloc((size_t)a->heads, sizeof *zero);
    b.dt_bias = (mox_vec){MOX_DT_F32, a->heads, (const uint8_t *)zero};
    if (zero) mox_gdn_gates_ref(&b, begin, end);
    free(zero);
}
static void plant_gates_naive(mox_kern *k) { k->gdn_gates = gates_naive; }
static void plant_gates_dt(mox_kern *k) { k->gdn_gates = gates_without_dt; }

/* ---- bench ---- */

enum { BENCH_CHANNELS = 8192, BENCH_HEADS = 16, BENCH_DIM = 128 };

CK_RUN(conv1d_silu)
CK_RUN(conv1d_shift)
CK_RUN(gdn_qk_norm)
CK_RUN(gdn_gates)

static void bench_conv1d_silu(void)
{
    const int64_t width = 4;
    for (int64_t n = 1; n <= 512; n *= 512) {
        mox_conv1d_silu_args a = {
            .x = ck_random(n * BENCH_CHANNELS, 1), .state = ck_random((width - 1) * BENCH_CHANNELS, 1),
            .weight = ck_vec(MOX_DT_BF16, ck_random(BENCH_CHANNELS * width, 0.5f), BENCH_CHANNELS * width),
            .out = ck_f32(n * BENCH_CHANNELS), .n = n, .channels = BENCH_CHANNELS, .width = width,
            .x_stride = BENCH_CHANNELS, .out_stride = BENCH_CHANNELS};
        ck_bench(ck_tokens("conv1d_silu, 8192 x 4", n), (double)(n * BENCH_CHANNELS * 8), 0, run_conv1d_silu, &a);
    }
}

static void bench_conv1d_shift(void)
{
    for (int64_t n = 1; n <= 512; n *= 512) {
        mox_conv1d_shift_args a = {.x = ck_random(n * BENCH_CHANNELS, 1), .state = ck_random(3 * BENCH_CHANNELS, 1), .n = n,
                                   .channels = BENCH_CHANNELS, .width = 4, .x_stride = BENCH_CHANNELS};
        ck_bench(ck_tokens("conv1d_shift, 8192 x 4", n), (double)(BENCH_CHANNELS * 24), 0, run_conv1d_shift, &a);
    }
}

static void bench_gdn_qk_norm(void)
{
    const int64_t keys = BENCH_HEADS * BENCH_DIM;
    for (int64_t n = 1; n <= 512; n *= 512) {
        float *q = ck_random(n * 2 * keys, 1);
        mox_gdn_qk_norm_args a = {.q = q, .k = q + keys, .n = n, .heads = BENCH_HEADS, .dim = BENCH_DIM, .stride = 2 * keys,
                                  .eps = 1e-6f};
        ck_bench(ck_tokens("gdn_qk_norm of 16 heads", n), (double)(n * keys * 16), 0, run_gdn_qk_norm, &a);
    }
}

static void bench_gdn_gates(void)
{
    const int64_t heads = 32;
    for (int64_t n = 1; n <= 512; n *= 512) {
        mox_gdn_gates_args a = {.a = ck_random(n * heads, 1), .b = ck_random(n * heads, 1), .a_stride = heads,
                                .b_stride = heads, .a_log = ck_vec(MOX_DT_F32, ck_uniform(heads, -4, 2), heads),
                                .dt_bias = ck_vec(MOX_DT_BF16, ck_random(heads, 1), heads), .g = ck_f32(n * heads),
                                .beta = ck_f32(n * heads), .n = n, .heads = heads};
        ck_bench(ck_tokens("gdn_gates of 32 heads", n), (double)(n * heads * 16), 0, run_gdn_gates, &a);
    }
}

const ck_op ck_ops_deltanet[] = {
    {"gdn_split", test_gdn_split, {plant_split_ba}, NULL},
    {"conv1d_silu", test_conv1d_silu, {plant_conv_reversed, plant_conv_state, plant_conv_silu}, bench_conv1d_silu},
    {"conv1d_shift", test_conv1d_shift, {plant_shift_order}, bench_conv1d_shift},
    {"gdn_qk_norm", test_gdn_qk_norm, {plant_qk_eps, plant_qk_scale}, bench_gdn_qk_norm},
    {"gdn_gates", test_gdn_gates, {plant_gates_naive, plant_gates_dt}, bench_gdn_gates},
    {0},
};
