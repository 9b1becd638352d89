/* dev/gpu/norm_long.h -- norms of rows that are too long for norm.h's groups: so many threads that all of a row is kept, and
 * none of it waited for twice. */
#ifndef MOX_DEV_GPU_NORM_LONG_H
#define MOX_DEV_GPU_NORM_LONG_H

#include "dev/gpu/norm.h"

enum { LONG_THREADS = 1024, LONG_KEPT = GAINS_MOST };

GPU_FN int64_t long_at(int32_t j, int32_t me) { return (int64_t)j * LONG_THREADS + me; }

/* Stores the row that the threads keep, normed. */
GPU_FN void long_normed(const GPU_PRIVATE(f32) *v, const GPU_PRIVATE(f32) *gain, GPU_GLOBAL(f32) *out, int64_t dim, float eps,
                        GPU_SHARED(f32) *scratch, int32_t me)
{
    float sum = 0.0f;
    GPU_UNROLL
    for (int32_t j = 0; j < LONG_KEPT; j++) sum += v[j] * v[j];
    const float factor = inverse_rms(group_sum(sum, scratch, me, LONG_THREADS), dim, eps);
    GPU_UNROLL
    for (int32_t j = 0; j < LONG_KEPT; j++)
        if (long_at(j, me) < dim) gpu_store(out, long_at(j, me), v[j] * factor * gain[j]);
}

GPU_KERNEL_EARLY(rms_norm_long, LONG_THREADS)
{
    GPU_SHARED_ARRAY(f32, scratch, LONG_THREADS / GPU_LANES);
    const int64_t h = gpu_group_x(), t = gpu_group_y();
    const int32_t me = gpu_thread();
    const GPU_GLOBAL(f32) *x = p->x + (t * p->x_stride + h * p->x_head_stride);
    float v[LONG_KEPT], gain[LONG_KEPT];
    load_gains(p->weight, p->offset, me, LONG_THREADS, p->dim, gain);
    gpu_previous(); /* gains do not wait for it */
    GPU_UNROLL
    for (int32_t j = 0; j < LONG_KEPT; j++) v[j] = long_at(j, me) < p->dim ? gpu_load(x, long_at(j, me)) : 0.0f;
    long_normed(v, gain, p->out + (t * p->out_stride + h * p->out_head_stride), p->dim, p->eps, scratch, me);
}

GPU_KERNEL_EARLY(residual_norm_long, LONG_THREADS)
{
    GPU_SHARED_ARRAY(f32, scratch, LONG_THREADS / GPU_LANES);
    const int64_t first = gpu_group_x() * p->dim;
    const int32_t me = gpu_thread();
    float v[LONG_KEPT], gain[LONG_KEPT];
    load_gains(p->weight, p->offset, me, LONG_THREADS, p->dim, gain);
    gpu_previous(); /* gains do not wait for it */
    GPU_UNROLL
    for (int32_t j = 0; j < LONG_KEPT; j++) {
        const int64_t i = first + long_at(j, me);
        v[j] = long_at(j, me) < p->dim ? gpu_load(p->a, i) + gpu_load(p->b, i) : 0.0f;
    }
    GPU_UNROLL
    for (int32_t j = 0; j < LONG_KEPT; j++)
        if (long_at(j, me) < p->dim) gpu_store(p->res, first + long_at(j, me), v[j]);
    long_normed(v, gain, p->norm + first, p->dim, p->eps, scratch, me);
}

#endif
