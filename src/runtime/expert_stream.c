/* runtime/expert_stream.c -- see expert_stream.h. */
#include "runtime/expert_stream.h"

#include "base/alloc.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "base/size.h"
#include "runtime/expert_cache.h"
#include "runtime/expert_place.h"
#include "runtime/foresight.h"

#include <assert.h>
#include <string.h>

#define WAIT_SLICE_S 0.02 /* how long a raised cancel flag may stay unseen */

typedef enum slot_state { SLOT_EMPTY = 0, SLOT_LOADING, SLOT_READY } slot_state;
typedef enum read_reason { READ_ASKED = 0, READ_HEAT, READ_AHEAD, N_REASONS } read_reason;

typedef struct expert_slot {
    mox_read_job job; /* first: the job is its slot */
    mox_read_range ranges[MOX_EXPERT_PARTS];
    slot_state state;
    int64_t key;    /* what its bytes are, or will be; -1: nothing */
    int32_t user;   /* expert of the running batch that they are for; -1: none */
    int32_t queued; /* expert of the running batch that comes next; -1: none */
    read_reason reason; /* why its key was read; ASKED from when somebody does */
    bool early;         /* the running batch waits for a read that had begun before it asked */
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

    bool warming; /* nobody has asked for anything yet */
    bool prefetch;
    mox_foresight foresight;
    int32_t guess_layer;
    int32_t *guess; /* [n_experts]: of that layer, what would have to be read */
    int64_t n_guess;

    mox_trace_fn *trace;
    void *trace_user;
    uint32_t *heat; /* [n_layers, n_experts]: times that a batch asked */
    int64_t bytes_read, waits;
    int64_t brought[N_REASONS], used[N_REASONS]; /* experts that were read, and asked for since */
    double wait_s, busy_s;
    double acquired_s; /* mox_clock_now */
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

static mox_status open_slots(mox_expert_stream *s, const mox_context_opts *o, mox_err *err)
{
    const mox_model *m = s->model;
    const int64_t bytes = o->expert_bytes;
    const mox_policy *policy = mox_policy_find(o->expert_policy);
    if (!policy) return mox_fail(err, MOX_E_ARG, "expert_policy is '%s', not lfu, lru or 2q", o->expert_policy);
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
    MOX_TRY(reserve(s, &s->guess, m->n_experts, sizeof *s->guess, err));
    MOX_TRY(reserve(s, &s->heat, n_keys, sizeof *s->heat, err));
    s->reserved += mox_expert_cache_bytes(n_keys, n_slots, policy);
    if (s->planning) return MOX_OK;
    for (int32_t i = 0; i < n_slots; i++) s->slots[i].key = s->slots[i].user = s->slots[i].queued = -1;
    return mox_expert_cache_init(&s->cache, n_keys, n_slots, policy, err);
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
    mox_free(s->guess);
    mox_free(s->heat);
    mox_free(s);
    *stream = NULL;
}

int64_t mox_expert_stream_bytes(const mox_expert_stream *s) { return s->reserved; }

mox_status mox_expert_stream_measure(const mox_model *m, const mox_context_opts *opts, int64_t *out, mox_err *err)
{
    mox_expert_stream s = {.model = m, .planning = true, .reserved = (int64_t)sizeof s};
    const mox_status status = open_slots(&s, opts, err);
    *out = s.reserved;
    return status;
}

void mox_expert_stream_get_stats(const mox_expert_stream *s, mox_expert_stats *out)
{
    *out = (mox_expert_stats){.n_slots = s->cache.n_slots, .n_slots_away = s->cache.n_slots - s->cache.n_open,
                              .slot_bytes = s->slot_bytes, .hits = s->cache.hits,
                              .misses = s->cache.misses, .bytes_read = s->bytes_read, .waits = s->waits, .wait_s = s->wait_s,
                              .busy_s = s->busy_s, .warmed = s->brought[READ_HEAT], .warmed_used = s->used[READ_HEAT],
                              .prefetched = s->brought[READ_AHEAD], .prefetched_used = s->used[READ_AHEAD],
                              .guessed = s->foresight.guessed, .guessed_right = s->foresight.right,
                              .policy = s->cache.policy->name};
}

void mox_expert_stream_get_heat(const mox_expert_stream *s, uint32_t *out)
{
    memcpy(out, s->heat, (size_t)s->cache.n_keys * sizeof *out);
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

static void begin_read(mox_expert_stream *s, expert_slot *slot, int64_t key, read_reason reason)
{
    mox_expert_place place;
    mox_expert_place_find(weights_of(s, key), &place);
    mox_expert_place_reads(&place, bytes_of(s, slot), slot->ranges);
    slot->job = (mox_read_job){.ranges = slot->ranges, .n_ranges = place.n_ranges, .ahead = reason != READ_ASKED};
    slot->state = SLOT_LOADING;
    slot->key = key;
    slot->reason = reason;
    slot->early = false;
    s->n_loading++;
    mox_reader_submit(s->reader, &slot->job);
}

/* Whether the slot's read, which nobody wants any more, has not begun and need not end. */
static bool withdraw(mox_expert_stream *s, expert_slot *slot)
{
    if (!mox_reader_withdraw(s->reader, &slot->job)) return false;
    s->n_loading--;
    slot->state = SLOT_EMPTY;
    slot->key = -1;
    return true;
}

/* The next expert of the batch that shares the slot, when nothing is in its way. */
static void advance(mox_expert_stream *s, expert_slot *slot)
{
    const int32_t i = slot->queued;
    if (i < 0 || slot->user >= 0) return;
    if (slot->state == SLOT_LOADING && !withdraw(s, slot)) {
        mox_reader_hurry(s->reader, &slot->job); /* somebody waits for the slot now */
        return;
    }
    slot->user = i;
    slot->queued = s->queued[i];
    begin_read(s, slot, first_key(s) + s->ids[i], READ_ASKED);
}

/* Whether the running batch waits for what is read to the slot, or for the slot. */
static bool in_batch(const expert_slot *slot) { return slot->user >= 0 || slot->queued >= 0; }

/* Outside of batches: what the index expects in a slot, and what is not coming to it, is lost; and what is in
 * it instead is forgotten. */
static void settle(mox_expert_stream *s, expert_slot *slot)
{
    const int64_t expected = s->cache.key_of[index_of(s, slot)];
    if (expected == slot->key) return;
    if (expected >= 0) mox_expert_cache_drop(&s->cache, expected);
    if (slot->state == SLOT_LOADING) return; /* until it arrives */
    slot->state = SLOT_EMPTY;
    slot->key = -1;
}

/* A read has ended. */
static void arrive(mox_expert_stream *s, mox_read_job *job)
{
    expert_slot *slot = (expert_slot *)job;
    s->n_loading--;
    if (job->status == MOX_OK) {
        slot->state = SLOT_READY;
        s->brought[slot->reason]++;
        for (int32_t i = 0; i < job->n_ranges; i++) s->bytes_read += job->ranges[i].bytes;
        if (slot->user >= 0) s->ready[s->n_ready++] = slot->user;
    } else if (slot->user >= 0 && slot->early) { /* perhaps it failed long before anybody asked */
        begin_read(s, slot, slot->key, READ_ASKED);
        return;
    } else {
        slot->state = SLOT_EMPTY;
        slot->key = -1;
        if (slot->user >= 0 && !s->failed) s->failed = slot;
    }
    if (!in_batch(slot)) settle(s, slot); /* read ahead, or left over from a batch that was given up */
    advance(s, slot);
}

static void collect(mox_expert_stream *s)
{
    for (mox_read_job *job; s->n_loading > 0 && (job = mox_reader_wait(s->reader, 0)) != NULL;) arrive(s, job);
}

/* ---- ahead of all batches ---- */

/* Whether a is read before b. */
static bool hotter(const uint32_t *heat, int64_t a, int64_t b) { return heat[a] != heat[b] ? heat[a] > heat[b] : a < b; }

/* Slots 0 to n - 1 are a heap by their keys, the coldest first, but for the one at `at`. */
static void sink(mox_expert_stream *s, const uint32_t *heat, int64_t at, int64_t n)
{
    expert_slot *slots = s->slots;
    const int64_t key = slots[at].key;
    for (int64_t down; (down = 2 * at + 1) < n; at = down) {
        if (down + 1 < n && hotter(heat, slots[down].key, slots[down + 1].key)) down++;
        if (!hotter(heat, key, slots[down].key)) break;
        slots[at].key = slots[down].key;
    }
    slots[at].key = key;
}

static bool is_hot(const mox_expert_stream *s, const uint32_t *heat, int64_t key)
{
    return heat[key] > 0 && s->model->layers[key / s->model->n_experts].experts;
}

/* Writes the hottest experts to the keys of the first slots, the hottest first, and returns how many. */
static int64_t find_hottest(mox_expert_stream *s, const uint32_t *heat)
{
    int64_t n = 0, k = 0;
    for (; k < s->cache.n_keys && n < s->cache.n_slots; k++)
        if (is_hot(s, heat, k)) s->slots[n++].key = k;
    for (int64_t i = n / 2 - 1; i >= 0; i--) sink(s, heat, i, n);
    for (; k < s->cache.n_keys; k++) {
        if (!is_hot(s, heat, k) || !hotter(heat, k, s->slots[0].key)) continue;
        s->slots[0].key = k;
        sink(s, heat, 0, n);
    }
    for (int64_t last = n - 1; last > 0; last--) {
        const int64_t coldest = s->slots[0].key;
        s->slots[0].key = s->slots[last].key;
        s->slots[last].key = coldest;
        sink(s, heat, 0, last);
    }
    return n;
}

/* They are in the index at once, so that which slot a batch takes does not depend on what has arrived.  The
 * coldest of them give way first, and are read last: mostly their reads have not begun, and never will.  Once a
 * batch asks, the others are read when their turn comes and not before: whatever is read beside a step slows it
 * down, and what it needs itself is most of what it can get. */
static void warm(mox_expert_stream *s, const uint32_t *heat)
{
    const int64_t n = find_hottest(s, heat);
    for (int64_t i = n - 1; i >= 0; i--) (void)mox_expert_cache_take(&s->cache, s->slots[i].key); /* the hottest was used last, */
    for (int64_t i = n - 1; i >= 0; i--) begin_read(s, &s->slots[i], s->cache.key_of[i], READ_HEAT); /* and is read first */
    s->warming = true;
}

/* ---- ahead of a layer ---- */

/* False: there is no slot for it. */
static bool read_ahead(mox_expert_stream *s, int64_t key)
{
    const int32_t at = mox_expert_cache_take(&s->cache, key);
    if (at < 0) return false;
    expert_slot *slot = &s->slots[at];
    if (slot->state == SLOT_LOADING && !withdraw(s, slot)) mox_expert_cache_drop(&s->cache, key); /* not worth a wait */
    else begin_read(s, slot, key, READ_AHEAD);
    return true;
}

bool mox_expert_stream_wants(mox_expert_stream *s) { return s->prefetch && mox_foresight_wants(&s->foresight); }

void mox_expert_stream_ahead(mox_expert_stream *s, int32_t layer, const int32_t *ids, int64_t n)
{
    const int64_t first = layer * s->model->n_experts;
    s->guess_layer = layer;
    s->n_guess = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t at = mox_expert_cache_find(&s->cache, first + ids[i]);
        bool known = at >= 0;
        if (known && s->foresight.reads && s->slots[at].state == SLOT_LOADING) mox_reader_unpark(s->reader, &s->slots[at].job);
        for (int64_t k = 0; k < s->n_guess && !known; k++) known = s->guess[k] == ids[i];
        if (!known) s->guess[s->n_guess++] = ids[i];
    }
    for (int64_t i = 0; i < s->n_guess && s->foresight.reads; i++)
        if (!read_ahead(s, first + s->guess[i])) return;
}

/* From the guesses about the layer, if there are any. */
static void learn(mox_expert_stream *s, int32_t layer, const int32_t *ids, int64_t n)
{
    if (layer == s->guess_layer) mox_foresight_compare(&s->foresight, s->guess, s->n_guess, ids, n);
    s->n_guess = 0;
}

/* A batch that needs most of a layer will need most of the next one.  There are slots for it as far as
 * the running batch has none of them. */
static void read_next_layer(mox_expert_stream *s)
{
    const int64_t n_experts = s->model->n_experts, next = s->layer + 1;
    if (!s->prefetch || 4 * s->n < 3 * n_experts || next >= s->model->dims.n_layers || !s->model->layers[next].experts) return;
    for (int64_t key = next * n_experts; key < (next + 1) * n_experts; key++)
        if (mox_expert_cache_find(&s->cache, key) < 0 && !read_ahead(s, key)) return;
}

/* ---- a trace ---- */

static void tell(void *stream, mox_trace_kind what, int64_t first, const int32_t *ids, int64_t n)
{
    const mox_expert_stream *s = stream;
    const int64_t n_experts = s->model->n_experts;
    const int32_t id = (int32_t)(first % n_experts);
    if (what == MOX_TRACE_SLOTS) {
        s->trace(s->trace_user, what, 0, NULL, n);
        return;
    }
    s->trace(s->trace_user, what, (int32_t)(first / n_experts), what == MOX_TRACE_BATCH ? ids : &id, n);
}

static void begin_trace(mox_expert_stream *s, const mox_context_opts *opts)
{
    s->trace = opts->trace;
    s->trace_user = opts->trace_user;
    s->cache.trace = opts->trace ? tell : NULL;
    s->cache.trace_user = s;
}

mox_status mox_expert_stream_open(mox_expert_stream **out, const mox_model *m, const mox_context_opts *opts,
                                  const mox_reader_opts *reader, mox_err *err)
{
    *out = NULL;
    mox_expert_stream *s = mox_alloc_array(1, sizeof *s);
    if (!s) return mox_fail_memory(err, sizeof *s, "expert slots");
    s->model = m;
    s->prefetch = !opts->no_prefetch;
    s->reserved = (int64_t)sizeof *s;
    mox_status status = open_slots(s, opts, err);
    if (status == MOX_OK) status = mox_reader_open(&s->reader, m->tensors.files, m->tensors.n_files, reader, err);
    if (status == MOX_OK) begin_trace(s, opts);
    if (status == MOX_OK && opts->heat) warm(s, opts->heat);
    if (status != MOX_OK) mox_expert_stream_close(&s);
    *out = s;
    return status;
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
    s->acquired_s = mox_clock_now();
    if (s->warming) mox_reader_park(s->reader);
    s->warming = false;
    collect(s);
    s->layer = layer;
    s->ids = ids;
    s->n = n;
    s->n_done = s->n_given = s->n_ready = 0;
    s->failed = NULL;
    learn(s, layer, ids, n);
    mox_expert_cache_begin(&s->cache, first_key(s), ids, n, s->slot_of, s->hit);
    for (int32_t i = 0; i < n; i++) {
        uint32_t *heat = &s->heat[first_key(s) + ids[i]];
        expert_slot *slot = &s->slots[s->slot_of[i]];
        *heat += *heat < UINT32_MAX;
        if (!s->hit[i]) continue;
        slot->user = i;
        s->used[slot->reason]++;
        if (slot->state == SLOT_LOADING) s->brought[slot->reason]++; /* it counts as asked for from here on */
        slot->reason = READ_ASKED;
        slot->early = slot->state == SLOT_LOADING;
        if (slot->state == SLOT_READY) s->ready[s->n_ready++] = i;
        else mox_reader_hurry(s->reader, &slot->job);
    }
    read_missing(s);
    read_next_layer(s);
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

int64_t mox_expert_stream_ready(mox_expert_stream *s)
{
    collect(s);
    return s->n_ready - s->n_given;
}

void *mox_expert_stream_memory(const mox_expert_stream *s, int64_t *bytes)
{
    *bytes = s->cache.n_slots * s->slot_bytes;
    return s->first_slot;
}

bool mox_expert_stream_has(const mox_expert_stream *s, int64_t key) { return mox_expert_cache_find(&s->cache, key) >= 0; }
bool mox_expert_stream_has_all(const mox_expert_stream *s) { return s->cache.n_slots == count_experts(s->model); }

void mox_expert_stream_release(mox_expert_stream *s)
{
    for (int64_t i = 0; i < s->n; i++) {
        expert_slot *slot = &s->slots[s->slot_of[i]];
        slot->user = slot->queued = -1;
        settle(s, slot); /* I1: after a failure not all came that should have */
    }
    s->ids = NULL;
    s->n = s->n_done = s->n_given = s->n_ready = 0;
    s->failed = NULL;
    s->busy_s += mox_clock_now() - s->acquired_s;
}

void mox_expert_stream_resize(mox_expert_stream *s, int64_t n_slots)
{
    mox_expert_cache *c = &s->cache;
    const int32_t target = (int32_t)mox_max_i64(mox_min_i64(n_slots, c->n_slots), 1);
    collect(s);
    int32_t n = c->n_open;
    while (n > target && (s->slots[n - 1].state != SLOT_LOADING || withdraw(s, &s->slots[n - 1]))) n--;
    mox_expert_cache_resize(c, n > target ? n : target);
    for (int32_t i = c->n_open; i < c->n_slots; i++) {
        s->slots[i].state = SLOT_EMPTY;
        s->slots[i].key = -1;
    }
    /* With the rest of a huge page that was in use when it was closed. */
    mox_drop_pages(s->first_slot + c->n_open * s->slot_bytes, (size_t)((c->n_slots - c->n_open) * s->slot_bytes));
}
