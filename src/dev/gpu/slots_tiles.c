/* dev/gpu/slots_tiles.c -- products of many tokens on tiles: what slots_products.c hands over.
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
static halves halve(mox_dev *d, const float *x, int64_t n, int64_t cols, int64_t x_stride, void *room)
{
    const halves h = halves_at(n, cols, room);
    MOX_GPU_LAUNCH(d, half_rows, n, 1, 1, .x = x, .half = h.x, .scale = h.scale, .cols = cols, .x_stride = x_stride,
                   .half_stride = h.stride);
    return h;
}

static int64_t halves_bytes(int64_t n, int64_t cols) { return (n + QUAD_BYTES) * (int64_t)sizeof(float) + 2 * n * half_stride(cols); }

void mox_gpu_tile_matmul(mox_dev *d, const mox_matmul_args *a)
{
    mox_dev_gpu *g = (mox_dev_gpu *)d;
    const mox_gpu_mat w = mox_gpu_mat_of(&a->w);
    /* Of products in a row with the same x, which the arena gives the same scratch, the first halves it. */
    const bool again = a->x == g->halved_x && a->scratch == g->halved_at && a->n == g->halved_n && w.cols == g->halved_cols &&
                       a->x_stride == g->halved_stride;
    const halves h = again ? halves_at(a->n, w.cols, a->scratch) : halve(d, a->x, a->n, w.cols, a->x_stride, a->scratch);
    const mox_gpu_matmul p = {.w = w, .x = h.x, .x_scale = h.scale, .y = a->y, .n = a->n, .rows = w.rows, .x_stride = h.stride,
                              .y_stride = a->y_stride, .bias = mox_gpu_vec_of(&a->bias)};
    mox_gpu_launch(d, mox_gpu_mat_is_q4(&w) ? MOX_GPU_KERNEL_matmul_q4 : MOX_GPU_KERNEL_matmul, mox_ceil_div(a->n, MOX_GPU_TILE_TOKENS),
                   mox_ceil_div(w.rows, MOX_GPU_TILE_ROWS), 1, &p, sizeof p);
    g->halved_x = a->x;
    g->halved_at = a->scratch;
    g->halved_n = a->n;
    g->halved_cols = w.cols;
    g->halved_stride = a->x_stride;
}

void mox_gpu_tile_gate_up(mox_dev *d, const mox_gate_up_swiglu_args *a)
{
    const int64_t n = a->offsets[1];
    const mox_gpu_mat gate = mox_gpu_mat_of(a->gate), up = mox_gpu_mat_of(a->up);
    const bool is_q4 = mox_gpu_mat_is_q4(&gate) && mox_gpu_mat_is_q4(&up);
    const halves h = halve(d, a->x, n, gate.cols, a->x_stride, a->scratch);
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
    const halves hx = halve(d, a->x, a->n, a->dim, a->dim, room);
    const mox_gpu_experts_tiles up = {.gate = mats, .up = mats + x->n, .tiles = tiles, .x_row = a->bucket_pairs, .x = hx.x,
                                      .x_scale = hx.scale, .y = a->mid, .rows = a->width, .x_stride = hx.stride, .y_stride = a->width,
                                      .x_divisor = a->k};
    mox_gpu_launch(d, x->is_q4 ? MOX_GPU_KERNEL_experts_gate_up_tiles_q4 : MOX_GPU_KERNEL_experts_gate_up_tiles,
                   mox_ceil_div(a->width, MOX_GPU_TILE_ROWS / 2), n_tiles, 1, &up, sizeof up);
    const halves hm = halve(d, a->mid, pairs, a->width, a->width, room); /* nobody needs the tokens any more */
    const mox_gpu_experts_tiles down = {.gate = mats + 2 * x->n, .tiles = tiles, .y_row = a->bucket_pairs, .x = hm.x,
                                        .x_scale = hm.scale, .y = a->rows, .rows = a->dim, .x_stride = hm.stride, .y_stride = a->dim,
                                        .x_divisor = 1};
    mox_gpu_launch(d, x->is_q4 ? MOX_GPU_KERNEL_experts_down_tiles_q4 : MOX_GPU_KERNEL_experts_down_tiles,
                   mox_ceil_div(a->dim, MOX_GPU_TILE_ROWS), n_tiles, 1, &down, sizeof down);
    return true;
}
