/* tests/check/check_mla.c -- latent attention.
 *
 * Oracles: the dense values of the weights by the harness's own decoder; softmax by
 * the book; and for the whole chain the expanded form, in which every head has keys
 * K_h c and values V_h c of its own and nothing is folded. */
#include "caches.h"

#include <stdlib.h>

/* ---- mla_split ---- */

static void test_mla_split(void)
{
    static const int64_t sizes[][5] = {
        {1, 1, 1, 2, 1}, {3, 4, 5, 6, 7}, {2, 16, 128, 64, 512}, {0, 2, 3, 4, 5}};
    mox_err err;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t n = sizes[s][0], heads = sizes[s][1], nope = sizes[s][2], rope = sizes[s][3],
                      rank = sizes[s][4];
        ck_label("n %lld, heads %lld, %lld + %lld, rank %lld", (long long)n, (long long)heads, (long long)nope,
                 (long long)rope, (long long)rank);
        float *q = ck_random(n * heads * (nope + rope), 1.0f), *kv = ck_random(n * (rank + rope), 1.0f);
        float *q_nope = ck_f32(n * heads * nope), *q_pe = ck_f32(n * heads * rope);
        float *latent = ck_f32(n * rank), *k_pe = ck_f32(n * rope);
        const mox_mla_split_args a = {.q_full = q, .kv = kv, .q_nope = q_nope, .q_pe = q_pe, .latent = latent,
                                      .k_pe = k_pe, .n = n, .heads = heads, .nope = nope, .rope = rope, .rank = rank};
        ck_ok(mox_op_mla_split(&ck.exec, &a, &err), &err);
        for (int64_t i = 0; i < n * heads * (nope + rope); i++) {
            const int64_t row = i / (nope + rope), d = i % (nope + rope);
            ck_true((d < nope ? q_nope[row * nope + d] : q_pe[row * rope + d - nope]) == q[i], "q");
        }
        for (int64_t i = 0; i < n * (rank + rope); i++) {
            const int64_t row = i / (rank + rope), d = i % (rank + rope);
            ck_true((d < rank ? latent[row * rank + d] : k_pe[row * rope + d - rank]) == kv[i], "kv");
        }
    }
    ck_label("refusals");
    mox_mla_split_args a = {.n = 1, .heads = 1, .nope = 2, .rope = 2, .rank = 2};
    ck_refused(mox_op_mla_split(&ck.exec, &a, &err), MOX_E_ARG);
    a.n = INT64_MAX / 2;
    ck_refused(mox_op_mla_split(&ck.exec, &a, &err), MOX_E_ARG);
    a.n = 1, a.rope = -2;
    ck_refused(mox_op_mla_split(&ck.exec, &a, &err), MOX_E_ARG);
}

static void split_rope_first(const mox_mla_split_args *a, int64_t begin, int64_t end)
{
    mox_mla_split_ref(a, begin, end);
    for (int64_t t = begin; t < end; t++) {
        const float *kv = a->kv + t * (a->rank + a->rope);
        memcpy(a->k_pe + t * a->rope, kv, (size_t)a->rope * 4);
        memcpy(a->latent + t * a->rank, kv + a->rope, (size_t)a->rank * 4);
    }
}
static void plant_split_order(mox_kern *k) { k->mla_split = split_rope_first; }

/* ---- mla_q_absorb, mla_out ---- */

static void absorb_groups(ck_layout layout, int group, bool by_rank, int64_t n, int64_t heads, int64_t nope, int64_t rank,
                          int64_t head_rows)
{
    mox_err err;
    ck_label("%s, group %d, by_rank %d, n %lld, heads %lld, nope %lld, rank %lld", ck_layout_name(layout), group, by_rank,
             (long long)n, (long long)heads, (long long)nope, (long long)rank);
    const int64_t rows = heads * head_rows, cols = by_rank ? nope : rank;
    const mox_mat w = ck_mat(layout, group, rows, cols);
    double *dense = or_zeros(rows * cols), *size = or_zeros(rows * cols);
    ck_mat_dense(&w, dense, size);
    float *q = ck_random(n * heads * nope, 1.0f), *out = ck_f32(n * heads * rank);
    const mox_mla_q_absorb_args a = {.w = w, .by_rank = by_rank, .head_rows = head_rows, .q_nope = q, .out = out,
                                     .n = n, .heads = heads, .nope = nope, .rank = rank};
    ck_ok(mox_op_mla_q_absorb(&ck.exec, &a, &err), &err);
    double *want = or_zeros(rank), *mag = or_zeros(rank);
    for (int64_t th = 0; th < n * heads; th++) {
        for (int64_t c = 0; c < rank; c++) {
            want[c] = mag[c] = 0.0;
            for (int64_t i = nope - 1; i >= 0; i--) {
                const int64_t row = th % heads * head_rows + (by_rank ? c : i);
                const int64_t at = row * cols + (by_rank ? i : c);
                want[c] += (double)q[th * nope + i] * dense[at];
                mag[c] += fabs((double)q[th * nope + i]) * size[at];
            }
        }
        ck_class_d(out + th * rank, want, mag, rank, "q'");
    }
    float *one = ck_f32(n * heads * rank); /* a head does not know of the heads beside it */
    mox_mla_q_absorb_args cut = a;
    cut.out = one;
    for (int64_t h = heads - 1; n > 0 && h >= 0; h--) ck.exec.kern->mla_q_absorb(&cut, h, h + 1);
    ck_exact(one, out, n * heads * rank * 4, "heads one by one");
}

static void absorb_case(ck_layout layout, bool by_rank, int64_t n, int64_t heads, int64_t nope, int64_t rank,
                        int64_t head_rows)
{
    absorb_groups(layout, 32, by_rank, n, heads, nope, rank, head_rows);
}

