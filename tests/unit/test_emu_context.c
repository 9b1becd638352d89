/* tests/unit/test_emu_context.c -- contexts on emulated GPUs, one or several: what they refuse, what they
 * leave behind when memory runs out, and sequences whose pages and states are on the devices.
 * Where CONTEXT_DEVICE is defined, on that device (tests/metal), and on one only.
 *
 * The models are folders on the command line: one with experts, and a recurrent one.  Logits of
 * the same steps must be the same bytes, as nothing on the device depends on time. */
#include "dev/gpu/device.h"
#include "fail_context.h"
#include "moxie/tools.h"
#include "runtime/state_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef CONTEXT_DEVICE
#define TWO_DEVICES CONTEXT_DEVICE
enum { MOST_DEVICES = 1 };
#else
#define CONTEXT_DEVICE "emu"
#define TWO_DEVICES "emu:0,1"
enum { MOST_DEVICES = 3 };
#endif

enum { N = 70, AFTER = 5, FEW = 12 };

static const char *experts_dir, *recurrent_dir, *large_dir;
static mox_model *experts, *recurrent;
static int32_t tokens[N + AFTER];

static int open_models(void **state)
{
    (void)state;
    mox_err err;
    for (int i = 0; i < N + AFTER; i++) tokens[i] = (i * 37 + 11) % 200;
    if (mox_model_open(&experts, experts_dir, NULL, &err) == MOX_OK && mox_model_open(&recurrent, recurrent_dir, NULL, &err) == MOX_OK) return 0;
    print_error("%s\n", err.msg);
    return -1;
}

static int close_models(void **state)
{
    (void)state;
    mox_model_close(&experts);
    mox_model_close(&recurrent);
    return 0;
}

static void ok(mox_status status, const mox_err *err)
{
    if (status != MOX_OK) fail_msg("%s", err->msg);
}

/* Of sequences whose pages and states are on two devices; one is the simpler case. */
static const char two[] = TWO_DEVICES;

static mox_context *new_context(const mox_model *m, const char *device, mox_seq **s)
{
    mox_context *c;
    mox_err err;
    ok(mox_context_create(&c, m, &(mox_context_opts){.device = device, .n_ctx = 256, .n_batch = 64, .exact = true, .n_seqs = 2}, &err), &err);
    ok(mox_seq_create(s, c, &err), &err);
    return c;
}

/* Logits of the last token. */
static const float *run(mox_context *c, mox_seq *s, int from, int n)
{
    mox_err err;
    ok(mox_step(c, &(mox_segment){.seq = s, .tokens = tokens + from, .n = n, .want = MOX_WANT_LAST}, 1, NULL, &err), &err);
    return mox_logits_row(c, 0);
}

static float *kept(const mox_context *c, const float *logits)
{
    const size_t bytes = (size_t)c->model->dims.n_vocab * sizeof *logits;
    float *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, logits, bytes);
    return copy;
}

/* ---- refusals ---- */

static void no_trace(void *user, mox_trace_kind what, int32_t layer, const int32_t *ids, int64_t n)
{
    (void)user, (void)what, (void)layer, (void)ids, (void)n;
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        mox_context_opts opts;
        const char *says;
    } cases[] = {
        {{.device = "abacus"}, "'abacus'"},
        {{.device = "emulation"}, "'emulation'"},
        {{.device = "cpu:0"}, "'cpu:0'"},
        {{.device = "emu:"}, "list of numbers"},
        {{.device = "emu:0,"}, "list of numbers"},
        {{.device = "emu:0;1"}, "list of numbers"},
        {{.device = "emu:-1"}, "list of numbers"},
        {{.device = "emu:1000"}, "list of numbers"},
        {{.device = "emu:0,1,2,3,4,5,6,7,8"}, "at most 8"},
        {{.device = "emu:0,1,2,3,4,5,6,7"}, "8 devices for a model of"},
        {{.device = CONTEXT_DEVICE, .isa = "ref"}, "level of the cpu"},
        {{.device = CONTEXT_DEVICE, .expert_bytes = 1 << 20}, "resident"},
        {{.device = CONTEXT_DEVICE, .trace = no_trace}, "traced"},
        {{.device = CONTEXT_DEVICE, .deterministic = true}, "only the cpu computes deterministically"},
        {{.device = CONTEXT_DEVICE, .n_batch = 70000}, "65535"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_context *c;
        mox_err err;
        assert_int_equal(mox_context_create(&c, experts, &cases[i].opts, &err), MOX_E_ARG);
        assert_null(c);
        assert_non_null(strstr(err.msg, cases[i].says));
    }
}

