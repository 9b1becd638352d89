/* tests/unit/test_gpu_tiles.c -- GPU kernels on tiles, on the emulated device.
 *
 * They round operands to f16, so the references get the same rounded numbers and add them up in
 * double; what is left is the order of sums in f32.  Each kernel is also run with something
 * slightly wrong, which the comparison must notice. */
#include "gpu_cache_kit.h"
#include "gpu_mat_kit.h"

/* ---- tokens in f16 ---- */

typedef struct halves {
    uint16_t *x; /* on the device */
    float *scale;
    float *rounded; /* here: [n, cols], what they stand for */
    int64_t stride;
} halves;

static int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }
static float as_f16(float v) { return mox_f16_to_f32(mox_f32_to_f16(v)); }

/* The kernels for any weights, and for those of 4 bits. */
typedef enum form { ANY, Q4 } form;

/* Where column i of a row is kept: 16 in a row are of one lane, and those four apart are a pair. */
static int64_t place_of(int64_t i)
{
    const int64_t q = i / 16 % 4, pair = i % 4, tile = i / 8 % 2 * 2 + pair / 2;
    return i / 64 * 64 + i / 4 % 2 + tile * 16 + 2 * q + pair % 2 * 8;
}

/* Rows of x as half_rows leaves them, checked. */
static halves halve(const float *x, int64_t n, int64_t cols)
{
    const int64_t stride = over(cols, MOX_GPU_TILE_COLS) * MOX_GPU_TILE_COLS;
    halves h = {.x = upload(floats(n * stride), n * stride * 2), .scale = device_f32(n), .rounded = floats(n * cols), .stride = stride};
    const mox_gpu_half_rows p = {.x = upload_f32(x, n * cols), .f16 = h.x, .scale = h.scale, .cols = cols, .x_stride = cols,
                                 .half_stride = stride};
    launch(MOX_GPU_KERNEL_half_rows, n, 1, 1, &p);
    const uint16_t *got = download(h.x, n * stride * 2);
    const float *scale = download_f32(h.scale, n);
    bool taken[MOX_GPU_TILE_COLS] = {false};
    for (int i = 0; i < MOX_GPU_TILE_COLS; i++) {
        assert_false(taken[place_of(i)]);
        taken[place_of(i)] = true;
    }
    for (int64_t t = 0; t < n; t++) {
        int exponent;
        assert_true(frexpf(scale[t], &exponent) == 0.5f); /* a power of two */
        for (int64_t i = 0; i < stride; i++) {
            const float v = i < cols ? x[t * cols + i] : 0;
            const uint16_t half = got[t * stride + place_of(i)];
            if (isfinite(v)) assert_int_equal(half, mox_f32_to_f16(v / scale[t]));
            if (i < cols) h.rounded[t * cols + i] = mox_f16_to_f32(half) * scale[t];
        }
    }
    return h;
}

static void test_half_rows(void **state)
{
    (void)state;
    enum { N = 8, COLS = 70 };
    float *x = randoms(N * COLS, 1);
    static const float sizes[N] = {1, 1e6f, 1e-6f, 65504, 1e38f, KIT_TINY, 0, 3};
    for (int i = 0; i < N * COLS; i++) x[i] *= sizes[i / COLS];
    x[7 * COLS] = INFINITY;
    x[7 * COLS + 1] = NAN;
    const halves h = halve(x, N, COLS);
    for (int t = 0; t < 6; t++) { /* the largest of a row keeps all bits that f16 has */
        float largest = 0, off = 0;
        for (int i = 0; i < COLS; i++) {
            largest = fmaxf(largest, fabsf(x[t * COLS + i]));
            off = fmaxf(off, fabsf(x[t * COLS + i] - h.rounded[t * COLS + i]));
        }
        if (t != 5) assert_true(off <= largest / 2048);
        assert_true(off <= largest / 64);
    }
    assert_true(isinf(h.rounded[7 * COLS]) && isnan(h.rounded[7 * COLS + 1]));
}

/* Rounds what a matrix stands for as kernels do. */
static void round_mat(both_mat *m)
{
    for (int64_t i = 0; i < m->host.rows * m->host.cols; i++) m->value[i] = (double)as_f16((float)m->value[i]);
}

