/* dev/gpu/device.c -- a backend as a device: memory, and what the device is told before it
 * computes; see device.h. */
#include "dev/gpu/device.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

/* ---- memory ---- */

/* Under the lock. */
static void send_held(mox_dev_gpu *g)
{
    mox_gpu_held *h = &g->held;
    if (h->is_there) {
        g->backend->launch(g->backend, h->kernel, h->groups, &h->params, h->bytes);
        g->attention_groups = 0;
    }
    h->is_there = false;
}

/* For all that is not a launch: a step is over then. */
static mox_gpu_backend *enter(mox_dev *d)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    (void)pthread_mutex_lock(&g->lock);
    send_held(g);
    if (g->in_step) g->backend->end_step(g->backend);
    g->in_step = false;
    return g->backend;
}
static void leave(mox_dev *d) { (void)pthread_mutex_unlock(&((mox_dev_gpu *)d)->lock); }

static mox_status gpu_alloc(mox_dev *d, int64_t bytes, void **out, mox_err *err)
{
    *out = NULL;
    mox_gpu_backend *b = enter(d);
    const mox_status status = b->alloc(b, mox_max_i64(bytes, 1), out, err);
    if (status == MOX_OK) b->zero(b, *out, bytes);
    leave(d);
    return status;
}
static void gpu_free(mox_dev *d, void *p, int64_t bytes)
{
    (void)bytes;
    mox_gpu_backend *b = enter(d);
    b->free(b, p);
    leave(d);
}
static mox_status gpu_map(mox_dev *d, const void *host, int64_t bytes, void **out, mox_err *err)
{
    mox_gpu_backend *b = enter(d);
    const mox_status status = b->map(b, host, bytes, out, err);
    leave(d);
    return status;
}
static void gpu_upload(mox_dev *d, void *to, const void *from, int64_t bytes)
{
    mox_gpu_backend *b = enter(d);
    b->upload(b, to, from, bytes);
    leave(d);
}
static void gpu_copy(mox_dev *d, void *to, const void *from, int64_t bytes)
{
    mox_gpu_backend *b = enter(d);
    b->copy(b, to, from, bytes);
    leave(d);
}
static void gpu_zero(mox_dev *d, void *p, int64_t bytes)
{
    mox_gpu_backend *b = enter(d);
    b->zero(b, p, bytes);
    leave(d);
}
static mox_status gpu_download(mox_dev *d, void *to, const void *from, int64_t bytes, mox_err *err)
{
    mox_gpu_backend *b = enter(d);
    const mox_status status = b->download(b, to, from, bytes, err);
    leave(d);
    return status;
}
mox_status mox_gpu_fetch(mox_dev *d, const mox_fetch *pieces, int64_t n, mox_err *err)
{
    int64_t bytes = 0;
    mox_status status = MOX_OK;
    for (int64_t i = 0; i < n; i++) bytes += pieces[i].bytes;
    mox_gpu_backend *b = enter(d);
    const bool at_once = b->fetch && bytes <= MOX_GPU_FETCH_BYTES;
    if (at_once) status = b->fetch(b, pieces, n, err);
    for (int64_t i = 0; i < n && !at_once && status == MOX_OK; i++)
        status = b->download(b, pieces[i].to, pieces[i].from, pieces[i].bytes, err);
    leave(d);
    return status;
}
static mox_status gpu_sync(mox_dev *d, mox_err *err)
{
    mox_gpu_backend *b = enter(d);
    const mox_status status = b->sync(b, err);
    leave(d);
    return status;
}

static void gpu_upload_all(mox_dev *d, const mox_upload *pieces, int64_t n)
{
    mox_gpu_backend *b = enter(d);
    if (b->upload_all) b->upload_all(b, pieces, n);
    for (int64_t i = 0; i < n && !b->upload_all; i++) b->upload(b, pieces[i].to, pieces[i].from, pieces[i].bytes);
    leave(d);
}
/* The only call that takes two locks, and it comes from the thread of steps alone. */
static void gpu_copy_from(mox_dev *d, void *to, mox_dev *other, const void *from, int64_t bytes)
{
    mox_gpu_backend *source = enter(other), *b = enter(d);
    b->copy_from(b, to, source, from, bytes);
    leave(d);
    leave(other);
}
static void gpu_memory(mox_dev *d, int64_t *total, int64_t *left)
{
    mox_gpu_backend *b = enter(d);
    b->memory(b, total, left);
    leave(d);
}

