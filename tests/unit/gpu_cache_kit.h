/* tests/unit/gpu_cache_kit.h -- spans of sequences over pages of caches, here and on the emulated
 * device. */
#ifndef TESTS_GPU_CACHE_KIT_H
#define TESTS_GPU_CACHE_KIT_H

#include "gpu_kit.h"

#include "ops/q8.h"

/* Spans of three sequences over a pool of pages, dealt out in no order. */
enum { PAGE = 16, POOL = 96, SPANS = 3, ROWS_OF_SPANS = 9 };
typedef struct timeline {
    mox_span host[SPANS];
    mox_gpu_span *device;
    int32_t pages[SPANS][32];
} timeline;

static inline timeline *make_timeline_of(const int64_t n[SPANS], const int64_t pos0[SPANS])
{
    timeline *t = host_bytes((int64_t)sizeof *t);
    mox_gpu_span spans[SPANS];
    int32_t next = 0;
    for (int s = 0, row = 0; s < SPANS; row += (int)n[s], s++) {
        for (int i = 0; i < 32; i++) t->pages[s][i] = next++ * 37 % POOL;
        t->host[s] = (mox_span){.row0 = row, .n = n[s], .pos0 = pos0[s], .pages = t->pages[s], .n_pages = 32};
        spans[s] = (mox_gpu_span){.row0 = row, .n = n[s], .pos0 = pos0[s], .pages = upload(t->pages[s], sizeof t->pages[s])};
    }
    t->device = upload(spans, sizeof spans);
    return t;
}

static inline timeline *make_timeline(void)
{
    return make_timeline_of((const int64_t[SPANS]){6, 1, 2}, (const int64_t[SPANS]){13, 420, 0}); /* the second is alone and sees many */
}

/* A cache of `heads` vectors per position, full of numbers. */
typedef struct both_cache {
    mox_cache host;
    mox_gpu_cache device;
    int64_t bytes;
} both_cache;

static inline both_cache make_cache(mox_dtype type, int64_t heads, int64_t dim)
{
    const int64_t row = mox_cache_row(type, dim), n = POOL * PAGE * heads * row, size = mox_dtype_bytes(type);
    both_cache c = {.host = {.type = type, .page_len = PAGE, .page_stride = PAGE * heads * row, .token_stride = row,
                             .head_stride = PAGE * row, .n_pages = POOL}, .bytes = n * size};
    c.host.data = host_bytes(c.bytes);
    float *v = floats(dim);
    for (int64_t i = 0; i < POOL * PAGE * heads; i++) {
        for (int64_t d = 0; d < dim; d++) v[d] = uniform(-1, 1);
        if (type == MOX_DT_I8) mox_q8_store(v, dim, (uint8_t *)c.host.data + i * row);
        for (int64_t d = 0; d < dim && type == MOX_DT_F16; d++) ((uint16_t *)c.host.data)[i * row + d] = mox_f32_to_f16(v[d]);
        if (type == MOX_DT_F32) memcpy((float *)c.host.data + i * row, v, (size_t)dim * 4);
    }
    mox_cache d = c.host;
    d.data = upload(c.host.data, c.bytes);
    c.device = mox_gpu_cache_of(&d);
    return c;
}

#endif
