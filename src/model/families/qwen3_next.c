/* model/families/qwen3_next.c -- Qwen3-Next: gated delta nets and gated attention,
 * softmax router, a gated shared expert. */
#include "model/families/families.h"

static mox_status load(mox_model *m, mox_binder *b, mox_err *err)
{
    mox_moe sizes = {.router_kind = MOX_ROUTER_SOFTMAX, .shared_mode = MOX_SHARED_GATED};
    MOX_TRY(mox_moe_config(&m->config, &sizes, err));
    MOX_TRY(mox_config_bool_or(&m->config, "norm_topk_prob", true, &sizes.renormalize, err));
    MOX_TRY(mox_config_int(&m->config, "shared_expert_intermediate_size", 1, 1 << 20, &sizes.shared_width, err));
    MOX_TRY(mox_family_hybrid_mixers(m, b, err));
    return mox_family_sparse_ffns(m, b, &sizes, err);
}

const mox_family mox_family_qwen3_next = {.model_type = "qwen3_next", .load = load};
