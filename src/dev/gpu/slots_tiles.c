/* dev/gpu/slots_tiles.c -- products of many tokens, and of some: what slots_products.c hands over.
 *
 * Activations of many tokens are rounded to f16 first, with a scale per token (half_rows); those of some become two f16
 * numbers each (plane_rows).  Both go into the scratch that callers bring for every product; a step allocates nothing.
 * Scratch is measured for the widest form of the processor, f32 with a sum per 32 columns, so they always fit; only the list
 * of tiles of very small experts may not, and then the caller computes in f32. */
#include "dev/gpu/device.h"

enum { QUAD_BYTES = 16 };

/* Rows of activations, and memory of the device for what is made of them. */
typedef struct rows {
    const float *x;
    int64_t n, cols, stride;
    void *room;
} rows;

static rows rows_of(const mox_matmul_args *a) { return (rows){a->x, a->n, a->w.cols, a->x_stride, a->scratch}; }

/* Of products in a row with the same x, which the arena gives the same scratch, the first makes what all of them read: is
 * it there already? */
static bool is_made(mox_dev *d, rows r, bool planes)
{
    const mox_gpu_made *m = &((mox_dev_gpu *)d)->made;
    return r.x == m->x && r.room == m->at && r.n == m->n && r.cols == m->cols && r.stride == m->stride && planes == m->planes;
}
static void made(mox_dev *d, rows r, bool planes)
{
    ((mox_dev_gpu *)d)->made = (mox_gpu_made){.x = r.x, .at = r.room, .n = r.n, .cols = r.cols, .stride = r.stride, .planes = planes};
}

/* Rows as half_rows leaves them. */
typedef struct halves {
    uint16_t *x;
    float *scale;
    int64_t stride;
} halves;

static int64_t half_stride(int64_t cols) { return mox_ceil_div(cols, MOX_GPU_TILE_COLS) * MOX_GPU_TILE_COLS; }
static int64_t halves_bytes(int64_t n, int64_t cols) { return (n + QUAD_BYTES) * (int64_t)sizeof(float) + 2 * n * half_stride(cols); }

/* The scales, and behind them the numbers. */
static halves halve(mox_dev *d, rows r)
{
    const int64_t scales = mox_ceil_div(r.n * (int64_t)sizeof(float), QUAD_BYTES) * QUAD_BYTES;
    const halves h = {.x = (uint16_t *)(void *)((uint8_t *)r.room + scales), .scale = r.room, .stride = half_stride(r.cols)};
    if (!is_made(d, r, false))
        MOX_GPU_LAUNCH(d, half_rows, r.n, 1, 1, .x = r.x, .f16 = h.x, .scale = h.scale, .cols = r.cols, .x_stride = r.stride,
                       .half_stride = h.stride);
    return h;
}

void mox_gpu_tile_matmul(mox_dev *d, const mox_matmul_args *a)
{
    const halves h = halve(d, rows_of(a));
    const mox_gpu_matmul p = {.w = mox_gpu_mat_of(&a->w), .x = h.x, .x_scale = h.scale, .y = a->y, .n = a->n, .rows = a->w.rows,
                              .x_stride = h.stride, .y_stride = a->y_stride, .bias = mox_gpu_vec_of(&a->bias)};
    mox_gpu_launch(d, mox_gpu_mat_is_q4(&p.w) ? MOX_GPU_KERNEL_matmul_q4 : MOX_GPU_KERNEL_matmul, mox_ceil_div(a->n, MOX_GPU_TILE_TOKENS),
                   mox_ceil_div(p.rows, MOX_GPU_TILE_ROWS), 1, &p, sizeof p);
    made(d, rows_of(a), false);
}

/* ---- some tokens ---- */

enum { PLANE_COLS = 2048, FEW_WAVES = 8, TILE_ROWS = 16, FEW_CHUNK = 256, FEW_GROUPS = 2 * MOX_GPU_PROCESSORS, EXPERT_GROUPS = 4 * MOX_GPU_PROCESSORS };

