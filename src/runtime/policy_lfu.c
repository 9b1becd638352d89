/* runtime/policy_lfu.c -- whoever was asked for least often gives way; old times count less.
 *
 * Every key has a count, also while it is in no slot: experts are few, and one that comes
 * back is not a stranger.  After DECAY uses per slot all counts are halved, so that what was
 * hot in another conversation does not stay for ever.
 *
 * Filled slots with the same count are a ring through a sentinel of their own, in the order in
 * which they got there; a victim is looked for from the lowest count up.  Halving puts every
 * ring behind the one of half its count and touches no slot: a key carries the number of
 * halvings that its count has seen, and is brought up to date when it is used.  That is
 * COUNTS steps after at least COUNTS uses.
 *
 * I1  a filled slot is in the ring of its key's count, brought up to date.
 * I2  the rings one after the other are an order of slots that halving does not change. */
#include "runtime/policy.h"
#include "runtime/ring.h"

enum { COUNTS = 256, DECAY = 16 };

typedef struct key_count {
    uint32_t count, n_halvings; /* count is that of the time when there had been n_halvings */
} key_count;

typedef struct lfu {
    int32_t n_slots;
    uint32_t n_halvings;
    int64_t n_uses, period; /* uses since the last halving; those between two */
    key_count *keys;        /* [n_keys], behind the links */
    mox_ring_link links[];  /* [n_slots], then a sentinel for each count */
} lfu;

static size_t links_bytes(int32_t n_slots) { return sizeof(lfu) + ((size_t)n_slots + COUNTS) * sizeof(mox_ring_link); }

static size_t state_bytes(int64_t n_keys, int32_t n_slots)
{
    return links_bytes(n_slots) + (size_t)n_keys * sizeof(key_count);
}

static void init(void *state, int64_t n_keys, int32_t n_slots)
{
    lfu *l = state;
    *l = (lfu){.n_slots = n_slots, .period = (int64_t)DECAY * n_slots};
    if (l->period < COUNTS) l->period = COUNTS;
    l->keys = (key_count *)(void *)((char *)state + links_bytes(n_slots));
    for (int64_t k = 0; k < n_keys; k++) l->keys[k] = (key_count){0};
    for (int32_t c = 0; c < COUNTS; c++) mox_ring_clear(l->links, n_slots + c);
}

static void halve(lfu *l)
{
    for (int32_t c = 1; c < COUNTS; c++) {
        const int32_t end = l->n_slots + c, half = l->n_slots + c / 2;
        const mox_ring_link from = l->links[end];
        if (from.newer == end) continue;
        const int32_t last = l->links[half].older;
        l->links[last].newer = from.newer;
        l->links[from.newer].older = last;
        l->links[from.older].newer = half;
        l->links[half].older = from.older;
        mox_ring_clear(l->links, end);
    }
    l->n_halvings++;
}

/* Counts a use and returns the count. */
static int32_t use(lfu *l, int64_t key)
{
    if (++l->n_uses > l->period) {
        halve(l);
        l->n_uses = 1;
    }
    key_count *k = &l->keys[key];
    const uint32_t missed = l->n_halvings - k->n_halvings;
    k->count = missed < 32 ? k->count >> missed : 0;
    k->n_halvings = l->n_halvings;
    if (k->count < COUNTS - 1) k->count++;
    return (int32_t)k->count;
}

static void fill(void *state, int32_t slot, int64_t key)
{
    lfu *l = state;
    mox_ring_append(l->links, l->n_slots + use(l, key), slot);
}

static void empty(void *state, int32_t slot, int64_t key)
{
    (void)key;
    lfu *l = state;
    mox_ring_cut(l->links, slot);
}

static void touch(void *state, int32_t slot, int64_t key)
{
    empty(state, slot, key);
    fill(state, slot, key);
}

static int32_t victim(const void *state, const bool *held)
{
    const lfu *l = state;
    int32_t slot = -1;
    for (int32_t c = 0; c < COUNTS && slot < 0; c++) slot = mox_ring_oldest(l->links, l->n_slots + c, held);
    return slot;
}

const mox_policy mox_policy_lfu = {.name = "lfu", .state_bytes = state_bytes, .init = init, .fill = fill, .touch = touch,
                                   .empty = empty, .victim = victim};
