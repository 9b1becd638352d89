/* format/config_quant.c -- how config.json says the weights are stored.
 *
 *   "quantization"         MLX: global bits and group_size, and per module path an
 *                          object (its own values) or false (left as it was)
 *   "quantization_config"  Hugging Face: read for quant_method "fp8" only, and only
 *                          without the MLX object (converters write a copy of it there)
 *
 * The overrides are sorted by module path: a mixed recipe has thousands. */
#include "format/internal.h"

#include "base/alloc.h"
#include "base/plant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mox_status read_choice(const mox_json_object *o, const char *key, const int32_t *choices, size_t n,
                              const char *expected, int32_t *out, mox_err *err)
{
    int64_t v = *out;
    const json_t *value = mox_json_get(o, key);
    if (value) v = json_integer_value(value); /* 0 for anything but an integer */
    for (size_t i = 0; i < n; i++)
        if (v == choices[i]) {
            *out = choices[i];
            return MOX_OK;
        }
    return mox_json_fail_type(o, key, expected, err);
}

/* bits, group_size and mode of the global object or of an override. */
static mox_status read_affine(const mox_json_object *o, int32_t *bits, int32_t *group, mox_err *err)
{
    static const int32_t all_bits[] = {2, 3, 4, 5, 6, 8}, all_groups[] = {32, 64, 128};
    const char *mode = "affine";
    MOX_TRY(mox_json_string(o, "mode", &mode, err));
    if (strcmp(mode, "affine") != 0) {
        char words[MOX_SHORT_BYTES];
        return mox_fail(err, MOX_E_UNSUPPORTED, "%s: %smode is \"%s\", this version supports affine only",
                        o->label, o->prefix, mox_short(mode, words));
    }
    *bits = 4;
    *group = 64;
    MOX_TRY(read_choice(o, "bits", all_bits, 6, "2, 3, 4, 5, 6 or 8", bits, err));
    MOX_TRY(read_choice(o, "group_size", all_groups, 3, "32, 64 or 128", group, err));
    MOX_PLANT(*bits == 5);
    return MOX_OK;
}

static mox_status read_override(const mox_json_object *all, const char *module, const json_t *value,
                                mox_quant_override *out, mox_err *err)
{
    *out = (mox_quant_override){0};
    if (json_is_object(value)) {
        char words[MOX_SHORT_BYTES], prefix[MOX_SHORT_BYTES + 32];
        snprintf(prefix, sizeof prefix, "%s%s.", all->prefix, mox_short(module, words));
        const mox_json_object o = {.label = all->label, .prefix = prefix, .object = value};
        out->quantized = true;
        MOX_TRY(read_affine(&o, &out->bits, &out->group, err));
    } else if (!json_is_false(value)) {
        char words[MOX_SHORT_BYTES];
        return mox_json_fail_type(all, mox_short(module, words), "an object or false", err);
    }
    out->module = mox_strdup(module);
    return out->module ? MOX_OK : mox_fail_memory(err, strlen(module) + 1, "a module name");
}

static int by_module(const void *a, const void *b)
{
    return strcmp(((const mox_quant_override *)a)->module, ((const mox_quant_override *)b)->module);
}

static mox_status read_mlx(mox_quant_config *q, const char *label, json_t *object, mox_err *err)
{
    const mox_json_object o = {.label = label, .prefix = "quantization.", .object = object};
    q->mlx = true;
    MOX_TRY(read_affine(&o, &q->bits, &q->group, err));
    const size_t n_max = json_object_size(object);
    q->overrides = mox_alloc_array(n_max, sizeof *q->overrides);
    if (!q->overrides) return mox_fail_memory(err, n_max * sizeof *q->overrides, "the quantization overrides");
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        if (strcmp(key, "bits") == 0 || strcmp(key, "group_size") == 0 || strcmp(key, "mode") == 0) continue;
        MOX_TRY(read_override(&o, key, value, &q->overrides[q->n_overrides], err));
        q->n_overrides++;
    }
    if (q->n_overrides > 1) qsort(q->overrides, (size_t)q->n_overrides, sizeof *q->overrides, by_module);
    return MOX_OK;
}

