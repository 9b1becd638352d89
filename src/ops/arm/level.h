/* ops/arm/level.h -- the vector operations of simd/level.h on 64-bit ARM.
 *
 *   MOX_LEVEL 1  neon     ARMv8.0-A
 *   MOX_LEVEL 2  dotprod  + SDOT
 *   MOX_LEVEL 3  i8mm     + USDOT
 *
 * Vectors have 16 bytes at every level and there are 32 registers.  What x86 promises
 * about NaN holds here too: maximum and minimum are comparisons, because the
 * instructions of that name make something else of a NaN. */
#ifndef MOX_OPS_ARM_LEVEL_H
#define MOX_OPS_ARM_LEVEL_H

#include "ops/simd/inline.h"
#include "tensor/dtype.h"

#include <arm_neon.h>

#if MOX_LEVEL == 1
#define MOX_AT(name) MOX_PASTE(name, neon)
#elif MOX_LEVEL == 2
#define MOX_AT(name) MOX_PASTE(name, dotprod)
#elif MOX_LEVEL == 3
#define MOX_AT(name) MOX_PASTE(name, i8mm)
#else
#error "MOX_LEVEL is not set"
#endif

typedef int32x4_t vi;
typedef float32x4_t vf;
enum { LANES = 4, VBYTES = 16, CHAINS = 16, ROW_BLOCK = 4, ROWS_OF_TWO = 2, ROWS_OF_MORE = 2, FEW_WHOLE = 6, DOT_ANY = MOX_LEVEL >= 3 };
enum { SHARE = 1, KCOLS = 4, DOT_KEYS = 4, DOT_ADDS = 0 };
#define BLOCK_MAX 12
#define SQUARES 0

ALWAYS_INLINE float f16_to_f32(uint16_t x)
{
    __fp16 half;
    memcpy(&half, &x, 2);
    return half;
}
/* Eight codes of some bits each, in the low bits of a word, as bytes; mask has those bits
 * of every byte.  The upper half of them moves to the upper half of the word, then the
 * same inside the halves. */
ALWAYS_INLINE uint64_t spread_codes(uint64_t word, int bits, uint64_t mask)
{
    const uint64_t four = ((uint64_t)1 << 4 * bits) - 1, two = (((uint64_t)1 << 2 * bits) - 1) * 0x100000001u;
    const uint64_t one = mask & 0x00FF00FF00FF00FFu;
    word = (word & four) | (word << (32 - 4 * bits) & four << 32);
    word = (word & two) | (word << (16 - 2 * bits) & two << 16);
    return (word & one) | (word << (8 - bits) & one << 8);
}

/* ---- bits and whole numbers ---- */

ALWAYS_INLINE uint8x16_t bytes_of(vi x) { return vreinterpretq_u8_s32(x); }
ALWAYS_INLINE uint32x4_t words_of(vi x) { return vreinterpretq_u32_s32(x); }

