/* dev/gpu/tile_cuda.h -- tiles and copies of gpu.h on NVIDIA GPUs (sm_80 and later).
 *
 * A tile product is two of the instruction's 16 x 8 x 16 products.  Shared tiles are laid out so
 * that eight rows of one chunk (8 numbers, 16 bytes) meet all banks once: the chunks of a row are
 * exchanged by an exclusive or with the row. */
#ifndef MOX_DEV_GPU_TILE_CUDA_H
#define MOX_DEV_GPU_TILE_CUDA_H

typedef struct gpu_tile_a { uint32_t r[4]; } gpu_tile_a;
typedef struct gpu_tile_b { uint32_t r[4]; } gpu_tile_b;
typedef struct gpu_tile_c { float v[8]; } gpu_tile_c;

#define gpu_tile_get(c, i) ((c).v[i])
#define gpu_tile_set(c, i, x) ((void)((c)->v[i] = (x)))
#define gpu_load_quad(p, i) (*(const gpu_quad *)((p) + (i)))
#define gpu_store_quad(p, i, q) ((void)(*(gpu_quad *)((p) + (i)) = (q)))
#define gpu_is_aligned(p, n) (((uintptr_t)(p) & ((n) - 1)) == 0)

GPU_FN uint32_t gpu_fma_f16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

GPU_FN int32_t gpu_tile_at(int32_t row, int32_t col, int32_t width)
{
    const int32_t turn = width == 32 ? row >> 1 & 3 : row & 7;
    return row * width + ((col >> 3 ^ turn) << 3) + (col & 7);
}

GPU_FN gpu_tile_c gpu_tile_zero(void)
{
    gpu_tile_c c;
    GPU_UNROLL
    for (int i = 0; i < 8; i++) c.v[i] = 0.0f;
    return c;
}

GPU_FN uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

GPU_FN gpu_tile_a gpu_tile_load_a(const gpu_u16 *p, int32_t row, int32_t col, int32_t width, int32_t lane)
{
    gpu_tile_a t;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(t.r[0]), "=r"(t.r[1]), "=r"(t.r[2]), "=r"(t.r[3])
                 : "r"(shared_address(p + gpu_tile_at(row + (lane & 15), col + (lane >> 4 << 3), width))));
    return t;
}

GPU_FN gpu_tile_b gpu_tile_load_b(const gpu_u16 *p, int32_t row, int32_t col, int32_t width, int32_t lane)
{
    gpu_tile_b t;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(t.r[0]), "=r"(t.r[1]), "=r"(t.r[2]), "=r"(t.r[3])
                 : "r"(shared_address(p + gpu_tile_at(row + (lane >> 4 << 3) + (lane & 7), col + (lane & 8), width))));
    return t;
}

GPU_FN gpu_tile_b gpu_tile_load_b_across(const gpu_u16 *p, int32_t row, int32_t col, int32_t width, int32_t lane)
{
    gpu_tile_b t;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(t.r[0]), "=r"(t.r[1]), "=r"(t.r[2]), "=r"(t.r[3])
                 : "r"(shared_address(p + gpu_tile_at(row + (lane & 15), col + (lane >> 4 << 3), width))));
    return t;
}

GPU_FN void half_tile_mma(float *c, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

GPU_FN void gpu_tile_mma(gpu_tile_c *c, gpu_tile_a a, gpu_tile_b b)
{
    half_tile_mma(c->v, a.r, b.r);
    half_tile_mma(c->v + 4, a.r, b.r + 2);
}

GPU_FN gpu_tile_a gpu_tile_a_of(gpu_tile_c c)
{
    gpu_tile_a a;
    GPU_UNROLL
    for (int i = 0; i < 4; i++) a.r[i] = gpu_pack_f16(c.v[2 * i], c.v[2 * i + 1]);
    return a;
}

#define gpu_tile_a_set(a, i, pair) ((void)((a)->r[i] = (pair)))

GPU_FN int32_t gpu_tile_row(int32_t lane, int32_t i) { return (lane >> 2) + (i & 2) * 4; }
GPU_FN int32_t gpu_tile_col(int32_t lane, int32_t i) { return (lane & 3) * 2 + (i & 1) + (i & 4) * 2; }
GPU_FN float gpu_tile_row_sum(float v, int32_t lane)
{
    (void)lane;
    v += __shfl_xor_sync(0xFFFFFFFFu, v, 2);
    return v + __shfl_xor_sync(0xFFFFFFFFu, v, 1);
}
GPU_FN float gpu_tile_row_max(float v, int32_t lane)
{
    (void)lane;
    v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, 2));
    return fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, 1));
}

/* A source of no bytes is filled up with zeros. */
GPU_FN void gpu_copy_quad(gpu_u16 *to, int32_t i, const gpu_u16 *from, int64_t j, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to + i)), "l"(from + j), "r"(there ? 16 : 0)
                 : "memory");
}
GPU_FN void gpu_copy_pair(gpu_u64 *to, int32_t i, const gpu_u8 *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to + i)), "l"(from) : "memory");
}
#define gpu_copy_commit() asm volatile("cp.async.commit_group;" ::: "memory")
#define gpu_copy_wait(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")

#endif
