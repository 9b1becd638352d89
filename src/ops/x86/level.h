/* ops/x86/level.h -- the vector operations of simd/level.h on x86.
 *
 *   MOX_LEVEL 1  avx2        AVX2, FMA, F16C, BMI2           8 lanes
 *   MOX_LEVEL 2  avx512      + AVX-512 F, BW, VL, DQ        16 lanes
 *   MOX_LEVEL 3  avx512vnni  + VNNI, GFNI                   16 lanes
 *   MOX_LEVEL 4  amx         + squares of bytes (squares.h), products with weights only
 */
#ifndef MOX_OPS_X86_LEVEL_H
#define MOX_OPS_X86_LEVEL_H

#include "ops/simd/inline.h"
#include "tensor/dtype.h"

#include <immintrin.h>

#if MOX_LEVEL == 1
#define MOX_AT(name) MOX_PASTE(name, avx2)
#elif MOX_LEVEL == 2
#define MOX_AT(name) MOX_PASTE(name, avx512)
#elif MOX_LEVEL == 3
#define MOX_AT(name) MOX_PASTE(name, avx512vnni)
#elif MOX_LEVEL == 4 && defined(MOX_AMX)
#define MOX_AT(name) MOX_PASTE(name, amx)
#elif MOX_LEVEL == 4
#define MOX_AT(name) MOX_PASTE(name, squares)
#else
#error "MOX_LEVEL is not set"
#endif

/* Codes of 4 bits as bytes, in the order of columns. */
ALWAYS_INLINE __m128i split_nibbles(__m128i v)
{
    const __m128i mask = _mm_set1_epi8(15);
    return _mm_unpacklo_epi8(_mm_and_si128(v, mask), _mm_and_si128(_mm_srli_epi16(v, 4), mask));
}
ALWAYS_INLINE float f16_to_f32(uint16_t x) { return _cvtsh_ss(x); }
/* Eight codes of some bits each, in the low bits of a word, as bytes; mask has those bits
 * of every byte. */
ALWAYS_INLINE uint64_t spread_codes(uint64_t word, int bits, uint64_t mask)
{
    (void)bits;
    return _pdep_u64(word, mask);
}

#if MOX_LEVEL == 1

typedef __m256i vi;
typedef __m256 vf;
enum { LANES = 8, VBYTES = 32, CHAINS = 8, ROW_BLOCK = 2, ROWS_OF_TWO = 1, ROWS_OF_MORE = 1, FEW_WHOLE = 6, DOT_ANY = 0 };
enum { DOT_ADDS = 0 };
#define BLOCK_MAX 4 /* 4 sums and 4 totals of 8 rows in 16 registers */
#define SQUARES 0

