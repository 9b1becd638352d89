/* text/template_sequence.c -- filters on sequences, and sorting.
 *
 * Where Python has a generator there is an iterator here that already knows its
 * items: it can be gone through once, has no length and is always true. */
#include "text/template_internal.h"

#include <string.h>

/* ---- sorting -------------------------------------------------------------------------------------- */

static mox_status merge(mox_render *r, const mox_tv *key, const size_t *from, size_t begin, size_t middle, size_t end,
                        bool reverse, size_t *to)
{
    size_t i = begin, j = middle;
    for (size_t k = begin; k < end; k++) {
        bool right = i == middle;
        if (i < middle && j < end) {
            int order;
            MOX_TRY(mox_tv_order(r, &key[from[j]], &key[from[i]], "<", &order));
            right = order == (reverse ? 1 : -1);
        }
        to[k] = right ? from[j++] : from[i++];
    }
    return MOX_OK;
}

mox_status mox_sorted(mox_render *r, const mox_tv *key, size_t n, bool reverse, const size_t **out)
{
    void *memory[2];
    for (int i = 0; i < 2; i++) MOX_TRY(mox_render_take(r, n, sizeof(size_t), &memory[i]));
    size_t *from = memory[0], *to = memory[1];
    for (size_t i = 0; i < n; i++) from[i] = i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t begin = 0; begin < n; begin += 2 * width) {
            const size_t middle = begin + width < n ? begin + width : n, end = middle + width < n ? middle + width : n;
            MOX_TRY(merge(r, key, from, begin, middle, end, reverse, to));
        }
        size_t *swap = from;
        from = to;
        to = swap;
    }
    *out = from;
    return MOX_OK;
}

/* ---- attributes of items --------------------------------------------------------------------------- */

/* One step of a path: digits are an index. */
static mox_status path_step(mox_render *r, const mox_tv *object, const mox_ts *path, size_t begin, size_t end,
                            mox_tv *out)
{
    mox_tv key;
    int64_t index = 0;
    bool digits = end > begin && end - begin < 10;
    for (size_t i = begin; i < end; i++) {
        digits = digits && path->p[i] >= '0' && path->p[i] <= '9';
        if (digits) index = index * 10 + (path->p[i] - '0');
    }
    if (digits) {
        key = mox_tv_int(index);
    } else {
        MOX_TRY(mox_ts_part(r, path, begin, end, &key));
    }
    return mox_tv_item(r, object, &key, out);
}

/* item at a path such as "function.name" or 0.  Without one, the item itself; otherwise
 * stands for what is undefined on the way. */
static mox_status get_path(mox_render *r, const mox_tv *item, const mox_tv *path, const mox_tv *otherwise, mox_tv *out)
{
    mox_tv v = *item;
    *out = v;
    if (path->type == MOX_TV_ABSENT || path->type == MOX_TV_NONE) return MOX_OK;
    if (path->type != MOX_TV_STRING) {
        MOX_TRY(mox_tv_item(r, &v, path, out));
        if (out->type == MOX_TV_UNDEFINED && otherwise) *out = *otherwise;
        return MOX_OK;
    }
    const mox_ts *s = path->u.s;
    MOX_TRY(mox_tv_pay(r, path));
    for (size_t begin = 0; begin <= s->n;) {
        size_t end = begin;
        while (end < s->n && s->p[end] != '.') end++;
        MOX_TRY(path_step(r, &v, s, begin, end, out));
        if (out->type == MOX_TV_UNDEFINED && otherwise) *out = *otherwise;
        v = *out;
        begin = end + 1;
    }
    return MOX_OK;
}

/* What an item is compared by. */
static mox_status key_of(mox_render *r, const mox_tv *item, const mox_tv *path, bool case_sensitive, mox_tv *out)
{
    MOX_TRY(get_path(r, item, path, NULL, out));
    if (case_sensitive || out->type != MOX_TV_STRING) return MOX_OK;
    return mox_ts_case(r, out->u.s, MOX_CASE_LOWER, out);
}

/* Several paths, separated by commas, make a list. */
static mox_status multi_key_of(mox_render *r, const mox_tv *item, const mox_tv *paths, bool case_sensitive, mox_tv *out)
{
    mox_tv key, path;
    MOX_TRY(mox_tv_list(r, MOX_TV_LIST, 1, out));
    if (paths->type != MOX_TV_STRING) {
        MOX_TRY(key_of(r, item, paths, case_sensitive, &key));
        return mox_tlist_push(r, out->u.list, &key);
    }
    const mox_ts *s = paths->u.s;
    MOX_TRY(mox_tv_pay(r, paths));
    for (size_t begin = 0; begin <= s->n;) {
        size_t end = begin;
        while (end < s->n && s->p[end] != ',') end++;
        MOX_TRY(mox_ts_part(r, s, begin, end, &path));
        MOX_TRY(key_of(r, item, &path, case_sensitive, &key));
        MOX_TRY(mox_tlist_push(r, out->u.list, &key));
        begin = end + 1;
    }
    return MOX_OK;
}

