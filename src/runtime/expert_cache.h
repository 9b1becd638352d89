/* runtime/expert_cache.h -- the index of the expert cache: which expert is in which slot.
 *
 * Pure logic: no bytes, no files, no threads, no clock.  The store (expert_store.h) moves
 * bytes as the index says; whoever replays a recorded run calls the same functions and gets
 * the same hits, because nothing here depends on how fast anything was.  All that changes an
 * index are begin, take, drop and resize, and each of them tells the trace.
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
#include "moxie.h"
#include "runtime/policy.h"

/* Called before each change, with what it is: a batch as in begin, a single key,
 * first + ids[0], or for MOX_TRACE_SLOTS the number n of those that will be open. */
typedef void mox_expert_cache_fn(void *user, mox_trace_kind what, int64_t first, const int32_t *ids, int64_t n);

typedef struct mox_expert_cache {
    int64_t n_keys;
    int32_t n_slots, n_open, n_free;
    const mox_policy *policy;
    void *state;      /* of the policy */
    int32_t *slot_of; /* [n_keys], -1: nowhere */
    int64_t *key_of;  /* [n_slots], -1: free */
    int32_t *free;    /* [n_slots], a stack */
    bool *held;       /* [n_slots]: the last batch asked for what is in it, or it was taken since */
    int64_t hits, misses;
    mox_expert_cache_fn *trace; /* may be NULL */
    void *trace_user;
} mox_expert_cache;

/* n_keys and n_slots are at least 1. */
mox_status mox_expert_cache_init(mox_expert_cache *c, int64_t n_keys, int32_t n_slots, const mox_policy *policy, mox_err *err);
void mox_expert_cache_deinit(mox_expert_cache *c); /* zeroed storage is fine */
int64_t mox_expert_cache_bytes(int64_t n_keys, int32_t n_slots, const mox_policy *policy); /* that init allocates */

static inline int32_t mox_expert_cache_find(const mox_expert_cache *c, int64_t key) { return c->slot_of[key]; }

/* A batch: slots[i] is where first + ids[i] is or comes to; hit[i] when it was there.
 * Its slots are held until the next batch begins. */
void mox_expert_cache_begin(mox_expert_cache *c, int64_t first, const int32_t *ids, int64_t n, int32_t *slots, bool *hit);

/* A slot for a key that is not there and that nobody has asked for yet, from what is not held; or -1.
 * It is held, too, until the next batch begins: what is read ahead does not give way to its like. */
int32_t mox_expert_cache_take(mox_expert_cache *c, int64_t key);

/* A key that is there did not come after all; its slot is free. */
void mox_expert_cache_drop(mox_expert_cache *c, int64_t key);

/* Between batches: the first n_open slots are in use, at least one; what was in the others is
 * forgotten. */
void mox_expert_cache_resize(mox_expert_cache *c, int32_t n_open);

#endif
