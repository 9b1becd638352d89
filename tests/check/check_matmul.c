/* tests/check/check_matmul.c -- products with stored weights, in every layout, against
 * sums in double over weights that the harness decoded bit by bit. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static const int64_t too_many = INT64_MAX / 3;

static double *doubles(int64_t n) { return ck_bytes(n * 8); }
static double silu(double v) { return v > -30 ? v * (0.5 + 0.5 * tanh(v / 2)) : v * exp(v); }

/* Every layout with every group (for fp8: the size of a block). */
typedef struct kind {
    ck_layout layout;
    int group;
} kind;
static const kind kinds[] = {{CK_F32, 1},  {CK_F16, 1},  {CK_BF16, 1},  {CK_Q2, 32},  {CK_Q2, 64},  {CK_Q2, 128},
                             {CK_Q3, 32},  {CK_Q3, 64},  {CK_Q3, 128},  {CK_Q4, 32},  {CK_Q4, 64},  {CK_Q4, 128},
                             {CK_Q5, 32},  {CK_Q5, 64},  {CK_Q5, 128},  {CK_Q6, 32},  {CK_Q6, 64},  {CK_Q6, 128},
                             {CK_Q8, 32},  {CK_Q8, 64},  {CK_Q8, 128},  {CK_FP8, 5},  {CK_FP8, 64}, {CK_FP8, 128}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* cols, up to a whole number of groups where the layout needs that. */
static int64_t fit(kind k, int64_t cols)
{
    const bool affine = k.layout >= CK_Q2 && k.layout <= CK_Q8;
    return affine ? (cols + k.group - 1) / k.group * k.group : cols;
}

/* [n, width] of random numbers in rows of `stride`, the rest NaN. */
static float *padded(int64_t n, int64_t width, int64_t stride, float scale)
{
    float *p = ck_f32(n * stride), *values = ck_random(n * width, scale);
    for (int64_t t = 0; t < n; t++) memcpy(p + t * stride, values + t * width, (size_t)width * 4);
    return p;
}

static void check_padding(const float *p, int64_t n, int64_t width, int64_t stride)
{
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = width; i < stride; i++) ck_true(isnan(p[t * stride + i]), "padding of a row was written");
}

/* A matrix with its values and the sizes of their terms. */
typedef struct known {
    mox_mat m;
    double *value, *mag;
} known;

static known known_mat(kind k, int64_t rows, int64_t cols)
{
    const known w = {ck_mat(k.layout, k.group, rows, cols), doubles(rows * cols), doubles(rows * cols)};
    ck_mat_dense(&w.m, w.value, w.mag);
    return w;
}

/* Half a step of the whole numbers that activations are rounded to, for the 64
 * columns around col; 0 where they stay f32. */
static double rounding(const known *w, const float *x, int64_t col)
{
    if (ck.at_ref || ck.exec.precision == MOX_PRECISION_EXACT || w->m.layout.kind != MOX_MAT_AFFINE) return 0;
    float largest = 0;
    for (int64_t c = col / 64 * 64; c < w->m.cols && c < col / 64 * 64 + 64; c++) largest = fmaxf(largest, fabsf(x[c]));
    return 0.5 * (double)largest / (ck.exec.precision == MOX_PRECISION_FAST ? 127 : 32512);
}

/* W[r, :] . x from the far end, and what may be lost in it. */
static double dot(const known *w, int64_t r, const float *x, double *allowed)
{
    double sum = 0, mag = 0, rounded = 0, step = 0;
    for (int64_t c = w->m.cols - 1; c >= 0; c--) {
        if (c == w->m.cols - 1 || c % 64 == 63) step = rounding(w, x, c);
        sum += w->value[r * w->m.cols + c] * (double)x[c];
        mag += w->mag[r * w->m.cols + c] * fabs((double)x[c]);
        rounded += fabs(w->value[r * w->m.cols + c]) * step;
    }
    *allowed = 1e-5 * mag + 1.001 * rounded + 1e-7;
    return sum;
}

/* Scratch for n rows of activations, guarded like every buffer. */
static void *scratch(int64_t n, int64_t cols) { return ck_bytes(mox_matmul_scratch(n, cols)); }

/* What the entries tell kernels of the level. */
static mox_matmul_how level_how(void)
{
    const mox_kern *k = ck.exec.kern;
    return (mox_matmul_how){.precision = ck.exec.precision, .by_rows = k->by_rows, .stripes = k->stripes};
}

/* ---- matmul ---- */

static void check_product(const mox_matmul_args *a, const known *w)
{
    double *want = doubles(w->m.rows), *allowed = doubles(w->m.rows);
    for (int64_t t = 0; t < a->n; t++) {
        for (int64_t r = 0; r < w->m.rows; r++) {
            want[r] = dot(w, r, a->x + t * a->x_stride, &allowed[r]);
            if (a->bias.type == MOX_DT_NONE) continue;
            const double bias = (double)mox_vec_at(&a->bias, r); /* one more term of the sum */
            want[r] += bias;
            allowed[r] += 1e-5 * fabs(bias);
        }
        ck_close(a->y + t * a->y_stride, want, allowed, w->m.rows, 1, 0, "y");
    }
    check_padding(a->y, a->n, w->m.rows, a->y_stride);
}

/* The bytes of a row do not depend on the rows that are computed with it, nor, on
 * the reference, those of a token on the other tokens. */
static void check_independence(const mox_matmul_args *a)
{
    const int64_t rows = a->w.rows;
    float *one = ck_f32(a->n * rows);
    mox_matmul_args b = *a;
    b.y = one;
    b.y_stride = rows;
    for (int64_t r = 0; r < rows; r++) ck.exec.kern->matmul(&b, r, r + 1);
    for (int64_t t = 0; t < a->n; t++) ck_exact(one + t * rows, a->y + t * a->y_stride, rows * 4, "y, row by row");
    if (!ck.at_ref) return;
    b.n = 1;
    for (int64_t t = 0; t < a->n; t++) {
        b.x = a->x + t * a->x_stride;
        ck_ok(mox_op_matmul(&ck.exec, &b, NULL), NULL);
        ck_exact(one, a->y + t * a->y_stride, rows * 4, "y, token alone");
    }
}

