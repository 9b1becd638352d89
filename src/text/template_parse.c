/* text/template_parse.c -- statements, scopes and names. */
#include "text/template_parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAMES_MAX = 1024, REGION_MAX = 64 << 20 };

/* ---- tools ---------------------------------------------------------------------------- */

mox_status mox_parse_fail(mox_tparser *p, const mox_ttoken *at, const char *format, ...)
{
    char words[200];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(words, sizeof words, format, args);
    va_end(args);
    return mox_template_fail(p->t, at->at, p->err, "%s", words);
}

mox_status mox_parse_unexpected(mox_tparser *p, const char *wanted)
{
    switch (p->now->type) {
    case MOX_TT_END: return mox_parse_fail(p, p->now, "the template ends where %s is missing", wanted);
    case MOX_TT_PRINT_END:
    case MOX_TT_BLOCK_END: return mox_parse_fail(p, p->now, "the tag ends where %s is missing", wanted);
    default:
        return mox_parse_fail(p, p->now, "'%.*s' where %s is missing", p->now->n > 60 ? 60 : (int)p->now->n, p->now->p,
                              wanted);
    }
}

mox_status mox_parse_enter(mox_tparser *p)
{
    if (p->nesting >= MOX_NESTING_MAX)
        return mox_parse_fail(p, p->now, "more than %d things inside each other", MOX_NESTING_MAX);
    p->nesting++;
    return MOX_OK;
}

mox_status mox_parse_take(mox_tparser *p, size_t n, size_t size, void **out)
{
    if (n > SIZE_MAX / size) return mox_fail_memory(p->err, SIZE_MAX, "a template");
    MOX_TRY(mox_region_take(&p->t->region, n * size, out, p->err));
    memset(*out, 0, n * size);
    return MOX_OK;
}

mox_status mox_parse_node(mox_tparser *p, mox_tnode_kind kind, const mox_ttoken *at, mox_tnode **out)
{
    void *node;
    MOX_TRY(mox_parse_take(p, 1, sizeof(mox_tnode), &node));
    *out = node;
    (*out)->kind = kind;
    (*out)->at = at->at;
    return MOX_OK;
}

mox_status mox_parse_append(mox_tparser *p, mox_tnode *node, mox_tnode *item)
{
    if ((node->n & (node->n - 1)) == 0 || node->n == 0) {
        void *larger;
        MOX_TRY(mox_parse_take(p, node->n ? node->n * 2 : 1, sizeof *node->list, &larger));
        if (node->n > 0) memcpy(larger, node->list, node->n * sizeof *node->list);
        node->list = larger;
    }
    node->list[node->n++] = item;
    return MOX_OK;
}

mox_status mox_parse_literal(mox_tparser *p, const char *text, size_t n, mox_tv *out)
{
    void *memory;
    MOX_TRY(mox_parse_take(p, 1, sizeof(mox_ts), &memory));
    mox_ts *s = memory;
    s->p = text;
    s->n = n;
    *out = mox_tv_string(s);
    return MOX_OK;
}

bool mox_parse_is_word(const mox_tparser *p, const char *word)
{
    return p->now->type == MOX_TT_NAME && p->now->n == strlen(word) && memcmp(p->now->p, word, p->now->n) == 0;
}

bool mox_parse_is_op(const mox_tparser *p, int op) { return p->now->type == MOX_TT_OPERATOR && p->now->op == op; }

bool mox_parse_skip_word(mox_tparser *p, const char *word)
{
    const bool is = mox_parse_is_word(p, word);
    p->now += is;
    return is;
}

bool mox_parse_skip_op(mox_tparser *p, int op)
{
    const bool is = mox_parse_is_op(p, op);
    p->now += is;
    return is;
}

mox_status mox_parse_expect_op(mox_tparser *p, int op)
{
    const char wanted[] = {'\'', (char)op, '\'', '\0'}; /* only single characters are expected */
    return mox_parse_skip_op(p, op) ? MOX_OK : mox_parse_unexpected(p, wanted);
}

mox_status mox_parse_expect_name(mox_tparser *p, const mox_ttoken **out)
{
    if (p->now->type != MOX_TT_NAME) return mox_parse_unexpected(p, "a name");
    *out = p->now++;
    return MOX_OK;
}

/* ---- names and scopes -------------------------------------------------------------------- */

