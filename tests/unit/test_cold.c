/* tests/unit/test_cold.c -- experts that a device lacks and the processor computes.
 *
 * On the emulated GPU.  Logits of a few tokens agree with those of all experts on the device as far as the
 * precisions promise, and a small mistake in what the processor adds would show; they do not depend on threads or on
 * where the host has its experts; what the device has in its slots are the bytes of the file.  It learns: a token
 * that comes again and again finds all its experts there, and then gives the same bytes.  Longer batches are
 * copied for, as without the processor.
 *
 * The models are folders on the command line. */
#include "base/file.h"
#include "base/rng.h"
#include "base/size.h"
#include "dev/gpu/device.h"
#include "vram.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N_STEPS = 3, MAX_PAIRS = 256 };
static const int few_steps[N_STEPS] = {1, 3, 1};

static char **dirs;
static int n_dirs;

static mox_context_opts cold_opts(const mox_model *m, int64_t n_device, int64_t n_host)
{
    const mox_device_sizes s = sizes_of(m);
    mox_context_opts o = base_opts();
    o.device_bytes = mox_device_total(&s, mox_max_i64(n_device, s.least_slots));
    o.expert_bytes = n_host * mox_model_expert_slot_bytes(m);
    o.cpu_experts = true;
    o.n_threads = 2;
    return o;
}

static mox_status try_steps(mox_context *c, mox_seq *s, float *out, const mox_step_opts *opts, mox_err *err)
{
    const int64_t V = c->model->dims.n_vocab;
    int32_t tokens[4]; /* what comes again finds some of its experts, beside others that do not */
    for (int i = 0, at = 0; i < N_STEPS; at += few_steps[i++]) {
        for (int t = 0; t < few_steps[i]; t++) tokens[t] = (at + t) % 2 > 0 ? 11 : 48 + 37 * (at + t);
        MOX_TRY(mox_step(c, &(mox_segment){.seq = s, .tokens = tokens, .n = few_steps[i], .want = MOX_WANT_LAST}, 1, opts, err));
        memcpy(out + i * V, mox_logits_row(c, 0), (size_t)V * sizeof *out);
    }
    return MOX_OK;
}

static float *answers_with(const mox_model *m, const mox_context_opts *o)
{
    mox_context *c = new_context(m, o);
    float *out = answers_of(c, try_steps, N_STEPS);
    mox_context_destroy(&c);
    return out;
}

static float *resident_answers(const mox_model *m, bool exact)
{
    mox_context_opts o = base_opts();
    o.exact = exact;
    return answers_with(m, &o);
}

/* The largest difference, in parts of the largest number. */
static double difference(const mox_model *m, const float *got, const float *want)
{
    double worst = 0.0, most = 0.0;
    for (int64_t i = 0; i < N_STEPS * m->dims.n_vocab; i++) {
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
        most = fmax(most, fabs((double)want[i]));
        if (!isfinite(got[i])) return INFINITY;
    }
    return worst / most;
}

static double log_sum(const float *x, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += exp((double)x[i]);
    return log(sum);
}

/* KL(want || got), the mean of the steps. */
static double divergence(const mox_model *m, const float *got, const float *want)
{
    const int64_t V = m->dims.n_vocab;
    double sum = 0.0;
    for (int64_t i = 0; i < N_STEPS; i++, got += V, want += V) {
        const double p0 = log_sum(want, V), q0 = log_sum(got, V);
        for (int64_t v = 0; v < V; v++) sum += exp((double)want[v] - p0) * ((double)want[v] - p0 - ((double)got[v] - q0));
    }
    return sum / N_STEPS;
}

/* ---- what comes out ---- */

/* What exact contexts promise; and a hundredth of what GPUs do by default, so that a percent would show. */
static const double most_exact = 5e-5, most_kl = 1e-6;

static mox_status (*real_compute)(mox_expert_source *s, const mox_cold_args *a, mox_err *err);

static mox_status one_percent_less(mox_expert_source *s, const mox_cold_args *a, mox_err *err)
{
    const mox_expert_tier *t = (const mox_expert_tier *)s;
    MOX_TRY(real_compute(s, a, err));
    for (int64_t i = 0; i < a->n * t->model->dims.dim; i++) a->sum[i] *= 0.99f;
    return MOX_OK;
}

