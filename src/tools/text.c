/* tools/text.c -- see text.h. */
#include "tools/text.h"

#include "base/alloc.h"

#include <stdarg.h>
#include <stdio.h>

void mox_text_add(mox_text *t, const char *format, ...)
{
    if (t->failed) return;
    for (;;) {
        va_list args;
        va_start(args, format);
        const size_t room = t->capacity - t->n;
        const int n = vsnprintf(t->bytes ? t->bytes + t->n : NULL, room, format, args);
        va_end(args);
        if (n >= 0 && (size_t)n < room) {
            t->n += (size_t)n;
            return;
        }
        char *grown = n < 0 ? NULL : mox_realloc_array(t->bytes, 2 * (t->n + (size_t)n + 64), 1);
        if (!grown) {
            t->failed = true;
            return;
        }
        t->capacity = 2 * (t->n + (size_t)n + 64);
        t->bytes = grown;
    }
}

char *mox_text_end(mox_text *t)
{
    if (t->failed) {
        mox_free(t->bytes);
        t->bytes = NULL;
    }
    return t->bytes;
}