/* ---- launches ---- */

void mox_gpu_launch(mox_dev *d, mox_gpu_kernel kernel, int64_t x, int64_t y, int64_t z, const void *params, size_t bytes)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    if (x == 0 || y == 0 || z == 0) return;
    g->made.x = NULL;
    g->attention_groups = 0;
    (void)pthread_mutex_lock(&g->lock);
    send_held(g);
    g->backend->launch(g->backend, kernel, (const int64_t[3]){x, y, z}, params, bytes);
    (void)pthread_mutex_unlock(&g->lock);
}

void mox_gpu_hold(mox_dev *d, mox_gpu_kernel kernel, int64_t n, int64_t x, int64_t y, const void *params, size_t bytes)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    assert(bytes <= sizeof g->held.params);
    if (x == 0 || y == 0) return;
    g->made.x = NULL;
    (void)pthread_mutex_lock(&g->lock);
    send_held(g);
    g->held = (mox_gpu_held){.is_there = true, .kernel = kernel, .n = n, .groups = {x, y, 1}, .bytes = bytes};
    memcpy(&g->held.params, params, bytes);
    (void)pthread_mutex_unlock(&g->lock);
}

bool mox_gpu_see(mox_dev *d, mox_gpu_kernel kernel, int64_t n, void *params, size_t bytes)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    (void)pthread_mutex_lock(&g->lock);
    const bool is_it = g->held.is_there && g->held.kernel == kernel && g->held.n == n;
    if (is_it) memcpy(params, &g->held.params, bytes);
    (void)pthread_mutex_unlock(&g->lock);
    return is_it;
}

bool mox_gpu_drop(mox_dev *d)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    (void)pthread_mutex_lock(&g->lock);
    const bool was_there = g->held.is_there;
    g->held.is_there = false;
    (void)pthread_mutex_unlock(&g->lock);
    return was_there;
}

/* ---- copies beside operations ---- */

static mox_status gpu_pin(mox_dev *d, void *p, int64_t bytes, mox_err *err)
{
    mox_gpu_backend *b = enter(d);
    const mox_status status = b->pin ? b->pin(b, p, bytes, err)
                                     : mox_fail(err, MOX_E_UNSUPPORTED, "device %s: memory of the host is not pinned", d->name);
    leave(d);
    return status;
}
static void gpu_unpin(mox_dev *d, void *p)
{
    mox_gpu_backend *b = enter(d);
    b->unpin(b, p);
    leave(d);
}
static void *gpu_seen(mox_dev *d, void *p)
{
    mox_gpu_backend *b = enter(d);
    void *seen = b->seen ? b->seen(b, p) : NULL;
    leave(d);
    return seen;
}
static void gpu_bring(mox_dev *d, void *to, const void *from, int64_t bytes)
{
    mox_gpu_backend *b = enter(d);
    b->bring(b, to, from, bytes);
    leave(d);
}
static void gpu_bring_next(mox_dev *d)
{
    mox_gpu_backend *b = enter(d);
    b->bring_next(b);
    leave(d);
}
static void gpu_use_brought(mox_dev *d)
{
    mox_gpu_backend *b = enter(d);
    b->use_brought(b);
    leave(d);
}
static mox_status gpu_await_brought(mox_dev *d, mox_err *err)
{
    mox_gpu_backend *b = enter(d);
    const mox_status status = b->await_brought(b, err);
    leave(d);
    return status;
}
static double gpu_waited_s(mox_dev *d)
{
    mox_gpu_backend *b = enter(d);
    const double waited = b->waited_s(b);
    leave(d);
    return waited;
}

/* ---- what the device is told once ---- */

static mox_status gpu_know(mox_dev *d, const float *p, int64_t n, mox_err *err)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    if (g->n_known == MOX_GPU_KNOWN_MAX) return mox_fail(err, MOX_E_FULL, "device %s: too many tables of numbers", d->name);
    void *memory;
    MOX_TRY(gpu_alloc(d, n * (int64_t)sizeof *p, &memory, err));
    gpu_upload(d, memory, p, n * (int64_t)sizeof *p);
    g->known[g->n_known++] = (mox_gpu_known){.host = p, .device = memory, .n = n};
    return MOX_OK;
}

