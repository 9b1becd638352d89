/* dev/gpu/tile_metal.h -- tiles and copies of gpu.h in Metal.
 *
 * Matrix units have 8 x 8 numbers, of which a thread has two neighbours of one row; which, is not in
 * Metal's books, but the same on all Apple GPUs so far.  target_metal.h counts lanes so that lane
 * 4 g + t has columns 2 t and 2 t + 1 of row g.  A tile is four such matrices.  Copies happen at once.
 *
 * Operands are f16 made float, as Metal may take subnormal numbers for zero: gpu_mma's codes of weights
 * are such numbers, and so is much of what is small beside other numbers of its row. */
#ifndef MOX_DEV_GPU_TILE_METAL_H
#define MOX_DEV_GPU_TILE_METAL_H

typedef struct gpu_tile_a { simdgroup_float8x8 m[4]; } gpu_tile_a; /* [rows / 8][columns / 8] */
typedef struct gpu_tile_b { simdgroup_float8x8 m[4]; } gpu_tile_b;
typedef struct gpu_tile_c { simdgroup_float8x8 m[4]; } gpu_tile_c; /* [columns / 8][rows / 8] */

#define gpu_tile_get(c, i) ((c).m[(i) / 2].thread_elements()[(i) % 2])
#define gpu_tile_set(c, i, x) ((void)((c)->m[(i) / 2].thread_elements()[(i) % 2] = (x)))
#define gpu_is_aligned(p, n) (((uint64_t)(p) & ((n) - 1)) == 0)

template <typename T> GPU_FN gpu_quad gpu_load_quad(const device T *p, int64_t i) { return *(const device gpu_quad *)(p + i); }
template <typename T> GPU_FN gpu_quad gpu_load_quad(const threadgroup T *p, int64_t i) { return *(const threadgroup gpu_quad *)(p + i); }
template <typename T> GPU_FN void gpu_store_quad(device T *p, int64_t i, gpu_quad q) { *(device gpu_quad *)(p + i) = q; }
template <typename T> GPU_FN void gpu_store_quad(threadgroup T *p, int64_t i, gpu_quad q) { *(threadgroup gpu_quad *)(p + i) = q; }

GPU_FN uint32_t gpu_fma_f16x2(uint32_t a, uint32_t b, uint32_t c)
{
    const float low = fma(gpu_f16_to_f32(a & 0xFFFFu), gpu_f16_to_f32(b & 0xFFFFu), gpu_f16_to_f32(c & 0xFFFFu));
    return gpu_pack_f16(low, fma(gpu_f16_to_f32(a >> 16), gpu_f16_to_f32(b >> 16), gpu_f16_to_f32(c >> 16)));
}

GPU_FN int32_t gpu_tile_at(int32_t row, int32_t col, int32_t width) { return row * width + col; }

GPU_FN gpu_tile_c gpu_tile_zero(void)
{
    gpu_tile_c c;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) c.m[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    return c;
}

/* The two numbers that a lane has of a matrix. */
GPU_FN void gpu_matrix_set_(thread simdgroup_float8x8 *m, float left, float right)
{
    m->thread_elements()[0] = left;
    m->thread_elements()[1] = right;
}
GPU_FN void gpu_matrix_set_pair_(thread simdgroup_float8x8 *m, uint32_t pair)
{
    gpu_matrix_set_(m, gpu_f16_to_f32(pair & 0xFFFFu), gpu_f16_to_f32(pair >> 16));
}

GPU_FN gpu_tile_a gpu_tile_load_a(const threadgroup gpu_u16 *p, int32_t row, int32_t col, int32_t width, int32_t lane)
{
    gpu_tile_a t;
    const threadgroup uint32_t *from = (const threadgroup uint32_t *)(p + (row + lane / 4) * width + col) + lane % 4;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) gpu_matrix_set_pair_(&t.m[i], from[i / 2 * 4 * width + i % 2 * 4]);
    return t;
}

GPU_FN gpu_tile_b gpu_tile_load_b(const threadgroup gpu_u16 *p, int32_t row, int32_t col, int32_t width, int32_t lane)
{
    gpu_tile_b t;
    const threadgroup gpu_u16 *from = p + (row + lane % 4 * 2) * width + col + lane / 4;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        const int32_t at = i % 2 * 8 * width + i / 2 * 8;
        gpu_matrix_set_(&t.m[i], gpu_f16_to_f32(from[at]), gpu_f16_to_f32(from[at + width]));
    }
    return t;
}

GPU_FN gpu_tile_b gpu_tile_load_b_across(const threadgroup gpu_u16 *p, int32_t row, int32_t col, int32_t width, int32_t lane)
{
    gpu_tile_b t;
    const threadgroup uint32_t *from = (const threadgroup uint32_t *)(p + (row + lane / 4) * width + col) + lane % 4;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) gpu_matrix_set_pair_(&t.m[i], from[i / 2 * 4 * width + i % 2 * 4]);
    return t;
}

