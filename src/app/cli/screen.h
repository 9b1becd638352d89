/* app/cli/screen.h -- a reply as somebody sees it: thinking, text and tool calls.
 *
 * In a terminal thinking is dim (or between marks, without colour) and apart from the
 * text by an empty line, and tool calls stand on lines of their own; control characters
 * do not get through.  Elsewhere standard output is the reply's text, and its tool calls as
 * lines of JSON. */
#ifndef MOX_APP_CLI_SCREEN_H
#define MOX_APP_CLI_SCREEN_H

#include "moxie/chat.h"

typedef struct mox_cli_screen {
    bool color, terminal;
    bool open;     /* a part has begun that is not yet ended */
    bool any;      /* something was written */
    mox_part part; /* the one that is open */
    size_t newlines; /* at the end of the part: written when more of it comes */
} mox_cli_screen;

void mox_cli_screen_begin(mox_cli_screen *s, bool color);
/* A mox_part_fn, for a screen. */
void mox_cli_screen_part(void *screen, mox_part part, int32_t call, const char *text, size_t n);
/* Ends the line and all colours. */
void mox_cli_screen_end(mox_cli_screen *s);

#endif
