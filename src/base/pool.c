/* base/pool.c -- see pool.h.
 *
 * A run is a gate that opens: one word that holds the number of the run, whether it is
 * open, and how many workers are inside.  Workers that see a new number enter, claim
 * blocks from one counter, and leave; the caller claims blocks too, closes the gate when
 * there are none left, and waits for those inside.  A worker that comes late finds the
 * gate closed, so nobody waits for a thread that the system has not woken yet.
 *
 * Who waits spins for a short while, because the next operation of a layer usually
 * follows at once, and then sleeps on a condition variable, because the same cores read
 * the disk and serve other programs.  Sleepers are counted, so that a run in which
 * nobody sleeps makes no system call and takes no lock.
 *
 * While it spins, a worker fetches what the caller said that it will need (mox_pool_expect).  A step of that may be
 * fetched from addresses of two expectations mixed up, which is harmless: nothing is read.
 *
 * I1  the fields of a run are written while the gate is closed and nobody is inside.
 * I2  who goes to sleep says so first and then looks again; who has news tells first
 *     and then looks for sleepers.  Both are sequentially consistent, so one of the two
 *     sees the other.  Who says it exchanges instead of storing: with stores, runs on ARM emulated by QEMU hung now and
 *     then, as if a load had passed the store before it, which the memory model forbids. */
#include "base/pool.h"

#include "base/alloc.h"
#include "base/machine.h"
#include "base/size.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Rounds of waiting before sleep: longer than the pauses between the operations of a
 * layer, and next to nothing when there are more threads than cores, where the one that
 * is waited for may need the core. */
enum { SPIN_ROUNDS = 2000, SPIN_ROUNDS_CROWDED = 20, LINE = 64 };

#define OPEN ((uint64_t)1 << 31)

struct mox_pool {
    pthread_t *threads;
    int n_workers; /* without the caller */
    int spin_rounds;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    atomic_int n_asleep;       /* workers; changed under the lock */
    atomic_bool caller_asleep; /* changed under the lock */
    atomic_bool stop;
    /* the present run */
    mox_pool_job *job;
    const void *args;
    int64_t n, grain;
    bool even;
    /* what every thread writes has lines of its own */
    char apart0[LINE];
    _Atomic uint64_t gate; /* number of the run << 32 | OPEN | workers inside */
    char apart1[LINE];
    _Atomic int64_t next;
    char apart2[LINE];
    struct {
        _Atomic uintptr_t at[MOX_POOL_STREAMS]; /* behind the last step */
        _Atomic int64_t step[MOX_POOL_STREAMS];
        _Atomic int64_t left; /* steps */
    } ahead;
    char apart3[LINE];
};

static inline uint32_t number_of(uint64_t gate) { return (uint32_t)(gate >> 32); }
static inline uint32_t inside(uint64_t gate) { return (uint32_t)(gate & (OPEN - 1)); }

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Of even items a part of each thread's share, so that blocks are long as long as that cannot make anybody wait in the end. */
int64_t mox_pool_first(const mox_pool *pool, int64_t n, int64_t grain)
{
    enum { PARTS = 2 };
    const int64_t share = n / (PARTS * mox_pool_size(pool));
    return mox_min_i64(n, mox_max_i64(share - share % grain, grain));
}

/* How many items to claim when so many are left. */
static int64_t block_of(const mox_pool *p, int64_t left)
{
    return p->even ? mox_pool_first(p, left, p->grain) : mox_min_i64(left, p->grain);
}

static void work(mox_pool *p)
{
    int64_t begin = atomic_load_explicit(&p->next, memory_order_relaxed);
    while (begin < p->n) {
        const int64_t n = block_of(p, p->n - begin);
        if (!atomic_compare_exchange_weak_explicit(&p->next, &begin, begin + n, memory_order_relaxed, memory_order_relaxed)) continue;
        p->job(p->args, begin, begin + n);
        begin = atomic_load_explicit(&p->next, memory_order_relaxed);
    }
}

/* ---- fetching while waiting ---- */

void mox_pool_expect(mox_pool *pool, const mox_pool_ahead *ahead)
{
    if (!pool || pool->n_workers == 0) return;
    atomic_store_explicit(&pool->ahead.left, 0, memory_order_relaxed);
    for (int i = 0; i < MOX_POOL_STREAMS; i++) {
        const uintptr_t end = (uintptr_t)ahead->at[i] + (uintptr_t)(ahead->n_steps * ahead->step[i]);
        atomic_store_explicit(&pool->ahead.at[i], end, memory_order_relaxed);
        atomic_store_explicit(&pool->ahead.step[i], ahead->step[i], memory_order_relaxed);
    }
    atomic_store_explicit(&pool->ahead.left, ahead->n_steps, memory_order_release);
}

/* One step of what is expected; false: there is none left. */
static bool fetch_step(mox_pool *p)
{
    if (atomic_load_explicit(&p->ahead.left, memory_order_relaxed) <= 0) return false;
    const int64_t left = atomic_fetch_sub_explicit(&p->ahead.left, 1, memory_order_acquire);
    for (int i = 0; left > 0 && i < MOX_POOL_STREAMS; i++) {
        const int64_t step = atomic_load_explicit(&p->ahead.step[i], memory_order_relaxed);
        const uintptr_t at = atomic_load_explicit(&p->ahead.at[i], memory_order_relaxed) - (uintptr_t)(left * step);
        for (int64_t b = 0; b < step; b += LINE) __builtin_prefetch((const void *)(at + (uintptr_t)b), 0, 2); /* the second cache */
    }
    return true;
}

/* ---- workers ---- */

