/* ops/simd/norm.c -- root-mean-square norms, for one level. */
#include "ops/kern.h"
#include "ops/simd/rms.h"

#include <assert.h>

void MOX_AT(mox_rms_norm)(const mox_rms_norm_args *a, int64_t begin, int64_t end)
{
    assert(a->dim > 0 && a->heads > 0);
    int64_t t = begin / a->heads, h = begin % a->heads;
    for (int64_t row = begin; row < end; row++) {
        const float *x = a->x + t * a->x_stride + h * a->x_head_stride;
        float *out = a->out + t * a->out_stride + h * a->out_head_stride;
        rms_row(x, sum_of_squares(x, a->dim), a->dim, &a->weight, a->offset, a->eps, out);
        if (++h == a->heads) t++, h = 0;
    }
}

/* res = a + b * scale for elements [i, i + n), n <= LANES: the operations of add and scale_add. */
ALWAYS_INLINE vf residual(const mox_residual_norm_args *a, int64_t i, int64_t n)
{
    vf b = vf_load_n(a->b + i, n);
    if (a->scale) {
        float scale[LANES];
        const int64_t at = i % a->scale_len;
        if (at + n <= a->scale_len) {
            b = vf_mul(b, vf_load_n(a->scale + at, n));
        } else {
            for (int64_t j = 0; j < LANES; j++) scale[j] = a->scale[(i + j) % a->scale_len];
            b = vf_mul(b, vf_load(scale));
        }
    }
    const vf res = vf_add(vf_load_n(a->a + i, n), b);
    vf_store_n(a->res + i, res, n);
    return res;
}

void MOX_AT(mox_residual_norm)(const mox_residual_norm_args *a, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++) {
        const int64_t first = row * a->dim;
        square_sum s = square_sum_begin();
        int64_t i = 0;
        for (; i + 4 * LANES <= a->dim; i += 4 * LANES)
            for (int j = 0; j < 4; j++) square_sum_add(&s, j, residual(a, first + i + j * LANES, LANES));
        for (; i < a->dim; i += LANES) square_sum_add(&s, 0, residual(a, first + i, a->dim - i < LANES ? a->dim - i : LANES));
        rms_row(a->res + first, square_sum_end(&s), a->dim, &a->weight, a->offset, a->eps, a->norm + first);
    }
}

ALWAYS_INLINE void gated_step(mox_dtype type, const float *x, const float *z, const uint8_t *weight, vf inv, float *out,
                              int64_t i, int64_t n)
{
    const vf v = vf_mul(vf_mul(vf_load_n(x + i, n), inv), load_gain(weight, type, 0, i, n));
    vf_store_n(out + i, vf_mul(v, vf_silu(vf_load_n(z + i, n))), n);
}

ALWAYS_INLINE void gated_row(mox_dtype type, const float *x, const float *z, int64_t n, const uint8_t *weight, float inv_rms,
                             float *out)
{
    const vf inv = vf_set(inv_rms);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) gated_step(type, x, z, weight, inv, out, i, LANES);
    if (i < n) gated_step(type, x, z, weight, inv, out, i, n - i);
}

void MOX_AT(mox_gated_rms_norm)(const mox_gated_rms_norm_args *a, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++) {
        const float *x = a->x + row * a->dim, *z = a->z + row * a->dim;
        const float mean = sum_of_squares(x, a->dim) / (float)a->dim + a->eps;
        if (!rms_in_range(mean) || !gain_is_common(a->weight.type)) {
            mox_gated_rms_norm_ref(a, row, row + 1);
            continue;
        }
#define CALL(type) gated_row(type, x, z, a->dim, a->weight.data, 1 / sqrtf(mean), a->out + row * a->dim)
        SWITCH_GAIN(a->weight.type, CALL)
#undef CALL
    }
}
