/* app/server/put.c -- see put.h. */
#include "app/server/put.h"

#include "base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void mox_put_raw(mox_put *p, const char *text, size_t n)
{
    if (!p->failed && mox_write(&p->w, text, n, NULL) != MOX_OK) p->failed = true;
}

void mox_putf(mox_put *p, const char *format, ...)
{
    char small[512];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof small) {
        mox_put_raw(p, small, (size_t)n);
        return;
    }
    char *large = n < 0 ? NULL : mox_alloc((size_t)n + 1);
    if (!large) {
        p->failed = true;
        return;
    }
    va_start(args, format);
    (void)vsnprintf(large, (size_t)n + 1, format, args);
    va_end(args);
    mox_put_raw(p, large, (size_t)n);
    mox_free(large);
}

static void put_valid(mox_put *p, const char *text, size_t n)
{
    if (!p->failed && mox_write_json(&p->w, text, n, NULL) != MOX_OK) p->failed = true;
}

void mox_put_json(mox_put *p, const char *text, size_t n)
{
    size_t valid = mox_utf8_valid_prefix((const unsigned char *)text, n);
    if (valid == n) {
        put_valid(p, text, n);
        return;
    }
    mox_put whole = {0};
    while (n > 0) {
        mox_put_raw(&whole, text, valid);
        text += valid;
        n -= valid;
        if (n == 0) break;
        mox_put_raw(&whole, "\xEF\xBF\xBD", 3);
        text++;
        n--;
        valid = mox_utf8_valid_prefix((const unsigned char *)text, n);
    }
    if (whole.failed) p->failed = true;
    else put_valid(p, mox_writer_text(&whole.w), whole.w.n);
    mox_put_deinit(&whole);
}

void mox_put_string(mox_put *p, const char *text)
{
    if (text) mox_put_json(p, text, strlen(text));
    else mox_put_raw(p, "null", 4);
}

void mox_put_real(mox_put *p, double x)
{
    if (isfinite(x)) mox_putf(p, "%.7g", x);
    else mox_put_raw(p, "null", 4);
}
