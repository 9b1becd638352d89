/* dev/gpu/decode.h -- softmax attention of single rows over short f16 caches: decoding.
 *
 * A group takes one head, a wave of it 16 keys, all at once: what is older than the launch in front is asked for before that
 * has ended, and then only the query and the row's own key are waited for.  Scores are made as in share.h, with the one
 * head in all rows, so that lanes have the weights of the keys whose values they hold.  Columns of the second
 * product are the two f16 of the weights in turn.
 *
 * Waves keep maxima, denominators and sums of their own, joined at the end in the order of the waves. */
#ifndef MOX_DEV_GPU_DECODE_H
#define MOX_DEV_GPU_DECODE_H

#include "dev/gpu/share.h"

/* Heads of 256 take twice the registers, so half the waves twice. */
enum { DECODE_WAVES = 16, DECODE_WAVES_256 = 8, DECODE_STEPS_256 = 2 };
static_assert(DECODE_WAVES * SHARE_KEYS >= MOX_GPU_DECODE_KEYS && DECODE_STEPS_256 * DECODE_WAVES_256 * SHARE_KEYS >= MOX_GPU_DECODE_KEYS,
              "all keys of a row");

/* What a lane keeps: products of share_across, two columns of each row. */
typedef struct decode_state {
    float sum[SHARE_WIDEST / 4];
    share_peak peak;
} decode_state;
GPU_TYPE(decode_state, decode_state);

/* Where a group's shared memory is. */
typedef struct decode_room {
    share_planes query;      /* of one head */
    GPU_SHARED(f32) *sums;   /* [waves, dim] */
    GPU_SHARED(f32) *maxima; /* [waves] */
    GPU_SHARED(f32) *denoms; /* [waves] */
} decode_room;

GPU_FN decode_room decode_room_of(GPU_SHARED(quad) *planes, GPU_SHARED(f32) *numbers, int32_t waves, int32_t dim)
{
    decode_room room;
    room.query.of = (GPU_SHARED(u16) *)planes;
    room.query.factor = numbers;
    room.sums = numbers + SHARE_HEADS;
    room.maxima = room.sums + waves * dim;
    room.denoms = room.maxima + waves;
    return room;
}

GPU_FN void decode_clear(int32_t dim, GPU_PRIVATE(share_step) *step)
{
    gpu_quad none;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) none.w[i] = 0u;
    GPU_UNROLL
    for (int32_t i = 0; i < 2; i++) {
        GPU_UNROLL
        for (int32_t j = 0; j < SHARE_WIDEST / 32; j++)
            if (j < dim / 32) step->key[i][j] = none;
    }
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        GPU_UNROLL
        for (int32_t j = 0; j < SHARE_WIDEST / 64; j++)
            if (j < dim / 64) step->value[i][j] = none;
    }
}

/* sums <- sums * shrink + V^T times the weights. */
GPU_FN void decode_values(const GPU_PRIVATE(share_step) *step, const GPU_PRIVATE(f32) *weight, float shrink, int32_t dim, int32_t lane,
                          GPU_PRIVATE(decode_state) *st)
{
    uint32_t b[2];
    GPU_UNROLL
    for (int32_t i = 0; i < 2; i++) {
        const float first = weight[2 * i], second = weight[2 * i + 1];
        const uint32_t high = gpu_pack_f16(first, second);
        const uint32_t low = gpu_pack_f16(first - gpu_f16_to_f32(high & 0xFFFFu), second - gpu_f16_to_f32(high >> 16));
        b[i] = lane / 4 % 2 == 0 ? high : low;
    }
    GPU_UNROLL
    for (int32_t i = 0; i < SHARE_WIDEST / 16; i++) {
        uint32_t a[4];
        if (i / 8 * SHARE_BLOCK >= dim) continue;
        share_across(step, i / 8, i % 8, dim, a);
        GPU_UNROLL
        for (int32_t j = 0; j < 4; j++) st->sum[4 * i + j] *= shrink;
        gpu_mma(st->sum + 4 * i, a[0], a[1], a[2], a[3], b[0], b[1]);
    }
}

GPU_FN void decode_add(const GPU_PRIVATE(share_step) *step, share_planes query, int32_t n, int32_t dim, int32_t lane,
                       GPU_PRIVATE(decode_state) *st)
{
    float score[4];
    share_scores(step, query, 0, n, dim, lane, score);
    const float shrink = share_weigh(score, lane, &st->peak);
    decode_values(step, score, shrink, dim, lane, st);
}

