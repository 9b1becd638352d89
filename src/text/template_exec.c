/* text/template_exec.c -- statements, macros, and the frames that variables live in.
 *
 * Loops, macros and blocks have a frame of their own; a name is looked for from the
 * innermost frame outward, then among the caller's variables, then among the globals.
 * A loop clears its frame for every item. */
#include "text/template_internal.h"

#include <string.h>

/* ---- frames ------------------------------------------------------------------------------------ */

mox_status mox_frame_set(mox_render *r, mox_tframe *f, int32_t name, const mox_tv *v)
{
    size_t i = 0;
    while (i < f->n && f->name[i] != name) i++;
    MOX_TRY(mox_render_bytes(r, i * 4));
    if (i == f->capacity) {
        const size_t capacity = f->capacity ? f->capacity * 2 : 8;
        void *names = f->name, *values = f->value;
        MOX_TRY(mox_render_grow(r, &names, f->capacity, capacity, sizeof *f->name));
        f->name = names;
        MOX_TRY(mox_render_grow(r, &values, f->capacity, capacity, sizeof *f->value));
        f->value = values;
        f->capacity = capacity;
    }
    f->name[i] = name;
    f->value[i] = *v;
    if (i == f->n) f->n++;
    return MOX_OK;
}

mox_status mox_frame_hide(mox_render *r, mox_tframe *f, const mox_tscope *scope)
{
    static const mox_tv absent = {.type = MOX_TV_ABSENT};
    for (size_t i = 0; i < scope->n_hidden; i++) MOX_TRY(mox_frame_set(r, f, scope->hidden[i], &absent));
    return MOX_OK;
}

mox_status mox_frame_push(mox_render *r, const mox_tscope *scope, mox_tframe **out)
{
    void *memory;
    MOX_TRY(mox_render_take(r, 1, sizeof(mox_tframe), &memory));
    mox_tframe *f = memory;
    *f = (mox_tframe){.parent = r->frame};
    MOX_TRY(mox_frame_hide(r, f, scope));
    r->frame = *out = f;
    return MOX_OK;
}

void mox_frame_pop(mox_render *r) { r->frame = r->frame->parent; }

mox_status mox_frame_get(mox_render *r, int32_t name, mox_tv *out)
{
    const mox_tname *text = &r->t->names[name];
    *out = r->context[name];
    if (out->type == MOX_TV_ABSENT && text->global)
        *out = (mox_tv){.type = MOX_TV_FUNCTION, .u.function = text->global};
    for (const mox_tframe *f = r->frame; f; f = f->parent) {
        size_t i = 0;
        while (i < f->n && f->name[i] != name) i++;
        MOX_TRY(mox_render_bytes(r, i * 4));
        if (i == f->n) continue;
        *out = f->value[i];
        break;
    }
    if (out->type != MOX_TV_ABSENT) return MOX_OK;
    const mox_ts *s;
    MOX_TRY(mox_ts_make(r, text->p, text->n, false, &s));
    const mox_tv key = mox_tv_string(s);
    return mox_tv_missing(r, MOX_TV_ABSENT, &key, out);
}

static mox_status assign_member(mox_render *r, const mox_tnode *target, const mox_tv *v)
{
    mox_tv space;
    r->at = target->at;
    MOX_TRY(mox_frame_get(r, target->name, &space));
    if (space.type != MOX_TV_NAMESPACE) return mox_render_fail(r, "only namespaces have attributes that can be set");
    return mox_tdict_set(r, space.u.dict, &target->value, v);
}

mox_status mox_assign(mox_render *r, const mox_tnode *target, mox_tframe *f, const mox_tv *v)
{
    mox_tv list;
    if (target->kind == MOX_TN_NAME) return mox_frame_set(r, f, target->name, v);
    if (target->kind == MOX_TN_MEMBER) return assign_member(r, target, v);
    r->at = target->at;
    MOX_TRY(mox_tv_to_list(r, v, &list));
    if (list.u.list->n != target->n) {
        return mox_render_fail(r, "%zu values for %zu names", list.u.list->n, target->n);
    }
    for (size_t i = 0; i < target->n; i++) MOX_TRY(mox_assign(r, target->list[i], f, &list.u.list->item[i]));
    return MOX_OK;
}

