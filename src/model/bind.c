/* model/bind.c -- see bind.h. */
#include "model/bind.h"

#include "base/alloc.h"
#include "base/ending.h"
#include "base/size.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MISSING_NAMED = 10 };

static const char *const prefixes[] = {"language_model.model.", "model.language_model.", "model."};

const char *mox_bind_prefix(const mox_tensors *tensors)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        char name[MOX_NAME_BYTES];
        (void)snprintf(name, sizeof name, "%sembed_tokens.weight", prefixes[i]);
        if (mox_tensors_find(tensors, name)) return prefixes[i];
    }
    return NULL;
}

mox_status mox_binder_init(mox_binder *b, const mox_tensors *tensors, const mox_config *config,
                           mox_inspection *report, mox_err *err)
{
    *b = (mox_binder){.tensors = tensors, .config = config, .report = report, .prefix = mox_bind_prefix(tensors)};
    if (!b->prefix)
        return mox_fail(err, MOX_E_FORMAT, "%s: its tensor files hold no model.embed_tokens.weight under any known prefix; "
                        "is this a whole checkpoint?", config->path);
    b->mlx = config->quant.mlx || b->prefix == prefixes[0];
    b->head_prefix = mox_tensors_find(tensors, "language_model.lm_head.weight") ? "language_model." : "";
    b->used = mox_alloc_array((size_t)tensors->n_tensors, 1);
    return b->used ? MOX_OK : mox_fail_memory(err, (size_t)tensors->n_tensors, "binding weights");
}

void mox_binder_deinit(mox_binder *b)
{
    mox_free(b->used);
    *b = (mox_binder){0};
}

/* ---- names ---- */

/* prefix + path into name; false when it does not fit (then no tensor has it). */
static bool full_name(char name[MOX_NAME_BYTES], const char *prefix, const char *path, va_list args)
{
    const int n = snprintf(name, MOX_NAME_BYTES, "%s", prefix);
    const int m = vsnprintf(name + n, (size_t)(MOX_NAME_BYTES - n), path, args);
    return m >= 0 && m < MOX_NAME_BYTES - n;
}

static const mox_tensor_info *find(const mox_binder *b, const char *module, const char *suffix)
{
    char name[MOX_NAME_BYTES + 32];
    (void)snprintf(name, sizeof name, "%s%s", module, suffix);
    return mox_tensors_find(b->tensors, name);
}

static void mark_used(mox_binder *b, const mox_tensor_info *t)
{
    b->used[t - b->tensors->tensors] = b->counting_experts ? MOX_USED_EXPERT : MOX_USED_DENSE;
}

/* Fails when there are more than can be named: a configuration that asks for millions is not followed further,
 * as each layer would take memory for what the files do not have. */
static mox_status note_missing(mox_binder *b, const char *module, const char *suffix, mox_err *err)
{
    if (++b->n_missing > MISSING_NAMED)
        return mox_fail(err, MOX_E_FORMAT, "%s: at least %lld tensors are missing from the checkpoint: %s, ...",
                        b->config->path, (long long)b->n_missing, b->missing);
    const size_t n = strlen(b->missing);
    (void)snprintf(b->missing + n, sizeof b->missing - n, "%s%s%s", n ? ", " : "", module, suffix);
    return MOX_OK;
}

bool mox_bind_has(const mox_binder *b, const char *path, ...)
{
    char name[MOX_NAME_BYTES];
    va_list args;
    va_start(args, path);
    const bool fits = full_name(name, b->prefix, path, args);
    va_end(args);
    return fits && mox_tensors_find(b->tensors, name);
}

const mox_tensor_info *mox_bind_peek(const mox_binder *b, const char *path, ...)
{
    char name[MOX_NAME_BYTES];
    va_list args;
    va_start(args, path);
    const bool fits = full_name(name, b->prefix, path, args);
    va_end(args);
    return fits ? mox_tensors_find(b->tensors, name) : NULL;
}

/* Replaces `from` in name, and the number and dot that follow it where `number` is set;
 * false when it is not there. */
