/* dev/gpu/moe.h -- sorting pairs (token, slot) by expert, and adding up what experts return. */
#ifndef MOX_DEV_GPU_MOE_H
#define MOX_DEV_GPU_MOE_H

#include "dev/gpu/number.h"

enum { BUCKET_THREADS = 256 };

/* A thread owns some experts and finds their pairs itself, in ascending order: every thread
 * reads all ids, and no order depends on which was faster. */
GPU_KERNEL(moe_bucket, BUCKET_THREADS)
{
    GPU_SHARED_ARRAY(i32, counts, MOX_GPU_ROUTER_EXPERTS);
    GPU_SHARED_ARRAY(i32, firsts, MOX_GPU_ROUTER_EXPERTS);
    const int32_t thread = gpu_thread();
    for (int64_t x = thread; x < p->n_experts; x += BUCKET_THREADS) {
        int32_t count = 0;
        for (int64_t i = 0; i < p->n_pairs; i++)
            if (gpu_load(p->ids, i) == x) count++;
        gpu_store(counts, x, count);
    }
    gpu_barrier();
    if (thread == 0) {
        int32_t first = 0;
        for (int64_t x = 0; x < p->n_experts; x++) {
            gpu_store(firsts, x, first);
            gpu_store(p->offsets, x, (int64_t)first);
            first += gpu_load(counts, x);
        }
        gpu_store(p->offsets, p->n_experts, (int64_t)first);
    }
    gpu_barrier();
    for (int64_t x = thread; x < p->n_experts; x += BUCKET_THREADS) {
        int64_t at = gpu_load(firsts, x);
        for (int64_t i = 0; i < p->n_pairs; i++)
            if (gpu_load(p->ids, i) == x) gpu_store(p->pairs, at++, (int32_t)i);
    }
}

/* What the expert that all tokens share adds to element `at`. */
GPU_FN float shared_part(int64_t mode, const GPU_GLOBAL(f32) *shared, int64_t at, const GPU_GLOBAL(f32) *gate, int64_t gate_at)
{
    if (mode == MOX_GPU_SHARED_UNSCALED) return gpu_load(shared, at);
    if (mode == MOX_GPU_SHARED_GATED) return sigmoid(gpu_load(gate, gate_at)) * gpu_load(shared, at);
    return 0.0f;
}

GPU_KERNEL(moe_combine, 256)
{
    const int64_t i = gpu_group_x() * 256 + gpu_thread(), t = gpu_group_y(), at = t * p->dim + i;
    if (i >= p->dim) return;
    float sum = 0.0f;
    for (int64_t s = 0; s < p->k; s++) sum += gpu_load(p->w, t * p->k + s) * gpu_load(p->experts, (t * p->k + s) * p->dim + i);
    gpu_store(p->out, at, gpu_load(p->h, at) + sum + shared_part(p->mode, p->shared, at, p->gate, t * p->gate_stride));
}

#endif
