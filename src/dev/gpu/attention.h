/* dev/gpu/attention.h -- key/value caches and softmax attention.
 *
 * A group takes one row of one head and goes through its keys in tiles of 128: every thread
 * makes the score of one key, then every thread adds up some elements of the values.  Sums are
 * kept relative to the largest score so far, so no length is too long.
 *
 * A row that is alone in its span (decoding) is cut into pieces which groups share; how, follows
 * from the keys it sees alone. */
#ifndef MOX_DEV_GPU_ATTENTION_H
#define MOX_DEV_GPU_ATTENTION_H

#include "dev/gpu/group.h"
#include "dev/gpu/number.h"

enum {
    ATTENTION_THREADS = 128, /* and keys of a tile */
    ATTENTION_SUMS = MOX_GPU_ATTENTION_DIM / ATTENTION_THREADS,
    PIECE_LEAST = 128,       /* keys */
    PIECE_STEP = 64,
    APPEND_WAVES = 4,
    Q8_BLOCK = 32,
    Q8_BYTES = 34
};

/* ---- spans and caches ---- */

/* The span that holds row `row` of the work, counted over the spans; *i is its row in there. */
GPU_FN int64_t span_of_row(const GPU_GLOBAL(span) *spans, int64_t row, GPU_PRIVATE(i64) *i)
{
    int64_t s = 0;
    for (;; s++) {
        const mox_gpu_span span = gpu_load(spans, s);
        if (row < span.n) break;
        row -= span.n;
    }
    *i = row;
    return s;
}

/* Element of the cache where the vector of a position and head begins. */
GPU_FN int64_t cache_offset(mox_gpu_cache c, const GPU_GLOBAL(i32) *pages, int64_t pos, int64_t head)
{
    /* Positions are int32, and dividing them as such takes a fraction of the time. */
    const int32_t len = (int32_t)c.page_len, i = (int32_t)pos / len;
    return (int64_t)gpu_load(pages, i) * c.page_stride + ((int32_t)pos - i * len) * c.token_stride + head * c.head_stride;
}

/* Number i of the vector at an offset. */
GPU_FN float cache_number(mox_gpu_cache c, int64_t offset, int64_t i)
{
    if (c.type == MOX_GPU_F32) return gpu_load(GPU_CAST(f32, c.data), offset + i);
    if (c.type == MOX_GPU_F16) return gpu_f16_to_f32(gpu_load(GPU_CAST(u16, c.data), offset + i));
    const GPU_GLOBAL(u8) *block = c.data + (offset + i / Q8_BLOCK * Q8_BYTES);
    const int32_t code = (int32_t)gpu_bytes_u8(block, 2 + i % Q8_BLOCK);
    return gpu_f16_to_f32(gpu_bytes_u16(block, 0)) * (float)(code < 128 ? code : code - 256);
}

/* ---- kv_append ---- */

/* Element `at` of a cache of f32 or f16. */
GPU_FN void store_cached(mox_gpu_cache c, int64_t at, float v)
{
    if (c.type == MOX_GPU_F32) gpu_store((GPU_GLOBAL(f32) *)c.data, at, v);
    else gpu_store((GPU_GLOBAL(u16) *)c.data, at, gpu_f32_to_f16(v));
}

GPU_FN int32_t q8_code(float v, float scale)
{
    const float code = gpu_rint(v / scale);
    return (int32_t)(code > 127.0f ? 127.0f : code < -127.0f ? -127.0f : code);
}

/* One block of ops/q8.h, a lane per number; n of them are there.  NaN, infinity and what f16
 * cannot scale make the block NaN, as there. */
GPU_FN void store_q8_block(const GPU_GLOBAL(f32) *src, int64_t n, GPU_GLOBAL(u16) *block, int32_t lane)
{
    const float v = lane < n ? gpu_load(src, lane) : 0.0f;
    const float largest = gpu_lane_max(gpu_abs(v));
    const bool some_nan = gpu_lane_max(gpu_isnan(v) ? 1.0f : 0.0f) > 0.0f;
    const uint16_t bits = some_nan ? (uint16_t)0x7E00 : gpu_f32_to_f16(largest / 127.0f);
    const float scale = gpu_f16_to_f32(bits);
    const bool plain = scale > 0.0f && scale < GPU_INFINITY;
    const int32_t code = plain ? q8_code(v, scale) : 0;
    const int32_t next = gpu_shuffle_i32(code, (lane + 1) % GPU_LANES);
    if (lane == 0) gpu_store(block, 0, bits);
    if (lane % 2 == 0) gpu_store(block, 1 + lane / 2, (uint16_t)((code & 255) | (next & 255) << 8));
}