static both_mat rounded_mat(kind k, int64_t rows, int64_t cols, bool aligned)
{
    both_mat m = random_mat(k, rows, cols);
    round_mat(&m);
    if (!aligned) return m;
    const int64_t scale_bytes = rows * mox_mat_scale_row_bytes(&m.host.layout, cols);
    m.device.w = upload(m.host.w, rows * mox_mat_row_bytes(&m.host.layout, cols));
    m.device.scales = upload(m.host.scales, scale_bytes);
    m.device.biases = upload(m.host.biases, scale_bytes);
    return m;
}

/* ---- matmul ---- */

static bool matmul_right(const both_mat *m, const float *x, int64_t n, form f, const both_vec *bias, bool wrong)
{
    const int64_t rows = m->host.rows, cols = m->host.cols, stride = rows + 3, n_y = n * stride;
    const halves h = halve(x, n, cols);
    float *want = floats(n_y);
    double *mag = doubles(n_y);
    memset(mag, 0, (size_t)n_y * sizeof *mag);
    for (int64_t t = 0; t < n; t++)
        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = t * stride + r;
            want[at] = (float)dot(m, r, h.rounded + t * cols, &mag[at]);
            if (bias->host.type == MOX_DT_NONE) continue;
            want[at] += mox_vec_at(&bias->host, r);
            mag[at] += fabs((double)mox_vec_at(&bias->host, r));
        }
    const uint16_t zero = 0; /* wrong: for the last column of the last token */
    if (wrong) kit_ok(device_write(h.x + (n - 1) * h.stride + place_of(cols - 1), &zero, sizeof zero));
    const mox_gpu_matmul p = {.w = m->device, .x = h.x, .x_scale = h.scale, .y = device_f32(n_y), .n = n, .rows = rows,
                              .x_stride = h.stride, .y_stride = stride, .bias = bias->device};
    launch(f == Q4 ? MOX_GPU_KERNEL_matmul_q4 : MOX_GPU_KERNEL_matmul, over(n, MOX_GPU_TILE_TOKENS), over(rows, MOX_GPU_TILE_ROWS), 1, &p);
    return within(download_f32(p.y, n_y), want, mag, n_y, 1e-5, 1e-7); /* class D; what is between rows stays NaN */
}

static const int64_t shapes[][3] = {{1, 1, 40}, {5, 131, 300}, {130, 9, 33}, {17, 40, 96}}; /* tokens, rows, columns */
enum { N_SHAPES = 4 };

static void check_matmul(int k, const int64_t *shape, form f)
{
    kit_end(NULL);
    const both_mat m = rounded_mat(kinds[k], shape[1], fit(kinds[k], shape[2]), f != ANY);
    const both_vec bias = random_vec(k % 2 ? MOX_DT_BF16 : MOX_DT_NONE, shape[1], -1, 1);
    const float *x = randoms(shape[0] * m.host.cols, 3);
    if (!matmul_right(&m, x, shape[0], f, &bias, false)) fail_msg("kind %d, %d tokens", k, (int)shape[0]);
    assert_false(matmul_right(&m, x, shape[0], f, &bias, true));
}

static void test_matmul(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) check_matmul(k, shapes[k % N_SHAPES], ANY);
    for (int s = 0; s < N_SHAPES; s++) check_matmul(8, shapes[s], ANY);
}

static void test_matmul_q4(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++)
        for (int s = 0; s < N_SHAPES; s++)
            if (kinds[k].kind == MOX_MAT_AFFINE && kinds[k].bits == 4 && kinds[k].scales != MOX_DT_F32) check_matmul(k, shapes[s], Q4);
}

