/* tests/check/check_attention.c -- attention over caches of every shape.
 *
 * The oracle writes all scores down, softmaxes them by the book and sums the values
 * in double, from plain arrays that know nothing of pages. */
#include "caches.h"

#include "ops/span.h"

typedef struct problem {
    int64_t heads, kv_heads, dim, v_dim, kv_len, n; /* the last n positions are queries */
    int64_t window;
    bool everything;    /* not causal */
    float scale;        /* 0: dim^-1/2 */
    const float *sinks; /* [heads] or NULL */
    float *q;           /* [n, heads, dim] */
    float *k, *v;       /* [kv_len, kv_heads, dim or v_dim] */
} problem;

static problem randomised(problem p)
{
    if (!p.v_dim) p.v_dim = p.dim;
    if (p.scale == 0.0f) p.scale = (float)(1.0 / sqrt((double)p.dim));
    p.q = ck_random(p.n * p.heads * p.dim, 1.5f);
    p.k = ck_random(p.kv_len * p.kv_heads * p.dim, 1.5f);
    p.v = ck_random(p.kv_len * p.kv_heads * p.v_dim, 1.0f);
    ck_label("heads %lld/%lld, dim %lld/%lld, keys %lld, queries %lld, window %lld", (long long)p.heads,
             (long long)p.kv_heads, (long long)p.dim, (long long)p.v_dim, (long long)p.kv_len, (long long)p.n,
             (long long)p.window);
    return p;
}

static double *oracle(const problem *p, mox_dtype type)
{
    double *want = or_zeros(p->n * p->heads * p->v_dim), *scores = or_zeros(p->kv_len);
    const float *keys = as_kept(p->k, p->kv_len * p->kv_heads, p->dim, type);
    const float *values = as_kept(p->v, p->kv_len * p->kv_heads, p->v_dim, type);
    for (int64_t i = 0; i < p->n; i++)
        for (int64_t h = 0; h < p->heads; h++) {
            const int64_t pos = p->kv_len - p->n + i, kv = h * p->kv_heads / p->heads;
            const int64_t last = p->everything ? p->kv_len - 1 : pos;
            const int64_t first = p->window > 0 && pos >= p->window ? pos - p->window + 1 : 0;
            for (int64_t j = first; j <= last; j++) {
                double dot = 0.0;
                for (int64_t d = p->dim - 1; d >= 0; d--)
                    dot += (double)p->q[(i * p->heads + h) * p->dim + d] *
                           (double)keys[(j * p->kv_heads + kv) * p->dim + d];
                scores[j - first] = (double)p->scale * dot;
            }
            book_softmax(scores, last - first + 1, p->sinks ? (double)p->sinks[h] : -INFINITY);
            for (int64_t j = last; j >= first; j--)
                for (int64_t d = 0; d < p->v_dim; d++)
                    want[(i * p->heads + h) * p->v_dim + d] +=
                        scores[j - first] * (double)values[(j * p->kv_heads + kv) * p->v_dim + d];
        }
    return want;
}

static mox_attention_args args_of(const problem *p, const test_cache *k, const test_cache *v,
                                  const mox_span *span, float *out)
{
    return (mox_attention_args){
        .q = p->q, .out = out, .k = k->c, .v = v->c, .spans = span, .n_spans = 1, .heads = p->heads,
        .kv_heads = p->kv_heads, .dim = p->dim, .v_dim = p->v_dim, .q_stride = p->heads * p->dim,
        .q_head_stride = p->dim, .out_stride = p->heads * p->v_dim, .out_head_stride = p->v_dim, .scale = p->scale,
        .causal = !p->everything, .window = p->window, .sinks = p->sinks};
}

/* All queries in one span, over a cache of that shape; with room for pieces, or without. */
static float *attend_parts(const problem *p, cache_shape s, bool in_pieces)
{
    mox_err err;
    const test_cache k = filled_cache(s, NULL, p->k, p->kv_len, p->kv_heads, p->dim);
    const test_cache v = filled_cache(s, k.pages, p->v, p->kv_len, p->kv_heads, p->v_dim);
    float *out = ck_f32(p->n * p->heads * p->v_dim);
    const mox_span span = {.n = p->n, .pos0 = p->kv_len - p->n, .pages = k.pages, .n_pages = k.n_pages};
    mox_attention_args a = args_of(p, &k, &v, &span, out);
    a.n_parts = in_pieces ? mox_attention_parts(1, p->heads, p->v_dim) : 0;
    a.parts = in_pieces ? ck_f32(a.n_parts) : NULL;
    ck_ok(mox_op_attention(&ck.exec, &a, &err), &err);
    return out;
}
static float *attend(const problem *p, cache_shape s) { return attend_parts(p, s, false); }