/* ---- bodies whose output is a value ------------------------------------------------------------------ */

static mox_status capture(mox_render *r, const mox_tnode *body, mox_tv *out, mox_tflow *flow)
{
    mox_tb text = {0}, *around = r->out;
    r->out = &text;
    MOX_TRY(mox_exec(r, body, flow));
    r->out = around;
    return mox_tb_done(r, &text, out);
}

static mox_status print(mox_render *r, const mox_tv *v) { return mox_tb_str(r, r->out, v); }

/* ---- macros ---------------------------------------------------------------------------------------------- */

/* The argument for parameter i, or NULL; a named one is marked as used. */
static const mox_tv *argument(const mox_render *r, const mox_tparams *p, size_t i, const mox_targs *args, bool *used)
{
    const mox_tname *name = &r->t->names[p->name[i]];
    if (i < args->n_pos) return &args->pos[i];
    for (size_t k = 0; k < args->n_kw; k++) {
        if (args->kw_name[k]->n != name->n || memcmp(args->kw_name[k]->p, name->p, name->n) != 0) continue;
        used[k] = true;
        return &args->kw[k];
    }
    return NULL;
}

static mox_status bind_parameters(mox_render *r, const mox_tparams *p, mox_tframe *f, const mox_targs *args, bool *used)
{
    static const mox_tv absent = {.type = MOX_TV_ABSENT};
    for (size_t i = 0; i < p->n; i++) { /* all names first: a default may mention them */
        const mox_tv *v = argument(r, p, i, args, used);
        MOX_TRY(mox_frame_set(r, f, p->name[i], v ? v : &absent));
    }
    for (size_t i = 0; i < p->n; i++) {
        mox_tv v;
        if (argument(r, p, i, args, used)) continue;
        if (p->otherwise[i]) {
            MOX_TRY(mox_eval(r, p->otherwise[i], &v));
        } else {
            MOX_TRY(mox_tv_undefined(r, "this parameter of a macro was not provided", &v));
        }
        MOX_TRY(mox_frame_set(r, f, p->name[i], &v));
    }
    return MOX_OK;
}

static mox_status bind_caller(mox_render *r, mox_tframe *f, const mox_targs *args, bool *used)
{
    mox_tv caller;
    MOX_TRY(mox_tv_undefined(r, "there is no caller", &caller));
    for (size_t k = 0; k < args->n_kw; k++) {
        if (!mox_ts_is(args->kw_name[k], "caller")) continue;
        caller = args->kw[k];
        used[k] = true;
    }
    return mox_frame_set(r, f, MOX_NAME_CALLER, &caller);
}

/* Arguments that no parameter took. */
static mox_status bind_rest(mox_render *r, const mox_tmacro *m, mox_tframe *f, const mox_targs *args, const bool *used)
{
    const mox_tparams *p = m->node->params;
    mox_tv named, rest;
    MOX_TRY(mox_tv_dict(r, &named));
    MOX_TRY(mox_tv_list(r, MOX_TV_TUPLE, 0, &rest));
    for (size_t k = 0; k < args->n_kw; k++) {
        if (used[k]) continue;
        const mox_ts *name = args->kw_name[k];
        if (!p->kwargs)
            return mox_render_fail(r, "a macro takes no argument '%.*s'", name->n > 60 ? 60 : (int)name->n, name->p);
        const mox_tv key = mox_tv_string(name);
        MOX_TRY(mox_tdict_set(r, named.u.dict, &key, &args->kw[k]));
    }
    for (size_t i = p->n; i < args->n_pos; i++) {
        if (!p->varargs) return mox_render_fail(r, "a macro takes at most %zu arguments", p->n);
        MOX_TRY(mox_tlist_push(r, rest.u.list, &args->pos[i]));
    }
    if (p->kwargs) MOX_TRY(mox_frame_set(r, f, MOX_NAME_KWARGS, &named));
    return p->varargs ? mox_frame_set(r, f, MOX_NAME_VARARGS, &rest) : MOX_OK;
}

