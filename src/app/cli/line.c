/* app/cli/line.c -- lines to messages.
 *
 * Where the lines come from is the editor's matter or that of plain reading; what makes a
 * message of them is the same.  A message is put into the history whole, as it was sent. */
#include "app/cli/line.h"

#include "app/cli/editor.h"
#include "app/cli/history.h"
#include "app/cli/keys.h"
#include "app/cli/message.h"
#include "app/cli/paste.h"
#include "app/cli/terminal.h"
#include "base/alloc.h"
#include "moxie/text.h"

#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES_MAX = 1 << 26 };

typedef struct buffer {
    char *bytes;
    size_t n, capacity;
    bool failed;
} buffer;

struct mox_cli_line {
    mox_cli_keys keys;
    mox_cli_pastes pastes;
    mox_cli_editor *editor; /* NULL: plain lines */
    char *history;          /* path; NULL: none */
    bool interactive;
    bool prompts; /* plain lines, in a terminal */
};

static void append(void *user, const char *text, size_t n)
{
    buffer *b = user;
    if (b->failed) return;
    if (b->n + n + 1 > b->capacity) {
        const size_t capacity = 2 * (b->n + n) + 256;
        char *bigger = capacity <= MESSAGE_BYTES_MAX ? mox_realloc_array(b->bytes, capacity, 1) : NULL;
        if (!bigger) {
            b->failed = true;
            return;
        }
        b->bytes = bigger;
        b->capacity = capacity;
    }
    memcpy(b->bytes + b->n, text, n);
    b->n += n;
    b->bytes[b->n] = '\0';
}

/* ---- one line ---------------------------------------------------------------- */

static mox_cli_line_event read_plain(mox_cli_line *line, bool continues, buffer *out)
{
    mox_utf8_stream stream = {0};
    if (line->prompts) {
        fputs(continues ? ". " : "> ", stdout);
        fflush(stdout);
    }
    append(out, "", 0);
    for (bool any = false;; any = true) {
        char c;
        const mox_cli_input_event event = mox_cli_keys_byte(&line->keys, &c);
        if (event == INPUT_RESIZE) continue;
        if (event != INPUT_BYTE && line->prompts) fputc('\n', stdout);
        if (event == INPUT_INTERRUPT) return LINE_INTERRUPT;
        if (event == INPUT_TERMINATE) return LINE_TERMINATE;
        if (event == INPUT_END && !any) return LINE_END;
        if (event == INPUT_END || c == '\n') break;
        if (c != '\0') mox_utf8_stream_push(&stream, &c, 1, append, out);
    }
    mox_utf8_stream_end(&stream, append, out);
    if (out->n > 0 && out->bytes[out->n - 1] == '\r') out->bytes[--out->n] = '\0';
    return LINE_TEXT;
}

static mox_cli_line_event read_line(mox_cli_line *line, bool continues, buffer *out)
{
    out->n = 0;
    if (!line->editor) return read_plain(line, continues, out);
    char *text = NULL;
    size_t n;
    const mox_cli_line_event event = mox_cli_editor_read(line->editor, continues, &text, &n);
    if (event == LINE_TEXT) append(out, text, n);
    mox_free(text);
    return event;
}

/* ---- messages ---------------------------------------------------------------- */

static const char quotes[] = "\"\"\"";
enum { QUOTES = 3 };

static bool begins_block(const buffer *b) { return b->n >= QUOTES && memcmp(b->bytes, quotes, QUOTES) == 0; }

/* Takes away the quotes that end a block, and blanks behind them; false without. */
static bool end_block(buffer *b)
{
    size_t n = b->n;
    while (n > 0 && (b->bytes[n - 1] == ' ' || b->bytes[n - 1] == '\t')) n--;
    if (n < QUOTES || memcmp(b->bytes + n - QUOTES, quotes, QUOTES) != 0) return false;
    b->bytes[b->n = n - QUOTES] = '\0';
    return true;
}

/* Takes away the backslash that continues a line; two of them are text. */
static bool end_continued(buffer *b)
{
    size_t n = 0;
    while (n < b->n && b->bytes[b->n - 1 - n] == '\\') n++;
    if (n % 2 == 0) return false;
    b->bytes[--b->n] = '\0';
    return true;
}

