/* dev/gpu/few_experts.h -- experts of some tokens, 5 to 64: each has a few of them only, often one or two.
 *
 * Weights and planes are few.h's.  experts_plan_few lists once who has to do with whom, groups stay and walk along that list, and no sums are joined: a wave
 * takes two tiles of 16 rows, of down or one each of gate and up, goes along all of their columns with the sums in registers, and stores them.  Tokens are
 * taken by four, a block.
 *
 * While a wave multiplies a chunk of 256 columns, the next one is on its way to shared memory, also that of its next tiles: weights and planes.  In
 * registers there is too little room for what must be on its way, and eight lanes ask for a whole line of memory, which gives that faster than halves of it.
 * What takes time then is reading shared memory: so what a wave reads of planes is for both tiles. */
#ifndef MOX_DEV_GPU_FEW_EXPERTS_H
#define MOX_DEV_GPU_FEW_EXPERTS_H

#include "dev/gpu/few.h"

/* The chunk that is multiplied, and the next one that comes meanwhile if there is room for it (GPU_DEEP), are in places of shared memory.  A place has the
 * weights of the waves, FEW_CODES quads of codes and FEW_SCALES quads that have scales and biases of a row, and planes of four tokens with their
 * parts.  Groups of codes are exchanged by the row, and the planes of a token lie side by side, so that lanes read from different banks. */
enum {
    FEW_EXPERTS_WAVES = 4,
    FEW_EXPERTS_THREADS = FEW_EXPERTS_WAVES * GPU_LANES,
    FEW_PLACES = GPU_DEEP ? 2 : 1,
    FEW_PAIR = 2,                              /* tiles of a wave */
    FEW_LINE = FEW_CHUNK / 32,                 /* quads of codes of a row */
    FEW_CODES = FEW_PAIR * 16 * FEW_LINE,
    FEW_SCALES = FEW_PAIR * 16,
    FEW_TOKEN = FEW_GROUPS * FEW_QUADS,
    FEW_PLACE = FEW_BLOCK * FEW_TOKEN,
    FEW_PARTS = FEW_BLOCK * FEW_GROUPS / 2,
    FEW_OF_SCALES = FEW_PLACES * FEW_EXPERTS_WAVES * FEW_CODES, /* where they begin, all places of one kind behind those of another */
    FEW_OF_PLANES = FEW_OF_SCALES + FEW_PLACES * FEW_EXPERTS_WAVES * FEW_SCALES,
    FEW_OF_PARTS = FEW_OF_PLANES + FEW_PLACES * FEW_PLACE,
    FEW_ROOM = FEW_OF_PARTS + FEW_PLACES * FEW_PARTS
};

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

/* ---- the walk ---- */

/* Where a wave is in the list: its tiles of a block.  Groups go on by p->n_groups units. */
typedef struct few_spot {
    int32_t block, unit;
} few_spot;

