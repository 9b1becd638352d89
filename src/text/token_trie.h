/* text/token_trie.h -- the tokens of a vocabulary in the order of their bytes.
 *
 * A trie is an array: nodes in the order of a walk that takes the first branch first, each
 * with the place where its branch ends, so that a whole branch is left with one jump.
 *
 * Inside a string nearly every token is allowed, and finding that out one by one takes longer
 * than a step of a small model.  So tokens that consist of harmless characters alone are known
 * in advance, as slices: where those characters are allowed in any number, the slice's tokens
 * are, and only the trie of the others is walked. */
#ifndef MOX_TEXT_TOKEN_TRIE_H
#define MOX_TEXT_TOKEN_TRIE_H

#include "base/buffer.h"
#include "moxie/grammar.h"

enum { MOX_TRIE_NO_TOKEN = 0xFFFFFF };

typedef struct mox_trie_node {
    uint32_t byte : 8, token : 24; /* the token that ends here, or MOX_TRIE_NO_TOKEN */
    uint32_t end;                  /* of its branch */
} mox_trie_node;

typedef struct mox_trie {
    mox_buffer nodes;
    uint32_t n;
} mox_trie;

enum {
    MOX_SLICE_PLAIN,  /* whole characters from U+0020 on, without quote and backslash */
    MOX_SLICE_COMMON, /* of these: letters, digits and spaces of ASCII, and all beyond */
    MOX_SLICES
};

typedef struct mox_slice {
    unsigned char *mask; /* [n_tokens] */
    int64_t count;
    mox_trie rest; /* of all other tokens */
} mox_slice;

struct mox_token_trie {
    const mox_tokenizer *tokenizer;
    int32_t n_tokens;
    size_t longest; /* bytes of a token */
    mox_trie all;
    mox_slice slices[MOX_SLICES];
    int32_t *special; /* [n_special] ids of special tokens, which are in no trie */
    int32_t n_special;
};

#endif
