/* tests/unit/test_prefix.c -- pages by reference, and beginnings that sequences leave to others.
 *
 * What a sequence computes behind an adopted beginning has the bytes of a sequence that made
 * the same calls itself.  Against one that was cut in another way, models with plain attention
 * have the same bytes on the reference kernels, and every model agrees to TOLERANCE of the largest
 * logit with f32 everywhere. */
#include "prefix_kit.h"

#include "base/alloc.h"
#include "fail_nth.h"

#define TOLERANCE 1e-5

enum { TURN = 150, NEXT = 20, LONGEST = 512 };

/* Every reference is a sequence's or the tree's, and what nobody holds is free. */
static void audit(const mox_context *c, const mox_prefix *p)
{
    mox_prefix_stats stats = {0};
    if (p) mox_prefix_get_stats(p, &stats);
    const int64_t each[] = {mox_page_bytes(c), (int64_t)mox_state_bytes(c)};
    int64_t held = stats.bytes, counted = 0;
    for (int64_t i = 0; i < c->n_seqs; i++) held += c->seqs[i].n_pages * each[0] + c->seqs[i].n_saved * each[1];
    for (int k = 0; k < MOX_N_SHARES; k++) {
        int64_t n_free = 0;
        for (int64_t i = 0; i < c->shares[k].n; i++) {
            counted += c->shares[k].refs[i] * each[k];
            n_free += c->shares[k].refs[i] == 0;
        }
        assert_int_equal(n_free, c->shares[k].n_free);
    }
    assert_int_equal(counted, held);
    assert_true(stats.bytes <= stats.bytes_max);
}

/* ---- the same numbers ---- */

static void test_a_second_turn_has_the_bytes_of_one_that_computed_everything(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        const mox_model *m = models[i];
        const mox_context_opts opts = {.n_seqs = 2, .n_batch = 64, .prefix_bytes = 64 << 20};
        int32_t tokens[TURN + NEXT];
        float want[MAX_VOCAB];
        make_tokens(m, 1, tokens, TURN + NEXT);
        mox_context *c = new_context(m, opts);
        mox_prefix *p = new_prefix(c, (mox_prefix_opts){0});
        mox_seq *first = new_seq(c), *second = new_seq(c);
        (void)step(first, tokens, TURN);
        mox_prefix_keep(p, first);
        assert_int_equal(mox_seq_length(first), 0);
        assert_int_equal(adopt(p, second, tokens, TURN + NEXT), TURN);
        assert_int_equal(mox_seq_length(second), TURN);
        fresh_logits(m, opts, tokens, TURN, TURN + NEXT, want);
        assert_same(m, step(second, tokens + TURN, NEXT), want);
        audit(c, p);
        mox_prefix_destroy(&p);
        audit(c, NULL);
        mox_context_destroy(&c);
    }
}

/* Prompts that part at `part`: how much is adopted, and how far the logits are from those of
 * a sequence that computed all in one go. */
static int64_t adopt_other(const mox_model *m, mox_context_opts opts, int64_t part, double *off)
{
    int32_t tokens[TURN + NEXT], other[TURN + NEXT];
    float want[MAX_VOCAB];
    make_tokens(m, 1, tokens, TURN);
    make_tokens(m, 2, other, TURN + NEXT);
    memcpy(other, tokens, (size_t)part * sizeof *tokens);
    other[part] = (tokens[part] + 1) % (int32_t)m->dims.n_vocab;
    mox_context *c = new_context(m, opts);
    mox_prefix *p = new_prefix(c, (mox_prefix_opts){0});
    mox_seq *s = new_seq(c);
    (void)step(s, tokens, TURN);
    mox_prefix_keep(p, s);
    const int64_t at = adopt(p, s, other, TURN + NEXT);
    fresh_logits(m, opts, other, 0, TURN + NEXT, want);
    *off = difference(m, step(s, other + at, TURN + NEXT - at), want);
    mox_prefix_destroy(&p);
    mox_context_destroy(&c);
    return at;
}

