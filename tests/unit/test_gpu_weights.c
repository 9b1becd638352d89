/* tests/unit/test_gpu_weights.c -- GPU kernels that read weights, against products in double over what mox_mat_decode gives.
 *
 * Each kernel is also run with something slightly wrong, which the comparison must notice. */
#include "gpu_mat_kit.h"

/* ---- matvec ---- */

static bool product_right(const both_mat *m, mox_gpu_matvec p, const float *x, int64_t heads, const mox_vec *bias, bool drop_tail)
{
    const int64_t n_y = p.n * p.y_stride;
    float *want = floats(n_y), *given = floats(p.n * p.x_stride);
    double *mag = doubles(n_y);
    memset(mag, 0, (size_t)n_y * sizeof *mag);
    memcpy(given, x, (size_t)(p.n * p.x_stride) * 4);
    for (int64_t t = 0; t < p.n && drop_tail; t++) memset(given + t * p.x_stride + m->host.cols - 8, 0, 8 * sizeof *given);
    p.x = upload_f32(given, p.n * p.x_stride);
    p.y = device_f32(n_y);
    for (int64_t t = 0; t < p.n; t++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t r = 0; r < p.rows; r++) {
                const int64_t at = t * p.y_stride + h * p.y_head_stride + r;
                double y = dot(m, h * p.head_rows + p.first_row + r, x + t * p.x_stride + h * p.x_head_stride, &mag[at]);
                if (bias->type != MOX_DT_NONE) {
                    y += (double)mox_vec_at(bias, r);
                    mag[at] += fabs((double)mox_vec_at(bias, r));
                }
                want[at] = (float)y;
            }
    launch(MOX_GPU_KERNEL_matvec, over(p.rows, MOX_GPU_MATVEC_ROWS), over(p.n, MOX_GPU_MATVEC_TOKENS), heads, &p);
    return within(download_f32(p.y, n_y), want, mag, n_y, 1e-5, 1e-7); /* class D; what is between rows stays NaN */
}

static void test_matvec(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 7, 9}, cols[] = {33, 300}, tokens[] = {1, 3, 5};
    for (int k = 0; k < N_KINDS; k++)
        for (int s = 0; s < 3; s++) {
            kit_end(NULL);
            const both_mat m = random_mat(kinds[k], rows[s], fit(kinds[k], cols[(s + k) % 2]));
            const both_vec bias = random_vec(s == 1 ? MOX_DT_BF16 : MOX_DT_NONE, rows[s], -1, 1);
            const mox_gpu_matvec p = {.w = m.device, .n = tokens[(s + k) % 3], .rows = rows[s], .x_stride = m.host.cols + 1,
                                      .y_stride = rows[s] + 2, .bias = bias.device};
            const float *x = randoms(p.n * p.x_stride, 1);
            if (!product_right(&m, p, x, 1, &bias.host, false)) fail_msg("kind %d, %lld rows", k, (long long)rows[s]);
            assert_false(product_right(&m, p, x, 1, &bias.host, true));
        }
}

/* The products of latent attention: every head has rows and a vector of its own. */
static void test_matvec_by_heads(void **state)
{
    (void)state;
    enum { HEADS = 3, ROWS = 10, HEAD_ROWS = 17, FIRST = 7, COLS = 64, N = 5 };
    const both_mat m = random_mat(kinds[8], HEADS * HEAD_ROWS, COLS);
    const mox_gpu_matvec p = {.w = m.device, .n = N, .rows = ROWS, .head_rows = HEAD_ROWS, .first_row = FIRST,
                              .x_stride = HEADS * COLS, .x_head_stride = COLS, .y_stride = HEADS * ROWS, .y_head_stride = ROWS};
    const float *x = randoms(N * HEADS * COLS, 1);
    const mox_vec none = {0};
    assert_true(product_right(&m, p, x, HEADS, &none, false));
    assert_false(product_right(&m, p, x, HEADS, &none, true));
}

