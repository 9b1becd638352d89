/* app/cli/completion.h -- documents that are generated from the tables of options.c. */
#ifndef MOX_APP_CLI_COMPLETION_H
#define MOX_APP_CLI_COMPLETION_H

#include "app/cli/table.h"

/* The manual page in troff. */
void mox_cli_print_man(void);

#endif
