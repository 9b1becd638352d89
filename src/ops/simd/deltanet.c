/* ops/simd/deltanet.c -- the gated delta rule and what surrounds it, for one level.
 *
 * Token by token, a row of the state is a vector along the keys.  In chunks, a block
 * of LANES rows is held the other way round, [k_dim][LANES], so that the rows of the
 * block are the lanes: every product is then a chain of multiply-adds with one number
 * of k or q for all lanes, and nothing is summed across lanes.  A whole head is turned
 * round in place when the call begins and back when it ends. */
#include "ops/kern.h"
#include "ops/simd/rms.h"

#include <assert.h>
#include <string.h>

enum { TAPS_MAX = 8, CHANNELS = 512, TOKENS = 16, KEYS_MAX = 256, ROWS = 4 };

/* ---- the convolution ---- */

/* taps[j][c] of channels [c0, c0 + n), n <= LANES. */
static void load_taps(const mox_conv1d_silu_args *a, int64_t c0, int64_t n, float (*taps)[CHANNELS])
{
    const mox_dtype type = a->weight.type;
    if (a->width != 4 || n < LANES || type == MOX_DT_NONE || !gain_is_common(type)) {
        for (int64_t c = 0; c < n; c++)
            for (int64_t j = 0; j < a->width; j++) taps[j][c] = mox_vec_at(&a->weight, (c0 + c) * a->width + j);
        return;
    }
    const int64_t size = type == MOX_DT_F32 ? 4 : 2;
    float flat[4 * LANES];
    const float *rows[LANES];
    for (int i = 0; i < 4; i++)
        vf_store(flat + i * LANES, load_numbers(a->weight.data + (c0 * 4 + i * LANES) * size, type, LANES));
    for (int c = 0; c < LANES; c++) rows[c] = flat + 4 * c;
    vf x[4];
    vf_load_columns(rows, 0, x);
    for (int j = 0; j < 4; j++) vf_store(taps[j], x[j]);
}

ALWAYS_INLINE void conv_step(const float *const *rows, int64_t width, float (*taps)[CHANNELS], float *out,
                             int64_t c, int64_t n)
{
    vf sum = vf_zero();
    for (int64_t j = 0; j < width; j++) sum = vf_fma(vf_load_n(rows[j] + c, n), vf_load(taps[j] + c), sum);
    vf_store_n(out + c, vf_silu(sum), n);
}

/* n_c channels from c0 on, over all tokens. */
ALWAYS_INLINE void conv_block(const mox_conv1d_silu_args *a, int64_t width, int64_t c0, int64_t n_c)
{
    float taps[TAPS_MAX][CHANNELS];
    const float *rows[TAPS_MAX];
    const int64_t past = width - 1;
    for (int64_t c = 0; c < n_c; c += LANES)
        load_taps(a, c0 + c, n_c - c < LANES ? n_c - c : LANES, (float(*)[CHANNELS])(taps[0] + c));
    for (int64_t t = 0; t < a->n; t++) {
        for (int64_t j = 0; j < width; j++)
            rows[j] = c0 + (t + j < past ? a->state + (t + j) * a->channels : a->x + (t + j - past) * a->x_stride);
        float *out = a->out + t * a->out_stride + c0;
        int64_t c = 0;
        if (t + 1 < a->n) /* the next row is far away */
            for (int64_t p = 0; p < n_c; p += 16) prefetch_first(rows[past] + a->x_stride + p);
        for (; c + LANES <= n_c; c += LANES) conv_step(rows, width, taps, out, c, LANES);
        if (c < n_c) conv_step(rows, width, taps, out, c, n_c - c);
    }
}

void MOX_AT(mox_conv1d_silu)(const mox_conv1d_silu_args *a, int64_t begin, int64_t end)
{
    assert(a->width >= 1 && a->width <= TAPS_MAX);
    for (int64_t c0 = begin; c0 < end; c0 += CHANNELS) {
        const int64_t n_c = end - c0 < CHANNELS ? end - c0 : CHANNELS;
        if (a->width == 4) conv_block(a, 4, c0, n_c);
        else conv_block(a, a->width, c0, n_c);
    }
}

void MOX_AT(mox_conv1d_shift)(const mox_conv1d_shift_args *a, int64_t begin, int64_t end)
{
    const int64_t past = a->width - 1;
    if (a->n == 0 || begin >= end) return;
    for (int64_t r = 0; r < past; r++) { /* ascending: a row is read before it is written */
        const int64_t from = a->n + r;
        const float *src = from < past ? a->state + from * a->channels : a->x + (from - past) * a->x_stride;
        memcpy(a->state + r * a->channels + begin, src + begin, (size_t)(end - begin) * sizeof *src);
    }
}

