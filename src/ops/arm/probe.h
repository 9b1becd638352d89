/* ops/arm/probe.h -- the probes of the ARM levels (ops/probe.h). */
#ifndef MOX_OPS_ARM_PROBE_H
#define MOX_OPS_ARM_PROBE_H

#include "ops/probe.h"

mox_probe_kern_init_fn mox_probe_kern_init_neon, mox_probe_kern_init_dotprod, mox_probe_kern_init_i8mm;

#endif
