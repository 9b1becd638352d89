/* app/cli/progress.h -- how far a long step has come, on standard error.
 *
 * In a terminal one line that is redrawn, from half a second on, and wiped at the
 * end; elsewhere a plain line every ten seconds. */
#ifndef MOX_APP_CLI_PROGRESS_H
#define MOX_APP_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mox_cli_progress {
    const char *what; /* "prompt" */
    const char *unit, *rate_unit; /* "tok", "t/s" */
    double per_unit;  /* of what is counted: 1e9 for bytes told in GB */
    bool quiet, redraw, drawn;
    double started, last;
    int64_t before; /* tokens of earlier steps, counted in by the caller */
    int64_t done;   /* as last heard */
    int64_t total;  /* of all steps */
} mox_cli_progress;

/* Counts tokens; the caller may set other units afterwards. */
void mox_cli_progress_start(mox_cli_progress *p, const char *what, int64_t total, bool quiet);
/* Draws the line when it is time even if nothing has been heard by then. */
void mox_cli_progress_draw_soon(const mox_cli_progress *p);
/* Counts bytes and tells GB. */
void mox_cli_progress_start_bytes(mox_cli_progress *p, const char *what, int64_t total, bool quiet);
/* Fits mox_step_opts.progress. */
void mox_cli_progress_update(void *progress, int64_t n_done, int64_t n_total);
void mox_cli_progress_end(mox_cli_progress *p);

#endif
