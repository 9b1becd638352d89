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
 *   GPU_KERNEL_HASTY(name, threads) {}   an early one that lets the launch behind it begin at once
 *   GPU_KERNEL_DENSE(name, threads, groups) {}, GPU_KERNEL_EARLY_DENSE, GPU_KERNEL_HASTY_DENSE   the same, with so
 *                                  few registers that so many groups are on a processor of the GPU at once
 *   GPU_REHEARSE(real, pays) {}    in an early kernel: where `pays` is not 0, goes twice through what is behind the wait, first with real = 0, which makes
 *                                  nothing, but the GPU then has the instructions at hand when it counts.  The body begins with
 *                                  if (real != 0) { gpu_barrier(); gpu_previous(); } and does what R7 forbids only if real is not 0.  It pays where groups begin
 *                                  long before the launch in front ends; targets without early kernels go once
 *   GPU_FN type name(...)          a function that kernels call
 *   gpu_group_x() _y() _z()        int64, which group this is.  Kernel bodies only, as is
 *   gpu_thread()                   int32, which thread of the group this is
 *
 *   GPU_GLOBAL(t) *p               memory of the device; t is f32 i32 u32 u16 u8 i64 u64 or GPU_TYPE's
 *   GPU_SHARED(t) *p               memory of the group
 *   GPU_PRIVATE(t) *p              a variable of the thread
 *   GPU_CONSTANT(type) *p          parameters
 *   GPU_SHARED_ARRAY(t, name, n)   declares shared memory, in kernel bodies only; undefined at first
 *   GPU_DEEP                       a constant: shared arrays may have 48 KiB, see R6
 *   GPU_TYPE(t, type)              makes a struct usable as t; GPU_CAST(t, p) is p as const GPU_GLOBAL(t) *,
 *                                  and GPU_SHARED_CAST(t, p) is p as GPU_SHARED(t) *
 *   gpu_load(p, i)                 reads p[i] of global or shared memory; there is no other way
 *   gpu_store(p, i, v)             writes it
 *   gpu_bytes_u8 _u16 _u32(p, at)  reads at byte `at` of a const GPU_GLOBAL(u8) *, whatever the
 *                                  alignment: weights.  Memory that no kernel writes while this one runs
 *
 *   gpu_bytes_u64(p, at)           the same at a multiple of 8, and gpu_bytes_quad(p, at, &v) at one of 16:
 *                                  weights that a launch reads once.  v is a gpu_quad, u32 w[4];
 *                                  as an element it is a `quad`
 *
 *   gpu_barrier()                  orders shared memory: what threads of the group stored before it,
 *                                  all of them see after it
 *   gpu_barrier_all()              orders global memory as well.  A plain barrier does not: Metal
 *                                  leaves stores to device memory invisible to other waves
 *   gpu_lane_sum(v) gpu_lane_max(v)      over the 32 lanes of the wave, as a butterfly over
 *                                  distances 16, 8, 4, 2, 1: the same bytes on every target.
 *                                  The maximum leaves NaNs out, as gpu_max does.  gpu_lane_max_u32(v) is of u32
 *   gpu_shuffle(v, lane) gpu_shuffle_i32(v, lane)   v of another lane
 *
 *   gpu_mma(c, a0, a1, a2, a3, b0, b1)   of the whole wave: C += A B, A 16 x 16, B 16 x 8 of f16, C of f32,
 *                                  sums in an order that is the target's.  Lane 4 g + t holds, as pairs with
 *                                  the first number in the low half: a0 = A[g, 2t..], a1 = A[g + 8, 2t..],
 *                                  a2 = A[g, 2t + 8..], a3 = A[g + 8, 2t + 8..]; b0 = B[2t.., g],
 *                                  b1 = B[2t + 8.., g]; c[0..1] = C[g, 2t..], c[2..3] = C[g + 8, 2t..]
 *   gpu_mma_bytes(c, a0, a1, a2, a3, b0, b1)   of the whole wave: C += A B, A 16 x 32 of u8, B 32 x 8 of i8, C of i32.
 *                                  Words are four bytes, the first one in the low bits: a0 = A[g, 4t..], a1 = A[g + 8, 4t..],
 *                                  a2 = A[g, 4t + 16..], a3 = A[g + 8, 4t + 16..]; b0 = B[4t.., g], b1 = B[4t + 16.., g];
 *                                  c as with gpu_mma.  Of one call, sums are exact up to 2^24
 *   gpu_byte_of_each(a, b, c, d, i)   byte i, a constant, of each word: those of a word
 *
 * Tiles: 16 x 16 numbers held by a wave, and their product, f16 x f16 + f32.  Each word is for
 * the whole wave (R1); row, col and width are the same in all lanes, and lane is the thread's.
 *   gpu_tile_a, gpu_tile_b         operands, f16; gpu_tile_c: sums, f32.  Variables of a thread
 *   gpu_tile_at(row, col, width)   where a number of a matrix with rows of `width` numbers is in its
 *                                  GPU_SHARED(u16) array: int32; width is 32, 64, 128 or 256.  Eight
 *                                  numbers from a multiple of eight are neighbours, so a quad; else
 *                                  the order is the target's
 *   gpu_tile_load_a(p, row, col, width, lane)          A[i, k] = matrix[row + i, col + k]
 *   gpu_tile_load_b(p, row, col, width, lane)          B[k, j] = matrix[row + j, col + k]
 *   gpu_tile_load_b_across(p, row, col, width, lane)   B[k, j] = matrix[row + k, col + j]
 *   gpu_tile_mma(&c, a, b)         C += A B; sums are f32 in an order that is the target's
 *   gpu_tile_zero()                a C; gpu_tile_a_of(c) is C rounded to f16, as an A
 *   gpu_tile_get(c, i) gpu_tile_set(&c, i, v)          one of the eight numbers of C that a lane has
 *   gpu_tile_row(lane, i) gpu_tile_col(lane, i)        where it is in C.  2 i and 2 i + 1 are neighbours
 *                                  in a row; (i & 2) == 0 for one row, != 0 for the other, eight below;
 *                                  (i & 4) != 0 is eight columns to the right.  So a lane has the
 *                                  columns 2 q, 2 q + 1, 2 q + 8, 2 q + 9 for some q < 4
 *   gpu_tile_row_sum(v, lane) gpu_tile_row_max(v, lane)   over the four lanes that have numbers of
 *                                  the same rows
 *   gpu_quad                       16 bytes, w[4]: gpu_load_quad(p, i), gpu_store_quad(p, i, q) at element
 *                                  i of any p, at a multiple of 16; gpu_is_aligned(p, n) asks
 *   gpu_fma_f16x2(a, b, c)         a b + c of pairs, rounded once
 *   gpu_tile_a_set(&a, i, pair)    the numbers 2 i and 2 i + 1 that a lane has of A, where C has them; i < 4
 *   gpu_copy_quad(to, i, from, j, there)   begins to copy a quad of global u16 to shared memory, or
 *                                  zeros where it is not there.  gpu_copy_commit() ends a batch;
 *                                  gpu_copy_wait(n), n a constant, waits for all but the last n
 *                                  batches of this thread.  Other threads see them after a barrier
 *   gpu_copy_pair(to, i, from)     likewise 8 bytes of weights to a shared u64
 *
 *   GPU_SHARED_TILES(name, n)      a GPU_SHARED_ARRAY of u16 with rows of 64 numbers that the words below may read
 *   gpu_rows_mma(c, a, p, col, n, lane)   C_j += A B_j for j < n, where c is an array of them, a is this wave's, and
 *                                  B_j is what gpu_tile_load_b(p, 16 j, col, 64, lane) loads.  n is a constant:
 *                                  1, 2, 4 or 8.  Four waves of the group, 4 i to 4 i + 3, come here together with the same p,
 *                                  col and n.  It may end later: gpu_rows_begin() stands in front of some, gpu_rows_end()
 *                                  behind them, and gpu_rows_wait(n), n a constant, waits for all but the last n of
 *                                  these batches; until then nobody touches their c, a or p
 *   gpu_rows_barrier()             a gpu_barrier() that also orders copies and stores before gpu_rows_mma
 *
 *   gpu_exp2(v)                    to 2^-21 or so; may be 0 below 2^-126
 *   gpu_rsqrt(v)                   1 / sqrt(v), to 2^-21 or so
 *   gpu_exp gpu_log gpu_sqrt gpu_sin gpu_cos gpu_rint gpu_abs gpu_max gpu_isnan, GPU_INFINITY
 *   gpu_bits_f32 gpu_f32_bits gpu_f16_to_f32 gpu_f32_to_f16
 *   gpu_pack_f16(low, high)        two f16, rounded, in a u32: a pair; which NaN a NaN becomes is the target's
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
 *   R6  shared arrays of a kernel have 32 KiB at most, all together, and 48 where GPU_DEEP is true.
 *   R7  before gpu_previous() a GPU_KERNEL_EARLY stores nothing to global memory and loads nothing that
 *       the launch in front of it stored, nor, if that one is hasty, what the one in front of both did, and so on;
 *       what older ones stored is there.  All threads reach it.
 *   R8  no name is a word of a target's language: thread, device, constant, kernel, half and their kin.
 * emu finds every breach of R1, R2, R5, R6 and R7, and reads of shared memory that nobody wrote;
 * clang finds breaches of R6 and R8 in the text for Metal (tests/metal). */
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
GPU_TYPE(u64, uint64_t);
typedef struct mox_gpu_quad {
    GPU_ALIGNED(16) uint32_t w[4];
} mox_gpu_quad;
GPU_TYPE(quad, mox_gpu_quad);

#if defined(MOX_GPU_METAL)
#include "dev/gpu/tile_metal.h"
#include "dev/gpu/tile_bytes.h"
#elif defined(__CUDACC__)
#include "dev/gpu/tile_cuda.h"
#include "dev/gpu/rows_cuda.h"
#elif defined(MOX_GPU_EMU)
#include "dev/gpu/tile_emu.h"
#include "dev/gpu/tile_bytes.h"
#endif

#endif
