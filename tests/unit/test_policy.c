/* tests/unit/test_policy.c -- cache policies against slow models of them, on random streams of
 * what the index asks; and Belady's against every choice there is.
 *
 * The models keep plain lists and look through all of them.  Fast and slow see the same calls,
 * and must name the same victim whatever is held. */
#include "runtime/expert_cache.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "tools/belady.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { KEYS = 40, MOST = 24, CALLS = 20000 };

/* ---- slow models ---- */

typedef struct entry {
    int32_t slot;
    int64_t key;
    int count; /* lfu */
    bool main; /* 2q: in the second queue */
} entry;

typedef struct slow {
    int32_t n_slots, n;
    entry list[MOST]; /* who goes first in front */
    int counts[KEYS]; /* lfu: of all keys */
    int n_uses;
    int64_t left[CALLS + 1]; /* 2q: keys in the order in which they left the first queue */
    int n_left;
} slow;

typedef struct slow_policy {
    const mox_policy *fast;
    void (*fill)(slow *s, int32_t slot, int64_t key);
    void (*touch)(slow *s, int at);
    void (*empty)(slow *s, int at);
    int32_t (*victim)(const slow *s, const bool *held);
} slow_policy;

static void insert(slow *s, int at, entry e)
{
    memmove(s->list + at + 1, s->list + at, (size_t)(s->n - at) * sizeof e);
    s->list[at] = e;
    s->n++;
}

static entry take_out(slow *s, int at)
{
    const entry e = s->list[at];
    s->n--;
    memmove(s->list + at, s->list + at + 1, (size_t)(s->n - at) * sizeof e);
    return e;
}

static void drop(slow *s, int at) { (void)take_out(s, at); }

static int32_t first_free(const slow *s, const bool *held)
{
    for (int i = 0; i < s->n; i++)
        if (!held || !held[s->list[i].slot]) return s->list[i].slot;
    return -1;
}

static void lru_fill(slow *s, int32_t slot, int64_t key) { insert(s, s->n, (entry){.slot = slot, .key = key}); }
static void lru_touch(slow *s, int at)
{
    const entry e = take_out(s, at);
    insert(s, s->n, e);
}

/* Behind all whose count is not higher; halving leaves the list as it is. */
static void lfu_fill(slow *s, int32_t slot, int64_t key)
{
    const int period = 16 * s->n_slots > 256 ? 16 * s->n_slots : 256;
    if (s->n_uses++ == period) {
        s->n_uses = 1;
        for (int k = 0; k < KEYS; k++) s->counts[k] /= 2;
        for (int i = 0; i < s->n; i++) s->list[i].count /= 2;
    }
    if (s->counts[key] < 255) s->counts[key]++;
    int at = s->n;
    while (at > 0 && s->list[at - 1].count > s->counts[key]) at--;
    insert(s, at, (entry){.slot = slot, .key = key, .count = s->counts[key]});
}
static void lfu_touch(slow *s, int at)
{
    const entry e = take_out(s, at);
    lfu_fill(s, e.slot, e.key);
}

static void twoq_fill(slow *s, int32_t slot, int64_t key)
{
    const int remembered = s->n_slots > 1 ? s->n_slots / 2 : 1;
    bool known = false;
    for (int i = s->n_left - 1; i >= 0 && i >= s->n_left - remembered; i--) {
        known |= s->left[i] == key;
        if (s->left[i] == key) s->left[i] = -1; /* it is back */
    }
    insert(s, s->n, (entry){.slot = slot, .key = key, .main = known});
}
static void twoq_touch(slow *s, int at)
{
    if (s->list[at].main) lru_touch(s, at);
}
static void twoq_empty(slow *s, int at)
{
    const entry e = take_out(s, at);
    if (!e.main) s->left[s->n_left++] = e.key;
}
static int32_t twoq_victim(const slow *s, const bool *held)
{
    int n_first = 0;
    for (int i = 0; i < s->n; i++) n_first += !s->list[i].main;
    for (int other = 0; other < 2; other++)
        for (int i = 0; i < s->n; i++)
            if (s->list[i].main == ((n_first <= s->n_slots / 4) ^ other) && (!held || !held[s->list[i].slot])) return s->list[i].slot;
    return -1;
}

static const slow_policy models[] = {
    {&mox_policy_lfu, lfu_fill, lfu_touch, drop, first_free},
    {&mox_policy_lru, lru_fill, lru_touch, drop, first_free},
    {&mox_policy_2q, twoq_fill, twoq_touch, twoq_empty, twoq_victim},
};

/* ---- random calls ---- */

typedef struct both {
    const slow_policy *p;
    void *state;
    slow *slow;
    int32_t slot_of[KEYS], n_free, free[MOST];
    mox_rng rng;
} both;

static int position(const slow *s, int32_t slot)
{
    for (int i = 0; i < s->n; i++)
        if (s->list[i].slot == slot) return i;
    fail_msg("slot %d is not filled", (int)slot);
    return -1;
}

