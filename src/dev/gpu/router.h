/* dev/gpu/router.h -- which experts a token goes to.
 *
 * Experts are in the order (larger value, then smaller index).  Softmax never changes an order, so
 * values are compared before it.  Of softmax threads count who comes before their expert: that is
 * the expert's rank, and no choice waits for another.
 *
 * With groups a wave finds the best expert after a given one, without marking what was taken: what
 * was taken comes before.  So nothing is kept but the last choice. */
#ifndef MOX_DEV_GPU_ROUTER_H
#define MOX_DEV_GPU_ROUTER_H

#include "dev/gpu/group.h"
#include "dev/gpu/number.h"

enum { ROUTER_THREADS = 512, ROUTER_SHARE = 4 }; /* so many threads share a rank */

/* NaN counts as -inf. */
GPU_FN float comparable(float v) { return gpu_isnan(v) ? -GPU_INFINITY : v; }

GPU_FN bool comes_before(float a, int32_t i, float b, int32_t j) { return a > b || (a == b && i < j); }

typedef struct choice {
    float value;
    int32_t id; /* INT32_MAX: none yet */
} choice;

/* The best of the lanes' choices, for all lanes. */
GPU_FN choice best_of_lanes(choice mine, int32_t lane)
{
    for (int32_t m = GPU_LANES / 2; m > 0; m /= 2) {
        choice other;
        other.value = gpu_shuffle(mine.value, lane ^ m);
        other.id = gpu_shuffle_i32(mine.id, lane ^ m);
        if (comes_before(other.value, other.id, mine.value, mine.id)) mine = other;
    }
    return mine;
}

/* ---- softmax ---- */

/* e^(v - max), and its limit where max is +inf. */
GPU_FN float above(float v, float max)
{
    if (max == GPU_INFINITY) return v == GPU_INFINITY ? 1.0f : 0.0f;
    return gpu_exp(v - max);
}

/* How many come before value number x, of every ROUTER_SHAREth from `first` on. */
GPU_FN int32_t rank_part(const GPU_SHARED(f32) *values, int32_t n, int32_t x, int32_t first)
{
    const float v = gpu_load(values, x);
    int32_t before = 0;
    for (int32_t other = first; other < n; other += ROUTER_SHARE)
        before += comes_before(gpu_load(values, other), other, v, x) ? 1 : 0;
    return before;
}

GPU_KERNEL(router_topk, ROUTER_THREADS)
{
    GPU_SHARED_ARRAY(f32, values, MOX_GPU_ROUTER_EXPERTS);
    GPU_SHARED_ARRAY(f32, chosen, MOX_GPU_ROUTER_EXPERTS); /* weights by rank */
    GPU_SHARED_ARRAY(f32, scratch, ROUTER_THREADS / GPU_LANES);
    const int32_t thread = gpu_thread(), n = (int32_t)p->n_experts;
    const int64_t t = gpu_group_x();
    float max = -GPU_INFINITY, finite = 0.0f, sum = 0.0f;
    for (int32_t x = thread; x < n; x += ROUTER_THREADS) {
        const float v = comparable(gpu_load(p->logits, t * p->n_experts + x));
        gpu_store(values, x, v);
        max = gpu_max(max, v);
        if (gpu_abs(v) < GPU_INFINITY) finite = 1.0f;
    }
    max = group_max(max, scratch, thread, ROUTER_THREADS); /* its barriers order values, too */
    if (group_max(finite, scratch, thread, ROUTER_THREADS) == 0.0f) { /* the whole group: no order to go by */
        for (int64_t s = thread; s < p->k; s += ROUTER_THREADS) {
            gpu_store(p->ids, t * p->k + s, (int32_t)s);
            gpu_store(p->weights, t * p->k + s, 1.0f / (float)p->k);
        }
        return;
    }
    for (int32_t first = 0; first < n; first += ROUTER_THREADS / ROUTER_SHARE) {
        const int32_t asked = first + thread / ROUTER_SHARE, x = asked < n ? asked : n - 1, lane = thread % GPU_LANES;
        int32_t rank = rank_part(values, n, x, thread % ROUTER_SHARE);
        GPU_UNROLL
        for (int32_t m = 1; m < ROUTER_SHARE; m *= 2) rank += gpu_shuffle_i32(rank, lane ^ m);
        const float weight = above(gpu_load(values, x), max);
        if (asked >= n || thread % ROUTER_SHARE != 0) continue;
        sum += weight;
        if (rank >= p->k) continue;
        gpu_store(chosen, rank, weight);
        gpu_store(p->ids, t * p->k + rank, x);
    }
    sum = group_sum(sum, scratch, thread, ROUTER_THREADS); /* its barriers order chosen, too */
    if (p->renormalize != 0) {
        sum = 0.0f;
        for (int64_t s = 0; s < p->k; s++) sum += gpu_load(chosen, s);
    }
    for (int64_t s = thread; s < p->k; s += ROUTER_THREADS) gpu_store(p->weights, t * p->k + s, gpu_load(chosen, s) / sum);
}

