/* text/template_eval.c -- expressions.
 *
 * Every evaluation is a step, and one inside another a level of depth; both are
 * limited, so neither time nor stack depends on the template's goodwill. */
#include "text/template_internal.h"

#include <string.h>

mox_status mox_eval_truth(mox_render *r, const mox_tnode *e, bool *out)
{
    mox_tv v;
    MOX_TRY(mox_eval(r, e, &v));
    return mox_tv_truth(r, &v, out);
}

/* ---- calls ------------------------------------------------------------------------------------ */

mox_status mox_eval_args(mox_render *r, const mox_tnode_args *args, const mox_tv *caller, mox_targs *out)
{
    static const mox_ts caller_name = {.p = "caller", .n = 6};
    void *pos, *kw, *names;
    const size_t n_pos = args ? args->n_pos : 0, n_kw = args ? args->n_kw : 0;
    *out = (mox_targs){0};
    if (n_pos + n_kw == 0 && !caller) return MOX_OK;
    MOX_TRY(mox_render_take(r, n_pos, sizeof(mox_tv), &pos));
    MOX_TRY(mox_render_take(r, n_kw + 1, sizeof(mox_tv), &kw));
    MOX_TRY(mox_render_take(r, n_kw + 1, sizeof(const mox_ts *), &names));
    mox_tv *p = pos, *k = kw;
    const mox_ts **name = names;
    for (size_t i = 0; i < n_pos; i++) MOX_TRY(mox_eval(r, args->pos[i], &p[i]));
    for (size_t i = 0; i < n_kw; i++) {
        MOX_TRY(mox_eval(r, args->kw[i], &k[i]));
        name[i] = args->kw_name[i];
    }
    if (caller) {
        k[n_kw] = *caller;
        name[n_kw] = &caller_name;
    }
    *out = (mox_targs){p, n_pos, name, k, n_kw + (caller != NULL)};
    return MOX_OK;
}

/* The parameter called name, or -1. */
static int parameter(const char *params, const mox_ts *name)
{
    for (int i = 0; *params; i++) {
        const size_t n = strcspn(params, " ");
        if (n == name->n && memcmp(params, name->p, n) == 0) return i;
        params += n + (params[n] == ' ');
    }
    return -1;
}

static size_t count_parameters(const char *params)
{
    size_t n = *params != '\0';
    for (; *params; params++) n += *params == ' ';
    return n;
}

static mox_status bind(mox_render *r, const mox_tfn *fn, const mox_targs *args, mox_tcall *c)
{
    if (args->n_pos > count_parameters(fn->params))
        return mox_render_fail(r, "'%s' takes at most %zu arguments", fn->name, count_parameters(fn->params));
    for (size_t i = 0; i < args->n_pos; i++) c->arg[i] = args->pos[i];
    for (size_t i = 0; i < args->n_kw; i++) {
        const int at = parameter(fn->params, args->kw_name[i]);
        const mox_ts *name = args->kw_name[i];
        const int n = name->n > 60 ? 60 : (int)name->n;
        if (at < 0) return mox_render_fail(r, "'%s' has no argument '%.*s'", fn->name, n, name->p);
        if (c->arg[at].type != MOX_TV_ABSENT)
            return mox_render_fail(r, "'%s' has two values for '%.*s'", fn->name, n, name->p);
        c->arg[at] = args->kw[i];
    }
    for (int i = 0; i < fn->n_required; i++) {
        if (c->arg[i].type == MOX_TV_ABSENT)
            return mox_render_fail(r, "'%s' needs at least %d arguments", fn->name, fn->n_required);
    }
    return MOX_OK;
}

mox_status mox_fn_apply(mox_render *r, const mox_tfn *fn, const mox_tv *self, const mox_targs *args, mox_tv *out)
{
    mox_tcall c = {.raw = args, .code = fn->code};
    if (self) c.self = *self;
    if (fn->params[0] != '*') MOX_TRY(bind(r, fn, args, &c));
    MOX_TRY(mox_render_enter(r));
    MOX_TRY(fn->call(r, &c, out));
    mox_render_leave(r);
    return MOX_OK;
}

mox_status mox_tv_call(mox_render *r, const mox_tv *callee, const mox_targs *args, mox_tv *out)
{
    switch (callee->type) {
    case MOX_TV_MACRO: return mox_macro_call(r, callee->u.macro, args, out);
    case MOX_TV_FUNCTION: return mox_fn_apply(r, callee->u.function, NULL, args, out);
    case MOX_TV_METHOD: return mox_fn_apply(r, callee->u.method->fn, &callee->u.method->self, args, out);
    case MOX_TV_UNDEFINED: return mox_tv_fail_undefined(r, callee);
    default: return mox_render_fail(r, "a %s cannot be called", mox_tv_type_name(callee));
    }
}

