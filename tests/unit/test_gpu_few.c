/* tests/unit/test_gpu_few.c -- GPU kernels for some tokens (few.h), on the emulated device.
 *
 * They are to be as exact as the kernels for one token, so the references are products in double of the numbers as they
 * are.  Each kernel is also run with something slightly wrong; among that, with activations that are f16, which is what
 * the tolerance is there to notice. */
#include "gpu_mat_kit.h"

/* Sums of f32 in another order, of numbers with 22 bits.  emu was off by 1.3e-7 at most, an H200 by 3.1e-6,
 * and f16 on emu by 3.6e-5 where it was off least. */
static const double class_few = 1e-5;

/* ---- dense products ---- */

typedef struct planes {
    mox_gpu_quad *x; /* on the device */
    uint64_t *parts;
} planes;

/* is_f16: without what the second numbers add. */
static planes split(const float *x, int64_t n, int64_t cols, int64_t stride, bool is_f16)
{
    const int64_t n_groups = n * cols / MOX_GPU_FEW_GROUP, n_quads = n_groups * 16;
    const planes s = {.x = upload(floats(n_quads * 4), n_quads * 16), .parts = upload(floats(n_groups * 2), n_groups * 8)};
    const mox_gpu_plane_rows p = {.x = upload_f32(x, n * stride), .planes = s.x, .parts = s.parts, .cols = cols, .x_stride = stride};
    launch(MOX_GPU_KERNEL_plane_rows, over(cols, 2048), n, 1, &p);
    if (!is_f16) return s;
    mox_gpu_quad *all = download(s.x, n_quads * 16);
    for (int64_t i = 0; i < n_quads; i++)
        if (i % 16 >= 8) memset(&all[i], 0, sizeof all[i]);
    kit_ok(device_write(s.x, all, n_quads * 16));
    return s;
}

/* What is slightly wrong. */
typedef enum wrong { NOTHING, IS_F16, LATER } wrong;

static bool matmul_right(const both_mat *m, const both_vec *bias, const float *x, float size, int64_t n, int64_t split_by, wrong w)
{
    const int64_t rows = m->host.rows, cols = m->host.cols, stride = cols + 4, y_stride = rows + 3, n_y = n * y_stride;
    const planes s = split(x + (w == LATER), n, cols, stride, w == IS_F16);
    float *want = floats(n_y);
    double *mag = doubles(n_y);
    memset(mag, 0, (size_t)n_y * sizeof *mag);
    for (int64_t i = 0; i < n * rows; i++) {
        const int64_t t = i / rows, r = i % rows, at = t * y_stride + r;
        want[at] = (float)(dot(m, r, x + t * stride, &mag[at]) + (bias->host.type == MOX_DT_NONE ? 0 : (double)mox_vec_at(&bias->host, r)));
    }
    const mox_gpu_matmul_few p = {.w = m->device, .bias = bias->device, .planes = s.x, .parts = s.parts, .y = device_f32(n_y), .n = n,
                                  .y_stride = y_stride, .split = split_by};
    launch(MOX_GPU_KERNEL_matmul_few, over(n, MOX_GPU_FEW_TOKENS), over(rows, MOX_GPU_FEW_ROWS * 8 / split_by), 1, &p);
    return within(download_f32(p.y, n_y), want, mag, n_y, class_few, 1e-7 * (double)size); /* what is between rows stays NaN */
}

static void test_matmul(void **state)
{
    (void)state;
    static const struct {
        int64_t n, rows, cols, split;
        float size;
    } shapes[] = {{1, 1, 256, 2, 1}, {5, 131, 2304, 8, 1}, {16, 33, 768, 4, 1e30f}, {37, 40, 512, 1, 1e-30f}};
    for (int i = 0; i < 4; i++) {
        kit_end(NULL);
        const both_mat m = four_mat(shapes[i].rows, shapes[i].cols);
        const both_vec bias = random_vec(i == 1 ? MOX_DT_BF16 : MOX_DT_NONE, shapes[i].rows, -1, 1);
        const float *x = activations(shapes[i].n * (shapes[i].cols + 4) + 1, shapes[i].size);
        for (int w = NOTHING; w <= LATER; w++)
            if (matmul_right(&m, &bias, x, shapes[i].size, shapes[i].n, shapes[i].split, (wrong)w) != (w == NOTHING))
                fail_msg("shape %d, wrong %d", i, w);
    }
}

