/* runtime/context.c -- reserving everything that a run needs, or saying how much that is.
 *
 * Planning and creating are one code path: a planning context goes through the same
 * reservations, but large memory is counted and stands for itself as an address that
 * nobody may touch, and there is no device. */
#include "runtime/context.h"

#include "base/alloc.h"
#include "base/size.h"
#include "ops/q8.h"
#include "runtime/prefix_tree.h"

#include <string.h>

/* Zeroed memory that is counted: of the device of a section, or, where that is NULL, of the heap.  While
 * planning, the former is only counted. */
static mox_status reserve(mox_context *c, const mox_section *p, void *out, int64_t n, size_t size, const char *what, mox_err *err)
{
    mox_dev *d = p ? p->dev : NULL;
    int64_t bytes;
    if (n < 0 || !mox_mul_i64(n, (int64_t)size, &bytes) || !mox_add_i64(c->bytes, bytes, &c->bytes))
        return mox_fail(err, MOX_E_FULL, "%s would need more bytes than a machine can count; ask for less context", what);
    void *memory = NULL;
    if (p && c->planning) memory = (void *)(uintptr_t)MOX_ARENA_ALIGN; /* not NULL, never touched */
    else if (!d) memory = mox_alloc_array((size_t)n, size);
    else if (d->memory.alloc(d, bytes, &memory, NULL) != MOX_OK) memory = NULL;
    if (!memory && d && d->apart)
        return mox_fail(err, MOX_E_FULL, "%s takes %lld MiB, and device %s has %lld MiB free; ask for less context", what,
                        (long long)mox_ceil_div(bytes, 1 << 20), d->name, (long long)(mox_device_room(d) >> 20));
    if (!memory) return mox_fail_memory(err, (size_t)bytes, what);
    memcpy(out, &memory, sizeof memory);
    return MOX_OK;
}

static mox_status read_opts(mox_context *c, const mox_context_opts *o, mox_err *err)
{
    const int64_t max = c->model->dims.n_ctx_max;
    if (o->n_ctx < 0 || o->n_seqs < 0 || o->n_batch < 0 || o->n_checkpoints < 0 || o->expert_bytes < 0 || o->n_readers < 0 ||
        o->read_bytes < 0 || o->prefix_bytes < 0 || o->device_bytes < 0)
        return mox_fail(err, MOX_E_ARG, "context options must not be negative");
    if (o->n_ctx > max)
        return mox_fail(err, MOX_E_FULL, "a context of %lld tokens is more than the %lld that the model was made for",
                        (long long)o->n_ctx, (long long)max);
    if (o->exact && o->fast) return mox_fail(err, MOX_E_ARG, "exact and fast exclude each other");
    if (o->n_seqs > 4096 || o->n_batch > 1 << 20 || o->n_checkpoints > 4096)
        return mox_fail(err, MOX_E_ARG, "context options: at most 4096 sequences, 1048576 tokens per batch, 4096 checkpoints");
    c->n_ctx = o->n_ctx ? o->n_ctx : mox_min_i64(max, 4096);
    c->n_seqs = o->n_seqs ? o->n_seqs : 1;
    /* Enough tokens for each expert of a layer that a GPU's tiles are well filled; the processor's are with fewer. */
    const int64_t n_batch = mox_device_is_cpu(o->device) ? 512 : 2048;
    c->n_batch = mox_max_i64(o->n_batch ? o->n_batch : n_batch, c->n_seqs); /* every sequence can decode in one batch */
    c->n_checkpoints = o->n_checkpoints ? o->n_checkpoints : 4;
    c->pages_per_seq = mox_ceil_div(c->n_ctx, MOX_PAGE_LEN);
    c->precision = o->exact ? MOX_PRECISION_EXACT : o->fast ? MOX_PRECISION_FAST : MOX_PRECISION_DEFAULT;
    c->deterministic = o->deterministic;
    switch (o->kv_type) {
    case MOX_KV_DEFAULT: c->kv_type = o->exact ? MOX_DT_F32 : MOX_DT_F16; return MOX_OK;
    case MOX_KV_F32: c->kv_type = MOX_DT_F32; return MOX_OK;
    case MOX_KV_F16: c->kv_type = MOX_DT_F16; return MOX_OK;
    case MOX_KV_Q8: c->kv_type = MOX_DT_I8; return MOX_OK;
    }
    return mox_fail(err, MOX_E_ARG, "context options: kv_type is %d, which is no type of cache", (int)o->kv_type);
}

/* Numbers of a head of a layer's first or second cache; a latent row is one head. */
static int64_t head_width(const mox_model *m, int64_t layer, int which)
{
    const mox_cache_widths *w = &m->layers[layer].cache;
    return m->report.n_layers_latent > 0 ? (which ? w->second : w->first) : m->dims.head_dim;
}

