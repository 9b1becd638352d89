/* text/constraint.c -- walks a grammar along a reply, in all possible ways at once.
 *
 * A state is a node, a memory of what it has taken (text/grammar_step.h) and a stack; a set of
 * states is where the reply may be.  Stacks are frames with a parent, and equal frames are one
 * frame, so equal states can be told by comparing three numbers and a grammar that can be read
 * in several ways costs no more than the number of its different states.
 *
 * Sets stand one behind the other in one array, as deep as the bytes that are being tried, and
 * are given up in the opposite order; frames that were made for them go with them.  After each
 * token that was accepted the frames that are still in use are moved together.
 *
 * Owns: everything, from create on.  Walking allocates nothing: what does not fit ends in
 * MOX_E_LIMIT, as does more work than any sensible grammar takes.
 *
 * I1  a frame's parent has a smaller number; frame 0 is the bottom.
 * I2  states[0, n_base) is where the reply is; no state in it leads on without a byte. */
#include "text/grammar.h"
#include "text/grammar_step.h"
#include "text/token_trie.h"

#include "base/alloc.h"

#include <string.h>

enum { STATES_MAX = 1 << 16, FRAMES_MAX = 1 << 16, BUCKETS = 1 << 12, SET_MAX = 1 << 12, SEEN = 1 << 13, FEW = 24 };
enum { MASK_WORK_MAX = 30 * 1000 * 1000 };

typedef struct state {
    uint32_t node, stack;
    uint64_t memory;
} state;

typedef struct frame {
    uint32_t parent, node, count; /* where it goes on; how often a repetition has begun */
    uint32_t depth;
    uint32_t chain; /* the next in its bucket */
} frame;

struct mox_constraint {
    const mox_grammar *g;
    const mox_token_trie *trie;
    int32_t *end_ids;
    int32_t n_end_ids;
    state *states;
    uint32_t n_states, n_base;
    frame *frames;
    uint32_t n_frames;
    uint32_t *buckets;                  /* [BUCKETS] frames; 0: none */
    uint32_t *remap;                    /* [FRAMES_MAX] while frames are moved */
    uint32_t *seen, *seen_round, round; /* [SEEN] states of the set that is being made */
    uint32_t *marks;                    /* [longest + 2, 3] of a walk: where its sets begin, its frames, its branches */
    int64_t work;
    bool over; /* something did not fit */
};

/* ---- frames ------------------------------------------------------------------------------ */

static uint32_t bucket_of(uint32_t parent, uint32_t node, uint32_t count)
{
    const uint64_t h = ((uint64_t)parent << 32 ^ (uint64_t)node << 13 ^ count) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 40) & (BUCKETS - 1);
}

static uint32_t push_frame(mox_constraint *c, uint32_t parent, uint32_t node, uint32_t count, uint32_t deeper)
{
    const uint32_t bucket = bucket_of(parent, node, count);
    for (uint32_t f = c->buckets[bucket]; f != 0; f = c->frames[f].chain) {
        const frame *at = &c->frames[f];
        if (at->parent == parent && at->node == node && at->count == count) return f;
    }
    if (c->n_frames == FRAMES_MAX) {
        c->over = true;
        return 0;
    }
    c->frames[c->n_frames] = (frame){parent, node, count, c->frames[parent].depth + deeper, c->buckets[bucket]};
    c->buckets[bucket] = c->n_frames;
    return c->n_frames++;
}

/* Gives up the frames from n on: each is the first of its bucket when its turn comes. */
static void drop_frames(mox_constraint *c, uint32_t n)
{
    while (c->n_frames > n) {
        const frame *f = &c->frames[--c->n_frames];
        c->buckets[bucket_of(f->parent, f->node, f->count)] = f->chain;
    }
}

