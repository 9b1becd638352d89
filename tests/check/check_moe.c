/* tests/check/check_moe.c -- bucketing and combining, against loops over pairs that
 * ask each pair where it belongs, and sums taken from the last slot to the first. */
#include "check.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

static const int64_t too_many = INT64_MAX / 3;

static double *doubles(int64_t n) { return ck_bytes(n * 8); }
static double sigmoid(double v) { return 0.5 + 0.5 * tanh(v / 2); }

/* ---- bucketing ---- */

static int32_t *random_ids(int64_t n, int64_t n_experts, bool strays)
{
    int32_t *ids = ck_i32(n);
    for (int64_t p = 0; p < n; p++) {
        ids[p] = (int32_t)ck_rand((uint64_t)(n_experts > 0 ? n_experts : 1));
        if (strays && ck_rand(6) == 0)
            ids[p] = ck_rand(2) ? -1 - (int32_t)ck_rand(9) : (int32_t)(n_experts + (int64_t)ck_rand(3));
    }
    return ids;
}

/* Expert after expert, every pair that belongs to it, in order. */
static void check_buckets(const int32_t *ids, int64_t n_pairs, int64_t n_experts)
{
    int64_t *offsets = ck_bytes((n_experts + 1) * 8), n = 0;
    int32_t *pairs = ck_i32(n_pairs);
    const mox_moe_bucket_args a = {ids, n_pairs, n_experts, offsets, pairs};
    mox_err err;
    ck_ok(mox_op_moe_bucket(&ck.exec, &a, &err), &err);
    for (int64_t x = 0; x < n_experts; x++) {
        ck_true(offsets[x] == n, "an offset");
        for (int64_t p = 0; p < n_pairs; p++)
            if (ids[p] == x) ck_true(pairs[n++] == p, "a pair is not where it should be");
    }
    ck_true(offsets[n_experts] == n, "the last offset");
}

static void check_strided(const int32_t *ids, int64_t n_pairs, int64_t n_experts, int64_t row_stride)
{
    int32_t *counts = ck_i32(n_experts), *rows = ck_i32(n_experts * row_stride);
    uint32_t *gate_up = ck_bytes(12), *down = ck_bytes(12);
    const mox_moe_bucket_strided_args a = {ids, n_pairs, n_experts, row_stride, 768, 2049, counts, rows, gate_up, down};
    mox_err err;
    ck_ok(mox_op_moe_bucket_strided(&ck.exec, &a, &err), &err);
    int64_t most = 1;
    for (int64_t x = 0; x < n_experts; x++) {
        int64_t n = 0;
        for (int64_t p = 0; p < n_pairs; p++)
            if (ids[p] == x) {
                ck_true(n < counts[x] && rows[x * row_stride + n] == p, "a pair is not where it should be");
                n++;
            }
        ck_true(counts[x] == n, "a count");
        if (n > most) most = n;
    }
    const uint32_t tiles = (uint32_t)((most + 31) / 32);
    ck_true(gate_up[0] == tiles && gate_up[1] == 12 && gate_up[2] == n_experts, "the launch of gate and up");
    ck_true(down[0] == tiles && down[1] == 33 && down[2] == n_experts, "the launch of down");
}

/* 5 tokens, 3 slots each, 8 experts, expert (4 token + 2 slot) mod 8. */
static int32_t *golden_ids(void)
{
    int32_t *ids = ck_i32(15);
    for (int p = 0; p < 15; p++) ids[p] = (4 * (p / 3) + 2 * (p % 3)) % 8;
    return ids;
}
static const int32_t golden_counts[8] = {5, 0, 3, 0, 5, 0, 2, 0};
static const int32_t golden_pairs[15] = {0, 5, 6, 11, 12, 1, 7, 13, 2, 3, 8, 9, 14, 4, 10};

static void bucket_cases(void (*check)(const int32_t *, int64_t, int64_t))
{
    static const int64_t experts[] = {1, 2, 8, 33, 512};
    for (int i = 0; i < 5; i++)
        for (int64_t n = 0; n <= 160; n += 40) {
            ck_label("%lld pairs, %lld experts", (long long)n, (long long)experts[i]);
            check(random_ids(n, experts[i], false), n, experts[i]);
            ck_label("%lld pairs, %lld experts, strays", (long long)n, (long long)experts[i]);
            check(random_ids(n, experts[i], true), n, experts[i]);
        }
    ck_label("all to one");
    int32_t *one = ck_i32(100);
    for (int p = 0; p < 100; p++) one[p] = 3;
    check(one, 100, 5);
    ck_label("an expert twice for one token");
    int32_t *twice = ck_i32(6);
    memcpy(twice, (const int32_t[]){2, 2, 0, 1, 2, 1}, 24);
    check(twice, 6, 3);
    ck_label("no experts");
    check(random_ids(4, 0, false), 4, 0);
}

static void test_moe_bucket(void)
{
    ck_label("golden");
    int64_t *offsets = ck_bytes(9 * 8);
    int32_t *pairs = ck_i32(15), *ids = golden_ids();
    ck_ok(mox_op_moe_bucket(&ck.exec, &(mox_moe_bucket_args){ids, 15, 8, offsets, pairs}, NULL), NULL);
    ck_exact(pairs, golden_pairs, sizeof golden_pairs, "pairs");
    for (int x = 0; x < 8; x++) ck_true(offsets[x + 1] - offsets[x] == golden_counts[x], "a golden count");
    bucket_cases(check_buckets);
    ck_label("refusals");
    const mox_moe_bucket_args good = {ids, 15, 8, offsets, pairs};
    mox_moe_bucket_args a;
#define REFUSES(change) \
    a = good; \
    change; \
    ck_refused(mox_op_moe_bucket(&ck.exec, &a, NULL), MOX_E_ARG)
    REFUSES(a.ids = NULL);
    REFUSES(a.offsets = NULL);
    REFUSES(a.pairs = NULL);
    REFUSES(a.n_pairs = -1);
    REFUSES(a.n_experts = -1);
    REFUSES(a.n_pairs = (int64_t)INT32_MAX + 1);
    REFUSES(a.n_experts = INT64_MAX);
#undef REFUSES
}

