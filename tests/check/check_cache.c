/* tests/check/check_cache.c -- filling caches, attention in its three steps, and the
 * moves between layouts. */
#include "caches.h"

#include <sys/mman.h>

/* ---- kv_append ---- */

/* Appends to a cache and expects exactly the bytes that the address formula says,
 * everything else untouched. */
static void append_case(cache_shape s, bool src_head_major)
{
    enum { HEADS = 3, LEN = 41, ROWS = 20 };
    const int64_t DIM = s.type == MOX_DT_I8 ? 70 : 10;
    mox_err err;
    ck_label("type %s, page_len %lld, %s-major, source %s-major", mox_dtype_name(s.type), (long long)s.page_len,
             s.head_major ? "head" : "token", src_head_major ? "head" : "token");
    const test_cache got = make_cache(s, LEN, HEADS, DIM);
    test_cache want = make_cache(s, LEN, HEADS, DIM);
    want.pages = got.pages;
    const int64_t hs = src_head_major ? ROWS * DIM : DIM + 1, ts = src_head_major ? DIM : HEADS * (DIM + 1) + 2;
    float *src = ck_random(src_head_major ? HEADS * hs : ROWS * ts, 100.0f);
    const mox_span spans[3] = {{11, 9, 0, got.pages, got.n_pages},
                               {3, 0, 9, got.pages, got.n_pages},
                               {0, 7, 34, got.pages, got.n_pages}}; /* up to the last position */
    const mox_kv_append_args a = {.cache = got.c, .spans = spans, .n_spans = 3, .src = src, .heads = HEADS,
                                  .dim = DIM, .stride = ts, .head_stride = hs};
    ck_ok(mox_op_kv_append(&ck.exec, &a, &err), &err);
    for (int i = 0; i < 3; i++)
        for (int64_t r = 0; r < spans[i].n; r++)
            for (int64_t h = 0; h < HEADS; h++)
                cache_put(&want, spans[i].pos0 + r, h, src + (spans[i].row0 + r) * ts + h * hs, DIM);
    ck_exact(got.c.data, want.c.data, got.n_elements * mox_dtype_bytes(s.type), "cache");
}

