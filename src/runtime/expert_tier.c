/* runtime/expert_tier.c -- see expert_tier.h. */
#include "runtime/expert_tier.h"

#include "base/alloc.h"
#include "base/size.h"
#include "runtime/expert_place.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

/* ALIGN: of slots and parts on a device.  KERNEL_ALIGN: what kernels ask for at most.  PULL: experts that are
 * copied before the first of them is computed.  BRING_PART: of the experts that a layer lacks, a third is copied
 * while the host computes the others; where it was measured, it did so half as fast again as the bus copies (bench/results/gpu.md). */
enum { ALIGN = 256, KERNEL_ALIGN = 16, PULL = 32, BRING_PART = 3 };

/* ---- an expert in a slot ---- */

typedef struct tier_part {
    int64_t bytes, at; /* bytes 0: the expert does not own it */
} tier_part;

typedef struct tier_place {
    tier_part parts[MOX_EXPERT_PARTS]; /* codes, scales and biases of gate, up and down */
    int64_t bytes;                     /* of the slot */
    int64_t whole, shift; /* bytes of a slot of the store, which is copied as it is to `shift`; 0: part by part */
} tier_place;

static void list_parts(const mox_expert_weights *w, tier_place *out)
{
    const mox_weight *from[] = {&w->gate, &w->up, &w->down};
    for (int i = 0; i < 3; i++) {
        const bool own = from[i]->layout.kind == MOX_MAT_AFFINE;
        out->parts[3 * i].bytes = from[i]->w.bytes;
        out->parts[3 * i + 1].bytes = own ? from[i]->scales.bytes : 0;
        out->parts[3 * i + 2].bytes = own ? from[i]->biases.bytes : 0;
    }
}

/* Part behind part, each aligned. */
static void place_parts(const mox_expert_weights *w, tier_place *out)
{
    *out = (tier_place){0};
    list_parts(w, out);
    for (int i = 0; i < MOX_EXPERT_PARTS; i++) {
        out->parts[i].at = out->bytes;
        out->bytes += mox_ceil_div(out->parts[i].bytes, ALIGN) * ALIGN;
    }
}

/* As in a slot of the store, moved so that the first part is aligned.  False when others are not then. */
static bool place_whole(const mox_expert_weights *w, tier_place *out)
{
    mox_expert_place p;
    mox_expert_place_find(w, &p);
    *out = (tier_place){.whole = p.bytes, .shift = (KERNEL_ALIGN - p.part_at[0] % KERNEL_ALIGN) % KERNEL_ALIGN};
    list_parts(w, out);
    out->bytes = mox_ceil_div(p.bytes + out->shift, ALIGN) * ALIGN;
    for (int i = 0; i < MOX_EXPERT_PARTS; i++) {
        if (out->parts[i].bytes == 0) continue;
        out->parts[i].at = p.part_at[i] + out->shift;
        if (out->parts[i].at % KERNEL_ALIGN != 0) return false;
    }
    return true;
}

/* Whether slots of the store can be copied as they are: experts of a layer must lie alike, too.  They do not
 * where a layer is in two files. */
static bool can_be_whole(const mox_model *m, int64_t layer)
{
    const mox_expert_weights *w = m->layers[layer].experts;
    tier_place first, p;
    if (!w || !place_whole(&w[0], &first)) return false;
    for (int64_t i = 1; i < m->n_experts; i++)
        if (!place_whole(&w[i], &p) || memcmp(&p, &first, sizeof p) != 0) return false;
    return true;
}

static void place(const mox_expert_weights *w, bool whole, tier_place *out)
{
    if (whole) (void)place_whole(w, out);
    else place_parts(w, out);
}

