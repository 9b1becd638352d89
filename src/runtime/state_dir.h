/* runtime/state_dir.h -- a folder of prefixes that outlive the process.
 *
 * One file for each long path of the tree (runtime/state_file.h), written in the background when
 * the path is new; a longer path replaces the files of its beginnings.  The folder has a limit
 * in bytes, and the files that were used longest ago give way.  Those that are damaged, of another
 * model or another version are not read, with a warning, but count and give way like others.  Links
 * and what is another user's are left alone, with a warning.
 *
 * One process has the folder at a time: it holds the file "lock" there.  Who finds it held keeps nothing on disk, and
 * uses nothing of the folder, until that process lets go; then it takes the folder over as it is found.
 *
 * Threads: as the context; a thread of its own writes.  Owns: its index, the lock, references to
 * what is being written.  Borrows: the context. */
#ifndef MOX_RUNTIME_STATE_DIR_H
#define MOX_RUNTIME_STATE_DIR_H

#include "runtime/prefix.h"
#include "runtime/prefix_tree.h"

enum { MOX_STATE_MIN_TOKENS = 256 };

typedef struct mox_state_dir mox_state_dir;

/* *out is NULL, with a warning, when the folder cannot be used: what is kept there saves time, and a server without it
 * is better than none.  That another process has it is a warning, and so is, of the writer's thread, its end. */
mox_status mox_state_dir_open(mox_state_dir **out, mox_context *c, const mox_prefix_opts *opts, mox_err *err);
/* Writes what is not written yet, for some seconds at most. */
void mox_state_dir_close(mox_state_dir **d, mox_tree *t);

/* Looks for a file that brings tokens[0, n) further than the match, up to limit tokens, and adds
 * it to the tree; false when there is none. */
bool mox_state_dir_load(mox_state_dir *d, mox_tree *t, const int32_t *tokens, int64_t n, int64_t limit,
                        const mox_tree_match *m);
/* Begins to write the newest path that is not on disk, unless one is being written; false: there is none, and will be
 * none unless the tree grows. */
bool mox_state_dir_tend(mox_state_dir *d, mox_tree *t);
/* Gives up the references to what is being written, without waiting for the disk; false when there are
 * none.  What was not yet looked at is written another time.  Allocates nothing: a step may want it. */
bool mox_state_dir_let_go(mox_state_dir *d);

#endif
