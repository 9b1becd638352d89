/* text/template_globals.c -- methods of list, tuple and dict, and the functions that
 * every template has. */
#include "text/template_internal.h"

#include <string.h>

enum { RANGE_MAX = 100000 };

/* ---- list and tuple ---------------------------------------------------------------------------------- */

static mox_status list_append(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    *out = mox_tv_none;
    return mox_tlist_push(r, c->self.u.list, &c->arg[0]);
}

static mox_status list_pop(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    mox_tlist *l = c->self.u.list;
    int64_t i;
    MOX_TRY(mox_arg_int(r, &c->arg[0], -1, "the index", &i));
    if (i < 0) i += (int64_t)l->n;
    if (i < 0 || i >= (int64_t)l->n) return mox_render_fail(r, "pop from an empty list, or outside of it");
    *out = l->item[i];
    l->n--;
    MOX_TRY(mox_render_bytes(r, (l->n - (size_t)i) * sizeof *l->item));
    memmove(l->item + i, l->item + i + 1, (l->n - (size_t)i) * sizeof *l->item);
    return MOX_OK;
}

/* count: code 0; index: code 1. */
static mox_status list_search(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_tlist *l = c->self.u.list;
    int64_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        bool equal;
        MOX_TRY(mox_tv_equal(r, &l->item[i], &c->arg[0], &equal));
        n += equal;
        if (!equal || !c->code) continue;
        *out = mox_tv_int((int64_t)i);
        return MOX_OK;
    }
    if (c->code) return mox_render_fail(r, "the value is not in the list");
    *out = mox_tv_int(n);
    return MOX_OK;
}

static mox_status list_copy(mox_render *r, const mox_tcall *c, mox_tv *out) { return mox_tv_to_list(r, &c->self, out); }

/* ---- dict ----------------------------------------------------------------------------------------------- */

static mox_status dict_get(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_tdict *d = c->self.u.dict;
    size_t at;
    if (!mox_tv_hashable(&c->arg[0])) return mox_render_fail(r, "a %s cannot be a key", mox_tv_type_name(&c->arg[0]));
    MOX_TRY(mox_tdict_find(r, d, &c->arg[0], &at));
    *out = at < d->n ? d->value[at] : c->arg[1].type == MOX_TV_ABSENT ? mox_tv_none : c->arg[1];
    return MOX_OK;
}

static mox_status dict_view(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    (void)r;
    *out = (mox_tv){.type = MOX_TV_VIEW, .view = (uint8_t)c->code, .u.dict = c->self.u.dict};
    return MOX_OK;
}

static mox_status add_dict(mox_render *r, mox_tdict *to, const mox_tdict *from)
{
    for (size_t i = 0; i < from->n; i++) MOX_TRY(mox_tdict_set(r, to, &from->key[i], &from->value[i]));
    return MOX_OK;
}

static mox_status dict_copy(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    MOX_TRY(mox_tv_dict(r, out));
    return add_dict(r, out->u.dict, c->self.u.dict);
}

const mox_tfn *mox_container_method_find(mox_tv_type type, const char *name, size_t n)
{
    static const mox_tfn of_list[] = {
        {"count", list_search, "value", 1, 0},   {"index", list_search, "value", 1, 1},
        {"append", list_append, "object", 1, 0}, {"copy", list_copy, "", 0, 0},
        {"pop", list_pop, "index", 0, 0},
    };
    static const mox_tfn of_dict[] = {
        {"copy", dict_copy, "", 0, 0},
        {"get", dict_get, "key default", 1, 0},
        {"items", dict_view, "", 0, MOX_VIEW_ITEMS},
        {"keys", dict_view, "", 0, MOX_VIEW_KEYS},
        {"values", dict_view, "", 0, MOX_VIEW_VALUES},
    };
    if (type == MOX_TV_DICT) return mox_fn_find(of_dict, sizeof of_dict / sizeof *of_dict, name, n);
    const size_t n_list = type == MOX_TV_TUPLE ? 2 : sizeof of_list / sizeof *of_list; /* tuples do not change */
    return mox_fn_find(of_list, n_list, name, n);
}