/* ---- norms ---- */

static void unit_length(float *x, int64_t dim, double eps, double scale)
{
    float sum = sum_of_squares(x, dim);
    double exact = (double)sum;
    if (!rms_in_range(sum + (float)eps)) exact = mox_ref_sum_sq(x, dim);
    const vf factor = vf_set((float)(scale / sqrt(exact + eps)));
    int64_t i = 0;
    for (; i + LANES <= dim; i += LANES) vf_store(x + i, vf_mul(vf_load(x + i), factor));
    if (i < dim) vf_store_n(x + i, vf_mul(vf_load_n(x + i, dim - i), factor), dim - i);
}

void MOX_AT(mox_gdn_qk_norm)(const mox_gdn_qk_norm_args *a, int64_t begin, int64_t end)
{
    const double eps = (double)a->eps * (a->mode == MOX_GDN_EPS_MEAN ? (double)a->dim : 1.0);
    for (int64_t t = begin; t < end; t++)
        for (int64_t h = 0; h < a->heads; h++) {
            unit_length(a->q + t * a->stride + h * a->dim, a->dim, eps, 1.0 / sqrt((double)a->dim));
            unit_length(a->k + t * a->stride + h * a->dim, a->dim, eps, 1.0);
        }
}

/* ---- token by token ---- */

/* One token for n_rows rows of the state of one head.  The state is rounded to f32
 * between tokens wherever a sequence is cut. */
ALWAYS_INLINE void recur(const int n_rows, float *s, int64_t dk, const float *q, const float *k, float g, float beta,
                         const float *v, float *out)
{
    vf sum[ROWS], d[ROWS];
    const vf gate = vf_set(g);
    int64_t i = 0;
    for (int r = 0; r < n_rows; r++) sum[r] = vf_zero();
    for (; i + LANES <= dk; i += LANES) {
        const vf key = vf_load(k + i);
        for (int r = 0; r < n_rows; r++) sum[r] = vf_fma(vf_load(s + r * dk + i), key, sum[r]);
    }
    if (i < dk)
        for (int r = 0; r < n_rows; r++)
            sum[r] = vf_fma(vf_load_n(s + r * dk + i, dk - i), vf_load_n(k + i, dk - i), sum[r]);
    for (int r = 0; r < n_rows; r++) {
        d[r] = vf_set(beta * (v[r] - g * vf_sum(sum[r])));
        sum[r] = vf_zero();
    }
    for (i = 0; i + LANES <= dk; i += LANES) {
        const vf key = vf_load(k + i), query = vf_load(q + i);
        for (int r = 0; r < n_rows; r++) {
            const vf x = vf_fma(gate, vf_load(s + r * dk + i), vf_mul(d[r], key));
            vf_store(s + r * dk + i, x);
            sum[r] = vf_fma(x, query, sum[r]);
        }
    }
    if (i < dk)
        for (int r = 0; r < n_rows; r++) {
            const vf x = vf_fma(gate, vf_load_n(s + r * dk + i, dk - i), vf_mul(d[r], vf_load_n(k + i, dk - i)));
            vf_store_n(s + r * dk + i, x, dk - i);
            sum[r] = vf_fma(x, vf_load_n(q + i, dk - i), sum[r]);
        }
    for (int r = 0; r < n_rows; r++) out[r] = vf_sum(sum[r]);
}

void MOX_AT(mox_gdn_recurrent)(const mox_gdn_args *a, int64_t begin, int64_t end)
{
    assert(a->v_heads % a->k_heads == 0);
    const int64_t dk = a->k_dim, dv = a->v_dim;
    while (begin < end) {
        const int64_t h = begin / dv, kh = h / (a->v_heads / a->k_heads);
        const int64_t left = (end < (h + 1) * dv ? end : (h + 1) * dv) - begin;
        float *s = a->state + begin * dk;
        for (int64_t t = 0; t < a->n; t++) {
            const float *q = a->q + t * a->q_stride + kh * dk, *k = a->k + t * a->k_stride + kh * dk;
            const float g = a->g[t * a->v_heads + h], beta = a->beta[t * a->v_heads + h];
            const float *v = a->v + t * a->v_stride + begin;
            float *out = a->out + t * a->v_heads * dv + begin;
            if (left >= ROWS) recur(ROWS, s, dk, q, k, g, beta, v, out);
            else recur(1, s, dk, q, k, g, beta, v, out);
        }
        begin += left >= ROWS ? ROWS : 1;
    }
}

/* ---- in chunks ---- */

