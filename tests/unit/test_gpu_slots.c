/* tests/unit/test_gpu_slots.c -- a GPU device that may take operands in f16, against one that may not.
 *
 * Both are emulated, or of Metal where KIT_METAL is defined (tests/metal), and get the same numbers.  Where many tokens come at once, results must be near
 * each other and must not be the same bytes: that is, the kernels for many made them, and made them
 * right.  A product marked exact must be much nearer, and where few come, bytes the same.  Of what kernels for few tokens do
 * together, the second device gets weights and caches at addresses that they cannot read, and does one thing after the other.  Every operation
 * also runs with something slightly wrong, which the comparison must notice. */
#include "base/rng.h"
#include "base/size.h"
#include "dev/gpu/device.h"
#include "tensor/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS = 1024 };

static struct {
    mox_dev *plain, *halves, *now;
    void *blocks[BLOCKS];
    mox_dev *owners[BLOCKS];
    int n_blocks;
    mox_err err;
} at;

static void must(mox_status status)
{
    if (status != MOX_OK) print_error("%s\n", at.err.msg);
    assert_int_equal(status, MOX_OK);
}

#ifdef KIT_METAL
#define OPEN(out, halves, err) mox_dev_metal_open(out, halves, err)
#else
#define OPEN(out, halves, err) mox_dev_emu_open(out, (int64_t)1 << 28, halves, err)
#endif

static int begin(void **state)
{
    (void)state;
    at.n_blocks = 0;
    const mox_dev_sizes sizes = {.n_rows = 128, .n_spans = 4, .n_pages = 64, .n_pairs = 128, .n_experts = 8};
    must(OPEN(&at.plain, false, &at.err));
    must(OPEN(&at.halves, true, &at.err));
    must(at.plain->apart->reserve(at.plain, &sizes, &at.err));
    must(at.halves->apart->reserve(at.halves, &sizes, &at.err));
    return 0;
}
static int end(void **state)
{
    (void)state;
    while (at.n_blocks > 0) {
        at.n_blocks--;
        at.owners[at.n_blocks]->memory.free(at.owners[at.n_blocks], at.blocks[at.n_blocks], 0);
    }
    mox_dev_close(&at.plain);
    mox_dev_close(&at.halves);
    return 0;
}

/* ---- data: the same on both devices, as both take it from the same seed ---- */

static void *room(int64_t bytes)
{
    void *p;
    assert_true(at.n_blocks < BLOCKS);
    must(at.now->memory.alloc(at.now, bytes, &p, &at.err));
    at.owners[at.n_blocks] = at.now;
    return at.blocks[at.n_blocks++] = p;
}
static void *bring(const void *from, int64_t bytes)
{
    void *p = room(bytes);
    at.now->memory.upload(at.now, p, from, bytes);
    return p;
}
static float uniform(mox_rng *rng, float low, float high) { return low + (high - low) * (float)mox_rng_unit(rng); }
static float *numbers(mox_rng *rng, int64_t n)
{
    float *v = malloc((size_t)n * sizeof *v);
    assert_non_null(v);
    for (int64_t i = 0; i < n; i++) v[i] = uniform(rng, -1, 1);
    float *p = bring(v, n * 4);
    free(v);
    return p;
}
static void *codes(mox_rng *rng, int64_t bytes)
{
    uint8_t *v = malloc((size_t)bytes);
    assert_non_null(v);
    for (int64_t i = 0; i < bytes; i++) v[i] = (uint8_t)mox_rng_u64(rng);
    void *p = bring(v, bytes);
    free(v);
    return p;
}
static void *halves_of(mox_rng *rng, int64_t n, bool is_bf16, float low, float high)
{
    uint16_t *v = malloc((size_t)n * sizeof *v);
    assert_non_null(v);
    for (int64_t i = 0; i < n; i++) v[i] = is_bf16 ? mox_f32_to_bf16(uniform(rng, low, high)) : mox_f32_to_f16(uniform(rng, low, high));
    void *p = bring(v, n * 2);
    free(v);
    return p;
}
static mox_mat affine(mox_rng *rng, int bits, int64_t rows, int64_t cols)
{
    enum { GROUP = 64 };
    const float step = 1.0f / (float)(1 << bits);
    return (mox_mat){.layout = {.kind = MOX_MAT_AFFINE, .bits = bits, .group = GROUP, .scale_type = MOX_DT_BF16}, .rows = rows,
                     .cols = cols, .w = codes(rng, rows * cols * bits / 8),
                     .scales = halves_of(rng, rows * cols / GROUP, true, step, 2 * step),
                     .biases = halves_of(rng, rows * cols / GROUP, true, -1, -0.5f)};
}

