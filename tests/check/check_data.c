/* tests/check/check_data.c -- buffers, random numbers and random matrices.
 *
 * A buffer has GUARD bytes of 0xFF on either side: a kernel that writes there is
 * found when the test ends, one that reads there sees NaN.  Under AddressSanitizer
 * touching them ends the test at once.  Float buffers start at every multiple of 4
 * in turn, so that nothing can rely on more.
 *
 * Decoding is written here a second time, bit by bit, and does not use the code it
 * is there to check. */
#include "check.h"

#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
static void forbid(const void *p, size_t n) { __asan_poison_memory_region(p, n); }
static void allow(const void *p, size_t n) { __asan_unpoison_memory_region(p, n); }
#else
static void forbid(const void *p, size_t n) { (void)p, (void)n; }
static void allow(const void *p, size_t n) { (void)p, (void)n; }
#endif

enum { GUARD = 128 };

typedef struct buffer {
    struct buffer *next;
    unsigned char *block, *data;
    size_t block_bytes, data_bytes;
} buffer;

static buffer *buffers;
static mox_rng rng;
static unsigned n_buffers;
static bool aligned;

/* `data_bytes` bytes of `fill` at an address of shift modulo 64. */
static void *guarded(int64_t n, size_t shift, int fill)
{
    const size_t bytes = (size_t)n;
    buffer *b = malloc(sizeof *b);
    const size_t block_bytes = (GUARD + 64 + bytes + GUARD + 63) / 64 * 64;
    unsigned char *block = b ? aligned_alloc(64, block_bytes) : NULL;
    if (!block) ck_fail("the test has no memory for %zu bytes", bytes);
    *b = (buffer){buffers, block, block + GUARD + shift, block_bytes, bytes};
    buffers = b;
    memset(block, 0xFF, block_bytes);
    memset(b->data, fill, bytes);
    forbid(block, (size_t)(b->data - block));
    forbid(b->data + bytes, block_bytes - bytes - (size_t)(b->data - block));
    return b->data;
}

void ck_begin_data(uint64_t seed, bool all_aligned)
{
    aligned = all_aligned;
    mox_rng_init(&rng, seed);
    n_buffers = 0;
}

void ck_end_data(void)
{
    const char *problem = NULL;
    while (buffers) {
        buffer *b = buffers;
        allow(b->block, b->block_bytes);
        for (const unsigned char *p = b->block; p < b->block + b->block_bytes; p++) {
            if (p == b->data) p += b->data_bytes;
            if (*p != 0xFF) problem = p < b->data ? "before" : "after";
        }
        buffers = b->next;
        free(b->block);
        free(b);
    }
    if (problem) ck_fail("something was written %s a buffer", problem);
}

float *ck_f32(int64_t n) { return guarded(n * 4, aligned ? 0 : 4 * (n_buffers++ % 16), 0xFF); }
int32_t *ck_i32(int64_t n) { return guarded(n * 4, 4 * (n_buffers++ % 16), 0xA5); }
void *ck_bytes(int64_t n) { return guarded(n, 0, 0xA5); }

void *ck_at_odd(const void *src, int64_t n)
{
    void *copy = guarded(n, 1 + 2 * (n_buffers++ % 32), 0xA5);
    if (n > 0) memcpy(copy, src, (size_t)n);
    return copy;
}

unsigned char *ck_buffer_of(const void *p, int64_t *bytes)
{
    const unsigned char *at = p;
    for (const buffer *b = buffers; b; b = b->next) {
        if (at < b->data || at > b->data + b->data_bytes) continue;
        *bytes = (int64_t)b->data_bytes;
        return b->data;
    }
    return NULL;
}

uint64_t ck_rand(uint64_t bound) { return mox_rng_u64(&rng) % bound; }

static double normal(void)
{
    const double radius = sqrt(-2 * log(1 - mox_rng_unit(&rng)));
    return radius * cos(6.283185307179586 * mox_rng_unit(&rng));
}

float *ck_random(int64_t n, float scale)
{
    float *p = ck_f32(n);
    for (int64_t i = 0; i < n; i++) p[i] = (float)(normal() * (double)scale);
    return p;
}

