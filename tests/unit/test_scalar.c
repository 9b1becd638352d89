/* tests/unit/test_scalar.c -- the program on processors without vector instructions: it
 * computes, with the reference, and says so in one line.
 *
 * The program is linked in, so that the test can hide features from it; its main has
 * another name here. */
#include "ops/kern.h"

#include "base/cpu.h"
#include "program.h"

#define RUN "run", "-m", SOURCE_ROOT "/models/demo", "--raw", "-p", "Once", "-n", "4", "--temp", "0"

static int count_of(const char *text, const char *word)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, word)) != NULL; p++) n++;
    return n;
}

static void the_reference_serves(void **state)
{
    (void)state;
    if (mox_isa_count() < 2) skip();
    const outcome asked = moxie((const char *const[]){RUN, "--isa", "ref", NULL});
    assert_int_equal(asked.code, 0);
    assert_int_equal(count_of(asked.err, "scalar"), 0); /* who asks for it knows */
    mox_isa_set_mask(0);
    int level = -1;
    assert_int_equal(mox_isa_find(NULL, &level, NULL), MOX_OK);
    assert_int_equal(level, 0);
    const outcome quiet = moxie((const char *const[]){RUN, "-q", NULL});
    const outcome forced = moxie((const char *const[]){RUN, NULL});
    const outcome refused = moxie((const char *const[]){RUN, "--isa", mox_isa_name(1), NULL});
    mox_isa_set_mask(~0u);
    assert_int_equal(forced.code, 0);
    assert_string_equal(forced.out, asked.out);
    if (count_of(forced.err, "scalar kernels") != 1 || !strstr(forced.err, mox_isa_name(1)))
        fail_msg("one line should name what is missing: %s", forced.err);
    assert_int_equal(quiet.code, 0);
    assert_string_equal(quiet.err, "");
    assert_int_equal(refused.code, 2);
    assert_true(strstr(refused.err, mox_isa_name(1)) != NULL);
}

static void the_best_that_is_left_serves(void **state)
{
    (void)state;
    for (int level = 1; level < mox_isa_count(); level++) {
        if (!mox_isa_available(level)) continue;
        mox_isa_set_mask((1u << level) - 1u); /* the features of base/cpu.h ascend as the levels do */
        int found = -1;
        assert_int_equal(mox_isa_find(NULL, &found, NULL), MOX_OK);
        mox_isa_set_mask(~0u);
#if defined(__x86_64__)
        assert_int_equal(found, level);
#else
        assert_in_range(found, 0, mox_isa_count() - 1);
#endif
    }
}

#undef main
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_serves),
        cmocka_unit_test(the_best_that_is_left_serves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
