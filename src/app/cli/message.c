/* app/cli/message.c -- sentences on standard error, and the exit codes that go
 * with the library's failures.  A standard error that is closed loses them, and
 * nothing else. */
#include "app/cli/message.h"

#include "app/cli/commands.h"

#include <stdarg.h>
#include <stdio.h>

void mox_cli_say(const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
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
