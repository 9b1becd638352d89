/* app/cli/terminal.c -- terminals, colour conventions, closed streams, controls. */
#include "app/cli/terminal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void mox_cli_terminal_init(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) != -1) continue;
        /* opened the wrong way round on purpose: use of the stream must fail */
        if (open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) return;
    }
}

bool mox_cli_stdin_is_terminal(void) { return isatty(STDIN_FILENO); }
bool mox_cli_stdout_is_terminal(void) { return isatty(STDOUT_FILENO); }

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && *value;
}

bool mox_cli_stderr_is_terminal(void) { return isatty(STDERR_FILENO); }

bool mox_cli_term_is_capable(void) { return is_set("TERM") && strcmp(getenv("TERM"), "dumb") != 0; }

bool mox_cli_stderr_can_redraw(void) { return isatty(STDERR_FILENO) && mox_cli_term_is_capable(); }

static int columns_of(int fd, int otherwise)
{
    struct winsize size;
    if (ioctl(fd, TIOCGWINSZ, &size) != 0) return otherwise;
    return size.ws_col > 0 ? size.ws_col : 80;
}

int mox_cli_stderr_columns(void) { return columns_of(STDERR_FILENO, 80); }
int mox_cli_stdout_columns(void) { return columns_of(STDOUT_FILENO, 0); }

bool mox_cli_use_color(const char *choice)
{
    if (strcmp(choice, "auto") != 0) return strcmp(choice, "on") == 0;
    if (is_set("NO_COLOR")) return false;
    if (is_set("CLICOLOR_FORCE") && strcmp(getenv("CLICOLOR_FORCE"), "0") != 0) return true;
    return mox_cli_stdout_is_terminal() && mox_cli_term_is_capable();
}

/* U+0080 to U+009F are controls too: terminals read U+009B like ESC [.  U+202A to U+202E
 * and U+2066 to U+2069 embed, override and isolate directions. */
size_t mox_cli_control_bytes(const char *text, size_t n)
{
    const unsigned char *c = (const unsigned char *)text;
    if (c[0] < 0x20 || c[0] == 0x7F) return 1;
    if (c[0] == 0xC2 && n > 1 && c[1] >= 0x80 && c[1] < 0xA0) return 2;
    if (c[0] != 0xE2 || n < 3) return 0;
    const bool direction = (c[1] == 0x80 && c[2] >= 0xAA && c[2] <= 0xAE) || (c[1] == 0x81 && c[2] >= 0xA6 && c[2] <= 0xA9);
    return direction ? 3 : 0;
}