static bool rename_path(char out[MOX_NAME_BYTES], const char *name, const char *from, bool number, const char *to)
{
    const char *at = strstr(name, from);
    if (!at) return false;
    const char *rest = at + strlen(from);
    if (number) {
        const size_t n = strspn(rest, "0123456789");
        if (n == 0 || rest[n] != '.') return false;
        rest += n + 1;
    }
    const int n = snprintf(out, MOX_NAME_BYTES, "%.*s%s%s", (int)(at - name), name, to, rest);
    return n > 0 && n < MOX_NAME_BYTES;
}

/* The name by which config.json may speak of a module: an expert that lies by itself may have
 * been part of a stack when the configuration was written. */
static const char *configured_name(const mox_binder *b, const char *module, char stack[MOX_NAME_BYTES])
{
    if (mox_config_overrides(b->config, module) || !rename_path(stack, module, ".mlp.experts.", true, ".mlp.switch_mlp."))
        return module;
    return mox_config_overrides(b->config, stack) ? stack : module;
}

/* Whether there is such a module, be it as a stack or as experts by themselves. */
static bool is_there(const mox_binder *b, const char *module)
{
    char single[MOX_NAME_BYTES];
    return find(b, module, ".weight") ||
           (rename_path(single, module, ".mlp.switch_mlp.", false, ".mlp.experts.0.") && find(b, single, ".weight"));
}

/* ---- shapes ---- */