/* A token gives the same bytes alone and among others. */
static void test_tokens_are_independent(void **state)
{
    (void)state;
    enum { ROWS = 20, COLS = 128, N = 140 };
    const both_mat m = rounded_mat(kinds[7], ROWS, COLS, true);
    const float *x = randoms(N * COLS, 1);
    const halves h = halve(x, N, COLS);
    mox_gpu_matmul p = {.w = m.device, .x = h.x, .x_scale = h.scale, .y = device_f32(N * ROWS), .n = N, .rows = ROWS, .x_stride = COLS,
                        .y_stride = ROWS};
    launch(MOX_GPU_KERNEL_matmul_q4, 2, 1, 1, &p);
    const float *all = download_f32(p.y, N * ROWS);
    for (int i = 0; i < N * ROWS; i++) assert_true(isfinite(all[i]));
    p.n = 1;
    for (int t = 0; t < N; t += 23) {
        p.x = h.x + t * COLS;
        p.x_scale = h.scale + t;
        launch(MOX_GPU_KERNEL_matmul_q4, 1, 1, 1, &p);
        assert_memory_equal(download_f32(p.y, ROWS), all + t * ROWS, ROWS * 4);
    }
}

/* ---- experts ---- */

typedef struct sorted {
    int64_t *offsets;
    int32_t *pairs;
    mox_gpu_expert_tile *tiles; /* all on the device */
    int64_t n_tiles;
} sorted;

static sorted sort_pairs(const int32_t *ids, int64_t n_pairs, int64_t n_experts)
{
    sorted s = {.n_tiles = n_pairs / MOX_GPU_TILE_TOKENS + n_experts};
    s.offsets = upload(host_bytes(8 * (n_experts + 1)), 8 * (n_experts + 1));
    s.pairs = upload(host_bytes(4 * n_pairs + 4), 4 * n_pairs + 4);
    s.tiles = upload(host_bytes(s.n_tiles * 24), s.n_tiles * 24);
    const mox_gpu_moe_sort p = {.ids = upload(ids, 4 * n_pairs + 4), .offsets = s.offsets, .pairs = s.pairs, .n_pairs = n_pairs,
                                .n_experts = n_experts};
    launch(MOX_GPU_KERNEL_moe_sort, n_experts, 1, 1, &p);
    const mox_gpu_moe_tiles t = {.offsets = s.offsets, .tiles = s.tiles, .n_experts = n_experts, .n_tiles = s.n_tiles};
    launch(MOX_GPU_KERNEL_moe_tiles, 1, 1, 1, &t);
    return s;
}

static void test_sort(void **state)
{
    (void)state;
    static const int64_t pairs[] = {0, 1, 255, 256, 1000}, experts[] = {1, 3, 7, 300, 5};
    for (int c = 0; c < 5; c++) {
        kit_end(NULL);
        const int64_t n = pairs[c], n_experts = experts[c];
        int32_t *ids = host_bytes(4 * n + 4);
        for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(mox_rng_u64(&kit.rng) % (uint64_t)(n_experts + 1) * 7 / 8); /* some have none */
        for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)least_of(ids[i], n_experts - 1);
        const sorted s = sort_pairs(ids, n, n_experts);
        const int64_t *offsets = download(s.offsets, 8 * (n_experts + 1));
        const int32_t *got = download(s.pairs, 4 * n + 4);
        const mox_gpu_expert_tile *tiles = download(s.tiles, s.n_tiles * 24);
        int64_t at = 0, tile = 0;
        for (int64_t e = 0; e < n_experts; e++) {
            assert_int_equal(offsets[e], at);
            const int64_t first = at;
            for (int64_t i = 0; i < n; i++)
                if (ids[i] == e) assert_int_equal(got[at++], i);
            for (int64_t place = first; place < at; place += MOX_GPU_TILE_TOKENS, tile++) {
                assert_int_equal(tiles[tile].expert, e);
                assert_int_equal(tiles[tile].place, place);
                assert_int_equal(tiles[tile].n, least_of(MOX_GPU_TILE_TOKENS, at - place));
            }
        }
        assert_int_equal(offsets[n_experts], n);
        assert_int_equal(at, n);
        for (; tile < s.n_tiles; tile++) assert_int_equal(tiles[tile].n, 0);
    }
}

enum { EXPERTS = 4, SLOTS = 2, N_TOKENS = 110, PAIRS = N_TOKENS * SLOTS };

typedef struct layer {
    int64_t dim, width;
    both_mat gate[EXPERTS], up[EXPERTS], down[EXPERTS];
    int32_t ids[PAIRS + 1];
} layer;

