/* dev/gpu/few.h -- products of 4-bit weights with some tokens, 5 to 64: sequences that generate together.
 *
 * Here the weights are what takes time, so they are read once for all tokens, many of them at a time, and
 * nothing waits in shared memory for a barrier.  A wave takes 16 rows and every so-manieth step of 64 columns;
 * waves that have the same rows add up their sums at the end, always in the same order.  Operands are
 * f16 and sums f32, as in matmul.h, from which decoding comes; tokens are as half_rows leaves them by lanes, so that
 * what a lane multiplies of a step, of one token, is two quads.
 *
 * An expert has a few of the tokens only: moe_few sorts pairs by expert and cuts them into tiles of eight. */
#ifndef MOX_DEV_GPU_FEW_H
#define MOX_DEV_GPU_FEW_H

#include "dev/gpu/matmul.h"

enum {
    FEW_THREADS = 256,
    FEW_WAVES = FEW_THREADS / GPU_LANES,
    FEW_HELD = 2,                                    /* steps whose codes are asked for in one go */
    FEW_BLOCKS = MOX_GPU_FEW_TOKENS / 8,             /* of eight tokens */
    FEW_STRIDE = 17,                                 /* of the 16 sums of a token: so they lie in different banks */
    FEW_SUMS = MOX_GPU_FEW_TOKENS * FEW_STRIDE,      /* of a wave */
    FEW_PAIR_SUMS = 2 * MOX_GPU_FEW_EXPERT_TOKENS * FEW_STRIDE, /* the same of gate and up */
    FEW_BUCKET_THREADS = 256
};

/* ---- the product ---- */

/* c[4 (m * FEW_BLOCKS + j) ...] += 16 rows of matrix m by eight tokens of block j, over the steps part, part + split, ...
 * at[j]: where the token of this lane begins, or -1.  n_mats and n_blocks are constants. */
GPU_FN void few_wave(const GPU_PRIVATE(lane_q4) *l, int32_t n_mats, const GPU_GLOBAL(u16) *x, const GPU_PRIVATE(i64) *at, int32_t n_blocks,
                     int32_t n_steps, int32_t part, int32_t split, GPU_PRIVATE(f32) *c)
{
    for (int32_t first = part; first < n_steps; first += FEW_HELD * split) {
        codes_q4 codes[FEW_HELD * 2];
        GPU_UNROLL
        for (int32_t i = 0; i < FEW_HELD * 2; i++)
            if (i % 2 < n_mats) codes[i] = fetch_q4(l[i % 2], first + i / 2 * split); /* none behind the last column */
        GPU_UNROLL
        for (int32_t s = 0; s < FEW_HELD; s++) {
            const int32_t step = first + s * split;
            if (step >= n_steps) continue; /* the whole wave */
            gpu_quad b[2 * FEW_BLOCKS];
            GPU_UNROLL
            for (int32_t i = 0; i < 2 * FEW_BLOCKS; i++) {
                GPU_UNROLL
                for (int32_t w = 0; w < 4; w++) b[i].w[w] = 0u;
                if (i / 2 < n_blocks && at[i / 2] >= 0)
                    b[i] = gpu_load_quad(x, at[i / 2] + step * MM_STEP + l[0].share * 16 + i % 2 * 8);
            }
            GPU_UNROLL
            for (int32_t m = 0; m < 2; m++) {
                if (m >= n_mats) continue;
                uint32_t scale[2], bias[2];
                GPU_UNROLL
                for (int32_t h = 0; h < 2; h++) {
                    scale[h] = pair_of(codes[s * 2 + m].scale[h], l[m].is_bf16);
                    bias[h] = pair_of(codes[s * 2 + m].bias[h], l[m].is_bf16);
                }
                GPU_UNROLL
                for (int32_t tile = 0; tile < MM_STEP / 16; tile++) {
                    uint32_t a[4];
                    GPU_UNROLL
                    for (int32_t i = 0; i < 4; i++)
                        a[i] = numbers_q4((uint32_t)(codes[s * 2 + m].codes[i % 2] >> (tile / 2 * 32)), tile % 2 * 2 + i / 2, scale[i % 2],
                                          bias[i % 2]);
                    GPU_UNROLL
                    for (int32_t j = 0; j < FEW_BLOCKS; j++)
                        if (j < n_blocks)
                            gpu_mma(c + 4 * (m * FEW_BLOCKS + j), a[0], a[1], a[2], a[3], b[2 * j + tile / 2].w[tile % 2 * 2],
                                    b[2 * j + tile / 2].w[tile % 2 * 2 + 1]);
                }
            }
        }
    }
}

