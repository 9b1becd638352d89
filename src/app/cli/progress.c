/* app/cli/progress.c -- the progress line.
 *
 * Steps tell how far they are once per batch, which on a large model is seconds after the
 * beginning.  So that there is something to see by then, a timer's signal draws the first
 * line, which was made beforehand. */
#include "app/cli/progress.h"

#include "app/cli/terminal.h"
#include "base/clock.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static const double bar_after_s = 0.5, bar_every_s = 0.1, line_every_s = 10.0;

static void format_left(double seconds, char *out, size_t size)
{
    const long long left = (long long)(seconds < 1e9 ? seconds + 0.5 : 1e9);
    if (left < 60) (void)snprintf(out, size, " %llds left", left);
    else if (left < 3600) (void)snprintf(out, size, " %lldm%02llds left", left / 60, left % 60);
    else (void)snprintf(out, size, " %lldh%02lldm left", left / 3600, left / 60 % 60);
}

/* As much of it as goes into that many columns: the rate goes first, the words next. */
static void format_line(const mox_cli_progress *p, int64_t done, double now, int columns, char *out, size_t size)
{
    const double seconds = now - p->started;
    const double rate = seconds > 0.0 ? (double)done / seconds : 0.0, shown = rate / p->per_unit;
    const int digits = p->per_unit > 1.0 ? 1 : 0;
    char count[64], speed[48] = "", left[48] = "";
    (void)snprintf(count, sizeof count, "%.*f/%.*f", digits, (double)done / p->per_unit, digits, (double)p->total / p->per_unit);
    if (rate > 0.0) {
        (void)snprintf(speed, sizeof speed, " %.*f %s", shown < 100.0 ? 1 : 0, shown, p->rate_unit);
        format_left((double)(p->total - done) / rate, left, sizeof left);
    }
    if (snprintf(out, size, "%s %s %s%s%s", p->what, count, p->unit, speed, left) < columns) return;
    if (snprintf(out, size, "%s %s %s%s", p->what, count, p->unit, left) < columns) return;
    if (snprintf(out, size, "%s%s", count, left) < columns) return;
    if (snprintf(out, size, "%s", count) < columns) return;
    if (snprintf(out, size, "%d%%", (int)(100.0 * (double)done / (double)p->total)) < columns) return;
    out[0] = '\0';
}

static char first_line[64];
static volatile sig_atomic_t first_drawn;

static void draw_first(int number)
{
    (void)number;
    const ssize_t n = write(STDERR_FILENO, first_line, strlen(first_line));
    (void)n;
    first_drawn = 1;
}

static void set_timer(double seconds)
{
    const struct itimerval timer = {.it_value = {.tv_sec = (time_t)seconds, .tv_usec = (suseconds_t)(seconds * 1e6) % 1000000}};
    (void)setitimer(ITIMER_REAL, &timer, NULL);
}

void mox_cli_progress_draw_soon(const mox_cli_progress *p)
{
    if (!p->redraw || p->quiet || p->total <= 0) return;
    struct sigaction action = {.sa_handler = draw_first, .sa_flags = SA_RESTART};
    char line[64];
    format_line(p, 0, p->started, mox_cli_stderr_columns(), line, sizeof line);
    (void)snprintf(first_line, sizeof first_line, "\r%.50s\x1b[K", line);
    first_drawn = 0;
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGALRM, &action, NULL);
    set_timer(bar_after_s);
}

void mox_cli_progress_start(mox_cli_progress *p, const char *what, int64_t total, bool quiet)
{
    const double now = mox_clock_now();
    *p = (mox_cli_progress){.what = what, .quiet = quiet, .redraw = mox_cli_stderr_can_redraw(), .started = now,
                            .last = now, .total = total, .unit = "tok", .rate_unit = "t/s", .per_unit = 1.0};
}

void mox_cli_progress_start_bytes(mox_cli_progress *p, const char *what, int64_t total, bool quiet)
{
    mox_cli_progress_start(p, what, total, quiet);
    p->unit = "GB";
    p->rate_unit = "GB/s";
    p->per_unit = 1e9;
}

void mox_cli_progress_update(void *progress, int64_t n_done, int64_t n_total)
{
    mox_cli_progress *p = progress;
    (void)n_total; /* of this step; p->total is that of all */
    const int64_t done = p->done = p->before + n_done;
    const double now = mox_clock_now();
    if (p->quiet || done >= p->total) return;
    const double wait = !p->redraw ? line_every_s : p->drawn || first_drawn ? bar_every_s : bar_after_s;
    if (now - p->last < wait) return;
    p->last = now;
    char line[256];
    format_line(p, done, now, p->redraw ? mox_cli_stderr_columns() : (int)sizeof line, line, sizeof line);
    if (p->redraw) {
        set_timer(0.0);
        fprintf(stderr, "\r%s\x1b[K", line); /* never a full line: it would wrap */
        p->drawn = true;
    } else {
        fprintf(stderr, "moxie: %s\n", line);
    }
    fflush(stderr);
}

void mox_cli_progress_end(mox_cli_progress *p)
{
    set_timer(0.0);
    if (p->drawn || first_drawn) fputs("\r\x1b[K", stderr);
    p->drawn = false;
    first_drawn = 0;
}
