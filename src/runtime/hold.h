/* runtime/hold.h -- a turn's grammar: when it begins to count, and how tokens are chosen under it.
 *
 * The grammar speaks of the reply behind the thinking.  A prompt or a reply may have a thinking block
 * open, and a model may open one with its first token; until it is closed anything goes but an end.
 *
 * A token is drawn first and looked at then: mostly it is allowed, and the mask of all tokens is
 * not needed.  When it is not, the mask is made and another one is drawn from what is left.  Both
 * together draw each allowed token in proportion, as if the mask had been there at once.
 *
 * Owns: the constraint.   A zeroed mox_hold holds to nothing. */
#ifndef MOX_RUNTIME_HOLD_H
#define MOX_RUNTIME_HOLD_H

#include "moxie/grammar.h"

typedef struct mox_hold {
    mox_constraint *constraint; /* NULL: nothing to hold to */
    int64_t n_vocab;
    int32_t *end_ids;
    int32_t n_end_ids;
    int32_t think_id; /* opens a thinking block; -1: none */
    bool begun;       /* the grammar counts */
    bool thought;     /* a thinking block was open */
} mox_hold;

/* may_think: the reply may begin with <think>. */
mox_status mox_hold_init(mox_hold *h, const mox_turn_opts *opts, const mox_generation *g, const mox_tokenizer *t,
                         int64_t n_vocab, bool may_think, mox_err *err);
void mox_hold_deinit(mox_hold *h);

/* Before each token.  thinking: a block is open now.  *over: nothing can follow any more. */
mox_status mox_hold_look(mox_hold *h, bool thinking, bool *over, mox_err *err);
/* Chooses a token that may come; first: of the reply. */
mox_status mox_hold_choose(mox_hold *h, mox_sampler *s, const float *logits, bool first, int32_t *token, mox_err *err);
/* It came, chosen or not. */
mox_status mox_hold_accept(mox_hold *h, int32_t token, mox_err *err);
/* Nothing can follow any more. */
bool mox_hold_is_over(const mox_hold *h);

#endif
