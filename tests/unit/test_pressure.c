/* tests/unit/test_pressure.c -- memory that others need is given back, and taken again when
 * they do not: on made-up machines, and with streamed experts, whose logits stay the same. */
#include "runtime/context.h"

#include "base/alloc.h"
#include "moxie/tools.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "made_up_machine.h"

enum { MB = 1 << 20, KIB_PER_MB = 1024 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 }; /* which takes memory of its own */
#else
enum { SANITIZED = 0 };
#endif

/* Microseconds that somebody waited for memory so far, on the machine or in the group of the process. */
static void set_stalled(const char *file, long long us)
{
    char text[128];
    (void)snprintf(text, sizeof text, "some avg10=0.00 avg60=0.00 avg300=0.00 total=%lld\nfull avg10=0.00 total=0\n", us);
    put(file, text);
}

static void set_available(long long mb)
{
    char text[128];
    (void)snprintf(text, sizeof text, "MemTotal: 99999999 kB\nMemAvailable: %lld kB\n", mb * KIB_PER_MB);
    put("/proc/meminfo", text);
}

#define MACHINE "/proc/pressure/memory"
#define GROUP "/sys/fs/cgroup/g/memory.pressure"

/* ---- when ---- */

static mox_pressure new_pressure(void)
{
    mox_pressure p = MOX_PRESSURE_HERE;
    p.root = root;
    return p;
}

static void waiting_is_pressure(void **state)
{
    (void)state;
    static const char *const files[] = {MACHINE, GROUP};
    put("/proc/self/cgroup", "0::/g\n");
    set_available(1000);
    for (int i = 0; i < 2; i++) {
        set_stalled(MACHINE, 500000);
        set_stalled(GROUP, 500000);
        mox_pressure p = new_pressure();
        assert_int_equal(mox_pressure_look(&p, 100.0, 0), MOX_PRESSURE_KEEP); /* what was before is nobody's business */
        set_stalled(files[i], 500000 + 99000);
        assert_int_equal(mox_pressure_look(&p, 101.0, 0), MOX_PRESSURE_KEEP);
        set_stalled(files[i], 500000 + 99000 + 101000);
        assert_int_equal(mox_pressure_look(&p, 101.2, 0), MOX_PRESSURE_KEEP); /* too soon */
        assert_int_equal(mox_pressure_look(&p, 102.0, 0), MOX_PRESSURE_GIVE);
        assert_int_equal(mox_pressure_look(&p, 103.0, 0), MOX_PRESSURE_KEEP); /* it is over */
    }
}

static void little_memory_is_pressure(void **state)
{
    (void)state;
    mox_pressure p = new_pressure();
    set_available(65);
    assert_int_equal(mox_pressure_look(&p, 100.0, 0), MOX_PRESSURE_KEEP);
    set_available(63);
    assert_int_equal(mox_pressure_look(&p, 101.0, 0), MOX_PRESSURE_GIVE);
    put("/proc/self/cgroup", "0::/g\n");
    put("/sys/fs/cgroup/g/memory.max", "1000000000\n");
    put("/sys/fs/cgroup/g/memory.current", "950000000\n");
    set_available(5000);
    assert_int_equal(mox_pressure_look(&p, 102.0, 0), MOX_PRESSURE_GIVE);
}

static void memory_is_taken_when_all_is_calm(void **state)
{
    (void)state;
    set_available(1000);
    set_stalled(MACHINE, 0);
    mox_pressure p = new_pressure();
    assert_int_equal(mox_pressure_look(&p, 100.0, 0), MOX_PRESSURE_KEEP);
    set_stalled(MACHINE, 900000);
    assert_int_equal(mox_pressure_look(&p, 101.0, 0), MOX_PRESSURE_GIVE);
    assert_int_equal(mox_pressure_look(&p, 103.0, 300 * MB), MOX_PRESSURE_KEEP); /* not for long enough */
    assert_int_equal(mox_pressure_look(&p, 106.5, 0), MOX_PRESSURE_KEEP);        /* there is nothing to take */
    assert_int_equal(mox_pressure_look(&p, 107.0, 500 * MB), MOX_PRESSURE_KEEP); /* too much */
    assert_int_equal(mox_pressure_look(&p, 108.0, 300 * MB), MOX_PRESSURE_TAKE);
}

static void a_system_that_says_nothing_needs_nothing(void **state)
{
    (void)state;
    mox_pressure p = new_pressure();
    for (int i = 0; i < 20; i++) assert_int_equal(mox_pressure_look(&p, 100.0 + i, 0), MOX_PRESSURE_KEEP);
    set_stalled(MACHINE, 100000000); /* it has just begun to speak */
    assert_int_equal(mox_pressure_look(&p, 200.0, 0), MOX_PRESSURE_KEEP);
}

/* ---- pages ---- */

static void dropped_pages_leave_the_process(void **state)
{
    (void)state;
    enum { ALL = 64 * MB, FROM = 16 * MB + 5 };
    unsigned char *p = mox_alloc_pages(ALL);
    assert_non_null(p);
    memset(p, 7, ALL);
    const int64_t before = mox_machine_own("");
    mox_drop_pages(p + FROM, ALL - FROM);
    const int64_t gone = before - mox_machine_own("");
    assert_in_range(gone, 44 * MB, 48 * MB);
    for (int i = 0; i < FROM; i++) assert_int_equal(p[i], 7);
    assert_int_equal(p[ALL - 1], 0);
    memset(p, 7, ALL); /* and can be used again */
    mox_free_pages(p, ALL);
    p = mox_alloc_pages(1 * MB); /* too small for a huge page: nothing happens */
    memset(p, 7, 1 * MB);
    mox_drop_pages(p, 1 * MB);
    for (int i = 0; i < 1 * MB; i++) assert_int_equal(p[i], 7);
    mox_free_pages(p, 1 * MB);
}

