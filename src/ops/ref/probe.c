/* ops/ref/probe.c -- see ops/probe.h.  The references accumulate in double, so that is
 * what is measured here. */
#include "ops/probe.h"

#include <string.h>

#if defined(__x86_64__)
#define FLOAT_REGISTER "+x"
#elif defined(__aarch64__)
#define FLOAT_REGISTER "+w"
#else
#define FLOAT_REGISTER "+m"
#endif

uint64_t mox_probe_read_ref(const void *p, int64_t n)
{
    const uint64_t *words = p;
    uint64_t sums[8] = {0};
    for (int64_t i = 0; i < n / 8; i += 8)
        for (int j = 0; j < 8; j++) sums[j] += words[i + j];
    return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

uint64_t mox_probe_multiply_ref(int64_t rounds)
{
    double sums[MOX_PROBE_REF_MACS] = {0}, a = 0.5, b = 0.25;
    for (int64_t i = 0; i < rounds; i++) {
        __asm__ volatile("" : FLOAT_REGISTER(a), FLOAT_REGISTER(b)); /* not known beforehand */
        for (int j = 0; j < MOX_PROBE_REF_MACS; j++) sums[j] += a * b;
    }
    uint64_t bits = 0, all = 0;
    for (int j = 0; j < MOX_PROBE_REF_MACS; j++) {
        memcpy(&bits, &sums[j], sizeof bits);
        all ^= bits;
    }
    return all;
}