static void test_prompts_that_part_go_on_where_they_do(void **state)
{
    (void)state;
    static const int64_t parts[] = {1, 63, 64, 65, 100, 128, 149};
    for (int i = 0; i < N_MODELS; i++)
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
            double off;
            const int64_t at = adopt_other(models[i], (mox_context_opts){.exact = true, .n_batch = 64}, parts[k], &off);
            assert_int_equal(at, is_recurrent(models[i]) ? parts[k] / MOX_GRID * MOX_GRID : parts[k]);
            if (!(off <= TOLERANCE)) fail_msg("model %d, parting at %d: logits differ by %g", i, (int)parts[k], off);
            if ((i != DENSE && i != MOE) || k % 3 != 0) continue; /* latent attention chooses its form by lengths */
            (void)adopt_other(models[i], (mox_context_opts){.exact = true, .n_batch = 64, .isa = "ref"}, parts[k], &off);
            assert_true(off == 0);
        }
}

/* ---- sharing ---- */

static void test_pages_are_shared_until_they_are_written_to(void **state)
{
    (void)state;
    for (int i = 0; i < N_DEMO; i++) {
        const mox_model *m = models[i];
        const mox_context_opts opts = {.n_seqs = 3, .n_batch = 64};
        int32_t tokens[TURN + NEXT];
        float want[3][MAX_VOCAB];
        make_tokens(m, 3, tokens, TURN + NEXT);
        mox_context *c = new_context(m, opts);
        mox_prefix *p = new_prefix(c, (mox_prefix_opts){0});
        mox_share *pages = &c->shares[MOX_SHARE_PAGES];
        mox_seq *s[3];
        for (int j = 0; j < 3; j++) s[j] = new_seq(c);
        (void)step(s[0], tokens, TURN);
        mox_prefix_keep(p, s[0]);
        const int64_t n_free = pages->n_free;
        assert_int_equal(n_free, pages->n - 3);
        for (int j = 0; j < 3; j++) {
            assert_int_equal(adopt(p, s[j], tokens, TURN + NEXT), TURN);
            assert_int_equal(pages->n_free, n_free); /* nothing but references */
            tokens[TURN] = 10 + j;
            fresh_logits(m, opts, tokens, TURN, TURN + NEXT, want[j]);
        }
        for (int j = 0; j < 3; j++) { /* all go on inside the same page, in ways of their own */
            tokens[TURN] = 10 + j;
            (void)step(s[j], tokens + TURN, 1);
            assert_int_equal(pages->n_free, n_free - 1 - j);
        }
        for (int j = 0; j < 3; j++) {
            (void)step(s[j], tokens + TURN + 1, NEXT - 2);
            mox_prefix_keep(p, s[j]);
            audit(c, p);
        }
        for (int j = 0; j < 3; j++) { /* and none has disturbed another */
            tokens[TURN] = 10 + j;
            assert_int_equal(adopt(p, s[j], tokens, TURN + NEXT), TURN + NEXT - 1);
            float again[MAX_VOCAB];
            memcpy(again, step(s[j], tokens + TURN + NEXT - 1, 1), (size_t)m->dims.n_vocab * sizeof *again);
            mox_seq *t = s[j];
            mox_seq_reset(t);
            (void)step(t, tokens, TURN);
            (void)step(t, tokens + TURN, 1);
            (void)step(t, tokens + TURN + 1, NEXT - 2);
            assert_same(m, step(t, tokens + TURN + NEXT - 1, 1), again);
        }
        mox_prefix_destroy(&p);
        mox_context_destroy(&c);
    }
}

