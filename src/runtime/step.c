/* runtime/step.c -- running ragged segments through the model.
 *
 * A step is cut into batches of at most n_batch rows, filled segment after segment.
 * For recurrent models a batch ends a segment's share at the last absolute multiple
 * of GRID in it, where the state is saved: every prompt of GRID tokens or more leaves
 * a state to return to.  Lengths are committed when the whole step has run. */
#include "runtime/context.h"

#include "base/cancel.h"
#include "base/size.h"

#include <string.h>

static mox_status check_segment(const mox_context *c, const mox_segment *segs, int32_t i, mox_err *err)
{
    const mox_segment *g = &segs[i];
    if (!g->seq || g->seq->context != c || !g->seq->in_use)
        return mox_fail(err, MOX_E_ARG, "segment %d: its sequence does not live in this context", i);
    if (g->n < 0 || (g->n > 0 && !g->tokens) || (g->n == 0 && g->want != MOX_WANT_NONE))
        return mox_fail(err, MOX_E_ARG, "segment %d: %lld tokens cannot give logits", i, (long long)g->n);
    for (int32_t j = 0; j < i; j++)
        if (segs[j].seq == g->seq) return mox_fail(err, MOX_E_ARG, "segments %d and %d are of the same sequence", j, i);
    if (g->n > c->n_ctx - g->seq->length)
        return mox_fail(err, MOX_E_FULL, "%lld tokens after %lld do not fit a context of %lld", (long long)g->n,
                        (long long)g->seq->length, (long long)c->n_ctx);
    for (int64_t t = 0; t < g->n; t++)
        if (g->tokens[t] < 0 || g->tokens[t] >= c->model->dims.n_vocab)
            return mox_fail(err, MOX_E_ARG, "segment %d: token %lld is %d, outside the vocabulary of %lld", i, (long long)t,
                            g->tokens[t], (long long)c->model->dims.n_vocab);
    return MOX_OK;
}

/* How many tokens of a segment the batch takes, with room for `room`. */
static int64_t share_of(const mox_context *c, const mox_segment *g, int64_t room)
{
    const int64_t take = mox_min_i64(g->n - g->seq->pending, room), at = g->seq->length + g->seq->pending;
    const int64_t on_grid = (at + take) / MOX_GRID * MOX_GRID;
    return c->model->recurrent_floats && on_grid > at ? on_grid - at : take;
}

/* Fills the batch arrays from what is left of the segments; returns its rows. */
static int64_t next_batch(mox_context *c, const mox_segment *segs, int32_t n_segs, int64_t *n_spans)
{
    int64_t n = 0;
    *n_spans = 0;
    for (int32_t i = 0; i < n_segs && n < c->n_batch; i++) {
        const mox_segment *g = &segs[i];
        mox_seq *s = g->seq;
        const int64_t take = share_of(c, g, c->n_batch - n), at = s->length + s->pending;
        if (take == 0) continue;
        c->spans[*n_spans] = (mox_span){.row0 = n, .n = take, .pos0 = at, .pages = s->pages, .n_pages = s->n_pages};
        c->span_segment[*n_spans] = i;
        s->touched = true;
        ++*n_spans;
        for (int64_t t = 0; t < take; t++, n++) {
            c->tokens[n] = g->tokens[s->pending + t];
            c->pos[n] = (int32_t)(at + t);
        }
    }
    return n;
}

static mox_run make_run(const mox_context *c, const mox_section *p, mox_arena *arena, int64_t n, int64_t n_spans,
                        const mox_cancel *cancel, mox_err *err)
{
    return (mox_run){.dev = p->dev, .arena = arena, .first = p->first, .end = p->end,
                     .guess_end = p->end + mox_section_guesses_on(c->model, p), .recurrent_at = p->state_at,
                     .residency = p->places ? &p->residency : &c->model->residency,
                     .experts = (mox_expert_source *)(p->tier.model ? &p->tier.source : &c->experts.source), .cancel = cancel,
                     .deterministic = c->deterministic, .n = n, .tokens = c->tokens,
                     .pos = c->pos, .spans = c->spans, .n_spans = n_spans, .caches = c->caches, .recurrent = c->recurrent,
                     .err = err};
}

