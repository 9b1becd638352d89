/* runtime/expert_cache.c -- see expert_cache.h. */
#include "runtime/expert_cache.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

int64_t mox_expert_cache_bytes(int64_t n_keys, int32_t n_slots, const mox_policy *policy)
{
    const mox_expert_cache *c = NULL;
    return n_keys * (int64_t)sizeof *c->slot_of +
           n_slots * (int64_t)(sizeof *c->key_of + sizeof *c->free + sizeof *c->held) +
           (int64_t)policy->state_bytes(n_keys, n_slots);
}

mox_status mox_expert_cache_init(mox_expert_cache *c, int64_t n_keys, int32_t n_slots, const mox_policy *policy, mox_err *err)
{
    assert(n_keys > 0 && n_slots > 0);
    *c = (mox_expert_cache){.n_keys = n_keys, .n_slots = n_slots, .n_open = n_slots, .n_free = n_slots, .policy = policy};
    c->slot_of = mox_alloc_array((size_t)n_keys, sizeof *c->slot_of);
    c->key_of = mox_alloc_array((size_t)n_slots, sizeof *c->key_of);
    c->free = mox_alloc_array((size_t)n_slots, sizeof *c->free);
    c->held = mox_alloc_array((size_t)n_slots, sizeof *c->held);
    c->state = mox_alloc_array(1, policy->state_bytes(n_keys, n_slots));
    if (!c->slot_of || !c->key_of || !c->free || !c->held || !c->state) {
        mox_expert_cache_deinit(c);
        return mox_fail_memory(err, (size_t)mox_expert_cache_bytes(n_keys, n_slots, policy), "the index of experts");
    }
    for (int64_t k = 0; k < n_keys; k++) c->slot_of[k] = -1;
    for (int32_t s = 0; s < n_slots; s++) {
        c->key_of[s] = -1;
        c->free[s] = n_slots - 1 - s; /* low slots first */
    }
    policy->init(c->state, n_keys, n_slots);
    return MOX_OK;
}

void mox_expert_cache_deinit(mox_expert_cache *c)
{
    mox_free(c->slot_of);
    mox_free(c->key_of);
    mox_free(c->free);
    mox_free(c->held);
    mox_free(c->state);
    *c = (mox_expert_cache){0};
}

static void empty(mox_expert_cache *c, int32_t slot)
{
    const int64_t key = c->key_of[slot];
    c->policy->empty(c->state, slot, key);
    c->slot_of[key] = -1;
    c->key_of[slot] = -1;
}

static void fill(mox_expert_cache *c, int32_t slot, int64_t key)
{
    c->key_of[slot] = key;
    c->slot_of[key] = slot;
    c->policy->fill(c->state, slot, key);
}

/* An empty slot that is nowhere else: a free one, else one that is not held; or -1. */
static int32_t clear_slot(mox_expert_cache *c, const bool *held)
{
    if (c->n_free > 0) return c->free[--c->n_free];
    const int32_t slot = c->policy->victim(c->state, held);
    if (slot >= 0) empty(c, slot);
    return slot;
}

void mox_expert_cache_begin(mox_expert_cache *c, int64_t first, const int32_t *ids, int64_t n, int32_t *slots, bool *hit)
{
    if (c->trace) c->trace(c->trace_user, MOX_TRACE_BATCH, first, ids, n);
    memset(c->held, 0, (size_t)c->n_slots * sizeof *c->held);
    for (int64_t i = 0; i < n; i++) {
        const int64_t key = first + ids[i];
        slots[i] = c->slot_of[key];
        hit[i] = slots[i] >= 0;
        if (!hit[i]) continue;
        c->policy->touch(c->state, slots[i], key);
        c->held[slots[i]] = true;
        c->hits++;
    }
    for (int64_t i = 0; i < n; i++) {
        if (hit[i]) continue;
        int32_t slot = clear_slot(c, c->held);
        if (slot < 0) slot = clear_slot(c, NULL); /* shared with an earlier one of the batch */
        fill(c, slot, first + ids[i]);
        c->held[slot] = true;
        slots[i] = slot;
        c->misses++;
    }
}

int32_t mox_expert_cache_take(mox_expert_cache *c, int64_t key)
{
    assert(c->slot_of[key] < 0);
    const int32_t slot = clear_slot(c, c->held);
    if (slot < 0) return slot;
    if (c->trace) c->trace(c->trace_user, MOX_TRACE_AHEAD, key, &(int32_t){0}, 1);
    fill(c, slot, key);
    c->held[slot] = true; /* the next one must not take it: it is not yet known to be used */
    return slot;
}

void mox_expert_cache_drop(mox_expert_cache *c, int64_t key)
{
    const int32_t slot = c->slot_of[key];
    assert(slot >= 0);
    if (c->trace) c->trace(c->trace_user, MOX_TRACE_LOST, key, &(int32_t){0}, 1);
    empty(c, slot);
    c->held[slot] = false;
    c->free[c->n_free++] = slot;
}

static void close_last(mox_expert_cache *c)
{
    const int32_t slot = --c->n_open;
    if (c->key_of[slot] >= 0) {
        empty(c, slot);
        return;
    }
    int32_t at = 0;
    while (c->free[at] != slot) at++; /* I2: it is there */
    c->n_free--;
    for (; at < c->n_free; at++) c->free[at] = c->free[at + 1];
}

void mox_expert_cache_resize(mox_expert_cache *c, int32_t n_open)
{
    assert(n_open >= 1 && n_open <= c->n_slots);
    if (n_open == c->n_open) return;
    if (c->trace) c->trace(c->trace_user, MOX_TRACE_SLOTS, 0, NULL, n_open);
    while (c->n_open > n_open) close_last(c);
    while (c->n_open < n_open) c->free[c->n_free++] = c->n_open++;
}
