/* tests/unit/test_runtime.c -- contexts, sequences and steps on the demo models.
 *
 * What was computed by the same calls has the same bytes.  Where batches were cut in
 * different ways, kernels may differ (rows or tiles, steps or chunks), and logits
 * agree to TOLERANCE of their range; only the reference kernels promise bytes there. */
#include "runtime/context.h"

#include "base/alloc.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TOLERANCE 1e-5f

static const char *const model_dirs[] = {SOURCE_ROOT "/models/demo", SOURCE_ROOT "/tests/data/models/demo-qwen3",
                                         SOURCE_ROOT "/tests/data/models/demo-qwen3-moe",
                                         SOURCE_ROOT "/tests/data/models/demo-deepseek-v3"};
enum { N_MODELS = sizeof model_dirs / sizeof *model_dirs, V = 2048, PROMPT = 200 };
static mox_model *models[N_MODELS];
static int32_t prompt[PROMPT];

static int open_models(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        mox_err err;
        if (mox_model_open(&models[i], model_dirs[i], NULL, &err) != MOX_OK) {
            print_error("%s\n", err.msg);
            return -1;
        }
    }
    for (int i = 0; i < PROMPT; i++) prompt[i] = (int32_t)((i * 7919 + 13) % 1900);
    return 0;
}

static int close_models(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) mox_model_close(&models[i]);
    return 0;
}

static mox_context *new_context(const mox_model *m, mox_context_opts opts)
{
    mox_context *c;
    mox_err err;
    opts.exact = true;
    if (opts.n_ctx == 0) opts.n_ctx = 512;
    if (mox_context_create(&c, m, &opts, &err) != MOX_OK) fail_msg("%s", err.msg);
    return c;
}

static mox_seq *new_seq(mox_context *c)
{
    mox_seq *s;
    mox_err err;
    if (mox_seq_create(&s, c, &err) != MOX_OK) fail_msg("%s", err.msg);
    return s;
}

static void step(mox_context *c, mox_seq *s, const int32_t *tokens, int64_t n)
{
    mox_err err;
    const mox_segment g = {.seq = s, .tokens = tokens, .n = n, .want = MOX_WANT_LAST};
    if (mox_step(c, &g, 1, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
}

/* Last logits of tokens fed to a fresh sequence in one go. */
static void fresh_logits(const mox_model *m, const int32_t *tokens, int64_t n, float *out)
{
    mox_context *c = new_context(m, (mox_context_opts){0});
    mox_seq *s = new_seq(c);
    step(c, s, tokens, n);
    memcpy(out, mox_logits_row(c, 0), V * sizeof *out);
    mox_context_destroy(&c);
}

static void assert_same(const float *a, const float *b) { assert_memory_equal(a, b, V * sizeof *a); }

static void assert_close(const float *a, const float *b)
{
    float range = 0, worst = 0;
    for (int i = 0; i < V; i++) {
        range = fmaxf(range, fabsf(b[i]));
        if (!(fabsf(a[i] - b[i]) <= worst)) worst = fabsf(a[i] - b[i]); /* a NaN is caught too */
    }
    if (!(worst <= TOLERANCE * range)) fail_msg("logits differ by %g of %g", (double)worst, (double)range);
}

/* ---- ragged steps ---- */

static void test_ragged_step_equals_single_steps(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        static const int64_t n[2][3] = {{40, 1, 7}, {1, 30, 1}}; /* prefill and decode mix; rows of logits follow each other or not */
        mox_context *c = new_context(models[i], (mox_context_opts){.n_seqs = 3, .n_batch = 16});
        mox_seq *s[3];
        mox_err err;
        for (int j = 0; j < 3; j++) s[j] = new_seq(c);
        for (int k = 0; k < 2; k++) {
            mox_segment g[3];
            for (int j = 0; j < 3; j++)
                g[j] = (mox_segment){.seq = s[j], .tokens = prompt + 10 * j + mox_seq_length(s[j]), .n = n[k][j], .want = MOX_WANT_LAST};
            assert_int_equal(mox_step(c, g, 3, NULL, &err), MOX_OK);
            for (int j = 0; j < 3; j++) {
                float want[V];
                const int64_t length = n[0][j] + (k > 0 ? n[1][j] : 0);
                fresh_logits(models[i], prompt + 10 * j, length, want);
                assert_int_equal(mox_seq_length(s[j]), length);
                assert_close(mox_logits_row(c, j), want);
            }
        }
        mox_context_destroy(&c);
    }
}

static void test_reference_bytes_do_not_depend_on_the_batch(void **state)
{
    (void)state;
    float logits[3][V];
    for (int t = 0; t < 3; t++) {
        mox_context *c = new_context(models[1], (mox_context_opts){.isa = "ref", .n_batch = t == 2 ? 7 : 0});
        mox_seq *s = new_seq(c);
        if (t == 1) step(c, s, prompt, 10);
        step(c, s, prompt + (t == 1 ? 10 : 0), t == 1 ? 10 : 20);
        memcpy(logits[t], mox_logits_row(c, 0), sizeof logits[t]);
        mox_context_destroy(&c);
    }
    assert_same(logits[0], logits[1]);
    assert_same(logits[0], logits[2]);
}

typedef struct rows {
    int64_t next;
    float last[V];
} rows;

static void count_rows(void *user, int32_t segment, int64_t row, const float *logits)
{
    rows *r = user;
    assert_int_equal(segment, 0);
    assert_int_equal(row, r->next++);
    memcpy(r->last, logits, sizeof r->last);
}

static void test_all_rows_come_in_order_whatever_the_batch(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        float want[V];
        fresh_logits(models[i], prompt, 75, want);
        static const int32_t batches[] = {1, 7, 64};
        for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
            mox_context *c = new_context(models[i], (mox_context_opts){.n_batch = batches[b]});
            const mox_segment g = {.seq = new_seq(c), .tokens = prompt, .n = 75, .want = MOX_WANT_ALL};
            rows r = {0};
            mox_err err;
            const mox_step_opts opts = {.on_logits = count_rows, .on_logits_user = &r};
            assert_int_equal(mox_step(c, &g, 1, &opts, &err), MOX_OK);
            assert_int_equal(r.next, 75);
            assert_same(r.last, mox_logits_row(c, 0));
            assert_close(r.last, want);
            mox_context_destroy(&c);
        }
    }
}

