/* dev/gpu/pointwise.h -- element by element; a thread each. */
#ifndef MOX_DEV_GPU_POINTWISE_H
#define MOX_DEV_GPU_POINTWISE_H

#include "dev/gpu/number.h"

GPU_KERNEL(add, 256)
{
    const int64_t i = gpu_group_x() * 256 + gpu_thread();
    if (i < p->n) gpu_store(p->out, i, gpu_load(p->a, i) + gpu_load(p->b, i));
}

GPU_KERNEL(copy, 256)
{
    const int64_t i = gpu_group_x() * 256 + gpu_thread(), t = gpu_group_y();
    if (i >= p->heads * p->dim || t >= p->n) return;
    const int64_t h = i / p->dim, d = i % p->dim;
    gpu_store(p->dst, t * p->dst_stride + h * p->dst_head_stride + d,
              gpu_load(p->src, t * p->src_stride + h * p->src_head_stride + d));
}

GPU_KERNEL(sigmoid_gate, 256)
{
    const int64_t i = gpu_group_x() * 256 + gpu_thread();
    if (i < p->n) gpu_store(p->x, i, gpu_load(p->x, i) * sigmoid(gpu_load(p->gate, i)));
}

#endif
