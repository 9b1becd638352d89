/* ops/layer.h -- a whole dense pre-norm transformer layer in f32, composed of the
 * catalogue's operations: the smallest thing that exercises them together, and
 * the oracle for devices that fuse across them.
 *
 *   ln = norm(x);  q, k, v = W ln;  per-head norm (optional) and rotation;
 *   append to a head-major cache;  attention;  hidden = x + attn_scale? * (Wo attn)
 *   out = hidden + mlp_scale? * (Wd (silu(Wg ln2) * Wu ln2)),  ln2 = norm(hidden)
 */
#ifndef MOX_OPS_LAYER_H
#define MOX_OPS_LAYER_H

#include "ops/exec.h"

typedef struct mox_layer_weights {
    mox_vec input_norm, post_norm; /* [dim] */
    mox_mat wq, wk, wv, wo, gate, up, down;
    mox_vec q_norm, k_norm;        /* [head_dim] or NONE: no QK norm */
    const float *attn_scale, *mlp_scale; /* [dim] or NULL */
} mox_layer_weights;

/* A head-major cache that grows: k, v [kv_heads, capacity, head_dim].  len is
 * advanced by a successful forward only. */
typedef struct mox_layer_cache {
    float *k, *v;
    int64_t len, capacity;
} mox_layer_cache;

typedef struct mox_layer_args {
    mox_layer_weights w;
    mox_layer_cache *cache;
    const float *x; /* [n, dim] */
    float *out;     /* [n, dim]; may be x */
    float *scratch; /* mox_layer_scratch_floats(a) floats */
    int64_t n, dim, ffn, heads, kv_heads, head_dim;
    float eps;
    const float *cos, *sin; /* [n_positions, head_dim / 2] */
    int64_t n_positions;
} mox_layer_args;
int64_t mox_layer_scratch_floats(const mox_layer_args *a); /* -1 when sizes are absurd */
/* MOX_E_FULL when the cache has no room for n more, with nothing changed. */
mox_status mox_op_layer_forward(const mox_exec *e, const mox_layer_args *a, mox_err *err);

#endif
