/* runtime/expert_stream.c -- see expert_stream.h. */
#include "runtime/expert_stream.h"

#include "base/alloc.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "base/size.h"
#include "runtime/expert_cache.h"
#include "runtime/expert_place.h"

#include <assert.h>
#include <string.h>

#define WAIT_SLICE_S 0.02 /* how long a raised cancel flag may stay unseen */

typedef enum slot_state { SLOT_EMPTY = 0, SLOT_LOADING, SLOT_READY } slot_state;

typedef struct expert_slot {
    mox_read_job job; /* first: the job is its slot */
    mox_read_range ranges[MOX_EXPERT_PARTS];
    slot_state state;
    int64_t key;    /* what its bytes are, or will be; -1: nothing */
    int32_t user;   /* expert of the running batch that they are for; -1: none */
    int32_t queued; /* expert of the running batch that comes next; -1: none */
} expert_slot;

struct mox_expert_stream {
    const mox_model *model;
    bool planning; /* counts what it would reserve */
    mox_reader *reader;
    mox_expert_cache cache;
    int64_t slot_bytes, reserved, memory_bytes;
    unsigned char *memory; /* slots begin at its first page boundary */
    uint8_t *first_slot;
    expert_slot *slots; /* [n_slots] */
    int64_t n_loading;

    /* The running batch: experts are numbered as in ids. */
    int32_t layer;
    const int32_t *ids;
    int64_t n;
    int32_t *slot_of;   /* [n_experts] */
    int32_t *queued;    /* [n_experts]: who comes behind in the same slot; -1: nobody */
    bool *hit;          /* [n_experts] */
    int32_t *order;     /* [n_experts], scratch: the missing ones in the order of the files */
    int32_t *ready;     /* [n_experts], in order of readiness: those before n_done have been computed, before
                         * n_given handed out */
    int64_t n_done, n_given, n_ready;
    const expert_slot *failed; /* its read failed, and the batch with it */

    int64_t bytes_read, waits;
    double wait_s;
};

/* ---- opening ---- */

static mox_status reserve(mox_expert_stream *s, void *out, int64_t n, size_t size, mox_err *err)
{
    s->reserved += n * (int64_t)size;
    if (s->planning) return MOX_OK;
    void *memory = mox_alloc_array((size_t)n, size);
    if (!memory) return mox_fail_memory(err, (size_t)n * size, "expert slots");
    memcpy(out, &memory, sizeof memory);
    return MOX_OK;
}

static int64_t count_experts(const mox_model *m)
{
    int64_t n = 0;
    for (int64_t i = 0; i < m->dims.n_layers; i++)
        if (m->layers[i].experts) n += m->n_experts;
    return n;
}

static mox_status open_slots(mox_expert_stream *s, int64_t bytes, mox_err *err)
{
    const mox_model *m = s->model;
    s->slot_bytes = mox_model_expert_slot_bytes(m);
    if (s->slot_bytes == 0) return mox_fail(err, MOX_E_ARG, "%s: the model has no routed experts to stream", m->config.path);
    if (bytes < s->slot_bytes)
        return mox_fail(err, MOX_E_FULL, "%lld bytes for experts are not enough for one, which takes %lld", (long long)bytes,
                        (long long)s->slot_bytes);
    const int32_t n_slots = (int32_t)mox_min_i64(bytes / s->slot_bytes, count_experts(m));
    const int64_t n_keys = m->dims.n_layers * m->n_experts;
    s->memory_bytes = n_slots * s->slot_bytes + MOX_READ_ALIGN;
    s->reserved += s->memory_bytes;
    if (!s->planning) {
        s->memory = mox_alloc_pages((size_t)s->memory_bytes);
        if (!s->memory) return mox_fail_memory(err, (size_t)s->memory_bytes, "expert slots");
        s->first_slot = s->memory + (MOX_READ_ALIGN - (uintptr_t)s->memory % MOX_READ_ALIGN) % MOX_READ_ALIGN;
    }
    MOX_TRY(reserve(s, &s->slots, n_slots, sizeof *s->slots, err));
    MOX_TRY(reserve(s, &s->slot_of, m->n_experts, sizeof *s->slot_of, err));
    MOX_TRY(reserve(s, &s->queued, m->n_experts, sizeof *s->queued, err));
    MOX_TRY(reserve(s, &s->hit, m->n_experts, sizeof *s->hit, err));
    MOX_TRY(reserve(s, &s->order, m->n_experts, sizeof *s->order, err));
    MOX_TRY(reserve(s, &s->ready, m->n_experts, sizeof *s->ready, err));
    s->reserved += mox_expert_cache_bytes(n_keys, n_slots, &mox_policy_lru);
    if (s->planning) return MOX_OK;
    for (int32_t i = 0; i < n_slots; i++) s->slots[i].key = s->slots[i].user = s->slots[i].queued = -1;
    return mox_expert_cache_init(&s->cache, n_keys, n_slots, &mox_policy_lru, err);
}

