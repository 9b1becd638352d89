/* tests/check/check_router.c -- routing.  The oracle ranks experts by counting how
 * many come before each, which needs no sorting and has no state. */
#include "check.h"

#include <math.h>
#include <string.h>

static const int64_t too_many = INT64_MAX / 3;

static float number(float v) { return isnan(v) ? -INFINITY : v; }

/* How many of values[0, n) come before number x: larger, or equal and earlier. */
static int64_t rank(const float *values, int64_t n, int64_t x)
{
    int64_t before = 0;
    for (int64_t y = 0; y < n; y++)
        if (number(values[y]) > number(values[x]) || (number(values[y]) == number(values[x]) && y < x)) before++;
    return before;
}

/* ---- router_topk ---- */

static void probabilities(const float *logits, int64_t n, long double *p)
{
    long double max = -INFINITY, sum = 0;
    for (int64_t x = 0; x < n; x++) max = fmaxl(max, (long double)logits[x]); /* ignores NaN */
    for (int64_t x = 0; x < n; x++) {
        const long double l = (long double)number(logits[x]);
        p[x] = max == INFINITY ? (l == INFINITY) : expl(l - max);
        sum += p[x];
    }
    for (int64_t x = 0; x < n; x++) p[x] /= sum;
}

/* Slots that hold (id 0, -1e30) at first; an expert replaces the first smallest. */
static void running_min(const long double *p, int64_t n, int64_t k, int32_t *ids)
{
    long double *values = ck_bytes(k * (int64_t)sizeof *values);
    for (int64_t s = 0; s < k; s++) {
        values[s] = -1e30L;
        ids[s] = 0;
    }
    for (int64_t x = 0; x < n; x++) {
        int64_t m = 0;
        for (int64_t s = 0; s < k; s++)
            if (values[s] < values[m]) m = s;
        if (p[x] > values[m]) {
            values[m] = p[x];
            ids[m] = (int32_t)x;
        }
    }
}

static void check_topk(const float *logits, int64_t n, int64_t n_experts, int64_t k, mox_topk_order order,
                       bool renormalize)
{
    int32_t *ids = ck_i32(n * k), *want_ids = ck_i32(k);
    float *weights = ck_f32(n * k);
    int64_t n_degenerate = 0;
    const mox_router_topk_args a = {logits, ids, weights, n, n_experts, k, order, renormalize, &n_degenerate};
    mox_err err;
    ck_ok(mox_op_router_topk(&ck.exec, &a, &err), &err);
    ck_true(n_degenerate == 0, "a row with finite logits was counted as degenerate");
    long double *p = ck_bytes(n_experts * (int64_t)sizeof *p);
    for (int64_t t = 0; t < n; t++) {
        const float *row = logits + t * n_experts;
        probabilities(row, n_experts, p);
        if (order == MOX_TOPK_RUNNING_MIN) {
            running_min(p, n_experts, k, want_ids);
        } else {
            for (int64_t x = 0; x < n_experts; x++)
                if (rank(row, n_experts, x) < k) want_ids[rank(row, n_experts, x)] = (int32_t)x;
        }
        ck_exact(ids + t * k, want_ids, k * 4, "ids");
        long double sum = 0;
        for (int64_t s = 0; s < k; s++) sum += p[want_ids[s]];
        for (int64_t s = 0; s < k; s++) {
            const double want = (double)(p[want_ids[s]] / (renormalize ? sum : 1));
            ck_true(fabs((double)weights[t * k + s] - want) <= 1e-5 * want + 1e-12,
                    "a weight is off by more than 1e-5");
        }
    }
}

static void topk_random(void)
{
    static const int64_t counts[] = {1, 2, 31, 32, 33, 128, 512, 1024};
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 4; j++) {
            const int64_t n_experts = counts[i], ks[] = {1, 2, 17, n_experts};
            const int64_t k = ks[j] < n_experts ? ks[j] : n_experts, n = n_experts > 500 && k > 100 ? 1 : 5;
            ck_label("E %lld, k %lld", (long long)n_experts, (long long)k);
            float *logits = ck_random(n * n_experts, 2);
            for (int64_t x = 0; x < n * n_experts; x++)
                if (j % 2) logits[x] = nearbyintf(logits[x] * 4) / 4; /* many ties */
            for (int mode = 0; mode < 4; mode++)
                check_topk(logits, n, n_experts, k, mode & 1 ? MOX_TOPK_RUNNING_MIN : MOX_TOPK_SORTED, mode & 2);
        }
    ck_label("n 0");
    check_topk(NULL, 0, 16, 4, MOX_TOPK_SORTED, true);
}

