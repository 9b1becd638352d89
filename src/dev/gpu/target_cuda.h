/* dev/gpu/target_cuda.h -- the language of gpu.h on NVIDIA GPUs.
 *
 * Parameters travel by value in constant memory.  Nothing is compiled with fast math, so
 * division, square root and exp are those that the contracts were written for. */
#ifndef MOX_DEV_GPU_TARGET_CUDA_H
#define MOX_DEV_GPU_TARGET_CUDA_H

#include <cuda_fp16.h>
#include <stdint.h>

#define GPU_TYPE(t, type) typedef type gpu_##t
#define GPU_GLOBAL(t) gpu_##t
#define GPU_SHARED(t) gpu_##t
#define GPU_PRIVATE(t) gpu_##t
#define GPU_CONSTANT(type) type
#define GPU_CAST(t, p) ((const gpu_##t *)(p))
#define GPU_SHARED_CAST(t, p) ((gpu_##t *)(p))
#define GPU_SHARED_ARRAY(t, name, n) __shared__ gpu_##t name[n]
#define GPU_DEEP true
#define GPU_ALIGNED(n) alignas(n)
#define GPU_UNROLL _Pragma("unroll")
#define GPU_FN static __device__ __forceinline__

/* From compute capability 9 on a launch may begin before the one in front of it has ended, so each
 * waits for it.  Only then does it let the next begin, if it is not hasty. */
GPU_FN void gpu_next()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
GPU_FN void gpu_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    gpu_next();
}
/* The assembler does not move loads over the barrier. */
GPU_FN void gpu_previous()
{
    __syncthreads();
    gpu_begin();
}

/* Parameters come from memory line by line, when one is first needed: so all are needed at once, before the wait. */
template <typename params> GPU_FN void gpu_touch(const params &p)
{
    uint32_t all = 0;
    GPU_UNROLL
    for (size_t at = 0; at < sizeof p; at += 64) all ^= *(const uint32_t *)((const char *)&p + at);
    if (all == 0x9E3779B9u) asm volatile("nanosleep.u32 0;"); /* so that they are not left out */
}

#define GPU_KERNEL_(name, threads, groups, begin)                                                       \
    enum { threads_of_##name = threads };                                                       \
    GPU_FN void kernel_##name(const mox_gpu_##name *p);                                         \
    extern "C" __global__ void __launch_bounds__(threads, groups)                                       \
        mox_gpu_kernel_##name(const __grid_constant__ mox_gpu_##name params)                    \
    {                                                                                           \
        gpu_touch(params);                                                                      \
        begin;                                                                                  \
        kernel_##name(&params);                                                                 \
    }                                                                                           \
    GPU_FN void kernel_##name(const mox_gpu_##name *p)
#define GPU_KERNEL(name, threads) GPU_KERNEL_(name, threads, 1, gpu_begin())
#define GPU_KERNEL_DENSE(name, threads, groups) GPU_KERNEL_(name, threads, groups, gpu_begin())
#define GPU_KERNEL_EARLY(name, threads) GPU_KERNEL_(name, threads, 1, (void)0)
#define GPU_KERNEL_EARLY_DENSE(name, threads, groups) GPU_KERNEL_(name, threads, groups, (void)0)
#define GPU_KERNEL_HASTY(name, threads) GPU_KERNEL_(name, threads, 1, gpu_next())
#define GPU_KERNEL_HASTY_DENSE(name, threads, groups) GPU_KERNEL_(name, threads, groups, gpu_next())

/* Unrolled, the two would not be the same instructions. */
#define GPU_REHEARSE(real, pays) _Pragma("unroll 1") for (int32_t real = (pays) != 0 ? 0 : 1; real < 2; real++)

#define gpu_group_x() ((int64_t)blockIdx.x)
#define gpu_group_y() ((int64_t)blockIdx.y)
#define gpu_group_z() ((int64_t)blockIdx.z)
#define gpu_thread() ((int32_t)threadIdx.x)

#define gpu_load(p, i) ((p)[i])
#define gpu_store(p, i, v) ((void)((p)[i] = (v)))

GPU_FN uint32_t gpu_bytes_u8(const uint8_t *p, int64_t at) { return p[at]; }
GPU_FN uint32_t gpu_bytes_u16(const uint8_t *p, int64_t at) { return p[at] | (uint32_t)p[at + 1] << 8; }
/* From the one or two aligned words that hold the four bytes. */
GPU_FN uint32_t gpu_bytes_u32(const uint8_t *p, int64_t at)
{
    const uintptr_t address = (uintptr_t)(p + at);
    const uint32_t *words = (const uint32_t *)(address & ~(uintptr_t)3);
    const uint32_t shift = (uint32_t)(address & 3) * 8;
    return shift == 0 ? words[0] : __funnelshift_r(words[0], words[1], shift);
}

/* Volatile and not .nc, so that they stay in front of gpu_previous(): the assembler lets loads of constants wait. */
GPU_FN uint64_t gpu_bytes_u64(const uint8_t *p, int64_t at)
{
    uint64_t v;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(v) : "l"(p + at));
    return v;
}
GPU_FN void gpu_bytes_quad_(const uint8_t *p, int64_t at, uint32_t *w)
{
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(p + at));
}
#define gpu_bytes_quad(p, at, v) gpu_bytes_quad_(p, at, (v)->w)

/* A CUDA barrier orders global memory within its block, too. */
#define gpu_barrier() __syncthreads()
#define gpu_barrier_all() __syncthreads()

GPU_FN float gpu_shuffle(float v, int32_t lane) { return __shfl_sync(0xFFFFFFFFu, v, lane); }
GPU_FN int32_t gpu_shuffle_i32(int32_t v, int32_t lane) { return __shfl_sync(0xFFFFFFFFu, v, lane); }
GPU_FN float gpu_lane_sum(float v)
{
    GPU_UNROLL
    for (int m = 16; m > 0; m /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, m);
    return v;
}
GPU_FN float gpu_lane_max(float v)
{
    GPU_UNROLL
    for (int m = 16; m > 0; m /= 2) v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, m));
    return v;
}

GPU_FN uint32_t gpu_lane_max_u32(uint32_t v) { return __reduce_max_sync(0xFFFFFFFFu, v); }

GPU_FN void gpu_mma(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

GPU_FN void gpu_mma_bytes(int32_t *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
GPU_FN uint32_t gpu_byte_of_each(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int32_t i)
{
    const uint32_t which = (uint32_t)(i | (i + 4) << 4);
    return __byte_perm(__byte_perm(a, b, which), __byte_perm(c, d, which), 0x5410u);
}

#define GPU_INFINITY (__int_as_float(0x7F800000))
#include "dev/gpu/target_math.h"
/* What is below the normal numbers is 0. */
GPU_FN float gpu_exp2(float v)
{
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v));
    return power;
}

GPU_FN float gpu_rsqrt(float v)
{
    float root;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(v));
    return root;
}

GPU_FN float gpu_bits_f32(uint32_t bits) { return __uint_as_float(bits); }
GPU_FN uint32_t gpu_f32_bits(float v) { return __float_as_uint(v); }
GPU_FN float gpu_f16_to_f32(uint32_t bits) { return __half2float(__ushort_as_half((unsigned short)bits)); }
/* The hardware has a NaN of its own. */
GPU_FN uint16_t gpu_f32_to_f16(float v) { return v != v ? (uint16_t)(__float_as_uint(v) >> 16 & 0x8000u | 0x7E00u) : __half_as_ushort(__float2half_rn(v)); }

GPU_FN uint32_t gpu_pack_f16(float low, float high)
{
    uint32_t v;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}

#endif
