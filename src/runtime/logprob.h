/* runtime/logprob.h -- how likely a model finds tokens: the logarithm of softmax over raw
 * logits, before any penalty, filter or temperature. */
#ifndef MOX_RUNTIME_LOGPROB_H
#define MOX_RUNTIME_LOGPROB_H

#include "moxie/scheduler.h"

enum { MOX_LOGPROBS_MAX = 20 };

/* token->token says which one is asked for.  top gets the n_top likeliest, at most
 * MOX_LOGPROBS_MAX, in order, the lowest id first among equals; returns how many there are.
 * Logits must not be NaN. */
int32_t mox_logprobs(const float *logits, int64_t n_vocab, mox_logprob *token, mox_logprob *top, int32_t n_top);

#endif