static void test_kinds(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        mox_device_kind kind;
    } cases[] = {
        {NULL, {.name = "cpu", .is_cpu = true}},
        {"cpu", {.name = "cpu", .is_cpu = true}},
        {"metal", {.name = "metal"}},
        {"cuda", {.name = "cuda", .has_memory = true}},
        {"cuda:3", {.name = "cuda", .n_numbers = 1, .has_memory = true}},
        {"emu:0,2", {.name = "emu", .n_numbers = 2, .has_memory = true}},
    };
    mox_device_kind k;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(mox_device_get_kind(cases[i].text, &k, NULL), MOX_OK);
        assert_string_equal(k.name, cases[i].kind.name);
        assert_int_equal(k.n_numbers, cases[i].kind.n_numbers);
        assert_int_equal(k.is_cpu, cases[i].kind.is_cpu);
        assert_int_equal(k.has_memory, cases[i].kind.has_memory);
    }
    assert_int_equal(mox_device_get_kind("cudas", &k, NULL), MOX_E_ARG);
}

/* ---- memory ---- */

static void test_allocations_fail(void **state)
{
    (void)state;
    const mox_context_opts opts = {.device = TWO_DEVICES, .n_ctx = 64, .n_batch = 16};
    check_allocations_fail(experts, &opts, 20);
}

static int count_all(void *user, size_t bytes)
{
    (void)bytes;
    ++*(int64_t *)user;
    return 1;
}

static void test_step_allocates_nothing(void **state)
{
    (void)state;
    mox_seq *s;
    mox_context *c = new_context(recurrent, two, &s);
    int64_t n = 0;
    mox_alloc_set_hook(count_all, &n);
    (void)run(c, s, 0, N);
    (void)run(c, s, N, 1);
    mox_alloc_set_hook(NULL, NULL);
    assert_int_equal(n, 0);
    mox_context_destroy(&c);
}

/* ---- sequences ---- */

/* Back to a checkpoint, and on again: the state was saved and restored on the device. */
static void test_checkpoint(void **state)
{
    (void)state;
    mox_seq *s;
    mox_err err;
    mox_context *c = new_context(recurrent, two, &s);
    (void)run(c, s, 0, 64);
    float *first = kept(c, run(c, s, 64, AFTER)), *other = NULL;
    ok(mox_seq_cut(s, 64, &err), &err);
    assert_memory_equal(run(c, s, 64, AFTER), first, (size_t)c->model->dims.n_vocab * 4);
    /* Without the state's return the answer would be another one. */
    mox_seq_reset(s);
    other = kept(c, run(c, s, 64, AFTER));
    assert_memory_not_equal(other, first, (size_t)c->model->dims.n_vocab * 4);
    free(first);
    free(other);
    mox_context_destroy(&c);
}

