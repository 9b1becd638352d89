/* dev/gpu/group.h -- sums and maxima over all threads of a group.
 *
 * Waves reduce by themselves, leave their results in shared memory, and every thread joins
 * them in the order of the waves: one order, and all threads have the same bytes.  The first
 * barrier is for who still reads the results of an earlier call. */
#ifndef MOX_DEV_GPU_GROUP_H
#define MOX_DEV_GPU_GROUP_H

#include "dev/gpu/gpu.h"

/* scratch has a place per wave. */
GPU_FN float group_sum(float v, GPU_SHARED(f32) *scratch, int32_t me, int32_t n_threads)
{
    const float wave = gpu_lane_sum(v);
    gpu_barrier();
    if (me % GPU_LANES == 0) gpu_store(scratch, me / GPU_LANES, wave);
    gpu_barrier();
    float sum = 0.0f;
    for (int32_t i = 0; i < n_threads / GPU_LANES; i++) sum += gpu_load(scratch, i);
    return sum;
}

GPU_FN float group_max(float v, GPU_SHARED(f32) *scratch, int32_t me, int32_t n_threads)
{
    const float wave = gpu_lane_max(v);
    gpu_barrier();
    if (me % GPU_LANES == 0) gpu_store(scratch, me / GPU_LANES, wave);
    gpu_barrier();
    float max = -GPU_INFINITY;
    for (int32_t i = 0; i < n_threads / GPU_LANES; i++) max = gpu_max(max, gpu_load(scratch, i));
    return max;
}

#endif
