/* dev/gpu/matvec.h -- products of weights with few tokens: a wave takes a row of W and up to
 * MOX_GPU_MATVEC_TOKENS of them, so that a decoded weight serves them all.
 *
 * Lane l takes the units l, l + 32, ... of the row; each token has a sum per lane, joined by one
 * lane sum at the end.  A token's bytes do not depend on its neighbours. */
#ifndef MOX_DEV_GPU_MATVEC_H
#define MOX_DEV_GPU_MATVEC_H

#include "dev/gpu/mat.h"

enum { MATVEC_THREADS = MOX_GPU_MATVEC_ROWS * GPU_LANES, TOKENS = MOX_GPU_MATVEC_TOKENS };

/* sum[t] = this lane's part of W[row, :] . x[at[t] ...], t < n. */
GPU_FN void lane_dots(mox_gpu_mat m, int64_t row, const GPU_GLOBAL(f32) *x, const GPU_PRIVATE(i64) *at, int64_t n,
                      int32_t lane, GPU_PRIVATE(f32) *sum)
{
    float v[UNIT];
    GPU_UNROLL
    for (int32_t t = 0; t < TOKENS; t++) sum[t] = 0.0f;
    for (int64_t col = (int64_t)lane * UNIT; col < m.cols; col += GPU_LANES * UNIT) {
        mat_unit(m, row, col, v);
        GPU_UNROLL
        for (int32_t t = 0; t < TOKENS; t++) {
            if (t >= n) continue;
            GPU_UNROLL
            for (int32_t i = 0; i < UNIT; i++)
                if (col + i < m.cols) sum[t] += v[i] * gpu_load(x, at[t] + col + i);
        }
    }
}

GPU_KERNEL(matvec, MATVEC_THREADS)
{
    const int32_t lane = gpu_thread() % GPU_LANES;
    const int64_t r = gpu_group_x() * MOX_GPU_MATVEC_ROWS + gpu_thread() / GPU_LANES, h = gpu_group_z();
    const int64_t t0 = gpu_group_y() * TOKENS, n = least(TOKENS, p->n - t0);
    if (r >= p->rows) return; /* a whole wave, and no barrier follows */
    const mox_gpu_mat w = p->w;
    const float bias = p->bias.type == MOX_GPU_NONE ? 0.0f : stored_number(p->bias.data, (int32_t)p->bias.type, r);
    int64_t at[TOKENS];
    float sum[TOKENS];
    GPU_UNROLL
    for (int32_t t = 0; t < TOKENS; t++) at[t] = (t0 + t) * p->x_stride + h * p->x_head_stride;
    lane_dots(w, h * p->head_rows + p->first_row + r, p->x, at, n, lane, sum);
    GPU_UNROLL
    for (int32_t t = 0; t < TOKENS; t++) {
        const float y = gpu_lane_sum(sum[t]) + bias;
        if (lane == 0 && t < n) gpu_store(p->y, (t0 + t) * p->y_stride + h * p->y_head_stride + r, y);
    }
}

GPU_FN int64_t listed_row(const GPU_GLOBAL(i32) *list, int64_t place) { return list ? gpu_load(list, place) : place; }

/* Where the rows of x of up to TOKENS places begin. */
GPU_FN void x_rows(const GPU_CONSTANT(mox_gpu_experts_gate_up) *p, int64_t place, int64_t n, GPU_PRIVATE(i64) *at)
{
    GPU_UNROLL
    for (int32_t t = 0; t < TOKENS; t++)
        at[t] = t < n ? listed_row(p->x_row, place + t) / p->x_divisor * p->x_stride : 0;
}

GPU_KERNEL(experts_gate_up, MATVEC_THREADS)
{
    const int32_t lane = gpu_thread() % GPU_LANES;
    const int64_t r = gpu_group_x() * MOX_GPU_MATVEC_ROWS + gpu_thread() / GPU_LANES, g = gpu_group_z();
    const int64_t last = gpu_load(p->offsets, g + 1);
    if (r >= p->rows) return; /* a whole wave, and no barrier follows */
    int64_t at[TOKENS];
    float gate[TOKENS], up[TOKENS];
    for (int64_t place = gpu_load(p->offsets, g); place < last; place += TOKENS) {
        const int64_t n = least(TOKENS, last - place);
        x_rows(p, place, n, at);
        lane_dots(gpu_load(p->gate, g), r, p->x, at, n, lane, gate);
        lane_dots(gpu_load(p->up, g), r, p->x, at, n, lane, up);
        GPU_UNROLL
        for (int32_t t = 0; t < TOKENS; t++) {
            const float y = silu(gpu_lane_sum(gate[t])) * gpu_lane_sum(up[t]);
            if (lane == 0 && t < n) gpu_store(p->y, listed_row(p->y_row, place + t) * p->y_stride + r, y);
        }
    }
}

GPU_KERNEL(experts_down, MATVEC_THREADS)
{
    const int32_t lane = gpu_thread() % GPU_LANES;
    const int64_t r = gpu_group_x() * MOX_GPU_MATVEC_ROWS + gpu_thread() / GPU_LANES, g = gpu_group_z();
    const int64_t last = gpu_load(p->offsets, g + 1);
    if (r >= p->rows) return; /* a whole wave, and no barrier follows */
    int64_t at[TOKENS];
    float sum[TOKENS];
    for (int64_t place = gpu_load(p->offsets, g); place < last; place += TOKENS) {
        const int64_t n = least(TOKENS, last - place);
        x_rows(p, place, n, at);
        lane_dots(gpu_load(p->gate, g), r, p->x, at, n, lane, sum);
        GPU_UNROLL
        for (int32_t t = 0; t < TOKENS; t++) {
            const float y = gpu_lane_sum(sum[t]);
            if (lane == 0 && t < n) gpu_store(p->y, listed_row(p->y_row, place + t) * p->y_stride + r, y);
        }
    }
}

#endif
