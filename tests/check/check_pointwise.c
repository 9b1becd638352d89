/* tests/check/check_pointwise.c -- element-wise operations against formulas in
 * double, the tails of every vector width, aliasing, and what they refuse. */
#include "check.h"

#include <math.h>
#include <string.h>

static const int64_t lengths[] = {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 100, 1000, 4097, 9001};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

/* Past the first element that an int64 of bytes can hold. */
static const int64_t too_many = INT64_MAX / 3;

static double *doubles(int64_t n) { return ck_bytes(n * 8); }

/* The sigmoid through tanh: not how a kernel would write it. */
static double sigmoid(double v) { return 0.5 + 0.5 * tanh(v / 2); }
static double silu(double v) { return v > -30 ? v * sigmoid(v) : v * exp(v); }

static const float specials[] = {0.0f,   -0.0f,  1.0f,   -1.0f,   20.0f,    -20.0f,  87.0f, -87.0f,
                                 -88.5f, -89.0f, 88.8f,  100.0f,  -100.0f,  -104.0f, 1e4f,  -1e4f,
                                 3e38f,  -3e38f, 1e-38f, -1e-44f, INFINITY, NAN};
enum { N_SPECIALS = sizeof specials / sizeof *specials };

/* ---- swiglu ---- */

/* pad: NaN columns between rows that must be neither used nor written. */
static void swiglu_case(int64_t rows, int64_t dim, int64_t pad, int alias)
{
    ck_label("%lld x %lld, pad %lld, alias %d", (long long)rows, (long long)dim, (long long)pad, alias);
    const int64_t stride = dim + pad;
    float *gate = ck_f32(rows * stride), *up = ck_f32(rows * stride), *out = ck_f32(rows * stride);
    float *g = ck_random(rows * dim, 5), *u = ck_random(rows * dim, 1);
    double *want = doubles(dim);
    for (int64_t r = 0; r < rows; r++) {
        memcpy(gate + r * stride, g + r * dim, (size_t)dim * 4);
        memcpy(up + r * stride, u + r * dim, (size_t)dim * 4);
    }
    if (alias == 1) out = gate;
    if (alias == 2) out = up;
    const mox_swiglu_args a = {gate, up, out, rows, dim, stride, stride, stride};
    mox_err err;
    ck_ok(mox_op_swiglu(&ck.exec, &a, &err), &err);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < dim; i++) want[i] = silu((double)g[r * dim + i]) * (double)u[r * dim + i];
        ck_class_p(out + r * stride, want, dim, "out");
        for (int64_t i = dim; i < stride; i++) ck_true(isnan(out[r * stride + i]), "a column of padding was written");
    }
}

/* One buffer [t, gate | up], as a fused projection leaves it. */
static void swiglu_split(void)
{
    ck_label("halves of one buffer");
    const int64_t rows = 3, dim = 21;
    float *both = ck_random(rows * 2 * dim, 3), *out = ck_f32(rows * dim);
    double *want = doubles(rows * dim);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < dim; i++)
            want[r * dim + i] = silu((double)both[r * 2 * dim + i]) * (double)both[r * 2 * dim + dim + i];
    const mox_swiglu_args a = {both, both + dim, out, rows, dim, 2 * dim, 2 * dim, dim};
    ck_ok(mox_op_swiglu(&ck.exec, &a, NULL), NULL);
    ck_class_p(out, want, rows * dim, "out");
}

static void swiglu_specials(void)
{
    ck_label("special values");
    float *gate = ck_f32(N_SPECIALS + 1), *up = ck_f32(N_SPECIALS + 1), *out = ck_f32(N_SPECIALS + 1);
    double *want = doubles(N_SPECIALS + 1);
    for (int i = 0; i < N_SPECIALS; i++) {
        gate[i] = specials[i];
        up[i] = 0.5f;
        want[i] = silu((double)gate[i]) * 0.5;
    }
    gate[N_SPECIALS] = -INFINITY; /* NaN in every algebraic form: not to be hidden */
    up[N_SPECIALS] = 1;
    want[N_SPECIALS] = NAN;
    const mox_swiglu_args a = {gate, up, out, 1, N_SPECIALS + 1, N_SPECIALS + 1, N_SPECIALS + 1, N_SPECIALS + 1};
    ck_ok(mox_op_swiglu(&ck.exec, &a, NULL), NULL);
    ck_class_p(out, want, N_SPECIALS + 1, "out");
}

