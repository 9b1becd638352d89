/* ops/simd/acts.h -- activations prepared for products with stored weights.
 *
 * Affine weights meet whole numbers: a unit of 32 or 64 columns of a token becomes
 * round(x / scale), held as one or two planes of signed bytes (value = 256 * high +
 * low), and y = sum_u scale_u weight_scale_u (codes . planes)_u + weight_bias_u sum_u,
 * where sum_u is that of the rounded values: with the true sum, rounding errors of
 * code and bias terms would not cancel.  Otherwise activations stay f32.
 *
 * Three arrangements:
 *   rows    one token after the other; for 4-bit codes ("nibble") a chunk of 2 VBYTES
 *           columns is its even columns, then its odd ones, as the codes come out of
 *           packed bytes; f32 nibble: [8][LANES] with column 8 l + j at [j][l], divided
 *           by the place of the code in its word, 16^j (16^6 for the last, see rows.h)
 *   blocks  up to BLOCK_MAX tokens side by side, [unit][plane][word of 4 columns][token]
 *           for the tile kernels; f32: [column][token]
 *   squares whole numbers on levels that have SQUARES: [unit][word][plane][token], up to SQUARE_LANES planes of tokens side
 *           by side (low_lane); for 4-bit codes the words of a unit are those of its even columns, then those of its
 *           odd ones
 * A group of few tokens (are_few) is in rows, others are in blocks or squares of even size; never in
 * rows when results must not depend on n (deterministic). */
#ifndef MOX_OPS_SIMD_ACTS_H
#define MOX_OPS_SIMD_ACTS_H

#include "ops/matmul.h"
#include "ops/simd/level.h"

enum {
    CHUNK = 2 * VBYTES,
    FEW_F32 = 6,     /* tokens that dot products take when activations are f32, */
    FEW_SQUARES = 3, /* or where several are multiplied as squares, */
    FEW_MAX = 8,     /* and at most: tiles are not worth filling for fewer */
    BLOCK_ROOM = SQUARES ? 16 : BLOCK_MAX /* tokens of a block at most, whatever the arrangement */
};

typedef struct act_plan {
    bool integer, nibble, affine, by_rows, square, stripes;
    int unit, unit_shift; /* columns with one scale: 2^shift */
    int share;  /* units per group of the weights: 1 or 2 */
    int planes; /* integer: 1 or 2 */
    int few;    /* tokens that dot products take, and not tiles */
    int block;  /* tokens of a block at most */
    int64_t cols, cols_padded, units, units_padded;
    int64_t token_bytes; /* of a token in rows, */
    int64_t block_bytes; /* and of each token of a block */
} act_plan;

static inline act_plan plan_acts(const mox_mat_layout *l, int64_t cols, const mox_matmul_how *how)
{
    act_plan p = {.cols = cols};
    const bool affine = p.affine = l->kind == MOX_MAT_AFFINE;
    p.integer = affine && how->precision != MOX_PRECISION_EXACT;
    p.nibble = affine && l->bits == 4;
    p.unit = affine && l->group == 32 ? 32 : 64;
    p.unit_shift = p.unit == 32 ? 5 : 6;
    p.share = affine && l->group == 128 ? 2 : 1;
    p.planes = how->precision == MOX_PRECISION_FAST ? 1 : 2;
    p.by_rows = how->by_rows;
    p.stripes = how->stripes;
    p.square = SQUARES && p.integer;
    p.few = how->deterministic ? 0 : !p.integer ? FEW_F32 : p.square ? FEW_SQUARES : p.nibble && p.by_rows ? FEW_MAX : FEW_WHOLE;
    p.block = p.square ? BLOCK_ROOM / p.planes : BLOCK_MAX;
    p.cols_padded = (cols + CHUNK - 1) / CHUNK * CHUNK;
    p.units = (cols + p.unit - 1) >> p.unit_shift;
    p.units_padded = (p.units + LANES - 1) / LANES * LANES;
    p.token_bytes = (p.integer ? p.planes * p.cols_padded + 8 * p.units_padded : 4 * p.cols_padded + 4 * p.units_padded);
    p.token_bytes = (p.token_bytes + 63) / 64 * 64;
    p.block_bytes = p.square ? mox_matmul_scratch(1, cols) /* all there is: few tokens have lanes that nobody uses */ : p.token_bytes;
    return p;
}

/* Whether activations prepared for one serve the other. */
static inline bool same_plan(const act_plan *a, const act_plan *b)
{
    return a->integer == b->integer && a->nibble == b->nibble && a->affine == b->affine && a->unit == b->unit && a->share == b->share &&
           a->planes == b->planes && a->cols == b->cols;
}

/* ---- where things are ---- */

/* Whether n tokens are multiplied as dot products, and not as tiles. */
static inline bool are_few(const act_plan *p, int64_t n) { return n <= p->few; }

typedef struct block {
    int64_t first, n; /* tokens of the group */
} block;

