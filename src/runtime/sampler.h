/* runtime/sampler.h -- samplers that share memory, and choosing without committing. */
#ifndef MOX_RUNTIME_SAMPLER_H
#define MOX_RUNTIME_SAMPLER_H

#include "moxie.h"

/* The memory that a token is chosen in: as large as the vocabulary, and with nothing in it between
 * two choices, so that samplers which one thread uses in turn can share it. */
typedef struct mox_sampler_space mox_sampler_space;
mox_status mox_sampler_space_create(mox_sampler_space **out, int64_t n_vocab, mox_err *err);
void mox_sampler_space_destroy(mox_sampler_space **space);

/* mox_sampler_create in a space that is borrowed. */
mox_status mox_sampler_create_in(mox_sampler **out, mox_sampler_space *space, const mox_sampler_opts *opts, mox_err *err);

/* [n_vocab] of its space, for `allowed` below; what is in it stays until the next choice. */
unsigned char *mox_sampler_mask(const mox_sampler *s);

/* mox_sampler_sample without accepting the token.  allowed [n_vocab] may be NULL; ids for which it is 0
 * are out before any filter looks.  Each call draws one number, so how many were drawn depends on
 * the text alone, and the same seed gives the same reply. */
mox_status mox_sampler_propose(mox_sampler *s, const float *logits, const unsigned char *allowed, int32_t *token, mox_err *err);

#endif
