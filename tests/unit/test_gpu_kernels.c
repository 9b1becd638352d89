/* tests/unit/test_gpu_kernels.c -- GPU kernels without weights, against
 * the references of src/ops.
 *
 * Each kernel is also run with something slightly wrong, which the comparison must notice. */
#include "gpu_cache_kit.h"

#include "base/size.h"

/* ---- pointwise ---- */

static void test_pointwise(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 255, 256, 257, 1000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t n = sizes[s];
        const float *a = randoms(n, 2), *b = randoms(n, 9);
        float *want = floats(n);
        mox_add_ref(&(mox_add_args){.a = a, .b = b, .out = want, .n = n}, 0, n);
        const mox_gpu_add p = {.a = upload_f32(a, n), .b = upload_f32(b, n), .out = device_f32(n), .n = n};
        launch(MOX_GPU_KERNEL_add, over(n, 256), 1, 1, &p);
        assert_memory_equal(download_f32(p.out, n), want, (size_t)n * 4);
        const mox_gpu_add in_place = {.a = p.a, .b = p.b, .out = (float *)(uintptr_t)p.b, .n = n};
        launch(MOX_GPU_KERNEL_add, over(n, 256), 1, 1, &in_place);
        assert_memory_equal(download_f32(p.b, n), want, (size_t)n * 4);

        memcpy(want, a, (size_t)n * 4);
        mox_sigmoid_gate_ref(&(mox_sigmoid_gate_args){.x = want, .gate = b, .n = n}, 0, n);
        mox_gpu_sigmoid_gate g = {.x = upload_f32(a, n), .gate = upload_f32(b, n), .n = n};
        launch(MOX_GPU_KERNEL_sigmoid_gate, over(n, 256), 1, 1, &g);
        assert_true(class_p(download_f32(g.x, n), want, n));
        launch(MOX_GPU_KERNEL_sigmoid_gate, over(n, 256), 1, 1, &g); /* twice is wrong */
        assert_false(class_p(download_f32(g.x, n), want, n));
    }
}

static void test_copy(void **state)
{
    (void)state;
    enum { N = 3, HEADS = 5, DIM = 70, SRC = 1000, DST = 400 };
    const float *src = randoms(N * SRC, 1);
    float *want = floats(N * DST);
    for (int i = 0; i < N * HEADS * DIM; i++)
        want[i / (HEADS * DIM) * DST + i / DIM % HEADS * 80 + i % DIM] = src[i / (HEADS * DIM) * SRC + i / DIM % HEADS * 150 + i % DIM];
    const mox_gpu_copy p = {.src = upload_f32(src, N * SRC), .dst = device_f32(N * DST), .n = N, .heads = HEADS, .dim = DIM,
                            .src_stride = SRC, .src_head_stride = 150, .dst_stride = DST, .dst_head_stride = 80};
    launch(MOX_GPU_KERNEL_copy, over(HEADS * DIM, 256), N, 1, &p);
    assert_memory_equal(download_f32(p.dst, N * DST), want, N * DST * 4);
}

/* ---- norms ---- */

static const mox_dtype vector_types[] = {MOX_DT_F32, MOX_DT_F16, MOX_DT_BF16, MOX_DT_NONE};

static void test_rms_norm(void **state)
{
    (void)state;
    static const int64_t dims[] = {1, 31, 33, 128, 1000, 2100}; /* the last is more than threads keep */
    enum { N = 3, HEADS = 9 };
    for (size_t s = 0; s < sizeof dims / sizeof *dims; s++) {
        const int64_t dim = dims[s], head = dim + 1, stride = HEADS * head, all = N * stride;
        const both_vec w = random_vec(vector_types[s % 4], dim, -1, 1);
        const float *x = randoms(all, 3);
        float *want = floats(all);
        mox_rms_norm_ref(&(mox_rms_norm_args){.x = x, .out = want, .n = N, .heads = HEADS, .dim = dim, .x_stride = stride,
                                              .x_head_stride = head, .out_stride = stride, .out_head_stride = head,
                                              .weight = w.host, .offset = 1, .eps = 1e-5f}, 0, N * HEADS);
        mox_gpu_rms_norm p = {.x = upload_f32(x, all), .out = device_f32(all), .heads = HEADS, .dim = dim, .x_stride = stride,
                              .x_head_stride = head, .out_stride = stride, .out_head_stride = head, .weight = w.device,
                              .offset = 1, .eps = 1e-5f};
        launch(MOX_GPU_KERNEL_rms_norm, HEADS, N, 1, &p);
        assert_true(class_p(download_f32(p.out, all), want, all));
        p.out = device_f32(all);
        launch(MOX_GPU_KERNEL_rms_norm_heads, over(HEADS, 8), N, 1, &p);
        assert_true(class_p(download_f32(p.out, all), want, all));
        p.eps = 1e-3f;
        launch(MOX_GPU_KERNEL_rms_norm, HEADS, N, 1, &p);
        assert_false(class_p(download_f32(p.out, all), want, all));
        p.eps = 1e-5f;
        p.out = (float *)(uintptr_t)p.x; /* in place */
        launch(MOX_GPU_KERNEL_rms_norm_heads, over(HEADS, 8), N, 1, &p);
        for (int64_t r = 0; r < N * HEADS; r++) assert_true(class_p(download_f32(p.x + r * head, dim), want + r * head, dim));
    }
}

