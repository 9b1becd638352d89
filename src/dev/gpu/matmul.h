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
 * lane's 16 codes are one u64 and have one scale, as groups are multiples of 32; they become numbers
 * in pairs, by f16 arithmetic that is exact but for the last rounding. */
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

/* The columns of a step as tiles take them.  Lane q of a row has the columns 16 q to 16 q + 15; of the
 * eight that a tile and the next one share, those four apart are a pair, as their codes are in one
 * word.  Tile 2 w and 2 w + 1 have the pairs (0, 4) (1, 5) and (2, 6) (3, 7) of the columns 16 q + 8 w
 * on, at 2 q and at 2 q + 8.  This is the first column of the pair that is at 2 i. */
GPU_FN int32_t dealt_pair(int32_t i)
{
    const int32_t tile = i >> 3, q = i & 3;
    return q * 16 + (tile >> 1) * 8 + (tile & 1) * 2 + (i >> 2 & 1);
}

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
    for (int64_t i = thread; i < p->half_stride / 2; i += HALF_THREADS) {
        const int64_t col = i / (MM_STEP / 2) * MM_STEP + dealt_pair((int32_t)(i % (MM_STEP / 2)));
        const float low = col < p->cols ? gpu_load(x, col) : 0.0f, high = col + 4 < p->cols ? gpu_load(x, col + 4) : 0.0f;
        gpu_store((GPU_GLOBAL(u32) *)(p->half + t * p->half_stride), i, gpu_pack_f16(low * down, high * down));
    }
}

/* ---- weights ---- */

/* The 16 rows of W that a tile of a wave holds; beyond n of them there are zeros. */
typedef struct weight_rows {
    mox_gpu_mat m;
    int64_t row, n;
} weight_rows;
GPU_TYPE(weight_rows, weight_rows);

/* What a lane reads of a tile's rows: two rows, eight apart, 16 columns of each step. */
typedef struct lane_q4 {
    const GPU_GLOBAL(u64) *codes; /* of its first row, at its share of the first step */
    const GPU_GLOBAL(u16) *scales;
    const GPU_GLOBAL(u16) *biases;
    int64_t code_jump, scale_jump; /* to the second row */
    int32_t share, shift, n_parts, n_rows;
    bool is_bf16;
} lane_q4;

/* A step of it, as the file has it. */
typedef struct codes_q4 {
    uint64_t codes[2];
    uint32_t scale[2], bias[2];
} codes_q4;
GPU_TYPE(codes_q4, codes_q4);

GPU_FN int32_t lane_share(int32_t lane) { return gpu_tile_col(lane, 0) / 2; }

GPU_FN lane_q4 lane_q4_of(weight_rows r, int32_t lane)
{
    const int64_t row = gpu_tile_row(lane, 0), i = r.row + row;
    lane_q4 l;
    l.share = lane_share(lane);
    l.shift = r.m.group == 128 ? 3 : r.m.group / 32; /* parts of 16 columns to groups */
    l.n_parts = (int32_t)(r.m.cols / 16);
    l.n_rows = row + 8 < r.n ? 2 : row < r.n ? 1 : 0;
    l.code_jump = r.m.row_bytes; /* eight rows, in units of eight bytes */
    l.scale_jump = 8 * r.m.scale_cols;
    l.codes = GPU_CAST(u64, r.m.w + i * r.m.row_bytes) + l.share;
    l.scales = GPU_CAST(u16, r.m.scales) + i * r.m.scale_cols;
    l.biases = GPU_CAST(u16, r.m.biases) + i * r.m.scale_cols;
    l.is_bf16 = r.m.scale_type == MOX_GPU_BF16;
    return l;
}

GPU_FN codes_q4 fetch_q4(lane_q4 l, int32_t step)
{
    const int32_t part = step * 4 + l.share;
    codes_q4 c;
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        c.codes[h] = 0u;
        c.scale[h] = c.bias[h] = 0u;
        if (h >= l.n_rows || part >= l.n_parts) continue;
        c.codes[h] = gpu_load(l.codes, h * l.code_jump + step * 4);
        c.scale[h] = gpu_load(l.scales, h * l.scale_jump + (part >> l.shift));
        c.bias[h] = gpu_load(l.biases, h * l.scale_jump + (part >> l.shift));
    }
    return c;
}

/* A scale or bias as a pair; bf16 has fewer bits than f16. */
GPU_FN uint32_t pair_of(uint32_t bits, bool is_bf16)
{
    if (!is_bf16) return bits * 0x00010001u;
    const float v = bf16_to_f32(bits);
    return gpu_pack_f16(v, v);
}

/* Codes i and i + 4 of a word, i < 4, times scale plus bias.  A code in the last bits of 1024, or of
 * 1024 above four bits of its own, becomes a number by one fma. */