/* The same with what another processor prefers: the bytes of one token, whose rows only come in another order. */
static void check_preference(const mox_matmul_args *a, const known *w)
{
    mox_kern other = *ck.exec.kern;
    mox_exec e = ck.exec;
    mox_matmul_args b = *a;
    other.by_rows = !other.by_rows;
    other.stripes = !other.stripes;
    e.kern = &other;
    b.y = ck_f32(a->n * a->y_stride);
    ck_ok(mox_op_matmul(&e, &b, NULL), NULL);
    check_product(&b, w);
    if (a->n == 1) ck_exact(b.y, a->y, a->w.rows * 4, "y, rows in another order");
}

/* Where results must not depend on n, and few tokens are in tiles, too.  A level whose products alone are its own, as amx,
 * then gives the bytes of the level below: what is written down on one processor holds on the other. */
static void check_deterministic(const mox_matmul_args *a, const known *w)
{
    mox_exec e = ck.exec;
    mox_matmul_args own = *a, below = *a;
    e.deterministic = true;
    own.y = ck_f32(a->n * a->y_stride);
    ck_ok(mox_op_matmul(&e, &own, NULL), NULL);
    check_product(&own, w);
    if (!ck.below || ck.exec.kern->attention != ck.below->attention) return;
    below.y = ck_f32(a->n * a->y_stride);
    e.kern = ck.below;
    ck_ok(mox_op_matmul(&e, &below, NULL), NULL);
    for (int64_t t = 0; t < a->n; t++)
        ck_exact(own.y + t * a->y_stride, below.y + t * a->y_stride, a->w.rows * 4, "y, as the level below has it");
}

static void matmul_case(kind k, int64_t rows, int64_t cols, int64_t n, int64_t pad, bool with_bias)
{
    cols = fit(k, cols);
    ck_label("%s group %d, [%lld, %lld], n %lld, pad %lld, bias %d", ck_layout_name(k.layout), k.group,
             (long long)rows, (long long)cols, (long long)n, (long long)pad, with_bias);
    const known w = known_mat(k, rows, cols);
    float *bias = ck_random(rows, 1);
    mox_matmul_args a = {.w = w.m, .n = n, .x_stride = cols + pad, .y_stride = rows + pad, .scratch = scratch(n, cols),
                         .how = level_how()};
    a.x = padded(n, cols, a.x_stride, 1);
    a.y = ck_f32(n * a.y_stride);
    if (with_bias) a.bias = ck_vec(n % 2 ? MOX_DT_BF16 : MOX_DT_F32, bias, rows);
    mox_err err;
    ck_ok(mox_op_matmul(&ck.exec, &a, &err), &err);
    check_product(&a, &w);
    if (n > 0 && rows <= 9) check_independence(&a);
    if (n > 0 && n <= 9) check_preference(&a, &w);
    if (n <= 33 && !ck.on_device) check_deterministic(&a, &w);
}

/* All weight but one meets a zero: a wrong column or group cannot hide in a sum. */
static void matmul_spike(kind k)
{
    const int64_t rows = 9, cols = fit(k, 300);
    const known w = known_mat(k, rows, cols);
    float *x = ck_f32(cols), *y = ck_f32(rows);
    for (int64_t c = 0; c < cols; c += c < 40 || c > cols - 40 ? 1 : 13) {
        ck_label("%s group %d, spike at %lld", ck_layout_name(k.layout), k.group, (long long)c);
        memset(x, 0, (size_t)cols * 4);
        x[c] = 3000.0f;
        const mox_matmul_args a = {.w = w.m, .x = x, .y = y, .n = 1, .x_stride = cols, .y_stride = rows,
                                   .scratch = scratch(1, cols)};
        ck_ok(mox_op_matmul(&ck.exec, &a, NULL), NULL);
        check_product(&a, &w);
    }
}

/* Rows of a view are those of the whole, wherever the view begins. */
static void matmul_views(kind k)
{
    const int64_t rows = 21, cols = fit(k, 130);
    const known whole = known_mat(k, rows, cols);
    float *x = ck_random(cols, 1), *y = ck_f32(rows);
    for (int64_t row = 0; row <= rows; row += 3) {
        ck_label("%s group %d, view at %lld", ck_layout_name(k.layout), k.group, (long long)row);
        const known part = {mox_mat_rows(&whole.m, row, rows - row), whole.value + row * cols, whole.mag + row * cols};
        const mox_matmul_args a = {.w = part.m, .x = x, .y = y, .n = 1, .x_stride = cols, .y_stride = rows,
                                   .scratch = scratch(1, cols)};
        for (int64_t r = 0; r < rows; r++) y[r] = NAN;
        ck_ok(mox_op_matmul(&ck.exec, &a, NULL), NULL);
        check_product(&a, &part);
    }
}

/* A tensor of more than 2^32 elements: the last row is where products of 32 bits
 * would not reach.  Memory that is never written costs nothing. */
static const size_t huge_bytes = (size_t)9 << 30;

