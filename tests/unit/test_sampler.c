/* tests/unit/test_sampler.c -- the sampler against the distribution it promises.
 *
 * `filtered` computes that distribution the slow way: full sort, double
 * precision, one filter after the other.  Draws are then counted and compared by
 * chi-square.  The bound is proved by planted bugs: draws of a sampler whose
 * settings are slightly wrong must exceed it (planted_bugs_are_seen). */
#include "base/alloc.h"
#include "base/rng.h"
#include "moxie.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { V = 24, DRAWS = 200000 };

static mox_sampler *make(int64_t n, mox_sampler_opts opts)
{
    mox_sampler *s = NULL;
    mox_err err;
    assert_int_equal(mox_sampler_create(&s, n, &opts, &err), MOX_OK);
    return s;
}

static int32_t sample(mox_sampler *s, const float *logits)
{
    int32_t id = -1;
    mox_err err;
    assert_int_equal(mox_sampler_sample(s, logits, &id, &err), MOX_OK);
    return id;
}

/* Logits spread over about six units, in no order, with a tie and a masked id. */
static void make_logits(float *logits)
{
    mox_rng rng;
    mox_rng_init(&rng, 99);
    for (int i = 0; i < V; i++) logits[i] = (float)(6.0 * mox_rng_unit(&rng) - 3.0);
    logits[17] = logits[5];
    logits[9] = -INFINITY;
}

/* ---- the promised distribution --------------------------------------------- */

static const float *sort_logits;
static int by_logit(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    if (sort_logits[x] != sort_logits[y]) return sort_logits[x] > sort_logits[y] ? -1 : 1;
    return x - y;
}

static void filtered(const float *logits, const mox_sampler_opts *o, double *p /* [V] by id */)
{
    int order[V];
    double w[V], total = 0.0, held = 0.0;
    for (int i = 0; i < V; i++) order[i] = i;
    sort_logits = logits;
    qsort(order, V, sizeof *order, by_logit);
    int n = o->top_k > 0 && o->top_k < V ? o->top_k : V;
    for (int i = 0; i < n; i++) {
        w[i] = exp(((double)logits[order[i]] - (double)logits[order[0]]) / (double)o->temperature);
        total += w[i];
    }
    if (o->top_p > 0.0f && o->top_p < 1.0f) {
        int keep = 0;
        while (keep < n && held < (double)o->top_p * total) held += w[keep++];
        n = keep;
    }
    while (n > 1 && w[n - 1] < (double)o->min_p) n--;
    total = 0.0;
    for (int i = 0; i < n; i++) total += w[i];
    memset(p, 0, V * sizeof *p);
    for (int i = 0; i < n; i++) p[order[i]] = w[i] / total;
}

/* Chi-square of DRAWS draws with `used` against what `promised` promises, divided
 * by its degrees of freedom; infinite when an id came that must not come. */
static double misfit(const float *logits, mox_sampler_opts promised, mox_sampler_opts used)
{
    double p[V], chi = 0.0;
    int counts[V] = {0}, kinds = 0;
    filtered(logits, &promised, p);
    mox_sampler *s = make(V, used);
    for (int i = 0; i < DRAWS; i++) counts[sample(s, logits)]++;
    mox_sampler_destroy(&s);
    for (int i = 0; i < V; i++) {
        const double expected = p[i] * DRAWS;
        if (expected == 0.0 && counts[i] > 0) return INFINITY;
        if (expected == 0.0) continue;
        chi += (counts[i] - expected) * (counts[i] - expected) / expected;
        kinds++;
    }
    return kinds > 1 ? chi / (kinds - 1) : 0.0;
}

/* Seeds are fixed, so this is no gamble; for a right sampler a value over 3 with
 * at least 3 degrees of freedom has a chance of 3 % at worst, and far less for
 * the many degrees most cases have. */
static const double misfit_bound = 3.0;

