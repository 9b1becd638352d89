/* app/cli/commands.h -- the commands, one file each, and the exit codes that
 * scripts rely on. */
#ifndef MOX_APP_CLI_COMMANDS_H
#define MOX_APP_CLI_COMMANDS_H

#include "app/cli/options.h"

/* X(name, value, what it means) */
#define MOX_CLI_EXIT_LIST(X)                                                     \
    X(EXIT_OK, 0, "success")                                                     \
    X(EXIT_RUNTIME, 1, "a run failed")                                           \
    X(EXIT_USAGE, 2, "the command line or an environment name is wrong")         \
    X(EXIT_MODEL, 3, "the model is missing, incomplete, damaged or unsupported") \
    X(EXIT_FULL, 4, "it does not fit into memory or the context, or there is no such device") \
    X(EXIT_IO, 5, "a file could not be read or written while running")           \
    X(EXIT_ENDPOINT, 6, "an address or port could not be used")

enum {
#define MOX_CLI_EXIT_ENUM(name, value, text) name = value,
    MOX_CLI_EXIT_LIST(MOX_CLI_EXIT_ENUM)
#undef MOX_CLI_EXIT_ENUM
    EXIT_SIGNAL = 128, /* and the number of the signal */
};

mox_cli_command_fn mox_cli_run, mox_cli_chat_command, mox_cli_eval, mox_cli_inspect, mox_cli_tokenize, mox_cli_logits,
    mox_cli_version, mox_cli_bench, mox_cli_synth, mox_cli_template, mox_cli_models, mox_cli_completion,
    mox_cli_plan, mox_cli_pack, mox_cli_verify, mox_cli_replay, mox_cli_serve;

#endif
