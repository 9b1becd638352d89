/* dev/gpu/target_math.h -- mathematics of gpu.h on targets that have C's; only they include it, in the middle. */
#ifndef MOX_DEV_GPU_TARGET_MATH_H
#define MOX_DEV_GPU_TARGET_MATH_H

GPU_FN float gpu_exp(float v) { return expf(v); }
GPU_FN float gpu_log(float v) { return logf(v); }
GPU_FN float gpu_sqrt(float v) { return sqrtf(v); }
GPU_FN float gpu_sin(float v) { return sinf(v); }
GPU_FN float gpu_cos(float v) { return cosf(v); }
GPU_FN float gpu_rint(float v) { return rintf(v); }
GPU_FN float gpu_abs(float v) { return fabsf(v); }
GPU_FN float gpu_max(float a, float b) { return fmaxf(a, b); }
GPU_FN bool gpu_isnan(float v) { return v != v; }

#endif