static const mox_sampler_opts settings[] = {
    {.temperature = 1.0f},
    {.temperature = 0.6f},
    {.temperature = 2.5f},
    {.temperature = 1.0f, .top_k = 5},
    {.temperature = 1.0f, .top_k = V},
    {.temperature = 1.0f, .top_k = V + 100},
    {.temperature = 1.0f, .top_p = 0.8f},
    {.temperature = 1.0f, .top_p = 0.99f},
    {.temperature = 1.3f, .min_p = 0.1f},
    {.temperature = 0.7f, .top_k = 20, .top_p = 0.8f},
    {.temperature = 1.5f, .top_k = 12, .top_p = 0.95f, .min_p = 0.2f},
    {.temperature = 2.0f, .top_p = 0.9f, .min_p = 0.05f},
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

static void draws_follow_the_filtered_distribution(void **state)
{
    (void)state;
    float logits[V];
    make_logits(logits);
    for (int i = 0; i < N_SETTINGS; i++) {
        mox_sampler_opts o = settings[i];
        o.seed = 1000 + (uint64_t)i;
        const double m = misfit(logits, o, o);
        if (m > misfit_bound) fail_msg("setting %d: misfit %.2f", i, m);
    }
}

static void planted_bugs_are_seen(void **state)
{
    (void)state;
    float logits[V];
    make_logits(logits);
    const struct {
        mox_sampler_opts promised, used;
    } bugs[] = {
        {{.temperature = 1.0f}, {.temperature = 1.03f}},
        {{.temperature = 1.0f, .top_k = 5}, {.temperature = 1.0f, .top_k = 6}},
        {{.temperature = 1.0f, .top_k = 6}, {.temperature = 1.0f, .top_k = 5}},
        {{.temperature = 1.0f, .top_p = 0.8f}, {.temperature = 1.0f, .top_p = 0.86f}},
        {{.temperature = 1.3f, .min_p = 0.1f}, {.temperature = 1.3f, .min_p = 0.07f}},
        /* top-p before top-k: with the whole mass as its total it would keep all 5 */
        {{.temperature = 1.0f, .top_k = 5, .top_p = 0.75f}, {.temperature = 1.0f, .top_k = 5}},
        /* filters before temperature: other ids are left */
        {{.temperature = 2.0f, .top_p = 0.9f}, {.temperature = 1.0f, .top_p = 0.9f}},
    };
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        const double m = misfit(logits, bugs[i].promised, bugs[i].used);
        if (m <= misfit_bound) fail_msg("planted bug %zu went unseen: misfit %.2f", i, m);
    }
}

/* A vocabulary of real size goes through heaps of real depth. */
static void large_vocabularies_keep_exactly_the_head(void **state)
{
    (void)state;
    enum { N = 50021, K = 40 };
    float *logits = malloc(N * sizeof *logits);
    bool *seen = calloc(N, sizeof *seen);
    assert_non_null(logits);
    assert_non_null(seen);
    for (int i = 0; i < N; i++) logits[i] = -(float)(((int64_t)i * 7919) % N) * 0.01f; /* a permutation: all differ */
    mox_sampler *k = make(N, (mox_sampler_opts){.temperature = 20.0f, .top_k = K, .seed = 3});
    int distinct = 0;
    for (int i = 0; i < 1000; i++) {
        const int32_t id = sample(k, logits);
        assert_true(logits[id] > -(float)K * 0.01f);
        distinct += !seen[id];
        seen[id] = true;
    }
    assert_int_equal(distinct, K); /* nearly equal weights: all of the head shows */
    mox_sampler_destroy(&k);

    /* weights fall by exp(-0.01) a step: 0.5 of the mass is the first 70 */
    mox_sampler *p = make(N, (mox_sampler_opts){.temperature = 1.0f, .top_p = 0.5f, .seed = 4});
    float least = 0.0f;
    for (int i = 0; i < 1000; i++) least = fminf(least, logits[sample(p, logits)]);
    assert_true(least > -0.70f && least < -0.65f);
    mox_sampler_destroy(&p);
    free(logits);
    free(seen);
}

/* ---- greedy, seeds --------------------------------------------------------- */

static void greedy_takes_the_largest_and_the_lowest_of_equals(void **state)
{
    (void)state;
    mox_sampler *s = make(5, (mox_sampler_opts){.top_k = 3, .top_p = 0.1f, .min_p = 1.0f});
    assert_int_equal(sample(s, (const float[]){-4, -2, -3, -9, -5}), 1);
    assert_int_equal(sample(s, (const float[]){1, 7, 2, 7, 7}), 1);
    assert_int_equal(sample(s, (const float[]){0, 0, 0, 0, 0}), 0);
    assert_int_equal(sample(s, (const float[]){-INFINITY, -INFINITY, -INFINITY, -1, -INFINITY}), 3);
    mox_sampler_destroy(&s);

    /* a filter that leaves one id is greedy too, whatever the temperature */
    const mox_sampler_opts one[] = {{.temperature = 5.0f, .top_k = 1},
                                    {.temperature = 5.0f, .top_p = 1e-9f},
                                    {.temperature = 1e-30f},
                                    {.temperature = 5.0f, .top_k = 3, .min_p = 1.0f}};
    for (int i = 0; i < 4; i++) {
        s = make(5, one[i]);
        for (int n = 0; n < 50; n++) assert_int_equal(sample(s, (const float[]){1, 7, 2, 6.5f, 6.9f}), 1);
        mox_sampler_destroy(&s);
    }
    s = make(5, (mox_sampler_opts){.temperature = 5.0f, .top_k = 1});
    assert_int_equal(sample(s, (const float[]){1, 1, 2, 2, 2}), 2); /* ties at the border of top-k */
    mox_sampler_destroy(&s);
}

