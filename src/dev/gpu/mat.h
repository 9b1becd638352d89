/* dev/gpu/mat.h -- weights of a row, eight columns at a time, from the file's own bytes.
 *
 * Eight codes of b bits are b bytes, so a unit begins at a byte and 32 lanes read 32 b bytes
 * in a row; no group of scales is cut, as groups are multiples of 32 columns.  Other layouts
 * may end within a unit. */
#ifndef MOX_DEV_GPU_MAT_H
#define MOX_DEV_GPU_MAT_H

#include "dev/gpu/number.h"

enum { UNIT = 8 };

/* b bytes at `at`, as one number. */
GPU_FN uint64_t unit_codes(const GPU_GLOBAL(u8) *w, int64_t at, int32_t bytes)
{
    if (bytes == 2) return gpu_bytes_u16(w, at);
    if (bytes == 3) return gpu_bytes_u16(w, at) | gpu_bytes_u8(w, at + 2) << 16;
    const uint64_t low = gpu_bytes_u32(w, at);
    if (bytes == 4) return low;
    if (bytes == 5) return low | (uint64_t)gpu_bytes_u8(w, at + 4) << 32;
    if (bytes == 6) return low | (uint64_t)gpu_bytes_u16(w, at + 4) << 32;
    return low | (uint64_t)gpu_bytes_u32(w, at + 4) << 32;
}

GPU_FN void unit_affine(mox_gpu_mat m, int64_t row, int64_t col, GPU_PRIVATE(f32) *v)
{
    const uint64_t codes = unit_codes(m.w, row * m.row_bytes + col / UNIT * m.bits, m.bits);
    const uint32_t mask = (1u << m.bits) - 1u;
    const int64_t at = row * m.scale_cols + col / m.group;
    const float scale = stored_number(m.scales, m.scale_type, at), bias = stored_number(m.biases, m.scale_type, at);
    GPU_UNROLL
    for (int32_t i = 0; i < UNIT; i++) v[i] = (float)((uint32_t)(codes >> (m.bits * i)) & mask) * scale + bias;
}

GPU_FN void unit_fp8(mox_gpu_mat m, int64_t row, int64_t col, int64_t n, GPU_PRIVATE(f32) *v)
{
    const int64_t grid_row = (m.row0 + row) / m.block_rows * m.scale_cols;
    GPU_UNROLL
    for (int32_t i = 0; i < UNIT; i++) {
        if (i >= n) continue;
        const float scale = stored_number(m.scales, m.scale_type, grid_row + (col + i) / m.block_cols);
        v[i] = e4m3_to_f32(gpu_bytes_u8(m.w, row * m.row_bytes + col + i)) * scale;
    }
}

/* W[row, col .. col + 8), col a multiple of 8; 0 beyond the end of the row. */
GPU_FN void mat_unit(mox_gpu_mat m, int64_t row, int64_t col, GPU_PRIVATE(f32) *v)
{
    const int64_t n = m.cols - col;
    if (m.kind == MOX_GPU_AFFINE) {
        unit_affine(m, row, col, v);
        return;
    }
    GPU_UNROLL
    for (int32_t i = 0; i < UNIT; i++) v[i] = 0.0f;
    if (m.kind == MOX_GPU_FP8) {
        unit_fp8(m, row, col, n, v);
        return;
    }
    const int64_t size = m.kind == MOX_GPU_F32 ? 4 : 2;
    GPU_UNROLL
    for (int32_t i = 0; i < UNIT; i++)
        if (i < n) v[i] = stored_number(m.w, m.kind, row * (m.row_bytes / size) + col + i);
}

#endif
