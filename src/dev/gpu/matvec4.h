/* dev/gpu/matvec4.h -- products of 4-bit weights with one token, on matrix units: decoding.
 *
 * For affine matrices of 4 bits, groups of 64 and bf16 scales whose columns are a multiple of
 * 256 and whose bytes are aligned (mox_gpu_mat_is_four); everything else is matvec.h's.
 *
 * A wave takes 16 rows and a chunk of 256 columns: 16 bytes of codes per lane and row are two tiles of
 * 128 columns.  A code is an f16 as it stands: masked to its place, nibble 0 of a half is
 * q 2^-24 and nibble 1 is 16 q 2^-24, subnormals that matrix units multiply exactly; so two ANDs
 * and half a shift decode four weights.
 *
 * x is f32.  A chunk is scaled by a power of two, so that f16 holds it, and split into two f16
 * whose sum has 22 bits: the product is as exact as one in f32 nearly is (1e-6 of the magnitude
 * at most).  The two planes of x are two columns of B, and as the four lanes of a row hold two
 * groups of scales, each group has columns of its own: 0 and 1 for the lower, 4 and 5 for the upper,
 * zero where a lane's codes are of the other.  So C has, per row, four sums to be scaled and added.
 *
 * A norm of x is taken along: gains are multiplied into x, squares are added up on the way, and as 1 / rms is the
 * same for all columns, sums are multiplied by it at the end.
 *
 * The weights are asked for before the launch in front has ended: they do not depend on it. */
#ifndef MOX_DEV_GPU_MATVEC4_H
#define MOX_DEV_GPU_MATVEC4_H

#include "dev/gpu/norm.h"

enum { FOUR_CHUNK = 256, FOUR_WAVES = 8, FOUR_THREADS = FOUR_WAVES * GPU_LANES, FOUR_GROUPS = 4, FOUR_ZERO = 64, FOUR_QUADS = 65,
       FOUR_HELD = 2, FOUR_TILES = 2 };

/* Codes, scales and biases of a lane: rows g and g + 8, two tiles. */
typedef struct four_tile {
    gpu_quad w[2][2];
    uint64_t scales[2], biases[2];
} four_tile;
GPU_TYPE(four_tile, four_tile);

/* An expert of a stack. */
GPU_FN mox_gpu_mat four_expert(mox_gpu_stack s, int64_t expert)
{
    mox_gpu_mat m = s.first;
    m.w += expert * s.w_step;
    m.scales += expert * s.scale_step;
    m.biases += expert * s.scale_step;
    return m;
}

/* Rows beyond the end are read as the last one. */
GPU_FN void four_load(mox_gpu_mat m, int64_t row, int64_t chunk, int32_t lane, GPU_PRIVATE(four_tile) *t)
{
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        /* Rows and bytes of a row are int32: their product is one instruction. */
        const int32_t beyond = (int32_t)row + lane / 4 + 8 * h, r = beyond < (int32_t)m.rows ? beyond : (int32_t)m.rows - 1;
        const int64_t at = (int64_t)r * (int32_t)m.row_bytes + ((int32_t)chunk * (FOUR_CHUNK / 2) + lane % 4 * 16);
        const int64_t scale_at = (int64_t)r * (2 * (int32_t)m.scale_cols) + (int32_t)chunk * (2 * FOUR_GROUPS);
        gpu_bytes_quad(m.w, at, &t->w[h][0]);
        gpu_bytes_quad(m.w, at + 64, &t->w[h][1]);
        t->scales[h] = gpu_bytes_u64(m.scales, scale_at);
        t->biases[h] = gpu_bytes_u64(m.biases, scale_at);
    }
}

/* What a wave knows of its chunk of x beside the planes. */
typedef struct four_x {
    float factor;  /* undoes the scaling of planes and codes */
    float sum;     /* of the group that lane / 8 is in */
    float squares; /* of the lane's eight, before gains */
} four_x;

GPU_FN four_x four_none(void)
{
    four_x x = {0.0f, 0.0f, 0.0f};
    return x;
}

/* The lane's eight of 256 numbers: those of one word of codes. */
GPU_FN void four_eight(const GPU_GLOBAL(f32) *x, int32_t lane, GPU_PRIVATE(f32) *v)
{
    const gpu_quad first = gpu_load(GPU_CAST(quad, x), 2 * lane), second = gpu_load(GPU_CAST(quad, x), 2 * lane + 1);
    GPU_UNROLL
    for (int32_t i = 0; i < 8; i++) v[i] = gpu_bits_f32(i < 4 ? first.w[i % 4] : second.w[i % 4]);
}

