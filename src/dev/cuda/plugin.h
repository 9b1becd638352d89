/* dev/cuda/plugin.h -- the one symbol between the library and its plug-in for NVIDIA GPUs.
 *
 * libmoxie-cuda.so is a file of its own so that one package serves machines with and without
 * a GPU.  Both are built from one source; the version says so, and a plug-in of another is refused. */
#ifndef MOX_DEV_CUDA_PLUGIN_H
#define MOX_DEV_CUDA_PLUGIN_H

#include "dev/gpu/backend.h"

typedef struct mox_cuda_plugin {
    const char *version;
    size_t backend_bytes; /* of mox_gpu_backend: what must not differ even within a version */
    int32_t n_kernels;
    /* GPU number `device`, counted from 0. */
    mox_status (*open)(mox_gpu_backend **out, int device, mox_err *err);
    mox_status (*count)(int *n, mox_err *err);
} mox_cuda_plugin;

#define MOX_CUDA_PLUGIN_FILE "libmoxie-cuda.so"
#define MOX_CUDA_PLUGIN_SYMBOL "mox_cuda_plugin_entry"

#endif
