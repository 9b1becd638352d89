/* text/grammar_dfa.c -- from the nodes of a pattern to an automaton.
 *
 * The usual construction: characters that no set tells apart become a class, and a state is
 * the set of nodes that a string may have led to.  A pattern that has been found stays found,
 * so the set that holds its match is that match alone.  Every loop pays from the caller's
 * budget, which makes the worst pattern a refusal in bounded time.
 *
 * States are numbered as they are found.  Those from which no end can be reached are cut off
 * at the end, by taking away the transitions that lead there. */
#include "text/grammar_dfa.h"

#include "base/alloc.h"
#include "base/buffer.h"
#include "text/token_trie.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum {
    CLASSES_MAX = 512,
    CUTS_MAX = 1 << 13,
    TABLE = 1 << 14,
    SCRATCH_BYTES_MAX = 64 << 20,
    SURROGATES = 0xD800,
    SURROGATES_END = 0xE000
};
#define REACH_BITS_MAX ((size_t)1 << 25)

static mox_status too_much(mox_err *err) { return mox_fail(err, MOX_E_LIMIT, "is too complicated"); }

static mox_status pay(mox_dfa_budget *work, int64_t cost, mox_err *err)
{
    work->left -= cost;
    return work->left < 0 ? too_much(err) : MOX_OK;
}

static mox_status take(mox_region *m, size_t n, size_t size, void *out, mox_err *err)
{
    void *memory;
    MOX_TRY(mox_region_take(m, n * size + 1, &memory, err));
    memset(memory, 0, n * size);
    memcpy(out, &memory, sizeof memory);
    return MOX_OK;
}

static mox_status copy_array(mox_region *m, const void *from, size_t bytes, void *out, mox_err *err)
{
    void *memory;
    MOX_TRY(mox_region_take(m, bytes + 1, &memory, err));
    memcpy(memory, from, bytes);
    memcpy(out, &memory, sizeof memory);
    return MOX_OK;
}

/* ---- nodes ------------------------------------------------------------------- */

mox_status mox_nfa_init(mox_nfa *n, mox_region *m, mox_err *err)
{
    *n = (mox_nfa){.memory = m};
    MOX_TRY(take(m, MOX_NFA_NODES_MAX, sizeof *n->nodes, &n->nodes, err));
    return take(m, MOX_NFA_SETS_MAX, sizeof *n->sets, &n->sets, err);
}

mox_status mox_nfa_add(mox_nfa *n, mox_nfa_op op, uint32_t a, uint32_t next, uint32_t *out, mox_err *err)
{
    if (n->n_nodes == MOX_NFA_NODES_MAX) return too_much(err);
    n->nodes[n->n_nodes] = (mox_nfa_node){.op = (uint8_t)op, .a = a, .next = next};
    *out = n->n_nodes++;
    return MOX_OK;
}

static int compare_runs(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Sorted runs into out, joined where they touch, or the runs between them. */
static uint32_t join_runs(const uint32_t *v, uint32_t count, bool negated, uint32_t *out)
{
    uint32_t n = 0, from = 0;
    for (uint32_t i = 0; i < count; i += 2) {
        if (n > 0 && v[i] <= out[n - 1] + 1) {
            if (v[i + 1] > out[n - 1]) out[n - 1] = v[i + 1];
        } else {
            out[n++] = v[i];
            out[n++] = v[i + 1];
        }
    }
    if (!negated) return n;
    const uint32_t runs = n;
    n = 0;
    for (uint32_t i = 0; i < runs; i += 2) { /* writes at most where it has read */
        const uint32_t begin = out[i], end = out[i + 1];
        if (begin > from) {
            out[n++] = from;
            out[n++] = begin - 1;
        }
        from = end + 1;
    }
    if (from <= MOX_DFA_CHAR_MAX) {
        out[n++] = from;
        out[n++] = MOX_DFA_CHAR_MAX;
    }
    return n;
}

static uint32_t drop_surrogates(uint32_t *v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 2) {
        if (v[i + 1] < SURROGATES || v[i] >= SURROGATES_END) continue;
        const bool before = v[i] < SURROGATES, after = v[i + 1] >= SURROGATES_END;
        const uint32_t last = v[i + 1];
        if (before) v[i + 1] = SURROGATES - 1;
        if (before && after) {
            memmove(v + i + 4, v + i + 2, (n - i - 2) * sizeof *v);
            v[i + 2] = SURROGATES_END;
            v[i + 3] = last;
            return n + 2;
        }
        if (after) v[i] = SURROGATES_END;
        if (!before && !after) {
            n -= 2;
            memmove(v + i, v + i + 2, (n - i) * sizeof *v);
            i -= 2; /* wraps, and comes back */
        }
    }
    return n;
}

