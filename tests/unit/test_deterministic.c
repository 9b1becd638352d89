/* tests/unit/test_deterministic.c -- in a deterministic context a token's logits are the same bytes
 * however its prompt was cut and whoever shared its steps.
 *
 * The models are folders on the command line.  Each computes one timeline alone, in long segments,
 * and again in random pieces beside 3 and 8 other sequences that do what they like; every row of
 * logits must have the same bytes.  That the comparison can fail is shown by contexts that are not
 * deterministic: there it must. */
#include "base/rng.h"
#include "moxie/tools.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    MODELS_MAX = 32,
    OTHERS_MAX = 8,
    PROMPT_MAX = 1100, /* more than attention reads in one piece */
    PROMPT_SHORT = 150,
    N_LONG = 4, /* models, the first ones, that compute long prompts */
    REPLY = 40
};

static int n_models;
static char **model_dirs;
static mox_model *models[MODELS_MAX];
static int64_t V; /* of the model under test */
static int32_t tokens[PROMPT_MAX + REPLY];

static int open_models(void **state)
{
    (void)state;
    for (int i = 0; i < n_models; i++) {
        mox_err err;
        if (mox_model_open(&models[i], model_dirs[i], NULL, &err) == MOX_OK) continue;
        print_error("%s\n", err.msg);
        return -1;
    }
    return 0;
}

static int close_models(void **state)
{
    (void)state;
    for (int i = 0; i < n_models; i++) mox_model_close(&models[i]);
    return 0;
}

