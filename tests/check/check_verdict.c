/* tests/check/check_verdict.c -- how a test says that something is wrong, and timing.
 *
 * The first failure ends the test's process: what follows a wrong result would only
 * be noise. */
#include "check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>


static ck_where here;
static char label[200];

void ck_begin(const ck_where *where)
{
    here = *where;
    label[0] = 0;
    uint64_t seed = where->seed; /* an operation sees the same data alone and among others */
    for (const char *p = where->op; *p; p++) seed = seed * 1099511628211u + (unsigned char)*p;
    ck_begin_data(seed, where->aligned);
}

void ck_end(void) { ck_end_data(); }

void ck_label(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(label, sizeof label, format, ap);
    va_end(ap);
}

void ck_fail(const char *format, ...)
{
    if (!here.quiet) {
        printf("FAIL %s at %s, seed %llu, case \"%s\": ", here.op, here.level, (unsigned long long)here.seed, label);
        va_list ap;
        va_start(ap, format);
        vprintf(format, ap);
        va_end(ap);
        printf("\n");
    }
    fflush(NULL);
    _exit(1); /* buffers are still held: nothing to report about them */
}

void ck_ok(mox_status status, const mox_err *err)
{
    if (status != MOX_OK) ck_fail("refused with %d: %s", (int)status, err ? err->msg : "");
}

void ck_refused(mox_status status, mox_status expected)
{
    if (status != expected) ck_fail("answered %d where %d was due", (int)status, (int)expected);
}

void ck_true(bool condition, const char *what)
{
    if (!condition) ck_fail("%s", what);
}

void ck_exact(const void *got, const void *want, int64_t bytes, const char *what)
{
    const unsigned char *g = got, *w = want;
    for (int64_t i = 0; i < bytes; i++)
        if (g[i] != w[i]) ck_fail("%s: byte %lld is %02x, not %02x", what, (long long)i, g[i], w[i]);
}

static void compare(int64_t i, float got, double want, double allowed, const char *what)
{
    if (isnan(want) ? isnan(got) : (double)got == want || fabs((double)got - want) <= allowed) return;
    ck_fail("%s[%lld] is %.9g, not %.9g (off by %.3g, allowed %.3g)", what, (long long)i, (double)got, want,
            fabs((double)got - want), allowed);
}

void ck_close(const float *got, const double *want, const double *mag, int64_t n, double rel, double abs,
              const char *what)
{
    for (int64_t i = 0; i < n; i++) compare(i, got[i], want[i], rel * mag[i] + abs, what);
}

void ck_class_p(const float *got, const double *want, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++) compare(i, got[i], want[i], 5e-6 * fabs(want[i]) + 1e-7, what);
}

void ck_class_d(const float *got, const double *want, const double *mag, int64_t n, const char *what)
{
    ck_close(got, want, mag, n, 1e-5, 1e-7, what);
}

static void check_cosine(const float *got, const double *want, int64_t n, double least, const char *what)
{
    double dot = 0, a = 0, b = 0;
    for (int64_t i = 0; i < n; i++) {
        dot += (double)got[i] * want[i];
        a += (double)got[i] * (double)got[i];
        b += want[i] * want[i];
    }
    if (a == 0 && b == 0) return;
    if (!(dot >= least * sqrt(a * b))) ck_fail("%s: cosine is %.9g, not %g", what, dot / sqrt(a * b), least);
}

void ck_class_s(const float *got, const double *want, int64_t n, double scale, const char *what)
{
    for (int64_t i = 0; i < n; i++) compare(i, got[i], want[i], 1e-5 * scale, what);
    check_cosine(got, want, n, 0.9999, what);
}

void ck_class_g(const float *got, const double *want, int64_t n, const char *what)
{
    double max = 0;
    for (int64_t i = 0; i < n; i++) max = fmax(max, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) compare(i, got[i], want[i], 1e-4 * max, what);
    check_cosine(got, want, n, 0.99999, what);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *ck_tokens(const char *what, int64_t n)
{
    static char text[80];
    (void)snprintf(text, sizeof text, "%s, %lld token%s", what, (long long)n, n == 1 ? "" : "s");
    return text;
}

/* Seconds of one call of body with the kernels of `kern`, which is called `calls` times. */
static double time_calls(const mox_kern *kern, int calls, void (*body)(void *), void *user)
{
    ck.exec.kern = kern;
    const double begin = seconds();
    for (int i = 0; i < calls; i++) body(user);
    return (seconds() - begin) / calls;
}

void ck_bench(const char *name, double bytes, double flops, void (*body)(void *), void *user)
{
    enum { RUNS_MIN = 3, RUNS_MAX = 101 };
    const double budget_seconds = 0.4, run_seconds = 20e-6, slower = 0.9;
    const mox_exec exec = ck.exec;
    double t = INFINITY, below = INFINITY;
    ck.exec.pool = NULL;
    const double warm = time_calls(exec.kern, 1, body, user);
    const int calls = warm < run_seconds ? (int)(run_seconds / (warm + 1e-9)) + 1 : 1;
    const double start = seconds();
    for (int n = 0; n < RUNS_MIN || (n < RUNS_MAX && seconds() - start < budget_seconds); n++) {
        t = fmin(t, time_calls(exec.kern, calls, body, user));
        if (ck.below && (n == 0 || below < budget_seconds / 4)) below = fmin(below, time_calls(ck.below, calls, body, user));
    }
    ck.exec = exec;
    printf("     %-10s %-48s %10.2f us %8.2f GB/s %8.2f GFLOP/s", here.level, name, t * 1e6, bytes / t * 1e-9, flops / t * 1e-9);
    if (ck.below) {
        printf(" %8.2f x%s", below / t, below / t < slower ? "  SLOWER than the level below" : "");
        ck.tally->n_compared++;
        ck.tally->n_slower += below / t < slower;
    }
    printf("\n");
}