/* What a walk knows. */
typedef struct few_walk {
    const GPU_GLOBAL(i32) *entries;
    int32_t n_blocks, n_units, n_chunks, step_blocks, step_units, rows_of_wave, wave, lane;
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
/* The wave's first row. */
GPU_FN int32_t few_row(few_walk w, few_spot s) { return (s.unit * FEW_EXPERTS_WAVES + w.wave) * w.rows_of_wave; }

/* ---- weights ---- */

/* What asks for weights: where the lane's first bytes of each tile are, of codes, and of the scales or biases of a row; and what comes behind them. */
typedef struct few_source {
    const GPU_GLOBAL(u8) *w[FEW_PAIR];
    const GPU_GLOBAL(u8) *scales[FEW_PAIR];
    few_spot next;
    int32_t chunk;
    int32_t expert; /* of next, -1: there is none */
} few_source;
GPU_TYPE(few_source, few_source);

/* Goes to the next tiles.  One beyond the end is read as the last one. */
GPU_FN void few_turn(const GPU_CONSTANT(mox_gpu_experts_few) *p, bool is_pair, few_walk w, GPU_PRIVATE(few_source) *s)
{
    const int32_t row_bytes = (int32_t)p->first.first.row_bytes, last = (int32_t)p->first.first.rows - 16, row = few_row(w, s->next);
    GPU_UNROLL
    for (int32_t k = 0; k < FEW_PAIR; k++) {
        const mox_gpu_mat m = four_expert(is_pair && k == 1 ? p->second : p->first, s->expert);
        const int32_t asked = is_pair ? row : row + 16 * k, first = asked < last ? asked : last;
        s->w[k] = m.w + ((int64_t)(first + w.lane / FEW_LINE) * row_bytes + w.lane % FEW_LINE * 16);
        s->scales[k] = (w.lane < 16 ? m.scales : m.biases) + (int64_t)(first + w.lane % 16) * (row_bytes / 16);
    }
    s->next = few_next(w, s->next);
    s->expert = few_entry(w, s->next, 0);
    s->chunk = 0;
}

/* Where group `group` of a row is in its line, in eight bytes. */
GPU_FN int32_t few_in_line(int32_t row, int32_t group) { return (group ^ row % FEW_GROUPS) * (2 * FEW_LINE / FEW_GROUPS); }

/* Begins to bring a chunk of weights to its place: four rows of codes at a time. */
GPU_FN void few_ask(const GPU_CONSTANT(mox_gpu_experts_few) *p, bool is_pair, few_walk w, GPU_SHARED(quad) *room, int32_t place,
                    GPU_PRIVATE(few_source) *s)
{
    if (s->chunk == w.n_chunks) {
        if (s->expert < 0) return; /* the whole wave */
        few_turn(p, is_pair, w, s);
    }
    const int32_t row = w.lane / FEW_LINE, quad = w.lane % FEW_LINE, of_wave = place * FEW_EXPERTS_WAVES + w.wave;
    const int32_t to = of_wave * FEW_CODES + row * FEW_LINE + few_in_line(row, quad / 2) / 2 + quad % 2;
    GPU_UNROLL
    for (int32_t k = 0; k < FEW_PAIR; k++) {
        GPU_UNROLL
        for (int32_t i = 0; i < 4; i++)
            gpu_copy_quad((GPU_SHARED(u16) *)room, (to + (4 * k + i) * 4 * FEW_LINE) * 8, GPU_CAST(u16, s->w[k] + i * 4 * p->first.first.row_bytes), 0,
                          true);
        gpu_copy_pair((GPU_SHARED(u64) *)room, 2 * (FEW_OF_SCALES + of_wave * FEW_SCALES + 16 * k + w.lane % 16) + w.lane / 16, s->scales[k]);
        s->w[k] += FEW_CHUNK / 2;
        s->scales[k] += 2 * FEW_GROUPS;
    }
    s->chunk++;
}

/* The lane's part of a tile: rows g and g + 8. */
GPU_FN few_codes few_tile(few_walk w, const GPU_SHARED(quad) *room, int32_t place, int32_t tile)
{
    const int32_t g = w.lane / 4, of_wave = place * FEW_EXPERTS_WAVES + w.wave;
    const GPU_SHARED(u64) *codes = (const GPU_SHARED(u64) *)room + 2 * (of_wave * FEW_CODES + (16 * tile + g) * FEW_LINE);
    few_codes k;
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        const gpu_quad known = gpu_load(room, FEW_OF_SCALES + of_wave * FEW_SCALES + 16 * tile + g + 8 * h);
        k.scale[h] = known.w[0] | (uint64_t)known.w[1] << 32;
        k.bias[h] = known.w[2] | (uint64_t)known.w[3] << 32;
        GPU_UNROLL
        for (int32_t i = 0; i < FEW_GROUPS; i++) k.w[i][h] = gpu_load(codes, h * (16 * FEW_LINE) + few_in_line(g, i) + w.lane % 4);
    }
    return k;
}

