/* ops/matmul.h -- products of activations with stored weights. */
#ifndef MOX_OPS_MATMUL_H
#define MOX_OPS_MATMUL_H

#include "ops/exec.h"

/* Bytes of scratch for a product with n rows of activations of cols columns, whatever
 * the level and the layout: kernels keep prepared activations there.  -1 when n and
 * cols are absurd. */
int64_t mox_matmul_scratch(int64_t n, int64_t cols);

/* Rows of w that a thread takes at a time, or a multiple of that, of a product with so many tokens. */
int64_t mox_matmul_grain(const mox_mat *w, int64_t tokens);

/* What a product is computed by, beside its operands: mox_exec and mox_kern say it. */
typedef struct mox_matmul_how {
    mox_precision precision;
    bool deterministic, by_rows, stripes;
} mox_matmul_how;

/* y[t, r] = sum_c W[r, c] x[t, c] + bias[r],  t < n, any layout of W.
 * x [n, cols], y [n, rows].  Unit: a row of W.  R64.  Class D; one token gives
 * the same bytes alone and in a batch (B) on the reference. */
typedef struct mox_matmul_args {
    mox_mat w;
    const float *x;
    float *y;
    int64_t n, x_stride, y_stride;
    mox_vec bias; /* type NONE: no bias; else n == rows */
    bool exact;   /* f32 activations whatever the precision: the result decides something */
    void *scratch;           /* mox_matmul_scratch(n, cols) bytes aligned for floats; the reference needs none */
    mox_matmul_how how;      /* set by the entry */
} mox_matmul_args;
mox_status mox_op_matmul(const mox_exec *e, const mox_matmul_args *a, mox_err *err);

/* Up to MOX_MATMUL_LIST products, of which none reads what another writes; with the same bytes as one after the
 * other.  Products of one x that have one scratch and weights of one layout prepare it once, and their rows are shared
 * out together. */
enum { MOX_MATMUL_LIST = 4 };
mox_status mox_op_matmul_list(const mox_exec *e, const mox_matmul_args *a, int64_t n, mox_err *err);

/* The product for many weight matrices of one shape at once: the experts of a
 * layer.  Group g owns the pairs [offsets[g], offsets[g+1]); pair p reads row
 * x_row[p] of x and writes row y_row[p] of y.  NULL for a row list means row p.
 *   y[y_row[p], r] = sum_c w[g][r, c] x[x_row[p], c]
 * All w[g] have the same rows and cols (layouts may differ).  n_x_rows and
 * n_y_rows bound the row lists.  Unit: (group, row) = g * rows + r.  R64.
 * Class D; each group gives the bytes of mox_op_matmul (B on the reference). */
typedef struct mox_matmul_grouped_args {
    int64_t n_groups;
    const mox_mat *w;       /* [n_groups] */
    const int64_t *offsets; /* [n_groups + 1], ascending from 0 */
    const int32_t *x_row, *y_row;
    const float *x;
    float *y;
    int64_t x_stride, y_stride;
    int64_t n_x_rows, n_y_rows;
    void *scratch;           /* mox_matmul_scratch(pairs, cols) bytes, as above */
    mox_matmul_how how;      /* set by the entry */
} mox_matmul_grouped_args;
mox_status mox_op_matmul_grouped(const mox_exec *e, const mox_matmul_grouped_args *a, mox_err *err);

/* y = silu(gate x) * (up x), x read once, over groups as above; n_groups = 1 with
 * offsets {0, n} is the plain feed-forward.  gate[g] and up[g] have one shape.
 * Unit: (group, row).  R64.  Class D on both dots, then P. */
typedef struct mox_gate_up_swiglu_args {
    int64_t n_groups;
    const mox_mat *gate, *up; /* [n_groups] each */
    const int64_t *offsets;
    const int32_t *x_row, *y_row;
    const float *x;
    float *y;
    int64_t x_stride, y_stride;
    int64_t n_x_rows, n_y_rows;
    void *scratch;           /* mox_matmul_scratch(pairs, cols) bytes, as above */
    mox_matmul_how how;      /* set by the entry, */
    int64_t most_alike;      /*   and so is this: pairs of the largest group, when all gates have one layout; else 0 */
} mox_gate_up_swiglu_args;
mox_status mox_op_gate_up_swiglu(const mox_exec *e, const mox_gate_up_swiglu_args *a, mox_err *err);

/* out[t, :] = row ids[t] of table, decoded.  An id outside [0, rows) is MOX_E_ARG
 * and nothing is written.  Unit: a token.  Class P (E for unquantized tables). */
typedef struct mox_embed_args {
    mox_mat table; /* [V, D] */
    const int32_t *ids;
    float *out;
    int64_t n, out_stride;
} mox_embed_args;
mox_status mox_op_embed(const mox_exec *e, const mox_embed_args *a, mox_err *err);

#endif
