/* tests/unit/test_experts.c -- experts that are read when they are needed: the same bytes come
 * out as from mapped files, whatever is there, in however few slots, and whatever goes wrong.
 *
 * Also built with the thread sanitizer. */
#include "runtime/context.h"

#include "base/alloc.h"
#include "model/dense_load.h"
#include "moxie/tools.h"
#include "runtime/expert_cache.h"
#include "runtime/expert_place.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define DENSE_MODEL SOURCE_ROOT "/tests/data/models/demo-qwen3"
static const char *const model_dirs[] = {SOURCE_ROOT "/models/demo", SOURCE_ROOT "/tests/data/models/demo-qwen3-moe",
                                         SOURCE_ROOT "/tests/data/models/demo-deepseek-v3"};
enum { N_MODELS = sizeof model_dirs / sizeof *model_dirs, V = 2048 };
#ifdef __SANITIZE_THREAD__
enum { PROMPT = 40, DECODE = 4 }; /* threads meet in the same ways, and it takes minutes less */
#else
enum { PROMPT = 300, DECODE = 32 };
#endif

static int32_t tokens[PROMPT + DECODE];
static float (*want)[DECODE + 1][V]; /* [N_MODELS]: logits of the last token of the prompt and of each that follows */
static float (*got)[V];              /* [DECODE + 1] */
static mox_model *streamed[N_MODELS]; /* with dense weights loaded */
static mox_model *packed[N_MODELS];   /* the same models with every expert in one piece */
static char scratch[] = "/tmp/moxie-experts-XXXXXX";

