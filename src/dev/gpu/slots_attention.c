/* dev/gpu/slots_attention.c -- slots around paged caches: appending, attention, and the splits
 * in front of it.  See device.h. */
#include "dev/gpu/device.h"

/* SHARE_GROUPS: rows are cut so that share.h has at most so many groups. */
enum { THREADS = 256, APPEND_WAVES = 4, HEADS_WAVES = 4, SHARE_GROUPS = 2 * MOX_GPU_PROCESSORS };

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

static bool are_single(const mox_span *spans, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (spans[i].n != 1) return false;
    return true;
}

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
                   .rotary_dim = r->rotary_dim, .offset = qn->offset, .eps = qn->eps, .mscale = r->mscale,
                   .single = are_single(a->k_append.spans, a->k_append.n_spans) ? 1 : 0);
    return MOX_OK;
}

/* ---- attention: which kernel takes which spans ---- */

/* Spans of one kind in a row go to one launch. */
typedef enum span_kind { SINGLE, FEW, MANY } span_kind;
static span_kind kind_of(const mox_span *s) { return s->n == 1 ? SINGLE : s->n > MOX_GPU_MANY ? MANY : FEW; }

static bool takes_quads(const mox_gpu_attention *p)
{
    return p->dim == p->v_dim && p->k.page_len == p->v.page_len && mox_gpu_cache_is_quads(&p->k) && mox_gpu_cache_is_quads(&p->v);
}

/* MOX_GPU_KERNEL_COUNT: there is none for these heads and caches. */
static mox_gpu_kernel flash_kernel(const mox_dev *d, const mox_gpu_attention *p)
{
    if (!((const mox_dev_gpu *)d)->halves || !takes_quads(p) || !(p->scale > 0.0f)) return MOX_GPU_KERNEL_COUNT;
    switch (p->dim) {
    case 64: return MOX_GPU_KERNEL_attention_flash_64;
    case 128: return MOX_GPU_KERNEL_attention_flash_128;
    case 256: return MOX_GPU_KERNEL_attention_flash_256;
    default: return MOX_GPU_KERNEL_COUNT;
    }
}
/* Kernels for single rows; decode is MOX_GPU_KERNEL_COUNT where there are none. */
typedef struct single_kernels {
    mox_gpu_kernel decode, share;
} single_kernels;
static single_kernels kernels_of(const mox_gpu_attention *p)
{
    const bool wide = mox_gpu_is_wide(p->q, p->q_stride) && p->q_head_stride % 4 == 0;
    if (wide && takes_quads(p)) {
        switch (p->dim) {
        case 64: return (single_kernels){MOX_GPU_KERNEL_attention_decode_64, MOX_GPU_KERNEL_attention_share_64};
        case 128: return (single_kernels){MOX_GPU_KERNEL_attention_decode_128, MOX_GPU_KERNEL_attention_share_128};
        case 256: return (single_kernels){MOX_GPU_KERNEL_attention_decode_256, MOX_GPU_KERNEL_attention_share_256};
        }
    }
    return (single_kernels){MOX_GPU_KERNEL_COUNT, MOX_GPU_KERNEL_COUNT};
}

/* Keys that a row sees in front of its own, at most. */
static int64_t deepest_of(const mox_gpu_attention *p, const mox_span *spans)
{
    int64_t deepest = 0;
    for (int64_t i = 0; i < p->n_spans; i++) deepest = mox_max_i64(deepest, spans[i].pos0);
    return p->window > 0 ? mox_min_i64(deepest, p->window - 1) : deepest;
}

int64_t mox_gpu_pieces(const mox_gpu_attention *p, const mox_span *spans, int64_t n_parts, int64_t least_keys, int64_t most)
{
    const int64_t room = n_parts / (p->n_spans * p->heads * (p->v_dim + 2));
    return deepest_of(p, spans) < least_keys ? 1 : mox_max_i64(1, mox_min_i64(room, most));
}

