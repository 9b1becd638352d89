/* tests/unit/test_replay.c -- traces: what was recorded comes out again, what is damaged is refused. */
#include "moxie/tools.h"
#include "runtime/context.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/rng.h"
#include "fail_nth.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROOM = 1 << 16 };

static char path[] = "/tmp/moxie-trace-XXXXXX";

static int make_file(void **state)
{
    (void)state;
    const int fd = mkstemp(path);
    return fd < 0 || close(fd) != 0;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static void write_file(const char *text, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static mox_status open_text(const char *text, mox_trace **t, mox_err *err)
{
    write_file(text, strlen(text));
    return mox_trace_open(t, path, err);
}

/* ---- a run by hand ---- */

/* Two of three layers have experts; with two slots: 0 and 1 of layer 0 miss, 1 of layer 2 misses
 * and drives out the older, then 0 of layer 0 misses again and the last line has one of each. */
static const char by_hand[] = "moxie-trace 2 layers=3 moe_layers=2 experts=4 active=2 slot_bytes=1000\n"
                              "0 0 1\n2 1\n0 0\n2 1 3\nend tokens=2 slots=2 policy=lru hits=1 misses=5\n";

static void a_run_by_hand(void **state)
{
    (void)state;
    mox_trace *t;
    mox_err err;
    mox_trace_info i;
    mox_replay r;
    if (open_text(by_hand, &t, &err) != MOX_OK) fail_msg("%s", err.msg);
    mox_trace_get_info(t, &i);
    assert_true(i.n_layers == 3 && i.n_experts == 4 && i.n_active == 2 && i.slot_bytes == 1000 && i.n_all == 8);
    assert_true(i.n_batches == 4 && i.n_requests == 6 && i.n_tokens == 2);
    assert_true(i.n_slots == 2 && i.hits == 1 && i.misses == 5);
    assert_string_equal(i.policy, "lru");
    assert_int_equal(mox_trace_replay(t, "lru", 2, &r, &err), MOX_OK);
    assert_true(r.hits == 1 && r.misses == 5 && r.n_slots == 2 && r.bytes_per_token == 2500.0);
    assert_int_equal(mox_trace_replay(t, "belady", 2, &r, &err), MOX_OK);
    assert_int_equal(r.misses, 4); /* 0 stays instead of 1 */
    assert_int_equal(mox_trace_replay(t, "2q", 1000, &r, &err), MOX_OK);
    assert_true(r.n_slots == 8 && r.misses == 4);
    assert_int_equal(mox_trace_replay(t, "fifo", 2, &r, &err), MOX_E_ARG);
    assert_non_null(strstr(err.msg, "fifo"));
    assert_int_equal(mox_trace_replay(t, "lru", 0, &r, &err), MOX_E_ARG);
    mox_trace_close(&t);
    assert_null(t);
}

/* With two slots: both experts of the first line are there before they are asked for, but one of them is lost,
 * so it misses; 3 of layer 2 comes instead of 0, which is older than 1, and is a hit; then 0 misses. */
static const char ahead_by_hand[] = "moxie-trace 2 layers=3 moe_layers=2 experts=4 active=2 slot_bytes=1000\n"
                                    "+ 0 0\n+ 0 1\n- 0 1\n0 0 1\n+ 2 2\n0 1\n+ 2 3\n2 3\n0 0\n"
                                    "end tokens=2 slots=2 policy=lru hits=3 misses=2\n";

static void a_run_with_reads_ahead(void **state)
{
    (void)state;
    mox_trace *t;
    mox_err err;
    mox_trace_info i;
    mox_replay r;
    if (open_text(ahead_by_hand, &t, &err) != MOX_OK) fail_msg("%s", err.msg);
    mox_trace_get_info(t, &i);
    assert_true(i.n_batches == 4 && i.n_requests == 5 && i.n_ahead == 4 && i.n_all == 8);
    assert_int_equal(mox_trace_replay(t, "lru", 2, &r, &err), MOX_OK);
    assert_true(r.hits == 3 && r.misses == 2);
    assert_int_equal(r.n_ahead, 3); /* 2 of layer 2 finds no slot that is not held */
    assert_true(r.bytes_per_token == 2500.0);
    assert_int_equal(mox_trace_replay(t, "lru", 1, &r, &err), MOX_OK);
    assert_true(r.hits == 2 && r.misses == 3 && r.n_ahead == 1); /* 0, which nothing else ahead displaces, and 1, brought by the line before */
    assert_int_equal(mox_trace_replay(t, "2q", 8, &r, &err), MOX_OK);
    assert_true(r.hits == 4 && r.misses == 1 && r.n_ahead == 4); /* the lost one misses everywhere */
    assert_int_equal(mox_trace_replay(t, "belady", 2, &r, &err), MOX_OK);
    assert_true(r.hits == 3 && r.misses == 2 && r.n_ahead == 3); /* 3 is asked for before 0 is */
    assert_int_equal(mox_trace_replay(t, "belady", 3, &r, &err), MOX_OK);
    assert_true(r.hits == 4 && r.misses == 1);
    mox_trace_close(&t);
}

/* ---- damage ---- */

static void damage_is_refused(void **state)
{
    (void)state;
#define HEAD "moxie-trace 2 layers=3 moe_layers=2 experts=4 active=2 slot_bytes=1000\n"
#define END "end tokens=2 slots=2 policy=lru hits=0 misses=2\n"
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "line 1"},
        {"\n", "line 1"},
        {"hello\n", "does not begin with moxie-trace"},
        {"moxie-trace 1 layers=3 moe_layers=2 experts=4 active=2 slot_bytes=1000\n0 1 2\n" END, "version"},
        {"moxie-trace 2 layers=0 moe_layers=0 experts=4 active=2 slot_bytes=1000\n0 1 2\n" END, "out of range"},
        {"moxie-trace 2 layers=3 moe_layers=2 experts=99999999999999999999 active=2 slot_bytes=1000\n" END, "out of range"},
        {"moxie-trace 2 layers=4096 moe_layers=1 experts=16384 active=2 slot_bytes=1000\n" END, "out of range"},
        {"moxie-trace 2 layers=3 moe_layers=4 experts=4 active=2 slot_bytes=1000\n0 1 2\n" END, "out of range"},
        {"moxie-trace 2 layers=3 moe_layers=1 experts=4 active=2 slot_bytes=1000\n0 1 2\nend tokens=2 slots=5 policy=lru hits=0 misses=2\n",
         "out of range"},
        {"moxie-trace 2 layers=3 moe_layers=2 experts=4 active=5 slot_bytes=1000\n0 1 2\n" END, "out of range"},
        {"moxie-trace 2 layers=3 moe_layers=2 experts=4 active=2 slot_bytes=-1\n0 1 2\n" END, "out of range"},
        {HEAD, "without an end"},
        {HEAD END, "nothing was traced"},
        {HEAD "0 1 2\n", "line 3: the file ends"},
        {HEAD "0 1 2", "line 2"},
        {HEAD "3 1 2\n" END, "line 2: it does not begin with a layer"},
        {HEAD "0 1 4\n" END, "line 2: an expert that"},
        {HEAD "0 1 -2\n" END, "line 2: an expert that"},
        {HEAD "0 2 1\n" END, "line 2: experts do not ascend"},
        {HEAD "0 1 1\n" END, "line 2: experts do not ascend"},
        {HEAD "0\n" END, "line 2: something else"},
        {HEAD "0 1  2\n" END, "line 2: an expert that"},
        {HEAD "0 1 2x\n" END, "line 2: something else"},
        {HEAD "0 1 2\n\n" END, "line 3"},
        {HEAD "+ 3 1\n0 1 2\n" END, "line 2: it does not begin with a layer"},
        {HEAD "- 0 4\n0 1 2\n" END, "line 2: an expert that"},
        {HEAD "+ 0 1 2\n0 1 2\n" END, "line 2: more than one"},
        {HEAD "+ 0\n0 1 2\n" END, "line 2: something else"},
        {HEAD "+0 1\n0 1 2\n" END, "line 2: it does not begin with a layer"},
        {HEAD "+ 0 1\n" END, "nothing was traced"},
        {HEAD "0 1 2\n" END "0 1\n", "something follows the end"},
        {HEAD "0 1 2\nend tokens=2 slots=2 policy=lru hits=1 misses=2\n", "hits and misses"},
        {HEAD "0 1 2\nend tokens=2 slots=0 policy=none hits=0 misses=2\n", "hits and misses"},
        {HEAD "0 1 2\nend tokens=2 slots=9 policy=lru hits=0 misses=2\n", "out of range"},
        {HEAD "0 1 2\nend tokens=2 slots=2 policy=belady hits=0 misses=2\n", "out of range"},
        {HEAD "0 1 2\nend tokens=2 slots=2 policy=none hits=0 misses=2\n", "out of range"},
        {HEAD "0 1 2\nend tokens=2 slots=2 policy=averyveryverylongname hits=0 misses=2\n", "out of range"},
        {HEAD "0 1 2\nend tokens=2 slots=2 policy=lru hits=0 misses=2", "follows the end"},
    };
    mox_trace *t;
    mox_err err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(open_text(cases[i].text, &t, &err), MOX_E_FORMAT);
        assert_null(t);
        if (!strstr(err.msg, cases[i].says) || !strstr(err.msg, path)) fail_msg("case %zu says: %s", i, err.msg);
    }
    assert_int_equal(open_text(HEAD "0 1 2\n" END, &t, &err), MOX_OK); /* what they are damaged forms of */
    mox_trace_close(&t);
    assert_int_equal(mox_trace_open(&t, "/nowhere/trace", &err), MOX_E_NOT_FOUND);
}

