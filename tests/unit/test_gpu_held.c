/* tests/unit/test_gpu_held.c -- a layer of a few tokens on a GPU device, with launches that take others along and without.
 *
 * The second time the device is asked to finish after every operation, so that nothing is left to be taken
 * along: what is there afterwards must be near, and the number of launches must be the one of each way.  Something slightly
 * wrong, each time in another operation that is taken along, must be noticed.
 *
 * So it is when another thread sends off what is held, between the look at it and the taking: the linker puts a function
 * of this file in the place of mox_gpu_drop. */
#include "base/rng.h"
#include "base/size.h"
#include "dev/gpu/device.h"
#include "tensor/dtype.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DIM = 256, HEADS = 4, KV = 2, HEAD = 64, EXPERTS = 12, K = 3, WIDTH = 256, ROWS_MOST = 4, PAGE = 16, PAGES = 40, BLOCKS = 256 };

typedef enum wrong { RIGHT, NORM_IN, RESIDUAL, NORM_POST, N_WRONG } wrong;

static struct {
    mox_dev *dev;
    void *blocks[BLOCKS];
    int n_blocks, n_launches, n_stolen, of_kernel[MOX_GPU_KERNEL_COUNT];
    bool at_once, steals;
    mox_err err;
    mox_rng rng;
    void (*launch)(mox_gpu_backend *b, mox_gpu_kernel kernel, const int64_t groups[3], const void *params, size_t bytes);
} at;

static void must(mox_status status)
{
    if (status != MOX_OK) print_error("%s\n", at.err.msg);
    assert_int_equal(status, MOX_OK);
}

static void counted(mox_gpu_backend *b, mox_gpu_kernel kernel, const int64_t groups[3], const void *params, size_t bytes)
{
    at.n_launches++;
    at.of_kernel[kernel]++;
    at.launch(b, kernel, groups, params, bytes);
}

/* As copies of states do, while steps run. */
static void *copy_beside(void *nothing)
{
    mox_err err;
    return at.dev->memory.sync(at.dev, &err) == MOX_OK ? nothing : &at;
}

bool __real_mox_gpu_drop(mox_dev *d);
bool __wrap_mox_gpu_drop(mox_dev *d);
bool __wrap_mox_gpu_drop(mox_dev *d)
{
    if (!at.steals) return __real_mox_gpu_drop(d);
    pthread_t other;
    void *failed;
    assert_int_equal(pthread_create(&other, NULL, copy_beside, NULL), 0);
    assert_int_equal(pthread_join(other, &failed), 0);
    assert_null(failed);
    assert_false(__real_mox_gpu_drop(d));
    at.n_stolen++;
    return false;
}

static void open_device(void)
{
    at.n_blocks = 0;
    must(mox_dev_emu_open(&at.dev, (int64_t)1 << 28, false, &at.err));
    const mox_dev_sizes sizes = {.n_rows = ROWS_MOST, .n_spans = ROWS_MOST, .n_pages = PAGES};
    must(at.dev->apart->reserve(at.dev, &sizes, &at.err));
    mox_gpu_backend *b = ((mox_dev_gpu *)at.dev)->backend;
    at.launch = b->launch;
    b->launch = counted;
    mox_rng_init(&at.rng, 11);
}
static void close_device(void)
{
    while (at.n_blocks > 0) at.dev->memory.free(at.dev, at.blocks[--at.n_blocks], 0);
    mox_dev_close(&at.dev);
}

/* ---- data ---- */

