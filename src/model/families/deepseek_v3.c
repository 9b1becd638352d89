/* model/families/deepseek_v3.c -- DeepSeek-V3, R1 and their kin: latent attention,
 * the first layers dense, then sigmoid routing limited to groups, with shared
 * experts that are always added. */
#include "model/families/families.h"

#include <math.h>

static mox_status read_attention(mox_model *m, mox_mla *a, mox_err *err)
{
    const mox_config *c = &m->config;
    *a = (mox_mla){.heads = m->dims.heads};
    if (mox_config_has(c, "q_lora_rank")) MOX_TRY(mox_config_int(c, "q_lora_rank", 1, 1 << 20, &a->q_rank, err));
    MOX_TRY(mox_config_int(c, "kv_lora_rank", 1, 1 << 20, &a->rank, err));
    MOX_TRY(mox_config_int(c, "qk_nope_head_dim", 1, 1 << 16, &a->nope, err));
    MOX_TRY(mox_config_int(c, "qk_rope_head_dim", 2, 1 << 16, &a->rope_dim, err));
    MOX_TRY(mox_config_int(c, "v_head_dim", 1, 1 << 16, &a->v_dim, err));
    MOX_TRY(mox_config_bool_or(c, "rope_interleave", true, &a->interleaved, err));
    MOX_TRY(mox_family_rope(m, a->rope_dim, &a->rope, err));
    double scale = 1.0 / sqrt((double)(a->nope + a->rope_dim));
    const mox_rope_config *rope = &c->rope;
    if (rope->kind == MOX_ROPE_YARN && rope->mscale_all_dim != 0) {
        const double magnitude = mox_yarn_magnitude(rope->factor, rope->mscale_all_dim);
        scale *= magnitude * magnitude;
    }
    a->scale = (float)scale;
    m->report.kv_lora_rank = a->rank;
    m->report.q_lora_rank = a->q_rank;
    m->report.head_dim = a->nope + a->rope_dim;
    return MOX_OK;
}

static mox_status read_moe(const mox_config *c, mox_moe *e, mox_err *err)
{
    *e = (mox_moe){.router_kind = MOX_ROUTER_SIGMOID, .shared_mode = MOX_SHARED_NONE};
    MOX_TRY(mox_config_expect_string(c, "scoring_func", "sigmoid", err));
    MOX_TRY(mox_config_expect_string(c, "topk_method", "noaux_tc", err));
    MOX_TRY(mox_moe_config(c, e, err));
    MOX_TRY(mox_config_int_or(c, "n_group", 1, 1 << 16, 1, &e->n_groups, err));
    MOX_TRY(mox_config_int_or(c, "topk_group", 1, e->n_groups, e->n_groups, &e->kept_groups, err));
    MOX_TRY(mox_config_bool_or(c, "norm_topk_prob", true, &e->renormalize, err));
    double factor;
    MOX_TRY(mox_config_real_or(c, "routed_scaling_factor", 1e-6, 1e6, 1.0, &factor, err));
    e->factor = (float)factor;
    if (e->n_experts % e->n_groups != 0 || e->kept_groups * (e->n_experts / e->n_groups) < e->k)
        return mox_fail(err, MOX_E_FORMAT, "%s: %lld experts in n_group %lld with topk_group %lld cannot give %lld per token",
                        c->path, (long long)e->n_experts, (long long)e->n_groups, (long long)e->kept_groups, (long long)e->k);
    int64_t n_shared;
    MOX_TRY(mox_config_int_or(c, "n_shared_experts", 0, 4096, 0, &n_shared, err));
    if (n_shared > 0) {
        e->shared_mode = MOX_SHARED_UNSCALED;
        e->shared_width = n_shared * e->width;
    }
    return MOX_OK;
}

static mox_status load(mox_model *m, mox_binder *b, mox_err *err)
{
    const mox_config *c = &m->config;
    mox_mla attention;
    mox_moe moe;
    int64_t n_dense, every, width = 0;
    MOX_TRY(read_attention(m, &attention, err));
    MOX_TRY(read_moe(c, &moe, err));
    MOX_TRY(mox_config_int_or(c, "first_k_dense_replace", 0, 1 << 20, 0, &n_dense, err));
    MOX_TRY(mox_config_int_or(c, "moe_layer_freq", 1, 4096, 1, &every, err));
    if (n_dense > 0 || every > 1) MOX_TRY(mox_config_int(c, "intermediate_size", 1, 1 << 22, &width, err));
    for (int64_t i = 0; i < m->dims.n_layers; i++) {
        MOX_TRY(mox_mla_bind(m, b, i, &attention, err));
        if (i < n_dense || i % every != 0) MOX_TRY(mox_dense_layer(m, b, i, width, err));
        else MOX_TRY(mox_moe_layer(m, b, i, &moe, "shared_experts", err));
    }
    return MOX_OK;
}

const mox_family mox_family_deepseek_v3 = {.model_type = "deepseek_v3", .load = load};
