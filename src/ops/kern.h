/* ops/kern.h -- the kernel table: one slot per operation, filled with references
 * and then overlaid by what the processor can do better. */
#ifndef MOX_OPS_KERN_H
#define MOX_OPS_KERN_H

#include "moxie/tools.h"
#include "ops/attention.h"
#include "ops/deltanet.h"
#include "ops/layer.h"
#include "ops/matmul.h"
#include "ops/mla.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "ops/pointwise.h"
#include "ops/rope.h"

/* X(operation, its argument struct) */
#define MOX_KERN_LIST(X)                                                         \
    X(matmul, mox_matmul_args)                                                   \
    X(matmul_grouped, mox_matmul_grouped_args)                                   \
    X(gate_up_swiglu, mox_gate_up_swiglu_args)                                   \
    X(embed, mox_embed_args)                                                     \
    X(swiglu, mox_swiglu_args)                                                   \
    X(sigmoid_gate, mox_sigmoid_gate_args)                                       \
    X(add, mox_add_args)                                                         \
    X(scale_add, mox_scale_add_args)                                             \
    X(scaled_add, mox_scaled_add_args)                                           \
    X(copy_slice, mox_copy_slice_args)                                           \
    X(bf16_to_f32, mox_bf16_to_f32_args)                                         \
    X(f32_to_bf16, mox_f32_to_bf16_args)                                         \
    X(sum_sq, mox_sum_sq_args)                                                   \
    X(rms_apply, mox_rms_apply_args)                                             \
    X(rms_norm, mox_rms_norm_args)                                               \
    X(residual_norm, mox_residual_norm_args)                                     \
    X(gated_rms_norm, mox_gated_rms_norm_args)                                   \
    X(rope, mox_rope_args)                                                       \
    X(qk_norm_rope, mox_qk_norm_rope_args)                                       \
    X(kv_append, mox_kv_append_args)                                             \
    X(attention, mox_attention_args)                                             \
    X(attention_parts, mox_attention_args)                                       \
    X(attention_merge, mox_attention_args)                                       \
    X(attn_scores, mox_attn_scores_args)                                         \
    X(attn_softmax, mox_attn_softmax_args)                                       \
    X(attn_values, mox_attn_values_args)                                         \
    X(split_q_gate, mox_split_q_gate_args)                                       \
    X(transpose_heads, mox_transpose_heads_args)                                 \
    X(mla_split, mox_mla_split_args)                                             \
    X(mla_q_absorb, mox_mla_q_absorb_args)                                       \
    X(mla_out, mox_mla_out_args)                                                 \
    X(mla_attention, mox_mla_attention_args)                                     \
    X(mla_expanded, mox_mla_expanded_args)                                       \
    X(mla_tile, mox_mla_tile_args)                                               \
    X(mla_finish, mox_mla_finish_args)                                           \
    X(gdn_split, mox_gdn_split_args)                                             \
    X(conv1d_silu, mox_conv1d_silu_args)                                         \
    X(conv1d_shift, mox_conv1d_shift_args)                                       \
    X(gdn_qk_norm, mox_gdn_qk_norm_args)                                         \
    X(gdn_gates, mox_gdn_gates_args)                                             \
    X(gdn_recurrent, mox_gdn_args)                                               \
    X(gdn_chunk, mox_gdn_args)                                                   \
    X(router_topk, mox_router_topk_args)                                         \
    X(router_sigmoid, mox_router_sigmoid_args)                                   \
    X(router_normalize, mox_router_normalize_args)                               \
    X(moe_bucket, mox_moe_bucket_args)                                           \
    X(moe_bucket_strided, mox_moe_bucket_strided_args)                           \
    X(weighted_sum, mox_weighted_sum_args)                                       \
    X(weighted_sum_residual, mox_weighted_sum_residual_args)                     \
    X(weighted_sum_residual_norm, mox_weighted_sum_residual_norm_args)           \
    X(moe_combine, mox_moe_combine_args)                                         \
    X(moe_combine_sum, mox_moe_combine_sum_args)                                 \
    X(moe_bucket_accumulate, mox_moe_bucket_accumulate_args)

/* First halves of products, for levels that bring activations into another form: run
 * over the tokens (or pairs) before the operation itself, they fill its scratch.
 * Slots that are NULL have nothing to prepare. */
#define MOX_PREPARE_LIST(X)                                                      \
    X(matmul_prepare, mox_matmul_args)                                           \
    X(matmul_grouped_prepare, mox_matmul_grouped_args)                           \
    X(gate_up_swiglu_prepare, mox_gate_up_swiglu_args)

/* Kernels compute the units [begin, end) of their arguments. */
#define MOX_KERN_TYPE(op, args) typedef void mox_##op##_fn(const args *a, int64_t begin, int64_t end);
MOX_KERN_LIST(MOX_KERN_TYPE)
MOX_PREPARE_LIST(MOX_KERN_TYPE)
#undef MOX_KERN_TYPE

typedef struct mox_kern {
#define MOX_KERN_SLOT(op, args) mox_##op##_fn *op;
    MOX_KERN_LIST(MOX_KERN_SLOT)
    MOX_PREPARE_LIST(MOX_KERN_SLOT)
#undef MOX_KERN_SLOT
    /* What this processor is fastest with: one token meets one row at a time, and tiles are for more tokens. */
    bool by_rows;
    /* And how it is asked for memory: in stripes, where several tokens are computed meanwhile (simd/fetch.h); squares
     * always do. */
    bool stripes;
} mox_kern;

/* The references, in ops/ref. */
#define MOX_KERN_REF(op, args) mox_##op##_fn mox_##op##_ref;
MOX_KERN_LIST(MOX_KERN_REF)
#undef MOX_KERN_REF

/* mox_isa_count and its kin (moxie/tools.h) list the levels; 0 is "ref".
 * The level called name, the best available one for NULL; MOX_E_ARG names those that are available. */
mox_status mox_isa_find(const char *name, int *out, mox_err *err);
/* For tests: features of base/cpu.h outside the mask count as absent, as on a lesser
 * processor.  Process-wide. */
void mox_isa_set_mask(unsigned features);
void mox_kern_init(mox_kern *k, int level);

#endif
