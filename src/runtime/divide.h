/* runtime/divide.h -- which layers go to which of several devices.
 *
 * Layers stay in their order, every device gets at least one, and the devices are filled as evenly as that
 * allows: what decides is the largest share. */
#ifndef MOX_RUNTIME_DIVIDE_H
#define MOX_RUNTIME_DIVIDE_H

#include "base/err.h"

#include <stdint.h>

/* How full layers [first, end) make a device; INFINITY: it cannot have them. */
typedef double mox_share_fn(const void *user, int device, int32_t first, int32_t end);

/* Device i gets the layers before ends[i] that are not those of the devices before it; n <= n_layers.
 * share: the largest; INFINITY: there is no way, and ends say nothing. */
mox_status mox_divide(int32_t n_layers, int n, mox_share_fn *share_of, const void *user, int32_t *ends, double *share, mox_err *err);

#endif