/* ---- tokens ---- */

/* What brings planes: a thread has a quad of two tokens, and next what comes behind their block. */
typedef struct few_bringer {
    const GPU_GLOBAL(quad) *planes[2];
    const GPU_GLOBAL(u64) *parts[2];
    few_spot next;
    int32_t next_row[2], chunk; /* of x, -1: there is none */
    bool there[2];
} few_bringer;
GPU_TYPE(few_bringer, few_bringer);

/* The rows of x that come next. */
GPU_FN void few_look(const GPU_CONSTANT(mox_gpu_experts_few) *p, few_walk w, int32_t me, GPU_PRIVATE(few_bringer) *s)
{
    GPU_UNROLL
    for (int32_t i = 0; i < 2; i++) s->next_row[i] = few_entry(w, s->next, (int32_t)p->rows_at + me / FEW_TOKEN + 2 * i);
}

/* Begins to bring a chunk to its place, where the planes of a word's half are neighbours. */
GPU_FN void few_bring(const GPU_CONSTANT(mox_gpu_experts_few) *p, few_walk w, GPU_SHARED(quad) *room, int32_t place, int32_t me,
                      GPU_PRIVATE(few_bringer) *s)
{
    const int32_t quad = me % FEW_TOKEN, within = quad % FEW_QUADS;
    if (s->chunk == w.n_chunks) {
        GPU_UNROLL
        for (int32_t i = 0; i < 2; i++) {
            const int64_t at = (int64_t)(s->next_row[i] < 0 ? 0 : s->next_row[i]) * (w.n_chunks * FEW_GROUPS);
            s->there[i] = s->next_row[i] >= 0;
            s->planes[i] = p->planes + (at * FEW_QUADS + quad);
            s->parts[i] = p->parts + (at + quad % (FEW_GROUPS / 2) * 2);
        }
        s->next = few_next(w, s->next);
        few_look(p, w, me, s);
        s->chunk = 0;
    }
    GPU_UNROLL
    for (int32_t i = 0; i < 2; i++) {
        const int32_t token = me / FEW_TOKEN + 2 * i;
        const int32_t to = FEW_OF_PLANES + place * FEW_PLACE + token * FEW_TOKEN + quad / FEW_QUADS * FEW_QUADS + within / 4 % 2 * 8 + within / 8 * 4 + within % 4;
        gpu_copy_quad((GPU_SHARED(u16) *)room, to * 8, GPU_CAST(u16, s->planes[i]), 0, s->there[i]);
        if (quad < FEW_GROUPS / 2)
            gpu_copy_quad((GPU_SHARED(u16) *)room, (FEW_OF_PARTS + place * FEW_PARTS + token * (FEW_GROUPS / 2) + quad) * 8, GPU_CAST(u16, s->parts[i]), 0,
                          s->there[i]);
        s->planes[i] += FEW_TOKEN;
        s->parts[i] += FEW_GROUPS;
    }
    s->chunk++;
}

/* Begins to bring the next chunk. */
GPU_FN void few_come(const GPU_CONSTANT(mox_gpu_experts_few) *p, bool is_pair, few_walk w, GPU_SHARED(quad) *room, int32_t place, int32_t me,
                     GPU_PRIVATE(few_source) *source, GPU_PRIVATE(few_bringer) *bringer)
{
    few_ask(p, is_pair, w, room, place, source);
    few_bring(p, w, room, place, me, bringer);
    gpu_copy_commit();
}

/* ---- products ---- */

/* Where a wave multiplies, and what comes behind that. */
typedef struct few_sums {
    few_spot spot;
    int32_t n, next_n, pair, next_pair, chunk;
    int32_t column; /* where the lane's column of a product begins: without tokens of the second half it is one of the first */
    float y[2 * FEW_PAIR];
} few_sums;
GPU_TYPE(few_sums, few_sums);