static void test_threads_do_not_change_bytes(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        float logits[3][V];
        for (int t = 0; t < 3; t++) {
            mox_context *c = new_context(models[i], (mox_context_opts){.n_threads = 1 + 3 * t});
            mox_seq *s = new_seq(c);
            step(c, s, prompt, 37);
            step(c, s, prompt + 37, 1);
            memcpy(logits[t], mox_logits_row(c, 0), sizeof logits[t]);
            mox_context_destroy(&c);
        }
        assert_same(logits[0], logits[1]);
        assert_same(logits[0], logits[2]);
    }
}

/* ---- going back ---- */

static void test_attention_models_return_anywhere(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        if (models[i]->recurrent_floats) continue;
        mox_context *c = new_context(models[i], (mox_context_opts){0});
        mox_seq *s = new_seq(c);
        step(c, s, prompt, 70);
        static const int64_t cuts[] = {65, 64, 3};
        for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
            mox_err err;
            float want[V];
            int32_t other[PROMPT];
            memcpy(other, prompt, sizeof prompt);
            other[cuts[k]] = 5; /* a different continuation */
            assert_int_equal(mox_seq_cut_point(s, cuts[k]), cuts[k]);
            assert_int_equal(mox_seq_cut(s, cuts[k], &err), MOX_OK);
            step(c, s, other + cuts[k], 1);
            fresh_logits(models[i], other, cuts[k] + 1, want);
            assert_close(mox_logits_row(c, 0), want);
            assert_int_equal(mox_seq_cut(s, cuts[k], &err), MOX_OK);
        }
        mox_context_destroy(&c);
    }
}

