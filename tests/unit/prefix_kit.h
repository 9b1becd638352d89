/* tests/unit/prefix_kit.h -- models, contexts and sequences for the tests of kept prefixes: the
 * demo models and a fixture of every family. */
#ifndef TESTS_PREFIX_KIT_H
#define TESTS_PREFIX_KIT_H

#include "base/rng.h"
#include "base/size.h"
#include "runtime/context.h"
#include "runtime/prefix.h"
#include "runtime/prefix_tree.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const demo_dirs[] = {SOURCE_ROOT "/models/demo", SOURCE_ROOT "/tests/data/models/demo-qwen3",
                                        SOURCE_ROOT "/tests/data/models/demo-qwen3-moe",
                                        SOURCE_ROOT "/tests/data/models/demo-deepseek-v3"};
static const char *const fixture_names[] = {"qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "deepseek_v3"};
enum { HYBRID = 0, DENSE = 1, MOE = 2, LATENT = 3, N_DEMO = 4, HYBRID_DENSE = N_DEMO + 3, N_MODELS = N_DEMO + 6, MAX_VOCAB = 2048 };
static mox_model *models[N_MODELS];
static char scratch[] = "/tmp/moxie-prefix-XXXXXX";

static int close_models(void **state)
{
    (void)state;
    char command[128];
    for (int i = 0; i < N_MODELS; i++) mox_model_close(&models[i]);
    (void)snprintf(command, sizeof command, "rm -rf '%s'", scratch);
    return system(command);
}

static int open_models(void **state)
{
    (void)state;
    char command[512], path[128];
    mox_err err;
    if (!mkdtemp(scratch)) return -1;
    (void)snprintf(command, sizeof command, "python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' '%s' '%s'",
                   SOURCE_ROOT "/tests/data/fixtures.tar.xz", scratch);
    if (system(command) != 0) return -1;
    for (int i = 0; i < N_MODELS; i++) {
        if (i >= N_DEMO) (void)snprintf(path, sizeof path, "%s/%s", scratch, fixture_names[i - N_DEMO]);
        if (mox_model_open(&models[i], i < N_DEMO ? demo_dirs[i] : path, NULL, &err) != MOX_OK) {
            print_error("%s\n", err.msg);
            return -1;
        }
        if (models[i]->dims.n_vocab > MAX_VOCAB) return -1;
    }
    return 0;
}

static inline bool is_recurrent(const mox_model *m) { return m->recurrent_floats > 0; }

/* Tokens that depend on the seed. */
static inline void make_tokens(const mox_model *m, uint64_t seed, int32_t *out, int64_t n)
{
    mox_rng rng;
    mox_rng_init(&rng, seed);
    for (int64_t i = 0; i < n; i++) out[i] = (int32_t)(mox_rng_u64(&rng) % (uint64_t)m->dims.n_vocab);
}

static inline mox_context *new_context(const mox_model *m, mox_context_opts opts)
{
    mox_context *c;
    mox_err err;
    if (opts.n_ctx == 0) opts.n_ctx = mox_min_i64(512, m->dims.n_ctx_max);
    if (opts.n_threads == 0) opts.n_threads = 2;
    if (mox_context_create(&c, m, &opts, &err) != MOX_OK) fail_msg("%s", err.msg);
    return c;
}

static inline mox_prefix *new_prefix(mox_context *c, mox_prefix_opts opts)
{
    mox_prefix *p;
    mox_err err;
    if (mox_prefix_create(&p, c, &opts, &err) != MOX_OK) fail_msg("%s", err.msg);
    return p;
}

static inline mox_seq *new_seq(mox_context *c)
{
    mox_seq *s;
    mox_err err;
    if (mox_seq_create(&s, c, &err) != MOX_OK) fail_msg("%s", err.msg);
    return s;
}

static inline const float *step(mox_seq *s, const int32_t *tokens, int64_t n)
{
    mox_err err;
    const mox_segment g = {.seq = s, .tokens = tokens, .n = n, .want = MOX_WANT_LAST};
    if (mox_step(s->context, &g, 1, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    return mox_logits_row(s->context, 0);
}

/* Last logits of tokens that a fresh sequence computes, in the parts [0, cut) and [cut, n). */
static inline void fresh_logits(const mox_model *m, mox_context_opts opts, const int32_t *tokens, int64_t cut, int64_t n, float *out)
{
    mox_context *c = new_context(m, opts);
    mox_seq *s = new_seq(c);
    if (cut > 0) (void)step(s, tokens, cut);
    memcpy(out, step(s, tokens + cut, n - cut), (size_t)m->dims.n_vocab * sizeof *out);
    mox_context_destroy(&c);
}

static inline void assert_same(const mox_model *m, const float *a, const float *b)
{
    assert_memory_equal(a, b, (size_t)m->dims.n_vocab * sizeof *a);
}

/* The largest difference, as part of the largest logit. */
static inline double difference(const mox_model *m, const float *a, const float *b)
{
    double range = 0, worst = 0;
    for (int64_t i = 0; i < m->dims.n_vocab; i++) {
        range = fmax(range, fabs((double)b[i]));
        const double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst)) worst = d; /* a NaN, too */
    }
    return worst / range;
}

static inline int64_t adopt(mox_prefix *p, mox_seq *s, const int32_t *tokens, int64_t n)
{
    char why[200];
    return mox_prefix_adopt(p, s, tokens, n, why, sizeof why);
}

#endif
