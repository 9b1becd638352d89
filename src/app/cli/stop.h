/* app/cli/stop.h -- Ctrl-C and SIGTERM.
 *
 * The first one asks: the running step is cancelled and the command ends with
 * what it has.  The second one ends the program at once. */
#ifndef MOX_APP_CLI_STOP_H
#define MOX_APP_CLI_STOP_H

#include "moxie.h"

/* From here on signals ask first.  Before, they end the program as usual. */
void mox_cli_stop_catch(void);
/* For mox_step_opts.  Commands may raise it too. */
mox_cancel *mox_cli_stop_flag(void);
int mox_cli_stop_signal(void); /* the signal that asked, 0 when none did */
/* What was asked is done: the next signal is a first one again. */
void mox_cli_stop_forget(void);

/* A descriptor that can be read once a signal has come, for those who wait for other
 * things too: a signal may be served by a thread that is not the one that waits.  Negative
 * when there is none. */
int mox_cli_stop_waker(void);
void mox_cli_stop_wake(void); /* as if one had come; safe in signal handlers */
void mox_cli_stop_woken(void); /* it cannot be read again until the next one */

#endif