static void swiglu_refusals(void)
{
    ck_label("refusals");
    float *p = ck_random(64, 1);
    const mox_swiglu_args good = {p, p + 16, p + 32, 2, 8, 8, 8, 8};
    mox_swiglu_args a;
#define REFUSES(change) \
    a = good; \
    change; \
    ck_refused(mox_op_swiglu(&ck.exec, &a, NULL), MOX_E_ARG)
    REFUSES(a.gate = NULL);
    REFUSES(a.up = NULL);
    REFUSES(a.out = NULL);
    REFUSES(a.rows = -1);
    REFUSES(a.dim = -1);
    REFUSES(a.gate_stride = 7);
    REFUSES(a.up_stride = 7);
    REFUSES(a.out_stride = 7);
    REFUSES((a.rows = too_many, a.out_stride = too_many));
#undef REFUSES
    a = good;
    a.rows = 0;
    a.gate = a.up = NULL;
    a.out = NULL;
    ck_ok(mox_op_swiglu(&ck.exec, &a, NULL), NULL);
}

static void test_swiglu(void)
{
    for (int i = 0; i < N_LENGTHS; i++) {
        swiglu_case(1, lengths[i], 0, 0);
        swiglu_case(3, lengths[i], 5, i % 3);
    }
    swiglu_case(0, 8, 0, 0);
    swiglu_case(65, 40, 0, 1);
    swiglu_split();
    swiglu_specials();
    swiglu_refusals();
}

/* The tail that a vector of four leaves. */
static void swiglu_no_tail(const mox_swiglu_args *a, int64_t begin, int64_t end)
{
    mox_swiglu_args b = *a;
    b.dim = a->dim / 4 * 4;
    mox_swiglu_ref(&b, begin, end);
}
static void swiglu_swapped(const mox_swiglu_args *a, int64_t begin, int64_t end)
{
    mox_swiglu_args b = *a;
    b.gate = a->up;
    b.up = a->gate;
    mox_swiglu_ref(&b, begin, end);
}
static void swiglu_clamped(const mox_swiglu_args *a, int64_t begin, int64_t end)
{
    mox_swiglu_ref(a, begin, end);
    for (int64_t r = begin; r < end; r++)
        for (int64_t i = 0; i < a->dim; i++)
            if (isnan(a->out[r * a->out_stride + i])) a->out[r * a->out_stride + i] = 0;
}
static void plant_swiglu_no_tail(mox_kern *k) { k->swiglu = swiglu_no_tail; }
static void plant_swiglu_swapped(mox_kern *k) { k->swiglu = swiglu_swapped; }
static void plant_swiglu_clamped(mox_kern *k) { k->swiglu = swiglu_clamped; }

/* ---- sigmoid_gate ---- */

static void test_sigmoid_gate(void)
{
    for (int j = 0; j < N_LENGTHS; j++) {
        const int64_t n = lengths[j];
        ck_label("n %lld", (long long)n);
        float *x = ck_random(n, 3), *gate = ck_random(n, 6);
        double *want = doubles(n);
        for (int64_t i = 0; i < n; i++) want[i] = (double)x[i] * sigmoid((double)gate[i]);
        const mox_sigmoid_gate_args a = {x, gate, n};
        float *cut = ck_f32(n);
        if (n > 0) memcpy(cut, x, (size_t)n * 4);
        ck_ok(mox_op_sigmoid_gate(&ck.exec, &a, NULL), NULL);
        ck_class_p(x, want, n, "x");
        const mox_sigmoid_gate_args pieces = {cut, gate, n};
        for (int64_t i = 0, step = 1; i < n; i += step, step = step * 3 % 37) /* an element is the same in any range */
            ck.exec.kern->sigmoid_gate(&pieces, i, i + step < n ? i + step : n);
        ck_exact(cut, x, n * 4, "x in pieces");
    }
    ck_label("special values");
    float *x = ck_f32(N_SPECIALS), *gate = ck_f32(N_SPECIALS);
    double *want = doubles(N_SPECIALS);
    for (int i = 0; i < N_SPECIALS; i++) {
        x[i] = 2;
        gate[i] = specials[i];
        want[i] = 2 * sigmoid((double)gate[i]);
    }
    const mox_sigmoid_gate_args s = {x, gate, N_SPECIALS};
    ck_ok(mox_op_sigmoid_gate(&ck.exec, &s, NULL), NULL);
    ck_class_p(x, want, N_SPECIALS, "x");
    ck_label("refusals");
    ck_refused(mox_op_sigmoid_gate(&ck.exec, &(mox_sigmoid_gate_args){NULL, gate, 4}, NULL), MOX_E_ARG);
    ck_refused(mox_op_sigmoid_gate(&ck.exec, &(mox_sigmoid_gate_args){x, NULL, 4}, NULL), MOX_E_ARG);
    ck_refused(mox_op_sigmoid_gate(&ck.exec, &(mox_sigmoid_gate_args){x, gate, -1}, NULL), MOX_E_ARG);
    ck_refused(mox_op_sigmoid_gate(&ck.exec, &(mox_sigmoid_gate_args){x, gate, too_many}, NULL), MOX_E_ARG);
}