/* Rows as plane_rows leaves them. */
typedef struct planes {
    mox_gpu_quad *x;
    uint64_t *parts;
} planes;

/* The parts, and behind them the numbers. */
static planes planes_of(mox_dev *d, rows r)
{
    const int64_t n_parts = r.n * (r.cols / MOX_GPU_FEW_GROUP);
    const int64_t parts = mox_ceil_div(n_parts * (int64_t)sizeof(uint64_t), QUAD_BYTES) * QUAD_BYTES;
    const planes p = {.x = (mox_gpu_quad *)(void *)((uint8_t *)r.room + parts), .parts = r.room};
    if (!is_made(d, r, true))
        MOX_GPU_LAUNCH(d, plane_rows, mox_ceil_div(r.cols, PLANE_COLS), r.n, 1, .x = r.x, .planes = p.x, .parts = p.parts, .cols = r.cols,
                       .x_stride = r.stride);
    return p;
}

static int64_t few_blocks(int64_t n) { return mox_ceil_div(n, MOX_GPU_FEW_TOKENS); }
/* of: rows that a wave has, or share with others. */
static int64_t few_groups(int64_t n, int64_t of, int64_t split) { return mox_ceil_div(n, of * FEW_WAVES / split); }

/* Waves that share rows: as many as are needed for many groups, and each is to have columns. */
static int64_t few_split(int64_t n, int64_t of, int64_t cols)
{
    int64_t split = FEW_WAVES;
    while (split > 1 && (few_groups(n, of, split / 2) >= FEW_GROUPS || split > cols / FEW_CHUNK)) split /= 2;
    return split;
}

void mox_gpu_few_matmul(mox_dev *d, const mox_matmul_args *a)
{
    const planes x = planes_of(d, rows_of(a));
    const int64_t split = few_split(a->w.rows, MOX_GPU_FEW_ROWS, a->w.cols);
    MOX_GPU_LAUNCH(d, matmul_few, few_blocks(a->n), few_groups(a->w.rows, MOX_GPU_FEW_ROWS, split), 1, .w = mox_gpu_mat_of(&a->w),
                   .bias = mox_gpu_vec_of(&a->bias), .planes = x.x, .parts = x.parts, .y = a->y, .n = a->n, .y_stride = a->y_stride,
                   .split = split);
    made(d, rows_of(a), true);
}

void mox_gpu_few_project(mox_dev *d, const mox_project_args *a)
{
    const mox_matmul_args *m = a->product;
    const planes x = planes_of(d, rows_of(m));
    const int64_t split = few_split(m[0].w.rows + m[1].w.rows + m[2].w.rows, MOX_GPU_FEW_THREE_ROWS, m[0].w.cols);
    int64_t groups = 0;
    for (int i = 0; i < MOX_PROJECT_MOST; i++) groups += few_groups(m[i].w.rows, MOX_GPU_FEW_THREE_ROWS, split);
    MOX_GPU_LAUNCH(d, matmul_few_three, few_blocks(m[0].n), groups, 1, .w0 = mox_gpu_mat_of(&m[0].w), .w1 = mox_gpu_mat_of(&m[1].w),
                   .w2 = mox_gpu_mat_of(&m[2].w), .bias0 = mox_gpu_vec_of(&m[0].bias), .bias1 = mox_gpu_vec_of(&m[1].bias),
                   .bias2 = mox_gpu_vec_of(&m[2].bias), .y0 = m[0].y, .y1 = m[1].y, .y2 = m[2].y, .planes = x.x, .parts = x.parts,
                   .n = m[0].n, .split = split);
}

