/* dev/gpu/experts4.h -- feed-forwards of few tokens and 4-bit weights, with the expert that all tokens share, and products
 * of long rows.  What matvec4.h reads, by its tiles.
 *
 * In long products a wave asks for its next tile as soon as it is done with the one before, so that memory is busy while
 * others compute; products of few rows instead have so many waves that all tiles are asked for at once.  The shared expert is
 * one more slot of a token, behind the routed ones.  A dense feed-forward is a shared expert without routed ones, and a
 * long product is the second half of that. */
#ifndef MOX_DEV_GPU_EXPERTS4_H
#define MOX_DEV_GPU_EXPERTS4_H

#include "dev/gpu/group.h"
#include "dev/gpu/mat.h"
#include "dev/gpu/matvec4.h"

enum { EXPERTS4_TILES = 2, DOWN4_WAVES = 24, DOWN4_THREADS = DOWN4_WAVES * GPU_LANES };

GPU_FN mox_gpu_mat slot_mat(mox_gpu_stack stack, mox_gpu_mat shared, bool is_shared, int64_t expert)
{
    mox_gpu_mat m = four_expert(stack, expert);
    if (is_shared) { /* of the same shape */
        m.w = shared.w;
        m.scales = shared.scales;
        m.biases = shared.biases;
    }
    return m;
}

/* The gate of the shared expert: one row of any layout, times a token. */
GPU_FN void shared_logit(const GPU_CONSTANT(mox_gpu_experts4_gate_up) *p, int64_t t, GPU_SHARED(f32) *scratch, int32_t me)
{
    float v[UNIT], sum = 0.0f;
    mat_unit(p->scale, 0, least(me * UNIT, (p->scale.cols - 1) / UNIT * UNIT), v);
    gpu_previous();
    for (int64_t col = me * UNIT; col < p->scale.cols; col += FOUR_THREADS * UNIT) {
        if (col != me * UNIT) mat_unit(p->scale, 0, col, v);
        GPU_UNROLL
        for (int32_t i = 0; i < UNIT; i++)
            if (col + i < p->scale.cols) sum += v[i] * gpu_load(p->x, t * p->x_stride + col + i);
    }
    sum = group_sum(sum, scratch, me, FOUR_THREADS);
    if (me == 0) gpu_store(p->logit, t, sum);
}

/* Rows by tiles that are half of gate and half of up, so that their product is made where they are. */
enum { PAIR_ROWS = 8, GATE_UP_ROWS = MOX_GPU_EXPERTS4_ROWS, GATE_UP_TILES = GATE_UP_ROWS / PAIR_ROWS };