/* ---- runs of a model ---- */

typedef struct recording {
    char text[ROOM];
    size_t n;
    int64_t n_requests;
    int n_events[4]; /* of each kind */
    int n_failed, n_cancelled; /* steps */
} recording;

static void record(void *user, mox_trace_kind what, int32_t layer, const int32_t *ids, int64_t n)
{
    static const char *const begin[] = {[MOX_TRACE_BATCH] = "", [MOX_TRACE_AHEAD] = "+ ", [MOX_TRACE_LOST] = "- ",
                                        [MOX_TRACE_SLOTS] = "= "};
    recording *r = user;
    const bool slots = what == MOX_TRACE_SLOTS;
    r->n += (size_t)snprintf(r->text + r->n, ROOM - r->n, "%s%d", begin[what], slots ? (int)n : (int)layer);
    for (int64_t i = 0; i < n && !slots; i++) r->n += (size_t)snprintf(r->text + r->n, ROOM - r->n, " %d", (int)ids[i]);
    r->n += (size_t)snprintf(r->text + r->n, ROOM - r->n, "\n");
    assert_true(r->n < ROOM - 256);
    r->n_requests += what == MOX_TRACE_BATCH ? n : 0;
    r->n_events[what]++;
}

/* A disk that is broken again and again, for longer than a read is repeated, a user who loses patience, and others who
 * want the memory. */
