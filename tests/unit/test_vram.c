/* tests/unit/test_vram.c -- models that are larger than the memory of their device.
 *
 * On the emulated GPU, which counts its memory, copies as late as it may and refuses copies from memory
 * that is not pinned.  Whatever the number of slots, on the device and in memory of the host, logits are
 * the same bytes as with all experts on the device; the budget is kept; nothing is copied or read without
 * need.  A tier alone, with fewer slots than a batch has experts, hands out every expert once, with the
 * bytes of its file.
 *
 * The models are folders on the command line; of the first one experts can come one by one. */
#include "base/alloc.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/size.h"
#include "vram.h"

#include <stdio.h>
#include <string.h>

enum { N_STEPS = 4, N_TOKENS = 40, MAX_EXPERTS = 64, MAX_DIRS = 8 };
/* Kernels differ by the number of tokens.  The emulator is slow: all sorts of steps are for the first model, few
 * tokens for those whose few tokens need all their experts at once. */
static const int any_steps[N_STEPS] = {17, 2, 1, 5}, some_steps[N_STEPS] = {17, 1}, few_steps[N_STEPS] = {2, 1}, short_steps[N_STEPS] = {5, 2, 1};
/* Of the first model, where it matters that steps go on after a failure. */
static bool in_short;

static char **dirs;
static int n_dirs;
static char first_config[4096];

static mox_status try_steps(mox_context *c, mox_seq *s, float *out, const mox_step_opts *opts, mox_err *err)
{
    const int64_t V = c->model->dims.n_vocab;
    const bool is_first = strcmp(c->model->config.path, first_config) == 0;
    const int *steps = mox_expert_tier_least(c->model) > 1 ? few_steps : !is_first ? some_steps : in_short ? short_steps : any_steps;
    int32_t tokens[N_TOKENS];
    for (int i = 0, at = 0; i < N_STEPS && steps[i] > 0; at += steps[i++]) {
        for (int t = 0; t < steps[i]; t++) tokens[t] = ((at + t) * 37 + 11) % 200;
        MOX_TRY(mox_step(c, &(mox_segment){.seq = s, .tokens = tokens, .n = steps[i], .want = MOX_WANT_LAST}, 1, opts, err));
        memcpy(out + i * V, mox_logits_row(c, 0), (size_t)V * sizeof *out);
    }
    return MOX_OK;
}

static void take_steps(mox_context *c, float *out)
{
    mox_seq *s;
    mox_err err;
    ok(mox_seq_create(&s, c, &err), &err);
    ok(try_steps(c, s, out, NULL, &err), &err);
    mox_seq_destroy(&s);
}

static void assert_same(const mox_model *m, const float *a, const float *b)
{
    assert_memory_equal(a, b, (size_t)(N_STEPS * m->dims.n_vocab) * sizeof *a);
}

/* Of a model with all experts on the device: logits [N_STEPS][vocabulary], and work. */
typedef struct answers {
    float *logits;
    mox_work work;
} answers;

/* Made once for each model; the caller does not free them. */
static const answers *resident_answers(int dir)
{
    static answers all[MAX_DIRS][2];
    answers *a = &all[dir][in_short];
    assert_true(dir < MAX_DIRS);
    if (a->logits) return a;
    const mox_context_opts o = base_opts();
    mox_model *m = open_model(dirs[dir], false);
    mox_context *c = new_context(m, &o);
    a->logits = new_answers(m, N_STEPS);
    take_steps(c, a->logits);
    assert_true(a->logits[0] != a->logits[1]);
    mox_context_get_work(c, &a->work);
    mox_context_destroy(&c);
    mox_model_close(&m);
    return a;
}

/* ---- the same bytes, within the budget ---- */

