/* tests/check/check_norm.c -- sum_sq, rms_apply, rms_norm, residual_norm, gated_rms_norm.
 *
 * The oracle divides by the root instead of multiplying by its inverse and adds in
 * another order. */
#include "oracle.h"

#include <stdlib.h>

static const mox_dtype weight_types[] = {MOX_DT_NONE, MOX_DT_F32, MOX_DT_BF16, MOX_DT_F16};
static const int64_t dims[] = {1, 3, 7, 64, 128, 257, 4099};
enum { N_TYPES = sizeof weight_types / sizeof *weight_types, N_DIMS = sizeof dims / sizeof *dims };

/* Random gains round one; none for NONE. */
static mox_vec random_gain(mox_dtype type, int64_t n)
{
    if (type == MOX_DT_NONE) return (mox_vec){0};
    return ck_vec(type, ck_uniform(n, -0.5f, 1.5f), n);
}

static double gain_at(const mox_vec *w, float offset, int64_t i)
{
    return w->type == MOX_DT_NONE ? 1.0 : (double)mox_vec_at(w, i) + (double)offset;
}

static void oracle_row(const float *x, int64_t dim, const mox_vec *w, float offset, float eps, double *want)
{
    const double root = sqrt(or_dot(x, x, dim) / (double)dim + (double)eps);
    for (int64_t i = 0; i < dim; i++) want[i] = (double)x[i] / root * gain_at(w, offset, i);
}

/* ---- sum_sq ---- */

static void test_sum_sq(void)
{
    mox_err err;
    for (int d = 0; d < N_DIMS; d++) {
        const int64_t n = dims[d];
        ck_label("n %lld", (long long)n);
        float *x = ck_random(n, 2.0f), *out = ck_f32(1);
        const mox_sum_sq_args a = {.x = x, .out = out, .n = n};
        ck_ok(mox_op_sum_sq(&ck.exec, &a, &err), &err);
        const double want = or_dot(x, x, n);
        ck_class_d(out, &want, &want, 1, "sum");
    }
    ck_label("refusals");
    float x[4] = {1, 2, 3, 4}, out[1];
    ck_refused(mox_op_sum_sq(&ck.exec, &(mox_sum_sq_args){.x = x, .out = out, .n = 0}, &err), MOX_E_ARG);
    ck_refused(mox_op_sum_sq(&ck.exec, &(mox_sum_sq_args){.x = x, .out = out, .n = -1}, &err), MOX_E_ARG);
    ck_refused(mox_op_sum_sq(&ck.exec, &(mox_sum_sq_args){.out = out, .n = 4}, &err), MOX_E_ARG);
    ck_refused(mox_op_sum_sq(&ck.exec, &(mox_sum_sq_args){.x = x, .out = out, .n = INT64_MAX}, NULL), MOX_E_ARG);
}

static void sum_sq_drops_tail(const mox_sum_sq_args *a, int64_t begin, int64_t end)
{
    mox_sum_sq_args b = *a;
    b.n -= b.n % 4;
    mox_sum_sq_ref(&b, begin, end);
}
static void plant_sum_sq_tail(mox_kern *k) { k->sum_sq = sum_sq_drops_tail; }

/* ---- rms_apply ---- */

