/* text/grammar_build.c -- the builder: nodes, and what is found out about them at the end.
 *
 * finish() settles three things for good: that no rule reaches itself without taking a byte
 * (walking would not end), that there is a text at all, and how deep the shallowest way from
 * every node goes.  The last two are one computation: a node from which no text comes has no
 * height. */
#include "text/grammar.h"

#include "base/alloc.h"
#include "text/grammar_step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORK_MAX = 60 * 1000 * 1000, EMPTY_REPEAT_MAX = 256 };

void mox_gb_init(mox_gb *b, uint32_t depth_max, mox_err *err)
{
    *b = (mox_gb){.err = err,
                  .any_value = MOX_GRAMMAR_NO_MAX,
                  .any_object = MOX_GRAMMAR_NO_MAX,
                  .any_array = MOX_GRAMMAR_NO_MAX,
                  .bad_rule = MOX_GRAMMAR_NO_MAX,
                  .work = {WORK_MAX}};
    b->g = mox_alloc_array(1, sizeof *b->g);
    if (!b->g) {
        b->status = mox_fail_memory(err, sizeof *b->g, "a grammar");
        return;
    }
    b->g->depth_max = depth_max;
    b->g->memory.bytes_max = MOX_GRAMMAR_BYTES_MAX;
    mox_gb_split(b, NULL, 0); /* node 0: nothing */
    b->returns = mox_gb_split(b, NULL, 0);
    if (b->status == MOX_OK) ((mox_gnode *)b->g->nodes.data)[b->returns].op = MOX_G_RETURN;
}

void mox_grammar_destroy(mox_grammar **grammar)
{
    mox_grammar *g = *grammar;
    if (!g) return;
    mox_buffer *const buffers[] = {&g->nodes, &g->targets, &g->sets, &g->ranges, &g->strings, &g->repeats, &g->rules};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) mox_buffer_deinit(buffers[i]);
    mox_region_deinit(&g->memory);
    mox_free(g);
    *grammar = NULL;
}

uint32_t mox_gb_fail(mox_gb *b, mox_status status, const char *format, ...)
{
    if (b->status != MOX_OK) return 0;
    char sentence[sizeof b->err->msg];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    b->status = mox_fail(b->err, status, "%s", sentence);
    return 0;
}

void mox_gb_check_work(mox_gb *b)
{
    if (b->work.left < 0) mox_gb_fail(b, MOX_E_LIMIT, "the grammar is too complicated");
}

void *mox_gb_take(mox_gb *b, size_t bytes)
{
    void *memory;
    if (b->status != MOX_OK) return NULL;
    b->status = mox_region_take(&b->g->memory, bytes + 1, &memory, b->err);
    if (b->status != MOX_OK) return NULL;
    memset(memory, 0, bytes + 1);
    return memory;
}

/* ---- nodes ------------------------------------------------------------------ */

/* Room for one more element; NULL after a failure. */
static void *grow(mox_gb *b, mox_buffer *buffer, uint32_t n, size_t size)
{
    if (b->status == MOX_OK) b->status = mox_buffer_reserve(buffer, (size_t)n + 1, size, "a grammar", b->err);
    return b->status == MOX_OK ? (char *)buffer->data + (size_t)n * size : NULL;
}

static uint32_t add_node(mox_gb *b, mox_gop op, uint32_t a, uint32_t next)
{
    if (b->status != MOX_OK) return 0;
    mox_grammar *g = b->g;
    if (g->n_nodes == MOX_GRAMMAR_NODES_MAX)
        return mox_gb_fail(b, MOX_E_LIMIT, "the grammar is too large: it needs more than %d nodes",
                           MOX_GRAMMAR_NODES_MAX);
    mox_gnode *node = grow(b, &g->nodes, g->n_nodes, sizeof *node);
    if (!node) return 0;
    *node = (mox_gnode){.op = (uint8_t)op, .nest = b->nest, .height = MOX_GRAMMAR_NEVER, .a = a, .next = next};
    return g->n_nodes++;
}

uint32_t mox_gb_byte(mox_gb *b, unsigned char byte, uint32_t next) { return add_node(b, MOX_G_BYTE, byte, next); }