/* Moves the frames that states[0, n_base) use together. */
static void keep_used_frames(mox_constraint *c)
{
    memset(c->remap, 0, c->n_frames * sizeof *c->remap);
    for (uint32_t i = 0; i < c->n_base; i++)
        for (uint32_t f = c->states[i].stack; f != 0 && !c->remap[f]; f = c->frames[f].parent) c->remap[f] = 1;
    memset(c->buckets, 0, BUCKETS * sizeof *c->buckets);
    uint32_t n = 1;
    for (uint32_t f = 1; f < c->n_frames; f++) {
        if (!c->remap[f]) continue;
        frame moved = c->frames[f];
        moved.parent = c->remap[moved.parent]; /* I1: it has moved already */
        const uint32_t bucket = bucket_of(moved.parent, moved.node, moved.count);
        moved.chain = c->buckets[bucket];
        c->buckets[bucket] = n;
        c->frames[n] = moved;
        c->remap[f] = n++;
    }
    c->n_frames = n;
    for (uint32_t i = 0; i < c->n_base; i++) c->states[i].stack = c->remap[c->states[i].stack];
}

/* ---- sets ----------------------------------------------------------------------------------- */

static bool same(const state *a, const state *b)
{
    return a->node == b->node && a->stack == b->stack && a->memory == b->memory;
}

/* Looks the state up among those of the set from begin on, and puts it there. */
static bool seen_before(mox_constraint *c, uint32_t begin, const state *s)
{
    const uint32_t n = c->n_states - begin;
    if (n < FEW) {
        for (uint32_t i = begin; i < c->n_states; i++)
            if (same(&c->states[i], s)) return true;
        return false;
    }
    if (n == FEW) c->round++;
    const uint32_t first = n == FEW ? begin : c->n_states; /* the few enter together */
    for (uint32_t i = first; i <= c->n_states; i++) {
        const state *one = i < c->n_states ? &c->states[i] : s;
        uint32_t slot =
            (uint32_t)((((uint64_t)one->stack << 32 | one->node) ^ one->memory * 31) * 0x9E3779B97F4A7C15u >> 45) &
            (SEEN - 1);
        for (; c->seen_round[slot] == c->round; slot = (slot + 1) & (SEEN - 1)) {
            if (i == c->n_states && same(&c->states[c->seen[slot]], s)) return true;
        }
        c->seen_round[slot] = c->round;
        c->seen[slot] = i;
    }
    return false;
}

static void add(mox_constraint *c, uint32_t begin, uint32_t node, uint32_t stack, uint64_t memory)
{
    const state s = {node, stack, memory};
    c->work++;
    if (c->frames[stack].depth + mox_gnode_at(c->g, node)->height > c->g->depth_max) return; /* no end from there */
    if (c->n_states - begin >= SET_MAX || c->n_states == STATES_MAX) {
        c->over = true;
        return;
    }
    c->states[c->n_states] = s; /* where it will be if it is new */
    if (seen_before(c, begin, &s)) return;
    c->n_states++;
}

static const mox_gstring *string_at(const mox_grammar *g, const mox_gnode *node)
{
    return (const mox_gstring *)g->strings.data + node->a;
}

static void add_first(mox_constraint *c, uint32_t begin, uint32_t node, uint32_t stack)
{
    const mox_gnode *n = mox_gnode_at(c->g, node);
    add(c, begin, node, stack, n->op == MOX_G_STRING ? mox_gstep_begin(string_at(c->g, n)) : 0);
}

static void lead_on_repeat(mox_constraint *c, uint32_t begin, state s, const mox_gnode *node)
{
    const mox_grepeat *r = (const mox_grepeat *)c->g->repeats.data + node->a;
    const uint32_t count = (uint32_t)s.memory;
    if (count >= r->min) add_first(c, begin, node->next, s.stack);
    if (count >= r->max) return;
    const uint32_t next = r->max == MOX_GRAMMAR_NO_MAX && count >= r->min ? count : count + 1;
    const uint32_t f = push_frame(c, s.stack, s.node, next, 0);
    if (!c->over) add_first(c, begin, r->body, f);
}

static void lead_back(mox_constraint *c, uint32_t begin, state s)
{
    const frame f = c->frames[s.stack];
    if (mox_gnode_at(c->g, f.node)->op == MOX_G_REPEAT)
        add(c, begin, f.node, f.parent, f.count);
    else
        add_first(c, begin, f.node, f.parent);
}

