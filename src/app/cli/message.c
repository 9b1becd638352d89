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

static void make_harmless(char *line, bool newlines)
{
    const size_t n = strlen(line);
    for (size_t i = 0; i < n; i++) {
        if (newlines && line[i] == '\n') continue;
        const size_t bytes = mox_cli_control_bytes(line + i, n - i);
        memset(line + i, '?', bytes);
    }
}

void mox_cli_make_harmless(char *line) { make_harmless(line, false); }

void mox_cli_say(const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    make_harmless(line, false);
    fprintf(stderr, "moxie: %s\n", line);
}

void mox_cli_note(const char *format, ...)
{
    char lines[4096];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(lines, sizeof lines, format, args);
    va_end(args);
    make_harmless(lines, true);
    if (mox_cli_stderr_is_terminal()) mox_cli_print_folded(stderr, lines, 0, 0, mox_cli_stderr_columns());
    else fprintf(stderr, "moxie: %s\n", lines);
}

void mox_cli_aside(bool color, const char *line)
{
    if (color && mox_cli_stderr_is_terminal()) fprintf(stderr, "\x1b[2m%s\x1b[0m\n", line);
    else mox_cli_note("%s", line);
}

void mox_cli_print_folded(FILE *to, const char *text, int column, int indent, int columns)
{
    bool begun = false; /* the line has a word */
    for (const char *p = text; *p;) {
        const int blanks = (int)strspn(p, " "), n = (int)strcspn(p + blanks, " \n");
        p += blanks;
        if (*p == '\n' || (begun && column + blanks + n > columns)) {
            fprintf(to, "\n%*s", indent, "");
            column = indent;
            begun = false;
        }
        if (*p == '\n') {
            p++;
            continue;
        }
        column += fprintf(to, "%*s%.*s", begun ? blanks : 0, "", n, p);
        begun = begun || n > 0;
        p += n;
    }
    fputc('\n', to);
}

int mox_cli_fail_opening(const mox_err *err)
{
    mox_cli_say("%s", err->msg);
    switch (err->status) {
    case MOX_E_MEMORY:
    case MOX_E_DEVICE:
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
