/* runtime/device.c -- which devices a context computes on, and what it must have there.
 *
 * The processor computes where the files are mapped.  A device with memory of its own gets,
 * before the first step, all tensors that its layers use, each at an aligned address, tables of
 * the experts, and the activations; nothing is allocated or brought over later but the small
 * arrays of a batch, and the rows that go from a device to the next.
 *
 * Devices are named NAME or NAME:N,N,...: the latter are those numbers, all of them.  By the name
 * alone NVIDIA GPUs are meant from the first on, as few as the model fits on: every border costs a
 * step time.
 *
 * Refuses: experts that come and go, and models that do not fit. */
#include "runtime/context.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/size.h"
#include "runtime/divide.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256, SMALL_BYTES = 8 << 20 }; /* the latter: tables of experts and arrays of a batch, on each device */

/* Address space of an emulated GPU: what is not touched costs nothing. */
static const int64_t emu_bytes = (int64_t)16 << 30;

static mox_status check_apart(const mox_context *c, const mox_context_opts *o, mox_err *err)
{
    enum { MAX_ROWS = 65535 }; /* groups of a launch along an axis */
    if (o->expert_bytes > 0 || c->model->dense_only)
        return mox_fail(err, MOX_E_ARG, "device %s: its experts must all be resident; do not stream them, or use the cpu", o->device);
    if (o->deterministic) /* kernels are chosen by the number of tokens */
        return mox_fail(err, MOX_E_ARG, "device %s: only the cpu computes deterministically", o->device);
    if (o->trace) return mox_fail(err, MOX_E_ARG, "device %s: routing is traced on the cpu only", o->device);
    if (o->isa) return mox_fail(err, MOX_E_ARG, "isa: '%s' is a level of the cpu, and the device is %s", o->isa, o->device);
    if (c->n_batch > MAX_ROWS)
        return mox_fail(err, MOX_E_ARG, "device %s: batches have at most %d tokens, not %lld", o->device, MAX_ROWS, (long long)c->n_batch);
    return MOX_OK;
}

/* ---- names ---- */

typedef enum device_kind { IS_CPU, IS_EMU, IS_CUDA, IS_METAL, N_KINDS } device_kind;

typedef struct wanted {
    device_kind kind;
    bool numbered;
    int n, numbers[MOX_SECTIONS_MAX];
} wanted;

static bool is_name(const char *text, size_t n, const char *name) { return strlen(name) == n && strncmp(text, name, n) == 0; }

static mox_status read_numbers(const char *text, const char *at, wanted *w, mox_err *err)
{
    w->numbered = true;
    for (;; at++) {
        const size_t digits = strspn(at, "0123456789");
        if (digits == 0 || digits > 3 || (at[digits] != ',' && at[digits] != '\0'))
            return mox_fail(err, MOX_E_ARG, "device: '%s': behind the name goes a list of numbers, as in cuda:0,1", text);
        if (w->n == MOX_SECTIONS_MAX) return mox_fail(err, MOX_E_ARG, "device: '%s': at most %d devices", text, MOX_SECTIONS_MAX);
        w->numbers[w->n++] = (int)strtol(at, NULL, 10);
        at += digits;
        if (*at == '\0') return MOX_OK;
    }
}

static mox_status read_device(const char *text, wanted *w, mox_err *err)
{
    *w = (wanted){0};
    if (!text) text = "cpu";
    const size_t n = strcspn(text, ":");
    static const char *const names[N_KINDS] = {[IS_CPU] = "cpu", [IS_EMU] = "emu", [IS_CUDA] = "cuda", [IS_METAL] = "metal"};
    while (w->kind < N_KINDS && !is_name(text, n, names[w->kind])) w->kind++;
    const bool counted = w->kind == IS_EMU || w->kind == IS_CUDA;
    if (w->kind == N_KINDS || (text[n] == ':' && !counted))
        return mox_fail(err, MOX_E_ARG, "device: '%s' is none that this build has (cpu, emu, cuda, metal)", text);
    return text[n] == ':' ? read_numbers(text, text + n + 1, w, err) : MOX_OK;
}

