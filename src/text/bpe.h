/* text/bpe.h -- byte-pair encoding of one piece.
 *
 * Start from single bytes; join the adjacent pair of lowest rank, the leftmost of
 * equals, until no pair has a rank.  n log n in the piece's length, whatever it
 * holds.
 *
 * Borrows: the vocabulary.   Threads: encoding may run in many at once. */
#ifndef MOX_TEXT_BPE_H
#define MOX_TEXT_BPE_H

#include "text/vocab.h"

typedef struct mox_bpe_pair {
    int32_t left, right; /* left -1: free */
    uint32_t rank;
} mox_bpe_pair;

typedef struct mox_bpe {
    const mox_vocab *vocab;
    bool ignore_merges; /* a piece that is a token is that token */
    int32_t byte_id[256];
    mox_bpe_pair *pairs; /* open addressing, at most two thirds full */
    uint32_t n_pairs;    /* a power of two */
    mox_buffer joined;   /* int32_t by rank: the token that the pair becomes */
    mox_buffer merges;   /* mox_bpe_pair in the order of the file; gone after finish */
    size_t n_merges;
    _Atomic uint8_t *alone; /* by id: 1 once the token's bytes were seen to encode to itself */
} mox_bpe;

/* Merges are added in rank order; finish checks the vocabulary and builds the
 * tables.  The vocabulary must be complete at finish and outlive the mox_bpe. */
mox_status mox_bpe_add_merge(mox_bpe *b, int32_t left, int32_t right, int32_t joined, mox_err *err);
mox_status mox_bpe_finish(mox_bpe *b, const mox_vocab *vocab, const char *name, mox_err *err);
void mox_bpe_deinit(mox_bpe *b); /* zeroed storage is fine */

/* Storage of one thread; zero-initialise, reuse, deinit. */
typedef struct mox_bpe_scratch {
    mox_buffer nodes, heap, ids;
} mox_bpe_scratch;
void mox_bpe_scratch_deinit(mox_bpe_scratch *s);

/* The ids of piece[0, n), n > 0: *ids lives until the next use of s. */
mox_status mox_bpe_encode(const mox_bpe *b, mox_bpe_scratch *s, const unsigned char *piece, size_t n,
                          const int32_t **ids, size_t *n_ids, mox_err *err);

#endif
