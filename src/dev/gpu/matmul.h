/* dev/gpu/matmul.h -- products of weights with many tokens, on tiles.
 *
 * Operands are f16, sums f32: what the default class of exactness allows for prompts.  A token's
 * activations are scaled by a power of two first (half_rows), as real ones leave the range of f16;
 * weights are decoded as they come in and rounded to f16.  Who wants f32 takes matvec.h.
 *
 * A group makes 128 tokens by 128 rows of W, a wave 64 by 64 of them.  Going along the columns in
 * steps of 32, while one half of the shared memory is multiplied, the other half is filled: tokens
 * by copies in flight, weights through registers.  So one barrier per step is enough: it says that
 * a half is full, and that the other is not read any more.
 *
 * The kernels come twice: for any layout of weights, and (_q4) for affine ones of 4 bits, whose 32
 * codes of a step and row are one quad and have one scale, as groups are multiples of 32. */
#ifndef MOX_DEV_GPU_MATMUL_H
#define MOX_DEV_GPU_MATMUL_H

#include "dev/gpu/group.h"
#include "dev/gpu/mat.h"

enum {
    MM_TOKENS = MOX_GPU_TILE_TOKENS,
    MM_ROWS = MOX_GPU_TILE_ROWS,
    MM_STEP = 32, /* columns */
    MM_THREADS = 128,
    MM_HALF = MM_TOKENS * MM_STEP, /* numbers of half the shared memory, of tokens or of weights */
    MM_COPIES = MM_HALF / 8 / MM_THREADS,
    WAVE_TILES = 4, /* 64 by 64, so 4 by 4 tiles */
    HALF_THREADS = 128
};

/* ---- half_rows ---- */

GPU_KERNEL(half_rows, HALF_THREADS)
{
    GPU_SHARED_ARRAY(f32, scratch, HALF_THREADS / GPU_LANES);
    const int32_t thread = gpu_thread();
    const int64_t t = gpu_group_x();
    const GPU_GLOBAL(f32) *x = p->x + t * p->x_stride;
    float largest = 0.0f;
    for (int64_t i = thread; i < p->cols; i += HALF_THREADS) largest = gpu_max(largest, gpu_abs(gpu_load(x, i)));
    largest = group_max(largest, scratch, thread, HALF_THREADS);
    /* The largest comes to lie in [2^14, 2^15); zeros and infinities stay as they are. */
    uint32_t exponent = gpu_f32_bits(largest) >> 23;
    if (exponent == 255u || largest == 0.0f) exponent = 141u;
    if (exponent < 15u) exponent = 15u;
    const float down = gpu_bits_f32((268u - exponent) << 23), up = gpu_bits_f32((exponent - 14u) << 23);
    if (thread == 0) gpu_store(p->scale, t, up);
    for (int64_t i = thread; i < p->half_stride; i += HALF_THREADS)
        gpu_store(p->half, t * p->half_stride + i, gpu_f32_to_f16(i < p->cols ? gpu_load(x, i) * down : 0.0f));
}

/* ---- weights ---- */

/* The row of W that a thread brings in; beyond the last one there are zeros. */
typedef struct weight_row {
    mox_gpu_mat m;
    int64_t row;
    bool there;
} weight_row;

/* Codes of one step on their way. */
typedef struct codes_q4 {
    gpu_quad codes;
    float scale, bias;
} codes_q4;

GPU_FN codes_q4 no_codes(void)
{
    codes_q4 c;
    c.codes.w[0] = c.codes.w[1] = c.codes.w[2] = c.codes.w[3] = 0u;
    c.scale = 0.0f;
    c.bias = 0.0f;
    return c;
}