static void test_fused_norms(void **state)
{
    (void)state;
    enum { ROWS = 11, DIM = 2100, ALL = ROWS * DIM };
    const both_vec w = random_vec(MOX_DT_BF16, DIM, 0.5f, 1.5f);
    const float *a = randoms(ALL, 2), *b = randoms(ALL, 2);
    float *res = floats(ALL), *norm = floats(ALL);
    mox_residual_norm_ref(&(mox_residual_norm_args){.a = a, .b = b, .res = res, .norm = norm, .rows = ROWS, .dim = DIM,
                                                    .weight = w.host, .eps = 1e-6f}, 0, ROWS);
    mox_gpu_residual_norm p = {.a = upload_f32(a, ALL), .b = upload_f32(b, ALL), .norm = device_f32(ALL), .dim = DIM,
                               .weight = w.device, .eps = 1e-6f};
    p.res = (float *)(uintptr_t)p.a; /* as the engine calls it */
    launch(MOX_GPU_KERNEL_residual_norm, ROWS, 1, 1, &p);
    assert_memory_equal(download_f32(p.res, ALL), res, ALL * 4);
    assert_true(class_p(download_f32(p.norm, ALL), norm, ALL));
    launch(MOX_GPU_KERNEL_residual_norm, ROWS, 1, 1, &p); /* adds b once more */
    assert_false(class_p(download_f32(p.norm, ALL), norm, ALL));

    mox_gated_rms_norm_ref(&(mox_gated_rms_norm_args){.x = a, .z = b, .out = norm, .rows = ROWS, .dim = DIM, .weight = w.host,
                                                      .eps = 1e-6f}, 0, ROWS);
    mox_gpu_gated_rms_norm g = {.x = upload_f32(a, ALL), .z = upload_f32(b, ALL), .rows = ROWS, .dim = DIM, .weight = w.device,
                                .eps = 1e-6f};
    g.out = (float *)(uintptr_t)g.x;
    launch(MOX_GPU_KERNEL_gated_rms_norm, over(ROWS, 8), 1, 1, &g);
    assert_true(class_p(download_f32(g.out, ALL), norm, ALL));
    launch(MOX_GPU_KERNEL_gated_rms_norm, over(ROWS, 8), 1, 1, &g);
    assert_false(class_p(download_f32(g.out, ALL), norm, ALL));
}

/* ---- rope ---- */

static void test_rope(void **state)
{
    (void)state;
    enum { N = 5, HEADS = 3, DIM = 40, ROTARY = 32, ALL = N * HEADS * DIM };
    const int32_t pos[N] = {0, 1, 4096, 131071, 1000000};
    float freq[ROTARY / 2];
    for (int i = 0; i < ROTARY / 2; i++) freq[i] = powf(10000, -2.0f * (float)i / ROTARY);
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        const float *x = randoms(ALL, 1);
        float *want = floats(ALL);
        memcpy(want, x, ALL * 4);
        mox_rope_ref(&(mox_rope_args){.x = want, .n = N, .heads = HEADS, .stride = HEADS * DIM, .head_stride = DIM,
                                      .rotary_dim = ROTARY, .inv_freq = freq, .mscale = 1.1f, .pos = pos, .pos_stride = 1,
                                      .pairing = interleaved ? MOX_ROPE_INTERLEAVED : MOX_ROPE_HALF}, 0, N);
        mox_gpu_rope p = {.x = upload_f32(x, ALL), .inv_freq = upload_f32(freq, ROTARY / 2), .pos = upload(pos, sizeof pos),
                          .heads = HEADS, .stride = HEADS * DIM, .head_stride = DIM, .rotary_dim = ROTARY, .pos_stride = 1,
                          .mscale = 1.1f, .interleaved = interleaved};
        launch(MOX_GPU_KERNEL_rope, 1, N, 1, &p);
        assert_true(within(download_f32(p.x, ALL), want, NULL, ALL, 0, 1e-5));
        p.x = upload_f32(x, ALL);
        p.interleaved = !interleaved;
        launch(MOX_GPU_KERNEL_rope, 1, N, 1, &p);
        assert_false(within(download_f32(p.x, ALL), want, NULL, ALL, 0, 1e-5));
    }
}

/* ---- attention ---- */

static const mox_dtype cache_types[] = {MOX_DT_F32, MOX_DT_F16, MOX_DT_I8};

static void test_kv_append(void **state)
{
    (void)state;
    enum { HEADS = 5, STRIDE = 400 };
    static const int64_t dims[] = {64, 33, 7};
    for (int k = 0; k < 9; k++) {
        kit_end(NULL);
        const int64_t dim = dims[k / 3];
        const timeline *t = make_timeline();
        const both_cache c = make_cache(cache_types[k % 3], HEADS, dim);
        float *src = randoms(ROWS_OF_SPANS * STRIDE, 3);
        src[3] = INFINITY; /* q8: a block of NaN each */
        src[STRIDE] = NAN;
        src[2 * STRIDE] = 1e20f;
        for (int64_t d = 0; d < dim; d++) src[3 * STRIDE + d] = 0;
        mox_kv_append_ref(&(mox_kv_append_args){.cache = c.host, .spans = t->host, .n_spans = SPANS, .src = src, .heads = HEADS,
                                                .dim = dim, .stride = STRIDE, .head_stride = 70}, 0, ROWS_OF_SPANS);
        const mox_gpu_kv_append p = {.cache = c.device, .spans = t->device, .src = upload_f32(src, ROWS_OF_SPANS * STRIDE),
                                     .n_spans = SPANS, .heads = HEADS, .dim = dim, .stride = STRIDE, .head_stride = 70};
        assert_memory_not_equal(download(c.device.data, c.bytes), c.host.data, (size_t)c.bytes);
        launch(MOX_GPU_KERNEL_kv_append, over(HEADS, 4), ROWS_OF_SPANS, 1, &p);
        assert_memory_equal(download(c.device.data, c.bytes), c.host.data, (size_t)c.bytes);
    }
}