GPU_KERNEL_EARLY_DENSE(experts4_gate_up, FOUR_THREADS, 2)
{
    GPU_SHARED_ARRAY(quad, planes, FOUR_WAVES * FOUR_QUADS + FOUR_ZEROS);
    GPU_SHARED_ARRAY(f32, sums, GATE_UP_TILES * FOUR_WAVES * FOUR_SUMS);
    const int32_t me = gpu_thread(), lane = me % GPU_LANES, wave = me / GPU_LANES;
    const int32_t slots = (int32_t)(p->k + p->n_shared), place = (int32_t)gpu_group_y(), t = place / slots;
    const int32_t turn = place - t * slots, slot = turn == 0 && p->n_shared != 0 ? (int32_t)p->k : turn - (int32_t)p->n_shared;
    const int64_t row = gpu_group_x() * GATE_UP_ROWS;
    GPU_SHARED(quad) *mine = planes + wave * FOUR_QUADS, *zeros = planes + FOUR_WAVES * FOUR_QUADS;
    if (place >= p->n_pairs) { /* the whole group */
        if (row == 0) shared_logit(p, place - p->n_pairs, sums, me);
        else gpu_previous();
        return;
    }
    four_zeros(zeros, me);
    const bool is_shared = slot == (int32_t)p->k; /* the same in the group; its weights wait for nobody, so it is first */
    int64_t expert = 0;
    if (!is_shared) {
        gpu_previous();
        expert = gpu_load(p->ids, t * p->k + slot);
    }
    const mox_gpu_mat gate = slot_mat(p->gate, p->shared_gate, is_shared, expert), up = slot_mat(p->up, p->shared_up, is_shared, expert);
    const int32_t n_chunks = (int32_t)gate.cols / FOUR_CHUNK;
    const GPU_GLOBAL(f32) *x = p->x + t * p->x_stride;
    four_tile tile[FOUR_TILES];
    float sum[2 * FOUR_TILES];
    GPU_UNROLL
    for (int32_t i = 0; i < 2 * FOUR_TILES; i++) sum[i] = 0.0f;
    for (int32_t first = 0; first < n_chunks; first += FOUR_WAVES) {
        const int32_t chunk = first + wave;
        const bool there = chunk < n_chunks; /* the same in a wave */
        GPU_UNROLL
        for (int32_t k = 0; k < GATE_UP_TILES; k++) {
            if (!there) continue;
            four_load_half(gate, row + PAIR_ROWS * k, chunk, lane, 0, &tile[k]);
            four_load_half(up, row + PAIR_ROWS * k, chunk, lane, 1, &tile[k]);
        }
        if (is_shared && first == 0) gpu_previous();
        if (there) four_split(x + chunk * FOUR_CHUNK, mine, lane);
        gpu_barrier();
        if (there) four_dots(tile, GATE_UP_TILES, mine, zeros, 1.0f, lane, sum);
        if (first + FOUR_WAVES < n_chunks) gpu_barrier(); /* the whole group */
    }
    GPU_UNROLL
    for (int32_t k = 0; k < GATE_UP_TILES; k++) four_leave(sum + 2 * k, sums + k * FOUR_WAVES * FOUR_SUMS, wave, lane);
    gpu_barrier();
    if (me >= GATE_UP_ROWS || row + me >= gate.rows) return;
    const GPU_SHARED(f32) *of_tile = sums + me / PAIR_ROWS * FOUR_WAVES * FOUR_SUMS;
    const float value = silu(four_join(of_tile, FOUR_WAVES, me % PAIR_ROWS)) * four_join(of_tile, FOUR_WAVES, me % PAIR_ROWS + PAIR_ROWS);
    gpu_store(p->y, (int64_t)(t * slots + slot) * gate.rows + row + me, value);
}

/* Rows of all slots of a token, `tiles` times 16 of them (a constant), by `waves` waves: chunks of all slots, one after
 * the other, are dealt out to them. */
