/* dev/gpu/join.h -- the rows that share.h's pieces make.
 *
 * What there is to wait for is memory, once: a group takes JOIN_WIDE numbers of a row's head, so that a thread has
 * few pieces, and a thread asks for all of them before it uses one.  Slices of a group take every so-manieth piece;
 * they are joined in their order, those of a wave by shuffles. */
#ifndef MOX_DEV_GPU_JOIN_H
#define MOX_DEV_GPU_JOIN_H

#include "dev/gpu/attention.h"

enum {
    JOIN_WAVES = 4,
    JOIN_THREADS = JOIN_WAVES * GPU_LANES,
    JOIN_WIDE = MOX_GPU_JOIN_WIDE,
    JOIN_QUADS = JOIN_WIDE / 4,
    JOIN_SLICES = JOIN_THREADS / JOIN_QUADS,
    JOIN_AHEAD = 4
};

/* Sums relative to a maximum. */
typedef struct join_state {
    float sum[4];
    float max, denom;
} join_state;
GPU_TYPE(join_state, join_state);

/* Everything relative to max from now on, which is not below st->max. */
GPU_FN void join_raise(GPU_PRIVATE(join_state) *st, float max)
{
    const float shrink = weight_of(st->max, max);
    st->max = max;
    st->denom *= shrink;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) st->sum[i] *= shrink;
}

/* The pieces of a slice, first + i * JOIN_SLICES for i < JOIN_AHEAD, as far as there are n. */
GPU_FN void join_pieces(const GPU_GLOBAL(f32) *sums, const GPU_GLOBAL(u64) *pairs, int64_t v_dim, int64_t first, int64_t n,
                        GPU_PRIVATE(join_state) *st)
{
    gpu_quad four[JOIN_AHEAD];
    uint64_t pair[JOIN_AHEAD];
    float max[JOIN_AHEAD], top = st->max;
    GPU_UNROLL
    for (int32_t i = 0; i < JOIN_AHEAD; i++) {
        const int64_t piece = least(first + i * JOIN_SLICES, n - 1);
        pair[i] = gpu_load(pairs, piece);
        four[i] = gpu_load_quad(sums, piece * v_dim);
    }
    GPU_UNROLL
    for (int32_t i = 0; i < JOIN_AHEAD; i++) {
        max[i] = first + i * JOIN_SLICES < n ? gpu_bits_f32((uint32_t)pair[i]) : -GPU_INFINITY;
        top = gpu_max(top, max[i]);
    }
    join_raise(st, top);
    GPU_UNROLL
    for (int32_t i = 0; i < JOIN_AHEAD; i++) {
        const float weight = weight_of(max[i], top);
        if (first + i * JOIN_SLICES >= n) continue; /* its sums are another one's, and may be any number */
        st->denom += weight * gpu_bits_f32((uint32_t)(pair[i] >> 32));
        GPU_UNROLL
        for (int32_t j = 0; j < 4; j++) st->sum[j] += weight * gpu_bits_f32(four[i].w[j]);
    }
}

GPU_KERNEL_HASTY(attention_join, JOIN_THREADS)
{
    GPU_SHARED_ARRAY(f32, sums, JOIN_WAVES * JOIN_WIDE);
    GPU_SHARED_ARRAY(f32, maxima, JOIN_WAVES);
    GPU_SHARED_ARRAY(f32, denoms, JOIN_WAVES);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, wave = me / GPU_LANES, slice = me / JOIN_QUADS;
    const int64_t head = gpu_group_x(), i_span = gpu_group_y(), first = piece_at(p, i_span, head, 0);
    const int64_t d = gpu_group_z() * JOIN_WIDE + me % JOIN_QUADS * 4;
    const mox_gpu_span s = gpu_load(p->spans, i_span);
    const int64_t n = keys_of(p, s, 0).n_pieces;
    const float sink = sink_of(p, head);
    gpu_previous(); /* spans and sinks are older */
    if (s.n != 1 || n == 1) return; /* the whole group */
    const GPU_GLOBAL(u64) *pairs = GPU_CAST(u64, p->parts + pairs_at(p)) + first;
    join_state st;
    st.max = -GPU_INFINITY;
    st.denom = 0.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) st.sum[i] = 0.0f;
    for (int64_t i = 0; i < n; i += JOIN_AHEAD * JOIN_SLICES)
        join_pieces(p->parts + first * p->v_dim + d, pairs, p->v_dim, i + slice, n, &st);

    float top = st.max;
    GPU_UNROLL
    for (int32_t m = JOIN_QUADS; m < GPU_LANES; m *= 2) top = gpu_max(top, gpu_shuffle(top, lane ^ m));
    join_raise(&st, top);
    GPU_UNROLL
    for (int32_t m = JOIN_QUADS; m < GPU_LANES; m *= 2) {
        st.denom += gpu_shuffle(st.denom, lane ^ m);
        GPU_UNROLL
        for (int32_t i = 0; i < 4; i++) st.sum[i] += gpu_shuffle(st.sum[i], lane ^ m);
    }
    if (lane < JOIN_QUADS) {
        GPU_UNROLL
        for (int32_t i = 0; i < 4; i++) gpu_store(sums, wave * JOIN_WIDE + i * JOIN_QUADS + lane, st.sum[i]);
    }
    if (lane == 0) {
        gpu_store(maxima, wave, st.max);
        gpu_store(denoms, wave, st.denom);
    }
    gpu_barrier();
    if (me >= JOIN_WIDE) return; /* a whole wave or none, and no barrier follows */
    float max = sink, sum = 0.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < JOIN_WAVES; i++) max = gpu_max(max, gpu_load(maxima, i));
    float denom = weight_of(sink, max);
    GPU_UNROLL
    for (int32_t i = 0; i < JOIN_WAVES; i++) {
        const float weight = weight_of(gpu_load(maxima, i), max);
        denom += weight * gpu_load(denoms, i);
        sum += weight * gpu_load(sums, i * JOIN_WIDE + me % 4 * JOIN_QUADS + me / 4);
    }
    gpu_store(p->out, out_at(p, s.row0, head) + gpu_group_z() * JOIN_WIDE + me, denom == 0.0f ? 0.0f : sum / denom);
}

#endif
