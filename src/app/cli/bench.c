/* app/cli/bench.c -- `moxie bench`: how fast a model runs, beside what the machine
 * could do in the same seconds.
 *
 * Every measurement stands between two probes of the memory, of the arithmetic and of the disk, and
 * what it had to read and to multiply is counted by the context while it runs.  Of a device with memory of its
 * own, copies of that memory are probed, and nothing else.  When experts are
 * streamed every byte of the budget is worth a slot, and the probe of the memory would take that of a hundred:
 * memory and arithmetic are then probed before there are slots, and only the disk between measurements.  A row
 * takes the medians of its measurements and of their probes, so that a busy or
 * throttled machine shows in both. */
#include "app/cli/bench.h"

#include "app/cli/commands.h"
#include "app/cli/describe.h"
#include "app/cli/memory.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "app/cli/progress.h"
#include "app/cli/session.h"
#include "app/cli/stop.h"
#include "app/cli/synth.h"
#include "app/cli/terminal.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/machine.h"
#include "base/rng.h"
#include "base/size.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct bench {
    const mox_cli_options *o;
    mox_cli_session s;
    mox_probe *probe; /* NULL: it was there before the context, and found this: */
    double memory_before, macs_before;
    mox_device_probe *copies; /* NULL: the processor computes, or a budget is full */
    mox_disk_probe *disk;  /* NULL: experts are not read */
    mox_disk_speed reads;  /* how they are */
    mox_model_info info;
    bench_setup setup;
    int64_t prefill[MOX_CLI_LIST], depths[MOX_CLI_LIST], streams[MOX_CLI_LIST], threads[MOX_CLI_LIST];
    int n_prefill, n_depths, n_streams, n_threads;
    int64_t n_generate, n_samples, n_ctx;
    int32_t n_seqs;               /* of the test with most streams */
    mox_seq *seqs[BENCH_STREAMS]; /* [n_seqs] */
    int32_t *tokens;              /* [the longest test] */
    double *rates, *reads_memory, *macs, *reads_disk; /* [n_samples], [2 n_samples] each */
    mox_rng rng;
    mox_cli_progress progress;
    bool printed; /* a row */
} bench;

/* ---- one row --------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static double median(double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return (x[(n - 1) / 2] + x[n / 2]) / 2.0;
}

/* The sequence with depth tokens in it. */
static mox_status go_to(mox_seq *s, int64_t depth, mox_err *err)
{
    if (mox_seq_cut_point(s, depth) == depth) return mox_seq_cut(s, depth, err);
    mox_seq_reset(s);
    return mox_seq_skip(s, depth, err);
}

/* The tokens of a row once: all of them, or one of each stream after the other. */
static mox_status run_tokens(bench *b, const bench_row *r, mox_err *err)
{
    const int64_t chunk = r->decode ? 1 : r->tokens;
    mox_segment segments[BENCH_STREAMS];
    const mox_step_opts opts = {.cancel = mox_cli_stop_flag()};
    for (int64_t at = 0; at < r->tokens; at += chunk * r->streams) {
        for (int32_t i = 0; i < r->streams; i++)
            segments[i] = (mox_segment){.seq = b->seqs[i], .tokens = b->tokens + at + i * chunk, .n = chunk, .want = MOX_WANT_LAST};
        MOX_TRY(mox_step(b->s.context, segments, r->streams, &opts, err));
    }
    return MOX_OK;
}

/* Before a run of a row: the sequences at their depth, and new tokens. */
static mox_status get_ready(bench *b, const bench_row *r, mox_err *err)
{
    for (int64_t t = 0; t < r->tokens; t++)
        b->tokens[t] = (int32_t)(mox_rng_u64(&b->rng) % (uint64_t)b->info.n_vocab);
    for (int32_t i = 0; i < r->streams; i++) MOX_TRY(go_to(b->seqs[i], r->depth, err));
    return MOX_OK;
}

static mox_status probe_machine(bench *b, int64_t at, mox_err *err)
{
    static const double disk_s = 0.05;
    b->reads_memory[at] = b->probe ? mox_probe_read(b->probe) : b->memory_before;
    b->macs[at] = b->probe ? mox_probe_macs(b->probe) : b->macs_before;
    if (b->copies) MOX_TRY(mox_device_probe_copy(b->copies, &b->reads_memory[at], err));
    if (b->disk) MOX_TRY(mox_disk_probe_try(b->disk, &b->reads, disk_s, err));
    b->reads_disk[at] = b->reads.bytes_per_s;
    return MOX_OK;
}

