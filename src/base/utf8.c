/* base/utf8.c -- UTF-8, and the decoder that lets only whole characters out.
 *
 * I1  mox_utf8_stream.held is always the beginning of some well-formed
 *     character, and shorter than it.
 */
#include "base/utf8.h"

#include "moxie/text.h"

#include <string.h>

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* The length that a first byte announces, or 0 when no character begins so. */
static size_t lead_length(unsigned char a)
{
    if (a < 0x80) return 1;
    if (a < 0xC2) return 0;
    if (a < 0xE0) return 2;
    if (a < 0xF0) return 3;
    return a < 0xF5 ? 4 : 0;
}

/* May b follow as byte number i (from 1) of a character that starts with a?
 * The second byte is where overlong forms, surrogates and too large values are
 * told apart. */
static int may_follow(unsigned char a, size_t i, unsigned char b)
{
    unsigned char low = 0x80, high = 0xBF;
    if (i == 1) {
        if (a == 0xE0) low = 0xA0;
        if (a == 0xED) high = 0x9F;
        if (a == 0xF0) low = 0x90;
        if (a == 0xF4) high = 0x8F;
    }
    return b >= low && b <= high;
}

size_t mox_utf8_decode(const unsigned char *p, size_t n, uint32_t *cp)
{
    if (n == 0) return 0;
    const size_t length = lead_length(p[0]);
    if (length == 0 || length > n) return 0;
    for (size_t i = 1; i < length; i++) {
        if (!may_follow(p[0], i, p[i])) return 0;
    }
    return mox_utf8_next(p, cp);
}

size_t mox_utf8_encode(uint32_t cp, unsigned char *dst)
{
    if (cp < 0x80) {
        dst[0] = (unsigned char)cp;
        return 1;
    }
    if (cp < 0x800) {
        dst[0] = (unsigned char)(0xC0 | cp >> 6);
        dst[1] = (unsigned char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        dst[0] = (unsigned char)(0xE0 | cp >> 12);
        dst[1] = (unsigned char)(0x80 | (cp >> 6 & 0x3F));
        dst[2] = (unsigned char)(0x80 | (cp & 0x3F));
        return 3;
    }
    dst[0] = (unsigned char)(0xF0 | cp >> 18);
    dst[1] = (unsigned char)(0x80 | (cp >> 12 & 0x3F));
    dst[2] = (unsigned char)(0x80 | (cp >> 6 & 0x3F));
    dst[3] = (unsigned char)(0x80 | (cp & 0x3F));
    return 4;
}

size_t mox_utf8_valid_prefix(const unsigned char *p, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t word;
        while (n - i >= sizeof word) { /* eight ASCII bytes at once */
            memcpy(&word, p + i, sizeof word);
            if (word & UINT64_C(0x8080808080808080)) break;
            i += sizeof word;
        }
        if (i == n) break;
        uint32_t cp;
        const size_t length = mox_utf8_decode(p + i, n - i, &cp);
        if (length == 0) break;
        i += length;
    }
    return i;
}

/* Takes bytes for the character that is held, from the front of p[0, n), and
 * emits it when it is whole or can never be.  Returns the bytes taken. */
static size_t finish_held(mox_utf8_stream *s, const unsigned char *p, size_t n, mox_text_fn *emit, void *user)
{
    const size_t length = lead_length(s->held[0]);
    size_t taken = 0;
    while (taken < n && (size_t)s->n_held < length) {
        if (!may_follow(s->held[0], (size_t)s->n_held, p[taken])) {
            s->n_held = 0;
            emit(user, replacement, 3);
            return taken;
        }
        s->held[s->n_held++] = p[taken++];
    }
    if ((size_t)s->n_held == length) {
        emit(user, (const char *)s->held, length);
        s->n_held = 0;
    }
    return taken;
}

void mox_utf8_stream_push(mox_utf8_stream *s, const char *bytes, size_t n, mox_text_fn *emit, void *user)
{
    const unsigned char *p = (const unsigned char *)bytes;
    while (n > 0) {
        size_t taken;
        if (s->n_held > 0) {
            taken = finish_held(s, p, n, emit, user);
        } else if ((taken = mox_utf8_valid_prefix(p, n)) > 0) {
            emit(user, (const char *)p, taken);
        } else if (lead_length(p[0]) == 0) {
            emit(user, replacement, 3);
            taken = 1;
        } else { /* cut short or broken: finish_held finds out which */
            s->held[0] = p[0];
            s->n_held = 1;
            taken = 1;
        }
        p += taken;
        n -= taken;
    }
}

void mox_utf8_stream_end(mox_utf8_stream *s, mox_text_fn *emit, void *user)
{
    if (s->n_held > 0) emit(user, replacement, 3);
    s->n_held = 0;
}
