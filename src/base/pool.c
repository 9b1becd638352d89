/* base/pool.c -- see pool.h.
 *
 * A run is announced by a new generation number.  Workers spin on it for a short
 * while, because the next operation of a layer usually follows at once, and then
 * sleep on a condition variable, because the same cores read the disk and serve
 * other programs.  Blocks are claimed from one atomic counter.
 *
 * I1  the fields of a run are written before its generation is published and are
 *     not written again until every worker has reported that it left the run. */
#include "base/pool.h"

#include "base/alloc.h"
#include "base/size.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

enum { SPIN_ROUNDS = 2000 };

struct mox_pool {
    pthread_t *threads;
    int n_workers; /* without the caller */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint generation;
    atomic_int n_inside; /* workers that have not left the present run */
    atomic_bool stop;
    /* the present run */
    mox_pool_job *job;
    const void *args;
    int64_t n, grain;
    _Atomic int64_t next;
};

int mox_cpu_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        const int n = CPU_COUNT(&set);
        if (n > 0) return n;
    }
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 && n < 4096 ? (int)n : 1;
}

static void work(mox_pool *p)
{
    for (;;) {
        const int64_t begin = atomic_fetch_add_explicit(&p->next, p->grain, memory_order_relaxed);
        if (begin >= p->n) return;
        p->job(p->args, begin, mox_min_i64(begin + p->grain, p->n));
    }
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns when a generation other than seen is there. */
static unsigned wait_for_run(mox_pool *p, unsigned seen)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        const unsigned now = atomic_load_explicit(&p->generation, memory_order_acquire);
        if (now != seen) return now;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    unsigned now;
    while ((now = atomic_load_explicit(&p->generation, memory_order_acquire)) == seen)
        pthread_cond_wait(&p->wake, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return now;
}

static void *worker(void *user)
{
    mox_pool *p = user;
    unsigned seen = 0;
    for (;;) {
        seen = wait_for_run(p, seen);
        if (atomic_load_explicit(&p->stop, memory_order_acquire)) return NULL;
        work(p);
        atomic_fetch_sub_explicit(&p->n_inside, 1, memory_order_acq_rel); /* I1 */
    }
}

static void publish(mox_pool *p)
{
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add_explicit(&p->generation, 1, memory_order_release);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

mox_status mox_pool_create(mox_pool **out, int n_threads, mox_err *err)
{
    *out = NULL;
    if (n_threads < 0 || n_threads > 1024)
        return mox_fail(err, MOX_E_ARG, "threads: %d is not between 0 and 1024", n_threads);
    if (n_threads == 0) n_threads = mox_cpu_count();
    mox_pool *p = mox_alloc_array(1, sizeof *p);
    if (!p) return mox_fail_memory(err, sizeof *p, "the thread pool");
    p->threads = mox_alloc_array((size_t)n_threads, sizeof *p->threads);
    if (!p->threads) {
        mox_free(p);
        return mox_fail_memory(err, (size_t)n_threads * sizeof(pthread_t), "the thread pool");
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    while (p->n_workers < n_threads - 1 &&
           pthread_create(&p->threads[p->n_workers], NULL, worker, p) == 0)
        p->n_workers++;
    *out = p;
    return MOX_OK;
}

void mox_pool_destroy(mox_pool **pool)
{
    mox_pool *p = *pool;
    if (!p) return;
    atomic_store_explicit(&p->stop, true, memory_order_release);
    publish(p);
    for (int i = 0; i < p->n_workers; i++) pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    mox_free(p->threads);
    mox_free(p);
    *pool = NULL;
}

int mox_pool_size(const mox_pool *pool) { return pool ? pool->n_workers + 1 : 1; }

void mox_pool_run(mox_pool *pool, mox_pool_job *job, const void *args, int64_t n, int64_t grain)
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
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->n_inside, pool->n_workers, memory_order_relaxed);
    publish(pool);
    work(pool);
    for (int i = 0; atomic_load_explicit(&pool->n_inside, memory_order_acquire) != 0; i++) {
        if (i < SPIN_ROUNDS) relax();
        else sched_yield();
    }
}