static void test_recurrent_models_return_to_checkpoints_only(void **state)
{
    (void)state;
    mox_err err;
    mox_context *c = new_context(models[0], (mox_context_opts){.n_checkpoints = 2});
    mox_seq *s = new_seq(c);
    step(c, s, prompt, 21);
    mox_seq_checkpoint(s);
    step(c, s, prompt + 21, 9);
    assert_int_equal(mox_seq_cut_point(s, 30), 30);
    assert_int_equal(mox_seq_cut_point(s, 29), 21);
    assert_int_equal(mox_seq_cut_point(s, 20), 0);
    assert_int_equal(mox_seq_cut(s, 25, &err), MOX_E_STATE);
    assert_non_null(strstr(err.msg, "21")); /* says where it could go */
    assert_int_equal(mox_seq_length(s), 30);
    assert_int_equal(mox_seq_cut(s, 21, &err), MOX_OK);
    assert_int_equal(mox_seq_length(s), 21);
    float again[V], want[V];
    step(c, s, prompt + 100, 5);
    memcpy(again, mox_logits_row(c, 0), sizeof again);
    mox_seq_reset(s);
    step(c, s, prompt, 21);
    step(c, s, prompt + 100, 5);
    memcpy(want, mox_logits_row(c, 0), sizeof want);
    assert_same(again, want);
    mox_seq_reset(s);
    assert_int_equal(mox_seq_length(s), 0);
    assert_int_equal(mox_seq_cut_point(s, 21), 0);
    mox_context_destroy(&c);
}

static void test_states_are_saved_on_the_grid_and_thinned(void **state)
{
    (void)state;
    mox_context *c = new_context(models[0], (mox_context_opts){.n_batch = 64, .n_checkpoints = 3});
    mox_seq *s = new_seq(c);
    step(c, s, prompt, PROMPT);
    assert_int_equal(s->n_saved, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(s->checkpoints[i].at % MOX_GRID, 0);
    assert_int_equal(s->checkpoints[2].at, 192); /* the newest is always there */
    assert_int_equal(s->checkpoints[1].at, 128);
    assert_int_equal(s->checkpoints[0].at, 64);
    step(c, s, prompt, 66); /* a fourth must displace one, and not the newest */
    assert_int_equal(s->n_saved, 3);
    assert_int_equal(s->checkpoints[2].at, 256);
    assert_true(256 - s->checkpoints[1].at <= s->checkpoints[1].at - s->checkpoints[0].at + 64); /* denser near the end */
    float again[V];
    mox_err err;
    const int64_t at = s->checkpoints[1].at;
    assert_int_equal(mox_seq_cut(s, at, &err), MOX_OK);
    assert_true(at < PROMPT);
    step(c, s, prompt + at, 1);
    memcpy(again, mox_logits_row(c, 0), sizeof again);
    float want[V];
    fresh_logits(models[0], prompt, at + 1, want);
    assert_close(again, want);
    mox_context_destroy(&c);
}

/* ---- failures ---- */

static void raise_flag(void *user, int64_t done, int64_t total)
{
    (void)done, (void)total;
    mox_cancel_raise(user);
}

static void test_cancelled_step_leaves_sequences_usable(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        mox_err err;
        float want[V];
        mox_context *c = new_context(models[i], (mox_context_opts){.n_batch = 16});
        mox_seq *s = new_seq(c);
        step(c, s, prompt, 20);
        mox_seq_checkpoint(s);
        step(c, s, prompt + 20, 4);
        mox_cancel cancel = {0}; /* raised between the first and the second batch */
        const mox_segment g = {.seq = s, .tokens = prompt + 24, .n = 100, .want = MOX_WANT_LAST};
        const mox_step_opts opts = {.cancel = &cancel, .progress = raise_flag, .progress_user = &cancel};
        assert_int_equal(mox_step(c, &g, 1, &opts, &err), MOX_E_CANCELLED);
        const int64_t at = mox_seq_length(s);
        assert_int_equal(at, models[i]->recurrent_floats ? 20 : 24);
        assert_null(mox_logits_row(c, 0));
        step(c, s, prompt + at, 60 - at);
        fresh_logits(models[i], prompt, 60, want);
        assert_close(mox_logits_row(c, 0), want);
        mox_context_destroy(&c);
    }
}

static void test_a_flag_raised_before_the_step_costs_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        mox_err err;
        mox_context *c = new_context(models[i], (mox_context_opts){0});
        mox_seq *s = new_seq(c);
        step(c, s, prompt, 10);
        mox_cancel cancel = {0};
        mox_cancel_raise(&cancel);
        const mox_segment g = {.seq = s, .tokens = prompt + 10, .n = 1, .want = MOX_WANT_LAST};
        assert_int_equal(mox_step(c, &g, 1, &(mox_step_opts){.cancel = &cancel}, &err), MOX_E_CANCELLED);
        assert_int_equal(mox_seq_length(s), 10); /* also with recurrent layers: nothing had begun */
        mox_context_destroy(&c);
    }
}

