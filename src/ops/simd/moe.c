/* ops/simd/moe.c -- adding up what experts return, for one level.
 *
 * The sum over slots is a chain of fused multiply-adds in ascending order, the same
 * in all of these operations: their residuals have the same bytes. */
#include "ops/kern.h"
#include "ops/ref/math.h"
#include "ops/simd/rms.h"

enum { STEP = 4 }; /* vectors of a row side by side */

/* The k rows that one token adds up, wherever they are. */
typedef struct token_slots {
    const float *rows;         /* [.., dim] */
    const int32_t *row_of;     /* of this token, or NULL: rows are in order */
    const float *const *apart; /* one buffer per slot instead of rows */
    const float *w;            /* of this token */
    int64_t token, k, dim;
} token_slots;

ALWAYS_INLINE const float *slot_row(const token_slots *x, int64_t s)
{
    if (x->apart) return x->apart[s] + x->token * x->dim;
    return x->rows + (x->row_of ? x->row_of[s] : x->token * x->k + s) * x->dim;
}

/* sums[v] of elements i + v * LANES and on, v < n_v; the last vector has n elements. */
ALWAYS_INLINE void slot_sums(const token_slots *x, int64_t i, const int n_v, int64_t n, vf *sums)
{
    for (int v = 0; v < n_v; v++) sums[v] = vf_zero();
    for (int64_t s = 0; s < x->k; s++) {
        const float *row = slot_row(x, s) + i;
        const vf w = vf_set(x->w[s]);
        for (int v = 0; v < n_v; v++) sums[v] = vf_fma(w, vf_load_n(row + v * LANES, v == n_v - 1 ? n : LANES), sums[v]);
    }
}

/* Runs BODY(i, n, v, sum) for every vector of a token's sum: n elements from i on, v of
 * its block. */
#define FOR_SUMS(x, BODY)                                                             \
    do {                                                                              \
        vf sums_[STEP];                                                               \
        int64_t i_ = 0;                                                               \
        for (; i_ + STEP * LANES <= (x)->dim; i_ += STEP * LANES) {                   \
            slot_sums(x, i_, STEP, LANES, sums_);                                     \
            for (int v_ = 0; v_ < STEP; v_++) BODY(i_ + v_ * LANES, LANES, v_, sums_[v_]); \
        }                                                                             \
        for (; i_ < (x)->dim; i_ += LANES) {                                          \
            const int64_t n_ = (x)->dim - i_ < LANES ? (x)->dim - i_ : LANES;         \
            slot_sums(x, i_, 1, n_, sums_);                                           \
            BODY(i_, n_, 0, sums_[0]);                                                \
        }                                                                             \
    } while (0)

void MOX_AT(mox_weighted_sum)(const mox_weighted_sum_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        const token_slots x = {.rows = a->slots, .row_of = a->row_of ? a->row_of + t * a->k : NULL, .w = a->w + t * a->k,
                               .token = t, .k = a->k, .dim = a->dim};
        float *out = a->out + t * a->dim;
#define BODY(i, n, v, sum) vf_store_n(out + (i), sum, n)
        FOR_SUMS(&x, BODY);
#undef BODY
    }
}

void MOX_AT(mox_weighted_sum_residual)(const mox_weighted_sum_residual_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        const token_slots x = {.rows = a->slots, .w = a->w + t * a->k, .token = t, .k = a->k, .dim = a->dim};
        float *res = a->res + t * a->dim;
#define BODY(i, n, v, sum) vf_store_n(res + (i), vf_add(vf_load_n(res + (i), n), sum), n)
        FOR_SUMS(&x, BODY);
#undef BODY
    }
}

void MOX_AT(mox_weighted_sum_residual_norm)(const mox_weighted_sum_residual_norm_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        const token_slots x = {.rows = a->slots, .w = a->w + t * a->k, .token = t, .k = a->k, .dim = a->dim};
        float *res = a->res + t * a->dim;
        square_sum squares = square_sum_begin();
#define BODY(i, n, v, sum)                                     \
    do {                                                       \
        const vf r_ = vf_add(vf_load_n(res + (i), n), sum);    \
        vf_store_n(res + (i), r_, n);                          \
        square_sum_add(&squares, v, r_);                       \
    } while (0)
        FOR_SUMS(&x, BODY);
#undef BODY
        rms_row(res, square_sum_end(&squares), a->dim, &a->weight, a->offset, a->eps, a->normed + t * a->dim);
    }
}

/* What multiplies the shared expert of a token. */
static vf shared_factor(mox_shared_mode mode, const float *gate, int64_t at)
{
    return vf_set(mode == MOX_SHARED_GATED ? (float)mox_ref_sigmoid((double)gate[at]) : 1.0f);
}

/* x + the shared part of elements [i, i + n). */
ALWAYS_INLINE vf add_shared(vf x, mox_shared_mode mode, const float *shared, vf factor, int64_t i, int64_t n)
{
    if (mode == MOX_SHARED_NONE) return x;
    const vf s = vf_load_n(shared + i, n);
    return vf_add(x, mode == MOX_SHARED_GATED ? vf_mul(s, factor) : s);
}

void MOX_AT(mox_moe_combine)(const mox_moe_combine_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        const token_slots x = {.rows = a->experts, .apart = a->slots, .w = a->w + t * a->k, .token = t, .k = a->k,
                               .dim = a->dim};
        const float *h = a->h + t * a->dim, *shared = a->mode == MOX_SHARED_NONE ? NULL : a->shared + t * a->dim;
        const vf factor = shared_factor(a->mode, a->gate, t * a->gate_stride);
        float *out = a->out + t * a->dim;
#define BODY(i, n, v, sum) \
    vf_store_n(out + (i), add_shared(vf_add(vf_load_n(h + (i), n), sum), a->mode, shared, factor, i, n), n)
        FOR_SUMS(&x, BODY);
#undef BODY
    }
}

void MOX_AT(mox_moe_combine_sum)(const mox_moe_combine_sum_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        const float *h = a->h + t * a->dim, *moe = a->moe + t * a->dim;
        const float *shared = a->mode == MOX_SHARED_NONE ? NULL : a->shared + t * a->dim;
        const vf factor = shared_factor(a->mode, a->gate, t * a->gate_stride);
        float *out = a->out + t * a->dim;
        int64_t i = 0;
#define BODY(n) \
    vf_store_n(out + i, add_shared(vf_add(vf_load_n(h + i, n), vf_load_n(moe + i, n)), a->mode, shared, factor, i, n), n)
        for (; i + LANES <= a->dim; i += LANES) BODY(LANES);
        if (i < a->dim) BODY(a->dim - i);
#undef BODY
    }
}
