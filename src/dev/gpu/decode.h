/* dev/gpu/decode.h -- softmax attention of single rows over f16 caches: decoding.
 *
 * What a row waits for is memory, so nothing else is waited for in turn.  Eight elements of a
 * key are one load of a lane; the lanes of a head (8, 16 or 32) are a stream, which takes every
 * so-manieth key and keeps a maximum, a denominator and sums of its own.  Keys and values of DECODE_AHEAD
 * steps are asked for before the first is used.  The streams of a group are joined at the end, in
 * their order.
 *
 * Pieces are cut and left as attention.h does it, and attention_merge joins them. */
#ifndef MOX_DEV_GPU_DECODE_H
#define MOX_DEV_GPU_DECODE_H

#include "dev/gpu/attention.h"

enum { DECODE_THREADS = 256, DECODE_PART = 8, DECODE_AHEAD = 4, DECODE_STREAMS = DECODE_THREADS / 8 };

/* What a lane keeps of its stream. */
typedef struct decode_state {
    float sum[DECODE_PART];
    float max, denom;
} decode_state;
GPU_TYPE(decode_state, decode_state);

GPU_FN float decode_number(gpu_quad w, int32_t i) { return gpu_f16_to_f32(w.w[i / 2] >> (i % 2 * 16) & 0xFFFFu); }

/* q . k over the n_lanes lanes of the stream. */
GPU_FN float decode_dot(const GPU_PRIVATE(f32) *q, gpu_quad key, int32_t n_lanes, int32_t lane)
{
    float dot = 0.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < DECODE_PART; i++) dot += q[i] * decode_number(key, i);
    for (int32_t m = n_lanes / 2; m > 0; m /= 2) dot += gpu_shuffle(dot, lane ^ m);
    return dot;
}

/* Where DECODE_AHEAD keys from j on, `step` apart, and their values are; beyond the end the last one's. */
GPU_FN void decode_find(const GPU_CONSTANT(mox_gpu_attention) *p, mox_gpu_span s, int64_t kv_head, int64_t j, int64_t step,
                        int64_t last, GPU_PRIVATE(i64) *key_at, GPU_PRIVATE(i64) *value_at)
{
    const mox_gpu_cache k = p->k, v = p->v;
    GPU_UNROLL
    for (int32_t a = 0; a < DECODE_AHEAD; a++) {
        const int32_t pos = (int32_t)least(j + a * step, last - 1), len = (int32_t)k.page_len, i = pos / len;
        const int64_t page = gpu_load(s.pages, i), at = pos - i * len;
        key_at[a] = (page * k.page_stride + at * k.token_stride + kv_head * k.head_stride) / DECODE_PART;
        value_at[a] = (page * v.page_stride + at * v.token_stride + kv_head * v.head_stride) / DECODE_PART;
    }
}

/* Those keys; what is not before last has no weight. */
GPU_FN void decode_keys(const GPU_CONSTANT(mox_gpu_attention) *p, const GPU_PRIVATE(i64) *key_at,
                        const GPU_PRIVATE(i64) *value_at, int64_t j, int64_t step, int64_t last, const GPU_PRIVATE(f32) *q,
                        int32_t n_lanes, int32_t lane, GPU_PRIVATE(decode_state) *st)
{
    const mox_gpu_cache k = p->k, v = p->v;
    gpu_quad key[DECODE_AHEAD], value[DECODE_AHEAD];
    float score[DECODE_AHEAD], max = st->max;
    GPU_UNROLL
    for (int32_t a = 0; a < DECODE_AHEAD; a++) {
        key[a] = gpu_load(GPU_CAST(quad, k.data), key_at[a] + lane % n_lanes);
        value[a] = gpu_load(GPU_CAST(quad, v.data), value_at[a] + lane % n_lanes);
    }
    GPU_UNROLL
    for (int32_t a = 0; a < DECODE_AHEAD; a++) {
        const float dot = decode_dot(q, key[a], n_lanes, lane);
        score[a] = j + a * step < last ? dot : -GPU_INFINITY;
        max = gpu_max(max, score[a]);
    }
    const float shrink = weight_of(st->max, max);
    st->max = max;
    st->denom *= shrink;
    GPU_UNROLL
    for (int32_t i = 0; i < DECODE_PART; i++) st->sum[i] *= shrink;
    GPU_UNROLL
    for (int32_t a = 0; a < DECODE_AHEAD; a++) {
        const float weight = weight_of(score[a], max);
        st->denom += weight;
        GPU_UNROLL
        for (int32_t i = 0; i < DECODE_PART; i++) /* a value beyond the end is another one's, and may be any number */
            if (j + a * step < last) st->sum[i] += weight * decode_number(value[a], i);
    }
}