static double value_scale(const problem *p)
{
    double max = 0.0;
    for (int64_t i = 0; i < p->kv_len * p->kv_heads * p->v_dim; i++)
        if (fabs((double)p->v[i]) > max) max = fabs((double)p->v[i]);
    return max;
}

static float *checked(const problem *p, cache_shape s)
{
    float *out = attend(p, s);
    ck_class_s(out, oracle(p, s.type), p->n * p->heads * p->v_dim, value_scale(p), "out");
    return out;
}

/* The same bytes on the reference, class S elsewhere: a faster kernel may sum the
 * keys of a page first. */
static void same(const float *got, const float *want, int64_t n, double scale, const char *what)
{
    if (ck.at_ref) ck_exact(got, want, n * 4, what);
    else ck_class_s(got, or_widen(want, n), n, scale, what);
}

static const cache_shape plain = {.type = MOX_DT_F32};

static void sizes(void)
{
    static const int64_t lens[] = {1, 31, 32, 33, 4097}, groups[] = {1, 4, 8, 16};
    static const int64_t dims[] = {64, 128, 256, 576, 77, 1, 1030};
    for (int l = 0; l < 5; l++)
        for (int g = 0; g < 4; g++) {
            if (ck.on_device && lens[l] > 1000 && g > 1) continue; /* seconds on an emulated one */
            const problem p = randomised((problem){.heads = 2 * groups[g], .kv_heads = 2, .dim = 64,
                                                   .kv_len = lens[l], .n = 1});
            checked(&p, plain);
        }
    for (int d = 0; d < 7; d++) {
        const problem p = randomised((problem){.heads = 6, .kv_heads = 2, .dim = dims[d], .kv_len = 37, .n = 5});
        checked(&p, plain);
        checked(&p, (cache_shape){MOX_DT_I8, 0, d & 1});
    }
    problem p = randomised((problem){.heads = 4, .kv_heads = 1, .dim = 192, .v_dim = 128, .kv_len = 40, .n = 40});
    checked(&p, plain);
    p = randomised((problem){.heads = 2, .kv_heads = 2, .dim = 16, .v_dim = 1100, .kv_len = 20, .n = 3});
    checked(&p, plain);
}

static void shapes(void)
{
    static const cache_shape all[] = {
        {MOX_DT_F32, 0, false}, {MOX_DT_F32, 0, true},  {MOX_DT_F32, 1, false}, {MOX_DT_F32, 5, true},
        {MOX_DT_F32, 16, false}, {MOX_DT_F32, 64, true}, {MOX_DT_F16, 0, false}, {MOX_DT_F16, 5, true},
        {MOX_DT_F16, 16, false}, {MOX_DT_I8, 0, false}, {MOX_DT_I8, 5, true}, {MOX_DT_I8, 64, false}};
    const problem p = randomised((problem){.heads = 8, .kv_heads = 2, .dim = 64, .v_dim = 48, .kv_len = 67, .n = 9});
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ck_label("type %s, page_len %lld, %s-major", mox_dtype_name(all[i].type), (long long)all[i].page_len,
                 all[i].head_major ? "head" : "token");
        problem rounded = p; /* what such a cache keeps, kept in f32 */
        rounded.k = as_kept(p.k, 67 * 2, 64, all[i].type);
        rounded.v = as_kept(p.v, 67 * 2, 48, all[i].type);
        same(checked(&p, all[i]), checked(&rounded, plain), 9 * 8 * 48, value_scale(&p), "shape");
    }
}

/* A causal chunk at pos0 > 0 is the tokens one by one. */
static void chunks(void)
{
    problem p = randomised((problem){.heads = 4, .kv_heads = 2, .dim = 32, .kv_len = 50, .n = 17});
    const float *chunk = checked(&p, plain);
    problem one = p;
    one.n = 1;
    for (int64_t i = 0; i < 17; i++) {
        one.q = p.q + i * 4 * 32, one.kv_len = 33 + i + 1;
        same(attend(&one, plain), chunk + i * 4 * 32, 4 * 32, value_scale(&p), "one token");
    }
}