ALWAYS_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
ALWAYS_INLINE vf vf_set(float x) { return _mm256_set1_ps(x); }
ALWAYS_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
ALWAYS_INLINE vf vf_load_at(const void *p) { return _mm256_castsi256_ps(_mm256_loadu_si256(p)); } /* any address */
ALWAYS_INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
ALWAYS_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
ALWAYS_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
ALWAYS_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
ALWAYS_INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
ALWAYS_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
ALWAYS_INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
ALWAYS_INLINE vf vf_permute(vf x, vi index) { return _mm256_permutevar8x32_ps(x, index); }
ALWAYS_INLINE vf vf_from_int(vi x) { return _mm256_cvtepi32_ps(x); }
ALWAYS_INLINE vf vf_bits(vi x) { return _mm256_castsi256_ps(x); }
ALWAYS_INLINE vi vi_bits(vf x) { return _mm256_castps_si256(x); }
ALWAYS_INLINE vi vf_to_int(vf x) { return _mm256_cvtps_epi32(x); } /* to nearest, ties to even */
ALWAYS_INLINE vf vf_round(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* x * 2^n for whole n in [-126, 127]; infinite for 128. */
ALWAYS_INLINE vf vf_scale2(vf x, vf n)
{
    const vi e = _mm256_slli_epi32(_mm256_add_epi32(vf_to_int(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(x, _mm256_castsi256_ps(e));
}
ALWAYS_INLINE float vf_max_of(vf x)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
ALWAYS_INLINE vf vf_load_bf16(const void *p)
{
    return vf_bits(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
ALWAYS_INLINE vf vf_load_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
ALWAYS_INLINE vi vi_load_u8_wide(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)); }

ALWAYS_INLINE vi vi_zero(void) { return _mm256_setzero_si256(); }
ALWAYS_INLINE vi vi_set(int32_t x) { return _mm256_set1_epi32(x); }
ALWAYS_INLINE vi vi_set8(int8_t x) { return _mm256_set1_epi8(x); }
ALWAYS_INLINE vi vi_load(const void *p) { return _mm256_loadu_si256(p); }
ALWAYS_INLINE void vi_store(void *p, vi x) { _mm256_storeu_si256(p, x); }
ALWAYS_INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
ALWAYS_INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
ALWAYS_INLINE vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
ALWAYS_INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
ALWAYS_INLINE vi vi_shl(vi x, int n) { return _mm256_slli_epi32(x, n); }
ALWAYS_INLINE vi vi_sar(vi x, int n) { return _mm256_srai_epi32(x, n); } /* keeps the sign */
ALWAYS_INLINE vi vi_shr4(vi x) { return _mm256_srli_epi32(x, 4); }
ALWAYS_INLINE vi vi_high_nibbles(vi x) { return _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15)); }

/* LANES codes of 4 bits, one per lane. */
ALWAYS_INLINE vi load_nibbles(const uint8_t *p)
{
    int32_t word;
    memcpy(&word, p, 4);
    return _mm256_cvtepu8_epi32(split_nibbles(_mm_cvtsi32_si128(word)));
}
/* The low byte of every lane. */
ALWAYS_INLINE void store_bytes(int8_t *out, vi x)
{
    const vi low = _mm256_shuffle_epi8(x, _mm256_set1_epi32(0x0C080400));
    const int32_t words[2] = {_mm256_extract_epi32(low, 0), _mm256_extract_epi32(low, 4)};
    memcpy(out, words, 8);
}
/* x, with all bits set in the lanes where a equals b. */
ALWAYS_INLINE vi vi_ones_where_equal(vi x, vi a, vi b) { return vi_or(x, _mm256_cmpeq_epi32(a, b)); }

/* The first n lanes, 0 < n; the rest is 0 or not written.  Memory behind them is not touched. */
ALWAYS_INLINE vi vi_first(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
ALWAYS_INLINE vf vf_load_n(const float *p, int64_t n)
{
    return n >= LANES ? vf_load(p) : _mm256_maskload_ps(p, vi_first(n));
}
ALWAYS_INLINE void vf_store_n(float *p, vf x, int64_t n)
{
    if (n >= LANES) vf_store(p, x);
    else _mm256_maskstore_ps(p, vi_first(n), x);
}
/* n <= LANES numbers of type t (BF16, F16 or F32) at any address; the rest of the vector is 0. */
ALWAYS_INLINE vf load_numbers(const uint8_t *p, mox_dtype t, int64_t n)
{
    if (n >= LANES) return t == MOX_DT_BF16 ? vf_load_bf16(p) : t == MOX_DT_F16 ? vf_load_f16(p) : vf_load_at(p);
    if (t == MOX_DT_F32) {
        uint8_t bytes[4 * LANES] = {0};
        memcpy(bytes, p, (size_t)n * 4);
        return vf_load_at(bytes);
    }
    __m128i halves;
    if (n == 4) { /* rows of 768 columns end so */
        halves = _mm_loadl_epi64((const void *)p);
    } else {
        uint16_t numbers[8] = {0};
        memcpy(numbers, p, (size_t)n * 2);
        halves = _mm_loadu_si128((const void *)numbers);
    }
    return t == MOX_DT_BF16 ? vf_bits(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)) : _mm256_cvtph_ps(halves);
}
ALWAYS_INLINE vf vf_swap_pairs(vf x) { return _mm256_permute_ps(x, 0xB1); } /* 1 0 3 2 ... */
/* Bit l: lane l is above the limit (NaN is not). */
ALWAYS_INLINE unsigned vf_above(vf x, vf limit) { return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(x, limit, _CMP_GT_OQ)); }
/* v where x is above the limit, else 0. */
ALWAYS_INLINE vf vf_where_above(vf v, vf x, vf limit) { return _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_GT_OQ), v); }
/* a where bit 0 of n is clear, b where it is set. */
ALWAYS_INLINE vf vf_choose_odd(vf a, vf b, vi n) { return _mm256_blendv_ps(a, b, vf_bits(vi_shl(n, 31))); }
/* x - n (high + low) in double, where n = round(x per) is below 2^31. */
ALWAYS_INLINE vf vf_reduce(vf x, double per, double high, double low, vi *n)
{
    __m128i q[2];
    __m128 r[2];
    for (int i = 0; i < 2; i++) {
        const __m256d wide = _mm256_cvtps_pd(i ? _mm256_extractf128_ps(x, 1) : _mm256_castps256_ps128(x));
        const __m256d whole = _mm256_round_pd(_mm256_mul_pd(wide, _mm256_set1_pd(per)),
                                              _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m256d rest = _mm256_fnmadd_pd(whole, _mm256_set1_pd(high), wide);
        r[i] = _mm256_cvtpd_ps(_mm256_fnmadd_pd(whole, _mm256_set1_pd(low), rest));
        q[i] = _mm256_cvtpd_epi32(whole);
    }
    *n = _mm256_set_m128i(q[1], q[0]);
    return _mm256_set_m128(r[1], r[0]);
}
/* v, with every NaN made the quiet one of its sign. */
ALWAYS_INLINE vf vf_plain_nan(vf v)
{
    const vf nan = _mm256_or_ps(_mm256_and_ps(v, vf_set(-0.0f)), _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)));
    return _mm256_blendv_ps(v, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}