static void shape_text(char *out, size_t n, const int64_t *shape, int n_dims)
{
    size_t at = (size_t)snprintf(out, n, "[");
    for (int i = 0; i < n_dims && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (at < n) (void)snprintf(out + at, n - at, "]");
}

/* The tensor has this shape, where members = 0 means there is no leading axis. */
static mox_status expect_shape(const mox_binder *b, const mox_tensor_info *t, int64_t members, int64_t rows, int64_t cols,
                               mox_err *err)
{
    const int64_t want[3] = {members, rows, cols};
    const int64_t *shape = members ? want : want + 1;
    const int n_dims = members ? 3 : 2;
    bool same = t->n_dims == n_dims;
    for (int i = 0; same && i < n_dims; i++) same = t->shape[i] == shape[i];
    if (same) return MOX_OK;
    char expected[96], found[192];
    shape_text(expected, sizeof expected, shape, n_dims);
    shape_text(found, sizeof found, t->shape, t->n_dims);
    return mox_fail(err, MOX_E_FORMAT, "%s: tensor %s has shape %s but %s asks for %s",
                    b->tensors->files[t->extent.file].path, t->name, found, b->config->path, expected);
}

static mox_status expect_dtype(const mox_binder *b, const mox_tensor_info *t, bool ok, const char *wanted, mox_err *err)
{
    if (ok) return MOX_OK;
    return mox_fail(err, MOX_E_FORMAT, "%s: tensor %s has type %s, expected %s", b->tensors->files[t->extent.file].path,
                    t->name, mox_dtype_name(t->dtype), wanted);
}

/* ---- layouts ---- */

static mox_mat_kind plain_kind(mox_dtype t)
{
    switch (t) {
    case MOX_DT_F32: return MOX_MAT_F32;
    case MOX_DT_F16: return MOX_MAT_F16;
    case MOX_DT_BF16: return MOX_MAT_BF16;
    default: return MOX_MAT_NONE;
    }
}

static mox_status bind_plain(const mox_binder *b, mox_weight *out, const mox_tensor_info *t, int64_t members, int64_t rows,
                             int64_t cols, mox_err *err)
{
    out->layout.kind = plain_kind(t->dtype);
    MOX_TRY(expect_dtype(b, t, out->layout.kind != MOX_MAT_NONE, "BF16, F16 or F32", err));
    return expect_shape(b, t, members, rows, cols, err);
}

static mox_status bind_affine(mox_binder *b, mox_weight *out, const char *module, const mox_tensor_info *t, int32_t bits,
                              int32_t group, int64_t members, int64_t rows, int64_t cols, mox_err *err)
{
    const mox_tensor_info *scales = find(b, module, ".scales"), *biases = find(b, module, ".biases");
    if (!scales) MOX_TRY(note_missing(b, module, ".scales", err));
    if (!biases) MOX_TRY(note_missing(b, module, ".biases", err));
    if (!scales || !biases) return MOX_OK;
    out->layout = (mox_mat_layout){.kind = MOX_MAT_AFFINE, .bits = bits, .group = group, .scale_type = scales->dtype};
    const char *problem = mox_mat_layout_problem(&out->layout, cols);
    if (problem)
        return mox_fail(err, MOX_E_FORMAT, "%s: quantization of %s (%d bits, groups of %d, rows of %lld): %s",
                        b->config->path, module, bits, group, (long long)cols, problem);
    MOX_TRY(expect_dtype(b, t, t->dtype == MOX_DT_U32, "U32 (packed codes)", err));
    MOX_TRY(expect_dtype(b, biases, biases->dtype == scales->dtype, "that of its scales", err));
    MOX_TRY(expect_shape(b, t, members, rows, cols * bits / 32, err));
    MOX_TRY(expect_shape(b, scales, members, rows, cols / group, err));
    MOX_TRY(expect_shape(b, biases, members, rows, cols / group, err));
    mark_used(b, scales);
    mark_used(b, biases);
    out->scales = scales->extent;
    out->biases = biases->extent;
    return MOX_OK;
}

static mox_status bind_fp8(mox_binder *b, mox_weight *out, const mox_tensor_info *t, const mox_tensor_info *scale,
                           int64_t rows, int64_t cols, mox_err *err)
{
    const mox_quant_config *q = &b->config->quant;
    /* E8M0 scales are also written as plain bytes. */
    const mox_dtype scale_type = scale->dtype == MOX_DT_U8 ? MOX_DT_F8_E8M0 : scale->dtype;
    out->layout = (mox_mat_layout){.kind = MOX_MAT_FP8, .scale_type = scale_type,
                                   .block_rows = q->fp8 ? q->block_rows : 128, .block_cols = q->fp8 ? q->block_cols : 128};
    const char *problem = mox_mat_layout_problem(&out->layout, cols);
    if (problem)
        return mox_fail(err, MOX_E_FORMAT, "%s: tensor %s: %s", b->tensors->files[t->extent.file].path, scale->name, problem);
    MOX_TRY(expect_dtype(b, t, t->dtype == MOX_DT_F8_E4M3, "F8_E4M3", err));
    MOX_TRY(expect_shape(b, t, 0, rows, cols, err));
    MOX_TRY(expect_shape(b, scale, 0, mox_ceil_div(rows, out->layout.block_rows), mox_ceil_div(cols, out->layout.block_cols), err));
    b->used[scale - b->tensors->tensors] = MOX_USED_DENSE; /* one grid for all rows: no part of an expert */
    out->scales = scale->extent;
    return MOX_OK;
}

/* ---- counting for the report ---- */

static void layout_name(char *out, size_t n, const mox_mat_layout *l)
{
    switch (l->kind) {
    case MOX_MAT_AFFINE: (void)snprintf(out, n, "affine %d-bit, groups of %d", l->bits, l->group); break;
    case MOX_MAT_FP8: (void)snprintf(out, n, "FP8, blocks of %dx%d", l->block_rows, l->block_cols); break;
    case MOX_MAT_F32: (void)snprintf(out, n, "F32"); break;
    case MOX_MAT_F16: (void)snprintf(out, n, "F16"); break;
    default: (void)snprintf(out, n, "BF16"); break;
    }
}

static void count(mox_binder *b, const char *type, int64_t n_matrices, int64_t params, int64_t bytes)
{
    mox_inspection *r = b->report;
    r->params_total += params;
    r->bytes_total += bytes;
    if (b->counting_experts) r->bytes_experts += bytes;
    else r->params_active += params;
    int i = 0;
    while (i < r->n_types && strcmp(r->types[i].name, type) != 0) i++;
    if (i == MOX_INSPECT_TYPES) i--; /* more kinds than rows: the last row takes the rest */
    if (i == r->n_types) (void)snprintf(r->types[r->n_types++].name, sizeof r->types[0].name, "%s", type);
    r->types[i].n_matrices += n_matrices;
    r->types[i].params += params;
    r->types[i].bytes += bytes;
}

/* ---- binding ---- */

static mox_status bind_module(mox_binder *b, mox_weight *out, const char *module, int64_t members, int64_t rows,
                              int64_t cols, mox_err *err)
{
    *out = (mox_weight){0};
    int64_t all_rows = rows, params;
    if ((members && !mox_mul_i64(members, rows, &all_rows)) || !mox_mul_i64(all_rows, cols, &params) ||
        params > INT64_MAX / 64)
        return mox_fail(err, MOX_E_FORMAT, "%s: the sizes of %s are absurd", b->config->path, module);
    const mox_tensor_info *t = find(b, module, ".weight");
    if (!t && members) t = find(b, module, ""); /* fused experts have no suffix */
    if (!t) return note_missing(b, module, ".weight", err);
    bool quantized;
    int32_t bits, group;
    char stack[MOX_NAME_BYTES];
    const mox_tensor_info *fp8 = find(b, module, ".weight_scale_inv");
    const char *called = configured_name(b, module, stack);
    MOX_TRY(mox_config_quantization_of(b->config, called, find(b, module, ".scales") != NULL, &quantized, &bits, &group, err));
    if (fp8 && members) /* the grid of scales would begin anew with each member, which no layout has */
        return mox_fail(err, MOX_E_UNSUPPORTED, "%s: tensor %s is a stack in FP8, which is not supported; use a "
                        "checkpoint that has its matrices one by one",
                        b->tensors->files[t->extent.file].path, t->name);
    if (fp8) MOX_TRY(bind_fp8(b, out, t, fp8, rows, cols, err));
    else if (quantized) MOX_TRY(bind_affine(b, out, module, t, bits, group, members, rows, cols, err));
    else MOX_TRY(bind_plain(b, out, t, members, rows, cols, err));
    if (out->layout.kind == MOX_MAT_NONE) return MOX_OK; /* parts are missing, and noted */
    out->rows = all_rows;
    out->cols = cols;
    out->w = t->extent;
    mark_used(b, t);
    char type[40];
    layout_name(type, sizeof type, &out->layout);
    count(b, type, members ? members : 1, params, mox_weight_bytes(out));
    return MOX_OK;
}

static mox_status name_too_long(mox_err *err) { return mox_fail(err, MOX_E_FORMAT, "a tensor name is over %d bytes", MOX_NAME_BYTES); }

mox_status mox_bind_matrix(mox_binder *b, mox_weight *out, int64_t rows, int64_t cols, mox_err *err, const char *path, ...)
{
    char module[MOX_NAME_BYTES];
    va_list args;
    va_start(args, path);
    const bool fits = full_name(module, b->prefix, path, args);
    va_end(args);
    return fits ? bind_module(b, out, module, 0, rows, cols, err) : name_too_long(err);
}

mox_status mox_bind_stack(mox_binder *b, mox_weight *out, int64_t members, int64_t rows, int64_t cols, mox_err *err,
                          const char *path, ...)
{
    char module[MOX_NAME_BYTES];
    va_list args;
    va_start(args, path);
    const bool fits = full_name(module, b->prefix, path, args);
    va_end(args);
    return fits ? bind_module(b, out, module, members, rows, cols, err) : name_too_long(err);
}

mox_status mox_bind_head(mox_binder *b, mox_weight *out, int64_t rows, int64_t cols, bool *there, mox_err *err)
{
    char module[MOX_NAME_BYTES];
    (void)snprintf(module, sizeof module, "%slm_head", b->head_prefix);
    *there = find(b, module, ".weight") != NULL;
    return *there ? bind_module(b, out, module, 0, rows, cols, err) : MOX_OK;
}

mox_status mox_bind_vector(mox_binder *b, mox_vector *out, int64_t n, bool optional, mox_err *err, const char *path, ...)
{
    *out = (mox_vector){0};
    char name[MOX_NAME_BYTES];
    va_list args;
    va_start(args, path);
    const bool fits = full_name(name, b->prefix, path, args);
    va_end(args);
    if (!fits) return name_too_long(err);
    const mox_tensor_info *t = mox_tensors_find(b->tensors, name);
    if (!t) return optional ? MOX_OK : note_missing(b, name, "", err);
    int64_t elements = 1; /* the reader has checked that this product does not wrap */
    for (int i = 0; i < t->n_dims; i++) elements *= t->shape[i];
    if (elements != n)
        return mox_fail(err, MOX_E_FORMAT, "%s: tensor %s has %lld elements but %s asks for %lld",
                        b->tensors->files[t->extent.file].path, name, (long long)elements, b->config->path, (long long)n);
    MOX_TRY(expect_dtype(b, t, plain_kind(t->dtype) != MOX_MAT_NONE, "BF16, F16 or F32", err));
    mark_used(b, t);
    *out = (mox_vector){.type = t->dtype, .n = n, .data = t->extent};
    count(b, mox_dtype_name(t->dtype), 0, n, t->extent.bytes);
    return MOX_OK;
}

/* ---- what was left over ---- */

/* Names of parts that a text model has no use for. */
static bool is_foreign(const char *name)
{
    return strncmp(name, "vision_tower", 12) == 0 || strncmp(name, "model.visual", 12) == 0 ||
           strncmp(name, "visual.", 7) == 0 || strstr(name, "mtp.") || strstr(name, "rotary_emb.inv_freq");
}

int64_t mox_bind_layer_of(const char *prefix, const char *name)
{
    const size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0 || strncmp(name + n, "layers.", 7) != 0) return -1;
    return strtoll(name + n + 7, NULL, 10);
}

