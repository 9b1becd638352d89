/* dev/gpu/slots_latent.c -- slots of latent attention.  See device.h. */
#include "dev/gpu/device.h"

/* FOLD_TOKENS: more are better served together.  UNFOLD_ROWS and FOLD_COLS: of a group of latent.h.  BUSY: groups that
 * keep a GPU busy.  CUT_KEYS: fewer are seen by one group. */
enum { THREADS = 256, HEADS_WAVES = 4, FOLD_TOKENS = MOX_DEV_TOGETHER, FOLD_COLS = 512, UNFOLD_ROWS = 128, BUSY = 128, CUT_KEYS = 256,
       STREAMS_MOST = 8, STREAM_HEADS = 2 };

static void split(mox_dev *d, const float *src, float *dst, int64_t n, int64_t heads, int64_t dim, int64_t src_head)
{
    MOX_GPU_LAUNCH(d, copy, mox_ceil_div(heads * dim, THREADS), n, 1, .src = src, .dst = dst, .n = n, .heads = heads, .dim = dim,
                   .src_stride = heads * src_head, .src_head_stride = src_head, .dst_stride = heads * dim, .dst_head_stride = dim);
}

static mox_status slot_mla_split(mox_dev *d, const mox_mla_split_args *a, mox_err *err)
{
    (void)err;
    split(d, a->q_full, a->q_nope, a->n, a->heads, a->nope, a->nope + a->rope);
    split(d, a->q_full + a->nope, a->q_pe, a->n, a->heads, a->rope, a->nope + a->rope);
    split(d, a->kv, a->latent, a->n, 1, a->rank, a->rank + a->rope);
    split(d, a->kv + a->rank, a->k_pe, a->n, 1, a->rope, a->rank + a->rope);
    return MOX_OK;
}

static mox_status slot_mla_heads(mox_dev *d, const mox_mla_heads_args *a, mox_err *err)
{
    const mox_mla_split_args *s = &a->split;
    const mox_rope_args *r = &a->q_rope;
    const mox_cache *latent = &a->latent_append.cache, *k_pe = &a->k_append.cache;
    const bool fits = latent->type != MOX_DT_I8 && k_pe->type != MOX_DT_I8 && r->pos_stride == 1 && r->rotary_dim == s->rope &&
                      a->norm.offset == 0.0f && s->rank <= MOX_GPU_ATTENTION_DIM && mox_gpu_rows(a->k_append.spans, a->k_append.n_spans) == s->n;
    if (!fits) return mox_dev_mla_heads(d, a, err);
    const float *inv_freq;
    MOX_TRY(mox_gpu_check_vec(&a->norm.weight, err));
    MOX_TRY(mox_gpu_find_known(d, r->inv_freq, r->rotary_dim / 2, &inv_freq, err));
    MOX_GPU_LAUNCH(d, mla_heads, mox_ceil_div(s->heads, HEADS_WAVES) + 1, s->n, 1, .q_full = s->q_full, .kv = s->kv, .q_nope = s->q_nope,
                   .q_pe = s->q_pe, .inv_freq = inv_freq, .pos = r->pos, .spans = mox_gpu_spans(d, a->k_append.spans, a->k_append.n_spans),
                   .latent = mox_gpu_cache_of(latent), .k_pe = mox_gpu_cache_of(k_pe), .weight = mox_gpu_vec_of(&a->norm.weight),
                   .heads = s->heads, .nope = s->nope, .rope = s->rope, .rank = s->rank, .eps = a->norm.eps, .mscale = r->mscale,
                   .interleaved = r->pairing == MOX_ROPE_INTERLEAVED);
    return MOX_OK;
}

static mox_status slot_mla_q_absorb(mox_dev *d, const mox_mla_q_absorb_args *a, mox_err *err)
{
    enum { COLS = 512 };
    MOX_TRY(mox_gpu_check_mat(&a->w, err));
    const int64_t blocks = mox_ceil_div(a->n, MOX_GPU_MATVEC_TOKENS);
    const mox_gpu_mat w = mox_gpu_mat_of(&a->w);
    const mox_gpu_mla_absorb p = {.w = w, .q = a->q_nope, .out = a->out, .n = a->n, .heads = a->heads, .nope = a->nope, .rank = a->rank,
                                  .head_rows = a->head_rows};
    if (a->by_rank)
        MOX_GPU_LAUNCH(d, matvec, mox_ceil_div(a->rank, MOX_GPU_MATVEC_ROWS), blocks, a->heads, .w = w, .x = a->q_nope, .y = a->out,
                       .n = a->n, .rows = a->rank, .head_rows = a->head_rows, .x_stride = a->heads * a->nope, .x_head_stride = a->nope,
                       .y_stride = a->heads * a->rank, .y_head_stride = a->rank);
    else if (a->n <= FOLD_TOKENS && mox_gpu_mat_is_four(&w))
        mox_gpu_launch(d, MOX_GPU_KERNEL_mla4_fold, mox_ceil_div(a->rank, FOLD_COLS), a->heads, a->n, &p, sizeof p);
    else mox_gpu_launch(d, MOX_GPU_KERNEL_mla_absorb, mox_ceil_div(a->rank, COLS), a->heads, blocks, &p, sizeof p);
    return MOX_OK;
}