static float *attend(mox_gpu_attention p, int64_t n_out)
{
    p.out = device_f32(n_out);
    launch(MOX_GPU_KERNEL_attention, p.heads, ROWS_OF_SPANS, p.n_pieces, &p);
    if (p.n_pieces > 1) launch(MOX_GPU_KERNEL_attention_merge, p.heads, SPANS, 1, &p);
    return download_f32(p.out, n_out);
}

static void check_attention(int i, int64_t heads, int64_t kv_heads, int64_t dim, int64_t v_dim)
{
    const timeline *t = make_timeline();
    const both_cache k = make_cache(cache_types[i % 3], kv_heads, dim), v = make_cache(cache_types[i % 3], kv_heads, v_dim);
    const int64_t n_q = ROWS_OF_SPANS * heads * dim, n_out = ROWS_OF_SPANS * heads * v_dim;
    const float *q = randoms(n_q, 2), *sinks = i % 2 ? randoms(heads, 2) : NULL;
    float *want = floats(n_out);
    const mox_attention_args a = {.q = q, .out = want, .k = k.host, .v = v.host, .spans = t->host, .n_spans = SPANS, .heads = heads,
                                  .kv_heads = kv_heads, .dim = dim, .v_dim = v_dim, .q_stride = heads * dim, .q_head_stride = dim,
                                  .out_stride = heads * v_dim, .out_head_stride = v_dim, .scale = 0.4f, .causal = i != 2,
                                  .window = i == 3 ? 300 : 0, .sinks = sinks};
    mox_attention_ref(&a, 0, ROWS_OF_SPANS * heads);
    mox_gpu_attention p = {.q = upload_f32(q, n_q), .sinks = sinks ? upload_f32(sinks, heads) : NULL, .spans = t->device,
                           .k = k.device, .v = v.device, .n_spans = SPANS, .heads = heads, .kv_heads = kv_heads, .dim = dim,
                           .v_dim = v_dim, .q_stride = heads * dim, .q_head_stride = dim, .out_stride = heads * v_dim,
                           .out_head_stride = v_dim, .window = a.window, .n_pieces = 1, .scale = 0.4f, .causal = a.causal};
    assert_true(class_s(attend(p, n_out), want, n_out, 1));
    p.n_pieces = MOX_GPU_PIECES;
    p.parts = device_f32(SPANS * heads * MOX_GPU_PIECES * (v_dim + 2));
    assert_true(class_s(attend(p, n_out), want, n_out, 1));
    p.scale = 0.401f;
    assert_false(class_s(attend(p, n_out), want, n_out, 1));
    p.scale = 0.4f;
    p.window = i == 3 ? 301 : 14; /* one key more for the long one, or less for the short ones */
    assert_false(class_s(attend(p, n_out), want, n_out, 1));
}

static void test_attention(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {{4, 2, 64, 64}, {3, 3, 33, 130}, {8, 1, 16, 16}, {2, 1, 128, 128}, {2, 2, 7, 5}};
    for (int i = 0; i < 5; i++) {
        kit_end(NULL);
        check_attention(i, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]);
    }
}

static float *decode(mox_gpu_attention p, int64_t n_out)
{
    p.out = device_f32(n_out);
    launch(p.dim == 64    ? MOX_GPU_KERNEL_attention_decode_64
           : p.dim == 128 ? MOX_GPU_KERNEL_attention_decode_128
                          : MOX_GPU_KERNEL_attention_decode_256,
           p.heads, SPANS, 1, &p);
    return download_f32(p.out, n_out);
}

/* Rows that are alone in their spans; all others stay as they were. */
static bool decode_right(const mox_gpu_attention *p, const float *want, const timeline *t, int64_t rows, int64_t width)
{
    const float *got = decode(*p, rows * width);
    bool right = true;
    for (int s = 0; s < SPANS; s++) {
        const mox_span *span = t->host + s;
        const int64_t at = span->row0 * width;
        if (span->n == 1) right = right && class_s(got + at, want + at, width, 1);
        else
            for (int64_t i = 0; i < span->n * width; i++) assert_true(isnan(got[at + i]));
    }
    return right;
}