static mox_status read_fp8(mox_quant_config *q, const mox_json_object *o, mox_err *err)
{
    static const char expected[] = "an array of two integers from 1 to 65536";
    const char *fmt = "e4m3";
    MOX_TRY(mox_json_string(o, "fmt", &fmt, err));
    if (strcmp(fmt, "e4m3") != 0) {
        char words[MOX_SHORT_BYTES];
        return mox_fail(err, MOX_E_UNSUPPORTED, "%s: %sfmt is \"%s\", this version supports e4m3 only", o->label,
                        o->prefix, mox_short(fmt, words));
    }
    q->fp8 = true;
    q->block_rows = q->block_cols = 128;
    const json_t *block = mox_json_get(o, "weight_block_size");
    if (!block) return MOX_OK;
    const json_t *rows = json_array_get(block, 0), *cols = json_array_get(block, 1);
    const int64_t r = json_integer_value(rows), c = json_integer_value(cols); /* 0 for anything but an integer */
    if (!json_is_array(block) || json_array_size(block) != 2 || r < 1 || r > 65536 || c < 1 || c > 65536)
        return mox_json_fail_type(o, "weight_block_size", expected, err);
    q->block_rows = (int32_t)r;
    q->block_cols = (int32_t)c;
    return MOX_OK;
}

static mox_status read_hugging_face(mox_quant_config *q, const mox_json_object *outer, mox_err *err)
{
    const json_t *object = mox_json_get(outer, "quantization_config");
    if (!object) return MOX_OK;
    if (!json_is_object(object)) return mox_json_fail_type(outer, "quantization_config", "an object", err);
    const mox_json_object o = {.label = outer->label,
                               .prefix =
                                   outer->prefix[0] ? "text_config.quantization_config." : "quantization_config.",
                               .object = object};
    MOX_TRY(mox_json_require(&o, "quant_method", err));
    const char *method = NULL;
    MOX_TRY(mox_json_string(&o, "quant_method", &method, err));
    if (strcmp(method, "fp8") == 0) return read_fp8(q, &o, err);
    char words[MOX_SHORT_BYTES];
    return mox_fail(err, MOX_E_UNSUPPORTED, "%s: %squant_method is \"%s\", this version supports fp8 only",
                    o.label, o.prefix, mox_short(method, words));
}

mox_status mox_config_read_quantization(mox_config *c, mox_err *err)
{
    const mox_json_object root = {.label = c->path, .prefix = "", .object = c->root},
                          text = mox_config_text_object(c);
    json_t *mlx = mox_json_get(&root, "quantization");
    if (mlx && !json_is_object(mlx)) return mox_json_fail_type(&root, "quantization", "an object", err);
    if (mlx) return read_mlx(&c->quant, c->path, mlx, err);
    return read_hugging_face(&c->quant, mox_json_get(&root, "quantization_config") ? &root : &text, err);
}

void mox_config_free_quantization(mox_quant_config *q)
{
    for (int64_t i = 0; i < q->n_overrides; i++) mox_free(q->overrides[i].module);
    mox_free(q->overrides);
    *q = (mox_quant_config){0};
}

static const mox_quant_override *find_override(const mox_quant_config *q, const char *module)
{
    if (q->n_overrides == 0) return NULL;
    const mox_quant_override key = {.module = (char *)module};
    return bsearch(&key, q->overrides, (size_t)q->n_overrides, sizeof *q->overrides, by_module);
}

bool mox_config_overrides(const mox_config *c, const char *module) { return find_override(&c->quant, module) != NULL; }

mox_status mox_config_quantization_of(const mox_config *c, const char *module, bool has_scales, bool *quantized,
                                      int32_t *bits, int32_t *group, mox_err *err)
{
    const mox_quant_config *q = &c->quant;
    mox_quant_override global = {.quantized = has_scales, .bits = q->bits, .group = q->group};
    const mox_quant_override *own = find_override(q, module), *use = own ? own : &global;
    char words[MOX_SHORT_BYTES];
    if (use->quantized && !has_scales)
        return mox_fail(err, MOX_E_FORMAT,
                        "%s: quantization says that %s is quantized, but there is no tensor %s.scales", c->path,
                        mox_short(module, words), words);
    if (use->quantized && !q->mlx)
        return mox_fail(err, MOX_E_FORMAT,
                        "%s: there is a tensor %s.scales, but no \"quantization\" to say how to read it", c->path,
                        mox_short(module, words));
    *quantized = use->quantized;
    if (use->quantized) {
        *bits = use->bits;
        *group = use->group;
    }
    return MOX_OK;
}
