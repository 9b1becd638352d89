/* dev/cuda/driver.c -- finding NVIDIA's driver.  See driver.h. */
#include "dev/cuda/driver.h"

#include <dlfcn.h>

const char *mox_cuda_words(const mox_cuda_driver *d, CUresult result)
{
    const char *words = NULL;
    if (MOX_CUDA(d, cuGetErrorString)(result, &words) != CUDA_SUCCESS || !words) return "an error that it has no words for";
    return words;
}

/* A driver serves every release of its own major version of CUDA, and all before. */
static mox_status check_version(const mox_cuda_driver *d, mox_err *err)
{
    int version = 0;
    const CUresult result = MOX_CUDA(d, cuDriverGetVersion)(&version);
    if (result != CUDA_SUCCESS)
        return mox_fail(err, MOX_E_DEVICE, "the NVIDIA driver does not say its version: %s", mox_cuda_words(d, result));
    if (version / 1000 < CUDA_VERSION / 1000)
        return mox_fail(err, MOX_E_DEVICE, "the NVIDIA driver is too old: it supports CUDA %d.%d, and CUDA %d.0 is needed; "
                                           "update the driver", version / 1000, version % 1000 / 10, CUDA_VERSION / 1000);
    return MOX_OK;
}

#define STRING_(x) #x
#define STRING(x) STRING_(x)

mox_status mox_cuda_driver_load(mox_cuda_driver *d, mox_err *err)
{
    *d = (mox_cuda_driver){0};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return mox_fail(err, MOX_E_DEVICE, "no NVIDIA driver: libcuda.so.1 is not on this machine");
#define FIND(name)                                                                              \
    *(void **)&d->name##_ = dlsym(library, STRING(name));                                    \
    if (!d->name##_)                                                                            \
        return mox_fail(err, MOX_E_DEVICE, "the NVIDIA driver is too old: it has no %s, and CUDA %d.0 is needed; update the " \
                                           "driver", STRING(name), CUDA_VERSION / 1000);
    MOX_CUDA_FUNCTIONS(FIND)
#undef FIND
    MOX_TRY(check_version(d, err));
    const CUresult result = MOX_CUDA(d, cuInit)(0);
    if (result == CUDA_ERROR_NO_DEVICE) return mox_fail(err, MOX_E_DEVICE, "the NVIDIA driver finds no GPU on this machine");
    if (result != CUDA_SUCCESS)
        return mox_fail(err, MOX_E_DEVICE, "the NVIDIA driver does not start: %s", mox_cuda_words(d, result));
    return MOX_OK;
}
