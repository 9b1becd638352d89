/* runtime/pressure.c -- see pressure.h. */
#include "runtime/pressure.h"

#include <string.h>

#define STALLED_PART 0.1
enum { LEAST_ROOM = 64 << 20 }; /* bytes: what a machine needs for itself while others react */

/* Whether any of those who tell waited for a large part of the time. */
static bool stalled(mox_pressure *p, double seconds)
{
    int64_t now[MOX_MACHINE_STALLS];
    bool found = false;
    const int n = mox_machine_stalls(p->root, now);
    for (int i = 0; i < n && n == p->n_stalls; i++) /* another number: the process went to another group */
        found |= (double)(now[i] - p->stalls[i]) * 1e-6 > STALLED_PART * seconds;
    memcpy(p->stalls, now, (size_t)n * sizeof *now);
    p->n_stalls = n;
    return found;
}

mox_pressure_answer mox_pressure_look(mox_pressure *p, double now_s, int64_t more_bytes)
{
    const double seconds = now_s - p->looked_s;
    if (seconds < p->every_s) return MOX_PRESSURE_KEEP;
    const bool first = p->looked_s == 0.0;
    p->looked_s = now_s;
    const bool waited = stalled(p, seconds) && !first;
    const int64_t room = mox_machine_memory(p->root);
    if (waited || room < LEAST_ROOM) {
        p->needed_s = now_s;
        return MOX_PRESSURE_GIVE;
    }
    if (more_bytes == 0 || now_s - p->needed_s < p->calm_s) return MOX_PRESSURE_KEEP;
    return (room - LEAST_ROOM) / 2 >= more_bytes ? MOX_PRESSURE_TAKE : MOX_PRESSURE_KEEP;
}
