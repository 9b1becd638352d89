/* dev/gpu/few_experts.h -- experts of some tokens, 5 to 64: each has a few of them only, often one or two.
 *
 * Products are few.h's.  A wave keeps its part of four tokens, 256 columns, in registers and goes over tile after tile of 16 rows;
 * those of other columns are other waves', and their sums are joined in shared memory.  A group finds the pairs of its expert
 * itself, so nothing is sorted; more than four pairs are several rounds, for which the weights are still in the cache. */
#ifndef MOX_DEV_GPU_FEW_EXPERTS_H
#define MOX_DEV_GPU_FEW_EXPERTS_H

#include "dev/gpu/few.h"

enum { FEW_HELD = 2 }; /* tiles that are on their way or multiplied */

/* Lists the pairs of an expert, in ascending order: list[0] is how many there are.  The first wave does it. */
GPU_FN int32_t few_list(const GPU_GLOBAL(i32) *ids, int32_t n_pairs, int32_t expert, GPU_SHARED(i32) *list, int32_t me)
{
    if (me < GPU_LANES) {
        int32_t n = 0;
        for (int32_t first = 0; first < n_pairs; first += 4 * GPU_LANES) {
            int32_t is_own[4], n_own = 0;
            GPU_UNROLL
            for (int32_t j = 0; j < 4; j++) {
                const int32_t pair = first + me * 4 + j;
                is_own[j] = pair < n_pairs && gpu_load(ids, pair) == expert ? 1 : 0;
                n_own += is_own[j];
            }
            int32_t upto = n_own; /* of the lanes up to this one */
            GPU_UNROLL
            for (int32_t d = 1; d < GPU_LANES; d *= 2) {
                const int32_t other = gpu_shuffle_i32(upto, me >= d ? me - d : me);
                if (me >= d) upto += other;
            }
            int32_t at = n + upto - n_own;
            GPU_UNROLL
            for (int32_t j = 0; j < 4; j++)
                if (is_own[j] != 0) gpu_store(list, ++at, first + me * 4 + j);
            n += gpu_shuffle_i32(upto, GPU_LANES - 1);
        }
        if (me == 0) gpu_store(list, 0, n);
    }
    gpu_barrier();
    return gpu_load(list, 0);
}

/* A lane's part of four tokens over a chunk: the column of a product that it brings, and what it needs to know of the token that
 * it has sums of. */
typedef struct few_share {
    gpu_quad b[FEW_GROUPS][2];
    float sum[FEW_GROUPS], factor;
} few_share;

/* at: where the chunk of the token begins whose column the lane brings, lane / 8; -1: there is none.  The lanes of the two planes
 * make a word of each group, for both. */
GPU_FN few_share few_take(const GPU_GLOBAL(f32) *x, int64_t at, int32_t lane)
{
    few_share s;
    float v[FEW_GROUPS * 8], largest = 0.0f;
    const int32_t plane = lane / 4 % 2;
    GPU_UNROLL
    for (int32_t i = 0; i < FEW_GROUPS * 8; i++) v[i] = 0.0f;
    GPU_UNROLL
    for (int32_t g = 0; g < FEW_GROUPS; g++)
        if (at >= 0) few_numbers(x, at + g * FEW_GROUP + (lane % 4 * 2 + plane) * 8, 8, v + 8 * g);
    GPU_UNROLL
    for (int32_t i = 0; i < FEW_GROUPS * 8; i++) largest = gpu_max(largest, gpu_abs(v[i]));
    GPU_UNROLL
    for (int32_t d = 4; d > 0; d /= 2) largest = gpu_max(largest, gpu_shuffle(largest, lane ^ d));
    const few_scale scale = few_scale_of(largest);
    s.factor = gpu_shuffle(scale.factor, lane % 4 * 8);
    GPU_UNROLL
    for (int32_t g = 0; g < FEW_GROUPS; g++) {
        float sum = 0.0f;
        GPU_UNROLL
        for (int32_t i = 0; i < 8; i++) sum += v[8 * g + i];
        GPU_UNROLL
        for (int32_t d = 4; d > 0; d /= 2) sum += gpu_shuffle(sum, lane ^ d);
        s.sum[g] = gpu_shuffle(sum, lane % 4 * 8);
        const few_word w = few_split(v + 8 * g, scale.up);
        GPU_UNROLL
        for (int32_t i = 0; i < 4; i++) { /* each keeps its plane of its word, and gets that of the other's */
            const uint32_t kept = plane == 0 ? w.high.w[i] : w.low.w[i], given = plane == 0 ? w.low.w[i] : w.high.w[i];
            const uint32_t got = (uint32_t)gpu_shuffle_i32((int32_t)given, lane ^ 4);
            s.b[g][0].w[i] = plane == 0 ? kept : got;
            s.b[g][1].w[i] = plane == 0 ? got : kept;
        }
    }
    return s;
}

