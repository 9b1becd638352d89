/* text/split.h -- cutting a text into the pieces that are tokenized alone.
 *
 * A list of stages; each cuts the pieces of the one before.  A stage isolates:
 * matches and the gaps between them both become pieces, in order.  The input is
 * well-formed UTF-8. */
#ifndef MOX_TEXT_SPLIT_H
#define MOX_TEXT_SPLIT_H

#include "base/buffer.h"
#include "text/regex.h"
#include "text/scan.h"
#include "text/unicode.h"

enum { MOX_SPLIT_STAGES_MAX = 16 };

typedef struct mox_split_stage { /* exactly one of the four is set */
    mox_scan_fn *scan;
    mox_regex *regex;  /* owned */
    char *literal;     /* owned; a text to isolate */
    bool prefix_space; /* puts a space in front of a piece that has none */
    size_t n_literal;
} mox_split_stage;

typedef struct mox_split {
    mox_split_stage stage[MOX_SPLIT_STAGES_MAX];
    int n;
} mox_split;

void mox_split_deinit(mox_split *s);

/* Each appends a stage; name is the file, for errors.  More than
 * MOX_SPLIT_STAGES_MAX stages are refused. */
mox_status mox_split_add_pattern(mox_split *s, const char *name, const char *pattern, size_t n, mox_err *err);
mox_status mox_split_add_literal(mox_split *s, const char *name, const char *text, size_t n, mox_err *err);
mox_status mox_split_add_prefix_space(mox_split *s, const char *name, mox_err *err);

/* Storage of one thread; zero-initialise, reuse, deinit. */
typedef struct mox_split_scratch {
    mox_regex_match *match;
    mox_buffer spaced;
} mox_split_scratch;
void mox_split_scratch_deinit(mox_split_scratch *s);

typedef mox_status mox_piece_fn(void *user, const unsigned char *piece, size_t n, mox_err *err);

/* Calls piece with every piece of text[0, n), none of them empty. */
mox_status mox_split_run(const mox_split *s, const mox_unicode *u, mox_split_scratch *scratch,
                         const unsigned char *text, size_t n, mox_piece_fn *piece, void *user, mox_err *err);

#endif
