/* text/template_value.c -- making, comparing and going through values, as Python does. */
#include "text/template_value.h"

#include "text/template_internal.h"
#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const mox_tv mox_tv_none = {.type = MOX_TV_NONE};
mox_tv mox_tv_bool(bool b) { return (mox_tv){.type = MOX_TV_BOOL, .u.b = b}; }
mox_tv mox_tv_int(int64_t i) { return (mox_tv){.type = MOX_TV_INT, .u.i = i}; }
mox_tv mox_tv_float(double f) { return (mox_tv){.type = MOX_TV_FLOAT, .u.f = f}; }

bool mox_tv_is_number(const mox_tv *v) { return v->type >= MOX_TV_BOOL && v->type <= MOX_TV_FLOAT; }

bool mox_tv_get_int(const mox_tv *v, int64_t *out)
{
    if (v->type != MOX_TV_BOOL && v->type != MOX_TV_INT) return false;
    *out = v->type == MOX_TV_BOOL ? v->u.b : v->u.i;
    return true;
}

double mox_tv_double(const mox_tv *v)
{
    switch (v->type) {
    case MOX_TV_BOOL: return v->u.b;
    case MOX_TV_INT: return (double)v->u.i;
    case MOX_TV_BIG: return strtod(v->u.big, NULL);
    default: return v->u.f;
    }
}

const char *mox_tv_type_name(const mox_tv *v)
{
    static const char *const names[] = {[MOX_TV_ABSENT] = "nothing",
                                        [MOX_TV_UNDEFINED] = "Undefined",
                                        [MOX_TV_NONE] = "NoneType",
                                        [MOX_TV_BOOL] = "bool",
                                        [MOX_TV_INT] = "int",
                                        [MOX_TV_BIG] = "int",
                                        [MOX_TV_FLOAT] = "float",
                                        [MOX_TV_STRING] = "str",
                                        [MOX_TV_LIST] = "list",
                                        [MOX_TV_TUPLE] = "tuple",
                                        [MOX_TV_DICT] = "dict",
                                        [MOX_TV_RANGE] = "range",
                                        [MOX_TV_VIEW] = "dict view",
                                        [MOX_TV_ITERATOR] = "generator",
                                        [MOX_TV_NAMESPACE] = "Namespace",
                                        [MOX_TV_LOOP] = "LoopContext",
                                        [MOX_TV_MACRO] = "Macro",
                                        [MOX_TV_FUNCTION] = "function",
                                        [MOX_TV_METHOD] = "method"};
    return names[v->type];
}

mox_status mox_tv_pay(mox_render *r, const mox_tv *v)
{
    if (v->type == MOX_TV_STRING) return mox_render_bytes(r, v->u.s->n);
    return v->type == MOX_TV_BIG ? mox_render_bytes(r, strlen(v->u.big)) : MOX_OK;
}

/* ---- undefined ------------------------------------------------------------------------------ */

static mox_status make_undefined(mox_render *r, mox_tundefined value, mox_tv *out)
{
    void *memory;
    MOX_TRY(mox_render_take(r, 1, sizeof value, &memory));
    *(mox_tundefined *)memory = value;
    *out = (mox_tv){.type = MOX_TV_UNDEFINED, .u.undefined = memory};
    return MOX_OK;
}

mox_status mox_tv_undefined(mox_render *r, const char *hint, mox_tv *out)
{
    return make_undefined(r, (mox_tundefined){.hint = hint}, out);
}

mox_status mox_tv_missing(mox_render *r, mox_tv_type object_type, const mox_tv *name, mox_tv *out)
{
    return make_undefined(r, (mox_tundefined){.object_type = (uint8_t)object_type, .name = *name}, out);
}

