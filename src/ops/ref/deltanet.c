/* ops/ref/deltanet.c -- reference kernels of the gated delta rule: products and sums
 * in double, the state in f32 between tokens.
 *
 * I1  the recurrent kernel rounds the state after every token, so a sequence gives
 *     the same bytes however it is cut into calls. */
#include "ops/kern.h"

#include "base/size.h"
#include "ops/ref/math.h"
#include "ops/ref/rms.h"

#include <assert.h>
#include <string.h>

enum { CONV_WIDTH_MAX = 8, CONV_CHANNELS = 64, CHUNK = MOX_GDN_CHUNK };

void mox_gdn_split_ref(const mox_gdn_split_args *a, int64_t begin, int64_t end)
{
    const int64_t r = a->v_heads / a->k_heads, dk = a->k_dim, rv = r * a->v_dim;
    const int64_t keys = a->k_heads * dk, values = a->v_heads * a->v_dim;
    for (int64_t t = begin; t < end; t++) {
        float *q = a->qkv + t * (2 * keys + values), *k = q + keys, *v = k + keys;
        for (int64_t g = 0; g < a->k_heads; g++) {
            const float *in = a->qkvz + (t * a->k_heads + g) * 2 * (dk + rv);
            const float *ba = a->ba + (t * a->k_heads + g) * 2 * r;
            memcpy(q + g * dk, in, (size_t)dk * sizeof *in);
            memcpy(k + g * dk, in + dk, (size_t)dk * sizeof *in);
            memcpy(v + g * rv, in + 2 * dk, (size_t)rv * sizeof *in);
            memcpy(a->z + t * values + g * rv, in + 2 * dk + rv, (size_t)rv * sizeof *in);
            memcpy(a->b + t * a->v_heads + g * r, ba, (size_t)r * sizeof *ba);
            memcpy(a->a + t * a->v_heads + g * r, ba + r, (size_t)r * sizeof *ba);
        }
    }
}

/* Row r of [state; x], channel c. */
static double conv_row(const mox_conv1d_silu_args *a, int64_t r, int64_t c)
{
    const int64_t past = a->width - 1;
    return (double)(r < past ? a->state[r * a->channels + c] : a->x[(r - past) * a->x_stride + c]);
}

void mox_conv1d_silu_ref(const mox_conv1d_silu_args *a, int64_t begin, int64_t end)
{
    double taps[CONV_CHANNELS * CONV_WIDTH_MAX];
    assert(a->width >= 1 && a->width <= CONV_WIDTH_MAX);
    for (int64_t c0 = begin; c0 < end; c0 += CONV_CHANNELS) {
        const int64_t n_c = mox_min_i64(CONV_CHANNELS, end - c0);
        for (int64_t i = 0; i < n_c * a->width; i++)
            taps[i] = (double)mox_vec_at(&a->weight, c0 * a->width + i);
        for (int64_t t = 0; t < a->n; t++)
            for (int64_t c = 0; c < n_c; c++) {
                double sum = 0.0;
                for (int64_t j = 0; j < a->width; j++)
                    sum += conv_row(a, t + j, c0 + c) * taps[c * a->width + j];
                a->out[t * a->out_stride + c0 + c] = (float)mox_ref_silu(sum);
            }
    }
}

void mox_conv1d_shift_ref(const mox_conv1d_shift_args *a, int64_t begin, int64_t end)
{
    /* Rows are written in ascending order and read from behind the one being
     * written, so a state that is only shifted never reads what it wrote. */
    const int64_t past = a->width - 1;
    for (int64_t r = 0; r < past; r++)
        for (int64_t c = begin; c < end; c++) {
            const int64_t from = a->n + r; /* row of [state; x] */
            a->state[r * a->channels + c] =
                from < past ? a->state[from * a->channels + c] : a->x[(from - past) * a->x_stride + c];
        }
}

static void unit_length(float *x, int64_t dim, double eps, double scale)
{
    const double factor = scale / sqrt(mox_ref_sum_sq(x, dim) + eps);
    for (int64_t i = 0; i < dim; i++) x[i] = (float)((double)x[i] * factor);
}

void mox_gdn_qk_norm_ref(const mox_gdn_qk_norm_args *a, int64_t begin, int64_t end)
{
    const double eps = (double)a->eps * (a->mode == MOX_GDN_EPS_MEAN ? (double)a->dim : 1.0);
    for (int64_t t = begin; t < end; t++)
        for (int64_t h = 0; h < a->heads; h++) {
            unit_length(a->q + t * a->stride + h * a->dim, a->dim, eps, 1.0 / sqrt((double)a->dim));
            unit_length(a->k + t * a->stride + h * a->dim, a->dim, eps, 1.0);
        }
}

/* ln(1 + e^x) without overflow above or loss below. */
static double softplus(double x) { return (x > 0.0 ? x : 0.0) + log1p(exp(-fabs(x))); }

