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
 * The weights are asked for before the launch in front has ended: they do not depend on it. */
#ifndef MOX_DEV_GPU_MATVEC4_H
#define MOX_DEV_GPU_MATVEC4_H

#include "dev/gpu/number.h"

enum { FOUR_CHUNK = 256, FOUR_WAVES = 8, FOUR_THREADS = FOUR_WAVES * GPU_LANES, FOUR_GROUPS = 4, FOUR_WIDES = 64,
       FOUR_DOWN_WAVES = 4, FOUR_DOWN_THREADS = FOUR_DOWN_WAVES * GPU_LANES };

/* Codes, scales and biases of a lane: rows g and g + 8, two tiles. */
typedef struct four_tile {
    mox_gpu_wide w[2][2];
    uint64_t scales[2], biases[2];
} four_tile;
GPU_TYPE(four_tile, four_tile);

/* Rows beyond the end are read as the last one. */
GPU_FN void four_load(mox_gpu_mat m, int64_t row, int64_t chunk, int32_t lane, GPU_PRIVATE(four_tile) *t)
{
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        const int64_t r = least(row + lane / 4 + 8 * h, m.rows - 1);
        const int64_t at = r * m.row_bytes + chunk * (FOUR_CHUNK / 2) + lane % 4 * 16;
        const int64_t scale_at = 2 * (r * m.scale_cols + chunk * FOUR_GROUPS);
        gpu_bytes_wide(m.w, at, &t->w[h][0]);
        gpu_bytes_wide(m.w, at + 64, &t->w[h][1]);
        t->scales[h] = gpu_bytes_u64(m.scales, scale_at);
        t->biases[h] = gpu_bytes_u64(m.biases, scale_at);
    }
}

GPU_FN uint32_t four_pair(float low, float high)
{
    return gpu_f32_to_f16(low) | (uint32_t)gpu_f32_to_f16(high) << 16;
}

/* What a wave knows of its chunk of x beside the planes. */
typedef struct four_x {
    float factor; /* undoes the scaling of planes and codes */
    float sum;    /* of the group that lane / 8 is in */
} four_x;

/* Splits 256 numbers into planes [2][32]: a lane takes the eight of one word of codes, whose pairs
 * are columns i and i + 4.  Nibble 1 counts sixteenfold, so its x is a sixteenth. */
GPU_FN four_x four_split(const GPU_GLOBAL(f32) *x, GPU_SHARED(wide) *planes, int32_t lane)
{
    float v[8], largest = 0.0f, sum = 0.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < 8; i++) {
        v[i] = gpu_load(x, lane * 8 + i);
        largest = gpu_max(largest, gpu_abs(v[i]));
        sum += v[i];
    }
    GPU_UNROLL
    for (int32_t d = 4; d > 0; d /= 2) sum += gpu_shuffle(sum, lane ^ d);
    /* The largest becomes 2^14 and more; below 2^-112 f16 does without the rest. */
    const uint32_t bits = gpu_f32_bits(gpu_lane_max(largest)) >> 23, exponent = bits < 15u ? 15u : bits;
    const float up = gpu_bits_f32((268u - exponent) << 23);
    mox_gpu_wide high, low;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        const float scale = i % 2 == 0 ? up : up * 0.0625f, a = v[i] * scale, b = v[i + 4] * scale;
        high.w[i] = four_pair(a, b);
        low.w[i] = four_pair(a - gpu_f16_to_f32(high.w[i] & 0xFFFFu), b - gpu_f16_to_f32(high.w[i] >> 16));
    }
    gpu_store(planes, lane, high);
    gpu_store(planes, 32 + lane, low);
    four_x result;
    result.factor = gpu_bits_f32((exponent - 14u) << 23) * 16777216.0f;
    result.sum = sum;
    return result;
}

GPU_FN float four_number(uint64_t four, int32_t i) { return bf16_to_f32((uint32_t)(four >> (16 * i)) & 0xFFFFu); }

/* y[0..1]: rows g and g + 8 of this wave's chunk, in the lanes of t = 0 (and 2). */
GPU_FN void four_dots(GPU_PRIVATE(four_tile) *tile, const GPU_SHARED(wide) *planes, four_x x, int32_t lane, GPU_PRIVATE(f32) *y)
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
            mox_gpu_wide b = gpu_load(planes, g % 2 * 32 + i * 16 + t * 4 + j);
            GPU_UNROLL
            for (int32_t k = 0; k < 4; k++) b.w[k] = mine ? b.w[k] : 0u;
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

