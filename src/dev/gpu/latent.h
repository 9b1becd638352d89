/* dev/gpu/latent.h -- latent attention of few tokens: decoding.
 *
 * What lies between products and attention is one launch; folding and unfolding read 4-bit weights that
 * matvec4.h could, all of which are asked for before the launch in front has ended.
 *
 * In attention itself the value of a key is the key's latent part, so what a wave has loaded for a score it adds up
 * afterwards.  A wave has two heads, so a key is loaded and converted once for both; the waves of a group are
 * streams of keys of the same heads, or have other heads and find the keys in the cache of their processor. */
#ifndef MOX_DEV_GPU_LATENT_H
#define MOX_DEV_GPU_LATENT_H

#include "dev/gpu/attention.h"
#include "dev/gpu/matvec4.h"
#include "dev/gpu/norm.h"

/* ---- between products and attention ---- */

enum { LATENT_THREADS = 128, LATENT_WAVES = LATENT_THREADS / GPU_LANES, LATENT_KEPT = GAINS_MOST };

/* Pair number i of what is turned by an angle. */
typedef struct turned {
    int64_t i0, i1;
    float c, s;
} turned;
GPU_FN turned turn_of(const GPU_CONSTANT(mox_gpu_mla_heads) *p, float pos, int64_t i)
{
    const float angle = pos * gpu_load(p->inv_freq, i);
    turned r;
    r.i0 = p->interleaved != 0 ? 2 * i : i;
    r.i1 = p->interleaved != 0 ? 2 * i + 1 : i + p->rope / 2;
    r.c = gpu_cos(angle) * p->mscale;
    r.s = gpu_sin(angle) * p->mscale;
    return r;
}

/* The first group norms the latent part and appends it, and turns the key and appends that; in the others a wave has a
 * head of q. */
GPU_KERNEL_EARLY(mla_heads, LATENT_THREADS)
{
    GPU_SHARED_ARRAY(f32, scratch, LATENT_WAVES);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES;
    const int64_t group = gpu_group_x(), t = gpu_group_y();
    const float pos = (float)gpu_load(p->pos, t);
    const turned first = turn_of(p, pos, least(lane, p->rope / 2 - 1));
    if (group == 0) { /* the whole group */
        const GPU_GLOBAL(f32) *kv = p->kv + t * (p->rank + p->rope);
        int64_t i_row;
        const mox_gpu_span span = gpu_load(p->spans, span_of_row(p->spans, t, &i_row));
        const int64_t at = cache_offset(p->latent, span.pages, span.pos0 + i_row, 0);
        const int64_t at_pe = cache_offset(p->k_pe, span.pages, span.pos0 + i_row, 0);
        float v[LATENT_KEPT], gain[LATENT_KEPT], sum = 0.0f;
        load_gains(p->weight, 0.0f, me, LATENT_THREADS, p->rank, gain);
        gpu_previous();
        GPU_UNROLL
        for (int32_t j = 0; j < LATENT_KEPT; j++) v[j] = j * LATENT_THREADS + me < p->rank ? gpu_load(kv, j * LATENT_THREADS + me) : 0.0f;
        GPU_UNROLL
        for (int32_t j = 0; j < LATENT_KEPT; j++) sum += v[j] * v[j];
        const float factor = inverse_rms(group_sum(sum, scratch, me, LATENT_THREADS), p->rank, p->eps);
        GPU_UNROLL
        for (int32_t j = 0; j < LATENT_KEPT; j++)
            if (j * LATENT_THREADS + me < p->rank) store_cached(p->latent, at + j * LATENT_THREADS + me, v[j] * factor * gain[j]);
        for (int64_t i = lane; i < p->rope / 2 && me < GPU_LANES; i += GPU_LANES) {
            turned r = first;
            if (i != lane) r = turn_of(p, pos, i);
            const float v0 = gpu_load(kv, p->rank + r.i0), v1 = gpu_load(kv, p->rank + r.i1);
            store_cached(p->k_pe, at_pe + r.i0, v0 * r.c - v1 * r.s);
            store_cached(p->k_pe, at_pe + r.i1, v1 * r.c + v0 * r.s);
        }
        return;
    }
    const int64_t head = (group - 1) * LATENT_WAVES + me / GPU_LANES;
    gpu_previous();
    if (head >= p->heads) return; /* a whole wave, and no barrier follows */
    const GPU_GLOBAL(f32) *q = p->q_full + (t * p->heads + head) * (p->nope + p->rope);
    GPU_GLOBAL(f32) *nope = p->q_nope + (t * p->heads + head) * p->nope, *pe = p->q_pe + (t * p->heads + head) * p->rope;
    for (int64_t i = lane; i < p->nope; i += GPU_LANES) gpu_store(nope, i, gpu_load(q, i));
    for (int64_t i = lane; i < p->rope / 2; i += GPU_LANES) {
        turned r = first;
        if (i != lane) r = turn_of(p, pos, i);
        const float v0 = gpu_load(q, p->nope + r.i0), v1 = gpu_load(q, p->nope + r.i1);
        gpu_store(pe, r.i0, v0 * r.c - v1 * r.s);
        gpu_store(pe, r.i1, v1 * r.c + v0 * r.s);
    }
}

