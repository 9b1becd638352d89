/* runtime/expert_store.h -- who has the routed experts.
 *
 * Every expert of every layer is asked for here, by acquire, next and release (dev/dev.h).
 * Either all of them are where the model's files are mapped, and each can be handed over at
 * once, or they come and go in slots (expert_stream.h).  The bytes are the same.  When memory
 * becomes short for others (pressure.h), slots are given up, and taken again afterwards. */
#ifndef MOX_RUNTIME_EXPERT_STORE_H
#define MOX_RUNTIME_EXPERT_STORE_H

#include "dev/dev.h"
#include "model/model.h"
#include "runtime/expert_stream.h"
#include "runtime/pressure.h"

typedef struct mox_expert_store {
    mox_expert_source source; /* first: the store is its source */
    const mox_model *model;
    mox_expert_stream *stream; /* NULL: experts are mapped */
    mox_pressure pressure;
    bool pinned; /* by a device, for all of them: slots stay where they are */
    bool not_pinned; /* a device could not */
    mox_trace_fn *trace;
    void *trace_user;
    /* mapped: what is acquired now */
    const mox_expert_weights *experts;
    const int32_t *ids;
    int64_t n_ids, n_given;
    int64_t bytes_used; /* of experts handed out, since the beginning */
} mox_expert_store;

mox_status mox_expert_store_init(mox_expert_store *s, const mox_model *model, const mox_context_opts *opts, mox_err *err);
/* Between acquire and release: how many experts next would hand over without waiting. */
int64_t mox_expert_store_ready(mox_expert_store *s);
/* Whether it has an expert, or will have it without being asked. */
bool mox_expert_store_has(const mox_expert_store *s, int64_t key);
/* Between batches: looks at times whether memory is short. */
void mox_expert_store_adapt(mox_expert_store *s);
void mox_expert_store_deinit(mox_expert_store *s); /* zeroed storage is fine */

#endif
