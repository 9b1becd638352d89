/* dev/gpu/matvec_rows.h -- routers of some tokens.
 *
 * matvec_row.h reads x once for each row, and with more tokens that is what takes time.  So here a group takes four rows and eight
 * tokens together, a thread eight columns of all of them.  It adds in the same order, so what comes out is the same. */
#ifndef MOX_DEV_GPU_MATVEC_ROWS_H
#define MOX_DEV_GPU_MATVEC_ROWS_H

#include "dev/gpu/matvec_row.h"

enum { ROW_SUMS = MOX_GPU_ROWS_ROWS * MOX_GPU_ROWS_TOKENS };

/* Of 32 sums of each lane, number `lane` over the whole wave: gpu_lane_sum of all of them, each lane keeping what half of the others want. */
GPU_FN float rows_sum(GPU_PRIVATE(f32) *sum, int32_t lane)
{
    GPU_UNROLL
    for (int32_t d = GPU_LANES / 2; d > 0; d /= 2)
        GPU_UNROLL
        for (int32_t i = 0; i < GPU_LANES / 2; i++) {
            if (i >= d) continue;
            const bool upper = (lane & d) != 0;
            const float kept = upper ? sum[i + d] : sum[i], given = upper ? sum[i] : sum[i + d];
            sum[i] = kept + gpu_shuffle(given, lane ^ d);
        }
    return sum[0];
}

GPU_KERNEL_EARLY(matvec_rows, ROW_THREADS)
{
    GPU_SHARED_ARRAY(f32, of_waves, ROW_WAVES * ROW_SUMS);
    const int32_t me = gpu_thread(), kind = p->w.kind;
    const int64_t row = gpu_group_x() * MOX_GPU_ROWS_ROWS, token = gpu_group_y() * MOX_GPU_ROWS_TOKENS, cols = p->w.cols;
    float sum[ROW_SUMS]; /* [token, row] */
    row_unit u[MOX_GPU_ROWS_ROWS];
    GPU_UNROLL
    for (int32_t i = 0; i < ROW_SUMS; i++) sum[i] = 0.0f;
    GPU_UNROLL
    for (int32_t r = 0; r < MOX_GPU_ROWS_ROWS; r++) /* what is beyond the end is read as the last one */
        u[r] = row_load(p->w, least(row + r, p->w.rows - 1), least((int64_t)me * ROW_COLS, cols - ROW_COLS));
    gpu_previous();
    for (int64_t col = (int64_t)me * ROW_COLS; col < cols; col += ROW_THREADS * ROW_COLS) {
        gpu_quad x[2 * MOX_GPU_ROWS_TOKENS];
        GPU_UNROLL
        for (int32_t t = 0; t < MOX_GPU_ROWS_TOKENS; t++) {
            const GPU_GLOBAL(f32) *of_token = p->x + least(token + t, p->n - 1) * p->x_stride;
            x[2 * t] = gpu_load(GPU_CAST(quad, of_token), col / 4);
            x[2 * t + 1] = gpu_load(GPU_CAST(quad, of_token), col / 4 + 1);
        }
        GPU_UNROLL
        for (int32_t r = 0; r < MOX_GPU_ROWS_ROWS; r++) {
            if (col >= ROW_THREADS * ROW_COLS) u[r] = row_load(p->w, least(row + r, p->w.rows - 1), col);
            GPU_UNROLL
            for (int32_t i = 0; i < ROW_COLS; i++) {
                const float w = row_number(u[r], kind, i);
                GPU_UNROLL
                for (int32_t t = 0; t < MOX_GPU_ROWS_TOKENS; t++)
                    sum[t * MOX_GPU_ROWS_ROWS + r] += w * gpu_bits_f32(x[2 * t + i / 4].w[i % 4]);
            }
        }
    }
    gpu_store(of_waves, me, rows_sum(sum, me % GPU_LANES));
    gpu_barrier();
    const int64_t t = token + me / MOX_GPU_ROWS_ROWS, r = row + me % MOX_GPU_ROWS_ROWS;
    if (me >= ROW_SUMS || t >= p->n || r >= p->w.rows) return; /* no barrier follows */
    gpu_store(p->y, t * p->y_stride + r, row_join(of_waves + me, ROW_SUMS) + (p->bias.type == MOX_GPU_NONE ? 0.0f : stored_number(p->bias.data, (int32_t)p->bias.type, r)));
}

#endif
