/* dev/gpu/tile_metal.h -- tiles and copies of gpu.h in Metal.
 *
 * A tile is four 8 x 8 matrices of the simd group.  Which two numbers of such a matrix a lane
 * holds is not in Metal's books, but the same on all Apple GPUs so far: row and columns are
 * spelled out by gpu_tile_row and gpu_tile_col.  Copies happen at once. */
#ifndef MOX_DEV_GPU_TILE_METAL_H
#define MOX_DEV_GPU_TILE_METAL_H

#include <metal_simdgroup_matrix>

typedef struct gpu_tile_a { simdgroup_half8x8 m[4]; } gpu_tile_a;
typedef struct gpu_tile_b { simdgroup_half8x8 m[4]; } gpu_tile_b;
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
    return as_type<uint>(fma(as_type<half2>(a), as_type<half2>(b), as_type<half2>(c)));
}

GPU_FN int32_t gpu_tile_at(int32_t row, int32_t col, int32_t width) { return row * width + col; }

GPU_FN gpu_tile_c gpu_tile_zero(void)
{
    gpu_tile_c c;
    for (int i = 0; i < 4; i++) c.m[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    return c;
}

/* [rows / 8][columns / 8] of the product's operand. */
GPU_FN gpu_tile_a gpu_tile_load_a(const threadgroup gpu_u16 *p, int32_t row, int32_t col, int32_t width, int32_t lane)
{
    (void)lane;
    gpu_tile_a t;
    const threadgroup half *from = (const threadgroup half *)p + row * width + col;
    for (int i = 0; i < 4; i++) simdgroup_load(t.m[i], from + i / 2 * 8 * width + i % 2 * 8, width);
    return t;
}

GPU_FN gpu_tile_b gpu_tile_load_b(const threadgroup gpu_u16 *p, int32_t row, int32_t col, int32_t width, int32_t lane)
{
    (void)lane;
    gpu_tile_b t;
    const threadgroup half *from = (const threadgroup half *)p + row * width + col;
    for (int i = 0; i < 4; i++) simdgroup_load(t.m[i], from + i % 2 * 8 * width + i / 2 * 8, width, ulong2(0), true);
    return t;
}

GPU_FN gpu_tile_b gpu_tile_load_b_across(const threadgroup gpu_u16 *p, int32_t row, int32_t col, int32_t width, int32_t lane)
{
    (void)lane;
    gpu_tile_b t;
    const threadgroup half *from = (const threadgroup half *)p + row * width + col;
    for (int i = 0; i < 4; i++) simdgroup_load(t.m[i], from + i / 2 * 8 * width + i % 2 * 8, width);
    return t;
}

GPU_FN void gpu_tile_mma(thread gpu_tile_c *c, gpu_tile_a a, gpu_tile_b b)
{
    for (int col = 0; col < 2; col++)
        for (int row = 0; row < 2; row++)
            for (int k = 0; k < 2; k++)
                simdgroup_multiply_accumulate(c->m[col * 2 + row], a.m[row * 2 + k], b.m[k * 2 + col], c->m[col * 2 + row]);
}

GPU_FN gpu_tile_a gpu_tile_a_of(gpu_tile_c c)
{
    gpu_tile_a a;
    for (int i = 0; i < 4; i++)
        for (int e = 0; e < 2; e++) a.m[i % 2 * 2 + i / 2].thread_elements()[e] = (half)c.m[i].thread_elements()[e];
    return a;
}

GPU_FN void gpu_tile_a_set(thread gpu_tile_a *a, int32_t i, uint32_t pair)
{
    const half2 v = as_type<half2>(pair);
    for (int e = 0; e < 2; e++) a->m[(i & 1) * 2 + i / 2].thread_elements()[e] = v[e];
}

GPU_FN int32_t gpu_tile_row(int32_t lane, int32_t i) { return (lane & 16) / 4 + (lane / 2 & 3) + (i & 2) * 4; }
GPU_FN int32_t gpu_tile_col(int32_t lane, int32_t i) { return (lane & 8) / 2 + (lane & 1) * 2 + (i & 1) + (i & 4) * 2; }
GPU_FN float gpu_tile_row_sum(float v, int32_t lane)
{
    (void)lane;
    v += simd_shuffle_xor(v, 8);
    return v + simd_shuffle_xor(v, 1);
}
GPU_FN float gpu_tile_row_max(float v, int32_t lane)
{
    (void)lane;
    v = fmax(v, simd_shuffle_xor(v, 8));
    return fmax(v, simd_shuffle_xor(v, 1));
}

GPU_FN void gpu_copy_quad(threadgroup gpu_u16 *to, int32_t i, const device gpu_u16 *from, int64_t j, bool there)
{
    gpu_quad q = {{0, 0, 0, 0}};
    if (there) q = gpu_load_quad(from, j);
    gpu_store_quad(to, i, q);
}
#define gpu_copy_commit() ((void)0)
#define gpu_copy_wait(n) ((void)0)

#endif
