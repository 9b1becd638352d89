/* dev/gpu/few.h -- products of 4-bit weights with some tokens, 5 to 64: sequences that generate together.
 *
 * Here the weights are what takes time, so they are read once for all tokens, many of them at a time, and
 * nothing waits in shared memory for a barrier.  A wave takes 16 rows and every so-manieth step of 64 columns;
 * waves that have the same rows add up their sums at the end, always in the same order.  Operands are
 * f16 and sums f32, as in matmul.h, from which decoding comes; tokens are as half_rows leaves them by lanes, so that
 * what a lane multiplies of a step, of one token, is two quads.
 *
 * An expert has a few of the tokens only: moe_few sorts pairs by expert and cuts them into tiles of eight.  Experts
 * are those that matvec4.h reads, a stack of them, so that where one is costs no load; of their rows 64 bytes
 * at a time are asked for. */
#ifndef MOX_DEV_GPU_FEW_H
#define MOX_DEV_GPU_FEW_H

#include "dev/gpu/matmul.h"
#include "dev/gpu/matvec4.h"

enum {
    FEW_THREADS = 256,
    FEW_WAVES = FEW_THREADS / GPU_LANES,
    FEW_HELD = 2,                                    /* steps whose codes are asked for in one go */
    FEW_BLOCKS = MOX_GPU_FEW_TOKENS / 8,             /* of eight tokens */
    FEW_STRIDE = 17,                                 /* of the 16 sums of a token: so they lie in different banks */
    FEW_SUMS = MOX_GPU_FEW_TOKENS * FEW_STRIDE,      /* of a wave */
    FEW_PAIR_SUMS = 2 * MOX_GPU_FEW_EXPERT_TOKENS * FEW_STRIDE, /* the same of gate and up */
    FEW_CHUNK = 128, /* columns of experts at a time */
    FEW_BUCKET_THREADS = 256
};

/* ---- the product ---- */

/* c[4 j ...] += 16 rows by eight tokens of block j, over the steps part, part + split, ...
 * at[j]: where the token of this lane begins, or -1.  n_blocks is a constant. */