static mox_status measure(bench *b, bench_row *r, int64_t i, mox_err *err)
{
    mox_work before, after;
    MOX_TRY(get_ready(b, r, err));
    MOX_TRY(probe_machine(b, 2 * i, err));
    mox_context_get_work(b->s.context, &before);
    const double start = mox_clock_now();
    MOX_TRY(run_tokens(b, r, err));
    const double seconds = mox_clock_now() - start;
    b->rates[i] = (double)r->tokens / seconds;
    r->seconds += seconds;
    mox_context_get_work(b->s.context, &after);
    MOX_TRY(probe_machine(b, 2 * i + 1, err));
    const int64_t bytes = after.weight_bytes - before.weight_bytes + after.cache_bytes - before.cache_bytes;
    r->bytes_per_token += (double)bytes / (double)(r->tokens * b->n_samples);
    r->macs_per_token += (double)(after.macs - before.macs) / (double)(r->tokens * b->n_samples);
    mox_cli_progress_update(&b->progress, b->progress.done + 1, 0);
    return MOX_OK;
}

static mox_status run_row(bench *b, bench_row *r, mox_err *err)
{
    MOX_TRY(get_ready(b, r, err)); /* a run that is not measured brings weights and caches into memory */
    MOX_TRY(run_tokens(b, r, err));
    mox_expert_stats before;
    mox_context_get_expert_stats(b->s.context, &before);
    for (int64_t i = 0; i < b->n_samples; i++) MOX_TRY(measure(b, r, i, err));
    mox_context_get_expert_stats(b->s.context, &r->experts);
    r->experts = mox_cli_experts_since(&r->experts, &before);
    r->own_bytes = mox_machine_own("");
    r->samples = b->n_samples;
    r->rate = median(b->rates, b->n_samples);
    r->rate_low = b->rates[0];
    r->rate_high = b->rates[b->n_samples - 1];
    r->probe_bytes = median(b->reads_memory, 2 * b->n_samples);
    r->probe_disk = median(b->reads_disk, 2 * b->n_samples);
    r->probe_macs = median(b->macs, 2 * b->n_samples);
    mox_cli_progress_end(&b->progress);
    bench_print_row(&b->setup, r, !b->printed);
    b->printed = true;
    return MOX_OK;
}

/* ---- all rows -------------------------------------------------------------- */

static mox_status run_rows(bench *b, int threads, mox_err *err)
{
    for (int i = 0; i < b->n_prefill && !mox_cli_output_failed(); i++) {
        bench_row r = {.tokens = b->prefill[i], .streams = 1, .threads = threads};
        (void)snprintf(r.test, sizeof r.test, "pp%lld", (long long)r.tokens);
        MOX_TRY(run_row(b, &r, err));
    }
    for (int i = 0; i < b->n_streams * b->n_depths && !mox_cli_output_failed(); i++) {
        const int32_t streams = (int32_t)b->streams[i / b->n_depths];
        bench_row r = {.decode = true, .tokens = b->n_generate * streams, .depth = b->depths[i % b->n_depths], .streams = streams,
                       .threads = threads};
        int n = snprintf(r.test, sizeof r.test, "tg%lld", (long long)b->n_generate);
        if (streams > 1) n += snprintf(r.test + n, sizeof r.test - (size_t)n, "x%d", streams);
        if (r.depth > 0) (void)snprintf(r.test + n, sizeof r.test - (size_t)n, "@%lld", (long long)r.depth);
        MOX_TRY(run_row(b, &r, err));
    }
    return MOX_OK;
}

/* Of a probe that reads experts, should the plan have them read. */
static int64_t disk_probe_bytes(const mox_model *m)
{
    enum { MOST = 64 << 20, MOST_EXPERTS = 32 };
    return mox_min_i64(MOST, MOST_EXPERTS * mox_model_expert_slot_bytes(m));
}

