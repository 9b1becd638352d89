/* runtime/sequence.c -- token timelines: pages, cutting back, checkpoints.
 *
 * A sequence writes behind its length only.  So of the pages that it shares with others just
 * the last can be in its way, when that is filled in part: it is copied before a step, or, where
 * none is to spare, the others let go of it (I2 of pages.h). */
#include "runtime/context.h"

#include "base/size.h"

#include <assert.h>
#include <string.h>

enum { ASKED_WEIGHT = 8 };

static bool recurrent(const mox_seq *s) { return s->context->model->recurrent_floats > 0; }

mox_status mox_seq_create(mox_seq **out, mox_context *c, mox_err *err)
{
    *out = NULL;
    for (int64_t i = 0; i < c->n_seqs; i++) {
        if (c->seqs[i].in_use) continue;
        c->seqs[i].in_use = true;
        mox_seq_reset(&c->seqs[i]);
        *out = &c->seqs[i];
        return MOX_OK;
    }
    return mox_fail(err, MOX_E_FULL, "the context was made for %lld sequences and all are in use", (long long)c->n_seqs);
}

/* Gives back the pages beyond those that n positions need. */
static void release_pages(mox_seq *s, int64_t n)
{
    const int64_t keep = mox_ceil_div(n, MOX_PAGE_LEN);
    while (s->n_pages > keep) mox_share_drop(s->context, MOX_SHARE_PAGES, s->pages[--s->n_pages]);
}

/* Gives up the checkpoints beyond n tokens. */
static void release_states(mox_seq *s, int64_t n)
{
    while (s->n_saved > 0 && s->checkpoints[s->n_saved - 1].at > n)
        mox_share_drop(s->context, MOX_SHARE_STATES, s->checkpoints[--s->n_saved].state);
}

void mox_seq_destroy(mox_seq **seq)
{
    mox_seq *s = *seq;
    if (!s) return;
    mox_seq_reset(s);
    s->in_use = false;
    *seq = NULL;
}

int64_t mox_seq_length(const mox_seq *s) { return s->length; }

void mox_seq_reset(mox_seq *s)
{
    assert(!s->context->stepping);
    release_pages(s, 0);
    release_states(s, 0);
    if (recurrent(s)) mox_state_zero(s->context, s->state);
    s->length = s->pending = 0;
    s->touched = false;
}

/* Makes the page that the next token goes to the sequence's own; false when there is none. */
static bool own_last_page(mox_seq *s)
{
    mox_context *c = s->context;
    if (s->length % MOX_PAGE_LEN == 0) return true;
    int32_t *last = &s->pages[s->length / MOX_PAGE_LEN];
    if (c->shares[MOX_SHARE_PAGES].refs[*last] == 1) return true;
    const int32_t mine = mox_share_take(c, MOX_SHARE_PAGES);
    if (mine == MOX_NONE) { /* pages.h, I2 */
        if (c->forget) c->forget(c->reclaim_user, *last);
        return c->shares[MOX_SHARE_PAGES].refs[*last] == 1;
    }
    mox_page_copy(c, mine, *last);
    mox_share_drop(c, MOX_SHARE_PAGES, *last);
    *last = mine;
    return true;
}

mox_status mox_seq_reserve(mox_seq *s, int64_t n_positions, mox_err *err)
{
    mox_context *c = s->context;
    const int64_t need = mox_ceil_div(n_positions, MOX_PAGE_LEN);
    bool enough = need <= c->pages_per_seq && (n_positions <= s->length || own_last_page(s));
    while (enough && s->n_pages < need) {
        const int32_t page = mox_share_take(c, MOX_SHARE_PAGES);
        enough = page != MOX_NONE;
        if (enough) s->pages[s->n_pages++] = page;
    }
    if (!enough) /* every sequence has its share: a bug */
        return mox_fail(err, MOX_E_FULL, "no cache pages left for %lld positions", (long long)n_positions);
    return MOX_OK;
}

int64_t mox_seq_cut_point(const mox_seq *s, int64_t n)
{
    if (n >= s->length) return s->length;
    if (n <= 0) return 0;
    if (!recurrent(s)) return n;
    for (int64_t i = s->n_saved - 1; i >= 0; i--)
        if (s->checkpoints[i].at <= n) return s->checkpoints[i].at;
    return 0;
}

/* To a position that cut_point has named. */
static void return_to(mox_seq *s, int64_t n)
{
    release_states(s, n); /* I3 */
    if (recurrent(s)) {
        if (n == 0) mox_state_zero(s->context, s->state);
        else mox_state_copy(s->context, s->state, mox_state_saved(s->context, s->checkpoints[s->n_saved - 1].state));
    }
    s->length = n;
    release_pages(s, n);
}

int64_t mox_seq_reuse(mox_seq *s, const int32_t *tokens, int64_t n)
{
    assert(!s->context->stepping);
    int64_t same = 0;
    while (same < n && same < s->length && s->tokens[same] == tokens[same]) same++;
    if (same == n) same--; /* its logits are wanted, and nobody has kept them */
    const int64_t at = mox_seq_cut_point(s, same);
    if (at < s->length) return_to(s, at);
    return at;
}

