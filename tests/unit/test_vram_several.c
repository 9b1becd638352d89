/* tests/unit/test_vram_several.c -- models that are larger than the memory of several devices together.
 *
 * On emulated GPUs.  Each has some of the layers, and slots for their experts alone; each keeps the budget, and uses
 * what it leaves; logits are the same bytes as on one device that has all experts.  Plans say what comes to be.  What goes wrong
 * on the second device is told, and nothing is left behind.
 *
 * The models are folders on the command line; experts of the first one can come one by one, and of the last one all layers have
 * some. */
#include "base/alloc.h"
#include "base/file.h"
#include "base/size.h"
#include "dev/gpu/device.h"
#include "vram.h"

#include <string.h>

enum { N_STEPS = 2, MOST = 4 };
/* The emulator is slow. */
static const int n_tokens[N_STEPS] = {MOST, 1};
static const char *const devices[] = {"emu", "emu:0,1", "emu:0,1,2"};

static char **dirs;
static int n_dirs;

static mox_status try_steps(mox_context *c, mox_seq *s, float *out, const mox_step_opts *opts, mox_err *err)
{
    const int64_t V = c->model->dims.n_vocab;
    int32_t tokens[MOST];
    for (int i = 0; i < N_STEPS; i++) {
        for (int t = 0; t < n_tokens[i]; t++) tokens[t] = ((i * MOST + t) * 37 + 11) % 200;
        MOX_TRY(mox_step(c, &(mox_segment){.seq = s, .tokens = tokens, .n = n_tokens[i], .want = MOX_WANT_LAST}, 1, opts, err));
        memcpy(out + i * V, mox_logits_row(c, 0), (size_t)V * sizeof *out);
    }
    return MOX_OK;
}

static float *resident_answers(const char *dir)
{
    mox_model *m = open_model(dir, false);
    const mox_context_opts o = base_opts();
    mox_context *c = new_context(m, &o);
    float *out = answers_of(c, try_steps, N_STEPS);
    assert_true(out[0] != out[1]);
    mox_context_destroy(&c);
    mox_model_close(&m);
    return out;
}

static void check_answers(mox_context *c, const float *want)
{
    float *got = answers_of(c, try_steps, N_STEPS);
    assert_memory_equal(got, want, (size_t)(N_STEPS * c->model->dims.n_vocab) * sizeof *got);
    free(got);
}

static void no_warning(void *user, const char *text)
{
    (void)user;
    fail_msg("%s", text);
}

/* With a budget of each device that is the smallest, and so much of what all slots would take more. */
static mox_context_opts several_opts(const mox_model *m, const char *device, double more, int64_t n_host)
{
    const mox_device_sizes s = sizes_of(m);
    mox_context_opts o = base_opts();
    o.device = device;
    o.device_bytes = least_budget(m, device) + (int64_t)(more * (double)(s.n_experts * s.slot_bytes));
    o.expert_bytes = n_host * mox_model_expert_slot_bytes(m);
    o.warn = no_warning;
    return o;
}

/* ---- the same bytes, within each budget ---- */

static int64_t experts_of(const mox_model *m, const mox_section *p)
{
    int64_t n = 0;
    for (int32_t i = p->first; i < p->end; i++) n += m->layers[i].experts ? m->n_experts : 0;
    return n;
}

/* In the slots of a device there are experts of its own layers, with the bytes of their files; the budget is kept, and
 * what it leaves is less than a slot, but where all experts have one. */
