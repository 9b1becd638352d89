/* tests/unit/test_expert_cache.c -- the index of the expert cache against a slow model of it:
 * a list of keys, the one used last in front. */
#include "runtime/expert_cache.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { KEYS = 60, IDS = 12, MOST = 64 };

static mox_expert_cache new_cache(int32_t n_slots)
{
    mox_expert_cache c;
    mox_err err;
    if (mox_expert_cache_init(&c, KEYS, n_slots, &mox_policy_lru, &err) != MOX_OK) fail_msg("%s", err.msg);
    return c;
}

static void check_invariants(const mox_expert_cache *c)
{
    int32_t n_filled = 0;
    for (int64_t k = 0; k < c->n_keys; k++) {
        const int32_t s = c->slot_of[k];
        assert_true(s >= -1 && s < c->n_slots);
        if (s >= 0) assert_int_equal(c->key_of[s], k);
    }
    for (int32_t s = 0; s < c->n_slots; s++) {
        if (c->key_of[s] < 0) continue;
        n_filled++;
        assert_int_equal(c->slot_of[c->key_of[s]], s);
    }
    assert_int_equal(n_filled + c->n_free, c->n_open);
    for (int32_t i = 0; i < c->n_free; i++) assert_int_equal(c->key_of[c->free[i]], -1);
    for (int32_t i = 0; i < c->n_free; i++) assert_in_range(c->free[i], 0, c->n_open - 1);
    for (int32_t s = c->n_open; s < c->n_slots; s++) assert_int_equal(c->key_of[s], -1);
}

/* ---- the slow model ---- */

typedef struct recency {
    int64_t keys[MOST]; /* the one used last first */
    int n, room;
    int64_t hits, misses;
} recency;

static int position(const recency *r, int64_t key)
{
    for (int i = 0; i < r->n; i++)
        if (r->keys[i] == key) return i;
    return -1;
}

static void use(recency *r, int64_t key)
{
    int at = position(r, key);
    if (at < 0) {
        if (r->n < r->room) r->n++;
        at = r->n - 1; /* the last one falls out */
    }
    memmove(r->keys + 1, r->keys, (size_t)at * sizeof *r->keys);
    r->keys[0] = key;
}

static void use_all(recency *r, int64_t first, const int32_t *ids, int64_t n)
{
    bool hit[MOST];
    for (int64_t i = 0; i < n; i++) hit[i] = position(r, first + ids[i]) >= 0;
    for (int64_t i = 0; i < n; i++)
        if (hit[i]) use(r, first + ids[i]), r->hits++;
    for (int64_t i = 0; i < n; i++)
        if (!hit[i]) use(r, first + ids[i]), r->misses++;
}

/* n distinct ids, ascending. */
static int64_t choose(mox_rng *rng, int32_t *ids)
{
    int64_t n = 0;
    const uint64_t odds = 1 + mox_rng_u64(rng) % 4;
    for (int32_t i = 0; i < IDS; i++)
        if (mox_rng_u64(rng) % 4 < odds) ids[n++] = i;
    return n;
}

static void least_recently_used_goes(void **state)
{
    (void)state;
    static const int32_t sizes[] = {1, 2, 7, 12, 13, 30, 59, 60};
    mox_rng rng;
    mox_rng_init(&rng, 1);
    for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
        mox_expert_cache c = new_cache(sizes[j]);
        recency r = {.room = sizes[j]};
        for (int t = 0; t < 2000; t++) {
            int32_t ids[IDS], slots[IDS];
            bool hit[IDS];
            const int64_t n = choose(&rng, ids), first = (int64_t)(mox_rng_u64(&rng) % (KEYS / IDS)) * IDS;
            mox_expert_cache_begin(&c, first, ids, n, slots, hit);
            use_all(&r, first, ids, n);
            check_invariants(&c);
            for (int64_t k = 0; k < KEYS; k++) assert_int_equal(mox_expert_cache_find(&c, k) >= 0, position(&r, k) >= 0);
        }
        assert_int_equal(c.hits, r.hits);
        assert_int_equal(c.misses, r.misses);
        assert_true(c.hits > 0 && c.misses > 0);
        mox_expert_cache_deinit(&c);
    }
}

