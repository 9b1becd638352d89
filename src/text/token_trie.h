/* text/token_trie.h -- the tokens of a vocabulary in the order of their bytes.
 *
 * A trie is an array: nodes in the order of a walk that takes the first branch first, each
 * with the place where its branch ends, so that a whole branch is left with one jump.
 *
 * Inside a string nearly every token is allowed, and finding that out with the whole machinery
 * takes longer than a step of a small model.  So tokens are told apart in advance: plain ones
 * consist of characters that stand in a JSON string as they are, and are looked at with the
 * string's automaton alone; common ones consist of characters that few patterns tell apart,
 * and are mostly allowed or not as a whole.  Branches that go on with word bytes alone (letters and
 * digits of ASCII) are marked: inside a word few patterns tell those apart. */
#ifndef MOX_TEXT_TOKEN_TRIE_H
#define MOX_TEXT_TOKEN_TRIE_H

#include "base/buffer.h"
#include "moxie/grammar.h"

enum { MOX_TRIE_NO_TOKEN = 0xFFFFFF, MOX_TRIE_NODES_MAX = 0xFFFFFF, MOX_TRIE_PLAIN_MAX = 127 };

typedef struct mox_trie_node {
    uint32_t byte : 8, token : 24; /* the token that ends here, or MOX_TRIE_NO_TOKEN */
    uint32_t depth : 7, word : 1, end : 24; /* bytes before it, of plain tokens only; behind it come word bytes alone;
                                             * where its branch ends */
} mox_trie_node;

typedef struct mox_trie {
    mox_buffer nodes;
    uint32_t n;
} mox_trie;

struct mox_token_trie {
    const mox_tokenizer *tokenizer;
    int32_t n_tokens;
    size_t longest; /* bytes of a token */
    mox_trie all, plain, rest; /* plain and rest together are all */
    mox_trie uncommon;         /* plain but not common */
    unsigned char *kinds;      /* [n_tokens] 0, or MOX_TOKEN_PLAIN with MOX_TOKEN_COMMON or without */
    unsigned char *chars;      /* [n_tokens] of plain ones */
    int32_t *special;          /* [n_special] ids of special tokens, which are in no trie */
    int32_t n_special;
};

enum {
    MOX_TOKEN_PLAIN = 1, /* up to 127 bytes of whole characters from U+0020 on, without quote and backslash */
    MOX_TOKEN_COMMON = 2 /* letters, digits and spaces of ASCII, and all beyond but U+2000 to U+2FFF */
};

static inline bool mox_byte_is_word(uint32_t c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

static inline bool mox_char_is_common(uint32_t c)
{
    if (c >= 0x80) return c < 0x2000 || c > 0x2FFF;
    return c == ' ' || mox_byte_is_word(c);
}

#endif
