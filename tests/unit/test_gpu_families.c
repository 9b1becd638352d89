/* tests/unit/test_gpu_families.c -- GPU kernels for decoding that single families have: shared experts, latent attention, the gated
 * delta rule.  Against the references of src/ops, and against products in double over what mox_mat_decode gives.
 *
 * Each kernel is also run with something slightly wrong, which the comparison must notice. */
#include "gpu_cache_kit.h"
#include "gpu_mat_kit.h"

/* ---- feed-forwards with a shared expert ---- */

/* Chunks of columns are more than there are waves, in one matrix of the first product, in all slots of the second. */
enum { EXPERTS = 4, K = 3, N = 2, COLS = 2304, WIDTH = 40, SECOND_COLS = 768 };
static const int32_t ids[N * K] = {3, 0, 2, 1, 3, 0};

/* The experts whose rows a matrix has one after the other. */
static mox_gpu_stack stack_of(const both_mat *all)
{
    mox_gpu_stack s = {.first = all->device};
    s.first.rows /= EXPERTS;
    s.w_step = s.first.rows * all->device.row_bytes;
    s.scale_step = s.first.rows * all->device.scale_cols * 2;
    return s;
}

typedef struct first_half {
    both_mat gate, up, shared_gate, shared_up, scale;
    const float *x;
} first_half;

/* swap: the shared expert has gate and up the other way round. */
static bool gate_up_right(const first_half *f, int64_t k, bool swap, bool drop_logits)
{
    const int64_t slots = k + 1, n_pairs = N * slots, all = n_pairs * WIDTH;
    const mox_gpu_experts4_gate_up g = {.gate = stack_of(&f->gate), .up = stack_of(&f->up), .scale = f->scale.device,
                                        .shared_gate = swap ? f->shared_up.device : f->shared_gate.device,
                                        .shared_up = swap ? f->shared_gate.device : f->shared_up.device, .ids = upload(ids, sizeof ids),
                                        .x = upload_f32(f->x, N * COLS), .y = device_f32(all), .logit = device_f32(N), .k = k,
                                        .n_shared = 1, .n_pairs = n_pairs, .x_stride = COLS};
    launch(MOX_GPU_KERNEL_experts4_gate_up, over(WIDTH, MOX_GPU_EXPERTS4_ROWS), drop_logits ? n_pairs : n_pairs + N, 1, &g);
    float *want = floats(all), logits[N];
    double *mag = doubles(all), of_logits[N];
    for (int64_t i = 0; i < all; i++) {
        const int64_t pair = i / WIDTH, t = pair / slots, slot = pair % slots, first = slot == k ? 0 : ids[t * k + slot] * WIDTH;
        const float *x = f->x + t * COLS;
        double gate_mag, up_mag;
        const double v = dot(slot == k ? &f->shared_gate : &f->gate, first + i % WIDTH, x, &gate_mag);
        const double u = dot(slot == k ? &f->shared_up : &f->up, first + i % WIDTH, x, &up_mag);
        want[i] = (float)(v / (1 + exp(-v)) * u);
        mag[i] = gate_mag * fabs(u) + up_mag * fabs(v);
    }
    for (int t = 0; t < N; t++) logits[t] = (float)dot(&f->scale, 0, f->x + t * COLS, &of_logits[t]);
    return within(download_f32(g.y, all), want, mag, all, 2e-5, 1e-6) && /* two products: twice class D */
           within(download_f32(g.logit, N), logits, of_logits, N, 1e-5, 1e-7);
}

static void test_shared_gate_up(void **state)
{
    (void)state;
    const first_half f = {.gate = four_mat(EXPERTS * WIDTH, COLS), .up = four_mat(EXPERTS * WIDTH, COLS), .shared_gate = four_mat(WIDTH, COLS),
                          .shared_up = four_mat(WIDTH, COLS), .scale = random_mat(kinds[14], 1, COLS), .x = randoms(N * COLS, 0.02f)};
    assert_true(gate_up_right(&f, K, false, false));
    assert_true(gate_up_right(&f, 0, false, false)); /* a dense one */
    assert_false(gate_up_right(&f, 1, true, false));
    assert_false(gate_up_right(&f, 0, false, true));
}

