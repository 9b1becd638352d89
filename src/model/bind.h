/* model/bind.h -- from tensor names to bound weights.
 *
 * A family says what it needs ("layers.3.self_attn.q_proj", [rows, cols]) and the
 * binder finds it: under whichever prefix the files use, plain or quantized or in
 * FP8 blocks, with every shape checked.  What is missing is collected, so that one
 * error names it, up to some; binding ends when it is more.
 *
 * Paths are printf formats; the checkpoint's prefix is put in front. */
#ifndef MOX_MODEL_BIND_H
#define MOX_MODEL_BIND_H

#include "format/config.h"
#include "model/weights.h"
#include "moxie/tools.h"

enum { MOX_NAME_BYTES = 640 }; /* longest tensor name the files may have, plus a suffix */

/* What a tensor of the checkpoint is needed for. */
typedef enum mox_tensor_use { MOX_UNUSED = 0, MOX_USED_DENSE, MOX_USED_EXPERT } mox_tensor_use;

/* How tensors begin that only fill up files (tools/pack.h). */
#define MOX_BIND_PADDING "moxie.padding."

typedef struct mox_binder {
    const mox_tensors *tensors;
    const mox_config *config;
    const char *prefix;      /* of everything but the head */
    const char *head_prefix;
    unsigned char *used;     /* [n_tensors]: mox_tensor_use; whoever takes it over sets it to NULL */
    int64_t n_missing;
    char missing[320];       /* names, cut after some */
    mox_inspection *report;  /* counts what is bound */
    bool counting_experts;   /* what is bound now belongs to routed experts */
    bool mlx;                /* names, shapes or quantization are those that MLX writes */
} mox_binder;

/* What the names of all tensors but the head's begin with; NULL when there is no embedding. */
const char *mox_bind_prefix(const mox_tensors *tensors);
/* The layer that a tensor's name speaks of, -1: of none. */
int64_t mox_bind_layer_of(const char *prefix, const char *name);

mox_status mox_binder_init(mox_binder *b, const mox_tensors *tensors, const mox_config *config,
                           mox_inspection *report, mox_err *err);
void mox_binder_deinit(mox_binder *b);

bool mox_bind_has(const mox_binder *b, const char *path, ...) __attribute__((format(printf, 2, 3)));

/* The module's matrix [rows, cols]: PATH.weight with what belongs to it. */
mox_status mox_bind_matrix(mox_binder *b, mox_weight *out, int64_t rows, int64_t cols, mox_err *err, const char *path, ...)
    __attribute__((format(printf, 6, 7)));
/* A stack [members, rows, cols] as one matrix of members * rows rows.  PATH.weight,
 * or the plain tensor PATH when there is no such module. */
mox_status mox_bind_stack(mox_binder *b, mox_weight *out, int64_t members, int64_t rows, int64_t cols, mox_err *err,
                          const char *path, ...) __attribute__((format(printf, 7, 8)));
/* A tensor of n elements in all, by its whole path.  optional: absence is fine. */
mox_status mox_bind_vector(mox_binder *b, mox_vector *out, int64_t n, bool optional, mox_err *err, const char *path, ...)
    __attribute__((format(printf, 6, 7)));
/* Shape of a tensor by its whole path, or NULL. */
const mox_tensor_info *mox_bind_peek(const mox_binder *b, const char *path, ...) __attribute__((format(printf, 2, 3)));
/* The output head, whose path has its own prefix. */
mox_status mox_bind_head(mox_binder *b, mox_weight *out, int64_t rows, int64_t cols, bool *there, mox_err *err);

/* Reports what was missing, and overrides of modules that do not exist; warns of
 * tensors that nothing asked for, except vision and MTP parts. */
mox_status mox_binder_finish(mox_binder *b, int64_t n_layers, mox_warn_fn *warn, void *warn_user, mox_err *err);

#endif
