/* dev/gpu/flash.h -- softmax attention of many rows over an f16 cache, on tiles.
 *
 * A group takes 64 rows of one head, a wave 16 of them; keys and values come by in blocks of 64
 * (32 where heads are 256 wide).  Queries are scaled by a power of two per row and rounded to f16,
 * as are the weights of the softmax; scores and sums are f32 and stay in registers.
 *
 * While scores become weights, the keys of the next block are copied, and its values while its
 * scores are made.  Rows of the longest spans' ends see the most keys, so their groups come first. */
#ifndef MOX_DEV_GPU_FLASH_H
#define MOX_DEV_GPU_FLASH_H

#include "dev/gpu/attention.h"

enum {
    FLASH_THREADS = 128,
    FLASH_ROWS = MOX_GPU_FLASH_ROWS,
    FLASH_NUMBERS = 64 * 128, /* of a block of keys, or of values */
    FLASH_WIDEST = 256,
    FLASH_KEYS_MOST = 64
};

#define ONE_BY_LN2 1.44269504f

GPU_FN int32_t block_keys(int32_t dim) { return dim == 256 ? 32 : 64; }

/* ---- what a group works on ---- */

/* Positions are int32 here: registers are what this kernel is short of. */
typedef struct flash_rows {
    const GPU_GLOBAL(i32) *pages;
    int64_t row0;        /* of q and out */
    int32_t pos0, n;     /* position of the first row; rows */
    int32_t first, last; /* keys that any of them sees */
} flash_rows;

GPU_FN flash_rows rows_of_tile(const GPU_CONSTANT(mox_gpu_attention) *p, int64_t tile)
{
    int64_t i = 0;
    for (;; i++) {
        const int64_t n_tiles = (gpu_load(p->spans, i).n + FLASH_ROWS - 1) / FLASH_ROWS;
        if (tile < n_tiles) break;
        tile -= n_tiles;
    }
    const mox_gpu_span s = gpu_load(p->spans, i);
    flash_rows r;
    r.pages = s.pages;
    r.row0 = s.row0 + tile * FLASH_ROWS;
    r.pos0 = (int32_t)(s.pos0 + tile * FLASH_ROWS);
    r.n = (int32_t)least(FLASH_ROWS, s.n - tile * FLASH_ROWS);
    r.first = p->window > 0 ? (int32_t)most(0, r.pos0 - p->window + 1) : 0;
    r.last = p->causal != 0 ? r.pos0 + r.n : (int32_t)(s.pos0 + s.n);
    return r;
}

/* Does row i see key j? */
GPU_FN bool sees(const GPU_CONSTANT(mox_gpu_attention) *p, flash_rows r, int32_t i, int32_t j)
{
    const int32_t pos = r.pos0 + i;
    return j < r.last && (p->causal == 0 || j <= pos) && (p->window <= 0 || j > pos - p->window);
}

/* Do all rows see all keys from j to j + n? */
GPU_FN bool all_see(const GPU_CONSTANT(mox_gpu_attention) *p, flash_rows r, int32_t j, int32_t n)
{
    return j + n <= r.last && (p->causal == 0 || j + n <= r.pos0 + 1) && p->window <= 0;
}

/* ---- bringing things in ---- */

/* Where a key is that a thread helps to copy. */
typedef struct key_place {
    int64_t page;
    uint32_t in_page;
    bool there;
} key_place;

/* Of the block [j, j + block); threads in a row share a key. */
GPU_FN key_place place_of_key(const GPU_CONSTANT(mox_gpu_attention) *p, flash_rows r, int32_t j, int32_t dim, int32_t thread)
{
    const uint32_t pos = (uint32_t)(j + thread / (FLASH_THREADS / block_keys(dim))), len = (uint32_t)p->k.page_len;
    key_place k;
    k.there = pos < (uint32_t)r.last;
    k.page = k.there ? gpu_load(r.pages, pos / len) : 0;
    k.in_page = k.there ? pos % len : 0u;
    return k;
}

GPU_FN void copy_block(GPU_SHARED(u16) *block, mox_gpu_cache c, key_place k, int64_t head, int32_t dim, int32_t thread)
{
    const int32_t share = FLASH_THREADS / block_keys(dim), row = thread / share;
    const GPU_GLOBAL(u16) *from = GPU_CAST(u16, c.data) + (k.page * c.page_stride + k.in_page * c.token_stride + head * c.head_stride);
    GPU_UNROLL
    for (int32_t i = 0; i < FLASH_WIDEST / 8; i++) {
        const int32_t col = (thread % share + i * share) * 8;
        if (i < dim / 8 / share) gpu_copy_quad(block, gpu_tile_at(row, col, dim), from, col, k.there);
    }
    gpu_copy_commit();
}