typedef struct second_half {
    both_mat down, shared_down;
    const float *x, *h, *w, *logit;
} second_half;
typedef enum mistake { NO_MISTAKE, OTHER_ID, OTHER_WEIGHT, NOT_SHARED, NOT_GATED } mistake;

static bool down_right(const second_half *f, int64_t k, bool is_long, mistake m)
{
    static const int32_t others[N * K] = {3, 0, 2, 1, 0, 3};
    const int64_t slots = k + 1, n = N * WIDTH;
    const mox_gpu_experts4_down d = {.down = stack_of(&f->down), .shared_down = m == NOT_SHARED ? f->down.device : f->shared_down.device,
                                     .ids = upload(m == OTHER_ID ? others : ids, sizeof ids),
                                     .w = upload_f32(m == OTHER_WEIGHT ? f->w + 1 : f->w, N * K), .x = upload_f32(f->x, N * slots * SECOND_COLS),
                                     .h = upload_f32(f->h, n), .gate = upload_f32(f->logit, N), .out = device_f32(n), .k = k, .n_shared = 1,
                                     .width = SECOND_COLS, .x_stride = slots * SECOND_COLS, .h_stride = WIDTH, .out_stride = WIDTH,
                                     .gate_stride = 1, .mode = m == NOT_GATED ? MOX_GPU_SHARED_UNSCALED : MOX_GPU_SHARED_GATED};
    launch(is_long ? MOX_GPU_KERNEL_experts4_down_long : MOX_GPU_KERNEL_experts4_down, over(WIDTH, is_long ? 32 : 16), N, 1, &d);
    float *want = floats(n);
    double *mag = doubles(n);
    for (int64_t i = 0; i < n; i++) {
        const int64_t t = i / WIDTH, r = i % WIDTH;
        double sum = (double)f->h[i];
        mag[i] = fabs(sum);
        for (int64_t s = 0; s <= k; s++) {
            const double weight = s == k ? 1 / (1 + exp(-(double)f->logit[t])) : (double)f->w[t * k + s];
            double size;
            sum += weight * dot(s == k ? &f->shared_down : &f->down, (s == k ? 0 : ids[t * k + s] * WIDTH) + r, f->x + (t * slots + s) * SECOND_COLS, &size);
            mag[i] += fabs(weight) * size;
        }
        want[i] = (float)sum;
    }
    return within(download_f32(d.out, n), want, mag, n, 1e-5, 1e-7); /* class D */
}

static void test_shared_down(void **state)
{
    (void)state;
    const second_half f = {.down = four_mat(EXPERTS * WIDTH, SECOND_COLS), .shared_down = four_mat(WIDTH, SECOND_COLS),
                           .x = randoms(N * (K + 1) * SECOND_COLS, 1), .h = randoms(N * WIDTH, 1), .w = randoms(N * K + 1, 1),
                           .logit = randoms(N, 2)};
    for (int is_long = 0; is_long < 2; is_long++) {
        assert_true(down_right(&f, K, is_long, NO_MISTAKE));
        assert_true(down_right(&f, 1, is_long, NO_MISTAKE));
        for (mistake m = OTHER_ID; m <= NOT_GATED; m++) assert_false(down_right(&f, K, is_long, m));
    }
}

/* As matvec4, which adds chunks up in another order. */
static bool long_right(const both_mat *m, const float *x, int64_t n, const both_vec *bias, bool is_long, int64_t skip)
{
    const int64_t rows = m->host.rows, cols = m->host.cols;
    const mox_gpu_experts4_down p = {.down = {.first = m->device}, .shared_down = m->device, .x = upload_f32(x + skip, n * cols),
                                     .out = device_f32(n * rows), .bias = bias->device, .n_shared = 1, .width = cols, .x_stride = cols,
                                     .out_stride = rows, .mode = MOX_GPU_SHARED_UNSCALED};
    launch(is_long ? MOX_GPU_KERNEL_experts4_down_long : MOX_GPU_KERNEL_experts4_down, over(rows, is_long ? 32 : 16), n, 1, &p);
    const mox_gpu_matvec4 same = {.w = m->device, .x = upload_f32(x, n * cols), .y = device_f32(n * rows),
                                  .x_stride = cols, .y_stride = rows, .bias = bias->device};
    launch(MOX_GPU_KERNEL_matvec4, over(rows, 16), n, 1, &same);
    const float *got = download_f32(p.out, n * rows), *want = download_f32(same.y, n * rows);
    double *mag = doubles(n * rows);
    for (int64_t i = 0; i < n * rows; i++) (void)dot(m, i % rows, x + i / rows * cols, &mag[i]);
    return within(got, want, mag, n * rows, 1e-6, 1e-7);
}