GPU_FN codes_q4 fetch_q4(weight_row r, int64_t step)
{
    codes_q4 c = no_codes();
    if (!r.there) return c;
    c.codes = gpu_load_quad(r.m.w, r.row * r.m.row_bytes + step * 16);
    const int64_t at = r.row * r.m.scale_cols + (step >> (r.m.group == 128 ? 2 : r.m.group / 64));
    c.scale = stored_number(r.m.scales, r.m.scale_type, at);
    c.bias = stored_number(r.m.biases, r.m.scale_type, at);
    return c;
}

/* A code below an exponent of 1 is 1 + code / 16, without a conversion. */
GPU_FN float number_q4(uint32_t word, int32_t i, float scale16, float bias)
{
    const uint32_t code = 4 * i < 19 ? word << (19 - 4 * i) : word >> (4 * i - 19);
    return gpu_bits_f32(0x3F800000u | (code & 0x00780000u)) * scale16 + bias;
}

GPU_FN void store_q4(GPU_SHARED(u16) *tile, codes_q4 c, int32_t thread)
{
    const float scale16 = 16.0f * c.scale, bias = c.bias - scale16;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        gpu_quad q;
        GPU_UNROLL
        for (int32_t j = 0; j < 4; j++)
            q.w[j] = gpu_pack_f16(number_q4(c.codes.w[i], 2 * j, scale16, bias), number_q4(c.codes.w[i], 2 * j + 1, scale16, bias));
        gpu_store_quad(tile, gpu_tile_at(thread, 8 * i, MM_STEP), q);
    }
}

GPU_FN void store_any(GPU_SHARED(u16) *tile, weight_row r, int64_t step, int32_t thread)
{
    for (int32_t i = 0; i < MM_STEP / UNIT; i++) {
        const int64_t col = step * MM_STEP + i * UNIT;
        float v[UNIT];
        gpu_quad q;
        GPU_UNROLL
        for (int32_t j = 0; j < UNIT; j++) v[j] = 0.0f;
        if (r.there && col < r.m.cols) mat_unit(r.m, r.row, col, v);
        GPU_UNROLL
        for (int32_t j = 0; j < UNIT / 2; j++) q.w[j] = gpu_pack_f16(v[2 * j], v[2 * j + 1]);
        gpu_store_quad(tile, gpu_tile_at(thread, UNIT * i, MM_STEP), q);
    }
}

/* ---- tokens ---- */

/* Thread t copies chunk t % 4 of the rows t / 4 + 32 i; at[i] < 0: there is no such token. */
GPU_FN void copy_tokens(GPU_SHARED(u16) *tile, const GPU_GLOBAL(u16) *x, const GPU_PRIVATE(i64) *at, int64_t step, int32_t thread)
{
    const int32_t col = thread % 4 * 8;
    GPU_UNROLL
    for (int32_t i = 0; i < MM_COPIES; i++)
        gpu_copy_quad(tile, gpu_tile_at(thread / 4 + 32 * i, col, MM_STEP), x, (at[i] < 0 ? 0 : at[i]) + step * MM_STEP + col, at[i] >= 0);
    gpu_copy_commit();
}

/* ---- the product ---- */

/* Tile row i of a wave: waves that share rows of W take turns, so that few tokens are few tiles for both. */
GPU_FN int32_t wave_token(int32_t wave, int32_t i) { return (2 * i + wave % 2) * 16; }
GPU_FN int32_t wave_row(int32_t wave, int32_t j) { return wave / 2 * 64 + j * 16; }

GPU_FN void multiply_step(const GPU_SHARED(u16) *tokens, const GPU_SHARED(u16) *weights, int64_t n, int32_t wave, int32_t lane,
                          GPU_PRIVATE(tile_c) *c)
{
    GPU_UNROLL
    for (int32_t k = 0; k < MM_STEP; k += 16) {
        gpu_tile_b b[WAVE_TILES];
        GPU_UNROLL
        for (int32_t j = 0; j < WAVE_TILES; j++) b[j] = gpu_tile_load_b(weights, wave_row(wave, j), k, MM_STEP, lane);
        GPU_UNROLL
        for (int32_t i = 0; i < WAVE_TILES; i++) {
            if (wave_token(wave, i) >= n) continue; /* the whole wave */
            const gpu_tile_a a = gpu_tile_load_a(tokens, wave_token(wave, i), k, MM_STEP, lane);
            GPU_UNROLL
            for (int32_t j = 0; j < WAVE_TILES; j++) gpu_tile_mma(&c[i * WAVE_TILES + j], a, b[j]);
        }
    }
}