/* Begins the tiles of s->spot, of which next_n and next_pair are. */
GPU_FN void few_begin(few_walk w, GPU_PRIVATE(few_sums) *s)
{
    const few_spot next = few_next(w, s->spot);
    const int32_t token = w.lane / 8, column = w.lane / 4;
    s->n = s->next_n;
    s->pair = s->next_pair;
    s->next_n = few_entry(w, next, 1);
    s->next_pair = few_entry(w, next, MOX_GPU_FEW_PAIRS_AT + w.lane % 4);
    s->column = (s->n > 2 ? token : token % 2) * FEW_TOKEN + column % 2 * 4 + w.lane % 4;
    s->chunk = 0;
    GPU_UNROLL
    for (int32_t i = 0; i < 2 * FEW_PAIR; i++) s->y[i] = 0.0f;
}

/* y[2 k + h] += rows g + 8 h of tile k by the lane's token, over a chunk.  Two groups at a time, as each product waits for the one before. */
GPU_FN void few_multiply(few_walk w, const GPU_SHARED(quad) *room, int32_t place, int32_t column, GPU_PRIVATE(f32) *y)
{
    few_codes k[FEW_PAIR];
    GPU_UNROLL
    for (int32_t i = 0; i < FEW_PAIR; i++) k[i] = few_tile(w, room, place, i);
    GPU_UNROLL
    for (int32_t group = 0; group < FEW_GROUPS; group += 2) {
        const gpu_quad part = gpu_load(room, FEW_OF_PARTS + place * FEW_PARTS + w.lane % 4 * (FEW_GROUPS / 2) + group / 2);
        gpu_quad b[2][2];
        float c[2][FEW_PAIR][4];
        GPU_UNROLL
        for (int32_t q = 0; q < 2; q++) {
            GPU_UNROLL
            for (int32_t i = 0; i < 2; i++) b[q][i] = gpu_load(room, FEW_OF_PLANES + place * FEW_PLACE + column + (group + q) * FEW_QUADS + 8 * i);
            GPU_UNROLL
            for (int32_t i = 0; i < FEW_PAIR; i++) c[q][i][0] = c[q][i][1] = c[q][i][2] = c[q][i][3] = 0.0f;
        }
        GPU_UNROLL
        for (int32_t step = 0; step < 4; step++)
            GPU_UNROLL
            for (int32_t i = 0; i < 2 * FEW_PAIR; i++) few_step(k[i % FEW_PAIR], group + i / FEW_PAIR, step, b[i / FEW_PAIR], c[i / FEW_PAIR][i % FEW_PAIR]);
        GPU_UNROLL
        for (int32_t i = 0; i < 2 * FEW_PAIR; i++)
            few_add(k[i % FEW_PAIR], group + i / FEW_PAIR, c[i / FEW_PAIR][i % FEW_PAIR],
                    part.w[i / FEW_PAIR * 2] | (uint64_t)part.w[i / FEW_PAIR * 2 + 1] << 32, y + 2 * (i % FEW_PAIR));
    }
}

GPU_FN void few_leave(const GPU_CONSTANT(mox_gpu_experts_few) *p, bool is_pair, few_walk w, const GPU_PRIVATE(few_sums) *s)
{
    const int32_t row = few_row(w, s->spot) + w.lane / 4, rows = (int32_t)p->first.first.rows;
    const int64_t at = (int64_t)s->pair * p->y_stride + row;
    if (w.lane % 4 >= s->n) return;
    GPU_UNROLL
    for (int32_t i = 0; i < (is_pair ? 2 : 2 * FEW_PAIR); i++)
        if (row + 8 * i < rows) gpu_store(p->y, at + 8 * i, is_pair ? silu(s->y[i]) * s->y[2 + i % 2] : s->y[i]);
}

