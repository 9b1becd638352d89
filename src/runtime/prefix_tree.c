/* runtime/prefix_tree.c -- the tree of kept pages; see prefix_tree.h.
 *
 * Tables are indexed by page and by state, so what is in the tree is found, added and removed
 * without allocating.  Children are few, and lists; looking something up compares tokens. */
#include "runtime/prefix_tree.h"

#include "base/alloc.h"
#include "base/size.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

struct mox_tree_node {
    int32_t parent, child, next; /* nodes, or MOX_NONE */
    int32_t state;               /* the last of its states */
    int32_t n;                   /* tokens; 0: not in the tree */
    bool marked;
    int64_t begin;               /* tokens before it */
    uint64_t path;
    int32_t tokens[MOX_PAGE_LEN];
};

struct mox_tree_state {
    int32_t node; /* MOX_NONE: not in the tree */
    int32_t next; /* an earlier one of the same node */
    int64_t at;
};

/* ---- order of use ---- */

static void unlink_item(mox_tree_link *list, int32_t i)
{
    list[list[i].newer].older = list[i].older;
    list[list[i].older].newer = list[i].newer;
}

static void link_behind(mox_tree_link *list, int32_t newer, int32_t i)
{
    list[i].newer = newer;
    list[i].older = list[newer].older;
    list[list[i].older].newer = i;
    list[newer].older = i;
}

/* The list's own link: behind it is the newest, before it the oldest. */
static int32_t head_of(const mox_tree *t, mox_share_kind kind) { return (int32_t)t->c->shares[kind].n; }

static void use(mox_tree *t, mox_share_kind kind, int32_t i)
{
    unlink_item(t->order[kind], i);
    link_behind(t->order[kind], head_of(t, kind), i);
    t->order[kind][i].used = t->clock;
}

void mox_tree_touch(mox_tree *t, int32_t node)
{
    for (; node != MOX_NONE; node = t->nodes[node].parent) use(t, MOX_SHARE_PAGES, node); /* I2 */
}

/* ---- life ---- */

int64_t mox_tree_table_bytes(const mox_context *c)
{
    const int64_t pages = c->shares[MOX_SHARE_PAGES].n, states = c->shares[MOX_SHARE_STATES].n;
    return pages * (int64_t)sizeof(mox_tree_node) + states * (int64_t)sizeof(mox_tree_state) +
           (pages + states + 2) * (int64_t)sizeof(mox_tree_link);
}

mox_status mox_tree_init(mox_tree *t, mox_context *c, mox_err *err)
{
    const int64_t pages = c->shares[MOX_SHARE_PAGES].n, states = c->shares[MOX_SHARE_STATES].n;
    *t = (mox_tree){.c = c, .first = MOX_NONE};
    t->nodes = mox_alloc_array((size_t)pages, sizeof *t->nodes);
    t->states = mox_alloc_array((size_t)states, sizeof *t->states);
    for (int i = 0; i < MOX_N_SHARES; i++)
        t->order[i] = mox_alloc_array((size_t)c->shares[i].n + 1, sizeof *t->order[i]);
    if (!t->nodes || !t->states || !t->order[0] || !t->order[1]) {
        mox_tree_deinit(t);
        return mox_fail_memory(err, (size_t)mox_tree_table_bytes(c), "the tree of prefixes");
    }
    for (int64_t i = 0; i < states; i++) t->states[i].node = MOX_NONE;
    for (int i = 0; i < MOX_N_SHARES; i++) {
        const int32_t head = head_of(t, (mox_share_kind)i);
        t->order[i][head] = (mox_tree_link){.newer = head, .older = head};
    }
    return MOX_OK;
}

void mox_tree_deinit(mox_tree *t)
{
    if (t->nodes && t->states && t->order[0] && t->order[1])
        while (mox_tree_shrink(t)) {}
    mox_free(t->nodes);
    mox_free(t->states);
    for (int i = 0; i < MOX_N_SHARES; i++) mox_free(t->order[i]);
    *t = (mox_tree){0};
}

int64_t mox_tree_bytes(const mox_tree *t)
{
    return t->n_nodes * mox_page_bytes(t->c) + t->n_states * (int64_t)mox_state_bytes(t->c);
}

uint64_t mox_tree_path(uint64_t before, const int32_t *tokens, int64_t n)
{
    return XXH3_64bits_withSeed(tokens, (size_t)n * sizeof *tokens, before);
}