/* What is nothing, what is small, and what is not finite. */
static void test_numbers(void **state)
{
    (void)state;
    enum { COLS = 256 };
    const both_mat m = four_mat(16, COLS);
    const both_vec none = random_vec(MOX_DT_NONE, 0, 0, 0);
    float *x = floats(COLS + 4);
    memset(x, 0, (COLS + 4) * sizeof *x);
    assert_true(matmul_right(&m, &none, x, 1, 1, 1, NOTHING));
    x[100] = KIT_TINY;
    assert_true(matmul_right(&m, &none, x, 1, 1, 1, NOTHING));
    for (int i = 0; i < 2; i++) {
        x[100] = i ? INFINITY : NAN;
        const planes s = split(x, 1, COLS, COLS + 4, false);
        const mox_gpu_matmul_few p = {.w = m.device, .planes = s.x, .parts = s.parts, .y = device_f32(16), .n = 1, .y_stride = 16, .split = 1};
        launch(MOX_GPU_KERNEL_matmul_few, 1, 1, 1, &p);
        const float *y = download_f32(p.y, 16);
        for (int r = 0; r < 16; r++) assert_false(isfinite(y[r]) != 0);
    }
}

/* Queries, keys and values in one launch: the bytes of three.  And a token has the same bytes alone and among others. */
static void test_three(void **state)
{
    (void)state;
    enum { COLS = 512, N = 18 };
    static const int64_t rows[3] = {60, 16, 9};
    both_mat m[3];
    both_vec bias[3];
    float *y[3];
    const float *x = activations(N * COLS, 1);
    const planes s = split(x, N, COLS, COLS, false);
    for (int i = 0; i < 3; i++) {
        m[i] = four_mat(rows[i], COLS);
        bias[i] = random_vec(i == 1 ? MOX_DT_F32 : MOX_DT_NONE, rows[i], -1, 1);
        y[i] = device_f32(N * rows[i]);
    }
    const mox_gpu_matmul_few_three p = {.w0 = m[0].device, .w1 = m[1].device, .w2 = m[2].device, .bias0 = bias[0].device,
                                        .bias1 = bias[1].device, .bias2 = bias[2].device, .y0 = y[0], .y1 = y[1], .y2 = y[2],
                                        .planes = s.x, .parts = s.parts, .n = N, .split = 8};
    launch(MOX_GPU_KERNEL_matmul_few_three, over(N, MOX_GPU_FEW_TOKENS), 2 + 1 + 1, 1, &p);
    for (int i = 0; i < 3; i++) {
        const float *all = download_f32(y[i], N * rows[i]);
        mox_gpu_matmul_few one = {.w = m[i].device, .bias = bias[i].device, .planes = s.x, .parts = s.parts, .y = device_f32(N * rows[i]),
                                  .n = N, .y_stride = rows[i], .split = 8};
        launch(MOX_GPU_KERNEL_matmul_few, over(N, MOX_GPU_FEW_TOKENS), over(rows[i], MOX_GPU_FEW_ROWS), 1, &one);
        assert_memory_equal(download_f32(one.y, N * rows[i]), all, (size_t)(N * rows[i]) * 4);
        const planes alone = split(x + 17 * COLS, 1, COLS, COLS, false);
        one.planes = alone.x;
        one.parts = alone.parts;
        one.n = 1;
        launch(MOX_GPU_KERNEL_matmul_few, 1, over(rows[i], MOX_GPU_FEW_ROWS), 1, &one);
        assert_memory_equal(download_f32(one.y, rows[i]), all + 17 * rows[i], (size_t)rows[i] * 4);
    }
}