/* The second span is alone, and sees the most keys. */
static void check_decode(int i, int64_t dim, const int64_t n[SPANS], const int64_t pos0[SPANS])
{
    const int64_t heads = 4, kv_heads = 2, width = heads * dim, rows = n[0] + n[1] + n[2];
    const timeline *t = make_timeline_of(n, pos0);
    const both_cache k = make_cache(MOX_DT_F16, kv_heads, dim), v = make_cache(MOX_DT_F16, kv_heads, dim);
    const float *q = randoms(rows * width, 2), *sinks = i == 1 ? randoms(heads, 2) : NULL;
    float *want = floats(rows * width);
    const mox_attention_args a = {.q = q, .out = want, .k = k.host, .v = v.host, .spans = t->host, .n_spans = SPANS, .heads = heads,
                                  .kv_heads = kv_heads, .dim = dim, .v_dim = dim, .q_stride = width, .q_head_stride = dim,
                                  .out_stride = width, .out_head_stride = dim, .scale = 0.2f, .causal = true,
                                  .window = i == 2 ? 201 : 0, .sinks = sinks};
    mox_attention_ref(&a, 0, rows * heads);
    mox_gpu_attention p = {.q = upload_f32(q, rows * width), .sinks = sinks ? upload_f32(sinks, heads) : NULL, .spans = t->device,
                           .k = k.device, .v = v.device, .n_spans = SPANS, .heads = heads, .kv_heads = kv_heads, .dim = dim, .v_dim = dim,
                           .q_stride = width, .q_head_stride = dim, .out_stride = width, .out_head_stride = dim, .window = a.window,
                           .n_pieces = 1, .scale = 0.2f, .causal = 1};
    assert_true(decode_right(&p, want, t, rows, width));
    p.rehearse = 1;
    assert_true(decode_right(&p, want, t, rows, width));
    p.window = i == 2 ? 200 : pos0[1]; /* one key less */
    assert_false(decode_right(&p, want, t, rows, width));
    p.window = a.window;
    p.scale = 0.2005f;
    assert_false(decode_right(&p, want, t, rows, width));
}

static void test_decode(void **state)
{
    (void)state;
    static const int64_t dims[] = {64, 128, 256}, some[SPANS] = {6, 1, 2}, ones[SPANS] = {1, 1, 1};
    static const int64_t pos0[][SPANS] = {{0, 255, 15}, {16, 254, 63}, {127, 240, 128}}; /* around the borders of steps */
    for (int i = 0; i < 3; i++) {
        kit_end(NULL);
        check_decode(i, dims[i], some, (const int64_t[SPANS]){13, i == 2 ? 420 : 220, 0}); /* with a window any position */
        for (int j = 0; j < 3; j++) {
            kit_end(NULL);
            check_decode(i, dims[i], ones, pos0[j]);
        }
    }
}

/* In one launch what six do one after the other. */
static void check_heads(mox_dtype type, int64_t dim, int64_t rotary_dim, bool wrong)
{
    enum { HEADS = 3, KV = 2 };
    const timeline *t = make_timeline();
    const both_cache kc = make_cache(type, KV, dim), vc = make_cache(type, KV, dim);
    const int64_t n_q = ROWS_OF_SPANS * HEADS * dim, n_k = ROWS_OF_SPANS * KV * dim, half = rotary_dim / 2;
    float *q = randoms(n_q, 2), *k = randoms(n_k, 2), *freq = floats(half);
    float *v = randoms(n_k, 2);
    v[0] = -0.0f; /* values pass through as they are */
    v[1] = INFINITY;
    const both_vec qw = random_vec(MOX_DT_BF16, dim, 0.5f, 1.5f), kw = random_vec(MOX_DT_F32, dim, 0.5f, 1.5f);
    int32_t pos[ROWS_OF_SPANS];
    for (int s = 0; s < SPANS; s++)
        for (int64_t i = 0; i < t->host[s].n; i++) pos[t->host[s].row0 + i] = (int32_t)(t->host[s].pos0 + i);
    for (int64_t i = 0; i < half; i++) freq[i] = powf(10000.0f, -(float)i / (float)half);
    const mox_gpu_gqa_heads p = {.q = upload_f32(q, n_q), .k = upload_f32(k, n_k), .v = upload_f32(v, n_k),
                                 .inv_freq = upload_f32(freq, half), .pos = upload(pos, sizeof pos), .spans = t->device,
                                 .k_cache = kc.device, .v_cache = vc.device, .q_weight = qw.device, .k_weight = wrong ? qw.device : kw.device,
                                 .heads = HEADS, .kv_heads = KV, .dim = dim, .rotary_dim = rotary_dim, .offset = 0.5f, .eps = 1e-6f,
                                 .mscale = 1.1f};
    launch(MOX_GPU_KERNEL_gqa_heads, over(HEADS + 2 * KV, 4), ROWS_OF_SPANS, 1, &p);

    mox_rms_norm_args norm = {.x = q, .out = q, .n = ROWS_OF_SPANS, .heads = HEADS, .dim = dim, .x_stride = HEADS * dim,
                              .x_head_stride = dim, .out_stride = HEADS * dim, .out_head_stride = dim, .weight = qw.host, .offset = 0.5f,
                              .eps = 1e-6f};
    mox_rope_args rope = {.x = q, .n = ROWS_OF_SPANS, .heads = HEADS, .stride = HEADS * dim, .head_stride = dim, .rotary_dim = rotary_dim,
                          .inv_freq = freq, .mscale = 1.1f, .pairing = MOX_ROPE_HALF, .pos = pos, .pos_stride = 1};
    mox_rms_norm_ref(&norm, 0, ROWS_OF_SPANS * HEADS);
    mox_rope_ref(&rope, 0, ROWS_OF_SPANS);
    assert_true(within(download_f32(p.q, n_q), q, NULL, n_q, 0, 6e-5)); /* norm and rotation together, numbers up to 4 */
    norm.x = norm.out = rope.x = k;
    norm.heads = rope.heads = KV;
    norm.x_stride = norm.out_stride = rope.stride = KV * dim;
    norm.weight = kw.host;
    mox_rms_norm_ref(&norm, 0, ROWS_OF_SPANS * KV);
    mox_rope_ref(&rope, 0, ROWS_OF_SPANS);
    mox_kv_append_args append = {.cache = kc.host, .spans = t->host, .n_spans = SPANS, .src = k, .heads = KV, .dim = dim, .stride = KV * dim,
                                 .head_stride = dim};
    mox_kv_append_ref(&append, 0, ROWS_OF_SPANS);
    append.cache = vc.host;
    append.src = v;
    mox_kv_append_ref(&append, 0, ROWS_OF_SPANS);
    assert_memory_equal(download(vc.device.data, vc.bytes), vc.host.data, (size_t)vc.bytes);
    const int64_t numbers = kc.bytes / mox_dtype_bytes(type);
    float *got = floats(numbers), *want = floats(numbers);
    const uint8_t *bytes = download(kc.device.data, kc.bytes);
    for (int64_t i = 0; i < numbers; i++) {
        const mox_vec a = {.type = type, .n = numbers, .data = bytes}, b = {.type = type, .n = numbers, .data = kc.host.data};
        got[i] = mox_vec_at(&a, i);
        want[i] = mox_vec_at(&b, i);
    }
    /* f16: another rounding at most */
    assert_int_equal(within(got, want, NULL, numbers, type == MOX_DT_F16 ? 1e-3 : 0, 6e-5), !wrong);
}

