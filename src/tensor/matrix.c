/* tensor/matrix.c -- sizes, views and plain decoding of weight matrices. */
#include "tensor/matrix.h"

#include <assert.h>
#include <stddef.h>

static int element_bytes(mox_mat_kind kind)
{
    switch (kind) {
    case MOX_MAT_F32: return 4;
    case MOX_MAT_F16:
    case MOX_MAT_BF16: return 2;
    case MOX_MAT_FP8: return 1;
    default: return 0;
    }
}

int64_t mox_mat_row_bytes(const mox_mat_layout *l, int64_t cols)
{
    return l->kind == MOX_MAT_AFFINE ? cols * l->bits / 8 : cols * element_bytes(l->kind);
}

int64_t mox_mat_scale_row_bytes(const mox_mat_layout *l, int64_t cols)
{
    const int64_t size = mox_dtype_bytes(l->scale_type);
    if (l->kind == MOX_MAT_AFFINE) return cols / l->group * size;
    if (l->kind == MOX_MAT_FP8) return (cols + l->block_cols - 1) / l->block_cols * size;
    return 0;
}

mox_mat mox_mat_rows(const mox_mat *m, int64_t row, int64_t n)
{
    assert(row >= 0 && n >= 0 && row + n <= m->rows);
    mox_mat view = *m;
    view.rows = n;
    view.w += row * mox_mat_row_bytes(&m->layout, m->cols);
    if (m->layout.kind == MOX_MAT_AFFINE) {
        const int64_t stride = mox_mat_scale_row_bytes(&m->layout, m->cols);
        view.scales += row * stride;
        view.biases += row * stride;
    }
    view.row0 += row;
    return view;
}

static unsigned code_at(const uint8_t *row, int64_t c, int bits)
{
    const int64_t bit = c * bits;
    const uint8_t *p = row + bit / 8;
    const int shift = (int)(bit % 8);
    unsigned v = (unsigned)p[0] >> shift;
    if (shift + bits > 8) v |= (unsigned)p[1] << (8 - shift); /* only then is there a next byte */
    return v & ((1u << bits) - 1u);
}

/* Codes [col, col + n) of a row.  The widths that files have most go a byte at a time. */
static void unpack(const uint8_t *row, int64_t col, int64_t n, int bits, uint8_t *codes)
{
    if (bits == 8) {
        memcpy(codes, row + col, (size_t)n);
    } else if (bits == 4 && col % 2 == 0 && n % 2 == 0) {
        for (int64_t i = 0; i < n; i += 2) {
            const uint8_t two = row[(col + i) / 2];
            codes[i] = two & 15;
            codes[i + 1] = two >> 4;
        }
    } else {
        for (int64_t i = 0; i < n; i++) codes[i] = (uint8_t)code_at(row, col + i, bits);
    }
}

static void decode_affine(const mox_mat *m, int64_t row, int64_t col, int64_t n, float *out)
{
    const mox_mat_layout *l = &m->layout;
    const uint8_t *packed = m->w + row * mox_mat_row_bytes(l, m->cols);
    const int64_t groups = row * (m->cols / l->group);
    uint8_t codes[128]; /* the largest group */
    for (int64_t i = 0; i < n;) {
        const int64_t g = (col + i) / l->group, left = (g + 1) * l->group - (col + i);
        const int64_t length = left < n - i ? left : n - i;
        const double scale = (double)mox_load_as_f32(m->scales, l->scale_type, groups + g);
        const double bias = (double)mox_load_as_f32(m->biases, l->scale_type, groups + g);
        unpack(packed, col + i, length, l->bits, codes);
        for (int64_t j = 0; j < length; j++) out[i + j] = (float)(scale * codes[j] + bias);
        i += length;
    }
}

static void decode_fp8(const mox_mat *m, int64_t row, int64_t col, int64_t n, float *out)
{
    const mox_mat_layout *l = &m->layout;
    const uint8_t *bytes = m->w + row * m->cols + col;
    const int64_t grid_cols = (m->cols + l->block_cols - 1) / l->block_cols;
    const int64_t grid_row = (m->row0 + row) / l->block_rows * grid_cols;
    for (int64_t i = 0; i < n;) {
        const int64_t block = (col + i) / l->block_cols, end = (block + 1) * l->block_cols - col;
        const float scale = mox_load_as_f32(m->scales, l->scale_type, grid_row + block);
        for (; i < n && i < end; i++) out[i] = mox_e4m3_to_f32(bytes[i]) * scale;
    }
}

void mox_mat_decode(const mox_mat *m, int64_t row, int64_t col, int64_t n, float *out)
{
    assert(row >= 0 && row < m->rows && col >= 0 && n >= 0 && col + n <= m->cols);
    const uint8_t *p = m->w + row * mox_mat_row_bytes(&m->layout, m->cols);
    switch (m->layout.kind) {
    case MOX_MAT_F32: memcpy(out, p + col * 4, (size_t)n * 4); break;
    case MOX_MAT_F16:
        for (int64_t i = 0; i < n; i++) out[i] = mox_f16_to_f32(mox_load_u16(p + (col + i) * 2));
        break;
    case MOX_MAT_BF16:
        for (int64_t i = 0; i < n; i++) out[i] = mox_bf16_to_f32(mox_load_u16(p + (col + i) * 2));
        break;
    case MOX_MAT_AFFINE: decode_affine(m, row, col, n, out); break;
    case MOX_MAT_FP8: decode_fp8(m, row, col, n, out); break;
    case MOX_MAT_NONE: assert(m->layout.kind != MOX_MAT_NONE); break;
    }
}

const char *mox_mat_layout_problem(const mox_mat_layout *l, int64_t cols)
{
    switch (l->kind) {
    case MOX_MAT_F32:
    case MOX_MAT_F16:
    case MOX_MAT_BF16: return NULL;
    case MOX_MAT_AFFINE:
        if (l->bits != 2 && l->bits != 3 && l->bits != 4 && l->bits != 5 && l->bits != 6 && l->bits != 8)
            return "bits is not 2, 3, 4, 5, 6 or 8";
        if (l->group != 32 && l->group != 64 && l->group != 128) return "group_size is not 32, 64 or 128";
        if (cols % l->group != 0) return "group_size does not divide the row length";
        if (l->scale_type != MOX_DT_F32 && l->scale_type != MOX_DT_F16 && l->scale_type != MOX_DT_BF16)
            return "scales are not F32, F16 or BF16";
        return NULL;
    case MOX_MAT_FP8:
        if (l->block_rows < 1 || l->block_cols < 1) return "weight_block_size is not positive";
        if (!mox_dtype_is_float(l->scale_type) || l->scale_type == MOX_DT_F8_E4M3)
            return "weight_scale_inv is not F32, F16, BF16 or F8_E8M0";
        return NULL;
    default: return "unknown layout";
    }
}