/* What f gives on each device; sizes of n numbers. */
typedef struct outcome {
    double off;     /* |difference| / |values|, root mean squares */
    bool same;      /* bytes */
} outcome;

typedef struct problem {
    int bits, n, dim, window, deep;
    bool exact;
    bool is_split; /* few.h or matvec4.h compute it */
    bool wrong; /* on the second device: something is slightly wrong */
} problem;

static outcome compare(float *(*f)(const problem *p, int64_t *n), const problem *given)
{
    float *got[2];
    int64_t n = 0;
    for (int i = 0; i < 2; i++) {
        problem p = *given;
        p.wrong = p.wrong && i == 1;
        at.now = i == 0 ? at.plain : at.halves;
        const float *y = f(&p, &n);
        got[i] = malloc((size_t)n * sizeof(float));
        assert_non_null(got[i]);
        must(at.now->memory.download(at.now, got[i], y, n * 4, &at.err));
    }
    double off = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        off += pow((double)got[1][i] - (double)got[0][i], 2);
        size += pow((double)got[0][i], 2);
    }
    const outcome o = {sqrt(off / size), memcmp(got[0], got[1], (size_t)n * 4) == 0};
    assert_true(size > 0);
    free(got[0]);
    free(got[1]);
    return o;
}

/* Rounding to f16 is off by 2^-12 or so of a number: 3e-4 after some sums of random signs. */
static const double allowed_f16 = 1e-3;

static void near_but_other(float *(*f)(const problem *p, int64_t *n), problem p)
{
    /* f32 in another order; 2^-23 of the largest of 256 numbers, which is up to 30 times what they usually are; or f16 */
    const double allowed = p.exact ? 1e-6 : p.is_split ? 3.6e-6 : allowed_f16;
    p.wrong = false;
    const outcome right = compare(f, &p);
    if (right.same || !(right.off < allowed)) fail_msg("off by %g, %s", right.off, right.same ? "the same bytes" : "other bytes");
    p.wrong = true;
    assert_false(compare(f, &p).off < allowed);
}
static void same_bytes(float *(*f)(const problem *p, int64_t *n), problem p) { assert_true(compare(f, &p).same); }

/* ---- products ---- */

enum { ROWS = 150, COLS = 2 * MOX_GPU_MANY_COLS };

static float *matmul(const problem *p, int64_t *n)
{
    mox_rng rng;
    mox_rng_init(&rng, 3);
    const mox_mat w = affine(&rng, p->bits, ROWS, COLS);
    const mox_vec bias = {.data = halves_of(&rng, ROWS, true, -2, 2), .type = p->wrong ? MOX_DT_NONE : MOX_DT_BF16, .n = ROWS};
    float *y = room(p->n * ROWS * 4);
    must(at.now->ops.matmul(at.now, &(mox_matmul_args){.w = w, .x = numbers(&rng, p->n * (COLS + 8)), .y = y, .n = p->n,
                                                       .x_stride = COLS + 8, .y_stride = ROWS, .bias = bias, .exact = p->exact,
                                                       .scratch = room(mox_matmul_scratch(p->n, COLS))}, &at.err));
    *n = p->n * ROWS;
    return y;
}

