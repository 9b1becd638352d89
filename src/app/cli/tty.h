/* app/cli/tty.h -- what a chat changes about its terminal, and that it is undone.
 *
 * Whatever ends the program -- return, a second Ctrl-C, SIGTERM, a crash -- the terminal
 * gets back its modes, its colours and its ways with pastes. */
#ifndef MOX_APP_CLI_TTY_H
#define MOX_APP_CLI_TTY_H

#include <stdbool.h>

/* Remembers the terminal as it is and sees to it that it comes back so.  Without a
 * terminal all of these do nothing. */
void mox_cli_tty_keep(void);
/* As it was.  Safe in signal handlers. */
void mox_cli_tty_restore(void);

/* While a reply runs keys are not shown; Ctrl-C and Ctrl-Z work. */
void mox_cli_tty_hide_keys(bool hide);
/* The terminal marks what is pasted. */
void mox_cli_tty_mark_pastes(bool mark);
/* Colours are in use: restore switches them off. */
void mox_cli_tty_colored(void);

#endif
