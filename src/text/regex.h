/* text/regex.h -- split patterns that no scanner of ours knows, on PCRE2.
 *
 * Patterns are written for the reference tokenizer's engine.  Where PCRE2 reads
 * the same text differently the pattern is translated, or refused by name: a
 * silent difference would change tokens.  Steps are limited in proportion to the
 * text, so that a slow pattern fails instead of taking for ever; memory goes through
 * base/alloc.h.  A mox_regex is immutable and may be shared. */
#ifndef MOX_TEXT_REGEX_H
#define MOX_TEXT_REGEX_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct mox_regex mox_regex;
typedef struct mox_regex_match mox_regex_match; /* storage of one thread */

/* name: the file, for errors.  On failure *out is NULL. */
mox_status mox_regex_create(mox_regex **out, const char *name, const char *pattern, size_t n, mox_err *err);
void mox_regex_destroy(mox_regex **r);

mox_status mox_regex_match_create(mox_regex_match **out, mox_err *err);
void mox_regex_match_destroy(mox_regex_match **m);

/* Allows as many more steps as a text of n bytes may take; a fresh mox_regex_match
 * has enough for short ones. */
void mox_regex_grant(const mox_regex *r, mox_regex_match *m, size_t n);

/* The first match in text[0, n), well-formed UTF-8, that begins at `from` (a
 * character's first byte) or later.  *begin = *end = n when there is none.
 * MOX_E_LIMIT when the steps are used up. */
mox_status mox_regex_find(const mox_regex *r, mox_regex_match *m, const unsigned char *text, size_t n, size_t from,
                          size_t *begin, size_t *end, mox_err *err);

#endif