mox_status mox_tv_fail_undefined(mox_render *r, const mox_tv *v)
{
    const mox_tundefined *u = v->u.undefined;
    if (u->hint) return mox_render_fail(r, "%s", u->hint);
    mox_tb b = {0};
    MOX_TRY(mox_tb_repr(r, &b, &u->name));
    const int n = b.n > 100 ? 100 : (int)b.n;
    const char *object = mox_tv_type_name(&(mox_tv){.type = u->object_type});
    if (u->object_type == MOX_TV_ABSENT) return mox_render_fail(r, "%.*s is undefined", n, b.p);
    if (u->name.type != MOX_TV_STRING) return mox_render_fail(r, "%s object has no element %.*s", object, n, b.p);
    return mox_render_fail(r, "'%s object' has no attribute %.*s", object, n, b.p);
}

/* ---- lists ------------------------------------------------------------------------------------ */

mox_status mox_tv_list(mox_render *r, mox_tv_type type, size_t capacity, mox_tv *out)
{
    void *memory, *items;
    MOX_TRY(mox_render_take(r, 1, sizeof(mox_tlist), &memory));
    MOX_TRY(mox_render_take(r, capacity, sizeof(mox_tv), &items));
    *(mox_tlist *)memory = (mox_tlist){items, 0, capacity};
    *out = (mox_tv){.type = (uint8_t)type, .u.list = memory};
    return MOX_OK;
}

mox_status mox_tlist_push(mox_render *r, mox_tlist *l, const mox_tv *v)
{
    if (l->n == l->capacity) {
        const size_t capacity = l->capacity ? l->capacity * 2 : 4;
        void *items = l->item;
        MOX_TRY(mox_render_grow(r, &items, l->capacity, capacity, sizeof *l->item));
        l->item = items;
        l->capacity = capacity;
    }
    l->item[l->n++] = *v;
    return mox_render_step(r);
}

mox_status mox_tv_pair(mox_render *r, const mox_tv *a, const mox_tv *b, mox_tv *out)
{
    MOX_TRY(mox_tv_list(r, MOX_TV_TUPLE, 2, out));
    MOX_TRY(mox_tlist_push(r, out->u.list, a));
    return mox_tlist_push(r, out->u.list, b);
}

mox_status mox_tv_iterator(mox_render *r, const mox_tv *list, mox_tv *out)
{
    void *memory;
    MOX_TRY(mox_render_take(r, 1, sizeof(mox_titer), &memory));
    *(mox_titer *)memory = (mox_titer){*list, 0};
    *out = (mox_tv){.type = MOX_TV_ITERATOR, .u.iter = memory};
    return MOX_OK;
}

/* ---- dicts -------------------------------------------------------------------------------------- */

enum { INDEX_MIN = 8 }; /* below, looking at every key is as quick */

bool mox_tv_hashable(const mox_tv *v)
{
    if (v->type == MOX_TV_LIST || v->type == MOX_TV_DICT || v->type == MOX_TV_VIEW) return false;
    if (v->type != MOX_TV_TUPLE) return true;
    for (size_t i = 0; i < v->u.list->n; i++) {
        if (v->u.list->item[i].type == MOX_TV_TUPLE || !mox_tv_hashable(&v->u.list->item[i])) return false;
    }
    return true;
}

/* Values that are equal have one hash: 1, 1.0 and true do. */
static uint64_t hash_of(const mox_tv *v)
{
    uint64_t h = UINT64_C(14695981039346656037);
    const double f = mox_tv_is_number(v) ? mox_tv_double(v) : 0;
    switch (v->type) {
    case MOX_TV_STRING:
        for (size_t i = 0; i < v->u.s->n; i++) h = (h ^ (unsigned char)v->u.s->p[i]) * UINT64_C(1099511628211);
        break;
    case MOX_TV_TUPLE:
        for (size_t i = 0; i < v->u.list->n; i++) h = (h ^ hash_of(&v->u.list->item[i])) * UINT64_C(1099511628211);
        break;
    case MOX_TV_BOOL:
    case MOX_TV_INT:
    case MOX_TV_BIG:
    case MOX_TV_FLOAT: {
        const double number = f == 0 ? 0 : f; /* -0.0 is 0 */
        memcpy(&h, &number, sizeof h);
        break;
    }
    default: h = v->type;
    }
    return (h ^ h >> 29) * UINT64_C(0x9E3779B97F4A7C15);
}

