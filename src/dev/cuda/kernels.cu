/* dev/cuda/kernels.cu -- the kernels of dev/gpu, compiled for NVIDIA GPUs. */
#include "dev/gpu/kernels.h"
