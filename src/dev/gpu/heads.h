/* dev/gpu/heads.h -- between the products of a layer and its attention: norms and rotation of heads, and what
 * goes to the caches, in one launch.  A wave takes a head of q, k or v; a lane computes every 32nd
 * element, and finds the partner that rotation wants in shared memory. */
#ifndef MOX_DEV_GPU_HEADS_H
#define MOX_DEV_GPU_HEADS_H

#include "dev/gpu/attention.h"
#include "dev/gpu/norm.h"

enum { HEADS_WAVES = 4, HEADS_THREADS = HEADS_WAVES * GPU_LANES, HEADS_HELD = GAINS_MOST };

/* What a lane knows of its elements before q, k and v are there. */
typedef struct heads_factors {
    float gain[HEADS_HELD], cosine[HEADS_HELD], sine[HEADS_HELD]; /* the sine has the partner's sign */
} heads_factors;
GPU_TYPE(heads_factors, heads_factors);

GPU_FN void load_factors(const GPU_CONSTANT(mox_gpu_gqa_heads) *p, mox_gpu_vec weight, bool is_v, float pos, int32_t lane,
                         GPU_PRIVATE(heads_factors) *f)
{
    const int32_t half_dim = (int32_t)p->rotary_dim / 2, turned = is_v ? 0 : 2 * half_dim;
    float freq[HEADS_HELD];
    load_gains(weight, p->offset, lane, GPU_LANES, is_v ? 0 : p->dim, f->gain);
    GPU_UNROLL
    for (int32_t j = 0; j < HEADS_HELD; j++) {
        const int32_t i = j * GPU_LANES + lane;
        freq[j] = i < turned ? gpu_load(p->inv_freq, i < half_dim ? i : i - half_dim) : 0.0f;
    }
    GPU_UNROLL
    for (int32_t j = 0; j < HEADS_HELD; j++) {
        const int32_t i = j * GPU_LANES + lane;
        f->cosine[j] = i < turned ? gpu_cos(pos * freq[j]) * p->mscale : 1.0f;
        f->sine[j] = i < turned ? gpu_sin(pos * freq[j]) * (i < half_dim ? -p->mscale : p->mscale) : 0.0f;
    }
}

/* The element that i is turned with; itself where it is not turned. */
GPU_FN int32_t partner_of(int32_t i, int32_t half_dim)
{
    if (i >= 2 * half_dim) return i;
    return i < half_dim ? i + half_dim : i - half_dim;
}

GPU_KERNEL_HASTY(gqa_heads, HEADS_THREADS)
{
    GPU_SHARED_ARRAY(f32, rows, HEADS_WAVES * MOX_GPU_HEADS_DIM);
    const int32_t lane = gpu_thread() % GPU_LANES, wave = gpu_thread() / GPU_LANES;
    const int32_t heads = (int32_t)p->heads, kv_heads = (int32_t)p->kv_heads, n_heads = heads + 2 * kv_heads;
    const int32_t asked = (int32_t)gpu_group_x() * HEADS_WAVES + wave, x = asked < n_heads ? asked : n_heads - 1;
    const bool is_q = x < heads, is_v = x >= heads + kv_heads;
    int64_t i_row;
    const mox_gpu_span s = gpu_load(p->spans, span_of_row(p->spans, gpu_group_y(), &i_row));
    const int64_t row = s.row0 + i_row, h = is_q ? x : is_v ? x - heads - kv_heads : x - heads;
    const mox_gpu_cache cache = is_v ? p->v_cache : p->k_cache;
    const int64_t cache_at = is_q ? 0 : cache_offset(cache, s.pages, s.pos0 + i_row, h);
    heads_factors f;
    load_factors(p, is_q ? p->q_weight : p->k_weight, is_v, (float)gpu_load(p->pos, row), lane, &f);
    gpu_previous(); /* positions and pages are older */
    const GPU_GLOBAL(f32) *from = is_q ? p->q : is_v ? p->v : p->k;
    const int64_t at = (row * (is_q ? heads : kv_heads) + h) * p->dim;
    GPU_SHARED(f32) *mine = rows + wave * MOX_GPU_HEADS_DIM;
    float v[HEADS_HELD], sum = 0.0f;
    GPU_UNROLL
    for (int32_t j = 0; j < HEADS_HELD; j++)
        v[j] = j * GPU_LANES + lane < p->dim ? gpu_load(from, at + j * GPU_LANES + lane) : 0.0f;
    GPU_UNROLL
    for (int32_t j = 0; j < HEADS_HELD; j++) sum += v[j] * v[j];
    const float factor = inverse_rms(gpu_lane_sum(sum), p->dim, p->eps);
    GPU_UNROLL
    for (int32_t j = 0; j < HEADS_HELD; j++) {
        v[j] = is_v ? v[j] : v[j] * factor * f.gain[j];
        if (j * GPU_LANES + lane < p->dim) gpu_store(mine, j * GPU_LANES + lane, v[j]);
    }
    gpu_barrier();
    if (asked >= n_heads) return; /* no barrier follows */
    GPU_UNROLL
    for (int32_t j = 0; j < HEADS_HELD; j++) {
        const int32_t i = j * GPU_LANES + lane;
        if (i >= p->dim) continue;
        const float partner = gpu_load(mine, partner_of(i, is_v ? 0 : (int32_t)p->rotary_dim / 2));
        const float y = f.sine[j] == 0.0f ? v[j] * f.cosine[j] : v[j] * f.cosine[j] + partner * f.sine[j];
        if (is_q) gpu_store(p->q, at + i, y);
        else store_cached(cache, cache_at + i, y);
    }
}

#endif
