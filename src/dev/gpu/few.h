/* dev/gpu/few.h -- products of 4-bit weights with some tokens, 5 to 64: sequences that generate together, short prompts.
 *
 * Here the weights are what takes time, so they are read once for all tokens, many of them at a time.  Weights are those
 * that matvec4.h reads, but numbers are made otherwise: a code is an f16 as it stands (masked to its place, nibble 0
 * of a half is q 2^-24 and nibble 1 is 16 q 2^-24, subnormals that matrix units multiply exactly), x is two f16 numbers (planes)
 * that together have 22 bits, and scales and biases of the weights are applied in f32.  Four tokens of two planes are the
 * eight columns of a product, and a lane has the sums of one of them.
 *
 * A product of 16 columns is to be of one group of 64 weights, as their scale comes behind it.  So the four lanes of a row
 * have eight bytes each of a group, 16 columns; which these are in x, planes are ordered by.  x is scaled by a power of two
 * per token and group, and its sum there is what biases are multiplied with.
 *
 * Waves share rows by columns, 256 of them at a time, so that a group reads whole rows at once: memory gives neighbours much
 * faster than pieces that lie apart.  Their sums are added up at the end, always in the same order.
 *
 * Dense products, which these are, take planes that plane_rows has made, and a wave has two or three tiles of 16 rows of one matrix, or the
 * same rows of gate and up.  Experts are in few_experts.h. */
#ifndef MOX_DEV_GPU_FEW_H
#define MOX_DEV_GPU_FEW_H

#include "dev/gpu/matvec4.h"

enum {
    FEW_THREADS = 256,
    FEW_WAVES = FEW_THREADS / GPU_LANES,
    FEW_GROUP = MOX_GPU_FEW_GROUP,        /* columns that a scale is for */
    FEW_GROUPS = 4,                       /* of a chunk, which is what a lane asks for in one go */
    FEW_CHUNK = FEW_GROUPS * FEW_GROUP,
    FEW_BLOCK = 4,                        /* tokens of a product */
    FEW_BLOCKS = MOX_GPU_FEW_TOKENS / FEW_BLOCK,
    FEW_TILES = MOX_GPU_FEW_ROWS / 16,    /* of a wave */
    FEW_TILES_MOST = MOX_GPU_FEW_THREE_ROWS / 16, /* of one where x is what takes time */
    FEW_QUADS = 2 * FEW_GROUP / 8,        /* of a token's group: two planes */
    FEW_STRIDE = 24                       /* of the 16 sums of a token: so lanes store to different banks */
};

/* ---- tokens ---- */

/* Where word i of a group's eight is among the quads of a plane: lanes of a product ask for neighbours. */
GPU_FN int32_t few_place(int32_t i) { return i % 2 * 4 + i / 2; }

/* How a group of x is scaled, by its largest number: that becomes 2^14 and more; below 2^-112 f16 does without the rest. */
typedef struct few_scale {
    float up, factor; /* which undoes the scaling of planes and codes */
} few_scale;
GPU_FN few_scale few_scale_of(float largest)
{
    const uint32_t bits = gpu_f32_bits(largest) >> 23, exponent = bits < 15u ? 15u : bits;
    few_scale s;
    s.up = gpu_bits_f32((268u - exponent) << 23);
    s.factor = gpu_bits_f32((exponent - 14u) << 23) * 16777216.0f;
    return s;
}

/* The two planes of eight numbers.  Pairs are columns i and i + 4, as codes are; every second code counts sixteenfold, so its
 * x is a sixteenth. */
typedef struct few_word {
    gpu_quad high, low;
} few_word;
GPU_FN few_word few_split(const GPU_PRIVATE(f32) *v, float up)
{
    few_word w;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        const float scale = i % 2 == 0 ? up : up * 0.0625f, a = v[i] * scale, b = v[i + 4] * scale;
        w.high.w[i] = gpu_pack_f16(a, b);
        w.low.w[i] = gpu_pack_f16(a - gpu_f16_to_f32(w.high.w[i] & 0xFFFFu), b - gpu_f16_to_f32(w.high.w[i] >> 16));
    }
    return w;
}

