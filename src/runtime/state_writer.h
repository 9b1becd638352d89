/* runtime/state_writer.h -- a thread that writes one prefix to disk while steps go on.
 *
 * Disks stall, fsync takes its time, and so may removing a large file: steps must not wait for them.
 * The thread only reads pages and states, which stay as they are because the one who gave the job holds
 * references; who wants to let go of them shuts the gate first, which waits for a copy in memory at most.
 * A folder that somebody else holds is waited for here, too: nobody else has the time.
 *
 * Owns: its thread.  Borrows: the job, from begin until ended has said so.
 * Threads: all functions belong to one thread, which is not the writer. */
#ifndef MOX_RUNTIME_STATE_WRITER_H
#define MOX_RUNTIME_STATE_WRITER_H

#include "runtime/state_file.h"

#include <pthread.h>

/* True when there is a folder to write to. */
typedef bool mox_state_take_fn(void *user);

typedef struct mox_state_writer {
    const mox_context *c;
    mox_state_shape shape;
    mox_state_take_fn *take;
    void *take_user;
    bool ready; /* it was true */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    const mox_state_job *job; /* NULL: nothing to do */
    bool written, quit;
    mox_state_gate gate;
    mox_status status;        /* of what was written */
    mox_err err;
} mox_state_writer;

/* The thread tries to take the folder again and again until that is true; take NULL: it is ready from the beginning. */
mox_status mox_state_writer_start(mox_state_writer *w, const mox_context *c, mox_state_shape shape,
                                  mox_state_take_fn *take, void *take_user, mox_err *err);
void mox_state_writer_stop(mox_state_writer *w); /* cancels */

/* What take did is done, and the thread looks at nothing of it any more. */
bool mox_state_writer_ready(mox_state_writer *w);
/* Only when it is ready and there is no job. */
void mox_state_writer_begin(mox_state_writer *w, const mox_state_job *job);
/* Waits for at most so many seconds (negative: as long as it takes) until the job has ended;
 * if it has, there is none any more, and *status says what became of it. */
bool mox_state_writer_ended(mox_state_writer *w, double seconds, mox_status *status, mox_err *err);
/* From here on the job's pages and states are not looked at; the job itself ends when the disk lets it. */
void mox_state_writer_shut(mox_state_writer *w);

#endif