ALWAYS_INLINE vf vf_bits(vi x) { return vreinterpretq_f32_s32(x); }
ALWAYS_INLINE vi vi_bits(vf x) { return vreinterpretq_s32_f32(x); }
ALWAYS_INLINE vi vi_zero(void) { return vdupq_n_s32(0); }
ALWAYS_INLINE vi vi_set(int32_t x) { return vdupq_n_s32(x); }
ALWAYS_INLINE vi vi_set8(int8_t x) { return vreinterpretq_s32_s8(vdupq_n_s8(x)); }
ALWAYS_INLINE vi vi_load(const void *p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
ALWAYS_INLINE void vi_store(void *p, vi x) { vst1q_u8(p, bytes_of(x)); }
ALWAYS_INLINE vi vi_and(vi a, vi b) { return vandq_s32(a, b); }
ALWAYS_INLINE vi vi_or(vi a, vi b) { return vorrq_s32(a, b); }
ALWAYS_INLINE vi vi_xor(vi a, vi b) { return veorq_s32(a, b); }
ALWAYS_INLINE vi vi_add(vi a, vi b) { return vaddq_s32(a, b); }
/* As operators: the intrinsics want a constant that a function cannot promise. */
ALWAYS_INLINE vi vi_shl(vi x, int n) { return vreinterpretq_s32_u32(words_of(x) << vdupq_n_u32((uint32_t)n)); }
ALWAYS_INLINE vi vi_sar(vi x, int n) { return x >> vdupq_n_s32(n); } /* keeps the sign */
ALWAYS_INLINE vi vi_shr4(vi x) { return vreinterpretq_s32_u32(vshrq_n_u32(words_of(x), 4)); }
ALWAYS_INLINE vi vi_high_nibbles(vi x) { return vreinterpretq_s32_u8(vshrq_n_u8(bytes_of(x), 4)); }
ALWAYS_INLINE vi vi_load_u8_wide(const uint8_t *p)
{
    uint32_t word;
    memcpy(&word, p, 4);
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(word)))));
}
ALWAYS_INLINE vi vi_load_i8_wide(const void *p)
{
    uint32_t word;
    memcpy(&word, p, 4);
    return vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(word))));
}
/* x, in a register: keeps a compiler from loading it again for every use. */
ALWAYS_INLINE vi vi_kept(vi x)
{
    __asm__("" : "+w"(x));
    return x;
}
/* LANES codes of 4 bits, one per lane. */
ALWAYS_INLINE vi load_nibbles(const uint8_t *p)
{
    static const int32_t places[4] = {0, -4, -8, -12};
    uint16_t codes;
    memcpy(&codes, p, 2);
    return vandq_s32(vreinterpretq_s32_u32(vshlq_u32(vdupq_n_u32(codes), vld1q_s32(places))), vdupq_n_s32(15));
}
/* The low byte of every lane. */
ALWAYS_INLINE void store_bytes(int8_t *out, vi x)
{
    const int16x4_t halves = vmovn_s32(x);
    const uint32_t word = vget_lane_u32(vreinterpret_u32_s8(vmovn_s16(vcombine_s16(halves, halves))), 0);
    memcpy(out, &word, 4);
}
/* x, with all bits set in the lanes where a equals b. */
ALWAYS_INLINE vi vi_ones_where_equal(vi x, vi a, vi b) { return vorrq_s32(x, vreinterpretq_s32_u32(vceqq_s32(a, b))); }
/* Lane numbers divided by 2^n. */
ALWAYS_INLINE vi vi_lanes_shr(int n)
{
    static const int32_t lanes[4] = {0, 1, 2, 3};
    return vshlq_s32(vld1q_s32(lanes), vdupq_n_s32(-n));
}

/* ---- floats ---- */