int64_t mox_cache_elements(const mox_model *m, int64_t layer, mox_dtype type, int which)
{
    const mox_cache_widths *w = &m->layers[layer].cache;
    const int64_t width = which ? w->second : w->first, head = head_width(m, layer, which);
    return width == 0 ? 0 : width / head * mox_cache_row(type, head);
}

/* Things to hand out: those of the sequences and as many as fit `bytes`. */
static mox_status reserve_share(mox_context *c, mox_share_kind kind, int64_t n_seqs, int64_t each, int64_t bytes, const char *what,
                                mox_err *err)
{
    int64_t n = each > 0 ? bytes / each : 0;
    mox_share *s = &c->shares[kind];
    if (!mox_add_i64(n, n_seqs, &n) || n > INT32_MAX)
        return mox_fail(err, MOX_E_FULL, "%s: more than %d parts; ask for fewer prefix_bytes or less context", what, INT32_MAX);
    MOX_TRY(reserve(c, NULL, &s->refs, n, sizeof *s->refs, what, err));
    MOX_TRY(reserve(c, NULL, &s->free, n, sizeof *s->free, what, err));
    mox_share_init(s, n);
    return MOX_OK;
}

/* How much of the memory for prefixes is for states: half of it, where there are any. */
static int64_t prefix_state_bytes(const mox_context *c, int64_t prefix_bytes)
{
    const int64_t each = (int64_t)mox_state_bytes(c);
    return each > 0 ? prefix_bytes / 2 / each * each : 0;
}

/* Elements per position of the layers of a section. */
static int64_t cache_width(const mox_context *c, const mox_section *p)
{
    int64_t width = 0;
    for (int64_t i = p->first; i < p->end; i++)
        width += mox_cache_elements(c->model, i, c->kv_type, 0) + mox_cache_elements(c->model, i, c->kv_type, 1);
    return width;
}

static mox_status reserve_section_caches(mox_context *c, mox_section *p, mox_err *err)
{
    const mox_dtype type = c->kv_type;
    const int64_t size = mox_dtype_bytes(type), n_pages = c->shares[MOX_SHARE_PAGES].n;
    int64_t elements;
    if (!mox_mul_i64(cache_width(c, p), n_pages * MOX_PAGE_LEN, &elements)) elements = -1;
    MOX_TRY(reserve(c, p, &p->cache_memory, elements, (size_t)size, "the attention cache", err));
    p->cache_bytes = elements * size;
    c->cache_bytes += p->cache_bytes;
    unsigned char *at = p->cache_memory;
    for (int64_t i = p->first; i < p->end; i++) {
        mox_cache *caches[2] = {&c->caches[i].first, &c->caches[i].second};
        for (int j = 0; j < 2; j++) {
            /* The positions of a head follow each other, as attention reads them. */
            const int64_t all = mox_cache_elements(c->model, i, type, j), head = mox_cache_row(type, head_width(c->model, i, j));
            *caches[j] = (mox_cache){.data = at, .type = type, .page_len = MOX_PAGE_LEN, .page_stride = all * MOX_PAGE_LEN,
                                     .token_stride = head, .head_stride = head * MOX_PAGE_LEN, .n_pages = n_pages};
            at += all * n_pages * MOX_PAGE_LEN * size;
        }
    }
    return MOX_OK;
}

static mox_status reserve_caches(mox_context *c, int64_t prefix_bytes, mox_err *err)
{
    int64_t width = 0;
    for (int i = 0; i < c->n_sections; i++) width += cache_width(c, &c->sections[i]);
    MOX_TRY(reserve_share(c, MOX_SHARE_PAGES, c->n_seqs * c->pages_per_seq, width * mox_dtype_bytes(c->kv_type) * MOX_PAGE_LEN,
                          prefix_bytes - prefix_state_bytes(c, prefix_bytes), "the attention cache", err));
    MOX_TRY(reserve(c, NULL, &c->caches, c->model->dims.n_layers, sizeof *c->caches, "the attention cache", err));
    for (int i = 0; i < c->n_sections; i++) MOX_TRY(reserve_section_caches(c, &c->sections[i], err));
    return MOX_OK;
}

static mox_status reserve_states(mox_context *c, mox_err *err)
{
    int64_t at = 0;
    for (int i = 0; i < c->n_sections; i++) {
        mox_section *p = &c->sections[i];
        int64_t floats;
        p->state_at = at;
        for (int64_t layer = p->first; layer < p->end; layer++) p->state_floats += c->model->layers[layer].recurrent_floats;
        at += p->state_floats;
        if (!mox_mul_i64(c->n_seqs + c->shares[MOX_SHARE_STATES].n, p->state_floats, &floats)) floats = -1;
        MOX_TRY(reserve(c, p, &p->states, floats, sizeof *p->states, "recurrent states", err));
        p->state_bytes = floats * (int64_t)sizeof *p->states;
        c->state_bytes += p->state_bytes;
    }
    return MOX_OK;
}

