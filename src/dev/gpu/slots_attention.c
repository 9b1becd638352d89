/* dev/gpu/slots_attention.c -- slots around paged caches: appending, attention, and the splits
 * in front of it.  See device.h. */
#include "dev/gpu/device.h"

enum { THREADS = 256, APPEND_WAVES = 4, HEADS_WAVES = 4 };

static void split(mox_dev *d, const float *src, float *dst, int64_t n, int64_t heads, int64_t dim, int64_t src_head, int64_t dst_head)
{
    MOX_GPU_LAUNCH(d, copy, mox_ceil_div(heads * dim, THREADS), n, 1, .src = src, .dst = dst, .n = n, .heads = heads, .dim = dim,
                   .src_stride = heads * src_head, .src_head_stride = src_head, .dst_stride = heads * dst_head, .dst_head_stride = dst_head);
}

static mox_status slot_split_q_gate(mox_dev *d, const mox_split_q_gate_args *a, mox_err *err)
{
    (void)err;
    split(d, a->in, a->q, a->n, a->heads, a->dim, 2 * a->dim, a->dim);
    split(d, a->in + a->dim, a->gate, a->n, a->heads, a->dim, 2 * a->dim, a->dim);
    return MOX_OK;
}

static mox_status slot_mla_split(mox_dev *d, const mox_mla_split_args *a, mox_err *err)
{
    (void)err;
    split(d, a->q_full, a->q_nope, a->n, a->heads, a->nope, a->nope + a->rope, a->nope);
    split(d, a->q_full + a->nope, a->q_pe, a->n, a->heads, a->rope, a->nope + a->rope, a->rope);
    split(d, a->kv, a->latent, a->n, 1, a->rank, a->rank + a->rope, a->rank);
    split(d, a->kv + a->rank, a->k_pe, a->n, 1, a->rope, a->rank + a->rope, a->rope);
    return MOX_OK;
}

static mox_status slot_kv_append(mox_dev *d, const mox_kv_append_args *a, mox_err *err)
{
    (void)err;
    MOX_GPU_LAUNCH(d, kv_append, mox_ceil_div(a->heads, APPEND_WAVES), mox_gpu_rows(a->spans, a->n_spans), 1,
                   .cache = mox_gpu_cache_of(&a->cache), .spans = mox_gpu_spans(d, a->spans, a->n_spans), .src = a->src,
                   .n_spans = a->n_spans, .heads = a->heads, .dim = a->dim, .stride = a->stride, .head_stride = a->head_stride);
    return MOX_OK;
}

/* [n, heads, dim] without gaps? */
static bool is_dense(int64_t stride, int64_t head_stride, int64_t heads, int64_t dim) { return head_stride == dim && stride == heads * dim; }

static mox_status slot_gqa_heads(mox_dev *d, const mox_gqa_heads_args *a, mox_err *err)
{
    const mox_rms_norm_args *qn = &a->q_norm, *kn = &a->k_norm;
    const mox_rope_args *r = &a->q_rope;
    const int64_t heads = qn->heads, kv_heads = kn->heads, dim = qn->dim, rows = mox_gpu_rows(a->k_append.spans, a->k_append.n_spans);
    const bool fits = dim <= MOX_GPU_HEADS_DIM && r->pairing == MOX_ROPE_HALF && r->pos_stride == 1 && r->rotary_dim <= dim &&
                      a->k_append.cache.type != MOX_DT_I8 && a->v_append.cache.type != MOX_DT_I8 && rows == qn->n &&
                      is_dense(qn->x_stride, qn->x_head_stride, heads, dim) && is_dense(kn->x_stride, kn->x_head_stride, kv_heads, dim) &&
                      is_dense(a->v_append.stride, a->v_append.head_stride, kv_heads, dim);
    if (!fits) return mox_dev_gqa_heads(d, a, err);
    const float *inv_freq;
    MOX_TRY(mox_gpu_check_vec(&qn->weight, err));
    MOX_TRY(mox_gpu_check_vec(&kn->weight, err));
    MOX_TRY(mox_gpu_find_known(d, r->inv_freq, r->rotary_dim / 2, &inv_freq, err));
    MOX_GPU_LAUNCH(d, gqa_heads, mox_ceil_div(heads + 2 * kv_heads, HEADS_WAVES), rows, 1, .q = r->x, .k = a->k_append.src,
                   .v = a->v_append.src, .inv_freq = inv_freq, .pos = r->pos,
                   .spans = mox_gpu_spans(d, a->k_append.spans, a->k_append.n_spans), .k_cache = mox_gpu_cache_of(&a->k_append.cache),
                   .v_cache = mox_gpu_cache_of(&a->v_append.cache), .q_weight = mox_gpu_vec_of(&qn->weight),
                   .k_weight = mox_gpu_vec_of(&kn->weight), .heads = heads, .kv_heads = kv_heads, .dim = dim,
                   .rotary_dim = r->rotary_dim, .offset = qn->offset, .eps = qn->eps, .mscale = r->mscale);
    return MOX_OK;
}

