/* app/cli/conversation.c -- the messages of a chat, and prompts made of them. */
#include "app/cli/conversation.h"

#include "app/cli/commands.h"
#include "app/cli/input.h"
#include "app/cli/message.h"
#include "base/alloc.h"
#include "base/utf8.h"
#include "base/writer.h"

#include <string.h>
#include <time.h>

static int out_of_memory(void)
{
    mox_cli_say("out of memory for the conversation");
    return EXIT_FULL;
}

/* ---- messages ----------------------------------------------------------------------------------- */

static void free_message(mox_cli_message *m)
{
    mox_free(m->json);
    mox_free(m->role);
    mox_free(m->opening);
    mox_free(m->said);
    mox_free(m->plain);
}

size_t mox_cli_conversation_asked(const mox_cli_conversation *c)
{
    size_t n = c->n;
    while (n > 0 && strcmp(c->messages[n - 1].role, "user") != 0) n--;
    return n;
}

void mox_cli_conversation_drop(mox_cli_conversation *c, size_t n)
{
    while (c->n > n) free_message(&c->messages[--c->n]);
}

void mox_cli_conversation_free(mox_cli_conversation *c)
{
    mox_cli_conversation_drop(c, 0);
    mox_free(c->messages);
    mox_free(c->tools);
    mox_free(c->kwargs);
    mox_tokens_free(&c->timeline);
    *c = (mox_cli_conversation){0};
}

/* Takes the JSON over, also on failure. */
static int append(mox_cli_conversation *c, const char *role, char *json)
{
    mox_buffer b = {c->messages, c->capacity};
    mox_err err;
    char *copy = mox_strdup(role);
    if (!json || !copy || mox_buffer_reserve(&b, c->n + 1, sizeof *c->messages, "a message", &err) != MOX_OK) {
        mox_free(json);
        mox_free(copy);
        return out_of_memory();
    }
    c->messages = b.data;
    c->capacity = b.capacity;
    c->messages[c->n++] = (mox_cli_message){.json = json, .role = copy};
    return EXIT_OK;
}

static char *message_json(const char *role, const char *text, size_t n)
{
    mox_writer w = {0};
    mox_err err;
    if (mox_write_text(&w, "{\"role\": ", &err) == MOX_OK && mox_write_json(&w, role, strlen(role), &err) == MOX_OK &&
        mox_write_text(&w, ", \"content\": ", &err) == MOX_OK && mox_write_json(&w, text, n, &err) == MOX_OK &&
        mox_write_text(&w, "}", &err) == MOX_OK)
        return mox_writer_take(&w);
    mox_writer_deinit(&w);
    return NULL;
}

int mox_cli_conversation_add(mox_cli_conversation *c, const char *role, const char *text, size_t n)
{
    const size_t valid = mox_utf8_valid_prefix((const unsigned char *)text, n);
    if (valid < n) {
        mox_cli_say("the %s is not UTF-8: byte %zu begins no character; convert it, for example with iconv",
                    strcmp(role, "system") == 0 ? "system prompt" : "message", valid);
        return EXIT_USAGE;
    }
    return append(c, role, message_json(role, text, n));
}

