/* runtime/divide.c -- see divide.h.
 *
 * For one device more at a time, and for every number of layers: how full the fullest gets at best, and
 * where the last of them then begins. */
#include "runtime/divide.h"

#include "base/alloc.h"

#include <assert.h>
#include <math.h>

typedef struct cell {
    double share;  /* of the fullest device */
    int32_t begin; /* of the last device */
} cell;

/* The best way to have layers [0, end) on the devices up to this one, which follows `before`, or is the first where that is NULL. */
static cell best_of(mox_share_fn *share_of, const void *user, int device, const cell *before, int32_t end)
{
    cell best = {.share = INFINITY};
    for (int32_t first = before ? end - 1 : 0; first >= (before ? 1 : 0) && first < end; first--) {
        const double own = share_of(user, device, first, end);
        const double share = before && before[first].share > own ? before[first].share : own;
        if (share < best.share) best = (cell){share, first};
    }
    return best;
}

mox_status mox_divide(int32_t n_layers, int n, mox_share_fn *share_of, const void *user, int32_t *ends, double *share, mox_err *err)
{
    assert(n > 0 && n <= n_layers);
    const size_t row = (size_t)n_layers + 1;
    cell *cells = mox_alloc_array((size_t)n * row, sizeof *cells); /* [device][end] */
    if (!cells) return mox_fail_memory(err, (size_t)n * row * sizeof *cells, "dividing layers between devices");
    for (int i = 0; i < n; i++)
        for (int32_t end = 0; end <= n_layers; end++)
            cells[(size_t)i * row + (size_t)end] = best_of(share_of, user, i, i > 0 ? cells + (size_t)(i - 1) * row : NULL, end);
    *share = cells[(size_t)n * row - 1].share;
    int32_t end = n_layers;
    for (int i = n - 1; i >= 0; i--) {
        ends[i] = end;
        end = cells[(size_t)i * row + (size_t)end].begin;
    }
    mox_free(cells);
    return MOX_OK;
}
