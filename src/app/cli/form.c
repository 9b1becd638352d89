/* app/cli/form.c -- see form.h. */
#include "app/cli/form.h"

#include "app/cli/commands.h"
#include "app/cli/input.h"
#include "app/cli/message.h"
#include "base/alloc.h"

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
    mox_free(text.bytes);
    return code;
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
}