/* Its matrices there; what is not in the slot stays on the device. */
static void view(const mox_expert_tier *t, int32_t layer, int32_t id, const uint8_t *slot, mox_expert *out)
{
    const mox_expert_weights *w = &t->model->layers[layer].experts[id];
    const mox_weight *from[] = {&w->gate, &w->up, &w->down};
    mox_mat *to[] = {&out->gate, &out->up, &out->down};
    tier_place p;
    place(w, t->whole[layer], &p);
    out->id = id;
    for (int i = 0; i < 3; i++) {
        const tier_part *parts = p.parts;
        mox_weight rest = *from[i];
        rest.w.bytes = 0;
        if (parts[3 * i + 1].bytes > 0) rest.scales.bytes = 0;
        if (parts[3 * i + 2].bytes > 0) rest.biases.bytes = 0;
        *to[i] = mox_residency_mat(t->residency, &rest);
        to[i]->w = slot + parts[3 * i].at;
        if (parts[3 * i + 1].bytes > 0) to[i]->scales = slot + parts[3 * i + 1].at;
        if (parts[3 * i + 2].bytes > 0) to[i]->biases = slot + parts[3 * i + 2].at;
    }
}

int64_t mox_expert_tier_slot_bytes(const mox_model *m)
{
    int64_t most = 0;
    for (int64_t layer = 0; layer < m->dims.n_layers; layer++) {
        const bool whole = can_be_whole(m, layer);
        for (int64_t i = 0; m->layers[layer].experts && i < m->n_experts; i++) {
            tier_place p;
            place_parts(&m->layers[layer].experts[i], &p);
            most = mox_max_i64(most, p.bytes);
            if (whole && place_whole(&m->layers[layer].experts[i], &p)) most = mox_max_i64(most, p.bytes);
        }
    }
    return most;
}

int64_t mox_expert_tier_least(const mox_model *m)
{
    bool together = false;
    for (int64_t i = 0; i < m->dims.n_layers; i++) {
        const mox_weight *w = m->layers[i].experts ? &m->layers[i].experts[0].gate : NULL;
        const mox_mat mat = w ? (mox_mat){.layout = w->layout, .rows = w->rows, .cols = w->cols} : (mox_mat){0};
        together = together || (w && mox_dev_gpu_needs_all(&mat));
    }
    return together ? mox_min_i64(m->n_experts, MOX_DEV_TOGETHER * m->report.n_experts_active) : mox_min_i64(m->n_experts, 1);
}

void mox_expert_tier_views(const mox_expert_tier *t, int32_t layer, mox_expert *out)
{
    for (int32_t i = 0; i < t->model->n_experts; i++) view(t, layer, i, t->memory, &out[i]);
}

/* ---- opening ---- */

static int64_t count_keys(const mox_model *m) { return m->dims.n_layers * m->n_experts; }

int64_t mox_expert_tier_bytes(const mox_model *m, int64_t n_slots)
{
    const mox_expert_tier *t = NULL;
    return m->n_experts * (int64_t)(sizeof *t->slot_of + sizeof *t->hit + sizeof *t->come + sizeof *t->index_of + sizeof *t->missing +
                                    sizeof *t->asked + sizeof *t->there + sizeof *t->guess + sizeof *t->out + sizeof *t->batch) +
           n_slots * (int64_t)(sizeof *t->busy + sizeof *t->used + sizeof *t->coming) + count_keys(m) * (int64_t)sizeof *t->heat +
           m->dims.n_layers * (int64_t)sizeof *t->whole +
           mox_expert_cache_bytes(count_keys(m), (int32_t)n_slots, &mox_policy_lru);
}