static mox_model *open_model(const char *dir)
{
    mox_model *m;
    mox_err err;
    if (mox_model_open(&m, dir, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    return m;
}

static mox_context *new_context(const mox_model *m, mox_context_opts opts)
{
    mox_context *c;
    mox_err err;
    opts.n_ctx = PROMPT + DECODE;
    if (opts.n_threads == 0) opts.n_threads = 2;
    if (mox_context_create(&c, m, &opts, &err) != MOX_OK) fail_msg("%s", err.msg);
    c->experts.pressure.root = "/nowhere"; /* what happens on this machine shall not show in counts */
    return c;
}

static mox_context *stream_context(const mox_model *m, int64_t n_slots, int readers, bool buffered)
{
    return new_context(m, (mox_context_opts){.expert_bytes = n_slots * mox_model_expert_slot_bytes(m), .n_readers = readers,
                                             .buffered = buffered});
}

static int64_t count_experts(const mox_model *m)
{
    int64_t n = 0;
    for (int64_t i = 0; i < m->dims.n_layers; i++) n += m->layers[i].experts ? m->n_experts : 0;
    return n;
}

/* The prompt and then token by token, in a fresh sequence, n_steps of it. */
static mox_status generate(mox_context *c, int n_steps, const mox_step_opts *opts, float (*out)[V], mox_err *err)
{
    mox_seq *s;
    mox_status status = mox_seq_create(&s, c, err);
    for (int i = 0; i < n_steps && status == MOX_OK; i++) {
        const mox_segment g = {.seq = s, .tokens = i == 0 ? tokens : tokens + PROMPT + i - 1, .n = i == 0 ? PROMPT : 1,
                               .want = MOX_WANT_LAST};
        status = mox_step(c, &g, 1, opts, err);
        if (status == MOX_OK) memcpy(out[i], mox_logits_row(c, 0), sizeof out[i]);
    }
    mox_seq_destroy(&s);
    return status;
}

static void assert_same(mox_context *c, int model, int n_steps)
{
    mox_err err;
    memset(got, 0, (DECODE + 1) * sizeof *got);
    if (generate(c, n_steps, NULL, got, &err) != MOX_OK) fail_msg("%s", err.msg);
    assert_memory_equal(got, want[model], (size_t)n_steps * sizeof *got);
}

static mox_model *open_dense(const char *dir)
{
    mox_err err;
    mox_model *m = open_model(dir);
    if (mox_model_load_dense(m, NULL, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    return m;
}

static int open_all(void **state)
{
    (void)state;
    if (!mkdtemp(scratch)) return -1;
    want = calloc(N_MODELS, sizeof *want);
    got = calloc(DECODE + 1, sizeof *got);
    for (int i = 0; i < PROMPT + DECODE; i++) tokens[i] = (i * 7919 + 13) % 1900;
    for (int i = 0; i < N_MODELS; i++) {
        mox_err err;
        mox_model *m = open_model(model_dirs[i]);
        mox_context *c = new_context(m, (mox_context_opts){0});
        if (generate(c, DECODE + 1, NULL, want[i], &err) != MOX_OK) fail_msg("%s", err.msg);
        mox_context_destroy(&c);
        mox_model_close(&m);
        streamed[i] = open_dense(model_dirs[i]);
        char dir[sizeof scratch + 16];
        (void)snprintf(dir, sizeof dir, "%s/%d", scratch, i);
        if (mox_pack(model_dirs[i], dir, NULL, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
        packed[i] = open_dense(dir);
    }
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    char command[sizeof scratch + 16];
    for (int i = 0; i < N_MODELS; i++) {
        mox_model_close(&streamed[i]);
        mox_model_close(&packed[i]);
    }
    free(want);
    free(got);
    (void)snprintf(command, sizeof command, "rm -r '%s'", scratch);
    return system(command);
}

/* ---- the same bytes ---- */

/* Any two of these meet: of one and many readers, through the page cache and around it, each time two of the four kinds. */
static void slots_readers_and_packing_do_not_show(void **state)
{
    (void)state;
    for (int t = 0; t < 2 * N_MODELS; t++) {
        const int i = t / 2;
        const mox_model *m = t % 2 ? packed[i] : streamed[i];
        const int64_t all = count_experts(m), slots[] = {all, all / 2, all / 10, 1};
        for (size_t j = 0; j < sizeof slots / sizeof *slots; j++) {
            for (int kind = 0; kind < 4; kind++) {
                if ((kind == 0 || kind == 3) != ((t + (int)j) % 2 == 0)) continue;
                mox_context *c = stream_context(m, slots[j], kind & 1 ? 16 : 1, kind & 2);
                mox_expert_stats s;
                assert_same(c, i, DECODE + 1);
                mox_context_get_expert_stats(c, &s);
                assert_int_equal(s.n_slots, slots[j]);
                assert_true(s.misses > 0 && s.bytes_read > 0 && (slots[j] < all || s.misses <= all));
                mox_context_destroy(&c);
            }
        }
    }
}

/* Experts that are streamed over a mapping which is still whole. */
static void dense_weights_may_stay_mapped(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        mox_model *m = open_model(model_dirs[i]);
        mox_context *c = stream_context(m, 7, 2, true);
        assert_same(c, i, 3);
        mox_context_destroy(&c);
        mox_model_close(&m);
    }
}

static void contexts_share_a_model(void **state)
{
    (void)state;
    mox_context *a = stream_context(streamed[0], 20, 4, false), *b = stream_context(streamed[0], 9, 4, true);
    for (int i = 0; i < 2; i++) {
        assert_same(a, 0, 2);
        assert_same(b, 0, 2);
    }
    mox_context_destroy(&a);
    mox_context_destroy(&b);
}

/* A second index that sees the same requests. */
typedef struct shadow {
    mox_expert_cache cache;
    int64_t n_experts;
    int32_t slots[1024];
    bool hit[1024];
    bool given; /* what is read ahead was taken by hand, and is only noted down */
    int64_t ahead[1024], n_ahead;
} shadow;

static void follow(void *user, mox_trace_kind what, int32_t layer, const int32_t *ids, int64_t n)
{
    shadow *s = user;
    const int64_t first = layer * s->n_experts;
    if (what == MOX_TRACE_BATCH) mox_expert_cache_begin(&s->cache, first, ids, n, s->slots, s->hit);
    else if (what == MOX_TRACE_LOST) mox_expert_cache_drop(&s->cache, first + ids[0]);
    else if (s->given) s->ahead[s->n_ahead++] = first + ids[0];
    else assert_true(mox_expert_cache_take(&s->cache, first + ids[0]) >= 0);
}

static void a_recorded_run_can_be_replayed(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        const mox_model *m = streamed[i];
        const int64_t all = count_experts(m), slots[] = {all / 2, all / 10, 3};
        for (size_t j = 0; j < sizeof slots / sizeof *slots; j++) {
            shadow s = {.n_experts = m->n_experts};
            mox_err err;
            mox_expert_stats stats;
            assert_int_equal(mox_expert_cache_init(&s.cache, m->dims.n_layers * m->n_experts, (int32_t)slots[j], mox_policy_find(NULL), &err),
                             MOX_OK);
            mox_context *c = new_context(m, (mox_context_opts){.expert_bytes = slots[j] * mox_model_expert_slot_bytes(m),
                                                               .n_readers = 16, .trace = follow, .trace_user = &s});
            assert_same(c, i, DECODE + 1);
            mox_context_get_expert_stats(c, &stats);
            assert_int_equal(stats.hits, s.cache.hits);
            assert_int_equal(stats.misses, s.cache.misses);
            mox_context_destroy(&c);
            mox_expert_cache_deinit(&s.cache);
        }
    }
}

/* ---- ahead ---- */

static mox_expert_stats run_prefetch(int model, int64_t n_slots, int n_steps, mox_context_opts opts)
{
    mox_expert_stats s;
    opts.expert_bytes = n_slots * mox_model_expert_slot_bytes(streamed[model]);
    mox_context *c = new_context(streamed[model], opts);
    assert_same(c, model, n_steps);
    mox_context_get_expert_stats(c, &s);
    mox_context_destroy(&c);
    return s;
}

/* In all ways with half of the slots; with others in one, which is another for each model. */
static void reading_ahead_changes_no_bytes(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        const int64_t all = count_experts(streamed[i]), slots[] = {all, all / 2, all / 5, 9, 1};
        for (size_t j = 0; j < sizeof slots / sizeof *slots; j++) {
            const mox_context_opts ways[] = {{.n_readers = 1}, {.n_readers = 16, .buffered = true},
                                             {.n_readers = 4, .uring = true, .read_bytes = 16384}};
            for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
                if (slots[j] != all / 2 && k != ((size_t)i + j) % 3) continue;
                const mox_expert_stats s = run_prefetch(i, slots[j], DECODE + 1, ways[k]);
                assert_true(s.guessed_right <= s.guessed && s.prefetched_used <= s.prefetched);
                if (slots[j] == all / 2) assert_true(s.prefetched > 0 && s.prefetched_used > 0 && s.guessed > 0);
                if (slots[j] == 1) assert_int_equal(s.prefetched, 0); /* the batch has the only one */
            }
            if (slots[j] != all / 2) continue;
            mox_context_opts off = ways[1];
            off.no_prefetch = true;
            const mox_expert_stats s = run_prefetch(i, slots[j], DECODE + 1, off);
            assert_true(s.prefetched == 0 && s.prefetched_used == 0 && s.guessed == 0);
        }
    }
}

/* A batch that needs nearly all experts reads none twice, though most are read before they are asked for. */
static void a_batch_reads_an_expert_once(void **state)
{
    (void)state;
    if (PROMPT < 300) skip(); /* it would not need enough of them */
    for (int i = 0; i < N_MODELS; i++) {
        const mox_model *m = streamed[i];
        const int64_t all = count_experts(m);
        int64_t bytes = 0;
        for (int64_t layer = 0; layer < m->dims.n_layers; layer++) {
            for (int64_t e = 0; m->layers[layer].experts && e < m->n_experts; e++) {
                mox_expert_place p;
                mox_expert_place_find(&m->layers[layer].experts[e], &p);
                for (int32_t k = 0; k < p.n_ranges; k++) bytes += p.ranges[k].bytes;
            }
        }
        const mox_expert_stats s = run_prefetch(i, all / 2, 1, (mox_context_opts){.n_readers = 3});
        const int n_batches = m->recurrent_floats && PROMPT > 64 ? 2 : 1; /* cut at the last multiple of 64 */
        assert_true(s.bytes_read <= n_batches * bytes);
        assert_true(s.hits + s.misses > all * 3 / 4);
        assert_true(s.prefetched > all / 2 && s.prefetched_used > s.prefetched * 3 / 4);
    }
}

/* ---- heat ---- */

typedef struct nth {
    atomic_int count;
    int from;
    atomic_int to; /* calls [from, to] fail, counted from 1 */
} nth;

static bool of_weights(const char *path, const char *what)
{
    const size_t n = strlen(path);
    return strcmp(what, "read") == 0 && n >= 12 && strcmp(path + n - 12, ".safetensors") == 0;
}

static int fail_reads(void *user, const char *path, const char *what)
{
    nth *f = user;
    if (!of_weights(path, what)) return 0;
    const int count = atomic_fetch_add(&f->count, 1) + 1;
    return count >= f->from && count <= f->to ? EIO : 0;
}

typedef struct first_step {
    int64_t hits, misses, warmed, warmed_used;
} first_step;

/* Logits of a context that begins with these experts, and what its first step after the prompt found. */
static first_step run_warm(int model, int64_t n_slots, const uint32_t *heat, const char *policy, uint32_t *heat_out)
{
    const mox_model *m = streamed[model];
    mox_expert_stats s;
    mox_err err;
    mox_seq *q;
    mox_context *c = new_context(m, (mox_context_opts){.expert_bytes = n_slots * mox_model_expert_slot_bytes(m), .heat = heat,
                                                       .expert_policy = policy, .n_readers = 3, .buffered = true,
                                                       .no_prefetch = true});
    assert_int_equal(mox_seq_create(&q, c, &err), MOX_OK);
    const mox_segment g = {.seq = q, .tokens = tokens, .n = 1, .want = MOX_WANT_LAST}; /* one token, before anything else */
    if (mox_step(c, &g, 1, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    mox_context_get_expert_stats(c, &s);
    const first_step first = {s.hits, s.misses, s.warmed, s.warmed_used};
    mox_seq_destroy(&q);
    assert_same(c, model, 5);
    if (heat_out) mox_context_get_heat(c, heat_out);
    mox_context_destroy(&c);
    return first;
}

static void heat_changes_hits_and_no_bytes(void **state)
{
    (void)state;
    static const char *const policies[] = {"lru", "lfu", "2q"};
    for (int i = 0; i < N_MODELS; i++) {
        const mox_model *m = streamed[i];
        const int64_t n = m->dims.n_layers * m->n_experts, all = count_experts(m), slots[] = {all, all / 2, all / 5, 3};
        uint32_t *heat = calloc((size_t)n, sizeof *heat), *odd = calloc((size_t)n, sizeof *odd);
        uint64_t sum = 0;
        const first_step cold = run_warm(i, all, NULL, NULL, heat);
        assert_true(cold.hits == 0 && cold.misses > 0 && cold.warmed == 0 && cold.warmed_used == 0);
        for (int64_t k = 0; k < n; k++) sum += heat[k];
        assert_true(sum > (uint64_t)cold.misses);
        for (int64_t k = 0; k < n; k++) odd[k] = (uint32_t)(k * 2654435761u) % 3 ? UINT32_MAX - (uint32_t)k : 0; /* also where there are none */
        for (size_t j = 0; j < sizeof slots / sizeof *slots; j++) {
            const char *policy = policies[j % 3];
            const first_step warm = run_warm(i, slots[j], heat, policy, NULL), again = run_warm(i, slots[j], heat, policy, NULL);
            assert_memory_equal(&warm.hits, &again.hits, 2 * sizeof warm.hits); /* however fast the disk was */
            assert_int_equal(warm.hits + warm.misses, cold.misses);
            assert_true(warm.warmed <= slots[j] && warm.warmed_used <= warm.warmed && warm.warmed_used <= warm.hits);
            if (slots[j] == all) assert_true(warm.misses == 0 && warm.warmed_used == warm.hits);
            else if (slots[j] > 3) assert_true(warm.hits > 0);
            (void)run_warm(i, slots[j], odd, policy, NULL);
        }
        free(heat);
        free(odd);
    }
}

static void the_hottest_come_first(void **state)
{
    (void)state;
    const mox_model *m = streamed[0];
    const int64_t n = m->dims.n_layers * m->n_experts;
    uint32_t *heat = calloc((size_t)n, sizeof *heat);
    for (int64_t k = 0; k < n; k++) heat[k] = (uint32_t)(k % 5 == 0 ? 100 + k : k % 7 == 0);
    const int64_t hottest = (n - 1) / 5 * 5;
    for (int64_t slots = 1; slots <= n / 5; slots += 12) {
        /* An index that gets them by hand, the hottest last, finds the same as the store. */
        mox_expert_cache c;
        assert_int_equal(mox_expert_cache_init(&c, n, (int32_t)slots, mox_policy_find(NULL), NULL), MOX_OK);
        for (int64_t k = hottest - 5 * (slots - 1); k <= hottest; k += 5) (void)mox_expert_cache_take(&c, k);
        shadow f = {.cache = c, .n_experts = m->n_experts, .given = true};
        mox_expert_stats s;
        mox_context *x = new_context(m, (mox_context_opts){.expert_bytes = slots * mox_model_expert_slot_bytes(m), .heat = heat,
                                                           .no_prefetch = true, .trace = follow, .trace_user = &f});
        assert_same(x, 0, 3);
        mox_context_get_expert_stats(x, &s);
        assert_int_equal(s.hits, f.cache.hits);
        assert_int_equal(s.misses, f.cache.misses);
        assert_int_equal(f.n_ahead, slots); /* told as they were taken, the hottest last */
        for (int64_t k = 0; k < slots; k++) assert_int_equal(f.ahead[k], hottest - 5 * (slots - 1 - k));
        mox_context_destroy(&x);
        mox_expert_cache_deinit(&f.cache);
    }
    free(heat);
}

/* Reads ahead that fail, or do not end, cost nothing but themselves. */
static void a_disk_that_fails_ahead_is_asked_again(void **state)
{
    (void)state;
    const mox_model *m = streamed[0];
    const int64_t n = m->dims.n_layers * m->n_experts;
    uint32_t *heat = calloc((size_t)n, sizeof *heat);
    for (int64_t k = 0; k < n; k++) heat[k] = 1 + (uint32_t)k;
    for (int i = 0; i < 3; i++) {
        mox_expert_stats s;
        nth f = {.from = 1, .to = 1 << 30};
        mox_io_set_hook(fail_reads, &f);
        mox_context *c = new_context(m, (mox_context_opts){.expert_bytes = 20 * mox_model_expert_slot_bytes(m), .heat = heat,
                                                           .n_readers = 2, .buffered = true});
        while (i < 2 && atomic_load(&f.count) < (i == 0 ? 1 : 3 * 20)) (void)usleep(1000);
        atomic_store(&f.to, 0); /* the disk is well again */
        if (i == 2) { /* closed at once */
            mox_context_destroy(&c);
            mox_io_set_hook(NULL, NULL);
            continue;
        }
        assert_same(c, 0, 3); /* also where it waited for one of those */
        mox_context_get_expert_stats(c, &s);
        assert_true(s.misses > 0);
        mox_context_destroy(&c);
        mox_io_set_hook(NULL, NULL);
    }
    free(heat);
}

/* ---- memory ---- */

static int count_allocation(void *user, size_t bytes)
{
    (void)bytes;
    ++*(int *)user;
    return 1;
}

static void steps_allocate_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        int n = 0;
        mox_context *c = stream_context(streamed[i], 11, 4, false);
        mox_alloc_set_hook(count_allocation, &n);
        assert_same(c, i, 4);
        mox_alloc_set_hook(NULL, NULL);
        assert_int_equal(n, 0);
        mox_context_destroy(&c);
    }
}

/* Every byte of the files that is dense is in memory, and every other byte is not. */
static void loading_takes_dense_weights_only(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        const mox_tensors *t = &streamed[i]->tensors;
        int64_t dense = 0, pages;
        for (int64_t j = 0; j < t->n_tensors; j++) {
            const mox_extent *e = &t->tensors[j].extent;
            const uint8_t *memory = (const uint8_t *)t->files[e->file].map + e->offset;
            uint8_t *bytes = calloc(1, (size_t)e->bytes);
            if (streamed[i]->tensor_use[j] == MOX_USED_DENSE) {
                assert_int_equal(mox_file_read_at(&t->files[e->file], e->offset, bytes, (size_t)e->bytes, NULL), MOX_OK);
                dense += e->bytes;
            } else {
                assert_int_equal(streamed[i]->tensor_use[j], MOX_USED_EXPERT);
            }
            assert_memory_equal(memory, bytes, (size_t)e->bytes);
            free(bytes);
        }
        const mox_inspection *r = &streamed[i]->report;
        assert_int_equal(dense, r->bytes_total - r->bytes_experts);
        assert_int_equal(mox_dense_bytes(streamed[i], &pages, NULL), MOX_OK);
        assert_true(pages >= dense && pages % 4096 == 0);
    }
}

static int fail_allocation(void *user, size_t bytes)
{
    (void)bytes;
    nth *f = user;
    return atomic_fetch_add(&f->count, 1) + 1 != f->from;
}

static void a_failed_load_changes_nothing(void **state)
{
    (void)state;
    mox_err err;
    for (int kind = 0; kind < 2; kind++) {
        for (int at = 1;; at++) {
            mox_model *m = open_model(model_dirs[1]);
            nth f = {.from = at, .to = at};
            if (kind == 0) mox_io_set_hook(fail_reads, &f);
            else mox_alloc_set_hook(fail_allocation, &f);
            const mox_status status = mox_model_load_dense(m, NULL, NULL, &err);
            mox_io_set_hook(NULL, NULL);
            mox_alloc_set_hook(NULL, NULL);
            mox_context *c = status == MOX_OK ? stream_context(m, 5, 2, true) : new_context(m, (mox_context_opts){0});
            if (at == 1 || status == MOX_OK) assert_same(c, 1, 1);
            mox_context_destroy(&c);
            mox_model_close(&m);
            if (status == MOX_OK) {
                assert_true(at > 1); /* something did fail */
                break;
            }
            assert_int_equal(status, kind == 0 ? MOX_E_IO : MOX_E_MEMORY);
        }
    }
}

static mox_status try_context(const mox_model *m, int64_t bytes, mox_err *err)
{
    mox_context *c;
    const mox_status status = mox_context_create(&c, m, &(mox_context_opts){.n_ctx = 64, .expert_bytes = bytes}, err);
    mox_context_destroy(&c);
    return status;
}

static void what_cannot_work_is_refused(void **state)
{
    (void)state;
    mox_err err;
    const int64_t slot = mox_model_expert_slot_bytes(streamed[0]);
    assert_true(slot > 0 && slot % MOX_READ_ALIGN == 0);
    assert_int_equal(try_context(streamed[0], 0, &err), MOX_E_ARG); /* its experts are nowhere */
    assert_non_null(strstr(err.msg, "expert_bytes"));
    assert_int_equal(try_context(streamed[0], -1, &err), MOX_E_ARG);
    assert_int_equal(try_context(streamed[0], slot - 1, &err), MOX_E_FULL);
    assert_int_equal(try_context(streamed[0], slot, &err), MOX_OK);
    mox_model *m = open_model(DENSE_MODEL);
    assert_int_equal(mox_model_expert_slot_bytes(m), 0);
    assert_int_equal(try_context(m, slot, &err), MOX_E_ARG);
    assert_non_null(strstr(err.msg, "no routed experts"));
    assert_int_equal(mox_model_load_dense(m, NULL, NULL, &err), MOX_OK); /* all of it, then */
    assert_int_equal(try_context(m, 0, &err), MOX_OK);
    mox_model_close(&m);
    assert_int_equal(mox_model_open(&m, model_dirs[0], &(mox_model_opts){.weights = MOX_WEIGHTS_COPY}, &err), MOX_OK);
    assert_int_equal(mox_model_load_dense(m, NULL, NULL, &err), MOX_E_ARG);
    mox_model_close(&m);
}

static void every_failed_allocation_is_survived(void **state)
{
    (void)state;
    for (int at = 1;; at++) {
        mox_context *c;
        mox_err err;
        nth f = {.from = at};
        mox_alloc_set_hook(fail_allocation, &f);
        const mox_status status =
            mox_context_create(&c, streamed[1], &(mox_context_opts){.n_ctx = 64, .n_batch = 8, .n_threads = 1,
                                                                    .expert_bytes = 9 * mox_model_expert_slot_bytes(streamed[1])},
                               &err);
        mox_alloc_set_hook(NULL, NULL);
        mox_context_destroy(&c);
        if (status == MOX_OK && atomic_load(&f.count) < at) break;
        assert_true(status == MOX_E_MEMORY || status == MOX_OK);
    }
}

/* ---- failing disks ---- */

/* The generation ends with a sentence that names the file.  What is read ahead depends on how busy the machine is, so late
 * reads may be such as nobody needed: then it has the right bytes. */
static void assert_broken(mox_context *c, int model, int n_steps, bool is_late)
{
    mox_err err = {0};
    const mox_status status = generate(c, n_steps, NULL, got, &err);
    if (status == MOX_OK && is_late) {
        assert_memory_equal(got, want[model], (size_t)n_steps * sizeof *got);
        return;
    }
    assert_int_equal(status, MOX_E_IO);
    assert_non_null(strstr(err.msg, ".safetensors"));
}

/* Every read from the N-th on fails, and the same context gives the right bytes afterwards. */
static void a_broken_disk_fails_one_generation(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        enum { STEPS = 4 };
        nth f = {0};
        mox_io_set_hook(fail_reads, &f);
        mox_context *c = stream_context(streamed[i], 12, 3, true);
        assert_same(c, i, STEPS);
        mox_context_destroy(&c);
        const int total = atomic_load(&f.count);
        assert_true(total > 20);
        for (int at = 1; at <= total; at += 1 + total / 6) {
            nth g = {.from = at, .to = 1 << 30};
            mox_io_set_hook(fail_reads, &g);
            c = stream_context(streamed[i], 12, 3, true);
            assert_broken(c, i, STEPS, at > total / 2);
            atomic_store(&g.to, 0); /* the disk is well again; reads of the failed step may still be under way */
            assert_same(c, i, STEPS);
            mox_context_destroy(&c);
        }
        mox_io_set_hook(NULL, NULL);
    }
}

