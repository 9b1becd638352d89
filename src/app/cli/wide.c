/* app/cli/wide.c -- wide characters. */
#include "app/cli/wide.h"

#include "base/alloc.h"
#include "moxie/text.h"

#include <string.h>

static size_t length_of(unsigned char first) { return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4; }

wchar_t mox_cli_wide_char(const char *utf8)
{
    const unsigned char first = (unsigned char)utf8[0];
    const size_t n = length_of(first);
    unsigned c = n == 1 ? first : first & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) c = c << 6 | ((unsigned char)utf8[i] & 0x3Fu);
    return (wchar_t)c;
}

typedef struct filling {
    wchar_t *out;
    size_t n;
} filling;

static void fill(void *user, const char *text, size_t n)
{
    filling *f = user;
    for (size_t i = 0; i < n; i += length_of((unsigned char)text[i])) f->out[f->n++] = mox_cli_wide_char(text + i);
}

wchar_t *mox_cli_wide(const char *utf8, size_t n)
{
    filling f = {.out = mox_alloc_array(n + 1, sizeof *f.out)};
    mox_utf8_stream stream = {0};
    if (!f.out) return NULL;
    mox_utf8_stream_push(&stream, utf8, n, fill, &f);
    mox_utf8_stream_end(&stream, fill, &f);
    return f.out;
}

char *mox_cli_utf8(const wchar_t *wide, size_t n, size_t *n_out)
{
    char *out = mox_alloc_array(n + 1, 4);
    size_t m = 0;
    if (!out) return NULL;
    for (size_t i = 0; i < n; i++) {
        unsigned c = (unsigned)wide[i];
        if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) c = 0xFFFD;
        if (c < 0x80) {
            out[m++] = (char)c;
            continue;
        }
        const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
        out[m++] = (char)((0xFF00u >> (more + 1) & 0xFFu) | c >> (6 * more)); /* 110, 1110 or 11110 and bits */
        for (int k = more - 1; k >= 0; k--) out[m++] = (char)(0x80u | (c >> (6 * k) & 0x3Fu));
    }
    *n_out = m;
    return out;
}