/* Leaves what a wave has; all t have the same sums, and each leaves a quarter. */
GPU_FN void decode_leave(const GPU_PRIVATE(decode_state) *st, decode_room room, int32_t dim, int32_t wave, int32_t lane)
{
    const int32_t g = lane / 4, t = lane % 4;
    float denom = st->peak.denom;
    GPU_UNROLL
    for (int32_t m = 1; m < 4; m *= 2) denom += gpu_shuffle(denom, lane ^ m);
    if (lane == 0) {
        gpu_store(room.maxima, wave, st->peak.max);
        gpu_store(room.denoms, wave, denom);
    }
    GPU_UNROLL
    for (int32_t i = 0; i < SHARE_WIDEST / 8; i++) {
        const int32_t product = i / 2, side = i % 2, d = product / 8 * SHARE_BLOCK + side * 64;
        if (d < dim && product % 8 / 2 == t)
            gpu_store(room.sums, wave * dim + d + 8 * g + product % 8, st->sum[2 * i] + st->sum[2 * i + 1]);
    }
}

/* Number d of the row.  Waves that had no keys take part, so that nothing is asked and all loads are under way at once.
 * Of a wave that comes here, lane i % waves weighs wave i's sums. */
GPU_FN float decode_join(decode_room room, float sink, int32_t waves, int32_t dim, int32_t d, int32_t lane)
{
    const float mine = gpu_load(room.maxima, lane % waves);
    float max = gpu_max(sink, mine), sum = 0.0f;
    GPU_UNROLL
    for (int32_t m = 1; m < waves; m *= 2) max = gpu_max(max, gpu_shuffle(max, lane ^ m));
    const float weight = weight_of(mine, max);
    float denom = weight * gpu_load(room.denoms, lane % waves);
    GPU_UNROLL
    for (int32_t m = 1; m < waves; m *= 2) denom += gpu_shuffle(denom, lane ^ m);
    denom += weight_of(sink, max);
    GPU_UNROLL
    for (int32_t i = 0; i < waves; i++) sum += gpu_shuffle(weight, i) * gpu_load(room.sums, i * dim + d);
    return denom == 0.0f ? 0.0f : sum / denom;
}

/* The row's own key and value, at `own` of the caches, where they belong among the step's keys: at i, if that is one of them. */
GPU_FN void decode_own(const GPU_CONSTANT(mox_gpu_attention) *p, share_where own, int32_t i_own, int32_t kv_head, int32_t dim, int32_t lane,
                       GPU_PRIVATE(share_step) *step)
{
    const mox_gpu_cache k = p->k, v = p->v;
    const int64_t key = share_quad(k, own, kv_head) + lane % 4, value = share_quad(v, own, kv_head) + lane / 4;
    GPU_UNROLL
    for (int32_t i = 0; i < 2; i++) {
        if (lane / 4 + 8 * i != i_own) continue;
        GPU_UNROLL
        for (int32_t j = 0; j < SHARE_WIDEST / 32; j++)
            if (j < dim / 32) step->key[i][j] = gpu_load(GPU_CAST(quad, k.data), key + j * 4);
    }
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        if (2 * (lane % 4) + i % 2 + i / 2 * 8 != i_own) continue;
        GPU_UNROLL
        for (int32_t j = 0; j < SHARE_WIDEST / 64; j++)
            if (j < dim / 64) step->value[i][j] = gpu_load(GPU_CAST(quad, v.data), value + j * 8);
    }
}