static void a_single_failed_read_is_repeated(void **state)
{
    (void)state;
    for (int at = 1; at < 200; at += 23) {
        nth f = {.from = at, .to = at};
        mox_io_set_hook(fail_reads, &f);
        mox_context *c = stream_context(streamed[0], 12, 3, true);
        assert_same(c, 0, 2);
        mox_context_destroy(&c);
        mox_io_set_hook(NULL, NULL);
        assert_true(atomic_load(&f.count) > at);
    }
}

/* Whichever read of a whole generation is the first to fail. */
static void any_read_may_be_the_last(void **state)
{
    (void)state;
    enum { STEPS = 3 };
    nth f = {0};
    mox_io_set_hook(fail_reads, &f);
    mox_context *c = stream_context(packed[1], 30, 1, false);
    assert_same(c, 1, STEPS);
    mox_context_destroy(&c);
    const int total = atomic_load(&f.count);
    assert_true(total > 40);
    c = stream_context(packed[1], 30, 1, false);
    for (int at = 1; at <= total; at++) {
        nth g = {.from = at, .to = 1 << 30};
        mox_io_set_hook(fail_reads, &g);
        mox_context *fresh = stream_context(packed[1], 30, 1, false); /* with nothing read yet */
        assert_broken(fresh, 1, STEPS, at > total / 2);
        mox_io_set_hook(NULL, NULL);
        if (at % 16 == 1) assert_same(fresh, 1, STEPS); /* the next run is unharmed, */
        if (at % 16 == 9) assert_same(c, 1, STEPS);     /* and so are its neighbours */
        mox_context_destroy(&fresh);
    }
    mox_context_destroy(&c);
}

