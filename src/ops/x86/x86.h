/* ops/x86/x86.h -- the kernels of the x86 levels. */
#ifndef MOX_OPS_X86_X86_H
#define MOX_OPS_X86_X86_H

#include "ops/simd/simd.h"

#define MOX_X86_DECLARE(op) mox_##op##_fn mox_##op##_avx2, mox_##op##_avx512, mox_##op##_avx512vnni;
MOX_SIMD_LIST(MOX_X86_DECLARE)
#undef MOX_X86_DECLARE

/* What the level amx does in its own way. */
#define MOX_SQUARES_LIST(X)                                                      \
    X(matmul)                                                                    \
    X(matmul_prepare)                                                            \
    X(matmul_grouped)                                                            \
    X(matmul_grouped_prepare)                                                    \
    X(gate_up_swiglu)                                                            \
    X(gate_up_swiglu_prepare)
/* _squares: the same without its instructions, for tests. */
#define MOX_X86_DECLARE(op) mox_##op##_fn mox_##op##_amx, mox_##op##_squares;
MOX_SQUARES_LIST(MOX_X86_DECLARE)
#undef MOX_X86_DECLARE

/* Overlays the kernels of level 1 (avx2), 2 (avx512), 3 (avx512vnni) or 4 (amx); 0 does nothing. */
void mox_kern_init_x86(mox_kern *k, int level);

#endif
