/* dev/gpu/deltanet.h -- the gated delta rule and what surrounds it.
 *
 * The recurrence keeps a row of the state in the registers of a wave for all tokens: two lane
 * sums per token, no shared memory, and the state is read and written once. */
#ifndef MOX_DEV_GPU_DELTANET_H
#define MOX_DEV_GPU_DELTANET_H

#include "dev/gpu/norm.h"

enum { GDN_THREADS = 128, GDN_WAVES = GDN_THREADS / GPU_LANES, GDN_PER_LANE = MOX_GPU_GDN_K_DIM / GPU_LANES, CONV_WIDTH = 8 };

GPU_KERNEL(conv1d_silu, 256)
{
    const int64_t c = gpu_group_x() * 256 + gpu_thread(), t = gpu_group_y(), past = p->width - 1;
    if (c >= p->channels) return;
    float sum = 0.0f;
    for (int64_t j = 0; j < p->width; j++) {
        const int64_t row = t + j; /* of [state; x] */
        const float v = row < past ? gpu_load(p->state, row * p->channels + c) : gpu_load(p->x, (row - past) * p->x_stride + c);
        sum += v * stored_number(p->weight.data, (int32_t)p->weight.type, c * p->width + j);
    }
    gpu_store(p->out, t * p->out_stride + c, silu(sum));
}

/* All rows of a channel are read before any is written. */
GPU_KERNEL(conv1d_shift, 256)
{
    const int64_t c = gpu_group_x() * 256 + gpu_thread(), past = p->width - 1;
    if (c >= p->channels) return;
    float v[CONV_WIDTH];
    GPU_UNROLL
    for (int32_t r = 0; r < CONV_WIDTH; r++) {
        const int64_t row = p->n + r;
        v[r] = 0.0f;
        if (r < past) v[r] = row < past ? gpu_load(p->state, row * p->channels + c) : gpu_load(p->x, (row - past) * p->x_stride + c);
    }
    GPU_UNROLL
    for (int32_t r = 0; r < CONV_WIDTH; r++)
        if (r < past) gpu_store(p->state, r * p->channels + c, v[r]);
}

GPU_KERNEL(gdn_qk_norm, GDN_THREADS)
{
    const int32_t lane = gpu_thread() % GPU_LANES;
    const int64_t h = gpu_group_x() * GDN_WAVES + gpu_thread() / GPU_LANES, t = gpu_group_y();
    const bool is_q = gpu_group_z() == 0;
    if (h >= p->heads) return; /* a whole wave, and no barrier follows */
    GPU_GLOBAL(f32) *x = (is_q ? p->q : p->k) + (t * p->stride + h * p->dim);
    const float length = gpu_sqrt(gpu_lane_sum(squares(x, p->dim, lane, GPU_LANES)) + p->eps);
    const float factor = (is_q ? 1.0f / gpu_sqrt((float)p->dim) : 1.0f) / length;
    for (int64_t i = lane; i < p->dim; i += GPU_LANES) gpu_store(x, i, gpu_load(x, i) * factor);
}

GPU_KERNEL(gdn_gates, 256)
{
    const int64_t i = gpu_group_x() * 256 + gpu_thread();
    if (i >= p->n * p->heads) return;
    const int64_t t = i / p->heads, h = i % p->heads;
    const float rate = gpu_exp(stored_number(p->a_log.data, (int32_t)p->a_log.type, h));
    const float x = gpu_load(p->a, t * p->a_stride + h) + stored_number(p->dt_bias.data, (int32_t)p->dt_bias.type, h);
    gpu_store(p->g, i, gpu_exp(-rate * softplus(x)));
    gpu_store(p->beta, i, sigmoid(gpu_load(p->b, t * p->b_stride + h)));
}

GPU_KERNEL(gdn_recurrent, GDN_THREADS)
{
    const int32_t lane = gpu_thread() % GPU_LANES;
    const int64_t v = gpu_group_x() * GDN_WAVES + gpu_thread() / GPU_LANES, h = gpu_group_y();
    const int64_t kh = h / (p->v_heads / p->k_heads), row = h * p->v_dim + v;
    if (v >= p->v_dim) return; /* a whole wave, and no barrier follows */
    float s[GDN_PER_LANE], k[GDN_PER_LANE];
    GPU_UNROLL
    for (int32_t j = 0; j < GDN_PER_LANE; j++) {
        const int64_t i = lane + (int64_t)j * GPU_LANES;
        s[j] = i < p->k_dim ? gpu_load(p->state, row * p->k_dim + i) : 0.0f;
    }
    for (int64_t t = 0; t < p->n; t++) {
        const float g = gpu_load(p->g, t * p->v_heads + h), beta = gpu_load(p->beta, t * p->v_heads + h);
        float seen = 0.0f, out = 0.0f;
        GPU_UNROLL
        for (int32_t j = 0; j < GDN_PER_LANE; j++) {
            const int64_t i = lane + (int64_t)j * GPU_LANES;
            k[j] = i < p->k_dim ? gpu_load(p->k, t * p->k_stride + kh * p->k_dim + i) : 0.0f;
            s[j] *= g;
            seen += s[j] * k[j];
        }
        const float d = beta * (gpu_load(p->v, t * p->v_stride + row) - gpu_lane_sum(seen));
        GPU_UNROLL
        for (int32_t j = 0; j < GDN_PER_LANE; j++) {
            const int64_t i = lane + (int64_t)j * GPU_LANES;
            s[j] += d * k[j];
            if (i < p->k_dim) out += s[j] * gpu_load(p->q, t * p->q_stride + kh * p->k_dim + i);
        }
        out = gpu_lane_sum(out);
        if (lane == 0) gpu_store(p->out, t * p->v_heads * p->v_dim + row, out);
    }
    GPU_UNROLL
    for (int32_t j = 0; j < GDN_PER_LANE; j++) {
        const int64_t i = lane + (int64_t)j * GPU_LANES;
        if (i < p->k_dim) gpu_store(p->state, row * p->k_dim + i, s[j]);
    }
}

#endif