static void test_heads(void **state)
{
    (void)state;
    static const int64_t dims[][2] = {{128, 128}, {256, 64}, {34, 10}};
    for (int i = 0; i < 7; i++) {
        kit_end(NULL);
        check_heads(i % 2 ? MOX_DT_F16 : MOX_DT_F32, dims[i % 3][0], dims[i % 3][1], i == 6);
    }
}

static void test_latent_attention(void **state)
{
    (void)state;
    enum { HEADS = 3, RANK = 144, ROPE = 20, N_OUT = ROWS_OF_SPANS * HEADS * RANK };
    for (int i = 0; i < 3; i++) {
        kit_end(NULL);
        const timeline *t = make_timeline();
        const both_cache latent = make_cache(cache_types[i], 1, RANK), key = make_cache(cache_types[i], 1, ROPE);
        const float *q = randoms(N_OUT, 1), *q_pe = randoms(ROWS_OF_SPANS * HEADS * ROPE, 1);
        float *want = floats(N_OUT);
        mox_mla_attention_ref(&(mox_mla_attention_args){.q = q, .q_pe = q_pe, .ctx = want, .latent = latent.host, .k_pe = key.host,
                                                        .spans = t->host, .n_spans = SPANS, .heads = HEADS, .rank = RANK, .rope = ROPE,
                                                        .scale = 0.3f}, 0, ROWS_OF_SPANS * HEADS);
        mox_gpu_attention p = {.q = upload_f32(q, N_OUT), .q2 = upload_f32(q_pe, ROWS_OF_SPANS * HEADS * ROPE), .spans = t->device,
                               .k = latent.device, .k2 = key.device, .v = latent.device, .n_spans = SPANS, .heads = HEADS,
                               .kv_heads = 1, .dim = RANK, .dim2 = ROPE, .v_dim = RANK, .q_stride = HEADS * RANK,
                               .q_head_stride = RANK, .q2_stride = HEADS * ROPE, .q2_head_stride = ROPE,
                               .out_stride = HEADS * RANK, .out_head_stride = RANK, .n_pieces = 1, .scale = 0.3f, .causal = 1};
        assert_true(class_s(attend(p, N_OUT), want, N_OUT, 1));
        p.n_pieces = MOX_GPU_PIECES;
        p.parts = device_f32(SPANS * HEADS * MOX_GPU_PIECES * (RANK + 2));
        assert_true(class_s(attend(p, N_OUT), want, N_OUT, 1));
        p.dim2 = ROPE - 1;
        assert_false(class_s(attend(p, N_OUT), want, N_OUT, 1));
    }
}

/* ---- delta net ---- */