static mox_status intern(mox_tparser *p, const char *text, size_t n, int32_t *out)
{
    mox_template *t = p->t;
    *out = mox_template_name(t, text, n);
    if (*out >= 0) return MOX_OK;
    if (t->n_names == NAMES_MAX) return mox_parse_fail(p, p->now, "more than %d different names", NAMES_MAX);
    if (t->n_names == t->names_capacity) {
        const size_t capacity = t->names_capacity ? t->names_capacity * 2 : 64;
        void *names = t->names;
        MOX_TRY(mox_region_grow(&t->region, &names, t->names_capacity * sizeof *t->names, capacity * sizeof *t->names,
                                p->err));
        t->names = names;
        t->names_capacity = capacity;
    }
    *out = (int32_t)t->n_names;
    t->names[t->n_names++] = (mox_tname){text, n, mox_global_find(text, n)};
    return MOX_OK;
}

mox_status mox_parse_name(mox_tparser *p, const mox_ttoken *token, int32_t *out)
{
    return intern(p, token->p, token->n, out);
}

static bool mentions(const mox_tscope *s, int32_t name)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->name[i] == name) return true;
    }
    return false;
}

static mox_status note(mox_tparser *p, int32_t name, bool stored)
{
    mox_tscope *s = p->scope;
    if (mentions(s, name)) return MOX_OK;
    if (s->n == s->capacity) {
        const size_t capacity = s->capacity ? s->capacity * 2 : 8;
        void *names = s->name, *flags = s->stored;
        MOX_TRY(
            mox_region_grow(&p->t->region, &names, s->capacity * sizeof *s->name, capacity * sizeof *s->name, p->err));
        s->name = names;
        MOX_TRY(mox_region_grow(&p->t->region, &flags, s->capacity * sizeof *s->stored, capacity * sizeof *s->stored,
                                p->err));
        s->stored = flags;
        s->capacity = capacity;
    }
    s->name[s->n] = name;
    s->stored[s->n++] = stored;
    return MOX_OK;
}

mox_status mox_note_load(mox_tparser *p, int32_t name) { return note(p, name, false); }
mox_status mox_note_store(mox_tparser *p, int32_t name) { return note(p, name, p->branches == 0); }
mox_status mox_note_param(mox_tparser *p, int32_t name) { return note(p, name, false); }

static mox_status note_target(mox_tparser *p, const mox_tnode *target, bool param)
{
    if (target->kind == MOX_TN_MEMBER) return mox_note_load(p, target->name);
    if (target->kind == MOX_TN_NAME) return param ? mox_note_param(p, target->name) : mox_note_store(p, target->name);
    for (size_t i = 0; i < target->n; i++) MOX_TRY(note_target(p, target->list[i], param));
    return MOX_OK;
}

typedef struct outer { /* what a scope puts aside */
    mox_tscope *scope;
    int branches;
} outer;

static mox_status scope_begin(mox_tparser *p, outer *o, const mox_tscope **out)
{
    void *memory;
    MOX_TRY(mox_parse_take(p, 1, sizeof(mox_tscope), &memory));
    mox_tscope *s = memory;
    *o = (outer){p->scope, p->branches};
    s->parent = p->scope;
    s->next = p->scopes;
    p->scope = p->scopes = s;
    p->branches = 0;
    *out = s;
    return MOX_OK;
}

static void scope_end(mox_tparser *p, const outer *o)
{
    p->scope = o->scope;
    p->branches = o->branches;
}

/* What is hidden can be told when all scopes are known. */
static mox_status resolve_hidden(mox_tparser *p)
{
    for (mox_tscope *s = p->scopes; s; s = s->next) {
        void *hidden;
        MOX_TRY(mox_parse_take(p, s->n, sizeof *s->hidden, &hidden));
        s->hidden = hidden;
        for (size_t i = 0; i < s->n; i++) {
            const mox_tscope *around = s->parent;
            if (!s->stored[i]) continue;
            while (around && !mentions(around, s->name[i])) around = around->parent;
            if (!around) s->hidden[s->n_hidden++] = s->name[i];
        }
    }
    return MOX_OK;
}

/* ---- statements ---------------------------------------------------------------------------- */

static mox_status parse_body(mox_tparser *p, const char *const *ends, mox_tnode **out);

static mox_status expect_block_end(mox_tparser *p)
{
    if (p->now->type != MOX_TT_BLOCK_END) return mox_parse_unexpected(p, "the end of the tag");
    p->now++;
    return MOX_OK;
}

/* Behind the head of a block statement: its body up to a tag that is one of ends,
 * whose name is then the current token. */
static mox_status parse_block(mox_tparser *p, const char *const *ends, mox_tnode **out)
{
    (void)mox_parse_skip_op(p, ':');
    MOX_TRY(expect_block_end(p));
    return parse_body(p, ends, out);
}