GPU_KERNEL_HASTY(attention_decode, DECODE_THREADS)
{
    GPU_SHARED_ARRAY(f32, sums, DECODE_THREADS * DECODE_PART); /* [streams, dim] */
    GPU_SHARED_ARRAY(f32, maxima, DECODE_STREAMS);
    GPU_SHARED_ARRAY(f32, denoms, DECODE_STREAMS);
    GPU_SHARED_ARRAY(f32, weights, DECODE_STREAMS);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES;
    const int32_t n_lanes = (int32_t)p->dim / DECODE_PART, n_streams = DECODE_THREADS / n_lanes, stream = me / n_lanes;
    const int64_t head = gpu_group_x(), i_span = gpu_group_y(), piece = gpu_group_z();
    const int64_t kv_head = (int32_t)head / ((int32_t)p->heads / (int32_t)p->kv_heads);
    const mox_gpu_span s = gpu_load(p->spans, i_span);
    const key_range keys = keys_of(p, s, 0);
    const bool is_mine = s.n == 1 && piece < keys.n_pieces; /* the same in the whole group */
    const int64_t first = keys.first + piece * keys.piece_len, last = least(keys.last, first + keys.piece_len);
    int64_t key_at[DECODE_AHEAD], value_at[DECODE_AHEAD];
    if (is_mine) decode_find(p, s, kv_head, first + stream, n_streams, last, key_at, value_at);
    gpu_previous(); /* spans and pages are older */
    if (!is_mine) return;
    float q[DECODE_PART];
    decode_state st;
    st.max = -GPU_INFINITY;
    st.denom = 0.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < DECODE_PART; i++) {
        q[i] = p->scale * gpu_load(p->q, s.row0 * p->q_stride + head * p->q_head_stride + lane % n_lanes * DECODE_PART + i);
        st.sum[i] = 0.0f;
    }
    for (int64_t j = first; j < last; j += DECODE_AHEAD * n_streams) { /* the same in all streams: lanes work together */
        if (j != first) decode_find(p, s, kv_head, j + stream, n_streams, last, key_at, value_at);
        decode_keys(p, key_at, value_at, j + stream, n_streams, last, q, n_lanes, lane, &st);
    }

    GPU_UNROLL
    for (int32_t i = 0; i < DECODE_PART; i++) gpu_store(sums, me * DECODE_PART + i, st.sum[i]);
    if (me % n_lanes == 0) {
        gpu_store(maxima, stream, st.max);
        gpu_store(denoms, stream, st.denom);
    }
    gpu_barrier();
    const float sink = keys.n_pieces > 1 ? -GPU_INFINITY : sink_of(p, head);
    float max = sink, sum = 0.0f;
    for (int32_t i = 0; i < n_streams; i++) max = gpu_max(max, gpu_load(maxima, i));
    if (me < n_streams) gpu_store(weights, me, weight_of(gpu_load(maxima, me), max));
    gpu_barrier();
    if (me >= p->dim) return; /* no barrier follows */
    float denom = weight_of(sink, max);
    for (int32_t i = 0; i < n_streams; i++) {
        denom += gpu_load(weights, i) * gpu_load(denoms, i);
        sum += gpu_load(weights, i) * gpu_load(sums, i * (int32_t)p->dim + me);
    }
    if (keys.n_pieces == 1) {
        gpu_store(p->out, out_at(p, s.row0, head) + me, denom == 0.0f ? 0.0f : sum / denom);
        return;
    }
    GPU_GLOBAL(f32) *part = p->parts + part_at(p, i_span, head, piece);
    if (me == 0) {
        gpu_store(part, 0, max);
        gpu_store(part, 1, denom);
    }
    gpu_store(part, 2 + me, sum);
}

#endif