/* Three products with x in one place: x is the same for the second, and another for the third. */
static float *products_in_a_row(const problem *p, int64_t *n)
{
    mox_rng rng;
    mox_rng_init(&rng, 7);
    float *x = numbers(&rng, p->n * COLS), *y = room(3 * p->n * ROWS * 4);
    void *scratch = room(mox_matmul_scratch(p->n, COLS));
    for (int i = 0; i < 3; i++) {
        const mox_mat w = affine(&rng, p->bits, ROWS, COLS);
        const mox_add_args twice = {.a = x, .b = x, .out = x, .n = p->n * COLS};
        if (i == 2 && !p->wrong) must(at.now->ops.add(at.now, &twice, &at.err));
        must(at.now->ops.matmul(at.now, &(mox_matmul_args){.w = w, .x = x, .y = y + i * p->n * ROWS, .n = p->n, .x_stride = COLS,
                                                           .y_stride = ROWS, .scratch = scratch}, &at.err));
    }
    *n = 3 * p->n * ROWS;
    return y;
}
static float *project(const problem *p, int64_t *n)
{
    mox_rng rng;
    mox_rng_init(&rng, 8);
    float *x = numbers(&rng, p->n * COLS), *y = room(3 * p->n * ROWS * 4);
    mox_project_args a = {.n = 3};
    for (int i = 0; i < 3; i++)
        a.product[i] = (mox_matmul_args){.w = affine(&rng, p->bits, ROWS, COLS), .x = x, .y = y + i * p->n * ROWS, .n = p->n, .x_stride = COLS,
                                         .y_stride = ROWS, .scratch = room(mox_matmul_scratch(p->n, COLS))};
    if (p->wrong) a.product[2].w = a.product[1].w;
    must(at.now->ops.project(at.now, &a, &at.err));
    *n = 3 * p->n * ROWS;
    return y;
}
static void test_matmul(void **state)
{
    (void)state;
    near_but_other(matmul, (problem){.bits = 4, .n = 40, .is_split = true});
    near_but_other(matmul, (problem){.bits = 8, .n = MOX_GPU_MANY + 1});
    near_but_other(products_in_a_row, (problem){.bits = 4, .n = 20, .is_split = true});
    near_but_other(products_in_a_row, (problem){.bits = 8, .n = 20});
    near_but_other(matmul, (problem){.bits = 4, .n = MOX_GPU_FEW_FROM + 1, .is_split = true});
    near_but_other(matmul, (problem){.bits = 4, .n = MOX_GPU_FEW_TO + 1});
    near_but_other(project, (problem){.bits = 4, .n = 7, .is_split = true});
    same_bytes(matmul, (problem){.bits = 4, .n = MOX_GPU_FEW_FROM});
    same_bytes(matmul, (problem){.bits = 8, .n = MOX_GPU_MANY});
    near_but_other(matmul, (problem){.bits = 4, .n = 40, .exact = true});
    near_but_other(matmul, (problem){.bits = 8, .n = MOX_GPU_FEW_TO + 1, .exact = true});
    same_bytes(matmul, (problem){.bits = 8, .n = MOX_GPU_FEW_TO, .exact = true}); /* by rows: few.h takes none of these */
}

static float *gate_up(const problem *p, int64_t *n)
{
    mox_rng rng;
    mox_rng_init(&rng, 4);
    const mox_mat gate = affine(&rng, p->bits, ROWS, COLS), up = affine(&rng, p->bits, ROWS, COLS);
    const int64_t offsets[2] = {0, p->n};
    float *y = room(p->n * ROWS * 4);
    must(at.now->ops.gate_up_swiglu(at.now, &(mox_gate_up_swiglu_args){.n_groups = 1, .gate = p->wrong ? &up : &gate, .up = &up,
                                                                       .offsets = offsets, .x = numbers(&rng, p->n * COLS), .y = y,
                                                                       .x_stride = COLS, .y_stride = ROWS, .n_x_rows = p->n,
                                                                       .n_y_rows = p->n,
                                                                       .scratch = room(mox_matmul_scratch(p->n, COLS))}, &at.err));
    *n = p->n * ROWS;
    return y;
}
static void test_gate_up(void **state)
{
    (void)state;
    near_but_other(gate_up, (problem){.bits = 4, .n = 133});
    near_but_other(gate_up, (problem){.bits = 5, .n = 20});
    near_but_other(gate_up, (problem){.bits = 4, .n = 20, .is_split = true});
    same_bytes(gate_up, (problem){.bits = 4, .n = 3});
}

