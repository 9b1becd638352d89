/* text/grammar_regex.c -- regular expressions of ECMAScript, as far as they are regular.
 *
 * Understood: characters, `.`, classes with ranges, \d \D \w \W \s \S, the escapes for control
 * characters, \xHH, \uHHHH, \u{H}, groups of all kinds that capture or do not, |, ^, $, and the
 * quantifiers * + ? {m} {m,} {m,n}, greedy or lazy, which is the same where only the text counts.
 * Refused by name: looking ahead and behind, references back, \b and \B, \p.
 *
 * Where engines disagree on what a class holds, the part that all agree on is taken: \s is the
 * blanks of ASCII.  Its opposite leaves out all blanks of Unicode.
 *
 * A pattern becomes a tree first, because a counted part is made several times. */
#include "text/grammar_dfa.h"

#include "base/buffer.h"
#include "base/plant.h"
#include "base/utf8.h"

#include <string.h>

enum { TREE_DEPTH_MAX = 64, TREE_NODES_MAX = 1 << 14, COUNT_MAX = 10000, PATTERN_BYTES_MAX = 1 << 14, MADE_MAX = 1 << 20 };
enum { T_SEQ, T_ALT, T_SET, T_REPEAT, T_BEGIN, T_END };
#define NO_MAX UINT32_MAX

typedef struct tree {
    uint8_t type;
    uint32_t set, min, max;
    struct tree *last, *prev; /* last child, and the child before */
} tree;

typedef struct parser {
    mox_nfa *nfa;
    const unsigned char *at, *end, *begin;
    int depth;
    uint32_t n_trees, n_made;
    mox_err *err;
} parser;

static mox_status bad(const parser *p, const char *what)
{
    return mox_fail(p->err, MOX_E_ARG, "%s at byte %zu", what, (size_t)(p->at - p->begin));
}

static mox_status new_tree(parser *p, int type, tree **out)
{
    if (++p->n_trees > TREE_NODES_MAX) return mox_fail(p->err, MOX_E_LIMIT, "is too long");
    void *memory;
    MOX_TRY(mox_region_take(p->nfa->memory, sizeof(tree), &memory, p->err));
    *out = memory;
    **out = (tree){.type = (uint8_t)type};
    return MOX_OK;
}

static void add_child(tree *parent, tree *child)
{
    child->prev = parent->last;
    parent->last = child;
}

/* ---- characters ------------------------------------------------------------- */

static const uint32_t digits[] = {'0', '9'};
static const uint32_t words[] = {'0', '9', 'A', 'Z', '_', '_', 'a', 'z'};
static const uint32_t blanks[] = {'\t', '\r', ' ', ' '};
static const uint32_t all_blanks[] = {'\t',   '\r',   0x1C,   ' ',    0x85,   0x85,   0xA0,   0xA0,
                                      0x1680, 0x1680, 0x2000, 0x200A, 0x2028, 0x2029, 0x202F, 0x202F,
                                      0x205F, 0x205F, 0x3000, 0x3000, 0xFEFF, 0xFEFF};
static const uint32_t line_ends[] = {'\n', '\n', '\r', '\r', 0x2028, 0x2029};

typedef struct runs { /* of a class, before it is a set */
    mox_buffer v;
    uint32_t n;
} runs;

static mox_status add_run(const parser *p, runs *r, uint32_t from, uint32_t to)
{
    MOX_TRY(mox_buffer_reserve(&r->v, r->n + 2, sizeof(uint32_t), "a pattern", p->err));
    uint32_t *v = r->v.data;
    v[r->n++] = from;
    v[r->n++] = to;
    return MOX_OK;
}

static mox_status add_runs(const parser *p, runs *r, const uint32_t *v, size_t n, bool negated)
{
    uint32_t from = 0;
    for (size_t i = 0; i < n; i += 2) {
        if (!negated)
            MOX_TRY(add_run(p, r, v[i], v[i + 1]));
        else if (v[i] > from)
            MOX_TRY(add_run(p, r, from, v[i] - 1));
        from = v[i + 1] + 1;
    }
    return negated ? add_run(p, r, from, MOX_DFA_CHAR_MAX) : MOX_OK;
}

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* \d and the like into r; *taken: it was one. */
static mox_status read_class_escape(parser *p, runs *r, bool *taken)
{
    *taken = true;
    switch (*p->at++) {
    case 'd': return add_runs(p, r, digits, COUNT(digits), false);
    case 'D': return add_runs(p, r, digits, COUNT(digits), true);
    case 'w': return add_runs(p, r, words, COUNT(words), false);
    case 'W': return add_runs(p, r, words, COUNT(words), true);
    case 's': return add_runs(p, r, blanks, COUNT(blanks), false);
    case 'S': return add_runs(p, r, all_blanks, COUNT(all_blanks), true);
    default: break;
    }
    p->at--;
    *taken = false;
    return MOX_OK;
}

