/* dev/gpu/router.h -- which experts a token goes to.
 *
 * Experts are in the order (larger value, then smaller index).  Softmax never changes an order, so
 * values are compared before it.  Nothing is sorted by exchanging: who counts those that come before it knows
 * its place.  First an expert counts among the 32 of its run, and the best of a run become a
 * list; then the members of lists count in the other lists.  So no choice waits for another, and both counts are short.
 *
 * Counts are sums of 1.0f, as a comparison of floats that makes a float is one instruction and needs no predicate,
 * of which a thread has few. */
#ifndef MOX_DEV_GPU_ROUTER_H
#define MOX_DEV_GPU_ROUTER_H

#include "dev/gpu/group.h"
#include "dev/gpu/number.h"

enum { ROUTER_THREADS = 512, ROUTER_WAVES = ROUTER_THREADS / GPU_LANES, ROUTER_RUN = GPU_LANES,
       ROUTER_SHARE = 4 }; /* so many threads count for a member of a list; the number of runs is a multiple of it */

/* Parts of a thread's number, which is not negative: that saves the corrections of signed division. */
GPU_FN int32_t wave_of(int32_t me) { return (int32_t)((uint32_t)me / GPU_LANES); }
GPU_FN int32_t lane_of(int32_t me) { return (int32_t)((uint32_t)me % GPU_LANES); }
GPU_FN int32_t member_of(int32_t me) { return (int32_t)((uint32_t)me / ROUTER_SHARE); }
GPU_FN int32_t part_of(int32_t me) { return (int32_t)((uint32_t)me % ROUTER_SHARE); }

/* NaN counts as -inf, and what is below the normal numbers as 0: some targets see no difference. */
GPU_FN float comparable(float v)
{
    if (gpu_isnan(v)) return -GPU_INFINITY;
    return (gpu_f32_bits(v) & 0x7F800000u) == 0u ? 0.0f : v;
}

/* What all v or more are above, of numbers that are comparable, and nothing else. */
GPU_FN float below(float v)
{
    const uint32_t bits = gpu_f32_bits(v);
    return gpu_bits_f32(v == 0.0f ? 0x80800000u : v > 0.0f ? bits - 1u : bits + 1u);
}

/* 1 if o is above t; everything is above NaN, as which below(-inf) comes. */
GPU_FN float is_above(uint32_t o, float t) { return gpu_bits_f32(o) <= t ? 0.0f : 1.0f; }

/* A count: sums of 1.0f from here on have it in their last bits. */
GPU_FN float count_from(void) { return 8388608.0f; }
GPU_FN int32_t count_of(float sum) { return (int32_t)(gpu_f32_bits(sum) & 0x7FFFFFu); }

/* How many of n come before number `place` of them, whose value is v; n is a multiple of four, and they begin at one of 16 bytes.
 * In quads in front of its own whatever is not smaller counts, in the others what is larger; equals in its own come apart:
 * so most comparisons are with the same number.  All quads of a run are asked for at once. */
GPU_FN int32_t place_among(const GPU_SHARED(f32) *values, int32_t n, float v, int32_t place)
{
    const float t = below(v);
    float before[4] = {count_from(), 0.0f, 0.0f, 0.0f}; /* not one sum, where each would wait for the last */
    const gpu_quad own = gpu_load_quad(values, place & ~3);
    for (int32_t from = 0; from < n; from += ROUTER_RUN) {
        gpu_quad four[ROUTER_RUN / 4];
        GPU_UNROLL
        for (int32_t j = 0; j < ROUTER_RUN / 4; j++) {
            GPU_UNROLL
            for (int32_t e = 0; e < 4; e++) four[j].w[e] = 0xFF800000u; /* -inf */
            if (from + 4 * j < n) four[j] = gpu_load_quad(values, from + 4 * j);
        }
        GPU_UNROLL
        for (int32_t j = 0; j < ROUTER_RUN / 4; j++) {
            const float limit = from + 4 * j + 3 < place ? t : v;
            GPU_UNROLL
            for (int32_t e = 0; e < 4; e++) before[e] += is_above(four[j].w[e], limit);
        }
    }
    GPU_UNROLL
    for (int32_t e = 0; e < 3; e++) before[e + 1] += gpu_bits_f32(own.w[e]) == v && e < (place & 3) ? 1.0f : 0.0f;
    return count_of((before[0] + before[1]) + (before[2] + before[3]));
}

