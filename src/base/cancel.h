/* base/cancel.h -- looking at a cancel flag that another thread may raise. */
#ifndef MOX_BASE_CANCEL_H
#define MOX_BASE_CANCEL_H

#include "moxie.h"

static inline bool mox_cancelled(const mox_cancel *c) { return c && __atomic_load_n(&c->raised, __ATOMIC_RELAXED) != 0; }

#endif
