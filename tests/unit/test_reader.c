/* tests/unit/test_reader.c -- the background reader: whatever the engine, the number of
 * threads and the way around the page cache, the bytes are those of the file, jobs begin in
 * their order, and every failure of the disk ends in a sentence.
 *
 * Also built with the thread sanitizer. */
#include "runtime/reader.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/size.h"
#include "fail_nth.h"
#include "runtime/reader_internal.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_FILES = 2, SIZE = (3 << 20) + 1237, ROOM = 4 * MOX_READ_ALIGN, MAX_RANGES = 9 };

/* ---- files of random bytes ---- */

typedef struct disk {
    char dir[64];
    mox_file files[N_FILES];
    uint8_t *bytes[N_FILES]; /* what is in them */
} disk;

static void disk_make(disk *d, const char *where)
{
    mox_rng rng;
    mox_err err;
    mox_rng_init(&rng, 1);
    (void)snprintf(d->dir, sizeof d->dir, "%s/reader-XXXXXX", where);
    if (!mkdtemp(d->dir)) fail_msg("%s: cannot make a folder there", where);
    for (int i = 0; i < N_FILES; i++) {
        d->bytes[i] = mox_alloc(SIZE);
        for (int64_t k = 0; k < SIZE; k++) d->bytes[i][k] = (uint8_t)mox_rng_u64(&rng);
        char path[96];
        (void)snprintf(path, sizeof path, "%s/%d", d->dir, i);
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(d->bytes[i], 1, SIZE, f), SIZE);
        assert_int_equal(fclose(f), 0);
        if (mox_file_open(&d->files[i], path, &err) != MOX_OK) fail_msg("%s", err.msg);
    }
}

static void disk_remove(disk *d)
{
    for (int i = 0; i < N_FILES; i++) {
        mox_free(d->bytes[i]);
        (void)unlink(d->files[i].path);
        mox_file_close(&d->files[i]);
    }
    (void)rmdir(d->dir);
}

/* ---- jobs with memory around their ranges that must stay as it is ---- */

typedef struct request {
    mox_read_job job;
    mox_read_range ranges[MAX_RANGES];
    uint8_t *memory[MAX_RANGES], *block[MAX_RANGES];
} request;

static void add_range(request *q, int32_t file, int64_t offset, int64_t bytes)
{
    const int i = q->job.n_ranges++;
    const int64_t before = offset % MOX_READ_ALIGN;
    q->block[i] = mox_alloc((size_t)(bytes + 2 * ROOM));
    memset(q->block[i], 0xA5, (size_t)(bytes + 2 * ROOM));
    q->memory[i] = q->block[i] + (MOX_READ_ALIGN - (uintptr_t)q->block[i] % MOX_READ_ALIGN) + MOX_READ_ALIGN;
    q->ranges[i] = (mox_read_range){.file = file, .offset = offset, .bytes = bytes, .dst = q->memory[i] + before};
}

static void clear(request *q)
{
    for (int i = 0; i < q->job.n_ranges; i++) mox_free(q->block[i]);
    *q = (request){0};
}

static request one_range(int32_t file, int64_t offset, int64_t bytes)
{
    request q = {0};
    add_range(&q, file, offset, bytes);
    return q;
}

static void submit(mox_reader *r, request *q)
{
    q->job.ranges = q->ranges;
    mox_reader_submit(r, &q->job);
}

static void expect_bytes(const disk *d, const request *q)
{
    if (q->job.status != MOX_OK) fail_msg("%s", q->job.err.msg);
    for (int i = 0; i < q->job.n_ranges; i++) {
        const mox_read_range *range = &q->ranges[i];
        assert_memory_equal(range->dst, d->bytes[range->file] + range->offset, (size_t)range->bytes);
        const uint8_t *end = range->dst + range->bytes;
        end += (MOX_READ_ALIGN - (uintptr_t)end % MOX_READ_ALIGN) % MOX_READ_ALIGN;
        for (const uint8_t *at = q->block[i]; at < q->memory[i]; at++) assert_int_equal(*at, 0xA5);
        for (const uint8_t *at = end; at < q->block[i] + range->bytes + 2 * ROOM; at++) assert_int_equal(*at, 0xA5);
    }
}

/* ---- engines ---- */

typedef struct setup {
    const char *where;
    mox_reader_opts opts;
} setup;

static const setup setups[] = {
    {".", {.n_threads = 1}},
    {".", {.n_threads = 3, .piece_bytes = 4096}},
    {".", {.n_threads = 16, .piece_bytes = 20000}},
    {".", {.n_threads = 1, .buffered = true}},
    {".", {.n_threads = 16, .buffered = true, .piece_bytes = 8192}},
    {"/dev/shm", {.n_threads = 2, .piece_bytes = 65536}},
    {".", {.uring = true, .depth = 1, .piece_bytes = 16384}},
    {".", {.uring = true, .depth = 7, .piece_bytes = 4096}},
    {".", {.uring = true}},
    {".", {.uring = true, .buffered = true, .depth = 5, .piece_bytes = 12288}},
    {"/dev/shm", {.uring = true, .depth = 3}},
};
enum { N_SETUPS = sizeof setups / sizeof *setups };

