/* runtime/divide.c -- see divide.h.
 *
 * Whether all layers fit when every device may be filled to the same share is found by giving each in turn
 * as many as it can take; the smallest share that works is found by halving. */
#include "runtime/divide.h"

#include "base/size.h"

#include <assert.h>

enum { HALVINGS = 60 };

static int64_t bytes_of(const mox_load *l, int32_t first, int32_t end)
{
    int64_t bytes = l->each;
    if (first == 0) bytes += l->with_first;
    if (end == l->n_layers) bytes += l->with_last;
    for (int32_t i = first; i < end; i++) bytes += l->layers[i];
    return bytes;
}

static double share_of(const mox_load *l, int32_t first, int32_t end, int64_t room)
{
    return (double)bytes_of(l, first, end) / (double)mox_max_i64(room, 1);
}

/* Fills devices up to a share each; false when layers are left over.  Every device gets a layer, and leaves
 * one to each that follows. */
static bool fill(const mox_load *l, const int64_t *room, int n, double share, int32_t *ends)
{
    int32_t first = 0;
    for (int i = 0; i < n; i++) {
        const int32_t most = l->n_layers - (n - 1 - i);
        int32_t end = first + 1;
        while (end < most && share_of(l, first, end + 1, room[i]) <= share) end++;
        if (share_of(l, first, end, room[i]) > share) return false;
        ends[i] = first = end;
    }
    return first == l->n_layers;
}

double mox_divide(const mox_load *l, const int64_t *room, int n, int32_t *ends)
{
    assert(n > 0 && n <= l->n_layers);
    double low = 0, high = 1;
    while (!fill(l, room, n, high, ends)) high *= 2;
    for (int i = 0; i < HALVINGS; i++) {
        const double mid = low + (high - low) / 2;
        if (fill(l, room, n, mid, ends)) high = mid;
        else low = mid;
    }
    (void)fill(l, room, n, high, ends);
    double largest = 0;
    for (int i = 0; i < n; i++) {
        const double share = share_of(l, i > 0 ? ends[i - 1] : 0, ends[i], room[i]);
        if (share > largest) largest = share;
    }
    return largest;
}
