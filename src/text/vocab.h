/* text/vocab.h -- token ids and the bytes they stand for, both ways.
 *
 * A vocabulary file spells bytes as printable characters.  A token whose
 * spelling has any other character stands for its own UTF-8 and can never come
 * out of merging bytes: it is `literal` and looked up apart.  Ids may have gaps.
 *
 * Owns: copies of all bytes.  Built once, then only read. */
#ifndef MOX_TEXT_VOCAB_H
#define MOX_TEXT_VOCAB_H

#include "base/err.h"
#include "base/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOX_VOCAB_TEXT_MAX = 4096 };   /* bytes of one token's spelling */
enum { MOX_VOCAB_IDS_MAX = 1 << 22 }; /* far above any model; bounds what a damaged file can ask for */

typedef enum mox_token_kind {
    MOX_TOKEN_NONE = 0, /* a gap */
    MOX_TOKEN_BYTES,
    MOX_TOKEN_LITERAL
} mox_token_kind;

typedef struct mox_token_entry {
    uint32_t start, n; /* in pool */
    uint8_t kind;      /* mox_token_kind */
    uint8_t added;     /* an added token: found in texts before anything else */
    uint8_t special;
} mox_token_entry;

typedef struct mox_vocab_slot {
    uint32_t hash;
    int32_t id; /* -1: free */
} mox_vocab_slot;

typedef struct mox_vocab {
    mox_buffer pool, entries; /* bytes; mox_token_entry by id */
    size_t pool_n;
    int32_t n_ids; /* highest id + 1 */
    int32_t n_tokens;
    uint32_t longest; /* bytes of the longest MOX_TOKEN_BYTES */
    mox_vocab_slot *slots;
    uint32_t n_slots; /* a power of two, at least twice n_tokens */
} mox_vocab;

void mox_vocab_deinit(mox_vocab *v); /* zeroed storage is fine */

/* Bytes that spelling[0, n), well-formed UTF-8, stands for, into dst which has
 * room for n. */
mox_token_kind mox_vocab_unspell(const char *spelling, size_t n, unsigned char *dst, size_t *n_dst);

/* name: the file, for errors.  MOX_E_FORMAT for an id out of range, an id used
 * twice, a token that is there already. */
mox_status mox_vocab_add(mox_vocab *v, const char *name, mox_token_kind kind, const unsigned char *bytes, size_t n,
                         int64_t id, mox_err *err);

/* The id of a token, or -1. */
int32_t mox_vocab_find(const mox_vocab *v, mox_token_kind kind, const unsigned char *bytes, size_t n);

/* The id of a token by its text in the file, whatever its kind, or -1. */
int32_t mox_vocab_find_text(const mox_vocab *v, const char *text, size_t n);

static inline const mox_token_entry *mox_vocab_entry(const mox_vocab *v, int32_t id)
{
    return (const mox_token_entry *)v->entries.data + id;
}
static inline const unsigned char *mox_vocab_bytes(const mox_vocab *v, const mox_token_entry *e)
{
    return (const unsigned char *)v->pool.data + e->start;
}

#endif
