/* ops/probe.h -- loops that show what the processor can do at a kernel level, to hold
 * the kernels against: reading memory, and the multiply-add that products are made of.
 *
 * A loop does one thing and its result only keeps it from being left out. */
#ifndef MOX_OPS_PROBE_H
#define MOX_OPS_PROBE_H

#include "ops/exec.h"

typedef struct mox_probe_kern {
    /* Reads n bytes; p is aligned to 64 and n a multiple of 4096. */
    uint64_t (*read)(const void *p, int64_t n);
    /* rounds of independent multiply-adds on registers; macs_per_round each. */
    uint64_t (*multiply)(int64_t rounds);
    int64_t macs_per_round;
    int passes; /* times that the precision needs a multiply-add of 8-bit numbers */
    const char *instruction;
} mox_probe_kern;

/* What products with stored weights use at this level and precision. */
void mox_probe_kern_init(mox_probe_kern *k, int level, mox_precision precision);

/* Overlays the loops of one level, which are with their processor family. */
typedef void mox_probe_kern_init_fn(mox_probe_kern *k, mox_precision precision);

/* The loops of ops/ref. */
uint64_t mox_probe_read_ref(const void *p, int64_t n);
uint64_t mox_probe_multiply_ref(int64_t rounds);
enum { MOX_PROBE_REF_MACS = 8 };

#endif
