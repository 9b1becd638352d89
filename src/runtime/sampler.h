/* runtime/sampler.h -- choosing without committing, for replies that keep to a grammar. */
#ifndef MOX_RUNTIME_SAMPLER_H
#define MOX_RUNTIME_SAMPLER_H

#include "moxie.h"

/* mox_sampler_sample without accepting the token.  allowed [n_vocab] may be NULL; ids for which it is 0
 * are out before any filter looks.  Each call draws one number, so how many were drawn depends on
 * the text alone, and the same seed gives the same reply. */
mox_status mox_sampler_propose(mox_sampler *s, const float *logits, const unsigned char *allowed, int32_t *token, mox_err *err);

#endif
