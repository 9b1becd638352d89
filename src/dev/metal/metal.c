/* dev/metal/metal.c -- an Apple GPU: opening it, its memory, launches, waiting.  See metal.h.
 *
 * Launches are written into a command buffer that is sent when somebody waits, or when it is
 * long, so that the GPU begins.  One launch waits for the one before it.  Kernels follow
 * addresses, which Metal cannot see, so it is told that each command buffer uses all memory.
 *
 * I1  copies are the processor's, with nothing in flight: the order of the calls is kept.
 * I2  buffers[i] of a list is the object of its blocks[i].
 * I3  every object that is kept is retained, and each function that sends messages has a pool around it.
 * I4  after the first failure nothing more is sent to the GPU. */
#include "dev/metal/metal.h"

#include "base/alloc.h"
#include "base/size.h"
#include "dev/dev.h"
#include "dev/gpu/device.h"
#include "dev/metal/objc.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The kernels as Metal takes them: see meson.build. */
extern const char mox_metal_source[];

enum {
    FAMILY_METAL3 = 5001,
    LANGUAGE_3_0 = 3 << 16,
    STORAGE_SHARED = 0,
    USAGE_READ = 1,
    USAGE_WRITE = 2,
    SCOPE_BUFFERS = 1,
    STATUS_ERROR = 5,
    LANES = 32,
    MOST_THREADS = 1024,
    MOST_PARAMS = 4096, /* bytes that Metal copies into the commands */
    LONG_BUFFER = 256,  /* launches after which commands are sent */
    SENT_MAX = 8
};

typedef struct metal_block {
    uint64_t address;        /* on the GPU, as the caller has it */
    unsigned char *contents; /* the same bytes for the processor */
    uint64_t bytes;          /* from there on */
} metal_block;

typedef struct metal_list {
    metal_block *blocks;
    mox_id *buffers;
    int64_t n, capacity;
} metal_list;

typedef struct mox_metal {
    mox_gpu_backend backend; /* first */
    mox_objc objc;
    mox_id device, queue, library, pipelines[MOX_GPU_KERNEL_COUNT];
    char model[96];
    mox_err fault; /* the first failure */

    metal_list own, mapped; /* what was allocated, and memory of the host */

    mox_id commands, encoder; /* being written; NULL: none */
    int n_launches;           /* in them */
    mox_id sent[SENT_MAX];    /* oldest first */
    int n_sent;
} mox_metal;

