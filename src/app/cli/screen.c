/* app/cli/screen.c -- parts of a reply to the screen.
 *
 * Newlines around parts are the model's habit and not layout: those before a part's first
 * character and behind its last are dropped, and what separates parts is ours. */
#include "app/cli/screen.h"

#include "app/cli/output.h"
#include "app/cli/terminal.h"
#include "app/cli/tty.h"

#include <string.h>

static const char dim[] = "\x1b[2m", call_color[] = "\x1b[33m", plain[] = "\x1b[0m";

void mox_cli_screen_begin(mox_cli_screen *s, bool color)
{
    *s = (mox_cli_screen){.color = color, .terminal = mox_cli_stdout_is_terminal()};
    if (color) mox_cli_tty_colored();
}

static void put(const char *text) { mox_cli_put(text, strlen(text)); }

static bool is_call(mox_part part) { return part == MOX_PART_CALL_NAME || part == MOX_PART_CALL_ARGUMENTS; }

static void end_part(mox_cli_screen *s)
{
    if (!s->open) return;
    if (s->color && s->part != MOX_PART_TEXT) put(plain);
    if (s->part == MOX_PART_THINKING && !s->color) put("\n[/thinking]");
    if (is_call(s->part) && !s->terminal) put("}");
    put("\n");
    s->open = false;
    s->newlines = 0;
}

static void begin_part(mox_cli_screen *s, mox_part part)
{
    const bool after_call = s->any && is_call(s->part) && is_call(part);
    if (s->any && !after_call) put("\n"); /* an empty line between */
    s->open = s->any = true;
    s->part = part;
    if (s->color && part == MOX_PART_THINKING) put(dim);
    else if (s->color && is_call(part)) put(call_color);
    if (part == MOX_PART_THINKING && !s->color) put("[thinking]\n");
    if (part == MOX_PART_CALL_NAME) put(s->terminal ? "[call] " : "{\"name\": ");
}

void mox_cli_screen_part(void *screen, mox_part part, int32_t call, const char *text, size_t n)
{
    mox_cli_screen *s = screen;
    (void)call;
    if (part == MOX_PART_THINKING && !s->terminal) return;
    const bool same = s->open && (s->part == part || (is_call(s->part) && part == MOX_PART_CALL_ARGUMENTS));
    if (s->open && (!same || part == MOX_PART_CALL_NAME)) end_part(s);
    if (!s->open) {
        for (; n > 0 && *text == '\n'; n--) text++;
        if (n == 0) return;
        begin_part(s, part);
    } else if (s->part == MOX_PART_CALL_NAME && part == MOX_PART_CALL_ARGUMENTS) {
        put(s->terminal ? " " : ", \"arguments\": ");
    }
    s->part = part;
    if (part == MOX_PART_CALL_NAME && !s->terminal) {
        mox_cli_put_json(text, n);
        return;
    }
    size_t end = n; /* of what is written now */
    while (end > 0 && text[end - 1] == '\n') end--;
    if (end > 0) {
        for (; s->newlines > 0; s->newlines--) put("\n");
        mox_cli_put_text(text, end);
    }
    s->newlines += n - end;
    mox_cli_put_flush();
}

void mox_cli_screen_end(mox_cli_screen *s)
{
    end_part(s);
    mox_cli_put_flush();
}