/* A layer for each call: experts are placed once. */
static float *experts(const problem *p, int64_t *n)
{
    enum { EXPERTS = 5, K = 2, DIM = MOX_GPU_MANY_COLS };
    const int64_t width = p->dim > 0 ? p->dim : 64;
    static int32_t next[2];
    mox_rng rng;
    mox_rng_init(&rng, 5);
    const int32_t layer = next[at.now == at.halves]++;
    mox_expert all[EXPERTS];
    const mox_mat gate = affine(&rng, p->bits, EXPERTS * width, DIM), up = affine(&rng, p->bits, EXPERTS * width, DIM);
    const mox_mat down = affine(&rng, p->bits, EXPERTS * DIM, width); /* stacks, wherever the device puts them */
    for (int32_t e = 0; e < EXPERTS; e++)
        all[e] = (mox_expert){.id = e, .gate = mox_mat_rows(&gate, e * width, width), .up = mox_mat_rows(&up, e * width, width),
                              .down = mox_mat_rows(&down, e * DIM, DIM)};
    must(at.now->apart->place_experts(at.now, layer, all, EXPERTS, NULL, 0, &at.err));
    const int64_t pairs = p->n * K;
    int32_t ids[256];
    assert_true(pairs <= 256);
    for (int64_t i = 0; i < pairs; i++) ids[i] = (int32_t)(i * i % 7 % EXPERTS); /* the last has none */
    if (p->wrong) ids[pairs - 1] = (ids[pairs - 1] + 1) % EXPERTS;
    const mox_moe_ffn_args a = {.layer = layer, .x = numbers(&rng, p->n * DIM), .ids = bring(ids, pairs * 4), .rows = room(pairs * DIM * 4),
                                .n = p->n, .k = K, .n_experts = EXPERTS, .dim = DIM, .width = width,
                                .bucket_offsets = room((EXPERTS + 1) * 8), .bucket_pairs = room(pairs * 4),
                                .mid = room(pairs * width * 4), .acts = room(mox_matmul_scratch(pairs, DIM))};
    must(at.now->ops.moe_acquire(at.now, &a, &at.err));
    must(at.now->ops.moe_ffn(at.now, &a, &at.err));
    *n = pairs * DIM;
    return a.rows;
}
static void test_experts(void **state)
{
    (void)state;
    near_but_other(experts, (problem){.bits = 4, .n = 120});
    near_but_other(experts, (problem){.bits = 6, .n = 20});
    near_but_other(experts, (problem){.bits = 4, .n = 10, .dim = 256, .is_split = true});
    same_bytes(experts, (problem){.bits = 4, .n = 10});
    same_bytes(experts, (problem){.bits = 8, .n = 10, .dim = 256});
}

/* ---- experts that come ---- */

enum { GUESTS = 5, PLACES = 7, CHOSEN = 2, WIDE = 256 };
enum { STEP = 3 * (WIDE * WIDE / 2 + 2 * WIDE * WIDE / 64 * 2) }; /* codes, scales and biases of three matrices */

/* A source whose experts lie in places of one block, in an order of their own, and come by twos, the last first. */
typedef struct visitors {
    mox_expert_source source;
    mox_expert at[GUESTS];
    int32_t wanted[GUESTS];
    int64_t n_wanted, n_given;
    int n_acquired, n_released;
} visitors;

static mox_status visitors_acquire(mox_expert_source *s, int32_t layer, const int32_t *ids, int64_t n, mox_err *err)
{
    (void)layer, (void)err;
    visitors *v = (visitors *)s;
    assert_true(n <= GUESTS);
    memcpy(v->wanted, ids, (size_t)n * sizeof *ids);
    v->n_wanted = n;
    v->n_given = 0;
    v->n_acquired++;
    return MOX_OK;
}
static int64_t give(visitors *v, mox_expert *out, int64_t most)
{
    int64_t n = 0;
    for (; n < most && v->n_given < v->n_wanted; n++) out[n] = v->at[v->wanted[v->n_wanted - ++v->n_given]];
    return n;
}
static mox_status visitors_next(mox_expert_source *s, mox_expert *out, int64_t max, int64_t *n, const mox_cancel *cancel, mox_err *err)
{
    (void)cancel, (void)err;
    *n = give((visitors *)s, out, mox_min_i64(max, 2));
    return MOX_OK;
}
static mox_status visitors_all(mox_expert_source *s, mox_expert *out, int64_t *n, const mox_cancel *cancel, mox_err *err)
{
    (void)cancel, (void)err;
    *n = give((visitors *)s, out, GUESTS);
    return MOX_OK;
}
static void visitors_release(mox_expert_source *s) { ((visitors *)s)->n_released++; }

/* The matrix at an address, where its bytes may be copied to; returns what lies behind it. */
static uint8_t *settle(uint8_t *to, const mox_mat *like, bool copy, mox_mat *out)
{
    const int64_t bytes[3] = {like->rows * mox_mat_row_bytes(&like->layout, like->cols),
                              like->rows * mox_mat_scale_row_bytes(&like->layout, like->cols),
                              like->rows * mox_mat_scale_row_bytes(&like->layout, like->cols)};
    const uint8_t *from[3] = {like->w, like->scales, like->biases}, *there[3];
    for (int i = 0; i < 3; i++) {
        if (copy) at.now->memory.copy(at.now, to, from[i], bytes[i]);
        there[i] = to;
        to += mox_ceil_div(bytes[i], 256) * 256;
    }
    *out = *like;
    out->w = there[0], out->scales = there[1], out->biases = there[2];
    return to;
}
static int64_t settle_expert(uint8_t *to, const mox_expert *like, bool copy, mox_expert *out)
{
    out->id = like->id;
    uint8_t *end_of = settle(to, &like->gate, copy, &out->gate);
    end_of = settle(end_of, &like->up, copy, &out->up);
    return settle(end_of, &like->down, copy, &out->down) - to;
}

