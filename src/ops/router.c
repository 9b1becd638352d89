/* ops/router.c -- checked entries of routing. */
#include "ops/entry.h"

#include <math.h>

enum { GRAIN_TOKENS = 4 };

/* logits [n, n_experts], ids and weights [n, k], 0 < k <= n_experts. */
static mox_status check_routes(const mox_check *c, const float *logits, const int32_t *ids, const float *weights,
                               int64_t n, int64_t n_experts, int64_t k)
{
    MOX_TRY(mox_check_size(c, "n", n, 0));
    MOX_TRY(mox_check_size(c, "k", k, 1));
    MOX_TRY(mox_check_size(c, "n_experts", n_experts, 1));
    if (n_experts > INT32_MAX)
        return mox_refuse(c, MOX_E_ARG, "n_experts is %lld, more than ids can name", (long long)n_experts);
    if (k > n_experts)
        return mox_refuse(c, MOX_E_ARG, "k is %lld, but there are only %lld experts", (long long)k,
                          (long long)n_experts);
    int64_t n_logits, n_slots;
    MOX_TRY(mox_check_product(c, "logits", n, n_experts, &n_logits));
    MOX_TRY(mox_check_product(c, "weights", n, k, &n_slots));
    MOX_TRY(mox_check_f32(c, "logits", logits, n_logits));
    MOX_TRY(mox_check_i32(c, "ids", ids, n_slots));
    return mox_check_f32(c, "weights", weights, n_slots);
}

mox_status mox_op_router_topk(const mox_exec *e, const mox_router_topk_args *a, mox_err *err)
{
    const mox_check c = {"router_topk", err};
    MOX_TRY(check_routes(&c, a->logits, a->ids, a->weights, a->n, a->n_experts, a->k));
    if (a->order != MOX_TOPK_SORTED && a->order != MOX_TOPK_RUNNING_MIN)
        return mox_refuse(&c, MOX_E_ARG, "order %d is unknown", (int)a->order);
    mox_run_router_topk(e, a, a->n, GRAIN_TOKENS);
    return MOX_OK;
}

mox_status mox_op_router_sigmoid(const mox_exec *e, const mox_router_sigmoid_args *a, mox_err *err)
{
    const mox_check c = {"router_sigmoid", err};
    MOX_TRY(check_routes(&c, a->logits, a->ids, a->weights, a->n, a->n_experts, a->k));
    MOX_TRY(mox_check_vec(&c, "bias", &a->bias, a->n_experts, true));
    MOX_TRY(mox_check_size(&c, "n_groups", a->n_groups, 1));
    MOX_TRY(mox_check_size(&c, "kept_groups", a->kept_groups, 1));
    if (a->n_experts % a->n_groups != 0)
        return mox_refuse(&c, MOX_E_ARG, "n_groups %lld does not divide the %lld experts", (long long)a->n_groups,
                          (long long)a->n_experts);
    if (a->kept_groups > a->n_groups)
        return mox_refuse(&c, MOX_E_ARG, "kept_groups is %lld of only %lld groups", (long long)a->kept_groups,
                          (long long)a->n_groups);
    if (a->kept_groups * (a->n_experts / a->n_groups) < a->k)
        return mox_refuse(&c, MOX_E_ARG, "the kept groups hold fewer than k = %lld experts", (long long)a->k);
    if (!isfinite(a->factor)) return mox_refuse(&c, MOX_E_ARG, "factor is not finite");
    mox_run_router_sigmoid(e, a, a->n, GRAIN_TOKENS);
    return MOX_OK;
}

mox_status mox_op_router_normalize(const mox_exec *e, const mox_router_normalize_args *a, mox_err *err)
{
    const mox_check c = {"router_normalize", err};
    int64_t n_slots;
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(mox_check_size(&c, "k", a->k, 0));
    MOX_TRY(mox_check_product(&c, "weights", a->n, a->k, &n_slots));
    MOX_TRY(mox_check_f32(&c, "weights", a->weights, n_slots));
    if (n_slots > 0) mox_run_router_normalize(e, a, a->n, 64);
    return MOX_OK;
}