static void test_convolution(void **state)
{
    (void)state;
    enum { CHANNELS = 300, STRIDE = 310 };
    for (int64_t n = 0; n < 6; n++)
        for (int64_t width = 1; width <= 8; width += width == 1 ? 3 : 4) { /* 1, 4, 8 */
            kit_end(NULL);
            const both_vec w = random_vec(MOX_DT_BF16, CHANNELS * width, -1, 1);
            const float *x = randoms(n * STRIDE + 1, 1), *past = randoms((width - 1) * CHANNELS + 1, 1);
            float *want = floats(n * STRIDE + 1), *shifted = floats((width - 1) * CHANNELS + 1);
            memcpy(shifted, past, (size_t)((width - 1) * CHANNELS) * 4);
            mox_conv1d_silu_ref(&(mox_conv1d_silu_args){.x = x, .state = past, .weight = w.host, .out = want, .n = n,
                                                        .channels = CHANNELS, .width = width, .x_stride = STRIDE,
                                                        .out_stride = STRIDE}, 0, CHANNELS);
            mox_conv1d_shift_ref(&(mox_conv1d_shift_args){.x = x, .state = shifted, .n = n, .channels = CHANNELS, .width = width,
                                                          .x_stride = STRIDE}, 0, CHANNELS);
            const mox_gpu_conv1d_silu p = {.x = upload_f32(x, n * STRIDE + 1), .state = upload_f32(past, (width - 1) * CHANNELS + 1),
                                           .out = device_f32(n * STRIDE + 1), .channels = CHANNELS, .width = width,
                                           .x_stride = STRIDE, .out_stride = STRIDE, .weight = w.device};
            launch(MOX_GPU_KERNEL_conv1d_silu, over(CHANNELS, 256), n, 1, &p);
            assert_true(within(download_f32(p.out, n * STRIDE), want, NULL, n * STRIDE, 1e-5, 2e-6));
            const mox_gpu_conv1d_shift s = {.x = p.x, .state = (float *)(uintptr_t)p.state, .n = n, .channels = CHANNELS,
                                            .width = width, .x_stride = STRIDE};
            launch(MOX_GPU_KERNEL_conv1d_shift, over(CHANNELS, 256), 1, 1, &s);
            assert_memory_equal(download_f32(s.state, (width - 1) * CHANNELS), shifted, (size_t)((width - 1) * CHANNELS) * 4);
            if (n == 0 || width == 1) continue;
            launch(MOX_GPU_KERNEL_conv1d_silu, over(CHANNELS, 256), n, 1, &p); /* from the shifted state: wrong */
            assert_false(within(download_f32(p.out, n * STRIDE), want, NULL, n * STRIDE, 1e-5, 2e-6));
        }
}

static void test_gates(void **state)
{
    (void)state;
    enum { N = 9, HEADS = 30, STRIDE = 35, ALL = N * HEADS };
    const both_vec rate = random_vec(MOX_DT_F32, HEADS, -8, 3), bias = random_vec(MOX_DT_BF16, HEADS, -4, 4);
    float *a = randoms(N * STRIDE, 12);
    const float *b = randoms(N * STRIDE, 12);
    a[0] = 100; /* where a naive softplus overflows, and where it loses everything */
    a[1] = -60;
    float *g = floats(ALL), *beta = floats(ALL);
    mox_gdn_gates_ref(&(mox_gdn_gates_args){.a = a, .b = b, .a_stride = STRIDE, .b_stride = STRIDE, .a_log = rate.host,
                                            .dt_bias = bias.host, .g = g, .beta = beta, .n = N, .heads = HEADS}, 0, N);
    mox_gpu_gdn_gates p = {.a = upload_f32(a, N * STRIDE), .b = upload_f32(b, N * STRIDE), .g = device_f32(ALL),
                           .beta = device_f32(ALL), .a_log = rate.device, .dt_bias = bias.device, .n = N, .heads = HEADS,
                           .a_stride = STRIDE, .b_stride = STRIDE};
    double *mag = doubles(ALL);
    for (int i = 0; i < ALL; i++) mag[i] = g[i] > 0 ? (double)g[i] * (1 - log((double)g[i])) : 0;
    launch(MOX_GPU_KERNEL_gdn_gates, over(ALL, 256), 1, 1, &p);
    assert_true(within(download_f32(p.g, ALL), g, mag, ALL, 1e-6, 1e-37));
    assert_true(class_p(download_f32(p.beta, ALL), beta, ALL));
    p.dt_bias = rate.device;
    launch(MOX_GPU_KERNEL_gdn_gates, over(ALL, 256), 1, 1, &p);
    assert_false(within(download_f32(p.g, ALL), g, mag, ALL, 1e-6, 1e-37));
}

static void check_delta_rule(int64_t n, int64_t k_heads, int64_t v_heads, int64_t k_dim, int64_t v_dim)
{
    const int64_t keys = k_heads * k_dim, values = v_heads * v_dim, stride = 2 * keys + values, n_state = values * k_dim;
    float *qkv = randoms(n * stride, 1), *normed = floats(n * stride), *s = randoms(n_state, 1), *s_want = floats(n_state);
    float *g = floats(n * v_heads + 1), *beta = randoms(n * v_heads + 1, 1), *want = floats(n * values);
    for (int64_t i = 0; i < n * v_heads; i++) g[i] = i % 7 == 3 ? 0 : uniform(0.5f, 1);
    for (int64_t i = 0; i < n * v_heads; i++) beta[i] = fabsf(beta[i]);
    memcpy(normed, qkv, (size_t)(n * stride) * 4);
    memcpy(s_want, s, (size_t)n_state * 4);
    mox_gdn_qk_norm_ref(&(mox_gdn_qk_norm_args){.q = normed, .k = normed + keys, .n = n, .heads = k_heads, .dim = k_dim,
                                                .stride = stride, .eps = 1e-6f}, 0, n);
    mox_gdn_recurrent_ref(&(mox_gdn_args){.q = normed, .k = normed + keys, .v = normed + 2 * keys, .q_stride = stride,
                                          .k_stride = stride, .v_stride = stride, .g = g, .beta = beta, .state = s_want, .out = want,
                                          .n = n, .k_heads = k_heads, .v_heads = v_heads, .k_dim = k_dim, .v_dim = v_dim}, 0, values);
    float *q = upload_f32(qkv, n * stride);
    const mox_gpu_gdn_qk_norm norm = {.q = q, .k = q + keys, .heads = k_heads, .dim = k_dim, .stride = stride, .eps = 1e-6f};
    launch(MOX_GPU_KERNEL_gdn_qk_norm, over(k_heads, 4), n, 2, &norm);
    assert_true(class_p(download_f32(q, n * stride), normed, n * stride));
    mox_gpu_gdn_recurrent p = {.q = q, .k = q + keys, .v = q + 2 * keys, .g = upload_f32(g, n * v_heads),
                               .beta = upload_f32(beta, n * v_heads), .state = upload_f32(s, n_state), .out = device_f32(n * values),
                               .n = n, .k_heads = k_heads, .v_heads = v_heads, .k_dim = k_dim, .v_dim = v_dim, .q_stride = stride,
                               .k_stride = stride, .v_stride = stride};
    float most = 1e-6f;
    for (int64_t i = 0; i < n * values; i++) most = fmaxf(most, fabsf(want[i]));
    launch(MOX_GPU_KERNEL_gdn_recurrent, over(v_dim, 4), v_heads, 1, &p);
    assert_true(within(download_f32(p.out, n * values), want, NULL, n * values, 0, 1e-5 * (double)most)); /* tighter than class G */
    assert_true(within(download_f32(p.state, n_state), s_want, NULL, n_state, 0, 1e-5));
    launch(MOX_GPU_KERNEL_gdn_recurrent, over(v_dim, 4), v_heads, 1, &p); /* from the state that it left */
    assert_true(n == 0 || !within(download_f32(p.out, n * values), want, NULL, n * values, 0, 1e-5 * (double)most));
}

