/* runtime/device.c -- which device a context computes on, and what it must have there.
 *
 * The processor computes where the files are mapped.  A device with memory of its own gets,
 * before the first step, all tensors that the model uses, each at an aligned address, tables of
 * the experts, and the activations; nothing is allocated later, and nothing brought over but the small
 * arrays of a batch and, when a budget of the device's memory is not enough for all of them, experts
 * (expert_tier.h).
 *
 * Plans (plan.c) and contexts measure what goes there by the same functions.
 *
 * Refuses: models that do not fit. */
#include "runtime/context.h"

#include "base/alloc.h"
#include "base/size.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256 };

/* Address space of the emulated GPU: what is not touched costs nothing. */
static const int64_t emu_bytes = (int64_t)16 << 30;

/* Devices with memory of their own: what allocations are rounded up to, and what the driver takes for itself, of
 * there and of the host's memory.  Both are more than on an H200: with a budget of 6144 MiB nvidia-smi saw
 * 6065 at most, and the process had 0.1 GB more for itself than was counted. */
static const struct device_kind {
    const char *name;
    int64_t unit, own_bytes, host_bytes;
} kinds[] = {{"emu", 4096, 0, 0}, {"cuda", 2 << 20, (int64_t)640 << 20, (int64_t)192 << 20}};

static const struct device_kind *find_kind(const char *name)
{
    for (size_t i = 0; name && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0) return &kinds[i];
    return NULL;
}

bool mox_device_is_apart(const char *name) { return find_kind(name) != NULL; }
int64_t mox_device_host_bytes(const char *name) { return find_kind(name) ? find_kind(name)->host_bytes : 0; }

static mox_status check_apart(const mox_context *c, const mox_context_opts *o, mox_err *err)
{
    enum { MAX_ROWS = 65535 }; /* groups of a launch along an axis */
    if ((o->expert_bytes > 0 || c->model->dense_only) && o->device_bytes == 0)
        return mox_fail(err, MOX_E_ARG, "device %s: its experts must all be resident; do not stream them, or give it a budget of its memory",
                        o->device);
    if (o->deterministic) /* kernels are chosen by the number of tokens */
        return mox_fail(err, MOX_E_ARG, "device %s: only the cpu computes deterministically", o->device);
    if (o->trace) return mox_fail(err, MOX_E_ARG, "device %s: routing is traced on the cpu only", o->device);
    if (o->isa) return mox_fail(err, MOX_E_ARG, "isa: '%s' is a level of the cpu, and the device is %s", o->isa, o->device);
    if (c->n_batch > MAX_ROWS)
        return mox_fail(err, MOX_E_ARG, "device %s: batches have at most %d tokens, not %lld", o->device, MAX_ROWS, (long long)c->n_batch);
    return MOX_OK;
}

mox_status mox_context_open_device(mox_context *c, const mox_context_opts *o, mox_err *err)
{
    if (!o->device || strcmp(o->device, "cpu") == 0) {
        if (o->device_bytes > 0)
            return mox_fail(err, MOX_E_ARG, "device_bytes are for a device with memory of its own, which the cpu is not");
        const mox_pool_opts threads = {.n_threads = o->n_threads, .pin = o->pin};
        return mox_dev_cpu_open(&c->dev, &threads, o->isa, c->precision, c->deterministic, err);
    }
    const bool is_emu = strcmp(o->device, "emu") == 0;
    if (!mox_device_is_apart(o->device))
        return mox_fail(err, MOX_E_ARG, "device: '%s' is none that this build has (cpu, emu, cuda)", o->device);
    MOX_TRY(check_apart(c, o, err));
    /* A deterministic token has the same bytes alone and among many. */
    const bool halves = c->precision != MOX_PRECISION_EXACT && !c->deterministic;
    return is_emu ? mox_dev_emu_open(&c->dev, emu_bytes, halves, err) : mox_dev_cuda_open(&c->dev, halves, err);
}

/* ---- sizes ---- */

static int64_t round_up(int64_t bytes, int64_t unit)
{
    return bytes > INT64_MAX - unit ? INT64_MAX : mox_ceil_div(bytes, unit) * unit;
}

/* Of an allocation: an empty one takes a unit, too. */
static int64_t allocated(int64_t bytes, int64_t unit) { return round_up(mox_max_i64(bytes, 1), unit); }

static int64_t plus(int64_t a, int64_t b)
{
    int64_t sum;
    return mox_add_i64(a, b, &sum) ? sum : INT64_MAX;
}

static bool is_used(const mox_model *m, int64_t tensor, bool as_expert)
{
    return m->tensor_use[tensor] == MOX_USED_DENSE || (as_expert && m->tensor_use[tensor] == MOX_USED_EXPERT);
}

