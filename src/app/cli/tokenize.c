/* app/cli/tokenize.c -- `moxie tokenize`: text to ids, ids to text.
 *
 * Needs only the tokenizer's files.  --decode writes the tokens' bytes exactly,
 * special tokens and all, so that encode and decode are inverse. */
#include "app/cli/commands.h"
#include "app/cli/input.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "app/cli/session.h"
#include "app/cli/terminal.h"
#include "base/alloc.h"

static int encode(const mox_cli_session *s, const mox_cli_options *o, const mox_cli_text *text)
{
    mox_tokens tokens = {0};
    const int code = mox_cli_session_encode(s, o, text->bytes, text->n, &tokens);
    if (code == EXIT_OK) {
        const bool json = o->v[OPT_JSON].on;
        if (json) mox_cli_putf("{\"ids\": [");
        for (int64_t i = 0; i < tokens.n; i++)
            mox_cli_putf("%s%d", i == 0 ? "" : json ? ", " : " ", (int)tokens.ids[i]);
        mox_cli_putf(json ? "]}\n" : "\n");
    }
    mox_tokens_free(&tokens);
    return code;
}

static void show(void *user, const char *text, size_t n)
{
    (void)user;
    mox_cli_put_text(text, n);
}

static int check_ids(const mox_cli_session *s, const mox_cli_ids *ids)
{
    for (int64_t i = 0; i < ids->n; i++) {
        size_t n;
        if (mox_tokenizer_bytes(s->tokenizer, ids->ids[i], &n)) continue;
        mox_cli_say("token %lld is %d, which this tokenizer does not have", (long long)i, (int)ids->ids[i]);
        return EXIT_USAGE;
    }
    return EXIT_OK;
}

static int decode(const mox_cli_session *s, const mox_cli_text *text)
{
    mox_cli_ids ids = {0};
    mox_utf8_stream stream = {0}; /* terminals get whole characters */
    const bool terminal = mox_cli_stdout_is_terminal();
    int code = mox_cli_parse_ids(text, "the ids", &ids);
    if (code == EXIT_OK) code = check_ids(s, &ids); /* all of the text or nothing */
    for (int64_t i = 0; code == EXIT_OK && i < ids.n; i++) {
        size_t n;
        const char *bytes = mox_tokenizer_bytes(s->tokenizer, ids.ids[i], &n);
        if (terminal) mox_utf8_stream_push(&stream, bytes, n, show, NULL);
        else mox_cli_put(bytes, n);
    }
    mox_utf8_stream_end(&stream, show, NULL);
    mox_free(ids.ids);
    return code;
}

int mox_cli_tokenize(const mox_cli_options *o)
{
    mox_cli_session s = {0};
    mox_cli_text text = {0};
    int code = EXIT_OK;
    if (o->v[OPT_DECODE].on && (o->v[OPT_JSON].on || o->v[OPT_SPECIAL].on)) {
        mox_cli_say("--decode writes text: %s has no meaning with it", o->v[OPT_JSON].on ? "--json" : "--special");
        code = EXIT_USAGE;
    }
    if (code == EXIT_OK) code = mox_cli_session_find(&s, o);
    if (code == EXIT_OK) code = mox_cli_session_open_tokenizer(&s);
    if (code == EXIT_OK) code = mox_cli_read_text(o, &text);
    if (code == EXIT_OK) code = o->v[OPT_DECODE].on ? decode(&s, &text) : encode(&s, o, &text);
    mox_free(text.bytes);
    mox_cli_session_close(&s);
    return code;
}
