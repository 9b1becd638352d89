/* text/template_parse_expr.c -- expressions, by recursive descent.
 *
 * From the loosest to the tightest: a if b else c; or; and; not; comparisons and
 * `in`; + -; ~; * / // %; **; unary signs; calls, attributes and items; filters and
 * tests.  Chains of one level become one node with a list, so that a long sum is no
 * deep tree. */
#include "base/plant.h"
#include "text/template_parser.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

static mox_status parse_unary(mox_tparser *p, bool with_filter, mox_tnode **out);
static mox_status parse_or(mox_tparser *p, mox_tnode **out);

/* ---- literals ------------------------------------------------------------------------- */

static int hex_value(const char *p, size_t n, uint32_t *out)
{
    uint32_t value = 0;
    for (size_t i = 0; i < n; i++) {
        const char c = p[i];
        const int digit = c >= '0' && c <= '9'                     ? c - '0'
                          : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                                   : -1;
        if (digit < 0) return -1;
        value = value << 4 | (uint32_t)digit;
    }
    *out = value;
    return 0;
}

/* The escape behind a backslash at s[0, n), as Python reads it: bytes consumed, and
 * the character.  0: it is none, and the backslash stays.  -1: malformed. */
static int read_escape(const char *s, size_t n, uint32_t *cp)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *at = s[0] ? strchr(from, s[0]) : NULL;
    if (at) {
        *cp = (unsigned char)to[at - from];
        return 1;
    }
    if (s[0] >= '0' && s[0] <= '7') {
        int length = 0;
        *cp = 0;
        while (length < 3 && (size_t)length < n && s[length] >= '0' && s[length] <= '7') {
            *cp = *cp * 8 + (uint32_t)(s[length++] - '0');
        }
        return length;
    }
    const size_t digits = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    if (digits == 0) return s[0] == 'N' ? -1 : 0;
    if (n <= digits || hex_value(s + 1, digits, cp)) return -1;
    return *cp > 0x10FFFF || (*cp >= 0xD800 && *cp <= 0xDFFF) ? -1 : (int)digits + 1;
}

static mox_status unescape(mox_tparser *p, const mox_ttoken *token, char *dst, size_t *n)
{
    const char *s = token->p + 1, *end = token->p + token->n - 1;
    while (s < end) {
        if (*s != '\\') {
            dst[(*n)++] = *s++;
            continue;
        }
        uint32_t cp = 0;
        s++; /* a string does not end in a lone backslash: the lexer took what is behind it */
        if (*s == '\n') {
            s++;
            continue;
        }
        const int length = read_escape(s, (size_t)(end - s), &cp);
        if (length < 0) return mox_parse_fail(p, token, "malformed escape in a string");
        if (length == 0) {
            dst[(*n)++] = '\\';
        } else {
            *n += mox_utf8_encode(cp, (unsigned char *)dst + *n);
        }
        s += length;
    }
    return MOX_OK;
}

/* Neighbouring strings are one. */
static mox_status parse_string(mox_tparser *p, mox_tnode *node)
{
    size_t room = 0, n = 0;
    for (const mox_ttoken *token = p->now; token->type == MOX_TT_STRING; token++) room += token->n;
    void *text;
    MOX_TRY(mox_parse_take(p, room, 1, &text)); /* an escape is at least as long as what it stands for */
    while (p->now->type == MOX_TT_STRING) MOX_TRY(unescape(p, p->now++, text, &n));
    return mox_parse_literal(p, text, n, &node->value);
}

