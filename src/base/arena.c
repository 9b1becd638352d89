/* base/arena.c -- see arena.h. */
#include "base/arena.h"

#include "base/alloc.h"
#include "base/size.h"

#include <assert.h>
#include <stdlib.h>

void mox_arena_init_measure(mox_arena *a) { *a = (mox_arena){.capacity = SIZE_MAX}; }

mox_status mox_arena_init(mox_arena *a, size_t bytes, mox_err *err)
{
    *a = (mox_arena){0};
    size_t with_slack;
    if (!mox_add_size(bytes, MOX_ARENA_ALIGN, &with_slack))
        return mox_fail_memory(err, bytes, "activations");
    a->base = mox_alloc(with_slack);
    if (!a->base) return mox_fail_memory(err, with_slack, "activations");
    a->capacity = bytes;
    return MOX_OK;
}

void mox_arena_init_at(mox_arena *a, void *memory, size_t bytes)
{
    *a = (mox_arena){.base = memory, .capacity = bytes, .borrowed = true};
}

void mox_arena_deinit(mox_arena *a)
{
    if (!a->borrowed) mox_free(a->base);
    *a = (mox_arena){0};
}

void *mox_arena_take(mox_arena *a, int64_t n, size_t size)
{
    size_t bytes;
    if (n < 0 || !mox_mul_size((size_t)n, size, &bytes) || bytes > SIZE_MAX / 4) abort();
    bytes = (bytes + MOX_ARENA_ALIGN - 1) & ~(size_t)(MOX_ARENA_ALIGN - 1);
    if (bytes > a->capacity - a->used) abort(); /* I1 */
    const size_t at = a->used;
    a->used += bytes;
    if (a->used > a->peak) a->peak = a->used;
    if (!a->base) /* an address that is aligned, not NULL, and never touched */
        return (void *)(uintptr_t)(MOX_ARENA_ALIGN + at);
    const uintptr_t start = ((uintptr_t)a->base + MOX_ARENA_ALIGN - 1) & ~(uintptr_t)(MOX_ARENA_ALIGN - 1);
    return (void *)(start + at);
}