GPU_KERNEL(kv_append, APPEND_WAVES * GPU_LANES)
{
    const int32_t lane = gpu_thread() % GPU_LANES;
    const int64_t h = gpu_group_x() * APPEND_WAVES + gpu_thread() / GPU_LANES;
    if (h >= p->heads) return; /* a whole wave, and no barrier follows */
    int64_t i;
    const mox_gpu_span s = gpu_load(p->spans, span_of_row(p->spans, gpu_group_y(), &i));
    const mox_gpu_cache c = p->cache;
    const GPU_GLOBAL(f32) *src = p->src + ((s.row0 + i) * p->stride + h * p->head_stride);
    const int64_t at = cache_offset(c, s.pages, s.pos0 + i, h);
    if (c.type == MOX_GPU_Q8) {
        for (int64_t d = 0; d < p->dim; d += Q8_BLOCK)
            store_q8_block(src + d, p->dim - d, (GPU_GLOBAL(u16) *)(c.data + (at + d / Q8_BLOCK * Q8_BYTES)), lane);
        return;
    }
    for (int64_t d = lane; d < p->dim; d += GPU_LANES) store_cached(c, at + d, gpu_load(src, d));
}

/* ---- attention ---- */

/* Keys [first, last) of a row, and how they are cut. */
typedef struct key_range {
    int64_t first, last;
    int64_t n_pieces, piece_len;
} key_range;

GPU_FN key_range keys_of(const GPU_CONSTANT(mox_gpu_attention) *p, mox_gpu_span s, int64_t i)
{
    const int64_t pos = s.pos0 + i;
    key_range r;
    r.last = p->causal != 0 ? pos + 1 : s.pos0 + s.n;
    r.first = p->window > 0 ? most(0, pos - p->window + 1) : 0;
    r.n_pieces = 1;
    r.piece_len = r.last - r.first;
    if (s.n != 1 || p->n_pieces <= 1 || r.piece_len <= PIECE_LEAST) return r;
    /* Numbers of keys are int32, as in cache_offset. */
    const int32_t n = (int32_t)r.piece_len, most_pieces = (int32_t)p->n_pieces, len = (n + most_pieces - 1) / most_pieces;
    const int32_t whole = (int32_t)most(PIECE_LEAST, (len + PIECE_STEP - 1) / PIECE_STEP * PIECE_STEP);
    r.piece_len = whole;
    r.n_pieces = (n + whole - 1) / whole;
    return r;
}

/* query holds q and then q2. */
GPU_FN float score_of(const GPU_CONSTANT(mox_gpu_attention) *p, const GPU_SHARED(f32) *query, mox_gpu_span s, int64_t j,
                      int64_t kv_head)
{
    float dot = 0.0f;
    const mox_gpu_cache k = p->k;
    const int64_t at = cache_offset(k, s.pages, j, kv_head);
    for (int64_t d = 0; d < p->dim; d++) dot += gpu_load(query, d) * cache_number(k, at, d);
    if (p->dim2 > 0) {
        const mox_gpu_cache k2 = p->k2;
        const int64_t at2 = cache_offset(k2, s.pages, j, kv_head);
        for (int64_t d = 0; d < p->dim2; d++) dot += gpu_load(query, p->dim + d) * cache_number(k2, at2, d);
    }
    return p->scale * dot;
}

/* e^(v - max), 0 for -inf even where max is -inf as well.  No branch: many of them are under way at once. */
GPU_FN float weight_of(float v, float max) { return gpu_exp(v - (max == -GPU_INFINITY ? 0.0f : max)); }

/* Element d of this thread's sums, out of those that it owns. */
GPU_FN int64_t sum_at(int32_t j, int32_t me) { return (int64_t)j * ATTENTION_THREADS + me; }

/* sum <- sum * shrink + weights of the tile times its values. */
GPU_FN void add_values(const GPU_CONSTANT(mox_gpu_attention) *p, const GPU_SHARED(f32) *weights, mox_gpu_span s, int64_t tile,
                       int64_t n, int64_t kv_head, float shrink, int32_t me, GPU_PRIVATE(f32) *sum)
{
    const mox_gpu_cache v = p->v;
    GPU_UNROLL
    for (int32_t j = 0; j < ATTENTION_SUMS; j++) sum[j] *= shrink;
    for (int64_t i = 0; i < n; i++) {
        const float weight = gpu_load(weights, i);
        const int64_t at = cache_offset(v, s.pages, tile + i, kv_head);
        GPU_UNROLL
        for (int32_t j = 0; j < ATTENTION_SUMS; j++)
            if (sum_at(j, me) < p->v_dim) sum[j] += weight * cache_number(v, at, sum_at(j, me));
    }
}

GPU_FN int64_t part_at(const GPU_CONSTANT(mox_gpu_attention) *p, int64_t span, int64_t head, int64_t piece)
{
    return ((span * p->heads + head) * p->n_pieces + piece) * (p->v_dim + 2);
}

/* Which piece of all it is: share.h leaves v_dim sums of each, and behind all of them maxima and denominators as pairs. */
GPU_FN int64_t piece_at(const GPU_CONSTANT(mox_gpu_attention) *p, int64_t span, int64_t head, int64_t piece)
{
    return (span * p->heads + head) * p->n_pieces + piece;
}
GPU_FN int64_t pairs_at(const GPU_CONSTANT(mox_gpu_attention) *p) { return piece_at(p, p->n_spans, 0, 0) * p->v_dim; }

GPU_FN int64_t out_at(const GPU_CONSTANT(mox_gpu_attention) *p, int64_t row, int64_t head)
{
    return row * p->out_stride + head * p->out_head_stride;
}