/* Disks that do their work in odd ways: each kind says so every third read. */
typedef struct odd_disk {
    int says; /* errno, or -n: no more than n bytes come */
    unsigned stall_us;
    atomic_int count;
} odd_disk;

static int be_odd(void *user, const char *path, const char *what)
{
    odd_disk *d = user;
    if (!of_weights(path, what) || atomic_fetch_add(&d->count, 1) % 3 != 0) return 0;
    if (d->stall_us > 0) (void)usleep(d->stall_us);
    return d->says;
}

static void odd_disks_do_not_show(void **state)
{
    (void)state;
    const odd_disk kinds[] = {{.says = -5000}, {.says = -4096}, {.says = EINTR}, {.says = EAGAIN}, {.stall_us = 2000}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (int t = 0; t < 4; t++) {
            if ((t == 0 || t == 3) != (k % 2 == 0)) continue; /* packed and not, through the page cache and around it */
            odd_disk d = kinds[k];
            mox_context *c = stream_context(t & 1 ? packed[0] : streamed[0], 12, 1, t & 2); /* one reader: no fourth failure in a row */
            mox_io_set_hook(be_odd, &d);
            assert_same(c, 0, 2);
            mox_io_set_hook(NULL, NULL);
            assert_true(atomic_load(&d.count) > 20);
            mox_context_destroy(&c);
        }
    }
}

