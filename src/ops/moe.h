/* ops/moe.h -- routing, bucketing and combining of experts.
 *
 * A pair is (token, slot): p = token * k + slot.  Experts write the rows of their
 * pairs and every token sums its slots in ascending order, so that the result
 * does not depend on the order in which experts were computed. */
#ifndef MOX_OPS_MOE_H
#define MOX_OPS_MOE_H

#include "ops/exec.h"

/* ---- routing ---- */

/* p = softmax(logits) over all experts; ids, weights [n, k] of the k largest.  p is
 * compared through the logits, which it grows with: no tie comes of underflow.
 *   SORTED       descending; on equal p the smaller index wins
 *   RUNNING_MIN  k slots, each expert replaces the first smallest if larger: an
 *                order (and on ties a choice) of its own, kept for parity
 * renormalize divides the weights by their sum.  NaN counts as -inf; a row without
 * a finite logit gets ids 0..k-1 with weight 1/k and is counted in *n_degenerate
 * (may be NULL; added to, not set).  0 < k <= n_experts.
 * Unit: a token.  ids E, weights 1e-5. */
typedef enum mox_topk_order { MOX_TOPK_SORTED = 0, MOX_TOPK_RUNNING_MIN } mox_topk_order;
typedef struct mox_router_topk_args {
    const float *logits; /* [n, n_experts] */
    int32_t *ids;
    float *weights;
    int64_t n, n_experts, k;
    mox_topk_order order;
    bool renormalize;
    int64_t *n_degenerate;
} mox_router_topk_args;
mox_status mox_op_router_topk(const mox_exec *e, const mox_router_topk_args *a, mox_err *err);

/* DeepSeek's choice: s = sigmoid(logits), c = s + bias.  Of n_groups runs of
 * consecutive experts keep the kept_groups with the largest sum of their two best c;
 * among those the k largest c, ties to the smaller index, best first.
 *   weights = s[ids] (/ (sum + 1e-20) when renormalize) * factor
 * s and c are rounded to f32, and compared so, as in training.  n_groups divides
 * n_experts; kept_groups * (n_experts / n_groups) >= k.  NaN logits count as -inf.
 * Unit: a token.  ids E, weights 1e-5. */
typedef struct mox_router_sigmoid_args {
    const float *logits;
    mox_vec bias; /* [n_experts], or NONE */
    int32_t *ids;
    float *weights;
    int64_t n, n_experts, k, n_groups, kept_groups;
    bool renormalize;
    float factor;
} mox_router_sigmoid_args;
mox_status mox_op_router_sigmoid(const mox_exec *e, const mox_router_sigmoid_args *a, mox_err *err);

/* weights[t, :] /= their sum where that is > 0, else unchanged.  Unit: a token.  Class P. */
typedef struct mox_router_normalize_args {
    float *weights; /* [n, k] */
    int64_t n, k;
} mox_router_normalize_args;
mox_status mox_op_router_normalize(const mox_exec *e, const mox_router_normalize_args *a, mox_err *err);

/* ---- bucketing ---- */

/* Stable counting sort of pairs by expert: expert x owns pairs[offsets[x] ..
 * offsets[x+1]), ascending.  Ids outside [0, n_experts) are left out.  One unit.
 * Class E. */
typedef struct mox_moe_bucket_args {
    const int32_t *ids; /* [n_pairs] */
    int64_t n_pairs, n_experts;
    int64_t *offsets; /* [n_experts + 1] */
    int32_t *pairs;   /* [n_pairs] */
} mox_moe_bucket_args;
mox_status mox_op_moe_bucket(const mox_exec *e, const mox_moe_bucket_args *a, mox_err *err);

/* The same in the strided form that GPU launches take: counts [n_experts], rows
 * [n_experts, row_stride] of which the first counts[x] are defined, and two launch
 * sizes {ceil(max(1, max count) / 32), ceil(m / 64), n_experts} for m = m_gate_up and
 * m_down.  row_stride >= the largest count, else MOX_E_FULL, and counts say how
 * much is needed.  One unit.  Class E. */
typedef struct mox_moe_bucket_strided_args {
    const int32_t *ids;
    int64_t n_pairs, n_experts, row_stride, m_gate_up, m_down;
    int32_t *counts, *rows;
    uint32_t *launch_gate_up, *launch_down; /* [3] each, or NULL */
} mox_moe_bucket_strided_args;
mox_status mox_op_moe_bucket_strided(const mox_exec *e, const mox_moe_bucket_strided_args *a, mox_err *err);

