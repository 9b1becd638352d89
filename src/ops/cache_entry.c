/* ops/cache_entry.c -- see cache_entry.h. */
#include "ops/cache_entry.h"

#include "ops/q8.h"

typedef struct axis {
    int64_t count, stride;
} axis;

static void order(axis *a, axis *b)
{
    if (a->stride <= b->stride) return;
    const axis swap = *a;
    *a = *b;
    *b = swap;
}

mox_status mox_check_cache(const mox_check *c, const char *name, const mox_cache *cache, int64_t heads,
                           int64_t dim)
{
    if (cache->type != MOX_DT_F32 && cache->type != MOX_DT_F16 && cache->type != MOX_DT_I8)
        return mox_refuse(c, MOX_E_ARG, "%s is of type %s, not F32, F16 or I8", name,
                          mox_dtype_name(cache->type));
    if (cache->page_len < 1 || cache->n_pages < 0)
        return mox_refuse(c, MOX_E_ARG, "%s has %lld pages of %lld positions", name,
                          (long long)cache->n_pages, (long long)cache->page_len);
    axis axes[3] = {{cache->page_len, cache->token_stride},
                    {heads, cache->head_stride},
                    {cache->n_pages, cache->page_stride}};
    for (int i = 0; i < 3; i++)
        if (axes[i].count <= 1) axes[i].stride = 0; /* never multiplied by anything but 0 */
    order(&axes[0], &axes[1]);
    order(&axes[1], &axes[2]);
    order(&axes[0], &axes[1]);
    int64_t extent;
    if (!mox_mul_i64(dim, 2, &extent)) /* more than any type takes */
        return mox_refuse(c, MOX_E_ARG, "%s: vectors of %lld are too long", name, (long long)dim);
    extent = mox_cache_row(cache->type, dim);
    for (int i = 0; i < 3; i++) {
        int64_t before;
        if (axes[i].count <= 1) continue;
        if (axes[i].stride < extent)
            return mox_refuse(c, MOX_E_ARG, "%s: a stride of %lld is less than the %lld elements between",
                              name, (long long)axes[i].stride, (long long)extent);
        if (!mox_mul_i64(axes[i].count - 1, axes[i].stride, &before) || !mox_add_i64(extent, before, &extent))
            return mox_refuse(c, MOX_E_ARG, "%s: a stride of %lld is too large", name,
                              (long long)axes[i].stride);
    }
    return mox_check_array(c, name, cache->data, cache->n_pages == 0 ? 0 : extent,
                           mox_dtype_bytes(cache->type));
}

/* Do the rows of spans[s] meet those of a span before it? */
static bool meets_earlier(const mox_span *spans, int64_t s)
{
    for (int64_t i = 0; i < s; i++)
        if (spans[i].n > 0 && spans[i].row0 < spans[s].row0 + spans[s].n &&
            spans[s].row0 < spans[i].row0 + spans[i].n)
            return true;
    return false;
}

mox_status mox_check_spans(const mox_check *c, const mox_span *spans, int64_t n_spans, int64_t *rows,
                           int64_t *row_end)
{
    *rows = *row_end = 0;
    MOX_TRY(mox_check_array(c, "spans", spans, n_spans, (int64_t)sizeof *spans));
    for (int64_t i = 0; i < n_spans; i++) {
        const mox_span *s = &spans[i];
        int64_t end, pos_end;
        if (s->row0 < 0 || s->n < 0 || s->pos0 < 0 || s->n_pages < 0)
            return mox_refuse(c, MOX_E_ARG, "span %lld has a negative row, length, position or page count",
                              (long long)i);
        if (!mox_add_i64(s->row0, s->n, &end) || !mox_add_i64(s->pos0, s->n, &pos_end) ||
            !mox_add_i64(*rows, s->n, rows))
            return mox_refuse(c, MOX_E_ARG, "span %lld is too long", (long long)i);
        if (s->n == 0) continue;
        if (s->row0 < *row_end && meets_earlier(spans, i)) /* spans in ascending order need no search */
            return mox_refuse(c, MOX_E_ARG, "span %lld shares rows with another span", (long long)i);
        *row_end = mox_max_i64(*row_end, end);
    }
    return MOX_OK;
}

mox_status mox_check_pages(const mox_check *c, const char *name, const mox_cache *cache,
                           const mox_span *spans, int64_t n_spans, int64_t reach, mox_status too_short)
{
    for (int64_t i = 0; i < n_spans; i++) {
        const mox_span *s = &spans[i];
        if (s->n == 0) continue;
        const int64_t first = mox_max_i64(0, s->pos0 - reach) / cache->page_len;
        const int64_t last = (s->pos0 + s->n - 1) / cache->page_len;
        if (last >= s->n_pages)
            return mox_refuse(c, too_short,
                              "%s: span %lld reaches position %lld, but its %lld pages hold %lld each", name,
                              (long long)i, (long long)(s->pos0 + s->n - 1), (long long)s->n_pages,
                              (long long)cache->page_len);
        MOX_TRY(mox_check_i32(c, "the page table", s->pages, s->n_pages));
        for (int64_t p = first; p <= last; p++)
            if (s->pages[p] < 0 || s->pages[p] >= cache->n_pages)
                return mox_refuse(c, MOX_E_ARG, "%s: page %lld of span %lld is %d, which is not in [0, %lld)",
                                  name, (long long)p, (long long)i, s->pages[p], (long long)cache->n_pages);
    }
    return MOX_OK;
}

mox_status mox_check_one_page(const mox_check *c, const char *name, const mox_cache *cache, int64_t n)
{
    if (n == 0 || (cache->n_pages >= 1 && n <= cache->page_len)) return MOX_OK;
    return mox_refuse(c, MOX_E_ARG, "%s: %lld positions are wanted, but its first page holds %lld", name,
                      (long long)n, (long long)(cache->n_pages >= 1 ? cache->page_len : 0));
}

mox_status mox_check_head_groups(const mox_check *c, int64_t heads, int64_t kv_heads)
{
    MOX_TRY(mox_check_size(c, "heads", heads, 1));
    MOX_TRY(mox_check_size(c, "kv_heads", kv_heads, 1));
    if (heads % kv_heads == 0) return MOX_OK;
    return mox_refuse(c, MOX_E_ARG, "%lld heads cannot share %lld key heads evenly", (long long)heads,
                      (long long)kv_heads);
}