static mox_status without_the_last_token(mox_expert_source *s, const mox_cold_args *a, mox_err *err)
{
    const int64_t dim = ((const mox_expert_tier *)s)->model->dims.dim;
    MOX_TRY(real_compute(s, a, err));
    memset(a->sum + (a->n - 1) * dim, 0, (size_t)dim * sizeof *a->sum);
    return MOX_OK;
}

static int64_t n_pads;

/* What the device has computed: each token's own pairs, and then these again, without weight. */
static mox_status pads_are_own(mox_expert_source *s, const mox_cold_args *a, mox_err *err)
{
    const mox_dev_gpu *g = (const mox_dev_gpu *)((const mox_expert_tier *)s)->dev;
    int64_t n_hot[MOX_DEV_TOGETHER] = {0}, most = 0;
    assert_true(a->n <= MOX_DEV_TOGETHER);
    for (int64_t i = 0; i < a->n * a->k; i++) n_hot[i / a->k] += a->ids[i] < 0;
    for (int64_t t = 0; t < a->n; t++) most = mox_max_i64(most, n_hot[t]);
    for (int64_t t = 0; t < a->n; t++) {
        const int32_t *ids = g->ids + t * most;
        for (int64_t i = n_hot[t]; i < most; i++) {
            assert_true(g->cold.hot_w[t * most + i] == 0.0f);
            if (n_hot[t] == 0) continue; /* it has none there */
            int64_t own = 0;
            while (own < n_hot[t] && ids[own] != ids[i]) own++;
            assert_true(own < n_hot[t]);
            n_pads++;
        }
    }
    return real_compute(s, a, err);
}

static void check_counts(mox_context *c)
{
    const mox_model *m = c->model;
    const int64_t n_keys = m->dims.n_layers * m->n_experts;
    mox_expert_stats s;
    uint32_t *heat = calloc((size_t)n_keys, sizeof *heat);
    int64_t asked = 0;
    assert_non_null(heat);
    mox_context_get_heat(c, heat);
    for (int64_t i = 0; i < n_keys; i++) asked += heat[i];
    free(heat);
    mox_context_get_expert_stats(c, &s);
    assert_int_equal(s.device_hits + s.device_misses + s.device_cold, asked);
    assert_int_equal(s.hits + s.misses, s.device_cold + s.device_misses);
    assert_int_equal(s.device_prefetched, 0);
    assert_true(s.device_cold > 0 && s.device_misses <= s.device_cold / 2); /* a third of what is missing at most */
    if (s.n_slots < m->report.n_layers_moe * m->n_experts) assert_int_equal(s.device_misses, 0);
    const int64_t most = s.device_misses + N_STEPS * m->report.n_layers_moe;
    assert_true(s.bytes_copied > 0 && s.bytes_copied <= most * s.device_slot_bytes);
}

static void check_agreement(const mox_model *m, const mox_context_opts *o, const float *want, bool with_plants)
{
    const double limit = o->exact ? most_exact : most_kl;
    static mox_status (*const computes[])(mox_expert_source *s, const mox_cold_args *a, mox_err *err) = {pads_are_own, one_percent_less,
                                                                                                         without_the_last_token};
    for (int i = 0; i < (with_plants ? 3 : 1); i++) {
        mox_context *c = new_context(m, o);
        for (int k = 0; k < c->n_sections; k++) {
            mox_expert_tier *t = &c->sections[k].tier;
            assert_non_null(t->model);
            real_compute = t->source.compute;
            t->source.compute = computes[i];
        }
        float *got = answers_of(c, try_steps, N_STEPS);
        const double d = o->exact ? difference(m, got, want) : divergence(m, got, want);
        print_message("%s: %s %.1e%s\n", m->config.path, o->exact ? "exact, difference" : "KL", d, i > 0 ? ", planted" : "");
        if (i > 0) assert_false(d <= limit);
        else assert_true(d >= 0.0 && d <= limit);
        check_counts(c);
        for (int k = 0; k < c->n_sections; k++) assert_true(c->sections[k].tier.n_cold > 0);
        mox_context_destroy(&c);
        free(got);
    }
}

