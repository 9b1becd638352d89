/* ops/simd/router.c -- which experts a token goes to, for one level.
 *
 * The choice is that of the reference, comparison by comparison: vectors only pass
 * over logits that cannot enter the list.  Rows with an infinite largest logit, or
 * with none, go to the reference.  Scores of the sigmoid rule are computed one by one
 * in double, as there: rounded otherwise, they could tie otherwise. */
#include "ops/kern.h"
#include "ops/ref/math.h"
#include "ops/simd/level.h"

#include <assert.h>

enum { EXPERTS_MAX = 1024 }; /* whose scores are kept on the stack */

/* NaN counts as -inf: it is above nothing. */
static float number(float v) { return isnan(v) ? -INFINITY : v; }

/* The largest number of x, -inf when there is none. */
static float largest(const float *x, int64_t n)
{
    vf top = vf_set(-INFINITY);
    float max = -INFINITY;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) top = vf_max(vf_load(x + i), top); /* NaN gives the second operand */
    for (; i < n; i++)
        if (x[i] > max) max = x[i];
    const float rest = vf_max_of(top);
    return rest > max ? rest : max;
}

/* The first of [i, n) that is above limit, or n. */
ALWAYS_INLINE int64_t next_above(const float *x, int64_t i, int64_t n, float limit)
{
    for (; i + LANES <= n; i += LANES) {
        const unsigned lanes = vf_above(vf_load(x + i), vf_set(limit));
        if (lanes) return i + __builtin_ctz(lanes);
    }
    while (i < n && !(x[i] > limit)) i++;
    return i;
}

/* Puts (value, id) where it belongs among the n best, which are in descending order;
 * the last of them is lost.  Ids come in ascending order: after its equals. */
ALWAYS_INLINE void insert(float *values, int32_t *ids, int64_t n, float value, int64_t id)
{
    int64_t i = n - 1;
    for (; i > 0 && value > values[i - 1]; i--) {
        values[i] = values[i - 1];
        ids[i] = ids[i - 1];
    }
    values[i] = value;
    ids[i] = (int32_t)id;
}

/* The k best of x[first .. last), of which *n are found already. */
static void choose_sorted(const float *x, int64_t first, int64_t last, int64_t k, int64_t *n, float *values, int32_t *ids)
{
    int64_t i = first;
    for (; i < last && *n < k; i++) insert(values, ids, ++*n, number(x[i]), i);
    while (i < last && (i = next_above(x, i, last, values[k - 1])) < last) {
        insert(values, ids, k, x[i], i);
        i++;
    }
}

static void choose_running_min(const float *x, int64_t n, int64_t k, float *values, int32_t *ids)
{
    for (int64_t i = 0; i < k; i++) {
        values[i] = number(x[i]);
        ids[i] = (int32_t)i;
    }
    for (int64_t i = k; i < n; i++) {
        int64_t slot = 0;
        for (int64_t s = 1; s < k; s++)
            if (values[s] < values[slot]) slot = s;
        i = next_above(x, i, n, values[slot]);
        if (i == n) break;
        values[slot] = x[i];
        ids[slot] = (int32_t)i;
    }
}

/* e^(x - max) of n <= LANES numbers at x; 0 for what is far below, -inf and NaN. */
ALWAYS_INLINE vf above(const float *x, int64_t n, vf max)
{
    const vf d = vf_sub(n < LANES ? vf_load_n(x, n) : vf_load(x), max);
    return vf_where_above(vf_exp(d), d, vf_set(-87.0f));
}

static float sum_above(const float *x, int64_t n, float max)
{
    vf sum = vf_zero();
    float tail[LANES], rest = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) sum = vf_add(sum, above(x + i, LANES, vf_set(max)));
    if (i < n) {
        vf_store(tail, above(x + i, n - i, vf_set(max)));
        for (int64_t j = 0; j < n - i; j++) rest += tail[j];
    }
    return vf_sum(sum) + rest;
}

