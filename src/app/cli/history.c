/* app/cli/history.c -- the history file.
 *
 * A message is added by one write at the end, so that programs which run side by side keep
 * each other's.  A file with twice the entries that are wanted is replaced, by renaming a
 * complete new one over it, when it is next read. */
#include "app/cli/history.h"

#include "base/alloc.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENTRY_BYTES_MAX = 1 << 15, FILE_BYTES_MAX = 1 << 26 };

static bool make_folder(const char *path) { return mkdir(path, 0700) == 0 || errno == EEXIST; }

/* dir/name with dir freed; a folder unless it is the last.  NULL passes through. */
static char *below(char *dir, const char *name, bool folder)
{
    if (!dir) return NULL;
    char *path = mox_path_join(dir, name);
    mox_free(dir);
    if (path && folder && !make_folder(path)) {
        mox_free(path);
        return NULL;
    }
    return path;
}

char *mox_cli_history_path(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *dir = NULL;
    if (state && state[0] == '/') { /* relative ones are to be ignored */
        dir = make_folder(state) ? mox_strdup(state) : NULL;
    } else if (home && home[0] == '/') {
        dir = below(below(mox_strdup(home), ".local", true), "state", true);
    }
    return below(below(dir, "moxie", true), "history", false);
}

/* ---- one message as one line ------------------------------------------------ */

/* Into out[2 n + 1]; returns how many bytes, the newline at the end included. */
static size_t write_line(const char *text, size_t n, char *out)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        const char letter = text[i] == '\n' ? 'n' : text[i] == '\r' ? 'r' : text[i] == '\\' ? '\\' : 0;
        if (letter) out[m++] = '\\';
        out[m++] = letter ? letter : text[i];
    }
    out[m++] = '\n';
    return m;
}

/* In place; returns the bytes of the message. */
static size_t read_line(char *line, size_t n)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (line[i] != '\\' || i + 1 == n) {
            line[m++] = line[i];
            continue;
        }
        i++;
        line[m++] = line[i] == 'n' ? '\n' : line[i] == 'r' ? '\r' : line[i];
    }
    return m;
}

/* ---- the file ---------------------------------------------------------------- */

static void replace(const char *path, const char *bytes, size_t n)
{
    const size_t room = strlen(path) + sizeof ".XXXXXX";
    char *temporary = mox_alloc(room);
    if (!temporary) return;
    (void)snprintf(temporary, room, "%s.XXXXXX", path);
    const int fd = mkstemp(temporary); /* 0600 */
    if (fd >= 0) {
        const bool written = write(fd, bytes, n) == (ssize_t)n;
        const bool closed = close(fd) == 0;
        if (!written || !closed || rename(temporary, path) != 0) (void)unlink(temporary);
    }
    mox_free(temporary);
}

void mox_cli_history_load(const char *path, mox_cli_history_fn *each, void *user)
{
    char *bytes = NULL;
    size_t n = 0, n_lines = 0;
    if (!path || mox_file_slurp(path, FILE_BYTES_MAX, &bytes, &n, NULL) != MOX_OK) return;
    while (n > 0 && bytes[n - 1] != '\n') n--; /* a line that was cut off */
    for (size_t i = 0; i < n; i++) n_lines += bytes[i] == '\n';
    char *at = bytes, *end = bytes + n;
    for (size_t skip = n_lines > MOX_CLI_HISTORY_ENTRIES ? n_lines - MOX_CLI_HISTORY_ENTRIES : 0; skip > 0; skip--)
        at = (char *)memchr(at, '\n', (size_t)(end - at)) + 1;
    if (n_lines > 2 * MOX_CLI_HISTORY_ENTRIES) replace(path, at, (size_t)(end - at));
    while (at < end) {
        char *newline = memchr(at, '\n', (size_t)(end - at));
        const size_t line = (size_t)(newline - at);
        each(user, at, read_line(at, line));
        at = newline + 1;
    }
    mox_free(bytes);
}

void mox_cli_history_add(const char *path, const char *text, size_t n)
{
    if (!path || n == 0 || n > ENTRY_BYTES_MAX) return;
    char *line = mox_alloc(2 * n + 1);
    const int fd = line ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) {
        const ssize_t written = write(fd, line, write_line(text, n, line));
        (void)written; /* what is lost is an entry */
        close(fd);
    }
    mox_free(line);
}
