/* tests/unit/test_pool.c -- the thread pool: every item is done exactly once, by
 * whatever number of threads, and what was written is there when run returns.
 *
 * Also built with the thread sanitizer, which sees what counting cannot. */
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { ITEMS = 1000, ROUNDS = 200 };

typedef struct tally {
    unsigned char *times; /* [n] plain memory: two threads on one item are a race */
    int64_t n;
} tally;

static void count(const void *args, int64_t begin, int64_t end)
{
    const tally *t = args;
    if (begin < 0 || end > t->n || begin >= end) abort();
    for (int64_t i = begin; i < end; i++) t->times[i]++;
}

static void run_once(mox_pool *pool, int64_t n, int64_t grain)
{
    static void (*const runs[])(mox_pool *, mox_pool_job *, const void *, int64_t, int64_t) = {mox_pool_run, mox_pool_run_even};
    for (size_t even = 0; even < 2; even++) {
        unsigned char times[ITEMS] = {0};
        runs[even](pool, count, &(tally){.times = times, .n = n}, n, grain);
        for (int64_t i = 0; i < ITEMS; i++)
            if (times[i] != (i < n))
                fail_msg("item %lld of %lld done %d times, grain %lld, even %zu", (long long)i, (long long)n, times[i], (long long)grain, even);
    }
}

static mox_pool *new_pool(int n_threads)
{
    mox_pool *pool;
    mox_err err;
    if (mox_pool_create(&pool, &(mox_pool_opts){.n_threads = n_threads}, &err) != MOX_OK) fail_msg("%s", err.msg);
    return pool;
}

/* Where blocks begin is marked in times. */
static void mark(const void *args, int64_t begin, int64_t end)
{
    (void)end;
    ((const tally *)args)->times[begin] = 1;
}

static int64_t block_at(const unsigned char *times, int64_t begin)
{
    int64_t end = begin + 1;
    while (end < ITEMS && !times[end]) end++;
    return end - begin;
}

/* Items that do not take as long as each other are claimed grain by grain; of even ones the first block is as long as is said. */
static void blocks_are_of_the_grain(void **state)
{
    (void)state;
    mox_pool *pool = new_pool(2);
    unsigned char plain[ITEMS] = {0}, even[ITEMS] = {0};
    if (mox_pool_size(pool) == 2) {
        mox_pool_run(pool, mark, &(tally){.times = plain, .n = ITEMS}, ITEMS, 8);
        mox_pool_run_even(pool, mark, &(tally){.times = even, .n = ITEMS}, ITEMS, 8);
        for (int64_t i = 0; i < ITEMS; i += 8) assert_int_equal(block_at(plain, i), 8);
        assert_int_equal(block_at(even, 0), ITEMS / 4 / 8 * 8); /* half of a thread's share, in whole grains */
        assert_int_equal(mox_pool_first(pool, ITEMS, 8), block_at(even, 0));
    }
    mox_pool_destroy(&pool);
}

static void every_item_once(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 3, 8};
    static const int64_t sizes[] = {0, 1, 2, 7, 64, ITEMS}, grains[] = {1, 3, 64, 10 * ITEMS};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        mox_pool *pool = new_pool(threads[t]);
        assert_in_range(mox_pool_size(pool), 1, threads[t]);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) run_once(pool, sizes[i], grains[g]);
        mox_pool_destroy(&pool);
        assert_null(pool);
    }
}

static void runs_follow_each_other(void **state)
{
    (void)state;
    mox_pool *pool = new_pool(4);
    for (int i = 0; i < ROUNDS; i++) run_once(pool, i % ITEMS, 1 + i % 5);
    mox_pool_destroy(&pool);
}

/* What is expected, whether it is there or not, changes nothing. */
static void expecting_changes_nothing(void **state)
{
    (void)state;
    static const char memory[1 << 16];
    mox_pool *pool = new_pool(3);
    for (int i = 0; i < ROUNDS; i++) {
        mox_pool_expect(pool, &(mox_pool_ahead){.at = {memory, memory + i, (const void *)(intptr_t)i}, .step = {64 + i, 0, 100},
                                                .n_steps = i % 7 * 100});
        run_once(pool, ITEMS, 1 + i % 5);
    }
    mox_pool_destroy(&pool);
    mox_pool_expect(NULL, &(mox_pool_ahead){.at = {memory}, .step = {64}, .n_steps = 10});
}

