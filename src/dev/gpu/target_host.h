/* dev/gpu/target_host.h -- what host code sees of the language: plain pointers in
 * parameter structs.  Their layout is that of every target. */
#ifndef MOX_DEV_GPU_TARGET_HOST_H
#define MOX_DEV_GPU_TARGET_HOST_H

#include <stdint.h>

#define GPU_TYPE(t, type) typedef type gpu_##t
#define GPU_GLOBAL(t) gpu_##t
#define GPU_ALIGNED(n) _Alignas(n)

#endif
