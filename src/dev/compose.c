/* dev/compose.c -- fused operations for devices that do not have them. */
#include "dev/dev.h"

#include <assert.h>

static mox_status compose_residual_norm(mox_dev *d, const mox_residual_norm_args *a, mox_err *err)
{
    assert(!a->scale); /* layer scales belong to the composite layer of ops/layer.h */
    MOX_TRY(d->ops.add(d, &(mox_add_args){.a = a->a, .b = a->b, .out = a->res, .n = a->rows * a->dim}, err));
    return d->ops.rms_norm(d,
                           &(mox_rms_norm_args){.x = a->res, .out = a->norm, .n = a->rows, .heads = 1, .dim = a->dim,
                                                .x_stride = a->dim, .x_head_stride = a->dim, .out_stride = a->dim,
                                                .out_head_stride = a->dim, .weight = a->weight,
                                                .offset = a->offset, .eps = a->eps},
                           err);
}

static mox_status compose_gdn_chunk(mox_dev *d, const mox_gdn_args *a, mox_err *err)
{
    return d->ops.gdn_recurrent(d, a, err);
}

mox_status mox_dev_mla_folded(mox_dev *d, const mox_mla_expanded_args *a, mox_err *err)
{
    int64_t n = 0;
    for (int64_t i = 0; i < a->n_spans; i++) n += a->spans[i].n;
    if (n == 0) return MOX_OK;
    const int64_t first = a->spans[0].row0 * a->heads;
    MOX_TRY(d->ops.mla_q_absorb(d,
                                &(mox_mla_q_absorb_args){.w = a->key, .by_rank = a->by_rank, .head_rows = a->key_rows,
                                                         .q_nope = a->q_nope + first * a->nope, .out = a->q + first * a->rank, .n = n,
                                                         .heads = a->heads, .nope = a->nope, .rank = a->rank},
                                err));
    MOX_TRY(d->ops.mla_attention(d,
                                 &(mox_mla_attention_args){.q = a->q, .q_pe = a->q_pe, .ctx = a->ctx, .latent = a->latent,
                                                           .k_pe = a->k_pe, .spans = a->spans, .n_spans = a->n_spans,
                                                           .heads = a->heads, .rank = a->rank, .rope = a->rope, .scale = a->scale,
                                                           .parts = a->parts, .n_parts = a->n_parts},
                                 err));
    return d->ops.mla_out(d,
                          &(mox_mla_out_args){.w = a->value, .head_rows = a->value_rows, .row0 = a->value_row0,
                                              .ctx = a->ctx + first * a->rank, .out = a->out + first * a->v_dim, .n = n,
                                              .heads = a->heads, .v_dim = a->v_dim, .rank = a->rank},
                          err);
}

mox_status mox_dev_project(mox_dev *d, const mox_project_args *a, mox_err *err)
{
    for (int64_t i = 0; i < a->n; i++) MOX_TRY(d->ops.matmul(d, &a->product[i], err));
    return MOX_OK;
}

mox_status mox_dev_gqa_heads(mox_dev *d, const mox_gqa_heads_args *a, mox_err *err)
{
    MOX_TRY(d->ops.rms_norm(d, &a->q_norm, err));
    MOX_TRY(d->ops.rms_norm(d, &a->k_norm, err));
    MOX_TRY(d->ops.rope(d, &a->q_rope, err));
    MOX_TRY(d->ops.rope(d, &a->k_rope, err));
    MOX_TRY(d->ops.kv_append(d, &a->k_append, err));
    return d->ops.kv_append(d, &a->v_append, err);
}

mox_status mox_dev_mla_heads(mox_dev *d, const mox_mla_heads_args *a, mox_err *err)
{
    MOX_TRY(d->ops.mla_split(d, &a->split, err));
    MOX_TRY(d->ops.rms_norm(d, &a->norm, err));
    MOX_TRY(d->ops.rope(d, &a->q_rope, err));
    MOX_TRY(d->ops.rope(d, &a->k_rope, err));
    MOX_TRY(d->ops.kv_append(d, &a->latent_append, err));
    return d->ops.kv_append(d, &a->k_append, err);
}

mox_status mox_dev_gdn_mix(mox_dev *d, const mox_gdn_mix_args *a, mox_err *err)
{
    MOX_TRY(d->ops.gdn_gates(d, &a->gates, err));
    MOX_TRY(d->ops.conv1d_silu(d, &a->conv, err));
    MOX_TRY(d->ops.conv1d_shift(d, &a->shift, err));
    MOX_TRY(d->ops.gdn_qk_norm(d, &a->qk_norm, err));
    MOX_TRY(a->chunked ? d->ops.gdn_chunk(d, &a->rule, err) : d->ops.gdn_recurrent(d, &a->rule, err));
    return d->ops.gated_rms_norm(d, &a->norm, err);
}

mox_status mox_dev_moe_shared(mox_dev *d, const mox_moe_finish_args *a, mox_err *err)
{
    const mox_moe_shared *s = &a->shared;
    const int64_t n = a->ffn.n, dim = a->ffn.dim, offsets[2] = {0, n};
    if (a->combine.mode == MOX_SHARED_NONE) return MOX_OK;
    MOX_TRY(d->ops.gate_up_swiglu(d,
                                  &(mox_gate_up_swiglu_args){.n_groups = 1, .gate = &s->gate, .up = &s->up, .offsets = offsets,
                                                             .x = a->ffn.x, .y = s->mid, .x_stride = dim, .y_stride = s->gate.rows,
                                                             .n_x_rows = n, .n_y_rows = n, .scratch = s->scratch},
                                  err));
    MOX_TRY(d->ops.matmul(d, &(mox_matmul_args){.w = s->down, .x = s->mid, .y = s->out, .n = n, .x_stride = s->gate.rows,
                                                .y_stride = dim, .scratch = s->scratch}, err));
    if (a->combine.mode != MOX_SHARED_GATED) return MOX_OK;
    return d->ops.matmul(d, &(mox_matmul_args){.w = s->scale, .x = a->ffn.x, .y = s->logit, .n = n, .x_stride = dim, .y_stride = 1,
                                               .scratch = s->scratch}, err);
}

mox_status mox_dev_moe_finish(mox_dev *d, const mox_moe_finish_args *a, mox_err *err)
{
    const mox_status status = mox_dev_moe_shared(d, a, err); /* while experts come */
    if (status != MOX_OK) {
        a->ffn.source->release(a->ffn.source);
        return status;
    }
    MOX_TRY(d->ops.moe_ffn(d, &a->ffn, err));
    return d->ops.moe_combine(d, &a->combine, err);
}

void mox_dev_complete(mox_dev *d)
{
#define CHECK_SLOT(op, args) assert(d->ops.op);
    MOX_DEV_REQUIRED(CHECK_SLOT)
#undef CHECK_SLOT
    if (!d->ops.residual_norm) d->ops.residual_norm = compose_residual_norm;
    if (!d->ops.gdn_chunk) d->ops.gdn_chunk = compose_gdn_chunk;
    if (!d->ops.project) d->ops.project = mox_dev_project;
    if (!d->ops.gqa_heads) d->ops.gqa_heads = mox_dev_gqa_heads;
    if (!d->ops.mla_heads) d->ops.mla_heads = mox_dev_mla_heads;
    if (!d->ops.gdn_mix) d->ops.gdn_mix = mox_dev_gdn_mix;
    if (!d->ops.moe_finish) d->ops.moe_finish = mox_dev_moe_finish;
    if (!d->ops.mla_expanded) d->ops.mla_expanded = mox_dev_mla_folded;
}