/* Tensors that are rightly left over. */
static bool is_skipped(const mox_binder *b, const char *name, int64_t n_layers)
{
    if (is_foreign(name)) return true;
    const int64_t layer = mox_bind_layer_of(b->prefix, name);
    if (layer >= 0) return layer >= n_layers; /* a prediction head behind the last layer */
    const size_t h = strlen(b->head_prefix);
    return b->config->tied && strncmp(name, b->head_prefix, h) == 0 && strncmp(name + h, "lm_head.", 8) == 0;
}

mox_status mox_binder_finish(mox_binder *b, int64_t n_layers, mox_warn_fn *warn, void *warn_user, mox_err *err)
{
    if (b->n_missing)
        return mox_fail(err, MOX_E_FORMAT, "%s: %lld tensors are missing from the checkpoint: %s", b->config->path,
                        (long long)b->n_missing, b->missing);
    (void)snprintf(b->report->layout, sizeof b->report->layout, "%s", b->mlx ? "MLX" : "Hugging Face");
    const mox_quant_config *q = &b->config->quant;
    for (int64_t i = 0; i < q->n_overrides; i++) {
        const mox_quant_override *o = &q->overrides[i];
        if (o->quantized && !is_there(b, o->module) && !is_foreign(o->module))
            return mox_fail(err, MOX_E_FORMAT, "%s: quantization names %s, which the checkpoint does not have",
                            b->config->path, o->module);
    }
    int64_t n_predicting, n_extra = 0; /* heads behind the last layer that the configuration knows of */
    char names[200] = "";
    MOX_TRY(mox_config_int_or(b->config, "num_nextn_predict_layers", 0, 4096, 0, &n_predicting, err));
    for (int64_t i = 0; i < b->tensors->n_tensors; i++) {
        const char *name = b->tensors->tensors[i].name;
        if (b->used[i] || strncmp(name, MOX_BIND_PADDING, sizeof MOX_BIND_PADDING - 1) == 0) continue;
        /* Leaving a bias out would be another model. */
        if (mox_ends_with(name, ".bias") && !is_skipped(b, name, n_layers))
            return mox_fail(err, MOX_E_UNSUPPORTED, "%s: the checkpoint has a bias that this family does not: %s",
                            b->config->path, name);
        const bool skipped = is_skipped(b, name, n_layers);
        b->report->n_tensors_skipped++;
        if (skipped && mox_bind_layer_of(b->prefix, name) < n_layers + n_predicting) continue;
        if (n_extra++ < 3) {
            const size_t n = strlen(names);
            (void)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", name);
        }
    }
    if (n_extra && warn) {
        char sentence[512];
        (void)snprintf(sentence, sizeof sentence, "%s: %lld tensors of the checkpoint are not used (%s%s)", b->config->path,
                       (long long)n_extra, names, n_extra > 3 ? ", ..." : "");
        warn(warn_user, sentence);
    }
    return MOX_OK;
}