static void agrees_with_all_on_the_device(void **state)
{
    (void)state;
    for (int i = 0; i < n_dirs; i++) {
        mox_model *m = open_model(dirs[i], true), *mapped = open_model(dirs[i], false);
        const int64_t all = sizes_of(m).n_experts;
        for (int exact = 0; exact < 2; exact++) {
            mox_context_opts o = cold_opts(m, exact ? all / 2 : 1, exact ? all : mox_max_i64(all / 4, 1));
            float *want = resident_answers(mapped, exact);
            o.exact = exact;
            check_agreement(m, &o, want, i == 0);
            free(want);
        }
        mox_model_close(&m);
        mox_model_close(&mapped);
    }
    assert_true(n_pads > 0);
}

/* Two devices have the help of one processor. */
static void agrees_on_two_devices(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], true), *mapped = open_model(dirs[0], false);
    mox_context_opts o = cold_opts(m, 1, sizes_of(m).n_experts);
    float *want = resident_answers(mapped, false);
    o.device = "emu:0,1";
    o.device_bytes = least_budget(m, o.device);
    check_agreement(m, &o, want, true);
    free(want);
    mox_model_close(&m);
    mox_model_close(&mapped);
}

/* Not on threads; and where copies cannot run beside the processor, not on where the host has its experts. */
static void bytes_depend_on_what_was_asked_for_alone(void **state)
{
    (void)state;
    for (int i = 0; i < n_dirs; i += 2) {
        mox_model *m = open_model(dirs[i], true), *mapped = open_model(dirs[i], false);
        const int64_t all = sizes_of(m).n_experts;
        mox_context_opts o[2][2] = {{cold_opts(m, all / 3, all), cold_opts(m, all / 3, all)}, {cold_opts(m, all / 3, 2), cold_opts(m, all / 3, 0)}};
        for (int k = 0; k < 2; k++) {
            o[k][1].n_threads = 1;
            float *a = answers_with(m, &o[k][0]), *b = answers_with(k == 0 ? m : mapped, &o[k][1]);
            assert_memory_equal(a, b, (size_t)(N_STEPS * m->dims.n_vocab) * sizeof *a);
            free(a);
            free(b);
        }
        mox_model_close(&m);
        mox_model_close(&mapped);
    }
}

static int64_t cold_of(const mox_context *c)
{
    mox_expert_stats s;
    mox_context_get_expert_stats(c, &s);
    return s.device_cold;
}

static void take_token(mox_context *c, mox_seq *s)
{
    const int32_t token = 17;
    mox_err err;
    mox_seq_reset(s);
    ok(mox_step(c, &(mox_segment){.seq = s, .tokens = &token, .n = 1, .want = MOX_WANT_LAST}, 1, NULL, &err), &err);
}

/* With every step a third of what is missing comes, but at least one in each layer, until all is there. */
static void the_device_learns(void **state)
{
    (void)state;
    for (int i = 0; i < n_dirs; i++) {
        mox_model *m = open_model(dirs[i], true), *mapped = open_model(dirs[i], false);
        const mox_context_opts o = cold_opts(m, sizes_of(m).n_experts, sizes_of(m).n_experts), resident = base_opts();
        mox_context *contexts[2] = {new_context(m, &o), new_context(mapped, &resident)};
        mox_seq *s[2];
        mox_err err;
        for (int k = 0; k < 2; k++) ok(mox_seq_create(&s[k], contexts[k], &err), &err);
        for (int64_t missing = m->report.n_experts_active; missing > 0; missing -= mox_max_i64(missing / 3, 1)) {
            const int64_t before = cold_of(contexts[0]);
            take_token(contexts[0], s[0]);
            assert_int_equal(cold_of(contexts[0]) - before, (missing - missing / 3) * m->report.n_layers_moe);
        }
        const int64_t before = cold_of(contexts[0]);
        for (int k = 0; k < 2; k++) take_token(contexts[k], s[k]);
        assert_int_equal(cold_of(contexts[0]), before);
        assert_memory_equal(mox_logits_row(contexts[0], 0), mox_logits_row(contexts[1], 0), (size_t)m->dims.n_vocab * sizeof(float));
        for (int k = 0; k < 2; k++) mox_context_destroy(&contexts[k]);
        mox_model_close(&m);
        mox_model_close(&mapped);
    }
}

