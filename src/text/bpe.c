/* text/bpe.c -- merging by rank: a scan for short pieces, a heap for long ones.
 *
 * Most pieces of ordinary text are tokens of the vocabulary that merging would
 * arrive at anyway.  Whether it does is a function of the token's bytes alone, so
 * a yes is noted in `alone`, one byte per id, and not worked out again.  Threads
 * may race for it: all of them store the same answer.
 *
 * I1  a rank belongs to one pair, so an entry of the heap is current exactly when
 *     the rank noted at its position is still its own.
 */
#include "text/bpe.h"

#include <stdatomic.h>
#include <string.h>

enum { SHORT_PIECE = 48 };
static const uint32_t no_rank = UINT32_MAX;

static uint32_t pair_hash(int32_t left, int32_t right)
{
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    return (uint32_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 32) ^ (uint32_t)right;
}

static uint32_t pair_rank(const mox_bpe *b, int32_t left, int32_t right)
{
    uint32_t i = pair_hash(left, right) & (b->n_pairs - 1);
    for (;; i = (i + 1) & (b->n_pairs - 1)) {
        const mox_bpe_pair *p = &b->pairs[i];
        if (p->left == left && p->right == right) return p->rank;
        if (p->left < 0) return no_rank;
    }
}

/* ---- building --------------------------------------------------------------- */

mox_status mox_bpe_add_merge(mox_bpe *b, int32_t left, int32_t right, int32_t joined, mox_err *err)
{
    MOX_TRY(mox_buffer_reserve(&b->merges, b->n_merges + 1, sizeof(mox_bpe_pair), "merges", err));
    MOX_TRY(mox_buffer_reserve(&b->joined, b->n_merges + 1, sizeof(int32_t), "merges", err));
    ((mox_bpe_pair *)b->merges.data)[b->n_merges] = (mox_bpe_pair){left, right, (uint32_t)b->n_merges};
    ((int32_t *)b->joined.data)[b->n_merges++] = joined;
    return MOX_OK;
}

/* A pair that comes twice keeps its last rank, as in the reference. */
static mox_status build_pairs(mox_bpe *b, mox_err *err)
{
    size_t n_pairs = 16;
    while (n_pairs / 3 * 2 < b->n_merges + 1) n_pairs *= 2;
    b->pairs = mox_alloc_array(n_pairs, sizeof *b->pairs);
    if (!b->pairs) return mox_fail_memory(err, n_pairs * sizeof *b->pairs, "merges");
    b->n_pairs = (uint32_t)n_pairs;
    for (size_t i = 0; i < n_pairs; i++) b->pairs[i].left = -1;
    const mox_bpe_pair *merges = b->merges.data;
    for (size_t m = 0; m < b->n_merges; m++) {
        uint32_t i = pair_hash(merges[m].left, merges[m].right) & (b->n_pairs - 1);
        while (b->pairs[i].left >= 0 && (b->pairs[i].left != merges[m].left || b->pairs[i].right != merges[m].right)) {
            i = (i + 1) & (b->n_pairs - 1);
        }
        b->pairs[i] = merges[m];
    }
    mox_buffer_deinit(&b->merges);
    return MOX_OK;
}

mox_status mox_bpe_finish(mox_bpe *b, const mox_vocab *vocab, const char *name, mox_err *err)
{
    b->vocab = vocab;
    for (unsigned byte = 0; byte < 256; byte++) {
        const unsigned char text = (unsigned char)byte;
        b->byte_id[byte] = mox_vocab_find(vocab, MOX_TOKEN_BYTES, &text, 1);
        if (b->byte_id[byte] < 0) {
            return mox_fail(err, MOX_E_FORMAT,
                            "%s: the vocabulary has no token for byte 0x%02X, so it is not a "
                            "complete byte-level vocabulary",
                            name, byte);
        }
    }
    MOX_TRY(build_pairs(b, err));
    b->alone = mox_alloc_array((size_t)vocab->n_ids, sizeof *b->alone);
    return b->alone ? MOX_OK : mox_fail_memory(err, (size_t)vocab->n_ids, "the vocabulary");
}

void mox_bpe_deinit(mox_bpe *b)
{
    mox_free(b->pairs);
    mox_free((void *)b->alone);
    mox_buffer_deinit(&b->joined);
    mox_buffer_deinit(&b->merges);
    b->pairs = NULL;
    b->alone = NULL;
}

void mox_bpe_scratch_deinit(mox_bpe_scratch *s)
{
    mox_buffer_deinit(&s->nodes);
    mox_buffer_deinit(&s->heap);
    mox_buffer_deinit(&s->ids);
}

/* ---- short pieces ----------------------------------------------------------- */

/* ids has room for n.  Returns how many remain. */
static size_t merge_short(const mox_bpe *b, const unsigned char *piece, size_t n, int32_t *ids)
{
    uint32_t ranks[SHORT_PIECE]; /* ranks[i] of the pair (i, i + 1) */
    const int32_t *joined = b->joined.data;
    for (size_t i = 0; i < n; i++) ids[i] = b->byte_id[piece[i]];
    for (size_t i = 0; i + 1 < n; i++) ranks[i] = pair_rank(b, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (ranks[i] < ranks[best]) best = i;
        }
        if (ranks[best] == no_rank) break;
        ids[best] = joined[ranks[best]];
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        if (n - best > 1) {
            memmove(ranks + best + 1, ranks + best + 2, (n - best - 2) * sizeof *ranks);
            ranks[best] = pair_rank(b, ids[best], ids[best + 1]);
        }
        if (best > 0) ranks[best - 1] = pair_rank(b, ids[best - 1], ids[best]);
    }
    return n;
}

