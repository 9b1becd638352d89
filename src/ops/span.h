/* ops/span.h -- walking spans and paged caches, for kernels of any level.
 *
 * The rows of a batch are counted over its spans in order: row r of the work is
 * row spans[s].row0 + i of the buffers.  Nothing is checked here; the entries have
 * proved every page id and position before a kernel runs. */
#ifndef MOX_OPS_SPAN_H
#define MOX_OPS_SPAN_H

#include "ops/attention.h"

/* The span that holds row `row` of the work; *i is its row within that span. */
static inline const mox_span *mox_span_of_row(const mox_span *spans, int64_t row, int64_t *i)
{
    while (row >= spans->n) row -= spans++->n;
    *i = row;
    return spans;
}

/* The keys that a row of a span sees, and how they are cut (MOX_ATTENTION_PIECE).  Cuts
 * are at multiples of 64 positions, which divide the tiles of every kernel. */
typedef struct mox_pieces {
    int64_t first, last; /* keys */
    int64_t n, len;      /* pieces; n = 1: not cut */
} mox_pieces;
static inline mox_pieces mox_pieces_of(const mox_attention_args *a, const mox_span *s)
{
    enum { GRID = 64 };
    mox_pieces p = {.last = s->pos0 + s->n, .n = 1};
    if (a->window > 0 && s->pos0 >= a->window) p.first = s->pos0 - a->window + 1;
    if (!a->parts || s->n != 1 || p.last - p.first <= MOX_ATTENTION_PIECE) return p;
    const int64_t seen = p.last - p.first / GRID * GRID, most = MOX_ATTENTION_PIECES;
    const int64_t n = (seen - 1) / MOX_ATTENTION_PIECE + 1;
    p.len = ((seen - 1) / (n < most ? n : most) / GRID + 1) * GRID;
    p.n = (seen - 1) / p.len + 1;
    return p;
}
/* Keys [*first, *last) of piece i. */
static inline void mox_piece_range(const mox_pieces *p, int64_t i, int64_t *first, int64_t *last)
{
    const int64_t begin = p->first / 64 * 64 + i * p->len;
    *first = begin > p->first ? begin : p->first;
    *last = begin + p->len < p->last ? begin + p->len : p->last;
}
/* The span of the row-th split row. */
static inline const mox_span *mox_split_span(const mox_attention_args *a, int64_t row, mox_pieces *p)
{
    for (const mox_span *s = a->spans;; s++) {
        *p = mox_pieces_of(a, s);
        if (p->n > 1 && row-- == 0) return s;
    }
}
/* Maximum, denominator and v_dim sums of a piece of a head of a split row. */
static inline float *mox_part_of(const mox_attention_args *a, int64_t row, int64_t head, int64_t piece)
{
    return a->parts + ((row * a->heads + head) * MOX_ATTENTION_PIECES + piece) * (a->v_dim + 2);
}

/* Element of head `head` at position pos of the sequence whose page table is given;
 * NULL is the table of a contiguous cache, {0}. */
static inline int64_t mox_cache_offset(const mox_cache *c, const int32_t *pages, int64_t pos, int64_t head)
{
    const int64_t page = pages ? (int64_t)pages[pos / c->page_len] * c->page_stride : 0;
    return page + (pages ? pos % c->page_len : pos) * c->token_stride + head * c->head_stride;
}

#endif