/* A page that two sequences share is copied when one of them goes on. */
static void test_shared_page(void **state)
{
    (void)state;
    mox_seq *s, *t;
    mox_err err;
    mox_context *c = new_context(experts, two, &s);
    ok(mox_seq_create(&t, c, &err), &err);
    (void)run(c, s, 0, 40);
    mox_share_hold(c, MOX_SHARE_PAGES, s->pages[0]); /* as a kept prefix does */
    t->pages[0] = s->pages[0];
    t->n_pages = 1;
    t->length = 40;
    memcpy(t->tokens, s->tokens, 40 * sizeof *t->tokens);
    float *alone = kept(c, run(c, s, 40, AFTER));
    assert_int_not_equal(s->pages[0], t->pages[0]);
    tokens[40] ^= 1; /* the other one goes elsewhere, then the same way */
    (void)run(c, t, 40, AFTER);
    tokens[40] ^= 1;
    ok(mox_seq_cut(t, 40, &err), &err);
    assert_memory_equal(run(c, t, 40, AFTER), alone, (size_t)c->model->dims.n_vocab * 4);
    free(alone);
    mox_context_destroy(&c);
}

/* ---- states on disk ---- */

static void *fetch(const mox_section *p, const void *from, size_t bytes)
{
    mox_err err;
    void *to = malloc(bytes);
    assert_non_null(to);
    ok(p->dev->memory.download(p->dev, to, from, (int64_t)bytes, &err), &err);
    return to;
}

static void same_bytes(const mox_section *p, const void *a, const void *b, size_t bytes)
{
    void *got = fetch(p, a, bytes), *want = fetch(p, b, bytes);
    assert_memory_equal(got, want, bytes);
    free(got);
    free(want);
}

/* Of a file that is not there. */
static void make_name(char *path)
{
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    (void)unlink(path);
}

/* Of the tokens and one state, which the caller fills in with its pages, for a file of a new name. */
static mox_state_job new_job(char *path)
{
    mox_state_job job;
    mox_err err;
    make_name(path);
    ok(mox_state_job_init(&job, N, 1, &err), &err);
    job.path = mox_strdup(path);
    memcpy(job.tokens, tokens, N * sizeof *tokens);
    return job;
}

static void test_states_on_disk(void **state)
{
    (void)state;
    mox_seq *s;
    mox_err err;
    mox_context *c = new_context(recurrent, two, &s);
    (void)run(c, s, 0, N);
    assert_int_equal(s->n_saved, 1);
    char path[] = "emu-state-XXXXXX";
    const mox_state_shape shape = mox_state_shape_of(c, "a model");
    mox_state_job job = new_job(path);
    memcpy(job.pages, s->pages, (size_t)job.n_pages * sizeof *job.pages);
    job.states[0] = s->checkpoints[0].state;
    job.positions[0] = s->checkpoints[0].at;
    mox_state_gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER};
    ok(mox_state_job_write(&job, c, &shape, &gate, &err), &err);
    mox_state_file f;
    ok(mox_state_file_open(&f, path, &shape, &err), &err);
    for (int64_t i = 0; i < job.n_pages; i++) {
        const int32_t page = mox_share_take(c, MOX_SHARE_PAGES);
        ok(mox_state_file_read_page(&f, i, c, page, &err), &err);
        for (int64_t j = 0; j < 2 * c->model->dims.n_layers; j++) {
            size_t bytes;
            const void *a = mox_page_part(c, page, j, &bytes), *b = mox_page_part(c, s->pages[i], j, &bytes);
            if (bytes > 0) same_bytes(mox_context_section_of(c, j / 2), a, b, bytes);
        }
    }
    const int32_t saved = mox_share_take(c, MOX_SHARE_STATES);
    ok(mox_state_file_read_state(&f, 0, c, saved, &err), &err);
    size_t all = 0;
    for (int i = 0; i < c->n_sections; i++) {
        size_t bytes;
        const mox_section *p = &c->sections[i];
        const float *a = mox_state_piece(p, mox_state_saved(c, saved), &bytes);
        const float *b = mox_state_piece(p, mox_state_saved(c, job.states[0]), &bytes);
        if (bytes > 0) same_bytes(p, a, b, bytes);
        all += bytes;
    }
    assert_int_equal(all, mox_state_bytes(c));
    mox_state_file_close(&f);
    mox_state_job_deinit(&job);
    (void)unlink(path);
    mox_context_destroy(&c);
}

