/* tests/check/device_plants.c -- bugs as kernels of a GPU have them: a tail that is dropped, a
 * wrong row, a parameter that is not looked at.  See device.h. */
#include "device.h"

#include "dev/gpu/params.h"

#define PLANT(name, kernel, change)           \
    static void plant_##name(void *params)    \
    {                                         \
        mox_gpu_##kernel *p = params;         \
        change;                               \
    }
PLANT(add, add, p->n--)
PLANT(copy_tail, copy, p->dim--)
PLANT(copy_row, copy, p->src_stride = p->dst_stride)
PLANT(sigmoid_gate, sigmoid_gate, p->n--)
PLANT(norm_eps, rms_norm, p->eps *= 2)
PLANT(norm_offset, rms_norm, p->offset = 0)
PLANT(norm_heads, rms_norm_heads, p->eps *= 2)
PLANT(residual, residual_norm, p->b = p->a)
PLANT(residual_eps, residual_norm, p->eps *= 2)
PLANT(gated, gated_rms_norm, p->rows--)
PLANT(gated_eps, gated_rms_norm, p->eps *= 2)
PLANT(rope_pairs, rope, p->interleaved = !p->interleaved)
PLANT(rope_scale, rope, p->mscale *= 1.0001f)
PLANT(embed, embed, p->table.cols--)
PLANT(matvec_tail, matvec, p->w.cols--)
PLANT(matvec_tokens, matvec, p->n--)
PLANT(matvec_bias, matvec, p->bias.type = MOX_GPU_NONE)
PLANT(matvec_first, matvec, p->first_row = 0)
PLANT(gate_up, gate_up, { const mox_gpu_mat keep = p->gate; p->gate = p->up; p->up = keep; })
PLANT(experts_gate_up, experts_gate_up, p->up = p->gate)
PLANT(experts_down, experts_down, p->y_row = NULL)
PLANT(append, kv_append, p->dim--)
PLANT(attention_causal, attention, p->causal = 0)
PLANT(attention_scale, attention, p->scale *= 1.001f)
PLANT(attention_sinks, attention, p->sinks = NULL)
PLANT(attention_merge, attention_merge, p->n_pieces--)
PLANT(attention_second, attention, p->dim2 = 0)
PLANT(absorb, mla_absorb, p->nope--)
PLANT(residual_long, residual_norm_long, p->b = p->a)
PLANT(conv, conv1d_silu, p->width--)
PLANT(shift, conv1d_shift, p->n--)
PLANT(qk_heads, gdn_qk_norm, p->heads--)
PLANT(qk_eps, gdn_qk_norm, p->eps *= 2)
PLANT(gates, gdn_gates, p->n--)
PLANT(recurrent_beta, gdn_recurrent, p->beta = p->g)
PLANT(recurrent_tail, gdn_recurrent, p->v_dim--)
PLANT(topk_sum, router_topk, p->renormalize = !p->renormalize)
PLANT(topk_few, router_topk, p->n_experts--)
PLANT(sigmoid_factor, router_sigmoid, p->factor *= 1.0001f)
PLANT(sigmoid_groups, router_sigmoid, p->kept_groups = p->n_groups)
PLANT(sigmoid_bias, router_sigmoid, p->bias.type = MOX_GPU_NONE)
PLANT(combine, moe_combine, p->mode = MOX_GPU_SHARED_NONE)
PLANT(combine_few, moe_combine, p->k--)
PLANT(bucket, moe_bucket, p->n_pairs--)
PLANT(project_last, project4, p->w3.w = p->w0.w)
PLANT(project_bias, project4, p->bias1.type = MOX_GPU_NONE)
PLANT(heads_norm, gqa_heads, p->k_weight = p->q_weight)
PLANT(heads_turn, gqa_heads, p->rotary_dim -= 2)
PLANT(heads_value, gqa_heads, p->v = p->k)
PLANT(heads_eps, gqa_heads, p->eps *= 2)
PLANT(latent_eps, mla_heads, p->eps *= 2)
PLANT(latent_pairs, mla_heads, p->interleaved = !p->interleaved)
PLANT(mix_taps, gdn_mix, p->width--)
PLANT(mix_eps, gdn_mix, p->eps *= 2)
PLANT(step_beta, gdn_step, p->beta = p->g)
PLANT(step_eps, gdn_step, p->eps *= 2)
PLANT(slot_up, experts4_gate_up, p->shared_up = p->shared_gate)
PLANT(slot_step, experts4_gate_up, p->up.w_step = 0)
PLANT(slot_mode, experts4_down, p->mode = MOX_GPU_SHARED_UNSCALED)
PLANT(slot_few, experts4_down, p->n_shared = 0)