static mox_status slot_mla_out(mox_dev *d, const mox_mla_out_args *a, mox_err *err)
{
    MOX_TRY(mox_gpu_check_mat(&a->w, err));
    const mox_gpu_mat w = mox_gpu_mat_of(&a->w);
    const mox_gpu_matvec p = {.w = w, .x = a->ctx, .y = a->out, .n = a->n, .rows = a->v_dim, .head_rows = a->head_rows, .first_row = a->row0,
                              .x_stride = a->heads * a->rank, .x_head_stride = a->rank, .y_stride = a->heads * a->v_dim,
                              .y_head_stride = a->v_dim};
    if (a->n <= FOLD_TOKENS && mox_gpu_mat_is_four(&w) && w.cols <= MOX_GPU_ATTENTION_DIM && mox_gpu_is_wide(a->ctx, a->rank))
        mox_gpu_launch(d, MOX_GPU_KERNEL_mla4_unfold, mox_ceil_div(a->v_dim, UNFOLD_ROWS), a->heads, a->n, &p, sizeof p);
    else
        mox_gpu_launch(d, MOX_GPU_KERNEL_matvec, mox_ceil_div(a->v_dim, MOX_GPU_MATVEC_ROWS), mox_ceil_div(a->n, MOX_GPU_MATVEC_TOKENS),
                       a->heads, &p, sizeof p);
    return MOX_OK;
}

/* Rows that are alone in their spans; as many streams per head as it takes to keep the GPU busy. */
static void attend_singles(mox_dev *d, mox_gpu_attention p, const mox_span *spans, int64_t n_parts)
{
    p.n_pieces = mox_gpu_pieces(&p, spans, n_parts, CUT_KEYS, MOX_GPU_PIECES);
    const int64_t teams = mox_ceil_div(p.heads, STREAM_HEADS) * p.n_spans * p.n_pieces;
    mox_gpu_attention_latent l = {.a = p, .n_streams = STREAMS_MOST};
    while (l.n_streams > 1 && mox_ceil_div(teams * (l.n_streams / 2), STREAMS_MOST) >= BUSY) l.n_streams /= 2;
    mox_gpu_launch(d, MOX_GPU_KERNEL_attention_latent, mox_ceil_div(mox_ceil_div(p.heads, STREAM_HEADS) * l.n_streams, STREAMS_MOST), p.n_spans,
                   p.n_pieces, &l, sizeof l);
    if (p.n_pieces > 1) mox_gpu_launch(d, MOX_GPU_KERNEL_attention_merge, p.heads, p.n_spans, 1, &p, sizeof p);
}

static bool takes_streams(const mox_gpu_attention *p)
{
    return p->dim == MOX_GPU_LATENT_RANK && p->dim2 == MOX_GPU_LATENT_ROPE && mox_gpu_cache_is_quads(&p->k) && mox_gpu_cache_is_quads(&p->k2);
}

static mox_status slot_mla_attention(mox_dev *d, const mox_mla_attention_args *a, mox_err *err)
{
    MOX_TRY(mox_gpu_check_heads(d, a->rank + a->rope, a->rank, err));
    for (int64_t i = 0, last; i < a->n_spans; i = last) {
        const mox_span *spans = a->spans + i;
        const bool single = spans->n == 1;
        for (last = i + 1; last < a->n_spans && (a->spans[last].n == 1) == single;) last++;
        const mox_gpu_attention p = {.q = a->q, .q2 = a->q_pe, .out = a->ctx, .parts = a->parts, .spans = mox_gpu_spans(d, spans, last - i),
                                     .k = mox_gpu_cache_of(&a->latent), .k2 = mox_gpu_cache_of(&a->k_pe), .v = mox_gpu_cache_of(&a->latent),
                                     .n_spans = last - i, .heads = a->heads, .kv_heads = 1, .dim = a->rank, .dim2 = a->rope,
                                     .v_dim = a->rank, .q_stride = a->heads * a->rank, .q_head_stride = a->rank,
                                     .q2_stride = a->heads * a->rope, .q2_head_stride = a->rope, .out_stride = a->heads * a->rank,
                                     .out_head_stride = a->rank, .n_pieces = 1, .scale = a->scale, .causal = true};
        if (single && takes_streams(&p)) attend_singles(d, p, spans, a->parts ? a->n_parts : 0);
        else mox_gpu_launch(d, MOX_GPU_KERNEL_attention, a->heads, mox_gpu_rows(spans, p.n_spans), 1, &p, sizeof p);
    }
    return MOX_OK;
}

void mox_gpu_fill_latent(mox_dev_ops *ops)
{
    ops->mla_split = slot_mla_split;
    ops->mla_heads = slot_mla_heads;
    ops->mla_q_absorb = slot_mla_q_absorb;
    ops->mla_out = slot_mla_out;
    ops->mla_attention = slot_mla_attention;
}
