/* text/scan.h -- the split patterns of the model families, by hand.
 *
 * A pattern is recognised by its text; its scanner then says how many bytes of
 * text[0, n) (well-formed UTF-8, n > 0) the pattern matches at the very front, 0
 * for none.  Scanners look ahead only, never back, and over a whole text their
 * work is linear: a stretch that is read and not consumed is consumed by the
 * next call or two. */
#ifndef MOX_TEXT_SCAN_H
#define MOX_TEXT_SCAN_H

#include "text/unicode.h"

typedef size_t mox_scan_fn(const mox_unicode *u, const unsigned char *text, size_t n);

typedef struct mox_scan {
    const char *name;
    const char *pattern; /* in the spelling of mox_scan_find */
    mox_scan_fn *scan;
} mox_scan;

extern const mox_scan mox_scans[]; /* the last one has no name */
extern const char mox_scan_gpt2_pattern[];

/* The scanner for a pattern, or NULL.  A carriage return or line feed written as
 * itself counts as \r and \n, and \" as ": those are how checkpoints differ. */
mox_scan_fn *mox_scan_find(const char *pattern, size_t n);

#endif