static mox_status read_hex(parser *p, int n_max, bool exactly, uint32_t *out)
{
    int n = 0;
    for (*out = 0; n < n_max && p->at < p->end; n++, p->at++) {
        const int c = *p->at;
        const int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (d < 0) break;
        *out = *out * 16 + (uint32_t)d;
    }
    return n == 0 || (exactly && n != n_max) ? bad(p, "has an escape without its hexadecimal digits") : MOX_OK;
}

static mox_status read_unicode_escape(parser *p, uint32_t *out)
{
    if (p->at < p->end && *p->at == '{') {
        p->at++;
        MOX_TRY(read_hex(p, 6, false, out));
        if (p->at == p->end || *p->at != '}') return bad(p, "has \\u{ without }");
        p->at++;
    } else {
        MOX_TRY(read_hex(p, 4, true, out));
        if (*out >= 0xD800 && *out < 0xDC00 && p->end - p->at >= 6 && p->at[0] == '\\' && p->at[1] == 'u') {
            uint32_t low;
            p->at += 2;
            MOX_TRY(read_hex(p, 4, true, &low));
            if (low >= 0xDC00 && low < 0xE000) *out = 0x10000 + ((*out - 0xD800) << 10) + (low - 0xDC00);
        }
    }
    return *out > MOX_DFA_CHAR_MAX || (*out >= 0xD800 && *out < 0xE000) ? bad(p, "has an escape that is no character")
                                                                        : MOX_OK;
}

/* The character behind a backslash. */
static mox_status read_escape(parser *p, uint32_t *out)
{
    static const char names[] = "tnrfv0", means[] = "\t\n\r\f\v\0";
    const unsigned char c = *p->at;
    const char *name = c ? strchr(names, c) : NULL;
    if (c >= '1' && c <= '9') return bad(p, "refers back to a group, which is not supported,");
    if (c == 'b' || c == 'B') return bad(p, "has \\b or \\B, which is not supported,");
    if (c == 'p' || c == 'P') return bad(p, "has \\p, which is not supported,");
    if (c == 'k') return bad(p, "refers back to a group, which is not supported,");
    p->at++;
    if (name) {
        *out = (unsigned char)means[name - names];
        return MOX_OK;
    }
    if (c == 'x') return read_hex(p, 2, true, out);
    if (c == 'u') return read_unicode_escape(p, out);
    if (c == 'c' && p->at < p->end && ((*p->at | 32) >= 'a' && (*p->at | 32) <= 'z')) {
        *out = *p->at++ & 31U;
        return MOX_OK;
    }
    p->at--;
    p->at += mox_utf8_next(p->at, out);
    return MOX_OK;
}

static mox_status read_char(parser *p, uint32_t *out)
{
    if (*p->at != '\\') {
        p->at += mox_utf8_next(p->at, out);
        return MOX_OK;
    }
    if (++p->at == p->end) return bad(p, "ends in a backslash");
    return read_escape(p, out);
}

/* One member of a class: a character, a range, or \d and the like. */
static mox_status read_member(parser *p, runs *r)
{
    uint32_t from, to;
    bool taken = false;
    if (*p->at == '\\' && p->end - p->at > 1) {
        p->at++;
        MOX_TRY(read_class_escape(p, r, &taken));
        if (taken) return MOX_OK;
        if (*p->at == 'b') { /* inside a class it is a backspace */
            p->at++;
            return add_run(p, r, '\b', '\b');
        }
        p->at--;
    }
    MOX_TRY(read_char(p, &from));
    to = from;
    if (p->end - p->at > 1 && p->at[0] == '-' && p->at[1] != ']') {
        p->at++;
        if (*p->at == '\\' && p->end - p->at > 1 && strchr("dDwWsS", p->at[1]))
            MOX_TRY(add_run(p, r, '-', '-')); /* no range */
        else
            MOX_TRY(read_char(p, &to));
    }
    if (to < from) return bad(p, "has a range that runs backwards");
    return add_run(p, r, from, to);
}

