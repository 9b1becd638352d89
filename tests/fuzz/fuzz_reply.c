/* Any text as a reply.  The first byte is the format, whether the prompt opened thinking,
 * whether the model ended by itself, and whether tools come first, up to a NUL; the second
 * is the length of pieces.  Fed whole, in pieces and in single characters the reply must be
 * the same; arguments must be objects; and no capital letter that cannot be part of markup
 * may be lost or doubled. */
#include "../unit/reply_kit.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int condition)
{
    if (!condition) abort();
}

/* Not of an escape, nor of True, False and None. */
static size_t count_letters(const char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += text[i] >= 'G' && text[i] <= 'Z' && text[i] != 'N' && text[i] != 'T';
    return count;
}

static size_t check_call(const mox_call *call)
{
    check(is_json_object(call->arguments));
    check(call->id[0] != '\0' && call->name[0] != '\0');
    return count_letters(call->name, strlen(call->name)) + count_letters(call->arguments, strlen(call->arguments));
}

static void check_message(const mox_reply *r, const notes *w, size_t n_letters)
{
    mox_message m;
    mox_reply_get_message(r, &m);
    check(!w->wrong && m.n_text == w->text.n && m.n_thinking == w->thinking.n && m.n_calls == w->n_calls);
    check(m.n_text == 0 || memcmp(m.text, w->text.text, m.n_text + 1) == 0);
    check(m.n_thinking == 0 || memcmp(m.thinking, w->thinking.text, m.n_thinking + 1) == 0);
    size_t count = count_letters(m.text, m.n_text) + count_letters(m.thinking, m.n_thinking);
    for (int32_t i = 0; i < m.n_calls; i++) count += check_call(&m.calls[i]);
    check(count == n_letters);
}

/* In pieces of step characters; 0: whole. */
static notes feed(mox_reply_opts opts, bool complete, const char *text, size_t n, size_t step)
{
    notes w = {.open = -1};
    mox_reply *r;
    opts.on_part = note_part;
    opts.on_part_user = &w;
    check(mox_reply_create(&r, &opts, NULL) == MOX_OK);
    string_puts(&w.line, "");
    for (size_t at = 0; at < n;) {
        size_t end = step == 0 ? n : at;
        for (size_t i = 0; i < step && end < n; i++) {
            uint32_t cp;
            end += mox_utf8_next((const unsigned char *)text + end, &cp);
        }
        check(mox_reply_push(r, text + at, end - at, NULL) == MOX_OK);
        at = end;
    }
    check(mox_reply_push(r, "\x80", 1, NULL) == MOX_E_ARG);
    check(mox_reply_finish(r, complete, NULL) == MOX_OK);
    check_message(r, &w, count_letters(text, n));
    mox_reply_destroy(&r);
    return w;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char usual[] =
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
        "\"i\":{\"type\":\"integer\"},\"b\":{\"type\":[\"boolean\",\"null\"]}}}}}]";
    if (size < 2) return 0;
    const uint8_t flags = data[0], step = data[1];
    mox_reply_opts opts = {.format = (mox_call_format)((flags & 7) % 7), .thinking = flags & 8};
    opts.tools = (mox_json_text){usual, sizeof usual - 1};
    const char *text = (const char *)data + 2;
    size_t n = size - 2;
    if (flags & 32) {
        mox_reply *r;
        mox_err err = {0};
        opts.tools = (mox_json_text){text, strnlen(text, n)};
        const mox_status status = mox_reply_create(&r, &opts, &err);
        check((status == MOX_OK) == (r != NULL) && err.status == status);
        mox_reply_destroy(&r);
        if (status != MOX_OK || opts.tools.n == n) return 0;
        text += opts.tools.n + 1;
        n -= opts.tools.n + 1;
    }
    n = mox_utf8_valid_prefix((const unsigned char *)text, n);
    notes whole = feed(opts, flags & 16, text, n, 0);
    const size_t steps[] = {1, (size_t)step % 32 + 2};
    for (size_t i = 0; i < 2; i++) {
        notes cut = feed(opts, flags & 16, text, n, steps[i]);
        check(cut.line.n == whole.line.n && memcmp(cut.line.text, whole.line.text, whole.line.n) == 0);
        notes_free(&cut);
    }
    notes_free(&whole);
    return 0;
}