/* A state of several megabytes goes both ways in pieces, which must all come to their places. */
static void test_large_states_on_disk(void **state)
{
    (void)state;
    enum { LARGE = 1 << 20 };
    mox_model *m;
    mox_seq *s;
    mox_err err;
    ok(mox_model_open(&m, large_dir, NULL, &err), &err);
    mox_context *c = new_context(m, two, &s);
    const int32_t from = mox_share_take(c, MOX_SHARE_STATES), to = mox_share_take(c, MOX_SHARE_STATES);
    size_t bytes, largest = 0;
    for (int i = 0; i < c->n_sections; i++) {
        const mox_section *p = &c->sections[i];
        float *at = mox_state_piece(p, mox_state_saved(c, from), &bytes);
        float *numbers = malloc(bytes);
        assert_non_null(numbers);
        for (size_t k = 0; k < bytes / sizeof *numbers; k++) numbers[k] = (float)((k + 7919 * (size_t)i) % 65521);
        p->dev->memory.upload(p->dev, at, numbers, (int64_t)bytes);
        free(numbers);
        if (bytes > largest) largest = bytes;
    }
    assert_true(largest > LARGE / 2);
    char path[] = "emu-state-XXXXXX";
    const mox_state_shape shape = mox_state_shape_of(c, "a model");
    mox_state_job job = new_job(path);
    for (int64_t i = 0; i < job.n_pages; i++) job.pages[i] = mox_share_take(c, MOX_SHARE_PAGES);
    job.states[0] = from;
    job.positions[0] = N;
    mox_state_gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER};
    ok(mox_state_job_write(&job, c, &shape, &gate, &err), &err);
    mox_state_file f;
    ok(mox_state_file_open(&f, path, &shape, &err), &err);
    ok(mox_state_file_read_state(&f, 0, c, to, &err), &err);
    for (int i = 0; i < c->n_sections; i++) {
        const mox_section *p = &c->sections[i];
        const float *a = mox_state_piece(p, mox_state_saved(c, to), &bytes), *b = mox_state_piece(p, mox_state_saved(c, from), &bytes);
        if (bytes > 0) same_bytes(p, a, b, bytes);
    }
    mox_state_file_close(&f);
    mox_state_job_deinit(&job);
    (void)unlink(path);
    mox_context_destroy(&c);
    mox_model_close(&m);
}

/* ---- work and logits ---- */

/* Of one token, which has an expert once, devices count what the processor counts. */
static void test_work(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", CONTEXT_DEVICE, TWO_DEVICES};
    mox_work want = {0};
    for (int i = 0; i < 3; i++) {
        mox_seq *s;
        mox_work w;
        mox_context *c = new_context(experts, devices[i], &s);
        (void)run(c, s, 0, 1);
        mox_context_get_work(c, &w);
        if (i == 0) want = w;
        assert_true(w.weight_bytes > 0);
        assert_int_equal(w.weight_bytes, want.weight_bytes);
        assert_int_equal(w.cache_bytes, want.cache_bytes);
        assert_int_equal(w.macs, want.macs);
        mox_context_destroy(&c);
    }
}

enum { SEGMENTS = 4 };
typedef struct rows_seen {
    float *logits[SEGMENTS]; /* of the last row of each */
    int n[SEGMENTS];
} rows_seen;

static const int segment_tokens[SEGMENTS] = {3, 1, 2, 1};

static void see(void *user, int32_t segment, int64_t row, const float *logits)
{
    rows_seen *r = user;
    r->n[segment]++;
    if (row == segment_tokens[segment] - 1) memcpy(r->logits[segment], logits, (size_t)experts->dims.n_vocab * sizeof *logits);
}

