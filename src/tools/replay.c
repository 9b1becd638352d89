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

static int64_t key_of(const mox_trace *t, const mox_trace_event *e, int64_t at)
{
    return e->layer * t->info.n_experts + mox_trace_ids(t)[at];
}

/* When experts are asked for: the number of the event, or MOX_BELADY_NEVER. */
typedef struct future {
    int64_t *first; /* [n_keys]: for the first time */
    int64_t *next;  /* [n_ids], of batches: for the next time */
} future;

static mox_status foresee(const mox_trace *t, future *f, mox_err *err)
{
    const int64_t n_keys = t->info.n_layers * t->info.n_experts;
    f->next = mox_alloc_array((size_t)t->n_ids, sizeof *f->next);
    f->first = mox_alloc_array((size_t)n_keys, sizeof *f->first);
    if (!f->next || !f->first) return mox_fail_memory(err, (size_t)(t->n_ids + n_keys) * sizeof *f->next, "a replay");
    for (int64_t k = 0; k < n_keys; k++) f->first[k] = MOX_BELADY_NEVER;
    for (int64_t i = t->n_events - 1; i >= 0; i--) {
        const mox_trace_event *e = &mox_trace_events(t)[i];
        for (int64_t r = e[0].first; r < e[1].first && e->what == MOX_TRACE_BATCH; r++) {
            int64_t *when = &f->first[key_of(t, e, r)];
            f->next[r] = *when;
            *when = i;
        }
    }
    return MOX_OK;
}

/* Whether a slot should be given to a key that nobody has asked for yet.  Who knows the future can tell. */
static bool wanted(const mox_expert_cache *c, const future *f, int64_t key)
{
    if (mox_expert_cache_find(c, key) >= 0) return false;
    if (!f->next || c->n_free > 0) return true;
    const int32_t victim = c->policy->victim(c->state, c->held);
    return victim >= 0 && mox_belady_prefers(c->state, key, victim);
}

/* Returns how many keys got a slot before they were asked for. */
static int64_t run(const mox_trace *t, mox_expert_cache *c, const future *f, int32_t *slots, bool *hit)
{
    int64_t n_ahead = 0;
    for (int64_t k = 0; f->next && k < c->n_keys; k++) mox_belady_foresee(c->state, k, f->first[k]);
    for (int64_t i = 0; i < t->n_events; i++) {
        const mox_trace_event *e = &mox_trace_events(t)[i];
        if (e->what == MOX_TRACE_SLOTS) { /* the same part of those that there are now */
            const int64_t n_open = (int64_t)c->n_slots * e->layer / mox_max_i64(t->info.n_slots, e->layer);
            mox_expert_cache_resize(c, (int32_t)mox_max_i64(n_open, 1));
            continue;
        }
        const int64_t key = key_of(t, e, e->first), n = e[1].first - e[0].first;
        switch (e->what) {
        case MOX_TRACE_BATCH:
            for (int64_t r = e[0].first; f->next && r < e[1].first; r++) mox_belady_foresee(c->state, key_of(t, e, r), f->next[r]);
            mox_expert_cache_begin(c, e->layer * t->info.n_experts, mox_trace_ids(t) + e->first, n, slots, hit);
            break;
        case MOX_TRACE_AHEAD:
            if (wanted(c, f, key)) n_ahead += mox_expert_cache_take(c, key) >= 0;
            break;
        case MOX_TRACE_LOST:
            if (mox_expert_cache_find(c, key) >= 0) mox_expert_cache_drop(c, key);
            break;
        case MOX_TRACE_SLOTS: break;
        }
    }
    return n_ahead;
}

mox_status mox_trace_replay(const mox_trace *t, const char *policy, int64_t n_slots, mox_replay *out, mox_err *err)
{
    const bool knows = policy && strcmp(policy, mox_policy_belady.name) == 0;
    const mox_policy *p = knows ? &mox_policy_belady : mox_policy_find(policy);
    if (!p) return mox_fail(err, MOX_E_ARG, "there is no policy '%s'; there are lfu, lru, 2q and belady", policy);
    if (n_slots < 1) return mox_fail(err, MOX_E_ARG, "a cache of %lld slots holds nothing; ask for at least 1", (long long)n_slots);
    n_slots = mox_min_i64(n_slots, t->info.n_all);
    mox_expert_cache c = {0};
    future f = {0};
    int32_t *slots = mox_alloc_array((size_t)t->info.n_experts, sizeof *slots);
    bool *hit = mox_alloc_array((size_t)t->info.n_experts, sizeof *hit);
    mox_status status = MOX_OK;
    if (!slots || !hit) status = mox_fail_memory(err, (size_t)t->info.n_experts * sizeof *slots, "a replay");
    if (status == MOX_OK && knows) status = foresee(t, &f, err);
    if (status == MOX_OK) status = mox_expert_cache_init(&c, t->info.n_layers * t->info.n_experts, (int32_t)n_slots, p, err);
    if (status == MOX_OK) {
        const int64_t n_ahead = run(t, &c, &f, slots, hit);
        *out = (mox_replay){.policy = p->name, .n_slots = n_slots, .hits = c.hits, .misses = c.misses, .n_ahead = n_ahead};
        if (t->info.n_tokens > 0)
            out->bytes_per_token = (double)(c.misses + n_ahead) * (double)t->info.slot_bytes / (double)t->info.n_tokens;
    }
    mox_expert_cache_deinit(&c);
    mox_free(f.first);
    mox_free(f.next);
    mox_free(slots);
    mox_free(hit);
    return status;
}