/* ---- folding the key projection into the query ---- */

enum { FOLD_WAVES = 8, FOLD_THREADS = FOLD_WAVES * GPU_LANES, FOLD_COLS = 512, FOLD_PART = 16, FOLD_ROWS = 16 };

/* Sixteen codes of a row, and their scale. */
typedef struct fold_row {
    uint64_t codes;
    uint16_t scale, bias;
} fold_row;
GPU_TYPE(fold_row, fold_row);

/* Codes are exact in a float whose last bit counts one. */
GPU_FN float fold_code(uint64_t codes, int32_t i)
{
    return gpu_bits_f32(0x4B000000u | ((uint32_t)(codes >> (4 * i)) & 15u)) - 8388608.0f;
}

/* A wave takes every FOLD_WAVES-th row of the head, a lane 16 columns of it; the waves are joined in their order. */
GPU_KERNEL_EARLY(mla4_fold, FOLD_THREADS)
{
    GPU_SHARED_ARRAY(f32, parts, FOLD_WAVES * FOLD_COLS);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, wave = me / GPU_LANES, nope = (int32_t)p->nope;
    const int64_t h = gpu_group_y(), t = gpu_group_z(), col0 = gpu_group_x() * FOLD_COLS;
    const int64_t col = least(col0 + lane * FOLD_PART, p->rank - FOLD_PART); /* a lane beyond the end makes nothing of use */
    const mox_gpu_mat w = p->w;
    float sum[FOLD_PART], base = 0.0f;
    fold_row row[FOLD_ROWS];
    GPU_UNROLL
    for (int32_t c = 0; c < FOLD_PART; c++) sum[c] = 0.0f;
    for (int32_t first = 0; first < nope; first += FOLD_WAVES * FOLD_ROWS) {
        GPU_UNROLL
        for (int32_t j = 0; j < FOLD_ROWS; j++) {
            const int64_t r = h * p->head_rows + least(first + j * FOLD_WAVES + wave, nope - 1), at = r * w.scale_cols + col / 64;
            row[j].codes = gpu_bytes_u64(w.w, r * w.row_bytes + col / 2);
            row[j].scale = gpu_load(GPU_CAST(u16, w.scales), at);
            row[j].bias = gpu_load(GPU_CAST(u16, w.biases), at);
        }
        if (first == 0) gpu_previous();
        GPU_UNROLL
        for (int32_t j = 0; j < FOLD_ROWS; j++) {
            const int32_t i = first + j * FOLD_WAVES + wave;
            const float q = i < nope ? gpu_load(p->q, (t * p->heads + h) * p->nope + i) : 0.0f, scaled = q * bf16_to_f32(row[j].scale);
            base += q * bf16_to_f32(row[j].bias);
            GPU_UNROLL
            for (int32_t c = 0; c < FOLD_PART; c++) sum[c] += scaled * fold_code(row[j].codes, c);
        }
    }
    GPU_UNROLL
    for (int32_t c = 0; c < FOLD_PART; c++) gpu_store(parts, wave * FOLD_COLS + c * GPU_LANES + lane, sum[c] + base);
    gpu_barrier();
    for (int32_t i = me; i < FOLD_COLS; i += FOLD_THREADS) { /* column lane * 16 + c is at c * 32 + lane: no two lanes in one bank */
        const int32_t at = i % FOLD_PART * GPU_LANES + i / FOLD_PART;
        float all = 0.0f;
        for (int32_t j = 0; j < FOLD_WAVES; j++) all += gpu_load(parts, j * FOLD_COLS + at);
        if (col0 + i < p->rank) gpu_store(p->out, (t * p->heads + h) * p->rank + col0 + i, all);
    }
}

