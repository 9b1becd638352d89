/* dev/emu/emu.h -- a GPU that is not there: memory of its own, and kernels of dev/gpu run on
 * the processor, thread by thread, with every rule of the language checked.
 *
 * Owns:    the device memory, its shadow, the stacks of threads.
 * Threads: one launch at a time per device; several devices may run side by side.
 *
 * Threads of a group are fibers.  Each runs until it waits at a barrier or a lane operation;
 * when all that must be there are, they go on.  The order in which they run, and the order of
 * the groups, can be turned round or shuffled: a kernel that keeps the rules cannot tell.
 *
 * Addresses of device memory are no addresses of the process.  Data goes in and out by
 * upload and download. */
#ifndef MOX_DEV_EMU_EMU_H
#define MOX_DEV_EMU_EMU_H

#include "base/err.h"
#include "dev/emu/access.h"

typedef struct mox_emu mox_emu;

typedef enum mox_emu_order { MOX_EMU_FORWARD = 0, MOX_EMU_REVERSE, MOX_EMU_SHUFFLED } mox_emu_order;

/* A device with `bytes` of memory.  Eight times as much address space holds the shadow; only
 * what is touched of either counts. */
mox_status mox_emu_create(mox_emu **out, int64_t bytes, mox_err *err);
void mox_emu_destroy(mox_emu **e); /* NULL-safe */

/* The order of the launches to come; the seed is for SHUFFLED. */
void mox_emu_set_order(mox_emu *e, mox_emu_order order, uint64_t seed);

/* Device memory, full of NaNs.  MOX_E_MEMORY when there is no room. */
mox_status mox_emu_alloc(mox_emu *e, int64_t bytes, void **out, mox_err *err);
void mox_emu_free(mox_emu *e, void *p); /* NULL is fine */
/* Memory of the host that launches see, until it is freed: to be given back before the host's. */
mox_status mox_emu_show(mox_emu *e, void *host, int64_t bytes, void **out, mox_err *err);
/* What is shown goes to the device, as it has to before launches, or back to the host. */
void mox_emu_exchange(mox_emu *e, bool to_host);
/* MOX_E_DEVICE when [p, p + bytes) is not inside one allocation. */
mox_status mox_emu_upload(mox_emu *e, void *p, const void *from, int64_t bytes, mox_err *err);
mox_status mox_emu_download(mox_emu *e, void *to, const void *p, int64_t bytes, mox_err *err);
mox_status mox_emu_copy(mox_emu *e, void *to, const void *from, int64_t bytes, mox_err *err); /* no overlap */
mox_status mox_emu_zero(mox_emu *e, void *p, int64_t bytes, mox_err *err);
int64_t mox_emu_used(const mox_emu *e); /* bytes, in whole pages, but for what is shown */

/* Runs the grid to its end.  params are params_bytes of the kernel.  A broken rule ends the
 * launch with MOX_E_DEVICE and a sentence that names kernel, group, thread and source line;
 * the memory is then what it was at that moment. */
mox_status mox_emu_launch(mox_emu *e, const mox_emu_kernel *kernel, const int64_t groups[3], const void *params, mox_err *err);
/* What ended the last launch. */
mox_emu_fault mox_emu_last_fault(const mox_emu *e);

#endif
