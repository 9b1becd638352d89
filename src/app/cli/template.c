/* app/cli/template.c -- `moxie template`: the prompt that a conversation becomes. */
#include "app/cli/commands.h"
#include "app/cli/conversation.h"
#include "app/cli/input.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "base/alloc.h"

#include <string.h>
#include <time.h>

/* YYYY-MM-DD, and perhaps THH:MM:SS. */
static bool parse_date(const char *text, int64_t *unix_time_s)
{
    struct tm t = {0};
    const char *end = strptime(text, "%Y-%m-%d", &t);
    if (end && (*end == 'T' || *end == ' ')) end = strptime(end + 1, "%H:%M:%S", &t);
    if (!end || *end != '\0') return false;
    *unix_time_s = timegm(&t);
    return true;
}

static int read_conversation(mox_cli_conversation *c, const mox_cli_options *o)
{
    const char *now = o->v[OPT_NOW].text;
    mox_cli_text text = {0};
    if (!mox_cli_given(o, OPT_MESSAGES)) {
        mox_cli_say("there are no messages: give --messages FILE, a JSON array; - is standard input");
        return EXIT_USAGE;
    }
    int code = mox_cli_conversation_begin(c, o);
    if (code == EXIT_OK && now) {
        c->utc_offset_s = 0;
        if (!parse_date(now, &c->unix_time_s)) {
            mox_cli_say("--now takes a date such as 2026-02-14 or 2026-02-14T12:30:00, not '%s'", now);
            code = EXIT_USAGE;
        }
    }
    if (code == EXIT_OK) code = mox_cli_read_file(o->v[OPT_MESSAGES].text, &text);
    if (code == EXIT_OK) code = mox_cli_conversation_parse(c, o->v[OPT_MESSAGES].text, text.bytes, text.n);
    mox_free(text.bytes);
    return code;
}

static int put_tokens(const mox_cli_session *s, const mox_prompt *prompt)
{
    mox_err err;
    mox_tokens tokens = {0};
    if (mox_prompt_encode(s->tokenizer, prompt, NULL, 0, &tokens, NULL, &err) != MOX_OK) return mox_cli_fail_running(&err);
    for (int64_t i = 0; i < tokens.n; i++) mox_cli_putf("%s%d", i == 0 ? "" : " ", (int)tokens.ids[i]);
    mox_cli_putf("\n");
    mox_tokens_free(&tokens);
    return EXIT_OK;
}

int mox_cli_template(const mox_cli_options *o)
{
    mox_cli_session s = {0};
    mox_cli_conversation c = {0};
    mox_prompt prompt = {0};
    int code = mox_cli_session_find(&s, o);
    if (code == EXIT_OK) code = read_conversation(&c, o);
    if (code == EXIT_OK) code = mox_cli_session_open_tokenizer(&s);
    if (code == EXIT_OK) code = mox_cli_session_open_chat(&s, o);
    if (code == EXIT_OK)
        code = mox_cli_conversation_render(&c, &s, MOX_THINK_DEFAULT, !o->v[OPT_NO_GENERATION_PROMPT].on, &prompt);
    if (code == EXIT_OK && o->v[OPT_TEMPLATE_TOKENS].on) code = put_tokens(&s, &prompt);
    else if (code == EXIT_OK) mox_cli_put(prompt.text, prompt.n);
    mox_prompt_free(&prompt);
    mox_cli_conversation_free(&c);
    mox_cli_session_close(&s);
    return code;
}