static void *raise_soon(void *user)
{
    usleep(20000);
    mox_cancel_raise(user);
    return NULL;
}

static void test_cancel_from_another_thread(void **state)
{
    (void)state;
    mox_err err;
    mox_context *c = new_context(models[1], (mox_context_opts){.n_batch = 1});
    mox_seq *s = new_seq(c);
    mox_cancel cancel = {0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, raise_soon, &cancel), 0);
    mox_status status = MOX_OK;
    while (status == MOX_OK) {
        mox_seq_reset(s);
        const mox_segment g = {.seq = s, .tokens = prompt, .n = PROMPT};
        status = mox_step(c, &g, 1, &(mox_step_opts){.cancel = &cancel}, &err);
    }
    pthread_join(thread, NULL);
    assert_int_equal(status, MOX_E_CANCELLED);
    assert_int_equal(mox_seq_length(s), 0);
    mox_context_destroy(&c);
}

static void test_the_only_checkpoint_outlives_a_failing_step(void **state)
{
    (void)state;
    mox_err err;
    mox_context *c = new_context(models[0], (mox_context_opts){.n_batch = 64, .n_checkpoints = 1});
    mox_seq *s = new_seq(c);
    step(c, s, prompt, 20);
    mox_seq_checkpoint(s);
    mox_cancel cancel = {0}; /* raised after the first batch, which ended on the grid */
    const mox_segment g = {.seq = s, .tokens = prompt + 20, .n = 150, .want = MOX_WANT_LAST};
    const mox_step_opts opts = {.cancel = &cancel, .progress = raise_flag, .progress_user = &cancel};
    assert_int_equal(mox_step(c, &g, 1, &opts, &err), MOX_E_CANCELLED);
    assert_int_equal(mox_seq_length(s), 20);
    mox_context_destroy(&c);
}

static void test_a_prompt_leaves_a_state_on_the_grid(void **state)
{
    (void)state;
    mox_context *c = new_context(models[0], (mox_context_opts){0});
    mox_seq *s = new_seq(c);
    step(c, s, prompt, 150); /* less than a batch */
    assert_int_equal(mox_seq_cut_point(s, 149), 128);
    mox_context_destroy(&c);
}

static void test_failed_steps_leave_no_logits(void **state)
{
    (void)state;
    mox_err err;
    mox_context *c = new_context(models[1], (mox_context_opts){.n_seqs = 2, .n_batch = 8});
    mox_seq *a = new_seq(c), *b = new_seq(c);
    mox_cancel cancel = {0}; /* raised when the first segment is done and the second is not */
    const mox_segment g[2] = {{.seq = a, .tokens = prompt, .n = 4, .want = MOX_WANT_LAST},
                              {.seq = b, .tokens = prompt, .n = 60, .want = MOX_WANT_LAST}};
    const mox_step_opts opts = {.cancel = &cancel, .progress = raise_flag, .progress_user = &cancel};
    assert_int_equal(mox_step(c, g, 2, &opts, &err), MOX_E_CANCELLED);
    assert_null(mox_logits_row(c, 0));
    step(c, a, prompt, 4);
    assert_non_null(mox_logits_row(c, 0));
    assert_int_equal(mox_step(c, &(mox_segment){.seq = NULL, .n = 1}, 1, NULL, &err), MOX_E_ARG);
    assert_null(mox_logits_row(c, 0));
    mox_context_destroy(&c);
}

static void step_again(void *user, int64_t done, int64_t total)
{
    (void)done, (void)total;
    mox_err err;
    mox_seq *s = user;
    assert_int_equal(mox_step(s->context, NULL, 0, NULL, &err), MOX_E_ARG);
    assert_int_equal(mox_seq_cut(s, 0, &err), MOX_E_ARG);
}