mox_status mox_tv_dict(mox_render *r, mox_tv *out)
{
    void *memory;
    MOX_TRY(mox_render_take(r, 1, sizeof(mox_tdict), &memory));
    memset(memory, 0, sizeof(mox_tdict));
    *out = (mox_tv){.type = MOX_TV_DICT, .u.dict = memory};
    return MOX_OK;
}

/* The slot of key in the index: of its position, or an empty one. */
static mox_status slot_of(mox_render *r, const mox_tdict *d, const mox_tv *key, size_t *slot)
{
    MOX_TRY(mox_tv_pay(r, key));
    for (size_t i = 0; key->type == MOX_TV_TUPLE && i < key->u.list->n; i++)
        MOX_TRY(mox_tv_pay(r, &key->u.list->item[i]));
    *slot = hash_of(key) >> 20 & (d->n_index - 1);
    while (d->index[*slot] > 0) {
        bool equal;
        MOX_TRY(mox_tv_equal(r, &d->key[d->index[*slot] - 1], key, &equal));
        if (equal) break;
        *slot = (*slot + 1) & (d->n_index - 1);
    }
    return MOX_OK;
}

mox_status mox_tdict_find(mox_render *r, const mox_tdict *d, const mox_tv *key, size_t *at)
{
    *at = d->n;
    if (key->type == MOX_TV_TUPLE) MOX_TRY(mox_render_bytes(r, key->u.list->n * sizeof *key->u.list->item));
    if (!mox_tv_hashable(key)) return MOX_OK;
    if (d->index) {
        size_t slot;
        MOX_TRY(slot_of(r, d, key, &slot));
        if (d->index[slot] > 0) *at = d->index[slot] - 1;
        return MOX_OK;
    }
    for (size_t i = 0; i < d->n; i++) {
        bool equal;
        MOX_TRY(mox_tv_equal(r, &d->key[i], key, &equal));
        if (!equal) continue;
        *at = i;
        break;
    }
    return MOX_OK;
}

static mox_status build_index(mox_render *r, mox_tdict *d)
{
    void *memory;
    d->n_index = d->capacity * 2;
    MOX_TRY(mox_render_take(r, d->n_index, sizeof *d->index, &memory));
    d->index = memory;
    memset(d->index, 0, d->n_index * sizeof *d->index);
    for (size_t i = 0; i < d->n; i++) {
        size_t slot;
        MOX_TRY(slot_of(r, d, &d->key[i], &slot));
        d->index[slot] = (uint32_t)i + 1;
    }
    return MOX_OK;
}

static mox_status dict_grow(mox_render *r, mox_tdict *d)
{
    const size_t capacity = d->capacity ? d->capacity * 2 : 4; /* a power of two */
    void *keys = d->key, *values = d->value;
    if (capacity > UINT32_MAX / 4) return mox_render_too_long(r);
    MOX_TRY(mox_render_grow(r, &keys, d->capacity, capacity, sizeof *d->key));
    d->key = keys;
    MOX_TRY(mox_render_grow(r, &values, d->capacity, capacity, sizeof *d->value));
    d->value = values;
    d->capacity = capacity;
    return capacity > INDEX_MIN ? build_index(r, d) : MOX_OK;
}

mox_status mox_tdict_set(mox_render *r, mox_tdict *d, const mox_tv *key, const mox_tv *value)
{
    size_t at, slot;
    if (!mox_tv_hashable(key)) return mox_render_fail(r, "a %s cannot be a key", mox_tv_type_name(key));
    MOX_TRY(mox_tdict_find(r, d, key, &at));
    if (at == d->n) {
        if (d->n == d->capacity) MOX_TRY(dict_grow(r, d));
        d->key[d->n] = *key;
        if (d->index) {
            MOX_TRY(slot_of(r, d, key, &slot));
            d->index[slot] = (uint32_t)d->n + 1;
        }
        d->n++;
    }
    d->value[at] = *value;
    return MOX_OK;
}

