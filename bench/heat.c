/* bench/heat.c -- what warming brings: the first tokens of a context whose experts are streamed, with the
 * counts of an earlier one and without.
 *
 *     bench/heat DIR SLOTS PAIRS IDLE
 *
 * A first context computes TRAINING random tokens and its counts are kept.  Then new contexts with and
 * without them follow each other PAIRS times; each waits IDLE seconds, as for a user, and computes TOKENS other
 * random tokens one by one.  Every line has the milliseconds of the first token, and of the first 8 and all
 * tokens on average. */
#include "base/clock.h"
#include "base/rng.h"
#include "moxie/tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TRAINING = 256, TOKENS = 32, FEW = 8 };

typedef struct subject {
    mox_model *model;
    mox_context_opts opts;
    int64_t n_vocab;
    mox_rng rng;
    mox_err err;
} subject;

static void give_up(const subject *s)
{
    (void)fprintf(stderr, "bench/heat: %s\n", s->err.msg);
    exit(1);
}

static void open_subject(subject *s, const char *dir, int64_t n_slots)
{
    mox_disk_probe *probe;
    mox_disk_speed reads;
    mox_model_info info;
    if (mox_model_open(&s->model, dir, NULL, &s->err) != MOX_OK || mox_model_load_dense(s->model, NULL, NULL, &s->err) != MOX_OK ||
        mox_disk_probe_create(&probe, s->model, 64 << 20, &s->err) != MOX_OK ||
        mox_disk_probe_best(probe, &reads, &s->err) != MOX_OK)
        give_up(s);
    mox_disk_probe_destroy(&probe);
    mox_model_get_info(s->model, &info);
    s->n_vocab = info.n_vocab;
    s->opts = (mox_context_opts){.n_ctx = TRAINING, .expert_bytes = n_slots * mox_model_expert_slot_bytes(s->model),
                                 .n_readers = reads.n_at_once, .uring = reads.uring, .read_bytes = reads.piece_bytes};
    mox_rng_init(&s->rng, 1);
}

/* n tokens one by one in a context of their own; their times to ms, how often experts were used to heat, unless NULL. */
static void compute(subject *s, double idle_s, int n, double *ms, uint32_t *heat, mox_expert_stats *stats)
{
    mox_context *c;
    mox_seq *seq;
    if (mox_context_create(&c, s->model, &s->opts, &s->err) != MOX_OK || mox_seq_create(&seq, c, &s->err) != MOX_OK) give_up(s);
    (void)nanosleep(&(struct timespec){.tv_sec = (time_t)idle_s, .tv_nsec = (long)((idle_s - (double)(time_t)idle_s) * 1e9)}, NULL);
    for (int i = 0; i < n; i++) {
        const int32_t token = (int32_t)(mox_rng_u64(&s->rng) % (uint64_t)s->n_vocab);
        const mox_segment segment = {.seq = seq, .tokens = &token, .n = 1, .want = MOX_WANT_LAST};
        const double start = mox_clock_now();
        if (mox_step(c, &segment, 1, NULL, &s->err) != MOX_OK) give_up(s);
        if (ms) ms[i] = 1e3 * (mox_clock_now() - start);
    }
    mox_context_get_expert_stats(c, stats);
    if (heat) mox_context_get_heat(c, heat);
    mox_seq_destroy(&seq);
    mox_context_destroy(&c);
}

static double mean(const double *ms, int n)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++) sum += ms[i];
    return sum / n;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        (void)fprintf(stderr, "usage: bench/heat DIR SLOTS PAIRS IDLE\n");
        return 2;
    }
    subject s = {0};
    mox_expert_stats stats;
    mox_inspection report;
    open_subject(&s, argv[1], atoll(argv[2]));
    mox_model_inspect(s.model, &report);
    uint32_t *heat = calloc((size_t)(report.n_layers * report.n_experts), sizeof *heat);
    if (!heat) return 1;
    compute(&s, 0.0, TRAINING, NULL, heat, &stats);
    for (int i = 0; i < 2 * atoi(argv[3]); i++) {
        double ms[TOKENS];
        s.opts.heat = i % 2 ? heat : NULL;
        compute(&s, atof(argv[4]), TOKENS, ms, NULL, &stats);
        printf("%s first %.1f, of %d %.1f, of %d %.1f ms; %lld hits, %lld misses, warmed %lld, used %lld, waited %.1f ms, read %.0f MB\n",
               i % 2 ? "warmed" : "cold  ", ms[0], FEW, mean(ms, FEW), TOKENS, mean(ms, TOKENS), (long long)stats.hits,
               (long long)stats.misses, (long long)stats.warmed, (long long)stats.warmed_used, 1e3 * stats.wait_s / TOKENS,
               (double)stats.bytes_read / 1e6);
    }
    free(heat);
    mox_model_close(&s.model);
    return 0;
}
