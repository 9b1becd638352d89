/* app/cli/input.c -- reading prompts and lists of token ids.
 *
 * Files are read to their end rather than to their size, so that pipes and
 * /dev/stdin work.  Texts are taken byte for byte: nothing is trimmed. */
#include "app/cli/input.h"

#include "app/cli/commands.h"
#include "app/cli/message.h"
#include "app/cli/stop.h"
#include "app/cli/terminal.h"
#include "base/alloc.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES_MAX = 1 << 30 };

/* Until there is something to read, or nothing any more; false: a signal came first. */
static bool wait_for_bytes(int fd)
{
    struct pollfd in[2] = {{.fd = fd, .events = POLLIN}, {.fd = mox_cli_stop_waker(), .events = POLLIN}};
    while (!mox_cli_stop_signal()) {
        const int n = poll(in, 2, -1);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 || in[0].revents) return true; /* read tells what is wrong */
        mox_cli_stop_woken();
    }
    return false;
}

static int read_all(int fd, const char *name, mox_cli_text *out)
{
    size_t capacity = 0;
    for (;;) {
        if (out->n + 1 >= capacity) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            char *bigger = capacity <= TEXT_BYTES_MAX ? mox_realloc_array(out->bytes, capacity, 1) : NULL;
            if (!bigger) {
                mox_cli_say("%s: too long: more than %zu bytes", name, out->n);
                return EXIT_FULL;
            }
            out->bytes = bigger;
        }
        if (!wait_for_bytes(fd)) return EXIT_SIGNAL + mox_cli_stop_signal();
        const ssize_t n = read(fd, out->bytes + out->n, capacity - out->n - 1);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n < 0) {
            mox_cli_say("%s: read error: %s", name, strerror(errno));
            return EXIT_IO;
        }
        if (n == 0) break;
        out->n += (size_t)n;
    }
    out->bytes[out->n] = '\0';
    return EXIT_OK;
}

int mox_cli_read_file(const char *path, mox_cli_text *out)
{
    *out = (mox_cli_text){0};
    if (strcmp(path, "-") == 0) return read_all(STDIN_FILENO, "standard input", out);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe that nobody writes yet is waited for by poll */
    if (fd < 0) {
        mox_cli_say("%s: cannot open: %s", path, strerror(errno));
        return EXIT_USAGE;
    }
    const int code = read_all(fd, path, out);
    close(fd);
    return code;
}

static int copy_text(const char *text, mox_cli_text *out)
{
    *out = (mox_cli_text){.bytes = mox_strdup(text), .n = strlen(text)};
    if (out->bytes) return EXIT_OK;
    mox_cli_say("out of memory");
    return EXIT_FULL;
}

int mox_cli_read_text(const mox_cli_options *o, mox_cli_text *out)
{
    *out = (mox_cli_text){0};
    const option_value *p = &o->v[OPT_PROMPT], *f = &o->v[OPT_FILE];
    const bool both = p->source == f->source && p->source != FROM_NOWHERE;
    if (both || (o->dash && (p->source == FROM_FLAG || f->source == FROM_FLAG))) {
        mox_cli_say("give one text only: -p TEXT, -f FILE or -");
        return EXIT_USAGE;
    }
    if (!o->dash && p->source > f->source) return copy_text(p->text, out);
    if (!o->dash && f->source > p->source) return mox_cli_read_file(f->text, out);
    if (!o->dash && mox_cli_stdin_is_terminal()) {
        mox_cli_say("there is no text: give -p TEXT, -f FILE, or pipe it in");
        return EXIT_USAGE;
    }
    return mox_cli_read_file("-", out);
}

/* ---- ids ------------------------------------------------------------------- */

static const char *skip_blanks(const char *p)
{
    while (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r') p++;
    return p;
}

/* One id at *at, which moves behind it. */
static bool parse_id(const char **at, int32_t *out)
{
    int64_t value = 0;
    const char *p = *at;
    if (!isdigit((unsigned char)*p)) return false;
    for (; isdigit((unsigned char)*p); p++) {
        value = value * 10 + (*p - '0');
        if (value > INT32_MAX) return false;
    }
    *at = p;
    *out = (int32_t)value;
    return true;
}

static int bad_id(const char *name, int64_t index, const char *at)
{
    /* the whole word, but not a page of it, and without control characters */
    char word[32];
    int n = 0;
    for (; n < (int)sizeof word - 1 && at[n] && !isspace((unsigned char)at[n]); n++)
        word[n] = isprint((unsigned char)at[n]) ? at[n] : '?';
    word[n] = '\0';
    mox_cli_say("%s: '%s' where token %lld should be; ids are decimal numbers between blanks, or a JSON array", name,
                word, (long long)index);
    return EXIT_USAGE;
}

int mox_cli_parse_ids(const mox_cli_text *text, const char *name, mox_cli_ids *out)
{
    *out = (mox_cli_ids){0};
    int64_t capacity = 0;
    const char *p = skip_blanks(text->bytes), *end = text->bytes + text->n;
    const bool array = *p == '[';
    bool closed = !array;
    if (array) p = skip_blanks(p + 1);
    while (p < end && *p != ']') {
        if (out->n == capacity) {
            capacity = capacity ? 2 * capacity : 1024;
            int32_t *bigger = mox_realloc_array(out->ids, (size_t)capacity, sizeof *out->ids);
            if (!bigger) {
                mox_cli_say("out of memory for %lld token ids", (long long)capacity);
                return EXIT_FULL;
            }
            out->ids = bigger;
        }
        const char *start = p;
        if (!parse_id(&p, &out->ids[out->n])) return bad_id(name, out->n, start);
        const char *next = skip_blanks(p);
        if (array) {
            if (*next != ',' && *next != ']') return bad_id(name, out->n + 1, next);
            if (*next == ',') {
                next = skip_blanks(next + 1);
                if (*next == ']') return bad_id(name, out->n + 1, next);
            }
        } else if (next == p && next < end) {
            return bad_id(name, out->n, start); /* no blank behind it */
        }
        out->n++;
        p = next;
    }
    if (array && p < end) {
        closed = true;
        p = skip_blanks(p + 1);
    }
    if (!closed || p < end) return bad_id(name, out->n, p);
    return EXIT_OK;
}
