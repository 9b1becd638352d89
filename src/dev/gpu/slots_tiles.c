/* dev/gpu/slots_tiles.c -- products of many tokens, and of some, in f16: what slots_products.c hands over.
 *
 * Activations are rounded to f16 first, with a scale per token (half_rows), into the scratch that
 * callers bring for every product; a step allocates nothing.  Scratch is measured for the widest
 * form of the processor, f32 and more, so half as many bytes always fit; only the list of tiles of
 * very small experts may not, and then the caller computes in f32. */
#include "dev/gpu/device.h"

enum { QUAD_BYTES = 16 };

/* Rows as half_rows leaves them. */
typedef struct halves {
    uint16_t *x;
    float *scale;
    int64_t stride;
} halves;

static int64_t half_stride(int64_t cols) { return mox_ceil_div(cols, MOX_GPU_TILE_COLS) * MOX_GPU_TILE_COLS; }

/* n rows in memory of the device at `room`: the scales, and behind them the numbers. */
static halves halves_at(int64_t n, int64_t cols, void *room)
{
    const int64_t scales = mox_ceil_div(n * (int64_t)sizeof(float), QUAD_BYTES) * QUAD_BYTES;
    return (halves){.x = (uint16_t *)(void *)((uint8_t *)room + scales), .scale = room, .stride = half_stride(cols)};
}
static halves halve(mox_dev *d, const float *x, int64_t n, int64_t cols, int64_t x_stride, bool by_lanes, void *room)
{
    const halves h = halves_at(n, cols, room);
    MOX_GPU_LAUNCH(d, half_rows, n, 1, 1, .x = x, .f16 = h.x, .scale = h.scale, .cols = cols, .x_stride = x_stride,
                   .half_stride = h.stride, .by_lanes = by_lanes);
    return h;
}

static int64_t halves_bytes(int64_t n, int64_t cols) { return (n + QUAD_BYTES) * (int64_t)sizeof(float) + 2 * n * half_stride(cols); }

/* Of products in a row with the same x, which the arena gives the same scratch, the first halves it. */
static halves halve_once(mox_dev *d, const mox_matmul_args *a, bool by_lanes)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    const bool again = a->x == g->halved_x && a->scratch == g->halved_at && a->n == g->halved_n && a->w.cols == g->halved_cols &&
                       a->x_stride == g->halved_stride && by_lanes == g->halved_by_lanes;
    return again ? halves_at(a->n, a->w.cols, a->scratch) : halve(d, a->x, a->n, a->w.cols, a->x_stride, by_lanes, a->scratch);
}
static void halves_stay(mox_dev *d, const mox_matmul_args *a, bool by_lanes)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    g->halved_x = a->x;
    g->halved_at = a->scratch;
    g->halved_n = a->n;
    g->halved_cols = a->w.cols;
    g->halved_stride = a->x_stride;
    g->halved_by_lanes = by_lanes;
}

static mox_gpu_matmul matmul_of(const mox_matmul_args *a, halves h)
{
    return (mox_gpu_matmul){.w = mox_gpu_mat_of(&a->w), .x = h.x, .x_scale = h.scale, .y = a->y, .n = a->n, .rows = a->w.rows,
                            .x_stride = h.stride, .y_stride = a->y_stride, .bias = mox_gpu_vec_of(&a->bias)};
}

void mox_gpu_tile_matmul(mox_dev *d, const mox_matmul_args *a)
{
    const mox_gpu_matmul p = matmul_of(a, halve_once(d, a, false));
    mox_gpu_launch(d, mox_gpu_mat_is_q4(&p.w) ? MOX_GPU_KERNEL_matmul_q4 : MOX_GPU_KERNEL_matmul, mox_ceil_div(a->n, MOX_GPU_TILE_TOKENS),
                   mox_ceil_div(p.rows, MOX_GPU_TILE_ROWS), 1, &p, sizeof p);
    halves_stay(d, a, false);
}

/* ---- some tokens ---- */

/* Waves that share rows: each should have as many steps as it asks for in one go, so that few groups are enough. */
static int64_t few_split(int64_t cols)
{
    const int64_t steps = mox_ceil_div(cols, MOX_GPU_TILE_COLS);
    return steps >= 16 ? 8 : steps >= 8 ? 4 : 2;
}
/* Of experts a wave brings a chunk while it multiplies another, and should have many of them. */
static int64_t few_expert_split(int64_t cols) { return cols >= 2048 ? 2 : 1; }
static int64_t few_groups(int64_t rows, int64_t split) { return mox_ceil_div(rows, 16 * 8 / split); }

void mox_gpu_few_matmul(mox_dev *d, const mox_matmul_args *a)
{
    const mox_gpu_matmul_few p = {.m = matmul_of(a, halve_once(d, a, true)), .split = few_split(a->w.cols)};
    mox_gpu_launch(d, MOX_GPU_KERNEL_matmul_few, few_groups(a->w.rows, p.split), mox_ceil_div(a->n, MOX_GPU_FEW_TOKENS), 1, &p, sizeof p);
    halves_stay(d, a, true);
}

void mox_gpu_few_project(mox_dev *d, const mox_project_args *a)
{
    const mox_matmul_args *m = a->product;
    const halves h = halve(d, m[0].x, m[0].n, m[0].w.cols, m[0].x_stride, true, m[0].scratch);
    const int64_t split = few_split(m[0].w.cols);
    const int64_t groups = few_groups(m[0].w.rows, split) + few_groups(m[1].w.rows, split) + few_groups(m[2].w.rows, split);
    MOX_GPU_LAUNCH(d, matmul_few_three, groups, mox_ceil_div(m[0].n, MOX_GPU_FEW_TOKENS), 1, .w0 = mox_gpu_mat_of(&m[0].w),
                   .w1 = mox_gpu_mat_of(&m[1].w), .w2 = mox_gpu_mat_of(&m[2].w), .bias0 = mox_gpu_vec_of(&m[0].bias),
                   .bias1 = mox_gpu_vec_of(&m[1].bias), .bias2 = mox_gpu_vec_of(&m[2].bias), .y0 = m[0].y, .y1 = m[1].y, .y2 = m[2].y,
                   .x = h.x, .x_scale = h.scale, .n = m[0].n, .x_stride = h.stride, .split = split);
}