ALWAYS_INLINE void vf_store_f16(void *p, vf x) { _mm_storeu_si128(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }

/* Products of vectors in registers (simd/online.h): KCOLS columns of each of SHARE vectors
 * side by side, and DOT_KEYS other vectors at a time. */
enum { SHARE = 1, KCOLS = 8, DOT_KEYS = 2 };
ALWAYS_INLINE vf vf_repeat_at(const void *p) { return vf_load_at(p); } /* KCOLS numbers, SHARE times */
ALWAYS_INLINE vf vf_repeat_f16(const void *p) { return vf_load_f16(p); }
ALWAYS_INLINE vi vi_repeat_i8(const void *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64(p)); }
ALWAYS_INLINE vi vi_load_i8_wide(const void *p) { return vi_repeat_i8(p); }

/* x, or 0 where by is below the limit (NaN is not). */
ALWAYS_INLINE vf vf_zero_below(vf x, vf by, vf limit) { return _mm256_and_ps(x, _mm256_cmp_ps(by, limit, _CMP_NLT_UQ)); }

/* Lane l of x[j] = rows[l][j], j < 4, and back. */
ALWAYS_INLINE void vf_transpose4(vf x[4])
{
    const vf a = _mm256_unpacklo_ps(x[0], x[1]), b = _mm256_unpacklo_ps(x[2], x[3]);
    const vf c = _mm256_unpackhi_ps(x[0], x[1]), d = _mm256_unpackhi_ps(x[2], x[3]);
    x[0] = _mm256_shuffle_ps(a, b, 0x44);
    x[1] = _mm256_shuffle_ps(a, b, 0xEE);
    x[2] = _mm256_shuffle_ps(c, d, 0x44);
    x[3] = _mm256_shuffle_ps(c, d, 0xEE);
}
ALWAYS_INLINE void vf_load_columns(const float *const rows[LANES], int64_t i, vf x[4])
{
    for (int e = 0; e < 4; e++) x[e] = _mm256_set_m128(_mm_loadu_ps(rows[4 + e] + i), _mm_loadu_ps(rows[e] + i));
    vf_transpose4(x);
}
ALWAYS_INLINE void vf_store_columns(float *const rows[LANES], int64_t i, vf x[4])
{
    vf_transpose4(x);
    for (int e = 0; e < 4; e++) {
        _mm_storeu_ps(rows[e] + i, _mm256_castps256_ps128(x[e]));
        _mm_storeu_ps(rows[4 + e] + i, _mm256_extractf128_ps(x[e], 1));
    }
}
/* A square of quads of lanes: quad q of x[g] and quad g of x[q] change places. */
ALWAYS_INLINE void vi_transpose_quads(vi x[LANES / 4])
{
    const vi a = x[0];
    x[0] = _mm256_permute2x128_si256(a, x[1], 0x20);
    x[1] = _mm256_permute2x128_si256(a, x[1], 0x31);
}