/* Tensors that the model uses as they lie on a device, with routed experts or without. */
static int64_t weight_bytes(const mox_model *m, bool with_experts)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < m->tensors.n_tensors; i++)
        if (is_used(m, i, with_experts))
            bytes = plus(bytes, round_up(m->tensors.tensors[i].extent.bytes, ALIGN));
    return bytes;
}

static mox_dev_sizes batch_sizes(const mox_context *c, bool come)
{
    const mox_model *m = c->model;
    return (mox_dev_sizes){.n_rows = c->n_batch, .n_spans = c->n_seqs, .n_pages = c->pages_per_seq,
                           .n_pairs = come ? c->n_batch * m->report.n_experts_active : 0, .n_experts = come ? m->n_experts : 0};
}

void mox_device_measure(const mox_context *c, const char *device, mox_device_sizes *out)
{
    const mox_model *m = c->model;
    const struct device_kind *kind = find_kind(device);
    *out = (mox_device_sizes){0};
    if (!kind) return;
    const mox_dev_sizes most = batch_sizes(c, true);
    out->weight_bytes = allocated(weight_bytes(m, true), kind->unit);
    out->dense_bytes = allocated(weight_bytes(m, false), kind->unit);
    out->cache_bytes = plus(allocated(c->cache_bytes, kind->unit), allocated(c->state_bytes, kind->unit));
    out->step_bytes = allocated((int64_t)c->step_bytes, kind->unit);
    out->other_bytes = plus(kind->own_bytes, round_up(mox_dev_gpu_table_bytes(&most, m->report.n_layers_moe, m->n_experts), kind->unit));
    out->other_bytes = plus(out->other_bytes, round_up(m->n_frequencies * (int64_t)sizeof *m->frequencies, kind->unit));
    out->slot_bytes = mox_expert_tier_slot_bytes(m);
    out->unit = kind->unit;
    out->n_experts = m->report.n_layers_moe * m->n_experts;
    out->least_slots = mox_expert_tier_least(m);
}

int64_t mox_device_total(const mox_device_sizes *s, int64_t n_slots)
{
    const int64_t rest = plus(plus(s->cache_bytes, s->step_bytes), s->other_bytes);
    return n_slots < 0 ? plus(rest, s->weight_bytes) : plus(plus(rest, s->dense_bytes), round_up(n_slots * s->slot_bytes, s->unit));
}

int64_t mox_device_slots(const mox_device_sizes *s, int64_t budget)
{
    const int64_t rest = mox_device_total(s, 0);
    return budget <= rest || s->slot_bytes == 0 ? 0 : mox_min_i64((budget - rest) / s->unit * s->unit / s->slot_bytes, s->n_experts);
}

/* Slots for experts, or -1 when all of them stay. */
static mox_status choose_slots(const mox_context *c, const mox_context_opts *o, int64_t *n_slots, mox_err *err)
{
    mox_device_sizes s;
    *n_slots = -1;
    if (o->device_bytes == 0) return MOX_OK;
    mox_device_measure(c, o->device, &s);
    const bool must_come = o->expert_bytes > 0 || c->model->dense_only;
    if (!must_come && mox_device_total(&s, -1) <= o->device_bytes) return MOX_OK;
    *n_slots = mox_device_slots(&s, o->device_bytes);
    if (s.n_experts > 0 && *n_slots >= s.least_slots) return MOX_OK;
    const int64_t least = mox_device_total(&s, s.n_experts > 0 ? s.least_slots : -1);
    return mox_fail(err, MOX_E_FULL, "device %s: a budget of %lld MiB is too small; with this context and batches of %lld tokens it takes %lld MiB",
                    o->device, (long long)(o->device_bytes >> 20), (long long)c->n_batch, (long long)mox_ceil_div(least, 1 << 20));
}

/* ---- weights ---- */