GPU_FN uint32_t numbers_q4(uint32_t word, int32_t i, uint32_t scale, uint32_t bias)
{
    const uint32_t codes = i < 2 ? word : word >> 8;
    const uint32_t exact = i % 2 == 0 ? gpu_fma_f16x2((codes & 0x000F000Fu) | 0x64006400u, 0x3C003C00u, 0xE400E400u)  /* v - 1024 */
                                      : gpu_fma_f16x2((codes & 0x00F000F0u) | 0x64006400u, 0x2C002C00u, 0xD400D400u); /* v / 16 - 64 */
    return gpu_fma_f16x2(exact, scale, bias);
}

GPU_FN gpu_tile_a tile_q4(codes_q4 c, const GPU_PRIVATE(u32) *scale, const GPU_PRIVATE(u32) *bias, int32_t tile)
{
    gpu_tile_a a;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++)
        gpu_tile_a_set(&a, i, numbers_q4((uint32_t)(c.codes[i % 2] >> (tile / 2 * 32)), tile % 2 * 2 + i / 2, scale[i % 2], bias[i % 2]));
    return a;
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
    gpu_tile_a a;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        const int32_t first = i % 2 * UNIT + tile % 2 * 2 + i / 2;
        gpu_tile_a_set(&a, i, gpu_pack_f16(units[first], units[first + 4]));
    }
    return a;
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

/* c[a, j] += tile of rows a times tile of tokens j; n tokens are there.  A tile of tokens is loaded
 * before the one in front of it is multiplied. */
GPU_FN void multiply_tiles(const GPU_SHARED(u16) *tokens, const GPU_PRIVATE(tile_a) *a, int32_t tile, int32_t n, bool full, int32_t lane,
                           GPU_PRIVATE(tile_c) *c)
{
    gpu_tile_b b[2];
    b[0] = gpu_tile_load_b(tokens, 0, tile * 16, MM_STEP, lane);
    GPU_UNROLL
    for (int32_t j = 0; j < TOKEN_TILES; j++) {
        if (!full && j * 16 >= n) continue; /* the whole group */
        if (j + 1 < TOKEN_TILES) b[(j + 1) % 2] = gpu_tile_load_b(tokens, (j + 1) * 16, tile * 16, MM_STEP, lane);
        GPU_UNROLL
        for (int32_t i = 0; i < ROW_TILES; i++) gpu_tile_mma(&c[i * TOKEN_TILES + j], a[i], b[j % 2]);
    }
}

/* A step whose weights are in codes. */
GPU_FN void multiply_q4(const GPU_SHARED(u16) *tokens, const GPU_PRIVATE(codes_q4) *codes, bool is_bf16, int32_t n, bool full, int32_t lane,
                        GPU_PRIVATE(tile_c) *c)
{
    uint32_t scale[ROW_TILES * 2], bias[ROW_TILES * 2];
    GPU_UNROLL
    for (int32_t i = 0; i < ROW_TILES * 2; i++) {
        scale[i] = pair_of(codes[i / 2].scale[i % 2], is_bf16);
        bias[i] = pair_of(codes[i / 2].bias[i % 2], is_bf16);
    }
    GPU_UNROLL
    for (int32_t tile = 0; tile < MM_STEP / 16; tile++) {
        gpu_tile_a a[ROW_TILES];
        GPU_UNROLL
        for (int32_t i = 0; i < ROW_TILES; i++) a[i] = tile_q4(codes[i], scale + 2 * i, bias + 2 * i, tile);
        multiply_tiles(tokens, a, tile, n, full, lane, c);
    }
}

/* A step whose weights are read now. */
GPU_FN void multiply_any(const GPU_SHARED(u16) *tokens, const GPU_PRIVATE(weight_rows) *r, int64_t step, int32_t n, bool full, int32_t lane,
                         GPU_PRIVATE(tile_c) *c)
{
    GPU_UNROLL
    for (int32_t tile = 0; tile < MM_STEP / 16; tile += 2) {
        float units[ROW_TILES * 2 * UNIT];
        GPU_UNROLL
        for (int32_t i = 0; i < ROW_TILES; i++) units_any(r[i], step, tile / 2, lane, units + i * 2 * UNIT);
        GPU_UNROLL
        for (int32_t odd = 0; odd < 2; odd++) {
            gpu_tile_a a[ROW_TILES];
            GPU_UNROLL
            for (int32_t i = 0; i < ROW_TILES; i++) a[i] = tile_any(units + i * 2 * UNIT, tile + odd);
            multiply_tiles(tokens, a, tile + odd, n, full, lane, c);
        }
    }
}