static mox_status reserve_sequences(mox_context *c, int64_t prefix_bytes, mox_err *err)
{
    const int64_t n_saved = c->model->recurrent_floats ? c->n_checkpoints : 0;
    MOX_TRY(reserve_share(c, MOX_SHARE_STATES, c->n_seqs * n_saved, (int64_t)mox_state_bytes(c),
                          prefix_state_bytes(c, prefix_bytes), "recurrent states", err));
    MOX_TRY(reserve(c, NULL, &c->seqs, c->n_seqs, sizeof *c->seqs, "sequences", err));
    MOX_TRY(reserve(c, NULL, &c->page_tables, c->n_seqs * c->pages_per_seq, sizeof *c->page_tables, "sequences", err));
    MOX_TRY(reserve(c, NULL, &c->timelines, c->n_seqs * c->n_ctx, sizeof *c->timelines, "sequences", err));
    MOX_TRY(reserve(c, NULL, &c->checkpoints, c->n_seqs * n_saved, sizeof *c->checkpoints, "sequences", err));
    MOX_TRY(reserve_states(c, err));
    for (int64_t i = 0; i < c->n_seqs; i++) {
        mox_seq *s = &c->seqs[i];
        s->context = c;
        s->tokens = c->timelines + i * c->n_ctx;
        s->pages = c->page_tables + i * c->pages_per_seq;
        s->checkpoints = c->checkpoints + i * n_saved;
        s->state = i;
    }
    return MOX_OK;
}

static mox_status reserve_step(mox_context *c, mox_err *err)
{
    MOX_TRY(reserve(c, NULL, &c->tokens, c->n_batch, sizeof *c->tokens, "a batch", err));
    MOX_TRY(reserve(c, NULL, &c->pos, c->n_batch, sizeof *c->pos, "a batch", err));
    MOX_TRY(reserve(c, NULL, &c->spans, c->n_seqs, sizeof *c->spans, "a batch", err));
    MOX_TRY(reserve(c, NULL, &c->span_segment, c->n_seqs, sizeof *c->span_segment, "a batch", err));
    MOX_TRY(reserve(c, NULL, &c->recurrent, c->n_seqs, sizeof *c->recurrent, "a batch", err));
    MOX_TRY(reserve(c, NULL, &c->last_logits, c->n_seqs * c->model->dims.n_vocab, sizeof *c->last_logits, "logits", err));
    MOX_TRY(reserve(c, NULL, &c->has_logits, c->n_seqs, sizeof *c->has_logits, "logits", err));
    /* the measured step has addresses, too, which it does not touch */
    for (int64_t i = 0; i < c->n_seqs; i++) c->recurrent[i] = (float *)(uintptr_t)MOX_ARENA_ALIGN;
    MOX_TRY(mox_step_measure(c, &c->step_bytes, err));
    int64_t bytes;
    if (!mox_mul_i64((int64_t)c->step_bytes, c->n_sections, &bytes) || !mox_add_i64(c->bytes, bytes, &bytes))
        return mox_fail(err, MOX_E_FULL, "a batch would need more bytes than a machine can count; ask for less");
    c->bytes = bytes;
    return c->planning || c->sections[0].dev->apart ? MOX_OK : mox_arena_init(&c->sections[0].arena, c->step_bytes, err);
}

static mox_status create(mox_context **out, const mox_model *model, const mox_context_opts *opts, bool planning, mox_err *err)
{
    *out = NULL;
    const mox_context_opts defaults = {0};
    if (!opts) opts = &defaults;
    if (model->shape_only && !planning) return mox_fail(err, MOX_E_ARG, "this model is a shape without weights: it cannot run");
    mox_context *c = mox_alloc_array(1, sizeof *c);
    if (!c) return mox_fail_memory(err, sizeof *c, "a context");
    c->model = model;
    c->planning = planning;
    c->bytes = (int64_t)sizeof *c;
    c->n_sections = 1;
    c->sections[0].end = (int32_t)model->dims.n_layers;
    mox_status status = read_opts(c, opts, err);
    if (status == MOX_OK && !planning) status = mox_context_open_devices(c, opts, err);
    if (status == MOX_OK) status = reserve_caches(c, opts->prefix_bytes, err);
    if (status == MOX_OK) status = reserve_sequences(c, opts->prefix_bytes, err);
    if (status == MOX_OK && !planning) status = mox_expert_store_init(&c->experts, model, opts, err);
    if (status == MOX_OK) status = reserve_step(c, err);
    if (status == MOX_OK && !planning && c->sections[0].dev->apart) status = mox_context_fill_devices(c, opts, err);
    if (status == MOX_OK && c->experts.stream) c->bytes += mox_expert_stream_bytes(c->experts.stream);
    if (status != MOX_OK) mox_context_destroy(&c);
    *out = c;
    return status;
}

