/* dev/gpu/join.h -- the rows that share.h's pieces make.
 *
 * A group takes a row's head: first the weights of its pieces, then sums.  Slices of the group take every
 * fourth piece each, and ask for several at a time: what there is to wait for is memory. */
#ifndef MOX_DEV_GPU_JOIN_H
#define MOX_DEV_GPU_JOIN_H

#include "dev/gpu/attention.h"

enum { JOIN_THREADS = 512, JOIN_SLICE = 128, JOIN_SLICES = JOIN_THREADS / JOIN_SLICE, JOIN_AHEAD = 8, JOIN_WIDEST = 256,
       JOIN_EACH = MOX_GPU_JOIN_PIECES / JOIN_THREADS };

GPU_KERNEL(attention_join, JOIN_THREADS)
{
    GPU_SHARED_ARRAY(f32, weights, MOX_GPU_JOIN_PIECES);
    GPU_SHARED_ARRAY(f32, sums, JOIN_SLICES * JOIN_WIDEST);
    GPU_SHARED_ARRAY(f32, scratch, JOIN_THREADS / GPU_LANES);
    const int32_t me = gpu_thread(), slice = me / JOIN_SLICE;
    const int64_t head = gpu_group_x(), i_span = gpu_group_y(), size = p->v_dim + 2;
    const mox_gpu_span s = gpu_load(p->spans, i_span);
    if (s.n != 1) return; /* the whole group */
    const int64_t n = keys_of(p, s, 0).n_pieces;
    if (n == 1) return; /* the whole group */
    const GPU_GLOBAL(f32) *parts = p->parts + part_at(p, i_span, head, 0);
    const float sink = sink_of(p, head);
    float max = sink, denom = 0.0f, max_of[JOIN_EACH], denom_of[JOIN_EACH];
    GPU_UNROLL
    for (int32_t j = 0; j < JOIN_EACH; j++) {
        const int64_t i = me + j * JOIN_THREADS;
        max_of[j] = i < n ? gpu_load(parts, i * size) : -GPU_INFINITY;
        denom_of[j] = i < n ? gpu_load(parts, i * size + 1) : 0.0f;
        max = gpu_max(max, max_of[j]);
    }
    max = group_max(max, scratch, me, JOIN_THREADS);
    GPU_UNROLL
    for (int32_t j = 0; j < JOIN_EACH; j++) {
        const float weight = weight_of(max_of[j], max);
        gpu_store(weights, me + j * JOIN_THREADS, weight);
        denom += weight * denom_of[j];
    }
    denom = group_sum(denom, scratch, me, JOIN_THREADS) + weight_of(sink, max); /* its barriers order weights, too */
    for (int64_t d = me % JOIN_SLICE; d < p->v_dim; d += JOIN_SLICE) {
        float sum = 0.0f;
        for (int64_t first = slice; first < n; first += JOIN_AHEAD * JOIN_SLICES) {
            float v[JOIN_AHEAD];
            GPU_UNROLL
            for (int32_t i = 0; i < JOIN_AHEAD; i++) {
                const int64_t piece = first + i * JOIN_SLICES;
                v[i] = piece < n ? gpu_load(parts, piece * size + 2 + d) : 0.0f;
            }
            GPU_UNROLL
            for (int32_t i = 0; i < JOIN_AHEAD; i++)
                if (first + i * JOIN_SLICES < n) sum += gpu_load(weights, first + i * JOIN_SLICES) * v[i];
        }
        gpu_store(sums, slice * JOIN_WIDEST + d, sum);
    }
    gpu_barrier();
    for (int64_t d = me; d < p->v_dim; d += JOIN_THREADS) {
        float sum = 0.0f;
        GPU_UNROLL
        for (int32_t i = 0; i < JOIN_SLICES; i++) sum += gpu_load(sums, i * JOIN_WIDEST + d);
        gpu_store(p->out, out_at(p, s.row0, head) + d, denom == 0.0f ? 0.0f : sum / denom);
    }
}

#endif
