/* app/cli/conversation.h -- the messages of a chat, and prompts made of them.
 *
 * Messages are JSON objects as templates take them.  For each reply the conversation also
 * keeps what was sampled, byte for byte, and the ids of the last prompt and reply, so that
 * the next prompt begins with exactly what has been computed.
 *
 * Functions return an exit code, after saying what is wrong. */
#ifndef MOX_APP_CLI_CONVERSATION_H
#define MOX_APP_CLI_CONVERSATION_H

#include "app/cli/reply.h"
#include "app/cli/session.h"
#include "moxie/chat.h"

typedef struct mox_cli_message {
    char *json;
    char *role;
    /* of a reply that was sampled here; text NULL otherwise */
    char *opening, *said;
    size_t n_opening, n_said;
    mox_text_span *plain;
    size_t n_plain;
} mox_cli_message;

/* Zero-initialise; mox_cli_conversation_free takes back what it holds. */
typedef struct mox_cli_conversation {
    mox_cli_message *messages;
    size_t n, capacity;
    char *tools, *kwargs;  /* JSON, or NULL */
    const char *tools_file; /* where the tools are from */
    mox_tokens timeline;   /* of the last prompt and its reply */
    int64_t unix_time_s;   /* what templates take for the present */
    int32_t utc_offset_s;
} mox_cli_conversation;

void mox_cli_conversation_free(mox_cli_conversation *c);
/* Takes --tools, --kwargs and the clock from the options. */
int mox_cli_conversation_begin(mox_cli_conversation *c, const mox_cli_options *o);

/* Adds a message at the end; text is UTF-8. */
int mox_cli_conversation_add(mox_cli_conversation *c, const char *role, const char *text, size_t n);
/* The first message becomes this system prompt; an empty text takes it away. */
int mox_cli_conversation_set_system(mox_cli_conversation *c, const char *text, size_t n);
/* Messages up to the last one of the user, with it; 0 when there is none. */
size_t mox_cli_conversation_asked(const mox_cli_conversation *c);
/* Drops messages from the end until n are left. */
void mox_cli_conversation_drop(mox_cli_conversation *c, size_t n);
/* The messages become those of a JSON text: an array, or an object with one as "messages". */
int mox_cli_conversation_parse(mox_cli_conversation *c, const char *name, const char *text, size_t n);
/* The messages as the JSON text of an array, which the caller frees with mox_free. */
int mox_cli_conversation_json(const mox_cli_conversation *c, char **out);

/* The prompt for the next reply (or, without a generation prompt, up to the last message). */
int mox_cli_conversation_render(const mox_cli_conversation *c, const mox_cli_session *s, mox_think think, bool generation,
                                mox_prompt *out);

/* Renders the first n messages, replies, and puts the reply, also one that was stopped early, in the
 * place of all that follow; without a reply these stay.  The caller destroys *turn, which is NULL
 * when there is no reply. */
int mox_cli_conversation_reply(mox_cli_conversation *c, size_t n, mox_cli_session *s, const mox_cli_settings *settings,
                               const mox_cli_sink *sink, mox_turn **turn, mox_cli_stats *stats);

#endif
