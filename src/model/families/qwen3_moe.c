/* model/families/qwen3_moe.c -- Qwen3 mixtures: attention as in Qwen3, softmax
 * router, no shared expert. */
#include "model/families/families.h"

static mox_status load(mox_model *m, mox_binder *b, mox_err *err)
{
    mox_moe sizes = {.router_kind = MOX_ROUTER_SOFTMAX, .shared_mode = MOX_SHARED_NONE};
    MOX_TRY(mox_moe_config(&m->config, &sizes, err));
    MOX_TRY(mox_config_bool_or(&m->config, "norm_topk_prob", false, &sizes.renormalize, err));
    MOX_TRY(mox_config_expect_bool(&m->config, "use_sliding_window", false, err)); /* no model of the family has windows */
    MOX_TRY(mox_family_attention_mixers(m, b, err));
    return mox_family_sparse_ffns(m, b, &sizes, err);
}

const mox_family mox_family_qwen3_moe = {.model_type = "qwen3_moe", .load = load};
