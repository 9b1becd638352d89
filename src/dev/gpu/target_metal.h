/* dev/gpu/target_metal.h -- the language of gpu.h in Metal.
 *
 * Parameters are one constant buffer whose pointers are GPU addresses (Metal 3).  Groups are
 * one-dimensional, so the lane of a thread is its index modulo 32.  `precise` functions are
 * named one by one: Metal compiles with fast math unless told otherwise. */
#ifndef MOX_DEV_GPU_TARGET_METAL_H
#define MOX_DEV_GPU_TARGET_METAL_H

#include <metal_stdlib>

using namespace metal;

#define GPU_TYPE(t, type) typedef type gpu_##t
#define GPU_GLOBAL(t) device gpu_##t
#define GPU_SHARED(t) threadgroup gpu_##t
#define GPU_PRIVATE(t) thread gpu_##t
#define GPU_CONSTANT(type) constant type
#define GPU_CAST(t, p) ((const device gpu_##t *)(p))
#define GPU_SHARED_ARRAY(t, name, n) threadgroup gpu_##t name[n]
#define GPU_ALIGNED(n) alignas(n)
#define GPU_UNROLL _Pragma("clang loop unroll(full)")
#define GPU_FN static inline

#define GPU_KERNEL(name, threads)                                                               \
    enum { threads_of_##name = threads };                                                       \
    kernel void mox_gpu_kernel_##name(constant mox_gpu_##name *p [[buffer(0)]],                 \
                                      uint3 gpu_group_ [[threadgroup_position_in_grid]],        \
                                      uint gpu_thread_ [[thread_index_in_threadgroup]])

#define GPU_KERNEL_DENSE(name, threads, groups) GPU_KERNEL(name, threads)
#define GPU_KERNEL_EARLY GPU_KERNEL
#define GPU_KERNEL_EARLY_DENSE GPU_KERNEL_DENSE
#define gpu_previous() ((void)0)

#define gpu_group_x() ((int64_t)gpu_group_.x)
#define gpu_group_y() ((int64_t)gpu_group_.y)
#define gpu_group_z() ((int64_t)gpu_group_.z)
#define gpu_thread() ((int32_t)gpu_thread_)

#define gpu_load(p, i) ((p)[i])
#define gpu_store(p, i, v) ((void)((p)[i] = (v)))

GPU_FN uint32_t gpu_bytes_u8(const device uint8_t *p, int64_t at) { return p[at]; }
GPU_FN uint32_t gpu_bytes_u16(const device uint8_t *p, int64_t at) { return p[at] | (uint32_t)p[at + 1] << 8; }
GPU_FN uint32_t gpu_bytes_u32(const device uint8_t *p, int64_t at)
{
    return gpu_bytes_u16(p, at) | gpu_bytes_u16(p, at + 2) << 16;
}

#define gpu_barrier() threadgroup_barrier(mem_flags::mem_threadgroup)
#define gpu_barrier_all() threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup)

GPU_FN float gpu_shuffle(float v, int32_t lane) { return simd_shuffle(v, (ushort)lane); }
GPU_FN int32_t gpu_shuffle_i32(int32_t v, int32_t lane) { return simd_shuffle(v, (ushort)lane); }
/* Not simd_sum, whose order Metal does not say. */
GPU_FN float gpu_lane_sum(float v)
{
    for (ushort m = 16; m > 0; m /= 2) v += simd_shuffle_xor(v, m);
    return v;
}
GPU_FN float gpu_lane_max(float v)
{
    for (ushort m = 16; m > 0; m /= 2) v = fmax(v, simd_shuffle_xor(v, m));
    return v;
}

#define GPU_INFINITY INFINITY
GPU_FN float gpu_exp(float v) { return precise::exp(v); }
GPU_FN float gpu_exp2(float v) { return precise::exp2(v); }
GPU_FN float gpu_log(float v) { return precise::log(v); }
GPU_FN float gpu_sqrt(float v) { return precise::sqrt(v); }
GPU_FN float gpu_sin(float v) { return precise::sin(v); }
GPU_FN float gpu_cos(float v) { return precise::cos(v); }
GPU_FN float gpu_rint(float v) { return rint(v); }
GPU_FN float gpu_abs(float v) { return fabs(v); }
GPU_FN float gpu_max(float a, float b) { return fmax(a, b); }
/* By the bits, which fast math cannot reason away. */
GPU_FN bool gpu_isnan(float v) { return (as_type<uint>(v) & 0x7FFFFFFFu) > 0x7F800000u; }

GPU_FN float gpu_bits_f32(uint32_t bits) { return as_type<float>(bits); }
GPU_FN uint32_t gpu_f32_bits(float v) { return as_type<uint>(v); }
GPU_FN float gpu_f16_to_f32(uint32_t bits) { return (float)as_type<half>((ushort)bits); }
GPU_FN uint16_t gpu_f32_to_f16(float v) { return as_type<ushort>((half)v); }

GPU_FN uint32_t gpu_pack_f16(float low, float high) { return as_type<uint>(half2((half)low, (half)high)); }

#endif
