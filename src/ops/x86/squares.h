/* ops/x86/squares.h -- products of small squares of bytes, in the tile registers of AMX.
 *
 * sums[row][lane] = sum over k of codes[row][k] * acts[k][lane] for 16 rows of `unit` codes (32 or 64, unsigned) and up to
 * 16 lanes of signed bytes, which lie as [word of 4 k][lane][4].
 *
 * Without MOX_AMX the same is plain C: so a processor that lacks it checks everything around these instructions
 * (tests/check). */
#ifndef MOX_OPS_X86_SQUARES_H
#define MOX_OPS_X86_SQUARES_H

#include "ops/simd/inline.h"

#include <immintrin.h>
#include <stdbool.h>

enum { SQUARE_ROWS = 16, SQUARE_LANES = 16, SQUARE_SUMS = SQUARE_ROWS * SQUARE_LANES };

/* What the registers are for.  Sums of a row lie SQUARE_LANES apart, however many lanes there are. */
typedef struct squares_shape {
    int64_t unit, lanes; /* 0: none yet */
} squares_shape;

/* Shapes the registers, unless they have this shape; base/cpu.c asked the system for them. */
ALWAYS_INLINE void squares_begin(squares_shape *s, int64_t unit, int64_t lanes)
{
    if (s->unit == unit && s->lanes == lanes) return;
    *s = (squares_shape){unit, lanes};
#ifdef MOX_AMX
    enum { SUMS = 0, CODES_0 = 4, ACTS_0, CODES_1, ACTS_1 };
    _Alignas(64) struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = SUMS; i < CODES_0; i++) config.rows[i] = SQUARE_ROWS, config.row_bytes[i] = (uint16_t)(4 * lanes);
    for (int i = CODES_0; i <= CODES_1; i += 2) config.rows[i] = SQUARE_ROWS, config.row_bytes[i] = (uint16_t)unit;
    for (int i = ACTS_0; i <= ACTS_1; i += 2) config.rows[i] = (uint8_t)(unit / 4), config.row_bytes[i] = (uint16_t)(4 * lanes);
    __asm__ volatile("" : : "r"(&config) : "memory"); /* gcc takes it that only the first bytes are read */
    _tile_loadconfig(&config);
#endif
}

/* Gives the registers back: a thread that is switched saves no more of them. */
ALWAYS_INLINE void squares_end(const squares_shape *s)
{
#ifdef MOX_AMX
    if (s->unit) _tile_release();
#else
    (void)s;
#endif
}

/* One or two units, whose codes lie one square after the other, each row by row; row_bytes from a word of lanes to the
 * next. */
ALWAYS_INLINE void squares_multiply(const squares_shape *s, const uint8_t *codes, const uint8_t *acts, int64_t row_bytes, bool two,
                                    int32_t (*sums)[SQUARE_SUMS])
{
    const int64_t square = SQUARE_ROWS * s->unit, unit_bytes = s->unit / 4 * row_bytes;
#ifdef MOX_AMX
    __asm__ volatile("" : : : "memory"); /* gcc is not told that loads of tiles read memory */
    _tile_zero(0);
    _tile_loadd(4, codes, s->unit);
    _tile_loadd(5, acts, row_bytes);
    _tile_dpbusd(0, 4, 5);
    if (two) { /* before the first is stored: neither waits for the other */
        _tile_zero(1);
        _tile_loadd(6, codes + square, s->unit);
        _tile_loadd(7, acts + unit_bytes, row_bytes);
        _tile_dpbusd(1, 6, 7);
        _tile_stored(1, sums[1], 4 * SQUARE_LANES);
    }
    _tile_stored(0, sums[0], 4 * SQUARE_LANES);
#else
    for (int64_t i = 0; i < 1 + two; i++)
        for (int64_t row = 0; row < SQUARE_ROWS; row++)
            for (int64_t lane = 0; lane < s->lanes; lane++) {
                int32_t sum = 0;
                for (int64_t k = 0; k < s->unit; k++)
                    sum += codes[i * square + row * s->unit + k] * (int8_t)acts[i * unit_bytes + k / 4 * row_bytes + 4 * lane + k % 4];
                sums[i][row * SQUARE_LANES + lane] = sum;
            }
#endif
}

/* Eight numbers from each of two places; eight numbers twice; which of 16 numbers belong to the v-th pair of rows. */
ALWAYS_INLINE __m512i vi_halves(const int32_t *a, const int32_t *b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const void *)a)), _mm256_loadu_si256((const void *)b), 1);
}
ALWAYS_INLINE __m512 vf_twice(__m512 x) { return _mm512_shuffle_f32x4(x, x, 0x44); }
ALWAYS_INLINE __m512i vi_pair_of(int v)
{
    return _mm512_inserti64x4(_mm512_set1_epi32(2 * v), _mm256_set1_epi32(2 * v + 1), 1);
}

/* Packed codes of 4 bits as bytes: those of even columns, then those of odd ones. */
ALWAYS_INLINE void split_unit(const uint8_t *packed, int64_t unit, uint8_t *out)
{
    /* Bit matrices: the low half of a byte; the high half, shifted down. */
    const int64_t low = 0x0102040800000000, high = 0x1020408000000000;
    if (unit == 64) {
        const __m512i v = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)packed));
        const __m512i halves = _mm512_inserti64x4(_mm512_set1_epi64(low), _mm256_set1_epi64x(high), 1);
        _mm512_storeu_si512(out, _mm512_gf2p8affine_epi64_epi8(v, halves, 0));
    } else {
        const __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)packed));
        const __m256i halves = _mm256_inserti128_si256(_mm256_set1_epi64x(low), _mm_set1_epi64x(high), 1);
        _mm256_storeu_si256((void *)out, _mm256_gf2p8affine_epi64_epi8(v, halves, 0));
    }
}

#endif
