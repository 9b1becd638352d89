/* app/cli/output.c -- standard output with a memory for failure. */
#include "app/cli/output.h"

#include "app/cli/message.h"
#include "app/cli/terminal.h"
#include "moxie/text.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int failure; /* errno of the first write that failed */

static void note(bool ok)
{
    if (!ok && !failure) failure = errno ? errno : EIO;
}

void mox_cli_put(const char *bytes, size_t n)
{
    if (failure || n == 0) return;
    errno = 0;
    note(fwrite(bytes, 1, n, stdout) == n);
}

void mox_cli_putf(const char *format, ...)
{
    if (failure) return;
    va_list args;
    va_start(args, format);
    errno = 0;
    note(vprintf(format, args) >= 0);
    va_end(args);
}

void mox_cli_put_text(const char *text, size_t n)
{
    if (!mox_cli_stdout_is_terminal()) {
        mox_cli_put(text, n);
        return;
    }
    size_t start = 0;
    for (size_t i = 0; i < n;) {
        const size_t skip = text[i] == '\n' || text[i] == '\t' ? 0 : mox_cli_control_bytes(text + i, n - i);
        if (skip > 0) {
            mox_cli_put(text + start, i - start);
            start = i + skip;
        }
        i += skip > 0 ? skip : 1;
    }
    if (start < n) mox_cli_put(text + start, n - start);
}

void mox_cli_put_flush(void)
{
    if (failure) return;
    errno = 0;
    note(fflush(stdout) == 0);
}

bool mox_cli_output_failed(void) { return failure != 0; }

bool mox_cli_output_finish(void)
{
    mox_cli_put_flush();
    note(!ferror(stdout)); /* help is printed without the functions above */
    if (failure) mox_cli_say("cannot write to standard output: %s", strerror(failure));
    return !failure;
}

static void put_escaped(void *user, const char *text, size_t n)
{
    (void)user;
    size_t start = 0;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7F) continue;
        mox_cli_put(text + start, i - start);
        start = i + 1;
        if (c == '\n') mox_cli_put("\\n", 2);
        else if (c == '"' || c == '\\') mox_cli_putf("\\%c", c);
        else mox_cli_putf("\\u%04x", (unsigned)c);
    }
    mox_cli_put(text + start, n - start);
}

/* Names of files may have any bytes, JSON has characters. */
void mox_cli_put_json(const char *text, size_t n)
{
    mox_utf8_stream stream = {0};
    mox_cli_put("\"", 1);
    mox_utf8_stream_push(&stream, text, n, put_escaped, NULL);
    mox_utf8_stream_end(&stream, put_escaped, NULL);
    mox_cli_put("\"", 1);
}

void mox_cli_put_json_real(double x)
{
    if (isfinite(x)) mox_cli_putf("%.9g", x);
    else mox_cli_put("null", 4);
}