#else

typedef __m512i vi;
typedef __m512 vf;
enum { LANES = 16, VBYTES = 64, CHAINS = 16, ROW_BLOCK = 4, ROWS_OF_TWO = 4, ROWS_OF_MORE = 2, FEW_WHOLE = 4, DOT_ANY = MOX_LEVEL >= 3 };
enum { DOT_ADDS = MOX_LEVEL >= 3 };
#define BLOCK_MAX 12
#define SQUARES (MOX_LEVEL >= 4)
#if SQUARES
#include "ops/x86/squares.h"
#endif

ALWAYS_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
ALWAYS_INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
ALWAYS_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
ALWAYS_INLINE vf vf_load_at(const void *p) { return _mm512_loadu_ps(p); } /* any address */
ALWAYS_INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
ALWAYS_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
ALWAYS_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
ALWAYS_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
ALWAYS_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
ALWAYS_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
ALWAYS_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
ALWAYS_INLINE vf vf_permute(vf x, vi index) { return _mm512_permutexvar_ps(index, x); }
ALWAYS_INLINE vf vf_from_int(vi x) { return _mm512_cvtepi32_ps(x); }
ALWAYS_INLINE vf vf_bits(vi x) { return _mm512_castsi512_ps(x); }
ALWAYS_INLINE vi vi_bits(vf x) { return _mm512_castps_si512(x); }
ALWAYS_INLINE vi vf_to_int(vf x) { return _mm512_cvtps_epi32(x); }
ALWAYS_INLINE vf vf_round(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
ALWAYS_INLINE vf vf_scale2(vf x, vf n) { return _mm512_scalef_ps(x, n); }
ALWAYS_INLINE float vf_max_of(vf x) { return _mm512_reduce_max_ps(x); }
ALWAYS_INLINE vf vf_load_bf16(const void *p)
{
    return vf_bits(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
ALWAYS_INLINE vf vf_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
ALWAYS_INLINE vi vi_load_u8_wide(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)); }

ALWAYS_INLINE vi vi_zero(void) { return _mm512_setzero_si512(); }
ALWAYS_INLINE vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
ALWAYS_INLINE vi vi_set8(int8_t x) { return _mm512_set1_epi8(x); }
ALWAYS_INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
ALWAYS_INLINE void vi_store(void *p, vi x) { _mm512_storeu_si512(p, x); }
ALWAYS_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
ALWAYS_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
ALWAYS_INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
ALWAYS_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
ALWAYS_INLINE vi vi_shl(vi x, int n) { return _mm512_slli_epi32(x, (unsigned)n); }
ALWAYS_INLINE vi vi_sar(vi x, int n) { return _mm512_srai_epi32(x, (unsigned)n); }
ALWAYS_INLINE vi vi_shr4(vi x) { return _mm512_srli_epi32(x, 4); }
ALWAYS_INLINE vi vi_high_nibbles(vi x)
{
#if MOX_LEVEL >= 3 /* one instruction: a byte shifted right by four as a bit matrix */
    return _mm512_gf2p8affine_epi64_epi8(x, _mm512_set1_epi64(0x1020408000000000), 0);
#else
    return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15));
