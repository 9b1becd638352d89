/* dev/gpu/matvec4.h -- products of 4-bit weights with one token, on matrix units: decoding.
 *
 * For affine matrices of 4 bits, groups of 64 and bf16 scales whose columns are a multiple of
 * 256 and whose bytes are aligned (mox_gpu_mat_is_four); everything else is matvec.h's.
 *
 * A wave takes 16 rows and a chunk of 256 columns: 16 bytes of codes per lane and row are two tiles of
 * 128 columns.  Matrix units multiply bytes, so an AND, and a shift and an AND, decode eight weights.
 *
 * x is f32.  A chunk is scaled by a power of two, so that its numbers become integers of 23 bits, and these are written as three
 * digits of 8 bits with a sign: planes, whose products are exact.  So the product is nearly as exact as one in f32: what is lost
 * is 2^-23 of the largest number of a chunk.  The planes of x are columns of B, and as the four lanes of a row hold two
 * groups of scales, each group has columns of its own: 0 to 2 for the lower, 4 to 6 for the upper,
 * zero where a lane's codes are of the other.  So C has, per row, six sums to be scaled and added.
 *
 * A norm of x is taken along: gains are multiplied into x, squares are added up on the way, and as 1 / rms is the
 * same for all columns, sums are multiplied by it at the end.
 *
 * The weights are asked for before the launch in front has ended: they do not depend on it. */
#ifndef MOX_DEV_GPU_MATVEC4_H
#define MOX_DEV_GPU_MATVEC4_H

#include "dev/gpu/norm.h"

/* FOUR_TILES: so many tiles of 16 rows a wave has at most at once.  A chunk of x is three planes of 16 quads, each with one behind it so that lanes read
 * them from different banks; there are the sums of the groups and the factor that undoes the scaling. Lanes that multiply by zero read FOUR_ZEROS quads that all waves share.  FOUR_SUMS: what a wave leaves of a tile, a
 * number per lane and half. */
enum { FOUR_CHUNK = 256, FOUR_WAVES = 8, FOUR_THREADS = FOUR_WAVES * GPU_LANES, FOUR_GROUPS = 4, FOUR_TILES = 3, FOUR_PLANES = 3,
       FOUR_PLANE = 17, FOUR_QUADS = FOUR_PLANES * FOUR_PLANE, FOUR_OF_GROUPS = 4 * 16, FOUR_FACTOR = 4 * (FOUR_PLANE + 16), FOUR_ZEROS = 10, FOUR_SUMS = 2 * GPU_LANES };

/* Codes, scales and biases of a lane: rows g and g + 8, 256 columns. */
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

/* Half h of a tile: one row per lane / 4.  Rows beyond the end are read as the last one. */
GPU_FN void four_load_half(mox_gpu_mat m, int64_t row, int64_t chunk, int32_t lane, int32_t h, GPU_PRIVATE(four_tile) *t)
{
    /* Rows and bytes of a row are int32: their product is one instruction. */
    const int32_t beyond = (int32_t)row + lane / 4, r = beyond < (int32_t)m.rows ? beyond : (int32_t)m.rows - 1;
    const int64_t at = (int64_t)r * (int32_t)m.row_bytes + ((int32_t)chunk * (FOUR_CHUNK / 2) + lane % 4 * 16);
    const int64_t scale_at = (int64_t)r * (2 * (int32_t)m.scale_cols) + (int32_t)chunk * (2 * FOUR_GROUPS);
    gpu_bytes_quad(m.w, at, &t->w[h][0]);
    gpu_bytes_quad(m.w, at + 64, &t->w[h][1]);
    t->scales[h] = gpu_bytes_u64(m.scales, scale_at);
    t->biases[h] = gpu_bytes_u64(m.biases, scale_at);
}

GPU_FN void four_load(mox_gpu_mat m, int64_t row, int64_t chunk, int32_t lane, GPU_PRIVATE(four_tile) *t)
{
    four_load_half(m, row, chunk, lane, 0, t);
    four_load_half(m, row + 8, chunk, lane, 1, t);
}

/* By a group, with a barrier behind it. */
GPU_FN void four_zeros(GPU_SHARED(quad) *zeros, int32_t me)
{
    gpu_quad zero = {{0u, 0u, 0u, 0u}};
    if (me < FOUR_ZEROS) gpu_store(zeros, me, zero);
}

