/* model/moe.h -- the mixture of experts: a router chooses k of E feed-forwards per
 * token; one more, shared by all tokens, may join.
 *
 * Experts are bound in whichever of three layouts the file has: stacks of an MLX
 * checkpoint (switch_mlp), fused stacks (experts.gate_up_proj), one tensor each. */
#ifndef MOX_MODEL_MOE_H
#define MOX_MODEL_MOE_H

#include "model/dense.h"

typedef enum mox_router_kind { MOX_ROUTER_SOFTMAX = 0, MOX_ROUTER_SIGMOID } mox_router_kind;

typedef struct mox_moe {
    /* filled in by the family */
    int64_t n_experts, k, width;
    mox_router_kind router_kind;
    bool renormalize;
    int64_t n_groups, kept_groups; /* SIGMOID */
    float factor;                  /* SIGMOID */
    mox_shared_mode shared_mode;
    int64_t shared_width;
    /* bound */
    const mox_model *model; /* for the layer that follows */
    mox_weight router;
    mox_vector router_bias; /* SIGMOID: enters the choice only */
    mox_dense shared;
    mox_weight shared_gate; /* GATED: [1, D] */
} mox_moe;

/* Reads the keys that the softmax families share; k <= n_experts is checked. */
mox_status mox_moe_config(const mox_config *c, mox_moe *sizes, mox_err *err);
/* Makes layer's mlp a mixture; shared_path is "shared_expert" or "shared_experts". */
mox_status mox_moe_layer(mox_model *m, mox_binder *b, int64_t layer, const mox_moe *sizes, const char *shared_path,
                         mox_err *err);

/* Rows and scratch of n tokens of `dim` numbers, from an arena; of sizes what the family fills in. */
mox_moe_ffn_args mox_moe_take(mox_arena *a, const mox_moe *sizes, int64_t dim, int64_t n);

#endif
