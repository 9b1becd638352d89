/* dev/gpu/share.h -- softmax attention of single rows over a long f16 cache: decoding.
 *
 * A group takes a piece of the keys for all query heads that share them (eight at most), so that
 * the cache is read once.  A step of a wave is 16 keys, on matrix units: A holds the queries, 8 heads
 * as two f16 each whose sum has 22 bits, so that scores are as exact as in f32; B holds the keys as the
 * cache has them.  Which number of a head is which column does not matter as long as A and B agree,
 * so lanes load 16 bytes wherever they are.  Scores come out where the weights of the second
 * product go in: sums of values are V^T P^T, weights as two f16 again.  Nothing goes through shared
 * memory on the way.
 *
 * Waves keep maxima, denominators and sums of their own, joined at the end in the order of the waves.
 * Pieces are cut as attention.h does it; attention_join makes rows of them. */
#ifndef MOX_DEV_GPU_SHARE_H
#define MOX_DEV_GPU_SHARE_H

#include "dev/gpu/attention.h"

enum {
    SHARE_WAVES = 4,
    SHARE_THREADS = SHARE_WAVES * GPU_LANES,
    SHARE_HEADS = MOX_GPU_SHARE_HEADS,
    SHARE_EACH = SHARE_THREADS / SHARE_HEADS, /* threads that prepare a query */
    SHARE_KEYS = 16,
    SHARE_WIDEST = 256,
    SHARE_BLOCK = 128, /* numbers of a head that are joined at a time */
    SHARE_GAP = 32,    /* behind each row of planes, and of sums, so that lanes hit different banks */
    SHARE_SUMS_GAP = 4
};

/* Keys and values of a step.  Lane 4 g + t has, of keys g and g + 8, every fourth quad from t on; of the values of keys
 * 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 every eighth quad from g on. */
typedef struct share_step {
    gpu_quad key[2][SHARE_WIDEST / 32];
    gpu_quad value[4][SHARE_WIDEST / 64];
} share_step;
GPU_TYPE(share_step, share_step);

/* The maximum of a head, and a lane's keys' part of the denominator. */
typedef struct share_peak {
    float max, denom;
} share_peak;
GPU_TYPE(share_peak, share_peak);

/* What a lane keeps: of head g the peak; of heads 2 t and 2 t + 1 sums, see share_values. */
typedef struct share_state {
    float sum[SHARE_WIDEST / 2];
    share_peak peak;
} share_state;
GPU_TYPE(share_state, share_state);

/* Where a group's shared memory is. */
typedef struct share_planes {
    GPU_SHARED(u16) *of;     /* [2, SHARE_HEADS, dim + SHARE_GAP]: queries, the upper numbers and the lower */
    GPU_SHARED(f32) *factor; /* [SHARE_HEADS]: undoes their scaling */
} share_planes;
typedef struct share_room {
    share_planes query;
    GPU_SHARED(f32) *sums;   /* [SHARE_WAVES, SHARE_HEADS, SHARE_BLOCK + SHARE_SUMS_GAP] */
    GPU_SHARED(f32) *maxima; /* [SHARE_WAVES, SHARE_HEADS] */
    GPU_SHARED(f32) *denoms; /* [SHARE_WAVES, SHARE_HEADS] */
} share_room;

enum {
    SHARE_SUMS = SHARE_WAVES * SHARE_HEADS * (SHARE_BLOCK + SHARE_SUMS_GAP),
    SHARE_NUMBERS = SHARE_SUMS + SHARE_HEADS + 2 * SHARE_WAVES * SHARE_HEADS
};
GPU_FN share_room share_room_of(GPU_SHARED(quad) *planes, GPU_SHARED(quad) *numbers)
{
    share_room room;
    room.query.of = (GPU_SHARED(u16) *)planes;
    room.sums = (GPU_SHARED(f32) *)numbers;
    room.query.factor = room.sums + SHARE_SUMS;
    room.maxima = room.query.factor + SHARE_HEADS;
    room.denoms = room.maxima + SHARE_WAVES * SHARE_HEADS;
    return room;
}

