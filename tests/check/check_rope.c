/* tests/check/check_rope.c -- rope, qk_norm_rope.
 *
 * The oracle turns complex numbers: (x0 + i x1) * mscale * e^(i angle), with the
 * angle rounded to f32 as the contract says. */
#include "oracle.h"

#include <complex.h>

static const int32_t positions[] = {0, 1, 4096, 131071, 1000000};
enum { N_POSITIONS = sizeof positions / sizeof *positions };

static float *frequencies(int64_t half, double theta)
{
    float *f = ck_f32(half);
    for (int64_t i = 0; i < half; i++) f[i] = (float)pow(theta, -(double)i / (double)half);
    return f;
}

/* Holds got against x turned by angle; the tolerance belongs to the pair. */
static void check_pair(float got0, float got1, float x0, float x1, float angle, double mscale)
{
    const double complex y = ((double)x0 + I * (double)x1) * cexp(I * (double)angle) * mscale;
    const float got[2] = {got0, got1};
    const double want[2] = {creal(y), cimag(y)}, mag = fmax(fabs((double)x0), fabs((double)x1)) * mscale;
    ck_close(got, want, (const double[2]){mag, mag}, 2, 1e-5, 1e-9, "pair");
}

static void rope_case(int64_t heads, int64_t width, int64_t rotary, mox_rope_pairing pairing, float mscale)
{
    mox_err err;
    ck_label("heads %lld, width %lld, rotary %lld, pairing %d", (long long)heads, (long long)width,
             (long long)rotary, (int)pairing);
    const int64_t n = N_POSITIONS, hs = width + 2, ts = heads * hs + 3, half = rotary / 2;
    float *x = ck_random(n * ts, 1.5f), *before = or_copy(x, n * ts), *f = frequencies(half, 1e4);
    int32_t *pos = ck_i32(n * 3); /* one stream of three, interleaved */
    for (int64_t t = 0; t < n; t++) pos[3 * t] = positions[t];
    const mox_rope_args a = {.x = x, .n = n, .heads = heads, .stride = ts, .head_stride = hs, .rotary_dim = rotary,
                             .inv_freq = f, .mscale = mscale, .pairing = pairing, .pos = pos, .pos_stride = 3};
    ck_ok(mox_op_rope(&ck.exec, &a, &err), &err);
    for (int64_t t = 0; t < n; t++)
        for (int64_t h = 0; h < heads; h++) {
            const float *got = x + t * ts + h * hs, *old = before + t * ts + h * hs;
            for (int64_t i = 0; i < half; i++) {
                const int64_t i0 = pairing == MOX_ROPE_HALF ? i : 2 * i,
                              i1 = pairing == MOX_ROPE_HALF ? i + half : 2 * i + 1;
                const float angle = (float)positions[t] * f[i];
                check_pair(got[i0], got[i1], old[i0], old[i1], angle, (double)mscale);
            }
            ck_exact(got + rotary, old + rotary, (hs - rotary) * 4, "what does not turn");
        }
}