/* Slots on the device and in memory of the host; 0 there: experts are mapped. */
static void check_slots(const mox_model *m, int64_t n_device, int64_t n_host, const answers *want)
{
    const mox_device_sizes sizes = sizes_of(m);
    mox_context_opts o = base_opts();
    mox_expert_stats s;
    float *got = new_answers(m, N_STEPS);
    o.device_bytes = mox_device_total(&sizes, n_device);
    o.expert_bytes = n_host * mox_model_expert_slot_bytes(m);
    mox_context *c = new_context(m, &o);
    take_steps(c, got);
    assert_same(m, got, want->logits);
    assert_true(used_bytes(c, 0) <= o.device_bytes);
    mox_work work; /* is the same, wherever experts come from */
    mox_context_get_work(c, &work);
    assert_int_equal(work.weight_bytes, want->work.weight_bytes);
    assert_int_equal(work.macs, want->work.macs);
    mox_context_get_expert_stats(c, &s);
    assert_int_equal(s.n_device_slots, n_device);
    assert_int_equal(s.n_slots, n_host);
    assert_true(s.device_hits > 0 || n_device < sizes.n_experts);
    assert_true(s.device_misses > 0 && s.bytes_copied > 0);
    if (n_device == sizes.n_experts) assert_true(s.device_misses <= sizes.n_experts);
    assert_true(s.bytes_copied <= (s.device_misses + s.device_prefetched) * s.device_slot_bytes);
    if (n_host > 0) assert_int_equal(s.hits + s.misses, s.device_misses + s.device_prefetched); /* what the device lacks */
    if (n_host < sizes.n_experts) assert_int_equal(s.device_prefetched, 0);
    if (n_host == sizes.n_experts) assert_true(s.misses <= sizes.n_experts && s.bytes_read <= m->report.bytes_experts + s.misses * 4096);
    uint32_t *heat = calloc((size_t)(m->dims.n_layers * m->n_experts), sizeof *heat);
    int64_t asked = 0;
    assert_non_null(heat);
    mox_context_get_heat(c, heat);
    for (int64_t i = 0; i < m->dims.n_layers * m->n_experts; i++) asked += heat[i];
    assert_int_equal(asked, s.device_hits + s.device_misses);
    free(heat);
    mox_context_destroy(&c);
    free(got);
}

static void same_bytes_with_any_number_of_slots(void **state)
{
    (void)state;
    for (int i = 0; i < n_dirs; i++) {
        mox_model *mapped = open_model(dirs[i], false), *m = open_model(dirs[i], true);
        const mox_device_sizes s = sizes_of(m);
        const int64_t all = s.n_experts, least = s.least_slots, tenth = mox_max_i64(all / 10, least);
        const answers *want = resident_answers(i);
        assert_true(all > 0 && least > 0);
        check_slots(m, mox_max_i64(all / 2, least), all, want);
        check_slots(m, tenth, mox_max_i64(all / 4, 1), want);
        if (least == 1) check_slots(m, least, 1, want);
        if (i == 0) {
            check_slots(m, all, all, want);
            check_slots(m, tenth, all, want);
            check_slots(m, least, all, want);
            check_slots(mapped, all / 2, 0, want); /* from a file that is mapped: nothing is pinned */
        }
        mox_model_close(&m);
        mox_model_close(&mapped);
    }
}

/* Guesses are copied from the first one on, though nobody knows yet whether that pays.  Of the first model no two layers with
 * experts follow each other, so that there is nothing to guess. */
static void same_bytes_with_guesses(void **state)
{
    (void)state;
    int64_t n_right = 0, n_prefetched = 0;
    for (int i = 1; i < n_dirs; i++) {
        mox_model *m = open_model(dirs[i], true);
        const mox_device_sizes sizes = sizes_of(m);
        float *got = new_answers(m, N_STEPS);
        mox_context_opts o = base_opts();
        mox_expert_stats s;
        o.device_bytes = mox_device_total(&sizes, mox_max_i64(sizes.n_experts / 3, sizes.least_slots));
        o.expert_bytes = sizes.n_experts * mox_model_expert_slot_bytes(m);
        /* Of the last model the host has them in a second round, of others it reads them without being asked. */
        const bool is_last = i == n_dirs - 1;
        uint32_t *heat = calloc((size_t)(m->dims.n_layers * m->n_experts), sizeof *heat);
        assert_non_null(heat);
        for (int64_t k = 0; k < m->dims.n_layers * m->n_experts; k++) heat[k] = m->layers[k / m->n_experts].experts != NULL;
        if (!is_last) o.heat = heat;
        mox_context *c = new_context(m, &o);
        free(heat);
        for (int round = 0; round <= is_last; round++) {
            c->sections[0].tier.foresight = (mox_foresight){.reads = true, .share = 1.0, .guessed = 1000, .right = 1000};
            take_steps(c, got);
            assert_same(m, got, resident_answers(i)->logits);
        }
        mox_context_get_expert_stats(c, &s);
        n_right += s.guessed_right - 1000;
        n_prefetched += s.device_prefetched;
        assert_int_equal(s.hits + s.misses, s.device_misses + s.device_prefetched);
        mox_context_destroy(&c);
        free(got);
        mox_model_close(&m);
    }
    assert_true(n_right > 0 && n_prefetched > 0);
}

