/* tests/unit/test_plan.c -- memory plans on made-up machines, and the rates predicted from
 * them.
 *
 * A plan is held against what contexts and streams really reserve, and the hit rates
 * against a simulated cache. */
#include "runtime/plan.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/size.h"
#include "fail_nth.h"
#include "model/dense_load.h"
#include "runtime/context.h"
#include "tools/synth.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "made_up_machine.h"

static const char *const dirs[] = {SOURCE_ROOT "/models/demo", SOURCE_ROOT "/tests/data/models/demo-qwen3-moe",
                                   SOURCE_ROOT "/tests/data/models/demo-deepseek-v3", SOURCE_ROOT "/tests/data/models/demo-qwen3"};
enum { N_MODELS = 4, DENSE_MODEL = 3, MB = 1 << 20 };
static mox_model *models[N_MODELS];

static int set_up(void **state)
{
    mox_err err;
    for (int i = 0; i < N_MODELS; i++)
        if (mox_model_open(&models[i], dirs[i], NULL, &err) != MOX_OK) return -1;
    if (new_machine(state) != 0) return -1;
    put("/proc/meminfo", "MemTotal: 4000000 kB\nMemAvailable: 1000000 kB\n");
    return 0;
}

static int tear_down(void **state)
{
    for (int i = 0; i < N_MODELS; i++) mox_model_close(&models[i]);
    return remove_machine(state);
}

static mox_plan plan_of(const mox_model *m, mox_plan_opts opts)
{
    mox_plan p;
    mox_err err;
    if (mox_plan_make_at(root, &p, m, &opts, &err) != MOX_OK) fail_msg("%s", err.msg);
    assert_true(p.total == p.dense_bytes + p.experts_bytes + p.copy_bytes + p.cache_bytes + p.activation_bytes + p.other_bytes);
    assert_true(p.fits == (p.total <= p.budget) && p.fits == (p.least_budget <= p.budget));
    assert_true(p.experts != MOX_EXPERTS_AUTO);
    return p;
}

/* ---- budgets ---- */

static void the_default_is_most_of_what_is_there(void **state)
{
    (void)state;
    mox_plan p = plan_of(models[0], (mox_plan_opts){0});
    assert_true(p.available == 1000000LL * 1024 && p.budget == p.available / 10 * 8);
    put("/proc/self/statm", "9000 700 200 1 0 1 0\n"); /* what the process has is available to it */
    p = plan_of(models[0], (mox_plan_opts){0});
    assert_true(p.available == 1000000LL * 1024 + 500 * 4096);
    put("/proc/self/cgroup", "0::/g\n");
    put("/sys/fs/cgroup/g/memory.max", "20000000\n");
    p = plan_of(models[0], (mox_plan_opts){0});
    assert_true(p.available == 20000000 + 500 * 4096);
    p = plan_of(models[0], (mox_plan_opts){.ram_bytes = 99LL * MB}); /* a budget that is given is the budget */
    assert_true(p.budget == 99LL * MB && p.fits);
    put("/proc/self/cgroup", "");
    put("/proc/self/statm", "");
}

/* The smallest budget fits, and one byte less does not, in every mode of every model. */
static void the_least_budget_is_exact(void **state)
{
    (void)state;
    static const mox_experts modes[] = {MOX_EXPERTS_AUTO, MOX_EXPERTS_RESIDENT, MOX_EXPERTS_STREAM, MOX_EXPERTS_MMAP};
    for (int i = 0; i < N_MODELS; i++) {
        for (int j = 0; j < 4; j++) {
            if (modes[j] == MOX_EXPERTS_STREAM && i == DENSE_MODEL) continue;
            const mox_context_opts context = {.n_ctx = 1000, .n_seqs = j == 1 ? 3 : 1};
            mox_plan_opts o = {.ram_bytes = 1, .experts = modes[j], .context = &context};
            const mox_plan none = plan_of(models[i], o);
            assert_false(none.fits);
            o.ram_bytes = none.least_budget;
            const mox_plan least = plan_of(models[i], o);
            assert_true(least.fits && least.total == none.least_budget && least.least_budget == none.least_budget);
            assert_int_equal(least.n_batch, context.n_seqs); /* never less than one token for each sequence */
            assert_int_equal(least.n_ctx, 1000);
            o.ram_bytes--;
            assert_false(plan_of(models[i], o).fits);
        }
    }
}