/* What the tokens of a chunk share over all rows of a head's state:
 *   solve[l][i] = -beta_l decay(i -> l) k_i . k_l,  i < l
 *   read[l][i]  = decay(i -> l) k_i . q_l,          i <= l
 *   left[i]     = decay(i -> last)
 *   decay[l]    = decay from before the chunk to l
 * k and q are [element][token]; tokens that a short chunk lacks are 0. */
typedef struct chunk {
    float k[KEYS_MAX][TOKENS], q[KEYS_MAX][TOKENS];
    float beta[TOKENS], decay[TOKENS], left[TOKENS];
    float solve[TOKENS][TOKENS], read[TOKENS][TOKENS];
} chunk;

static const float zeros[KEYS_MAX];

/* out[i][lane] = rows[lane][i], i < n, with `stride` lanes per line of out. */
static void turn(const float *const rows[LANES], int64_t n, float *out, int64_t stride)
{
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        vf x[4];
        vf_load_columns(rows, i, x);
        for (int j = 0; j < 4; j++) vf_store(out + (i + j) * stride, x[j]);
    }
    for (; i < n; i++)
        for (int l = 0; l < LANES; l++) out[i * stride + l] = rows[l][i];
}

/* out[l][lane] = sum_i x[i][lane] y[i][l] for CHAINS values of l; lines of x, y and out
 * are x_stride, TOKENS and out_stride apart. */
static void products(const float *x, int64_t x_stride, const float *y, int64_t n, float *out, int64_t out_stride)
{
    vf sum[CHAINS];
    for (int l = 0; l < CHAINS; l++) sum[l] = vf_zero();
    for (int64_t i = 0; i < n; i++) {
        const vf v = vf_load(x + i * x_stride);
#pragma GCC unroll 16
        for (int l = 0; l < CHAINS; l++) sum[l] = vf_fma(v, vf_set(y[i * TOKENS + l]), sum[l]);
    }
    for (int l = 0; l < CHAINS; l++) vf_store(out + l * out_stride, sum[l]);
}

static void chunk_begin(chunk *c, const mox_gdn_args *a, int64_t h, int64_t t0, int64_t n)
{
    const int64_t kh = h / (a->v_heads / a->k_heads), dk = a->k_dim;
    const float *k[TOKENS], *q[TOKENS];
    for (int64_t l = 0; l < TOKENS; l++) {
        k[l] = l < n ? a->k + (t0 + l) * a->k_stride + kh * dk : zeros;
        q[l] = l < n ? a->q + (t0 + l) * a->q_stride + kh * dk : zeros;
    }
    for (int l = 0; l < TOKENS; l += LANES) {
        turn(k + l, dk, c->k[0] + l, TOKENS);
        turn(q + l, dk, c->q[0] + l, TOKENS);
    }
    for (int l = 0; l < TOKENS; l += CHAINS)
        for (int i = 0; i < TOKENS; i += LANES) {
            products(c->k[0] + i, TOKENS, c->k[0] + l, dk, c->solve[l] + i, TOKENS);
            products(c->k[0] + i, TOKENS, c->q[0] + l, dk, c->read[l] + i, TOKENS);
        }
    float running = 1.0f;
    for (int l = 0; l < TOKENS; l++) {
        const float g = l < n ? a->g[(t0 + l) * a->v_heads + h] : 1.0f;
        c->beta[l] = l < n ? a->beta[(t0 + l) * a->v_heads + h] : 0.0f;
        c->decay[l] = running *= g;
        for (int i = 0; i < l; i++) c->left[i] *= g; /* a gate of 0 forgets exactly */
        c->left[l] = 1.0f;
        for (int i = 0; i < l; i++) c->solve[l][i] *= -c->beta[l] * c->left[i];
        for (int i = 0; i <= l; i++) c->read[l][i] *= c->left[i];
    }
}

/* s[i + j] <- decay s[i + j] + sum_l u[l] k_l[i + j] for n_lines lines j. */
ALWAYS_INLINE void advance(const int n_lines, const chunk *c, int64_t n, float *s, int64_t i, float (*u)[LANES])
{
    const vf decay = vf_set(c->decay[TOKENS - 1]);
    vf x[4];
    for (int j = 0; j < n_lines; j++) x[j] = vf_mul(decay, vf_load(s + (i + j) * LANES));
    for (int64_t l = 0; l < n; l++) {
        const vf w = vf_load(u[l]);
        for (int j = 0; j < n_lines; j++) x[j] = vf_fma(w, vf_set(c->k[i + j][l]), x[j]);
    }
    for (int j = 0; j < n_lines; j++) vf_store(s + (i + j) * LANES, x[j]);
}

