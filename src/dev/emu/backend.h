/* dev/emu/backend.h -- the emulated GPU as a backend of dev/gpu. */
#ifndef MOX_DEV_EMU_BACKEND_H
#define MOX_DEV_EMU_BACKEND_H

#include "dev/emu/emu.h"
#include "dev/gpu/backend.h"

mox_status mox_emu_backend_open(mox_gpu_backend **out, int64_t bytes, mox_err *err);
/* The device of such a backend, for tests. */
mox_emu *mox_emu_backend_device(mox_gpu_backend *b);

#endif
