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

/* Zeroed memory that is counted: of the heap, or of the device.  While planning, the latter is
 * only counted. */
static mox_status reserve(mox_context *c, void *out, int64_t n, size_t size, bool on_device, const char *what, mox_err *err)
{
    int64_t bytes;
    if (n < 0 || !mox_mul_i64(n, (int64_t)size, &bytes) || !mox_add_i64(c->bytes, bytes, &c->bytes))
        return mox_fail(err, MOX_E_FULL, "%s would need more bytes than a machine can count; ask for less context", what);
    void *memory = NULL;
    if (on_device && c->planning) memory = (void *)(uintptr_t)MOX_ARENA_ALIGN; /* not NULL, never touched */
    else if (!on_device) memory = mox_alloc_array((size_t)n, size);
    else if (c->dev->memory.alloc(c->dev, bytes, &memory, NULL) != MOX_OK) memory = NULL;
    if (!memory && on_device && c->dev->apart)
        return mox_fail(err, MOX_E_FULL, "%s: %.1f GB do not fit device %s; ask for less context", what, (double)bytes / 1e9, c->dev->name);
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
    const int64_t n_batch = !o->device || strcmp(o->device, "cpu") == 0 ? 512 : 2048;
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
    MOX_TRY(reserve(c, &s->refs, n, sizeof *s->refs, false, what, err));
    MOX_TRY(reserve(c, &s->free, n, sizeof *s->free, false, what, err));
    mox_share_init(s, n);
    return MOX_OK;
}

/* How much of the memory for prefixes is for states: half of it, where there are any. */
static int64_t prefix_state_bytes(const mox_context *c, int64_t prefix_bytes)
{
    const int64_t each = (int64_t)mox_state_bytes(c);
    return each > 0 ? prefix_bytes / 2 / each * each : 0;
}

static mox_status reserve_caches(mox_context *c, int64_t prefix_bytes, mox_err *err)
{
    const mox_dtype type = c->kv_type;
    const mox_model *m = c->model;
    const int64_t size = mox_dtype_bytes(type);
    int64_t elements, width = 0; /* per position, all layers */
    for (int64_t i = 0; i < m->dims.n_layers; i++)
        width += mox_cache_elements(m, i, type, 0) + mox_cache_elements(m, i, type, 1);
    MOX_TRY(reserve_share(c, MOX_SHARE_PAGES, c->n_seqs * c->pages_per_seq, width * size * MOX_PAGE_LEN,
                          prefix_bytes - prefix_state_bytes(c, prefix_bytes), "the attention cache", err));
    const int64_t n_pages = c->shares[MOX_SHARE_PAGES].n;
    if (!mox_mul_i64(width, n_pages * MOX_PAGE_LEN, &elements)) elements = -1;
    MOX_TRY(reserve(c, &c->cache_memory, elements, (size_t)size, true, "the attention cache", err));
    c->cache_bytes = elements * size;
    MOX_TRY(reserve(c, &c->caches, m->dims.n_layers, sizeof *c->caches, false, "the attention cache", err));
    unsigned char *at = c->cache_memory;
    for (int64_t i = 0; i < m->dims.n_layers; i++) {
        mox_cache *caches[2] = {&c->caches[i].first, &c->caches[i].second};
        for (int j = 0; j < 2; j++) {
            /* The positions of a head follow each other, as attention reads them. */
            const int64_t all = mox_cache_elements(m, i, type, j), head = mox_cache_row(type, head_width(m, i, j));
            *caches[j] = (mox_cache){.data = at, .type = type, .page_len = MOX_PAGE_LEN, .page_stride = all * MOX_PAGE_LEN,
                                     .token_stride = head, .head_stride = head * MOX_PAGE_LEN, .n_pages = n_pages};
            at += all * n_pages * MOX_PAGE_LEN * size;
        }
    }
    return MOX_OK;
}

static mox_status reserve_sequences(mox_context *c, int64_t prefix_bytes, mox_err *err)
{
    const int64_t floats = c->model->recurrent_floats, n_saved = floats ? c->n_checkpoints : 0;
    int64_t state_floats;
    MOX_TRY(reserve_share(c, MOX_SHARE_STATES, c->n_seqs * n_saved, (int64_t)mox_state_bytes(c),
                          prefix_state_bytes(c, prefix_bytes), "recurrent states", err));
    if (!mox_mul_i64(c->n_seqs + c->shares[MOX_SHARE_STATES].n, floats, &state_floats)) state_floats = -1;
    MOX_TRY(reserve(c, &c->seqs, c->n_seqs, sizeof *c->seqs, false, "sequences", err));
    MOX_TRY(reserve(c, &c->page_tables, c->n_seqs * c->pages_per_seq, sizeof *c->page_tables, false, "sequences", err));
    MOX_TRY(reserve(c, &c->timelines, c->n_seqs * c->n_ctx, sizeof *c->timelines, false, "sequences", err));
    MOX_TRY(reserve(c, &c->checkpoints, c->n_seqs * n_saved, sizeof *c->checkpoints, false, "sequences", err));
    MOX_TRY(reserve(c, &c->states, state_floats, sizeof *c->states, true, "recurrent states", err));
    c->state_bytes = state_floats * (int64_t)sizeof *c->states;
    for (int64_t i = 0; i < c->n_seqs; i++) {
        mox_seq *s = &c->seqs[i];
        s->context = c;
        s->tokens = c->timelines + i * c->n_ctx;
        s->pages = c->page_tables + i * c->pages_per_seq;
        s->checkpoints = c->checkpoints + i * n_saved;
        s->state = c->states + i * floats;
    }
    return MOX_OK;
}

