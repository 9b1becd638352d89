/* dev/gpu/gdn_step.h -- the gated delta rule for one token: decoding.
 *
 * What deltanet.h does in six launches is two here: the convolution with its state and the norms of q and k, a wave per
 * head; then gates, recurrence and gated norm, a group per head of v.  The states of both are what the
 * last token left, so they are asked for before the launch in front has ended. */
#ifndef MOX_DEV_GPU_GDN_STEP_H
#define MOX_DEV_GPU_GDN_STEP_H

#include "dev/gpu/deltanet.h"

enum { MIX_WAVES = 2, MIX_THREADS = MIX_WAVES * GPU_LANES, STEP_WAVES = 32, STEP_THREADS = STEP_WAVES * GPU_LANES,
       STEP_PARTS = MOX_GPU_GDN_STEP_DIM / GPU_LANES, STEP_ROWS = MOX_GPU_GDN_STEP_DIM / STEP_WAVES };

/* A channel of the convolution: what the taps are for and what they weigh. */
typedef struct mix_channel {
    float past[CONV_WIDTH - 1], tap[CONV_WIDTH];
} mix_channel;
GPU_TYPE(mix_channel, mix_channel);

GPU_FN void mix_load(const GPU_CONSTANT(mox_gpu_gdn_mix) *p, int64_t c, GPU_PRIVATE(mix_channel) *m)
{
    load_gains(p->weight, 0.0f, c * p->width, 1, (c + 1) * p->width, m->tap);
    GPU_UNROLL
    for (int32_t r = 0; r < CONV_WIDTH - 1; r++) m->past[r] = r + 1 < p->width ? gpu_load(p->state, r * p->channels + c) : 0.0f;
}

/* The convolution of channel c, whose state moves on by one. */
GPU_FN float mix_channel_of(const GPU_CONSTANT(mox_gpu_gdn_mix) *p, int64_t c, const GPU_PRIVATE(mix_channel) *m)
{
    const float x = gpu_load(p->x, c);
    float sum = 0.0f;
    GPU_UNROLL
    for (int32_t r = 0; r < CONV_WIDTH; r++) {
        if (r >= p->width) continue;
        const bool is_last = r + 1 == p->width;
        sum += (is_last || r == CONV_WIDTH - 1 ? x : m->past[r % (CONV_WIDTH - 1)]) * m->tap[r];
        if (r > 0) gpu_store(p->state, (r - 1) * p->channels + c, is_last || r == CONV_WIDTH - 1 ? x : m->past[r % (CONV_WIDTH - 1)]);
    }
    return silu(sum);
}

GPU_KERNEL_EARLY(gdn_mix, MIX_THREADS)
{
    const int32_t lane = gpu_thread() % GPU_LANES;
    const int64_t job = gpu_group_x() * MIX_WAVES + gpu_thread() / GPU_LANES;
    const bool is_q = job < p->k_heads, is_v = job >= 2 * p->k_heads, there = job < 2 * p->k_heads + p->v_heads;
    const int64_t dim = is_v ? p->v_dim : p->k_dim;
    const int64_t first = is_v ? 2 * p->k_heads * p->k_dim + (job - 2 * p->k_heads) * dim : job * dim;
    mix_channel m[STEP_PARTS];
    float v[STEP_PARTS], sum = 0.0f;
    GPU_UNROLL
    for (int32_t j = 0; j < STEP_PARTS; j++)
        if (there && j * GPU_LANES + lane < dim) mix_load(p, first + j * GPU_LANES + lane, &m[j]);
    gpu_previous();
    if (!there) return; /* a whole wave, and no barrier follows */
    GPU_UNROLL
    for (int32_t j = 0; j < STEP_PARTS; j++) {
        v[j] = j * GPU_LANES + lane < dim ? mix_channel_of(p, first + j * GPU_LANES + lane, &m[j]) : 0.0f;
        sum += v[j] * v[j];
    }
    const float length = gpu_sqrt(gpu_lane_sum(sum) + p->eps);
    const float factor = is_v ? 1.0f : (is_q ? 1.0f / gpu_sqrt((float)dim) : 1.0f) / length;
    GPU_UNROLL
    for (int32_t j = 0; j < STEP_PARTS; j++)
        if (j * GPU_LANES + lane < dim) gpu_store(p->out, first + j * GPU_LANES + lane, v[j] * factor);
}

