/* dev/gpu/embed.h -- rows of the embedding table; a thread decodes eight columns. */
#ifndef MOX_DEV_GPU_EMBED_H
#define MOX_DEV_GPU_EMBED_H

#include "dev/gpu/mat.h"

GPU_KERNEL(embed, 128)
{
    const int64_t col = (gpu_group_x() * 128 + gpu_thread()) * UNIT, t = gpu_group_y();
    const mox_gpu_mat table = p->table;
    if (col >= table.cols) return;
    float v[UNIT];
    mat_unit(table, gpu_load(p->ids, t), col, v);
    GPU_UNROLL
    for (int32_t i = 0; i < UNIT; i++)
        if (col + i < table.cols) gpu_store(p->out, t * p->out_stride + col + i, v[i]);
}

#endif
