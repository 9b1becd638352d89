/* runtime/device.c -- which device a context computes on, and what it must have there.
 *
 * The processor computes where the files are mapped.  A device with memory of its own gets,
 * before the first step, all tensors that the model uses, each at an aligned address, tables of
 * the experts, and the activations; nothing is allocated or brought over later but the small
 * arrays of a batch.
 *
 * Refuses: experts that come and go, and models that do not fit. */
#include "runtime/context.h"

#include "base/alloc.h"
#include "base/size.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256 };

/* Address space of the emulated GPU: what is not touched costs nothing. */
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

mox_status mox_context_open_device(mox_context *c, const mox_context_opts *o, mox_err *err)
{
    if (!o->device || strcmp(o->device, "cpu") == 0) {
        const mox_pool_opts threads = {.n_threads = o->n_threads, .pin = o->pin};
        return mox_dev_cpu_open(&c->dev, &threads, o->isa, c->precision, c->deterministic, err);
    }
    const bool is_emu = strcmp(o->device, "emu") == 0, is_metal = strcmp(o->device, "metal") == 0;
    if (!is_emu && !is_metal && strcmp(o->device, "cuda") != 0)
        return mox_fail(err, MOX_E_ARG, "device: '%s' is none that this build has (cpu, emu, cuda, metal)", o->device);
    MOX_TRY(check_apart(c, o, err));
    /* A deterministic token has the same bytes alone and among many. */
    const bool halves = c->precision != MOX_PRECISION_EXACT && !c->deterministic;
    if (is_metal) return mox_dev_metal_open(&c->dev, halves, err);
    return is_emu ? mox_dev_emu_open(&c->dev, emu_bytes, halves, err) : mox_dev_cuda_open(&c->dev, halves, err);
}

/* ---- weights ---- */

static int by_file_and_offset(const void *a, const void *b)
{
    const mox_extent *x = &((const mox_place *)a)->extent, *y = &((const mox_place *)b)->extent;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Tensors that the model uses, in the order of the files. */
static mox_status list_places(mox_context *c, mox_err *err)
{
    const mox_model *m = c->model;
    c->places = mox_alloc_array((size_t)m->tensors.n_tensors + 1, sizeof *c->places);
    if (!c->places) return mox_fail_memory(err, (size_t)m->tensors.n_tensors * sizeof *c->places, "a list of weights");
    int64_t n = 0;
    for (int64_t i = 0; i < m->tensors.n_tensors; i++)
        if (m->tensor_use[i] != MOX_UNUSED && m->tensors.tensors[i].extent.bytes > 0) c->places[n++].extent = m->tensors.tensors[i].extent;
    qsort(c->places, (size_t)n, sizeof *c->places, by_file_and_offset);
    for (int64_t i = 0; i < n; i++)
        if (!mox_add_i64(c->weight_bytes, mox_ceil_div(c->places[i].extent.bytes, ALIGN) * ALIGN, &c->weight_bytes))
            return mox_fail(err, MOX_E_FULL, "%s: the weights have more bytes than a machine can count", m->config.path);
    c->residency = (mox_residency){.files = m->residency.files, .n_files = m->residency.n_files, .places = c->places, .n_places = n};
    return MOX_OK;
}

/* Each tensor where it is mapped. */
static mox_status map_weights(mox_context *c, mox_err *err)
{
    for (int64_t i = 0; i < c->residency.n_places; i++) {
        mox_place *p = &c->places[i];
        const uint8_t *from = c->residency.files[p->extent.file].map;
        void *at;
        MOX_TRY(c->dev->memory.map(c->dev, from + p->extent.offset, p->extent.bytes, &at, err));
        p->at = at;
    }
    return MOX_OK;
}

static mox_status bring_weights(mox_context *c, mox_err *err)
{
    MOX_TRY(list_places(c, err));
    if (c->dev->memory.map) return map_weights(c, err);
    if (c->dev->memory.alloc(c->dev, c->weight_bytes, &c->weights, NULL) != MOX_OK)
        return mox_fail(err, MOX_E_FULL, "%s: the weights need %.1f GB on device %s, and do not fit beside %.1f GB of context",
                        c->model->config.path, (double)c->weight_bytes / 1e9, c->dev->name, (double)c->bytes / 1e9);
    uint8_t *at = c->weights;
    for (int64_t i = 0; i < c->residency.n_places; i++) {
        mox_place *p = &c->places[i];
        const uint8_t *from = c->residency.files[p->extent.file].map;
        c->dev->memory.upload(c->dev, at, from + p->extent.offset, p->extent.bytes);
        p->at = at;
        at += mox_ceil_div(p->extent.bytes, ALIGN) * ALIGN;
    }
    return MOX_OK;
}

static mox_status place_experts(mox_context *c, mox_err *err)
{
    const mox_model *m = c->model;
    mox_expert *all = mox_alloc_array((size_t)m->n_experts, sizeof *all);
    if (!all) return mox_fail_memory(err, (size_t)m->n_experts * sizeof *all, "a list of experts");
    mox_status status = MOX_OK;
    for (int32_t i = 0; i < m->dims.n_layers && status == MOX_OK; i++) {
        const mox_expert_weights *w = m->layers[i].experts;
        if (!w) continue;
        for (int32_t e = 0; e < m->n_experts; e++)
            all[e] = (mox_expert){.id = e, .gate = mox_residency_mat(&c->residency, &w[e].gate),
                                  .up = mox_residency_mat(&c->residency, &w[e].up), .down = mox_residency_mat(&c->residency, &w[e].down)};
        status = c->dev->apart->place_experts(c->dev, i, all, m->n_experts, err);
    }
    mox_free(all);
    return status;
}

mox_status mox_context_fill_device(mox_context *c, mox_err *err)
{
    const int64_t V = c->model->dims.n_vocab;
    c->fetched = mox_alloc_array((size_t)(MOX_HEAD_ROWS * V), sizeof *c->fetched);
    if (!c->fetched) return mox_fail_memory(err, (size_t)(MOX_HEAD_ROWS * V) * sizeof *c->fetched, "logits");
    MOX_TRY(c->dev->memory.alloc(c->dev, (int64_t)c->step_bytes, &c->activations, err));
    mox_arena_init_at(&c->arena, c->activations, c->step_bytes);
    MOX_TRY(c->dev->apart->reserve(c->dev, c->n_batch, c->n_seqs, c->pages_per_seq, err));
    if (c->model->n_frequencies > 0) MOX_TRY(c->dev->apart->know(c->dev, c->model->frequencies, c->model->n_frequencies, err));
    MOX_TRY(bring_weights(c, err));
    MOX_TRY(place_experts(c, err));
    return c->dev->memory.sync(c->dev, err);
}

void mox_context_empty_device(mox_context *c)
{
    c->dev->memory.free(c->dev, c->activations, (int64_t)c->step_bytes);
    c->dev->memory.free(c->dev, c->weights, c->weight_bytes);
    for (int64_t i = c->residency.n_places - 1; i >= 0 && !c->weights; i--) /* mapped ones */
        c->dev->memory.free(c->dev, (void *)(uintptr_t)c->places[i].at, c->places[i].extent.bytes);
    mox_free(c->places);
    mox_free(c->fetched);
}
