/* base/numa.h -- memory of machines with several memory nodes.
 *
 * Weights and caches are read by all threads, so their pages are dealt out to all nodes
 * in turn: every thread then sees the mean bandwidth, and no node is the bottleneck. */
#ifndef MOX_BASE_NUMA_H
#define MOX_BASE_NUMA_H

#include "base/machine.h"

#include <stddef.h>

/* Pages of [p, p + bytes) that are not there yet will come from the nodes in turn; p is
 * the start of a page.  False, and nothing changes, when the system refuses. */
bool mox_numa_interleave_over(void *p, size_t bytes, const mox_id_set *nodes);

/* The same over all nodes that the process may use, when there are several and nobody
 * has given the process a policy of its own. */
void mox_numa_interleave(void *p, size_t bytes);

#endif