/* ---- several sequences at once ---- */

enum { SEQS = 5, ROUNDS = 2 };

/* Tokens of so many sequences, one of each at a time: their logits [ROUNDS][n][vocabulary]. */
static void take_rounds(mox_context *c, int n, float *out)
{
    const int64_t V = c->model->dims.n_vocab;
    mox_seq *seqs[SEQS];
    mox_segment segs[SEQS];
    int32_t tokens[SEQS];
    mox_err err;
    for (int i = 0; i < n; i++) ok(mox_seq_create(&seqs[i], c, &err), &err);
    for (int r = 0; r < ROUNDS; r++) {
        for (int i = 0; i < n; i++) {
            tokens[i] = (r * 53 + i * 37 + 11) % 200;
            segs[i] = (mox_segment){.seq = seqs[i], .tokens = &tokens[i], .n = 1, .want = MOX_WANT_LAST};
        }
        ok(mox_step(c, segs, n, NULL, &err), &err);
        for (int i = 0; i < n; i++) memcpy(out + (r * n + i) * V, mox_logits_row(c, i), (size_t)V * sizeof *out);
    }
    for (int i = 0; i < n; i++) mox_seq_destroy(&seqs[i]);
}

/* The same bytes as with all experts on the device, while they come and go. */
static void sequences_together(void **state)
{
    (void)state;
    mox_model *mapped = open_model(dirs[0], false), *m = open_model(dirs[0], true);
    const size_t bytes = (size_t)(ROUNDS * SEQS * m->dims.n_vocab) * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes);
    mox_context_opts o = base_opts();
    mox_context_sizes s;
    mox_err err;
    mox_expert_stats stats;
    assert_true(want && got);
    o.n_seqs = SEQS;
    mox_context *c = new_context(mapped, &o);
    take_rounds(c, SEQS, want);
    mox_context_destroy(&c);
    ok(mox_context_measure(m, &o, &s, &err), &err);
    const mox_device_sizes *d = &s.come.parts[0].sizes;
    o.device_bytes = mox_device_total(d, mox_max_i64(d->n_experts / 4, d->least_slots));
    o.expert_bytes = d->n_experts / 2 * mox_model_expert_slot_bytes(m);
    c = new_context(m, &o);
    take_rounds(c, SEQS, got);
    mox_context_get_expert_stats(c, &stats);
    assert_true(stats.device_misses > stats.n_device_slots); /* some had to go */
    mox_context_destroy(&c);
    assert_memory_equal(got, want, bytes);
    free(want);
    free(got);
    mox_model_close(&m);
    mox_model_close(&mapped);
}

/* All experts stay when they fit, and nothing is asked of anybody. */
static void all_stay_when_they_fit(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], false);
    const mox_device_sizes s = sizes_of(m);
    mox_context_opts o = base_opts();
    mox_expert_stats stats;
    o.device_bytes = mox_device_total(&s, -1);
    mox_context *c = new_context(m, &o);
    float *got = new_answers(m, N_STEPS);
    take_steps(c, got);
    assert_same(m, got, resident_answers(0)->logits);
    mox_context_get_expert_stats(c, &stats);
    assert_int_equal(stats.n_device_slots, 0);
    assert_int_equal(stats.device_misses, 0);
    assert_true(used_bytes(c, 0) <= o.device_bytes);
    mox_context_destroy(&c);
    free(got);
    mox_model_close(&m);
}