static void topk_goldens(void)
{
    ck_label("golden");
    static const int32_t golden[3][4] = {{15, 14, 13, 12}, {10, 9, 11, 8}, {4, 5, 3, 6}};
    static const double weight[3][4] = {{.2578112, .2552841, .2486811, .2382236},
                                        {.2524343, .2514955, .2495181, .2465520},
                                        {.2522141, .2516390, .2488136, .2473333}};
    float *logits = ck_f32(48), *weights = ck_f32(12);
    int32_t *ids = ck_i32(12);
    for (int b = 0; b < 3; b++)
        for (int x = 0; x < 16; x++) logits[b * 16 + x] = (float)(sin(0.7 * b + 0.13 * x) + 0.05 * x);
    const mox_router_topk_args a = {logits, ids, weights, 3, 16, 4, MOX_TOPK_SORTED, true, NULL};
    ck_ok(mox_op_router_topk(&ck.exec, &a, NULL), NULL);
    ck_exact(ids, golden, sizeof golden, "ids");
    for (int i = 0; i < 12; i++) ck_true(fabs((double)weights[i] - weight[i / 4][i % 4]) < 1e-6, "a golden weight");

    /* Where the two orders differ, in the order and on ties in the set. */
    static const struct {
        double p[4];
        int64_t n, k;
        int32_t sorted[3], running[3];
    } cases[] = {{{.2, .2, .6}, 3, 2, {2, 0}, {2, 1}},
                 {{.1, .4, .2, .3}, 4, 2, {1, 3}, {3, 1}},
                 {{.1, .2, .3, .4}, 4, 3, {3, 2, 1}, {3, 1, 2}}};
    for (int c = 0; c < 3; c++) {
        ck_label("golden order %d", c);
        for (int64_t x = 0; x < cases[c].n; x++) logits[x] = (float)log(cases[c].p[x]);
        mox_router_topk_args o = {logits, ids, weights, 1, cases[c].n, cases[c].k, MOX_TOPK_SORTED, false, NULL};
        ck_ok(mox_op_router_topk(&ck.exec, &o, NULL), NULL);
        ck_exact(ids, cases[c].sorted, cases[c].k * 4, "sorted ids");
        o.order = MOX_TOPK_RUNNING_MIN;
        ck_ok(mox_op_router_topk(&ck.exec, &o, NULL), NULL);
        ck_exact(ids, cases[c].running, cases[c].k * 4, "running-min ids");
        for (int64_t s = 0; s < cases[c].k; s++)
            ck_true(fabs((double)weights[s] - cases[c].p[ids[s]]) < 1e-5, "a weight");
    }
}

static void topk_specials(void)
{
    float *logits = ck_f32(8);
    static const float rows[][8] = {
        {1e4f, -1e4f, 9999, 0, 1e4f, -2e4f, -3e4f, 5},         /* far out: only differences count */
        {-1e4f, -1e4f, -1e4f, -1e4f, -1e4f, -1e4f, -1e4f, -1e4f}, /* all equal */
        {-INFINITY, 1, -INFINITY, 2, -INFINITY, -INFINITY, -INFINITY, -INFINITY},
        {NAN, 1, NAN, -5, -INFINITY, NAN, 0.5f, -INFINITY},
        {3, INFINITY, 1, INFINITY, -INFINITY, NAN, 0, 0},
        {-300, -400, -200, -500, 0, -600, -700, -800}, /* beyond what f32 can hold of e^x */
        {3.4e38f, -3.4e38f, 0, 1, 2, 3, 4, 5},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int64_t k = 1; k <= 8; k++) {
            ck_label("special row %zu, k %lld", i, (long long)k);
            memcpy(logits, rows[i], sizeof rows[i]);
            check_topk(logits, 1, 8, k, MOX_TOPK_SORTED, true);
            check_topk(logits, 1, 8, k, MOX_TOPK_SORTED, false);
        }
}

