/* base/cpu.c -- processor features.  On x86 by CPUID, and by XGETBV what registers the
 * system saves: a feature without saved registers does not exist.  On ARM Linux says. */
#include "base/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdatomic.h>
#include <stdbool.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* What was measured to be fast; a maker that is not known gets what most prefer. */
static unsigned preferences(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d)) return 0;
    if (b == signature_INTEL_ebx && d == signature_INTEL_edx && c == signature_INTEL_ecx) return MOX_CPU_BY_ROWS | MOX_CPU_STRIPES;
    if (b != signature_AMD_ebx || d != signature_AMD_edx || c != signature_AMD_ecx) return MOX_CPU_BY_ROWS;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    const unsigned base = (a >> 8) & 15, family = base < 15 ? base : 15 + ((a >> 20) & 255);
    return family < 0x1A ? 0 : MOX_CPU_BY_ROWS; /* up to Zen 4 */
}

static unsigned saved_registers(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Tiles are 8 KiB of registers that Linux saves for processes that asked for them, for good: stacks of signal handlers
 * must have room for them from then on.  So it is asked once, and a refusal stands. */
static bool may_use_tiles(unsigned saved, unsigned features7)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    static atomic_int answer; /* 0: not asked yet */
    enum { ASK = 0x1023, TILE_DATA = 18, YES = 1, NO = 2 };
    const unsigned state = 3u << 17, tiles = (1u << 24) | (1u << 25);
    if ((saved & state) != state || (features7 & tiles) != tiles) return false;
    if (atomic_load(&answer) == 0) atomic_store(&answer, syscall(SYS_arch_prctl, (long)ASK, (long)TILE_DATA) == 0 ? YES : NO);
    return atomic_load(&answer) == YES;
#else
    (void)saved;
    (void)features7;
    return false;
#endif
}

unsigned mox_cpu_features(void)
{
    unsigned a, b, c, d, features = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    const unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29, all1 = fma | osxsave | avx | f16c;
    if ((c & all1) != all1) return 0;
    const unsigned saved = saved_registers();
    if ((saved & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    const unsigned avx2 = (1u << 5) | (1u << 8), avx512 = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);
    const unsigned vnni = (1u << 8) | (1u << 11);
    if ((b & avx2) != avx2) return 0;
    features |= MOX_CPU_AVX2;
    features |= preferences();
    if ((saved & 0xE6) != 0xE6 || (b & avx512) != avx512) return features;
    features |= MOX_CPU_AVX512;
    if ((c & vnni) != vnni) return features;
    features |= MOX_CPU_VNNI;
    if (may_use_tiles(saved, d)) features |= MOX_CPU_AMX;
    return features;
}

#elif defined(__aarch64__)
#include <sys/auxv.h>

unsigned mox_cpu_features(void)
{
    const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    unsigned features = 0;
    if (!(first & HWCAP_ASIMD)) return 0;
    features |= MOX_CPU_NEON;
    if (!(first & HWCAP_ASIMDDP)) return features;
    features |= MOX_CPU_DOTPROD;
    if (second & HWCAP2_I8MM) features |= MOX_CPU_I8MM;
    return features;
}

#else

unsigned mox_cpu_features(void) { return 0; }

#endif