static const struct {
    const char *name;
    uint64_t threads, params_bytes;
} kernels[] = {
#define ENTRY(name, n_threads) {#name, n_threads, sizeof(mox_gpu_##name)},
    MOX_GPU_KERNELS(ENTRY)
#undef ENTRY
};
#define CHECK(name, threads)                                                            \
    _Static_assert((threads) <= MOST_THREADS && (threads) % LANES == 0, "threads of " #name); \
    _Static_assert(sizeof(mox_gpu_##name) <= MOST_PARAMS, "parameters of " #name);
MOX_GPU_KERNELS(CHECK)
#undef CHECK

static bool fine(const mox_metal *m) { return m->fault.status == MOX_OK; }

static mox_status tell(const mox_metal *m, mox_err *err)
{
    return fine(m) ? MOX_OK : mox_fail(err, m->fault.status, "%s", m->fault.msg);
}

/* What an NSError says. */
static const char *words_of(const mox_metal *m, mox_id error)
{
    const mox_id text = error ? MOX_SEND(&m->objc, description, error) : NULL;
    const char *words = text ? MOX_SEND(&m->objc, utf8, text) : NULL;
    return words ? words : "it does not say why";
}

static void drop(const mox_metal *m, mox_id *object)
{
    if (*object) MOX_SEND(&m->objc, release, *object);
    *object = NULL;
}

static mox_id keep(const mox_metal *m, mox_id object) { return object ? MOX_SEND(&m->objc, retain, object) : NULL; }

/* ---- commands ---- */

static void settle_oldest(mox_metal *m)
{
    mox_id commands = m->sent[0];
    MOX_SEND(&m->objc, wait, commands);
    if (MOX_SEND(&m->objc, status, commands) == STATUS_ERROR && fine(m))
        (void)mox_fail(&m->fault, MOX_E_DEVICE, "%s failed: %s; it must be opened again", m->model,
                       words_of(m, MOX_SEND(&m->objc, error, commands)));
    drop(m, &commands);
    m->n_sent--;
    memmove(m->sent, m->sent + 1, (size_t)m->n_sent * sizeof *m->sent);
}

static void send_commands(mox_metal *m)
{
    if (!m->encoder) return;
    if (m->n_sent == SENT_MAX) settle_oldest(m);
    MOX_SEND(&m->objc, end_encoding, m->encoder);
    drop(m, &m->encoder);
    MOX_SEND(&m->objc, commit, m->commands);
    m->sent[m->n_sent++] = m->commands;
    m->commands = NULL;
    m->n_launches = 0;
}

static void wait(mox_metal *m)
{
    send_commands(m);
    while (m->n_sent > 0) settle_oldest(m);
}

static bool begin_commands(mox_metal *m)
{
    if (m->encoder) return true;
    m->commands = keep(m, MOX_SEND(&m->objc, command_buffer, m->queue));
    m->encoder = m->commands ? keep(m, MOX_SEND(&m->objc, encoder, m->commands)) : NULL;
    if (!m->encoder) {
        drop(m, &m->commands);
        (void)mox_fail(&m->fault, MOX_E_DEVICE, "%s takes no more commands; it must be opened again", m->model);
        return false;
    }
    const metal_list *own = &m->own, *mapped = &m->mapped;
    if (own->n > 0)
        MOX_SEND_WITH(&m->objc, use_resources, m->encoder, own->buffers, (uint64_t)own->n, USAGE_READ | USAGE_WRITE);
    if (mapped->n > 0)
        MOX_SEND_WITH(&m->objc, use_resources, m->encoder, mapped->buffers, (uint64_t)mapped->n, USAGE_READ);
    return true;
}

static void launch(mox_gpu_backend *b, mox_gpu_kernel kernel, const int64_t groups[3], const void *params,
                   size_t params_bytes)
{
    mox_metal *m = (mox_metal *)b;
    assert(params_bytes == kernels[kernel].params_bytes);
    for (int i = 0; i < 3; i++) {
        if (groups[i] == 0) return;
        if ((groups[i] < 0 || groups[i] > INT32_MAX) && fine(m))
            (void)mox_fail(&m->fault, MOX_E_DEVICE, "kernel %s: a grid of %lld x %lld x %lld groups is not possible",
                           kernels[kernel].name, (long long)groups[0], (long long)groups[1], (long long)groups[2]);
    }
    if (!fine(m)) return;
    void *pool = m->objc.push_pool();
    if (begin_commands(m)) {
        const mox_metal_size grid = {(uint64_t)groups[0], (uint64_t)groups[1], (uint64_t)groups[2]};
        const mox_metal_size group = {kernels[kernel].threads, 1, 1};
        MOX_SEND_WITH(&m->objc, set_pipeline, m->encoder, m->pipelines[kernel]);
        MOX_SEND_WITH(&m->objc, set_bytes, m->encoder, params, params_bytes, 0);
        MOX_SEND_WITH(&m->objc, dispatch, m->encoder, grid, group);
        MOX_SEND_WITH(&m->objc, memory_barrier, m->encoder, SCOPE_BUFFERS);
        if (++m->n_launches == LONG_BUFFER) send_commands(m);
    }
    m->objc.pop_pool(pool);
}

static mox_status settle(mox_gpu_backend *b, mox_err *err)
{
    mox_metal *m = (mox_metal *)b;
    void *pool = m->objc.push_pool();
    wait(m);
    m->objc.pop_pool(pool);
    return tell(m, err);
}

/* ---- memory ---- */

static void memory(mox_gpu_backend *b, int64_t *total, int64_t *left)
{
    mox_metal *m = (mox_metal *)b;
    const uint64_t bytes = MOX_SEND(&m->objc, working_set, m->device), used = MOX_SEND(&m->objc, allocated, m->device);
    *total = (int64_t)bytes;
    *left = (int64_t)(bytes > used ? bytes - used : 0);
}

/* A pool, and a place for one more buffer, with no commands that were written before it was there. */
static mox_status begin_block(mox_metal *m, metal_list *list, void **pool, mox_err *err)
{
    MOX_TRY(tell(m, err));
    if (list->n == list->capacity) {
        const int64_t capacity = list->capacity ? 2 * list->capacity : 256;
        metal_block *blocks = mox_realloc_array(list->blocks, (size_t)capacity, sizeof *blocks);
        if (blocks) list->blocks = blocks;
        mox_id *buffers = blocks ? mox_realloc_array(list->buffers, (size_t)capacity, sizeof *buffers) : NULL;
        if (!buffers) return mox_fail_memory(err, (size_t)capacity * sizeof *blocks, "the list of buffers");
        list->buffers = buffers;
        list->capacity = capacity;
    }
    *pool = m->objc.push_pool();
    send_commands(m);
    return MOX_OK;
}

/* Notes a new buffer, whose bytes from `skip` on the caller gets, or says that there was no room for it. */
static mox_status note_block(mox_metal *m, metal_list *list, mox_id buffer, uint64_t size, uint64_t skip, void **out,
                             mox_err *err)
{
    if (!buffer) {
        int64_t total, left;
        memory(&m->backend, &total, &left);
        const uint64_t longest = MOX_SEND(&m->objc, longest_buffer, m->device);
        return mox_fail(err, MOX_E_MEMORY,
                        "%s has no room for %lld MiB: %lld of its %lld MiB are free, and a buffer has at most %lld", m->model,
                        (long long)mox_ceil_div((int64_t)size, 1 << 20), (long long)(left >> 20), (long long)(total >> 20),
                        (long long)(longest >> 20));
    }
    const metal_block block = {MOX_SEND(&m->objc, address, buffer) + skip,
                               (unsigned char *)MOX_SEND(&m->objc, contents, buffer) + skip, size - skip};
    list->blocks[list->n] = block;
    list->buffers[list->n++] = buffer;
    *out = (void *)(uintptr_t)block.address;
    return MOX_OK;
}

static mox_status alloc(mox_gpu_backend *b, int64_t bytes, void **out, mox_err *err)
{
    mox_metal *m = (mox_metal *)b;
    void *pool = NULL;
    *out = NULL;
    if (bytes < 0) return mox_fail(err, MOX_E_ARG, "%s: an allocation of %lld bytes", b->model, (long long)bytes);
    MOX_TRY(begin_block(m, &m->own, &pool, err));
    const uint64_t size = (uint64_t)mox_max_i64(bytes, 1);
    const mox_id buffer = MOX_SEND_WITH(&m->objc, new_buffer, m->device, size, STORAGE_SHARED);
    const mox_status status = note_block(m, &m->own, buffer, size, 0, out, err);
    m->objc.pop_pool(pool);
    return status;
}

/* Buffers are whole pages, which may hold bytes of others at both ends. */
static mox_status map(mox_gpu_backend *b, const void *host, int64_t bytes, void **out, mox_err *err)
{
    mox_metal *m = (mox_metal *)b;
    void *pool = NULL;
    *out = NULL;
    if (bytes <= 0) return mox_fail(err, MOX_E_ARG, "%s: %lld bytes of the host", b->model, (long long)bytes);
    MOX_TRY(begin_block(m, &m->mapped, &pool, err));
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)host / page * page;
    const uint64_t size = ((uintptr_t)host + (uintptr_t)bytes - first + page - 1) / page * page;
    const mox_id buffer = MOX_SEND_WITH(&m->objc, new_buffer_over, m->device, (void *)first, size, STORAGE_SHARED, NULL);
    const mox_status status = note_block(m, &m->mapped, buffer, size, (uintptr_t)host - first, out, err);
    m->objc.pop_pool(pool);
    return status;
}

/* Gives up the block of a list that begins at an address; what came last is found first. */
static bool forget_block(mox_metal *m, metal_list *list, const void *p)
{
    int64_t i = list->n - 1;
    while (i >= 0 && list->blocks[i].address != (uint64_t)(uintptr_t)p) i--;
    if (i < 0) return false;
    drop(m, &list->buffers[i]);
    list->n--;
    memmove(list->blocks + i, list->blocks + i + 1, (size_t)(list->n - i) * sizeof *list->blocks);
    memmove(list->buffers + i, list->buffers + i + 1, (size_t)(list->n - i) * sizeof *list->buffers);
    return true;
}

static void release(mox_gpu_backend *b, void *p)
{
    mox_metal *m = (mox_metal *)b;
    if (!p) return;
    void *pool = m->objc.push_pool();
    wait(m);
    const bool found = forget_block(m, &m->mapped, p) || forget_block(m, &m->own, p);
    assert(found); /* else not an address that alloc or map returned */
    (void)found;
    m->objc.pop_pool(pool);
}

/* ---- copies ---- */

/* Allocated bytes at an address of the GPU, once nothing is in flight; NULL after a failure. */
static unsigned char *bytes_at(mox_metal *m, const void *p, int64_t bytes)
{
    void *pool = m->objc.push_pool();
    wait(m);
    m->objc.pop_pool(pool);
    if (!fine(m)) return NULL;
    for (int64_t i = m->own.n - 1; i >= 0; i--) {
        const metal_block *block = &m->own.blocks[i];
        const uint64_t at = (uint64_t)(uintptr_t)p - block->address;
        if (at < block->bytes && (uint64_t)bytes <= block->bytes - at) return block->contents + at;
    }
    (void)mox_fail(&m->fault, MOX_E_DEVICE, "%s: %lld bytes at %p are no memory of it", m->model, (long long)bytes, p);
    return NULL;
}

static void upload(mox_gpu_backend *b, void *to, const void *from, int64_t bytes)
{
    if (bytes == 0) return;
    unsigned char *p = bytes_at((mox_metal *)b, to, bytes);
    if (p) memcpy(p, from, (size_t)bytes);
}

static void copy(mox_gpu_backend *b, void *to, const void *from, int64_t bytes)
{
    if (bytes == 0) return;
    unsigned char *source = bytes_at((mox_metal *)b, from, bytes);
    unsigned char *p = source ? bytes_at((mox_metal *)b, to, bytes) : NULL;
    if (p) memcpy(p, source, (size_t)bytes);
}

static void zero(mox_gpu_backend *b, void *to, int64_t bytes)
{
    if (bytes == 0) return;
    unsigned char *p = bytes_at((mox_metal *)b, to, bytes);
    if (p) memset(p, 0, (size_t)bytes);
}

static mox_status download(mox_gpu_backend *b, void *to, const void *from, int64_t bytes, mox_err *err)
{
    if (bytes == 0) return settle(b, err);
    const unsigned char *p = bytes_at((mox_metal *)b, from, bytes);
    if (p) memcpy(to, p, (size_t)bytes);
    return tell((mox_metal *)b, err);
}

/* ---- opening ---- */

static void drop_all(const mox_metal *m, metal_list *list)
{
    for (int64_t i = 0; i < list->n; i++) drop(m, &list->buffers[i]);
    mox_free(list->blocks);
    mox_free(list->buffers);
}

static void close_device(mox_gpu_backend *b)
{
    mox_metal *m = (mox_metal *)b;
    if (m->device) {
        void *pool = m->objc.push_pool();
        wait(m);
        drop_all(m, &m->own);
        drop_all(m, &m->mapped);
        for (int i = 0; i < MOX_GPU_KERNEL_COUNT; i++) drop(m, &m->pipelines[i]);
        drop(m, &m->library);
        drop(m, &m->queue);
        drop(m, &m->device);
        m->objc.pop_pool(pool);
    }
    mox_free(m);
}

static mox_status choose_device(mox_metal *m, mox_err *err)
{
    m->device = m->objc.default_device();
    if (!m->device) return mox_fail(err, MOX_E_DEVICE, "Metal finds no GPU on this machine");
    const char *name = MOX_SEND(&m->objc, utf8, MOX_SEND(&m->objc, device_name, m->device));
    (void)snprintf(m->model, sizeof m->model, "%s", name ? name : "the GPU");
    if (!MOX_SEND_WITH(&m->objc, supports_family, m->device, FAMILY_METAL3))
        return mox_fail(err, MOX_E_DEVICE, "%s does not have Metal 3, which is needed: use another device, such as cpu",
                        m->model);
    if (!MOX_SEND(&m->objc, is_unified, m->device))
        return mox_fail(err, MOX_E_DEVICE, "%s has memory of its own, and only GPUs that share the processor's are supported",
                        m->model);
    return MOX_OK;
}

static mox_status compile(mox_metal *m, mox_err *err)
{
    mox_id error = NULL, options = MOX_SEND(&m->objc, make, m->objc.get_class("MTLCompileOptions"));
    const mox_id source = MOX_SEND_WITH(&m->objc, string, m->objc.get_class("NSString"), mox_metal_source);
    if (!options || !source) {
        drop(m, &options);
        return mox_fail(err, MOX_E_DEVICE, "%s: Metal has no memory for the source of the kernels", m->model);
    }
    MOX_SEND_WITH(&m->objc, set_fast_math, options, 0); /* infinities and NaNs mean something */
    MOX_SEND_WITH(&m->objc, set_language, options, LANGUAGE_3_0);
    m->library = MOX_SEND_WITH(&m->objc, new_library, m->device, source, options, &error);
    drop(m, &options);
    if (m->library) return MOX_OK;
    return mox_fail(err, MOX_E_DEVICE, "%s: Metal does not compile the kernels: %s", m->model, words_of(m, error));
}

static mox_status make_pipeline(mox_metal *m, int i, mox_err *err)
{
    char name[80];
    mox_id error = NULL;
    (void)snprintf(name, sizeof name, "mox_gpu_kernel_%s", kernels[i].name);
    mox_id function = MOX_SEND_WITH(&m->objc, new_function, m->library,
                                    MOX_SEND_WITH(&m->objc, string, m->objc.get_class("NSString"), name));
    if (!function) return mox_fail(err, MOX_E_DEVICE, "%s: Metal's library has no kernel %s", m->model, kernels[i].name);
    const mox_id pipeline = m->pipelines[i] = MOX_SEND_WITH(&m->objc, new_pipeline, m->device, function, &error);
    drop(m, &function);
    if (!pipeline)
        return mox_fail(err, MOX_E_DEVICE, "%s: Metal makes no pipeline of kernel %s: %s", m->model, kernels[i].name,
                        words_of(m, error));
    const uint64_t lanes = MOX_SEND(&m->objc, lanes, pipeline), threads = MOX_SEND(&m->objc, most_threads, pipeline);
    if (lanes != LANES || threads < kernels[i].threads)
        return mox_fail(err, MOX_E_DEVICE,
                        "%s runs kernel %s with %llu threads of a group, %llu at a time, and %llu, %d at a time, are needed",
                        m->model, kernels[i].name, (unsigned long long)threads, (unsigned long long)lanes,
                        (unsigned long long)kernels[i].threads, LANES);
    return MOX_OK;
}

static mox_status start(mox_metal *m, mox_err *err)
{
    MOX_TRY(choose_device(m, err));
    m->queue = MOX_SEND(&m->objc, new_queue, m->device);
    if (!m->queue) return mox_fail(err, MOX_E_DEVICE, "%s takes no commands", m->model);
    MOX_TRY(compile(m, err));
    for (int i = 0; i < MOX_GPU_KERNEL_COUNT; i++) MOX_TRY(make_pipeline(m, i, err));
    return MOX_OK;
}

mox_status mox_metal_open(mox_gpu_backend **out, mox_err *err)
{
    *out = NULL;
    mox_metal *m = mox_alloc_array(1, sizeof *m);
    if (!m) return mox_fail_memory(err, sizeof *m, "an Apple GPU");
    m->backend = (mox_gpu_backend){.name = "metal", .model = m->model, .alloc = alloc, .map = map, .free = release,
                                   .memory = memory, .upload = upload, .copy = copy, .zero = zero, .launch = launch,
                                   .sync = settle, .download = download, .close = close_device};
    mox_status status = mox_objc_load(&m->objc, err);
    if (status == MOX_OK) {
        void *pool = m->objc.push_pool();
        status = start(m, err);
        m->objc.pop_pool(pool);
    }
    if (status == MOX_OK) *out = &m->backend;
    else close_device(&m->backend);
    return status;
}

mox_status mox_dev_metal_find(mox_err *err)
{
    mox_objc o;
    MOX_TRY(mox_objc_load(&o, err));
    void *pool = o.push_pool();
    const mox_id gpu = o.default_device();
    if (gpu) MOX_SEND(&o, release, gpu);
    o.pop_pool(pool);
    return gpu ? MOX_OK : mox_fail(err, MOX_E_DEVICE, "Metal finds no GPU on this machine");
}

mox_status mox_dev_metal_open(mox_dev **out, bool halves, mox_err *err)
{
    *out = NULL;
    mox_gpu_backend *backend;
    MOX_TRY(mox_metal_open(&backend, err));
    return mox_dev_gpu_open(out, backend, halves, err);
}