/* What moe_finish gives with the experts of a layer. */
static void finish(mox_moe_finish_args *a, int32_t layer, mox_expert_source *source, uint8_t *out, int64_t bytes)
{
    a->ffn.layer = layer;
    a->ffn.source = source;
    must(at.now->ops.moe_acquire(at.now, &a->ffn, &at.err));
    must(at.now->ops.moe_finish(at.now, a, &at.err));
    must(at.now->memory.download(at.now, out, a->combine.out, bytes, &at.err));
}

/* The same bytes as of experts that stay; wrong: two of them have changed places. */
static void come_case(mox_dev *d, int64_t n, bool wrong)
{
    static const int order[GUESTS] = {4, 0, 6, 2, 5};
    mox_rng rng;
    mox_expert all[GUESTS], come[GUESTS];
    visitors v = {.source = {.acquire = visitors_acquire, .next = visitors_next, .release = visitors_release, .all = visitors_all}};
    at.now = d;
    mox_rng_init(&rng, 7);
    for (int32_t e = 0; e < GUESTS; e++)
        all[e] = (mox_expert){.id = e, .gate = affine(&rng, 4, WIDE, WIDE), .up = affine(&rng, 4, WIDE, WIDE), .down = affine(&rng, 4, WIDE, WIDE)};
    const int64_t pairs = n * CHOSEN, bytes = n * WIDE * 4;
    uint8_t *places = room(PLACES * STEP);
    for (int32_t e = 0; e < GUESTS; e++) {
        assert_int_equal(settle_expert(places, &all[e], false, &come[e]), STEP);
        (void)settle_expert(places + order[e] * STEP, &all[e], true, &v.at[e]);
    }
    if (wrong) {
        v.at[0] = v.at[1];
        v.at[0].id = 0;
    }
    const int32_t layer = ((mox_dev_gpu *)d)->n_layers;
    must(d->apart->place_experts(d, layer, all, GUESTS, NULL, 0, &at.err));
    must(d->apart->place_experts(d, layer + 1, all, GUESTS, come, STEP, &at.err));
    int32_t ids[128];
    assert_true(pairs <= 128);
    for (int64_t i = 0; i < pairs; i++) ids[i] = (int32_t)((i + i / CHOSEN) % GUESTS);
    mox_moe_finish_args a = {
        .ffn = {.x = numbers(&rng, n * WIDE), .ids = bring(ids, pairs * 4), .rows = room(pairs * WIDE * 4), .n = n, .k = CHOSEN,
                .n_experts = GUESTS, .dim = WIDE, .width = WIDE, .bucket_offsets = room((GUESTS + 1) * 8), .bucket_pairs = room(pairs * 4),
                .batch_pairs = room(pairs * 4), .mid = room(pairs * WIDE * 4), .acts = room(mox_matmul_scratch(pairs, WIDE))},
        .combine = {.h = numbers(&rng, n * WIDE), .w = numbers(&rng, pairs), .out = room(bytes), .n = n, .k = CHOSEN, .dim = WIDE}};
    a.combine.experts = a.ffn.rows;
    uint8_t *want = malloc((size_t)bytes), *got = malloc((size_t)bytes);
    assert_true(want && got);
    finish(&a, layer, NULL, want, bytes);
    d->memory.zero(d, a.combine.out, bytes);
    finish(&a, layer + 1, &v.source, got, bytes);
    assert_int_equal(memcmp(got, want, (size_t)bytes) == 0, !wrong);
    assert_int_equal(v.n_acquired, 1);
    assert_int_equal(v.n_released, 1);
    free(want);
    free(got);
}

/* Few tokens, whose experts are there all at once; some, by places; many, by a table. */
static void test_experts_that_come(void **state)
{
    (void)state;
    come_case(at.halves, 3, false);
    come_case(at.halves, 3, true);
    come_case(at.halves, 7, false);
    come_case(at.halves, 7, true);
    come_case(at.halves, MOX_GPU_MANY + 1, false);
    come_case(at.plain, 5, false);
}

/* ---- attention ---- */