static void test_going_back_into_a_shared_page_leaves_it_alone(void **state)
{
    (void)state;
    const mox_model *m = models[DENSE];
    int32_t tokens[200], other[10];
    float want[MAX_VOCAB];
    mox_err err;
    make_tokens(m, 4, tokens, 200);
    make_tokens(m, 5, other, 10);
    mox_context *c = new_context(m, (mox_context_opts){.n_seqs = 2});
    mox_prefix *p = new_prefix(c, (mox_prefix_opts){0});
    mox_seq *a = new_seq(c), *b = new_seq(c);
    (void)step(a, tokens, 199);
    mox_prefix_keep(p, a);
    fresh_logits(m, (mox_context_opts){.n_seqs = 2}, tokens, 199, 200, want);
    assert_int_equal(adopt(p, a, tokens, 200), 199);
    assert_int_equal(mox_seq_cut(a, 70, &err), MOX_OK);
    (void)step(a, other, 10); /* into the second of its pages, which is full in the tree */
    assert_int_equal(adopt(p, b, tokens, 200), 199);
    assert_same(m, step(b, tokens + 199, 1), want);
    audit(c, p);
    mox_prefix_destroy(&p);
    mox_context_destroy(&c);
}

/* ---- the tree ---- */

static void keep_tokens(mox_prefix *p, mox_seq *s, const int32_t *tokens, int64_t n)
{
    const int64_t at = adopt(p, s, tokens, n);
    (void)step(s, tokens + at, n - at);
    mox_prefix_keep(p, s);
}

static void expect_adopted(mox_prefix *p, mox_seq *s, const int32_t *tokens, int64_t n, int64_t want, const char *sentence)
{
    char why[200];
    const int64_t at = mox_prefix_adopt(p, s, tokens, n, why, sizeof why);
    if (at != want || strcmp(why, sentence) != 0) fail_msg("adopted %d: \"%s\"; expected %d: \"%s\"", (int)at, why, (int)want, sentence);
    mox_seq_reset(s);
}

static void test_the_tree_says_what_it_knows(void **state)
{
    (void)state;
    const mox_model *m = models[DENSE];
    int32_t a[300], b[300], c200[300];
    make_tokens(m, 6, a, 300);
    memcpy(b, a, sizeof a);
    b[130]++; /* parts inside the third page */
    memcpy(c200, a, sizeof a);
    c200[192]++; /* parts between pages */
    mox_context *c = new_context(m, (mox_context_opts){.n_seqs = 2, .prefix_bytes = 64 << 20});
    mox_prefix *p = new_prefix(c, (mox_prefix_opts){0});
    mox_seq *s = new_seq(c);
    mox_prefix_stats stats;
    expect_adopted(p, s, a, 300, 0, "no such beginning is known");
    keep_tokens(p, s, a, 250);
    mox_prefix_get_stats(p, &stats);
    assert_int_equal(stats.n_prefixes, 1);
    assert_int_equal(stats.bytes, 4 * mox_page_bytes(c));
    expect_adopted(p, s, a, 300, 250, "what is known ends at token 250");
    expect_adopted(p, s, a, 200, 199, "all of it was known");
    expect_adopted(p, s, a, 250, 249, "all of it was known");
    expect_adopted(p, s, a, 1, 0, "all of it was known");
    expect_adopted(p, s, b, 300, 130, "what is known differs at token 130");
    expect_adopted(p, s, c200, 300, 192, "what is known differs at token 192");
    keep_tokens(p, s, b, 300);
    mox_prefix_get_stats(p, &stats);
    assert_int_equal(stats.n_prefixes, 2);
    assert_int_equal(stats.bytes, 7 * mox_page_bytes(c)); /* two of five are the first one's */
    expect_adopted(p, s, b, 300, 299, "all of it was known");
    expect_adopted(p, s, a, 300, 250, "what is known ends at token 250");
    keep_tokens(p, s, a, 252); /* the page that was not full is replaced */
    mox_prefix_get_stats(p, &stats);
    assert_int_equal(stats.n_prefixes, 2);
    assert_int_equal(stats.bytes, 7 * mox_page_bytes(c));
    expect_adopted(p, s, a, 300, 252, "what is known ends at token 252");
    keep_tokens(p, s, a, 100); /* all of it is known */
    mox_prefix_get_stats(p, &stats);
    assert_int_equal(stats.bytes, 7 * mox_page_bytes(c));
    assert_int_equal(stats.n_given_up, 0);
    audit(c, p);
    mox_prefix_destroy(&p);
    mox_context_destroy(&c);
}

