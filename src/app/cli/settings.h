/* app/cli/settings.h -- the options that can be changed while a chat runs. */
#ifndef MOX_APP_CLI_SETTINGS_H
#define MOX_APP_CLI_SETTINGS_H

#include "app/cli/options.h"
#include "moxie.h"

/* Ended by NULL. */
const char *const *mox_cli_setting_names(void);
/* "NAME VALUE", or "NAME" to show it; false, and said, when it is not possible. */
bool mox_cli_setting_change(mox_cli_options *o, const char *words);
void mox_cli_settings_show(const mox_cli_options *o, const mox_generation *defaults);

#endif