/* ---- runs and lists ---- */

typedef struct router_room {
    GPU_SHARED(f32) *values;  /* of experts, to the end of the last run */
    GPU_SHARED(f32) *lists;   /* the values of the first of every run */
    GPU_SHARED(u16) *experts; /* and who they are */
    GPU_SHARED(f32) *chosen;  /* by rank: what weights are made of */
    int32_t n_runs, length;   /* of a list: 1 << length */
} router_room;

GPU_FN int32_t runs_of(int64_t n_experts)
{
    return (int32_t)(n_experts + (ROUTER_SHARE * ROUTER_RUN - 1)) / (ROUTER_SHARE * ROUTER_RUN) * ROUTER_SHARE;
}
GPU_FN int32_t length_of(int64_t k) { return k <= 8 ? 3 : k <= 16 ? 4 : 5; }

/* From values that all threads have stored to lists that all of them see. */
GPU_FN void list_runs(router_room room, int32_t me)
{
    gpu_barrier();
    for (int32_t run = wave_of(me); run < room.n_runs; run += ROUTER_WAVES) {
        const int32_t lane = lane_of(me), x = run * ROUTER_RUN + lane;
        const float v = gpu_load(room.values, x);
        const int32_t place = place_among(room.values + run * ROUTER_RUN, ROUTER_RUN, v, lane);
        if (place >> room.length != 0) continue;
        gpu_store(room.lists, (run << room.length) + place, v);
        gpu_store(room.experts, (run << room.length) + place, (uint16_t)x);
    }
    gpu_barrier();
}

/* Of the whole wave: the rank of a member, whose value is v, among those of all lists; `top` becomes the first value of all.  A thread
 * counts in every ROUTER_SHAREth eight of members.  In its own list a member knows its place. */
GPU_FN int32_t rank_of(router_room room, int32_t member, float v, int32_t me, GPU_PRIVATE(f32) *top)
{
    const int32_t part = part_of(me), lane = lane_of(me), own = member >> room.length;
    const float t = below(v);
    float before[4] = {part == 0 ? count_from() : 0.0f, 0.0f, 0.0f, 0.0f}, first = -GPU_INFINITY;
    for (int32_t at = 8 * part; at < room.n_runs << room.length; at += 8 * ROUTER_SHARE) {
        const int32_t list = at >> room.length;
        const float limit = list < own ? t : list == own ? GPU_INFINITY : v;
        const gpu_quad low = gpu_load_quad(room.lists, at), high = gpu_load_quad(room.lists, at + 4);
        GPU_UNROLL
        for (int32_t e = 0; e < 4; e++) before[e] += is_above(low.w[e], limit) + is_above(high.w[e], limit);
        first = gpu_max(first, gpu_bits_f32(low.w[0])); /* lists descend */
    }
    float sum = (before[0] + before[1]) + (before[2] + before[3]);
    GPU_UNROLL
    for (int32_t m = 1; m < ROUTER_SHARE; m *= 2) {
        first = gpu_max(first, gpu_shuffle(first, lane ^ m));
        sum += gpu_shuffle(sum, lane ^ m);
    }
    *top = first;
    return count_of(sum) + (member - (own << room.length));
}

GPU_FN float sum_of_chosen(const GPU_SHARED(f32) *chosen, int32_t k)
{
    float sum = 0.0f;
    int32_t s = 0;
    for (; s + 8 <= k; s += 8) {
        const gpu_quad low = gpu_load_quad(chosen, s), high = gpu_load_quad(chosen, s + 4);
        GPU_UNROLL
        for (int32_t e = 0; e < 8; e++) sum += gpu_bits_f32(e < 4 ? low.w[e % 4] : high.w[e % 4]);
    }
    for (; s < k; s++) sum += gpu_load(chosen, s);
    return sum;
}

/* ---- softmax ---- */

/* e^(v - max), and its limit where max is +inf. */
GPU_FN float above(float v, float max)
{
    if (max == GPU_INFINITY) return v == GPU_INFINITY ? 1.0f : 0.0f;
    return gpu_exp(v - max);
}