/* Rows with nothing to choose from: the first k, with equal weight, and counted. */
static void topk_degenerate(void)
{
    enum { N = 40, E = 6, K = 3 };
    float *logits = ck_random(N * E, 1), *weights = ck_f32(N * K);
    int32_t *ids = ck_i32(N * K);
    static const float nothing[] = {NAN, -INFINITY, INFINITY};
    for (int t = 0; t < N; t += 2)
        for (int x = 0; x < E; x++) logits[t * E + x] = t % 8 == 6 && x % 2 ? nothing[0] : nothing[t / 2 % 3];
    for (int order = 0; order < 2; order++) {
        ck_label("degenerate rows, order %d", order);
        int64_t n_degenerate = 5; /* is added to */
        const mox_router_topk_args a = {logits, ids, weights, N, E, K, (mox_topk_order)order, true, &n_degenerate};
        ck_ok(mox_op_router_topk(&ck.exec, &a, NULL), NULL);
        ck_true(n_degenerate == 5 + N / 2, "the count of degenerate rows");
        for (int t = 0; t < N; t++)
            for (int s = 0; s < K; s++) {
                const float w = weights[t * K + s];
                ck_true(ids[t * K + s] >= 0 && ids[t * K + s] < E && w >= 0 && w <= 1, "an id or weight out of range");
                if (t % 2 == 0) ck_true(ids[t * K + s] == s && fabsf(w - 1.0f / K) < 1e-6f, "a degenerate row");
            }
    }
}

static void topk_refusals(void)
{
    ck_label("refusals");
    float *logits = ck_random(16, 1), *weights = ck_f32(8);
    int32_t *ids = ck_i32(8);
    const mox_router_topk_args good = {logits, ids, weights, 2, 8, 4, MOX_TOPK_SORTED, true, NULL};
    mox_router_topk_args a;
#define REFUSES(change) \
    a = good; \
    change; \
    ck_refused(mox_op_router_topk(&ck.exec, &a, NULL), MOX_E_ARG)
    REFUSES(a.k = 0);
    REFUSES(a.k = -1);
    REFUSES(a.k = 9);
    REFUSES(a.n = -1);
    REFUSES(a.n = too_many);
    REFUSES(a.n_experts = 0);
    REFUSES(a.n_experts = too_many);
    REFUSES(a.logits = NULL);
    REFUSES(a.ids = NULL);
    REFUSES(a.weights = NULL);
    REFUSES(a.order = (mox_topk_order)2);
#undef REFUSES
}

static void test_router_topk(void)
{
    topk_goldens();
    topk_random();
    topk_specials();
    topk_degenerate();
    topk_refusals();
}

/* Ties go to the larger index. */
static void topk_last_wins(const mox_router_topk_args *a, int64_t begin, int64_t end)
{
    mox_router_topk_ref(a, begin, end);
    for (int64_t t = begin; t < end; t++)
        for (int64_t s = 0; s < a->k; s++) {
            const float *row = a->logits + t * a->n_experts;
            int32_t *id = &a->ids[t * a->k + s];
            for (int64_t x = *id + 1; x < a->n_experts && s == a->k - 1; x++)
                if (row[x] == row[*id]) *id = (int32_t)x;
        }
}
static void topk_always_sorted(const mox_router_topk_args *a, int64_t begin, int64_t end)
{
    mox_router_topk_args b = *a;
    b.order = MOX_TOPK_SORTED;
    mox_router_topk_ref(&b, begin, end);
}
/* The softmax without subtracting the maximum. */
static void topk_overflows(const mox_router_topk_args *a, int64_t begin, int64_t end)
{
    mox_router_topk_ref(a, begin, end);
    for (int64_t t = begin; t < end; t++)
        for (int64_t s = 0; s < a->k; s++)
            if (a->logits[t * a->n_experts + a->ids[t * a->k + s]] > 88.8f) a->weights[t * a->k + s] = NAN;
}
static void topk_not_counted(const mox_router_topk_args *a, int64_t begin, int64_t end)
{
    mox_router_topk_args b = *a;
    b.n_degenerate = NULL;
    mox_router_topk_ref(&b, begin, end);
}
static void plant_topk_last_wins(mox_kern *k) { k->router_topk = topk_last_wins; }
static void plant_topk_sorted(mox_kern *k) { k->router_topk = topk_always_sorted; }
static void plant_topk_overflows(mox_kern *k) { k->router_topk = topk_overflows; }
static void plant_topk_not_counted(mox_kern *k) { k->router_topk = topk_not_counted; }

/* ---- router_sigmoid ---- */

