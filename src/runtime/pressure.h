/* runtime/pressure.h -- whether somebody else needs memory that we could do without.
 *
 * Linux says how long processes had to wait for memory (pressure stall information).  Whoever
 * has memory to spare looks here between pieces of work: often enough to give it back in time,
 * seldom enough that looking costs nothing.  There is no thread, so that a program which does
 * nothing gives nothing back either.
 *
 * Memory is short when somebody waited for a tenth of the time since the last look, or when
 * hardly any is left.  It is there again when that has not been so for a while, and what would
 * be taken is there twice.  Where the system says nothing, neither is ever the case. */
#ifndef MOX_RUNTIME_PRESSURE_H
#define MOX_RUNTIME_PRESSURE_H

#include "base/machine.h"

typedef enum mox_pressure_answer { MOX_PRESSURE_KEEP = 0, MOX_PRESSURE_GIVE, MOX_PRESSURE_TAKE } mox_pressure_answer;

typedef struct mox_pressure {
    const char *root; /* of the machine: base/machine.h */
    double every_s;   /* from look to look, at least */
    double calm_s;    /* without any need, until memory may be taken again */
    /* since the last look; zero in the beginning */
    double looked_s, needed_s; /* when, and when it was needed last */
    int n_stalls;
    int64_t stalls[MOX_MACHINE_STALLS];
} mox_pressure;

#define MOX_PRESSURE_HERE ((mox_pressure){.root = "", .every_s = 0.25, .calm_s = 5.0})

/* now_s: mox_clock_now.  more_bytes: what could be taken, 0 when nothing was given.  Allocates
 * nothing. */
mox_pressure_answer mox_pressure_look(mox_pressure *p, double now_s, int64_t more_bytes);

#endif
