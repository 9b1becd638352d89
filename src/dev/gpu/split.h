/* dev/gpu/split.h -- softmax attention of single rows over a long f16 cache: decoding.
 *
 * A group takes a piece of the keys for all query heads that share them (eight at most), so that
 * the cache is read once.  A step has 128 keys, one per thread: each thread makes the scores of
 * its key for all heads; then each wave adds up the values of its 32 keys, a lane some elements.
 * Waves keep sums of their own, joined at the end in the order of the waves.  Everything is f32.
 *
 * Pieces are cut and left as attention.h does it, and attention_merge joins them. */
#ifndef MOX_DEV_GPU_SPLIT_H
#define MOX_DEV_GPU_SPLIT_H

#include "dev/gpu/attention.h"

enum {
    SPLIT_THREADS = 128,
    SPLIT_WAVES = SPLIT_THREADS / GPU_LANES,
    SPLIT_HEADS = MOX_GPU_SPLIT_HEADS,
    SPLIT_WIDEST = 256,
    SPLIT_PART = SPLIT_WIDEST / GPU_LANES /* elements of a lane: 4 or 8 */
};

/* What a thread keeps: sums of its elements, and of each head the wave's maximum and the lane's
 * part of the denominator. */
typedef struct split_state {
    float sum[SPLIT_HEADS * SPLIT_PART];
    float max[SPLIT_HEADS], denom[SPLIT_HEADS];
} split_state;
GPU_TYPE(split_state, split_state);

/* score[h] = queries[h] . key; queries in shared memory, [SPLIT_HEADS, dim]. */
GPU_FN void split_scores(const GPU_GLOBAL(u16) *key, const GPU_SHARED(f32) *queries, int32_t dim, GPU_PRIVATE(f32) *score)
{
    GPU_UNROLL
    for (int32_t h = 0; h < SPLIT_HEADS; h++) score[h] = 0.0f;
    for (int32_t d = 0; d < dim; d += 8) {
        const gpu_quad k = gpu_load_quad(key, d);
        GPU_UNROLL
        for (int32_t h = 0; h < SPLIT_HEADS; h++) {
            GPU_UNROLL
            for (int32_t i = 0; i < 2; i++) {
                const gpu_quad q = gpu_load_quad(queries, h * dim + d + 4 * i);
                GPU_UNROLL
                for (int32_t e = 0; e < 4; e++)
                    score[h] += gpu_bits_f32(q.w[e]) * gpu_f16_to_f32(k.w[2 * i + e / 2] >> (e % 2 * 16) & 0xFFFFu);
            }
        }
    }
}

/* Scores of the wave's keys become weights relative to its maximum. */
GPU_FN void split_weigh(GPU_PRIVATE(split_state) *st, GPU_PRIVATE(f32) *score, int32_t part)
{
    GPU_UNROLL
    for (int32_t h = 0; h < SPLIT_HEADS; h++) {
        const float max = gpu_max(st->max[h], gpu_lane_max(score[h])), shrink = weight_of(st->max[h], max);
        score[h] = weight_of(score[h], max);
        st->denom[h] = st->denom[h] * shrink + score[h];
        st->max[h] = max;
        GPU_UNROLL
        for (int32_t e = 0; e < SPLIT_PART; e++)
            if (e < part) st->sum[h * SPLIT_PART + e] *= shrink;
    }
}

/* sums += weights of one key [SPLIT_HEADS] times this lane's elements of its value. */
GPU_FN void split_add(GPU_PRIVATE(split_state) *st, const GPU_SHARED(f32) *weights, const GPU_GLOBAL(u16) *value, int32_t part,
                      int32_t lane)
{
    float v[SPLIT_PART];
    GPU_UNROLL
    for (int32_t e = 0; e < SPLIT_PART; e += 4) {
        if (e >= part) continue;
        const uint64_t four = gpu_load(GPU_CAST(u64, value), (lane * part + e) / 4);
        GPU_UNROLL
        for (int32_t i = 0; i < 4; i++) v[e + i] = gpu_f16_to_f32((uint32_t)(four >> (16 * i)) & 0xFFFFu);
    }
    GPU_UNROLL
    for (int32_t i = 0; i < SPLIT_HEADS / 4; i++) {
        const gpu_quad w = gpu_load_quad(weights, i * 4);
        GPU_UNROLL
        for (int32_t j = 0; j < 4; j++) {
            GPU_UNROLL
            for (int32_t e = 0; e < SPLIT_PART; e++)
                if (e < part) st->sum[(i * 4 + j) * SPLIT_PART + e] += gpu_bits_f32(w.w[j]) * v[e];
        }
    }
}

/* Joins the waves' sums of one head in `joined`, [waves, v_dim]; every thread gets the maximum and the denominator. */
GPU_FN void split_join(GPU_PRIVATE(split_state) *st, int32_t h, GPU_SHARED(f32) *joined, GPU_SHARED(f32) *scratch, int32_t part, int32_t thread,
                       GPU_PRIVATE(f32) *max, GPU_PRIVATE(f32) *denom)
{
    const int32_t lane = thread % GPU_LANES, wave = thread / GPU_LANES;
    float mine_max = 0.0f, mine_denom = 0.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < SPLIT_HEADS; i++)
        if (i == h) {
            mine_max = st->max[i];
            mine_denom = st->denom[i];
        }
    *max = group_max(mine_max, scratch, thread, SPLIT_THREADS);
    const float shrink = weight_of(mine_max, *max);
    *denom = group_sum(mine_denom * shrink, scratch, thread, SPLIT_THREADS); /* its barriers are behind who read the last head's */
    GPU_UNROLL
    for (int32_t i = 0; i < SPLIT_HEADS; i++) {
        GPU_UNROLL
        for (int32_t e = 0; e < SPLIT_PART; e++)
            if (i == h && e < part) gpu_store(joined, wave * part * GPU_LANES + lane * part + e, st->sum[i * SPLIT_PART + e] * shrink);
    }
    gpu_barrier();
}