/* Where keys are: lane i % 16 knows it of key i of a step. */
typedef struct share_where {
    int32_t page, at;
} share_where;

/* Keys from `tile` on; those that are not before last are the last one again. */
GPU_FN share_where share_find(const GPU_CONSTANT(mox_gpu_attention) *p, mox_gpu_span s, int32_t tile, int32_t last, int32_t lane)
{
    const int32_t asked = tile + lane % SHARE_KEYS, pos = asked < last ? asked : last - 1;
    const int32_t len = (int32_t)p->k.page_len, i_page = pos / len;
    share_where where;
    where.page = gpu_load(s.pages, i_page);
    where.at = pos - i_page * len;
    return where;
}

/* The quad that the head's vector of a key begins with. */
GPU_FN int64_t share_quad(mox_gpu_cache c, share_where where, int32_t kv_head)
{
    /* Factors are int32: each product is one instruction. */
    return (int64_t)where.page * (int32_t)(c.page_stride / 8) +
           (where.at * (int32_t)(c.token_stride / 8) + kv_head * (int32_t)(c.head_stride / 8));
}

/* Lane `from`'s. */
GPU_FN int64_t share_tell(int64_t v, int32_t from)
{
    return (int64_t)gpu_shuffle_i32((int32_t)(v >> 32), from) << 32 | (uint32_t)gpu_shuffle_i32((int32_t)v, from);
}

GPU_FN void share_fetch_keys(const GPU_CONSTANT(mox_gpu_attention) *p, share_where where, int32_t kv_head, int32_t dim, int32_t lane,
                              GPU_PRIVATE(share_step) *step)
{
    const mox_gpu_cache k = p->k;
    const int64_t mine = share_quad(k, where, kv_head);
    GPU_UNROLL
    for (int32_t i = 0; i < 2; i++) {
        const int64_t from = share_tell(mine, lane / 4 + 8 * i);
        GPU_UNROLL
        for (int32_t j = 0; j < SHARE_WIDEST / 32; j++)
            if (j < dim / 32) step->key[i][j] = gpu_load(GPU_CAST(quad, k.data), from + j * 4 + lane % 4);
    }
}

GPU_FN void share_fetch_values(const GPU_CONSTANT(mox_gpu_attention) *p, share_where where, int32_t kv_head, int32_t dim, int32_t lane,
                                GPU_PRIVATE(share_step) *step)
{
    const mox_gpu_cache v = p->v;
    const int64_t mine = share_quad(v, where, kv_head);
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        const int64_t from = share_tell(mine, 2 * (lane % 4) + i % 2 + i / 2 * 8);
        GPU_UNROLL
        for (int32_t j = 0; j < SHARE_WIDEST / 64; j++)
            if (j < dim / 64) step->value[i][j] = gpu_load(GPU_CAST(quad, v.data), from + j * 8 + lane / 4);
    }
}

/* Numbers of two keys as a pair: the upper ones of the words, or the lower. */
GPU_FN uint32_t share_pair(uint32_t first, uint32_t second, bool upper)
{
    return upper ? first >> 16 | (second & 0xFFFF0000u) : (first & 0xFFFFu) | second << 16;
}

/* V^T as an A: row g of product j is number 8 g + j of the 128 that `block` counts, row g + 8 the one 64 further. */
GPU_FN void share_across(const GPU_PRIVATE(share_step) *step, int32_t block, int32_t j, int32_t dim, GPU_PRIVATE(u32) *a)
{
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        const int32_t quad = 2 * block + i % 2, key = i / 2 * 2;
        a[i] = quad * 64 < dim ? share_pair(step->value[key][quad].w[j / 2], step->value[key + 1][quad].w[j / 2], j % 2 != 0) : 0u;
    }
}