static void check_strided_wide(const int32_t *ids, int64_t n_pairs, int64_t n_experts)
{
    check_strided(ids, n_pairs, n_experts, n_pairs);
}

static void test_moe_bucket_strided(void)
{
    ck_label("golden");
    int32_t *ids = golden_ids(), *counts = ck_i32(8), *rows = ck_i32(8 * 15);
    uint32_t gate_up[3], down[3];
    const mox_moe_bucket_strided_args good = {ids, 15, 8, 15, 768, 2048, counts, rows, gate_up, down};
    mox_moe_bucket_strided_args a = good;
    ck_ok(mox_op_moe_bucket_strided(&ck.exec, &a, NULL), NULL);
    ck_exact(counts, golden_counts, sizeof golden_counts, "counts");
    const int32_t *pair = golden_pairs;
    for (int x = 0; x < 8; pair += golden_counts[x++]) ck_exact(rows + x * 15, pair, golden_counts[x] * 4, "a row");
    ck_exact(gate_up, (const uint32_t[]){1, 12, 8}, 12, "the launch of gate and up");
    ck_exact(down, (const uint32_t[]){1, 32, 8}, 12, "the launch of down");
    ck_label("rows as tight as can be");
    check_strided(ids, 15, 8, 5);
    a.launch_gate_up = NULL;
    a.launch_down = NULL;
    ck_ok(mox_op_moe_bucket_strided(&ck.exec, &a, NULL), NULL);
    ck_label("full");
    int32_t *guarded = ck_i32(8 * 4);
    a = good;
    a.row_stride = 4;
    a.rows = guarded;
    ck_refused(mox_op_moe_bucket_strided(&ck.exec, &a, NULL), MOX_E_FULL);
    bucket_cases(check_strided_wide);
    ck_label("refusals");
#define REFUSES(change) \
    a = good; \
    change; \
    ck_refused(mox_op_moe_bucket_strided(&ck.exec, &a, NULL), MOX_E_ARG)
    REFUSES(a.ids = NULL);
    REFUSES(a.counts = NULL);
    REFUSES(a.rows = NULL);
    REFUSES(a.n_pairs = -1);
    REFUSES(a.n_experts = -1);
    REFUSES(a.row_stride = -1);
    REFUSES(a.row_stride = too_many);
    REFUSES(a.m_gate_up = -1);
    REFUSES(a.m_down = (int64_t)UINT32_MAX + 1);
#undef REFUSES
}

/* From the last pair to the first: a set is right, its order is not. */
static void bucket_backwards(const mox_moe_bucket_args *a, int64_t begin, int64_t end)
{
    mox_moe_bucket_ref(a, begin, end);
    for (int64_t x = 0; x < a->n_experts; x++)
        for (int64_t i = a->offsets[x], j = a->offsets[x + 1] - 1; i < j; i++, j--) {
            const int32_t pair = a->pairs[i];
            a->pairs[i] = a->pairs[j];
            a->pairs[j] = pair;
        }
}
static void bucket_counts_strays(const mox_moe_bucket_args *a, int64_t begin, int64_t end)
{
    mox_moe_bucket_ref(a, begin, end);
    a->offsets[a->n_experts] = a->n_pairs;
}
static void plant_bucket_backwards(mox_kern *k) { k->moe_bucket = bucket_backwards; }
static void plant_bucket_strays(mox_kern *k) { k->moe_bucket = bucket_counts_strays; }

static void strided_not_zeroed(const mox_moe_bucket_strided_args *a, int64_t begin, int64_t end)
{
    const int32_t before = a->n_experts > 0 ? a->counts[0] : 0;
    mox_moe_bucket_strided_ref(a, begin, end);
    if (a->n_experts > 0) a->counts[0] += before;
}
/* An empty layer launches nothing, and the next kernel never runs. */
static void strided_empty_launch(const mox_moe_bucket_strided_args *a, int64_t begin, int64_t end)
{
    mox_moe_bucket_strided_ref(a, begin, end);
    if (a->n_pairs == 0 && a->launch_down) a->launch_down[0] = 0;
}
static void plant_strided_not_zeroed(mox_kern *k) { k->moe_bucket_strided = strided_not_zeroed; }
static void plant_strided_empty(mox_kern *k) { k->moe_bucket_strided = strided_empty_launch; }

/* ---- weighted sums ---- */

/* sum_s w[t, s] slots[row(s), i], last slot first. */
static void want_sums(const float *slots, const float *w, const int32_t *row_of, int64_t t, int64_t k, int64_t dim,
                      double *want, double *mag)
{
    for (int64_t i = 0; i < dim; i++) {
        want[i] = mag[i] = 0;
        for (int64_t s = k - 1; s >= 0; s--) {
            const int64_t p = t * k + s, row = row_of ? row_of[p] : p;
            const double term = (double)w[p] * (double)slots[row * dim + i];
            want[i] += term;
            mag[i] += fabs(term);
        }
    }
}

