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
    ck_begin_data(seed);
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

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void ck_bench(const char *name, double bytes, double flops, void (*body)(void *), void *user)
{
    enum { RUNS_MAX = 101 };
    const double budget_seconds = 0.3;
    double times[RUNS_MAX];
    int n = 0;
    body(user); /* warm */
    for (const double start = seconds(); n < 3 || (n < RUNS_MAX && seconds() - start < budget_seconds); n++) {
        const double begin = seconds();
        body(user);
        times[n] = seconds() - begin;
    }
    qsort(times, (size_t)n, sizeof *times, by_value);
    const double t = times[n / 2];
    printf("     %-6s %-40s %10.1f us %8.2f GB/s %8.2f GFLOP/s\n", here.level, name, t * 1e6, bytes / t * 1e-9,
           flops / t * 1e-9);
}
