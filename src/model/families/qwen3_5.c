/* model/families/qwen3_5.c -- Qwen3.5 and 3.6 dense models: gated delta nets and
 * gated attention, plain feed-forward. */
#include "model/families/families.h"

static mox_status load(mox_model *m, mox_binder *b, mox_err *err)
{
    int64_t width;
    MOX_TRY(mox_config_int(&m->config, "intermediate_size", 1, 1 << 22, &width, err));
    MOX_TRY(mox_family_hybrid_mixers(m, b, err));
    for (int64_t i = 0; i < m->dims.n_layers; i++) MOX_TRY(mox_dense_layer(m, b, i, width, err));
    return MOX_OK;
}

const mox_family mox_family_qwen3_5 = {.model_type = "qwen3_5", .load = load};
