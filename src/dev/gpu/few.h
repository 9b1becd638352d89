/* dev/gpu/few.h -- products of 4-bit weights with some tokens, 5 to 64: sequences that generate together, short prompts.
 *
 * Here the weights are what takes time, so they are read once for all tokens, many of them at a time.  Weights are those
 * that matvec4.h reads, and results are as exact as its: a code is an f16 as it stands, x is two f16 numbers (planes)
 * that together have 22 bits, and scales and biases of the weights are applied in f32.  Four tokens of two planes are the
 * eight columns of a product, and a lane has the sums of one of them.
 *
 * A product of 16 columns is to be of one group of 64 weights, as their scale comes behind it.  So the four lanes of a row
 * have eight bytes each of a group, 16 columns; which these are in x, planes are ordered by.  x is scaled by a power of two
 * per token and group, and its sum there is what biases are multiplied with.
 *
 * A wave has two tiles of 16 rows: of one matrix, or the same rows of gate and up.
 *
 * Dense products take planes that plane_rows has made.  Waves that have the same rows share their columns, and their sums are
 * added up at the end, always in the same order.  An expert has a few of the tokens only, and its groups make the planes
 * themselves, 512 columns at a time, in shared memory; they also find its pairs, so nothing is sorted. */
#ifndef MOX_DEV_GPU_FEW_H
#define MOX_DEV_GPU_FEW_H

#include "dev/gpu/matvec4.h"

enum {
    FEW_THREADS = 256,
    FEW_WAVES = FEW_THREADS / GPU_LANES,
    FEW_GROUP = MOX_GPU_FEW_GROUP,        /* columns that a scale is for */
    FEW_CHUNK = 2 * FEW_GROUP,            /* what a lane asks for in one go */
    FEW_HELD = 2,                         /* chunks that are on their way or multiplied */
    FEW_BLOCK = 4,                        /* tokens of a product */
    FEW_BLOCKS = MOX_GPU_FEW_TOKENS / FEW_BLOCK,
    FEW_TILES = MOX_GPU_FEW_ROWS / 16,    /* of a wave */
    FEW_QUADS = 2 * FEW_GROUP / 8,        /* of a token's group: two planes */
    FEW_STRIDE = 24,                      /* of the 16 sums of a token: so lanes store to different banks */
    FEW_PHASE = 4,                        /* chunks of an expert's tokens that are in shared memory at a time */
    FEW_PHASE_GROUPS = FEW_PHASE * FEW_CHUNK / FEW_GROUP,
    FEW_PHASE_QUADS = FEW_PHASE_GROUPS * FEW_BLOCK * FEW_QUADS,
    FEW_PHASE_PARTS = FEW_PHASE_GROUPS * FEW_BLOCK
};

/* ---- tokens ---- */

/* Eight numbers of x, and what all lanes of their group of 64 know. */
typedef struct few_word {
    gpu_quad high, low;
    uint64_t part; /* factor, which undoes the scaling of planes and codes, and above it the sum */
} few_word;

/* Where word i of a group's eight is among the quads of a plane: lanes of a product ask for neighbours, and for the two
 * planes in different banks. */
GPU_FN int32_t few_place(int32_t i, int32_t plane) { return (i % 2 * 4 + i / 2) ^ (plane * 4); }

/* Pairs are columns i and i + 4, as codes are; every second code counts sixteenfold, so its x is a sixteenth.  The whole
 * wave; eight lanes have a group. */