static uint8_t *huge_map(void)
{
    void *p = mmap(NULL, huge_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void matmul_huge(void)
{
    ck_label("more than 2^32 elements");
    const int64_t cols = 1 << 20, rows = (int64_t)(huge_bytes / 2) / cols;
    uint8_t *p = huge_map();
    if (!p) return; /* an address space too small for it */
    if (ck.on_device) { /* which would have to take all of it */
        munmap(p, huge_bytes);
        return;
    }
    const uint16_t one = mox_f32_to_bf16(1.0f);
    memcpy(p + ((rows - 1) * cols + 12345) * 2, &one, 2);
    float *x = ck_f32(cols), *y = ck_f32(rows);
    for (int64_t c = 0; c < cols; c++) x[c] = (float)c;
    const mox_matmul_args a = {.w = {.layout = {.kind = MOX_MAT_BF16}, .rows = rows, .cols = cols, .w = p},
                               .x = x, .y = y, .n = 1, .x_stride = cols, .y_stride = rows, .scratch = scratch(1, cols)};
    if (ck.exec.kern->matmul_prepare) ck.exec.kern->matmul_prepare(&a, 0, 1);
    ck.exec.kern->matmul(&a, rows - 1, rows);
    munmap(p, huge_bytes);
    ck_true(y[rows - 1] == 12345.0f, "the last row of a large matrix");
}

static void matmul_refusals(void)
{
    ck_label("refusals");
    const mox_mat w = ck_mat(CK_Q4, 64, 8, 128), fp8 = ck_mat(CK_FP8, 64, 8, 128);
    float *x = ck_random(256, 1), *y = ck_f32(16), *bias = ck_random(8, 1);
    const mox_matmul_args good = {.w = w, .x = x, .y = y, .n = 2, .x_stride = 128, .y_stride = 8,
                                  .bias = ck_vec(MOX_DT_F32, bias, 8), .scratch = scratch(2, 128)};
    mox_matmul_args a = good;
    ck_ok(mox_op_matmul(&ck.exec, &a, NULL), NULL);
#define REFUSES(change) \
    a = good; \
    change; \
    ck_refused(mox_op_matmul(&ck.exec, &a, NULL), MOX_E_ARG)
    REFUSES(a.n = -1);
    REFUSES(a.x = NULL);
    REFUSES(a.y = NULL);
    REFUSES(a.x_stride = 127);
    REFUSES(a.y_stride = 7);
    REFUSES((a.n = too_many, a.x_stride = too_many));
    REFUSES(a.w.rows = -8);
    REFUSES(a.w.cols = -128);
    REFUSES(a.w.rows = too_many);
    REFUSES(a.w.cols = 96); /* not a whole number of groups: rows would share scales */
    REFUSES(a.w.w = NULL);
    REFUSES(a.w.scales = NULL);
    REFUSES(a.w.biases = NULL);
    REFUSES(a.w.layout.bits = 7);
    REFUSES(a.w.layout.group = 16);
    REFUSES(a.w.layout.kind = MOX_MAT_NONE);
    REFUSES(a.w.layout.scale_type = MOX_DT_I32);
    REFUSES(a.bias.n = 9);
    REFUSES(a.bias.data = NULL);
    REFUSES(a.bias.type = MOX_DT_U32);
    REFUSES((a.w = fp8, a.w.scales = NULL));
    REFUSES((a.w = fp8, a.w.row0 = -1));
    REFUSES((a.w = fp8, a.w.row0 = INT64_MAX));
    REFUSES((a.w = fp8, a.w.layout.block_cols = 0));
    REFUSES((a.w = fp8, a.w.layout.scale_type = MOX_DT_F8_E4M3));
#undef REFUSES
    a = good; /* no tokens: nothing is needed */
    a.n = 0;
    a.x = NULL;
    a.y = NULL;
    ck_ok(mox_op_matmul(&ck.exec, &a, NULL), NULL);
}

/* A product marked exact keeps f32 activations whatever the precision of the run. */
static void matmul_exact(void)
{
    ck_label("marked exact");
    const kind k = {CK_Q4, 64};
    const known w = known_mat(k, 9, 256);
    const mox_precision precision = ck.exec.precision;
    mox_matmul_args a = {.w = w.m, .x = ck_random(256, 1), .y = ck_f32(9), .n = 1, .x_stride = 256, .y_stride = 9,
                         .exact = true, .scratch = scratch(1, 256)};
    ck_ok(mox_op_matmul(&ck.exec, &a, NULL), NULL);
    ck.exec.precision = MOX_PRECISION_EXACT; /* what is allowed */
    check_product(&a, &w);
    ck.exec.precision = precision;
}

/* A list gives the bytes of its products one by one: alike, so that they share what is prepared, or the second of another
 * layout, or of another x. */
typedef enum in_list { ALIKE, OTHER_LAYOUT, OTHER_X } in_list;
static void matmul_list_case(kind kd, in_list second, int64_t n, int n_products)
{
    static const int64_t rows[MOX_MATMUL_LIST] = {40, 7, 33, 1};
    const int64_t cols = 256;
    ck_label("a list of %d from %s, %lld tokens%s", n_products, ck_layout_name(kd.layout), (long long)n, second == ALIKE ? "" : second == OTHER_X ? ", of another x" : ", not alike");
    mox_matmul_args together[MOX_MATMUL_LIST];
    const float *x = ck_random(n * cols, 1);
    void *shared = scratch(n, cols);
    for (int i = 0; i < n_products; i++) {
        const kind own = i == 1 && second == OTHER_LAYOUT ? (kind){CK_BF16, 1} : kd;
        const float *own_x = i == 1 && second == OTHER_X ? ck_random(n * cols, 1) : x;
        together[i] = (mox_matmul_args){.w = ck_mat(own.layout, own.group, rows[i], cols), .x = own_x, .y = ck_f32(n * rows[i]), .n = n,
                                        .x_stride = cols, .y_stride = rows[i], .scratch = shared};
    }
    mox_err err;
    ck_ok(mox_op_matmul_list(&ck.exec, together, n_products, &err), &err);
    for (int i = 0; i < n_products; i++) {
        mox_matmul_args alone = together[i];
        alone.y = ck_f32(n * rows[i]);
        alone.scratch = scratch(n, cols);
        ck_ok(mox_op_matmul(&ck.exec, &alone, &err), &err);
        ck_exact(together[i].y, alone.y, n * rows[i] * 4, "y of a list");
    }
    ck_refused(mox_op_matmul_list(&ck.exec, together, MOX_MATMUL_LIST + 1, NULL), MOX_E_ARG);
    together[n_products - 1].y_stride = 0;
    ck_refused(mox_op_matmul_list(&ck.exec, together, n_products, NULL), MOX_E_ARG);
}

static void matmul_tests(void)
{
    static const int64_t outs[] = {1, 7, 8, 9}, ins[] = {64, 128, 4096, 4160, 7168}, ns[] = {1, 2, 5, 33};
    for (int k = 0; k < N_KINDS; k++) {
        for (int i = 0; i < 5; i++) /* every in; out and n go round at different speeds */
            for (int j = 0; j < 2; j++)
                matmul_case(kinds[k], outs[(i + k + 2 * j) % 4], ins[i], ns[(i / 2 + k + j) % 4], j ? 3 : 0, j);
        matmul_case(kinds[k], 1000, 128, 1 + k % 3, 0, false);
        matmul_case(kinds[k], 6, 320, 1, 0, false); /* one token: every order of rows, whole chunks or not */
        matmul_case(kinds[k], 7, 2304, 1, 0, false);
        matmul_case(kinds[k], 19, 192, 6 + k % 4, 0, false); /* as dot products or as tiles */
        matmul_case(kinds[k], 9, 100, 0, 1, true);
        matmul_case(kinds[k], 0, 100, 3, 1, false);
        matmul_case(kinds[k], 5, 0, 3, 2, false);
        matmul_case(kinds[k], 5, 0, 20, 2, false);
        matmul_spike(kinds[k]);
        matmul_views(kinds[k]);
        matmul_list_case(kinds[k], ALIKE, 1 + 4 * (k % 3), 3);
        matmul_list_case(kinds[k], k % 2 == 0 ? OTHER_X : OTHER_LAYOUT, 2, 4);
    }
    matmul_list_case(kinds[0], ALIKE, 20, 1);
    static const int64_t ragged[] = {0, 1, 2, 3, 15, 17, 31, 33, 63, 65, 255, 257, 300};
    for (int i = 0; i < 13; i++)
        for (int k = 0; k < N_KINDS; k++)
            if (kinds[k].layout <= CK_BF16 || kinds[k].layout == CK_FP8)
                matmul_case(kinds[k], 5, ragged[i], 3, 2, i % 2);
    static const int64_t tiles[] = {1, 7, 63, 64, 65};
    for (int i = 0; i < 5; i++) matmul_case((kind){CK_F32, 1}, 33, 97, tiles[i], 0, false);
    matmul_huge();
    matmul_exact();
    matmul_refusals();
    if (!ck.wide) return;
    for (int k = 0; k < N_KINDS; k++) { /* every out with every in, and every block of tokens */
        for (int64_t n = 1; n <= 30; n++) matmul_case(kinds[k], 18, 128, n, 0, false);
        for (int i = 0; i < 5; i++)
            for (int j = 0; j < 4; j++) matmul_case(kinds[k], outs[j], ins[i], ns[(i + j) % 4], 1, true);
        matmul_case(kinds[k], 8, 18432, 3, 0, false);
        matmul_case(kinds[k], 17, 128, 1040, 0, false); /* more than a slab, and than squares keep totals of */
    }
}

/* Planted: y from weights as `edit` returns them. */
typedef float edit_fn(const mox_mat *m, int64_t row, int64_t col, float w);
static float edited_dot(const mox_mat *m, int64_t row, const float *x, edit_fn *edit)
{
    double sum = 0;
    float piece[64];
    for (int64_t c0 = 0; c0 < m->cols; c0 += 64) {
        const int64_t n = m->cols - c0 < 64 ? m->cols - c0 : 64;
        mox_mat_decode(m, row, c0, n, piece);
        for (int64_t i = 0; i < n; i++) sum += (double)edit(m, row, c0 + i, piece[i]) * (double)x[c0 + i];
    }
    return (float)sum;
}
static void edited_matmul(const mox_matmul_args *a, int64_t begin, int64_t end, edit_fn *edit)
{
    for (int64_t r = begin; r < end; r++)
        for (int64_t t = 0; t < a->n; t++) {
            const double bias = a->bias.type ? (double)mox_vec_at(&a->bias, r) : 0;
            a->y[t * a->y_stride + r] = (float)((double)edited_dot(&a->w, r, a->x + t * a->x_stride, edit) + bias);
        }
}

static float one_in_a_thousand(const mox_mat *m, int64_t row, int64_t col, float w)
{
    (void)m, (void)row, (void)col;
    return w * 1.001f;
}
static float without_tail(const mox_mat *m, int64_t row, int64_t col, float w)
{
    (void)row;
    return col < m->cols / 128 * 128 || m->cols < 128 ? w : 0;
}
/* (|scale| - scale) * code is what a lost sign adds. */
static float without_sign(const mox_mat *m, int64_t row, int64_t col, float w)
{
    if (m->layout.kind != MOX_MAT_AFFINE) return w;
    const int64_t g = row * (m->cols / m->layout.group) + col / m->layout.group;
    const float bias = mox_load_as_f32(m->biases, m->layout.scale_type, g);
    return mox_load_as_f32(m->scales, m->layout.scale_type, g) < 0 ? bias - (w - bias) : w;
}
static void matmul_thousandth(const mox_matmul_args *a, int64_t begin, int64_t end)
{
    edited_matmul(a, begin, end, one_in_a_thousand);
}
static void matmul_no_tail(const mox_matmul_args *a, int64_t begin, int64_t end)
{
    edited_matmul(a, begin, end, without_tail);
}
static void matmul_no_sign(const mox_matmul_args *a, int64_t begin, int64_t end)
{
    edited_matmul(a, begin, end, without_sign);
}
static void matmul_no_row0(const mox_matmul_args *a, int64_t begin, int64_t end)
{
    mox_matmul_args b = *a;
    b.w.row0 = 0;
    mox_matmul_ref(&b, begin, end);
}
static void plant_thousandth(mox_kern *k) { k->matmul = matmul_thousandth; }
static void plant_no_tail(mox_kern *k) { k->matmul = matmul_no_tail; }
static void plant_no_sign(mox_kern *k) { k->matmul = matmul_no_sign; }
static void plant_no_row0(mox_kern *k) { k->matmul = matmul_no_row0; }

/* ---- matmul_grouped, gate_up_swiglu ---- */

enum { GROUPS_MAX = 24 };

/* Experts of one shape and of layouts of their own, and pairs that go to them. */
typedef struct experts {
    int64_t n, rows, cols;
    known gate[GROUPS_MAX], up[GROUPS_MAX];
    mox_mat gates[GROUPS_MAX], ups[GROUPS_MAX];
    int64_t offsets[GROUPS_MAX + 1], n_pairs, n_x;
    int32_t *x_row, *y_row;
} experts;

/* What a case has lists of, and whether each of its groups has 5 to 8 pairs. */
enum { WITH_X = 1, WITH_Y = 2, SEVERAL = 4 };

/* first: the kind of expert 0; the others are of the same kind (alike), or take those
 * that follow. */
static experts random_experts(int64_t n, int first, bool alike, int64_t rows, int64_t cols, int64_t n_tokens, int64_t k, bool several, bool two)
{
    experts x = {.n = n, .rows = rows, .cols = cols, .n_pairs = 0, .n_x = n_tokens};
    for (int64_t g = 0; g < n; g++) {
        const kind kd = kinds[(first + (alike ? 0 : g)) % N_KINDS];
        x.gate[g] = known_mat(kd, rows, cols);
        x.gates[g] = x.gate[g].m;
        if (two) x.up[g] = known_mat(alike ? kd : kinds[(first + 5 * g + 1) % N_KINDS], rows, cols);
        x.ups[g] = x.up[g].m;
        const int64_t share = several ? 5 + g % 4 : g % 5 == 2 ? 0 : (int64_t)ck_rand(2u * (uint64_t)(n_tokens * k / n + 1) + 1);
        x.offsets[g] = x.n_pairs;
        x.n_pairs += share;
    }
    x.offsets[n] = x.n_pairs;
    x.x_row = ck_i32(x.n_pairs);
    x.y_row = ck_i32(x.n_pairs);
    for (int64_t p = 0; p < x.n_pairs; p++) {
        x.x_row[p] = (int32_t)ck_rand((uint64_t)n_tokens);
        x.y_row[p] = (int32_t)(x.n_pairs - 1 - p); /* a permutation that is not the identity */
    }
    return x;
}

static void grouped_case(int64_t n, int first, bool alike, int64_t rows, int64_t cols, int64_t n_tokens, int lists)
{
    ck_label("%lld groups from %s, [%lld, %lld], %lld tokens, lists %d", (long long)n,
             ck_layout_name(kinds[first % N_KINDS].layout), (long long)rows, (long long)cols, (long long)n_tokens,
             lists);
    experts e = random_experts(n, first, alike, rows, cols, n_tokens, 3, lists & SEVERAL, false);
    const bool with_x = lists & WITH_X, with_y = lists & WITH_Y;
    mox_matmul_grouped_args a = {.n_groups = n, .w = e.gates, .offsets = e.offsets, .x_stride = cols + 3,
                                 .scratch = scratch(e.n_pairs, cols), .how = level_how(),
                                 .y_stride = rows + 2, .n_x_rows = with_x ? e.n_x : e.n_pairs, .n_y_rows = e.n_pairs};
    a.x_row = with_x ? e.x_row : NULL;
    a.y_row = with_y ? e.y_row : NULL;
    a.x = padded(a.n_x_rows, cols, a.x_stride, 1);
    a.y = ck_f32(a.n_y_rows * a.y_stride);
    mox_err err;
    ck_ok(mox_op_matmul_grouped(&ck.exec, &a, &err), &err);
    double *want = doubles(rows), *allowed = doubles(rows);
    float *alone = ck_f32(rows), *again = ck_f32(a.n_y_rows * a.y_stride);
    for (int64_t g = 0; g < n; g++)
        for (int64_t p = e.offsets[g]; p < e.offsets[g + 1]; p++) {
            const float *x = a.x + (with_x ? e.x_row[p] : p) * a.x_stride;
            const float *y = a.y + (with_y ? e.y_row[p] : p) * a.y_stride;
            for (int64_t r = 0; r < rows; r++) want[r] = dot(&e.gate[g], r, x, &allowed[r]);
            ck_close(y, want, allowed, rows, 1, 0, "y");
            if (!ck.at_ref) continue;
            const mox_matmul_args m = {.w = e.gates[g], .x = x, .y = alone, .n = 1, .x_stride = cols, .y_stride = rows};
            ck_ok(mox_op_matmul(&ck.ref, &m, NULL), NULL);
            ck_exact(y, alone, rows * 4, "y against matmul");
        }
    check_padding(a.y, a.n_y_rows, rows, a.y_stride);
    const float *first_y = a.y;
    a.y = again;
    for (int64_t u = 0; u < n * rows; u++) ck.exec.kern->matmul_grouped(&a, u, u + 1);
    for (int64_t p = 0; p < a.n_y_rows; p++)
        ck_exact(again + p * a.y_stride, first_y + p * a.y_stride, rows * 4, "y, unit by unit");
}

static void grouped_refusals(void)
{
    ck_label("refusals");
    mox_mat w[2] = {ck_mat(CK_Q4, 64, 8, 64), ck_mat(CK_BF16, 1, 8, 64)};
    int64_t offsets[] = {0, 1, 3};
    int32_t x_row[] = {1, 0, 1}, y_row[] = {2, 1, 0};
    float *x = ck_random(3 * 64, 1), *y = ck_f32(3 * 8);
    const mox_matmul_grouped_args good = {.n_groups = 2, .w = w, .offsets = offsets, .x_row = x_row, .y_row = y_row,
                                          .x = x, .y = y, .x_stride = 64, .y_stride = 8, .n_x_rows = 2, .n_y_rows = 3,
                                          .scratch = scratch(3, 64)};
    mox_matmul_grouped_args a = good;
    ck_ok(mox_op_matmul_grouped(&ck.exec, &a, NULL), NULL);
#define REFUSES(change, back) \
    a = good; \
    change; \
    ck_refused(mox_op_matmul_grouped(&ck.exec, &a, NULL), MOX_E_ARG); \
    back
    REFUSES(a.n_groups = -1, );
    REFUSES(a.w = NULL, );
    REFUSES(a.offsets = NULL, );
    REFUSES(a.x = NULL, );
    REFUSES(a.y = NULL, );
    REFUSES(a.x_stride = 63, );
    REFUSES(a.y_stride = 7, );
    REFUSES(a.n_x_rows = 1, );
    REFUSES(a.n_y_rows = 2, );
    REFUSES(a.n_y_rows = -1, );
    REFUSES((a.x_row = NULL), ); /* row p then, and x has only two */
    REFUSES((a.y_row = NULL, a.n_y_rows = 2), );
    REFUSES(x_row[2] = -1, x_row[2] = 1);
    REFUSES(y_row[0] = 3, y_row[0] = 2);
    REFUSES(offsets[0] = 1, offsets[0] = 0);
    REFUSES(offsets[1] = 4, offsets[1] = 1);
    REFUSES(w[1].rows = 7, w[1].rows = 8);
    REFUSES(w[1].cols = 32, w[1].cols = 64);
    REFUSES(w[0].layout.bits = 1, w[0].layout.bits = 4);
#undef REFUSES
    a = (mox_matmul_grouped_args){0};
    ck_ok(mox_op_matmul_grouped(&ck.exec, &a, NULL), NULL);
}

static void matmul_grouped_tests(void)
{
    for (int k = 0; k < N_KINDS; k++) grouped_case(4, k, true, 19, 256, 9, SEVERAL | WITH_X | (k % 2 ? WITH_Y : 0));
    for (int k = 0; k < N_KINDS; k += 3) {
        grouped_case(1, k, false, 9, 384, 5, k % 4);
        grouped_case(4, k, false, 17, 128, 7, (k + 1) % 4);
    }
    for (int k = 0; k < N_KINDS; k++) grouped_case(5, k, true, 19, 256, 20, k % 4);
    for (int lists = 0; lists < 4; lists++) grouped_case(20, lists * 5, false, 11, 256, 12, lists); /* more than 8, than 16 */
    grouped_case(1, 10, true, 8, 4224, 40, 3);
    grouped_case(0, 0, true, 8, 128, 3, 3);
    grouped_refusals();
}

/* Experts past the eighth fall through to it. */
static void grouped_eight(const mox_matmul_grouped_args *a, int64_t begin, int64_t end)
{
    mox_mat w[GROUPS_MAX];
    for (int64_t g = 0; g < a->n_groups; g++) w[g] = a->w[g < 8 ? g : 7];
    mox_matmul_grouped_args b = *a;
    b.w = w;
    mox_matmul_grouped_ref(&b, begin, end);
}
static void grouped_no_scatter(const mox_matmul_grouped_args *a, int64_t begin, int64_t end)
{
    mox_matmul_grouped_args b = *a;
    b.y_row = NULL;
    mox_matmul_grouped_ref(&b, begin, end);
}
/* Eight rows at a time; those left over are forgotten. */
static void grouped_row_tail(const mox_matmul_grouped_args *a, int64_t begin, int64_t end)
{
    for (int64_t u = begin; u < end; u++)
        if (u % a->w[0].rows < a->w[0].rows / 8 * 8) mox_matmul_grouped_ref(a, u, u + 1);
}
static void plant_grouped_eight(mox_kern *k) { k->matmul_grouped = grouped_eight; }
static void plant_grouped_no_scatter(mox_kern *k) { k->matmul_grouped = grouped_no_scatter; }
static void plant_grouped_row_tail(mox_kern *k) { k->matmul_grouped = grouped_row_tail; }

static void gate_up_case(int64_t n, int first, bool alike, int64_t rows, int64_t cols, int64_t n_tokens, int lists)
{
    ck_label("%lld groups from %s, [%lld, %lld], %lld tokens, lists %d", (long long)n,
             ck_layout_name(kinds[first % N_KINDS].layout), (long long)rows, (long long)cols, (long long)n_tokens,
             lists);
    experts e = random_experts(n, first, alike, rows, cols, n_tokens, 3, lists & SEVERAL, true);
    const bool with_x = lists & WITH_X, with_y = lists & WITH_Y;
    mox_gate_up_swiglu_args a = {.n_groups = n, .gate = e.gates, .up = e.ups, .offsets = e.offsets,
                                 .scratch = scratch(e.n_pairs, cols), .how = level_how(),
                                 .x_stride = cols + 1, .y_stride = rows + 4,
                                 .n_x_rows = with_x ? e.n_x : e.n_pairs, .n_y_rows = e.n_pairs};
    a.x_row = with_x ? e.x_row : NULL;
    a.y_row = with_y ? e.y_row : NULL;
    a.x = padded(a.n_x_rows, cols, a.x_stride, 0.3f);
    a.y = ck_f32(a.n_y_rows * a.y_stride);
    mox_err err;
    ck_ok(mox_op_gate_up_swiglu(&ck.exec, &a, &err), &err);
    double *want = doubles(rows), *allowed = doubles(rows);
    for (int64_t g = 0; g < n; g++)
        for (int64_t p = e.offsets[g]; p < e.offsets[g + 1]; p++) {
            const float *x = a.x + (with_x ? e.x_row[p] : p) * a.x_stride;
            for (int64_t r = 0; r < rows; r++) {
                double gate_off, up_off;
                const double gate = dot(&e.gate[g], r, x, &gate_off), up = dot(&e.up[g], r, x, &up_off);
                want[r] = silu(gate) * up; /* silu is nowhere steeper than 1.1 */
                allowed[r] = 1.1 * gate_off * fabs(up) + fabs(silu(gate)) * up_off + 5e-6 * fabs(want[r]) + 1e-7;
            }
            ck_close(a.y + (with_y ? e.y_row[p] : p) * a.y_stride, want, allowed, rows, 1, 0, "y");
        }
    check_padding(a.y, a.n_y_rows, rows, a.y_stride);
}

/* On the reference: the bytes of two matmuls and a swiglu. */
static void gate_up_composed(void)
{
    ck_label("against matmul and swiglu");
    const int64_t rows = 19, cols = 192, n = 6;
    const mox_mat gate = ck_mat(CK_Q4, 64, rows, cols), up = ck_mat(CK_Q8, 64, rows, cols);
    const int64_t offsets[] = {0, n};
    float *x = ck_random(n * cols, 1), *y = ck_f32(n * rows), *g = ck_f32(n * rows), *u = ck_f32(n * rows);
    const mox_gate_up_swiglu_args a = {.n_groups = 1, .gate = &gate, .up = &up, .offsets = offsets, .x = x, .y = y,
                                       .x_stride = cols, .y_stride = rows, .n_x_rows = n, .n_y_rows = n,
                                       .scratch = scratch(n, cols)};
    ck_ok(mox_op_gate_up_swiglu(&ck.exec, &a, NULL), NULL);
    mox_matmul_args m = {.w = gate, .x = x, .y = g, .n = n, .x_stride = cols, .y_stride = rows};
    ck_ok(mox_op_matmul(&ck.ref, &m, NULL), NULL);
    m.w = up;
    m.y = u;
    ck_ok(mox_op_matmul(&ck.ref, &m, NULL), NULL);
    ck_ok(mox_op_swiglu(&ck.ref, &(mox_swiglu_args){g, u, g, n, rows, rows, rows, rows}, NULL), NULL);
    if (ck.at_ref) ck_exact(y, g, n * rows * 4, "y");
}

static void gate_up_refusals(void)
{
    ck_label("refusals");
    mox_mat gate = ck_mat(CK_Q4, 64, 8, 64), up = ck_mat(CK_BF16, 1, 8, 64);
    int64_t offsets[] = {0, 2};
    float *x = ck_random(2 * 64, 1), *y = ck_f32(2 * 8);
    const mox_gate_up_swiglu_args good = {.n_groups = 1, .gate = &gate, .up = &up, .offsets = offsets, .x = x, .y = y,
                                          .x_stride = 64, .y_stride = 8, .n_x_rows = 2, .n_y_rows = 2,
                                          .scratch = scratch(2, 64)};
    mox_gate_up_swiglu_args a = good;
    ck_ok(mox_op_gate_up_swiglu(&ck.exec, &a, NULL), NULL);
#define REFUSES(change, back) \
    a = good; \
    change; \
    ck_refused(mox_op_gate_up_swiglu(&ck.exec, &a, NULL), MOX_E_ARG); \
    back
    REFUSES(a.n_groups = -1, );
    REFUSES(a.gate = NULL, );
    REFUSES(a.up = NULL, );
    REFUSES(a.offsets = NULL, );
    REFUSES(a.x = NULL, );
    REFUSES(a.y = NULL, );
    REFUSES(a.x_stride = 1, );
    REFUSES(a.y_stride = 1, );
    REFUSES(a.n_x_rows = 1, );
    REFUSES(a.n_y_rows = 1, );
    REFUSES(up.rows = 7, up.rows = 8);
    REFUSES(up.cols = 63, up.cols = 64);
    REFUSES(up.w = NULL, up.w = gate.w);
    REFUSES(offsets[0] = 1, offsets[0] = 0);
    REFUSES(offsets[1] = -1, offsets[1] = 2);
#undef REFUSES
    a = (mox_gate_up_swiglu_args){0};
    ck_ok(mox_op_gate_up_swiglu(&ck.exec, &a, NULL), NULL);
}

static void gate_up_swiglu_tests(void)
{
    for (int k = 0; k < N_KINDS; k++) gate_up_case(4, k, true, 19, 256, 9, SEVERAL | WITH_X | (k % 2 ? WITH_Y : 0));
    for (int k = 0; k < N_KINDS; k += 3) {
        gate_up_case(1, k, false, 9, 384, 5, k % 4);
        gate_up_case(4, k, false, 17, 128, 7, (k + 1) % 4);
        gate_up_case(5, k, true, 19, 256, 20, (k + 2) % 4);
        gate_up_case(12, k, true, 19, 256, 4, 1 + 2 * (k % 2)); /* one or two tokens for each, which read what is prepared once */
    }
    for (int lists = 0; lists < 4; lists++) gate_up_case(20, lists * 5, false, 11, 256, 12, lists);
    gate_up_case(0, 0, true, 8, 128, 3, 3);
    gate_up_composed();
    gate_up_refusals();
}

static void gate_up_swapped(const mox_gate_up_swiglu_args *a, int64_t begin, int64_t end)
{
    mox_gate_up_swiglu_args b = *a;
    b.gate = a->up;
    b.up = a->gate;
    mox_gate_up_swiglu_ref(&b, begin, end);
}
/* The list of tokens is not read: pair after pair takes token after token. */
static void gate_up_no_gather(const mox_gate_up_swiglu_args *a, int64_t begin, int64_t end)
{
    enum { PAIRS_MAX = 512 };
    int32_t rows[PAIRS_MAX];
    for (int p = 0; p < PAIRS_MAX; p++) rows[p] = (int32_t)(a->n_x_rows > 0 ? p % a->n_x_rows : 0);
    mox_gate_up_swiglu_args b = *a;
    b.x_row = rows;
    mox_gate_up_swiglu_ref(&b, begin, end);
}
static void plant_gate_up_swapped(mox_kern *k) { k->gate_up_swiglu = gate_up_swapped; }
static void plant_gate_up_no_gather(mox_kern *k) { k->gate_up_swiglu = gate_up_no_gather; }

/* ---- embed ---- */

static void embed_case(kind k, int64_t rows, int64_t cols, int64_t n, int64_t pad)
{
    cols = fit(k, cols);
    ck_label("%s group %d, [%lld, %lld], n %lld", ck_layout_name(k.layout), k.group, (long long)rows, (long long)cols,
             (long long)n);
    const known table = known_mat(k, rows, cols);
    int32_t *ids = ck_i32(n);
    float *out = ck_f32(n * (cols + pad)), *exact = ck_f32(cols);
    for (int64_t t = 0; t < n; t++) ids[t] = (int32_t)(t == 0 ? rows - 1 : (int64_t)ck_rand((uint64_t)rows));
    const mox_embed_args a = {table.m, ids, out, n, cols + pad};
    mox_err err;
    ck_ok(mox_op_embed(&ck.exec, &a, &err), &err);
    for (int64_t t = 0; t < n; t++) {
        const float *got = out + t * (cols + pad);
        const int64_t row = ids[t] * cols;
        /* The sum of product and bias may cancel: the allowance is of the terms. */
        ck_close(got, table.value + row, table.mag + row, cols, 2e-7, 0, "out");
        if (k.layout > CK_BF16) continue;
        for (int64_t c = 0; c < cols; c++) exact[c] = (float)table.value[row + c];
        ck_exact(got, exact, cols * 4, "out");
    }
    check_padding(out, n, cols, cols + pad);
}

static void embed_huge(void)
{
    ck_label("more than 2^32 elements");
    const int64_t cols = 4096, rows = (int64_t)huge_bytes / cols; /* one byte each */
    uint8_t *p = huge_map();
    if (!p) return;
    p[(rows - 1) * cols + 77] = 0x38; /* 1.0 */
    const uint8_t scale = 128;        /* 2 */
    const mox_mat table = {.layout = {.kind = MOX_MAT_FP8, .scale_type = MOX_DT_F8_E8M0, .block_rows = INT32_MAX,
                                      .block_cols = INT32_MAX},
                           .rows = rows, .cols = cols, .w = p, .scales = &scale};
    const int32_t id = (int32_t)(rows - 1);
    float *out = ck_f32(cols);
    ck_ok(mox_op_embed(&ck.exec, &(mox_embed_args){table, &id, out, 1, cols}, NULL), NULL);
    munmap(p, huge_bytes);
    ck_true(out[77] == 2.0f && out[76] == 0.0f, "the last row of a large table");
}

static void embed_refusals(void)
{
    ck_label("refusals");
    int32_t ids[] = {0, 9, 3};
    float *out = ck_f32(3 * 64);
    const mox_embed_args good = {ck_mat(CK_Q4, 64, 10, 64), ids, out, 3, 64};
    mox_embed_args a;
#define REFUSES(change) \
    a = good; \
    change; \
    ck_refused(mox_op_embed(&ck.exec, &a, NULL), MOX_E_ARG)
    REFUSES(a.ids = NULL);
    REFUSES(a.out = NULL);
    REFUSES(a.n = -1);
    REFUSES(a.out_stride = 63);
    REFUSES((a.n = too_many, a.out_stride = too_many));
    REFUSES(a.table.w = NULL);
    REFUSES(a.table.layout.group = 7);
    REFUSES(ids[2] = 10); /* one past the end */
    REFUSES(ids[2] = -1);
#undef REFUSES
    for (int i = 0; i < 3 * 64; i++) ck_true(isnan(out[i]), "a refused call has written");
    a = good;
    a.n = 0;
    ck_ok(mox_op_embed(&ck.exec, &a, NULL), NULL);
}

static void test_embed(void)
{
    static const int64_t ns[] = {0, 1, 2, 33};
    for (int k = 0; k < N_KINDS; k++)
        for (int i = 0; i < 4; i++) embed_case(kinds[k], 37, 100 + 60 * i, ns[i], i);
    embed_huge();
    embed_refusals();
}

static void embed_next_scale(const mox_embed_args *a, int64_t begin, int64_t end)
{
    mox_embed_ref(a, begin, end);
    if (a->table.layout.kind != MOX_MAT_AFFINE) return;
    mox_embed_args b = *a; /* the last group of a row takes the scale of the one before it */
    const int64_t group = a->table.layout.group, last = a->table.cols - group;
    if (last < group) return;
    b.table.scales -= mox_dtype_bytes(a->table.layout.scale_type);
    for (int64_t t = begin; t < end; t++)
        mox_mat_decode(&b.table, a->ids[t], last, group, a->out + t * a->out_stride + last);
}
static void embed_row_32(const mox_embed_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        const uint32_t offset = (uint32_t)a->ids[t] * (uint32_t)a->table.cols; /* wraps */
        mox_mat_decode(&a->table, offset / a->table.cols, 0, a->table.cols, a->out + t * a->out_stride);
    }
}
static void plant_embed_scale(mox_kern *k) { k->embed = embed_next_scale; }
static void plant_embed_row_32(mox_kern *k) { k->embed = embed_row_32; }

/* ---- bench ---- */

static void run_matmul(void *user) { (void)mox_op_matmul(&ck.exec, user, NULL); }

static void bench_matmul(void)
{
    static const ck_layout layouts[] = {CK_BF16, CK_Q4, CK_Q8, CK_FP8};
    const int64_t rows = 2048, cols = 2048;
    for (int i = 0; i < 4; i++)
        for (int64_t n = 1; n <= 16; n *= 16) {
            mox_matmul_args a = {.w = ck_mat(layouts[i], 64, rows, cols), .x = ck_random(n * cols, 1),
                                 .y = ck_f32(n * rows), .n = n, .x_stride = cols, .y_stride = rows,
                                 .scratch = scratch(n, cols)};
            char name[64];
            (void)snprintf(name, sizeof name, "matmul %s 2048 x 2048, n %d", ck_layout_name(layouts[i]), (int)n);
            const double bytes = (double)(rows * (mox_mat_row_bytes(&a.w.layout, cols) +
                                                  2 * mox_mat_scale_row_bytes(&a.w.layout, cols)));
            ck_bench(name, bytes, 2.0 * (double)(n * rows * cols), run_matmul, &a);
        }
}

/* Products at every precision; the reference has only one. */
static void at_every_precision(void (*tests)(void))
{
    static const mox_precision all[] = {MOX_PRECISION_EXACT, MOX_PRECISION_DEFAULT, MOX_PRECISION_FAST};
    for (int i = 0; i < (ck.at_ref || ck.on_device ? 1 : 3); i++) {
        ck.exec.precision = all[i];
        tests();
    }
}
static void test_matmul(void) { at_every_precision(matmul_tests); }
/* And with what another processor prefers. */
static void with_each_preference(void (*tests)(void))
{
    const mox_kern *own = ck.exec.kern;
    mox_kern other = *own;
    at_every_precision(tests);
    if (ck.at_ref || ck.on_device) return;
    other.by_rows = !other.by_rows;
    other.stripes = !other.stripes;
    ck.exec.kern = &other;
    at_every_precision(tests);
    ck.exec.kern = own;
}
static void test_matmul_grouped(void) { with_each_preference(matmul_grouped_tests); }
static void test_gate_up_swiglu(void) { with_each_preference(gate_up_swiglu_tests); }

CK_RUN(embed)

static void bench_embed(void)
{
    static const ck_layout layouts[] = {CK_BF16, CK_Q4, CK_Q6, CK_Q8};
    const int64_t rows = 1024, cols = 2048;
    for (int i = 0; i < 4; i++)
        for (int64_t n = 1; n <= 512; n *= 512) {
            int32_t *ids = ck_i32(n);
            for (int64_t t = 0; t < n; t++) ids[t] = (int32_t)ck_rand((uint64_t)rows);
            mox_embed_args a = {ck_mat(layouts[i], 64, rows, cols), ids, ck_f32(n * cols), n, cols};
            char name[40];
            (void)snprintf(name, sizeof name, "embed %s", ck_layout_name(layouts[i]));
            ck_bench(ck_tokens(name, n), (double)(n * (cols * 4 + mox_mat_row_bytes(&a.table.layout, cols))), 0, run_embed, &a);
        }
}

const ck_op ck_ops_matmul[] = {
    {"matmul", test_matmul, {plant_thousandth, plant_no_tail, plant_no_sign, plant_no_row0}, bench_matmul},
    {"matmul_grouped",
     test_matmul_grouped,
     {plant_grouped_eight, plant_grouped_no_scatter, plant_grouped_row_tail},
     NULL},
    {"gate_up_swiglu", test_gate_up_swiglu, {plant_gate_up_swapped, plant_gate_up_no_gather}, NULL},
    {"embed", test_embed, {plant_embed_scale, plant_embed_row_32}, bench_embed},
    {.name = NULL},
};