/* ---- combining ---- */

/* out[t, i] = sum_s w[t, s] slots[row(t, s), i], s ascending; row(t, s) is
 * row_of[t * k + s], or t * k + s when row_of is NULL.  k = 0 gives 0.  n_rows
 * bounds row_of.  Unit: a token.  R64.  Class D. */
typedef struct mox_weighted_sum_args {
    const float *slots; /* [n_rows, dim] */
    const float *w;     /* [n, k] */
    const int32_t *row_of;
    float *out; /* [n, dim] */
    int64_t n, k, dim, n_rows;
} mox_weighted_sum_args;
mox_status mox_op_weighted_sum(const mox_exec *e, const mox_weighted_sum_args *a, mox_err *err);

/* res[t, i] += the weighted sum above (row(t, s) = t * k + s), completed and rounded
 * to f32 first: B with weighted_sum followed by add.  Unit: a token. */
typedef struct mox_weighted_sum_residual_args {
    const float *slots, *w;
    float *res;
    int64_t n, k, dim;
} mox_weighted_sum_residual_args;
mox_status mox_op_weighted_sum_residual(const mox_exec *e, const mox_weighted_sum_residual_args *a, mox_err *err);

/* The tail of one layer and the first norm of the next: res as above (B), then
 * normed = rms_norm(res) with the next layer's gain.  The next layer must not norm
 * again.  Unit: a token.  Class P on normed. */
typedef struct mox_weighted_sum_residual_norm_args {
    const float *slots, *w;
    float *res, *normed;
    int64_t n, k, dim;
    mox_vec weight;
    float offset, eps;
} mox_weighted_sum_residual_norm_args;
mox_status mox_op_weighted_sum_residual_norm(const mox_exec *e, const mox_weighted_sum_residual_norm_args *a,
                                             mox_err *err);

/* out = (h + sum_s w[t, s] expert(t, s)) + shared part:
 *   NONE      nothing
 *   GATED     sigmoid(gate[t]) * shared[t]
 *   UNSCALED  shared[t]
 * expert(t, s) is experts[(t * k + s) * dim], or slots[s] + t * dim when slots is
 * given (separate buffers; those beyond k are never read).  out may be h.
 * Unit: a token.  R64 sum, rounded to f32 before it is added.  Class D. */
typedef enum mox_shared_mode { MOX_SHARED_NONE = 0, MOX_SHARED_GATED, MOX_SHARED_UNSCALED } mox_shared_mode;
typedef struct mox_moe_combine_args {
    const float *h;             /* [n, dim] */
    const float *experts;       /* [n * k, dim], or NULL with slots */
    const float *const *slots;  /* [k] buffers [n, dim], or NULL */
    const float *w;             /* [n, k] */
    mox_shared_mode mode;
    const float *shared;        /* [n, dim] */
    const float *gate;          /* [n], before the sigmoid; GATED only */
    int64_t gate_stride;
    float *out;
    int64_t n, k, dim;
} mox_moe_combine_args;
mox_status mox_op_moe_combine(const mox_exec *e, const mox_moe_combine_args *a, mox_err *err);

/* out = (h + moe) + shared part, where moe [n, dim] is summed already.  out may be
 * h or moe.  Unit: a token.  Class P. */
typedef struct mox_moe_combine_sum_args {
    const float *h, *moe;
    mox_shared_mode mode;
    const float *shared, *gate;
    int64_t gate_stride;
    float *out;
    int64_t n, dim;
} mox_moe_combine_sum_args;
mox_status mox_op_moe_combine_sum(const mox_exec *e, const mox_moe_combine_sum_args *a, mox_err *err);

/* sum[token[b], i] += w[b] * rows[b, i], b ascending: one expert's bucket added to
 * sums that the caller zeroed.  Its order is that of buckets, not of slots: the
 * engine uses weighted_sum.  token outside [0, n_tokens) is MOX_E_ARG and nothing
 * is written; a token may occur twice.  Unit: a column.  Class D. */
typedef struct mox_moe_bucket_accumulate_args {
    const float *rows; /* [n_rows, dim] */
    const int32_t *token;
    const float *w;
    float *sum; /* [n_tokens, dim] */
    int64_t n_rows, dim, n_tokens;
} mox_moe_bucket_accumulate_args;
mox_status mox_op_moe_bucket_accumulate(const mox_exec *e, const mox_moe_bucket_accumulate_args *a, mox_err *err);

#endif
