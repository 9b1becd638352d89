/* runtime/policy_lru.c -- whoever was asked for longest ago gives way.
 *
 * The filled slots are a ring of two links each through a sentinel; behind it comes the
 * slot that was used last, before it the one that was used longest ago.  What a running
 * batch holds was used last, so a victim is found near the end. */
#include "runtime/policy.h"

typedef struct link {
    int32_t newer, older;
} link;

typedef struct lru {
    int32_t end; /* index of the sentinel */
    link links[];
} lru;

static size_t state_bytes(int64_t n_keys, int32_t n_slots)
{
    (void)n_keys;
    return sizeof(lru) + ((size_t)n_slots + 1) * sizeof(link);
}

static void init(void *state, int64_t n_keys, int32_t n_slots)
{
    (void)n_keys;
    lru *l = state;
    l->end = n_slots;
    l->links[n_slots] = (link){.newer = n_slots, .older = n_slots};
}

static void fill(void *state, int32_t slot, int64_t key)
{
    (void)key;
    lru *l = state;
    link *end = &l->links[l->end];
    l->links[slot] = (link){.newer = l->end, .older = end->older};
    l->links[end->older].newer = slot;
    end->older = slot;
}

static void empty(void *state, int32_t slot, int64_t key)
{
    (void)key;
    lru *l = state;
    const link at = l->links[slot];
    l->links[at.newer].older = at.older;
    l->links[at.older].newer = at.newer;
}

static void touch(void *state, int32_t slot, int64_t key)
{
    empty(state, slot, key);
    fill(state, slot, key);
}

static int32_t victim(const void *state, const bool *held)
{
    const lru *l = state;
    for (int32_t s = l->links[l->end].newer; s != l->end; s = l->links[s].newer)
        if (!held || !held[s]) return s;
    return -1;
}

const mox_policy mox_policy_lru = {.name = "lru", .state_bytes = state_bytes, .init = init, .fill = fill, .touch = touch,
                                   .empty = empty, .victim = victim};
