/* runtime/prefix_tree.h -- beginnings of token timelines, as a radix tree of pages.
 *
 * A node is an attention page with the tokens that it holds, and its number is the page's; its
 * path from the root is all that its contents depend on.  Only full pages have children, and
 * children of one node may begin alike: a page is copied before it is written to, so timelines
 * that part inside a page have a page each.  Recurrent states hang at the node whose page has
 * the token before them.  The tree holds one reference to each of its pages and states.
 *
 * Owns:    tables as large as the context's pages and states.  Nothing is allocated later.
 * Borrows: the context.
 *
 * I1  no node's tokens are the beginning of a sibling's.
 * I2  in the order of use a node is never newer than its parent, so the oldest is a leaf.
 * I3  sequences that hold a node's page hold its ancestors' pages, or have their own with the same
 *     tokens.  So a node that only the tree holds may have others below it that sequences hold. */
#ifndef MOX_RUNTIME_PREFIX_TREE_H
#define MOX_RUNTIME_PREFIX_TREE_H

#include "runtime/context.h"

enum { MOX_TREE_LOST = 256 };

typedef struct mox_tree_node mox_tree_node;
typedef struct mox_tree_state mox_tree_state;
typedef struct mox_tree_link { /* neighbours in the order of use; the list's own is the last of its array */
    int32_t newer, older;
    int64_t used;
} mox_tree_link;

typedef struct mox_tree {
    mox_context *c;
    mox_tree_node *nodes;   /* [pages] */
    mox_tree_state *states; /* [states] */
    mox_tree_link *order[MOX_N_SHARES]; /* [pages + 1], [states + 1] */
    int32_t first;          /* child of the root */
    int64_t n_nodes, n_states, n_leaves;
    int64_t n_given_up;     /* pages, so far */
    bool grown;             /* since there was nothing unmarked */
    int64_t clock;          /* the owner's: things that are used now get its value */
    uint64_t lost[MOX_TREE_LOST]; /* paths of full pages that were given up lately */
    int64_t n_lost;
} mox_tree;

mox_status mox_tree_init(mox_tree *t, mox_context *c, mox_err *err);
void mox_tree_deinit(mox_tree *t); /* gives everything up; zeroed storage is fine */
/* Memory of the tables. */
int64_t mox_tree_table_bytes(const mox_context *c);
/* Of the pages and states that the tree holds. */
int64_t mox_tree_bytes(const mox_tree *t);

/* How far tokens are known, and where a sequence can go on: at most `limit` tokens. */
typedef struct mox_tree_match {
    int64_t same;       /* tokens that some path begins with, too */
    int32_t full;       /* the node of the last full page of them, or MOX_NONE */
    bool parted;        /* that path goes on in another way; otherwise it ends */
    bool lost;          /* a path that went on the same way was given up */
    int64_t at;         /* a sequence can go on here */
    int32_t node, state; /* whose page has the token before `at`; recurrent models: the state there */
} mox_tree_match;
void mox_tree_find(const mox_tree *t, const int32_t *tokens, int64_t n, int64_t limit, mox_tree_match *out);

/* The empty sequence s holds what the match found. */
void mox_tree_lend(mox_tree *t, const mox_tree_match *m, const int32_t *tokens, mox_seq *s);

/* A page of n tokens behind the node `parent` (MOX_NONE: at the beginning), unless one is known that
 * holds them; returns the node that has them.  MOX_NONE: the page is part of another path. */
int32_t mox_tree_add(mox_tree *t, int32_t parent, int32_t page, const int32_t *tokens, int64_t n);
/* A state behind the first `at` tokens of the path that ends with the node. */
void mox_tree_add_state(mox_tree *t, int32_t node, int64_t at, int32_t state);
/* The path becomes the newest; MOX_NONE is none. */
void mox_tree_touch(mox_tree *t, int32_t node);

/* Gives up the oldest thing of the kind that nobody else holds, or of pages one below that, which others may
 * hold, so that its turn comes; false: there is none. */
bool mox_tree_give_up(mox_tree *t, mox_share_kind kind);
/* Gives up a page and all below it, whoever holds them; nothing where it is no node. */
void mox_tree_forget(mox_tree *t, int32_t page);
/* Gives up the oldest thing, whoever holds it; false: the tree is empty. */
bool mox_tree_shrink(mox_tree *t);

/* What a path is known by: of the tokens of a page and the path before it. */
uint64_t mox_tree_path(uint64_t before, const int32_t *tokens, int64_t n);

/* ---- for those that write paths to files ---- */

int32_t mox_tree_parent(const mox_tree *t, int32_t node);
int64_t mox_tree_end(const mox_tree *t, int32_t node); /* tokens of the path */
const int32_t *mox_tree_tokens(const mox_tree *t, int32_t node, int64_t *n);
/* States of the node, the last first: *state MOX_NONE begins, and ends. */
bool mox_tree_next_state(const mox_tree *t, int32_t node, int32_t *state, int64_t *at);
/* The newest leaf that has not been marked since it was added, of at least min tokens; MOX_NONE: none. */
int32_t mox_tree_unmarked(mox_tree *t, int64_t min);
void mox_tree_mark(mox_tree *t, int32_t node);
bool mox_tree_marked(const mox_tree *t, int32_t node);
/* Of the path with these tokens what is still there, from a page on. */
void mox_tree_unmark(mox_tree *t, const int32_t *tokens, int64_t n, int64_t first);

#endif
