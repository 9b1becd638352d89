/* runtime/pages.c -- counting references, and where pages and states lie; see pages.h. */
#include "runtime/pages.h"

#include "runtime/context.h"

#include <assert.h>

void mox_share_init(mox_share *s, int64_t n)
{
    s->n = s->n_free = n;
    for (int64_t i = 0; i < n; i++) s->free[i] = (int32_t)(n - 1 - i);
}

int32_t mox_share_take(mox_context *c, mox_share_kind kind)
{
    mox_share *s = &c->shares[kind];
    while (s->n_free == 0)
        if (!c->reclaim || !c->reclaim(c->reclaim_user, kind)) return MOX_NONE;
    const int32_t i = s->free[--s->n_free];
    s->refs[i] = 1;
    return i;
}

void mox_share_hold(mox_context *c, mox_share_kind kind, int32_t i)
{
    assert(c->shares[kind].refs[i] > 0);
    c->shares[kind].refs[i]++;
}

void mox_share_drop(mox_context *c, mox_share_kind kind, int32_t i)
{
    mox_share *s = &c->shares[kind];
    assert(s->refs[i] > 0);
    if (--s->refs[i] == 0) s->free[s->n_free++] = i;
}

void *mox_page_part(const mox_context *c, int32_t page, int64_t part, size_t *bytes)
{
    const mox_layer_caches *layer = &c->caches[part / 2];
    const mox_cache *k = part % 2 ? &layer->second : &layer->first;
    *bytes = (size_t)(k->page_stride * mox_dtype_bytes(k->type));
    return *bytes > 0 ? (unsigned char *)k->data + (size_t)page * *bytes : NULL; /* a layer without a cache has no memory for it */
}

int64_t mox_page_bytes(const mox_context *c) { return c->cache_bytes / c->shares[MOX_SHARE_PAGES].n; }

void mox_page_copy(mox_context *c, int32_t to, int32_t from)
{
    for (int64_t i = 0; i < 2 * c->model->dims.n_layers; i++) {
        size_t bytes;
        void *dst = mox_page_part(c, to, i, &bytes);
        const void *src = mox_page_part(c, from, i, &bytes);
        mox_dev *d = mox_context_section_of(c, i / 2)->dev;
        if (bytes > 0) d->memory.copy(d, dst, src, (int64_t)bytes);
    }
}

/* ---- states ---- */

int64_t mox_state_saved(const mox_context *c, int32_t i) { return c->n_seqs + i; }
size_t mox_state_bytes(const mox_context *c) { return (size_t)c->model->recurrent_floats * sizeof(float); }

float *mox_state_piece(const mox_section *p, int64_t state, size_t *bytes)
{
    *bytes = (size_t)p->state_floats * sizeof(float);
    return *bytes > 0 ? p->states + state * p->state_floats : NULL;
}

void mox_state_zero(const mox_context *c, int64_t state)
{
    for (int i = 0; i < c->n_sections; i++) {
        size_t bytes;
        mox_dev *d = c->sections[i].dev;
        float *piece = mox_state_piece(&c->sections[i], state, &bytes);
        if (bytes > 0) d->memory.zero(d, piece, (int64_t)bytes);
    }
}

void mox_state_copy(const mox_context *c, int64_t to, int64_t from)
{
    for (int i = 0; i < c->n_sections; i++) {
        size_t bytes;
        mox_dev *d = c->sections[i].dev;
        float *dst = mox_state_piece(&c->sections[i], to, &bytes);
        const float *src = mox_state_piece(&c->sections[i], from, &bytes);
        if (bytes > 0) d->memory.copy(d, dst, src, (int64_t)bytes);
    }
}

const mox_section *mox_context_section_of(const mox_context *c, int64_t layer)
{
    int i = 0;
    while (layer >= c->sections[i].end) i++;
    return &c->sections[i];
}
