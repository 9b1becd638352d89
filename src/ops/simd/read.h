/* ops/simd/read.h -- the probe that reads memory (ops/probe.h), for one level. */
#ifndef MOX_OPS_SIMD_READ_H
#define MOX_OPS_SIMD_READ_H

#include "ops/simd/level.h"

static inline uint64_t read_all(const void *p, int64_t n)
{
    const char *at = p;
    vi a = vi_zero(), b = a, c = a, d = a;
    for (int64_t i = 0; i < n; i += 4 * VBYTES) {
        a = vi_add(a, vi_load(at + i));
        b = vi_add(b, vi_load(at + i + VBYTES));
        c = vi_add(c, vi_load(at + i + 2 * VBYTES));
        d = vi_add(d, vi_load(at + i + 3 * VBYTES));
    }
    int32_t lanes[LANES];
    vi_store(lanes, vi_add(vi_add(a, b), vi_add(c, d)));
    uint64_t sum = 0;
    for (int i = 0; i < LANES; i++) sum += (uint64_t)(uint32_t)lanes[i];
    return sum;
}

#endif
