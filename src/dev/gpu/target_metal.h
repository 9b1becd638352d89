/* dev/gpu/target_metal.h -- the language of gpu.h in Metal.
 *
 * Metal's compiler never sees this file: the kernels are preprocessed on the machine that builds, with
 * MOX_GPU_METAL defined, and the text that comes out begins with Metal's own library (dev/metal).
 *
 * Parameters are one constant buffer whose pointers are GPU addresses (Metal 3).
 *
 * Lanes are counted as matrix units have them (tile_metal.h); a thread's place in its simdgroup is the
 * same five bits in another order, so that only shuffles and sums have to know.
 *
 * Metal may take subnormal numbers for zero, in half as in float.  So f16 is converted by its bits, with
 * numbers on the way that are not subnormal, and nothing is computed in half. */
#ifndef MOX_DEV_GPU_TARGET_METAL_H
#define MOX_DEV_GPU_TARGET_METAL_H

#define GPU_TYPE(t, type) typedef type gpu_##t
#define GPU_GLOBAL(t) device gpu_##t
#define GPU_SHARED(t) threadgroup gpu_##t
#define GPU_PRIVATE(t) thread gpu_##t
#define GPU_CONSTANT(type) constant type
#define GPU_CAST(t, p) ((const device gpu_##t *)(p))
#define GPU_SHARED_CAST(t, p) ((threadgroup gpu_##t *)(p))
#define GPU_SHARED_ARRAY(t, name, n) threadgroup gpu_##t name[n]
#define GPU_DEEP false
#define GPU_ALIGNED(n) alignas(n)
#define GPU_UNROLL _Pragma("clang loop unroll(full)")
#define GPU_FN static inline

#define GPU_KERNEL(name, threads)                                                               \
    enum { threads_of_##name = threads };                                                       \
    [[max_total_threads_per_threadgroup(threads)]]                                              \
    kernel void mox_gpu_kernel_##name(constant mox_gpu_##name *p [[buffer(0)]],                 \
                                      uint3 gpu_group_ [[threadgroup_position_in_grid]],        \
                                      uint gpu_wave_ [[simdgroup_index_in_threadgroup]],        \
                                      uint gpu_place_ [[thread_index_in_simdgroup]])

/* Every launch waits for the one in front of it. */
#define GPU_KERNEL_DENSE(name, threads, groups) GPU_KERNEL(name, threads)
#define GPU_KERNEL_EARLY GPU_KERNEL
#define GPU_KERNEL_HASTY GPU_KERNEL
#define GPU_KERNEL_EARLY_DENSE GPU_KERNEL_DENSE
#define GPU_KERNEL_HASTY_DENSE GPU_KERNEL_DENSE
#define gpu_previous() ((void)0)

#define GPU_REHEARSE(real, pays) for (int32_t real = 1; real < 2; real++)

#define gpu_group_x() ((int64_t)gpu_group_.x)
#define gpu_group_y() ((int64_t)gpu_group_.y)
#define gpu_group_z() ((int64_t)gpu_group_.z)
#define gpu_thread() ((int32_t)(gpu_wave_ * 32 + gpu_lane_at(gpu_place_)))

#define gpu_load(p, i) ((p)[i])
#define gpu_store(p, i, v) ((void)((p)[i] = (v)))

GPU_FN uint32_t gpu_bytes_u8(const device uint8_t *p, int64_t at) { return p[at]; }
GPU_FN uint32_t gpu_bytes_u16(const device uint8_t *p, int64_t at) { return p[at] | (uint32_t)p[at + 1] << 8; }
GPU_FN uint32_t gpu_bytes_u32(const device uint8_t *p, int64_t at)
{
    return gpu_bytes_u16(p, at) | gpu_bytes_u16(p, at + 2) << 16;
}
GPU_FN uint64_t gpu_bytes_u64(const device uint8_t *p, int64_t at) { return *(const device uint64_t *)(p + at); }
GPU_FN void gpu_bytes_quad_(const device uint8_t *p, int64_t at, thread uint32_t *w)
{
    const uint4 v = *(const device uint4 *)(p + at);
    w[0] = v.x;
    w[1] = v.y;
    w[2] = v.z;
    w[3] = v.w;
}
#define gpu_bytes_quad(p, at, v) gpu_bytes_quad_(p, at, (v)->w)

