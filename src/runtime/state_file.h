/* runtime/state_file.h -- a prefix on disk: tokens, their attention pages, recurrent states.
 *
 * A file is of one model, template and kind of cache, which its header names, and holds a whole
 * path from the first token on.  Numbers are 64 bits in the order of the machine's bytes:
 *
 *   header          what follows, and checksums of itself and of what precedes the pages
 *   key             names model and template; padded with zeros to 8 bytes, like the tokens
 *   tokens          [n_tokens] of 32 bits
 *   positions       [n_states]: tokens before each state, ascending
 *   pages, states   as they are in memory: a page is its parts, one after the other
 *   checksums       of each page and each state
 *
 * Checksums are XXH3 of 64 bits: they find damage, not malice.  Files are only ever read by
 * those who wrote them; other owners' are refused.
 *
 * I1  an opened file has the size that its header says, and everything that is read later lies
 *     inside of it.
 * I2  nothing is allocated whose size was not found to be part of the file. */
#ifndef MOX_RUNTIME_STATE_FILE_H
#define MOX_RUNTIME_STATE_FILE_H

#include "base/file.h"
#include "runtime/context.h"

#include <pthread.h>

/* What the files of a context have in common. */
typedef struct mox_state_shape {
    const char *key;
    uint64_t n_layers, page_len, page_bytes, state_bytes, kv_type, precision;
} mox_state_shape;
mox_state_shape mox_state_shape_of(const mox_context *c, const char *key);

typedef struct mox_state_file {
    mox_file file;
    int64_t n_tokens, n_pages, n_states;
    int32_t *tokens;    /* [n_tokens] */
    int64_t *positions; /* [n_states], ascending, of 1 to n_tokens */
    int64_t pages_at, states_at, sums_at;
    void *window; /* on the way to devices with memory of their own; the first read makes it */
} mox_state_file;

/* MOX_E_UNSUPPORTED: whole, but of another version, model, template or kind of cache. */
mox_status mox_state_file_open(mox_state_file *f, const char *path, const mox_state_shape *shape,
                               mox_err *err);
/* The same for an opened file, which becomes f's. */
mox_status mox_state_file_parse(mox_state_file *f, mox_file file, const mox_state_shape *shape, mox_err *err);
void mox_state_file_close(mox_state_file *f); /* closed storage is fine */

/* Reads a page or a state to its place and compares its checksum. */
mox_status mox_state_file_read_page(mox_state_file *f, int64_t i, mox_context *c, int32_t page, mox_err *err);
mox_status mox_state_file_read_state(mox_state_file *f, int64_t i, mox_context *c, int32_t state, mox_err *err);

/* Pages and states may be looked at under its lock, until it is shut: they are somebody else's then. */
typedef struct mox_state_gate {
    pthread_mutex_t lock;
    bool shut;
} mox_state_gate;

/* What is to be written.  Nobody writes to the pages and states as long as the gate is open.  Who has it written
 * (state_writer.h) may have files removed with it: those that give way before, those that it replaces behind it. */
typedef struct mox_state_job {
    char *path;
    int64_t n_tokens, n_pages, n_states;
    int32_t *tokens, *pages, *states;
    int64_t *positions; /* ascending */
    int64_t first_new;  /* page: those before are in a file already */
    const char **old;   /* [n_first + n_after] paths, borrowed */
    size_t n_first, n_after;
} mox_state_job;
mox_status mox_state_job_init(mox_state_job *job, int64_t n_tokens, int64_t n_states,
                              mox_err *err);   /* zeroed arrays; no path, nothing old */
void mox_state_job_deinit(mox_state_job *job); /* zeroed storage is fine */

/* Bytes of the file, or -1: more than can be counted. */
int64_t mox_state_job_bytes(const mox_state_job *job, const mox_state_shape *shape);
/* Holds the gate's lock for a copy of some kilobytes at a time, never while the disk works.  On failure
 * there is no file; MOX_E_CANCELLED: the gate was shut before all had been looked at. */
mox_status mox_state_job_write(const mox_state_job *job, const mox_context *c, const mox_state_shape *shape,
                               mox_state_gate *gate, mox_err *err);

#endif