GPU_FN void few_wave(lane_q4 l, const GPU_GLOBAL(u16) *x, const GPU_PRIVATE(i64) *at, int32_t n_blocks, int32_t n_steps, int32_t part,
                     int32_t split, GPU_PRIVATE(f32) *c)
{
    for (int32_t first = part; first < n_steps; first += FEW_HELD * split) {
        codes_q4 codes[FEW_HELD];
        GPU_UNROLL
        for (int32_t i = 0; i < FEW_HELD; i++) codes[i] = fetch_q4(l, first + i * split); /* none behind the last column */
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
                    b[i] = gpu_load_quad(x, at[i / 2] + step * MM_STEP + l.share * 16 + i % 2 * 8);
            }
            uint32_t scale[2], bias[2];
            GPU_UNROLL
            for (int32_t h = 0; h < 2; h++) {
                scale[h] = pair_of(codes[s].scale[h], l.is_bf16);
                bias[h] = pair_of(codes[s].bias[h], l.is_bf16);
            }
            GPU_UNROLL
            for (int32_t tile = 0; tile < MM_STEP / 16; tile++) {
                uint32_t a[4];
                GPU_UNROLL
                for (int32_t i = 0; i < 4; i++)
                    a[i] = numbers_q4((uint32_t)(codes[s].codes[i % 2] >> (tile / 2 * 32)), tile % 2 * 2 + i / 2, scale[i % 2],
                                      bias[i % 2]);
                GPU_UNROLL
                for (int32_t j = 0; j < FEW_BLOCKS; j++)
                    if (j < n_blocks)
                        gpu_mma(c + 4 * j, a[0], a[1], a[2], a[3], b[2 * j + tile / 2].w[tile % 2 * 2],
                                b[2 * j + tile / 2].w[tile % 2 * 2 + 1]);
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

/* Tokens of block i of MOX_GPU_FEW_TOKENS each. */
GPU_FN token_rows few_block(const GPU_GLOBAL(u16) *x, const GPU_GLOBAL(f32) *scale, int64_t stride, int64_t n, int64_t i)
{
    token_rows k;
    k.x = x;
    k.scale = scale;
    k.list = 0;
    k.place = i * MOX_GPU_FEW_TOKENS;
    k.stride = stride;
    k.n = (int32_t)least(MOX_GPU_FEW_TOKENS, n - k.place);
    k.divisor = 1;
    return k;
}

GPU_FN token_rows few_tile(const GPU_CONSTANT(mox_gpu_experts_few) *p, mox_gpu_expert_tile tile)
{
    token_rows k;
    k.x = p->x;
    k.scale = p->x_scale;
    k.list = p->x_row;
    k.place = tile.place;
    k.stride = p->x_stride;
    k.n = (int32_t)tile.n;
    k.divisor = (int32_t)p->x_divisor;
    return k;
}

/* y of the group's rows for k's tokens, at most n_blocks * 8 of them. */
GPU_FN void few_group(mox_gpu_mat m, int64_t rows, mox_gpu_vec bias, token_rows k, int32_t n_blocks, GPU_GLOBAL(f32) *y, int64_t y_stride,
                      int32_t split, GPU_SHARED(f32) *sums, int64_t group, int32_t me)
{
    const int32_t lane = me % GPU_LANES, wave = me / GPU_LANES, n_tiles = FEW_WAVES / split;
    const int64_t row0 = group * n_tiles * 16;
    const lane_q4 l = few_rows(m, rows, row0 + wave / split * 16, lane);
    int64_t at[FEW_BLOCKS];
    few_tokens(k, n_blocks, lane, at);
    float c[FEW_BLOCKS * 4];
    GPU_UNROLL
    for (int32_t i = 0; i < FEW_BLOCKS * 4; i++) c[i] = 0.0f;
    few_wave(l, k.x, at, n_blocks, (int32_t)((m.cols + MM_STEP - 1) / MM_STEP), wave % split, split, c);
    few_leave(sums + wave * FEW_SUMS, c, n_blocks, lane);
    gpu_barrier();
    for (int32_t i = me; i < n_tiles * 16 * k.n; i += FEW_THREADS) {
        const int32_t token = i / 16 / n_tiles, tile = i / 16 % n_tiles;
        const int64_t row = row0 + tile * 16 + i % 16, place = k.place + token;
        if (row >= rows) continue;
        const float add = bias.type == MOX_GPU_NONE ? 0.0f : stored_number(bias.data, (int32_t)bias.type, row);
        gpu_store(y, place * y_stride + row,
                  few_join(sums, FEW_SUMS, tile * split, split, token, i % 16) * gpu_load(k.scale, token_row(k, token)) + add);
    }
}

GPU_KERNEL_DENSE(matmul_few, FEW_THREADS, 2)
{
    GPU_SHARED_ARRAY(f32, sums, FEW_WAVES * FEW_SUMS);
    const token_rows k = few_block(p->m.x, p->m.x_scale, p->m.x_stride, p->m.n, gpu_group_y());
    const int32_t split = (int32_t)p->split, me = gpu_thread();
    if (k.n > 16) few_group(p->m.w, p->m.rows, p->m.bias, k, FEW_BLOCKS, p->m.y, p->m.y_stride, split, sums, gpu_group_x(), me);
    else few_group(p->m.w, p->m.rows, p->m.bias, k, 2, p->m.y, p->m.y_stride, split, sums, gpu_group_x(), me);
}

/* Queries, keys and values of a layer in one launch. */
GPU_KERNEL_DENSE(matmul_few_three, FEW_THREADS, 2)
{
    GPU_SHARED_ARRAY(f32, sums, FEW_WAVES * FEW_SUMS);
    const int64_t group = gpu_group_x(), rows = 16 * FEW_WAVES / p->split;
    const int64_t second = (p->w0.rows + rows - 1) / rows, third = second + (p->w1.rows + rows - 1) / rows;
    mox_gpu_mat w = p->w0; /* chosen by value: parameters are not indexed */
    mox_gpu_vec bias = p->bias0;
    GPU_GLOBAL(f32) *y = p->y0;
    int64_t first = 0;
    if (group >= third) {
        w = p->w2;
        bias = p->bias2;
        y = p->y2;
        first = third;
    } else if (group >= second) {
        w = p->w1;
        bias = p->bias1;
        y = p->y1;
        first = second;
    }
    const token_rows k = few_block(p->x, p->x_scale, p->x_stride, p->n, gpu_group_y());
    few_group(w, w.rows, bias, k, FEW_BLOCKS, y, w.rows, (int32_t)p->split, sums, group - first, gpu_thread());
}

/* ---- experts ---- */

/* What a lane reads of 16 rows and a chunk of 128 columns: 32 columns of two rows. */
typedef struct few_codes {
    gpu_quad w[2];
    uint32_t scale[2], bias[2];
} few_codes;
GPU_TYPE(few_codes, few_codes);

/* Rows beyond the end are read as the last one. */
GPU_FN few_codes few_fetch(mox_gpu_mat m, int64_t row, int32_t chunk, int32_t lane)
{
    few_codes c;
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        /* Rows and bytes of a row are int32: their product is one instruction. */
        const int32_t beyond = (int32_t)row + lane / 4 + 8 * h, r = beyond < (int32_t)m.rows ? beyond : (int32_t)m.rows - 1;
        const int64_t scale_at = (int64_t)r * (int32_t)m.scale_cols + (chunk * 2 + lane % 4 / 2);
        gpu_bytes_quad(m.w, (int64_t)r * (int32_t)m.row_bytes + (chunk * (FEW_CHUNK / 2) + lane % 4 * 16), &c.w[h]);
        c.scale[h] = gpu_load(GPU_CAST(u16, m.scales), scale_at);
        c.bias[h] = gpu_load(GPU_CAST(u16, m.biases), scale_at);
    }
    return c;
}

/* c += 16 rows by eight tokens, over a chunk; x: of this lane's token, its share of the chunk. */
GPU_FN void few_multiply(few_codes k, const GPU_PRIVATE(quad) *x, GPU_PRIVATE(f32) *c)
{
    uint32_t scale[2], bias[2];
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        scale[h] = pair_of(k.scale[h], true);
        bias[h] = pair_of(k.bias[h], true);
    }
    GPU_UNROLL
    for (int32_t i = 0; i < 8; i++) { /* two products for each word of codes */
        uint32_t a[4];
        GPU_UNROLL
        for (int32_t j = 0; j < 4; j++) a[j] = numbers_q4(k.w[j % 2].w[i / 2], i % 2 * 2 + j / 2, scale[j % 2], bias[j % 2]);
        gpu_mma(c, a[0], a[1], a[2], a[3], x[i / 2].w[i % 2 * 2], x[i / 2].w[i % 2 * 2 + 1]);
    }
}