static mox_status parse_block_to(mox_tparser *p, const char *end, mox_tnode **out)
{
    const char *const ends[] = {end, NULL};
    MOX_TRY(parse_block(p, ends, out));
    p->now++;
    return MOX_OK;
}

static mox_status parse_if(mox_tparser *p, mox_tnode *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    const mox_ttoken *unknown = p->unknown;
    for (;;) {
        MOX_TRY(mox_parse_tuple(p, 0, &node->a));
        p->branches++;
        MOX_TRY(parse_block(p, ends, &node->b));
        p->branches--;
        if (mox_parse_is_word(p, "elif")) {
            MOX_TRY(mox_parse_node(p, MOX_TN_IF, p->now++, &node->c));
            node = node->c;
            continue;
        }
        p->branches++;
        if (mox_parse_skip_word(p, "else")) {
            MOX_TRY(parse_block_to(p, "endif", &node->c));
        } else {
            p->now++;
        }
        p->branches--;
        p->unknown = unknown; /* which branch is taken is not known */
        return MOX_OK;
    }
}

static mox_status parse_for(mox_tparser *p, mox_tnode *node)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    outer o;
    p->for_depth++;
    MOX_TRY(mox_parse_target(p, false, &node->a));
    if (!mox_parse_skip_word(p, "in")) return mox_parse_unexpected(p, "'in'");
    MOX_TRY(mox_parse_tuple(p, 0, &node->b));
    if (mox_parse_skip_word(p, "if")) {
        MOX_TRY(scope_begin(p, &o, &node->test_scope));
        MOX_TRY(note_target(p, node->a, true));
        MOX_TRY(mox_parse_expression(p, &node->test));
        scope_end(p, &o);
    }
    if (mox_parse_is_word(p, "recursive")) return mox_parse_fail(p, p->now, "recursive loops are not supported");
    MOX_TRY(scope_begin(p, &o, &node->scope));
    MOX_TRY(mox_note_param(p, MOX_NAME_LOOP));
    MOX_TRY(note_target(p, node->a, true));
    p->loops++;
    MOX_TRY(parse_block(p, ends, &node->body));
    p->loops--;
    scope_end(p, &o);
    if (mox_parse_skip_word(p, "else")) {
        MOX_TRY(scope_begin(p, &o, &node->else_scope));
        MOX_TRY(parse_block_to(p, "endfor", &node->c));
        scope_end(p, &o);
    } else {
        p->now++;
    }
    p->for_depth--;
    return MOX_OK;
}

static mox_status parse_set(mox_tparser *p, mox_tnode *node)
{
    outer o;
    MOX_TRY(mox_parse_target(p, true, &node->a));
    if (mox_parse_skip_op(p, '=')) {
        MOX_TRY(mox_parse_tuple(p, MOX_TUPLE_CHOICE, &node->b));
        return note_target(p, node->a, false);
    }
    node->kind = MOX_TN_SET_BLOCK;
    MOX_TRY(note_target(p, node->a, false));
    MOX_TRY(scope_begin(p, &o, &node->scope));
    MOX_TRY(mox_parse_filters(p, NULL, false, &node->b));
    MOX_TRY(parse_block_to(p, "endset", &node->body));
    scope_end(p, &o);
    return MOX_OK;
}

/* ( name [= expression], ... ) */
static mox_status parse_signature(mox_tparser *p, mox_tparams *params)
{
    mox_tnode *names, *defaults;
    void *memory;
    MOX_TRY(mox_parse_node(p, MOX_TN_LIST, p->now, &names));
    MOX_TRY(mox_parse_node(p, MOX_TN_LIST, p->now, &defaults));
    MOX_TRY(mox_parse_expect_op(p, '('));
    while (!mox_parse_is_op(p, ')')) {
        const mox_ttoken *token = NULL;
        mox_tnode *name, *otherwise = NULL;
        if (names->n > 0) MOX_TRY(mox_parse_expect_op(p, ','));
        MOX_TRY(mox_parse_expect_name(p, &token));
        MOX_TRY(mox_parse_node(p, MOX_TN_NAME, token, &name));
        MOX_TRY(mox_parse_name(p, token, &name->name));
        MOX_TRY(mox_note_param(p, name->name));
        for (size_t i = 0; i < names->n; i++) {
            if (names->list[i]->name == name->name) return mox_parse_fail(p, token, "this parameter is there twice");
        }
        if (mox_parse_skip_op(p, '=')) {
            MOX_TRY(mox_parse_expression(p, &otherwise));
        } else if (defaults->n > 0 && defaults->list[defaults->n - 1]) {
            return mox_parse_fail(p, token, "a parameter without a default behind one with a default");
        }
        MOX_TRY(mox_parse_append(p, names, name));
        MOX_TRY(mox_parse_append(p, defaults, otherwise));
    }
    MOX_TRY(mox_parse_take(p, names->n, sizeof *params->name, &memory));
    params->name = memory;
    params->otherwise = defaults->list;
    params->n = names->n;
    for (size_t i = 0; i < names->n; i++) params->name[i] = names->list[i]->name;
    return mox_parse_expect_op(p, ')');
}

