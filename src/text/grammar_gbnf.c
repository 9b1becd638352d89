/* text/grammar_gbnf.c -- GBNF, the grammars of llama.cpp.
 *
 *   root  ::= item ("," item){0,9}     # a comment
 *   item  ::= [a-z]+ | "\"" [^"\x00-\x1F]* "\""
 *
 * A rule ends with its line, unless the line ends in | or inside parentheses, or the next one
 * begins with |.  Characters are those of Unicode.  Names are letters, digits, - and _.
 *
 * A rule becomes a tree first, because nodes are made from back to front.  Errors have the
 * line and the column, both counted from 1, columns in bytes. */
#include "text/grammar.h"

#include "base/plant.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 256, TREES_MAX = 1 << 17, CHAR_MAX_VALUE = 0x10FFFF, REPEATS_MAX = 16 };
enum { T_SEQ, T_ALT, T_TEXT, T_CHARS, T_REPEAT, T_RULE };

typedef struct tree {
    uint8_t type;
    struct tree *last, *prev;
    const char *at;   /* in the grammar's text */
    const char *text; /* of a text, or a rule's name */
    size_t n;
    mox_granges chars;
    uint32_t min, max, rule;
} tree;

typedef struct rule {
    const char *name;
    size_t n;
    const char *at; /* where it is defined, or first used */
    tree *body;     /* NULL: not defined yet */
    uint32_t id;
} rule;

typedef struct parser {
    mox_gb *b;
    const char *begin, *at, *end;
    int depth;
    uint32_t n_trees;
    rule *rules; /* [n_rules] */
    uint32_t n_rules;
} parser;

/* ---- errors -------------------------------------------------------------------------- */

static void fail_at(parser *p, const char *at, mox_status status, const char *what, const char *name, size_t n)
{
    size_t line = 1, column = 1;
    for (const char *c = p->begin; c < at; c++) {
        column = *c == '\n' ? 1 : column + 1;
        line += *c == '\n';
    }
    if (n > 64) n = 64;
    mox_gb_fail(p->b, status, "the grammar, line %zu, column %zu: %s%s%.*s%s", line, column, what, name ? " `" : "",
                (int)n, name ? name : "", name ? "`" : "");
}

static void bad(parser *p, const char *what) { fail_at(p, p->at, MOX_E_ARG, what, NULL, 0); }

/* ---- characters ------------------------------------------------------------------------ */

static bool ok(const parser *p) { return p->b->status == MOX_OK; }
static int peek(const parser *p) { return p->at < p->end ? (unsigned char)*p->at : -1; }
static bool is_name(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Blanks and comments; line breaks too where a rule goes on. */
static void skip(parser *p, bool lines)
{
    while (p->at < p->end) {
        if (*p->at == '#') {
            while (p->at < p->end && *p->at != '\n') p->at++;
        } else if (*p->at == ' ' || *p->at == '\t' || (lines && (*p->at == '\n' || *p->at == '\r'))) {
            p->at++;
        } else {
            return;
        }
    }
}

static uint32_t read_hex(parser *p, int digits)
{
    uint32_t value = 0;
    for (; digits > 0; digits--, p->at++) {
        const int c = peek(p);
        const int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (d < 0) {
            bad(p, "an escape has too few hexadecimal digits");
            return 0;
        }
        value = value * 16 + (uint32_t)d;
    }
    if (value > CHAR_MAX_VALUE || (value >= 0xD800 && value < 0xE000)) bad(p, "an escape is no character");
    return value;
}

/* One character of a text or a class. */
static uint32_t read_char(parser *p)
{
    uint32_t c = 0;
    if (peek(p) != '\\') {
        const size_t n = mox_utf8_decode((const unsigned char *)p->at, (size_t)(p->end - p->at), &c);
        if (n == 0) bad(p, "this is no UTF-8");
        p->at += n;
        return c;
    }
    p->at++;
    const int kind = peek(p);
    p->at += kind >= 0;
    switch (kind) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'x': return read_hex(p, 2);
    case 'u': return read_hex(p, 4);
    case 'U': return read_hex(p, 8);
    case '"':
    case '\\':
    case '[':
    case ']':
    case '-':
    case '^':
    case '/': return (uint32_t)kind;
    default:
        p->at -= kind >= 0;
        bad(p, "this escape is not known");
        return 0;
    }
}

/* ---- trees ------------------------------------------------------------------------------- */

static tree *new_tree(parser *p, int type, const char *at)
{
    if (++p->n_trees > TREES_MAX) fail_at(p, at, MOX_E_LIMIT, "the grammar is too large", NULL, 0);
    tree *t = mox_gb_take(p->b, sizeof *t);
    if (!t) return NULL;
    t->type = (uint8_t)type;
    t->at = at;
    return t;
}

