/* app/cli/memory.h -- the memory budget: from --ram, --vram and --experts to contexts that fit. */
#ifndef MOX_APP_CLI_MEMORY_H
#define MOX_APP_CLI_MEMORY_H

#include "app/cli/session.h"
#include "moxie/tools.h"

enum { MOX_CLI_SIZE = 24 };

/* Bytes as --ram takes them, such as 5.12G or 300M, and never less than they are. */
const char *mox_cli_size(int64_t bytes, char out[MOX_CLI_SIZE]);

/* What the options say about memory. */
mox_plan_opts mox_cli_memory_opts(const mox_cli_options *o);
/* False, and said, when options contradict each other. */
bool mox_cli_memory_check(const mox_cli_options *o, const mox_plan_opts *p);
/* Says that it does not fit, with the smallest budget that would; EXIT_FULL. */
int mox_cli_memory_refuse(const mox_plan *p, const mox_cli_options *o);

/* Plans for a context, for a second one unless it is NULL, and for extra_bytes of the
 * caller; loads what the plan wants loaded, and completes both settings.  EXIT_OK, or the
 * exit code after saying what is wrong. */
int mox_cli_memory_settle(mox_cli_session *s, const mox_cli_options *o, mox_context_opts *first, mox_context_opts *second,
                          int64_t extra_bytes);
/* Its two halves: the plan, which may not fit; and what follows from one, refused here if it does not. */
int mox_cli_memory_plan(const mox_cli_session *s, const mox_cli_options *o, const mox_context_opts *first,
                        const mox_context_opts *second, int64_t extra_bytes, mox_plan *out);
int mox_cli_memory_follow(mox_cli_session *s, const mox_cli_options *o, const mox_plan *p, mox_context_opts *first,
                          mox_context_opts *second);

#endif