/* ---- logits ---- */

/* Residual rows whose logits are wanted, collected until there are head_rows, so
 * that the head is read once for many of them. */
typedef struct head_batch {
    mox_context *c;
    const mox_segment *segs;
    const mox_step_opts *opts;
    mox_run run;
    const float *h;       /* [.., D], the residual stream */
    float *rows, *logits; /* [head_rows, D], [head_rows, V] */
    int32_t segment[MOX_HEAD_ROWS_MAX];
    int64_t row[MOX_HEAD_ROWS_MAX]; /* of the segment */
    int64_t at[MOX_HEAD_ROWS_MAX];  /* of h */
} head_batch;

enum { SEEN_ROWS = 32 };

/* Are the rows the last ones of segments that follow each other, and nobody else is to see them?  Then they are computed
 * or fetched to where they are kept: of many sequences they are megabytes. */
static bool all_are_kept(const head_batch *b)
{
    if (b->opts && b->opts->on_logits) return false;
    for (int64_t i = 0; i < b->run.n; i++)
        if (b->segment[i] != b->segment[0] + i || b->row[i] != b->segs[b->segment[i]].n - 1) return false;
    return true;
}

/* Puts the rows together: as many at once as follow each other.  All of them: they are so already. */
static mox_status gather(const head_batch *b, const float **rows)
{
    const int64_t D = b->c->model->dims.dim;
    *rows = b->rows;
    for (int64_t i = 0, n; i < b->run.n; i += n) {
        for (n = 1; i + n < b->run.n && b->at[i + n] == b->at[i] + n;) n++;
        if (n == b->run.n) *rows = b->h + b->at[0] * D;
        else
            MOX_TRY(b->run.dev->ops.copy_slice(b->run.dev, &(mox_copy_slice_args){.src = b->h + b->at[i] * D, .dst = b->rows + i * D, .rows = n,
                                                                                  .cols = D, .src_stride = D, .dst_stride = D}, b->run.err));
    }
    return MOX_OK;
}

static mox_status flush_head(head_batch *b)
{
    const int64_t V = b->c->model->dims.n_vocab;
    if (b->run.n == 0) return MOX_OK;
    const float *rows;
    MOX_TRY(gather(b, &rows));
    float *kept = all_are_kept(b) ? b->c->last_logits + b->segment[0] * V : NULL, *computed = b->logits;
    /* A device that sees where they are kept writes them there while it computes; for more rows a copy afterwards is as fast. */
    const bool in_place = kept && (!b->c->fetched || (b->c->logits_seen && b->run.n <= SEEN_ROWS));
    if (in_place) computed = b->c->fetched ? b->c->logits_seen + b->segment[0] * V : kept;
    MOX_TRY(mox_decoder_head(b->c->model, &b->run, rows, computed));
    mox_work_head(b->c, b->run.n);
    const float *all = computed;
    if (kept) {
        if (!in_place) /* else they are there after the sync that ends the batch */
            MOX_TRY(b->run.dev->memory.download(b->run.dev, kept, all, b->run.n * V * (int64_t)sizeof *all, b->run.err));
        for (int64_t i = 0; i < b->run.n; i++) b->c->has_logits[b->segment[i]] = true;
        b->run.n = 0;
        return MOX_OK;
    }
    if (b->c->fetched) {
        MOX_TRY(b->run.dev->memory.download(b->run.dev, b->c->fetched, all, b->run.n * V * (int64_t)sizeof *all, b->run.err));
        all = b->c->fetched;
    }
    for (int64_t i = 0; i < b->run.n; i++) {
        const float *logits = all + i * V;
        if (b->opts && b->opts->on_logits) b->opts->on_logits(b->opts->on_logits_user, b->segment[i], b->row[i], logits);
        if (b->row[i] == b->segs[b->segment[i]].n - 1) {
            memcpy(b->c->last_logits + b->segment[i] * V, logits, (size_t)V * sizeof *logits);
            b->c->has_logits[b->segment[i]] = true;
        }
    }
    b->run.n = 0;
    return MOX_OK;
}

