/* base/arena.h -- bump allocation for the activations of a step.
 *
 * Two modes with one code path.  A measuring arena hands out addresses that must
 * not be touched and remembers the highest mark; running a step through it with
 * a device that computes nothing tells exactly what the step needs.  A backed
 * arena then reserves that much once and serves the same requests for good.
 *
 * I1  a backed arena never grows: asking for more than was measured is a bug.
 */
#ifndef MOX_BASE_ARENA_H
#define MOX_BASE_ARENA_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOX_ARENA_ALIGN = 64 };

typedef struct mox_arena {
    unsigned char *base; /* NULL while measuring */
    size_t capacity;     /* SIZE_MAX while measuring */
    size_t used, peak;
    bool borrowed;
} mox_arena;

void mox_arena_init_measure(mox_arena *a);
mox_status mox_arena_init(mox_arena *a, size_t bytes, mox_err *err);
/* In memory of the caller, aligned, which the arena never touches itself. */
void mox_arena_init_at(mox_arena *a, void *memory, size_t bytes);
void mox_arena_deinit(mox_arena *a); /* zeroed storage is fine */

/* n elements of size bytes, 64-byte aligned, uninitialised.  Never NULL. */
void *mox_arena_take(mox_arena *a, int64_t n, size_t size);
#define MOX_TAKE(arena, type, n) ((type *)mox_arena_take((arena), (n), sizeof(type)))

/* mark/release give back everything taken in between. */
static inline size_t mox_arena_mark(const mox_arena *a) { return a->used; }
static inline void mox_arena_release(mox_arena *a, size_t mark) { a->used = mark; }

#endif