mox_status mox_seq_cut(mox_seq *s, int64_t n, mox_err *err)
{
    if (s->context->stepping) return mox_fail(err, MOX_E_ARG, "a sequence cannot be cut while a step is running");
    if (n < 0 || n > s->length)
        return mox_fail(err, MOX_E_ARG, "cannot cut a sequence of %lld tokens to %lld", (long long)s->length, (long long)n);
    const int64_t at = mox_seq_cut_point(s, n);
    if (at != n)
        return mox_fail(err, MOX_E_STATE, "this model's recurrent state cannot return to token %lld; the nearest saved state is at %lld",
                        (long long)n, (long long)at);
    if (n < s->length) return_to(s, n);
    return MOX_OK;
}

void mox_seq_checkpoint(mox_seq *s)
{
    assert(!s->context->stepping);
    mox_seq_save(s, s->length, true);
}

/* The checkpoint whose loss costs least: the one with the smallest gap between its
 * neighbours, measured against how far back it lies, so that spacing stays
 * geometric; one that was asked for counts ASKED_WEIGHT times as much.  While a step
 * runs, the last one at or before the committed length is never chosen: the step must
 * be able to return to it.  -1: there is no other. */
static int64_t least_missed(const mox_seq *s, int64_t now)
{
    int64_t best = -1;
    double best_cost = 0;
    for (int64_t i = 0; i < s->n_saved; i++) {
        const int64_t at = s->checkpoints[i].at;
        const int64_t next = i + 1 < s->n_saved ? s->checkpoints[i + 1].at : now;
        const bool anchor = now > s->length && at <= s->length && (i + 1 == s->n_saved || next > s->length);
        if (anchor) continue;
        const int64_t before = i > 0 ? s->checkpoints[i - 1].at : 0;
        const double weight = s->checkpoints[i].asked ? ASKED_WEIGHT : 1;
        const double cost = weight * (double)(next - before) / (double)(now - at + MOX_GRID);
        if (best < 0 || cost < best_cost) {
            best = i;
            best_cost = cost;
        }
    }
    return best;
}

void mox_seq_save(mox_seq *s, int64_t at, bool asked)
{
    mox_context *c = s->context;
    if (!recurrent(s) || at == 0) return;
    if (s->n_saved > 0 && s->checkpoints[s->n_saved - 1].at == at) {
        s->checkpoints[s->n_saved - 1].asked |= asked;
        return;
    }
    assert(s->n_saved == 0 || s->checkpoints[s->n_saved - 1].at < at);
    if (s->n_saved == c->n_checkpoints) {
        const int64_t i = least_missed(s, at);
        if (i < 0) return;
        mox_share_drop(c, MOX_SHARE_STATES, s->checkpoints[i].state);
        memmove(&s->checkpoints[i], &s->checkpoints[i + 1], (size_t)(s->n_saved - i - 1) * sizeof *s->checkpoints);
        s->n_saved--;
    }
    const int32_t state = mox_share_take(c, MOX_SHARE_STATES);
    assert(state != MOX_NONE); /* every sequence has its share */
    mox_state_copy(c, mox_state_saved(c, state), s->state);
    s->checkpoints[s->n_saved++] = (mox_checkpoint){.at = at, .state = state, .asked = asked};
}

void mox_seq_rollback(mox_seq *s)
{
    if (recurrent(s) && s->touched) {
        int64_t at = 0;
        for (int64_t i = 0; i < s->n_saved && s->checkpoints[i].at <= s->length; i++) at = s->checkpoints[i].at;
        return_to(s, at);
    } else {
        release_pages(s, s->length);
    }
    s->pending = 0;
    s->touched = false;
}

mox_status mox_seq_skip(mox_seq *s, int64_t n, mox_err *err)
{
    const mox_context *c = s->context;
    if (n < 0 || n > c->n_ctx - s->length)
        return mox_fail(err, MOX_E_FULL, "%lld tokens after %lld do not fit a context of %lld", (long long)n,
                        (long long)s->length, (long long)c->n_ctx);
    const int64_t first = s->n_pages;
    MOX_TRY(mox_seq_reserve(s, s->length + n, err));
    for (int64_t p = first; p < s->n_pages; p++)
        for (int64_t i = 0; i < 2 * c->model->dims.n_layers; i++) {
            size_t bytes;
            void *part = mox_page_part(c, s->pages[p], i, &bytes);
            mox_dev *d = mox_context_section_of(c, i / 2)->dev;
            if (bytes > 0) d->memory.zero(d, part, (int64_t)bytes);
        }
    for (int64_t i = 0; i < n; i++) s->tokens[s->length + i] = -1; /* no token */
    s->length += n;
    mox_seq_checkpoint(s);
    return MOX_OK;
}