mox_status mox_device_find(const char *device, mox_err *err)
{
    wanted w;
    int n = 1;
    MOX_TRY(read_device(device, &w, err));
    if (w.kind == IS_METAL) return mox_dev_metal_find(err);
    if (w.kind == IS_CUDA) MOX_TRY(mox_dev_cuda_count(&n, err));
    return n > 0 ? MOX_OK : mox_fail(err, MOX_E_DEVICE, "the NVIDIA driver finds no GPU on this machine");
}

/* ---- what goes where ---- */

static int64_t aligned(int64_t bytes) { return mox_ceil_div(bytes, ALIGN) * ALIGN; }

static bool begins_with(const mox_extent *tensor, const mox_extent *e)
{
    return e->bytes > 0 && e->file == tensor->file && e->offset == tensor->offset;
}
static bool is_part_of(const mox_extent *tensor, const mox_weight *w)
{
    return begins_with(tensor, &w->w) || begins_with(tensor, &w->scales) || begins_with(tensor, &w->biases);
}

/* Where a tensor is needed. */
typedef struct need {
    int64_t layer; /* -1: with none */
    bool first, last; /* with the first layer, with the last */
} need;

static need need_of(const mox_model *m, const char *prefix, int64_t i)
{
    const mox_tensor_info *t = &m->tensors.tensors[i];
    if (m->tensor_use[i] == MOX_UNUSED || t->extent.bytes == 0) return (need){.layer = -1};
    return (need){.layer = mox_bind_layer_of(prefix, t->name), .first = is_part_of(&t->extent, &m->embed),
                  .last = is_part_of(&t->extent, &m->head) || begins_with(&t->extent, &m->final_norm.data)};
}

static bool is_needed(const mox_model *m, const mox_section *p, need n)
{
    return (n.layer >= p->first && n.layer < p->end) || (n.first && p->first == 0) || (n.last && p->end == m->dims.n_layers);
}

static int64_t cache_width(const mox_context *c, int64_t layer)
{
    return mox_cache_elements(c->model, layer, c->kv_type, 0) + mox_cache_elements(c->model, layer, c->kv_type, 1);
}

/* What the layers, and all that goes with them, take on devices; layers is [n_layers], zeroed. */
static void weigh(const mox_context *c, const mox_context_sizes *sizes, int64_t *layers, mox_load *out)
{
    const mox_model *m = c->model;
    const char *prefix = mox_bind_prefix(&m->tensors);
    *out = (mox_load){.layers = layers, .n_layers = (int32_t)m->dims.n_layers, .each = sizes->step_bytes + SMALL_BYTES};
    int64_t width = 0;
    for (int64_t i = 0; i < m->tensors.n_tensors; i++) {
        const need n = need_of(m, prefix, i);
        const int64_t bytes = aligned(m->tensors.tensors[i].extent.bytes);
        if (n.layer >= 0) layers[n.layer] += bytes;
        if (n.first) out->with_first += bytes;
        if (n.last) out->with_last += bytes;
    }
    for (int64_t i = 0; i < m->dims.n_layers; i++) width += cache_width(c, i);
    for (int64_t i = 0; i < m->dims.n_layers; i++) {
        if (width > 0) layers[i] += (sizes->cache_bytes - sizes->state_bytes) / width * cache_width(c, i);
        if (m->recurrent_floats > 0) layers[i] += sizes->state_bytes / m->recurrent_floats * m->layers[i].recurrent_floats;
    }
}

/* ---- opening ---- */

static mox_status open_next(mox_context *c, const wanted *w, mox_err *err)
{
    const int number = w->numbered ? w->numbers[c->n_sections] : c->n_sections;
    mox_dev **out = &c->sections[c->n_sections].dev;
    /* A deterministic token has the same bytes alone and among many. */
    const bool halves = c->precision != MOX_PRECISION_EXACT && !c->deterministic;
    const double begun = mox_clock_now();
    if (w->kind == IS_EMU) MOX_TRY(mox_dev_emu_open(out, emu_bytes, halves, err));
    else if (w->kind == IS_METAL) MOX_TRY(mox_dev_metal_open(out, halves, err));
    else MOX_TRY(mox_dev_cuda_open(out, number, halves, err));
    c->load.open_s += mox_clock_now() - begun;
    c->n_sections++;
    return MOX_OK;
}