static void test_long_product(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{32, 256}, {37, 4096}, {16, 6400}};
    for (int s = 0; s < 3; s++) {
        kit_end(NULL);
        const both_mat m = four_mat(shapes[s][0], shapes[s][1]);
        const both_vec bias = random_vec(s == 1 ? MOX_DT_BF16 : MOX_DT_NONE, shapes[s][0], -1, 1);
        const float *x = activations(2 * shapes[s][1] + 1, 1);
        for (int is_long = 0; is_long < 2; is_long++) {
            assert_true(long_right(&m, x, 2, &bias, is_long, 0));
            assert_false(long_right(&m, x, 2, &bias, is_long, 1)); /* x begins one later */
        }
    }
}

static bool project_right(const both_mat *m, const both_vec *bias, const float *x, mox_gpu_kernel kernel, bool wrong)
{
    enum { TOKENS = 2 };
    const int64_t cols = m[0].host.cols;
    float *y[4];
    for (int i = 0; i < 4; i++) y[i] = device_f32(TOKENS * m[i].host.rows);
    const mox_gpu_project4 p = {.w0 = m[0].device, .w1 = m[1].device, .w2 = m[2].device, .w3 = m[wrong ? 2 : 3].device, .bias0 = bias[0].device,
                                .bias1 = bias[1].device, .bias2 = bias[2].device, .bias3 = bias[3].device, .y0 = y[0], .y1 = y[1],
                                .y2 = y[2], .y3 = y[3], .x = upload_f32(x, TOKENS * cols), .x_stride = cols};
    int64_t groups = 0;
    for (int i = 0; i < 4; i++) groups += over(m[i].host.rows, kernel == MOX_GPU_KERNEL_project4_long ? 16 : MOX_GPU_FOUR_TALL);
    launch(kernel, groups, TOKENS, 1, &p);
    bool right = true;
    for (int i = 0; i < 4; i++) {
        const int64_t rows = m[i].host.rows;
        float *want = floats(TOKENS * rows);
        double *mag = doubles(TOKENS * rows);
        for (int64_t j = 0; j < TOKENS * rows; j++)
            want[j] = (float)(dot(&m[i], j % rows, x + j / rows * cols, &mag[j]) +
                              (bias[i].host.type == MOX_DT_NONE ? 0 : (double)mox_vec_at(&bias[i].host, j % rows)));
        right = right && within(download_f32(y[i], TOKENS * rows), want, mag, TOKENS * rows, 1e-6, 1e-7);
    }
    return right;
}

static void test_four_products(void **state)
{
    (void)state;
    static const int64_t rows[4] = {100, 17, 3, 3};
    static const mox_gpu_kernel kernels[] = {MOX_GPU_KERNEL_project4, MOX_GPU_KERNEL_project4_many, MOX_GPU_KERNEL_project4_long};
    for (int v = 0; v < 3; v++) {
        const int64_t cols = kernels[v] == MOX_GPU_KERNEL_project4_long ? 4352 : 1280;
        both_mat m[4];
        both_vec bias[4];
        for (int i = 0; i < 4; i++) {
            m[i] = four_mat(rows[i], cols);
            bias[i] = random_vec(i == 2 ? MOX_DT_F32 : MOX_DT_NONE, rows[i], -1, 1);
        }
        const float *x = activations(2 * cols, 1);
        assert_true(project_right(m, bias, x, kernels[v], false));
        assert_false(project_right(m, bias, x, kernels[v], true));
    }
}