mox_status mox_nfa_add_set(mox_nfa *n, const uint32_t *v, uint32_t count, bool negated, uint32_t *out, mox_err *err)
{
    uint32_t *sorted, *joined;
    MOX_TRY(take(n->memory, count, sizeof *v, &sorted, err));
    MOX_TRY(take(n->memory, count + 6, sizeof *v, &joined, err));
    if (count > 0) memcpy(sorted, v, count * sizeof *v);
    qsort(sorted, count / 2, 2 * sizeof *v, compare_runs);
    const uint32_t length = drop_surrogates(joined, join_runs(sorted, count, negated, joined));
    for (*out = 0; *out < n->n_sets; ++*out)
        if (n->sets[*out].n == length && memcmp(n->sets[*out].v, joined, length * sizeof *v) == 0) return MOX_OK;
    if (n->n_sets == MOX_NFA_SETS_MAX) return too_much(err);
    n->sets[n->n_sets++] = (mox_nfa_set){joined, length};
    return MOX_OK;
}

/* ---- classes ------------------------------------------------------------------ */

typedef struct maker {
    const mox_nfa *nfa;
    mox_region *memory;
    mox_dfa_budget *work;
    mox_err *err;
    mox_dfa *out;
    uint32_t *cuts;
    uint16_t *classes;
    unsigned char *member; /* [n_sets, n_classes] */
    uint32_t match;

    mox_buffer pool, first, count, next; /* of states: their nodes, where these begin and how many; transitions */
    uint32_t n_pool, n_states;
    uint32_t *table;       /* [TABLE] state + 1 */
    uint32_t *mark, stamp; /* [n_nodes] */
    uint32_t *stack, *set; /* [n_nodes] */
    uint32_t n_set;
} maker;

static bool set_has(const mox_nfa_set *s, uint32_t c)
{
    uint32_t low = 0, high = s->n / 2;
    while (low < high) {
        const uint32_t mid = (low + high) / 2;
        if (s->v[2 * mid + 1] < c)
            low = mid + 1;
        else
            high = mid;
    }
    return 2 * low < s->n && s->v[2 * low] <= c;
}

static mox_status find_cuts(maker *m)
{
    size_t n = 3;
    for (uint32_t i = 0; i < m->nfa->n_sets; i++) n += m->nfa->sets[i].n;
    if (n > 1U << 20) return too_much(m->err);
    MOX_TRY(take(m->memory, n, sizeof *m->cuts, &m->cuts, m->err));
    n = 1;
    m->cuts[n++] = SURROGATES;
    m->cuts[n++] = SURROGATES_END;
    for (uint32_t i = 0; i < m->nfa->n_sets; i++)
        for (uint32_t k = 0; k < m->nfa->sets[i].n; k++) m->cuts[n++] = m->nfa->sets[i].v[k] + (k & 1);
    qsort(m->cuts, n, sizeof *m->cuts, compare_runs);
    uint32_t used = 1;
    for (size_t i = 1; i < n; i++)
        if (m->cuts[i] != m->cuts[used - 1] && m->cuts[i] <= MOX_DFA_CHAR_MAX) m->cuts[used++] = m->cuts[i];
    m->out->n_cuts = used;
    return used > CUTS_MAX ? too_much(m->err) : MOX_OK;
}

/* Runs that are in the same sets are one class. */
static mox_status find_classes(maker *m)
{
    const uint32_t n_sets = m->nfa->n_sets;
    uint64_t *signs;
    MOX_TRY(find_cuts(m));
    const uint32_t n = m->out->n_cuts;
    MOX_TRY(pay(m->work, (int64_t)n * n_sets * 4, m->err));
    MOX_TRY(take(m->memory, n, sizeof *m->classes, &m->classes, m->err));
    MOX_TRY(take(m->memory, CLASSES_MAX, sizeof *signs, &signs, m->err));
    MOX_TRY(take(m->memory, (size_t)n_sets * CLASSES_MAX, 1, &m->member, m->err));
    uint32_t n_classes = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t sign = m->cuts[i] == SURROGATES;
        for (uint32_t k = 0; k < n_sets; k++)
            if (set_has(&m->nfa->sets[k], m->cuts[i]))
                sign = (sign ^ (k + 1)) * 0x9E3779B97F4A7C15u, sign ^= sign >> 29;
        uint32_t c = 0;
        while (c < n_classes && signs[c] != sign) c++;
        if (c == CLASSES_MAX) return too_much(m->err);
        m->classes[i] = (uint16_t)c;
        if (c < n_classes) continue;
        signs[n_classes++] = sign;
        for (uint32_t k = 0; k < n_sets; k++)
            m->member[(size_t)k * CLASSES_MAX + c] = set_has(&m->nfa->sets[k], m->cuts[i]);
    }
    m->out->n_classes = n_classes;
    return MOX_OK;
}