/* Adds what a state leads to without a byte. */
static void lead_on(mox_constraint *c, uint32_t begin, state s)
{
    const mox_grammar *g = c->g;
    const mox_gnode *node = mox_gnode_at(g, s.node);
    const uint32_t *targets = g->targets.data;
    switch (node->op) {
    case MOX_G_SPLIT:
        for (uint32_t i = 1; i <= targets[node->a]; i++) add_first(c, begin, targets[node->a + i], s.stack);
        break;
    case MOX_G_CALL: {
        const uint32_t f = push_frame(c, s.stack, node->next, 0, node->nest);
        if (!c->over) add_first(c, begin, ((const uint32_t *)g->rules.data)[node->a], f);
        break;
    }
    case MOX_G_RETURN: lead_back(c, begin, s); break;
    case MOX_G_REPEAT: lead_on_repeat(c, begin, s, node); break;
    case MOX_G_STRING:
        if (mox_gstep_string_ends(string_at(g, node), s.memory)) add_first(c, begin, node->next, s.stack);
        break;
    case MOX_G_WS: add_first(c, begin, node->next, s.stack); break;
    default: break;
    }
}

static bool takes_bytes(const mox_gnode *node)
{
    return node->op != MOX_G_SPLIT && node->op != MOX_G_CALL && node->op != MOX_G_RETURN && node->op != MOX_G_REPEAT;
}

/* Completes the set from begin on, and leaves in it what takes bytes or is the end. */
static void close_set(mox_constraint *c, uint32_t begin)
{
    uint32_t kept = begin;
    for (uint32_t i = begin; i < c->n_states && !c->over; i++) lead_on(c, begin, c->states[i]);
    for (uint32_t i = begin; i < c->n_states; i++)
        if (takes_bytes(mox_gnode_at(c->g, c->states[i].node))) c->states[kept++] = c->states[i];
    c->n_states = kept;
}

static void step_state(mox_constraint *c, uint32_t begin, state s, unsigned char byte)
{
    const mox_grammar *g = c->g;
    const mox_gnode *node = mox_gnode_at(g, s.node);
    mox_gstep step = MOX_STEP_NO;
    c->work++;
    switch (node->op) {
    case MOX_G_BYTE: step = node->a == byte ? MOX_STEP_NEXT : MOX_STEP_NO; break;
    case MOX_G_SET:
        step =
            ((const mox_gset *)g->sets.data)[node->a].bits[byte / 64] >> (byte % 64) & 1 ? MOX_STEP_NEXT : MOX_STEP_NO;
        break;
    case MOX_G_CHAR: step = mox_gstep_char((const mox_granges *)g->ranges.data + node->a, byte, &s.memory); break;
    case MOX_G_STRING: step = mox_gstep_string(string_at(g, node), byte, &s.memory); break;
    case MOX_G_WS: step = mox_gstep_ws(byte, &s.memory); break;
    default: break;
    }
    if (step == MOX_STEP_NEXT) add_first(c, begin, node->next, s.stack);
    if (step == MOX_STEP_STAYS) add(c, begin, s.node, s.stack, s.memory);
}

/* The set behind states[from, to) and a byte, at the end of the array; false: there is none. */
static bool step(mox_constraint *c, uint32_t from, uint32_t to, unsigned char byte)
{
    const uint32_t begin = c->n_states;
    for (uint32_t i = from; i < to; i++) step_state(c, begin, c->states[i], byte);
    if (c->n_states > begin) close_set(c, begin);
    return c->n_states > begin;
}

static mox_status check_fits(mox_constraint *c, mox_err *err)
{
    if (!c->over) return MOX_OK;
    return mox_fail(err, MOX_E_LIMIT, "the grammar can be read in too many ways at once");
}

/* Tries bytes from where the reply is; *from is where the set behind them begins, and equal to n_states when
 * they may not come.  What was made for it is still there. */
