/* text/unicode.h -- what the split patterns ask about characters, and NFC.
 *
 * One byte of yes/no answers per code point, in a two-level table that is filled
 * from libutf8proc once per tokenizer and then only read.  Unassigned and private
 * code points have no bits. */
#ifndef MOX_TEXT_UNICODE_H
#define MOX_TEXT_UNICODE_H

#include "base/err.h"
#include "base/buffer.h"
#include "base/utf8.h"

#include <stddef.h>
#include <stdint.h>

enum {
    MOX_CHAR_LETTER = 1 << 0, /* \p{L} */
    MOX_CHAR_NUMBER = 1 << 1, /* \p{N} */
    MOX_CHAR_MARK = 1 << 2,   /* \p{M} */
    MOX_CHAR_SIGN = 1 << 3,   /* \p{P} and \p{S} */
    MOX_CHAR_SPACE = 1 << 4,  /* White_Space, which is \s in the reference */
    MOX_CHAR_UPPER = 1 << 5,  /* Lu Lt Lm Lo M: what may begin a word of a cased script */
    MOX_CHAR_LOWER = 1 << 6,  /* Ll Lm Lo M:    what may go on in it */
    MOX_CHAR_NFC = 1 << 7,    /* NFC may change it, or what stands before it */
    MOX_CHAR_ANY = 1 << 8     /* set for every character, so that 0 is "no character" */
};

enum { MOX_UNICODE_BLOCKS = 0x110000 >> 8 };

typedef struct mox_unicode {
    uint16_t block[MOX_UNICODE_BLOCKS]; /* index into bits, in blocks of 256 */
    uint8_t *bits;                      /* [distinct blocks, 256] */
} mox_unicode;

mox_status mox_unicode_init(mox_unicode *u, mox_err *err);
void mox_unicode_deinit(mox_unicode *u); /* zeroed storage is fine */

static inline unsigned mox_unicode_class(const mox_unicode *u, uint32_t cp)
{
    return u->bits[(size_t)u->block[cp >> 8] << 8 | (cp & 0xFF)] | (unsigned)MOX_CHAR_ANY;
}

/* Working storage of mox_nfc; zero-initialise, reuse, deinit. */
typedef struct mox_nfc_scratch {
    mox_buffer out, cps, sorted;
    size_t n_out, n_cps;
} mox_nfc_scratch;
void mox_nfc_scratch_deinit(mox_nfc_scratch *s);

/* NFC of text[0, n) in time linear in n.  Bytes that are not UTF-8 stay as they
 * are and nothing combines across them.  *out is text itself when nothing can
 * change, else lives in s until its next use. */
mox_status mox_nfc(const mox_unicode *u, const unsigned char *text, size_t n, mox_nfc_scratch *s,
                   const unsigned char **out, size_t *n_out, mox_err *err);

#endif