/* n numbers (a constant), a multiple of 4. */
GPU_FN void few_numbers(const GPU_GLOBAL(f32) *x, int64_t at, int32_t n, GPU_PRIVATE(f32) *v)
{
    GPU_UNROLL
    for (int32_t i = 0; i < n; i += 4) {
        const gpu_quad four = gpu_load_quad(x, at + i);
        GPU_UNROLL
        for (int32_t k = 0; k < 4; k++) v[i + k] = gpu_bits_f32(four.w[k]);
    }
}

/* A thread has a word; eight lanes have a group. */
GPU_FN void few_plane(mox_gpu_plane_rows rows, int64_t group, int64_t t, int32_t me)
{
    const int32_t lane = me % GPU_LANES;
    const int64_t col = (group * FEW_THREADS + me) * 8, at = t * (rows.cols / FEW_GROUP) + col / FEW_GROUP;
    const bool there = col < rows.cols; /* the same in the lanes of a group */
    float v[8], largest = 0.0f, sum = 0.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < 8; i++) v[i] = 0.0f;
    if (there) few_numbers(rows.x, t * rows.x_stride + col, 8, v);
    GPU_UNROLL
    for (int32_t i = 0; i < 8; i++) {
        largest = gpu_max(largest, gpu_abs(v[i]));
        sum += v[i];
    }
    GPU_UNROLL
    for (int32_t d = 4; d > 0; d /= 2) {
        sum += gpu_shuffle(sum, lane ^ d);
        largest = gpu_max(largest, gpu_shuffle(largest, lane ^ d));
    }
    if (!there) return;
    const few_scale scale = few_scale_of(largest);
    const few_word w = few_split(v, scale.up);
    gpu_store(rows.planes, at * FEW_QUADS + few_place(me % 8), w.high);
    gpu_store(rows.planes, at * FEW_QUADS + FEW_QUADS / 2 + few_place(me % 8), w.low);
    if (me % 8 == 0) gpu_store(rows.parts, at, gpu_f32_bits(scale.factor) | (uint64_t)gpu_f32_bits(sum) << 32);
}

GPU_KERNEL(plane_rows, FEW_THREADS) { few_plane(*p, gpu_group_x(), gpu_group_y(), gpu_thread()); }

/* ---- weights ---- */

/* What a lane has of 16 rows and a chunk: of rows g and g + 8 the codes of each group, and scales and biases of all. */
typedef struct few_codes {
    uint64_t w[FEW_GROUPS][2];
    uint64_t scale[2], bias[2];
} few_codes;
GPU_TYPE(few_codes, few_codes);

/* Bytes from where the codes of the matrix begin to those of a chunk of the lane's row; rows beyond the end are read as the last one.  A chunk is
 * 128 bytes of codes and four scales, so where the one is says where the other is. */
GPU_FN int64_t few_at(mox_gpu_mat m, int64_t row, int32_t h, int32_t chunk, int32_t lane)
{
    return least(row + lane / 4 + 8 * h, m.rows - 1) * m.row_bytes + chunk * (FEW_CHUNK / 2);
}
GPU_FN void few_fetch_group(mox_gpu_mat m, int64_t row, int32_t chunk, int32_t group, int32_t lane, GPU_PRIVATE(few_codes) *k)
{
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++)
        k->w[group][h] = gpu_bytes_u64(m.w, few_at(m, row, h, chunk, lane) + (lane % 4 * 8 + group * (FEW_GROUP / 2)));
}
GPU_FN void few_fetch_scales(mox_gpu_mat m, int64_t row, int32_t chunk, int32_t lane, GPU_PRIVATE(u64) *scale, GPU_PRIVATE(u64) *bias)
{
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        scale[h] = gpu_bytes_u64(m.scales, few_at(m, row, h, chunk, lane) / 16);
        bias[h] = gpu_bytes_u64(m.biases, few_at(m, row, h, chunk, lane) / 16);
    }
}

/* A product is four steps of 16 columns, each of which waits for the one before: so callers have several of them under way,
 * step by step.  b: words 2 t and 2 t + 1 of the column of x that the lane brings. */