/* ---- comparing ------------------------------------------------------------------------------------ */

mox_status mox_tv_truth(mox_render *r, const mox_tv *v, bool *out)
{
    (void)r;
    size_t n;
    switch (v->type) {
    case MOX_TV_UNDEFINED:
    case MOX_TV_NONE: *out = false; break;
    case MOX_TV_BOOL: *out = v->u.b; break;
    case MOX_TV_INT: *out = v->u.i != 0; break;
    case MOX_TV_FLOAT: *out = v->u.f != 0; break;
    case MOX_TV_STRING: *out = v->u.s->n > 0; break;
    default: *out = !mox_tv_length(v, &n) || n > 0;
    }
    return MOX_OK;
}

/* Integers beyond 64 bits and others, by sign, digits and size. */
static int order_big(const mox_tv *a, const mox_tv *b)
{
    char text[2][32];
    const char *p[2];
    const mox_tv *v[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        int64_t small = 0;
        p[i] = v[i]->type == MOX_TV_BIG ? v[i]->u.big : text[i];
        if (mox_tv_get_int(v[i], &small)) snprintf(text[i], sizeof text[i], "%lld", (long long)small);
    }
    const bool negative = p[0][0] == '-';
    if (negative != (p[1][0] == '-')) return negative ? -1 : 1;
    const size_t n[2] = {strlen(p[0]), strlen(p[1])};
    const int order = n[0] != n[1] ? (n[0] < n[1] ? -1 : 1) : strcmp(p[0], p[1]);
    return negative ? -order : order;
}

static int order_numbers(const mox_tv *a, const mox_tv *b)
{
    int64_t i, j;
    if (mox_tv_get_int(a, &i) && mox_tv_get_int(b, &j)) return i < j ? -1 : i > j;
    if (a->type != MOX_TV_FLOAT && b->type != MOX_TV_FLOAT) return order_big(a, b);
    const double f = mox_tv_double(a), g = mox_tv_double(b);
    return isnan(f) || isnan(g) ? 2 : f < g ? -1 : f > g;
}

static mox_status equal_lists(mox_render *r, const mox_tlist *a, const mox_tlist *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) MOX_TRY(mox_tv_equal(r, &a->item[i], &b->item[i], out));
    return MOX_OK;
}

static mox_status equal_dicts(mox_render *r, const mox_tdict *a, const mox_tdict *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        size_t at;
        MOX_TRY(mox_tdict_find(r, b, &a->key[i], &at));
        *out = at < b->n;
        if (*out) MOX_TRY(mox_tv_equal(r, &a->value[i], &b->value[at], out));
    }
    return MOX_OK;
}