static void a_batch_keeps_what_it_has(void **state)
{
    (void)state;
    mox_expert_cache c = new_cache(4);
    int32_t slots[8];
    bool hit[8];
    mox_expert_cache_begin(&c, 0, (int32_t[]){0, 1, 2, 3}, 4, slots, hit);
    /* 0 was used longest ago, but is asked for: 1 and 2 go. */
    mox_expert_cache_begin(&c, 0, (int32_t[]){0, 4, 5}, 3, slots, hit);
    assert_true(hit[0] && !hit[1] && !hit[2]);
    assert_int_equal(mox_expert_cache_find(&c, 1), -1);
    assert_int_equal(mox_expert_cache_find(&c, 2), -1);
    assert_true(mox_expert_cache_find(&c, 3) >= 0);
    mox_expert_cache_deinit(&c);
}

static void experts_share_slots_when_there_are_too_few(void **state)
{
    (void)state;
    mox_expert_cache c = new_cache(2);
    int32_t slots[6];
    bool hit[6];
    mox_expert_cache_begin(&c, 0, (int32_t[]){1, 2, 3, 4, 5}, 5, slots, hit);
    static const int32_t expected[] = {0, 1, 0, 1, 0};
    assert_memory_equal(slots, expected, sizeof expected);
    assert_int_equal(mox_expert_cache_find(&c, 5), 0);
    assert_int_equal(mox_expert_cache_find(&c, 4), 1);
    mox_expert_cache_deinit(&c);
}

/* Slots are closed and opened at random: nothing goes to a closed one, and what was in the
 * others stays there. */
static void closed_slots_are_not_used(void **state)
{
    (void)state;
    enum { SLOTS = 30 };
    mox_rng rng;
    mox_rng_init(&rng, 2);
    mox_expert_cache c = new_cache(SLOTS);
    for (int t = 0; t < 5000; t++) {
        int32_t ids[IDS], slots[IDS];
        int64_t before[SLOTS];
        bool hit[IDS];
        const int32_t n_open = 1 + (int32_t)(mox_rng_u64(&rng) % SLOTS);
        memcpy(before, c.key_of, sizeof before);
        mox_expert_cache_resize(&c, n_open);
        assert_int_equal(c.n_open, n_open);
        check_invariants(&c);
        for (int32_t s = 0; s < c.n_open; s++) assert_int_equal(c.key_of[s], before[s]);
        const int64_t n = choose(&rng, ids);
        mox_expert_cache_begin(&c, (int64_t)(mox_rng_u64(&rng) % (KEYS / IDS)) * IDS, ids, n, slots, hit);
        for (int64_t i = 0; i < n; i++) assert_in_range(slots[i], 0, c.n_open - 1);
        check_invariants(&c);
    }
    assert_true(c.hits > 0 && c.misses > 0);
    mox_expert_cache_deinit(&c);
}