static void add_child(tree *parent, tree *child)
{
    if (!parent || !child) return;
    child->prev = parent->last;
    parent->last = child;
}

static tree *read_text(parser *p)
{
    tree *t = new_tree(p, T_TEXT, p->at++);
    const char *close = p->at;
    while (close < p->end && *close != '"' && *close != '\n') close += *close == '\\' && close + 1 < p->end ? 2 : 1;
    char *text = mox_gb_take(p->b, (size_t)(close - p->at) + 4);
    if (!t || !text) return NULL;
    t->text = text;
    while (ok(p) && peek(p) != '"') {
        if (peek(p) < 0 || peek(p) == '\n') {
            fail_at(p, t->at, MOX_E_ARG, "a text has no closing quote", NULL, 0);
            return NULL;
        }
        t->n += mox_utf8_encode(read_char(p), (unsigned char *)text + t->n); /* never longer than its spelling */
    }
    p->at++;
    return t;
}

static int compare_ranges(const void *a, const void *b)
{
    const mox_grange *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

/* In order, joined, and the other way round if negated; surrogates are left out. */
static mox_granges settle(parser *p, mox_grange *v, uint32_t n, bool negated)
{
    uint32_t used = 0, from = 0;
    if (n > 0) qsort(v, n, sizeof *v, compare_ranges);
    for (uint32_t i = 0; i < n; i++) {
        if (used > 0 && v[i].from <= v[used - 1].to + 1) {
            if (v[i].to > v[used - 1].to) v[used - 1].to = v[i].to;
        } else {
            v[used++] = v[i];
        }
    }
    mox_grange *out = mox_gb_take(p->b, (used + 3) * sizeof *out);
    if (!out) return (mox_granges){0};
    uint32_t n_out = 0;
    for (uint32_t i = 0; i <= used; i++) {
        mox_grange r = i < used ? v[i] : (mox_grange){CHAR_MAX_VALUE + 1, CHAR_MAX_VALUE};
        if (negated) {
            const mox_grange gap = {from, r.from - 1};
            from = r.to + 1;
            r = gap;
        }
        if (r.from > r.to || r.to > CHAR_MAX_VALUE) continue;
        if (r.from < 0xD800 && r.to >= 0xD800) {
            out[n_out++] = (mox_grange){r.from, 0xD7FF};
            r.from = 0xE000;
        }
        if (r.from >= 0xD800 && r.from < 0xE000) r.from = 0xE000;
        if (r.from <= r.to) out[n_out++] = r;
    }
    return (mox_granges){out, n_out};
}

static tree *read_chars(parser *p)
{
    tree *t = new_tree(p, T_CHARS, p->at++);
    const bool negated = peek(p) == '^';
    uint32_t n = 0;
    p->at += negated;
    const char *close = p->at;
    while (close < p->end && *close != ']') close += 1 + (*close == '\\');
    mox_grange *v = mox_gb_take(p->b, (size_t)(close - p->at + 1) * sizeof *v);
    while (ok(p) && t && v && peek(p) != ']') {
        if (peek(p) < 0 || peek(p) == '\n') {
            fail_at(p, t->at, MOX_E_ARG, "a class has no closing bracket", NULL, 0);
            return NULL;
        }
        const uint32_t from = read_char(p);
        uint32_t to = from;
        if (ok(p) && p->end - p->at > 1 && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            to = read_char(p);
            if (ok(p) && to < from) bad(p, "a range runs backwards");
        }
        v[n++] = (mox_grange){from, to};
    }
    MOX_PLANT(negated && n == 7);
    if (!ok(p) || !t) return NULL;
    p->at++;
    t->chars = settle(p, v, n, negated);
    return t;
}

static rule *find_rule(parser *p, const char *name, size_t n)
{
    for (uint32_t i = 0; i < p->n_rules; i++)
        if (p->rules[i].n == n && memcmp(p->rules[i].name, name, n) == 0) return &p->rules[i];
    if (p->n_rules == MOX_GRAMMAR_RULES_MAX - 8) {
        fail_at(p, name, MOX_E_LIMIT, "the grammar has too many rules", NULL, 0);
        return NULL;
    }
    rule *r = &p->rules[p->n_rules++];
    *r = (rule){.name = name, .n = n, .at = name, .id = mox_gb_rule(p->b)};
    return r;
}

static tree *read_rule_name(parser *p)
{
    const char *name = p->at;
    while (is_name(peek(p))) p->at++;
    tree *t = new_tree(p, T_RULE, name);
    const rule *r = find_rule(p, name, (size_t)(p->at - name));
    if (!t || !r) return NULL;
    t->rule = r->id;
    return t;
}

static uint32_t read_count(parser *p)
{
    uint32_t n = 0;
    const char *at = p->at;
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++) {
        n = n * 10 + (uint32_t)(*p->at - '0');
        if (n <= MOX_GRAMMAR_REPEAT_MAX) continue;
        fail_at(p, at, MOX_E_LIMIT, "something is repeated more than 100000 times", NULL, 0);
        return 0;
    }
    if (p->at == at) bad(p, "a number of repetitions is missing");
    return n;
}

