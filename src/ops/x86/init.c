/* ops/x86/init.c -- filling the kernel table. */
#include "ops/x86/x86.h"

void mox_kern_init_x86(mox_kern *k, int level)
{
    switch (level) {
    case 1:
#define MOX_X86_AVX2(op) k->op = mox_##op##_avx2;
        MOX_SIMD_LIST(MOX_X86_AVX2)
        break;
    case 2:
#define MOX_X86_AVX512(op) k->op = mox_##op##_avx512;
        MOX_SIMD_LIST(MOX_X86_AVX512)
        break;
    case 3:
#define MOX_X86_VNNI(op) k->op = mox_##op##_avx512vnni;
        MOX_SIMD_LIST(MOX_X86_VNNI)
        break;
    case 4:
        mox_kern_init_x86(k, 3);
#define MOX_X86_AMX(op) k->op = mox_##op##_amx;
        MOX_SQUARES_LIST(MOX_X86_AMX)
        break;
    default: break;
    }
}
