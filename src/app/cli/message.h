/* app/cli/message.h -- what the program says to its user, on standard error. */
#ifndef MOX_APP_CLI_MESSAGE_H
#define MOX_APP_CLI_MESSAGE_H

#include "moxie.h"

/* One line that begins with "moxie: ". */
void mox_cli_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Turns control characters into question marks. */
void mox_cli_make_harmless(char *line);

/* Says err's sentence and returns the exit code for it.  Opening: the failure is
 * about the model's files, not about a run that had begun. */
int mox_cli_fail_opening(const mox_err *err);
int mox_cli_fail_running(const mox_err *err);

#endif
