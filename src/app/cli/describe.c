/* app/cli/describe.c -- see describe.h. */
#include "app/cli/describe.h"

#include "app/cli/output.h"
#include "moxie/tools.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

void mox_cli_describe_kernels(const mox_context *c, bool threads, char out[MOX_CLI_DESCRIPTION])
{
    mox_kernels k;
    mox_context_get_kernels(c, &k);
    char count[32] = "", spread[32] = "";
    if (threads) (void)snprintf(count, sizeof count, ", %d thread%s", (int)k.n_threads, k.n_threads == 1 ? "" : "s");
    if (k.n_devices > 1) (void)snprintf(spread, sizeof spread, " on %d devices", (int)k.n_devices);
    (void)snprintf(out, MOX_CLI_DESCRIPTION, "%s kernels%s, %s precision, %s cache%s", k.isa, spread, k.precision,
                   k.kv_type, count);
}

const char *mox_cli_describe_bytes(int64_t bytes, char out[MOX_CLI_AMOUNT])
{
    const bool many = bytes >= 1000000000;
    (void)snprintf(out, MOX_CLI_AMOUNT, "%.1f %s", (double)bytes / (many ? 1e9 : 1e6), many ? "GB" : "MB");
    return out;
}

void mox_cli_describe_weights(const mox_model *m, char out[MOX_CLI_DESCRIPTION])
{
    mox_weight_residency r;
    mox_model_get_residency(m, &r);
    char all[MOX_CLI_AMOUNT], some[MOX_CLI_AMOUNT];
    (void)mox_cli_describe_bytes(r.bytes, all);
    if (r.bytes == 0) (void)snprintf(out, MOX_CLI_DESCRIPTION, "made in memory");
    else if (r.bytes_loaded > 0)
        (void)snprintf(out, MOX_CLI_DESCRIPTION, "loaded, %s without experts", mox_cli_describe_bytes(r.bytes_loaded, some));
    else if (r.bytes_copied == r.bytes) (void)snprintf(out, MOX_CLI_DESCRIPTION, "copied, %s of memory", all);
    else if (r.bytes_copied > 0)
        (void)snprintf(out, MOX_CLI_DESCRIPTION, "%s of %s copied, the rest mapped",
                       mox_cli_describe_bytes(r.bytes_copied, some), all);
    else if (r.bytes_mapped > 0)
        (void)snprintf(out, MOX_CLI_DESCRIPTION, "mapped, %.0f %% of %s on huge pages",
                       100.0 * (double)r.bytes_mapped_huge / (double)r.bytes_mapped,
                       mox_cli_describe_bytes(r.bytes_mapped, some));
    else (void)snprintf(out, MOX_CLI_DESCRIPTION, "mapped");
}

void mox_cli_put_kernels_json(const mox_context *c)
{
    mox_kernels k;
    mox_context_get_kernels(c, &k);
    mox_cli_putf("{\"device\": \"%s\", \"devices\": %d, \"isa\": \"%s\", \"precision\": \"%s\", \"kv_type\": \"%s\", \"threads\": %d}",
                 k.device, (int)k.n_devices, k.isa, k.precision, k.kv_type, (int)k.n_threads);
}

void mox_cli_put_weights_json(const mox_model *m)
{
    mox_weight_residency r;
    mox_model_get_residency(m, &r);
    mox_cli_putf("{\"bytes\": %lld, \"bytes_copied\": %lld, \"bytes_loaded\": %lld, \"bytes_mapped\": %lld, "
                 "\"bytes_mapped_huge\": %lld}",
                 (long long)r.bytes, (long long)r.bytes_copied, (long long)r.bytes_loaded, (long long)r.bytes_mapped, (long long)r.bytes_mapped_huge);
}

/* What grows while experts are streamed. */
static const struct {
    const char *name;
    size_t at;
} counts[] = {
    {"hits", offsetof(mox_expert_stats, hits)},
    {"misses", offsetof(mox_expert_stats, misses)},
    {"bytes_read", offsetof(mox_expert_stats, bytes_read)},
    {"waits", offsetof(mox_expert_stats, waits)},
    {"warmed", offsetof(mox_expert_stats, warmed)},
    {"warmed_used", offsetof(mox_expert_stats, warmed_used)},
    {"prefetched", offsetof(mox_expert_stats, prefetched)},
    {"prefetched_used", offsetof(mox_expert_stats, prefetched_used)},
    {"guessed", offsetof(mox_expert_stats, guessed)},
    {"guessed_right", offsetof(mox_expert_stats, guessed_right)},
    {"device_hits", offsetof(mox_expert_stats, device_hits)},
    {"device_misses", offsetof(mox_expert_stats, device_misses)},
    {"device_prefetched", offsetof(mox_expert_stats, device_prefetched)},
    {"device_cold", offsetof(mox_expert_stats, device_cold)},
    {"bytes_copied", offsetof(mox_expert_stats, bytes_copied)},
};
enum { N_COUNTS = sizeof counts / sizeof *counts };

static int64_t count_at(const mox_expert_stats *s, int i)
{
    int64_t n;
    memcpy(&n, (const char *)s + counts[i].at, sizeof n);
    return n;
}

