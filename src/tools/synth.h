/* tools/synth.h -- random checkpoints with the shapes of real models.
 *
 *   spec    which model: its dimensions, layers, seed (synth_spec.c)
 *   plan    every tensor, in the order of the files, and the texts beside them: what a
 *           4-bit MLX conversion of the model would hold (synth_plan.c, synth_config.c)
 *   fill    any range of any tensor, from the seed alone (synth_fill.c)
 *   synth   all of it on disk, or in memory as an opened model, or its shape (synth.c)
 *
 * Owns:     nothing but what a plan allocates.
 * Promises: the same spec gives the same bytes, on disk and in memory, with any number
 *           of threads.  Products stay of order one: weights have a variance of 1 /
 *           columns.  Only the table of embeddings has larger numbers, so that what a
 *           token is outweighs what all layers add: with random tokens every layer routes
 *           every token anew. */
#ifndef MOX_TOOLS_SYNTH_H
#define MOX_TOOLS_SYNTH_H

#include "base/err.h"
#include "base/pool.h"
#include "moxie/tools.h"
#include "tensor/dtype.h"
#include "tools/popularity.h"

enum { MOX_SYNTH_GROUP = 64, MOX_SYNTH_BLOCK = 1 << 16 };

/* What sets the families apart. */
typedef enum mox_synth_kind { MOX_SYNTH_QWEN3, MOX_SYNTH_NEXT, MOX_SYNTH_QWEN3_5, MOX_SYNTH_DEEPSEEK } mox_synth_kind;

typedef struct mox_synth_spec {
    const char *name;
    mox_synth_kind kind;
    int64_t vocab, dim, layers, n_ctx;
    int64_t heads, kv_heads, head_dim;
    int64_t experts, active, expert_width, shared_width;
    int64_t dense_layers, dense_width;                    /* DeepSeek: the first layers */
    int64_t k_heads, v_heads, k_dim, v_dim, conv;         /* delta nets */
    int64_t q_rank, kv_rank, nope, rope, mla_v_dim;       /* latent attention */
    int64_t groups, kept_groups;                          /* DeepSeek's router */
    double theta;
    uint64_t seed;
    double skew;
} mox_synth_spec;

/* "NAME" or "NAME:layers=N", case-insensitive.  Layers keep their kinds from the first
 * on; a shortened DeepSeek keeps its three dense layers as long as one of experts is
 * left, and fewer when it is shorter than that.  Of one layer, that one is dense. */
mox_status mox_synth_parse(mox_synth_spec *out, const char *text, mox_err *err);

/* Where the numbers of a tensor come from.  CODES: every byte random.  NUMBERS: one
 * random byte b per element, and the element is
 *     round(round((low + (high - low) b / 255) * row factor) * times)
 * so that a bias (times -7.5) follows the scale it belongs to, which has the same
 * stream.  Rows of a router are so much longer or shorter that the expert of each is
 * chosen as often as its popularity says; ranks are random per row. */
typedef enum mox_synth_source { MOX_SYNTH_CODES, MOX_SYNTH_NUMBERS } mox_synth_source;

typedef struct mox_synth_tensor {
    char name[112];
    mox_dtype dtype;
    int n_dims;
    int64_t shape[3];
    int64_t bytes;
    mox_synth_source source;
    uint64_t stream;
    double low, high, times;
    mox_popularity popularity; /* of rows; n = 0: all are alike */
    double row_middle;         /* deviations that a row of factor 1 must be above to be chosen */
    int64_t row_elements;
    int64_t offset;      /* from the start of its file */
    int32_t file;
} mox_synth_tensor;

typedef struct mox_synth_file {
    char *header; /* length and JSON, as the file begins; owned */
    int64_t header_bytes, bytes;
} mox_synth_file;

typedef struct mox_synth_plan {
    mox_synth_spec spec;
    mox_synth_tensor *tensors;
    int64_t n_tensors, capacity;
    mox_synth_file *files;
    int32_t n_files;
    int64_t bytes; /* of all tensors */
    char *config, *generation, *index; /* JSON texts; owned */
} mox_synth_plan;

/* file_bytes: most bytes of a file's tensors; a tensor is never cut. */
mox_status mox_synth_plan_init(mox_synth_plan *p, const mox_synth_spec *spec, int64_t file_bytes, mox_err *err);
void mox_synth_plan_deinit(mox_synth_plan *p); /* zeroed or half-made storage is fine */

/* File i of n, as mlx-lm names it. */
void mox_synth_file_name(char out[64], int32_t i, int32_t n);

/* The JSON texts; NULL when out of memory. */
char *mox_synth_config_text(const mox_synth_spec *s);
char *mox_synth_generation_text(const mox_synth_spec *s);

/* Layer i of the spec has full attention; otherwise a delta net. */
bool mox_synth_is_full(const mox_synth_spec *s, int64_t layer);
bool mox_synth_is_dense(const mox_synth_spec *s, int64_t layer);
/* "language_model.model." or "model." */
const char *mox_synth_prefix(const mox_synth_spec *s);

/* How many deviations a normally distributed number must be above to get there with that chance,
 * which counts for CHANCE_MOST when it is more: a row without bias is as often below zero as above. */
#define MOX_SYNTH_CHANCE_MOST 0.45
double mox_synth_deviations(double chance);

/* Bytes [offset, offset + n) of the tensor to dst; offset is a multiple of BLOCK. */
void mox_synth_fill(const mox_synth_tensor *t, mox_pool *pool, int64_t offset, unsigned char *dst, int64_t n);

/* The work behind the public functions. */
mox_status mox_synth_write_spec(const mox_synth_spec *s, const char *dir, const mox_synth_opts *opts, mox_err *err);
mox_status mox_synth_open_spec(mox_model **out, const mox_synth_spec *s, const mox_synth_opts *opts, mox_err *err);
mox_status mox_synth_open_shape_spec(mox_model **out, const mox_synth_spec *s, mox_err *err);

#endif