/* ---- latent attention ---- */

static bool fold_right(const both_mat *m, int64_t heads, int64_t nope, int64_t head_rows, const float *q, int64_t shift)
{
    const int64_t rank = m->host.cols, all = N * heads * rank;
    float *want = floats(all);
    double *mag = doubles(all);
    for (int64_t i = 0; i < all; i++) {
        double sum = 0;
        mag[i] = 0;
        for (int64_t j = 0; j < nope; j++) {
            const int64_t at = (i / rank % heads * head_rows + j) * rank + i % rank;
            sum += (double)q[i / rank * nope + j] * m->value[at];
            mag[i] += fabs((double)q[i / rank * nope + j]) * m->mag[at];
        }
        want[i] = (float)sum;
    }
    const mox_gpu_mla4_fold p = {.w = m->device, .q = upload_f32(q, N * heads * nope), .out = device_f32(all), .n = N, .heads = heads,
                                 .nope = nope, .rank = rank, .head_rows = head_rows - shift};
    launch(MOX_GPU_KERNEL_mla4_fold, over(rank, 512), heads, N, &p);
    return within(download_f32(p.out, all), want, mag, all, 1e-6, 1e-7);
}

static void test_fold(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{128, 512}, {20, 256}, {150, 768}}; /* rows of a head, columns */
    for (int s = 0; s < 3; s++) {
        kit_end(NULL);
        const int64_t nope = shapes[s][0];
        const both_mat m = four_mat(2 * (nope + 9), shapes[s][1]);
        const float *q = randoms(N * 2 * nope, 1);
        assert_true(fold_right(&m, 2, nope, nope + 9, q, 0));
        assert_false(fold_right(&m, 2, nope, nope + 9, q, 1));
    }
}

/* The bytes of matvec4 with the rows of each head. */
static bool unfold_right(const both_mat *m, int64_t heads, int64_t rows, const float *x, int64_t first)
{
    const int64_t rank = m->host.cols, head_rows = m->host.rows / heads, all = N * heads * rows;
    const mox_gpu_mla4_unfold p = {.w = m->device, .x = upload_f32(x, N * heads * rank), .y = device_f32(all), .n = N, .rows = rows,
                                   .head_rows = head_rows, .first_row = first, .x_stride = heads * rank, .x_head_stride = rank,
                                   .y_stride = heads * rows, .y_head_stride = rows};
    launch(MOX_GPU_KERNEL_mla4_unfold, over(rows, 128), heads, N, &p);
    mox_gpu_matvec4 of_head = {.w = m->device, .y = device_f32(all), .x_stride = heads * rank, .y_stride = heads * rows};
    float *const y = of_head.y;
    of_head.w.rows = rows;
    for (int64_t h = 0; h < heads; h++) {
        const int64_t row = h * head_rows + head_rows - rows;
        of_head.w.w = m->device.w + row * m->device.row_bytes;
        of_head.w.scales = m->device.scales + row * m->device.scale_cols * 2;
        of_head.w.biases = m->device.biases + row * m->device.scale_cols * 2;
        of_head.x = p.x + h * rank;
        of_head.y = y + h * rows;
        launch(MOX_GPU_KERNEL_matvec4, over(rows, 16), N, 1, &of_head);
    }
    return memcmp(download_f32(p.y, all), download_f32(y, all), (size_t)all * 4) == 0;
}

static void test_unfold(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{128, 512}, {20, 256}, {137, 1024}};
    for (int s = 0; s < 3; s++) {
        kit_end(NULL);
        const both_mat m = four_mat(3 * (shapes[s][0] + 7), shapes[s][1]);
        const float *x = activations(N * 3 * shapes[s][1], 1);
        assert_true(unfold_right(&m, 3, shapes[s][0], x, 7));
        assert_false(unfold_right(&m, 3, shapes[s][0], x, 6));
    }
}

