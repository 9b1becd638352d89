/* app/cli/describe.c -- see describe.h. */
#include "app/cli/describe.h"

#include "app/cli/output.h"
#include "moxie/tools.h"

#include <stdio.h>

void mox_cli_describe_kernels(const mox_context *c, bool threads, char out[MOX_CLI_DESCRIPTION])
{
    mox_kernels k;
    mox_context_get_kernels(c, &k);
    char count[32] = "";
    if (threads) (void)snprintf(count, sizeof count, ", %d thread%s", (int)k.n_threads, k.n_threads == 1 ? "" : "s");
    (void)snprintf(out, MOX_CLI_DESCRIPTION, "%s kernels, %s precision, %s cache%s", k.isa, k.precision,
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
    mox_cli_putf("{\"isa\": \"%s\", \"precision\": \"%s\", \"kv_type\": \"%s\", \"threads\": %d}", k.isa, k.precision,
                 k.kv_type, (int)k.n_threads);
}

void mox_cli_put_weights_json(const mox_model *m)
{
    mox_weight_residency r;
    mox_model_get_residency(m, &r);
    mox_cli_putf("{\"bytes\": %lld, \"bytes_copied\": %lld, \"bytes_loaded\": %lld, \"bytes_mapped\": %lld, "
                 "\"bytes_mapped_huge\": %lld}",
                 (long long)r.bytes, (long long)r.bytes_copied, (long long)r.bytes_loaded, (long long)r.bytes_mapped, (long long)r.bytes_mapped_huge);
}

mox_expert_stats mox_cli_experts_since(const mox_expert_stats *now, const mox_expert_stats *before)
{
    return (mox_expert_stats){.n_slots = now->n_slots, .slot_bytes = now->slot_bytes, .hits = now->hits - before->hits,
                              .misses = now->misses - before->misses, .bytes_read = now->bytes_read - before->bytes_read,
                              .waits = now->waits - before->waits, .wait_s = now->wait_s - before->wait_s,
                              .busy_s = now->busy_s - before->busy_s,
                              .warmed = now->warmed - before->warmed, .warmed_used = now->warmed_used - before->warmed_used,
                              .prefetched = now->prefetched - before->prefetched,
                              .prefetched_used = now->prefetched_used - before->prefetched_used,
                              .guessed = now->guessed - before->guessed,
                              .guessed_right = now->guessed_right - before->guessed_right,
                              .policy = now->policy};
}

double mox_cli_hit_percent(const mox_expert_stats *s)
{
    return s->hits + s->misses > 0 ? 100.0 * (double)s->hits / (double)(s->hits + s->misses) : 0.0;
}

void mox_cli_describe_experts(const mox_expert_stats *s, int64_t n_tokens, char out[MOX_CLI_DESCRIPTION])
{
    char read[MOX_CLI_AMOUNT];
    const double n = n_tokens > 0 ? (double)n_tokens : 1.0;
    out[0] = '\0';
    if (s->n_slots > 0)
        (void)snprintf(out, MOX_CLI_DESCRIPTION, " | experts hit %.0f%% read %s (%.1f MB/tok, wait %.1f ms/tok) slots %lld",
                       mox_cli_hit_percent(s), mox_cli_describe_bytes(s->bytes_read, read), (double)s->bytes_read / n / 1e6, s->wait_s / n * 1e3,
                       (long long)s->n_slots);
}

void mox_cli_put_experts_json(const mox_expert_stats *s)
{
    mox_cli_putf(", \"experts\": {\"slots\": %lld, \"slot_bytes\": %lld, \"hits\": %lld, \"misses\": %lld, "
                 "\"bytes_read\": %lld, \"policy\": \"%s\", \"warmed\": %lld, \"warmed_used\": %lld, "
                 "\"prefetched\": %lld, \"prefetched_used\": %lld, \"guessed\": %lld, \"guessed_right\": %lld, \"wait_s\": ",
                 (long long)s->n_slots, (long long)s->slot_bytes, (long long)s->hits, (long long)s->misses,
                 (long long)s->bytes_read, s->policy, (long long)s->warmed, (long long)s->warmed_used,
                 (long long)s->prefetched, (long long)s->prefetched_used, (long long)s->guessed, (long long)s->guessed_right);
    mox_cli_put_json_real(s->wait_s);
    mox_cli_putf("}");
}