static mox_status eval_call(mox_render *r, const mox_tnode *e, mox_tv *out)
{
    mox_tv callee;
    mox_targs args;
    MOX_TRY(mox_eval(r, e->a, &callee));
    MOX_TRY(mox_eval_args(r, e->args, NULL, &args));
    r->at = e->a->at;
    return mox_tv_call(r, &callee, &args, out);
}

/* A filter or test on a value. */
static mox_status apply(mox_render *r, const mox_tnode *e, const mox_tv *v, mox_tv *out)
{
    mox_targs args;
    MOX_TRY(mox_eval_args(r, e->args, NULL, &args));
    r->at = e->at;
    if (!e->fn) {
        const mox_ts *name = e->value.u.s;
        return mox_render_fail(r, "there is no filter or test '%.*s'", name->n > 60 ? 60 : (int)name->n, name->p);
    }
    return mox_fn_apply(r, e->fn, v, &args, out);
}

mox_status mox_eval_filters(mox_render *r, const mox_tnode *filters, const mox_tv *text, mox_tv *out)
{
    mox_tv v = *text;
    if (filters) {
        MOX_TRY(mox_render_enter(r));
        MOX_TRY(mox_eval_filters(r, filters->a, text, &v));
        MOX_TRY(apply(r, filters, &v, &v));
        mox_render_leave(r);
    }
    *out = v;
    return MOX_OK;
}

/* ---- operators ----------------------------------------------------------------------------------- */

static mox_status eval_binary(mox_render *r, const mox_tnode *e, mox_tv *out)
{
    MOX_TRY(mox_eval(r, e->list[0], out));
    for (size_t i = 1; i < e->n; i++) {
        mox_tv right, left = *out;
        MOX_TRY(mox_eval(r, e->list[i], &right));
        r->at = e->list[i]->at;
        MOX_TRY(mox_tv_binary(r, e->ops[i - 1], &left, &right, out));
    }
    return MOX_OK;
}

static mox_status eval_concat(mox_render *r, const mox_tnode *e, mox_tv *out)
{
    mox_tb b = {0};
    for (size_t i = 0; i < e->n; i++) {
        mox_tv v;
        MOX_TRY(mox_eval(r, e->list[i], &v));
        r->at = e->list[i]->at;
        MOX_TRY(mox_tb_str(r, &b, &v));
    }
    return mox_tb_done(r, &b, out);
}

static mox_status compare(mox_render *r, int op, const mox_tv *a, const mox_tv *b, bool *out)
{
    int order;
    const char name[] = {(char)(op > 255 ? op >> 8 : op), (char)(op > 255 ? '=' : 0), '\0'};
    switch (op) {
    case MOX_OP_IN:
    case MOX_OP_NOT_IN:
        MOX_TRY(mox_tv_contains(r, b, a, out));
        *out ^= op == MOX_OP_NOT_IN;
        return MOX_OK;
    case MOX_OP2('=', '='):
    case MOX_OP2('!', '='):
        MOX_TRY(mox_tv_equal(r, a, b, out));
        *out ^= op == MOX_OP2('!', '=');
        return MOX_OK;
    default: MOX_TRY(mox_tv_order(r, a, b, name, &order));
    }
    *out = order != 2 && (op == '<'                 ? order < 0
                          : op == '>'               ? order > 0
                          : op == MOX_OP2('<', '=') ? order <= 0
                                                    : order >= 0);
    return MOX_OK;
}

static mox_status eval_compare(mox_render *r, const mox_tnode *e, mox_tv *out)
{
    mox_tv left;
    bool holds = true;
    MOX_TRY(mox_eval(r, e->list[0], &left));
    for (size_t i = 1; holds && i < e->n; i++) {
        mox_tv right;
        MOX_TRY(mox_eval(r, e->list[i], &right));
        r->at = e->list[i]->at;
        MOX_TRY(compare(r, e->ops[i - 1], &left, &right, &holds));
        left = right;
    }
    *out = mox_tv_bool(holds);
    return MOX_OK;
}

/* The first operand that decides, or the last. */
static mox_status eval_and_or(mox_render *r, const mox_tnode *e, mox_tv *out)
{
    for (size_t i = 0; i < e->n; i++) {
        bool truth;
        MOX_TRY(mox_eval(r, e->list[i], out));
        MOX_TRY(mox_tv_truth(r, out, &truth));
        if (truth == (e->kind == MOX_TN_OR)) break;
    }
    return MOX_OK;
}