static void test_callbacks_cannot_step_or_cut(void **state)
{
    (void)state;
    mox_err err;
    mox_context *c = new_context(models[1], (mox_context_opts){0});
    mox_seq *s = new_seq(c);
    const mox_segment g = {.seq = s, .tokens = prompt, .n = 3};
    assert_int_equal(mox_step(c, &g, 1, &(mox_step_opts){.progress = step_again, .progress_user = s}, &err), MOX_OK);
    assert_int_equal(mox_seq_length(s), 3);
    mox_context_destroy(&c);
}

/* A device whose matrix product fails at the n-th call. */
static int64_t calls_left;
static mox_status (*true_matmul)(mox_dev *, const mox_matmul_args *, mox_err *);
static mox_status failing_matmul(mox_dev *d, const mox_matmul_args *a, mox_err *err)
{
    if (calls_left-- == 0) return mox_fail(err, MOX_E_DEVICE, "planted failure");
    return true_matmul(d, a, err);
}

static void test_failed_step_leaves_sequences_usable(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        float want[V];
        fresh_logits(models[i], prompt, 30, want);
        for (int64_t fail_at = 0;; fail_at = fail_at * 3 + 1) {
            mox_err err;
            mox_context *c = new_context(models[i], (mox_context_opts){.n_seqs = 2, .n_batch = 8});
            mox_seq *s = new_seq(c), *other = new_seq(c);
            step(c, other, prompt, 9);
            step(c, s, prompt, 11);
            true_matmul = c->sections[0].dev->ops.matmul;
            c->sections[0].dev->ops.matmul = failing_matmul;
            calls_left = fail_at;
            const mox_segment g = {.seq = s, .tokens = prompt + 11, .n = 19, .want = MOX_WANT_LAST};
            const mox_status status = mox_step(c, &g, 1, NULL, &err);
            c->sections[0].dev->ops.matmul = true_matmul;
            if (status != MOX_OK) {
                assert_int_equal(status, MOX_E_DEVICE);
                const int64_t at = mox_seq_length(s);
                assert_int_equal(at, models[i]->recurrent_floats ? 0 : 11);
                step(c, s, prompt + at, 30 - at);
            }
            assert_close(mox_logits_row(c, 0), want);
            assert_int_equal(mox_seq_length(other), 9);
            mox_context_destroy(&c);
            if (status == MOX_OK) break;
        }
    }
}

static int refuse_allocation(void *user, size_t bytes)
{
    (void)bytes;
    ++*(int *)user;
    return 0;
}

static void test_step_allocates_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        mox_context *c = new_context(models[i], (mox_context_opts){.n_batch = 16});
        mox_seq *s = new_seq(c);
        int n_calls = 0;
        mox_alloc_set_hook(refuse_allocation, &n_calls);
        step(c, s, prompt, 40);
        step(c, s, prompt + 40, 1);
        mox_seq_checkpoint(s);
        mox_seq_reset(s);
        mox_alloc_set_hook(NULL, NULL);
        assert_int_equal(n_calls, 0);
        mox_context_destroy(&c);
    }
}