#endif
}

ALWAYS_INLINE vi load_nibbles(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(split_nibbles(_mm_loadl_epi64((const void *)p)));
}
ALWAYS_INLINE void store_bytes(int8_t *out, vi x) { _mm_storeu_si128((void *)out, _mm512_cvtepi32_epi8(x)); }
ALWAYS_INLINE vi vi_ones_where_equal(vi x, vi a, vi b) { return _mm512_mask_set1_epi32(x, _mm512_cmpeq_epi32_mask(a, b), -1); }

ALWAYS_INLINE __mmask16 first_lanes(int64_t n) { return (__mmask16)((1u << n) - 1); }
ALWAYS_INLINE vf vf_load_n(const float *p, int64_t n)
{
    return n >= LANES ? vf_load(p) : _mm512_maskz_loadu_ps(first_lanes(n), p);
}
ALWAYS_INLINE void vf_store_n(float *p, vf x, int64_t n)
{
    if (n >= LANES) vf_store(p, x);
    else _mm512_mask_storeu_ps(p, first_lanes(n), x);
}
ALWAYS_INLINE vf load_numbers(const uint8_t *p, mox_dtype t, int64_t n)
{
    if (n >= LANES) return t == MOX_DT_BF16 ? vf_load_bf16(p) : t == MOX_DT_F16 ? vf_load_f16(p) : vf_load_at(p);
    const __mmask16 mask = first_lanes(n);
    if (t == MOX_DT_F32) return _mm512_maskz_loadu_ps(mask, p);
    const __m256i halves = _mm256_maskz_loadu_epi16(mask, p);
    if (t == MOX_DT_F16) return _mm512_cvtph_ps(halves);
    return vf_bits(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
ALWAYS_INLINE vf vf_swap_pairs(vf x) { return _mm512_permute_ps(x, 0xB1); }
ALWAYS_INLINE unsigned vf_above(vf x, vf limit) { return _mm512_cmp_ps_mask(x, limit, _CMP_GT_OQ); }
ALWAYS_INLINE vf vf_where_above(vf v, vf x, vf limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_GT_OQ), v);
}
ALWAYS_INLINE vf vf_choose_odd(vf a, vf b, vi n) { return _mm512_mask_mov_ps(a, _mm512_test_epi32_mask(n, vi_set(1)), b); }
ALWAYS_INLINE vf vf_reduce(vf x, double per, double high, double low, vi *n)
{
    __m256i q[2];
    __m256 r[2];
    for (int i = 0; i < 2; i++) {
        const __m512d wide = _mm512_cvtps_pd(i ? _mm512_extractf32x8_ps(x, 1) : _mm512_castps512_ps256(x));
        const __m512d whole = _mm512_roundscale_pd(_mm512_mul_pd(wide, _mm512_set1_pd(per)),
                                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m512d rest = _mm512_fnmadd_pd(whole, _mm512_set1_pd(high), wide);
        r[i] = _mm512_cvtpd_ps(_mm512_fnmadd_pd(whole, _mm512_set1_pd(low), rest));
        q[i] = _mm512_cvtpd_epi32(whole);
    }
    *n = _mm512_inserti64x4(_mm512_castsi256_si512(q[0]), q[1], 1);
    return _mm512_insertf32x8(_mm512_castps256_ps512(r[0]), r[1], 1);
}
ALWAYS_INLINE vf vf_plain_nan(vf v)
{
    const vf nan = _mm512_or_ps(_mm512_and_ps(v, vf_set(-0.0f)), _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000)));
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), nan);
}
ALWAYS_INLINE void vf_store_f16(void *p, vf x)
{
    _mm256_storeu_si256(p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

enum { SHARE = 2, KCOLS = 8, DOT_KEYS = 4 };
ALWAYS_INLINE vf vf_repeat_at(const void *p) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(p)); }
ALWAYS_INLINE vf vf_repeat_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_broadcastsi128_si256(_mm_loadu_si128(p)));
}
ALWAYS_INLINE vi vi_repeat_i8(const void *p)
{
    const __m128i codes = _mm_loadl_epi64(p);
    return _mm512_cvtepi8_epi32(_mm_unpacklo_epi64(codes, codes));
}
ALWAYS_INLINE vi vi_load_i8_wide(const void *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(p)); }
ALWAYS_INLINE vf vf_zero_below(vf x, vf by, vf limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(by, limit, _CMP_NLT_UQ), x);
}

