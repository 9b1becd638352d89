/* ops/simd/inline.h -- what the vocabulary of every level is written with. */
#ifndef MOX_OPS_SIMD_INLINE_H
#define MOX_OPS_SIMD_INLINE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define MOX_PASTE_(a, b) a##_##b
#define MOX_PASTE(a, b) MOX_PASTE_(a, b)
#define ALWAYS_INLINE static inline __attribute__((always_inline))

#endif