/* ---- sigmoid with groups ---- */

/* Sum of the two best of a group of experts; of one expert, itself. */
GPU_FN float group_score(const GPU_SHARED(f32) *values, int64_t first, int64_t size)
{
    float best = -GPU_INFINITY, second = -GPU_INFINITY;
    for (int64_t x = first; x < first + size; x++) {
        const float v = gpu_load(values, x);
        if (v > best) {
            second = best;
            best = v;
        } else if (v > second) {
            second = v;
        }
    }
    return size == 1 ? best : comparable(best + second);
}

GPU_KERNEL(router_sigmoid, 32)
{
    GPU_SHARED_ARRAY(f32, values, MOX_GPU_ROUTER_EXPERTS); /* what experts are compared by */
    GPU_SHARED_ARRAY(f32, scores, MOX_GPU_ROUTER_EXPERTS); /* of the groups */
    GPU_SHARED_ARRAY(i32, kept, MOX_GPU_ROUTER_EXPERTS);   /* groups */
    const int32_t lane = gpu_thread();
    const int64_t t = gpu_group_x(), size = p->n_experts / p->n_groups;
    const GPU_GLOBAL(f32) *logits = p->logits + t * p->n_experts;
    for (int64_t x = lane; x < p->n_experts; x += GPU_LANES) {
        const float s = sigmoid(comparable(gpu_load(logits, x)));
        const float bias = p->bias.type == MOX_GPU_NONE ? 0.0f : stored_number(p->bias.data, (int32_t)p->bias.type, x);
        gpu_store(values, x, comparable(s + bias));
    }
    gpu_barrier();
    for (int64_t g = lane; g < p->n_groups; g += GPU_LANES) gpu_store(scores, g, group_score(values, g * size, size));
    gpu_barrier();
    for (int64_t g = lane; g < p->n_groups; g += GPU_LANES) {
        int64_t before = 0;
        for (int64_t other = 0; other < p->n_groups; other++)
            if (comes_before(gpu_load(scores, other), (int32_t)other, gpu_load(scores, g), (int32_t)g)) before++;
        gpu_store(kept, g, before < p->kept_groups ? 1 : 0);
    }
    gpu_barrier();
    float sum = 0.0f;
    choice last;
    last.value = GPU_INFINITY;
    last.id = -1;
    for (int64_t s = 0; s < p->k; s++) { /* all lanes have the same choice; lane 0 writes it */
        choice best;
        best.value = -GPU_INFINITY;
        best.id = 0x7FFFFFFF;
        for (int64_t x = lane; x < p->n_experts; x += GPU_LANES) {
            const float v = gpu_load(values, x);
            if (gpu_load(kept, x / size) != 0 && comes_before(last.value, last.id, v, (int32_t)x) &&
                comes_before(v, (int32_t)x, best.value, best.id)) {
                best.value = v;
                best.id = (int32_t)x;
            }
        }
        last = best_of_lanes(best, lane);
        const float weight = sigmoid(comparable(gpu_load(logits, last.id)));
        sum += weight;
        if (lane == 0) gpu_store(p->ids, t * p->k + s, last.id);
        if (lane == 0) gpu_store(p->weights, t * p->k + s, weight);
    }
    const float factor = p->renormalize != 0 ? p->factor / (sum + 1e-20f) : p->factor;
    for (int64_t s = 0; s < p->k && lane == 0; s++)
        gpu_store(p->weights, t * p->k + s, gpu_load(p->weights, t * p->k + s) * factor);
}

#endif
