/* dev/gpu/matmul.h -- products of weights with many tokens, on tiles.
 *
 * Operands are f16, sums f32: what the default class of exactness allows for prompts.  A token's
 * activations are scaled by a power of two first (half_rows), as real ones leave the range of f16;
 * weights are decoded as they come in and rounded to f16.  Who wants f32 takes matvec.h.
 *
 * A group makes 128 rows of W by 128 tokens, a wave 32 rows by all of these.  It goes along the
 * columns in steps of 64.  Weights never see shared memory: a lane decodes what it holds of a tile,
 * which is to be its share of the product's columns; a sum does not mind the order of its terms, so
 * the columns of a step are dealt out such that a lane's are 16 in a row of the file, and half_rows
 * deals out the tokens' in the same way.  While tokens of a step are multiplied, the next ones are
 * copied to the other half of shared memory and the next codes to registers, so that one barrier
 * per step is enough: it says that a half is full and that the other is not read any more.
 *
 * The kernels come twice: for any layout of weights, and (_q4) for affine ones of 4 bits, where a
 * lane's 16 codes are one u64 and have one scale, as groups are multiples of 32. */
#ifndef MOX_DEV_GPU_MATMUL_H
#define MOX_DEV_GPU_MATMUL_H

#include "dev/gpu/group.h"
#include "dev/gpu/mat.h"

enum {
    MM_TOKENS = MOX_GPU_TILE_TOKENS,
    MM_ROWS = MOX_GPU_TILE_ROWS,
    MM_STEP = MOX_GPU_TILE_COLS,
    MM_THREADS = 128,
    MM_HALF = MM_TOKENS * MM_STEP, /* numbers of half the shared memory */
    MM_OWN = 2,                    /* tokens that a thread copies half of */
    ROW_TILES = 2,                 /* of a wave */
    TOKEN_TILES = MM_TOKENS / 16,
    HALF_THREADS = 128
};

/* Where column i is kept within its step: lane q of a row has the columns 16 q to 16 q + 15, four of
 * them in each of four tiles, at 2 q, 2 q + 1, 2 q + 8 and 2 q + 9. */
GPU_FN int32_t dealt_column(int32_t i) { return (i & 12) * 4 + (i >> 4) * 2 + (i & 1) + (i & 2) * 4; }

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
        gpu_store(p->half, t * p->half_stride + i / MM_STEP * MM_STEP + dealt_column((int32_t)(i % MM_STEP)),
                  gpu_f32_to_f16(i < p->cols ? gpu_load(x, i) * down : 0.0f));
}

/* ---- weights ---- */

/* The 16 rows of W that a tile of a wave holds; beyond n of them there are zeros. */
typedef struct weight_rows {
    mox_gpu_mat m;
    int64_t row, n;
} weight_rows;
GPU_TYPE(weight_rows, weight_rows);

/* A lane's part of one step and tile: two rows, 16 columns. */
typedef struct codes_q4 {
    uint64_t codes[2];
    float scale[2], bias[2];
} codes_q4;

GPU_FN int32_t lane_share(int32_t lane) { return gpu_tile_col(lane, 0) / 2; }

GPU_FN codes_q4 fetch_q4(weight_rows r, int64_t step, int32_t lane)
{
    const int64_t part = step * 4 + lane_share(lane);
    codes_q4 c;
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        const int32_t i = gpu_tile_row(lane, 2 * h);
        c.codes[h] = 0u;
        c.scale[h] = 0.0f;
        c.bias[h] = 0.0f;
        if (i >= r.n || part * 16 >= r.m.cols) continue;
        c.codes[h] = gpu_load(GPU_CAST(u64, r.m.w + (r.row + i) * r.m.row_bytes), part);
        const int64_t at = (r.row + i) * r.m.scale_cols + (part >> (r.m.group == 128 ? 3 : r.m.group / 32));
        c.scale[h] = stored_number(r.m.scales, r.m.scale_type, at);
        c.bias[h] = stored_number(r.m.biases, r.m.scale_type, at);
    }
    return c;
}

