/* dev/emu/kernels.h -- finding the kernels of dev/gpu as the emulator runs them. */
#ifndef MOX_DEV_EMU_KERNELS_H
#define MOX_DEV_EMU_KERNELS_H

#include "dev/emu/access.h"
#include "dev/gpu/params.h"

const mox_emu_kernel *mox_emu_find(mox_gpu_kernel id);

#endif