static mox_status check_dims(mox_dev *d, int64_t dim, int64_t v_dim, mox_err *err)
{
    if (dim <= MOX_GPU_ATTENTION_DIM && v_dim <= MOX_GPU_ATTENTION_DIM) return MOX_OK;
    return mox_fail(err, MOX_E_UNSUPPORTED, "device %s: heads of attention have at most %d elements, not %lld", d->name,
                    MOX_GPU_ATTENTION_DIM, (long long)mox_max_i64(dim, v_dim));
}

/* decode.h reads it: 16 bytes are 8 elements. */
static bool is_wide_f16(const mox_cache *c)
{
    return c->type == MOX_DT_F16 && (uintptr_t)c->data % 16 == 0 && c->page_stride % 8 == 0 && c->token_stride % 8 == 0 && c->head_stride % 8 == 0;
}

static bool is_decode(const mox_attention_args *a)
{
    bool single = a->dim == a->v_dim && (a->dim == 64 || a->dim == 128 || a->dim == 256) && is_wide_f16(&a->k) && is_wide_f16(&a->v) &&
                  a->k.page_len == a->v.page_len;
    for (int64_t i = 0; i < a->n_spans; i++) single &= a->spans[i].n == 1;
    return single;
}

static mox_status slot_attention(mox_dev *d, const mox_attention_args *a, mox_err *err)
{
    MOX_TRY(check_dims(d, a->dim, a->v_dim, err));
    const float *sinks = NULL;
    if (a->sinks) MOX_TRY(mox_gpu_find_known(d, a->sinks, a->heads, &sinks, err));
    bool cut = false; /* a span that is worth pieces */
    const bool room = a->parts && a->n_parts >= mox_attention_parts(a->n_spans, a->heads, a->v_dim);
    for (int64_t i = 0; i < a->n_spans && room; i++) cut |= a->spans[i].n == 1 && a->spans[i].pos0 >= MOX_ATTENTION_PIECE;
    const mox_gpu_attention p = {.q = a->q, .out = a->out, .parts = a->parts, .sinks = sinks,
                                 .spans = mox_gpu_spans(d, a->spans, a->n_spans), .k = mox_gpu_cache_of(&a->k),
                                 .v = mox_gpu_cache_of(&a->v), .n_spans = a->n_spans, .heads = a->heads, .kv_heads = a->kv_heads,
                                 .dim = a->dim, .v_dim = a->v_dim, .q_stride = a->q_stride, .q_head_stride = a->q_head_stride,
                                 .out_stride = a->out_stride, .out_head_stride = a->out_head_stride, .window = a->window,
                                 .n_pieces = cut ? MOX_GPU_PIECES : 1, .scale = a->scale, .causal = a->causal};
    mox_gpu_launch(d, is_decode(a) ? MOX_GPU_KERNEL_attention_decode : MOX_GPU_KERNEL_attention, a->heads,
                   mox_gpu_rows(a->spans, a->n_spans), p.n_pieces, &p, sizeof p);
    if (cut) mox_gpu_launch(d, MOX_GPU_KERNEL_attention_merge, a->heads, a->n_spans, 1, &p, sizeof p);
    return MOX_OK;
}

static mox_status slot_mla_attention(mox_dev *d, const mox_mla_attention_args *a, mox_err *err)
{
    MOX_TRY(check_dims(d, a->rank + a->rope, a->rank, err));
    MOX_GPU_LAUNCH(d, attention, a->heads, mox_gpu_rows(a->spans, a->n_spans), 1, .q = a->q, .q2 = a->q_pe, .out = a->ctx,
                   .spans = mox_gpu_spans(d, a->spans, a->n_spans), .k = mox_gpu_cache_of(&a->latent), .k2 = mox_gpu_cache_of(&a->k_pe),
                   .v = mox_gpu_cache_of(&a->latent), .n_spans = a->n_spans, .heads = a->heads, .kv_heads = 1, .dim = a->rank,
                   .dim2 = a->rope, .v_dim = a->rank, .q_stride = a->heads * a->rank, .q_head_stride = a->rank,
                   .q2_stride = a->heads * a->rope, .q2_head_stride = a->rope, .out_stride = a->heads * a->rank,
                   .out_head_stride = a->rank, .n_pieces = 1, .scale = a->scale, .causal = true);
    return MOX_OK;
}

void mox_gpu_fill_attention(mox_dev_ops *ops)
{
    ops->split_q_gate = slot_split_q_gate;
    ops->mla_split = slot_mla_split;
    ops->kv_append = slot_kv_append;
    ops->gqa_heads = slot_gqa_heads;
    ops->attention = slot_attention;
    ops->mla_attention = slot_mla_attention;
}