static mox_status reserve(mox_expert_tier *t, int64_t n_slots, mox_err *err)
{
    const size_t n = (size_t)t->model->n_experts, keys = (size_t)count_keys(t->model);
    t->slot_of = mox_alloc_array(n, sizeof *t->slot_of);
    t->hit = mox_alloc_array(n, sizeof *t->hit);
    t->come = mox_alloc_array(n, sizeof *t->come);
    t->index_of = mox_alloc_array(n, sizeof *t->index_of);
    t->missing = mox_alloc_array(n, sizeof *t->missing);
    t->asked = mox_alloc_array(n, sizeof *t->asked);
    t->there = mox_alloc_array(n, sizeof *t->there);
    t->guess = mox_alloc_array(n, sizeof *t->guess);
    t->out = mox_alloc_array(n, sizeof *t->out);
    t->batch = mox_alloc_array(n, sizeof *t->batch);
    t->busy = mox_alloc_array((size_t)n_slots, sizeof *t->busy);
    t->used = mox_alloc_array((size_t)n_slots, sizeof *t->used);
    t->coming = mox_alloc_array((size_t)n_slots, sizeof *t->coming);
    t->heat = mox_alloc_array(keys, sizeof *t->heat);
    t->whole = mox_alloc_array((size_t)t->model->dims.n_layers, sizeof *t->whole);
    if (!t->slot_of || !t->hit || !t->come || !t->index_of || !t->missing || !t->asked || !t->there || !t->guess || !t->out || !t->batch || !t->busy || !t->used ||
        !t->coming || !t->heat || !t->whole)
        return mox_fail_memory(err, (size_t)mox_expert_tier_bytes(t->model, n_slots), "experts on a device");
    return mox_expert_cache_init(&t->cache, (int64_t)keys, (int32_t)n_slots, &mox_policy_lru, err);
}

static mox_status pin_one(mox_expert_tier *t, void *p, int64_t bytes, mox_err *err)
{
    MOX_TRY(t->dev->apart->copies.pin(t->dev, p, bytes, err));
    t->pinned[t->n_pinned++] = p;
    return MOX_OK;
}

static void unpin_all(mox_expert_tier *t)
{
    while (t->n_pinned > 0) t->dev->apart->copies.unpin(t->dev, t->pinned[--t->n_pinned]);
}

/* Pins what the store hands out from, unless that is left to the system.  Copies from memory that is not
 * pinned cannot run beside operations, and are slower. */
static mox_status pin(mox_expert_tier *t, const mox_context_opts *opts, mox_err *err)
{
    const mox_tensors *files = &t->model->tensors;
    mox_err problem;
    mox_status status = MOX_OK;
    if (t->below->pinned || t->below->not_pinned) return MOX_OK; /* another tier has, or has said why it could not */
    t->pinned = mox_alloc_array((size_t)files->n_files + 1, sizeof *t->pinned);
    if (!t->pinned) return mox_fail_memory(err, ((size_t)files->n_files + 1) * sizeof *t->pinned, "a list of memory");
    if (t->below->stream) {
        int64_t bytes;
        void *memory = mox_expert_stream_memory(t->below->stream, &bytes);
        status = pin_one(t, memory, bytes, &problem);
    } else {
        for (int32_t i = 0; i < files->n_files; i++)
            if (files->files[i].fd >= 0) return MOX_OK;
        for (int32_t i = 0; i < files->n_files && status == MOX_OK; i++)
            status = pin_one(t, (void *)(uintptr_t)files->files[i].map, files->files[i].size, &problem);
    }
    if (status == MOX_OK) {
        t->below->pinned = true;
        return MOX_OK;
    }
    unpin_all(t);
    t->below->not_pinned = true;
    if (opts->warn) opts->warn(opts->warn_user, problem.msg);
    return MOX_OK;
}

static mox_status tier_acquire(mox_expert_source *source, int32_t layer, const int32_t *ids, int64_t n, mox_err *err);
static mox_status tier_next(mox_expert_source *source, mox_expert *out, int64_t max, int64_t *n, const mox_cancel *cancel, mox_err *err);
static mox_status tier_all(mox_expert_source *source, mox_expert *out, int64_t *n, const mox_cancel *cancel, mox_err *err);
static void tier_release(mox_expert_source *source);
static bool tier_wants(mox_expert_source *source);
static void tier_ahead(mox_expert_source *source, int32_t layer, const int32_t *ids, int64_t n);
static void serve_host(mox_expert_tier *t);