static void longer_batches_are_copied_for(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], true), *mapped = open_model(dirs[0], false);
    const mox_context_opts o = cold_opts(m, 2, 3), resident = base_opts();
    mox_context *contexts[2] = {new_context(m, &o), new_context(mapped, &resident)};
    mox_expert_stats stats;
    int32_t tokens[5];
    for (int i = 0; i < 5; i++) tokens[i] = 7 * i + 3;
    for (int k = 0; k < 2; k++) {
        mox_seq *s;
        mox_err err;
        ok(mox_seq_create(&s, contexts[k], &err), &err);
        ok(mox_step(contexts[k], &(mox_segment){.seq = s, .tokens = tokens, .n = 5, .want = MOX_WANT_LAST}, 1, NULL, &err), &err);
    }
    mox_context_get_expert_stats(contexts[0], &stats);
    assert_true(stats.device_misses > 0 && stats.device_cold == 0);
    assert_memory_equal(mox_logits_row(contexts[0], 0), mox_logits_row(contexts[1], 0), (size_t)m->dims.n_vocab * sizeof(float));
    for (int k = 0; k < 2; k++) mox_context_destroy(&contexts[k]);
    mox_model_close(&m);
    mox_model_close(&mapped);
}

/* ---- a tier alone ---- */

/* A random batch of a layer; returns how many of its experts were there. */
static int64_t check_batch(mox_expert_tier *t, const mox_model *mapped, int32_t layer, mox_rng *rng)
{
    const int64_t k = mapped->report.n_experts_active, dim = mapped->dims.dim, n = 1 + (int64_t)(mox_rng_u64(rng) % MOX_DEV_TOGETHER);
    int32_t ids[MAX_PAIRS], pairs[MAX_PAIRS];
    bool there[MAX_PAIRS];
    mox_expert out[MAX_PAIRS];
    mox_err err;
    int64_t n_ids = 0, n_there = 0, n_out;
    assert_true(n * k <= MAX_PAIRS);
    for (int32_t i = 0; i < mapped->n_experts && n_ids < n * k; i++)
        if (mox_rng_u64(rng) % 2 > 0) ids[n_ids++] = i;
    ok(t->source.divide(&t->source, layer, ids, n_ids, there, &err), &err);
    ok(t->source.all(&t->source, out, &n_out, NULL, &err), &err);
    for (int64_t i = 0; i < n_ids; i++) n_there += there[i];
    assert_int_equal(n_out, n_there);
    for (int64_t i = 0; i < n_out; i++) check_expert(t->dev, &out[i], mapped, layer);
    t->source.release(&t->source);
    if (n_there == n_ids) return n_there;
    float *x = calloc((size_t)(n * dim), sizeof *x), *sum = calloc((size_t)(n * dim), sizeof *sum), w[MAX_PAIRS];
    assert_true(x && sum);
    for (int64_t i = 0; i < n * k; i++) {
        pairs[i] = i < n_ids && !there[i] ? ids[i] : -1;
        w[i] = 1.0f;
    }
    ok(t->source.compute(&t->source, &(mox_cold_args){.layer = layer, .ids = pairs, .x = x, .w = w, .sum = sum, .n = n, .k = k}, &err), &err);
    free(x);
    free(sum);
    return n_there;
}

static void slots_hold_the_bytes_of_the_file(void **state)
{
    (void)state;
    for (int i = 0; i < n_dirs; i++) {
        mox_model *mapped = open_model(dirs[i], false), *m = open_model(dirs[i], true);
        mox_context_opts o = base_opts();
        mox_context *c = new_context(mapped, &o); /* for its device, which has all weights that stay */
        mox_err err;
        mox_rng rng;
        int64_t n_there = 0;
        mox_rng_init(&rng, 5);
        for (int64_t n_host = 1; n_host <= sizes_of(m).n_experts; n_host *= 8) {
            mox_expert_store below;
            mox_expert_host host;
            mox_expert_tier t;
            o.expert_bytes = n_host * mox_model_expert_slot_bytes(m);
            o.n_threads = 1;
            ok(mox_expert_store_init(&below, m, &o, &err), &err);
            ok(mox_expert_host_init(&host, m, &o, MOX_PRECISION_DEFAULT, &err), &err);
            ok(mox_expert_tier_init(&t, m, c->sections[0].dev, &c->sections[0].residency, &below, &host, m->n_experts / 2 + 1, &o, &err), &err);
            for (int k = 0; k < 24; k++) {
                int32_t layer = (int32_t)(mox_rng_u64(&rng) % (uint64_t)m->dims.n_layers);
                while (!m->layers[layer].experts) layer = (layer + 1) % (int32_t)m->dims.n_layers;
                n_there += check_batch(&t, mapped, layer, &rng);
            }
            mox_expert_tier_deinit(&t);
            mox_expert_host_deinit(&host);
            mox_expert_store_deinit(&below);
        }
        assert_true(n_there > 0);
        mox_context_destroy(&c);
        mox_model_close(&m);
        mox_model_close(&mapped);
    }
}

