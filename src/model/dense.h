/* model/dense.h -- the plain feed-forward: h += down(silu(gate x) * up x). */
#ifndef MOX_MODEL_DENSE_H
#define MOX_MODEL_DENSE_H

#include "model/model.h"

typedef struct mox_dense {
    int64_t width;
    mox_weight gate, up, down;
} mox_dense;

/* Binds PATH.gate_proj, up_proj and down_proj. */
mox_status mox_dense_bind(mox_model *m, mox_binder *b, mox_dense *out, int64_t width, mox_err *err, const char *path, ...)
    __attribute__((format(printf, 6, 7)));
/* Makes layer's mlp a dense one. */
mox_status mox_dense_layer(mox_model *m, mox_binder *b, int64_t layer, int64_t width, mox_err *err);

#endif
