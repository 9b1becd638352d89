/* text/added.h -- finding added tokens in a text, leftmost and longest first.
 *
 * Two sets, as in the reference: tokens looked for in the text as it is, and
 * tokens looked for after normalization.  A token may swallow the white space at
 * its sides.
 *
 * Time: the text's length times that of the longest added token, which
 * MOX_ADDED_BYTES_MAX bounds. */
#ifndef MOX_TEXT_ADDED_H
#define MOX_TEXT_ADDED_H

#include "moxie/text.h"
#include "base/buffer.h"
#include "text/unicode.h"

enum { MOX_ADDED_BYTES_MAX = 1024 };

typedef struct mox_added_token {
    int32_t id;
    bool special, lstrip, rstrip;
} mox_added_token;

typedef struct mox_added_node { /* of a trie over bytes */
    int32_t token;              /* index of the token that ends here, or -1 */
    int32_t child, sibling;     /* node, or -1 */
    unsigned char byte;
} mox_added_node;

typedef struct mox_added_set {
    mox_buffer tokens, nodes;
    int32_t n_tokens, n_nodes;
    int32_t root[256]; /* node + 1 of each first byte, so that zeroed storage is an empty set */
} mox_added_set;

void mox_added_deinit(mox_added_set *set);
/* text[0, n), 0 < n <= MOX_ADDED_BYTES_MAX.  The first of two equal texts wins. */
mox_status mox_added_add(mox_added_set *set, const unsigned char *text, size_t n, mox_added_token token, mox_err *err);

/* Where special tokens are not to be seen: spans in order, looked at once. */
typedef struct mox_plain_spans {
    const mox_text_span *span;
    size_t n, next; /* next: the first one that may still matter */
} mox_plain_spans;

/* The first token in text[from, n) that may be recognised, with [*begin, *end)
 * widened by the white space it takes; false when there is none.  Positions in
 * `plain` count from the front of text. */
bool mox_added_find(const mox_added_set *set, const mox_unicode *u, const unsigned char *text, size_t n, size_t from,
                    mox_plain_spans *plain, const mox_added_token **token, size_t *begin, size_t *end);

#endif
