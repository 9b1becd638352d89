/* tests/unit/test_state_folder.c -- whose a folder of states is: one process has it, the next one takes it over, and one
 * that cannot be used is done without. */
#include "state_kit.h"

#include <errno.h>
#include <time.h>

static void test_one_process_has_the_folder(void **state)
{
    (void)state;
    const mox_model *m = models[DENSE];
    place first, second;
    char path[300];
    new_place(&first);
    choose_tokens(m);
    mox_context *c = new_context(m, context_opts);
    mox_prefix *p = new_prefix(c, opts_of(&first));
    second = first;
    live(m, opts_of(&second), 0, 1); /* works, and keeps nothing */
    assert_int_equal(second.n_warnings, 1);
    assert_non_null(strstr(second.warning, "another process holds it"));
    assert_int_equal(list_files(&first, path, sizeof path), 0);
    mox_prefix_destroy(&p);
    mox_context_destroy(&c);
    second.n_warnings = 0;
    live(m, opts_of(&second), 0, 1);
    assert_int_equal(second.n_warnings, 0);
    assert_int_equal(list_files(&first, path, sizeof path), 1);
}

static void answer_prompt(mox_prefix *p, mox_seq *s, int which)
{
    const int64_t at = adopt(p, s, tokens[which], TURN);
    (void)step(s, tokens[which] + at, TURN - at);
    mox_prefix_keep(p, s);
}

static int64_t known(mox_prefix *p, mox_seq *s, int which)
{
    const int64_t at = adopt(p, s, tokens[which], TURN + NEXT);
    mox_seq_reset(s);
    return at;
}

static int count_opened(void *user, const char *path, const char *what)
{
    (void)path;
    if (strcmp(what, "open") == 0) atomic_fetch_add((atomic_int *)user, 1);
    return 0;
}

