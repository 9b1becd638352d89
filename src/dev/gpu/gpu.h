/* dev/gpu/gpu.h -- the language that GPU kernels are written in.
 *
 * A kernel is written once, in what C11, CUDA C++ and Metal's C++ have in common, plus the
 * words below.  A target header makes the words concrete:
 *   target_cuda.h   NVIDIA
 *   target_metal.h  Apple
 *   target_emu.h    the processor, with every access checked (dev/emu)
 *   target_host.h   no kernels: the parameter structs as host code fills them
 *
 * A grid has groups; a group has threads, a multiple of 32; 32 threads in a row are a wave,
 * and each of them is a lane of it.
 *
 *   GPU_KERNEL(name, threads) {}   body of a kernel; p points to its parameters, a mox_gpu_name
 *   GPU_KERNEL_EARLY(name, threads) {}   the same, but may begin before the launch in front of it has
 *                                  ended; gpu_previous() waits for that, and R7 says what may be done before
 *   GPU_FN type name(...)          a function that kernels call
 *   gpu_group_x() _y() _z()        int64, which group this is.  Kernel bodies only, as is
 *   gpu_thread()                   int32, which thread of the group this is
 *
 *   GPU_GLOBAL(t) *p               memory of the device; t is f32 i32 u32 u16 u8 i64 or GPU_TYPE's
 *   GPU_SHARED(t) *p               memory of the group
 *   GPU_PRIVATE(t) *p              a variable of the thread
 *   GPU_CONSTANT(type) *p          parameters
 *   GPU_SHARED_ARRAY(t, name, n)   declares shared memory, in kernel bodies only; undefined at first
 *   GPU_TYPE(t, type)              makes a struct usable as t; GPU_CAST(t, p) is p as const GPU_GLOBAL(t) *
 *   gpu_load(p, i)                 reads p[i] of global or shared memory; there is no other way
 *   gpu_store(p, i, v)             writes it
 *   gpu_bytes_u8 _u16 _u32(p, at)  reads at byte `at` of a const GPU_GLOBAL(u8) *, whatever the
 *                                  alignment: weights.  Memory that no kernel writes while this one runs
 *
 *   gpu_bytes_u64(p, at)           the same at a multiple of 8, and gpu_bytes_wide(p, at, &v) at one of 16:
 *                                  weights that a launch reads once.  v is a mox_gpu_wide, u32 w[4];
 *                                  as an element it is a `wide`
 *
 *   gpu_barrier()                  orders shared memory: what threads of the group stored before it,
 *                                  all of them see after it
 *   gpu_barrier_all()              orders global memory as well.  A plain barrier does not: Metal
 *                                  leaves stores to device memory invisible to other waves
 *   gpu_lane_sum(v) gpu_lane_max(v)      over the 32 lanes of the wave, as a butterfly over
 *                                  distances 16, 8, 4, 2, 1: the same bytes on every target.
 *                                  The maximum leaves NaNs out, as gpu_max does
 *   gpu_shuffle(v, lane) gpu_shuffle_i32(v, lane)   v of another lane
 *
 *   gpu_mma(c, a0, a1, a2, a3, b0, b1)   of the whole wave: C += A B, A 16 x 16, B 16 x 8 of f16, C of f32,
 *                                  sums in an order that is the target's.  Lane 4 g + t holds, as pairs with
 *                                  the first number in the low half: a0 = A[g, 2t..], a1 = A[g + 8, 2t..],
 *                                  a2 = A[g, 2t + 8..], a3 = A[g + 8, 2t + 8..]; b0 = B[2t.., g],
 *                                  b1 = B[2t + 8.., g]; c[0..1] = C[g, 2t..], c[2..3] = C[g + 8, 2t..]
 *
 *   gpu_exp gpu_log gpu_sqrt gpu_sin gpu_cos gpu_rint gpu_abs gpu_max gpu_isnan, GPU_INFINITY
 *   gpu_bits_f32 gpu_f32_bits gpu_f16_to_f32 gpu_f32_to_f16
 *
 * Rules
 *   R1  barriers and lane operations are reached by all threads of the group (of the wave), or by
 *       none: no return and no condition in front of them that differs between threads.
 *   R2  groups of a launch do not talk to each other: no word is written by one and touched by another.
 *   R3  offsets are int64; there is no double, no recursion, no function pointer, no memory
 *       but parameters, arguments, shared arrays and variables.
 *   R4  private arrays are indexed by constants or by counters of loops marked GPU_UNROLL.
 *   R5  gpu_load and gpu_store take addresses that are multiples of the element's size, and two
 *       threads do not write the two bytes of one 16-bit word.
 *   R6  shared arrays of a kernel have 32 KiB at most, all together.
 *   R7  before gpu_previous() a GPU_KERNEL_EARLY stores nothing to global memory and loads nothing that
 *       the launch in front of it stored; what older ones stored is there.  All threads reach it.
 * emu finds every breach of R1, R2, R5, R6 and R7, and reads of shared memory that nobody wrote. */
#ifndef MOX_DEV_GPU_GPU_H
#define MOX_DEV_GPU_GPU_H

#if defined(MOX_GPU_METAL)
#include "dev/gpu/target_metal.h"
#elif defined(__CUDACC__)
#include "dev/gpu/target_cuda.h"
#elif defined(MOX_GPU_EMU)
#include "dev/gpu/target_emu.h"
#else
#include "dev/gpu/target_host.h"
#endif

enum { GPU_LANES = 32 };

GPU_TYPE(f32, float);
GPU_TYPE(i32, int32_t);
GPU_TYPE(u32, uint32_t);
GPU_TYPE(u16, uint16_t);
GPU_TYPE(u8, uint8_t);
GPU_TYPE(i64, int64_t);
typedef struct mox_gpu_wide {
    GPU_ALIGNED(16) uint32_t w[4];
} mox_gpu_wide;
GPU_TYPE(wide, mox_gpu_wide);

#endif
