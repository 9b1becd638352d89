/* runtime/prefix.h -- what finished sequences leave behind, for sequences that begin alike.
 *
 * Pages and recurrent states stay where they are and are shared by reference; nothing is
 * copied but a last page that is filled in part, when someone goes on in it.  What is kept
 * gives way to running sequences, the least recently used first, whenever they need pages or
 * states, also inside a step.
 *
 * Threads: as the context: one at a time.  Owns: its tree.  Borrows: the context, which has at
 * most one; destroy it before the context. */
#ifndef MOX_RUNTIME_PREFIX_H
#define MOX_RUNTIME_PREFIX_H

#include "moxie.h"

typedef struct mox_prefix mox_prefix;

typedef struct mox_prefix_opts {
    int64_t max_bytes;       /* of pages and states; 0 = all that sequences leave */
    const char *state_dir;   /* where long prefixes are kept across restarts; NULL: nowhere */
    int64_t state_dir_bytes; /* at most this much there; 0 = 8 GiB */
    const char *model_key;   /* what tells this model and template from others in state_dir */
    mox_warn_fn *warn;       /* NULL: warnings are dropped; also from the thread that writes */
    void *warn_user;
} mox_prefix_opts;

/* opts may be NULL.  On failure *out is NULL. */
mox_status mox_prefix_create(mox_prefix **out, mox_context *c, const mox_prefix_opts *opts, mox_err *err);
void mox_prefix_destroy(mox_prefix **p);

/* The empty sequence s then holds the longest known beginning of tokens[0, n), n > 0, that it
 * can go on from, short of the last token.  Returns its length; why, one sentence, says why it
 * is not more. */
int64_t mox_prefix_adopt(mox_prefix *p, mox_seq *s, const int32_t *tokens, int64_t n, char *why, size_t why_size);

/* Others may begin as s does, up to its last full page, while it goes on. */
void mox_prefix_share(mox_prefix *p, const mox_seq *s);
/* What s holds stays for others; s is reset. */
void mox_prefix_keep(mox_prefix *p, mox_seq *s);

/* After each change, which calls it, and then from time to time while it is true: there is more to write to disk. */
bool mox_prefix_tend(mox_prefix *p);

typedef struct mox_prefix_stats { /* since the beginning, but for what is marked "now" */
    int64_t bytes, bytes_max; /* now; the most there may be */
    int64_t n_prefixes;       /* now: beginnings that are not part of longer ones */
    int64_t n_hits, n_misses; /* adoptions that found something, or nothing */
    int64_t n_reused;         /* tokens */
    int64_t n_given_up;       /* pages */
} mox_prefix_stats;
void mox_prefix_get_stats(const mox_prefix *p, mox_prefix_stats *out);

#endif