mox_status mox_expert_tier_init(mox_expert_tier *t, const mox_model *m, mox_dev *dev, const mox_residency *residency,
                                mox_expert_store *below, mox_expert_host *host, int64_t n_slots, const mox_context_opts *opts, mox_err *err)
{
    void *memory;
    *t = (mox_expert_tier){.source = {.acquire = tier_acquire, .next = tier_next, .all = tier_all, .release = tier_release, .wants = tier_wants,
                                      .ahead = tier_ahead}, .model = m,
                           .dev = dev, .residency = residency, .below = below, .host = host, .slot_bytes = mox_expert_tier_slot_bytes(m)};
    if (host) serve_host(t);
    t->stays = !below->stream || mox_expert_stream_has_all(below->stream);
    MOX_TRY(reserve(t, n_slots, err));
    if (dev->memory.alloc(dev, n_slots * t->slot_bytes, &memory, NULL) != MOX_OK)
        return mox_fail(err, MOX_E_FULL, "%s: slots for %lld experts, %.1f GB, do not fit device %s; others use it, or its budget is more "
                        "than it has", m->config.path, (long long)n_slots, (double)(n_slots * t->slot_bytes) / 1e9, dev->name);
    t->memory = memory;
    for (int64_t i = 0; i < m->dims.n_layers; i++) t->whole[i] = below->stream && can_be_whole(m, i);
    MOX_TRY(pin(t, opts, err));
    t->beside = below->pinned;
    t->prefetch = t->stays && t->beside && !opts->no_prefetch && !host; /* with a host the bus has work enough */
    return MOX_OK;
}

void mox_expert_tier_deinit(mox_expert_tier *t)
{
    if (!t->model) return;
    if (t->beside) (void)t->dev->apart->copies.await_brought(t->dev, NULL); /* nobody reads what is given back */
    unpin_all(t);
    mox_free(t->pinned);
    if (t->memory) t->dev->memory.free(t->dev, t->memory, t->cache.n_slots * t->slot_bytes);
    mox_expert_cache_deinit(&t->cache);
    mox_free(t->slot_of);
    mox_free(t->hit);
    mox_free(t->come);
    mox_free(t->index_of);
    mox_free(t->missing);
    mox_free(t->asked);
    mox_free(t->there);
    mox_free(t->guess);
    mox_free(t->out);
    mox_free(t->batch);
    mox_free(t->busy);
    mox_free(t->used);
    mox_free(t->coming);
    mox_free(t->heat);
    mox_free(t->whole);
    *t = (mox_expert_tier){0};
}

void mox_expert_tier_link(mox_expert_tier *t, int32_t first, mox_expert_tier *next)
{
    t->next = next;
    t->next_first = first;
}

void mox_expert_tier_add_stats(const mox_expert_tier *t, mox_expert_stats *out)
{
    out->n_device_slots += t->cache.n_slots;
    out->device_slot_bytes = t->slot_bytes;
    out->device_hits += t->cache.hits;
    out->device_misses += t->cache.misses;
    out->device_cold += t->n_cold;
    out->device_prefetched += t->n_prefetched;
    out->guessed += t->foresight.guessed;
    out->guessed_right += t->foresight.right;
    out->bytes_copied += t->bytes_copied;
    out->copy_wait_s += t->dev->apart->copies.waited_s(t->dev);
}

/* ---- a batch ---- */

static uint8_t *slot_at(const mox_expert_tier *t, int32_t slot) { return t->memory + slot * t->slot_bytes; }
static int64_t key_of(const mox_expert_tier *t, int64_t i) { return t->layer * t->model->n_experts + t->ids[i]; }

/* Asks the store for as many missing experts as have slots that are not in use, at least one if nothing is. */
static mox_status ask(mox_expert_tier *t, mox_err *err)
{
    bool reused = false;
    int64_t n = 0;
    for (; t->n_begun < t->n_missing; t->n_begun++) {
        const int32_t i = t->missing[t->n_begun], slot = t->slot_of[i];
        if (t->busy[slot]) break;
        t->busy[slot] = true;
        reused = reused || t->used[slot];
        t->asked[n++] = t->ids[i];
    }
    if (n == 0) return MOX_OK;
    t->n_asked = n;
    t->n_pulled = 0;
    MOX_TRY(t->below->source.acquire(&t->below->source, t->layer, t->asked, n, err));
    t->asking = true;
    if (reused && t->beside) t->dev->apart->copies.bring_next(t->dev); /* I2 */
    return MOX_OK;
}

