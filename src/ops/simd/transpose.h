/* ops/simd/transpose.h -- a square of LANES x LANES words of 32 bits, in registers. */
#ifndef MOX_OPS_SIMD_TRANSPOSE_H
#define MOX_OPS_SIMD_TRANSPOSE_H

#include "ops/simd/level.h"

#if MOX_LEVEL == 1
ALWAYS_INLINE void transpose(vi r[LANES])
{
    vi a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        b[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        r[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}
#else
ALWAYS_INLINE void transpose(vi r[LANES])
{
    vi a[16];
    for (int i = 0; i < 8; i++) {
        a[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        a[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        a[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        a[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(a[i], a[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(a[i], a[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(a[i + 4], a[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(a[i + 4], a[i + 12], 0xdd);
    }
}
#endif

#endif