/* The sums of a wave: 16 rows of n_mats matrices (a constant) over the chunks part, part + split, ...  The next chunk is
 * on its way while one is multiplied. */
GPU_FN void few_expert(mox_gpu_mat m0, mox_gpu_mat m1, int32_t n_mats, int64_t row, token_rows k, int32_t part, int32_t split, int32_t lane,
                       GPU_PRIVATE(f32) *c)
{
    const int32_t n_chunks = (int32_t)m0.cols / FEW_CHUNK;
    const int64_t at = lane / 4 < k.n ? token_row(k, lane / 4) * k.stride + lane % 4 * 32 : -1;
    few_codes codes[2], next[2];
    gpu_quad x[4], next_x[4];
    GPU_UNROLL
    for (int32_t i = 0; i < 16; i++) x[i / 4].w[i % 4] = next_x[i / 4].w[i % 4] = 0u;
    for (int32_t chunk = part - split; chunk < n_chunks; chunk += split) {
        if (chunk + split < n_chunks) { /* the whole wave */
            next[0] = few_fetch(m0, row, chunk + split, lane);
            if (n_mats > 1) next[1] = few_fetch(m1, row, chunk + split, lane);
            GPU_UNROLL
            for (int32_t i = 0; i < 4; i++)
                if (at >= 0) next_x[i] = gpu_load_quad(k.x, at + (chunk + split) * FEW_CHUNK + i * 8);
        }
        if (chunk >= 0) {
            few_multiply(codes[0], x, c);
            if (n_mats > 1) few_multiply(codes[1], x, c + 4);
        }
        GPU_UNROLL
        for (int32_t i = 0; i < 2; i++)
            if (i < n_mats) codes[i] = next[i];
        GPU_UNROLL
        for (int32_t i = 0; i < 4; i++) x[i] = next_x[i];
    }
}

