/* dev/gpu/router.h -- which experts a token goes to: a wave per token.
 *
 * The best expert after a given one, in the order (larger value, then smaller index), is found
 * without marking what was taken: what was taken comes before.  So nothing is kept but the last
 * choice, and any number of experts and choices will do.  Softmax never changes an order, so
 * values are compared before it. */
#ifndef MOX_DEV_GPU_ROUTER_H
#define MOX_DEV_GPU_ROUTER_H

#include "dev/gpu/number.h"

/* NaN counts as -inf. */
GPU_FN float comparable(float v) { return gpu_isnan(v) ? -GPU_INFINITY : v; }

GPU_FN bool comes_before(float a, int64_t i, float b, int64_t j) { return a > b || (a == b && i < j); }

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

/* The best after `last` among n values of global memory. */
GPU_FN choice next_best(const GPU_GLOBAL(f32) *logits, int64_t n, choice last, int32_t lane)
{
    choice best;
    best.value = -GPU_INFINITY;
    best.id = 0x7FFFFFFF;
    for (int64_t x = lane; x < n; x += GPU_LANES) {
        const float v = comparable(gpu_load(logits, x));
        if (comes_before(last.value, last.id, v, x) && comes_before(v, x, best.value, best.id)) {
            best.value = v;
            best.id = (int32_t)x;
        }
    }
    return best_of_lanes(best, lane);
}

/* e^(v - max), and its limit where max is +inf. */
GPU_FN float above(float v, float max)
{
    if (max == GPU_INFINITY) return v == GPU_INFINITY ? 1.0f : 0.0f;
    return gpu_exp(v - max);
}

GPU_KERNEL(router_topk, 32)
{
    const int32_t lane = gpu_thread();
    const int64_t t = gpu_group_x();
    const GPU_GLOBAL(f32) *logits = p->logits + t * p->n_experts;
    float max = -GPU_INFINITY, finite = 0.0f;
    for (int64_t x = lane; x < p->n_experts; x += GPU_LANES) {
        const float v = comparable(gpu_load(logits, x));
        max = gpu_max(max, v);
        if (gpu_abs(v) < GPU_INFINITY) finite = 1.0f;
    }
    max = gpu_lane_max(max);
    const bool degenerate = gpu_lane_max(finite) == 0.0f;
    float sum = 0.0f;
    for (int64_t x = lane; x < p->n_experts && p->renormalize == 0 && !degenerate; x += GPU_LANES)
        sum += above(comparable(gpu_load(logits, x)), max);
    sum = gpu_lane_sum(sum);
    choice last;
    last.value = GPU_INFINITY;
    last.id = -1;
    for (int64_t s = 0; s < p->k; s++) { /* all lanes have the same choice; lane 0 writes it */
        if (degenerate) last.id = (int32_t)s;
        else last = next_best(logits, p->n_experts, last, lane);
        const float weight = degenerate ? 1.0f / (float)p->k : above(last.value, max);
        if (p->renormalize != 0 && !degenerate) sum += weight;
        if (lane == 0) gpu_store(p->ids, t * p->k + s, last.id);
        if (lane == 0) gpu_store(p->weights, t * p->k + s, weight);
    }
    for (int64_t s = 0; s < p->k && lane == 0 && !degenerate; s++)
        gpu_store(p->weights, t * p->k + s, gpu_load(p->weights, t * p->k + s) / sum);
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
            if (comes_before(gpu_load(scores, other), other, gpu_load(scores, g), g)) before++;
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
            if (gpu_load(kept, x / size) != 0 && comes_before(last.value, last.id, v, x) &&
                comes_before(v, x, best.value, best.id)) {
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