/* ---- removing ---- */

static void remove_state(mox_tree *t, int32_t state)
{
    int32_t *at = &t->nodes[t->states[state].node].state;
    while (*at != state) at = &t->states[*at].next;
    *at = t->states[state].next;
    t->states[state].node = MOX_NONE;
    unlink_item(t->order[MOX_SHARE_STATES], state);
    t->n_states--;
    mox_share_drop(t->c, MOX_SHARE_STATES, state);
}

static int32_t *children_of(mox_tree *t, int32_t parent) { return parent == MOX_NONE ? &t->first : &t->nodes[parent].child; }

static void remove_leaf(mox_tree *t, int32_t node)
{
    mox_tree_node *k = &t->nodes[node];
    assert(k->n > 0 && k->child == MOX_NONE);
    while (k->state != MOX_NONE) remove_state(t, k->state);
    int32_t *at = children_of(t, k->parent);
    while (*at != node) at = &t->nodes[*at].next;
    *at = k->next;
    if (k->parent == MOX_NONE || t->nodes[k->parent].child != MOX_NONE) t->n_leaves--; /* else its parent is one now */
    k->n = 0;
    unlink_item(t->order[MOX_SHARE_PAGES], node);
    t->n_nodes--;
    mox_share_drop(t->c, MOX_SHARE_PAGES, node);
}

static void give_up_leaf(mox_tree *t, int32_t node)
{
    if (t->nodes[node].n == MOX_PAGE_LEN) t->lost[t->n_lost++ % MOX_TREE_LOST] = t->nodes[node].path;
    t->n_given_up++;
    remove_leaf(t, node);
}

/* Some leaf at or below the node. */
static int32_t leaf_below(const mox_tree *t, int32_t node)
{
    while (t->nodes[node].child != MOX_NONE) node = t->nodes[node].child;
    return node;
}

bool mox_tree_give_up(mox_tree *t, mox_share_kind kind)
{
    const int32_t head = head_of(t, kind);
    int32_t i = t->order[kind][head].newer;
    while (i != head && t->c->shares[kind].refs[i] > 1) i = t->order[kind][i].newer;
    if (i == head) return false;
    /* What hangs below goes first, though a sequence may hold it: I3. */
    if (kind == MOX_SHARE_PAGES) give_up_leaf(t, leaf_below(t, i));
    else remove_state(t, i);
    return true;
}

void mox_tree_forget(mox_tree *t, int32_t page)
{
    while (t->nodes[page].n > 0) give_up_leaf(t, leaf_below(t, page));
}

bool mox_tree_shrink(mox_tree *t)
{
    const int32_t page = t->order[MOX_SHARE_PAGES][head_of(t, MOX_SHARE_PAGES)].newer;
    const int32_t state = t->order[MOX_SHARE_STATES][head_of(t, MOX_SHARE_STATES)].newer;
    if (t->n_nodes == 0) return false;
    if (t->n_states > 0 && t->order[MOX_SHARE_STATES][state].used < t->order[MOX_SHARE_PAGES][page].used) remove_state(t, state);
    else give_up_leaf(t, page);
    return true;
}

/* ---- finding ---- */

static int64_t common(const mox_tree_node *k, const int32_t *tokens, int64_t n)
{
    int64_t i = 0;
    while (i < k->n && i < n && k->tokens[i] == tokens[i]) i++;
    return i;
}

static bool was_lost(const mox_tree *t, uint64_t path)
{
    for (int64_t i = 0; i < mox_min_i64(t->n_lost, MOX_TREE_LOST); i++)
        if (t->lost[i] == path) return true;
    return false;
}

/* Can a sequence go on in this node, further along than was found before? */
static void consider(const mox_tree *t, int32_t node, int64_t end, mox_tree_match *m)
{
    if (t->c->model->recurrent_floats == 0) {
        if (end <= m->at) return;
        m->at = end;
        m->node = node;
        return;
    }
    for (int32_t i = t->nodes[node].state; i != MOX_NONE; i = t->states[i].next) {
        if (t->states[i].at > end) continue;
        if (t->states[i].at <= m->at) return; /* the last come first */
        m->at = t->states[i].at;
        m->node = node;
        m->state = i;
        return;
    }
}

