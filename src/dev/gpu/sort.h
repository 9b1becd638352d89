/* dev/gpu/sort.h -- sorting many pairs (token, slot) by expert, and cutting them into tiles.
 *
 * A group per expert counts the pairs of smaller experts, so it knows where its own begin without
 * a word from the others; its threads take pieces of the pairs in order, so the sort is stable. */
#ifndef MOX_DEV_GPU_SORT_H
#define MOX_DEV_GPU_SORT_H

#include "dev/gpu/number.h"

enum { SORT_THREADS = 256 };

/* Sum of counts below thread. */
GPU_FN int32_t sum_before(const GPU_SHARED(i32) *counts, int32_t thread)
{
    int32_t sum = 0;
    for (int32_t i = 0; i < thread; i++) sum += gpu_load(counts, i);
    return sum;
}

GPU_KERNEL(moe_sort, SORT_THREADS)
{
    GPU_SHARED_ARRAY(i32, smaller, SORT_THREADS);
    GPU_SHARED_ARRAY(i32, equal, SORT_THREADS);
    const int32_t thread = gpu_thread();
    const int64_t expert = gpu_group_x(), piece = (p->n_pairs + SORT_THREADS - 1) / SORT_THREADS;
    const int64_t first = thread * piece, last = least(p->n_pairs, first + piece);
    int32_t n_smaller = 0, n_equal = 0;
    for (int64_t i = first; i < last; i++) {
        const int32_t id = gpu_load(p->ids, i);
        if (id < expert) n_smaller++;
        if (id == expert) n_equal++;
    }
    gpu_store(smaller, thread, n_smaller);
    gpu_store(equal, thread, n_equal);
    gpu_barrier();
    const int64_t begin = sum_before(smaller, SORT_THREADS);
    int64_t at = begin + sum_before(equal, thread);
    for (int64_t i = first; i < last; i++)
        if (gpu_load(p->ids, i) == expert) gpu_store(p->pairs, at++, (int32_t)i);
    if (thread == 0) gpu_store(p->offsets, expert, begin);
    if (thread == 0 && expert == p->n_experts - 1) gpu_store(p->offsets, p->n_experts, p->n_pairs);
}

/* Tiles that experts from `first` on, in steps, need; all in front of `last`. */
GPU_FN int64_t tiles_of(const GPU_GLOBAL(i64) *offsets, int64_t expert)
{
    return (gpu_load(offsets, expert + 1) - gpu_load(offsets, expert) + MOX_GPU_TILE_TOKENS - 1) / MOX_GPU_TILE_TOKENS;
}

/* A thread has some experts in a row. */
GPU_KERNEL(moe_tiles, SORT_THREADS)
{
    GPU_SHARED_ARRAY(i32, counts, SORT_THREADS);
    const int32_t thread = gpu_thread();
    const int64_t share = (p->n_experts + SORT_THREADS - 1) / SORT_THREADS;
    const int64_t first = thread * share, last = least(p->n_experts, first + share);
    int64_t count = 0;
    for (int64_t x = first; x < last; x++) count += tiles_of(p->offsets, x);
    gpu_store(counts, thread, (int32_t)count);
    gpu_barrier();
    int64_t at = sum_before(counts, thread);
    for (int64_t x = first; x < last; x++) {
        const int64_t end = gpu_load(p->offsets, x + 1);
        for (int64_t place = gpu_load(p->offsets, x); place < end; place += MOX_GPU_TILE_TOKENS) {
            mox_gpu_expert_tile tile;
            tile.expert = x;
            tile.place = place;
            tile.n = least(MOX_GPU_TILE_TOKENS, end - place);
            gpu_store(p->tiles, at++, tile);
        }
    }
    mox_gpu_expert_tile none;
    none.expert = none.place = none.n = 0;
    for (int64_t i = sum_before(counts, SORT_THREADS) + thread; i < p->n_tiles; i += SORT_THREADS) gpu_store(p->tiles, i, none);
}

#endif