GPU_FN float over_waves(const GPU_SHARED(f32) *joined, int64_t v_dim, int64_t d)
{
    float sum = 0.0f;
    for (int32_t w = 0; w < SPLIT_WAVES; w++) sum += gpu_load(joined, w * v_dim + d);
    return sum;
}

GPU_KERNEL(attention_split, SPLIT_THREADS)
{
    GPU_SHARED_ARRAY(f32, queries, SPLIT_HEADS * SPLIT_WIDEST);
    GPU_SHARED_ARRAY(f32, weights, SPLIT_THREADS * SPLIT_HEADS);
    GPU_SHARED_ARRAY(f32, joined, SPLIT_WAVES * SPLIT_WIDEST);
    GPU_SHARED_ARRAY(i64, places, SPLIT_THREADS); /* of values */
    GPU_SHARED_ARRAY(f32, scratch, SPLIT_WAVES);
    const int32_t thread = gpu_thread(), lane = thread % GPU_LANES, wave = thread / GPU_LANES;
    const int32_t dim = (int32_t)p->dim, part = (int32_t)p->v_dim / GPU_LANES;
    const int64_t per_kv = p->heads / p->kv_heads, blocks = (per_kv + SPLIT_HEADS - 1) / SPLIT_HEADS;
    const int64_t kv_head = gpu_group_x() / blocks, head0 = kv_head * per_kv + gpu_group_x() % blocks * SPLIT_HEADS;
    const int64_t n_heads = least(SPLIT_HEADS, (kv_head + 1) * per_kv - head0), i_span = gpu_group_y(), piece = gpu_group_z();
    const mox_gpu_span s = gpu_load(p->spans, i_span);
    if (s.n != 1) return; /* the whole group */
    const key_range keys = keys_of(p, s, 0);
    if (piece >= keys.n_pieces) return; /* the whole group */
    const int64_t first = keys.first + piece * keys.piece_len, last = least(keys.last, first + keys.piece_len);
    const mox_gpu_cache k = p->k, v = p->v;
    for (int32_t i = thread; i < SPLIT_HEADS * dim; i += SPLIT_THREADS) {
        const int64_t h = i / dim;
        gpu_store(queries, i, h < n_heads ? p->scale * gpu_load(p->q, s.row0 * p->q_stride + (head0 + h) * p->q_head_stride + i % dim) : 0.0f);
    }
    split_state st;
    GPU_UNROLL
    for (int32_t i = 0; i < SPLIT_HEADS; i++) {
        st.max[i] = -GPU_INFINITY;
        st.denom[i] = 0.0f;
    }
    GPU_UNROLL
    for (int32_t i = 0; i < SPLIT_HEADS * SPLIT_PART; i++) st.sum[i] = 0.0f;
    gpu_barrier();
    for (int64_t tile = first; tile < last; tile += SPLIT_THREADS) {
        float score[SPLIT_HEADS] = {0.0f};
        const int64_t j = tile + thread;
        const bool there = j < last;
        if (there) split_scores(GPU_CAST(u16, k.data) + cache_offset(k, s.pages, j, kv_head), queries, dim, score);
        GPU_UNROLL
        for (int32_t h = 0; h < SPLIT_HEADS; h++) score[h] = there ? score[h] : -GPU_INFINITY;
        split_weigh(&st, score, part);
        gpu_barrier(); /* who read the last tile's */
        GPU_UNROLL
        for (int32_t h = 0; h < SPLIT_HEADS; h++) gpu_store(weights, thread * SPLIT_HEADS + h, score[h]);
        gpu_store(places, thread, there ? cache_offset(v, s.pages, j, kv_head) : 0);
        gpu_barrier();
        const int32_t n = (int32_t)most(0, least(GPU_LANES, last - tile - wave * GPU_LANES));
        for (int32_t i = 0; i < n; i++) {
            const int32_t key = wave * GPU_LANES + i;
            split_add(&st, weights + key * SPLIT_HEADS, GPU_CAST(u16, v.data) + gpu_load(places, key), part, lane);
        }
    }
    for (int32_t h = 0; h < n_heads; h++) {
        float max, denom;
        split_join(&st, h, joined, scratch, part, thread, &max, &denom);
        const int64_t head = head0 + h;
        if (keys.n_pieces > 1) {
            GPU_GLOBAL(f32) *to = p->parts + part_at(p, i_span, head, piece);
            if (thread == 0) {
                gpu_store(to, 0, max);
                gpu_store(to, 1, denom);
            }
            for (int64_t d = thread; d < p->v_dim; d += SPLIT_THREADS) gpu_store(to, 2 + d, over_waves(joined, p->v_dim, d));
        } else {
            const float sink = sink_of(p, head), top = gpu_max(max, sink), shrink = weight_of(max, top);
            const float all = denom * shrink + weight_of(sink, top);
            for (int64_t d = thread; d < p->v_dim; d += SPLIT_THREADS)
                gpu_store(p->out, out_at(p, s.row0, head) + d, all == 0.0f ? 0.0f : over_waves(joined, p->v_dim, d) * shrink / all);
        }
    }
}

#endif
