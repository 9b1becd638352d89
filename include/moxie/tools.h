/* moxie/tools.h -- looking into models.  See moxie.h for errors and ownership. */
#ifndef MOXIE_TOOLS_H
#define MOXIE_TOOLS_H

#include "moxie.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MOX_INSPECT_TYPES = 24 };

/* What a checkpoint is made of.  Counts that a family has no use for are 0. */
typedef struct mox_inspection {
    char family[64];
    char layout[32];           /* "Hugging Face" or "MLX" */
    int64_t n_files, n_tensors, n_tensors_skipped; /* skipped: vision, MTP */
    int64_t n_layers, n_vocab, d_model, n_ctx_max;
    bool tied_embeddings;
    /* layers by kind */
    int64_t n_layers_attention, n_layers_latent, n_layers_linear;
    int64_t n_layers_dense, n_layers_moe;
    /* attention */
    int64_t n_heads, n_kv_heads, head_dim, rotary_dim;
    int64_t kv_lora_rank, q_lora_rank;
    int64_t linear_k_heads, linear_v_heads, linear_k_dim, linear_v_dim;
    char rope[64];             /* "theta 1e+06" or "yarn x40, theta 10000" */
    /* feed-forward */
    int64_t ffn_width, expert_width, shared_expert_width;
    int64_t n_experts, n_experts_active;
    /* weights */
    int64_t params_total, params_active; /* active: used for one token */
    int64_t bytes_total, bytes_experts;  /* of the bound weights */
    int64_t kv_bytes_per_token;          /* at f16 */
    int64_t state_bytes;                 /* recurrent state of one sequence */
    int n_types;
    struct {
        char name[40]; /* "affine 4-bit, groups of 64", "BF16" */
        int64_t n_matrices, params, bytes;
    } types[MOX_INSPECT_TYPES];
} mox_inspection;

MOX_API void mox_model_inspect(const mox_model *m, mox_inspection *out);

/* Kernel levels of this build, lowest first; mox_context_opts.isa takes a name. */
MOX_API int mox_isa_count(void);
MOX_API const char *mox_isa_name(int level); /* static storage */
MOX_API bool mox_isa_available(int level);   /* on this processor */

#ifdef __cplusplus
}
#endif
#endif