static mox_status parse_number(mox_tparser *p, mox_tnode *node)
{
    const mox_ttoken *token = p->now++;
    void *memory;
    MOX_TRY(mox_parse_take(p, token->n + 1, 1, &memory));
    char *text = memory;
    size_t n = 0;
    for (size_t i = 0; i < token->n; i++) {
        if (token->p[i] != '_') text[n++] = token->p[i];
    }
    if (token->type == MOX_TT_FLOAT) {
        node->value = mox_tv_float(strtod(text, NULL));
        return MOX_OK;
    }
    const int base = n < 3 || text[0] != '0'   ? 10
                     : (text[1] | 0x20) == 'x' ? 16
                     : (text[1] | 0x20) == 'o' ? 8
                     : (text[1] | 0x20) == 'b' ? 2
                                               : 10;
    int64_t value = 0;
    for (size_t i = base == 10 ? 0 : 2; i < n; i++) {
        const int digit = text[i] <= '9' ? text[i] - '0' : (text[i] | 0x20) - 'a' + 10;
        if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value)) {
            if (base != 10) return mox_parse_fail(p, token, "this integer has more than 64 bits");
            node->value = (mox_tv){.type = MOX_TV_BIG, .u.big = text};
            return MOX_OK;
        }
    }
    MOX_PLANT(value > 2000000 && value < INT64_C(1) << 40);
    node->value = mox_tv_int(value);
    return MOX_OK;
}

/* true, false and none in either spelling. */
static bool constant(const mox_ttoken *token, mox_tv *out)
{
    static const struct {
        const char *word;
        int value;
    } words[] = {{"true", 1}, {"True", 1}, {"false", 0}, {"False", 0}, {"none", -1}, {"None", -1}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strlen(words[i].word) != token->n || memcmp(words[i].word, token->p, token->n) != 0) continue;
        *out = words[i].value < 0 ? mox_tv_none : mox_tv_bool(words[i].value);
        return true;
    }
    return false;
}

static mox_status parse_list(mox_tparser *p, mox_tnode *node)
{
    p->now++;
    while (!mox_parse_is_op(p, ']')) {
        mox_tnode *item;
        if (node->n > 0) MOX_TRY(mox_parse_expect_op(p, ','));
        if (mox_parse_is_op(p, ']')) break;
        MOX_TRY(mox_parse_expression(p, &item));
        MOX_TRY(mox_parse_append(p, node, item));
    }
    return mox_parse_expect_op(p, ']');
}

static mox_status parse_dict(mox_tparser *p, mox_tnode *node)
{
    p->now++;
    while (!mox_parse_is_op(p, '}')) {
        mox_tnode *item;
        if (node->n > 0) MOX_TRY(mox_parse_expect_op(p, ','));
        if (mox_parse_is_op(p, '}')) break;
        MOX_TRY(mox_parse_expression(p, &item));
        MOX_TRY(mox_parse_append(p, node, item));
        MOX_TRY(mox_parse_expect_op(p, ':'));
        MOX_TRY(mox_parse_expression(p, &item));
        MOX_TRY(mox_parse_append(p, node, item));
    }
    return mox_parse_expect_op(p, '}');
}

static mox_status parse_word(mox_tparser *p, mox_tnode **out)
{
    const mox_ttoken *token = p->now++;
    mox_tv value;
    const bool fixed = constant(token, &value);
    MOX_TRY(mox_parse_node(p, fixed ? MOX_TN_CONST : MOX_TN_NAME, token, out));
    if (fixed) {
        (*out)->value = value;
        return MOX_OK;
    }
    MOX_TRY(mox_parse_name(p, token, &(*out)->name));
    p->caller |= (*out)->name == MOX_NAME_CALLER;
    p->kwargs |= (*out)->name == MOX_NAME_KWARGS;
    p->varargs |= (*out)->name == MOX_NAME_VARARGS;
    return mox_note_load(p, (*out)->name);
}

static mox_status parse_primary(mox_tparser *p, mox_tnode **out)
{
    const mox_ttoken *token = p->now;
    switch (token->type) {
    case MOX_TT_NAME: return parse_word(p, out);
    case MOX_TT_STRING: MOX_TRY(mox_parse_node(p, MOX_TN_CONST, token, out)); return parse_string(p, *out);
    case MOX_TT_INTEGER:
    case MOX_TT_FLOAT: MOX_TRY(mox_parse_node(p, MOX_TN_CONST, token, out)); return parse_number(p, *out);
    default: break;
    }
    if (mox_parse_is_op(p, '(')) {
        p->now++;
        MOX_TRY(mox_parse_tuple(p, MOX_TUPLE_CHOICE | MOX_TUPLE_PARENTHESES, out));
        return mox_parse_expect_op(p, ')');
    }
    const bool list = mox_parse_is_op(p, '[');
    if (!list && !mox_parse_is_op(p, '{')) return mox_parse_unexpected(p, "an expression");
    MOX_TRY(mox_parse_node(p, list ? MOX_TN_LIST : MOX_TN_DICT, token, out));
    return list ? parse_list(p, *out) : parse_dict(p, *out);
}

