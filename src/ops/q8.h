/* ops/q8.h -- vectors of caches in 8 bits, type MOX_DT_I8.
 *
 * A vector is blocks of 32 numbers, each an f16 scale and 32 signed codes: number =
 * scale * code.  The last block is filled up with zeros.  Strides of such a cache count
 * bytes.  One definition of the rounding for every kernel, so that all write the same
 * bytes. */
#ifndef MOX_OPS_Q8_H
#define MOX_OPS_Q8_H

#include "tensor/dtype.h"

#include <math.h>

enum { MOX_Q8_BLOCK = 32, MOX_Q8_BYTES = 2 + MOX_Q8_BLOCK };

/* Elements (of the strides) of a vector of dim numbers of a cache. */
static inline int64_t mox_cache_row(mox_dtype type, int64_t dim)
{
    return type == MOX_DT_I8 ? (dim + MOX_Q8_BLOCK - 1) / MOX_Q8_BLOCK * MOX_Q8_BYTES : dim;
}

/* Where the scale of the block of number i is, and its code. */
static inline int64_t mox_q8_scale_at(int64_t i) { return i / MOX_Q8_BLOCK * MOX_Q8_BYTES; }
static inline int64_t mox_q8_code_at(int64_t i) { return mox_q8_scale_at(i) + 2 + i % MOX_Q8_BLOCK; }

static inline float mox_q8_load(const uint8_t *row, int64_t i)
{
    return mox_f16_to_f32(mox_load_u16(row + mox_q8_scale_at(i))) * (float)(int8_t)row[mox_q8_code_at(i)];
}

/* A NaN, an infinity or a number whose scale f16 cannot hold makes its block NaN. */
static inline void mox_q8_store_block(const float *x, int64_t n, uint8_t *block)
{
    float most = 0;
    bool nan = false;
    for (int64_t i = 0; i < n; i++) {
        const float size = fabsf(x[i]);
        nan |= !(size <= INFINITY);
        if (size > most) most = size;
    }
    const uint16_t half = nan ? 0x7E00 : mox_f32_to_f16(most / 127);
    const float scale = mox_f16_to_f32(half);
    const bool plain = scale > 0 && scale < INFINITY;
    memcpy(block, &half, sizeof half);
    for (int64_t i = 0; i < MOX_Q8_BLOCK; i++) {
        const float code = i < n && plain ? rintf(x[i] / scale) : 0;
        block[2 + i] = (uint8_t)(int8_t)(code > 127 ? 127 : code < -127 ? -127 : code);
    }
}

static inline void mox_q8_store(const float *x, int64_t n, uint8_t *row)
{
    for (int64_t i = 0; i < n; i += MOX_Q8_BLOCK, row += MOX_Q8_BYTES)
        mox_q8_store_block(x + i, n - i < MOX_Q8_BLOCK ? n - i : MOX_Q8_BLOCK, row);
}

#endif