static bool has_param(const mox_tparams *params, int32_t name)
{
    for (size_t i = 0; i < params->n; i++) {
        if (params->name[i] == name) return true;
    }
    return false;
}

/* The body of a macro or call, from behind its signature.  It is a function of its
 * own: loops around it cannot be left from inside. */
static mox_status parse_macro_body(mox_tparser *p, const char *end, mox_tnode *node, mox_tparams *params)
{
    const mox_tparser around = *p;
    p->loops = 0;
    p->caller = p->kwargs = p->varargs = false;
    MOX_TRY(parse_block_to(p, end, &node->body));
    if (params) {
        params->caller = p->caller && !has_param(params, MOX_NAME_CALLER);
        params->kwargs = p->kwargs && !has_param(params, MOX_NAME_KWARGS);
        params->varargs = p->varargs && !has_param(params, MOX_NAME_VARARGS);
        node->params = params;
    }
    p->loops = around.loops;
    p->caller |= around.caller;
    p->kwargs |= around.kwargs;
    p->varargs |= around.varargs;
    return MOX_OK;
}

static mox_status parse_macro(mox_tparser *p, mox_tnode *node)
{
    const mox_ttoken *name = NULL;
    outer o;
    void *params;
    MOX_TRY(mox_parse_expect_name(p, &name));
    MOX_TRY(mox_parse_name(p, name, &node->name));
    MOX_TRY(mox_parse_literal(p, name->p, name->n, &node->value));
    MOX_TRY(mox_note_store(p, node->name));
    MOX_TRY(mox_parse_take(p, 1, sizeof *node->params, &params));
    MOX_TRY(scope_begin(p, &o, &node->scope));
    MOX_TRY(parse_signature(p, params));
    MOX_TRY(parse_macro_body(p, "endmacro", node, params));
    scope_end(p, &o);
    return MOX_OK;
}

static mox_status parse_call_block(mox_tparser *p, mox_tnode *node)
{
    const mox_ttoken *signature = p->now;
    outer o;
    void *params;
    MOX_TRY(mox_parse_take(p, 1, sizeof *node->params, &params));
    MOX_TRY(scope_begin(p, &o, &node->scope));
    if (mox_parse_is_op(p, '(')) MOX_TRY(parse_signature(p, params));
    mox_tscope *inner = p->scope;
    p->scope = o.scope; /* the call belongs to the scope around */
    MOX_TRY(mox_parse_expression(p, &node->b));
    p->scope = inner;
    if (node->b->kind != MOX_TN_CALL) return mox_parse_fail(p, signature, "a call is missing here");
    MOX_TRY(mox_parse_literal(p, "caller", strlen("caller"), &node->value));
    MOX_TRY(parse_macro_body(p, "endcall", node, params));
    scope_end(p, &o);
    return MOX_OK;
}

static mox_status parse_filter_block(mox_tparser *p, mox_tnode *node)
{
    outer o;
    MOX_TRY(scope_begin(p, &o, &node->scope));
    MOX_TRY(mox_parse_filters(p, NULL, true, &node->b));
    MOX_TRY(parse_block_to(p, "endfilter", &node->body));
    scope_end(p, &o);
    return MOX_OK;
}

static mox_status parse_with(mox_tparser *p, mox_tnode *node)
{
    outer o;
    while (p->now->type != MOX_TT_BLOCK_END) {
        mox_tnode *target, *value;
        if (node->n > 0) MOX_TRY(mox_parse_expect_op(p, ','));
        MOX_TRY(mox_parse_target(p, false, &target));
        MOX_TRY(mox_parse_expect_op(p, '='));
        MOX_TRY(mox_parse_expression(p, &value));
        MOX_TRY(mox_parse_append(p, node, target));
        MOX_TRY(mox_parse_append(p, node, value));
    }
    MOX_TRY(scope_begin(p, &o, &node->scope));
    for (size_t i = 0; i < node->n; i += 2) MOX_TRY(note_target(p, node->list[i], true));
    MOX_TRY(parse_block_to(p, "endwith", &node->body));
    scope_end(p, &o);
    return MOX_OK;
}