/* I3 */
static mox_status finish_copies(mox_expert_tier *t, mox_err *err)
{
    const bool must = t->copying && !t->stays && t->beside;
    t->copying = false;
    return must ? t->dev->apart->copies.await_brought(t->dev, err) : MOX_OK;
}

static void end_asking(mox_expert_tier *t)
{
    if (t->asking) t->below->source.release(&t->below->source);
    t->asking = false;
}

static void copy_bytes(mox_expert_tier *t, uint8_t *to, const void *from, int64_t bytes)
{
    if (bytes == 0) return;
    if (t->beside) t->dev->apart->copies.bring(t->dev, to, from, bytes);
    else t->dev->memory.upload(t->dev, to, from, bytes);
    t->bytes_copied += bytes;
}

/* One copy where that can be: small ones take as long as some that are much larger. */
static void copy(mox_expert_tier *t, int32_t layer, uint8_t *slot, const mox_expert *e)
{
    const mox_mat *mats[] = {&e->gate, &e->up, &e->down};
    tier_place p;
    place(&t->model->layers[layer].experts[e->id], t->whole[layer], &p);
    if (p.whole > 0) {
        copy_bytes(t, slot + p.shift, (const uint8_t *)e->gate.w - (p.parts[0].at - p.shift), p.whole);
        return;
    }
    for (int i = 0; i < 3; i++) {
        copy_bytes(t, slot + p.parts[3 * i].at, mats[i]->w, p.parts[3 * i].bytes);
        copy_bytes(t, slot + p.parts[3 * i + 1].at, mats[i]->scales, p.parts[3 * i + 1].bytes);
        copy_bytes(t, slot + p.parts[3 * i + 2].at, mats[i]->biases, p.parts[3 * i + 2].bytes);
    }
}

/* Copies what the store hands over next; waits for it when there is nothing yet. */
static mox_status pull(mox_expert_tier *t, const mox_cancel *cancel, mox_err *err)
{
    int64_t n;
    MOX_TRY(finish_copies(t, err));
    MOX_TRY(t->below->source.next(&t->below->source, t->batch, PULL, &n, cancel, err));
    for (int64_t k = 0; k < n; k++) {
        const int32_t i = t->index_of[t->batch[k].id];
        copy(t, t->layer, slot_at(t, t->slot_of[i]), &t->batch[k]);
        t->come[i] = true;
        t->out[t->n_out++] = i;
    }
    t->copying = true;
    t->n_pulled += n;
    return MOX_OK;
}

static void count(mox_expert_tier *t, int64_t key)
{
    t->heat[key] += t->heat[key] < UINT32_MAX;
}

/* From the guesses about the layer, if there are any. */
static void learn(mox_expert_tier *t, int32_t layer, const int32_t *ids, int64_t n)
{
    if (layer == t->guess_layer) mox_foresight_compare(&t->foresight, t->guess, t->n_guess, ids, n);
    t->n_guess = 0;
}

static mox_status begin_batch(mox_expert_tier *t, int32_t layer, const int32_t *ids, int64_t n, mox_err *err)
{
    t->running = true;
    t->layer = layer;
    t->ids = ids;
    t->n = n;
    t->n_missing = t->n_begun = t->n_asked = t->n_pulled = t->n_out = t->n_given = 0;
    t->hits_given = t->hits_back = t->hits_come = t->copying = false;
    memset(t->busy, 0, (size_t)t->cache.n_slots * sizeof *t->busy);
    memset(t->used, 0, (size_t)t->cache.n_slots * sizeof *t->used);
    mox_expert_cache_begin(&t->cache, layer * t->model->n_experts, ids, n, t->slot_of, t->hit);
    for (int32_t i = 0; i < n; i++) {
        count(t, key_of(t, i));
        t->index_of[ids[i]] = i;
        t->come[i] = t->hit[i];
        t->hits_come = t->hits_come || (t->hit[i] && t->coming[t->slot_of[i]]);
        if (t->hit[i]) t->busy[t->slot_of[i]] = true;
        else t->missing[t->n_missing++] = i;
    }
    mox_status status = ask(t, err);
    if (status == MOX_OK && t->asking && mox_expert_store_ready(t->below) > 0) status = pull(t, NULL, err);
    if (status != MOX_OK) tier_release(&t->source);
    return status;
}

