/* ops/attention.h -- key/value caches and softmax attention.
 *
 * A cache is pages of page_len positions; position p of head h is at
 *   data + pages[p / page_len] * page_stride + (p % page_len) * token_stride + h * head_stride
 * in elements of its type (F32, F16, or I8 as ops/q8.h has it).  A contiguous cache is one page; token-major
 * and head-major caches differ in their strides only.  Query head h reads key head
 * h / (heads / kv_heads). */
#ifndef MOX_OPS_ATTENTION_H
#define MOX_OPS_ATTENTION_H

#include "ops/exec.h"

typedef struct mox_cache {
    void *data;
    mox_dtype type; /* F32, F16, I8 */
    int64_t page_len, page_stride, token_stride, head_stride;
    int64_t n_pages; /* pages behind data: bounds every page id */
} mox_cache;

/* Rows [row0, row0 + n) of a batch belong to one sequence, at positions
 * [pos0, pos0 + n) of its timeline. */
typedef struct mox_span {
    int64_t row0, n, pos0;
    const int32_t *pages; /* page table of the sequence */
    int64_t n_pages;      /* its length: room for n_pages * page_len positions */
} mox_span;

/* cache[pos0 + i, h, :] = src[row0 + i, h, :] for every span, converted to the
 * cache's type.  A span without room is MOX_E_FULL and nothing is written.
 * Unit: a row of the batch (spans in order).  Class E. */
typedef struct mox_kv_append_args {
    mox_cache cache;
    const mox_span *spans;
    int64_t n_spans;
    const float *src;
    int64_t heads, dim, stride, head_stride; /* of src */
} mox_kv_append_args;
mox_status mox_op_kv_append(const mox_exec *e, const mox_kv_append_args *a, mox_err *err);

/* Softmax attention of every row of every span over its sequence's cache, which
 * already holds the span's own keys and values.  Query at position p sees keys j
 * with j <= p when causal, else j < pos0 + n; with window > 0 also j > p - window.
 *   out[row, h, :] = sum_j softmax_j(scale q . k_j) v_j
 * sinks (NULL or [heads]): one more logit per head that only enlarges the
 * denominator, not scaled.  A row that sees no key is 0.
 * Unit: (row, head) = row * heads + h, rows counted over the spans.  R64.  Class S. */
typedef struct mox_attention_args {
    const float *q; /* [rows, heads, dim] */
    float *out;     /* [rows, heads, v_dim] */
    mox_cache k, v;
    const mox_span *spans;
    int64_t n_spans;
    int64_t heads, kv_heads, dim, v_dim;
    int64_t q_stride, q_head_stride, out_stride, out_head_stride;
    float scale;
    bool causal;
    int64_t window; /* 0 = none */
    const float *sinks;
    float *parts;       /* NULL, or [n_parts] for what pieces find */
    int64_t n_parts;
} mox_attention_args;
mox_status mox_op_attention(const mox_exec *e, const mox_attention_args *a, mox_err *err);

/* With parts, a span of one row that sees more than MOX_ATTENTION_PIECE keys is attended
 * to in pieces, so that many threads can share it.  The pieces follow from the keys it
 * sees alone.  attention leaves such rows out; then
 *   attention_parts finds maximum, denominator and sum of values of every piece.
 *     Unit: (split row, piece, head) = (row * MOX_ATTENTION_PIECES + piece) * heads + h.
 *   attention_merge makes the output from them.  Unit: (split row, head).
 * where split rows are counted over the spans.  Room for n_spans split rows: */
enum { MOX_ATTENTION_PIECE = 1024, MOX_ATTENTION_PIECES = 16 };
static inline int64_t mox_attention_parts(int64_t n_spans, int64_t heads, int64_t v_dim)
{
    return n_spans * heads * MOX_ATTENTION_PIECES * (v_dim + 2);
}

/* The three steps of attention for one query token, over a contiguous cache.
 * scores[h * score_stride + p] = scale q[h] . k[p, h / (heads/kv_heads)], p < n_keys.
 * Unit: a head.  R64.  Class D. */
typedef struct mox_attn_scores_args {
    const float *q; /* [heads, dim] */
    mox_cache k;    /* one page */
    float *scores;
    int64_t heads, kv_heads, dim, n_keys, score_stride;
    float scale;
} mox_attn_scores_args;
mox_status mox_op_attn_scores(const mox_exec *e, const mox_attn_scores_args *a, mox_err *err);

/* Softmax in place over the first n_keys of every row; the rest is not touched.
 * A row of only -inf becomes 0.  Unit: a row.  R64.  Class S. */
typedef struct mox_attn_softmax_args {
    float *scores;
    int64_t rows, n_keys, stride;
} mox_attn_softmax_args;
mox_status mox_op_attn_softmax(const mox_exec *e, const mox_attn_softmax_args *a, mox_err *err);

/* out[h, :] = sum_p scores[h, p] v[p, h / (heads/kv_heads), :].  Unit: a head.
 * R64.  Class S. */
typedef struct mox_attn_values_args {
    const float *scores;
    mox_cache v; /* one page */
    float *out;  /* [heads, dim] */
    int64_t heads, kv_heads, dim, n_keys, score_stride;
} mox_attn_values_args;
mox_status mox_op_attn_values(const mox_exec *e, const mox_attn_values_args *a, mox_err *err);

/* in [n, heads, 2 dim], per head [q | gate] -> q, gate [n, heads, dim].
 * Unit: a token.  Class E. */
typedef struct mox_split_q_gate_args {
    const float *in;
    float *q, *gate;
    int64_t n, heads, dim;
} mox_split_q_gate_args;
mox_status mox_op_split_q_gate(const mox_exec *e, const mox_split_q_gate_args *a, mox_err *err);

/* in [heads, n, dim] -> out [n, heads, dim].  Unit: a token.  Class E. */
typedef struct mox_transpose_heads_args {
    const float *in;
    float *out;
    int64_t n, heads, dim;
} mox_transpose_heads_args;
mox_status mox_op_transpose_heads(const mox_exec *e, const mox_transpose_heads_args *a, mox_err *err);

#endif
