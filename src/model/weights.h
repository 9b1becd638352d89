/* model/weights.h -- bound weights: where they are in the files, and how they
 * become addresses.
 *
 * A bound weight is an extent with a layout.  Nobody keeps a pointer into a file:
 * residency turns an extent into an address when a step needs it, so that weights
 * may live in a mapping, in memory of our own or on a device. */
#ifndef MOX_MODEL_WEIGHTS_H
#define MOX_MODEL_WEIGHTS_H

#include "format/safetensors.h"
#include "model/copy.h"
#include "tensor/matrix.h"

typedef struct mox_weight {
    mox_mat_layout layout; /* kind NONE: there is no such weight */
    int64_t rows, cols, row0;
    mox_extent w, scales, biases;
} mox_weight;

typedef struct mox_vector {
    mox_dtype type; /* NONE: there is no such vector */
    int64_t n;
    mox_extent data;
} mox_vector;

/* Rows [row, row + n) of a weight, e.g. one expert of a stack. */
mox_weight mox_weight_rows(const mox_weight *w, int64_t row, int64_t n);
int64_t mox_weight_bytes(const mox_weight *w);

/* Bytes of a file that lie in memory of a device. */
typedef struct mox_place {
    mox_extent extent;
    const uint8_t *at;
} mox_place;

/* Where the bytes of files are: mappings of the whole files and, when there is one, a
 * copy that grows in the background; or, for a device with memory of its own, places there. */
typedef struct mox_residency {
    const mox_file *files;
    int32_t n_files;
    mox_copy *copy;          /* may be NULL */
    const mox_place *places; /* by file and offset; NULL: the host's memory is meant */
    int64_t n_places;
} mox_residency;

/* Views for the operations; valid as long as the residency, whatever the copy does. */
mox_mat mox_residency_mat(const mox_residency *r, const mox_weight *w);
mox_vec mox_residency_vec(const mox_residency *r, const mox_vector *v);

#endif
