/* tests/unit/test_synth.c -- synthetic checkpoints, and the counters and probes that
 * measurements stand on.
 *
 * Byte totals are held against those of the real models' 4-bit conversions.  What must
 * be loaded and run is shrunk in its widths; layer kinds, names and configuration keys
 * stay those of the real model. */
#include "tools/synth.h"

#include "base/alloc.h"
#include "base/file.h"
#include "runtime/context.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const struct {
    const char *name;
    int64_t total, experts; /* bytes of all tensors, and of the routed experts */
} real[] = {
    {"qwen3-30b-a3b", 17180913664, 16307453952},      {"qwen3-235b-a22b", 132265958400, 127741722624},
    {"qwen3-next-80b-a3b", 44844062464, 43486543872}, {"qwen3.5-35b-a3b", 19508789376, 18119393280},
    {"qwen3.5-397b-a17b", 223011784832, 217432719360}, {"deepseek-v3", 377606852608, 367823683584},
};
enum { N_REAL = sizeof real / sizeof *real, T = 8, VOCAB = 1000 };

static const int32_t prompt[T] = {1, 77, 500, 3, 999, 0, 250, 123};

/* ---- shapes ---- */

static void test_totals(void **state)
{
    (void)state;
    mox_err err;
    assert_int_equal(mox_synth_count(), N_REAL);
    for (int i = 0; i < N_REAL; i++) {
        int64_t bytes = 0, experts = 0;
        assert_string_equal(mox_synth_name(i), real[i].name);
        assert_int_equal(mox_synth_bytes(real[i].name, &bytes, &err), MOX_OK);
        assert_int_equal(bytes, real[i].total);
        mox_synth_spec s;
        mox_synth_plan p;
        assert_int_equal(mox_synth_parse(&s, real[i].name, &err), MOX_OK);
        assert_int_equal(mox_synth_plan_init(&p, &s, 5000000000, &err), MOX_OK);
        for (int64_t t = 0; t < p.n_tensors; t++)
            if (strstr(p.tensors[t].name, ".switch_mlp.")) experts += p.tensors[t].bytes;
        assert_int_equal(experts, real[i].experts);
        mox_synth_plan_deinit(&p);
    }
}

/* The headers of all files of the whole models pass the reader, and add up. */
static void test_headers(void **state)
{
    (void)state;
    for (int i = 0; i < N_REAL; i++) {
        mox_err err;
        mox_synth_spec s;
        mox_synth_plan p;
        assert_int_equal(mox_synth_parse(&s, real[i].name, &err), MOX_OK);
        assert_int_equal(mox_synth_plan_init(&p, &s, 5000000000, &err), MOX_OK);
        mox_tensors t = {0};
        for (int32_t f = 0; f < p.n_files; f++) {
            const mox_synth_file *file = &p.files[f];
            assert_true(file->bytes - file->header_bytes <= 5000000000 || file->bytes < 10000000000);
            const mox_status status = mox_safetensors_parse(&t, f, "header", file->header + 8, (size_t)file->header_bytes - 8,
                                                            file->header_bytes, file->bytes - file->header_bytes, &err);
            if (status != MOX_OK) fail_msg("%s: %s", real[i].name, err.msg);
        }
        int64_t bytes = 0;
        for (int64_t k = 0; k < t.n_tensors; k++) bytes += t.tensors[k].extent.bytes;
        assert_int_equal(bytes, real[i].total);
        assert_int_equal(t.n_tensors, p.n_tensors);
        mox_tensors_close(&t);
        mox_synth_plan_deinit(&p);
    }
}