GPU_FN void down_rows(const GPU_CONSTANT(mox_gpu_experts4_down) *p, int64_t row, int64_t t, int32_t tiles, int32_t waves,
                      GPU_SHARED(quad) *planes, GPU_SHARED(f32) *sums, GPU_SHARED(i32) *ids, GPU_SHARED(f32) *weights, int32_t me)
{
    const int32_t lane = me % GPU_LANES, wave = me / GPU_LANES, k = (int32_t)p->k, per = (int32_t)p->width / FOUR_CHUNK;
    const int32_t n_jobs = (k + (int32_t)p->n_shared) * per;
    const GPU_GLOBAL(f32) *x = p->x + t * p->x_stride;
    GPU_SHARED(quad) *mine = planes + wave * FOUR_QUADS, *zeros = planes + waves * FOUR_QUADS;
    four_tile tile[EXPERTS4_TILES];
    float sum[2 * EXPERTS4_TILES], ahead[8];
    GPU_UNROLL
    for (int32_t i = 0; i < 2 * EXPERTS4_TILES; i++) sum[i] = 0.0f;
    four_zeros(zeros, me);
    if (me < k) { /* what chose them is older than the launch in front, which made x */
        gpu_store(ids, me, gpu_load(p->ids, t * k + me));
        gpu_store(weights, me, gpu_load(p->w, t * k + me));
    }
    gpu_barrier();
    int32_t job = wave < n_jobs ? wave : n_jobs - 1, slot = job / per;
    mox_gpu_mat m = slot_mat(p->down, p->shared_down, slot == k, slot == k ? 0 : gpu_load(ids, slot));
    GPU_UNROLL
    for (int32_t i = 0; i < EXPERTS4_TILES; i++)
        if (i < tiles) four_load(m, row + 16 * i, job - slot * per, lane, &tile[i]);
    gpu_previous();
    four_eight(x + (int64_t)job * FOUR_CHUNK, lane, ahead);
    const float before = p->h && me < tiles * 16 && row + me < p->down.first.rows ? gpu_load(p->h, t * p->h_stride + row + me) : 0.0f;
    const float shared_weight = p->mode == MOX_GPU_SHARED_GATED ? sigmoid(gpu_load(p->gate, t * p->gate_stride)) : 1.0f;
    for (int32_t first = 0; first < n_jobs; first += waves) {
        const bool there = first + wave < n_jobs, more = first + wave + waves < n_jobs; /* the same in a wave */
        const float weight = slot == k ? shared_weight : gpu_load(weights, slot);
        if (there) four_planes(ahead, mine, lane);
        gpu_barrier();
        if (more) {
            job = first + wave + waves;
            slot = job / per;
            m = slot_mat(p->down, p->shared_down, slot == k, slot == k ? 0 : gpu_load(ids, slot));
            four_eight(x + (int64_t)job * FOUR_CHUNK, lane, ahead);
        }
        GPU_UNROLL
        for (int32_t i = 0; i < EXPERTS4_TILES; i++) {
            if (i >= tiles || !there) continue;
            four_dots(&tile[i], 1, mine, zeros, weight, lane, sum + 2 * i);
            if (more) four_load(m, row + 16 * i, job - slot * per, lane, &tile[i]);
        }
        if (first + waves < n_jobs) gpu_barrier(); /* the whole group */
    }
    GPU_UNROLL
    for (int32_t i = 0; i < EXPERTS4_TILES; i++)
        if (i < tiles) four_leave(sum + 2 * i, sums + i * waves * FOUR_SUMS, wave, lane);
    gpu_barrier();
    const int64_t r = row + me;
    if (me >= tiles * 16 || r >= p->down.first.rows) return;
    float out = before + four_join(sums + me / 16 * waves * FOUR_SUMS, waves, me % 16);
    if (p->bias.type != MOX_GPU_NONE) out += stored_number(p->bias.data, (int32_t)p->bias.type, r);
    gpu_store(p->out, t * p->out_stride + r, out);
}

GPU_KERNEL_HASTY(experts4_down, DOWN4_THREADS)
{
    GPU_SHARED_ARRAY(quad, planes, DOWN4_WAVES * FOUR_QUADS + FOUR_ZEROS);
    GPU_SHARED_ARRAY(f32, sums, DOWN4_WAVES * FOUR_SUMS);
    GPU_SHARED_ARRAY(i32, ids, MOX_GPU_EXPERTS4_SLOTS);
    GPU_SHARED_ARRAY(f32, weights, MOX_GPU_EXPERTS4_SLOTS);
    down_rows(p, gpu_group_x() * 16, gpu_group_y(), 1, DOWN4_WAVES, planes, sums, ids, weights, gpu_thread());
}

GPU_KERNEL_HASTY_DENSE(experts4_down_long, FOUR_THREADS, 2)
{
    GPU_SHARED_ARRAY(quad, planes, FOUR_WAVES * FOUR_QUADS + FOUR_ZEROS);
    GPU_SHARED_ARRAY(f32, sums, EXPERTS4_TILES * FOUR_WAVES * FOUR_SUMS);
    GPU_SHARED_ARRAY(i32, ids, MOX_GPU_EXPERTS4_SLOTS);
    GPU_SHARED_ARRAY(f32, weights, MOX_GPU_EXPERTS4_SLOTS);
    down_rows(p, gpu_group_x() * (EXPERTS4_TILES * 16), gpu_group_y(), EXPERTS4_TILES, FOUR_WAVES, planes, sums, ids, weights,
              gpu_thread());
}

