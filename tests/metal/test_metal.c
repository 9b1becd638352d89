/* tests/metal/test_metal.c -- the host side of Metal (dev/metal) against a made-up runtime: what it sends,
 * in which order things take place, what it says when something fails, and that nothing is left over. */
#include "fake.h"

#include "../unit/fail_nth.h"

#include "base/alloc.h"
#include "dev/metal/metal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static mox_err err;

static mox_gpu_backend *open_device(void)
{
    mox_gpu_backend *b;
    if (mox_metal_open(&b, &err) != MOX_OK) fail_msg("%s", err.msg);
    return b;
}

/* Nothing of it is left, and nothing was done that Metal would mind. */
static void close_device(mox_gpu_backend *b)
{
    if (b) b->close(b);
    assert_int_equal(fake_metal.n_objects, 0);
    assert_int_equal(fake_metal.n_pools, 0);
    assert_string_equal(fake_metal.misuse, "");
}

static void *floats_on(mox_gpu_backend *b, const float *v, int64_t n)
{
    void *p;
    assert_int_equal(b->alloc(b, n * 4, &p, &err), MOX_OK);
    b->upload(b, p, v, n * 4);
    return p;
}

/* y = a + b; n numbers. */
static void add(mox_gpu_backend *b, void *y, const void *a, const void *c, int64_t n)
{
    const mox_gpu_add p = {.a = a, .b = c, .out = y, .n = n};
    b->launch(b, MOX_GPU_KERNEL_add, (const int64_t[3]){(n + 255) / 256, 1, 1}, &p, sizeof p);
}

/* ---- what should work ---- */

static void test_computes(void **state)
{
    (void)state;
    enum { N = 1000 };
    float x[N], y[N], got[N];
    for (int i = 0; i < N; i++) x[i] = (float)i, y[i] = 0.5f * (float)i - 3.0f;
    mox_gpu_backend *b = open_device();
    assert_string_equal(b->name, "metal");
    assert_string_equal(b->model, "Made-up GPU");
    float *a = floats_on(b, x, N), *c = floats_on(b, y, N), *sum = floats_on(b, x, N);
    const int64_t before = fake_metal.n_run;
    add(b, sum, a, c, N);
    assert_int_equal(fake_metal.n_run, before); /* queued */
    assert_int_equal(b->download(b, got, sum, sizeof got, &err), MOX_OK);
    for (int i = 0; i < N; i++) assert_true(got[i] == x[i] + y[i]);
    add(b, sum + 1, a + 2, c, 3); /* addresses within allocations */
    assert_int_equal(b->download(b, got, sum, 16, &err), MOX_OK);
    for (int i = 0; i < 3; i++) assert_true(got[i + 1] == x[i + 2] + y[i]);
    assert_true(got[0] == x[0] + y[0]);
    const int64_t none[3] = {0, 1, 1};
    b->launch(b, MOX_GPU_KERNEL_add, none, &(mox_gpu_add){.n = 1}, sizeof(mox_gpu_add)); /* an empty grid does nothing */
    assert_int_equal(b->sync(b, &err), MOX_OK);
    int64_t total, left;
    b->memory(b, &total, &left);
    assert_true(left == (int64_t)7 << 30 && total == (int64_t)8 << 30);
    b->free(b, a);
    b->free(b, NULL);
    close_device(b); /* with what is still allocated */
}