uint32_t mox_gb_text(mox_gb *b, const char *text, size_t n, uint32_t next)
{
    while (n-- > 0 && b->status == MOX_OK) next = mox_gb_byte(b, (unsigned char)text[n], next);
    return next;
}

uint32_t mox_gb_word(mox_gb *b, const char *text, uint32_t next) { return mox_gb_text(b, text, strlen(text), next); }

uint32_t mox_gb_marker(mox_gb *b, const char *text, uint32_t next)
{
    const uint32_t node = mox_gb_word(b, text, next);
    if (b->status == MOX_OK) ((mox_gnode *)b->g->nodes.data)[node].mark = 1;
    return node;
}

uint32_t mox_gb_set(mox_gb *b, const char *bytes, uint32_t next)
{
    mox_gset set = {{0}};
    for (const unsigned char *p = (const unsigned char *)bytes; *p; p += 2)
        for (unsigned c = p[0]; c <= p[1]; c++) set.bits[c / 64] |= (uint64_t)1 << (c % 64);
    mox_gset *all = b->g ? b->g->sets.data : NULL;
    uint32_t i = 0;
    while (b->status == MOX_OK && i < b->g->n_sets && memcmp(&all[i], &set, sizeof set) != 0) i++;
    if (b->status == MOX_OK && i == b->g->n_sets) {
        mox_gset *slot = grow(b, &b->g->sets, i, sizeof set);
        if (!slot) return 0;
        *slot = set;
        b->g->n_sets++;
    }
    return add_node(b, MOX_G_SET, i, next);
}

uint32_t mox_gb_char(mox_gb *b, mox_granges ranges, uint32_t next)
{
    if (b->status != MOX_OK) return 0;
    mox_granges *slot = grow(b, &b->g->ranges, b->g->n_ranges, sizeof ranges);
    if (!slot) return 0;
    *slot = ranges;
    return add_node(b, MOX_G_CHAR, b->g->n_ranges++, next);
}

uint32_t mox_gb_string(mox_gb *b, const mox_gstring *s, uint32_t next)
{
    if (b->status != MOX_OK) return 0;
    mox_gstring *slot = grow(b, &b->g->strings, b->g->n_strings, sizeof *s);
    if (!slot) return 0;
    *slot = *s;
    if (s->dfa && s->dfa->start != MOX_DFA_DEAD && s->max != MOX_GRAMMAR_NO_MAX) {
        mox_err local = {0};
        const mox_status status = mox_dfa_reach(&b->g->memory, s->dfa, s->min, s->max, &b->work, &slot->reach, &local);
        if (status != MOX_OK)
            return mox_gb_fail(b, status, status == MOX_E_MEMORY ? "%s" : "the schema has a pattern that %s",
                               local.msg);
    }
    return mox_gstep_possible(slot) ? add_node(b, MOX_G_STRING, b->g->n_strings++, next) : 0;
}

uint32_t mox_gb_ws(mox_gb *b, uint32_t next) { return add_node(b, MOX_G_WS, 0, next); }

uint32_t mox_gb_split(mox_gb *b, const uint32_t *targets, uint32_t n)
{
    if (n == 1) return targets[0];
    if (b->status != MOX_OK) return 0;
    mox_grammar *g = b->g;
    const uint32_t first = g->n_targets;
    for (uint32_t i = 0; i <= n; i++) {
        uint32_t *slot = grow(b, &g->targets, g->n_targets, sizeof *slot);
        if (!slot) return 0;
        *slot = i == 0 ? n : targets[i - 1];
        g->n_targets++;
    }
    return add_node(b, n == 0 ? MOX_G_FAIL : MOX_G_SPLIT, first, 0);
}

uint32_t mox_gb_either(mox_gb *b, uint32_t one, uint32_t other)
{
    const uint32_t both[] = {one, other};
    return one == other ? one : mox_gb_split(b, both, 2);
}

uint32_t mox_gb_repeat(mox_gb *b, uint32_t body, uint32_t min, uint32_t max, uint32_t next)
{
    if (b->status != MOX_OK) return 0;
    mox_grepeat *slot = grow(b, &b->g->repeats, b->g->n_repeats, sizeof *slot);
    if (!slot) return 0;
    *slot = (mox_grepeat){body, min, max};
    return add_node(b, MOX_G_REPEAT, b->g->n_repeats++, next);
}