/* ---- states --------------------------------------------------------------------- */

/* Adds what can be reached from a node without a character.  begin, end: what ^ and $ are worth here. */
static void reach(maker *m, uint32_t node, bool begin, bool end)
{
    uint32_t n = 0;
    if (m->mark[node] == m->stamp) return;
    m->mark[node] = m->stamp;
    m->stack[n++] = node;
    while (n > 0) {
        const uint32_t at = m->stack[--n];
        const mox_nfa_node *node_at = &m->nfa->nodes[at];
        const bool on = node_at->op == MOX_NFA_SPLIT || (node_at->op == MOX_NFA_BEGIN && begin) ||
                        (node_at->op == MOX_NFA_END && end);
        if (!on) {
            if (node_at->op != MOX_NFA_BEGIN) m->set[m->n_set++] = at;
            continue;
        }
        const uint32_t ways[2] = {node_at->next, node_at->op == MOX_NFA_SPLIT ? node_at->a : node_at->next};
        for (int i = 0; i < 2; i++) {
            if (m->mark[ways[i]] == m->stamp) continue;
            m->mark[ways[i]] = m->stamp;
            m->stack[n++] = ways[i];
        }
    }
}

static void begin_set(maker *m)
{
    m->stamp++;
    m->n_set = 0;
}

static bool has_match(const maker *m) { return m->mark[m->match] == m->stamp; }

/* The state of m->set, new or known. */
static mox_status find_state(maker *m, uint16_t *out)
{
    if (has_match(m)) {
        m->set[0] = m->match;
        m->n_set = 1;
    }
    qsort(m->set, m->n_set, sizeof *m->set, compare_runs);
    MOX_TRY(pay(m->work, 8 * (int64_t)m->n_set + 8, m->err));
    uint64_t hash = m->n_set;
    for (uint32_t i = 0; i < m->n_set; i++) hash = (hash ^ m->set[i]) * 0x9E3779B97F4A7C15u, hash ^= hash >> 31;
    uint32_t slot = (uint32_t)hash & (TABLE - 1);
    for (; m->table[slot] != 0; slot = (slot + 1) & (TABLE - 1)) {
        const uint32_t s = m->table[slot] - 1;
        const uint32_t *first = m->first.data, *count = m->count.data, *pool = m->pool.data;
        if (count[s] != m->n_set) continue;
        if (m->n_set > 0 && memcmp(pool + first[s], m->set, m->n_set * sizeof *m->set) != 0) continue;
        *out = (uint16_t)s;
        return MOX_OK;
    }
    if (m->n_states == MOX_DFA_STATES_MAX) return too_much(m->err);
    MOX_TRY(mox_buffer_reserve(&m->pool, m->n_pool + m->n_set, sizeof(uint32_t), "a pattern", m->err));
    MOX_TRY(mox_buffer_reserve(&m->first, m->n_states + 1, sizeof(uint32_t), "a pattern", m->err));
    MOX_TRY(mox_buffer_reserve(&m->count, m->n_states + 1, sizeof(uint32_t), "a pattern", m->err));
    MOX_TRY(mox_buffer_reserve(&m->next, (size_t)(m->n_states + 1) * m->out->n_classes, sizeof(uint16_t), "a pattern",
                               m->err));
    if (m->n_set > 0) memcpy((uint32_t *)m->pool.data + m->n_pool, m->set, m->n_set * sizeof *m->set);
    ((uint32_t *)m->first.data)[m->n_states] = m->n_pool;
    ((uint32_t *)m->count.data)[m->n_states] = m->n_set;
    m->n_pool += m->n_set;
    m->table[slot] = m->n_states + 1;
    *out = (uint16_t)m->n_states++;
    return MOX_OK;
}

static mox_status follow(maker *m, uint32_t state)
{
    const uint32_t first = ((uint32_t *)m->first.data)[state], count = ((uint32_t *)m->count.data)[state];
    for (uint32_t c = 0; c < m->out->n_classes; c++) {
        uint16_t to;
        begin_set(m);
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t at = ((uint32_t *)m->pool.data)[first + i];
            const mox_nfa_node *node = &m->nfa->nodes[at];
            if (node->op == MOX_NFA_MATCH) reach(m, at, false, false);
            if (node->op == MOX_NFA_CHARS && m->member[(size_t)node->a * CLASSES_MAX + c])
                reach(m, node->next, false, false);
        }
        MOX_TRY(pay(m->work, count + 2 * (int64_t)m->n_set, m->err));
        MOX_TRY(find_state(m, &to));
        ((uint16_t *)m->next.data)[(size_t)state * m->out->n_classes + c] = to;
    }
    return MOX_OK;
}

