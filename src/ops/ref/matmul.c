/* ops/ref/matmul.c -- products with weights, in the order of the columns.
 *
 * A piece of a weight row is decoded once and meets a block of tokens.  Every token
 * has an accumulator of its own, a double, fed in ascending order of columns, so the
 * bytes of a token do not depend on which others share its block. */
#include "base/size.h"
#include "ops/kern.h"
#include "ops/ref/math.h"

#include <assert.h>

enum { PIECE = 256, BLOCK = 16 };

/* Four independent sums at a time: one sum alone would wait for each addition. */
static void add_piece(const float *w, int64_t n_cols, const float *const *x, int64_t col, int64_t n, double *acc)
{
    int64_t t = 0;
    for (; t + 4 <= n; t += 4) {
        const float *x0 = x[t] + col, *x1 = x[t + 1] + col, *x2 = x[t + 2] + col, *x3 = x[t + 3] + col;
        double a0 = acc[t], a1 = acc[t + 1], a2 = acc[t + 2], a3 = acc[t + 3];
        for (int64_t i = 0; i < n_cols; i++) {
            const double v = (double)w[i];
            a0 += v * (double)x0[i];
            a1 += v * (double)x1[i];
            a2 += v * (double)x2[i];
            a3 += v * (double)x3[i];
        }
        acc[t] = a0;
        acc[t + 1] = a1;
        acc[t + 2] = a2;
        acc[t + 3] = a3;
    }
    for (; t < n; t++) {
        double a = acc[t];
        for (int64_t i = 0; i < n_cols; i++) a += (double)w[i] * (double)x[t][col + i];
        acc[t] = a;
    }
}

/* acc[t] = W[row, :] . x[t], t < n <= BLOCK. */
static void dots(const mox_mat *w, int64_t row, const float *const *x, int64_t n, double *acc)
{
    float piece[PIECE];
    for (int64_t t = 0; t < n; t++) acc[t] = 0;
    for (int64_t col = 0; col < w->cols; col += PIECE) {
        const int64_t n_cols = mox_min_i64(PIECE, w->cols - col);
        mox_mat_decode(w, row, col, n_cols, piece);
        add_piece(piece, n_cols, x, col, n, acc);
    }
}

void mox_matmul_ref(const mox_matmul_args *a, int64_t begin, int64_t end)
{
    assert(0 <= begin && end <= a->w.rows);
    const float *x[BLOCK];
    double acc[BLOCK];
    for (int64_t r = begin; r < end; r++) {
        const double bias = a->bias.type == MOX_DT_NONE ? 0 : (double)mox_vec_at(&a->bias, r);
        for (int64_t t0 = 0; t0 < a->n; t0 += BLOCK) {
            const int64_t n = mox_min_i64(BLOCK, a->n - t0);
            for (int64_t t = 0; t < n; t++) x[t] = a->x + (t0 + t) * a->x_stride;
            dots(&a->w, r, x, n, acc);
            for (int64_t t = 0; t < n; t++) a->y[(t0 + t) * a->y_stride + r] = (float)(acc[t] + bias);
        }
    }
}

static int64_t row_at(const int32_t *list, int64_t pair) { return list ? list[pair] : pair; }

void mox_matmul_grouped_ref(const mox_matmul_grouped_args *a, int64_t begin, int64_t end)
{
    const float *x[BLOCK];
    double acc[BLOCK];
    for (int64_t u = begin; u < end; u++) {
        const int64_t g = u / a->w[0].rows, r = u % a->w[0].rows, last = a->offsets[g + 1];
        assert(g < a->n_groups);
        for (int64_t p = a->offsets[g]; p < last; p += BLOCK) {
            const int64_t n = mox_min_i64(BLOCK, last - p);
            for (int64_t i = 0; i < n; i++) x[i] = a->x + row_at(a->x_row, p + i) * a->x_stride;
            dots(&a->w[g], r, x, n, acc);
            for (int64_t i = 0; i < n; i++) a->y[row_at(a->y_row, p + i) * a->y_stride + r] = (float)acc[i];
        }
    }
}

/* Both products are rounded to f32 first: the bytes of two matmuls and a swiglu. */
void mox_gate_up_swiglu_ref(const mox_gate_up_swiglu_args *a, int64_t begin, int64_t end)
{
    const float *x[BLOCK];
    double gate[BLOCK], up[BLOCK];
    for (int64_t u = begin; u < end; u++) {
        const int64_t g = u / a->gate[0].rows, r = u % a->gate[0].rows, last = a->offsets[g + 1];
        assert(g < a->n_groups);
        for (int64_t p = a->offsets[g]; p < last; p += BLOCK) {
            const int64_t n = mox_min_i64(BLOCK, last - p);
            for (int64_t i = 0; i < n; i++) x[i] = a->x + row_at(a->x_row, p + i) * a->x_stride;
            dots(&a->gate[g], r, x, n, gate);
            dots(&a->up[g], r, x, n, up);
            for (int64_t i = 0; i < n; i++)
                a->y[row_at(a->y_row, p + i) * a->y_stride + r] = mox_ref_swiglu((float)gate[i], (float)up[i]);
        }
    }
}

void mox_embed_ref(const mox_embed_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++)
        mox_mat_decode(&a->table, a->ids[t], 0, a->table.cols, a->out + t * a->out_stride);
}
