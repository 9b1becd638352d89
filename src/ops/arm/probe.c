/* ops/arm/probe.c -- see ops/probe.h.
 *
 * The multiply-adds are written in assembly: a compiler would leave out sums that it
 * can foresee.  Sixteen independent sums are four cycles of latency on four pipes. */
#include "ops/arm/probe.h"

#include "ops/simd/read.h"

enum { SUMS = 16 };

#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(16) DO(17) DO(18) DO(19) DO(20) DO(21) DO(22) DO(23)

/* One multiply-add per sum; v24 and v25 are its operands, v26 and v27 its own. */
#define CLEAR(i) "movi v" #i ".16b, #0\n\t"
#define LOOP(ONE)                                                                                              \
    int64_t left = rounds;                                                                                     \
    if (left < 1) return 0;                                                                                    \
    __asm__ volatile(EACH(CLEAR) CLEAR(24) CLEAR(25) "1:\n\t" EACH(ONE) "subs %0, %0, #1\n\tb.ne 1b"           \
                     : "+r"(left)                                                                              \
                     :                                                                                         \
                     : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", \
                       "v21", "v22", "v23", "v24", "v25", "v26", "v27");                                       \
    return (uint64_t)left;

#define FMA(i) "fmla v" #i ".4s, v24.4s, v25.4s\n\t"
static uint64_t multiply_fma(int64_t rounds) { LOOP(FMA) }

#if MOX_LEVEL == 3
#define NAME "usdot"
#define DOT(i) "usdot v" #i ".4s, v24.16b, v25.16b\n\t"
#elif MOX_LEVEL == 2
#define NAME "sdot"
#define DOT(i) "sdot v" #i ".4s, v24.16b, v25.16b\n\t"
#else
#define NAME "smull, smull2, addp, sadalp"
#define DOT(i)                               \
    "smull v26.8h, v24.8b, v25.8b\n\t"       \
    "smull2 v27.8h, v24.16b, v25.16b\n\t"    \
    "addp v26.8h, v26.8h, v27.8h\n\t"        \
    "sadalp v" #i ".4s, v26.8h\n\t"
#endif
static uint64_t multiply_dot(int64_t rounds) { LOOP(DOT) }

void MOX_AT(mox_probe_kern_init)(mox_probe_kern *k, mox_precision precision)
{
    k->read = read_all;
    if (precision == MOX_PRECISION_EXACT) {
        k->multiply = multiply_fma;
        k->macs_per_round = (int64_t)SUMS * LANES;
        k->instruction = "fmla";
        return;
    }
    k->multiply = multiply_dot;
    k->macs_per_round = (int64_t)SUMS * VBYTES;
    k->passes = precision == MOX_PRECISION_FAST ? 1 : 2;
    k->instruction = NAME;
}
