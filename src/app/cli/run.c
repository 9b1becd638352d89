/* app/cli/run.c -- `moxie run`: one reply, on standard output as it comes.
 *
 * Tokens are written once they are whole characters.  Thinking is dimmed in a terminal and
 * absent elsewhere; tool calls are lines of JSON.  Ctrl-C and SIGTERM end the reply after
 * the token at hand, with the statistics and, for --json, the object complete; what was
 * said so far stays on standard output. */
#include "app/cli/commands.h"
#include "app/cli/conversation.h"
#include "app/cli/form.h"
#include "app/cli/input.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "app/cli/reply.h"
#include "app/cli/stats.h"
#include "app/cli/stop.h"
#include "app/cli/terminal.h"
#include "base/alloc.h"
#include "base/clock.h"

#include <string.h>

typedef struct printer {
    bool show_thinking, dim; /* dim: the terminal is switched to it */
    bool in_call;
    char last; /* byte that went out; 0 when none did */
} printer;

/* ---- standard output ------------------------------------------------------------------------------ */

static void put(printer *p, const char *text, size_t n)
{
    if (n == 0) return;
    mox_cli_put_text(text, n);
    p->last = text[n - 1];
}

static void set_dim(printer *p, bool dim)
{
    if (p->dim == dim) return;
    mox_cli_putf(dim ? "\x1b[2m" : "\x1b[22m");
    p->dim = dim;
}

static void end_line(printer *p)
{
    if (p->in_call) put(p, "}\n", 2);
    p->in_call = false;
    if (p->last && p->last != '\n') put(p, "\n", 1);
}

static void begin_call(printer *p, const char *name, size_t n)
{
    end_line(p);
    mox_cli_putf("{\"name\": ");
    mox_cli_put_json(name, n);
    put(p, ", \"arguments\": ", strlen(", \"arguments\": "));
    p->in_call = true;
}

static void on_part(void *user, mox_part part, int32_t call, const char *text, size_t n)
{
    printer *p = user;
    (void)call;
    if (part == MOX_PART_THINKING && !p->show_thinking) return;
    if (part == MOX_PART_TEXT && p->dim) end_line(p);
    set_dim(p, part == MOX_PART_THINKING);
    if (part == MOX_PART_CALL_NAME) begin_call(p, text, n);
    else if (part == MOX_PART_TEXT && p->in_call) end_line(p), put(p, text, n);
    else put(p, text, n);
    mox_cli_put_flush();
}

/* ---- --json ---------------------------------------------------------------------------------------- */

static void put_calls(const mox_message *m)
{
    mox_cli_putf(", \"tool_calls\": [");
    for (int32_t i = 0; i < m->n_calls; i++) {
        mox_cli_putf("%s{\"id\": ", i == 0 ? "" : ", ");
        mox_cli_put_json(m->calls[i].id, strlen(m->calls[i].id));
        mox_cli_putf(", \"type\": \"function\", \"function\": {\"name\": ");
        mox_cli_put_json(m->calls[i].name, strlen(m->calls[i].name));
        mox_cli_putf(", \"arguments\": ");
        mox_cli_put_json(m->calls[i].arguments, strlen(m->calls[i].arguments));
        mox_cli_putf("}}");
    }
    mox_cli_putf("]");
}

static void put_json(const mox_turn *turn, const mox_cli_stats *stats, double load_s)
{
    mox_message m = {.text = "", .thinking = ""};
    int64_t n = 0;
    const int32_t *ids = turn ? mox_turn_tokens(turn, &n) : NULL;
    if (turn) mox_turn_get_message(turn, &m);
    mox_cli_putf("{\"text\": ");
    mox_cli_put_json(m.text, m.n_text);
    if (m.n_thinking > 0) {
        mox_cli_putf(", \"thinking\": ");
        mox_cli_put_json(m.thinking, m.n_thinking);
    }
    if (m.n_calls > 0) put_calls(&m);
    mox_cli_putf(", \"tokens\": [");
    for (int64_t i = 0; i < n; i++) mox_cli_putf("%s%d", i == 0 ? "" : ", ", (int)ids[i]);
    mox_cli_putf("], ");
    mox_cli_put_stats(stats, load_s);
    mox_cli_putf("}\n");
}

/* ---- what to reply to ------------------------------------------------------------------------------- */

static bool check_options(const mox_cli_options *o)
{
    static const option_id chat_only[] = {OPT_SYSTEM, OPT_TOOLS, OPT_MESSAGES, OPT_KWARGS, OPT_TEMPLATE, OPT_THINK, OPT_NO_THINK,
                                          OPT_THINK_BUDGET};
    if (o->v[OPT_SPECIAL].on && !o->v[OPT_RAW].on) {
        mox_cli_say("--special goes with --raw: the chat template writes the special tokens itself");
        return false;
    }
    for (size_t i = 0; o->v[OPT_RAW].on && i < sizeof chat_only / sizeof *chat_only; i++) {
        if (o->v[chat_only[i]].source != FROM_FLAG) continue;
        mox_cli_say("--raw does without the chat template, so --%s has nothing to go into", mox_cli_option_name(chat_only[i]));
        return false;
    }
    if (mox_cli_given(o, OPT_MESSAGES) && (o->v[OPT_PROMPT].source == FROM_FLAG || o->v[OPT_FILE].source == FROM_FLAG || o->dash)) {
        mox_cli_say("give either --messages FILE, or one text with -p TEXT, -f FILE or -");
        return false;
    }
    return true;
}