/* ---- globals ---------------------------------------------------------------------------------------------- */

static mox_status global_range(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    int64_t start = 0, stop, step;
    void *memory;
    MOX_TRY(mox_arg_int(r, &c->arg[0], 0, "range", &stop));
    if (c->arg[1].type != MOX_TV_ABSENT) {
        start = stop;
        MOX_TRY(mox_arg_int(r, &c->arg[1], 0, "range", &stop));
    }
    MOX_TRY(mox_arg_int(r, &c->arg[2], 1, "range", &step));
    if (step == 0) return mox_render_fail(r, "the step of a range is zero");
    const __int128 distance = step > 0 ? (__int128)stop - start : (__int128)start - stop;
    const __int128 size = step > 0 ? step : -(__int128)step, n = distance > 0 ? (distance - 1) / size + 1 : 0;
    if (n > RANGE_MAX) return mox_render_fail(r, "a range has at most %d items", RANGE_MAX);
    MOX_TRY(mox_render_take(r, 1, sizeof(mox_trange), &memory));
    *(mox_trange *)memory = (mox_trange){start, stop, step, (int64_t)n};
    *out = (mox_tv){.type = MOX_TV_RANGE, .u.range = memory};
    return MOX_OK;
}

/* One item of what a dict is made from: a key and its value. */
static mox_status add_pair(mox_render *r, mox_tdict *d, const mox_tv *pair)
{
    mox_tv list;
    MOX_TRY(mox_tv_to_list(r, pair, &list));
    if (list.u.list->n != 2) return mox_render_fail(r, "a dict is made from pairs");
    return mox_tdict_set(r, d, &list.u.list->item[0], &list.u.list->item[1]);
}

/* dict: code 0; namespace: code 1.  From a mapping or pairs, and named arguments. */
static mox_status global_dict(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_targs *args = c->raw;
    if (args->n_pos > 1) return mox_render_fail(r, "a dict is made from at most one value and from names");
    MOX_TRY(mox_tv_dict(r, out));
    if (args->n_pos == 1 && args->pos[0].type == MOX_TV_DICT) {
        MOX_TRY(add_dict(r, out->u.dict, args->pos[0].u.dict));
    } else if (args->n_pos == 1) {
        mox_tv items;
        MOX_TRY(mox_tv_to_list(r, &args->pos[0], &items));
        for (size_t i = 0; i < items.u.list->n; i++) MOX_TRY(add_pair(r, out->u.dict, &items.u.list->item[i]));
    }
    for (size_t i = 0; i < args->n_kw; i++) {
        const mox_tv key = mox_tv_string(args->kw_name[i]);
        MOX_TRY(mox_tdict_set(r, out->u.dict, &key, &args->kw[i]));
    }
    if (c->code) out->type = MOX_TV_NAMESPACE;
    return MOX_OK;
}

static mox_status global_raise(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *message;
    (void)out;
    MOX_TRY(mox_tv_str(r, &c->arg[0], &message));
    return mox_render_refuse(r, message);
}

static mox_status global_time(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *format;
    MOX_TRY(mox_arg_string(r, &c->arg[0], "the format of a time", &format));
    return mox_format_time(r, format, out);
}

const mox_tfn *mox_global_find(const char *name, size_t n)
{
    static const mox_tfn globals[] = {
        {"range", global_range, "start stop step", 1, 0},
        {"dict", global_dict, "*", 0, 0},
        {"namespace", global_dict, "*", 0, 1},
        {"raise_exception", global_raise, "message", 1, 0},
        {"strftime_now", global_time, "format", 1, 0},
    };
    return mox_fn_find(globals, sizeof globals / sizeof *globals, name, n);
}