/* A span of p->n rows, one of a single row over many keys, and one of three. */
static float *attention(const problem *p, int64_t *n)
{
    enum { HEADS = 4, KV = 2, PAGE = 16, PAGES = 40 };
    const int64_t width = HEADS * p->dim, rows = p->n + 4;
    mox_rng rng;
    mox_rng_init(&rng, 6);
    int32_t pages[PAGES];
    for (int32_t i = 0; i < PAGES; i++) pages[i] = i * 7 % PAGES;
    const mox_span spans[] = {{.row0 = 0, .n = p->n, .pos0 = 30, .pages = pages, .n_pages = 10},
                              {.row0 = p->n, .n = 1, .pos0 = p->deep, .pages = pages + 10, .n_pages = 20},
                              {.row0 = p->n + 1, .n = 3, .pos0 = 5, .pages = pages + 30, .n_pages = 10}};
    const int32_t none = 0;
    mox_batch batch = {.tokens = &none, .pos = &none, .spans = spans, .n_spans = 3};
    at.now->apart->begin(at.now, &batch);
    mox_cache k = {.type = MOX_DT_F16, .page_len = PAGE, .page_stride = PAGE * KV * p->dim, .token_stride = p->dim,
                   .head_stride = PAGE * p->dim, .n_pages = PAGES};
    mox_cache v = k;
    k.data = halves_of(&rng, PAGES * k.page_stride, false, -1, 1);
    v.data = halves_of(&rng, PAGES * k.page_stride, false, -1, 1);
    const int64_t n_parts = at.now == at.plain ? 0 : mox_attention_parts(3, HEADS, p->dim); /* without: not the split kernels */
    float *out = room(rows * width * 4);
    must(at.now->ops.attention(at.now, &(mox_attention_args){.q = numbers(&rng, rows * width), .out = out, .k = k, .v = v, .spans = spans,
                                                             .n_spans = 3, .heads = HEADS, .kv_heads = KV, .dim = p->dim, .v_dim = p->dim,
                                                             .q_stride = width, .q_head_stride = p->dim, .out_stride = width,
                                                             .out_head_stride = p->dim, .scale = 0.4f, .causal = true,
                                                             .window = p->wrong ? p->window + 60 : p->window, .parts = n_parts ? room(n_parts * 4) : NULL,
                                                             .n_parts = n_parts}, &at.err));
    *n = rows * width;
    return out;
}
static void test_attention(void **state)
{
    (void)state;
    near_but_other(attention, (problem){.dim = 64, .n = 70, .deep = 300});
    near_but_other(attention, (problem){.dim = 128, .n = 20, .window = 40, .deep = 300});
    near_but_other(attention, (problem){.dim = 256, .n = 17, .deep = 100});
    near_but_other(attention, (problem){.dim = 128, .n = MOX_GPU_MANY, .deep = 300, .exact = true});
    near_but_other(attention, (problem){.dim = 256, .n = MOX_GPU_MANY, .deep = 300, .exact = true});
    same_bytes(attention, (problem){.dim = 128, .n = MOX_GPU_MANY, .deep = 90}); /* too few keys for the split kernels */
    same_bytes(attention, (problem){.dim = 96, .n = 20, .deep = 300});
}

/* ---- few tokens, together and one after the other ---- */

/* 4-bit weights where matvec4.h finds them on the first device alone. */
static mox_mat four(mox_rng *rng, int64_t rows, int64_t cols)
{
    enum { APART = 8 };
    mox_mat m = affine(rng, 4, rows, cols);
    if (at.now == at.plain) return m;
    const int64_t bytes = rows * cols / 2;
    uint8_t *moved = room(bytes + APART);
    at.now->memory.copy(at.now, moved + APART, m.w, bytes);
    m.w = moved + APART;
    return m;
}
static mox_mat rows_of(const mox_mat *m, int64_t first, int64_t rows)
{
    enum { GROUP = 64, SCALE = 2 };
    mox_mat part = *m;
    part.rows = rows;
    part.w = (const uint8_t *)m->w + first * m->cols / 2;
    part.scales = (const uint8_t *)m->scales + first * (m->cols / GROUP) * SCALE;
    part.biases = (const uint8_t *)m->biases + first * (m->cols / GROUP) * SCALE;
    return part;
}

