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
        if (bytes > 0) c->dev->memory.copy(c->dev, dst, src, (int64_t)bytes);
    }
}

/* States in use come first in memory, one for each sequence. */
float *mox_state_at(const mox_context *c, int32_t state) { return c->states + (c->n_seqs + state) * c->model->recurrent_floats; }
size_t mox_state_bytes(const mox_context *c) { return (size_t)c->model->recurrent_floats * sizeof(float); }

void mox_state_zero(const mox_context *c, float *state) { c->dev->memory.zero(c->dev, state, (int64_t)mox_state_bytes(c)); }

void mox_state_copy(const mox_context *c, float *to, const float *from)
{
    c->dev->memory.copy(c->dev, to, from, (int64_t)mox_state_bytes(c));
}

/* ---- windows ---- */

static bool apart(const mox_context *c) { return c->dev && c->dev->apart; }

size_t mox_window_bytes(const mox_context *c)
{
    if (!apart(c)) return 0;
    size_t most = mox_state_bytes(c);
    for (int64_t i = 0; i < 2 * c->model->dims.n_layers; i++) {
        size_t bytes;
        (void)mox_page_part(c, 0, i, &bytes);
        if (bytes > most) most = bytes;
    }
    return most;
}

mox_status mox_window_look(const mox_context *c, const void *p, size_t bytes, void *buffer, const void **out, mox_err *err)
{
    *out = apart(c) ? buffer : p;
    return apart(c) ? c->dev->memory.download(c->dev, buffer, p, (int64_t)bytes, err) : MOX_OK;
}

void *mox_window_open(const mox_context *c, void *p, void *buffer) { return apart(c) ? buffer : p; }

void mox_window_close(const mox_context *c, void *p, size_t bytes, const void *buffer)
{
    if (apart(c)) c->dev->memory.upload(c->dev, p, buffer, (int64_t)bytes);
}
