/* text/unicode.c -- the character table and canonical composition.
 *
 * libutf8proc knows decompositions, combining classes and compositions; its own
 * ordering of marks is quadratic in a run of them, so the ordering is done here.
 *
 * Only characters with MOX_CHAR_NFC, and the one in front of them, ever go
 * through decomposition: everything else is copied.  That is sound because a
 * character without the bit has combining class 0, is its own NFC and is never
 * the second half of a composition.
 */
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { DECOMPOSED_MAX = 32 }; /* code points from one; the longest of Unicode is 4 */

static int combining_class(int32_t cp) { return utf8proc_get_property(cp)->combining_class; }

static unsigned category_bits(utf8proc_category_t category)
{
    switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT: return MOX_CHAR_LETTER | MOX_CHAR_UPPER;
    case UTF8PROC_CATEGORY_LL: return MOX_CHAR_LETTER | MOX_CHAR_LOWER;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return MOX_CHAR_LETTER | MOX_CHAR_UPPER | MOX_CHAR_LOWER;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return MOX_CHAR_MARK | MOX_CHAR_UPPER | MOX_CHAR_LOWER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return MOX_CHAR_NUMBER;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO: return MOX_CHAR_SIGN;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return MOX_CHAR_SPACE;
    default: return 0;
    }
}

/* Canonical decomposition of one code point; the count, or 0 when the library
 * answers something impossible. */
static size_t decompose(int32_t cp, int32_t dst[DECOMPOSED_MAX])
{
    int last_boundclass = 0;
    const utf8proc_ssize_t n =
        utf8proc_decompose_char(cp, dst, DECOMPOSED_MAX, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &last_boundclass);
    return n < 1 || n > DECOMPOSED_MAX ? 0 : (size_t)n;
}

static size_t compose(int32_t *cps, size_t n)
{
    const utf8proc_ssize_t composed =
        utf8proc_normalize_utf32(cps, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    return composed < 0 ? n : (size_t)composed;
}

/* Marks (some compose though their class is 0), the Hangul vowels and finals,
 * and what NFC replaces. */
static unsigned nfc_bit(int32_t cp, const utf8proc_property_t *property, unsigned bits)
{
    const int category = property->category;
    if (category == UTF8PROC_CATEGORY_CN || category == UTF8PROC_CATEGORY_CO || category == UTF8PROC_CATEGORY_CS) {
        return 0;
    }
    if ((bits & MOX_CHAR_MARK) || (cp >= 0x1160 && cp <= 0x11FF) || property->combining_class != 0) return MOX_CHAR_NFC;
    if (cp >= 0xAC00 && cp <= 0xD7A3) return 0; /* Hangul syllables compose back to themselves */
    int32_t parts[DECOMPOSED_MAX];
    const size_t n = decompose(cp, parts);
    return n == 0 || (compose(parts, n) == 1 && parts[0] == cp) ? 0 : MOX_CHAR_NFC;
}

static uint8_t bits_of(int32_t cp)
{
    const utf8proc_property_t *property = utf8proc_get_property(cp);
    unsigned bits = category_bits((utf8proc_category_t)property->category);
    if ((cp >= 0x09 && cp <= 0x0D) || cp == 0x85) bits |= MOX_CHAR_SPACE; /* White_Space though controls */
    return (uint8_t)(bits | nfc_bit(cp, property, bits));
}

mox_status mox_unicode_init(mox_unicode *u, mox_err *err)
{
    size_t n = 0;
    mox_buffer blocks = {0};
    for (size_t b = 0; b < MOX_UNICODE_BLOCKS; b++) {
        const mox_status status = mox_buffer_reserve(&blocks, (n + 1) << 8, 1, "the character table", err);
        if (status != MOX_OK) {
            mox_buffer_deinit(&blocks);
            return status;
        }
        uint8_t *bits = blocks.data, *fresh = bits + (n << 8);
        for (size_t i = 0; i < 256; i++) fresh[i] = bits_of((int32_t)(b << 8 | i));
        size_t same = 0;
        while (same < n && memcmp(bits + (same << 8), fresh, 256) != 0) same++;
        u->block[b] = (uint16_t)same;
        if (same == n) n++;
    }
    u->bits = blocks.data;
    return MOX_OK;
}

void mox_unicode_deinit(mox_unicode *u)
{
    mox_free(u->bits);
    u->bits = NULL;
}

/* ---- NFC -------------------------------------------------------------------- */

void mox_nfc_scratch_deinit(mox_nfc_scratch *s)
{
    mox_buffer_deinit(&s->out);
    mox_buffer_deinit(&s->cps);
    mox_buffer_deinit(&s->sorted);
}

/* Stable order of marks[0, n) by combining class.  Few marks by insertion, many
 * by counting: a text of marks alone must not cost n * n. */
static mox_status order_marks(mox_nfc_scratch *s, int32_t *marks, size_t n, mox_err *err)
{
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            const int32_t mark = marks[i];
            const int class = combining_class(mark);
            size_t j = i;
            for (; j > 0 && combining_class(marks[j - 1]) > class; j--) marks[j] = marks[j - 1];
            marks[j] = mark;
        }
        return MOX_OK;
    }
    MOX_TRY(mox_buffer_reserve(&s->sorted, n, sizeof *marks, "ordering combining marks", err));
    int32_t *sorted = s->sorted.data;
    size_t place[257] = {0}; /* place[c + 1] counts class c, then place[c] is where class c goes next */
    for (size_t i = 0; i < n; i++) place[(combining_class(marks[i]) & 0xFF) + 1]++;
    for (size_t c = 1; c < 257; c++) place[c] += place[c - 1];
    for (size_t i = 0; i < n; i++) sorted[place[combining_class(marks[i]) & 0xFF]++] = marks[i];
    memcpy(marks, sorted, n * sizeof *marks);
    return MOX_OK;
}

