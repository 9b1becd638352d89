/* app/cli/form.c -- see form.h. */
#include "app/cli/form.h"

#include "app/cli/commands.h"
#include "app/cli/input.h"
#include "app/cli/message.h"
#include "base/alloc.h"

#include <string.h>

int mox_cli_form_read(mox_cli_form *f, const mox_cli_options *o)
{
    const bool schema = mox_cli_given(o, OPT_JSON_SCHEMA), grammar = mox_cli_given(o, OPT_GRAMMAR);
    mox_cli_text text = {0};
    mox_err err;
    if (!schema && !grammar) return EXIT_OK;
    if (schema && grammar) {
        mox_cli_say("--json-schema and --grammar contradict each other; give one of them");
        return EXIT_USAGE;
    }
    const char *path = o->v[schema ? OPT_JSON_SCHEMA : OPT_GRAMMAR].text;
    int code = mox_cli_read_file(path, &text);
    if (code == EXIT_OK) {
        const mox_status status =
            schema ? mox_grammar_create_schema(&f->grammar, (mox_json_text){text.bytes, text.n}, NULL, &err)
                   : mox_grammar_create_gbnf(&f->grammar, text.bytes, text.n, &err);
        if (status != MOX_OK) {
            mox_cli_say("%s: %s", path, err.msg);
            code = status == MOX_E_MEMORY ? EXIT_FULL : EXIT_USAGE;
        }
    }
    if (schema) {
        f->schema = text.bytes;
        f->n_schema = text.n;
    } else {
        mox_free(text.bytes);
    }
    return code;
}

/* Whether a list of tools has any; what is no list is refused elsewhere. */
static bool has_tools(const char *json)
{
    static const char blanks[] = " \t\r\n";
    json += strspn(json, blanks);
    if (*json == '[') json++;
    return json[strspn(json, blanks)] != ']';
}

int mox_cli_form_allow_calls(mox_cli_form *f, const mox_chat *chat, const char *tools)
{
    mox_chat_info info;
    mox_err err;
    if (!f->grammar || !has_tools(tools)) return EXIT_OK;
    if (!f->schema) {
        mox_cli_say("--grammar leaves no room for calls of --tools; give one of them");
        return EXIT_USAGE;
    }
    mox_chat_get_info(chat, &info);
    if (!info.call_format) return EXIT_OK;
    const mox_calls_opts opts = {.format = info.call_format, .tools = {tools, strlen(tools)}, .parallel = true,
                                 .or_schema = {f->schema, f->n_schema}};
    mox_grammar_destroy(&f->grammar);
    if (mox_grammar_create_calls(&f->grammar, &opts, &err) == MOX_OK) return EXIT_OK;
    mox_cli_say("--tools with --json-schema: %s", err.msg);
    return err.status == MOX_E_MEMORY ? EXIT_FULL : EXIT_USAGE;
}

int mox_cli_form_bind(mox_cli_form *f, const mox_tokenizer *t)
{
    mox_err err;
    if (!f->grammar || mox_token_trie_create(&f->trie, t, &err) == MOX_OK) return EXIT_OK;
    mox_cli_say("%s", err.msg);
    return err.status == MOX_E_MEMORY ? EXIT_FULL : EXIT_MODEL;
}

void mox_cli_form_close(mox_cli_form *f)
{
    mox_grammar_destroy(&f->grammar);
    mox_token_trie_destroy(&f->trie);
    mox_free(f->schema);
}
