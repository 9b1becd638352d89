/* runtime/expert_store.c -- see expert_store.h. */
#include "runtime/expert_store.h"

#include <assert.h>

static mox_status acquire(mox_expert_source *source, int32_t layer, const int32_t *ids, int64_t n, mox_err *err)
{
    (void)err;
    mox_expert_store *s = (mox_expert_store *)source;
    s->experts = s->model->layers[layer].experts;
    s->ids = ids; /* stays valid until release: it is the caller's scratch */
    s->n_ids = n;
    s->n_given = 0;
    return MOX_OK;
}

static mox_status next(mox_expert_source *source, mox_expert *out, int64_t max, int64_t *n, mox_err *err)
{
    (void)err;
    mox_expert_store *s = (mox_expert_store *)source;
    const mox_residency *r = &s->model->residency;
    for (*n = 0; *n < max && s->n_given < s->n_ids; ++*n) {
        const int32_t id = s->ids[s->n_given++];
        assert(id >= 0 && id < s->model->n_experts);
        const mox_expert_weights *w = &s->experts[id];
        s->bytes_used += mox_weight_bytes(&w->gate) + mox_weight_bytes(&w->up) + mox_weight_bytes(&w->down);
        out[*n] = (mox_expert){.id = id, .gate = mox_residency_mat(r, &w->gate), .up = mox_residency_mat(r, &w->up),
                               .down = mox_residency_mat(r, &w->down)};
    }
    return MOX_OK;
}

static void release(mox_expert_source *source)
{
    mox_expert_store *s = (mox_expert_store *)source;
    s->experts = NULL;
    s->ids = NULL;
    s->n_ids = s->n_given = 0;
}

void mox_expert_store_init(mox_expert_store *s, const mox_model *model)
{
    *s = (mox_expert_store){.source = {.acquire = acquire, .next = next, .release = release}, .model = model};
}