static bool ends_here(maker *m, uint32_t state)
{
    const uint32_t first = ((uint32_t *)m->first.data)[state], count = ((uint32_t *)m->count.data)[state];
    begin_set(m);
    for (uint32_t i = 0; i < count; i++) reach(m, ((uint32_t *)m->pool.data)[first + i], false, true);
    return has_match(m);
}

/* ---- the end of it: what can be completed, and how long it can get ---------------- */

typedef struct graph { /* who leads to whom, each once */
    uint32_t *from, *begin, *n_out;
} graph;

static mox_status invert(mox_region *m, const mox_dfa *d, uint16_t *next, graph *g, mox_dfa_budget *work, mox_err *err)
{
    const size_t n = d->n_states, k = d->n_classes;
    uint32_t *mark, *fill;
    MOX_TRY(pay(work, (int64_t)(n * k), err));
    MOX_TRY(take(m, n + 1, sizeof *g->begin, &g->begin, err));
    MOX_TRY(take(m, n, sizeof *g->n_out, &g->n_out, err));
    MOX_TRY(take(m, n, sizeof *mark, &mark, err));
    MOX_TRY(take(m, n + 1, sizeof *fill, &fill, err));
    for (int pass = 0; pass < 2; pass++) {
        memset(mark, 0, n * sizeof *mark);
        for (uint32_t s = 0; s < n; s++) {
            for (size_t c = 0; c < k; c++) {
                const uint16_t t = next[s * k + c];
                if (t == MOX_DFA_DEAD || mark[t] == s + 1) continue;
                mark[t] = s + 1;
                if (pass == 0) {
                    g->begin[t + 1]++;
                    g->n_out[s]++;
                } else {
                    g->from[fill[t]++] = s;
                }
            }
        }
        if (pass == 1) break;
        for (size_t s = 0; s < n; s++) g->begin[s + 1] += g->begin[s];
        memcpy(fill, g->begin, (n + 1) * sizeof *fill);
        MOX_TRY(take(m, g->begin[n], sizeof *g->from, &g->from, err));
    }
    return MOX_OK;
}

/* Takes away transitions into states from which no end is reached. */
static mox_status cut_off(mox_region *m, mox_dfa *d, uint16_t *next, mox_dfa_budget *work, mox_err *err)
{
    graph g;
    uint32_t *queue, n = 0;
    unsigned char *good;
    MOX_TRY(invert(m, d, next, &g, work, err));
    MOX_TRY(take(m, d->n_states, sizeof *queue, &queue, err));
    MOX_TRY(take(m, d->n_states, 1, &good, err));
    for (uint32_t s = 0; s < d->n_states; s++)
        if (d->ends[s]) good[queue[n++] = s] = 1;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t e = g.begin[queue[i]]; e < g.begin[queue[i] + 1]; e++) {
            if (good[g.from[e]]) continue;
            good[g.from[e]] = 1;
            queue[n++] = g.from[e];
        }
    }
    for (size_t i = 0; i < (size_t)d->n_states * d->n_classes; i++)
        if (next[i] != MOX_DFA_DEAD && !good[next[i]]) next[i] = MOX_DFA_DEAD;
    if (!good[d->start]) d->start = MOX_DFA_DEAD;
    return MOX_OK;
}

/* States whose successors are all measured are measured; what is left goes in circles. */
static mox_status measure(mox_region *m, mox_dfa *d, uint16_t *next, mox_dfa_budget *work, mox_err *err)
{
    graph g;
    uint32_t *queue, *longest, n = 0;
    MOX_TRY(invert(m, d, next, &g, work, err));
    MOX_TRY(take(m, d->n_states, sizeof *queue, &queue, err));
    MOX_TRY(take(m, d->n_states, sizeof *longest, &longest, err));
    for (uint32_t s = 0; s < d->n_states; s++)
        if (g.n_out[s] == 0) queue[n++] = s;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t e = g.begin[queue[i]]; e < g.begin[queue[i] + 1]; e++) {
            const uint32_t s = g.from[e];
            if (longest[queue[i]] + 1 > longest[s]) longest[s] = longest[queue[i]] + 1;
            if (--g.n_out[s] == 0) queue[n++] = s;
        }
    }
    for (uint32_t s = 0; s < d->n_states; s++)
        if (g.n_out[s] > 0) longest[s] = MOX_DFA_ENDLESS;
    d->longest = longest;
    return MOX_OK;
}

/* A run of one class; surrogates are no characters. */
static bool run_has_common(uint32_t from, uint32_t to)
{
    if (from == SURROGATES) return false;
    for (uint32_t c = from; c <= to && c < 0x80; c++)
        if (mox_char_is_common(c)) return true;
    return to >= 0x80 && (from < 0x2000 || to > 0x2FFF);
}

