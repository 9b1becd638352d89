/* app/server/metrics.h -- counters and histograms for /metrics, in Prometheus' text format. */
#ifndef MOX_APP_SERVER_METRICS_H
#define MOX_APP_SERVER_METRICS_H

#include <pthread.h>
#include <stdint.h>

typedef enum mox_time_kind {
    MOX_TIME_TO_FIRST_TOKEN,
    MOX_TIME_BETWEEN_TOKENS,
    MOX_TIME_REQUEST,
    MOX_TIME_QUEUED,
    MOX_TIME_PREFILL,
    MOX_TIME_DECODE,
    MOX_TIME_KINDS
} mox_time_kind;

enum { MOX_TIME_BUCKETS = 16, MOX_STATUS_KINDS = 600 };

typedef struct mox_metrics {
    pthread_mutex_t lock;
    struct {
        int64_t buckets[MOX_TIME_BUCKETS + 1], n;
        double sum;
    } times[MOX_TIME_KINDS];
    int64_t by_status[MOX_STATUS_KINDS]; /* requests of HTTP; 0: nobody was there to be answered */
    int64_t stops, lengths, calls, cancelled, failed; /* how replies ended */
} mox_metrics;

void mox_metrics_init(mox_metrics *m);
void mox_metrics_deinit(mox_metrics *m);
void mox_metrics_observe(mox_metrics *m, mox_time_kind kind, double seconds);
void mox_metrics_count(mox_metrics *m, int status, const char *finish); /* finish may be NULL */

#endif
