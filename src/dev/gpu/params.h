/* dev/gpu/params.h -- the kernels: what each computes, its parameters, and its grid.
 *
 * The structs are filled by host code and read by every target; they have no padding that
 * differs.  Sizes and strides count elements; pointers are memory of the device.  Formulas and
 * tolerance classes are those of the operations in src/ops.  Whoever launches has checked the
 * sizes: a kernel trusts its parameters and tests only whether its share of the work exists.
 * "Grid" says how many groups; every group that begins beyond the work leaves as one. */
#ifndef MOX_DEV_GPU_PARAMS_H
#define MOX_DEV_GPU_PARAMS_H

#include "dev/gpu/gpu.h"

/* X(kernel, threads of a group) */
#define MOX_GPU_KERNELS(X)                                                                      \
    X(add, 256) X(copy, 256) X(sigmoid_gate, 256)                                               \
    X(rms_norm, 256) X(rms_norm_heads, 256) X(residual_norm, 256) X(gated_rms_norm, 256)        \
    X(rope, 256) X(matvec, 256) X(gate_up, 256) X(experts_gate_up, 256) X(experts_down, 256)    \
    X(embed, 128) X(kv_append, 128) X(attention, 128) X(attention_merge, 128) X(mla_absorb, 64) \
    X(conv1d_silu, 256) X(conv1d_shift, 256) X(gdn_qk_norm, 128) X(gdn_gates, 256)              \
    X(gdn_recurrent, 128) X(router_topk, 512) X(router_sigmoid, 512) X(moe_bucket, 256)         \
    X(moe_combine, 256) X(matvec4, 512) X(matvec4_two, 512) X(matvec4_tall, 256)                \
    X(matvec_row, 256) X(matvec_rows, 256)                                                      \
    X(attention_decode_64, 512) X(attention_decode_128, 512) X(attention_decode_256, 256)       \
    X(gqa_heads, 128) X(half_rows, 128) X(matmul, 128) X(matmul_q4, 128) X(matmul_f32, 256)     \
    X(moe_sort, 256) X(moe_tiles, 256) X(experts_gate_up_tiles, 128)                            \
    X(experts_gate_up_tiles_q4, 128) X(experts_down_tiles, 128) X(experts_down_tiles_q4, 128)   \
    X(gate_up_tiles, 128) X(gate_up_tiles_q4, 128) X(attention_flash_64, 128)                   \
    X(attention_flash_128, 128) X(attention_flash_256, 128) X(attention_share_64, 128)          \
    X(attention_share_128, 128) X(attention_share_256, 128) X(attention_join, 128)              \
    X(plane_rows, 256) X(matmul_few, 256) X(matmul_few_three, 256) X(gate_up_few, 256)          \
    X(experts_plan_few, 256) X(experts_gate_up_few, 128) X(experts_down_few, 128)               \
    X(rms_norm_long, 1024)                                                                      \
    X(residual_norm_long, 1024) X(experts4_gate_up, 256) X(experts4_down, 768)                  \
    X(experts4_down_long, 256) X(project4, 768) X(project4_many, 256) X(project4_long, 512)     \
    X(mla_heads, 128) X(mla4_fold, 256) X(mla4_unfold, 256) X(attention_latent, 256)            \
    X(gdn_mix, 128) X(gdn_step, 512)

typedef enum mox_gpu_kernel {
#define MOX_GPU_ID(name, threads) MOX_GPU_KERNEL_##name,
    MOX_GPU_KERNELS(MOX_GPU_ID)
#undef MOX_GPU_ID
        MOX_GPU_KERNEL_COUNT
} mox_gpu_kernel;

/* ---- what kernels share ---- */

/* rehearse, in parameters: whether GPU_REHEARSE pays. */

/* Formats of stored numbers. */
enum {
    MOX_GPU_NONE = 0, /* there is no such vector */
    MOX_GPU_F32,
    MOX_GPU_F16,
    MOX_GPU_BF16,
    MOX_GPU_E8M0,
    MOX_GPU_Q8,    /* ops/q8.h, caches only */
    MOX_GPU_AFFINE, /* matrices only */
    MOX_GPU_FP8     /* matrices only */
};

/* tensor/matrix.h; row_bytes and scale_cols spare the kernels from working them out. */
typedef struct mox_gpu_mat {
    const GPU_GLOBAL(u8) *w;
    const GPU_GLOBAL(u8) *scales;
    const GPU_GLOBAL(u8) *biases;
    int64_t rows, cols, row0;
    int64_t row_bytes;  /* of w */
    int64_t scale_cols; /* scales of a row: groups, or blocks */
    int32_t kind;       /* F32 F16 BF16 AFFINE FP8 */
    int32_t bits, group;
    int32_t scale_type; /* F32 F16 BF16 E8M0 */
    int32_t block_rows, block_cols;
} mox_gpu_mat;
GPU_TYPE(mat, mox_gpu_mat);

/* Affine matrices of one shape, so many bytes apart; which one is asked for costs no load. */
typedef struct mox_gpu_stack {
    mox_gpu_mat first;
    int64_t w_step, scale_step; /* of scales and of biases */
} mox_gpu_stack;

/* A vector of a file, at any byte address. */
typedef struct mox_gpu_vec {
    const GPU_GLOBAL(u8) *data;
    int64_t type; /* NONE F32 F16 BF16 */
} mox_gpu_vec;