static mox_status try_bytes(mox_constraint *c, const char *bytes, size_t n, bool special, uint32_t *from, mox_err *err)
{
    uint32_t begin = 0, end = c->n_base;
    c->over = false;
    c->n_states = c->n_base;
    if (special) { /* begins where the grammar has a marker */
        begin = end;
        for (uint32_t i = 0; i < c->n_base; i++)
            if (mox_gnode_at(c->g, c->states[i].node)->mark) c->states[c->n_states++] = c->states[i];
        end = c->n_states;
    }
    for (size_t i = 0; i < n && end > begin; i++) {
        /* The set before is not needed any more, but the first one is. */
        if (!step(c, begin, end, (unsigned char)bytes[i])) {
            begin = end = c->n_states;
            break;
        }
        const uint32_t made = c->n_states - end;
        const uint32_t to = begin == 0 ? end : begin;
        memmove(c->states + to, c->states + end, made * sizeof *c->states);
        begin = to;
        end = c->n_states = to + made;
    }
    *from = end > begin ? begin : c->n_states;
    return check_fits(c, err);
}

static void forget_trial(mox_constraint *c, uint32_t n_frames)
{
    c->n_states = c->n_base;
    drop_frames(c, n_frames);
}

/* ---- the interface ------------------------------------------------------------------------------ */

mox_status mox_constraint_begin(mox_constraint *c, bool after_thinking, mox_err *err)
{
    c->over = false;
    c->n_states = c->n_base = 0;
    c->frames[0] = (frame){0};
    c->n_frames = 1;
    memset(c->buckets, 0, BUCKETS * sizeof *c->buckets);
    add_first(c, 0, after_thinking ? c->g->start_after_thinking : c->g->start, 0);
    close_set(c, 0);
    c->n_base = c->n_states;
    return check_fits(c, err);
}

static bool allocate(mox_constraint *c, int32_t n_end_ids)
{
    c->end_ids = mox_alloc_array((size_t)n_end_ids + 1, sizeof *c->end_ids);
    c->states = mox_alloc((STATES_MAX + 1) * sizeof *c->states); /* not zeroed: most of it is never touched */
    c->frames = mox_alloc(FRAMES_MAX * sizeof *c->frames);
    c->remap = mox_alloc(FRAMES_MAX * sizeof *c->remap);
    c->buckets = mox_alloc_array(BUCKETS, sizeof *c->buckets);
    c->seen = mox_alloc_array(SEEN, sizeof *c->seen);
    c->seen_round = mox_alloc_array(SEEN, sizeof *c->seen_round);
    c->marks = mox_alloc_array(c->trie->longest + 2, 3 * sizeof *c->marks);
    return c->end_ids && c->states && c->frames && c->remap && c->buckets && c->seen && c->seen_round && c->marks;
}

mox_status mox_constraint_create(mox_constraint **out, const mox_grammar *g, const mox_token_trie *trie,
                                 const int32_t *end_ids, int32_t n_end_ids, mox_err *err)
{
    *out = NULL;
    mox_constraint *c = mox_alloc_array(1, sizeof *c);
    if (!c) return mox_fail_memory(err, sizeof *c, "a constraint");
    c->g = g;
    c->trie = trie;
    mox_status status =
        allocate(c, n_end_ids) ? MOX_OK : mox_fail_memory(err, STATES_MAX * sizeof *c->states, "a constraint");
    if (status == MOX_OK) {
        for (int32_t i = 0; i < n_end_ids; i++) c->end_ids[i] = end_ids[i];
        c->n_end_ids = n_end_ids;
        status = mox_constraint_begin(c, false, err);
    }
    if (status != MOX_OK) mox_constraint_destroy(&c);
    *out = c;
    return status;
}

void mox_constraint_destroy(mox_constraint **constraint)
{
    mox_constraint *c = *constraint;
    if (!c) return;
    mox_free(c->end_ids);
    mox_free(c->states);
    mox_free(c->frames);
    mox_free(c->remap);
    mox_free(c->buckets);
    mox_free(c->seen);
    mox_free(c->seen_round);
    mox_free(c->marks);
    mox_free(c);
    *constraint = NULL;
}

bool mox_constraint_may_end(const mox_constraint *c)
{
    for (uint32_t i = 0; i < c->n_base; i++)
        if (mox_gnode_at(c->g, c->states[i].node)->op == MOX_G_END) return true;
    return false;
}