/* What characters that begin with a byte lead to, when it is the same for all. */
static uint16_t follow_byte(const mox_dfa *d, uint32_t state, uint32_t byte)
{
    const uint16_t *next = d->next + (size_t)state * d->n_classes;
    if (byte < 0x80) return next[d->classes[mox_dfa_run(d, byte)]];
    if (byte < 0xC0) return (uint16_t)state;
    if (byte < 0xC2 || byte > 0xF4) return MOX_DFA_DEAD;
    const int more = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    uint32_t from = (byte & (0x3FU >> more)) << (6 * more), to = from | ((1U << (6 * more)) - 1);
    if (byte == 0xE0) from = 0x800;
    if (byte == 0xF0) from = 0x10000;
    if (byte == 0xED) to = SURROGATES - 1;
    if (byte == 0xF4) to = MOX_DFA_CHAR_MAX;
    const uint32_t last = mox_dfa_run(d, to);
    uint32_t run = mox_dfa_run(d, from);
    const uint16_t all = next[d->classes[run]];
    while (run < last && next[d->classes[run + 1]] == all) run++;
    return run == last ? all : MOX_DFA_VARIOUS;
}

static mox_status make_bytes(mox_region *m, mox_dfa *d, mox_dfa_budget *work, mox_err *err)
{
    uint16_t *bytes;
    MOX_TRY(pay(work, (int64_t)d->n_states * 256, err));
    MOX_TRY(take(m, (size_t)d->n_states * 256, sizeof *bytes, &bytes, err));
    for (uint32_t s = 0; s < d->n_states; s++)
        for (uint32_t byte = 0; byte < 256; byte++) bytes[(size_t)s * 256 + byte] = follow_byte(d, s, byte);
    d->bytes = bytes;
    return MOX_OK;
}

static mox_status find_stays(mox_region *m, mox_dfa *d, mox_err *err)
{
    unsigned char *stays, *common;
    MOX_TRY(take(m, d->n_states, 1, &stays, err));
    MOX_TRY(take(m, d->n_classes, 1, &common, err));
    for (uint32_t i = 0; i < d->n_cuts; i++)
        if (run_has_common(d->cuts[i], i + 1 < d->n_cuts ? d->cuts[i + 1] - 1 : MOX_DFA_CHAR_MAX))
            common[d->classes[i]] = 1;
    for (uint32_t s = 0; s < d->n_states; s++) {
        stays[s] = MOX_DFA_STAYS_COMMON | MOX_DFA_STAYS_WORD;
        for (uint32_t c = 0; c < d->n_classes; c++)
            if (common[c] && d->next[(size_t)s * d->n_classes + c] != s) stays[s] &= MOX_DFA_STAYS_WORD;
        for (uint32_t byte = 0; byte < 0x80; byte++)
            if (mox_byte_is_word(byte) && d->bytes[(size_t)s * 256 + byte] != s) stays[s] &= MOX_DFA_STAYS_COMMON;
    }
    d->stays = stays;
    return MOX_OK;
}

static mox_status complete(mox_region *m, mox_dfa *d, uint16_t *next, mox_dfa_budget *work, mox_err *err)
{
    d->next = next;
    MOX_TRY(cut_off(m, d, next, work, err));
    MOX_TRY(measure(m, d, next, work, err));
    MOX_TRY(make_bytes(m, d, work, err));
    return find_stays(m, d, err);
}

/* ---- making one --------------------------------------------------------------------- */

static mox_status make_states(maker *m, uint32_t start, bool opposite)
{
    uint16_t first;
    unsigned char *ends;
    begin_set(m);
    reach(m, start, true, false);
    MOX_TRY(find_state(m, &first));
    for (uint32_t s = 0; s < m->n_states; s++) MOX_TRY(follow(m, s));
    MOX_TRY(take(m->memory, m->n_states, 1, &ends, m->err));
    for (uint32_t s = 0; s < m->n_states; s++) ends[s] = ends_here(m, s) != opposite;
    uint16_t *next;
    const size_t n = (size_t)m->n_states * m->out->n_classes;
    MOX_TRY(copy_array(m->memory, m->next.data, n * sizeof *next, &next, m->err));
    mox_dfa *d = m->out;
    d->n_states = m->n_states;
    d->cuts = m->cuts;
    d->classes = m->classes;
    d->ends = ends;
    d->start = first;
    return complete(m->memory, d, next, m->work, m->err);
}