/* Rows of spans that have one; the others must stay as they were. */
static bool streams_right(mox_gpu_attention_latent p, const float *want, const timeline *t, int64_t width)
{
    p.a.out = device_f32(ROWS_OF_SPANS * width);
    launch(MOX_GPU_KERNEL_attention_latent, over(over(p.a.heads, 2) * p.n_streams, 8), SPANS, p.a.n_pieces, &p);
    if (p.a.n_pieces > 1) launch(MOX_GPU_KERNEL_attention_merge, p.a.heads, SPANS, 1, &p.a);
    const float *got = download_f32(p.a.out, ROWS_OF_SPANS * width);
    bool right = true;
    for (int s = 0; s < SPANS; s++)
        for (int64_t i = t->host[s].row0; i < t->host[s].row0 + t->host[s].n; i++) {
            if (t->host[s].n == 1) right = right && class_s(got + i * width, want + i * width, width, 1);
            else for (int64_t d = 0; d < width; d++) assert_true(isnan(got[i * width + d]));
        }
    return right;
}

static void test_streams(void **state)
{
    (void)state;
    enum { HEADS = 3, RANK = MOX_GPU_LATENT_RANK, ROPE = MOX_GPU_LATENT_ROPE, WIDE = HEADS * RANK, ALL = ROWS_OF_SPANS * WIDE };
    const timeline *t = make_timeline_of((const int64_t[SPANS]){7, 1, 1}, (const int64_t[SPANS]){13, 420, 5});
    const both_cache latent = make_cache(MOX_DT_F16, 1, RANK), key = make_cache(MOX_DT_F16, 1, ROPE);
    const float *q = randoms(ALL, 0.5f), *q_pe = randoms(ROWS_OF_SPANS * HEADS * ROPE, 0.5f);
    float *want = floats(ALL);
    mox_mla_attention_ref(&(mox_mla_attention_args){.q = q, .q_pe = q_pe, .ctx = want, .latent = latent.host, .k_pe = key.host,
                                                    .spans = t->host, .n_spans = SPANS, .heads = HEADS, .rank = RANK, .rope = ROPE,
                                                    .scale = 0.3f}, 0, ROWS_OF_SPANS * HEADS);
    mox_gpu_attention_latent p = {.a = {.q = upload_f32(q, ALL), .q2 = upload_f32(q_pe, ROWS_OF_SPANS * HEADS * ROPE), .spans = t->device,
                                        .k = latent.device, .k2 = key.device, .v = latent.device, .n_spans = SPANS, .heads = HEADS,
                                        .kv_heads = 1, .dim = RANK, .dim2 = ROPE, .v_dim = RANK, .q_stride = WIDE, .q_head_stride = RANK,
                                        .q2_stride = HEADS * ROPE, .q2_head_stride = ROPE, .out_stride = WIDE, .out_head_stride = RANK,
                                        .n_pieces = 1, .scale = 0.3f, .causal = 1,
                                        .parts = device_f32(SPANS * HEADS * MOX_GPU_PIECES * (RANK + 2))}};
    for (p.n_streams = 1; p.n_streams <= 8; p.n_streams *= 2) {
        p.a.n_pieces = 1;
        assert_true(streams_right(p, want, t, WIDE));
        p.a.n_pieces = 3;
        assert_true(streams_right(p, want, t, WIDE));
    }
    p.n_streams = 4;
    p.a.window = 420; /* one key less */
    assert_false(streams_right(p, want, t, WIDE));
    p.a.window = 0;
    p.a.k2 = latent.device;
    assert_false(streams_right(p, want, t, WIDE));
}

static bool cache_near(const both_cache *c, mox_dtype type)
{
    const int64_t n = c->bytes / mox_dtype_bytes(type);
    float *got = floats(n), *want = floats(n);
    const mox_vec a = {.type = type, .n = n, .data = download(c->device.data, c->bytes)}, b = {.type = type, .n = n, .data = c->host.data};
    for (int64_t i = 0; i < n; i++) {
        got[i] = mox_vec_at(&a, i);
        want[i] = mox_vec_at(&b, i);
    }
    return within(got, want, NULL, n, type == MOX_DT_F16 ? 1e-3 : 0, 3e-5); /* f16: another rounding at most */
}

