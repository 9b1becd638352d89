/* app/cli/form.h -- the form that a reply is held to, from --json-schema or --grammar. */
#ifndef MOX_APP_CLI_FORM_H
#define MOX_APP_CLI_FORM_H

#include "app/cli/options.h"
#include "moxie/chat.h"
#include "moxie/grammar.h"

/* Zero-initialise; mox_cli_form_close takes back what it holds. */
typedef struct mox_cli_form {
    mox_grammar *grammar; /* NULL: none was asked for */
    char *schema;         /* what it is made of, or NULL */
    size_t n_schema;
    mox_token_trie *trie;
} mox_cli_form;

/* The file is read and refused before anything large is opened.  All return an exit code,
 * after saying what is wrong. */
int mox_cli_form_read(mox_cli_form *f, const mox_cli_options *o);
/* Instead of JSON the reply may be calls of these tools, where it is known how the model writes them. */
int mox_cli_form_allow_calls(mox_cli_form *f, const mox_chat *chat, const char *tools);
int mox_cli_form_bind(mox_cli_form *f, const mox_tokenizer *t);
void mox_cli_form_close(mox_cli_form *f);

#endif