/* opposite: all strings in which the nodes find nothing. */
static mox_status make_dfa(const mox_nfa *nfa, uint32_t start, uint32_t match, bool opposite, mox_dfa_budget *work,
                           const mox_dfa **out, mox_err *err)
{
    maker m = {.nfa = nfa, .memory = nfa->memory, .work = work, .err = err, .match = match};
    const size_t n = nfa->n_nodes;
    MOX_TRY(take(m.memory, 1, sizeof *m.out, &m.out, err));
    MOX_TRY(find_classes(&m));
    MOX_TRY(take(m.memory, TABLE, sizeof *m.table, &m.table, err));
    MOX_TRY(take(m.memory, n, sizeof *m.mark, &m.mark, err));
    MOX_TRY(take(m.memory, n, sizeof *m.stack, &m.stack, err));
    MOX_TRY(take(m.memory, n, sizeof *m.set, &m.set, err));
    const mox_status status = make_states(&m, start, opposite);
    mox_buffer_deinit(&m.pool);
    mox_buffer_deinit(&m.first);
    mox_buffer_deinit(&m.count);
    mox_buffer_deinit(&m.next);
    *out = m.out;
    return status;
}

/* In front of start: any characters. */
static mox_status anywhere(mox_nfa *n, uint32_t start, uint32_t *out, mox_err *err)
{
    uint32_t any = 0, loop = 0;
    MOX_TRY(mox_nfa_add_set(n, NULL, 0, true, &any, err));
    MOX_TRY(mox_nfa_add(n, MOX_NFA_SPLIT, start, start, out, err));
    MOX_TRY(mox_nfa_add(n, MOX_NFA_CHARS, any, *out, &loop, err));
    n->nodes[*out].a = loop;
    return MOX_OK;
}

/* ---- what is kept ---------------------------------------------------------------------- */

/* Everything above is made in a region that is gone afterwards; this is what stays. */
static mox_status keep(mox_region *m, const mox_dfa *made, const mox_dfa **out, mox_err *err)
{
    mox_dfa *d;
    const size_t n = made->n_states;
    MOX_TRY(copy_array(m, made, sizeof *made, &d, err));
    MOX_TRY(copy_array(m, made->cuts, made->n_cuts * sizeof *made->cuts, &d->cuts, err));
    MOX_TRY(copy_array(m, made->classes, made->n_cuts * sizeof *made->classes, &d->classes, err));
    MOX_TRY(copy_array(m, made->next, n * made->n_classes * sizeof *made->next, &d->next, err));
    MOX_TRY(copy_array(m, made->ends, n, &d->ends, err));
    MOX_TRY(copy_array(m, made->longest, n * sizeof *made->longest, &d->longest, err));
    MOX_TRY(copy_array(m, made->stays, n, &d->stays, err));
    MOX_TRY(copy_array(m, made->bytes, n * 256 * sizeof *made->bytes, &d->bytes, err));
    *out = d;
    return MOX_OK;
}

typedef enum what { PATTERN, OTHER_THAN, WITHOUT } what;

static mox_status add_words(mox_nfa *nfa, const mox_dfa_words *words, uint32_t next, uint32_t *out, mox_err *err);

/* Any of the words, or a character that is not for text. */
static mox_status add_unwanted(mox_nfa *nfa, const mox_dfa_words *words, uint32_t match, uint32_t *out, mox_err *err)
{
    static const uint32_t controls[] = {0, '\b', '\v', 0x1F, 0x7F, 0x7F}; /* not the tab and the line feed */
    uint32_t set = 0, control = 0;
    MOX_TRY(add_words(nfa, words, match, out, err));
    MOX_TRY(mox_nfa_add_set(nfa, controls, 6, false, &set, err));
    MOX_TRY(mox_nfa_add(nfa, MOX_NFA_CHARS, set, match, &control, err));
    return mox_nfa_add(nfa, MOX_NFA_SPLIT, control, *out, out, err);
}

static mox_status make_in(mox_region *scratch, what kind, const mox_dfa_words *words, mox_dfa_budget *work,
                          const mox_dfa **out, mox_err *err)
{
    mox_nfa nfa;
    uint32_t match = 0, at = 0;
    MOX_TRY(mox_nfa_init(&nfa, scratch, err));
    MOX_TRY(mox_nfa_add(&nfa, MOX_NFA_MATCH, 0, 0, &match, err));
    if (kind == OTHER_THAN) {
        MOX_TRY(mox_nfa_add(&nfa, MOX_NFA_END, 0, match, &at, err));
        MOX_TRY(add_words(&nfa, words, at, &at, err));
    } else {
        if (kind == PATTERN)
            MOX_TRY(mox_nfa_parse(&nfa, words->v[0], words->n[0], match, &at, err));
        else
            MOX_TRY(add_unwanted(&nfa, words, match, &at, err));
        MOX_TRY(anywhere(&nfa, at, &at, err));
    }
    return make_dfa(&nfa, at, match, kind != PATTERN, work, out, err);
}