float *ck_uniform(int64_t n, float low, float high)
{
    float *p = ck_f32(n);
    for (int64_t i = 0; i < n; i++) p[i] = (float)((double)low + mox_rng_unit(&rng) * ((double)high - (double)low));
    return p;
}

/* ---- element types, another way ---- */

static double decode_bits(unsigned bits, int exponent_bits, int mantissa_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const double mantissa = ldexp((double)(bits & ((1u << mantissa_bits) - 1)), -mantissa_bits);
    const double v = exponent == 0 ? ldexp(mantissa, 1 - bias) : ldexp(1 + mantissa, exponent - bias);
    return bits >> (exponent_bits + mantissa_bits) & 1 ? -v : v;
}

static double element(const uint8_t *base, mox_dtype type, int64_t i)
{
    float f;
    switch (type) {
    case MOX_DT_F32: memcpy(&f, base + 4 * i, 4); return (double)f;
    case MOX_DT_F16: return decode_bits(base[2 * i] | (unsigned)base[2 * i + 1] << 8, 5, 10);
    case MOX_DT_BF16: return decode_bits(base[2 * i] | (unsigned)base[2 * i + 1] << 8, 8, 7);
    case MOX_DT_F8_E4M3: return decode_bits(base[i], 4, 3);
    default: return ldexp(1, base[i] - 127);
    }
}

mox_vec ck_vec(mox_dtype type, const float *values, int64_t n)
{
    uint8_t *p = ck_bytes(n * mox_dtype_bytes(type));
    for (int64_t i = 0; i < n; i++) {
        const uint16_t half = type == MOX_DT_F16 ? mox_f32_to_f16(values[i]) : mox_f32_to_bf16(values[i]);
        if (type == MOX_DT_F32) memcpy(p + 4 * i, &values[i], 4);
        else memcpy(p + 2 * i, &half, 2);
    }
    return (mox_vec){type, n, ck_at_odd(p, n * mox_dtype_bytes(type))};
}

/* ---- matrices ---- */

static const char *const layout_names[CK_LAYOUTS] = {"f32", "f16", "bf16", "q2", "q3", "q4", "q5", "q6", "q8", "fp8"};
const char *ck_layout_name(ck_layout layout) { return layout_names[layout]; }

static const uint8_t *random_elements(mox_dtype type, int64_t n)
{
    float *values = ck_random(n, 0.5f);
    return ck_vec(type, values, n).data;
}

static mox_mat affine_mat(int bits, int group, int64_t rows, int64_t cols)
{
    static const mox_dtype types[] = {MOX_DT_BF16, MOX_DT_BF16, MOX_DT_F16, MOX_DT_F32};
    const mox_dtype type = types[ck_rand(4)];
    const int64_t n_bytes = rows * cols * bits / 8, n_groups = rows * (cols / group);
    uint8_t *codes = ck_bytes(n_bytes);
    for (int64_t i = 0; i < n_bytes; i++) codes[i] = (uint8_t)ck_rand(256);
    float *scales = ck_f32(n_groups), *biases = ck_f32(n_groups);
    for (int64_t i = 0; i < n_groups; i++) { /* weights of either sign, about 1/2 in size, as files have them */
        const double step = (0.5 + mox_rng_unit(&rng)) / (double)(1 << bits) * (ck_rand(2) ? 1 : -1);
        scales[i] = (float)step;
        biases[i] = (float)(-step * (double)(1 << (bits - 1)) * (0.8 + 0.4 * mox_rng_unit(&rng)));
    }
    return (mox_mat){.layout = {.kind = MOX_MAT_AFFINE, .bits = bits, .group = group, .scale_type = type},
                     .rows = rows,
                     .cols = cols,
                     .w = ck_at_odd(codes, n_bytes),
                     .scales = ck_vec(type, scales, n_groups).data,
                     .biases = ck_vec(type, biases, n_groups).data};
}

