/* model/dense_load.h -- the weights of a model that are no routed experts, as parts of files.
 *
 * Tensors that nothing uses (vision, prediction heads) belong neither to these nor to the
 * experts. */
#ifndef MOX_MODEL_DENSE_LOAD_H
#define MOX_MODEL_DENSE_LOAD_H

#include "model/model.h"

/* Dense weights as extents, ascending by file and offset, one for neighbours; *out is the
 * caller's (mox_free). */
mox_status mox_dense_extents(const mox_model *m, mox_extent **out, int64_t *n, mox_err *err);
/* Memory that mox_model_load_dense takes: the extents in whole pages. */
mox_status mox_dense_bytes(const mox_model *m, int64_t *out, mox_err *err);

#endif