mox_status mox_tv_equal(mox_render *r, const mox_tv *a, const mox_tv *b, bool *out)
{
    if (mox_tv_is_number(a) && mox_tv_is_number(b)) {
        MOX_TRY(mox_tv_pay(r, a));
        MOX_TRY(mox_tv_pay(r, b));
        *out = order_numbers(a, b) == 0;
        return mox_render_step(r);
    }
    *out = false;
    if (a->type != b->type) return MOX_OK;
    MOX_TRY(mox_render_enter(r));
    switch (a->type) {
    case MOX_TV_NONE:
    case MOX_TV_UNDEFINED: *out = true; break;
    case MOX_TV_STRING:
        if (a->u.s->n == b->u.s->n) MOX_TRY(mox_tv_pay(r, a)); /* also of those that differ in their last byte */
        *out = mox_ts_equal(a->u.s, b->u.s);
        break;
    case MOX_TV_LIST:
    case MOX_TV_TUPLE: MOX_TRY(equal_lists(r, a->u.list, b->u.list, out)); break;
    case MOX_TV_DICT: MOX_TRY(equal_dicts(r, a->u.dict, b->u.dict, out)); break;
    case MOX_TV_RANGE: {
        const mox_trange *p = a->u.range, *q = b->u.range;
        *out = p->n == q->n && (p->n == 0 || (p->start == q->start && (p->n == 1 || p->step == q->step)));
        break;
    }
    case MOX_TV_VIEW:
        *out = a->view == b->view && a->view != MOX_VIEW_VALUES && a->u.dict->n == b->u.dict->n;
        for (size_t i = 0; *out && i < a->u.dict->n; i++) {
            size_t at;
            MOX_TRY(mox_tdict_find(r, b->u.dict, &a->u.dict->key[i], &at));
            *out = at < b->u.dict->n;
            if (*out && a->view == MOX_VIEW_ITEMS)
                MOX_TRY(mox_tv_equal(r, &a->u.dict->value[i], &b->u.dict->value[at], out));
        }
        break;
    default: *out = a->u.loop == b->u.loop; /* things are equal to themselves alone */
    }
    mox_render_leave(r);
    return MOX_OK;
}

static mox_status order_lists(mox_render *r, const mox_tlist *a, const mox_tlist *b, const char *op, int *out)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool equal;
        MOX_TRY(mox_tv_equal(r, &a->item[i], &b->item[i], &equal));
        if (!equal) return mox_tv_order(r, &a->item[i], &b->item[i], op, out);
    }
    *out = a->n < b->n ? -1 : a->n > b->n;
    return MOX_OK;
}

mox_status mox_tv_order(mox_render *r, const mox_tv *a, const mox_tv *b, const char *op, int *out)
{
    if (a->type == MOX_TV_UNDEFINED) return mox_tv_fail_undefined(r, a);
    if (b->type == MOX_TV_UNDEFINED) return mox_tv_fail_undefined(r, b);
    if (mox_tv_is_number(a) && mox_tv_is_number(b)) {
        MOX_TRY(mox_tv_pay(r, a));
        MOX_TRY(mox_tv_pay(r, b));
        *out = order_numbers(a, b);
        return mox_render_step(r);
    }
    if (a->type != b->type || (a->type != MOX_TV_STRING && a->type != MOX_TV_LIST && a->type != MOX_TV_TUPLE)) {
        return mox_render_fail(r, "'%s' is not possible between %s and %s", op, mox_tv_type_name(a),
                               mox_tv_type_name(b));
    }
    MOX_TRY(mox_render_enter(r));
    if (a->type == MOX_TV_STRING) {
        const mox_ts *s = a->u.s, *t = b->u.s;
        const size_t n = s->n < t->n ? s->n : t->n;
        const int order = memcmp(s->p, t->p, n); /* the order of UTF-8 is that of code points */
        *out = order < 0 ? -1 : order > 0 ? 1 : s->n < t->n ? -1 : s->n > t->n;
        MOX_TRY(mox_render_bytes(r, n));
    } else {
        MOX_TRY(order_lists(r, a->u.list, b->u.list, op, out));
    }
    mox_render_leave(r);
    return MOX_OK;
}

mox_status mox_tv_contains(mox_render *r, const mox_tv *container, const mox_tv *v, bool *out)
{
    size_t at;
    *out = false;
    if (container->type == MOX_TV_STRING) {
        if (v->type != MOX_TV_STRING) return mox_render_fail(r, "'in' a str needs a str, not %s", mox_tv_type_name(v));
        *out = mox_ts_find(container->u.s, v->u.s, 0) != SIZE_MAX;
        return mox_render_bytes(r, container->u.s->n);
    }
    if (container->type == MOX_TV_DICT || (container->type == MOX_TV_VIEW && container->view == MOX_VIEW_KEYS)) {
        if (!mox_tv_hashable(v)) return mox_render_fail(r, "a %s cannot be a key", mox_tv_type_name(v));
        MOX_TRY(mox_tdict_find(r, container->u.dict, v, &at));
        *out = at < container->u.dict->n;
        return MOX_OK;
    }
    mox_titer it;
    mox_tv item;
    bool more;
    MOX_TRY(mox_titer_init(r, container, &it));
    for (;;) {
        MOX_TRY(mox_titer_next(r, &it, &item, &more));
        if (!more) return MOX_OK;
        MOX_TRY(mox_tv_equal(r, &item, v, out));
        if (*out) return MOX_OK;
    }
}