static void weighted_sum_case(int64_t n, int64_t k, int64_t dim, bool gathered)
{
    ck_label("n %lld, k %lld, dim %lld, gathered %d", (long long)n, (long long)k, (long long)dim, gathered);
    const int64_t n_rows = n * k + 3;
    float *slots = ck_random(n_rows * dim, 1), *w = ck_random(n * k, 1), *out = ck_f32(n * dim);
    int32_t *row_of = ck_i32(n * k);
    double *want = doubles(dim), *mag = doubles(dim);
    for (int64_t p = 0; p < n * k; p++) row_of[p] = (int32_t)ck_rand((uint64_t)n_rows);
    const mox_weighted_sum_args a = {slots, w, gathered ? row_of : NULL, out, n, k, dim, n_rows};
    mox_err err;
    ck_ok(mox_op_weighted_sum(&ck.exec, &a, &err), &err);
    for (int64_t t = 0; t < n; t++) {
        want_sums(slots, w, a.row_of, t, k, dim, want, mag);
        ck_class_d(out + t * dim, want, mag, dim, "out");
    }
}

/* Rows so far out that 32 bits cannot count their elements. */
static void weighted_sum_far(void)
{
    ck_label("more than 2^32 elements");
    const size_t bytes = (size_t)17 << 30;
    float *slots = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slots == MAP_FAILED) return; /* an address space too small for it */
    const int64_t dim = 1024, n_rows = (int64_t)(bytes / 4) / dim;
    for (int64_t i = 0; i < dim; i++) slots[(n_rows - 1) * dim + i] = (float)i;
    const int32_t row_of = (int32_t)(n_rows - 1);
    const float w = 0.5f;
    float *out = ck_f32(dim);
    ck_ok(mox_op_weighted_sum(&ck.exec, &(mox_weighted_sum_args){slots, &w, &row_of, out, 1, 1, dim, n_rows}, NULL),
          NULL);
    munmap(slots, bytes);
    for (int64_t i = 0; i < dim; i++) ck_true(out[i] == 0.5f * (float)i, "a row far out");
}

static const int64_t slot_counts[] = {0, 1, 2, 8, 10, 16, 17, 20}; /* 16 is no limit */
static const int64_t dims[] = {0, 1, 3, 8, 17, 100, 1031};

static void test_weighted_sum(void)
{
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 7; j++) weighted_sum_case(1 + (i + j) % 4, slot_counts[i], dims[j], (i + j) % 2);
    weighted_sum_case(0, 4, 8, false);
    weighted_sum_case(33, 8, 64, true);
    weighted_sum_far();
    ck_label("refusals");
    float *slots = ck_random(6 * 4, 1), *w = ck_random(6, 1), *out = ck_f32(2 * 4);
    int32_t rows[] = {5, 0, 1, 2, 3, 4};
    const mox_weighted_sum_args good = {slots, w, rows, out, 2, 3, 4, 6};
    mox_weighted_sum_args a;
#define REFUSES(change) \
    a = good; \
    change; \
    ck_refused(mox_op_weighted_sum(&ck.exec, &a, NULL), MOX_E_ARG)
    REFUSES(a.slots = NULL);
    REFUSES(a.w = NULL);
    REFUSES(a.out = NULL);
    REFUSES(a.n = -1);
    REFUSES(a.k = -1);
    REFUSES(a.dim = -1);
    REFUSES(a.n_rows = -1);
    REFUSES(a.n_rows = 5);
    REFUSES((a.row_of = NULL, a.n_rows = 5));
    REFUSES(a.dim = too_many);
    REFUSES(a.n = too_many);
    REFUSES(rows[3] = -1);
#undef REFUSES
}

static void sum_no_gather(const mox_weighted_sum_args *a, int64_t begin, int64_t end)
{
    mox_weighted_sum_args b = *a;
    b.row_of = NULL;
    mox_weighted_sum_ref(&b, begin, end);
}
static void sum_sixteen(const mox_weighted_sum_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < a->dim; i++) {
            float sum = 0;
            for (int64_t s = 0; s < a->k && s < 16; s++)
                sum += a->w[t * a->k + s] * a->slots[(a->row_of ? a->row_of[t * a->k + s] : t * a->k + s) * a->dim + i];
            a->out[t * a->dim + i] = sum;
        }
}
static void sum_nothing_for_none(const mox_weighted_sum_args *a, int64_t begin, int64_t end)
{
    if (a->k > 0) mox_weighted_sum_ref(a, begin, end);
}
static void plant_sum_no_gather(mox_kern *k) { k->weighted_sum = sum_no_gather; }
static void plant_sum_sixteen(mox_kern *k) { k->weighted_sum = sum_sixteen; }
static void plant_sum_k0(mox_kern *k) { k->weighted_sum = sum_nothing_for_none; }

