/* app/cli/describe.h -- what computed, and where the weights were: the same words in
 * every command that reports numbers. */
#ifndef MOX_APP_CLI_DESCRIBE_H
#define MOX_APP_CLI_DESCRIBE_H

#include "moxie/tools.h"

enum { MOX_CLI_DESCRIPTION = 256, MOX_CLI_AMOUNT = 32 };

/* "4.6 GB", or for little ones "10.3 MB".  Returns out. */
const char *mox_cli_describe_bytes(int64_t bytes, char out[MOX_CLI_AMOUNT]);

/* "avx2 kernels, default precision, f16 cache", and with threads ", 2 threads". */
void mox_cli_describe_kernels(const mox_context *c, bool threads, char out[MOX_CLI_DESCRIPTION]);
/* "mapped, 98 % of 4.6 GB on huge pages", "copied, 4.6 GB of memory", "made in memory". */
void mox_cli_describe_weights(const mox_model *m, char out[MOX_CLI_DESCRIPTION]);

/* The same as objects. */
void mox_cli_put_kernels_json(const mox_context *c);
void mox_cli_put_weights_json(const mox_model *m);

/* What became of experts between two looks at a context. */
mox_expert_stats mox_cli_experts_since(const mox_expert_stats *now, const mox_expert_stats *before);
double mox_cli_hit_percent(const mox_expert_stats *s);
double mox_cli_device_hit_percent(const mox_expert_stats *s);
double mox_cli_device_cold_percent(const mox_expert_stats *s); /* of those the processor computed */
/* Adds to a sum what became of them later. */
void mox_cli_experts_add(mox_expert_stats *sum, const mox_expert_stats *s);
/* " | experts hit 81% read 4.1 GB (32.0 MB/tok, wait 12.0 ms/tok) slots 96 memory 1.2 GB", or "slots 72 of 96" when some
 * were given up; empty when they are not streamed. */
void mox_cli_describe_experts(const mox_expert_stats *s, int64_t n_tokens, int64_t own_bytes, char out[MOX_CLI_DESCRIPTION]);
/* A field of an object, with the comma in front. */
void mox_cli_put_experts_json(const mox_expert_stats *s, int64_t n_tokens);

#endif