/* silu(gate x) * (up x) of row r, and the bounds of its parts as one. */
static float gated(const both_mat *gate, const both_mat *up, int64_t r, const float *x, double *mag)
{
    double gate_mag, up_mag;
    const double g = dot(gate, r, x, &gate_mag), u = dot(up, r, x, &up_mag);
    *mag = gate_mag * (fabs(u) + up_mag) + up_mag * fabs(g);
    return (float)(g / (1 + exp(-g)) * u);
}

static void test_gate_up(void **state)
{
    (void)state;
    enum { ROWS = 40, COLS = 512, N = 21 };
    const both_mat gate = four_mat(ROWS, COLS), up = four_mat(ROWS, COLS);
    const float *x = activations(N * COLS, 0.05f);
    float *want = floats(N * ROWS);
    double *mag = doubles(N * ROWS);
    for (int i = 0; i < N * ROWS; i++) want[i] = gated(&gate, &up, i % ROWS, x + i / ROWS * COLS, &mag[i]);
    for (int w = NOTHING; w <= IS_F16; w++) {
        const planes s = split(x, N, COLS, COLS, w == IS_F16);
        const mox_gpu_gate_up_few p = {.gate = gate.device, .up = up.device, .planes = s.x, .parts = s.parts, .y = device_f32(N * ROWS),
                                       .n = N, .y_stride = ROWS, .split = 4};
        launch(MOX_GPU_KERNEL_gate_up_few, over(N, MOX_GPU_FEW_TOKENS), over(ROWS, 16 * 8 / 4), 1, &p);
        assert_int_equal(within(download_f32(p.y, N * ROWS), want, mag, N * ROWS, class_few, 1e-7), w == NOTHING);
    }
}

/* ---- experts ---- */

enum { EXPERTS = 5, SLOTS = 2, TOKENS = 11, PAIRS = TOKENS * SLOTS };

/* The expert whose rows begin at `e` times those of one. */
static both_mat expert_of(const both_mat *all, int64_t e)
{
    const int64_t rows = all->host.rows / EXPERTS;
    both_mat m = *all;
    m.host.rows = rows;
    m.value += e * rows * m.host.cols;
    m.mag += e * rows * m.host.cols;
    return m;
}
/* With `shift` experts in front that are not there. */
static mox_gpu_stack stack(const both_mat *all, int32_t shift)
{
    const int64_t rows = all->host.rows / EXPERTS;
    mox_gpu_stack s = {.first = all->device, .w_step = rows * all->device.row_bytes, .scale_step = rows * all->device.scale_cols * 2};
    s.first.rows = rows;
    s.first.w = (const uint8_t *)((uintptr_t)s.first.w - (uintptr_t)(shift * s.w_step));
    s.first.scales = (const uint8_t *)((uintptr_t)s.first.scales - (uintptr_t)(shift * s.scale_step));
    s.first.biases = (const uint8_t *)((uintptr_t)s.first.biases - (uintptr_t)(shift * s.scale_step));
    return s;
}

/* Many pairs take 3, some 0 or 1, nobody 2, and some are left out. */
static int32_t id_of(int i) { return i % 5 == 0 ? 1 : i % 11 == 0 ? 0 : i % 7 == 3 ? -1 : i % 3 == 0 ? 4 : 3; }

/* What is slightly wrong with experts. */
typedef enum amiss { RIGHT, X_IS_F16, PAIR_LOST } amiss;

/* Planes as experts take them: a place for both products. */
typedef struct experts_room {
    mox_gpu_quad *all;
    uint64_t *parts;
    int32_t *plan;
} experts_room;

static experts_room experts_room_of(int64_t dim, int64_t width)
{
    const int64_t quads = (TOKENS * dim > PAIRS * width ? TOKENS * dim : PAIRS * width) / 4;
    const int64_t n_plan = MOX_GPU_FEW_PLAN + PAIRS * MOX_GPU_FEW_ENTRY;
    return (experts_room){.all = upload(floats(quads * 4), quads * 16), .parts = upload(floats(quads), quads * 4),
                          .plan = upload(floats(n_plan), n_plan * 4)};
}

