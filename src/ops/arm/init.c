/* ops/arm/init.c -- filling the kernel table. */
#include "ops/arm/arm.h"

void mox_kern_init_arm(mox_kern *k, int level)
{
    switch (level) {
    case 1:
#define MOX_ARM_NEON(op) k->op = mox_##op##_neon;
        MOX_SIMD_LIST(MOX_ARM_NEON)
        break;
    case 2:
#define MOX_ARM_DOTPROD(op) k->op = mox_##op##_dotprod;
        MOX_SIMD_LIST(MOX_ARM_DOTPROD)
        break;
    case 3:
#define MOX_ARM_I8MM(op) k->op = mox_##op##_i8mm;
        MOX_SIMD_LIST(MOX_ARM_I8MM)
        break;
    default: break;
    }
}