static void residual_case(int64_t n, int64_t k, int64_t dim)
{
    ck_label("n %lld, k %lld, dim %lld", (long long)n, (long long)k, (long long)dim);
    float *slots = ck_random(n * k * dim, 1), *w = ck_random(n * k, 1), *res = ck_random(n * dim, 3);
    float *before = ck_f32(n * dim), *sum = ck_f32(n * dim);
    double *want = doubles(dim), *mag = doubles(dim);
    if (n * dim > 0) memcpy(before, res, (size_t)(n * dim) * 4);
    mox_err err;
    const mox_weighted_sum_residual_args a = {slots, w, res, n, k, dim};
    ck_ok(mox_op_weighted_sum_residual(&ck.exec, &a, &err), &err);
    for (int64_t t = 0; t < n; t++) {
        want_sums(slots, w, NULL, t, k, dim, want, mag);
        for (int64_t i = 0; i < dim; i++) {
            want[i] += (double)before[t * dim + i];
            mag[i] += fabs((double)before[t * dim + i]);
        }
        ck_class_d(res + t * dim, want, mag, dim, "res");
    }
    const mox_weighted_sum_args s = {slots, w, NULL, sum, n, k, dim, n * k};
    ck_ok(mox_op_weighted_sum(&ck.exec, &s, NULL), NULL);
    ck_ok(mox_op_add(&ck.exec, &(mox_add_args){before, sum, sum, n * dim}, NULL), NULL);
    ck_exact(res, sum, n * dim * 4, "res against weighted_sum and add");
}

static void test_weighted_sum_residual(void)
{
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 7; j++) residual_case(1 + (i + j) % 3, slot_counts[i], dims[j]);
    residual_case(0, 8, 16);
    ck_label("refusals");
    float *slots = ck_random(24, 1), *w = ck_random(6, 1), *res = ck_random(8, 1);
    const mox_weighted_sum_residual_args good = {slots, w, res, 2, 3, 4};
    mox_weighted_sum_residual_args a;
#define REFUSES(change) \
    a = good; \
    change; \
    ck_refused(mox_op_weighted_sum_residual(&ck.exec, &a, NULL), MOX_E_ARG)
    REFUSES(a.slots = NULL);
    REFUSES(a.w = NULL);
    REFUSES(a.res = NULL);
    REFUSES(a.n = -1);
    REFUSES(a.k = -1);
    REFUSES(a.dim = -1);
    REFUSES(a.dim = too_many);
#undef REFUSES
}

/* The residual takes part in the sum instead of the finished sum being added to it. */
static void residual_in_sum(const mox_weighted_sum_residual_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < a->dim; i++)
            for (int64_t s = 0; s < a->k; s++)
                a->res[t * a->dim + i] += a->w[t * a->k + s] * a->slots[(t * a->k + s) * a->dim + i];
}
/* The weights of the first token serve for all. */
static void residual_first_token(const mox_weighted_sum_residual_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        const mox_weighted_sum_residual_args b = {
            a->slots + t * a->k * a->dim, a->w, a->res + t * a->dim, 1, a->k, a->dim};
        mox_weighted_sum_residual_ref(&b, 0, 1);
    }
}
static void plant_residual_in_sum(mox_kern *k) { k->weighted_sum_residual = residual_in_sum; }
static void plant_residual_first(mox_kern *k) { k->weighted_sum_residual = residual_first_token; }

static void residual_norm_case(int64_t n, int64_t k, int64_t dim, mox_dtype type, float offset, float eps)
{
    ck_label("n %lld, k %lld, dim %lld, %s, offset %g", (long long)n, (long long)k, (long long)dim,
             mox_dtype_name(type), (double)offset);
    float *slots = ck_random(n * k * dim, 0.01f), *w = ck_random(n * k, 1), *res = ck_random(n * dim, 0.01f);
    float *normed = ck_f32(n * dim), *other = ck_f32(n * dim), *gains = ck_random(dim, 1);
    double *want = doubles(dim);
    if (n > 0) memcpy(other, res, (size_t)(n * dim) * 4);
    mox_weighted_sum_residual_norm_args a = {slots, w, res, normed, n, k, dim, {0}, offset, eps};
    if (type) a.weight = ck_vec(type, gains, dim);
    mox_err err;
    ck_ok(mox_op_weighted_sum_residual_norm(&ck.exec, &a, &err), &err);
    const mox_weighted_sum_residual_args r = {slots, w, other, n, k, dim};
    ck_ok(mox_op_weighted_sum_residual(&ck.exec, &r, NULL), NULL);
    ck_exact(res, other, n * dim * 4, "res against weighted_sum_residual");
    for (int64_t t = 0; t < n; t++) {
        double mean = 0;
        for (int64_t i = dim - 1; i >= 0; i--)
            mean += (double)res[t * dim + i] * (double)res[t * dim + i] / (double)dim;
        for (int64_t i = 0; i < dim; i++) {
            const double gain = type ? (double)mox_vec_at(&a.weight, i) + (double)offset : 1;
            want[i] = (double)res[t * dim + i] * pow(mean + (double)eps, -0.5) * gain;
        }
        ck_class_p(normed + t * dim, want, dim, "normed");
    }
}

static void test_weighted_sum_residual_norm(void)
{
    static const mox_dtype types[] = {MOX_DT_F32, MOX_DT_BF16, MOX_DT_F16, MOX_DT_NONE};
    for (int i = 0; i < 8; i++)
        for (int j = 1; j < 7; j++)
            residual_norm_case(1 + (i + j) % 3, slot_counts[i], dims[j], types[(i + j) % 4], (float)(i % 2), 1e-5f);
    residual_norm_case(0, 2, 8, MOX_DT_F32, 0, 1e-6f);
    ck_label("refusals");
    float *slots = ck_random(24, 1), *w = ck_random(6, 1), *res = ck_random(8, 1), *normed = ck_f32(8);
    const mox_weighted_sum_residual_norm_args good = {slots, w,    res, normed, 2, 3, 4, ck_vec(MOX_DT_F32, w, 4),
                                                      0,     1e-6f};
    mox_weighted_sum_residual_norm_args a;
#define REFUSES(change) \
    a = good; \
    change; \
    ck_refused(mox_op_weighted_sum_residual_norm(&ck.exec, &a, NULL), MOX_E_ARG)
    REFUSES(a.slots = NULL);
    REFUSES(a.w = NULL);
    REFUSES(a.res = NULL);
    REFUSES(a.normed = NULL);
    REFUSES(a.n = -1);
    REFUSES(a.k = -1);
    REFUSES(a.dim = 0);
    REFUSES(a.dim = too_many);
    REFUSES(a.weight.n = 5);
    REFUSES(a.weight.data = NULL);
    REFUSES(a.weight.type = MOX_DT_U8);
    REFUSES(a.eps = -1);
    REFUSES(a.eps = NAN);
    REFUSES(a.offset = INFINITY);
#undef REFUSES
}