static void silu_for_sigmoid(const mox_sigmoid_gate_args *a, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) a->x[i] *= a->gate[i] / (1 + expf(-a->gate[i]));
}
static void sigmoid_no_tail(const mox_sigmoid_gate_args *a, int64_t begin, int64_t end)
{
    mox_sigmoid_gate_ref(a, begin, begin + (end - begin) / 8 * 8);
}
static void plant_sigmoid_silu(mox_kern *k) { k->sigmoid_gate = silu_for_sigmoid; }
static void plant_sigmoid_tail(mox_kern *k) { k->sigmoid_gate = sigmoid_no_tail; }

/* ---- add ---- */

static void add_case(int64_t n, int alias)
{
    ck_label("n %lld, alias %d", (long long)n, alias);
    float *a = ck_random(n, 3), *b = ck_random(n, 1000), *out = ck_f32(n), *want = ck_f32(n);
    for (int64_t i = 0; i < n; i++) want[i] = (float)((double)a[i] + (double)b[i]); /* exact in double: one rounding */
    if (alias == 1) out = a;
    if (alias == 2) out = b;
    ck_ok(mox_op_add(&ck.exec, &(mox_add_args){a, b, out, n}, NULL), NULL);
    ck_exact(out, want, n * 4, "out");
}

static void test_add(void)
{
    for (int i = 0; i < N_LENGTHS; i++)
        for (int alias = 0; alias < 3; alias++) add_case(lengths[i], alias);
    ck_label("refusals");
    float *p = ck_random(8, 1);
    ck_refused(mox_op_add(&ck.exec, &(mox_add_args){NULL, p, p, 8}, NULL), MOX_E_ARG);
    ck_refused(mox_op_add(&ck.exec, &(mox_add_args){p, NULL, p, 8}, NULL), MOX_E_ARG);
    ck_refused(mox_op_add(&ck.exec, &(mox_add_args){p, p, NULL, 8}, NULL), MOX_E_ARG);
    ck_refused(mox_op_add(&ck.exec, &(mox_add_args){p, p, p, -8}, NULL), MOX_E_ARG);
    ck_refused(mox_op_add(&ck.exec, &(mox_add_args){p, p, p, too_many}, NULL), MOX_E_ARG);
    ck_ok(mox_op_add(&ck.exec, &(mox_add_args){NULL, NULL, NULL, 0}, NULL), NULL);
}

static void add_no_tail(const mox_add_args *a, int64_t begin, int64_t end)
{
    mox_add_ref(a, begin, begin + (end - begin) / 16 * 16);
}
static void add_bf16(const mox_add_args *a, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) a->out[i] = a->a[i] + mox_bf16_to_f32(mox_f32_to_bf16(a->b[i]));
}
static void plant_add_tail(mox_kern *k) { k->add = add_no_tail; }
static void plant_add_bf16(mox_kern *k) { k->add = add_bf16; }

/* ---- scale_add and scaled_add ---- */

static void scale_add_case(int64_t n, int64_t period, int alias)
{
    ck_label("n %lld, scale_len %lld, alias %d", (long long)n, (long long)period, alias);
    float *a = ck_random(n, 3), *b = ck_random(n, 3), *scale = ck_random(period, 1), *out = ck_f32(n);
    double *want = doubles(n), *mag = doubles(n);
    for (int64_t i = 0; i < n; i++) {
        const double product = (double)b[i] * (double)scale[i % period];
        want[i] = (double)a[i] + product;
        mag[i] = fabs((double)a[i]) + fabs(product); /* the two may cancel */
    }
    if (alias == 1) out = a;
    if (alias == 2) out = b;
    ck_ok(mox_op_scale_add(&ck.exec, &(mox_scale_add_args){a, b, scale, out, n, period}, NULL), NULL);
    ck_close(out, want, mag, n, 2e-7, 0, "out");
}

