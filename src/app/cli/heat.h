/* app/cli/heat.h -- which experts a model's runs used, kept between them in a small file, so that the next run
 * can begin with those.
 *
 * The file is in the folder of app/cli/cache.h and named after the model's configuration and index.  It is a
 * convenience: when it is missing or cannot be written, nothing is said and nothing but the speed of the first
 * tokens changes; one that is damaged or of another model is ignored with a warning, and replaced. */
#ifndef MOX_APP_CLI_HEAT_H
#define MOX_APP_CLI_HEAT_H

#include "moxie.h"

typedef struct mox_cli_heat { /* zeroed: none is kept */
    char *path;
    uint64_t model; /* what the file is named after */
    int64_t n;      /* experts of all layers */
    uint32_t *counts; /* [n], and room for those of this run */
} mox_cli_heat;

/* Of the model in dir; returns what mox_context_opts.heat takes.  Before the memory is settled. */
const uint32_t *mox_cli_heat_open(mox_cli_heat *h, const char *dir, const mox_model *m, bool quiet);
int64_t mox_cli_heat_bytes(const mox_model *m); /* that open keeps */
/* Adds what the context (may be NULL) used, and writes the file, if experts were streamed. */
void mox_cli_heat_save(mox_cli_heat *h, const mox_context *c);
void mox_cli_heat_close(mox_cli_heat *h);

#endif