int mox_cli_conversation_set_system(mox_cli_conversation *c, const char *text, size_t n)
{
    const bool replaces = c->n > 0 && strcmp(c->messages[0].role, "system") == 0;
    const int code = n > 0 ? mox_cli_conversation_add(c, "system", text, n) : EXIT_OK;
    if (code != EXIT_OK) return code; /* with the old one still there */
    if (replaces) {
        free_message(&c->messages[0]);
        memmove(c->messages, c->messages + 1, --c->n * sizeof *c->messages);
    }
    if (n == 0) return EXIT_OK;
    const mox_cli_message system = c->messages[c->n - 1];
    memmove(c->messages + 1, c->messages, (c->n - 1) * sizeof *c->messages);
    c->messages[0] = system;
    return EXIT_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------------ */

static mox_status take_message(void *user, const char *role, mox_json_text message, mox_err *err)
{
    char *json = mox_strndup(message.text, message.n);
    return append(user, role, json) == EXIT_OK ? MOX_OK : mox_fail(err, MOX_E_MEMORY, "out of memory for a message");
}

int mox_cli_conversation_parse(mox_cli_conversation *c, const char *name, const char *text, size_t n)
{
    mox_cli_conversation loaded = {0};
    mox_err err;
    if (mox_messages_each(name, (mox_json_text){text, n}, take_message, &loaded, &err) != MOX_OK) {
        mox_cli_conversation_free(&loaded);
        mox_cli_say("%s", err.msg);
        return err.status == MOX_E_MEMORY ? EXIT_FULL : EXIT_USAGE;
    }
    mox_cli_conversation_drop(c, 0);
    mox_free(c->messages);
    c->messages = loaded.messages;
    c->n = loaded.n;
    c->capacity = loaded.capacity;
    return EXIT_OK;
}

static mox_status write_messages(const mox_cli_conversation *c, mox_writer *w, mox_err *err)
{
    MOX_TRY(mox_write_text(w, "[", err));
    for (size_t i = 0; i < c->n; i++) {
        MOX_TRY(mox_write_text(w, i == 0 ? "" : ",\n ", err));
        MOX_TRY(mox_write_text(w, c->messages[i].json, err));
    }
    return mox_write_text(w, "]", err);
}

int mox_cli_conversation_json(const mox_cli_conversation *c, char **out)
{
    mox_writer w = {0};
    mox_err err;
    *out = NULL;
    if (write_messages(c, &w, &err) == MOX_OK) *out = mox_writer_take(&w);
    mox_writer_deinit(&w);
    return *out ? EXIT_OK : out_of_memory();
}

/* ---- beginning ------------------------------------------------------------------------------------- */

int mox_cli_conversation_begin(mox_cli_conversation *c, const mox_cli_options *o)
{
    if (mox_cli_given(o, OPT_TOOLS)) {
        mox_cli_text text;
        const int code = mox_cli_read_file(o->v[OPT_TOOLS].text, &text);
        c->tools = text.bytes;
        c->tools_file = o->v[OPT_TOOLS].text;
        if (code != EXIT_OK) return code;
    }
    if (mox_cli_given(o, OPT_KWARGS)) {
        c->kwargs = mox_strdup(o->v[OPT_KWARGS].text);
        if (!c->kwargs) return out_of_memory();
    }
    struct tm local;
    const time_t now = time(NULL);
    c->unix_time_s = now;
    if (localtime_r(&now, &local)) c->utc_offset_s = (int32_t)local.tm_gmtoff;
    return EXIT_OK;
}

/* ---- prompts ----------------------------------------------------------------------------------------- */

static mox_json_text json_text(const char *text) { return (mox_json_text){text, text ? strlen(text) : 0}; }

/* Of the replies that were sampled here; *out is the caller's to free. */
static int collect_said(const mox_cli_conversation *c, mox_said **out, size_t *n)
{
    *n = 0;
    *out = mox_alloc_array(c->n, sizeof **out);
    if (!*out) return out_of_memory();
    for (size_t i = 0; i < c->n; i++) {
        const mox_cli_message *m = &c->messages[i];
        if (!m->said) continue;
        (*out)[(*n)++] = (mox_said){.message = (int64_t)i, .opening = m->opening, .n_opening = m->n_opening,
                                    .text = {m->said, m->n_said, m->plain, m->n_plain}};
    }
    return EXIT_OK;
}

/* A conversation that a template refuses, or that is no conversation, is the user's to change. */
static int fail_rendering(const mox_cli_conversation *c, const mox_err *err)
{
    const bool in_tools = c->tools_file && strncmp(err->msg, "tools", strlen("tools")) == 0;
    mox_cli_say("%s%s%s", in_tools ? c->tools_file : "", in_tools ? ": " : "", err->msg);
    return err->status == MOX_E_MEMORY ? EXIT_FULL : err->status == MOX_E_FORMAT ? EXIT_MODEL : EXIT_USAGE;
}

int mox_cli_conversation_render(const mox_cli_conversation *c, const mox_cli_session *s, mox_think think, bool generation,
                                mox_prompt *out)
{
    mox_err err;
    mox_said *said = NULL;
    size_t n_said = 0;
    char *messages = NULL;
    *out = (mox_prompt){0};
    int code = mox_cli_conversation_json(c, &messages);
    if (code == EXIT_OK) code = collect_said(c, &said, &n_said);
    if (code == EXIT_OK) {
        const mox_chat_request request = {
            .messages = json_text(messages),
            .tools = json_text(c->tools),
            .kwargs = json_text(c->kwargs),
            .think = think,
            .no_generation_prompt = !generation,
            .said = said,
            .n_said = n_said,
            .unix_time_s = c->unix_time_s,
            .utc_offset_s = c->utc_offset_s,
        };
        if (mox_chat_render(s->chat, &request, out, &err) != MOX_OK) code = fail_rendering(c, &err);
    }
    mox_free(said);
    mox_free(messages);
    return code;
}

/* ---- replies -------------------------------------------------------------------------------------------- */

static bool copy_bytes(char **out, const char *text, size_t n)
{
    *out = mox_strndup(text, n);
    return *out != NULL;
}

/* The reply becomes a message, with what was sampled and the end of the prompt that it follows. */
static int add_reply(mox_cli_conversation *c, const mox_turn *turn, const mox_prompt *prompt)
{
    mox_err err;
    char *json;
    mox_marked_text said;
    if (mox_turn_message_json(turn, &json, &err) != MOX_OK) return out_of_memory();
    const int code = append(c, "assistant", json);
    if (code != EXIT_OK) return code;
    mox_cli_message *m = &c->messages[c->n - 1];
    mox_turn_get_said(turn, &said);
    m->plain = mox_alloc_array(said.n_plain, sizeof *m->plain);
    m->n_opening = prompt->n - prompt->generation_at;
    m->n_said = said.n;
    m->n_plain = said.n_plain;
    if (!m->plain || !copy_bytes(&m->opening, prompt->text + prompt->generation_at, m->n_opening) ||
        !copy_bytes(&m->said, said.text, said.n)) {
        mox_cli_conversation_drop(c, c->n - 1);
        return out_of_memory();
    }
    if (said.n_plain > 0) memcpy(m->plain, said.plain, said.n_plain * sizeof *m->plain);
    return EXIT_OK;
}

static int keep_timeline(mox_cli_conversation *c, const mox_tokens *prompt, const mox_turn *turn)
{
    int64_t n = 0;
    const int32_t *reply = turn ? mox_turn_tokens(turn, &n) : NULL;
    mox_buffer b = {c->timeline.ids, (size_t)c->timeline.capacity};
    mox_err err;
    c->timeline.n = 0;
    if (mox_buffer_reserve(&b, (size_t)(prompt->n + n), sizeof *reply, "a prompt", &err) != MOX_OK) return out_of_memory();
    c->timeline = (mox_tokens){b.data, prompt->n + n, (int64_t)b.capacity};
    memcpy(c->timeline.ids, prompt->ids, (size_t)prompt->n * sizeof *reply);
    if (n > 0) memcpy(c->timeline.ids + prompt->n, reply, (size_t)n * sizeof *reply);
    return EXIT_OK;
}

int mox_cli_conversation_reply(mox_cli_conversation *c, size_t n, mox_cli_session *s, const mox_cli_settings *settings,
                               const mox_cli_sink *sink, mox_turn **turn, mox_cli_stats *stats)
{
    mox_err err;
    mox_prompt text;
    mox_cli_conversation answered = *c;
    answered.n = n;
    mox_cli_prompt prompt = {.chat = s->chat, .tools = json_text(c->tools)};
    *turn = NULL;
    *stats = (mox_cli_stats){0};
    int code = mox_cli_conversation_render(&answered, s, settings->think, true, &text);
    if (code == EXIT_OK && mox_prompt_encode(s->tokenizer, &text, c->timeline.ids, c->timeline.n, &prompt.tokens,
                                             &prompt.n_before, &err) != MOX_OK)
        code = mox_cli_fail_running(&err);
    prompt.thinking = text.thinking;
    if (code == EXIT_OK) code = mox_cli_reply(s, settings, &prompt, sink, turn, stats);
    if (code == EXIT_OK) code = keep_timeline(c, &prompt.tokens, *turn);
    if (code == EXIT_OK && *turn) {
        mox_cli_conversation_drop(c, n);
        code = add_reply(c, *turn, &text);
    }
    mox_tokens_free(&prompt.tokens);
    mox_prompt_free(&text);
    return code;
}
