/* runtime/prefix.c -- keeping and adopting beginnings; see prefix.h.
 *
 * The tree (runtime/prefix_tree.h) knows what is there; here is decided what goes in, what a
 * sequence gets, and what gives way. */
#include "runtime/prefix.h"

#include "base/alloc.h"
#include "base/size.h"
#include "runtime/prefix_tree.h"
#include "runtime/state_dir.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

struct mox_prefix {
    mox_context *c;
    mox_tree tree;
    mox_state_dir *dir; /* NULL: there is none */
    int64_t max_bytes; /* INT64_MAX: no limit */
    int64_t n_hits, n_misses, n_reused;
};

static bool give_up(void *user, mox_share_kind kind)
{
    mox_prefix *p = user;
    return mox_tree_give_up(&p->tree, kind) || (p->dir && mox_state_dir_let_go(p->dir));
}

static void forget(void *user, int32_t page)
{
    mox_prefix *p = user;
    mox_tree_forget(&p->tree, page);
}

mox_status mox_prefix_create(mox_prefix **out, mox_context *c, const mox_prefix_opts *opts, mox_err *err)
{
    *out = NULL;
    const int64_t max = opts ? opts->max_bytes : 0;
    if (max < 0) return mox_fail(err, MOX_E_ARG, "prefixes: %lld bytes cannot be kept", (long long)max);
    if (c->reclaim) return mox_fail(err, MOX_E_ARG, "prefixes: the context has some already");
    mox_prefix *p = mox_alloc_array(1, sizeof *p);
    if (!p) return mox_fail_memory(err, sizeof *p, "kept prefixes");
    p->c = c;
    p->max_bytes = max > 0 ? max : INT64_MAX;
    mox_status status = mox_tree_init(&p->tree, c, err);
    if (status == MOX_OK && opts && opts->state_dir) status = mox_state_dir_open(&p->dir, c, opts, err);
    if (status != MOX_OK) {
        mox_tree_deinit(&p->tree);
        mox_free(p);
        return status;
    }
    c->reclaim = give_up;
    c->forget = forget;
    c->reclaim_user = p;
    *out = p;
    return MOX_OK;
}

void mox_prefix_destroy(mox_prefix **prefix)
{
    mox_prefix *p = *prefix;
    if (!p) return;
    mox_state_dir_close(&p->dir, &p->tree);
    p->c->reclaim = NULL;
    p->c->forget = NULL;
    mox_tree_deinit(&p->tree);
    mox_free(p);
    *prefix = NULL;
}

bool mox_prefix_tend(mox_prefix *p)
{
    /* First: what is too much for the memory may be on disk. */
    const bool more = p->dir && mox_state_dir_tend(p->dir, &p->tree);
    while (mox_tree_bytes(&p->tree) > p->max_bytes && mox_tree_shrink(&p->tree)) {}
    return more;
}

/* ---- adopting ---- */

static void say_why(const mox_tree_match *m, int64_t n, char *why, size_t size)
{
    const long long same = m->same, at = m->at, page = m->same / MOX_PAGE_LEN * MOX_PAGE_LEN;
    if (m->at == n - 1) (void)snprintf(why, size, "all of it was known");
    else if (m->at < m->same && m->at == 0)
        (void)snprintf(why, size, "it is known up to token %lld, but no recurrent state was saved before", same);
    else if (m->at < m->same)
        (void)snprintf(why, size, "it is known up to token %lld, but the recurrent state was last saved at %lld", same, at);
    else if (m->lost) (void)snprintf(why, size, "what followed token %lld was given up for memory", page);
    else if (m->same == 0) (void)snprintf(why, size, "no such beginning is known");
    else if (m->parted) (void)snprintf(why, size, "what is known differs at token %lld", same);
    else (void)snprintf(why, size, "what is known ends at token %lld", same);
}

