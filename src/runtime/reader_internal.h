/* runtime/reader_internal.h -- what the engines of the reader share: queues of jobs, pieces of
 * ranges, and what the result of a read means for them.
 *
 * An engine takes pieces and reads them until advance says that they are finished.  Fields
 * below `lock` are guarded by it; a piece that was taken belongs to whoever took it.
 *
 * I1  a job is in the list of its kind (urgent, ahead, parked) as long as a piece of it is left to
 *     begin, and its state is QUEUED exactly then.
 * I2  n_idle is at least the number of threads of the engine that sleep and have not been
 *     signalled: a sleeper counts itself, and whoever wakes it takes it off.
 * I3  called: a thread was woken, and none has looked for pieces since.  Waking costs as much
 *     as a small read, so submit wakes one thread, and that one the others. */
#ifndef MOX_RUNTIME_READER_INTERNAL_H
#define MOX_RUNTIME_READER_INTERNAL_H

#include "runtime/reader.h"

#include <pthread.h>

/* Part of a range that is read in one go, or in more when the system gives it in parts. */
typedef struct mox_read_piece {
    mox_read_job *job;
    const mox_file *file;
    bool direct;
    int64_t from, end;  /* bytes that are missing */
    int64_t stop;       /* where reads end: at `end`, or behind it on a page when direct */
    uint8_t *dst;       /* of `from` */
    int n_failed;       /* reads that brought nothing */
    int failure;        /* the last one's errno, or one of those below */
    int64_t n_reads, n_bytes; /* of statistics */
} mox_read_piece;

enum { MOX_READ_CUT_SHORT = -1, MOX_READ_TOO_LITTLE = -2 }; /* values of failure */

typedef struct mox_read_list {
    mox_read_job *head, *tail;
} mox_read_list;

/* start fills the state; wake rouses a thread and is called without the lock; stop returns
 * when nothing is under way, and gives the state back. */
typedef struct mox_read_engine {
    mox_status (*start)(mox_reader *r, mox_err *err);
    void (*wake)(mox_reader *r);
    void (*stop)(mox_reader *r);
} mox_read_engine;

struct mox_reader {
    const mox_file *files;
    mox_file *direct; /* [n_files]; closed ones are read through the page cache */
    int32_t n_files, n_buffered;
    int n_threads, depth;
    int64_t piece_bytes; /* a multiple of MOX_READ_ALIGN */
    const mox_read_engine *engine;
    void *state; /* the engine's */

    pthread_mutex_t lock;
    pthread_cond_t done_cond;
    mox_read_list urgent, ahead, parked, done;
    int64_t n_outstanding; /* jobs that wait has not returned */
    int n_idle;            /* I2 */
    bool called;           /* I3 */
    int n_under_way;       /* pieces */
    double busy_since;
    bool stop;
    mox_reader_stats stats;
};

/* The next piece to begin; false when there is none.  With the lock. */
bool mox_reader_take(mox_reader *r, mox_read_piece *out);
/* Whether a thread is to be woken for what is in the queues; the caller does so after it
 * gave the lock back. */
bool mox_reader_call(mox_reader *r);
/* A piece is read, or has failed for good.  With the lock. */
void mox_reader_finish(mox_reader *r, const mox_read_piece *p);
/* What a read that brought n bytes (or -errno) means: true when the piece is finished, with
 * failure 0 or not; false when what is missing now has to be read. */
bool mox_read_piece_advance(mox_read_piece *p, int64_t n);

#ifdef MOX_HAVE_URING
extern const mox_read_engine mox_read_engine_uring; /* reader_uring.c */
#endif

#endif