static mox_status read_class(parser *p, uint32_t *set)
{
    runs r = {0};
    mox_status status = MOX_OK;
    bool negated = false;
    p->at++;
    if (p->at < p->end && *p->at == '^') {
        negated = true;
        p->at++;
    }
    while (status == MOX_OK && p->at < p->end && *p->at != ']') status = read_member(p, &r);
    if (status == MOX_OK && p->at == p->end) status = bad(p, "has [ without ]");
    if (status == MOX_OK) p->at++;
    MOX_PLANT(negated && r.n == 14);
    if (status == MOX_OK) status = mox_nfa_add_set(p->nfa, r.v.data, r.n, negated, set, p->err);
    mox_buffer_deinit(&r.v);
    return status;
}

static mox_status read_set(parser *p, uint32_t *set)
{
    runs r = {0};
    uint32_t c;
    bool taken = false;
    mox_status status = MOX_OK;
    if (*p->at == '[') return read_class(p, set);
    if (*p->at == '.') {
        p->at++;
        return mox_nfa_add_set(p->nfa, line_ends, COUNT(line_ends), true, set, p->err);
    }
    if (*p->at == '\\' && p->end - p->at > 1) {
        p->at++;
        status = read_class_escape(p, &r, &taken);
        if (!taken) p->at--;
    }
    if (status == MOX_OK && !taken) status = read_char(p, &c);
    if (status == MOX_OK && !taken) status = add_run(p, &r, c, c);
    if (status == MOX_OK) status = mox_nfa_add_set(p->nfa, r.v.data, r.n, false, set, p->err);
    mox_buffer_deinit(&r.v);
    return status;
}

/* ---- the tree ----------------------------------------------------------------- */

static mox_status read_count(parser *p, uint32_t *out)
{
    for (*out = 0; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++) {
        *out = *out * 10 + (uint32_t)(*p->at - '0');
        if (*out > COUNT_MAX) return mox_fail(p->err, MOX_E_LIMIT, "repeats something more than %d times", COUNT_MAX);
    }
    return MOX_OK;
}

/* A brace that is no quantifier is a character. */
static bool is_braces(const parser *p)
{
    const unsigned char *q = p->at + 1;
    const unsigned char *first = q;
    while (q < p->end && *q >= '0' && *q <= '9') q++;
    if (q == first) return false;
    if (q < p->end && *q == ',') q++;
    while (q < p->end && *q >= '0' && *q <= '9') q++;
    return q < p->end && *q == '}';
}

static mox_status read_quantifier(parser *p, uint32_t *min, uint32_t *max, bool *found)
{
    *found = false;
    if (p->at == p->end) return MOX_OK;
    const unsigned char c = *p->at;
    if (c != '*' && c != '+' && c != '?' && !(c == '{' && is_braces(p))) return MOX_OK;
    *found = true;
    *min = c == '+';
    *max = c == '?' ? 1 : NO_MAX;
    p->at++;
    if (c == '{') {
        MOX_TRY(read_count(p, min));
        *max = *min;
        if (*p->at == ',') {
            p->at++;
            *max = NO_MAX;
            if (*p->at != '}') MOX_TRY(read_count(p, max));
        }
        p->at++;
        if (*max < *min) return bad(p, "has a quantifier with its numbers the wrong way round");
    }
    if (p->at < p->end && *p->at == '?') p->at++; /* lazy: the same strings */
    return MOX_OK;
}

static mox_status read_alternatives(parser *p, tree **out);

static mox_status read_group(parser *p, tree **out)
{
    if (++p->depth > TREE_DEPTH_MAX)
        return mox_fail(p->err, MOX_E_LIMIT, "has more than %d groups inside each other", TREE_DEPTH_MAX);
    p->at++;
    if (p->end - p->at > 1 && *p->at == '?') {
        p->at++;
        if (*p->at == ':') {
            p->at++;
        } else if (*p->at == '<' && p->end - p->at > 1 && p->at[1] != '=' && p->at[1] != '!') {
            while (p->at < p->end && *p->at != '>') p->at++;
            if (p->at < p->end) p->at++;
        } else {
            return bad(p, "looks ahead or behind, or sets flags, which is not supported,");
        }
    }
    MOX_TRY(read_alternatives(p, out));
    if (p->at == p->end || *p->at != ')') return bad(p, "has ( without )");
    p->at++;
    p->depth--;
    return MOX_OK;
}

