/* app/cli/editor.c -- the line editor, on libedit.
 *
 * libedit gets its characters from keys.c, and through it sees events as control
 * characters that are bound to functions of ours.  Keys that would raise signals arrive as
 * characters, so that Ctrl-C is an editing command here.  The terminal has the editor's
 * modes only while a line is read. */
#include "app/cli/editor.h"

#include "app/cli/history.h"
#include "app/cli/stop.h"
#include "app/cli/tty.h"
#include "app/cli/wide.h"
#include "base/alloc.h"

#include <histedit.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct mox_cli_editor {
    EditLine *el;
    HistoryW *history;
    mox_cli_keys *keys;
    mox_cli_pastes *pastes;
    bool color, continues;
    bool cleared;     /* Ctrl-C emptied the line: begin again */
    bool interrupted; /* Ctrl-C, and there was nothing to empty */
};

static mox_cli_editor *self(EditLine *el)
{
    void *e = NULL;
    (void)el_wget(el, EL_CLIENTDATA, &e);
    return e;
}

static wchar_t *prompt(EditLine *el)
{
    static wchar_t first[] = L"> ", more[] = L". ";
    static wchar_t first_color[] = L"\1\x1b[1;36m\1> \1\x1b[0m\1", more_color[] = L"\1\x1b[36m\1. \1\x1b[0m\1";
    const mox_cli_editor *e = self(el);
    if (e->continues) return e->color ? more_color : more;
    return e->color ? first_color : first;
}

static int next_key(EditLine *el, wchar_t *out)
{
    mox_cli_editor *e = self(el);
    if (e->cleared) { /* the empty line is drawn; now leave it */
        *out = KEY_LEAVE;
        return 1;
    }
    return mox_cli_keys_next(e->keys, out) ? 1 : 0;
}

/* ---- commands ---------------------------------------------------------------- */

static bool is_empty(EditLine *el)
{
    const LineInfoW *l = el_wline(el);
    return l->lastchar == l->buffer;
}

static unsigned char on_interrupt(EditLine *el, wint_t key)
{
    mox_cli_editor *e = self(el);
    (void)key;
    if (is_empty(el)) {
        e->interrupted = true;
        return CC_EOF;
    }
    const LineInfoW *l = el_wline(el);
    const int n = (int)(l->lastchar - l->buffer);
    (void)el_cursor(el, n);
    el_wdeletestr(el, n);
    e->cleared = true;
    return CC_REFRESH;
}

static unsigned char on_leave(EditLine *el, wint_t key)
{
    (void)el;
    (void)key;
    return CC_EOF;
}

static unsigned char on_end_or_delete(EditLine *el, wint_t key)
{
    (void)key;
    if (is_empty(el)) return CC_EOF;
    const LineInfoW *l = el_wline(el);
    if (l->cursor == l->lastchar) return CC_ERROR;
    (void)el_cursor(el, 1);
    el_wdeletestr(el, 1);
    return CC_REFRESH;
}

static unsigned char on_resize(EditLine *el, wint_t key)
{
    (void)key;
    el_resize(el);
    return CC_REDISPLAY;
}

static unsigned char on_suspend(EditLine *el, wint_t key)
{
    (void)key;
    mox_cli_tty_mark_pastes(false);
    (void)el_wset(el, EL_PREP_TERM, 0);
    (void)raise(SIGTSTP);
    (void)el_wset(el, EL_PREP_TERM, 1);
    mox_cli_tty_mark_pastes(true);
    return CC_REDISPLAY;
}

static unsigned char insert_utf8(EditLine *el, const char *text, size_t n)
{
    wchar_t *wide = mox_cli_wide(text, n);
    const bool done = wide && (*wide == L'\0' || el_winsertstr(el, wide) == 0);
    mox_free(wide);
    return done ? CC_REFRESH : CC_ERROR;
}