/* c = tokens at[] times the rows r of all threads; n tokens are there. */
GPU_FN void multiply(GPU_SHARED(u16) *tokens, GPU_SHARED(u16) *weights, const GPU_GLOBAL(u16) *x, const GPU_PRIVATE(i64) *at, int64_t n,
                     weight_row r, bool is_q4, int32_t thread, GPU_PRIVATE(tile_c) *c)
{
    const int32_t lane = thread % GPU_LANES, wave = thread / GPU_LANES;
    const int64_t n_steps = (r.m.cols + MM_STEP - 1) / MM_STEP;
    codes_q4 codes = no_codes();
    GPU_UNROLL
    for (int32_t i = 0; i < WAVE_TILES * WAVE_TILES; i++) c[i] = gpu_tile_zero();
    copy_tokens(tokens, x, at, 0, thread);
    if (is_q4) store_q4(weights, fetch_q4(r, 0), thread);
    else store_any(weights, r, 0, thread);
    for (int64_t step = 0; step < n_steps; step++) {
        const int32_t here = (int32_t)(step % 2) * MM_HALF, next = MM_HALF - here;
        const bool more = step + 1 < n_steps;
        gpu_copy_wait(0);
        gpu_barrier();
        if (more) copy_tokens(tokens + next, x, at, step + 1, thread);
        if (more && is_q4) codes = fetch_q4(r, step + 1);
        multiply_step(tokens + here, weights + here, n, wave, lane, c);
        if (more && is_q4) store_q4(weights + next, codes, thread);
        if (more && !is_q4) store_any(weights + next, r, step + 1, thread);
    }
}

/* ---- one matrix ---- */

GPU_FN void matmul_group(const GPU_CONSTANT(mox_gpu_matmul) *p, GPU_SHARED(u16) *tokens, GPU_SHARED(u16) *weights, bool is_q4,
                         int64_t t0, int64_t row0, int32_t thread)
{
    const int32_t lane = thread % GPU_LANES, wave = thread / GPU_LANES;
    int64_t at[MM_COPIES];
    GPU_UNROLL
    for (int32_t i = 0; i < MM_COPIES; i++) {
        const int64_t t = t0 + thread / 4 + 32 * i;
        at[i] = t < p->n ? t * p->x_stride : -1;
    }
    weight_row r;
    r.m = p->w;
    r.row = row0 + thread;
    r.there = r.row < p->rows;
    gpu_tile_c c[WAVE_TILES * WAVE_TILES];
    multiply(tokens, weights, p->x, at, p->n - t0, r, is_q4, thread, c);
    GPU_UNROLL
    for (int32_t i = 0; i < WAVE_TILES; i++) {
        GPU_UNROLL
        for (int32_t half = 0; half < 2; half++) {
            const int64_t t = t0 + wave_token(wave, i) + gpu_tile_row(lane, 2 * half);
            if (t >= p->n) continue;
            const float scale = gpu_load(p->x_scale, t);
            GPU_UNROLL
            for (int32_t j = 0; j < WAVE_TILES * 4; j++) {
                const int32_t e = (j & 1) | half * 2 | (j & 2) * 2;
                const int64_t row = row0 + wave_row(wave, j / 4) + gpu_tile_col(lane, e);
                if (row >= p->rows) continue;
                const float bias = p->bias.type == MOX_GPU_NONE ? 0.0f : stored_number(p->bias.data, (int32_t)p->bias.type, row);
                gpu_store(p->y, t * p->y_stride + row, gpu_tile_get(c[i * WAVE_TILES + j / 4], e) * scale + bias);
            }
        }
    }
}