#define ENTRY(op, kernel, plant) {op, MOX_GPU_KERNEL_##kernel, plant_##plant}
const ck_device_plant ck_device_plants[] = {
    ENTRY("add", add, add),
    ENTRY("copy_slice", copy, copy_tail),
    ENTRY("copy_slice", copy, copy_row),
    ENTRY("sigmoid_gate", sigmoid_gate, sigmoid_gate),
    ENTRY("rms_norm", rms_norm, norm_eps),
    ENTRY("rms_norm", rms_norm_long, norm_offset),
    ENTRY("rms_norm", rms_norm_heads, norm_heads),
    ENTRY("residual_norm", residual_norm, residual),
    ENTRY("residual_norm", residual_norm, residual_eps),
    ENTRY("residual_norm", residual_norm_long, residual_long),
    ENTRY("gated_rms_norm", gated_rms_norm, gated),
    ENTRY("gated_rms_norm", gated_rms_norm, gated_eps),
    ENTRY("rope", rope, rope_pairs),
    ENTRY("rope", rope, rope_scale),
    ENTRY("embed", embed, embed),
    ENTRY("matmul", matvec, matvec_tail),
    ENTRY("matmul", matvec, matvec_tokens),
    ENTRY("matmul", matvec, matvec_bias),
    ENTRY("gate_up_swiglu", gate_up, gate_up),
    ENTRY("gate_up_swiglu", experts_gate_up, experts_gate_up),
    ENTRY("matmul_grouped", experts_down, experts_down),
    ENTRY("split_q_gate", copy, copy_tail),
    ENTRY("kv_append", kv_append, append),
    ENTRY("attention", attention, attention_causal),
    ENTRY("attention", attention, attention_scale),
    ENTRY("attention", attention, attention_sinks),
    ENTRY("attention_parts", attention_merge, attention_merge),
    ENTRY("mla_split", copy, copy_tail),
    ENTRY("mla_q_absorb", mla_absorb, absorb),
    ENTRY("mla_q_absorb", matvec, matvec_tail),
    ENTRY("mla_attention", attention, attention_second),
    ENTRY("mla_out", matvec, matvec_first),
    ENTRY("mla_expanded", attention, attention_second),
    ENTRY("gdn_split", copy, copy_tail),
    ENTRY("conv1d_silu", conv1d_silu, conv),
    ENTRY("conv1d_shift", conv1d_shift, shift),
    ENTRY("gdn_qk_norm", gdn_qk_norm, qk_heads),
    ENTRY("gdn_qk_norm", gdn_qk_norm, qk_eps),
    ENTRY("gdn_gates", gdn_gates, gates),
    ENTRY("gdn_recurrent", gdn_recurrent, recurrent_beta),
    ENTRY("gdn_recurrent", gdn_recurrent, recurrent_tail),
    ENTRY("gdn_chunk", gdn_recurrent, recurrent_beta),
    ENTRY("router_topk", router_topk, topk_sum),
    ENTRY("router_topk", router_topk, topk_few),
    ENTRY("router_sigmoid", router_sigmoid, sigmoid_factor),
    ENTRY("router_sigmoid", router_sigmoid, sigmoid_groups),
    ENTRY("router_sigmoid", router_sigmoid, sigmoid_bias),
    ENTRY("moe_combine", moe_combine, combine),
    ENTRY("moe_combine", moe_combine, combine_few),
    ENTRY("moe_bucket", moe_bucket, bucket),
    ENTRY("project", project4, project_last),
    ENTRY("project", project4, project_bias),
    ENTRY("project", matvec, matvec_tokens),
    ENTRY("gqa_heads", gqa_heads, heads_norm),
    ENTRY("gqa_heads", gqa_heads, heads_turn),
    ENTRY("gqa_heads", gqa_heads, heads_value),
    ENTRY("gqa_heads", gqa_heads, heads_eps),
    ENTRY("gqa_heads", kv_append, append),
    ENTRY("mla_heads", mla_heads, latent_eps),
    ENTRY("mla_heads", mla_heads, latent_pairs),
    ENTRY("mla_heads", kv_append, append),
    ENTRY("gdn_mix", gdn_mix, mix_taps),
    ENTRY("gdn_mix", gdn_mix, mix_eps),
    ENTRY("gdn_mix", gdn_step, step_beta),
    ENTRY("gdn_mix", gdn_step, step_eps),
    ENTRY("gdn_mix", gdn_gates, gates),
    ENTRY("moe_finish", experts4_gate_up, slot_up),
    ENTRY("moe_finish", experts4_gate_up, slot_step),
    ENTRY("moe_finish", experts4_down, slot_mode),
    ENTRY("moe_finish", experts4_down, slot_few),
    ENTRY("moe_finish", experts_gate_up, experts_gate_up),
    ENTRY("moe_finish", moe_combine, combine_few),
    {0},
};