static void test_scale_add(void)
{
    static const int64_t periods[] = {1, 3, 8, 13, 4096, 20000};
    for (int i = 0; i < N_LENGTHS; i++)
        for (int p = 0; p < 6; p++) scale_add_case(lengths[i], periods[p], (i + p) % 3);
    ck_label("refusals");
    float *p = ck_random(8, 1);
    const mox_scale_add_args good = {p, p, p, p, 8, 8};
    mox_scale_add_args a;
#define REFUSES(change) \
    a = good; \
    change; \
    ck_refused(mox_op_scale_add(&ck.exec, &a, NULL), MOX_E_ARG)
    REFUSES(a.a = NULL);
    REFUSES(a.b = NULL);
    REFUSES(a.scale = NULL);
    REFUSES(a.out = NULL);
    REFUSES(a.n = -1);
    REFUSES(a.n = too_many);
    REFUSES(a.scale_len = 0);
    REFUSES(a.scale_len = -3);
#undef REFUSES
    ck_ok(mox_op_scale_add(&ck.exec, &(mox_scale_add_args){0}, NULL), NULL);
}

/* The scale restarts at every block that a thread takes. */
static void scale_add_restart(const mox_scale_add_args *a, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) a->out[i] = a->a[i] + a->b[i] * a->scale[(i - begin) % a->scale_len];
}
static void scale_add_unscaled(const mox_scale_add_args *a, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) a->out[i] = (a->a[i] + a->b[i]) * a->scale[i % a->scale_len];
}
static void plant_scale_add_restart(mox_kern *k) { k->scale_add = scale_add_restart; }
static void plant_scale_add_order(mox_kern *k) { k->scale_add = scale_add_unscaled; }

static void test_scaled_add(void)
{
    for (int j = 0; j < N_LENGTHS; j++) {
        const int64_t n = lengths[j];
        ck_label("n %lld", (long long)n);
        float *dst = ck_random(n, 2), *src = ck_random(n, 2);
        const float s = j % 2 ? -0.37f : 1.9f;
        double *want = doubles(n), *mag = doubles(n);
        for (int64_t i = 0; i < n; i++) {
            want[i] = (double)dst[i] + (double)s * (double)src[i];
            mag[i] = fabs((double)dst[i]) + fabs((double)s * (double)src[i]);
        }
        ck_ok(mox_op_scaled_add(&ck.exec, &(mox_scaled_add_args){dst, src, s, n}, NULL), NULL);
        ck_close(dst, want, mag, n, 2e-7, 0, "dst");
    }
    ck_label("refusals");
    float *p = ck_random(8, 1);
    ck_refused(mox_op_scaled_add(&ck.exec, &(mox_scaled_add_args){NULL, p, 1, 8}, NULL), MOX_E_ARG);
    ck_refused(mox_op_scaled_add(&ck.exec, &(mox_scaled_add_args){p, NULL, 1, 8}, NULL), MOX_E_ARG);
    ck_refused(mox_op_scaled_add(&ck.exec, &(mox_scaled_add_args){p, p, 1, -8}, NULL), MOX_E_ARG);
    ck_refused(mox_op_scaled_add(&ck.exec, &(mox_scaled_add_args){p, p, 1, too_many}, NULL), MOX_E_ARG);
}

static void scaled_add_abs(const mox_scaled_add_args *a, int64_t begin, int64_t end)
{
    mox_scaled_add_args b = *a;
    b.s = fabsf(a->s);
    mox_scaled_add_ref(&b, begin, end);
}
static void scaled_add_set(const mox_scaled_add_args *a, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) a->dst[i] = a->s * a->src[i];
}
static void plant_scaled_add_abs(mox_kern *k) { k->scaled_add = scaled_add_abs; }
static void plant_scaled_add_set(mox_kern *k) { k->scaled_add = scaled_add_set; }

/* ---- copy_slice ---- */