/* A chunk.  False where the work ends. */
GPU_FN bool few_go(const GPU_CONSTANT(mox_gpu_experts_few) *p, bool is_pair, few_walk w, GPU_PRIVATE(few_sums) *s, const GPU_SHARED(quad) *room,
                   int32_t place)
{
    few_multiply(w, room, place, s->column, s->y);
    if (++s->chunk < w.n_chunks) return true; /* the whole group, here and below */
    few_leave(p, is_pair, w, s);
    s->spot = few_next(w, s->spot);
    if (s->spot.block >= w.n_blocks) return false;
    few_begin(w, s);
    return true;
}

/* What a group does: is_pair (a constant), silu(first x) * (second x), else first x. */
GPU_FN void few_experts(const GPU_CONSTANT(mox_gpu_experts_few) *p, bool is_pair, GPU_SHARED(quad) *room, int32_t group, int32_t me)
{
    const int32_t n_groups = (int32_t)p->n_groups, rows_of_unit = FEW_EXPERTS_WAVES * 16 * (is_pair ? 1 : FEW_PAIR);
    few_walk w;
    w.lane = me % GPU_LANES;
    w.wave = me / GPU_LANES;
    w.rows_of_wave = rows_of_unit / FEW_EXPERTS_WAVES;
    w.n_units = ((int32_t)p->first.first.rows + rows_of_unit - 1) / rows_of_unit;
    w.n_chunks = (int32_t)p->first.first.cols / FEW_CHUNK;
    w.step_blocks = n_groups / w.n_units;
    w.step_units = n_groups % w.n_units;
    w.entries = p->plan + MOX_GPU_FEW_PLAN;
    if (is_pair) gpu_previous(); /* else the plan is older */
    w.n_blocks = gpu_load(p->plan, 0);
    few_spot spot;
    spot.block = group / w.n_units;
    spot.unit = group % w.n_units;
    if (spot.block >= w.n_blocks) { /* the whole group */
        if (!is_pair) gpu_previous();
        return;
    }
    few_source source;
    few_bringer bringer;
    few_sums sums;
    source.next = bringer.next = sums.spot = spot;
    source.expert = few_entry(w, spot, 0);
    few_look(p, w, me, &bringer);
    bringer.chunk = w.n_chunks;
    sums.next_n = few_entry(w, spot, 1);
    sums.next_pair = few_entry(w, spot, MOX_GPU_FEW_PAIRS_AT + w.lane % 4);
    few_turn(p, is_pair, w, &source);
    few_ask(p, is_pair, w, room, 0, &source);
    if (!is_pair) gpu_previous();
    few_bring(p, w, room, 0, me, &bringer);
    gpu_copy_commit();
    few_begin(w, &sums);
    for (int32_t place = 0;; place = FEW_PLACES - 1 - place) {
        gpu_copy_wait(0);
        gpu_barrier(); /* and nobody needs the other place any more */
        if (GPU_DEEP) few_come(p, is_pair, w, room, FEW_PLACES - 1 - place, me, &source, &bringer);
        if (!few_go(p, is_pair, w, &sums, room, place)) break;
        if (!GPU_DEEP) {
            gpu_barrier();
            few_come(p, is_pair, w, room, place, me, &source, &bringer);
        }
    }
    gpu_copy_wait(0); /* of what is not there */
}

GPU_KERNEL_EARLY_DENSE(experts_gate_up_few, FEW_EXPERTS_THREADS, 4)
{
    GPU_SHARED_ARRAY(quad, room, FEW_ROOM);
    few_experts(p, true, room, (int32_t)gpu_group_x(), gpu_thread());
}

GPU_KERNEL_EARLY_DENSE(experts_down_few, FEW_EXPERTS_THREADS, 4)
{
    GPU_SHARED_ARRAY(quad, room, FEW_ROOM);
    few_experts(p, false, room, (int32_t)gpu_group_x(), gpu_thread());
}

#endif