static void test_mla_q_absorb(void)
{
    static const ck_layout layouts[] = {CK_F32, CK_F16, CK_BF16, CK_Q2, CK_Q3,
                                        CK_Q4,  CK_Q5,  CK_Q6,   CK_Q8, CK_FP8};
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        absorb_case(layouts[l], false, 3, 3, 20, 96, 33); /* 13 rows of values between the heads */
        absorb_case(layouts[l], true, 3, 3, 64, 20, 20);
    }
    static const int64_t counts[] = {0, 1, 15, 16, 17, 33};
    for (int i = 0; i < 6; i++) {
        absorb_case(CK_Q4, false, counts[i], 2, 16, 160, 24);
        absorb_case(CK_BF16, true, counts[i], 2, 600, 7, 7);
    }
    for (int64_t n = 1; n <= 9; n += n < 5 ? 1 : 4)
        for (int group = 32; group <= 128; group *= 2) {
            absorb_groups(CK_Q4, group, false, n, 2, 20, 384, 30);
            absorb_groups(CK_Q4, group, true, n, 2, 384, 20, 21);
        }
    absorb_case(CK_F32, false, 3, 2, 600, 35, 601); /* longer than one stretch of terms */
    absorb_case(CK_F32, false, 2, 1, 9, 1, 9);
    absorb_case(CK_BF16, false, 1, 4, 128, 512, 256);

    mox_err err;
    ck_label("refusals");
    float q[64] = {0}, out[64];
    const mox_mat w = ck_mat(CK_F32, 0, 20, 8);
    const mox_mla_q_absorb_args good = {.w = w, .head_rows = 10, .q_nope = q, .out = out, .n = 1, .heads = 2,
                                        .nope = 6, .rank = 8};
    mox_mla_q_absorb_args a = good;
    a.head_rows = 5; /* less than one head */
    ck_refused(mox_op_mla_q_absorb(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.head_rows = 15; /* the second head would end behind the matrix */
    ck_refused(mox_op_mla_q_absorb(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.rank = 7;
    ck_refused(mox_op_mla_q_absorb(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.by_rank = true; /* rows of 8 are not nope */
    ck_refused(mox_op_mla_q_absorb(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.heads = INT64_MAX / 2;
    ck_refused(mox_op_mla_q_absorb(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.out = NULL;
    ck_refused(mox_op_mla_q_absorb(&ck.exec, &a, &err), MOX_E_ARG);
}

static void absorb_heads_adjacent(const mox_mla_q_absorb_args *a, int64_t begin, int64_t end)
{
    mox_mla_q_absorb_args b = *a;
    if (!b.by_rank) b.head_rows = b.nope; /* forgets the value rows between */
    mox_mla_q_absorb_ref(&b, begin, end);
}
static void absorb_drops_token_tail(const mox_mla_q_absorb_args *a, int64_t begin, int64_t end)
{
    mox_mla_q_absorb_args b = *a;
    if (b.n > 16) b.n = 16;
    mox_mla_q_absorb_ref(&b, begin, end);
}
static void plant_absorb_rows(mox_kern *k) { k->mla_q_absorb = absorb_heads_adjacent; }
static void plant_absorb_tail(mox_kern *k) { k->mla_q_absorb = absorb_drops_token_tail; }

static void out_case(ck_layout layout, int64_t n, int64_t heads, int64_t v_dim, int64_t rank,
                     int64_t head_rows, int64_t row0)
{
    mox_err err;
    ck_label("%s, n %lld, heads %lld, v_dim %lld, rank %lld, row0 %lld", ck_layout_name(layout), (long long)n,
             (long long)heads, (long long)v_dim, (long long)rank, (long long)row0);
    const int64_t rows = heads * head_rows;
    const mox_mat w = ck_mat(layout, 32, rows, rank);
    double *dense = or_zeros(rows * rank), *size = or_zeros(rows * rank);
    ck_mat_dense(&w, dense, size);
    float *ctx = ck_random(n * heads * rank, 1.0f), *out = ck_f32(n * heads * v_dim);
    const mox_mla_out_args a = {.w = w, .head_rows = head_rows, .row0 = row0, .ctx = ctx, .out = out, .n = n,
                                .heads = heads, .v_dim = v_dim, .rank = rank};
    ck_ok(mox_op_mla_out(&ck.exec, &a, &err), &err);
    double *want = or_zeros(v_dim), *mag = or_zeros(v_dim);
    for (int64_t th = 0; th < n * heads; th++) {
        for (int64_t f = 0; f < v_dim; f++) {
            const int64_t at = (th % heads * head_rows + row0 + f) * rank;
            want[f] = mag[f] = 0.0;
            for (int64_t c = rank - 1; c >= 0; c--) {
                want[f] += (double)ctx[th * rank + c] * dense[at + c];
                mag[f] += fabs((double)ctx[th * rank + c]) * size[at + c];
            }
        }
        ck_class_d(out + th * v_dim, want, mag, v_dim, "out");
    }
    float *one = ck_f32(n * heads * v_dim);
    mox_mla_out_args cut = a;
    cut.out = one;
    const int64_t units = n > 0 ? heads * v_dim : 0;
    for (int64_t step = 1; step <= 7; step += 6) {
        for (int64_t u = 0; u < units; u += step) ck.exec.kern->mla_out(&cut, u, u + step < units ? u + step : units);
        ck_exact(one, out, n * heads * v_dim * 4, "units cut otherwise");
    }
}

static void test_mla_out(void)
{
    static const ck_layout layouts[] = {CK_F32, CK_F16, CK_BF16, CK_Q2, CK_Q3,
                                        CK_Q4,  CK_Q5,  CK_Q6,   CK_Q8, CK_FP8};
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        out_case(layouts[l], 3, 3, 13, 96, 33, 20);
        out_case(layouts[l], 2, 3, 20, 64, 20, 0);
    }
    static const int64_t counts[] = {0, 1, 5, 33};
    for (int i = 0; i < 4; i++) out_case(CK_Q4, counts[i], 2, 24, 512, 40, 16);
    for (int64_t n = 2; n <= 4; n++) out_case(CK_Q4, n, 2, 9, 160, 9, 0);
    out_case(CK_BF16, 4, 1, 35, 1111, 40, 2); /* activations too long to be prepared on the stack */
    mox_err err;
    ck_label("refusals");
    float ctx[64] = {0}, out[64];
    const mox_mla_out_args good = {.w = ck_mat(CK_F32, 0, 20, 8), .head_rows = 10, .row0 = 6, .ctx = ctx, .out = out,
                                   .n = 1, .heads = 2, .v_dim = 4, .rank = 8};
    mox_mla_out_args a = good;
    a.row0 = 7;
    ck_refused(mox_op_mla_out(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.heads = 3;
    ck_refused(mox_op_mla_out(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.row0 = -1;
    ck_refused(mox_op_mla_out(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.rank = 16;
    ck_refused(mox_op_mla_out(&ck.exec, &a, &err), MOX_E_ARG);
}

static void out_reads_keys(const mox_mla_out_args *a, int64_t begin, int64_t end)
{
    mox_mla_out_args b = *a;
    b.row0 = 0;
    mox_mla_out_ref(&b, begin, end);
}
static void plant_out_row0(mox_kern *k) { k->mla_out = out_reads_keys; }

/* ---- mla_attention, mla_tile, mla_finish ---- */

typedef struct problem {
    int64_t len, n, heads, rank, rope; /* the last n positions are queries */
    float scale;
    float *q, *q_pe;      /* [n, heads, rank], [n, heads, rope] */
    float *latent, *k_pe; /* [len, rank], [len, rope] */
} problem;

static problem make_problem(int64_t len, int64_t n, int64_t heads, int64_t rank, int64_t rope)
{
    ck_label("len %lld, n %lld, heads %lld, rank %lld + %lld", (long long)len, (long long)n, (long long)heads,
             (long long)rank, (long long)rope);
    return (problem){.len = len, .n = n, .heads = heads, .rank = rank, .rope = rope, .scale = 0.11f,
                     .q = ck_random(n * heads * rank, 1.0f), .q_pe = ck_random(n * heads * rope, 1.0f),
                     .latent = ck_random(len * rank, 1.0f), .k_pe = ck_random(len * rope, 1.0f)};
}

/* The context of query i, head h, over keys [0, seen). */
static void oracle(const problem *p, int64_t i, int64_t h, int64_t seen, double *want)
{
    double *scores = malloc((size_t)(seen + 1) * sizeof *scores);
    const float *q = p->q + (i * p->heads + h) * p->rank, *q_pe = p->q_pe + (i * p->heads + h) * p->rope;
    for (int64_t j = 0; j < seen; j++) {
        double dot = 0.0;
        for (int64_t r = p->rope - 1; r >= 0; r--)
            dot += (double)q_pe[r] * (double)p->k_pe[j * p->rope + r];
        for (int64_t c = p->rank - 1; c >= 0; c--)
            dot += (double)q[c] * (double)p->latent[j * p->rank + c];
        scores[j] = (double)p->scale * dot;
    }
    book_softmax(scores, seen, -INFINITY);
    for (int64_t c = 0; c < p->rank; c++) want[c] = 0.0;
    for (int64_t j = seen - 1; j >= 0; j--)
        for (int64_t c = 0; c < p->rank; c++)
            want[c] += scores[j] * (double)p->latent[j * p->rank + c];
    free(scores);
}

static float *attend(const problem *p, cache_shape s)
{
    mox_err err;
    const test_cache latent = filled_cache(s, NULL, p->latent, p->len, 1, p->rank);
    const test_cache k_pe = filled_cache(s, latent.pages, p->k_pe, p->len, 1, p->rope);
    float *ctx = ck_f32(p->n * p->heads * p->rank);
    const mox_span span = {.n = p->n, .pos0 = p->len - p->n, .pages = latent.pages, .n_pages = latent.n_pages};
    const mox_mla_attention_args a = {.q = p->q, .q_pe = p->q_pe, .ctx = ctx, .latent = latent.c, .k_pe = k_pe.c,
                                      .spans = &span, .n_spans = 1, .heads = p->heads, .rank = p->rank,
                                      .rope = p->rope, .scale = p->scale};
    ck_ok(mox_op_mla_attention(&ck.exec, &a, &err), &err);
    double *want = or_zeros(p->rank);
    problem kept = *p;
    kept.latent = as_kept(p->latent, p->len, p->rank, s.type);
    kept.k_pe = as_kept(p->k_pe, p->len, p->rope, s.type);
    for (int64_t i = 0; i < p->n; i++)
        for (int64_t h = 0; h < p->heads; h++) {
            oracle(&kept, i, h, p->len - p->n + i + 1, want);
            ck_class_s(ctx + (i * p->heads + h) * p->rank, want, p->rank, 4.0, "ctx");
        }
    return ctx;
}

static const cache_shape plain = {.type = MOX_DT_F32};

/* Heads with keys and values of their own: out [n, heads, v_dim] of the last rows, and the largest value. */
typedef struct expanded_problem {
    problem p;
    int64_t nope, v_dim, key_rows, value_rows, value_row0;
    bool by_rank;
    mox_mat key, value;
    float *q_nope; /* [n, heads, nope] */
} expanded_problem;

static expanded_problem make_expanded(ck_layout layout, bool by_rank, int64_t len, int64_t n, int64_t heads, int64_t nope, int64_t rope,
                                      int64_t rank, int64_t v_dim)
{
    expanded_problem x = {.p = make_problem(len, n, heads, rank, rope), .nope = nope, .v_dim = v_dim, .by_rank = by_rank,
                          .key_rows = by_rank ? rank : nope + v_dim, .value_rows = by_rank ? v_dim : nope + v_dim,
                          .value_row0 = by_rank ? 0 : nope, .q_nope = ck_random(n * heads * nope, 1.0f)};
    x.key = ck_mat(layout, 32, heads * x.key_rows, by_rank ? nope : rank);
    x.value = by_rank ? ck_mat(layout, 32, heads * x.value_rows, rank) : x.key;
    x.p.scale = 0.5f / (float)sqrt((double)(nope * rank));
    return x;
}

/* head h of expanded position j: K_h c_j or V_h c_j. */
static void book_expand(const expanded_problem *x, const double *key, const double *value, int64_t h, int64_t j, double *k, double *v)
{
    const int64_t rank = x->p.rank;
    const float *c = x->p.latent + j * rank;
    for (int64_t i = 0; i < x->nope; i++) {
        k[i] = 0;
        for (int64_t r = rank - 1; r >= 0; r--)
            k[i] += (double)c[r] * (x->by_rank ? key[(h * x->key_rows + r) * x->nope + i] : key[(h * x->key_rows + i) * rank + r]);
    }
    for (int64_t f = 0; f < x->v_dim; f++) {
        v[f] = 0;
        for (int64_t r = rank - 1; r >= 0; r--) v[f] += (double)c[r] * value[(h * x->value_rows + x->value_row0 + f) * rank + r];
    }
}

static void check_expanded(const expanded_problem *x, const float *out, const char *what)
{
    const problem *p = &x->p;
    double *key = or_zeros(x->key.rows * x->key.cols), *value = or_zeros(x->value.rows * x->value.cols);
    double *k = or_zeros(p->len * x->nope), *v = or_zeros(p->len * x->v_dim), *scores = or_zeros(p->len), *want = or_zeros(x->v_dim);
    ck_mat_dense(&x->key, key, NULL);
    ck_mat_dense(&x->value, value, NULL);
    for (int64_t h = 0; h < p->heads; h++) {
        double scale = 0;
        for (int64_t j = 0; j < p->len; j++) book_expand(x, key, value, h, j, k + j * x->nope, v + j * x->v_dim);
        for (int64_t i = 0; i < p->len * x->v_dim; i++) scale = fmax(scale, fabs(v[i]));
        for (int64_t i = 0; i < p->n; i++) {
            const int64_t row = i * p->heads + h, seen = p->len - p->n + i + 1;
            for (int64_t j = 0; j < seen; j++) {
                double dot = 0;
                for (int64_t d = 0; d < x->nope; d++) dot += (double)x->q_nope[row * x->nope + d] * k[j * x->nope + d];
                for (int64_t d = 0; d < p->rope; d++) dot += (double)p->q_pe[row * p->rope + d] * (double)p->k_pe[j * p->rope + d];
                scores[j] = (double)p->scale * dot;
            }
            book_softmax(scores, seen, -INFINITY);
            for (int64_t f = 0; f < x->v_dim; f++) {
                want[f] = 0;
                for (int64_t j = seen - 1; j >= 0; j--) want[f] += scores[j] * v[j * x->v_dim + f];
            }
            ck_class_s(out + row * x->v_dim, want, x->v_dim, scale, what);
        }
    }
}

/* q_absorb, attention and out one after the other. */
static void folded_chain(void)
{
    enum { HEADS = 4, NOPE = 16, ROPE = 8, RANK = 32, V = 12, LEN = 23, N = 5 };
    mox_err err;
    expanded_problem x = make_expanded(CK_BF16, false, LEN, N, HEADS, NOPE, ROPE, RANK, V);
    ck_label("the folded chain");
    float *out = ck_f32(N * HEADS * V);
    const mox_mla_q_absorb_args qa = {.w = x.key, .head_rows = x.key_rows, .q_nope = x.q_nope, .out = x.p.q, .n = N, .heads = HEADS,
                                      .nope = NOPE, .rank = RANK};
    ck_ok(mox_op_mla_q_absorb(&ck.exec, &qa, &err), &err);
    const mox_mla_out_args oa = {.w = x.value, .head_rows = x.value_rows, .row0 = x.value_row0, .ctx = attend(&x.p, plain), .out = out,
                                 .n = N, .heads = HEADS, .v_dim = V, .rank = RANK};
    ck_ok(mox_op_mla_out(&ck.exec, &oa, &err), &err);
    check_expanded(&x, out, "out");
}

static mox_mla_expanded_args expanded_args(const expanded_problem *x, const test_cache *latent, const test_cache *k_pe, const mox_span *span,
                                           float *out)
{
    const problem *p = &x->p;
    const int64_t rows = span->row0 + span->n;
    return (mox_mla_expanded_args){.key = x->key, .value = x->value, .by_rank = x->by_rank, .key_rows = x->key_rows,
                                   .value_rows = x->value_rows, .value_row0 = x->value_row0, .q_nope = x->q_nope, .q_pe = p->q_pe,
                                   .out = out, .latent = latent->c, .k_pe = k_pe->c, .spans = span, .n_spans = 1, .heads = p->heads,
                                   .nope = x->nope, .rope = p->rope, .rank = p->rank, .v_dim = x->v_dim, .scale = p->scale,
                                   .state = ck_f32(p->heads * rows * 2)};
}

static void expanded_case(ck_layout layout, bool by_rank, cache_shape s, int64_t len, int64_t n, int64_t heads, int64_t nope, int64_t rope,
                          int64_t rank, int64_t v_dim)
{
    mox_err err;
    expanded_problem x = make_expanded(layout, by_rank, len, n, heads, nope, rope, rank, v_dim);
    ck_label("%s, by_rank %d, %s, len %lld, n %lld, heads %lld, %lld + %lld, rank %lld, v %lld", ck_layout_name(layout), by_rank,
             mox_dtype_name(s.type), (long long)len, (long long)n, (long long)heads, (long long)nope, (long long)rope, (long long)rank,
             (long long)v_dim);
    const test_cache latent = filled_cache(s, NULL, x.p.latent, len, 1, rank);
    const test_cache k_pe = filled_cache(s, latent.pages, x.p.k_pe, len, 1, rope);
    const mox_span span = {.n = n, .pos0 = len - n, .pages = latent.pages, .n_pages = latent.n_pages};
    float *out = ck_f32(n * heads * v_dim), *one = ck_f32(n * heads * v_dim);
    mox_mla_expanded_args a = expanded_args(&x, &latent, &k_pe, &span, out);
    ck_ok(mox_op_mla_expanded(&ck.exec, &a, &err), &err);
    x.p.latent = as_kept(x.p.latent, len, rank, s.type);
    x.p.k_pe = as_kept(x.p.k_pe, len, rope, s.type);
    check_expanded(&x, out, "out");
    a.out = one;
    for (int64_t h = heads - 1; h >= 0; h--) ck.exec.kern->mla_expanded(&a, h, h + 1);
    ck_exact(one, out, n * heads * v_dim * 4, "heads one by one");
}

static void test_mla_expanded(void)
{
    static const cache_shape shapes[] = {{MOX_DT_F32, 0, false}, {MOX_DT_F16, 16, false}, {MOX_DT_I8, 64, false}, {MOX_DT_F32, 7, false}};
    static const ck_layout layouts[] = {CK_BF16, CK_Q4, CK_Q8, CK_FP8};
    for (int i = 0; i < 4; i++) {
        expanded_case(layouts[i], false, shapes[i], 40, 40, 3, 16, 8, 32, 12);
        expanded_case(layouts[i], true, shapes[i], 50, 9, 2, 32, 6, 64, 20);
        expanded_case(layouts[i], false, shapes[i], 300, 17 + i, 1, 32, 16, 288, 40); /* several tiles, several stretches of terms */
    }
    expanded_case(CK_F32, false, shapes[0], 1, 1, 1, 1, 0, 1, 1);
    expanded_case(CK_F32, false, shapes[3], 129, 129, 1, 192, 64, 5, 256); /* as wide as it goes */

    mox_err err;
    ck_label("two spans, and refusals");
    expanded_problem x = make_expanded(CK_F32, false, 30, 12, 2, 8, 4, 16, 8);
    const test_cache latent = filled_cache(shapes[1], NULL, x.p.latent, 30, 1, 16);
    const test_cache k_pe = filled_cache(shapes[1], latent.pages, x.p.k_pe, 30, 1, 4);
    const mox_span spans[2] = {{.row0 = 1, .n = 4, .pos0 = 20, .pages = latent.pages, .n_pages = latent.n_pages},
                               {.row0 = 5, .n = 7, .pos0 = 0, .pages = latent.pages, .n_pages = latent.n_pages}};
    float *together = ck_f32(12 * 2 * 8), *apart = ck_f32(12 * 2 * 8);
    mox_mla_expanded_args a = expanded_args(&x, &latent, &k_pe, &spans[1], together);
    a.spans = spans, a.n_spans = 2;
    ck_ok(mox_op_mla_expanded(&ck.exec, &a, &err), &err);
    a.n_spans = 1, a.out = apart;
    ck_ok(mox_op_mla_expanded(&ck.exec, &a, &err), &err);
    a.spans = spans + 1;
    ck_ok(mox_op_mla_expanded(&ck.exec, &a, &err), &err);
    ck_exact(together, apart, 12 * 2 * 8 * 4, "together and apart"); /* NaN in the first row */
    const mox_mla_expanded_args good = a;
    a.v_dim = 300;
    ck_refused(mox_op_mla_expanded(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.rope = 250;
    ck_refused(mox_op_mla_expanded(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.key_rows = 7;
    ck_refused(mox_op_mla_expanded(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.state = NULL;
    ck_refused(mox_op_mla_expanded(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.latent.n_pages = 0;
    ck_refused(mox_op_mla_expanded(&ck.exec, &a, &err), MOX_E_ARG);
}

static void expanded_no_rope(const mox_mla_expanded_args *a, int64_t begin, int64_t end)
{
    mox_mla_expanded_args b = *a;
    b.rope = 0;
    mox_mla_expanded_ref(&b, begin, end);
}
static void expanded_reads_keys(const mox_mla_expanded_args *a, int64_t begin, int64_t end)
{
    mox_mla_expanded_args b = *a;
    b.value_row0 = 0;
    mox_mla_expanded_ref(&b, begin, end);
}
static void plant_expanded_rope(mox_kern *k) { k->mla_expanded = expanded_no_rope; }
static void plant_expanded_row0(mox_kern *k) { k->mla_expanded = expanded_reads_keys; }

static void mla_spans(void)
{
    enum { HEADS = 2, RANK = 24, ROPE = 6, ROWS = 9 };
    mox_err err;
    const problem p = make_problem(20, ROWS, HEADS, RANK, ROPE);
    ck_label("several spans");
    const cache_shape s = {MOX_DT_F16, 3, false};
    const test_cache latent = filled_cache(s, NULL, p.latent, 20, 1, RANK);
    const test_cache k_pe = filled_cache(s, latent.pages, p.k_pe, 20, 1, ROPE);
    const mox_span spans[3] = {{6, 3, 17, latent.pages, latent.n_pages},
                               {0, 0, 0, NULL, 0},
                               {1, 4, 0, latent.pages, latent.n_pages}};
    float *together = ck_f32(ROWS * HEADS * RANK), *apart = ck_f32(ROWS * HEADS * RANK);
    mox_mla_attention_args a = {.q = p.q, .q_pe = p.q_pe, .ctx = together, .latent = latent.c, .k_pe = k_pe.c,
                                .spans = spans, .n_spans = 3, .heads = HEADS, .rank = RANK, .rope = ROPE,
                                .scale = 0.2f};
    ck_ok(mox_op_mla_attention(&ck.exec, &a, &err), &err);
    a.n_spans = 1, a.ctx = apart;
    for (int i = 0; i < 3; i++) {
        a.spans = &spans[i];
        ck_ok(mox_op_mla_attention(&ck.exec, &a, &err), &err);
    }
    ck_exact(together, apart, ROWS * HEADS * RANK * 4, "together and apart");
    ck_label("refusals");
    mox_span bad = {0, 4, 18, latent.pages, latent.n_pages}; /* position 21 lies one behind the last page */
    a.spans = &bad;
    ck_refused(mox_op_mla_attention(&ck.exec, &a, &err), MOX_E_ARG);
    bad.pos0 = 0;
    a.latent.n_pages = 1;
    ck_refused(mox_op_mla_attention(&ck.exec, &a, &err), MOX_E_ARG);
    a.latent = latent.c, a.latent.token_stride = RANK - 1;
    ck_refused(mox_op_mla_attention(&ck.exec, &a, &err), MOX_E_ARG);
    a.latent = latent.c, a.heads = 0;
    ck_refused(mox_op_mla_attention(&ck.exec, &a, &err), MOX_E_ARG);
}

/* Units alone, in odd pieces and all at once. */
static void mla_cuts(void)
{
    enum { HEADS = 5, RANK = 40, ROPE = 6, LEN = 200, N = 9, UNITS = N * HEADS };
    static const int64_t steps[] = {1, 3, 16, UNITS};
    problem p = make_problem(LEN, N, HEADS, RANK, ROPE);
    p.latent[(LEN - 2) * RANK + 7] = 1e30f; /* what later rows see must not touch earlier ones */
    for (int i = 0; i < 4; i++) p.latent[(LEN - 1) * RANK + i] = NAN;
    const cache_shape s = {MOX_DT_F16, 64, false};
    const test_cache latent = filled_cache(s, NULL, p.latent, LEN, 1, RANK);
    const test_cache k_pe = filled_cache(s, latent.pages, p.k_pe, LEN, 1, ROPE);
    const mox_span span = {.n = N, .pos0 = LEN - N, .pages = latent.pages, .n_pages = latent.n_pages};
    float *whole = ck_f32(UNITS * RANK), *cut = ck_f32(UNITS * RANK);
    mox_mla_attention_args a = {.q = p.q, .q_pe = p.q_pe, .ctx = whole, .latent = latent.c, .k_pe = k_pe.c, .spans = &span,
                                .n_spans = 1, .heads = HEADS, .rank = RANK, .rope = ROPE, .scale = p.scale};
    ck_ok(mox_op_mla_attention(&ck.exec, &a, NULL), NULL);
    a.ctx = cut;
    for (int i = 0; i < 4; i++) {
        ck_label("in steps of %lld", (long long)steps[i]);
        for (int64_t u = 0; u < UNITS; u += steps[i])
            ck.exec.kern->mla_attention(&a, u, u + steps[i] < UNITS ? u + steps[i] : UNITS);
        for (int64_t e = 0; e < UNITS * RANK; e++) {
            const bool same = memcmp(&cut[e], &whole[e], 4) == 0 || (isnan(cut[e]) && isnan(whole[e]));
            ck_true(same, "units cut otherwise");
        }
        ck_true(isfinite(cut[(N - 3) * HEADS * RANK]), "a row that does not see the infinity");
    }
}

static void test_mla_attention(void)
{
    static const int64_t lens[] = {1, 127, 128, 129, 4095, 4096, 4097, 9000};
    for (int l = 0; l < 8; l++) {
        const problem p = make_problem(lens[l], 1, 2, 64, 16);
        attend(&p, plain);
    }
    problem p = make_problem(130, 1, 3, 512, 64);
    attend(&p, plain);
    p = make_problem(40, 3, 2, 1100, 30); /* wider than one piece */
    attend(&p, plain);
    p = make_problem(50, 7, 2, 33, 4);
    const float *whole = attend(&p, plain);
    static const cache_shape shapes[] = {
        {MOX_DT_F32, 1, false}, {MOX_DT_F32, 16, true}, {MOX_DT_F16, 7, false}, {MOX_DT_I8, 16, false}};
    for (int i = 0; i < 4; i++) {
        ck_label("type %s, page_len %lld", mox_dtype_name(shapes[i].type), (long long)shapes[i].page_len);
        const float *paged = attend(&p, shapes[i]);
        if (shapes[i].type == MOX_DT_F32 && ck.at_ref) ck_exact(paged, whole, 7 * 2 * 33 * 4, "paged");
    }
    problem one = p; /* a chunk is its tokens one by one */
    one.n = 1;
    for (int64_t i = 0; i < 7; i++) {
        one.q = p.q + i * 2 * 33, one.q_pe = p.q_pe + i * 2 * 4, one.len = 50 - 7 + i + 1;
        const float *alone = attend(&one, plain);
        if (ck.at_ref) ck_exact(alone, whole + i * 2 * 33, 2 * 33 * 4, "one token");
    }
    folded_chain();
    mla_spans();
    mla_cuts();
}

static void mla_no_rope(const mox_mla_attention_args *a, int64_t begin, int64_t end)
{
    mox_mla_attention_args b = *a;
    b.rope = 0;
    mox_mla_attention_ref(&b, begin, end);
}
static void mla_not_itself(const mox_mla_attention_args *a, int64_t begin, int64_t end)
{
    mox_span spans[8];
    for (int64_t i = 0; i < a->n_spans; i++) spans[i] = a->spans[i], spans[i].pos0 -= spans[i].pos0 > 0;
    mox_mla_attention_args b = *a;
    b.spans = spans;
    mox_mla_attention_ref(&b, begin, end);
}
static void plant_mla_rope(mox_kern *k) { k->mla_attention = mla_no_rope; }
static void plant_mla_causal(mox_kern *k) { k->mla_attention = mla_not_itself; }

/* Tile by tile; the state starts as NaN. */
static void tile_case(const problem *p, int64_t tile, const float *single)
{
    mox_err err;
    ck_label("len %lld in tiles of %lld, rank %lld", (long long)p->len, (long long)tile, (long long)p->rank);
    const test_cache latent = filled_cache(plain, NULL, p->latent, p->len, 1, p->rank);
    const test_cache k_pe = filled_cache(plain, latent.pages, p->k_pe, p->len, 1, p->rope);
    float *max = ck_f32(p->heads), *denom = ck_f32(p->heads), *sum = ck_f32(p->heads * p->rank);
    float *ctx = ck_f32(p->heads * p->rank);
    mox_mla_tile_args a = {.q = p->q, .q_pe = p->q_pe, .latent = latent.c, .k_pe = k_pe.c, .heads = p->heads,
                           .rank = p->rank, .rope = p->rope, .scale = p->scale, .first = true, .max = max,
                           .denom = denom, .sum = sum};
    for (int64_t begin = 0; begin == 0 || begin < p->len; begin += tile) {
        a.begin = begin, a.end = begin + tile < p->len ? begin + tile : p->len;
        ck_ok(mox_op_mla_tile(&ck.exec, &a, &err), &err);
        a.first = false;
    }
    float *kept = or_copy(sum, p->heads * p->rank);
    a.begin = a.end; /* an empty tile changes nothing */
    ck_ok(mox_op_mla_tile(&ck.exec, &a, &err), &err);
    ck_exact(sum, kept, p->heads * p->rank * 4, "after an empty tile");
    const mox_mla_finish_args f = {.denom = denom, .sum = sum, .ctx = ctx, .heads = p->heads, .rank = p->rank};
    ck_ok(mox_op_mla_finish(&ck.exec, &f, &err), &err);
    double *want = or_zeros(p->rank);
    for (int64_t h = 0; h < p->heads; h++) {
        oracle(p, 0, h, p->len, want);
        ck_class_s(ctx + h * p->rank, want, p->rank, 4.0, "ctx");
    }
    /* Weights are normalised before the sum in one form and after it in the other:
     * close, never claimed to be the same bytes. */
    if (single) ck_class_s(ctx, or_widen(single, p->heads * p->rank), p->heads * p->rank, 4.0, "in one pass");
}

static void test_mla_tile(void)
{
    static const int64_t lens[] = {0, 1, 127, 128, 129, 4095, 4096, 4097, 9000}, tiles[] = {4096, 1000, 128};
    mox_err err;
    for (int l = 0; l < 9; l++) {
        const problem p = make_problem(lens[l], 1, 2, 64, 16);
        const float *single = lens[l] ? attend(&p, plain) : NULL;
        for (int t = 0; t < 3; t++) tile_case(&p, tiles[t], single);
    }
    problem p = make_problem(700, 1, 2, 64, 16);
    for (int64_t c = 0; c < 64; c++) p.latent[699 * 64 + c] = 3.0f * p.q[c]; /* a spike in the last tile */
    tile_case(&p, 100, NULL);
    for (int64_t c = 0; c < 64; c++) p.latent[c] = 6.0f * p.q[c]; /* and a higher one in the first */
    tile_case(&p, 100, NULL);
    tile_case(&p, 1, NULL);
    p = make_problem(60, 1, 2, 1100, 8);
    tile_case(&p, 17, NULL);

    ck_label("refusals");
    p = make_problem(8, 1, 1, 4, 2);
    const test_cache latent = filled_cache(plain, NULL, p.latent, 8, 1, 4),
                     k_pe = filled_cache(plain, NULL, p.k_pe, 8, 1, 2);
    float state[8];
    const mox_mla_tile_args good = {.q = p.q, .q_pe = p.q_pe, .latent = latent.c, .k_pe = k_pe.c, .begin = 0,
                                    .end = 8, .heads = 1, .rank = 4, .rope = 2, .scale = 1.0f, .first = true,
                                    .max = state, .denom = state + 1, .sum = state + 2};
    mox_mla_tile_args a = good;
    a.end = 9;
    ck_refused(mox_op_mla_tile(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.begin = -1;
    ck_refused(mox_op_mla_tile(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.begin = 5, a.end = 4;
    ck_refused(mox_op_mla_tile(&ck.exec, &a, &err), MOX_E_ARG);
    a = good, a.max = NULL;
    ck_refused(mox_op_mla_tile(&ck.exec, &a, &err), MOX_E_ARG);
}

static void tile_never_rescales(const mox_mla_tile_args *a, int64_t begin, int64_t end)
{
    float *sum = malloc((size_t)a->rank * sizeof *sum);
    for (int64_t h = begin; sum && h < end; h++) {
        const float max = a->max[h], denom = a->denom[h];
        memcpy(sum, a->sum + h * a->rank, (size_t)a->rank * sizeof *sum);
        mox_mla_tile_args b = *a;
        b.first = true;
        mox_mla_tile_ref(&b, h, h + 1);
        if (a->first) continue;
        a->max[h] = fmaxf(a->max[h], max), a->denom[h] += denom;
        for (int64_t c = 0; c < a->rank; c++) a->sum[h * a->rank + c] += sum[c];
    }
    free(sum);
}
static void tile_reads_first(const mox_mla_tile_args *a, int64_t begin, int64_t end)
{
    mox_mla_tile_args b = *a;
    b.first = false;
    mox_mla_tile_ref(&b, begin, end);
}
static void plant_tile_rescale(mox_kern *k) { k->mla_tile = tile_never_rescales; }
static void plant_tile_first(mox_kern *k) { k->mla_tile = tile_reads_first; }

static void test_mla_finish(void)
{
    enum { HEADS = 3, RANK = 37 };
    mox_err err;
    float denom[HEADS] = {2.5f, 0.0f, NAN}, *sum = ck_random(HEADS * RANK, 1.0f), *ctx = ck_f32(HEADS * RANK);
    double want[HEADS * RANK];
    for (int64_t c = 0; c < RANK; c++) {
        sum[RANK + c] = 0.0f;
        want[c] = (double)sum[c] / 2.5, want[RANK + c] = 0.0, want[2 * RANK + c] = NAN;
    }
    const mox_mla_finish_args a = {.denom = denom, .sum = sum, .ctx = ctx, .heads = HEADS, .rank = RANK};
    ck_ok(mox_op_mla_finish(&ck.exec, &a, &err), &err);
    ck_class_p(ctx, want, HEADS * RANK, "ctx");
    ck_refused(mox_op_mla_finish(&ck.exec, &(mox_mla_finish_args){.heads = 1, .rank = 4}, &err), MOX_E_ARG);
    ck_ok(mox_op_mla_finish(&ck.exec, &(mox_mla_finish_args){.heads = 0, .rank = 4}, &err), &err);
}

static void finish_unguarded(const mox_mla_finish_args *a, int64_t begin, int64_t end)
{
    for (int64_t h = begin; h < end; h++)
        for (int64_t c = 0; c < a->rank; c++) a->ctx[h * a->rank + c] = a->sum[h * a->rank + c] / a->denom[h];
}
static void plant_finish_zero(mox_kern *k) { k->mla_finish = finish_unguarded; }

/* ---- bench: the sizes of a model of 128 heads, rank 512 + 64, 4-bit weights ---- */

enum { B_HEADS = 128, B_NOPE = 128, B_V = 128, B_RANK = 512, B_ROPE = 64 };

static void run_absorb(void *user) { (void)mox_op_mla_q_absorb(&ck.exec, user, NULL); }
static void run_out(void *user) { (void)mox_op_mla_out(&ck.exec, user, NULL); }
static void run_mla(void *user) { (void)mox_op_mla_attention(&ck.exec, user, NULL); }
static void run_tile(void *user) { (void)mox_op_mla_tile(&ck.exec, user, NULL); }

/* Bytes of the rows of w that one of the two products reads. */
static double half_bytes(const mox_mat *w)
{
    return (double)(w->rows / 2 * (mox_mat_row_bytes(&w->layout, w->cols) + 2 * mox_mat_scale_row_bytes(&w->layout, w->cols)));
}

static void bench_absorb(void)
{
    const mox_mat w = ck_mat(CK_Q4, 64, B_HEADS * (B_NOPE + B_V), B_RANK);
    for (int64_t n = 1; n <= 64; n *= 64) {
        mox_mla_q_absorb_args a = {.w = w, .head_rows = B_NOPE + B_V, .q_nope = ck_random(n * B_HEADS * B_NOPE, 1.0f),
                                   .out = ck_f32(n * B_HEADS * B_RANK), .n = n, .heads = B_HEADS, .nope = B_NOPE, .rank = B_RANK};
        ck_bench(n == 1 ? "absorb, 4 bits, n 1" : "absorb, 4 bits, n 64", half_bytes(&w),
                 2.0 * (double)(n * B_HEADS * B_NOPE * B_RANK), run_absorb, &a);
    }
}

static void bench_out(void)
{
    const mox_mat w = ck_mat(CK_Q4, 64, B_HEADS * (B_NOPE + B_V), B_RANK);
    for (int64_t n = 1; n <= 64; n *= 64) {
        mox_mla_out_args a = {.w = w, .head_rows = B_NOPE + B_V, .row0 = B_NOPE, .ctx = ck_random(n * B_HEADS * B_RANK, 1.0f),
                              .out = ck_f32(n * B_HEADS * B_V), .n = n, .heads = B_HEADS, .v_dim = B_V, .rank = B_RANK};
        ck_bench(n == 1 ? "out, 4 bits, n 1" : "out, 4 bits, n 64", half_bytes(&w), 2.0 * (double)(n * B_HEADS * B_V * B_RANK),
                 run_out, &a);
    }
}

static mox_cache bench_cache(int64_t len, int64_t width)
{
    enum { PAGE = 64 };
    uint16_t *data = ck_bytes(len * width * 2);
    const float *values = ck_random(PAGE * width, 1.0f);
    for (int64_t i = 0; i < len * width; i++) data[i] = mox_f32_to_f16(values[i % (PAGE * width)]);
    return (mox_cache){.data = data, .type = MOX_DT_F16, .page_len = PAGE, .page_stride = PAGE * width, .token_stride = width,
                       .n_pages = len / PAGE};
}

static void bench_mla(void)
{
    const int64_t len = 4096;
    const mox_span span = {.n = 1, .pos0 = len - 1, .pages = shuffled_pages(len / 64, len / 64), .n_pages = len / 64};
    mox_mla_attention_args a = {.q = ck_random(B_HEADS * B_RANK, 1.0f), .q_pe = ck_random(B_HEADS * B_ROPE, 1.0f),
                                .ctx = ck_f32(B_HEADS * B_RANK), .latent = bench_cache(len, B_RANK),
                                .k_pe = bench_cache(len, B_ROPE), .spans = &span, .n_spans = 1, .heads = B_HEADS,
                                .rank = B_RANK, .rope = B_ROPE, .scale = 0.07f};
    ck_bench("one row at 4096", (double)(len * (B_RANK + B_ROPE) * 2), 2.0 * (double)(len * B_HEADS * (2 * B_RANK + B_ROPE)),
             run_mla, &a);
}

static void run_expanded(void *user) { (void)mox_op_mla_expanded(&ck.exec, user, NULL); }

static void bench_expanded(void)
{
    enum { N = 512, HEADS = 4 };
    if (!ck.below || ck.below->mla_expanded == mox_mla_expanded_ref) return; /* which would take minutes */
    const mox_mat w = ck_mat(CK_Q4, 64, HEADS * (B_NOPE + B_V), B_RANK);
    for (int64_t len = N; len <= 4 * N; len *= 4) {
        const mox_span span = {.n = N, .pos0 = len - N, .pages = shuffled_pages(len / 64, len / 64), .n_pages = len / 64};
        mox_mla_expanded_args a = {.key = w, .value = w, .key_rows = B_NOPE + B_V, .value_rows = B_NOPE + B_V, .value_row0 = B_NOPE,
                                   .q_nope = ck_random(N * HEADS * B_NOPE, 1.0f), .q_pe = ck_random(N * HEADS * B_ROPE, 1.0f),
                                   .out = ck_f32(N * HEADS * B_V), .latent = bench_cache(len, B_RANK), .k_pe = bench_cache(len, B_ROPE),
                                   .spans = &span, .n_spans = 1, .heads = HEADS, .nope = B_NOPE, .rope = B_ROPE, .rank = B_RANK,
                                   .v_dim = B_V, .scale = 0.07f, .state = ck_f32(HEADS * N * 2)};
        ck_bench(len == N ? "512 rows at 0, 4 heads" : "512 rows at 1536, 4 heads", (double)(len * (B_RANK + B_ROPE) * 2),
                 2.0 * HEADS * (double)mox_mla_macs(&span, B_NOPE, B_ROPE, B_RANK, B_V, true), run_expanded, &a);
    }
}

static void bench_tile(void)
{
    const int64_t len = 1024;
    mox_mla_tile_args a = {.q = ck_random(B_HEADS * B_RANK, 1.0f), .q_pe = ck_random(B_HEADS * B_ROPE, 1.0f),
                           .latent = bench_cache(len, B_RANK), .k_pe = bench_cache(len, B_ROPE), .end = len, .heads = B_HEADS,
                           .rank = B_RANK, .rope = B_ROPE, .scale = 0.07f, .first = true, .max = ck_f32(B_HEADS),
                           .denom = ck_f32(B_HEADS), .sum = ck_f32(B_HEADS * B_RANK)};
    a.latent.page_len = a.k_pe.page_len = len, a.latent.n_pages = a.k_pe.n_pages = 1;
    ck_bench("a tile of 1024", (double)(len * (B_RANK + B_ROPE) * 2), 2.0 * (double)(len * B_HEADS * (2 * B_RANK + B_ROPE)),
             run_tile, &a);
}

const ck_op ck_ops_mla[] = {
    {"mla_split", test_mla_split, {plant_split_order}, NULL},
    {"mla_q_absorb", test_mla_q_absorb, {plant_absorb_rows, plant_absorb_tail}, bench_absorb},
    {"mla_out", test_mla_out, {plant_out_row0}, bench_out},
    {"mla_attention", test_mla_attention, {plant_mla_rope, plant_mla_causal}, bench_mla},
    {"mla_expanded", test_mla_expanded, {plant_expanded_rope, plant_expanded_row0}, bench_expanded},
    {"mla_tile", test_mla_tile, {plant_tile_rescale, plant_tile_first}, bench_tile},
    {"mla_finish", test_mla_finish, {plant_finish_zero}, NULL},
    {0},
};
