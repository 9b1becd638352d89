/* app/cli/slash.c -- the table of commands and what they do.
 *
 * What they have to say goes to standard error, so that standard output is the replies
 * alone. */
#include "app/cli/slash.h"

#include "app/cli/commands.h"
#include "app/cli/input.h"
#include "app/cli/message.h"
#include "app/cli/set.h"
#include "app/cli/stats.h"
#include "app/cli/terminal.h"
#include "base/alloc.h"
#include "base/file.h"
#include "moxie/text.h"

#include <stdlib.h>
#include <string.h>

typedef mox_cli_slash_result slash_fn(mox_cli_chat *c, const char *argument);

static slash_fn help, leave, clear, regenerate, undo, attach, set_system, set, show_stats, show_tokens, save, load;

typedef struct slash_command {
    const char *name, *argument, *help;
    slash_fn *run;
} slash_command;

static const slash_command table[] = {
    {"help", NULL, "show this", help},
    {"clear", NULL, "begin a new conversation", clear},
    {"regen", NULL, "another reply to the last message", regenerate},
    {"undo", NULL, "take back the last message and its reply", undo},
    {"read", "FILE", "put a file in front of the next message", attach},
    {"system", "[TEXT]", "show or set the system prompt; \"\" for none", set_system},
    {"set", "[NAME VALUE]", "show or change a setting; VALUE may be default", set},
    {"stats", NULL, "what the replies took", show_stats},
    {"tokens", NULL, "how full the context is", show_tokens},
    {"save", "FILE", "write the conversation to a JSON file", save},
    {"load", "FILE", "go on with a saved one", load},
    {"exit", NULL, "leave; so do /bye, /quit and Ctrl-D", leave},
    {"bye", NULL, NULL, leave},
    {"quit", NULL, NULL, leave},
};
enum { N_COMMANDS = sizeof table / sizeof *table, COUNT = 40 };

const char *const *mox_cli_slash_names(void)
{
    static const char *names[N_COMMANDS + 1];
    for (int i = 0; i < N_COMMANDS; i++) names[i] = table[i].name;
    return names;
}

const char *const *mox_cli_slash_settings(void) { return mox_cli_set_names(); }

static const slash_command *find(const char *name, size_t n)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (strlen(table[i].name) == n && memcmp(table[i].name, name, n) == 0) return &table[i];
    return NULL;
}

static bool takes_file(const slash_command *c) { return c->argument && strcmp(c->argument, "FILE") == 0; }

bool mox_cli_slash_takes_file(const char *name)
{
    const slash_command *c = find(name, strlen(name));
    return c && takes_file(c);
}

mox_cli_slash_result mox_cli_slash(mox_cli_chat *c, const char *line)
{
    const size_t n = strcspn(line, " \t\n");
    const char *argument = line + n + strspn(line + n, " \t\n");
    const slash_command *command = find(line, n);
    if (!command) {
        char word[32] = "";
        if (n < sizeof word) memcpy(word, line, n);
        const char *near = mox_cli_nearest(word, mox_cli_slash_names());
        if (near && n > 0 && n < sizeof word)
            mox_cli_say("there is no command /%s; did you mean /%s? (//%s... is text)", word, near, word);
        else mox_cli_say("there is no such command; /help lists them (//... is text)");
        return SLASH_FAILED;
    }
    if (takes_file(command) && !*argument) {
        mox_cli_say("/%s needs a file: /%s %s", command->name, command->name, command->argument);
        return SLASH_FAILED;
    }
    if (!command->argument && *argument) {
        mox_cli_say("/%s takes no argument", command->name);
        return SLASH_FAILED;
    }
    return command->run(c, argument);
}

/* ---- the conversation -------------------------------------------------------- */

static mox_cli_slash_result leave(mox_cli_chat *c, const char *argument)
{
    (void)c;
    (void)argument;
    return SLASH_LEAVE;
}

void mox_cli_slash_detach(mox_cli_chat *c)
{
    mox_free(c->attached);
    c->attached = NULL;
    c->n_attached = 0;
}

static bool has_system(const mox_cli_conversation *c) { return c->n > 0 && strcmp(c->messages[0].role, "system") == 0; }

/* "3 messages"; the system prompt is none of anybody. */
static const char *count(const mox_cli_conversation *c, char out[COUNT])
{
    const int64_t n = (int64_t)c->n - has_system(c);
    (void)snprintf(out, COUNT, "%lld message%s", (long long)n, mox_cli_s(n));
    return out;
}

static mox_cli_slash_result clear(mox_cli_chat *c, const char *argument)
{
    (void)argument;
    mox_cli_slash_detach(c);
    mox_cli_conversation_drop(&c->conversation, has_system(&c->conversation));
    mox_cli_note("a new conversation%s", has_system(&c->conversation) ? "; the system prompt stays" : "");
    return SLASH_DONE;
}