/* Splits 256 numbers into planes [2][32], with a zero behind them: pairs of the lane's eight are columns i and i + 4.
 * Nibble 1 counts sixteenfold, so its x is a sixteenth. */
GPU_FN four_x four_planes(const GPU_PRIVATE(f32) *v, GPU_SHARED(quad) *planes, int32_t lane)
{
    float largest = 0.0f, sum = 0.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < 8; i++) {
        largest = gpu_max(largest, gpu_abs(v[i]));
        sum += v[i];
    }
    GPU_UNROLL
    for (int32_t d = 4; d > 0; d /= 2) sum += gpu_shuffle(sum, lane ^ d);
    /* The largest becomes 2^14 and more; below 2^-112 f16 does without the rest. */
    const uint32_t bits = gpu_f32_bits(gpu_lane_max(largest)) >> 23, exponent = bits < 15u ? 15u : bits;
    const float up = gpu_bits_f32((268u - exponent) << 23);
    gpu_quad high, low;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        const float scale = i % 2 == 0 ? up : up * 0.0625f, a = v[i] * scale, b = v[i + 4] * scale;
        high.w[i] = gpu_pack_f16(a, b);
        low.w[i] = gpu_pack_f16(a - gpu_f16_to_f32(high.w[i] & 0xFFFFu), b - gpu_f16_to_f32(high.w[i] >> 16));
    }
    gpu_store(planes, lane, high);
    gpu_store(planes, 32 + lane, low);
    gpu_quad zero = {{0u, 0u, 0u, 0u}};
    if (lane == 0) gpu_store(planes, FOUR_ZERO, zero);
    four_x result;
    result.factor = gpu_bits_f32((exponent - 14u) << 23) * 16777216.0f;
    result.sum = sum;
    result.squares = 0.0f;
    return result;
}

GPU_FN four_x four_split(const GPU_GLOBAL(f32) *x, GPU_SHARED(quad) *planes, int32_t lane)
{
    float v[8];
    four_eight(x, lane, v);
    return four_planes(v, planes, lane);
}

/* Of x times gains, where there is a norm. */
GPU_FN four_x four_split_normed(const GPU_GLOBAL(f32) *x, mox_gpu_normed norm, eight_gains gains, GPU_SHARED(quad) *planes, int32_t lane)
{
    float v[8], of_x = 0.0f;
    four_eight(x, lane, v);
    if (norm.out != 0) {
        GPU_UNROLL
        for (int32_t i = 0; i < 8; i++) {
            of_x += v[i] * v[i];
            v[i] *= gain_of_eight(gains, norm.weight, norm.offset, i);
        }
    }
    four_x result = four_planes(v, planes, lane);
    result.squares = of_x;
    return result;
}

GPU_FN float four_number(uint64_t four, int32_t i) { return bf16_to_f32((uint32_t)(four >> (16 * i)) & 0xFFFFu); }

/* y[0..1]: rows g and g + 8 of this wave's chunk, in the lanes of t = 0 (and 2). */
GPU_FN void four_dots(GPU_PRIVATE(four_tile) *tile, const GPU_SHARED(quad) *planes, four_x x, int32_t lane, GPU_PRIVATE(f32) *y)
{
    const int32_t g = lane / 4, t = lane % 4, side = t / 2;
    const bool mine = g / 4 == side && g % 4 < 2;
    float codes[2], biases[2];
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) codes[h] = biases[h] = 0.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < 2; i++) {
        float even[4], odd[4]; /* two chains: each product waits for the one before */
        GPU_UNROLL
        for (int32_t k = 0; k < 4; k++) even[k] = odd[k] = 0.0f;
        GPU_UNROLL
        for (int32_t j = 0; j < 4; j++) {
            const gpu_quad b = gpu_load(planes, mine ? g % 2 * 32 + i * 16 + t * 4 + j : FOUR_ZERO);
            const uint32_t w0 = tile->w[0][i].w[j], w1 = tile->w[1][i].w[j], v0 = w0 >> 8, v1 = w1 >> 8;
            gpu_mma(even, w0 & 0x000F000Fu, w1 & 0x000F000Fu, w0 & 0x00F000F0u, w1 & 0x00F000F0u, b.w[0], b.w[1]);
            gpu_mma(odd, v0 & 0x000F000Fu, v1 & 0x000F000Fu, v0 & 0x00F000F0u, v1 & 0x00F000F0u, b.w[2], b.w[3]);
        }
        const float sum = gpu_shuffle(x.sum, 8 * (2 * i + side));
        GPU_UNROLL
        for (int32_t h = 0; h < 2; h++) {
            codes[h] += four_number(tile->scales[h], 2 * i + side) * ((even[2 * h] + odd[2 * h]) + (even[2 * h + 1] + odd[2 * h + 1]));
            biases[h] += four_number(tile->biases[h], 2 * i + side) * sum;
        }
    }
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        const float part = codes[h] * x.factor + biases[h];
        y[h] = part + gpu_shuffle(part, lane ^ 2);
    }
}

