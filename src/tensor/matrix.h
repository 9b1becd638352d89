/* tensor/matrix.h -- a weight matrix as kernels see it: the bytes of the file and
 * how to read them.  [rows, cols], row-major, y[r] = sum_c W[r,c] x[c].
 *
 *   F32 F16 BF16   row r at w + r * row_bytes
 *   AFFINE         W[r,c] = scale[r, c/group] * code[r,c] + bias[r, c/group]; code c
 *                  of a row occupies bits [c*bits, c*bits + bits) of the row's bytes,
 *                  counted from the least significant bit of its first byte
 *   FP8            W[r,c] = e4m3[r,c] * scale[(row0 + r) / block_rows, c / block_cols];
 *                  the last block of an axis may be cut short
 *
 * All pointers are byte-aligned only: files put tensors at odd offsets. */
#ifndef MOX_TENSOR_MATRIX_H
#define MOX_TENSOR_MATRIX_H

#include "tensor/dtype.h"

#include <stdint.h>

typedef enum mox_mat_kind {
    MOX_MAT_NONE = 0,
    MOX_MAT_F32,
    MOX_MAT_F16,
    MOX_MAT_BF16,
    MOX_MAT_AFFINE,
    MOX_MAT_FP8
} mox_mat_kind;

/* How the bytes of a matrix are laid out, without saying where they are. */
typedef struct mox_mat_layout {
    mox_mat_kind kind;
    int32_t bits;         /* AFFINE: 2 3 4 5 6 8          */
    int32_t group;        /* AFFINE: 32 64 128            */
    mox_dtype scale_type; /* AFFINE: F32 F16 BF16; FP8: F32 BF16 F16 F8_E8M0 */
    int32_t block_rows, block_cols; /* FP8 */
} mox_mat_layout;

typedef struct mox_mat {
    mox_mat_layout layout;
    int64_t rows, cols;
    int64_t row0;          /* FP8: row of the whole tensor that row 0 of this view is */
    const uint8_t *w;      /* packed codes or elements */
    const uint8_t *scales; /* AFFINE [rows, cols/group]; FP8: the whole grid          */
    const uint8_t *biases; /* AFFINE, as scales */
} mox_mat;

/* A vector of a file: norm gains, biases, decay rates. */
typedef struct mox_vec {
    mox_dtype type; /* MOX_DT_NONE: there is none */
    int64_t n;
    const uint8_t *data;
} mox_vec;

static inline float mox_vec_at(const mox_vec *v, int64_t i) { return mox_load_as_f32(v->data, v->type, i); }

int64_t mox_mat_row_bytes(const mox_mat_layout *l, int64_t cols);       /* of w      */
int64_t mox_mat_scale_row_bytes(const mox_mat_layout *l, int64_t cols); /* of scales */

/* Rows [row, row + n) of m, a view. */
mox_mat mox_mat_rows(const mox_mat *m, int64_t row, int64_t n);

/* Decodes W[row, col .. col + n) to f32: exactly code * scale + bias rounded once
 * to f32 (the product in double), or element * scale. */
void mox_mat_decode(const mox_mat *m, int64_t row, int64_t col, int64_t n, float *out);

/* NULL when the layout is one the kernels know and fits cols; else what is wrong. */
const char *mox_mat_layout_problem(const mox_mat_layout *l, int64_t cols);

#endif