static void norm_large_eps(const mox_weighted_sum_residual_norm_args *a, int64_t begin, int64_t end)
{
    mox_weighted_sum_residual_norm_args b = *a;
    b.eps = a->eps * 10;
    mox_weighted_sum_residual_norm_ref(&b, begin, end);
}
static void norm_no_offset(const mox_weighted_sum_residual_norm_args *a, int64_t begin, int64_t end)
{
    mox_weighted_sum_residual_norm_args b = *a;
    b.offset = 0;
    mox_weighted_sum_residual_norm_ref(&b, begin, end);
}
static void plant_norm_eps(mox_kern *k) { k->weighted_sum_residual_norm = norm_large_eps; }
static void plant_norm_offset(mox_kern *k) { k->weighted_sum_residual_norm = norm_no_offset; }

/* ---- combining ---- */

typedef struct combine {
    int64_t n, k, dim;
    mox_shared_mode mode;
    float *h, *experts, *w, *shared, *gate;
    int64_t gate_stride;
    const float **slots; /* one buffer per slot, and two pointers behind that lead nowhere */
} combine;

static combine random_combine(int64_t n, int64_t k, int64_t dim, mox_shared_mode mode)
{
    combine c = {n,    k,    dim, mode, ck_random(n * dim, 2), ck_random(n * k * dim, 1), ck_random(n * k, 1),
                 NULL, NULL, 3,   NULL};
    c.slots = ck_bytes((k + 2) * (int64_t)sizeof *c.slots);
    for (int64_t s = 0; s < k; s++) {
        float *slot = ck_f32(n * dim);
        for (int64_t t = 0; t < n; t++) memcpy(slot + t * dim, c.experts + (t * k + s) * dim, (size_t)dim * 4);
        c.slots[s] = slot;
    }
    c.slots[k] = c.slots[k + 1] = (const float *)(uintptr_t)8;
    if (mode != MOX_SHARED_NONE) c.shared = ck_random(n * dim, 1);
    if (mode != MOX_SHARED_GATED) return c;
    c.gate = ck_f32(n * 3);
    float *values = ck_random(n, 4);
    for (int64_t t = 0; t < n; t++) c.gate[t * 3] = values[t];
    return c;
}

static void add_shared(const combine *c, int64_t t, double *want, double *mag)
{
    const double gate = c->mode == MOX_SHARED_GATED ? sigmoid((double)c->gate[t * c->gate_stride]) : 1;
    for (int64_t i = 0; i < c->dim && c->mode != MOX_SHARED_NONE; i++) {
        want[i] += gate * (double)c->shared[t * c->dim + i];
        mag[i] += fabs(gate * (double)c->shared[t * c->dim + i]);
    }
}

static void combine_case(int64_t n, int64_t k, int64_t dim, mox_shared_mode mode, bool separate, bool in_place)
{
    ck_label("n %lld, k %lld, dim %lld, mode %d, separate %d, in place %d", (long long)n, (long long)k, (long long)dim,
             (int)mode, separate, in_place);
    const combine c = random_combine(n, k, dim, mode);
    double *want = doubles(n * dim), *mag = doubles(n * dim);
    for (int64_t t = 0; t < n; t++) {
        want_sums(c.experts, c.w, NULL, t, k, dim, want + t * dim, mag + t * dim);
        for (int64_t i = t * dim; i < (t + 1) * dim; i++) {
            want[i] += (double)c.h[i];
            mag[i] += fabs((double)c.h[i]);
        }
        add_shared(&c, t, want + t * dim, mag + t * dim);
    }
    float *out = in_place ? c.h : ck_f32(n * dim);
    const mox_moe_combine_args a = {c.h, separate ? NULL : c.experts, separate ? c.slots : NULL, c.w, mode, c.shared,
                                    c.gate, c.gate_stride, out, n, k, dim};
    mox_err err;
    ck_ok(mox_op_moe_combine(&ck.exec, &a, &err), &err);
    ck_class_d(out, want, mag, n * dim, "out");
}

static void combine_refusals(void)
{
    ck_label("refusals");
    const combine c = random_combine(2, 3, 4, MOX_SHARED_GATED);
    float *out = ck_f32(8);
    const mox_moe_combine_args good = {c.h, c.experts, NULL, c.w, MOX_SHARED_GATED, c.shared, c.gate, 3, out, 2, 3, 4};
    mox_moe_combine_args a;
#define REFUSES(change) \
    a = good; \
    change; \
    ck_refused(mox_op_moe_combine(&ck.exec, &a, NULL), MOX_E_ARG)
    REFUSES(a.h = NULL);
    REFUSES(a.experts = NULL);
    REFUSES(a.slots = c.slots); /* both */
    REFUSES(a.w = NULL);
    REFUSES(a.shared = NULL);
    REFUSES(a.gate = NULL);
    REFUSES(a.gate_stride = 0);
    REFUSES(a.out = NULL);
    REFUSES(a.mode = (mox_shared_mode)3);
    REFUSES(a.n = -1);
    REFUSES(a.k = -1);
    REFUSES(a.dim = -1);
    REFUSES(a.dim = too_many);
    c.slots[1] = NULL;
    REFUSES((a.experts = NULL, a.slots = c.slots));
#undef REFUSES
}

