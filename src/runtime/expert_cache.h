/* runtime/expert_cache.h -- the index of the expert cache: which expert is in which slot.
 *
 * Pure logic: no bytes, no files, no threads, no clock.  The store (expert_store.h) moves
 * bytes as the index says; whoever replays a recorded run calls the same functions and gets
 * the same hits, because nothing here depends on how fast anything was.
 *
 * A key is an expert: layer * n_experts + id.  A batch asks for distinct keys at once.
 * Those that are there are touched first, in order; then each of the others gets a slot, in
 * order: a free one, else the policy's victim.  With more keys than slots a victim may be a
 * slot that an earlier key of the same batch got: both then share it, one after the other,
 * and the index says what is in it in the end.  So every key of a batch gets its slot at
 * once, and which one does not depend on the order in which reads end.
 *
 * Only the first n_open slots are used; the others are closed, and hold nothing.
 *
 * I1  slot_of[key] == s exactly when key_of[s] == key.
 * I2  an open slot is either free, or filled and known to the policy. */
#ifndef MOX_RUNTIME_EXPERT_CACHE_H
#define MOX_RUNTIME_EXPERT_CACHE_H

#include "base/err.h"
#include "runtime/policy.h"

#include <stdbool.h>

typedef struct mox_expert_cache {
    int64_t n_keys;
    int32_t n_slots, n_open, n_free;
    const mox_policy *policy;
    void *state;      /* of the policy */
    int32_t *slot_of; /* [n_keys], -1: nowhere */
    int64_t *key_of;  /* [n_slots], -1: free */
    int32_t *free;    /* [n_slots], a stack */
    uint8_t *hold;    /* [n_slots]: MOX_HOLD_ */
    int64_t hits, misses;
} mox_expert_cache;

/* n_keys and n_slots are at least 1. */
mox_status mox_expert_cache_init(mox_expert_cache *c, int64_t n_keys, int32_t n_slots, const mox_policy *policy, mox_err *err);
void mox_expert_cache_deinit(mox_expert_cache *c); /* zeroed storage is fine */
int64_t mox_expert_cache_bytes(int64_t n_keys, int32_t n_slots, const mox_policy *policy); /* that init allocates */

static inline int32_t mox_expert_cache_find(const mox_expert_cache *c, int64_t key) { return c->slot_of[key]; }

/* A batch: slots[i] is where first + ids[i] is or comes to; hit[i] when it was there.
 * Its slots are held until end.  One batch at a time. */
void mox_expert_cache_begin(mox_expert_cache *c, int64_t first, const int32_t *ids, int64_t n, int32_t *slots, bool *hit);
void mox_expert_cache_end(mox_expert_cache *c, const int32_t *slots, int64_t n);

/* Between batches: the last open slot is closed, and what was in it forgotten; at least one
 * stays.  Or one more is open, as far as there are any. */
void mox_expert_cache_close_slot(mox_expert_cache *c);
void mox_expert_cache_open_slot(mox_expert_cache *c);

/* What is in the slot is not what a batch meant to bring there, but key; -1: nothing. */
void mox_expert_cache_correct(mox_expert_cache *c, int32_t slot, int64_t key);

#endif
