/* app/cli/message.h -- what the program says to its user, on standard error. */
#ifndef MOX_APP_CLI_MESSAGE_H
#define MOX_APP_CLI_MESSAGE_H

#include "moxie.h"

#include <stdio.h>

/* One line that begins with "moxie: ". */
void mox_cli_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The end of a word that n things have: "1 file", "2 files". */
static inline const char *mox_cli_s(int64_t n) { return n == 1 ? "" : "s"; }

/* Turns control characters into question marks. */
void mox_cli_make_harmless(char *line);

/* For somebody who sits there: in a terminal without that beginning, and folded. */
void mox_cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A line that may be overlooked: in a terminal, dim if there are colours. */
void mox_cli_aside(bool color, const char *line);

/* Text folded at blanks, from column on; a newline begins a line, at indent.  Words that are
 * longer than a line stay whole. */
void mox_cli_print_folded(FILE *to, const char *text, int column, int indent, int columns);

/* Says err's sentence and returns the exit code for it.  Opening: the failure is
 * about the model's files, not about a run that had begun. */
int mox_cli_fail_opening(const mox_err *err);
int mox_cli_fail_running(const mox_err *err);

#endif