mox_status mox_expert_stream_open(mox_expert_stream **out, const mox_model *m, int64_t bytes, const mox_reader_opts *reader,
                                  mox_err *err)
{
    *out = NULL;
    mox_expert_stream *s = mox_alloc_array(1, sizeof *s);
    if (!s) return mox_fail_memory(err, sizeof *s, "expert slots");
    s->model = m;
    s->reserved = (int64_t)sizeof *s;
    mox_status status = open_slots(s, bytes, err);
    if (status == MOX_OK) status = mox_reader_open(&s->reader, m->tensors.files, m->tensors.n_files, reader, err);
    if (status != MOX_OK) mox_expert_stream_close(&s);
    *out = s;
    return status;
}

void mox_expert_stream_close(mox_expert_stream **stream)
{
    mox_expert_stream *s = *stream;
    if (!s) return;
    mox_reader_close(&s->reader); /* first: it writes to the slots */
    mox_expert_cache_deinit(&s->cache);
    mox_free_pages(s->memory, (size_t)s->memory_bytes);
    mox_free(s->slots);
    mox_free(s->slot_of);
    mox_free(s->queued);
    mox_free(s->hit);
    mox_free(s->order);
    mox_free(s->ready);
    mox_free(s);
    *stream = NULL;
}

int64_t mox_expert_stream_bytes(const mox_expert_stream *s) { return s->reserved; }

mox_status mox_expert_stream_measure(const mox_model *m, int64_t bytes, int64_t *out, mox_err *err)
{
    mox_expert_stream s = {.model = m, .planning = true, .reserved = (int64_t)sizeof s};
    const mox_status status = open_slots(&s, bytes, err);
    *out = s.reserved;
    return status;
}

void mox_expert_stream_get_stats(const mox_expert_stream *s, mox_expert_stats *out)
{
    *out = (mox_expert_stats){.n_slots = s->cache.n_slots, .n_slots_away = s->cache.n_slots - s->cache.n_open,
                              .slot_bytes = s->slot_bytes, .hits = s->cache.hits,
                              .misses = s->cache.misses, .bytes_read = s->bytes_read, .waits = s->waits, .wait_s = s->wait_s};
}

/* ---- slots ---- */

static int32_t index_of(const mox_expert_stream *s, const expert_slot *slot) { return (int32_t)(slot - s->slots); }
static uint8_t *bytes_of(const mox_expert_stream *s, const expert_slot *slot)
{
    return s->first_slot + index_of(s, slot) * s->slot_bytes;
}
static int64_t first_key(const mox_expert_stream *s) { return s->layer * s->model->n_experts; }

static const mox_expert_weights *weights_of(const mox_expert_stream *s, int64_t key)
{
    return &s->model->layers[key / s->model->n_experts].experts[key % s->model->n_experts];
}

static void begin_read(mox_expert_stream *s, expert_slot *slot, int64_t key)
{
    mox_expert_place place;
    mox_expert_place_find(weights_of(s, key), &place);
    mox_expert_place_reads(&place, bytes_of(s, slot), slot->ranges);
    slot->job = (mox_read_job){.ranges = slot->ranges, .n_ranges = place.n_ranges};
    slot->state = SLOT_LOADING;
    slot->key = key;
    s->n_loading++;
    mox_reader_submit(s->reader, &slot->job);
}

/* The next expert of the batch that shares the slot, when nothing is in its way. */
static void advance(mox_expert_stream *s, expert_slot *slot)
{
    const int32_t i = slot->queued;
    if (i < 0 || slot->user >= 0 || slot->state == SLOT_LOADING) return;
    slot->user = i;
    slot->queued = s->queued[i];
    begin_read(s, slot, first_key(s) + s->ids[i]);
}

/* A read has ended. */
static void arrive(mox_expert_stream *s, mox_read_job *job)
{
    expert_slot *slot = (expert_slot *)job;
    const int32_t at = index_of(s, slot);
    s->n_loading--;
    if (job->status == MOX_OK) {
        slot->state = SLOT_READY;
        for (int32_t i = 0; i < job->n_ranges; i++) s->bytes_read += job->ranges[i].bytes;
        if (slot->user >= 0) s->ready[s->n_ready++] = slot->user;
    } else {
        slot->state = SLOT_EMPTY;
        slot->key = -1;
        if (slot->user >= 0 && !s->failed) s->failed = slot;
    }
    if (s->cache.hold[at] == MOX_HOLD_LOADING) { /* left over from a batch that was given up */
        s->cache.hold[at] = MOX_HOLD_NONE;
        mox_expert_cache_correct(&s->cache, at, slot->key);
    }
    advance(s, slot);
}

static void collect(mox_expert_stream *s)
{
    for (mox_read_job *job; s->n_loading > 0 && (job = mox_reader_wait(s->reader, 0)) != NULL;) arrive(s, job);
}

/* ---- a batch ---- */

/* Whether expert a of the batch lies before b in the files. */
static bool before(const mox_expert_stream *s, int32_t a, int32_t b)
{
    const mox_extent *x = &weights_of(s, first_key(s) + s->ids[a])->gate.w, *y = &weights_of(s, first_key(s) + s->ids[b])->gate.w;
    return x->file != y->file ? x->file < y->file : x->offset < y->offset;
}