static unsigned char on_paste(EditLine *el, wint_t key)
{
    const mox_cli_editor *e = self(el);
    const char *text = e->keys->paste;
    const size_t n = e->keys->n_paste;
    (void)key;
    if (n == 0) return CC_NORM;
    if (!mox_cli_paste_is_long(text, n)) return insert_utf8(el, text, n);
    const char *label = mox_cli_paste_keep(e->pastes, text, n);
    return label ? insert_utf8(el, label, strlen(label)) : CC_ERROR;
}

static unsigned char on_newline(EditLine *el, wint_t key)
{
    (void)key;
    return el_winsertstr(el, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
}

/* A label goes as a whole: half of one would be sent as it stands. */
static unsigned char on_backspace(EditLine *el, wint_t key)
{
    const LineInfoW *l = el_wline(el);
    (void)key;
    if (l->cursor == l->buffer) return CC_ERROR;
    size_t n, label = 0;
    char *text = mox_cli_utf8(l->buffer, (size_t)(l->cursor - l->buffer), &n);
    if (text) label = mox_cli_paste_label_at_end(self(el)->pastes, text, n);
    mox_free(text);
    el_wdeletestr(el, label > 0 ? (int)label : 1); /* labels are ASCII */
    return CC_REFRESH;
}

static unsigned char on_tab(EditLine *el, wint_t key)
{
    const LineInfoW *l = el_wline(el);
    (void)key;
    size_t n;
    char *text = mox_cli_utf8(l->buffer, (size_t)(l->cursor - l->buffer), &n);
    mox_cli_candidates c = {0};
    if (text) mox_cli_complete(text, n, &c);
    mox_free(text);
    unsigned char result = CC_ERROR;
    if (c.insert[0]) {
        result = insert_utf8(el, c.insert, strlen(c.insert));
    } else if (c.n > 1) {
        FILE *out = NULL;
        (void)el_wget(el, EL_GETFP, 1, &out);
        if (out) {
            fputs("\r\n", out);
            for (size_t i = 0; i < c.n; i++) fprintf(out, "%s%s", c.list[i], i + 1 < c.n ? "  " : "\r\n");
        }
        result = CC_REDISPLAY;
    }
    mox_cli_candidates_free(&c);
    return result;
}

/* ---- set-up ------------------------------------------------------------------ */

static const struct {
    const wchar_t *name, *help;
    unsigned char (*fn)(EditLine *, wint_t);
    const wchar_t *keys[4];
} commands[] = {
    {L"mox-interrupt", L"empty the line", on_interrupt, {L"^C"}},
    {L"mox-leave", L"leave the line", on_leave, {L"^\\"}},
    {L"mox-end", L"end of input, or delete", on_end_or_delete, {L"^D"}},
    {L"mox-resize", L"the window has another size", on_resize, {L"^_"}},
    {L"mox-suspend", L"stop the program", on_suspend, {L"^Z"}},
    {L"mox-paste", L"insert what was pasted", on_paste, {L"^^"}},
    {L"mox-newline", L"insert a newline", on_newline, {L"\x1b\r", L"\x1b\n"}},
    {L"mox-backspace", L"delete backwards", on_backspace, {L"^?", L"^H"}},
    {L"mox-tab", L"complete", on_tab, {L"^I"}},
};

/* What terminals send, whatever their description says. */
static const wchar_t *const keys[][2] = {
    {L"\x1b[H", L"ed-move-to-beg"},    {L"\x1bOH", L"ed-move-to-beg"},    {L"\x1b[1~", L"ed-move-to-beg"},
    {L"\x1b[7~", L"ed-move-to-beg"},   {L"\x1b[F", L"ed-move-to-end"},    {L"\x1bOF", L"ed-move-to-end"},
    {L"\x1b[4~", L"ed-move-to-end"},   {L"\x1b[8~", L"ed-move-to-end"},   {L"\x1b[3~", L"ed-delete-next-char"},
    {L"\x1b[1;5D", L"ed-prev-word"},   {L"\x1b[1;5C", L"em-next-word"},   {L"\x1b[1;3D", L"ed-prev-word"},
    {L"\x1b[1;3C", L"em-next-word"},   {L"^W", L"ed-delete-prev-word"},   {L"^U", L"vi-kill-line-prev"},
    {L"\x1b[A", L"ed-prev-history"},   {L"\x1b[B", L"ed-next-history"},   {L"\x1bOA", L"ed-prev-history"},
    {L"\x1bOB", L"ed-next-history"},
};

static void bind_keys(EditLine *el)
{
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) (void)el_wset(el, EL_BIND, keys[i][0], keys[i][1], NULL);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        (void)el_wset(el, EL_ADDFN, commands[i].name, commands[i].help, commands[i].fn);
        for (size_t j = 0; j < 4 && commands[i].keys[j]; j++)
            (void)el_wset(el, EL_BIND, commands[i].keys[j], commands[i].name, NULL);
    }
}