int64_t mox_prefix_adopt(mox_prefix *p, mox_seq *s, const int32_t *tokens, int64_t n, char *why, size_t why_size)
{
    assert(!p->c->stepping && n > 0);
    const int64_t limit = mox_min_i64(n - 1, p->c->n_ctx); /* the last token's logits are wanted, and nobody has kept them */
    mox_tree_match m;
    p->tree.clock++;
    mox_tree_find(&p->tree, tokens, n, limit, &m);
    if (p->dir && m.at < limit) {
        (void)mox_state_dir_load(p->dir, &p->tree, tokens, n, limit, &m);
        mox_tree_find(&p->tree, tokens, n, limit, &m); /* also after a failure: pages may have been given up for it */
    }
    mox_tree_lend(&p->tree, &m, tokens, s);
    p->n_hits += m.at > 0;
    p->n_misses += m.at == 0;
    p->n_reused += m.at;
    say_why(&m, n, why, why_size);
    (void)mox_prefix_tend(p);
    return m.at;
}

/* ---- keeping ---- */

/* The states of s that lie in the page which begins at `begin`. */
static void keep_states(mox_prefix *p, const mox_seq *s, int32_t node, int64_t begin)
{
    for (int64_t i = 0; i < s->n_saved; i++) {
        const mox_checkpoint *k = &s->checkpoints[i];
        if (k->at > begin && k->at <= begin + MOX_PAGE_LEN) mox_tree_add_state(&p->tree, node, k->at, k->state);
    }
}

/* The first `length` tokens of s become a path of the tree; last: the state at its end, or MOX_NONE. */
static void keep_path(mox_prefix *p, const mox_seq *s, int64_t length, int32_t last)
{
    int32_t node = MOX_NONE;
    for (int64_t begin = 0; begin < length; begin += MOX_PAGE_LEN) {
        const int64_t n = mox_min_i64(length - begin, MOX_PAGE_LEN);
        const int32_t next = mox_tree_add(&p->tree, node, s->pages[begin / MOX_PAGE_LEN], s->tokens + begin, n);
        if (next == MOX_NONE) break;
        node = next;
        keep_states(p, s, node, begin);
        if (last != MOX_NONE && begin + n == length) mox_tree_add_state(&p->tree, node, length, last);
    }
    mox_tree_touch(&p->tree, node);
}

void mox_prefix_share(mox_prefix *p, const mox_seq *s)
{
    assert(!p->c->stepping);
    p->tree.clock++;
    /* A page that s still fills would have to be copied, and there may be none to spare. */
    keep_path(p, s, s->length / MOX_PAGE_LEN * MOX_PAGE_LEN, MOX_NONE);
}

void mox_prefix_keep(mox_prefix *p, mox_seq *s)
{
    mox_context *c = p->c;
    assert(!c->stepping);
    p->tree.clock++;
    int32_t last = MOX_NONE; /* the next turn of a conversation goes on here */
    if (s->length > 0 && mox_state_bytes(c) > 0) last = mox_share_take(c, MOX_SHARE_STATES);
    if (last != MOX_NONE) mox_state_copy(c, mox_state_saved(c, last), s->state);
    else mox_seq_checkpoint(s); /* in place of another */
    keep_path(p, s, s->length, last);
    if (last != MOX_NONE) mox_share_drop(c, MOX_SHARE_STATES, last);
    mox_seq_reset(s);
    (void)mox_prefix_tend(p);
}

void mox_prefix_get_stats(const mox_prefix *p, mox_prefix_stats *out)
{
    const mox_context *c = p->c;
    const int64_t all = c->shares[MOX_SHARE_PAGES].n * mox_page_bytes(c) +
                        c->shares[MOX_SHARE_STATES].n * (int64_t)mox_state_bytes(c);
    *out = (mox_prefix_stats){.bytes = mox_tree_bytes(&p->tree), .bytes_max = mox_min_i64(p->max_bytes, all),
                              .n_prefixes = p->tree.n_leaves, .n_hits = p->n_hits, .n_misses = p->n_misses,
                              .n_reused = p->n_reused, .n_given_up = p->tree.n_given_up};
}
