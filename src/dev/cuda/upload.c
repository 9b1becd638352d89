/* dev/cuda/upload.c -- many uploads by several threads: how weights come to a GPU.
 *
 * One thread copies from the page cache at a fraction of what the bus takes.  So each thread has a stream and
 * pinned stages of its own and takes the next chunk that nobody has; the copy of one stage runs beside the
 * filling of the other.  All of it is there for one call only. */
#include "dev/cuda/internal.h"

#include "base/alloc.h"
#include "base/machine.h"
#include "base/pool.h"
#include "base/size.h"

#include <stdatomic.h>
#include <string.h>

enum { THREADS_MAX = 12, LANE_STAGES = 2 };
static const int64_t chunk_bytes = 4 << 20;

typedef struct lane {
    CUstream stream;
    mox_cuda_stage stages[LANE_STAGES];
    CUresult result; /* the first that was no success */
} lane;

typedef struct uploads {
    mox_cuda *c;
    const mox_upload *pieces;
    const int64_t *first_chunk; /* [n + 1] of each piece */
    int64_t n;
    _Atomic int64_t next;
    lane lanes[THREADS_MAX];
    int n_lanes;
} uploads;

/* ---- what a call takes ---- */

static void free_lanes(uploads *u)
{
    const mox_cuda_driver *d = &u->c->driver;
    for (int i = 0; i < u->n_lanes; i++) {
        lane *l = &u->lanes[i];
        for (int k = 0; k < LANE_STAGES; k++) {
            if (l->stages[k].bytes) (void)MOX_CUDA(d, cuMemFreeHost)(l->stages[k].bytes);
            if (l->stages[k].passed) (void)MOX_CUDA(d, cuEventDestroy)(l->stages[k].passed);
        }
        if (l->stream) (void)MOX_CUDA(d, cuStreamDestroy)(l->stream);
    }
}

static bool make_lane(mox_cuda *c, lane *l)
{
    const mox_cuda_driver *d = &c->driver;
    bool fine = MOX_CUDA(d, cuStreamCreate)(&l->stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS;
    for (int k = 0; k < LANE_STAGES && fine; k++) {
        void *bytes = NULL;
        fine = MOX_CUDA(d, cuMemAllocHost)(&bytes, (size_t)chunk_bytes) == CUDA_SUCCESS &&
               MOX_CUDA(d, cuEventCreate)(&l->stages[k].passed, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS;
        l->stages[k].bytes = bytes;
    }
    return fine;
}

/* ---- threads ---- */

/* The piece that has a chunk. */
static int64_t piece_of(const uploads *u, int64_t chunk)
{
    int64_t low = 0, high = u->n; /* first_chunk[low] <= chunk < first_chunk[high] */
    while (high - low > 1) {
        const int64_t mid = low + (high - low) / 2;
        if (u->first_chunk[mid] <= chunk) low = mid;
        else high = mid;
    }
    return low;
}

static void send_chunk(const uploads *u, lane *l, mox_cuda_stage *stage, int64_t chunk)
{
    const mox_cuda_driver *d = &u->c->driver;
    const int64_t i = piece_of(u, chunk), at = (chunk - u->first_chunk[i]) * chunk_bytes;
    const mox_upload *p = &u->pieces[i];
    const size_t n = (size_t)mox_min_i64(p->bytes - at, chunk_bytes);
    CUresult result = MOX_CUDA(d, cuEventSynchronize)(stage->passed); /* an event that was never recorded has passed */
    if (result == CUDA_SUCCESS) {
        memcpy(stage->bytes, (const unsigned char *)p->from + at, n);
        result = MOX_CUDA(d, cuMemcpyHtoDAsync)((CUdeviceptr)(uintptr_t)p->to + (CUdeviceptr)at, stage->bytes, n, l->stream);
    }
    if (result == CUDA_SUCCESS) result = MOX_CUDA(d, cuEventRecord)(stage->passed, l->stream);
    l->result = result;
}

static void work(const void *args, int64_t begin, int64_t end)
{
    uploads *u = (uploads *)(uintptr_t)args;
    for (int64_t i = begin; i < end; i++) {
        lane *l = &u->lanes[i];
        mox_cuda_enter(u->c);
        int k = 0;
        for (int64_t chunk; l->result == CUDA_SUCCESS && (chunk = u->next++) < u->first_chunk[u->n]; k = (k + 1) % LANE_STAGES)
            send_chunk(u, l, &l->stages[k], chunk);
        const CUresult waited = MOX_CUDA(&u->c->driver, cuStreamSynchronize)(l->stream);
        if (l->result == CUDA_SUCCESS) l->result = waited;
        mox_cuda_leave(u->c);
    }
}

/* ---- the call ---- */

static void one_by_one(mox_gpu_backend *b, const mox_upload *pieces, int64_t n)
{
    for (int64_t i = 0; i < n; i++) b->upload(b, pieces[i].to, pieces[i].from, pieces[i].bytes);
}

void mox_cuda_upload_all(mox_gpu_backend *b, const mox_upload *pieces, int64_t n)
{
    uploads u = {.c = (mox_cuda *)b, .pieces = pieces, .n = n};
    mox_pool *pool = NULL;
    int64_t *first = mox_alloc_array((size_t)n + 1, sizeof *first);
    const int wanted = (int)mox_min_i64(mox_machine_threads(), THREADS_MAX);
    bool fine = first && mox_pool_create(&pool, &(mox_pool_opts){.n_threads = wanted}, NULL) == MOX_OK;
    for (int64_t i = 0; i < n && fine; i++) first[i + 1] = first[i] + mox_ceil_div(pieces[i].bytes, chunk_bytes);
    u.first_chunk = first;
    mox_cuda_enter(u.c);
    mox_cuda_flush(u.c);
    /* what is under way writes first: memory that was just cleared, for one */
    fine = fine && mox_cuda_did(u.c, MOX_CUDA(&u.c->driver, cuStreamSynchronize)(u.c->stream), "waiting");
    while (fine && u.n_lanes < mox_pool_size(pool) && u.n_lanes < THREADS_MAX) fine = make_lane(u.c, &u.lanes[u.n_lanes++]);
    mox_cuda_leave(u.c);
    if (fine) mox_pool_run(pool, work, &u, u.n_lanes, 1);
    mox_pool_destroy(&pool);
    mox_cuda_enter(u.c);
    for (int i = 0; fine && i < u.n_lanes; i++) (void)mox_cuda_did(u.c, u.lanes[i].result, "an upload");
    free_lanes(&u);
    mox_cuda_leave(u.c);
    mox_free(first);
    if (!fine) one_by_one(b, pieces, n); /* with less memory, and more time */
}
