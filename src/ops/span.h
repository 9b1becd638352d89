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

/* Element of head `head` at position pos of the sequence whose page table is given;
 * NULL is the table of a contiguous cache, {0}. */
static inline int64_t mox_cache_offset(const mox_cache *c, const int32_t *pages, int64_t pos, int64_t head)
{
    const int64_t page = pages ? (int64_t)pages[pos / c->page_len] * c->page_stride : 0;
    return page + (pages ? pos % c->page_len : pos) * c->token_stride + head * c->head_stride;
}

#endif
