/* base/cpu.h -- what the processor can do, as far as the operating system lets it. */
#ifndef MOX_BASE_CPU_H
#define MOX_BASE_CPU_H

enum {
    MOX_CPU_AVX2 = 1 << 0,   /* with FMA, F16C and BMI2 */
    MOX_CPU_AVX512 = 1 << 1, /* F, BW, VL, DQ */
    MOX_CPU_VNNI = 1 << 2,   /* AVX-512 VNNI and GFNI */
    MOX_CPU_AMX = 1 << 3,    /* tiles of bytes, which the system let this process use; with VNNI */
    MOX_CPU_NEON = 1 << 4,
    MOX_CPU_DOTPROD = 1 << 5, /* with NEON */
    MOX_CPU_I8MM = 1 << 6,    /* with both */
    MOX_CPU_BY_ROWS = 1 << 7, /* few tokens meet weights fastest row after row: not on Zen 4 and older (bench/results/cpu.md) */
    MOX_CPU_STRIPES = 1 << 8  /* memory is asked for in several pages side by side: Intel (simd/fetch.h) */
};

unsigned mox_cpu_features(void);

#endif
