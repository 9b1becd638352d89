/* dev/gpu/gdn_step.h -- the gated delta rule for one token: decoding.
 *
 * What deltanet.h does in six launches is two here: the convolution with its state, the norms of q and k and the gates, a group
 * per head; then recurrence and gated norm, a group per head of v.  The states of both are what the
 * last token left, and z is older than gdn_mix, so they are asked for before the launch in front has ended. */
#ifndef MOX_DEV_GPU_GDN_STEP_H
#define MOX_DEV_GPU_GDN_STEP_H

#include "dev/gpu/deltanet.h"

/* Eight lanes share a row of the state, each with every eighth quad; a thread has two rows. */
enum { MIX_THREADS = MOX_GPU_GDN_STEP_DIM, STEP_THREADS = 512, STEP_WAVES = STEP_THREADS / GPU_LANES, STEP_SHARE = 8,
       STEP_QUADS = MOX_GPU_GDN_STEP_DIM / 4 / STEP_SHARE, STEP_HELD = 4 * STEP_QUADS,
       STEP_ROWS = MOX_GPU_GDN_STEP_DIM * STEP_SHARE / STEP_THREADS };

/* A thread has a channel: asks for its past and its taps, then convolves, and its state moves on by one.  Not hasty, as gdn_step reads z,
 * which is older than this, before it waits. */
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

/* What a lane has of a row: every STEP_SHAREth quad from `row` on, of which `left` numbers are there; zeros behind them. */
GPU_FN void load_part(const GPU_GLOBAL(f32) *row, int32_t left, GPU_PRIVATE(f32) *v)
{
    GPU_UNROLL
    for (int32_t j = 0; j < STEP_QUADS; j++) {
        gpu_quad four = {{0u, 0u, 0u, 0u}};
        if (4 * STEP_SHARE * j < left) four = gpu_load_quad(row, 4 * STEP_SHARE * j);
        GPU_UNROLL
        for (int32_t e = 0; e < 4; e++) v[4 * j + e] = gpu_bits_f32(four.w[e]);
    }
}

/* Over the lanes that share a row. */
GPU_FN float row_sum(float v, int32_t lane)
{
    GPU_UNROLL
    for (int32_t m = 1; m < STEP_SHARE; m *= 2) v += gpu_shuffle(v, lane ^ m);
    return v;
}

/* With S the state as it was, out = (g S + d k^T) q = g S q + (k . q) d: all sums at once. */
GPU_KERNEL_HASTY(gdn_step, STEP_THREADS)
{
    GPU_SHARED_ARRAY(f32, scratch, STEP_WAVES);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, part = me % STEP_SHARE;
    const int32_t v_dim = (int32_t)p->v_dim, k_dim = (int32_t)p->k_dim, h = (int32_t)gpu_group_x(), left = k_dim - 4 * part;
    const int32_t kh = h / ((int32_t)p->v_heads / (int32_t)p->k_heads), key = (int32_t)p->k_heads * k_dim, first = h * v_dim;
    const GPU_GLOBAL(f32) *queries = p->mixed + (kh * k_dim + 4 * part), *keys = queries + key;
    float s[STEP_ROWS][STEP_HELD], k[STEP_HELD], q[STEP_HELD], v[STEP_ROWS], open[STEP_ROWS], sk[STEP_ROWS], sq[STEP_ROWS];
    int32_t row[STEP_ROWS]; /* of all heads; the last one again where there is none */
    bool there[STEP_ROWS];
    GPU_UNROLL
    for (int32_t r = 0; r < STEP_ROWS; r++) {
        const int32_t mine = (r * STEP_THREADS + me) / STEP_SHARE;
        there[r] = mine < v_dim;
        row[r] = first + (there[r] ? mine : v_dim - 1);
        load_part(p->state + ((int64_t)row[r] * k_dim + 4 * part), there[r] ? left : 0, s[r]);
        open[r] = silu(gpu_load(p->z, row[r])) * gain_at(p->norm, 0.0f, row[r] - first);
    }
    gpu_previous(); /* for gdn_mix: z is older */
    load_part(keys, left, k);
    load_part(queries, left, q);
    const float g = gpu_load(p->g, h), beta = gpu_load(p->beta, h);
    GPU_UNROLL
    for (int32_t r = 0; r < STEP_ROWS; r++) {
        v[r] = gpu_load(p->mixed, 2 * key + row[r]);
        sk[r] = sq[r] = 0.0f;
    }
    float kq = 0.0f, squared = 0.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < STEP_HELD; i++) {
        kq += k[i] * q[i];
        GPU_UNROLL
        for (int32_t r = 0; r < STEP_ROWS; r++) {
            sk[r] += s[r][i] * k[i];
            sq[r] += s[r][i] * q[i];
        }
    }
    kq = row_sum(kq, lane);
    GPU_UNROLL
    for (int32_t r = 0; r < STEP_ROWS; r++) {
        v[r] = beta * (v[r] - g * row_sum(sk[r], lane)); /* d */
        sq[r] = g * row_sum(sq[r], lane) + v[r] * kq;    /* what comes out */
        squared += there[r] && part == 0 ? sq[r] * sq[r] : 0.0f;
    }
    GPU_UNROLL
    for (int32_t r = 0; r < STEP_ROWS; r++) {
        GPU_UNROLL
        for (int32_t j = 0; j < STEP_QUADS; j++) {
            gpu_quad four;
            GPU_UNROLL
            for (int32_t e = 0; e < 4; e++) four.w[e] = gpu_f32_bits(g * s[r][4 * j + e] + v[r] * k[4 * j + e]);
            if (there[r] && 4 * STEP_SHARE * j < left)
                gpu_store_quad(p->state, (int64_t)row[r] * k_dim + (4 * part + 4 * STEP_SHARE * j), four);
        }
    }
    squared = gpu_lane_sum(squared);
    if (lane == 0) gpu_store(scratch, me / GPU_LANES, squared);
    gpu_barrier();
    squared = 0.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < STEP_WAVES; i++) squared += gpu_load(scratch, i);
    const float factor = inverse_rms(squared, v_dim, p->eps);
    GPU_UNROLL
    for (int32_t r = 0; r < STEP_ROWS; r++)
        if (part == 0 && there[r]) gpu_store(p->out, row[r], sq[r] * factor * open[r]);
}

#endif