GPU_FN void few_step(few_codes k, int32_t group, int32_t step, const GPU_PRIVATE(quad) *b, GPU_PRIVATE(f32) *c)
{
    const int32_t shift = step / 2 * 32 + step % 2 * 8;
    const uint32_t w0 = (uint32_t)(k.w[group][0] >> shift), w1 = (uint32_t)(k.w[group][1] >> shift);
    gpu_mma(c, w0 & 0x000F000Fu, w1 & 0x000F000Fu, w0 & 0x00F000F0u, w1 & 0x00F000F0u, b[step / 2].w[step % 2 * 2],
            b[step / 2].w[step % 2 * 2 + 1]);
}

/* y[0..1] += rows g and g + 8 of a group by the token that the lane has sums of, of which part has factor and sum. */
GPU_FN void few_add(few_codes k, int32_t group, const GPU_PRIVATE(f32) *c, uint64_t part, GPU_PRIVATE(f32) *y)
{
    const float factor = gpu_bits_f32((uint32_t)part), sum = gpu_bits_f32((uint32_t)(part >> 32));
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        y[h] += four_number(k.scale[h], group) * ((c[2 * h] + c[2 * h + 1]) * factor);
        y[h] += four_number(k.bias[h], group) * sum;
    }
}

/* ---- dense products ---- */

/* The planes of the tokens of a group. */
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

/* What a lane brings of a block of tokens over a group: two quads of its column, and the parts of the token that it has sums of. */
typedef struct few_block {
    gpu_quad b[2];
    uint64_t part;
} few_block;
GPU_TYPE(few_block, few_block);

/* Tokens beyond the end are read as the last one. */
GPU_FN few_block few_bring_block(few_x x, int32_t j, int32_t group, int32_t lane)
{
    const int32_t column = lane / 4;
    const int32_t token = (int32_t)least(j * FEW_BLOCK + column / 2, x.n - 1), own = (int32_t)least(j * FEW_BLOCK + lane % 4, x.n - 1);
    const int64_t at = (token * x.n_groups + group) * FEW_QUADS + column % 2 * (FEW_QUADS / 2);
    few_block of;
    GPU_UNROLL
    for (int32_t i = 0; i < 2; i++) of.b[i] = gpu_load(x.planes, at + few_place(lane % 4 * 2 + i));
    of.part = gpu_load(x.parts, (int64_t)(own * x.n_groups + group));
    return of;
}

/* tiles times 16 rows by blocks times FEW_BLOCK tokens (constants), over the chunks part, part + split, ...: tot += these, [tile, block of FEW_BLOCKS, row or eight below].
 * Tile i is of `first`, from row on; or there are two, and the other is the same rows of `second`.  A block's place is filled with what it
 * has of the next group when it has been multiplied, and so are those of codes: so loads are under way all the time. */