static int read_messages(mox_cli_conversation *c, const mox_cli_options *o)
{
    mox_cli_text text = {0};
    int code;
    if (mox_cli_given(o, OPT_MESSAGES)) {
        code = mox_cli_read_file(o->v[OPT_MESSAGES].text, &text);
        if (code == EXIT_OK) code = mox_cli_conversation_parse(c, o->v[OPT_MESSAGES].text, text.bytes, text.n);
    } else {
        code = mox_cli_read_text(o, &text);
        while (text.n > 0 && text.bytes[text.n - 1] == '\n') text.n--; /* of the file, not of the message */
        if (code == EXIT_OK && text.n == 0) {
            mox_cli_say("the message is empty: there is nothing to answer; give a text with -p TEXT, -f FILE or -");
            code = EXIT_USAGE;
        }
        if (code == EXIT_OK) code = mox_cli_conversation_add(c, "user", text.bytes, text.n);
    }
    mox_free(text.bytes);
    const char *system = o->v[OPT_SYSTEM].text;
    return code == EXIT_OK && system ? mox_cli_conversation_set_system(c, system, strlen(system)) : code;
}

static int encode_raw(const mox_cli_session *s, const mox_cli_options *o, mox_tokens *tokens)
{
    mox_cli_text text = {0};
    int code = mox_cli_read_text(o, &text);
    if (code == EXIT_OK) code = mox_cli_session_begin(s, tokens);
    const int64_t begun = tokens->n;
    if (code == EXIT_OK) code = mox_cli_session_encode(s, o, text.bytes, text.n, tokens);
    if (code == EXIT_OK) mox_cli_drop_second_bos(tokens, begun, begun);
    if (code == EXIT_OK && text.n == 0) {
        mox_cli_say("the prompt is empty: there is nothing to continue; give a text with -p TEXT, -f FILE or -");
        code = EXIT_USAGE;
    }
    mox_free(text.bytes);
    return code;
}

/* ---- the command -------------------------------------------------------------------------------------- */

typedef struct run_state {
    mox_cli_session session;
    mox_cli_conversation conversation;
    mox_cli_prompt raw;
    mox_cli_settings settings;
    mox_cli_form form;
    mox_turn *turn;
} run_state;

static int prepare(run_state *r, const mox_cli_options *o)
{
    int code = mox_cli_session_find(&r->session, o);
    if (code == EXIT_OK) code = mox_cli_form_read(&r->form, o);
    if (code == EXIT_OK && !o->v[OPT_RAW].on) code = mox_cli_conversation_begin(&r->conversation, o);
    if (code == EXIT_OK && !o->v[OPT_RAW].on) code = read_messages(&r->conversation, o);
    if (code == EXIT_OK) code = mox_cli_session_open_tokenizer(&r->session);
    if (code == EXIT_OK) code = mox_cli_form_bind(&r->form, r->session.tokenizer);
    if (code == EXIT_OK && o->v[OPT_RAW].on) code = encode_raw(&r->session, o, &r->raw.tokens);
    if (code == EXIT_OK && !o->v[OPT_RAW].on) code = mox_cli_session_open_chat(&r->session, o);
    if (code == EXIT_OK && r->conversation.tools)
        code = mox_cli_form_allow_calls(&r->form, r->session.chat, r->conversation.tools);
    if (code == EXIT_OK) code = mox_cli_session_open_model(&r->session, o);
    if (code == EXIT_OK && !mox_cli_settings_read(&r->settings, o, r->session.model)) code = EXIT_USAGE;
    r->settings.grammar = r->form.grammar;
    r->settings.trie = r->form.trie;
    if (code == EXIT_OK) code = mox_cli_session_open_context(&r->session, o, 0);
    return code;
}

static int reply(run_state *r, const mox_cli_options *o, double load_s)
{
    const bool json = o->v[OPT_JSON].on;
    printer p = {.show_thinking = mox_cli_stdout_is_terminal() && mox_cli_use_color(o->v[OPT_COLOR].text)};
    const mox_cli_sink sink = {.on_part = json ? NULL : on_part, .user = &p, .quiet = o->v[OPT_QUIET].on};
    mox_cli_stats stats;
    mox_cli_settings_reseed(&r->settings);
    mox_cli_conversation *c = &r->conversation;
    const int code = o->v[OPT_RAW].on
                         ? mox_cli_reply(&r->session, &r->settings, &r->raw, &sink, &r->turn, &stats)
                         : mox_cli_conversation_reply(c, c->n, &r->session, &r->settings, &sink, &r->turn, &stats);
    set_dim(&p, false);
    end_line(&p);
    mox_cli_put_flush();
    if (code != EXIT_OK) return code;
    if (json) put_json(r->turn, &stats, load_s);
    if (!o->v[OPT_QUIET].on) mox_cli_say_stats(&stats);
    return mox_cli_stop_signal() ? EXIT_SIGNAL + mox_cli_stop_signal() : EXIT_OK;
}

int mox_cli_run(const mox_cli_options *o)
{
    run_state r = {.session.keep_heat = true};
    if (!check_options(o)) return EXIT_USAGE;
    const double start = mox_clock_now();
    int code = prepare(&r, o);
    if (code == EXIT_OK) code = reply(&r, o, mox_clock_now() - start);
    mox_turn_destroy(&r.turn);
    mox_tokens_free(&r.raw.tokens);
    mox_cli_conversation_free(&r.conversation);
    mox_cli_form_close(&r.form);
    return mox_cli_session_end(&r.session, code);
}
