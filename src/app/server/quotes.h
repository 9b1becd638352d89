/* app/server/quotes.h -- what the model said lately, for prompts that quote it.
 *
 * Clients send a conversation back as messages, and a template writes those again: perhaps with other
 * blanks, another spelling of arguments, and surely with the tokens that an encoder chooses, which need
 * not be those that were sampled.  The prompt would then leave the path that the model has computed
 * where the last reply begins.  So replies are remembered with their bytes and ids; a message is known by
 * its text and the id of its first tool call, and whether both mean the same is for mox_chat_render to
 * find out.
 *
 * Owns: the last replies, within a number and a sum of bytes; the oldest go first.
 * Threads: any.  A quote that was found stays until it is released. */
#ifndef MOX_APP_SERVER_QUOTES_H
#define MOX_APP_SERVER_QUOTES_H

#include "moxie/chat.h"

typedef struct mox_quotes mox_quotes;

typedef struct mox_quote {
    struct mox_quote *newer, *older;
    int refs;
    size_t bytes; /* of all that is here */
    const char *text, *call;
    size_t n_text, n_call;
    mox_said said;      /* but for its message */
    const int32_t *ids; /* [n_ids] of the prompt and the reply */
    int64_t n_ids;
} mox_quote;

mox_status mox_quotes_create(mox_quotes **out, mox_err *err);
void mox_quotes_destroy(mox_quotes **q);

/* A reply to the prompt has ended.  Without memory it is forgotten. */
void mox_quotes_add(mox_quotes *q, const mox_prompt *prompt, const mox_tokens *ids, const mox_turn *turn);

/* The newest of a message with this text, but for blanks around it, and this id of its first call (n_call
 * 0: it has none); NULL: there is none. */
const mox_quote *mox_quotes_find(mox_quotes *q, const char *text, size_t n, const char *call, size_t n_call);
void mox_quotes_release(mox_quotes *q, const mox_quote *quote);

#endif
