/* app/cli/chat.c -- `moxie chat`: messages and replies in turn.
 *
 * Standard output gets the replies; prompts, numbers and notes go where somebody looks.
 * Ctrl-C while the prompt is computed drops the message (the line history has it), while
 * the reply is written it ends the reply, which stays.  From a pipe every line is a
 * message, and the exit code is that of the first thing that failed. */
#include "app/cli/commands.h"
#include "app/cli/input.h"
#include "app/cli/line.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "app/cli/progress.h"
#include "app/cli/screen.h"
#include "app/cli/slash.h"
#include "app/cli/stats.h"
#include "app/cli/stop.h"
#include "app/cli/terminal.h"
#include "app/cli/tty.h"
#include "base/alloc.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- banner ------------------------------------------------------------------ */

/* The model's name by its folder: "Qwen/Qwen3-30B-A3B" for a snapshot in a cache of
 * models--Qwen--Qwen3-30B-A3B/snapshots/COMMIT. */
static void name_model(const char *dir, char *out, size_t size)
{
    char *path = realpath(dir, NULL);
    char *last = path ? strrchr(path, '/') : NULL;
    (void)snprintf(out, size, "%s", last ? last + 1 : dir);
    if (last) *last = '\0';
    char *parent = path ? strrchr(path, '/') : NULL;
    if (parent && strcmp(parent, "/snapshots") == 0) {
        *parent = '\0';
        const char *repo = strrchr(path, '/');
        if (repo && strncmp(repo, "/models--", 9) == 0) {
            const char *owner = repo + 9, *name = strstr(owner, "--");
            if (name) (void)snprintf(out, size, "%.*s/%s", (int)(name - owner), owner, name + 2);
        }
    }
    free(path); /* realpath's own */
}

static void greet(const mox_cli_chat *c, bool color)
{
    char name[128], line[256];
    name_model(c->session.dir, name, sizeof name);
    const int columns = mox_cli_stderr_columns();
    if (snprintf(line, sizeof line, "%s, %lld tokens of context. /help shows the commands, Ctrl-D leaves.", name,
                 (long long)mox_context_n_ctx(c->session.context)) < columns ||
        snprintf(line, sizeof line, "%s. /help helps, Ctrl-D leaves.", name) < columns)
        mox_cli_aside(color, line);
    else mox_cli_aside(color, name);
    fputc('\n', stderr);
}

/* ---- one reply --------------------------------------------------------------- */

typedef struct watching {
    mox_cli_progress progress;
    mox_cli_screen screen;
} watching;

static void on_progress(void *user, int64_t n_done, int64_t n_total)
{
    watching *w = user;
    w->progress.total = n_total;
    mox_cli_progress_update(&w->progress, n_done, n_total);
}

static void on_part(void *user, mox_part part, int32_t call, const char *text, size_t n)
{
    watching *w = user;
    mox_cli_progress_end(&w->progress);
    mox_cli_screen_part(&w->screen, part, call, text, n);
    if (mox_cli_output_failed()) mox_cancel_raise(mox_cli_stop_flag()); /* nobody reads it */
}

static void show_stats(const mox_cli_chat *c, bool color)
{
    char line[MOX_CLI_STATS_BYTES];
    if (c->options.v[OPT_QUIET].on) return;
    mox_cli_stats_line(&c->last, mox_cli_stderr_is_terminal() ? mox_cli_stderr_columns() : MOX_CLI_STATS_BYTES, line);
    if (line[0]) mox_cli_aside(color, line);
}

/* fresh: the last message is not yet part of what was said; it goes when there is no
 * reply.  EXIT_OK also when the reply was stopped. */
static int reply(mox_cli_chat *c, bool fresh, bool color)
{
    watching w;
    mox_cli_progress_start(&w.progress, "prompt", 0, c->options.v[OPT_QUIET].on);
    mox_cli_screen_begin(&w.screen, color);
    const mox_cli_reply_events events = {.part = on_part, .part_user = &w, .progress = on_progress, .progress_user = &w};
    mox_cli_tty_hide_keys(true);
    const int code = mox_cli_reply(&c->session, &c->options, c->conversation, &events, &c->last);
    mox_cli_progress_end(&w.progress);
    mox_cli_screen_end(&w.screen);
    mox_cli_tty_hide_keys(false);
    if (mox_cli_stop_signal() == SIGINT) mox_cli_stop_forget();
    const bool nothing = code != EXIT_OK || (c->last.stop == MOX_STOP_CANCELLED && c->last.n_generated == 0);
    if (nothing && fresh) (void)mox_cli_conversation_drop_exchange(c->conversation);
    if (code != EXIT_OK) return code;
    show_stats(c, color);
    c->n_replies++;
    mox_cli_stats_add(&c->sum, &c->last);
    if (nothing && fresh) mox_cli_note("the message is dropped; Up brings it back");
    return EXIT_OK;
}