/* The sink of a head: one more score, whose value is nothing. */
GPU_FN float sink_of(const GPU_CONSTANT(mox_gpu_attention) *p, int64_t head)
{
    return p->sinks ? gpu_load(p->sinks, head) : -GPU_INFINITY;
}

GPU_KERNEL(attention, ATTENTION_THREADS)
{
    GPU_SHARED_ARRAY(f32, query, MOX_GPU_ATTENTION_DIM);
    GPU_SHARED_ARRAY(f32, weights, ATTENTION_THREADS);
    GPU_SHARED_ARRAY(f32, scratch, ATTENTION_THREADS / GPU_LANES);
    const int32_t me = gpu_thread();
    const int64_t head = gpu_group_x(), piece = gpu_group_z(), kv_head = head / (p->heads / p->kv_heads);
    int64_t i;
    const int64_t i_span = span_of_row(p->spans, gpu_group_y(), &i);
    const mox_gpu_span s = gpu_load(p->spans, i_span);
    const key_range keys = keys_of(p, s, i);
    if (piece >= keys.n_pieces) return; /* the whole group */
    const int64_t first = keys.first + piece * keys.piece_len, last = least(keys.last, first + keys.piece_len), row = s.row0 + i;
    for (int64_t d = me; d < p->dim; d += ATTENTION_THREADS)
        gpu_store(query, d, gpu_load(p->q, row * p->q_stride + head * p->q_head_stride + d));
    for (int64_t d = me; d < p->dim2; d += ATTENTION_THREADS)
        gpu_store(query, p->dim + d, gpu_load(p->q2, row * p->q2_stride + head * p->q2_head_stride + d));
    gpu_barrier();

    float max = -GPU_INFINITY, denom = 0.0f, sum[ATTENTION_SUMS];
    GPU_UNROLL
    for (int32_t j = 0; j < ATTENTION_SUMS; j++) sum[j] = 0.0f;
    for (int64_t tile = first; tile < last; tile += ATTENTION_THREADS) {
        const int64_t n = least(ATTENTION_THREADS, last - tile);
        const float score = me < n ? score_of(p, query, s, tile + me, kv_head) : -GPU_INFINITY;
        const float new_max = gpu_max(max, group_max(score, scratch, me, ATTENTION_THREADS));
        const float weight = weight_of(score, new_max);
        gpu_store(weights, me, weight); /* the barriers of group_max are behind who read the last tile's */
        const float tile_sum = group_sum(weight, scratch, me, ATTENTION_THREADS); /* its barriers order weights, too */
        const float shrink = weight_of(max, new_max);
        denom = denom * shrink + tile_sum;
        add_values(p, weights, s, tile, n, kv_head, shrink, me, sum);
        max = new_max;
    }

    if (keys.n_pieces > 1) {
        GPU_GLOBAL(f32) *part = p->parts + part_at(p, i_span, head, piece);
        if (me == 0) {
            gpu_store(part, 0, max);
            gpu_store(part, 1, denom);
        }
        GPU_UNROLL
        for (int32_t j = 0; j < ATTENTION_SUMS; j++)
            if (sum_at(j, me) < p->v_dim) gpu_store(part, 2 + sum_at(j, me), sum[j]);
        return;
    }
    const float sink = sink_of(p, head), top = gpu_max(max, sink), shrink = weight_of(max, top);
    denom = denom * shrink + weight_of(sink, top);
    GPU_UNROLL
    for (int32_t j = 0; j < ATTENTION_SUMS; j++)
        if (sum_at(j, me) < p->v_dim)
            gpu_store(p->out, out_at(p, row, head) + sum_at(j, me), denom == 0.0f ? 0.0f : sum[j] * shrink / denom);
}

GPU_KERNEL(attention_merge, ATTENTION_THREADS)
{
    const int32_t me = gpu_thread();
    const int64_t head = gpu_group_x(), i_span = gpu_group_y();
    const mox_gpu_span s = gpu_load(p->spans, i_span);
    if (s.n != 1) return;
    const key_range keys = keys_of(p, s, 0);
    if (keys.n_pieces == 1) return;
    const float sink = sink_of(p, head);
    float max = sink;
    for (int64_t i = 0; i < keys.n_pieces; i++) max = gpu_max(max, gpu_load(p->parts, part_at(p, i_span, head, i)));
    float denom = weight_of(sink, max);
    for (int64_t i = 0; i < keys.n_pieces; i++) {
        const int64_t part = part_at(p, i_span, head, i);
        denom += weight_of(gpu_load(p->parts, part), max) * gpu_load(p->parts, part + 1);
    }
    for (int64_t d = me; d < p->v_dim; d += ATTENTION_THREADS) {
        float sum = 0.0f;
        for (int64_t i = 0; i < keys.n_pieces; i++) {
            const int64_t part = part_at(p, i_span, head, i);
            sum += weight_of(gpu_load(p->parts, part), max) * gpu_load(p->parts, part + 2 + d);
        }
        gpu_store(p->out, out_at(p, s.row0, head) + d, denom == 0.0f ? 0.0f : sum / denom);
    }
}

#endif
