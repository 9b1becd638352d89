/* app/cli/stats.h -- what a reply took, as a line and as JSON. */
#ifndef MOX_APP_CLI_STATS_H
#define MOX_APP_CLI_STATS_H

#include "app/cli/reply.h"

enum { MOX_CLI_STATS_BYTES = 416 };

/* As much as goes into that many columns; empty when nothing does. */
void mox_cli_stats_line(const mox_cli_stats *s, int columns, char out[MOX_CLI_STATS_BYTES]);
/* The whole line, on standard error. */
void mox_cli_say_stats(const mox_cli_stats *s);

/* ", "-separated fields of a JSON object, without its braces. */
void mox_cli_put_stats(const mox_cli_stats *s, double load_s);
const char *mox_cli_stop_name(mox_stop stop);

/* Adds what a reply took to a sum of several. */
void mox_cli_stats_add(mox_cli_stats *sum, const mox_cli_stats *s);

#endif