mox_status mox_gpu_find_known(mox_dev *d, const float *p, int64_t n, const float **out, mox_err *err)
{
    const mox_dev_gpu *g = (mox_dev_gpu *)d;
    for (int i = 0; i < g->n_known; i++) {
        const mox_gpu_known *k = &g->known[i];
        if (p < k->host || p + n > k->host + k->n) continue;
        *out = k->device + (p - k->host);
        return MOX_OK;
    }
    return mox_fail(err, MOX_E_ARG, "device %s: it was not told of a table of %lld numbers", d->name, (long long)n);
}

/* Room for the layers up to this one. */
static mox_status reach_layer(mox_dev_gpu *g, int32_t layer, mox_err *err)
{
    if (layer < g->n_layers) return MOX_OK;
    mox_gpu_experts *layers = mox_realloc_array(g->layers, (size_t)layer + 1, sizeof *layers);
    if (!layers) return mox_fail_memory(err, ((size_t)layer + 1) * sizeof *layers, "tables of experts");
    memset(layers + g->n_layers, 0, (size_t)(layer + 1 - g->n_layers) * sizeof *layers);
    g->layers = layers;
    g->n_layers = layer + 1;
    return MOX_OK;
}

static mox_status check_experts(const mox_expert *e, int64_t n, mox_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        MOX_TRY(mox_gpu_check_mat(&e[i].gate, err));
        MOX_TRY(mox_gpu_check_mat(&e[i].up, err));
        MOX_TRY(mox_gpu_check_mat(&e[i].down, err));
    }
    return MOX_OK;
}

static void list_mats(const mox_expert *e, int64_t n, mox_gpu_mat *out)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = mox_gpu_mat_of(&e[i].gate);
        out[n + i] = mox_gpu_mat_of(&e[i].up);
        out[2 * n + i] = mox_gpu_mat_of(&e[i].down);
    }
}

/* What kernels can read all of them. */
static void choose_kernels(mox_gpu_experts *x, const mox_gpu_mat *mats)
{
    const int64_t n = x->n;
    x->is_q4 = true;
    for (int64_t i = 0; i < 3 * n; i++) x->is_q4 = x->is_q4 && mox_gpu_mat_is_q4(&mats[i]);
    x->is_four = mox_gpu_stack_of(mats, n, &x->gate) && mox_gpu_stack_of(mats + n, n, &x->up) && mox_gpu_stack_of(mats + 2 * n, n, &x->down);
}

bool mox_dev_gpu_needs_all(const mox_mat *m)
{
    const mox_gpu_mat x = mox_gpu_mat_of(m);
    return mox_gpu_mat_is_four(&x);
}

static mox_gpu_stack places_of(mox_gpu_mat first, int64_t step) { return (mox_gpu_stack){.first = first, .w_step = step, .scale_step = step}; }

static mox_status gpu_place_experts(mox_dev *d, int32_t layer, const mox_expert *e, int64_t n, const mox_expert *come, int64_t step, mox_err *err)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    if (n > MOX_GPU_ROUTER_EXPERTS)
        return mox_fail(err, MOX_E_UNSUPPORTED, "device %s: at most %d experts in a layer, not %lld", d->name, MOX_GPU_ROUTER_EXPERTS,
                        (long long)n);
    MOX_TRY(check_experts(e, n, err));
    MOX_TRY(reach_layer(g, layer, err));
    mox_gpu_experts *x = &g->layers[layer];
    assert(!x->memory && n > 0);
    const int64_t bytes = 3 * n * (int64_t)sizeof(mox_gpu_mat);
    mox_gpu_mat *mats = mox_alloc_array(3 * (size_t)n, sizeof *mats);
    if (!mats) return mox_fail_memory(err, (size_t)bytes, "a table of experts");
    const mox_status status = gpu_alloc(d, bytes, &x->memory, err);
    if (status == MOX_OK) {
        x->n = n;
        x->width = e[0].gate.rows;
        x->dim = e[0].down.rows;
        list_mats(e, n, mats);
        choose_kernels(x, mats);
        if (come) {
            list_mats(come, n, mats);
            x->gate = places_of(mats[0], step);
            x->up = places_of(mats[n], step);
            x->down = places_of(mats[2 * n], step);
            x->step = step;
            x->come = mats;
        }
        gpu_upload(d, x->memory, mats, bytes);
    }
    if (!x->come) mox_free(mats);
    return status;
}