GPU_FN few_word few_split(gpu_quad first, gpu_quad second, int32_t lane)
{
    float v[8], largest = 0.0f, sum = 0.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < 8; i++) {
        v[i] = gpu_bits_f32(i < 4 ? first.w[i % 4] : second.w[i % 4]);
        largest = gpu_max(largest, gpu_abs(v[i]));
        sum += v[i];
    }
    GPU_UNROLL
    for (int32_t d = 4; d > 0; d /= 2) {
        sum += gpu_shuffle(sum, lane ^ d);
        largest = gpu_max(largest, gpu_shuffle(largest, lane ^ d));
    }
    /* The largest becomes 2^14 and more; below 2^-112 f16 does without the rest. */
    const uint32_t bits = gpu_f32_bits(largest) >> 23, exponent = bits < 15u ? 15u : bits;
    const float up = gpu_bits_f32((268u - exponent) << 23), factor = gpu_bits_f32((exponent - 14u) << 23) * 16777216.0f;
    few_word w;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        const float scale = i % 2 == 0 ? up : up * 0.0625f, a = v[i] * scale, b = v[i + 4] * scale;
        w.high.w[i] = gpu_pack_f16(a, b);
        w.low.w[i] = gpu_pack_f16(a - gpu_f16_to_f32(w.high.w[i] & 0xFFFFu), b - gpu_f16_to_f32(w.high.w[i] >> 16));
    }
    w.part = gpu_f32_bits(factor) | (uint64_t)gpu_f32_bits(sum) << 32;
    return w;
}

GPU_KERNEL(plane_rows, FEW_THREADS)
{
    const int32_t me = gpu_thread();
    const int64_t col = (gpu_group_x() * FEW_THREADS + me) * 8, t = gpu_group_y(), at = t * (p->cols / FEW_GROUP) + col / FEW_GROUP;
    const bool there = col < p->cols; /* the same in the lanes of a group */
    gpu_quad first = {{0u, 0u, 0u, 0u}}, second = {{0u, 0u, 0u, 0u}};
    if (there) {
        first = gpu_load_quad(p->x, t * p->x_stride + col);
        second = gpu_load_quad(p->x, t * p->x_stride + col + 4);
    }
    const few_word w = few_split(first, second, me % GPU_LANES);
    if (!there) return;
    gpu_store(p->planes, at * FEW_QUADS + few_place(me % 8, 0), w.high);
    gpu_store(p->planes, at * FEW_QUADS + FEW_QUADS / 2 + few_place(me % 8, 1), w.low);
    if (me % 8 == 0) gpu_store(p->parts, at, w.part);
}

/* ---- weights ---- */

/* Two tiles of rows, and where a lane reads them, in bytes of codes: rows g and g + 8 of each.  Rows beyond the end are read
 * as the last one.  A chunk is 64 bytes of codes and two scales, so this also says where the scales are. */
typedef struct few_rows {
    mox_gpu_mat m[FEW_TILES];
    int32_t at[FEW_TILES][2];
} few_rows;

/* step: rows from the first tile to the second; 0 where they are of two matrices. */
GPU_FN few_rows few_rows_of(mox_gpu_mat first, mox_gpu_mat second, int64_t row, int32_t step, int32_t lane)
{
    few_rows r;
    r.m[0] = first;
    r.m[1] = second;
    GPU_UNROLL
    for (int32_t i = 0; i < 2 * FEW_TILES; i++)
        r.at[i / 2][i % 2] = (int32_t)least(row + i / 2 * step + lane / 4 + i % 2 * 8, first.rows - 1) * (int32_t)first.row_bytes + lane % 4 * 8;
    return r;
}

/* What a lane has of 16 rows and a chunk. */
typedef struct few_codes {
    uint64_t w[2][2]; /* [row, or eight below][group] */
    uint32_t scale[2], bias[2]; /* of both groups */
} few_codes;
GPU_TYPE(few_codes, few_codes);

GPU_FN few_codes few_fetch(few_rows r, int32_t tile, int32_t chunk)
{
    few_codes c;
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        const int64_t at = r.at[tile][h] + chunk * (FEW_CHUNK / 2);
        GPU_UNROLL
        for (int32_t g = 0; g < 2; g++) c.w[h][g] = gpu_bytes_u64(r.m[tile].w, at + g * (FEW_GROUP / 2));
        c.scale[h] = gpu_load(GPU_CAST(u32, r.m[tile].scales), at / (FEW_CHUNK / 2));
        c.bias[h] = gpu_load(GPU_CAST(u32, r.m[tile].biases), at / (FEW_CHUNK / 2));
    }
    return c;
}