static void forget_low(mox_gpu_quad *on_device, int64_t n_quads)
{
    mox_gpu_quad *all = download(on_device, n_quads * 16);
    for (int64_t i = 0; i < n_quads; i++)
        if (i % 16 >= 8) memset(&all[i], 0, sizeof all[i]);
    kit_ok(device_write(on_device, all, n_quads * 16));
}

/* How the work is shared out.  A shift of 254 has experts of two windows. */
typedef struct sharing {
    int64_t dim, width, n_groups;
    int32_t shift;
} sharing;

static void experts_right(sharing s, amiss is)
{
    const int64_t dim = s.dim, width = s.width;
    const both_mat gate = four_mat(EXPERTS * width, dim), up = four_mat(EXPERTS * width, dim), down = four_mat(EXPERTS * dim, width);
    const float *x = activations(TOKENS * dim, 0.05f);
    const experts_room room = experts_room_of(dim, width);
    int32_t ids[PAIRS], shifted[PAIRS];
    float *want = floats(PAIRS * width), *last = floats(PAIRS * dim); /* NaN where a pair is left out, as on the device */
    double *mag = doubles(PAIRS * width), *last_mag = doubles(PAIRS * dim);
    for (int i = 0; i < PAIRS; i++) {
        ids[i] = id_of(i);
        shifted[i] = ids[i] < 0 ? -1 : ids[i] + s.shift;
        const both_mat g = expert_of(&gate, ids[i]), u = expert_of(&up, ids[i]);
        for (int64_t r = 0; r < width && ids[i] >= 0; r++) want[i * width + r] = gated(&g, &u, r, x + i / SLOTS * dim, &mag[i * width + r]);
    }
    const mox_gpu_experts_plan_few plan = {.ids = upload(shifted, sizeof shifted), .plan = room.plan,
                                           .rows = {.x = upload_f32(x, TOKENS * dim), .planes = room.all, .parts = room.parts, .cols = dim,
                                                    .x_stride = dim},
                                           .n_pairs = PAIRS - (is == PAIR_LOST), .n_experts = EXPERTS + s.shift, .x_divisor = SLOTS};
    launch(MOX_GPU_KERNEL_experts_plan_few, over(dim, 2048), TOKENS + 1, 1, &plan);
    if (is == X_IS_F16) forget_low(room.all, TOKENS * dim / 4);
    const mox_gpu_experts_gate_up_few p = {.first = stack(&gate, s.shift), .second = stack(&up, s.shift), .plan = room.plan, .planes = room.all,
                                           .parts = room.parts, .y = device_f32(PAIRS * width), 
                                           .y_stride = width, .rows_at = MOX_GPU_FEW_ROWS_AT, .n_groups = s.n_groups};
    launch(MOX_GPU_KERNEL_experts_gate_up_few, s.n_groups, 1, 1, &p);
    const float *mid = download_f32(p.y, PAIRS * width);
    assert_true(within(mid, want, mag, PAIRS * width, class_few, 1e-7) == (is == RIGHT));
    if (is != RIGHT && is != X_IS_F16) return;
    for (int i = 0; i < PAIRS; i++) {
        const both_mat d = expert_of(&down, ids[i]);
        for (int64_t r = 0; r < dim && ids[i] >= 0; r++) last[i * dim + r] = (float)dot(&d, r, mid + i * width, &last_mag[i * dim + r]);
    }
    const mox_gpu_plane_rows rows = {.x = p.y, .planes = room.all, .parts = room.parts, .cols = width, .x_stride = width};
    launch(MOX_GPU_KERNEL_plane_rows, over(width, 2048), PAIRS, 1, &rows);
    if (is == X_IS_F16) forget_low(room.all, PAIRS * width / 4);
    const mox_gpu_experts_down_few q = {.first = stack(&down, s.shift), .plan = room.plan, .planes = room.all, .parts = room.parts,
                                        .y = device_f32(PAIRS * dim),  .y_stride = dim,
                                        .rows_at = MOX_GPU_FEW_PAIRS_AT, .n_groups = s.n_groups};
    launch(MOX_GPU_KERNEL_experts_down_few, s.n_groups, 1, 1, &q);
    assert_true(within(download_f32(q.y, PAIRS * dim), last, last_mag, PAIRS * dim, class_few, 1e-7) == (is == RIGHT));
}