/* ops/attention.h */
typedef struct mox_gpu_cache {
    GPU_GLOBAL(u8) *data; /* aligned for its elements */
    int64_t page_len, page_stride, token_stride, head_stride;
    int64_t type; /* F32 F16 Q8 */
} mox_gpu_cache;
typedef struct mox_gpu_span {
    int64_t row0, n, pos0;
    const GPU_GLOBAL(i32) *pages;
} mox_gpu_span;
GPU_TYPE(span, mox_gpu_span);

/* ---- pointwise.h: groups of 256 threads ---- */

/* out[i] = a[i] + b[i]; out may be a or b.  Grid ceil(n / 256). */
typedef struct mox_gpu_add {
    const GPU_GLOBAL(f32) *a;
    const GPU_GLOBAL(f32) *b;
    GPU_GLOBAL(f32) *out;
    int64_t n;
} mox_gpu_add;

/* dst[t, h, i] = src[t, h, i], i < dim: slices, splits and gathers.  Grid (ceil(heads * dim / 256), n). */
typedef struct mox_gpu_copy {
    const GPU_GLOBAL(f32) *src;
    GPU_GLOBAL(f32) *dst;
    int64_t n, heads, dim;
    int64_t src_stride, src_head_stride, dst_stride, dst_head_stride;
} mox_gpu_copy;

/* x[i] *= sigmoid(gate[i]).  Grid ceil(n / 256). */
typedef struct mox_gpu_sigmoid_gate {
    GPU_GLOBAL(f32) *x;
    const GPU_GLOBAL(f32) *gate;
    int64_t n;
} mox_gpu_sigmoid_gate;

/* ---- norm.h ---- */

/* out = x / sqrt(mean x^2 + eps) * (weight + offset) per row of dim; out may be x.
 * rms_norm: a group of 256 threads per (token, head) row: grid (heads, n).
 * rms_norm_heads: a wave per row, for short ones: grid (ceil(heads / 8), n). */
typedef struct mox_gpu_rms_norm {
    const GPU_GLOBAL(f32) *x;
    GPU_GLOBAL(f32) *out;
    int64_t heads, dim;
    int64_t x_stride, x_head_stride, out_stride, out_head_stride;
    mox_gpu_vec weight;
    float offset, eps;
} mox_gpu_rms_norm;
typedef mox_gpu_rms_norm mox_gpu_rms_norm_heads;

/* res = a + b, norm = rms_norm(res); res may be a or b.  A group of 256 per row: grid rows. */
typedef struct mox_gpu_residual_norm {
    const GPU_GLOBAL(f32) *a;
    const GPU_GLOBAL(f32) *b;
    GPU_GLOBAL(f32) *res;
    GPU_GLOBAL(f32) *norm;
    int64_t dim;
    mox_gpu_vec weight;
    float offset, eps;
} mox_gpu_residual_norm;

/* norm_long.h: the same for dim <= MOX_GPU_NORM_LONG, by groups of 1024. */
enum { MOX_GPU_NORM_LONG = 8192 };
typedef mox_gpu_rms_norm mox_gpu_rms_norm_long;
typedef mox_gpu_residual_norm mox_gpu_residual_norm_long;

/* out = x / sqrt(mean x^2 + eps) * weight * silu(z); out may be x.  A wave per row:
 * grid ceil(rows / 8). */
typedef struct mox_gpu_gated_rms_norm {
    const GPU_GLOBAL(f32) *x;
    const GPU_GLOBAL(f32) *z;
    GPU_GLOBAL(f32) *out;
    int64_t rows, dim;
    mox_gpu_vec weight;
    float eps;
    int32_t unused;
} mox_gpu_gated_rms_norm;

/* ---- rope.h ---- */

/* Turns the first rotary_dim elements of every head in place.  A thread per pair of one
 * head: grid (ceil(heads * rotary_dim / 2 / 256), n). */
typedef struct mox_gpu_rope {
    GPU_GLOBAL(f32) *x;
    const GPU_GLOBAL(f32) *inv_freq;
    const GPU_GLOBAL(i32) *pos;
    int64_t heads, stride, head_stride, rotary_dim, pos_stride;
    float mscale;
    int32_t interleaved;
} mox_gpu_rope;

/* ---- matvec.h: groups of 256 threads, a wave per row of W ---- */

enum { MOX_GPU_MATVEC_ROWS = 8, MOX_GPU_MATVEC_TOKENS = 4 };

/* y[t, h, r] = W[h * head_rows + first_row + r, :] . x[t, h, :] + bias[r],  r < rows: products (heads
 * = 1), and those of latent attention, where each head has rows of its own.
 * Grid (ceil(rows / ROWS), ceil(n / TOKENS), heads). */
typedef struct mox_gpu_matvec {
    mox_gpu_mat w;
    const GPU_GLOBAL(f32) *x;
    GPU_GLOBAL(f32) *y;
    int64_t n, rows, head_rows, first_row;
    int64_t x_stride, x_head_stride, y_stride, y_head_stride;
    mox_gpu_vec bias;
} mox_gpu_matvec;

/* gateup.h: y[t, :] = silu(gate x[t, :]) * (up x[t, :]).  Grid (ceil(rows / ROWS), ceil(n / TOKENS)). */
typedef struct mox_gpu_gate_up {
    mox_gpu_mat gate, up;
    const GPU_GLOBAL(f32) *x;
    GPU_GLOBAL(f32) *y;
    int64_t n, x_stride, y_stride;
} mox_gpu_gate_up;

/* Many matrices of one shape: matrix g owns the places [offsets[g], offsets[g + 1]); place p reads
 * row x_row[p] / x_divisor of x and writes row y_row[p] of y.
 *   experts_gate_up: y = silu(gate x) * (up x)   experts_down: y = down x
 * Grid (ceil(rows / ROWS), 1, n_groups). */