/* ---- unfolding the values ---- */

enum { UNFOLD_ROWS = FOUR_WAVES * 16, UNFOLD_HELD = 2, UNFOLD_CHUNKS = MOX_GPU_ATTENTION_DIM / FOUR_CHUNK };

/* A wave takes 16 rows of a head and all chunks; each chunk of x is split by one of the waves. */
GPU_KERNEL_EARLY(mla4_unfold, FOUR_THREADS)
{
    GPU_SHARED_ARRAY(quad, planes, UNFOLD_CHUNKS * FOUR_QUADS + FOUR_ZEROS);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, wave = me / GPU_LANES, n_chunks = (int32_t)p->w.cols / FOUR_CHUNK;
    const int64_t h = gpu_group_y(), t = gpu_group_z(), r = gpu_group_x() * UNFOLD_ROWS + wave * 16;
    const int64_t row = h * p->head_rows + p->first_row + r;
    GPU_SHARED(quad) *zeros = planes + UNFOLD_CHUNKS * FOUR_QUADS;
    four_tile tile[UNFOLD_HELD];
    float sum[2];
    sum[0] = sum[1] = 0.0f;
    four_zeros(zeros, me);
    GPU_UNROLL
    for (int32_t i = 0; i < UNFOLD_HELD; i++)
        if (i < n_chunks) four_load(p->w, row, i, lane, &tile[i]);
    gpu_previous();
    if (wave < n_chunks)
        four_split(p->x + (t * p->x_stride + h * p->x_head_stride + wave * FOUR_CHUNK), planes + wave * FOUR_QUADS, lane);
    gpu_barrier();
    for (int32_t first = 0; first < n_chunks; first += UNFOLD_HELD) {
        GPU_UNROLL
        for (int32_t i = 0; i < UNFOLD_HELD; i++) {
            const int32_t chunk = first + i, next = chunk + UNFOLD_HELD;
            if (chunk >= n_chunks) continue; /* the whole group */
            four_dots(&tile[i], 1, planes + chunk * FOUR_QUADS, zeros, 1.0f, lane, sum);
            if (next < n_chunks) four_load(p->w, row, next, lane, &tile[i]);
        }
    }
    GPU_UNROLL
    for (int32_t i = 0; i < 2; i++) {
        sum[i] += gpu_shuffle(sum[i], lane ^ 1);
        sum[i] += gpu_shuffle(sum[i], lane ^ 2);
    }
    if (lane % 4 != 0) return; /* no barrier follows */
    GPU_UNROLL
    for (int32_t i = 0; i < 2; i++)
        if (r + lane / 4 + 8 * i < p->rows)
            gpu_store(p->y, t * p->y_stride + h * p->y_head_stride + r + lane / 4 + 8 * i, sum[i]);
}

/* ---- attention ---- */

enum { LATENT_QUADS = MOX_GPU_LATENT_RANK / (8 * GPU_LANES), LATENT_PART = 8 * LATENT_QUADS, LATENT_HEADS = 2, LATENT_AHEAD = 4,
       STREAM_WAVES = 8, STREAM_THREADS = STREAM_WAVES * GPU_LANES };

