/* ops/mla.c -- checked entries of latent attention. */
#include "ops/mla.h"

#include "ops/cache_entry.h"

/* Heads for one thread: kernels take up to so many together over one reading of the cache. */
enum { HEADS_TOGETHER = 16 };

/* f32 [n, heads, dim] without gaps. */
static mox_status check_dense(const mox_check *c, const char *name, const float *p, int64_t n, int64_t heads,
                              int64_t dim)
{
    int64_t total;
    MOX_TRY(mox_check_size(c, name, dim, 0));
    MOX_TRY(mox_check_product(c, name, n, heads, &total));
    MOX_TRY(mox_check_product(c, name, total, dim, &total));
    return mox_check_f32(c, name, p, total);
}

mox_status mox_op_mla_split(const mox_exec *e, const mox_mla_split_args *a, mox_err *err)
{
    const mox_check c = {"mla_split", err};
    int64_t q_dim, kv_dim;
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(mox_check_size(&c, "heads", a->heads, 1));
    MOX_TRY(mox_check_size(&c, "nope", a->nope, 0));
    MOX_TRY(mox_check_size(&c, "rope", a->rope, 0));
    MOX_TRY(mox_check_size(&c, "rank", a->rank, 0));
    if (!mox_add_i64(a->nope, a->rope, &q_dim) || !mox_add_i64(a->rank, a->rope, &kv_dim))
        return mox_refuse(&c, MOX_E_ARG, "nope, rope or rank is too large");
    if (a->n == 0) return MOX_OK;
    MOX_TRY(check_dense(&c, "q_full", a->q_full, a->n, a->heads, q_dim));
    MOX_TRY(check_dense(&c, "q_nope", a->q_nope, a->n, a->heads, a->nope));
    MOX_TRY(check_dense(&c, "q_pe", a->q_pe, a->n, a->heads, a->rope));
    MOX_TRY(check_dense(&c, "kv", a->kv, a->n, 1, kv_dim));
    MOX_TRY(check_dense(&c, "latent", a->latent, a->n, 1, a->rank));
    MOX_TRY(check_dense(&c, "k_pe", a->k_pe, a->n, 1, a->rope));
    mox_run_mla_split(e, a, a->n, 1);
    return MOX_OK;
}

/* heads blocks of w, head_rows apart, of which the rows [row0, row0 + used) are read. */
static mox_status check_blocks(const mox_check *c, const mox_mat *w, int64_t heads, int64_t head_rows,
                               int64_t row0, int64_t used, int64_t cols)
{
    int64_t end, before;
    MOX_TRY(mox_check_mat(c, "w", w));
    if (w->cols != cols)
        return mox_refuse(c, MOX_E_ARG, "w has rows of %lld, not %lld", (long long)w->cols, (long long)cols);
    MOX_TRY(mox_check_size(c, "row0", row0, 0));
    if (!mox_add_i64(row0, used, &end) || head_rows < end)
        return mox_refuse(c, MOX_E_ARG, "head_rows is %lld, but a head reads %lld rows from row %lld on",
                          (long long)head_rows, (long long)used, (long long)row0);
    MOX_TRY(mox_check_product(c, "w", heads - 1, head_rows, &before));
    if (!mox_add_i64(before, end, &end) || end > w->rows)
        return mox_refuse(c, MOX_E_ARG, "w has %lld rows, too few for %lld heads of %lld rows",
                          (long long)w->rows, (long long)heads, (long long)head_rows);
    return MOX_OK;
}

mox_status mox_op_mla_q_absorb(const mox_exec *e, const mox_mla_q_absorb_args *a, mox_err *err)
{
    const mox_check c = {"mla_q_absorb", err};
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(mox_check_size(&c, "heads", a->heads, 1));
    MOX_TRY(mox_check_size(&c, "nope", a->nope, 1));
    MOX_TRY(mox_check_size(&c, "rank", a->rank, 1));
    MOX_TRY(check_blocks(&c, &a->w, a->heads, a->head_rows, 0, a->by_rank ? a->rank : a->nope,
                         a->by_rank ? a->nope : a->rank));
    MOX_TRY(check_dense(&c, "q_nope", a->q_nope, a->n, a->heads, a->nope));
    MOX_TRY(check_dense(&c, "out", a->out, a->n, a->heads, a->rank));
    if (a->n == 0) return MOX_OK;
    mox_mla_q_absorb_args args = *a;
    args.deterministic = e->deterministic;
    mox_run_mla_q_absorb(e, &args, a->heads, 1);
    return MOX_OK;
}