static void test_rms_apply(void)
{
    mox_err err;
    for (int d = 0; d < N_DIMS; d++)
        for (int t = 0; t < N_TYPES; t++)
            for (int small = 0; small < 2; small++) { /* small: eps is as large as the mean square */
                const int64_t n = dims[d];
                const float offset = small ? 1.0f : 0.0f;
                ck_label("n %lld, weight %s, %s", (long long)n, mox_dtype_name(weight_types[t]),
                         small ? "small" : "large");
                const mox_vec w = random_gain(weight_types[t], n);
                float *x = ck_random(n, small ? 1e-3f : 3.0f), *out = ck_f32(n), *sum = ck_f32(1);
                sum[0] = (float)or_dot(x, x, n);
                mox_rms_apply_args a = {.x = x, .sum_sq = sum, .out = out, .n = n, .weight = w, .offset = offset,
                                        .eps = 1e-6f};
                ck_ok(mox_op_rms_apply(&ck.exec, &a, &err), &err);
                double *want = or_zeros(n);
                oracle_row(x, n, &w, offset, 1e-6f, want);
                ck_class_p(out, want, n, "out");
                a.out = x;
                ck_ok(mox_op_rms_apply(&ck.exec, &a, &err), &err);
                ck_exact(x, out, n * 4, "in place");
            }
    ck_label("refusals");
    float x[4] = {1, 2, 3, 4}, sum[1] = {30};
    const mox_rms_apply_args good = {.x = x, .sum_sq = sum, .out = x, .n = 4, .eps = 1e-6f};
    mox_rms_apply_args a = good;
    a.weight = ck_vec(MOX_DT_F32, x, 3); /* one too short */
    ck_refused(mox_op_rms_apply(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.n = 0;
    ck_refused(mox_op_rms_apply(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.sum_sq = NULL;
    ck_refused(mox_op_rms_apply(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.eps = -1e-6f;
    ck_refused(mox_op_rms_apply(&ck.exec, &a, &err), MOX_E_ARG);
}

static void rms_apply_eps_outside(const mox_rms_apply_args *a, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++)
        a->out[i] = (float)((double)a->x[i] / (sqrt((double)a->sum_sq[0] / (double)a->n) + (double)a->eps) *
                            gain_at(&a->weight, a->offset, i));
}
static void rms_apply_no_offset(const mox_rms_apply_args *a, int64_t begin, int64_t end)
{
    mox_rms_apply_args b = *a;
    b.offset = 0.0f;
    mox_rms_apply_ref(&b, begin, end);
}
static void plant_rms_apply_eps(mox_kern *k) { k->rms_apply = rms_apply_eps_outside; }
static void plant_rms_apply_offset(mox_kern *k) { k->rms_apply = rms_apply_no_offset; }

/* ---- rms_norm ---- */

/* Rows with gaps between heads and tokens; what lies in the gaps must survive. */
static void rms_norm_case(int64_t n, int64_t heads, int64_t dim, mox_dtype type, float scale, float offset)
{
    mox_err err;
    ck_label("n %lld, heads %lld, dim %lld, weight %s", (long long)n, (long long)heads, (long long)dim,
             mox_dtype_name(type));
    const int64_t hs = dim + 3, ts = heads * hs + 5, oh = dim + 1, ot = heads * oh + 2;
    const mox_vec w = random_gain(type, dim);
    float *x = ck_random(n * ts, scale), *out = ck_random(n * ot, 1.0f), *before = or_copy(out, n * ot);
    mox_rms_norm_args a = {.x = x, .out = out, .n = n, .heads = heads, .dim = dim, .x_stride = ts,
                           .x_head_stride = hs, .out_stride = ot, .out_head_stride = oh, .weight = w,
                           .offset = offset, .eps = 1e-6f};
    ck_ok(mox_op_rms_norm(&ck.exec, &a, &err), &err);
    double *want = or_zeros(dim);
    for (int64_t t = 0; t < n; t++)
        for (int64_t h = 0; h < heads; h++) {
            oracle_row(x + t * ts + h * hs, dim, &w, offset, 1e-6f, want);
            ck_class_p(out + t * ot + h * oh, want, dim, "row");
            ck_exact(out + t * ot + h * oh + dim, before + t * ot + h * oh + dim, (oh - dim) * 4,
                     "gap between heads");
        }
    a.out = x, a.out_stride = ts, a.out_head_stride = hs;
    ck_ok(mox_op_rms_norm(&ck.exec, &a, &err), &err);
    for (int64_t t = 0; t < n; t++)
        for (int64_t h = 0; h < heads; h++)
            ck_exact(x + t * ts + h * hs, out + t * ot + h * oh, dim * 4, "in place");
}

static void test_rms_norm(void)
{
    for (int d = 0; d < N_DIMS; d++)
        for (int t = 0; t < N_TYPES; t++) {
            rms_norm_case(3, 1, dims[d], weight_types[t], 2.0f, 0.0f);
            rms_norm_case(2, 5, dims[d], weight_types[t], 1e-3f, 1.0f); /* eps matters */
        }
    rms_norm_case(1, 1, 7168, MOX_DT_BF16, 1.0f, 0.0f);
    rms_norm_case(0, 4, 64, MOX_DT_F32, 1.0f, 0.0f);

    ck_label("a row of zeros stays zero");
    mox_err err;
    float zero[64] = {0}, out[64];
    mox_rms_norm_args a = {.x = zero, .out = out, .n = 1, .heads = 1, .dim = 64, .x_stride = 64, .out_stride = 64,
                           .eps = 1e-6f};
    ck_ok(mox_op_rms_norm(&ck.exec, &a, &err), &err);
    ck_exact(out, zero, sizeof out, "zeros");

    ck_label("refusals");
    const mox_rms_norm_args good = a;
    a.dim = 0;
    ck_refused(mox_op_rms_norm(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.n = -1;
    ck_refused(mox_op_rms_norm(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.n = 2, a.x_stride = 63;
    ck_refused(mox_op_rms_norm(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.n = 3, a.x_stride = INT64_MAX / 2;
    ck_refused(mox_op_rms_norm(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.weight = ck_vec(MOX_DT_BF16, zero, 63);
    ck_refused(mox_op_rms_norm(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.out = zero, a.n = 2, a.dim = 16, a.x_stride = 16, a.out_stride = 32; /* in place, other steps */
    ck_refused(mox_op_rms_norm(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.eps = NAN;
    ck_refused(mox_op_rms_norm(&ck.exec, &a, &err), MOX_E_ARG);
}

static void rms_norm_eps_of_sum(const mox_rms_norm_args *a, int64_t begin, int64_t end)
{
    mox_rms_norm_args b = *a;
    b.eps /= (float)b.dim; /* as if it were added to the sum */
    mox_rms_norm_ref(&b, begin, end);
}
static void rms_norm_no_offset(const mox_rms_norm_args *a, int64_t begin, int64_t end)
{
    mox_rms_norm_args b = *a;
    b.offset = 0.0f;
    mox_rms_norm_ref(&b, begin, end);
}
static void rms_norm_across_heads(const mox_rms_norm_args *a, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++) { /* the first head's mean for all heads of a token */
        const float *first = a->x + row / a->heads * a->x_stride,
                    *x = first + row % a->heads * a->x_head_stride;
        float *out = a->out + row / a->heads * a->out_stride + row % a->heads * a->out_head_stride;
        const double root = sqrt(or_dot(first, first, a->dim) / (double)a->dim + (double)a->eps);
        for (int64_t i = 0; i < a->dim; i++)
            out[i] = (float)((double)x[i] / root * gain_at(&a->weight, a->offset, i));
    }
}
static void plant_rms_norm_eps(mox_kern *k) { k->rms_norm = rms_norm_eps_of_sum; }
static void plant_rms_norm_offset(mox_kern *k) { k->rms_norm = rms_norm_no_offset; }
static void plant_rms_norm_heads(mox_kern *k) { k->rms_norm = rms_norm_across_heads; }

/* ---- residual_norm ---- */

static void residual_norm_case(int64_t rows, int64_t dim, mox_dtype type, int64_t scale_len)
{
    mox_err err;
    ck_label("rows %lld, dim %lld, scale_len %lld", (long long)rows, (long long)dim, (long long)scale_len);
    const int64_t n = rows * dim;
    const mox_vec w = random_gain(type, dim);
    float *x = ck_random(n, 1.0f), *y = ck_random(n, 1.0f), *res = ck_f32(n), *norm = ck_f32(n),
          *sum = ck_f32(n);
    float *scale = scale_len ? ck_uniform(scale_len, 0.1f, 2.0f) : NULL;
    mox_residual_norm_args a = {.a = x, .b = y, .scale = scale, .scale_len = scale_len, .res = res, .norm = norm,
                                .rows = rows, .dim = dim, .weight = w, .offset = 1.0f, .eps = 1e-5f};
    ck_ok(mox_op_residual_norm(&ck.exec, &a, &err), &err);
    if (scale) {
        const mox_scale_add_args add = {.a = x, .b = y, .scale = scale, .out = sum, .n = n, .scale_len = scale_len};
        ck_ok(mox_op_scale_add(&ck.exec, &add, &err), &err);
    } else {
        const mox_add_args add = {.a = x, .b = y, .out = sum, .n = n};
        ck_ok(mox_op_add(&ck.exec, &add, &err), &err);
    }
    ck_exact(res, sum, n * 4, "the residual is that of add");
    double *want = or_zeros(dim);
    for (int64_t r = 0; r < rows; r++) {
        oracle_row(sum + r * dim, dim, &w, 1.0f, 1e-5f, want);
        ck_class_p(norm + r * dim, want, dim, "norm");
    }
    float *x2 = or_copy(x, n), *norm2 = ck_f32(n);
    a.a = x2, a.res = x2, a.norm = norm2;
    ck_ok(mox_op_residual_norm(&ck.exec, &a, &err), &err);
    ck_exact(x2, res, n * 4, "res over a");
    ck_exact(norm2, norm, n * 4, "norm with res over a");
    a.a = x, a.b = y, a.res = y;
    ck_ok(mox_op_residual_norm(&ck.exec, &a, &err), &err);
    ck_exact(y, res, n * 4, "res over b");
}

static void test_residual_norm(void)
{
    for (int d = 0; d < N_DIMS; d++) {
        residual_norm_case(3, dims[d], weight_types[d % N_TYPES], 0);
        residual_norm_case(2, dims[d], weight_types[(d + 1) % N_TYPES], dims[d]);
        residual_norm_case(2, dims[d], MOX_DT_F32, 5); /* a scale of another length wraps */
    }
    residual_norm_case(0, 8, MOX_DT_F32, 0);
    ck_label("refusals");
    mox_err err;
    float x[8] = {0}, y[8] = {0}, r[8], n[8];
    const mox_residual_norm_args good = {.a = x, .b = y, .res = r, .norm = n, .rows = 2, .dim = 4, .eps = 1e-5f};
    mox_residual_norm_args a = good;
    a.dim = 0;
    ck_refused(mox_op_residual_norm(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.scale = x, a.scale_len = 0;
    ck_refused(mox_op_residual_norm(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.norm = r;
    ck_refused(mox_op_residual_norm(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.rows = INT64_MAX / 2;
    ck_refused(mox_op_residual_norm(&ck.exec, &a, &err), MOX_E_ARG);
}

static void residual_norm_of_a(const mox_residual_norm_args *a, int64_t begin, int64_t end)
{
    mox_residual_norm_ref(a, begin, end);
    const mox_rms_norm_args b = {.x = a->b, .out = a->norm, .n = a->rows, .heads = 1, .dim = a->dim,
                                 .x_stride = a->dim, .out_stride = a->dim, .weight = a->weight,
                                 .offset = a->offset, .eps = a->eps};
    mox_rms_norm_ref(&b, begin, end); /* normed one summand instead of the sum */
}
static void residual_norm_scales_sum(const mox_residual_norm_args *a, int64_t begin, int64_t end)
{
    mox_residual_norm_args b = *a;
    b.scale = NULL;
    mox_residual_norm_ref(&b, begin, end);
    for (int64_t i = begin * a->dim; a->scale && i < end * a->dim; i++) a->res[i] *= a->scale[i % a->scale_len];
}
static void plant_residual_norm_a(mox_kern *k) { k->residual_norm = residual_norm_of_a; }
static void plant_residual_norm_scale(mox_kern *k) { k->residual_norm = residual_norm_scales_sum; }

/* ---- gated_rms_norm ---- */

static void gated_case(int64_t rows, int64_t dim, mox_dtype type, float scale)
{
    mox_err err;
    ck_label("rows %lld, dim %lld, scale %g", (long long)rows, (long long)dim, (double)scale);
    const int64_t n = rows * dim;
    const mox_vec w = random_gain(type, dim);
    float *x = ck_random(n, scale), *z = ck_random(n, 3.0f), *out = ck_f32(n);
    if (n > 0) z[0] = -100.0f; /* silu is all but 0 and must not overflow on the way */
    mox_gated_rms_norm_args a = {.x = x, .z = z, .out = out, .rows = rows, .dim = dim, .weight = w, .eps = 1e-6f};
    ck_ok(mox_op_gated_rms_norm(&ck.exec, &a, &err), &err);
    double *want = or_zeros(dim);
    for (int64_t r = 0; r < rows; r++) {
        oracle_row(x + r * dim, dim, &w, 0.0f, 1e-6f, want);
        for (int64_t i = 0; i < dim; i++) {
            const double gate = (double)z[r * dim + i];
            want[i] *= gate * 0.5 * (1.0 + tanh(0.5 * gate));
        }
        ck_class_p(out + r * dim, want, dim, "row");
    }
    a.out = x;
    ck_ok(mox_op_gated_rms_norm(&ck.exec, &a, &err), &err);
    ck_exact(x, out, n * 4, "in place");
}

static void test_gated_rms_norm(void)
{
    for (int d = 0; d < N_DIMS; d++) {
        gated_case(5, dims[d], weight_types[d % N_TYPES], 1.0f);
        gated_case(2, dims[d], MOX_DT_F32, 1e-4f); /* mean square far below eps, as in trained models */
    }
    gated_case(0, 128, MOX_DT_F32, 1.0f);
    ck_label("refusals");
    mox_err err;
    float x[4] = {1, 2, 3, 4};
    const mox_gated_rms_norm_args good = {.x = x, .z = x, .out = x, .rows = 1, .dim = 4, .eps = 1e-6f};
    mox_gated_rms_norm_args a = good;
    a.z = NULL;
    ck_refused(mox_op_gated_rms_norm(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.dim = 0;
    ck_refused(mox_op_gated_rms_norm(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.weight = ck_vec(MOX_DT_F32, x, 2);
    ck_refused(mox_op_gated_rms_norm(&ck.exec, &a, &err), MOX_E_ARG);
}

static void gated_with_sigmoid(const mox_gated_rms_norm_args *a, int64_t begin, int64_t end)
{
    double *want = malloc((size_t)a->dim * sizeof *want);
    for (int64_t r = begin; want && r < end; r++) {
        oracle_row(a->x + r * a->dim, a->dim, &a->weight, 0.0f, a->eps, want);
        for (int64_t i = 0; i < a->dim; i++)
            a->out[r * a->dim + i] = (float)(want[i] / (1.0 + exp(-(double)a->z[r * a->dim + i])));
    }
    free(want);
}
static void gated_eps_ten_times(const mox_gated_rms_norm_args *a, int64_t begin, int64_t end)
{
    mox_gated_rms_norm_args b = *a;
    b.eps *= 10.0f;
    mox_gated_rms_norm_ref(&b, begin, end);
}
static void plant_gated_sigmoid(mox_kern *k) { k->gated_rms_norm = gated_with_sigmoid; }
static void plant_gated_eps(mox_kern *k) { k->gated_rms_norm = gated_eps_ten_times; }

/* ---- bench ---- */

enum { BENCH_DIM = 2048, BENCH_HEADS = 32, BENCH_HEAD_DIM = 128 };

CK_RUN(rms_norm)
CK_RUN(residual_norm)
CK_RUN(gated_rms_norm)

static void bench_rms_norm(void)
{
    for (int64_t n = 1; n <= 512; n *= 512) {
        mox_rms_norm_args a = {.x = ck_random(n * BENCH_DIM, 1), .out = ck_f32(n * BENCH_DIM), .n = n, .heads = 1,
                               .dim = BENCH_DIM, .x_stride = BENCH_DIM, .out_stride = BENCH_DIM,
                               .weight = random_gain(MOX_DT_BF16, BENCH_DIM), .eps = 1e-6f};
        ck_bench(ck_tokens("rms_norm of 2048", n), (double)(n * BENCH_DIM * 8), 0, run_rms_norm, &a);
        const int64_t width = BENCH_HEADS * BENCH_HEAD_DIM;
        mox_rms_norm_args b = {.x = ck_random(n * width, 1), .out = ck_f32(n * width), .n = n, .heads = BENCH_HEADS,
                               .dim = BENCH_HEAD_DIM, .x_stride = width, .x_head_stride = BENCH_HEAD_DIM, .out_stride = width,
                               .out_head_stride = BENCH_HEAD_DIM, .weight = random_gain(MOX_DT_BF16, BENCH_HEAD_DIM),
                               .eps = 1e-6f};
        ck_bench(ck_tokens("rms_norm of 32 heads", n), (double)(n * width * 8), 0, run_rms_norm, &b);
    }
}

static void bench_residual_norm(void)
{
    for (int64_t n = 1; n <= 512; n *= 512) {
        const int64_t all = n * BENCH_DIM;
        mox_residual_norm_args a = {.a = ck_random(all, 1), .b = ck_random(all, 1), .res = ck_f32(all), .norm = ck_f32(all),
                                    .rows = n, .dim = BENCH_DIM, .weight = random_gain(MOX_DT_BF16, BENCH_DIM), .eps = 1e-6f};
        ck_bench(ck_tokens("residual_norm", n), (double)(all * 16), 0, run_residual_norm, &a);
    }
}

static void bench_gated_rms_norm(void)
{
    for (int64_t n = 1; n <= 512; n *= 512) {
        const int64_t rows = n * BENCH_HEADS, all = rows * BENCH_HEAD_DIM;
        mox_gated_rms_norm_args a = {.x = ck_random(all, 1), .z = ck_random(all, 1), .out = ck_f32(all), .rows = rows,
                                     .dim = BENCH_HEAD_DIM, .weight = random_gain(MOX_DT_F32, BENCH_HEAD_DIM), .eps = 1e-6f};
        ck_bench(ck_tokens("gated_rms_norm of 32 heads", n), (double)(all * 12), 0, run_gated_rms_norm, &a);
    }
}

const ck_op ck_ops_norm[] = {
    {"sum_sq", test_sum_sq, {plant_sum_sq_tail}, NULL},
    {"rms_apply", test_rms_apply, {plant_rms_apply_eps, plant_rms_apply_offset}, NULL},
    {"rms_norm", test_rms_norm, {plant_rms_norm_eps, plant_rms_norm_offset, plant_rms_norm_heads}, bench_rms_norm},
    {"residual_norm", test_residual_norm, {plant_residual_norm_a, plant_residual_norm_scale}, bench_residual_norm},
    {"gated_rms_norm", test_gated_rms_norm, {plant_gated_sigmoid, plant_gated_eps}, bench_gated_rms_norm},
    {0},
};