/* Asks for the chunks part, part + split, ... that a wave holds at first; what is not there is never used. */
GPU_FN void few_start(few_rows r, int32_t part, int32_t split, GPU_PRIVATE(few_codes) *ring)
{
    const int32_t last = (int32_t)r.m[0].cols / FEW_CHUNK - 1;
    GPU_UNROLL
    for (int32_t i = 0; i < FEW_HELD * FEW_TILES; i++)
        ring[i] = few_fetch(r, i % FEW_TILES, (int32_t)least(part + i / FEW_TILES * split, last));
}

/* y[0..1] += rows g and g + 8 of a group by the token that the lane has sums of; b: words 2 t and 2 t + 1 of
 * the column that it has of x. */
GPU_FN void few_multiply(few_codes k, int32_t group, const GPU_PRIVATE(quad) *b, uint64_t part, GPU_PRIVATE(f32) *y)
{
    const float factor = gpu_bits_f32((uint32_t)part), sum = gpu_bits_f32((uint32_t)(part >> 32));
    float c[4];
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) c[i] = 0.0f;
    GPU_UNROLL
    for (int32_t j = 0; j < 2; j++) {
        const uint32_t w0 = (uint32_t)(k.w[0][group] >> (32 * j)), w1 = (uint32_t)(k.w[1][group] >> (32 * j)), v0 = w0 >> 8, v1 = w1 >> 8;
        gpu_mma(c, w0 & 0x000F000Fu, w1 & 0x000F000Fu, w0 & 0x00F000F0u, w1 & 0x00F000F0u, b[j].w[0], b[j].w[1]);
        gpu_mma(c, v0 & 0x000F000Fu, v1 & 0x000F000Fu, v0 & 0x00F000F0u, v1 & 0x00F000F0u, b[j].w[2], b[j].w[3]);
    }
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        const uint32_t scale = group == 0 ? k.scale[h] << 16 : k.scale[h] & 0xFFFF0000u;
        const uint32_t bias = group == 0 ? k.bias[h] << 16 : k.bias[h] & 0xFFFF0000u;
        y[h] += gpu_bits_f32(scale) * ((c[2 * h] + c[2 * h + 1]) * factor) + gpu_bits_f32(bias) * sum;
    }
}

/* ---- dense products ---- */

/* The planes of the tokens of a group, and the sums of its waves. */
typedef struct few_x {
    const GPU_GLOBAL(quad) *planes;
    const GPU_GLOBAL(u64) *parts;
    int32_t n, n_groups; /* tokens; groups of a token */
} few_x;

GPU_FN few_x few_tokens(const GPU_GLOBAL(quad) *planes, const GPU_GLOBAL(u64) *parts, int64_t n, int64_t cols, int64_t block)
{
    const int64_t first = block * MOX_GPU_FEW_TOKENS, n_groups = cols / FEW_GROUP;
    few_x x;
    x.planes = planes + first * n_groups * FEW_QUADS;
    x.parts = parts + first * n_groups;
    x.n = (int32_t)least(MOX_GPU_FEW_TOKENS, n - first);
    x.n_groups = (int32_t)n_groups;
    return x;
}

/* tot[4 j ...] += the wave's rows by block j of tokens, over a group of a chunk.  Tokens beyond the end are read as the
 * last one. */
GPU_FN void few_blocks(const GPU_PRIVATE(few_codes) *k, int32_t chunk, int32_t group, few_x x, int32_t lane, GPU_PRIVATE(f32) *tot)
{
    const int32_t column = lane / 4, at_group = chunk * 2 + group;
    GPU_UNROLL
    for (int32_t j = 0; j < FEW_BLOCKS; j++) {
        const int32_t token = (int32_t)least(j * FEW_BLOCK + column / 2, x.n - 1), own = (int32_t)least(j * FEW_BLOCK + lane % 4, x.n - 1);
        const int64_t at = (token * x.n_groups + at_group) * FEW_QUADS + column % 2 * (FEW_QUADS / 2);
        gpu_quad b[2];
        GPU_UNROLL
        for (int32_t i = 0; i < 2; i++) b[i] = gpu_load(x.planes, at + few_place(lane % 4 * 2 + i, column % 2));
        const uint64_t part = gpu_load(x.parts, (int64_t)(own * x.n_groups + at_group));
        GPU_UNROLL
        for (int32_t i = 0; i < FEW_TILES; i++) few_multiply(k[i], group, b, part, tot + j * 2 * FEW_TILES + 2 * i);
    }
}