static void empty(both *b, int64_t key)
{
    const int32_t slot = b->slot_of[key];
    b->p->fast->empty(b->state, slot, key);
    b->p->empty(b->slow, position(b->slow, slot));
    b->slot_of[key] = -1;
    b->free[b->n_free++] = slot;
}

static int64_t key_in(const both *b, int32_t slot)
{
    for (int64_t k = 0; k < KEYS; k++)
        if (b->slot_of[k] == slot) return k;
    return -1;
}

/* Both name the same victim, whatever is held. */
static int32_t agree(both *b)
{
    bool held[MOST];
    const uint64_t odds = mox_rng_u64(&b->rng) % 5;
    for (int i = 0; i < MOST; i++) held[i] = mox_rng_u64(&b->rng) % 4 < odds;
    const int32_t free = b->p->fast->victim(b->state, held), any = b->p->fast->victim(b->state, NULL);
    assert_int_equal(free, b->p->victim(b->slow, held));
    assert_int_equal(any, b->p->victim(b->slow, NULL));
    return free >= 0 ? free : any;
}

static void use(both *b, int64_t key)
{
    if (b->slot_of[key] >= 0) {
        b->p->fast->touch(b->state, b->slot_of[key], key);
        b->p->touch(b->slow, position(b->slow, b->slot_of[key]));
        return;
    }
    if (b->n_free == 0) empty(b, key_in(b, agree(b)));
    const int32_t slot = b->free[--b->n_free];
    b->slot_of[key] = slot;
    b->p->fast->fill(b->state, slot, key);
    b->p->fill(b->slow, slot, key);
}

static void run_model(const slow_policy *p, int32_t n_slots, uint64_t seed)
{
    both b = {.p = p, .n_free = n_slots};
    b.state = calloc(1, p->fast->state_bytes(KEYS, n_slots));
    b.slow = calloc(1, sizeof *b.slow);
    b.slow->n_slots = n_slots;
    mox_rng_init(&b.rng, seed);
    for (int32_t k = 0; k < KEYS; k++) b.slot_of[k] = -1;
    for (int32_t i = 0; i < n_slots; i++) b.free[i] = i;
    p->fast->init(b.state, KEYS, n_slots);
    for (int i = 0; i < CALLS; i++) {
        const double u = mox_rng_unit(&b.rng);
        int64_t key = (int64_t)(KEYS * (seed % 2 ? u * u * u : u)); /* even, and skewed */
        if (seed > 1 && i % 4000 < 1500) key %= 2;                  /* two for so long that counts come to their end */
        if (mox_rng_u64(&b.rng) % 50 == 0 && b.slot_of[key] >= 0) empty(&b, key);
        else use(&b, key);
        (void)agree(&b);
    }
    free(b.state);
    free(b.slow);
}

static void policies_do_as_their_models(void **state)
{
    (void)state;
    static const int32_t sizes[] = {1, 2, 3, 7, 12, MOST};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++)
            for (uint64_t seed = 0; seed < 4; seed++) run_model(&models[i], sizes[j], seed);
}

static void every_policy_has_a_model_and_a_name(void **state)
{
    (void)state;
    size_t n = 0;
    for (; mox_policies[n]; n++) {
        assert_ptr_equal(mox_policies[n], models[n].fast);
        assert_ptr_equal(mox_policy_find(mox_policies[n]->name), mox_policies[n]);
    }
    assert_int_equal(n, sizeof models / sizeof *models);
    assert_ptr_equal(mox_policy_find(NULL), &mox_policy_lfu);
    assert_null(mox_policy_find("belady")); /* no store knows the future */
    assert_null(mox_policy_find(""));
}

/* ---- what they are for ---- */

enum { LAYER_IDS = 8 };

typedef struct stream {
    int n;
    struct {
        int64_t first, n;
        int32_t ids[LAYER_IDS];
    } batches[400];
} stream;

static int64_t misses_of(const mox_policy *p, const stream *s, int64_t n_keys, int32_t n_slots)
{
    mox_expert_cache c;
    int64_t next[KEYS];
    assert_int_equal(mox_expert_cache_init(&c, n_keys, n_slots, p, NULL), MOX_OK);
    for (int i = 0; i < s->n; i++) {
        int32_t slots[LAYER_IDS];
        bool hit[LAYER_IDS];
        for (int64_t j = 0; p == &mox_policy_belady && j < s->batches[i].n; j++) {
            const int64_t key = s->batches[i].first + s->batches[i].ids[j];
            next[key] = MOX_BELADY_NEVER;
            for (int t = s->n - 1; t > i; t--)
                for (int64_t k = 0; k < s->batches[t].n; k++)
                    if (s->batches[t].first + s->batches[t].ids[k] == key) next[key] = t;
            mox_belady_foresee(c.state, key, next[key]);
        }
        mox_expert_cache_begin(&c, s->batches[i].first, s->batches[i].ids, s->batches[i].n, slots, hit);
    }
    const int64_t misses = c.misses;
    mox_expert_cache_deinit(&c);
    return misses;
}

