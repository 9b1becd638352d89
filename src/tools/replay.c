/* tools/replay.c -- the hits that a recorded run would have had with other slots and policies.
 *
 * The index of the expert cache is the store's own (runtime/expert_cache.h), asked in the same
 * order, so that the recorded slots and policy give the recorded hits. */
#include "base/alloc.h"
#include "base/size.h"
#include "runtime/expert_cache.h"
#include "tools/belady.h"
#include "tools/trace.h"

#include <string.h>

static int64_t key_of(const mox_trace *t, const mox_trace_batch *b, int64_t request)
{
    return b->layer * t->info.n_experts + mox_trace_ids(t)[request];
}

/* For every request, the batch that asks for the same expert next. */
static mox_status foresee(const mox_trace *t, int64_t **out, mox_err *err)
{
    const int64_t n_keys = t->info.n_layers * t->info.n_experts;
    int64_t *next = mox_alloc_array((size_t)t->info.n_requests, sizeof *next);
    int64_t *wanted = mox_alloc_array((size_t)n_keys, sizeof *wanted);
    *out = next;
    if (!next || !wanted) {
        mox_free(wanted);
        return mox_fail_memory(err, (size_t)(t->info.n_requests + n_keys) * sizeof *next, "a replay");
    }
    for (int64_t k = 0; k < n_keys; k++) wanted[k] = MOX_BELADY_NEVER;
    for (int64_t i = t->info.n_batches - 1; i >= 0; i--) {
        const mox_trace_batch *b = &mox_trace_batches(t)[i];
        for (int64_t r = b[0].first; r < b[1].first; r++) {
            int64_t *when = &wanted[key_of(t, b, r)];
            next[r] = *when;
            *when = i;
        }
    }
    mox_free(wanted);
    return MOX_OK;
}

/* next: NULL unless the policy knows the future. */
static void run(const mox_trace *t, mox_expert_cache *c, const int64_t *next, int32_t *slots, bool *hit)
{
    for (int64_t i = 0; i < t->info.n_batches; i++) {
        const mox_trace_batch *b = &mox_trace_batches(t)[i];
        const int64_t n = b[1].first - b[0].first;
        for (int64_t r = b[0].first; next && r < b[1].first; r++) mox_belady_foresee(c->state, key_of(t, b, r), next[r]);
        mox_expert_cache_begin(c, b->layer * t->info.n_experts, mox_trace_ids(t) + b->first, n, slots, hit);
        mox_expert_cache_end(c, slots, n);
    }
}

mox_status mox_trace_replay(const mox_trace *t, const char *policy, int64_t n_slots, mox_replay *out, mox_err *err)
{
    const bool future = policy && strcmp(policy, mox_policy_belady.name) == 0;
    const mox_policy *p = future ? &mox_policy_belady : mox_policy_find(policy);
    if (!p) return mox_fail(err, MOX_E_ARG, "there is no policy '%s'; there are lru, lfu, 2q and belady", policy);
    if (n_slots < 1) return mox_fail(err, MOX_E_ARG, "a cache of %lld slots holds nothing; ask for at least 1", (long long)n_slots);
    n_slots = mox_min_i64(n_slots, t->info.n_all);
    mox_expert_cache c = {0};
    int64_t *next = NULL;
    int32_t *slots = mox_alloc_array((size_t)t->info.n_experts, sizeof *slots);
    bool *hit = mox_alloc_array((size_t)t->info.n_experts, sizeof *hit);
    mox_status status = MOX_OK;
    if (!slots || !hit) status = mox_fail_memory(err, (size_t)t->info.n_experts * sizeof *slots, "a replay");
    if (status == MOX_OK && future) status = foresee(t, &next, err);
    if (status == MOX_OK) status = mox_expert_cache_init(&c, t->info.n_layers * t->info.n_experts, (int32_t)n_slots, p, err);
    if (status == MOX_OK) {
        run(t, &c, next, slots, hit);
        *out = (mox_replay){.policy = p->name, .n_slots = n_slots, .hits = c.hits, .misses = c.misses};
        if (t->info.n_tokens > 0)
            out->bytes_per_token = (double)c.misses * (double)t->info.slot_bytes / (double)t->info.n_tokens;
    }
    mox_expert_cache_deinit(&c);
    mox_free(next);
    mox_free(slots);
    mox_free(hit);
    return status;
}