static void check_section(const mox_context *c, int i, int64_t budget, const mox_model *mapped)
{
    const mox_model *m = c->model;
    const mox_section *p = &c->sections[i];
    const mox_expert_tier *t = &p->tier;
    const int64_t E = m->n_experts, n_experts = experts_of(m, p), used = used_bytes(c, i);
    int64_t n_there = 0;
    assert_true(used <= budget);
    assert_int_equal(t->model != NULL, n_experts > 0);
    if (n_experts == 0) return;
    assert_ptr_equal(t->dev, p->dev);
    assert_true(t->cache.n_slots <= n_experts);
    if (t->cache.n_slots < n_experts) assert_true(used + t->slot_bytes + 8 * 4096 > budget);
    for (int64_t key = 0; key < m->dims.n_layers * E; key++) {
        const int32_t slot = mox_expert_cache_find(&t->cache, key), layer = (int32_t)(key / E);
        if (slot < 0) continue;
        n_there++;
        assert_true(layer >= p->first && layer < p->end);
        mox_expert *views = malloc((size_t)E * sizeof *views);
        assert_non_null(views);
        mox_expert_tier_views(t, layer, views); /* as in the first slot */
        mox_expert x = views[key % E];
        mox_mat *mats[] = {&x.gate, &x.up, &x.down};
        for (int k = 0; k < 3; k++) {
            mats[k]->w = (const uint8_t *)mats[k]->w + slot * t->slot_bytes;
            if (!mats[k]->scales || m->layers[layer].experts[key % E].gate.layout.kind != MOX_MAT_AFFINE) continue;
            mats[k]->scales = (const uint8_t *)mats[k]->scales + slot * t->slot_bytes;
            mats[k]->biases = (const uint8_t *)mats[k]->biases + slot * t->slot_bytes;
        }
        if (n_there % 5 == 1) check_expert(p->dev, &x, mapped, layer);
        free(views);
    }
    assert_true(n_there > 0);
}

static void check_counts(mox_context *c)
{
    const mox_model *m = c->model;
    const int64_t n_keys = m->dims.n_layers * m->n_experts;
    mox_expert_stats s;
    int64_t asked = 0, n_slots = 0, n_misses = 0;
    uint32_t *heat = calloc((size_t)n_keys, sizeof *heat);
    assert_non_null(heat);
    mox_context_get_heat(c, heat);
    mox_context_get_expert_stats(c, &s);
    for (int64_t i = 0; i < n_keys; i++) asked += heat[i];
    free(heat);
    for (int i = 0; i < c->n_sections; i++) {
        if (!c->sections[i].tier.model) continue;
        assert_true(c->sections[i].tier.cache.misses > 0);
        n_slots += c->sections[i].tier.cache.n_slots;
        n_misses += c->sections[i].tier.cache.misses;
    }
    assert_int_equal(s.device_hits + s.device_misses, asked);
    assert_int_equal(s.n_device_slots, n_slots);
    assert_int_equal(s.device_misses, n_misses);
    if (s.n_slots > 0) assert_int_equal(s.hits + s.misses, s.device_misses + s.device_prefetched);
}

/* All that a device may lack is in pinned memory, or in memory that is used again and again, or mapped, and nothing is
 * pinned.  Of models but the first each number of devices is for one of these. */
static void same_bytes_within_each_budget(void **state)
{
    (void)state;
    enum { WAYS = 3 };
    for (int i = 0; i < n_dirs; i++) {
        mox_model *m = open_model(dirs[i], true), *mapped = open_model(dirs[i], false);
        float *want = resident_answers(dirs[i]);
        const int64_t all = sizes_of(m).n_experts, n_host[WAYS] = {all, all / 2, 0};
        for (int n = 2; n <= 3; n++)
            for (int way = 0; way < WAYS; way++) {
                if (i > 0 && way != (i + n) % WAYS) continue;
                const mox_context_opts o = several_opts(m, devices[n - 1], way == 0 ? 0.0 : 0.1, n_host[way]);
                mox_context *c = new_context(n_host[way] > 0 ? m : mapped, &o);
                assert_int_equal(c->n_sections, n);
                check_answers(c, want);
                for (int k = 0; k < n; k++) check_section(c, k, o.device_bytes, mapped);
                check_counts(c);
                mox_context_destroy(&c);
            }
        free(want);
        mox_model_close(&m);
        mox_model_close(&mapped);
    }
}

