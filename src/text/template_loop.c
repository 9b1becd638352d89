/* text/template_loop.c -- going through the items of a `for`, and what `loop` tells.
 *
 * Items are taken one by one, as late as possible: `loop.last` and `loop.nextitem`
 * look one ahead, `loop.length` of something without a length takes all. */
#include "text/template_internal.h"

#include <string.h>

/* The next item that the loop's own `if` lets through. */
static mox_status take_item(mox_render *r, mox_tloop *l, mox_tv *out, bool *more)
{
    for (;;) {
        bool truth;
        MOX_TRY(mox_titer_next(r, &l->items, out, more));
        if (!*more || !l->filtered) return MOX_OK;
        mox_tframe *frame = r->frame;
        if (!l->test_frame) {
            r->frame = l->frame;
            MOX_TRY(mox_frame_push(r, l->node->test_scope, &l->test_frame));
        }
        r->frame = l->test_frame;
        MOX_TRY(mox_assign(r, l->node->a, l->test_frame, out));
        MOX_TRY(mox_eval_truth(r, l->node->test, &truth));
        if (truth && l->node->a->kind == MOX_TN_TUPLE) MOX_TRY(mox_eval(r, l->node->a, out)); /* always tuples then */
        r->frame = frame;
        if (truth) return MOX_OK;
    }
}

mox_status mox_loop_next(mox_render *r, mox_tloop *l, mox_tv *out, bool *more)
{
    if (l->after.type != MOX_TV_ABSENT) {
        *out = l->after;
        *more = true;
        l->after.type = MOX_TV_ABSENT;
    } else {
        MOX_TRY(take_item(r, l, out, more));
    }
    if (!*more) return MOX_OK;
    l->index0++;
    l->before = l->current;
    l->current = *out;
    return MOX_OK;
}

static mox_status look_ahead(mox_render *r, mox_tloop *l, bool *more)
{
    *more = true;
    if (l->after.type != MOX_TV_ABSENT) return MOX_OK;
    MOX_TRY(take_item(r, l, &l->after, more));
    if (!*more) l->after.type = MOX_TV_ABSENT;
    return MOX_OK;
}

static mox_status length_of(mox_render *r, mox_tloop *l, int64_t *out)
{
    size_t n;
    if (l->length < 0) MOX_TRY(mox_tv_pay(r, &l->items.value));
    if (l->length < 0 && !l->filtered && mox_tv_length(&l->items.value, &n)) l->length = (int64_t)n;
    if (l->length < 0) {
        mox_tv rest, item;
        bool more;
        MOX_TRY(mox_tv_list(r, MOX_TV_LIST, 8, &rest));
        for (;;) {
            MOX_TRY(take_item(r, l, &item, &more));
            if (!more) break;
            MOX_TRY(mox_tlist_push(r, rest.u.list, &item));
        }
        l->length = (int64_t)rest.u.list->n + l->index0 + 1 + (l->after.type != MOX_TV_ABSENT);
        l->items = (mox_titer){rest, 0};
        l->filtered = false;
    }
    *out = l->length;
    return MOX_OK;
}

/* ---- methods --------------------------------------------------------------------------------------- */

static mox_status cycle(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_targs *args = c->raw;
    if (args->n_pos == 0) return mox_render_fail(r, "loop.cycle() needs something to choose from");
    *out = args->pos[(size_t)c->self.u.loop->index0 % args->n_pos];
    return MOX_OK;
}

static mox_status changed(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    mox_tloop *l = c->self.u.loop;
    mox_tv now;
    bool same = false;
    MOX_TRY(mox_tv_list(r, MOX_TV_TUPLE, c->raw->n_pos, &now));
    for (size_t i = 0; i < c->raw->n_pos; i++) MOX_TRY(mox_tlist_push(r, now.u.list, &c->raw->pos[i]));
    if (l->changed.type != MOX_TV_ABSENT) MOX_TRY(mox_tv_equal(r, &l->changed, &now, &same));
    l->changed = now;
    *out = mox_tv_bool(!same);
    return MOX_OK;
}

static mox_status method(mox_render *r, mox_tloop *l, const mox_tfn *fn, mox_tv *out)
{
    void *memory;
    MOX_TRY(mox_render_take(r, 1, sizeof(mox_tmethod), &memory));
    *(mox_tmethod *)memory = (mox_tmethod){{.type = MOX_TV_LOOP, .u.loop = l}, fn};
    *out = (mox_tv){.type = MOX_TV_METHOD, .u.method = memory};
    return MOX_OK;
}

/* ---- attributes --------------------------------------------------------------------------------------- */

enum { INDEX, INDEX0, FIRST, DEPTH, DEPTH0, LAST, LENGTH, REVINDEX, REVINDEX0, PREVITEM, NEXTITEM, N_ATTRIBUTES };

static int attribute(const mox_ts *name)
{
    static const char *const names[N_ATTRIBUTES] = {"index",  "index0",   "first",     "depth",    "depth0",  "last",
                                                    "length", "revindex", "revindex0", "previtem", "nextitem"};
    int i = 0;
    while (i < N_ATTRIBUTES && !mox_ts_is(name, names[i])) i++;
    return i;
}

mox_status mox_loop_attr(mox_render *r, mox_tloop *l, const mox_ts *name, mox_tv *out)
{
    static const mox_tfn methods[] = {{"cycle", cycle, "*", 0, 0}, {"changed", changed, "*", 0, 0}};
    int64_t length = 0;
    bool more;
    const int a = attribute(name);
    if (a >= LENGTH && a <= REVINDEX0) MOX_TRY(length_of(r, l, &length));
    switch (a) {
    case INDEX: *out = mox_tv_int(l->index0 + 1); break;
    case INDEX0: *out = mox_tv_int(l->index0); break;
    case FIRST: *out = mox_tv_bool(l->index0 == 0); break;
    case DEPTH: *out = mox_tv_int(1); break;
    case DEPTH0: *out = mox_tv_int(0); break;
    case LAST:
        MOX_TRY(look_ahead(r, l, &more));
        *out = mox_tv_bool(!more);
        break;
    case LENGTH: *out = mox_tv_int(length); break;
    case REVINDEX: *out = mox_tv_int(length - l->index0); break;
    case REVINDEX0: *out = mox_tv_int(length - l->index0 - 1); break;
    case PREVITEM:
        if (l->before.type == MOX_TV_ABSENT) return mox_tv_undefined(r, "there is no previous item", out);
        *out = l->before;
        break;
    case NEXTITEM:
        MOX_TRY(look_ahead(r, l, &more));
        if (!more) return mox_tv_undefined(r, "there is no next item", out);
        *out = l->after;
        break;
    default:
        for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
            if (mox_ts_is(name, methods[i].name)) return method(r, l, &methods[i], out);
        }
    }
    return MOX_OK; /* MOX_TV_ABSENT when there is no such attribute */
}