static mox_status sorted_list(mox_render *r, const mox_tlist *items, const mox_tv *keys, bool reverse, mox_tv *out)
{
    const size_t *order;
    MOX_TRY(mox_sorted(r, keys, items->n, reverse, &order));
    MOX_TRY(mox_tv_list(r, MOX_TV_LIST, items->n, out));
    for (size_t i = 0; i < items->n; i++) MOX_TRY(mox_tlist_push(r, out->u.list, &items->item[order[i]]));
    return MOX_OK;
}

static mox_status filter_sort(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    bool reverse, case_sensitive;
    mox_tv items;
    void *keys;
    MOX_TRY(mox_arg_truth(r, &c->arg[0], false, &reverse));
    MOX_TRY(mox_arg_truth(r, &c->arg[1], false, &case_sensitive));
    MOX_TRY(mox_tv_to_list(r, &c->self, &items));
    MOX_TRY(mox_render_take(r, items.u.list->n, sizeof(mox_tv), &keys));
    for (size_t i = 0; i < items.u.list->n; i++) {
        MOX_TRY(multi_key_of(r, &items.u.list->item[i], &c->arg[2], case_sensitive, (mox_tv *)keys + i));
    }
    return sorted_list(r, items.u.list, keys, reverse, out);
}

static mox_status filter_dictsort(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    bool case_sensitive, reverse, by_value = false;
    mox_tv items;
    void *keys;
    if (c->self.type == MOX_TV_UNDEFINED) return mox_tv_fail_undefined(r, &c->self);
    if (c->self.type != MOX_TV_DICT) return mox_render_fail(r, "dictsort of a %s", mox_tv_type_name(&c->self));
    MOX_TRY(mox_arg_truth(r, &c->arg[0], false, &case_sensitive));
    MOX_TRY(mox_arg_truth(r, &c->arg[2], false, &reverse));
    if (c->arg[1].type != MOX_TV_ABSENT) {
        const mox_ts *by;
        MOX_TRY(mox_arg_string(r, &c->arg[1], "by", &by));
        by_value = mox_ts_is(by, "value");
        if (!by_value && !mox_ts_is(by, "key")) return mox_render_fail(r, "dictsort goes by key or value");
    }
    const mox_tv view = {.type = MOX_TV_VIEW, .view = MOX_VIEW_ITEMS, .u.dict = c->self.u.dict};
    MOX_TRY(mox_tv_to_list(r, &view, &items));
    MOX_TRY(mox_render_take(r, items.u.list->n, sizeof(mox_tv), &keys));
    const mox_tv at = mox_tv_int(by_value);
    for (size_t i = 0; i < items.u.list->n; i++) {
        MOX_TRY(key_of(r, &items.u.list->item[i], &at, case_sensitive, (mox_tv *)keys + i));
    }
    return sorted_list(r, items.u.list, keys, reverse, out);
}

/* min: code 0; max: code 1.  Of equals the first. */
static mox_status filter_extreme(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    bool case_sensitive;
    mox_tv items, best;
    MOX_TRY(mox_arg_truth(r, &c->arg[0], false, &case_sensitive));
    MOX_TRY(mox_tv_to_list(r, &c->self, &items));
    const mox_tlist *l = items.u.list;
    if (l->n == 0) return mox_tv_undefined(r, "the sequence was empty", out);
    for (size_t i = 0; i < l->n; i++) {
        mox_tv key;
        int order = 0;
        MOX_TRY(key_of(r, &l->item[i], &c->arg[1], case_sensitive, &key));
        if (i > 0) MOX_TRY(mox_tv_order(r, &key, &best, c->code ? ">" : "<", &order));
        if (i > 0 && order != (c->code ? 1 : -1)) continue;
        best = key;
        *out = l->item[i];
    }
    return MOX_OK;
}

/* ---- choosing and changing items ---------------------------------------------------------------------- */

/* A function by its name, which is the first argument from `off` on; args get the rest. */
static mox_status named(mox_render *r, const mox_tcall *c, size_t off, const mox_tfn *find(const char *, size_t),
                        const mox_tfn **fn, mox_targs *args)
{
    const mox_ts *name;
    MOX_TRY(mox_arg_string(r, &c->raw->pos[off], "the name of a filter or test", &name));
    *fn = find(name->p, name->n);
    if (!*fn) return mox_render_fail(r, "there is no filter or test '%.*s'", name->n > 60 ? 60 : (int)name->n, name->p);
    *args = *c->raw;
    args->pos += off + 1;
    args->n_pos -= off + 1;
    return MOX_OK;
}