/* Row i of the wave's 16, rounded into shared memory; returns what it was divided by. */
GPU_FN float store_query(GPU_SHARED(u16) *to, int32_t row, const GPU_GLOBAL(f32) *q, bool there,
                         int32_t dim, int32_t lane)
{
    float v[FLASH_WIDEST / GPU_LANES], largest = 0.0f;
    GPU_UNROLL
    for (int32_t i = 0; i < FLASH_WIDEST / GPU_LANES; i++) {
        v[i] = there && i < dim / GPU_LANES ? gpu_load(q, i * GPU_LANES + lane) : 0.0f;
        largest = gpu_max(largest, gpu_abs(v[i]));
    }
    largest = gpu_lane_max(largest);
    uint32_t exponent = gpu_f32_bits(largest) >> 23;
    if (exponent == 255u || largest == 0.0f) exponent = 127u;
    if (exponent < 2u) exponent = 2u;
    const float down = gpu_bits_f32((254u - exponent) << 23);
    GPU_UNROLL
    for (int32_t i = 0; i < FLASH_WIDEST / GPU_LANES; i++)
        if (i < dim / GPU_LANES) gpu_store(to, gpu_tile_at(row, i * GPU_LANES + lane, dim), gpu_f32_to_f16(v[i] * down));
    return gpu_bits_f32(exponent << 23);
}

/* ---- the work ---- */

/* Two rows of a lane: the largest score so far and the sum of weights (this lane's part).  Scores are
 * in units of ln 2, so that a weight is a power of two. */
typedef struct flash_state {
    float max[2], sum[2], scale[2];
} flash_state;
GPU_TYPE(flash_state, flash_state);

/* A maximum to compare with: nothing seen is 0, and then all weights are 2^-inf. */
GPU_FN float or_zero(float max) { return max == -GPU_INFINITY ? 0.0f : max; }

/* Scores, still to be scaled, become weights relative to the new maximum; shrink: by what earlier sums do. */
GPU_FN void weigh(const GPU_CONSTANT(mox_gpu_attention) *p, flash_rows r, int32_t j0, int32_t n_tiles, int32_t row0, int32_t lane,
                  GPU_PRIVATE(tile_c) *score, GPU_PRIVATE(flash_state) *st, GPU_PRIVATE(f32) *shrink)
{
    const bool plain = all_see(p, r, j0, n_tiles * 16);
    float max[2];
    max[0] = max[1] = -GPU_INFINITY;
    GPU_UNROLL
    for (int32_t t = 0; t < FLASH_KEYS_MOST / 16; t++) {
        if (t >= n_tiles) continue;
        GPU_UNROLL
        for (int32_t e = 0; e < 8; e++) {
            if (!plain && !sees(p, r, row0 + gpu_tile_row(lane, e), j0 + t * 16 + gpu_tile_col(lane, e)))
                gpu_tile_set(&score[t], e, -GPU_INFINITY);
            max[e / 2 % 2] = gpu_max(max[e / 2 % 2], gpu_tile_get(score[t], e));
        }
    }
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        max[h] = gpu_max(st->max[h], gpu_tile_row_max(max[h], lane) * st->scale[h]);
        shrink[h] = gpu_exp2(st->max[h] - or_zero(max[h]));
        st->max[h] = max[h];
        st->sum[h] *= shrink[h];
        max[h] = or_zero(max[h]);
    }
    GPU_UNROLL
    for (int32_t t = 0; t < FLASH_KEYS_MOST / 16; t++) {
        if (t >= n_tiles) continue;
        GPU_UNROLL
        for (int32_t e = 0; e < 8; e++) {
            const int32_t h = e / 2 % 2;
            const float w = gpu_exp2(gpu_tile_get(score[t], e) * st->scale[h] - max[h]);
            gpu_tile_set(&score[t], e, w);
            st->sum[h] += w;
        }
    }
}

