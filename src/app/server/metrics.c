/* app/server/metrics.c -- see metrics.h.  What the scheduler counts is asked of it. */
#include "app/server/metrics.h"

#include "app/server/server.h"
#include "base/clock.h"
#include "base/file.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double bounds[MOX_TIME_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                0.5,   1,      2.5,   5,    10,    30,   60,  300};

static const struct {
    const char *name, *help;
} times[MOX_TIME_KINDS] = {
    [MOX_TIME_TO_FIRST_TOKEN] = {"time_to_first_token_seconds",
                                 "from a request's headers to its first token"},
    [MOX_TIME_BETWEEN_TOKENS] = {"inter_token_latency_seconds", "between two tokens of a reply"},
    [MOX_TIME_REQUEST] = {"e2e_request_latency_seconds", "from a request's headers to the end of its answer"},
    [MOX_TIME_QUEUED] = {"request_queue_time_seconds", "in the queue"},
    [MOX_TIME_PREFILL] = {"request_prefill_time_seconds", "computing the prompt"},
    [MOX_TIME_DECODE] = {"request_decode_time_seconds", "generating the reply"},
};

void mox_metrics_init(mox_metrics *m)
{
    *m = (mox_metrics){0};
    pthread_mutex_init(&m->lock, NULL);
}

void mox_metrics_deinit(mox_metrics *m) { pthread_mutex_destroy(&m->lock); }

void mox_metrics_observe(mox_metrics *m, mox_time_kind kind, double seconds)
{
    int bucket = 0;
    while (bucket < MOX_TIME_BUCKETS && seconds > bounds[bucket]) bucket++;
    pthread_mutex_lock(&m->lock);
    m->times[kind].buckets[bucket]++;
    m->times[kind].n++;
    m->times[kind].sum += seconds;
    pthread_mutex_unlock(&m->lock);
}

void mox_metrics_count(mox_metrics *m, int status, const char *finish)
{
    pthread_mutex_lock(&m->lock);
    m->by_status[status > 0 && status < MOX_STATUS_KINDS ? status : 0]++;
    if (finish) {
        int64_t *which = strcmp(finish, "stop") == 0        ? &m->stops
                         : strcmp(finish, "length") == 0     ? &m->lengths
                         : strcmp(finish, "tool_calls") == 0 ? &m->calls
                         : strcmp(finish, "cancelled") == 0  ? &m->cancelled
                                                             : &m->failed;
        (*which)++;
    }
    pthread_mutex_unlock(&m->lock);
}

/* ---- the text ------------------------------------------------------------------------------------ */

static void put_help(mox_put *p, const char *name, const char *type, const char *help)
{
    mox_putf(p, "# HELP moxie_%s %s\n# TYPE moxie_%s %s\n", name, help, name, type);
}

static void put_counter(mox_put *p, const char *name, const char *help, double value)
{
    put_help(p, name, "counter", help);
    mox_putf(p, "moxie_%s %.15g\n", name, value);
}

static void put_gauge(mox_put *p, const char *name, const char *help, double value)
{
    put_help(p, name, "gauge", help);
    mox_putf(p, "moxie_%s %.15g\n", name, value);
}

