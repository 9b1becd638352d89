/* dev/compose.c -- fused operations for devices that do not have them. */
#include "dev/dev.h"

#include <assert.h>

static mox_status compose_residual_norm(mox_dev *d, const mox_residual_norm_args *a, mox_err *err)
{
    assert(!a->scale); /* layer scales belong to the composite layer of ops/layer.h */
    MOX_TRY(d->ops.add(d, &(mox_add_args){.a = a->a, .b = a->b, .out = a->res, .n = a->rows * a->dim}, err));
    return d->ops.rms_norm(d,
                           &(mox_rms_norm_args){.x = a->res, .out = a->norm, .n = a->rows, .heads = 1, .dim = a->dim,
                                                .x_stride = a->dim, .x_head_stride = a->dim, .out_stride = a->dim,
                                                .out_head_stride = a->dim, .weight = a->weight,
                                                .offset = a->offset, .eps = a->eps},
                           err);
}

static mox_status compose_gdn_chunk(mox_dev *d, const mox_gdn_args *a, mox_err *err)
{
    return d->ops.gdn_recurrent(d, a, err);
}

void mox_dev_complete(mox_dev *d)
{
#define CHECK_SLOT(op, args) assert(d->ops.op);
    MOX_DEV_REQUIRED(CHECK_SLOT)
#undef CHECK_SLOT
    if (!d->ops.residual_norm) d->ops.residual_norm = compose_residual_norm;
    if (!d->ops.gdn_chunk) d->ops.gdn_chunk = compose_gdn_chunk;
}