/* A key of a lane: 16 numbers of its latent part, two of the turned one. */
typedef struct latent_key {
    gpu_quad latent[LATENT_QUADS];
    uint32_t pe;
} latent_key;
GPU_TYPE(latent_key, latent_key);

GPU_FN void latent_load(const GPU_CONSTANT(mox_gpu_attention_latent) *p, mox_gpu_span s, int64_t j, int32_t lane,
                        GPU_PRIVATE(latent_key) *key)
{
    const int64_t at = cache_offset(p->a.k, s.pages, j, 0), at2 = cache_offset(p->a.k2, s.pages, j, 0);
    GPU_UNROLL
    for (int32_t i = 0; i < LATENT_QUADS; i++) key->latent[i] = gpu_load(GPU_CAST(quad, p->a.k.data), at / 8 + i * GPU_LANES + lane);
    key->pe = gpu_load(GPU_CAST(u32, p->a.k2.data), at2 / 2 + lane);
}

/* What a wave keeps of each of its heads. */
typedef struct latent_state {
    float q[LATENT_PART + 2], sum[LATENT_PART];
    float max, denom;
} latent_state;
GPU_TYPE(latent_state, latent_state);

GPU_FN float latent_number(gpu_quad w, int32_t i) { return gpu_f16_to_f32(w.w[i / 2] >> (i % 2 * 16) & 0xFFFFu); }

/* Keys that are not there have no weight, and their numbers, which may be any, are taken for 0. */
GPU_FN void latent_add(const GPU_PRIVATE(latent_key) *key, int32_t n, float scale, GPU_PRIVATE(latent_state) *st)
{
    float score[LATENT_AHEAD], v[LATENT_PART], max = st->max;
    GPU_UNROLL
    for (int32_t a = 0; a < LATENT_AHEAD; a++) {
        float dot = 0.0f;
        GPU_UNROLL
        for (int32_t i = 0; i < LATENT_PART; i++) dot += st->q[i] * latent_number(key[a].latent[i / 8], i % 8);
        const float low = gpu_f16_to_f32(key[a].pe & 0xFFFFu), high = gpu_f16_to_f32(key[a].pe >> 16);
        dot += low * st->q[LATENT_PART] + high * st->q[LATENT_PART + 1];
        dot = gpu_lane_sum(dot);
        score[a] = a < n ? scale * dot : -GPU_INFINITY;
        max = gpu_max(max, score[a]);
    }
    const float shrink = weight_of(st->max, max);
    st->max = max;
    st->denom *= shrink;
    GPU_UNROLL
    for (int32_t i = 0; i < LATENT_PART; i++) st->sum[i] *= shrink;
    GPU_UNROLL
    for (int32_t a = 0; a < LATENT_AHEAD; a++) {
        const float weight = weight_of(score[a], max);
        st->denom += weight;
        GPU_UNROLL
        for (int32_t i = 0; i < LATENT_PART; i++) {
            v[i] = a < n ? latent_number(key[a].latent[i / 8], i % 8) : 0.0f;
            st->sum[i] += weight * v[i];
        }
    }
}

/* Element of the latent that lane `lane` has as number i. */
GPU_FN int32_t latent_at(int32_t i, int32_t lane) { return (i / 8 * GPU_LANES + lane) * 8 + i % 8; }

