/* runtime/ring.h -- slots in the order in which they came, for the policies of the expert cache.
 *
 * A ring is a row of links through a sentinel: behind the sentinel comes whoever has been there
 * longest, before it whoever came last.  Links are an array of slots followed by sentinels, so that
 * several rings share one array and moving a slot between them is a cut and an append.  A slot
 * is in one ring at most. */
#ifndef MOX_RUNTIME_RING_H
#define MOX_RUNTIME_RING_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mox_ring_link {
    int32_t newer, older;
} mox_ring_link;

static inline void mox_ring_clear(mox_ring_link *links, int32_t end)
{
    links[end] = (mox_ring_link){.newer = end, .older = end};
}

/* Of a slot that is in no ring. */
static inline void mox_ring_append(mox_ring_link *links, int32_t end, int32_t slot)
{
    const int32_t last = links[end].older;
    links[slot] = (mox_ring_link){.newer = end, .older = last};
    links[last].newer = slot;
    links[end].older = slot;
}

static inline void mox_ring_cut(mox_ring_link *links, int32_t slot)
{
    const mox_ring_link at = links[slot];
    links[at.newer].older = at.older;
    links[at.older].newer = at.newer;
}

/* Whoever has been there longest and is not held (NULL: nobody is), or -1. */
static inline int32_t mox_ring_oldest(const mox_ring_link *links, int32_t end, const bool *held)
{
    for (int32_t s = links[end].newer; s != end; s = links[s].newer)
        if (!held || !held[s]) return s;
    return -1;
}

#endif