/* A token gives the same bytes alone and among others. */
static void test_tokens_are_independent(void **state)
{
    (void)state;
    enum { ROWS = 11, N = 6 };
    const both_mat m = random_mat(kinds[10], ROWS, 448);
    const float *x = upload_f32(randoms(N * 448, 1), N * 448);
    mox_gpu_matvec p = {.w = m.device, .x = x, .y = device_f32(N * ROWS), .n = N, .rows = ROWS, .x_stride = 448, .y_stride = ROWS};
    launch(MOX_GPU_KERNEL_matvec, 2, 2, 1, &p);
    const float *all = download_f32(p.y, N * ROWS);
    p.n = 1;
    for (int t = 0; t < N; t++) {
        p.x = x + t * 448;
        launch(MOX_GPU_KERNEL_matvec, 2, 1, 1, &p);
        assert_memory_equal(download_f32(p.y, ROWS), all + t * ROWS, ROWS * 4);
    }
}

/* ---- experts ---- */

enum { EXPERTS = 4, SLOTS = 2, N_TOKENS = 7, PAIRS = N_TOKENS * SLOTS, DIM = 96, WIDTH = 64 };
static const int32_t chosen[PAIRS] = {0, 3, 3, 0, 0, 1, 3, 1, 0, 3, 3, 1, 0, 3}; /* nobody takes 2 */

static bool experts_right(const both_mat *gate, const both_mat *up, const both_mat *down, const float *x, bool wrong)
{
    mox_gpu_mat gates[EXPERTS], ups[EXPERTS], downs[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) {
        gates[e] = gate[e].device;
        ups[e] = up[e].device;
        downs[e] = down[e].device;
    }
    int32_t *ids = upload(chosen, sizeof chosen);
    mox_gpu_moe_bucket b = {.ids = ids, .offsets = upload((const int64_t[EXPERTS + 1]){0}, 8 * (EXPERTS + 1)),
                            .pairs = upload(chosen, sizeof chosen), .n_pairs = PAIRS, .n_experts = EXPERTS};
    launch(MOX_GPU_KERNEL_moe_bucket, 1, 1, 1, &b);
    float *mid = device_f32(PAIRS * WIDTH), *rows = device_f32(PAIRS * DIM);
    const mox_gpu_experts_gate_up g = {.gate = upload(gates, sizeof gates), .up = upload(ups, sizeof ups), .offsets = b.offsets,
                                       .x_row = b.pairs, .x = upload_f32(x, N_TOKENS * DIM), .y = mid, .rows = WIDTH,
                                       .x_stride = DIM, .y_stride = WIDTH, .x_divisor = wrong ? 1 + SLOTS : SLOTS};
    launch(MOX_GPU_KERNEL_experts_gate_up, over(WIDTH, MOX_GPU_MATVEC_ROWS), 1, EXPERTS, &g);
    const mox_gpu_experts_down d = {.gate = upload(downs, sizeof downs), .offsets = b.offsets, .y_row = b.pairs, .x = mid, .y = rows,
                                    .rows = DIM, .x_stride = WIDTH, .y_stride = DIM, .x_divisor = 1};
    launch(MOX_GPU_KERNEL_experts_down, over(DIM, MOX_GPU_MATVEC_ROWS), 1, EXPERTS, &d);
    float *want = floats(PAIRS * DIM);
    double *mag = doubles(PAIRS * DIM), unused;
    float inner[WIDTH];
    for (int p = 0; p < PAIRS; p++) {
        const float *row = x + p / SLOTS * DIM;
        for (int r = 0; r < WIDTH; r++) {
            const double v = dot(&gate[chosen[p]], r, row, &unused);
            inner[r] = (float)(v / (1 + exp(-v)) * dot(&up[chosen[p]], r, row, &unused));
        }
        for (int r = 0; r < DIM; r++) want[p * DIM + r] = (float)dot(&down[chosen[p]], r, inner, &mag[p * DIM + r]);
    }
    return within(download_f32(rows, PAIRS * DIM), want, mag, PAIRS * DIM, 2e-5, 1e-6); /* two products: twice class D */
}

