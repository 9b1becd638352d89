/* ops/mla.h -- multi-head latent attention, folded and expanded.
 *
 * The cache keeps one latent vector c [rank] and one rotated key [rope] per
 * position for all heads.  With K_h, V_h the two blocks of kv_b_proj,
 *   score = scale (K_h^T q_nope . c_j + q_pe . k_pe_j),  out_h = V_h sum_j p_j c_j.
 * scale = (nope + rope)^-1/2 times the square of YaRN's magnitude.  That is the folded form.
 * The expanded one makes keys K_h c_j and values V_h c_j of every head, which many queries
 * then share. */
#ifndef MOX_OPS_MLA_H
#define MOX_OPS_MLA_H

#include "ops/attention.h"

/* q_full [n, heads, nope + rope] -> q_nope [n, heads, nope], q_pe [n, heads, rope];
 * kv [n, rank + rope] -> latent [n, rank], k_pe [n, rope].  Unit: a token.  Class E. */
typedef struct mox_mla_split_args {
    const float *q_full, *kv;
    float *q_nope, *q_pe, *latent, *k_pe;
    int64_t n, heads, nope, rope, rank;
} mox_mla_split_args;
mox_status mox_op_mla_split(const mox_exec *e, const mox_mla_split_args *a, mox_err *err);

/* out[t, h, c] = sum_i q_nope[t, h, i] K_h[i, c],  c < rank.  w holds, for head h,
 *   by_rank = false: K_h itself, rows h * head_rows .. + nope of [*, rank]
 *                    (kv_b_proj; head_rows = nope + v_dim): contracts over rows
 *   by_rank = true:  its transpose, rows h * rank .. + rank of [*, nope] (embed_q).
 * Unit: a head.  R64.  Class D. */
typedef struct mox_mla_q_absorb_args {
    mox_mat w;
    bool by_rank;
    int64_t head_rows; /* rows of w from one head to the next */
    const float *q_nope;
    float *out;
    int64_t n, heads, nope, rank;
    bool deterministic; /* set by the entry */
} mox_mla_q_absorb_args;
mox_status mox_op_mla_q_absorb(const mox_exec *e, const mox_mla_q_absorb_args *a, mox_err *err);

/* out[t, h, f] = sum_c ctx[t, h, c] W[h * head_rows + row0 + f, c],  f < v_dim.
 * kv_b_proj: head_rows = nope + v_dim, row0 = nope; unembed_out: v_dim and 0.
 * Unit: (head, f) = h * v_dim + f.  R64.  Class D. */
typedef struct mox_mla_out_args {
    mox_mat w; /* [*, rank] */
    int64_t head_rows, row0;
    const float *ctx;
    float *out;
    int64_t n, heads, v_dim, rank;
    bool deterministic; /* set by the entry */
} mox_mla_out_args;
mox_status mox_op_mla_out(const mox_exec *e, const mox_mla_out_args *a, mox_err *err);

/* ctx[row, h, :] = sum_j softmax_j(scale (q[row, h] . c_j + q_pe[row, h] . k_pe_j)) c_j,
 * causal, over the caches of each span (heads stride unused: one head).
 * Unit: (row, head).  R64.  Class S. */
typedef struct mox_mla_attention_args {
    const float *q;    /* [rows, heads, rank], absorbed */
    const float *q_pe; /* [rows, heads, rope], rotated  */
    float *ctx;        /* [rows, heads, rank] */
    mox_cache latent, k_pe;
    const mox_span *spans;
    int64_t n_spans;
    int64_t heads, rank, rope;
    float scale;
    float *parts;    /* [n_parts], scratch as in attention, or NULL: of devices that cut */
    int64_t n_parts;
} mox_mla_attention_args;
mox_status mox_op_mla_attention(const mox_exec *e, const mox_mla_attention_args *a, mox_err *err);

/* out[row, h, :] = sum_j p_j V_h c_j with p = softmax_j(scale (q_nope[row, h] . K_h c_j +
 * q_pe[row, h] . k_pe_j)), causal: what mla_q_absorb, mla_attention and mla_out give one
 * after the other, but with keys and values of a tile of positions made for all rows of a
 * span.  The rows of the spans follow each other.  nope + rope and v_dim are at most
 * MOX_MLA_EXPANDED_MAX.  key and value as in mla_q_absorb (by_rank) and mla_out.
 * Unit: a head.  R64 for keys and values, state f32.  Class S. */
enum { MOX_MLA_EXPANDED_MAX = 256 };
typedef struct mox_mla_expanded_args {
    mox_mat key, value;
    bool by_rank;
    int64_t key_rows, value_rows, value_row0; /* rows of key and value from one head to the next; the first row of a value */
    const float *q_nope, *q_pe; /* [rows, heads, nope], [rows, heads, rope] */
    float *out;                 /* [rows, heads, v_dim] */
    mox_cache latent, k_pe;
    const mox_span *spans;
    int64_t n_spans;
    int64_t heads, nope, rope, rank, v_dim;
    float scale;
    float *state;   /* [heads, rows, 2], scratch */
    float *q, *ctx; /* [rows, heads, rank], scratch of devices that fold all the same, and ... */
    float *parts;   /* ... of their attention */
    int64_t n_parts;
} mox_mla_expanded_args;
/* Multiplications of one head for a span, in one form or the other. */
static inline int64_t mox_mla_macs(const mox_span *s, int64_t nope, int64_t rope, int64_t rank, int64_t v_dim, bool expanded)
{
    const int64_t pairs = s->n * s->pos0 + s->n * (s->n + 1) / 2, per_row = (nope + v_dim) * rank;
    if (expanded) return pairs * (nope + rope + v_dim) + (s->pos0 + s->n) * per_row;
    return pairs * (2 * rank + rope) + s->n * per_row;
}
/* Is the expanded form the cheaper one?  Few rows would not fill the vectors of its kernels. */
static inline bool mox_mla_expands(const mox_span *s, int64_t nope, int64_t rope, int64_t rank, int64_t v_dim)
{
    return s->n >= 16 && nope + rope <= MOX_MLA_EXPANDED_MAX && v_dim <= MOX_MLA_EXPANDED_MAX &&
           mox_mla_macs(s, nope, rope, rank, v_dim, true) < mox_mla_macs(s, nope, rope, rank, v_dim, false);
}
mox_status mox_op_mla_expanded(const mox_exec *e, const mox_mla_expanded_args *a, mox_err *err);

/* mla_attention for one query token over keys [begin, end), tile after tile, with the
 * running maximum, denominator and unnormalised sum of each head kept outside:
 * caches longer than any one kernel's memory.  first: the state is not read.  An
 * empty tile changes nothing (and initialises the state when first).
 * Unit: a head.  R64 inside a tile, state f32.  Class S after finish. */
typedef struct mox_mla_tile_args {
    const float *q, *q_pe;  /* [heads, rank], [heads, rope] */
    mox_cache latent, k_pe; /* one page */
    int64_t begin, end;
    int64_t heads, rank, rope;
    float scale;
    bool first;
    float *max, *denom; /* [heads] */
    float *sum;         /* [heads, rank] */
} mox_mla_tile_args;
mox_status mox_op_mla_tile(const mox_exec *e, const mox_mla_tile_args *a, mox_err *err);

/* ctx = sum / denom, or 0 where denom is 0.  Unit: a head.  Class P. */
typedef struct mox_mla_finish_args {
    const float *denom, *sum;
    float *ctx;
    int64_t heads, rank;
} mox_mla_finish_args;
mox_status mox_op_mla_finish(const mox_exec *e, const mox_mla_finish_args *a, mox_err *err);

#endif
