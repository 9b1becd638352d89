/* app/cli/message.c -- sentences on standard error, and the exit codes that go
 * with the library's failures.  A standard error that is closed loses them, and
 * nothing else.
 *
 * Sentences quote model files and arguments, so control characters in them become
 * question marks: a message is one line and cannot steer the terminal. */
#include "app/cli/message.h"

#include "app/cli/commands.h"
#include "app/cli/terminal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void mox_cli_make_harmless(char *line)
{
    const size_t n = strlen(line);
    for (size_t i = 0; i < n; i++) {
        const size_t bytes = mox_cli_control_bytes(line + i, n - i);
        memset(line + i, '?', bytes);
    }
}

void mox_cli_say(const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    mox_cli_make_harmless(line);
    fprintf(stderr, "moxie: %s\n", line);
}

int mox_cli_fail_opening(const mox_err *err)
{
    mox_cli_say("%s", err->msg);
    switch (err->status) {
    case MOX_E_MEMORY:
    case MOX_E_FULL: return EXIT_FULL;
    case MOX_E_ARG: return EXIT_USAGE;
    default: return EXIT_MODEL;
    }
}

int mox_cli_fail_running(const mox_err *err)
{
    mox_cli_say("%s", err->msg);
    switch (err->status) {
    case MOX_E_MEMORY:
    case MOX_E_FULL: return EXIT_FULL;
    case MOX_E_IO: return EXIT_IO;
    case MOX_E_ARG: return EXIT_USAGE;
    case MOX_E_NOT_FOUND:
    case MOX_E_FORMAT:
    case MOX_E_UNSUPPORTED: return EXIT_MODEL;
    default: return EXIT_RUNTIME;
    }
}