static void test_moe_combine(void)
{
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 7; j++)
            for (int mode = 0; mode < 3; mode++)
                combine_case(1 + (i + j) % 3, slot_counts[i], dims[j], (mox_shared_mode)mode, (i + mode) % 2, j % 2);
    combine_case(0, 8, 16, MOX_SHARED_GATED, true, false);
    combine_refusals();
}

/* Slot 16 is where the gate used to be. */
static void combine_slot_16(const mox_moe_combine_args *a, int64_t begin, int64_t end)
{
    mox_moe_combine_ref(a, begin, end);
    if (a->mode != MOX_SHARED_GATED || a->k <= 16) return;
    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < a->dim; i++) {
            const float e = a->slots ? a->slots[16][t * a->dim + i] : a->experts[(t * a->k + 16) * a->dim + i];
            a->out[t * a->dim + i] += (a->gate[t * a->gate_stride] - a->w[t * a->k + 16]) * e;
        }
}
static void combine_no_sigmoid(const mox_moe_combine_args *a, int64_t begin, int64_t end)
{
    mox_moe_combine_args b = *a;
    if (b.mode == MOX_SHARED_GATED) b.mode = MOX_SHARED_UNSCALED;
    mox_moe_combine_ref(&b, begin, end);
}
static void combine_token_0(const mox_moe_combine_args *a, int64_t begin, int64_t end)
{
    mox_moe_combine_args b = *a;
    b.gate_stride = 0;
    mox_moe_combine_ref(&b, begin, end);
}
static void plant_combine_slot_16(mox_kern *k) { k->moe_combine = combine_slot_16; }
static void plant_combine_no_sigmoid(mox_kern *k) { k->moe_combine = combine_no_sigmoid; }
static void plant_combine_token_0(mox_kern *k) { k->moe_combine = combine_token_0; }

static void combine_sum_case(int64_t n, int64_t dim, mox_shared_mode mode, int alias)
{
    ck_label("n %lld, dim %lld, mode %d, alias %d", (long long)n, (long long)dim, (int)mode, alias);
    const combine c = random_combine(n, 1, dim, mode);
    double *want = doubles(n * dim), *mag = doubles(n * dim);
    for (int64_t t = 0; t < n; t++) {
        for (int64_t i = t * dim; i < (t + 1) * dim; i++) {
            want[i] = (double)c.h[i] + (double)c.experts[i];
            mag[i] = fabs((double)c.h[i]) + fabs((double)c.experts[i]);
        }
        add_shared(&c, t, want + t * dim, mag + t * dim);
    }
    float *out = alias == 1 ? c.h : alias == 2 ? c.experts : ck_f32(n * dim);
    const mox_moe_combine_sum_args a = {c.h, c.experts, mode, c.shared, c.gate, c.gate_stride, out, n, dim};
    mox_err err;
    ck_ok(mox_op_moe_combine_sum(&ck.exec, &a, &err), &err);
    ck_close(out, want, mag, n * dim, 5e-7, 0, "out"); /* three roundings of what may cancel */
}

static void test_moe_combine_sum(void)
{
    for (int j = 0; j < 7; j++)
        for (int mode = 0; mode < 3; mode++) combine_sum_case(1 + j, dims[j], (mox_shared_mode)mode, (j + mode) % 3);
    combine_sum_case(0, 16, MOX_SHARED_GATED, 0);
    combine_sum_case(70, 64, MOX_SHARED_GATED, 1);
    ck_label("refusals");
    const combine c = random_combine(2, 1, 4, MOX_SHARED_GATED);
    float *out = ck_f32(8);
    const mox_moe_combine_sum_args good = {c.h, c.experts, MOX_SHARED_GATED, c.shared, c.gate, 3, out, 2, 4};
    mox_moe_combine_sum_args a;
#define REFUSES(change) \
    a = good; \
    change; \
    ck_refused(mox_op_moe_combine_sum(&ck.exec, &a, NULL), MOX_E_ARG)
    REFUSES(a.h = NULL);
    REFUSES(a.moe = NULL);
    REFUSES(a.shared = NULL);
    REFUSES(a.gate = NULL);
    REFUSES(a.gate_stride = 0);
    REFUSES(a.out = NULL);
    REFUSES(a.mode = (mox_shared_mode)7);
    REFUSES(a.n = -1);
    REFUSES(a.dim = -1);
    REFUSES(a.dim = too_many);
#undef REFUSES
}

static void combine_sum_always(const mox_moe_combine_sum_args *a, int64_t begin, int64_t end)
{
    mox_moe_combine_sum_args b = *a;
    if (b.mode == MOX_SHARED_GATED) b.mode = MOX_SHARED_UNSCALED;
    mox_moe_combine_sum_ref(&b, begin, end);
}
static void combine_sum_gate_dense(const mox_moe_combine_sum_args *a, int64_t begin, int64_t end)
{
    mox_moe_combine_sum_args b = *a;
    b.gate_stride = 1;
    mox_moe_combine_sum_ref(&b, begin, end);
}
static void plant_combine_sum_always(mox_kern *k) { k->moe_combine_sum = combine_sum_always; }
static void plant_combine_sum_gate(mox_kern *k) { k->moe_combine_sum = combine_sum_gate_dense; }