static void append_refusals(void)
{
    enum { HEADS = 2, DIM = 4, LEN = 12 };
    mox_err err;
    ck_label("refusals");
    const cache_shape s = {MOX_DT_F32, 4, true};
    const test_cache t = make_cache(s, LEN, HEADS, DIM), untouched = make_cache(s, LEN, HEADS, DIM);
    float *src = ck_random(8 * HEADS * DIM, 1.0f);
    mox_span spans[2] = {{0, 3, 0, t.pages, 3}, {3, 5, 8, t.pages, 3}};
    const mox_kv_append_args good = {.cache = t.c, .spans = spans, .n_spans = 2, .src = src, .heads = HEADS,
                                     .dim = DIM, .stride = HEADS * DIM, .head_stride = DIM};
    /* The second span has one token too many; the first may not be written either. */
    mox_kv_append_args a = good;
    ck_refused(mox_op_kv_append(&ck.exec, &a, &err), MOX_E_FULL);
    spans[1].pos0 = 9, spans[1].n = 4;
    ck_refused(mox_op_kv_append(&ck.exec, &a, &err), MOX_E_FULL);
    spans[1].pos0 = 13, spans[1].n = 1;
    ck_refused(mox_op_kv_append(&ck.exec, &a, &err), MOX_E_FULL);
    spans[1].pos0 = 8;
    a.cache.n_pages = 0;
    ck_refused(mox_op_kv_append(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.src = NULL;
    ck_refused(mox_op_kv_append(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.cache.type = MOX_DT_BF16;
    ck_refused(mox_op_kv_append(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.heads = 0;
    ck_refused(mox_op_kv_append(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.cache.head_stride = 1;
    ck_refused(mox_op_kv_append(&ck.exec, &a, &err), MOX_E_ARG);
    spans[1].pos0 = INT64_MAX, spans[1].n = 1;
    ck_refused(mox_op_kv_append(&ck.exec, &good, &err), MOX_E_ARG);
    spans[1] = (mox_span){2, 3, 8, t.pages, 3}; /* row 2 twice */
    ck_refused(mox_op_kv_append(&ck.exec, &good, &err), MOX_E_ARG);
    ck_exact(t.c.data, untouched.c.data, t.n_elements * 4, "a refused append writes nothing");
    spans[1] = (mox_span){3, 4, 8, t.pages, 3}; /* exactly full */
    ck_ok(mox_op_kv_append(&ck.exec, &good, &err), &err);
    a = good, a.n_spans = 0, a.src = NULL;
    ck_ok(mox_op_kv_append(&ck.exec, &a, &err), &err);
}

/* Offsets beyond 32 bits: a cache whose third page starts four gigabytes of
 * elements on.  Only the touched pages of the reservation take memory. */
static void append_far(void)
{
    enum { DIM = 8 };
    mox_err err;
    ck_label("offsets beyond 32 bits");
    const int64_t page_stride = ((int64_t)1 << 31) + 5;
    const size_t bytes = (size_t)(2 * page_stride + 4 * DIM) * 2;
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_true(data != MAP_FAILED, "8 GiB of address space");
    const int32_t pages[2] = {2, 0};
    const mox_span span = {0, 8, 0, pages, 2};
    const mox_cache c = {.data = data, .type = MOX_DT_F16, .page_len = 4, .page_stride = page_stride,
                         .token_stride = DIM, .head_stride = DIM, .n_pages = 3};
    float *src = ck_random(8 * DIM, 1.0f), *out = ck_f32(DIM);
    const mox_kv_append_args a = {.cache = c, .spans = &span, .n_spans = 1, .src = src, .heads = 1, .dim = DIM,
                                  .stride = DIM, .head_stride = DIM};
    ck_ok(mox_op_kv_append(&ck.exec, &a, &err), &err);
    const uint16_t *h = data;
    for (int64_t p = 0; p < 8; p++)
        for (int64_t d = 0; d < DIM; d++)
            ck_true(h[(p < 4 ? 2 * page_stride : 0) + p % 4 * DIM + d] == mox_f32_to_f16(src[p * DIM + d]),
                    "far page");
    const mox_span last = {0, 1, 7, pages, 2}; /* and attention reads them there */
    const mox_attention_args at = {.q = src, .out = out, .k = c, .v = c, .spans = &last, .n_spans = 1, .heads = 1,
                                   .kv_heads = 1, .dim = DIM, .v_dim = DIM, .q_stride = DIM, .out_stride = DIM,
                                   .causal = true}; /* scale 0: the plain mean of all values */
    ck_ok(mox_op_attention(&ck.exec, &at, &err), &err);
    double *mean = or_zeros(DIM);
    for (int64_t p = 0; p < 8; p++)
        for (int64_t d = 0; d < DIM; d++) mean[d] += (double)or_round(src[p * DIM + d], MOX_DT_F16) / 8;
    ck_class_s(out, mean, DIM, 3.0, "mean over far pages");
    munmap(data, bytes);
}

/* Every pattern of sign, exponent and leading fraction bits, with three endings: halves
 * to round either way, subnormals, infinities and NaN of every payload. */
static void append_patterns(void)
{
    enum { N = 3 << 15 };
    ck_label("all kinds of numbers to f16");
    static const uint32_t endings[] = {0, 1, 0xFFFF};
    float *src = ck_f32(N);
    uint16_t *data = ck_bytes(N * 2);
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t bits = (i / 3) << 17 | (i & 1) << 16 | endings[i % 3];
        memcpy(&src[i], &bits, sizeof bits);
    }
    const int32_t page = 0;
    const mox_span span = {0, 1, 0, &page, 1};
    const mox_kv_append_args a = {.cache = {.data = data, .type = MOX_DT_F16, .page_len = 1, .page_stride = N,
                                            .token_stride = N, .head_stride = N, .n_pages = 1},
                                  .spans = &span, .n_spans = 1, .src = src, .heads = 1, .dim = N, .stride = N,
                                  .head_stride = N};
    mox_err err;
    ck_ok(mox_op_kv_append(&ck.exec, &a, &err), &err);
    for (int i = 0; i < N; i++) ck_true(data[i] == mox_f32_to_f16(src[i]), "a number rounded to f16");
}

/* Blocks that 8 bits cannot hold, or hardly. */
static void append_odd_blocks(void)
{
    enum { BLOCKS = 7, N = 32 * BLOCKS };
    ck_label("blocks of zeros, subnormals, huge numbers, infinity and NaN");
    float *src = ck_random(N, 1.0f);
    for (int i = 0; i < 32; i++) src[i] = 0, src[32 + i] *= 1e-9f, src[64 + i] *= 1e-40f, src[96 + i] *= 1e30f;
    src[32 * 4 + 3] = INFINITY, src[32 * 5 + 9] = NAN, src[32 * 5 + 31] = 1e9f;
    uint8_t *got = ck_bytes(BLOCKS * 34), *want = ck_bytes(BLOCKS * 34);
    const int32_t page = 0;
    const mox_span span = {0, 1, 0, &page, 1};
    const mox_kv_append_args a = {.cache = {.data = got, .type = MOX_DT_I8, .page_len = 1, .page_stride = BLOCKS * 34,
                                            .token_stride = BLOCKS * 34, .head_stride = BLOCKS * 34, .n_pages = 1},
                                  .spans = &span, .n_spans = 1, .src = src, .heads = 1, .dim = N, .stride = N, .head_stride = N};
    ck_ok(mox_op_kv_append(&ck.exec, &a, NULL), NULL);
    q8_put(src, N, want, NULL);
    ck_exact(got, want, BLOCKS * 34, "blocks");
    mox_kv_append_args narrow = a;
    narrow.cache.page_len = 2, narrow.cache.page_stride = BLOCKS * 68, narrow.cache.token_stride = N; /* no room for the scales */
    ck_refused(mox_op_kv_append(&ck.exec, &narrow, NULL), MOX_E_ARG);
}

static void test_kv_append(void)
{
    append_patterns();
    append_odd_blocks();
    static const cache_shape all[] = {{MOX_DT_F32, 0, false}, {MOX_DT_F32, 0, true},  {MOX_DT_F32, 1, false},
                                      {MOX_DT_F32, 7, true},  {MOX_DT_F16, 0, false}, {MOX_DT_F16, 16, true},
                                      {MOX_DT_I8, 0, false},  {MOX_DT_I8, 16, true}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        append_case(all[i], false);
        append_case(all[i], true);
    }
    append_far();
    append_refusals();
}

static void append_one_early(const mox_kv_append_args *a, int64_t begin, int64_t end)
{
    mox_span spans[8];
    for (int64_t i = 0; i < a->n_spans; i++) spans[i] = a->spans[i], spans[i].pos0 -= spans[i].pos0 > 0;
    mox_kv_append_args b = *a;
    b.spans = spans;
    mox_kv_append_ref(&b, begin, end);
}
static void append_truncates(const mox_kv_append_args *a, int64_t begin, int64_t end)
{
    mox_kv_append_ref(a, begin, end);
    if (a->cache.type != MOX_DT_F16) return;
    mox_kv_append_args b = *a; /* the first element of each vector rounded towards zero */
    for (int64_t r = begin; r < end; r++) {
        int64_t i = r, s = 0;
        while (i >= a->spans[s].n) i -= a->spans[s++].n;
        const int64_t pos = a->spans[s].pos0 + i;
        uint16_t *p = (uint16_t *)b.cache.data +
                      a->spans[s].pages[pos / b.cache.page_len] * b.cache.page_stride +
                      pos % b.cache.page_len * b.cache.token_stride;
        const float v = a->src[(a->spans[s].row0 + i) * a->stride];
        if (fabsf(mox_f16_to_f32(*p)) > fabsf(v)) --*p;
    }
}
static void append_ignores_row0(const mox_kv_append_args *a, int64_t begin, int64_t end)
{
    mox_span spans[8];
    int64_t row = 0;
    for (int64_t i = 0; i < a->n_spans; i++) {
        spans[i] = a->spans[i], spans[i].row0 = row;
        row += spans[i].n;
    }
    mox_kv_append_args b = *a;
    b.spans = spans;
    mox_kv_append_ref(&b, begin, end);
}
static void append_one_scale(const mox_kv_append_args *a, int64_t begin, int64_t end)
{
    float src[256]; /* every block of 8 bits with the scale of the whole vector */
    for (int64_t r = begin; r < end; r++) {
        mox_kv_append_ref(a, r, r + 1);
        if (a->cache.type != MOX_DT_I8 || a->dim > 256) continue;
        int64_t i = r, s = 0;
        while (i >= a->spans[s].n) i -= a->spans[s++].n;
        const mox_span one = {.n = 1, .pos0 = a->spans[s].pos0 + i, .pages = a->spans[s].pages, .n_pages = a->spans[s].n_pages};
        mox_kv_append_args b = *a;
        b.spans = &one, b.heads = 1, b.src = src;
        memcpy(src, a->src + (a->spans[s].row0 + i) * a->stride, (size_t)a->dim * sizeof *src);
        float most = 0;
        for (int64_t d = 0; d < a->dim; d++) most = fmaxf(most, fabsf(src[d]));
        for (int64_t d = 0; d < a->dim; d += 32) src[d] = most;
        mox_kv_append_ref(&b, 0, 1);
    }
}
static void plant_append_scale(mox_kern *k) { k->kv_append = append_one_scale; }
static void plant_append_pos(mox_kern *k) { k->kv_append = append_one_early; }
static void plant_append_round(mox_kern *k) { k->kv_append = append_truncates; }
static void plant_append_row0(mox_kern *k) { k->kv_append = append_ignores_row0; }

/* ---- attention in three steps ---- */

static void steps_case(int64_t heads, int64_t kv_heads, int64_t dim, int64_t n_keys, cache_shape s)
{
    mox_err err;
    ck_label("heads %lld/%lld, dim %lld, keys %lld, %s %s-major", (long long)heads, (long long)kv_heads,
             (long long)dim, (long long)n_keys, mox_dtype_name(s.type), s.head_major ? "head" : "token");
    const int64_t stride = n_keys + 3, n_kv = n_keys * kv_heads * dim;
    float *q = ck_random(heads * dim, 1.0f), *keys = ck_random(n_kv, 1.0f), *values = ck_random(n_kv, 1.0f);
    const test_cache k = filled_cache(s, NULL, keys, n_keys, kv_heads, dim);
    const test_cache v = filled_cache(s, k.pages, values, n_keys, kv_heads, dim);
    keys = as_kept(keys, n_keys * kv_heads, dim, s.type), values = as_kept(values, n_keys * kv_heads, dim, s.type);
    float *scores = ck_random(heads * stride, 1.0f), *before = or_copy(scores, heads * stride),
          *out = ck_f32(heads * dim);
    const mox_attn_scores_args sa = {.q = q, .k = k.c, .scores = scores, .heads = heads, .kv_heads = kv_heads,
                                     .dim = dim, .n_keys = n_keys, .score_stride = stride, .scale = 0.3f};
    ck_ok(mox_op_attn_scores(&ck.exec, &sa, &err), &err);
    double *want = or_zeros(n_keys), *mag = or_zeros(n_keys), *want_out = or_zeros(heads * dim);
    float *copy = or_copy(scores, heads * stride);
    const mox_attn_softmax_args fa = {.scores = copy, .rows = heads, .n_keys = n_keys, .stride = stride};
    ck_ok(mox_op_attn_softmax(&ck.exec, &fa, &err), &err);
    for (int64_t h = 0; h < heads; h++) {
        const int64_t kv = h * kv_heads / heads;
        for (int64_t p = 0; p < n_keys; p++) {
            const float *key = keys + (p * kv_heads + kv) * dim;
            want[p] = (double)0.3f * or_dot(q + h * dim, key, dim);
            mag[p] = 0.0;
            for (int64_t d = 0; d < dim; d++)
                mag[p] += fabs((double)0.3f * (double)q[h * dim + d] * (double)key[d]);
        }
        ck_class_d(scores + h * stride, want, mag, n_keys, "scores");
        book_softmax(want, n_keys, -INFINITY);
        ck_class_s(copy + h * stride, want, n_keys, 1.0, "softmax");
        ck_exact(copy + h * stride + n_keys, before + h * stride + n_keys, 12, "what lies behind the scores");
        for (int64_t p = n_keys - 1; p >= 0; p--)
            for (int64_t d = 0; d < dim; d++)
                want_out[h * dim + d] += want[p] * (double)values[(p * kv_heads + kv) * dim + d];
    }
    const mox_attn_values_args va = {.scores = copy, .v = v.c, .out = out, .heads = heads, .kv_heads = kv_heads,
                                     .dim = dim, .n_keys = n_keys, .score_stride = stride};
    ck_ok(mox_op_attn_values(&ck.exec, &va, &err), &err);
    ck_class_s(out, want_out, heads * dim, 5.0, "values");
}

/* One case list for the three tests: a chain is only as good as its worst link. */
static void test_steps(void)
{
    static const int64_t lens[] = {1, 31, 32, 33, 4097}, groups[] = {1, 4, 8, 16},
                         dims[] = {64, 128, 256, 576, 33, 1030};
    for (int l = 0; l < 5; l++)
        for (int g = 0; g < 4; g++)
            steps_case(2 * groups[g], 2, 32, lens[l], (cache_shape){g & 1 ? MOX_DT_F16 : MOX_DT_F32, 0, l & 1});
    for (int d = 0; d < 6; d++) {
        steps_case(6, 3, dims[d], 35, (cache_shape){MOX_DT_F32, 0, d & 1});
        steps_case(6, 3, dims[d], 35, (cache_shape){MOX_DT_I8, 0, d & 1});
    }
}

static void test_attn_scores(void)
{
    mox_err err;
    test_steps();
    ck_label("refusals");
    const test_cache k = make_cache((cache_shape){MOX_DT_F32, 0, false}, 8, 2, 4);
    float *q = ck_random(4 * 4, 1.0f), *scores = ck_f32(4 * 8);
    const mox_attn_scores_args good = {.q = q, .k = k.c, .scores = scores, .heads = 4, .kv_heads = 2, .dim = 4,
                                       .n_keys = 8, .score_stride = 8, .scale = 1.0f};
    mox_attn_scores_args a = good;
    a.n_keys = 9, a.score_stride = 9; /* more than the page holds */
    ck_refused(mox_op_attn_scores(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.score_stride = 7;
    ck_refused(mox_op_attn_scores(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.heads = 3;
    ck_refused(mox_op_attn_scores(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.q = NULL;
    ck_refused(mox_op_attn_scores(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.n_keys = 0, a.scores = NULL;
    ck_ok(mox_op_attn_scores(&ck.exec, &a, &err), &err);
}

static void scores_wrong_head(const mox_attn_scores_args *a, int64_t begin, int64_t end)
{
    mox_attn_scores_args b = *a;
    for (int64_t h = begin; h < end; h++) {
        const int64_t group = a->heads / a->kv_heads, other = h % a->kv_heads * group;
        b.q = a->q + (h - other) * a->dim, b.scores = a->scores + (h - other) * a->score_stride;
        mox_attn_scores_ref(&b, other, other + 1);
    }
}
static void scores_unscaled(const mox_attn_scores_args *a, int64_t begin, int64_t end)
{
    mox_attn_scores_args b = *a;
    b.scale = 1.0f;
    mox_attn_scores_ref(&b, begin, end);
}
static void scores_one_scale(const mox_attn_scores_args *a, int64_t begin, int64_t end)
{
    mox_attn_scores_ref(a, begin, end);
    for (int64_t h = begin; a->k.type == MOX_DT_I8 && h < end; h++)
        for (int64_t p = 0; p < a->n_keys; p++) { /* the scale of the first block for all of them */
            const uint8_t *row = (const uint8_t *)a->k.data + p * a->k.token_stride + h / (a->heads / a->kv_heads) * a->k.head_stride;
            double dot = 0;
            for (int64_t d = 0; d < a->dim; d++)
                dot += (double)a->q[h * a->dim + d] * (double)(int8_t)row[d / 32 * 34 + 2 + d % 32] *
                       (double)mox_f16_to_f32(mox_load_u16(row));
            a->scores[h * a->score_stride + p] = (float)((double)a->scale * dot);
        }
}
static void plant_scores_scale8(mox_kern *k) { k->attn_scores = scores_one_scale; }
static void plant_scores_head(mox_kern *k) { k->attn_scores = scores_wrong_head; }
static void plant_scores_scale(mox_kern *k) { k->attn_scores = scores_unscaled; }

static void test_attn_softmax(void)
{
    mox_err err;
    test_steps();
    ck_label("below every sentinel, -inf and NaN");
    float x[5][4] = {{-2e30f, -3e30f, -2e30f, -3e38f}, {-INFINITY, 1.0f, 1.0f, -INFINITY},
                     {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, {0.0f, NAN, 1.0f, -INFINITY},
                     {1e4f, -1e4f, 1e4f - 1.0f, 0.0f}};
    const mox_attn_softmax_args a = {.scores = &x[0][0], .rows = 5, .n_keys = 4, .stride = 4};
    ck_ok(mox_op_attn_softmax(&ck.exec, &a, &err), &err);
    const double e = exp(-1.0), want[5][4] = {{0.5, 0, 0.5, 0},
                                              {0, 0.5, 0.5, 0},
                                              {0, 0, 0, 0},
                                              {NAN, NAN, NAN, NAN},
                                              {1 / (1 + e), 0, e / (1 + e), 0}};
    for (int r = 0; r < 5; r++) {
        const double one[4] = {1, 1, 1, 1};
        ck_close(x[r], want[r], one, 4, 1e-5, 0, "row");
    }
    ck_label("empty and refused");
    float y[4] = {1, 2, 3, 4};
    mox_attn_softmax_args b = {.scores = y, .rows = 2, .n_keys = 0, .stride = 2};
    ck_ok(mox_op_attn_softmax(&ck.exec, &b, &err), &err);
    b = (mox_attn_softmax_args){.rows = 0, .n_keys = 3, .stride = 3};
    ck_ok(mox_op_attn_softmax(&ck.exec, &b, &err), &err);
    ck_true(y[0] == 1 && y[1] == 2 && y[2] == 3 && y[3] == 4, "no key, nothing written");
    b = (mox_attn_softmax_args){.scores = y, .rows = 2, .n_keys = 2, .stride = 1};
    ck_refused(mox_op_attn_softmax(&ck.exec, &b, &err), MOX_E_ARG);
    b.rows = -1, b.stride = 2;
    ck_refused(mox_op_attn_softmax(&ck.exec, &b, &err), MOX_E_ARG);
}

static void softmax_sentinel(const mox_attn_softmax_args *a, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++) {
        float *x = a->scores + r * a->stride;
        double max = -1e30, sum = 0.0;
        for (int64_t p = 0; p < a->n_keys; p++) max = (double)x[p] > max ? (double)x[p] : max;
        for (int64_t p = 0; p < a->n_keys; p++) sum += exp((double)x[p] - max);
        for (int64_t p = 0; p < a->n_keys; p++) x[p] = (float)(exp((double)x[p] - max) / sum);
    }
}
static void softmax_max_overwritten(const mox_attn_softmax_args *a, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++) { /* one slot for the maximum and then the sum, read too late */
        float *x = a->scores + r * a->stride;
        double slot = -INFINITY, sum = 0.0;
        for (int64_t p = 0; p < a->n_keys; p++) slot = (double)x[p] > slot ? (double)x[p] : slot;
        for (int64_t p = 0; p < a->n_keys; p++) sum += exp((double)x[p] - slot);
        const double max = slot;
        slot = sum;
        for (int64_t p = 0; p < a->n_keys; p++)
            x[p] = (float)(exp((double)x[p] - (p % 64 < 32 ? max : slot)) / sum);
    }
}
static void plant_softmax_sentinel(mox_kern *k) { k->attn_softmax = softmax_sentinel; }
static void plant_softmax_slot(mox_kern *k) { k->attn_softmax = softmax_max_overwritten; }

static void test_attn_values(void)
{
    mox_err err;
    test_steps();
    ck_label("no key gives 0; refusals");
    float *out = ck_f32(8), zero[8] = {0};
    mox_attn_values_args a = {.out = out, .heads = 2, .kv_heads = 1, .dim = 4};
    ck_ok(mox_op_attn_values(&ck.exec, &a, &err), &err);
    ck_exact(out, zero, sizeof zero, "zeros");
    a.n_keys = 2, a.score_stride = 2, a.scores = zero;
    ck_refused(mox_op_attn_values(&ck.exec, &a, &err), MOX_E_ARG); /* no cache */
    const test_cache v = make_cache((cache_shape){MOX_DT_F32, 0, false}, 1, 1, 4);
    a.v = v.c;
    ck_refused(mox_op_attn_values(&ck.exec, &a, &err), MOX_E_ARG); /* one position only */
}

static void values_drop_last(const mox_attn_values_args *a, int64_t begin, int64_t end)
{
    mox_attn_values_args b = *a;
    b.n_keys -= b.n_keys > 4 ? b.n_keys % 4 : 0;
    mox_attn_values_ref(&b, begin, end);
}
static void plant_values_tail(mox_kern *k) { k->attn_values = values_drop_last; }

/* ---- moves ---- */

static void test_split_q_gate(void)
{
    static const int64_t sizes[][3] = {{1, 1, 1}, {3, 2, 5}, {2, 16, 256}, {7, 3, 64}, {0, 4, 8}};
    mox_err err;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t n = sizes[s][0], heads = sizes[s][1], dim = sizes[s][2], total = n * heads * dim;
        ck_label("n %lld, heads %lld, dim %lld", (long long)n, (long long)heads, (long long)dim);
        float *in = ck_random(2 * total, 1.0f), *q = ck_f32(total), *gate = ck_f32(total);
        const mox_split_q_gate_args a = {.in = in, .q = q, .gate = gate, .n = n, .heads = heads, .dim = dim};
        ck_ok(mox_op_split_q_gate(&ck.exec, &a, &err), &err);
        for (int64_t i = 0; i < 2 * total; i++) {
            const int64_t row = i / (2 * dim), d = i % (2 * dim);
            ck_true((d < dim ? q[row * dim + d] : gate[row * dim + d - dim]) == in[i], "element");
        }
    }
    mox_split_q_gate_args bad = {.n = 1, .heads = 1, .dim = 4}; /* no buffers */
    ck_refused(mox_op_split_q_gate(&ck.exec, &bad, &err), MOX_E_ARG);
    bad.n = INT64_MAX;
    ck_refused(mox_op_split_q_gate(&ck.exec, &bad, &err), MOX_E_ARG);
}

static void split_all_q_first(const mox_split_q_gate_args *a, int64_t begin, int64_t end)
{
    const int64_t width = a->heads * a->dim;
    for (int64_t t = begin; t < end; t++) {
        memcpy(a->q + t * width, a->in + 2 * t * width, (size_t)width * 4);
        memcpy(a->gate + t * width, a->in + (2 * t + 1) * width, (size_t)width * 4);
    }
}
static void plant_split_order(mox_kern *k) { k->split_q_gate = split_all_q_first; }

static void test_transpose_heads(void)
{
    static const int64_t sizes[][3] = {{1, 1, 1}, {3, 2, 5}, {9, 16, 64}, {7, 3, 33}, {0, 4, 8}};
    mox_err err;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t n = sizes[s][0], heads = sizes[s][1], dim = sizes[s][2], total = n * heads * dim;
        ck_label("n %lld, heads %lld, dim %lld", (long long)n, (long long)heads, (long long)dim);
        float *in = ck_random(total, 1.0f), *out = ck_f32(total);
        const mox_transpose_heads_args a = {.in = in, .out = out, .n = n, .heads = heads, .dim = dim};
        ck_ok(mox_op_transpose_heads(&ck.exec, &a, &err), &err);
        for (int64_t i = 0; i < total; i++) {
            const int64_t h = i / (n * dim), t = i / dim % n, d = i % dim;
            ck_true(out[t * heads * dim + h * dim + d] == in[i], "element");
        }
    }
    float x[8] = {0};
    const mox_transpose_heads_args in_place = {.in = x, .out = x, .n = 2, .heads = 2, .dim = 2};
    ck_refused(mox_op_transpose_heads(&ck.exec, &in_place, &err), MOX_E_ARG);
}

static void transpose_swapped(const mox_transpose_heads_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++)
        for (int64_t h = 0; h < a->heads; h++)
            memcpy(a->out + (t * a->heads + h) * a->dim, a->in + (t * a->heads + h) * a->dim,
                   (size_t)a->dim * 4);
}
static void plant_transpose(mox_kern *k) { k->transpose_heads = transpose_swapped; }

/* ---- bench ---- */

CK_RUN(kv_append)

static void bench_kv_append(void)
{
    enum { HEADS = 4, DIM = 128 };
    static const mox_dtype types[] = {MOX_DT_F16, MOX_DT_F32};
    const int32_t page = 0;
    for (int i = 0; i < 2; i++)
        for (int64_t n = 1; n <= 512; n *= 512) {
            const mox_span span = {0, n, 0, &page, 1};
            mox_kv_append_args a = {.cache = {.data = ck_f32(n * HEADS * DIM), .type = types[i], .page_len = n,
                                              .page_stride = n * HEADS * DIM, .token_stride = HEADS * DIM,
                                              .head_stride = DIM, .n_pages = 1},
                                    .spans = &span, .n_spans = 1, .src = ck_random(n * HEADS * DIM, 1), .heads = HEADS,
                                    .dim = DIM, .stride = HEADS * DIM, .head_stride = DIM};
            ck_bench(ck_tokens(i ? "kv_append to f32" : "kv_append to f16", n), (double)(n * HEADS * DIM * (i ? 8 : 6)), 0,
                     run_kv_append, &a);
        }
}

/* ---- bench of the three steps: 32 heads of 128 over 4 key heads, 4096 keys ---- */

enum { STEP_HEADS = 32, STEP_KV = 4, STEP_DIM = 128, STEP_KEYS = 4096 };

static mox_cache step_cache(void)
{
    const int64_t n = (int64_t)STEP_KEYS * STEP_KV * STEP_DIM;
    uint16_t *data = ck_bytes(n * 2);
    const float *values = ck_random(4096, 1.0f);
    for (int64_t i = 0; i < n; i++) data[i] = mox_f32_to_f16(values[i % 4096]);
    return (mox_cache){.data = data, .type = MOX_DT_F16, .page_len = STEP_KEYS, .page_stride = n,
                       .token_stride = STEP_KV * STEP_DIM, .head_stride = STEP_DIM, .n_pages = 1};
}
static void run_scores(void *user) { (void)mox_op_attn_scores(&ck.exec, user, NULL); }
static void run_softmax(void *user) { (void)mox_op_attn_softmax(&ck.exec, user, NULL); }
static void run_values(void *user) { (void)mox_op_attn_values(&ck.exec, user, NULL); }

static const double step_bytes = 2.0 * STEP_KEYS * STEP_KV * STEP_DIM, step_flops = 2.0 * STEP_KEYS * STEP_HEADS * STEP_DIM;

static void bench_attn_scores(void)
{
    mox_attn_scores_args a = {.q = ck_random(STEP_HEADS * STEP_DIM, 1.0f), .k = step_cache(),
                              .scores = ck_f32(STEP_HEADS * STEP_KEYS), .heads = STEP_HEADS, .kv_heads = STEP_KV,
                              .dim = STEP_DIM, .n_keys = STEP_KEYS, .score_stride = STEP_KEYS, .scale = 0.088f};
    ck_bench("scores of 4096 keys", step_bytes, step_flops, run_scores, &a);
}
static void bench_attn_softmax(void)
{
    mox_attn_softmax_args a = {.scores = ck_random(STEP_HEADS * STEP_KEYS, 1.0f), .rows = STEP_HEADS, .n_keys = STEP_KEYS,
                               .stride = STEP_KEYS};
    ck_bench("softmax of 32 x 4096", 8.0 * STEP_HEADS * STEP_KEYS, 0, run_softmax, &a);
}
static void bench_attn_values(void)
{
    mox_attn_values_args a = {.scores = ck_random(STEP_HEADS * STEP_KEYS, 1.0f), .v = step_cache(),
                              .out = ck_f32(STEP_HEADS * STEP_DIM), .heads = STEP_HEADS, .kv_heads = STEP_KV,
                              .dim = STEP_DIM, .n_keys = STEP_KEYS, .score_stride = STEP_KEYS};
    ck_bench("values of 4096 keys", step_bytes, step_flops, run_values, &a);
}

const ck_op ck_ops_cache[] = {
    {"kv_append", test_kv_append, {plant_append_pos, plant_append_round, plant_append_row0, plant_append_scale}, bench_kv_append},
    {"attn_scores", test_attn_scores, {plant_scores_head, plant_scores_scale, plant_scores_scale8}, bench_attn_scores},
    {"attn_softmax", test_attn_softmax, {plant_softmax_sentinel, plant_softmax_slot}, bench_attn_softmax},
    {"attn_values", test_attn_values, {plant_values_tail}, bench_attn_values},
    {"split_q_gate", test_split_q_gate, {plant_split_order}, NULL},
    {"transpose_heads", test_transpose_heads, {plant_transpose}, NULL},
    {0},
};
