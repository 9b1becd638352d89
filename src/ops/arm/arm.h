/* ops/arm/arm.h -- the kernels of the ARM levels. */
#ifndef MOX_OPS_ARM_ARM_H
#define MOX_OPS_ARM_ARM_H

#include "ops/simd/simd.h"

#define MOX_ARM_DECLARE(op) mox_##op##_fn mox_##op##_neon, mox_##op##_dotprod, mox_##op##_i8mm;
MOX_SIMD_LIST(MOX_ARM_DECLARE)
#undef MOX_ARM_DECLARE

/* Overlays the kernels of level 1 (neon), 2 (dotprod) or 3 (i8mm); 0 does nothing. */
void mox_kern_init_arm(mox_kern *k, int level);

#endif