static tree *read_repeat(parser *p, tree *what)
{
    const int c = peek(p);
    tree *t = new_tree(p, T_REPEAT, p->at++);
    if (!t) return NULL;
    t->min = c == '+';
    t->max = c == '?' ? 1 : MOX_GRAMMAR_NO_MAX;
    if (c == '{') {
        skip(p, false);
        t->min = t->max = read_count(p);
        skip(p, false);
        if (ok(p) && peek(p) == ',') {
            p->at++;
            skip(p, false);
            t->max = peek(p) == '}' ? MOX_GRAMMAR_NO_MAX : read_count(p);
            skip(p, false);
        }
        if (ok(p) && peek(p) != '}') bad(p, "a } is missing");
        if (ok(p) && t->max < t->min) bad(p, "a repetition has its numbers the wrong way round");
        if (ok(p)) p->at++;
    }
    add_child(t, what);
    return t;
}

static tree *read_alternatives(parser *p, bool lines);

static tree *read_group(parser *p)
{
    const char *open = p->at++;
    if (++p->depth > DEPTH_MAX) fail_at(p, open, MOX_E_LIMIT, "more than 256 groups are inside each other", NULL, 0);
    tree *t = ok(p) ? read_alternatives(p, true) : NULL;
    if (ok(p) && peek(p) != ')') fail_at(p, open, MOX_E_ARG, "a ( is not closed", NULL, 0);
    p->at++;
    p->depth--;
    return t;
}

static tree *read_term(parser *p)
{
    static const uint32_t whole[2] = {0, CHAR_MAX_VALUE};
    const int c = peek(p);
    if (c == '"') return read_text(p);
    if (c == '[') return read_chars(p);
    if (c == '(') return read_group(p);
    if (is_name(c)) return read_rule_name(p);
    if (c == '.') {
        tree *t = new_tree(p, T_CHARS, p->at++);
        mox_grange all = {whole[0], whole[1]};
        if (t) t->chars = settle(p, &all, 1, false);
        return t;
    }
    bad(p, c == '*' || c == '+' || c == '?' || c == '{' ? "there is nothing to repeat" : "this is not understood");
    return NULL;
}

static bool ends_sequence(const parser *p)
{
    const int c = peek(p);
    return c < 0 || c == '|' || c == ')' || c == '\n' || c == '\r';
}

static tree *read_sequence(parser *p, bool lines)
{
    tree *t = new_tree(p, T_SEQ, p->at);
    skip(p, lines);
    while (ok(p) && !ends_sequence(p)) {
        tree *term = read_term(p);
        if (!ok(p)) break;
        skip(p, lines);
        for (int n = 0; ok(p) && peek(p) > 0 && strchr("*+?{", peek(p)); n++) {
            if (n == REPEATS_MAX) fail_at(p, p->at, MOX_E_LIMIT, "too many repetitions follow each other", NULL, 0);
            else term = read_repeat(p, term);
            skip(p, lines);
        }
        add_child(t, term);
    }
    return t;
}

static tree *read_alternatives(parser *p, bool lines)
{
    tree *t = new_tree(p, T_ALT, p->at);
    for (;;) {
        add_child(t, read_sequence(p, lines));
        const char *line_end = p->at;
        if (ok(p) && !lines) skip(p, true); /* the next line may begin with | */
        if (!ok(p) || peek(p) != '|') {
            p->at = line_end;
            return t;
        }
        p->at++;
        skip(p, true);
    }
}

static void read_rule(parser *p)
{
    const char *name = p->at;
    while (is_name(peek(p))) p->at++;
    const size_t n = (size_t)(p->at - name);
    if (n == 0) {
        bad(p, "a rule must begin with its name");
        return;
    }
    skip(p, false);
    if (p->end - p->at < 3 || memcmp(p->at, "::=", 3) != 0) {
        bad(p, "::= is missing");
        return;
    }
    p->at += 3;
    skip(p, true);
    rule *r = find_rule(p, name, n);
    if (r && r->body) fail_at(p, name, MOX_E_ARG, "this rule is there already:", name, n);
    if (!ok(p) || !r) return;
    r->at = name;
    tree *body = read_alternatives(p, false);
    r->body = body; /* rules do not move */
    if (ok(p) && peek(p) == ')') bad(p, "a ) was not opened");
}

