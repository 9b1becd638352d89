/* ops/deltanet.h -- the gated delta rule and what surrounds it.
 *
 * Per value head h (key head h / (v_heads / k_heads)) a state S [v_dim, k_dim]:
 *   S <- g S;  d = beta (v - S k);  S <- S + d k^T;  out = S q
 * with q and k normalised.  The state is not addressable by position: going back
 * needs a copy of it. */
#ifndef MOX_OPS_DELTANET_H
#define MOX_OPS_DELTANET_H

#include "ops/exec.h"

/* Projections whose rows are grouped by key head, into one stream per kind.  With
 * r = v_heads / k_heads, group g of qkvz [n, k_heads, 2 k_dim + 2 r v_dim] holds
 * q (k_dim), k (k_dim), v and z of its r value heads (r v_dim each), and group g of
 * ba [n, k_heads, 2 r] their b, then their a.
 *   qkv [n, q of all heads | k of all heads | v of all heads], z [n, v_heads * v_dim],
 *   b, a [n, v_heads].  Unit: a token.  Class E. */
typedef struct mox_gdn_split_args {
    const float *qkvz, *ba;
    float *qkv, *z, *b, *a;
    int64_t n, k_heads, v_heads, k_dim, v_dim;
} mox_gdn_split_args;
mox_status mox_op_gdn_split(const mox_exec *e, const mox_gdn_split_args *a, mox_err *err);

/* Causal depthwise convolution over [state; x], then silu:
 *   out[t, c] = silu(sum_j V[t + j, c] weight[c * width + j]),
 * V = the width - 1 rows of state, then the n rows of x.  The state is read only.
 * width 1..8.  Unit: a channel.  Class D, then silu. */
typedef struct mox_conv1d_silu_args {
    const float *x;     /* [n, channels] with x_stride */
    const float *state; /* [width - 1, channels] */
    mox_vec weight;     /* [channels * width] */
    float *out;         /* [n, channels] with out_stride */
    int64_t n, channels, width, x_stride, out_stride;
} mox_conv1d_silu_args;
mox_status mox_op_conv1d_silu(const mox_exec *e, const mox_conv1d_silu_args *a, mox_err *err);

/* state <- the last width - 1 rows of [state; x], right for any n including 0.
 * Unit: a channel.  Class E. */
typedef struct mox_conv1d_shift_args {
    const float *x;
    float *state;
    int64_t n, channels, width, x_stride;
} mox_conv1d_shift_args;
mox_status mox_op_conv1d_shift(const mox_exec *e, const mox_conv1d_shift_args *a, mox_err *err);

/* In place, per (token, key head), no weight:
 *   SUM:  q <- q / sqrt(sum q^2 + eps) / sqrt(dim),  k <- k / sqrt(sum k^2 + eps)
 *   MEAN: the same with dim * eps (what MLX computes); differs in the third digit
 * q and k are rows of one stream: [n] tokens at `stride`, heads at `dim`.
 * Unit: a token.  Class P. */
typedef enum mox_gdn_eps { MOX_GDN_EPS_SUM = 0, MOX_GDN_EPS_MEAN } mox_gdn_eps;
typedef struct mox_gdn_qk_norm_args {
    float *q, *k;
    int64_t n, heads, dim, stride;
    float eps;
    mox_gdn_eps mode;
} mox_gdn_qk_norm_args;
mox_status mox_op_gdn_qk_norm(const mox_exec *e, const mox_gdn_qk_norm_args *a, mox_err *err);

/* g = exp(-exp(a_log[h]) softplus(a[t, h] + dt_bias[h])),  beta = sigmoid(b[t, h]).
 * a, b [n, heads] with strides; g, beta [n, heads].  Unit: a token.
 * g: 1e-6 (1 + |ln g|) relative; beta: class P. */
typedef struct mox_gdn_gates_args {
    const float *a, *b;
    int64_t a_stride, b_stride;
    mox_vec a_log, dt_bias;
    float *g, *beta;
    int64_t n, heads;
} mox_gdn_gates_args;
mox_status mox_op_gdn_gates(const mox_exec *e, const mox_gdn_gates_args *a, mox_err *err);

/* Tokens that the chunked form takes at a time. */
enum { MOX_GDN_CHUNK = 16 };

/* The recurrence for n tokens of one sequence.  q, k: k_heads * k_dim, v: v_heads *
 * v_dim elements per token, each with its stride (they may be parts of one
 * stream).  state is updated in place.  n = 0 leaves it.
 * Two operations with these arguments:
 *   gdn_recurrent  token by token.  Unit: (head, v) = h * v_dim + v, a row of S.  R64.
 *   gdn_chunk      MOX_GDN_CHUNK tokens at a time through the triangular solve; decay
 *                  products by running multiplication, so g = 0 is exact.
 *                  Unit: a head.  R64.
 * Class G between them. */
typedef struct mox_gdn_args {
    const float *q, *k, *v;
    int64_t q_stride, k_stride, v_stride;
    const float *g, *beta; /* [n, v_heads] */
    float *state;          /* [v_heads, v_dim, k_dim] */
    float *out;            /* [n, v_heads * v_dim] */
    int64_t n, k_heads, v_heads, k_dim, v_dim;
} mox_gdn_args;
mox_status mox_op_gdn_recurrent(const mox_exec *e, const mox_gdn_args *a, mox_err *err);
mox_status mox_op_gdn_chunk(const mox_exec *e, const mox_gdn_args *a, mox_err *err);

#endif
