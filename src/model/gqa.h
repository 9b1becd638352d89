/* model/gqa.h -- attention with grouped key/value heads.
 *
 *   q, k, v = W x;  per-head norm of q and k;  rotation;  softmax
 *   attention over the cache;  times sigmoid(gate) (gated form);  Wo
 *
 * In the gated form the query projection holds, per head, the query rows and then
 * the gate rows. */
#ifndef MOX_MODEL_GQA_H
#define MOX_MODEL_GQA_H

#include "model/model.h"
#include "model/rope_table.h"

typedef struct mox_gqa {
    int64_t heads, kv_heads, dim;
    mox_weight wq, wk, wv, wo;
    mox_vector bq, bk, bv, bo;  /* whichever the file has */
    mox_vector q_norm, k_norm;
    mox_rope_table rope;
    float eps, norm_offset;
    int64_t window; /* 0 = none */
    bool gated;
} mox_gqa;

/* Fills kv_heads and head_dim of the model's dims. */
mox_status mox_gqa_config(const mox_config *c, mox_dims *dims, mox_err *err);

/* Binds layer's self_attn of the model's heads; rope is shared by all layers. */
mox_status mox_gqa_bind(mox_model *m, mox_binder *b, int64_t layer, const mox_rope_table *rope, bool gated,
                        int64_t window, mox_err *err);

#endif