/* ---- what follows an operand ----------------------------------------------------------- */

/* One index: an expression, or a slice. */
static mox_status parse_index(mox_tparser *p, mox_tnode **out)
{
    mox_tnode *part = NULL;
    const mox_ttoken *at = p->now;
    if (!mox_parse_is_op(p, ':')) {
        MOX_TRY(mox_parse_expression(p, &part));
        if (!mox_parse_is_op(p, ':')) {
            *out = part;
            return MOX_OK;
        }
    }
    MOX_TRY(mox_parse_node(p, MOX_TN_SLICE, at, out));
    MOX_TRY(mox_parse_append(p, *out, part));
    while ((*out)->n < 3) {
        part = NULL;
        if (mox_parse_skip_op(p, ':') && !mox_parse_is_op(p, ':') && !mox_parse_is_op(p, ']') &&
            !mox_parse_is_op(p, ',')) {
            MOX_TRY(mox_parse_expression(p, &part));
        }
        MOX_TRY(mox_parse_append(p, *out, part));
    }
    return MOX_OK;
}

static mox_status parse_item(mox_tparser *p, mox_tnode *node)
{
    mox_tnode *index = NULL, *all = NULL;
    const mox_ttoken *at = p->now++;
    while (!mox_parse_is_op(p, ']')) {
        if (index) {
            if (!all) {
                MOX_TRY(mox_parse_node(p, MOX_TN_TUPLE, at, &all));
                MOX_TRY(mox_parse_append(p, all, index));
            }
            MOX_TRY(mox_parse_expect_op(p, ','));
        }
        MOX_TRY(parse_index(p, &index));
        if (all) MOX_TRY(mox_parse_append(p, all, index));
        if (all && index->kind == MOX_TN_SLICE) return mox_parse_fail(p, at, "a slice among several indices");
    }
    if (!index) MOX_TRY(mox_parse_node(p, MOX_TN_TUPLE, at, &all));
    if (all && index && all->list[0]->kind == MOX_TN_SLICE)
        return mox_parse_fail(p, at, "a slice among several indices");
    node->b = all ? all : index;
    return mox_parse_expect_op(p, ']');
}

static mox_status parse_member(mox_tparser *p, mox_tnode *operand, mox_tnode **out)
{
    const mox_ttoken *token = ++p->now;
    p->now++;
    if (token->type == MOX_TT_INTEGER) {
        MOX_TRY(mox_parse_node(p, MOX_TN_ITEM, token, out));
        MOX_TRY(mox_parse_node(p, MOX_TN_CONST, token, &(*out)->b));
        p->now = token;
        (*out)->a = operand;
        return parse_number(p, (*out)->b);
    }
    if (token->type != MOX_TT_NAME) return mox_parse_fail(p, token, "a name or number is missing behind '.'");
    MOX_TRY(mox_parse_node(p, MOX_TN_ATTR, token, out));
    (*out)->a = operand;
    return mox_parse_literal(p, token->p, token->n, &(*out)->value);
}

static mox_status add_keyword(mox_tparser *p, mox_tnode_args *args, const mox_ttoken *name, mox_tnode *value)
{
    /* One more at a time is fine: calls have few. */
    void *names, *values;
    mox_tv text;
    MOX_TRY(mox_parse_take(p, args->n_kw + 1, sizeof *args->kw_name, &names));
    MOX_TRY(mox_parse_take(p, args->n_kw + 1, sizeof *args->kw, &values));
    MOX_TRY(mox_parse_literal(p, name->p, name->n, &text));
    for (size_t i = 0; i < args->n_kw; i++) {
        if (mox_ts_equal(args->kw_name[i], text.u.s)) return mox_parse_fail(p, name, "this argument is given twice");
    }
    if (args->n_kw > 0) {
        memcpy(names, args->kw_name, args->n_kw * sizeof *args->kw_name);
        memcpy(values, args->kw, args->n_kw * sizeof *args->kw);
    }
    args->kw_name = names;
    args->kw = values;
    args->kw_name[args->n_kw] = text.u.s;
    args->kw[args->n_kw++] = value;
    return MOX_OK;
}

