/* dev/cuda/driver.h -- NVIDIA's driver, found at run time.
 *
 * The driver is a library of the system (libcuda.so.1) that this one is not linked with, so
 * that a machine without it gets a sentence and not an error of the loader.  Nothing of the CUDA
 * runtime is used: what is needed of it at run time comes with the driver. */
#ifndef MOX_DEV_CUDA_DRIVER_H
#define MOX_DEV_CUDA_DRIVER_H

#include "base/err.h"

#include <cuda.h>

/* X(function), as cuda.h calls it; cuda.h's macros pick the version. */
#define MOX_CUDA_FUNCTIONS(X)                                                                   \
    X(cuInit) X(cuDriverGetVersion) X(cuGetErrorString)                                         \
    X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetAttribute)               \
    X(cuCtxCreate) X(cuCtxDestroy) X(cuCtxPushCurrent) X(cuCtxPopCurrent)                       \
    X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction)                                \
    X(cuMemGetInfo) X(cuMemAlloc) X(cuMemFree) X(cuMemAllocHost) X(cuMemFreeHost)               \
    X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemHostGetDevicePointer)                    \
    X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoDAsync) X(cuMemcpyPeerAsync)         \
    X(cuMemsetD8Async)                                                                          \
    X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamWaitEvent)            \
    X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventSynchronize)                   \
    X(cuEventElapsedTime)                                                                       \
    X(cuLaunchKernelEx)                                                                         \
    X(cuGraphCreate) X(cuGraphDestroy) X(cuGraphAddNode) X(cuGraphInstantiate)                  \
    X(cuGraphExecDestroy) X(cuGraphExecKernelNodeSetParams) X(cuGraphLaunch)

typedef struct mox_cuda_driver {
#define MOX_CUDA_MEMBER(name) __typeof__(&name) name##_;
    MOX_CUDA_FUNCTIONS(MOX_CUDA_MEMBER)
#undef MOX_CUDA_MEMBER
} mox_cuda_driver;

/* Calls a function of the driver d. */
#define MOX_CUDA(d, name) ((d)->name##_)

/* Finds the driver and starts it.  MOX_E_DEVICE: there is none, it is too old for this build,
 * or it found no GPU.  It stays loaded: drivers are not made to be unloaded. */
mox_status mox_cuda_driver_load(mox_cuda_driver *d, mox_err *err);

/* What the driver says about a result. */
const char *mox_cuda_words(const mox_cuda_driver *d, CUresult result);

#endif