/* Queues the missing experts at their slots, and begins reading in the order of the files. */
static void read_missing(mox_expert_stream *s)
{
    int64_t n = 0;
    for (int32_t i = (int32_t)s->n - 1; i >= 0; i--) { /* backwards: each goes in front of those behind it */
        if (s->hit[i]) continue;
        expert_slot *slot = &s->slots[s->slot_of[i]];
        s->queued[i] = slot->queued;
        slot->queued = i;
    }
    for (int32_t i = 0; i < s->n; i++) {
        if (s->hit[i]) continue;
        int64_t at = n++; /* ids mostly ascend like the files, so this hardly moves anything */
        for (; at > 0 && before(s, i, s->order[at - 1]); at--) s->order[at] = s->order[at - 1];
        s->order[at] = i;
    }
    for (int64_t i = 0; i < n; i++) advance(s, &s->slots[s->slot_of[s->order[i]]]);
}

void mox_expert_stream_acquire(mox_expert_stream *s, int32_t layer, const int32_t *ids, int64_t n)
{
    collect(s);
    s->layer = layer;
    s->ids = ids;
    s->n = n;
    s->n_done = s->n_given = s->n_ready = 0;
    s->failed = NULL;
    mox_expert_cache_begin(&s->cache, first_key(s), ids, n, s->slot_of, s->hit);
    for (int32_t i = 0; i < n; i++) {
        if (!s->hit[i]) continue;
        expert_slot *slot = &s->slots[s->slot_of[i]];
        slot->user = i;
        if (slot->state == SLOT_READY) s->ready[s->n_ready++] = i;
    }
    read_missing(s);
}

/* Until an expert is ready, or will never be. */
static mox_status wait_for_one(mox_expert_stream *s, const mox_cancel *cancel, mox_err *err)
{
    const double start = mox_clock_now();
    mox_status status = MOX_OK;
    s->waits++;
    while (s->n_ready == s->n_given && !s->failed && status == MOX_OK) {
        assert(s->n_loading > 0); /* whoever is not ready is being read, or queued behind one that is */
        mox_read_job *job = mox_reader_wait(s->reader, WAIT_SLICE_S);
        if (job) arrive(s, job);
        else if (mox_cancelled(cancel)) status = mox_fail(err, MOX_E_CANCELLED, "cancelled");
    }
    s->wait_s += mox_clock_now() - start;
    return status;
}

mox_status mox_expert_stream_next(mox_expert_stream *s, mox_expert *out, int64_t max, int64_t *n, const mox_cancel *cancel,
                                  mox_err *err)
{
    *n = 0;
    for (; s->n_done < s->n_given; s->n_done++) {
        expert_slot *slot = &s->slots[s->slot_of[s->ready[s->n_done]]];
        slot->user = -1;
        advance(s, slot);
    }
    if (s->n_done == s->n) return MOX_OK;
    if (s->n_ready == s->n_given) MOX_TRY(wait_for_one(s, cancel, err));
    collect(s);
    if (s->failed) {
        if (err) *err = s->failed->job.err;
        return s->failed->job.status;
    }
    for (; *n < max && s->n_given < s->n_ready; ++*n) {
        const int32_t i = s->ready[s->n_given++];
        const mox_expert_weights *w = weights_of(s, first_key(s) + s->ids[i]);
        mox_expert_place place;
        mox_expert_place_find(w, &place);
        out[*n].id = s->ids[i];
        mox_expert_place_views(&place, w, bytes_of(s, &s->slots[s->slot_of[i]]), &s->model->residency, &out[*n]);
    }
    return MOX_OK;
}

void mox_expert_stream_release(mox_expert_stream *s)
{
    mox_expert_cache_end(&s->cache, s->slot_of, s->n);
    for (int64_t i = 0; i < s->n; i++) {
        const int32_t at = s->slot_of[i];
        expert_slot *slot = &s->slots[at];
        slot->user = slot->queued = -1;
        mox_expert_cache_correct(&s->cache, at, slot->key); /* I1: after a failure not all came that should have */
        if (slot->state == SLOT_LOADING) s->cache.hold[at] = MOX_HOLD_LOADING;
    }
    s->ids = NULL;
    s->n = s->n_done = s->n_given = s->n_ready = 0;
    s->failed = NULL;
}

void mox_expert_stream_resize(mox_expert_stream *s, int64_t n_slots)
{
    mox_expert_cache *c = &s->cache;
    n_slots = mox_max_i64(mox_min_i64(n_slots, c->n_slots), 1);
    collect(s);
    while (c->n_open < n_slots) mox_expert_cache_open_slot(c);
    if (c->n_open == n_slots) return;
    for (expert_slot *last; c->n_open > n_slots; last->state = SLOT_EMPTY, last->key = -1) {
        last = &s->slots[c->n_open - 1];
        if (last->state == SLOT_LOADING) break;
        mox_expert_cache_close_slot(c);
    }
    /* With the rest of a huge page that was in use when it was closed. */
    mox_drop_pages(s->first_slot + c->n_open * s->slot_bytes, (size_t)((c->n_slots - c->n_open) * s->slot_bytes));
}