static mox_status parse_args(mox_tparser *p, const mox_tnode_args **out)
{
    enum { KEYWORDS_MAX = 64 };
    mox_tnode *list, *value;
    void *memory;
    MOX_TRY(mox_parse_take(p, 1, sizeof **out, &memory));
    mox_tnode_args *args = memory;
    MOX_TRY(mox_parse_node(p, MOX_TN_LIST, p->now, &list));
    MOX_TRY(mox_parse_expect_op(p, '('));
    while (!mox_parse_is_op(p, ')')) {
        if (list->n + args->n_kw > 0) MOX_TRY(mox_parse_expect_op(p, ','));
        if (mox_parse_is_op(p, ')')) break;
        if (mox_parse_is_op(p, '*') || mox_parse_is_op(p, MOX_OP2('*', '*'))) {
            return mox_parse_fail(p, p->now, "arguments with * and ** are not supported");
        }
        if (p->now->type == MOX_TT_NAME && p->now[1].type == MOX_TT_OPERATOR && p->now[1].op == '=') {
            const mox_ttoken *name = p->now;
            p->now += 2;
            if (args->n_kw == KEYWORDS_MAX)
                return mox_parse_fail(p, name, "more than %d named arguments", KEYWORDS_MAX);
            MOX_TRY(mox_parse_expression(p, &value));
            MOX_TRY(add_keyword(p, args, name, value));
            continue;
        }
        if (args->n_kw > 0) return mox_parse_fail(p, p->now, "an argument without a name behind one with a name");
        MOX_TRY(mox_parse_expression(p, &value));
        MOX_TRY(mox_parse_append(p, list, value));
    }
    args->pos = list->list;
    args->n_pos = list->n;
    *out = args;
    return mox_parse_expect_op(p, ')');
}

static mox_status parse_call(mox_tparser *p, mox_tnode *operand, mox_tnode **out)
{
    MOX_TRY(mox_parse_node(p, MOX_TN_CALL, p->now, out));
    (*out)->a = operand;
    return parse_args(p, &(*out)->args);
}

/* A chain of these is a deep tree; the depth of an evaluation is limited when it runs. */
static mox_status parse_postfix(mox_tparser *p, mox_tnode **node)
{
    for (;;) {
        mox_tnode *operand = *node;
        if (mox_parse_is_op(p, '.')) {
            MOX_TRY(parse_member(p, operand, node));
        } else if (mox_parse_is_op(p, '[')) {
            MOX_TRY(mox_parse_node(p, MOX_TN_ITEM, p->now, node));
            (*node)->a = operand;
            MOX_TRY(parse_item(p, *node));
        } else if (mox_parse_is_op(p, '(')) {
            MOX_TRY(parse_call(p, operand, node));
        } else {
            return MOX_OK;
        }
    }
}

/* The name of a filter or test; one that does not exist is an error only where it
 * is certain to be needed. */
static mox_status parse_function(mox_tparser *p, const mox_tfn *find(const char *, size_t), mox_tnode *node)
{
    const mox_ttoken *name;
    MOX_TRY(mox_parse_expect_name(p, &name));
    node->fn = find(name->p, name->n);
    if (!node->fn && !p->unknown) p->unknown = name;
    return mox_parse_literal(p, name->p, name->n, &node->value);
}

mox_status mox_parse_filters(mox_tparser *p, mox_tnode *operand, bool bare_first, mox_tnode **out)
{
    *out = operand;
    while (bare_first || mox_parse_is_op(p, '|')) {
        mox_tnode *node;
        if (!bare_first) p->now++;
        bare_first = false;
        MOX_TRY(mox_parse_node(p, MOX_TN_FILTER, p->now, &node));
        node->a = *out;
        *out = node;
        MOX_TRY(parse_function(p, mox_filter_find, node));
        if (mox_parse_is_op(p, '(')) MOX_TRY(parse_args(p, &node->args));
    }
    return MOX_OK;
}

