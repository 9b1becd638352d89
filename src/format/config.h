/* format/config.h -- config.json and its neighbours as checked values.
 *
 * A mox_config holds the parsed JSON and answers typed questions with ranges; a
 * family asks for the keys it knows.  What several families share (rope,
 * quantization, generation defaults) is read here once.  Unknown keys are
 * ignored; unsupported values are refused by name. */
#ifndef MOX_FORMAT_CONFIG_H
#define MOX_FORMAT_CONFIG_H

#include "base/err.h"
#include "tensor/matrix.h"

#include <jansson.h>

typedef enum mox_rope_kind { MOX_ROPE_DEFAULT = 0, MOX_ROPE_YARN } mox_rope_kind;

typedef struct mox_rope_config {
    mox_rope_kind kind;
    double theta;
    double partial_rotary_factor; /* 0 when the file does not say: the family decides */
    /* YaRN */
    double factor, beta_fast, beta_slow;      /* defaults 32 and 1 */
    double mscale, mscale_all_dim;            /* 0 = not given */
    double attention_factor;                  /* 0 = not given */
    int64_t original_max_position_embeddings; /* falls back to max_position_embeddings */
    bool truncate;                            /* default true */
} mox_rope_config;

/* One entry of "quantization" whose key is a module path. */
typedef struct mox_quant_override {
    char *module;
    bool quantized;
    int32_t bits, group;
} mox_quant_override;

typedef struct mox_quant_config {
    bool mlx;                 /* the file has an MLX "quantization" object */
    int32_t bits, group;      /* its global values */
    mox_quant_override *overrides; /* sorted by module */
    int64_t n_overrides;
    bool fp8;                 /* "quantization_config" with quant_method fp8 */
    int32_t block_rows, block_cols;
} mox_quant_config;

typedef struct mox_config {
    char *path;       /* of config.json, for error sentences */
    json_t *root;     /* owned */
    json_t *text;     /* text_config, or root (borrowed) */
    char family[64];  /* model_type of the text model without "_text" */
    mox_rope_config rope;
    mox_quant_config quant;
    bool tied;        /* tie_word_embeddings */
} mox_config;

/* Reads dir/config.json.  Refuses files over 64 MB, depth over 64 is an error.  After a
 * failure *out is closed, but its family is there when the file names one. */
mox_status mox_config_open(mox_config *out, const char *dir, mox_err *err);
/* The parser behind it (tests, fuzzing); label names the file in errors. */
mox_status mox_config_parse(mox_config *out, const char *label, const char *text, size_t n, mox_err *err);
void mox_config_close(mox_config *c); /* zeroed storage is fine */

bool mox_config_has(const mox_config *c, const char *key); /* present and not null */

/* Typed look-ups in the text config.  A missing or null key is an error unless
 * the _or form gives a default.  Errors name the file, the key, what was found
 * and the range. */
mox_status mox_config_int(const mox_config *c, const char *key, int64_t min, int64_t max, int64_t *out, mox_err *err);
mox_status mox_config_int_or(const mox_config *c, const char *key, int64_t min, int64_t max, int64_t fallback,
                             int64_t *out, mox_err *err);
mox_status mox_config_real_or(const mox_config *c, const char *key, double min, double max, double fallback,
                              double *out, mox_err *err);
mox_status mox_config_bool_or(const mox_config *c, const char *key, bool fallback, bool *out, mox_err *err);
/* Refuses, by name, a key whose value is there and is not the one we support. */
mox_status mox_config_expect_string(const mox_config *c, const char *key, const char *value, mox_err *err);
mox_status mox_config_expect_bool(const mox_config *c, const char *key, bool value, mox_err *err);
/* Element i of an array of strings (layer_types); checks the array's length. */
mox_status mox_config_string_at(const mox_config *c, const char *key, int64_t i, int64_t length, const char **out, mox_err *err);
/* true when the integer array `key` contains v; a missing array contains nothing. */
mox_status mox_config_int_array_has(const mox_config *c, const char *key, int64_t v, bool *out, mox_err *err);

/* Whether "quantization" speaks of this very module. */
bool mox_config_overrides(const mox_config *c, const char *module);

/* How the module is stored according to "quantization": fills *quantized and, when
 * it is, bits and group.  has_scales says whether a tensor MODULE.scales exists
 * (the rule when there is no override). */
mox_status mox_config_quantization_of(const mox_config *c, const char *module, bool has_scales, bool *quantized,
                                      int32_t *bits, int32_t *group, mox_err *err);

/* generation_config.json plus the end-of-sequence ids of config.json.  Missing
 * files and keys leave defaults (temperature 1 when do_sample, else 0).  Stop ids
 * are the union of what the two files name; mox_stop_id adds the tokenizer's. */
enum { MOX_MAX_STOP_IDS = 64 };
typedef struct mox_generation_config {
    double temperature, top_p, min_p, repeat_penalty;
    int64_t top_k;
    int32_t stop_ids[MOX_MAX_STOP_IDS];
    int32_t n_stop_ids;
} mox_generation_config;
mox_status mox_generation_open(mox_generation_config *out, const mox_config *c, const char *dir, mox_err *err);
/* The parser behind it (tests, fuzzing); text NULL: the file does not exist. */
mox_status mox_generation_parse(mox_generation_config *out, const mox_config *c, const char *label, const char *text,
                                size_t n, mox_err *err);

#endif