GPU_FN void few_wave(mox_gpu_mat first, mox_gpu_mat second, bool is_pair, int64_t row, int32_t tiles, int32_t blocks, few_x x, int32_t part,
                     int32_t split, int32_t lane, GPU_PRIVATE(f32) *tot)
{
    const int32_t n_chunks = (int32_t)first.cols / FEW_CHUNK, begin = (int32_t)least(part, n_chunks - 1); /* there may be more waves than chunks */
    few_codes k[FEW_TILES_MOST];
    few_block of[FEW_BLOCKS];
    GPU_UNROLL
    for (int32_t i = 0; i < tiles; i++) {
        const mox_gpu_mat m = is_pair && i == 1 ? second : first;
        const int64_t at = is_pair ? row : row + 16 * i;
        GPU_UNROLL
        for (int32_t g = 0; g < FEW_GROUPS; g++) few_fetch_group(m, at, begin, g, lane, &k[i]);
        few_fetch_scales(m, at, begin, lane, k[i].scale, k[i].bias);
    }
    gpu_previous();
    GPU_UNROLL
    for (int32_t j = 0; j < blocks; j++) of[j] = few_bring_block(x, j, begin * FEW_GROUPS, lane);
    for (int32_t chunk = part; chunk < n_chunks; chunk += split) {
        const bool more = chunk + split < n_chunks;
        uint64_t scale[FEW_TILES][2], bias[FEW_TILES][2];
        GPU_UNROLL
        for (int32_t i = 0; i < tiles; i++)
            if (more && tiles <= FEW_TILES)
                few_fetch_scales(is_pair && i == 1 ? second : first, is_pair ? row : row + 16 * i, chunk + split, lane, scale[i], bias[i]);
        GPU_UNROLL
        for (int32_t g = 0; g < FEW_GROUPS; g++) {
            const int32_t next = g + 1 < FEW_GROUPS ? chunk * FEW_GROUPS + g + 1 : (chunk + split) * FEW_GROUPS;
            GPU_UNROLL
            for (int32_t j = 0; j < blocks; j++) {
                float c[FEW_TILES_MOST][4];
                GPU_UNROLL
                for (int32_t i = 0; i < tiles; i++) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0.0f;
                GPU_UNROLL
                for (int32_t step = 0; step < 4; step++)
                    GPU_UNROLL
                    for (int32_t i = 0; i < tiles; i++) few_step(k[i], g, step, of[j].b, c[i]);
                const uint64_t own = of[j].part;
                if (more || g + 1 < FEW_GROUPS) of[j] = few_bring_block(x, j, next, lane);
                GPU_UNROLL
                for (int32_t i = 0; i < tiles; i++) few_add(k[i], g, c[i], own, tot + 2 * (i * FEW_BLOCKS + j));
            }
            GPU_UNROLL
            for (int32_t i = 0; i < tiles; i++)
                if (more) few_fetch_group(is_pair && i == 1 ? second : first, is_pair ? row : row + 16 * i, chunk + split, g, lane, &k[i]);
        }
        GPU_UNROLL
        for (int32_t i = 0; i < tiles; i++) {
            if (more && tiles > FEW_TILES) few_fetch_scales(first, row + 16 * i, chunk + split, lane, k[i].scale, k[i].bias);
            GPU_UNROLL
            for (int32_t h = 0; h < 2; h++) {
                if (!more || tiles > FEW_TILES) continue;
                k[i].scale[h] = scale[i][h];
                k[i].bias[h] = bias[i][h];
            }
        }
    }
}

/* The same, by as many blocks as x's tokens need; [tile, block of FEW_BLOCKS, row or eight below]. */
GPU_FN void few_product(mox_gpu_mat first, mox_gpu_mat second, bool is_pair, int64_t row, int32_t tiles, few_x x, int32_t part, int32_t split,
                     int32_t lane, GPU_PRIVATE(f32) *tot)
{
    GPU_UNROLL
    for (int32_t i = 0; i < 2 * tiles * FEW_BLOCKS; i++) tot[i] = 0.0f;
    if (x.n <= FEW_BLOCKS / 2 * FEW_BLOCK) few_wave(first, second, is_pair, row, tiles, FEW_BLOCKS / 2, x, part, split, lane, tot); /* the whole group */
    else few_wave(first, second, is_pair, row, tiles, FEW_BLOCKS, x, part, split, lane, tot);
}

enum { FEW_WAVE_SUMS = FEW_TILES * MOX_GPU_FEW_TOKENS * FEW_STRIDE };

/* Leaves the sums of up to FEW_TILES tiles, `tiles` (a constant), in the wave's place of `sums`: [tile, token, row]. */
GPU_FN void few_leave_sums(const GPU_PRIVATE(f32) *tot, int32_t tiles, GPU_SHARED(f32) *sums, int32_t lane)
{
    GPU_UNROLL
    for (int32_t i = 0; i < tiles * FEW_BLOCKS * 2; i++) {
        const int32_t token = i / 2 % FEW_BLOCKS * FEW_BLOCK + lane % 4;
        gpu_store(sums, (i / 2 / FEW_BLOCKS * MOX_GPU_FEW_TOKENS + token) * FEW_STRIDE + lane / 4 + i % 2 * 8, tot[i]);
    }
}

/* A row of a tile, of the waves from `wave` on. */
GPU_FN float few_join(const GPU_SHARED(f32) *sums, int32_t wave, int32_t split, int32_t tile, int32_t token, int32_t row)
{
    float sum = 0.0f;
    for (int32_t k = 0; k < split; k++)
        sum += gpu_load(sums, (wave + k) * FEW_WAVE_SUMS + (tile * MOX_GPU_FEW_TOKENS + token) * FEW_STRIDE + row);
    return sum;
}

