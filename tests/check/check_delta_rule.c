/* tests/check/check_delta_rule.c -- the recurrence itself, token by token and in chunks.
 *
 * The oracle keeps the state in double and applies each token as one linear map,
 *   S <- g S (I - beta k k^T) + beta v k^T,  out = S q.
 * A published vector of numbers holds the whole chain to account. */
#include "oracle.h"

#include <stdlib.h>

typedef mox_status entry_fn(const mox_exec *e, const mox_gdn_args *a, mox_err *err);
typedef enum gates { MIXED, ZERO, TINY, ONE, SOME_ZERO, GATES } gates;

/* A problem whose q, k and v are parts of one stream. */
typedef struct problem {
    mox_gdn_args a;
    float *stream, *begin; /* begin: the state before */
    int64_t n_state, n_out;
} problem;

static float gate(gates kind, int64_t t)
{
    switch (kind) {
    case ZERO: return 0.0f;
    case TINY: return 1e-35f;
    case ONE: return 1.0f;
    case SOME_ZERO: return t % 7 == 5 ? 0.0f : (t % 3 == 1 ? 1e-35f : 0.97f);
    default: return 0.5f + 0.5f * (float)ck_rand(1000) / 1000.0f;
    }
}

static problem make_problem(int64_t n, int64_t k_heads, int64_t r, int64_t dk, int64_t dv, gates kind)
{
    ck_label("n %lld, heads %lld x %lld, dims %lld %lld, gates %d", (long long)n, (long long)k_heads,
             (long long)r, (long long)dk, (long long)dv, (int)kind);
    mox_err err;
    const int64_t v_heads = k_heads * r, keys = k_heads * dk, stride = 2 * keys + v_heads * dv + 1;
    problem p = {.n_state = v_heads * dv * dk, .n_out = n * v_heads * dv, .stream = ck_random(n * stride, 1.0f)};
    const mox_gdn_qk_norm_args norm = {.q = p.stream, .k = p.stream + keys, .n = n, .heads = k_heads, .dim = dk,
                                       .stride = stride, .eps = 1e-6f};
    ck_ok(mox_op_gdn_qk_norm(&ck.ref, &norm, &err), &err);
    float *g = ck_f32(n * v_heads);
    for (int64_t i = 0; i < n * v_heads; i++) g[i] = gate(kind, i / v_heads);
    p.begin = ck_random(p.n_state, 0.5f);
    p.a = (mox_gdn_args){.q = p.stream, .k = p.stream + keys, .v = p.stream + 2 * keys, .q_stride = stride,
                         .k_stride = stride, .v_stride = stride, .g = g, .beta = ck_uniform(n * v_heads, 0.0f, 1.0f),
                         .state = or_copy(p.begin, p.n_state), .out = ck_f32(p.n_out), .n = n, .k_heads = k_heads,
                         .v_heads = v_heads, .k_dim = dk, .v_dim = dv};
    return p;
}

static void oracle_token(const mox_gdn_args *a, int64_t t, int64_t h, int64_t v, double *s, double *out)
{
    const int64_t kh = h * a->k_heads / a->v_heads, dk = a->k_dim;
    const float *q = a->q + t * a->q_stride + kh * dk, *k = a->k + t * a->k_stride + kh * dk;
    const double g = (double)a->g[t * a->v_heads + h], beta = (double)a->beta[t * a->v_heads + h];
    const double value = (double)a->v[t * a->v_stride + h * a->v_dim + v];
    double *next = malloc((size_t)dk * sizeof *next);
    *out = 0.0;
    for (int64_t i = 0; i < dk; i++) {
        next[i] = beta * value * (double)k[i];
        for (int64_t j = 0; j < dk; j++)
            next[i] += g * s[j] * ((i == j ? 1.0 : 0.0) - beta * (double)k[j] * (double)k[i]);
    }
    for (int64_t i = 0; i < dk; i++) s[i] = next[i], *out += next[i] * (double)q[i];
    free(next);
}

