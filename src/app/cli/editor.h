/* app/cli/editor.h -- one line from a terminal, edited. */
#ifndef MOX_APP_CLI_EDITOR_H
#define MOX_APP_CLI_EDITOR_H

#include "app/cli/keys.h"
#include "app/cli/line.h"
#include "app/cli/paste.h"

typedef struct mox_cli_editor mox_cli_editor;

/* keys and pastes must outlive the editor.  NULL when it cannot be had. */
mox_cli_editor *mox_cli_editor_open(mox_cli_keys *keys, mox_cli_pastes *pastes, bool color);
void mox_cli_editor_close(mox_cli_editor **e);

/* The line without its newline, with labels for long pastes; freed with mox_free after
 * LINE_TEXT only.  continues: it is not the first of its message. */
mox_cli_line_event mox_cli_editor_read(mox_cli_editor *e, bool continues, char **out, size_t *n);
/* Adds to the history of this run. */
void mox_cli_editor_remember(mox_cli_editor *e, const char *text, size_t n);

#endif