void mox_gpu_few_gate_up(mox_dev *d, const mox_gate_up_swiglu_args *a)
{
    const int64_t n = a->offsets[1], split = few_split(a->gate->rows, TILE_ROWS, a->gate->cols);
    const planes x = planes_of(d, (rows){a->x, n, a->gate->cols, a->x_stride, a->scratch});
    MOX_GPU_LAUNCH(d, gate_up_few, few_blocks(n), few_groups(a->gate->rows, TILE_ROWS, split), 1, .gate = mox_gpu_mat_of(a->gate),
                   .up = mox_gpu_mat_of(a->up), .planes = x.x, .parts = x.parts, .y = a->y, .n = n, .y_stride = a->y_stride,
                   .split = split);
}

/* What experts of some tokens need beside rows: parts, the list of blocks, and planes.  What becomes of tokens takes
 * their place. */
typedef struct few_room {
    int64_t plan, planes, end; /* bytes from where parts begin */
} few_room;

static int64_t in_quads(int64_t bytes) { return mox_ceil_div(bytes, QUAD_BYTES) * QUAD_BYTES; }

static few_room few_room_of(const mox_moe_ffn_args *a)
{
    const int64_t pairs = a->n * a->k, most = mox_max_i64(a->n * a->dim, pairs * a->width);
    few_room r;
    r.plan = in_quads(most / MOX_GPU_FEW_GROUP * (int64_t)sizeof(uint64_t));
    r.planes = r.plan + in_quads((MOX_GPU_FEW_PLAN + pairs * MOX_GPU_FEW_ENTRY) * (int64_t)sizeof(int32_t));
    r.end = r.planes + most * (int64_t)sizeof(float);
    return r;
}

bool mox_gpu_takes_few(const mox_dev *d, const mox_moe_ffn_args *a)
{
    return mox_gpu_is_few(d, a->n, a->dim) && ((const mox_dev_gpu *)d)->layers[a->layer].is_four && a->n * a->k <= MOX_GPU_FEW_PAIRS &&
           mox_gpu_is_wide(a->x, a->dim) && mox_gpu_is_wide(a->mid, a->width) &&
           few_room_of(a).end <= mox_matmul_scratch(a->n * a->k, mox_max_i64(a->dim, a->width));
}

void mox_gpu_few_experts(mox_dev *d, const mox_moe_ffn_args *a, const int32_t *ids, int64_t n_places)
{
    const mox_gpu_experts *x = &((mox_dev_gpu *)d)->layers[a->layer];
    const few_room room = few_room_of(a);
    const int64_t pairs = a->n * a->k;
    uint64_t *parts = a->acts;
    int32_t *plan = (int32_t *)(void *)((uint8_t *)a->acts + room.plan);
    mox_gpu_quad *x_planes = (mox_gpu_quad *)(void *)((uint8_t *)a->acts + room.planes);
    MOX_GPU_LAUNCH(d, experts_plan_few, mox_ceil_div(a->dim, PLANE_COLS), a->n + 1, 1, .ids = ids, .plan = plan,
                   .rows = {.x = a->x, .planes = x_planes, .parts = parts, .cols = a->dim, .x_stride = a->dim}, .n_pairs = pairs,
                   .n_experts = n_places, .x_divisor = a->k);
    MOX_GPU_LAUNCH(d, experts_gate_up_few, EXPERT_GROUPS, 1, 1, .first = x->gate, .second = x->up, .plan = plan, .planes = x_planes, .parts = parts,
                   .y = a->mid, .y_stride = a->width, .rows_at = MOX_GPU_FEW_ROWS_AT, .n_groups = EXPERT_GROUPS);
    MOX_GPU_LAUNCH(d, plane_rows, mox_ceil_div(a->width, PLANE_COLS), pairs, 1, .x = a->mid, .planes = x_planes, .parts = parts, .cols = a->width,
                   .x_stride = a->width);
    MOX_GPU_LAUNCH(d, experts_down_few, EXPERT_GROUPS, 1, 1, .first = x->down, .plan = plan, .planes = x_planes, .parts = parts, .y = a->rows,
                   .y_stride = a->dim, .rows_at = MOX_GPU_FEW_PAIRS_AT, .n_groups = EXPERT_GROUPS);
}

/* ---- many tokens ---- */

