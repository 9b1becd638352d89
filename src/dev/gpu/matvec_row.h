/* dev/gpu/matvec_row.h -- products of few rows of 16-bit or 8-bit weights with few tokens: routers.
 *
 * Such a matrix is small, and what counts is how soon all of it is asked for: a group takes one row,
 * a thread eight columns of it at a time.  The first eight are asked for before the launch in front
 * has ended, as they do not depend on it.  A norm of x is taken along as matvec4.h does it. */
#ifndef MOX_DEV_GPU_MATVEC_ROW_H
#define MOX_DEV_GPU_MATVEC_ROW_H

#include "dev/gpu/norm.h"

enum { ROW_THREADS = 256, ROW_WAVES = ROW_THREADS / GPU_LANES, ROW_COLS = 8 };

/* Eight weights: w times scale, plus bias. */
typedef struct row_unit {
    gpu_quad w; /* 16 bits each, or codes of 8 bits in the first half */
    float scale, bias;
} row_unit;

GPU_FN row_unit row_load(mox_gpu_mat m, int64_t row, int64_t col)
{
    row_unit u = {{{0u, 0u, 0u, 0u}}, 1.0f, 0.0f};
    if (m.kind == MOX_GPU_AFFINE) {
        const uint64_t codes = gpu_bytes_u64(m.w, row * m.row_bytes + col);
        const int64_t at = row * m.scale_cols + (int32_t)col / m.group;
        u.w.w[0] = (uint32_t)codes;
        u.w.w[1] = (uint32_t)(codes >> 32);
        u.scale = stored_number(m.scales, m.scale_type, at);
        u.bias = stored_number(m.biases, m.scale_type, at);
    } else {
        gpu_bytes_quad(m.w, row * m.row_bytes + 2 * col, &u.w);
    }
    return u;
}

GPU_FN float row_number(row_unit u, int32_t kind, int32_t i)
{
    if (kind == MOX_GPU_AFFINE) return (float)(u.w.w[i / 4] >> (i % 4 * 8) & 0xFFu) * u.scale + u.bias;
    const uint32_t bits = u.w.w[i / 2] >> (i % 2 * 16) & 0xFFFFu;
    return kind == MOX_GPU_BF16 ? bf16_to_f32(bits) : gpu_f16_to_f32(bits);
}

/* All eight; kinds are told apart once, not per number. */
GPU_FN void row_numbers(row_unit u, int32_t kind, GPU_PRIVATE(f32) *w)
{
    if (kind == MOX_GPU_AFFINE) {
        GPU_UNROLL
        for (int32_t i = 0; i < ROW_COLS; i++) w[i] = row_number(u, MOX_GPU_AFFINE, i);
    } else if (kind == MOX_GPU_BF16) {
        GPU_UNROLL
        for (int32_t i = 0; i < ROW_COLS; i++) w[i] = row_number(u, MOX_GPU_BF16, i);
    } else {
        GPU_UNROLL
        for (int32_t i = 0; i < ROW_COLS; i++) w[i] = row_number(u, MOX_GPU_F16, i);
    }
}

/* What the waves have left, `step` apart, in pairs: a chain of eight takes longer. */
GPU_FN float row_join(const GPU_SHARED(f32) *of_waves, int32_t step)
{
    float sum[ROW_WAVES];
    GPU_UNROLL
    for (int32_t i = 0; i < ROW_WAVES; i++) sum[i] = gpu_load(of_waves, i * step);
    GPU_UNROLL
    for (int32_t m = ROW_WAVES / 2; m > 0; m /= 2) {
        GPU_UNROLL
        for (int32_t i = 0; i < m; i++) sum[i] += sum[i + m];
    }
    return sum[0];
}

GPU_KERNEL_HASTY(matvec_row, ROW_THREADS)
{
    GPU_SHARED_ARRAY(f32, scratch, ROW_WAVES);
    GPU_SHARED_ARRAY(f32, of_squares, ROW_WAVES);
    const int32_t me = gpu_thread(), kind = p->w.kind;
    const int64_t r = gpu_group_x(), t = gpu_group_y(), first = (int64_t)me * ROW_COLS, cols = p->w.cols;
    const GPU_GLOBAL(f32) *x = p->x + t * p->x_stride;
    if (r >= p->w.rows) { /* the whole group */
        norm_row(x, p->norm.out + t * p->norm.stride, cols, p->norm.weight, p->norm.offset, p->norm.eps, ROW_THREADS, scratch, me);
        return;
    }
    const float bias = p->bias.type == MOX_GPU_NONE ? 0.0f : stored_number(p->bias.data, (int32_t)p->bias.type, r);
    row_unit u = row_load(p->w, r, least(first, cols - ROW_COLS));
    eight_gains gains = load_eight_gains(p->norm.weight, least(first, cols - ROW_COLS));
    GPU_REHEARSE(real, p->rehearse) {
        float sum = 0.0f, of_x = 0.0f;
        if (real != 0) {
            gpu_barrier();
            gpu_previous();
        }
        for (int64_t col = first; col < (real != 0 ? cols : first + 1); col += ROW_THREADS * ROW_COLS) {
            if (col != first) {
                u = row_load(p->w, r, col);
                gains = load_eight_gains(p->norm.weight, col);
            }
            gpu_quad low = {{0u, 0u, 0u, 0u}}, high = low;
            if (real != 0) {
                low = gpu_load(GPU_CAST(quad, x), (int32_t)col / 4);
                high = gpu_load(GPU_CAST(quad, x), (int32_t)col / 4 + 1);
            }
            float w[ROW_COLS]; /* made while x is on its way */
            row_numbers(u, kind, w);
            times_eight_gains(gains, p->norm.weight, p->norm.offset, w);
            GPU_UNROLL
            for (int32_t i = 0; i < ROW_COLS; i++) {
                const float v = gpu_bits_f32(i < 4 ? low.w[i % 4] : high.w[i % 4]);
                of_x += v * v;
                sum += w[i] * v;
            }
        }
        sum = gpu_lane_sum(sum);
        of_x = gpu_lane_sum(of_x);
        if (me % GPU_LANES == 0) {
            gpu_store(scratch, me / GPU_LANES, sum);
            gpu_store(of_squares, me / GPU_LANES, of_x);
        }
        gpu_barrier();
        if (me != 0) continue;
        sum = row_join(scratch, 1);
        of_x = row_join(of_squares, 1);
        sum = p->norm.out != 0 ? sum * inverse_rms(of_x, cols, p->norm.eps) : sum;
        if (real != 0) gpu_store(p->y, t * p->y_stride + r, sum + bias);
    }
}

#endif
