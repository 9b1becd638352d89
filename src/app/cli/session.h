/* app/cli/session.h -- opening what the options name: model, tokenizer, context.
 *
 * Every function returns EXIT_OK, or the exit code after saying what is wrong. */
#ifndef MOX_APP_CLI_SESSION_H
#define MOX_APP_CLI_SESSION_H

#include "app/cli/heat.h"
#include "app/cli/options.h"
#include "app/cli/trace.h"
#include "moxie.h"
#include "moxie/chat.h"
#include "moxie/text.h"

#include <string.h>

/* Zero-initialise; mox_cli_session_close takes back whatever was opened. */
typedef struct mox_cli_session {
    char *dir;
    const char *reference; /* its name in the Hugging Face cache, borrowed; NULL for a folder */
    mox_model *model;
    mox_tokenizer *tokenizer;
    mox_chat *chat;
    mox_context *context;
    mox_seq *seq;
    mox_cli_trace *trace; /* NULL: none is written */
    bool keep_heat;       /* set by commands that begin with the experts which their last runs used */
    mox_cli_heat heat;
} mox_cli_session;

/* The folder of the demo model (mox_free), or NULL. */
char *mox_cli_find_demo(void);

/* Finds the folder: -m's path, its reference (hub.h) or "demo", or without -m the demo
 * model.  The others need it first. */
int mox_cli_session_find(mox_cli_session *s, const mox_cli_options *o);
int mox_cli_session_open_model(mox_cli_session *s, const mox_cli_options *o);
int mox_cli_session_open_tokenizer(mox_cli_session *s);
/* Needs the tokenizer. */
int mox_cli_session_open_chat(mox_cli_session *s, const mox_cli_options *o);
/* One sequence of n_ctx positions (0: the library's choice) with the options' settings,
 * inside the memory budget (app/cli/memory.h); signals ask first from here on. */
int mox_cli_session_open_context(mox_cli_session *s, const mox_cli_options *o, int64_t n_ctx);
/* Its second half: with settings whose memory is settled. */
int mox_cli_session_make_context(mox_cli_session *s, const mox_context_opts *opts);
/* With --trace, what a context of these settings is asked for goes to the file.  Before the memory is settled. */
int mox_cli_session_trace(mox_cli_session *s, const mox_cli_options *o, mox_context_opts *opts);
/* After the last step: completes what is kept of the run in files, or drops it when the run failed (code), and
 * closes; returns the exit code. */
int mox_cli_session_end(mox_cli_session *s, int code);
void mox_cli_session_close(mox_cli_session *s);

/* Does the processor compute: because it was asked for, or because the device that was is not there? */
bool mox_cli_on_cpu(const mox_cli_options *o);
/* The options' settings for a context, but for what depends on the memory. */
void mox_cli_context_opts(const mox_cli_options *o, int64_t n_ctx, mox_context_opts *out);
/* The same with a device that need not be there, for plans. */
void mox_cli_context_opts_on(const mox_cli_options *o, const char *device, int64_t n_ctx, mox_context_opts *out);

/* Appends the ids of text, with --special in force. */
int mox_cli_session_encode(const mox_cli_session *s, const mox_cli_options *o, const char *text, size_t n,
                           mox_tokens *out);
/* Starts a list of ids with the BOS that the tokenizer wants in front of every text;
 * without one when it wants none. */
int mox_cli_session_begin(const mox_cli_session *s, mox_tokens *out);
/* Behind it: the text, whose ids begin at `at`, may have brought its own BOS, and then that one goes.
 * n_begin is how many ids mox_cli_session_begin has written. */
static inline void mox_cli_drop_second_bos(mox_tokens *ids, int64_t n_begin, int64_t at)
{
    if (n_begin == 0 || ids->n <= at || ids->ids[at] != ids->ids[0]) return;
    ids->n--;
    memmove(ids->ids + at, ids->ids + at + 1, (size_t)(ids->n - at) * sizeof *ids->ids);
}

#endif
