/* runtime/expert_store.c -- see expert_store.h. */
#include "runtime/expert_store.h"

#include "base/clock.h"
#include "base/size.h"

#include <assert.h>

/* Parts of all slots that go at once, and that come back at once. */
enum { GIVE_PART = 8, TAKE_PART = 16 };

static mox_status acquire(mox_expert_source *source, int32_t layer, const int32_t *ids, int64_t n, mox_err *err)
{
    (void)err;
    mox_expert_store *s = (mox_expert_store *)source;
    s->experts = s->model->layers[layer].experts;
    for (int64_t i = 0; i < n; i++) assert(ids[i] >= 0 && ids[i] < s->model->n_experts);
    if (s->stream) mox_expert_stream_acquire(s->stream, layer, ids, n);
    else if (s->trace) s->trace(s->trace_user, MOX_TRACE_BATCH, layer, ids, n);
    s->ids = ids; /* stays valid until release: it is the caller's scratch */
    s->n_ids = n;
    s->n_given = 0;
    return MOX_OK;
}

static void next_mapped(mox_expert_store *s, mox_expert *out, int64_t max, int64_t *n)
{
    const mox_residency *r = &s->model->residency;
    for (*n = 0; *n < max && s->n_given < s->n_ids; ++*n) {
        const int32_t id = s->ids[s->n_given++];
        const mox_expert_weights *w = &s->experts[id];
        out[*n] = (mox_expert){.id = id, .gate = mox_residency_mat(r, &w->gate), .up = mox_residency_mat(r, &w->up),
                               .down = mox_residency_mat(r, &w->down)};
    }
}

static mox_status next(mox_expert_source *source, mox_expert *out, int64_t max, int64_t *n, const mox_cancel *cancel,
                       mox_err *err)
{
    mox_expert_store *s = (mox_expert_store *)source;
    if (s->stream) MOX_TRY(mox_expert_stream_next(s->stream, out, max, n, cancel, err));
    else next_mapped(s, out, max, n);
    for (int64_t i = 0; i < *n; i++) {
        const mox_expert_weights *w = &s->experts[out[i].id];
        s->bytes_used += mox_weight_bytes(&w->gate) + mox_weight_bytes(&w->up) + mox_weight_bytes(&w->down);
    }
    return MOX_OK;
}

static void release(mox_expert_source *source)
{
    mox_expert_store *s = (mox_expert_store *)source;
    if (s->stream) mox_expert_stream_release(s->stream);
    s->experts = NULL;
    s->ids = NULL;
    s->n_ids = s->n_given = 0;
}

static bool wants(mox_expert_source *source)
{
    mox_expert_store *s = (mox_expert_store *)source;
    return s->stream && mox_expert_stream_wants(s->stream);
}

static void ahead(mox_expert_source *source, int32_t layer, const int32_t *ids, int64_t n)
{
    mox_expert_store *s = (mox_expert_store *)source;
    mox_expert_stream_ahead(s->stream, layer, ids, n);
}

mox_status mox_expert_store_init(mox_expert_store *s, const mox_model *model, const mox_context_opts *opts, mox_err *err)
{
    *s = (mox_expert_store){.source = {.acquire = acquire, .next = next, .release = release, .wants = wants, .ahead = ahead}, .model = model,
                            .pressure = MOX_PRESSURE_HERE, .trace = opts->trace, .trace_user = opts->trace_user};
    if (opts->expert_bytes > 0) {
        const mox_reader_opts reader = {.n_threads = opts->n_readers, .depth = opts->n_readers, .uring = opts->uring,
                                        .piece_bytes = opts->read_bytes, .buffered = opts->buffered, .warn = opts->warn,
                                        .warn_user = opts->warn_user};
        return mox_expert_stream_open(&s->stream, model, opts, &reader, err);
    }
    if (!model->dense_only || model->n_experts == 0) return MOX_OK;
    return mox_fail(err, MOX_E_ARG, "%s: only the dense weights of this model were loaded, so a context needs expert_bytes",
                    model->config.path);
}

int64_t mox_expert_store_ready(mox_expert_store *s)
{
    return s->stream ? mox_expert_stream_ready(s->stream) : s->n_ids - s->n_given;
}

bool mox_expert_store_has(const mox_expert_store *s, int64_t key) { return !s->stream || mox_expert_stream_has(s->stream, key); }

void mox_expert_store_adapt(mox_expert_store *s)
{
    if (!s->stream || s->pinned) return;
    mox_expert_stats now;
    mox_expert_stream_get_stats(s->stream, &now);
    const int64_t in_use = now.n_slots - now.n_slots_away, more = mox_min_i64(mox_ceil_div(now.n_slots, TAKE_PART), now.n_slots_away);
    /* One token's experts can still load while another's compute. */
    const int64_t least = mox_min_i64(2 * s->model->report.n_experts_active, now.n_slots);
    switch (mox_pressure_look(&s->pressure, mox_clock_now(), more * now.slot_bytes)) {
    case MOX_PRESSURE_GIVE:
        if (in_use > least) mox_expert_stream_resize(s->stream, mox_max_i64(in_use - mox_ceil_div(now.n_slots, GIVE_PART), least));
        break;
    case MOX_PRESSURE_TAKE: mox_expert_stream_resize(s->stream, in_use + more); break;
    case MOX_PRESSURE_KEEP: break;
    }
}

void mox_expert_store_deinit(mox_expert_store *s) { mox_expert_stream_close(&s->stream); }