static mox_gpu_mat *mats(const both_mat *m)
{
    mox_gpu_mat all[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) all[e] = m[e].device;
    return upload(all, sizeof all);
}

/* Returns silu(gate x) * (up x) of all pairs, in the order of the pairs. */
static float *run_gate_up(const layer *l, form f, const sorted *s, const halves *h, int64_t divisor)
{
    float *y = device_f32(PAIRS * l->width);
    const mox_gpu_experts_tiles p = {.gate = mats(l->gate), .up = mats(l->up), .tiles = s->tiles, .x_row = s->pairs, .y_row = s->pairs,
                                     .x = h->x, .x_scale = h->scale, .y = y, .rows = l->width, .x_stride = h->stride,
                                     .y_stride = l->width, .x_divisor = divisor};
    launch(f == Q4 ? MOX_GPU_KERNEL_experts_gate_up_tiles_q4 : MOX_GPU_KERNEL_experts_gate_up_tiles, over(l->width, MOX_GPU_TILE_ROWS / 2),
           s->n_tiles, 1, &p);
    return download_f32(y, PAIRS * l->width);
}

static float *run_down(const layer *l, form f, const sorted *s, const halves *h)
{
    float *y = device_f32(PAIRS * l->dim);
    const mox_gpu_experts_tiles p = {.gate = mats(l->down), .tiles = s->tiles, .x_row = s->pairs, .y_row = s->pairs, .x = h->x,
                                     .x_scale = h->scale, .y = y, .rows = l->dim, .x_stride = h->stride, .y_stride = l->dim,
                                     .x_divisor = 1};
    launch(f == Q4 ? MOX_GPU_KERNEL_experts_down_tiles_q4 : MOX_GPU_KERNEL_experts_down_tiles, over(l->dim, MOX_GPU_TILE_ROWS),
           s->n_tiles, 1, &p);
    return download_f32(y, PAIRS * l->dim);
}

static bool experts_right(const layer *l, form f, const float *x, bool wrong)
{
    const int64_t n_mid = PAIRS * l->width, n_out = PAIRS * l->dim;
    const sorted s = sort_pairs(l->ids, PAIRS, EXPERTS);
    const halves hx = halve(x, N_TOKENS, l->dim);
    const float *mid = run_gate_up(l, f, &s, &hx, wrong ? SLOTS + 1 : SLOTS);
    float *want = floats(n_mid), *last = floats(n_out);
    double *mag = doubles(n_mid), *last_mag = doubles(n_out), gate_mag, up_mag;
    for (int64_t i = 0; i < n_mid; i++) {
        const int64_t pair = i / l->width, e = l->ids[pair], r = i % l->width;
        const float *row = hx.rounded + pair / SLOTS * l->dim;
        const double gate = dot(&l->gate[e], r, row, &gate_mag), up = dot(&l->up[e], r, row, &up_mag);
        want[i] = (float)(gate / (1 + exp(-gate)) * up);
        mag[i] = gate_mag * up_mag + fabs((double)want[i]);
    }
    if (!within(mid, want, mag, n_mid, 2e-5, 1e-6)) return false;
    const halves hm = halve(mid, PAIRS, l->width);
    for (int64_t i = 0; i < n_out; i++)
        last[i] = (float)dot(&l->down[l->ids[i / l->dim]], i % l->dim, hm.rounded + i / l->dim * l->width, &last_mag[i]);
    return within(run_down(l, f, &s, &hm), last, last_mag, n_out, 1e-5, 1e-6);
}

