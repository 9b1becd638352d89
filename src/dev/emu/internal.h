/* dev/emu/internal.h -- the device as its two files see it: memory (emu.c) and running (run.c). */
#ifndef MOX_DEV_EMU_INTERNAL_H
#define MOX_DEV_EMU_INTERNAL_H

#include "base/rng.h"
#include "dev/emu/emu.h"
#include "dev/emu/fiber.h"
#include "dev/emu/tile.h"

/* A copy that was begun and not waited for. */
enum { MOX_EMU_COPIES_MAX = 64 };
typedef struct mox_emu_flight {
    const void *to;
    const void *from; /* NULL: zeros */
    size_t bytes;
    int32_t batch;
} mox_emu_flight;

typedef struct mox_emu_block {
    size_t at, bytes; /* at is a multiple of MOX_EMU_PAGE */
    void *host;       /* the memory that it shows; NULL: none */
} mox_emu_block;

/* A thread of the group that runs. */
typedef struct mox_emu_thread {
    mox_fiber fiber;
    bool begun;
    int32_t stack; /* which it has */
    mox_emu_wait wait;
    const char *site; /* where it waits */
    uint32_t bits;    /* what it brings to a lane operation, then what it takes away */
    int32_t lane;
    const mox_emu_tile_a *a; /* what it brings to a tile product */
    const mox_emu_tile_b *b;
    mox_emu_tile_c *c;
    const uint32_t *fragments; /* what it brings to a product of fragments: a0 to a3, b0 and b1 */
    float *sums;
    mox_emu_flight copies[MOX_EMU_COPIES_MAX];
    int32_t n_copies, n_batches;
} mox_emu_thread;

typedef struct mox_emu_array {
    const char *site;
    size_t at, bytes;
} mox_emu_array;

struct mox_emu {
    mox_emu_run run; /* first: the launch of a device is one of these */
    size_t bytes;
    uint16_t *page_bytes;
    mox_emu_block *blocks; /* ascending, never adjacent: a page of nothing is between them */
    int64_t n_blocks, blocks_capacity;
    mox_emu_order order;
    mox_rng rng;

    unsigned char *stacks; /* [MOX_EMU_THREADS_MAX][stack bytes] */
    int32_t *free_stacks;
    int32_t n_free_stacks;
    mox_emu_thread *threads; /* [MOX_EMU_THREADS_MAX] */
    int32_t *turn;           /* [MOX_EMU_THREADS_MAX], the order of a round */
    int32_t n_threads;
    mox_fiber host; /* who runs the launch */
    bool was_hasty; /* the launch in front */
    const mox_emu_kernel *kernel;
    const void *params;

    uint8_t array_of[MOX_EMU_SHARED_BYTES / 2];
    mox_emu_array arrays[MOX_EMU_ARRAYS_MAX];
    int32_t n_arrays;
    size_t shared_used; /* with gaps */

    mox_emu_fault fault;
    char sentence[200];
};

/* tile.c: results of a wave whose lanes are all there. */
void mox_emu_finish_mma(mox_emu_thread *wave);
void mox_emu_finish_fragments(mox_emu_thread *wave);
void mox_emu_finish_row(mox_emu_thread *wave, bool is_sum);

/* run.c: what running needs, reserved once. */
mox_status mox_emu_run_init(mox_emu *e, mox_err *err);
void mox_emu_run_deinit(mox_emu *e);

#endif
