/* app/cli/input.h -- the text or the token ids that a command works on. */
#ifndef MOX_APP_CLI_INPUT_H
#define MOX_APP_CLI_INPUT_H

#include "app/cli/options.h"

#include <stddef.h>

/* Free bytes with mox_free and ids with mox_free, also after a failure. */
typedef struct mox_cli_text {
    char *bytes; /* NUL-terminated, but NULs may be inside too */
    size_t n;
} mox_cli_text;

typedef struct mox_cli_ids {
    int32_t *ids;
    int64_t n;
} mox_cli_ids;

/* All of these return EXIT_OK, or the exit code after saying what is wrong. */

/* What -p, -f, "-" or a piped standard input gave. */
int mox_cli_read_text(const mox_cli_options *o, mox_cli_text *out);
/* A whole file; "-" is standard input. */
int mox_cli_read_file(const char *path, mox_cli_text *out);
/* Decimal ids between blanks, or one JSON array of them.  name is for messages. */
int mox_cli_parse_ids(const mox_cli_text *text, const char *name, mox_cli_ids *out);

#endif
