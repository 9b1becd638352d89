/* dev/gpu/matvec16.h -- products of few rows of 16-bit weights with few tokens: routers.
 *
 * Such a matrix is small, and what counts is how soon all of it is asked for: a group takes one row,
 * a thread eight columns of it at a time.  The first eight are asked for before the launch in front
 * has ended, as they do not depend on it. */
#ifndef MOX_DEV_GPU_MATVEC16_H
#define MOX_DEV_GPU_MATVEC16_H

#include "dev/gpu/group.h"
#include "dev/gpu/number.h"

enum { HALF_THREADS = 256, HALF_COLS = 8 };

GPU_FN float half_number(mox_gpu_wide w, int32_t i, bool is_bf16)
{
    const uint32_t bits = w.w[i / 2] >> (i % 2 * 16) & 0xFFFFu;
    return is_bf16 ? bf16_to_f32(bits) : gpu_f16_to_f32(bits);
}

GPU_KERNEL_EARLY(matvec16, HALF_THREADS)
{
    GPU_SHARED_ARRAY(f32, scratch, HALF_THREADS / GPU_LANES);
    const int32_t thread = gpu_thread();
    const int64_t r = gpu_group_x(), t = gpu_group_y(), first = (int64_t)thread * HALF_COLS;
    const bool is_bf16 = p->w.kind == MOX_GPU_BF16;
    mox_gpu_wide w = {{0u, 0u, 0u, 0u}};
    if (first < p->w.cols) gpu_bytes_wide(p->w.w, r * p->w.row_bytes + 2 * first, &w);
    gpu_previous();
    float sum = 0.0f;
    for (int64_t col = first; col < p->w.cols; col += HALF_THREADS * HALF_COLS) {
        if (col != first) gpu_bytes_wide(p->w.w, r * p->w.row_bytes + 2 * col, &w);
        const mox_gpu_wide low = gpu_load(GPU_CAST(wide, p->x), (t * p->x_stride + col) / 4);
        const mox_gpu_wide high = gpu_load(GPU_CAST(wide, p->x), (t * p->x_stride + col) / 4 + 1);
        GPU_UNROLL
        for (int32_t i = 0; i < 4; i++) {
            sum += half_number(w, i, is_bf16) * gpu_bits_f32(low.w[i]);
            sum += half_number(w, i + 4, is_bf16) * gpu_bits_f32(high.w[i]);
        }
    }
    sum = group_sum(sum, scratch, thread, HALF_THREADS);
    const float bias = p->bias.type == MOX_GPU_NONE ? 0.0f : stored_number(p->bias.data, (int32_t)p->bias.type, r);
    if (thread == 0) gpu_store(p->y, t * p->y_stride + r, sum + bias);
}

#endif
