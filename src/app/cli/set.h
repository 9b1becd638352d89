/* app/cli/set.h -- /set: the options that can be changed while a chat runs. */
#ifndef MOX_APP_CLI_SET_H
#define MOX_APP_CLI_SET_H

#include "app/cli/options.h"
#include "moxie.h"

/* Ended by NULL. */
const char *const *mox_cli_set_names(void);
/* "NAME VALUE"; false, and said, when it is not possible. */
bool mox_cli_set_words(mox_cli_options *o, const char *words);
/* All of them, and where the model's own values are in force. */
void mox_cli_set_show(const mox_cli_options *o, const mox_generation *defaults);

#endif