static void test_experts(void **state)
{
    (void)state;
    both_mat gate[EXPERTS], up[EXPERTS], down[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) {
        gate[e] = random_mat(kinds[e == 1 ? 12 : 7], WIDTH, DIM); /* layouts may differ */
        up[e] = random_mat(kinds[7], WIDTH, DIM);
        down[e] = random_mat(kinds[e == 3 ? 14 : 8], DIM, WIDTH);
    }
    const float *x = randoms(N_TOKENS * DIM, 1);
    assert_true(experts_right(gate, up, down, x, false));
    assert_false(experts_right(gate, up, down, x, true));
}

/* ---- four bits on matrix units ---- */

static bool four_right(const both_mat *m, const float *x, int64_t n, const both_vec *bias, double class, int64_t skip)
{
    const int64_t rows = m->host.rows, cols = m->host.cols;
    const mox_gpu_matvec4 p = {.w = m->device, .x = upload_f32(x + skip, n * cols), .y = device_f32(n * (rows + 1)),
                               .x_stride = cols, .y_stride = rows + 1, .bias = bias->device};
    float *want = floats(n * (rows + 1));
    double *mag = doubles(n * (rows + 1)), unused;
    const float *bounds = four_bounds(x, n * cols);
    for (int64_t i = 0; i < n * (rows + 1); i++) {
        const int64_t t = i / (rows + 1), r = i % (rows + 1);
        mag[i] = 0;
        if (r == rows) continue;
        (void)dot(m, r, bounds + t * cols, &mag[i]);
        want[i] = (float)(dot(m, r, x + t * cols, &unused) + (bias->host.type == MOX_DT_NONE ? 0 : (double)mox_vec_at(&bias->host, r)));
    }
    launch(MOX_GPU_KERNEL_matvec4, over(rows, 16), n, 1, &p);
    mox_gpu_matvec4_tall tall = p;
    tall.y = device_f32(n * (rows + 1));
    launch(MOX_GPU_KERNEL_matvec4_tall, over(rows, MOX_GPU_FOUR_TALL), n, 1, &tall);
    mox_gpu_matvec4_two two = p; /* and what is added */
    const float *other = randoms(n * (rows + 1), 1);
    two.y = device_f32(n * (rows + 1));
    two.with = two.sum = upload_f32(other, n * (rows + 1));
    launch(MOX_GPU_KERNEL_matvec4_two, over(rows, MOX_GPU_FOUR_TWO), n, 1, &two);
    const bool right = within(download_f32(p.y, n * (rows + 1)), want, mag, n * (rows + 1), class, 1e-7);
    const float *made = download_f32(two.y, n * (rows + 1)), *sums = download_f32(two.sum, n * (rows + 1));
    assert_memory_equal(made, download_f32(p.y, n * (rows + 1)), (size_t)(n * (rows + 1)) * sizeof *made); /* which one the host takes may depend on time */
    for (int64_t i = 0; i < n * (rows + 1); i++) { /* there is a number behind each row */
        const float sum = i % (rows + 1) == rows ? other[i] : other[i] + made[i];
        assert_true(sums[i] == sum || (isnan(sums[i]) && isnan(sum)));
    }
    assert_int_equal(within(download_f32(tall.y, n * (rows + 1)), want, mag, n * (rows + 1), class, 1e-7), right);
    return right;
}

static void test_four(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{16, 256}, {5, 512}, {33, 2304}};
    for (int s = 0; s < 3; s++) {
        kit_end(NULL);
        const both_mat m = four_mat(shapes[s][0], shapes[s][1]);
        const both_vec bias = random_vec(s == 1 ? MOX_DT_BF16 : MOX_DT_NONE, shapes[s][0], -1, 1);
        const int64_t n = s == 1 ? 2 : 1;
        const float *x = activations(n * shapes[s][1] + 1, s == 2 ? 1e30f : 1);
        assert_true(four_right(&m, x, n, &bias, 1e-6, 0));
        assert_false(four_right(&m, x, n, &bias, 1e-6, 1)); /* x begins one later */
    }
    const both_mat m = four_mat(16, 256); /* what is nothing, and what is not finite */
    const both_vec none = random_vec(MOX_DT_NONE, 0, 0, 0);
    float *x = floats(257);
    memset(x, 0, 257 * sizeof *x);
    assert_true(four_right(&m, x, 1, &none, 1e-6, 0));
    x[100] = 1e-38f;
    assert_true(four_right(&m, x, 1, &none, 1e-6, 0));
    const mox_gpu_matvec4 p = {.w = m.device, .y = device_f32(16), .x_stride = 256, .y_stride = 16};
    for (int i = 0; i < 2; i++) {
        x[100] = i ? INFINITY : NAN;
        mox_gpu_matvec4 q = p;
        q.x = upload_f32(x, 256);
        launch(MOX_GPU_KERNEL_matvec4, 1, 1, 1, &q);
        const float *y = download_f32(q.y, 16);
        for (int r = 0; r < 16; r++) assert_false(isfinite(y[r]) != 0);
    }
}

