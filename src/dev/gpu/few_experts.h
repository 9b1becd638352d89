/* dev/gpu/few_experts.h -- experts of some tokens, 5 to 64: each has a few of them only, often one or two.
 *
 * Weights and planes are few.h's.  What takes time here is neither memory nor multiplication but the number of instructions, and waits.  So
 * experts_plan_few lists once who has to do with whom, groups stay and walk along that list, and no sums are joined: a wave takes a tile of 16 rows,
 * of down or eight each of gate and up, goes along all of its columns with the sums in registers, and stores them.  While it multiplies a chunk of
 * 256 columns, its next weights are on their way, also those of its next tile; planes come to shared memory, two chunks ahead.
 *
 * A lane asks for 16 bytes, 32 columns, so the four lanes of a row have two groups of scales.  As in matvec4.h each of these, a side, has columns of
 * its own in the product, to which lanes of the other side bring zeros: 8 columns are two sides of two planes of two tokens.  A lane has sums
 * of one side, and the lane next but one those of the other.  Tokens are taken by four, a block: those beyond two are a second product, with weights
 * that are decoded already. */
#ifndef MOX_DEV_GPU_FEW_EXPERTS_H
#define MOX_DEV_GPU_FEW_EXPERTS_H

#include "dev/gpu/few.h"

/* FEW_HELD: chunks that are on their way or multiplied.  Planes of four tokens over a chunk have a place in shared memory, one of FEW_PLACES;
 * those of a group are FEW_APART quads apart and not 8, so that lanes read from different banks, and zeros are in other ones, too. */
enum { FEW_HELD = 2, FEW_PLACES = 2 * FEW_HELD, FEW_APART = FEW_QUADS / 2 + 1, FEW_TOKEN = FEW_GROUPS * 2 * FEW_APART,
       FEW_PLACE = FEW_BLOCK * FEW_TOKEN, FEW_ZEROS = 56, FEW_PARTS = FEW_BLOCK * FEW_GROUPS };

/* ---- who has to do with whom ---- */