/* The wave's rows by all tokens, over the chunks part, part + split, ...; its sums are left in its place of `sums`, [tile, token, row]. */
GPU_FN void few_wave(few_rows r, few_x x, int32_t part, int32_t split, GPU_SHARED(f32) *sums, int32_t lane)
{
    const int32_t n_chunks = (int32_t)r.m[0].cols / FEW_CHUNK;
    few_codes ring[FEW_HELD * FEW_TILES];
    float tot[FEW_BLOCKS * 2 * FEW_TILES];
    GPU_UNROLL
    for (int32_t i = 0; i < FEW_BLOCKS * 2 * FEW_TILES; i++) tot[i] = 0.0f;
    few_start(r, part, split, ring);
    gpu_previous();
    for (int32_t first = part; first < n_chunks; first += FEW_HELD * split) {
        GPU_UNROLL
        for (int32_t s = 0; s < FEW_HELD; s++) {
            const int32_t chunk = first + s * split, next = chunk + FEW_HELD * split;
            if (chunk >= n_chunks) continue; /* the whole wave */
            GPU_UNROLL
            for (int32_t g = 0; g < 2; g++) few_blocks(ring + s * FEW_TILES, chunk, g, x, lane, tot);
            GPU_UNROLL
            for (int32_t i = 0; i < FEW_TILES; i++)
                if (next < n_chunks) ring[s * FEW_TILES + i] = few_fetch(r, i, next);
        }
    }
    GPU_UNROLL
    for (int32_t i = 0; i < FEW_BLOCKS * 2 * FEW_TILES; i++) /* [block, tile, row or eight below] */
        gpu_store(sums, ((i / 2 % FEW_TILES) * MOX_GPU_FEW_TOKENS + i / 2 / FEW_TILES * FEW_BLOCK + lane % 4) * FEW_STRIDE + lane / 4 + i % 2 * 8, tot[i]);
}

enum { FEW_WAVE_SUMS = FEW_TILES * MOX_GPU_FEW_TOKENS * FEW_STRIDE };

/* A row of a tile, of the waves from `wave` on. */
GPU_FN float few_join(const GPU_SHARED(f32) *sums, int32_t wave, int32_t split, int32_t tile, int32_t token, int32_t row)
{
    float sum = 0.0f;
    for (int32_t k = 0; k < split; k++)
        sum += gpu_load(sums, (wave + k) * FEW_WAVE_SUMS + (tile * MOX_GPU_FEW_TOKENS + token) * FEW_STRIDE + row);
    return sum;
}

/* y of the group's rows for x's tokens. */
GPU_FN void few_group(mox_gpu_mat m, mox_gpu_vec bias, few_x x, GPU_GLOBAL(f32) *y, int64_t y_stride, int32_t split, GPU_SHARED(f32) *sums,
                      int64_t group, int32_t me)
{
    const int32_t lane = me % GPU_LANES, wave = me / GPU_LANES, n_rows = FEW_WAVES / split * MOX_GPU_FEW_ROWS;
    const int64_t row0 = group * n_rows;
    const few_rows r = few_rows_of(m, m, row0 + wave / split * MOX_GPU_FEW_ROWS, 16, lane);
    few_wave(r, x, wave % split, split, sums + wave * FEW_WAVE_SUMS, lane);
    gpu_barrier();
    for (int32_t i = me; i < n_rows * x.n; i += FEW_THREADS) {
        const int32_t token = i / n_rows, of = i % n_rows;
        const int64_t row = row0 + of;
        if (row >= m.rows) continue;
        const float add = bias.type == MOX_GPU_NONE ? 0.0f : stored_number(bias.data, (int32_t)bias.type, row);
        gpu_store(y, token * y_stride + row,
                  few_join(sums, of / MOX_GPU_FEW_ROWS * split, split, of / 16 % FEW_TILES, token, of % 16) + add);
    }
}