/* The chunk's n tokens over a block of n_rows rows, s [dk][LANES]; v and out are those
 * of the block's first row and the chunk's first token. */
static void chunk_block(const chunk *c, int64_t n, float *s, int64_t dk, const float *v, int64_t v_stride, float *out,
                        int64_t out_stride, int64_t n_rows)
{
    _Alignas(64) float seen[TOKENS][LANES], known[TOKENS][LANES], u[TOKENS][LANES];
    for (int l = 0; l < TOKENS; l += CHAINS) {
        products(s, LANES, c->k[0] + l, dk, seen[l], LANES);
        products(s, LANES, c->q[0] + l, dk, known[l], LANES);
    }
    for (int64_t l = 0; l < n; l++) {
        const vf decay = vf_set(c->decay[l]), value = vf_load_n(v + l * v_stride, n_rows);
        vf x = vf_mul(vf_set(c->beta[l]), vf_sub(value, vf_mul(decay, vf_load(seen[l]))));
        vf o = vf_mul(decay, vf_load(known[l]));
        for (int64_t i = 0; i < l; i++) {
            const vf w = vf_load(u[i]);
            x = vf_fma(vf_set(c->solve[l][i]), w, x);
            o = vf_fma(vf_set(c->read[l][i]), w, o);
        }
        vf_store(u[l], x);
        vf_store_n(out + l * out_stride, vf_fma(vf_set(c->read[l][l]), x, o), n_rows);
    }
    for (int64_t l = 0; l < n; l++) vf_store(u[l], vf_mul(vf_set(c->left[l]), vf_load(u[l])));
    int64_t i = 0;
    for (; i + 4 <= dk; i += 4) advance(4, c, n, s, i, u);
    for (; i < dk; i++) advance(1, c, n, s, i, u);
}

/* n_rows rows of a state into [dk][LANES]. */
static void turn_block(const float *state, int64_t dk, int64_t n_rows, float *block)
{
    const float *rows[LANES];
    for (int64_t r = 0; r < LANES; r++) rows[r] = r < n_rows ? state + r * dk : zeros;
    turn(rows, dk, block, LANES);
}

/* And back. */
static void turn_back(const float *block, int64_t dk, int64_t n_rows, float *state)
{
    float spare[KEYS_MAX], *rows[LANES];
    for (int64_t r = 0; r < LANES; r++) rows[r] = r < n_rows ? state + r * dk : spare;
    int64_t i = 0;
    for (; i + 4 <= dk; i += 4) {
        vf x[4];
        for (int j = 0; j < 4; j++) x[j] = vf_load(block + (i + j) * LANES);
        vf_store_columns(rows, i, x);
    }
    for (; i < dk; i++)
        for (int64_t r = 0; r < n_rows; r++) rows[r][i] = block[i * LANES + r];
}

static void chunk_head(const mox_gdn_args *a, int64_t h)
{
    const int64_t dk = a->k_dim, dv = a->v_dim, width = a->v_heads * dv, whole = dv / LANES * LANES;
    float *state = a->state + h * dv * dk, block[KEYS_MAX * LANES];
    const size_t bytes = (size_t)(dk * LANES) * sizeof *block;
    _Alignas(64) chunk c;
    for (int64_t r = 0; r < whole; r += LANES) {
        turn_block(state + r * dk, dk, LANES, block);
        memcpy(state + r * dk, block, bytes);
    }
    if (whole < dv) turn_block(state + whole * dk, dk, dv - whole, block); /* stays there: it is wider than its rows */
    for (int64_t t0 = 0; t0 < a->n; t0 += TOKENS) {
        const int64_t n = a->n - t0 < TOKENS ? a->n - t0 : TOKENS;
        chunk_begin(&c, a, h, t0, n);
        for (int64_t r = 0; r < dv; r += LANES)
            chunk_block(&c, n, r < whole ? state + r * dk : block, dk, a->v + t0 * a->v_stride + h * dv + r, a->v_stride,
                        a->out + t0 * width + h * dv + r, width, r < whole ? LANES : dv - whole);
    }
    if (whole < dv) turn_back(block, dk, dv - whole, state + whole * dk);
    for (int64_t r = 0; r < whole; r += LANES) {
        memcpy(block, state + r * dk, bytes);
        turn_back(block, dk, LANES, state + r * dk);
    }
}

void MOX_AT(mox_gdn_chunk)(const mox_gdn_args *a, int64_t begin, int64_t end)
{
    assert(a->v_heads % a->k_heads == 0);
    if (a->k_dim > KEYS_MAX) {
        mox_gdn_chunk_ref(a, begin, end);
        return;
    }
    for (int64_t h = begin; h < end; h++) chunk_head(a, h);
}
