/* base/utf8.h -- reading and writing UTF-8, one character at a time.
 *
 * Well-formed means what Unicode says: no overlong forms, no surrogates, nothing
 * above U+10FFFF.  The streaming decoder of moxie/text.h lives in utf8.c. */
#ifndef MOX_BASE_UTF8_H
#define MOX_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the well-formed character at p, and its code point; 0 when there is
 * none in the n bytes. */
size_t mox_utf8_decode(const unsigned char *p, size_t n, uint32_t *cp);

/* The same for text known to be well-formed and not empty. */
static inline size_t mox_utf8_next(const unsigned char *p, uint32_t *cp)
{
    const uint32_t a = p[0];
    if (a < 0x80) {
        *cp = a;
        return 1;
    }
    if (a < 0xE0) {
        *cp = (a & 0x1F) << 6 | (p[1] & 0x3F);
        return 2;
    }
    if (a < 0xF0) {
        *cp = (a & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
        return 3;
    }
    *cp = (a & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 | (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
    return 4;
}

/* Writes cp (a Unicode scalar value) to dst, which has room for 4; returns the
 * bytes written. */
size_t mox_utf8_encode(uint32_t cp, unsigned char *dst);

/* Bytes at the front of p[0, n) that are whole, well-formed characters. */
size_t mox_utf8_valid_prefix(const unsigned char *p, size_t n);

#endif
