/* tests/unit/test_second_turn.c -- how soon the second turn of a long conversation begins.
 *
 * A prompt of 4,000 tokens, a reply of 16, and a prompt with 32 more that goes on behind the reply,
 * or leaves the old one where a template rewrites the past (shortly before the reply): on a dense model, a
 * mixture of experts, a hybrid and one with latent attention; in the same process, and in one that
 * finds the states on disk.  The best of TRIES must take less than SHARE of the first turn's prefill; both are the
 * best of several conversations, and of more where something else keeps the machine busy: that is seldom idle for as
 * long as a first turn takes, so each of its batches counts by itself. */
#include "prefix_kit.h"

#include "base/clock.h"

#define SHARE 0.05

enum { PROMPT = 4000, BEFORE = 3995, REPLY = 16, TOTAL = 4048, TRIES = 3, ROUNDS = 2, MOST_ROUNDS = 8, N_TURNS = 4 };
enum { BATCH = 512, N_BATCHES = (BEFORE + BATCH - 1) / BATCH + 1 };

static const char *const turns[N_TURNS] = {"behind the reply", "before the reply", "behind, after a restart",
                                           "before, after a restart"};

/* Seconds, the fewest so far. */
typedef struct times {
    double first[N_BATCHES], second[N_TURNS];
} times;

static double first_of(const times *t)
{
    double sum = 0.0;
    for (int i = 0; i < N_BATCHES; i++) sum += t->first[i];
    return sum;
}

static const mox_context_opts context_opts = {.n_ctx = 4096, .n_seqs = 2, .prefix_bytes = 64 << 20};

static double prefill(mox_seq *s, const int32_t *tokens, int64_t n)
{
    const double begin = mox_clock_now();
    (void)step(s, tokens, n);
    return mox_clock_now() - begin;
}

/* Seconds until the first logits of the second turn, with what there is to adopt. */
static double second_turn(mox_prefix *p, mox_seq *s, const int32_t *tokens, int64_t want)
{
    const double begin = mox_clock_now();
    const int64_t at = adopt(p, s, tokens, TOTAL);
    (void)step(s, tokens + at, TOTAL - at);
    const double seconds = mox_clock_now() - begin;
    assert_int_equal(at, want);
    mox_seq_reset(s);
    return seconds;
}

static bool all_soon(const times *t)
{
    for (int i = 0; i < N_TURNS; i++)
        if (!(t->second[i] < SHARE * first_of(t))) return false;
    return true;
}

/* The same where nothing but the disk has it. */
static double after_restart(mox_context *c, mox_prefix_opts opts, mox_seq *s, const int32_t *tokens, int64_t want)
{
    mox_prefix *p = new_prefix(c, opts);
    const double seconds = second_turn(p, s, tokens, want);
    mox_prefix_destroy(&p);
    return seconds;
}

static void converse(const mox_model *m, const char *dir, times *best)
{
    int32_t tokens[TOTAL], other[TOTAL];
    const mox_prefix_opts opts = {.state_dir = dir, .model_key = "demo"};
    make_tokens(m, 1, tokens, TOTAL);
    make_tokens(m, 2, other, TOTAL);
    memcpy(other, tokens, BEFORE * sizeof *tokens);
    other[BEFORE] = (tokens[BEFORE] + 1) % (int32_t)m->dims.n_vocab;
    mox_context *c = new_context(m, context_opts);
    mox_prefix *p = new_prefix(c, opts);
    mox_seq *s = new_seq(c);
    for (int i = 0; i < N_BATCHES; i++) {
        const int64_t at = i * BATCH < BEFORE ? i * BATCH : BEFORE, limit = at < BEFORE ? BEFORE : PROMPT;
        if (at == BEFORE) mox_seq_checkpoint(s);
        best->first[i] = fmin(best->first[i], prefill(s, tokens + at, mox_min_i64(BATCH, limit - at)));
    }
    for (int64_t at = PROMPT; at < PROMPT + REPLY; at++) (void)step(s, tokens + at, 1);
    mox_prefix_keep(p, s);
    for (int k = 0; k < TRIES; k++) {
        best->second[0] = fmin(best->second[0], second_turn(p, s, tokens, PROMPT + REPLY));
        best->second[1] = fmin(best->second[1], second_turn(p, s, other, BEFORE));
    }
    mox_prefix_destroy(&p);
    for (int k = 0; k < TRIES; k++) {
        best->second[2] = fmin(best->second[2], after_restart(c, opts, s, tokens, PROMPT + REPLY));
        best->second[3] = fmin(best->second[3], after_restart(c, opts, s, other, BEFORE));
    }
    mox_context_destroy(&c);
}

static void test_the_second_turn_begins_soon(void **state)
{
    (void)state;
    for (int i = 0; i < N_DEMO; i++) {
        times best;
        int k = 0;
        for (int t = 0; t < N_BATCHES; t++) best.first[t] = 1e9;
        for (int t = 0; t < N_TURNS; t++) best.second[t] = 1e9;
        for (; k < ROUNDS || (k < MOST_ROUNDS && !all_soon(&best)); k++) {
            char dir[64];
            (void)snprintf(dir, sizeof dir, "%s/turn-%d-%d", scratch, i, k);
            converse(models[i], dir, &best);
        }
        print_message("%s, %d rounds\n", demo_dirs[i] + strlen(SOURCE_ROOT) + 1, k);
        const double first = first_of(&best);
        for (int t = 0; t < N_TURNS; t++)
            print_message("  %-24s %6.1f ms of %7.1f ms: %.2f %%\n", turns[t], 1e3 * best.second[t], 1e3 * first,
                          100 * best.second[t] / first);
        assert_true(all_soon(&best));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_second_turn_begins_soon)};
    return cmocka_run_group_tests(tests, open_models, close_models);
}
