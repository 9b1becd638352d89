/* tensor/dtype.c -- names, sizes and conversions of element types. */
#include "tensor/dtype.h"

#include <math.h>

static const struct {
    const char *name;
    int bits;
} dtypes[MOX_DT_COUNT] = {
    [MOX_DT_NONE] = {"?", 0},
#define MOX_DTYPE_ROW(id, name, bits) [MOX_DT_##id] = {name, bits},
    MOX_DTYPE_LIST(MOX_DTYPE_ROW)
#undef MOX_DTYPE_ROW
};

const char *mox_dtype_name(mox_dtype t) { return dtypes[t < MOX_DT_COUNT ? t : MOX_DT_NONE].name; }
int mox_dtype_bytes(mox_dtype t) { return dtypes[t < MOX_DT_COUNT ? t : MOX_DT_NONE].bits / 8; }

mox_dtype mox_dtype_parse(const char *name)
{
    for (int t = MOX_DT_NONE + 1; t < MOX_DT_COUNT; t++)
        if (strcmp(dtypes[t].name, name) == 0) return (mox_dtype)t;
    return MOX_DT_NONE;
}

float mox_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 31u, mantissa = h & 0x3FFu;
    if (exponent == 31) return mox_bits_f32(sign | 0x7F800000u | mantissa << 13);
    if (exponent == 0) { /* zero and subnormals: mantissa * 2^-24, exact in f32 */
        const float v = (float)mantissa * 0x1p-24f;
        return sign ? -v : v;
    }
    return mox_bits_f32(sign | (exponent + 112u) << 23 | mantissa << 13);
}

uint16_t mox_f32_to_f16(float v)
{
    const uint32_t bits = mox_f32_bits(v), magnitude = bits & 0x7FFFFFFFu;
    const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    if (magnitude > 0x7F800000u) return (uint16_t)(sign | 0x7E00u);
    if (magnitude >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u); /* rounds to 65520 or more */
    if (magnitude < 0x38800000u) { /* subnormal: adding 2^-1 * 2^-13 aligns and rounds to even */
        const float aligned = mox_bits_f32(magnitude) + 0.5f;
        return (uint16_t)(sign | (mox_f32_bits(aligned) - 0x3F000000u));
    }
    const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

float mox_e4m3_to_f32(uint8_t b)
{
    const uint32_t sign = (uint32_t)(b & 0x80u) << 24, magnitude = b & 0x7Fu;
    if (magnitude == 0x7Fu) return NAN;
    if (magnitude < 8) { /* zero and subnormals: steps of 2^-9 */
        const float v = (float)magnitude * 0x1p-9f;
        return sign ? -v : v;
    }
    return mox_bits_f32(sign | (magnitude + (120u << 3)) << 20); /* exponent bias 127 - 7 */
}

float mox_e8m0_to_f32(uint8_t b)
{
    if (b == 255) return NAN;
    return ldexpf(1.0f, (int)b - 127);
}

bool mox_dtype_is_float(mox_dtype t)
{
    return t == MOX_DT_F32 || t == MOX_DT_F16 || t == MOX_DT_BF16 || t == MOX_DT_F8_E4M3 || t == MOX_DT_F8_E8M0;
}

float mox_load_as_f32(const void *base, mox_dtype t, int64_t i)
{
    const uint8_t *p = base;
    switch (t) {
    case MOX_DT_F32: return mox_load_f32(p + i * 4);
    case MOX_DT_F16: return mox_f16_to_f32(mox_load_u16(p + i * 2));
    case MOX_DT_BF16: return mox_bf16_to_f32(mox_load_u16(p + i * 2));
    case MOX_DT_F8_E4M3: return mox_e4m3_to_f32(p[i]);
    case MOX_DT_F8_E8M0: return mox_e8m0_to_f32(p[i]);
    default: return NAN;
    }
}