GPU_FN void gpu_tile_mma(thread gpu_tile_c *c, gpu_tile_a a, gpu_tile_b b)
{
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        const int32_t col = i / 2, row = i % 2;
        simdgroup_multiply_accumulate(c->m[i], a.m[row * 2], b.m[col], c->m[i]);
        simdgroup_multiply_accumulate(c->m[i], a.m[row * 2 + 1], b.m[2 + col], c->m[i]);
    }
}

GPU_FN void gpu_tile_a_set(thread gpu_tile_a *a, int32_t i, uint32_t pair)
{
    gpu_matrix_set_pair_(&a->m[i % 2 * 2 + i / 2], pair);
}

#define GPU_SHARED_TILES(name, n) GPU_SHARED_ARRAY(u16, name, n)
GPU_FN void gpu_rows_mma(thread gpu_tile_c *c, gpu_tile_a a, const threadgroup gpu_u16 *p, int32_t col, int32_t n, int32_t lane)
{
    for (int32_t j = 0; j < n; j++) gpu_tile_mma(&c[j], a, gpu_tile_load_b(p, j * 16, col, 64, lane));
}
#define gpu_rows_begin() ((void)0)
#define gpu_rows_end() ((void)0)
#define gpu_rows_wait(n) ((void)0)
#define gpu_rows_barrier() gpu_barrier()

GPU_FN gpu_tile_a gpu_tile_a_of(gpu_tile_c c)
{
    gpu_tile_a a;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) gpu_tile_a_set(&a, i, gpu_pack_f16(gpu_tile_get(c, 2 * i), gpu_tile_get(c, 2 * i + 1)));
    return a;
}

GPU_FN int32_t gpu_tile_row(int32_t lane, int32_t i) { return lane / 4 + (i & 2) * 4; }
GPU_FN int32_t gpu_tile_col(int32_t lane, int32_t i) { return lane % 4 * 2 + (i & 1) + (i & 4) * 2; }
/* Distances 2 and 1 of lanes. */
GPU_FN float gpu_tile_row_sum(float v, int32_t lane)
{
    (void)lane;
    v += simd_shuffle_xor(v, (ushort)8);
    return v + simd_shuffle_xor(v, (ushort)1);
}
GPU_FN float gpu_tile_row_max(float v, int32_t lane)
{
    (void)lane;
    v = fmax(v, simd_shuffle_xor(v, (ushort)8));
    return fmax(v, simd_shuffle_xor(v, (ushort)1));
}

/* ---- products of fragments ---- */

/* The transpose of a matrix of pairs: rows g of two columns are with the lanes of those columns. */
GPU_FN uint32_t gpu_across_(uint32_t pair, int32_t lane)
{
    const int32_t g = lane / 4, from = lane % 4 * 8 + g / 2;
    const uint32_t low = simd_shuffle(pair, gpu_place_of(from)), high = simd_shuffle(pair, gpu_place_of(from + 4));
    return g % 2 == 0 ? (low & 0xFFFFu) | high << 16 : low >> 16 | (high & 0xFFFF0000u);
}

GPU_FN void gpu_mma(thread float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    const int32_t lane = (int32_t)gpu_lane_at(simd_prefix_exclusive_sum(1u)); /* only kernels are told their place */
    simdgroup_float8x8 upper, lower, left, right, sum;
    gpu_matrix_set_pair_(&upper, gpu_across_(b0, lane));
    gpu_matrix_set_pair_(&lower, gpu_across_(b1, lane));
    GPU_UNROLL
    for (int32_t i = 0; i < 2; i++) {
        gpu_matrix_set_pair_(&left, i == 0 ? a0 : a1);
        gpu_matrix_set_pair_(&right, i == 0 ? a2 : a3);
        gpu_matrix_set_(&sum, c[2 * i], c[2 * i + 1]);
        simdgroup_multiply_accumulate(sum, left, upper, sum);
        simdgroup_multiply_accumulate(sum, right, lower, sum);
        c[2 * i] = sum.thread_elements()[0];
        c[2 * i + 1] = sum.thread_elements()[1];
    }
}

/* ---- copies ---- */

GPU_FN void gpu_copy_quad(threadgroup gpu_u16 *to, int32_t i, const device gpu_u16 *from, int64_t j, bool there)
{
    gpu_quad q = {{0, 0, 0, 0}};
    if (there) q = gpu_load_quad(from, j);
    gpu_store_quad(to, i, q);
}
GPU_FN void gpu_copy_pair(threadgroup gpu_u64 *to, int32_t i, const device gpu_u8 *from) { to[i] = *(const device gpu_u64 *)from; }
#define gpu_copy_commit() ((void)0)
#define gpu_copy_wait(n) ((void)0)

#endif
