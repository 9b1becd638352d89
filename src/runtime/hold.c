/* runtime/hold.c -- see hold.h. */
#include "runtime/hold.h"

#include "base/alloc.h"
#include "base/err.h"
#include "moxie/text.h"
#include "runtime/sampler.h"

#include <string.h>

mox_status mox_hold_init(mox_hold *h, const mox_turn_opts *opts, const mox_generation *g, const mox_tokenizer *t,
                         int64_t n_vocab, bool may_think, mox_err *err)
{
    if (!opts->grammar) return MOX_OK;
    if (!opts->trie) return mox_fail(err, MOX_E_ARG, "a reply with a grammar needs the tokenizer's trie");
    while (mox_stop_id(g, t, h->n_end_ids) >= 0) h->n_end_ids++;
    h->n_vocab = n_vocab;
    h->think_id = may_think ? mox_tokenizer_added_id(t, "<think>") : -1;
    h->end_ids = mox_alloc_array((size_t)h->n_end_ids + 1, sizeof *h->end_ids);
    if (!h->end_ids) return mox_fail_memory(err, (size_t)h->n_end_ids * sizeof *h->end_ids, "a reply's grammar");
    for (int32_t i = 0; i < h->n_end_ids; i++) h->end_ids[i] = mox_stop_id(g, t, i);
    return mox_constraint_create(&h->constraint, opts->grammar, opts->trie, h->end_ids, h->n_end_ids, err);
}

void mox_hold_deinit(mox_hold *h)
{
    mox_constraint_destroy(&h->constraint);
    mox_free(h->end_ids);
}

bool mox_hold_is_over(const mox_hold *h) { return h->begun && mox_constraint_must_end(h->constraint); }

mox_status mox_hold_look(mox_hold *h, bool thinking, bool *over, mox_err *err)
{
    *over = false;
    if (!h->constraint) return MOX_OK;
    if (thinking) h->thought = true;
    if (!thinking && !h->begun) {
        MOX_TRY(mox_constraint_begin(h->constraint, h->thought, err));
        h->begun = true;
    }
    *over = mox_hold_is_over(h);
    return MOX_OK;
}

static bool is_end(const mox_hold *h, int32_t token)
{
    for (int32_t i = 0; i < h->n_end_ids; i++)
        if (h->end_ids[i] == token) return true;
    return false;
}

/* Thinking that ends the reply would leave nothing that the grammar allows. */
static void mask_thinking(const mox_hold *h, unsigned char *mask)
{
    memset(mask, 1, (size_t)h->n_vocab);
    for (int32_t i = 0; i < h->n_end_ids; i++)
        if (h->end_ids[i] < h->n_vocab) mask[h->end_ids[i]] = 0;
}

mox_status mox_hold_choose(mox_hold *h, mox_sampler *s, const float *logits, bool first, int32_t *token, mox_err *err)
{
    if (!h->constraint) return mox_sampler_sample(s, logits, token, err);
    bool allowed = false;
    unsigned char *mask = mox_sampler_mask(s);
    MOX_TRY(mox_sampler_propose(s, logits, NULL, token, err));
    if (!h->begun) {
        allowed = !is_end(h, *token);
        if (!allowed) mask_thinking(h, mask);
    } else if (first && *token == h->think_id) {
        h->begun = false; /* it counts behind the thinking */
        allowed = true;
    } else {
        MOX_TRY(mox_constraint_allows(h->constraint, *token, &allowed, err));
        if (!allowed) MOX_TRY(mox_constraint_mask(h->constraint, mask, h->n_vocab, err));
    }
    if (!allowed) MOX_TRY(mox_sampler_propose(s, logits, mask, token, err));
    mox_sampler_accept(s, *token);
    return MOX_OK;
}

mox_status mox_hold_accept(mox_hold *h, int32_t token, mox_err *err)
{
    return h->begun ? mox_constraint_accept(h->constraint, token, err) : MOX_OK;
}