static void test_recurrent_models_say_where_a_state_was_saved(void **state)
{
    (void)state;
    const mox_model *m = models[HYBRID];
    int32_t a[300], b[300];
    make_tokens(m, 7, a, 300);
    memcpy(b, a, sizeof a);
    b[200]++;
    mox_context *c = new_context(m, (mox_context_opts){.n_batch = 256});
    mox_prefix *p = new_prefix(c, (mox_prefix_opts){0});
    mox_seq *s = new_seq(c);
    (void)step(s, a, 150);
    mox_seq_checkpoint(s);
    (void)step(s, a + 150, 90);
    mox_prefix_keep(p, s);
    expect_adopted(p, s, a, 300, 240, "what is known ends at token 240");
    expect_adopted(p, s, b, 300, 192, "it is known up to token 200, but the recurrent state was last saved at 192");
    expect_adopted(p, s, a, 192, 150, "it is known up to token 192, but the recurrent state was last saved at 150");
    b[60]++;
    expect_adopted(p, s, b, 300, 0, "it is known up to token 60, but no recurrent state was saved before");
    mox_prefix_destroy(&p);
    mox_context_destroy(&c);
}

static void test_a_state_that_was_asked_for_outlives_a_long_reply(void **state)
{
    (void)state;
    const mox_model *m = models[HYBRID];
    int32_t tokens[LONGEST];
    make_tokens(m, 8, tokens, LONGEST);
    mox_context *c = new_context(m, (mox_context_opts){0});
    mox_seq *s = new_seq(c);
    (void)step(s, tokens, 190);
    mox_seq_checkpoint(s);
    for (int64_t at = 190; at + 16 <= LONGEST; at += 16) (void)step(s, tokens + at, 16);
    assert_int_equal(mox_seq_cut_point(s, 191), 190);
    mox_context_destroy(&c);
}

/* ---- memory ---- */

static void test_the_least_recently_used_gives_way(void **state)
{
    (void)state;
    const mox_model *m = models[DENSE];
    int32_t t[4][200];
    mox_context *c = new_context(m, (mox_context_opts){.n_seqs = 4});
    mox_prefix *p = new_prefix(c, (mox_prefix_opts){.max_bytes = 9 * mox_page_bytes(c)});
    mox_seq *s = new_seq(c);
    mox_prefix_stats stats;
    for (int i = 0; i < 4; i++) make_tokens(m, (uint64_t)(20 + i), t[i], 200);
    keep_tokens(p, s, t[0], 193); /* four pages each */
    keep_tokens(p, s, t[1], 193);
    expect_adopted(p, s, t[0], 194, 193, "all of it was known");
    keep_tokens(p, s, t[2], 193);
    expect_adopted(p, s, t[0], 194, 193, "all of it was known");
    expect_adopted(p, s, t[1], 193, 64, "what followed token 64 was given up for memory");
    mox_prefix_get_stats(p, &stats);
    assert_int_equal(stats.bytes, 9 * mox_page_bytes(c));
    assert_int_equal(stats.n_given_up, 3);
    audit(c, p);
    mox_prefix_destroy(&p);
    mox_context_destroy(&c);
}

