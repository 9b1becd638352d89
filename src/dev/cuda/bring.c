/* dev/cuda/bring.c -- copies from pinned memory of the host that run beside launches.
 *
 * They have a stream of their own.  Two events order the streams where that is asked for: launches after
 * copies (use_brought), copies after launches (bring_next).  Around every wait of the launches there are two
 * more, which say how long there was nothing to do; they are read when all of them are taken, or when
 * somebody asks.  See backend.h. */
#include "dev/cuda/internal.h"

static CUdeviceptr address(const void *p) { return (CUdeviceptr)(uintptr_t)p; }

static mox_status tell(const mox_cuda *c, mox_err *err)
{
    return mox_cuda_fine(c) ? MOX_OK : mox_fail(err, c->fault.status, "%s", c->fault.msg);
}

static mox_status pin(mox_gpu_backend *b, void *p, int64_t bytes, mox_err *err)
{
    mox_cuda *c = (mox_cuda *)b;
    MOX_TRY(tell(c, err));
    mox_cuda_enter(c);
    const CUresult result = MOX_CUDA(&c->driver, cuMemHostRegister)(p, (size_t)bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    mox_cuda_leave(c);
    if (result == CUDA_SUCCESS) return MOX_OK;
    return mox_fail(err, MOX_E_MEMORY, "%s cannot pin %lld MiB of memory: %s", b->model, (long long)(bytes >> 20),
                    mox_cuda_words(&c->driver, result));
}

static void unpin(mox_gpu_backend *b, void *p)
{
    mox_cuda *c = (mox_cuda *)b;
    mox_cuda_enter(c);
    (void)MOX_CUDA(&c->driver, cuStreamSynchronize)(c->copies);
    (void)MOX_CUDA(&c->driver, cuStreamSynchronize)(c->stream); /* launches may write there */
    (void)MOX_CUDA(&c->driver, cuMemHostUnregister)(p);
    mox_cuda_leave(c);
}

static void *seen(mox_gpu_backend *b, void *p)
{
    mox_cuda *c = (mox_cuda *)b;
    CUdeviceptr at = 0;
    mox_cuda_enter(c);
    const CUresult result = MOX_CUDA(&c->driver, cuMemHostGetDevicePointer)(&at, p, 0);
    mox_cuda_leave(c);
    return result == CUDA_SUCCESS ? (void *)(uintptr_t)at : NULL;
}

static void bring(mox_gpu_backend *b, void *to, const void *from, int64_t bytes)
{
    mox_cuda *c = (mox_cuda *)b;
    if (bytes == 0 || !mox_cuda_fine(c)) return;
    mox_cuda_enter(c);
    (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuMemcpyHtoDAsync)(address(to), from, (size_t)bytes, c->copies), "a copy of an expert");
    mox_cuda_leave(c);
}

/* Stream `later` goes on when `earlier` has come to where it is now. */
static void follow(mox_cuda *c, CUstream later, CUstream earlier, CUevent event)
{
    (void)(mox_cuda_did(c, MOX_CUDA(&c->driver, cuEventRecord)(event, earlier), "an event") &&
           mox_cuda_did(c, MOX_CUDA(&c->driver, cuStreamWaitEvent)(later, event, 0), "waiting for an event"));
}

static void bring_next(mox_gpu_backend *b)
{
    mox_cuda *c = (mox_cuda *)b;
    mox_cuda_enter(c);
    mox_cuda_flush(c);
    if (mox_cuda_fine(c)) follow(c, c->copies, c->stream, c->launched);
    mox_cuda_leave(c);
}

/* Adds up the waits so far, when they are over. */
static void count_waits(mox_cuda *c)
{
    for (int i = 0; i < c->n_waits && mox_cuda_fine(c); i++) {
        float ms = 0.0f;
        if (mox_cuda_did(c, MOX_CUDA(&c->driver, cuEventSynchronize)(c->waits[i].ended), "an event") &&
            mox_cuda_did(c, MOX_CUDA(&c->driver, cuEventElapsedTime)(&ms, c->waits[i].begun, c->waits[i].ended), "timing a wait"))
            c->waited_s += (double)ms * 1e-3;
    }
    c->n_waits = 0;
}

static void use_brought(mox_gpu_backend *b)
{
    mox_cuda *c = (mox_cuda *)b;
    mox_cuda_enter(c);
    mox_cuda_flush(c);
    if (c->n_waits == MOX_CUDA_WAITS) count_waits(c);
    if (mox_cuda_fine(c)) {
        const struct mox_cuda_wait *w = &c->waits[c->n_waits++];
        (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuEventRecord)(w->begun, c->stream), "an event");
        follow(c, c->stream, c->copies, c->brought);
        (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuEventRecord)(w->ended, c->stream), "an event");
    }
    mox_cuda_leave(c);
}

static mox_status await_brought(mox_gpu_backend *b, mox_err *err)
{
    mox_cuda *c = (mox_cuda *)b;
    mox_cuda_enter(c);
    (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuStreamSynchronize)(c->copies), "waiting for copies");
    mox_cuda_leave(c);
    return tell(c, err);
}

static double waited_s(mox_gpu_backend *b)
{
    mox_cuda *c = (mox_cuda *)b;
    mox_cuda_enter(c);
    count_waits(c);
    mox_cuda_leave(c);
    return c->waited_s;
}

mox_status mox_cuda_bring_init(mox_cuda *c, mox_err *err)
{
    const mox_cuda_driver *d = &c->driver;
    c->backend.pin = pin;
    c->backend.unpin = unpin;
    c->backend.seen = seen;
    c->backend.bring = bring;
    c->backend.bring_next = bring_next;
    c->backend.use_brought = use_brought;
    c->backend.await_brought = await_brought;
    c->backend.waited_s = waited_s;
    (void)(mox_cuda_did(c, MOX_CUDA(d, cuStreamCreate)(&c->copies, CU_STREAM_NON_BLOCKING), "making a stream") &&
           mox_cuda_did(c, MOX_CUDA(d, cuEventCreate)(&c->brought, CU_EVENT_DISABLE_TIMING), "making an event") &&
           mox_cuda_did(c, MOX_CUDA(d, cuEventCreate)(&c->launched, CU_EVENT_DISABLE_TIMING), "making an event"));
    for (int i = 0; i < MOX_CUDA_WAITS && mox_cuda_fine(c); i++)
        (void)(mox_cuda_did(c, MOX_CUDA(d, cuEventCreate)(&c->waits[i].begun, CU_EVENT_DEFAULT), "making an event") &&
               mox_cuda_did(c, MOX_CUDA(d, cuEventCreate)(&c->waits[i].ended, CU_EVENT_DEFAULT), "making an event"));
    return tell(c, err);
}

void mox_cuda_bring_deinit(mox_cuda *c)
{
    const mox_cuda_driver *d = &c->driver;
    for (int i = 0; i < MOX_CUDA_WAITS; i++) {
        if (c->waits[i].begun) (void)MOX_CUDA(d, cuEventDestroy)(c->waits[i].begun);
        if (c->waits[i].ended) (void)MOX_CUDA(d, cuEventDestroy)(c->waits[i].ended);
    }
    if (c->brought) (void)MOX_CUDA(d, cuEventDestroy)(c->brought);
    if (c->launched) (void)MOX_CUDA(d, cuEventDestroy)(c->launched);
    if (c->copies) (void)MOX_CUDA(d, cuStreamDestroy)(c->copies);
}
