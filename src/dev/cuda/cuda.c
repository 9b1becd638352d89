/* dev/cuda/cuda.c -- an NVIDIA GPU: opening it, its memory, copies, waiting.
 *
 * One context and two streams of its own (the second one is bring.c's): what another part of the process does with the GPU is
 * neither waited for nor torn down.  The context is current only inside these functions.
 *
 * Uploads go through pinned memory, so that the caller's bytes are free at once and the copy
 * runs beside what comes next.  See backend.h for what callers may rely on. */
#include "dev/cuda/internal.h"

#include "base/alloc.h"
#include "base/size.h"
#include "dev/cuda/plugin.h"

#include <stdio.h>
#include <string.h>

/* The kernels, for all processors that they were compiled for: see meson.build. */
extern const unsigned char mox_cuda_kernels_image[];

enum { LEAST_CAPABILITY = 80, SMALL_DOWNLOAD = 256 << 10 };

/* ---- failures ---- */

static const char *advice(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY: return "; it has no memory left: ask for less context or smaller batches";
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE: return "; it must be opened again";
    default: return "";
    }
}

bool mox_cuda_did(mox_cuda *c, CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS && mox_cuda_fine(c))
        (void)mox_fail(&c->fault, MOX_E_DEVICE, "%s failed at %s: %s%s", c->backend.model, what, mox_cuda_words(&c->driver, result),
                       advice(result));
    return mox_cuda_fine(c);
}

static mox_status tell(const mox_cuda *c, mox_err *err)
{
    return mox_cuda_fine(c) ? MOX_OK : mox_fail(err, c->fault.status, "%s", c->fault.msg);
}

static CUdeviceptr address(const void *p) { return (CUdeviceptr)(uintptr_t)p; }

/* ---- memory ---- */

static void memory(mox_gpu_backend *b, int64_t *total, int64_t *left)
{
    mox_cuda *c = (mox_cuda *)b;
    size_t bytes_left = 0, bytes = 0;
    mox_cuda_enter(c);
    if (MOX_CUDA(&c->driver, cuMemGetInfo)(&bytes_left, &bytes) != CUDA_SUCCESS) bytes_left = bytes = 0;
    mox_cuda_leave(c);
    *total = (int64_t)bytes;
    *left = (int64_t)bytes_left;
}

static mox_status alloc(mox_gpu_backend *b, int64_t bytes, void **out, mox_err *err)
{
    mox_cuda *c = (mox_cuda *)b;
    CUdeviceptr p = 0;
    *out = NULL;
    MOX_TRY(tell(c, err));
    if (bytes < 0) return mox_fail(err, MOX_E_ARG, "%s: an allocation of %lld bytes", b->model, (long long)bytes);
    mox_cuda_enter(c);
    /* Whole units, as gpu_bytes_u32 reads the aligned word that holds the last bytes. */
    const size_t size = (size_t)mox_ceil_div(mox_max_i64(bytes, 1), MOX_GPU_ALIGN) * MOX_GPU_ALIGN;
    const CUresult result = MOX_CUDA(&c->driver, cuMemAlloc)(&p, size);
    mox_cuda_leave(c);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        int64_t total, left;
        memory(b, &total, &left);
        return mox_fail(err, MOX_E_MEMORY, "%s has no room for %lld MiB: %lld of its %lld MiB are free", b->model,
                        (long long)mox_ceil_div(bytes, 1 << 20), (long long)(left >> 20), (long long)(total >> 20));
    }
    if (!mox_cuda_did(c, result, "an allocation")) return tell(c, err);
    *out = (void *)(uintptr_t)p;
    return MOX_OK;
}

static void wait(mox_cuda *c)
{
    mox_cuda_flush(c);
    (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuStreamSynchronize)(c->stream), "waiting");
}

static void release(mox_gpu_backend *b, void *p)
{
    mox_cuda *c = (mox_cuda *)b;
    if (!p) return;
    mox_cuda_enter(c);
    wait(c);
    (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuStreamSynchronize)(c->copies), "waiting for copies");
    (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuMemFree)(address(p)), "giving memory back");
    mox_cuda_leave(c);
}

/* ---- copies ---- */