/* Leaves a wave's 16 rows of n_blocks * 8 tokens. */
GPU_FN void few_leave(GPU_SHARED(f32) *sums, const GPU_PRIVATE(f32) *c, int32_t n_blocks, int32_t lane)
{
    GPU_UNROLL
    for (int32_t i = 0; i < FEW_BLOCKS * 4; i++)
        if (i / 4 < n_blocks) gpu_store(sums, (i / 4 * 8 + lane % 4 * 2 + i % 2) * FEW_STRIDE + lane / 4 + i / 2 % 2 * 8, c[i]);
}

/* A row of a token, of the waves from `wave` on. */
GPU_FN float few_join(const GPU_SHARED(f32) *sums, int32_t wave_sums, int32_t wave, int32_t split, int32_t token, int32_t row)
{
    float sum = 0.0f;
    for (int32_t i = 0; i < split; i++) sum += gpu_load(sums, (wave + i) * wave_sums + token * FEW_STRIDE + row);
    return sum;
}

GPU_FN lane_q4 few_rows(mox_gpu_mat m, int64_t rows, int64_t first, int32_t lane)
{
    weight_rows r;
    r.m = m;
    r.row = first;
    r.n = rows - first;
    return lane_q4_of(r, lane / 4, lane % 4);
}

GPU_FN void few_tokens(token_rows k, int32_t n_blocks, int32_t lane, GPU_PRIVATE(i64) *at)
{
    GPU_UNROLL
    for (int32_t j = 0; j < FEW_BLOCKS; j++) {
        at[j] = -1;
        if (j < n_blocks && j * 8 + lane / 4 < k.n) at[j] = token_row(k, j * 8 + lane / 4) * k.stride;
    }
}

/* y of the group's rows for k's tokens, at most n_blocks * 8 of them. */
GPU_FN void few_group(mox_gpu_mat m, int64_t rows, mox_gpu_vec bias, token_rows k, int32_t n_blocks, const GPU_GLOBAL(i32) *y_row,
                      GPU_GLOBAL(f32) *y, int64_t y_stride, int32_t split, GPU_SHARED(f32) *sums, int64_t group, int32_t thread)
{
    const int32_t lane = thread % GPU_LANES, wave = thread / GPU_LANES, n_tiles = FEW_WAVES / split;
    const int64_t row0 = group * n_tiles * 16;
    lane_q4 l[2];
    l[0] = l[1] = few_rows(m, rows, row0 + wave / split * 16, lane);
    int64_t at[FEW_BLOCKS];
    few_tokens(k, n_blocks, lane, at);
    float c[FEW_BLOCKS * 4];
    GPU_UNROLL
    for (int32_t i = 0; i < FEW_BLOCKS * 4; i++) c[i] = 0.0f;
    few_wave(l, 1, k.x, at, n_blocks, (int32_t)((m.cols + MM_STEP - 1) / MM_STEP), wave % split, split, c);
    few_leave(sums + wave * FEW_SUMS, c, n_blocks, lane);
    gpu_barrier();
    for (int32_t i = thread; i < n_tiles * 16 * k.n; i += FEW_THREADS) {
        const int32_t token = i / 16 / n_tiles, tile = i / 16 % n_tiles;
        const int64_t row = row0 + tile * 16 + i % 16, place = k.place + token;
        if (row >= rows) continue;
        const float add = bias.type == MOX_GPU_NONE ? 0.0f : stored_number(bias.data, (int32_t)bias.type, row);
        gpu_store(y, (y_row ? gpu_load(y_row, place) : place) * y_stride + row,
                  few_join(sums, FEW_SUMS, tile * split, split, token, i % 16) * gpu_load(k.scale, token_row(k, token)) + add);
    }
}