static mox_status make_kept(mox_region *m, what kind, const mox_dfa_words *words, mox_dfa_budget *work,
                            const mox_dfa **out, mox_err *err)
{
    mox_region scratch = {.bytes_max = SCRATCH_BYTES_MAX};
    mox_status status = make_in(&scratch, kind, words, work, out, err);
    if (status == MOX_OK) status = keep(m, *out, out, err);
    mox_region_deinit(&scratch);
    return status;
}

mox_status mox_dfa_pattern(mox_region *m, const char *pattern, size_t n, mox_dfa_budget *work, const mox_dfa **out,
                           mox_err *err)
{
    return make_kept(m, PATTERN, &(mox_dfa_words){.v = &pattern, .n = &n, .n_words = 1}, work, out, err);
}

mox_status mox_dfa_other_than(mox_region *m, const mox_dfa_words *words, mox_dfa_budget *work, const mox_dfa **out,
                              mox_err *err)
{
    return make_kept(m, OTHER_THAN, words, work, out, err);
}

mox_status mox_dfa_without(mox_region *m, const mox_dfa_words *words, mox_dfa_budget *work, const mox_dfa **out,
                           mox_err *err)
{
    return make_kept(m, WITHOUT, words, work, out, err);
}

static mox_status add_words(mox_nfa *nfa, const mox_dfa_words *words, uint32_t next, uint32_t *out, mox_err *err)
{
    const unsigned char *characters[256];
    *out = next;
    for (size_t i = 0; i < words->n_words; i++) {
        const unsigned char *p = (const unsigned char *)words->v[i], *end = p + words->n[i];
        uint32_t at = next, n = 0, c, set = 0;
        for (; p < end && n < 256; p += mox_utf8_next(p, &c)) characters[n++] = p;
        if (p < end) return mox_fail(err, MOX_E_LIMIT, "has a name of more than 256 characters");
        while (n-- > 0) {
            mox_utf8_next(characters[n], &c);
            const uint32_t run[2] = {c, c};
            MOX_TRY(mox_nfa_add_set(nfa, run, 2, false, &set, err));
            MOX_TRY(mox_nfa_add(nfa, MOX_NFA_CHARS, set, at, &at, err));
        }
        if (i == 0)
            *out = at;
        else
            MOX_TRY(mox_nfa_add(nfa, MOX_NFA_SPLIT, at, *out, out, err));
    }
    return MOX_OK;
}