static void test_wrong_steps_are_refused(void **state)
{
    (void)state;
    mox_err err;
    mox_context *c = new_context(models[1], (mox_context_opts){.n_seqs = 2, .n_ctx = 100});
    mox_context *foreign = new_context(models[1], (mox_context_opts){0});
    mox_seq *a = new_seq(c), *b = new_seq(c), *far = new_seq(foreign), *none;
    assert_int_equal(mox_seq_create(&none, c, &err), MOX_E_FULL);
    assert_null(none);
    const int32_t bad[2] = {3, V}, negative[1] = {-1};
    const mox_segment cases[] = {
        {.seq = a, .tokens = bad, .n = 2},                                /* outside the vocabulary */
        {.seq = a, .tokens = negative, .n = 1},
        {.seq = far, .tokens = prompt, .n = 1},                           /* of another context */
        {.seq = NULL, .tokens = prompt, .n = 1},
        {.seq = a, .tokens = prompt, .n = -1},
        {.seq = a, .tokens = NULL, .n = 1},
        {.seq = a, .tokens = prompt, .n = 0, .want = MOX_WANT_LAST},      /* no token, no logits */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(mox_step(c, &cases[i], 1, NULL, &err), MOX_E_ARG);
    const mox_segment twice[2] = {{.seq = a, .tokens = prompt, .n = 1}, {.seq = a, .tokens = prompt, .n = 1}};
    assert_int_equal(mox_step(c, twice, 2, NULL, &err), MOX_E_ARG);
    const mox_segment full = {.seq = a, .tokens = prompt, .n = 101};
    assert_int_equal(mox_step(c, &full, 1, NULL, &err), MOX_E_FULL);
    assert_non_null(strstr(err.msg, "101"));
    assert_non_null(strstr(err.msg, "100"));
    assert_int_equal(mox_seq_length(a), 0);
    const mox_segment fits = {.seq = a, .tokens = prompt, .n = 100};
    assert_int_equal(mox_step(c, &fits, 1, NULL, &err), MOX_OK);
    assert_int_equal(mox_step(c, &(mox_segment){.seq = b, .tokens = prompt, .n = 0}, 1, NULL, &err), MOX_OK);
    assert_int_equal(mox_step(c, NULL, 0, NULL, &err), MOX_OK);
    mox_seq_destroy(&a);
    mox_seq_destroy(&b);
    assert_int_equal(c->shares[MOX_SHARE_PAGES].n_free, 2 * c->pages_per_seq); /* all pages came back */
    mox_context_destroy(&foreign);
    mox_context_destroy(&c);
}

static void test_wrong_contexts_are_refused(void **state)
{
    (void)state;
    const struct {
        mox_context_opts opts;
        mox_status status;
    } cases[] = {{{.n_ctx = -1}, MOX_E_ARG},     {{.n_seqs = -1}, MOX_E_ARG},      {{.n_batch = -1}, MOX_E_ARG},
                 {{.n_threads = -1}, MOX_E_ARG}, {{.isa = "sse9"}, MOX_E_ARG},     {{.n_seqs = 1 << 20}, MOX_E_ARG},
                 {{.n_ctx = 4097}, MOX_E_FULL},  {{.n_threads = 4096}, MOX_E_ARG}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_err err;
        mox_context *c;
        assert_int_equal(mox_context_create(&c, models[0], &cases[i].opts, &err), cases[i].status);
        assert_null(c);
        assert_true(strlen(err.msg) > 10);
    }
}

/* ---- devices ---- */

static void test_composed_operations_agree_with_fused_ones(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        float want[V];
        fresh_logits(models[i], prompt, 50, want);
        mox_context *c = new_context(models[i], (mox_context_opts){0});
        c->sections[0].dev->ops.residual_norm = NULL;
        c->sections[0].dev->ops.gdn_chunk = NULL;
        mox_dev_complete(c->sections[0].dev);
        step(c, new_seq(c), prompt, 50);
        assert_close(mox_logits_row(c, 0), want);
        mox_context_destroy(&c);
    }
}

static void test_narrow_caches_are_near_f32_and_smaller(void **state)
{
    static const struct {
        mox_kv_type type;
        float limit; /* of the logits */
    } kinds[] = {{MOX_KV_F16, 5e-3f}, {MOX_KV_Q8, 5e-2f}}; /* 11 bits; 8 bits, of the largest of 32 */
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        float want[V];
        fresh_logits(models[i], prompt, 50, want);
        mox_context *wider = new_context(models[i], (mox_context_opts){0});
        for (int k = 0; k < 2; k++) {
            mox_context *c = new_context(models[i], (mox_context_opts){.kv_type = kinds[k].type});
            assert_true(mox_context_bytes(c) < mox_context_bytes(wider));
            step(c, new_seq(c), prompt, 50);
            const float *got = mox_logits_row(c, 0);
            float range = 0, worst = 0;
            for (int v = 0; v < V; v++) {
                range = fmaxf(range, fabsf(want[v]));
                worst = fmaxf(worst, fabsf(got[v] - want[v]));
            }
            assert_true(worst > 0); /* it is another type */
            assert_true(worst < kinds[k].limit * range);
            mox_context_destroy(&wider);
            wider = c;
        }
        mox_context_destroy(&wider);
    }
    mox_context *none;
    mox_err err;
    assert_int_equal(mox_context_create(&none, models[0], &(mox_context_opts){.kv_type = (mox_kv_type)9}, &err), MOX_E_ARG);
}

/* ---- sharing experts ---- */

typedef struct routed {
    bool used[64][256]; /* [layer][expert] */
    int n;              /* that were asked for, each time that it was */
} routed;