/* sums <- sums * shrink + V^T P^T. */
GPU_FN void share_values(const GPU_PRIVATE(share_step) *step, const GPU_PRIVATE(f32) *weight, float shrink, int32_t dim, int32_t lane,
                          GPU_PRIVATE(share_state) *st)
{
    const int32_t t = lane % 4;
    const float first = gpu_shuffle(shrink, 8 * t), second = gpu_shuffle(shrink, 8 * t + 4);
    uint32_t high[2], low[2];
    if (first != 1.0f || second != 1.0f) { /* seldom, once most of the keys were seen */
        GPU_UNROLL
        for (int32_t i = 0; i < SHARE_WIDEST / 2; i++)
            if (i / 32 * SHARE_BLOCK < dim) st->sum[i] *= i % 2 == 0 ? first : second;
    }
    GPU_UNROLL
    for (int32_t i = 0; i < 2; i++) {
        const float a = weight[2 * i], b = weight[2 * i + 1];
        high[i] = gpu_pack_f16(a, b);
        low[i] = gpu_pack_f16(a - gpu_f16_to_f32(high[i] & 0xFFFFu), b - gpu_f16_to_f32(high[i] >> 16));
    }
    GPU_UNROLL
    for (int32_t block = 0; block < SHARE_WIDEST / 128; block++) {
        GPU_UNROLL
        for (int32_t j = 0; j < 8; j++) {
            uint32_t a[4];
            if (block * 128 >= dim) continue;
            share_across(step, block, j, dim, a);
            GPU_PRIVATE(f32) *c = st->sum + (block * 8 + j) * 4;
            gpu_mma(c, a[0], a[1], a[2], a[3], high[0], high[1]);
            gpu_mma(c, a[0], a[1], a[2], a[3], low[0], low[1]);
        }
    }
}

/* score[i] of key 2 t + i % 2 + i / 2 * 8 and the lane's head, the same in all t; n: so many of the step's keys count. */
GPU_FN void share_scores(const GPU_PRIVATE(share_step) *step, share_planes query, int32_t head, int32_t n, int32_t dim, int32_t lane,
                          GPU_PRIVATE(f32) *score)
{
    const int32_t t = lane % 4, row = dim + SHARE_GAP;
    float c[8];
    GPU_UNROLL
    for (int32_t i = 0; i < 8; i++) c[i] = 0.0f;
    GPU_UNROLL
    for (int32_t j = 0; j < SHARE_WIDEST / 32; j++) {
        if (j >= dim / 32) continue;
        const gpu_quad high = gpu_load_quad(query.of, head * row + j * 32 + t * 8);
        const gpu_quad low = gpu_load_quad(query.of, (SHARE_HEADS + head) * row + j * 32 + t * 8);
        GPU_UNROLL
        for (int32_t i = 0; i < 4; i++) {
            const gpu_quad key = step->key[i / 2][j];
            const int32_t w = i % 2 * 2;
            gpu_mma(c + i / 2 * 4, high.w[w], low.w[w], high.w[w + 1], low.w[w + 1], key.w[w], key.w[w + 1]);
        }
    }
    const float factor = gpu_load(query.factor, head);
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        const float dot = (c[i / 2 * 4 + i % 2] + c[i / 2 * 4 + i % 2 + 2]) * factor;
        score[i] = 2 * t + i % 2 + i / 2 * 8 < n ? dot : -GPU_INFINITY;
    }
}

/* Scores become weights relative to the maximum so far; returns what older ones shrink by. */
GPU_FN float share_weigh(GPU_PRIVATE(f32) *score, int32_t lane, GPU_PRIVATE(share_peak) *peak)
{
    float max = peak->max;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) max = gpu_max(max, score[i]);
    GPU_UNROLL
    for (int32_t m = 1; m < 4; m *= 2) max = gpu_max(max, gpu_shuffle(max, lane ^ m));
    const float shrink = weight_of(peak->max, max);
    peak->max = max;
    peak->denom *= shrink;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        score[i] = weight_of(score[i], max);
        peak->denom += score[i];
    }
    return shrink;
}

/* ---- queries ---- */

/* Which heads a group is for. */
typedef struct share_place {
    int32_t kv_head, head0, n_heads;
    int64_t row;
} share_place;

