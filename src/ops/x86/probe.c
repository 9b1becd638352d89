/* ops/x86/probe.c -- see ops/probe.h.
 *
 * The multiply-adds are written in assembly: a compiler would leave out sums that it
 * can foresee.  Twelve independent sums hide the latency of any of the instructions,
 * and leave registers for their operands at every level. */
#include "ops/x86/probe.h"

#include "ops/simd/read.h"

enum { SUMS = 12 };

#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)

/* One instruction per sum; x and y are the operands. */
#if MOX_LEVEL == 1
#define REGISTER "ymm"
#else
#define REGISTER "zmm"
#endif
#define R(i) "%%" REGISTER #i
#define CLEAR(i) "vxorps %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n\t"
#define LOOP(ONE)                                                                                               \
    int64_t left = rounds;                                                                                      \
    if (left < 1) return 0;                                                                                     \
    __asm__ volatile(EACH(CLEAR) CLEAR(12) CLEAR(13) CLEAR(14) CLEAR(15) "1:\n\t" EACH(ONE) "dec %0\n\tjnz 1b\n\tvzeroupper" \
                     : "+r"(left)                                                                               \
                     :                                                                                          \
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",    \
                       "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                                   \
    return (uint64_t)left;

#define FMA(i) "vfmadd231ps " R(12) ", " R(13) ", " R(i) "\n\t"
static uint64_t multiply_fma(int64_t rounds) { LOOP(FMA) }

#if MOX_LEVEL == 4
/* Four sums of squares of 16 rows, 64 codes and 16 lanes; what is multiplied is zero, which takes as long. */
enum { DOT_MACS = 4 * 16 * 64 * 16 };
static uint64_t multiply_dot(int64_t rounds)
{
    squares_shape shape = {0};
    squares_begin(&shape, 64, SQUARE_LANES);
    for (; rounds > 0; rounds--) {
        _tile_dpbusd(0, 4, 5);
        _tile_dpbusd(1, 4, 5);
        _tile_dpbusd(2, 6, 7);
        _tile_dpbusd(3, 6, 7);
    }
    squares_end(&shape);
    return (uint64_t)rounds;
}
#elif MOX_LEVEL == 3
#define DOT(i) "vpdpbusd " R(12) ", " R(13) ", " R(i) "\n\t"
#elif MOX_LEVEL == 2
#define DOT(i)                                      \
    "vpmaddubsw " R(12) ", " R(13) ", %%zmm14\n\t"  \
    "vpmaddwd " R(15) ", %%zmm14, %%zmm14\n\t"      \
    "vpaddd %%zmm14, " R(i) ", " R(i) "\n\t"
#else
#define DOT(i)                                      \
    "vpmaddubsw " R(12) ", " R(13) ", %%ymm14\n\t"  \
    "vpmaddwd " R(15) ", %%ymm14, %%ymm14\n\t"      \
    "vpaddd %%ymm14, " R(i) ", " R(i) "\n\t"
#endif
#if MOX_LEVEL <= 3
enum { DOT_MACS = SUMS * VBYTES };
static uint64_t multiply_dot(int64_t rounds) { LOOP(DOT) }
#endif

void MOX_AT(mox_probe_kern_init)(mox_probe_kern *k, mox_precision precision)
{
    k->read = read_all;
    if (precision == MOX_PRECISION_EXACT) {
        k->multiply = multiply_fma;
        k->macs_per_round = (int64_t)SUMS * LANES;
        k->instruction = "vfmadd231ps";
        return;
    }
    k->multiply = multiply_dot;
    k->macs_per_round = DOT_MACS;
    k->passes = precision == MOX_PRECISION_FAST ? 1 : 2;
    k->instruction = MOX_LEVEL == 4 ? "tdpbusd" : MOX_LEVEL == 3 ? "vpdpbusd" : "vpmaddubsw, vpmaddwd, vpaddd";
}