void mox_tree_find(const mox_tree *t, const int32_t *tokens, int64_t n, int64_t limit, mox_tree_match *out)
{
    *out = (mox_tree_match){.full = MOX_NONE, .node = MOX_NONE, .state = MOX_NONE};
    int32_t child = t->first;
    for (int64_t at = 0; at < n; at += MOX_PAGE_LEN) {
        int32_t whole = MOX_NONE;
        int64_t longest = 0;
        out->parted = false;
        for (; child != MOX_NONE; child = t->nodes[child].next) {
            const int64_t same = common(&t->nodes[child], tokens + at, n - at);
            if (same >= longest) out->parted = same < t->nodes[child].n || (same == longest && out->parted);
            longest = mox_max_i64(longest, same);
            if (same > 0) consider(t, child, mox_min_i64(at + same, limit), out);
            if (same == MOX_PAGE_LEN) whole = child;
        }
        out->same = at + longest;
        if (whole == MOX_NONE) break;
        out->full = whole;
        child = t->nodes[whole].child;
    }
    const int64_t known = out->full == MOX_NONE ? 0 : mox_tree_end(t, out->full);
    const uint64_t before = out->full == MOX_NONE ? 0 : t->nodes[out->full].path;
    out->lost = n - known >= MOX_PAGE_LEN && was_lost(t, mox_tree_path(before, tokens + known, MOX_PAGE_LEN));
}

void mox_tree_lend(mox_tree *t, const mox_tree_match *m, const int32_t *tokens, mox_seq *s)
{
    mox_context *c = t->c;
    assert(s->length == 0 && s->n_pages == 0 && s->n_saved == 0);
    if (m->at == 0) return;
    mox_tree_touch(t, m->node);
    s->length = m->at;
    s->n_pages = mox_ceil_div(m->at, MOX_PAGE_LEN);
    memcpy(s->tokens, tokens, (size_t)m->at * sizeof *tokens);
    int32_t node = m->node;
    for (int64_t i = s->n_pages - 1; i >= 0; i--, node = t->nodes[node].parent) {
        mox_share_hold(c, MOX_SHARE_PAGES, node);
        s->pages[i] = node;
    }
    if (m->state == MOX_NONE) return;
    mox_state_copy(c, s->state, mox_state_saved(c, m->state));
    use(t, MOX_SHARE_STATES, m->state);
    /* Its checkpoints: the last ones of the path, which come in falling order. */
    mox_checkpoint found;
    for (node = m->node; node != MOX_NONE; node = t->nodes[node].parent)
        for (int32_t i = t->nodes[node].state; i != MOX_NONE && s->n_saved < c->n_checkpoints; i = t->states[i].next) {
            if (t->states[i].at > m->at) continue;
            mox_share_hold(c, MOX_SHARE_STATES, i);
            s->checkpoints[s->n_saved++] = (mox_checkpoint){.at = t->states[i].at, .state = i, .asked = i == m->state};
        }
    for (int64_t i = 0, j = s->n_saved - 1; i < j; i++, j--) {
        found = s->checkpoints[i];
        s->checkpoints[i] = s->checkpoints[j];
        s->checkpoints[j] = found;
    }
}

/* ---- adding ---- */

static void add_node(mox_tree *t, int32_t parent, int32_t page, const int32_t *tokens, int64_t n)
{
    mox_tree_node *k = &t->nodes[page];
    const uint64_t before = parent == MOX_NONE ? 0 : t->nodes[parent].path;
    int32_t *siblings = children_of(t, parent);
    if (parent == MOX_NONE || *siblings != MOX_NONE) t->n_leaves++; /* else it takes its parent's place */
    *k = (mox_tree_node){.parent = parent, .child = MOX_NONE, .next = *siblings, .state = MOX_NONE, .n = (int32_t)n,
                         .begin = parent == MOX_NONE ? 0 : mox_tree_end(t, parent), .path = mox_tree_path(before, tokens, n)};
    memcpy(k->tokens, tokens, (size_t)n * sizeof *tokens);
    *siblings = page;
    mox_share_hold(t->c, MOX_SHARE_PAGES, page);
    /* Just older than its parent: I2. */
    link_behind(t->order[MOX_SHARE_PAGES], parent == MOX_NONE ? head_of(t, MOX_SHARE_PAGES) : parent, page);
    t->order[MOX_SHARE_PAGES][page].used = parent == MOX_NONE ? t->clock : t->order[MOX_SHARE_PAGES][parent].used;
    t->n_nodes++;
    t->grown = true;
}