/* Until that is the last warning; the writer gives it. */
static void wait_for_warning(place *at, const char *words)
{
    for (int i = 0;; i++) {
        (void)pthread_mutex_lock(&warn_lock);
        const bool said = strstr(at->warning, words);
        (void)pthread_mutex_unlock(&warn_lock);
        if (said) return;
        if (i == MINUTE_MS) fail_msg("the last warning is not \"%s\"", words);
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* Whoever comes while another has the folder reads and writes nothing there until that one is gone; then it knows what
 * that one left, and what it kept meanwhile is written. */
static void test_the_folder_goes_to_who_waits_for_it(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        const mox_model *m = models[i == 0 ? HYBRID : DENSE];
        place first, second;
        char path[300];
        new_place(&first);
        second = first;
        choose_tokens(m);
        live(m, opts_of(&first), 2, 1);
        mox_context *c = new_context(m, context_opts), *d = new_context(m, context_opts);
        mox_prefix *p = new_prefix(c, opts_of(&first)), *q = new_prefix(d, opts_of(&second));
        mox_seq *s = new_seq(c), *r = new_seq(d);
        assert_int_equal(second.n_warnings, 1);
        assert_non_null(strstr(second.warning, "holds it; states are neither read nor kept there until"));
        atomic_int n_opened = 0;
        mox_io_set_hook(count_opened, &n_opened);
        answer_prompt(q, r, 1);
        assert_int_equal(known(q, r, 2), 0); /* it lies there */
        (void)nanosleep(&(struct timespec){.tv_nsec = 600000000}, NULL); /* time for a try or two */
        assert_int_equal(known(q, r, 2), 0);
        mox_io_set_hook(NULL, NULL);
        assert_int_equal(n_opened, 0);
        assert_int_equal(list_files(&first, path, sizeof path), 1);
        answer_prompt(p, s, 0);
        mox_prefix_destroy(&p);
        wait_for_warning(&second, "states are read and kept there from now on");
        assert_int_equal(known(q, r, 0), TURN);
        assert_int_equal(known(q, r, 2), TURN);
        mox_prefix_destroy(&q);
        mox_context_destroy(&c);
        mox_context_destroy(&d);
        assert_int_equal(first.n_warnings, 0);
        assert_int_equal(second.n_warnings, 2);
        assert_int_equal(list_files(&first, path, sizeof path), 3);
        for (int which = 0; which < 3; which++) assert_int_equal(found(m, opts_of(&first), which), TURN);
        assert_int_equal(first.n_warnings, 0);
    }
}

static int refuse_lock(void *user, const char *path, const char *what)
{
    (void)path;
    if (strcmp(what, "lock") != 0) return 0;
    atomic_fetch_add((atomic_int *)user, 1);
    return EMFILE;
}

typedef struct later_trouble {
    trouble t;
    atomic_bool begun; /* the hook itself may not change while others allocate */
} later_trouble;

static int fail_alloc_later(void *user, size_t bytes)
{
    later_trouble *l = user;
    return !atomic_load(&l->begun) || fail_alloc(&l->t, bytes);
}

/* A folder that is free, and cannot be taken over for want of descriptors or memory, is a moment later. */
static void test_a_folder_is_taken_over_when_failures_end(void **state)
{
    (void)state;
    const mox_model *m = models[DENSE];
    char path[300];
    long n = 0, count;
    do {
        place first, second;
        atomic_int n_refused = 0;
        later_trouble l = {.t.at = ++n};
        new_place_with_file(&first, m, path, sizeof path);
        second = first;
        mox_alloc_set_hook(fail_alloc_later, &l);
        mox_context *c = new_context(m, context_opts), *d = new_context(m, context_opts);
        mox_prefix *p = new_prefix(c, opts_of(&first)), *q = new_prefix(d, opts_of(&second));
        mox_seq *s = new_seq(d);
        assert_int_equal(second.n_warnings, 1);
        mox_io_set_hook(refuse_lock, &n_refused);
        mox_prefix_destroy(&p);
        for (int i = 0; i < MINUTE_MS && atomic_load(&n_refused) == 0; i++)
            (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        atomic_store(&l.begun, true);
        mox_io_set_hook(NULL, NULL);
        wait_for_warning(&second, "from now on");
        atomic_store(&l.begun, false);
        count = atomic_load(&l.t.count);
        assert_in_range(second.n_warnings, 2, 3);
        assert_int_equal(known(q, s, 0), TURN);
        mox_prefix_destroy(&q);
        mox_context_destroy(&c);
        mox_context_destroy(&d);
        mox_alloc_set_hook(NULL, NULL);
    } while (count >= n);
    assert_true(n > 5);
}

static void test_wrong_options_are_refused(void **state)
{
    (void)state;
    mox_context *c = new_context(models[DENSE], context_opts);
    mox_prefix *p;
    mox_err err;
    place at;
    new_place(&at);
    mox_prefix_opts opts = opts_of(&at);
    opts.model_key = NULL;
    assert_int_equal(mox_prefix_create(&p, c, &opts, &err), MOX_E_ARG);
    assert_null(p);
    mox_context_destroy(&c);
}

static void test_a_folder_that_cannot_be_used_is_done_without(void **state)
{
    (void)state;
    const mox_model *m = models[DENSE];
    place at;
    new_place(&at);
    choose_tokens(m);
    mox_prefix_opts opts = opts_of(&at);
    opts.state_dir = "/proc/no/such/folder";
    live(m, opts, 0, 1); /* works, and keeps nothing */
    assert_int_equal(at.n_warnings, 1);
    assert_non_null(strstr(at.warning, "/proc/no/such/folder"));
    assert_int_equal(found(m, opts, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_one_process_has_the_folder, take_hooks_out),
        cmocka_unit_test_teardown(test_the_folder_goes_to_who_waits_for_it, take_hooks_out),
        cmocka_unit_test_teardown(test_a_folder_is_taken_over_when_failures_end, take_hooks_out),
        cmocka_unit_test_teardown(test_wrong_options_are_refused, take_hooks_out),
        cmocka_unit_test_teardown(test_a_folder_that_cannot_be_used_is_done_without, take_hooks_out),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