/* Queries, keys and values in one launch: the bytes of three. */
static void test_four_three(void **state)
{
    (void)state;
    enum { COLS = 512, N = 2 };
    static const int64_t rows[] = {40, 16, 5};
    both_mat m[3];
    both_vec bias[3];
    float *y[3];
    const float *x = upload_f32(activations(N * COLS, 1), N * COLS);
    for (int i = 0; i < 3; i++) {
        m[i] = four_mat(rows[i], COLS);
        bias[i] = random_vec(i == 1 ? MOX_DT_F32 : MOX_DT_NONE, rows[i], -1, 1);
        y[i] = device_f32(N * rows[i]);
    }
    const mox_gpu_project4 p = {.w0 = m[0].device, .w1 = m[1].device, .w2 = m[2].device, .bias0 = bias[0].device,
                                .bias1 = bias[1].device, .bias2 = bias[2].device, .y0 = y[0], .y1 = y[1], .y2 = y[2], .x = x,
                                .x_stride = COLS};
    launch(MOX_GPU_KERNEL_project4, 1 + 1 + 1, N, 1, &p);
    for (int i = 0; i < 3; i++) {
        const mox_gpu_matvec4 one = {.w = m[i].device, .x = x, .y = device_f32(N * rows[i]), .x_stride = COLS,
                                     .y_stride = rows[i], .bias = bias[i].device};
        launch(MOX_GPU_KERNEL_matvec4, over(rows[i], 16), N, 1, &one);
        assert_memory_equal(download(y[i], N * rows[i] * 4), download(one.y, N * rows[i] * 4), (size_t)(N * rows[i]) * 4);
    }
}

/* ---- routers ---- */

static bool rowwise_right(const both_mat *m, const float *x, int64_t n, const both_vec *bias, int64_t fewer)
{
    const int64_t rows = m->host.rows, cols = m->host.cols;
    mox_gpu_matvec_row p = {.rehearse = 1, .w = m->device, .x = upload_f32(x, n * cols), .y = device_f32(n * rows),
                            .x_stride = cols, .y_stride = rows, .bias = bias->device};
    float *want = floats(n * rows);
    double *mag = doubles(n * rows);
    for (int64_t i = 0; i < n * rows; i++)
        want[i] = (float)(dot(m, i % rows, x + i / rows * cols, &mag[i]) +
                          (bias->host.type == MOX_DT_NONE ? 0 : (double)mox_vec_at(&bias->host, i % rows)));
    p.w.cols -= fewer;
    launch(MOX_GPU_KERNEL_matvec_row, rows, n, 1, &p);
    return within(download_f32(p.y, n * rows), want, mag, n * rows, 1e-6, 1e-7);
}

static void test_rowwise(void **state)
{
    (void)state;
    static const int64_t cols[] = {64, 2048, 4160};
    int n_kinds = 0;
    for (size_t s = 0; s < 3 * sizeof kinds / sizeof *kinds; s++) {
        const kind k = kinds[s / 3];
        if (k.kind != MOX_MAT_BF16 && k.kind != MOX_MAT_F16 && (k.kind != MOX_MAT_AFFINE || k.bits != 8)) continue;
        both_mat m = random_mat(k, 5, fit(k, cols[s % 3]));
        assert_false(mox_gpu_mat_is_rowwise(&m.device)); /* at an odd address */
        m.device.w = upload(m.host.w, m.host.rows * m.device.row_bytes);
        assert_true(mox_gpu_mat_is_rowwise(&m.device));
        n_kinds += s % 3 == 0;
        const both_vec bias = random_vec(s % 3 == 1 ? MOX_DT_BF16 : MOX_DT_NONE, 5, -1, 1);
        const float *x = randoms(3 * m.host.cols, 1);
        assert_true(rowwise_right(&m, x, 3, &bias, 0));
        assert_false(rowwise_right(&m, x, 3, &bias, 8));
    }
    assert_true(n_kinds >= 3);
}