typedef struct trouble {
    atomic_int n_reads;
    bool squeeze;
    mox_cancel cancel;
} trouble;

static int make_trouble(void *user, const char *file, const char *what)
{
    trouble *t = user;
    const size_t n = strlen(file);
    if (strcmp(what, "read") != 0 || n < 12 || strcmp(file + n - 12, ".safetensors") != 0) return 0;
    const int count = atomic_fetch_add(&t->n_reads, 1);
    if (count % 97 == 50) mox_cancel_raise(&t->cancel);
    return count / 48 % 4 == 3 ? EIO : 0;
}

/* A prompt and some tokens of the demo model, as a trace. */
static void record_run(recording *r, const char *policy, int64_t n_slots, bool prefetch, const uint32_t *heat, trouble *t)
{
    mox_model *m;
    mox_context *c;
    mox_seq *s;
    mox_err err;
    mox_inspection x;
    mox_expert_stats stats;
    if (mox_model_open(&m, SOURCE_ROOT "/models/demo", NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    mox_model_inspect(m, &x);
    *r = (recording){0};
    r->n = (size_t)snprintf(r->text, ROOM, "moxie-trace 2 layers=%lld moe_layers=%lld experts=%lld active=%lld slot_bytes=%lld\n",
                            (long long)x.n_layers, (long long)x.n_layers_moe, (long long)x.n_experts, (long long)x.n_experts_active, (long long)mox_model_expert_slot_bytes(m));
    if (t) mox_io_set_hook(make_trouble, t);
    const mox_context_opts opts = {.n_ctx = 128, .n_threads = 1, .expert_bytes = n_slots * mox_model_expert_slot_bytes(m),
                                   .n_readers = 3, .buffered = true, .expert_policy = policy, .no_prefetch = !prefetch, .heat = heat, .trace = record,
                                   .trace_user = r};
    if (mox_context_create(&c, m, &opts, &err) != MOX_OK) fail_msg("%s", err.msg);
    c->experts.pressure.root = "/nowhere"; /* what happens on this machine shall not show */
    assert_int_equal(mox_seq_create(&s, c, &err), MOX_OK);
    for (int i = 0; i < 24; i++) {
        int32_t tokens[8];
        for (int j = 0; j < 8; j++) tokens[j] = (i * 8 + j) * 7919 % 1900;
        const mox_segment g = {.seq = s, .tokens = tokens, .n = i % 12 == 0 ? 8 : 1, .want = MOX_WANT_LAST};
        if (t && t->squeeze) mox_expert_stream_resize(c->experts.stream, 1 + i * 37 % n_slots);
        const mox_status status = mox_step(c, &g, 1, t ? &(mox_step_opts){.cancel = &t->cancel} : NULL, &err);
        if (status != MOX_OK && !(t && (status == MOX_E_IO || status == MOX_E_CANCELLED))) fail_msg("%s", err.msg);
        r->n_failed += status == MOX_E_IO;
        r->n_cancelled += status == MOX_E_CANCELLED;
        if (t && status == MOX_E_CANCELLED) __atomic_store_n(&t->cancel.raised, 0, __ATOMIC_RELAXED);
    }
    mox_context_get_expert_stats(c, &stats);
    assert_string_equal(stats.policy, policy);
    assert_int_equal(stats.hits + stats.misses, r->n_requests);
    r->n += (size_t)snprintf(r->text + r->n, ROOM - r->n, "end tokens=31 slots=%lld policy=%s hits=%lld misses=%lld\n",
                             (long long)stats.n_slots, stats.policy, (long long)stats.hits, (long long)stats.misses);
    mox_seq_destroy(&s);
    mox_context_destroy(&c);
    mox_io_set_hook(NULL, NULL);
    mox_model_close(&m);
}

static const char *const names[] = {"lru", "lfu", "2q"};

/* Replays a recording as it was; its hits. */
static int64_t reproduce(const recording *r, int64_t n_slots)
{
    mox_trace *t;
    mox_err err;
    mox_trace_info info;
    mox_replay out;
    if (open_text(r->text, &t, &err) != MOX_OK) fail_msg("%s", err.msg);
    mox_trace_get_info(t, &info);
    assert_true(info.n_slots == n_slots && info.n_all == 128 && info.n_requests == r->n_requests);
    assert_int_equal(info.n_ahead, r->n_events[MOX_TRACE_AHEAD]);
    assert_int_equal(mox_trace_replay(t, info.policy, info.n_slots, &out, &err), MOX_OK);
    assert_int_equal(out.hits, info.hits);
    assert_int_equal(out.misses, info.misses);
    assert_int_equal(out.n_ahead, info.n_ahead);
    const int64_t hits = out.hits;
    assert_int_equal(mox_trace_replay(t, "belady", info.n_slots, &out, &err), MOX_OK);
    if (n_slots >= 16 && r->n_events[MOX_TRACE_SLOTS] == 0) assert_true(out.hits >= hits); /* a layer has that many experts */
    mox_trace_close(&t);
    return hits;
}

static void runs_are_reproduced(void **state)
{
    (void)state;
    static const int64_t sizes[] = {3, 13, 32, 64};
    static recording r;
    int64_t hits[3];
    for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
        for (int i = 0; i < 3; i++) {
            record_run(&r, names[i], sizes[j], true, NULL, NULL);
            if (sizes[j] >= 32) assert_true(r.n_events[MOX_TRACE_AHEAD] > 0);
            (void)reproduce(&r, sizes[j]);
            record_run(&r, names[i], sizes[j], false, NULL, NULL);
            assert_true(r.n_events[MOX_TRACE_AHEAD] == 0 && r.n_events[MOX_TRACE_LOST] == 0);
            hits[i] = reproduce(&r, sizes[j]);
        }
        if (sizes[j] == 64) assert_true(hits[0] != hits[1] && hits[0] != hits[2]); /* policies made a difference */
    }
}

/* Whatever is read ahead, fails or is given up, and however fast the disk is. */
static void runs_with_trouble_are_reproduced(void **state)
{
    (void)state;
    static const int64_t sizes[] = {3, 20, 100};
    static recording r;
    uint32_t heat[128];
    int n_failed = 0, n_cancelled = 0, n_lost = 0;
    for (int k = 0; k < 128; k++) heat[k] = (uint32_t)k * 2654435761u % 1000;
    for (int at = 0; at < 27; at++) {
        const int64_t n_slots = sizes[at / 3 % 3];
        trouble t = {.squeeze = at >= 18};
        const bool prefetch = at % 2;
        record_run(&r, names[at % 3], n_slots, prefetch, heat, at < 9 ? NULL : &t);
        if (prefetch) assert_true(r.n_events[MOX_TRACE_AHEAD] >= n_slots);
        else assert_int_equal(r.n_events[MOX_TRACE_AHEAD], n_slots);
        (void)reproduce(&r, n_slots);
        n_failed += r.n_failed;
        n_cancelled += r.n_cancelled;
        n_lost += r.n_events[MOX_TRACE_LOST];
        assert_int_equal(r.n_events[MOX_TRACE_SLOTS] > 2, t.squeeze); /* how many of them is a matter of when reads fail */
    }
    assert_true(n_failed > 0 && n_cancelled > 0 && n_lost > 0);
}

/* Random cuts and bytes: refused with a sentence, or a trace that can be replayed. */
static void damage_does_no_harm(void **state)
{
    (void)state;
    static recording r;
    static char text[ROOM];
    mox_rng rng;
    mox_rng_init(&rng, 5);
    record_run(&r, "lfu", 20, true, (const uint32_t[128]){[3] = 1, [100] = 2}, NULL);
    int n_refused = 0;
    for (int i = 0; i < 3000; i++) {
        size_t n = r.n;
        memcpy(text, r.text, n);
        if (i % 3 == 0) n = mox_rng_u64(&rng) % n;
        const int n_bytes = i % 3 == 0 ? 0 : 1 + (int)(mox_rng_u64(&rng) % 3);
        for (int j = 0; j < n_bytes; j++) {
            static const char likely[] = "0123456789 \n=-";
            const uint64_t x = mox_rng_u64(&rng);
            const size_t at = (size_t)(x >> 32) % (i % 2 ? n : 120); /* the first line is the one that sizes come from */
            text[at] = x % 4 ? likely[x / 4 % (sizeof likely - 1)] : (char)(x >> 16);
        }
        write_file(text, n);
        mox_trace *t;
        mox_err err = {0};
        mox_replay out;
        const mox_status status = mox_trace_open(&t, path, &err);
        if (i % 3 == 0) assert_int_equal(status, MOX_E_FORMAT); /* every cut is noticed */
        if (status != MOX_OK) {
            assert_true(status == MOX_E_FORMAT && !t && strstr(err.msg, "line "));
            n_refused++;
            continue;
        }
        assert_int_equal(mox_trace_replay(t, i % 2 ? "2q" : "belady", 1 + i % 40, &out, &err), MOX_OK);
        mox_trace_close(&t);
    }
    assert_true(n_refused > 1500 && n_refused < 3000);
}

static void failures_leave_nothing_behind(void **state)
{
    (void)state;
    for (int io = 0; io < 2; io++) {
        for (long at = 1;; at++) {
            mox_trace *t = NULL;
            mox_err err;
            mox_replay out;
            nth n = {.at = at};
            write_file(ahead_by_hand, sizeof ahead_by_hand - 1);
            if (io) mox_io_set_hook(fail_nth_io, &n);
            else mox_alloc_set_hook(fail_nth_alloc, &n);
            mox_status status = mox_trace_open(&t, path, &err);
            if (status == MOX_OK) status = mox_trace_replay(t, "belady", 2, &out, &err);
            mox_io_set_hook(NULL, NULL);
            mox_alloc_set_hook(NULL, NULL);
            mox_trace_close(&t);
            if (n.count < at) {
                assert_true(status == MOX_OK && at > 2);
                break;
            }
            assert_int_equal(status, io ? MOX_E_IO : MOX_E_MEMORY);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_by_hand),
        cmocka_unit_test(a_run_with_reads_ahead),
        cmocka_unit_test(damage_is_refused),
        cmocka_unit_test(runs_are_reproduced),
        cmocka_unit_test(runs_with_trouble_are_reproduced),
        cmocka_unit_test(damage_does_no_harm),
        cmocka_unit_test(failures_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