static void check_sigmoid(const mox_router_sigmoid_args *a)
{
    mox_err err;
    ck_ok(mox_op_router_sigmoid(&ck.exec, a, &err), &err);
    const int64_t size = a->n_experts / a->n_groups;
    float *s = ck_f32(a->n_experts), *c = ck_f32(a->n_experts), *best = ck_f32(a->n_groups);
    int32_t *want_ids = ck_i32(a->k);
    for (int64_t t = 0; t < a->n; t++) {
        for (int64_t x = 0; x < a->n_experts; x++) {
            s[x] = (float)(1 / (1 + expl(-(long double)number(a->logits[t * a->n_experts + x]))));
            c[x] = a->bias.type ? s[x] + mox_vec_at(&a->bias, x) : s[x];
        }
        for (int64_t g = 0; g < a->n_groups; g++) {
            best[g] = 0;
            for (int64_t x = g * size; x < (g + 1) * size; x++)
                if (rank(c + g * size, size, x - g * size) < 2) best[g] += c[x];
        }
        for (int64_t x = 0; x < a->n_experts; x++)
            if (rank(best, a->n_groups, x / size) >= a->kept_groups) c[x] = NAN; /* not even behind -inf */
        for (int64_t x = 0; x < a->n_experts; x++)
            if (!isnan(c[x]) && rank(c, a->n_experts, x) < a->k) want_ids[rank(c, a->n_experts, x)] = (int32_t)x;
        ck_exact(a->ids + t * a->k, want_ids, a->k * 4, "ids");
        double sum = 1e-20;
        for (int64_t i = 0; i < a->k; i++) sum += (double)s[want_ids[i]];
        for (int64_t i = 0; i < a->k; i++) {
            const double want = (double)s[want_ids[i]] / (a->renormalize ? sum : 1) * (double)a->factor;
            ck_true(fabs((double)a->weights[t * a->k + i] - want) <= 1e-5 * fabs(want) + 1e-12, "a weight is off");
        }
    }
}

static void sigmoid_case(int64_t n, int64_t n_experts, int64_t k, int64_t n_groups, int64_t kept, int flavour)
{
    ck_label("E %lld, k %lld, %lld of %lld groups, flavour %d", (long long)n_experts, (long long)k, (long long)kept,
             (long long)n_groups, flavour);
    float *logits = ck_random(n * n_experts, 2), *bias = ck_random(n_experts, 0.2f);
    for (int64_t i = 0; i < n * n_experts; i++) {
        if (flavour == 1) logits[i] = 20 + 20 * fabsf(logits[i]);     /* all saturate at 1 */
        if (flavour == 2) logits[i] = nearbyintf(logits[i]);          /* many ties */
        if (flavour == 3 && ck_rand(5) == 0) logits[i] = ck_rand(2) ? NAN : -INFINITY;
    }
    for (int64_t x = 0; x < n_experts; x++)
        bias[x] = flavour == 4 ? bias[x] - 2 : flavour == 2 ? nearbyintf(bias[x] * 4) / 4 : bias[x]; /* 4: all c < 0 */
    mox_router_sigmoid_args a = {.logits = logits, .ids = ck_i32(n * k), .weights = ck_f32(n * k), .n = n,
                                 .n_experts = n_experts, .k = k, .n_groups = n_groups, .kept_groups = kept,
                                 .renormalize = flavour % 2 == 0, .factor = flavour % 3 ? 2.5f : 1.0f};
    if (flavour != 1) a.bias = ck_vec(flavour == 3 ? MOX_DT_BF16 : MOX_DT_F32, bias, n_experts);
    check_sigmoid(&a);
}