/* A code below an exponent of 1 is 1 + code / 16, without a conversion. */
GPU_FN float number_q4(uint32_t word, int32_t i, float scale16, float bias)
{
    const uint32_t code = 4 * i < 19 ? word << (19 - 4 * i) : word >> (4 * i - 19);
    return gpu_bits_f32(0x3F800000u | (code & 0x00780000u)) * scale16 + bias;
}

/* Which of its 4 columns of a tile element e of a lane is. */
GPU_FN int32_t dealt_element(int32_t e) { return (e & 1) | (e & 4) / 2; }

GPU_FN gpu_tile_a tile_q4(codes_q4 c, int32_t tile)
{
    gpu_tile_c v = gpu_tile_zero();
    GPU_UNROLL
    for (int32_t e = 0; e < 8; e++) {
        const int32_t h = e / 2 % 2;
        const float scale16 = 16.0f * c.scale[h], bias = c.bias[h] - scale16;
        gpu_tile_set(&v, e, number_q4((uint32_t)(c.codes[h] >> (tile / 2 * 32)), tile % 2 * 4 + dealt_element(e), scale16, bias));
    }
    return gpu_tile_a_of(v);
}

/* Two rows of 8 columns: what a lane has of the tiles 2 pair and 2 pair + 1. */
GPU_FN void units_any(weight_rows r, int64_t step, int32_t pair, int32_t lane, GPU_PRIVATE(f32) *v)
{
    const int64_t col = step * MM_STEP + lane_share(lane) * 16 + pair * UNIT;
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        const int32_t i = gpu_tile_row(lane, 2 * h);
        GPU_UNROLL
        for (int32_t e = 0; e < UNIT; e++) v[h * UNIT + e] = 0.0f;
        if (i < r.n && col < r.m.cols) mat_unit(r.m, r.row + i, col, v + h * UNIT);
    }
}

GPU_FN gpu_tile_a tile_any(const GPU_PRIVATE(f32) *units, int32_t tile)
{
    gpu_tile_c v = gpu_tile_zero();
    GPU_UNROLL
    for (int32_t e = 0; e < 8; e++) gpu_tile_set(&v, e, units[e / 2 % 2 * UNIT + tile % 2 * 4 + dealt_element(e)]);
    return gpu_tile_a_of(v);
}

/* ---- tokens ---- */

/* Thread t copies every other quad of the tokens t / 2 and t / 2 + 64; at[i] < 0: there is no such token. */
GPU_FN void copy_tokens(GPU_SHARED(u16) *tile, const GPU_GLOBAL(u16) *x, const GPU_PRIVATE(i64) *at, int64_t step, int32_t thread)
{
    GPU_UNROLL
    for (int32_t i = 0; i < MM_OWN; i++) {
        GPU_UNROLL
        for (int32_t j = 0; j < MM_STEP / 16; j++) {
            const int32_t col = j * 16 + thread % 2 * 8;
            gpu_copy_quad(tile, gpu_tile_at(thread / 2 + 64 * i, col, MM_STEP), x, (at[i] < 0 ? 0 : at[i]) + step * MM_STEP + col,
                          at[i] >= 0);
        }
    }
    gpu_copy_commit();
}

/* ---- the product ---- */

/* c[a, j] += tile of rows a times tile of tokens j; n tokens are there. */
GPU_FN void multiply_tiles(const GPU_SHARED(u16) *tokens, const GPU_PRIVATE(tile_a) *a, int32_t tile, int64_t n, bool full, int32_t lane,
                           GPU_PRIVATE(tile_c) *c)
{
    GPU_UNROLL
    for (int32_t j = 0; j < TOKEN_TILES; j++) {
        if (!full && j * 16 >= n) continue; /* the whole group */
        const gpu_tile_b b = gpu_tile_load_b(tokens, j * 16, tile * 16, MM_STEP, lane);
        GPU_UNROLL
        for (int32_t i = 0; i < ROW_TILES; i++) gpu_tile_mma(&c[i * TOKEN_TILES + j], a[i], b);
    }
}

