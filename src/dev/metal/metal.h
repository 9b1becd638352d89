/* dev/metal/metal.h -- Apple's GPUs as a backend of dev/gpu.
 *
 * Memory is shared with the processor (others are refused), so that copies are the processor's and
 * bytes of the host can be read in place.  Kernels are compiled when the device is opened, from the text
 * that the build has made of dev/gpu. */
#ifndef MOX_DEV_METAL_METAL_H
#define MOX_DEV_METAL_METAL_H

#include "dev/gpu/backend.h"

/* The default GPU.  MOX_E_DEVICE with one sentence: there is no Metal, the GPU is too old or has memory
 * of its own, or Metal does not take the kernels. */
mox_status mox_metal_open(mox_gpu_backend **out, mox_err *err);

#endif