/* ---- moe_bucket_accumulate ---- */

static void accumulate_case(int64_t n_rows, int64_t dim, int64_t n_tokens)
{
    ck_label("%lld rows, dim %lld, %lld tokens", (long long)n_rows, (long long)dim, (long long)n_tokens);
    float *rows = ck_random(n_rows * dim, 1), *w = ck_random(n_rows, 1), *sum = ck_random(n_tokens * dim, 1);
    int32_t *token = ck_i32(n_rows); /* with repetitions */
    double *want = doubles(n_tokens * dim), *mag = doubles(n_tokens * dim);
    for (int64_t b = 0; b < n_rows; b++) token[b] = (int32_t)ck_rand((uint64_t)n_tokens);
    for (int64_t i = 0; i < n_tokens * dim; i++) {
        want[i] = (double)sum[i];
        mag[i] = fabs(want[i]);
        for (int64_t b = n_rows - 1; b >= 0; b--)
            if (token[b] == i / dim) {
                want[i] += (double)w[b] * (double)rows[b * dim + i % dim];
                mag[i] += fabs((double)w[b] * (double)rows[b * dim + i % dim]);
            }
    }
    const mox_moe_bucket_accumulate_args a = {rows, token, w, sum, n_rows, dim, n_tokens};
    mox_err err;
    ck_ok(mox_op_moe_bucket_accumulate(&ck.exec, &a, &err), &err);
    ck_class_d(sum, want, mag, n_tokens * dim, "sum");
}

/* Bucket after bucket gives the sums of weighted_sum, to class D: another order. */
static void accumulate_against_slots(void)
{
    ck_label("against weighted_sum");
    enum { N = 9, K = 4, E = 6, DIM = 37 };
    const int32_t *ids = random_ids(N * K, E, false);
    float *slots = ck_random(N * K * DIM, 1), *w = ck_random(N * K, 1), *sum = ck_f32(N * DIM);
    int64_t offsets[E + 1];
    int32_t *pairs = ck_i32(N * K), *token = ck_i32(N * K);
    double *want = doubles(DIM), *mag = doubles(DIM);
    ck_ok(mox_op_moe_bucket(&ck.ref, &(mox_moe_bucket_args){ids, N * K, E, offsets, pairs}, NULL), NULL);
    memset(sum, 0, N * DIM * 4);
    for (int x = 0; x < E; x++) {
        const int64_t n = offsets[x + 1] - offsets[x];
        float *rows = ck_f32(n * DIM), *weights = ck_f32(n);
        for (int64_t b = 0; b < n; b++) {
            const int32_t pair = pairs[offsets[x] + b];
            memcpy(rows + b * DIM, slots + pair * DIM, DIM * 4);
            weights[b] = w[pair];
            token[b] = pair / K;
        }
        const mox_moe_bucket_accumulate_args a = {rows, token, weights, sum, n, DIM, N};
        ck_ok(mox_op_moe_bucket_accumulate(&ck.exec, &a, NULL), NULL);
    }
    for (int64_t t = 0; t < N; t++) {
        want_sums(slots, w, NULL, t, K, DIM, want, mag);
        ck_class_d(sum + t * DIM, want, mag, DIM, "sum");
    }
}

static void test_moe_bucket_accumulate(void)
{
    for (int j = 0; j < 7; j++)
        for (int64_t n = 0; n <= 12; n += 4) accumulate_case(n, dims[j], 1 + n / 2);
    accumulate_against_slots();
    ck_label("refusals");
    float *rows = ck_random(12, 1), *w = ck_random(3, 1), *sum = ck_f32(8);
    int32_t token[] = {1, 0, 1};
    const mox_moe_bucket_accumulate_args good = {rows, token, w, sum, 3, 4, 2};
    mox_moe_bucket_accumulate_args a;
#define REFUSES(change) \
    a = good; \
    change; \
    ck_refused(mox_op_moe_bucket_accumulate(&ck.exec, &a, NULL), MOX_E_ARG)
    REFUSES(a.rows = NULL);
    REFUSES(a.token = NULL);
    REFUSES(a.w = NULL);
    REFUSES(a.sum = NULL);
    REFUSES(a.n_rows = -1);
    REFUSES(a.dim = -1);
    REFUSES(a.n_tokens = -1);
    REFUSES(a.dim = too_many);
    REFUSES(a.n_tokens = 1);
    REFUSES(token[2] = -1);
    REFUSES(token[2] = 2);
#undef REFUSES
    for (int i = 0; i < 8; i++) ck_true(isnan(sum[i]), "a refused call has written");
}

/* Every row is added to what was there at first: of a token's rows the last one stays. */
static void accumulate_race(const mox_moe_bucket_accumulate_args *a, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++)
        for (int64_t t = 0; t < a->n_tokens; t++) {
            const float before = a->sum[t * a->dim + i];
            for (int64_t b = 0; b < a->n_rows; b++)
                if (a->token[b] == t) a->sum[t * a->dim + i] = before + a->w[b] * a->rows[b * a->dim + i];
        }
}
static void accumulate_set(const mox_moe_bucket_accumulate_args *a, int64_t begin, int64_t end)
{
    for (int64_t b = 0; b < a->n_rows; b++)
        for (int64_t i = begin; i < end; i++) a->sum[a->token[b] * a->dim + i] = 0;
    mox_moe_bucket_accumulate_ref(a, begin, end);
}
static void plant_accumulate_race(mox_kern *k) { k->moe_bucket_accumulate = accumulate_race; }
static void plant_accumulate_set(mox_kern *k) { k->moe_bucket_accumulate = accumulate_set; }