/* Queries to the planes, scaled; zeros that are not real.  A thread has dim / SHARE_EACH numbers of one, which are neighbours. */
GPU_FN void share_queries(const GPU_CONSTANT(mox_gpu_attention) *p, share_place at, share_planes query, bool real, int32_t dim, int32_t me)
{
    const int32_t lane = me % GPU_LANES, head = me / SHARE_EACH, each = dim / SHARE_EACH, i0 = me % SHARE_EACH * each;
    const GPU_GLOBAL(f32) *from = p->q + (at.row * p->q_stride + (at.head0 + head) * p->q_head_stride);
    float v[SHARE_WIDEST / SHARE_EACH], largest = 0.0f;
    GPU_UNROLL
    for (int32_t j = 0; j < SHARE_WIDEST / SHARE_EACH; j += 4) {
        gpu_quad four = {{0u, 0u, 0u, 0u}};
        if (j >= each) continue;
        if (real && head < at.n_heads) four = gpu_load_quad(from, i0 + j);
        GPU_UNROLL
        for (int32_t k = 0; k < 4; k++) {
            v[j + k] = p->scale * gpu_bits_f32(four.w[k]);
            largest = gpu_max(largest, gpu_abs(v[j + k]));
        }
    }
    GPU_UNROLL
    for (int32_t m = 1; m < SHARE_EACH; m *= 2) largest = gpu_max(largest, gpu_shuffle(largest, lane ^ m));
    /* The largest becomes 2^14 and more; below 2^-112 f16 does without the rest. */
    const uint32_t bits = gpu_f32_bits(largest) >> 23, exponent = bits < 15u ? 15u : bits;
    const float up = gpu_bits_f32((268u - exponent) << 23);
    if (i0 == 0) gpu_store(query.factor, head, gpu_bits_f32((exponent - 14u) << 23));
    GPU_UNROLL
    for (int32_t j = 0; j < SHARE_WIDEST / SHARE_EACH; j += 4) {
        const int32_t to = head * (dim + SHARE_GAP) + i0 + j;
        uint32_t high[2], low[2];
        if (j >= each) continue;
        GPU_UNROLL
        for (int32_t k = 0; k < 2; k++) {
            const float a = v[j + 2 * k] * up, b = v[j + 2 * k + 1] * up;
            high[k] = gpu_pack_f16(a, b);
            low[k] = gpu_pack_f16(a - gpu_f16_to_f32(high[k] & 0xFFFFu), b - gpu_f16_to_f32(high[k] >> 16));
        }
        gpu_store((GPU_SHARED(u64) *)(query.of + to), 0, high[0] | (uint64_t)high[1] << 32);
        gpu_store((GPU_SHARED(u64) *)(query.of + (SHARE_HEADS * (dim + SHARE_GAP) + to)), 0, low[0] | (uint64_t)low[1] << 32);
    }
}

/* ---- joining waves ---- */

/* Leaves a wave's sums of a block: of heads 2 t and 2 t + 1 the numbers 8 g ... 8 g + 7, and those 64 further. */
GPU_FN void share_leave(const GPU_PRIVATE(share_state) *st, GPU_SHARED(f32) *sums, int32_t block, int32_t dim, int32_t wave, int32_t lane)
{
    const int32_t g = lane / 4, t = lane % 4;
    GPU_UNROLL
    for (int32_t i = 0; i < 8; i++) {
        const int32_t head = 2 * t + i % 2, side = i / 2 % 2, j0 = i / 4 * 4;
        const int32_t at = (wave * SHARE_HEADS + head) * (SHARE_BLOCK + SHARE_SUMS_GAP) + side * 64 + 8 * g + j0;
        gpu_quad four;
        if (block * SHARE_BLOCK + side * 64 >= dim) continue;
        GPU_UNROLL
        for (int32_t j = 0; j < 4; j++) four.w[j] = gpu_f32_bits(st->sum[(block * 8 + j0 + j) * 4 + side * 2 + i % 2]);
        gpu_store_quad(sums, at, four);
    }
}