/* Of each expert the pairs in ascending order, by blocks of four.  A thread has an expert, then a pair; ids behind the last pair are of none. */
GPU_FN void few_plan(const GPU_CONSTANT(mox_gpu_experts_plan_few) *p, GPU_SHARED(quad) *ids, GPU_SHARED(i32) *first, GPU_SHARED(i32) *of_waves,
                     int32_t me)
{
    const int32_t n_quads = ((int32_t)p->n_pairs + 15) / 16 * 4, n_experts = (int32_t)p->n_experts, lane = me % GPU_LANES;
    int32_t done = 0;
    for (int32_t i = me; i < n_quads; i += FEW_THREADS) {
        gpu_quad four;
        GPU_UNROLL
        for (int32_t k = 0; k < 4; k++) four.w[k] = 4 * i + k < (int32_t)p->n_pairs ? (uint32_t)gpu_load(p->ids, 4 * i + k) : 0xFFFFFFFFu;
        gpu_store(ids, i, four);
    }
    for (int32_t window = 0; window < n_experts; window += FEW_THREADS) {
        int32_t n = 0, before = done;
        gpu_barrier();
        for (int32_t i = 0; i < n_quads; i += 4)
            GPU_UNROLL
            for (int32_t j = 0; j < 4; j++) {
                const gpu_quad four = gpu_load(ids, i + j);
                GPU_UNROLL
                for (int32_t k = 0; k < 4; k++) n += (int32_t)four.w[k] == window + me ? 1 : 0;
            }
        if (window + me >= n_experts) n = 0;
        const int32_t blocks = (n + FEW_BLOCK - 1) / FEW_BLOCK;
        int32_t upto = blocks; /* of the lanes up to this one */
        GPU_UNROLL
        for (int32_t d = 1; d < GPU_LANES; d *= 2) {
            const int32_t other = gpu_shuffle_i32(upto, lane >= d ? lane - d : lane);
            if (lane >= d) upto += other;
        }
        if (lane == GPU_LANES - 1) gpu_store(of_waves, me / GPU_LANES, upto);
        gpu_barrier();
        GPU_UNROLL
        for (int32_t i = 0; i < FEW_WAVES; i++) {
            const int32_t of_wave = gpu_load(of_waves, i);
            if (i < me / GPU_LANES) before += of_wave;
            done += of_wave;
        }
        before += upto - blocks;
        gpu_store(first, me, before);
        for (int32_t b = 0; b < blocks; b++) {
            const int32_t at = MOX_GPU_FEW_PLAN + (before + b) * MOX_GPU_FEW_ENTRY;
            gpu_store(p->plan, at, window + me);
            gpu_store(p->plan, at + 1, n - b * FEW_BLOCK);
        }
        for (int32_t k = n; k < blocks * FEW_BLOCK; k++) { /* what is not there */
            const int32_t at = MOX_GPU_FEW_PLAN + (before + blocks - 1) * MOX_GPU_FEW_ENTRY + k % FEW_BLOCK;
            gpu_store(p->plan, at + MOX_GPU_FEW_PAIRS_AT, -1);
            gpu_store(p->plan, at + MOX_GPU_FEW_ROWS_AT, -1);
        }
        gpu_barrier();
        for (int32_t pair = me; pair < (int32_t)p->n_pairs; pair += FEW_THREADS) {
            const int32_t expert = gpu_load(p->ids, pair);
            int32_t rank = 0;
            if (expert < window || expert >= window + FEW_THREADS || expert >= n_experts) continue;
            for (int32_t i = 0; i <= pair / 4; i += 4)
                GPU_UNROLL
                for (int32_t j = 0; j < 4; j++) {
                    const gpu_quad four = gpu_load(ids, i + j);
                    GPU_UNROLL
                    for (int32_t k = 0; k < 4; k++) rank += (int32_t)four.w[k] == expert && 4 * (i + j) + k < pair ? 1 : 0;
                }
            const int32_t block = gpu_load(first, expert - window) + rank / FEW_BLOCK;
            const int32_t at = MOX_GPU_FEW_PLAN + block * MOX_GPU_FEW_ENTRY + rank % FEW_BLOCK;
            gpu_store(p->plan, at + MOX_GPU_FEW_PAIRS_AT, pair);
            gpu_store(p->plan, at + MOX_GPU_FEW_ROWS_AT, pair / (int32_t)p->x_divisor);
        }
    }
    if (me == 0) gpu_store(p->plan, 0, done);
}

GPU_KERNEL(experts_plan_few, FEW_THREADS)
{
    GPU_SHARED_ARRAY(quad, ids, MOX_GPU_FEW_PAIRS / 4);
    GPU_SHARED_ARRAY(i32, first, FEW_THREADS);
    GPU_SHARED_ARRAY(i32, of_waves, FEW_WAVES);
    if (gpu_group_y() > 0) few_plane(p->rows, gpu_group_x(), gpu_group_y() - 1, gpu_thread());
    else if (gpu_group_x() == 0) few_plan(p, ids, first, of_waves, gpu_thread());
}

/* ---- weights ---- */

/* Where a wave is in the list: a tile of a block.  Groups go on by p->n_groups units. */
typedef struct few_spot {
    int32_t block, unit;
} few_spot;

/* What a walk knows; all of it is the same in a wave but for the lane's part of addresses. */
typedef struct few_walk {
    const GPU_GLOBAL(i32) *entries;
    int32_t n_blocks, n_units, n_chunks, step_blocks, step_units, row_of_lane, rows_of_unit, lane;
    int32_t column, place, second; /* where the lane's column of a product begins; how far away it is in the next place, and in the second product */
} few_walk;

GPU_FN few_spot few_next(few_walk w, few_spot s)
{
    s.block += w.step_blocks;
    s.unit += w.step_units;
    if (s.unit >= w.n_units) {
        s.unit -= w.n_units;
        s.block++;
    }
    return s;
}
GPU_FN int32_t few_entry(few_walk w, few_spot s, int32_t i)
{
    return s.block < w.n_blocks ? gpu_load(w.entries, s.block * MOX_GPU_FEW_ENTRY + i) : -1;
}

