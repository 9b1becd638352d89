/* model/mla.h -- multi-head latent attention.
 *
 * The cache keeps one latent and one rotated key per position; keys and values of
 * the heads are folded into the query and the output, or made from the latents where
 * enough rows share them (ops/mla.h).  Both storage
 * forms of the key/value matrix are used as they are: kv_b_proj, or embed_q with
 * unembed_out. */
#ifndef MOX_MODEL_MLA_H
#define MOX_MODEL_MLA_H

#include "model/model.h"
#include "model/rope_table.h"

typedef struct mox_mla {
    int64_t heads, nope, rope_dim, v_dim, rank, q_rank; /* q_rank 0: plain q_proj */
    mox_weight wq;            /* q_proj, or q_a_proj when q_rank */
    mox_weight wq_b;          /* with q_rank */
    mox_weight wkv_a, wo;
    mox_weight key, value;    /* kv_b_proj twice, or embed_q and unembed_out */
    bool split;               /* the latter */
    mox_vector bq_a, bkv_a, bo;
    mox_vector q_norm, kv_norm;
    mox_rope_table rope;
    bool interleaved;
    float scale;
} mox_mla;

/* sizes and rope come filled in; binds the weights of the layer. */
mox_status mox_mla_bind(mox_model *m, mox_binder *b, int64_t layer, const mox_mla *sizes, mox_err *err);

#endif