static mox_reader *open_reader(const disk *d, const mox_reader_opts *opts)
{
    mox_reader *r;
    mox_err err;
    if (mox_reader_open(&r, d->files, N_FILES, opts, &err) != MOX_OK) fail_msg("%s", err.msg);
    return r;
}

static void expect_next(mox_reader *r, const request *q)
{
    assert_ptr_equal(mox_reader_wait(r, 20.0), &q->job);
}

static request random_request(mox_rng *rng)
{
    request q = {0};
    const int n = 1 + (int)(mox_rng_u64(rng) % MAX_RANGES);
    for (int i = 0; i < n; i++) {
        const int64_t most = mox_rng_u64(rng) % 4 == 0 ? SIZE / 4 : 20000;
        const int64_t bytes = (int64_t)(mox_rng_u64(rng) % (uint64_t)most);
        const bool last = mox_rng_u64(rng) % 5 == 0; /* up to the end of the file, which is no page's */
        const int64_t offset = last ? SIZE - bytes : (int64_t)(mox_rng_u64(rng) % (uint64_t)(SIZE - bytes));
        add_range(&q, (int32_t)(mox_rng_u64(rng) % N_FILES), offset, mox_rng_u64(rng) % 8 == 0 ? 0 : bytes);
    }
    q.job.ahead = mox_rng_u64(rng) % 3 == 0;
    return q;
}

static void bytes_are_the_files(void **state)
{
    (void)state;
    enum { N = 24 };
    for (int s = 0; s < N_SETUPS; s++) {
        disk d;
        mox_rng rng;
        mox_rng_init(&rng, (uint64_t)s);
        disk_make(&d, setups[s].where);
        mox_reader *r = open_reader(&d, &setups[s].opts);
        request q[N];
        int64_t bytes = 0;
        for (int i = 0; i < N; i++) {
            q[i] = random_request(&rng);
            for (int k = 0; k < q[i].job.n_ranges; k++) bytes += q[i].ranges[k].bytes;
        }
        const double begun_s = mox_clock_now();
        for (int i = 0; i < N; i++) submit(r, &q[i]);
        for (int i = 0; i < N; i++) {
            const mox_read_job *job = mox_reader_wait(r, 20.0);
            assert_non_null(job);
            assert_true(job->done_s >= begun_s && job->done_s <= mox_clock_now());
        }
        assert_null(mox_reader_wait(r, 20.0)); /* none is outstanding: at once */
        for (int i = 0; i < N; i++) expect_bytes(&d, &q[i]);
        mox_reader_stats stats;
        mox_reader_get_stats(r, &stats);
        assert_true(stats.bytes >= bytes && stats.reads > 0 && stats.busy_s > 0.0);
        if (setups[s].opts.buffered) assert_true(stats.bytes == bytes && stats.n_buffered == N_FILES);
        if (strcmp(setups[s].where, "/dev/shm") == 0) assert_int_equal(stats.n_buffered, N_FILES);
#ifdef MOX_HAVE_URING
        assert_int_equal(stats.uring, setups[s].opts.uring);
#endif
        for (int i = 0; i < N; i++) clear(&q[i]);
        mox_reader_close(&r);
        assert_null(r);
        disk_remove(&d);
    }
}

static void memory_is_a_file(void **state)
{
    (void)state;
    for (int uring = 0; uring < 2; uring++) {
        mox_file f;
        mox_reader *r;
        mox_err err;
        assert_int_equal(mox_file_memory(&f, "memory", 50000, &err), MOX_OK);
        for (int i = 0; i < 50000; i++) ((uint8_t *)f.map)[i] = (uint8_t)(i * 7);
        assert_int_equal(mox_reader_open(&r, &f, 1, &(mox_reader_opts){.uring = uring}, &err), MOX_OK);
        request q = one_range(0, 4999, 45001);
        submit(r, &q);
        expect_next(r, &q);
        assert_memory_equal(q.ranges[0].dst, (uint8_t *)f.map + 4999, 45001);
        clear(&q);
        mox_reader_close(&r);
        mox_file_close(&f);
    }
}

/* ---- a hook that holds reads up, counts them and makes them fail ---- */

typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closed;             /* reads wait */
    int n_inside, n_at_once; /* reads in the hook now; the most at a time */
    int wait_for;            /* each read waits until so many have been inside at once */
    int n_reads;
    int say_from, say_n, say; /* reads [say_from, say_from + say_n) of all are told this */
} gate;