GPU_KERNEL(matmul, MM_THREADS)
{
    GPU_SHARED_ARRAY(u16, tokens, 2 * MM_HALF);
    GPU_SHARED_ARRAY(u16, weights, 2 * MM_HALF);
    matmul_group(p, tokens, weights, false, gpu_group_x() * MM_TOKENS, gpu_group_y() * MM_ROWS, gpu_thread());
}

GPU_KERNEL(matmul_q4, MM_THREADS)
{
    GPU_SHARED_ARRAY(u16, tokens, 2 * MM_HALF);
    GPU_SHARED_ARRAY(u16, weights, 2 * MM_HALF);
    matmul_group(p, tokens, weights, true, gpu_group_x() * MM_TOKENS, gpu_group_y() * MM_ROWS, gpu_thread());
}

/* ---- experts ---- */

GPU_FN int64_t tile_listed_row(const GPU_GLOBAL(i32) *list, int64_t place) { return list ? gpu_load(list, place) : place; }

/* Where the tokens begin that a thread copies. */
GPU_FN void tile_tokens(const GPU_CONSTANT(mox_gpu_experts_tiles) *p, mox_gpu_expert_tile tile, int32_t thread, GPU_PRIVATE(i64) *at)
{
    GPU_UNROLL
    for (int32_t i = 0; i < MM_COPIES; i++) {
        const int64_t t = thread / 4 + 32 * i;
        at[i] = t < tile.n ? tile_listed_row(p->x_row, tile.place + t) / p->x_divisor * p->x_stride : -1;
    }
}

GPU_FN void gate_up_group(const GPU_CONSTANT(mox_gpu_experts_tiles) *p, GPU_SHARED(u16) *tokens, GPU_SHARED(u16) *weights, bool is_q4,
                          mox_gpu_expert_tile tile, int64_t row0, int32_t thread)
{
    const int32_t lane = thread % GPU_LANES, wave = thread / GPU_LANES;
    int64_t at[MM_COPIES];
    tile_tokens(p, tile, thread, at);
    /* A wave has 32 rows of gate and then the same 32 of up. */
    weight_row r;
    r.m = gpu_load(thread % 64 < 32 ? p->gate : p->up, tile.expert);
    r.row = row0 + thread / 64 * 32 + thread % 32;
    r.there = r.row < p->rows;
    gpu_tile_c c[WAVE_TILES * WAVE_TILES];
    multiply(tokens, weights, p->x, at, tile.n, r, is_q4, thread, c);
    GPU_UNROLL
    for (int32_t i = 0; i < WAVE_TILES; i++) {
        GPU_UNROLL
        for (int32_t half = 0; half < 2; half++) {
            const int64_t t = wave_token(wave, i) + gpu_tile_row(lane, 2 * half), place = tile.place + t;
            if (t >= tile.n) continue;
            const float scale = gpu_load(p->x_scale, tile_listed_row(p->x_row, place) / p->x_divisor);
            const int64_t to = tile_listed_row(p->y_row, place) * p->y_stride;
            GPU_UNROLL
            for (int32_t j = 0; j < WAVE_TILES * 2; j++) {
                const int32_t e = (j & 1) | half * 2 | (j & 2) * 2;
                const int64_t row = row0 + wave / 2 * 32 + j / 4 * 16 + gpu_tile_col(lane, e);
                if (row >= p->rows) continue;
                const float gate = gpu_tile_get(c[i * WAVE_TILES + j / 4], e), up = gpu_tile_get(c[i * WAVE_TILES + 2 + j / 4], e);
                gpu_store(p->y, to + row, silu(gate * scale) * (up * scale));
            }
        }
    }
}