static void test_experts(void **state)
{
    (void)state;
    for (int f = ANY; f <= Q4; f++) {
        kit_end(NULL);
        layer *l = host_bytes(sizeof *l);
        const bool is_q4 = f != ANY;
        const int four = 7; /* of 4 bits */
        l->dim = 64;
        l->width = 96;
        for (int i = 0; i <= PAIRS; i++) l->ids[i] = i % 3 == 0 ? 1 : i % 11 == 0 ? 0 : 3; /* many take 3, nobody 2 */
        for (int e = 0; e < EXPERTS; e++) {
            l->gate[e] = rounded_mat(kinds[!is_q4 && e == 1 ? 12 : four], l->width, l->dim, is_q4); /* layouts may differ */
            l->up[e] = rounded_mat(kinds[!is_q4 && e == 1 ? 0 : four], l->width, l->dim, is_q4);
            l->down[e] = rounded_mat(kinds[is_q4 ? four : e == 3 ? 17 : 1], l->dim, l->width, is_q4);
        }
        const float *x = randoms(N_TOKENS * l->dim, 1);
        assert_true(experts_right(l, (form)f, x, false));
        assert_false(experts_right(l, (form)f, x, true));
    }
}

/* ---- attention ---- */

static float *flash(mox_gpu_attention a, int64_t dim, int64_t n_tiles, int64_t n_out)
{
    a.out = device_f32(n_out);
    const mox_gpu_attention_flash p = {.a = a, .n_tiles = n_tiles};
    launch(dim == 64 ? MOX_GPU_KERNEL_attention_flash_64 : dim == 128 ? MOX_GPU_KERNEL_attention_flash_128 : MOX_GPU_KERNEL_attention_flash_256,
           a.heads, n_tiles, 1, &p);
    return download_f32(a.out, n_out);
}

static void check_flash(int i, const int64_t n[SPANS], const int64_t pos0[SPANS], int64_t heads, int64_t kv_heads, int64_t dim)
{
    const timeline *t = make_timeline_of(n, pos0);
    const both_cache k = make_cache(MOX_DT_F16, kv_heads, dim), v = make_cache(MOX_DT_F16, kv_heads, dim);
    int64_t rows = 0, n_tiles = 0;
    for (int s = 0; s < SPANS; s++) {
        rows += n[s];
        n_tiles += over(n[s], MOX_GPU_FLASH_ROWS);
    }
    const int64_t n_out = rows * heads * dim;
    float *q = randoms(n_out, 2), *want = floats(n_out);
    for (int64_t j = 0; j < n_out; j++) q[j] = as_f16(q[j]); /* what the kernel rounds to */
    const float *sinks = i % 2 ? randoms(heads, 2) : NULL;
    const float scale = 1.6f / (float)sqrt((double)dim);
    const mox_attention_args a = {.q = q, .out = want, .k = k.host, .v = v.host, .spans = t->host, .n_spans = SPANS, .heads = heads,
                                  .kv_heads = kv_heads, .dim = dim, .v_dim = dim, .q_stride = heads * dim, .q_head_stride = dim,
                                  .out_stride = heads * dim, .out_head_stride = dim, .scale = scale, .causal = i != 2,
                                  .window = i == 3 ? 40 : 0, .sinks = sinks};
    mox_attention_ref(&a, 0, rows * heads);
    mox_gpu_attention p = {.q = upload_f32(q, n_out), .sinks = sinks ? upload_f32(sinks, heads) : NULL, .spans = t->device, .k = k.device,
                           .v = v.device, .n_spans = SPANS, .heads = heads, .kv_heads = kv_heads, .dim = dim, .v_dim = dim,
                           .q_stride = heads * dim, .q_head_stride = dim, .out_stride = heads * dim, .out_head_stride = dim,
                           .window = a.window, .scale = scale, .causal = a.causal};
    /* Weights are rounded to f16, 2^-11 of each at most, and add up to 1; values are below 1. */
    const double bound = 1.0 / 2048;
    assert_true(within(flash(p, dim, n_tiles, n_out), want, NULL, n_out, 0, bound));
    p.scale = scale * 1.02f;
    assert_false(within(flash(p, dim, n_tiles, n_out), want, NULL, n_out, 0, bound));
    p.scale = scale;
    p.window = i == 3 ? 41 : 14; /* one key more, or fewer for those that see many */
    assert_false(within(flash(p, dim, n_tiles, n_out), want, NULL, n_out, 0, bound));
}