/* ---- files that change while they are in use ---- */

static char copied[sizeof scratch + 32]; /* the weights of a copy of a model */

static mox_model *open_copy(int i)
{
    char command[512];
    mox_err err;
    (void)snprintf(copied, sizeof copied, "%s/copy", scratch);
    (void)snprintf(command, sizeof command, "rm -rf '%s'; cp -r '%s' '%s'", copied, model_dirs[i], copied);
    assert_int_equal(system(command), 0);
    mox_model *m;
    if (mox_model_open(&m, copied, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    if (mox_model_load_dense(m, NULL, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    strcat(copied, "/model.safetensors");
    return m;
}

/* All bytes of one file to another, which stays the file that it is. */
static void write_again(const char *from, const char *to)
{
    char command[512];
    (void)snprintf(command, sizeof command, "cat '%s' > '%s'", from, to);
    assert_int_equal(system(command), 0);
}

static void a_file_may_be_unlinked_or_replaced(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++) {
        mox_model *m = open_copy(1);
        mox_context *c = stream_context(m, 12, 3, t & 1);
        assert_same(c, 1, 1);
        assert_int_equal(unlink(copied), 0);
        if (t & 2) write_again("/dev/null", copied);
        assert_same(c, 1, 3);
        mox_context_destroy(&c);
        c = stream_context(m, 12, 3, t & 1); /* whose second descriptor is another file's, or nobody's */
        assert_same(c, 1, 1);
        mox_context_destroy(&c);
        mox_model_close(&m);
    }
}

static void a_file_that_is_cut_short_fails_one_generation(void **state)
{
    (void)state;
    for (int buffered = 0; buffered < 2; buffered++) {
        mox_err err = {0};
        mox_model *m = open_copy(1);
        mox_context *c = stream_context(m, 12, 3, buffered);
        assert_same(c, 1, 1);
        assert_int_equal(truncate(copied, 100000), 0);
        assert_int_equal(generate(c, 3, NULL, got, &err), MOX_E_IO);
        assert_non_null(strstr(err.msg, copied));
        assert_non_null(strstr(err.msg, "cut short"));
        char original[256];
        (void)snprintf(original, sizeof original, "%s/model.safetensors", model_dirs[1]);
        write_again(original, copied);
        assert_same(c, 1, 3);
        mox_context_destroy(&c);
        mox_model_close(&m);
    }
}

static int refuse_direct(void *user, const char *path, const char *what)
{
    (void)path;
    return strcmp(what, "direct") == 0 ? *(const int *)user : 0;
}

static void count_warning(void *user, const char *sentence)
{
    ++*(int *)user;
    assert_non_null(strstr(sentence, "page cache"));
}

static void without_direct_reads_bytes_are_the_same(void **state)
{
    (void)state;
    static const int reasons[] = {EINVAL, EMFILE};
    for (int t = 0; t < 2; t++) {
        int n_warnings = 0, reason = reasons[t];
        mox_io_set_hook(refuse_direct, &reason);
        mox_context *c = new_context(packed[2], (mox_context_opts){.expert_bytes = 12 * mox_model_expert_slot_bytes(packed[2]),
                                                                   .warn = count_warning, .warn_user = &n_warnings});
        mox_io_set_hook(NULL, NULL);
        assert_same(c, 2, 3);
        assert_int_equal(n_warnings, 1);
        mox_context_destroy(&c);
    }
}

/* A disk that answers nobody while it is stalled, and may be broken when it answers again. */
typedef struct stall {
    atomic_bool on, broken;
    atomic_int n_waiting;
} stall;

static int stall_reads(void *user, const char *path, const char *what)
{
    stall *s = user;
    if (!of_weights(path, what)) return 0;
    atomic_fetch_add(&s->n_waiting, 1);
    while (atomic_load(&s->on)) (void)usleep(1000);
    return atomic_load(&s->broken) ? EIO : 0;
}

typedef struct canceller {
    stall *stall;
    mox_cancel cancel;
} canceller;

static void *cancel_when_stalled(void *user)
{
    canceller *c = user;
    while (atomic_load(&c->stall->n_waiting) == 0) (void)usleep(1000);
    (void)usleep(30000);
    mox_cancel_raise(&c->cancel);
    return NULL;
}

static void cancelling_does_not_wait_for_the_disk(void **state)
{
    (void)state;
    for (int t = 0; t < 2 * N_MODELS; t++) {
        mox_err err;
        const int i = t / 2;
        const bool broken = t % 2;
        stall s = {.on = true, .broken = broken};
        canceller k = {.stall = &s};
        pthread_t thread;
        mox_io_set_hook(stall_reads, &s);
        mox_context *c = stream_context(streamed[i], broken ? 40 : 6, 2, true);
        assert_int_equal(pthread_create(&thread, NULL, cancel_when_stalled, &k), 0);
        const mox_status status = generate(c, 1, &(mox_step_opts){.cancel = &k.cancel}, got, &err);
        pthread_join(thread, NULL);
        assert_int_equal(status, MOX_E_CANCELLED); /* although the disk would never have answered */
        atomic_store(&s.on, false); /* reads of the cancelled step are still under way now, in slots that others need */
        if (broken) (void)usleep(300000); /* and most of them fail when nobody waits for them any more */
        atomic_store(&s.broken, false);
        assert_same(c, i, 3);
        mox_context_destroy(&c);
        mox_io_set_hook(NULL, NULL);
    }
}

static void closing_takes_back_what_is_under_way(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        mox_err err;
        stall s = {.on = true};
        canceller k = {.stall = &s};
        pthread_t thread;
        mox_io_set_hook(stall_reads, &s);
        mox_context *c = stream_context(streamed[0], 30, 2, true);
        assert_int_equal(pthread_create(&thread, NULL, cancel_when_stalled, &k), 0);
        assert_int_equal(generate(c, 1, &(mox_step_opts){.cancel = &k.cancel}, got, &err), MOX_E_CANCELLED);
        pthread_join(thread, NULL);
        atomic_store(&s.on, false);
        mox_context_destroy(&c);
        mox_io_set_hook(NULL, NULL);
    }
}

/* ---- placement ---- */

static void check_part(const mox_expert_place *p, const mox_extent *e, int64_t at)
{
    int found = 0;
    for (int32_t i = 0; i < p->n_ranges; i++) {
        if (p->ranges[i].file != e->file || e->offset < p->ranges[i].offset ||
            e->offset + e->bytes > p->ranges[i].offset + p->ranges[i].bytes)
            continue;
        found++;
        assert_int_equal(at, p->ranges[i].at + p->ranges[i].offset % MOX_READ_ALIGN + e->offset - p->ranges[i].offset);
    }
    assert_int_equal(found, 1);
}

static void check_place(const mox_expert_weights *w, int64_t slot_bytes)
{
    mox_expert_place p;
    int64_t end = 0;
    mox_expert_place_find(w, &p);
    assert_true(p.n_ranges >= 1 && p.n_ranges <= MOX_EXPERT_PARTS && p.bytes <= slot_bytes);
    for (int32_t i = 0; i < p.n_ranges; i++) { /* on whole pages, one after the other */
        assert_int_equal(p.ranges[i].at % MOX_READ_ALIGN, 0);
        assert_int_equal(p.ranges[i].at, end);
        end += (p.ranges[i].offset % MOX_READ_ALIGN + p.ranges[i].bytes + MOX_READ_ALIGN - 1) / MOX_READ_ALIGN * MOX_READ_ALIGN;
    }
    assert_int_equal(p.bytes, end);
    const mox_weight *parts[] = {&w->gate, &w->up, &w->down};
    for (int i = 0; i < 3; i++) {
        check_part(&p, &parts[i]->w, p.part_at[3 * i]);
        const bool own = parts[i]->layout.kind == MOX_MAT_AFFINE;
        if (own) check_part(&p, &parts[i]->scales, p.part_at[3 * i + 1]);
        if (own) check_part(&p, &parts[i]->biases, p.part_at[3 * i + 2]);
        if (!own) assert_true(p.part_at[3 * i + 1] == -1 && p.part_at[3 * i + 2] == -1);
    }
}

static void every_expert_has_its_place(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++)
        for (int64_t layer = 0; layer < streamed[i]->dims.n_layers; layer++)
            for (int64_t x = 0; streamed[i]->layers[layer].experts && x < streamed[i]->n_experts; x++)
                check_place(&streamed[i]->layers[layer].experts[x], mox_model_expert_slot_bytes(streamed[i]));
}

static mox_weight made_up(mox_mat_kind kind, int32_t file, int64_t w, int64_t scales, int64_t biases, int64_t bytes)
{
    return (mox_weight){.layout = {.kind = kind}, .w = {file, w, bytes}, .scales = {file, scales, bytes / 8},
                        .biases = {file, biases, bytes / 8}};
}

static void neighbours_are_read_together(void **state)
{
    (void)state;
    mox_expert_place p;
    const mox_expert_weights together = {.gate = made_up(MOX_MAT_AFFINE, 0, 100, 8100, 9100, 8000),
                                         .up = made_up(MOX_MAT_AFFINE, 0, 10100, 18100, 19100, 8000),
                                         .down = made_up(MOX_MAT_AFFINE, 0, 20100, 28100, 29100, 8000)};
    mox_expert_place_find(&together, &p);
    assert_int_equal(p.n_ranges, 1);
    assert_int_equal(p.ranges[0].offset, 100);
    assert_int_equal(p.ranges[0].bytes, 30000);
    const mox_expert_weights apart = {.gate = made_up(MOX_MAT_AFFINE, 1, 1 << 20, 2 << 20, 3 << 20, 8000),
                                      .up = made_up(MOX_MAT_AFFINE, 0, 1 << 20, 2 << 20, 3 << 20, 8000),
                                      .down = made_up(MOX_MAT_AFFINE, 0, 4 << 20, (4 << 20) + 8000, (4 << 20) + 9000, 8000)};
    mox_expert_place_find(&apart, &p);
    assert_int_equal(p.n_ranges, 7);
    assert_int_equal(p.ranges[6].file, 1); /* in the order of the files, the later ones of file 0 before */
    check_place(&apart, p.bytes);
    mox_expert_weights grids = apart;
    grids.gate.layout.kind = grids.up.layout.kind = grids.down.layout.kind = MOX_MAT_FP8;
    mox_expert_place_find(&grids, &p);
    assert_int_equal(p.n_ranges, 3);
    check_place(&grids, p.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_readers_and_packing_do_not_show),
        cmocka_unit_test(dense_weights_may_stay_mapped),
        cmocka_unit_test(contexts_share_a_model),
        cmocka_unit_test(a_recorded_run_can_be_replayed),
        cmocka_unit_test(reading_ahead_changes_no_bytes),
        cmocka_unit_test(a_batch_reads_an_expert_once),
        cmocka_unit_test(heat_changes_hits_and_no_bytes),
        cmocka_unit_test(the_hottest_come_first),
        cmocka_unit_test(a_disk_that_fails_ahead_is_asked_again),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(loading_takes_dense_weights_only),
        cmocka_unit_test(a_failed_load_changes_nothing),
        cmocka_unit_test(what_cannot_work_is_refused),
        cmocka_unit_test(every_failed_allocation_is_survived),
        cmocka_unit_test(a_broken_disk_fails_one_generation),
        cmocka_unit_test(a_single_failed_read_is_repeated),
        cmocka_unit_test(any_read_may_be_the_last),
        cmocka_unit_test(odd_disks_do_not_show),
        cmocka_unit_test(a_file_may_be_unlinked_or_replaced),
        cmocka_unit_test(a_file_that_is_cut_short_fails_one_generation),
        cmocka_unit_test(without_direct_reads_bytes_are_the_same),
        cmocka_unit_test(cancelling_does_not_wait_for_the_disk),
        cmocka_unit_test(closing_takes_back_what_is_under_way),
        cmocka_unit_test(every_expert_has_its_place),
        cmocka_unit_test(neighbours_are_read_together),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
