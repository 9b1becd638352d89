/* ops/rope.h -- rotary position embedding.
 *
 * The angle is the f32 product position * inv_freq[i], as the models were trained
 * with; its sine and cosine are then accurate.  Tables of frequencies are inputs,
 * so plain and YaRN rotation are one operation; mscale multiplies both sine and
 * cosine (YaRN's attention factor, not the square that enters MLA's scale). */
#ifndef MOX_OPS_ROPE_H
#define MOX_OPS_ROPE_H

#include "ops/exec.h"

typedef enum mox_rope_pairing {
    MOX_ROPE_HALF = 0,   /* pairs (i, i + rotary_dim/2) */
    MOX_ROPE_INTERLEAVED /* pairs (2i, 2i + 1)          */
} mox_rope_pairing;

/* x [n, heads, >= rotary_dim] in place; the first rotary_dim elements of each head
 * turn, the rest stay.  pos[t * pos_stride] is token t's position.
 * Unit: a token.  1e-5 max(|x0|, |x1|) per pair. */
typedef struct mox_rope_args {
    float *x;
    int64_t n, heads, stride, head_stride;
    int64_t rotary_dim; /* even */
    const float *inv_freq; /* [rotary_dim / 2] */
    float mscale;
    mox_rope_pairing pairing;
    const int32_t *pos;
    int64_t pos_stride;
} mox_rope_args;
mox_status mox_op_rope(const mox_exec *e, const mox_rope_args *a, mox_err *err);

/* in [n, heads, dim] -> out [heads, n, dim], with per-head norm and rotation on
 * the way, from tables cos, sin [n_positions, dim/2]; token t uses row
 * pos_offset + t, which must exist.  Unit: a (head, token) row.  COPY: class E;
 * others as mox_op_rms_norm (weight f32 or file type) and mox_op_rope. */
typedef enum mox_qk_mode {
    MOX_QK_COPY = 0,        /* transpose only                     */
    MOX_QK_NORM_ROPE,       /* norm over dim, half-split rotation */
    MOX_QK_ROPE,            /* half-split rotation                */
    MOX_QK_ROPE_INTERLEAVED /* interleaved rotation               */
} mox_qk_mode;
typedef struct mox_qk_norm_rope_args {
    const float *in;
    float *out;
    int64_t n, heads, dim;
    mox_qk_mode mode;
    mox_vec weight; /* NORM_ROPE only */
    float offset, eps;
    const float *cos, *sin;
    int64_t n_positions, pos_offset;
} mox_qk_norm_rope_args;
mox_status mox_op_qk_norm_rope(const mox_exec *e, const mox_qk_norm_rope_args *a, mox_err *err);

#endif