static mox_status reserve_step(mox_context *c, mox_err *err)
{
    MOX_TRY(reserve(c, &c->tokens, c->n_batch, sizeof *c->tokens, false, "a batch", err));
    MOX_TRY(reserve(c, &c->pos, c->n_batch, sizeof *c->pos, false, "a batch", err));
    MOX_TRY(reserve(c, &c->spans, c->n_seqs, sizeof *c->spans, false, "a batch", err));
    MOX_TRY(reserve(c, &c->span_segment, c->n_seqs, sizeof *c->span_segment, false, "a batch", err));
    MOX_TRY(reserve(c, &c->recurrent, c->n_seqs, sizeof *c->recurrent, false, "a batch", err));
    MOX_TRY(reserve(c, &c->last_logits, c->n_seqs * c->model->dims.n_vocab, sizeof *c->last_logits, false, "logits", err));
    MOX_TRY(reserve(c, &c->has_logits, c->n_seqs, sizeof *c->has_logits, false, "logits", err));
    for (int64_t i = 0; i < c->n_seqs; i++) c->recurrent[i] = c->seqs[i].state; /* the measured step has addresses, too */
    MOX_TRY(mox_step_measure(c, &c->step_bytes, err));
    int64_t bytes;
    if (!mox_add_i64(c->bytes, (int64_t)c->step_bytes, &bytes))
        return mox_fail(err, MOX_E_FULL, "a batch would need more bytes than a machine can count; ask for less");
    c->bytes = bytes;
    return c->planning || c->dev->apart ? MOX_OK : mox_arena_init(&c->arena, c->step_bytes, err);
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
    mox_status status = read_opts(c, opts, err);
    if (status == MOX_OK && !planning) status = mox_context_open_device(c, opts, err);
    if (status == MOX_OK) status = reserve_caches(c, opts->prefix_bytes, err);
    if (status == MOX_OK) status = reserve_sequences(c, opts->prefix_bytes, err);
    if (status == MOX_OK && !planning) status = mox_expert_store_init(&c->experts, model, opts, err);
    if (status == MOX_OK) status = reserve_step(c, err);
    if (status == MOX_OK && !planning && c->dev->apart) status = mox_context_fill_device(c, opts, err);
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
    *out = (mox_context_sizes){.cache_bytes = c->cache_bytes + c->state_bytes, .step_bytes = (int64_t)c->step_bytes,
                               .n_ctx = c->n_ctx, .n_batch = c->n_batch, .n_seqs = c->n_seqs};
    mox_device_measure(c, opts ? opts->device : NULL, &out->device);
    out->small_bytes = c->bytes - out->cache_bytes - out->step_bytes;
    if (opts && opts->prefix_bytes > 0) out->small_bytes += mox_tree_table_bytes(c);
    mox_context_destroy(&c);
    return MOX_OK;
}

void mox_context_destroy(mox_context **context)
{
    mox_context *c = *context;
    if (!c) return;
    mox_expert_tier_deinit(&c->tier);
    mox_expert_store_deinit(&c->experts);
    mox_arena_deinit(&c->arena);
    if (c->dev) {
        c->dev->memory.free(c->dev, c->cache_memory, c->cache_bytes);
        c->dev->memory.free(c->dev, c->states, c->state_bytes);
        mox_context_empty_device(c);
    }
    mox_dev_close(&c->dev);
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

int64_t mox_context_n_ctx(const mox_context *c) { return c->n_ctx; }
int64_t mox_context_bytes(const mox_context *c) { return c->bytes; }

void mox_context_get_kernels(const mox_context *c, mox_kernels *out)
{
    static const char *const precisions[] = {[MOX_PRECISION_DEFAULT] = "default", [MOX_PRECISION_EXACT] = "exact",
                                             [MOX_PRECISION_FAST] = "fast"};
    *out = (mox_kernels){.device = c->dev->name, .isa = c->dev->level, .precision = precisions[c->precision],
                         .kv_type = c->kv_type == MOX_DT_F32 ? "f32" : c->kv_type == MOX_DT_F16 ? "f16" : "q8", .n_threads = c->dev->n_threads};
}

void mox_context_get_expert_stats(const mox_context *c, mox_expert_stats *out)
{
    *out = (mox_expert_stats){0};
    if (c->experts.stream) mox_expert_stream_get_stats(c->experts.stream, out);
    if (c->tier.model) mox_expert_tier_get_stats(&c->tier, out);
}

void mox_context_get_heat(const mox_context *c, uint32_t *out)
{
    const size_t bytes = (size_t)(c->model->dims.n_layers * c->model->n_experts) * sizeof *out;
    if (c->tier.model) memcpy(out, c->tier.heat, bytes);
    else if (c->experts.stream) mox_expert_stream_get_heat(c->experts.stream, out);
    else memset(out, 0, bytes);
}

const float *mox_logits_row(const mox_context *c, int32_t segment)
{
    if (segment < 0 || segment >= c->n_seqs || !c->has_logits[segment]) return NULL;
    return c->last_logits + segment * c->model->dims.n_vocab;
}