/* An even and an odd number of chunks, and one; units that rows do not fill; fewer groups than units, and more. */
static void test_experts(void **state)
{
    (void)state;
    static const sharing all[] = {{2304, 256, 3, 0}, {512, 784 - 16, 5, 254}, {256, 256, 40, 0}, {768, 512, 2, 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (amiss is = RIGHT; is <= PAIR_LOST; is++) {
            kit_end(NULL);
            experts_right(all[i], is);
        }
}

/* ---- routers ---- */

/* The bytes of matvec_row, which has a test of its own. */
static bool rows_alike(const both_mat *m, const float *x, int64_t n, const both_vec *bias, int64_t fewer)
{
    const int64_t rows = m->host.rows, cols = m->host.cols, stride = cols + 4, y_stride = rows + 1;
    const mox_gpu_matvec_row one = {.w = m->device, .x = upload_f32(x, n * stride), .y = device_f32(n * y_stride), .x_stride = stride,
                                    .y_stride = y_stride, .bias = bias->device};
    mox_gpu_matvec_rows all = {.w = m->device, .x = one.x, .y = device_f32(n * y_stride), .n = n, .x_stride = stride, .y_stride = y_stride,
                               .bias = bias->device};
    launch(MOX_GPU_KERNEL_matvec_row, rows, n, 1, &one);
    all.w.cols -= fewer;
    launch(MOX_GPU_KERNEL_matvec_rows, over(rows, MOX_GPU_ROWS_ROWS), over(n, MOX_GPU_ROWS_TOKENS), 1, &all);
    return memcmp(download_f32(one.y, n * y_stride), download_f32(all.y, n * y_stride), (size_t)(n * y_stride) * 4) == 0;
}

static void test_routers(void **state)
{
    (void)state;
    static const struct {
        int64_t n, rows, cols;
    } shapes[] = {{8, 4, 64}, {5, 6, 2048}, {19, 13, 4160}};
    int n_kinds = 0;
    for (size_t i = 0; i < N_KINDS * (sizeof shapes / sizeof *shapes); i++) {
        const kind k = kinds[i % N_KINDS];
        if (k.kind != MOX_MAT_BF16 && k.kind != MOX_MAT_F16 && (k.kind != MOX_MAT_AFFINE || k.bits != 8)) continue;
        const int64_t n = shapes[i / N_KINDS].n, rows = shapes[i / N_KINDS].rows;
        both_mat m = random_mat(k, rows, fit(k, shapes[i / N_KINDS].cols));
        m.device.w = upload(m.host.w, rows * m.device.row_bytes); /* at no odd address */
        assert_true(mox_gpu_mat_is_rowwise(&m.device));
        const both_vec bias = random_vec(i / N_KINDS == 1 ? MOX_DT_BF16 : MOX_DT_NONE, rows, -1, 1);
        const float *x = randoms(n * (m.host.cols + 4), 1);
        assert_true(rows_alike(&m, x, n, &bias, 0));
        assert_false(rows_alike(&m, x, n, &bias, 8));
        n_kinds++;
    }
    assert_true(n_kinds >= 9);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, kit_begin, kit_end)
    const struct CMUnitTest tests[] = {TEST(test_matmul), TEST(test_numbers), TEST(test_three), TEST(test_gate_up), TEST(test_experts),
                                       TEST(test_routers)};
    return cmocka_run_group_tests(tests, kit_open, kit_close);
}
