/* model/decoder.c -- the skeleton that all families share: embedding, pre-norm
 * layers around a residual stream, final norm, head. */
#include "model/model.h"

#include "base/cancel.h"

static mox_status stop_if_cancelled(const mox_run *r)
{
    if (mox_cancelled(r->cancel)) return mox_fail(r->err, MOX_E_CANCELLED, "cancelled");
    return MOX_OK;
}

static mox_status run_layer(const mox_model *m, mox_run *r, int32_t i, float *h)
{
    const mox_layer *layer = &m->layers[i];
    const int64_t n = r->n, D = m->dims.dim;
    float *x = MOX_TAKE(r->arena, float, n * D); /* [n, D], normed input of the block */
    float *y = MOX_TAKE(r->arena, float, n * D); /* [n, D], output of the mixer */
    const size_t mark = mox_arena_mark(r->arena);
    MOX_TRY(mox_run_norm(r, &layer->norm_in, m->norm_offset, m->dims.eps, h, x, 1, D));
    MOX_TRY(layer->mixer.forward(r, &layer->mixer, i, x, y));
    mox_arena_release(r->arena, mark);
    mox_run_expect(r, layer->ffn.first, layer->ffn.n_first);
    MOX_TRY(r->dev->ops.residual_norm(r->dev,
                                      &(mox_residual_norm_args){.a = h, .b = y, .res = h, .norm = x, .rows = n, .dim = D,
                                                                .weight = mox_run_vec(r, &layer->norm_post),
                                                                .offset = m->norm_offset, .eps = m->dims.eps},
                                      r->err));
    MOX_TRY(layer->ffn.forward(r, &layer->ffn, i, x, h));
    mox_arena_release(r->arena, mark);
    return MOX_OK;
}

mox_status mox_decoder_forward(const mox_model *m, mox_run *r, float *h)
{
    if (r->first == 0)
        MOX_TRY(r->dev->ops.embed(r->dev,
                                  &(mox_embed_args){.table = mox_run_mat(r, &m->embed), .ids = r->tokens, .out = h, .n = r->n,
                                                    .out_stride = m->dims.dim},
                                  r->err));
    for (int32_t i = r->first; i < r->end; i++) {
        MOX_TRY(stop_if_cancelled(r));
        const size_t mark = mox_arena_mark(r->arena);
        MOX_TRY(run_layer(m, r, i, h));
        if (i + 1 < r->end) mox_run_expect(r, m->layers[i + 1].mixer.first, m->layers[i + 1].mixer.n_first);
        else mox_run_expect(r, &m->head, m->head.rows);
        mox_arena_release(r->arena, mark);
    }
    return stop_if_cancelled(r);
}

mox_status mox_decoder_head(const mox_model *m, mox_run *r, const float *h, float *logits)
{
    const size_t mark = mox_arena_mark(r->arena);
    float *x = MOX_TAKE(r->arena, float, r->n * m->dims.dim);
    MOX_TRY(mox_run_norm(r, &m->final_norm, m->norm_offset, m->dims.eps, h, x, 1, m->dims.dim));
    MOX_TRY(mox_run_linear(r, &m->head, NULL, x, logits));
    mox_arena_release(r->arena, mark);
    return MOX_OK;
}