static void test_delta_rule(void **state)
{
    (void)state;
    check_delta_rule(0, 1, 1, 4, 4);
    check_delta_rule(1, 2, 4, 128, 18);
    check_delta_rule(20, 1, 3, 33, 7);
    check_delta_rule(5, 3, 3, 256, 5);
}

/* ---- experts ---- */

static void check_softmax(const float *logits, int64_t n, int64_t E, int64_t k, bool renormalize)
{
    int32_t *ids = host_bytes(n * k * 4);
    float *w = floats(n * k);
    mox_router_topk_ref(&(mox_router_topk_args){.logits = logits, .ids = ids, .weights = w, .n = n, .n_experts = E, .k = k,
                                                .renormalize = renormalize}, 0, n);
    mox_gpu_router_topk p = {.logits = upload_f32(logits, n * E), .ids = upload(ids, n * k * 4), .weights = device_f32(n * k),
                             .n_experts = E, .k = k, .renormalize = renormalize, .rehearse = 1};
    launch(MOX_GPU_KERNEL_router_topk, n, 1, 1, &p);
    assert_memory_equal(download(p.ids, n * k * 4), ids, (size_t)(n * k) * 4);
    assert_true(within(download_f32(p.weights, n * k), w, NULL, n * k, 0, 1e-5));
    if (k == E) return;
    p.renormalize = !renormalize;
    launch(MOX_GPU_KERNEL_router_topk, n, 1, 1, &p);
    assert_false(within(download_f32(p.weights, n * k), w, NULL, n * k, 0, 1e-5));
}

static void test_router_topk(void **state)
{
    (void)state;
    static const int64_t experts[] = {1, 31, 32, 33, 128, 512, 2048}; /* runs of 32, and lists of 8, 16 and 32 */
    static const int64_t ks[] = {8, 8, 17, 8, 8, 10, 40};
    enum { N = 8 };
    for (size_t s = 0; s < sizeof experts / sizeof *experts; s++) {
        const int64_t E = experts[s];
        float *x = randoms(N * E, 4);
        for (int64_t i = 0; i < E; i++) {
            x[E + i] = (float)(i * 7 % 5);                       /* ties */
            x[2 * E + i] *= 1e4f;
            x[3 * E + i] = i % 2 ? NAN : x[3 * E + i];
            x[4 * E + i] = i % 3 ? -INFINITY : x[4 * E + i];
            x[6 * E + i] = i % 3 ? -0.0f : 0.0f; /* the same number */
        }
        x[5 * E] = INFINITY;
        const int64_t k = mox_min_i64(ks[s], E);
        check_softmax(x, N, E, k, s % 2);
        for (int64_t i = 0; i < E; i++) { /* no finite logit */
            x[i] = i % 2 ? NAN : -INFINITY;
            x[E + i] = i == E - 1 ? INFINITY : NAN;
        }
        const mox_gpu_router_topk p = {.logits = upload_f32(x, 2 * E), .ids = upload(x, 2 * k * 4), .weights = device_f32(2 * k), .n_experts = E,
                                       .k = k, .renormalize = s % 2};
        launch(MOX_GPU_KERNEL_router_topk, 2, 1, 1, &p);
        const int32_t *got = download(p.ids, 2 * k * 4);
        const float *w = download_f32(p.weights, 2 * k);
        for (int32_t i = 0; i < 2 * k; i++) {
            assert_int_equal(got[i], i % k);
            assert_true(fabsf(w[i] - 1.0f / (float)k) <= 1e-6f);
        }
    }
    check_softmax(randoms(33 * 2, 3), 2, 33, 33, true); /* all of them */
}

