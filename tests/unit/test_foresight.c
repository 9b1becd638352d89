/* tests/unit/test_foresight.c -- guesses are read when they are right more often than wrong, and
 * not a moment longer. */
#include "runtime/foresight.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* n layers of 8 guesses of which so many are right; how many layers were guessed for. */
static int pass(mox_foresight *f, int n, int right)
{
    int n_wanted = 0;
    for (int i = 0; i < n; i++) {
        if (!mox_foresight_wants(f)) continue;
        mox_foresight_learn(f, 8, right);
        n_wanted++;
    }
    return n_wanted;
}

static void nothing_is_read_before_something_is_known(void **state)
{
    (void)state;
    mox_foresight f = {0};
    for (int i = 0; i < 7; i++) {
        assert_true(mox_foresight_wants(&f));
        mox_foresight_learn(&f, 8, 8);
        assert_false(f.reads);
    }
    mox_foresight_learn(&f, 8, 8);
    assert_true(f.reads);
    assert_int_equal(f.guessed, 64);
    assert_int_equal(f.right, 64);
}

static void right_guesses_are_read_and_wrong_ones_only_tried(void **state)
{
    (void)state;
    mox_foresight good = {0}, bad = {0};
    assert_int_equal(pass(&good, 200, 6), 200);
    assert_true(good.reads && good.share > 0.74 && good.share < 0.76);
    assert_true(pass(&bad, 16 * 50, 3) <= 8 + 50);
    assert_true(!bad.reads && bad.share > 0.37 && bad.share < 0.38);
}

static void guesses_are_held_against_what_comes(void **state)
{
    (void)state;
    static const int32_t guess[] = {7, 2, 9}, ids[] = {0, 2, 3, 7};
    mox_foresight f = {0};
    mox_foresight_compare(&f, guess, 3, ids, 4);
    assert_int_equal(f.guessed, 3);
    assert_int_equal(f.right, 2);
    mox_foresight_compare(&f, guess, 0, ids, 4);
    mox_foresight_compare(&f, guess, 1, ids, 0);
    assert_int_equal(f.guessed, 4);
    assert_int_equal(f.right, 2);
}

static void changes_are_noticed(void **state)
{
    (void)state;
    mox_foresight f = {0};
    (void)pass(&f, 100, 7);
    assert_true(f.reads);
    (void)pass(&f, 60, 1);
    assert_false(f.reads);
    (void)pass(&f, 60 * 16, 7);
    assert_true(f.reads);
    /* halfway it stays as it is, from either side */
    (void)pass(&f, 500, 4);
    assert_true(f.reads);
    (void)pass(&f, 60, 0);
    (void)pass(&f, 500 * 16, 4);
    assert_false(f.reads);
}

static void many_guesses_at_once_count_once(void **state)
{
    (void)state;
    mox_foresight f = {0};
    mox_foresight_learn(&f, 64, 64);
    mox_foresight_learn(&f, 100000, 0);
    assert_true(f.share >= 0.0 && f.share <= 1.0);
    mox_foresight_learn(&f, 0, 0);
    assert_int_equal(f.guessed, 100064);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_read_before_something_is_known),
        cmocka_unit_test(right_guesses_are_read_and_wrong_ones_only_tried),
        cmocka_unit_test(guesses_are_held_against_what_comes),
        cmocka_unit_test(changes_are_noticed),
        cmocka_unit_test(many_guesses_at_once_count_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
