/* dev/gpu/router.h -- which experts a token goes to.
 *
 * Experts are in the order (larger value, then smaller index).  Softmax never changes an order, so
 * values are compared before it.  Threads count who comes before their expert: that is
 * the expert's rank, and no choice waits for another. */
#ifndef MOX_DEV_GPU_ROUTER_H
#define MOX_DEV_GPU_ROUTER_H

#include "dev/gpu/group.h"
#include "dev/gpu/number.h"

enum { ROUTER_THREADS = 512, ROUTER_SHARE = 4 }; /* so many threads share a rank */

/* NaN counts as -inf. */
GPU_FN float comparable(float v) { return gpu_isnan(v) ? -GPU_INFINITY : v; }

/* How many of the experts [first, last) come before expert x: of those in front of it, who is not smaller; of those behind,
 * who is larger.  So an expert takes one comparison. */
GPU_FN int32_t before_in(const GPU_SHARED(f32) *values, int32_t first, int32_t last, int32_t x)
{
    const float v = gpu_load(values, x);
    const int32_t middle = x < first ? first : x < last ? x : last;
    int32_t before = 0;
    for (int32_t other = first; other < middle; other++) before += gpu_load(values, other) >= v ? 1 : 0;
    for (int32_t other = middle; other < last; other++) before += gpu_load(values, other) > v ? 1 : 0;
    return before;
}

/* ---- softmax ---- */

/* e^(v - max), and its limit where max is +inf. */
GPU_FN float above(float v, float max)
{
    if (max == GPU_INFINITY) return v == GPU_INFINITY ? 1.0f : 0.0f;
    return gpu_exp(v - max);
}

/* How many come before value number x, of every ROUTER_SHAREth from `first` on: threads of a wave take the same turns. */
GPU_FN int32_t rank_part(const GPU_SHARED(f32) *values, int32_t n, int32_t x, int32_t first)
{
    const float v = gpu_load(values, x);
    int32_t before = 0;
    for (int32_t other = first; other < n; other += ROUTER_SHARE) {
        const float value = gpu_load(values, other);
        before += value > v || (value == v && other < x) ? 1 : 0;
    }
    return before;
}

GPU_KERNEL(router_topk, ROUTER_THREADS)
{
    GPU_SHARED_ARRAY(f32, values, MOX_GPU_ROUTER_EXPERTS);
    GPU_SHARED_ARRAY(f32, chosen, MOX_GPU_ROUTER_EXPERTS); /* weights by rank */
    GPU_SHARED_ARRAY(f32, scratch, ROUTER_THREADS / GPU_LANES);
    const int32_t me = gpu_thread(), n = (int32_t)p->n_experts;
    const int64_t t = gpu_group_x();
    float max = -GPU_INFINITY, finite = 0.0f, sum = 0.0f;
    for (int32_t x = me; x < n; x += ROUTER_THREADS) {
        const float v = comparable(gpu_load(p->logits, t * p->n_experts + x));
        gpu_store(values, x, v);
        max = gpu_max(max, v);
        if (gpu_abs(v) < GPU_INFINITY) finite = 1.0f;
    }
    max = group_max(max, scratch, me, ROUTER_THREADS); /* its barriers order values, too */
    if (group_max(finite, scratch, me, ROUTER_THREADS) == 0.0f) { /* the whole group: no order to go by */
        for (int64_t s = me; s < p->k; s += ROUTER_THREADS) {
            gpu_store(p->ids, t * p->k + s, (int32_t)s);
            gpu_store(p->weights, t * p->k + s, 1.0f / (float)p->k);
        }
        return;
    }
    for (int32_t first = 0; first < n; first += ROUTER_THREADS / ROUTER_SHARE) {
        const int32_t asked = first + me / ROUTER_SHARE, x = asked < n ? asked : n - 1, lane = me % GPU_LANES;
        int32_t rank = rank_part(values, n, x, me % ROUTER_SHARE);
        GPU_UNROLL
        for (int32_t m = 1; m < ROUTER_SHARE; m *= 2) rank += gpu_shuffle_i32(rank, lane ^ m);
        const float weight = above(gpu_load(values, x), max);
        if (asked >= n || me % ROUTER_SHARE != 0) continue;
        sum += weight;
        if (rank >= p->k) continue;
        gpu_store(chosen, rank, weight);
        gpu_store(p->ids, t * p->k + rank, x);
    }
    sum = group_sum(sum, scratch, me, ROUTER_THREADS); /* its barriers order chosen, too */
    if (p->renormalize != 0) {
        sum = 0.0f;
        for (int64_t s = 0; s < p->k; s++) sum += gpu_load(chosen, s);
    }
    for (int64_t s = me; s < p->k; s += ROUTER_THREADS) gpu_store(p->weights, t * p->k + s, gpu_load(chosen, s) / sum);
}