/* Sequences get all that they have a right to, whatever is kept, and steps allocate nothing. */
static void test_what_is_kept_gives_way_to_running_sequences(void **state)
{
    (void)state;
    static const int which[] = {HYBRID, DENSE};
    for (size_t k = 0; k < sizeof which / sizeof *which; k++) {
        const mox_model *m = models[which[k]];
        const mox_context_opts opts = {.n_seqs = 2, .n_ctx = 320, .n_batch = 64, .n_checkpoints = 2};
        int32_t tokens[8][320];
        float want[MAX_VOCAB];
        mox_context *c = new_context(m, opts);
        mox_prefix *p = new_prefix(c, (mox_prefix_opts){0});
        mox_seq *s[2] = {new_seq(c), new_seq(c)};
        for (int i = 0; i < 8; i++) make_tokens(m, (uint64_t)(40 + i), tokens[i], 320);
        for (int i = 0; i < 4; i++) keep_tokens(p, s[0], tokens[i], 150);
        audit(c, p);
        assert_int_equal(adopt(p, s[0], tokens[2], 320), 150); /* the newest but one is in use */
        nth count = {0};
        mox_alloc_set_hook(fail_nth_alloc, &count);
        for (int64_t at = 150; at < 320; at += 10) {
            (void)step(s[0], tokens[2] + at, 10);
            (void)step(s[1], tokens[7] + (at - 150) / 10 * 18, 18);
            audit(c, p);
        }
        (void)step(s[1], tokens[7] + 306, 14);
        mox_alloc_set_hook(NULL, NULL);
        assert_int_equal(count.count, 0);
        assert_int_equal(mox_seq_length(s[0]), 320);
        mox_prefix_stats stats;
        mox_prefix_get_stats(p, &stats);
        assert_true(stats.n_given_up > 0);
        mox_seq_reset(s[0]);
        mox_prefix_keep(p, s[1]);
        assert_int_equal(adopt(p, s[0], tokens[7], 320), is_recurrent(m) ? 256 : 319);
        fresh_logits(m, opts, tokens[7], 306, 320, want);
        const int64_t at = mox_seq_length(s[0]);
        if (at < 306) (void)step(s[0], tokens[7] + at, 306 - at);
        else assert_int_equal(mox_seq_cut(s[0], 306, NULL), MOX_OK);
        assert_true(difference(m, step(s[0], tokens[7] + 306, 14), want) < 1e-2); /* 8-bit activations: a wrong page is far off */
        mox_prefix_destroy(&p);
        audit(c, NULL);
        mox_context_destroy(&c);
    }
}

/* A running sequence that shares its pages when the tree has others' for the same beginning: what only it has
 * hangs below pages that it does not hold, and those must be able to give way. */
static void test_pages_below_those_of_others_do_not_keep_them(void **state)
{
    (void)state;
    enum { SAME = 320, FIRST = 330, SECOND = 448 };
    const mox_model *m = models[DENSE];
    const mox_context_opts opts = {.n_seqs = 2};
    int32_t tokens[2][LONGEST], other[LONGEST];
    float want[MAX_VOCAB];
    mox_context *c = new_context(m, opts);
    mox_prefix *p = new_prefix(c, (mox_prefix_opts){0});
    mox_seq *a = new_seq(c), *b = new_seq(c);
    for (int i = 0; i < 2; i++) make_tokens(m, (uint64_t)(60 + i), tokens[i], LONGEST);
    memcpy(tokens[1], tokens[0], SAME * sizeof **tokens);
    make_tokens(m, 62, other, LONGEST);
    (void)step(a, tokens[0], FIRST);
    (void)step(b, tokens[1], SECOND);
    mox_prefix_keep(p, a);
    mox_prefix_share(p, b);
    audit(c, p);
    (void)step(a, other, LONGEST);
    audit(c, p);
    fresh_logits(m, opts, tokens[1], SECOND, LONGEST, want);
    assert_same(m, step(b, tokens[1] + SECOND, LONGEST - SECOND), want);
    mox_prefix_keep(p, b);
    audit(c, p);
    mox_seq_reset(a);
    assert_int_equal(adopt(p, b, tokens[1], LONGEST), LONGEST - 1);
    mox_prefix_destroy(&p);
    audit(c, NULL);
    mox_context_destroy(&c);
}