GPU_FN void share_end(const GPU_CONSTANT(mox_gpu_attention) *p, GPU_PRIVATE(share_state) *st, share_room room, share_place place,
                       int64_t i_span, int64_t piece, int64_t n_pieces, int32_t dim, int32_t me)
{
    const int32_t lane = me % GPU_LANES, wave = me / GPU_LANES, g = lane / 4, t = lane % 4;
    float denom = st->peak.denom, top = -GPU_INFINITY;
    GPU_UNROLL
    for (int32_t m = 1; m < 4; m *= 2) denom += gpu_shuffle(denom, lane ^ m);
    if (t == 0) gpu_store(room.maxima, wave * SHARE_HEADS + g, st->peak.max);
    gpu_barrier();
    GPU_UNROLL
    for (int32_t w = 0; w < SHARE_WAVES; w++) top = gpu_max(top, gpu_load(room.maxima, w * SHARE_HEADS + g));
    const float shrink = weight_of(st->peak.max, top), first = gpu_shuffle(shrink, 8 * t), second = gpu_shuffle(shrink, 8 * t + 4);
    if (t == 0) gpu_store(room.denoms, wave * SHARE_HEADS + g, denom * shrink);
    GPU_UNROLL
    for (int32_t i = 0; i < SHARE_WIDEST / 2; i++)
        if (i / 32 * SHARE_BLOCK < dim) st->sum[i] *= i % 2 == 0 ? first : second;
    GPU_UNROLL
    for (int32_t block = 0; block < SHARE_WIDEST / SHARE_BLOCK; block++) {
        if (block * SHARE_BLOCK >= dim) continue; /* the whole group */
        if (block > 0) gpu_barrier();
        share_leave(st, room.sums, block, dim, wave, lane);
        gpu_barrier();
        GPU_UNROLL
        for (int32_t r = 0; r < SHARE_HEADS / SHARE_WAVES; r++) {
            const int32_t h = r * SHARE_WAVES + wave, d = block * SHARE_BLOCK + 4 * lane;
            const int64_t head = place.head0 + h;
            float max = -GPU_INFINITY, all = 0.0f, sum[4];
            if (h >= place.n_heads || d >= dim) continue;
            GPU_UNROLL
            for (int32_t i = 0; i < 4; i++) sum[i] = 0.0f;
            GPU_UNROLL
            for (int32_t w = 0; w < SHARE_WAVES; w++) {
                const gpu_quad four = gpu_load_quad(room.sums, (w * SHARE_HEADS + h) * (SHARE_BLOCK + SHARE_SUMS_GAP) + 4 * lane);
                max = gpu_max(max, gpu_load(room.maxima, w * SHARE_HEADS + h));
                all += gpu_load(room.denoms, w * SHARE_HEADS + h);
                GPU_UNROLL
                for (int32_t i = 0; i < 4; i++) sum[i] += gpu_bits_f32(four.w[i]);
            }
            if (n_pieces > 1) {
                const int64_t i_piece = piece_at(p, i_span, head, piece);
                gpu_quad four;
                GPU_UNROLL
                for (int32_t i = 0; i < 4; i++) four.w[i] = gpu_f32_bits(sum[i]);
                gpu_store_quad(p->parts, i_piece * dim + d, four);
                if (d == 0) gpu_store(p->parts, pairs_at(p) + 2 * i_piece, max);
                if (d == 0) gpu_store(p->parts, pairs_at(p) + 2 * i_piece + 1, all);
                continue;
            }
            const float sink = sink_of(p, head), highest = gpu_max(max, sink), less = weight_of(max, highest);
            const float whole = all * less + weight_of(sink, highest);
            GPU_UNROLL
            for (int32_t i = 0; i < 4; i++)
                gpu_store(p->out, out_at(p, place.row, head) + d + i, whole == 0.0f ? 0.0f : sum[i] * less / whole);
        }
    }
}

/* ---- the whole ---- */

