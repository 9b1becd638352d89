/* tools/synth_config.c -- config.json and generation_config.json of a synthetic model,
 * with the keys that the real one's have. */
#include "tools/synth.h"

#include "tools/text.h"

static void quantization(mox_text *t, const mox_synth_spec *s)
{
    mox_text_add(t, "  \"quantization\": {\"group_size\": %d, \"bits\": 4, \"mode\": \"affine\"", MOX_SYNTH_GROUP);
    for (long long i = 0; i < s->layers && s->kind != MOX_SYNTH_DEEPSEEK; i++) {
        static const char *const modules[] = {"gate", "shared_expert_gate"};
        for (int j = 0; j < (s->shared_width ? 2 : 1); j++)
            mox_text_add(t, ",\n    \"%slayers.%lld.mlp.%s\": {\"group_size\": %d, \"bits\": 8}", mox_synth_prefix(s), i,
                         modules[j], MOX_SYNTH_GROUP);
    }
    mox_text_add(t, "}\n");
}

static void common(mox_text *t, const mox_synth_spec *s)
{
    mox_text_add(t,
                 "  \"vocab_size\": %lld,\n  \"hidden_size\": %lld,\n  \"num_hidden_layers\": %lld,\n"
                 "  \"num_attention_heads\": %lld,\n  \"num_key_value_heads\": %lld,\n  \"max_position_embeddings\": %lld,\n"
                 "  \"num_experts_per_tok\": %lld,\n  \"moe_intermediate_size\": %lld,\n"
                 "  \"hidden_act\": \"silu\",\n  \"rms_norm_eps\": 1e-06,\n  \"attention_bias\": false,\n"
                 "  \"tie_word_embeddings\": false,\n  \"norm_topk_prob\": true,\n  \"rope_theta\": %lld.0,\n",
                 (long long)s->vocab, (long long)s->dim, (long long)s->layers, (long long)s->heads, (long long)s->kv_heads,
                 (long long)s->n_ctx, (long long)s->active, (long long)s->expert_width, (long long)s->theta);
}

static void qwen(mox_text *t, const mox_synth_spec *s)
{
    mox_text_add(t, "  \"head_dim\": %lld,\n  \"num_experts\": %lld,\n", (long long)s->head_dim, (long long)s->experts);
    if (s->kind == MOX_SYNTH_QWEN3) mox_text_add(t, "  \"decoder_sparse_step\": 1,\n  \"mlp_only_layers\": [],\n");
    if (s->conv)
        mox_text_add(t,
                     "  \"shared_expert_intermediate_size\": %lld,\n  \"linear_num_key_heads\": %lld,\n"
                     "  \"linear_num_value_heads\": %lld,\n  \"linear_key_head_dim\": %lld,\n"
                     "  \"linear_value_head_dim\": %lld,\n  \"linear_conv_kernel_dim\": %lld,\n"
                     "  \"partial_rotary_factor\": 0.25,\n  \"full_attention_interval\": 4,\n",
                     (long long)s->shared_width, (long long)s->k_heads, (long long)s->v_heads, (long long)s->k_dim,
                     (long long)s->v_dim, (long long)s->conv);
}

static void deepseek(mox_text *t, const mox_synth_spec *s)
{
    mox_text_add(t,
                 "  \"n_routed_experts\": %lld,\n  \"n_shared_experts\": %lld,\n  \"n_group\": %lld,\n  \"topk_group\": %lld,\n"
                 "  \"routed_scaling_factor\": 2.5,\n  \"scoring_func\": \"sigmoid\",\n  \"topk_method\": \"noaux_tc\",\n"
                 "  \"first_k_dense_replace\": %lld,\n  \"moe_layer_freq\": 1,\n  \"intermediate_size\": %lld,\n"
                 "  \"q_lora_rank\": %lld,\n  \"kv_lora_rank\": %lld,\n  \"qk_nope_head_dim\": %lld,\n"
                 "  \"qk_rope_head_dim\": %lld,\n  \"v_head_dim\": %lld,\n",
                 (long long)s->experts, (long long)(s->shared_width / s->expert_width), (long long)s->groups,
                 (long long)s->kept_groups, (long long)s->dense_layers, (long long)s->dense_width, (long long)s->q_rank,
                 (long long)s->kv_rank, (long long)s->nope, (long long)s->rope, (long long)s->mla_v_dim);
    mox_text_add(t, "  \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"original_max_position_embeddings\": 4096,\n"
                    "    \"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, \"mscale_all_dim\": 1.0},\n");
}

char *mox_synth_config_text(const mox_synth_spec *s)
{
    static const char *const types[] = {"qwen3_moe", "qwen3_next", "qwen3_5_moe", "deepseek_v3"};
    const bool nested = s->kind == MOX_SYNTH_QWEN3_5;
    mox_text t = {0};
    mox_text_add(&t, "{\n  \"model_type\": \"%s\",\n%s", types[s->kind], nested ? "  \"text_config\": {\n" : "");
    common(&t, s);
    if (s->kind == MOX_SYNTH_DEEPSEEK) deepseek(&t, s);
    else qwen(&t, s);
    if (nested) mox_text_add(&t, "  \"model_type\": \"qwen3_5_moe_text\"\n  },\n");
    quantization(&t, s);
    mox_text_add(&t, "}\n");
    return mox_text_end(&t);
}

char *mox_synth_generation_text(const mox_synth_spec *s)
{
    static const char *const ids[] = {"[151645, 151643]", "[151645, 151643]", "[248046, 248044]", "1"};
    mox_text t = {0};
    mox_text_add(&t, "{\n  \"do_sample\": true,\n  \"temperature\": 0.7,\n  \"eos_token_id\": %s\n}\n", ids[s->kind]);
    return mox_text_end(&t);
}