GPU_KERNEL_HASTY(router_topk, ROUTER_THREADS)
{
    GPU_SHARED_ARRAY(quad, values, MOX_GPU_ROUTER_EXPERTS / 4);
    GPU_SHARED_ARRAY(quad, lists, MOX_GPU_ROUTER_EXPERTS / 4);
    GPU_SHARED_ARRAY(quad, chosen, MOX_GPU_ROUTER_EXPERTS / 4);
    GPU_SHARED_ARRAY(u16, experts, MOX_GPU_ROUTER_EXPERTS);
    GPU_SHARED_ARRAY(f32, scratch, ROUTER_WAVES);
    GPU_SHARED_ARRAY(f32, first, 1);
    const int32_t me = gpu_thread(), n = (int32_t)p->n_experts, k = (int32_t)p->k;
    const router_room room = {(GPU_SHARED(f32) *)values, (GPU_SHARED(f32) *)lists, experts, (GPU_SHARED(f32) *)chosen, runs_of(n),
                              length_of(k)};
    const GPU_GLOBAL(f32) *logits = p->logits + gpu_group_x() * n;
    GPU_GLOBAL(i32) *ids = p->ids + gpu_group_x() * k;
    GPU_GLOBAL(f32) *weights = p->weights + gpu_group_x() * k;
    GPU_REHEARSE(real, p->rehearse) {
        if (real != 0) {
            gpu_barrier();
            gpu_previous();
        }
        if (me < room.n_runs * ROUTER_RUN) /* apart from the loop, which has to work out its turns before it asks */
            gpu_store(room.values, me, real == 0 ? (float)me : me < n ? comparable(gpu_load(logits, me)) : -GPU_INFINITY);
        for (int32_t x = me + ROUTER_THREADS; x < room.n_runs * ROUTER_RUN; x += ROUTER_THREADS)
            gpu_store(room.values, x, real == 0 ? (float)x : x < n ? comparable(gpu_load(logits, x)) : -GPU_INFINITY);
        list_runs(room, me);
        for (int32_t member = member_of(me); member < room.n_runs << room.length; member += ROUTER_THREADS / ROUTER_SHARE) {
            const float v = gpu_load(room.lists, member);
            const int32_t x = gpu_load(room.experts, member);
            float top;
            const int32_t rank = rank_of(room, member, v, me, &top);
            const float weight = above(v, top);
            if (part_of(me) != 0 || rank >= k) continue;
            gpu_store(room.chosen, rank, weight);
            if (real != 0) gpu_store(ids, rank, x);
            if (rank == 0) gpu_store(first, 0, top);
        }
        gpu_barrier();
        const float top = gpu_load(first, 0);
        float finite = top == -GPU_INFINITY ? 0.0f : 1.0f;
        if (top == GPU_INFINITY) { /* the whole group, as in what follows */
            finite = 0.0f;
            for (int32_t x = me; x < n; x += ROUTER_THREADS)
                if (gpu_abs(gpu_load(room.values, x)) < GPU_INFINITY) finite = 1.0f;
            finite = group_max(finite, scratch, me, ROUTER_THREADS);
        }
        if (finite == 0.0f) { /* no order to go by */
            gpu_barrier_all(); /* ids were stored */
            for (int32_t s = me; s < k; s += ROUTER_THREADS) {
                gpu_store(ids, s, s);
                gpu_store(weights, s, 1.0f / (float)k);
            }
            continue;
        }
        float sum = 0.0f;
        if (p->renormalize == 0) {
            for (int32_t x = me; x < n; x += ROUTER_THREADS) sum += above(gpu_load(room.values, x), top);
            sum = group_sum(sum, scratch, me, ROUTER_THREADS);
        }
        if (me >= k) continue; /* no barrier follows */
        if (p->renormalize != 0) sum = sum_of_chosen(room.chosen, k);
        for (int32_t s = me; s < k; s += ROUTER_THREADS) {
            const float weight = gpu_load(room.chosen, s) / sum;
            if (real != 0) gpu_store(weights, s, weight);
        }
    }
}

/* ---- sigmoid with groups ---- */

/* What a group of experts is compared by: the sum of its two best, or of one expert, itself. */
GPU_FN float group_score(router_room room, int32_t g, int32_t size)
{
    const float best = gpu_load(room.chosen, g);
    return size == 1 ? best : comparable(best + gpu_load(room.lists, g));
}

/* Experts of groups that are not kept become -inf, which no other is.  The room of lists and of chosen is for the two best of a group
 * until then.  `group` is the thread's own expert's: dividing takes its time. */
