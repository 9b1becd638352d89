/* dev/gpu/gdn_step.h -- the gated delta rule for one token: decoding.
 *
 * What deltanet.h does in six launches is two here: the convolution with its state, the norms of q and k and the gates, a group
 * per head; then recurrence and gated norm, a group per head of v.  The states of both are what the
 * last token left, so they are asked for before the launch in front has ended. */
#ifndef MOX_DEV_GPU_GDN_STEP_H
#define MOX_DEV_GPU_GDN_STEP_H

#include "dev/gpu/deltanet.h"

enum { MIX_THREADS = MOX_GPU_GDN_STEP_DIM, STEP_WAVES = 32, STEP_THREADS = STEP_WAVES * GPU_LANES,
       STEP_PARTS = MOX_GPU_GDN_STEP_DIM / GPU_LANES, STEP_ROWS = MOX_GPU_GDN_STEP_DIM / STEP_WAVES };

/* A thread has a channel: asks for its past and its taps, then convolves, and its state moves on by one. */
GPU_KERNEL_EARLY(gdn_mix, MIX_THREADS)
{
    GPU_SHARED_ARRAY(f32, scratch, MIX_THREADS / GPU_LANES);
    const int32_t me = gpu_thread(), width = (int32_t)p->width;
    const int64_t job = gpu_group_x(), v_head = job - 2 * p->k_heads;
    const bool is_q = job < p->k_heads, is_v = v_head >= 0;
    const int64_t dim = is_v ? p->v_dim : p->k_dim, c = (is_v ? 2 * p->k_heads * p->k_dim + v_head * dim : job * dim) + me;
    const bool there = me < dim;
    float past[CONV_WIDTH], tap[CONV_WIDTH], sum = 0.0f, rate = 0.0f, dt_bias = 0.0f;
    load_gains(p->weight, 0.0f, c * width, 1, there ? (c + 1) * width : 0, tap);
    GPU_UNROLL
    for (int32_t r = 0; r < CONV_WIDTH; r++) past[r] = there && r + 1 < width ? gpu_load(p->state, r * p->channels + c) : 0.0f;
    if (is_v && me == 0) {
        rate = gpu_exp(stored_number(p->a_log.data, (int32_t)p->a_log.type, v_head));
        dt_bias = stored_number(p->dt_bias.data, (int32_t)p->dt_bias.type, v_head);
    }
    gpu_previous();
    const float x = there ? gpu_load(p->x, c) : 0.0f;
    GPU_UNROLL
    for (int32_t r = 0; r < CONV_WIDTH; r++) {
        if (r >= width) continue;
        const float seen = r + 1 == width ? x : past[r];
        sum += seen * tap[r];
        if (r > 0 && there) gpu_store(p->state, (r - 1) * p->channels + c, seen);
    }
    const float mixed = there ? silu(sum) : 0.0f;
    float factor = 1.0f;
    if (!is_v) { /* the whole group */
        const float length = gpu_sqrt(group_sum(mixed * mixed, scratch, me, MIX_THREADS) + p->eps);
        factor = (is_q ? 1.0f / gpu_sqrt((float)dim) : 1.0f) / length;
    }
    if (there) gpu_store(p->out, c, mixed * factor);
    if (is_v && me == 0) {
        gpu_store(p->g, v_head, gpu_exp(-rate * softplus(gpu_load(p->a, v_head) + dt_bias)));
        gpu_store(p->beta, v_head, sigmoid(gpu_load(p->b, v_head)));
    }
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
    const float g = gpu_load(p->g, h), beta = gpu_load(p->beta, h);
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
    const float open = silu(z);
    if (lane == 0) gpu_store(scratch, wave, squared);
    gpu_barrier();
    const float factor = inverse_rms(gpu_lane_sum(gpu_load(scratch, lane)), p->v_dim, p->eps);
    GPU_UNROLL
    for (int32_t r = 0; r < STEP_ROWS; r++) {
        const int64_t row = r * STEP_WAVES + wave;
        if (lane == r && row < p->v_dim) gpu_store(p->out, h * p->v_dim + row, out[r] * factor * gain * open);
        GPU_UNROLL
        for (int32_t j = 0; j < STEP_PARTS; j++) {
            const int64_t i = j * GPU_LANES + lane;
            if (row < p->v_dim && i < p->k_dim) gpu_store(p->state, (h * p->v_dim + row) * p->k_dim + i, s[r][j]);
        }
    }
}

#endif
