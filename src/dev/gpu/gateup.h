/* dev/gpu/gateup.h -- gate and up of a plain feed-forward in one launch; their matrices travel
 * with the parameters. */
#ifndef MOX_DEV_GPU_GATEUP_H
#define MOX_DEV_GPU_GATEUP_H

#include "dev/gpu/matvec.h"

GPU_KERNEL(gate_up, MATVEC_THREADS)
{
    const int32_t lane = gpu_thread() % GPU_LANES;
    const int64_t r = gpu_group_x() * MOX_GPU_MATVEC_ROWS + gpu_thread() / GPU_LANES;
    const int64_t t0 = gpu_group_y() * TOKENS, n = least(TOKENS, p->n - t0);
    if (r >= p->gate.rows) return; /* a whole wave, and no barrier follows */
    int64_t at[TOKENS];
    float gate[TOKENS], up[TOKENS];
    GPU_UNROLL
    for (int32_t t = 0; t < TOKENS; t++) at[t] = (t0 + t) * p->x_stride;
    lane_dots(p->gate, r, p->x, at, n, lane, gate);
    lane_dots(p->up, r, p->x, at, n, lane, up);
    GPU_UNROLL
    for (int32_t t = 0; t < TOKENS; t++) {
        const float y = silu(gpu_lane_sum(gate[t])) * gpu_lane_sum(up[t]);
        if (lane == 0 && t < n) gpu_store(p->y, (t0 + t) * p->y_stride + r, y);
    }
}

#endif