mox_status mox_macro_call(mox_render *r, const mox_tmacro *m, const mox_targs *args, mox_tv *out)
{
    mox_tframe *around = r->frame, *f;
    mox_tflow flow;
    void *used;
    MOX_TRY(mox_render_enter(r));
    MOX_TRY(mox_render_take(r, args->n_kw, sizeof(bool), &used));
    memset(used, 0, args->n_kw);
    r->frame = m->frame;
    MOX_TRY(mox_frame_push(r, m->node->scope, &f));
    MOX_TRY(bind_parameters(r, m->node->params, f, args, used));
    if (m->node->params->caller) MOX_TRY(bind_caller(r, f, args, used));
    MOX_TRY(bind_rest(r, m, f, args, used));
    MOX_TRY(capture(r, m->node->body, out, &flow));
    r->frame = around;
    mox_render_leave(r);
    return MOX_OK;
}

static mox_status make_macro(mox_render *r, const mox_tnode *node, mox_tv *out)
{
    void *memory;
    MOX_TRY(mox_render_take(r, 1, sizeof(mox_tmacro), &memory));
    *(mox_tmacro *)memory = (mox_tmacro){node, r->frame, node->value.u.s};
    *out = (mox_tv){.type = MOX_TV_MACRO, .u.macro = memory};
    return MOX_OK;
}

static mox_status exec_call_block(mox_render *r, const mox_tnode *s)
{
    mox_tv caller, callee, v;
    mox_targs args;
    MOX_TRY(make_macro(r, s, &caller));
    MOX_TRY(mox_eval(r, s->b->a, &callee));
    MOX_TRY(mox_eval_args(r, s->b->args, &caller, &args));
    r->at = s->at;
    MOX_TRY(mox_tv_call(r, &callee, &args, &v));
    return print(r, &v);
}

/* ---- statements ----------------------------------------------------------------------------------------------- */

static mox_status exec_if(mox_render *r, const mox_tnode *s, mox_tflow *flow)
{
    for (;;) {
        bool truth;
        MOX_TRY(mox_eval_truth(r, s->a, &truth));
        if (truth) return mox_exec(r, s->b, flow);
        /* An elif, or an if alone in an else, which is the same: no level deeper. */
        if (!s->c || s->c->kind != MOX_TN_IF || s->c->next) return mox_exec(r, s->c, flow);
        s = s->c;
    }
}

/* The turn of a loop with this item has written the prompt from begin on. */
static void note_written(mox_render *r, const mox_tv *item, size_t begin)
{
    if (r->out != r->prompt || r->out->n == begin || item->type != MOX_TV_DICT) return;
    const size_t place = item->u.dict->message;
    if (place > 0 && place <= r->opts.n_written) r->opts.written[place - 1] = (mox_text_span){begin, r->out->n};
}

static mox_status run_loop(mox_render *r, const mox_tnode *s, mox_tloop *l, bool *any)
{
    const mox_tv self = {.type = MOX_TV_LOOP, .u.loop = l};
    mox_tframe *f;
    mox_tflow flow = MOX_FLOW_NEXT;
    MOX_TRY(mox_frame_push(r, s->scope, &f));
    while (flow != MOX_FLOW_BREAK) {
        mox_tv item;
        bool more;
        MOX_TRY(mox_loop_next(r, l, &item, &more));
        if (!more) break;
        f->n = 0;
        MOX_TRY(mox_frame_hide(r, f, s->scope));
        MOX_TRY(mox_frame_set(r, f, MOX_NAME_LOOP, &self));
        MOX_TRY(mox_assign(r, s->a, f, &item));
        const size_t begin = r->out->n;
        MOX_TRY(mox_exec(r, s->body, &flow));
        note_written(r, &item, begin);
        if (flow == MOX_FLOW_NEXT) *any = true; /* as in Jinja, a body that was left early does not count */
    }
    mox_frame_pop(r);
    return MOX_OK;
}