mox_status mox_context_create(mox_context **out, const mox_model *model, const mox_context_opts *opts, mox_err *err)
{
    return create(out, model, opts, false, err);
}

mox_status mox_context_measure(const mox_model *model, const mox_context_opts *opts, mox_context_sizes *out, mox_err *err)
{
    mox_context *c;
    *out = (mox_context_sizes){0};
    MOX_TRY(create(&c, model, opts, true, err));
    *out = (mox_context_sizes){.cache_bytes = c->cache_bytes + c->state_bytes, .state_bytes = c->state_bytes,
                               .step_bytes = (int64_t)c->step_bytes,
                               .n_ctx = c->n_ctx, .n_batch = c->n_batch, .n_seqs = c->n_seqs};
    out->small_bytes = c->bytes - out->cache_bytes - out->step_bytes;
    if (opts && opts->prefix_bytes > 0) out->small_bytes += mox_tree_table_bytes(c);
    const mox_status status = opts ? mox_device_measure(c, opts, out, err) : MOX_OK;
    mox_context_destroy(&c);
    return status;
}

void mox_context_destroy(mox_context **context)
{
    mox_context *c = *context;
    if (!c) return;
    for (int i = c->n_sections - 1; i >= 0; i--) mox_expert_tier_deinit(&c->sections[i].tier); /* the one that has pinned goes last */
    mox_expert_host_deinit(&c->host);
    mox_expert_store_deinit(&c->experts);
    mox_context_close_devices(c);
    mox_free(c->caches);
    for (int i = 0; i < MOX_N_SHARES; i++) {
        mox_free(c->shares[i].refs);
        mox_free(c->shares[i].free);
    }
    mox_free(c->seqs);
    mox_free(c->page_tables);
    mox_free(c->timelines);
    mox_free(c->checkpoints);
    mox_free(c->tokens);
    mox_free(c->pos);
    mox_free(c->spans);
    mox_free(c->span_segment);
    mox_free(c->recurrent);
    mox_free(c->last_logits);
    mox_free(c->has_logits);
    mox_free(c);
    *context = NULL;
}

void mox_context_get_load(const mox_context *c, mox_context_load *out) { *out = c->load; }
int64_t mox_context_n_ctx(const mox_context *c) { return c->n_ctx; }
int64_t mox_context_bytes(const mox_context *c) { return c->bytes; }

void mox_context_get_kernels(const mox_context *c, mox_kernels *out)
{
    static const char *const precisions[] = {[MOX_PRECISION_DEFAULT] = "default", [MOX_PRECISION_EXACT] = "exact",
                                             [MOX_PRECISION_FAST] = "fast"};
    const mox_dev *d = c->sections[0].dev;
    *out = (mox_kernels){.device = d->name, .n_devices = c->n_sections, .isa = d->level, .precision = precisions[c->precision],
                         .kv_type = c->kv_type == MOX_DT_F32 ? "f32" : c->kv_type == MOX_DT_F16 ? "f16" : "q8", .n_threads = d->n_threads};
}

void mox_context_get_expert_stats(const mox_context *c, mox_expert_stats *out)
{
    *out = (mox_expert_stats){0};
    if (c->experts.stream) mox_expert_stream_get_stats(c->experts.stream, out);
    for (int i = 0; i < c->n_sections; i++)
        if (c->sections[i].tier.model) mox_expert_tier_add_stats(&c->sections[i].tier, out);
}

void mox_context_get_heat(const mox_context *c, uint32_t *out)
{
    const size_t bytes = (size_t)(c->model->dims.n_layers * c->model->n_experts) * sizeof *out;
    bool on_devices = false;
    memset(out, 0, bytes);
    for (int i = 0; i < c->n_sections; i++) {
        const mox_section *p = &c->sections[i];
        if (!p->tier.model) continue;
        const int64_t first = p->first * c->model->n_experts, n = (p->end - p->first) * c->model->n_experts;
        memcpy(out + first, p->tier.heat + first, (size_t)n * sizeof *out);
        on_devices = true;
    }
    if (!on_devices && c->experts.stream) mox_expert_stream_get_heat(c->experts.stream, out);
}

const float *mox_logits_row(const mox_context *c, int32_t segment)
{
    if (segment < 0 || segment >= c->n_seqs || !c->has_logits[segment]) return NULL;
    return c->last_logits + segment * c->model->dims.n_vocab;
}
