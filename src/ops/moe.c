/* ops/moe.c -- checked entries of bucketing and combining. */
#include "ops/entry.h"

#include <math.h>

/* Tokens that one thread takes at a time when each costs k * dim. */
static int64_t token_grain(int64_t k, int64_t dim)
{
    return mox_max_i64(1, MOX_GRAIN_ELEMENTS / mox_max_i64(k, 1) / mox_max_i64(dim, 1));
}

static mox_status check_pairs(const mox_check *c, const int32_t *ids, int64_t n_pairs, int64_t n_experts)
{
    MOX_TRY(mox_check_size(c, "n_experts", n_experts, 0));
    if (n_experts > INT32_MAX || n_pairs > INT32_MAX)
        return mox_refuse(c, MOX_E_ARG, "%lld pairs and %lld experts are more than 32-bit ids can name",
                          (long long)n_pairs, (long long)n_experts);
    return mox_check_i32(c, "ids", ids, n_pairs);
}

mox_status mox_op_moe_bucket(const mox_exec *e, const mox_moe_bucket_args *a, mox_err *err)
{
    const mox_check c = {"moe_bucket", err};
    MOX_TRY(check_pairs(&c, a->ids, a->n_pairs, a->n_experts));
    MOX_TRY(mox_check_array(&c, "offsets", a->offsets, a->n_experts + 1, (int64_t)sizeof *a->offsets));
    MOX_TRY(mox_check_i32(&c, "pairs", a->pairs, a->n_pairs));
    mox_run_moe_bucket(e, a, 1, 1);
    return MOX_OK;
}

/* The pairs of every expert, left in counts; the largest of them. */
static int64_t count_pairs(const mox_moe_bucket_strided_args *a)
{
    int64_t most = 0;
    for (int64_t x = 0; x < a->n_experts; x++) a->counts[x] = 0;
    for (int64_t p = 0; p < a->n_pairs; p++)
        if (a->ids[p] >= 0 && a->ids[p] < a->n_experts) most = mox_max_i64(most, ++a->counts[a->ids[p]]);
    return most;
}

mox_status mox_op_moe_bucket_strided(const mox_exec *e, const mox_moe_bucket_strided_args *a, mox_err *err)
{
    const mox_check c = {"moe_bucket_strided", err};
    int64_t n_rows;
    MOX_TRY(check_pairs(&c, a->ids, a->n_pairs, a->n_experts));
    MOX_TRY(mox_check_size(&c, "row_stride", a->row_stride, 0));
    MOX_TRY(mox_check_size(&c, "m_gate_up", a->m_gate_up, 0));
    MOX_TRY(mox_check_size(&c, "m_down", a->m_down, 0));
    if (a->m_gate_up > UINT32_MAX || a->m_down > UINT32_MAX)
        return mox_refuse(&c, MOX_E_ARG, "m_gate_up or m_down is more than a launch can hold");
    MOX_TRY(mox_check_i32(&c, "counts", a->counts, a->n_experts));
    MOX_TRY(mox_check_product(&c, "rows", a->n_experts, a->row_stride, &n_rows));
    MOX_TRY(mox_check_i32(&c, "rows", a->rows, n_rows));
    if (a->row_stride < a->n_pairs) {
        const int64_t most = count_pairs(a);
        if (most > a->row_stride)
            return mox_refuse(&c, MOX_E_FULL, "an expert has %lld pairs, but rows have room for %lld",
                              (long long)most, (long long)a->row_stride);
    }
    mox_run_moe_bucket_strided(e, a, 1, 1);
    return MOX_OK;
}