/* Two or four products; p->dim of them. */
static float *products(const problem *p, int64_t *n)
{
    static const int64_t rows[] = {40, 24, 3, 3};
    mox_rng rng;
    mox_rng_init(&rng, 9);
    float *x = numbers(&rng, p->n * 512), *y = room(p->n * 70 * 4);
    mox_project_args a = {.n = p->dim};
    *n = 0;
    for (int i = 0; i < p->dim; i++) {
        a.product[i] = (mox_matmul_args){.w = four(&rng, rows[i], 512), .x = x, .y = y + *n, .n = p->n, .x_stride = 512, .y_stride = rows[i],
                                         .scratch = room(mox_matmul_scratch(p->n, 512))};
        if (p->wrong && i == p->dim - 1) a.product[i].w = rows_of(&a.product[0].w, 0, rows[i]);
        *n += p->n * rows[i];
    }
    must(at.now->ops.project(at.now, &a, &at.err));
    return y;
}

/* Experts with a shared one, whose mode is p->window. */
static float *finish_with(const problem *p, int64_t *n)
{
    enum { EXPERTS = 3, K = 2, DIM = 512, WIDTH = 256 };
    static int32_t next[2];
    mox_rng rng;
    mox_rng_init(&rng, 10);
    const int32_t layer = next[at.now == at.halves]++;
    const mox_mat gate = four(&rng, EXPERTS * WIDTH, DIM), up = four(&rng, EXPERTS * WIDTH, DIM), down = four(&rng, EXPERTS * DIM, WIDTH);
    mox_expert all[EXPERTS];
    for (int32_t e = 0; e < EXPERTS; e++)
        all[e] = (mox_expert){.id = e, .gate = rows_of(&gate, e * WIDTH, WIDTH), .up = rows_of(&up, e * WIDTH, WIDTH),
                              .down = rows_of(&down, e * DIM, DIM)};
    must(at.now->apart->place_experts(at.now, layer, all, EXPERTS, NULL, 0, &at.err));
    const int64_t pairs = p->n * K;
    const int32_t ids[] = {2, 0, 1, 2, 0, 1, 1, 0};
    float *h = numbers(&rng, p->n * DIM), *weights = numbers(&rng, pairs + 1);
    const mox_moe_shared shared = {.gate = four(&rng, WIDTH, DIM), .up = four(&rng, WIDTH, DIM), .down = four(&rng, DIM, WIDTH),
                                   .scale = affine(&rng, 8, 1, DIM), .mid = room(p->n * WIDTH * 4), .out = room(p->n * DIM * 4),
                                   .logit = room(p->n * 4), .scratch = room(mox_matmul_scratch(p->n, DIM))};
    const mox_moe_finish_args a = {
        .ffn = {.layer = layer, .x = numbers(&rng, p->n * DIM), .ids = bring(ids, pairs * 4), .rows = room(pairs * DIM * 4), .n = p->n, .k = K,
                .n_experts = EXPERTS, .dim = DIM, .width = WIDTH, .bucket_offsets = room((EXPERTS + 1) * 8), .bucket_pairs = room(pairs * 4),
                .mid = room((pairs + p->n) * WIDTH * 4), .acts = room(mox_matmul_scratch(pairs, DIM))},
        .combine = {.h = h, .w = p->wrong ? weights + 1 : weights, .mode = (mox_shared_mode)p->window, .shared = shared.out,
                    .gate = shared.logit, .gate_stride = 1, .out = h, .n = p->n, .k = K, .dim = DIM},
        .shared = shared};
    mox_moe_finish_args b = a;
    b.combine.experts = a.ffn.rows;
    must(at.now->ops.moe_acquire(at.now, &b.ffn, &at.err));
    must(at.now->ops.moe_finish(at.now, &b, &at.err));
    *n = p->n * DIM;
    return h;
}

/* As many as the parts have room for, and not one more. */
static void test_pieces(void **state)
{
    (void)state;
    enum { HEADS = 3, V = 62, PIECE = 2 * HEADS * (V + 2), KEYS = 256, MOST = 16 };
    const mox_gpu_attention p = {.n_spans = 2, .heads = HEADS, .v_dim = V};
    const mox_span few[2] = {{.n = 1, .pos0 = KEYS - 1}, {.n = 1}}, many[2] = {{.n = 1}, {.n = 1, .pos0 = KEYS}};
    assert_int_equal(mox_gpu_pieces(&p, few, 7 * PIECE, KEYS, MOST), 1);
    assert_int_equal(mox_gpu_pieces(&p, many, 0, KEYS, MOST), 1);
    assert_int_equal(mox_gpu_pieces(&p, many, 7 * PIECE - 1, KEYS, MOST), 6);
    assert_int_equal(mox_gpu_pieces(&p, many, 7 * PIECE, KEYS, MOST), 7);
    assert_int_equal(mox_gpu_pieces(&p, many, 99 * PIECE, KEYS, MOST), MOST);
}

