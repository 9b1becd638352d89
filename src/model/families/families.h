/* model/families/families.h -- the list of families, and what related ones share. */
#ifndef MOX_MODEL_FAMILIES_H
#define MOX_MODEL_FAMILIES_H

#include "model/deltanet.h"
#include "model/gqa.h"
#include "model/mla.h"
#include "model/moe.h"

/* One line per family. */
#define MOX_FAMILY_LIST(X) X(qwen3) X(qwen3_moe) X(qwen3_next) X(qwen3_5) X(qwen3_5_moe) X(deepseek_v3)

#define MOX_FAMILY_DECLARE(name) extern const mox_family mox_family_##name;
MOX_FAMILY_LIST(MOX_FAMILY_DECLARE)
#undef MOX_FAMILY_DECLARE

/* The model's rotary table over `dim` elements per head, which must be even. */
mox_status mox_family_rope(mox_model *m, int64_t dim, mox_rope_table *out, mox_err *err);

/* Mixers of the hybrid families: three gated delta nets to one gated attention,
 * or as layer_types says.  Also sets the model's norm offset. */
mox_status mox_family_hybrid_mixers(mox_model *m, mox_binder *b, mox_err *err);

/* Softmax attention in every layer, windowed where the configuration says so. */
mox_status mox_family_attention_mixers(mox_model *m, mox_binder *b, mox_err *err);

/* A mixture in layer i, unless mlp_only_layers or decoder_sparse_step make it dense
 * with intermediate_size. */
mox_status mox_family_sparse_ffns(mox_model *m, mox_binder *b, const mox_moe *sizes, mox_err *err);

#endif