/* y of the group's rows, tiles (a constant) times 16 of each set of waves, for x's tokens. */
GPU_FN void few_group(mox_gpu_mat m, mox_gpu_vec bias, few_x x, GPU_GLOBAL(f32) *y, int64_t y_stride, int32_t tiles, int32_t split,
                      GPU_SHARED(f32) *sums, int64_t group, int32_t me)
{
    const int32_t lane = me % GPU_LANES, wave = me / GPU_LANES, sets = FEW_WAVES / split;
    const int64_t row0 = group * (sets * tiles * 16);
    float tot[FEW_TILES_MOST * FEW_BLOCKS * 2];
    few_product(m, m, false, row0 + wave / split * (tiles * 16), tiles, x, wave % split, split, lane, tot);
    GPU_UNROLL
    for (int32_t tile = 0; tile < tiles; tile += FEW_TILES) {
        const int32_t width = tiles - tile < FEW_TILES ? tiles - tile : FEW_TILES, n_rows = sets * width * 16;
        if (tile > 0) gpu_barrier();
        few_leave_sums(tot + tile * FEW_BLOCKS * 2, width, sums + wave * FEW_WAVE_SUMS, lane);
        gpu_barrier();
        for (int32_t i = me; i < n_rows * x.n; i += FEW_THREADS) {
            const int32_t token = i / n_rows, of = i % n_rows, set = of / (width * 16), at = of / 16 % width;
            const int64_t row = row0 + (set * tiles + tile + at) * 16 + of % 16;
            if (row >= m.rows) continue;
            const float add = bias.type == MOX_GPU_NONE ? 0.0f : stored_number(bias.data, (int32_t)bias.type, row);
            gpu_store(y, token * y_stride + row, few_join(sums, set * split, split, at, token, of % 16) + add);
        }
    }
}

GPU_KERNEL_EARLY(matmul_few, FEW_THREADS)
{
    GPU_SHARED_ARRAY(f32, sums, FEW_WAVES * FEW_WAVE_SUMS);
    const few_x x = few_tokens(p->planes, p->parts, p->n, p->w.cols, gpu_group_x());
    few_group(p->w, p->bias, x, p->y + gpu_group_x() * MOX_GPU_FEW_TOKENS * p->y_stride, p->y_stride, FEW_TILES, (int32_t)p->split, sums,
              gpu_group_y(), gpu_thread());
}

/* Queries, keys and values of a layer in one launch. */
GPU_KERNEL_EARLY(matmul_few_three, FEW_THREADS)
{
    GPU_SHARED_ARRAY(f32, sums, FEW_WAVES * FEW_WAVE_SUMS);
    const int64_t group = gpu_group_y(), rows = FEW_WAVES * MOX_GPU_FEW_THREE_ROWS / p->split;
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
    few_group(w, bias, x, y + gpu_group_x() * MOX_GPU_FEW_TOKENS * w.rows, w.rows, FEW_TILES_MOST, (int32_t)p->split, sums, group - first,
              gpu_thread());
}

/* A feed-forward that all tokens go through. */
GPU_KERNEL_EARLY(gate_up_few, FEW_THREADS)
{
    GPU_SHARED_ARRAY(f32, sums, FEW_WAVES * FEW_WAVE_SUMS);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, wave = me / GPU_LANES;
    const int32_t split = (int32_t)p->split, n_rows = FEW_WAVES / split * 16;
    const int64_t row0 = gpu_group_y() * n_rows, token0 = gpu_group_x() * MOX_GPU_FEW_TOKENS;
    const few_x x = few_tokens(p->planes, p->parts, p->n, p->gate.cols, gpu_group_x());
    float tot[FEW_TILES * FEW_BLOCKS * 2];
    few_product(p->gate, p->up, true, row0 + wave / split * 16, FEW_TILES, x, wave % split, split, lane, tot);
    few_leave_sums(tot, FEW_TILES, sums + wave * FEW_WAVE_SUMS, lane);
    gpu_barrier();
    for (int32_t i = me; i < n_rows * x.n; i += FEW_THREADS) {
        const int32_t token = i / n_rows, of = i % n_rows, first = of / 16 * split;
        if (row0 + of >= p->gate.rows) continue;
        gpu_store(p->y, (token0 + token) * p->y_stride + row0 + of,
                  silu(few_join(sums, first, split, 0, token, of % 16)) * few_join(sums, first, split, 1, token, of % 16));
    }
}

#endif