/* Everything is as if one thing ended before the next begins. */
static void test_order(void **state)
{
    (void)state;
    const float one = 1.0f, ten = 10.0f;
    float got;
    mox_gpu_backend *b = open_device();
    float *x = floats_on(b, &one, 1), *step = floats_on(b, &one, 1), *kept = floats_on(b, &one, 1);
    enum { LAUNCHES = 5000 }; /* more than a command buffer, and than are in flight */
    const int64_t commands = fake_metal.n_commands, run = fake_metal.n_run;
    for (int i = 0; i < LAUNCHES; i++) add(b, x, x, step, 1);
    assert_true(fake_metal.n_commands - commands > 8); /* the GPU has begun before anybody waits */
    b->copy(b, kept, x, 4);
    b->upload(b, step, &ten, 4); /* not before the launches have read it */
    add(b, x, x, step, 1);
    assert_int_equal(b->download(b, &got, x, 4, &err), MOX_OK);
    assert_true(got == 1.0f + LAUNCHES + 10.0f);
    assert_int_equal(fake_metal.n_run - run, LAUNCHES + 1);
    assert_int_equal(b->download(b, &got, kept, 4, &err), MOX_OK);
    assert_true(got == 1.0f + LAUNCHES);
    add(b, x, x, step, 1);
    b->zero(b, x, 4);
    assert_int_equal(b->download(b, &got, x, 4, &err), MOX_OK);
    assert_true(got == 0.0f);
    add(b, x, x, step, 1);
    float *late = floats_on(b, &ten, 1); /* memory that commands before it do not know */
    add(b, x, x, late, 1);
    b->free(b, late); /* after who uses it */
    assert_int_equal(b->download(b, &got, x, 4, &err), MOX_OK);
    assert_true(got == 20.0f);
    add(b, x, x, step, 1);
    close_device(b); /* with something in flight */
}

/* Bytes of the host are read where they are, at any address, and neighbours share pages. */
static void test_map(void **state)
{
    (void)state;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    float *host = aligned_alloc(page, 4 * page), got[8];
    assert_non_null(host);
    const int64_t n = (int64_t)(4 * page / sizeof *host);
    for (int64_t i = 0; i < n; i++) host[i] = (float)i;
    mox_gpu_backend *b = open_device();
    void *first, *second, *last, *y = floats_on(b, host, 8);
    assert_int_equal(b->map(b, host + 3, 400, &first, &err), MOX_OK);
    assert_int_equal(b->map(b, host + page / 4 - 2, 16, &second, &err), MOX_OK); /* over the edge of a page */
    assert_int_equal(b->map(b, host + n - 4, 16, &last, &err), MOX_OK);
    add(b, y, first, second, 4);
    add(b, (float *)y + 4, first, last, 4);
    host[3] = 1000.0f; /* not copied */
    assert_int_equal(b->download(b, got, y, sizeof got, &err), MOX_OK);
    assert_true(got[0] == 1000.0f + (float)(page / 4 - 2) && got[1] == 4.0f + (float)(page / 4 - 1));
    assert_true(got[4] == 1000.0f + (float)(n - 4) && got[7] == 6.0f + (float)(n - 1));
    b->free(b, second);
    assert_int_equal(b->map(b, host, 0, &second, &err), MOX_E_ARG);
    close_device(b);
    free(host);
}

/* ---- what goes wrong ---- */