typedef struct mox_gpu_experts_gate_up {
    const GPU_GLOBAL(mat) *gate; /* [n_groups] */
    const GPU_GLOBAL(mat) *up;
    const GPU_GLOBAL(i64) *offsets;
    const GPU_GLOBAL(i32) *x_row; /* NULL: p */
    const GPU_GLOBAL(i32) *y_row; /* NULL: p */
    const GPU_GLOBAL(f32) *x;
    GPU_GLOBAL(f32) *y;
    int64_t rows, x_stride, y_stride;
    int64_t x_divisor; /* 1, or experts per token where x_row has pairs (token, slot) */
} mox_gpu_experts_gate_up;
typedef mox_gpu_experts_gate_up mox_gpu_experts_down; /* down is in gate; up is not read */

/* ---- matvec4.h: what fill.h's mox_gpu_mat_is_four says yes to, few tokens; x at multiples of 16 bytes ---- */

/* What becomes of x in front of a product, where out is not NULL: out[t, :] = rms_norm(x[t, :]), which the
 * product takes in place of x.  Groups work it out on their way; one more group than the grid has otherwise
 * stores it.  out is not x; the weight is at a multiple of 16 bytes. */
typedef struct mox_gpu_normed {
    GPU_GLOBAL(f32) *out;
    mox_gpu_vec weight;
    float offset, eps;
    int64_t stride; /* of out */
} mox_gpu_normed;

/* y[t, :] = W x[t, :] + bias; where sum is not NULL also sum[t, :] = with[t, :] + y[t, :], of strides y_stride, and sum
 * may be `with`.  Grid (ceil(rows / 16), n); matvec4_two, for at most TWO_COLS columns: (ceil(rows / 32), n), without a norm; matvec4_tall, for many rows: (ceil(rows / TALL), n), with neither norm nor sum. */
enum { MOX_GPU_FOUR_TALL = 48, MOX_GPU_FOUR_TWO = 32, MOX_GPU_TWO_COLS = 4096 };
typedef struct mox_gpu_matvec4 {
    mox_gpu_mat w;
    const GPU_GLOBAL(f32) *x;
    GPU_GLOBAL(f32) *y;
    const GPU_GLOBAL(f32) *with;
    GPU_GLOBAL(f32) *sum;
    int64_t x_stride, y_stride;
    mox_gpu_vec bias;
    mox_gpu_normed norm;
} mox_gpu_matvec4;
typedef mox_gpu_matvec4 mox_gpu_matvec4_two;
typedef mox_gpu_matvec4 mox_gpu_matvec4_tall;

/* ---- experts4.h: what matvec4.h reads; x at multiples of 16 bytes ---- */

/* y[t, s, :] = silu(gate x[t]) * (up x[t]) of expert ids[t, s] for s < k, and with n_shared = 1 of the shared expert for s = k,
 * whose matrices have the shape of the others; y is [n, k + n_shared, rows of gate].  With k = 0, gate and up only have that shape.
 * logit[t] = scale x[t], scale one row of any layout, where the grid goes beyond n_pairs = n * (k + n_shared).
 * Grid (ceil(rows / ROWS), n_pairs, or n_pairs + n with logits). */
enum { MOX_GPU_EXPERTS4_ROWS = 24 };
typedef struct mox_gpu_experts4_gate_up {
    mox_gpu_stack gate, up;
    mox_gpu_mat shared_gate, shared_up, scale;
    const GPU_GLOBAL(i32) *ids; /* [n, k] */
    const GPU_GLOBAL(f32) *x;
    GPU_GLOBAL(f32) *y;
    GPU_GLOBAL(f32) *logit;
    int64_t k, n_shared, n_pairs, x_stride;
} mox_gpu_experts4_gate_up;

/* out[t] = h[t] + sum_s w[t, s] (down x[t, s, :]) + shared part + bias, of experts ids[t, s], and of the shared expert x[t, k, :];
 * h NULL: 0; out may be h.  The shared part counts once, or with GATED times sigmoid(gate).  ids and w were made before
 * the launch in front; k <= MOX_GPU_EXPERTS4_SLOTS.  Grid (ceil(dim / 16), n), 768 threads;
 * experts4_down_long, for many rows: (ceil(dim / 32), n), 256 threads. */
enum { MOX_GPU_EXPERTS4_SLOTS = 64 };
typedef struct mox_gpu_experts4_down {
    mox_gpu_stack down; /* of [dim, width] */
    mox_gpu_mat shared_down;
    const GPU_GLOBAL(i32) *ids;
    const GPU_GLOBAL(f32) *w;
    const GPU_GLOBAL(f32) *x; /* [n, k + n_shared, width] */
    const GPU_GLOBAL(f32) *h;
    const GPU_GLOBAL(f32) *gate;
    GPU_GLOBAL(f32) *out;
    mox_gpu_vec bias;
    int64_t k, n_shared, width, x_stride, h_stride, out_stride, gate_stride, mode; /* MOX_GPU_SHARED_ */
} mox_gpu_experts4_down;
typedef mox_gpu_experts4_down mox_gpu_experts4_down_long;

/* yi[t, :] = wi x[t, :] + biasi, yi [n, rows of wi]; the last may have no rows.
 * Grid (the sum of ceil(rows / TALL), n) for at most PROJECT4_COLS columns; project4_long for any: (the sum of ceil(rows / 16), n). */
