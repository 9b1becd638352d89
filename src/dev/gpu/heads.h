/* dev/gpu/heads.h -- between the products of a layer and its attention: norms and rotation of heads, and what
 * goes to the caches, in one launch.  A wave takes a head of q, k or v; a lane computes every 32nd
 * element, and finds the partner that rotation wants in shared memory. */
#ifndef MOX_DEV_GPU_HEADS_H
#define MOX_DEV_GPU_HEADS_H

#include "dev/gpu/attention.h"
#include "dev/gpu/norm.h"

/* What is not turned has a zero for a partner, behind the rows of the waves, and -0 for a sine: their product changes nothing. */
enum { HEADS_WAVES = 4, HEADS_THREADS = HEADS_WAVES * GPU_LANES, HEADS_HELD = GAINS_MOST, HEADS_ZERO = HEADS_WAVES * MOX_GPU_HEADS_DIM,
       HEADS_ANGLES = MOX_GPU_HEADS_DIM / 2 };

/* What a lane knows of its elements before q, k and v are there. */
typedef struct heads_factors {
    float gain[HEADS_HELD], cosine[HEADS_HELD], sine[HEADS_HELD]; /* the sine has the partner's sign */
    int32_t partner[HEADS_HELD];                                  /* where the element is that it is turned with */
} heads_factors;
GPU_TYPE(heads_factors, heads_factors);

/* Cosines, and behind them sines, of all angles of a position, which all heads of a group have in common.  A thread takes one of
 * them, so that the way through these functions is gone once. */
GPU_FN void make_turns(const GPU_CONSTANT(mox_gpu_gqa_heads) *p, float pos, GPU_SHARED(f32) *turns, int32_t me)
{
    for (int32_t i = me; i < (int32_t)p->rotary_dim / 2; i += HEADS_THREADS) {
        const float angle = pos * gpu_load(p->inv_freq, i);
        gpu_store(turns, i, gpu_cos(angle) * p->mscale);
        gpu_store(turns, HEADS_ANGLES + i, gpu_sin(angle) * p->mscale);
    }
}

GPU_FN void load_factors(const GPU_CONSTANT(mox_gpu_gqa_heads) *p, mox_gpu_vec weight, bool is_v, const GPU_SHARED(f32) *turns,
                         int32_t lane, int32_t first, GPU_PRIVATE(heads_factors) *f)
{
    const int32_t half_dim = (int32_t)p->rotary_dim / 2, turned = is_v ? 0 : 2 * half_dim;
    load_gains(weight, p->offset, lane, GPU_LANES, is_v ? 0 : p->dim, f->gain);
    GPU_UNROLL
    for (int32_t j = 0; j < HEADS_HELD; j++) {
        const int32_t i = j * GPU_LANES + lane, angle = i < half_dim ? i : i - half_dim;
        if (is_v) f->gain[j] = 1.0f;
        f->cosine[j] = i < turned ? gpu_load(turns, angle) : 1.0f;
        f->sine[j] = i < turned ? gpu_load(turns, HEADS_ANGLES + angle) : -0.0f;
        if (i < half_dim && i < turned) f->sine[j] = -f->sine[j];
        f->partner[j] = i >= turned ? HEADS_ZERO : first + (i < half_dim ? i + half_dim : i - half_dim);
    }
}

/* A head's q stays f32; keys and values go to caches of f32 or f16.  y[j] is element 32 j from `at` on,
 * of n that are there. */
GPU_FN void store_head(const GPU_CONSTANT(mox_gpu_gqa_heads) *p, bool is_q, mox_gpu_cache cache, int64_t at, int32_t n,
                       const GPU_PRIVATE(f32) *y)
{
    if (is_q || cache.type == MOX_GPU_F32) {
        GPU_GLOBAL(f32) *to = is_q ? p->q + at : (GPU_GLOBAL(f32) *)cache.data + at;
        GPU_UNROLL
        for (int32_t j = 0; j < HEADS_HELD; j++)
            if (j * GPU_LANES < n) gpu_store(to, j * GPU_LANES, y[j]);
    } else {
        GPU_GLOBAL(u16) *to = (GPU_GLOBAL(u16) *)cache.data + at;
        GPU_UNROLL
        for (int32_t j = 0; j < HEADS_HELD; j++)
            if (j * GPU_LANES < n) gpu_store(to, j * GPU_LANES, gpu_f32_to_f16(y[j]));
    }
}

/* The norm's factor comes last: partners are exchanged while it is summed. */
GPU_KERNEL_HASTY(gqa_heads, HEADS_THREADS)
{
    GPU_SHARED_ARRAY(f32, rows, HEADS_ZERO + 1);
    GPU_SHARED_ARRAY(f32, turns, 2 * HEADS_ANGLES);
    const int32_t lane = gpu_thread() % GPU_LANES, wave = gpu_thread() / GPU_LANES;
    const int32_t n = (int32_t)p->dim - lane; /* from this lane's first element on */
    const int32_t heads = (int32_t)p->heads, kv_heads = (int32_t)p->kv_heads, n_heads = heads + 2 * kv_heads;
    const int32_t asked = (int32_t)gpu_group_x() * HEADS_WAVES + wave, x = asked < n_heads ? asked : n_heads - 1;
    const bool is_q = x < heads, is_v = x >= heads + kv_heads;
    int64_t i_row = 0;
    const mox_gpu_span s = gpu_load(p->spans, p->single != 0 ? gpu_group_y() : span_of_row(p->spans, gpu_group_y(), &i_row));
    const int64_t row = s.row0 + i_row, h = is_q ? x : is_v ? x - heads - kv_heads : x - heads;
    const int64_t at = (row * (is_q ? heads : kv_heads) + h) * p->dim + lane;
    const GPU_GLOBAL(f32) *from = (is_q ? p->q : is_v ? p->v : p->k) + at;
    const mox_gpu_cache cache = is_v ? p->v_cache : p->k_cache;
    const int64_t to = is_q ? at : cache_offset(cache, s.pages, s.pos0 + i_row, h) + lane;
    const int32_t mine = wave * MOX_GPU_HEADS_DIM;
    heads_factors f;
    make_turns(p, (float)gpu_load(p->pos, row), turns, gpu_thread());
    gpu_barrier();
    load_factors(p, is_q ? p->q_weight : p->k_weight, is_v, turns, lane, mine, &f);
    if (gpu_thread() == 0) gpu_store(rows, HEADS_ZERO, 0.0f);
    gpu_previous(); /* positions and pages are older */
    float v[HEADS_HELD], sum = 0.0f;
    GPU_UNROLL
    for (int32_t j = 0; j < HEADS_HELD; j++) v[j] = j * GPU_LANES < n ? gpu_load(from, j * GPU_LANES) : 0.0f;
    GPU_UNROLL
    for (int32_t j = 0; j < HEADS_HELD; j++) {
        sum += v[j] * v[j];
        v[j] *= f.gain[j];
        gpu_store(rows, mine + j * GPU_LANES + lane, v[j]);
    }
    sum = gpu_lane_sum(sum);
    gpu_barrier();
    if (asked >= n_heads) return; /* no barrier follows */
    GPU_UNROLL
    for (int32_t j = 0; j < HEADS_HELD; j++) v[j] = v[j] * f.cosine[j] + gpu_load(rows, f.partner[j]) * f.sine[j];
    const float factor = is_v ? 1.0f : inverse_rms(sum, p->dim, p->eps);
    GPU_UNROLL
    for (int32_t j = 0; j < HEADS_HELD; j++) v[j] *= factor;
    store_head(p, is_q, cache, to, n, v);
}

#endif