static void all_stay_when_they_fit(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], false);
    float *want = resident_answers(dirs[0]);
    const mox_context_opts o = several_opts(m, devices[1], 1.0, 0);
    mox_context *c = new_context(m, &o);
    check_answers(c, want);
    for (int i = 0; i < 2; i++) assert_true(!c->sections[i].tier.model && used_bytes(c, i) <= o.device_bytes);
    mox_context_destroy(&c);
    free(want);
    mox_model_close(&m);
}

/* ---- guesses ---- */

/* As if its experts had all gone since. */
static void forget_all(mox_expert_tier *t)
{
    for (int64_t key = 0; key < t->cache.n_keys; key++)
        if (mox_expert_cache_find(&t->cache, key) >= 0) mox_expert_cache_drop(&t->cache, key);
    t->foresight = (mox_foresight){.reads = true, .share = 1.0};
}

static void take_token(mox_context *c)
{
    const int32_t token = 17;
    mox_seq *s;
    mox_err err;
    ok(mox_seq_create(&s, c, &err), &err);
    ok(mox_step(c, &(mox_segment){.seq = s, .tokens = &token, .n = 1, .want = MOX_WANT_LAST}, 1, NULL, &err), &err);
    mox_seq_destroy(&s);
}

/* All layers are guessed but the first one of all, those where a device begins by the device before it.  The host has all experts
 * from the second round on. */
static void guesses_go_to_the_device_of_their_layer(void **state)
{
    (void)state;
    static const char *const many[] = {"emu:0,1,2", "emu:0,1,2,3,4,5"};
    const char *dir = dirs[n_dirs - 1];
    mox_model *m = open_model(dir, true), *mapped = open_model(dir, false);
    float *want = resident_answers(dir);
    for (int n = 0; n < 2; n++) {
        mox_context_opts o = several_opts(m, many[n], 0.0, sizes_of(m).n_experts);
        mox_context *c = new_context(m, &o);
        check_answers(c, want);
        for (int i = 0; i < c->n_sections; i++) forget_all(&c->sections[i].tier);
        check_answers(c, want);
        for (int i = 0; i < c->n_sections; i++) {
            const mox_section *p = &c->sections[i];
            assert_int_equal(p->tier.n_prefetched > 0, p->end > 1);
            assert_int_equal(p->tier.foresight.right > 0, p->end > 1);
            assert_int_equal(p->tier.guess_layer, p->end > 1 ? p->end - 1 : 0);
            check_section(c, i, o.device_bytes, mapped);
        }
        /* whether to guess is the tier's that has the layer: here it has learnt that it does not pay */
        for (int i = 0; i < c->n_sections; i++) c->sections[i].tier.foresight = (mox_foresight){.reads = i % 2 == 0, .guessed = 1000};
        for (int i = 0; i < c->n_sections; i++) c->sections[i].tier.guess_layer = -1;
        take_token(c);
        for (int i = 0; i < c->n_sections; i++) {
            const mox_section *p = &c->sections[i];
            assert_int_equal(p->tier.guess_layer, i % 2 == 0 && p->end > 1 ? p->end - 1 : -1);
        }
        mox_context_destroy(&c);
    }
    free(want);
    mox_model_close(&m);
    mox_model_close(&mapped);
}

/* ---- plans ---- */

