/* app/cli/reply.h -- one reply: the prompt computed, tokens generated, and what that took.
 *
 * What the sequence still holds of an earlier prompt is not computed again.  A recurrent
 * model's state is kept where the reply begins, and where the part of the prompt begins
 * that only the last turn has, so that the next prompt finds it there. */
#ifndef MOX_APP_CLI_REPLY_H
#define MOX_APP_CLI_REPLY_H

#include "app/cli/session.h"
#include "app/cli/settings.h"
#include "moxie/chat.h"
#include "moxie/tools.h"

typedef struct mox_cli_prompt {
    const mox_chat *chat; /* NULL: the text is continued as it is */
    mox_tokens tokens;
    int64_t n_before;    /* of them before the part that only the last turn has; 0: not known */
    bool thinking;       /* they end inside a thinking block */
    mox_json_text tools;
} mox_cli_prompt;

typedef struct mox_cli_stats {
    int64_t n_prompt;   /* tokens of the prompt */
    int64_t n_cached;   /* of them that were there already */
    int64_t n_computed; /* and that were computed: all the others, unless it was stopped */
    int64_t n_reply, n_thinking;
    mox_stop stop;
    uint64_t seed;
    double prompt_s, first_token_s, generate_s;
    mox_expert_stats experts; /* of this reply */
    int64_t own_bytes;        /* of memory that the process had at its end, files that it maps left out */
} mox_cli_stats;

typedef struct mox_cli_sink {
    mox_part_fn *on_part;
    void *user;
    bool quiet; /* no progress */
} mox_cli_sink;

/* Makes a reply; *turn is the caller's to destroy, also after a failure.  A signal ends it
 * early, which is no failure: stats->stop is MOX_STOP_CANCELLED then.  *turn is NULL when
 * that happened, or anything failed, before the reply began.  Returns an exit code, after
 * saying what is wrong. */
int mox_cli_reply(mox_cli_session *s, const mox_cli_settings *settings, const mox_cli_prompt *prompt,
                  const mox_cli_sink *sink, mox_turn **turn, mox_cli_stats *stats);

#endif