/* The lane's eight of 256 numbers: those of one word of codes. */
GPU_FN void four_eight(const GPU_GLOBAL(f32) *x, int32_t lane, GPU_PRIVATE(f32) *v)
{
    const gpu_quad first = gpu_load(GPU_CAST(quad, x), 2 * lane), second = gpu_load(GPU_CAST(quad, x), 2 * lane + 1);
    GPU_UNROLL
    for (int32_t i = 0; i < 8; i++) v[i] = gpu_bits_f32(i < 4 ? first.w[i % 4] : second.w[i % 4]);
}

/* Splits 256 numbers into planes: of the lane's eight, those of even nibbles are a word, and those of odd ones. */
GPU_FN void four_planes(const GPU_PRIVATE(f32) *v, GPU_SHARED(quad) *planes, int32_t lane)
{
    uint32_t largest = 0u; /* as bits, which order numbers without a sign */
    float sum = 0.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < 8; i++) {
        const uint32_t bits = gpu_f32_bits(gpu_abs(v[i]));
        largest = bits > largest ? bits : largest;
        sum += v[i];
    }
    GPU_UNROLL
    for (int32_t d = 4; d > 0; d /= 2) sum += gpu_shuffle(sum, lane ^ d);
    /* All are below 2^22 then; what is below 2^-127 is 0. */
    const uint32_t bits = gpu_lane_max_u32(largest) >> 23, exponent = bits < 22u ? 22u : bits;
    const float up = gpu_bits_f32((275u - exponent) << 23);
    uint32_t digits[8];
    GPU_UNROLL /* 1.5 2^23 rounds to integers, which are in its low bits; and each digit is made positive */
    for (int32_t i = 0; i < 8; i++) digits[i] = gpu_f32_bits(v[i] * up + 12582912.0f) - 0x4B400000u + 0x00808080u;
    GPU_SHARED(u64) *pairs = GPU_SHARED_CAST(u64, planes);
    GPU_UNROLL
    for (int32_t p = 0; p < FOUR_PLANES; p++) { /* the first is the highest */
        const uint32_t even = gpu_byte_of_each(digits[0], digits[2], digits[4], digits[6], 2 - p) ^ 0x80808080u;
        const uint32_t odd = gpu_byte_of_each(digits[1], digits[3], digits[5], digits[7], 2 - p) ^ 0x80808080u;
        gpu_store(pairs, 2 * FOUR_PLANE * p + lane, (uint64_t)odd << 32 | even);
    }
    GPU_SHARED(f32) *known = GPU_SHARED_CAST(f32, planes);
    if (lane % 8 == 0) gpu_store(known, FOUR_OF_GROUPS + lane / 8, sum);
    if (lane == 0) gpu_store(known, FOUR_FACTOR, gpu_bits_f32((exponent - 21u) << 23)); /* what is not finite shows in the sum */
}

GPU_FN void four_split(const GPU_GLOBAL(f32) *x, GPU_SHARED(quad) *planes, int32_t lane)
{
    float v[8];
    four_eight(x, lane, v);
    four_planes(v, planes, lane);
}

/* What a lane multiplies codes by: a column of a plane where column and codes are of the same group, else zeros. */
GPU_FN const GPU_SHARED(quad) *four_column(const GPU_SHARED(quad) *planes, const GPU_SHARED(quad) *zeros, int32_t lane)
{
    const int32_t g = lane / 4, t = lane % 4;
    return g / 4 == t / 2 && g % 4 < FOUR_PLANES ? planes + (g % 4 * FOUR_PLANE + t * 2) : zeros;
}

/* bf16 number i of four, and of the two in a word. */
GPU_FN float four_number(uint64_t four, int32_t i) { return bf16_to_f32((uint32_t)(four >> (16 * i)) & 0xFFFFu); }
GPU_FN float two_number(uint32_t two, int32_t i) { return bf16_to_f32(two >> (16 * i)); }

