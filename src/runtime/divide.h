/* runtime/divide.h -- which layers go to which of several devices.
 *
 * Layers stay in their order, every device gets at least one, and the devices are filled as evenly as that
 * allows: what decides is the largest share of a device's memory that is taken. */
#ifndef MOX_RUNTIME_DIVIDE_H
#define MOX_RUNTIME_DIVIDE_H

#include "base/err.h"

typedef struct mox_load {
    const int64_t *layers; /* [n_layers], bytes */
    int32_t n_layers;
    int64_t with_first, with_last; /* what lies beside the first and the last layer */
    int64_t each;                  /* what every device needs */
} mox_load;

/* Device i gets the layers before ends[i] that are not those of the devices before it; n <= n_layers.
 * share: the largest of bytes / room; above 1 it does not fit. */
mox_status mox_divide(const mox_load *load, const int64_t *room, int n, int32_t *ends, double *share, mox_err *err);

#endif