static void test_names(void **state)
{
    (void)state;
    mox_err err;
    mox_synth_spec s;
    static const char *const bad[] = {"", "qwen3", "qwen3-30b-a3b:", "qwen3-30b-a3b:layers=", "qwen3-30b-a3b:layers=0",
                                      "qwen3-30b-a3b:layers=49", "qwen3-30b-a3b:layers=2x", "qwen3-30b-a3b:layers=-1",
                                      "qwen3-30b-a3b:layer=2", "qwen3-30b-a3bx", "qwen3-30b-a3b:layers= 2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memset(&err, 0, sizeof err);
        assert_int_equal(mox_synth_parse(&s, bad[i], &err), MOX_E_ARG);
        assert_true(strlen(err.msg) > 10);
    }
    assert_int_equal(mox_synth_parse(&s, "QWEN3-Next-80B-A3B:LAYERS=6", &err), MOX_OK);
    assert_int_equal(s.layers, 6);
    assert_true(mox_synth_is_full(&s, 3) && !mox_synth_is_full(&s, 2) && !mox_synth_is_full(&s, 4));
    /* 61 layers have 3 dense ones; shorter models keep one of experts while they can */
    static const int64_t dense[][2] = {{61, 3}, {4, 3}, {3, 2}, {2, 1}, {1, 1}};
    for (size_t i = 0; i < sizeof dense / sizeof *dense; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "deepseek-v3:layers=%d", (int)dense[i][0]);
        assert_int_equal(mox_synth_parse(&s, name, &err), MOX_OK);
        assert_int_equal(s.dense_layers, dense[i][1]);
    }
}

/* ---- models ---- */

static mox_synth_spec shrunk(const char *name, int layers)
{
    char text[64];
    mox_err err;
    mox_synth_spec s;
    (void)snprintf(text, sizeof text, "%s:layers=%d", name, layers);
    if (mox_synth_parse(&s, text, &err) != MOX_OK) fail_msg("%s", err.msg);
    s.vocab = VOCAB;
    s.dim = 512;
    s.experts = 16;
    s.expert_width = 128;
    if (s.shared_width) s.shared_width = 128;
    if (s.dense_width) s.dense_width = 256;
    s.heads = s.kind == MOX_SYNTH_DEEPSEEK ? 8 : 4;
    s.kv_heads = s.kind == MOX_SYNTH_DEEPSEEK ? 8 : 2;
    if (s.conv) s.k_heads = 2, s.v_heads = 4;
    if (s.q_rank) s.q_rank = 256, s.kv_rank = 128;
    return s;
}

static mox_model *open_in_memory(const mox_synth_spec *s, int threads)
{
    mox_model *m;
    mox_err err;
    if (mox_synth_open_spec(&m, s, &(mox_synth_opts){.n_threads = threads}, &err) != MOX_OK) fail_msg("%s: %s", s->name, err.msg);
    return m;
}