/* Runs the operation and holds outputs and final state to the oracle. */
static void solve(problem *p, entry_fn *entry)
{
    mox_err err;
    const mox_gdn_args *a = &p->a;
    double *s = or_widen(p->begin, p->n_state), *want = or_zeros(p->n_out);
    for (int64_t h = 0; h < a->v_heads; h++)
        for (int64_t v = 0; v < a->v_dim; v++)
            for (int64_t t = 0; t < a->n; t++)
                oracle_token(a, t, h, v, s + (h * a->v_dim + v) * a->k_dim,
                             &want[(t * a->v_heads + h) * a->v_dim + v]);
    ck_ok(entry(&ck.exec, a, &err), &err);
    ck_class_g(a->out, want, p->n_out, "out");
    ck_class_g(a->state, s, p->n_state, "state");
}

static void sizes(entry_fn *entry)
{
    static const int64_t ns[] = {0, 1, 15, 16, 17, 33, 100};
    for (int i = 0; i < 7; i++)
        for (int kind = 0; kind < GATES; kind++) {
            problem p = make_problem(ns[i], 2, 2, 12, 5, (gates)kind);
            solve(&p, entry);
            if (ns[i] == 0) ck_exact(p.a.state, p.begin, p.n_state * 4, "no token, no change");
        }
    static const int64_t dims[][2] = {{1, 1}, {3, 7}, {64, 64}, {128, 128}, {600, 2}, {30, 37}, {44, 21}};
    for (int i = 0; i < 7; i++) {
        problem p = make_problem(20, 1, 1 + i % 3, dims[i][0], dims[i][0] > 64 ? 2 : dims[i][1], MIXED);
        solve(&p, entry);
    }
    problem p = make_problem(18, 4, 4, 16, 16, SOME_ZERO);
    solve(&p, entry);
}

/* Inputs and answers computed elsewhere, by an implementation in another language. */
static void golden(entry_fn *entry)
{
    enum { N = 6, DK = 4, DV = 3 };
    mox_err err;
    ck_label("the published vector");
    float q[N][DK] = {{-.352f, -.698f, .302f, -.855f}, {.072f, -.269f, -.884f, .015f},
                      {-.925f, -.133f, -.86f, -.819f}, {-.151f, .654f, -.752f, -.554f},
                      {.255f, .895f, .154f, -.207f},   {.953f, -.907f, .717f, -.421f}};
    float k[N][DK] = {{-.711f, -.764f, -.383f, .632f}, {-.639f, .163f, .278f, -.255f},
                      {.095f, -.874f, -.881f, -.588f}, {.361f, -.145f, -.372f, .171f},
                      {-.094f, -.4f, .589f, .398f},    {-.512f, .149f, .05f, .75f}};
    const float v[N][DV] = {{.459f, -.424f, .96f}, {-.764f, -.164f, .514f}, {-.696f, -.022f, -.922f},
                            {.336f, .529f, .146f}, {.751f, -.373f, .391f}, {.189f, .16f, -.088f}};
    const float a[N] = {.68f, .889f, -.052f, .328f, -.879f, .403f};
    const float b[N] = {.294f, .986f, .644f, -.431f, -.228f, .337f};
    const double want[N * DV] = {.0109525, -.0101173, .0229072, .1407575, .0226286, -.0762769, -.1839709, -.0147064,
                                 -.1523401, -.0112594, .0049181, -.0115009, -.0741102, .0245122, -.0281436,
                                 -.0162462, -.0365597, .0249226};
    const double want_s[DK][DV] = {{-.0494151, -.0408583, .0334171}, {-.0134673, .0257471, -.0202729},
                                   {.0459879, -.0274614, .0214238}, {.1155934, .0755778, -.0284585}};
    const float a_log = 0.3f, dt = 0.5f;
    float g[N], beta[N], state[DV * DK] = {0}, out[N * DV];
    const mox_gdn_gates_args ga = {.a = a, .b = b, .a_stride = 1, .b_stride = 1,
                                   .a_log = ck_vec(MOX_DT_F32, &a_log, 1),
                                   .dt_bias = ck_vec(MOX_DT_F32, &dt, 1), .g = g, .beta = beta, .n = N, .heads = 1};
    ck_ok(mox_op_gdn_gates(&ck.exec, &ga, &err), &err);
    const mox_gdn_qk_norm_args na = {.q = q[0], .k = k[0], .n = N, .heads = 1, .dim = DK, .stride = DK,
                                     .eps = 1e-6f};
    ck_ok(mox_op_gdn_qk_norm(&ck.exec, &na, &err), &err);
    const mox_gdn_args ra = {.q = q[0], .k = k[0], .v = v[0], .q_stride = DK, .k_stride = DK, .v_stride = DV, .g = g,
                             .beta = beta, .state = state, .out = out, .n = N, .k_heads = 1, .v_heads = 1,
                             .k_dim = DK, .v_dim = DV};
    ck_ok(entry(&ck.exec, &ra, &err), &err);
    double ones[N * DV];
    for (int i = 0; i < N * DV; i++) ones[i] = 1.0;
    ck_close(out, want, ones, N * DV, 0, 2e-7, "out"); /* the answers have seven decimals */
    for (int i = 0; i < DK; i++)
        for (int j = 0; j < DV; j++) ck_close(&state[j * DK + i], &want_s[i][j], ones, 1, 0, 2e-7, "state");
}

