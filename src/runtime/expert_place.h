/* runtime/expert_place.h -- an expert as ranges of files, and where they lie in a slot.
 *
 * An expert has up to nine parts: codes, scales and biases of gate, up and down.  Parts
 * whose pages touch in a file are one range; ranges follow each other in the slot, each on
 * whole pages and at the same distance from a page's beginning as in the file, so that a
 * read around the page cache ends where the kernels read.  The grid of scales of an FP8
 * tensor belongs to all of its rows and is no part of an expert: it stays with the dense
 * weights.
 *
 * Everything follows from the bound extents, which were checked against the files when the
 * model was opened. */
#ifndef MOX_RUNTIME_EXPERT_PLACE_H
#define MOX_RUNTIME_EXPERT_PLACE_H

#include "dev/dev.h"
#include "model/model.h"
#include "runtime/reader.h"

enum { MOX_EXPERT_PARTS = 9 };

typedef struct mox_expert_place {
    int32_t n_ranges;
    struct {
        int32_t file;
        int64_t offset, bytes; /* exactly what the parts span */
        int64_t at;            /* of its first page, in the slot */
    } ranges[MOX_EXPERT_PARTS];
    int64_t part_at[MOX_EXPERT_PARTS]; /* in the slot; -1: not there */
    int64_t bytes;                     /* of the slot, whole pages */
} mox_expert_place;

void mox_expert_place_find(const mox_expert_weights *w, mox_expert_place *out);
/* The reads that bring it to the slot, which is aligned to MOX_READ_ALIGN. */
void mox_expert_place_reads(const mox_expert_place *p, uint8_t *slot, mox_read_range out[MOX_EXPERT_PARTS]);
/* Its views there; what is not in the slot comes from the residency. */
void mox_expert_place_views(const mox_expert_place *p, const mox_expert_weights *w, const uint8_t *slot, const mox_residency *r,
                            mox_expert *out);

/* A slot that any expert of the model fits in: mox_model_expert_slot_bytes of moxie/tools.h. */

#endif