static mox_status tier_acquire(mox_expert_source *source, int32_t layer, const int32_t *ids, int64_t n, mox_err *err)
{
    mox_expert_tier *t = (mox_expert_tier *)source;
    learn(t, layer, ids, n);
    return begin_batch(t, layer, ids, n, err);
}

static void give(const mox_expert_tier *t, int32_t i, mox_expert *out)
{
    view(t, t->layer, t->ids[i], slot_at(t, t->slot_of[i]), out);
}

/* Those that were there come first, while others are copied. */
static int64_t give_hits(mox_expert_tier *t, mox_expert *out)
{
    int64_t n = 0;
    if (t->hits_come) {
        t->dev->apart->copies.use_brought(t->dev);
        memset(t->coming, 0, (size_t)t->cache.n_slots * sizeof *t->coming);
        t->hits_come = false;
    }
    for (int32_t i = 0; i < t->n; i++)
        if (t->hit[i]) give(t, i, &out[n++]);
    return n;
}

/* What is computed from here on waits for what was copied. */
static void wait_for_copies(const mox_expert_tier *t)
{
    if (t->n_out > t->n_given && t->beside) t->dev->apart->copies.use_brought(t->dev);
}

static int64_t give_copied(mox_expert_tier *t, mox_expert *out)
{
    wait_for_copies(t);
    for (int64_t k = 0; k < t->n_out; k++) give(t, t->out[k], &out[k]);
    t->n_given = t->n_out;
    return t->n_out;
}

static void free_slot(mox_expert_tier *t, int32_t slot)
{
    t->busy[slot] = false;
    t->used[slot] = true;
}

/* What was handed over has been given to the device to compute. */
static void take_back(mox_expert_tier *t)
{
    for (int32_t i = 0; i < t->n && !t->hits_back; i++)
        if (t->hit[i]) free_slot(t, t->slot_of[i]);
    t->hits_back = true;
    for (int64_t k = 0; k < t->n_given; k++) free_slot(t, t->slot_of[t->out[k]]);
    t->n_out -= t->n_given;
    memmove(t->out, t->out + t->n_given, (size_t)t->n_out * sizeof *t->out);
    t->n_given = 0;
}

static mox_status tier_next(mox_expert_source *source, mox_expert *out, int64_t max, int64_t *n, const mox_cancel *cancel, mox_err *err)
{
    mox_expert_tier *t = (mox_expert_tier *)source;
    assert(max >= t->n);
    (void)max;
    *n = 0;
    if (!t->hits_given) {
        *n = give_hits(t, out);
        t->hits_given = true;
        if (*n > 0) return MOX_OK;
    }
    take_back(t);
    if (t->n_out == 0) {
        if (t->asking && t->n_pulled == t->n_asked) {
            MOX_TRY(finish_copies(t, err));
            end_asking(t);
        }
        if (!t->asking) MOX_TRY(ask(t, err));
        if (t->asking) MOX_TRY(pull(t, cancel, err));
    }
    *n = give_copied(t, out);
    return MOX_OK;
}

static mox_status tier_all(mox_expert_source *source, mox_expert *out, int64_t *n, const mox_cancel *cancel, mox_err *err)
{
    mox_expert_tier *t = (mox_expert_tier *)source;
    *n = 0;
    if (t->n_begun < t->n_missing)
        return mox_fail(err, MOX_E_FULL, "%lld experts are needed at once, and the device has slots for %d", (long long)t->n, t->cache.n_slots);
    while (t->asking && t->n_pulled < t->n_asked) MOX_TRY(pull(t, cancel, err));
    *n = give_hits(t, out);
    *n += give_copied(t, out + *n);
    return MOX_OK;
}