static inline int64_t block_count(const act_plan *p, int64_t n) { return (n + p->block - 1) / p->block; }

/* Block i of a group of n tokens: sizes differ by at most one. */
static inline block block_at(const act_plan *p, int64_t n, int64_t i)
{
    const int64_t count = block_count(p, n), size = n / count, larger = n % count;
    return (block){.first = i * size + (i < larger ? i : larger), .n = size + (i < larger)};
}

static inline block block_of(const act_plan *p, int64_t n, int64_t token)
{
    const int64_t count = block_count(p, n), size = n / count, larger = n % count, edge = larger * (size + 1);
    return block_at(p, n, token < edge ? token / (size + 1) : larger + (token - edge) / size);
}

/* ---- preparing ---- */

/* One unit: planes[p][unit] of signed bytes, the first the most significant. */
ALWAYS_INLINE void quantize_unit(const float *x, int unit, int planes, int8_t out[2][64], float *scale, float *sum)
{
    vf top = vf_zero();
    for (int i = 0; i < unit; i += LANES) {
        const vf v = vf_load(x + i);
        top = vf_max(vf_max(v, vf_sub(vf_zero(), v)), top); /* a NaN in v is lost here and found by the sum below */
    }
    const float largest = vf_max_of(top), limit = planes == 1 ? 127.0f : 32512.0f;
    const vf factor = vf_set(largest > 0 ? limit / largest : 0);
    vi total = vi_zero();
    vf check = vf_zero();
    for (int i = 0; i < unit; i += LANES) {
        const vf v = vf_load(x + i);
        check = vf_fma(v, vf_zero(), check); /* NaN when an element is not finite */
        const vi q = vf_to_int(vf_mul(v, factor));
        total = vi_add(total, q);
        const vi high = vi_sar(vi_add(q, vi_set(128)), 8);
        if (planes == 2) store_bytes(out[0] + i, high);
        store_bytes(out[planes - 1] + i, q); /* the low byte, as a signed number: what high was rounded for */
    }
    *scale = largest / limit + vf_sum(check);
    *sum = *scale * vf_sum(vf_from_int(total)); /* below 2^24: exact */
}

/* Even elements, then odd ones, of n bytes. */
ALWAYS_INLINE void split_even_odd(const int8_t *in, int n, int8_t *even, int8_t *odd)
{
    for (int i = 0; i < n / 2; i++) {
        even[i] = in[2 * i];
        odd[i] = in[2 * i + 1];
    }
}

/* The unit's columns, with zeros behind the last column of the row. */
ALWAYS_INLINE const float *unit_columns(const act_plan *p, const float *x, int64_t u, float spare[64])
{
    const int64_t at = u * p->unit, left = p->cols - at;
    if (left >= p->unit) return x + at;
    for (int i = 0; i < p->unit; i++) spare[i] = i < left ? x[at + i] : 0;
    return spare;
}

static void prepare_int_row(const act_plan *p, const float *x, uint8_t *token)
{
    float *scale = (float *)(void *)(token + p->planes * p->cols_padded), *sum = scale + p->units_padded;
    memset(token, 0, (size_t)p->token_bytes); /* padding must multiply to nothing */
    for (int64_t u = 0; u < p->units; u++) {
        int8_t planes[2][64];
        float spare[64];
        quantize_unit(unit_columns(p, x, u, spare), p->unit, p->planes, planes, &scale[u], &sum[u]);
        for (int k = 0; k < p->planes; k++) {
            int8_t *out = (int8_t *)token + k * p->cols_padded;
            const int64_t at = u * p->unit, in_chunk = at % CHUNK, chunk = at - in_chunk;
            if (p->nibble && CHUNK < 64 && p->unit > CHUNK) /* a unit of 64 columns is more than one chunk */
                for (int i = 0; i < p->unit; i += CHUNK)
                    split_even_odd(planes[k] + i, CHUNK, out + at + i, out + at + i + VBYTES);
            else if (p->nibble) split_even_odd(planes[k], p->unit, out + chunk + in_chunk / 2, out + chunk + VBYTES + in_chunk / 2);
            else memcpy(out + at, planes[k], (size_t)p->unit);
        }
    }
}

/* Bytes from one to the next, in a block of n tokens. */
typedef struct block_strides {
    int64_t unit, plane, word;
} block_strides;

#if SQUARES
/* The lane of the first token's low plane.  Whole lines of words are loaded fastest; four tokens have room for them. */
static inline int64_t low_lane(int64_t n) { return n >= 4 ? SQUARE_LANES / 2 : n; }
static inline block_strides strides_of(const act_plan *p, int64_t n)
{
    const int64_t word = n >= 4 ? 4 * SQUARE_LANES : 4 * p->planes * n;
    return (block_strides){.unit = p->unit / 4 * word, .plane = 4 * low_lane(n), .word = word};
}
#else
static inline block_strides strides_of(const act_plan *p, int64_t n)
{
    return (block_strides){.unit = p->planes * p->unit * n, .plane = p->unit * n, .word = 4 * n};
}
#endif