/* In one launch what nine do one after the other. */
static void check_mla_heads(mox_dtype type, bool interleaved, bool wrong)
{
    enum { HEADS = 5, NOPE = 40, ROPE = 72, RANK = 100, ROWS = ROWS_OF_SPANS };
    const timeline *t = make_timeline();
    const both_cache lc = make_cache(type, 1, RANK), kc = make_cache(type, 1, ROPE);
    const float *q = randoms(ROWS * HEADS * (NOPE + ROPE), 1), *kv = randoms(ROWS * (RANK + ROPE), 1);
    float *nope = floats(ROWS * HEADS * NOPE), *pe = floats(ROWS * HEADS * ROPE), *latent = floats(ROWS * RANK), *k_pe = floats(ROWS * ROPE);
    float freq[ROPE / 2];
    int32_t pos[ROWS];
    for (int s = 0; s < SPANS; s++)
        for (int64_t i = 0; i < t->host[s].n; i++) pos[t->host[s].row0 + i] = (int32_t)(t->host[s].pos0 + i);
    for (int i = 0; i < ROPE / 2; i++) freq[i] = powf(10000.0f, -2.0f * (float)i / ROPE);
    const both_vec w = random_vec(MOX_DT_BF16, RANK, 0.5f, 1.5f);
    const mox_gpu_mla_heads p = {.q_full = upload_f32(q, ROWS * HEADS * (NOPE + ROPE)), .kv = upload_f32(kv, ROWS * (RANK + ROPE)),
                                 .q_nope = device_f32(ROWS * HEADS * NOPE), .q_pe = device_f32(ROWS * HEADS * ROPE),
                                 .inv_freq = upload_f32(freq, ROPE / 2), .pos = upload(pos, sizeof pos), .spans = t->device,
                                 .latent = lc.device, .k_pe = kc.device, .weight = w.device, .heads = HEADS, .nope = NOPE, .rope = ROPE,
                                 .rank = RANK, .eps = wrong ? 1e-3f : 1e-6f, .mscale = 1.1f, .interleaved = interleaved};
    launch(MOX_GPU_KERNEL_mla_heads, over(HEADS, 4) + 1, ROWS, 1, &p);
    mox_mla_split_ref(&(mox_mla_split_args){.q_full = q, .kv = kv, .q_nope = nope, .q_pe = pe, .latent = latent, .k_pe = k_pe, .n = ROWS,
                                            .heads = HEADS, .nope = NOPE, .rope = ROPE, .rank = RANK}, 0, ROWS);
    mox_rms_norm_ref(&(mox_rms_norm_args){.x = latent, .out = latent, .n = ROWS, .heads = 1, .dim = RANK, .x_stride = RANK,
                                          .x_head_stride = RANK, .out_stride = RANK, .out_head_stride = RANK, .weight = w.host, .eps = 1e-6f}, 0, ROWS);
    mox_rope_args rope = {.x = pe, .n = ROWS, .heads = HEADS, .stride = HEADS * ROPE, .head_stride = ROPE, .rotary_dim = ROPE,
                          .inv_freq = freq, .mscale = 1.1f, .pairing = interleaved ? MOX_ROPE_INTERLEAVED : MOX_ROPE_HALF, .pos = pos,
                          .pos_stride = 1};
    mox_rope_ref(&rope, 0, ROWS);
    rope.x = k_pe;
    rope.heads = 1;
    rope.stride = ROPE;
    mox_rope_ref(&rope, 0, ROWS);
    mox_kv_append_args append = {.cache = lc.host, .spans = t->host, .n_spans = SPANS, .src = latent, .heads = 1, .dim = RANK, .stride = RANK,
                                 .head_stride = RANK};
    mox_kv_append_ref(&append, 0, ROWS);
    append = (mox_kv_append_args){.cache = kc.host, .spans = t->host, .n_spans = SPANS, .src = k_pe, .heads = 1, .dim = ROPE, .stride = ROPE,
                                  .head_stride = ROPE};
    mox_kv_append_ref(&append, 0, ROWS);
    assert_memory_equal(download_f32(p.q_nope, ROWS * HEADS * NOPE), nope, ROWS * HEADS * NOPE * 4);
    assert_true(within(download_f32(p.q_pe, ROWS * HEADS * ROPE), pe, NULL, ROWS * HEADS * ROPE, 0, 3e-5));
    assert_true(cache_near(&kc, type));
    assert_int_equal(cache_near(&lc, type), !wrong);
}

