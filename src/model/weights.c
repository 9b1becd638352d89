/* model/weights.c -- see weights.h. */
#include "model/weights.h"

#include <assert.h>

static void cut(mox_extent *e, int64_t from, int64_t bytes)
{
    assert(from >= 0 && bytes >= 0 && from + bytes <= e->bytes);
    e->offset += from;
    e->bytes = bytes;
}

mox_weight mox_weight_rows(const mox_weight *w, int64_t row, int64_t n)
{
    assert(row >= 0 && n >= 0 && row + n <= w->rows);
    mox_weight part = *w;
    const int64_t stride = mox_mat_row_bytes(&w->layout, w->cols);
    cut(&part.w, row * stride, n * stride);
    if (w->layout.kind == MOX_MAT_AFFINE) {
        const int64_t scale_stride = mox_mat_scale_row_bytes(&w->layout, w->cols);
        cut(&part.scales, row * scale_stride, n * scale_stride);
        cut(&part.biases, row * scale_stride, n * scale_stride);
    }
    part.rows = n;
    part.row0 += row;
    return part;
}

int64_t mox_weight_bytes(const mox_weight *w) { return w->w.bytes + w->scales.bytes + w->biases.bytes; }

/* What is asked for lies in one of the places: they are whole tensors. */
static const uint8_t *find_place(const mox_residency *r, const mox_extent *e)
{
    int64_t low = 0, high = r->n_places; /* the last place that does not begin behind e is in [low, high) */
    while (high - low > 1) {
        const int64_t mid = low + (high - low) / 2;
        const mox_extent *x = &r->places[mid].extent;
        if (x->file < e->file || (x->file == e->file && x->offset <= e->offset)) low = mid;
        else high = mid;
    }
    const mox_place *p = &r->places[low];
    assert(p->extent.file == e->file && p->extent.offset <= e->offset);
    assert(e->offset + e->bytes <= p->extent.offset + p->extent.bytes);
    return p->at + (e->offset - p->extent.offset);
}

/* NULL for an empty extent, so that a missing part cannot be read by mistake. */
static const uint8_t *address(const mox_residency *r, const mox_extent *e)
{
    if (e->bytes == 0) return NULL;
    if (r->places) return find_place(r, e);
    assert(e->file >= 0 && e->file < r->n_files && r->files[e->file].map);
    const uint8_t *copied = r->copy ? mox_copy_at(r->copy, e->file, e->offset, e->bytes) : NULL;
    return copied ? copied : (const uint8_t *)r->files[e->file].map + e->offset;
}

mox_mat mox_residency_mat(const mox_residency *r, const mox_weight *w)
{
    return (mox_mat){.layout = w->layout, .rows = w->rows, .cols = w->cols, .row0 = w->row0,
                     .w = address(r, &w->w), .scales = address(r, &w->scales), .biases = address(r, &w->biases)};
}

mox_vec mox_residency_vec(const mox_residency *r, const mox_vector *v)
{
    return (mox_vec){.type = v->type, .n = v->n, .data = address(r, &v->data)};
}