ALWAYS_INLINE vf vf_zero(void) { return vdupq_n_f32(0); }
ALWAYS_INLINE vf vf_set(float x) { return vdupq_n_f32(x); }
ALWAYS_INLINE vf vf_load(const float *p) { return vld1q_f32(p); }
ALWAYS_INLINE vf vf_load_at(const void *p) { return vf_bits(vi_load(p)); } /* any address */
ALWAYS_INLINE void vf_store(float *p, vf x) { vst1q_f32(p, x); }
ALWAYS_INLINE vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
ALWAYS_INLINE vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
ALWAYS_INLINE vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
ALWAYS_INLINE vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
/* The second operand where one is NaN. */
ALWAYS_INLINE vf vf_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
ALWAYS_INLINE vf vf_min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
ALWAYS_INLINE vf vf_permute(vf x, vi index)
{
    const vi bytes = vmlaq_s32(vdupq_n_s32(0x03020100), index, vdupq_n_s32(0x04040404));
    return vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(x), bytes_of(bytes)));
}
ALWAYS_INLINE vf vf_from_int(vi x) { return vcvtq_f32_s32(x); }
ALWAYS_INLINE vi vf_to_int(vf x) { return vcvtnq_s32_f32(x); } /* to nearest, ties to even */
ALWAYS_INLINE vf vf_round(vf x) { return vrndnq_f32(x); }
/* x * 2^n for whole n in [-126, 127]; infinite for 128. */
ALWAYS_INLINE vf vf_scale2(vf x, vf n)
{
    return vmulq_f32(x, vf_bits(vi_shl(vaddq_s32(vf_to_int(n), vdupq_n_s32(127)), 23)));
}
ALWAYS_INLINE float vf_max_of(vf x) { return vmaxvq_f32(x); }
ALWAYS_INLINE vf vf_swap_pairs(vf x) { return vrev64q_f32(x); } /* 1 0 3 2 */
/* Bit l: lane l is above the limit (NaN is not). */
ALWAYS_INLINE unsigned vf_above(vf x, vf limit)
{
    static const uint32_t bits[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vcgtq_f32(x, limit), vld1q_u32(bits)));
}
/* v where x is above the limit, else 0. */
ALWAYS_INLINE vf vf_where_above(vf v, vf x, vf limit)
{
    return vf_bits(vandq_s32(vi_bits(v), vreinterpretq_s32_u32(vcgtq_f32(x, limit))));
}
/* x, or 0 where by is below the limit (NaN is not). */
ALWAYS_INLINE vf vf_zero_below(vf x, vf by, vf limit)
{
    return vf_bits(vbicq_s32(vi_bits(x), vreinterpretq_s32_u32(vcltq_f32(by, limit))));
}
/* a where bit 0 of n is clear, b where it is set. */
ALWAYS_INLINE vf vf_choose_odd(vf a, vf b, vi n) { return vbslq_f32(vtstq_s32(n, vdupq_n_s32(1)), b, a); }
/* v, with every NaN made the quiet one of its sign. */
ALWAYS_INLINE vf vf_plain_nan(vf v)
{
    const vi nan = vorrq_s32(vandq_s32(vi_bits(v), vdupq_n_s32(INT32_MIN)), vdupq_n_s32(0x7FC00000));
    return vbslq_f32(vceqq_f32(v, v), v, vf_bits(nan));
}
/* x - n (high + low) in double, where n = round(x per) is below 2^31. */
ALWAYS_INLINE vf vf_reduce(vf x, double per, double high, double low, vi *n)
{
    int64x2_t q[2];
    float64x2_t r[2];
    for (int i = 0; i < 2; i++) {
        const float64x2_t wide = i ? vcvt_high_f64_f32(x) : vcvt_f64_f32(vget_low_f32(x));
        const float64x2_t whole = vrndnq_f64(vmulq_f64(wide, vdupq_n_f64(per)));
        r[i] = vfmsq_f64(vfmsq_f64(wide, whole, vdupq_n_f64(high)), whole, vdupq_n_f64(low));
        q[i] = vcvtnq_s64_f64(whole);
    }
    *n = vcombine_s32(vmovn_s64(q[0]), vmovn_s64(q[1]));
    return vcvt_high_f32_f64(vcvt_f32_f64(r[0]), r[1]);
}

/* The sums over the lanes of four vectors, and of one; the order of the additions is
 * the same for both. */
ALWAYS_INLINE vf vf_sum4(vf a, vf b, vf c, vf d) { return vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)); }
ALWAYS_INLINE void vf_store_sum4(float *p, vf a, vf b, vf c, vf d) { vf_store(p, vf_sum4(a, b, c, d)); }
ALWAYS_INLINE float vf_sum(vf x) { return vpadds_f32(vpadd_f32(vget_low_f32(x), vget_high_f32(x))); }

/* p[v * stride + j] = the sum of the lanes of acc[v][j] (plus what is there), j < DOT_KEYS,
 * v < n, where n is 2 or 4. */
ALWAYS_INLINE void store_dots(const int n, vf acc[4][DOT_KEYS], bool add, float *p, int64_t stride)
{
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) {
        const vf sums = vf_sum4(acc[v][0], acc[v][1], acc[v][2], acc[v][3]);
        vf_store(p + v * stride, add ? vf_add(vf_load(p + v * stride), sums) : sums);
    }
}

/* ---- halves of 16 bits, and the first n lanes ---- */