/* What asks for weights: bytes of rows g and g + 8 of the tile, and what comes behind it. */
typedef struct few_source {
    const GPU_GLOBAL(u8) *w[2];
    const GPU_GLOBAL(u8) *scales[2];
    const GPU_GLOBAL(u8) *biases[2];
    few_spot next;
    uint32_t at, scale_at; /* bytes of the tile's chunks that were asked for */
    int32_t chunk;
    int32_t expert; /* of next, -1: there is none */
} few_source;
GPU_TYPE(few_source, few_source);

/* Goes to the next tile.  Rows beyond the end are read as the last one. */
GPU_FN void few_turn(const GPU_CONSTANT(mox_gpu_experts_few) *p, bool is_pair, few_walk w, GPU_PRIVATE(few_source) *s)
{
    const int64_t row_bytes = p->first.first.row_bytes;
    const int32_t last = (int32_t)p->first.first.rows - 1;
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        const int32_t asked = s->next.unit * w.rows_of_unit + w.row_of_lane + (is_pair ? 0 : 8 * h);
        const int64_t at = (asked < last ? asked : last) * row_bytes;
        const mox_gpu_mat m = four_expert(is_pair && h == 1 ? p->second : p->first, s->expert);
        s->w[h] = m.w + (at + w.lane % 4 * 16);
        s->scales[h] = m.scales + at / 16;
        s->biases[h] = m.biases + at / 16;
    }
    s->next = few_next(w, s->next);
    s->expert = few_entry(w, s->next, 0);
    s->chunk = 0;
    s->at = s->scale_at = 0u;
}

/* Asks for a chunk. */
GPU_FN void few_ask(const GPU_CONSTANT(mox_gpu_experts_few) *p, bool is_pair, few_walk w, GPU_PRIVATE(few_source) *s, GPU_PRIVATE(four_tile) *t)
{
    if (s->chunk == w.n_chunks) {
        if (s->expert < 0) return; /* the whole wave */
        few_turn(p, is_pair, w, s);
    }
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        gpu_bytes_quad(s->w[h] + s->at, 0, &t->w[h][0]);
        gpu_bytes_quad(s->w[h] + s->at, FEW_CHUNK / 4, &t->w[h][1]);
        t->scales[h] = gpu_bytes_u64(s->scales[h] + s->scale_at, 0);
        t->biases[h] = gpu_bytes_u64(s->biases[h] + s->scale_at, 0);
    }
    s->at += FEW_CHUNK / 2;
    s->scale_at += 2 * FEW_GROUPS;
    s->chunk++;
}

/* ---- products ---- */

/* What brings planes: a thread has a quad of a token, and next what comes behind its block. */
typedef struct few_bringer {
    few_spot next;
    int32_t row, next_row, chunk; /* of x, -1: there is none */
} few_bringer;
GPU_TYPE(few_bringer, few_bringer);

/* Begins to bring a chunk to its place. */
GPU_FN void few_bring(const GPU_CONSTANT(mox_gpu_experts_few) *p, few_walk w, GPU_SHARED(quad) *planes, GPU_SHARED(quad) *parts, int32_t place,
                      int32_t me, GPU_PRIVATE(few_bringer) *s)
{
    enum { QUADS = FEW_GROUPS * FEW_QUADS };
    const int32_t token = me / QUADS, quad = me % QUADS, n_groups = w.n_chunks * FEW_GROUPS;
    if (s->chunk == w.n_chunks) {
        s->row = s->next_row;
        s->next = few_next(w, s->next);
        s->next_row = few_entry(w, s->next, (int32_t)p->rows_at + token);
        s->chunk = 0;
    }
    const int64_t at = (s->row < 0 ? 0 : s->row) * (int64_t)n_groups + s->chunk * FEW_GROUPS;
    const int32_t to = place * FEW_PLACE + token * FEW_TOKEN + quad / 8 * FEW_APART + quad % 8;
    gpu_copy_quad((GPU_SHARED(u16) *)planes, to * 8, GPU_CAST(u16, p->planes), (at * FEW_QUADS + quad) * 8, s->row >= 0);
    if (quad < FEW_GROUPS / 2)
        gpu_copy_quad((GPU_SHARED(u16) *)parts, (place * FEW_PARTS + token * FEW_GROUPS + 2 * quad) * 4, GPU_CAST(u16, p->parts), (at + 2 * quad) * 4,
                      s->row >= 0);
    s->chunk++;
}