/* Tokens [i0, i1) of a block of n, whose columns are at x[i]: unit after unit, so that what is
 * written stays in the first cache while the tokens fill it. */
ALWAYS_INLINE void fill_int_block(const int UNIT, const int PLANES, const act_plan *p, const float *const *x, uint8_t *base,
                                  int64_t n, int64_t i0, int64_t i1)
{
    const int64_t units = p->units;
    const bool nibble = p->nibble;
    const block_strides by = strides_of(p, n);
    float *scale = (float *)(void *)(base + units * by.unit), *sum = scale + n * units;
    for (int64_t u = 0; u < units; u++)
        for (int64_t i = i0; i < i1; i++) {
            int8_t planes[2][64], halves[64];
            float spare[64], ordered[64];
            const float *columns = unit_columns(p, x[i], u, spare);
            if (nibble && !SQUARES) {
                for (int c = 0; c < UNIT; c += ORDERED) vf_order_columns(columns + c, ordered + c);
                columns = ordered;
            }
            quantize_unit(columns, UNIT, PLANES, planes, &scale[u * n + i], &sum[u * n + i]);
            for (int k = 0; k < PLANES; k++) {
                const int8_t *bytes = planes[k];
                if (nibble && SQUARES) {
                    split_even_odd(bytes, UNIT, halves, halves + UNIT / 2);
                    bytes = halves;
                }
                uint8_t *out = base + u * by.unit + k * by.plane + 4 * i;
                for (int w = 0; w < UNIT / 4; w++, out += by.word) memcpy(out, bytes + 4 * w, 4);
            }
        }
}

static void prepare_int_block(const act_plan *p, const float *const *x, uint8_t *base, int64_t n, int64_t i0, int64_t i1)
{
    if (p->unit == 64 && p->planes == 2) fill_int_block(64, 2, p, x, base, n, i0, i1);
    else if (p->unit == 64) fill_int_block(64, 1, p, x, base, n, i0, i1);
    else if (p->planes == 2) fill_int_block(32, 2, p, x, base, n, i0, i1);
    else fill_int_block(32, 1, p, x, base, n, i0, i1);
}

static void prepare_f32_row(const act_plan *p, const float *x, uint8_t *token)
{
    float *out = (float *)(void *)token, *sum = out + p->cols_padded;
    memset(token, 0, (size_t)p->token_bytes);
    if (!p->nibble) memcpy(out, x, (size_t)p->cols * sizeof *x);
    if (!p->affine) return;
    for (int64_t u = 0; u < p->units; u++) { /* whole units: a row of codes is a whole number of groups */
        vf total = vf_zero();
        for (int i = 0; i < p->unit; i += LANES) total = vf_add(total, vf_load(x + u * p->unit + i));
        sum[u] = vf_sum(total);
    }
    if (!p->nibble) return;
    for (int64_t c = 0; c < p->cols; c += 8) { /* a word of codes */
        float *to = out + c / CHUNK * CHUNK + c % CHUNK / 8;
        for (int j = 0; j < 8; j++) to[j * LANES] = x[c + j] * (1.0f / (float)(1u << (4 * (j < 7 ? j : 6)))); /* exact */
    }
}

static void prepare_f32_block(const act_plan *p, const float *const *x, uint8_t *base, int64_t n, int64_t i0, int64_t i1)
{
    float *out = (float *)(void *)base;
    for (int64_t c = 0; c < p->cols; c++)
        for (int64_t i = i0; i < i1; i++) out[c * n + i] = x[i][c];
}

/* Tokens [begin, end) of a group of n, few or not, whose activations begin at base; token i is
 * row rows[i] (or i) of x. */
static void prepare_tokens(const act_plan *p, const float *x, int64_t x_stride, const int32_t *rows, uint8_t *base, int64_t n,
                           bool few, int64_t begin, int64_t end)
{
    while (begin < end) {
        if (few) {
            const float *row = x + (rows ? rows[begin] : begin) * x_stride;
            uint8_t *token = base + begin * p->token_bytes;
            if (p->integer) prepare_int_row(p, row, token);
            else prepare_f32_row(p, row, token);
            begin++;
            continue;
        }
        const block b = block_of(p, n, begin);
        const int64_t i0 = begin - b.first, i1 = (end < b.first + b.n ? end : b.first + b.n) - b.first;
        const float *columns[BLOCK_ROOM];
        for (int64_t i = i0; i < i1; i++) columns[i] = x + (rows ? rows[b.first + i] : b.first + i) * x_stride;
        uint8_t *at = base + b.first * p->block_bytes;
        if (p->integer) prepare_int_block(p, columns, at, b.n, i0, i1);
        else prepare_f32_block(p, columns, at, b.n, i0, i1);
        begin = b.first + i1;
    }
}

#endif
