/* runtime/expert_store.h -- who has the routed experts.
 *
 * Every expert of every layer is asked for here, by acquire, next and release
 * (dev/dev.h).  Today all of them are resident in the mapped files, so every
 * expert can be handed over at once. */
#ifndef MOX_RUNTIME_EXPERT_STORE_H
#define MOX_RUNTIME_EXPERT_STORE_H

#include "dev/dev.h"
#include "model/model.h"

typedef struct mox_expert_store {
    mox_expert_source source; /* first: the store is its source */
    const mox_model *model;
    /* what is acquired now */
    const mox_expert_weights *experts;
    const int32_t *ids;
    int64_t n_ids, n_given;
    int64_t bytes_used; /* of experts handed out, since the beginning */
} mox_expert_store;

void mox_expert_store_init(mox_expert_store *s, const mox_model *model);

#endif
