/* dev/gpu/kernels.h -- all kernels, for the one source file that each target compiles. */
#ifndef MOX_DEV_GPU_KERNELS_H
#define MOX_DEV_GPU_KERNELS_H

#include "dev/gpu/attention.h"
#include "dev/gpu/decode.h"
#include "dev/gpu/deltanet.h"
#include "dev/gpu/embed.h"
#include "dev/gpu/experts4.h"
#include "dev/gpu/few.h"
#include "dev/gpu/few_experts.h"
#include "dev/gpu/flash.h"
#include "dev/gpu/gateup.h"
#include "dev/gpu/gdn_step.h"
#include "dev/gpu/heads.h"
#include "dev/gpu/join.h"
#include "dev/gpu/latent.h"
#include "dev/gpu/matmul.h"
#include "dev/gpu/matvec.h"
#include "dev/gpu/matvec_row.h"
#include "dev/gpu/matvec_rows.h"
#include "dev/gpu/matvec4.h"
#include "dev/gpu/mla.h"
#include "dev/gpu/moe.h"
#include "dev/gpu/norm.h"
#include "dev/gpu/norm_long.h"
#include "dev/gpu/pointwise.h"
#include "dev/gpu/product.h"
#include "dev/gpu/rope.h"
#include "dev/gpu/router.h"
#include "dev/gpu/share.h"
#include "dev/gpu/sort.h"

/* The list in params.h, which hosts launch by, says the same as the kernels. */
#define MOX_GPU_SAME_THREADS(name, threads) static_assert(threads_of_##name == threads, "threads of a kernel");
MOX_GPU_KERNELS(MOX_GPU_SAME_THREADS)
#undef MOX_GPU_SAME_THREADS

#endif