/* Where no state is to spare, the end takes the place of one that would be missed least. */
static void test_the_state_at_the_end_is_always_kept(void **state)
{
    (void)state;
    const mox_model *m = models[HYBRID];
    int32_t tokens[300];
    mox_context *c = new_context(m, (mox_context_opts){0});
    mox_prefix *p = new_prefix(c, (mox_prefix_opts){0});
    mox_seq *s = new_seq(c);
    make_tokens(m, 64, tokens, 300);
    for (int64_t at = 0; at < 256; at += MOX_GRID) (void)step(s, tokens + at, MOX_GRID);
    (void)step(s, tokens + 256, 24);
    assert_int_equal(s->n_saved, c->shares[MOX_SHARE_STATES].n);
    mox_prefix_keep(p, s);
    expect_adopted(p, s, tokens, 300, 280, "what is known ends at token 280");
    expect_adopted(p, s, tokens, 270, 256,
                   "it is known up to token 270, but the recurrent state was last saved at 256");
    audit(c, p);
    mox_prefix_destroy(&p);
    audit(c, NULL);
    mox_context_destroy(&c);
}

/* Where no page is to spare, the last page that a sequence has adopted becomes its own. */
static void test_a_prompt_that_ends_with_the_context_needs_no_spare_page(void **state)
{
    (void)state;
    static const int which[] = {DENSE, HYBRID};
    for (size_t k = 0; k < sizeof which / sizeof *which; k++) {
        const mox_model *m = models[which[k]];
        const mox_context_opts opts = {0};
        int32_t tokens[LONGEST];
        float want[MAX_VOCAB];
        mox_context *c = new_context(m, opts);
        mox_prefix *p = new_prefix(c, (mox_prefix_opts){0});
        mox_seq *s = new_seq(c);
        make_tokens(m, 63, tokens, LONGEST);
        (void)step(s, tokens, LONGEST - 3);
        mox_seq_checkpoint(s);
        (void)step(s, tokens + LONGEST - 3, 1);
        mox_prefix_keep(p, s);
        fresh_logits(m, opts, tokens, LONGEST - 3, LONGEST - 2, want);
        assert_int_equal(adopt(p, s, tokens, LONGEST - 2), LONGEST - 3);
        assert_same(m, step(s, tokens + LONGEST - 3, 1), want);
        audit(c, p);
        assert_int_equal(c->shares[MOX_SHARE_PAGES].n_free, 0);
        mox_prefix_keep(p, s);
        expect_adopted(p, s, tokens, LONGEST, LONGEST - 2, "what is known ends at token 510");
        audit(c, p);
        mox_prefix_destroy(&p);
        audit(c, NULL);
        mox_context_destroy(&c);
    }
}

static void test_plans_count_what_is_kept(void **state)
{
    (void)state;
    for (int i = 0; i < N_DEMO; i++) {
        const mox_model *m = models[i];
        const mox_context_opts without = {.n_ctx = 512}, with = {.n_ctx = 512, .prefix_bytes = 20 << 20};
        mox_context_sizes a, b;
        mox_err err;
        assert_int_equal(mox_context_measure(m, &without, &a, &err), MOX_OK);
        assert_int_equal(mox_context_measure(m, &with, &b, &err), MOX_OK);
        mox_context *c = new_context(m, with);
        const int64_t more = b.cache_bytes - a.cache_bytes;
        assert_true(more <= with.prefix_bytes && more > with.prefix_bytes - mox_page_bytes(c) - (int64_t)mox_state_bytes(c));
        assert_int_equal(b.cache_bytes, c->cache_bytes + c->state_bytes);
        assert_int_equal(mox_context_bytes(c) + mox_tree_table_bytes(c), b.cache_bytes + b.step_bytes + b.small_bytes);
        const int64_t before = mox_alloc_live();
        mox_prefix *p = new_prefix(c, (mox_prefix_opts){0});
        assert_true(mox_alloc_live() - before <= mox_tree_table_bytes(c) + 8192); /* the tables, and the object itself */
        mox_prefix_destroy(&p);
        mox_context_destroy(&c);
    }
}

