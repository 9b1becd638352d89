/* tools/belady.c -- see belady.h.
 *
 * Filled slots are a heap, the one that is wanted latest on top.  Looking for a victim goes
 * down from the top past slots that are held, and only there.
 *
 * I1  heap[place[s]] == s for every filled slot s.
 * I2  no slot of the heap is wanted later than the one above it. */
#include "tools/belady.h"

typedef struct belady {
    int32_t n;          /* filled slots */
    int64_t *next;      /* [n_keys]: when a key is wanted after this batch */
    int64_t *when;      /* [n_slots]: the same of what is in it */
    int32_t *heap;      /* [n_slots] */
    int32_t *place;     /* [n_slots] */
} belady;

static size_t state_bytes(int64_t n_keys, int32_t n_slots)
{
    return sizeof(belady) + (size_t)n_keys * sizeof(int64_t) + (size_t)n_slots * (sizeof(int64_t) + 2 * sizeof(int32_t));
}

static void init(void *state, int64_t n_keys, int32_t n_slots)
{
    belady *b = state;
    *b = (belady){.next = (int64_t *)(void *)(b + 1)};
    b->when = b->next + n_keys;
    b->heap = (int32_t *)(void *)(b->when + n_slots);
    b->place = b->heap + n_slots;
    for (int64_t k = 0; k < n_keys; k++) b->next[k] = MOX_BELADY_NEVER;
}

void mox_belady_foresee(void *state, int64_t key, int64_t when) { ((belady *)state)->next[key] = when; }

bool mox_belady_prefers(const void *state, int64_t key, int32_t slot)
{
    const belady *b = state;
    return b->next[key] < b->when[slot];
}

static void put(belady *b, int32_t at, int32_t slot)
{
    b->heap[at] = slot;
    b->place[slot] = at;
}

/* Brings a slot from `at`, where there is nothing else, to where it belongs. */
static void settle(belady *b, int32_t at, int32_t slot)
{
    for (int32_t up; at > 0 && b->when[b->heap[up = (at - 1) / 2]] < b->when[slot]; at = up) put(b, at, b->heap[up]);
    for (int32_t down; (down = 2 * at + 1) < b->n; at = down) {
        if (down + 1 < b->n && b->when[b->heap[down + 1]] > b->when[b->heap[down]]) down++;
        if (b->when[b->heap[down]] <= b->when[slot]) break;
        put(b, at, b->heap[down]);
    }
    put(b, at, slot);
}

static void fill(void *state, int32_t slot, int64_t key)
{
    belady *b = state;
    b->when[slot] = b->next[key];
    settle(b, b->n++, slot);
}

static void touch(void *state, int32_t slot, int64_t key)
{
    belady *b = state;
    b->when[slot] = b->next[key];
    settle(b, b->place[slot], slot);
}

static void empty(void *state, int32_t slot, int64_t key)
{
    (void)key;
    belady *b = state;
    const int32_t at = b->place[slot], last = b->heap[--b->n];
    if (last != slot) settle(b, at, last);
}

/* Of the slots from `at` down, and found: the one that is wanted latest and not held. */
static int32_t latest(const belady *b, int32_t at, const bool *held, int32_t found)
{
    if (at >= b->n) return found;
    const int32_t slot = b->heap[at];
    if (found >= 0 && b->when[slot] <= b->when[found]) return found;
    if (!held || !held[slot]) return slot;
    found = latest(b, 2 * at + 1, held, found);
    return latest(b, 2 * at + 2, held, found);
}

static int32_t victim(const void *state, const bool *held) { return latest(state, 0, held, -1); }

const mox_policy mox_policy_belady = {.name = "belady", .state_bytes = state_bytes, .init = init, .fill = fill, .touch = touch,
                                      .empty = empty, .victim = victim};
