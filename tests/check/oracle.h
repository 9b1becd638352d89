/* tests/check/oracle.h -- what the oracles of several test files share. */
#ifndef TESTS_ORACLE_H
#define TESTS_ORACLE_H

#include "check.h"

#include <math.h>
#include <string.h>

/* n doubles, all 0. */
static inline double *or_zeros(int64_t n)
{
    double *p = ck_bytes(n * (int64_t)sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = 0.0;
    return p;
}

static inline double *or_widen(const float *x, int64_t n)
{
    double *p = or_zeros(n);
    for (int64_t i = 0; i < n; i++) p[i] = (double)x[i];
    return p;
}

static inline double or_max_abs(const double *x, int64_t n)
{
    double max = 0.0;
    for (int64_t i = 0; i < n; i++) max = fmax(max, fabs(x[i]));
    return max;
}

static inline float *or_copy(const float *x, int64_t n)
{
    float *p = ck_f32(n);
    if (n > 0) memcpy(p, x, (size_t)n * sizeof *p);
    return p;
}

/* x as it survives a stay in a cache of this type. */
static inline float or_round(float x, mox_dtype type)
{
    return type == MOX_DT_F16 ? mox_f16_to_f32(mox_f32_to_f16(x)) : x;
}

/* sum_i a[i] b[i], backwards and with a running correction: an
 * order that no kernel has. */
static inline double or_dot(const float *a, const float *b, int64_t n)
{
    double sum = 0.0, lost = 0.0;
    for (int64_t i = n - 1; i >= 0; i--) {
        const double term = (double)a[i] * (double)b[i] - lost, next = sum + term;
        lost = (next - sum) - term;
        sum = next;
    }
    return sum;
}

#endif