static void raise_flag(void *user, int64_t done, int64_t total)
{
    (void)done, (void)total;
    mox_cancel_raise(user);
}

static void test_a_cancelled_step_returns_to_what_was_adopted(void **state)
{
    (void)state;
    for (int i = 0; i < N_DEMO; i++) {
        const mox_model *m = models[i];
        int32_t tokens[300];
        mox_err err;
        make_tokens(m, 9, tokens, 300);
        mox_context *c = new_context(m, (mox_context_opts){.n_batch = 64});
        mox_prefix *p = new_prefix(c, (mox_prefix_opts){0});
        mox_seq *s = new_seq(c);
        keep_tokens(p, s, tokens, 100);
        assert_int_equal(adopt(p, s, tokens, 300), 100);
        mox_cancel cancel = {0};
        const mox_segment g = {.seq = s, .tokens = tokens + 100, .n = 200, .want = MOX_WANT_LAST};
        assert_int_equal(mox_step(c, &g, 1, &(mox_step_opts){.cancel = &cancel, .progress = raise_flag, .progress_user = &cancel}, &err),
                         MOX_E_CANCELLED);
        assert_int_equal(mox_seq_length(s), 100);
        audit(c, p);
        mox_prefix_keep(p, s);
        assert_int_equal(adopt(p, s, tokens, 300), 100);
        mox_prefix_destroy(&p);
        mox_context_destroy(&c);
    }
}

/* ---- anything in any order ---- */

typedef struct player {
    mox_seq *seq;
    int32_t tokens[256];
    int64_t n; /* 0: it has no prompt */
} player;

/* A prompt of 20 to 250 tokens that begins like others, and parts from them anywhere. */
static void random_prompt(mox_rng *rng, const mox_model *m, player *a)
{
    a->n = 20 + (int64_t)(mox_rng_u64(rng) % 230);
    make_tokens(m, 100 + mox_rng_u64(rng) % 3, a->tokens, 256);
    const int64_t part = (int64_t)(mox_rng_u64(rng) % 256);
    int32_t rest[256];
    make_tokens(m, 200 + mox_rng_u64(rng) % 3, rest, 256);
    memcpy(a->tokens + part, rest, (size_t)(256 - part) * sizeof *rest);
}

static void play(const mox_model *m, uint64_t seed, int n_turns)
{
    mox_rng rng;
    mox_rng_init(&rng, seed);
    const mox_context_opts opts = {.n_seqs = 3, .n_ctx = 256, .n_batch = 64, .n_checkpoints = 2, .exact = true};
    mox_context *c = new_context(m, opts);
    mox_prefix *p = new_prefix(c, (mox_prefix_opts){.max_bytes = 8 * mox_page_bytes(c) + 5 * (int64_t)mox_state_bytes(c)});
    player players[3] = {0};
    for (int i = 0; i < 3; i++) players[i].seq = new_seq(c);
    for (int turn = 0; turn < n_turns; turn++) {
        player *a = &players[mox_rng_u64(&rng) % 3];
        const int64_t length = mox_seq_length(a->seq);
        if (a->n == 0) {
            random_prompt(&rng, m, a);
            if (mox_rng_u64(&rng) % 2 == 0) mox_prefix_share(p, players[mox_rng_u64(&rng) % 3].seq); /* it goes on */
            const int64_t at = adopt(p, a->seq, a->tokens, a->n);
            assert_true(at < a->n);
        } else if (mox_rng_u64(&rng) % 4 == 0) {
            mox_prefix_keep(p, a->seq);
            a->n = 0;
        } else if (mox_rng_u64(&rng) % 8 == 0) {
            assert_int_equal(mox_seq_cut(a->seq, mox_seq_cut_point(a->seq, (int64_t)(mox_rng_u64(&rng) % 256)), NULL), MOX_OK);
        } else {
            if (mox_rng_u64(&rng) % 8 == 0) mox_seq_checkpoint(a->seq);
            const int64_t take = mox_min_i64(1 + (int64_t)(mox_rng_u64(&rng) % 90), 256 - length);
            if (take == 0) continue;
            float got[MAX_VOCAB], want[MAX_VOCAB];
            memcpy(got, step(a->seq, a->tokens + length, take), (size_t)m->dims.n_vocab * sizeof *got);
            fresh_logits(m, opts, a->tokens, 0, length + take, want);
            const double off = difference(m, got, want);
            if (!(off <= TOLERANCE))
                fail_msg("game %d, turn %d: logits differ by %g after %d and %d tokens", (int)seed, turn, off, (int)length, (int)take);
        }
        audit(c, p);
    }
    mox_prefix_stats stats;
    mox_prefix_get_stats(p, &stats);
    assert_true(stats.n_hits > 5 && stats.n_given_up > 5);
    mox_prefix_destroy(&p);
    mox_context_destroy(&c);
}