static void seeds_give_the_same_tokens(void **state)
{
    (void)state;
    float logits[V];
    make_logits(logits);
    int same = 0;
    mox_sampler *a = make(V, (mox_sampler_opts){.temperature = 1.5f, .seed = 7});
    mox_sampler *b = make(V, (mox_sampler_opts){.temperature = 1.5f, .seed = 7});
    mox_sampler *c = make(V, (mox_sampler_opts){.temperature = 1.5f, .seed = 8});
    for (int i = 0; i < 500; i++) {
        const int32_t id = sample(a, logits);
        assert_int_equal(id, sample(b, logits));
        same += id == sample(c, logits);
    }
    assert_true(same < 200); /* another seed is another stream */
    mox_sampler_destroy(&a);
    mox_sampler_destroy(&b);
    mox_sampler_destroy(&c);
}

/* ---- penalties ------------------------------------------------------------- */

static void penalties_change_what_they_should(void **state)
{
    (void)state;
    const float logits[4] = {2.0f, 1.5f, -1.0f, -1.2f};
    mox_sampler *s = make(4, (mox_sampler_opts){.repeat_penalty = 1.5f});
    assert_int_equal(sample(s, logits), 0); /* 2.0 becomes 1.33 */
    assert_int_equal(sample(s, logits), 1); /* 1.5 becomes 1.0 */
    assert_int_equal(sample(s, logits), 0); /* 1.33 beats 1.0, and is not divided twice */
    mox_sampler_destroy(&s);

    /* negative logits are multiplied: -1.0 becomes -1.5 and falls behind */
    s = make(2, (mox_sampler_opts){.repeat_penalty = 1.5f});
    assert_int_equal(sample(s, logits + 2), 0);
    assert_int_equal(sample(s, logits + 2), 1);
    mox_sampler_destroy(&s);

    /* presence: once, however often; 2.0 - 0.4 stays ahead of 1.5 for ever */
    s = make(4, (mox_sampler_opts){.presence_penalty = 0.4f});
    for (int i = 0; i < 10; i++) assert_int_equal(sample(s, logits), 0);
    mox_sampler_destroy(&s);

    /* frequency: 2.0, 1.6, 1.2 -> after two times id 1 is ahead */
    s = make(4, (mox_sampler_opts){.frequency_penalty = 0.4f});
    assert_int_equal(sample(s, logits), 0);
    assert_int_equal(sample(s, logits), 0);
    assert_int_equal(sample(s, logits), 1);
    mox_sampler_destroy(&s);
}

static void the_window_forgets(void **state)
{
    (void)state;
    const float logits[3] = {2.0f, 1.9f, 1.8f};
    mox_sampler *s = make(3, (mox_sampler_opts){.presence_penalty = 1.0f, .repeat_window = 2});
    mox_sampler_accept(s, 0);
    mox_sampler_accept(s, 1);
    assert_int_equal(sample(s, logits), 2); /* 0 and 1 are in the window */
    assert_int_equal(sample(s, logits), 0); /* the window is 1, 2 */
    assert_int_equal(sample(s, logits), 1); /* the window is 2, 0 */
    mox_sampler_accept(s, -1); /* ids outside the vocabulary have no logit to lower */
    mox_sampler_accept(s, 3);
    assert_int_equal(sample(s, logits), 2); /* the window is still 0, 1 */
    mox_sampler_destroy(&s);

    /* occurrences that have left the window no longer count: never 2.0 - 3 * 0.3 */
    s = make(2, (mox_sampler_opts){.frequency_penalty = 0.3f, .repeat_window = 2});
    for (int i = 0; i < 10; i++) assert_int_equal(sample(s, (const float[]){2.0f, 1.35f}), 0);
    mox_sampler_destroy(&s);

    /* by default the window is 64 ids */
    s = make(3, (mox_sampler_opts){.presence_penalty = 1.0f});
    mox_sampler_accept(s, 0);
    for (int i = 0; i < 63; i++) mox_sampler_accept(s, 2);
    assert_int_equal(sample(s, logits), 1);
    assert_int_equal(sample(s, logits), 0); /* 0 has left it, 1 is in */
    mox_sampler_destroy(&s);
}