/* ---- up to four products of the same rows ---- */

/* By 16 times tiles times sets rows, see four_product. */
GPU_FN void project_rows(const GPU_CONSTANT(mox_gpu_project4) *p, int32_t x, int64_t t, bool again, int32_t tiles, int32_t sets, int32_t waves,
                         GPU_SHARED(quad) *planes, GPU_SHARED(f32) *sums, int32_t me)
{
    const int32_t rows = sets * tiles * 16, second = ((int32_t)p->w0.rows + rows - 1) / rows;
    const int32_t third = second + ((int32_t)p->w1.rows + rows - 1) / rows, fourth = third + ((int32_t)p->w2.rows + rows - 1) / rows;
    mox_gpu_mat w = p->w0; /* chosen by value: parameters are not indexed */
    mox_gpu_vec bias = p->bias0;
    GPU_GLOBAL(f32) *y = p->y0;
    int32_t first = 0;
    if (x >= fourth) {
        w = p->w3;
        bias = p->bias3;
        y = p->y3;
        first = fourth;
    } else if (x >= third) {
        w = p->w2;
        bias = p->bias2;
        y = p->y2;
        first = third;
    } else if (x >= second) {
        w = p->w1;
        bias = p->bias1;
        y = p->y1;
        first = second;
    }
    const int64_t row = (x - first) * rows;
    const GPU_GLOBAL(f32) *of_token = p->x + t * p->x_stride;
    if (row >= w.rows) { /* the whole group */
        norm_row(of_token, p->norm.out + t * p->norm.stride, p->w0.cols, p->norm.weight, p->norm.offset, p->norm.eps, sets * waves * GPU_LANES, sums,
                 me);
        return;
    }
    (void)four_product(w, p->norm, of_token, 0, row, again, tiles, sets, waves, planes, sums, me);
    if (me >= rows || row + me >= w.rows) return;
    gpu_store(y, t * w.rows + row + me, four_row(w, p->norm, sums, sets * tiles, waves, me) + four_bias(bias, row + me));
}

/* For so few groups that each may have a processor of the GPU to itself. */
GPU_KERNEL_HASTY(project4, FOUR_TILES * FOUR_THREADS)
{
    GPU_SHARED_ARRAY(quad, planes, FOUR_WAVES * FOUR_QUADS + FOUR_ZEROS);
    GPU_SHARED_ARRAY(f32, sums, FOUR_WAVES * (FOUR_TILES * FOUR_SUMS + 1));
    project_rows(p, (int32_t)gpu_group_x(), gpu_group_y(), false, 1, FOUR_TILES, FOUR_WAVES, planes, sums, gpu_thread());
}

GPU_KERNEL_HASTY_DENSE(project4_many, FOUR_THREADS, 2)
{
    GPU_SHARED_ARRAY(quad, planes, FOUR_WAVES * FOUR_QUADS + FOUR_ZEROS);
    GPU_SHARED_ARRAY(f32, sums, FOUR_WAVES * (FOUR_TILES * FOUR_SUMS + 1));
    project_rows(p, (int32_t)gpu_group_x(), gpu_group_y(), false, FOUR_TILES, 1, FOUR_WAVES, planes, sums, gpu_thread());
}

/* For few groups of long rows. */
GPU_KERNEL_HASTY(project4_long, PRODUCT4_THREADS)
{
    GPU_SHARED_ARRAY(quad, planes, PRODUCT4_WAVES * FOUR_QUADS + FOUR_ZEROS);
    GPU_SHARED_ARRAY(f32, sums, PRODUCT4_WAVES * (FOUR_SUMS + 1));
    project_rows(p, (int32_t)gpu_group_x(), gpu_group_y(), true, 1, 1, PRODUCT4_WAVES, planes, sums, gpu_thread());
}

#endif