/* Lines up to the end of the message, with labels still in them.  Of a block, the newlines
 * next to its quotes are not text.  *n_lines is how many there were before an event that
 * is no text. */
static mox_cli_line_event read_message(mox_cli_line *line, buffer *all, bool *block, int *n_lines)
{
    buffer piece = {0};
    bool more = true;
    mox_cli_line_event event = LINE_TEXT;
    for (*n_lines = 0; more && !piece.failed && !all->failed; ++*n_lines) {
        event = read_line(line, *n_lines > 0, &piece);
        if (event != LINE_TEXT || piece.failed) break;
        if (*n_lines > 0) append(all, "\n", 1);
        else *block = begins_block(&piece);
        if (*n_lines == 0 && *block) {
            piece.n -= QUOTES;
            memmove(piece.bytes, piece.bytes + QUOTES, piece.n + 1);
        }
        more = *block ? !end_block(&piece) : end_continued(&piece);
        append(all, piece.bytes, piece.n);
    }
    if (event == LINE_END && *n_lines > 0) event = LINE_TEXT; /* what there is, is the message */
    if (*block && !all->failed) {
        if (all->n > 0 && all->bytes[all->n - 1] == '\n') all->bytes[--all->n] = '\0';
        if (all->n > 0 && all->bytes[0] == '\n') memmove(all->bytes, all->bytes + 1, all->n--);
    }
    all->failed = all->failed || piece.failed;
    mox_free(piece.bytes);
    return event;
}

/* From all of a message to out, and into the history. */
static mox_cli_line_event finish(mox_cli_line *line, const buffer *all, bool block, mox_cli_line_text *out)
{
    if (!all->failed) out->bytes = mox_cli_paste_expand(&line->pastes, all->bytes, all->n, &out->n);
    if (!out->bytes) {
        mox_cli_say("this message is too long");
        return LINE_FAILED;
    }
    out->literal = block || all->bytes[0] != '/';
    if (!block) /* blanks that Tab and Ctrl-W leave are not meant */
        while (out->n > 0 && strchr(" \t\n", out->bytes[out->n - 1])) out->bytes[--out->n] = '\0';
    if (line->editor && strspn(out->bytes, " \t\n") < out->n) {
        mox_cli_editor_remember(line->editor, out->bytes, out->n);
        mox_cli_history_add(line->history, out->bytes, out->n);
    }
    return LINE_TEXT;
}

mox_cli_line_event mox_cli_line_read(mox_cli_line *line, mox_cli_line_text *out)
{
    buffer all = {0};
    bool block = false;
    int n_lines;
    *out = (mox_cli_line_text){0};
    mox_cli_line_event event;
    do {
        all.n = 0;
        append(&all, "", 0);
        event = read_message(line, &all, &block, &n_lines);
    } while (event == LINE_INTERRUPT && n_lines > 0); /* there was a message, and it is dropped */
    if (event == LINE_TEXT) event = finish(line, &all, block, out);
    mox_free(all.bytes);
    return event;
}

/* ---- set-up ------------------------------------------------------------------ */

static void remember(void *editor, const char *text, size_t n) { mox_cli_editor_remember(editor, text, n); }

mox_cli_line *mox_cli_line_open(bool color)
{
    mox_cli_line *line = mox_alloc_array(1, sizeof *line);
    if (!line) {
        mox_cli_say("out of memory for the line editor");
        return NULL;
    }
    line->interactive = mox_cli_stdin_is_terminal() && mox_cli_stdout_is_terminal();
    if (line->interactive && mox_cli_term_is_capable())
        line->editor = mox_cli_editor_open(&line->keys, &line->pastes, color);
    line->prompts = line->interactive && !line->editor;
    if (line->editor) {
        line->history = mox_cli_history_path();
        mox_cli_history_load(line->history, remember, line->editor);
    }
    return line;
}

void mox_cli_line_close(mox_cli_line **line)
{
    if (!*line) return;
    mox_cli_editor_close(&(*line)->editor);
    mox_cli_pastes_free(&(*line)->pastes);
    mox_cli_keys_free(&(*line)->keys);
    mox_free((*line)->history);
    mox_free(*line);
    *line = NULL;
}

bool mox_cli_line_is_interactive(const mox_cli_line *line) { return line->interactive; }