static void plans_are_what_comes_to_be(void **state)
{
    (void)state;
    for (int i = 0; i < n_dirs; i++) {
        mox_model *m = open_model(dirs[i], false);
        for (int n = 2; n <= 3; n++) {
            mox_context_opts context = base_opts();
            mox_plan p, one;
            mox_err err;
            mox_plan_opts o = {.context = &context, .ram_bytes = (int64_t)1 << 30, .vram_bytes = (int64_t)1 << 30};
            ok(mox_plan_make(&one, m, &o, &err), &err);
            context.device = devices[n - 1];
            ok(mox_plan_make(&p, m, &o, &err), &err);
            assert_true(p.fits && p.device.n == n && p.device.n_slots == 0);
            assert_true(p.device.least_budget < one.device.least_budget);
            const int64_t least = p.device.least_budget, all = p.device.total;
            for (int64_t vram = least; vram < all; vram += (all - least) / 3 + 1) {
                o.vram_bytes = vram;
                ok(mox_plan_make(&p, m, &o, &err), &err);
                assert_true(p.fits && p.device.total <= vram && p.total <= o.ram_bytes);
                mox_context_opts made = context;
                made.n_batch = (int32_t)p.n_batch;
                made.device_bytes = p.device.shares[0];
                made.expert_bytes = p.n_slots * p.slot_bytes;
                mox_context *c = new_context(m, &made);
                assert_int_equal(c->n_sections, n);
                for (int k = 0; k < n; k++) {
                    const mox_plan_device *d = &p.device.each[k];
                    const mox_section *s = &c->sections[k];
                    assert_int_equal(d->first_layer, s->first);
                    assert_int_equal(d->n_layers, s->end - s->first);
                    assert_int_equal(d->n_experts, experts_of(m, s));
                    assert_int_equal(d->n_slots, s->tier.model ? s->tier.cache.n_slots : 0);
                    assert_true(used_bytes(c, k) <= d->total && d->total <= vram);
                    /* layers that are alike are divided evenly, where that fits */
                    if (i == n_dirs - 1 && vram > least) assert_int_equal(d->n_layers, m->dims.n_layers / n);
                }
                mox_context_destroy(&c);
            }
            o.vram_bytes = least - 1;
            ok(mox_plan_make(&p, m, &o, &err), &err);
            assert_true(!p.fits && p.device.least_budget == least);
        }
        mox_model_close(&m);
    }
}

/* Of two contexts on the same devices each has a share of every budget. */
static void two_contexts_share_each_budget(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[n_dirs - 1], false);
    mox_context_opts contexts[2] = {base_opts(), base_opts()};
    mox_plan_opts o = {.context = &contexts[0], .second = &contexts[1], .ram_bytes = (int64_t)1 << 30, .vram_bytes = 1};
    mox_plan p;
    mox_err err;
    contexts[0].device = contexts[1].device = devices[1];
    contexts[1].n_ctx = 1024;
    ok(mox_plan_make(&p, m, &o, &err), &err);
    assert_false(p.fits);
    o.vram_bytes = p.device.least_budget + 5 * sizes_of(m).slot_bytes;
    ok(mox_plan_make(&p, m, &o, &err), &err);
    assert_true(p.fits);
    int64_t used[2] = {0, 0};
    mox_context *c[2];
    for (int i = 0; i < 2; i++) {
        contexts[i].device_bytes = p.device.shares[i];
        contexts[i].n_batch = (int32_t)p.n_batch;
        contexts[i].expert_bytes = p.n_slots * p.slot_bytes;
        c[i] = new_context(m, &contexts[i]);
        for (int k = 0; k < 2; k++) used[k] += used_bytes(c[i], k);
    }
    for (int k = 0; k < 2; k++) assert_true(used[k] <= p.device.each[k].total && p.device.each[k].total <= o.vram_bytes);
    for (int i = 0; i < 2; i++) mox_context_destroy(&c[i]);
    o.vram_bytes = p.device.least_budget - 1;
    ok(mox_plan_make(&p, m, &o, &err), &err);
    assert_false(p.fits);
    mox_model_close(&m);
}

/* ---- failures ---- */