static void *room(int64_t bytes)
{
    void *p;
    assert_true(at.n_blocks < BLOCKS);
    must(at.dev->memory.alloc(at.dev, bytes, &p, &at.err));
    return at.blocks[at.n_blocks++] = p;
}
static float uniform(float low, float high) { return low + (high - low) * (float)mox_rng_unit(&at.rng); }
static float *numbers(int64_t n, float size)
{
    float *v = malloc((size_t)n * sizeof *v), *p = room(n * 4);
    assert_non_null(v);
    for (int64_t i = 0; i < n; i++) v[i] = uniform(-size, size);
    at.dev->memory.upload(at.dev, p, v, n * 4);
    free(v);
    return p;
}
static void *halves(int64_t n, bool is_bf16, float low, float high)
{
    uint16_t *v = malloc((size_t)n * sizeof *v), *p = room(n * 2);
    assert_non_null(v);
    for (int64_t i = 0; i < n; i++) v[i] = is_bf16 ? mox_f32_to_bf16(uniform(low, high)) : mox_f32_to_f16(uniform(low, high));
    at.dev->memory.upload(at.dev, p, v, n * 2);
    free(v);
    return p;
}
static mox_mat affine(int bits, int64_t rows, int64_t cols)
{
    enum { GROUP = 64 };
    uint8_t *v = malloc((size_t)(rows * cols)), *w = room(rows * cols * bits / 8);
    assert_non_null(v);
    for (int64_t i = 0; i < rows * cols * bits / 8; i++) v[i] = (uint8_t)mox_rng_u64(&at.rng);
    at.dev->memory.upload(at.dev, w, v, rows * cols * bits / 8);
    free(v);
    const float step = 0.1f / (float)(1 << bits);
    return (mox_mat){.layout = {.kind = MOX_MAT_AFFINE, .bits = bits, .group = GROUP, .scale_type = MOX_DT_BF16}, .rows = rows, .cols = cols,
                     .w = w, .scales = halves(rows * cols / GROUP, true, step, 2 * step), .biases = halves(rows * cols / GROUP, true, -0.09f, -0.06f)};
}
static mox_vec gains(int64_t n, mox_dtype type)
{
    return (mox_vec){.type = type, .n = n, .data = type == MOX_DT_BF16 ? halves(n, true, 0.5f, 1.5f) : (const void *)numbers(n, 1)};
}
static mox_cache cache(void)
{
    return (mox_cache){.type = MOX_DT_F16, .page_len = PAGE, .page_stride = PAGE * KV * HEAD, .token_stride = HEAD,
                       .head_stride = PAGE * HEAD, .n_pages = PAGES, .data = halves(PAGES * PAGE * KV * HEAD, false, -1, 1)};
}

/* What a layer leaves behind. */
enum { N_H = ROWS_MOST * DIM, N_Q = ROWS_MOST * HEADS * HEAD, N_CACHE = PAGES * PAGE * KV * HEAD };
typedef struct left {
    float h[N_H], x[N_H], q[N_Q], k[N_CACHE], v[N_CACHE], weights[ROWS_MOST * K];
    int32_t ids[ROWS_MOST * K];
    int n_launches;
} left;

static void after(mox_status status)
{
    must(status);
    if (at.at_once) must(at.dev->memory.sync(at.dev, &at.err));
}
static mox_rms_norm_args norm_args(const float *x, float *out, int64_t n, int64_t heads, int64_t dim, mox_vec weight)
{
    return (mox_rms_norm_args){.x = x, .out = out, .n = n, .heads = heads, .dim = dim, .x_stride = heads * dim, .x_head_stride = dim,
                               .out_stride = heads * dim, .out_head_stride = dim, .weight = weight, .eps = 0.1f};
}
static mox_matmul_args product(mox_mat w, const float *x, float *y, int64_t n)
{
    return (mox_matmul_args){.w = w, .x = x, .y = y, .n = n, .x_stride = w.cols, .y_stride = w.rows};
}

typedef struct buffers {
    float *h, *x, *q, *k, *v, *out, *y, *logits, *weights, *mid, *rows;
    int32_t *ids;
    mox_cache keys, values;
} buffers;

