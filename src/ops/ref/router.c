/* ops/ref/router.c -- which experts a token goes to.
 *
 * Any number of experts and any k without memory of its own: the rows of ids and
 * weights that are to be written serve as the list of the best so far.
 *
 * Softmax never changes an order, so experts are compared by their logits: exact, and
 * the same at every level.  The sigmoid rule adds a bias afterwards, in f32, where
 * large logits saturate and tie; s and c are rounded to f32 as the models were
 * trained with. */
#include "ops/kern.h"
#include "ops/ref/math.h"

#include <assert.h>

static float number(float v) { return isnan(v) ? -INFINITY : v; }

/* Puts (value, id) into the descending list of the best k, of which n are there.
 * Ids come in ascending order, so after its equals is where it belongs. */
static int64_t insert(float *values, int32_t *ids, int64_t n, int64_t k, float value, int64_t id)
{
    if (n == k && !(value > values[k - 1])) return n;
    int64_t i = n == k ? k - 1 : n;
    for (; i > 0 && value > values[i - 1]; i--) {
        values[i] = values[i - 1];
        ids[i] = ids[i - 1];
    }
    values[i] = value;
    ids[i] = (int32_t)id;
    return n == k ? k : n + 1;
}

static void choose_sorted(const float *logits, int64_t n_experts, int64_t k, float *values, int32_t *ids)
{
    int64_t n = 0;
    for (int64_t x = 0; x < n_experts; x++) n = insert(values, ids, n, k, number(logits[x]), x);
}

static void choose_running_min(const float *logits, int64_t n_experts, int64_t k, float *values, int32_t *ids)
{
    for (int64_t x = 0; x < n_experts; x++) {
        int64_t slot = x;
        if (x >= k) {
            slot = 0;
            for (int64_t s = 1; s < k; s++)
                if (values[s] < values[slot]) slot = s;
            if (!(number(logits[x]) > values[slot])) continue;
        }
        values[slot] = number(logits[x]);
        ids[slot] = (int32_t)x;
    }
}

/* e^(v - max), and its limit where max is +inf. */
static double above(float v, float max)
{
    if (max == INFINITY) return v == INFINITY ? 1 : 0;
    return exp((double)v - (double)max);
}

static void route_softmax(const mox_router_topk_args *a, const float *logits, int32_t *ids, float *weights)
{
    float max = -INFINITY;
    bool finite = false;
    for (int64_t x = 0; x < a->n_experts; x++) {
        finite = finite || isfinite(logits[x]);
        if (logits[x] > max) max = logits[x];
    }
    if (!finite) {
        for (int64_t s = 0; s < a->k; s++) {
            ids[s] = (int32_t)s;
            weights[s] = (float)(1.0 / (double)a->k);
        }
        if (a->n_degenerate) __atomic_fetch_add(a->n_degenerate, 1, __ATOMIC_RELAXED); /* units run side by side */
        return;
    }
    if (a->order == MOX_TOPK_SORTED) choose_sorted(logits, a->n_experts, a->k, weights, ids);
    else choose_running_min(logits, a->n_experts, a->k, weights, ids);
    double sum = 0;
    if (a->renormalize)
        for (int64_t s = 0; s < a->k; s++) sum += above(weights[s], max);
    else
        for (int64_t x = 0; x < a->n_experts; x++) sum += above(number(logits[x]), max);
    for (int64_t s = 0; s < a->k; s++) weights[s] = (float)(above(weights[s], max) / sum);
}

void mox_router_topk_ref(const mox_router_topk_args *a, int64_t begin, int64_t end)
{
    assert(0 < a->k && a->k <= a->n_experts);
    for (int64_t t = begin; t < end; t++)
        route_softmax(a, a->logits + t * a->n_experts, a->ids + t * a->k, a->weights + t * a->k);
}

static float score(float logit) { return (float)mox_ref_sigmoid((double)number(logit)); }

static float choice(const mox_router_sigmoid_args *a, const float *logits, int64_t x)
{
    const float s = score(logits[x]);
    return number(a->bias.type == MOX_DT_NONE ? s : s + mox_vec_at(&a->bias, x));
}

/* Sum of the two best of a group; of one expert, itself. */
static float group_score(const mox_router_sigmoid_args *a, const float *logits, int64_t g)
{
    const int64_t size = a->n_experts / a->n_groups;
    float best = -INFINITY, second = -INFINITY;
    for (int64_t x = g * size; x < (g + 1) * size; x++) {
        const float c = choice(a, logits, x);
        if (c > best) {
            second = best;
            best = c;
        } else if (c > second) {
            second = c;
        }
    }
    return size == 1 ? best : number(best + second);
}

/* Groups in descending order of (score, smaller index): the last one that is kept. */
typedef struct group_limit {
    float score;
    int64_t g;
} group_limit;

static bool comes_before(float score_a, int64_t a, float score_b, int64_t b)
{
    return score_a > score_b || (score_a == score_b && a < b);
}

static group_limit last_kept(const mox_router_sigmoid_args *a, const float *logits)
{
    group_limit last = {INFINITY, -1};
    for (int64_t n = 0; n < a->kept_groups; n++) {
        group_limit next = {-INFINITY, a->n_groups};
        for (int64_t g = 0; g < a->n_groups; g++) {
            const float s = group_score(a, logits, g);
            if (comes_before(last.score, last.g, s, g) && comes_before(s, g, next.score, next.g))
                next = (group_limit){s, g};
        }
        last = next;
    }
    return last;
}

static void route_sigmoid(const mox_router_sigmoid_args *a, const float *logits, int32_t *ids, float *weights)
{
    const int64_t size = a->n_experts / a->n_groups;
    const bool all = a->kept_groups == a->n_groups;
    const group_limit last = all ? (group_limit){0, 0} : last_kept(a, logits);
    int64_t n = 0;
    for (int64_t g = 0; g < a->n_groups; g++) {
        if (!all && comes_before(last.score, last.g, group_score(a, logits, g), g)) continue;
        for (int64_t x = g * size; x < (g + 1) * size; x++)
            n = insert(weights, ids, n, a->k, choice(a, logits, x), x);
    }
    assert(n == a->k);
    double sum = 0;
    for (int64_t s = 0; s < a->k; s++) sum += (double)score(logits[ids[s]]);
    for (int64_t s = 0; s < a->k; s++) {
        const double w = (double)score(logits[ids[s]]);
        weights[s] = (float)((a->renormalize ? w / (sum + 1e-20) : w) * (double)a->factor);
    }
}

void mox_router_sigmoid_ref(const mox_router_sigmoid_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++)
        route_sigmoid(a, a->logits + t * a->n_experts, a->ids + t * a->k, a->weights + t * a->k);
}

void mox_router_normalize_ref(const mox_router_normalize_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        float *w = a->weights + t * a->k;
        double sum = 0;
        for (int64_t s = 0; s < a->k; s++) sum += (double)w[s];
        if (!(sum > 0)) continue;
        for (int64_t s = 0; s < a->k; s++) w[s] = (float)((double)w[s] / sum);
    }
}