/* Pinned room for a copy of at most a stage.  NULL after a failure. */
static unsigned char *room(mox_cuda *c, size_t bytes)
{
    if (c->stage_used + bytes > MOX_CUDA_STAGE_BYTES) {
        const mox_cuda_stage *full = &c->stages[c->stage];
        (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuEventRecord)(full->passed, c->stream), "an event");
        c->stage = (c->stage + 1) % MOX_CUDA_STAGES;
        c->stage_used = 0;
        /* I2; an event that was never recorded has passed */
        (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuEventSynchronize)(c->stages[c->stage].passed), "an event");
    }
    if (!mox_cuda_fine(c)) return NULL;
    unsigned char *p = c->stages[c->stage].bytes + c->stage_used;
    c->stage_used += (bytes + 255) / 256 * 256;
    return p;
}

static void upload(mox_gpu_backend *b, void *to, const void *from, int64_t bytes)
{
    mox_cuda *c = (mox_cuda *)b;
    mox_cuda_enter(c);
    mox_cuda_flush(c);
    for (int64_t at = 0; at < bytes && mox_cuda_fine(c);) {
        const size_t n = (size_t)mox_min_i64(bytes - at, MOX_CUDA_STAGE_BYTES);
        unsigned char *pinned = room(c, n);
        if (!pinned) break;
        memcpy(pinned, (const unsigned char *)from + at, n);
        (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuMemcpyHtoDAsync)(address(to) + (CUdeviceptr)at, pinned, n, c->stream), "an upload");
        at += (int64_t)n;
    }
    mox_cuda_leave(c);
}

static void copy(mox_gpu_backend *b, void *to, const void *from, int64_t bytes)
{
    mox_cuda *c = (mox_cuda *)b;
    if (bytes == 0) return;
    mox_cuda_enter(c);
    mox_cuda_flush(c);
    if (mox_cuda_fine(c))
        (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuMemcpyDtoDAsync)(address(to), address(from), (size_t)bytes, c->stream), "a copy");
    mox_cuda_leave(c);
}

/* The stream of `waits` goes on when that of c is where it is now. */
static bool let_wait(mox_cuda *waits, mox_cuda *c)
{
    mox_cuda_enter(c);
    mox_cuda_flush(c);
    const bool fine = mox_cuda_fine(c) && mox_cuda_did(c, MOX_CUDA(&c->driver, cuEventRecord)(c->reached, c->stream), "an event");
    mox_cuda_leave(c);
    if (!fine) {
        if (mox_cuda_fine(waits)) waits->fault = c->fault;
        return false;
    }
    mox_cuda_enter(waits);
    mox_cuda_flush(waits);
    const bool queued = mox_cuda_fine(waits) && mox_cuda_did(waits, MOX_CUDA(&waits->driver, cuStreamWaitEvent)(waits->stream, c->reached, 0),
                                                             "waiting for another GPU");
    mox_cuda_leave(waits);
    return queued;
}

/* Without peer access between the two the driver takes a way over the host. */
static void copy_from(mox_gpu_backend *b, void *to, mox_gpu_backend *other, const void *from, int64_t bytes)
{
    mox_cuda *c = (mox_cuda *)b, *source = (mox_cuda *)other;
    if (bytes == 0 || !let_wait(c, source)) return;
    mox_cuda_enter(c);
    (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuMemcpyPeerAsync)(address(to), c->context, address(from), source->context, (size_t)bytes,
                                                                  c->stream), "a copy from another GPU");
    mox_cuda_leave(c);
    (void)let_wait(source, c); /* what is there may be written again only then */
}

static void zero(mox_gpu_backend *b, void *to, int64_t bytes)
{
    mox_cuda *c = (mox_cuda *)b;
    if (bytes == 0) return;
    mox_cuda_enter(c);
    mox_cuda_flush(c);
    if (mox_cuda_fine(c))
        (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuMemsetD8Async)(address(to), 0, (size_t)bytes, c->stream), "clearing memory");
    mox_cuda_leave(c);
}

static mox_status sync(mox_gpu_backend *b, mox_err *err)
{
    mox_cuda *c = (mox_cuda *)b;
    mox_cuda_enter(c);
    wait(c);
    mox_cuda_leave(c);
    return tell(c, err);
}

/* Much goes straight to where it is wanted: where that is pinned nothing is faster, and else the driver has stages of its own. */
static mox_status download(mox_gpu_backend *b, void *to, const void *from, int64_t bytes, mox_err *err)
{
    mox_cuda *c = (mox_cuda *)b;
    const bool small = bytes < SMALL_DOWNLOAD;
    mox_cuda_enter(c);
    mox_cuda_flush(c);
    void *landing = small && bytes > 0 ? room(c, (size_t)bytes) : to;
    if (bytes > 0 && mox_cuda_fine(c))
        (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuMemcpyDtoHAsync)(landing, address(from), (size_t)bytes, c->stream), "a download");
    wait(c);
    if (small && bytes > 0 && mox_cuda_fine(c)) memcpy(to, landing, (size_t)bytes);
    mox_cuda_leave(c);
    return tell(c, err);
}

