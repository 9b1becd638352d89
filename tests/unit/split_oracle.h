/* split_oracle.h -- every scanner against PCRE2, on any text.
 *
 * The two take character classes from different libraries, which may know
 * different versions of Unicode; code points that they class differently are
 * found out here and kept out of the comparison.  Shared with the fuzzer. */
#ifndef SPLIT_ORACLE_H
#define SPLIT_ORACLE_H

#include "text/regex.h"
#include "text/scan.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ORACLE_SCANS_MAX = 16, ORACLE_CODE_POINTS = 0x110000 };

typedef struct oracle {
    mox_unicode unicode;
    mox_regex *regex[ORACLE_SCANS_MAX];
    mox_regex_match *match;
    uint8_t *bits; /* [code points]: MOX_CHAR_* as PCRE2 sees them */
} oracle;

/* Sets bit for every code point in all[0, n) that the pattern finds. */
static int oracle_mark(oracle *o, const char *pattern, unsigned bit, const unsigned char *all, size_t n)
{
    mox_regex *r;
    size_t begin = 0, end = 0;
    if (mox_regex_create(&r, "oracle", pattern, strlen(pattern), NULL) != MOX_OK) return -1;
    mox_regex_grant(r, o->match, n);
    while (end < n && mox_regex_find(r, o->match, all, n, end, &begin, &end, NULL) == MOX_OK) {
        uint32_t cp;
        while (begin < end) {
            begin += mox_utf8_next(all + begin, &cp);
            o->bits[cp] |= (uint8_t)bit;
        }
    }
    mox_regex_destroy(&r);
    return 0;
}

static int oracle_init(oracle *o)
{
    static const struct {
        const char *pattern;
        unsigned bit;
    } classes[] = {{"\\p{L}", MOX_CHAR_LETTER},
                   {"\\p{N}", MOX_CHAR_NUMBER},
                   {"\\p{M}", MOX_CHAR_MARK},
                   {"[\\p{P}\\p{S}]", MOX_CHAR_SIGN},
                   {"\\s", MOX_CHAR_SPACE},
                   {"[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]", MOX_CHAR_UPPER},
                   {"[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]", MOX_CHAR_LOWER}};
    memset(o, 0, sizeof *o);
    o->bits = calloc(ORACLE_CODE_POINTS, 1);
    unsigned char *all = malloc(4 * (size_t)ORACLE_CODE_POINTS);
    if (!o->bits || !all || mox_unicode_init(&o->unicode, NULL) != MOX_OK) return -1;
    if (mox_regex_match_create(&o->match, NULL) != MOX_OK) return -1;
    size_t n = 0;
    for (uint32_t cp = 0; cp < ORACLE_CODE_POINTS; cp++) {
        if (cp < 0xD800 || cp > 0xDFFF) n += mox_utf8_encode(cp, all + n);
    }
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (oracle_mark(o, classes[i].pattern, classes[i].bit, all, n)) return -1;
    }
    free(all);
    for (int i = 0; mox_scans[i].name; i++) {
        if (i == ORACLE_SCANS_MAX) return -1;
        if (mox_regex_create(&o->regex[i], "oracle", mox_scans[i].pattern, strlen(mox_scans[i].pattern), NULL))
            return -1;
    }
    return 0;
}

static inline void oracle_deinit(oracle *o)
{
    for (int i = 0; i < ORACLE_SCANS_MAX; i++) mox_regex_destroy(&o->regex[i]);
    mox_regex_match_destroy(&o->match);
    mox_unicode_deinit(&o->unicode);
    free(o->bits);
}

/* Do both sides class the code point the same way? */
static int oracle_agrees(const oracle *o, uint32_t cp)
{
    return ((mox_unicode_class(&o->unicode, cp) ^ o->bits[cp]) & 0xFF & ~(unsigned)MOX_CHAR_NFC) == 0;
}

/* Walks text[0, n), well-formed, with scanner i and with its pattern.  Returns
 * where they part, or -1 when they never do. */
static long oracle_compare(oracle *o, int i, const unsigned char *text, size_t n)
{
    mox_regex_grant(o->regex[i], o->match, n);
    for (size_t at = 0; at < n;) {
        uint32_t cp;
        size_t begin = at, length = 0, r_begin, r_end;
        while (begin < n && (length = mox_scans[i].scan(&o->unicode, text + begin, n - begin)) == 0) {
            begin += mox_utf8_next(text + begin, &cp);
        }
        if (mox_regex_find(o->regex[i], o->match, text, n, at, &r_begin, &r_end, NULL) != MOX_OK) return (long)at;
        if (r_begin != begin || r_end != begin + length) return (long)at;
        at = begin + length;
    }
    return -1;
}

#endif