/* After a gate of 0 nothing before it can be told apart, however large it was. */
static void forgets(entry_fn *entry)
{
    mox_err err;
    problem p = make_problem(20, 1, 2, 8, 6, MIXED);
    float *g = or_copy(p.a.g, 20 * 2), *other = ck_random(p.n_state, 1e30f), *out = ck_f32(p.n_out);
    ck_label("a gate of 0 in the middle of a chunk");
    g[5 * 2] = g[5 * 2 + 1] = 0.0f;
    p.a.g = g;
    solve(&p, entry);
    mox_gdn_args a = p.a;
    a.state = other, a.out = out;
    ck_ok(entry(&ck.exec, &a, &err), &err);
    ck_exact(out + 5 * 12, p.a.out + 5 * 12, 15 * 12 * 4, "outputs from the zero gate on");
    ck_exact(other, p.a.state, p.n_state * 4, "state");
}

static void refusals(entry_fn *entry)
{
    mox_err err;
    const problem p = make_problem(3, 2, 2, 4, 3, MIXED);
    ck_label("refusals");
    mox_gdn_args a = p.a;
#define REFUSED(change)                                   \
    do {                                                  \
        a = p.a;                                          \
        change;                                           \
        ck_refused(entry(&ck.exec, &a, &err), MOX_E_ARG); \
    } while (0)
    REFUSED(a.v_heads = 3);
    REFUSED(a.k_heads = 0);
    REFUSED(a.k_dim = 0);
    REFUSED(a.v_dim = -1);
    REFUSED(a.n = -1);
    REFUSED(a.q_stride = 7);
    REFUSED(a.v_stride = 11);
    REFUSED(a.g = NULL);
    REFUSED(a.state = NULL);
    REFUSED(a.k_dim = INT64_MAX / 8);
    REFUSED(a.n = INT64_MAX / 4);
#undef REFUSED
    ck_exact(p.a.state, p.begin, p.n_state * 4, "state after refusals");
}

static void test_gdn_recurrent(void)
{
    sizes(mox_op_gdn_recurrent);
    golden(mox_op_gdn_recurrent);
    forgets(mox_op_gdn_recurrent);
    refusals(mox_op_gdn_recurrent);

    mox_err err;
    for (int64_t step = 1; step < 15; step += 3) { /* however the rows are cut: the same bytes */
        problem whole = make_problem(5, 2, 2, 44, 7, MIXED);
        mox_gdn_args cut = whole.a;
        cut.state = or_copy(whole.begin, whole.n_state), cut.out = ck_f32(whole.n_out);
        ck_ok(mox_op_gdn_recurrent(&ck.exec, &whole.a, &err), &err);
        for (int64_t u = 0; u < 28; u += step) ck.exec.kern->gdn_recurrent(&cut, u, u + step < 28 ? u + step : 28);
        ck_exact(cut.out, whole.a.out, whole.n_out * 4, "out, rows in pieces");
        ck_exact(cut.state, whole.a.state, whole.n_state * 4, "state, rows in pieces");
    }

    /* However a sequence is cut into calls: the same bytes on the reference. */
    enum { N = 12 };
    problem p = make_problem(N, 2, 2, 10, 7, MIXED);
    solve(&p, mox_op_gdn_recurrent);
    float *state = ck_f32(p.n_state), *out = ck_f32(p.n_out);
    for (int64_t cut = 0; cut <= N; cut++) {
        ck_label("cut at %lld", (long long)cut);
        memcpy(state, p.begin, (size_t)p.n_state * 4);
        mox_gdn_args a = p.a;
        a.state = state, a.out = out, a.n = cut;
        ck_ok(mox_op_gdn_recurrent(&ck.exec, &a, &err), &err);
        a.q += cut * a.q_stride, a.k += cut * a.k_stride, a.v += cut * a.v_stride;
        a.g += cut * a.v_heads, a.beta += cut * a.v_heads, a.out += cut * a.v_heads * a.v_dim, a.n = N - cut;
        ck_ok(mox_op_gdn_recurrent(&ck.exec, &a, &err), &err);
        if (ck.at_ref) {
            ck_exact(out, p.a.out, p.n_out * 4, "out");
            ck_exact(state, p.a.state, p.n_state * 4, "state");
        } else {
            ck_class_g(out, or_widen(p.a.out, p.n_out), p.n_out, "out");
            ck_class_g(state, or_widen(p.a.state, p.n_state), p.n_state, "state");
        }
    }
}