/* map(attribute=path, default=value), or map(filter, arguments...). */
static mox_status map_item(mox_render *r, const mox_tcall *c, const mox_tv *item, mox_tv *out)
{
    const mox_tfn *fn;
    mox_targs args;
    if (c->raw->n_pos > 0) {
        MOX_TRY(named(r, c, 0, mox_filter_find, &fn, &args));
        return mox_fn_apply(r, fn, item, &args, out);
    }
    const mox_tv *path = NULL, *otherwise = NULL;
    for (size_t i = 0; i < c->raw->n_kw; i++) {
        const bool attribute = mox_ts_is(c->raw->kw_name[i], "attribute");
        if (!attribute && !mox_ts_is(c->raw->kw_name[i], "default"))
            return mox_render_fail(r, "map has no such argument");
        *(attribute ? &path : &otherwise) = &c->raw->kw[i];
    }
    if (!path) return mox_render_fail(r, "map needs a filter or an attribute");
    if (otherwise && otherwise->type == MOX_TV_NONE) otherwise = NULL;
    return get_path(r, item, path, otherwise, out);
}

enum { SELECT = 0, REJECT = 1, BY_ATTRIBUTE = 2, MAP = 4 };

static mox_status keeps(mox_render *r, const mox_tcall *c, const mox_tv *item, bool *out)
{
    const size_t off = c->code & BY_ATTRIBUTE ? 1 : 0;
    mox_tv v = *item, answer;
    if (c->raw->n_pos < off) return mox_render_fail(r, "the name of an attribute is missing");
    if (off > 0) MOX_TRY(get_path(r, item, &c->raw->pos[0], NULL, &v));
    answer = v;
    if (c->raw->n_pos > off) {
        const mox_tfn *fn;
        mox_targs args;
        MOX_TRY(named(r, c, off, mox_test_find, &fn, &args));
        MOX_TRY(mox_fn_apply(r, fn, &v, &args, &answer));
    }
    MOX_TRY(mox_tv_truth(r, &answer, out));
    *out ^= (c->code & REJECT) != 0;
    return MOX_OK;
}

static mox_status filter_each(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    mox_tv list, item;
    mox_titer it;
    bool more;
    MOX_TRY(mox_tv_list(r, MOX_TV_LIST, 4, &list));
    MOX_TRY(mox_tv_truth(r, &c->self, &more));
    if (more) MOX_TRY(mox_titer_init(r, &c->self, &it)); /* what is false has no items, whatever it is */
    while (more) {
        MOX_TRY(mox_titer_next(r, &it, &item, &more));
        if (!more) break;
        bool keep = true;
        if (c->code == MAP) {
            const mox_tv from = item;
            MOX_TRY(map_item(r, c, &from, &item));
        } else {
            MOX_TRY(keeps(r, c, &item, &keep));
        }
        if (keep) MOX_TRY(mox_tlist_push(r, list.u.list, &item));
    }
    return mox_tv_iterator(r, &list, out);
}

static mox_status filter_unique(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    mox_tv items, seen, list;
    bool case_sensitive;
    MOX_TRY(mox_arg_truth(r, &c->arg[0], false, &case_sensitive));
    MOX_TRY(mox_tv_to_list(r, &c->self, &items));
    MOX_TRY(mox_tv_dict(r, &seen));
    MOX_TRY(mox_tv_list(r, MOX_TV_LIST, 4, &list));
    for (size_t i = 0; i < items.u.list->n; i++) {
        mox_tv key;
        const size_t n = seen.u.dict->n;
        MOX_TRY(key_of(r, &items.u.list->item[i], &c->arg[1], case_sensitive, &key));
        MOX_TRY(mox_tdict_set(r, seen.u.dict, &key, &mox_tv_none));
        if (seen.u.dict->n > n) MOX_TRY(mox_tlist_push(r, list.u.list, &items.u.list->item[i]));
    }
    return mox_tv_iterator(r, &list, out);
}

/* ---- one value from many ---------------------------------------------------------------------------------- */

static mox_status filter_join(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    mox_tb b = {0};
    mox_titer it;
    mox_tv item, v;
    bool more;
    MOX_TRY(mox_titer_init(r, &c->self, &it));
    for (size_t i = 0;; i++) {
        MOX_TRY(mox_titer_next(r, &it, &item, &more));
        if (!more) return mox_tb_done(r, &b, out);
        if (i > 0 && c->arg[0].type != MOX_TV_ABSENT) MOX_TRY(mox_tb_str(r, &b, &c->arg[0]));
        MOX_TRY(get_path(r, &item, &c->arg[1], NULL, &v));
        MOX_TRY(mox_tb_str(r, &b, &v));
    }
}