GPU_KERNEL_DENSE(experts_gate_up_few, FEW_THREADS, 2)
{
    GPU_SHARED_ARRAY(f32, sums, FEW_WAVES * FEW_PAIR_SUMS);
    const mox_gpu_expert_tile tile = gpu_load(p->tiles, gpu_group_y());
    if (tile.n == 0) return; /* the whole group */
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, wave = me / GPU_LANES;
    const int32_t split = (int32_t)p->split, n_tiles = FEW_WAVES / split;
    const int64_t row0 = gpu_group_x() * n_tiles * 16;
    const token_rows k = few_tile(p, tile);
    float c[8];
    GPU_UNROLL
    for (int32_t i = 0; i < 8; i++) c[i] = 0.0f;
    const mox_gpu_mat gate = four_expert(p->first, tile.expert), up = four_expert(p->second, tile.expert);
    few_expert(gate, up, 2, row0 + wave / split * 16, k, wave % split, split, lane, c);
    few_leave(sums + wave * FEW_PAIR_SUMS, c, 1, lane);
    few_leave(sums + wave * FEW_PAIR_SUMS + FEW_PAIR_SUMS / 2, c + 4, 1, lane);
    gpu_barrier();
    for (int32_t i = me; i < n_tiles * 16 * k.n; i += FEW_THREADS) {
        const int32_t token = i / 16 / n_tiles, part = i / 16 % n_tiles;
        const int64_t row = row0 + part * 16 + i % 16;
        if (row >= p->first.first.rows) continue;
        const float scale = gpu_load(k.scale, token_row(k, token));
        const float g = few_join(sums, FEW_PAIR_SUMS, part * split, split, token, i % 16) * scale;
        const float u = few_join(sums + FEW_PAIR_SUMS / 2, FEW_PAIR_SUMS, part * split, split, token, i % 16) * scale;
        gpu_store(p->y, (k.place + token) * p->y_stride + row, silu(g) * u);
    }
}

GPU_KERNEL_DENSE(experts_down_few, FEW_THREADS, 3)
{
    GPU_SHARED_ARRAY(f32, sums, FEW_WAVES * FEW_PAIR_SUMS);
    const mox_gpu_expert_tile tile = gpu_load(p->tiles, gpu_group_y());
    if (tile.n == 0) return; /* the whole group */
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, wave = me / GPU_LANES;
    const int32_t split = (int32_t)p->split, n_tiles = FEW_WAVES / split;
    const int64_t row0 = gpu_group_x() * n_tiles * 16;
    const mox_gpu_mat down = four_expert(p->first, tile.expert);
    const token_rows k = few_tile(p, tile);
    float c[4];
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) c[i] = 0.0f;
    few_expert(down, down, 1, row0 + wave / split * 16, k, wave % split, split, lane, c);
    few_leave(sums + wave * FEW_PAIR_SUMS, c, 1, lane);
    gpu_barrier();
    for (int32_t i = me; i < n_tiles * 16 * k.n; i += FEW_THREADS) {
        const int32_t token = i / 16 / n_tiles, part = i / 16 % n_tiles;
        const int64_t row = row0 + part * 16 + i % 16, place = k.place + token;
        if (row < down.rows)
            gpu_store(p->y, gpu_load(p->y_row, place) * p->y_stride + row,
                      few_join(sums, FEW_PAIR_SUMS, part * split, split, token, i % 16) * gpu_load(k.scale, token_row(k, token)));
    }
}