ALWAYS_INLINE vf vf_load_bf16(const void *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}
ALWAYS_INLINE vf vf_load_f16(const void *p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
ALWAYS_INLINE void vf_store_f16(void *p, vf x) { vst1_u8(p, vreinterpret_u8_f16(vcvt_f16_f32(x))); }

/* KCOLS numbers, SHARE times. */
ALWAYS_INLINE vf vf_repeat_at(const void *p) { return vf_load_at(p); }
ALWAYS_INLINE vf vf_repeat_f16(const void *p) { return vf_load_f16(p); }
ALWAYS_INLINE vi vi_repeat_i8(const void *p) { return vi_load_i8_wide(p); }

/* n <= LANES numbers of type t (BF16, F16 or F32) at any address; the rest of the vector is 0. */
ALWAYS_INLINE vf load_numbers(const uint8_t *p, mox_dtype t, int64_t n)
{
    if (n >= LANES) return t == MOX_DT_BF16 ? vf_load_bf16(p) : t == MOX_DT_F16 ? vf_load_f16(p) : vf_load_at(p);
    uint8_t bytes[4 * LANES] = {0};
    const int64_t n_bytes = n * (t == MOX_DT_F32 ? 4 : 2);
    for (int64_t i = 0; i < n_bytes; i += 2) memcpy(bytes + i, p + i, 2);
    return t == MOX_DT_BF16 ? vf_load_bf16(bytes) : t == MOX_DT_F16 ? vf_load_f16(bytes) : vf_load_at(bytes);
}
/* The first n lanes, 0 < n; the rest is 0 or not written.  Memory behind them is not touched. */
ALWAYS_INLINE vf vf_load_n(const float *p, int64_t n)
{
    const float32x2_t none = vdup_n_f32(0);
    switch (n) {
    case 1: return vcombine_f32(vld1_lane_f32(p, none, 0), none);
    case 2: return vcombine_f32(vld1_f32(p), none);
    case 3: return vcombine_f32(vld1_f32(p), vld1_lane_f32(p + 2, none, 0));
    default: return vf_load(p);
    }
}
ALWAYS_INLINE void vf_store_n(float *p, vf x, int64_t n)
{
    switch (n) {
    case 1: vst1q_lane_f32(p, x, 0); break;
    case 2: vst1_f32(p, vget_low_f32(x)); break;
    case 3:
        vst1_f32(p, vget_low_f32(x));
        vst1q_lane_f32(p + 2, x, 2);
        break;
    default: vf_store(p, x); break;
    }
}

/* ---- transposing ---- */

/* Lane l of x[j] = rows[l][j], j < 4, and back. */
ALWAYS_INLINE void vf_transpose4(vf x[4])
{
    const float32x4x2_t a = vtrnq_f32(x[0], x[1]), b = vtrnq_f32(x[2], x[3]);
    for (int i = 0; i < 2; i++) {
        x[i] = vcombine_f32(vget_low_f32(a.val[i]), vget_low_f32(b.val[i]));
        x[i + 2] = vcombine_f32(vget_high_f32(a.val[i]), vget_high_f32(b.val[i]));
    }
}
/* A square of quads of lanes: there is one quad. */
ALWAYS_INLINE void vi_transpose_quads(vi x[LANES / 4]) { (void)x; }
ALWAYS_INLINE void vf_load_columns(const float *const rows[LANES], int64_t i, vf x[4])
{
    for (int e = 0; e < 4; e++) x[e] = vf_load(rows[e] + i);
    vf_transpose4(x);
}
ALWAYS_INLINE void vf_store_columns(float *const rows[LANES], int64_t i, vf x[4])
{
    vf_transpose4(x);
    for (int e = 0; e < 4; e++) vf_store(rows[e] + i, x[e]);
}

/* ORDERED columns, so that of each eight the even ones come first, then the odd ones. */
enum { ORDERED = 8 };
ALWAYS_INLINE void vf_order_columns(const float *x, float *out)
{
    const float32x4x2_t halves = vld2q_f32(x);
    vf_store(out, halves.val[0]);
    vf_store(out + 4, halves.val[1]);
}

/* ---- products of bytes ---- */

/* A chunk of 2 VBYTES columns has 8 in each lane; which unit of 2^shift columns each lane
 * belongs to, from the number of the chunk (here a chunk lies inside one unit). */
ALWAYS_INLINE vi next_units(vi before, int64_t chunk, int shift)
{
    (void)before;
    return vi_set((int32_t)(chunk * 2 * VBYTES >> shift));
}

/* acc + the sums of four products u8 * s8 in each lane.  Before USDOT the unsigned side is
 * taken for signed and, before SDOT, two products share a 16-bit sum, so it must be below
 * 128: see vi_dot_wide. */
ALWAYS_INLINE vi vi_dot(vi acc, vi unsigned8, vi signed8)
{
    const int8x16_t b = vreinterpretq_s8_s32(signed8);
#if MOX_LEVEL == 3
    return vusdotq_s32(acc, bytes_of(unsigned8), b);
#elif MOX_LEVEL == 2
    return vdotq_s32(acc, vreinterpretq_s8_s32(unsigned8), b);
#else
    const int8x16_t a = vreinterpretq_s8_s32(unsigned8);
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return vpadalq_s16(acc, vpaddq_s16(low, high));
#endif
}

/* Codes below 16 with one plane of activations, and with two: 256 * x + y.  Before SDOT
 * four products share a 16-bit sum. */
#if MOX_LEVEL == 1
ALWAYS_INLINE vi add_nibbles(vi acc, vi low, vi high, vi even, vi odd)
{
    const int8x16_t a = vreinterpretq_s8_s32(low), b = vreinterpretq_s8_s32(high);
    const int8x16_t x = vreinterpretq_s8_s32(even), y = vreinterpretq_s8_s32(odd);
    const int16x8_t first = vmlal_s8(vmull_s8(vget_low_s8(a), vget_low_s8(x)), vget_low_s8(b), vget_low_s8(y));
    const int16x8_t second = vmlal_high_s8(vmull_high_s8(a, x), b, y);
    return vpadalq_s16(acc, vpaddq_s16(first, second));
}
#else
ALWAYS_INLINE vi add_nibbles(vi acc, vi low, vi high, vi even, vi odd) { return vi_dot(vi_dot(acc, low, even), high, odd); }
#endif
ALWAYS_INLINE vi vi_dot_nibbles(vi low, vi high, vi even, vi odd) { return add_nibbles(vi_zero(), low, high, even, odd); }
ALWAYS_INLINE vi vi_dot_nibbles2(vi low, vi high, vi even, vi odd, vi even1, vi odd1)
{
    return add_nibbles(vi_shl(vi_dot_nibbles(low, high, even, odd), 8), low, high, even1, odd1);
}

/* vi_dot for any unsigned bytes. */
ALWAYS_INLINE vi vi_dot_wide(vi acc, vi unsigned8, vi signed8)
{
#if MOX_LEVEL == 3
    return vi_dot(acc, unsigned8, signed8);
#else
    const vi high = vi_dot(vi_zero(), vi_high_nibbles(unsigned8), signed8);
    return vi_dot(vi_add(acc, vi_shl(high, 4)), vi_and(unsigned8, vi_set8(15)), signed8);
#endif
}

/* acc + the products of LANES rows with word t of n, the same for every row.  Four words
 * are loaded at a time where there are four, and the instructions choose among them.
 * wide: codes may be 128 and more. */
ALWAYS_INLINE vi dot_broadcast(vi acc, vi codes, const uint8_t *words, int t, int n, const bool wide)
{
#if MOX_LEVEL >= 2
    if (!wide && t / 4 * 4 + 4 <= n) {
        const int8x16_t x = vreinterpretq_s8_s32(vi_load(words + t / 4 * 16));
#if MOX_LEVEL == 3
#define DOT(lane) vusdotq_laneq_s32(acc, bytes_of(codes), x, lane)
#else
#define DOT(lane) vdotq_laneq_s32(acc, vreinterpretq_s8_s32(codes), x, lane)
#endif
        switch (t % 4) {
        case 0: return DOT(0);
        case 1: return DOT(1);
        case 2: return DOT(2);
        default: return DOT(3);
        }
#undef DOT
    }
#endif
    (void)n;
    int32_t word;
    memcpy(&word, words + 4 * t, 4);
    return wide ? vi_dot_wide(acc, codes, vi_set(word)) : vi_dot(acc, codes, vi_set(word));
}

#endif
