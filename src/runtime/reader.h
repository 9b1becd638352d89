/* runtime/reader.h -- byte ranges of files into memory, many at once, in the background.
 *
 * Whoever misses bytes fills in a job, submits it and goes on computing; jobs come back
 * from mox_reader_wait in the order in which they are done.  Ranges are read around the
 * page cache (O_DIRECT) straight to where they belong, because a model that does not fit
 * in memory does not fit in the page cache either; where a file system refuses that, they
 * are read through it, and a warning says so once.
 *
 * Two engines read: threads that each have one read under way, and, where the build has
 * liburing and the kernel allows it, one thread that keeps many under way (io_uring).
 * Which is faster depends on the disk: mox_disk_probe (moxie/tools.h) finds out.
 *
 * Owns:    threads, second descriptors.  Borrows: the files, and every job with its ranges
 *          and memory from submit until wait returns it, withdraw or close take it back.
 * Threads: every function but open and close may be called from any thread.
 * Memory:  everything is allocated by open.
 * Order:   urgent jobs begin in the order in which they were submitted or hurried; jobs
 *          ahead begin when no part of an urgent one is left to begin. */
#ifndef MOX_RUNTIME_READER_H
#define MOX_RUNTIME_READER_H

#include "base/file.h"

enum { MOX_READ_ALIGN = 4096 };

/* dst = offset (mod MOX_READ_ALIGN).  Bytes of the caller's buffer up to the next multiple
 * of MOX_READ_ALIGN on both sides of the range may be overwritten. */
typedef struct mox_read_range {
    int32_t file;
    int64_t offset, bytes;
    uint8_t *dst;
} mox_read_range;

typedef struct mox_read_job {
    const mox_read_range *ranges;
    int32_t n_ranges;
    bool ahead; /* not urgent: only when no urgent read waits */
    void *user;
    /* set when done */
    mox_status status;
    mox_err err;
    double done_s; /* mox_clock_now */
    /* private to the reader from here on */
    struct mox_read_job *next;
    int32_t n_begun, n_done; /* pieces */
    int32_t i_range;         /* the next piece begins in this range, */
    int32_t i_piece;         /* and is this one of it */
    bool parked;
    int state;
} mox_read_job;

typedef struct mox_reader_opts {
    int n_threads;       /* reads under way at once by threads; 0 = 8, at most 256 */
    int depth;           /* the same by io_uring; 0 = 32, at most 1024 */
    bool buffered;       /* through the page cache from the start, without a warning */
    bool uring;          /* io_uring where there is one, else threads with a warning */
    mox_warn_fn *warn;   /* NULL: warnings are dropped; called by mox_reader_open only */
    void *warn_user;
    int64_t piece_bytes; /* longer ranges are cut into equal pieces no longer than this; 0 = 1 MiB */
} mox_reader_opts;

typedef struct mox_reader mox_reader;

/* The files must outlive the reader.  opts may be NULL.  On failure *out is NULL. */
mox_status mox_reader_open(mox_reader **out, const mox_file *files, int32_t n_files, const mox_reader_opts *opts,
                           mox_err *err);
/* Waits for reads that have begun; what has not begun ends as MOX_E_CANCELLED.  NULL-safe. */
void mox_reader_close(mox_reader **r);

/* Never blocks, never allocates.  A job that cannot be right (no such file, outside of it,
 * memory that is not aligned) is done at once, as MOX_E_ARG. */
void mox_reader_submit(mox_reader *r, mox_read_job *job);
/* A job ahead becomes urgent, behind the urgent ones; others stay where they are. */
void mox_reader_hurry(mox_reader *r, mox_read_job *job);
/* Jobs ahead that have not begun do not, until they are hurried or unparked; those that come later are not concerned. */
void mox_reader_park(mox_reader *r);
void mox_reader_unpark(mox_reader *r, mox_read_job *job); /* others stay where they are */
/* True: it had not begun, will not, and belongs to the caller again. */
bool mox_reader_withdraw(mox_reader *r, mox_read_job *job);
/* A job that is done; NULL: none within the time, or none outstanding. */
mox_read_job *mox_reader_wait(mox_reader *r, double timeout_s);

typedef struct mox_reader_stats {
    int64_t bytes;  /* of ranges and what was read around them */
    int64_t reads;  /* calls or requests to the system */
    double busy_s;  /* with at least one read under way */
    bool uring;     /* the engine at work */
    int32_t n_buffered; /* files that are read through the page cache */
} mox_reader_stats;
void mox_reader_get_stats(mox_reader *r, mox_reader_stats *out);

#endif
