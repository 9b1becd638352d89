/* ops/exec.h -- how every operation is called.
 *
 * An operation OP has three parts:
 *   mox_OP_args            what to compute: shapes, strides, borrowed pointers
 *   mox_OP_ref, _avx2 ...  kernels: void, they assert, and compute the units
 *                          [begin, end) of the work; the result of a unit does not
 *                          depend on how the range is cut
 *   mox_op_OP              the checked entry: validates the arguments, returns a
 *                          status, and shares the units out over the pool
 *
 * Conventions for all contracts: activations, states and weights of routing are
 * f32, row-major, token axis outermost; matrices are [out, in]; strides count
 * elements; ids are int32; every size is int64.  Zero tokens are legal and do
 * nothing.  Outputs may not overlap inputs unless the contract says so.
 *
 * Tolerance classes, against the reference on the same inputs:
 *   E  exact bytes
 *   B  same bytes as a named sibling operation at the same level
 *   P  pointwise: |d| <= 5e-6 |ref| + 1e-7
 *   D  dot product: |d| <= 1e-5 M + 1e-7, M = sum |terms|; for affine weights the
 *      terms are (|code * scale| + |bias|) |x|, because those two cancel
 *   S  softmax, attention: probabilities 1e-5; outputs 1e-5 max|V|, cosine >= 0.9999
 *   G  recurrences: 1e-4 max|ref| after 64 tokens, cosine >= 0.99999
 * "R64" marks references that accumulate in double. */
#ifndef MOX_OPS_EXEC_H
#define MOX_OPS_EXEC_H

#include "base/err.h"
#include "base/pool.h"
#include "tensor/matrix.h"

struct mox_kern; /* ops/kern.h */

/* How activations enter products with quantized weights. */
typedef enum mox_precision {
    MOX_PRECISION_DEFAULT = 0, /* 16 bits: two planes of signed bytes */
    MOX_PRECISION_EXACT,       /* f32 */
    MOX_PRECISION_FAST         /* 8 bits: one plane */
} mox_precision;

/* What an operation runs on: a kernel table and, when there is one, a pool. */
typedef struct mox_exec {
    const struct mox_kern *kern;
    mox_pool *pool; /* may be NULL */
    mox_precision precision;
    bool deterministic; /* a row's result does not depend on how many rows there are: one kernel for every
                         * number of them where otherwise the faster one is chosen */
} mox_exec;

#endif