static void test_mla_heads(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        kit_end(NULL);
        check_mla_heads(i % 2 ? MOX_DT_F16 : MOX_DT_F32, i / 2 == 1, i == 4);
    }
}

/* ---- the gated delta rule ---- */

typedef struct rule {
    int64_t k_heads, v_heads, k_dim, v_dim, width;
} rule;

static bool step_right(rule r, bool wrong)
{
    const int64_t key = r.k_heads * r.k_dim, value = r.v_heads * r.v_dim, C = 2 * key + value, n_state = value * r.k_dim, H = r.v_heads;
    const int64_t n_past = (r.width - 1) * C;
    const float *x = randoms(C, 1), *z = randoms(value, 2), *a = randoms(H, 3), *b = randoms(H, 3), *past = randoms(n_past + 1, 1);
    const float *s = randoms(n_state, 1);
    const both_vec w = random_vec(MOX_DT_BF16, C * r.width, -1, 1), rate = random_vec(MOX_DT_F32, H, -4, 1);
    const both_vec bias = random_vec(MOX_DT_BF16, H, -2, 2), norm = random_vec(MOX_DT_F16, r.v_dim, 0.5f, 1.5f);
    const mox_gpu_gdn_mix m = {.x = upload_f32(x, C), .state = upload_f32(past, n_past + 1), .out = device_f32(C), .weight = w.device,
                               .a = upload_f32(wrong ? b : a, H), .b = upload_f32(b, H), .g = device_f32(H), .beta = device_f32(H),
                               .a_log = rate.device, .dt_bias = bias.device,
                               .k_heads = r.k_heads, .v_heads = H, .k_dim = r.k_dim, .v_dim = r.v_dim, .channels = C, .width = r.width,
                               .eps = 1e-6f};
    launch(MOX_GPU_KERNEL_gdn_mix, 2 * r.k_heads + H, 1, 1, &m);
    const mox_gpu_gdn_step p = {.mixed = m.out, .g = m.g, .beta = m.beta, .z = upload_f32(z, value),
                                .state = upload_f32(s, n_state), .out = device_f32(value),
                                .norm = norm.device, .k_heads = r.k_heads, .v_heads = H, .k_dim = r.k_dim, .v_dim = r.v_dim, .eps = 1e-6f};
    launch(MOX_GPU_KERNEL_gdn_step, H, 1, 1, &p);

    float *mixed = floats(C), *moved = floats(n_past + 1), *g = floats(H), *beta = floats(H), *s_want = floats(n_state), *out = floats(value);
    memcpy(moved, past, (size_t)n_past * 4);
    memcpy(s_want, s, (size_t)n_state * 4);
    mox_conv1d_silu_ref(&(mox_conv1d_silu_args){.x = x, .state = past, .weight = w.host, .out = mixed, .n = 1, .channels = C,
                                                .width = r.width, .x_stride = C, .out_stride = C}, 0, C);
    mox_conv1d_shift_ref(&(mox_conv1d_shift_args){.x = x, .state = moved, .n = 1, .channels = C, .width = r.width, .x_stride = C}, 0, C);
    mox_gdn_qk_norm_ref(&(mox_gdn_qk_norm_args){.q = mixed, .k = mixed + key, .n = 1, .heads = r.k_heads, .dim = r.k_dim, .stride = C,
                                                .eps = 1e-6f}, 0, 1);
    mox_gdn_gates_ref(&(mox_gdn_gates_args){.a = a, .b = b, .a_stride = H, .b_stride = H, .a_log = rate.host, .dt_bias = bias.host, .g = g,
                                            .beta = beta, .n = 1, .heads = H}, 0, 1);
    mox_gdn_recurrent_ref(&(mox_gdn_args){.q = mixed, .k = mixed + key, .v = mixed + 2 * key, .q_stride = C, .k_stride = C, .v_stride = C,
                                          .g = g, .beta = beta, .state = s_want, .out = out, .n = 1, .k_heads = r.k_heads, .v_heads = H,
                                          .k_dim = r.k_dim, .v_dim = r.v_dim}, 0, value);
    mox_gated_rms_norm_ref(&(mox_gated_rms_norm_args){.x = out, .z = z, .out = out, .rows = H, .dim = r.v_dim, .weight = norm.host,
                                                      .eps = 1e-6f}, 0, H);
    assert_true(within(download_f32(m.out, C), mixed, NULL, C, 1e-5, 2e-6));
    assert_memory_equal(download_f32(m.state, n_past), moved, (size_t)n_past * 4);
    return within(download_f32(p.state, n_state), s_want, NULL, n_state, 0, 1e-5) && within(download_f32(p.out, value), out, NULL, value, 1e-5, 3e-5);
}