void mox_gpu_tile_gate_up(mox_dev *d, const mox_gate_up_swiglu_args *a)
{
    const int64_t n = a->offsets[1];
    const mox_gpu_mat gate = mox_gpu_mat_of(a->gate), up = mox_gpu_mat_of(a->up);
    const bool is_q4 = mox_gpu_mat_is_q4(&gate) && mox_gpu_mat_is_q4(&up);
    const halves h = halve(d, (rows){a->x, n, gate.cols, a->x_stride, a->scratch});
    const mox_gpu_gate_up_tiles p = {.gate = gate, .up = up, .n = n,
                                     .rest = {.x = h.x, .x_scale = h.scale, .y = a->y, .rows = gate.rows, .x_stride = h.stride,
                                              .y_stride = a->y_stride, .x_divisor = 1}};
    mox_gpu_launch(d, is_q4 ? MOX_GPU_KERNEL_gate_up_tiles_q4 : MOX_GPU_KERNEL_gate_up_tiles,
                   mox_ceil_div(gate.rows, MOX_GPU_TILE_ROWS / 2), mox_ceil_div(n, MOX_GPU_TILE_TOKENS), 1, &p, sizeof p);
}

bool mox_gpu_tile_experts(mox_dev *d, const mox_moe_ffn_args *a)
{
    const mox_gpu_experts *x = &((mox_dev_gpu *)d)->layers[a->layer];
    const mox_gpu_mat *mats = x->memory;
    const int64_t pairs = a->n * a->k, n_tiles = pairs / MOX_GPU_TILE_TOKENS + mox_min_i64(pairs, x->n);
    const int64_t list = n_tiles * (int64_t)sizeof(mox_gpu_expert_tile), tiles_bytes = mox_ceil_div(list, QUAD_BYTES) * QUAD_BYTES;
    const int64_t rows_bytes = mox_max_i64(halves_bytes(a->n, a->dim), halves_bytes(pairs, a->width));
    if (tiles_bytes + rows_bytes > mox_matmul_scratch(pairs, mox_max_i64(a->dim, a->width))) return false;
    mox_gpu_expert_tile *tiles = a->acts;
    void *room = (uint8_t *)a->acts + tiles_bytes;
    MOX_GPU_LAUNCH(d, moe_tiles, 1, 1, 1, .offsets = a->bucket_offsets, .tiles = tiles, .n_experts = x->n, .n_tiles = n_tiles);
    const halves hx = halve(d, (rows){a->x, a->n, a->dim, a->dim, room});
    const mox_gpu_experts_tiles up = {.gate = mats, .up = mats + x->n, .tiles = tiles, .x_row = a->bucket_pairs, .x = hx.x,
                                      .x_scale = hx.scale, .y = a->mid, .rows = a->width, .x_stride = hx.stride, .y_stride = a->width,
                                      .x_divisor = a->k};
    mox_gpu_launch(d, x->is_q4 ? MOX_GPU_KERNEL_experts_gate_up_tiles_q4 : MOX_GPU_KERNEL_experts_gate_up_tiles,
                   mox_ceil_div(a->width, MOX_GPU_TILE_ROWS / 2), n_tiles, 1, &up, sizeof up);
    const halves hm = halve(d, (rows){a->mid, pairs, a->width, a->width, room}); /* nobody needs the tokens any more */
    const mox_gpu_experts_tiles down = {.gate = mats + 2 * x->n, .tiles = tiles, .y_row = a->bucket_pairs, .x = hm.x,
                                        .x_scale = hm.scale, .y = a->rows, .rows = a->dim, .x_stride = hm.stride, .y_stride = a->dim,
                                        .x_divisor = 1};
    mox_gpu_launch(d, x->is_q4 ? MOX_GPU_KERNEL_experts_down_tiles_q4 : MOX_GPU_KERNEL_experts_down_tiles,
                   mox_ceil_div(a->dim, MOX_GPU_TILE_ROWS), n_tiles, 1, &down, sizeof down);
    return true;
}