/* Leaves the 16 sums of a wave in a row of `sums`. */
GPU_FN void four_leave(const GPU_PRIVATE(f32) *y, GPU_SHARED(f32) *sums, int32_t wave, int32_t lane)
{
    if (lane % 4 != 0) return;
    gpu_store(sums, wave * 16 + lane / 4, y[0]);
    gpu_store(sums, wave * 16 + lane / 4 + 8, y[1]);
}

/* In the order of the waves. */
GPU_FN float four_join(const GPU_SHARED(f32) *sums, int32_t first, int32_t n, int32_t row)
{
    float sum = 0.0f;
    for (int32_t i = 0; i < n; i++) sum += gpu_load(sums, (first + i) * 16 + row);
    return sum;
}

/* A group's sums of 16 rows by wave, and behind them the squares of x. */
enum { FOUR_SUMS = FOUR_WAVES * 16 + FOUR_WAVES };

GPU_FN float four_rms(mox_gpu_normed norm, const GPU_SHARED(f32) *of_waves, int64_t cols)
{
    float sum = 0.0f;
    if (norm.out == 0) return 1.0f;
    for (int32_t i = 0; i < FOUR_WAVES; i++) sum += gpu_load(of_waves, i);
    return inverse_rms(sum, cols, norm.eps);
}

GPU_FN float four_bias(mox_gpu_vec bias, int64_t row)
{
    return bias.type == MOX_GPU_NONE ? 0.0f : stored_number(bias.data, (int32_t)bias.type, row);
}

/* Sums of rows row ... row + 15 of W norm(x), by a whole group.  Each wave takes up to `held` chunks at a time (a constant, at
 * most FOUR_HELD), all of which are asked for before the first is used: more of them where there are few groups, fewer
 * where registers are what keeps groups apart.  Returns later[row + me], where it is not NULL and that row is there. */
GPU_FN float four_product(mox_gpu_mat w, mox_gpu_normed norm, const GPU_GLOBAL(f32) *x, const GPU_GLOBAL(f32) *later, int64_t row,
                          int32_t held, GPU_SHARED(quad) *planes, GPU_SHARED(f32) *sums, int32_t me)
{
    const int32_t lane = me % GPU_LANES, wave = me / GPU_LANES;
    const int64_t n_chunks = w.cols / FOUR_CHUNK;
    four_tile tile[FOUR_HELD];
    eight_gains gains[FOUR_HELD];
    float sum[2], part[2], squares_of_x = 0.0f, brought = 0.0f;
    sum[0] = sum[1] = 0.0f;
    for (int64_t first = 0; first < n_chunks; first += held * FOUR_WAVES) {
        GPU_UNROLL
        for (int32_t i = 0; i < FOUR_HELD; i++) { /* what is not there is never used */
            if (i >= held || first + i * FOUR_WAVES >= n_chunks) continue;
            const int64_t chunk = least(first + i * FOUR_WAVES + wave, n_chunks - 1);
            four_load(w, row, chunk, lane, &tile[i]);
            if (norm.out != 0) gains[i] = load_eight_gains(norm.weight, chunk * FOUR_CHUNK + lane * 8);
        }
        if (first == 0) gpu_previous();
        if (first == 0 && later != 0 && me < 16 && row + me < w.rows) brought = gpu_load(later, row + me);
        GPU_UNROLL
        for (int32_t i = 0; i < FOUR_HELD; i++) {
            const int64_t chunk = first + i * FOUR_WAVES + wave;
            const bool there = chunk < n_chunks; /* the same in a wave */
            four_x of_x = four_none();
            if (i >= held || first + i * FOUR_WAVES >= n_chunks) continue; /* the whole group */
            if (there) of_x = four_split_normed(x + chunk * FOUR_CHUNK, norm, gains[i], planes + wave * FOUR_QUADS, lane);
            gpu_barrier();
            if (there) {
                four_dots(&tile[i], planes + wave * FOUR_QUADS, of_x, lane, part);
                sum[0] += part[0];
                sum[1] += part[1];
                squares_of_x += of_x.squares;
            }
            gpu_barrier();
        }
    }
    four_leave(sum, sums, wave, lane);
    if (norm.out != 0) { /* the whole group */
        squares_of_x = gpu_lane_sum(squares_of_x);
        if (lane == 0) gpu_store(sums, FOUR_WAVES * 16 + wave, squares_of_x);
    }
    gpu_barrier();
    return brought;
}