/* Page tables and spans, tokens and positions of a batch; -1: more than a machine can count. */
static int64_t batch_bytes(const mox_dev_sizes *most)
{
    int64_t numbers, bytes;
    if (!mox_mul_i64(most->n_spans, most->n_pages, &numbers) || !mox_add_i64(numbers, 2 * most->n_rows, &numbers) ||
        !mox_mul_i64(numbers, (int64_t)sizeof(int32_t), &bytes) ||
        !mox_add_i64(bytes, (most->n_spans + 1) * (int64_t)sizeof(mox_gpu_span), &bytes))
        return -1;
    return bytes;
}

int64_t mox_dev_gpu_table_bytes(const mox_dev_sizes *most, int64_t n_layers, int64_t n_experts)
{
    enum { PAGE = 4096 }; /* each is an allocation */
    const int64_t batch = batch_bytes(most);
    return batch < 0 ? INT64_MAX
                     : mox_ceil_div(batch, PAGE) * PAGE + n_layers * mox_ceil_div(3 * n_experts * (int64_t)sizeof(mox_gpu_mat), PAGE) * PAGE;
}

static mox_status gpu_reserve(mox_dev *d, const mox_dev_sizes *most, mox_err *err)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    assert(!g->staging);
    const int64_t bytes = batch_bytes(most);
    if (bytes < 0) return mox_fail(err, MOX_E_FULL, "device %s: the page tables of a batch have more bytes than a machine can count", d->name);
    void *arrays;
    MOX_TRY(gpu_alloc(d, bytes, &arrays, err));
    g->arrays = arrays;
    g->staging = mox_alloc((size_t)bytes);
    if (!g->staging) return mox_fail_memory(err, (size_t)bytes, "the arrays of a batch");
    g->most = *most;
    if (most->n_pairs == 0) return MOX_OK;
    g->ids = mox_alloc_array((size_t)most->n_pairs, sizeof *g->ids);
    g->masked = mox_alloc_array((size_t)most->n_pairs, sizeof *g->masked);
    g->guess = mox_alloc_array((size_t)most->n_pairs, sizeof *g->guess);
    g->wanted = mox_alloc_array((size_t)most->n_experts, sizeof *g->wanted);
    g->called = mox_alloc_array((size_t)most->n_experts, sizeof *g->called);
    g->marked = mox_alloc_array((size_t)most->n_experts, sizeof *g->marked);
    g->batch = mox_alloc_array((size_t)most->n_experts, sizeof *g->batch);
    if (!g->ids || !g->masked || !g->guess || !g->wanted || !g->called || !g->marked || !g->batch)
        return mox_fail_memory(err, (size_t)most->n_pairs * 3 * sizeof *g->ids, "the routing of a batch");
    return mox_gpu_cold_reserve(g, err);
}

/* ---- batches ---- */

/* Spans come first, as they are aligned most; then the tokens, positions and page tables. */
static void gpu_begin(mox_dev *d, mox_batch *b)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    assert(b->n <= g->most.n_rows && b->n_spans <= g->most.n_spans);
    mox_gpu_span *spans = (mox_gpu_span *)(void *)g->staging;
    int32_t *numbers = (int32_t *)(void *)(g->staging + b->n_spans * (int64_t)sizeof *spans), *at = numbers;
    int32_t *on_device = (int32_t *)(void *)(g->arrays + b->n_spans * (int64_t)sizeof *spans);
    if (b->n > 0) { /* there may be spans alone */
        memcpy(at, b->tokens, (size_t)b->n * sizeof *at);
        memcpy(at + b->n, b->pos, (size_t)b->n * sizeof *at);
    }
    at += 2 * b->n;
    for (int64_t i = 0; i < b->n_spans; i++) {
        const mox_span *s = &b->spans[i];
        assert(s->n_pages <= g->most.n_pages);
        spans[i] = (mox_gpu_span){.row0 = s->row0, .n = s->n, .pos0 = s->pos0, .pages = on_device + (at - numbers)};
        if (s->n_pages > 0) memcpy(at, s->pages, (size_t)s->n_pages * sizeof *at);
        at += s->n_pages;
    }
    gpu_upload(d, g->arrays, g->staging, (const uint8_t *)at - g->staging);
    mox_gpu_backend *backend = enter(d);
    /* A token of each sequence: the next batch will be like it, unless the host has a say in every layer. */
    g->in_step = b->n == b->n_spans && backend->begin_step && g->most.n_pairs == 0;
    if (g->in_step) backend->begin_step(backend);
    leave(d);
    g->made.x = NULL;
    g->attention_groups = 0;
    g->leaves_room = false;
    g->spans = b->spans;
    g->n_spans = b->n_spans;
    g->gpu_spans = (mox_gpu_span *)(void *)g->arrays;
    b->tokens = on_device;
    b->pos = on_device + b->n;
}

