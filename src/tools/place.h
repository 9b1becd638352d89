/* tools/place.h -- tensors in the order in which files hold them. */
#ifndef MOX_TOOLS_PLACE_H
#define MOX_TOOLS_PLACE_H

#include "format/safetensors.h"

/* All tensors by file and offset, empty ones before their neighbours; freed with mox_free.
 * NULL when out of memory. */
const mox_tensor_info **mox_tensors_by_place(const mox_tensors *t);

#endif
