/* app/cli/history.c -- the history file.
 *
 * A message is added by one write at the end, so that programs which run side by side keep
 * each other's.  A file with twice the entries that are wanted is replaced, by renaming a
 * complete new one over it, when it is next read.  Both hold the file meanwhile: what is
 * added is in the file that was read, or goes into the new one. */
#include "app/cli/history.h"

#include "base/alloc.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
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

/* Where the newest entries begin; *n loses a line that was cut off. */
static char *newest(char *bytes, size_t *n, bool *long_file)
{
    size_t n_lines = 0;
    while (*n > 0 && bytes[*n - 1] != '\n') --*n;
    for (size_t i = 0; i < *n; i++) n_lines += bytes[i] == '\n';
    *long_file = n_lines > 2 * MOX_CLI_HISTORY_ENTRIES;
    char *at = bytes;
    for (size_t skip = n_lines > MOX_CLI_HISTORY_ENTRIES ? n_lines - MOX_CLI_HISTORY_ENTRIES : 0; skip > 0; skip--)
        at = (char *)memchr(at, '\n', (size_t)(bytes + *n - at)) + 1;
    return at;
}

static void replace(const char *path, const char *bytes, size_t n)
{
    mox_out out;
    if (mox_out_open_durable(&out, path, NULL) == MOX_OK && mox_out_write(&out, bytes, n, NULL) == MOX_OK)
        (void)mox_out_commit(&out, NULL);
}

/* Reads it again, as what was read before may lack what others have added.  While somebody adds to it, it stays long
 * until the next time. */
static void shorten(const char *path)
{
    char *bytes = NULL;
    size_t n = 0;
    bool long_file = false;
    int fd = mox_lock_open(path, O_RDWR, 0, false);
    if (fd >= 0 && mox_file_slurp(path, FILE_BYTES_MAX, &bytes, &n, NULL) == MOX_OK) {
        const char *at = newest(bytes, &n, &long_file);
        if (long_file) replace(path, at, (size_t)(bytes + n - at));
    }
    mox_free(bytes);
    mox_lock_release(&fd);
}

void mox_cli_history_load(const char *path, mox_cli_history_fn *each, void *user)
{
    char *bytes = NULL;
    size_t n = 0;
    bool long_file = false;
    if (!path || mox_file_slurp(path, FILE_BYTES_MAX, &bytes, &n, NULL) != MOX_OK) return;
    char *at = newest(bytes, &n, &long_file), *end = bytes + n;
    if (long_file) shorten(path);
    while (at < end) {
        char *newline = memchr(at, '\n', (size_t)(end - at));
        const size_t line = (size_t)(newline - at);
        each(user, at, read_line(at, line));
        at = newline + 1;
    }
    mox_free(bytes);
}

/* A full disk has cut off what was added last: nothing of it is joined to what follows. */
static bool is_cut_off(int fd)
{
    char last;
    const off_t end = lseek(fd, 0, SEEK_END);
    return end > 0 && pread(fd, &last, 1, end - 1) == 1 && last != '\n';
}

void mox_cli_history_add(const char *path, const char *text, size_t n)
{
    if (!path || n == 0 || n > ENTRY_BYTES_MAX) return;
    char *line = mox_alloc(2 * n + 2);
    int fd = line ? mox_lock_open(path, O_RDWR | O_CREAT | O_APPEND, 0600, true) : -1;
    if (fd >= 0) {
        const size_t begin = is_cut_off(fd);
        line[0] = '\n';
        const ssize_t written = write(fd, line, begin + write_line(text, n, line + begin));
        (void)written; /* what is lost is an entry */
    }
    mox_lock_release(&fd);
    mox_free(line);
}