/* Into probe; with most_bytes for as long as this takes, otherwise to stay. */
static int open_probe(bench *b, const mox_context_opts *opts, int64_t most_bytes)
{
    enum { TRIES = 5 };
    mox_err err;
    if (mox_probe_create(&b->probe, opts, most_bytes, &err) != MOX_OK) return mox_cli_fail_opening(&err);
    b->setup.instruction = mox_probe_instruction(b->probe);
    if (most_bytes == 0) return EXIT_OK;
    double reads[TRIES], macs[TRIES];
    for (int i = 0; i < TRIES; i++) {
        reads[i] = mox_probe_read(b->probe);
        macs[i] = mox_probe_macs(b->probe);
    }
    b->memory_before = median(reads, TRIES);
    b->macs_before = median(macs, TRIES);
    mox_probe_destroy(&b->probe);
    return EXIT_OK;
}

/* The plan with the probe of the memory in it, or without it where that would cost slots. */
static int settle(bench *b, mox_context_opts *opts, int64_t disk_bytes)
{
    mox_plan plan = {0};
    int code = mox_cli_memory_plan(&b->s, b->o, opts, NULL, mox_probe_bytes() + disk_bytes, &plan);
    const bool stays = plan.fits && plan.experts != MOX_EXPERTS_STREAM;
    if (code == EXIT_OK && !stays) code = mox_cli_memory_plan(&b->s, b->o, opts, NULL, disk_bytes, &plan);
    if (code == EXIT_OK) code = mox_cli_memory_follow(&b->s, b->o, &plan, opts, NULL);
    b->setup.instruction = "copy";
    if (code != EXIT_OK || !mox_cli_on_cpu(b->o)) return code; /* a device is probed by its own copies */
    return open_probe(b, opts, stays ? 0 : mox_max_i64(plan.experts_bytes, 1));
}

static int open_run(bench *b, int threads, bool first)
{
    mox_err err;
    mox_context_opts opts;
    mox_cli_context_opts(b->o, b->n_ctx, &opts);
    opts.n_threads = threads;
    opts.n_seqs = b->n_seqs;
    const int64_t disk_bytes = disk_probe_bytes(b->s.model);
    int code = first ? mox_cli_session_trace(&b->s, b->o, &opts) : EXIT_OK;
    if (code == EXIT_OK) code = settle(b, &opts, disk_bytes);
    if (code != EXIT_OK) return code;
    if (mox_context_create(&b->s.context, b->s.model, &opts, &err) != MOX_OK) return mox_cli_fail_opening(&err);
    for (int32_t i = 0; i < b->n_seqs; i++)
        if (mox_seq_create(&b->seqs[i], b->s.context, &err) != MOX_OK) return mox_cli_fail_opening(&err);
    b->reads = (mox_disk_speed){.n_at_once = opts.n_readers, .uring = opts.uring, .piece_bytes = opts.read_bytes};
    if (opts.expert_bytes > 0 && mox_disk_probe_create(&b->disk, b->s.model, disk_bytes, &err) != MOX_OK)
        return mox_cli_fail_opening(&err);
    const mox_status probed = mox_cli_on_cpu(b->o) ? MOX_OK : mox_device_probe_create(&b->copies, b->s.context, &err);
    if (probed != MOX_OK && probed != MOX_E_FULL) return mox_cli_fail_opening(&err); /* a budget that is full goes without */
    b->setup.context = b->s.context;
    mox_context_get_load(b->s.context, &b->setup.load);
    mox_context_get_kernels(b->s.context, &b->setup.kernels);
    return EXIT_OK;
}

static void close_run(bench *b)
{
    mox_disk_probe_destroy(&b->disk);
    mox_device_probe_destroy(&b->copies);
    mox_probe_destroy(&b->probe);
    for (int32_t i = 0; i < b->n_seqs; i++) mox_seq_destroy(&b->seqs[i]);
    mox_context_destroy(&b->s.context);
}

static int run_all(bench *b)
{
    int code = EXIT_OK;
    bool begun = false;
    mox_cli_progress_start(&b->progress, "bench", b->n_threads * (b->n_prefill + b->n_depths * b->n_streams) * b->n_samples,
                           b->o->v[OPT_QUIET].on);
    b->progress.unit = "samples";
    b->progress.rate_unit = "samples/s";
    for (int i = 0; i < b->n_threads && code == EXIT_OK; i++) {
        mox_err err;
        code = open_run(b, (int)b->threads[i], i == 0);
        if (code == EXIT_OK && !begun) bench_print_begin(&b->setup);
        begun = begun || code == EXIT_OK;
        if (code == EXIT_OK && run_rows(b, (int)b->threads[i], &err) != MOX_OK && !mox_cli_stop_signal())
            code = mox_cli_fail_running(&err);
        if (mox_cli_stop_signal()) code = EXIT_SIGNAL + mox_cli_stop_signal();
        code = mox_cli_trace_end(&b->s.trace, b->s.context, code);
        close_run(b);
    }
    mox_cli_progress_end(&b->progress);
    if (begun) bench_print_end(&b->setup, b->s.model);
    return code;
}

