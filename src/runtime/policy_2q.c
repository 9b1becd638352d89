/* runtime/policy_2q.c -- newcomers are on probation (Johnson and Shasha's 2Q).
 *
 * A key that comes is put in the first queue, which is left in the order of coming, however
 * often the key is used there.  Whoever is asked for again soon after leaving it has proved
 * itself and comes back to the second queue, from which the one that was used longest ago
 * gives way.  So experts that are needed once do not drive out those that are needed always.
 *
 * ARC, which shifts the border between its queues as it goes, wants to know who comes before
 * it says who gives way; this one does not, as the index asks, and has nothing that has to
 * settle.  The border is the authors': a quarter of the slots for the first queue, and half
 * as many keys as slots remembered after they left it.
 *
 * I1  a filled slot is in one of the queues, and n_first of them in the first. */
#include "runtime/policy.h"
#include "runtime/ring.h"

typedef struct two_queues {
    int32_t n_slots, n_first;
    int32_t most_first;  /* slots that the first queue may keep when others are wanted */
    int64_t n_left;      /* keys that have left the first queue, in all */
    int64_t remembered;  /* of those, the last ones that are known */
    int64_t *left_at;    /* [n_keys], behind the links: n_left when it left; 0: never, or it is back */
    bool *second;        /* [n_slots], behind those: in the second queue */
    mox_ring_link links[]; /* [n_slots], then the sentinels of the queues */
} two_queues;

static size_t links_bytes(int32_t n_slots) { return sizeof(two_queues) + ((size_t)n_slots + 2) * sizeof(mox_ring_link); }

static size_t state_bytes(int64_t n_keys, int32_t n_slots)
{
    return links_bytes(n_slots) + (size_t)n_keys * sizeof(int64_t) + (size_t)n_slots * sizeof(bool);
}

static void init(void *state, int64_t n_keys, int32_t n_slots)
{
    two_queues *q = state;
    *q = (two_queues){.n_slots = n_slots, .most_first = n_slots / 4, .remembered = n_slots > 1 ? n_slots / 2 : 1};
    q->left_at = (int64_t *)(void *)((char *)state + links_bytes(n_slots));
    q->second = (bool *)(q->left_at + n_keys);
    for (int64_t k = 0; k < n_keys; k++) q->left_at[k] = 0;
    for (int32_t i = 0; i < 2; i++) mox_ring_clear(q->links, n_slots + i);
}

static void append(two_queues *q, int32_t slot, bool second)
{
    q->second[slot] = second;
    mox_ring_append(q->links, q->n_slots + second, slot);
}

static void fill(void *state, int32_t slot, int64_t key)
{
    two_queues *q = state;
    const bool known = q->left_at[key] > 0 && q->n_left - q->left_at[key] < q->remembered;
    q->left_at[key] = 0;
    q->n_first += !known;
    append(q, slot, known);
}

static void touch(void *state, int32_t slot, int64_t key)
{
    (void)key;
    two_queues *q = state;
    if (!q->second[slot]) return;
    mox_ring_cut(q->links, slot);
    append(q, slot, true);
}

static void empty(void *state, int32_t slot, int64_t key)
{
    two_queues *q = state;
    mox_ring_cut(q->links, slot);
    if (q->second[slot]) return;
    q->n_first--;
    q->left_at[key] = ++q->n_left;
}

static int32_t victim(const void *state, const bool *held)
{
    const two_queues *q = state;
    const int32_t from = q->n_slots + (q->n_first <= q->most_first), other = 2 * q->n_slots + 1 - from;
    const int32_t slot = mox_ring_oldest(q->links, from, held);
    return slot >= 0 ? slot : mox_ring_oldest(q->links, other, held);
}

const mox_policy mox_policy_2q = {.name = "2q", .state_bytes = state_bytes, .init = init, .fill = fill, .touch = touch,
                                  .empty = empty, .victim = victim};