enum { MOX_GPU_PROJECT4_COLS = 2048 };
typedef struct mox_gpu_project4 {
    mox_gpu_normed norm;
    mox_gpu_mat w0, w1, w2, w3;
    mox_gpu_vec bias0, bias1, bias2, bias3;
    GPU_GLOBAL(f32) *y0;
    GPU_GLOBAL(f32) *y1;
    GPU_GLOBAL(f32) *y2;
    GPU_GLOBAL(f32) *y3;
    const GPU_GLOBAL(f32) *x;
    int64_t x_stride;
} mox_gpu_project4;
typedef mox_gpu_project4 mox_gpu_project4_many;
typedef mox_gpu_project4 mox_gpu_project4_long;

/* ---- matvec_row.h ---- */

/* y[t, :] = W x[t, :] + bias of what fill.h's mox_gpu_mat_is_rowwise says yes to; x at a multiple of 16
 * bytes, x_stride of 4.  Grid (rows, n). */
typedef struct mox_gpu_matvec_row {
    mox_gpu_mat w;
    const GPU_GLOBAL(f32) *x;
    GPU_GLOBAL(f32) *y;
    int64_t x_stride, y_stride;
    mox_gpu_vec bias;
    mox_gpu_normed norm;
    int64_t rehearse;
} mox_gpu_matvec_row;

/* matvec_rows.h: the same for n tokens, without a norm.  Grid (ceil(rows / ROWS_ROWS), ceil(n / ROWS_TOKENS)). */
enum { MOX_GPU_ROWS_ROWS = 4, MOX_GPU_ROWS_TOKENS = 8 };
typedef struct mox_gpu_matvec_rows {
    mox_gpu_mat w;
    const GPU_GLOBAL(f32) *x;
    GPU_GLOBAL(f32) *y;
    int64_t n, x_stride, y_stride;
    mox_gpu_vec bias;
} mox_gpu_matvec_rows;

/* ---- product.h: many tokens, all in f32 ---- */

/* mox_gpu_matvec with heads = 1; x is at a multiple of 16 bytes, its stride one of 4, cols one of 8.
 * Grid (ceil(n / TILE), ceil(rows / TILE)). */
enum { MOX_GPU_PRODUCT_TILE = 32 };
typedef mox_gpu_matvec mox_gpu_matmul_f32;

/* ---- embed.h ---- */

/* out[t, :] = row ids[t] of the table.  A group of 128 threads: grid (ceil(cols / 1024), n). */
typedef struct mox_gpu_embed {
    mox_gpu_mat table;
    const GPU_GLOBAL(i32) *ids;
    GPU_GLOBAL(f32) *out;
    int64_t out_stride;
} mox_gpu_embed;

/* ---- attention.h ---- */

/* cache[pos0 + i, h, :] = src[row0 + i, h, :] of every span.  A wave per (row, head): grid
 * (ceil(heads / 4), rows of all spans), 128 threads. */
typedef struct mox_gpu_kv_append {
    mox_gpu_cache cache;
    const GPU_GLOBAL(span) *spans;
    const GPU_GLOBAL(f32) *src;
    int64_t n_spans, heads, dim, stride, head_stride;
} mox_gpu_kv_append;

/* Softmax attention of row r over its span's cache:
 *   score_j = scale (q . k_j + q2 . k2_j),  out = sum_j softmax(score)_j v_j
 * dim2 = 0: there is no second part.  Latent attention has one, and its values are its keys.
 * A group of 128 threads per (head, row, piece): grid (heads, rows of all spans, n_pieces).
 * With n_pieces > 1 a span of one row that sees many keys is cut into pieces; these
 * leave maximum, denominator and v_dim sums in parts [n_spans, heads, n_pieces, v_dim + 2], and
 * attention_merge with the same parameters makes the output of them: grid (heads, n_spans).
 * dim + dim2 and v_dim at most MOX_GPU_ATTENTION_DIM. */
enum { MOX_GPU_ATTENTION_DIM = 1024, MOX_GPU_PIECES = 16 };
typedef struct mox_gpu_attention {
    const GPU_GLOBAL(f32) *q;
    const GPU_GLOBAL(f32) *q2;
    GPU_GLOBAL(f32) *out;
    GPU_GLOBAL(f32) *parts;
    const GPU_GLOBAL(f32) *sinks; /* [heads] or NULL */
    const GPU_GLOBAL(span) *spans;
    mox_gpu_cache k, k2, v;
    int64_t n_spans, heads, kv_heads, dim, dim2, v_dim;
    int64_t q_stride, q_head_stride, q2_stride, q2_head_stride, out_stride, out_head_stride;
    int64_t window, n_pieces;
    float scale;
    int32_t causal;
    int64_t rehearse; /* decode.h */
} mox_gpu_attention;
typedef mox_gpu_attention mox_gpu_attention_merge;

/* decode.h: the same for spans of one row; others are left out.  Caches of f16 at multiples of 16 bytes, strides of 8
 * elements; dim = v_dim is what the name says, dim2 = 0, page_len the same in both; q at a multiple of 16 bytes, its strides
 * multiples of 4; n_pieces = 1.  No row sees more than MOX_GPU_DECODE_KEYS keys.  Grid (heads, n_spans), 512 threads, or
 * 256 for dim = 256. */
enum { MOX_GPU_DECODE_KEYS = 256 };
typedef mox_gpu_attention mox_gpu_attention_decode_64;
typedef mox_gpu_attention mox_gpu_attention_decode_128;
typedef mox_gpu_attention mox_gpu_attention_decode_256;