/* ---- what to measure ------------------------------------------------------- */

/* Drops tests that the model's context has no room for: with a word when they were the
 * default, and refused when they were asked for. */
static int fit(const bench *b, int64_t *list, int *n, int64_t behind, option_id id, const char *what)
{
    int kept = 0;
    for (int i = 0; i < *n; i++) {
        if (list[i] + behind <= b->info.n_ctx_max) {
            list[kept++] = list[i];
            continue;
        }
        const bool asked = mox_cli_given(b->o, id);
        if (asked || !b->o->v[OPT_QUIET].on)
            mox_cli_say("%s of %lld does not fit the model's context of %lld tokens%s", what, (long long)list[i],
                        (long long)b->info.n_ctx_max, asked ? "" : "; left out");
        if (asked) return EXIT_FULL;
    }
    *n = kept;
    return EXIT_OK;
}

static int choose(bench *b)
{
    const mox_cli_options *o = b->o;
    b->n_generate = o->v[OPT_GENERATE].number;
    b->n_samples = o->v[OPT_REPEAT].number;
    b->n_depths = b->n_generate > 0 ? mox_cli_list(o, OPT_DEPTHS, b->depths) : 0;
    int64_t all[MOX_CLI_LIST];
    for (int i = 0, n = mox_cli_list(o, OPT_PREFILL, all); i < n; i++)
        if (all[i] > 0) b->prefill[b->n_prefill++] = all[i];
    b->n_streams = mox_cli_list(o, OPT_STREAMS, b->streams);
    b->n_threads = mox_cli_list(o, OPT_THREAD_COUNTS, b->threads);
    if (b->n_threads == 0) {
        b->threads[b->n_threads++] = 1;
        const int most = mox_machine_threads();
        if (most > 1 && mox_cli_on_cpu(o)) b->threads[b->n_threads++] = most;
    }
    int code = fit(b, b->prefill, &b->n_prefill, 0, OPT_PREFILL, "a prompt");
    if (code == EXIT_OK) code = fit(b, b->depths, &b->n_depths, b->n_generate, OPT_DEPTHS, "a depth");
    if (code != EXIT_OK) return code;
    if (b->n_prefill + b->n_depths == 0) {
        mox_cli_say("nothing to measure: -p leaves no prompt to read, and %s",
                    b->n_generate > 0 ? "the tokens of -n fit behind no depth of -d" : "-n 0 generates no tokens");
        return EXIT_USAGE;
    }
    for (int i = 0; i < b->n_prefill; i++) b->n_ctx = mox_max_i64(b->n_ctx, b->prefill[i]);
    for (int i = 0; i < b->n_depths; i++) b->n_ctx = mox_max_i64(b->n_ctx, b->depths[i] + b->n_generate);
    b->n_seqs = 1;
    for (int i = 0; i < b->n_streams && b->n_depths > 0; i++) b->n_seqs = (int32_t)mox_max_i64(b->n_seqs, b->streams[i]);
    b->tokens = mox_alloc_array((size_t)mox_max_i64(b->n_ctx, b->n_generate * b->n_seqs), sizeof *b->tokens);
    b->rates = mox_alloc_array((size_t)b->n_samples, 7 * sizeof *b->rates);
    if (!b->tokens || !b->rates) {
        mox_cli_say("out of memory");
        return EXIT_FULL;
    }
    b->reads_memory = b->rates + b->n_samples;
    b->macs = b->reads_memory + 2 * b->n_samples;
    b->reads_disk = b->macs + 2 * b->n_samples;
    return EXIT_OK;
}

