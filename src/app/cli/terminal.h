/* app/cli/terminal.h -- what the standard streams are connected to, and what must
 * not reach a terminal. */
#ifndef MOX_APP_CLI_TERMINAL_H
#define MOX_APP_CLI_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

/* Occupies descriptors 0 to 2 where they are closed, so that no file of ours can
 * take their place; writing to such a stream still fails. */
void mox_cli_terminal_init(void);

bool mox_cli_stdin_is_terminal(void);
bool mox_cli_stdout_is_terminal(void);
bool mox_cli_stderr_is_terminal(void);
/* Terminals here can move their cursor: TERM is set, and not to dumb. */
bool mox_cli_term_is_capable(void);
bool mox_cli_stderr_can_redraw(void); /* a terminal, and a capable one */
int mox_cli_stderr_columns(void);     /* at least 1 */
int mox_cli_stdout_columns(void);     /* 0 when it is no terminal */

/* choice is "auto", "on" or "off"; auto honours NO_COLOR and CLICOLOR_FORCE. */
bool mox_cli_use_color(const char *choice);

/* Bytes of the control character at text[0, n), n > 0; 0 when it is none.  Those that
 * change the direction of the text around them count: they make it read as what it is not. */
size_t mox_cli_control_bytes(const char *text, size_t n);

#endif
