/* dev/gpu/backend.h -- what a GPU must be able to do for dev/gpu: memory, copies, launches.
 *
 * Addresses of device memory are `void *` that the host never follows; arithmetic within an
 * allocation is fine, and an allocation begins at a multiple of MOX_GPU_ALIGN.  Everything
 * happens in the order of the calls, as if one thing ended before the next begins.
 *
 * Errors are sticky: what fails after it was queued is told by the next sync, and by every
 * call after it; nothing that was asked for later takes place.  So upload, copy, zero and launch
 * return nothing, and whoever wants to see results syncs (or downloads, which syncs).
 *
 * Threads: one at a time; copy_from is a call of both its devices.  Nothing here allocates on the host but open, alloc
 * and upload_all. */
#ifndef MOX_DEV_GPU_BACKEND_H
#define MOX_DEV_GPU_BACKEND_H

#include "base/err.h"
#include "dev/gpu/params.h"
#include "dev/upload.h"

enum { MOX_GPU_ALIGN = 256, MOX_GPU_FETCH_BYTES = 1 << 20 };

typedef struct mox_gpu_backend mox_gpu_backend;

/* A target embeds this as its first member. */
struct mox_gpu_backend {
    const char *name;  /* "emu", "cuda", "metal" */
    const char *model; /* what the machine calls the device */

    /* MOX_E_MEMORY, not sticky, when there is no room.  Memory comes with any content. */
    mox_status (*alloc)(mox_gpu_backend *b, int64_t bytes, void **out, mox_err *err);
    void (*free)(mox_gpu_backend *b, void *p); /* of alloc or map; NULL is fine; waits for what uses it */
    /* Memory of the host where it is, which stays as it is until it is freed.  NULL: the device cannot. */
    mox_status (*map)(mox_gpu_backend *b, const void *host, int64_t bytes, void **out, mox_err *err);
    /* Bytes that the device has, and that could still be allocated. */
    void (*memory)(mox_gpu_backend *b, int64_t *total, int64_t *left);

    /* `from` may be written again when upload returns. */
    void (*upload)(mox_gpu_backend *b, void *to, const void *from, int64_t bytes);
    /* All of them, by as many threads as pay; it may allocate.  NULL: one after the other is as good. */
    void (*upload_all)(mox_gpu_backend *b, const mox_upload *pieces, int64_t n);
    void (*copy)(mox_gpu_backend *b, void *to, const void *from, int64_t bytes); /* on the device; no overlap */
    /* From memory of another device of the same target, after all that was asked of it so far and before
     * all that will be.  What went wrong there has then gone wrong here, too. */
    void (*copy_from)(mox_gpu_backend *b, void *to, mox_gpu_backend *other, const void *from, int64_t bytes);
    void (*zero)(mox_gpu_backend *b, void *to, int64_t bytes);
    /* params are the mox_gpu_NAME of the kernel, params_bytes of them; they are copied.  A grid
     * with a 0 does nothing. */
    void (*launch)(mox_gpu_backend *b, mox_gpu_kernel kernel, const int64_t groups[3], const void *params, size_t params_bytes);

    /* What is launched between these is a step that will come again: it may be queued at its end
     * only, and the second and later ones with the same kernels in the same order cost less.
     * NULL: nothing is gained.  Other calls in between are fine and end the gain. */
    void (*begin_step)(mox_gpu_backend *b);
    void (*end_step)(mox_gpu_backend *b);

    /* Copies beside launches, in their own order: what bring copies may arrive at any time before
     * use_brought, and does before whatever is called after it.  bring_next: copies to come wait for
     * what was called before.  `from` was pinned (which is not sticky when it fails), and stays as it is
     * until await_brought; what one device has pinned is for all of the same target, and cannot be twice.  waited_s: how long launches had nothing to do but wait for copies.
     * NULL, all of them: there is no such thing, and upload does as well. */
    mox_status (*pin)(mox_gpu_backend *b, void *p, int64_t bytes, mox_err *err);
    void (*unpin)(mox_gpu_backend *b, void *p);
    /* Where launches see what was pinned as p; what they write there the host sees after a sync.  NULL: they do not. */
    void *(*seen)(mox_gpu_backend *b, void *p);
    void (*bring)(mox_gpu_backend *b, void *to, const void *from, int64_t bytes);
    void (*bring_next)(mox_gpu_backend *b);
    void (*use_brought)(mox_gpu_backend *b);
    mox_status (*await_brought)(mox_gpu_backend *b, mox_err *err);
    double (*waited_s)(mox_gpu_backend *b);

    /* Waits for all of the above and says what went wrong since the device was opened. */
    mox_status (*sync)(mox_gpu_backend *b, mox_err *err);
    /* Waits likewise; `to` is defined only on MOX_OK. */
    mox_status (*download)(mox_gpu_backend *b, void *to, const void *from, int64_t bytes, mox_err *err);
    /* Some downloads of at most MOX_GPU_FETCH_BYTES in all, with one wait.  NULL: one after the other is as good. */
    mox_status (*fetch)(mox_gpu_backend *b, const mox_fetch *pieces, int64_t n, mox_err *err);

    void (*close)(mox_gpu_backend *b); /* frees b; what was allocated goes with it */
};

#endif