/* Not the hybrid with experts: where two of them tie, a rounding decides, and the way a run is
 * cut moves logits by more than TOLERANCE, with prefixes or without. */
static void test_any_order_of_calls_gives_the_numbers_of_a_fresh_run(void **state)
{
    (void)state;
    play(models[DENSE], 1, 250);
    play(models[HYBRID_DENSE], 2, 250);
    play(models[LATENT], 3, 100);
}

/* ---- refusals ---- */

static void test_failing_allocations_are_refused(void **state)
{
    (void)state;
    mox_context *c = new_context(models[HYBRID], (mox_context_opts){0});
    mox_status status = MOX_E_MEMORY;
    nth n = {0};
    for (n.at = 1; status != MOX_OK; n.at++) {
        mox_prefix *p;
        mox_err err;
        n.count = 0;
        mox_alloc_set_hook(fail_nth_alloc, &n);
        status = mox_prefix_create(&p, c, NULL, &err);
        mox_alloc_set_hook(NULL, NULL);
        assert_true(status == MOX_OK ? p != NULL : status == MOX_E_MEMORY && p == NULL && err.msg[0]);
        if (status == MOX_OK) {
            mox_prefix *second;
            assert_int_equal(mox_prefix_create(&second, c, NULL, &err), MOX_E_ARG);
        }
        mox_prefix_destroy(&p);
        assert_true(c->reclaim == NULL);
    }
    assert_true(n.at > 4);
    mox_context_destroy(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_second_turn_has_the_bytes_of_one_that_computed_everything),
        cmocka_unit_test(test_prompts_that_part_go_on_where_they_do),
        cmocka_unit_test(test_pages_are_shared_until_they_are_written_to),
        cmocka_unit_test(test_going_back_into_a_shared_page_leaves_it_alone),
        cmocka_unit_test(test_the_tree_says_what_it_knows),
        cmocka_unit_test(test_recurrent_models_say_where_a_state_was_saved),
        cmocka_unit_test(test_a_state_that_was_asked_for_outlives_a_long_reply),
        cmocka_unit_test(test_the_least_recently_used_gives_way),
        cmocka_unit_test(test_what_is_kept_gives_way_to_running_sequences),
        cmocka_unit_test(test_pages_below_those_of_others_do_not_keep_them),
        cmocka_unit_test(test_the_state_at_the_end_is_always_kept),
        cmocka_unit_test(test_a_prompt_that_ends_with_the_context_needs_no_spare_page),
        cmocka_unit_test(test_plans_count_what_is_kept),
        cmocka_unit_test(test_a_cancelled_step_returns_to_what_was_adopted),
        cmocka_unit_test(test_any_order_of_calls_gives_the_numbers_of_a_fresh_run),
        cmocka_unit_test(test_failing_allocations_are_refused),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