/* ---- sigmoid with groups ---- */

/* The part of x's rank among the experts of kept groups that a thread counts. */
GPU_FN int32_t kept_part(const GPU_SHARED(f32) *values, const GPU_SHARED(i32) *kept, int32_t n, int32_t size, int32_t x, int32_t part)
{
    const int32_t each = (size + ROUTER_SHARE - 1) / ROUTER_SHARE, from = part * each, to = from + each;
    int32_t before = 0;
    for (int32_t g = 0; g < n; g += size)
        if (gpu_load(kept, g / size) != 0) before += before_in(values, g + (from < size ? from : size), g + (to < size ? to : size), x);
    return before;
}

GPU_KERNEL(router_sigmoid, ROUTER_THREADS)
{
    GPU_SHARED_ARRAY(f32, values, MOX_GPU_ROUTER_EXPERTS); /* what experts are compared by */
    GPU_SHARED_ARRAY(f32, scores, MOX_GPU_ROUTER_EXPERTS); /* of the groups: the sum of their two best, or of one expert, itself */
    GPU_SHARED_ARRAY(f32, second, MOX_GPU_ROUTER_EXPERTS); /* the second best of a group; then weights by rank */
    GPU_SHARED_ARRAY(i32, kept, MOX_GPU_ROUTER_EXPERTS);   /* groups */
    const int32_t me = gpu_thread(), n = (int32_t)p->n_experts, n_groups = (int32_t)p->n_groups, size = n / n_groups;
    const int64_t t = gpu_group_x();
    const GPU_GLOBAL(f32) *logits = p->logits + t * p->n_experts;
    for (int32_t x = me; x < n; x += ROUTER_THREADS) {
        const float s = sigmoid(comparable(gpu_load(logits, x)));
        const float bias = p->bias.type == MOX_GPU_NONE ? 0.0f : stored_number(p->bias.data, (int32_t)p->bias.type, x);
        gpu_store(values, x, comparable(s + bias));
    }
    gpu_barrier();
    for (int32_t x = me; x < n; x += ROUTER_THREADS) {
        const int32_t rank = before_in(values, x / size * size, x / size * size + size, x);
        if (rank == 0) gpu_store(scores, x / size, gpu_load(values, x));
        if (rank == 1) gpu_store(second, x / size, gpu_load(values, x));
    }
    gpu_barrier();
    for (int32_t g = me; g < n_groups && size > 1; g += ROUTER_THREADS)
        gpu_store(scores, g, comparable(gpu_load(scores, g) + gpu_load(second, g)));
    gpu_barrier();
    for (int32_t g = me; g < n_groups; g += ROUTER_THREADS)
        gpu_store(kept, g, before_in(scores, 0, n_groups, g) < p->kept_groups ? 1 : 0);
    gpu_barrier();
    for (int32_t first = 0; first < n; first += ROUTER_THREADS / ROUTER_SHARE) {
        const int32_t asked = first + me / ROUTER_SHARE, x = asked < n ? asked : n - 1, lane = me % GPU_LANES;
        int32_t rank = kept_part(values, kept, n, size, x, me % ROUTER_SHARE);
        GPU_UNROLL
        for (int32_t m = 1; m < ROUTER_SHARE; m *= 2) rank += gpu_shuffle_i32(rank, lane ^ m);
        if (asked >= n || me % ROUTER_SHARE != 0 || gpu_load(kept, x / size) == 0 || rank >= p->k) continue;
        gpu_store(second, rank, sigmoid(comparable(gpu_load(logits, x))));
        gpu_store(p->ids, t * p->k + rank, x);
    }
    gpu_barrier();
    float sum = 0.0f;
    for (int64_t s = 0; s < p->k; s++) sum += gpu_load(second, s);
    const float factor = p->renormalize != 0 ? p->factor / (sum + 1e-20f) : p->factor;
    for (int64_t s = me; s < p->k; s += ROUTER_THREADS) gpu_store(p->weights, t * p->k + s, gpu_load(second, s) * factor);
}

#endif
