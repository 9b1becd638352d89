/* tests/check/caches.h -- caches of every shape for the tests of attention.
 *
 * They are filled and read here by the address formula of ops/attention.h and the blocks
 * of ops/q8.h, written out once more, and never through the code under test. */
#ifndef TESTS_CACHES_H
#define TESTS_CACHES_H

#include "oracle.h"

typedef struct cache_shape {
    mox_dtype type;
    int64_t page_len; /* 0: contiguous, one page as long as the sequence */
    bool head_major;  /* inside a page */
} cache_shape;

/* Pages in a shuffled order, two more than needed; everything is NaN at first. */
typedef struct test_cache {
    mox_cache c;
    int32_t *pages; /* of one sequence, for len positions */
    int64_t n_pages, n_elements;
} test_cache;

static inline int32_t *shuffled_pages(int64_t n, int64_t bound)
{
    int32_t *all = ck_i32(bound), *pages = ck_i32(n);
    for (int64_t i = 0; i < bound; i++) all[i] = (int32_t)i;
    for (int64_t i = bound - 1; i > 0; i--) {
        const int64_t j = (int64_t)ck_rand((uint64_t)i + 1);
        const int32_t swap = all[i];
        all[i] = all[j], all[j] = swap;
    }
    for (int64_t i = 0; i < n; i++) pages[i] = all[i];
    return pages;
}

/* Vectors of 8 bits: 34 bytes for 32 numbers, scale first.  kept: the numbers that are stored. */
static inline void q8_put(const float *v, int64_t dim, uint8_t *out, float *kept)
{
    for (int64_t b = 0; b * 32 < dim; b++) {
        double most = 0;
        bool bad = false;
        for (int64_t i = 32 * b; i < dim && i < 32 * b + 32; i++) {
            most = fmax(most, fabs((double)v[i]));
            bad |= isnan(v[i]);
        }
        const uint16_t half = bad ? 0x7E00 : mox_f32_to_f16((float)(most / 127));
        const float scale = mox_f16_to_f32(half);
        if (out) out[34 * b] = (uint8_t)half, out[34 * b + 1] = (uint8_t)(half >> 8);
        for (int64_t i = 32 * b; i < 32 * b + 32; i++) {
            long code = 0;
            if (i < dim && scale > 0 && isfinite(scale)) code = lrintf(v[i] / scale);
            code = code > 127 ? 127 : code < -127 ? -127 : code;
            if (out) out[34 * b + 2 + i % 32] = (uint8_t)code;
            if (kept && i < dim) kept[i] = scale * (float)code;
        }
    }
}

/* v [rows, dim] as a cache of that type keeps it. */
static inline float *as_kept(const float *v, int64_t rows, int64_t dim, mox_dtype type)
{
    float *kept = ck_f32(rows * dim);
    for (int64_t i = 0; i < rows * dim; i++) kept[i] = or_round(v[i], type);
    for (int64_t r = 0; type == MOX_DT_I8 && r < rows; r++) q8_put(v + r * dim, dim, NULL, kept + r * dim);
    return kept;
}

static inline test_cache make_cache(cache_shape s, int64_t len, int64_t heads, int64_t dim)
{
    test_cache t = {.c = {.type = s.type, .page_len = s.page_len ? s.page_len : (len ? len : 1)}};
    t.n_pages = s.page_len ? (len + s.page_len - 1) / s.page_len : 1;
    t.c.n_pages = s.page_len ? t.n_pages + 2 : 1;
    const int64_t one = ck.on_device && s.type == MOX_DT_I8 ? 2 : 1; /* GPUs take 8-bit blocks at even addresses */
    const int64_t pad = (s.type == MOX_DT_I8 ? (dim + 31) / 32 * 34 : dim) + 2 + one; /* vectors do not touch */
    t.c.token_stride = s.head_major ? pad : heads * pad + one;
    t.c.head_stride = s.head_major ? t.c.page_len * pad : pad;
    t.c.page_stride = t.c.page_len * (heads * pad + one) + 6 + one;
    t.n_elements = t.c.n_pages * t.c.page_stride;
    const int64_t bytes = t.n_elements * mox_dtype_bytes(s.type);
    t.c.data = s.type == MOX_DT_F32 ? (void *)ck_f32(t.n_elements) : ck_bytes(bytes);
    memset(t.c.data, 0xFF, (size_t)bytes); /* NaN in all types */
    t.pages = shuffled_pages(t.n_pages, t.c.n_pages);
    return t;
}

static inline int64_t cache_at(const test_cache *t, int64_t pos, int64_t head)
{
    int64_t at = head * t->c.head_stride;
    at += t->pages[pos / t->c.page_len] * t->c.page_stride;
    return at + (pos % t->c.page_len) * t->c.token_stride;
}

static inline void cache_put(const test_cache *t, int64_t pos, int64_t head, const float *v, int64_t dim)
{
    const int64_t at = cache_at(t, pos, head);
    if (t->c.type == MOX_DT_I8) {
        q8_put(v, dim, (uint8_t *)t->c.data + at, NULL);
        return;
    }
    for (int64_t d = 0; d < dim; d++) {
        if (t->c.type == MOX_DT_F16) ((uint16_t *)t->c.data)[at + d] = mox_f32_to_f16(v[d]);
        else ((float *)t->c.data)[at + d] = v[d];
    }
}

/* All of v [len, heads, dim], on the pages given or, for NULL, on some. */
static inline test_cache filled_cache(cache_shape s, int32_t *pages, const float *v, int64_t len, int64_t heads,
                                      int64_t dim)
{
    test_cache t = make_cache(s, len, heads, dim);
    if (pages) t.pages = pages;
    for (int64_t p = 0; p < len; p++)
        for (int64_t h = 0; h < heads; h++) cache_put(&t, p, h, v + (p * heads + h) * dim, dim);
    return t;
}

/* weights = softmax(scores) by the book: all scores first, then the largest, then
 * the sum.  extra is one more logit that only enlarges the sum (-inf: none). */
static inline void book_softmax(double *scores, int64_t n, double extra)
{
    double max = extra, sum = 0.0;
    for (int64_t j = 0; j < n; j++) max = fmax(max, scores[j]);
    if (max == -INFINITY) {
        for (int64_t j = 0; j < n; j++) scores[j] = 0.0;
        return;
    }
    sum = exp(extra - max);
    for (int64_t j = 0; j < n; j++) sum += exp(scores[j] - max);
    for (int64_t j = 0; j < n; j++) scores[j] = exp(scores[j] - max) / sum;
}

#endif