mox_cli_editor *mox_cli_editor_open(mox_cli_keys *k, mox_cli_pastes *pastes, bool color)
{
    /* what the model writes is UTF-8, so the terminal is taken to be */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) (void)setlocale(LC_CTYPE, "C.UTF-8");
    mox_cli_editor *e = mox_alloc_array(1, sizeof *e);
    if (!e) return NULL;
    *e = (mox_cli_editor){.keys = k, .pastes = pastes, .color = color};
    e->el = el_init("moxie", stdin, stdout, stderr);
    e->history = history_winit();
    if (!e->el || !e->history) {
        mox_cli_editor_close(&e);
        return NULL;
    }
    HistEventW event;
    (void)history_w(e->history, &event, H_SETSIZE, MOX_CLI_HISTORY_ENTRIES);
    (void)history_w(e->history, &event, H_SETUNIQUE, 1);
    (void)el_wset(e->el, EL_CLIENTDATA, e);
    (void)el_wset(e->el, EL_GETCFN, next_key);
    (void)el_wset(e->el, EL_EDITOR, L"emacs");
    (void)el_wset(e->el, EL_PROMPT_ESC, prompt, L'\1');
    (void)el_wset(e->el, EL_HIST, history_w, e->history);
    (void)el_wset(e->el, EL_SETTY, L"-d", L"-isig", L"-icrnl", L"-inlcr", NULL);
    bind_keys(e->el);
    mox_cli_keys_watch_size();
    return e;
}

void mox_cli_editor_close(mox_cli_editor **e)
{
    if (!*e) return;
    if ((*e)->el) el_end((*e)->el);
    if ((*e)->history) history_wend((*e)->history);
    mox_free(*e);
    *e = NULL;
}

/* ---- reading ----------------------------------------------------------------- */

mox_cli_line_event mox_cli_editor_read(mox_cli_editor *e, bool continues, char **out, size_t *n)
{
    const wchar_t *line;
    int n_wide = 0;
    e->continues = continues;
    e->interrupted = false;
    mox_cli_tty_mark_pastes(true);
    el_resize(e->el);
    do {
        if (e->cleared) fputs("\r", stdout);
        e->cleared = false;
        (void)el_wset(e->el, EL_PREP_TERM, 1); /* before the prompt: who sees it may type */
        line = el_wgets(e->el, &n_wide);
    } while (!line && e->cleared && !continues);
    mox_cli_tty_mark_pastes(false);
    if (!line) {
        fputs("\r\n", stdout);
        fflush(stdout);
        if (mox_cli_stop_signal()) return LINE_TERMINATE;
        return e->interrupted || e->cleared ? LINE_INTERRUPT : LINE_END;
    }
    size_t length = (size_t)n_wide;
    while (length > 0 && (line[length - 1] == L'\n' || line[length - 1] == L'\r')) length--;
    *out = mox_cli_utf8(line, length, n);
    return *out ? LINE_TEXT : LINE_FAILED;
}

void mox_cli_editor_remember(mox_cli_editor *e, const char *text, size_t n)
{
    HistEventW event;
    if (mox_cli_paste_is_long(text, n)) {
        text = mox_cli_paste_keep(e->pastes, text, n);
        n = text ? strlen(text) : 0;
    }
    wchar_t *wide = n > 0 ? mox_cli_wide(text, n) : NULL;
    if (wide) (void)history_w(e->history, &event, H_ENTER, wide);
    mox_free(wide);
}