static void gate_init(gate *g)
{
    *g = (gate){0};
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
}

static void gate_deinit(gate *g)
{
    mox_io_set_hook(NULL, NULL);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->changed);
}

static void gate_set(gate *g, bool closed)
{
    pthread_mutex_lock(&g->lock);
    g->closed = closed;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static int pass_gate(void *user, const char *path, const char *what)
{
    gate *g = user;
    (void)path;
    if (strcmp(what, "read") != 0) return 0;
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    pthread_mutex_lock(&g->lock);
    const int number = g->n_reads++;
    g->n_inside++;
    if (g->n_inside > g->n_at_once) g->n_at_once = g->n_inside;
    pthread_cond_broadcast(&g->changed);
    while (g->closed) pthread_cond_wait(&g->changed, &g->lock);
    while (g->n_at_once < g->wait_for && pthread_cond_timedwait(&g->changed, &g->lock, &until) == 0) continue;
    g->n_inside--;
    const int say = number >= g->say_from && number < g->say_from + g->say_n ? g->say : 0;
    pthread_mutex_unlock(&g->lock);
    return say;
}

/* Until a read waits at the closed gate. */
static void await_inside(gate *g)
{
    pthread_mutex_lock(&g->lock);
    while (g->n_inside == 0) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

/* One read at a time, so that the order is visible; also by threads, where io_uring is not to
 * be had. */
static const mox_reader_opts one_at_a_time[] = {{.n_threads = 1}, {.uring = true, .depth = 1, .n_threads = 1}};
/* A reader whose reads wait until the gate is opened. */
static mox_reader *open_held(disk *d, const mox_reader_opts *opts, gate *g)
{
    gate_init(g);
    g->closed = true;
    mox_reader *r = open_reader(d, opts);
    mox_io_set_hook(pass_gate, g);
    return r;
}

/* Engines for everything else. */
static const mox_reader_opts engines[] = {
    {.n_threads = 4},
    {.n_threads = 4, .buffered = true},
    {.uring = true, .depth = 4, .n_threads = 4},
    {.uring = true, .depth = 4, .n_threads = 4, .buffered = true},
};
enum { N_ENGINES = sizeof engines / sizeof *engines };

static void order_of_jobs(void **state)
{
    (void)state;
    disk d;
    disk_make(&d, ".");
    for (int e = 0; e < 2; e++) {
        gate g;
        mox_reader *r = open_held(&d, &one_at_a_time[e], &g);
        request q[7];
        for (int i = 0; i < 7; i++) {
            q[i] = one_range(i % N_FILES, 1000 * i + 1, 6000);
            q[i].job.ahead = i >= 1 && i <= 3;
        }
        submit(r, &q[0]);
        await_inside(&g);
        for (int i = 1; i < 7; i++) submit(r, &q[i]); /* 1 to 3 ahead, 4 to 6 urgent */
        mox_reader_hurry(r, &q[3].job);
        mox_reader_hurry(r, &q[0].job); /* has begun: nothing changes */
        mox_reader_hurry(r, &q[5].job); /* urgent already */
        assert_false(mox_reader_withdraw(r, &q[0].job));
        assert_true(mox_reader_withdraw(r, &q[2].job));
        assert_true(mox_reader_withdraw(r, &q[6].job));
        assert_false(mox_reader_withdraw(r, &q[6].job)); /* not there any more */
        assert_null(mox_reader_wait(r, 0.0));
        gate_set(&g, false);
        static const int order[] = {0, 4, 5, 3, 1};
        for (int i = 0; i < 5; i++) {
            expect_next(r, &q[order[i]]);
            expect_bytes(&d, &q[order[i]]);
        }
        assert_null(mox_reader_wait(r, 20.0));
        assert_int_equal(*q[2].ranges[0].dst, 0xA5); /* was never read */
        submit(r, &q[2]);
        expect_next(r, &q[2]);
        expect_bytes(&d, &q[2]);
        for (int i = 0; i < 7; i++) clear(&q[i]);
        mox_reader_close(&r);
        gate_deinit(&g);
    }
    disk_remove(&d);
}

/* What waited ahead begins when it is hurried and not before; what comes later is as before. */
static void parked_jobs_wait_to_be_hurried(void **state)
{
    (void)state;
    disk d;
    disk_make(&d, ".");
    for (int e = 0; e < 2; e++) {
        gate g;
        mox_reader_opts opts = one_at_a_time[e];
        opts.piece_bytes = 4096;
        mox_reader *r = open_held(&d, &opts, &g);
        request q[6];
        for (int i = 0; i < 6; i++) {
            q[i] = one_range(i % N_FILES, 1000 * i + 1, 20000);
            q[i].job.ahead = true;
        }
        for (int i = 0; i < 6; i++)
            if (i != 4) submit(r, &q[i]);
        await_inside(&g);
        mox_reader_park(r);
        gate_set(&g, false);
        expect_next(r, &q[0]); /* a part of it had begun */
        assert_null(mox_reader_wait(r, 0.05));
        mox_reader_hurry(r, &q[2].job);
        expect_next(r, &q[2]);
        mox_reader_unpark(r, &q[5].job);
        expect_next(r, &q[5]);
        submit(r, &q[4]);
        expect_next(r, &q[4]);
        assert_true(mox_reader_withdraw(r, &q[1].job));
        submit(r, &q[1]);
        expect_next(r, &q[1]);
        for (int i = 0; i < 6; i++)
            if (i != 3) expect_bytes(&d, &q[i]);
        mox_reader_close(&r); /* with one of them left */
        assert_int_equal(q[3].job.status, MOX_E_CANCELLED);
        for (int i = 0; i < 6; i++) clear(&q[i]);
        gate_deinit(&g);
    }
    disk_remove(&d);
}

/* A thread that was woken for a job finds it withdrawn; the next job is read all the same. */
static void nothing_there_any_more(void **state)
{
    (void)state;
    disk d;
    disk_make(&d, ".");
    for (int e = 0; e < N_ENGINES; e++) {
        mox_reader *r = open_reader(&d, &engines[e]);
        int n_withdrawn = 0;
        for (int i = 0; i < 1000 && n_withdrawn < 20; i++) {
            request q = one_range(0, 1000 * i, 500), other = one_range(1, 1000 * i, 500);
            (void)usleep(1000); /* the threads sleep again */
            submit(r, &q);
            const bool withdrawn = mox_reader_withdraw(r, &q.job);
            n_withdrawn += withdrawn;
            if (!withdrawn) expect_next(r, &q);
            (void)usleep(1000);
            submit(r, &other);
            expect_next(r, &other);
            expect_bytes(&d, &other);
            clear(&q);
            clear(&other);
        }
        assert_int_equal(n_withdrawn, 20);
        mox_reader_close(&r);
    }
    disk_remove(&d);
}

/* A long range and many ranges occupy all threads at once, urgent work also passes a job
 * ahead that is half done. */
static void ranges_are_spread(void **state)
{
    (void)state;
    disk d;
    disk_make(&d, ".");
    for (int many = 0; many < 2; many++) {
        gate g;
        gate_init(&g);
        g.wait_for = 4;
        mox_reader *r = open_reader(&d, &(mox_reader_opts){.n_threads = 4, .piece_bytes = 65536});
        mox_io_set_hook(pass_gate, &g);
        request q = {0};
        if (many)
            for (int i = 0; i < MAX_RANGES; i++) add_range(&q, i % N_FILES, 70001 * i, 3000);
        else add_range(&q, 0, 12345, 600000);
        (void)usleep(50000); /* all threads sleep by now */
        submit(r, &q);
        expect_next(r, &q);
        expect_bytes(&d, &q);
        assert_int_equal(g.n_at_once, 4);
        clear(&q);
        mox_reader_close(&r);
        gate_deinit(&g);
    }
    for (int e = 0; e < 2; e++) {
        gate g;
        mox_reader_opts opts = one_at_a_time[e];
        opts.piece_bytes = 4096;
        mox_reader *r = open_held(&d, &opts, &g);
        request slow = one_range(0, 0, 50000), urgent = one_range(1, 5, 50);
        slow.job.ahead = true;
        submit(r, &slow);
        await_inside(&g);
        submit(r, &urgent);
        assert_false(mox_reader_withdraw(r, &slow.job)); /* a part of it has begun */
        gate_set(&g, false);
        expect_next(r, &urgent);
        expect_next(r, &slow);
        expect_bytes(&d, &urgent);
        expect_bytes(&d, &slow);
        clear(&slow);
        clear(&urgent);
        mox_reader_close(&r);
        gate_deinit(&g);
    }
    disk_remove(&d);
}

/* Reads of a job when reads [0, n) of it are told `say`; its status. */
static mox_status read_with(const disk *d, const mox_reader_opts *opts, int n, int say, int64_t offset, int64_t bytes,
                            mox_err *err, int *n_reads)
{
    gate g;
    gate_init(&g);
    g.say_n = n;
    g.say = say;
    mox_reader *r = open_reader(d, opts);
    mox_io_set_hook(pass_gate, &g);
    request q = one_range(1, offset, bytes);
    submit(r, &q);
    expect_next(r, &q);
    const mox_status status = q.job.status;
    *err = q.job.err;
    *n_reads = g.n_reads;
    if (status == MOX_OK) expect_bytes(d, &q);
    /* what failed once harms nothing else */
    request other = one_range(0, 3, 9000);
    g.say_n = 0;
    submit(r, &other);
    expect_next(r, &other);
    expect_bytes(d, &other);
    clear(&q);
    clear(&other);
    mox_reader_close(&r);
    gate_deinit(&g);
    return status;
}

static void failures_are_retried(void **state)
{
    (void)state;
    disk d;
    disk_make(&d, ".");
    for (int e = 0; e < N_ENGINES; e++) {
        const bool direct = !engines[e].buffered;
        mox_err err;
        int n_reads;
        char at[32];
        (void)snprintf(at, sizeof at, "byte %d", direct ? 12288 : 12345);
        assert_int_equal(read_with(&d, &engines[e], 3, EIO, 12345, 7000, &err, &n_reads), MOX_OK);
        assert_int_equal(n_reads, 4);
        assert_int_equal(read_with(&d, &engines[e], 4, EIO, 12345, 7000, &err, &n_reads), MOX_E_IO);
        assert_int_equal(n_reads, 4);
        assert_non_null(strstr(err.msg, d.files[1].path));
        assert_non_null(strstr(err.msg, at));
        assert_non_null(strstr(err.msg, strerror(EIO)));
        assert_int_equal(read_with(&d, &engines[e], 50, EINTR, 12345, 7000, &err, &n_reads), MOX_OK);
        assert_int_equal(n_reads, 51);
        /* parts: of pages when direct, else of any length */
        assert_int_equal(read_with(&d, &engines[e], 1000, -5000, 12345, 30000, &err, &n_reads), MOX_OK);
        assert_int_equal(n_reads, direct ? 8 : 6);
        assert_int_equal(read_with(&d, &engines[e], 2, -100, 12345, 30000, &err, &n_reads), MOX_OK);
        assert_int_equal(n_reads, 3);
        assert_int_equal(read_with(&d, &engines[e], 4, -100, 12345, 30000, &err, &n_reads), direct ? MOX_E_IO : MOX_OK);
        if (direct) assert_non_null(strstr(err.msg, "fewer bytes came"));
    }
    disk_remove(&d);
}

/* The N-th read of many fails for good: that job, and no other, says so. */
static void nth_read_fails(void **state)
{
    (void)state;
    enum { N = 6 };
    disk d;
    disk_make(&d, ".");
    for (int e = 0; e < 2; e++) /* one at a time, so that the retries follow each other */
        for (int nth_read = 0; nth_read < 18; nth_read += 5) {
            gate g;
            gate_init(&g);
            g.say_from = nth_read;
            g.say_n = 4;
            g.say = EIO;
            mox_reader_opts opts = one_at_a_time[e];
            opts.piece_bytes = 8192;
            mox_reader *r = open_reader(&d, &opts);
            mox_io_set_hook(pass_gate, &g);
            request q[N];
            int n_failed = 0;
            for (int i = 0; i < N; i++) q[i] = one_range(i % N_FILES, 99999 * i, 20000); /* three reads each */
            for (int i = 0; i < N; i++) submit(r, &q[i]);
            for (int i = 0; i < N; i++) assert_non_null(mox_reader_wait(r, 20.0));
            for (int i = 0; i < N; i++) {
                if (q[i].job.status == MOX_OK) expect_bytes(&d, &q[i]);
                else {
                    n_failed++;
                    assert_int_equal(q[i].job.status, MOX_E_IO);
                    assert_int_equal(i, nth_read / 3);
                }
                clear(&q[i]);
            }
            assert_int_equal(n_failed, 1);
            mox_reader_close(&r);
            gate_deinit(&g);
        }
    disk_remove(&d);
}

static void file_is_cut_short(void **state)
{
    (void)state;
    for (int e = 0; e < N_ENGINES; e++) {
        disk d;
        disk_make(&d, ".");
        mox_reader *r = open_reader(&d, &engines[e]);
        assert_int_equal(truncate(d.files[1].path, 100000), 0);
        static const struct {
            int64_t offset, bytes;
            bool whole;
        } cases[] = {{90000, 10000, true}, {90000, 10001, false}, {98304, 1696, true}, {99000, 5000, false},
                     {200000, 10, false}};
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            request q = one_range(1, cases[i].offset, cases[i].bytes);
            mox_reader_stats before, after;
            mox_reader_get_stats(r, &before);
            submit(r, &q);
            expect_next(r, &q);
            mox_reader_get_stats(r, &after);
            assert_in_range(after.reads - before.reads, 1, 3); /* nothing is tried again */
            if (cases[i].whole) expect_bytes(&d, &q);
            else {
                assert_int_equal(q.job.status, MOX_E_IO);
                assert_non_null(strstr(q.job.err.msg, d.files[1].path));
                assert_non_null(strstr(q.job.err.msg, "was cut short while running"));
            }
            clear(&q);
        }
        mox_reader_close(&r);
        disk_remove(&d);
    }
}

static void waiting_ends_in_time(void **state)
{
    (void)state;
    disk d;
    disk_make(&d, ".");
    for (int e = 0; e < N_ENGINES; e++) {
        gate g;
        mox_reader *r = open_held(&d, &engines[e], &g);
        request q = one_range(0, 17, 5000), other = one_range(1, 18, 5000);
        submit(r, &q);
        await_inside(&g);
        submit(r, &other); /* does not block either */
        const double start = mox_clock_now();
        assert_null(mox_reader_wait(r, 0.05));
        const double waited = mox_clock_now() - start;
        assert_true(waited >= 0.05 && waited < 5.0); /* the disk stands still for as long as we like */
        gate_set(&g, false);
        assert_non_null(mox_reader_wait(r, 20.0));
        assert_non_null(mox_reader_wait(r, 20.0));
        expect_bytes(&d, &q);
        expect_bytes(&d, &other);
        clear(&q);
        clear(&other);
        mox_reader_close(&r);
        gate_deinit(&g);
    }
    disk_remove(&d);
}

typedef struct closing {
    mox_reader *reader;
    gate *gate;
} closing;

/* The reader is there until then: it waits for the read that is at the gate. */
static void *open_gate_when_closing(void *user)
{
    closing *c = user;
    for (bool stop = false; !stop; (void)usleep(1000)) {
        pthread_mutex_lock(&c->reader->lock);
        stop = c->reader->stop;
        pthread_mutex_unlock(&c->reader->lock);
    }
    gate_set(c->gate, false);
    return NULL;
}

static void closing_leaves_nothing_behind(void **state)
{
    (void)state;
    enum { N = 40 };
    disk d;
    disk_make(&d, ".");
    for (int e = 0; e < 2 * N_ENGINES; e++) {
        const bool failing = e >= N_ENGINES;
        gate g;
        gate_init(&g);
        g.closed = true;
        g.say = EIO;
        g.say_n = failing ? 1000 : 0;
        mox_reader_opts opts = engines[e % N_ENGINES];
        opts.piece_bytes = 4096;
        mox_reader *r = open_reader(&d, &opts);
        mox_io_set_hook(pass_gate, &g);
        request q[N];
        for (int i = 0; i < N; i++) {
            q[i] = one_range(i % N_FILES, 40000 * i, 20000);
            q[i].job.ahead = i % 3 == 0;
        }
        for (int i = 0; i < N; i++) submit(r, &q[i]);
        await_inside(&g);
        pthread_t later;
        closing both = {.reader = r, .gate = &g};
        assert_int_equal(pthread_create(&later, NULL, open_gate_when_closing, &both), 0);
        mox_reader_close(&r); /* waits for what has begun */
        assert_int_equal(g.n_inside, 0);
        const int n_reads = g.n_reads;
        assert_true(n_reads >= 1 && n_reads <= (failing ? 16 : 4)); /* and begins nothing */
        int n_cancelled = 0;
        for (int i = 0; i < N; i++) {
            n_cancelled += q[i].job.status == MOX_E_CANCELLED;
            assert_int_equal(q[i].job.n_begun, q[i].job.n_done);
            clear(&q[i]); /* the sanitizer sees who still writes there */
        }
        assert_true(n_cancelled >= N - 4);
        pthread_join(later, NULL);
        assert_int_equal(g.n_reads, n_reads);
        gate_deinit(&g);
    }
    disk_remove(&d);
    mox_reader *none = NULL;
    mox_reader_close(&none);
}

static void nothing_is_allocated(void **state)
{
    (void)state;
    disk d;
    disk_make(&d, ".");
    for (int e = 0; e < N_ENGINES; e++) {
        mox_reader *r = open_reader(&d, &engines[e]);
        request q[8];
        for (int i = 0; i < 8; i++) q[i] = one_range(i % N_FILES, 5555 * i, 2000000);
        nth counted = {0};
        mox_alloc_set_hook(fail_nth_alloc, &counted);
        for (int i = 0; i < 8; i++) submit(r, &q[i]);
        for (int i = 0; i < 8; i++) assert_non_null(mox_reader_wait(r, 20.0));
        mox_alloc_set_hook(NULL, NULL);
        assert_int_equal(counted.count, 0);
        for (int i = 0; i < 8; i++) {
            expect_bytes(&d, &q[i]);
            clear(&q[i]);
        }
        mox_reader_close(&r);
    }
    disk_remove(&d);
}

/* ---- opening ---- */

static void opening_fails_cleanly(void **state)
{
    (void)state;
    disk d;
    disk_make(&d, ".");
    for (int e = 0; e < N_ENGINES; e++) {
        int n_failed = 0;
        for (long at = 1;; at++) {
            nth n = {.at = at};
            mox_reader *r;
            mox_err err;
            mox_alloc_set_hook(fail_nth_alloc, &n);
            const mox_status status = mox_reader_open(&r, d.files, N_FILES, &engines[e], &err);
            mox_alloc_set_hook(NULL, NULL);
            if (status != MOX_OK) {
                n_failed++;
                assert_int_equal(status, MOX_E_MEMORY);
                assert_null(r);
            }
            mox_reader_close(&r);
            if (n.count < at) break;
        }
        assert_true(n_failed >= 2);
    }
    static const mox_reader_opts bad[] = {
        {.n_threads = -1}, {.n_threads = 257}, {.depth = -1}, {.depth = 1025}, {.piece_bytes = -1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mox_reader *r;
        mox_err err;
        assert_int_equal(mox_reader_open(&r, d.files, N_FILES, &bad[i], &err), MOX_E_ARG);
        assert_null(r);
    }
    disk_remove(&d);
}

typedef struct refusal {
    const char *what, *path; /* refused; path NULL: any */
    int n_warnings;
    char sentence[512];
} refusal;

static int refuse(void *user, const char *path, const char *what)
{
    const refusal *f = user;
    return strcmp(what, f->what) == 0 && (!f->path || strcmp(path, f->path) == 0) ? EINVAL : 0;
}

static void remember_warning(void *user, const char *sentence)
{
    refusal *f = user;
    f->n_warnings++;
    (void)snprintf(f->sentence, sizeof f->sentence, "%s", sentence);
}

static void refusals_are_said_once(void **state)
{
    (void)state;
    disk d;
    disk_make(&d, ".");
    for (int uring = 0; uring < 2; uring++) {
        refusal f = {.what = "direct"};
        if (uring) f = (refusal){.what = "open", .path = "io_uring"};
        mox_io_set_hook(refuse, &f);
        mox_reader *r = open_reader(&d, &(mox_reader_opts){.uring = uring, .warn = remember_warning, .warn_user = &f});
        mox_io_set_hook(NULL, NULL);
        request q = one_range(1, 70001, 300000);
        submit(r, &q);
        expect_next(r, &q);
        expect_bytes(&d, &q);
        mox_reader_stats stats;
        mox_reader_get_stats(r, &stats);
        assert_int_equal(f.n_warnings, 1);
        assert_non_null(strstr(f.sentence, uring ? "io_uring" : d.files[0].path));
        assert_false(stats.uring);
        if (!uring) assert_int_equal(stats.n_buffered, N_FILES);
        clear(&q);
        mox_reader_close(&r);
    }
    refusal f = {0};
    mox_reader *r = open_reader(&d, &(mox_reader_opts){.buffered = true, .warn = remember_warning, .warn_user = &f});
    assert_int_equal(f.n_warnings, 0); /* as asked for */
    mox_reader_close(&r);
    disk_remove(&d);
}

/* Another file under the same name is not the one whose bytes were promised. */
static void replaced_file_is_not_mixed_up(void **state)
{
    (void)state;
    disk d;
    disk_make(&d, ".");
    refusal f = {0};
    mox_file direct;
    mox_err err;
    assert_int_equal(rename(d.files[0].path, d.files[1].path), 0);
    assert_int_equal(mox_file_open_direct(&direct, &d.files[1], &err), MOX_E_UNSUPPORTED);
    mox_reader *r = open_reader(&d, &(mox_reader_opts){.warn = remember_warning, .warn_user = &f});
    request q = one_range(1, 70001, 300000);
    submit(r, &q);
    expect_next(r, &q);
    expect_bytes(&d, &q);
    assert_int_equal(f.n_warnings, 1);
    clear(&q);
    mox_reader_close(&r);
    disk_remove(&d);
}

static void wrong_jobs_are_refused(void **state)
{
    (void)state;
    disk d;
    disk_make(&d, ".");
    mox_reader *r = open_reader(&d, NULL);
    static const struct {
        int32_t file;
        int64_t offset, bytes;
        int shift;
    } cases[] = {{-1, 0, 10, 0},         {N_FILES, 0, 10, 0},      {0, -4096, 10, 0},       {0, SIZE - 5, 6, 0},
                 {0, SIZE + 4096, 0, 0}, {0, 0, INT64_MAX, 0},     {0, INT64_MAX, 10, 0},   {0, 0, -1, 0},
                 {0, 0, 10, 1}};
    uint8_t *memory = mox_alloc(3 * MOX_READ_ALIGN);
    uint8_t *page = memory + (MOX_READ_ALIGN - (uintptr_t)memory % MOX_READ_ALIGN);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint64_t within = (uint64_t)cases[i].offset % MOX_READ_ALIGN;
        const mox_read_range range = {cases[i].file, cases[i].offset, cases[i].bytes, page + within + cases[i].shift};
        mox_read_job job = {.ranges = &range, .n_ranges = 1};
        mox_reader_submit(r, &job);
        assert_ptr_equal(mox_reader_wait(r, 20.0), &job);
        assert_int_equal(job.status, MOX_E_ARG);
        assert_true(job.err.msg[0] != '\0');
    }
    mox_read_job empty = {0};
    mox_reader_submit(r, &empty);
    assert_ptr_equal(mox_reader_wait(r, 20.0), &empty);
    assert_int_equal(empty.status, MOX_OK);
    mox_free(memory);
    mox_reader_close(&r);
    disk_remove(&d);
}

/* ---- many threads that submit, hurry, withdraw and wait ---- */

enum { USERS = 4, ROUNDS = 60, AT_ONCE = 5 };

typedef struct user {
    mox_reader *r;
    const disk *d;
    uint64_t seed;
    atomic_int *n_submitted, *n_returned;
    atomic_bool back[AT_ONCE];
} user;

static void take_back(user *u, double timeout_s)
{
    const mox_read_job *job = mox_reader_wait(u->r, timeout_s); /* perhaps somebody else's */
    if (!job) return;
    atomic_fetch_add(u->n_returned, 1);
    atomic_store((atomic_bool *)job->user, true);
}

static void *use_reader(void *arg)
{
    user *u = arg;
    mox_rng rng;
    mox_rng_init(&rng, u->seed);
    for (int round = 0; round < ROUNDS; round++) {
        request q[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++) {
            const int64_t offset = (int64_t)(mox_rng_u64(&rng) % (SIZE - 40000));
            q[i] = one_range(i % N_FILES, offset, 1 + (int64_t)(mox_rng_u64(&rng) % 30000));
            q[i].job.ahead = mox_rng_u64(&rng) % 2 == 0;
            q[i].job.user = &u->back[i];
            atomic_store(&u->back[i], false);
            submit(u->r, &q[i]);
            atomic_fetch_add(u->n_submitted, 1);
        }
        bool withdrawn = false;
        if (mox_rng_u64(&rng) % 2 == 0 && (withdrawn = mox_reader_withdraw(u->r, &q[3].job))) {
            atomic_fetch_sub(u->n_submitted, 1);
            atomic_store(&u->back[3], true);
        }
        mox_reader_hurry(u->r, &q[4].job);
        for (int i = 0; i < AT_ONCE; i++)
            while (!atomic_load(&u->back[i])) take_back(u, 0.002);
        for (int i = 0; i < AT_ONCE; i++) {
            if (i != 3 || !withdrawn) expect_bytes(u->d, &q[i]);
            clear(&q[i]);
        }
    }
    return NULL;
}

static void many_users(void **state)
{
    (void)state;
    disk d;
    disk_make(&d, ".");
    for (int e = 0; e < N_ENGINES; e++) {
        mox_reader_opts opts = engines[e];
        opts.piece_bytes = 8192;
        mox_reader *r = open_reader(&d, &opts);
        atomic_int n_submitted = 0, n_returned = 0;
        static user users[USERS];
        pthread_t threads[USERS];
        for (int i = 0; i < USERS; i++) {
            users[i].r = r;
            users[i].d = &d;
            users[i].seed = (uint64_t)(e * USERS + i);
            users[i].n_submitted = &n_submitted;
            users[i].n_returned = &n_returned;
            assert_int_equal(pthread_create(&threads[i], NULL, use_reader, &users[i]), 0);
        }
        for (int i = 0; i < USERS; i++) pthread_join(threads[i], NULL);
        assert_int_equal(n_submitted, n_returned);
        assert_null(mox_reader_wait(r, 20.0));
        mox_reader_close(&r);
    }
    disk_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_the_files),
        cmocka_unit_test(memory_is_a_file),
        cmocka_unit_test(order_of_jobs),
        cmocka_unit_test(nothing_there_any_more),
        cmocka_unit_test(parked_jobs_wait_to_be_hurried), cmocka_unit_test(ranges_are_spread),
        cmocka_unit_test(failures_are_retried),
        cmocka_unit_test(nth_read_fails),
        cmocka_unit_test(file_is_cut_short),
        cmocka_unit_test(waiting_ends_in_time),
        cmocka_unit_test(closing_leaves_nothing_behind),
        cmocka_unit_test(nothing_is_allocated),
        cmocka_unit_test(opening_fails_cleanly),
        cmocka_unit_test(refusals_are_said_once),
        cmocka_unit_test(replaced_file_is_not_mixed_up),
        cmocka_unit_test(wrong_jobs_are_refused),
        cmocka_unit_test(many_users),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