uint32_t mox_dfa_run(const mox_dfa *d, uint32_t c)
{
    uint32_t low = 0, high = d->n_cuts;
    while (high - low > 1) {
        const uint32_t mid = (low + high) / 2;
        if (d->cuts[mid] <= c)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* ---- two at once ---------------------------------------------------------------------- */

typedef struct pairs {      /* numbers for pairs of numbers, in the order in which they come */
    uint32_t *table, *pair; /* [TABLE] number + 1; [n] */
    uint32_t n, n_max;
} pairs;

static mox_status find_pair(pairs *p, uint32_t a, uint32_t b, uint16_t *out, mox_err *err)
{
    const uint32_t key = a << 16 | b;
    uint32_t slot = (uint32_t)((key * 0x9E3779B97F4A7C15u) >> 50) & (TABLE - 1);
    for (; p->table[slot] != 0; slot = (slot + 1) & (TABLE - 1)) {
        *out = (uint16_t)(p->table[slot] - 1);
        if (p->pair[*out] == key) return MOX_OK;
    }
    if (p->n == p->n_max) return too_much(err);
    p->table[slot] = p->n + 1;
    p->pair[p->n] = key;
    *out = (uint16_t)p->n++;
    return MOX_OK;
}

static mox_status init_pairs(pairs *p, mox_region *m, uint32_t n_max, mox_err *err)
{
    *p = (pairs){.n_max = n_max};
    MOX_TRY(take(m, TABLE, sizeof *p->table, &p->table, err));
    return take(m, n_max, sizeof *p->pair, &p->pair, err);
}

static mox_status join_classes(mox_region *m, const mox_dfa *a, const mox_dfa *b, mox_dfa *d, pairs *classes,
                               mox_err *err)
{
    uint32_t *cuts, i = 0, k = 0, n = 0;
    uint16_t *of;
    MOX_TRY(take(m, a->n_cuts + b->n_cuts, sizeof *cuts, &cuts, err));
    MOX_TRY(take(m, a->n_cuts + b->n_cuts, sizeof *of, &of, err));
    while (i < a->n_cuts || k < b->n_cuts) {
        const uint32_t x = i < a->n_cuts ? a->cuts[i] : UINT32_MAX, y = k < b->n_cuts ? b->cuts[k] : UINT32_MAX;
        cuts[n] = x < y ? x : y;
        i += x <= y;
        k += y <= x;
        MOX_TRY(find_pair(classes, a->classes[i - 1], b->classes[k - 1], &of[n], err));
        n++;
    }
    d->cuts = cuts;
    d->classes = of;
    d->n_cuts = n;
    d->n_classes = classes->n;
    return MOX_OK;
}

static mox_status join_states(mox_region *m, const mox_dfa *a, const mox_dfa *b, mox_dfa *d, const pairs *classes,
                              mox_buffer *next, mox_dfa_budget *work, mox_err *err)
{
    pairs states;
    unsigned char *ends;
    MOX_TRY(init_pairs(&states, m, MOX_DFA_STATES_MAX, err));
    MOX_TRY(take(m, MOX_DFA_STATES_MAX, 1, &ends, err));
    MOX_TRY(find_pair(&states, a->start, b->start, &d->start, err));
    for (uint32_t s = 0; s < states.n; s++) {
        const uint32_t x = states.pair[s] >> 16, y = states.pair[s] & 0xFFFF;
        MOX_TRY(pay(work, 4 * (int64_t)classes->n, err));
        MOX_TRY(mox_buffer_reserve(next, (size_t)(s + 1) * classes->n, sizeof(uint16_t), "a pattern", err));
        ends[s] = a->ends[x] && b->ends[y];
        for (uint32_t c = 0; c < classes->n; c++) {
            const uint16_t to_x = a->next[(size_t)x * a->n_classes + (classes->pair[c] >> 16)];
            const uint16_t to_y = b->next[(size_t)y * b->n_classes + (classes->pair[c] & 0xFFFF)];
            uint16_t to = MOX_DFA_DEAD;
            if (to_x != MOX_DFA_DEAD && to_y != MOX_DFA_DEAD) MOX_TRY(find_pair(&states, to_x, to_y, &to, err));
            ((uint16_t *)next->data)[(size_t)s * classes->n + c] = to;
        }
    }
    d->n_states = states.n;
    d->ends = ends;
    return MOX_OK;
}

static mox_status both_in(mox_region *m, const mox_dfa *a, const mox_dfa *b, mox_dfa_budget *work, const mox_dfa **out,
                          mox_err *err)
{
    mox_dfa *d;
    pairs classes;
    mox_buffer next = {0};
    MOX_TRY(take(m, 1, sizeof *d, &d, err));
    MOX_TRY(init_pairs(&classes, m, CLASSES_MAX, err));
    MOX_TRY(join_classes(m, a, b, d, &classes, err));
    mox_status status = join_states(m, a, b, d, &classes, &next, work, err);
    uint16_t *copy = NULL;
    if (status == MOX_OK)
        status = copy_array(m, next.data, (size_t)d->n_states * d->n_classes * sizeof *copy, &copy, err);
    if (status == MOX_OK) status = complete(m, d, copy, work, err);
    mox_buffer_deinit(&next);
    *out = d;
    return status;
}

mox_status mox_dfa_both(mox_region *m, const mox_dfa *a, const mox_dfa *b, mox_dfa_budget *work, const mox_dfa **out,
                        mox_err *err)
{
    mox_region scratch = {.bytes_max = SCRATCH_BYTES_MAX};
    *out = a->start == MOX_DFA_DEAD ? a : b;
    if (a->start == MOX_DFA_DEAD || b->start == MOX_DFA_DEAD) return MOX_OK;
    mox_status status = both_in(&scratch, a, b, work, out, err);
    if (status == MOX_OK) status = keep(m, *out, out, err);
    mox_region_deinit(&scratch);
    return status;
}

/* ---- lengths ---------------------------------------------------------------------------- */

mox_status mox_dfa_reach(mox_region *m, const mox_dfa *d, uint32_t min, uint32_t max, mox_dfa_budget *work,
                         const uint64_t **out, mox_err *err)
{
    const size_t n = d->n_states, k = d->n_classes, width = (size_t)max + 1;
    uint64_t *bits;
    if (width > REACH_BITS_MAX / n) return mox_fail(err, MOX_E_LIMIT, "is too complicated beside that maxLength");
    MOX_TRY(pay(work, (int64_t)(n * width * k / 4), err));
    MOX_TRY(take(m, n * width / 64 + 1, sizeof *bits, &bits, err));
    for (size_t at = width; at-- > 0;) {
        for (size_t s = 0; s < n; s++) {
            bool good = d->ends[s] && at >= min;
            for (size_t c = 0; c < k && !good && at + 1 < width; c++) {
                const size_t t = d->next[s * k + c];
                const size_t bit = t * width + at + 1;
                good = t != MOX_DFA_DEAD && (bits[bit / 64] >> (bit % 64) & 1);
            }
            const size_t bit = s * width + at;
            if (good) bits[bit / 64] |= (uint64_t)1 << (bit % 64);
        }
    }
    *out = bits;
    return MOX_OK;
}