static mox_cli_slash_result regenerate(mox_cli_chat *c, const char *argument)
{
    (void)argument;
    if (mox_cli_conversation_asked(&c->conversation) == 0) {
        mox_cli_say("there is no message to reply to");
        return SLASH_FAILED;
    }
    return SLASH_REPLY;
}

static mox_cli_slash_result undo(mox_cli_chat *c, const char *argument)
{
    const size_t n = mox_cli_conversation_asked(&c->conversation);
    char messages[COUNT];
    (void)argument;
    if (n == 0) {
        mox_cli_say("there is no message to take back");
        return SLASH_FAILED;
    }
    mox_cli_conversation_drop(&c->conversation, n - 1);
    mox_cli_note("taken back; the conversation has %s", count(&c->conversation, messages));
    return SLASH_DONE;
}

int mox_cli_slash_set_system(mox_cli_chat *c, const char *text)
{
    char *copy = mox_strdup(text);
    if (!copy) {
        mox_cli_say("out of memory for the system prompt");
        return EXIT_FULL;
    }
    const int code = mox_cli_conversation_set_system(&c->conversation, text, strlen(text));
    if (code != EXIT_OK) {
        mox_free(copy);
        return code;
    }
    mox_free(c->system);
    c->system = copy;
    return EXIT_OK;
}

static mox_cli_slash_result set_system(mox_cli_chat *c, const char *argument)
{
    if (*argument) {
        const char *text = strcmp(argument, "\"\"") == 0 ? "" : argument;
        return mox_cli_slash_set_system(c, text) == EXIT_OK ? SLASH_DONE : SLASH_FAILED;
    }
    if (!has_system(&c->conversation)) mox_cli_note("there is no system prompt");
    else mox_cli_note("%s", c->system ? c->system : c->conversation.messages[0].json); /* of a file that was loaded */
    return SLASH_DONE;
}

/* ---- files ------------------------------------------------------------------- */

/* argument without blanks behind it, and with the home folder for ~; NULL, and said, when
 * out of memory. */
static char *path_of(const char *argument)
{
    size_t n = strlen(argument);
    while (n > 0 && strchr(" \t\n", argument[n - 1])) n--;
    const char *home = getenv("HOME");
    const bool at_home = strncmp(argument, "~/", 2) == 0 && home;
    const size_t before = at_home ? strlen(home) : 0;
    char *path = mox_alloc(before + n + 1);
    if (!path) {
        mox_cli_say("out of memory");
        return NULL;
    }
    if (at_home) memcpy(path, home, before);
    memcpy(path + before, argument + at_home, n - at_home);
    path[before + n - at_home] = '\0';
    return path;
}

typedef struct growing {
    char *bytes; /* has room for all of it */
    size_t n;
} growing;

static void append(void *user, const char *text, size_t n)
{
    growing *g = user;
    memcpy(g->bytes + g->n, text, n);
    g->n += n;
}

/* Adds the text behind what is attached already. */
static bool attach_text(mox_cli_chat *c, const mox_cli_text *text)
{
    growing g = {.bytes = mox_realloc_array(c->attached, c->n_attached + text->n + 8, 3), .n = c->n_attached};
    if (!g.bytes) return false;
    mox_utf8_stream stream = {0};
    mox_utf8_stream_push(&stream, text->bytes, text->n, append, &g); /* a bad byte takes three */
    mox_utf8_stream_end(&stream, append, &g);
    while (g.n > 0 && g.bytes[g.n - 1] == '\n') g.n--;
    append(&g, "\n\n", 2);
    c->attached = g.bytes;
    c->n_attached = g.n;
    return true;
}

static mox_cli_slash_result attach(mox_cli_chat *c, const char *argument)
{
    char *path = path_of(argument);
    mox_cli_text text = {0};
    bool done = false;
    if (path && mox_cli_read_file(path, &text) == EXIT_OK) {
        long long lines = 0;
        for (size_t i = 0; i < text.n; i++) lines += text.bytes[i] == '\n' || i + 1 == text.n; /* the last one may have no end */
        if (text.n == 0) mox_cli_say("%s: the file is empty", path);
        else if (memchr(text.bytes, '\0', text.n)) mox_cli_say("%s: this is no text", path);
        else if (!(done = attach_text(c, &text))) mox_cli_say("%s: too long", path);
        else mox_cli_note("%s: %lld line%s, %zu byte%s; part of your next message", path, lines,
                                mox_cli_s(lines), text.n, mox_cli_s((int64_t)text.n));
    }
    mox_free(text.bytes);
    mox_free(path);
    return done ? SLASH_DONE : SLASH_FAILED;
}

static int write_file(const char *path, const char *text)
{
    mox_err err;
    mox_out out;
    mox_status status = mox_out_open(&out, path, &err);
    if (status == MOX_OK) status = mox_out_write(&out, text, strlen(text), &err);
    if (status == MOX_OK) status = mox_out_write(&out, "\n", 1, &err);
    if (status == MOX_OK) status = mox_out_commit(&out, &err);
    mox_out_discard(&out);
    return status == MOX_OK ? EXIT_OK : mox_cli_fail_running(&err);
}

