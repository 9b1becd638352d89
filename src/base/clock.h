/* base/clock.h -- the one clock: monotonic, in seconds from an arbitrary start. */
#ifndef MOX_BASE_CLOCK_H
#define MOX_BASE_CLOCK_H

#include <time.h>

static inline double mox_clock_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