/* A test may have one argument without brackets: `is divisibleby 3`. */
static bool bare_argument(const mox_tparser *p)
{
    switch (p->now->type) {
    case MOX_TT_STRING:
    case MOX_TT_INTEGER:
    case MOX_TT_FLOAT: return true;
    case MOX_TT_NAME:
        return !mox_parse_is_word(p, "else") && !mox_parse_is_word(p, "or") && !mox_parse_is_word(p, "and");
    default: return mox_parse_is_op(p, '[') || mox_parse_is_op(p, '{');
    }
}

static mox_status parse_test(mox_tparser *p, mox_tnode **node)
{
    mox_tnode *operand = *node, *argument;
    const mox_ttoken *at = p->now++;
    const bool negated = mox_parse_skip_word(p, "not");
    MOX_TRY(mox_parse_node(p, MOX_TN_TEST, p->now, node));
    (*node)->a = operand;
    MOX_TRY(parse_function(p, mox_test_find, *node));
    if (mox_parse_is_op(p, '(')) {
        MOX_TRY(parse_args(p, &(*node)->args));
    } else if (bare_argument(p)) {
        void *memory;
        if (mox_parse_is_word(p, "is")) return mox_parse_fail(p, p->now, "tests cannot be chained with is");
        MOX_TRY(parse_primary(p, &argument));
        MOX_TRY(parse_postfix(p, &argument));
        MOX_TRY(mox_parse_take(p, 1, sizeof(mox_tnode_args) + sizeof(mox_tnode *), &memory));
        mox_tnode_args *args = memory;
        args->pos = (mox_tnode **)(args + 1);
        args->pos[0] = argument;
        args->n_pos = 1;
        (*node)->args = args;
    }
    if (!negated) return MOX_OK;
    operand = *node;
    MOX_TRY(mox_parse_node(p, MOX_TN_NOT, at, node));
    (*node)->a = operand;
    return MOX_OK;
}

static mox_status parse_filter_expression(mox_tparser *p, mox_tnode **node)
{
    for (;;) {
        mox_tnode *operand = *node;
        if (mox_parse_is_op(p, '|')) {
            MOX_TRY(mox_parse_filters(p, operand, false, node));
        } else if (mox_parse_is_word(p, "is")) {
            MOX_TRY(parse_test(p, node));
        } else if (mox_parse_is_op(p, '(')) {
            MOX_TRY(parse_call(p, operand, node));
        } else {
            return MOX_OK;
        }
    }
}

/* ---- operators --------------------------------------------------------------------------- */

static mox_status parse_unary(mox_tparser *p, bool with_filter, mox_tnode **out)
{
    MOX_TRY(mox_parse_enter(p));
    const bool minus = mox_parse_is_op(p, '-');
    if (minus || mox_parse_is_op(p, '+')) {
        MOX_TRY(mox_parse_node(p, minus ? MOX_TN_NEGATE : MOX_TN_PLUS, p->now++, out));
        MOX_TRY(parse_unary(p, false, &(*out)->a));
    } else {
        MOX_TRY(parse_primary(p, out));
    }
    MOX_TRY(parse_postfix(p, out));
    if (with_filter) MOX_TRY(parse_filter_expression(p, out));
    p->nesting--;
    return MOX_OK;
}

typedef mox_status parse_fn(mox_tparser *p, mox_tnode **out);
typedef int operator_fn(mox_tparser *p); /* skips an operator of its level; 0: there is none */