/* What does not fit is refused before it is made; the shape has the plan of the whole. */
static int check_memory(const bench *b, const mox_model *shape)
{
    mox_err err;
    mox_plan plan;
    mox_context_opts context;
    mox_plan_opts opts = mox_cli_memory_opts(b->o);
    if (opts.experts == MOX_EXPERTS_STREAM || opts.n_slots > 0) {
        mox_cli_say("a model that is made in memory has no file that experts could be read from: `moxie synth` writes one");
        return EXIT_USAGE;
    }
    if (opts.experts == MOX_EXPERTS_AUTO) opts.experts = MOX_EXPERTS_RESIDENT;
    mox_cli_context_opts(b->o, b->n_ctx, &context);
    context.n_seqs = b->n_seqs;
    for (int i = 0; i < b->n_threads; i++) context.n_threads = (int32_t)mox_max_i64(context.n_threads, b->threads[i]);
    opts.context = &context;
    opts.extra_bytes = mox_probe_bytes();
    if (mox_plan_make(&plan, shape, &opts, &err) != MOX_OK) return mox_cli_fail_opening(&err);
    return plan.fits ? EXIT_OK : mox_cli_memory_refuse(&plan, b->o);
}

/* In place of its shape. */
static int make_synthetic(bench *b, const char *name)
{
    mox_err err;
    int64_t bytes;
    const int code = check_memory(b, b->s.model);
    if (code != EXIT_OK) return code;
    mox_model_close(&b->s.model);
    if (mox_synth_bytes(name, &bytes, &err) != MOX_OK) return mox_cli_fail_opening(&err);
    mox_cli_progress progress;
    const mox_synth_opts opts = mox_cli_synth_opts(b->o, &progress, "making", bytes);
    const mox_status status = mox_model_open_synthetic(&b->s.model, name, &opts, &err);
    mox_cli_progress_end(&progress);
    if (mox_cli_stop_signal()) return EXIT_SIGNAL + mox_cli_stop_signal();
    return status == MOX_OK ? EXIT_OK : mox_cli_fail_opening(&err);
}

/* A copy of the weights that still grows would change what is measured. */
static int await_copy(const bench *b)
{
    mox_weight_residency r;
    mox_cli_progress progress;
    mox_model_get_residency(b->s.model, &r);
    mox_cli_progress_start(&progress, "copying", r.bytes, b->o->v[OPT_QUIET].on);
    progress.unit = "GB";
    progress.rate_unit = "GB/s";
    progress.per_unit = 1e9;
    for (; r.copying && !mox_cli_stop_signal(); mox_model_get_residency(b->s.model, &r)) {
        mox_cli_progress_update(&progress, r.bytes_copied, r.bytes);
        (void)usleep(20000);
    }
    mox_cli_progress_end(&progress);
    return mox_cli_stop_signal() ? EXIT_SIGNAL + mox_cli_stop_signal() : EXIT_OK;
}

static int open_model(bench *b)
{
    const char *synthetic = b->o->v[OPT_SYNTHETIC].text;
    if (synthetic && mox_cli_given(b->o, OPT_MODEL)) {
        mox_cli_say("-m and --synthetic name two models: give one of them");
        return EXIT_USAGE;
    }
    mox_err err;
    int code = EXIT_OK;
    if (synthetic && mox_model_open_shape(&b->s.model, synthetic, &err) != MOX_OK) return mox_cli_fail_opening(&err);
    if (!synthetic) code = mox_cli_session_find(&b->s, b->o);
    if (code == EXIT_OK && !synthetic) code = mox_cli_session_open_model(&b->s, b->o);
    if (code != EXIT_OK) return code;
    mox_model_get_info(b->s.model, &b->info);
    b->setup.model = synthetic ? synthetic : b->s.dir;
    code = choose(b);
    if (code == EXIT_OK && synthetic) code = make_synthetic(b, synthetic);
    return code == EXIT_OK ? await_copy(b) : code;
}

int mox_cli_bench(const mox_cli_options *o)
{
    bench b = {.o = o};
    b.setup.format = o->v[OPT_OUTPUT].text;
    b.setup.columns = mox_cli_stdout_columns();
    b.setup.color = mox_cli_use_color(o->v[OPT_COLOR].text);
    mox_rng_init(&b.rng, (uint64_t)o->v[OPT_SYNTH_SEED].number);
    mox_cli_stop_catch();
    int code = open_model(&b);
    if (code == EXIT_OK) code = run_all(&b);
    mox_free(b.tokens);
    mox_free(b.rates);
    mox_cli_session_close(&b.s);
    return code;
}
