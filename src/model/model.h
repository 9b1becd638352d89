/* model/model.h -- an opened checkpoint: configuration, bound weights, layers.
 *
 * Owns:    the files, the configuration and everything the blocks point to.
 * Immutable once opened, and, where it is loaded (model/dense_load.c), loaded. */
#ifndef MOX_MODEL_MODEL_H
#define MOX_MODEL_MODEL_H

#include "format/config.h"
#include "model/bind.h"
#include "model/block.h"
#include "moxie/tools.h"

/* The numbers that every family has. */
typedef struct mox_dims {
    int64_t n_vocab, n_layers, n_ctx_max;
    int64_t dim;                        /* D */
    int64_t heads;
    int64_t kv_heads, head_dim; /* of grouped attention (model/gqa.h); 0 in other families */
    float eps;
    int64_t v_dim; /* of latent attention: width of a value */
} mox_dims;

/* Routed experts of one layer, e < n_experts of the model. */
typedef struct mox_expert_weights {
    mox_weight gate, up, down;
} mox_expert_weights;

typedef struct mox_layer {
    mox_vector norm_in, norm_post;
    mox_mixer mixer;
    mox_ffn ffn;
    const mox_expert_weights *experts; /* [n_experts], NULL for a dense layer */
    mox_cache_widths cache;            /* what the mixer keeps per position */
    int64_t recurrent_floats;          /* what it keeps per sequence */
} mox_layer;

typedef struct mox_keep mox_keep; /* a block of memory that lives as long as the model */

struct mox_model {
    mox_tensors tensors;
    mox_config config;
    mox_generation_config generation;
    mox_residency residency;
    mox_inspection report;
    mox_keep *kept;
    unsigned char *tensor_use; /* [n_tensors]: mox_tensor_use */
    bool shape_only; /* there are no weights: for inspecting and planning */
    bool dense_only; /* the mappings hold no experts: model/dense_load.c */

    mox_dims dims;
    float norm_offset; /* added to the gains of block, final and q/k norms */
    int64_t n_experts;
    mox_layer *layers; /* [n_layers] */
    mox_weight embed, head;
    mox_vector final_norm;
    int64_t recurrent_floats; /* of all layers of a sequence, in their order */
    const float *frequencies; /* of all rotations, [n_frequencies] */
    int64_t n_frequencies;
};

/* A family: how one model_type becomes layers.  See docs/architecture.md. */
typedef struct mox_family {
    const char *model_type;
    /* Reads the configuration and binds the blocks of every layer; dims and the array
     * of layers are there already. */
    mox_status (*load)(mox_model *m, mox_binder *b, mox_err *err);
} mox_family;

extern const mox_family *const mox_families[]; /* NULL-terminated; families/families.c */
/* The family that the configuration names; MOX_E_UNSUPPORTED when there is none. */
mox_status mox_family_find(const mox_config *c, const mox_family **out, mox_err *err);

/* Zeroed memory that is freed with the model; NULL when out of memory. */
void *mox_model_keep(mox_model *m, size_t n, size_t size);
#define MOX_KEEP(model, type, n) ((type *)mox_model_keep((model), (size_t)(n), sizeof(type)))

/* Opens a model from parts that are not in a folder; takes over config and tensors,
 * also on failure. */
mox_status mox_model_open_parts(mox_model **out, mox_config *config, const mox_generation_config *generation,
                                mox_tensors *tensors, const mox_model_opts *opts, mox_err *err);

/* Runs a batch through the layers of the run and leaves the residual stream in h [n, D], which those
 * before have left there; the first begins with the embedding. */
mox_status mox_decoder_forward(const mox_model *m, mox_run *r, float *h);
/* logits [n, V] of n residual rows: final norm, then the head. */
mox_status mox_decoder_head(const mox_model *m, mox_run *r, const float *h, float *logits);

#endif
