/* tests/unit/test_together.c -- sequences that generate together on a GPU, here an emulated one.
 *
 * A batch with one token of each sequence goes through kernels of its own (dev/gpu/few.h), which must be as exact as those
 * for one token: logits are compared with the reference kernels of the processor.  That the bound is small enough to
 * notice operands in f16 is shown by a prompt that is long enough to be computed that way.  Caches are f32, so that nothing
 * else is rounded.
 *
 * The models are folders on the command line. */
#include "moxie/tools.h"
#include "runtime/context.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEQUENCES = 6, PROMPT = 5, REPLY = 2, LONG = 70 };

/* Largest difference of logits, in parts of their standard deviation. */
static const double bound = 1e-4;

static char **dirs;
static int n_dirs;

static void ok(mox_status status, const mox_err *err)
{
    if (status != MOX_OK) fail_msg("%s", err->msg);
}

typedef struct engine {
    mox_context *c;
    mox_seq *seqs[SEQUENCES];
} engine;

static engine start(const mox_model *m, bool is_gpu)
{
    engine e;
    mox_err err;
    const mox_context_opts o = {.device = is_gpu ? "emu" : "cpu", .isa = is_gpu ? NULL : "ref", .exact = !is_gpu, .n_ctx = 128, .n_batch = LONG,
                                .n_seqs = SEQUENCES, .kv_type = MOX_KV_F32};
    ok(mox_context_create(&e.c, m, &o, &err), &err);
    for (int i = 0; i < SEQUENCES; i++) ok(mox_seq_create(&e.seqs[i], e.c, &err), &err);
    return e;
}

static int32_t token_of(int sequence, int at) { return (sequence * 53 + at * 37 + 11) % 200; }

/* Tokens `from` to `from` + n of all sequences in one step, or of one; keeps the logits of the last ones. */
static void step(const engine *e, int first, int n_seqs, int from, int n, float *logits)
{
    mox_err err;
    mox_segment segments[SEQUENCES];
    int32_t tokens[SEQUENCES][LONG];
    const int64_t V = e->c->model->dims.n_vocab;
    for (int i = 0; i < n_seqs; i++) {
        for (int t = 0; t < n; t++) tokens[i][t] = token_of(first + i, from + t);
        segments[i] = (mox_segment){.seq = e->seqs[first + i], .tokens = tokens[i], .n = n, .want = MOX_WANT_LAST};
    }
    ok(mox_step(e->c, segments, n_seqs, NULL, &err), &err);
    for (int i = 0; i < n_seqs; i++) memcpy(logits + (first + i) * V, mox_logits_row(e->c, i), (size_t)V * sizeof *logits);
}

static double apart(const float *got, const float *want, int64_t n)
{
    double mean = 0, spread = 0, most = 0;
    for (int64_t i = 0; i < n; i++) mean += (double)want[i] / (double)n;
    for (int64_t i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - (double)want[i]);
        spread += ((double)want[i] - mean) * ((double)want[i] - mean) / (double)n;
        most = d > most || isnan(d) ? d : most;
    }
    return most / sqrt(spread);
}

static void check(const char *dir, bool is_first)
{
    mox_model *m;
    mox_err err;
    ok(mox_model_open(&m, dir, NULL, &err), &err);
    const int64_t V = m->dims.n_vocab;
    float *want = malloc((size_t)(SEQUENCES * V) * sizeof *want), *got = malloc((size_t)(SEQUENCES * V) * sizeof *got);
    assert_non_null(want);
    assert_non_null(got);
    engine ref = start(m, false), gpu = start(m, true);
    for (int i = 0; i < SEQUENCES; i++) {
        step(&ref, i, 1, 0, PROMPT + i % 2, want); /* so they are not all at one position */
        step(&gpu, i, 1, 0, PROMPT + i % 2, got);
    }
    for (int t = 0; t < REPLY; t++) {
        for (int i = 0; i < SEQUENCES; i++) step(&ref, i, 1, LONG + t, 1, want);
        step(&gpu, 0, SEQUENCES, LONG + t, 1, got);
        for (int i = 0; i < SEQUENCES; i++) {
            const double off = apart(got + i * V, want + i * V, V);
            if (!(off < bound)) fail_msg("%s: sequence %d is off by %g after %d tokens together", dir, i, off, t + 1);
        }
    }
    if (is_first) {
        step(&ref, 0, 1, 0, LONG, want);
        step(&gpu, 0, 1, 0, LONG, got);
        assert_true(apart(got, want, V) > bound); /* operands in f16 */
    }
    mox_context_destroy(&ref.c);
    mox_context_destroy(&gpu.c);
    free(want);
    free(got);
    mox_model_close(&m);
}

static void test_together(void **state)
{
    (void)state;
    for (int i = 0; i < n_dirs; i++) check(dirs[i], i == 0);
}

int main(int argc, char **argv)
{
    dirs = argv + 1;
    n_dirs = argc - 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_together)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