/* heads.h: what lies between products and attention.  Heads of q and k are normed with q_weight and k_weight and
 * turned; q stays where it is, k and v go to the caches at the spans' positions.  All are [rows, heads, dim]
 * without gaps; caches of f32 or f16; dim <= MOX_GPU_HEADS_DIM, rotary_dim <= dim, halves are paired.
 * A wave per head: grid (ceil((heads + 2 kv_heads) / 4), rows of all spans), 128 threads. */
enum { MOX_GPU_HEADS_DIM = 256 };
typedef struct mox_gpu_gqa_heads {
    GPU_GLOBAL(f32) *q;
    const GPU_GLOBAL(f32) *k;
    const GPU_GLOBAL(f32) *v;
    const GPU_GLOBAL(f32) *inv_freq;
    const GPU_GLOBAL(i32) *pos; /* by row */
    const GPU_GLOBAL(span) *spans;
    mox_gpu_cache k_cache, v_cache;
    mox_gpu_vec q_weight, k_weight;
    int64_t heads, kv_heads, dim, rotary_dim;
    float offset, eps, mscale;
    int32_t single; /* all spans have one row, so which is whose need not be looked for; or 0 */
} mox_gpu_gqa_heads;

/* ---- mla.h ---- */

/* out[t, h, c] = sum_i q[t, h, i] W[h * head_rows + i, c],  i < nope: contracts over the rows of
 * W.  A thread per 8 columns: grid (ceil(rank / 512), heads, ceil(n / MOX_GPU_MATVEC_TOKENS)), 64 threads. */
typedef struct mox_gpu_mla_absorb {
    mox_gpu_mat w;
    const GPU_GLOBAL(f32) *q;
    GPU_GLOBAL(f32) *out;
    int64_t n, heads, nope, rank, head_rows;
} mox_gpu_mla_absorb;

/* ---- latent.h: latent attention of few tokens ---- */

/* q_full [rows, heads, nope + rope] becomes q_nope and q_pe, the latter turned; of kv [rows, rank + rope] the first part is normed and
 * goes to the cache `latent`, the rest is turned and goes to k_pe.  Caches of f32 or f16.
 * rank <= MOX_GPU_ATTENTION_DIM.  A wave per head, and a group: grid (ceil(heads / 4) + 1, rows of all spans), 128 threads. */
typedef struct mox_gpu_mla_heads {
    const GPU_GLOBAL(f32) *q_full;
    const GPU_GLOBAL(f32) *kv;
    GPU_GLOBAL(f32) *q_nope;
    GPU_GLOBAL(f32) *q_pe;
    const GPU_GLOBAL(f32) *inv_freq;
    const GPU_GLOBAL(i32) *pos; /* by row */
    const GPU_GLOBAL(span) *spans;
    mox_gpu_cache latent, k_pe;
    mox_gpu_vec weight;
    int64_t heads, nope, rope, rank;
    float eps, mscale;
    int32_t interleaved, unused;
} mox_gpu_mla_heads;

/* mla_absorb of what matvec4.h could read.  Grid (ceil(rank / 512), heads, n), 256 threads. */
typedef mox_gpu_mla_absorb mox_gpu_mla4_fold;

/* mox_gpu_matvec by heads of what matvec4.h could read, at most MOX_GPU_ATTENTION_DIM columns, x at multiples of 16 bytes.
 * Grid (ceil(rows / 128), heads, n), 256 threads. */
typedef mox_gpu_matvec mox_gpu_mla4_unfold;

/* attention for spans of one row (others are left alone) where values are keys: dim = v_dim = MOX_GPU_LATENT_RANK, dim2 =
 * MOX_GPU_LATENT_ROPE, one head of keys, no sinks; caches of f16 at multiples of 16 bytes, strides of 8 elements.  attention_merge follows
 * where n_pieces > 1.  n_streams: waves that share a head's keys, 1, 2, 4 or 8.
 * Grid (ceil(heads / (16 / n_streams)), n_spans, n_pieces), 256 threads. */
enum { MOX_GPU_LATENT_RANK = 512, MOX_GPU_LATENT_ROPE = 64 };
typedef struct mox_gpu_attention_latent {
    mox_gpu_attention a;
    int64_t n_streams;
} mox_gpu_attention_latent;

/* ---- deltanet.h ---- */

/* out[t, c] = silu(sum_j V[t + j, c] weight[c * width + j]), V = [state; x].  A thread per
 * channel and token: grid (ceil(channels / 256), n), 256 threads. */
typedef struct mox_gpu_conv1d_silu {
    const GPU_GLOBAL(f32) *x;
    const GPU_GLOBAL(f32) *state;
    GPU_GLOBAL(f32) *out;
    int64_t channels, width, x_stride, out_stride;
    mox_gpu_vec weight;
} mox_gpu_conv1d_silu;

/* state <- the last width - 1 rows of [state; x].  A thread per channel: grid ceil(channels / 256). */
typedef struct mox_gpu_conv1d_shift {
    const GPU_GLOBAL(f32) *x;
    GPU_GLOBAL(f32) *state;
    int64_t n, channels, width, x_stride;
} mox_gpu_conv1d_shift;

/* q and k of every (token, head) to unit length, q also / sqrt(dim); eps is added to the sum of
 * squares.  A wave per row: grid (ceil(heads / 4), n, 2), z = 0 for q; 128 threads. */
typedef struct mox_gpu_gdn_qk_norm {
    GPU_GLOBAL(f32) *q;
    GPU_GLOBAL(f32) *k;
    int64_t heads, dim, stride;
    float eps;
    int32_t unused;
} mox_gpu_gdn_qk_norm;