/* y[2 k + h] += weight times rows g + 8 h of tile k < tiles (a constant) of this wave's chunk: four lanes have a part each. */
GPU_FN void four_dots(const GPU_PRIVATE(four_tile) *tile, int32_t tiles, GPU_SHARED(quad) *planes, const GPU_SHARED(quad) *zeros,
                      float weight, int32_t lane, GPU_PRIVATE(f32) *y)
{
    const GPU_SHARED(quad) *column = four_column(planes, zeros, lane);
    const GPU_SHARED(f32) *known = GPU_SHARED_CAST(f32, planes);
    const bool is_even = lane % 2 == 0; /* has the sums of the first two planes; its neighbour that of the last */
    const int32_t side = lane % 4 / 2;
    const float factor = gpu_load(known, FOUR_FACTOR), first = (is_even ? 65536.0f : 1.0f) * factor, second = 256.0f * factor;
    float codes[2 * FOUR_TILES], biases[2 * FOUR_TILES];
    GPU_UNROLL
    for (int32_t i = 0; i < 2 * FOUR_TILES; i++) codes[i] = biases[i] = 0.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < 2; i++) {
        int32_t c[FOUR_TILES][4];
        GPU_UNROLL
        for (int32_t k = 0; k < FOUR_TILES; k++) {
            GPU_UNROLL
            for (int32_t j = 0; j < 4; j++) c[k][j] = 0;
        }
        GPU_UNROLL
        for (int32_t j = 0; j < 4; j++) {
            const gpu_quad b = gpu_load(column, i * 8 + j / 2);
            GPU_UNROLL
            for (int32_t k = 0; k < FOUR_TILES; k++) {
                if (k >= tiles) continue;
                const uint32_t w0 = tile[k].w[0][i].w[j], w1 = tile[k].w[1][i].w[j];
                gpu_mma_bytes(c[k], w0 & 0x0F0F0F0Fu, w1 & 0x0F0F0F0Fu, w0 >> 4 & 0x0F0F0F0Fu, w1 >> 4 & 0x0F0F0F0Fu, b.w[j % 2 * 2],
                              b.w[j % 2 * 2 + 1]);
            }
        }
        const float of_group = gpu_load(known, FOUR_OF_GROUPS + 2 * i + side), sum = is_even ? of_group : 0.0f;
        GPU_UNROLL
        for (int32_t k = 0; k < FOUR_TILES; k++) {
            if (k >= tiles) continue;
            GPU_UNROLL
            for (int32_t h = 0; h < 2; h++) {
                const uint32_t scales = (uint32_t)(tile[k].scales[h] >> (32 * i)), of_codes = (uint32_t)(tile[k].biases[h] >> (32 * i));
                codes[2 * k + h] += two_number(scales, side) * ((float)c[k][2 * h] * first + (float)c[k][2 * h + 1] * second);
                biases[2 * k + h] += two_number(of_codes, side) * sum;
            }
        }
    }
    GPU_UNROLL
    for (int32_t i = 0; i < 2 * FOUR_TILES; i++)
        if (i < 2 * tiles) y[i] += weight * (codes[i] + biases[i]);
}

/* Leaves the sums of a wave's tile. */
GPU_FN void four_leave(const GPU_PRIVATE(f32) *y, GPU_SHARED(f32) *sums, int32_t wave, int32_t lane)
{
    gpu_store(sums, wave * FOUR_SUMS + lane, y[0]);
    gpu_store(sums, wave * FOUR_SUMS + GPU_LANES + lane, y[1]);
}

/* A row of a tile of n waves (a constant), in their order. */
GPU_FN float four_join(const GPU_SHARED(f32) *sums, int32_t n, int32_t row)
{
    float part[4];
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) part[i] = 0.0f;
    GPU_UNROLL
    for (int32_t w = 0; w < n; w++) {
        const gpu_quad four = gpu_load_quad(sums, w * FOUR_SUMS + row * 4);
        GPU_UNROLL
        for (int32_t i = 0; i < 4; i++) part[i] += gpu_bits_f32(four.w[i]);
    }
    return (part[0] + part[1]) + (part[2] + part[3]);
}

GPU_FN float four_rms(mox_gpu_normed norm, const GPU_SHARED(f32) *of_waves, int32_t waves, int64_t cols)
{
    float sum = 0.0f;
    if (norm.out == 0) return 1.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < waves; i++) sum += gpu_load(of_waves, i);
    return inverse_rms(sum, cols, norm.eps);
}

GPU_FN float four_bias(mox_gpu_vec bias, int64_t row)
{
    return bias.type == MOX_GPU_NONE ? 0.0f : stored_number(bias.data, (int32_t)bias.type, row);
}

/* Sums of rows row ... row + 16 sets tiles - 1 of W norm(x), by `sets` times `waves` waves: each of a set takes a chunk of columns at a time, the
 * same in all sets, of which the first splits x; and where `again` is false there are no more than that.  These and tiles are
 * constants.  Sums are left, (sets * tiles * FOUR_SUMS + 1) * waves numbers, for four_row.  Planes: waves * FOUR_QUADS + FOUR_ZEROS.
 * Returns later[row + me], where later is not NULL and me is one of these rows. */