GPU_KERNEL_DENSE(matmul_few, FEW_THREADS, 2)
{
    GPU_SHARED_ARRAY(f32, sums, FEW_WAVES * FEW_SUMS);
    const int64_t first = gpu_group_y() * MOX_GPU_FEW_TOKENS;
    token_rows k;
    k.x = p->m.x;
    k.scale = p->m.x_scale;
    k.list = 0;
    k.place = first;
    k.stride = p->m.x_stride;
    k.n = (int32_t)least(MOX_GPU_FEW_TOKENS, p->m.n - first);
    k.divisor = 1;
    if (k.n > 16) few_group(p->m.w, p->m.rows, p->m.bias, k, FEW_BLOCKS, 0, p->m.y, p->m.y_stride, (int32_t)p->split, sums, gpu_group_x(), gpu_thread());
    else few_group(p->m.w, p->m.rows, p->m.bias, k, 2, 0, p->m.y, p->m.y_stride, (int32_t)p->split, sums, gpu_group_x(), gpu_thread());
}

/* ---- experts ---- */

GPU_KERNEL_DENSE(experts_gate_up_few, FEW_THREADS, 2)
{
    GPU_SHARED_ARRAY(f32, sums, FEW_WAVES * FEW_PAIR_SUMS);
    const mox_gpu_expert_tile tile = gpu_load(p->t.tiles, gpu_group_y());
    if (tile.n == 0) return; /* the whole group */
    const int32_t thread = gpu_thread(), lane = thread % GPU_LANES, wave = thread / GPU_LANES;
    const int64_t row0 = gpu_group_x() * 16;
    const token_rows k = tile_tokens(&p->t, tile);
    const mox_gpu_mat gate = gpu_load(p->t.gate, tile.expert);
    lane_q4 l[2];
    l[0] = few_rows(gate, p->t.rows, row0, lane);
    l[1] = few_rows(gpu_load(p->t.up, tile.expert), p->t.rows, row0, lane);
    int64_t at[FEW_BLOCKS];
    few_tokens(k, 1, lane, at);
    float c[2 * FEW_BLOCKS * 4];
    GPU_UNROLL
    for (int32_t i = 0; i < 2 * FEW_BLOCKS * 4; i++) c[i] = 0.0f;
    few_wave(l, 2, k.x, at, 1, (int32_t)((gate.cols + MM_STEP - 1) / MM_STEP), wave, FEW_WAVES, c);
    few_leave(sums + wave * FEW_PAIR_SUMS, c, 1, lane);
    few_leave(sums + wave * FEW_PAIR_SUMS + FEW_PAIR_SUMS / 2, c + FEW_BLOCKS * 4, 1, lane);
    gpu_barrier();
    const int32_t token = thread / 16, row = thread % 16;
    if (token >= k.n || row0 + row >= p->t.rows) return;
    const int64_t place = k.place + token;
    const float scale = gpu_load(k.scale, token_row(k, token));
    const float made = silu(few_join(sums, FEW_PAIR_SUMS, 0, FEW_WAVES, token, row) * scale) *
                       (few_join(sums + FEW_PAIR_SUMS / 2, FEW_PAIR_SUMS, 0, FEW_WAVES, token, row) * scale);
    gpu_store(p->t.y, (p->t.y_row ? gpu_load(p->t.y_row, place) : place) * p->t.y_stride + row0 + row, made);
}

