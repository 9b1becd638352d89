/* ops/x86/probe.h -- the probes of the x86 levels (ops/probe.h). */
#ifndef MOX_OPS_X86_PROBE_H
#define MOX_OPS_X86_PROBE_H

#include "ops/probe.h"

mox_probe_kern_init_fn mox_probe_kern_init_avx2, mox_probe_kern_init_avx512, mox_probe_kern_init_avx512vnni, mox_probe_kern_init_amx;

#endif