static void copy_case(int64_t rows, int64_t cols, int64_t src_pad, int64_t dst_pad)
{
    ck_label("%lld x %lld, pads %lld %lld", (long long)rows, (long long)cols, (long long)src_pad, (long long)dst_pad);
    const int64_t ss = cols + src_pad, ds = cols + dst_pad;
    float *src = ck_random(rows * ss, 1), *dst = ck_f32(rows * ds);
    ck_ok(mox_op_copy_slice(&ck.exec, &(mox_copy_slice_args){src, dst, rows, cols, ss, ds}, NULL), NULL);
    for (int64_t r = 0; r < rows; r++) {
        ck_exact(dst + r * ds, src + r * ss, cols * 4, "row");
        for (int64_t c = cols; c < ds; c++) ck_true(isnan(dst[r * ds + c]), "a column of padding was written");
    }
}

static void test_copy_slice(void)
{
    for (int i = 0; i < N_LENGTHS; i++) {
        copy_case(1, lengths[i], 0, 0);
        copy_case(5, lengths[i], 3, 0);
        copy_case(2, lengths[i], 0, 7);
    }
    copy_case(0, 5, 0, 0);
    ck_label("refusals");
    float *p = ck_random(64, 1);
    const mox_copy_slice_args good = {p, p + 32, 2, 8, 8, 8};
    mox_copy_slice_args a;
#define REFUSES(change) \
    a = good; \
    change; \
    ck_refused(mox_op_copy_slice(&ck.exec, &a, NULL), MOX_E_ARG)
    REFUSES(a.src = NULL);
    REFUSES(a.dst = NULL);
    REFUSES(a.rows = -1);
    REFUSES(a.cols = -1);
    REFUSES(a.src_stride = 7);
    REFUSES(a.dst_stride = 0);
    REFUSES((a.rows = too_many, a.src_stride = too_many));
#undef REFUSES
}

static void copy_wrong_stride(const mox_copy_slice_args *a, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++)
        memcpy(a->dst + r * a->cols, a->src + r * a->src_stride, (size_t)a->cols * 4);
}
static void plant_copy_stride(mox_kern *k) { k->copy_slice = copy_wrong_stride; }

/* ---- bf16 ---- */

static void test_bf16_to_f32(void)
{
    ck_label("all codes");
    enum { ALL = 65536 };
    uint16_t *codes = ck_bytes(ALL * 2);
    float *got = ck_f32(ALL), *want = ck_f32(ALL);
    for (int i = 0; i < ALL; i++) {
        codes[i] = (uint16_t)i;
        const unsigned char bytes[4] = {0, 0, (unsigned char)(i & 255), (unsigned char)(i >> 8)};
        memcpy(&want[i], bytes, 4); /* little endian: the two high bytes */
    }
    const void *odd = ck_at_odd(codes, ALL * 2);
    ck_ok(mox_op_bf16_to_f32(&ck.exec, &(mox_bf16_to_f32_args){odd, got, ALL}, NULL), NULL);
    ck_exact(got, want, ALL * 4, "dst");
    for (int j = 0; j < N_LENGTHS; j++) {
        ck_label("n %lld", (long long)lengths[j]);
        float *part = ck_f32(lengths[j]);
        const void *src = ck_at_odd(codes + 16000, lengths[j] * 2);
        ck_ok(mox_op_bf16_to_f32(&ck.exec, &(mox_bf16_to_f32_args){src, part, lengths[j]}, NULL), NULL);
        ck_exact(part, want + 16000, lengths[j] * 4, "dst");
    }
    ck_label("refusals");
    ck_refused(mox_op_bf16_to_f32(&ck.exec, &(mox_bf16_to_f32_args){NULL, got, 1}, NULL), MOX_E_ARG);
    ck_refused(mox_op_bf16_to_f32(&ck.exec, &(mox_bf16_to_f32_args){codes, NULL, 1}, NULL), MOX_E_ARG);
    ck_refused(mox_op_bf16_to_f32(&ck.exec, &(mox_bf16_to_f32_args){codes, got, -1}, NULL), MOX_E_ARG);
    ck_refused(mox_op_bf16_to_f32(&ck.exec, &(mox_bf16_to_f32_args){codes, got, too_many}, NULL), MOX_E_ARG);
}

/* The nearest of the two neighbours, ties to the even one, by comparing distances. */
static uint16_t nearest_bf16(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, 4);
    const uint16_t below = (uint16_t)(bits >> 16);
    if (isinf(v)) return below;
    /* distances in units of the 17th bit: exact, also where the upper neighbour is infinity */
    const uint32_t rest = bits & 0xFFFF;
    if (rest < 0x8000) return below;
    if (rest > 0x8000) return (uint16_t)(below + 1);
    return (uint16_t)(below + (below & 1));
}