static void test_router_sigmoid(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {{256, 8, 8, 4}, {64, 6, 1, 1}, {33, 33, 3, 3}, {32, 4, 32, 7}, {5, 2, 1, 1}, {660, 10, 20, 5}, {2048, 40, 4, 3}, {64, 24, 8, 3}};
    enum { N = 6 };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int64_t E = shapes[s][0], k = shapes[s][1];
        const both_vec bias = random_vec(s == 1 || s == 7 ? MOX_DT_NONE : MOX_DT_F32, E, -0.3f, 0.3f); /* without, groups tie */
        float *x = randoms(N * E, 3);
        for (int64_t i = 0; i < E; i++) {
            x[E + i] = (float)(i * 7 % 5);
            x[2 * E + i] = i % 4 ? x[2 * E + i] : NAN;
            x[3 * E + i] *= 12; /* saturates, and ties */
        }
        int32_t *ids = host_bytes(N * k * 4);
        float *w = floats(N * k);
        mox_router_sigmoid_ref(&(mox_router_sigmoid_args){.logits = x, .bias = bias.host, .ids = ids, .weights = w, .n = N,
                                                          .n_experts = E, .k = k, .n_groups = shapes[s][2],
                                                          .kept_groups = shapes[s][3], .renormalize = s != 4, .factor = 2.5f}, 0, N);
        mox_gpu_router_sigmoid p = {.logits = upload_f32(x, N * E), .ids = upload(ids, N * k * 4), .weights = device_f32(N * k),
                                    .bias = bias.device, .n_experts = E, .k = k, .n_groups = shapes[s][2],
                                    .kept_groups = shapes[s][3], .renormalize = s != 4, .factor = 2.5f};
        launch(MOX_GPU_KERNEL_router_sigmoid, N, 1, 1, &p);
        assert_memory_equal(download(p.ids, N * k * 4), ids, (size_t)(N * k) * 4);
        assert_true(within(download_f32(p.weights, N * k), w, NULL, N * k, 0, 1e-5));
        if (s != 0) continue;
        p.kept_groups--;
        launch(MOX_GPU_KERNEL_router_sigmoid, N, 1, 1, &p);
        assert_memory_not_equal(download(p.ids, N * k * 4), ids, (size_t)(N * k) * 4);
    }
}

static void test_bucket(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{0, 4}, {1, 1}, {40, 8}, {300, 513}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int64_t n = shapes[s][0], E = shapes[s][1];
        int32_t *ids = host_bytes(n * 4 + 4), *pairs = host_bytes(n * 4 + 4);
        int64_t *offsets = host_bytes((E + 1) * 8);
        for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(mox_rng_u64(&kit.rng) % (uint64_t)(E + 1)); /* E is left out */
        mox_moe_bucket_ref(&(mox_moe_bucket_args){.ids = ids, .n_pairs = n, .n_experts = E, .offsets = offsets, .pairs = pairs}, 0, 1);
        const mox_gpu_moe_bucket p = {.ids = upload(ids, n * 4), .offsets = (int64_t *)(void *)device_f32((E + 1) * 2),
                                      .pairs = (int32_t *)(void *)device_f32(n), .n_pairs = n, .n_experts = E};
        launch(MOX_GPU_KERNEL_moe_bucket, 1, 1, 1, &p);
        assert_memory_equal(download(p.offsets, (E + 1) * 8), offsets, (size_t)(E + 1) * 8);
        assert_memory_equal(download(p.pairs, offsets[E] * 4), pairs, (size_t)offsets[E] * 4);
    }
}

static void test_combine(void **state)
{
    (void)state;
    enum { N = 3, K = 5, DIM = 300, ALL = N * DIM };
    for (int mode = 0; mode < 3; mode++) {
        const float *h = randoms(ALL, 1), *experts = randoms(ALL * K, 1), *w = randoms(N * K, 1), *shared = randoms(ALL, 1);
        const float *gate = randoms(2 * N, 3);
        float *want = floats(ALL);
        mox_moe_combine_ref(&(mox_moe_combine_args){.h = h, .experts = experts, .w = w, .mode = (mox_shared_mode)mode, .shared = shared,
                                                    .gate = gate, .gate_stride = 2, .out = want, .n = N, .k = K, .dim = DIM}, 0, N);
        mox_gpu_moe_combine p = {.h = upload_f32(h, ALL), .experts = upload_f32(experts, ALL * K), .w = upload_f32(w, N * K),
                                 .shared = upload_f32(shared, ALL), .gate = upload_f32(gate, 2 * N), .k = K, .dim = DIM,
                                 .gate_stride = 2, .mode = mode};
        p.out = (float *)(uintptr_t)p.h;
        launch(MOX_GPU_KERNEL_moe_combine, over(DIM, 256), N, 1, &p);
        assert_true(within(download_f32(p.out, ALL), want, NULL, ALL, 0, 1e-5));
        p.out = device_f32(ALL);
        p.h = upload_f32(h, ALL);
        p.mode = (mode + 1) % 3;
        launch(MOX_GPU_KERNEL_moe_combine, over(DIM, 256), N, 1, &p);
        assert_false(within(download_f32(p.out, ALL), want, NULL, ALL, 0, 1e-5));
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, kit_begin, kit_end)
    const struct CMUnitTest tests[] = {
        TEST(test_pointwise),        TEST(test_copy),        TEST(test_rms_norm),   TEST(test_fused_norms), TEST(test_rope),
        TEST(test_kv_append),        TEST(test_attention),   TEST(test_decode), TEST(test_heads), TEST(test_latent_attention), TEST(test_convolution),
        TEST(test_gates),            TEST(test_delta_rule),  TEST(test_router_topk), TEST(test_router_sigmoid), TEST(test_bucket),
        TEST(test_combine)};
    return cmocka_run_group_tests(tests, kit_open, kit_close);
}
