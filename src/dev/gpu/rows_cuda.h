/* dev/gpu/rows_cuda.h -- gpu_rows_mma of gpu.h on NVIDIA GPUs.
 *
 * Compute capability 9.0 has matrix units that four waves feed together: each brings 16 rows of A in
 * registers, and B is read from shared memory, once for all four.  Such products run beside the waves.
 * gpu_tile_at's order for rows of 64 numbers is one that they know (128 bytes a row, chunks exchanged within
 * eight rows), if the array begins at a multiple of those eight rows; C and A lie in registers as
 * gpu_tile_mma has them.  Elsewhere waves multiply tile by tile. */
#ifndef MOX_DEV_GPU_ROWS_CUDA_H
#define MOX_DEV_GPU_ROWS_CUDA_H

#define GPU_SHARED_TILES(name, n) __shared__ __align__(1024) gpu_u16 name[n]

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Where B is: a multiple of 16 bytes; rows in eights, 1024 bytes apart, in 128-byte order. */
GPU_FN uint64_t rows_address(const gpu_u16 *p)
{
    return (uint64_t)(shared_address(p) >> 4 & 0x3FFFu) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

#define ROWS_C(c) "+f"((c).v[0]), "+f"((c).v[1]), "+f"((c).v[2]), "+f"((c).v[3]), "+f"((c).v[4]), "+f"((c).v[5]), "+f"((c).v[6]), "+f"((c).v[7])
#define ROWS_AB "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b)

GPU_FN void gpu_rows_mma(gpu_tile_c *c, gpu_tile_a a, const gpu_u16 *p, int32_t col, int32_t n, int32_t lane)
{
    (void)lane;
    const uint64_t b = rows_address(p) + (uint64_t)(col / 8);
    if (n == 8)
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                     "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                     "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
                     : ROWS_C(c[0]), ROWS_C(c[1]), ROWS_C(c[2]), ROWS_C(c[3]), ROWS_C(c[4]), ROWS_C(c[5]), ROWS_C(c[6]), ROWS_C(c[7])
                     : ROWS_AB);
    else if (n == 4)
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                     "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
                     : ROWS_C(c[0]), ROWS_C(c[1]), ROWS_C(c[2]), ROWS_C(c[3])
                     : ROWS_AB);
    else if (n == 2)
        asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                     "{%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
                     : ROWS_C(c[0]), ROWS_C(c[1])
                     : ROWS_AB);
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7}, "
                     "{%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
                     : ROWS_C(c[0])
                     : ROWS_AB);
}
#define gpu_rows_begin() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define gpu_rows_end() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define gpu_rows_wait(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")
#define gpu_rows_barrier() (asm_rows_fence(), __syncthreads())
GPU_FN void asm_rows_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#else

/* A tile of B is loaded before the one in front of it is multiplied. */
GPU_FN void gpu_rows_mma(gpu_tile_c *c, gpu_tile_a a, const gpu_u16 *p, int32_t col, int32_t n, int32_t lane)
{
    gpu_tile_b b[2];
    b[0] = gpu_tile_load_b(p, 0, col, 64, lane);
    GPU_UNROLL
    for (int32_t j = 0; j < 8; j++) {
        if (j >= n) continue;
        if (j + 1 < n) b[(j + 1) % 2] = gpu_tile_load_b(p, (j + 1) * 16, col, 64, lane);
        gpu_tile_mma(&c[j], a, b[j % 2]);
    }
}
#define gpu_rows_begin() ((void)0)
#define gpu_rows_end() ((void)0)
#define gpu_rows_wait(n) ((void)0)
#define gpu_rows_barrier() __syncthreads()

#endif
#endif
