/* model/copy.h -- a copy of the weights in memory of our own, on huge pages, made in the
 * background.
 *
 * Where the page cache holds files in small pages, address translation costs a part of
 * the memory bandwidth.  The copy does not, but it cannot be there for the first token
 * of a large model, so a thread of the lowest priority makes it while steps run from the
 * mapping.  Both places have the same bytes and both stay valid, so it does not matter
 * which of them an operation is given.
 *
 * Owns:    the memory and the thread.   Borrows: the files, which must outlive it.
 * I1       bytes below `done` of a file are complete and never written again. */
#ifndef MOX_MODEL_COPY_H
#define MOX_MODEL_COPY_H

#include "base/file.h"

typedef struct mox_copy mox_copy;

/* MOX_E_FULL when there is no room for it.  Files that are memory already are left out. */
mox_status mox_copy_start(mox_copy **out, const mox_file *files, int32_t n_files, mox_err *err);
void mox_copy_stop(mox_copy **copy); /* NULL-safe; waits for the thread */

/* Where bytes [offset, offset + bytes) of a file are in the copy, or NULL when they are
 * not (yet) in it. */
const uint8_t *mox_copy_at(const mox_copy *c, int32_t file, int64_t offset, int64_t bytes);
/* Bytes copied so far; *busy: there will be more. */
int64_t mox_copy_bytes(const mox_copy *c, bool *busy);

#endif
