/* app/cli/stats.h -- what a reply took, in one line. */
#ifndef MOX_APP_CLI_STATS_H
#define MOX_APP_CLI_STATS_H

#include "app/cli/conversation.h"

enum { MOX_CLI_STATS_BYTES = 160 };

/* As much as goes into that many columns; empty when nothing does. */
void mox_cli_stats_line(const mox_cli_stats *s, int columns, char out[MOX_CLI_STATS_BYTES]);

/* Adds what a reply took to a sum of several. */
void mox_cli_stats_add(mox_cli_stats *sum, const mox_cli_stats *s);

/* A rate, with as many digits as mean something. */
int mox_cli_rate_digits(double rate);

#endif