/* c = the wave's rows times the tokens at[] of all threads. */
GPU_FN void multiply(GPU_SHARED(u16) *tokens, const GPU_GLOBAL(u16) *x, const GPU_PRIVATE(i64) *at, int64_t n, bool full,
                     const GPU_PRIVATE(weight_rows) *r, bool is_q4, int32_t thread, GPU_PRIVATE(tile_c) *c)
{
    const int32_t lane = thread % GPU_LANES;
    const int64_t n_steps = (r[0].m.cols + MM_STEP - 1) / MM_STEP;
    codes_q4 next[ROW_TILES];
    GPU_UNROLL
    for (int32_t i = 0; i < ROW_TILES * TOKEN_TILES; i++) c[i] = gpu_tile_zero();
    copy_tokens(tokens, x, at, 0, thread);
    GPU_UNROLL
    for (int32_t i = 0; i < ROW_TILES; i++)
        if (is_q4) next[i] = fetch_q4(r[i], 0, lane);
    for (int64_t step = 0; step < n_steps; step++) {
        const int32_t here = (int32_t)(step % 2) * MM_HALF;
        codes_q4 codes[ROW_TILES];
        gpu_copy_wait(0);
        gpu_barrier();
        if (step + 1 < n_steps) copy_tokens(tokens + (MM_HALF - here), x, at, step + 1, thread);
        GPU_UNROLL
        for (int32_t i = 0; i < ROW_TILES; i++) {
            if (!is_q4) continue;
            codes[i] = next[i];
            next[i] = fetch_q4(r[i], step + 1, lane); /* none behind the last column */
        }
        GPU_UNROLL
        for (int32_t tile = 0; tile < MM_STEP / 16; tile += 2) {
            float units[ROW_TILES * 2 * UNIT];
            GPU_UNROLL
            for (int32_t i = 0; i < ROW_TILES; i++)
                if (!is_q4) units_any(r[i], step, tile / 2, lane, units + i * 2 * UNIT);
            GPU_UNROLL
            for (int32_t odd = 0; odd < 2; odd++) {
                gpu_tile_a a[ROW_TILES];
                GPU_UNROLL
                for (int32_t i = 0; i < ROW_TILES; i++)
                    a[i] = is_q4 ? tile_q4(codes[i], tile + odd) : tile_any(units + i * 2 * UNIT, tile + odd);
                multiply_tiles(tokens + here, a, tile + odd, n, full, lane, c);
            }
        }
    }
}

/* The kernel's code twice: few tokens are few tiles, and many need not ask. */
GPU_FN void multiply_some(GPU_SHARED(u16) *tokens, const GPU_GLOBAL(u16) *x, const GPU_PRIVATE(i64) *at, int64_t n,
                          const GPU_PRIVATE(weight_rows) *r, bool is_q4, int32_t thread, GPU_PRIVATE(tile_c) *c)
{
    if (n > MM_TOKENS - 16) multiply(tokens, x, at, n, true, r, is_q4, thread, c);
    else multiply(tokens, x, at, n, false, r, is_q4, thread, c);
}

/* ---- one matrix ---- */

