/* ops/simd/values.h -- weighted sums of rows: sum[r][c] += p[r][j] v[j][c].
 *
 * The second half of attention (p are weights of keys, v their values), and any product
 * whose matrix has been brought into rows of f32.  Lanes are columns; rows of p are
 * taken in blocks that share the reading of v.  Every sum is one chain over ascending j
 * that starts at 0, so its bytes do not depend on the rows computed beside it. */
#ifndef MOX_OPS_SIMD_VALUES_H
#define MOX_OPS_SIMD_VALUES_H

#include "ops/q8.h"
#include "ops/simd/weights.h"

enum {
    TILE = 64, /* keys */
    P_STRIDE = TILE + DOT_KEYS, /* between rows of weights, in attention: a tile, and room for keys too many */
    STRIP_VECTORS = 2,
    STRIP = STRIP_VECTORS * LANES, /* columns at a time */
    STRIP_ROWS = CHAINS / STRIP_VECTORS
};

/* A strip of columns of v, and the weights. */
typedef struct strip {
    const uint8_t *const *rows; /* of v, one per j */
    const uint8_t *const *next; /* rows to bring into the cache meanwhile, or NULL */
    mox_dtype type;             /* of v: F32, F16 or I8 */
    int64_t col, n_cols;        /* n_cols <= STRIP */
    const float *p;
    int64_t p_row; /* p[r][j] is p[r * p_row + j] */
} strip;

/* First byte of column col of a cached vector. */
ALWAYS_INLINE int64_t column_at(const mox_dtype T, int64_t col)
{
    return T == MOX_DT_I8 ? mox_q8_code_at(col) : col * (T == MOX_DT_F32 ? 4 : 2);
}

/* STRIP columns from col on; with WHOLE, else the first n_cols and zeros. */
ALWAYS_INLINE void load_strip(const mox_dtype T, const bool WHOLE, const uint8_t *row, int64_t col, int64_t n_cols,
                              vf v[STRIP_VECTORS])
{
    if (T == MOX_DT_I8) { /* zeros are stored */
        const vf scale = vf_set_f16(row + mox_q8_scale_at(col));
        for (int k = 0; k < STRIP_VECTORS; k++)
            v[k] = vf_mul(vf_from_int(vi_load_i8_wide(row + mox_q8_code_at(col) + k * LANES)), scale);
        return;
    }
    for (int k = 0; k < STRIP_VECTORS; k++) {
        const int64_t left = n_cols - k * LANES, n = left > LANES ? LANES : left > 0 ? left : 0;
        v[k] = load_numbers(row + column_at(T, col + k * LANES), T, WHOLE ? LANES : n);
    }
}

/* Rows [r, r + NR), j in [j0, j1).  Without shrink the sums at `to` are continued; with
 * it they are made from 0 and merged: to[r] = to[r] * shrink[r] + sum. */
ALWAYS_INLINE void add_block(const int NR, const mox_dtype T, const bool WHOLE, const int64_t p_row, const strip *s, int64_t r,
                             int64_t j0, int64_t j1, float *to, int64_t stride, const float *shrink)
{
    const int64_t ahead = column_at(T, s->col);
    const uint8_t *const *next = r == 0 ? s->next : NULL;
    const float *p = s->p + r * p_row;
    vf acc[STRIP_ROWS][STRIP_VECTORS];
    for (int i = 0; i < NR; i++)
        for (int k = 0; k < STRIP_VECTORS; k++)
            acc[i][k] = shrink ? vf_zero() : vf_load(to + (r + i) * stride + k * LANES);
    for (int64_t j = j0; j < j1; j++) {
        vf v[STRIP_VECTORS];
        load_strip(T, WHOLE, s->rows[j], s->col, s->n_cols, v);
        if (next) {
            prefetch_second(next[j] + ahead);
            prefetch_second(s->rows[j] + ahead + column_at(T, STRIP)); /* a line that was asked for may not have come */
        }
#pragma GCC unroll 8
        for (int i = 0; i < NR; i++) {
            const vf w = vf_set(p[i * p_row + j]);
            for (int k = 0; k < STRIP_VECTORS; k++) acc[i][k] = vf_fma(w, v[k], acc[i][k]);
        }
    }
    for (int i = 0; i < NR; i++)
        for (int k = 0; k < STRIP_VECTORS; k++) {
            float *out = to + (r + i) * stride + k * LANES;
            vf_store(out, shrink ? vf_fma(vf_load(out), vf_set(shrink[r + i]), acc[i][k]) : acc[i][k]);
        }
}

/* Weights at the usual distance have one pointer to all rows instead of one to each. */
#define MOX_ADD_BLOCKS(NR)                                                                                   \
    for (; r + NR <= r1; r += NR) {                                                                          \
        if (s->type == MOX_DT_I8) {                                                                          \
            add_block(NR, MOX_DT_I8, true, s->p_row, s, r, j0, j1, to, stride, shrink);                      \
        } else if (s->n_cols < STRIP) {                                                                      \
            if (s->type == MOX_DT_F16) add_block(NR, MOX_DT_F16, false, s->p_row, s, r, j0, j1, to, stride, shrink); \
            else add_block(NR, MOX_DT_F32, false, s->p_row, s, r, j0, j1, to, stride, shrink);               \
        } else if (s->type == MOX_DT_F32) {                                                                  \
            add_block(NR, MOX_DT_F32, true, s->p_row, s, r, j0, j1, to, stride, shrink);                     \
        } else if (s->p_row == P_STRIDE) {                                                                   \
            add_block(NR, MOX_DT_F16, true, P_STRIDE, s, r, j0, j1, to, stride, shrink);                     \
        } else {                                                                                             \
            add_block(NR, MOX_DT_F16, true, s->p_row, s, r, j0, j1, to, stride, shrink);                     \
        }                                                                                                    \
    }

/* The same for any rows [r, r1). */
static void add_rows(const strip *s, int64_t r, int64_t r1, int64_t j0, int64_t j1, float *to, int64_t stride,
                     const float *shrink)
{
    if (STRIP_ROWS >= 8) MOX_ADD_BLOCKS(8)
    MOX_ADD_BLOCKS(4)
    MOX_ADD_BLOCKS(2)
    MOX_ADD_BLOCKS(1)
}
#undef MOX_ADD_BLOCKS

#endif
