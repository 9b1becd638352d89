/* text/region.h -- memory for things that live and die together.
 *
 * Pieces are taken one by one and given back all at once.  A region has a limit
 * in bytes; what it may hold is the caller's decision, not the system's.
 *
 * Owns: its blocks, from base/alloc.   A zeroed region is empty and has no limit. */
#ifndef MOX_TEXT_REGION_H
#define MOX_TEXT_REGION_H

#include "base/err.h"

#include <stddef.h>

typedef struct mox_region_block mox_region_block;

typedef struct mox_region {
    mox_region_block *last;
    size_t bytes;     /* of all blocks */
    size_t bytes_max; /* 0: no limit */
} mox_region;

void mox_region_deinit(mox_region *r);

/* bytes of uninitialised memory, aligned for any type.  Fails with MOX_E_MEMORY, or
 * with MOX_E_LIMIT when the region would pass its limit. */
mox_status mox_region_take(mox_region *r, size_t bytes, void **out, mox_err *err);

/* Makes a piece of old_bytes larger, in place when it was the last one taken. */
mox_status mox_region_grow(mox_region *r, void **piece, size_t old_bytes, size_t bytes, mox_err *err);

#endif