/* g = exp(-exp(a_log) softplus(a + dt_bias)), beta = sigmoid(b).  Grid ceil(n * heads / 256). */
typedef struct mox_gpu_gdn_gates {
    const GPU_GLOBAL(f32) *a;
    const GPU_GLOBAL(f32) *b;
    GPU_GLOBAL(f32) *g;
    GPU_GLOBAL(f32) *beta;
    mox_gpu_vec a_log, dt_bias;
    int64_t n, heads, a_stride, b_stride;
} mox_gpu_gdn_gates;

/* S <- g S;  d = beta (v - S k);  S <- S + d k^T;  out = S q, token by token.  A wave per row of
 * S, which stays in registers: grid (ceil(v_dim / 4), v_heads), 128 threads.  k_dim <= 256. */
enum { MOX_GPU_GDN_K_DIM = 256 };
typedef struct mox_gpu_gdn_recurrent {
    const GPU_GLOBAL(f32) *q;
    const GPU_GLOBAL(f32) *k;
    const GPU_GLOBAL(f32) *v;
    const GPU_GLOBAL(f32) *g;
    const GPU_GLOBAL(f32) *beta;
    GPU_GLOBAL(f32) *state;
    GPU_GLOBAL(f32) *out;
    int64_t n, k_heads, v_heads, k_dim, v_dim, q_stride, k_stride, v_stride;
} mox_gpu_gdn_recurrent;

/* gdn_step.h: one token; k_dim and v_dim at most MOX_GPU_GDN_STEP_DIM.
 * gdn_mix: conv1d_silu of x and state to out [channels], conv1d_shift, and gdn_qk_norm of the heads of q and k, which come first;
 * gdn_gates.  A group per head: grid 2 k_heads + v_heads, 128 threads. */
enum { MOX_GPU_GDN_STEP_DIM = 128 };
typedef struct mox_gpu_gdn_mix {
    const GPU_GLOBAL(f32) *x;
    GPU_GLOBAL(f32) *state;
    GPU_GLOBAL(f32) *out;
    const GPU_GLOBAL(f32) *a; /* [v_heads], as b, g and beta */
    const GPU_GLOBAL(f32) *b;
    GPU_GLOBAL(f32) *g;
    GPU_GLOBAL(f32) *beta;
    mox_gpu_vec weight, a_log, dt_bias;
    int64_t k_heads, v_heads, k_dim, v_dim, channels, width;
    float eps;
    int32_t unused;
} mox_gpu_gdn_mix;

/* gdn_recurrent and gated_rms_norm of what gdn_mix leaves; mixed and state at multiples of 16 bytes, k_dim one of 4.
 * The launch in front does not store z.  Grid v_heads, 512 threads. */
typedef struct mox_gpu_gdn_step {
    const GPU_GLOBAL(f32) *mixed; /* q, k and v, [channels] */
    const GPU_GLOBAL(f32) *g;
    const GPU_GLOBAL(f32) *beta;
    const GPU_GLOBAL(f32) *z;
    GPU_GLOBAL(f32) *state;
    GPU_GLOBAL(f32) *out;
    mox_gpu_vec norm;
    int64_t k_heads, v_heads, k_dim, v_dim;
    float eps;
    int32_t unused;
} mox_gpu_gdn_step;

/* ---- router.h ---- */

/* The k largest of softmax(logits), best first, ties to the smaller index.  At most
 * MOX_GPU_ROUTER_EXPERTS experts.  Grid n, 512 threads. */
enum { MOX_GPU_ROUTER_EXPERTS = 2048 };
typedef struct mox_gpu_router_topk {
    const GPU_GLOBAL(f32) *logits;
    GPU_GLOBAL(i32) *ids;
    GPU_GLOBAL(f32) *weights;
    int64_t n_experts, k, renormalize, rehearse;
} mox_gpu_router_topk;

/* ops/moe.h's router_sigmoid.  At most MOX_GPU_ROUTER_EXPERTS experts.  Grid n, 512 threads. */
typedef struct mox_gpu_router_sigmoid {
    const GPU_GLOBAL(f32) *logits;
    GPU_GLOBAL(i32) *ids;
    GPU_GLOBAL(f32) *weights;
    mox_gpu_vec bias;
    int64_t n_experts, k, n_groups, kept_groups;
    int32_t renormalize;
    float factor;
} mox_gpu_router_sigmoid;

/* ---- moe.h ---- */

/* Stable counting sort of pairs by expert.  One group of 256 threads; at most MOX_GPU_ROUTER_EXPERTS. */
typedef struct mox_gpu_moe_bucket {
    const GPU_GLOBAL(i32) *ids;
    GPU_GLOBAL(i64) *offsets; /* [n_experts + 1] */
    GPU_GLOBAL(i32) *pairs;
    int64_t n_pairs, n_experts;
} mox_gpu_moe_bucket;

/* out = (h + sum_s w[t, s] experts[t, s, :]) + shared part; out may be h.
 * Grid (ceil(dim / 256), n), 256 threads. */
enum { MOX_GPU_SHARED_NONE = 0, MOX_GPU_SHARED_GATED, MOX_GPU_SHARED_UNSCALED };
typedef struct mox_gpu_moe_combine {
    const GPU_GLOBAL(f32) *h;
    const GPU_GLOBAL(f32) *experts;
    const GPU_GLOBAL(f32) *w;
    const GPU_GLOBAL(f32) *shared;
    const GPU_GLOBAL(f32) *gate;
    GPU_GLOBAL(f32) *out;
    int64_t k, dim, gate_stride, mode;
} mox_gpu_moe_combine;