static void test_gdn_chunk(void)
{
    sizes(mox_op_gdn_chunk);
    golden(mox_op_gdn_chunk);
    forgets(mox_op_gdn_chunk);
    refusals(mox_op_gdn_chunk);

    mox_err err; /* and against the other form at this level */
    for (int64_t n = 1; n <= 64; n += 9) {
        problem p = make_problem(n, 2, 3, 32, 32, SOME_ZERO);
        ck_ok(mox_op_gdn_chunk(&ck.exec, &p.a, &err), &err);
        mox_gdn_args a = p.a;
        a.state = or_copy(p.begin, p.n_state), a.out = ck_f32(p.n_out);
        ck_ok(mox_op_gdn_recurrent(&ck.exec, &a, &err), &err);
        ck_class_g(p.a.out, or_widen(a.out, p.n_out), p.n_out, "out");
        ck_class_g(p.a.state, or_widen(a.state, p.n_state), p.n_state, "state");
    }
}

/* ---- planted bugs; those on arguments serve both operations ---- */

static void with_gates(const mox_gdn_args *a, float (*change)(float), mox_gdn_recurrent_fn *kernel,
                       int64_t begin, int64_t end)
{
    float *g = malloc((size_t)(a->n * a->v_heads) * sizeof *g);
    if (!g) return;
    for (int64_t i = 0; i < a->n * a->v_heads; i++) g[i] = change(a->g[i]);
    mox_gdn_args b = *a;
    b.g = g;
    kernel(&b, begin, end);
    free(g);
}
static float always_one(float g)
{
    (void)g;
    return 1.0f;
}
static float floored(float g) { return g < 1e-30f ? 1e-30f : g; } /* what logarithms of gates need */

static void recurrent_no_decay(const mox_gdn_args *a, int64_t begin, int64_t end)
{
    with_gates(a, always_one, mox_gdn_recurrent_ref, begin, end);
}
static void recurrent_old_state(const mox_gdn_args *a, int64_t begin, int64_t end)
{
    for (int64_t u = begin; u < end; u++)
        for (int64_t t = 0; t < a->n; t++) {
            const int64_t h = u / a->v_dim, kh = h / (a->v_heads / a->k_heads);
            const float old =
                (float)or_dot(a->state + u * a->k_dim, a->q + t * a->q_stride + kh * a->k_dim, a->k_dim);
            mox_gdn_args b = *a;
            b.q += t * a->q_stride, b.k += t * a->k_stride, b.v += t * a->v_stride, b.n = 1;
            b.g += t * a->v_heads, b.beta += t * a->v_heads, b.out += t * a->v_heads * a->v_dim;
            mox_gdn_recurrent_ref(&b, u, u + 1);
            b.out[u] = old * b.g[h];
        }
}
static void recurrent_wrong_head(const mox_gdn_args *a, int64_t begin, int64_t end)
{
    for (int64_t u = begin; u < end; u++) { /* h % k_heads instead of h / group */
        const int64_t h = u / a->v_dim, kh = h / (a->v_heads / a->k_heads);
        mox_gdn_args b = *a;
        b.q += (h % a->k_heads - kh) * a->k_dim, b.k += (h % a->k_heads - kh) * a->k_dim;
        mox_gdn_recurrent_ref(&b, u, u + 1);
    }
}
static void recurrent_beta_on_value_only(const mox_gdn_args *a, int64_t begin, int64_t end)
{
    for (int64_t u = begin; u < end; u++)
        for (int64_t t = 0; t < a->n; t++) { /* S <- g S + beta v k^T - (g S k) k^T */
            const int64_t h = u / a->v_dim, kh = h / (a->v_heads / a->k_heads);
            const float *q = a->q + t * a->q_stride + kh * a->k_dim,
                        *k = a->k + t * a->k_stride + kh * a->k_dim;
            float *s = a->state + u * a->k_dim;
            const double g = (double)a->g[t * a->v_heads + h], beta = (double)a->beta[t * a->v_heads + h];
            const double d = beta * (double)a->v[t * a->v_stride + u] - g * or_dot(s, k, a->k_dim);
            for (int64_t i = 0; i < a->k_dim; i++) s[i] = (float)(g * (double)s[i] + d * (double)k[i]);
            a->out[t * a->v_heads * a->v_dim + u] = (float)or_dot(s, q, a->k_dim);
        }
}
static void plant_recurrent_decay(mox_kern *k) { k->gdn_recurrent = recurrent_no_decay; }
static void plant_recurrent_old(mox_kern *k) { k->gdn_recurrent = recurrent_old_state; }
static void plant_recurrent_head(mox_kern *k) { k->gdn_recurrent = recurrent_wrong_head; }
static void plant_recurrent_beta(mox_kern *k) { k->gdn_recurrent = recurrent_beta_on_value_only; }

