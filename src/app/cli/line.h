/* app/cli/line.h -- messages from standard input.
 *
 * In a terminal that can move its cursor, an editor with history and completion; in any
 * other terminal, a prompt; from a pipe, lines.  In all three a backslash at the end of a
 * line continues the message and """ encloses several lines. */
#ifndef MOX_APP_CLI_LINE_H
#define MOX_APP_CLI_LINE_H

#include "app/cli/complete.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct mox_cli_line mox_cli_line;

/* NULL, and said, when out of memory. */
mox_cli_line *mox_cli_line_open(bool color);
void mox_cli_line_close(mox_cli_line **line);
/* Somebody sits at a terminal. */
bool mox_cli_line_is_interactive(const mox_cli_line *line);

typedef enum mox_cli_line_event {
    LINE_TEXT,
    LINE_END,       /* end of the input, Ctrl-D on an empty line */
    LINE_INTERRUPT, /* Ctrl-C where there was nothing to drop */
    LINE_TERMINATE, /* SIGTERM */
    LINE_FAILED,    /* said */
} mox_cli_line_event;

typedef struct mox_cli_line_text {
    char *bytes; /* terminated, UTF-8 without NULs; free with mox_free */
    size_t n;
    bool literal; /* enclosed or pasted: a slash at its start is no command */
} mox_cli_line_text;

/* The next message.  out is to be freed after LINE_TEXT only. */
mox_cli_line_event mox_cli_line_read(mox_cli_line *line, mox_cli_line_text *out);

#endif