static void masks(void)
{
    static const int64_t windows[] = {1, 2, 31, 32, 33, 128, 1000, INT64_MAX};
    for (int w = 0; w < 8; w++) {
        problem p = randomised((problem){.heads = 4, .kv_heads = 4, .dim = 24, .kv_len = 70, .n = 40,
                                         .window = windows[w]});
        checked(&p, (cache_shape){MOX_DT_F32, 8, false});
        p.everything = true;
        checked(&p, plain);
    }
    problem p = randomised((problem){.heads = 4, .kv_heads = 2, .dim = 24, .kv_len = 30, .n = 30,
                                     .everything = true});
    checked(&p, plain);
}

static void sinks(void)
{
    float logits[4] = {-3.0f, 0.0f, 4.0f, 300.0f};
    problem p = randomised((problem){.heads = 4, .kv_heads = 2, .dim = 64, .kv_len = 45, .n = 6, .window = 20});
    const float *without = checked(&p, plain);
    p.sinks = logits;
    checked(&p, plain);
    for (int h = 0; h < 4; h++) logits[h] = -INFINITY;
    same(checked(&p, plain), without, 6 * 4 * 64, value_scale(&p), "sinks of -inf are none");
}

/* Scores that break sentinels and single precision exponentials. */
static void extremes(void)
{
    problem p = randomised((problem){.heads = 2, .kv_heads = 1, .dim = 8, .kv_len = 21, .n = 4, .scale = 900.0f});
    checked(&p, plain); /* one key takes all */
    for (int64_t i = 0; i < 4 * 2 * 8; i++) p.q[i] = 1e16f;
    for (int64_t i = 0; i < 21 * 8; i++) p.k[i] = -1e16f * (1.0f + (float)(i / 8 % 5));
    p.scale = 1.0f;
    ck_label("scores around -1e33");
    checked(&p, plain);
    for (int64_t i = 0; i < 21 * 8; i++) p.k[i] = -INFINITY;
    ck_label("all scores -inf: nothing is seen");
    const float *out = attend(&p, plain);
    for (int64_t i = 0; i < 4 * 2 * 8; i++) ck_true(out[i] == 0.0f, "a row without a key is 0");
    p = randomised((problem){.heads = 2, .kv_heads = 1, .dim = 8, .kv_len = 21, .n = 2});
    p.k[3 * 8 + 5] = NAN;
    ck_label("a NaN key shows");
    out = attend(&p, plain);
    for (int64_t i = 0; i < 2 * 2 * 8; i++) ck_true(isnan(out[i]), "NaN in a visible key must show");
}

/* Three sequences in one call, rows in another order than spans, against one call each. */
static void several_spans(void)
{
    enum { HEADS = 4, KV = 2, DIM = 32, PAGE = 4, ROWS = 16 };
    mox_err err;
    ck_label("three spans");
    static const int64_t n[4] = {5, 1, 0, 7}, pos0[4] = {3, 30, 9, 0}, row0[4] = {9, 0, 3, 1};
    const cache_shape s = {MOX_DT_F32, PAGE, false};
    float *q = ck_random(ROWS * HEADS * DIM, 1.0f);
    const test_cache k = filled_cache(s, NULL, ck_random(40 * KV * DIM, 1.0f), 40, KV, DIM);
    const test_cache v = filled_cache(s, k.pages, ck_random(40 * KV * DIM, 1.0f), 40, KV, DIM);
    mox_span spans[4];
    for (int i = 0; i < 4; i++)
        spans[i] = (mox_span){.row0 = row0[i], .n = n[i], .pos0 = pos0[i], .pages = k.pages, .n_pages = k.n_pages};
    const problem p = {.heads = HEADS, .kv_heads = KV, .dim = DIM, .v_dim = DIM, .scale = 0.2f, .q = q};
    float *together = ck_f32(ROWS * HEADS * DIM), *apart = ck_f32(ROWS * HEADS * DIM);
    mox_attention_args a = args_of(&p, &k, &v, spans, together);
    a.n_spans = 4;
    ck_ok(mox_op_attention(&ck.exec, &a, &err), &err);
    a.n_spans = 1, a.out = apart;
    for (int i = 0; i < 4; i++) {
        a.spans = &spans[i];
        ck_ok(mox_op_attention(&ck.exec, &a, &err), &err);
    }
    ck_exact(together, apart, ROWS * HEADS * DIM * 4, "together and apart"); /* NaN where no span is */
    ck_true(isnan(together[8 * HEADS * DIM]), "a row of no span is not written");
}