static void tier_release(mox_expert_source *source)
{
    mox_expert_tier *t = (mox_expert_tier *)source;
    if (!t->running) return;
    t->running = false;
    wait_for_copies(t);            /* I1, after a failure */
    (void)finish_copies(t, NULL); /* what is wrong with the device is told at the end of the step */
    end_asking(t);
    for (int64_t k = 0; k < t->n_missing; k++) {
        const int32_t i = t->missing[k];
        if (!t->come[i] && mox_expert_cache_find(&t->cache, key_of(t, i)) >= 0) mox_expert_cache_drop(&t->cache, key_of(t, i));
    }
    t->ids = NULL;
}

/* ---- ahead of a layer ---- */

/* Who has that layer. */
static mox_expert_tier *tier_of_layer(mox_expert_tier *t, int32_t layer) { return t->next && layer >= t->next_first ? t->next : t; }

static bool tier_wants(mox_expert_source *source)
{
    mox_expert_tier *t = (mox_expert_tier *)source;
    return t->prefetch && mox_foresight_wants(&tier_of_layer(t, t->layer + 1)->foresight);
}

/* Copies the first n guesses, which have slots, from memory of the store, which has them for good. */
static void copy_guesses(mox_expert_tier *t, int32_t layer, int64_t n)
{
    mox_expert_source *below = &t->below->source;
    const int64_t first = layer * t->model->n_experts;
    int64_t n_copied = 0, part = 0;
    if (n == 0) return;
    const bool acquired = below->acquire(below, layer, t->guess, n, NULL) == MOX_OK;
    while (acquired && n_copied < n && below->next(below, t->batch, PULL, &part, NULL, NULL) == MOX_OK) {
        for (int64_t i = 0; i < part; i++) {
            const int32_t slot = mox_expert_cache_find(&t->cache, first + t->batch[i].id);
            copy(t, layer, slot_at(t, slot), &t->batch[i]);
            t->coming[slot] = true;
        }
        n_copied += part;
    }
    if (acquired) below->release(below);
    t->n_prefetched += n_copied;
    for (int64_t i = 0; i < n && n_copied < n; i++) /* a read failed; whoever asks for it will be told */
        if (!t->coming[mox_expert_cache_find(&t->cache, first + t->guess[i])]) mox_expert_cache_drop(&t->cache, first + t->guess[i]);
}

static void tier_ahead(mox_expert_source *source, int32_t layer, const int32_t *ids, int64_t n)
{
    mox_expert_tier *t = tier_of_layer((mox_expert_tier *)source, layer);
    const int64_t first = layer * t->model->n_experts;
    int64_t n_taken = 0;
    t->guess_layer = layer;
    t->n_guess = 0;
    for (int64_t i = 0; i < n; i++) {
        bool known = mox_expert_cache_find(&t->cache, first + ids[i]) >= 0 || !mox_expert_store_has(t->below, first + ids[i]);
        for (int64_t k = 0; k < t->n_guess && !known; k++) known = t->guess[k] == ids[i];
        if (!known) t->guess[t->n_guess++] = ids[i];
    }
    while (t->foresight.reads && n_taken < t->n_guess) {
        const int32_t slot = mox_expert_cache_take(&t->cache, first + t->guess[n_taken]);
        if (slot < 0) break;
        t->coming[slot] = false; /* what was on its way there is of no use any more */
        n_taken++;
    }
    copy_guesses(t, layer, n_taken);
}

/* ---- what the host computes ---- */

static bool hotter(const mox_expert_tier *t, int64_t first, int32_t a, int32_t b)
{
    return t->heat[first + a] != t->heat[first + b] ? t->heat[first + a] > t->heat[first + b] : a < b;
}

