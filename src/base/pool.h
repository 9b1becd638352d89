/* base/pool.h -- a pool of threads that share out ranges of independent items.
 *
 * Owns:    its threads.  The caller works too, so a pool of n has n - 1 threads.
 * Items are claimed in blocks of `grain`; which thread takes a block is not
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

#endif
