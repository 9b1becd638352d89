/* model/families/families.c -- the list of families, and what related ones share. */
#include "model/families/families.h"

#include <string.h>

const mox_family *const mox_families[] = {
#define MOX_FAMILY_ENTRY(name) &mox_family_##name,
    MOX_FAMILY_LIST(MOX_FAMILY_ENTRY)
#undef MOX_FAMILY_ENTRY
        NULL};

mox_status mox_family_rope(mox_model *m, int64_t dim, mox_rope_table *out, mox_err *err)
{
    if (dim < 2 || dim % 2 != 0)
        return mox_fail(err, MOX_E_FORMAT, "%s: the rotary part of a head would be %lld elements, which is not an even number",
                        m->config.path, (long long)dim);
    float *inv_freq = MOX_KEEP(m, float, dim / 2);
    if (!inv_freq) return mox_fail_memory(err, (size_t)dim * 2, "rotary frequencies");
    *out = (mox_rope_table){.dim = dim, .inv_freq = inv_freq};
    out->magnitude = mox_rope_frequencies(&m->config.rope, dim, inv_freq);
    m->frequencies = inv_freq;
    m->n_frequencies = dim / 2;
    m->report.rotary_dim = dim;
    return MOX_OK;
}

/* Heads of grouped attention, and the part of them that rotates. */
static mox_status read_heads(mox_model *m, double default_fraction, mox_rope_table *out, mox_err *err)
{
    MOX_TRY(mox_gqa_config(&m->config, &m->dims, err));
    const double given = m->config.rope.partial_rotary_factor;
    const double fraction = given > 0 ? given : default_fraction;
    m->report.n_kv_heads = m->dims.kv_heads;
    m->report.head_dim = m->dims.head_dim;
    return mox_family_rope(m, (int64_t)((double)m->dims.head_dim * fraction), out, err);
}

/* 0, or how many positions a query of this layer sees. */
static mox_status window_of(const mox_config *c, int64_t layer, int64_t n_layers, int64_t *window, mox_err *err)
{
    *window = 0;
    bool use, sliding;
    MOX_TRY(mox_config_bool_or(c, "use_sliding_window", false, &use, err));
    if (mox_config_has(c, "layer_types")) {
        const char *type;
        MOX_TRY(mox_config_string_at(c, "layer_types", layer, n_layers, &type, err));
        sliding = strcmp(type, "sliding_attention") == 0;
        if (!sliding && strcmp(type, "full_attention") != 0)
            return mox_fail(err, MOX_E_UNSUPPORTED, "%s: layer_types[%lld] is '%s', which is not supported "
                            "(full_attention and sliding_attention are)", c->path, (long long)layer, type);
    } else {
        int64_t first;
        MOX_TRY(mox_config_int_or(c, "max_window_layers", 0, 1 << 20, 0, &first, err));
        sliding = layer >= first;
    }
    return use && sliding ? mox_config_int(c, "sliding_window", 1, 1 << 28, window, err) : MOX_OK;
}

mox_status mox_family_attention_mixers(mox_model *m, mox_binder *b, mox_err *err)
{
    mox_rope_table rope;
    MOX_TRY(read_heads(m, 1.0, &rope, err));
    for (int64_t i = 0; i < m->dims.n_layers; i++) {
        int64_t window;
        MOX_TRY(window_of(&m->config, i, m->dims.n_layers, &window, err));
        MOX_TRY(mox_gqa_bind(m, b, i, &rope, false, window, err));
    }
    return MOX_OK;
}

static mox_status is_full_attention(const mox_config *c, int64_t layer, int64_t n_layers, bool *full, mox_err *err)
{
    if (mox_config_has(c, "layer_types")) {
        const char *type;
        MOX_TRY(mox_config_string_at(c, "layer_types", layer, n_layers, &type, err));
        *full = strcmp(type, "full_attention") == 0;
        if (!*full && strcmp(type, "linear_attention") != 0)
            return mox_fail(err, MOX_E_UNSUPPORTED, "%s: layer_types[%lld] is '%s', which is not supported "
                            "(full_attention and linear_attention are)", c->path, (long long)layer, type);
        return MOX_OK;
    }
    int64_t interval;
    MOX_TRY(mox_config_int_or(c, "full_attention_interval", 1, 4096, 4, &interval, err));
    *full = (layer + 1) % interval == 0;
    return MOX_OK;
}

mox_status mox_family_hybrid_mixers(mox_model *m, mox_binder *b, mox_err *err)
{
    mox_rope_table rope;
    mox_deltanet sizes = {0};
    MOX_TRY(mox_deltanet_config(&m->config, &sizes, err));
    MOX_TRY(mox_config_expect_bool(&m->config, "attn_output_gate", true, err));
    MOX_TRY(read_heads(m, 0.25, &rope, err));
    m->norm_offset = mox_deltanet_norm_offset(b, m->dims.n_layers);
    m->report.linear_k_heads = sizes.k_heads;
    m->report.linear_v_heads = sizes.v_heads;
    m->report.linear_k_dim = sizes.k_dim;
    m->report.linear_v_dim = sizes.v_dim;
    for (int64_t i = 0; i < m->dims.n_layers; i++) {
        bool full;
        MOX_TRY(is_full_attention(&m->config, i, m->dims.n_layers, &full, err));
        MOX_TRY(full ? mox_gqa_bind(m, b, i, &rope, true, 0, err) : mox_deltanet_bind(m, b, i, &sizes, err));
    }
    return MOX_OK;
}

mox_status mox_family_sparse_ffns(mox_model *m, mox_binder *b, const mox_moe *sizes, mox_err *err)
{
    const mox_config *c = &m->config;
    int64_t every;
    MOX_TRY(mox_config_int_or(c, "decoder_sparse_step", 1, 4096, 1, &every, err));
    for (int64_t i = 0; i < m->dims.n_layers; i++) {
        bool dense;
        MOX_TRY(mox_config_int_array_has(c, "mlp_only_layers", i, &dense, err));
        if (dense || (i + 1) % every != 0) {
            int64_t width;
            MOX_TRY(mox_config_int(c, "intermediate_size", 1, 1 << 22, &width, err));
            MOX_TRY(mox_dense_layer(m, b, i, width, err));
        } else {
            MOX_TRY(mox_moe_layer(m, b, i, sizes, "shared_expert", err));
        }
    }
    return MOX_OK;
}