/* ---- failures ---- */

static void allocations_fail(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], true);
    const mox_context_opts o = cold_opts(m, 2, 3);
    check_allocations_fail(m, &o, 40);
    mox_model_close(&m);
}

static void steps_allocate_nothing(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], true);
    const mox_context_opts o = cold_opts(m, 2, 3);
    check_steps_allocate_nothing(m, &o, try_steps, N_STEPS);
    mox_model_close(&m);
}

/* Reads that fail, and a cancelled step, in the middle of a layer: afterwards all is as it should be. */
static void steps_fail_and_go_on(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], true), *mapped = open_model(dirs[0], false);
    const mox_context_opts o = cold_opts(m, 4, 3);
    float *want = resident_answers(mapped, false), *got = new_answers(m, N_STEPS);
    mox_context *c = new_context(m, &o);
    mox_seq *s;
    mox_err err;
    int n_cancelled = 0;
    ok(mox_seq_create(&s, c, &err), &err);
    for (long at = 1; at < 20; at += 6) {
        nth f = {.at = at};
        countdown k = {.left = at};
        mox_seq_reset(s);
        mox_io_set_hook(fail_from_nth, &f);
        mox_status status = try_steps(c, s, got, NULL, &err);
        mox_io_set_hook(NULL, NULL);
        assert_int_equal(status, MOX_E_IO);
        mox_seq_reset(s);
        mox_io_set_hook(cancel_at_nth, &k);
        status = try_steps(c, s, got, &(mox_step_opts){.cancel = &k.cancel}, &err);
        mox_io_set_hook(NULL, NULL);
        assert_true(status == MOX_OK || status == MOX_E_CANCELLED);
        n_cancelled += status == MOX_E_CANCELLED;
        mox_seq_reset(s);
        ok(try_steps(c, s, got, NULL, &err), &err);
        assert_true(divergence(m, got, want) <= most_kl);
    }
    assert_true(n_cancelled > 0);
    mox_context_destroy(&c);
    free(got);
    free(want);
    mox_model_close(&m);
    mox_model_close(&mapped);
}

static void refused_without_a_budget(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], false);
    static const char *const devices[] = {NULL, "cpu", "emu", "metal"};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        mox_context_opts o = {.device = devices[i], .n_ctx = 64, .cpu_experts = true};
        mox_context *c;
        mox_err err;
        assert_int_equal(mox_context_create(&c, m, &o, &err), MOX_E_ARG);
        assert_null(c);
        assert_non_null(strstr(err.msg, "cpu_experts"));
    }
    mox_model_close(&m);
}

static void plans_count_it(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], false);
    const mox_device_sizes s = sizes_of(m);
    mox_context_opts context = base_opts();
    mox_plan with, without;
    mox_err err;
    mox_plan_opts o = {.context = &context, .ram_bytes = (int64_t)1 << 30, .vram_bytes = mox_device_total(&s, s.least_slots)};
    ok(mox_plan_make(&without, m, &o, &err), &err);
    context.cpu_experts = true;
    ok(mox_plan_make(&with, m, &o, &err), &err);
    assert_true(with.device.cpu_experts && !without.device.cpu_experts);
    assert_int_equal(with.other_bytes - without.other_bytes, mox_expert_host_bytes(m));
    o.vram_bytes = mox_device_total(&s, -1);
    ok(mox_plan_make(&with, m, &o, &err), &err);
    assert_false(with.device.cpu_experts); /* all of them stay */
    mox_model_close(&m);
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    dirs = argv + 1;
    n_dirs = argc - 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_all_on_the_device),
        cmocka_unit_test(agrees_on_two_devices),
        cmocka_unit_test(bytes_depend_on_what_was_asked_for_alone),
        cmocka_unit_test(the_device_learns),
        cmocka_unit_test(longer_batches_are_copied_for),
        cmocka_unit_test(slots_hold_the_bytes_of_the_file),
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(steps_fail_and_go_on),
        cmocka_unit_test(refused_without_a_budget),
        cmocka_unit_test(plans_count_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