static void note_routed(void *user, mox_trace_kind what, int32_t layer, const int32_t *ids, int64_t n)
{
    routed *r = user;
    assert_int_equal(what, MOX_TRACE_BATCH);
    for (int64_t i = 0; i < n; i++) r->used[layer][ids[i]] = true;
    r->n += (int)n;
}

/* One step of one token for each of n sequences; returns the bytes of weights that it needed. */
static int64_t bytes_of_step(const mox_model *m, const int32_t *tokens, int32_t n, routed *r)
{
    memset(r, 0, sizeof *r);
    mox_context *c = new_context(m, (mox_context_opts){.n_seqs = 2, .trace = note_routed, .trace_user = r});
    mox_segment g[2];
    mox_seq *seqs[2];
    mox_work work;
    mox_err err;
    for (int32_t i = 0; i < n; i++) {
        seqs[i] = new_seq(c);
        g[i] = (mox_segment){.seq = seqs[i], .tokens = &tokens[i], .n = 1, .want = MOX_WANT_LAST};
    }
    if (mox_step(c, g, n, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    mox_context_get_work(c, &work);
    for (int32_t i = 0; i < n; i++) mox_seq_destroy(&seqs[i]);
    mox_context_destroy(&c);
    return work.weight_bytes;
}

/* An expert that both sequences of a step need is asked for once, and its bytes count once. */
static void test_sequences_share_experts(void **state)
{
    (void)state;
    const mox_model *m = models[2];
    mox_inspection shape;
    mox_model_inspect(m, &shape);
    const int64_t expert = shape.bytes_experts / (shape.n_experts * shape.n_layers_moe);
    static routed a, b, both, twice;
    int n_shared = 0;
    for (int i = 0; i + 1 < PROMPT; i += 11) {
        const int64_t bytes_a = bytes_of_step(m, &prompt[i], 1, &a), bytes_b = bytes_of_step(m, &prompt[i + 1], 1, &b);
        const int64_t bytes_both = bytes_of_step(m, &prompt[i], 2, &both);
        const int64_t row = bytes_of_step(m, (int32_t[]){prompt[i], prompt[i]}, 2, &twice) - bytes_a; /* of the embedding */
        assert_int_equal(twice.n, a.n);
        int n_union = 0;
        for (int k = 0; k < 64; k++)
            for (int x = 0; x < 256; x++) n_union += a.used[k][x] || b.used[k][x];
        assert_int_equal(both.n, n_union);
        assert_int_equal(bytes_both - row - bytes_a, expert * (n_union - a.n));
        assert_int_equal(bytes_both - row - bytes_b, expert * (n_union - b.n));
        n_shared += a.n + b.n - n_union;
    }
    assert_true(n_shared > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ragged_step_equals_single_steps),
        cmocka_unit_test(test_reference_bytes_do_not_depend_on_the_batch),
        cmocka_unit_test(test_all_rows_come_in_order_whatever_the_batch),
        cmocka_unit_test(test_threads_do_not_change_bytes),
        cmocka_unit_test(test_attention_models_return_anywhere),
        cmocka_unit_test(test_recurrent_models_return_to_checkpoints_only),
        cmocka_unit_test(test_states_are_saved_on_the_grid_and_thinned),
        cmocka_unit_test(test_cancelled_step_leaves_sequences_usable),
        cmocka_unit_test(test_a_flag_raised_before_the_step_costs_nothing),
        cmocka_unit_test(test_cancel_from_another_thread),
        cmocka_unit_test(test_the_only_checkpoint_outlives_a_failing_step),
        cmocka_unit_test(test_a_prompt_leaves_a_state_on_the_grid),
        cmocka_unit_test(test_failed_steps_leave_no_logits),
        cmocka_unit_test(test_callbacks_cannot_step_or_cut),
        cmocka_unit_test(test_failed_step_leaves_sequences_usable),
        cmocka_unit_test(test_step_allocates_nothing),
        cmocka_unit_test(test_wrong_steps_are_refused),
        cmocka_unit_test(test_wrong_contexts_are_refused),
        cmocka_unit_test(test_composed_operations_agree_with_fused_ones),
        cmocka_unit_test(test_narrow_caches_are_near_f32_and_smaller),
        cmocka_unit_test(test_sequences_share_experts),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