uint32_t mox_gb_rule(mox_gb *b)
{
    if (b->status != MOX_OK) return 0;
    if (b->g->n_rules == MOX_GRAMMAR_RULES_MAX)
        return mox_gb_fail(b, MOX_E_LIMIT, "the grammar is too large: it needs more than %d rules",
                           MOX_GRAMMAR_RULES_MAX);
    uint32_t *slot = grow(b, &b->g->rules, b->g->n_rules, sizeof *slot);
    if (!slot) return 0;
    *slot = 0;
    return b->g->n_rules++;
}

void mox_gb_define(mox_gb *b, uint32_t rule, uint32_t start)
{
    if (b->status == MOX_OK) ((uint32_t *)b->g->rules.data)[rule] = start;
}

uint32_t mox_gb_call(mox_gb *b, uint32_t rule, uint32_t next) { return add_node(b, MOX_G_CALL, rule, next); }

/* ---- one of many texts -------------------------------------------------------- */

static int compare_texts(const void *a, const void *b)
{
    const mox_gtext *x = a, *y = b;
    const int order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);
    return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

/* Sorted texts that agree in their first `depth` bytes, from there on. */
static uint32_t share(mox_gb *b, const mox_gtext *texts, size_t n, size_t depth, uint32_t next)
{
    size_t same = depth; /* where they part; the first and the last show it for all */
    const mox_gtext *first = &texts[0], *last = &texts[n - 1];
    while (same < first->n && same < last->n && first->text[same] == last->text[same]) same++;
    uint32_t ways[257] = {0}, n_ways = 0;
    size_t i = 0;
    while (i < n && texts[i].n == same) i++;
    if (i > 0) ways[n_ways++] = next;
    while (i < n && b->status == MOX_OK) {
        size_t end = i + 1;
        while (end < n && texts[end].text[same] == texts[i].text[same]) end++;
        const uint32_t rest = share(b, texts + i, end - i, same + 1, next);
        ways[n_ways++] = mox_gb_byte(b, (unsigned char)texts[i].text[same], rest);
        i = end;
    }
    return mox_gb_text(b, first->text + depth, same - depth, mox_gb_split(b, ways, n_ways));
}

uint32_t mox_gb_texts(mox_gb *b, mox_gtext *texts, size_t n, uint32_t next)
{
    if (n == 0 || b->status != MOX_OK) return 0;
    qsort(texts, n, sizeof *texts, compare_texts);
    return share(b, texts, n, 0, next);
}

/* ---- finishing ------------------------------------------------------------------- */

typedef struct check {
    mox_grammar *g;
    unsigned char *empty; /* [nodes] the end of the rule can be reached without a byte */
} check;

static bool is_empty(const check *c, uint32_t node) { return c->empty[node]; }
static uint32_t rule_start(const mox_grammar *g, uint32_t rule) { return ((const uint32_t *)g->rules.data)[rule]; }
static const mox_grepeat *repeat_of(const mox_grammar *g, const mox_gnode *node)
{
    return (const mox_grepeat *)g->repeats.data + node->a;
}

static bool string_may_be_empty(const mox_grammar *g, const mox_gnode *node)
{
    const mox_gstring *s = (const mox_gstring *)g->strings.data + node->a;
    return s->min == 0 && (!s->dfa || s->dfa->ends[s->dfa->start]);
}

static bool find_empty(const check *c, const mox_gnode *node)
{
    const uint32_t *targets = c->g->targets.data;
    switch (node->op) {
    case MOX_G_RETURN:
    case MOX_G_END: return true;
    case MOX_G_WS: return is_empty(c, node->next);
    case MOX_G_STRING: return string_may_be_empty(c->g, node) && is_empty(c, node->next);
    case MOX_G_CALL: return is_empty(c, rule_start(c->g, node->a)) && is_empty(c, node->next);
    case MOX_G_REPEAT:
        return (repeat_of(c->g, node)->min == 0 || is_empty(c, repeat_of(c->g, node)->body)) && is_empty(c, node->next);
    case MOX_G_SPLIT:
        for (uint32_t i = 1; i <= targets[node->a]; i++)
            if (is_empty(c, targets[node->a + i])) return true;
        return false;
    default: return false;
    }
}

