/* dev/gpu/mla.h -- folding the key projection of latent attention into the query.  The rest
 * of latent attention is attention.h with a second part of keys, and matvec.h by heads. */
#ifndef MOX_DEV_GPU_MLA_H
#define MOX_DEV_GPU_MLA_H

#include "dev/gpu/mat.h"

enum { ABSORB_THREADS = 64, ABSORB_TOKENS = MOX_GPU_MATVEC_TOKENS };

GPU_KERNEL(mla_absorb, ABSORB_THREADS)
{
    const int64_t col = (gpu_group_x() * ABSORB_THREADS + gpu_thread()) * UNIT, h = gpu_group_y();
    const int64_t t0 = gpu_group_z() * ABSORB_TOKENS;
    if (col >= p->rank) return; /* no barrier follows */
    const mox_gpu_mat w = p->w;
    float v[UNIT], sum[ABSORB_TOKENS][UNIT];
    GPU_UNROLL
    for (int32_t t = 0; t < ABSORB_TOKENS; t++) {
        GPU_UNROLL
        for (int32_t c = 0; c < UNIT; c++) sum[t][c] = 0.0f;
    }
    for (int64_t i = 0; i < p->nope; i++) {
        mat_unit(w, h * p->head_rows + i, col, v);
        GPU_UNROLL
        for (int32_t t = 0; t < ABSORB_TOKENS; t++) {
            if (t0 + t >= p->n) continue;
            const float q = gpu_load(p->q, ((t0 + t) * p->heads + h) * p->nope + i);
            GPU_UNROLL
            for (int32_t c = 0; c < UNIT; c++) sum[t][c] += q * v[c];
        }
    }
    GPU_UNROLL
    for (int32_t t = 0; t < ABSORB_TOKENS; t++) {
        GPU_UNROLL
        for (int32_t c = 0; c < UNIT; c++)
            if (t0 + t < p->n && col + c < p->rank) gpu_store(p->out, ((t0 + t) * p->heads + h) * p->rank + col + c, sum[t][c]);
    }
}

#endif
