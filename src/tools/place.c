/* tools/place.c -- see place.h. */
#include "tools/place.h"

#include "base/alloc.h"

#include <stdlib.h>

static int by_place(const void *a, const void *b)
{
    const mox_extent *x = &(*(const mox_tensor_info *const *)a)->extent, *y = &(*(const mox_tensor_info *const *)b)->extent;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

const mox_tensor_info **mox_tensors_by_place(const mox_tensors *t)
{
    const mox_tensor_info **place = mox_alloc_array((size_t)t->n_tensors, sizeof *place);
    if (!place) return NULL;
    for (int64_t i = 0; i < t->n_tensors; i++) place[i] = &t->tensors[i];
    qsort(place, (size_t)t->n_tensors, sizeof *place, by_place);
    return place;
}