static mox_status read_term(parser *p, tree **out)
{
    const unsigned char c = *p->at;
    if (c == '(') return read_group(p, out);
    if (c == '^' || c == '$') {
        p->at++;
        return new_tree(p, c == '^' ? T_BEGIN : T_END, out);
    }
    if (c == '*' || c == '+' || c == '?') return bad(p, "has a quantifier with nothing before it");
    MOX_TRY(new_tree(p, T_SET, out));
    return read_set(p, &(*out)->set);
}

static mox_status read_sequence(parser *p, tree **out)
{
    MOX_TRY(new_tree(p, T_SEQ, out));
    while (p->at < p->end && *p->at != '|' && *p->at != ')') {
        tree *term = NULL;
        uint32_t min, max;
        bool found;
        MOX_TRY(read_term(p, &term));
        MOX_TRY(read_quantifier(p, &min, &max, &found));
        if (found) {
            tree *repeat = NULL;
            if (term->type == T_BEGIN || term->type == T_END) return bad(p, "repeats ^ or $");
            MOX_TRY(new_tree(p, T_REPEAT, &repeat));
            repeat->min = min;
            repeat->max = max;
            add_child(repeat, term);
            term = repeat;
        }
        add_child(*out, term);
    }
    return MOX_OK;
}

static mox_status read_alternatives(parser *p, tree **out)
{
    MOX_TRY(new_tree(p, T_ALT, out));
    for (;;) {
        tree *sequence = NULL;
        MOX_TRY(read_sequence(p, &sequence));
        add_child(*out, sequence);
        if (p->at == p->end || *p->at != '|') return MOX_OK;
        p->at++;
    }
}

/* ---- the nodes ---------------------------------------------------------------- */

static mox_status make(parser *p, const tree *t, uint32_t next, uint32_t *out);

static mox_status make_repeat(parser *p, const tree *t, uint32_t next, uint32_t *out)
{
    uint32_t at = next, copies = t->min;
    if (t->max == NO_MAX) {
        uint32_t body;
        MOX_TRY(mox_nfa_add(p->nfa, MOX_NFA_SPLIT, next, next, &at, p->err));
        MOX_TRY(make(p, t->last, at, &body));
        p->nfa->nodes[at].a = body;
        if (copies > 0) {
            at = body;
            copies--;
        }
    }
    for (uint32_t i = t->min; t->max != NO_MAX && i < t->max; i++) {
        MOX_TRY(make(p, t->last, at, &at));
        MOX_TRY(mox_nfa_add(p->nfa, MOX_NFA_SPLIT, next, at, &at, p->err));
    }
    for (; copies > 0; copies--) MOX_TRY(make(p, t->last, at, &at));
    *out = at;
    return MOX_OK;
}

static mox_status make(parser *p, const tree *t, uint32_t next, uint32_t *out)
{
    const tree *child = t->last;
    if (++p->n_made > MADE_MAX) return mox_fail(p->err, MOX_E_LIMIT, "is too complicated"); /* what is empty adds no node, but takes time */
    switch (t->type) {
    case T_SET: return mox_nfa_add(p->nfa, MOX_NFA_CHARS, t->set, next, out, p->err);
    case T_BEGIN: return mox_nfa_add(p->nfa, MOX_NFA_BEGIN, 0, next, out, p->err);
    case T_END: return mox_nfa_add(p->nfa, MOX_NFA_END, 0, next, out, p->err);
    case T_REPEAT: return make_repeat(p, t, next, out);
    case T_SEQ:
        for (; child; child = child->prev) MOX_TRY(make(p, child, next, &next));
        *out = next;
        return MOX_OK;
    default: break;
    }
    uint32_t all, one;
    MOX_TRY(make(p, child, next, &all));
    for (child = child->prev; child; child = child->prev) {
        MOX_TRY(make(p, child, next, &one));
        MOX_TRY(mox_nfa_add(p->nfa, MOX_NFA_SPLIT, all, one, &all, p->err));
    }
    *out = all;
    return MOX_OK;
}

mox_status mox_nfa_parse(mox_nfa *n, const char *pattern, size_t length, uint32_t next, uint32_t *out, mox_err *err)
{
    const unsigned char *begin = (const unsigned char *)pattern;
    parser p = {.nfa = n, .at = begin, .begin = begin, .end = begin + length, .err = err};
    tree *whole = NULL;
    if (length > PATTERN_BYTES_MAX) return mox_fail(err, MOX_E_LIMIT, "has more than %d bytes", PATTERN_BYTES_MAX);
    MOX_TRY(read_alternatives(&p, &whole));
    if (p.at < p.end) return bad(&p, "has ) without (");
    return make(&p, whole, next, out);
}
