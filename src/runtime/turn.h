/* runtime/turn.h -- replies that take turns in choosing their tokens. */
#ifndef MOX_RUNTIME_TURN_H
#define MOX_RUNTIME_TURN_H

#include "moxie/chat.h"
#include "runtime/sampler.h"

/* mox_turn_create, with a borrowed space in which the tokens are chosen (NULL: one of its own). */
mox_status mox_turn_create_in(mox_turn **out, const mox_model *m, const mox_tokenizer *tokenizer, const mox_chat *chat,
                              const mox_turn_opts *opts, mox_sampler_space *space, mox_err *err);

#endif
