/* runtime/plan.h -- the memory plan of a model on a machine that may be made up. */
#ifndef MOX_RUNTIME_PLAN_H
#define MOX_RUNTIME_PLAN_H

#include "model/model.h"

/* mox_plan_make with the memory of the machine below root (base/machine.h). */
mox_status mox_plan_make_at(const char *root, mox_plan *out, const mox_model *m, const mox_plan_opts *opts, mox_err *err);

#endif