static mox_status exec_for(mox_render *r, const mox_tnode *s, mox_tflow *flow)
{
    mox_tv v;
    void *memory;
    bool any = false;
    MOX_TRY(mox_eval(r, s->b, &v));
    r->at = s->b->at;
    MOX_TRY(mox_render_take(r, 1, sizeof(mox_tloop), &memory));
    mox_tloop *l = memory;
    *l = (mox_tloop){.node = s, .frame = r->frame, .index0 = -1, .length = -1, .filtered = s->test != NULL};
    MOX_TRY(mox_titer_init(r, &v, &l->items));
    MOX_TRY(run_loop(r, s, l, &any));
    if (any || !s->c) return MOX_OK;
    mox_tframe *f;
    MOX_TRY(mox_frame_push(r, s->else_scope, &f));
    MOX_TRY(mox_exec(r, s->c, flow));
    mox_frame_pop(r);
    return MOX_OK;
}

/* A body with variables of its own, captured and sent through filters. */
static mox_status exec_captured(mox_render *r, const mox_tnode *s, mox_tv *out, mox_tflow *flow)
{
    mox_tframe *f;
    mox_tv text;
    MOX_TRY(mox_frame_push(r, s->scope, &f));
    MOX_TRY(capture(r, s->body, &text, flow));
    if (*flow == MOX_FLOW_NEXT) MOX_TRY(mox_eval_filters(r, s->b, &text, out));
    mox_frame_pop(r);
    return MOX_OK;
}

static mox_status exec_with(mox_render *r, const mox_tnode *s, mox_tflow *flow)
{
    mox_tframe *around = r->frame, *f;
    MOX_TRY(mox_frame_push(r, s->scope, &f));
    for (size_t i = 0; i < s->n; i += 2) {
        mox_tv v;
        r->frame = around; /* values do not see each other */
        MOX_TRY(mox_eval(r, s->list[i + 1], &v));
        MOX_TRY(mox_assign(r, s->list[i], f, &v));
    }
    r->frame = f;
    MOX_TRY(mox_exec(r, s->body, flow));
    mox_frame_pop(r);
    return MOX_OK;
}

static mox_status exec_one(mox_render *r, const mox_tnode *s, mox_tflow *flow)
{
    mox_tv v;
    mox_tframe *f;
    r->at = s->at;
    switch (s->kind) {
    case MOX_TN_TEXT: return mox_tb_string(r, r->out, s->value.u.s);
    case MOX_TN_PRINT:
        MOX_TRY(mox_eval(r, s->a, &v));
        r->at = s->a->at;
        return print(r, &v);
    case MOX_TN_IF: return exec_if(r, s, flow);
    case MOX_TN_FOR: return exec_for(r, s, flow);
    case MOX_TN_SET: MOX_TRY(mox_eval(r, s->b, &v)); return mox_assign(r, s->a, r->frame, &v);
    case MOX_TN_SET_BLOCK:
    case MOX_TN_FILTER_BLOCK:
        MOX_TRY(exec_captured(r, s, &v, flow));
        if (*flow != MOX_FLOW_NEXT) return MOX_OK;
        return s->kind == MOX_TN_SET_BLOCK ? mox_assign(r, s->a, r->frame, &v) : print(r, &v);
    case MOX_TN_MACRO: MOX_TRY(make_macro(r, s, &v)); return mox_frame_set(r, r->frame, s->name, &v);
    case MOX_TN_CALL_BLOCK: return exec_call_block(r, s);
    case MOX_TN_WITH: return exec_with(r, s, flow);
    case MOX_TN_SCOPE:
        MOX_TRY(mox_frame_push(r, s->scope, &f));
        MOX_TRY(mox_exec(r, s->body, flow));
        mox_frame_pop(r);
        return MOX_OK;
    case MOX_TN_BREAK: *flow = MOX_FLOW_BREAK; return MOX_OK;
    default: *flow = MOX_FLOW_CONTINUE; return MOX_OK; /* MOX_TN_CONTINUE: no expression is a statement */
    }
}

mox_status mox_exec(mox_render *r, const mox_tnode *first, mox_tflow *flow)
{
    *flow = MOX_FLOW_NEXT;
    MOX_TRY(mox_render_enter(r));
    for (const mox_tnode *s = first; s && *flow == MOX_FLOW_NEXT; s = s->next) {
        MOX_TRY(mox_render_step(r));
        MOX_TRY(exec_one(r, s, flow));
    }
    mox_render_leave(r);
    return MOX_OK;
}
