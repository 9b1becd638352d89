/* tests/unit/test_pace.c -- who computes when, on machines that are made up: a step takes
 * fixed_s + token_s per token, so that it is known what a fair share is. */
#include "runtime/pace.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { N_BATCH = 512, ITEMS_MAX = 64 };

typedef struct machine {
    double fixed_s, generating_s, prompt_s;
} machine;

static int64_t taken(const mox_pace_item *items, int32_t n, bool generating)
{
    int64_t total = 0;
    for (int32_t i = 0; i < n; i++)
        if (items[i].generating == generating) total += items[i].take;
    return total;
}

/* One step; returns its seconds. */
static double run(mox_pace *p, const machine *m, mox_pace_item *items, int32_t n)
{
    mox_pace_share(p, items, n);
    const double seconds = m->fixed_s + m->generating_s * (double)taken(items, n, true) + m->prompt_s * (double)taken(items, n, false);
    mox_pace_ran(p, items, n, seconds);
    for (int32_t i = 0; i < n; i++)
        if (!items[i].generating) items[i].left -= items[i].take;
    return seconds;
}

/* ---- how much ---- */

static void test_alone_takes_the_batch(void **state)
{
    (void)state;
    mox_pace p;
    mox_pace_init(&p, N_BATCH);
    mox_pace_item item = {.order = 1, .left = 1300};
    mox_pace_share(&p, &item, 1);
    assert_int_equal(item.take, N_BATCH);
    item.left = 20;
    mox_pace_share(&p, &item, 1);
    assert_int_equal(item.take, 20);
}

/* Steps beside replies settle at a few times a step without prompt tokens, on machines that are
 * a thousand times as fast as others, and everyone who generates is in every step. */
static void test_replies_keep_their_pace(void **state)
{
    (void)state;
    static const machine machines[] = {{1e-4, 1e-5, 1e-5}, {0.05, 0.01, 0.004}, {0.2, 0.0, 0.02}, {1e-3, 1e-3, 1e-6}};
    for (size_t k = 0; k < sizeof machines / sizeof *machines; k++)
        for (int32_t n_generating = 1; n_generating <= 33; n_generating += 8) {
            const machine *m = &machines[k];
            const double alone = m->fixed_s + m->generating_s * n_generating;
            mox_pace p;
            mox_pace_init(&p, N_BATCH);
            mox_pace_item items[ITEMS_MAX] = {{0}};
            for (int32_t i = 0; i < n_generating; i++) items[i].generating = true;
            items[n_generating] = (mox_pace_item){.order = 1, .left = 1 << 24};
            int64_t prompt = 0;
            double worst = 0;
            for (int i = 0; i < 200; i++) {
                const double seconds = run(&p, m, items, n_generating + 1);
                assert_int_equal(taken(items, n_generating + 1, true), n_generating);
                if (i >= 100 && seconds > worst) worst = seconds;
                if (i >= 100) prompt += items[n_generating].take;
            }
            assert_true(worst <= 3 * alone);
            const int64_t room = N_BATCH - n_generating;
            const int64_t most = (int64_t)(1.5 * alone / m->prompt_s), fair = most < room ? most : room;
            assert_true(prompt >= 70 * fair); /* of 100 steps, some of which measure */
        }
}

/* The machine becomes ten times slower for prompts: the pace follows within some steps. */
static void test_follows_changes(void **state)
{
    (void)state;
    machine m = {0.02, 0.001, 0.001};
    mox_pace p;
    mox_pace_init(&p, N_BATCH);
    mox_pace_item items[2] = {{.generating = true}, {.order = 1, .left = 1 << 24}};
    for (int i = 0; i < 60; i++) (void)run(&p, &m, items, 2);
    m.prompt_s *= 10;
    for (int i = 0; i < 8; i++) (void)run(&p, &m, items, 2);
    for (int i = 0; i < 60; i++) assert_true(run(&p, &m, items, 2) <= 3 * (m.fixed_s + m.generating_s));
}