/* Returns the gate when its run is another than `seen`. */
static uint64_t wait_for_run(mox_pool *p, uint32_t seen)
{
    uint64_t gate;
    for (int i = 0; i < p->spin_rounds; i++) {
        gate = atomic_load_explicit(&p->gate, memory_order_acquire);
        if (number_of(gate) != seen) return gate;
        if (!fetch_step(p)) relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->n_asleep, 1); /* I2 */
    while (number_of(gate = atomic_load(&p->gate)) == seen) pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->n_asleep, 1);
    pthread_mutex_unlock(&p->lock);
    return gate;
}

static void leave(mox_pool *p)
{
    const uint64_t gate = atomic_fetch_sub(&p->gate, 1); /* I1, I2 */
    if ((gate & OPEN) || inside(gate) != 1 || !atomic_load(&p->caller_asleep)) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->lock);
}

static void *worker(void *user)
{
    mox_pool *p = user;
    uint32_t seen = 0;
    for (;;) {
        uint64_t gate = wait_for_run(p, seen);
        if (atomic_load_explicit(&p->stop, memory_order_acquire)) return NULL;
        seen = number_of(gate);
        while ((gate & OPEN) && number_of(gate) == seen) {
            if (!atomic_compare_exchange_weak(&p->gate, &gate, gate + 1)) continue;
            work(p);
            leave(p);
            break;
        }
    }
}

/* ---- the caller ---- */

/* A new run for up to n_useful workers; closed when there is nothing to enter for. */
static void publish(mox_pool *p, bool open, int64_t n_useful)
{
    const uint64_t number = number_of(atomic_load_explicit(&p->gate, memory_order_relaxed)) + 1u;
    atomic_exchange(&p->gate, number << 32 | (open ? OPEN : 0)); /* I1, I2 */
    const int n_asleep = atomic_load(&p->n_asleep);
    if (n_asleep == 0) return;
    pthread_mutex_lock(&p->lock);
    if (n_useful >= n_asleep) pthread_cond_broadcast(&p->wake);
    else
        for (int64_t i = 0; i < n_useful; i++) pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

static void close_and_wait(mox_pool *p)
{
    uint64_t gate = atomic_fetch_and(&p->gate, ~OPEN);
    for (int i = 0; inside(gate) != 0 && i < p->spin_rounds; i++) {
        relax();
        gate = atomic_load_explicit(&p->gate, memory_order_acquire);
    }
    if (inside(gate) == 0) return;
    pthread_mutex_lock(&p->lock);
    atomic_exchange(&p->caller_asleep, true); /* I2 */
    while (inside(atomic_load(&p->gate)) != 0) pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->caller_asleep, false);
    pthread_mutex_unlock(&p->lock);
}

static void run(mox_pool *pool, mox_pool_job *job, const void *args, int64_t n, int64_t grain, bool even)
{
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    if (!pool || pool->n_workers == 0 || n <= grain) {
        job(args, 0, n);
        return;
    }
    pool->job = job;
    pool->args = args;
    pool->n = n;
    pool->grain = grain;
    pool->even = even;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    publish(pool, true, mox_ceil_div(n, grain) - 1);
    work(pool);
    close_and_wait(pool);
}

void mox_pool_run(mox_pool *pool, mox_pool_job *job, const void *args, int64_t n, int64_t grain) { run(pool, job, args, n, grain, false); }

void mox_pool_run_even(mox_pool *pool, mox_pool_job *job, const void *args, int64_t n, int64_t grain)
{
    run(pool, job, args, n, grain, true);
}

/* ---- life ---- */

/* Worker i of the pool to a processor of its own; a wish. */
static void pin(pthread_t thread, const int *cpus, int n_cpus, int i)
{
    mox_id_set set = {0};
    const int cpu = cpus[(i + 1) % n_cpus];
    set.words[cpu / MOX_ID_BITS] = 1ul << (cpu % MOX_ID_BITS);
    (void)pthread_setaffinity_np(thread, sizeof set, (const cpu_set_t *)set.words);
}

mox_status mox_pool_create(mox_pool **out, const mox_pool_opts *opts, mox_err *err)
{
    *out = NULL;
    int n_threads = opts->n_threads;
    if (n_threads < 0 || n_threads > 1024)
        return mox_fail(err, MOX_E_ARG, "threads: %d is not between 0 and 1024", n_threads);
    int cpus[MOX_MACHINE_IDS], n_cpus;
    const int n_cores = mox_machine_cpus(cpus, MOX_MACHINE_IDS, &n_cpus);
    if (n_threads == 0) n_threads = (int)mox_min_i64(mox_machine_threads(), 1024);
    mox_pool *p = mox_alloc_array(1, sizeof *p);
    if (!p) return mox_fail_memory(err, sizeof *p, "the thread pool");
    p->threads = mox_alloc_array((size_t)n_threads, sizeof *p->threads);
    if (!p->threads) {
        mox_free(p);
        return mox_fail_memory(err, (size_t)n_threads * sizeof(pthread_t), "the thread pool");
    }
    p->spin_rounds = n_threads <= n_cores ? SPIN_ROUNDS : SPIN_ROUNDS_CROWDED;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    while (p->n_workers < n_threads - 1 &&
           pthread_create(&p->threads[p->n_workers], NULL, worker, p) == 0) {
        if (opts->pin) pin(p->threads[p->n_workers], cpus, n_cpus, p->n_workers);
        p->n_workers++;
    }
    *out = p;
    return MOX_OK;
}

void mox_pool_destroy(mox_pool **pool)
{
    mox_pool *p = *pool;
    if (!p) return;
    atomic_store_explicit(&p->stop, true, memory_order_release);
    publish(p, false, p->n_workers);
    for (int i = 0; i < p->n_workers; i++) pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    mox_free(p->threads);
    mox_free(p);
    *pool = NULL;
}

int mox_pool_size(const mox_pool *pool) { return pool ? pool->n_workers + 1 : 1; }
