/* runtime/device_fill.c -- what a context has in the memory of its devices.
 *
 * The processor computes where the files are mapped.  A device with memory of its own gets,
 * before the first step, all tensors that its layers use, each at an aligned address, tables of
 * the experts, and the activations; nothing is allocated later, and nothing brought over but the small
 * arrays of a batch, the rows that go from a device to the next and, when a budget of the device's memory is
 * not enough for all of them, experts (expert_tier.h).  The first device that has slots for experts pins memory of the host
 * for all of them, as what is pinned is pinned for every device, and nothing can be twice.  Where a device can read the host's memory, tensors stay
 * where they are mapped.
 *
 * Refuses: models that do not fit. */
#include "runtime/context.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/size.h"

#include <stdlib.h>
#include <string.h>

/* Tensors of the section as they lie on its device, with routed experts or without. */
static bool is_there(const mox_model *m, const mox_section *p, const char *prefix, int64_t tensor, bool with_experts)
{
    const mox_need n = mox_device_need(m, prefix, tensor);
    if (m->tensor_use[tensor] == MOX_USED_EXPERT && !with_experts) return false;
    if (n.guesses && n.layer == p->end && mox_section_guesses_on(m, p)) return true;
    return (n.layer >= p->first && n.layer < p->end) || (n.first && p->first == 0) || (n.last && p->end == m->dims.n_layers);
}

static int64_t weight_bytes(const mox_model *m, const mox_section *p, bool with_experts)
{
    const char *prefix = mox_bind_prefix(&m->tensors);
    int64_t bytes = 0;
    for (int64_t i = 0; i < m->tensors.n_tensors; i++)
        if (is_there(m, p, prefix, i, with_experts) && !mox_add_i64(bytes, mox_device_aligned(m->tensors.tensors[i].extent.bytes), &bytes))
            return INT64_MAX;
    return bytes;
}

mox_dev_sizes mox_device_batch(const mox_context *c, bool come)
{
    const mox_model *m = c->model;
    return (mox_dev_sizes){.n_rows = c->n_batch, .n_spans = c->n_seqs, .n_pages = c->pages_per_seq,
                           .n_pairs = come ? c->n_batch * m->report.n_experts_active : 0, .n_experts = come ? m->n_experts : 0};
}

int64_t mox_device_room(mox_dev *d)
{
    int64_t total, left;
    d->apart->memory(d, &total, &left);
    return left;
}

/* ---- weights ---- */

