/* runtime/expert_tier.h -- experts in slots on a device whose memory is its own, above the store.
 *
 * A source for the device: what it hands out are matrices in memory of the device.  The index
 * (expert_cache.h) says which expert is in which slot, and the least recently used one gives way.  What is
 * missing is asked of the store (expert_store.h), which has it in memory of the host or reads it, and is
 * copied from there while the device computes what was there.  A layer asks for its experts when everything
 * before it has been computed (the device had to say which they are), so a slot that the layer itself has
 * not used can be written at once.
 *
 * With a host (expert_host.h) what a batch of a few tokens lacks is computed by the processor where it is, but
 * for a third: those that were asked for most often are copied meanwhile, so that the device learns.  When
 * there are less than three, or copies cannot run beside the processor, one of them is still copied, for later
 * batches.  Which these are depends on what was asked for and not on time, and so do the bytes that come out.
 *
 * Without a host, where copies can run beside everything else, experts that the next layer will probably want are
 * copied when those of this one are on their way, as long as that pays (foresight.h), if the store has them.  Where that
 * layer is on another device, the tier there copies them.
 *
 * Several devices have a tier each, above one store.
 *
 * Owns:    slots on the device, index.      Borrows: model, device, the residency there, the store, the host.
 * Threads: that of the step.
 * Memory:  everything is reserved by init.
 *
 * I1  between batches what the index says is in a slot is there, or comes before what is computed next.
 * I2  the bytes of a slot change only when all that reads them has been computed, or will be before them.
 * I3  memory of the store is given back to it only when it has been copied, unless the store never
 *     overwrites it. */
#ifndef MOX_RUNTIME_EXPERT_TIER_H
#define MOX_RUNTIME_EXPERT_TIER_H

#include "dev/dev.h"
#include "model/model.h"
#include "runtime/expert_cache.h"
#include "runtime/expert_host.h"
#include "runtime/expert_store.h"
#include "runtime/foresight.h"

typedef struct mox_expert_tier {
    mox_expert_source source; /* first: the tier is its source; zeroed: there is no tier */
    mox_expert_source missing_source; /* of the host: the store, and a look at what it hands over */
    const mox_model *model;
    mox_dev *dev;
    const mox_residency *residency; /* of weights that stay on the device */
    mox_expert_store *below;
    mox_expert_host *host; /* NULL: all that is missing is copied */
    mox_expert_cache cache;
    uint8_t *memory; /* of the device */
    int64_t slot_bytes;
    void **pinned; /* [n_pinned]: memory of the host that this tier has pinned, for those of other devices, too */
    int32_t n_pinned;
    bool beside; /* copies run beside operations: what they are made from is pinned */
    bool stays; /* what the store hands out stays where it is */
    bool *whole; /* [n_layers]: experts lie in slots as in those of the store, and are copied in one piece */

    /* The running batch: experts are numbered as in ids. */
    bool running;
    int32_t layer;
    const int32_t *ids;
    int64_t n;
    int32_t *slot_of;  /* [n_experts] */
    bool *hit, *come;  /* [n_experts]: was there; is there, or on its way */
    int32_t *index_of; /* [n_experts], of an id */
    int32_t *missing, *asked; /* [n_experts]: who was not there, and the ids of those that the store was asked for */
    int32_t *out;      /* [n_experts]: copied; those before n_given have been handed over */
    int64_t n_missing, n_begun, n_asked, n_pulled, n_out, n_given; /* begun: of missing; pulled: of asked */
    bool asking, hits_given, hits_back; /* the store was asked; hits were handed over, and taken back */
    bool copying;      /* from memory of the store, perhaps */
    bool *busy, *used; /* [n_slots]: what is in it is in use; was, in this batch */
    mox_expert *batch; /* [n_experts], of the store */

    bool prefetch;
    mox_foresight foresight;
    int32_t guess_layer;
    int32_t *guess; /* [n_experts]: of that layer, what would have to be copied */
    int64_t n_guess, n_prefetched;
    struct mox_expert_tier *next; /* on another device, with layers from next_first on; NULL: there is none */
    int32_t next_first;

    int32_t *there;   /* [n_experts]: of a batch that the host has a part in, what the device has or gets */
    int64_t n_brought; /* that it gets */
    bool *coming;     /* [n_slots]: being copied for nobody yet */
    bool hits_come;   /* to a slot of a hit of this batch */
    int32_t learnt, learnt_slot; /* what the host computes now and is copied meanwhile, to which slot; -1: nothing */

    uint32_t *heat; /* [n_layers, n_experts]: times that a batch asked */
    int64_t bytes_copied, n_cold; /* cold: computed by the host */
} mox_expert_tier;

/* Bytes of a slot on a device that any expert of the model fits in. */
int64_t mox_expert_tier_slot_bytes(const mox_model *m);
/* How many slots there must be: one, or those that MOX_DEV_TOGETHER tokens need in a layer. */
int64_t mox_expert_tier_least(const mox_model *m);
/* Memory of the host that init takes. */
int64_t mox_expert_tier_bytes(const mox_model *m, int64_t n_slots);

/* n_slots: at least one, at most all experts.  host may be NULL. */
mox_status mox_expert_tier_init(mox_expert_tier *t, const mox_model *m, mox_dev *dev, const mox_residency *residency,
                                mox_expert_store *below, mox_expert_host *host, int64_t n_slots, const mox_context_opts *opts, mox_err *err);
void mox_expert_tier_deinit(mox_expert_tier *t); /* zeroed storage is fine; before the store and the device; the tier that pins last */

/* The experts of a layer as they lie in the first slot; out [n_experts]. */
void mox_expert_tier_views(const mox_expert_tier *t, int32_t layer, mox_expert *out);

/* Layers from `first` on are those of the tier `next`; it gets the guesses about them. */
void mox_expert_tier_link(mox_expert_tier *t, int32_t first, mox_expert_tier *next);

/* The members about the device are added to. */
void mox_expert_tier_add_stats(const mox_expert_tier *t, mox_expert_stats *out);

#endif