static mox_status filter_sum(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    mox_titer it;
    mox_tv item, v;
    bool more;
    *out = c->arg[1].type == MOX_TV_ABSENT ? mox_tv_int(0) : c->arg[1];
    if (out->type == MOX_TV_STRING) return mox_render_fail(r, "sum does not add strings: use join");
    MOX_TRY(mox_titer_init(r, &c->self, &it));
    for (;;) {
        const mox_tv so_far = *out;
        MOX_TRY(mox_titer_next(r, &it, &item, &more));
        if (!more) return MOX_OK;
        MOX_TRY(get_path(r, &item, &c->arg[0], NULL, &v));
        MOX_TRY(mox_tv_binary(r, '+', &so_far, &v, out));
    }
}

static mox_status filter_first(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    mox_titer it;
    bool more;
    MOX_TRY(mox_titer_init(r, &c->self, &it));
    MOX_TRY(mox_titer_next(r, &it, out, &more));
    return more ? MOX_OK : mox_tv_undefined(r, "there is no first item, the sequence was empty", out);
}

static mox_status filter_last(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    mox_tv items;
    if (c->self.type == MOX_TV_ITERATOR) return mox_render_fail(r, "a generator has no last item that is known");
    MOX_TRY(mox_tv_to_list(r, &c->self, &items));
    if (items.u.list->n == 0) return mox_tv_undefined(r, "there is no last item, the sequence was empty", out);
    *out = items.u.list->item[items.u.list->n - 1];
    return MOX_OK;
}

static mox_status filter_length(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    size_t n;
    if (c->self.type == MOX_TV_STRING) MOX_TRY(mox_render_bytes(r, c->self.u.s->n));
    if (!mox_tv_length(&c->self, &n)) return mox_render_fail(r, "a %s has no length", mox_tv_type_name(&c->self));
    *out = mox_tv_int((int64_t)n);
    return MOX_OK;
}

/* ---- many values from one ------------------------------------------------------------------------------------- */

static mox_status filter_list(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    return mox_tv_to_list(r, &c->self, out);
}

static mox_status filter_items(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    mox_tv list, view = {.type = MOX_TV_VIEW, .view = MOX_VIEW_ITEMS};
    if (c->self.type == MOX_TV_UNDEFINED) {
        MOX_TRY(mox_tv_list(r, MOX_TV_LIST, 0, &list));
        return mox_tv_iterator(r, &list, out);
    }
    if (c->self.type != MOX_TV_DICT)
        return mox_render_fail(r, "a %s has no items: only a mapping does", mox_tv_type_name(&c->self));
    view.u.dict = c->self.u.dict;
    return mox_tv_iterator(r, &view, out);
}

static mox_status filter_reverse(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    static const mox_tv backward[3] = {{0}, {0}, {.type = MOX_TV_INT, .u.i = -1}};
    mox_tv list, reversed;
    if (c->self.type == MOX_TV_STRING) return mox_tv_slice(r, &c->self, backward, out);
    MOX_TRY(mox_tv_to_list(r, &c->self, &list));
    MOX_TRY(mox_tv_slice(r, &list, backward, &reversed));
    if (c->self.type != MOX_TV_ITERATOR) return mox_tv_iterator(r, &reversed, out);
    *out = reversed;
    return MOX_OK;
}

const mox_tfn *mox_sequence_filter_find(const char *name, size_t n)
{
    static const mox_tfn filters[] = {
        {"count", filter_length, "", 0, 0},
        {"dictsort", filter_dictsort, "case_sensitive by reverse", 0, 0},
        {"first", filter_first, "", 0, 0},
        {"items", filter_items, "", 0, 0},
        {"join", filter_join, "d attribute", 0, 0},
        {"last", filter_last, "", 0, 0},
        {"length", filter_length, "", 0, 0},
        {"list", filter_list, "", 0, 0},
        {"map", filter_each, "*", 0, MAP},
        {"max", filter_extreme, "case_sensitive attribute", 0, 1},
        {"min", filter_extreme, "case_sensitive attribute", 0, 0},
        {"reject", filter_each, "*", 0, REJECT},
        {"rejectattr", filter_each, "*", 0, REJECT | BY_ATTRIBUTE},
        {"reverse", filter_reverse, "", 0, 0},
        {"select", filter_each, "*", 0, SELECT},
        {"selectattr", filter_each, "*", 0, SELECT | BY_ATTRIBUTE},
        {"sort", filter_sort, "reverse case_sensitive attribute", 0, 0},
        {"sum", filter_sum, "attribute start", 0, 0},
        {"unique", filter_unique, "case_sensitive attribute", 0, 0},
    };
    return mox_fn_find(filters, sizeof filters / sizeof *filters, name, n);
}