/* ---- bench ---- */

enum { BENCH_DIM = 2048, BENCH_K = 8 };

CK_RUN(weighted_sum)
CK_RUN(weighted_sum_residual)
CK_RUN(weighted_sum_residual_norm)
CK_RUN(moe_combine)
CK_RUN(moe_combine_sum)

static void bench_weighted_sum(void)
{
    for (int64_t n = 1; n <= 512; n *= 512) {
        mox_weighted_sum_args a = {.slots = ck_random(n * BENCH_K * BENCH_DIM, 1), .w = ck_uniform(n * BENCH_K, 0, 1),
                                   .out = ck_f32(n * BENCH_DIM), .n = n, .k = BENCH_K, .dim = BENCH_DIM,
                                   .n_rows = n * BENCH_K};
        ck_bench(ck_tokens("weighted_sum of 8", n), (double)(n * (BENCH_K + 1) * BENCH_DIM * 4), 0, run_weighted_sum, &a);
    }
}

static void bench_weighted_sum_residual(void)
{
    for (int64_t n = 1; n <= 512; n *= 512) {
        mox_weighted_sum_residual_args a = {.slots = ck_random(n * BENCH_K * BENCH_DIM, 1), .w = ck_uniform(n * BENCH_K, 0, 1),
                                            .res = ck_random(n * BENCH_DIM, 1), .n = n, .k = BENCH_K, .dim = BENCH_DIM};
        ck_bench(ck_tokens("weighted_sum_residual", n), (double)(n * (BENCH_K + 2) * BENCH_DIM * 4), 0,
                 run_weighted_sum_residual, &a);
    }
}

static void bench_weighted_sum_residual_norm(void)
{
    for (int64_t n = 1; n <= 512; n *= 512) {
        mox_weighted_sum_residual_norm_args a = {
            .slots = ck_random(n * BENCH_K * BENCH_DIM, 1), .w = ck_uniform(n * BENCH_K, 0, 1),
            .res = ck_random(n * BENCH_DIM, 1), .normed = ck_f32(n * BENCH_DIM), .n = n, .k = BENCH_K, .dim = BENCH_DIM,
            .weight = ck_vec(MOX_DT_BF16, ck_uniform(BENCH_DIM, 0, 2), BENCH_DIM), .eps = 1e-6f};
        ck_bench(ck_tokens("weighted_sum_residual_norm", n), (double)(n * (BENCH_K + 3) * BENCH_DIM * 4), 0,
                 run_weighted_sum_residual_norm, &a);
    }
}

static void bench_moe_combine(void)
{
    for (int64_t n = 1; n <= 512; n *= 512) {
        mox_moe_combine_args a = {.h = ck_random(n * BENCH_DIM, 1), .experts = ck_random(n * BENCH_K * BENCH_DIM, 1),
                                  .w = ck_uniform(n * BENCH_K, 0, 1), .mode = MOX_SHARED_GATED,
                                  .shared = ck_random(n * BENCH_DIM, 1), .gate = ck_random(n, 1), .gate_stride = 1,
                                  .out = ck_f32(n * BENCH_DIM), .n = n, .k = BENCH_K, .dim = BENCH_DIM};
        ck_bench(ck_tokens("moe_combine of 8 and a shared one", n), (double)(n * (BENCH_K + 3) * BENCH_DIM * 4), 0,
                 run_moe_combine, &a);
    }
}

static void bench_moe_combine_sum(void)
{
    for (int64_t n = 1; n <= 512; n *= 512) {
        mox_moe_combine_sum_args a = {.h = ck_random(n * BENCH_DIM, 1), .moe = ck_random(n * BENCH_DIM, 1),
                                      .mode = MOX_SHARED_GATED, .shared = ck_random(n * BENCH_DIM, 1),
                                      .gate = ck_random(n, 1), .gate_stride = 1, .out = ck_f32(n * BENCH_DIM), .n = n,
                                      .dim = BENCH_DIM};
        ck_bench(ck_tokens("moe_combine_sum", n), (double)(n * BENCH_DIM * 16), 0, run_moe_combine_sum, &a);
    }
}

const ck_op ck_ops_moe[] = {
    {"moe_bucket", test_moe_bucket, {plant_bucket_backwards, plant_bucket_strays}, NULL},
    {"moe_bucket_strided", test_moe_bucket_strided, {plant_strided_not_zeroed, plant_strided_empty}, NULL},
    {"weighted_sum", test_weighted_sum, {plant_sum_no_gather, plant_sum_sixteen, plant_sum_k0}, bench_weighted_sum},
    {"weighted_sum_residual", test_weighted_sum_residual, {plant_residual_in_sum, plant_residual_first}, bench_weighted_sum_residual},
    {"weighted_sum_residual_norm", test_weighted_sum_residual_norm, {plant_norm_eps, plant_norm_offset}, bench_weighted_sum_residual_norm},
    {"moe_combine", test_moe_combine, {plant_combine_slot_16, plant_combine_no_sigmoid, plant_combine_token_0}, bench_moe_combine},
    {"moe_combine_sum", test_moe_combine_sum, {plant_combine_sum_always, plant_combine_sum_gate}, bench_moe_combine_sum},
    {"moe_bucket_accumulate", test_moe_bucket_accumulate, {plant_accumulate_race, plant_accumulate_set}, NULL},
    {.name = NULL},
};
