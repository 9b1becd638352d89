#include "dev/gpu/kernels.h"
