/* model/deltanet.h -- the gated delta net, a linear attention.
 *
 *   qkv, z, b, a = projections;  qkv through a causal convolution;  q, k normalised;
 *   the gated delta rule (ops/deltanet.h);  norm gated by z;  out_proj
 *
 * Keeps per sequence the last width - 1 rows before the convolution and the state
 * [v_heads, v_dim, k_dim].  Projections come in two layouts: one matrix per kind,
 * or two matrices grouped by key head. */
#ifndef MOX_MODEL_DELTANET_H
#define MOX_MODEL_DELTANET_H

#include "model/model.h"

typedef struct mox_deltanet {
    int64_t k_heads, v_heads, k_dim, v_dim, width;
    bool grouped;                       /* qkvz and ba instead of the four */
    mox_weight qkv, z, b, a;            /* not grouped */
    mox_weight qkvz, ba;                /* grouped */
    mox_vector conv, a_log, dt_bias, norm;
    mox_weight out;
    float eps;
    int64_t state_at; /* floats from the start of the sequence's recurrent state */
} mox_deltanet;

/* Reads the linear_* keys of the configuration. */
mox_status mox_deltanet_config(const mox_config *c, mox_deltanet *sizes, mox_err *err);
mox_status mox_deltanet_bind(mox_model *m, mox_binder *b, int64_t layer, const mox_deltanet *sizes, mox_err *err);

/* 1 when the checkpoint stores norm gains minus one, 0 when it stores gains: the
 * shape of the convolution tells ([channels, 1, width] or [channels, width, 1]). */
float mox_deltanet_norm_offset(const mox_binder *b, int64_t n_layers);

#endif