/* ---- one message ------------------------------------------------------------- */

/* The files that were read, and the text behind them. */
static int ask(mox_cli_chat *c, const char *text, size_t n)
{
    if (!c->attached) return mox_cli_conversation_ask(c->conversation, text, n);
    char *all = mox_realloc_array(c->attached, c->n_attached + n + 1, 1);
    if (!all) {
        mox_cli_say("out of memory for the message");
        return EXIT_FULL;
    }
    memcpy(all + c->n_attached, text, n);
    const int code = mox_cli_conversation_ask(c->conversation, all, c->n_attached + n);
    mox_free(all);
    c->attached = NULL;
    c->n_attached = 0;
    return code;
}

/* *leave is set when the chat is over. */
static int take(mox_cli_chat *c, const mox_cli_line_text *text, bool color, bool *leave)
{
    const char *bytes = text->bytes;
    size_t n = text->n;
    if (strspn(bytes, " \t\n") == n && !c->attached) return EXIT_OK;
    if (!text->literal && bytes[0] == '/' && bytes[1] != '/') {
        switch (mox_cli_slash(c, bytes + 1)) {
        case SLASH_DONE: return EXIT_OK;
        case SLASH_FAILED: return EXIT_USAGE;
        case SLASH_REPLY: return reply(c, false, color);
        case SLASH_LEAVE: *leave = true; return EXIT_OK;
        }
    }
    if (!text->literal && bytes[0] == '/') { /* the second slash says that the first is text */
        bytes++;
        n--;
    }
    const int code = ask(c, bytes, n);
    return code == EXIT_OK ? reply(c, true, color) : code;
}

/* ---- the command ------------------------------------------------------------- */

static int converse(mox_cli_chat *c, mox_cli_line *line, bool color)
{
    const bool interactive = mox_cli_line_is_interactive(line);
    bool leave = false, interrupted = false;
    int worst = EXIT_OK;
    while (!leave && !mox_cli_output_failed()) {
        mox_cli_line_text text;
        int code = EXIT_OK;
        switch (mox_cli_line_read(line, &text)) {
        case LINE_TEXT:
            interrupted = false;
            code = take(c, &text, color, &leave);
            if (interactive && !leave && text.n > 0) fputc('\n', stderr); /* what belongs together stands together */
            mox_free(text.bytes);
            break;
        case LINE_END: leave = true; break;
        case LINE_INTERRUPT:
            if (!interactive || interrupted) return EXIT_SIGNAL + SIGINT;
            interrupted = true;
            mox_cli_note("Ctrl-C again leaves, as does Ctrl-D");
            break;
        case LINE_TERMINATE: break; /* seen below */
        case LINE_FAILED: code = EXIT_FULL; break;
        }
        if (mox_cli_stop_signal()) return EXIT_SIGNAL + mox_cli_stop_signal();
        if (worst == EXIT_OK && !interactive) worst = code;
    }
    return worst;
}

/* The system prompt that the options name, if any. */
static int begin(mox_cli_chat *c)
{
    const mox_cli_options *o = &c->options;
    c->conversation = mox_cli_conversation_create();
    if (!c->conversation) {
        mox_cli_say("out of memory for the conversation");
        return EXIT_FULL;
    }
    return o->v[OPT_SYSTEM].text ? mox_cli_conversation_set_system(c->conversation, o->v[OPT_SYSTEM].text) : EXIT_OK;
}

int mox_cli_chat_command(const mox_cli_options *o)
{
    mox_cli_chat c = {.options = *o};
    mox_cli_line *line = NULL;
    const bool color = mox_cli_use_color(o->v[OPT_COLOR].text);
    int code = mox_cli_session_find(&c.session, o);
    if (code == EXIT_OK) code = mox_cli_session_open_tokenizer(&c.session);
    if (code == EXIT_OK) code = mox_cli_session_open_model(&c.session, o);
    if (code == EXIT_OK) code = mox_cli_session_open_context(&c.session, o, 0);
    if (code == EXIT_OK) code = begin(&c);
    if (code == EXIT_OK) {
        mox_cli_tty_keep();
        line = mox_cli_line_open(color);
        if (!line) code = EXIT_FULL;
    }
    if (code == EXIT_OK) {
        if (mox_cli_line_is_interactive(line) && !o->v[OPT_QUIET].on) greet(&c, color);
        code = converse(&c, line, color);
    }
    mox_cli_line_close(&line);
    mox_cli_tty_restore();
    mox_cli_conversation_destroy(&c.conversation);
    mox_free(c.attached);
    mox_cli_session_close(&c.session);
    return code;
}
