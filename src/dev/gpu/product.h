/* dev/gpu/product.h -- products of weights with many tokens where operands must stay f32: routers.
 *
 * A group makes 32 rows of W by 32 tokens, going along the columns in steps of 64.  Both lie in shared
 * memory column by column.  A quarter of the threads takes a quarter of a step's columns, and each
 * thread four rows by four tokens; the quarters are added up at the end, always in the same order.
 * What the next step needs is on its way while this one is multiplied. */
#ifndef MOX_DEV_GPU_PRODUCT_H
#define MOX_DEV_GPU_PRODUCT_H

#include "dev/gpu/mat.h"

enum {
    PRODUCT_TILE = MOX_GPU_PRODUCT_TILE,
    PRODUCT_STEP = 64,
    PRODUCT_THREADS = 256,
    PRODUCT_QUARTER = PRODUCT_STEP / 4,
    PRODUCT_NUMBERS = PRODUCT_TILE * PRODUCT_STEP
};

/* What a thread brings of a step: eight columns of one token and of one row; zeros beyond the end. */
typedef struct product_share {
    float x[UNIT], w[UNIT];
} product_share;

GPU_FN product_share product_fetch(const GPU_CONSTANT(mox_gpu_matmul_f32) *p, int64_t token, int64_t row, int64_t col)
{
    product_share s;
    GPU_UNROLL
    for (int32_t e = 0; e < UNIT; e++) s.x[e] = s.w[e] = 0.0f;
    if (col >= p->w.cols) return s;
    if (row < p->rows) mat_unit(p->w, row, col, s.w);
    if (token >= p->n) return s;
    GPU_UNROLL
    for (int32_t h = 0; h < UNIT; h += 4) {
        const gpu_quad four = gpu_load_quad(p->x, token * p->x_stride + col + h);
        GPU_UNROLL
        for (int32_t e = 0; e < 4; e++) s.x[h + e] = gpu_bits_f32(four.w[e]);
    }
    return s;
}

/* sum[4 t + r] += tokens t times rows r over a quarter of a step. */
GPU_FN void product_add(const GPU_SHARED(f32) *x, const GPU_SHARED(f32) *w, int32_t token, int32_t row, GPU_PRIVATE(f32) *sum)
{
    GPU_UNROLL
    for (int32_t c = 0; c < PRODUCT_QUARTER; c++) {
        const gpu_quad a = gpu_load_quad(x, c * PRODUCT_TILE + token), b = gpu_load_quad(w, c * PRODUCT_TILE + row);
        GPU_UNROLL
        for (int32_t i = 0; i < 16; i++) sum[i] += gpu_bits_f32(a.w[i / 4]) * gpu_bits_f32(b.w[i % 4]);
    }
}

GPU_KERNEL(matmul_f32, PRODUCT_THREADS)
{
    GPU_SHARED_ARRAY(f32, xs, PRODUCT_NUMBERS); /* [column, token] */
    GPU_SHARED_ARRAY(f32, ws, PRODUCT_NUMBERS); /* [column, row] */
    const int32_t thread = gpu_thread(), lane = thread % GPU_LANES, unit = thread / GPU_LANES * UNIT;
    const int32_t quarter = thread / 64, token = thread / 8 % 8 * 4, row = thread % 8 * 4;
    const int64_t token0 = gpu_group_x() * PRODUCT_TILE, row0 = gpu_group_y() * PRODUCT_TILE;
    float sum[16];
    GPU_UNROLL
    for (int32_t i = 0; i < 16; i++) sum[i] = 0.0f;
    product_share share = product_fetch(p, token0 + lane, row0 + lane, unit);
    for (int64_t col = 0; col < p->w.cols; col += PRODUCT_STEP) {
        gpu_barrier(); /* behind who reads the step before */
        GPU_UNROLL
        for (int32_t e = 0; e < UNIT; e++) {
            gpu_store(xs, (unit + e) * PRODUCT_TILE + lane, share.x[e]);
            gpu_store(ws, (unit + e) * PRODUCT_TILE + lane, share.w[e]);
        }
        gpu_barrier();
        share = product_fetch(p, token0 + lane, row0 + lane, col + PRODUCT_STEP + unit); /* none behind the last column */
        product_add(xs + quarter * PRODUCT_QUARTER * PRODUCT_TILE, ws + quarter * PRODUCT_QUARTER * PRODUCT_TILE, token, row, sum);
    }
    gpu_barrier();
    GPU_SHARED(f32) *half = quarter < 2 ? xs : ws; /* two quarters fit each: [quarter, token, row] */
    GPU_UNROLL
    for (int32_t i = 0; i < 16; i++)
        gpu_store(half, quarter % 2 * (PRODUCT_TILE * PRODUCT_TILE) + (token + i / 4) * PRODUCT_TILE + row + i % 4, sum[i]);
    gpu_barrier();
    for (int32_t i = thread; i < PRODUCT_TILE * PRODUCT_TILE; i += PRODUCT_THREADS) {
        const int64_t t = token0 + i / PRODUCT_TILE, r = row0 + i % PRODUCT_TILE;
        if (t >= p->n || r >= p->rows) continue;
        const float all = gpu_load(xs, i) + gpu_load(xs, PRODUCT_TILE * PRODUCT_TILE + i) + gpu_load(ws, i) +
                          gpu_load(ws, PRODUCT_TILE * PRODUCT_TILE + i);
        const float bias = p->bias.type == MOX_GPU_NONE ? 0.0f : stored_number(p->bias.data, (int32_t)p->bias.type, r);
        gpu_store(p->y, t * p->y_stride + r, all + bias);
    }
}

#endif