/* Logits of the last token of the prompt. */
static void logits_of(const mox_model *m, float out[VOCAB])
{
    mox_err err;
    mox_context *c;
    mox_seq *seq;
    if (mox_context_create(&c, m, &(mox_context_opts){.n_ctx = 64, .n_threads = 1}, &err) != MOX_OK) fail_msg("%s", err.msg);
    assert_int_equal(mox_seq_create(&seq, c, &err), MOX_OK);
    const mox_segment g = {.seq = seq, .tokens = prompt, .n = T, .want = MOX_WANT_LAST};
    if (mox_step(c, &g, 1, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    memcpy(out, mox_logits_row(c, 0), VOCAB * sizeof *out);
    mox_seq_destroy(&seq);
    mox_context_destroy(&c);
}

static char folder[] = "/tmp/moxie-synth-XXXXXX";

static void remove_folder(const char *dir)
{
    DIR *d = opendir(dir);
    if (!d) return;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[512];
        (void)snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.') (void)unlink(path);
    }
    closedir(d);
    (void)rmdir(dir);
}

static int count_files(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    if (!d) return 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* Every family, in memory and on disk: loads without a warning and gives the same,
 * sane logits. */
static void no_warning(void *user, const char *sentence) { fail_msg("%s: %s", (const char *)user, sentence); }

static void test_models(void **state)
{
    (void)state;
    for (int i = 0; i < N_REAL; i++) {
        const mox_synth_spec s = shrunk(real[i].name, 5);
        mox_model *m = open_in_memory(&s, 2), *from_disk;
        float a[VOCAB], b[VOCAB];
        logits_of(m, a);
        double squares = 0.0;
        for (int v = 0; v < VOCAB; v++) {
            assert_true(isfinite(a[v]));
            squares += (double)a[v] * (double)a[v];
        }
        const double deviation = sqrt(squares / VOCAB);
        if (deviation < 0.5 || deviation > 2.0) fail_msg("%s: logits have a deviation of %g", s.name, deviation);
        mox_err err;
        if (mox_synth_write_spec(&s, folder, &(mox_synth_opts){.n_threads = 1}, &err) != MOX_OK) fail_msg("%s", err.msg);
        const mox_model_opts opts = {.warn = no_warning, .warn_user = (void *)(uintptr_t)s.name};
        if (mox_model_open(&from_disk, folder, &opts, &err) != MOX_OK) fail_msg("%s", err.msg);
        logits_of(from_disk, b);
        assert_memory_equal(a, b, sizeof a);
        mox_inspection in_memory, on_disk;
        mox_model_inspect(m, &in_memory);
        mox_model_inspect(from_disk, &on_disk);
        assert_int_equal(in_memory.bytes_total, on_disk.bytes_total);
        assert_int_equal(in_memory.n_layers, 5);
        mox_model_close(&from_disk);
        mox_model_close(&m);
        remove_folder(folder);
    }
}

static void test_seed(void **state)
{
    (void)state;
    mox_synth_spec s = shrunk("qwen3-30b-a3b", 1);
    float logits[4][VOCAB];
    static const uint64_t seeds[4] = {5, 5, 6, 0};
    for (int i = 0; i < 4; i++) {
        s.seed = seeds[i];
        mox_model *m = open_in_memory(&s, 1 + i);
        logits_of(m, logits[i]);
        mox_model_close(&m);
    }
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
    assert_memory_not_equal(logits[0], logits[2], sizeof logits[0]);
    assert_memory_not_equal(logits[0], logits[3], sizeof logits[0]);
}

/* How much longer the longest router row is than the shortest, by its scales. */
static double spread_of_rows(double skew)
{
    mox_err err;
    mox_synth_plan p;
    mox_synth_spec s = shrunk("qwen3-30b-a3b", 1);
    s.skew = skew;
    s.experts = 128;
    assert_int_equal(mox_synth_plan_init(&p, &s, INT64_MAX, &err), MOX_OK);
    double low = INFINITY, high = 0.0;
    for (int64_t i = 0; i < p.n_tensors; i++) {
        const mox_synth_tensor *t = &p.tensors[i];
        if (!strstr(t->name, ".mlp.gate.scales")) continue;
        unsigned char *bytes = malloc((size_t)t->bytes);
        mox_synth_fill(t, NULL, 0, bytes, t->bytes);
        for (int64_t row = 0; row < t->shape[0]; row++) {
            double sum = 0.0;
            for (int64_t j = 0; j < t->shape[1]; j++)
                sum += (double)mox_load_as_f32(bytes, MOX_DT_BF16, row * t->shape[1] + j);
            low = fmin(low, sum);
            high = fmax(high, sum);
        }
        free(bytes);
    }
    mox_synth_plan_deinit(&p);
    return high / low;
}

static void test_skew(void **state)
{
    (void)state;
    assert_true(spread_of_rows(0.0) < 2.0); /* jitter of the groups alone */
    assert_true(spread_of_rows(1.0) > 8.0);
    mox_model *m;
    mox_err err;
    assert_int_equal(mox_model_open_synthetic(&m, "qwen3-30b-a3b:layers=1", &(mox_synth_opts){.router_skew = -1}, &err), MOX_E_ARG);
    assert_int_equal(mox_model_open_synthetic(&m, "qwen3-30b-a3b:layers=1", &(mox_synth_opts){.router_skew = NAN}, &err), MOX_E_ARG);
    assert_null(m);
}

/* Which experts the last step wanted, and how often each was wanted, by layer. */
enum { ROUTED_LAYERS = 4, ROUTED_EXPERTS = 64, ROUTED_TOKENS = 400 };
typedef struct routed {
    bool last[ROUTED_LAYERS][ROUTED_EXPERTS];
    int count[ROUTED_LAYERS][ROUTED_EXPERTS];
    int64_t again; /* wanted by a token and by the one before it */
} routed;

static void note_routing(void *user, mox_trace_kind what, int32_t layer, const int32_t *ids, int64_t n)
{
    routed *r = user;
    bool now[ROUTED_EXPERTS] = {0};
    assert_true(what == MOX_TRACE_BATCH && n == 8);
    for (int64_t i = 0; i < n; i++) {
        now[ids[i]] = true;
        r->count[layer][ids[i]]++;
        r->again += r->last[layer][ids[i]];
    }
    memcpy(r->last[layer], now, sizeof now);
}

static void route_random_tokens(double skew, routed *out)
{
    mox_err err;
    mox_context *c;
    mox_seq *seq;
    mox_synth_spec s = shrunk("qwen3-30b-a3b", ROUTED_LAYERS);
    s.experts = ROUTED_EXPERTS;
    s.skew = skew;
    mox_model *m = open_in_memory(&s, 2);
    *out = (routed){0};
    const mox_context_opts opts = {.n_ctx = ROUTED_TOKENS, .n_threads = 2, .trace = note_routing, .trace_user = out};
    if (mox_context_create(&c, m, &opts, &err) != MOX_OK) fail_msg("%s", err.msg);
    assert_int_equal(mox_seq_create(&seq, c, &err), MOX_OK);
    for (int i = 0; i < ROUTED_TOKENS; i++) {
        const int32_t token = (int32_t)((i * 7919 + i * i * 31) % VOCAB);
        if (mox_step(c, &(mox_segment){.seq = seq, .tokens = &token, .n = 1}, 1, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    }
    mox_seq_destroy(&seq);
    mox_context_destroy(&c);
    mox_model_close(&m);
}

static int most_first(const void *a, const void *b) { return *(const int *)b - *(const int *)a; }

/* Tokens are routed independently of each other, in the last layer as in the first; and as unevenly as asked. */
static void test_routing(void **state)
{
    (void)state;
    routed r;
    route_random_tokens(0.0, &r);
    const double by_chance = 8.0 * 8.0 / ROUTED_EXPERTS, steps = ROUTED_LAYERS * (ROUTED_TOKENS - 1.0);
    assert_true((double)r.again / steps < 1.3 * by_chance && (double)r.again / steps > 0.7 * by_chance);
    route_random_tokens(1.0, &r);
    const mox_popularity q = mox_popularity_of(ROUTED_EXPERTS, 8, 1.0);
    for (int layer = 0; layer < ROUTED_LAYERS; layer++) {
        qsort(r.count[layer], ROUTED_EXPERTS, sizeof r.count[layer][0], most_first);
        for (int from = 4; from < ROUTED_EXPERTS; from *= 2) { /* ranks 5 to 8, 9 to 16, ... */
            double seen = 0.0, expected = 0.0;
            for (int i = from; i < 2 * from; i++) {
                seen += r.count[layer][i];
                expected += mox_popularity_chance(&q, i + 1, 1.0) * ROUTED_TOKENS;
            }
            if (seen < 0.75 * expected || seen > 1.3 * expected)
                fail_msg("layer %d, ranks from %d: %g instead of %g", layer, from + 1, seen, expected);
        }
    }
}

/* ---- failures ---- */

static int n_until_failure;
static int fail_writes(void *user, const char *path, const char *what)
{
    (void)user;
    (void)path;
    return strcmp(what, "write") == 0 && n_until_failure-- <= 0 ? ENOSPC : 0;
}

/* A disk that is full after any number of writes leaves nothing behind. */
static void test_full_disk(void **state)
{
    (void)state;
    const mox_synth_spec s = shrunk("qwen3-30b-a3b", 1);
    mox_err err;
    int n_failed = 0;
    for (int after = 0; after < 100; after++) {
        n_until_failure = after;
        mox_io_set_hook(fail_writes, NULL);
        const mox_status status = mox_synth_write_spec(&s, folder, &(mox_synth_opts){.n_threads = 1}, &err);
        mox_io_set_hook(NULL, NULL);
        if (status == MOX_OK) break;
        n_failed++;
        assert_int_equal(status, MOX_E_IO);
        assert_non_null(strstr(err.msg, folder));
        assert_int_equal(count_files(folder), 0);
    }
    assert_true(n_failed >= 8);
    assert_int_equal(count_files(folder), 4);
    /* and a folder that holds something is refused */
    assert_int_equal(mox_synth_write_spec(&s, folder, &(mox_synth_opts){0}, &err), MOX_E_ARG);
    assert_int_equal(count_files(folder), 4);
    remove_folder(folder);
}

static int allow_some(void *user, size_t bytes)
{
    (void)bytes;
    int *left = user;
    return (*left)-- > 0;
}

static void test_memory_runs_out(void **state)
{
    (void)state;
    const mox_synth_spec s = shrunk("qwen3-30b-a3b", 1);
    mox_err err;
    bool opened = false;
    for (int n = 0; n < 2000 && !opened; n++) {
        int left = n;
        mox_model *m;
        mox_alloc_set_hook(allow_some, &left);
        const mox_status status = mox_synth_open_spec(&m, &s, &(mox_synth_opts){.n_threads = 1}, &err);
        mox_alloc_set_hook(NULL, NULL);
        opened = status == MOX_OK;
        if (!opened) assert_int_equal(status, MOX_E_MEMORY);
        if (!opened) assert_null(m);
        mox_model_close(&m);
        if (n > 40) n += 6; /* a sample of the many names */
    }
    assert_true(opened);
}

static void test_cancel(void **state)
{
    (void)state;
    const mox_synth_spec s = shrunk("qwen3-30b-a3b", 1);
    const mox_cancel cancel = {.raised = 1};
    mox_model *m;
    mox_err err;
    assert_int_equal(mox_synth_open_spec(&m, &s, &(mox_synth_opts){.cancel = &cancel}, &err), MOX_E_CANCELLED);
    assert_null(m);
    assert_int_equal(mox_synth_write_spec(&s, folder, &(mox_synth_opts){.cancel = &cancel}, &err), MOX_E_CANCELLED);
    assert_int_equal(count_files(folder), 0);
    remove_folder(folder);
}

/* ---- counting ---- */

static mox_work work_of_step(mox_context *c, mox_seq *s, int64_t n)
{
    mox_err err;
    mox_work before, after;
    const mox_segment g = {.seq = s, .tokens = prompt, .n = n, .want = MOX_WANT_LAST};
    mox_context_get_work(c, &before);
    if (mox_step(c, &g, 1, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    mox_context_get_work(c, &after);
    return (mox_work){.tokens = after.tokens - before.tokens, .batches = after.batches - before.batches,
                      .weight_bytes = after.weight_bytes - before.weight_bytes,
                      .cache_bytes = after.cache_bytes - before.cache_bytes, .macs = after.macs - before.macs};
}

/* One token at a depth, against what its model's tensors add up to. */
static void test_work(void **state)
{
    (void)state;
    enum { DEPTH = 100 };
    for (int i = 0; i < N_REAL; i++) {
        const mox_synth_spec s = shrunk(real[i].name, 5);
        mox_err err;
        mox_synth_plan p;
        assert_int_equal(mox_synth_plan_init(&p, &s, INT64_MAX, &err), MOX_OK);
        int64_t bytes = 0, macs = 0;
        for (int64_t k = 0; k < p.n_tensors; k++) {
            const mox_synth_tensor *t = &p.tensors[k];
            int64_t used = t->bytes;
            if (strstr(t->name, "embed_tokens")) used = t->bytes / s.vocab;
            if (strstr(t->name, "switch_mlp")) used = t->bytes / s.experts * s.active;
            bytes += used;
            if (strstr(t->name, "embed_tokens") || strstr(t->name, "scales") || strstr(t->name, "biases")) continue;
            macs += t->dtype == MOX_DT_U32 ? used * 8 / (strstr(t->name, "mlp.gate.") || strstr(t->name, "shared_expert_gate") ? 8 : 4)
                                           : used / mox_dtype_bytes(t->dtype);
        }
        mox_synth_plan_deinit(&p);
        mox_model *m = open_in_memory(&s, 1);
        mox_inspection in;
        mox_model_inspect(m, &in);
        mox_context *c;
        mox_seq *seq;
        assert_int_equal(mox_context_create(&c, m, &(mox_context_opts){.n_ctx = 256, .n_threads = 1}, &err), MOX_OK);
        assert_int_equal(mox_seq_create(&seq, c, &err), MOX_OK);
        const mox_work w = work_of_step(c, seq, 1);
        assert_int_equal(w.tokens, 1);
        assert_int_equal(w.batches, 1);
        assert_int_equal(w.weight_bytes, bytes);
        assert_int_equal(w.cache_bytes, in.kv_bytes_per_token + in.state_bytes);
        int64_t per_position = 0; /* multiply-adds against one cached token */
        if (s.kind == MOX_SYNTH_DEEPSEEK) per_position = s.layers * s.heads * (s.kv_rank + s.rope + s.kv_rank);
        else for (int64_t l = 0; l < s.layers; l++) per_position += mox_synth_is_full(&s, l) ? 2 * s.heads * s.head_dim : 0;
        int64_t states = 0;
        for (int64_t l = 0; l < s.layers; l++) states += mox_synth_is_full(&s, l) ? 0 : 3 * s.v_heads * s.k_dim * s.v_dim;
        assert_int_equal(w.macs, macs + per_position + states);

        mox_seq_reset(seq);
        assert_int_equal(mox_seq_skip(seq, DEPTH, &err), MOX_OK);
        assert_int_equal(mox_seq_length(seq), DEPTH);
        const mox_work deep = work_of_step(c, seq, 1);
        assert_int_equal(deep.cache_bytes, (DEPTH + 1) * in.kv_bytes_per_token + in.state_bytes);
        assert_int_equal(deep.macs - w.macs, DEPTH * per_position);
        for (int v = 0; v < VOCAB; v++) assert_true(isfinite(mox_logits_row(c, 0)[v]));
        assert_int_equal(mox_seq_cut(seq, DEPTH, &err), MOX_OK); /* also where there is recurrent state */
        assert_int_equal(mox_seq_skip(seq, 256 - DEPTH + 1, &err), MOX_E_FULL);
        assert_int_equal(mox_seq_length(seq), DEPTH);

        /* a prompt reads the resident weights once, and no expert twice */
        const mox_work many = work_of_step(c, seq, T);
        assert_int_equal(many.batches, 1);
        assert_true(many.weight_bytes >= bytes && many.weight_bytes < T * bytes);
        mox_seq_destroy(&seq);
        mox_context_destroy(&c);
        mox_model_close(&m);
    }
}

static void test_probe(void **state)
{
    (void)state;
    mox_err err;
    for (int level = 0; level < mox_isa_count(); level++) {
        if (!mox_isa_available(level)) continue;
        for (int precision = 0; precision < 3; precision++) {
            mox_probe *p;
            const mox_context_opts opts = {.n_threads = 1, .isa = mox_isa_name(level), .exact = precision == 1, .fast = precision == 2};
            if (mox_probe_create(&p, &opts, 8 << 20, &err) != MOX_OK) fail_msg("%s", err.msg);
            const double read = mox_probe_read(p), macs = mox_probe_macs(p);
            const double weights = mox_probe_weights(p), products = mox_probe_products(p);
            assert_true(read > 1e6 && read < 1e13);
            assert_true(macs > 1e6 && macs < 1e14);
            assert_true(weights > 1e5 && weights < 1e13);
            assert_true(products > 1e6 && products < 1e14);
            assert_true(strlen(mox_probe_instruction(p)) > 0);
            mox_probe_destroy(&p);
        }
    }
    mox_probe *p;
    assert_int_equal(mox_probe_create(&p, &(mox_context_opts){.isa = "no such level"}, 0, &err), MOX_E_ARG);
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_totals),    cmocka_unit_test(test_headers),         cmocka_unit_test(test_names),
        cmocka_unit_test(test_models),    cmocka_unit_test(test_seed),            cmocka_unit_test(test_skew),
        cmocka_unit_test(test_routing),
        cmocka_unit_test(test_full_disk), cmocka_unit_test(test_memory_runs_out), cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_work),      cmocka_unit_test(test_probe),
    };
    if (!mkdtemp(folder)) return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)rmdir(folder);
    return failed;
}