/* What nobody has asked for takes no slot of the last batch, and none that was taken since. */
static void keys_ahead_take_what_is_not_held(void **state)
{
    (void)state;
    mox_expert_cache c = new_cache(4);
    int32_t slots[4];
    bool hit[4];
    mox_expert_cache_begin(&c, 0, (int32_t[]){0, 1}, 2, slots, hit);
    assert_int_equal(mox_expert_cache_take(&c, 20), 2); /* free */
    assert_int_equal(mox_expert_cache_take(&c, 21), 3);
    assert_int_equal(mox_expert_cache_take(&c, 22), -1); /* all are held */
    check_invariants(&c);
    mox_expert_cache_drop(&c, 21);
    check_invariants(&c);
    assert_int_equal(mox_expert_cache_find(&c, 21), -1);
    assert_int_equal(mox_expert_cache_take(&c, 23), 3);
    assert_true(c.hits == 0 && c.misses == 2); /* nobody asked for those */
    mox_expert_cache_begin(&c, 20, (int32_t[]){0, 3, 4}, 3, slots, hit);
    assert_true(hit[0] && hit[1] && !hit[2] && slots[2] == 0);
    assert_int_equal(mox_expert_cache_take(&c, 30), 1); /* held by the batch before, no more */
    assert_int_equal(mox_expert_cache_take(&c, 31), -1);
    mox_expert_cache_begin(&c, 20, (int32_t[]){0, 3, 4, 5}, 4, slots, hit);
    assert_int_equal(mox_expert_cache_take(&c, 32), -1);
    assert_int_equal(mox_expert_cache_find(&c, 32), -1);
    check_invariants(&c);
    mox_expert_cache_deinit(&c);
}

/* A second index that is told what happens to the first has the same in it. */

typedef struct follower {
    mox_expert_cache cache;
    int n[4];
} follower;

static void follow(void *user, mox_trace_kind what, int64_t first, const int32_t *ids, int64_t n)
{
    follower *f = user;
    int32_t slots[IDS];
    bool hit[IDS];
    f->n[what]++;
    if (what == MOX_TRACE_BATCH) mox_expert_cache_begin(&f->cache, first, ids, n, slots, hit);
    else if (what == MOX_TRACE_SLOTS) mox_expert_cache_resize(&f->cache, (int32_t)n);
    else if (what == MOX_TRACE_AHEAD) (void)mox_expert_cache_take(&f->cache, first + ids[0]);
    else mox_expert_cache_drop(&f->cache, first + ids[0]);
}

static void a_trace_says_everything(void **state)
{
    (void)state;
    mox_rng rng;
    mox_rng_init(&rng, 2);
    for (int32_t size = 1; size < 30; size += 7) {
        follower f = {.cache = new_cache(size)};
        mox_expert_cache c = new_cache(size);
        c.trace = follow;
        c.trace_user = &f;
        for (int t = 0; t < 6000; t++) {
            const int64_t key = (int64_t)(mox_rng_u64(&rng) % KEYS);
            int32_t ids[IDS], slots[IDS];
            bool hit[IDS];
            switch (mox_rng_u64(&rng) % 4) {
            case 0: mox_expert_cache_begin(&c, key / IDS * IDS, ids, choose(&rng, ids), slots, hit); break;
            case 1:
                if (mox_expert_cache_find(&c, key) < 0) (void)mox_expert_cache_take(&c, key);
                break;
            case 2:
                if (mox_rng_u64(&rng) % 8 == 0) mox_expert_cache_resize(&c, 1 + (int32_t)(mox_rng_u64(&rng) % (uint64_t)size));
                break;
            default:
                if (mox_expert_cache_find(&c, key) >= 0) mox_expert_cache_drop(&c, key);
            }
            check_invariants(&c);
            assert_memory_equal(c.key_of, f.cache.key_of, (size_t)size * sizeof *c.key_of);
        }
        assert_true(c.hits == f.cache.hits && c.misses == f.cache.misses && c.hits > 0);
        assert_true(f.n[MOX_TRACE_BATCH] > 500 && (size == 1 || (f.n[MOX_TRACE_AHEAD] > 20 && f.n[MOX_TRACE_LOST] > 5)));
        assert_true(size == 1 || f.n[MOX_TRACE_SLOTS] > 20);
        mox_expert_cache_deinit(&c);
        mox_expert_cache_deinit(&f.cache);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(least_recently_used_goes),
        cmocka_unit_test(a_batch_keeps_what_it_has),
        cmocka_unit_test(closed_slots_are_not_used),
        cmocka_unit_test(experts_share_slots_when_there_are_too_few),
        cmocka_unit_test(keys_ahead_take_what_is_not_held),
        cmocka_unit_test(a_trace_says_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
