/* base/size.h -- arithmetic on sizes that come from files and requests.
 *
 * Every product and sum of such numbers goes through these: they return false
 * instead of wrapping, or saturate. */
#ifndef MOX_BASE_SIZE_H
#define MOX_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool mox_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool mox_add_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
static inline bool mox_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool mox_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
/* Saturates: what is that large fits nowhere. */
static inline int64_t mox_plus_i64(int64_t a, int64_t b)
{
    int64_t sum;
    return mox_add_i64(a, b, &sum) ? sum : INT64_MAX;
}
static inline int64_t mox_min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t mox_max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t mox_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

#endif