static void mix(const buffers *b, const mox_span *spans, const int32_t *pos, const float *freq, int64_t n, wrong w)
{
    mox_dev *d = at.dev;
    mox_rms_norm_args in = norm_args(b->h, b->x, n, 1, DIM, gains(DIM, MOX_DT_BF16));
    in.offset = w == NORM_IN ? 0.001f : 0;
    const mox_mat wq = affine(4, HEADS * HEAD, DIM), wk = affine(4, KV * HEAD, DIM), wv = affine(4, KV * HEAD, DIM), wo = affine(4, DIM, HEADS * HEAD);
    const mox_vec q_gain = gains(HEAD, MOX_DT_BF16), k_gain = gains(HEAD, MOX_DT_F32);
    const mox_vec post = gains(DIM, MOX_DT_F32);
    const mox_project_args three = {.product = {product(wq, b->x, b->q, n), product(wk, b->x, b->k, n), product(wv, b->x, b->v, n)}, .n = 3};
    const mox_kv_append_args append = {.cache = b->keys, .spans = spans, .n_spans = n, .src = b->k, .heads = KV, .dim = HEAD,
                                       .stride = KV * HEAD, .head_stride = HEAD};
    const mox_rope_args rope = {.x = b->q, .n = n, .heads = HEADS, .stride = HEADS * HEAD, .head_stride = HEAD, .rotary_dim = HEAD,
                                .inv_freq = freq, .mscale = 1, .pairing = MOX_ROPE_HALF, .pos = pos, .pos_stride = 1};
    mox_gqa_heads_args heads = {.q_norm = norm_args(b->q, b->q, n, HEADS, HEAD, q_gain), .k_norm = norm_args(b->k, b->k, n, KV, HEAD, k_gain),
                                .q_rope = rope, .k_rope = rope, .k_append = append, .v_append = append};
    heads.k_rope.x = b->k;
    heads.k_rope.heads = KV;
    heads.k_rope.stride = KV * HEAD;
    heads.v_append.cache = b->values;
    heads.v_append.src = b->v;
    after(d->ops.rms_norm(d, &in, &at.err));
    after(d->ops.project(d, &three, &at.err));
    after(d->ops.gqa_heads(d, &heads, &at.err));
    after(d->ops.attention(d, &(mox_attention_args){.q = b->q, .out = b->out, .k = b->keys, .v = b->values, .spans = spans, .n_spans = n,
                                                    .heads = HEADS, .kv_heads = KV, .dim = HEAD, .v_dim = HEAD, .q_stride = HEADS * HEAD,
                                                    .q_head_stride = HEAD, .out_stride = HEADS * HEAD, .out_head_stride = HEAD,
                                                    .scale = 0.4f, .causal = true}, &at.err));
    const mox_matmul_args o = product(wo, b->out, b->y, n);
    after(d->ops.matmul(d, &o, &at.err));
    after(d->ops.residual_norm(d, &(mox_residual_norm_args){.a = w == RESIDUAL ? b->x : b->h, .b = b->y, .res = b->h, .norm = b->x, .rows = n,
                                                            .dim = DIM, .weight = post, .eps = w == NORM_POST ? 0.101f : 0.1f}, &at.err));
}

static void place_experts(void)
{
    mox_expert all[EXPERTS];
    const mox_mat gate = affine(4, EXPERTS * WIDTH, DIM), up = affine(4, EXPERTS * WIDTH, DIM), down = affine(4, EXPERTS * DIM, WIDTH);
    for (int32_t e = 0; e < EXPERTS; e++)
        all[e] = (mox_expert){.id = e, .gate = mox_mat_rows(&gate, e * WIDTH, WIDTH), .up = mox_mat_rows(&up, e * WIDTH, WIDTH),
                              .down = mox_mat_rows(&down, e * DIM, DIM)};
    must(at.dev->apart->place_experts(at.dev, 0, all, EXPERTS, NULL, 0, &at.err));
}

static void feed(const buffers *b, mox_mat router_mat, int64_t n)
{
    mox_dev *d = at.dev;
    const mox_matmul_args router = product(router_mat, b->x, b->logits, n);
    after(d->ops.matmul(d, &router, &at.err));
    after(d->ops.router_topk(d, &(mox_router_topk_args){.logits = b->logits, .ids = b->ids, .weights = b->weights, .n = n, .n_experts = EXPERTS,
                                                        .k = K, .order = MOX_TOPK_SORTED, .renormalize = true}, &at.err));
    const mox_moe_ffn_args ffn = {.layer = 0, .x = b->x, .ids = b->ids, .rows = b->rows, .n = n, .k = K, .n_experts = EXPERTS, .dim = DIM,
                                  .width = WIDTH, .mid = b->mid};
    must(d->ops.moe_acquire(d, &ffn, &at.err));
    after(d->ops.moe_finish(d, &(mox_moe_finish_args){.ffn = ffn, .combine = {.h = b->h, .experts = b->rows, .w = b->weights,
                                                                              .mode = MOX_SHARED_NONE, .out = b->h, .n = n, .k = K,
                                                                              .dim = DIM}}, &at.err));
}