static void test_rope(void)
{
    static const int64_t rotaries[] = {2, 6, 64, 128};
    for (int p = 0; p < 2; p++)
        for (int r = 0; r < 4; r++) {
            rope_case(3, rotaries[r], rotaries[r], (mox_rope_pairing)p, 1.0f);
            rope_case(1, 256, rotaries[r], (mox_rope_pairing)p, 1.3465736f);
        }
    rope_case(2, 8, 0, MOX_ROPE_HALF, 1.0f);

    ck_label("position 0 with mscale 1 changes nothing; n = 0");
    mox_err err;
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, old[8], f[4] = {1, 0.5f, 0.25f, 0.125f};
    memcpy(old, x, sizeof x);
    int32_t pos[2] = {0, 0};
    const mox_rope_args good = {.x = x, .n = 1, .heads = 1, .stride = 8, .head_stride = 8, .rotary_dim = 8,
                                .inv_freq = f, .mscale = 1.0f, .pos = pos, .pos_stride = 1};
    ck_ok(mox_op_rope(&ck.exec, &good, &err), &err);
    ck_exact(x, old, sizeof x, "x at position 0");
    mox_rope_args a = good;
    a.n = 0, a.x = NULL, a.pos = NULL;
    ck_ok(mox_op_rope(&ck.exec, &a, &err), &err);

    ck_label("refusals");
    a = good, a.rotary_dim = 7;
    ck_refused(mox_op_rope(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.n = 2, a.rotary_dim = 10; /* wider than a token */
    ck_refused(mox_op_rope(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.heads = 2, a.head_stride = 4;
    ck_refused(mox_op_rope(&ck.exec, &a, &err), MOX_E_ARG);
    pos[0] = -1;
    ck_refused(mox_op_rope(&ck.exec, &good, &err), MOX_E_ARG);
    a = good, a.pairing = (mox_rope_pairing)2, pos[0] = 0;
    ck_refused(mox_op_rope(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.n = INT64_MAX / 4, a.pos_stride = INT64_MAX / 4;
    ck_refused(mox_op_rope(&ck.exec, &a, &err), MOX_E_ARG);
    ck_exact(x, old, sizeof x, "x after refusals");
}

static void rope_other_pairing(const mox_rope_args *a, int64_t begin, int64_t end)
{
    mox_rope_args b = *a;
    b.pairing = MOX_ROPE_HALF;
    mox_rope_ref(&b, begin, end);
}
static void rope_angle_in_double(const mox_rope_args *a, int64_t begin, int64_t end)
{
    const int64_t half = a->rotary_dim / 2;
    for (int64_t t = begin; t < end; t++)
        for (int64_t h = 0; h < a->heads; h++)
            for (int64_t i = 0; i < half; i++) {
                const bool inter = a->pairing == MOX_ROPE_INTERLEAVED;
                float *x = a->x + t * a->stride + h * a->head_stride;
                float *x0 = x + (inter ? 2 * i : i), *x1 = x + (inter ? 2 * i + 1 : i + half);
                const double angle = (double)a->pos[t * a->pos_stride] * (double)a->inv_freq[i];
                const double complex y = ((double)*x0 + I * (double)*x1) * cexp(I * angle) * (double)a->mscale;
                *x0 = (float)creal(y), *x1 = (float)cimag(y);
            }
}
static void rope_mscale_squared(const mox_rope_args *a, int64_t begin, int64_t end)
{
    mox_rope_args b = *a;
    b.mscale *= b.mscale;
    mox_rope_ref(&b, begin, end);
}
static void rope_next_position(const mox_rope_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        const int32_t pos = a->pos[t * a->pos_stride] + 1;
        mox_rope_args b = *a;
        b.x = a->x + t * a->stride, b.pos = &pos, b.n = 1;
        mox_rope_ref(&b, 0, 1);
    }
}
static void plant_rope_pairing(mox_kern *k) { k->rope = rope_other_pairing; }
static void plant_rope_double(mox_kern *k) { k->rope = rope_angle_in_double; }
static void plant_rope_mscale(mox_kern *k) { k->rope = rope_mscale_squared; }
static void plant_rope_next(mox_kern *k) { k->rope = rope_next_position; }

/* ---- qk_norm_rope ---- */

typedef struct tables {
    float *cos, *sin, *inv_freq;
} tables;

static tables make_tables(int64_t n_positions, int64_t dim)
{
    const int64_t half = dim / 2;
    tables t = {ck_f32(n_positions * half), ck_f32(n_positions * half), frequencies(half, 1e6)};
    for (int64_t p = 0; p < n_positions; p++)
        for (int64_t i = 0; i < half; i++) {
            const float angle = (float)p * t.inv_freq[i];
            t.cos[p * half + i] = (float)cos((double)angle);
            t.sin[p * half + i] = (float)sin((double)angle);
        }
    return t;
}

/* Against rms_norm, rope and a transposition, one after another. */
static void qk_case(int64_t n, int64_t heads, int64_t dim, mox_qk_mode mode, mox_dtype type, int64_t offset)
{
    mox_err err;
    ck_label("n %lld, heads %lld, dim %lld, mode %d, offset %lld", (long long)n, (long long)heads,
             (long long)dim, (int)mode, (long long)offset);
    const int64_t total = n * heads * dim;
    const tables t = make_tables(offset + n, dim);
    float *in = ck_random(total, 0.01f), *out = ck_f32(total); /* small, so that eps matters */
    const mox_vec w = mode == MOX_QK_NORM_ROPE ? ck_vec(type, ck_uniform(dim, 0.2f, 1.8f), dim) : (mox_vec){0};
    const mox_qk_norm_rope_args a = {.in = in, .out = out, .n = n, .heads = heads, .dim = dim, .mode = mode,
                                     .weight = w, .offset = 0.25f, .eps = 1e-5f, .cos = t.cos, .sin = t.sin,
                                     .n_positions = offset + n, .pos_offset = offset};
    ck_ok(mox_op_qk_norm_rope(&ck.exec, &a, &err), &err);
    float *row = ck_f32(dim);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t tok = 0; tok < n; tok++) {
            const float *src = in + (tok * heads + h) * dim, *got = out + (h * n + tok) * dim;
            if (mode == MOX_QK_COPY) {
                ck_exact(got, src, dim * 4, "copy");
                continue;
            }
            memcpy(row, src, (size_t)dim * 4);
            const double root = sqrt(or_dot(src, src, dim) / (double)dim + 1e-5);
            for (int64_t i = 0; mode == MOX_QK_NORM_ROPE && i < dim; i++)
                row[i] = (float)((double)src[i] / root * ((double)mox_vec_at(&w, i) + 0.25));
            const bool inter = mode == MOX_QK_ROPE_INTERLEAVED;
            for (int64_t i = 0; i < dim / 2; i++) {
                const int64_t i0 = inter ? 2 * i : i, i1 = inter ? 2 * i + 1 : i + dim / 2;
                check_pair(got[i0], got[i1], row[i0], row[i1], (float)(offset + tok) * t.inv_freq[i], 1.0);
            }
        }
}

static void test_qk_norm_rope(void)
{
    static const int64_t heads[] = {1, 3, 8}, sizes[] = {2, 64, 128, 130};
    for (int mode = MOX_QK_COPY; mode <= MOX_QK_ROPE_INTERLEAVED; mode++)
        for (int h = 0; h < 3; h++)
            for (int s = 0; s < 4; s++) {
                qk_case(1, heads[h], sizes[s], (mox_qk_mode)mode, MOX_DT_F32, 0);
                qk_case(5, heads[h], sizes[s], (mox_qk_mode)mode, MOX_DT_BF16, 37);
            }
    qk_case(3, 2, 7, MOX_QK_COPY, MOX_DT_F32, 0); /* only rotation needs an even width */
    qk_case(0, 2, 8, MOX_QK_NORM_ROPE, MOX_DT_F32, 4);

    ck_label("refusals");
    mox_err err;
    float in[16] = {0}, out[16], cs[8] = {0};
    const mox_qk_norm_rope_args good = {.in = in, .out = out, .n = 2, .heads = 2, .dim = 4, .mode = MOX_QK_ROPE,
                                        .cos = cs, .sin = cs, .n_positions = 4, .pos_offset = 2};
    ck_ok(mox_op_qk_norm_rope(&ck.exec, &good, &err), &err);
    mox_qk_norm_rope_args a = good;
    a.pos_offset = 3; /* the last row would lie behind the tables */
    ck_refused(mox_op_qk_norm_rope(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.pos_offset = -1;
    ck_refused(mox_op_qk_norm_rope(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.pos_offset = INT64_MAX;
    ck_refused(mox_op_qk_norm_rope(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.dim = 3;
    ck_refused(mox_op_qk_norm_rope(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.out = in;
    ck_refused(mox_op_qk_norm_rope(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.mode = MOX_QK_NORM_ROPE, a.weight = ck_vec(MOX_DT_F32, in, 3);
    ck_refused(mox_op_qk_norm_rope(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.cos = NULL;
    ck_refused(mox_op_qk_norm_rope(&ck.exec, &a, &err), MOX_E_ARG);
}

static void qk_norm_after_rope(const mox_qk_norm_rope_args *a, int64_t begin, int64_t end)
{
    mox_qk_norm_rope_args b = *a;
    if (a->mode == MOX_QK_NORM_ROPE) b.mode = MOX_QK_ROPE;
    mox_qk_norm_rope_ref(&b, begin, end);
    if (a->mode != MOX_QK_NORM_ROPE) return;
    const mox_rms_norm_args norm = {.x = a->out, .out = a->out, .n = a->n * a->heads, .heads = 1, .dim = a->dim,
                                    .x_stride = a->dim, .out_stride = a->dim, .weight = a->weight,
                                    .offset = a->offset, .eps = a->eps};
    mox_rms_norm_ref(&norm, begin, end);
}
static void qk_from_zero(const mox_qk_norm_rope_args *a, int64_t begin, int64_t end)
{
    mox_qk_norm_rope_args b = *a;
    b.pos_offset = 0;
    mox_qk_norm_rope_ref(&b, begin, end);
}
static void qk_not_transposed(const mox_qk_norm_rope_args *a, int64_t begin, int64_t end)
{
    for (int64_t u = begin; u < end; u++) {
        mox_qk_norm_rope_args b = *a;
        b.out = a->out + (u % a->n * a->heads + u / a->n - u) * a->dim;
        mox_qk_norm_rope_ref(&b, u, u + 1);
    }
}
static void plant_qk_order(mox_kern *k) { k->qk_norm_rope = qk_norm_after_rope; }
static void plant_qk_offset(mox_kern *k) { k->qk_norm_rope = qk_from_zero; }
static void plant_qk_layout(mox_kern *k) { k->qk_norm_rope = qk_not_transposed; }

/* ---- bench ---- */

CK_RUN(rope)

static void bench_rope(void)
{
    enum { HEADS = 32, DIM = 128 };
    for (int64_t n = 1; n <= 512; n *= 512)
        for (int pairing = 0; pairing < 2; pairing++) {
            int32_t *pos = ck_i32(n);
            for (int64_t t = 0; t < n; t++) pos[t] = (int32_t)(30000 + t);
            mox_rope_args a = {.x = ck_random(n * HEADS * DIM, 1), .n = n, .heads = HEADS, .stride = HEADS * DIM,
                               .head_stride = DIM, .rotary_dim = DIM, .inv_freq = frequencies(DIM / 2, 1e6), .mscale = 1.0f,
                               .pairing = (mox_rope_pairing)pairing, .pos = pos, .pos_stride = 1};
            ck_bench(ck_tokens(pairing ? "rope interleaved, 32 heads" : "rope, 32 heads", n), (double)(n * HEADS * DIM * 8), 0,
                     run_rope, &a);
        }
}

const ck_op ck_ops_rope[] = {
    {"rope", test_rope, {plant_rope_pairing, plant_rope_double, plant_rope_mscale, plant_rope_next}, bench_rope},
    {"qk_norm_rope", test_qk_norm_rope, {plant_qk_order, plant_qk_offset, plant_qk_layout}, NULL},
    {0},
};
