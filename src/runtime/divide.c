/* runtime/divide.c -- see divide.h.
 *
 * For one device more at a time, and for every number of layers: how full the fullest gets at best, and
 * where the last of them then begins. */
#include "runtime/divide.h"

#include "base/alloc.h"
#include "base/size.h"

#include <assert.h>
#include <math.h>

typedef struct cell {
    double share;  /* of the fullest device */
    int32_t begin; /* of the last device */
} cell;

static double share_of(const mox_load *l, int64_t layer_bytes, int32_t first, int32_t end, int64_t room)
{
    const int64_t bytes = l->each + layer_bytes + (first == 0 ? l->with_first : 0) + (end == l->n_layers ? l->with_last : 0);
    return (double)bytes / (double)mox_max_i64(room, 1);
}

/* The best way to have layers [0, end) on devices up to the one after `before`, or on the first where that is NULL. */
static cell best_of(const mox_load *l, const cell *before, int32_t end, int64_t room)
{
    cell best = {.share = INFINITY};
    int64_t bytes = 0;
    for (int32_t first = end - 1; first >= 0; first--) {
        bytes += l->layers[first];
        if ((first > 0) != (before != NULL)) continue;
        const double own = share_of(l, bytes, first, end, room);
        const double share = before && before[first].share > own ? before[first].share : own;
        if (share < best.share) best = (cell){share, first};
    }
    return best;
}

mox_status mox_divide(const mox_load *l, const int64_t *room, int n, int32_t *ends, double *share, mox_err *err)
{
    assert(n > 0 && n <= l->n_layers);
    const size_t row = (size_t)l->n_layers + 1;
    cell *cells = mox_alloc_array((size_t)n * row, sizeof *cells); /* [device][end] */
    if (!cells) return mox_fail_memory(err, (size_t)n * row * sizeof *cells, "dividing layers between devices");
    for (int i = 0; i < n; i++)
        for (int32_t end = 0; end <= l->n_layers; end++)
            cells[(size_t)i * row + (size_t)end] = best_of(l, i > 0 ? cells + (size_t)(i - 1) * row : NULL, end, room[i]);
    *share = cells[(size_t)n * row - 1].share;
    int32_t end = l->n_layers;
    for (int i = n - 1; i >= 0; i--) {
        ends[i] = end;
        end = cells[(size_t)i * row + (size_t)end].begin;
    }
    mox_free(cells);
    return MOX_OK;
}