/* Where a wave multiplies, and what comes behind that. */
typedef struct few_sums {
    few_spot spot;
    int32_t n, next_n, pair, next_pair, chunk;
    float y[4];
} few_sums;
GPU_TYPE(few_sums, few_sums);

/* Begins the tile of s->spot, of which next_n and next_pair are. */
GPU_FN void few_begin(few_walk w, GPU_PRIVATE(few_sums) *s)
{
    const few_spot next = few_next(w, s->spot);
    s->n = s->next_n;
    s->pair = s->next_pair;
    s->next_n = few_entry(w, next, 1);
    s->next_pair = few_entry(w, next, MOX_GPU_FEW_PAIRS_AT + w.lane % 4);
    s->chunk = 0;
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) s->y[i] = 0.0f;
}

/* y[2 k + h] += rows g and g + 8 of a tile by tokens 2 k of a block, k < products (a constant), the lane's side of a chunk. */
GPU_FN void few_multiply(four_tile tile, int32_t products, const GPU_SHARED(quad) *column, int32_t second, const GPU_SHARED(u64) *parts, int32_t side,
                         GPU_PRIVATE(f32) *y)
{
    float c[8][4]; /* [half of the chunk][of two tokens][even words or odd] are chains: each product waits for the one before */
    uint64_t part[2][2];
    GPU_UNROLL
    for (int32_t i = 0; i < 8; i++) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0.0f;
    GPU_UNROLL
    for (int32_t k = 0; k < products; k++)
        GPU_UNROLL
        for (int32_t i = 0; i < 2; i++) part[k][i] = gpu_load(parts, k * (2 * FEW_GROUPS) + 2 * i);
    GPU_UNROLL
    for (int32_t j = 0; j < 4; j++) {
        gpu_quad b[2][2];
        GPU_UNROLL
        for (int32_t k = 0; k < products; k++)
            GPU_UNROLL
            for (int32_t i = 0; i < 2; i++) b[k][i] = gpu_load(column + (k == 0 ? 0 : second), i * (4 * FEW_APART) + few_place(j));
        GPU_UNROLL
        for (int32_t i = 0; i < 2; i++) {
            const uint32_t w0 = tile.w[0][i].w[j], w1 = tile.w[1][i].w[j], v0 = w0 >> 8, v1 = w1 >> 8;
            GPU_UNROLL
            for (int32_t k = 0; k < products; k++) {
                gpu_mma(c[4 * i + 2 * k], w0 & 0x000F000Fu, w1 & 0x000F000Fu, w0 & 0x00F000F0u, w1 & 0x00F000F0u, b[k][i].w[0], b[k][i].w[1]);
                gpu_mma(c[4 * i + 2 * k + (products == 1 ? 1 : 0)], v0 & 0x000F000Fu, v1 & 0x000F000Fu, v0 & 0x00F000F0u, v1 & 0x00F000F0u,
                        b[k][i].w[2], b[k][i].w[3]);
            }
        }
    }
    const int32_t shift = 16 - 16 * side;
    GPU_UNROLL
    for (int32_t i = 0; i < 2; i++) {
        GPU_UNROLL
        for (int32_t h = 0; h < 2; h++) {
            const float scale = gpu_bits_f32((uint32_t)(tile.scales[h] >> (32 * i)) << shift & 0xFFFF0000u);
            const float bias = gpu_bits_f32((uint32_t)(tile.biases[h] >> (32 * i)) << shift & 0xFFFF0000u);
            GPU_UNROLL
            for (int32_t k = 0; k < products; k++) {
                const GPU_PRIVATE(f32) *of = c[4 * i + 2 * k] + 2 * h, *odd = c[4 * i + 2 * k + 1] + 2 * h;
                const float sum = products == 1 ? (of[0] + odd[0]) + (of[1] + odd[1]) : of[0] + of[1];
                y[2 * k + h] += scale * (sum * gpu_bits_f32((uint32_t)part[k][i]));
                y[2 * k + h] += bias * gpu_bits_f32((uint32_t)(part[k][i] >> 32));
            }
        }
    }
}

