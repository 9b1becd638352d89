/* app/cli/paste.h -- long texts in a line that is edited.
 *
 * A text of many lines stands in the line as a label, "[paste 2: 50 lines]", which is one
 * key press to delete and becomes the text again when the line is sent. */
#ifndef MOX_APP_CLI_PASTE_H
#define MOX_APP_CLI_PASTE_H

#include <stdbool.h>
#include <stddef.h>

enum { MOX_CLI_LABEL_BYTES = 48 };

typedef struct mox_cli_paste {
    char label[MOX_CLI_LABEL_BYTES];
    char *text;
    size_t n;
} mox_cli_paste;

typedef struct mox_cli_pastes { /* zero-initialise */
    mox_cli_paste *list;
    size_t n, capacity;
} mox_cli_pastes;

/* A text that is too much for a line. */
bool mox_cli_paste_is_long(const char *text, size_t n);
/* Keeps a copy of text and returns its label, which lives until the next call; NULL when
 * out of memory.  The same text has one label. */
const char *mox_cli_paste_keep(mox_cli_pastes *p, const char *text, size_t n);
/* line with the texts in place of their labels; the caller frees it with mox_free.  NULL
 * when out of memory. */
char *mox_cli_paste_expand(const mox_cli_pastes *p, const char *line, size_t n, size_t *n_out);
/* Bytes of the label that line[0, n) ends with; 0 when it ends with none. */
size_t mox_cli_paste_label_at_end(const mox_cli_pastes *p, const char *line, size_t n);
void mox_cli_pastes_free(mox_cli_pastes *p);

#endif
