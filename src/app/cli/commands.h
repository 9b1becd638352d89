/* app/cli/commands.h -- the commands, one file each, and the exit codes that
 * scripts rely on. */
#ifndef MOX_APP_CLI_COMMANDS_H
#define MOX_APP_CLI_COMMANDS_H

#include "app/cli/options.h"

enum {
    EXIT_OK = 0,
    EXIT_RUNTIME = 1,
    EXIT_USAGE = 2,
    EXIT_MODEL = 3, /* missing or invalid */
    EXIT_FULL = 4,  /* does not fit */
    EXIT_IO = 5,    /* while running */
    EXIT_SIGNAL = 128, /* and the number of the signal */
};

mox_cli_command_fn mox_cli_run, mox_cli_eval, mox_cli_inspect, mox_cli_tokenize, mox_cli_logits, mox_cli_version,
    mox_cli_bench, mox_cli_synth, mox_cli_template, mox_cli_replay;

#endif