static void chunk_floors_gates(const mox_gdn_args *a, int64_t begin, int64_t end)
{
    with_gates(a, floored, mox_gdn_chunk_ref, begin, end);
}
static void chunk_drops_tail(const mox_gdn_args *a, int64_t begin, int64_t end)
{
    mox_gdn_args b = *a;
    if (b.n > 16) b.n -= b.n % 16;
    mox_gdn_chunk_ref(&b, begin, end);
}
static void chunk_forgets_carry(const mox_gdn_args *a, int64_t begin, int64_t end)
{
    const int64_t head = a->v_dim * a->k_dim; /* the last chunk starts from nothing */
    const int64_t whole = a->n > 0 ? (a->n - 1) / 16 * 16 : 0;
    mox_gdn_args b = *a;
    b.n = whole;
    mox_gdn_chunk_ref(&b, begin, end);
    if (whole > 0) memset(a->state + begin * head, 0, (size_t)((end - begin) * head) * sizeof(float));
    b.q += whole * a->q_stride, b.k += whole * a->k_stride, b.v += whole * a->v_stride;
    b.g += whole * a->v_heads, b.beta += whole * a->v_heads, b.out += whole * a->v_heads * a->v_dim;
    b.n = a->n - whole;
    mox_gdn_chunk_ref(&b, begin, end);
}
static void plant_chunk_floor(mox_kern *k) { k->gdn_chunk = chunk_floors_gates; }
static void plant_chunk_tail(mox_kern *k) { k->gdn_chunk = chunk_drops_tail; }
static void plant_chunk_carry(mox_kern *k) { k->gdn_chunk = chunk_forgets_carry; }

/* ---- bench ---- */

CK_RUN(gdn_recurrent)
CK_RUN(gdn_chunk)

/* n tokens, v_heads of 128 x 128 over half as many key heads. */
static void bench_case(const char *name, void (*body)(void *), int64_t n, int64_t v_heads)
{
    problem p = make_problem(n, v_heads / 2, 2, 128, 128, MIXED);
    ck_bench(ck_tokens(name, n), (double)(p.n_state * 8), (double)(6 * n * p.n_state), body, &p.a);
}

static void bench_gdn_recurrent(void)
{
    bench_case("gdn_recurrent, 32 heads", run_gdn_recurrent, 1, 32);
    bench_case("gdn_recurrent, 32 heads", run_gdn_recurrent, 8, 32);
}

static void bench_gdn_chunk(void)
{
    bench_case("gdn_chunk, 4 heads", run_gdn_chunk, 16, 4);
    bench_case("gdn_chunk, 4 heads", run_gdn_chunk, 512, 4);
}

const ck_op ck_ops_delta_rule[] = {
    {"gdn_recurrent",
     test_gdn_recurrent,
     {plant_recurrent_decay, plant_recurrent_old, plant_recurrent_head, plant_recurrent_beta},
     bench_gdn_recurrent},
    {"gdn_chunk", test_gdn_chunk, {plant_chunk_floor, plant_chunk_tail, plant_chunk_carry}, bench_gdn_chunk},
    {0},
};