GPU_KERNEL_DENSE(experts_down_few, FEW_THREADS, 2)
{
    GPU_SHARED_ARRAY(f32, sums, FEW_WAVES * FEW_SUMS);
    const mox_gpu_expert_tile tile = gpu_load(p->t.tiles, gpu_group_y());
    if (tile.n == 0) return; /* the whole group */
    mox_gpu_vec none;
    none.data = 0;
    none.type = MOX_GPU_NONE;
    few_group(gpu_load(p->t.gate, tile.expert), p->t.rows, none, tile_tokens(&p->t, tile), 1, p->t.y_row, p->t.y, p->t.y_stride, (int32_t)p->split,
              sums, gpu_group_x(), gpu_thread());
}

/* ---- sorting ---- */

/* Sum of values in front of a thread's own; all of them are in `sums` afterwards, summed up. */
GPU_FN int32_t few_before(GPU_SHARED(i32) *sums, int32_t value, int32_t thread)
{
    gpu_barrier();
    gpu_store(sums, thread, value);
    for (int32_t d = 1; d < FEW_BUCKET_THREADS; d *= 2) {
        gpu_barrier();
        const int32_t sum = gpu_load(sums, thread) + (thread >= d ? gpu_load(sums, thread - d) : 0);
        gpu_barrier();
        gpu_store(sums, thread, sum);
    }
    gpu_barrier();
    return gpu_load(sums, thread) - value;
}

/* A thread has some experts in a row, and finds their pairs itself. */
GPU_KERNEL(moe_few, FEW_BUCKET_THREADS)
{
    GPU_SHARED_ARRAY(i32, ids, MOX_GPU_FEW_PAIRS);
    GPU_SHARED_ARRAY(i32, sums, FEW_BUCKET_THREADS);
    const int32_t thread = gpu_thread(), n_pairs = (int32_t)p->n_pairs;
    const int32_t share = ((int32_t)p->n_experts + FEW_BUCKET_THREADS - 1) / FEW_BUCKET_THREADS;
    const int32_t first = thread * share, last = first + share < (int32_t)p->n_experts ? first + share : (int32_t)p->n_experts;
    for (int32_t i = thread; i < n_pairs; i += FEW_BUCKET_THREADS) gpu_store(ids, i, gpu_load(p->ids, i));
    gpu_barrier();
    int32_t n_own = 0, n_tiles = 0;
    for (int32_t x = first; x < last; x++) {
        int32_t n = 0;
        for (int32_t i = 0; i < n_pairs; i++) n += gpu_load(ids, i) == x ? 1 : 0;
        n_own += n;
        n_tiles += (n + MOX_GPU_FEW_EXPERT_TOKENS - 1) / MOX_GPU_FEW_EXPERT_TOKENS;
    }
    int64_t place = few_before(sums, n_own, thread), at = few_before(sums, n_tiles, thread);
    const int32_t all_tiles = gpu_load(sums, FEW_BUCKET_THREADS - 1);
    for (int32_t x = first; x < last && n_own > 0; x++) {
        const int64_t begin = place;
        for (int32_t i = 0; i < n_pairs; i++)
            if (gpu_load(ids, i) == x) gpu_store(p->pairs, place++, i);
        mox_gpu_expert_tile tile;
        tile.expert = x;
        for (tile.place = begin; tile.place < place; tile.place += MOX_GPU_FEW_EXPERT_TOKENS) {
            tile.n = least(MOX_GPU_FEW_EXPERT_TOKENS, place - tile.place);
            gpu_store(p->tiles, at++, tile);
        }
    }
    mox_gpu_expert_tile none;
    none.expert = none.place = none.n = 0;
    for (int64_t i = all_tiles + thread; i < p->n_tiles; i += FEW_BUCKET_THREADS) gpu_store(p->tiles, i, none);
}

#endif