GPU_KERNEL_EARLY_DENSE(matmul_few, FEW_THREADS, 2)
{
    GPU_SHARED_ARRAY(f32, sums, FEW_WAVES * FEW_WAVE_SUMS);
    const few_x x = few_tokens(p->planes, p->parts, p->n, p->w.cols, gpu_group_x());
    few_group(p->w, p->bias, x, p->y + gpu_group_x() * MOX_GPU_FEW_TOKENS * p->y_stride, p->y_stride, (int32_t)p->split, sums, gpu_group_y(),
              gpu_thread());
}

/* Queries, keys and values of a layer in one launch. */
GPU_KERNEL_EARLY_DENSE(matmul_few_three, FEW_THREADS, 2)
{
    GPU_SHARED_ARRAY(f32, sums, FEW_WAVES * FEW_WAVE_SUMS);
    const int64_t group = gpu_group_y(), rows = FEW_WAVES * MOX_GPU_FEW_ROWS / p->split;
    const int64_t second = (p->w0.rows + rows - 1) / rows, third = second + (p->w1.rows + rows - 1) / rows;
    mox_gpu_mat w = p->w0; /* chosen by value: parameters are not indexed */
    mox_gpu_vec bias = p->bias0;
    GPU_GLOBAL(f32) *y = p->y0;
    int64_t first = 0;
    if (group >= third) {
        w = p->w2;
        bias = p->bias2;
        y = p->y2;
        first = third;
    } else if (group >= second) {
        w = p->w1;
        bias = p->bias1;
        y = p->y1;
        first = second;
    }
    const few_x x = few_tokens(p->planes, p->parts, p->n, w.cols, gpu_group_x());
    few_group(w, bias, x, y + gpu_group_x() * MOX_GPU_FEW_TOKENS * w.rows, w.rows, (int32_t)p->split, sums, group - first, gpu_thread());
}

/* A feed-forward that all tokens go through. */
GPU_KERNEL_EARLY_DENSE(gate_up_few, FEW_THREADS, 2)
{
    GPU_SHARED_ARRAY(f32, sums, FEW_WAVES * FEW_WAVE_SUMS);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, wave = me / GPU_LANES, split = (int32_t)p->split, n_rows = FEW_WAVES / split * 16;
    const int64_t row0 = gpu_group_y() * n_rows, token0 = gpu_group_x() * MOX_GPU_FEW_TOKENS;
    const few_x x = few_tokens(p->planes, p->parts, p->n, p->gate.cols, gpu_group_x());
    few_wave(few_rows_of(p->gate, p->up, row0 + wave / split * 16, 0, lane), x, wave % split, split, sums + wave * FEW_WAVE_SUMS, lane);
    gpu_barrier();
    for (int32_t i = me; i < n_rows * x.n; i += FEW_THREADS) {
        const int32_t token = i / n_rows, of = i % n_rows, first = of / 16 * split;
        if (row0 + of >= p->gate.rows) continue;
        gpu_store(p->y, (token0 + token) * p->y_stride + row0 + of,
                  silu(few_join(sums, first, split, 0, token, of % 16)) * few_join(sums, first, split, 1, token, of % 16));
    }
}

/* ---- experts ---- */

/* Lists the pairs of an expert, in ascending order: list[0] is how many there are.  The first wave does it. */
GPU_FN int32_t few_list(const GPU_GLOBAL(i32) *ids, int32_t n_pairs, int32_t expert, GPU_SHARED(i32) *list, int32_t me)
{
    if (me < GPU_LANES) {
        int32_t n = 0;
        for (int32_t first = 0; first < n_pairs; first += 4 * GPU_LANES) {
            int32_t is_own[4], n_own = 0;
            GPU_UNROLL
            for (int32_t j = 0; j < 4; j++) {
                const int32_t pair = first + me * 4 + j;
                is_own[j] = pair < n_pairs && gpu_load(ids, pair) == expert ? 1 : 0;
                n_own += is_own[j];
            }
            int32_t upto = n_own; /* of the lanes up to this one */
            GPU_UNROLL
            for (int32_t d = 1; d < GPU_LANES; d *= 2) {
                const int32_t other = gpu_shuffle_i32(upto, me >= d ? me - d : me);
                if (me >= d) upto += other;
            }
            int32_t at = n + upto - n_own;
            GPU_UNROLL
            for (int32_t j = 0; j < 4; j++)
                if (is_own[j] != 0) gpu_store(list, ++at, first + me * 4 + j);
            n += gpu_shuffle_i32(upto, GPU_LANES - 1);
        }
        if (me == 0) gpu_store(list, 0, n);
    }
    gpu_barrier();
    return gpu_load(list, 0);
}

