/* dev/gpu/norm.h -- root-mean-square norms.
 *
 * A thread normalises the elements that it summed, so a row may be written in place without
 * a barrier in global memory. */
#ifndef MOX_DEV_GPU_NORM_H
#define MOX_DEV_GPU_NORM_H

#include "dev/gpu/group.h"
#include "dev/gpu/number.h"

enum { NORM_THREADS = 256, NORM_KEPT = GAINS_MOST };

/* Sum of squares of x[from], x[from + step] ... of a row. */
GPU_FN float squares(const GPU_GLOBAL(f32) *x, int64_t dim, int64_t from, int64_t step)
{
    float sum = 0.0f;
    for (int64_t i = from; i < dim; i += step) {
        const float v = gpu_load(x, i);
        sum += v * v;
    }
    return sum;
}

GPU_FN float inverse_rms(float sum, int64_t dim, float eps) { return gpu_rsqrt(sum * (1.0f / (float)dim) + eps); }

/* Numbers of a row that a thread keeps, so that one wait is enough for all of them; what a longer
 * row has beyond is read twice. */
GPU_FN int64_t kept_at(int32_t j, int32_t n_threads, int32_t me) { return (int64_t)j * n_threads + me; }

/* Stores the row: v are the numbers kept, x has the rest. */
GPU_FN void store_normed(const GPU_PRIVATE(f32) *v, const GPU_PRIVATE(f32) *gain, const GPU_GLOBAL(f32) *x,
                         GPU_GLOBAL(f32) *out, int64_t dim, float factor, mox_gpu_vec weight, float offset, int32_t n_threads, int32_t me)
{
    GPU_UNROLL
    for (int32_t j = 0; j < NORM_KEPT; j++) {
        const int64_t i = kept_at(j, n_threads, me);
        if (i < dim) gpu_store(out, i, v[j] * factor * gain[j]);
    }
    for (int64_t i = kept_at(NORM_KEPT, n_threads, me); i < dim; i += n_threads)
        gpu_store(out, i, gpu_load(x, i) * factor * gain_at(weight, offset, i));
}

/* The whole of an early kernel of n_threads (a constant): out = rms_norm(x) of a row. */
GPU_FN void norm_row(const GPU_GLOBAL(f32) *x, GPU_GLOBAL(f32) *out, int64_t dim, mox_gpu_vec weight, float offset, float eps,
                     int32_t n_threads, GPU_SHARED(f32) *scratch, int32_t me)
{
    float v[NORM_KEPT], gain[NORM_KEPT], sum = 0.0f;
    load_gains(weight, offset, me, n_threads, dim, gain);
    gpu_previous(); /* gains do not wait for it */
    GPU_UNROLL
    for (int32_t j = 0; j < NORM_KEPT; j++) v[j] = kept_at(j, n_threads, me) < dim ? gpu_load(x, kept_at(j, n_threads, me)) : 0.0f;
    GPU_UNROLL
    for (int32_t j = 0; j < NORM_KEPT; j++) sum += v[j] * v[j];
    sum += squares(x, dim, kept_at(NORM_KEPT, n_threads, me), n_threads);
    const float factor = inverse_rms(group_sum(sum, scratch, me, n_threads), dim, eps);
    store_normed(v, gain, x, out, dim, factor, weight, offset, n_threads, me);
}

GPU_KERNEL_EARLY(rms_norm, 256)
{
    GPU_SHARED_ARRAY(f32, scratch, NORM_THREADS / GPU_LANES);
    const int64_t h = gpu_group_x(), t = gpu_group_y();
    norm_row(p->x + (t * p->x_stride + h * p->x_head_stride), p->out + (t * p->out_stride + h * p->out_head_stride), p->dim, p->weight,
             p->offset, p->eps, NORM_THREADS, scratch, gpu_thread());
}

GPU_KERNEL(rms_norm_heads, 256)
{
    const int32_t lane = gpu_thread() % GPU_LANES;
    const int64_t h = gpu_group_x() * (NORM_THREADS / GPU_LANES) + gpu_thread() / GPU_LANES, t = gpu_group_y();
    if (h >= p->heads) return; /* a whole wave, and no barrier follows */
    const GPU_GLOBAL(f32) *x = p->x + (t * p->x_stride + h * p->x_head_stride);
    GPU_GLOBAL(f32) *out = p->out + (t * p->out_stride + h * p->out_head_stride);
    const float factor = inverse_rms(gpu_lane_sum(squares(x, p->dim, lane, GPU_LANES)), p->dim, p->eps);
    for (int64_t i = lane; i < p->dim; i += GPU_LANES)
        gpu_store(out, i, gpu_load(x, i) * factor * gain_at(p->weight, p->offset, i));
}

GPU_KERNEL_EARLY(residual_norm, 256)
{
    GPU_SHARED_ARRAY(f32, scratch, NORM_THREADS / GPU_LANES);
    const int64_t first = gpu_group_x() * p->dim;
    const int32_t me = gpu_thread();
    float v[NORM_KEPT], gain[NORM_KEPT], sum = 0.0f;
    load_gains(p->weight, p->offset, me, NORM_THREADS, p->dim, gain);
    gpu_previous(); /* gains do not wait for it */
    GPU_UNROLL
    for (int32_t j = 0; j < NORM_KEPT; j++) {
        const int64_t i = kept_at(j, NORM_THREADS, me);
        v[j] = i < p->dim ? gpu_load(p->a, first + i) + gpu_load(p->b, first + i) : 0.0f;
    }
    GPU_UNROLL
    for (int32_t j = 0; j < NORM_KEPT; j++) {
        if (kept_at(j, NORM_THREADS, me) < p->dim) gpu_store(p->res, first + kept_at(j, NORM_THREADS, me), v[j]);
        sum += v[j] * v[j];
    }
    for (int64_t i = kept_at(NORM_KEPT, NORM_THREADS, me); i < p->dim; i += NORM_THREADS) {
        const float beyond = gpu_load(p->a, first + i) + gpu_load(p->b, first + i);
        gpu_store(p->res, first + i, beyond);
        sum += beyond * beyond;
    }
    const float factor = inverse_rms(group_sum(sum, scratch, me, NORM_THREADS), p->dim, p->eps);
    store_normed(v, gain, p->res + first, p->norm + first, p->dim, factor, p->weight, p->offset, NORM_THREADS, me);
}

GPU_KERNEL(gated_rms_norm, 256)
{
    const int32_t lane = gpu_thread() % GPU_LANES;
    const int64_t row = gpu_group_x() * (NORM_THREADS / GPU_LANES) + gpu_thread() / GPU_LANES, first = row * p->dim;
    if (row >= p->rows) return; /* a whole wave, and no barrier follows */
    const float factor = inverse_rms(gpu_lane_sum(squares(p->x + first, p->dim, lane, GPU_LANES)), p->dim, p->eps);
    for (int64_t i = lane; i < p->dim; i += GPU_LANES)
        gpu_store(p->out, first + i,
                  gpu_load(p->x, first + i) * factor * gain_at(p->weight, 0.0f, i) * silu(gpu_load(p->z, first + i)));
}

#endif
