/* model/families/qwen3_5_moe.c -- Qwen3.5 and 3.6 mixtures: as Qwen3-Next, but every
 * layer is a mixture and weights are always renormalized. */
#include "model/families/families.h"

static mox_status load(mox_model *m, mox_binder *b, mox_err *err)
{
    mox_moe sizes = {.router_kind = MOX_ROUTER_SOFTMAX, .shared_mode = MOX_SHARED_GATED, .renormalize = true};
    MOX_TRY(mox_moe_config(&m->config, &sizes, err));
    MOX_TRY(mox_config_int(&m->config, "shared_expert_intermediate_size", 1, 1 << 20, &sizes.shared_width, err));
    MOX_TRY(mox_family_hybrid_mixers(m, b, err));
    for (int64_t i = 0; i < m->dims.n_layers; i++) MOX_TRY(mox_moe_layer(m, b, i, &sizes, "shared_expert", err));
    return MOX_OK;
}

const mox_family mox_family_qwen3_5_moe = {.model_type = "qwen3_5_moe", .load = load};