bool mox_constraint_must_end(const mox_constraint *c) { return c->n_base == 1 && mox_constraint_may_end(c); }

static bool is_end(const mox_constraint *c, int32_t token)
{
    for (int32_t i = 0; i < c->n_end_ids; i++)
        if (c->end_ids[i] == token) return true;
    return false;
}

/* The bytes of a token that is no end; NULL: there is none. */
static const char *bytes_of(const mox_constraint *c, int32_t token, size_t *n, bool *special)
{
    *n = 0;
    if (token < 0 || token >= c->trie->n_tokens) return NULL;
    const char *bytes = mox_tokenizer_bytes(c->trie->tokenizer, token, n);
    *special = bytes && mox_tokenizer_is_special(c->trie->tokenizer, token);
    return *n > 0 ? bytes : NULL;
}

mox_status mox_constraint_allows(mox_constraint *c, int32_t token, bool *out, mox_err *err)
{
    size_t n;
    bool special = false;
    uint32_t from;
    *out = is_end(c, token) && mox_constraint_may_end(c);
    const char *bytes = is_end(c, token) ? NULL : bytes_of(c, token, &n, &special);
    if (!bytes) return MOX_OK;
    const uint32_t n_frames = c->n_frames;
    const mox_status status = try_bytes(c, bytes, n, special, &from, err);
    *out = status == MOX_OK && from < c->n_states;
    forget_trial(c, n_frames);
    return status;
}

static mox_status accept(mox_constraint *c, const char *bytes, size_t n, bool special, mox_err *err)
{
    uint32_t from;
    const uint32_t n_frames = c->n_frames;
    mox_status status = try_bytes(c, bytes, n, special, &from, err);
    if (status == MOX_OK && from == c->n_states)
        status = mox_fail(err, MOX_E_ARG, "the grammar does not allow this here");
    if (status != MOX_OK) {
        forget_trial(c, n_frames);
        return status;
    }
    c->n_base = c->n_states - from;
    memmove(c->states, c->states + from, c->n_base * sizeof *c->states);
    c->n_states = c->n_base;
    keep_used_frames(c);
    return MOX_OK;
}

mox_status mox_constraint_accept_bytes(mox_constraint *c, const char *bytes, size_t n, mox_err *err)
{
    return n == 0 ? MOX_OK : accept(c, bytes, n, false, err);
}

mox_status mox_constraint_accept(mox_constraint *c, int32_t token, mox_err *err)
{
    size_t n = 0;
    bool special = false;
    if (is_end(c, token) && mox_constraint_may_end(c)) return MOX_OK;
    const char *bytes = is_end(c, token) ? NULL : bytes_of(c, token, &n, &special);
    if (!bytes) return mox_fail(err, MOX_E_ARG, "the grammar does not allow token %d here", (int)token);
    return accept(c, bytes, n, special, err);
}

/* ---- masks ------------------------------------------------------------------------------------------ */

typedef struct mask {
    unsigned char *allowed;
    int64_t n, found; /* n <= MOX_TRIE_NO_TOKEN */
} mask;

/* Without a branch: whether a token ends at a node of the trie is anybody's guess. */
static inline void allow(mask *m, uint32_t token)
{
    unsigned char nowhere;
    const bool is_one = (int64_t)token < m->n;
    *(is_one ? &m->allowed[token] : &nowhere) = 1;
    m->found += is_one;
}

static bool goes_on(const mox_constraint *c) { return !c->over && c->work < MASK_WORK_MAX; }