/* The norm in front, which one more group stores: gains of every type, at a multiple of 16 bytes. */
static void check_row_normed(mox_dtype type, int64_t cols)
{
    enum { ROWS = 5, N = 2 };
    both_mat m = random_mat((kind){.kind = MOX_MAT_BF16}, ROWS, cols);
    m.device.w = upload(m.host.w, ROWS * m.device.row_bytes);
    both_vec gain = random_vec(type, cols, 0.5f, 1.5f);
    gain.device.data = type == MOX_DT_NONE ? NULL : upload(gain.host.data, cols * mox_dtype_bytes(type));
    const float *x = randoms(N * cols, 3);
    float *normed = floats(N * cols), *want = floats(N * ROWS);
    double *mag = doubles(N * ROWS);
    for (int64_t t = 0; t < N; t++) {
        double sum = 0;
        for (int64_t i = 0; i < cols; i++) sum += (double)x[t * cols + i] * (double)x[t * cols + i];
        for (int64_t i = 0; i < cols; i++)
            normed[t * cols + i] = (float)((double)x[t * cols + i] / sqrt(sum / (double)cols + 0.1) *
                                           (type == MOX_DT_NONE ? 1 : (double)mox_vec_at(&gain.host, i) + 0.25));
    }
    for (int64_t i = 0; i < N * ROWS; i++) want[i] = (float)dot(&m, i % ROWS, normed + i / ROWS * cols, &mag[i]);
    mox_gpu_matvec_row p = {.w = m.device, .x = upload_f32(x, N * cols), .y = device_f32(N * ROWS), .x_stride = cols, .y_stride = ROWS,
                            .norm = {.out = device_f32(N * cols), .weight = gain.device, .offset = 0.25f, .eps = 0.1f, .stride = cols}};
    launch(MOX_GPU_KERNEL_matvec_row, ROWS + 1, N, 1, &p);
    assert_true(within(download_f32(p.y, N * ROWS), want, mag, N * ROWS, 1e-6, 1e-7));
    assert_true(within(download_f32(p.norm.out, N * cols), normed, NULL, N * cols, 1e-6, 1e-7));
    p.norm.eps = 0.2f;
    launch(MOX_GPU_KERNEL_matvec_row, ROWS + 1, N, 1, &p);
    assert_false(within(download_f32(p.y, N * ROWS), want, mag, N * ROWS, 1e-6, 1e-7));
}

static void test_rowwise_normed(void **state)
{
    (void)state;
    static const mox_dtype types[] = {MOX_DT_NONE, MOX_DT_F32, MOX_DT_F16, MOX_DT_BF16};
    for (int i = 0; i < 8; i++) check_row_normed(types[i % 4], i < 4 ? 264 : 4160);
}

enum { FOUR_EXPERTS = 5, FOUR_K = 3, FOUR_N = 2, FOUR_DIM = 256, FOUR_WIDTH = 512 };

/* The experts whose rows a matrix has one after the other. */
static mox_gpu_stack stack(const both_mat *all)
{
    mox_gpu_mat m[FOUR_EXPERTS];
    mox_gpu_stack s;
    const int64_t rows = all->host.rows / FOUR_EXPERTS;
    for (int64_t e = 0; e < FOUR_EXPERTS; e++) {
        m[e] = all->device;
        m[e].rows = rows;
        m[e].w += e * rows * all->device.row_bytes;
        m[e].scales += e * rows * all->device.scale_cols * 2;
        m[e].biases += e * rows * all->device.scale_cols * 2;
    }
    assert_true(mox_gpu_stack_of(m, FOUR_EXPERTS, &s));
    m[3] = m[4];
    mox_gpu_stack unused;
    assert_false(mox_gpu_stack_of(m, FOUR_EXPERTS, &unused));
    return s;
}