/* Adds the counts and times of s, sign times. */
static void add_counts(mox_expert_stats *sum, const mox_expert_stats *s, int sign)
{
    for (int i = 0; i < N_COUNTS; i++) {
        const int64_t n = count_at(sum, i) + sign * count_at(s, i);
        memcpy((char *)sum + counts[i].at, &n, sizeof n);
    }
    sum->wait_s += sign * s->wait_s;
    sum->busy_s += sign * s->busy_s;
    sum->copy_wait_s += sign * s->copy_wait_s;
}

mox_expert_stats mox_cli_experts_since(const mox_expert_stats *now, const mox_expert_stats *before)
{
    mox_expert_stats s = *now;
    add_counts(&s, before, -1);
    return s;
}

void mox_cli_experts_add(mox_expert_stats *sum, const mox_expert_stats *s)
{
    const mox_expert_stats before = *sum;
    *sum = *s;
    add_counts(sum, &before, 1);
}

static double percent(int64_t hits, int64_t misses)
{
    return hits + misses > 0 ? 100.0 * (double)hits / (double)(hits + misses) : 0.0;
}

double mox_cli_hit_percent(const mox_expert_stats *s) { return percent(s->hits, s->misses); }
double mox_cli_device_hit_percent(const mox_expert_stats *s) { return percent(s->device_hits, s->device_misses + s->device_cold); }
double mox_cli_device_cold_percent(const mox_expert_stats *s) { return percent(s->device_cold, s->device_hits + s->device_misses); }

/* What experts that come and go on a device took. */
static void describe_device(const mox_expert_stats *s, double n, char out[MOX_CLI_DESCRIPTION])
{
    char copied[MOX_CLI_AMOUNT], cold[MOX_CLI_AMOUNT] = "";
    out[0] = '\0';
    if (s->n_device_slots == 0) return;
    if (s->device_cold > 0) (void)snprintf(cold, sizeof cold, "cpu %.0f%% ", mox_cli_device_cold_percent(s));
    (void)snprintf(out, MOX_CLI_DESCRIPTION, " | on the GPU hit %.0f%% %scopied %s (%.1f MB/tok, wait %.1f ms/tok) slots %lld",
                   mox_cli_device_hit_percent(s), cold, mox_cli_describe_bytes(s->bytes_copied, copied), (double)s->bytes_copied / n / 1e6,
                   s->copy_wait_s / n * 1e3, (long long)s->n_device_slots);
}

void mox_cli_describe_experts(const mox_expert_stats *s, int64_t n_tokens, int64_t own_bytes, char out[MOX_CLI_DESCRIPTION])
{
    char read[MOX_CLI_AMOUNT], own[MOX_CLI_AMOUNT], away[MOX_CLI_AMOUNT] = "";
    const double n = n_tokens > 0 ? (double)n_tokens : 1.0;
    describe_device(s, n, out);
    if (s->n_slots == 0) return;
    const size_t used = strlen(out);
    if (s->n_slots_away > 0) (void)snprintf(away, sizeof away, "%lld of ", (long long)(s->n_slots - s->n_slots_away));
    (void)snprintf(out + used, MOX_CLI_DESCRIPTION - used, " | experts hit %.0f%% read %s (%.1f MB/tok, wait %.1f ms/tok) slots %s%lld memory %s",
                   mox_cli_hit_percent(s), mox_cli_describe_bytes(s->bytes_read, read), (double)s->bytes_read / n / 1e6,
                   s->wait_s / n * 1e3, away, (long long)s->n_slots, mox_cli_describe_bytes(own_bytes, own));
}

void mox_cli_put_experts_json(const mox_expert_stats *s, int64_t n_tokens)
{
    const double n = n_tokens > 0 ? (double)n_tokens : 1.0;
    const struct {
        const char *name;
        double value;
    } rates[] = {
        {"wait_s", s->wait_s},
        {"hit_rate", mox_cli_hit_percent(s) / 100.0},
        {"bytes_read_per_token", (double)s->bytes_read / n},
        {"wait_s_per_token", s->wait_s / n},
        {"device_hit_rate", mox_cli_device_hit_percent(s) / 100.0},
        {"bytes_copied_per_token", (double)s->bytes_copied / n},
        {"copy_wait_s", s->copy_wait_s},
        {"copy_wait_s_per_token", s->copy_wait_s / n},
    };
    mox_cli_putf(", \"experts\": {\"slots\": %lld, \"slots_away\": %lld, \"slot_bytes\": %lld, \"policy\": \"%s\", \"device_slots\": %lld, "
                 "\"device_slot_bytes\": %lld",
                 (long long)s->n_slots, (long long)s->n_slots_away, (long long)s->slot_bytes, s->policy ? s->policy : "none",
                 (long long)s->n_device_slots, (long long)s->device_slot_bytes);
    for (int i = 0; i < N_COUNTS; i++) mox_cli_putf(", \"%s\": %lld", counts[i].name, (long long)count_at(s, i));
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        mox_cli_putf(", \"%s\": ", rates[i].name);
        mox_cli_put_json_real(rates[i].value);
    }
    mox_cli_putf("}");
}