/* The states of a page that is the beginning of another go over to that. */
static void move_states(mox_tree *t, int32_t from, int32_t to)
{
    t->nodes[to].state = t->nodes[from].state;
    t->nodes[from].state = MOX_NONE;
    for (int32_t i = t->nodes[to].state; i != MOX_NONE; i = t->states[i].next) t->states[i].node = to;
}

int32_t mox_tree_add(mox_tree *t, int32_t parent, int32_t page, const int32_t *tokens, int64_t n)
{
    assert(n > 0 && n <= MOX_PAGE_LEN);
    int32_t shorter = MOX_NONE;
    for (int32_t i = *children_of(t, parent); i != MOX_NONE; i = t->nodes[i].next) {
        const int64_t same = common(&t->nodes[i], tokens, n);
        if (same == n) return i;
        if (same == t->nodes[i].n) shorter = i;
    }
    if (t->nodes[page].n > 0) return MOX_NONE;
    add_node(t, parent, page, tokens, n);
    if (shorter != MOX_NONE) { /* I1 */
        move_states(t, shorter, page);
        remove_leaf(t, shorter);
    }
    return page;
}

void mox_tree_add_state(mox_tree *t, int32_t node, int64_t at, int32_t state)
{
    mox_tree_state *new = &t->states[state];
    assert(at > t->nodes[node].begin && at <= mox_tree_end(t, node));
    int32_t *next = &t->nodes[node].state;
    while (*next != MOX_NONE && t->states[*next].at > at) next = &t->states[*next].next;
    if (*next != MOX_NONE && t->states[*next].at == at) {
        use(t, MOX_SHARE_STATES, *next);
        return;
    }
    if (new->node != MOX_NONE) return;
    *new = (mox_tree_state){.node = node, .next = *next, .at = at};
    *next = state;
    mox_share_hold(t->c, MOX_SHARE_STATES, state);
    link_behind(t->order[MOX_SHARE_STATES], head_of(t, MOX_SHARE_STATES), state);
    t->order[MOX_SHARE_STATES][state].used = t->clock;
    t->n_states++;
}

/* ---- for those that write paths to files ---- */

int32_t mox_tree_parent(const mox_tree *t, int32_t node) { return t->nodes[node].parent; }
int64_t mox_tree_end(const mox_tree *t, int32_t node) { return t->nodes[node].begin + t->nodes[node].n; }

const int32_t *mox_tree_tokens(const mox_tree *t, int32_t node, int64_t *n)
{
    *n = t->nodes[node].n;
    return t->nodes[node].tokens;
}

bool mox_tree_next_state(const mox_tree *t, int32_t node, int32_t *state, int64_t *at)
{
    *state = *state == MOX_NONE ? t->nodes[node].state : t->states[*state].next;
    if (*state == MOX_NONE) return false;
    *at = t->states[*state].at;
    return true;
}

int32_t mox_tree_unmarked(mox_tree *t, int64_t min)
{
    const int32_t head = head_of(t, MOX_SHARE_PAGES);
    for (int32_t i = t->grown ? t->order[MOX_SHARE_PAGES][head].older : head; i != head; i = t->order[MOX_SHARE_PAGES][i].older)
        if (t->nodes[i].child == MOX_NONE && !t->nodes[i].marked && mox_tree_end(t, i) >= min) return i;
    t->grown = false;
    return MOX_NONE;
}

void mox_tree_mark(mox_tree *t, int32_t node) { t->nodes[node].marked = true; }
bool mox_tree_marked(const mox_tree *t, int32_t node) { return t->nodes[node].marked; }

void mox_tree_unmark(mox_tree *t, const int32_t *tokens, int64_t n, int64_t first)
{
    int32_t node = MOX_NONE;
    for (int64_t page = 0; page * MOX_PAGE_LEN < n; page++) {
        const int64_t at = page * MOX_PAGE_LEN, len = mox_min_i64(n - at, MOX_PAGE_LEN);
        int32_t i = *children_of(t, node);
        while (i != MOX_NONE && (t->nodes[i].n != len || common(&t->nodes[i], tokens + at, len) < len)) i = t->nodes[i].next;
        if (i == MOX_NONE) return;
        node = i;
        if (page < first) continue;
        t->nodes[node].marked = false;
        t->grown = true;
    }
}