/* The bytes of a unit do not depend on the units computed with it: not on their number,
 * nor on where they begin, nor on what keys hold that only others see. */
static void cuts(void)
{
    enum { HEADS = 6, KV = 2, DIM = 40, LEN = 300, N = 37, UNITS = N * HEADS };
    static const int64_t windows[] = {0, 90}, steps[] = {1, 5, 3, 16, 100, UNITS};
    float logits[HEADS] = {0.5f, -INFINITY, 3.0f, 0.0f, -2.0f, 1.0f};
    static const mox_dtype types[] = {MOX_DT_F16, MOX_DT_F16, MOX_DT_F32, MOX_DT_F32, MOX_DT_I8, MOX_DT_I8};
    for (int shape = 0; shape < 6; shape++) {
        const cache_shape s = {types[shape], shape % 2 ? 64 : 7, shape % 2};
        problem p = randomised((problem){.heads = HEADS, .kv_heads = KV, .dim = DIM, .v_dim = DIM + 3, .kv_len = LEN, .n = N,
                                         .window = windows[shape % 2], .sinks = shape < 2 ? logits : NULL});
        for (int64_t j = 0; j < KV * p.v_dim; j += 3) { /* seen by the last rows; and by the first alone when windowed */
            p.v[(LEN - 2) * KV * p.v_dim + j] = INFINITY;
            if (p.window) p.v[(LEN - N - p.window + 2) * KV * p.v_dim + j] = -INFINITY;
        }
        const test_cache k = filled_cache(s, NULL, p.k, LEN, KV, DIM), v = filled_cache(s, k.pages, p.v, LEN, KV, p.v_dim);
        const mox_span span = {.n = N, .pos0 = LEN - N, .pages = k.pages, .n_pages = k.n_pages};
        float *whole = ck_f32(UNITS * p.v_dim), *cut = ck_f32(UNITS * p.v_dim);
        mox_attention_args a = args_of(&p, &k, &v, &span, whole);
        ck_ok(mox_op_attention(&ck.exec, &a, NULL), NULL);
        a.out = cut;
        for (int i = 0; i < 6; i++) {
            ck_label("in steps of %lld, shape %d", (long long)steps[i], shape);
            for (int64_t u = 0; u < UNITS; u += steps[i])
                ck.exec.kern->attention(&a, u, u + steps[i] < UNITS ? u + steps[i] : UNITS);
            ck_exact(cut, whole, UNITS * p.v_dim * 4, "units cut otherwise");
            ck_true(isfinite(cut[20 * HEADS * p.v_dim]), "a row that does not see the infinity");
        }
    }
}