static void sigmoid_refusals(void)
{
    ck_label("refusals");
    float *logits = ck_random(16, 1), *weights = ck_f32(8), *bias = ck_random(8, 1);
    const mox_router_sigmoid_args good = {.logits = logits, .bias = ck_vec(MOX_DT_F32, bias, 8), .ids = ck_i32(8),
                                          .weights = weights, .n = 2, .n_experts = 8, .k = 4, .n_groups = 4,
                                          .kept_groups = 2, .renormalize = true, .factor = 1};
    mox_router_sigmoid_args a = good;
    ck_ok(mox_op_router_sigmoid(&ck.exec, &a, NULL), NULL);
#define REFUSES(change) \
    a = good; \
    change; \
    ck_refused(mox_op_router_sigmoid(&ck.exec, &a, NULL), MOX_E_ARG)
    REFUSES(a.n_groups = 3);
    REFUSES(a.n_groups = 0);
    REFUSES(a.kept_groups = 1); /* two experts for k = 4 */
    REFUSES(a.kept_groups = 0);
    REFUSES(a.kept_groups = 5);
    REFUSES(a.k = 0);
    REFUSES(a.k = 9);
    REFUSES(a.n = -1);
    REFUSES(a.n = too_many);
    REFUSES(a.n_experts = -8);
    REFUSES(a.logits = NULL);
    REFUSES(a.ids = NULL);
    REFUSES(a.weights = NULL);
    REFUSES(a.bias.n = 7);
    REFUSES(a.bias.data = NULL);
    REFUSES(a.bias.type = MOX_DT_I64);
    REFUSES(a.factor = NAN);
#undef REFUSES
}

static void test_router_sigmoid(void)
{
    for (int flavour = 0; flavour < 5; flavour++) {
        sigmoid_case(4, 256, 8, 8, 4, flavour);
        sigmoid_case(3, 64, 6, 1, 1, flavour);
        sigmoid_case(3, 24, 6, 8, 2, flavour); /* k takes all of the kept groups */
        sigmoid_case(5, 16, 5, 16, 9, flavour); /* groups of one */
        sigmoid_case(2, 12, 12, 3, 3, flavour);
        sigmoid_case(1, 1, 1, 1, 1, flavour);
        sigmoid_case(0, 8, 2, 4, 2, flavour);
    }
    sigmoid_refusals();
}

static void sigmoid_biased_weights(const mox_router_sigmoid_args *a, int64_t begin, int64_t end)
{
    mox_router_sigmoid_ref(a, begin, end);
    for (int64_t i = begin * a->k; i < end * a->k && a->bias.type; i++)
        a->weights[i] += a->factor * mox_vec_at(&a->bias, a->ids[i]) / (a->renormalize ? (float)a->k : 1);
}
static void sigmoid_all_groups(const mox_router_sigmoid_args *a, int64_t begin, int64_t end)
{
    mox_router_sigmoid_args b = *a;
    b.kept_groups = a->n_groups;
    mox_router_sigmoid_ref(&b, begin, end);
}
static void sigmoid_no_factor(const mox_router_sigmoid_args *a, int64_t begin, int64_t end)
{
    mox_router_sigmoid_args b = *a;
    b.factor = 1;
    mox_router_sigmoid_ref(&b, begin, end);
}
/* The right experts, the best two in each other's place. */
static void sigmoid_best_second(const mox_router_sigmoid_args *a, int64_t begin, int64_t end)
{
    mox_router_sigmoid_ref(a, begin, end);
    for (int64_t t = begin; t < end && a->k > 1; t++) {
        int32_t *ids = a->ids + t * a->k;
        float *w = a->weights + t * a->k;
        const int32_t id = ids[0];
        const float weight = w[0];
        ids[0] = ids[1];
        w[0] = w[1];
        ids[1] = id;
        w[1] = weight;
    }
}
static void plant_sigmoid_biased(mox_kern *k) { k->router_sigmoid = sigmoid_biased_weights; }
static void plant_sigmoid_all_groups(mox_kern *k) { k->router_sigmoid = sigmoid_all_groups; }
static void plant_sigmoid_no_factor(mox_kern *k) { k->router_sigmoid = sigmoid_no_factor; }
static void plant_sigmoid_order(mox_kern *k) { k->router_sigmoid = sigmoid_best_second; }

/* ---- router_normalize ---- */