static void put_scheduler(mox_put *p, mox_server *s)
{
    mox_scheduler_stats t;
    mox_scheduler_get_stats(s->scheduler, &t);
    put_gauge(p, "num_requests_running", "requests that are computed now", t.n_running);
    put_gauge(p, "num_requests_waiting", "requests in the queue now", t.n_waiting);
    put_gauge(p, "num_slots", "requests that can run at once", s->n_slots);
    put_counter(p, "prompt_tokens_total", "tokens of prompts, reused ones included", (double)t.prompt_tokens);
    put_counter(p, "prompt_tokens_reused_total", "tokens of prompts that did not have to be computed",
                (double)t.reused_tokens);
    put_counter(p, "generation_tokens_total", "tokens of replies", (double)t.reply_tokens);
    put_counter(p, "cancelled_tokens_total", "tokens computed in vain for requests that were cancelled",
                (double)t.cancelled_tokens);
    put_counter(p, "requests_rejected_total", "requests that the scheduler did not take",
                (double)t.n_refused);
    put_counter(p, "steps_total", "steps of the model", (double)t.steps);
    put_counter(p, "step_tokens_total", "tokens in them", (double)t.step_tokens);
    put_counter(p, "prefill_seconds_total", "time of steps with tokens of prompts", t.prefill_s);
    put_counter(p, "decode_seconds_total", "time of steps without", t.decode_s);
    put_gauge(p, "prefix_cache_bytes", "memory of what finished requests left behind",
              (double)t.prefix_bytes);
    put_gauge(p, "prefix_cache_bytes_max", "the most that it may be", (double)t.prefix_bytes_max);
    put_gauge(p, "prefix_cache_entries", "beginnings of prompts that are kept", (double)t.n_prefixes);
    put_gauge(p, "context_bytes", "memory that was reserved for contexts", (double)t.context_bytes);
    put_counter(p, "expert_cache_hits_total", "experts that were in memory when they were asked for",
                (double)t.experts.hits);
    put_counter(p, "expert_cache_misses_total", "experts that had to be read", (double)t.experts.misses);
    put_counter(p, "expert_cache_bytes_read_total", "bytes of experts read from disk",
                (double)t.experts.bytes_read);
    put_counter(p, "expert_cache_read_seconds_total",
                "time in which nothing could be computed until a read ended", t.experts.wait_s);
    put_counter(p, "expert_device_hits_total", "experts that were on the GPU when they were asked for", (double)t.experts.device_hits);
    put_counter(p, "expert_device_misses_total", "experts that had to be copied there", (double)t.experts.device_misses);
    put_counter(p, "expert_device_cold_total", "experts that were not there, and that the cpu computed", (double)t.experts.device_cold);
    put_counter(p, "expert_device_bytes_copied_total", "bytes of experts copied there", (double)t.experts.bytes_copied);
    put_counter(p, "expert_device_wait_seconds_total", "time in which the GPU had nothing to compute until a copy ended",
                t.experts.copy_wait_s);
}

static void put_histograms(mox_put *p, const mox_metrics *m)
{
    for (int k = 0; k < MOX_TIME_KINDS; k++) {
        int64_t sum = 0;
        put_help(p, times[k].name, "histogram", times[k].help);
        for (int i = 0; i < MOX_TIME_BUCKETS; i++) {
            sum += m->times[k].buckets[i];
            mox_putf(p, "moxie_%s_bucket{le=\"%g\"} %lld\n", times[k].name, bounds[i], (long long)sum);
        }
        mox_putf(p, "moxie_%s_bucket{le=\"+Inf\"} %lld\nmoxie_%s_sum %.9g\nmoxie_%s_count %lld\n",
                 times[k].name, (long long)m->times[k].n, times[k].name, m->times[k].sum, times[k].name,
                 (long long)m->times[k].n);
    }
}

static void put_counts(mox_put *p, const mox_metrics *m)
{
    const struct {
        const char *word;
        int64_t n;
    } ends[] = {{"stop", m->stops},
                {"length", m->lengths},
                {"tool_calls", m->calls},
                {"cancelled", m->cancelled},
                {"error", m->failed}};
    put_help(p, "requests_finished_total", "counter", "replies by how they ended");
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        mox_putf(p, "moxie_requests_finished_total{reason=\"%s\"} %lld\n", ends[i].word,
                 (long long)ends[i].n);
    put_help(p, "http_requests_total", "counter",
             "requests of HTTP by the status of the answer; 0: the client left before one");
    for (int i = 0; i < MOX_STATUS_KINDS; i++)
        if (m->by_status[i] > 0)
            mox_putf(p, "moxie_http_requests_total{status=\"%d\"} %lld\n", i, (long long)m->by_status[i]);
}

static int64_t count_files(void)
{
    int64_t n = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir) return -1;
    while (readdir(dir)) n++;
    (void)closedir(dir);
    return n - 3; /* itself and the two dots */
}

static void put_process(mox_put *p)
{
    char text[256];
    long long pages = 0, resident = 0;
    if (mox_file_peek("/proc/self/statm", text, sizeof text))
        (void)sscanf(text, "%lld %lld", &pages, &resident);
    mox_putf(p,
             "# HELP process_resident_memory_bytes memory of the process, mapped files included\n"
             "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes %lld\n"
             "# HELP process_open_fds open file descriptors\n# TYPE process_open_fds gauge\n"
             "process_open_fds %lld\n",
             resident * sysconf(_SC_PAGESIZE), (long long)count_files());
}

void mox_handle_metrics(mox_server *s, mox_http_call *c)
{
    mox_put p = {0};
    put_scheduler(&p, s);
    pthread_mutex_lock(&s->metrics.lock);
    const mox_metrics m = s->metrics;
    pthread_mutex_unlock(&s->metrics.lock);
    put_histograms(&p, &m);
    put_counts(&p, &m);
    put_counter(&p, "log_lines_lost_total", "lines of the log that nobody took in time",
                (double)mox_log_lost(&s->log));
    put_process(&p);
    mox_http_answer(c, 200, "text/plain; version=0.0.4; charset=utf-8", &p);
}
