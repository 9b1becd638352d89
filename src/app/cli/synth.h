/* app/cli/synth.h -- what the commands that make synthetic models share. */
#ifndef MOX_APP_CLI_SYNTH_H
#define MOX_APP_CLI_SYNTH_H

#include "app/cli/options.h"
#include "app/cli/progress.h"
#include "moxie/tools.h"

/* The options' seed and skew, with a progress line about that many bytes. */
mox_synth_opts mox_cli_synth_opts(const mox_cli_options *o, mox_cli_progress *progress, const char *what, int64_t bytes);

#endif