GPU_KERNEL(experts_gate_up_tiles, MM_THREADS)
{
    GPU_SHARED_ARRAY(u16, tokens, 2 * MM_HALF);
    GPU_SHARED_ARRAY(u16, weights, 2 * MM_HALF);
    const mox_gpu_expert_tile tile = gpu_load(p->tiles, gpu_group_y());
    if (tile.n == 0) return; /* the whole group */
    gate_up_group(p, tokens, weights, false, tile, gpu_group_x() * (MM_ROWS / 2), gpu_thread());
}

GPU_KERNEL(experts_gate_up_tiles_q4, MM_THREADS)
{
    GPU_SHARED_ARRAY(u16, tokens, 2 * MM_HALF);
    GPU_SHARED_ARRAY(u16, weights, 2 * MM_HALF);
    const mox_gpu_expert_tile tile = gpu_load(p->tiles, gpu_group_y());
    if (tile.n == 0) return; /* the whole group */
    gate_up_group(p, tokens, weights, true, tile, gpu_group_x() * (MM_ROWS / 2), gpu_thread());
}

GPU_FN void down_group(const GPU_CONSTANT(mox_gpu_experts_tiles) *p, GPU_SHARED(u16) *tokens, GPU_SHARED(u16) *weights, bool is_q4,
                       mox_gpu_expert_tile tile, int64_t row0, int32_t thread)
{
    const int32_t lane = thread % GPU_LANES, wave = thread / GPU_LANES;
    int64_t at[MM_COPIES];
    tile_tokens(p, tile, thread, at);
    weight_row r;
    r.m = gpu_load(p->gate, tile.expert);
    r.row = row0 + thread;
    r.there = r.row < p->rows;
    gpu_tile_c c[WAVE_TILES * WAVE_TILES];
    multiply(tokens, weights, p->x, at, tile.n, r, is_q4, thread, c);
    GPU_UNROLL
    for (int32_t i = 0; i < WAVE_TILES; i++) {
        GPU_UNROLL
        for (int32_t half = 0; half < 2; half++) {
            const int64_t t = wave_token(wave, i) + gpu_tile_row(lane, 2 * half), place = tile.place + t;
            if (t >= tile.n) continue;
            const float scale = gpu_load(p->x_scale, tile_listed_row(p->x_row, place) / p->x_divisor);
            const int64_t to = tile_listed_row(p->y_row, place) * p->y_stride;
            GPU_UNROLL
            for (int32_t j = 0; j < WAVE_TILES * 4; j++) {
                const int32_t e = (j & 1) | half * 2 | (j & 2) * 2;
                const int64_t row = row0 + wave_row(wave, j / 4) + gpu_tile_col(lane, e);
                if (row < p->rows) gpu_store(p->y, to + row, gpu_tile_get(c[i * WAVE_TILES + j / 4], e) * scale);
            }
        }
    }
}

GPU_KERNEL(experts_down_tiles, MM_THREADS)
{
    GPU_SHARED_ARRAY(u16, tokens, 2 * MM_HALF);
    GPU_SHARED_ARRAY(u16, weights, 2 * MM_HALF);
    const mox_gpu_expert_tile tile = gpu_load(p->tiles, gpu_group_y());
    if (tile.n == 0) return; /* the whole group */
    down_group(p, tokens, weights, false, tile, gpu_group_x() * MM_ROWS, gpu_thread());
}

GPU_KERNEL(experts_down_tiles_q4, MM_THREADS)
{
    GPU_SHARED_ARRAY(u16, tokens, 2 * MM_HALF);
    GPU_SHARED_ARRAY(u16, weights, 2 * MM_HALF);
    const mox_gpu_expert_tile tile = gpu_load(p->tiles, gpu_group_y());
    if (tile.n == 0) return; /* the whole group */
    down_group(p, tokens, weights, true, tile, gpu_group_x() * MM_ROWS, gpu_thread());
}

#endif