static mox_cli_slash_result save(mox_cli_chat *c, const char *argument)
{
    char *path = path_of(argument), *json = NULL, messages[COUNT];
    const bool done = path && mox_cli_conversation_json(&c->conversation, &json) == EXIT_OK && write_file(path, json) == EXIT_OK;
    if (done) mox_cli_note("%s: %s saved", path, count(&c->conversation, messages));
    mox_free(json);
    mox_free(path);
    return done ? SLASH_DONE : SLASH_FAILED;
}

static mox_cli_slash_result load(mox_cli_chat *c, const char *argument)
{
    char *path = path_of(argument);
    mox_cli_text text = {0};
    char messages[COUNT];
    const bool done = path && mox_cli_read_file(path, &text) == EXIT_OK &&
                      mox_cli_conversation_parse(&c->conversation, path, text.bytes, text.n) == EXIT_OK;
    if (done) {
        mox_cli_slash_detach(c);
        mox_free(c->system);
        c->system = NULL;
        mox_cli_note("%s: %s", path, count(&c->conversation, messages));
    }
    mox_free(text.bytes);
    mox_free(path);
    return done ? SLASH_DONE : SLASH_FAILED;
}

/* ---- what is so -------------------------------------------------------------- */

static mox_cli_slash_result help(mox_cli_chat *c, const char *argument)
{
    enum { NARROW = 68, NAME = 9, NAME_AND_ARGUMENT = 19 };
    const int columns = mox_cli_stderr_columns(), indent = columns < NARROW ? NAME : NAME_AND_ARGUMENT;
    (void)c;
    (void)argument;
    for (int i = 0; i < N_COMMANDS; i++) {
        if (!table[i].help) continue;
        char left[NAME_AND_ARGUMENT + 1];
        const bool with_argument = columns >= NARROW && table[i].argument;
        (void)snprintf(left, sizeof left, "/%s %s", table[i].name, with_argument ? table[i].argument : "");
        fprintf(stderr, "%-*s", indent, left);
        mox_cli_print_folded(stderr, table[i].help, indent, indent, columns);
    }
    mox_cli_note("\nSeveral lines: end a line with \\, or write them between \"\"\" and \"\"\", or paste them. "
                 "// begins a message with a slash. Ctrl-C stops a reply and keeps what was said; before its first word "
                 "it drops your message, and Up brings that back.");
    return SLASH_DONE;
}

static mox_cli_slash_result set(mox_cli_chat *c, const char *argument)
{
    if (*argument) {
        const bool changed = mox_cli_set_words(&c->options, argument);
        return changed && mox_cli_settings_read(&c->settings, &c->options, c->session.model) ? SLASH_DONE : SLASH_FAILED;
    }
    mox_generation defaults;
    mox_model_get_generation(c->session.model, &defaults);
    mox_cli_set_show(&c->options, &defaults);
    return SLASH_DONE;
}

static mox_cli_slash_result show_stats(mox_cli_chat *c, const char *argument)
{
    (void)argument;
    if (c->n_replies == 0) {
        mox_cli_note("there was no reply yet");
        return SLASH_DONE;
    }
    char line[MOX_CLI_STATS_BYTES];
    const int columns = mox_cli_stderr_columns() - 7;
    mox_cli_stats_line(&c->last, columns, line);
    mox_cli_note("last   %s", line);
    mox_cli_stats_line(&c->sum, columns, line);
    mox_cli_note("all %-3lld%s", (long long)c->n_replies, line);
    return SLASH_DONE;
}

static mox_cli_slash_result show_tokens(mox_cli_chat *c, const char *argument)
{
    mox_err err;
    mox_prompt prompt;
    mox_tokens tokens = {0};
    const mox_tokens *known = &c->conversation.timeline;
    (void)argument;
    if (c->conversation.n == 0) {
        mox_cli_note("the conversation is empty");
        return SLASH_DONE;
    }
    int code = mox_cli_conversation_render(&c->conversation, &c->session, c->settings.think, false, &prompt);
    if (code == EXIT_OK && mox_prompt_encode(c->session.tokenizer, &prompt, known->ids, known->n, &tokens, NULL, &err) != MOX_OK)
        code = mox_cli_fail_running(&err);
    const long long n = tokens.n, n_ctx = mox_context_n_ctx(c->session.context);
    char messages[COUNT];
    if (code == EXIT_OK) mox_cli_note("%lld tokens of %lld (%.0f%%), %s", n, n_ctx, 100.0 * (double)n / (double)n_ctx,
                                      count(&c->conversation, messages));
    mox_tokens_free(&tokens);
    mox_prompt_free(&prompt);
    return code == EXIT_OK ? SLASH_DONE : SLASH_FAILED;
}