/* Sums of both sides: of the two products, a lane keeps that which its side's number says, so that lane t has token t. */
GPU_FN void few_leave(const GPU_CONSTANT(mox_gpu_experts_few) *p, bool is_pair, few_walk w, const GPU_PRIVATE(few_sums) *s)
{
    const int32_t t = w.lane % 4, side = t / 2, row = s->spot.unit * w.rows_of_unit + w.row_of_lane, rows = (int32_t)p->first.first.rows;
    float total[2];
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        const float kept = side == 0 ? s->y[h] : s->y[2 + h], given = side == 0 ? s->y[2 + h] : s->y[h];
        total[h] = kept + gpu_shuffle(given, w.lane ^ 2);
    }
    const int64_t at = (int64_t)s->pair * p->y_stride + row;
    if (t >= s->n) return;
    if (is_pair) {
        if (row < rows) gpu_store(p->y, at, silu(total[0]) * total[1]);
    } else {
        if (row < rows) gpu_store(p->y, at, total[0]);
        if (row + 8 < rows) gpu_store(p->y, at + 8, total[1]);
    }
}

/* ---- the walk ---- */

/* A chunk, in whose place the next one is asked for.  False where the work ends. */
GPU_FN bool few_go(const GPU_CONSTANT(mox_gpu_experts_few) *p, bool is_pair, few_walk w, GPU_PRIVATE(few_source) *source,
                   GPU_PRIVATE(four_tile) *tile, GPU_PRIVATE(few_sums) *s, const GPU_SHARED(quad) *planes, const GPU_SHARED(quad) *parts,
                   int32_t place)
{
    const int32_t t = w.lane % 4, side = t / 2;
    const GPU_SHARED(quad) *column = planes + (w.column + place * w.place);
    const GPU_SHARED(u64) *of = (const GPU_SHARED(u64) *)parts + (place * FEW_PARTS + t % 2 * FEW_GROUPS + side);
    if (s->n > 2) few_multiply(*tile, 2, column, w.second, of, side, s->y);
    else few_multiply(*tile, 1, column, w.second, of, side, s->y);
    few_ask(p, is_pair, w, source, tile);
    if (++s->chunk < w.n_chunks) return true; /* the whole group, here and below */
    few_leave(p, is_pair, w, s);
    s->spot = few_next(w, s->spot);
    if (s->spot.block >= w.n_blocks) return false;
    few_begin(w, s);
    return true;
}

