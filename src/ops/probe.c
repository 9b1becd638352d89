/* ops/probe.c -- which loops stand for which level. */
#include "ops/probe.h"

#if defined(__x86_64__)
#include "ops/x86/probe.h"
#elif defined(__aarch64__)
#include "ops/arm/probe.h"
#endif

void mox_probe_kern_init(mox_probe_kern *k, int level, mox_precision precision)
{
    *k = (mox_probe_kern){.read = mox_probe_read_ref, .multiply = mox_probe_multiply_ref,
                          .macs_per_round = MOX_PROBE_REF_MACS, .passes = 1, .instruction = "double multiply, add"};
    static mox_probe_kern_init_fn *const levels[] = {
        NULL,
#if defined(__x86_64__)
        mox_probe_kern_init_avx2, mox_probe_kern_init_avx512, mox_probe_kern_init_avx512vnni, mox_probe_kern_init_amx,
#elif defined(__aarch64__)
        mox_probe_kern_init_neon, mox_probe_kern_init_dotprod, mox_probe_kern_init_i8mm,
#endif
    };
    if (levels[level]) levels[level](k, precision);
}