GPU_FN float four_product(mox_gpu_mat w, mox_gpu_normed norm, const GPU_GLOBAL(f32) *x, const GPU_GLOBAL(f32) *later, int64_t row,
                          bool again, int32_t tiles, int32_t sets, int32_t waves, GPU_SHARED(quad) *planes, GPU_SHARED(f32) *sums, int32_t me)
{
    const int32_t lane = me % GPU_LANES, wave = me / GPU_LANES % waves, set = me / GPU_LANES / waves, n_chunks = (int32_t)w.cols / FOUR_CHUNK;
    GPU_SHARED(quad) *of_chunk = planes + wave * FOUR_QUADS, *zeros = planes + waves * FOUR_QUADS;
    four_tile tile[FOUR_TILES];
    eight_gains gains;
    float sum[2 * FOUR_TILES], v[8], squares_of_x = 0.0f, brought = 0.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < 2 * FOUR_TILES; i++) sum[i] = 0.0f;
    four_zeros(zeros, me);
    for (int32_t first = 0; again ? first < n_chunks : first == 0; first += waves) {
        const int32_t asked = first + wave, chunk = asked < n_chunks ? asked : n_chunks - 1;
        const bool there = asked < n_chunks; /* the same in a wave */
        GPU_UNROLL
        for (int32_t k = 0; k < FOUR_TILES; k++)
            if (k < tiles) four_load(w, row + 16 * (set * tiles + k), chunk, lane, &tile[k]);
        if (norm.out != 0 && set == 0) gains = load_eight_gains(norm.weight, chunk * FOUR_CHUNK + lane * 8);
        if (first == 0) gpu_previous();
        if (first == 0 && later != 0 && me < 16 * sets * tiles && row + me < w.rows) brought = gpu_load(later, row + me);
        if (there && set == 0) {
            four_eight(x + chunk * FOUR_CHUNK, lane, v);
            if (norm.out != 0) {
                GPU_UNROLL
                for (int32_t i = 0; i < 8; i++) squares_of_x += v[i] * v[i];
                times_eight_gains(gains, norm.weight, norm.offset, v);
            }
            four_planes(v, of_chunk, lane);
        }
        gpu_barrier();
        if (there) four_dots(tile, tiles, of_chunk, zeros, 1.0f, lane, sum);
        if (again && first + waves < n_chunks) gpu_barrier(); /* the whole group */
    }
    GPU_UNROLL
    for (int32_t k = 0; k < FOUR_TILES; k++)
        if (k < tiles) four_leave(sum + 2 * k, sums + (set * tiles + k) * waves * FOUR_SUMS, wave, lane);
    if (norm.out != 0 && set == 0) { /* the whole wave */
        squares_of_x = gpu_lane_sum(squares_of_x);
        if (lane == 0) gpu_store(sums, sets * tiles * waves * FOUR_SUMS + wave, squares_of_x);
    }
    gpu_barrier();
    return brought;
}

/* Row me of a product of so many tiles in all, of what it left. */
GPU_FN float four_row(mox_gpu_mat w, mox_gpu_normed norm, const GPU_SHARED(f32) *sums, int32_t tiles, int32_t waves, int32_t me)
{
    return four_join(sums + me / 16 * waves * FOUR_SUMS, waves, me % 16) * four_rms(norm, sums + tiles * waves * FOUR_SUMS, waves, w.cols);
}

enum { PRODUCT4_WAVES = 16, PRODUCT4_THREADS = PRODUCT4_WAVES * GPU_LANES };

GPU_KERNEL_HASTY(matvec4, PRODUCT4_THREADS)
{
    GPU_SHARED_ARRAY(quad, planes, PRODUCT4_WAVES * FOUR_QUADS + FOUR_ZEROS);
    GPU_SHARED_ARRAY(f32, sums, PRODUCT4_WAVES * (FOUR_SUMS + 1));
    const int32_t me = gpu_thread();
    const int64_t row = gpu_group_x() * 16, t = gpu_group_y(), at = t * p->y_stride + row + me;
    const GPU_GLOBAL(f32) *x = p->x + t * p->x_stride;
    if (row >= p->w.rows) { /* the whole group */
        norm_row(x, p->norm.out + t * p->norm.stride, p->w.cols, p->norm.weight, p->norm.offset, p->norm.eps, PRODUCT4_THREADS, sums, me);
        return;
    }
    const GPU_GLOBAL(f32) *with = p->sum != 0 ? p->with + t * p->y_stride : 0;
    const float other = four_product(p->w, p->norm, x, with, row, true, 1, 1, PRODUCT4_WAVES, planes, sums, me);
    if (me >= 16 || row + me >= p->w.rows) return;
    const float y = four_row(p->w, p->norm, sums, 1, PRODUCT4_WAVES, me) + four_bias(p->bias, row + me);
    gpu_store(p->y, at, y);
    if (p->sum != 0) gpu_store(p->sum, at, other + y);
}

