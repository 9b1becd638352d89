/* dev/gpu/rope.h -- rotary position embedding.  The angle is a product in f32, as the models
 * were trained with; its sine and cosine are accurate for large angles, too. */
#ifndef MOX_DEV_GPU_ROPE_H
#define MOX_DEV_GPU_ROPE_H

#include "dev/gpu/params.h"

GPU_KERNEL(rope, 256)
{
    const int64_t half_dim = p->rotary_dim / 2, at = gpu_group_x() * 256 + gpu_thread(), t = gpu_group_y();
    if (at >= p->heads * half_dim) return;
    const int64_t h = at / half_dim, i = at % half_dim;
    const float angle = (float)gpu_load(p->pos, t * p->pos_stride) * gpu_load(p->inv_freq, i);
    const float c = gpu_cos(angle) * p->mscale, s = gpu_sin(angle) * p->mscale;
    GPU_GLOBAL(f32) *x = p->x + (t * p->stride + h * p->head_stride);
    const int64_t i0 = p->interleaved != 0 ? 2 * i : i, i1 = p->interleaved != 0 ? 2 * i + 1 : i + half_dim;
    const float v0 = gpu_load(x, i0), v1 = gpu_load(x, i1);
    gpu_store(x, i0, v0 * c - v1 * s);
    gpu_store(x, i1, v1 * c + v0 * s);
}

#endif