GPU_FN void flash_group(const GPU_CONSTANT(mox_gpu_attention) *p, GPU_SHARED(u16) *keys, GPU_SHARED(u16) *values, int32_t dim,
                        flash_rows r, int64_t head, int32_t thread)
{
    const int32_t lane = thread % GPU_LANES, row0 = thread / GPU_LANES * 16, n_keys = block_keys(dim);
    const int64_t kv_head = head / (p->heads / p->kv_heads);
    flash_state st;
    st.scale[0] = st.scale[1] = 0.0f;
    gpu_tile_a q[FLASH_WIDEST / 16];
    gpu_tile_c out[FLASH_WIDEST / 16];
    /* The queries pass through the values' room. */
    for (int32_t i = 0; i < 16; i++) {
        const int64_t row = r.row0 + row0 + i;
        const float scale = store_query(dim == 256 ? (row0 < 32 ? keys : values) : values, dim == 256 ? row0 % 32 + i : row0 + i,
                                        p->q + (row * p->q_stride + head * p->q_head_stride), row0 + i < r.n, dim, lane);
        if (gpu_tile_row(lane, 0) == i) st.scale[0] = scale * p->scale * ONE_BY_LN2;
        if (gpu_tile_row(lane, 2) == i) st.scale[1] = scale * p->scale * ONE_BY_LN2;
    }
    gpu_barrier();
    GPU_UNROLL
    for (int32_t d = 0; d < FLASH_WIDEST / 16; d++) {
        if (d >= dim / 16) continue;
        q[d] = gpu_tile_load_a(dim == 256 ? (row0 < 32 ? keys : values) : values, dim == 256 ? row0 % 32 : row0, d * 16, dim, lane);
        out[d] = gpu_tile_zero();
    }
    gpu_barrier();
    st.max[0] = st.max[1] = -GPU_INFINITY;
    st.sum[0] = st.sum[1] = 0.0f;
    key_place place = place_of_key(p, r, r.first, dim, thread);
    copy_block(keys, p->k, place, kv_head, dim, thread);
    copy_block(values, p->v, place, kv_head, dim, thread);
    for (int32_t j = r.first; j < r.last; j += n_keys) {
        gpu_tile_c score[FLASH_KEYS_MOST / 16];
        float shrink[2];
        gpu_copy_wait(1); /* the keys */
        gpu_barrier();
        GPU_UNROLL
        for (int32_t t = 0; t < FLASH_KEYS_MOST / 16; t++) score[t] = gpu_tile_zero();
        GPU_UNROLL
        for (int32_t d = 0; d < FLASH_WIDEST / 16; d++) { /* sums in a row are of different tiles: none waits for the one before */
            GPU_UNROLL
            for (int32_t t = 0; t < FLASH_KEYS_MOST / 16; t++)
                if (d < dim / 16 && t < n_keys / 16) gpu_tile_mma(&score[t], q[d], gpu_tile_load_b(keys, t * 16, d * 16, dim, lane));
        }
        gpu_barrier();
        place = place_of_key(p, r, j + n_keys, dim, thread);
        copy_block(keys, p->k, place, kv_head, dim, thread);
        weigh(p, r, j, n_keys / 16, row0, lane, score, &st, shrink);
        GPU_UNROLL
        for (int32_t d = 0; d < FLASH_WIDEST / 16; d++) {
            GPU_UNROLL
            for (int32_t e = 0; e < 8; e++)
                if (d < dim / 16) gpu_tile_set(&out[d], e, gpu_tile_get(out[d], e) * shrink[e / 2 % 2]);
        }
        gpu_copy_wait(1); /* the values; the next keys may come later */
        gpu_barrier();
        GPU_UNROLL
        for (int32_t t = 0; t < FLASH_KEYS_MOST / 16; t++) {
            if (t >= n_keys / 16) continue;
            const gpu_tile_a w = gpu_tile_a_of(score[t]);
            GPU_UNROLL
            for (int32_t d = 0; d < FLASH_WIDEST / 16; d++)
                if (d < dim / 16) gpu_tile_mma(&out[d], w, gpu_tile_load_b_across(values, t * 16, d * 16, dim, lane));
        }
        gpu_barrier();
        copy_block(values, p->v, place, kv_head, dim, thread);
    }
    gpu_copy_wait(0); /* of blocks that are not there */
    const float sink = sink_of(p, head) * ONE_BY_LN2;
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        const int32_t i = row0 + gpu_tile_row(lane, 2 * h);
        const float top = gpu_max(st.max[h], sink), down = gpu_exp2(st.max[h] - or_zero(top));
        const float denom = gpu_tile_row_sum(st.sum[h], lane) * down + gpu_exp2(sink - or_zero(top));
        const float factor = denom == 0.0f ? 0.0f : down / denom;
        if (i >= r.n) continue; /* all lanes meet again before the other row */
        GPU_GLOBAL(f32) *to = p->out + out_at(p, r.row0 + i, head);
        GPU_UNROLL
        for (int32_t d = 0; d < FLASH_WIDEST / 16; d++) {
            GPU_UNROLL
            for (int32_t e = 0; e < 4; e++) {
                const int32_t at = (e & 1) | h * 2 | (e & 2) * 2;
                if (d < dim / 16) gpu_store(to, d * 16 + gpu_tile_col(lane, at), gpu_tile_get(out[d], at) * factor);
            }
        }
    }
}

GPU_KERNEL(attention_flash_128, FLASH_THREADS)
{
    GPU_SHARED_ARRAY(u16, keys, FLASH_NUMBERS);
    GPU_SHARED_ARRAY(u16, values, FLASH_NUMBERS);
    flash_group(&p->a, keys, values, 128, rows_of_tile(&p->a, p->n_tiles - 1 - gpu_group_y()), gpu_group_x(), gpu_thread());
}

GPU_KERNEL(attention_flash_64, FLASH_THREADS)
{
    GPU_SHARED_ARRAY(u16, keys, FLASH_NUMBERS);
    GPU_SHARED_ARRAY(u16, values, FLASH_NUMBERS);
    flash_group(&p->a, keys, values, 64, rows_of_tile(&p->a, p->n_tiles - 1 - gpu_group_y()), gpu_group_x(), gpu_thread());
}

GPU_KERNEL(attention_flash_256, FLASH_THREADS)
{
    GPU_SHARED_ARRAY(u16, keys, FLASH_NUMBERS);
    GPU_SHARED_ARRAY(u16, values, FLASH_NUMBERS);
    flash_group(&p->a, keys, values, 256, rows_of_tile(&p->a, p->n_tiles - 1 - gpu_group_y()), gpu_group_x(), gpu_thread());
}

#endif