GPU_KERNEL_EARLY(attention_latent, STREAM_THREADS)
{
    GPU_SHARED_ARRAY(f32, sums, STREAM_WAVES * MOX_GPU_LATENT_RANK);
    GPU_SHARED_ARRAY(f32, maxima, STREAM_WAVES);
    GPU_SHARED_ARRAY(f32, denoms, STREAM_WAVES);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, wave = me / GPU_LANES;
    const int32_t n_streams = (int32_t)p->n_streams, team = wave / n_streams, stream = wave - team * n_streams;
    const int64_t i_span = gpu_group_y(), piece = gpu_group_z();
    const int64_t head0 = (gpu_group_x() * (STREAM_WAVES / n_streams) + team) * LATENT_HEADS;
    const mox_gpu_span s = gpu_load(p->a.spans, i_span);
    const key_range keys = keys_of(&p->a, s, 0);
    gpu_previous(); /* spans are older */
    if (s.n != 1 || piece >= keys.n_pieces) return; /* the whole group */
    const int64_t first = keys.first + piece * keys.piece_len, last = least(keys.last, first + keys.piece_len);
    latent_state st[LATENT_HEADS];
    GPU_UNROLL
    for (int32_t h = 0; h < LATENT_HEADS; h++) {
        const int64_t head = least(head0 + h, p->a.heads - 1); /* one too many is never stored */
        st[h].max = -GPU_INFINITY;
        st[h].denom = 0.0f;
        GPU_UNROLL
        for (int32_t i = 0; i < LATENT_PART; i++) {
            st[h].sum[i] = 0.0f;
            st[h].q[i] = gpu_load(p->a.q, s.row0 * p->a.q_stride + head * p->a.q_head_stride + latent_at(i, lane));
        }
        GPU_UNROLL
        for (int32_t i = 0; i < 2; i++)
            st[h].q[LATENT_PART + i] = gpu_load(p->a.q2, s.row0 * p->a.q2_stride + head * p->a.q2_head_stride + 2 * lane + i);
    }
    for (int64_t j = first; j < last; j += LATENT_AHEAD * n_streams) { /* the same in the whole group */
        const int64_t begin = j + stream * LATENT_AHEAD;
        latent_key key[LATENT_AHEAD];
        GPU_UNROLL
        for (int32_t a = 0; a < LATENT_AHEAD; a++) latent_load(p, s, least(begin + a, last - 1), lane, &key[a]);
        const int32_t n = (int32_t)most(0, least(LATENT_AHEAD, last - begin));
        GPU_UNROLL
        for (int32_t h = 0; h < LATENT_HEADS; h++) latent_add(key, n, p->a.scale, &st[h]);
    }

    /* The streams of a head are joined in their order, one head of each team after the other. */
    GPU_UNROLL
    for (int32_t h = 0; h < LATENT_HEADS; h++) {
        const int64_t head = head0 + h;
        gpu_barrier();
        GPU_UNROLL
        for (int32_t i = 0; i < LATENT_PART; i++) gpu_store(sums, wave * MOX_GPU_LATENT_RANK + latent_at(i, lane), st[h].sum[i]);
        if (lane == 0) {
            gpu_store(maxima, wave, st[h].max);
            gpu_store(denoms, wave, st[h].denom);
        }
        gpu_barrier();
        if (head >= p->a.heads) continue; /* to the barriers of the next, if there is one */
        float max = -GPU_INFINITY, denom = 0.0f;
        for (int32_t i = 0; i < n_streams; i++) max = gpu_max(max, gpu_load(maxima, team * n_streams + i));
        for (int32_t i = 0; i < n_streams; i++)
            denom += weight_of(gpu_load(maxima, team * n_streams + i), max) * gpu_load(denoms, team * n_streams + i);
        const int64_t part = part_at(&p->a, i_span, head, piece);
        if (keys.n_pieces > 1 && stream == 0 && lane == 0) {
            gpu_store(p->a.parts, part, max);
            gpu_store(p->a.parts, part + 1, denom);
        }
        for (int32_t d = stream * GPU_LANES + lane; d < MOX_GPU_LATENT_RANK; d += n_streams * GPU_LANES) {
            float sum = 0.0f;
            for (int32_t i = 0; i < n_streams; i++)
                sum += weight_of(gpu_load(maxima, team * n_streams + i), max) * gpu_load(sums, (team * n_streams + i) * MOX_GPU_LATENT_RANK + d);
            if (keys.n_pieces > 1) gpu_store(p->a.parts, part + 2 + d, sum);
            else gpu_store(p->a.out, out_at(&p->a, s.row0, head) + d, denom == 0.0f ? 0.0f : sum / denom);
        }
    }
}

#endif
