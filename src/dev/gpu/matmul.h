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
 * copied to another part of shared memory and the next codes to registers, so that one barrier
 * per step is enough: it says that a part is full and that the one behind it is not read any more.
 * Matrix units work on one tile of weights while the lanes decode the next.
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
    MM_AHEAD = 3,                       /* steps that are brought ahead of few tokens; of many, one */
    MM_SHARED = 2 * MM_TOKENS * MM_STEP, /* numbers: two steps of many tokens, MM_AHEAD + 1 of half as many */
    MM_OWN = 2,                         /* tokens that a thread copies a share of, at most */
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
    const int32_t me = gpu_thread();
    const int64_t t = gpu_group_x();
    const GPU_GLOBAL(f32) *x = p->x + t * p->x_stride;
    float largest = 0.0f;
    for (int64_t i = me; i < p->cols; i += HALF_THREADS) largest = gpu_max(largest, gpu_abs(gpu_load(x, i)));
    largest = group_max(largest, scratch, me, HALF_THREADS);
    /* The largest comes to lie in [2^14, 2^15); zeros and infinities stay as they are. */
    uint32_t exponent = gpu_f32_bits(largest) >> 23;
    if (exponent == 255u || largest == 0.0f) exponent = 141u;
    if (exponent < 15u) exponent = 15u;
    const float down = gpu_bits_f32((268u - exponent) << 23), up = gpu_bits_f32((exponent - 14u) << 23);
    if (me == 0) gpu_store(p->scale, t, up);
    for (int64_t i = me; i < p->half_stride / 2; i += HALF_THREADS) {
        const int64_t col = i / (MM_STEP / 2) * MM_STEP + dealt_pair((int32_t)(i % (MM_STEP / 2)));
        const float low = col < p->cols ? gpu_load(x, col) : 0.0f, high = col + 4 < p->cols ? gpu_load(x, col + 4) : 0.0f;
        gpu_store((GPU_GLOBAL(u32) *)(p->f16 + t * p->half_stride), i, gpu_pack_f16(low * down, high * down));
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
GPU_TYPE(lane_q4, lane_q4);

/* A step of it, as the file has it. */
typedef struct codes_q4 {
    uint64_t codes[2];
    uint32_t scale[2], bias[2];
} codes_q4;
GPU_TYPE(codes_q4, codes_q4);

GPU_FN int32_t lane_share(int32_t lane) { return gpu_tile_col(lane, 0) / 2; }

/* Of row `row` of the tile and the one eight below. */
GPU_FN lane_q4 lane_q4_of(weight_rows r, int32_t row, int32_t share)
{
    const int64_t i = r.row + row;
    lane_q4 l;
    l.share = share;
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

/* Which tokens a group multiplies: n places from `place` on, each a row of x. */
typedef struct token_rows {
    const GPU_GLOBAL(u16) *x;
    const GPU_GLOBAL(f32) *scale;
    const GPU_GLOBAL(i32) *list; /* none: place i is row i */
    int64_t place, stride;
    int32_t n, divisor; /* of what the list says */
} token_rows;

GPU_FN int32_t token_row(token_rows k, int32_t i)
{
    const int64_t place = k.place + i;
    return k.list ? gpu_load(k.list, place) / k.divisor : (int32_t)place;
}

/* So many threads copy a token: all of the group have as much to do. */
GPU_FN int32_t token_share(int32_t n_tiles) { return n_tiles >= 4 ? 2 : n_tiles == 2 ? 4 : 8; }

/* Where the tokens begin that a thread copies a share of; -1: there is no such token. */
GPU_FN void own_tokens(token_rows k, int32_t n_tiles, int32_t me, GPU_PRIVATE(i64) *at)
{
    GPU_UNROLL
    for (int32_t i = 0; i < MM_OWN; i++) {
        const int32_t t = me / token_share(n_tiles) + 64 * i;
        at[i] = t < k.n ? token_row(k, t) * k.stride : -1;
    }
}

GPU_FN void copy_tokens(GPU_SHARED(u16) *tile, const GPU_GLOBAL(u16) *x, const GPU_PRIVATE(i64) *at, int32_t step, int32_t n_tiles,
                        int32_t me)
{
    const int32_t share = token_share(n_tiles);
    GPU_UNROLL
    for (int32_t i = 0; i < MM_OWN; i++) {
        if (i * 64 >= n_tiles * 16) continue;
        GPU_UNROLL
        for (int32_t j = 0; j < MM_STEP / 16; j++) {
            const int32_t col = (j * share + me % share) * 8;
            if (j * share * 8 < MM_STEP)
                gpu_copy_quad(tile, gpu_tile_at(me / share + 64 * i, col, MM_STEP), x, (at[i] < 0 ? 0 : at[i]) + step * MM_STEP + col,
                              at[i] >= 0);
        }
    }
}

/* ---- the product ---- */

/* What a lane reads of its tiles' rows, and the codes of the steps to come. */
typedef struct wave_q4 {
    lane_q4 l[ROW_TILES];
    codes_q4 codes[MM_AHEAD * ROW_TILES];
} wave_q4;

GPU_FN void tiles_q4(const GPU_PRIVATE(codes_q4) *codes, bool is_bf16, int32_t tile, GPU_PRIVATE(tile_a) *a)
{
    GPU_UNROLL
    for (int32_t i = 0; i < ROW_TILES; i++) {
        uint32_t scale[2], bias[2];
        GPU_UNROLL
        for (int32_t h = 0; h < 2; h++) {
            scale[h] = pair_of(codes[i].scale[h], is_bf16);
            bias[h] = pair_of(codes[i].bias[h], is_bf16);
        }
        a[i] = tile_q4(codes[i], scale, bias, tile);
    }
}

/* units: of this tile and the next one, read where this one is the first of the two. */
GPU_FN void tiles_any(const GPU_PRIVATE(weight_rows) *r, int32_t step, int32_t tile, int32_t lane, GPU_PRIVATE(f32) *units,
                      GPU_PRIVATE(tile_a) *a)
{
    GPU_UNROLL
    for (int32_t i = 0; i < ROW_TILES; i++) {
        if (tile % 2 == 0) units_any(r[i], step, tile / 2, lane, units + i * 2 * UNIT);
        a[i] = tile_any(units + i * 2 * UNIT, tile);
    }
}

/* c = the wave's rows times the tokens, of which there are n_tiles * 16 at most.  ahead: steps that are on their way
 * while one is multiplied.  Both are constants. */
GPU_FN void multiply(GPU_SHARED(u16) *tokens, token_rows k, int32_t n_tiles, int32_t ahead, const GPU_PRIVATE(weight_rows) *r, bool is_q4,
                     int32_t me, GPU_PRIVATE(tile_c) *c)
{
    const int32_t lane = me % GPU_LANES, n_steps = (int32_t)((r[0].m.cols + MM_STEP - 1) / MM_STEP), part = n_tiles * 16 * MM_STEP;
    wave_q4 w;
    int64_t at[MM_OWN];
    GPU_UNROLL
    for (int32_t i = 0; i < ROW_TILES * TOKEN_TILES; i++) c[i] = gpu_tile_zero();
    own_tokens(k, n_tiles, me, at);
    GPU_UNROLL
    for (int32_t i = 0; i < ROW_TILES; i++)
        if (is_q4) w.l[i] = lane_q4_of(r[i], gpu_tile_row(lane, 0), lane_share(lane));
    GPU_UNROLL
    for (int32_t s = 0; s < MM_AHEAD; s++) {
        if (s >= ahead) continue;
        if (s < n_steps) copy_tokens(tokens + s * part, k.x, at, s, n_tiles, me);
        gpu_copy_commit();
        GPU_UNROLL
        for (int32_t i = 0; i < ROW_TILES; i++)
            if (is_q4) w.codes[s * ROW_TILES + i] = fetch_q4(w.l[i], s);
    }
    gpu_tile_a a[2 * ROW_TILES];
    float units[ROW_TILES * 2 * UNIT];
    for (int32_t first = 0; first < n_steps; first += ahead) {
        GPU_UNROLL
        for (int32_t s = 0; s < MM_AHEAD; s++) {
            const int32_t step = first + s, next = step + ahead;
            if (s >= ahead || step >= n_steps) continue; /* the whole group */
            const GPU_SHARED(u16) *here = tokens + step % (ahead + 1) * part;
            codes_q4 codes[ROW_TILES];
            GPU_UNROLL
            for (int32_t i = 0; i < ROW_TILES; i++)
                if (is_q4) codes[i] = w.codes[s * ROW_TILES + i];
            if (is_q4) tiles_q4(codes, w.l[0].is_bf16, 0, a);
            else tiles_any(r, step, 0, lane, units, a);
            gpu_rows_wait(0); /* the step before: its tokens are not read any more */
            if (ahead == 1) gpu_copy_wait(0);
            else gpu_copy_wait(MM_AHEAD - 1);
            gpu_rows_barrier();
            if (next < n_steps) copy_tokens(tokens + next % (ahead + 1) * part, k.x, at, next, n_tiles, me);
            gpu_copy_commit();
            GPU_UNROLL
            for (int32_t i = 0; i < ROW_TILES; i++)
                if (is_q4) w.codes[s * ROW_TILES + i] = fetch_q4(w.l[i], next); /* none behind the last column */
            GPU_UNROLL
            for (int32_t tile = 0; tile < MM_STEP / 16; tile++) {
                GPU_PRIVATE(tile_a) *now = a + tile % 2 * ROW_TILES;
                if (tile > 0 && is_q4) tiles_q4(codes, w.l[0].is_bf16, tile, now);
                if (tile > 0 && !is_q4) tiles_any(r, step, tile, lane, units, now);
                gpu_rows_begin();
                GPU_UNROLL
                for (int32_t i = 0; i < ROW_TILES; i++) gpu_rows_mma(c + i * TOKEN_TILES, now[i], here, tile * 16, n_tiles, lane);
                gpu_rows_end();
                gpu_rows_wait(1); /* the other tiles are free */
            }
        }
    }
    gpu_rows_wait(0);
}

/* The kernel's code several times, by the number of tokens: few are few tiles, and leave room to bring more ahead. */
GPU_FN void multiply_some(GPU_SHARED(u16) *tokens, token_rows k, const GPU_PRIVATE(weight_rows) *r, bool is_q4, int32_t me,
                          GPU_PRIVATE(tile_c) *c)
{
    if (!is_q4 && k.n > 32) multiply(tokens, k, 8, 1, r, false, me, c); /* decoding is long, also as code */
    else if (!is_q4) multiply(tokens, k, 2, 1, r, false, me, c);
    else if (k.n > 64) multiply(tokens, k, 8, 1, r, true, me, c);
    else if (k.n > 16) multiply(tokens, k, 4, MM_AHEAD, r, true, me, c);
    else multiply(tokens, k, 1, MM_AHEAD, r, true, me, c);
}

/* What of a token is needed once its sums are there lies in shared memory, where the tokens were: the factor, and behind
 * all of these the row of y. */
GPU_FN void leave_rows(GPU_SHARED(u16) *tokens, token_rows k, const GPU_GLOBAL(i32) *y_row, int32_t me)
{
    gpu_barrier();
    if (me < k.n) {
        gpu_store((GPU_SHARED(f32) *)tokens, me, gpu_load(k.scale, token_row(k, me)));
        gpu_store((GPU_SHARED(i32) *)tokens, MM_TOKENS + me, y_row ? gpu_load(y_row, k.place + me) : (int32_t)k.place + me);
    }
    gpu_barrier();
}
GPU_FN float left_scale(const GPU_SHARED(u16) *tokens, int32_t t) { return gpu_load((const GPU_SHARED(f32) *)tokens, t); }
GPU_FN int64_t left_row(const GPU_SHARED(u16) *tokens, int32_t t) { return gpu_load((const GPU_SHARED(i32) *)tokens, MM_TOKENS + t); }

/* ---- one matrix ---- */

/* y of two tiles of rows: those from `first` on. */
GPU_FN void store_rows(const GPU_PRIVATE(tile_c) *c, const GPU_SHARED(u16) *tokens, int32_t n, mox_gpu_vec bias, GPU_GLOBAL(f32) *y,
                       int64_t y_stride, int64_t first, int64_t rows, int32_t lane)
{
    GPU_UNROLL
    for (int32_t i = 0; i < ROW_TILES * 2; i++) {
        const int64_t row = first + i / 2 * 16 + gpu_tile_row(lane, i % 2 * 2);
        if (row >= rows) continue;
        const float add = bias.type == MOX_GPU_NONE ? 0.0f : stored_number(bias.data, (int32_t)bias.type, row);
        GPU_UNROLL
        for (int32_t j = 0; j < TOKEN_TILES * 4; j++) {
            const int32_t e = (j & 1) | i % 2 * 2 | (j & 2) * 2, t = j / 4 * 16 + gpu_tile_col(lane, e);
            if (t < n)
                gpu_store(y, left_row(tokens, t) * y_stride + row,
                          gpu_tile_get(c[i / 2 * TOKEN_TILES + j / 4], e) * left_scale(tokens, t) + add);
        }
    }
}

GPU_FN void rows_group(mox_gpu_mat m, int64_t rows, mox_gpu_vec bias, token_rows k, const GPU_GLOBAL(i32) *y_row, GPU_GLOBAL(f32) *y,
                       int64_t y_stride, GPU_SHARED(u16) *tokens, bool is_q4, int64_t row0, int32_t me)
{
    const int64_t first = row0 + me / GPU_LANES * (ROW_TILES * 16);
    weight_rows r[ROW_TILES];
    GPU_UNROLL
    for (int32_t i = 0; i < ROW_TILES; i++) {
        r[i].m = m;
        r[i].row = first + i * 16;
        r[i].n = rows - r[i].row;
    }
    gpu_tile_c c[ROW_TILES * TOKEN_TILES];
    multiply_some(tokens, k, r, is_q4, me, c);
    leave_rows(tokens, k, y_row, me);
    store_rows(c, tokens, k.n, bias, y, y_stride, first, rows, me % GPU_LANES);
}

GPU_FN void matmul_group(const GPU_CONSTANT(mox_gpu_matmul) *p, GPU_SHARED(u16) *tokens, bool is_q4, int64_t t0, int64_t row0,
                         int32_t me)
{
    token_rows k;
    k.x = p->x;
    k.scale = p->x_scale;
    k.list = 0;
    k.place = t0;
    k.stride = p->x_stride;
    k.n = (int32_t)least(MM_TOKENS, p->n - t0);
    k.divisor = 1;
    rows_group(p->w, p->rows, p->bias, k, 0, p->y, p->y_stride, tokens, is_q4, row0, me);
}

GPU_KERNEL(matmul, MM_THREADS)
{
    GPU_SHARED_TILES(tokens, MM_SHARED);
    matmul_group(p, tokens, false, gpu_group_x() * MM_TOKENS, gpu_group_y() * MM_ROWS, gpu_thread());
}

GPU_KERNEL(matmul_q4, MM_THREADS)
{
    GPU_SHARED_TILES(tokens, MM_SHARED);
    matmul_group(p, tokens, true, gpu_group_x() * MM_TOKENS, gpu_group_y() * MM_ROWS, gpu_thread());
}

/* ---- experts ---- */

GPU_FN token_rows tile_tokens(const GPU_CONSTANT(mox_gpu_experts_tiles) *p, mox_gpu_expert_tile tile)
{
    token_rows k;
    k.x = p->x;
    k.scale = p->x_scale;
    k.list = p->x_row;
    k.place = tile.place;
    k.stride = p->x_stride;
    k.n = (int32_t)tile.n;
    k.divisor = (int32_t)p->x_divisor;
    return k;
}

/* A wave has 16 rows of gate and the same 16 of up. */
GPU_FN void gate_up_group(const GPU_CONSTANT(mox_gpu_experts_tiles) *p, mox_gpu_mat gate, mox_gpu_mat up, GPU_SHARED(u16) *tokens,
                          bool is_q4, mox_gpu_expert_tile tile, int64_t row0, int32_t me)
{
    const int32_t lane = me % GPU_LANES;
    const int64_t first = row0 + me / GPU_LANES * 16;
    const token_rows k = tile_tokens(p, tile);
    weight_rows r[ROW_TILES];
    r[0].m = gate;
    r[1].m = up;
    r[0].row = r[1].row = first;
    r[0].n = r[1].n = p->rows - first;
    gpu_tile_c c[ROW_TILES * TOKEN_TILES];
    multiply_some(tokens, k, r, is_q4, me, c);
    leave_rows(tokens, k, p->y_row, me);
    GPU_UNROLL
    for (int32_t j = 0; j < TOKEN_TILES * 4; j++) {
        const int32_t t = j / 4 * 16 + gpu_tile_col(lane, (j & 1) | (j & 2) * 2);
        if (t >= k.n) continue;
        const float scale = left_scale(tokens, t);
        GPU_UNROLL
        for (int32_t h = 0; h < 2; h++) {
            const int32_t e = (j & 1) | h * 2 | (j & 2) * 2;
            const int64_t row = first + gpu_tile_row(lane, e);
            if (row >= p->rows) continue;
            gpu_store(p->y, left_row(tokens, t) * p->y_stride + row,
                      silu(gpu_tile_get(c[j / 4], e) * scale) * (gpu_tile_get(c[TOKEN_TILES + j / 4], e) * scale));
        }
    }
}

GPU_KERNEL(experts_gate_up_tiles, MM_THREADS)
{
    GPU_SHARED_TILES(tokens, MM_SHARED);
    const mox_gpu_expert_tile tile = gpu_load(p->tiles, gpu_group_y());
    if (tile.n == 0) return; /* the whole group */
    gate_up_group(p, gpu_load(p->gate, tile.expert), gpu_load(p->up, tile.expert), tokens, false, tile, gpu_group_x() * (MM_ROWS / 2),
                  gpu_thread());
}

GPU_KERNEL(experts_gate_up_tiles_q4, MM_THREADS)
{
    GPU_SHARED_TILES(tokens, MM_SHARED);
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
    GPU_SHARED_TILES(tokens, MM_SHARED);
    gate_up_group(&p->rest, p->gate, p->up, tokens, false, plain_tile(gpu_group_y(), p->n), gpu_group_x() * (MM_ROWS / 2), gpu_thread());
}

GPU_KERNEL(gate_up_tiles_q4, MM_THREADS)
{
    GPU_SHARED_TILES(tokens, MM_SHARED);
    gate_up_group(&p->rest, p->gate, p->up, tokens, true, plain_tile(gpu_group_y(), p->n), gpu_group_x() * (MM_ROWS / 2), gpu_thread());
}

GPU_FN void down_group(const GPU_CONSTANT(mox_gpu_experts_tiles) *p, GPU_SHARED(u16) *tokens, bool is_q4, mox_gpu_expert_tile tile,
                       int64_t row0, int32_t me)
{
    mox_gpu_vec none;
    none.data = 0;
    none.type = MOX_GPU_NONE;
    rows_group(gpu_load(p->gate, tile.expert), p->rows, none, tile_tokens(p, tile), p->y_row, p->y, p->y_stride, tokens, is_q4, row0,
               me);
}

GPU_KERNEL(experts_down_tiles, MM_THREADS)
{
    GPU_SHARED_TILES(tokens, MM_SHARED);
    const mox_gpu_expert_tile tile = gpu_load(p->tiles, gpu_group_y());
    if (tile.n == 0) return; /* the whole group */
    down_group(p, tokens, false, tile, gpu_group_x() * MM_ROWS, gpu_thread());
}

GPU_KERNEL(experts_down_tiles_q4, MM_THREADS)
{
    GPU_SHARED_TILES(tokens, MM_SHARED);
    const mox_gpu_expert_tile tile = gpu_load(p->tiles, gpu_group_y());
    if (tile.n == 0) return; /* the whole group */
    down_group(p, tokens, true, tile, gpu_group_x() * MM_ROWS, gpu_thread());
}

#endif