/* Latent attention of two rows, the second of which sees p->deep keys. */
static float *latent(const problem *p, int64_t *n)
{
    enum { HEADS = 3, NOPE = 24, V = 20, RANK = MOX_GPU_LATENT_RANK, ROPE = MOX_GPU_LATENT_ROPE, PAGE = 16, PAGES = 40, N = 2 };
    mox_rng rng;
    mox_rng_init(&rng, 11);
    int32_t pages[PAGES];
    for (int32_t i = 0; i < PAGES; i++) pages[i] = i * 7 % PAGES;
    const mox_span spans[] = {{.row0 = 0, .n = 1, .pos0 = 30, .pages = pages, .n_pages = 10},
                              {.row0 = 1, .n = 1, .pos0 = p->deep, .pages = pages + 10, .n_pages = 30}};
    const int32_t none = 0;
    mox_batch batch = {.tokens = &none, .pos = &none, .spans = spans, .n_spans = N};
    at.now->apart->begin(at.now, &batch);
    const int64_t more = at.now == at.plain ? 0 : 4; /* pages that are not read in quads */
    mox_cache c = {.type = MOX_DT_F16, .page_len = PAGE, .page_stride = PAGE * RANK, .token_stride = RANK, .n_pages = PAGES};
    mox_cache k = {.type = MOX_DT_F16, .page_len = PAGE, .page_stride = PAGE * ROPE, .token_stride = ROPE, .n_pages = PAGES};
    c.data = halves_of(&rng, PAGES * c.page_stride, false, -1, 1);
    k.data = halves_of(&rng, PAGES * k.page_stride, false, -1, 1);
    if (more > 0) {
        uint16_t *moved = room(PAGES * (k.page_stride + more) * 2);
        for (int64_t i = 0; i < PAGES; i++)
            at.now->memory.copy(at.now, moved + i * (k.page_stride + more), (uint16_t *)k.data + i * k.page_stride, k.page_stride * 2);
        k.data = moved;
        k.page_stride += more;
    }
    const int64_t n_parts = mox_attention_parts(N, HEADS, RANK);
    const mox_mla_expanded_args a = {.key = four(&rng, HEADS * NOPE, RANK), .value = four(&rng, HEADS * (V + 5), RANK), .key_rows = NOPE,
                                     .value_rows = V + 5, .value_row0 = p->wrong ? 4 : 5, .q_nope = numbers(&rng, N * HEADS * NOPE),
                                     .q_pe = numbers(&rng, N * HEADS * ROPE), .out = room(N * HEADS * V * 4), .latent = c, .k_pe = k,
                                     .spans = spans, .n_spans = N, .heads = HEADS, .nope = NOPE, .rope = ROPE, .rank = RANK, .v_dim = V,
                                     .scale = 0.01f, .q = room(N * HEADS * RANK * 4), .ctx = room(N * HEADS * RANK * 4),
                                     .parts = room(n_parts * 4), .n_parts = n_parts};
    must(mox_dev_mla_folded(at.now, &a, &at.err));
    *n = N * HEADS * V;
    return a.out;
}

static void test_together(void **state)
{
    (void)state;
    near_but_other(products, (problem){.n = 2, .dim = 4, .is_split = true});
    near_but_other(products, (problem){.n = 1, .dim = 2, .is_split = true});
    near_but_other(finish_with, (problem){.n = 3, .window = MOX_SHARED_GATED, .is_split = true});
    near_but_other(finish_with, (problem){.n = 1, .window = MOX_SHARED_UNSCALED, .is_split = true});
    near_but_other(finish_with, (problem){.n = 1, .window = MOX_SHARED_NONE, .is_split = true});
    near_but_other(latent, (problem){.deep = 300, .is_split = true});
    near_but_other(latent, (problem){.deep = 100, .is_split = true});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_matmul, begin, end),
        cmocka_unit_test_setup_teardown(test_gate_up, begin, end),
        cmocka_unit_test_setup_teardown(test_experts, begin, end),
        cmocka_unit_test_setup_teardown(test_experts_that_come, begin, end),
        cmocka_unit_test_setup_teardown(test_attention, begin, end),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test_setup_teardown(test_together, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
