/* tools/pack.h -- what the files of a packed model hold, shared by planning and writing.
 *
 * The layout, which any reader of safetensors can follow:
 *
 *   model-dense-NNNNN.safetensors     everything that is no routed expert; a source file
 *                                     without experts is taken as it is
 *   model-experts-NNNNN.safetensors   the routed experts of layer NNNNN
 *   moxie.pack.json                   checksums (manifest.h)
 *   all other small files             as they were
 *
 * Experts are single tensors PREFIX.layers.L.mlp.experts.E.PROJ.weight (.scales, .biases,
 * .weight_scale_inv), whatever they were in the source.  Those of one expert follow each
 * other, all weights first, and begin at a multiple of MOX_PACK_ALIGN of the file; tensors
 * moxie.padding.N fill up.  There is no index file: with one entry for each of these tensors
 * it would take as long to read as all headers, and the names of the files say enough. */
#ifndef MOX_TOOLS_PACK_H
#define MOX_TOOLS_PACK_H

#include "base/folder.h"
#include "base/writer.h"
#include "model/model.h"

enum { MOX_PACK_ALIGN = 4096, MOX_PACK_PARTS = 9, MOX_PACK_FILE_NAME = 256 };

typedef enum mox_pack_kind {
    MOX_PACK_WHOLE,   /* a file of the source, link or copy; `first` is its index among the tensor files, -1 for others */
    MOX_PACK_DENSE,   /* tensors dense[first, first + n) */
    MOX_PACK_EXPERTS, /* of layer `first` */
} mox_pack_kind;

typedef struct mox_pack_step {
    mox_pack_kind kind;
    char name[MOX_PACK_FILE_NAME]; /* of the file that it makes */
    char from[MOX_PACK_FILE_NAME]; /* WHOLE: of the file in the source */
    int64_t first, n;
    int64_t bytes; /* of data: headers are not made yet */
} mox_pack_step;

typedef struct mox_pack_plan {
    const mox_model *model;
    const char *dir;                /* the source; borrowed */
    const mox_tensor_info **place;  /* [n_tensors] all tensors by file and offset */
    unsigned char *expert;          /* [n_tensors] of place: belongs to experts */
    const mox_tensor_info **dense;  /* [n_dense] dense tensors of files that hold experts, by place */
    int64_t n_dense;
    mox_pack_step *steps;
    int64_t n_steps, capacity;
    int64_t bytes;
    int64_t expert_bytes_max;       /* the largest expert with its padding */
    uint64_t source;                /* stands for this very checkpoint */
} mox_pack_plan;

mox_status mox_pack_plan_init(mox_pack_plan *p, const mox_model *m, const char *dir, mox_err *err);
void mox_pack_plan_deinit(mox_pack_plan *p); /* zeroed or half-built storage is fine */

/* One tensor of an expert. */
typedef struct mox_pack_part {
    const char *module, *suffix; /* "gate_proj", ".weight" */
    mox_extent from;
    int64_t to; /* offset within the expert */
} mox_pack_part;

/* The parts of an expert in their order; returns how many.  *bytes is what they take,
 * padding included. */
int mox_pack_parts(const mox_expert_weights *x, mox_pack_part out[MOX_PACK_PARTS], int64_t *bytes);

/* The bytes of a safetensors file in front of its data, for a DENSE or EXPERTS step. */
mox_status mox_pack_header(const mox_pack_plan *p, const mox_pack_step *s, mox_writer *out, mox_err *err);
/* Path of an expert, as its tensors have it. */
void mox_pack_expert_name(const mox_pack_plan *p, int64_t layer, int64_t expert, char out[MOX_NAME_BYTES]);

#endif