/* The tiles of a group, which are jobs: of one matrix, or in turn of gate and up, whose rows are the same.  Waves: n_parts that
 * share rows, n_teams of these; the rest has nothing to do. */
typedef struct few_work {
    mox_gpu_mat m[2];
    int64_t at; /* the lane's bytes of the first row */
    int32_t n_jobs, n_chunks, n_parts, part, n_teams, team;
} few_work;

/* Rows are a multiple of 16; jobs behind the last one are none. */
GPU_FN few_work few_work_of(mox_gpu_mat first, mox_gpu_mat second, bool is_pair, int64_t row, int32_t n_jobs, int32_t me)
{
    const int32_t lane = me % GPU_LANES, left = (int32_t)(first.rows - row) / 16 * (is_pair ? 2 : 1);
    few_work w;
    w.m[0] = first;
    w.m[1] = second;
    w.at = (row + lane / 4) * first.row_bytes;
    w.n_jobs = n_jobs < left ? n_jobs : left;
    w.n_chunks = (int32_t)first.cols / FEW_CHUNK;
    w.n_parts = w.n_chunks < FEW_WAVES ? w.n_chunks : FEW_WAVES;
    w.part = me / GPU_LANES % w.n_parts;
    w.n_teams = FEW_WAVES / w.n_parts;
    w.team = me / GPU_LANES / w.n_parts;
    return w;
}

/* A chunk of a job.  is_pair is a constant here and below. */
GPU_FN few_codes few_job(few_work w, bool is_pair, int32_t job, int32_t chunk, int32_t lane)
{
    if (is_pair) return few_codes_at(job % 2 == 0 ? w.m[0] : w.m[1], w.at + (job / 2 * 16) * w.m[0].row_bytes + chunk * (FEW_CHUNK / 2),
                                     8 * w.m[0].row_bytes, lane);
    return few_codes_at(w.m[0], w.at + (job * 16) * w.m[0].row_bytes + chunk * (FEW_CHUNK / 2), 8 * w.m[0].row_bytes, lane);
}

/* Asks for the first jobs of a team; what is not there is never used. */
GPU_FN void few_start(few_work w, bool is_pair, int32_t chunk, int32_t lane, GPU_PRIVATE(few_codes) *ring)
{
    GPU_UNROLL
    for (int32_t i = 0; i < FEW_HELD; i++) ring[i] = few_job(w, is_pair, (w.team + i * w.n_teams) % w.n_jobs, chunk, lane);
}

/* y[0..1]: rows g and g + 8 of a tile by the token that the lane has sums of, over a chunk. */
GPU_FN void few_multiply(few_codes k, few_share own, GPU_PRIVATE(f32) *y)
{
    float c[FEW_GROUPS * 4], codes[2];
    GPU_UNROLL
    for (int32_t i = 0; i < FEW_GROUPS * 4; i++) c[i] = 0.0f;
    GPU_UNROLL
    for (int32_t step = 0; step < 4; step++)
        GPU_UNROLL
        for (int32_t g = 0; g < FEW_GROUPS; g++) few_step(k, g, step, own.b[g], c + 4 * g);
    codes[0] = codes[1] = y[0] = y[1] = 0.0f;
    GPU_UNROLL
    for (int32_t g = 0; g < FEW_GROUPS; g++) few_add(k, g, c + 4 * g, 1.0f, own.sum[g], codes, y);
    y[0] += codes[0] * own.factor;
    y[1] += codes[1] * own.factor;
}

/* sums[job, part, token, row] of four tokens; at: where the token begins whose column the lane brings, or -1.  ring has what
 * few_start asked for in the first chunk. */
GPU_FN void few_expert(few_work w, bool is_pair, const GPU_GLOBAL(f32) *x, int64_t at, GPU_SHARED(f32) *sums, GPU_PRIVATE(few_codes) *ring,
                       int32_t lane)
{
    if (w.team >= w.n_teams) return; /* the whole wave */
    for (int32_t chunk = w.part; chunk < w.n_chunks; chunk += w.n_parts) {
        const few_share own = few_take(x, at < 0 ? at : at + chunk * FEW_CHUNK, lane);
        if (chunk != w.part) few_start(w, is_pair, chunk, lane, ring);
        for (int32_t first = w.team; first < w.n_jobs; first += FEW_HELD * w.n_teams) {
            GPU_UNROLL
            for (int32_t s = 0; s < FEW_HELD; s++) {
                const int32_t job = first + s * w.n_teams, next = job + FEW_HELD * w.n_teams;
                const int32_t to = ((job * w.n_parts + w.part) * FEW_BLOCK + lane % 4) * FEW_STRIDE + lane / 4;
                float y[2];
                if (job >= w.n_jobs) continue; /* the whole wave */
                few_multiply(ring[s], own, y);
                if (next < w.n_jobs) ring[s] = few_job(w, is_pair, next, chunk, lane);
                GPU_UNROLL
                for (int32_t h = 0; h < 2; h++)
                    gpu_store(sums, to + 8 * h, chunk == w.part ? y[h] : gpu_load(sums, to + 8 * h) + y[h]);
            }
        }
    }
}

