/* tools/verify_numbers.c -- finding numbers that are not finite, and scales of nothing.
 *
 * In all formats a number is not finite when certain bits are all set: the exponent, or in
 * E4M3 everything but the sign, in E8M0 everything.  Blocks are first asked as a whole, which
 * compilers make into vector code. */
#include "tools/verify.h"

#include "base/ending.h"
#include "base/size.h"

#include <string.h>

enum { BLOCK = 4096 }; /* elements */

void mox_number_scan_begin(mox_number_scan *s, const mox_tensor_info *t)
{
    const bool fp8_scale = mox_ends_with(t->name, ".weight_scale_inv");
    const bool is_scale = fp8_scale || mox_ends_with(t->name, ".scales");
    *s = (mox_number_scan){.dtype = MOX_DT_NONE, .is_scale = is_scale, .n_members = 1};
    switch (t->dtype) {
    case MOX_DT_F16:
    case MOX_DT_BF16:
    case MOX_DT_F32:
    case MOX_DT_F64:
    case MOX_DT_F8_E4M3:
    case MOX_DT_F8_E5M2:
    case MOX_DT_F8_E8M0: s->dtype = t->dtype; break;
    case MOX_DT_U8: s->dtype = fp8_scale ? MOX_DT_F8_E8M0 : MOX_DT_NONE; break; /* as the binder reads them */
    default: break;
    }
    s->element_bytes = mox_dtype_bytes(t->dtype);
    s->n_elements = t->extent.bytes / s->element_bytes;
    if (t->n_dims == 3 && t->shape[0] > 0) s->n_members = t->shape[0];
    s->member_bytes = t->extent.bytes / s->n_members;
}

static uint64_t mask_of(mox_dtype t)
{
    switch (t) {
    case MOX_DT_F16: return 0x7C00;
    case MOX_DT_BF16: return 0x7F80;
    case MOX_DT_F32: return 0x7F800000;
    case MOX_DT_F64: return 0x7FF0000000000000;
    case MOX_DT_F8_E5M2: return 0x7C;
    case MOX_DT_F8_E4M3: return 0x7F;
    default: return 0xFF; /* E8M0 */
    }
}

static bool is_odd(const uint8_t *p, int64_t width, uint64_t mask)
{
    uint64_t bits = 0;
    memcpy(&bits, p, (size_t)width); /* files and processors of ours are little-endian */
    return (bits & mask) == mask;
}

static bool any_odd(const uint8_t *p, int64_t n, int64_t width, uint64_t mask)
{
    int any = 0;
    switch (width) {
    case 1:
        for (int64_t i = 0; i < n; i++) any |= (p[i] & mask) == mask;
        break;
    case 2:
        for (int64_t i = 0; i < n; i++) any |= (mox_load_u16(p + 2 * i) & (uint16_t)mask) == (uint16_t)mask;
        break;
    case 4:
        for (int64_t i = 0; i < n; i++) any |= (mox_load_u32(p + 4 * i) & (uint32_t)mask) == (uint32_t)mask;
        break;
    default:
        for (int64_t i = 0; i < n; i++) any |= is_odd(p + width * i, width, mask);
    }
    return any;
}

static void look_for_odd(mox_number_scan *s, const uint8_t *bytes, int64_t n)
{
    const int64_t width = s->element_bytes, first = s->at / width;
    const uint64_t mask = mask_of(s->dtype);
    for (int64_t at = 0; at < n; at += BLOCK) {
        const int64_t m = mox_min_i64(BLOCK, n - at);
        if (!any_odd(bytes + at * width, m, width, mask)) continue;
        for (int64_t i = at; i < at + m; i++)
            if (is_odd(bytes + i * width, width, mask) && s->n_odd++ == 0) s->first_odd = first + i;
    }
}

static bool any_nonzero(const uint8_t *bytes, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (bytes[i]) return true;
    return false;
}

static void look_for_zero(mox_number_scan *s, const uint8_t *bytes, int64_t n)
{
    for (int64_t at = 0; at < n && s->member_bytes > 0;) {
        const int64_t done = (s->at + at) % s->member_bytes, m = mox_min_i64(n - at, s->member_bytes - done);
        if (done == 0) s->nonzero = false;
        if (!s->nonzero) s->nonzero = any_nonzero(bytes + at, m);
        if (done + m == s->member_bytes && !s->nonzero && s->n_zero++ == 0) s->first_zero = (s->at + at) / s->member_bytes;
        at += m;
    }
}

void mox_number_scan_add(mox_number_scan *s, const uint8_t *bytes, int64_t n)
{
    if (s->dtype != MOX_DT_NONE) look_for_odd(s, bytes, n / s->element_bytes);
    if (s->is_scale) look_for_zero(s, bytes, n);
    s->at += n;
}
