/* ops/ref/rope.c -- reference kernels of the rotations: the angle is a product in
 * f32, its sine and cosine and the rotation itself are double. */
#include "ops/kern.h"

#include "ops/ref/rms.h"

#include <assert.h>
#include <string.h>

void mox_rope_ref(const mox_rope_args *a, int64_t begin, int64_t end)
{
    assert(a->rotary_dim % 2 == 0);
    const int64_t half = a->rotary_dim / 2;
    const bool interleaved = a->pairing == MOX_ROPE_INTERLEAVED;
    for (int64_t t = begin; t < end; t++) {
        const float pos = (float)a->pos[t * a->pos_stride];
        for (int64_t i = 0; i < half; i++) {
            const float angle = pos * a->inv_freq[i];
            const double c = cos((double)angle) * (double)a->mscale;
            const double s = sin((double)angle) * (double)a->mscale;
            float *x0 = a->x + t * a->stride + (interleaved ? 2 * i : i);
            float *x1 = interleaved ? x0 + 1 : x0 + half;
            for (int64_t h = 0; h < a->heads; h++, x0 += a->head_stride, x1 += a->head_stride) {
                const double v0 = (double)*x0, v1 = (double)*x1;
                *x0 = (float)(v0 * c - v1 * s);
                *x1 = (float)(v1 * c + v0 * s);
            }
        }
    }
}

static void rotate_row(const mox_qk_norm_rope_args *a, const float *in, int64_t pos, float *out)
{
    const bool norm = a->mode == MOX_QK_NORM_ROPE, interleaved = a->mode == MOX_QK_ROPE_INTERLEAVED;
    const double inv_rms = norm ? mox_ref_inv_rms(in, a->dim, a->eps) : 1.0;
    const int64_t half = a->dim / 2;
    for (int64_t i = 0; i < half; i++) {
        const int64_t i0 = interleaved ? 2 * i : i, i1 = interleaved ? i0 + 1 : i + half;
        const double c = (double)a->cos[pos * half + i], s = (double)a->sin[pos * half + i];
        double v0 = (double)in[i0], v1 = (double)in[i1];
        if (norm) {
            v0 *= inv_rms * mox_ref_gain(&a->weight, a->offset, i0);
            v1 *= inv_rms * mox_ref_gain(&a->weight, a->offset, i1);
        }
        out[i0] = (float)(v0 * c - v1 * s);
        out[i1] = (float)(v1 * c + v0 * s);
    }
}

void mox_qk_norm_rope_ref(const mox_qk_norm_rope_args *a, int64_t begin, int64_t end)
{
    assert(a->mode == MOX_QK_COPY || (a->dim % 2 == 0 && a->pos_offset + a->n <= a->n_positions));
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t h = unit / a->n, t = unit % a->n;
        const float *in = a->in + (t * a->heads + h) * a->dim;
        float *out = a->out + unit * a->dim;
        if (a->mode == MOX_QK_COPY) memcpy(out, in, (size_t)a->dim * sizeof *out);
        else rotate_row(a, in, a->pos_offset + t, out);
    }
}