enum { TWO_TILES = MOX_GPU_FOUR_TWO / 16 };
static_assert(PRODUCT4_WAVES * FOUR_CHUNK >= MOX_GPU_TWO_COLS, "a wave has one chunk");

/* Half as many groups, so that each has a processor of the GPU to itself long before the launch in front ends. */
GPU_KERNEL_HASTY(matvec4_two, PRODUCT4_THREADS)
{
    GPU_SHARED_ARRAY(quad, planes, PRODUCT4_WAVES * FOUR_QUADS + FOUR_ZEROS);
    GPU_SHARED_ARRAY(f32, sums, PRODUCT4_WAVES * TWO_TILES * FOUR_SUMS);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, wave = me / GPU_LANES, n_chunks = (int32_t)p->w.cols / FOUR_CHUNK;
    const int64_t row = gpu_group_x() * (16 * TWO_TILES), t = gpu_group_y(), at = t * p->y_stride + row + me;
    GPU_SHARED(quad) *of_chunk = planes + wave * FOUR_QUADS, *zeros = planes + PRODUCT4_WAVES * FOUR_QUADS;
    const bool there = wave < n_chunks, has_row = me < 16 * TWO_TILES && row + me < p->w.rows; /* the first is the same in a wave */
    const int32_t chunk = there ? wave : n_chunks - 1;
    four_tile tile[FOUR_TILES];
    four_zeros(zeros, me);
    GPU_UNROLL
    for (int32_t k = 0; k < TWO_TILES; k++) four_load(p->w, row + 16 * k, chunk, lane, &tile[k]);
    GPU_REHEARSE(real, 1) {
        float sum[2 * FOUR_TILES], v[8], other = 0.0f;
        GPU_UNROLL
        for (int32_t i = 0; i < 2 * FOUR_TILES; i++) sum[i] = 0.0f;
        GPU_UNROLL
        for (int32_t i = 0; i < 8; i++) v[i] = 0.0f;
        if (real != 0) {
            gpu_barrier();
            gpu_previous();
            four_eight(p->x + (t * p->x_stride + chunk * FOUR_CHUNK), lane, v);
            if (p->sum != 0 && has_row) other = gpu_load(p->with, at);
        }
        if (there) four_planes(v, of_chunk, lane);
        gpu_barrier();
        GPU_UNROLL
        for (int32_t k = 0; k < TWO_TILES; k++) {
            if (there) four_dots(&tile[k], 1, of_chunk, zeros, 1.0f, lane, sum + 2 * k);
            four_leave(sum + 2 * k, sums + k * PRODUCT4_WAVES * FOUR_SUMS, wave, lane);
        }
        gpu_barrier();
        if (!has_row) continue;
        const float y = four_join(sums + me / 16 * PRODUCT4_WAVES * FOUR_SUMS, PRODUCT4_WAVES, me % 16) + four_bias(p->bias, row + me);
        if (real == 0) continue;
        gpu_store(p->y, at, y);
        if (p->sum != 0) gpu_store(p->sum, at, other + y);
    }
}

/* Many rows: a wave splits its chunk of x once for its tiles of rows. */
GPU_KERNEL_EARLY_DENSE(matvec4_tall, FOUR_THREADS, 2)
{
    GPU_SHARED_ARRAY(quad, planes, FOUR_WAVES * FOUR_QUADS + FOUR_ZEROS);
    GPU_SHARED_ARRAY(f32, sums, FOUR_WAVES * (FOUR_TILES * FOUR_SUMS + 1));
    const int32_t me = gpu_thread();
    const int64_t row = gpu_group_x() * (FOUR_TILES * 16), t = gpu_group_y();
    mox_gpu_normed none = p->norm;
    none.out = 0; /* a constant: there never is one */
    (void)four_product(p->w, none, p->x + t * p->x_stride, 0, row, true, FOUR_TILES, 1, FOUR_WAVES, planes, sums, me);
    if (me >= FOUR_TILES * 16 || row + me >= p->w.rows) return;
    gpu_store(p->y, t * p->y_stride + row + me, four_row(p->w, none, sums, FOUR_TILES, FOUR_WAVES, me) + four_bias(p->bias, row + me));
}

#endif