/* Opens devices up to n, until the layers fit; all of them where they are numbered. */
static mox_status open_enough(mox_context *c, const wanted *w, int n, const mox_load *load, mox_err *err)
{
    int64_t room[MOX_SECTIONS_MAX];
    int32_t ends[MOX_SECTIONS_MAX];
    double share = 0;
    while (c->n_sections < n) {
        MOX_TRY(open_next(c, w, err));
        const mox_dev *d = c->sections[c->n_sections - 1].dev;
        room[c->n_sections - 1] = d->apart->room(c->sections[c->n_sections - 1].dev);
        if (w->numbered && c->n_sections < n) continue;
        MOX_TRY(mox_divide(load, room, c->n_sections, ends, &share, err));
        if (share <= 1) break;
    }
    for (int i = 0; i < c->n_sections; i++) {
        c->sections[i].first = i > 0 ? ends[i - 1] : 0;
        c->sections[i].end = ends[i];
    }
    if (share <= 1 || c->n_sections == 1) return MOX_OK; /* of a single one, what does not fit is said when it is brought */
    return mox_fail(err, MOX_E_FULL, "%s: even spread over %d devices it takes %.2f times the memory that one of them has free; ask for "
                                     "less context or use the cpu", c->model->config.path, c->n_sections, share);
}

static mox_status open_apart(mox_context *c, const mox_context_opts *o, wanted *w, mox_err *err)
{
    const int64_t n_layers = c->model->dims.n_layers;
    int n = w->n;
    if (!w->numbered) {
        n = w->kind == IS_METAL ? 1 : MOX_SECTIONS_MAX;
        if (w->kind == IS_CUDA) MOX_TRY(mox_dev_cuda_count(&n, err));
        n = (int)mox_max_i64(1, mox_min_i64(mox_min_i64(n, MOX_SECTIONS_MAX), n_layers)); /* where there is none, opening says so */
    } else if (n > n_layers) {
        return mox_fail(err, MOX_E_ARG, "device: '%s' are %d devices for a model of %lld layers; name as many at most", o->device, n,
                        (long long)n_layers);
    }
    mox_context_sizes sizes;
    mox_load load;
    MOX_TRY(mox_context_measure(c->model, o, &sizes, err));
    int64_t *layers = mox_alloc_array((size_t)n_layers, sizeof *layers);
    if (!layers) return mox_fail_memory(err, (size_t)n_layers * sizeof *layers, "a list of layers");
    weigh(c, &sizes, layers, &load);
    const mox_status status = open_enough(c, w, n, &load, err);
    mox_free(layers);
    return status;
}

mox_status mox_context_open_devices(mox_context *c, const mox_context_opts *o, mox_err *err)
{
    wanted w;
    MOX_TRY(read_device(o->device, &w, err));
    if (w.kind == IS_CPU) {
        const mox_pool_opts threads = {.n_threads = o->n_threads, .pin = o->pin};
        return mox_dev_cpu_open(&c->sections[0].dev, &threads, o->isa, c->precision, c->deterministic, err);
    }
    MOX_TRY(check_apart(c, o, err));
    c->n_sections = 0;
    return open_apart(c, o, &w, err);
}

/* ---- weights ---- */

