/* app/cli/bench.h -- a measured row, and how it is printed. */
#ifndef MOX_APP_CLI_BENCH_H
#define MOX_APP_CLI_BENCH_H

#include "moxie/tools.h"

#include <stdbool.h>
#include <stdint.h>

enum { BENCH_STREAMS = 256 }; /* at most, as options.c says */

/* What all rows have in common. */
typedef struct bench_setup {
    const char *model, *instruction; /* of the processor; "copy" where a device computes */
    mox_context_load load;      /* to a device */
    const mox_context *context; /* of the rows that follow */
    mox_kernels kernels;        /* the same */
    const char *format; /* "table", "csv" or "json" */
    bool color;
    int columns; /* of the terminal that gets it; 0: as many as it takes */
} bench_setup;

typedef struct bench_row {
    char test[64]; /* "pp512", "tg16@4096", "tg16x8" */
    bool decode;
    int64_t tokens, depth, samples; /* tokens: of all streams */
    int32_t streams;
    int threads;
    double rate, rate_low, rate_high; /* tokens per second: median, least, most */
    double bytes_per_token, macs_per_token;
    double probe_bytes, probe_macs;   /* per second: medians; of a device what it copies, and no multiply-adds */
    mox_expert_stats experts;         /* of all samples */
    double seconds;                   /* of all samples */
    double probe_disk;                /* bytes per second, as experts are read: median; 0: none are */
    int64_t own_bytes;                /* of memory that the process has, files that it maps left out */
} bench_row;

/* begin, then the rows as they come, then end, whatever happened in between. */
void bench_print_begin(const bench_setup *s);
void bench_print_row(const bench_setup *s, const bench_row *r, bool first);
void bench_print_end(const bench_setup *s, const mox_model *m);

#endif