GPU_FN void matmul_group(const GPU_CONSTANT(mox_gpu_matmul) *p, GPU_SHARED(u16) *tokens, bool is_q4, int64_t t0, int64_t row0,
                         int32_t thread)
{
    const int32_t lane = thread % GPU_LANES;
    const int64_t first = row0 + thread / GPU_LANES * (ROW_TILES * 16);
    int64_t at[MM_OWN];
    GPU_UNROLL
    for (int32_t i = 0; i < MM_OWN; i++) {
        const int64_t t = t0 + thread / 2 + 64 * i;
        at[i] = t < p->n ? t * p->x_stride : -1;
    }
    weight_rows r[ROW_TILES];
    GPU_UNROLL
    for (int32_t i = 0; i < ROW_TILES; i++) {
        r[i].m = p->w;
        r[i].row = first + i * 16;
        r[i].n = p->rows - r[i].row;
    }
    gpu_tile_c c[ROW_TILES * TOKEN_TILES];
    multiply_some(tokens, p->x, at, p->n - t0, r, is_q4, thread, c);
    GPU_UNROLL
    for (int32_t i = 0; i < ROW_TILES * 2; i++) {
        const int64_t row = first + i / 2 * 16 + gpu_tile_row(lane, i % 2 * 2);
        if (row >= p->rows) continue;
        const float bias = p->bias.type == MOX_GPU_NONE ? 0.0f : stored_number(p->bias.data, (int32_t)p->bias.type, row);
        GPU_UNROLL
        for (int32_t j = 0; j < TOKEN_TILES * 4; j++) {
            const int32_t e = (j & 1) | i % 2 * 2 | (j & 2) * 2;
            const int64_t t = t0 + j / 4 * 16 + gpu_tile_col(lane, e);
            if (t < p->n) gpu_store(p->y, t * p->y_stride + row, gpu_tile_get(c[i / 2 * TOKEN_TILES + j / 4], e) * gpu_load(p->x_scale, t) + bias);
        }
    }
}

GPU_KERNEL(matmul, MM_THREADS)
{
    GPU_SHARED_ARRAY(u16, tokens, 2 * MM_HALF);
    matmul_group(p, tokens, false, gpu_group_x() * MM_TOKENS, gpu_group_y() * MM_ROWS, gpu_thread());
}

GPU_KERNEL(matmul_q4, MM_THREADS)
{
    GPU_SHARED_ARRAY(u16, tokens, 2 * MM_HALF);
    matmul_group(p, tokens, true, gpu_group_x() * MM_TOKENS, gpu_group_y() * MM_ROWS, gpu_thread());
}

/* ---- experts ---- */

GPU_FN int64_t tile_listed_row(const GPU_GLOBAL(i32) *list, int64_t place) { return list ? gpu_load(list, place) : place; }

/* Where the tokens begin that a thread copies. */
GPU_FN void tile_tokens(const GPU_CONSTANT(mox_gpu_experts_tiles) *p, mox_gpu_expert_tile tile, int32_t thread, GPU_PRIVATE(i64) *at)
{
    GPU_UNROLL
    for (int32_t i = 0; i < MM_OWN; i++) {
        const int64_t t = thread / 2 + 64 * i;
        at[i] = t < tile.n ? tile_listed_row(p->x_row, tile.place + t) / p->x_divisor * p->x_stride : -1;
    }
}

/* A wave has 16 rows of gate and the same 16 of up. */
GPU_FN void gate_up_group(const GPU_CONSTANT(mox_gpu_experts_tiles) *p, GPU_SHARED(u16) *tokens, bool is_q4, mox_gpu_expert_tile tile,
                          int64_t row0, int32_t thread)
{
    const int32_t lane = thread % GPU_LANES;
    const int64_t first = row0 + thread / GPU_LANES * 16;
    int64_t at[MM_OWN];
    tile_tokens(p, tile, thread, at);
    weight_rows r[ROW_TILES];
    r[0].m = gpu_load(p->gate, tile.expert);
    r[1].m = gpu_load(p->up, tile.expert);
    r[0].row = r[1].row = first;
    r[0].n = r[1].n = p->rows - first;
    gpu_tile_c c[ROW_TILES * TOKEN_TILES];
    multiply_some(tokens, p->x, at, tile.n, r, is_q4, thread, c);
    GPU_UNROLL
    for (int32_t j = 0; j < TOKEN_TILES * 4; j++) {
        const int64_t t = j / 4 * 16 + gpu_tile_col(lane, (j & 1) | (j & 2) * 2), place = tile.place + t;
        if (t >= tile.n) continue;
        const float scale = gpu_load(p->x_scale, tile_listed_row(p->x_row, place) / p->x_divisor);
        const int64_t to = tile_listed_row(p->y_row, place) * p->y_stride;
        GPU_UNROLL
        for (int32_t h = 0; h < 2; h++) {
            const int32_t e = (j & 1) | h * 2 | (j & 2) * 2;
            const int64_t row = first + gpu_tile_row(lane, e);
            if (row >= p->rows) continue;
            gpu_store(p->y, to + row, silu(gpu_tile_get(c[j / 4], e) * scale) * (gpu_tile_get(c[TOKEN_TILES + j / 4], e) * scale));
        }
    }
}