/* ---- biases ---------------------------------------------------------------- */

/* As if the logits had been so, whatever else is set; and the list is the sampler's own. */
static void biases_are_added_to_logits(void **state)
{
    (void)state;
    float logits[V], moved[V];
    mox_logit_bias bias[] = {{3, 2.5f}, {11, -1.25f}, {3, 0.5f}, {7, -INFINITY}};
    mox_sampler_opts plain = {.temperature = 0.9f, .top_k = 9, .presence_penalty = 0.5f, .seed = 6}, biased = plain;
    make_logits(logits);
    memcpy(moved, logits, sizeof moved);
    for (size_t i = 0; i < sizeof bias / sizeof *bias; i++) moved[bias[i].token] += bias[i].bias;
    biased.logit_bias = bias;
    biased.n_logit_bias = sizeof bias / sizeof *bias;
    mox_sampler *a = make(V, biased), *b = make(V, plain);
    memset(bias, 0, sizeof bias);
    int n_three = 0;
    for (int i = 0; i < 2000; i++) {
        const int32_t id = sample(a, logits);
        assert_int_equal(id, sample(b, moved));
        assert_int_not_equal(id, 7);
        n_three += id == 3;
    }
    assert_true(n_three > 0);
    mox_sampler_destroy(&a);
    mox_sampler_destroy(&b);
}

static void wrong_biases_are_refused(void **state)
{
    (void)state;
    const mox_logit_bias wrong[] = {{-1, 1}, {V, 1}, {0, NAN}, {0, INFINITY}};
    mox_sampler *s;
    mox_err err;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const mox_sampler_opts o = {.logit_bias = &wrong[i], .n_logit_bias = 1};
        assert_int_equal(mox_sampler_create(&s, V, &o, &err), MOX_E_ARG);
        assert_memory_equal(err.msg, "logit_bias", 10);
        assert_null(s);
    }
    const mox_sampler_opts nothing = {.n_logit_bias = 1}, fewer = {.logit_bias = wrong, .n_logit_bias = -1};
    assert_int_equal(mox_sampler_create(&s, V, &nothing, &err), MOX_E_ARG);
    assert_int_equal(mox_sampler_create(&s, V, &fewer, &err), MOX_E_ARG);
}

static void when_all_are_excluded_it_says_so(void **state)
{
    (void)state;
    float logits[V];
    mox_logit_bias all[V];
    mox_err err;
    int32_t id;
    make_logits(logits);
    for (int i = 0; i < V; i++) all[i] = (mox_logit_bias){i, -INFINITY};
    mox_sampler *s = make(V, (mox_sampler_opts){.temperature = 1, .logit_bias = all, .n_logit_bias = V});
    assert_int_equal(mox_sampler_sample(s, logits, &id, &err), MOX_E_ARG);
    assert_memory_equal(err.msg, "logit_bias", 10);
    for (int i = 0; i < V; i++) logits[i] = -INFINITY; /* the biases are not to blame */
    assert_int_equal(mox_sampler_sample(s, logits, &id, &err), MOX_E_NUMERIC);
    assert_null(strstr(err.msg, "logit_bias"));
    mox_sampler_destroy(&s);
}

/* ---- refusals -------------------------------------------------------------- */

static void numbers_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    const float bad[][3] = {{0, NAN, 1}, {NAN, NAN, NAN}, {0, 1, INFINITY}, {-INFINITY, -INFINITY, -INFINITY},
                            {NAN, -INFINITY, 5}};
    const float temperatures[] = {0.0f, 0.8f};
    for (int t = 0; t < 2; t++) {
        mox_sampler *s = make(3, (mox_sampler_opts){.temperature = temperatures[t], .top_k = 2, .top_p = 0.9f});
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            int32_t id = 77;
            mox_err err = {0};
            assert_int_equal(mox_sampler_sample(s, bad[i], &id, &err), MOX_E_NUMERIC);
            assert_int_equal(err.status, MOX_E_NUMERIC);
            assert_true(strlen(err.msg) > 10);
            assert_int_equal(id, 77);
            assert_int_equal(mox_sampler_sample(s, bad[i], &id, NULL), MOX_E_NUMERIC);
        }
        assert_int_equal(sample(s, (const float[]){-INFINITY, -INFINITY, 4}), 2); /* still usable */
        mox_sampler_destroy(&s);
    }
}