static void attention_refusals(void)
{
    mox_err err;
    const problem p = randomised((problem){.heads = 4, .kv_heads = 2, .dim = 8, .kv_len = 12, .n = 2});
    ck_label("refusals");
    const cache_shape s = {MOX_DT_F32, 4, false};
    const test_cache k = filled_cache(s, NULL, p.k, 12, 2, 8), v = filled_cache(s, k.pages, p.v, 12, 2, 8);
    float *out = ck_f32(2 * 4 * 8);
    mox_span span = {.n = 2, .pos0 = 10, .pages = k.pages, .n_pages = 3};
    const mox_attention_args good = args_of(&p, &k, &v, &span, out);
    mox_attention_args a = good;
#define REFUSED(change)                                                          \
    do {                                                                         \
        a = good;                                                                \
        change;                                                                  \
        ck_refused(mox_op_attention(&ck.exec, &a, &err), MOX_E_ARG);             \
    } while (0)
    REFUSED(a.kv_heads = 3);
    REFUSED(a.kv_heads = 0);
    REFUSED(a.dim = 0);
    REFUSED(a.window = -1);
    REFUSED(a.q = NULL);
    REFUSED(a.out = NULL);
    REFUSED(a.k.type = MOX_DT_BF16);
    REFUSED(a.k.page_len = 0);
    REFUSED(a.k.n_pages = 1); /* some id is then too large */
    REFUSED(a.k.token_stride = 7);
    REFUSED(a.k.page_stride = INT64_MAX / 2);
    REFUSED(a.q_stride = 31);
    REFUSED(a.n_spans = -1);
    const mox_span overlapping[2] = {span, span};
    REFUSED(a.spans = overlapping; a.n_spans = 2);
    span.n_pages = 2;
    REFUSED((void)0);
    span.n_pages = 3, span.pos0 = -1;
    REFUSED((void)0);
    span.pos0 = INT64_MAX;
    REFUSED((void)0);
    span.pos0 = 10, span.pages = NULL;
    REFUSED((void)0);
#undef REFUSED
    int32_t *pages = ck_i32(3);
    memcpy(pages, k.pages, 12);
    span.pages = pages;
    pages[0] = -1; /* given away: fine with a window that has passed it, else an error */
    a = good;
    ck_refused(mox_op_attention(&ck.exec, &a, &err), MOX_E_ARG);
    for (int64_t i = 0; i < 2 * 4 * 8; i++) ck_true(isnan(out[i]), "nothing is written after a refusal");
    a.window = 7; /* position 10 sees 4..10 */
    ck_ok(mox_op_attention(&ck.exec, &a, &err), &err);
    a.window = 8;
    ck_refused(mox_op_attention(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.n_spans = 0, a.spans = NULL, a.q = NULL;
    ck_ok(mox_op_attention(&ck.exec, &a, &err), &err);
}

static void test_attention(void)
{
    sizes();
    shapes();
    chunks();
    masks();
    sinks();
    extremes();
    several_spans();
    if (!ck.on_device) cuts();
    attention_refusals();
}

/* ---- in pieces ---- */

static void test_pieces(void)
{
    static const struct {
        int64_t len, window;
        cache_shape shape;
    } cases[] = {{1024, 0, {MOX_DT_F32, 0, false}},  {1025, 0, {MOX_DT_F32, 0, true}}, {2049, 0, {MOX_DT_F16, 64, true}},
                 {4000, 1030, {MOX_DT_F16, 16, false}}, {5000, 1024, {MOX_DT_F32, 7, true}}, {17411, 0, {MOX_DT_F16, 64, true}},
                 {3001, 0, {MOX_DT_I8, 64, true}}};
    float logits[8] = {0.5f, -INFINITY, 3.0f, 0.0f, -2.0f, 1.0f, 20.0f, 0.0f};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        problem p = randomised((problem){.heads = 8, .kv_heads = 2, .dim = 24, .v_dim = 20, .kv_len = cases[i].len, .n = 1,
                                         .window = cases[i].window, .sinks = i % 2 ? logits : NULL});
        p.k[(p.kv_len - 3) * 2 * 24 + 5] = 30.0f; /* the pieces do not have the same maximum */
        const float *out = attend_parts(&p, cases[i].shape, true);
        ck_class_s(out, oracle(&p, cases[i].shape.type), 8 * 20, value_scale(&p), "in pieces");
        if (cases[i].len <= MOX_ATTENTION_PIECE) ck_exact(out, attend(&p, cases[i].shape), 8 * 20 * 4, "too short to be cut");
    }
    problem wide = randomised((problem){.heads = 2, .kv_heads = 1, .dim = 8, .v_dim = 1100, .kv_len = 1200, .n = 1});
    ck_class_s(attend_parts(&wide, plain, true), oracle(&wide, MOX_DT_F32), 2 * 1100, value_scale(&wide), "wide");
    for (int64_t i = 0; i < 1200 * 8; i++) wide.k[i] = -INFINITY;
    for (int64_t i = 0; i < 2 * 8; i++) wide.q[i] = 1.0f;
    ck_label("nothing seen in any piece");
    const float *zero = attend_parts(&wide, plain, true);
    for (int64_t i = 0; i < 2 * 1100; i++) ck_true(zero[i] == 0.0f, "a row without a key is 0");
}

/* A prompt, two long sequences and a short one in one call; units of pieces cut otherwise. */
static void split_spans(void)
{
    enum { HEADS = 4, KV = 2, DIM = 16, LEN = 3000, ROWS = 6, UNITS = 2 * MOX_ATTENTION_PIECES * HEADS };
    ck_label("spans of which some are cut");
    const cache_shape s = {MOX_DT_F16, 64, true};
    const test_cache k = filled_cache(s, NULL, ck_random(LEN * KV * DIM, 1.0f), LEN, KV, DIM);
    const test_cache v = filled_cache(s, k.pages, ck_random(LEN * KV * DIM, 1.0f), LEN, KV, DIM);
    const mox_span spans[4] = {{.row0 = 3, .n = 1, .pos0 = 2999}, {.row0 = 4, .n = 2, .pos0 = 2900},
                               {.row0 = 0, .n = 1, .pos0 = 100}, {.row0 = 2, .n = 1, .pos0 = 1500}};
    mox_span full[4];
    for (int i = 0; i < 4; i++) full[i] = spans[i], full[i].pages = k.pages, full[i].n_pages = k.n_pages;
    const problem p = {.heads = HEADS, .kv_heads = KV, .dim = DIM, .v_dim = DIM, .scale = 0.3f,
                       .q = ck_random(ROWS * HEADS * DIM, 1.0f)};
    float *together = ck_f32(ROWS * HEADS * DIM), *apart = ck_f32(ROWS * HEADS * DIM);
    mox_attention_args a = args_of(&p, &k, &v, full, together);
    a.n_spans = 4, a.n_parts = mox_attention_parts(ck.on_device ? 4 : 2, HEADS, DIM), a.parts = ck_f32(a.n_parts);
    ck_ok(mox_op_attention(&ck.exec, &a, NULL), NULL);
    float *parts = ck_f32(a.n_parts), *before = a.parts;
    a.parts = parts;
    for (int64_t u = UNITS; u > 0 && !ck.on_device; u -= u % 3 ? u % 3 : 3)
        ck.exec.kern->attention_parts(&a, u - (u % 3 ? u % 3 : 3), u);
    if (!ck.on_device) ck_exact(parts, before, a.n_parts * 4, "pieces cut otherwise"); /* NaN where no piece is */
    a.n_spans = 1, a.out = apart;
    for (int i = 0; i < 4; i++) {
        a.spans = &full[i];
        ck_ok(mox_op_attention(&ck.exec, &a, NULL), NULL);
    }
    ck_exact(together, apart, ROWS * HEADS * DIM * 4, "together and apart");
    a.spans = full, a.n_spans = 4, a.n_parts = mox_attention_parts(2, HEADS, DIM) - 1;
    ck_refused(mox_op_attention(&ck.exec, &a, NULL), MOX_E_ARG);
}

static void test_attention_parts(void)
{
    test_pieces();
    split_spans();
}

static void parts_without_last(const mox_attention_args *a, int64_t begin, int64_t end)
{
    for (int64_t u = begin; u < end; u++) { /* the last tile of the last piece is not whole */
        mox_pieces p;
        (void)mox_split_span(a, u / a->heads / MOX_ATTENTION_PIECES, &p);
        mox_attention_parts_ref(a, u, u + 1);
        const int64_t piece = u / a->heads % MOX_ATTENTION_PIECES;
        if (piece + 1 == p.n && p.last % 64) mox_part_of(a, u / a->heads / MOX_ATTENTION_PIECES, u % a->heads, piece)[1] = 0.0f;
    }
}
static void merge_without_maximum(const mox_attention_args *a, int64_t begin, int64_t end)
{
    for (int64_t u = begin; u < end; u++) {
        mox_pieces p;
        (void)mox_split_span(a, u / a->heads, &p);
        for (int64_t i = 0; i < p.n; i++) mox_part_of(a, u / a->heads, u % a->heads, i)[0] = 0.0f;
    }
    mox_attention_merge_ref(a, begin, end);
}
static void plant_parts_last(mox_kern *k) { k->attention_parts = parts_without_last; }
static void plant_merge_maximum(mox_kern *k) { k->attention_merge = merge_without_maximum; }

static void attention_causal_off_by_one(const mox_attention_args *a, int64_t begin, int64_t end)
{
    mox_attention_args b = *a;
    for (int64_t u = begin; u < end; u++) { /* every query but the last of a span sees one key more */
        int64_t row = u / a->heads, s = 0;
        while (row >= a->spans[s].n) row -= a->spans[s++].n;
        mox_span one = a->spans[s];
        one.row0 += row, one.pos0 += row, one.n = row + 1 < one.n ? 2 : 1;
        b.spans = &one, b.n_spans = 1, b.causal = false;
        mox_attention_ref(&b, u % a->heads, u % a->heads + 1);
    }
}
static void attention_wrong_head(const mox_attention_args *a, int64_t begin, int64_t end)
{
    mox_attention_args b = *a;
    for (int64_t u = begin; u < end; u++) { /* h % kv_heads instead of h / group */
        const int64_t h = u % a->heads, group = a->heads / a->kv_heads, kv = h % a->kv_heads;
        b.q = a->q + (h - kv * group) * a->q_head_stride;
        b.out = a->out + (h - kv * group) * a->out_head_stride;
        mox_attention_ref(&b, u - h + kv * group, u - h + kv * group + 1);
    }
}
static void attention_sink_as_key(const mox_attention_args *a, int64_t begin, int64_t end)
{
    mox_attention_args b = *a;
    float scaled[64];
    for (int64_t h = 0; a->sinks && h < a->heads; h++) scaled[h] = a->sinks[h] * a->scale;
    b.sinks = a->sinks ? scaled : NULL;
    mox_attention_ref(&b, begin, end);
}
static void attention_wide_window(const mox_attention_args *a, int64_t begin, int64_t end)
{
    mox_attention_args b = *a;
    if (b.window > 0 && b.window < INT64_MAX) b.window++;
    mox_attention_ref(&b, begin, end);
}
static void plant_attention_causal(mox_kern *k) { k->attention = attention_causal_off_by_one; }
static void plant_attention_head(mox_kern *k) { k->attention = attention_wrong_head; }
static void plant_attention_sink(mox_kern *k) { k->attention = attention_sink_as_key; }
static void plant_attention_window(mox_kern *k) { k->attention = attention_wide_window; }

/* ---- bench ---- */

static void run_attention(void *user) { (void)mox_op_attention(&ck.exec, user, NULL); }

/* n rows behind `depth` keys, as a model of 32 heads of 128 over 4 key heads has them. */
static void bench_case(const char *name, int64_t depth, int64_t n)
{
    enum { HEADS = 32, KV = 4, DIM = 128, PAGE = 64 };
    const int64_t len = depth + n, n_pages = (len + PAGE - 1) / PAGE, page = (int64_t)PAGE * KV * DIM;
    mox_cache c[2];
    for (int i = 0; i < 2; i++) {
        uint16_t *data = ck_bytes(n_pages * page * 2);
        const float *values = ck_random(page, 1.0f);
        for (int64_t e = 0; e < n_pages * page; e++) data[e] = mox_f32_to_f16(values[e % page]);
        c[i] = (mox_cache){.data = data, .type = MOX_DT_F16, .page_len = PAGE, .page_stride = page, .token_stride = DIM,
                           .head_stride = PAGE * DIM, .n_pages = n_pages};
    }
    const mox_span span = {.n = n, .pos0 = depth, .pages = shuffled_pages(n_pages, n_pages), .n_pages = n_pages};
    mox_attention_args a = {.q = ck_random(n * HEADS * DIM, 1.0f), .out = ck_f32(n * HEADS * DIM), .k = c[0], .v = c[1],
                            .spans = &span, .n_spans = 1, .heads = HEADS, .kv_heads = KV, .dim = DIM, .v_dim = DIM,
                            .q_stride = HEADS * DIM, .q_head_stride = DIM, .out_stride = HEADS * DIM, .out_head_stride = DIM,
                            .scale = 0.088f, .causal = true};
    const double seen = (double)n * ((double)depth + 0.5 * (double)(n + 1));
    ck_bench(name, (double)(len * KV * DIM * 4), 4.0 * seen * HEADS * DIM, run_attention, &a);
}

static void bench_attention(void)
{
    bench_case("one row at 4096", 4095, 1);
    bench_case("one row at 32768", 32767, 1);
    const bool few = !ck.below || ck.below->attention == mox_attention_ref; /* which would take minutes */
    bench_case(few ? "16 rows at 0" : "512 rows at 0", 0, few ? 16 : 512);
    bench_case(few ? "16 rows at 4096" : "512 rows at 4096", 4096, few ? 16 : 512);
}

const ck_op ck_ops_attention[] = {
    {"attention",
     test_attention,
     {plant_attention_causal, plant_attention_head, plant_attention_sink, plant_attention_window},
     bench_attention},
    {"attention_parts", test_attention_parts, {plant_parts_last}, NULL},
    {"attention_merge", test_pieces, {plant_merge_maximum}, NULL},
    {0},
};
