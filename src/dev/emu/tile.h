/* dev/emu/tile.h -- products of numbers that a wave holds, and copies that take their time.
 *
 * A lane holds eight numbers of a tile: which, say mox_emu_tile_row and mox_emu_tile_col, alike
 * for both operands and the result.  A product is exact but for one rounding of each sum. */
#ifndef MOX_DEV_EMU_TILE_H
#define MOX_DEV_EMU_TILE_H

#include "dev/emu/access.h"

typedef struct mox_emu_tile_a { uint16_t h[8]; } mox_emu_tile_a; /* A[row, col] */
typedef struct mox_emu_tile_b { uint16_t h[8]; } mox_emu_tile_b; /* B[row, col] */
typedef struct mox_emu_tile_c { float v[8]; } mox_emu_tile_c;

/* What the language promises: numbers 2 i and 2 i + 1 are neighbours, bit 1 chooses one of the
 * lane's two rows.  Four lanes share a row; which, is nobody's business. */
static inline int32_t mox_emu_tile_spot(int32_t lane) { return (lane * 5 + 3) & 31; }
static inline int32_t mox_emu_tile_row(int32_t lane, int32_t i) { return (mox_emu_tile_spot(lane) & 7) + (i & 2) * 4; }
static inline int32_t mox_emu_tile_col(int32_t lane, int32_t i)
{
    return (mox_emu_tile_spot(lane) >> 3) * 2 + (i & 1) + (i & 4) * 2;
}

/* dev/emu/tile.c.  c += a b, by the whole wave. */
void mox_emu_mma(mox_emu_tile_c *c, mox_emu_tile_a a, mox_emu_tile_b b, const char *site);

/* The same for gpu_mma: fragments are a0 to a3, b0 and b1. */
void mox_emu_mma_fragments(float *c, const uint32_t fragments[6], const char *site);

/* 16 bytes of global memory (or zeros) on their way to shared memory. */
void mox_emu_copy_quad(const void *to, const void *from, bool there, const char *site);
void mox_emu_copy_pair(const void *to, const void *from, const char *site);
void mox_emu_copy_commit(void);
void mox_emu_copy_wait(int32_t n, const char *site); /* for all but the last n batches of this thread */

#endif