/* Passes are repeated until nothing changes: each is paid for. */
static bool pay_for_pass(mox_gb *b)
{
    b->work.left -= b->g->n_nodes;
    mox_gb_check_work(b);
    return b->status == MOX_OK;
}

static void find_all_empty(check *c, mox_gb *b)
{
    for (bool again = true; again && pay_for_pass(b);) {
        again = false;
        for (uint32_t i = 0; i < c->g->n_nodes; i++) {
            if (c->empty[i] || !find_empty(c, mox_gnode_at(c->g, i))) continue;
            c->empty[i] = 1;
            again = true;
        }
    }
}

/* Something that may be empty, counted, would be walked through without a byte. */
static void loosen_repeats(check *c, mox_gb *b)
{
    mox_grepeat *repeats = c->g->repeats.data;
    for (uint32_t i = 0; i < c->g->n_repeats; i++) {
        if (!is_empty(c, repeats[i].body)) continue;
        repeats[i].min = 0;
        if (repeats[i].max == MOX_GRAMMAR_NO_MAX || repeats[i].max <= EMPTY_REPEAT_MAX) continue;
        mox_gb_fail(b, MOX_E_ARG, "something that may be empty is repeated up to %u times: %d is the most",
                    repeats[i].max, EMPTY_REPEAT_MAX);
    }
}

/* Puts what a node leads to without a byte into out; how many. */
static uint32_t leads_to(const check *c, const mox_gnode *node, uint32_t *out, uint32_t i)
{
    const uint32_t *targets = c->g->targets.data;
    switch (node->op) {
    case MOX_G_SPLIT:
        if (i >= targets[node->a]) return 0;
        *out = targets[node->a + 1 + i];
        return 1;
    case MOX_G_WS: *out = node->next; return i == 0;
    case MOX_G_STRING: *out = node->next; return i == 0 && string_may_be_empty(c->g, node);
    case MOX_G_CALL:
        *out = i == 0 ? rule_start(c->g, node->a) : node->next;
        return i == 0 || (i == 1 && is_empty(c, rule_start(c->g, node->a)));
    case MOX_G_REPEAT:
        *out = i == 0 ? repeat_of(c->g, node)->body : node->next;
        return i == 0 || (i == 1 && (repeat_of(c->g, node)->min == 0 || is_empty(c, repeat_of(c->g, node)->body)));
    default: return 0;
    }
}

typedef struct visit {
    uint32_t node, way;
} visit;

/* Looks for a way in a circle that takes no byte.  Repetitions do not count: a body ends in a
 * return, and what comes back to the same place is not walked again. */
static mox_status find_circles(check *c, mox_gb *b)
{
    const uint32_t n = c->g->n_nodes;
    visit *stack = mox_alloc_array(n, sizeof *stack);
    unsigned char *color = mox_alloc_array(n, 1);
    mox_status status = MOX_OK;
    if (!stack || !color) status = mox_fail_memory(b->err, n * sizeof *stack, "a grammar");
    for (uint32_t from = 0; from < n && status == MOX_OK; from++) {
        uint32_t top = 0;
        if (color[from] != 0) continue;
        color[from] = 1;
        stack[top++] = (visit){from, 0};
        while (top > 0 && status == MOX_OK) {
            visit *v = &stack[top - 1];
            uint32_t to;
            if (!leads_to(c, mox_gnode_at(c->g, v->node), &to, v->way++)) {
                color[v->node] = 2;
                top--;
            } else if (color[to] == 1) {
                while (top > 1 && mox_gnode_at(c->g, stack[top - 1].node)->op != MOX_G_CALL) top--;
                b->bad_rule = mox_gnode_at(c->g, stack[top - 1].node)->a;
                status = mox_fail(b->err, MOX_E_ARG,
                                  "a rule begins with itself (left recursion), and would never come to an end");
            } else if (color[to] == 0) {
                color[to] = 1;
                stack[top++] = (visit){to, 0};
            }
        }
    }
    mox_free(stack);
    mox_free(color);
    return status;
}

static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }
static uint32_t height_at(const mox_grammar *g, uint32_t node) { return mox_gnode_at(g, node)->height; }