/* ---- matmul.h: many tokens, f16 operands and f32 sums; groups of 128 threads ---- */

enum { MOX_GPU_TILE_TOKENS = 128, MOX_GPU_TILE_ROWS = 128, MOX_GPU_TILE_COLS = 64 };

/* f16[t, i] = rounded(x[t, i] / scale[t]), scale a power of two; zeros from cols to half_stride, which
 * is a multiple of MOX_GPU_TILE_COLS.  So many columns at a time are in an order that is the kernels'
 * own.  Grid n. */
typedef struct mox_gpu_half_rows {
    const GPU_GLOBAL(f32) *x;
    GPU_GLOBAL(u16) *f16; /* at a multiple of 16 bytes, as quads are read from it */
    GPU_GLOBAL(f32) *scale;
    int64_t cols, x_stride, half_stride;
} mox_gpu_half_rows;

/* y[t, r] = x_scale[t] (W[r, :] . x[t, :]) + bias[r],  x and x_scale as half_rows leaves them.
 * Grid (ceil(n / TOKENS), ceil(rows / ROWS)).  Kernels called _q4 take affine weights of 4 bits
 * whose w is at a multiple of 8 bytes, with scales and biases of bf16 or f16 at multiples of 2; the
 * others take any. */
typedef struct mox_gpu_matmul {
    mox_gpu_mat w;
    const GPU_GLOBAL(u16) *x;
    const GPU_GLOBAL(f32) *x_scale;
    GPU_GLOBAL(f32) *y;
    int64_t n, rows, x_stride, y_stride;
    mox_gpu_vec bias;
} mox_gpu_matmul;
typedef mox_gpu_matmul mox_gpu_matmul_q4;

/* n places in a row of one expert; n = 0: nothing to do. */
typedef struct mox_gpu_expert_tile {
    int64_t expert, place, n;
} mox_gpu_expert_tile;
GPU_TYPE(expert_tile, mox_gpu_expert_tile);

/* As experts_gate_up and experts_down, over tiles.
 * Grid (ceil(rows / (ROWS / 2)), n_tiles) for gate_up, (ceil(rows / ROWS), n_tiles) for down. */
typedef struct mox_gpu_experts_tiles {
    const GPU_GLOBAL(mat) *gate; /* [experts]; down is in gate */
    const GPU_GLOBAL(mat) *up;
    const GPU_GLOBAL(expert_tile) *tiles;
    const GPU_GLOBAL(i32) *x_row; /* NULL: p */
    const GPU_GLOBAL(i32) *y_row; /* NULL: p */
    const GPU_GLOBAL(u16) *x;
    const GPU_GLOBAL(f32) *x_scale;
    GPU_GLOBAL(f32) *y;
    int64_t rows, x_stride, y_stride, x_divisor;
} mox_gpu_experts_tiles;
typedef mox_gpu_experts_tiles mox_gpu_experts_gate_up_tiles;
typedef mox_gpu_experts_tiles mox_gpu_experts_gate_up_tiles_q4;
typedef mox_gpu_experts_tiles mox_gpu_experts_down_tiles;
typedef mox_gpu_experts_tiles mox_gpu_experts_down_tiles_q4;

/* y = silu(gate x) * (up x) of n tokens; of the rest, x, x_scale, y, rows and strides are read, and
 * x_divisor is 1.  Grid (ceil(rows / (ROWS / 2)), ceil(n / TOKENS)). */
typedef struct mox_gpu_gate_up_tiles {
    mox_gpu_mat gate, up;
    mox_gpu_experts_tiles rest;
    int64_t n;
} mox_gpu_gate_up_tiles;
typedef mox_gpu_gate_up_tiles mox_gpu_gate_up_tiles_q4;

/* ---- few.h: some tokens; weights that matvec4.h reads; groups of 256 threads ---- */

enum { MOX_GPU_FEW_TOKENS = 16, MOX_GPU_FEW_ROWS = 32, MOX_GPU_FEW_THREE_ROWS = 48, MOX_GPU_FEW_PAIRS = 1024, MOX_GPU_FEW_GROUP = 64 };

/* x[t, :] as the three kernels below take it: planes [n, groups, 16] and parts [n, groups], by groups of FEW_GROUP columns.
 * x at a multiple of 16 bytes, its stride one of 4, cols one of FEW_GROUP.  Grid (ceil(cols / 2048), n). */
typedef struct mox_gpu_plane_rows {
    const GPU_GLOBAL(f32) *x;
    GPU_GLOBAL(quad) *planes;
    GPU_GLOBAL(u64) *parts;
    int64_t cols, x_stride;
} mox_gpu_plane_rows;

/* y[t, r] = W[r, :] . x[t, :] + bias[r].  split: waves that share FEW_ROWS rows, 1, 2, 4 or 8.
 * Grid (ceil(n / MOX_GPU_FEW_TOKENS), ceil(rows / (FEW_ROWS * 8 / split))): those that read the same weights are neighbours. */
typedef struct mox_gpu_matmul_few {
    mox_gpu_mat w;
    mox_gpu_vec bias;
    const GPU_GLOBAL(quad) *planes;
    const GPU_GLOBAL(u64) *parts;
    GPU_GLOBAL(f32) *y;
    int64_t n, y_stride, split;
} mox_gpu_matmul_few;

/* yi[t, :] = wi x[t, :] + biasi, yi [n, rows of wi].
 * Grid (ceil(n / MOX_GPU_FEW_TOKENS), the sum of ceil(rows / (FEW_THREE_ROWS * 8 / split))). */
