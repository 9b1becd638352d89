/* runtime/work.c -- counting what steps had to read and to multiply at least.
 *
 * A batch reads every resident weight once, whatever its length; experts are counted
 * where they are handed out, or, on a device that chooses them itself, as if no two tokens
 * had one in common.  Bytes that an operation reads twice because caches are
 * small, and activations, are not counted: the numbers say what was needed. */
#include "runtime/context.h"

#include "base/size.h"
#include "ops/mla.h"

/* Multiply-adds of the attention of a span, over all layers; products with weights are counted elsewhere. */
static int64_t attention_macs(const mox_model *m, const mox_span *s, bool deterministic)
{
    const mox_inspection *r = &m->report;
    const int64_t pairs = s->n * s->pos0 + s->n * (s->n + 1) / 2; /* rows and the positions that they see */
    if (r->n_layers_latent == 0) return pairs * r->n_layers_attention * 2 * r->n_heads * r->head_dim;
    int64_t macs = 0;
    for (int64_t i = 0; i < m->dims.n_layers; i++) {
        const int64_t rank = m->layers[i].cache.first, rope = m->layers[i].cache.second;
        const int64_t nope = r->head_dim - rope, v = m->dims.v_dim;
        const bool expands = !deterministic && mox_mla_expands(s, nope, rope, rank, v);
        macs += r->n_heads * (mox_mla_macs(s, nope, rope, rank, v, expands) - s->n * (nope + v) * rank);
    }
    return macs;
}

/* Of one token in all delta nets: S k, S + k v, S q. */
static int64_t recurrent_macs(const mox_inspection *r)
{
    return 3 * r->n_layers_linear * r->linear_v_heads * r->linear_k_dim * r->linear_v_dim;
}

static int64_t params_of(const mox_weight *w) { return w->rows * w->cols; }

/* Bytes of dense weights that a batch of n tokens reads, without the head. */
static int64_t dense_bytes(const mox_model *m, int64_t n)
{
    const mox_inspection *r = &m->report;
    const int64_t table = mox_weight_bytes(&m->embed), head = r->tied_embeddings ? 0 : mox_weight_bytes(&m->head);
    return r->bytes_total - r->bytes_experts - table - head + n * (table / m->dims.n_vocab);
}

/* Multiply-adds of a token, without attention and the head. */
static int64_t token_macs(const mox_model *m)
{
    const mox_inspection *r = &m->report;
    return r->params_active - params_of(&m->embed) - (r->tied_embeddings ? 0 : params_of(&m->head)) + recurrent_macs(r);
}

void mox_work_token(const mox_model *m, int64_t *bytes, int64_t *macs, int64_t *head_macs)
{
    *bytes = dense_bytes(m, 1) + mox_weight_bytes(&m->head) + m->report.state_bytes;
    *macs = token_macs(m);
    *head_macs = params_of(&m->head);
}

/* Bytes of experts that n tokens read at most. */
static int64_t most_expert_bytes(const mox_model *m, int64_t n)
{
    int64_t bytes = 0;
    const int64_t chosen = mox_min_i64(n * m->report.n_experts_active, m->n_experts);
    for (int64_t i = 0; i < m->dims.n_layers; i++) {
        const mox_expert_weights *e = m->layers[i].experts;
        if (e) bytes += chosen * (mox_weight_bytes(&e->gate) + mox_weight_bytes(&e->up) + mox_weight_bytes(&e->down));
    }
    return bytes;
}

void mox_work_batch(mox_context *c, int64_t n, int64_t n_spans)
{
    const mox_model *m = c->model;
    const mox_inspection *r = &m->report;
    mox_work *w = &c->work;
    w->tokens += n;
    w->batches++;
    w->weight_bytes += dense_bytes(m, n);
    if (c->sections[0].dev->apart) w->weight_bytes += most_expert_bytes(m, n);
    w->macs += n * token_macs(m);
    const mox_dtype type = c->caches[0].first.type;
    int64_t cached = 0; /* bytes per position */
    for (int64_t i = 0; i < m->dims.n_layers; i++)
        cached += (mox_cache_elements(m, i, type, 0) + mox_cache_elements(m, i, type, 1)) * mox_dtype_bytes(type);
    for (int64_t i = 0; i < n_spans; i++) {
        const mox_span *s = &c->spans[i];
        w->cache_bytes += cached * (s->pos0 + s->n) + r->state_bytes;
        w->macs += attention_macs(m, s, c->deterministic);
    }
}

void mox_work_head(mox_context *c, int64_t n_rows)
{
    const mox_weight *head = &c->model->head;
    c->work.weight_bytes += mox_weight_bytes(head);
    c->work.macs += n_rows * params_of(head);
}

void mox_context_get_work(const mox_context *c, mox_work *out)
{
    *out = c->work;
    if (!c->sections[0].dev->apart) out->weight_bytes += c->experts.bytes_used; /* of others mox_work_batch has all */
}