/* ---- experts ---- */

enum { PROMPT = 150, STEPS = 40, V = 2048 };
static int32_t tokens[PROMPT + STEPS];

typedef struct run {
    mox_model *m;
    mox_context *c;
    mox_seq *s;
} run;

static run begin(const char *dir, bool stream)
{
    run r;
    mox_err err;
    if (mox_model_open(&r.m, dir, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    if (stream && mox_model_load_dense(r.m, NULL, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    const mox_context_opts opts = {.n_ctx = PROMPT + STEPS, .n_threads = 2, .n_batch = 32, .n_readers = 4,
                                   .expert_bytes = stream ? 1 << 30 : 0};
    if (mox_context_create(&r.c, r.m, &opts, &err) != MOX_OK) fail_msg("%s", err.msg);
    if (mox_seq_create(&r.s, r.c, &err) != MOX_OK) fail_msg("%s", err.msg);
    r.c->experts.pressure.root = root;
    r.c->experts.pressure.every_s = 0.0; /* every time */
    r.c->experts.pressure.calm_s = 0.0;
    return r;
}

static void end(run *r)
{
    mox_seq_destroy(&r->s);
    mox_context_destroy(&r->c);
    mox_model_close(&r->m);
}

/* Logits of the prompt's last token (step 0), or of the token behind it. */
static const float *step(run *r, int i)
{
    mox_err err;
    const mox_segment g = {.seq = r->s, .tokens = i == 0 ? tokens : tokens + PROMPT + i - 1, .n = i == 0 ? PROMPT : 1,
                           .want = MOX_WANT_LAST};
    if (mox_step(r->c, &g, 1, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    return mox_logits_row(r->c, 0);
}

static int64_t in_use(const run *r)
{
    mox_expert_stats s;
    mox_context_get_expert_stats(r->c, &s);
    return s.n_slots - s.n_slots_away;
}

static void slots_go_and_come_and_logits_stay(void **state)
{
    (void)state;
    static const char *const dirs[] = {SOURCE_ROOT "/models/demo", SOURCE_ROOT "/tests/data/models/demo-deepseek-v3"};
    for (int i = 0; i < PROMPT + STEPS; i++) tokens[i] = (i * 7919 + 13) % 1900;
    for (size_t d = 0; d < sizeof dirs / sizeof *dirs; d++) {
        set_available(1000);
        set_stalled(MACHINE, 0);
        run whole = begin(dirs[d], false), r = begin(dirs[d], true);
        const int64_t all = in_use(&r), least = 2 * r.m->report.n_experts_active;
        long long us = 0;
        int64_t fewest = all, before = 0, after = 0;
        for (int i = 0; i < STEPS; i++) {
            const bool pressed = i >= 5 && i < 15, little = i >= 33 && i < 36;
            if (pressed) set_stalled(MACHINE, us += 60000000);
            if (i == 5) before = mox_machine_own("");
            if (i == 15) after = mox_machine_own("");
            set_available(little ? 10 : 1000);
            const int64_t had = in_use(&r);
            const float *want = step(&whole, i);
            assert_memory_equal(step(&r, i), want, V * sizeof *want);
            if (pressed || little) assert_true(in_use(&r) < had || had == least);
            else assert_true(in_use(&r) > had || had == all);
            if (i == 14) assert_int_equal(in_use(&r), least); /* and no fewer */
            if (i < 5 || i == 32) assert_int_equal(in_use(&r), all);
            if (in_use(&r) < fewest) fewest = in_use(&r);
        }
        assert_int_equal(fewest, least);
        const int64_t given = (all - least) * mox_model_expert_slot_bytes(r.m);
        assert_true(SANITIZED || before - after > given - 3 * (2 * MB)); /* whole huge pages */
        end(&whole);
        end(&r);
    }
}

static int count_allocation(void *user, size_t bytes)
{
    (void)bytes;
    ++*(int *)user;
    return 1;
}

static void looking_allocates_nothing(void **state)
{
    (void)state;
    int n = 0;
    set_available(10);
    set_stalled(MACHINE, 0);
    run r = begin(SOURCE_ROOT "/models/demo", true);
    mox_alloc_set_hook(count_allocation, &n);
    (void)step(&r, 0);
    set_available(1000);
    (void)step(&r, 1);
    mox_alloc_set_hook(NULL, NULL);
    assert_int_equal(n, 0);
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(waiting_is_pressure, new_machine, remove_machine),
        cmocka_unit_test_setup_teardown(little_memory_is_pressure, new_machine, remove_machine),
        cmocka_unit_test_setup_teardown(memory_is_taken_when_all_is_calm, new_machine, remove_machine),
        cmocka_unit_test_setup_teardown(a_system_that_says_nothing_needs_nothing, new_machine, remove_machine),
        cmocka_unit_test(dropped_pages_leave_the_process),
        cmocka_unit_test_setup_teardown(slots_go_and_come_and_logits_stay, new_machine, remove_machine),
        cmocka_unit_test_setup_teardown(looking_allocates_nothing, new_machine, remove_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
