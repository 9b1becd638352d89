/* runtime/policy_lru.c -- whoever was asked for longest ago gives way.
 *
 * All filled slots are one ring, in the order of their last use.  What a running batch holds was
 * used last, so a victim is found near the beginning. */
#include "runtime/policy.h"
#include "runtime/ring.h"

typedef struct lru {
    int32_t end; /* index of the sentinel */
    mox_ring_link links[];
} lru;

static size_t state_bytes(int64_t n_keys, int32_t n_slots)
{
    (void)n_keys;
    return sizeof(lru) + ((size_t)n_slots + 1) * sizeof(mox_ring_link);
}

static void init(void *state, int64_t n_keys, int32_t n_slots)
{
    (void)n_keys;
    lru *l = state;
    l->end = n_slots;
    mox_ring_clear(l->links, l->end);
}

static void fill(void *state, int32_t slot, int64_t key)
{
    (void)key;
    lru *l = state;
    mox_ring_append(l->links, l->end, slot);
}

static void empty(void *state, int32_t slot, int64_t key)
{
    (void)key;
    lru *l = state;
    mox_ring_cut(l->links, slot);
}

static void touch(void *state, int32_t slot, int64_t key)
{
    empty(state, slot, key);
    fill(state, slot, key);
}

static int32_t victim(const void *state, const bool *held)
{
    const lru *l = state;
    return mox_ring_oldest(l->links, l->end, held);
}

const mox_policy mox_policy_lru = {.name = "lru", .state_bytes = state_bytes, .init = init, .fill = fill, .touch = touch,
                                   .empty = empty, .victim = victim};
