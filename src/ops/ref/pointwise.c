/* ops/ref/pointwise.c -- element by element; transcendental parts in double. */
#include "ops/kern.h"
#include "ops/ref/math.h"

#include <string.h>

void mox_swiglu_ref(const mox_swiglu_args *a, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++) {
        const float *gate = a->gate + r * a->gate_stride, *up = a->up + r * a->up_stride;
        float *out = a->out + r * a->out_stride;
        for (int64_t i = 0; i < a->dim; i++) out[i] = mox_ref_swiglu(gate[i], up[i]);
    }
}

void mox_sigmoid_gate_ref(const mox_sigmoid_gate_args *a, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) a->x[i] = (float)((double)a->x[i] * mox_ref_sigmoid((double)a->gate[i]));
}

void mox_add_ref(const mox_add_args *a, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) a->out[i] = a->a[i] + a->b[i];
}

/* f32 product, then f32 sum: what a residual_norm with a scale must repeat. */
void mox_scale_add_ref(const mox_scale_add_args *a, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) a->out[i] = a->a[i] + a->b[i] * a->scale[i % a->scale_len];
}

void mox_scaled_add_ref(const mox_scaled_add_args *a, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) a->dst[i] += a->s * a->src[i];
}

void mox_copy_slice_ref(const mox_copy_slice_args *a, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++)
        memcpy(a->dst + r * a->dst_stride, a->src + r * a->src_stride, (size_t)a->cols * sizeof(float));
}

void mox_bf16_to_f32_ref(const mox_bf16_to_f32_args *a, int64_t begin, int64_t end)
{
    const uint8_t *src = a->src;
    for (int64_t i = begin; i < end; i++) a->dst[i] = mox_bf16_to_f32(mox_load_u16(src + i * 2));
}

void mox_f32_to_bf16_ref(const mox_f32_to_bf16_args *a, int64_t begin, int64_t end)
{
    uint8_t *dst = a->dst;
    for (int64_t i = begin; i < end; i++) {
        const uint16_t v = mox_f32_to_bf16(a->src[i]);
        memcpy(dst + i * 2, &v, sizeof v);
    }
}