/* A wave has some rows of the state of a head. */
GPU_KERNEL_EARLY(gdn_step, STEP_THREADS)
{
    GPU_SHARED_ARRAY(f32, scratch, STEP_WAVES);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, wave = me / GPU_LANES;
    const int64_t h = gpu_group_x(), kh = (int32_t)h / ((int32_t)p->v_heads / (int32_t)p->k_heads), key = p->k_heads * p->k_dim;
    float s[STEP_ROWS][STEP_PARTS], k[STEP_PARTS], q[STEP_PARTS], out[STEP_ROWS], squared = 0.0f;
    GPU_UNROLL
    for (int32_t r = 0; r < STEP_ROWS; r++) {
        GPU_UNROLL
        for (int32_t j = 0; j < STEP_PARTS; j++) {
            const int64_t row = r * STEP_WAVES + wave, i = j * GPU_LANES + lane;
            s[r][j] = row < p->v_dim && i < p->k_dim ? gpu_load(p->state, (h * p->v_dim + row) * p->k_dim + i) : 0.0f;
        }
    }
    const float rate = gpu_exp(stored_number(p->a_log.data, (int32_t)p->a_log.type, h));
    const float dt_bias = stored_number(p->dt_bias.data, (int32_t)p->dt_bias.type, h);
    const int64_t mine = least(lane * STEP_WAVES + wave, p->v_dim - 1); /* of the head: the row that this lane stores, if it stores one */
    const float gain = gain_at(p->norm, 0.0f, mine);
    gpu_previous();
    GPU_UNROLL
    for (int32_t j = 0; j < STEP_PARTS; j++) {
        const int64_t i = j * GPU_LANES + lane;
        q[j] = i < p->k_dim ? gpu_load(p->mixed, kh * p->k_dim + i) : 0.0f;
        k[j] = i < p->k_dim ? gpu_load(p->mixed, key + kh * p->k_dim + i) : 0.0f;
    }
    const float z = gpu_load(p->z, h * p->v_dim + mine);
    const float g = gpu_exp(-rate * softplus(gpu_load(p->a, h) + dt_bias)), beta = sigmoid(gpu_load(p->b, h));
    GPU_UNROLL
    for (int32_t r = 0; r < STEP_ROWS; r++) {
        const int64_t row = r * STEP_WAVES + wave;
        float seen = 0.0f;
        out[r] = 0.0f;
        GPU_UNROLL
        for (int32_t j = 0; j < STEP_PARTS; j++) {
            s[r][j] *= g;
            seen += s[r][j] * k[j];
        }
        const float d = beta * (gpu_load(p->mixed, 2 * key + h * p->v_dim + least(row, p->v_dim - 1)) - gpu_lane_sum(seen));
        GPU_UNROLL
        for (int32_t j = 0; j < STEP_PARTS; j++) {
            s[r][j] += d * k[j];
            out[r] += s[r][j] * q[j];
        }
        out[r] = row < p->v_dim ? gpu_lane_sum(out[r]) : 0.0f; /* the same in a wave */
        squared += out[r] * out[r];
    }
    if (lane == 0) gpu_store(scratch, wave, squared);
    gpu_barrier();
    const float factor = inverse_rms(gpu_lane_sum(gpu_load(scratch, lane)), p->v_dim, p->eps);
    GPU_UNROLL
    for (int32_t r = 0; r < STEP_ROWS; r++) {
        const int64_t row = r * STEP_WAVES + wave;
        if (lane == r && row < p->v_dim) gpu_store(p->out, h * p->v_dim + row, out[r] * factor * gain * silu(z));
        GPU_UNROLL
        for (int32_t j = 0; j < STEP_PARTS; j++) {
            const int64_t i = j * GPU_LANES + lane;
            if (row < p->v_dim && i < p->k_dim) gpu_store(p->state, (h * p->v_dim + row) * p->k_dim + i, s[r][j]);
        }
    }
}

#endif