static void fetch(void *to, const void *from, int64_t bytes) { must(at.dev->memory.download(at.dev, to, from, bytes, &at.err)); }
static void fetch_cache(float *to, const mox_cache *c)
{
    static uint16_t bits[N_CACHE];
    fetch(bits, c->data, sizeof bits);
    for (int64_t i = 0; i < N_CACHE; i++) to[i] = mox_f16_to_f32(bits[i]);
}

/* A layer of n rows, each at its own depth. */
static left run_layer(int64_t n, bool at_once, wrong w)
{
    static const int64_t depths[ROWS_MOST] = {70, 0, 1, 130};
    left l;
    memset(&l, 0, sizeof l);
    open_device();
    at.at_once = at_once;
    int32_t pages[PAGES], pos[ROWS_MOST], tokens[ROWS_MOST] = {0};
    float freq[HEAD / 2];
    mox_span spans[ROWS_MOST];
    for (int32_t i = 0; i < PAGES; i++) pages[i] = i * 7 % PAGES;
    for (int64_t i = 0; i < HEAD / 2; i++) freq[i] = powf(10000.0f, -(float)i / (HEAD / 2));
    for (int64_t i = 0; i < n; i++) {
        spans[i] = (mox_span){.row0 = i, .n = 1, .pos0 = depths[i], .pages = pages + 10 * i, .n_pages = 10};
        pos[i] = (int32_t)depths[i];
    }
    const buffers b = {.h = numbers(n * DIM, 1), .x = numbers(n * DIM, 1), .q = numbers(n * HEADS * HEAD, 1), .k = numbers(n * KV * HEAD, 1),
                       .v = numbers(n * KV * HEAD, 1), .out = numbers(n * HEADS * HEAD, 1), .y = numbers(n * DIM, 1),
                       .logits = numbers(n * EXPERTS, 1), .weights = numbers(n * K, 1), .mid = numbers(n * K * WIDTH, 1),
                       .rows = numbers(n * K * DIM, 1), .ids = room(n * K * 4), .keys = cache(), .values = cache()};
    must(at.dev->apart->know(at.dev, freq, HEAD / 2, &at.err));
    place_experts();
    const mox_mat router = affine(8, EXPERTS, DIM);
    mox_batch batch = {.tokens = tokens, .pos = pos, .n = n, .spans = spans, .n_spans = n};
    at.dev->apart->begin(at.dev, &batch);
    at.n_launches = 0;
    ((mox_dev_gpu *)at.dev)->leaves_room = !at_once; /* so attention rehearses; see test_gpu_kernels.c and test_gpu_weights.c for the others */
    mix(&b, spans, batch.pos, freq, n, w);
    feed(&b, router, n);
    l.n_launches = at.n_launches;
    fetch(l.h, b.h, n * DIM * 4);
    fetch(l.x, b.x, n * DIM * 4);
    fetch(l.q, b.q, n * HEADS * HEAD * 4);
    fetch(l.weights, b.weights, n * K * 4);
    fetch(l.ids, b.ids, n * K * 4);
    fetch_cache(l.k, &b.keys);
    fetch_cache(l.v, &b.values);
    close_device();
    return l;
}

/* Root mean squares: |difference| / |values|. */
static double off(const float *got, const float *want, int64_t n)
{
    double sum = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += pow((double)got[i] - (double)want[i], 2);
        size += pow((double)want[i], 2);
    }
    return sqrt(sum / size);
}