/* A row of a job, of all parts. */
GPU_FN float few_total(few_work w, const GPU_SHARED(f32) *sums, int32_t job, int32_t token, int32_t row)
{
    float sum = 0.0f;
    for (int32_t i = 0; i < w.n_parts; i++) sum += gpu_load(sums, ((job * w.n_parts + i) * FEW_BLOCK + token) * FEW_STRIDE + row);
    return sum;
}

/* Where the token of pair number i begins, or -1. */
GPU_FN int64_t few_row(const GPU_SHARED(i32) *list, int32_t n, int32_t i, int64_t divisor, int64_t stride)
{
    return i < n ? gpu_load(list, 1 + i) / (int32_t)divisor * stride : -1;
}

enum { FEW_EXPERT_SUMS = MOX_GPU_FEW_SUMS * FEW_BLOCK * FEW_STRIDE };

/* What a group does: is_pair, silu(first x) * (second x), else first x. */
GPU_FN void few_experts(const GPU_CONSTANT(mox_gpu_experts_few) *p, bool is_pair, GPU_SHARED(f32) *sums, GPU_SHARED(i32) *list, int64_t group,
                        int32_t expert, int32_t me)
{
    const int32_t lane = me % GPU_LANES, n_jobs = (int32_t)p->n_jobs, n_rows = is_pair ? n_jobs * 8 : n_jobs * 16;
    const int64_t row0 = group * n_rows;
    const few_work w = few_work_of(four_expert(p->first, expert), four_expert(is_pair ? p->second : p->first, expert), is_pair, row0, n_jobs, me);
    few_codes ring[FEW_HELD];
    if (is_pair && p->most != 0) few_start(w, is_pair, w.part, lane, ring); /* those that nobody wants read a little for nothing */
    if (is_pair) gpu_previous(); /* else ids are older */
    const int32_t n = few_list(p->ids, (int32_t)p->n_pairs, expert, list, me);
    if (!is_pair && n > 0) few_start(w, is_pair, w.part, lane, ring);
    if (!is_pair) gpu_previous();
    for (int32_t i = 0; i < n; i += FEW_BLOCK) {
        if (i > 0 || (is_pair && p->most == 0)) few_start(w, is_pair, w.part, lane, ring);
        few_expert(w, is_pair, p->x, few_row(list, n, i + lane / 8, p->x_divisor, p->x_stride), sums, ring, lane);
        gpu_barrier();
        for (int32_t k = me; k < FEW_BLOCK * n_rows; k += FEW_THREADS) {
            const int32_t token = k / n_rows, row = k % n_rows, job = is_pair ? row / 16 * 2 : row / 16;
            if (i + token >= n || job >= w.n_jobs) continue;
            const float first = few_total(w, sums, job, token, row % 16);
            gpu_store(p->y, gpu_load(list, 1 + i + token) * p->y_stride + row0 + row,
                      is_pair ? silu(first) * few_total(w, sums, job + 1, token, row % 16) : first);
        }
        gpu_barrier();
    }
}

GPU_KERNEL_EARLY_DENSE(experts_gate_up_few, FEW_THREADS, 2)
{
    GPU_SHARED_ARRAY(f32, sums, FEW_EXPERT_SUMS);
    GPU_SHARED_ARRAY(i32, list, MOX_GPU_FEW_PAIRS + 1);
    few_experts(p, true, sums, list, gpu_group_x(), (int32_t)gpu_group_y(), gpu_thread());
}

GPU_KERNEL_EARLY_DENSE(experts_down_few, FEW_THREADS, 2)
{
    GPU_SHARED_ARRAY(f32, sums, FEW_EXPERT_SUMS);
    GPU_SHARED_ARRAY(i32, list, MOX_GPU_FEW_PAIRS + 1);
    few_experts(p, false, sums, list, gpu_group_x(), (int32_t)gpu_group_y(), gpu_thread());
}

#endif