/* Sizes of a sum over slots: *n_pairs = n * k, *n_out = n * dim, *n_slots = n * k * dim. */
static mox_status check_sums(const mox_check *c, int64_t n, int64_t k, int64_t dim, int64_t *n_pairs, int64_t *n_out,
                             int64_t *n_slots)
{
    MOX_TRY(mox_check_size(c, "n", n, 0));
    MOX_TRY(mox_check_size(c, "k", k, 0));
    MOX_TRY(mox_check_size(c, "dim", dim, 0));
    MOX_TRY(mox_check_product(c, "w", n, k, n_pairs));
    MOX_TRY(mox_check_product(c, "out", n, dim, n_out));
    return mox_check_product(c, "slots", *n_pairs, dim, n_slots);
}

mox_status mox_op_weighted_sum(const mox_exec *e, const mox_weighted_sum_args *a, mox_err *err)
{
    const mox_check c = {"weighted_sum", err};
    int64_t n_pairs, n_out, n_slots;
    MOX_TRY(check_sums(&c, a->n, a->k, a->dim, &n_pairs, &n_out, &n_slots));
    MOX_TRY(mox_check_size(&c, "n_rows", a->n_rows, 0));
    MOX_TRY(mox_check_product(&c, "slots", a->n_rows, a->dim, &n_slots));
    MOX_TRY(mox_check_f32(&c, "slots", a->slots, n_pairs > 0 ? n_slots : 0));
    MOX_TRY(mox_check_f32(&c, "w", a->w, n_pairs));
    MOX_TRY(mox_check_f32(&c, "out", a->out, n_out));
    if (a->row_of) MOX_TRY(mox_check_ids(&c, "row_of", a->row_of, n_pairs, a->n_rows));
    else if (n_pairs > a->n_rows)
        return mox_refuse(&c, MOX_E_ARG, "slots has %lld rows, fewer than the %lld pairs", (long long)a->n_rows,
                          (long long)n_pairs);
    mox_run_weighted_sum(e, a, a->n, token_grain(a->k, a->dim));
    return MOX_OK;
}

mox_status mox_op_weighted_sum_residual(const mox_exec *e, const mox_weighted_sum_residual_args *a, mox_err *err)
{
    const mox_check c = {"weighted_sum_residual", err};
    int64_t n_pairs, n_out, n_slots;
    MOX_TRY(check_sums(&c, a->n, a->k, a->dim, &n_pairs, &n_out, &n_slots));
    MOX_TRY(mox_check_f32(&c, "slots", a->slots, n_slots));
    MOX_TRY(mox_check_f32(&c, "w", a->w, n_pairs));
    MOX_TRY(mox_check_f32(&c, "res", a->res, n_out));
    mox_run_weighted_sum_residual(e, a, a->n, token_grain(a->k, a->dim));
    return MOX_OK;
}

mox_status mox_op_weighted_sum_residual_norm(const mox_exec *e, const mox_weighted_sum_residual_norm_args *a,
                                             mox_err *err)
{
    const mox_check c = {"weighted_sum_residual_norm", err};
    int64_t n_pairs, n_out, n_slots;
    MOX_TRY(mox_check_size(&c, "dim", a->dim, 1));
    MOX_TRY(check_sums(&c, a->n, a->k, a->dim, &n_pairs, &n_out, &n_slots));
    MOX_TRY(mox_check_f32(&c, "slots", a->slots, n_slots));
    MOX_TRY(mox_check_f32(&c, "w", a->w, n_pairs));
    MOX_TRY(mox_check_f32(&c, "res", a->res, n_out));
    MOX_TRY(mox_check_f32(&c, "normed", a->normed, n_out));
    MOX_TRY(mox_check_vec(&c, "weight", &a->weight, a->dim, true));
    if (!(a->eps >= 0) || !isfinite(a->eps) || !isfinite(a->offset))
        return mox_refuse(&c, MOX_E_ARG, "eps or offset is not a number that a norm can use");
    mox_run_weighted_sum_residual_norm(e, a, a->n, token_grain(a->k, a->dim));
    return MOX_OK;
}

