/* ops/simd/cache.c -- filling key/value caches, for one level.
 *
 * The processor rounds to f16 as mox_f32_to_f16 does; only NaN, whose payload it
 * would keep, is made plain first. */
#include "ops/kern.h"
#include "ops/q8.h"
#include "ops/span.h"
#include "ops/simd/level.h"

#include <string.h>

static void store_halves(uint16_t *dst, const float *src, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vf_store_f16(dst + i, vf_plain_nan(vf_load(src + i)));
    for (; i < n; i++) dst[i] = mox_f32_to_f16(src[i]);
}

void MOX_AT(mox_kv_append)(const mox_kv_append_args *a, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++) {
        int64_t i;
        const mox_span *s = mox_span_of_row(a->spans, row, &i);
        const float *src = a->src + (s->row0 + i) * a->stride;
        const int64_t at = mox_cache_offset(&a->cache, s->pages, s->pos0 + i, 0);
        for (int64_t h = 0; h < a->heads; h++, src += a->head_stride) {
            if (a->cache.type == MOX_DT_F32)
                memcpy((float *)a->cache.data + at + h * a->cache.head_stride, src, (size_t)a->dim * sizeof *src);
            else if (a->cache.type == MOX_DT_I8)
                mox_q8_store(src, a->dim, (uint8_t *)a->cache.data + at + h * a->cache.head_stride);
            else store_halves((uint16_t *)a->cache.data + at + h * a->cache.head_stride, src, a->dim);
        }
    }
}
