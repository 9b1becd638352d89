/* dev/gpu/target_emu.h -- the language of gpu.h on the processor, with every access checked.
 *
 * An element of global or shared memory is a struct of its own type, so that p[i] in place of
 * gpu_load(p, i), and a shared pointer where a global one is due, do not compile. */
#ifndef MOX_DEV_GPU_TARGET_EMU_H
#define MOX_DEV_GPU_TARGET_EMU_H

#include "dev/emu/access.h"
#include "tensor/dtype.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define GPU_TYPE(t, type)                                  \
    typedef type gpu_##t;                                  \
    typedef struct mox_emu_global_##t { type value; } mox_emu_global_##t; \
    typedef struct mox_emu_shared_##t { type value; } mox_emu_shared_##t
#define GPU_GLOBAL(t) mox_emu_global_##t
#define GPU_SHARED(t) mox_emu_shared_##t
#define GPU_PRIVATE(t) gpu_##t
#define GPU_CONSTANT(type) type
#define GPU_CAST(t, p) ((const mox_emu_global_##t *)(const void *)(p))
#define GPU_SHARED_CAST(t, p) ((mox_emu_shared_##t *)(void *)(p))
#define GPU_ALIGNED(n) _Alignas(n)
#define GPU_UNROLL
#define GPU_FN static inline

#define GPU_TEXT_(x) #x
#define GPU_TEXT(x) GPU_TEXT_(x)
#define GPU_SITE __FILE__ ":" GPU_TEXT(__LINE__)

#define GPU_SHARED_ARRAY(t, name, n) \
    mox_emu_shared_##t *const name = mox_emu_shared(GPU_SITE, (int64_t)(n) * (int64_t)sizeof(mox_emu_shared_##t))

#ifdef MOX_EMU_DEEP /* kernels as CUDA has them, for a test */
#define GPU_DEEP true
#else
#define GPU_DEEP false
#endif
/* A kernel is a mox_emu_kernel called mox_emu_kernel_NAME. */
#define GPU_KERNEL(name, n_threads) GPU_KERNEL_(name, n_threads, false, false)
#define GPU_KERNEL_DENSE(name, n_threads, n_groups) GPU_KERNEL(name, n_threads)
#define GPU_KERNEL_EARLY_DENSE(name, n_threads, n_groups) GPU_KERNEL_EARLY(name, n_threads)
#define GPU_KERNEL_EARLY(name, n_threads) GPU_KERNEL_(name, n_threads, true, false)
#define GPU_KERNEL_HASTY(name, n_threads) GPU_KERNEL_(name, n_threads, true, true)
#define GPU_KERNEL_HASTY_DENSE(name, n_threads, n_groups) GPU_KERNEL_HASTY(name, n_threads)
#define GPU_KERNEL_(name, n_threads, is_early, is_hasty)                                                  \
    enum { threads_of_##name = n_threads };                                                     \
    static void kernel_##name(const mox_gpu_##name *p);                                         \
    static void start_##name(const void *params) { kernel_##name(params); }                     \
    extern const mox_emu_kernel mox_emu_kernel_##name;                                          \
    const mox_emu_kernel mox_emu_kernel_##name = {#name, start_##name, sizeof(mox_gpu_##name), n_threads, is_early, is_hasty, GPU_DEEP}; \
    static void kernel_##name(const mox_gpu_##name *p)

#define GPU_REHEARSE(real, pays) for (int32_t real = (pays) != 0 ? 0 : 1; real < 2; real++)

#define gpu_group_x() (mox_emu_now->group[0])
#define gpu_group_y() (mox_emu_now->group[1])
#define gpu_group_z() (mox_emu_now->group[2])
#define gpu_thread() (mox_emu_now->thread)

#define gpu_load(p, i) (((__typeof__(p))(const void *)mox_emu_read((p) + (i), sizeof *(p), GPU_SITE))->value)
#define gpu_store(p, i, v) ((void)(((__typeof__(p))mox_emu_write((p) + (i), sizeof *(p), GPU_SITE))->value = (v)))
#define gpu_bytes_u8(p, at) ((uint32_t)*(const uint8_t *)mox_emu_read_any((p) + (at), 1, GPU_SITE))
#define gpu_bytes_u16(p, at) ((uint32_t)mox_load_u16(mox_emu_read_any((p) + (at), 2, GPU_SITE)))
#define gpu_bytes_u32(p, at) (mox_load_u32(mox_emu_read_any((p) + (at), 4, GPU_SITE)))

#define gpu_bytes_u64(p, at) (*(const uint64_t *)mox_emu_read_weights((p) + (at), 8, GPU_SITE))
#define gpu_bytes_quad(p, at, v) ((void)memcpy((v)->w, mox_emu_read_weights((p) + (at), 16, GPU_SITE), 16))

#define gpu_previous() mox_emu_previous()
#define gpu_barrier() mox_emu_barrier(MOX_EMU_BARRIER, GPU_SITE)
#define gpu_barrier_all() mox_emu_barrier(MOX_EMU_BARRIER_ALL, GPU_SITE)
#define gpu_lane_sum(v) mox_bits_f32(mox_emu_lanes(MOX_EMU_LANE_SUM, mox_f32_bits(v), 0, GPU_SITE))
#define gpu_lane_max(v) mox_bits_f32(mox_emu_lanes(MOX_EMU_LANE_MAX, mox_f32_bits(v), 0, GPU_SITE))
#define gpu_lane_max_u32(v) mox_emu_lanes(MOX_EMU_LANE_MAX_U32, (v), 0, GPU_SITE)
#define gpu_shuffle(v, lane) mox_bits_f32(mox_emu_lanes(MOX_EMU_SHUFFLE, mox_f32_bits(v), (lane), GPU_SITE))
#define gpu_shuffle_i32(v, lane) ((int32_t)mox_emu_lanes(MOX_EMU_SHUFFLE, (uint32_t)(v), (lane), GPU_SITE))

#define GPU_INFINITY INFINITY
#include "dev/gpu/target_math.h"
GPU_FN float gpu_exp2(float v) { return exp2f(v); }
GPU_FN float gpu_rsqrt(float v) { return 1.0f / sqrtf(v); }

GPU_FN float gpu_bits_f32(uint32_t bits) { return mox_bits_f32(bits); }
GPU_FN uint32_t gpu_f32_bits(float v) { return mox_f32_bits(v); }
GPU_FN float gpu_f16_to_f32(uint32_t bits) { return mox_f16_to_f32((uint16_t)bits); }
GPU_FN uint16_t gpu_f32_to_f16(float v) { return mox_f32_to_f16(v); }

GPU_FN uint32_t gpu_pack_f16(float low, float high) { return mox_f32_to_f16(low) | (uint32_t)mox_f32_to_f16(high) << 16; }

#endif