static mox_context *new_context(const mox_model *m, mox_context_opts opts, int32_t n_seqs, int64_t n_ctx)
{
    mox_context *c;
    mox_err err;
    opts.n_seqs = n_seqs;
    opts.n_ctx = n_ctx;
    opts.n_batch = 256;
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

static void keep_row(void *user, int32_t segment, int64_t row, const float *logits)
{
    float *rows = user; /* of segment 0 */
    if (segment == 0) memcpy(rows + row * V, logits, (size_t)V * sizeof *rows);
}

static void step(mox_context *c, const mox_segment *segments, int32_t n, float *rows)
{
    mox_err err;
    if (mox_step(c, segments, n, &(mox_step_opts){.on_logits = keep_row, .on_logits_user = rows}, &err) != MOX_OK)
        fail_msg("%s", err.msg);
}

/* The timeline alone: the prompt in one segment, then token by token. */
static void run_alone(const mox_model *m, mox_context_opts opts, int64_t n_prompt, float *rows)
{
    mox_context *c = new_context(m, opts, 1, n_prompt + REPLY);
    mox_seq *s = new_seq(c);
    for (int64_t at = 0; at < n_prompt + REPLY;) {
        const int64_t n = at == 0 ? n_prompt : 1;
        step(c, &(mox_segment){.seq = s, .tokens = tokens + at, .n = n, .want = MOX_WANT_ALL}, 1, rows + at * V);
        at += n;
    }
    mox_seq_destroy(&s);
    mox_context_destroy(&c);
}

/* Mostly short pieces, now and then a long one. */
static int64_t random_piece(mox_rng *rng, int64_t left)
{
    static const int64_t most[] = {1, 1, 3, 8, 24, 90, 200};
    const int64_t n = 1 + (int64_t)(mox_rng_u64(rng) % (uint64_t)most[mox_rng_u64(rng) % 7]);
    return n < left ? n : left;
}

/* The same among others; it is the first segment of every step. */
static void run_among(const mox_model *m, mox_context_opts opts, int64_t n_prompt, int32_t n_others, float *rows)
{
    const int64_t n_ctx = n_prompt + REPLY;
    mox_context *c = new_context(m, opts, 1 + n_others, n_ctx);
    mox_seq *s = new_seq(c), *others[OTHERS_MAX];
    mox_rng rng;
    mox_rng_init(&rng, (uint64_t)n_others);
    for (int32_t i = 0; i < n_others; i++) others[i] = new_seq(c);
    for (int64_t at = 0; at < n_ctx;) {
        mox_segment g[1 + OTHERS_MAX];
        int32_t n_segments = 0;
        const int64_t n = at < n_prompt ? random_piece(&rng, n_prompt - at) : 1;
        g[n_segments++] = (mox_segment){.seq = s, .tokens = tokens + at, .n = n, .want = MOX_WANT_ALL};
        for (int32_t i = 0; i < n_others; i++) {
            if (mox_rng_u64(&rng) % 4 == 0) continue;
            const int64_t piece = random_piece(&rng, 200), from = (int64_t)(mox_rng_u64(&rng) % (uint64_t)n_prompt);
            if (mox_seq_length(others[i]) + piece > n_ctx) mox_seq_reset(others[i]);
            const int64_t n_other = from + piece <= n_ctx ? piece : 1;
            g[n_segments++] = (mox_segment){.seq = others[i], .tokens = tokens + from, .n = n_other, .want = MOX_WANT_LAST};
        }
        step(c, g, n_segments, rows + at * V);
        at += n;
    }
    for (int32_t i = 0; i < n_others; i++) mox_seq_destroy(&others[i]);
    mox_seq_destroy(&s);
    mox_context_destroy(&c);
}

/* The first row that differs, or -1. */
static int64_t first_difference(const mox_model *m, mox_context_opts opts, int64_t n_prompt, int32_t n_others)
{
    const int64_t n = n_prompt + REPLY;
    float *alone = malloc((size_t)(n * V) * sizeof *alone), *among = malloc((size_t)(n * V) * sizeof *among);
    assert_non_null(alone);
    assert_non_null(among);
    run_alone(m, opts, n_prompt, alone);
    run_among(m, opts, n_prompt, n_others, among);
    int64_t row = 0;
    while (row < n && memcmp(alone + row * V, among + row * V, (size_t)V * sizeof *alone) == 0) row++;
    free(alone);
    free(among);
    return row < n ? row : -1;
}

static int64_t prompt_of(const mox_model *m, int64_t n_wanted)
{
    mox_model_info info;
    mox_model_get_info(m, &info);
    V = info.n_vocab;
    for (int i = 0; i < PROMPT_MAX + REPLY; i++) tokens[i] = (int32_t)((i * 7919LL + 13) % V);
    return info.n_ctx_max - REPLY < n_wanted ? info.n_ctx_max - REPLY : n_wanted;
}

static void compare(mox_context_opts opts, int64_t n_wanted, const char *what)
{
    opts.deterministic = true;
    for (int i = 0; i < (n_wanted == PROMPT_MAX ? N_LONG : n_models); i++) {
        const int64_t n_prompt = prompt_of(models[i], n_wanted);
        for (int32_t n_others = n_wanted == PROMPT_MAX ? OTHERS_MAX : 3; n_others <= OTHERS_MAX; n_others += 5) {
            const int64_t row = first_difference(models[i], opts, n_prompt, n_others);
            if (row >= 0)
                fail_msg("%s, %s: with %d others the logits of token %lld of %lld differ", model_dirs[i], what, (int)n_others,
                         (long long)row, (long long)n_prompt);
        }
    }
}

static void test_default(void **state)
{
    (void)state;
    compare((mox_context_opts){0}, PROMPT_SHORT, "default precision");
}

static void test_long(void **state)
{
    (void)state;
    compare((mox_context_opts){0}, PROMPT_MAX, "long prompts");
}

static void test_exact(void **state)
{
    (void)state;
    compare((mox_context_opts){.exact = true}, PROMPT_SHORT, "exact");
}

static void test_fast_q8(void **state)
{
    (void)state;
    compare((mox_context_opts){.fast = true, .kv_type = MOX_KV_Q8}, PROMPT_SHORT, "fast with a q8 cache");
}

static void test_levels(void **state)
{
    (void)state;
    for (int level = 1; level < mox_isa_count(); level++)
        if (mox_isa_available(level)) compare((mox_context_opts){.isa = mox_isa_name(level)}, PROMPT_SHORT, mox_isa_name(level));
}

static void test_others_matter_otherwise(void **state)
{
    (void)state;
    int n_differ = 0;
    for (int i = 0; i < n_models; i++)
        n_differ += first_difference(models[i], (mox_context_opts){0}, prompt_of(models[i], PROMPT_SHORT), 8) >= 0;
    assert_int_equal(n_differ, n_models);
}

int main(int argc, char **argv)
{
    n_models = argc - 1;
    model_dirs = argv + 1;
    if (n_models < N_LONG || n_models > MODELS_MAX) return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default), cmocka_unit_test(test_long), cmocka_unit_test(test_exact),
        cmocka_unit_test(test_fast_q8), cmocka_unit_test(test_levels), cmocka_unit_test(test_others_matter_otherwise),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