static void route_softmax(const mox_router_topk_args *a, int64_t t, float max)
{
    const float *logits = a->logits + t * a->n_experts;
    int32_t *ids = a->ids + t * a->k;
    float *weights = a->weights + t * a->k;
    int64_t n = 0;
    if (a->order == MOX_TOPK_SORTED) choose_sorted(logits, 0, a->n_experts, a->k, &n, weights, ids);
    else choose_running_min(logits, a->n_experts, a->k, weights, ids);
    const float sum = a->renormalize ? sum_above(weights, a->k, max) : sum_above(logits, a->n_experts, max);
    for (int64_t s = 0; s < a->k; s += LANES) {
        const int64_t left = a->k - s < LANES ? a->k - s : LANES;
        vf_store_n(weights + s, vf_div(above(weights + s, left, vf_set(max)), vf_set(sum)), left);
    }
}

void MOX_AT(mox_router_topk)(const mox_router_topk_args *a, int64_t begin, int64_t end)
{
    assert(0 < a->k && a->k <= a->n_experts);
    for (int64_t t = begin; t < end; t++) {
        const float max = largest(a->logits + t * a->n_experts, a->n_experts);
        if (isfinite(max)) route_softmax(a, t, max);
        else mox_router_topk_ref(a, t, t + 1);
    }
}

/* Sum of the two best of a group; of one expert, itself. */
static float group_score(const float *choice, int64_t size)
{
    float best = -INFINITY, second = -INFINITY;
    for (int64_t x = 0; x < size; x++) {
        if (choice[x] > best) {
            second = best;
            best = choice[x];
        } else if (choice[x] > second) {
            second = choice[x];
        }
    }
    return size == 1 ? best : number(best + second);
}

/* How many groups come before g: those with a larger score, or an equal one and a smaller index. */
static int64_t rank_of(const float *scores, int64_t n, int64_t g)
{
    int64_t rank = 0;
    for (int64_t i = 0; i < n; i++) rank += scores[i] > scores[g] || (scores[i] == scores[g] && i < g);
    return rank;
}

static void route_sigmoid(const mox_router_sigmoid_args *a, const float *logits, int32_t *ids, float *weights)
{
    float score[EXPERTS_MAX], choice[EXPERTS_MAX], groups[EXPERTS_MAX];
    const int64_t size = a->n_experts / a->n_groups;
    for (int64_t x = 0; x < a->n_experts; x++) {
        score[x] = (float)mox_ref_sigmoid((double)number(logits[x]));
        choice[x] = number(a->bias.type == MOX_DT_NONE ? score[x] : score[x] + mox_vec_at(&a->bias, x));
    }
    const bool all = a->kept_groups == a->n_groups;
    for (int64_t g = 0; g < a->n_groups && !all; g++) groups[g] = group_score(choice + g * size, size);
    int64_t n = 0;
    for (int64_t g = 0; g < a->n_groups; g++)
        if (all || rank_of(groups, a->n_groups, g) < a->kept_groups)
            choose_sorted(choice, g * size, (g + 1) * size, a->k, &n, weights, ids);
    assert(n == a->k);
    double sum = 0;
    for (int64_t s = 0; s < a->k; s++) sum += (double)score[ids[s]];
    for (int64_t s = 0; s < a->k; s++) {
        const double w = (double)score[ids[s]];
        weights[s] = (float)((a->renormalize ? w / (sum + 1e-20) : w) * (double)a->factor);
    }
}

void MOX_AT(mox_router_sigmoid)(const mox_router_sigmoid_args *a, int64_t begin, int64_t end)
{
    if (a->n_experts > EXPERTS_MAX) {
        mox_router_sigmoid_ref(a, begin, end);
        return;
    }
    for (int64_t t = begin; t < end; t++)
        route_sigmoid(a, a->logits + t * a->n_experts, a->ids + t * a->k, a->weights + t * a->k);
}