static bool moe_right(const both_mat *gate, const both_mat *up, const both_mat *down, const float *x, bool swap)
{
    static const int32_t ids[FOUR_N * FOUR_K] = {4, 0, 2, 1, 4, 3}, others[FOUR_N * FOUR_K] = {4, 0, 2, 1, 3, 4};
    const int64_t n = FOUR_N * FOUR_DIM;
    const float *w = randoms(FOUR_N * FOUR_K, 1), *h = randoms(n, 1);
    const mox_gpu_experts4_gate_up g = {.gate = stack(gate), .up = stack(up), .ids = upload(ids, sizeof ids), .x = upload_f32(x, n),
                                        .y = device_f32(FOUR_N * FOUR_K * FOUR_WIDTH), .k = FOUR_K, .n_pairs = FOUR_N * FOUR_K,
                                        .x_stride = FOUR_DIM};
    const mox_gpu_experts4_down c = {.down = stack(down), .ids = swap ? upload(others, sizeof others) : g.ids,
                                     .w = upload_f32(w, FOUR_N * FOUR_K), .x = g.y, .h = upload_f32(h, n), .out = device_f32(n), .k = FOUR_K,
                                     .width = FOUR_WIDTH, .x_stride = FOUR_K * FOUR_WIDTH, .h_stride = FOUR_DIM, .out_stride = FOUR_DIM,
                                     .mode = MOX_GPU_SHARED_NONE};
    launch(MOX_GPU_KERNEL_experts4_gate_up, over(FOUR_WIDTH, MOX_GPU_EXPERTS4_ROWS), FOUR_N * FOUR_K, 1, &g);
    launch(MOX_GPU_KERNEL_experts4_down, FOUR_DIM / 16, FOUR_N, 1, &c);
    float *want = floats(n), inner[FOUR_WIDTH];
    double *mag = doubles(n), *sum = doubles(n), unused;
    for (int64_t i = 0; i < n; i++) {
        sum[i] = (double)h[i];
        mag[i] = fabs(sum[i]);
    }
    for (int p = 0; p < FOUR_N * FOUR_K; p++) {
        const float *row = x + p / FOUR_K * FOUR_DIM;
        for (int r = 0; r < FOUR_WIDTH; r++) {
            const double v = dot(gate, ids[p] * FOUR_WIDTH + r, row, &unused);
            inner[r] = (float)(v / (1 + exp(-v)) * dot(up, ids[p] * FOUR_WIDTH + r, row, &unused));
        }
        for (int r = 0; r < FOUR_DIM; r++) {
            double size;
            sum[p / FOUR_K * FOUR_DIM + r] += (double)w[p] * dot(down, ids[p] * FOUR_DIM + r, inner, &size);
            mag[p / FOUR_K * FOUR_DIM + r] += fabs((double)w[p]) * size;
        }
    }
    for (int64_t i = 0; i < n; i++) want[i] = (float)sum[i];
    return within(download_f32(c.out, n), want, mag, n, 2e-5, 1e-6); /* two products: twice class D */
}

static void test_four_experts(void **state)
{
    (void)state;
    const both_mat gate = four_mat(FOUR_EXPERTS * FOUR_WIDTH, FOUR_DIM), up = four_mat(FOUR_EXPERTS * FOUR_WIDTH, FOUR_DIM);
    const both_mat down = four_mat(FOUR_EXPERTS * FOUR_DIM, FOUR_WIDTH);
    const float *x = randoms(FOUR_N * FOUR_DIM, 0.05f);
    assert_true(moe_right(&gate, &up, &down, x, false));
    assert_false(moe_right(&gate, &up, &down, x, true));
}

/* ---- embed, absorb ---- */