/* ---- long pieces ------------------------------------------------------------ */

typedef struct node { /* a token in a doubly linked list; the list ends at n */
    int32_t id;
    uint32_t previous, next;
    uint32_t rank; /* of the pair with the next one */
} node;

/* The heap holds rank << 32 | position, smallest on top: lowest rank, leftmost. */
static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    const uint64_t key = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n) break;
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= key) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = key;
}

static void push(uint64_t *heap, size_t *n, uint64_t key)
{
    size_t i = (*n)++;
    while (i > 0 && heap[(i - 1) / 2] > key) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = key;
}

static uint64_t pop(uint64_t *heap, size_t *n)
{
    const uint64_t top = heap[0];
    heap[0] = heap[--*n];
    if (*n > 1) sift_down(heap, *n, 0);
    return top;
}

static void rate_pair(const mox_bpe *b, node *nodes, uint32_t at, uint32_t end, uint64_t *heap, size_t *n_heap)
{
    const uint32_t next = nodes[at].next;
    nodes[at].rank = next == end ? no_rank : pair_rank(b, nodes[at].id, nodes[next].id);
    if (nodes[at].rank != no_rank) push(heap, n_heap, (uint64_t)nodes[at].rank << 32 | at);
}

static mox_status merge_long(const mox_bpe *b, mox_bpe_scratch *s, const unsigned char *piece, uint32_t n,
                             size_t *n_ids, mox_err *err)
{
    MOX_TRY(mox_buffer_reserve(&s->nodes, n, sizeof(node), "a long piece of text", err));
    /* one entry per pair, and a merge takes one away and adds at most two */
    MOX_TRY(mox_buffer_reserve(&s->heap, 2 * (size_t)n, sizeof(uint64_t), "a long piece of text", err));
    node *nodes = s->nodes.data;
    uint64_t *heap = s->heap.data;
    size_t n_heap = 0;
    for (uint32_t i = 0; i < n; i++) nodes[i] = (node){b->byte_id[piece[i]], i - 1, i + 1, no_rank};
    for (uint32_t i = 0; i + 1 < n; i++) {
        nodes[i].rank = pair_rank(b, nodes[i].id, nodes[i + 1].id);
        if (nodes[i].rank != no_rank) heap[n_heap++] = (uint64_t)nodes[i].rank << 32 | i;
    }
    for (size_t i = n_heap / 2; i-- > 0;) sift_down(heap, n_heap, i);
    const int32_t *joined = b->joined.data;
    while (n_heap > 0) {
        const uint64_t top = pop(heap, &n_heap);
        const uint32_t at = (uint32_t)top, rank = (uint32_t)(top >> 32);
        if (nodes[at].rank != rank) continue; /* I1: one of the two has changed since */
        const uint32_t gone = nodes[at].next;
        nodes[at].id = joined[rank];
        nodes[at].next = nodes[gone].next;
        nodes[gone].rank = no_rank;
        if (nodes[at].next != n) nodes[nodes[at].next].previous = at;
        rate_pair(b, nodes, at, n, heap, &n_heap);
        if (at > 0) rate_pair(b, nodes, nodes[at].previous, n, heap, &n_heap);
    }
    int32_t *ids = s->ids.data;
    *n_ids = 0;
    for (uint32_t i = 0; i != n; i = nodes[i].next) ids[(*n_ids)++] = nodes[i].id;
    return MOX_OK;
}

/* ---- pieces ----------------------------------------------------------------- */

mox_status mox_bpe_encode(const mox_bpe *b, mox_bpe_scratch *s, const unsigned char *piece, size_t n,
                          const int32_t **ids, size_t *n_ids, mox_err *err)
{
    if (n > INT32_MAX) return mox_fail(err, MOX_E_ARG, "a piece of %zu bytes without a break is too long", n);
    MOX_TRY(mox_buffer_reserve(&s->ids, n, sizeof(int32_t), "token ids", err));
    int32_t *dst = s->ids.data;
    *ids = dst;
    const int32_t whole = n <= b->vocab->longest ? mox_vocab_find(b->vocab, MOX_TOKEN_BYTES, piece, n) : -1;
    if (whole >= 0) {
        /* a special token must not come out of plain text even where every token may */
        const bool known = b->ignore_merges && !mox_vocab_entry(b->vocab, whole)->special;
        if (known || atomic_load_explicit(&b->alone[whole], memory_order_relaxed)) {
            dst[0] = whole;
            *n_ids = 1;
            return MOX_OK;
        }
    }
    if (n <= SHORT_PIECE) {
        *n_ids = merge_short(b, piece, n, dst);
    } else {
        MOX_TRY(merge_long(b, s, piece, (uint32_t)n, n_ids, err));
    }
    if (whole >= 0 && *n_ids == 1) atomic_store_explicit(&b->alone[whole], 1, memory_order_relaxed);
    return MOX_OK;
}