/* c = the wave's rows times the tokens at[] of all threads. */
GPU_FN void multiply(GPU_SHARED(u16) *tokens, const GPU_GLOBAL(u16) *x, const GPU_PRIVATE(i64) *at, int32_t n, bool full,
                     const GPU_PRIVATE(weight_rows) *r, bool is_q4, int32_t thread, GPU_PRIVATE(tile_c) *c)
{
    const int32_t lane = thread % GPU_LANES, n_steps = (int32_t)((r[0].m.cols + MM_STEP - 1) / MM_STEP);
    lane_q4 l[ROW_TILES];
    codes_q4 codes[ROW_TILES], next[ROW_TILES];
    GPU_UNROLL
    for (int32_t i = 0; i < ROW_TILES * TOKEN_TILES; i++) c[i] = gpu_tile_zero();
    copy_tokens(tokens, x, at, 0, thread);
    GPU_UNROLL
    for (int32_t i = 0; i < ROW_TILES; i++) {
        if (!is_q4) continue;
        l[i] = lane_q4_of(r[i], lane);
        next[i] = fetch_q4(l[i], 0);
    }
    for (int32_t step = 0; step < n_steps; step++) {
        const int32_t here = step % 2 * MM_HALF;
        gpu_copy_wait(0);
        gpu_barrier();
        if (step + 1 < n_steps) copy_tokens(tokens + (MM_HALF - here), x, at, step + 1, thread);
        GPU_UNROLL
        for (int32_t i = 0; i < ROW_TILES; i++) {
            if (!is_q4) continue;
            codes[i] = next[i];
            next[i] = fetch_q4(l[i], step + 1); /* none behind the last column */
        }
        if (is_q4) multiply_q4(tokens + here, codes, l[0].is_bf16, n, full, lane, c);
        else multiply_any(tokens + here, r, step, n, full, lane, c);
    }
}

/* The kernel's code twice: few tokens are few tiles, and many need not ask. */
GPU_FN void multiply_some(GPU_SHARED(u16) *tokens, const GPU_GLOBAL(u16) *x, const GPU_PRIVATE(i64) *at, int64_t n_tokens,
                          const GPU_PRIVATE(weight_rows) *r, bool is_q4, int32_t thread, GPU_PRIVATE(tile_c) *c)
{
    const int32_t n = (int32_t)least(MM_TOKENS, n_tokens);
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
GPU_FN void gate_up_group(const GPU_CONSTANT(mox_gpu_experts_tiles) *p, mox_gpu_mat gate, mox_gpu_mat up, GPU_SHARED(u16) *tokens,
                          bool is_q4, mox_gpu_expert_tile tile, int64_t row0, int32_t thread)
{
    const int32_t lane = thread % GPU_LANES;
    const int64_t first = row0 + thread / GPU_LANES * 16;
    int64_t at[MM_OWN];
    tile_tokens(p, tile, thread, at);
    weight_rows r[ROW_TILES];
    r[0].m = gate;
    r[1].m = up;
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
    gate_up_group(p, gpu_load(p->gate, tile.expert), gpu_load(p->up, tile.expert), tokens, false, tile, gpu_group_x() * (MM_ROWS / 2),
                  gpu_thread());
}

GPU_KERNEL(experts_gate_up_tiles_q4, MM_THREADS)
{
    GPU_SHARED_ARRAY(u16, tokens, 2 * MM_HALF);
    const mox_gpu_expert_tile tile = gpu_load(p->tiles, gpu_group_y());
    if (tile.n == 0) return; /* the whole group */
    gate_up_group(p, gpu_load(p->gate, tile.expert), gpu_load(p->up, tile.expert), tokens, true, tile, gpu_group_x() * (MM_ROWS / 2),
                  gpu_thread());
}

/* One matrix of each, for all tokens: tile i has the places from i * MM_TOKENS on. */
GPU_FN mox_gpu_expert_tile plain_tile(int64_t i, int64_t n)
{
    mox_gpu_expert_tile tile;
    tile.expert = 0;
    tile.place = i * MM_TOKENS;
    tile.n = least(MM_TOKENS, n - tile.place);
    return tile;
}

GPU_KERNEL(gate_up_tiles, MM_THREADS)
{
    GPU_SHARED_ARRAY(u16, tokens, 2 * MM_HALF);
    gate_up_group(&p->rest, p->gate, p->up, tokens, false, plain_tile(gpu_group_y(), p->n), gpu_group_x() * (MM_ROWS / 2), gpu_thread());
}

GPU_KERNEL(gate_up_tiles_q4, MM_THREADS)
{
    GPU_SHARED_ARRAY(u16, tokens, 2 * MM_HALF);
    gate_up_group(&p->rest, p->gate, p->up, tokens, true, plain_tile(gpu_group_y(), p->n), gpu_group_x() * (MM_ROWS / 2), gpu_thread());
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
