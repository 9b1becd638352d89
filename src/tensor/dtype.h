/* tensor/dtype.h -- element types of stored tensors, and conversion of single
 * numbers.  One definition for every module and every device. */
#ifndef MOX_TENSOR_DTYPE_H
#define MOX_TENSOR_DTYPE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* X(enumerator, name in safetensors files, bits per element) */
#define MOX_DTYPE_LIST(X)                                                      \
    X(BOOL, "BOOL", 8) X(U8, "U8", 8) X(I8, "I8", 8) X(I16, "I16", 16)         \
    X(U16, "U16", 16) X(F16, "F16", 16) X(BF16, "BF16", 16) X(I32, "I32", 32)  \
    X(U32, "U32", 32) X(F32, "F32", 32) X(I64, "I64", 64) X(U64, "U64", 64)    \
    X(F64, "F64", 64) X(F8_E4M3, "F8_E4M3", 8) X(F8_E5M2, "F8_E5M2", 8)        \
    X(F8_E8M0, "F8_E8M0", 8) X(C64, "C64", 64)

typedef enum mox_dtype {
    MOX_DT_NONE = 0,
#define MOX_DTYPE_ENUM(id, name, bits) MOX_DT_##id,
    MOX_DTYPE_LIST(MOX_DTYPE_ENUM)
#undef MOX_DTYPE_ENUM
        MOX_DT_COUNT
} mox_dtype;

const char *mox_dtype_name(mox_dtype t);      /* "BF16"; "?" for anything else */
int mox_dtype_bytes(mox_dtype t);             /* 0 for anything else */
mox_dtype mox_dtype_parse(const char *name);  /* MOX_DT_NONE when unknown */

/* Loads from any address: tensors in files start at odd offsets. */
static inline uint16_t mox_load_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint32_t mox_load_u32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline float mox_load_f32(const void *p)
{
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float mox_bits_f32(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
static inline uint32_t mox_f32_bits(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* Exact. */
static inline float mox_bf16_to_f32(uint16_t h) { return mox_bits_f32((uint32_t)h << 16); }

/* Round to nearest even; a NaN stays a (quiet) NaN. */
static inline uint16_t mox_f32_to_bf16(float v)
{
    const uint32_t bits = mox_f32_bits(v);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((bits >> 16) | 0x0040u);
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

float mox_f16_to_f32(uint16_t h);    /* exact */
uint16_t mox_f32_to_f16(float v);    /* round to nearest even */
float mox_e4m3_to_f32(uint8_t b);    /* OCP e4m3fn: no infinities, 0x7F and 0xFF are NaN */
float mox_e8m0_to_f32(uint8_t b);    /* 2^(b-127); 255 is NaN */

/* Element i of an array of floating type t (F32 F16 BF16 F8_E4M3 F8_E8M0) at any
 * address.  Other types give NaN: callers check types when they bind. */
float mox_load_as_f32(const void *base, mox_dtype t, int64_t i);
bool mox_dtype_is_float(mox_dtype t); /* one that mox_load_as_f32 reads */

#endif