static uint32_t find_height(const mox_grammar *g, const mox_gnode *node)
{
    const uint32_t *targets = g->targets.data;
    const mox_grepeat *r;
    uint32_t best = MOX_GRAMMAR_NEVER;
    switch (node->op) {
    case MOX_G_FAIL: return MOX_GRAMMAR_NEVER;
    case MOX_G_RETURN:
    case MOX_G_END: return 0;
    case MOX_G_SPLIT:
        for (uint32_t i = 1; i <= targets[node->a]; i++)
            if (height_at(g, targets[node->a + i]) < best) best = height_at(g, targets[node->a + i]);
        return best;
    case MOX_G_CALL: return larger(node->nest + height_at(g, rule_start(g, node->a)), height_at(g, node->next));
    case MOX_G_REPEAT:
        r = repeat_of(g, node);
        return r->min == 0 ? height_at(g, node->next) : larger(height_at(g, r->body), height_at(g, node->next));
    default: return larger(node->nest, height_at(g, node->next));
    }
}

static void measure(mox_gb *b)
{
    mox_grammar *g = b->g;
    mox_gnode *nodes = g->nodes.data;
    for (bool again = true; again && pay_for_pass(b);) {
        again = false;
        for (uint32_t i = 0; i < g->n_nodes; i++) {
            const uint32_t height = find_height(g, &nodes[i]);
            if (height > g->depth_max || height >= nodes[i].height) continue;
            nodes[i].height = (uint16_t)height;
            again = true;
        }
    }
}

/* What is called last need not come back: a rule that ends with itself is a loop then. */
static void find_tail_calls(mox_gb *b)
{
    mox_grammar *g = b->g;
    const uint32_t n = g->n_nodes;
    for (uint32_t i = 0; i < n && b->status == MOX_OK; i++) {
        const mox_gnode *node = mox_gnode_at(g, i);
        if (node->op != MOX_G_CALL || mox_gnode_at(g, node->next)->op != MOX_G_RETURN) continue;
        const uint32_t start = rule_start(g, node->a), first = g->n_targets, pair[] = {1, start};
        for (int k = 0; k < 2; k++) {
            uint32_t *slot = grow(b, &g->targets, g->n_targets, sizeof *slot);
            if (!slot) return;
            *slot = pair[k];
            g->n_targets++;
        }
        mox_gnode *changed = (mox_gnode *)g->nodes.data + i;
        changed->op = MOX_G_SPLIT;
        changed->a = first;
    }
}

static void check_all(mox_gb *b)
{
    check c = {.g = b->g};
    c.empty = mox_alloc_array(b->g->n_nodes, 1);
    if (!c.empty) {
        b->status = mox_fail_memory(b->err, b->g->n_nodes, "a grammar");
        return;
    }
    find_all_empty(&c, b);
    if (b->status == MOX_OK) loosen_repeats(&c, b);
    if (b->status == MOX_OK) b->status = find_circles(&c, b);
    mox_free(c.empty);
}

mox_status mox_gb_finish(mox_gb *b, uint32_t root, mox_grammar **out)
{
    *out = NULL;
    if (b->status == MOX_OK) {
        const uint32_t rule = mox_gb_rule(b);
        mox_gb_define(b, rule, root);
        const uint32_t end = add_node(b, MOX_G_END, 0, 0);
        b->nest = 0;
        const uint32_t start = mox_gb_call(b, rule, end);
        const uint32_t after = mox_gb_repeat(b, mox_gb_byte(b, '\n', b->returns), 0, 2, start);
        if (b->status == MOX_OK) {
            b->g->start = start;
            b->g->start_after_thinking = after;
        }
    }
    if (b->status == MOX_OK) check_all(b);
    if (b->status == MOX_OK) {
        find_tail_calls(b);
        measure(b);
    }
    if (b->status == MOX_OK && mox_gnode_at(b->g, b->g->start)->height == MOX_GRAMMAR_NEVER)
        mox_gb_fail(b, MOX_E_ARG, "no text can be like this: what is asked for contradicts itself, or never ends");
    if (b->status != MOX_OK) mox_grammar_destroy(&b->g);
    *out = b->g;
    b->g = NULL;
    return b->status;
}
