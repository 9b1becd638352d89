/* app/cli/chat.c -- `moxie chat`: messages and replies in turn.
 *
 * Standard output gets the replies; prompts, numbers and notes go where somebody looks.
 * Ctrl-C while the prompt is computed drops the message (the line history has it), while
 * the reply is written it ends the reply, which stays.  From a pipe every line is a
 * message, and the exit code is that of the first thing that failed. */
#include "app/cli/commands.h"
#include "app/cli/line.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
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

static void greet(const mox_cli_chat *c)
{
    char name[128], line[256];
    name_model(c->session.dir, name, sizeof name);
    const int columns = mox_cli_stderr_columns();
    if (snprintf(line, sizeof line, "%s, %lld tokens of context. /help shows the commands, Ctrl-D leaves.", name,
                 (long long)mox_context_n_ctx(c->session.context)) < columns ||
        snprintf(line, sizeof line, "%s. /help helps, Ctrl-D leaves.", name) < columns)
        mox_cli_aside(c->color, line);
    else mox_cli_aside(c->color, name);
    fputc('\n', stderr);
}

/* ---- one reply --------------------------------------------------------------- */

static void show_stats(const mox_cli_chat *c)
{
    char line[MOX_CLI_STATS_BYTES];
    if (c->options.v[OPT_QUIET].on) return;
    mox_cli_stats_line(&c->last, mox_cli_stderr_is_terminal() ? mox_cli_stderr_columns() : MOX_CLI_STATS_BYTES, line);
    if (line[0]) mox_cli_aside(c->color, line);
}

/* Replies to the last message of the user.  n_before: the messages that are left where there is
 * no reply, which are all when it was answered before.  EXIT_OK also when the reply was stopped. */
static int reply(mox_cli_chat *c, size_t n_before)
{
    mox_cli_screen screen;
    mox_turn *turn = NULL;
    const mox_cli_sink sink = {.on_part = mox_cli_screen_part, .user = &screen, .quiet = c->options.v[OPT_QUIET].on};
    mox_cli_screen_begin(&screen, c->color);
    mox_cli_settings_reseed(&c->settings);
    mox_cli_tty_hide_keys(true);
    const size_t n = mox_cli_conversation_asked(&c->conversation);
    const int code = mox_cli_conversation_reply(&c->conversation, n, &c->session, &c->settings, &sink, &turn, &c->last);
    mox_cli_screen_end(&screen);
    mox_cli_tty_hide_keys(false);
    if (c->interactive && mox_cli_stop_signal() == SIGINT) mox_cli_stop_forget();
    const bool unanswered = !turn || code != EXIT_OK, dropped = unanswered && n_before < c->conversation.n;
    if (unanswered) mox_cli_conversation_drop(&c->conversation, n_before);
    mox_turn_destroy(&turn);
    if (code == EXIT_OK) {
        show_stats(c);
        c->n_replies++;
        mox_cli_stats_add(&c->sum, &c->last);
    }
    if (dropped && c->interactive)
        mox_cli_note("your message is dropped; Up brings it back%s",
                     c->attached ? ", and what was read still goes in front of it until /clear" : "");
    else if (unanswered && c->interactive && n < c->conversation.n) mox_cli_note("the reply stays as it was");
    const bool full = code == EXIT_FULL && c->last.n_prompt > mox_context_n_ctx(c->session.context);
    if (full && c->interactive && mox_cli_conversation_asked(&c->conversation) > 0)
        mox_cli_note("/undo makes room by taking back the message before and its reply, /clear by beginning anew");
    return code;
}

/* ---- one message ------------------------------------------------------------- */

/* The files that were read, and the text behind them.  The files stay until there is a reply. */
static int ask(mox_cli_chat *c, const char *text, size_t n)
{
    if (!c->attached) return mox_cli_conversation_add(&c->conversation, "user", text, n);
    char *all = mox_alloc_array(c->n_attached + n + 1, 1);
    if (!all) {
        mox_cli_say("out of memory for the message");
        return EXIT_FULL;
    }
    memcpy(all, c->attached, c->n_attached);
    memcpy(all + c->n_attached, text, n);
    const int code = mox_cli_conversation_add(&c->conversation, "user", all, c->n_attached + n);
    mox_free(all);
    return code;
}

