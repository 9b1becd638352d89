/* app/cli/history.h -- what was typed, kept between runs.
 *
 * One file per user, readable by nobody else: a message per line, with backslash, newline
 * and carriage return written as two characters.  Nothing about it is ever fatal: where it
 * cannot be read or written there is no history. */
#ifndef MOX_APP_CLI_HISTORY_H
#define MOX_APP_CLI_HISTORY_H

#include <stddef.h>

enum { MOX_CLI_HISTORY_ENTRIES = 1000 };

/* moxie/history below $XDG_STATE_HOME, else below ~/.local/state, folders made as needed;
 * NULL when there is no such place.  The caller frees it with mox_free. */
char *mox_cli_history_path(void);

/* Calls back with the messages, oldest first, and shortens a file that has grown long. */
typedef void mox_cli_history_fn(void *user, const char *text, size_t n);
void mox_cli_history_load(const char *path, mox_cli_history_fn *each, void *user);

/* Adds one; very long ones are left out. */
void mox_cli_history_add(const char *path, const char *text, size_t n);

#endif
