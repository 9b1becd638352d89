/* dev/dev.c -- completing and closing devices, and the planning device. */
#include "dev/dev.h"

#include "base/alloc.h"

#include <assert.h>

void mox_dev_close(mox_dev **d)
{
    if (*d) (*d)->close(*d);
    *d = NULL;
}

/* ---- the planning device: every operation succeeds and touches nothing ---- */

#define PLAN_OP(op, args)                                            \
    static mox_status plan_##op(mox_dev *d, const args *a, mox_err *err) \
    {                                                                \
        (void)d, (void)a, (void)err;                                 \
        return MOX_OK;                                               \
    }
MOX_DEV_REQUIRED(PLAN_OP)
MOX_DEV_OPTIONAL(PLAN_OP)
MOX_DEV_SEQUENCES(PLAN_OP)
#undef PLAN_OP

static void plan_close(mox_dev *d) { mox_free(d); }

mox_status mox_dev_plan_open(mox_dev **out, mox_err *err)
{
    *out = NULL;
    mox_dev *d = mox_alloc_array(1, sizeof *d);
    if (!d) return mox_fail_memory(err, sizeof *d, "the planning device");
    d->name = "plan";
    d->close = plan_close;
#define PLAN_SLOT(op, args) d->ops.op = plan_##op;
    MOX_DEV_REQUIRED(PLAN_SLOT)
    MOX_DEV_OPTIONAL(PLAN_SLOT)
    MOX_DEV_SEQUENCES(PLAN_SLOT)
#undef PLAN_SLOT
    *out = d;
    return MOX_OK;
}
