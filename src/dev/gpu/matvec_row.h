/* dev/gpu/matvec_row.h -- products of few rows of 16-bit or 8-bit weights with few tokens: routers.
 *
 * Such a matrix is small, and what counts is how soon all of it is asked for: a group takes one row,
 * a thread eight columns of it at a time.  The first eight are asked for before the launch in front
 * has ended, as they do not depend on it. */
#ifndef MOX_DEV_GPU_MATVEC_ROW_H
#define MOX_DEV_GPU_MATVEC_ROW_H

#include "dev/gpu/group.h"
#include "dev/gpu/number.h"

enum { ROW_THREADS = 256, ROW_COLS = 8 };

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

GPU_KERNEL_EARLY(matvec_row, ROW_THREADS)
{
    GPU_SHARED_ARRAY(f32, scratch, ROW_THREADS / GPU_LANES);
    const int32_t thread = gpu_thread(), kind = p->w.kind;
    const int64_t r = gpu_group_x(), t = gpu_group_y(), first = (int64_t)thread * ROW_COLS;
    const float bias = p->bias.type == MOX_GPU_NONE ? 0.0f : stored_number(p->bias.data, (int32_t)p->bias.type, r);
    row_unit u = row_load(p->w, r, least(first, p->w.cols - ROW_COLS));
    gpu_previous();
    float sum = 0.0f;
    for (int64_t col = first; col < p->w.cols; col += ROW_THREADS * ROW_COLS) {
        if (col != first) u = row_load(p->w, r, col);
        const gpu_quad low = gpu_load(GPU_CAST(quad, p->x), (t * p->x_stride + col) / 4);
        const gpu_quad high = gpu_load(GPU_CAST(quad, p->x), (t * p->x_stride + col) / 4 + 1);
        GPU_UNROLL
        for (int32_t i = 0; i < 4; i++) {
            sum += row_number(u, kind, i) * gpu_bits_f32(low.w[i]);
            sum += row_number(u, kind, i + 4) * gpu_bits_f32(high.w[i]);
        }
    }
    sum = group_sum(sum, scratch, thread, ROW_THREADS);
    if (thread == 0) gpu_store(p->y, t * p->y_stride + r, sum + bias);
}

#endif