static void test_f32_to_bf16(void)
{
    ck_label("goldens");
    static const uint32_t bits[] = {0x3F818000u, 0x3F808000u, 0x3F808001u, 0x3F807FFFu, 0x7F7FFFFFu,
                                    0x80000000u, 0x00000001u, 0xFF800000u, 0x00018000u};
    static const uint16_t golden[] = {0x3F82, 0x3F80, 0x3F81, 0x3F80, 0x7F80, 0x8000, 0x0000, 0xFF80, 0x0002};
    enum { N = sizeof bits / sizeof *bits, MANY = 50000 };
    float *src = ck_f32(N);
    memcpy(src, bits, sizeof bits);
    uint8_t *dst = ck_at_odd(golden, sizeof golden);
    memset(dst, 0xA5, sizeof golden);
    ck_ok(mox_op_f32_to_bf16(&ck.exec, &(mox_f32_to_bf16_args){src, dst, N}, NULL), NULL);
    ck_exact(dst, golden, sizeof golden, "dst");
    ck_label("NaN stays NaN");
    static const uint32_t nans[] = {0x7F800001u, 0xFF800001u, 0x7FFFFFFFu, 0x7F80FFFFu, 0x7FC00000u};
    float *nan_src = ck_f32(5);
    uint16_t *nan_dst = ck_bytes(10);
    memcpy(nan_src, nans, sizeof nans);
    ck_ok(mox_op_f32_to_bf16(&ck.exec, &(mox_f32_to_bf16_args){nan_src, nan_dst, 5}, NULL), NULL);
    for (int i = 0; i < 5; i++) {
        ck_true((nan_dst[i] & 0x7F80) == 0x7F80 && (nan_dst[i] & 0x7F) != 0, "a NaN became something else");
        ck_true((nan_dst[i] & 0x40) != 0, "a NaN is not quiet");
    }
    ck_label("random bits");
    float *many = ck_f32(MANY);
    uint16_t *want = ck_bytes(MANY * 2), *got = ck_bytes(MANY * 2);
    for (int i = 0; i < MANY; i++) {
        uint32_t b = (uint32_t)ck_rand(1ull << 32);
        if (i % 4 == 0) b = (b & 0xFFFF0000u) | 0x8000u; /* ties */
        if ((b & 0x7F800000u) == 0x7F800000u) b &= 0xFF800000u;
        memcpy(&many[i], &b, 4);
        want[i] = nearest_bf16(many[i]);
    }
    ck_ok(mox_op_f32_to_bf16(&ck.exec, &(mox_f32_to_bf16_args){many, got, MANY}, NULL), NULL);
    ck_exact(got, want, MANY * 2, "dst");
    for (int j = 0; j < N_LENGTHS; j++) {
        ck_label("n %lld", (long long)lengths[j]);
        uint8_t *part = ck_at_odd(want, lengths[j] * 2);
        memset(part, 0, (size_t)lengths[j] * 2);
        ck_ok(mox_op_f32_to_bf16(&ck.exec, &(mox_f32_to_bf16_args){many, part, lengths[j]}, NULL), NULL);
        ck_exact(part, want, lengths[j] * 2, "dst");
    }
    ck_label("refusals");
    ck_refused(mox_op_f32_to_bf16(&ck.exec, &(mox_f32_to_bf16_args){NULL, got, 1}, NULL), MOX_E_ARG);
    ck_refused(mox_op_f32_to_bf16(&ck.exec, &(mox_f32_to_bf16_args){many, NULL, 1}, NULL), MOX_E_ARG);
    ck_refused(mox_op_f32_to_bf16(&ck.exec, &(mox_f32_to_bf16_args){many, got, -1}, NULL), MOX_E_ARG);
    ck_refused(mox_op_f32_to_bf16(&ck.exec, &(mox_f32_to_bf16_args){many, got, too_many}, NULL), MOX_E_ARG);
}

