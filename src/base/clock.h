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

/* A time of that clock as those functions have it that wait until then. */
static inline struct timespec mox_clock_at(double time)
{
    const time_t whole = (time_t)time;
    return (struct timespec){.tv_sec = whole, .tv_nsec = (long)((time - (double)whole) * 1e9)};
}

#endif