static void test_flash(void **state)
{
    (void)state;
    static const int64_t n[][SPANS] = {{6, 1, 70}, {1, 1, 129}, {3, 20, 64}, {65, 1, 2}, {30, 1, 66}};
    static const int64_t pos0[SPANS] = {13, 420, 0}, dims[] = {64, 128, 64, 128, 256};
    for (int i = 0; i < 5; i++) {
        kit_end(NULL);
        check_flash(i, n[i], pos0, i == 1 ? 4 : 2, i == 2 ? 2 : 1, dims[i]);
    }
}

/* Right behind an append, before the end of which the kernel begins. */
static float *share(mox_gpu_attention p, const mox_gpu_kv_append *append, int64_t n_out)
{
    const int64_t per_kv = p.heads / p.kv_heads;
    p.out = device_f32(n_out);
    launch(MOX_GPU_KERNEL_kv_append, over(append->heads, 4), SPANS, 1, append);
    launch(p.dim == 64    ? MOX_GPU_KERNEL_attention_share_64
           : p.dim == 128 ? MOX_GPU_KERNEL_attention_share_128
                          : MOX_GPU_KERNEL_attention_share_256,
           p.kv_heads * over(per_kv, MOX_GPU_SHARE_HEADS), SPANS, p.n_pieces, &p);
    if (p.n_pieces > 1) launch(MOX_GPU_KERNEL_attention_join, p.heads, SPANS, p.v_dim / MOX_GPU_JOIN_WIDE, &p);
    return download_f32(p.out, n_out);
}

/* Three rows, each alone in its span; the key of the first is the last of 16, which a wave would have asked for at once. */
static void check_share(int i, int64_t heads, int64_t kv_heads, int64_t dim)
{
    const timeline *t = make_timeline_of((const int64_t[SPANS]){1, 1, 1}, (const int64_t[SPANS]){15, 480, 0});
    const both_cache k = make_cache(MOX_DT_F16, kv_heads, dim), v = make_cache(MOX_DT_F16, kv_heads, dim);
    const both_cache *appended = i % 2 ? &k : &v;
    const int64_t n_out = SPANS * heads * dim, n_src = SPANS * kv_heads * dim;
    const float *q = randoms(n_out, 2), *sinks = i % 2 ? randoms(heads, 2) : NULL;
    const float *src = randoms(n_src, 1);
    float *want = floats(n_out);
    mox_kv_append_ref(&(mox_kv_append_args){.cache = appended->host, .spans = t->host, .n_spans = SPANS, .src = src, .heads = kv_heads, .dim = dim,
                                            .stride = kv_heads * dim, .head_stride = dim}, 0, SPANS);
    const mox_gpu_kv_append append = {.cache = appended->device, .spans = t->device, .src = upload_f32(src, n_src), .n_spans = SPANS,
                                      .heads = kv_heads, .dim = dim, .stride = kv_heads * dim, .head_stride = dim};
    const mox_attention_args a = {.q = q, .out = want, .k = k.host, .v = v.host, .spans = t->host, .n_spans = SPANS, .heads = heads,
                                  .kv_heads = kv_heads, .dim = dim, .v_dim = dim, .q_stride = heads * dim, .q_head_stride = dim,
                                  .out_stride = heads * dim, .out_head_stride = dim, .scale = 0.2f, .causal = true,
                                  .window = i == 3 ? 300 : 0, .sinks = sinks};
    mox_attention_ref(&a, 0, SPANS * heads);
    mox_gpu_attention p = {.q = upload_f32(q, n_out), .sinks = sinks ? upload_f32(sinks, heads) : NULL, .spans = t->device, .k = k.device,
                           .v = v.device, .n_spans = SPANS, .heads = heads, .kv_heads = kv_heads, .dim = dim, .v_dim = dim,
                           .q_stride = heads * dim, .q_head_stride = dim, .out_stride = heads * dim, .out_head_stride = dim,
                           .window = a.window, .scale = 0.2f, .causal = 1, .n_pieces = 1};
    assert_true(class_s(share(p, &append, n_out), want, n_out, 1));
    p.n_pieces = MOX_GPU_PIECES;
    p.parts = device_f32(SPANS * heads * MOX_GPU_PIECES * (dim + 2));
    assert_true(class_s(share(p, &append, n_out), want, n_out, 1));
    p.scale = 0.2005f;
    assert_false(class_s(share(p, &append, n_out), want, n_out, 1));
    p.scale = 0.2f;
    p.window = i == 3 ? 301 : 14; /* one key more, or fewer */
    assert_false(class_s(share(p, &append, n_out), want, n_out, 1));
}