GPU_FN void decode_group(const GPU_CONSTANT(mox_gpu_attention) *p, decode_room room, int32_t waves, int32_t steps, int32_t dim,
                         int32_t head, int64_t i_span, int32_t me)
{
    const int32_t lane = me % GPU_LANES, wave = me / GPU_LANES;
    const mox_gpu_span s = gpu_load(p->spans, i_span);
    const key_range keys = keys_of(p, s, 0);
    const int32_t first = (int32_t)keys.first, last = (int32_t)keys.last, pos0 = (int32_t)s.pos0, tile = first + wave * SHARE_KEYS;
    const bool is_mine = s.n == 1; /* the same in the whole group */
    const share_where own = share_find(p, s, pos0, pos0 + 1, lane);
    share_place at;
    at.kv_head = head / ((int32_t)p->heads / (int32_t)p->kv_heads);
    at.head0 = head;
    at.n_heads = 1;
    at.row = s.row0;
    share_step step;
    decode_state st;
    share_where where = share_find(p, s, tile, pos0 > 0 ? pos0 : 1, lane); /* position 0 has a page, though no key yet */
    if (is_mine && tile < pos0) { /* a whole wave; beyond the row's own key all are the one before it */
        share_fetch_keys(p, where, at.kv_head, dim, lane, &step);
        share_fetch_values(p, where, at.kv_head, dim, lane, &step);
    } else {
        decode_clear(dim, &step);
    }
    if (!is_mine) { /* the whole group */
        gpu_previous();
        return;
    }
    GPU_REHEARSE(real, p->rehearse) {
        if (real != 0) { /* spans, pages and sinks are older, and so are all keys but the row's own */
            gpu_barrier();
            gpu_previous();
        }
        if (wave == 0) share_queries(p, at, room.query, real != 0, dim, me);
        decode_own(p, own, real != 0 ? pos0 - tile : -1, at.kv_head, dim, lane, &step);
        const float sink = sink_of(p, head);
        GPU_UNROLL
        for (int32_t i = 0; i < SHARE_WIDEST / 4; i++) st.sum[i] = 0.0f;
        st.peak.max = -GPU_INFINITY;
        st.peak.denom = 0.0f;
        gpu_barrier();
        if (tile < last) decode_add(&step, room.query, last - tile, dim, lane, &st); /* a whole wave, and below */
        GPU_UNROLL
        for (int32_t i = 1; i < steps; i++) {
            const int32_t next = tile + i * waves * SHARE_KEYS;
            if (next >= last || real == 0) continue;
            where = share_find(p, s, next, last, lane);
            share_fetch_keys(p, where, at.kv_head, dim, lane, &step);
            share_fetch_values(p, where, at.kv_head, dim, lane, &step);
            decode_add(&step, room.query, last - next, dim, lane, &st);
        }
        decode_leave(&st, room, dim, wave, lane);
        gpu_barrier();
        if (me >= dim) continue; /* a whole wave, and no barrier follows */
        const float y = decode_join(room, sink, waves, dim, me, lane);
        if (real != 0) gpu_store(p->out, out_at(p, s.row0, head) + me, y);
    }
}

GPU_KERNEL_HASTY(attention_decode_64, DECODE_WAVES * GPU_LANES)
{
    GPU_SHARED_ARRAY(quad, planes, 2 * SHARE_HEADS * (64 + SHARE_GAP) / 8);
    GPU_SHARED_ARRAY(f32, numbers, SHARE_HEADS + DECODE_WAVES * (64 + 2));
    const decode_room room = decode_room_of(planes, numbers, DECODE_WAVES, 64);
    decode_group(p, room, DECODE_WAVES, 1, 64, (int32_t)gpu_group_x(), gpu_group_y(), gpu_thread());
}

GPU_KERNEL_HASTY(attention_decode_128, DECODE_WAVES * GPU_LANES)
{
    GPU_SHARED_ARRAY(quad, planes, 2 * SHARE_HEADS * (128 + SHARE_GAP) / 8);
    GPU_SHARED_ARRAY(f32, numbers, SHARE_HEADS + DECODE_WAVES * (128 + 2));
    const decode_room room = decode_room_of(planes, numbers, DECODE_WAVES, 128);
    decode_group(p, room, DECODE_WAVES, 1, 128, (int32_t)gpu_group_x(), gpu_group_y(), gpu_thread());
}

GPU_KERNEL_HASTY(attention_decode_256, DECODE_WAVES_256 * GPU_LANES)
{
    GPU_SHARED_ARRAY(quad, planes, 2 * SHARE_HEADS * (256 + SHARE_GAP) / 8);
    GPU_SHARED_ARRAY(f32, numbers, SHARE_HEADS + DECODE_WAVES_256 * (256 + 2));
    const decode_room room = decode_room_of(planes, numbers, DECODE_WAVES_256, 256);
    decode_group(p, room, DECODE_WAVES_256, DECODE_STEPS_256, 256, (int32_t)gpu_group_x(), gpu_group_y(), gpu_thread());
}

#endif
