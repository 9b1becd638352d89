/* base/pool.h -- a pool of threads that share out ranges of independent items.
 *
 * Owns:    its threads.  The caller works too, so a pool of n has n - 1 threads.
 * Items are claimed in blocks of `grain`, or of multiples of it; which thread takes a block is not
 * determined, so a job must give the same bytes whoever runs it.  Nothing is
 * allocated per run, and no lock is taken while all threads are awake. */
#ifndef MOX_BASE_POOL_H
#define MOX_BASE_POOL_H

#include "base/err.h"

#include <stdint.h>

typedef struct mox_pool mox_pool;
typedef void mox_pool_job(const void *args, int64_t begin, int64_t end);

typedef struct mox_pool_opts {
    int n_threads; /* 0 = as many as pay: mox_machine_threads */
    bool pin;      /* each thread of the pool stays on one processor: one per core as long as
                    * they last, the first core left to the caller, who is not pinned */
} mox_pool_opts;

/* Fewer threads than asked for are accepted when the system refuses more, and so is
 * a thread that cannot be pinned. */
mox_status mox_pool_create(mox_pool **out, const mox_pool_opts *opts, mox_err *err);
void mox_pool_destroy(mox_pool **pool);
int mox_pool_size(const mox_pool *pool);

/* Runs job over [0, n) and returns when all of it is done.  pool may be NULL:
 * then the caller does everything.  One run at a time per pool. */
void mox_pool_run(mox_pool *pool, mox_pool_job *job, const void *args, int64_t n, int64_t grain);

/* The same for items that take about as long as each other: blocks are long at first and short in the end. */
void mox_pool_run_even(mox_pool *pool, mox_pool_job *job, const void *args, int64_t n, int64_t grain);

/* Items of the first block of such a run, which the caller takes if it is not late. */
int64_t mox_pool_first(const mox_pool *pool, int64_t n, int64_t grain);

/* Memory that a later run reads: in each of n_steps steps, step[i] bytes that follow those at[i] of the step before.
 * Threads that wait for that run bring it into their caches meanwhile.  Nothing but speed depends on it, so any
 * address is allowed.  It replaces what was expected before. */
enum { MOX_POOL_STREAMS = 3 };
typedef struct mox_pool_ahead {
    const void *at[MOX_POOL_STREAMS];
    int64_t step[MOX_POOL_STREAMS]; /* 0: no such stream */
    int64_t n_steps;
} mox_pool_ahead;
void mox_pool_expect(mox_pool *pool, const mox_pool_ahead *ahead);

#endif
