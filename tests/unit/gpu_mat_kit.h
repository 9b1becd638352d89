/* tests/unit/gpu_mat_kit.h -- random matrices of every layout, here and on the emulated device,
 * with their products in double over what mox_mat_decode gives. */
#ifndef TESTS_GPU_MAT_KIT_H
#define TESTS_GPU_MAT_KIT_H

#include "gpu_kit.h"

typedef struct kind {
    mox_mat_kind kind;
    int bits, group; /* FP8: block of group x group */
    mox_dtype scales;
} kind;
static const kind kinds[] = {
    {MOX_MAT_F32, 0, 1, MOX_DT_NONE},    {MOX_MAT_F16, 0, 1, MOX_DT_NONE},     {MOX_MAT_BF16, 0, 1, MOX_DT_NONE},
    {MOX_MAT_AFFINE, 2, 32, MOX_DT_BF16}, {MOX_MAT_AFFINE, 2, 128, MOX_DT_F16}, {MOX_MAT_AFFINE, 3, 64, MOX_DT_BF16},
    {MOX_MAT_AFFINE, 3, 32, MOX_DT_F32},  {MOX_MAT_AFFINE, 4, 32, MOX_DT_F16},  {MOX_MAT_AFFINE, 4, 64, MOX_DT_BF16},
    {MOX_MAT_AFFINE, 4, 128, MOX_DT_F32}, {MOX_MAT_AFFINE, 5, 64, MOX_DT_BF16}, {MOX_MAT_AFFINE, 5, 128, MOX_DT_F16},
    {MOX_MAT_AFFINE, 6, 32, MOX_DT_BF16}, {MOX_MAT_AFFINE, 6, 64, MOX_DT_F32},  {MOX_MAT_AFFINE, 8, 64, MOX_DT_BF16},
    {MOX_MAT_AFFINE, 8, 128, MOX_DT_F16}, {MOX_MAT_FP8, 0, 5, MOX_DT_F32},      {MOX_MAT_FP8, 0, 128, MOX_DT_BF16},
    {MOX_MAT_FP8, 0, 32, MOX_DT_F8_E8M0}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

typedef struct both_mat {
    mox_mat host;
    mox_gpu_mat device;
    double *value, *mag; /* [rows, cols] */
} both_mat;

static inline uint8_t *stored(mox_dtype type, int64_t n, float low, float high)
{
    uint8_t *bytes = host_bytes(n * 4);
    for (int64_t i = 0; i < n; i++) {
        const float v = uniform(low, high) * (mox_rng_unit(&kit.rng) < 0.5 ? -1.0f : 1.0f);
        const uint16_t half = type == MOX_DT_F16 ? mox_f32_to_f16(v) : mox_f32_to_bf16(v);
        if (type == MOX_DT_F32) memcpy(bytes + 4 * i, &v, 4);
        else if (type == MOX_DT_F8_E8M0) bytes[i] = (uint8_t)(118 + i % 5);
        else memcpy(bytes + 2 * i, &half, 2);
    }
    return bytes;
}

static inline void fill_values(both_mat *m)
{
    const int64_t n = m->host.rows * m->host.cols;
    float *row = floats(m->host.cols);
    m->value = doubles(n);
    m->mag = doubles(n);
    for (int64_t r = 0; r < m->host.rows; r++) {
        mox_mat_decode(&m->host, r, 0, m->host.cols, row);
        for (int64_t c = 0; c < m->host.cols; c++) {
            const int64_t i = r * m->host.cols + c;
            m->value[i] = (double)row[c];
            m->mag[i] = fabs((double)row[c]);
            if (m->host.layout.kind != MOX_MAT_AFFINE) continue;
            const int64_t at = r * (m->host.cols / m->host.layout.group) + c / m->host.layout.group;
            const double bias = (double)mox_load_as_f32(m->host.biases, m->host.layout.scale_type, at);
            m->mag[i] = fabs(m->value[i] - bias) + fabs(bias);
        }
    }
}

static inline both_mat random_mat(kind k, int64_t rows, int64_t cols)
{
    both_mat m = {.host = {.layout = {.kind = k.kind, .bits = k.bits, .group = k.group, .scale_type = k.scales,
                                      .block_rows = k.group, .block_cols = k.group}, .rows = rows, .cols = cols}};
    if (k.kind == MOX_MAT_FP8) m.host.row0 = 3; /* a view into a larger matrix */
    const int64_t w_bytes = rows * mox_mat_row_bytes(&m.host.layout, cols);
    const int64_t grid_rows = k.kind == MOX_MAT_FP8 ? over(rows + 3, k.group) : rows;
    const int64_t scale_bytes = grid_rows * mox_mat_scale_row_bytes(&m.host.layout, cols);
    uint8_t *w = host_bytes(w_bytes);
    for (int64_t i = 0; i < w_bytes; i++) w[i] = (uint8_t)mox_rng_u64(&kit.rng);
    for (int64_t i = 0; i < w_bytes && k.kind == MOX_MAT_FP8; i++) w[i] &= 0xBF; /* no NaN */
    if (k.kind == MOX_MAT_F32) w = stored(MOX_DT_F32, rows * cols, 0.1f, 1);
    if (k.kind == MOX_MAT_F16) w = stored(MOX_DT_F16, rows * cols, 0.1f, 1);
    if (k.kind == MOX_MAT_BF16) w = stored(MOX_DT_BF16, rows * cols, 0.1f, 1);
    m.host.w = w;
    mox_mat d = m.host;
    d.w = upload_at(w, w_bytes, 1);
    if (scale_bytes) {
        const int64_t n = scale_bytes / mox_dtype_bytes(k.scales);
        m.host.scales = stored(k.scales, n, 0.01f, 0.1f);
        m.host.biases = stored(k.scales, n, 0.1f, 0.5f);
        d.scales = upload_at(m.host.scales, scale_bytes, 1);
        d.biases = upload_at(m.host.biases, scale_bytes, 3);
    }
    m.device = mox_gpu_mat_of(&d);
    fill_values(&m);
    return m;
}

static inline int64_t fit(kind k, int64_t cols) { return k.kind == MOX_MAT_AFFINE ? over(cols, k.group) * k.group : cols; }

static inline double dot(const both_mat *m, int64_t row, const float *x, double *mag)
{
    double sum = 0;
    *mag = 0;
    for (int64_t c = 0; c < m->host.cols; c++) {
        sum += m->value[row * m->host.cols + c] * (double)x[c];
        *mag += m->mag[row * m->host.cols + c] * fabs((double)x[c]);
    }
    return sum;
}

/* The same matrix at addresses that matvec4.h can read. */
static inline both_mat aligned(both_mat m)
{
    const int64_t scales = m.host.rows * mox_mat_scale_row_bytes(&m.host.layout, m.host.cols);
    assert_false(mox_gpu_mat_is_four(&m.device));
    m.device.w = upload(m.host.w, m.host.rows * mox_mat_row_bytes(&m.host.layout, m.host.cols));
    m.device.scales = upload(m.host.scales, scales);
    m.device.biases = upload(m.host.biases, scales);
    assert_true(mox_gpu_mat_is_four(&m.device));
    return m;
}
static inline both_mat four_mat(int64_t rows, int64_t cols) { return aligned(random_mat(kinds[8], rows, cols)); }

/* Numbers of very different sizes, as hidden states have them. */
static inline float *activations(int64_t n, float size)
{
    float *x = randoms(n, size);
    for (int64_t i = 0; i < n; i += 37) x[i] *= 300;
    for (int64_t i = 5; i < n; i += 11) x[i] *= 1e-4f;
    return x;
}

/* What matvec4.h rounds by: with the largest of 256 numbers, of which it drops 2^-23 and so 1e-6 of an eighth, added to each of them. */
static inline const float *four_bounds(const float *x, int64_t n)
{
    float *bound = floats(n);
    for (int64_t first = 0; first < n; first += 256) {
        float largest = 0;
        for (int64_t i = first; i < first + 256; i++) largest = fmaxf(largest, fabsf(x[i]));
        for (int64_t i = first; i < first + 256; i++) bound[i] = fabsf(x[i]) + largest / 8;
    }
    return bound;
}

#endif
