/* dev/cuda/load.h -- NVIDIA GPUs for the library, which holds nothing of CUDA itself. */
#ifndef MOX_DEV_CUDA_LOAD_H
#define MOX_DEV_CUDA_LOAD_H

#include "dev/gpu/backend.h"

/* Opens GPU number `device` through the plug-in.  path NULL: libmoxie-cuda.so beside the library
 * (or the program that it is part of), or where the system looks for libraries.
 * MOX_E_DEVICE with one sentence: no plug-in, one of another version, no driver or an old one,
 * no such GPU, or one that the kernels were not made for.  The plug-in stays loaded. */
mox_status mox_cuda_open(mox_gpu_backend **out, const char *path, int device, mox_err *err);

#endif