static void no_pool_is_one_thread(void **state)
{
    (void)state;
    run_once(NULL, ITEMS, 7);
    mox_pool *none = NULL;
    mox_pool_destroy(&none);
}

static void pools_come_and_go(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS / 4; i++) {
        mox_pool *pool = new_pool(1 + i % 4);
        if (i % 2) run_once(pool, 16, 1); /* the others are destroyed before their threads do anything */
        mox_pool_destroy(&pool);
    }
}

/* Returns its argument when all went well. */
static void *own_pool(void *good)
{
    mox_pool *pool = NULL;
    unsigned char times[ITEMS] = {0};
    if (mox_pool_create(&pool, &(mox_pool_opts){.n_threads = 3}, NULL) != MOX_OK) return NULL;
    for (int i = 0; i < ROUNDS; i++) mox_pool_run(pool, count, &(tally){.times = times, .n = ITEMS}, ITEMS, 16);
    mox_pool_destroy(&pool);
    for (int i = 0; i < ITEMS; i++)
        if (times[i] != ROUNDS) return NULL;
    return good;
}

static void pools_do_not_meet(void **state)
{
    (void)state;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, own_pool, threads), 0);
    for (int i = 0; i < 2; i++) {
        void *done = NULL;
        assert_int_equal(pthread_join(threads[i], &done), 0);
        assert_non_null(done);
    }
}

/* Runs that are far apart, so that every thread has gone to sleep in between, and jobs
 * so long that whoever waits for their end sleeps, too. */
static void slow_count(const void *args, int64_t begin, int64_t end)
{
    count(args, begin, end);
    (void)usleep(1000);
}

static void sleepers_are_woken(void **state)
{
    (void)state;
    mox_pool *pool = new_pool(3);
    for (int i = 0; i < 20; i++) {
        unsigned char times[6] = {0};
        (void)usleep(2000);
        mox_pool_run(pool, slow_count, &(tally){.times = times, .n = 6}, 6, i % 2 ? 1 : 3);
        for (int j = 0; j < 6; j++) assert_int_equal(times[j], 1);
    }
    mox_pool_destroy(&pool);
}

/* What each item saw: who ran it, and on how many processors that thread may run. */
typedef struct seen {
    pthread_t thread;
    int n_cpus, cpu;
} seen;

static void look(const void *args, int64_t begin, int64_t end)
{
    seen *all = *(seen *const *)args;
    for (int64_t i = begin; i < end; i++) {
        cpu_set_t set;
        CPU_ZERO(&set);
        if (sched_getaffinity(0, sizeof set, &set) != 0) abort();
        all[i] = (seen){.thread = pthread_self(), .n_cpus = CPU_COUNT(&set), .cpu = sched_getcpu()};
        (void)usleep(1000);
    }
}

static void pinned_threads_stay(void **state)
{
    (void)state;
    enum { N = 64 };
    cpu_set_t own;
    assert_int_equal(sched_getaffinity(0, sizeof own, &own), 0);
    for (int pinned = 0; pinned < 2; pinned++) {
        mox_pool *pool;
        mox_err err;
        if (mox_pool_create(&pool, &(mox_pool_opts){.n_threads = 2, .pin = pinned}, &err) != MOX_OK) fail_msg("%s", err.msg);
        seen all[N];
        seen *const where = all;
        mox_pool_run(pool, look, &where, N, 1);
        int n_others = 0, cpu = -1;
        for (int i = 0; i < N; i++) {
            if (pthread_equal(all[i].thread, pthread_self())) {
                assert_int_equal(all[i].n_cpus, CPU_COUNT(&own)); /* the caller is left alone */
                continue;
            }
            n_others++;
            assert_int_equal(all[i].n_cpus, pinned ? 1 : CPU_COUNT(&own));
            if (pinned && cpu >= 0) assert_int_equal(all[i].cpu, cpu);
            cpu = all[i].cpu;
        }
        assert_true(n_others > 0);
        mox_pool_destroy(&pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_once), cmocka_unit_test(blocks_are_of_the_grain), cmocka_unit_test(runs_follow_each_other),
        cmocka_unit_test(expecting_changes_nothing),
        cmocka_unit_test(no_pool_is_one_thread), cmocka_unit_test(pools_come_and_go),
        cmocka_unit_test(pools_do_not_meet), cmocka_unit_test(sleepers_are_woken),
        cmocka_unit_test(pinned_threads_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
