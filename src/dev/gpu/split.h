/* dev/gpu/split.h -- softmax attention of single rows over a long f16 cache: decoding.
 *
 * A group takes a piece of the keys for all query heads that share them (eight at most), so that
 * the cache is read once.  A step has 128 keys, one per thread: each thread makes the scores of
 * its key for all heads; then each wave adds up the values of its 32 keys, a lane some elements.
 * What is read is asked for many loads ahead: nothing else hides that memory is far.  Waves keep
 * sums of their own, joined at the end in the order of the waves.  Everything is f32.
 *
 * Pieces are cut and left as attention.h does it; attention_join makes rows of them. */
#ifndef MOX_DEV_GPU_SPLIT_H
#define MOX_DEV_GPU_SPLIT_H

#include "dev/gpu/attention.h"

enum {
    SPLIT_THREADS = 128,
    SPLIT_WAVES = SPLIT_THREADS / GPU_LANES,
    SPLIT_HEADS = MOX_GPU_SPLIT_HEADS,
    SPLIT_WIDEST = 256,
    SPLIT_PART = SPLIT_WIDEST / GPU_LANES, /* elements of a lane: 4 or 8 */
    SPLIT_AHEAD = 8                        /* quads of a key, or values, that are asked for at once */
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
    for (int32_t d0 = 0; d0 < dim; d0 += SPLIT_AHEAD * 8) {
        gpu_quad k[SPLIT_AHEAD];
        GPU_UNROLL
        for (int32_t j = 0; j < SPLIT_AHEAD; j++) k[j] = gpu_load_quad(key, d0 + j * 8);
        GPU_UNROLL
        for (int32_t j = 0; j < SPLIT_AHEAD * 2; j++) {
            float v[4];
            GPU_UNROLL
            for (int32_t e = 0; e < 4; e++) v[e] = gpu_f16_to_f32(k[j / 2].w[j % 2 * 2 + e / 2] >> (e % 2 * 16) & 0xFFFFu);
            GPU_UNROLL
            for (int32_t h = 0; h < SPLIT_HEADS; h++) {
                const gpu_quad q = gpu_load_quad(queries, h * dim + d0 + j * 4);
                GPU_UNROLL
                for (int32_t e = 0; e < 4; e++) score[h] += gpu_bits_f32(q.w[e]) * v[e];
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

/* sums += weights of one key [SPLIT_HEADS] times four of the lane's elements of its value, from e0 on. */
GPU_FN void split_add(GPU_PRIVATE(split_state) *st, const GPU_SHARED(f32) *weights, uint64_t four, int32_t e0)
{
    GPU_UNROLL
    for (int32_t h = 0; h < SPLIT_HEADS; h++) {
        const gpu_quad w = gpu_load_quad(weights, h / 4 * 4);
        GPU_UNROLL
        for (int32_t i = 0; i < 4; i++)
            st->sum[h * SPLIT_PART + e0 + i] += gpu_bits_f32(w.w[h % 4]) * gpu_f16_to_f32((uint32_t)(four >> (16 * i)) & 0xFFFFu);
    }
}

/* The values of the wave's 32 keys; those that are not there have no weight, and a place that is. */
GPU_FN void split_values(GPU_PRIVATE(split_state) *st, const GPU_GLOBAL(u16) *values, const GPU_SHARED(f32) *weights,
                         const GPU_SHARED(i64) *places, int32_t part, int32_t lane)
{
    for (int32_t i0 = 0; i0 < GPU_LANES; i0 += SPLIT_AHEAD) {
        GPU_UNROLL
        for (int32_t e0 = 0; e0 < SPLIT_PART; e0 += 4) {
            uint64_t v[SPLIT_AHEAD];
            if (e0 >= part) continue;
            GPU_UNROLL
            for (int32_t i = 0; i < SPLIT_AHEAD; i++) v[i] = gpu_load(GPU_CAST(u64, values + gpu_load(places, i0 + i)), (lane * part + e0) / 4);
            GPU_UNROLL
            for (int32_t i = 0; i < SPLIT_AHEAD; i++) split_add(st, weights + (i0 + i) * SPLIT_HEADS, v[i], e0);
        }
    }
}

/* All of a head: sums over waves in `joined` [waves, v_dim], and for every thread the maximum and the denominator. */
GPU_FN void split_join(const GPU_PRIVATE(split_state) *st, int32_t h, GPU_SHARED(f32) *joined, GPU_SHARED(f32) *scratch, int32_t part,
                       int32_t thread, GPU_PRIVATE(f32) *max, GPU_PRIVATE(f32) *denom)
{
    const int32_t at = thread / GPU_LANES * part * GPU_LANES + thread % GPU_LANES * part;
    *max = group_max(st->max[h], scratch, thread, SPLIT_THREADS);
    const float shrink = weight_of(st->max[h], *max);
    *denom = group_sum(st->denom[h] * shrink, scratch, thread, SPLIT_THREADS); /* its barriers are behind who read the last head's */
    GPU_UNROLL
    for (int32_t e = 0; e < SPLIT_PART; e++)
        if (e < part) gpu_store(joined, at + e, st->sum[h * SPLIT_PART + e] * shrink);
    gpu_barrier();
}

GPU_FN float over_waves(const GPU_SHARED(f32) *joined, int64_t v_dim, int64_t d)
{
    float sum = 0.0f;
    GPU_UNROLL
    for (int32_t w = 0; w < SPLIT_WAVES; w++) sum += gpu_load(joined, w * v_dim + d);
    return sum;
}

/* Where a group's shared memory is. */
typedef struct split_room {
    GPU_SHARED(f32) *queries; /* [SPLIT_HEADS, dim] */
    GPU_SHARED(f32) *weights; /* [keys of a step, SPLIT_HEADS] */
    GPU_SHARED(f32) *joined;  /* [waves, dim] */
    GPU_SHARED(i64) *places;  /* of values */
    GPU_SHARED(f32) *scratch; /* [waves] */
} split_room;

GPU_FN void split_group(const GPU_CONSTANT(mox_gpu_attention) *p, split_room room, int32_t dim, int64_t x, int64_t i_span, int64_t piece,
                        int32_t thread)
{
    const int32_t lane = thread % GPU_LANES, first_key = thread / GPU_LANES * GPU_LANES, part = dim / GPU_LANES;
    const int64_t per_kv = p->heads / p->kv_heads, blocks = (per_kv + SPLIT_HEADS - 1) / SPLIT_HEADS;
    const int64_t kv_head = x / blocks, head0 = kv_head * per_kv + x % blocks * SPLIT_HEADS;
    const int64_t n_heads = least(SPLIT_HEADS, (kv_head + 1) * per_kv - head0);
    const mox_gpu_span s = gpu_load(p->spans, i_span);
    if (s.n != 1) return; /* the whole group */
    const key_range keys = keys_of(p, s, 0);
    if (piece >= keys.n_pieces) return; /* the whole group */
    const int64_t first = keys.first + piece * keys.piece_len, last = least(keys.last, first + keys.piece_len);
    const mox_gpu_cache k = p->k, v = p->v;
    for (int32_t i = thread; i < SPLIT_HEADS * dim; i += SPLIT_THREADS) {
        const int64_t at = s.row0 * p->q_stride + (head0 + i / dim) * p->q_head_stride + i % dim;
        gpu_store(room.queries, i, i / dim < n_heads ? p->scale * gpu_load(p->q, at) : 0.0f);
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
        float score[SPLIT_HEADS];
        const bool there = tile + thread < last;
        const int64_t j = there ? tile + thread : tile;
        split_scores(GPU_CAST(u16, k.data) + cache_offset(k, s.pages, j, kv_head), room.queries, dim, score);
        GPU_UNROLL
        for (int32_t h = 0; h < SPLIT_HEADS; h++) score[h] = there ? score[h] : -GPU_INFINITY;
        split_weigh(&st, score, part);
        gpu_barrier(); /* who read the last step's */
        GPU_UNROLL
        for (int32_t h = 0; h < SPLIT_HEADS; h++) gpu_store(room.weights, thread * SPLIT_HEADS + h, score[h]);
        gpu_store(room.places, thread, cache_offset(v, s.pages, j, kv_head));
        gpu_barrier();
        split_values(&st, GPU_CAST(u16, v.data), room.weights + first_key * SPLIT_HEADS, room.places + first_key, part, lane);
    }
    GPU_UNROLL
    for (int32_t h = 0; h < SPLIT_HEADS; h++) {
        float max, denom;
        if (h >= n_heads) continue; /* the whole group */
        split_join(&st, h, room.joined, room.scratch, part, thread, &max, &denom);
        const int64_t head = head0 + h;
        if (keys.n_pieces > 1) {
            GPU_GLOBAL(f32) *to = p->parts + part_at(p, i_span, head, piece);
            if (thread == 0) {
                gpu_store(to, 0, max);
                gpu_store(to, 1, denom);
            }
            for (int32_t d = thread; d < dim; d += SPLIT_THREADS) gpu_store(to, 2 + d, over_waves(room.joined, dim, d));
        } else {
            const float sink = sink_of(p, head), top = gpu_max(max, sink), shrink = weight_of(max, top);
            const float all = denom * shrink + weight_of(sink, top);
            for (int32_t d = thread; d < dim; d += SPLIT_THREADS)
                gpu_store(p->out, out_at(p, s.row0, head) + d, all == 0.0f ? 0.0f : over_waves(room.joined, dim, d) * shrink / all);
        }
    }
}

GPU_KERNEL(attention_split_128, SPLIT_THREADS)
{
    GPU_SHARED_ARRAY(f32, queries, SPLIT_HEADS * 128);
    GPU_SHARED_ARRAY(f32, weights, SPLIT_THREADS * SPLIT_HEADS);
    GPU_SHARED_ARRAY(f32, joined, SPLIT_WAVES * 128);
    GPU_SHARED_ARRAY(i64, places, SPLIT_THREADS);
    GPU_SHARED_ARRAY(f32, scratch, SPLIT_WAVES);
    split_room room;
    room.queries = queries;
    room.weights = weights;
    room.joined = joined;
    room.places = places;
    room.scratch = scratch;
    split_group(p, room, 128, gpu_group_x(), gpu_group_y(), gpu_group_z(), gpu_thread());
}

GPU_KERNEL(attention_split_256, SPLIT_THREADS)
{
    GPU_SHARED_ARRAY(f32, queries, SPLIT_HEADS * 256);
    GPU_SHARED_ARRAY(f32, weights, SPLIT_THREADS * SPLIT_HEADS);
    GPU_SHARED_ARRAY(f32, joined, SPLIT_WAVES * 256);
    GPU_SHARED_ARRAY(i64, places, SPLIT_THREADS);
    GPU_SHARED_ARRAY(f32, scratch, SPLIT_WAVES);
    split_room room;
    room.queries = queries;
    room.weights = weights;
    room.joined = joined;
    room.places = places;
    room.scratch = scratch;
    split_group(p, room, 256, gpu_group_x(), gpu_group_y(), gpu_group_z(), gpu_thread());
}

/* ---- joining pieces ---- */

GPU_KERNEL(attention_join, SPLIT_THREADS)
{
    GPU_SHARED_ARRAY(f32, weights, MOX_GPU_JOIN_PIECES);
    GPU_SHARED_ARRAY(f32, scratch, SPLIT_WAVES);
    const int32_t thread = gpu_thread();
    const int64_t head = gpu_group_x(), i_span = gpu_group_y(), size = p->v_dim + 2;
    const mox_gpu_span s = gpu_load(p->spans, i_span);
    if (s.n != 1) return; /* the whole group */
    const int64_t n = keys_of(p, s, 0).n_pieces;
    if (n == 1) return; /* the whole group */
    const GPU_GLOBAL(f32) *parts = p->parts + part_at(p, i_span, head, 0);
    const float sink = sink_of(p, head);
    float max = sink, denom = 0.0f;
    for (int64_t i = thread; i < n; i += SPLIT_THREADS) max = gpu_max(max, gpu_load(parts, i * size));
    max = group_max(max, scratch, thread, SPLIT_THREADS);
    for (int64_t i = thread; i < n; i += SPLIT_THREADS) {
        const float weight = weight_of(gpu_load(parts, i * size), max);
        gpu_store(weights, i, weight);
        denom += weight * gpu_load(parts, i * size + 1);
    }
    denom = group_sum(denom, scratch, thread, SPLIT_THREADS) + weight_of(sink, max); /* its barriers order weights, too */
    for (int64_t d = thread; d < p->v_dim; d += SPLIT_THREADS) {
        float sum = 0.0f;
        for (int64_t i0 = 0; i0 < n; i0 += SPLIT_AHEAD) {
            float v[SPLIT_AHEAD];
            GPU_UNROLL
            for (int32_t i = 0; i < SPLIT_AHEAD; i++) v[i] = i0 + i < n ? gpu_load(parts, (i0 + i) * size + 2 + d) : 0.0f;
            GPU_UNROLL
            for (int32_t i = 0; i < SPLIT_AHEAD; i++)
                if (i0 + i < n) sum += gpu_load(weights, i0 + i) * v[i];
        }
        gpu_store(p->out, out_at(p, s.row0, head) + d, denom == 0.0f ? 0.0f : sum / denom);
    }
}

#endif