typedef struct mox_gpu_matmul_few_three {
    mox_gpu_mat w0, w1, w2;
    mox_gpu_vec bias0, bias1, bias2;
    GPU_GLOBAL(f32) *y0;
    GPU_GLOBAL(f32) *y1;
    GPU_GLOBAL(f32) *y2;
    const GPU_GLOBAL(quad) *planes;
    const GPU_GLOBAL(u64) *parts;
    int64_t n, split;
} mox_gpu_matmul_few_three;

/* y = silu(gate x) * (up x).  split: waves that share 16 rows.
 * Grid (ceil(n / MOX_GPU_FEW_TOKENS), ceil(rows / (16 * 8 / split))). */
typedef struct mox_gpu_gate_up_few {
    mox_gpu_mat gate, up;
    const GPU_GLOBAL(quad) *planes;
    const GPU_GLOBAL(u64) *parts;
    GPU_GLOBAL(f32) *y;
    int64_t n, y_stride, split;
} mox_gpu_gate_up_few;

/* few_experts.h.  Which pairs, of n_pairs <= MOX_GPU_FEW_PAIRS, each expert has, by blocks of four; those whose id is not below n_experts are left out.
 * plan: the number of blocks, and from FEW_PLAN on FEW_ENTRY numbers for each: the expert, how many pairs it has from here on, two that are not
 * used, four pairs, and these divided by x_divisor; -1 where there are fewer.  Also does plane_rows.
 * Grid (ceil(rows.cols / 2048), 1 + rows of x). */
enum { MOX_GPU_FEW_PLAN = 4, MOX_GPU_FEW_PAIRS_AT = 4, MOX_GPU_FEW_ROWS_AT = 8, MOX_GPU_FEW_ENTRY = 12 };
typedef struct mox_gpu_experts_plan_few {
    const GPU_GLOBAL(i32) *ids;
    GPU_GLOBAL(i32) *plan;
    mox_gpu_plane_rows rows;
    int64_t n_pairs, n_experts, x_divisor;
} mox_gpu_experts_plan_few;

/* Pair i of a plan writes row i of y; rows_at: which four numbers of an entry say what rows of planes are read.  Rows are a multiple of 16.
 *   experts_gate_up_few: silu(first x) * (second x)
 *   experts_down_few: first x.  The plan was made before the launch in front
 * Grid n_groups, any number; 128 threads. */
typedef struct mox_gpu_experts_few {
    mox_gpu_stack first, second;
    const GPU_GLOBAL(i32) *plan;
    const GPU_GLOBAL(quad) *planes;
    const GPU_GLOBAL(u64) *parts;
    GPU_GLOBAL(f32) *y;
    int64_t y_stride, rows_at, n_groups;
} mox_gpu_experts_few;
typedef mox_gpu_experts_few mox_gpu_experts_gate_up_few;
typedef mox_gpu_experts_few mox_gpu_experts_down_few;

/* ---- sort.h: groups of 256 threads ---- */

/* As moe_bucket, for many pairs.  Grid n_experts. */
typedef mox_gpu_moe_bucket mox_gpu_moe_sort;

/* Cuts sorted pairs into tiles of at most MOX_GPU_TILE_TOKENS of one expert; tiles that are left over
 * have n = 0.  n_tiles is at least pairs / TOKENS + experts that can have some.  Grid 1. */
typedef struct mox_gpu_moe_tiles {
    const GPU_GLOBAL(i64) *offsets; /* [n_experts + 1] */
    GPU_GLOBAL(expert_tile) *tiles;
    int64_t n_experts, n_tiles;
} mox_gpu_moe_tiles;

/* ---- flash.h: groups of 128 threads ---- */

/* attention for many rows: dim = v_dim is what the name says; no second part; scale > 0; k and v are
 * f16 of one page_len, at multiples of 16 bytes with strides that are multiples of 8.  n_pieces is not read.
 * Grid (heads, n_tiles), n_tiles the sum of ceil(n / MOX_GPU_FLASH_ROWS) over the spans. */
enum { MOX_GPU_FLASH_ROWS = 64 };
typedef struct mox_gpu_attention_flash {
    mox_gpu_attention a;
    int64_t n_tiles;
} mox_gpu_attention_flash;
typedef mox_gpu_attention_flash mox_gpu_attention_flash_128;
typedef mox_gpu_attention_flash mox_gpu_attention_flash_64;
typedef mox_gpu_attention_flash mox_gpu_attention_flash_256;

/* ---- share.h, join.h ---- */

/* attention for spans of one row (others are left alone): dim = v_dim is what the name says, no second
 * part; k and v as attention_flash has them; q at a multiple of 16 bytes, its strides multiples of 4.
 * With n_pieces > 1 attention_join
 * follows, and parts, at a multiple of 16 bytes, are theirs: [n_spans, heads, n_pieces, dim] and then [n_spans, heads, n_pieces, 2].
 * Grid (kv_heads * ceil(heads / kv_heads / MOX_GPU_SHARE_HEADS), n_spans, n_pieces), 128 threads.
 * attention_join: grid (heads, n_spans, dim / MOX_GPU_JOIN_WIDE), 128 threads. */
enum { MOX_GPU_SHARE_HEADS = 8, MOX_GPU_JOIN_WIDE = 32 };
typedef mox_gpu_attention mox_gpu_attention_share_64;
typedef mox_gpu_attention mox_gpu_attention_share_128;
typedef mox_gpu_attention mox_gpu_attention_share_256;
typedef mox_gpu_attention mox_gpu_attention_join;

#endif