static int by_file_and_offset(const void *a, const void *b)
{
    const mox_extent *x = &((const mox_place *)a)->extent, *y = &((const mox_place *)b)->extent;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Tensors that the model uses, with routed experts or without, in the order of the files. */
static mox_status list_places(const mox_model *m, bool with_experts, mox_place **out, int64_t *n, mox_err *err)
{
    mox_place *places = mox_alloc_array((size_t)m->tensors.n_tensors + 1, sizeof *places);
    if (!places) return mox_fail_memory(err, (size_t)m->tensors.n_tensors * sizeof *places, "a list of weights");
    *n = 0;
    for (int64_t i = 0; i < m->tensors.n_tensors; i++)
        if (is_used(m, i, with_experts) && m->tensors.tensors[i].extent.bytes > 0) places[(*n)++].extent = m->tensors.tensors[i].extent;
    qsort(places, (size_t)*n, sizeof *places, by_file_and_offset);
    *out = places;
    return MOX_OK;
}

static void place_at(mox_place *places, int64_t n, const uint8_t *at)
{
    for (int64_t i = 0; i < n; i++) {
        places[i].at = at;
        at += round_up(places[i].extent.bytes, ALIGN);
    }
}

static mox_status bring_weights(mox_context *c, bool with_experts, mox_err *err)
{
    const mox_model *m = c->model;
    int64_t n;
    c->weight_bytes = weight_bytes(m, with_experts);
    if (c->weight_bytes == INT64_MAX) return mox_fail(err, MOX_E_FULL, "%s: the weights have more bytes than a machine can count", m->config.path);
    MOX_TRY(list_places(m, with_experts, &c->places, &n, err));
    c->residency = (mox_residency){.files = m->residency.files, .n_files = m->residency.n_files, .places = c->places, .n_places = n};
    if (c->dev->memory.alloc(c->dev, c->weight_bytes, &c->weights, NULL) != MOX_OK)
        return mox_fail(err, MOX_E_FULL, "%s: the weights need %.1f GB on device %s, and do not fit beside %.1f GB of context; a budget of "
                        "its memory (--vram) would let experts come and go", m->config.path, (double)c->weight_bytes / 1e9, c->dev->name,
                        (double)c->bytes / 1e9);
    place_at(c->places, n, c->weights);
    for (int64_t i = 0; i < n; i++) {
        const mox_place *p = &c->places[i];
        const uint8_t *from = c->residency.files[p->extent.file].map;
        c->dev->memory.upload(c->dev, (uint8_t *)c->weights + (p->at - (const uint8_t *)c->weights), from + p->extent.offset, p->extent.bytes);
    }
    return MOX_OK;
}

/* Tells the device of the experts of every layer: where they are, or, if they come, would be. */
static mox_status tell_experts(mox_context *c, const mox_residency *r, mox_expert *all, mox_expert *come, mox_err *err)
{
    const mox_model *m = c->model;
    for (int32_t i = 0; i < m->dims.n_layers; i++) {
        const mox_expert_weights *w = m->layers[i].experts;
        if (!w) continue;
        for (int32_t e = 0; e < m->n_experts; e++)
            all[e] = (mox_expert){.id = e, .gate = mox_residency_mat(r, &w[e].gate), .up = mox_residency_mat(r, &w[e].up),
                                  .down = mox_residency_mat(r, &w[e].down)};
        if (come) mox_expert_tier_views(&c->tier, i, come);
        MOX_TRY(c->dev->apart->place_experts(c->dev, i, all, m->n_experts, come, c->tier.slot_bytes, err));
    }
    return MOX_OK;
}

static mox_status place_experts(mox_context *c, mox_err *err)
{
    const mox_model *m = c->model;
    const size_t n = (size_t)m->n_experts;
    mox_expert *all = mox_alloc_array(2 * n, sizeof *all);
    mox_place *places = NULL;
    mox_residency r = c->residency;
    mox_status status = all ? MOX_OK : mox_fail_memory(err, 2 * n * sizeof *all, "a list of experts");
    if (status == MOX_OK && c->tier.model) {
        status = list_places(m, true, &places, &r.n_places, err);
        if (status == MOX_OK) place_at(places, r.n_places, (const uint8_t *)(uintptr_t)ALIGN); /* as good as any: nobody follows it */
        r.places = places;
    }
    if (status == MOX_OK) status = tell_experts(c, &r, all, c->tier.model ? all + n : NULL, err);
    mox_free(places);
    mox_free(all);
    return status;
}

mox_status mox_context_fill_device(mox_context *c, const mox_context_opts *o, mox_err *err)
{
    const int64_t V = c->model->dims.n_vocab;
    int64_t n_slots;
    MOX_TRY(choose_slots(c, o, &n_slots, err));
    const bool come = n_slots >= 0;
    const mox_dev_sizes most = batch_sizes(c, come);
    c->fetched = mox_alloc_array((size_t)(MOX_HEAD_ROWS * V), sizeof *c->fetched);
    if (!c->fetched) return mox_fail_memory(err, (size_t)(MOX_HEAD_ROWS * V) * sizeof *c->fetched, "logits");
    MOX_TRY(c->dev->memory.alloc(c->dev, (int64_t)c->step_bytes, &c->activations, err));
    mox_arena_init_at(&c->arena, c->activations, c->step_bytes);
    MOX_TRY(c->dev->apart->reserve(c->dev, &most, err));
    if (c->model->n_frequencies > 0) MOX_TRY(c->dev->apart->know(c->dev, c->model->frequencies, c->model->n_frequencies, err));
    MOX_TRY(bring_weights(c, !come, err));
    if (come) MOX_TRY(mox_expert_tier_init(&c->tier, c->model, c->dev, &c->residency, &c->experts, n_slots, o, err));
    MOX_TRY(place_experts(c, err));
    return c->dev->memory.sync(c->dev, err);
}

void mox_context_empty_device(mox_context *c)
{
    c->dev->memory.free(c->dev, c->activations, (int64_t)c->step_bytes);
    c->dev->memory.free(c->dev, c->weights, c->weight_bytes);
    mox_free(c->places);
    mox_free(c->fetched);
}