/* operand (operator operand)*, as one node when there is an operator. */
static mox_status parse_chain(mox_tparser *p, mox_tnode_kind kind, parse_fn *operand, operator_fn *operator,
                              mox_tnode ** out)
{
    mox_tnode *chain = NULL, *next;
    const mox_ttoken *at = p->now;
    int *ops = NULL;
    size_t room = 0;
    MOX_TRY(operand(p, out));
    for (int op; (op = operator(p)) != 0;) {
        if (!chain) {
            MOX_TRY(mox_parse_node(p, kind, at, &chain));
            MOX_TRY(mox_parse_append(p, chain, *out));
        }
        if (chain->n > room) {
            void *larger;
            MOX_TRY(mox_parse_take(p, room ? room * 2 : 4, sizeof *ops, &larger));
            if (room > 0) memcpy(larger, ops, room * sizeof *ops);
            ops = larger;
            room = room ? room * 2 : 4;
        }
        ops[chain->n - 1] = op;
        MOX_TRY(operand(p, &next));
        MOX_TRY(mox_parse_append(p, chain, next));
    }
    if (!chain) return MOX_OK;
    chain->ops = ops;
    *out = chain;
    return MOX_OK;
}

static int skip_any(mox_tparser *p, const int *ops, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (mox_parse_skip_op(p, ops[i])) return ops[i];
    }
    return 0;
}

static int power(mox_tparser *p)
{
    static const int ops[] = {MOX_OP2('*', '*')};
    return skip_any(p, ops, 1);
}

static int product(mox_tparser *p)
{
    static const int ops[] = {'*', '/', MOX_OP2('/', '/'), '%'};
    return skip_any(p, ops, 4);
}

static int sum(mox_tparser *p)
{
    static const int ops[] = {'+', '-'};
    return skip_any(p, ops, 2);
}

static int tilde(mox_tparser *p)
{
    static const int ops[] = {'~'};
    return skip_any(p, ops, 1);
}

static int comparison(mox_tparser *p)
{
    static const int ops[] = {MOX_OP2('=', '='), MOX_OP2('!', '='), MOX_OP2('<', '='), MOX_OP2('>', '='), '<', '>'};
    if (mox_parse_skip_word(p, "in")) return MOX_OP_IN;
    if (mox_parse_is_word(p, "not") && p->now[1].type == MOX_TT_NAME && p->now[1].n == 2 &&
        memcmp(p->now[1].p, "in", 2) == 0) {
        p->now += 2;
        return MOX_OP_NOT_IN;
    }
    return skip_any(p, ops, sizeof ops / sizeof *ops);
}

static int and_word(mox_tparser *p) { return mox_parse_skip_word(p, "and"); }
static int or_word(mox_tparser *p) { return mox_parse_skip_word(p, "or"); }

static mox_status parse_signed(mox_tparser *p, mox_tnode **out) { return parse_unary(p, true, out); }
static mox_status parse_power(mox_tparser *p, mox_tnode **out)
{
    return parse_chain(p, MOX_TN_BINARY, parse_signed, power, out);
}
static mox_status parse_product(mox_tparser *p, mox_tnode **out)
{
    return parse_chain(p, MOX_TN_BINARY, parse_power, product, out);
}
static mox_status parse_concat(mox_tparser *p, mox_tnode **out)
{
    return parse_chain(p, MOX_TN_CONCAT, parse_product, tilde, out);
}
static mox_status parse_sum(mox_tparser *p, mox_tnode **out)
{
    return parse_chain(p, MOX_TN_BINARY, parse_concat, sum, out);
}
static mox_status parse_compare(mox_tparser *p, mox_tnode **out)
{
    return parse_chain(p, MOX_TN_COMPARE, parse_sum, comparison, out);
}

static mox_status parse_not(mox_tparser *p, mox_tnode **out)
{
    if (!mox_parse_is_word(p, "not")) return parse_compare(p, out);
    MOX_TRY(mox_parse_enter(p));
    MOX_TRY(mox_parse_node(p, MOX_TN_NOT, p->now++, out));
    MOX_TRY(parse_not(p, &(*out)->a));
    p->nesting--;
    return MOX_OK;
}

static mox_status parse_and(mox_tparser *p, mox_tnode **out)
{
    return parse_chain(p, MOX_TN_AND, parse_not, and_word, out);
}
static mox_status parse_or(mox_tparser *p, mox_tnode **out)
{
    return parse_chain(p, MOX_TN_OR, parse_and, or_word, out);
}