static void test_router_normalize(void)
{
    static const int64_t ks[] = {1, 2, 7, 8, 10, 17};
    for (int i = 0; i < 6; i++) {
        const int64_t k = ks[i], n = 200;
        ck_label("k %lld", (long long)k);
        float *w = ck_uniform(n * k, 0, 1);
        for (int64_t j = 0; j < 4 * k; j++) w[j] = j / k == 0 ? 0 : j / k == 1 ? -w[j] : j / k == 2 ? 1e-30f : 1e30f;
        double *want = ck_bytes(n * k * 8);
        for (int64_t t = 0; t < n; t++) {
            double sum = 0;
            for (int64_t s = k - 1; s >= 0; s--) sum += (double)w[t * k + s];
            for (int64_t s = 0; s < k; s++) want[t * k + s] = (double)w[t * k + s] / (sum > 0 ? sum : 1);
        }
        ck_ok(mox_op_router_normalize(&ck.exec, &(mox_router_normalize_args){w, n, k}, NULL), NULL);
        ck_class_p(w, want, n * k, "weights");
    }
    ck_label("nothing");
    ck_ok(mox_op_router_normalize(&ck.exec, &(mox_router_normalize_args){NULL, 0, 4}, NULL), NULL);
    ck_ok(mox_op_router_normalize(&ck.exec, &(mox_router_normalize_args){NULL, 4, 0}, NULL), NULL);
    ck_label("refusals");
    float *w = ck_uniform(8, 0, 1);
    ck_refused(mox_op_router_normalize(&ck.exec, &(mox_router_normalize_args){NULL, 2, 4}, NULL), MOX_E_ARG);
    ck_refused(mox_op_router_normalize(&ck.exec, &(mox_router_normalize_args){w, -1, 4}, NULL), MOX_E_ARG);
    ck_refused(mox_op_router_normalize(&ck.exec, &(mox_router_normalize_args){w, 2, -1}, NULL), MOX_E_ARG);
    ck_refused(mox_op_router_normalize(&ck.exec, &(mox_router_normalize_args){w, too_many, 4}, NULL), MOX_E_ARG);
}

/* Divides by whatever the sum is. */
static void normalize_unguarded(const mox_router_normalize_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        float sum = 0;
        for (int64_t s = 0; s < a->k; s++) sum += a->weights[t * a->k + s];
        for (int64_t s = 0; s < a->k; s++) a->weights[t * a->k + s] /= sum;
    }
}
static void normalize_without_last(const mox_router_normalize_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        float sum = 0;
        for (int64_t s = 0; s < a->k / 2 * 2; s++) sum += a->weights[t * a->k + s];
        for (int64_t s = 0; s < a->k && sum > 0; s++) a->weights[t * a->k + s] /= sum;
    }
}
static void plant_normalize_unguarded(mox_kern *k) { k->router_normalize = normalize_unguarded; }
static void plant_normalize_tail(mox_kern *k) { k->router_normalize = normalize_without_last; }

/* ---- bench ---- */

CK_RUN(router_topk)
CK_RUN(router_sigmoid)

static void bench_router_topk(void)
{
    const int64_t n_experts = 128, k = 8;
    for (int64_t n = 1; n <= 512; n *= 512)
        for (int renormalize = 0; renormalize < 2; renormalize++) {
            mox_router_topk_args a = {.logits = ck_random(n * n_experts, 2), .ids = ck_i32(n * k), .weights = ck_f32(n * k),
                                      .n = n, .n_experts = n_experts, .k = k, .renormalize = renormalize != 0};
            ck_bench(ck_tokens(renormalize ? "8 of 128 experts" : "8 of 128, over all", n), (double)(n * n_experts * 4), 0,
                     run_router_topk, &a);
        }
}

static void bench_router_sigmoid(void)
{
    const int64_t n_experts = 256, k = 8;
    for (int64_t n = 1; n <= 512; n *= 512) {
        mox_router_sigmoid_args a = {.logits = ck_random(n * n_experts, 2),
                                     .bias = ck_vec(MOX_DT_F32, ck_random(n_experts, 0.1f), n_experts), .ids = ck_i32(n * k),
                                     .weights = ck_f32(n * k), .n = n, .n_experts = n_experts, .k = k, .n_groups = 8,
                                     .kept_groups = 4, .renormalize = true, .factor = 2.5f};
        ck_bench(ck_tokens("8 of 256 in 4 of 8 groups", n), (double)(n * n_experts * 4), 0, run_router_sigmoid, &a);
    }
}

const ck_op ck_ops_router[] = {
    {"router_topk",
     test_router_topk,
     {plant_topk_last_wins, plant_topk_sorted, plant_topk_overflows, plant_topk_not_counted},
     bench_router_topk},
    {"router_sigmoid",
     test_router_sigmoid,
     {plant_sigmoid_biased, plant_sigmoid_all_groups, plant_sigmoid_no_factor, plant_sigmoid_order},
     bench_router_sigmoid},
    {"router_normalize", test_router_normalize, {plant_normalize_unguarded, plant_normalize_tail}, NULL},
    {.name = NULL},
};