/* Marks n of the missing ids, those that were asked for most often, as if they were there. */
static void choose_brought(const mox_expert_tier *t, int64_t first, const int32_t *ids, int64_t n_ids, int64_t n, bool *there)
{
    for (; n > 0; n--) {
        int64_t best = -1;
        for (int64_t i = 0; i < n_ids; i++)
            if (!there[i] && (best < 0 || hotter(t, first, ids[i], ids[best]))) best = i;
        there[best] = true;
    }
}

static mox_status tier_divide(mox_expert_source *source, int32_t layer, const int32_t *ids, int64_t n, bool *there, mox_err *err)
{
    mox_expert_tier *t = (mox_expert_tier *)source;
    const int64_t first = layer * t->model->n_experts;
    int64_t n_missing = 0, n_there = 0;
    for (int64_t i = 0; i < n; i++) {
        there[i] = mox_expert_cache_find(&t->cache, first + ids[i]) >= 0;
        n_missing += !there[i];
    }
    t->n_brought = t->stays && t->beside ? n_missing / BRING_PART : 0;
    choose_brought(t, first, ids, n, t->n_brought, there);
    for (int64_t i = 0; i < n; i++) {
        if (there[i]) t->there[n_there++] = ids[i];
        else count(t, first + ids[i]);
    }
    t->n_cold += n - n_there;
    return begin_batch(t, layer, t->there, n_there, err);
}

/* Chooses what the device learns where nothing was brought.  Hits of the layer keep their slots, and no other is
 * in use. */
static void choose_learnt(mox_expert_tier *t, const mox_cold_args *a)
{
    const int64_t first = a->layer * t->model->n_experts;
    t->learnt = t->learnt_slot = -1;
    for (int64_t p = 0; p < a->n * a->k; p++) {
        const int32_t id = a->ids[p];
        if (id >= 0 && (t->learnt < 0 || hotter(t, first, id, t->learnt))) t->learnt = id;
    }
    if (t->learnt >= 0 && t->n_brought == 0) t->learnt_slot = mox_expert_cache_take(&t->cache, first + t->learnt);
}

static mox_status tier_compute(mox_expert_source *source, const mox_cold_args *a, mox_err *err)
{
    mox_expert_tier *t = (mox_expert_tier *)source;
    choose_learnt(t, a);
    const mox_status status = mox_expert_host_compute(t->host, &t->missing_source, a, err);
    if (t->learnt_slot >= 0) mox_expert_cache_drop(&t->cache, a->layer * t->model->n_experts + t->learnt); /* it never came */
    return status;
}

static mox_expert_tier *tier_of(mox_expert_source *missing)
{
    return (mox_expert_tier *)(void *)((uint8_t *)missing - offsetof(mox_expert_tier, missing_source));
}

static mox_status missing_acquire(mox_expert_source *source, int32_t layer, const int32_t *ids, int64_t n, mox_err *err)
{
    mox_expert_source *below = &tier_of(source)->below->source;
    return below->acquire(below, layer, ids, n, err);
}

static mox_status missing_next(mox_expert_source *source, mox_expert *out, int64_t max, int64_t *n, const mox_cancel *cancel, mox_err *err)
{
    mox_expert_tier *t = tier_of(source);
    MOX_TRY(finish_copies(t, err));
    MOX_TRY(t->below->source.next(&t->below->source, out, max, n, cancel, err));
    for (int64_t i = 0; i < *n && t->learnt_slot >= 0; i++) {
        if (out[i].id != t->learnt) continue;
        copy(t, t->layer, slot_at(t, t->learnt_slot), &out[i]);
        t->copying = true;
        t->coming[t->learnt_slot] = t->beside;
        t->learnt_slot = -1;
    }
    return MOX_OK;
}

static void missing_release(mox_expert_source *source)
{
    mox_expert_tier *t = tier_of(source);
    (void)finish_copies(t, NULL); /* what is wrong with the device is told at the end of the step */
    t->below->source.release(&t->below->source);
}

static void serve_host(mox_expert_tier *t)
{
    t->source.divide = tier_divide;
    t->source.compute = tier_compute;
    t->missing_source = (mox_expert_source){.acquire = missing_acquire, .next = missing_next, .release = missing_release};
}
