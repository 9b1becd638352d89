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
    mox_cli_putf("{\"bytes\": %lld, \"bytes_copied\": %lld, \"bytes_mapped\": %lld, \"bytes_mapped_huge\": %lld}",
                 (long long)r.bytes, (long long)r.bytes_copied, (long long)r.bytes_mapped, (long long)r.bytes_mapped_huge);
}