/* ---- sorting ---- */

/* Sum of values in front of a thread's own; all of them are in `sums` afterwards, summed up. */
GPU_FN int32_t few_before(GPU_SHARED(i32) *sums, int32_t value, int32_t me)
{
    gpu_barrier();
    gpu_store(sums, me, value);
    for (int32_t d = 1; d < FEW_BUCKET_THREADS; d *= 2) {
        gpu_barrier();
        const int32_t sum = gpu_load(sums, me) + (me >= d ? gpu_load(sums, me - d) : 0);
        gpu_barrier();
        gpu_store(sums, me, sum);
    }
    gpu_barrier();
    return gpu_load(sums, me) - value;
}

/* A thread has some experts in a row, and finds their pairs itself. */
GPU_KERNEL(moe_few, FEW_BUCKET_THREADS)
{
    GPU_SHARED_ARRAY(i32, ids, MOX_GPU_FEW_PAIRS);
    GPU_SHARED_ARRAY(i32, sums, FEW_BUCKET_THREADS);
    const int32_t me = gpu_thread(), n_pairs = (int32_t)p->n_pairs;
    const int32_t share = ((int32_t)p->n_experts + FEW_BUCKET_THREADS - 1) / FEW_BUCKET_THREADS;
    const int32_t first = me * share, last = first + share < (int32_t)p->n_experts ? first + share : (int32_t)p->n_experts;
    const int32_t n_quads = (n_pairs + 3) / 4;
    for (int32_t i = me; i < n_quads * 4; i += FEW_BUCKET_THREADS) gpu_store(ids, i, i < n_pairs ? gpu_load(p->ids, i) : -1);
    gpu_barrier();
    int32_t n_own = 0, n_tiles = 0;
    for (int32_t x = first; x < last; x++) {
        int32_t n = 0;
        for (int32_t i = 0; i < n_quads; i++) {
            const gpu_quad four = gpu_load_quad(ids, 4 * i);
            GPU_UNROLL
            for (int32_t j = 0; j < 4; j++) n += (int32_t)four.w[j] == x ? 1 : 0;
        }
        n_own += n;
        n_tiles += (n + MOX_GPU_FEW_EXPERT_TOKENS - 1) / MOX_GPU_FEW_EXPERT_TOKENS;
    }
    int64_t place = few_before(sums, n_own, me), at = few_before(sums, n_tiles, me);
    const int32_t all_tiles = gpu_load(sums, FEW_BUCKET_THREADS - 1);
    for (int32_t x = first; x < last && n_own > 0; x++) {
        const int64_t begin = place;
        for (int32_t i = 0; i < n_quads; i++) {
            const gpu_quad four = gpu_load_quad(ids, 4 * i);
            GPU_UNROLL
            for (int32_t j = 0; j < 4; j++)
                if ((int32_t)four.w[j] == x) gpu_store(p->pairs, place++, 4 * i + j);
        }
        mox_gpu_expert_tile tile;
        tile.expert = x;
        for (tile.place = begin; tile.place < place; tile.place += MOX_GPU_FEW_EXPERT_TOKENS) {
            tile.n = least(MOX_GPU_FEW_EXPERT_TOKENS, place - tile.place);
            gpu_store(p->tiles, at++, tile);
        }
    }
    mox_gpu_expert_tile none;
    none.expert = none.place = none.n = 0;
    for (int64_t i = all_tiles + me; i < p->n_tiles; i += FEW_BUCKET_THREADS) gpu_store(p->tiles, i, none);
}

#endif