static void bf16_flushed(const mox_bf16_to_f32_args *a, int64_t begin, int64_t end)
{
    mox_bf16_to_f32_ref(a, begin, end);
    for (int64_t i = begin; i < end; i++)
        if (fabsf(a->dst[i]) < 1.2e-38f) a->dst[i] = 0;
}
static void bf16_truncated(const mox_f32_to_bf16_args *a, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) memcpy((uint8_t *)a->dst + 2 * i, (const uint8_t *)&a->src[i] + 2, 2);
}
static void bf16_half_up(const mox_f32_to_bf16_args *a, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        const uint16_t v = (uint16_t)((mox_f32_bits(a->src[i]) + 0x8000u) >> 16);
        memcpy((uint8_t *)a->dst + 2 * i, &v, 2);
    }
}
static void plant_bf16_flush(mox_kern *k) { k->bf16_to_f32 = bf16_flushed; }
static void plant_bf16_truncate(mox_kern *k) { k->f32_to_bf16 = bf16_truncated; }
static void plant_bf16_half_up(mox_kern *k) { k->f32_to_bf16 = bf16_half_up; }

/* ---- bench ---- */

enum { BENCH_DIM = 2048, BENCH_WIDTH = 4096 };

CK_RUN(swiglu)
CK_RUN(sigmoid_gate)
CK_RUN(add)
CK_RUN(scale_add)
CK_RUN(scaled_add)

static void bench_swiglu(void)
{
    const int64_t dim = 768;
    for (int64_t n = 8; n <= 4096; n *= 512) { /* eight experts a token */
        mox_swiglu_args a = {ck_random(n * dim, 1), ck_random(n * dim, 1), ck_f32(n * dim), n, dim, dim, dim, dim};
        ck_bench(ck_tokens("swiglu of 8 x 768", n / 8), (double)(n * dim * 12), 0, run_swiglu, &a);
    }
}

static void bench_sigmoid_gate(void)
{
    for (int64_t n = 1; n <= 512; n *= 512) { /* gates of 1: x is not to fade away */
        mox_sigmoid_gate_args a = {ck_random(n * BENCH_WIDTH, 1), ck_uniform(n * BENCH_WIDTH, 20, 30), n * BENCH_WIDTH};
        ck_bench(ck_tokens("sigmoid_gate of 4096", n), (double)(n * BENCH_WIDTH * 12), 0, run_sigmoid_gate, &a);
    }
}

static void bench_add(void)
{
    for (int64_t n = BENCH_DIM; n <= 512 * BENCH_DIM; n *= 512) {
        mox_add_args a = {ck_random(n, 1), ck_random(n, 1), ck_f32(n), n};
        ck_bench(ck_tokens("add", n / BENCH_DIM), (double)(n * 12), 0, run_add, &a);
    }
}

static void bench_scale_add(void)
{
    for (int64_t n = BENCH_DIM; n <= 512 * BENCH_DIM; n *= 512) {
        mox_scale_add_args a = {ck_random(n, 1), ck_random(n, 1), ck_random(BENCH_DIM, 1), ck_f32(n), n, BENCH_DIM};
        ck_bench(ck_tokens("scale_add", n / BENCH_DIM), (double)(n * 12), 0, run_scale_add, &a);
    }
}

static void bench_scaled_add(void)
{
    for (int64_t n = BENCH_DIM; n <= 512 * BENCH_DIM; n *= 512) {
        mox_scaled_add_args a = {ck_random(n, 1), ck_random(n, 1), 1e-3f, n};
        ck_bench(ck_tokens("scaled_add", n / BENCH_DIM), (double)(n * 12), 0, run_scaled_add, &a);
    }
}

const ck_op ck_ops_pointwise[] = {
    {"swiglu", test_swiglu, {plant_swiglu_no_tail, plant_swiglu_swapped, plant_swiglu_clamped}, bench_swiglu},
    {"sigmoid_gate", test_sigmoid_gate, {plant_sigmoid_silu, plant_sigmoid_tail}, bench_sigmoid_gate},
    {"add", test_add, {plant_add_tail, plant_add_bf16}, bench_add},
    {"scale_add", test_scale_add, {plant_scale_add_restart, plant_scale_add_order}, bench_scale_add},
    {"scaled_add", test_scaled_add, {plant_scaled_add_abs, plant_scaled_add_set}, bench_scaled_add},
    {"copy_slice", test_copy_slice, {plant_copy_stride}, NULL},
    {"bf16_to_f32", test_bf16_to_f32, {plant_bf16_flush}, NULL},
    {"f32_to_bf16", test_f32_to_bf16, {plant_bf16_truncate, plant_bf16_half_up}, NULL},
    {.name = NULL},
};