static void too_small(void **state)
{
    (void)state;
    for (int i = 0; i < n_dirs; i++) {
        mox_model *m = open_model(dirs[i], true);
        const mox_device_sizes s = sizes_of(m);
        mox_context_opts o = base_opts();
        mox_context *c;
        mox_err err;
        o.expert_bytes = mox_model_expert_slot_bytes(m);
        o.device_bytes = mox_device_total(&s, s.least_slots) - 1;
        assert_int_equal(mox_context_create(&c, m, &o, &err), MOX_E_FULL);
        assert_null(c);
        assert_non_null(strstr(err.msg, "too small"));
        o.device = NULL;
        assert_int_equal(mox_context_create(&c, m, &o, &err), MOX_E_ARG);
        mox_model_close(&m);
    }
}

static void a_budget_is_of_devices_with_memory(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], false);
    mox_context_opts o = base_opts();
    mox_context *c;
    mox_err err;
    o.device = "metal";
    o.device_bytes = (int64_t)1 << 30;
    assert_int_equal(mox_context_create(&c, m, &o, &err), MOX_E_ARG);
    assert_null(c);
    assert_non_null(strstr(err.msg, "memory of their own"));
    mox_model_close(&m);
}

/* A probe of the device takes what the budget leaves.  That this is too little is not what it says when there is no memory. */
static void probes_keep_the_budget(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], false);
    const mox_device_sizes s = sizes_of(m);
    for (int enough = 0; enough < 2; enough++) {
        mox_context_opts o = base_opts();
        mox_device_probe *p;
        mox_err err;
        nth f = {.at = 1};
        o.device_bytes = mox_device_total(&s, -1) + (128 << 20) - 1 + enough;
        mox_context *c = new_context(m, &o);
        mox_alloc_set_hook(fail_nth_alloc, &f);
        const mox_status status = mox_device_probe_create(&p, c, &err);
        mox_alloc_set_hook(NULL, NULL);
        assert_int_equal(status, enough ? MOX_E_MEMORY : MOX_E_FULL);
        assert_null(p);
        mox_context_destroy(&c);
    }
    mox_model_close(&m);
}

/* ---- failures ---- */

static mox_context_opts tight_opts(const mox_model *m)
{
    const mox_device_sizes s = sizes_of(m);
    mox_context_opts o = base_opts();
    o.device_bytes = mox_device_total(&s, mox_max_i64(s.least_slots, 2));
    o.expert_bytes = 3 * mox_model_expert_slot_bytes(m);
    return o;
}

static void allocations_fail(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], true);
    const mox_context_opts o = tight_opts(m);
    check_allocations_fail(m, &o, 30);
    mox_model_close(&m);
}

static void steps_allocate_nothing(void **state)
{
    (void)state;
    mox_model *m = open_model(dirs[0], true);
    const mox_context_opts o = tight_opts(m);
    check_steps_allocate_nothing(m, &o, try_steps, N_STEPS);
    mox_model_close(&m);
}

/* The step says so, and when reads work again all is as it should be. */
static void reads_fail(void **state)
{
    (void)state;
    in_short = true;
    mox_model *m = open_model(dirs[0], true);
    mox_context_opts o = tight_opts(m);
    float *got = new_answers(m, N_STEPS);
    mox_seq *s;
    mox_err err;
    mox_context *c = new_context(m, &o);
    ok(mox_seq_create(&s, c, &err), &err);
    for (long at = 1; at < 40; at += 16) {
        nth f = {.at = at};
        mox_seq_reset(s);
        mox_io_set_hook(fail_from_nth, &f);
        const mox_status status = try_steps(c, s, got, NULL, &err);
        mox_io_set_hook(NULL, NULL);
        assert_int_equal(status, MOX_E_IO);
        mox_seq_reset(s);
        ok(try_steps(c, s, got, NULL, &err), &err);
        assert_same(m, got, resident_answers(0)->logits);
    }
    mox_context_destroy(&c);
    free(got);
    mox_model_close(&m);
    in_short = false;
}