bool mox_tv_length(const mox_tv *v, size_t *out)
{
    switch (v->type) {
    case MOX_TV_UNDEFINED: *out = 0; return true;
    case MOX_TV_STRING: *out = mox_ts_length(v->u.s); return true;
    case MOX_TV_LIST:
    case MOX_TV_TUPLE: *out = v->u.list->n; return true;
    case MOX_TV_DICT:
    case MOX_TV_VIEW: *out = v->u.dict->n; return true;
    case MOX_TV_RANGE: *out = (size_t)v->u.range->n; return true;
    default: return false;
    }
}

/* ---- going through ----------------------------------------------------------------------------------- */

bool mox_tv_iterable(const mox_tv *v)
{
    return v->type == MOX_TV_UNDEFINED || (v->type >= MOX_TV_STRING && v->type <= MOX_TV_ITERATOR);
}

mox_status mox_titer_init(mox_render *r, const mox_tv *v, mox_titer *it)
{
    if (!mox_tv_iterable(v)) return mox_render_fail(r, "a %s has no items to go through", mox_tv_type_name(v));
    *it = (mox_titer){*v, 0};
    return MOX_OK;
}

mox_status mox_titer_next(mox_render *r, mox_titer *it, mox_tv *out, bool *more)
{
    const mox_tv *v = &it->value;
    MOX_TRY(mox_render_step(r));
    if (v->type == MOX_TV_ITERATOR) return mox_titer_next(r, v->u.iter, out, more); /* its list is no iterator */
    size_t n = 0;
    if (v->type == MOX_TV_STRING) {
        n = v->u.s->n;
    } else {
        (void)mox_tv_length(v, &n);
    }
    *more = it->i < n;
    if (!*more) return MOX_OK;
    const size_t i = it->i++;
    switch (v->type) {
    case MOX_TV_STRING: {
        uint32_t cp;
        const size_t length = mox_utf8_next((const unsigned char *)v->u.s->p + i, &cp);
        it->i = i + length;
        return mox_ts_part(r, v->u.s, i, i + length, out);
    }
    case MOX_TV_LIST:
    case MOX_TV_TUPLE: *out = v->u.list->item[i]; break;
    case MOX_TV_RANGE: *out = mox_tv_int(v->u.range->start + (int64_t)i * v->u.range->step); break;
    default:
        if (v->type == MOX_TV_VIEW && v->view == MOX_VIEW_ITEMS) {
            return mox_tv_pair(r, &v->u.dict->key[i], &v->u.dict->value[i], out);
        }
        *out = v->type == MOX_TV_VIEW && v->view == MOX_VIEW_VALUES ? v->u.dict->value[i] : v->u.dict->key[i];
    }
    return MOX_OK;
}

mox_status mox_tv_to_list(mox_render *r, const mox_tv *v, mox_tv *out)
{
    mox_titer it;
    mox_tv item;
    bool more;
    size_t n = 0;
    MOX_TRY(mox_titer_init(r, v, &it));
    (void)mox_tv_length(v, &n);
    MOX_TRY(mox_tv_list(r, MOX_TV_LIST, n, out));
    for (;;) {
        MOX_TRY(mox_titer_next(r, &it, &item, &more));
        if (!more) return MOX_OK;
        MOX_TRY(mox_tlist_push(r, out->u.list, &item));
    }
}
