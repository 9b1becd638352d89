/* ops/simd/inline.h -- what the vocabulary of every level is written with. */
#ifndef MOX_OPS_SIMD_INLINE_H
#define MOX_OPS_SIMD_INLINE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define MOX_PASTE_(a, b) a##_##b
#define MOX_PASTE(a, b) MOX_PASTE_(a, b)
/* Under sanitizers kernels are checked, not timed: what may stay a function compiles in a tenth of the time. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ALWAYS_INLINE static inline
#else
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#endif

/* Into the nearest cache, and into the next one. */
ALWAYS_INLINE void prefetch_first(const void *p) { __builtin_prefetch(p, 0, 3); }
ALWAYS_INLINE void prefetch_second(const void *p) { __builtin_prefetch(p, 0, 2); }

#endif