mox_status mox_op_mla_out(const mox_exec *e, const mox_mla_out_args *a, mox_err *err)
{
    const mox_check c = {"mla_out", err};
    int64_t units;
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(mox_check_size(&c, "heads", a->heads, 1));
    MOX_TRY(mox_check_size(&c, "v_dim", a->v_dim, 1));
    MOX_TRY(mox_check_size(&c, "rank", a->rank, 1));
    MOX_TRY(mox_check_product(&c, "out", a->heads, a->v_dim, &units));
    MOX_TRY(check_blocks(&c, &a->w, a->heads, a->head_rows, a->row0, a->v_dim, a->rank));
    MOX_TRY(check_dense(&c, "ctx", a->ctx, a->n, a->heads, a->rank));
    MOX_TRY(check_dense(&c, "out", a->out, a->n, a->heads, a->v_dim));
    if (a->n == 0) return MOX_OK;
    mox_mla_out_args args = *a;
    args.deterministic = e->deterministic;
    mox_run_mla_out(e, &args, units, mox_max_i64(a->v_dim, mox_grain(a->rank))); /* whole heads */
    return MOX_OK;
}

/* Sizes that both forms of attention share, and the two caches. */
static mox_status check_latent(const mox_check *c, int64_t heads, int64_t rank, int64_t rope,
                               const mox_cache *latent, const mox_cache *k_pe)
{
    MOX_TRY(mox_check_size(c, "heads", heads, 1));
    MOX_TRY(mox_check_size(c, "rank", rank, 1));
    MOX_TRY(mox_check_size(c, "rope", rope, 0));
    MOX_TRY(mox_check_cache(c, "the latent cache", latent, 1, rank));
    return mox_check_cache(c, "the rope cache", k_pe, 1, rope);
}

mox_status mox_op_mla_attention(const mox_exec *e, const mox_mla_attention_args *a, mox_err *err)
{
    const mox_check c = {"mla_attention", err};
    int64_t rows, row_end, units;
    MOX_TRY(mox_check_spans(&c, a->spans, a->n_spans, &rows, &row_end));
    if (rows == 0) return MOX_OK;
    MOX_TRY(check_latent(&c, a->heads, a->rank, a->rope, &a->latent, &a->k_pe));
    MOX_TRY(mox_check_product(&c, "rows", rows, a->heads, &units));
    MOX_TRY(check_dense(&c, "q", a->q, row_end, a->heads, a->rank));
    MOX_TRY(check_dense(&c, "q_pe", a->q_pe, row_end, a->heads, a->rope));
    MOX_TRY(check_dense(&c, "ctx", a->ctx, row_end, a->heads, a->rank));
    MOX_TRY(mox_check_pages(&c, "the latent cache", &a->latent, a->spans, a->n_spans, INT64_MAX, MOX_E_ARG));
    MOX_TRY(mox_check_pages(&c, "the rope cache", &a->k_pe, a->spans, a->n_spans, INT64_MAX, MOX_E_ARG));
    mox_run_mla_attention(e, a, units, HEADS_TOGETHER);
    return MOX_OK;
}

