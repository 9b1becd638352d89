/* ops/attention.c -- checked entries of caches and softmax attention. */
#include "ops/attention.h"

#include "ops/cache_entry.h"
#include "ops/span.h"

mox_status mox_op_kv_append(const mox_exec *e, const mox_kv_append_args *a, mox_err *err)
{
    const mox_check c = {"kv_append", err};
    int64_t rows, row_end, width;
    MOX_TRY(mox_check_size(&c, "heads", a->heads, 1));
    MOX_TRY(mox_check_size(&c, "dim", a->dim, 1));
    MOX_TRY(mox_check_product(&c, "src", a->heads, a->dim, &width));
    MOX_TRY(mox_check_spans(&c, a->spans, a->n_spans, &rows, &row_end));
    if (rows == 0) return MOX_OK;
    MOX_TRY(mox_check_heads(&c, "src", a->src, row_end, a->heads, a->dim, a->stride, a->head_stride));
    MOX_TRY(mox_check_cache(&c, "the cache", &a->cache, a->heads, a->dim));
    MOX_TRY(mox_check_pages(&c, "the cache", &a->cache, a->spans, a->n_spans, 0, MOX_E_FULL));
    mox_run_kv_append(e, a, rows, mox_grain(width));
    return MOX_OK;
}

/* Units for one thread: heads that share keys stay together, and so do rows of a prompt,
 * which share the keys before them; but there must be enough pieces to go round. */
static int64_t attention_grain(const mox_attention_args *a, int64_t rows)
{
    enum { ROWS_MAX = 16, PIECES = 8 };
    for (int64_t i = 0; i < a->n_spans; i++)
        if (a->spans[i].n > 1) return a->heads * mox_min_i64(ROWS_MAX, mox_max_i64(1, rows / PIECES));
    return a->heads / a->kv_heads;
}

static mox_status count_split(const mox_check *c, const mox_attention_args *a, int64_t *n)
{
    int64_t floats;
    *n = 0;
    for (int64_t i = 0; i < a->n_spans; i++) *n += mox_pieces_of(a, &a->spans[i]).n > 1;
    MOX_TRY(mox_check_f32(c, "parts", a->parts, a->parts ? a->n_parts : 0));
    MOX_TRY(mox_check_product(c, "parts", *n * MOX_ATTENTION_PIECES, a->heads, &floats));
    MOX_TRY(mox_check_product(c, "parts", floats, a->v_dim + 2, &floats));
    if (floats <= a->n_parts || *n == 0) return MOX_OK;
    return mox_refuse(c, MOX_E_ARG, "parts has room for %lld numbers, but %lld are needed", (long long)a->n_parts,
                      (long long)floats);
}

mox_status mox_op_attention(const mox_exec *e, const mox_attention_args *a, mox_err *err)
{
    const mox_check c = {"attention", err};
    int64_t rows, row_end, units, n_split;
    MOX_TRY(mox_check_head_groups(&c, a->heads, a->kv_heads));
    MOX_TRY(mox_check_size(&c, "dim", a->dim, 1));
    MOX_TRY(mox_check_size(&c, "v_dim", a->v_dim, 1));
    MOX_TRY(mox_check_size(&c, "window", a->window, 0));
    MOX_TRY(mox_check_spans(&c, a->spans, a->n_spans, &rows, &row_end));
    if (rows == 0) return MOX_OK;
    MOX_TRY(mox_check_product(&c, "rows", rows, a->heads, &units));
    MOX_TRY(mox_check_heads(&c, "q", a->q, row_end, a->heads, a->dim, a->q_stride, a->q_head_stride));
    MOX_TRY(mox_check_heads(&c, "out", a->out, row_end, a->heads, a->v_dim, a->out_stride,
                            a->out_head_stride));
    MOX_TRY(mox_check_cache(&c, "the key cache", &a->k, a->kv_heads, a->dim));
    MOX_TRY(mox_check_cache(&c, "the value cache", &a->v, a->kv_heads, a->v_dim));
    /* Pages that have left the window are not read and may have been given away. */
    const int64_t reach = a->window > 0 ? a->window - 1 : INT64_MAX;
    MOX_TRY(mox_check_pages(&c, "the key cache", &a->k, a->spans, a->n_spans, reach, MOX_E_ARG));
    MOX_TRY(mox_check_pages(&c, "the value cache", &a->v, a->spans, a->n_spans, reach, MOX_E_ARG));
    MOX_TRY(count_split(&c, a, &n_split));
    const int64_t group = a->heads / a->kv_heads;
    if (rows > n_split) mox_run_attention(e, a, units, attention_grain(a, rows));
    if (n_split == 0) return MOX_OK;
    mox_run_attention_parts(e, a, n_split * MOX_ATTENTION_PIECES * a->heads, group);
    mox_run_attention_merge(e, a, n_split * a->heads, group);
    return MOX_OK;
}