GPU_KERNEL(experts_gate_up_tiles, MM_THREADS)
{
    GPU_SHARED_ARRAY(u16, tokens, 2 * MM_HALF);
    const mox_gpu_expert_tile tile = gpu_load(p->tiles, gpu_group_y());
    if (tile.n == 0) return; /* the whole group */
    gate_up_group(p, tokens, false, tile, gpu_group_x() * (MM_ROWS / 2), gpu_thread());
}

GPU_KERNEL(experts_gate_up_tiles_q4, MM_THREADS)
{
    GPU_SHARED_ARRAY(u16, tokens, 2 * MM_HALF);
    const mox_gpu_expert_tile tile = gpu_load(p->tiles, gpu_group_y());
    if (tile.n == 0) return; /* the whole group */
    gate_up_group(p, tokens, true, tile, gpu_group_x() * (MM_ROWS / 2), gpu_thread());
}

GPU_FN void down_group(const GPU_CONSTANT(mox_gpu_experts_tiles) *p, GPU_SHARED(u16) *tokens, bool is_q4, mox_gpu_expert_tile tile,
                       int64_t row0, int32_t thread)
{
    const int32_t lane = thread % GPU_LANES;
    const int64_t first = row0 + thread / GPU_LANES * (ROW_TILES * 16);
    int64_t at[MM_OWN];
    tile_tokens(p, tile, thread, at);
    weight_rows r[ROW_TILES];
    r[0].m = r[1].m = gpu_load(p->gate, tile.expert);
    r[0].row = first;
    r[1].row = first + 16;
    r[0].n = p->rows - r[0].row;
    r[1].n = p->rows - r[1].row;
    gpu_tile_c c[ROW_TILES * TOKEN_TILES];
    multiply_some(tokens, p->x, at, tile.n, r, is_q4, thread, c);
    GPU_UNROLL
    for (int32_t j = 0; j < TOKEN_TILES * 4; j++) {
        const int64_t t = j / 4 * 16 + gpu_tile_col(lane, (j & 1) | (j & 2) * 2), place = tile.place + t;
        if (t >= tile.n) continue;
        const float scale = gpu_load(p->x_scale, tile_listed_row(p->x_row, place) / p->x_divisor);
        const int64_t to = tile_listed_row(p->y_row, place) * p->y_stride;
        GPU_UNROLL
        for (int32_t i = 0; i < ROW_TILES * 2; i++) {
            const int32_t e = (j & 1) | i % 2 * 2 | (j & 2) * 2;
            const int64_t row = first + i / 2 * 16 + gpu_tile_row(lane, e);
            if (row < p->rows) gpu_store(p->y, to + row, gpu_tile_get(c[i / 2 * TOKEN_TILES + j / 4], e) * scale);
        }
    }
}

GPU_KERNEL(experts_down_tiles, MM_THREADS)
{
    GPU_SHARED_ARRAY(u16, tokens, 2 * MM_HALF);
    const mox_gpu_expert_tile tile = gpu_load(p->tiles, gpu_group_y());
    if (tile.n == 0) return; /* the whole group */
    down_group(p, tokens, false, tile, gpu_group_x() * MM_ROWS, gpu_thread());
}

GPU_KERNEL(experts_down_tiles_q4, MM_THREADS)
{
    GPU_SHARED_ARRAY(u16, tokens, 2 * MM_HALF);
    const mox_gpu_expert_tile tile = gpu_load(p->tiles, gpu_group_y());
    if (tile.n == 0) return; /* the whole group */
    down_group(p, tokens, true, tile, gpu_group_x() * MM_ROWS, gpu_thread());
}

#endif