GPU_FN void share_group(const GPU_CONSTANT(mox_gpu_attention) *p, share_room room, int32_t dim, int32_t x, int64_t i_span, int64_t piece,
                        int32_t me)
{
    const int32_t lane = me % GPU_LANES, wave = me / GPU_LANES;
    const int32_t per_kv = (int32_t)p->heads / (int32_t)p->kv_heads, blocks = (per_kv + SHARE_HEADS - 1) / SHARE_HEADS;
    const mox_gpu_span s = gpu_load(p->spans, i_span);
    const key_range keys = keys_of(p, s, 0);
    const int32_t begin = (int32_t)(keys.first + piece * keys.piece_len), last = (int32_t)least(keys.last, begin + keys.piece_len);
    const bool is_mine = s.n == 1 && piece < keys.n_pieces; /* the same in the whole group */
    share_place at;
    at.kv_head = x / blocks;
    at.head0 = at.kv_head * per_kv + x % blocks * SHARE_HEADS;
    at.n_heads = (int32_t)least(SHARE_HEADS, (at.kv_head + 1) * per_kv - at.head0);
    at.row = s.row0;
    int32_t tile = begin + wave * SHARE_KEYS;
    share_where where;
    share_step step;
    share_state st;
    float score[4];
    const int32_t stride = SHARE_WAVES * SHARE_KEYS;
    const bool is_old = is_mine && tile + SHARE_KEYS <= least(last, s.pos0); /* the launch in front may have appended the row's own key */
    where = share_find(p, s, tile, last, lane);
    if (is_old) { /* a whole wave */
        share_fetch_keys(p, where, at.kv_head, dim, lane, &step);
        share_fetch_values(p, where, at.kv_head, dim, lane, &step);
    }
    gpu_previous(); /* spans and pages are older */
    if (!is_mine) return; /* the whole group */
    GPU_UNROLL
    for (int32_t i = 0; i < SHARE_WIDEST / 2; i++) st.sum[i] = 0.0f;
    st.peak.max = -GPU_INFINITY;
    st.peak.denom = 0.0f;
    share_queries(p, at, room.query, true, dim, me);
    if (!is_old) { /* a whole wave */
        share_fetch_keys(p, where, at.kv_head, dim, lane, &step);
        share_fetch_values(p, where, at.kv_head, dim, lane, &step);
    }
    where = share_find(p, s, tile + stride, last, lane);
    gpu_barrier();
    /* The same in a wave.  Keys of the next step come while values are added, and the other way round; without a question, else
     * nvcc waits for values to copy them to other registers. */
    for (; tile < last; tile += stride) {
        share_scores(&step, room.query, lane / 4, last - tile, dim, lane, score);
        share_fetch_keys(p, where, at.kv_head, dim, lane, &step);
        const float shrink = share_weigh(score, lane, &st.peak);
        share_values(&step, score, shrink, dim, lane, &st);
        share_fetch_values(p, where, at.kv_head, dim, lane, &step);
        where = share_find(p, s, tile + 2 * stride, last, lane);
    }
    share_end(p, &st, room, at, i_span, piece, keys.n_pieces, dim, me);
}

GPU_KERNEL_HASTY(attention_share_64, SHARE_THREADS)
{
    GPU_SHARED_ARRAY(quad, planes, 2 * SHARE_HEADS * (64 + SHARE_GAP) / 8);
    GPU_SHARED_ARRAY(quad, numbers, SHARE_NUMBERS / 4);
    share_group(p, share_room_of(planes, numbers), 64, (int32_t)gpu_group_x(), gpu_group_y(), gpu_group_z(), gpu_thread());
}

GPU_KERNEL_HASTY_DENSE(attention_share_128, SHARE_THREADS, 2)
{
    GPU_SHARED_ARRAY(quad, planes, 2 * SHARE_HEADS * (128 + SHARE_GAP) / 8);
    GPU_SHARED_ARRAY(quad, numbers, SHARE_NUMBERS / 4);
    share_group(p, share_room_of(planes, numbers), 128, (int32_t)gpu_group_x(), gpu_group_y(), gpu_group_z(), gpu_thread());
}

GPU_KERNEL_HASTY(attention_share_256, SHARE_THREADS)
{
    GPU_SHARED_ARRAY(quad, planes, 2 * SHARE_HEADS * (256 + SHARE_GAP) / 8);
    GPU_SHARED_ARRAY(quad, numbers, SHARE_NUMBERS / 4);
    share_group(p, share_room_of(planes, numbers), 256, (int32_t)gpu_group_x(), gpu_group_y(), gpu_group_z(), gpu_thread());
}

#endif