GPU_FN void drop_groups(router_room room, int32_t n, int32_t n_groups, int32_t n_kept, int32_t group, int32_t me)
{
    const int32_t size = n / n_groups;
    gpu_barrier();
    for (int32_t x = me; x < n; x += ROUTER_THREADS) {
        const int32_t g = x == me ? group : x / size, from = g * size;
        const float v = gpu_load(room.values, x), t = below(v);
        int32_t place = 0;
        if (size % 4 == 0) place = place_among(room.values + from, size, v, x - from);
        for (int32_t i = from; size % 4 != 0 && i < from + size; i++)
            place += gpu_load(room.values, i) <= (i < x ? t : v) ? 0 : 1;
        if (place == 0) gpu_store(room.chosen, g, v);
        if (place == 1) gpu_store(room.lists, g, v);
    }
    gpu_barrier();
    for (int32_t x = me; x < n; x += ROUTER_THREADS) {
        const int32_t g = x == me ? group : x / size;
        const float score = group_score(room, g, size);
        int32_t before = 0;
        for (int32_t other = 0; other < n_groups; other++) {
            const float theirs = group_score(room, other, size);
            before += theirs > score || (theirs == score && other < g) ? 1 : 0;
        }
        if (before >= n_kept) gpu_store(room.values, x, -GPU_INFINITY);
    }
}

/* s + bias; what is not comparable is the smallest finite number, so that it still comes before experts that are not there. */
GPU_FN float choice_of(float logit, float bias)
{
    const float c = comparable(sigmoid(gpu_isnan(logit) ? -GPU_INFINITY : logit) + bias);
    return c == -GPU_INFINITY ? gpu_bits_f32(0xFF7FFFFFu) : c;
}

GPU_KERNEL_HASTY(router_sigmoid, ROUTER_THREADS)
{
    GPU_SHARED_ARRAY(quad, values, MOX_GPU_ROUTER_EXPERTS / 4);
    GPU_SHARED_ARRAY(quad, lists, MOX_GPU_ROUTER_EXPERTS / 4);
    GPU_SHARED_ARRAY(quad, chosen, MOX_GPU_ROUTER_EXPERTS / 4);
    GPU_SHARED_ARRAY(u16, experts, MOX_GPU_ROUTER_EXPERTS);
    const int32_t me = gpu_thread(), n = (int32_t)p->n_experts, k = (int32_t)p->k, n_groups = (int32_t)p->n_groups;
    const router_room room = {(GPU_SHARED(f32) *)values, (GPU_SHARED(f32) *)lists, experts, (GPU_SHARED(f32) *)chosen, runs_of(n),
                              length_of(k)};
    const GPU_GLOBAL(f32) *logits = p->logits + gpu_group_x() * n;
    const int32_t type = (int32_t)p->bias.type, group = me / (n / n_groups);
    float bias = type == MOX_GPU_NONE || me >= n ? 0.0f : stored_number(p->bias.data, type, me);
    gpu_previous();
    for (int32_t x = me; x < room.n_runs * ROUTER_RUN; x += ROUTER_THREADS) {
        if (x != me) bias = type == MOX_GPU_NONE || x >= n ? 0.0f : stored_number(p->bias.data, type, x);
        gpu_store(room.values, x, x < n ? choice_of(gpu_load(logits, x), bias) : -GPU_INFINITY);
    }
    if (p->kept_groups < n_groups) drop_groups(room, n, n_groups, (int32_t)p->kept_groups, group, me);
    list_runs(room, me);
    for (int32_t member = member_of(me); member < room.n_runs << room.length; member += ROUTER_THREADS / ROUTER_SHARE) {
        const int32_t x = gpu_load(room.experts, member);
        const float weight = choice_of(gpu_load(logits, x < n ? x : 0), 0.0f);
        float top;
        const int32_t rank = rank_of(room, member, gpu_load(room.lists, member), me, &top);
        if (part_of(me) != 0 || rank >= k) continue;
        gpu_store(room.chosen, rank, weight);
        gpu_store(p->ids, gpu_group_x() * k + rank, x);
    }
    gpu_barrier();
    if (me >= k) return; /* no barrier follows */
    const float factor = p->renormalize != 0 ? p->factor / (sum_of_chosen(room.chosen, k) + 1e-20f) : p->factor;
    for (int32_t s = me; s < k; s += ROUTER_THREADS) gpu_store(p->weights, gpu_group_x() * k + s, gpu_load(room.chosen, s) * factor);
}

#endif