/* Goes through nodes [begin, end) of a trie, which are branches, from the set states[from, n_states). */
static void walk(mox_constraint *c, const mox_trie *trie, uint32_t begin, uint32_t end, uint32_t from, mask *m)
{
    enum { FROM, FRAMES, END, FIELDS };
    const mox_trie_node *nodes = trie->nodes.data;
    uint32_t(*levels)[FIELDS] =
        (void *)c->marks; /* the set before the next byte, frames before it, and where the branch ends */
    const uint32_t n_frames = c->n_frames, n_states = c->n_states;
    uint32_t depth = 0;
    levels[0][FROM] = from;
    levels[0][FRAMES] = n_frames;
    levels[0][END] = end;
    levels[1][FROM] = n_states;
    for (uint32_t i = begin; i < end && goes_on(c);) {
        while (i >= levels[depth][END]) depth--;
        const uint32_t to = levels[depth + 1][FROM];
        c->n_states = to;
        drop_frames(c, levels[depth][FRAMES]);
        if (!step(c, levels[depth][FROM], to, nodes[i].byte)) {
            i = nodes[i].end;
            continue;
        }
        allow(m, nodes[i].token);
        if (nodes[i].end > i + 1) { /* there are longer ones */
            depth++;
            levels[depth][FRAMES] = c->n_frames;
            levels[depth][END] = nodes[i].end;
            levels[depth + 1][FROM] = c->n_states;
        }
        i++;
    }
    c->n_states = n_states;
    drop_frames(c, n_frames);
}

/* A branch in which something else than the string's automaton has a say. */
static void walk_aside(mox_constraint *c, const mox_trie *trie, uint32_t branch, state s, mask *m)
{
    const mox_trie_node *nodes = trie->nodes.data;
    const uint32_t from = c->n_states, n_frames = c->n_frames;
    add(c, from, s.node, s.stack, s.memory);
    close_set(c, from);
    walk(c, trie, branch, nodes[branch].end, from, m);
    c->n_states = from;
    drop_frames(c, n_frames);
}

/* The bytes with which what follows the string may begin. */
static void find_followers(mox_constraint *c, const mox_gnode *node, uint32_t stack, bool out[256])
{
    const uint32_t from = c->n_states, n_frames = c->n_frames;
    add_first(c, from, node->next, stack);
    close_set(c, from);
    const uint32_t to = c->n_states;
    for (unsigned byte = 0; byte < 256; byte++) {
        out[byte] = step(c, from, to, (unsigned char)byte);
        c->n_states = to;
    }
    c->n_states = from;
    drop_frames(c, n_frames);
}

/* Tokens of whole characters, against the automaton alone. */
static void walk_string(mox_constraint *c, const mox_trie *trie, state s, mox_gplace start, mask *m)
{
    const mox_trie_node *nodes = trie->nodes.data;
    const mox_gnode *node = mox_gnode_at(c->g, s.node);
    const mox_gstring *string = string_at(c->g, node);
    const mox_dfa *d = string->dfa;
    mox_gplace places[MOX_TRIE_PLAIN_MAX + 2]; /* before the byte of that depth */
    bool follows[256], word_follows = false;
    find_followers(c, node, s.stack, follows);
    for (uint32_t byte = 0; byte < 0x80; byte++) word_follows = word_follows || (follows[byte] && mox_byte_is_word(byte));
    places[0] = start;
    for (uint32_t i = 0; i < trie->n;) {
        const mox_trie_node at = nodes[i];
        mox_gplace place = places[at.depth];
        const uint16_t to = d->bytes[(size_t)place.state * 256 + at.byte];
        if (to == MOX_DFA_DEAD && !follows[at.byte]) {
            i = at.end;
            continue;
        }
        const bool inside = (at.byte & 0xC0) == 0x80;
        if (to == MOX_DFA_VARIOUS || (follows[at.byte] && !inside && d->ends[place.state])) {
            walk_aside(c, trie, i, (state){s.node, s.stack, mox_gstep_string_memory(place)}, m);
            if (!goes_on(c)) return;
            i = at.end;
            continue;
        }
        if (!inside) place = (mox_gplace){to, mox_gstep_one_more(string, place.count)};
        const bool counts = string->reach || place.count < string->min;
        if (to == MOX_DFA_DEAD || (counts && !mox_gstep_string_can_end(string, place))) {
            i = at.end;
            continue;
        }
        allow(m, at.token);
        places[at.depth + 1] = place;
        i++;
        if (at.word && !counts && !word_follows && (d->stays[to] & MOX_DFA_STAYS_WORD))
            for (; i < at.end; i++) allow(m, nodes[i].token);
    }
}

