/* runtime/expert_host.h -- experts that the processor computes for a device which does not have them.
 *
 * The operations are those of the processor as a device, on rows in memory of the host; who has the experts
 * is said by the source.
 *
 * Owns:    that device with its threads, and scratch for a few tokens.     Borrows: the model.
 * Threads: that of the step; the device's own inside of compute.
 * Memory:  everything is reserved by init. */
#ifndef MOX_RUNTIME_EXPERT_HOST_H
#define MOX_RUNTIME_EXPERT_HOST_H

#include "base/arena.h"
#include "dev/dev.h"
#include "model/model.h"

typedef struct mox_expert_host {
    const mox_model *model; /* NULL: there is none */
    mox_dev *cpu;
    mox_arena arena;
} mox_expert_host;

/* n_threads and pin of opts. */
mox_status mox_expert_host_init(mox_expert_host *h, const mox_model *m, const mox_context_opts *opts, mox_precision precision, mox_err *err);
void mox_expert_host_deinit(mox_expert_host *h); /* zeroed storage is fine */
int64_t mox_expert_host_bytes(const mox_model *m); /* that init takes beside its threads */

/* At most MOX_DEV_TOGETHER tokens. */
mox_status mox_expert_host_compute(mox_expert_host *h, mox_expert_source *source, const mox_cold_args *a, mox_err *err);

#endif