/* What the group of an expert has in shared memory: two sides, of a phase each. */
typedef struct few_room {
    GPU_SHARED(quad) *planes; /* [side][group][token][plane][8] */
    GPU_SHARED(u64) *parts;   /* [side][group][token] */
} few_room;

/* Eight numbers of a token. */
typedef struct few_numbers {
    gpu_quad first, second;
} few_numbers;

/* Those from column `col` on of the token that begins at `at`; zeros where there is none. */
GPU_FN few_numbers few_ask(const GPU_GLOBAL(f32) *x, int64_t at, int64_t col, int64_t cols)
{
    few_numbers v = {{{0u, 0u, 0u, 0u}}, {{0u, 0u, 0u, 0u}}};
    if (at < 0 || col >= cols) return v;
    v.first = gpu_load_quad(x, at + col);
    v.second = gpu_load_quad(x, at + col + 4);
    return v;
}

/* A thread has a word of a token: 64 threads are the 512 columns of a phase. */
GPU_FN void few_put(few_room room, int32_t side, few_numbers v, int32_t me)
{
    const few_word w = few_split(v.first, v.second, me % GPU_LANES);
    const int32_t at = (side * FEW_PHASE_GROUPS + me % 64 / 8) * FEW_BLOCK + me / 64;
    gpu_store(room.planes, at * FEW_QUADS + few_place(me % 8, 0), w.high);
    gpu_store(room.planes, at * FEW_QUADS + FEW_QUADS / 2 + few_place(me % 8, 1), w.low);
    if (me % 8 == 0) gpu_store(room.parts, at, w.part);
}

/* tot[2 i ...] += rows g and g + 8 of tile i by the token that the lane has sums of.  at: where the token begins that the thread
 * makes planes of, or -1.  ring has what few_start asked for. */
GPU_FN void few_expert(few_rows r, const GPU_GLOBAL(f32) *x, int64_t at, few_room room, int32_t me, GPU_PRIVATE(few_codes) *ring,
                       GPU_PRIVATE(f32) *tot)
{
    const int32_t lane = me % GPU_LANES, column = lane / 4, n_chunks = (int32_t)r.m[0].cols / FEW_CHUNK;
    const int64_t word = me % 64 * 8, cols = r.m[0].cols;
    few_put(room, 0, few_ask(x, at, word, cols), me);
    for (int32_t first = 0; first < n_chunks; first += FEW_PHASE) {
        const int32_t side = first / FEW_PHASE % 2;
        const few_numbers next = few_ask(x, at, word + (first + FEW_PHASE) * FEW_CHUNK, cols); /* on its way meanwhile */
        gpu_barrier(); /* this side is full, and the other one is not read any more */
        GPU_UNROLL
        for (int32_t s = 0; s < FEW_PHASE; s++) {
            const int32_t chunk = first + s;
            if (chunk >= n_chunks) continue; /* the whole group */
            GPU_UNROLL
            for (int32_t g = 0; g < 2; g++) {
                const int32_t group = side * FEW_PHASE_GROUPS + s * 2 + g;
                gpu_quad b[2];
                GPU_UNROLL
                for (int32_t i = 0; i < 2; i++)
                    b[i] = gpu_load(room.planes, (group * 2 * FEW_BLOCK + column) * (FEW_QUADS / 2) + few_place(lane % 4 * 2 + i, column % 2));
                const uint64_t part = gpu_load(room.parts, group * FEW_BLOCK + lane % 4);
                GPU_UNROLL
                for (int32_t i = 0; i < FEW_TILES; i++) few_multiply(ring[s % FEW_HELD * FEW_TILES + i], g, b, part, tot + 2 * i);
            }
            GPU_UNROLL
            for (int32_t i = 0; i < FEW_TILES; i++)
                if (chunk + FEW_HELD < n_chunks) ring[s % FEW_HELD * FEW_TILES + i] = few_fetch(r, i, chunk + FEW_HELD);
        }
        if (first + FEW_PHASE < n_chunks) few_put(room, 1 - side, next, me);
    }
    gpu_barrier();
}