static mox_status parse_generation(mox_tparser *p, mox_tnode *node)
{
    outer o;
    MOX_TRY(scope_begin(p, &o, &node->scope));
    MOX_TRY(parse_macro_body(p, "endgeneration", node, NULL));
    scope_end(p, &o);
    return MOX_OK;
}

static mox_status parse_jump(mox_tparser *p, mox_tnode *node)
{
    if (p->loops > 0) return MOX_OK;
    return mox_template_fail(p->t, node->at, p->err, "this is not inside a loop");
}

static mox_status parse_statement(mox_tparser *p, mox_tnode **out)
{
    static const struct {
        const char *word;
        mox_tnode_kind kind;
        mox_status (*parse)(mox_tparser *p, mox_tnode *node);
    } statements[] = {
        {"if", MOX_TN_IF, parse_if},
        {"for", MOX_TN_FOR, parse_for},
        {"set", MOX_TN_SET, parse_set},
        {"macro", MOX_TN_MACRO, parse_macro},
        {"call", MOX_TN_CALL_BLOCK, parse_call_block},
        {"filter", MOX_TN_FILTER_BLOCK, parse_filter_block},
        {"with", MOX_TN_WITH, parse_with},
        {"generation", MOX_TN_SCOPE, parse_generation},
        {"break", MOX_TN_BREAK, parse_jump},
        {"continue", MOX_TN_CONTINUE, parse_jump},
    };
    const mox_ttoken *token = p->now;
    if (token->type != MOX_TT_NAME) return mox_parse_unexpected(p, "the name of a tag");
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!mox_parse_skip_word(p, statements[i].word)) continue;
        const mox_ttoken *around = p->tag;
        p->tag = token;
        MOX_TRY(mox_parse_node(p, statements[i].kind, token, out));
        MOX_TRY(statements[i].parse(p, *out));
        p->tag = around;
        return expect_block_end(p);
    }
    return mox_parse_fail(p, token, "'%.*s' is no tag that is known here", token->n > 60 ? 60 : (int)token->n,
                          token->p);
}

static bool is_end(const mox_tparser *p, const char *const *ends)
{
    for (; *ends; ends++) {
        if (mox_parse_is_word(p, *ends)) return true;
    }
    return false;
}

static mox_status parse_one(mox_tparser *p, mox_tnode **out)
{
    const mox_ttoken *token = p->now++;
    if (token->type == MOX_TT_DATA) {
        MOX_TRY(mox_parse_node(p, MOX_TN_TEXT, token, out));
        return mox_parse_literal(p, token->p, token->n, &(*out)->value);
    }
    if (token->type == MOX_TT_BLOCK_BEGIN) return parse_statement(p, out);
    MOX_TRY(mox_parse_node(p, MOX_TN_PRINT, token, out));
    MOX_TRY(mox_parse_tuple(p, MOX_TUPLE_CHOICE, &(*out)->a));
    if (p->now->type != MOX_TT_PRINT_END) return mox_parse_unexpected(p, "'}}'");
    p->now++;
    return MOX_OK;
}

/* ends NULL: up to the end of the template. */
static mox_status parse_body(mox_tparser *p, const char *const *ends, mox_tnode **out)
{
    mox_tnode **link = out;
    MOX_TRY(mox_parse_enter(p));
    *out = NULL;
    while (p->now->type != MOX_TT_END) {
        if (ends && p->now->type == MOX_TT_BLOCK_BEGIN) {
            p->now++;
            if (is_end(p, ends)) {
                p->nesting--;
                return MOX_OK;
            }
            p->now--;
        }
        MOX_TRY(parse_one(p, link));
        while (*link) link = &(*link)->next;
    }
    p->nesting--;
    if (!ends) return MOX_OK;
    return mox_parse_fail(p, p->tag, "this '%.*s' is never closed", (int)p->tag->n, p->tag->p);
}

mox_status mox_template_parse(mox_template *t, const mox_ttokens *tokens, mox_err *err)
{
    static const char *const known[] = {"loop", "caller", "kwargs", "varargs"}; /* MOX_NAME_* */
    mox_tparser p = {.t = t, .err = err, .now = tokens->token};
    const mox_tscope *root;
    outer o;
    int32_t number;
    t->region.bytes_max = REGION_MAX;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) MOX_TRY(intern(&p, known[i], strlen(known[i]), &number));
    MOX_TRY(scope_begin(&p, &o, &root));
    t->scope = p.scope;
    MOX_TRY(parse_body(&p, NULL, &t->body));
    if (p.unknown) {
        return mox_parse_fail(&p, p.unknown, "there is no filter or test '%.*s'",
                              p.unknown->n > 60 ? 60 : (int)p.unknown->n, p.unknown->p);
    }
    return resolve_hidden(&p);
}