static void test_share(void **state)
{
    (void)state;
    static const int64_t heads[][3] = {{8, 1, 128}, {6, 2, 128}, {20, 1, 128}, {4, 1, 256}, {18, 2, 64}}; /* heads, of keys, dim */
    for (int i = 0; i < 5; i++) {
        kit_end(NULL);
        check_share(i, heads[i][0], heads[i][1], heads[i][2]);
    }
}

/* Rows of any length: how many pieces there are, n, follows from positions, and nothing else is read but the pieces. */
static void check_join(int64_t n_pieces, const int64_t pos0[SPANS], const int64_t n[SPANS], int64_t heads, int64_t dim, bool with_sinks)
{
    const timeline *t = make_timeline_of((const int64_t[SPANS]){1, 1, 1}, pos0);
    const int64_t n_all = SPANS * heads * n_pieces, n_out = SPANS * heads * dim;
    float *parts = randoms(n_all * (dim + 2), 1), *pairs = parts + n_all * dim, *want = floats(n_out);
    const float *sinks = with_sinks ? randoms(heads, 4) : NULL;
    for (int64_t i = 0; i < n_all; i++) {
        pairs[2 * i] = uniform(-9, 9);
        pairs[2 * i + 1] = uniform(1, 5);
    }
    for (int64_t i = 0; i < SPANS * heads; i++) {
        const float *sum = parts + i * n_pieces * dim, *pair = pairs + 2 * i * n_pieces;
        double denom = sinks ? exp((double)sinks[i % heads]) : 0;
        for (int64_t j = 0; j < n[i / heads]; j++) denom += exp((double)pair[2 * j]) * (double)pair[2 * j + 1];
        for (int64_t d = 0; d < dim; d++) {
            double all = 0;
            for (int64_t j = 0; j < n[i / heads]; j++) all += exp((double)pair[2 * j]) * (double)sum[j * dim + d];
            want[i * dim + d] = (float)(all / denom);
        }
    }
    mox_gpu_attention p = {.out = device_f32(n_out), .parts = upload_f32(parts, n_all * (dim + 2)), .spans = t->device,
                           .sinks = sinks ? upload_f32(sinks, heads) : NULL, .n_spans = SPANS, .heads = heads, .kv_heads = heads, .dim = dim,
                           .v_dim = dim, .out_stride = heads * dim, .out_head_stride = dim, .n_pieces = n_pieces, .scale = 1.0f, .causal = 1};
    launch(MOX_GPU_KERNEL_attention_join, heads, SPANS, dim / MOX_GPU_JOIN_WIDE, &p);
    assert_true(class_s(download_f32(p.out, n_out), want, n_out, 1));
    p.n_pieces--; /* other pieces than were left */
    launch(MOX_GPU_KERNEL_attention_join, heads, SPANS, dim / MOX_GPU_JOIN_WIDE, &p);
    assert_false(class_s(download_f32(p.out, n_out), want, n_out, 1));
}

static void test_join(void **state)
{
    (void)state;
    check_join(64, (const int64_t[SPANS]){128, 8191, 16383}, (const int64_t[SPANS]){2, 64, 64}, 3, 128, false);
    kit_end(NULL);
    check_join(200, (const int64_t[SPANS]){8320, 16384, 25599}, (const int64_t[SPANS]){66, 129, 200}, 2, 64, true);
    kit_end(NULL);
    check_join(17, (const int64_t[SPANS]){2175, 1000, 255}, (const int64_t[SPANS]){17, 8, 2}, 2, 256, false);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, kit_begin, kit_end)
    const struct CMUnitTest tests[] = {TEST(test_half_rows), TEST(test_matmul), TEST(test_matmul_q4), TEST(test_tokens_are_independent),
                                       TEST(test_sort), TEST(test_experts), TEST(test_flash), TEST(test_share), TEST(test_join)};
    return cmocka_run_group_tests(tests, kit_open, kit_close);
}