static void cancelled_steps(void **state)
{
    (void)state;
    in_short = true;
    mox_model *m = open_model(dirs[0], true);
    mox_context_opts o = tight_opts(m);
    float *got = new_answers(m, N_STEPS);
    mox_seq *s;
    mox_err err;
    int n_cancelled = 0;
    mox_context *c = new_context(m, &o);
    ok(mox_seq_create(&s, c, &err), &err);
    for (long at = 1; at < 60; at += 24) {
        countdown k = {.left = at};
        mox_seq_reset(s);
        mox_io_set_hook(cancel_at_nth, &k);
        const mox_status status = try_steps(c, s, got, &(mox_step_opts){.cancel = &k.cancel}, &err);
        mox_io_set_hook(NULL, NULL);
        assert_true(status == MOX_OK || status == MOX_E_CANCELLED);
        n_cancelled += status == MOX_E_CANCELLED;
        mox_seq_reset(s);
        ok(try_steps(c, s, got, NULL, &err), &err);
        assert_same(m, got, resident_answers(0)->logits);
    }
    assert_true(n_cancelled > 0);
    mox_context_destroy(&c);
    free(got);
    mox_model_close(&m);
    in_short = false;
}

/* ---- a tier alone ---- */

/* A random batch: each expert once, with its bytes; sometimes given up in the middle. */
static void check_batch(mox_expert_tier *t, const mox_model *mapped, int32_t layer, mox_rng *rng)
{
    const int64_t E = mapped->n_experts;
    int32_t ids[MAX_EXPERTS];
    bool wanted[MAX_EXPERTS] = {0};
    mox_expert out[MAX_EXPERTS];
    mox_err err;
    int64_t n = 0, got = 0, part;
    assert_true(E <= MAX_EXPERTS);
    for (int32_t i = 0; i < E; i++)
        if (mox_rng_u64(rng) % 3 > 0) wanted[i] = true, ids[n++] = i;
    const bool give_up = mox_rng_u64(rng) % 5 == 0;
    ok(t->source.acquire(&t->source, layer, ids, n, &err), &err);
    do {
        ok(t->source.next(&t->source, out, E, &part, NULL, &err), &err);
        for (int64_t k = 0; k < part; k++) {
            assert_true(wanted[out[k].id]);
            wanted[out[k].id] = false;
            check_expert(t->dev, &out[k], mapped, layer);
        }
        got += part;
    } while (part > 0 && !(give_up && got > n / 2));
    if (!give_up) assert_int_equal(got, n);
    t->source.release(&t->source);
}

static void a_tier_hands_out_every_expert_once(void **state)
{
    (void)state;
    for (int i = 0; i < n_dirs; i++) {
        mox_model *mapped = open_model(dirs[i], false), *m = open_model(dirs[i], true);
        mox_context_opts o = base_opts();
        mox_err err;
        mox_rng rng;
        int32_t layers[2] = {-1, -1};
        for (int32_t k = 0; k < m->dims.n_layers; k++)
            if (m->layers[k].experts) layers[layers[0] >= 0] = k;
        if (layers[1] < 0) layers[1] = layers[0];
        mox_context *c = new_context(mapped, &o); /* for its device, which has all weights that stay */
        mox_rng_init(&rng, 7);
        for (int64_t n_device = 1; n_device <= 2 * m->n_experts; n_device = n_device * 2 + 1) {
            for (int64_t n_host = 1; n_host <= sizes_of(m).n_experts; n_host *= 4) {
                mox_expert_store below;
                mox_expert_tier t;
                o.expert_bytes = n_host * mox_model_expert_slot_bytes(m);
                ok(mox_expert_store_init(&below, m, &o, &err), &err);
                ok(mox_expert_tier_init(&t, m, c->sections[0].dev, &c->sections[0].residency, &below, NULL, n_device, &o, &err), &err);
                for (int k = 0; k < 12; k++) check_batch(&t, mapped, layers[k % 2], &rng);
                mox_expert_tier_deinit(&t);
                mox_expert_store_deinit(&below);
            }
        }
        mox_context_destroy(&c);
        mox_model_close(&m);
        mox_model_close(&mapped);
    }
}