mox_status mox_op_attn_scores(const mox_exec *e, const mox_attn_scores_args *a, mox_err *err)
{
    const mox_check c = {"attn_scores", err};
    int64_t n;
    MOX_TRY(mox_check_head_groups(&c, a->heads, a->kv_heads));
    MOX_TRY(mox_check_size(&c, "dim", a->dim, 1));
    MOX_TRY(mox_check_size(&c, "n_keys", a->n_keys, 0));
    if (a->n_keys == 0) return MOX_OK;
    MOX_TRY(mox_check_product(&c, "q", a->heads, a->dim, &n));
    MOX_TRY(mox_check_f32(&c, "q", a->q, n));
    MOX_TRY(mox_check_cache(&c, "the key cache", &a->k, a->kv_heads, a->dim));
    MOX_TRY(mox_check_one_page(&c, "the key cache", &a->k, a->n_keys));
    MOX_TRY(mox_check_rows(&c, "scores", a->scores, a->heads, a->n_keys, a->score_stride));
    mox_run_attn_scores(e, a, a->heads, a->heads / a->kv_heads);
    return MOX_OK;
}

mox_status mox_op_attn_softmax(const mox_exec *e, const mox_attn_softmax_args *a, mox_err *err)
{
    const mox_check c = {"attn_softmax", err};
    MOX_TRY(mox_check_size(&c, "rows", a->rows, 0));
    MOX_TRY(mox_check_size(&c, "n_keys", a->n_keys, 0));
    if (a->n_keys == 0) return MOX_OK;
    MOX_TRY(mox_check_rows(&c, "scores", a->scores, a->rows, a->n_keys, a->stride));
    mox_run_attn_softmax(e, a, a->rows, 1);
    return MOX_OK;
}

mox_status mox_op_attn_values(const mox_exec *e, const mox_attn_values_args *a, mox_err *err)
{
    const mox_check c = {"attn_values", err};
    int64_t n;
    MOX_TRY(mox_check_head_groups(&c, a->heads, a->kv_heads));
    MOX_TRY(mox_check_size(&c, "dim", a->dim, 1));
    MOX_TRY(mox_check_size(&c, "n_keys", a->n_keys, 0));
    MOX_TRY(mox_check_product(&c, "out", a->heads, a->dim, &n));
    MOX_TRY(mox_check_f32(&c, "out", a->out, n));
    if (a->n_keys > 0) { /* without a key the output is 0 and nothing else is looked at */
        MOX_TRY(mox_check_cache(&c, "the value cache", &a->v, a->kv_heads, a->dim));
        MOX_TRY(mox_check_one_page(&c, "the value cache", &a->v, a->n_keys));
        MOX_TRY(mox_check_rows(&c, "scores", a->scores, a->heads, a->n_keys, a->score_stride));
    }
    mox_run_attn_values(e, a, a->heads, a->heads / a->kv_heads);
    return MOX_OK;
}

mox_status mox_op_split_q_gate(const mox_exec *e, const mox_split_q_gate_args *a, mox_err *err)
{
    const mox_check c = {"split_q_gate", err};
    int64_t width, n, n2;
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(mox_check_size(&c, "heads", a->heads, 0));
    MOX_TRY(mox_check_size(&c, "dim", a->dim, 0));
    MOX_TRY(mox_check_product(&c, "q", a->heads, a->dim, &width));
    MOX_TRY(mox_check_product(&c, "q", a->n, width, &n));
    MOX_TRY(mox_check_product(&c, "in", n, 2, &n2));
    if (n == 0) return MOX_OK;
    MOX_TRY(mox_check_f32(&c, "in", a->in, n2));
    MOX_TRY(mox_check_f32(&c, "q", a->q, n));
    MOX_TRY(mox_check_f32(&c, "gate", a->gate, n));
    mox_run_split_q_gate(e, a, a->n, mox_grain(width));
    return MOX_OK;
}

mox_status mox_op_transpose_heads(const mox_exec *e, const mox_transpose_heads_args *a, mox_err *err)
{
    const mox_check c = {"transpose_heads", err};
    int64_t width, n;
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(mox_check_size(&c, "heads", a->heads, 0));
    MOX_TRY(mox_check_size(&c, "dim", a->dim, 0));
    MOX_TRY(mox_check_product(&c, "in", a->heads, a->dim, &width));
    MOX_TRY(mox_check_product(&c, "in", a->n, width, &n));
    if (n == 0) return MOX_OK;
    MOX_TRY(mox_check_f32(&c, "in", a->in, n));
    MOX_TRY(mox_check_f32(&c, "out", a->out, n));
    if (a->in == a->out) return mox_refuse(&c, MOX_E_ARG, "in and out are one buffer");
    mox_run_transpose_heads(e, a, a->n, mox_grain(width));
    return MOX_OK;
}