static void more_memory_is_never_worse(void **state)
{
    (void)state;
    static const mox_experts modes[] = {MOX_EXPERTS_AUTO, MOX_EXPERTS_STREAM};
    for (int i = 0; i < 2; i++) {
        mox_plan before = {0};
        bool shrunk = false, few = false;
        for (int64_t ram = 5LL * MB; ram <= 60LL * MB; ram += 100000) {
            const mox_plan p = plan_of(models[0], (mox_plan_opts){.ram_bytes = ram, .experts = modes[i]});
            assert_true(p.fits || !before.fits);
            if (before.fits) {
                assert_true(p.n_batch >= before.n_batch || p.experts != before.experts);
                assert_true(p.n_slots >= before.n_slots || p.n_batch > before.n_batch || p.experts != before.experts);
                assert_true(before.experts != MOX_EXPERTS_RESIDENT || p.experts == MOX_EXPERTS_RESIDENT);
            }
            if (p.fits && p.experts == MOX_EXPERTS_STREAM && p.n_batch > 1) /* slots come before long batches */
                assert_true(p.n_slots >= 2 * models[0]->report.n_experts_active);
            shrunk |= p.fits && p.n_batch < p.n_batch_wanted;
            few |= p.fits && p.n_slots < p.n_experts;
            before = p;
        }
        assert_true(before.fits && shrunk && few && before.n_batch == 512);
        assert_int_equal(before.experts, i == 0 ? MOX_EXPERTS_RESIDENT : MOX_EXPERTS_STREAM);
        assert_true(before.n_slots == (i == 0 ? 0 : before.n_experts)); /* a slot for every expert, and no more */
    }
}

/* ---- against what is really reserved ---- */

static void sizes_are_those_that_contexts_reserve(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        for (int n_batch = 16; n_batch <= 256; n_batch *= 4) {
            mox_err err;
            mox_context *c;
            const mox_context_opts o = {.n_ctx = 700, .n_seqs = 2, .n_batch = n_batch, .n_threads = 1, .exact = n_batch == 64};
            mox_context_sizes s;
            assert_int_equal(mox_context_measure(models[i], &o, &s, &err), MOX_OK);
            assert_int_equal(mox_context_create(&c, models[i], &o, &err), MOX_OK);
            assert_true(mox_context_bytes(c) == s.cache_bytes + s.step_bytes + s.small_bytes);
            assert_true((int64_t)c->sections[0].arena.capacity == s.step_bytes && c->cache_bytes + c->state_bytes == s.cache_bytes);
            const mox_plan p = plan_of(models[i], (mox_plan_opts){.context = &o, .ram_bytes = 1LL << 40});
            assert_true(p.cache_bytes == s.cache_bytes && p.activation_bytes == s.step_bytes && p.n_batch == n_batch);
            mox_context_destroy(&c);
        }
    }
}

static void slots_are_those_that_streams_reserve(void **state)
{
    (void)state;
    static const char *const policies[] = {NULL, "lru", "lfu", "2q"};
    for (int at = 0; at < 4 * N_MODELS; at++) {
        const int i = at / 4;
        if (i == DENSE_MODEL) continue;
        mox_err err;
        mox_context *c, *mapped;
        mox_context_opts o = {.n_ctx = 128, .n_batch = 8, .n_threads = 1, .expert_policy = policies[at % 4]};
        const mox_plan p = plan_of(models[i], (mox_plan_opts){.experts = MOX_EXPERTS_STREAM, .n_slots = 17, .context = &o});
        assert_int_equal(p.n_slots, 17);
        int64_t dense;
        assert_int_equal(mox_dense_bytes(models[i], &dense, &err), MOX_OK);
        assert_true(p.dense_bytes == dense);
        assert_int_equal(mox_context_create(&mapped, models[i], &o, &err), MOX_OK);
        o.expert_bytes = p.n_slots * p.slot_bytes;
        assert_int_equal(mox_context_create(&c, models[i], &o, &err), MOX_OK);
        assert_true(mox_context_bytes(c) - mox_context_bytes(mapped) == p.experts_bytes);
        mox_context_destroy(&c);
        mox_context_destroy(&mapped);
    }
}

