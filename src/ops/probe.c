/* ops/probe.c -- which loops stand for which level. */
#include "ops/probe.h"

#if defined(__x86_64__)
#include "ops/x86/probe.h"
#endif

void mox_probe_kern_init(mox_probe_kern *k, int level, mox_precision precision)
{
    *k = (mox_probe_kern){.read = mox_probe_read_ref, .multiply = mox_probe_multiply_ref,
                          .macs_per_round = MOX_PROBE_REF_MACS, .passes = 1, .instruction = "double multiply, add"};
#if defined(__x86_64__)
    switch (level) {
    case 1: mox_probe_kern_init_avx2(k, precision); break;
    case 2: mox_probe_kern_init_avx512(k, precision); break;
    case 3: mox_probe_kern_init_avx512vnni(k, precision); break;
    default: break;
    }
#else
    (void)level;
    (void)precision;
#endif
}
