/* dev/cuda/internal.h -- an open GPU as its files see it: memory (cuda.c), launches (launch.c), copies
 * beside launches (bring.c).
 *
 * I1  after the first failure nothing more is asked of the driver but waiting and giving back.
 * I2  every staged byte handed to a copy stays as it is until the stream has passed its stage. */
#ifndef MOX_DEV_CUDA_INTERNAL_H
#define MOX_DEV_CUDA_INTERNAL_H

#include "dev/cuda/driver.h"
#include "dev/gpu/backend.h"

enum {
    MOX_CUDA_STAGES = 4,
    MOX_CUDA_STAGE_BYTES = 8 << 20,
    MOX_CUDA_WAITS = 64,           /* of launches for copies that are timed at once */
    MOX_CUDA_STEPS = 16,           /* graphs that are kept: parts of steps, see launch.c */
    MOX_CUDA_STEP_LAUNCHES = 4096, /* of a step that can be kept; a longer one is launched as it comes */
    MOX_CUDA_STEP_BYTES = 2 << 20  /* of their parameters */
};

/* Pinned memory that uploads go through, in turn. */
typedef struct mox_cuda_stage {
    unsigned char *bytes;
    CUevent passed; /* the stream has copied what is in there */
} mox_cuda_stage;

typedef struct mox_cuda_launch {
    mox_gpu_kernel kernel;
    unsigned groups[3];
    size_t params_at; /* in the bytes of the step */
} mox_cuda_launch;

/* Launches in their order; kept ones also as a graph. */
typedef struct mox_cuda_step {
    mox_cuda_launch *launches; /* [MOX_CUDA_STEP_LAUNCHES] */
    unsigned char *params;     /* [MOX_CUDA_STEP_BYTES] */
    int n;
    int part; /* of its step, see launch.c */
    size_t params_used;
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode *nodes; /* [MOX_CUDA_STEP_LAUNCHES] */
    uint64_t last_used;
} mox_cuda_step;

typedef struct mox_cuda {
    mox_gpu_backend backend;
    mox_cuda_driver driver;
    CUcontext context;
    CUstream stream;
    CUevent reached; /* a place in the stream that another device waits for */
    CUmodule module;
    CUfunction kernels[MOX_GPU_KERNEL_COUNT];
    char model[96];
    bool overlaps; /* a launch may begin while the one before ends: target_cuda.h */
    mox_err fault; /* the first failure */

    mox_cuda_stage stages[MOX_CUDA_STAGES];
    int stage;
    size_t stage_used;

    /* Copies beside launches, in a stream of their own. */
    CUstream copies;
    CUevent brought, launched;                             /* how far copies and launches had come */
    struct mox_cuda_wait { CUevent begun, ended; } waits[MOX_CUDA_WAITS]; /* of launches for copies */
    int n_waits;
    double waited_s; /* in waits that are not among them any more */

    bool recording;
    bool no_graphs; /* there was no memory for one */
    mox_cuda_step now;                   /* what is being recorded */
    mox_cuda_step kept[MOX_CUDA_STEPS];
    uint64_t plain_steps[MOX_CUDA_STEPS]; /* fingerprints of steps that came once */
    uint64_t n_steps;
} mox_cuda;

/* cuda.c: remembers the first failure; false when there has been one. */
bool mox_cuda_did(mox_cuda *c, CUresult result, const char *what);
static inline bool mox_cuda_fine(const mox_cuda *c) { return c->fault.status == MOX_OK; }

/* The context is current between these. */
static inline void mox_cuda_enter(mox_cuda *c) { (void)MOX_CUDA(&c->driver, cuCtxPushCurrent)(c->context); }
static inline void mox_cuda_leave(mox_cuda *c)
{
    CUcontext own;
    (void)MOX_CUDA(&c->driver, cuCtxPopCurrent)(&own);
}

/* bring.c */
mox_status mox_cuda_bring_init(mox_cuda *c, mox_err *err); /* also fills the functions of the backend */
void mox_cuda_bring_deinit(mox_cuda *c);

/* launch.c */
mox_status mox_cuda_launch_init(mox_cuda *c, mox_err *err);
void mox_cuda_launch_deinit(mox_cuda *c);
void mox_cuda_launch_kernel(mox_gpu_backend *b, mox_gpu_kernel kernel, const int64_t groups[3], const void *params, size_t params_bytes);
void mox_cuda_begin_step(mox_gpu_backend *b);
void mox_cuda_end_step(mox_gpu_backend *b);
/* Launches what was recorded so far; the rest of the step is launched as it comes. */
void mox_cuda_flush(mox_cuda *c);

/* upload.c */
void mox_cuda_upload_all(mox_gpu_backend *b, const mox_upload *pieces, int64_t n);

#endif