static void two_contexts_share_the_budget(void **state)
{
    (void)state;
    const mox_context_opts first = {.n_ctx = 512}, second = {.n_ctx = 512, .exact = true};
    mox_plan_opts o = {.experts = MOX_EXPERTS_STREAM, .ram_bytes = 40LL * MB, .context = &first};
    const mox_plan one = plan_of(models[0], o);
    o.second = &second;
    const mox_plan both = plan_of(models[0], o);
    assert_true(both.fits && both.cache_bytes > 2 * one.cache_bytes && both.n_slots < one.n_slots);
    o.extra_bytes = 3LL * MB;
    o.n_slots = both.n_slots;
    const mox_plan extra = plan_of(models[0], o);
    assert_true(extra.n_batch == both.n_batch ? extra.total - both.total >= 3LL * MB : extra.n_batch < both.n_batch);
}

/* A GPU that computes in memory of the host: what does not fit stays mapped, and nothing is streamed. */
static void a_device_may_read_maps(void **state)
{
    (void)state;
    const mox_context_opts metal = {.n_ctx = 512, .device = "metal"}, cpu = {.n_ctx = 512, .device = "cpu"};
    mox_plan_opts o = {.ram_bytes = 1LL << 40, .context = &metal};
    assert_int_equal(plan_of(models[0], o).experts, MOX_EXPERTS_RESIDENT);
    o.context = &cpu;
    o.ram_bytes = plan_of(models[0], o).least_budget;
    assert_int_equal(plan_of(models[0], o).experts, MOX_EXPERTS_STREAM);
    o.context = &metal;
    o.ram_bytes = plan_of(models[0], o).least_budget;
    const mox_plan mapped = plan_of(models[0], o);
    assert_true(mapped.fits);
    assert_int_equal(mapped.experts, MOX_EXPERTS_MMAP);
}