#define gpu_barrier() threadgroup_barrier(mem_flags::mem_threadgroup)
#define gpu_barrier_all() threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup)

/* ---- lanes ---- */

/* Bits 4 3 2 1 0 of a lane are bits 4 2 1 3 0 of its place. */
GPU_FN uint gpu_lane_at(uint place) { return (place & 17) | (place & 6) << 1 | (place & 8) >> 2; }
GPU_FN ushort gpu_place_of(int32_t lane) { return (ushort)((lane & 17) | (lane & 12) >> 1 | (lane & 2) << 2); }

GPU_FN float gpu_shuffle(float v, int32_t lane) { return simd_shuffle(v, gpu_place_of(lane)); }
GPU_FN int32_t gpu_shuffle_i32(int32_t v, int32_t lane) { return simd_shuffle(v, gpu_place_of(lane)); }
/* Not simd_sum, whose order Metal does not say; distances of places for 16, 8, 4, 2, 1 of lanes. */
GPU_FN float gpu_lane_sum(float v)
{
    v += simd_shuffle_xor(v, (ushort)16);
    v += simd_shuffle_xor(v, (ushort)4);
    v += simd_shuffle_xor(v, (ushort)2);
    v += simd_shuffle_xor(v, (ushort)8);
    return v + simd_shuffle_xor(v, (ushort)1);
}
GPU_FN float gpu_lane_max(float v)
{
    for (ushort m = 16; m > 0; m /= 2) v = fmax(v, simd_shuffle_xor(v, m));
    return v;
}

GPU_FN uint32_t gpu_lane_max_u32(uint32_t v) { return simd_max(v); }

/* ---- numbers ---- */

/* `precise` functions are named one by one: Metal has fast ones of the same name. */
#define GPU_INFINITY INFINITY
GPU_FN float gpu_exp(float v) { return precise::exp(v); }
GPU_FN float gpu_exp2(float v) { return precise::exp2(v); }
GPU_FN float gpu_log(float v) { return precise::log(v); }
GPU_FN float gpu_sqrt(float v) { return precise::sqrt(v); }
GPU_FN float gpu_rsqrt(float v) { return precise::rsqrt(v); }
GPU_FN float gpu_sin(float v) { return precise::sin(v); }
GPU_FN float gpu_cos(float v) { return precise::cos(v); }
GPU_FN float gpu_rint(float v) { return rint(v); }
GPU_FN float gpu_abs(float v) { return fabs(v); }
GPU_FN float gpu_max(float a, float b) { return fmax(a, b); }
/* By the bits, which fast math cannot reason away. */
GPU_FN bool gpu_isnan(float v) { return (as_type<uint>(v) & 0x7FFFFFFFu) > 0x7F800000u; }

GPU_FN float gpu_bits_f32(uint32_t bits) { return as_type<float>(bits); }
GPU_FN uint32_t gpu_f32_bits(float v) { return as_type<uint>(v); }

/* Below 2^-14 the bits of an f16 count units of 2^-24, as those of 2^-14 + v do above it. */
GPU_FN float gpu_f16_to_f32(uint32_t bits)
{
    const uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7FFFu, moved = magnitude << 13;
    float v = as_type<float>(moved + 0x38000000u);
    if (magnitude >= 0x7C00u) v = as_type<float>(moved | 0x7F800000u);
    if (magnitude < 0x0400u) v = as_type<float>(moved + 0x38800000u) - 0.00006103515625f;
    return as_type<float>(as_type<uint>(v) | sign);
}

/* To nearest, ties to even, NaN stays one: below 2^-14 by the rounding of 0.5 + v. */
GPU_FN uint16_t gpu_f32_to_f16(float v)
{
    const uint32_t bits = as_type<uint>(v), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    uint32_t half_bits = (magnitude - 0x38000000u + 0x0FFFu + (magnitude >> 13 & 1u)) >> 13;
    if (magnitude < 0x38800000u) half_bits = as_type<uint>(as_type<float>(magnitude) + 0.5f) - 0x3F000000u;
    if (magnitude >= 0x477FF000u) half_bits = 0x7C00u;
    if (magnitude > 0x7F800000u) half_bits = 0x7E00u;
    return (uint16_t)(sign | half_bits);
}

GPU_FN uint32_t gpu_pack_f16(float low, float high) { return gpu_f32_to_f16(low) | (uint32_t)gpu_f32_to_f16(high) << 16; }

#endif