/* Sets of keys as bits: the fewest misses from batch i on, over every choice of who stays. */
static int64_t fewest(const stream *s, int i, unsigned held, int32_t n_slots)
{
    if (i == s->n) return 0;
    unsigned wanted = 0;
    for (int64_t j = 0; j < s->batches[i].n; j++) wanted |= 1u << (s->batches[i].first + s->batches[i].ids[j]);
    int64_t misses = __builtin_popcount(wanted & ~held), best = INT64_MAX;
    const unsigned others = held & ~wanted;
    for (unsigned kept = others;; kept = (kept - 1) & others) { /* every part of the others */
        if (__builtin_popcount(kept) + __builtin_popcount(wanted) <= n_slots) {
            const int64_t rest = fewest(s, i + 1, kept | wanted, n_slots);
            if (rest < best) best = rest;
        }
        if (kept == 0) break;
    }
    return misses + best;
}

static void make_stream(stream *s, mox_rng *rng, int n, int64_t n_layers, int32_t n_ids, uint64_t most)
{
    s->n = n;
    for (int i = 0; i < n; i++) {
        const uint64_t want = 1 + mox_rng_u64(rng) % most;
        s->batches[i].first = i % n_layers * n_ids;
        s->batches[i].n = 0;
        for (int32_t id = 0; id < n_ids; id++)
            if (mox_rng_u64(rng) % (uint64_t)(n_ids - id) < want - (uint64_t)s->batches[i].n)
                s->batches[i].ids[s->batches[i].n++] = id;
    }
}

static void belady_is_the_best_there_is(void **state)
{
    (void)state;
    mox_rng rng;
    mox_rng_init(&rng, 7);
    int n_better = 0;
    for (int i = 0; i < 600; i++) {
        stream s;
        const int32_t n_slots = 2 + (int32_t)(mox_rng_u64(&rng) % 3);
        make_stream(&s, &rng, 9, 1 + i % 2, i % 2 ? 3 : 6, i % 2 ? 2 : (uint64_t)(n_slots > 3 ? 3 : n_slots));
        const int64_t best = misses_of(&mox_policy_belady, &s, 6, n_slots);
        assert_int_equal(best, fewest(&s, 0, 0, n_slots));
        n_better += best < misses_of(&mox_policy_lru, &s, 6, n_slots);
    }
    assert_true(n_better > 100); /* there was something to choose */
}

static void nobody_beats_belady(void **state)
{
    (void)state;
    mox_rng rng;
    mox_rng_init(&rng, 8);
    for (int i = 0; i < 60; i++) {
        stream s;
        const int32_t n_slots = 4 + (int32_t)(mox_rng_u64(&rng) % 20);
        make_stream(&s, &rng, 400, KEYS / LAYER_IDS, LAYER_IDS, 4);
        const int64_t best = misses_of(&mox_policy_belady, &s, KEYS, n_slots);
        for (size_t j = 0; mox_policies[j]; j++) assert_true(best <= misses_of(mox_policies[j], &s, KEYS, n_slots));
    }
}

/* Keys that are always needed, and others that come once each. */
static void what_is_needed_once_drives_out_nothing_for_long(void **state)
{
    (void)state;
    stream s = {.n = 400};
    for (int i = 0; i < s.n; i++) {
        s.batches[i].n = 1;
        s.batches[i].first = i % 4 == 0 ? (i / 4) % 4 : 4 + i % (KEYS - 4);
    }
    const int64_t lru = misses_of(&mox_policy_lru, &s, KEYS, 8);
    assert_int_equal(lru, 400); /* sixteen others come before one is needed again */
    assert_true(misses_of(&mox_policy_lfu, &s, KEYS, 8) < 340);
}

static int count_allocation(void *user, size_t bytes)
{
    (void)bytes;
    ++*(int *)user;
    return 1;
}

static void using_them_allocates_nothing(void **state)
{
    (void)state;
    int n = 0;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        mox_expert_cache c;
        assert_int_equal(mox_expert_cache_init(&c, KEYS, 9, models[i].fast, NULL), MOX_OK);
        mox_alloc_set_hook(count_allocation, &n);
        for (int t = 0; t < 2000; t++) {
            int32_t slot;
            bool hit;
            mox_expert_cache_begin(&c, t * 7 % KEYS, (int32_t[]){0}, 1, &slot, &hit);
        }
        mox_alloc_set_hook(NULL, NULL);
        mox_expert_cache_deinit(&c);
    }
    assert_int_equal(n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_do_as_their_models),
        cmocka_unit_test(every_policy_has_a_model_and_a_name),
        cmocka_unit_test(belady_is_the_best_there_is),
        cmocka_unit_test(nobody_beats_belady),
        cmocka_unit_test(what_is_needed_once_drives_out_nothing_for_long),
        cmocka_unit_test(using_them_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