/* A view that begins in the middle of a block, with the whole grid behind it. */
static mox_mat fp8_mat(int block, int64_t rows, int64_t cols)
{
    static const mox_dtype types[] = {MOX_DT_F32, MOX_DT_BF16, MOX_DT_F8_E8M0};
    const mox_dtype type = types[ck_rand(3)];
    const int block_rows = 1 + (int)ck_rand((uint64_t)block);
    const int64_t row0 = (int64_t)ck_rand(2u * (uint64_t)block_rows);
    const int64_t n_scales = ((row0 + rows + block_rows - 1) / block_rows) * ((cols + block - 1) / block);
    uint8_t *codes = ck_bytes(rows * cols), *exponents = ck_bytes(n_scales);
    for (int64_t i = 0; i < rows * cols; i++) {
        codes[i] = (uint8_t)ck_rand(256);
        if ((codes[i] & 0x7F) == 0x7F) codes[i] ^= 1; /* no NaN */
    }
    for (int64_t i = 0; i < n_scales; i++) exponents[i] = (uint8_t)(117 + ck_rand(4));
    float *scales = ck_uniform(n_scales, 0.0005f, 0.005f);
    return (mox_mat){.layout = {.kind = MOX_MAT_FP8, .scale_type = type, .block_rows = block_rows, .block_cols = block},
                     .rows = rows,
                     .cols = cols,
                     .row0 = row0,
                     .w = ck_at_odd(codes, rows * cols),
                     .scales =
                         type == MOX_DT_F8_E8M0 ? ck_at_odd(exponents, n_scales) : ck_vec(type, scales, n_scales).data};
}

mox_mat ck_mat(ck_layout layout, int group, int64_t rows, int64_t cols)
{
    static const int bits[CK_LAYOUTS] = {[CK_Q2] = 2, [CK_Q3] = 3, [CK_Q4] = 4, [CK_Q5] = 5, [CK_Q6] = 6, [CK_Q8] = 8};
    mox_mat m = {.rows = rows, .cols = cols};
    switch (layout) {
    case CK_F32:
        m.layout.kind = MOX_MAT_F32;
        m.w = random_elements(MOX_DT_F32, rows * cols);
        return m;
    case CK_F16:
        m.layout.kind = MOX_MAT_F16;
        m.w = random_elements(MOX_DT_F16, rows * cols);
        return m;
    case CK_BF16:
        m.layout.kind = MOX_MAT_BF16;
        m.w = random_elements(MOX_DT_BF16, rows * cols);
        return m;
    case CK_FP8: return fp8_mat(group, rows, cols);
    default: return affine_mat(bits[layout], group, rows, cols);
    }
}

static unsigned code_of(const uint8_t *row, int64_t c, int bits)
{
    unsigned code = 0;
    for (int b = 0; b < bits; b++) {
        const int64_t bit = c * bits + b;
        code |= (unsigned)(row[bit / 8] >> (bit % 8) & 1) << b;
    }
    return code;
}

void ck_mat_dense(const mox_mat *m, double *value, double *mag)
{
    const mox_mat_layout *l = &m->layout;
    static const mox_dtype types[] = {[MOX_MAT_F32] = MOX_DT_F32, [MOX_MAT_F16] = MOX_DT_F16,
                                      [MOX_MAT_BF16] = MOX_DT_BF16, [MOX_MAT_AFFINE] = MOX_DT_NONE,
                                      [MOX_MAT_FP8] = MOX_DT_F8_E4M3};
    for (int64_t r = 0; r < m->rows; r++)
        for (int64_t c = 0; c < m->cols; c++) {
            const int64_t at = r * m->cols + c;
            double v, size;
            if (l->kind == MOX_MAT_AFFINE) {
                const int64_t g = r * (m->cols / l->group) + c / l->group;
                const double scale = element(m->scales, l->scale_type, g), bias = element(m->biases, l->scale_type, g);
                const double product = scale * code_of(m->w + r * m->cols * l->bits / 8, c, l->bits);
                v = product + bias;
                size = fabs(product) + fabs(bias);
            } else {
                v = element(m->w, types[l->kind], at);
                if (l->kind == MOX_MAT_FP8) {
                    const int64_t wide = (m->cols + l->block_cols - 1) / l->block_cols;
                    v *= element(m->scales, l->scale_type, (m->row0 + r) / l->block_rows * wide + c / l->block_cols);
                }
                size = fabs(v);
            }
            value[at] = v;
            if (mag) mag[at] = size;
        }
}
