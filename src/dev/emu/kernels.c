/* dev/emu/kernels.c -- the kernels of dev/gpu, compiled for the emulator. */
#define MOX_GPU_EMU 1
#include "dev/emu/kernels.h"

#include "dev/gpu/kernels.h"

const mox_emu_kernel *mox_emu_find(mox_gpu_kernel id)
{
    static const mox_emu_kernel *const kernels[] = {
#define ENTRY(name, threads) [MOX_GPU_KERNEL_##name] = &mox_emu_kernel_##name,
        MOX_GPU_KERNELS(ENTRY)
#undef ENTRY
    };
    return kernels[id];
}
