/* app/cli/message.h -- what the program says to its user, on standard error. */
#ifndef MOX_APP_CLI_MESSAGE_H
#define MOX_APP_CLI_MESSAGE_H

#include "moxie.h"

#include <stdio.h>

/* One line that begins with "moxie: ". */
void mox_cli_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* For somebody who sits there: in a terminal without that beginning, and folded. */
void mox_cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A line that may be overlooked: in a terminal, dim if there are colours. */
void mox_cli_aside(bool color, const char *line);

/* Text folded at blanks into lines of at most that many columns; a newline begins a line.
 * The first one begins where the cursor is, at indent. */
void mox_cli_print_folded(FILE *to, const char *text, int indent, int columns);

/* Says err's sentence and returns the exit code for it.  Opening: the failure is
 * about the model's files, not about a run that had begun. */
int mox_cli_fail_opening(const mox_err *err);
int mox_cli_fail_running(const mox_err *err);

#endif