/* The list of tiles is in front of the tokens. */
static int64_t few_tiles(const mox_dev *d, const mox_moe_ffn_args *a, int64_t *list_bytes)
{
    const int64_t pairs = a->n * a->k;
    const int64_t n = pairs / MOX_GPU_FEW_EXPERT_TOKENS + mox_min_i64(pairs, ((const mox_dev_gpu *)d)->layers[a->layer].n);
    *list_bytes = mox_ceil_div(n * (int64_t)sizeof(mox_gpu_expert_tile), QUAD_BYTES) * QUAD_BYTES;
    return n;
}

bool mox_gpu_takes_few(const mox_dev *d, const mox_moe_ffn_args *a)
{
    const int64_t pairs = a->n * a->k;
    int64_t bytes;
    (void)few_tiles(d, a, &bytes);
    bytes += mox_max_i64(halves_bytes(a->n, a->dim), halves_bytes(pairs, a->width));
    return mox_gpu_is_few(d, a->n, a->dim) && ((const mox_dev_gpu *)d)->layers[a->layer].is_four && pairs <= MOX_GPU_FEW_PAIRS &&
           bytes <= mox_matmul_scratch(pairs, mox_max_i64(a->dim, a->width));
}

void mox_gpu_few_experts(mox_dev *d, const mox_moe_ffn_args *a, const int32_t *ids, int64_t n_places)
{
    const mox_gpu_experts *x = &((mox_dev_gpu *)d)->layers[a->layer];
    int64_t tiles_bytes;
    const int64_t pairs = a->n * a->k, n_tiles = few_tiles(d, a, &tiles_bytes);
    mox_gpu_expert_tile *tiles = a->acts;
    void *room = (uint8_t *)a->acts + tiles_bytes;
    MOX_GPU_LAUNCH(d, moe_few, 1, 1, 1, .ids = ids, .pairs = a->bucket_pairs, .tiles = tiles, .n_pairs = pairs, .n_experts = n_places,
                   .n_tiles = n_tiles);
    const halves hx = halve(d, a->x, a->n, a->dim, a->dim, true, room);
    const int64_t split = few_expert_split(a->dim), down_split = few_expert_split(a->width);
    MOX_GPU_LAUNCH(d, experts_gate_up_few, few_groups(a->width, split), n_tiles, 1, .first = x->gate, .second = x->up, .tiles = tiles,
                   .x_row = a->bucket_pairs, .x = hx.x, .x_scale = hx.scale, .y = a->mid, .x_stride = hx.stride, .y_stride = a->width,
                   .x_divisor = a->k, .split = split);
    const halves hm = halve(d, a->mid, pairs, a->width, a->width, true, room); /* nobody needs the tokens any more */
    MOX_GPU_LAUNCH(d, experts_down_few, few_groups(a->dim, down_split), n_tiles, 1, .first = x->down, .tiles = tiles,
                   .y_row = a->bucket_pairs, .x = hm.x, .x_scale = hm.scale, .y = a->rows, .x_stride = hm.stride, .y_stride = a->dim,
                   .x_divisor = 1, .split = down_split);
}

/* ---- many tokens ---- */

void mox_gpu_tile_gate_up(mox_dev *d, const mox_gate_up_swiglu_args *a)
{
    const int64_t n = a->offsets[1];
    const mox_gpu_mat gate = mox_gpu_mat_of(a->gate), up = mox_gpu_mat_of(a->up);
    const bool is_q4 = mox_gpu_mat_is_q4(&gate) && mox_gpu_mat_is_q4(&up);
    const halves h = halve(d, a->x, n, gate.cols, a->x_stride, false, a->scratch);
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
    const halves hx = halve(d, a->x, a->n, a->dim, a->dim, false, room);
    const mox_gpu_experts_tiles up = {.gate = mats, .up = mats + x->n, .tiles = tiles, .x_row = a->bucket_pairs, .x = hx.x,
                                      .x_scale = hx.scale, .y = a->mid, .rows = a->width, .x_stride = hx.stride, .y_stride = a->width,
                                      .x_divisor = a->k};
    mox_gpu_launch(d, x->is_q4 ? MOX_GPU_KERNEL_experts_gate_up_tiles_q4 : MOX_GPU_KERNEL_experts_gate_up_tiles,
                   mox_ceil_div(a->width, MOX_GPU_TILE_ROWS / 2), n_tiles, 1, &up, sizeof up);
    const halves hm = halve(d, a->mid, pairs, a->width, a->width, false, room); /* nobody needs the tokens any more */
    const mox_gpu_experts_tiles down = {.gate = mats + 2 * x->n, .tiles = tiles, .y_row = a->bucket_pairs, .x = hm.x,
                                        .x_scale = hm.scale, .y = a->rows, .rows = a->dim, .x_stride = hm.stride, .y_stride = a->dim,
                                        .x_divisor = 1};
    mox_gpu_launch(d, x->is_q4 ? MOX_GPU_KERNEL_experts_down_tiles_q4 : MOX_GPU_KERNEL_experts_down_tiles,
                   mox_ceil_div(a->dim, MOX_GPU_TILE_ROWS), n_tiles, 1, &down, sizeof down);
    return true;
}