/* Rows that are alone in their spans; n_parts: floats at p->parts. */
static void attend_singles(mox_dev *d, mox_gpu_attention p, const mox_span *spans, int64_t n_parts)
{
    const single_kernels kernels = kernels_of(&p);
    if (kernels.decode == MOX_GPU_KERNEL_COUNT) {
        const bool cut = mox_gpu_pieces(&p, spans, n_parts, MOX_ATTENTION_PIECE, MOX_GPU_PIECES) == MOX_GPU_PIECES;
        p.n_pieces = cut ? MOX_GPU_PIECES : 1;
        mox_gpu_launch(d, MOX_GPU_KERNEL_attention, p.heads, p.n_spans, p.n_pieces, &p, sizeof p);
        if (cut) mox_gpu_launch(d, MOX_GPU_KERNEL_attention_merge, p.heads, p.n_spans, 1, &p, sizeof p);
        return;
    }
    /* A group of decode.h has a processor of its own; when there are more of them, one that takes all heads of a key is done sooner. */
    if (deepest_of(&p, spans) < MOX_GPU_DECODE_KEYS && p.heads * p.n_spans <= MOX_GPU_PROCESSORS) {
        mox_dev_gpu *g = (mox_dev_gpu *)d;
        p.rehearse = g->leaves_room;
        mox_gpu_launch(d, kernels.decode, p.heads, p.n_spans, 1, &p, sizeof p);
        g->attention_groups = p.heads * p.n_spans;
        return;
    }
    const int64_t groups = p.kv_heads * mox_ceil_div(p.heads / p.kv_heads, MOX_GPU_SHARE_HEADS), most = SHARE_GROUPS / (groups * p.n_spans);
    p.n_pieces = mox_gpu_is_wide(p.parts, p.v_dim) ? mox_gpu_pieces(&p, spans, n_parts, MOX_GPU_DECODE_KEYS, most) : 1;
    mox_gpu_launch(d, kernels.share, groups, p.n_spans, p.n_pieces, &p, sizeof p);
    if (p.n_pieces > 1)
        mox_gpu_launch(d, MOX_GPU_KERNEL_attention_join, p.heads, p.n_spans, p.v_dim / MOX_GPU_JOIN_WIDE, &p, sizeof p);
}

static void attend_many(mox_dev *d, const mox_gpu_attention *p, const mox_span *spans)
{
    const mox_gpu_kernel flash = flash_kernel(d, p);
    if (flash == MOX_GPU_KERNEL_COUNT) {
        mox_gpu_launch(d, MOX_GPU_KERNEL_attention, p->heads, mox_gpu_rows(spans, p->n_spans), 1, p, sizeof *p);
        return;
    }
    mox_gpu_attention_flash f = {.a = *p};
    for (int64_t i = 0; i < p->n_spans; i++) f.n_tiles += mox_ceil_div(spans[i].n, MOX_GPU_FLASH_ROWS);
    mox_gpu_launch(d, flash, p->heads, f.n_tiles, 1, &f, sizeof f);
}

static mox_status slot_attention(mox_dev *d, const mox_attention_args *a, mox_err *err)
{
    MOX_TRY(mox_gpu_check_heads(d, a->dim, a->v_dim, err));
    const float *sinks = NULL;
    if (a->sinks) MOX_TRY(mox_gpu_find_known(d, a->sinks, a->heads, &sinks, err));
    for (int64_t i = 0, last; i < a->n_spans; i = last) {
        const mox_span *spans = a->spans + i;
        const span_kind kind = kind_of(spans);
        for (last = i + 1; last < a->n_spans && kind_of(a->spans + last) == kind;) last++;
        const mox_gpu_attention p = {.q = a->q, .out = a->out, .parts = a->parts, .sinks = sinks,
                                     .spans = mox_gpu_spans(d, spans, last - i), .k = mox_gpu_cache_of(&a->k),
                                     .v = mox_gpu_cache_of(&a->v), .n_spans = last - i, .heads = a->heads, .kv_heads = a->kv_heads,
                                     .dim = a->dim, .v_dim = a->v_dim, .q_stride = a->q_stride, .q_head_stride = a->q_head_stride,
                                     .out_stride = a->out_stride, .out_head_stride = a->out_head_stride, .window = a->window,
                                     .n_pieces = 1, .scale = a->scale, .causal = a->causal};
        if (kind == SINGLE) attend_singles(d, p, spans, a->parts ? a->n_parts : 0);
        else if (kind == MANY) attend_many(d, &p, spans);
        else mox_gpu_launch(d, MOX_GPU_KERNEL_attention, a->heads, mox_gpu_rows(spans, p.n_spans), 1, &p, sizeof p);
    }
    return MOX_OK;
}

void mox_gpu_fill_attention(mox_dev_ops *ops)
{
    ops->split_q_gate = slot_split_q_gate;
    ops->kv_append = slot_kv_append;
    ops->gqa_heads = slot_gqa_heads;
    ops->attention = slot_attention;
}