static void test_no_opening(void **state)
{
    (void)state;
    static const char *const words[FAKE_OPENING] = {
        [FAKE_NO_DEVICE] = "no GPU", [FAKE_OLD_DEVICE] = "Metal 3", [FAKE_MEMORY_APART] = "memory of its own",
        [FAKE_NO_QUEUE] = "takes no commands", [FAKE_NO_STRING] = "no memory for the source",
        [FAKE_NO_LIBRARY] = "unknown type name", [FAKE_NO_FUNCTION] = "no kernel add", [FAKE_NO_PIPELINE] = "CONNECTION_INTERRUPTED",
        [FAKE_FEW_THREADS] = "kernel add with 96 threads", [FAKE_MANY_LANES] = "64 at a time"};
    const int64_t live = mox_alloc_live();
    for (fake_wish wish = FAKE_FINE + 1; wish < FAKE_OPENING; wish++) {
        mox_gpu_backend *b;
        fake_metal.wish = wish;
        assert_int_equal(mox_metal_open(&b, &err), MOX_E_DEVICE);
        if (!strstr(err.msg, words[wish])) fail_msg("'%s' does not say '%s'", err.msg, words[wish]);
        assert_null(b);
        fake_metal.wish = FAKE_FINE;
        close_device(NULL);
        assert_int_equal(mox_alloc_live(), live);
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    const float one = 1.0f;
    float got;
    void *p;
    mox_gpu_backend *b = open_device();
    void *x = floats_on(b, &one, 1);
    fake_metal.wish = FAKE_NO_BUFFER;
    assert_int_equal(b->alloc(b, (int64_t)100 << 20, &p, &err), MOX_E_MEMORY);
    assert_non_null(strstr(err.msg, "100 MiB"));
    assert_null(p);
    assert_int_equal(b->map(b, &one, 4, &p, &err), MOX_E_MEMORY);
    assert_null(p);
    fake_metal.wish = FAKE_FINE;
    assert_int_equal(b->alloc(b, -1, &p, &err), MOX_E_ARG);
    add(b, x, x, x, 1); /* it goes on */
    assert_int_equal(b->download(b, &got, x, 4, &err), MOX_OK);
    assert_true(got == 2.0f);
    close_device(b);

    const int64_t live = mox_alloc_live();
    int n_failed = 0; /* every allocation of the host failing in turn */
    for (nth n = {.at = 1};; n.at++, n_failed++) {
        n.count = 0;
        mox_alloc_set_hook(fail_nth_alloc, &n);
        mox_status status = mox_metal_open(&b, &err);
        if (status == MOX_OK) status = b->alloc(b, 4, &p, &err);
        mox_alloc_set_hook(NULL, NULL);
        close_device(b);
        assert_int_equal(mox_alloc_live(), live);
        if (status == MOX_OK) break;
        assert_int_equal(status, MOX_E_MEMORY);
    }
    assert_int_equal(n_failed, 3);
}

/* The first failure is told, and by every call after it; what comes later does not take place. */
static void test_fails_later(void **state)
{
    (void)state;
    static const fake_wish wishes[] = {FAKE_LOST, FAKE_NO_COMMANDS, FAKE_NO_ENCODER};
    static const char *const words[] = {"Made-up GPU failed: the GPU was lost", "no more commands", "no more commands"};
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        const float one = 1.0f;
        float got = 7.0f;
        void *p;
        mox_gpu_backend *b = open_device();
        void *x = floats_on(b, &one, 1);
        fake_metal.wish = wishes[i];
        add(b, x, x, x, 1);
        assert_int_equal(b->sync(b, &err), MOX_E_DEVICE);
        assert_non_null(strstr(err.msg, words[i]));
        fake_metal.wish = FAKE_FINE;
        const int64_t run = fake_metal.n_run;
        add(b, x, x, x, 1);
        b->upload(b, x, &one, 4);
        b->zero(b, x, 4);
        assert_int_equal(b->download(b, &got, x, 4, &err), MOX_E_DEVICE);
        assert_non_null(strstr(err.msg, words[i]));
        assert_true(got == 7.0f);
        assert_int_equal(b->alloc(b, 4, &p, &err), MOX_E_DEVICE);
        assert_int_equal(fake_metal.n_run, run);
        close_device(b);
    }
}

static void test_wrong_calls(void **state)
{
    (void)state;
    const float one = 1.0f;
    mox_gpu_backend *b = open_device();
    float *x = floats_on(b, &one, 1);
    b->upload(b, x, &one, 4);
    assert_int_equal(b->sync(b, &err), MOX_OK);
    b->upload(b, x + 1, &one, 4);
    assert_int_equal(b->sync(b, &err), MOX_E_DEVICE);
    assert_non_null(strstr(err.msg, "no memory of it"));
    close_device(b);
    b = open_device();
    x = floats_on(b, &one, 1);
    const mox_gpu_add p = {.a = x, .b = x, .out = x, .n = 1};
    b->launch(b, MOX_GPU_KERNEL_add, (const int64_t[3]){1, -1, 1}, &p, sizeof p);
    assert_int_equal(b->sync(b, &err), MOX_E_DEVICE);
    assert_non_null(strstr(err.msg, "kernel add: a grid of 1 x -1 x 1"));
    close_device(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_computes),   cmocka_unit_test(test_order),       cmocka_unit_test(test_map),
        cmocka_unit_test(test_no_opening), cmocka_unit_test(test_no_memory),   cmocka_unit_test(test_fails_later),
        cmocka_unit_test(test_wrong_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