static mox_status give_logits(head_batch *b, int64_t n_spans)
{
    for (int64_t i = 0; i < n_spans; i++) {
        const mox_span *span = &b->c->spans[i];
        const int32_t segment = b->c->span_segment[i];
        const mox_segment *g = &b->segs[segment];
        const int64_t first = g->seq->pending; /* row of the segment that the span begins with */
        for (int64_t t = 0; t < span->n; t++) {
            if (g->want == MOX_WANT_NONE || (g->want == MOX_WANT_LAST && first + t != g->n - 1)) continue;
            b->segment[b->run.n] = segment;
            b->at[b->run.n] = span->row0 + t;
            b->row[b->run.n++] = first + t;
            if (b->run.n < mox_head_rows(b->c)) continue;
            if (mox_cancelled(b->run.cancel)) return mox_fail(b->run.err, MOX_E_CANCELLED, "cancelled");
            MOX_TRY(flush_head(b));
        }
    }
    return flush_head(b);
}

/* ---- batches ---- */

/* The batch as a section sees it, whose device is told of it. */
static mox_run begin_section(mox_context *c, mox_section *p, const mox_segment *segs, int64_t n, int64_t n_spans, const mox_cancel *cancel,
                          mox_err *err)
{
    mox_run run = make_run(c, p, &p->arena, n, n_spans, cancel, err);
    for (int64_t i = 0; i < n_spans; i++) {
        size_t bytes;
        c->recurrent[i] = mox_state_piece(p, segs[c->span_segment[i]].seq->state, &bytes);
    }
    if (p->dev->apart) {
        mox_batch batch = {.tokens = c->tokens, .pos = c->pos, .n = n, .spans = c->spans, .n_spans = n_spans};
        p->dev->apart->begin(p->dev, &batch);
        run.tokens = batch.tokens;
        run.pos = batch.pos;
    }
    return run;
}

static mox_status compute_batch(mox_context *c, const mox_segment *segs, int64_t n, int64_t n_spans, const mox_step_opts *opts,
                                mox_err *err)
{
    const int64_t D = c->model->dims.dim, V = c->model->dims.n_vocab;
    head_batch head = {.c = c, .segs = segs, .opts = opts};
    float *h = NULL; /* [n, D], the residual stream, on the device of the section */
    for (int i = 0; i < c->n_sections; i++) {
        mox_section *p = &c->sections[i];
        mox_arena_release(&p->arena, 0);
        float *passed_on = h;
        h = MOX_TAKE(&p->arena, float, n * D);
        head.rows = MOX_TAKE(&p->arena, float, mox_head_rows(c) * D);
        head.logits = MOX_TAKE(&p->arena, float, mox_head_rows(c) * V);
        if (i > 0) p->dev->apart->copy_from(p->dev, h, c->sections[i - 1].dev, passed_on, n * D * (int64_t)sizeof *h);
        mox_run run = begin_section(c, p, segs, n, n_spans, opts ? opts->cancel : NULL, err);
        head.run = run;
        MOX_TRY(mox_decoder_forward(c->model, &run, h));
    }
    head.run.n = 0;
    head.h = h;
    mox_work_batch(c, n, n_spans);
    return give_logits(&head, n_spans);
}

static mox_status run_batch(mox_context *c, const mox_segment *segs, int64_t n, int64_t n_spans, const mox_step_opts *opts,
                            mox_err *err)
{
    /* The first that is not OK; all devices are waited for, also after a failure: they may write logits, and read
     * experts that the next step copies others over. */
    mox_status status = compute_batch(c, segs, n, n_spans, opts, err);
    for (int i = 0; i < c->n_sections; i++) {
        const mox_status of_section = c->sections[i].dev->memory.sync(c->sections[i].dev, status == MOX_OK ? err : NULL);
        if (status == MOX_OK) status = of_section;
    }
    return status;
}