static bool embed_right(const both_mat *m, const int32_t *ids, const int32_t *asked, int64_t n)
{
    const int64_t cols = m->host.cols, stride = cols + 3;
    float *want = floats(n * stride);
    for (int64_t t = 0; t < n; t++) mox_mat_decode(&m->host, asked[t], 0, cols, want + t * stride);
    const mox_gpu_embed p = {.table = m->device, .ids = upload(ids, n * 4), .out = device_f32(n * stride), .out_stride = stride};
    launch(MOX_GPU_KERNEL_embed, over(cols, 1024), n, 1, &p);
    const float *got = download_f32(p.out, n * stride);
    if (m->host.layout.kind != MOX_MAT_AFFINE) return memcmp(got, want, (size_t)(n * stride) * 4) == 0;
    /* A code times its scale, and a bias that may cancel it. */
    double *mag = doubles(n * stride);
    memset(mag, 0, (size_t)(n * stride) * sizeof *mag);
    for (int64_t t = 0; t < n; t++) memcpy(mag + t * stride, m->mag + asked[t] * cols, (size_t)cols * sizeof *mag);
    return within(got, want, mag, n * stride, 5e-6, 1e-7);
}

static void test_embed(void **state)
{
    (void)state;
    const int32_t ids[] = {12, 0, 5, 5}, others[] = {12, 0, 5, 6};
    for (int k = 0; k < N_KINDS; k++) {
        kit_end(NULL);
        const both_mat m = random_mat(kinds[k], 13, fit(kinds[k], k == 4 ? 1100 : 45));
        if (!embed_right(&m, ids, ids, 4)) fail_msg("kind %d", k);
        assert_false(embed_right(&m, ids, others, 4));
    }
}

static bool absorb_right(const both_mat *m, int64_t n, int64_t heads, int64_t nope, int64_t head_rows, const float *q, int64_t shift)
{
    const int64_t rank = m->host.cols;
    float *want = floats(n * heads * rank);
    double *mag = doubles(n * heads * rank);
    for (int64_t i = 0; i < n * heads * rank; i++) {
        const int64_t h = i / rank % heads, c = i % rank;
        double sum = 0;
        mag[i] = 0;
        for (int64_t j = 0; j < nope; j++) {
            const int64_t at = (h * head_rows + j) * rank + c;
            sum += (double)q[i / rank * nope + j] * m->value[at];
            mag[i] += fabs((double)q[i / rank * nope + j]) * m->mag[at];
        }
        want[i] = (float)sum;
    }
    const mox_gpu_mla_absorb p = {.w = m->device, .q = upload_f32(q, n * heads * nope), .out = device_f32(n * heads * rank), .n = n,
                                  .heads = heads, .nope = nope, .rank = rank, .head_rows = head_rows - shift};
    launch(MOX_GPU_KERNEL_mla_absorb, over(rank, 512), heads, over(n, MOX_GPU_MATVEC_TOKENS), &p);
    return within(download_f32(p.out, n * heads * rank), want, mag, n * heads * rank, 1e-5, 1e-7);
}

static void test_absorb(void **state)
{
    (void)state;
    enum { HEADS = 2, NOPE = 24, HEAD_ROWS = 40, N = 5 };
    for (int k = 0; k < N_KINDS; k++) {
        kit_end(NULL);
        const both_mat m = random_mat(kinds[k], HEADS * HEAD_ROWS, fit(kinds[k], k == 8 ? 576 : 36));
        const float *q = randoms(N * HEADS * NOPE, 1);
        if (!absorb_right(&m, N, HEADS, NOPE, HEAD_ROWS, q, 0)) fail_msg("kind %d", k);
        assert_false(absorb_right(&m, N, HEADS, NOPE, HEAD_ROWS, q, 1));
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, kit_begin, kit_end)
    const struct CMUnitTest tests[] = {TEST(test_matvec), TEST(test_matvec_by_heads), TEST(test_tokens_are_independent),
                                       TEST(test_experts), TEST(test_four), TEST(test_four_three), TEST(test_rowwise), TEST(test_rowwise_normed), TEST(test_four_experts),
                                       TEST(test_embed), TEST(test_absorb)};
    return cmocka_run_group_tests(tests, kit_open, kit_close);
}