void mox_gdn_gates_ref(const mox_gdn_gates_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++)
        for (int64_t h = 0; h < a->heads; h++) {
            const double x = (double)a->a[t * a->a_stride + h] + (double)mox_vec_at(&a->dt_bias, h);
            const double rate = exp((double)mox_vec_at(&a->a_log, h));
            a->g[t * a->heads + h] = (float)exp(-rate * softplus(x));
            a->beta[t * a->heads + h] = (float)mox_ref_sigmoid((double)a->b[t * a->b_stride + h]);
        }
}

void mox_gdn_recurrent_ref(const mox_gdn_args *a, int64_t begin, int64_t end)
{
    assert(a->v_heads % a->k_heads == 0);
    const int64_t dk = a->k_dim, dv = a->v_dim;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t h = unit / dv, kh = h / (a->v_heads / a->k_heads);
        float *s = a->state + unit * dk;
        for (int64_t t = 0; t < a->n; t++) {
            const float *q = a->q + t * a->q_stride + kh * dk, *k = a->k + t * a->k_stride + kh * dk;
            const double g = (double)a->g[t * a->v_heads + h], beta = (double)a->beta[t * a->v_heads + h];
            double seen = 0.0, out = 0.0;
            for (int64_t i = 0; i < dk; i++) seen += g * (double)s[i] * (double)k[i];
            const double d = beta * ((double)a->v[t * a->v_stride + unit] - seen);
            for (int64_t i = 0; i < dk; i++) {
                s[i] = (float)(g * (double)s[i] + d * (double)k[i]); /* I1 */
                out += (double)s[i] * (double)q[i];
            }
            a->out[t * a->v_heads * dv + unit] = (float)out;
        }
    }
}

/* What the tokens of one chunk share over all rows of a head's state:
 *   solve[l][i] = beta_l decay(i -> l) k_i . k_l,  i < l
 *   read[l][i]  = decay(i -> l) k_i . q_l,         i <= l
 *   left[i]     = decay(i -> last)
 *   decay[l]    = decay from before the chunk to l */
typedef struct chunk {
    int64_t n;
    const float *q[CHUNK], *k[CHUNK];
    double beta[CHUNK], decay[CHUNK], left[CHUNK];
    double solve[CHUNK][CHUNK], read[CHUNK][CHUNK];
} chunk;

static double dot(const float *a, const float *b, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

static void chunk_begin(chunk *c, const mox_gdn_args *a, int64_t h, int64_t t0, int64_t n)
{
    const int64_t kh = h / (a->v_heads / a->k_heads);
    double running = 1.0;
    c->n = n;
    for (int64_t l = 0; l < n; l++) {
        const double g = (double)a->g[(t0 + l) * a->v_heads + h];
        c->q[l] = a->q + (t0 + l) * a->q_stride + kh * a->k_dim;
        c->k[l] = a->k + (t0 + l) * a->k_stride + kh * a->k_dim;
        c->beta[l] = (double)a->beta[(t0 + l) * a->v_heads + h];
        c->decay[l] = running *= g;
        for (int64_t i = 0; i < l; i++) c->left[i] *= g; /* a gate of 0 forgets exactly */
        c->left[l] = 1.0;
        for (int64_t i = 0; i <= l; i++) {
            c->solve[l][i] = i < l ? c->beta[l] * c->left[i] * dot(c->k[i], c->k[l], a->k_dim) : 0.0;
            c->read[l][i] = c->left[i] * dot(c->k[i], c->q[l], a->k_dim);
        }
    }
}

/* One row s of the state over the chunk; v and out are that row's elements. */
static void chunk_row(const chunk *c, float *s, int64_t dk, const float *v, int64_t v_stride, float *out,
                      int64_t out_stride)
{
    double u[CHUNK];
    for (int64_t l = 0; l < c->n; l++) {
        u[l] = c->beta[l] * ((double)v[l * v_stride] - c->decay[l] * dot(s, c->k[l], dk));
        for (int64_t i = 0; i < l; i++) u[l] -= c->solve[l][i] * u[i];
        double o = c->decay[l] * dot(s, c->q[l], dk);
        for (int64_t i = 0; i <= l; i++) o += c->read[l][i] * u[i];
        out[l * out_stride] = (float)o;
    }
    for (int64_t i = 0; i < dk; i++) {
        double sum = c->decay[c->n - 1] * (double)s[i];
        for (int64_t l = 0; l < c->n; l++) sum += c->left[l] * u[l] * (double)c->k[l][i];
        s[i] = (float)sum;
    }
}

void mox_gdn_chunk_ref(const mox_gdn_args *a, int64_t begin, int64_t end)
{
    const int64_t dk = a->k_dim, dv = a->v_dim, width = a->v_heads * dv;
    chunk c;
    assert(a->v_heads % a->k_heads == 0);
    for (int64_t h = begin; h < end; h++)
        for (int64_t t0 = 0; t0 < a->n; t0 += CHUNK) {
            chunk_begin(&c, a, h, t0, mox_min_i64(CHUNK, a->n - t0));
            for (int64_t r = h * dv; r < (h + 1) * dv; r++)
                chunk_row(&c, a->state + r * dk, dk, a->v + t0 * a->v_stride + r, a->v_stride,
                          a->out + t0 * width + r, width);
        }
}