mox_status mox_step_measure(const mox_context *c, size_t *bytes, mox_err *err)
{
    mox_dev *plan;
    MOX_TRY(mox_dev_plan_open(&plan, err));
    const int64_t D = c->model->dims.dim, V = c->model->dims.n_vocab;
    mox_arena arena;
    mox_arena_init_measure(&arena);
    const mox_section all = {.dev = plan, .end = (int32_t)c->model->dims.n_layers};
    mox_run run = make_run(c, &all, &arena, c->n_batch, c->n_seqs, NULL, err);
    float *h = MOX_TAKE(&arena, float, c->n_batch * D);
    (void)MOX_TAKE(&arena, float, mox_head_rows(c) * D);
    float *logits = MOX_TAKE(&arena, float, mox_head_rows(c) * V);
    mox_status status = mox_decoder_forward(c->model, &run, h);
    run.n = mox_head_rows(c);
    if (status == MOX_OK) status = mox_decoder_head(c->model, &run, h, logits);
    *bytes = arena.peak;
    mox_dev_close(&plan);
    return status;
}

static mox_status run_step(mox_context *c, const mox_segment *segs, int32_t n_segs, const mox_step_opts *opts, mox_err *err)
{
    int64_t total = 0, done = 0;
    for (int32_t i = 0; i < n_segs; i++) {
        MOX_TRY(mox_seq_reserve(segs[i].seq, segs[i].seq->length + segs[i].n, err));
        total += segs[i].n;
    }
    while (done < total) {
        if (opts && mox_cancelled(opts->cancel)) return mox_fail(err, MOX_E_CANCELLED, "cancelled"); /* nothing touched yet */
        mox_expert_store_adapt(&c->experts);
        int64_t n_spans;
        const int64_t n = next_batch(c, segs, n_segs, &n_spans);
        MOX_TRY(run_batch(c, segs, n, n_spans, opts, err));
        for (int64_t i = 0; i < n_spans; i++) {
            const mox_segment *g = &segs[c->span_segment[i]];
            mox_seq *s = g->seq;
            memcpy(s->tokens + s->length + s->pending, g->tokens + s->pending, (size_t)c->spans[i].n * sizeof *s->tokens);
            s->pending += c->spans[i].n;
            if ((s->length + s->pending) % MOX_GRID == 0) mox_seq_save(s, s->length + s->pending, false);
        }
        done += n;
        if (opts && opts->progress) opts->progress(opts->progress_user, done, total);
    }
    return MOX_OK;
}

mox_status mox_step(mox_context *c, const mox_segment *segs, int32_t n_segs, const mox_step_opts *opts, mox_err *err)
{
    if (c->stepping) return mox_fail(err, MOX_E_ARG, "a step was asked for while one is running");
    memset(c->has_logits, 0, (size_t)c->n_seqs * sizeof *c->has_logits);
    if (n_segs < 0 || n_segs > c->n_seqs)
        return mox_fail(err, MOX_E_ARG, "a step of %d segments in a context made for %lld sequences", n_segs, (long long)c->n_seqs);
    for (int32_t i = 0; i < n_segs; i++) MOX_TRY(check_segment(c, segs, i, err));
    c->stepping = true;
    const mox_status status = run_step(c, segs, n_segs, opts, err);
    c->stepping = false;
    if (status != MOX_OK) memset(c->has_logits, 0, (size_t)c->n_seqs * sizeof *c->has_logits);
    for (int32_t i = 0; i < n_segs; i++) {
        mox_seq *s = segs[i].seq;
        if (status != MOX_OK) {
            mox_seq_rollback(s);
        } else {
            s->length += s->pending;
            s->pending = 0;
            s->touched = false;
        }
    }
    return status;
}
