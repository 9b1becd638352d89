/* model/block.h -- what a layer is made of.
 *
 * A mixer moves information between tokens and writes y [n, D]; a feed-forward
 * works on each token and adds to h [n, D].  Both are a function and its data;
 * the data belongs to the model. */
#ifndef MOX_MODEL_BLOCK_H
#define MOX_MODEL_BLOCK_H

#include "model/run.h"

typedef struct mox_mixer {
    mox_status (*forward)(mox_run *r, const struct mox_mixer *m, int32_t layer, const float *x, float *y);
    const void *data;
    const mox_weight *first; /* that forward reads, for mox_run_expect; NULL: not known */
    int64_t n_first;         /* rows of it, and of those that are computed with it as one list */
} mox_mixer;

typedef struct mox_ffn {
    mox_status (*forward)(mox_run *r, const struct mox_ffn *f, int32_t layer, const float *x, float *h);
    const void *data;
    const mox_weight *first; /* that forward reads, for mox_run_expect; NULL: not known */
    int64_t n_first;         /* rows of it, and of those that are computed with it as one list */
} mox_ffn;

#endif