/* The shared expert of n tokens. */
static mox_status check_shared(const mox_check *c, mox_shared_mode mode, const float *shared, const float *gate,
                               int64_t gate_stride, int64_t n, int64_t n_out)
{
    switch (mode) {
    case MOX_SHARED_NONE: return MOX_OK;
    case MOX_SHARED_UNSCALED: return mox_check_f32(c, "shared", shared, n_out);
    case MOX_SHARED_GATED:
        MOX_TRY(mox_check_f32(c, "shared", shared, n_out));
        return mox_check_rows(c, "gate", gate, n, 1, gate_stride);
    default: return mox_refuse(c, MOX_E_ARG, "mode %d is unknown", (int)mode);
    }
}

mox_status mox_op_moe_combine(const mox_exec *e, const mox_moe_combine_args *a, mox_err *err)
{
    const mox_check c = {"moe_combine", err};
    int64_t n_pairs, n_out, n_slots;
    MOX_TRY(check_sums(&c, a->n, a->k, a->dim, &n_pairs, &n_out, &n_slots));
    MOX_TRY(mox_check_f32(&c, "h", a->h, n_out));
    MOX_TRY(mox_check_f32(&c, "w", a->w, n_pairs));
    MOX_TRY(mox_check_f32(&c, "out", a->out, n_out));
    if (a->experts && a->slots)
        return mox_refuse(&c, MOX_E_ARG, "experts and slots are both given; one of them holds the experts");
    if (!a->slots) {
        MOX_TRY(mox_check_f32(&c, "experts", a->experts, n_slots));
    } else if (n_slots > 0) {
        for (int64_t s = 0; s < a->k; s++) MOX_TRY(mox_check_f32(&c, "a slot", a->slots[s], n_out));
    }
    MOX_TRY(check_shared(&c, a->mode, a->shared, a->gate, a->gate_stride, a->n, n_out));
    mox_run_moe_combine(e, a, a->n, token_grain(a->k, a->dim));
    return MOX_OK;
}

mox_status mox_op_moe_combine_sum(const mox_exec *e, const mox_moe_combine_sum_args *a, mox_err *err)
{
    const mox_check c = {"moe_combine_sum", err};
    int64_t n_out;
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(mox_check_size(&c, "dim", a->dim, 0));
    MOX_TRY(mox_check_product(&c, "out", a->n, a->dim, &n_out));
    MOX_TRY(mox_check_f32(&c, "h", a->h, n_out));
    MOX_TRY(mox_check_f32(&c, "moe", a->moe, n_out));
    MOX_TRY(mox_check_f32(&c, "out", a->out, n_out));
    MOX_TRY(check_shared(&c, a->mode, a->shared, a->gate, a->gate_stride, a->n, n_out));
    mox_run_moe_combine_sum(e, a, a->n, token_grain(1, a->dim));
    return MOX_OK;
}

mox_status mox_op_moe_bucket_accumulate(const mox_exec *e, const mox_moe_bucket_accumulate_args *a, mox_err *err)
{
    const mox_check c = {"moe_bucket_accumulate", err};
    int64_t n_in, n_out;
    MOX_TRY(mox_check_size(&c, "n_rows", a->n_rows, 0));
    MOX_TRY(mox_check_size(&c, "n_tokens", a->n_tokens, 0));
    MOX_TRY(mox_check_size(&c, "dim", a->dim, 0));
    MOX_TRY(mox_check_product(&c, "rows", a->n_rows, a->dim, &n_in));
    MOX_TRY(mox_check_product(&c, "sum", a->n_tokens, a->dim, &n_out));
    MOX_TRY(mox_check_f32(&c, "rows", a->rows, n_in));
    MOX_TRY(mox_check_i32(&c, "token", a->token, a->n_rows));
    MOX_TRY(mox_check_f32(&c, "w", a->w, a->n_rows));
    MOX_TRY(mox_check_f32(&c, "sum", a->sum, n_out));
    MOX_TRY(mox_check_ids(&c, "token", a->token, a->n_rows, a->n_tokens));
    mox_run_moe_bucket_accumulate(e, a, a->dim, 256);
    return MOX_OK;
}