ALWAYS_INLINE void vf_transpose4(vf x[4])
{
    const vf a = _mm512_unpacklo_ps(x[0], x[1]), b = _mm512_unpacklo_ps(x[2], x[3]);
    const vf c = _mm512_unpackhi_ps(x[0], x[1]), d = _mm512_unpackhi_ps(x[2], x[3]);
    x[0] = _mm512_shuffle_ps(a, b, 0x44);
    x[1] = _mm512_shuffle_ps(a, b, 0xEE);
    x[2] = _mm512_shuffle_ps(c, d, 0x44);
    x[3] = _mm512_shuffle_ps(c, d, 0xEE);
}
ALWAYS_INLINE void vf_load_columns(const float *const rows[LANES], int64_t i, vf x[4])
{
    for (int e = 0; e < 4; e++) {
        x[e] = _mm512_castps128_ps512(_mm_loadu_ps(rows[e] + i));
        x[e] = _mm512_insertf32x4(x[e], _mm_loadu_ps(rows[4 + e] + i), 1);
        x[e] = _mm512_insertf32x4(x[e], _mm_loadu_ps(rows[8 + e] + i), 2);
        x[e] = _mm512_insertf32x4(x[e], _mm_loadu_ps(rows[12 + e] + i), 3);
    }
    vf_transpose4(x);
}
ALWAYS_INLINE void vf_store_columns(float *const rows[LANES], int64_t i, vf x[4])
{
    vf_transpose4(x);
    for (int e = 0; e < 4; e++) {
        _mm_storeu_ps(rows[e] + i, _mm512_castps512_ps128(x[e]));
        _mm_storeu_ps(rows[4 + e] + i, _mm512_extractf32x4_ps(x[e], 1));
        _mm_storeu_ps(rows[8 + e] + i, _mm512_extractf32x4_ps(x[e], 2));
        _mm_storeu_ps(rows[12 + e] + i, _mm512_extractf32x4_ps(x[e], 3));
    }
}
ALWAYS_INLINE void vi_transpose_quads(vi x[LANES / 4])
{
    const vi a = _mm512_shuffle_i32x4(x[0], x[1], 0x88), b = _mm512_shuffle_i32x4(x[2], x[3], 0x88);
    const vi c = _mm512_shuffle_i32x4(x[0], x[1], 0xDD), d = _mm512_shuffle_i32x4(x[2], x[3], 0xDD);
    x[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    x[1] = _mm512_shuffle_i32x4(c, d, 0x88);
    x[2] = _mm512_shuffle_i32x4(a, b, 0xDD);
    x[3] = _mm512_shuffle_i32x4(c, d, 0xDD);
}

#endif

/* The sums over the lanes of four vectors, and of one; the order of the additions is
 * the same for both. */
ALWAYS_INLINE vf vf_sum_quads(vf a, vf b, vf c, vf d) /* lane e of four: the sum of those four of the e-th vector */
{
#if MOX_LEVEL == 1
    const vf ab = vf_add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const vf cd = vf_add(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    return vf_add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
#else
    const vf ab = vf_add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const vf cd = vf_add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    return vf_add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
#endif
}
ALWAYS_INLINE __m128 vf_sum4(vf a, vf b, vf c, vf d)
{
    const vf quads = vf_sum_quads(a, b, c, d);
#if MOX_LEVEL == 1
    const __m256 all = quads;
#else
    const __m256 all = _mm256_add_ps(_mm512_castps512_ps256(quads), _mm512_extractf32x8_ps(quads, 1));
#endif
    return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}
ALWAYS_INLINE void vf_store_sum4(float *p, vf a, vf b, vf c, vf d) { _mm_storeu_ps(p, vf_sum4(a, b, c, d)); }
ALWAYS_INLINE float vf_sum(vf x) { return _mm_cvtss_f32(vf_sum4(x, vf_zero(), vf_zero(), vf_zero())); }

/* x, in a register: keeps a compiler from loading it again for every use. */
ALWAYS_INLINE vi vi_kept(vi x)
{
    __asm__("" : "+v"(x));
    return x;
}

/* p[(v * SHARE + s) * stride + j] = the sum of the s-th KCOLS lanes of acc[v][j] (plus what is
 * there), j < DOT_KEYS, v < n, where n is 2 or 4. */
ALWAYS_INLINE void store_dots(const int n, vf acc[4][DOT_KEYS], bool add, float *p, int64_t stride)
{
#pragma GCC unroll 2
    for (int v = 0; v < n; v += 2) {
#if MOX_LEVEL == 1
        const __m128 sums = vf_sum4(acc[v][0], acc[v][1], acc[v + 1][0], acc[v + 1][1]);
        float *low = p + v * stride, *high = low + stride;
        __m128 old = _mm_setzero_ps();
        if (add) old = _mm_castsi128_ps(_mm_unpacklo_epi64(_mm_loadl_epi64((const void *)low), _mm_loadl_epi64((const void *)high)));
        const __m128i all = _mm_castps_si128(_mm_add_ps(old, sums));
        _mm_storel_epi64((void *)low, all);
        _mm_storel_epi64((void *)high, _mm_unpackhi_epi64(all, all));
#else
        const vf a = vf_sum_quads(acc[v][0], acc[v][1], acc[v][2], acc[v][3]);
        const vf b = vf_sum_quads(acc[v + 1][0], acc[v + 1][1], acc[v + 1][2], acc[v + 1][3]);
        const vf sums = vf_add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
        const __m128 parts[4] = {_mm512_castps512_ps128(sums), _mm512_extractf32x4_ps(sums, 1),
                                 _mm512_extractf32x4_ps(sums, 2), _mm512_extractf32x4_ps(sums, 3)};
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            float *to = p + (2 * v + i) * stride;
            _mm_storeu_ps(to, add ? _mm_add_ps(_mm_loadu_ps(to), parts[i]) : parts[i]);
        }
#endif
    }
}

/* ORDERED columns, so that of each eight the even ones come first, then the odd ones. */
enum { ORDERED = LANES };
ALWAYS_INLINE void vf_order_columns(const float *x, float *out)
{
    static const int32_t order[16] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
    vf_store(out, vf_permute(vf_load(x), vi_load(order)));
}

/* Lane numbers divided by 2^n. */
ALWAYS_INLINE vi vi_lanes_shr(int n)
{
    static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#if MOX_LEVEL == 1
    return _mm256_srl_epi32(vi_load(lanes), _mm_cvtsi32_si128(n));
#else
    return _mm512_srl_epi32(vi_load(lanes), _mm_cvtsi32_si128(n));
#endif
}

/* A chunk of 2 VBYTES columns has 8 in each lane; which unit of 2^shift columns each lane
 * belongs to, from the units of the chunk before (a chunk is whole units here). */
ALWAYS_INLINE vi next_units(vi before, int64_t chunk, int shift)
{
    (void)chunk;
    return vi_add(before, vi_set(2 * VBYTES >> shift));
}

/* acc + the sums of four products u8 * s8 in each lane.  Without VNNI two products
 * share a 16-bit sum, so the unsigned side must be below 128: see vi_dot_wide. */
ALWAYS_INLINE vi vi_dot(vi acc, vi unsigned8, vi signed8)
{
#if MOX_LEVEL >= 3
    return _mm512_dpbusd_epi32(acc, unsigned8, signed8);
#elif MOX_LEVEL == 2
    return _mm512_add_epi32(acc, _mm512_madd_epi16(_mm512_maddubs_epi16(unsigned8, signed8), _mm512_set1_epi16(1)));
#else
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(unsigned8, signed8), _mm256_set1_epi16(1)));
#endif
}