/* Several prompts share a step when it is short, and not when it is long. */
static void test_joint_steps_are_short(void **state)
{
    (void)state;
    for (double token_s = 1e-5; token_s < 0.1; token_s *= 3) {
        const machine m = {0, 0, token_s};
        mox_pace p;
        mox_pace_init(&p, N_BATCH);
        mox_pace_item items[4] = {{.order = 1, .left = 1 << 20}, {.order = 2, .left = 1 << 20}, {.order = 3, .left = 90}, {.order = 4, .left = 50}};
        for (int i = 0; i < 40; i++) {
            items[2].left = 90;
            items[3].left = 50;
            const double seconds = run(&p, &m, items, 4);
            int n_in = 0;
            for (int k = 0; k < 4; k++) n_in += items[k].take > 0;
            assert_true(n_in == 1 || seconds < 0.3);
            if (i > 0 && token_s * 140 < 0.2) assert_true(n_in > 1);
        }
    }
}

/* ---- whose ---- */

static void test_short_ones_overtake(void **state)
{
    (void)state;
    const machine m = {0.01, 0.001, 0.001};
    mox_pace p;
    mox_pace_init(&p, 64);
    mox_pace_item items[2] = {{.order = 1, .left = 5000}, {0}};
    for (int i = 0; i < 3; i++) (void)run(&p, &m, items, 1);
    items[1] = (mox_pace_item){.order = 2, .left = 100};
    for (int i = 0; i < 2; i++) (void)run(&p, &m, items, 2);
    assert_int_equal(items[1].left, 0);
}

/* Short prompts come without end; the long one waits for its own length, then takes turns, and
 * the short ones do not wait long either. */
static void test_nobody_starves(void **state)
{
    (void)state;
    const machine m = {0.01, 0.001, 0.01};
    enum { LONG = 4000, SHORT = 100 };
    mox_pace p;
    mox_pace_init(&p, 64);
    mox_pace_item items[3] = {{.order = 1, .left = LONG}, {.order = 2, .left = SHORT}, {.order = 3, .left = SHORT}};
    uint64_t order = 3;
    int64_t others = 0, waited[3] = {0}, longest = 0;
    while (items[0].left > 0) {
        (void)run(&p, &m, items, 3);
        others += items[1].take + items[2].take;
        for (int i = 1; i < 3; i++) {
            waited[i] += taken(items, 3, false);
            if (items[i].left > 0) continue;
            if (waited[i] > longest) longest = waited[i];
            items[i] = (mox_pace_item){.order = ++order, .left = SHORT};
            waited[i] = 0;
        }
        assert_true(others < 4 * LONG);
    }
    assert_true(longest < 8 * SHORT);
}

static void test_random_loads_end(void **state)
{
    (void)state;
    mox_rng rng;
    mox_rng_init(&rng, 5);
    for (int round = 0; round < 200; round++) {
        const machine m = {1e-3 * mox_rng_unit(&rng), 1e-4 * mox_rng_unit(&rng), 1e-4 * mox_rng_unit(&rng)};
        const int32_t n = 1 + (int32_t)(mox_rng_u64(&rng) % 32);
        const int64_t n_batch = n + (int64_t)(mox_rng_u64(&rng) % 300);
        mox_pace p;
        mox_pace_init(&p, n_batch);
        mox_pace_item items[ITEMS_MAX] = {{0}};
        int64_t left = 0;
        for (int32_t i = 0; i < n; i++) {
            items[i] = (mox_pace_item){.order = (uint64_t)i, .left = 1 + (int64_t)(mox_rng_u64(&rng) % 3000)};
            left += items[i].left;
        }
        for (int64_t steps = 0; left > 0; steps++) {
            assert_true(steps < 20000);
            (void)run(&p, &m, items, n);
            int64_t total = 0;
            for (int32_t i = 0; i < n; i++) {
                assert_true(items[i].left >= 0 && items[i].take >= 0);
                total += items[i].take;
                if (!items[i].generating) left -= items[i].take;
                items[i].generating = items[i].left == 0;
            }
            assert_true(total > 0 && total <= n_batch);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone_takes_the_batch), cmocka_unit_test(test_replies_keep_their_pace),
        cmocka_unit_test(test_follows_changes),       cmocka_unit_test(test_joint_steps_are_short),
        cmocka_unit_test(test_short_ones_overtake),   cmocka_unit_test(test_nobody_starves),
        cmocka_unit_test(test_random_loads_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
