/* runtime/policy.h -- which expert gives way when another needs its slot.
 *
 * A policy sees slots only: one is filled with a key, used again, emptied.  It keeps its
 * own state in memory that the index (runtime/expert_cache.h) allocates, and has neither
 * clock nor randomness of its own, so that a recorded run can be replayed exactly. */
#ifndef MOX_RUNTIME_POLICY_H
#define MOX_RUNTIME_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mox_policy {
    const char *name;
    size_t (*state_bytes)(int64_t n_keys, int32_t n_slots);
    void (*init)(void *state, int64_t n_keys, int32_t n_slots); /* all slots empty */
    void (*fill)(void *state, int32_t slot, int64_t key);       /* an empty slot gets a key */
    void (*touch)(void *state, int32_t slot, int64_t key);      /* its key was asked for again */
    void (*empty)(void *state, int32_t slot, int64_t key);      /* a filled slot loses its key */
    /* The filled slot that is missed least and not held, or -1; held [n_slots], NULL: none is. */
    int32_t (*victim)(const void *state, const bool *held);
} mox_policy;

extern const mox_policy mox_policy_lru, mox_policy_lfu, mox_policy_2q;

/* All that a store can have, the default first, ended by NULL. */
extern const mox_policy *const mox_policies[];
/* NULL: the default; the result is NULL when there is none of that name. */
const mox_policy *mox_policy_find(const char *name);

#endif