static void test_step(void **state)
{
    (void)state;
    static const rule rules[] = {{2, 4, 128, 128, 4}, {1, 3, 36, 7, 2}, {3, 3, 64, 100, 8}, {1, 1, 4, 4, 1}};
    for (int i = 0; i < 4; i++) {
        kit_end(NULL);
        assert_true(step_right(rules[i], false));
        assert_false(step_right(rules[i], true));
    }
}

/* ---- norms of long rows ---- */

static void test_long_norms(void **state)
{
    (void)state;
    enum { ROWS = 3, LONG = 7168, ALL = ROWS * LONG };
    const both_vec w = random_vec(MOX_DT_BF16, LONG, 0.5f, 1.5f);
    const float *a = randoms(ALL, 2), *b = randoms(ALL, 2);
    float *res = floats(ALL), *norm = floats(ALL);
    mox_residual_norm_ref(&(mox_residual_norm_args){.a = a, .b = b, .res = res, .norm = norm, .rows = ROWS, .dim = LONG, .weight = w.host,
                                                    .offset = 1, .eps = 1e-6f}, 0, ROWS);
    mox_gpu_residual_norm_long p = {.a = upload_f32(a, ALL), .b = upload_f32(b, ALL), .norm = device_f32(ALL), .dim = LONG,
                                    .weight = w.device, .offset = 1, .eps = 1e-6f};
    p.res = (float *)(uintptr_t)p.a; /* as the engine calls it */
    launch(MOX_GPU_KERNEL_residual_norm_long, ROWS, 1, 1, &p);
    assert_memory_equal(download_f32(p.res, ALL), res, ALL * 4);
    assert_true(class_p(download_f32(p.norm, ALL), norm, ALL));
    mox_gpu_rms_norm_long n = {.x = p.res, .out = device_f32(ALL), .heads = 1, .dim = LONG, .x_stride = LONG, .x_head_stride = LONG,
                               .out_stride = LONG, .out_head_stride = LONG, .weight = w.device, .offset = 1, .eps = 1e-6f};
    launch(MOX_GPU_KERNEL_rms_norm_long, 1, ROWS, 1, &n);
    assert_true(class_p(download_f32(n.out, ALL), norm, ALL));
    n.eps = 1e-3f;
    launch(MOX_GPU_KERNEL_rms_norm_long, 1, ROWS, 1, &n);
    assert_false(class_p(download_f32(n.out, ALL), norm, ALL));
    launch(MOX_GPU_KERNEL_residual_norm_long, ROWS, 1, 1, &p); /* adds b once more */
    assert_false(class_p(download_f32(p.norm, ALL), norm, ALL));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, kit_begin, kit_end)
    const struct CMUnitTest tests[] = {TEST(test_shared_gate_up), TEST(test_shared_down), TEST(test_long_product), TEST(test_four_products), TEST(test_fold),
                                       TEST(test_unfold), TEST(test_streams), TEST(test_mla_heads), TEST(test_step), TEST(test_long_norms)};
    return cmocka_run_group_tests(tests, kit_open, kit_close);
}