/* One step of four new sequences. */
static void step_segments(mox_context *c, const mox_want *wants, rows_seen *seen)
{
    mox_seq *seqs[SEGMENTS];
    mox_segment segs[SEGMENTS];
    mox_err err;
    for (int i = 0; i < SEGMENTS; i++) {
        ok(mox_seq_create(&seqs[i], c, &err), &err);
        segs[i] = (mox_segment){.seq = seqs[i], .tokens = tokens + 9 * i, .n = segment_tokens[i], .want = wants[i]};
    }
    const mox_step_opts opts = {.on_logits = see, .on_logits_user = seen};
    ok(mox_step(c, segs, SEGMENTS, seen ? &opts : NULL, &err), &err);
    for (int i = 0; i < SEGMENTS; i++) mox_seq_destroy(&seqs[i]);
}

/* Whoever wants logits, and whoever sees them first, everybody has their own. */
/* So that the next step must write them. */
static void clear_logits(const mox_context *c, size_t bytes)
{
    for (int i = 0; i < SEGMENTS; i++) {
        const float *row = mox_logits_row(c, i);
        if (row) memset((float *)(uintptr_t)row, 0, bytes);
    }
}

static void test_logits_of_segments(void **state)
{
    (void)state;
    const mox_want all[SEGMENTS] = {MOX_WANT_LAST, MOX_WANT_LAST, MOX_WANT_LAST, MOX_WANT_LAST};
    const mox_want some[][SEGMENTS] = {{MOX_WANT_NONE, MOX_WANT_LAST, MOX_WANT_LAST, MOX_WANT_LAST},
                                       {MOX_WANT_LAST, MOX_WANT_NONE, MOX_WANT_LAST, MOX_WANT_LAST},
                                       {MOX_WANT_LAST, MOX_WANT_LAST, MOX_WANT_ALL, MOX_WANT_NONE},
                                       {MOX_WANT_NONE, MOX_WANT_NONE, MOX_WANT_LAST, MOX_WANT_NONE}};
    const size_t bytes = (size_t)experts->dims.n_vocab * sizeof(float);
    mox_context *c;
    mox_err err;
    rows_seen seen = {.n = {0}};
    for (int i = 0; i < SEGMENTS; i++) assert_non_null(seen.logits[i] = malloc(bytes));
    ok(mox_context_create(&c, experts, &(mox_context_opts){.device = CONTEXT_DEVICE, .n_ctx = 64, .exact = true, .n_seqs = SEGMENTS}, &err), &err);
    step_segments(c, all, &seen);
    for (int i = 0; i < SEGMENTS; i++) {
        assert_int_equal(seen.n[i], 1);
        assert_memory_equal(mox_logits_row(c, i), seen.logits[i], bytes);
        for (int k = 0; k < i; k++) assert_memory_not_equal(seen.logits[i], seen.logits[k], bytes);
    }
    clear_logits(c, bytes);
    step_segments(c, all, NULL);
    for (int i = 0; i < SEGMENTS; i++) assert_memory_equal(mox_logits_row(c, i), seen.logits[i], bytes);
    clear_logits(c, bytes);
    for (size_t w = 0; w < sizeof some / sizeof *some; w++) {
        step_segments(c, some[w], NULL);
        for (int i = 0; i < SEGMENTS; i++) {
            const float *row = mox_logits_row(c, i);
            if (some[w][i] == MOX_WANT_NONE) {
                assert_null(row);
                continue;
            }
            assert_non_null(row);
            assert_memory_equal(row, seen.logits[i], bytes);
        }
        clear_logits(c, bytes);
    }
    for (int i = 0; i < SEGMENTS; i++) free(seen.logits[i]);
    mox_context_destroy(&c);
}

/* ---- several devices ---- */