/* Where the token of pair number i begins, or -1. */
GPU_FN int64_t few_row(const GPU_SHARED(i32) *list, int32_t n, int32_t i, int64_t divisor, int64_t stride)
{
    return i < n ? gpu_load(list, 1 + i) / (int32_t)divisor * stride : -1;
}

GPU_KERNEL_EARLY_DENSE(experts_gate_up_few, FEW_THREADS, 2)
{
    GPU_SHARED_ARRAY(quad, planes, 2 * FEW_PHASE_QUADS);
    GPU_SHARED_ARRAY(u64, parts, 2 * FEW_PHASE_PARTS);
    GPU_SHARED_ARRAY(i32, list, MOX_GPU_FEW_PAIRS + 1);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, expert = (int32_t)gpu_group_y();
    const int64_t row = gpu_group_x() * (FEW_WAVES * 16) + me / GPU_LANES * 16;
    const few_room room = {planes, parts};
    const few_rows r = few_rows_of(four_expert(p->first, expert), four_expert(p->second, expert), row, 0, lane);
    few_codes ring[FEW_HELD * FEW_TILES];
    if (p->most != 0) few_start(r, 0, 1, ring); /* those that nobody wants read a little for nothing */
    gpu_previous();
    const int32_t n = few_list(p->ids, (int32_t)p->n_pairs, expert, list, me);
    if (p->most == 0 && n > 0) few_start(r, 0, 1, ring);
    for (int32_t i = 0; i < n; i += FEW_BLOCK) {
        float tot[2 * FEW_TILES] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (i > 0) few_start(r, 0, 1, ring);
        few_expert(r, p->x, few_row(list, n, i + me / 64, p->x_divisor, p->x_stride), room, me, ring, tot);
        if (i + lane % 4 >= n) continue;
        const int64_t at = gpu_load(list, 1 + i + lane % 4) * p->y_stride;
        GPU_UNROLL
        for (int32_t h = 0; h < 2; h++)
            if (row + lane / 4 + 8 * h < p->first.first.rows) gpu_store(p->y, at + row + lane / 4 + 8 * h, silu(tot[h]) * tot[2 + h]);
    }
}

GPU_KERNEL_EARLY_DENSE(experts_down_few, FEW_THREADS, 2)
{
    GPU_SHARED_ARRAY(quad, planes, 2 * FEW_PHASE_QUADS);
    GPU_SHARED_ARRAY(u64, parts, 2 * FEW_PHASE_PARTS);
    GPU_SHARED_ARRAY(i32, list, MOX_GPU_FEW_PAIRS + 1);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, expert = (int32_t)gpu_group_y();
    const int64_t row = (gpu_group_x() * FEW_WAVES + me / GPU_LANES) * MOX_GPU_FEW_ROWS;
    const few_room room = {planes, parts};
    const mox_gpu_mat down = four_expert(p->first, expert);
    const few_rows r = few_rows_of(down, down, row, 16, lane);
    few_codes ring[FEW_HELD * FEW_TILES];
    const int32_t n = few_list(p->ids, (int32_t)p->n_pairs, expert, list, me); /* ids are older than what is in front */
    if (n > 0) few_start(r, 0, 1, ring);
    gpu_previous();
    for (int32_t i = 0; i < n; i += FEW_BLOCK) {
        float tot[2 * FEW_TILES] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (i > 0) few_start(r, 0, 1, ring);
        few_expert(r, p->x, few_row(list, n, i + me / 64, p->x_divisor, p->x_stride), room, me, ring, tot);
        if (i + lane % 4 >= n) continue;
        const int64_t at = gpu_load(list, 1 + i + lane % 4) * p->y_stride;
        GPU_UNROLL
        for (int32_t j = 0; j < 2 * FEW_TILES; j++)
            if (row + lane / 4 + 8 * j < down.rows) gpu_store(p->y, at + row + lane / 4 + 8 * j, tot[j]);
    }
}

#endif
