/* runtime/device_sizes.h -- what a context takes of the memory of its devices, and which layers each of them gets
 * where that memory has a budget.
 *
 * Plans (plan.h) and contexts are measured by the same functions, so with a budget a plan is what comes to be; without one, contexts divide
 * by what is free.  The budget is that of each device; layers are divided so that the device which has slots for the smallest part of its
 * experts has them for as many as can be. */
#ifndef MOX_RUNTIME_DEVICE_SIZES_H
#define MOX_RUNTIME_DEVICE_SIZES_H

#include "dev/dev.h"
#include "model/model.h"

enum { MOX_SECTIONS_MAX = 8 };

/* Where a tensor of a model is needed. */
typedef struct mox_need {
    int64_t layer;    /* -1: with none */
    bool first, last; /* with the first layer, with the last */
    bool guesses;     /* the layer before may guess with it what this one will ask for */
} mox_need;
mox_need mox_device_need(const mox_model *m, const char *prefix, int64_t tensor);
int64_t mox_device_aligned(int64_t bytes); /* of a tensor, as it lies there */

/* Whether a device whose layers end before `end` guesses, where experts come and go, what that one will ask for on the next device. */
bool mox_device_guesses_on(const mox_model *m, int32_t end);

/* What devices of a kind take for themselves, for measuring.  NULL: the device has no memory of its own. */
typedef struct mox_device_costs {
    int64_t unit;       /* allocations are rounded up to */
    int64_t own_bytes;  /* that the driver takes there */
    int64_t host_bytes; /*   and of the host's memory */
} mox_device_costs;

/* Of some layers on one device; all 0 where the host's memory is used. */
typedef struct mox_device_sizes {
    int64_t weight_bytes, dense_bytes; /* all that the layers use; routed experts left out */
    int64_t cache_bytes, step_bytes;
    int64_t other_bytes; /* tables, and what the driver takes */
    int64_t slot_bytes, n_experts, least_slots; /* of routed experts that come and go */
    int64_t unit;        /* allocations are rounded up to */
} mox_device_sizes;
/* All of it, with so many slots; -1: all experts stay. */
int64_t mox_device_total(const mox_device_sizes *s, int64_t n_slots);
/* Slots that fit a budget. */
int64_t mox_device_slots(const mox_device_sizes *s, int64_t budget);

/* What a context takes, by layers. */
typedef struct mox_device_load mox_device_load;
typedef struct mox_device_use {
    const mox_model *model;
    mox_dtype kv_type;
    int64_t cache_bytes, state_bytes, step_bytes; /* in all; of the step, on each device */
    mox_dev_sizes most;                           /* of a batch whose experts come */
} mox_device_use;
mox_status mox_device_load_create(mox_device_load **out, const mox_device_use *use, mox_err *err);
void mox_device_load_destroy(mox_device_load **l);
/* Bytes of layers [first, end) with all their experts: weights, caches, states and a step. */
int64_t mox_device_load_bytes(const mox_device_load *l, int32_t first, int32_t end);

/* Layers on devices.  n_slots: for experts that come and go; -1: they stay. */
typedef struct mox_spread {
    int n;
    struct mox_spread_part {
        int32_t first, end;
        int64_t n_slots, bytes;
        mox_device_sizes sizes;
    } parts[MOX_SECTIONS_MAX];
    int64_t bytes; /* of the fullest */
} mox_spread;

/* With a budget that is too small, or 0, so that the fullest of them takes as little as can be. */
mox_status mox_spread_make(mox_spread *out, const mox_device_load *l, const mox_device_costs *costs, int n, int64_t budget, bool come,
                           mox_err *err);

#endif