/* What a group does: is_pair (a constant), silu(first x) * (second x), else first x. */
GPU_FN void few_experts(const GPU_CONSTANT(mox_gpu_experts_few) *p, bool is_pair, GPU_SHARED(quad) *planes, GPU_SHARED(quad) *parts, int32_t group,
                        int32_t me)
{
    const int32_t lane = me % GPU_LANES, wave = me / GPU_LANES, step = is_pair ? 8 : 16, n_groups = (int32_t)p->n_groups;
    few_walk w;
    w.lane = lane;
    w.rows_of_unit = FEW_WAVES * step;
    w.row_of_lane = wave * step + lane / 4;
    w.n_units = ((int32_t)p->first.first.rows + w.rows_of_unit - 1) / w.rows_of_unit;
    w.n_chunks = (int32_t)p->first.first.cols / FEW_CHUNK;
    w.step_blocks = n_groups / w.n_units;
    w.step_units = n_groups % w.n_units;
    w.entries = p->plan + MOX_GPU_FEW_PLAN;
    const int32_t column = lane / 4, t = lane % 4;
    const bool zero = column / 4 != t / 2;
    w.column = zero ? FEW_PLACES * FEW_PLACE + column / 4 * 2 + 4
                    : column % 4 / 2 * FEW_TOKEN + (t / 2 * 2 + column % 2) * FEW_APART + t % 2 * 2;
    w.place = zero ? 0 : FEW_PLACE;
    w.second = zero ? 0 : 2 * FEW_TOKEN;
    if (me < FEW_ZEROS) {
        const gpu_quad none = {{0u, 0u, 0u, 0u}};
        gpu_store(planes, FEW_PLACES * FEW_PLACE + me, none);
    }
    if (is_pair) gpu_previous(); /* else the plan is older */
    w.n_blocks = gpu_load(p->plan, 0);
    few_spot spot;
    spot.block = group / w.n_units;
    spot.unit = group % w.n_units;
    if (spot.block >= w.n_blocks) { /* the whole group */
        if (!is_pair) gpu_previous();
        return;
    }
    four_tile tile[FEW_HELD];
    few_source source;
    few_bringer bringer;
    few_sums sums;
    source.next = bringer.next = sums.spot = spot;
    source.expert = few_entry(w, spot, 0);
    bringer.next_row = few_entry(w, spot, (int32_t)p->rows_at + me / (FEW_GROUPS * FEW_QUADS));
    bringer.row = -1;
    bringer.chunk = w.n_chunks;
    sums.next_n = few_entry(w, spot, 1);
    sums.next_pair = few_entry(w, spot, MOX_GPU_FEW_PAIRS_AT + t);
    few_turn(p, is_pair, w, &source);
    GPU_UNROLL
    for (int32_t i = 0; i < FEW_HELD; i++) few_ask(p, is_pair, w, &source, &tile[i]);
    if (!is_pair) gpu_previous();
    GPU_UNROLL
    for (int32_t i = 0; i < FEW_HELD; i++) few_bring(p, w, planes, parts, i, me, &bringer);
    gpu_copy_commit();
    few_begin(w, &sums);
    for (int32_t place = 0;; place = FEW_HELD - place) {
        gpu_copy_wait(0);
        gpu_barrier(); /* and nobody needs the other places any more */
        GPU_UNROLL
        for (int32_t i = 0; i < FEW_HELD; i++) few_bring(p, w, planes, parts, FEW_HELD - place + i, me, &bringer);
        gpu_copy_commit();
        if (!few_go(p, is_pair, w, &source, &tile[0], &sums, planes, parts, place)) break;
        if (!few_go(p, is_pair, w, &source, &tile[1], &sums, planes, parts, place + 1)) break;
    }
    gpu_copy_wait(0); /* of what is not there */
}

GPU_KERNEL_EARLY_DENSE(experts_gate_up_few, FEW_THREADS, 2)
{
    GPU_SHARED_ARRAY(quad, planes, FEW_PLACES * FEW_PLACE + FEW_ZEROS);
    GPU_SHARED_ARRAY(quad, parts, FEW_PLACES * FEW_PARTS / 2);
    few_experts(p, true, planes, parts, (int32_t)gpu_group_x(), gpu_thread());
}

GPU_KERNEL_EARLY_DENSE(experts_down_few, FEW_THREADS, 2)
{
    GPU_SHARED_ARRAY(quad, planes, FEW_PLACES * FEW_PLACE + FEW_ZEROS);
    GPU_SHARED_ARRAY(quad, parts, FEW_PLACES * FEW_PARTS / 2);
    few_experts(p, false, planes, parts, (int32_t)gpu_group_x(), gpu_thread());
}

#endif
