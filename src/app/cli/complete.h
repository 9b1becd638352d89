/* app/cli/complete.h -- what Tab adds to a command: its name, a setting, a file. */
#ifndef MOX_APP_CLI_COMPLETE_H
#define MOX_APP_CLI_COMPLETE_H

#include <stddef.h>

typedef struct mox_cli_candidates { /* zero-initialise; release with mox_cli_candidates_free */
    char insert[256]; /* what all that fit have in common beyond what is typed */
    char **list;      /* those that fit, in order */
    size_t n, capacity;
} mox_cli_candidates;

/* line[0, n) is what stands before the cursor. */
void mox_cli_complete(const char *line, size_t n, mox_cli_candidates *out);
void mox_cli_candidates_free(mox_cli_candidates *c);

#endif