static void refusals(void **state)
{
    (void)state;
    mox_plan p;
    mox_err err;
    const mox_context_opts long_context = {.n_ctx = 1 << 30}, metal = {.device = "metal"};
    const struct {
        int model;
        mox_plan_opts opts;
        const char *words;
    } cases[] = {
        {DENSE_MODEL, {.experts = MOX_EXPERTS_STREAM}, "no routed experts"},
        {0, {.experts = (mox_experts)9}, "experts: 9"},
        {0, {.experts = MOX_EXPERTS_RESIDENT, .n_slots = 4}, "slots"},
        {0, {.ram_bytes = -1}, "negative"},
        {0, {.context = &long_context}, "1073741824 tokens"},
        {0, {.context = &metal, .experts = MOX_EXPERTS_STREAM}, "nothing to stream"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_not_equal(mox_plan_make_at(root, &p, models[cases[i].model], &cases[i].opts, &err), MOX_OK);
        if (!strstr(err.msg, cases[i].words)) fail_msg("'%s' lacks '%s'", err.msg, cases[i].words);
    }
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (long at = 1;; at++) {
        nth n = {.at = at};
        mox_plan p;
        mox_err err;
        const int64_t before = mox_alloc_live();
        mox_alloc_set_hook(fail_nth_alloc, &n);
        const mox_status status = mox_plan_make_at(root, &p, models[0], &(mox_plan_opts){.ram_bytes = 30LL * MB}, &err);
        mox_alloc_set_hook(NULL, NULL);
        assert_true(mox_alloc_live() == before);
        if (status == MOX_OK) {
            assert_true(at > 10);
            return;
        }
        assert_int_equal(status, MOX_E_MEMORY);
    }
}

/* ---- shapes ---- */

static void a_shape_has_the_plan_of_its_files(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen3-30b-a3b:layers=1", "qwen3.5-35b-a3b:layers=1"};
    for (int i = 0; i < 2; i++) {
        char dir[128], command[160];
        mox_err err;
        mox_model *files, *shape;
        (void)snprintf(dir, sizeof dir, "%s/model%d", root, i);
        if (mox_synth_write(names[i], dir, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
        assert_int_equal(mox_model_open(&files, dir, NULL, &err), MOX_OK);
        assert_int_equal(mox_model_open_shape(&shape, names[i], &err), MOX_OK);
        mox_plan_opts o = {.ram_bytes = 400LL * MB, .experts = MOX_EXPERTS_STREAM};
        const mox_plan a = plan_of(files, o), b = plan_of(shape, o);
        assert_true(a.slot_bytes == b.slot_bytes && a.dense_bytes == b.dense_bytes && a.cache_bytes == b.cache_bytes &&
                    a.activation_bytes == b.activation_bytes && a.n_experts == b.n_experts);
        mox_context *c;
        assert_int_equal(mox_context_create(&c, shape, NULL, &err), MOX_E_ARG);
        assert_null(c);
        mox_model_close(&files);
        mox_model_close(&shape);
        (void)snprintf(command, sizeof command, "rm -r '%s'", dir);
        assert_int_equal(system(command), 0);
    }
}

static void all_shapes_have_plans(void **state)
{
    (void)state;
    for (int i = 0; i < mox_synth_count(); i++) {
        mox_err err;
        mox_model *m;
        int64_t bytes;
        if (mox_model_open_shape(&m, mox_synth_name(i), &err) != MOX_OK) fail_msg("%s", err.msg);
        assert_int_equal(mox_synth_bytes(mox_synth_name(i), &bytes, &err), MOX_OK);
        const mox_plan p = plan_of(m, (mox_plan_opts){.ram_bytes = 24LL << 30});
        assert_true(p.fits && p.least_budget < bytes);
        const mox_plan all = plan_of(m, (mox_plan_opts){.ram_bytes = 1LL << 40});
        assert_int_equal(all.experts, MOX_EXPERTS_RESIDENT);
        assert_in_range(all.dense_bytes + all.experts_bytes, bytes, bytes + bytes / 1000);
        mox_model_close(&m);
    }
}

/* ---- prediction ---- */

/* Experts that a token needs in one layer: k of n by popularity, without putting back. */
static void draw(mox_rng *rng, const double *weights, int n, int k, bool *out)
{
    memset(out, 0, (size_t)n * sizeof *out);
    for (int i = 0; i < k; i++) {
        double sum = 0.0;
        for (int j = 0; j < n; j++) sum += out[j] ? 0.0 : weights[j];
        double x = (double)(mox_rng_u64(rng) >> 11) * 0x1p-53 * sum;
        int chosen = -1;
        for (int j = 0; j < n && x >= 0.0; j++) {
            if (out[j]) continue;
            chosen = j;
            x -= weights[j];
        }
        out[chosen] = true;
    }
}

/* Part of the experts that a cache of so many slots has, least recently used ones going. */
static double simulate(int layers, int n, int k, int slots, double zipf)
{
    enum { TOKENS = 1500, WARM = 300 };
    double weights[64];
    int *used = calloc((size_t)(layers * n), sizeof *used); /* clock of the last use; 0: not there */
    int n_there = 0, clock = 0, hits = 0, asked = 0;
    mox_rng rng;
    mox_rng_init(&rng, 7);
    for (int i = 0; i < n; i++) weights[i] = pow(i + 1.0, -zipf);
    for (int t = 0; t < TOKENS; t++)
        for (int l = 0; l < layers; l++) {
            bool wanted[64];
            draw(&rng, weights, n, k, wanted);
            for (int e = 0; e < n; e++) {
                if (!wanted[e]) continue;
                int *u = &used[l * n + e];
                if (t >= WARM) asked++, hits += *u > 0;
                if (!*u && n_there == slots) {
                    int oldest = -1;
                    for (int x = 0; x < layers * n; x++)
                        if (used[x] > 0 && (oldest < 0 || used[x] < used[oldest])) oldest = x;
                    used[oldest] = 0;
                    n_there--;
                }
                n_there += !*u;
                *u = ++clock;
            }
        }
    free(used);
    return (double)hits / asked;
}

static mox_plan made_up(int layers, int n, int k, int slots)
{
    return (mox_plan){.experts = MOX_EXPERTS_STREAM, .n_experts = layers * n, .n_experts_active = layers * k, .n_layers_moe = layers,
                      .n_slots = slots, .slot_bytes = 1000, .expert_bytes_all = 900LL * layers * n, .n_batch = 64,
                      .token_bytes = 5000, .token_macs = 1000};
}

static void hit_rates_are_those_of_a_cache(void **state)
{
    (void)state;
    enum { LAYERS = 6, N = 32, K = 4 };
    static const int slots[] = {12, 40, 96, 150, 192};
    static const double zipfs[] = {0.0, 1.0};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 2; j++) {
            const mox_plan p = made_up(LAYERS, N, K, slots[i]);
            const mox_plan_machine m = {.weights_per_s = 1e9, .macs_per_s = 1e9, .disk_bytes_per_s = 1e6, .zipf = zipfs[j]};
            mox_plan_speed s;
            mox_plan_predict(&p, &m, &s);
            const double seen = simulate(LAYERS, N, K, slots[i], zipfs[j]);
            if (fabs(s.hit_rate - seen) > 0.05)
                fail_msg("%d slots, zipf %g: %.3f predicted, %.3f seen", slots[i], zipfs[j], s.hit_rate, seen);
        }
}

static void rates_follow_from_the_machine(void **state)
{
    (void)state;
    mox_plan p = made_up(4, 16, 2, 64);
    mox_plan_machine m = {.weights_per_s = 1e6, .macs_per_s = 1e9};
    mox_plan_speed s;
    mox_plan_predict(&p, &m, &s); /* everything is there: no disk is needed */
    assert_true(s.hit_rate == 1.0 && s.disk_bytes_per_token == 0.0);
    const double step = 1e6 / s.decode_per_s / (5000 + 8 * 900); /* the time of products, and something for the rest */
    assert_true(step >= 1.0 && step < 1.5);
    p.n_slots = 4; /* less than a token needs: all 8 are read */
    mox_plan_predict(&p, &m, &s);
    assert_true(s.hit_rate == 0.0 && s.decode_per_s == 0.0 && s.prefill_per_s == 0.0); /* of an unknown disk */
    assert_true(fabs(s.disk_bytes_per_token - 8000.0) < 1e-3);
    m.disk_bytes_per_s = 1e5;
    mox_plan_predict(&p, &m, &s);
    /* experts are computed meanwhile, though that is not for nothing */
    assert_true(1.0 / s.decode_per_s > step * 5000 / 1e6 + 8000 / 1e5 && 1.0 / s.decode_per_s < step * 12200 / 1e6 + 8000 / 1e5);
    mox_plan_machine fast = m;
    fast.disk_bytes_per_s = 1e12;
    mox_plan_predict(&p, &fast, &s);
    assert_true(fabs(s.decode_per_s * step * 12200 / 1e6 - 1.0) < 1e-6);
    mox_plan_predict(&p, &m, &s);
    assert_true(s.prefill_per_s > s.decode_per_s); /* a batch shares what it reads */
    m.macs_per_s = 1e3; /* multiplying decides: 1000 per token, and the head once per batch */
    mox_plan_predict(&p, &m, &s);
    const double without = s.prefill_per_s;
    p.head_macs = 64000;
    mox_plan_predict(&p, &m, &s);
    assert_true(fabs(without / s.prefill_per_s - 2.0) < 0.05);
    p.experts = MOX_EXPERTS_MMAP;
    mox_plan_predict(&p, &m, &s);
    assert_true(s.decode_per_s == 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_is_most_of_what_is_there),
        cmocka_unit_test(the_least_budget_is_exact),
        cmocka_unit_test(more_memory_is_never_worse),
        cmocka_unit_test(sizes_are_those_that_contexts_reserve),
        cmocka_unit_test(slots_are_those_that_streams_reserve),
        cmocka_unit_test(two_contexts_share_the_budget),
        cmocka_unit_test(a_device_may_read_maps),
        cmocka_unit_test(refusals),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_shape_has_the_plan_of_its_files),
        cmocka_unit_test(all_shapes_have_plans),
        cmocka_unit_test(hit_rates_are_those_of_a_cache),
        cmocka_unit_test(rates_follow_from_the_machine),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
