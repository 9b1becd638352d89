/* base/writer.c -- a text that grows. */
#include "base/writer.h"

#include <stdio.h>
#include <string.h>

mox_status mox_write(mox_writer *w, const char *text, size_t n, mox_err *err)
{
    if (n > SIZE_MAX - w->n - 1) return mox_fail_memory(err, SIZE_MAX, "a text");
    MOX_TRY(mox_buffer_reserve(&w->bytes, w->n + n + 1, 1, "a text", err));
    char *p = w->bytes.data;
    if (n > 0) memcpy(p + w->n, text, n);
    w->n += n;
    p[w->n] = '\0';
    return MOX_OK;
}

mox_status mox_write_text(mox_writer *w, const char *text, mox_err *err) { return mox_write(w, text, strlen(text), err); }

mox_status mox_write_json(mox_writer *w, const char *text, size_t n, mox_err *err)
{
    MOX_TRY(mox_write(w, "\"", 1, err));
    size_t begin = 0;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        char escape[8];
        (void)snprintf(escape, sizeof escape, c == '\n' ? "\\n" : c == '\t' ? "\\t" : c >= 0x20 ? "\\%c" : "\\u%04x", c);
        MOX_TRY(mox_write(w, text + begin, i - begin, err));
        MOX_TRY(mox_write_text(w, escape, err));
        begin = i + 1;
    }
    MOX_TRY(mox_write(w, text + begin, n - begin, err));
    return mox_write(w, "\"", 1, err);
}

char *mox_writer_take(mox_writer *w)
{
    char *text = w->bytes.data;
    *w = (mox_writer){0};
    return text;
}
