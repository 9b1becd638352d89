/* app/cli/slash.h -- the commands of a chat: lines that begin with a slash. */
#ifndef MOX_APP_CLI_SLASH_H
#define MOX_APP_CLI_SLASH_H

#include "app/cli/conversation.h"
#include "app/cli/settings.h"

typedef struct mox_cli_chat {
    bool color;
    bool interactive; /* somebody sits at a terminal */
    mox_cli_session session;
    mox_cli_options options; /* as /set has changed them */
    mox_cli_settings settings; /* made of them */
    mox_cli_conversation conversation;
    char *system; /* the system prompt that was given here; NULL: none was */
    char *attached; /* files that go in front of the next message; NULL: none */
    size_t n_attached;
    mox_cli_stats last, sum;
    int64_t n_replies;
} mox_cli_chat;

typedef enum mox_cli_slash_result {
    SLASH_DONE,
    SLASH_FAILED, /* said */
    SLASH_REPLY,  /* the model is to reply to the last message of the user again */
    SLASH_LEAVE,
} mox_cli_slash_result;

/* The system prompt; an empty text for none.  Returns an exit code. */
int mox_cli_slash_set_system(mox_cli_chat *c, const char *text);

/* Forgets what /read has read. */
void mox_cli_slash_detach(mox_cli_chat *c);

/* Executes "name arguments". */
mox_cli_slash_result mox_cli_slash(mox_cli_chat *c, const char *line);

/* For completion; lists are ended by NULL. */
const char *const *mox_cli_slash_names(void);
const char *const *mox_cli_slash_settings(void);
bool mox_cli_slash_takes_file(const char *name);

#endif