/* Infinity less infinity is no number, and would be a candidate. */
static void a_bias_hides_no_infinity(void **state)
{
    (void)state;
    const mox_logit_bias never = {1, -INFINITY};
    const float temperatures[] = {0.0f, 0.8f};
    for (int t = 0; t < 2; t++) {
        mox_sampler *s = make(3, (mox_sampler_opts){.temperature = temperatures[t], .logit_bias = &never, .n_logit_bias = 1});
        int32_t id = 77;
        mox_err err = {0};
        assert_int_equal(mox_sampler_sample(s, (const float[]){0, INFINITY, 2}, &id, &err), MOX_E_NUMERIC);
        assert_non_null(strstr(err.msg, "id 1 is infinite"));
        mox_sampler_destroy(&s);
    }
}

static void options_are_checked(void **state)
{
    (void)state;
    const mox_sampler_opts bad[] = {
        {.temperature = -0.1f},      {.temperature = NAN},         {.temperature = INFINITY},
        {.top_k = -1},               {.top_p = -0.1f},             {.top_p = 1.1f},
        {.top_p = NAN},              {.min_p = -1},                {.min_p = 1.5f},
        {.repeat_penalty = -1},      {.repeat_penalty = 1e-6f},    {.repeat_penalty = INFINITY},
        {.presence_penalty = NAN},   {.frequency_penalty = 1e9f},  {.repeat_window = -1},
        {.repeat_window = INT32_MAX}};
    mox_err err;
    mox_sampler *s;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        s = (mox_sampler *)1;
        if (mox_sampler_create(&s, 10, &bad[i], &err) != MOX_E_ARG) fail_msg("option %zu was accepted", i);
        assert_null(s);
    }
    const mox_sampler_opts good = {0};
    assert_int_equal(mox_sampler_create(&s, 0, &good, &err), MOX_E_ARG);
    assert_int_equal(mox_sampler_create(&s, -5, &good, &err), MOX_E_ARG);
    assert_int_equal(mox_sampler_create(&s, (int64_t)1 << 40, &good, &err), MOX_E_ARG);
    assert_int_equal(mox_sampler_create(&s, 1, NULL, &err), MOX_OK); /* all defaults */
    assert_int_equal(sample(s, (const float[]){-3}), 0);
    mox_sampler_destroy(&s);
    mox_sampler_destroy(&s); /* NULL is fine */
    mox_sampler_destroy(NULL);
}

/* ---- memory ---------------------------------------------------------------- */

typedef struct countdown {
    int left;  /* this many succeed */
    int calls;
} countdown;

static int fail_after(void *user, size_t bytes)
{
    (void)bytes;
    countdown *c = user;
    c->calls++;
    return c->left-- > 0;
}

static void failing_allocations_are_survived_and_sampling_makes_none(void **state)
{
    (void)state;
    const mox_sampler_opts o = {.temperature = 1.0f, .top_k = 4, .top_p = 0.9f, .min_p = 0.01f,
                                .repeat_penalty = 1.1f};
    const float logits[6] = {1, 2, 3, 4, 5, 6};
    mox_sampler *s = NULL;
    mox_err err;
    countdown c = {0};
    mox_alloc_set_hook(fail_after, &c);
    mox_status status;
    int n = 0;
    for (;; n++) {
        c = (countdown){.left = n};
        status = mox_sampler_create(&s, 6, &o, &err);
        if (status == MOX_OK) break;
        assert_int_equal(status, MOX_E_MEMORY);
        assert_null(s);
    }
    assert_true(n >= 4);
    c = (countdown){0};
    for (int i = 0; i < 100; i++) (void)sample(s, logits);
    assert_int_equal(c.calls, 0);
    mox_alloc_set_hook(NULL, NULL);
    mox_sampler_destroy(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_largest_and_the_lowest_of_equals),
        cmocka_unit_test(seeds_give_the_same_tokens),
        cmocka_unit_test(draws_follow_the_filtered_distribution),
        cmocka_unit_test(planted_bugs_are_seen),
        cmocka_unit_test(large_vocabularies_keep_exactly_the_head),
        cmocka_unit_test(penalties_change_what_they_should),
        cmocka_unit_test(the_window_forgets),
        cmocka_unit_test(biases_are_added_to_logits),
        cmocka_unit_test(wrong_biases_are_refused),
        cmocka_unit_test(when_all_are_excluded_it_says_so),
        cmocka_unit_test(numbers_that_are_not_finite_are_refused),
        cmocka_unit_test(a_bias_hides_no_infinity),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(failing_allocations_are_survived_and_sampling_makes_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