static mox_status fetch(mox_gpu_backend *b, const mox_fetch *pieces, int64_t n, mox_err *err)
{
    mox_cuda *c = (mox_cuda *)b;
    size_t bytes = 0, at = 0;
    for (int64_t i = 0; i < n; i++) bytes += (size_t)pieces[i].bytes;
    mox_cuda_enter(c);
    mox_cuda_flush(c);
    unsigned char *pinned = room(c, bytes);
    for (int64_t i = 0; i < n && mox_cuda_fine(c); at += (size_t)pieces[i++].bytes)
        (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuMemcpyDtoHAsync)(pinned + at, address(pieces[i].from), (size_t)pieces[i].bytes,
                                                                      c->stream), "a download");
    wait(c);
    at = 0;
    for (int64_t i = 0; i < n && mox_cuda_fine(c); at += (size_t)pieces[i++].bytes) memcpy(pieces[i].to, pinned + at, (size_t)pieces[i].bytes);
    mox_cuda_leave(c);
    return tell(c, err);
}

/* ---- opening ---- */

static void close_device(mox_gpu_backend *b)
{
    mox_cuda *c = (mox_cuda *)b;
    const mox_cuda_driver *d = &c->driver;
    if (c->context) {
        mox_cuda_enter(c);
        if (c->stream) (void)MOX_CUDA(d, cuStreamSynchronize)(c->stream);
        if (c->copies) (void)MOX_CUDA(d, cuStreamSynchronize)(c->copies);
        mox_cuda_launch_deinit(c);
        mox_cuda_bring_deinit(c);
        for (int i = 0; i < MOX_CUDA_STAGES; i++) {
            if (c->stages[i].bytes) (void)MOX_CUDA(d, cuMemFreeHost)(c->stages[i].bytes);
            if (c->stages[i].passed) (void)MOX_CUDA(d, cuEventDestroy)(c->stages[i].passed);
        }
        if (c->reached) (void)MOX_CUDA(d, cuEventDestroy)(c->reached);
        if (c->module) (void)MOX_CUDA(d, cuModuleUnload)(c->module);
        if (c->stream) (void)MOX_CUDA(d, cuStreamDestroy)(c->stream);
        mox_cuda_leave(c);
        (void)MOX_CUDA(d, cuCtxDestroy)(c->context); /* and what is allocated */
    }
    mox_free(c);
}

static mox_status count_devices(int *n, mox_err *err)
{
    mox_cuda_driver d;
    *n = 0;
    MOX_TRY(mox_cuda_driver_load(&d, err));
    const CUresult result = MOX_CUDA(&d, cuDeviceGetCount)(n);
    if (result == CUDA_SUCCESS) return MOX_OK;
    return mox_fail(err, MOX_E_DEVICE, "the NVIDIA driver does not say how many GPUs there are: %s", mox_cuda_words(&d, result));
}

static mox_status choose_device(mox_cuda *c, int number, CUdevice *device, mox_err *err)
{
    const mox_cuda_driver *d = &c->driver;
    int n = 0, major = 0, minor = 0;
    (void)mox_cuda_did(c, MOX_CUDA(d, cuDeviceGetCount)(&n), "counting GPUs");
    MOX_TRY(tell(c, err));
    if (number < 0 || number >= n)
        return mox_fail(err, MOX_E_DEVICE, "there is no NVIDIA GPU number %d: this machine has %d, counted from 0", number, n);
    (void)(mox_cuda_did(c, MOX_CUDA(d, cuDeviceGet)(device, number), "finding it") &&
           mox_cuda_did(c, MOX_CUDA(d, cuDeviceGetName)(c->model, (int)sizeof c->model, *device), "asking its name") &&
           mox_cuda_did(c, MOX_CUDA(d, cuDeviceGetAttribute)(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, *device), "asking what it is") &&
           mox_cuda_did(c, MOX_CUDA(d, cuDeviceGetAttribute)(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, *device), "asking what it is"));
    MOX_TRY(tell(c, err));
    c->backend.model = c->model;
    if (10 * major + minor < LEAST_CAPABILITY)
        return mox_fail(err, MOX_E_DEVICE, "%s has compute capability %d.%d, and %d.%d is needed: use another device", c->model, major,
                        minor, LEAST_CAPABILITY / 10, LEAST_CAPABILITY % 10);
    c->overlaps = major >= 9;
    return MOX_OK;
}