static int by_file_and_offset(const void *a, const void *b)
{
    const mox_extent *x = &((const mox_place *)a)->extent, *y = &((const mox_place *)b)->extent;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Tensors of the section, with routed experts or without, in the order of the files. */
static mox_status list_places(const mox_model *m, const mox_section *p, bool with_experts, mox_place **out, int64_t *n, mox_err *err)
{
    const char *prefix = mox_bind_prefix(&m->tensors);
    mox_place *places = mox_alloc_array((size_t)m->tensors.n_tensors + 1, sizeof *places);
    if (!places) return mox_fail_memory(err, (size_t)m->tensors.n_tensors * sizeof *places, "a list of weights");
    *n = 0;
    for (int64_t i = 0; i < m->tensors.n_tensors; i++)
        if (is_there(m, p, prefix, i, with_experts)) places[(*n)++].extent = m->tensors.tensors[i].extent;
    qsort(places, (size_t)*n, sizeof *places, by_file_and_offset);
    *out = places;
    return MOX_OK;
}

static void place_at(mox_place *places, int64_t n, const uint8_t *at)
{
    for (int64_t i = 0; i < n; i++) {
        places[i].at = at;
        at += mox_device_aligned(places[i].extent.bytes);
    }
}

/* Each tensor where it is mapped. */
static mox_status map_weights(mox_section *p, mox_err *err)
{
    for (int64_t i = 0; i < p->residency.n_places; i++) {
        mox_place *place = &p->places[i];
        const uint8_t *from = p->residency.files[place->extent.file].map;
        void *at;
        MOX_TRY(p->dev->memory.map(p->dev, from + place->extent.offset, place->extent.bytes, &at, err));
        place->at = at;
    }
    return MOX_OK;
}

static mox_status upload_weights(mox_section *p, mox_err *err)
{
    const int64_t n = p->residency.n_places;
    mox_upload *pieces = mox_alloc_array((size_t)n + 1, sizeof *pieces);
    if (!pieces) return mox_fail_memory(err, (size_t)n * sizeof *pieces, "a list of weights");
    uint8_t *at = p->weights;
    for (int64_t i = 0; i < n; i++) {
        const mox_extent *e = &p->places[i].extent;
        pieces[i] = (mox_upload){.to = at, .from = (const uint8_t *)p->residency.files[e->file].map + e->offset, .bytes = e->bytes};
        at += mox_device_aligned(e->bytes);
    }
    p->dev->apart->upload_all(p->dev, pieces, n);
    mox_free(pieces);
    return p->dev->memory.sync(p->dev, err);
}

static mox_status bring_weights(const mox_context *c, mox_section *p, bool with_experts, mox_err *err)
{
    const mox_model *m = c->model;
    int64_t n;
    p->weight_bytes = weight_bytes(m, p, with_experts);
    if (p->weight_bytes == INT64_MAX)
        return mox_fail(err, MOX_E_FULL, "%s: the weights have more bytes than a machine can count", m->config.path);
    MOX_TRY(list_places(m, p, with_experts, &p->places, &n, err));
    p->residency = (mox_residency){.files = m->residency.files, .n_files = m->residency.n_files, .places = p->places, .n_places = n};
    if (p->dev->memory.map) return map_weights(p, err);
    if (p->dev->memory.alloc(p->dev, p->weight_bytes, &p->weights, NULL) != MOX_OK)
        return mox_fail(err, MOX_E_FULL, "%s: the weights take %lld MiB, and device %s has %lld MiB free beside the context; with a budget of "
                                         "its memory (--vram) experts come and go", m->config.path,
                        (long long)mox_ceil_div(p->weight_bytes, 1 << 20), p->dev->name, (long long)(mox_device_room(p->dev) >> 20));
    place_at(p->places, n, p->weights);
    return upload_weights(p, err);
}

/* Tells the device of the experts of every layer: where they are, or, if they come, would be. */
static mox_status tell_experts(const mox_context *c, const mox_section *p, const mox_residency *r, mox_expert *all, mox_expert *come, mox_err *err)
{
    const mox_model *m = c->model;
    for (int32_t i = p->first; i < p->end; i++) {
        const mox_expert_weights *w = m->layers[i].experts;
        if (!w) continue;
        for (int32_t e = 0; e < m->n_experts; e++)
            all[e] = (mox_expert){.id = e, .gate = mox_residency_mat(r, &w[e].gate), .up = mox_residency_mat(r, &w[e].up),
                                  .down = mox_residency_mat(r, &w[e].down)};
        if (come) mox_expert_tier_views(&p->tier, i, come);
        MOX_TRY(p->dev->apart->place_experts(p->dev, i, all, m->n_experts, come, p->tier.slot_bytes, err));
    }
    return MOX_OK;
}

static mox_status place_experts(const mox_context *c, const mox_section *p, mox_err *err)
{
    const mox_model *m = c->model;
    const size_t n = (size_t)m->n_experts;
    mox_expert *all = mox_alloc_array(2 * n, sizeof *all);
    mox_place *places = NULL;
    mox_residency r = p->residency;
    mox_status status = all ? MOX_OK : mox_fail_memory(err, 2 * n * sizeof *all, "a list of experts");
    if (status == MOX_OK && p->tier.model) {
        status = list_places(m, p, true, &places, &r.n_places, err);
        if (status == MOX_OK) place_at(places, r.n_places, (const uint8_t *)(uintptr_t)mox_device_aligned(1)); /* as good as any: nobody follows it */
        r.places = places;
    }
    if (status == MOX_OK) status = tell_experts(c, p, &r, all, p->tier.model ? all + n : NULL, err);
    mox_free(places);
    mox_free(all);
    return status;
}

static mox_status fill_section(mox_context *c, mox_section *p, const mox_context_opts *o, mox_err *err)
{
    const mox_model *m = c->model;
    mox_dev *d = p->dev;
    const bool come = p->n_slots > 0;
    mox_dev_sizes most = mox_device_batch(c, come);
    if (come && o->cpu_experts) most.dim = m->dims.dim;
    MOX_TRY(d->memory.alloc(d, (int64_t)c->step_bytes, &p->activations, err));
    mox_arena_init_at(&p->arena, p->activations, c->step_bytes);
    MOX_TRY(d->apart->reserve(d, &most, err));
    if (m->n_frequencies > 0) MOX_TRY(d->apart->know(d, m->frequencies, m->n_frequencies, err));
    const double begun = mox_clock_now();
    MOX_TRY(bring_weights(c, p, !come, err));
    if (!d->memory.map) {
        c->load.upload_s += mox_clock_now() - begun;
        c->load.upload_bytes += p->weight_bytes;
    }
    if (come && o->cpu_experts && !c->host.model) MOX_TRY(mox_expert_host_init(&c->host, m, o, c->precision, err));
    if (come)
        MOX_TRY(mox_expert_tier_init(&p->tier, m, d, &p->residency, &c->experts, o->cpu_experts ? &c->host : NULL, p->n_slots, o, err));
    MOX_TRY(place_experts(c, p, err));
    return d->memory.sync(d, err);
}

/* Of several devices that are alike, says which it was. */
static mox_status name_section(const mox_context *c, int i, mox_status status, mox_err *err)
{
    if (status == MOX_OK || c->n_sections == 1 || !err) return status;
    const mox_err said = *err;
    return mox_fail(err, status, "device %d of %d: %s", i + 1, c->n_sections, said.msg);
}

mox_status mox_context_fill_devices(mox_context *c, const mox_context_opts *o, mox_err *err)
{
    const int64_t V = c->model->dims.n_vocab;
    const size_t n_fetched = (size_t)(mox_head_rows(c) * V);
    c->fetched = mox_alloc_array(n_fetched, sizeof *c->fetched);
    if (!c->fetched) return mox_fail_memory(err, n_fetched * sizeof *c->fetched, "logits");
    for (int i = 0; i < c->n_sections; i++) MOX_TRY(name_section(c, i, fill_section(c, &c->sections[i], o, err), err));
    for (int i = 1; i < c->n_sections; i++)
        if (c->sections[i].tier.model) mox_expert_tier_link(&c->sections[i - 1].tier, c->sections[i].first, &c->sections[i].tier);
    /* Logits of many sequences are megabytes a step; a machine that lets no more memory be pinned copies them more slowly. */
    mox_dev *head = c->sections[c->n_sections - 1].dev;
    c->logits_pinned = head->apart->copies.pin(head, c->last_logits, c->n_seqs * V * (int64_t)sizeof *c->last_logits, NULL) == MOX_OK;
    if (c->logits_pinned) c->logits_seen = head->apart->copies.seen(head, c->last_logits);
    return MOX_OK;
}

void mox_context_close_devices(mox_context *c)
{
    mox_dev *head = c->n_sections > 0 ? c->sections[c->n_sections - 1].dev : NULL;
    if (c->logits_pinned) head->apart->copies.unpin(head, c->last_logits);
    for (int i = 0; i < c->n_sections; i++) {
        mox_section *p = &c->sections[i];
        mox_dev *d = p->dev;
        mox_arena_deinit(&p->arena);
        if (d) { /* there is none while planning */
            d->memory.free(d, p->cache_memory, p->cache_bytes);
            d->memory.free(d, p->states, p->state_bytes);
            d->memory.free(d, p->activations, (int64_t)c->step_bytes);
            d->memory.free(d, p->weights, p->weight_bytes);
            for (int64_t j = p->residency.n_places - 1; j >= 0 && !p->weights; j--) /* mapped ones */
                d->memory.free(d, (void *)(uintptr_t)p->places[j].at, p->places[j].extent.bytes);
        }
        mox_dev_close(&p->dev);
        mox_free(p->places);
    }
    mox_free(c->fetched);
}
