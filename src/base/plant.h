/* base/plant.h -- a bug on purpose, so that the fuzzers can prove that they would
 * find one.
 *
 * MOX_PLANT(reached) stands in a parser where only an unusual file arrives.  It is
 * nothing at all, except in the build of tests/fuzz/planted (MOX_PLANT_OVERFLOW),
 * where it writes one byte behind an allocation. */
#ifndef MOX_BASE_PLANT_H
#define MOX_BASE_PLANT_H

#ifdef MOX_PLANT_OVERFLOW
#include "base/alloc.h"

static inline void mox_plant(int reached)
{
    char *plant = reached ? mox_alloc(1) : NULL;
    if (plant) plant[1] = 0;
    mox_free(plant);
}
#define MOX_PLANT(reached) mox_plant(reached)
#else
#define MOX_PLANT(reached) ((void)0)
#endif

#endif