mox_status mox_op_mla_expanded(const mox_exec *e, const mox_mla_expanded_args *a, mox_err *err)
{
    const mox_check c = {"mla_expanded", err};
    int64_t rows, row_end;
    MOX_TRY(mox_check_spans(&c, a->spans, a->n_spans, &rows, &row_end));
    if (rows == 0) return MOX_OK;
    MOX_TRY(check_latent(&c, a->heads, a->rank, a->rope, &a->latent, &a->k_pe));
    MOX_TRY(mox_check_size(&c, "nope", a->nope, 1));
    MOX_TRY(mox_check_size(&c, "v_dim", a->v_dim, 1));
    if (a->nope > MOX_MLA_EXPANDED_MAX - a->rope || a->v_dim > MOX_MLA_EXPANDED_MAX || a->rope > MOX_MLA_EXPANDED_MAX)
        return mox_refuse(&c, MOX_E_ARG, "heads of %lld + %lld and %lld are wider than %d", (long long)a->nope,
                          (long long)a->rope, (long long)a->v_dim, MOX_MLA_EXPANDED_MAX);
    MOX_TRY(check_blocks(&c, &a->key, a->heads, a->key_rows, 0, a->by_rank ? a->rank : a->nope,
                         a->by_rank ? a->nope : a->rank));
    MOX_TRY(check_blocks(&c, &a->value, a->heads, a->value_rows, a->value_row0, a->v_dim, a->rank));
    MOX_TRY(check_dense(&c, "q_nope", a->q_nope, row_end, a->heads, a->nope));
    MOX_TRY(check_dense(&c, "q_pe", a->q_pe, row_end, a->heads, a->rope));
    MOX_TRY(check_dense(&c, "out", a->out, row_end, a->heads, a->v_dim));
    MOX_TRY(check_dense(&c, "state", a->state, row_end, a->heads, 2));
    MOX_TRY(mox_check_pages(&c, "the latent cache", &a->latent, a->spans, a->n_spans, INT64_MAX, MOX_E_ARG));
    MOX_TRY(mox_check_pages(&c, "the rope cache", &a->k_pe, a->spans, a->n_spans, INT64_MAX, MOX_E_ARG));
    mox_run_mla_expanded(e, a, a->heads, 1);
    return MOX_OK;
}

mox_status mox_op_mla_tile(const mox_exec *e, const mox_mla_tile_args *a, mox_err *err)
{
    const mox_check c = {"mla_tile", err};
    if (a->begin < 0 || a->end < a->begin)
        return mox_refuse(&c, MOX_E_ARG, "[%lld, %lld) is no range of keys", (long long)a->begin,
                          (long long)a->end);
    MOX_TRY(mox_check_size(&c, "heads", a->heads, 1));
    MOX_TRY(mox_check_size(&c, "rank", a->rank, 1));
    if (a->end > a->begin) { /* an empty tile looks at the state alone */
        MOX_TRY(check_latent(&c, a->heads, a->rank, a->rope, &a->latent, &a->k_pe));
        MOX_TRY(mox_check_one_page(&c, "the latent cache", &a->latent, a->end));
        MOX_TRY(mox_check_one_page(&c, "the rope cache", &a->k_pe, a->end));
        MOX_TRY(check_dense(&c, "q", a->q, 1, a->heads, a->rank));
        MOX_TRY(check_dense(&c, "q_pe", a->q_pe, 1, a->heads, a->rope));
    }
    MOX_TRY(mox_check_f32(&c, "max", a->max, a->heads));
    MOX_TRY(mox_check_f32(&c, "denom", a->denom, a->heads));
    MOX_TRY(check_dense(&c, "sum", a->sum, 1, a->heads, a->rank));
    mox_run_mla_tile(e, a, a->heads, HEADS_TOGETHER);
    return MOX_OK;
}

mox_status mox_op_mla_finish(const mox_exec *e, const mox_mla_finish_args *a, mox_err *err)
{
    const mox_check c = {"mla_finish", err};
    MOX_TRY(mox_check_size(&c, "heads", a->heads, 0));
    MOX_TRY(mox_check_f32(&c, "denom", a->denom, a->heads));
    MOX_TRY(check_dense(&c, "sum", a->sum, 1, a->heads, a->rank));
    MOX_TRY(check_dense(&c, "ctx", a->ctx, 1, a->heads, a->rank));
    mox_run_mla_finish(e, a, a->heads, mox_grain(a->rank));
    return MOX_OK;
}