/* Composes text[0, n), all well-formed, and appends it to s->out. */
static mox_status compose_region(mox_nfc_scratch *s, const unsigned char *text, size_t n, mox_err *err)
{
    s->n_cps = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += mox_utf8_next(text + i, &cp);
        MOX_TRY(mox_buffer_reserve(&s->cps, s->n_cps + DECOMPOSED_MAX, sizeof(int32_t), "normalizing text", err));
        int32_t *cps = s->cps.data;
        const size_t added = decompose((int32_t)cp, cps + s->n_cps);
        if (added == 0) cps[s->n_cps] = (int32_t)cp;
        s->n_cps += added ? added : 1;
    }
    int32_t *cps = s->cps.data;
    for (size_t i = 0; i < s->n_cps;) {
        if (combining_class(cps[i]) == 0) {
            i++;
            continue;
        }
        size_t end = i + 1;
        while (end < s->n_cps && combining_class(cps[end]) != 0) end++;
        MOX_TRY(order_marks(s, cps + i, end - i, err));
        i = end;
    }
    s->n_cps = compose(cps, s->n_cps);
    MOX_TRY(mox_buffer_reserve(&s->out, s->n_out + 4 * s->n_cps, 1, "normalizing text", err));
    unsigned char *dst = s->out.data;
    for (size_t i = 0; i < s->n_cps; i++) s->n_out += mox_utf8_encode((uint32_t)cps[i], dst + s->n_out);
    return MOX_OK;
}

/* The length of the character at p and its class, or 1 and 0 when there is none. */
static size_t char_at(const mox_unicode *u, const unsigned char *p, size_t n, unsigned *class)
{
    uint32_t cp;
    const size_t length = mox_utf8_decode(p, n, &cp);
    *class = length ? mox_unicode_class(u, cp) : 0;
    return length ? length : 1;
}

mox_status mox_nfc(const mox_unicode *u, const unsigned char *text, size_t n, mox_nfc_scratch *s,
                   const unsigned char **out, size_t *n_out, mox_err *err)
{
    size_t copied = 0;        /* text before this is in s->out */
    size_t before = SIZE_MAX; /* where the well-formed character just behind i begins */
    s->n_out = 0;
    for (size_t i = 0; i < n;) {
        unsigned class;
        size_t length = char_at(u, text + i, n - i, &class);
        if (!(class & MOX_CHAR_NFC)) {
            before = class ? i : SIZE_MAX;
            i += length;
            continue;
        }
        const size_t begin = before != SIZE_MAX ? before : i;
        size_t end = i;
        do {
            end += length;
            if (end == n) break;
            length = char_at(u, text + end, n - end, &class);
        } while (class & MOX_CHAR_NFC);
        MOX_TRY(mox_buffer_reserve(&s->out, s->n_out + (begin - copied), 1, "normalizing text", err));
        if (begin > copied) memcpy((unsigned char *)s->out.data + s->n_out, text + copied, begin - copied);
        s->n_out += begin - copied;
        MOX_TRY(compose_region(s, text + begin, end - begin, err));
        copied = i = end;
        before = SIZE_MAX;
    }
    if (copied == 0) {
        *out = text;
        *n_out = n;
        return MOX_OK;
    }
    MOX_TRY(mox_buffer_reserve(&s->out, s->n_out + (n - copied), 1, "normalizing text", err));
    if (n > copied) memcpy((unsigned char *)s->out.data + s->n_out, text + copied, n - copied);
    s->n_out += n - copied;
    *out = s->out.data;
    *n_out = s->n_out;
    return MOX_OK;
}
