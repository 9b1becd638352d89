/* ops/cache_entry.h -- what the checked entries that take caches and spans share.
 * Internal to ops. */
#ifndef MOX_OPS_CACHE_ENTRY_H
#define MOX_OPS_CACHE_ENTRY_H

#include "ops/entry.h"

/* Type, strides and extent of a cache of `heads` heads of `dim` elements: no two
 * vectors of it may overlap, whichever of page, position and head is innermost. */
mox_status mox_check_cache(const mox_check *c, const char *name, const mox_cache *cache, int64_t heads,
                           int64_t dim);

/* Sums the rows of the spans and finds the end of the last row they name.  Rows of
 * two spans may not overlap. */
mox_status mox_check_spans(const mox_check *c, const mox_span *spans, int64_t n_spans, int64_t *rows,
                           int64_t *row_end);

/* Every position [first(s), pos0 + n) of every span has a page in cache, where
 * first(s) is pos0 for a writer (reach 0) and pos0 - reach for a reader; positions
 * before 0 do not count.  A table that is too short is `too_short`. */
mox_status mox_check_pages(const mox_check *c, const char *name, const mox_cache *cache,
                           const mox_span *spans, int64_t n_spans, int64_t reach, mox_status too_short);

/* The positions [0, n) of a contiguous cache: its first page. */
mox_status mox_check_one_page(const mox_check *c, const char *name, const mox_cache *cache, int64_t n);

/* heads is a positive multiple of kv_heads. */
mox_status mox_check_head_groups(const mox_check *c, int64_t heads, int64_t kv_heads);

#endif