GPU_KERNEL_EARLY(matvec4, FOUR_THREADS)
{
    GPU_SHARED_ARRAY(quad, planes, FOUR_WAVES * FOUR_QUADS);
    GPU_SHARED_ARRAY(f32, sums, FOUR_SUMS);
    const int32_t me = gpu_thread();
    const int64_t row = gpu_group_x() * 16, t = gpu_group_y(), at = t * p->y_stride + row + me;
    const GPU_GLOBAL(f32) *x = p->x + t * p->x_stride;
    if (row >= p->w.rows) { /* the whole group */
        norm_row(x, p->norm.out + t * p->norm.stride, p->w.cols, p->norm.weight, p->norm.offset, p->norm.eps, sums, me);
        return;
    }
    const GPU_GLOBAL(f32) *with = p->sum != 0 ? p->with + t * p->y_stride : 0;
    const float other = four_product(p->w, p->norm, x, with, row, FOUR_HELD, planes, sums, me);
    if (me >= 16 || row + me >= p->w.rows) return;
    const float y = four_join(sums, 0, FOUR_WAVES, me) * four_rms(p->norm, sums + FOUR_WAVES * 16, p->w.cols) + four_bias(p->bias, row + me);
    gpu_store(p->y, at, y);
    if (p->sum != 0) gpu_store(p->sum, at, other + y);
}

/* Many rows: a wave splits its chunk of x once for two tiles of rows. */
GPU_KERNEL_EARLY(matvec4_tall, FOUR_THREADS)
{
    GPU_SHARED_ARRAY(quad, planes, FOUR_WAVES * FOUR_QUADS);
    GPU_SHARED_ARRAY(f32, sums, FOUR_TILES * FOUR_WAVES * 16);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, wave = me / GPU_LANES;
    const int64_t row = gpu_group_x() * (FOUR_TILES * 16), t = gpu_group_y(), n_chunks = p->w.cols / FOUR_CHUNK;
    four_tile tile[FOUR_TILES];
    float sum[2 * FOUR_TILES], part[2];
    GPU_UNROLL
    for (int32_t i = 0; i < 2 * FOUR_TILES; i++) sum[i] = 0.0f;
    for (int64_t first = 0; first < n_chunks; first += FOUR_WAVES) {
        const int64_t chunk = first + wave;
        const bool there = chunk < n_chunks; /* the same in a wave */
        GPU_UNROLL
        for (int32_t i = 0; i < FOUR_TILES; i++) four_load(p->w, row + 16 * i, least(chunk, n_chunks - 1), lane, &tile[i]);
        if (first == 0) gpu_previous();
        four_x x = four_none();
        if (there) x = four_split(p->x + (t * p->x_stride + chunk * FOUR_CHUNK), planes + wave * FOUR_QUADS, lane);
        gpu_barrier();
        GPU_UNROLL
        for (int32_t i = 0; i < FOUR_TILES; i++) {
            if (!there) continue;
            four_dots(&tile[i], planes + wave * FOUR_QUADS, x, lane, part);
            sum[2 * i] += part[0];
            sum[2 * i + 1] += part[1];
        }
        gpu_barrier();
    }
    GPU_UNROLL
    for (int32_t i = 0; i < FOUR_TILES; i++) four_leave(sum + 2 * i, sums + i * FOUR_WAVES * 16, wave, lane);
    gpu_barrier();
    if (me >= FOUR_TILES * 16 || row + me >= p->w.rows) return;
    gpu_store(p->y, t * p->y_stride + row + me, four_join(sums + me / 16 * FOUR_WAVES * 16, 0, FOUR_WAVES, me % 16) + four_bias(p->bias, row + me));
}

#endif