static mox_status eval_choice(mox_render *r, const mox_tnode *e, mox_tv *out)
{
    bool truth;
    MOX_TRY(mox_eval_truth(r, e->b, &truth));
    if (truth) return mox_eval(r, e->a, out);
    if (e->c) return mox_eval(r, e->c, out);
    return mox_tv_undefined(r, "an 'if' without 'else' was false and has no value", out);
}

/* ---- literals, attributes, items -------------------------------------------------------------------- */

static mox_status eval_list(mox_render *r, const mox_tnode *e, mox_tv *out)
{
    MOX_TRY(mox_tv_list(r, e->kind == MOX_TN_LIST ? MOX_TV_LIST : MOX_TV_TUPLE, e->n, out));
    for (size_t i = 0; i < e->n; i++) {
        mox_tv v;
        MOX_TRY(mox_eval(r, e->list[i], &v));
        MOX_TRY(mox_tlist_push(r, out->u.list, &v));
    }
    return MOX_OK;
}

static mox_status eval_dict(mox_render *r, const mox_tnode *e, mox_tv *out)
{
    MOX_TRY(mox_tv_dict(r, out));
    for (size_t i = 0; i < e->n; i += 2) {
        mox_tv key, value;
        MOX_TRY(mox_eval(r, e->list[i], &key));
        MOX_TRY(mox_eval(r, e->list[i + 1], &value));
        r->at = e->list[i]->at;
        MOX_TRY(mox_tdict_set(r, out->u.dict, &key, &value));
    }
    return MOX_OK;
}

static mox_status eval_item(mox_render *r, const mox_tnode *e, mox_tv *out)
{
    mox_tv object, key, bound[3] = {{0}, {0}, {0}};
    MOX_TRY(mox_eval(r, e->a, &object));
    if (e->b->kind != MOX_TN_SLICE) {
        MOX_TRY(mox_eval(r, e->b, &key));
        r->at = e->at;
        return mox_tv_item(r, &object, &key, out);
    }
    for (size_t i = 0; i < 3; i++) {
        if (e->b->list[i]) MOX_TRY(mox_eval(r, e->b->list[i], &bound[i]));
    }
    r->at = e->at;
    return mox_tv_slice(r, &object, bound, out);
}

static mox_status eval_sign(mox_render *r, const mox_tnode *e, mox_tv *out)
{
    mox_tv v;
    MOX_TRY(mox_eval(r, e->a, &v));
    r->at = e->at;
    if (e->kind == MOX_TN_NEGATE) return mox_tv_negate(r, &v, out);
    if (v.type == MOX_TV_UNDEFINED) return mox_tv_fail_undefined(r, &v);
    if (!mox_tv_is_number(&v)) return mox_render_fail(r, "a %s has no sign", mox_tv_type_name(&v));
    *out = v.type == MOX_TV_BOOL ? mox_tv_int(v.u.b) : v;
    return MOX_OK;
}

static mox_status eval_kind(mox_render *r, const mox_tnode *e, mox_tv *out)
{
    mox_tv v;
    bool truth;
    switch (e->kind) {
    case MOX_TN_CONST: *out = e->value; return MOX_OK;
    case MOX_TN_NAME: r->at = e->at; return mox_frame_get(r, e->name, out);
    case MOX_TN_LIST:
    case MOX_TN_TUPLE: return eval_list(r, e, out);
    case MOX_TN_DICT: return eval_dict(r, e, out);
    case MOX_TN_ATTR:
        MOX_TRY(mox_eval(r, e->a, &v));
        r->at = e->at;
        return mox_tv_attr(r, &v, e->value.u.s, out);
    case MOX_TN_ITEM: return eval_item(r, e, out);
    case MOX_TN_CALL: return eval_call(r, e, out);
    case MOX_TN_FILTER:
    case MOX_TN_TEST: MOX_TRY(mox_eval(r, e->a, &v)); return apply(r, e, &v, out);
    case MOX_TN_NOT:
        MOX_TRY(mox_eval_truth(r, e->a, &truth));
        *out = mox_tv_bool(!truth);
        return MOX_OK;
    case MOX_TN_NEGATE:
    case MOX_TN_PLUS: return eval_sign(r, e, out);
    case MOX_TN_BINARY: return eval_binary(r, e, out);
    case MOX_TN_CONCAT: return eval_concat(r, e, out);
    case MOX_TN_COMPARE: return eval_compare(r, e, out);
    case MOX_TN_AND:
    case MOX_TN_OR: return eval_and_or(r, e, out);
    default: return eval_choice(r, e, out); /* MOX_TN_CHOICE: statements and targets do not come here */
    }
}

mox_status mox_eval(mox_render *r, const mox_tnode *e, mox_tv *out)
{
    MOX_TRY(mox_render_enter(r));
    MOX_TRY(eval_kind(r, e, out));
    mox_render_leave(r);
    return MOX_OK;
}