/* ---- plans ---- */

static void plans_keep_both_budgets(void **state)
{
    (void)state;
    for (int i = 0; i < n_dirs; i++) {
        mox_model *m = open_model(dirs[i], false);
        const mox_context_opts context = base_opts();
        mox_plan p;
        mox_err err;
        mox_plan_opts o = {.context = &context, .ram_bytes = (int64_t)1 << 30, .vram_bytes = (int64_t)1 << 30};
        ok(mox_plan_make(&p, m, &o, &err), &err);
        assert_true(p.fits && p.device.n_slots == 0 && p.experts == MOX_EXPERTS_RESIDENT);
        assert_int_equal(p.cache_bytes + p.activation_bytes, 0);
        const int64_t all = p.device.total;
        for (int64_t vram = p.device.least_budget; vram < all; vram += (all - p.device.least_budget) / 5 + 1) {
            o.vram_bytes = vram;
            ok(mox_plan_make(&p, m, &o, &err), &err);
            assert_true(p.fits && p.device.total <= vram && p.total <= o.ram_bytes);
            assert_true(p.device.n_slots == 0 || p.experts == MOX_EXPERTS_STREAM);
            mox_context_opts made = context;
            made.n_batch = (int32_t)p.n_batch;
            made.device_bytes = vram;
            made.expert_bytes = p.n_slots * p.slot_bytes;
            mox_context *c = new_context(m, &made);
            assert_true(used_bytes(c, 0) <= vram);
            const mox_expert_tier *t = &c->sections[0].tier;
            if (t->model) assert_int_equal(t->cache.n_slots, p.device.n_slots);
            else assert_int_equal(p.device.n_slots, 0);
            mox_context_destroy(&c);
        }
        o.vram_bytes = p.device.least_budget - 1;
        ok(mox_plan_make(&p, m, &o, &err), &err);
        assert_false(p.fits);
        assert_true(p.device.least_budget == o.vram_bytes + 1);
        mox_model_close(&m);
    }
}

/* Embeddings that are the head as well lie on a device once, and so they are counted. */
static void what_is_tied_is_counted_once(void **state)
{
    (void)state;
    char dir[4096];
    mox_err err;
    mox_context_sizes s;
    assert_true(snprintf(dir, sizeof dir, "%s/../qwen3", dirs[0]) < (int)sizeof dir);
    mox_model *m = open_model(dir, false);
    assert_true(m->embed.w.offset == m->head.w.offset);
    int64_t sum = 0;
    for (int64_t i = 0; i < m->tensors.n_tensors; i++)
        if (m->tensor_use[i] != MOX_UNUSED) sum += mox_device_aligned(m->tensors.tensors[i].extent.bytes);
    ok(mox_context_measure(m, &(mox_context_opts){.device = "emu"}, &s, &err), &err);
    const mox_device_sizes *all = &s.stay.parts[0].sizes;
    assert_int_equal(all->weight_bytes, mox_ceil_div(sum, all->unit) * all->unit);
    mox_model_close(&m);
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    dirs = argv + 1;
    n_dirs = argc - 1;
    (void)snprintf(first_config, sizeof first_config, "%s/config.json", dirs[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_tied_is_counted_once),
        cmocka_unit_test(same_bytes_with_any_number_of_slots),
        cmocka_unit_test(same_bytes_with_guesses),
        cmocka_unit_test(sequences_together),
        cmocka_unit_test(all_stay_when_they_fit),
        cmocka_unit_test(too_small),
        cmocka_unit_test(a_budget_is_of_devices_with_memory),
        cmocka_unit_test(probes_keep_the_budget),
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(reads_fail),
        cmocka_unit_test(cancelled_steps),
        cmocka_unit_test(a_tier_hands_out_every_expert_once),
        cmocka_unit_test(plans_keep_both_budgets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