const mox_gpu_span *mox_gpu_spans(mox_dev *d, const mox_span *spans, int64_t n)
{
    const mox_dev_gpu *g = (mox_dev_gpu *)d;
    assert(spans >= g->spans && spans + n <= g->spans + g->n_spans);
    (void)n;
    return g->gpu_spans + (spans - g->spans);
}

/* ---- opening ---- */

mox_status mox_gpu_check_mat(const mox_mat *m, mox_err *err)
{
    if (mox_gpu_kind_of(m->layout.kind) == MOX_GPU_NONE)
        return mox_fail(err, MOX_E_UNSUPPORTED, "a matrix of a layout that no kernel of a GPU reads");
    return MOX_OK;
}

mox_status mox_gpu_check_heads(const mox_dev *d, int64_t dim, int64_t v_dim, mox_err *err)
{
    if (dim <= MOX_GPU_ATTENTION_DIM && v_dim <= MOX_GPU_ATTENTION_DIM) return MOX_OK;
    return mox_fail(err, MOX_E_UNSUPPORTED, "device %s: heads of attention have at most %d elements, not %lld", d->name,
                    MOX_GPU_ATTENTION_DIM, (long long)mox_max_i64(dim, v_dim));
}

mox_status mox_gpu_check_vec(const mox_vec *v, mox_err *err)
{
    const int32_t type = mox_gpu_type_of(v->type);
    if (v->type != MOX_DT_NONE && type != MOX_GPU_F32 && type != MOX_GPU_F16 && type != MOX_GPU_BF16)
        return mox_fail(err, MOX_E_UNSUPPORTED, "a vector of a type that no kernel of a GPU reads");
    return MOX_OK;
}

static void gpu_close(mox_dev *d)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    for (int32_t i = 0; i < g->n_layers; i++) {
        gpu_free(d, g->layers[i].memory, 0);
        mox_free(g->layers[i].come);
    }
    for (int i = 0; i < g->n_known; i++) gpu_free(d, g->known[i].device, 0);
    gpu_free(d, g->arrays, 0);
    mox_free(g->staging);
    mox_free(g->ids);
    mox_free(g->masked);
    mox_free(g->guess);
    mox_free(g->wanted);
    mox_free(g->called);
    mox_free(g->marked);
    mox_free(g->batch);
    mox_gpu_cold_free(g);
    mox_free(g->layers);
    g->backend->close(g->backend);
    (void)pthread_mutex_destroy(&g->lock);
    mox_free(g);
}

mox_status mox_dev_gpu_open(mox_dev **out, mox_gpu_backend *backend, bool halves, mox_err *err)
{
    static const mox_dev_apart apart = {.reserve = gpu_reserve, .memory = gpu_memory, .know = gpu_know, .place_experts = gpu_place_experts,
                                        .begin = gpu_begin, .upload_all = gpu_upload_all, .copy_from = gpu_copy_from,
                                        .copies = {.pin = gpu_pin, .unpin = gpu_unpin, .seen = gpu_seen, .bring = gpu_bring, .bring_next = gpu_bring_next,
                                                   .use_brought = gpu_use_brought, .await_brought = gpu_await_brought,
                                                   .waited_s = gpu_waited_s}};
    *out = NULL;
    mox_dev_gpu *g = mox_alloc_array(1, sizeof *g);
    if (!g) {
        backend->close(backend);
        return mox_fail_memory(err, sizeof *g, "a GPU device");
    }
    g->backend = backend;
    g->halves = halves;
    (void)pthread_mutex_init(&g->lock, NULL);
    mox_dev *d = &g->dev;
    d->name = backend->name;
    d->level = backend->model;
    d->n_threads = 1;
    d->close = gpu_close;
    d->memory = (mox_dev_memory){.alloc = gpu_alloc, .free = gpu_free, .upload = gpu_upload, .copy = gpu_copy, .zero = gpu_zero, .map = backend->map ? gpu_map : NULL,
                                 .download = gpu_download, .sync = gpu_sync};
    d->apart = &apart;
    mox_gpu_fill_products(&d->ops);
    mox_gpu_fill_attention(&d->ops);
    mox_gpu_fill_latent(&d->ops);
    mox_gpu_fill_deltanet(&d->ops);
    mox_gpu_fill_rows(&d->ops);
    mox_dev_complete(d);
    *out = d;
    return MOX_OK;
}
