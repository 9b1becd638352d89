/* ops/simd/simd.h -- the kernels written in vectors.  Each source of this folder is
 * compiled once per level (level.h); the list says which slots it fills. */
#ifndef MOX_OPS_SIMD_SIMD_H
#define MOX_OPS_SIMD_SIMD_H

#include "ops/kern.h"

#define MOX_SIMD_LIST(X)                                                         \
    X(matmul)                                                                    \
    X(matmul_prepare)                                                            \
    X(matmul_grouped)                                                            \
    X(matmul_grouped_prepare)                                                    \
    X(gate_up_swiglu)                                                            \
    X(gate_up_swiglu_prepare)                                                    \
    X(rms_norm)                                                                  \
    X(residual_norm)                                                             \
    X(gated_rms_norm)                                                            \
    X(swiglu)                                                                    \
    X(sigmoid_gate)                                                              \
    X(add)                                                                       \
    X(scale_add)                                                                 \
    X(scaled_add)                                                                \
    X(rope)                                                                      \
    X(kv_append)                                                                 \
    X(embed)                                                                     \
    X(router_topk)                                                               \
    X(router_sigmoid)                                                            \
    X(weighted_sum)                                                              \
    X(weighted_sum_residual)                                                     \
    X(weighted_sum_residual_norm)                                                \
    X(moe_combine)                                                               \
    X(moe_combine_sum)                                                           \
    X(conv1d_silu)                                                               \
    X(conv1d_shift)                                                              \
    X(gdn_qk_norm)                                                               \
    X(gdn_recurrent)                                                             \
    X(gdn_chunk)                                                                 \
    X(attention)                                                                 \
    X(attention_parts)                                                           \
    X(attn_scores)                                                               \
    X(attn_softmax)                                                              \
    X(attn_values)                                                               \
    X(mla_q_absorb)                                                              \
    X(mla_out)                                                                   \
    X(mla_attention)                                                             \
    X(mla_expanded)                                                              \
    X(mla_tile)                                                                  \
    X(mla_finish)

#endif