static mox_status make_stages(mox_cuda *c, mox_err *err)
{
    const mox_cuda_driver *d = &c->driver;
    for (int i = 0; i < MOX_CUDA_STAGES; i++) {
        void *bytes = NULL;
        if (MOX_CUDA(d, cuMemAllocHost)(&bytes, MOX_CUDA_STAGE_BYTES) != CUDA_SUCCESS)
            return mox_fail_memory(err, MOX_CUDA_STAGE_BYTES, "pinned memory for copies to the GPU");
        c->stages[i].bytes = bytes;
        (void)mox_cuda_did(c, MOX_CUDA(d, cuEventCreate)(&c->stages[i].passed, CU_EVENT_DISABLE_TIMING), "making an event");
    }
    return tell(c, err);
}

/* With the context current. */
static mox_status prepare(mox_cuda *c, mox_err *err)
{
    const mox_cuda_driver *d = &c->driver;
    static const char *const names[] = {
#define NAME(name, threads) "mox_gpu_kernel_" #name,
        MOX_GPU_KERNELS(NAME)
#undef NAME
    };
    (void)(mox_cuda_did(c, MOX_CUDA(d, cuStreamCreate)(&c->stream, CU_STREAM_NON_BLOCKING), "making a stream") &&
           mox_cuda_did(c, MOX_CUDA(d, cuEventCreate)(&c->reached, CU_EVENT_DISABLE_TIMING), "making an event") &&
           mox_cuda_did(c, MOX_CUDA(d, cuModuleLoadData)(&c->module, mox_cuda_kernels_image), "loading the kernels"));
    for (int i = 0; i < MOX_GPU_KERNEL_COUNT && mox_cuda_fine(c); i++)
        (void)mox_cuda_did(c, MOX_CUDA(d, cuModuleGetFunction)(&c->kernels[i], c->module, names[i]), names[i]);
    MOX_TRY(tell(c, err));
    MOX_TRY(make_stages(c, err));
    MOX_TRY(mox_cuda_bring_init(c, err));
    return mox_cuda_launch_init(c, err);
}

static mox_status start(mox_cuda *c, int number, mox_err *err)
{
    CUdevice device;
    MOX_TRY(mox_cuda_driver_load(&c->driver, err));
    MOX_TRY(choose_device(c, number, &device, err));
    CUcontext made, own;
    if (!mox_cuda_did(c, MOX_CUDA(&c->driver, cuCtxCreate)(&made, NULL, CU_CTX_SCHED_AUTO, device), "starting it")) return tell(c, err);
    c->context = made;
    const mox_status status = prepare(c, err);
    (void)MOX_CUDA(&c->driver, cuCtxPopCurrent)(&own); /* creating one makes it current */
    return status;
}

static mox_status open_device(mox_gpu_backend **out, int number, mox_err *err)
{
    *out = NULL;
    mox_cuda *c = mox_alloc_array(1, sizeof *c);
    if (!c) return mox_fail_memory(err, sizeof *c, "an NVIDIA GPU");
    c->backend = (mox_gpu_backend){.name = "cuda", .model = "the NVIDIA GPU", .alloc = alloc, .free = release, .memory = memory,
                                   .upload = upload, .upload_all = mox_cuda_upload_all, .copy = copy,
                                   .copy_from = copy_from, .zero = zero, .launch = mox_cuda_launch_kernel,
                                   .begin_step = mox_cuda_begin_step, .end_step = mox_cuda_end_step, .sync = sync,
                                   .download = download, .fetch = fetch, .close = close_device};
    const mox_status status = start(c, number, err);
    if (status == MOX_OK) *out = &c->backend;
    else close_device(&c->backend);
    return status;
}

__attribute__((visibility("default"))) extern const mox_cuda_plugin mox_cuda_plugin_entry;
const mox_cuda_plugin mox_cuda_plugin_entry = {.version = MOX_VERSION, .backend_bytes = sizeof(mox_gpu_backend),
                                               .n_kernels = MOX_GPU_KERNEL_COUNT, .open = open_device, .count = count_devices};
