/* app/server/log.c -- see log.h.  A line is one write, so that lines of several threads do not mix.  Of a line that a
 * full disk has cut there is a half, which the next one does not continue.
 *
 * I1  a line has at most PIPE_BUF bytes, and a pipe that poll finds ready takes as many without waiting. */
#include "app/server/log.h"

#include "app/cli/message.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int open_path(const char *path) { return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640); }

mox_status mox_log_open(mox_log *l, const char *path, bool json, bool quiet, mox_err *err)
{
    *l = (mox_log){.path = path, .fd = STDERR_FILENO, .json = json, .quiet = quiet};
    pthread_mutex_init(&l->lock, NULL);
    if (!path) return MOX_OK;
    l->fd = open_path(path);
    return l->fd >= 0 ? MOX_OK : mox_fail(err, MOX_E_IO, "--log-file %s: %s", path, strerror(errno));
}

void mox_log_reopen(mox_log *l)
{
    if (!l->path) return;
    const int fd = open_path(l->path);
    if (fd < 0) return; /* better the old one than none */
    pthread_mutex_lock(&l->lock);
    const int old = l->fd;
    l->fd = fd;
    l->torn = false;
    pthread_mutex_unlock(&l->lock);
    (void)close(old);
}

void mox_log_close(mox_log *l)
{
    if (l->path && l->fd >= 0) (void)close(l->fd);
    l->fd = -1;
    pthread_mutex_destroy(&l->lock);
}

/* ---- lines ---- */

static void put_time(mox_log *l, mox_put *p)
{
    char text[40];
    struct tm utc;
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &utc);
    const size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    (void)snprintf(text + n, sizeof text - n, ".%03ldZ", now.tv_nsec / 1000000);
    mox_putf(p, l->json ? "{\"time\":\"%s\"" : "%s", text);
}

static void put_word(mox_log *l, mox_put *p, const char *key, const char *value)
{
    char word[480];
    if (!value || !*value) return;
    (void)snprintf(word, sizeof word, "%s", value);
    mox_cli_make_harmless(word);
    mox_putf(p, l->json ? ",\"%s\":" : " %s=", key);
    if (l->json || strpbrk(word, " \"=")) mox_put_string(p, word);
    else mox_putf(p, "%s", word);
}

static void put_number(mox_log *l, mox_put *p, const char *key, int64_t value)
{
    mox_putf(p, l->json ? ",\"%s\":%lld" : " %s=%lld", key, (long long)value);
}

static void put_seconds(mox_log *l, mox_put *p, const char *key, double value)
{
    mox_putf(p, l->json ? ",\"%s\":%.4f" : " %s=%.4f", key, value);
}

/* Under the lock: whether all of the line went out. */
static bool write_now(mox_log *l, const mox_put *p)
{
    struct pollfd out = {.fd = l->fd, .events = POLLOUT};
    if (!mox_put_ok(p) || p->w.n > PIPE_BUF || l->fd < 0) return false; /* I1 */
    if (poll(&out, 1, 0) != 1 || !(out.revents & POLLOUT)) return false;
    if (l->torn && write(l->fd, "\n", 1) != 1) return false;
    l->torn = false;
    const ssize_t n = write(l->fd, mox_writer_text(&p->w), p->w.n);
    l->torn = n > 0 && n < (ssize_t)p->w.n;
    return n == (ssize_t)p->w.n;
}

static void end_line(mox_log *l, mox_put *p)
{
    if (l->json) mox_putf(p, "}");
    mox_put_raw(p, "\n", 1);
}

/* Under the lock: says how many lines are missing, where that is new. */
static bool tell_lost(mox_log *l)
{
    if (l->n_told == l->n_lost) return true;
    mox_put p = {0};
    put_time(l, &p);
    put_word(l, &p, "note", "lines are missing here: nobody took them in time");
    put_number(l, &p, "lines", l->n_lost - l->n_told);
    end_line(l, &p);
    const bool told = write_now(l, &p);
    if (told) l->n_told = l->n_lost;
    mox_put_deinit(&p);
    return told;
}

static void write_line(mox_log *l, mox_put *p)
{
    end_line(l, p);
    pthread_mutex_lock(&l->lock);
    if (!tell_lost(l) || !write_now(l, p)) l->n_lost++;
    pthread_mutex_unlock(&l->lock);
    mox_put_deinit(p);
}

int64_t mox_log_lost(mox_log *l)
{
    pthread_mutex_lock(&l->lock);
    const int64_t n = l->n_lost;
    pthread_mutex_unlock(&l->lock);
    return n;
}

void mox_log_request(mox_log *l, const mox_log_entry *e)
{
    if (l->quiet) return;
    mox_put p = {0};
    put_time(l, &p);
    put_word(l, &p, "id", e->id);
    put_word(l, &p, "method", e->method);
    put_word(l, &p, "path", e->path);
    put_number(l, &p, "status", e->status);
    put_seconds(l, &p, "total_s", e->seconds);
    if (e->finish) {
        put_word(l, &p, "asked_for", e->asked_for);
        put_number(l, &p, "prompt", e->n_prompt);
        put_number(l, &p, "reused", e->n_reused);
        put_number(l, &p, "reply", e->n_reply);
        put_seconds(l, &p, "queue_s", e->queue_s);
        put_seconds(l, &p, "first_token_s", e->first_token_s);
        put_seconds(l, &p, "prefill_s", e->prefill_s);
        put_seconds(l, &p, "decode_s", e->decode_s);
        put_word(l, &p, "reuse", e->reuse);
        put_word(l, &p, "finish", e->finish);
    }
    put_word(l, &p, "problem", e->problem);
    write_line(l, &p);
}

void mox_log_note(mox_log *l, const char *id, const char *sentence)
{
    if (l->quiet) return;
    mox_put p = {0};
    put_time(l, &p);
    put_word(l, &p, "id", id);
    put_word(l, &p, "note", sentence);
    write_line(l, &p);
}
