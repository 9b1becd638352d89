/* text/region.c -- blocks in a list, each filled from its front.
 *
 * I1  used is a multiple of ALIGN, so every piece is aligned.
 */
#include "text/region.h"

#include "base/alloc.h"
#include "base/size.h"

#include <stdint.h>
#include <string.h>

enum { ALIGN = 16, BLOCK_MIN = 1 << 12, BLOCK_MAX = 1 << 20 };

struct mox_region_block {
    mox_region_block *before;
    size_t used, capacity; /* of the bytes behind this header */
};

static const size_t header = (sizeof(mox_region_block) + ALIGN - 1) / ALIGN * ALIGN;

static unsigned char *bytes_of(mox_region_block *b) { return (unsigned char *)b + header; }

void mox_region_deinit(mox_region *r)
{
    while (r->last) {
        mox_region_block *before = r->last->before;
        mox_free(r->last);
        r->last = before;
    }
    r->bytes = 0;
}

static size_t round_up(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

/* Blocks double, so that a small render takes little and a large one few. */
static mox_status add_block(mox_region *r, size_t bytes, mox_err *err)
{
    size_t capacity = r->last ? r->last->capacity * 2 : BLOCK_MIN;
    if (capacity > BLOCK_MAX) capacity = BLOCK_MAX;
    if (capacity < bytes) capacity = bytes;
    size_t total;
    if (!mox_add_size(r->bytes, capacity, &total) || (r->bytes_max > 0 && total > r->bytes_max)) {
        return mox_fail(err, MOX_E_LIMIT, "more than the %zu bytes of memory it may use are needed", r->bytes_max);
    }
    mox_region_block *b = capacity > SIZE_MAX - header ? NULL : mox_alloc(header + capacity);
    if (!b) return mox_fail_memory(err, capacity, "a template");
    *b = (mox_region_block){r->last, 0, capacity};
    r->last = b;
    r->bytes = total;
    return MOX_OK;
}

mox_status mox_region_take(mox_region *r, size_t bytes, void **out, mox_err *err)
{
    *out = NULL;
    if (bytes > SIZE_MAX / 2) return mox_fail_memory(err, bytes, "a template");
    bytes = round_up(bytes);
    if (!r->last || r->last->capacity - r->last->used < bytes) MOX_TRY(add_block(r, bytes, err));
    *out = bytes_of(r->last) + r->last->used;
    r->last->used += bytes;
    return MOX_OK;
}

mox_status mox_region_grow(mox_region *r, void **piece, size_t old_bytes, size_t bytes, mox_err *err)
{
    mox_region_block *b = r->last;
    if (bytes > SIZE_MAX / 2) return mox_fail_memory(err, bytes, "a template");
    const size_t old = round_up(old_bytes), need = round_up(bytes);
    if (need <= old) return MOX_OK;
    if (*piece && b && (unsigned char *)*piece + old == bytes_of(b) + b->used && need - old <= b->capacity - b->used) {
        b->used += need - old;
        return MOX_OK;
    }
    void *larger;
    MOX_TRY(mox_region_take(r, bytes, &larger, err));
    if (old_bytes > 0) memcpy(larger, *piece, old_bytes);
    *piece = larger;
    return MOX_OK;
}