mox_status mox_parse_expression(mox_tparser *p, mox_tnode **out)
{
    const mox_ttoken *at = p->now, *unknown = p->unknown;
    MOX_TRY(mox_parse_enter(p));
    MOX_TRY(parse_or(p, out));
    while (mox_parse_skip_word(p, "if")) {
        mox_tnode *choice;
        MOX_TRY(mox_parse_node(p, MOX_TN_CHOICE, at, &choice));
        choice->a = *out;
        *out = choice;
        MOX_TRY(parse_or(p, &choice->b));
        if (mox_parse_skip_word(p, "else")) MOX_TRY(mox_parse_expression(p, &choice->c));
        p->unknown = unknown; /* only one side is evaluated */
    }
    p->nesting--;
    return MOX_OK;
}

static bool tuple_ends(const mox_tparser *p)
{
    return p->now->type == MOX_TT_PRINT_END || p->now->type == MOX_TT_BLOCK_END || mox_parse_is_op(p, ')');
}

mox_status mox_parse_tuple(mox_tparser *p, int flags, mox_tnode **out)
{
    mox_tnode *tuple = NULL;
    const mox_ttoken *at = p->now;
    *out = NULL;
    while (!tuple_ends(p)) {
        MOX_TRY(flags & MOX_TUPLE_CHOICE ? mox_parse_expression(p, out) : parse_or(p, out));
        if (tuple) MOX_TRY(mox_parse_append(p, tuple, *out));
        if (!mox_parse_is_op(p, ',')) break;
        if (!tuple) {
            MOX_TRY(mox_parse_node(p, MOX_TN_TUPLE, at, &tuple));
            MOX_TRY(mox_parse_append(p, tuple, *out));
        }
        p->now++;
    }
    if (!*out && !(flags & MOX_TUPLE_PARENTHESES)) return mox_parse_unexpected(p, "an expression");
    if (!*out) MOX_TRY(mox_parse_node(p, MOX_TN_TUPLE, at, &tuple));
    if (tuple) *out = tuple;
    return MOX_OK;
}

/* ---- targets ------------------------------------------------------------------------------ */

static mox_status parse_one_target(mox_tparser *p, bool members, mox_tnode **out)
{
    const mox_ttoken *token = p->now;
    mox_tv value;
    if (mox_parse_skip_op(p, '(')) {
        MOX_TRY(mox_parse_enter(p));
        MOX_TRY(mox_parse_target(p, members, out));
        p->nesting--;
        return mox_parse_expect_op(p, ')');
    }
    if (token->type != MOX_TT_NAME || constant(token, &value))
        return mox_parse_fail(p, token, "this cannot be assigned to");
    p->now++;
    const bool member = members && mox_parse_skip_op(p, '.');
    MOX_TRY(mox_parse_node(p, member ? MOX_TN_MEMBER : MOX_TN_NAME, token, out));
    MOX_TRY(mox_parse_name(p, token, &(*out)->name));
    if (!member) {
        if ((*out)->name == MOX_NAME_LOOP && p->for_depth > 0)
            return mox_parse_fail(p, token, "loop cannot be assigned to");
        return MOX_OK;
    }
    MOX_TRY(mox_parse_expect_name(p, &token));
    return mox_parse_literal(p, token->p, token->n, &(*out)->value);
}

mox_status mox_parse_target(mox_tparser *p, bool members, mox_tnode **out)
{
    mox_tnode *tuple = NULL, *one;
    const mox_ttoken *at = p->now;
    MOX_TRY(parse_one_target(p, members, out));
    while (mox_parse_skip_op(p, ',')) {
        if (!tuple) {
            MOX_TRY(mox_parse_node(p, MOX_TN_TUPLE, at, &tuple));
            MOX_TRY(mox_parse_append(p, tuple, *out));
            *out = tuple;
        }
        if (p->now->type != MOX_TT_NAME && !mox_parse_is_op(p, '(')) break;
        if (mox_parse_is_word(p, "in")) break;
        MOX_TRY(parse_one_target(p, members, &one));
        MOX_TRY(mox_parse_append(p, tuple, one));
    }
    return MOX_OK;
}