static void refusals(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], true);
    mox_context_opts o = several_opts(m, devices[1], 0.0, 3);
    mox_context *c;
    mox_err err;
    o.device_bytes--;
    assert_int_equal(mox_context_create(&c, m, &o, &err), MOX_E_FULL);
    assert_null(c);
    assert_non_null(strstr(err.msg, "too small"));
    assert_non_null(strstr(err.msg, "on each"));
    o.device = "emu:0,1,2,3,4";
    assert_int_equal(mox_context_create(&c, m, &o, &err), MOX_E_ARG);
    assert_non_null(strstr(err.msg, "5 devices for a model of 3 layers"));
    mox_plan p;
    assert_int_equal(mox_plan_make(&p, m, &(mox_plan_opts){.context = &o, .vram_bytes = 1 << 30}, &err), MOX_E_ARG);
    assert_non_null(strstr(err.msg, "5 devices for a model of 3 layers"));
    mox_model_close(&m);
}

static void allocations_fail(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], true);
    const mox_context_opts o = several_opts(m, devices[1], 0.0, 3);
    check_allocations_fail(m, &o, 60);
    mox_model_close(&m);
}

static void steps_allocate_nothing(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], true);
    const mox_context_opts o = several_opts(m, devices[1], 0.0, 3);
    check_steps_allocate_nothing(m, &o, try_steps, N_STEPS);
    mox_model_close(&m);
}

/* For experts of either device: the step says so, and when reads work again all is as it should be. */
static void reads_fail(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], true);
    const mox_context_opts o = several_opts(m, devices[1], 0.0, 1);
    float *want = resident_answers(dirs[0]), *got = new_answers(m, N_STEPS);
    int n_failed[2] = {0, 0}; /* before the second device was asked, and after */
    mox_status status = MOX_E_IO;
    for (long at = 1; status == MOX_E_IO; at += 6) {
        mox_context *c = new_context(m, &o);
        mox_seq *s;
        mox_err err;
        nth f = {.at = at};
        ok(mox_seq_create(&s, c, &err), &err);
        mox_io_set_hook(fail_from_nth, &f);
        status = try_steps(c, s, got, NULL, &err);
        mox_io_set_hook(NULL, NULL);
        if (status != MOX_OK) n_failed[c->sections[1].tier.cache.misses > 0]++;
        mox_seq_reset(s);
        ok(try_steps(c, s, got, NULL, &err), &err);
        assert_memory_equal(got, want, (size_t)(N_STEPS * m->dims.n_vocab) * sizeof *got);
        mox_context_destroy(&c);
    }
    assert_int_equal(status, MOX_OK);
    assert_true(n_failed[0] > 0 && n_failed[1] > 0);
    free(got);
    free(want);
    mox_model_close(&m);
}

/* Every step after it says so, too; nothing is left when the context goes. */
static void a_device_fails(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], true);
    const int64_t live = mox_alloc_live();
    for (int which = 0; which < 2; which++) {
        const mox_context_opts o = several_opts(m, devices[1], 0.0, sizes_of(m).n_experts);
        mox_context *c = new_context(m, &o);
        mox_seq *s;
        mox_err err;
        float *got = new_answers(m, N_STEPS);
        ok(mox_seq_create(&s, c, &err), &err);
        ok(try_steps(c, s, got, NULL, &err), &err);
        const int64_t length = mox_seq_length(s);
        MOX_GPU_LAUNCH(c->sections[which].dev, add, 1, -1, 1, .n = 1); /* a grid that no device has */
        for (int i = 0; i < 2; i++) {
            assert_int_equal(try_steps(c, s, got, NULL, &err), MOX_E_DEVICE);
            assert_non_null(strstr(err.msg, "kernel add"));
            assert_int_equal(mox_seq_length(s), length);
        }
        free(got);
        mox_context_destroy(&c);
        assert_int_equal(mox_alloc_live(), live);
    }
    mox_model_close(&m);
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    dirs = argv + 1;
    n_dirs = argc - 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bytes_within_each_budget),
        cmocka_unit_test(all_stay_when_they_fit),
        cmocka_unit_test(guesses_go_to_the_device_of_their_layer),
        cmocka_unit_test(plans_are_what_comes_to_be),
        cmocka_unit_test(two_contexts_share_each_budget),
        cmocka_unit_test(refusals),
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(reads_fail),
        cmocka_unit_test(a_device_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