/* ---- nodes --------------------------------------------------------------------------------- */

static uint32_t make(mox_gb *b, const tree *t, uint32_t next)
{
    const tree *child = t->last;
    uint32_t all = 0;
    if (b->status != MOX_OK) return 0;
    switch (t->type) {
    case T_TEXT: return mox_gb_text(b, t->text, t->n, next);
    case T_CHARS: return t->chars.n == 0 ? 0 : mox_gb_char(b, t->chars, next);
    case T_RULE: return mox_gb_call(b, t->rule, next);
    case T_REPEAT: return t->max == 0 ? next : mox_gb_repeat(b, make(b, child, b->returns), t->min, t->max, next);
    case T_SEQ:
        for (; child; child = child->prev) next = make(b, child, next);
        return next;
    default: break;
    }
    for (; child; child = child->prev) {
        const uint32_t one = make(b, child, next);
        all = child == t->last ? one : mox_gb_either(b, one, all);
    }
    return all;
}

static uint32_t make_all(parser *p)
{
    const rule *root = NULL;
    mox_gb *b = p->b;
    if (p->n_rules == 0) bad(p, "there is no rule: `root` is the least");
    for (uint32_t i = 0; i < p->n_rules && ok(p); i++) {
        const rule *r = &p->rules[i];
        if (!r->body) fail_at(p, r->at, MOX_E_ARG, "there is no rule", r->name, r->n);
        if (r->n == 4 && memcmp(r->name, "root", 4) == 0) root = r;
    }
    if (ok(p) && !root)
        fail_at(p, p->rules[0].at, MOX_E_ARG, "there is no rule `root`; the first one is", p->rules[0].name,
                p->rules[0].n);
    b->nest = 1; /* every call counts */
    for (uint32_t i = 0; i < p->n_rules && ok(p); i++)
        mox_gb_define(b, p->rules[i].id, make(b, p->rules[i].body, b->returns));
    return ok(p) ? mox_gb_call(b, root->id, b->returns) : 0;
}

static mox_status finish(parser *p, uint32_t root, mox_grammar **out)
{
    mox_gb *b = p->b;
    mox_err *err = b->err, local = {0};
    char name[65] = "";
    size_t at = 0;
    /* The text and the rules are gone with the grammar, so what an error may need is kept. */
    if (ok(p)) b->err = &local;
    const mox_status status = mox_gb_finish(b, root, out);
    if (b->err != &local || status == MOX_OK) return status;
    for (uint32_t i = 0; i < p->n_rules; i++) {
        if (p->rules[i].id != b->bad_rule) continue;
        at = (size_t)(p->rules[i].at - p->begin);
        memcpy(name, p->rules[i].name, p->rules[i].n < 64 ? p->rules[i].n : 64);
    }
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at; i++) {
        column = p->begin[i] == '\n' ? 1 : column + 1;
        line += p->begin[i] == '\n';
    }
    return mox_fail(err, status, "the grammar, line %zu, column %zu: %s%s%s%s", line, column, *name ? "rule `" : "",
                    name, *name ? "`: " : "", local.msg);
}

mox_status mox_grammar_create_gbnf(mox_grammar **out, const char *text, size_t n, mox_err *err)
{
    mox_gb b;
    *out = NULL;
    if (n > MOX_GRAMMAR_TEXT_MAX)
        return mox_fail(err, MOX_E_LIMIT, "a grammar has at most %d bytes, and this has %zu", MOX_GRAMMAR_TEXT_MAX, n);
    parser p = {.b = &b, .begin = text, .at = text, .end = text + n};
    mox_gb_init(&b, MOX_GRAMMAR_CALL_DEPTH, err);
    p.rules = mox_alloc_array(MOX_GRAMMAR_RULES_MAX, sizeof *p.rules); /* outlives the grammar, for errors */
    if (!p.rules && b.status == MOX_OK)
        b.status = mox_fail_memory(err, MOX_GRAMMAR_RULES_MAX * sizeof *p.rules, "a grammar");
    skip(&p, true);
    while (ok(&p) && p.at < p.end) {
        read_rule(&p);
        skip(&p, true);
    }
    const uint32_t root = ok(&p) ? make_all(&p) : 0;
    const mox_status status = finish(&p, root, out);
    mox_free(p.rules);
    return status;
}