/* The same bytes as on one, in a prompt and token by token; each device has its own layers alone. */
static void test_spread(void **state)
{
    (void)state;
    static const char *const spread[] = {CONTEXT_DEVICE, TWO_DEVICES, "emu:0,1,2"};
    const mox_model *models[] = {experts, recurrent};
    for (int m = 0; m < 2; m++) {
        float *want[2] = {NULL, NULL};
        int64_t bytes_of_one = 0;
        for (int i = 0; i < MOST_DEVICES && i < models[m]->dims.n_layers; i++) {
            mox_seq *s;
            mox_context *c = new_context(models[m], spread[i], &s);
            assert_int_equal(c->n_sections, i + 1);
            assert_int_equal(c->sections[i].end, models[m]->dims.n_layers);
            for (int p = 0; i > 0 && p <= i; p++) assert_true(c->sections[p].weight_bytes < bytes_of_one);
            if (i == 0) bytes_of_one = c->sections[0].weight_bytes;
            for (int j = 0; j < 2; j++) {
                const float *logits = run(c, s, j == 0 ? 0 : FEW, j == 0 ? FEW : 1);
                if (i == 0) want[j] = kept(c, logits);
                else assert_memory_equal(logits, want[j], (size_t)c->model->dims.n_vocab * sizeof *logits);
            }
            mox_context_destroy(&c);
        }
        free(want[0]);
        free(want[1]);
    }
}

/* ---- a device that fails ---- */

/* Half way through a step: the step says so, and so does every one after it. */
static void test_device_fails_of(const char *device, int which)
{
    mox_seq *s;
    mox_err err = {0};
    mox_context *c = new_context(experts, device, &s);
    (void)run(c, s, 0, 8);
    MOX_GPU_LAUNCH(c->sections[which].dev, add, 1, -1, 1, .n = 1); /* a grid that no device has */
    for (int i = 0; i < 2; i++) {
        err = (mox_err){0};
        assert_int_equal(mox_step(c, &(mox_segment){.seq = s, .tokens = tokens, .n = 1, .want = MOX_WANT_LAST}, 1, NULL, &err), MOX_E_DEVICE);
        assert_non_null(strstr(err.msg, "kernel add"));
        assert_null(mox_logits_row(c, 0));
        assert_int_equal(mox_seq_length(s), 8);
    }
    mox_context_destroy(&c);
}

static void test_device_fails(void **state)
{
    (void)state;
    test_device_fails_of(CONTEXT_DEVICE, 0);
    for (int i = 0; i < (MOST_DEVICES > 1 ? 2 : 1); i++) test_device_fails_of(TWO_DEVICES, i);
}

/* What goes wrong on a device after its rows have gone on to the next is told by its sync alone. */
static mox_status broken_sync(mox_dev *d, mox_err *err) { return mox_fail(err, MOX_E_DEVICE, "device %s: broken at last", d->name); }

static void test_every_device_is_asked(void **state)
{
    (void)state;
    mox_seq *s;
    mox_context *c = new_context(experts, TWO_DEVICES, &s);
    for (int i = 0; i < c->n_sections; i++) {
        mox_err err = {0};
        mox_dev_memory *memory = &c->sections[i].dev->memory, whole = *memory;
        memory->sync = broken_sync;
        const mox_status status = mox_step(c, &(mox_segment){.seq = s, .tokens = tokens, .n = 1, .want = MOX_WANT_LAST}, 1, NULL, &err);
        *memory = whole;
        assert_int_equal(status, MOX_E_DEVICE);
        assert_non_null(strstr(err.msg, "broken at last"));
        assert_int_equal(mox_seq_length(s), 0);
    }
    mox_context_destroy(&c);
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    experts_dir = argv[1];
    recurrent_dir = argv[2];
    large_dir = argv[3];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),        cmocka_unit_test(test_work),             cmocka_unit_test(test_logits_of_segments),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_allocations_fail), cmocka_unit_test(test_step_allocates_nothing),
        cmocka_unit_test(test_checkpoint),   cmocka_unit_test(test_shared_page),      cmocka_unit_test(test_states_on_disk),
        cmocka_unit_test(test_spread),       cmocka_unit_test(test_device_fails),     cmocka_unit_test(test_every_device_is_asked),
        cmocka_unit_test(test_large_states_on_disk),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