GPU_KERNEL_EARLY(matvec4, FOUR_THREADS)
{
    GPU_SHARED_ARRAY(wide, planes, FOUR_WAVES * FOUR_WIDES);
    GPU_SHARED_ARRAY(f32, sums, FOUR_WAVES * 16);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, wave = me / GPU_LANES;
    const int64_t row = gpu_group_x() * 16, t = gpu_group_y(), n_chunks = p->w.cols / FOUR_CHUNK;
    four_tile tile;
    four_load(p->w, p->first_row + row, least(wave, n_chunks - 1), lane, &tile);
    gpu_previous();
    float sum[2], y[2];
    sum[0] = sum[1] = 0.0f;
    for (int64_t first = 0; first < n_chunks; first += FOUR_WAVES) {
        const int64_t chunk = first + wave, next = chunk + FOUR_WAVES;
        const bool there = chunk < n_chunks; /* the same in a wave */
        four_x x = {0.0f, 0.0f};
        if (there) x = four_split(p->x + (t * p->x_stride + chunk * FOUR_CHUNK), planes + wave * FOUR_WIDES, lane);
        gpu_barrier();
        if (there) {
            four_dots(&tile, planes + wave * FOUR_WIDES, x, lane, y);
            sum[0] += y[0];
            sum[1] += y[1];
        }
        gpu_barrier();
        if (next < n_chunks) four_load(p->w, p->first_row + row, next, lane, &tile);
    }
    four_leave(sum, sums, wave, lane);
    gpu_barrier();
    if (me >= 16 || row + me >= p->rows) return;
    const float bias = p->bias.type == MOX_GPU_NONE ? 0.0f : stored_number(p->bias.data, (int32_t)p->bias.type, row + me);
    gpu_store(p->y, t * p->y_stride + row + me, four_join(sums, 0, FOUR_WAVES, me) + bias);
}

GPU_KERNEL(moe4_gate_up, FOUR_THREADS)
{
    GPU_SHARED_ARRAY(wide, planes, FOUR_WAVES * FOUR_WIDES);
    GPU_SHARED_ARRAY(f32, sums, 2 * FOUR_WAVES * 16);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, wave = me / GPU_LANES;
    const int64_t row = gpu_group_x() * 16, pair = gpu_group_y(), expert = gpu_load(p->ids, pair);
    const mox_gpu_mat gate = gpu_load(p->gate, expert), up = gpu_load(p->up, expert);
    const int64_t n_chunks = gate.cols / FOUR_CHUNK;
    float sum_gate[2], sum_up[2], y[2];
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) sum_gate[h] = sum_up[h] = 0.0f;
    for (int64_t first = 0; first < n_chunks; first += FOUR_WAVES) {
        const int64_t chunk = first + wave;
        const bool there = chunk < n_chunks; /* the same in a wave */
        four_tile tile_gate, tile_up;
        four_x x = {0.0f, 0.0f};
        if (there) {
            four_load(gate, row, chunk, lane, &tile_gate);
            four_load(up, row, chunk, lane, &tile_up);
            x = four_split(p->x + (pair / p->k * p->x_stride + chunk * FOUR_CHUNK), planes + wave * FOUR_WIDES, lane);
        }
        gpu_barrier();
        if (there) {
            four_dots(&tile_gate, planes + wave * FOUR_WIDES, x, lane, y);
            sum_gate[0] += y[0];
            sum_gate[1] += y[1];
            four_dots(&tile_up, planes + wave * FOUR_WIDES, x, lane, y);
            sum_up[0] += y[0];
            sum_up[1] += y[1];
        }
        gpu_barrier();
    }
    four_leave(sum_gate, sums, wave, lane);
    four_leave(sum_up, sums + FOUR_WAVES * 16, wave, lane);
    gpu_barrier();
    if (me >= 16 || row + me >= gate.rows) return;
    const float value = silu(four_join(sums, 0, FOUR_WAVES, me)) * four_join(sums, FOUR_WAVES, FOUR_WAVES, me);
    gpu_store(p->y, pair * gate.rows + row + me, value);
}

GPU_KERNEL_EARLY(moe4_down, FOUR_DOWN_THREADS)
{
    GPU_SHARED_ARRAY(wide, planes, FOUR_DOWN_WAVES * FOUR_WIDES);
    GPU_SHARED_ARRAY(f32, sums, FOUR_DOWN_WAVES * 16);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, wave = me / GPU_LANES;
    const int64_t row = gpu_group_x() * 16, pair = gpu_group_y();
    /* The launch in front made x; what chose the experts is older. */
    const mox_gpu_mat down = gpu_load(p->down, gpu_load(p->ids, pair));
    const int64_t n_chunks = down.cols / FOUR_CHUNK;
    four_tile tile;
    four_load(down, row, least(wave, n_chunks - 1), lane, &tile);
    gpu_previous();
    float sum[2], y[2];
    sum[0] = sum[1] = 0.0f;
    for (int64_t first = 0; first < n_chunks; first += FOUR_DOWN_WAVES) {
        const int64_t chunk = first + wave, next = chunk + FOUR_DOWN_WAVES;
        const bool there = chunk < n_chunks; /* the same in a wave */
        four_x x = {0.0f, 0.0f};
        if (there) x = four_split(p->x + (pair * down.cols + chunk * FOUR_CHUNK), planes + wave * FOUR_WIDES, lane);
        gpu_barrier();
        if (there) {
            four_dots(&tile, planes + wave * FOUR_WIDES, x, lane, y);
            sum[0] += y[0];
            sum[1] += y[1];
        }
        gpu_barrier();
        if (next < n_chunks) four_load(down, row, next, lane, &tile);
    }
    four_leave(sum, sums, wave, lane);
    gpu_barrier();
    if (me >= 16 || row + me >= down.rows) return;
    gpu_store(p->y, pair * down.rows + row + me, four_join(sums, 0, FOUR_DOWN_WAVES, me));
}

#endif
