/* app/cli/conversation.h -- the messages of a chat, and one reply to them.
 *
 * Functions that return int return EXIT_OK, or the exit code after saying what is wrong. */
#ifndef MOX_APP_CLI_CONVERSATION_H
#define MOX_APP_CLI_CONVERSATION_H

#include "app/cli/options.h"
#include "app/cli/session.h"
#include "moxie/chat.h"

typedef struct mox_cli_conversation mox_cli_conversation;

mox_cli_conversation *mox_cli_conversation_create(void);
void mox_cli_conversation_destroy(mox_cli_conversation **c);

int mox_cli_conversation_ask(mox_cli_conversation *c, const char *text, size_t n);
/* NULL or "" for none. */
int mox_cli_conversation_set_system(mox_cli_conversation *c, const char *text);
const char *mox_cli_conversation_system(const mox_cli_conversation *c); /* NULL: none */
/* False when there is none. */
bool mox_cli_conversation_drop_exchange(mox_cli_conversation *c); /* the last question and what follows */
bool mox_cli_conversation_drop_reply(mox_cli_conversation *c);    /* what follows the last question */
void mox_cli_conversation_clear(mox_cli_conversation *c);         /* all but the system prompt */
int64_t mox_cli_conversation_count(const mox_cli_conversation *c); /* messages, the system prompt not among them */
int mox_cli_conversation_save(const mox_cli_conversation *c, const char *path);
int mox_cli_conversation_load(mox_cli_conversation *c, const char *path);
/* Tokens of the prompt that the messages make. */
int mox_cli_conversation_tokens(mox_cli_session *s, const mox_cli_options *o, mox_cli_conversation *c, int64_t *n);

typedef struct mox_cli_reply_events {
    mox_part_fn *part;
    /* Called when the prompt is known, then while it is computed. */
    void (*progress)(void *user, int64_t n_done, int64_t n_total);
    void *part_user, *progress_user;
} mox_cli_reply_events;

typedef struct mox_cli_stats {
    int64_t n_prompt;   /* tokens of the prompt */
    int64_t n_cached;   /* of them, those that were there already */
    int64_t n_computed; /* of them, those that were computed: fewer than the rest when stopped */
    int64_t n_generated;
    double prompt_s, generate_s, first_token_s;
    mox_stop stop; /* MOX_STOP_CANCELLED also when stopped in the prompt: n_generated is 0 then */
} mox_cli_stats;

/* Replies to the messages and appends the reply; one that was cancelled is kept as far as
 * it came, and not at all when there is nothing of it. */
int mox_cli_reply(mox_cli_session *s, const mox_cli_options *o, mox_cli_conversation *c,
                  const mox_cli_reply_events *events, mox_cli_stats *stats);

#endif