/* Plain tokens in a string that takes any characters: as many as there is room for. */
static void allow_plain(const mox_constraint *c, const mox_gstring *s, mox_gplace at, mask *m)
{
    const mox_token_trie *t = c->trie;
    const int64_t n = m->n < t->n_tokens ? m->n : t->n_tokens;
    const uint32_t room = s->max == MOX_GRAMMAR_NO_MAX || s->max - at.count >= 255 ? 255 : s->max - at.count;
    for (int64_t i = 0; i < n; i++)
        m->allowed[i] |= (unsigned char)((t->kinds[i] & MOX_TOKEN_PLAIN) && t->chars[i] <= room);
    m->found += room > 0;
}

static void allow_common(const mox_constraint *c, mask *m)
{
    const mox_token_trie *t = c->trie;
    const int64_t n = m->n < t->n_tokens ? m->n : t->n_tokens;
    for (int64_t i = 0; i < n; i++) m->allowed[i] |= (unsigned char)((t->kinds[i] & MOX_TOKEN_COMMON) != 0);
    m->found++;
}

/* The plain tokens that a state allows by itself; false: it has to be walked like any other. */
static bool mask_string(mox_constraint *c, state s, mask *m)
{
    const mox_gnode *node = mox_gnode_at(c->g, s.node);
    mox_gplace at;
    if (node->op != MOX_G_STRING || !mox_gstep_string_place(s.memory, &at)) return false;
    const mox_gstring *string = string_at(c->g, node);
    if (!string->dfa && string->raw) return false;
    if (!string->dfa) {
        allow_plain(c, string, at, m);
        return true;
    }
    const bool stays = mox_gstep_string_stays(string, at, MOX_TRIE_PLAIN_MAX);
    if (stays) allow_common(c, m);
    walk_string(c, stays ? &c->trie->uncommon : &c->trie->plain, s, at, m);
    return true;
}

/* All tokens that are in a trie. */
static void mask_tokens(mox_constraint *c, mask *m)
{
    const uint32_t n = c->n_base;
    uint32_t n_others = 0;
    c->n_states = n;
    for (uint32_t i = 0; i < n && goes_on(c); i++)
        if (!mask_string(c, c->states[i], m)) c->states[n + n_others++] = c->states[i], c->n_states = n + n_others;
    const bool split = n_others < n;
    walk(c, split ? &c->trie->plain : &c->trie->all, 0, split ? c->trie->plain.n : c->trie->all.n, n, m);
    c->n_states = n;
    if (split) walk(c, &c->trie->rest, 0, c->trie->rest.n, 0, m);
}

static mox_status mask_special(mox_constraint *c, mask *m, mox_err *err)
{
    bool marked = false;
    for (uint32_t i = 0; i < c->n_base; i++) marked = marked || mox_gnode_at(c->g, c->states[i].node)->mark;
    for (int32_t i = 0; marked && i < c->trie->n_special; i++) {
        bool allowed;
        const int32_t id = c->trie->special[i];
        if (id >= m->n || is_end(c, id)) continue;
        MOX_TRY(mox_constraint_allows(c, id, &allowed, err));
        if (allowed) allow(m, (uint32_t)id);
    }
    return MOX_OK;
}

mox_status mox_constraint_mask(mox_constraint *c, unsigned char *allowed, int64_t n, mox_err *err)
{
    mask m = {.allowed = allowed, .n = n < MOX_TRIE_NO_TOKEN ? n : MOX_TRIE_NO_TOKEN};
    memset(allowed, 0, (size_t)n);
    c->over = false;
    c->work = 0;
    mask_tokens(c, &m);
    MOX_TRY(check_fits(c, err));
    if (!goes_on(c)) return mox_fail(err, MOX_E_LIMIT, "the grammar can be read in too many ways at once");
    MOX_TRY(mask_special(c, &m, err));
    for (int32_t i = 0; i < c->n_end_ids; i++) {
        if (c->end_ids[i] < 0 || c->end_ids[i] >= n) continue;
        allowed[c->end_ids[i]] = mox_constraint_may_end(c);
        m.found += allowed[c->end_ids[i]];
    }
    if (m.found > 0) return MOX_OK;
    return mox_fail(err, MOX_E_STATE, "grammar dead end: no token of this vocabulary continues the reply");
}