/* Sums in another order; of a cache, numbers that are rounded the other way. */
static bool near(const left *a, const left *b)
{
    return off(a->h, b->h, N_H) < 3e-6 && off(a->x, b->x, N_H) < 3e-6 && off(a->q, b->q, N_Q) < 3e-6 && off(a->k, b->k, N_CACHE) < 1e-5 &&
           off(a->v, b->v, N_CACHE) < 1e-5 && off(a->weights, b->weights, ROWS_MOST * K) < 3e-6 && memcmp(a->ids, b->ids, sizeof a->ids) == 0;
}

static void must_be_near(const left *got, const left *want, int64_t rows)
{
    if (!near(got, want))
        fail_msg("%lld rows: h %g, x %g, q %g, k %g, v %g, weights %g", (long long)rows, off(got->h, want->h, N_H), off(got->x, want->x, N_H),
                 off(got->q, want->q, N_Q), off(got->k, want->k, N_CACHE), off(got->v, want->v, N_CACHE),
                 off(got->weights, want->weights, ROWS_MOST * K));
}

static void test_layer(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 3};
    for (int i = 0; i < 2; i++) {
        const left want = run_layer(rows[i], true, RIGHT), got = run_layer(rows[i], false, RIGHT);
        must_be_near(&got, &want, rows[i]);
        assert_int_equal(want.n_launches, 10); /* norm, products, heads, attention, product, residual and norm; router, choice, two of experts */
        assert_int_equal(got.n_launches, 8); /* products, heads, attention, product, router, choice, and two of experts */
        for (wrong w = RIGHT + 1; w < N_WRONG && i == 0; w++) {
            const left bad = run_layer(rows[i], false, w);
            if (near(&bad, &want)) fail_msg("wrong %d was not noticed", (int)w);
        }
    }
}

/* A product of so many rows that larger groups make them, behind an attention, when they are added to the stream. */
static void test_many_rows(void **state)
{
    (void)state;
    enum { ROWS = 1616, COLS = 512, ATTENTION = 32 }; /* 101 groups, and there are 132 processors */
    static float got[2][ROWS], norms[2][ROWS];
    for (int i = 0; i < 2; i++) {
        open_device();
        at.at_once = i == 0;
        const mox_mat w = affine(4, ROWS, COLS);
        float *x = numbers(COLS, 1), *y = numbers(ROWS, 1), *h = numbers(ROWS, 1), *norm = numbers(ROWS, 1);
        const mox_vec gain = gains(ROWS, MOX_DT_F32);
        const mox_matmul_args o = product(w, x, y, 1);
        memset(at.of_kernel, 0, sizeof at.of_kernel);
        ((mox_dev_gpu *)at.dev)->attention_groups = ATTENTION;
        after(at.dev->ops.matmul(at.dev, &o, &at.err));
        after(at.dev->ops.residual_norm(at.dev, &(mox_residual_norm_args){.a = h, .b = y, .res = h, .norm = norm, .rows = 1, .dim = ROWS,
                                                                          .weight = gain, .eps = 0.1f}, &at.err));
        fetch(got[i], h, sizeof got[i]);
        fetch(norms[i], norm, sizeof norms[i]);
        assert_int_equal(at.of_kernel[MOX_GPU_KERNEL_matvec4], 1 - i);
        assert_int_equal(at.of_kernel[MOX_GPU_KERNEL_matvec4_two], i);
        assert_int_equal(((mox_dev_gpu *)at.dev)->leaves_room, i);
        close_device();
    }
    assert_memory_equal(got[1], got[0], sizeof got[0]);
    assert_true(off(norms[1], norms[0], ROWS) < 1e-6);
}

static void test_sent_off_by_another_thread(void **state)
{
    (void)state;
    const left want = run_layer(3, true, RIGHT);
    at.steals = true;
    const left got = run_layer(3, false, RIGHT);
    at.steals = false;
    must_be_near(&got, &want, 3);
    assert_int_equal(at.n_stolen, 2); /* the first norm, and the product behind attention */
    assert_int_equal(got.n_launches, want.n_launches);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layer), cmocka_unit_test(test_many_rows),
                                       cmocka_unit_test(test_sent_off_by_another_thread)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