/* Codes below 16 with one plane of activations, and with two: 256 * x + y.  Without VNNI
 * the products of two pairs fit a 16-bit sum. */
#if MOX_LEVEL >= 3
ALWAYS_INLINE vi vi_dot_nibbles(vi low, vi high, vi even, vi odd) { return vi_dot(vi_dot(vi_zero(), low, even), high, odd); }
ALWAYS_INLINE vi vi_dot_nibbles2(vi low, vi high, vi even, vi odd, vi even1, vi odd1)
{
    return vi_dot(vi_dot(vi_shl(vi_dot_nibbles(low, high, even, odd), 8), low, even1), high, odd1);
}
#else
#if MOX_LEVEL == 2
#define DOT_16(low, high, even, odd) _mm512_add_epi16(_mm512_maddubs_epi16(low, even), _mm512_maddubs_epi16(high, odd))
#define TIMES(sums, factor) _mm512_madd_epi16(sums, _mm512_set1_epi16(factor))
#else
#define DOT_16(low, high, even, odd) _mm256_add_epi16(_mm256_maddubs_epi16(low, even), _mm256_maddubs_epi16(high, odd))
#define TIMES(sums, factor) _mm256_madd_epi16(sums, _mm256_set1_epi16(factor))
#endif
ALWAYS_INLINE vi vi_dot_nibbles(vi low, vi high, vi even, vi odd) { return TIMES(DOT_16(low, high, even, odd), 1); }
ALWAYS_INLINE vi vi_dot_nibbles2(vi low, vi high, vi even, vi odd, vi even1, vi odd1)
{
    return vi_add(TIMES(DOT_16(low, high, even, odd), 256), TIMES(DOT_16(low, high, even1, odd1), 1));
}
#undef DOT_16
#undef TIMES
#endif

/* vi_dot for any unsigned bytes. */
ALWAYS_INLINE vi vi_dot_wide(vi acc, vi unsigned8, vi signed8)
{
#if MOX_LEVEL >= 3
    return vi_dot(acc, unsigned8, signed8);
#else
    const vi high = vi_dot(vi_zero(), vi_high_nibbles(unsigned8), signed8);
    return vi_dot(vi_add(acc, vi_shl(high, 4)), vi_and(unsigned8, vi_set8(15)), signed8);
#endif
}

/* acc += the products of LANES rows with word t of n, the same for every row.
 * wide: codes may be 128 and more. */
ALWAYS_INLINE vi dot_broadcast(vi acc, vi codes, const uint8_t *words, int t, int n, const bool wide)
{
    (void)n;
#if MOX_LEVEL >= 3 && defined(__GNUC__)
    (void)wide;
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(codes), "m"(*(const int32_t(*)[1])(const void *)(words + 4 * t)));
    return acc;
#else
    int32_t word;
    memcpy(&word, words + 4 * t, 4);
    return wide ? vi_dot_wide(acc, codes, vi_set(word)) : vi_dot(acc, codes, vi_set(word));
#endif
}

#endif