/* *leave is set when the chat is over. */
static int take(mox_cli_chat *c, const mox_cli_line_text *text, bool *leave)
{
    const char *bytes = text->bytes;
    size_t n = text->n;
    if (strspn(bytes, " \t\n") == n && !c->attached) return EXIT_OK;
    if (!text->literal && bytes[0] == '/' && bytes[1] != '/') {
        switch (mox_cli_slash(c, bytes + 1)) {
        case SLASH_DONE: return EXIT_OK;
        case SLASH_FAILED: return EXIT_USAGE;
        case SLASH_REPLY: return reply(c, c->conversation.n);
        case SLASH_LEAVE: *leave = true; return EXIT_OK;
        }
    }
    if (!text->literal && bytes[0] == '/') { /* the second slash says that the first is text */
        bytes++;
        n--;
    }
    const size_t n_before = c->conversation.n;
    int code = ask(c, bytes, n);
    if (code == EXIT_OK) code = reply(c, n_before);
    if (c->conversation.n > n_before) mox_cli_slash_detach(c);
    return code;
}

/* ---- the command ------------------------------------------------------------- */

static int converse(mox_cli_chat *c, mox_cli_line *line)
{
    bool leave = false, interrupted = false;
    int worst = EXIT_OK;
    while (!leave && !mox_cli_output_failed()) {
        mox_cli_line_text text;
        int code = EXIT_OK;
        switch (mox_cli_line_read(line, &text)) {
        case LINE_TEXT:
            interrupted = false;
            code = take(c, &text, &leave);
            if (c->interactive && !leave && text.n > 0) fputc('\n', stderr); /* what belongs together stands together */
            mox_free(text.bytes);
            break;
        case LINE_END: leave = true; break;
        case LINE_INTERRUPT:
            if (!c->interactive || interrupted) return EXIT_SIGNAL + SIGINT;
            interrupted = true;
            mox_cli_note("Ctrl-C again leaves, as does Ctrl-D");
            break;
        case LINE_TERMINATE: break; /* seen below */
        case LINE_FAILED: code = EXIT_FULL; break;
        }
        if (mox_cli_stop_signal()) return EXIT_SIGNAL + mox_cli_stop_signal();
        if (worst == EXIT_OK && !c->interactive) worst = code;
    }
    return worst;
}

static int prepare(mox_cli_chat *c)
{
    const mox_cli_options *o = &c->options;
    int code = mox_cli_session_find(&c->session, o);
    if (code == EXIT_OK) code = mox_cli_conversation_begin(&c->conversation, o);
    if (code == EXIT_OK && o->v[OPT_SYSTEM].text) code = mox_cli_slash_set_system(c, o->v[OPT_SYSTEM].text);
    if (code == EXIT_OK) code = mox_cli_session_open_tokenizer(&c->session);
    if (code == EXIT_OK) code = mox_cli_session_open_chat(&c->session, o);
    if (code == EXIT_OK) code = mox_cli_session_open_model(&c->session, o);
    if (code == EXIT_OK && !mox_cli_settings_read(&c->settings, o, c->session.model)) code = EXIT_USAGE;
    if (code == EXIT_OK) code = mox_cli_session_open_context(&c->session, o, 0);
    return code;
}

int mox_cli_chat_command(const mox_cli_options *o)
{
    mox_cli_chat c = {.options = *o, .color = mox_cli_use_color(o->v[OPT_COLOR].text), .session.keep_heat = true};
    mox_cli_line *line = NULL;
    int code = prepare(&c);
    if (code == EXIT_OK) {
        mox_cli_tty_keep();
        line = mox_cli_line_open(c.color);
        if (!line) code = EXIT_FULL;
    }
    if (code == EXIT_OK) {
        c.interactive = mox_cli_line_is_interactive(line);
        if (c.interactive && !o->v[OPT_QUIET].on) greet(&c);
        code = converse(&c, line);
    }
    mox_cli_line_close(&line);
    mox_cli_tty_restore();
    mox_cli_conversation_free(&c.conversation);
    mox_cli_slash_detach(&c);
    mox_free(c.system);
    return mox_cli_session_end(&c.session, code);
}