static int by_file_and_offset(const void *a, const void *b)
{
    const mox_extent *x = &((const mox_place *)a)->extent, *y = &((const mox_place *)b)->extent;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Tensors that the section uses, in the order of the files. */
static mox_status list_places(const mox_context *c, mox_section *p, mox_err *err)
{
    const mox_model *m = c->model;
    const char *prefix = mox_bind_prefix(&m->tensors);
    p->places = mox_alloc_array((size_t)m->tensors.n_tensors + 1, sizeof *p->places);
    if (!p->places) return mox_fail_memory(err, (size_t)m->tensors.n_tensors * sizeof *p->places, "a list of weights");
    int64_t n = 0;
    for (int64_t i = 0; i < m->tensors.n_tensors; i++)
        if (is_needed(m, p, need_of(m, prefix, i))) p->places[n++].extent = m->tensors.tensors[i].extent;
    qsort(p->places, (size_t)n, sizeof *p->places, by_file_and_offset);
    for (int64_t i = 0; i < n; i++)
        if (!mox_add_i64(p->weight_bytes, aligned(p->places[i].extent.bytes), &p->weight_bytes))
            return mox_fail(err, MOX_E_FULL, "%s: the weights have more bytes than a machine can count", m->config.path);
    p->residency = (mox_residency){.files = m->residency.files, .n_files = m->residency.n_files, .places = p->places, .n_places = n};
    return MOX_OK;
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

static mox_status bring_weights(const mox_context *c, mox_section *p, mox_err *err)
{
    MOX_TRY(list_places(c, p, err));
    if (p->dev->memory.map) return map_weights(p, err);
    if (p->dev->memory.alloc(p->dev, p->weight_bytes, &p->weights, NULL) != MOX_OK)
        return mox_fail(err, MOX_E_FULL, "%s: the weights take %lld MiB, and device %s has %lld MiB free beside the context",
                        c->model->config.path, (long long)mox_ceil_div(p->weight_bytes, 1 << 20), p->dev->name,
                        (long long)(p->dev->apart->room(p->dev) >> 20));
    const int64_t n = p->residency.n_places;
    mox_upload *pieces = mox_alloc_array((size_t)n, sizeof *pieces);
    if (!pieces) return mox_fail_memory(err, (size_t)n * sizeof *pieces, "a list of weights");
    uint8_t *at = p->weights;
    for (int64_t i = 0; i < n; i++) {
        const mox_extent *e = &p->places[i].extent;
        pieces[i] = (mox_upload){.to = at, .from = (const uint8_t *)p->residency.files[e->file].map + e->offset, .bytes = e->bytes};
        p->places[i].at = at;
        at += aligned(e->bytes);
    }
    p->dev->apart->upload_all(p->dev, pieces, n);
    mox_free(pieces);
    return p->dev->memory.sync(p->dev, err);
}

static mox_status place_experts(const mox_context *c, mox_section *p, mox_err *err)
{
    const mox_model *m = c->model;
    mox_expert *all = mox_alloc_array((size_t)m->n_experts, sizeof *all);
    if (!all) return mox_fail_memory(err, (size_t)m->n_experts * sizeof *all, "a list of experts");
    mox_status status = MOX_OK;
    for (int32_t i = p->first; i < p->end && status == MOX_OK; i++) {
        const mox_expert_weights *w = m->layers[i].experts;
        if (!w) continue;
        for (int32_t e = 0; e < m->n_experts; e++)
            all[e] = (mox_expert){.id = e, .gate = mox_residency_mat(&p->residency, &w[e].gate),
                                  .up = mox_residency_mat(&p->residency, &w[e].up), .down = mox_residency_mat(&p->residency, &w[e].down)};
        status = p->dev->apart->place_experts(p->dev, i, all, m->n_experts, err);
    }
    mox_free(all);
    return status;
}

static mox_status fill_section(mox_context *c, mox_section *p, mox_err *err)
{
    const mox_model *m = c->model;
    mox_dev *d = p->dev;
    MOX_TRY(d->memory.alloc(d, (int64_t)c->step_bytes, &p->activations, err));
    mox_arena_init_at(&p->arena, p->activations, c->step_bytes);
    MOX_TRY(d->apart->reserve(d, c->n_batch, c->n_seqs, c->pages_per_seq, err));
    if (m->n_frequencies > 0) MOX_TRY(d->apart->know(d, m->frequencies, m->n_frequencies, err));
    const double begun = mox_clock_now();
    MOX_TRY(bring_weights(c, p, err));
    c->load.upload_s += mox_clock_now() - begun;
    c->load.upload_bytes += p->weight_bytes;
    MOX_TRY(place_experts(c, p, err));
    return d->memory.sync(d, err);
}

mox_status mox_context_fill_devices(mox_context *c, mox_err *err)
{
    const int64_t V = c->model->dims.n_vocab;
    c->fetched = mox_alloc_array((size_t)(MOX_HEAD_ROWS * V), sizeof *c->fetched);
    if (!c->fetched) return mox_fail_memory(err, (size_t)(MOX_HEAD_ROWS * V) * sizeof *c->fetched, "logits");
    for (int i = 0; i < c->n_sections; i++) MOX_TRY(fill_section(c, &c->sections[i], err));
    return MOX_OK;
}

void mox_context_close_devices(mox_context *c)
{
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
