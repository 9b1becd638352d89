/* app/cli/trace.h -- writing down which experts a run asked for; docs/trace.md has the format. */
#ifndef MOX_APP_CLI_TRACE_H
#define MOX_APP_CLI_TRACE_H

#include "base/file.h"
#include "moxie.h"

enum { MOX_CLI_TRACE_BUFFER = 1 << 16 };

typedef struct mox_cli_trace {
    mox_out out;
    mox_status status; /* of the first write that failed */
    mox_err err;
    size_t n;
    char buffer[MOX_CLI_TRACE_BUFFER];
} mox_cli_trace;

/* EXIT_OK, or the exit code after saying what is wrong. */
int mox_cli_trace_begin(mox_cli_trace **out, const char *path, const mox_model *m);
/* Fits mox_context_opts.trace. */
void mox_cli_trace_line(void *trace, mox_trace_kind what, int32_t layer, const int32_t *ids, int64_t n);
/* Ends the file, if one was begun: complete, with what the context counted, when all went well (code), gone
 * otherwise; returns the exit code. */
int mox_cli_trace_end(mox_cli_trace **t, const mox_context *c, int code);

#endif
