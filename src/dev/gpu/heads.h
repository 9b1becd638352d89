/* dev/gpu/heads.h -- between the products of a layer and its attention: norms and rotation of heads, and what
 * goes to the caches, in one launch.  A wave takes a head of q, k or v; a lane computes every 32nd
 * element, and finds the partner that rotation wants in shared memory. */
#ifndef MOX_DEV_GPU_HEADS_H
#define MOX_DEV_GPU_HEADS_H

#include "dev/gpu/attention.h"
#include "dev/gpu/norm.h"

enum { HEADS_WAVES = 4, HEADS_THREADS = HEADS_WAVES * GPU_LANES, HEADS_HELD = MOX_GPU_HEADS_DIM / GPU_LANES };

/* Element i of a normed row, turned by its angle; the first rotary_dim elements are. */
GPU_FN float turned(const GPU_CONSTANT(mox_gpu_gqa_heads) *p, const GPU_SHARED(f32) *row, int64_t i, float pos)
{
    const int64_t half_dim = p->rotary_dim / 2;
    const float v = gpu_load(row, i);
    if (i >= p->rotary_dim) return v;
    const float angle = pos * gpu_load(p->inv_freq, i % half_dim), c = gpu_cos(angle) * p->mscale, s = gpu_sin(angle) * p->mscale;
    return i < half_dim ? v * c - gpu_load(row, i + half_dim) * s : v * c + gpu_load(row, i - half_dim) * s;
}

GPU_KERNEL(gqa_heads, HEADS_THREADS)
{
    GPU_SHARED_ARRAY(f32, rows, HEADS_WAVES * MOX_GPU_HEADS_DIM);
    const int32_t lane = gpu_thread() % GPU_LANES, wave = gpu_thread() / GPU_LANES;
    const int64_t n_heads = p->heads + 2 * p->kv_heads, x = least(gpu_group_x() * HEADS_WAVES + wave, n_heads - 1);
    const bool there = gpu_group_x() * HEADS_WAVES + wave < n_heads, is_q = x < p->heads, is_v = x >= p->heads + p->kv_heads;
    int64_t i_row;
    const mox_gpu_span s = gpu_load(p->spans, span_of_row(p->spans, gpu_group_y(), &i_row));
    const int64_t row = s.row0 + i_row, h = is_q ? x : (x - p->heads) % p->kv_heads;
    const GPU_GLOBAL(f32) *from = is_q ? p->q : is_v ? p->v : p->k;
    const int64_t at = (row * (is_q ? p->heads : p->kv_heads) + h) * p->dim;
    const mox_gpu_vec weight = is_q ? p->q_weight : p->k_weight;
    GPU_SHARED(f32) *mine = rows + wave * MOX_GPU_HEADS_DIM;
    float v[HEADS_HELD], sum = 0.0f;
    GPU_UNROLL
    for (int32_t j = 0; j < HEADS_HELD; j++) {
        const int64_t i = j * GPU_LANES + lane;
        v[j] = i < p->dim ? gpu_load(from, at + i) : 0.0f;
        sum += v[j] * v[j];
    }
    const float factor = inverse_rms(gpu_lane_sum(sum), p->dim, p->eps);
    GPU_UNROLL
    for (int32_t j = 0; j < HEADS_HELD; j++) {
        const int64_t i = j * GPU_LANES + lane;
        if (i < p->dim) gpu_store(mine, i, is_v ? v[j] : v[j] * factor * gain_at(weight, p->offset, i));
    }
    gpu_barrier();
    if (!there) return; /* no barrier follows */
    const float pos = (float)gpu_load(p->pos, row);
    const mox_gpu_cache cache = is_v ? p->v_cache : p->k_cache;
    const int64_t cache_at = is_q ? 0 : cache_offset(cache, s.pages, s.pos0 + i_row, h);
    for (int64_t i = lane; i < p->dim; i += GPU_LANES) {
        const float y = is_v ? gpu_load(mine, i) : turned(p, mine, i, pos);
        if (is_q) gpu_store(p->q, at + i, y);
        else store_cached(cache, cache_at + i, y);
    }
}

#endif
