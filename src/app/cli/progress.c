/* app/cli/progress.c -- the progress line. */
#include "app/cli/progress.h"

#include "app/cli/terminal.h"
#include "base/clock.h"

#include <stdio.h>

static const double bar_after_s = 0.5, bar_every_s = 0.1, line_every_s = 10.0;

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

static void format_line(const mox_cli_progress *p, int64_t done, double now, char *out, size_t size)
{
    const double seconds = now - p->started;
    const double rate = seconds > 0.0 ? (double)done / seconds : 0.0;
    const int digits = p->per_unit > 1.0 ? 1 : 0;
    int n = snprintf(out, size, "%s %.*f/%.*f %s", p->what, digits, (double)done / p->per_unit, digits,
                     (double)p->total / p->per_unit, p->unit);
    if (rate <= 0.0 || n < 0 || (size_t)n >= size) return;
    const double eta = (double)(p->total - done) / rate;
    const long long left = (long long)(eta < 1e9 ? eta + 0.5 : 1e9);
    if (left < 60) (void)snprintf(out + n, size - (size_t)n, " %.1f %s eta %llds", rate / p->per_unit, p->rate_unit, left);
    else (void)snprintf(out + n, size - (size_t)n, " %.1f %s eta %lldm%02llds", rate / p->per_unit, p->rate_unit, left / 60,
                        left % 60);
}

void mox_cli_progress_update(void *progress, int64_t n_done, int64_t n_total)
{
    mox_cli_progress *p = progress;
    (void)n_total; /* of this step; p->total is that of all */
    const int64_t done = p->done = p->before + n_done;
    const double now = mox_clock_now();
    if (p->quiet || done >= p->total) return;
    const double wait = !p->redraw ? line_every_s : p->drawn ? bar_every_s : bar_after_s;
    if (now - p->last < wait) return;
    p->last = now;
    char line[128];
    format_line(p, done, now, line, sizeof line);
    if (p->redraw) {
        /* one column less than there is: a full line would wrap */
        fprintf(stderr, "\r%.*s\x1b[K", mox_cli_stderr_columns() - 1, line);
        p->drawn = true;
    } else {
        fprintf(stderr, "moxie: %s\n", line);
    }
    fflush(stderr);
}

void mox_cli_progress_end(mox_cli_progress *p)
{
    if (p->drawn) fputs("\r\x1b[K", stderr);
    p->drawn = false;
}
