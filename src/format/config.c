/* format/config.c -- config.json: loading, which object describes the text model,
 * and typed look-ups in it.
 *
 * Hyper-parameters are read from text_config where there is one (multimodal
 * checkpoints), else from the root; nothing falls through from one to the other
 * but tie_word_embeddings and the end-of-sequence ids. */
#include "format/config.h"

#include "base/alloc.h"
#include "base/file.h"
#include "format/internal.h"

#include <stdio.h>
#include <string.h>

mox_json_object mox_config_text_object(const mox_config *c)
{
    return (mox_json_object){
        .label = c->path, .prefix = c->text == c->root ? "" : "text_config.", .object = c->text};
}

/* model_type of the text model; a text-only save has "_text" at its end. */
static mox_status read_family(mox_config *c, mox_err *err)
{
    const mox_json_object root = {.label = c->path, .prefix = "", .object = c->root},
                          text = mox_config_text_object(c);
    const char *name = NULL;
    MOX_TRY(mox_json_string(&text, "model_type", &name, err));
    if (!name) MOX_TRY(mox_json_string(&root, "model_type", &name, err));
    if (!name) return mox_json_require(&root, "model_type", err);
    static const char suffix[] = "_text";
    size_t n = strlen(name);
    const size_t m = sizeof suffix - 1;
    if (n > m && strcmp(name + n - m, suffix) == 0) n -= m;
    if (n == 0 || n >= sizeof c->family) {
        char words[MOX_SHORT_BYTES];
        return mox_fail(err, MOX_E_UNSUPPORTED, "%s: model_type \"%s\" is not a known family", c->path,
                        mox_short(name, words));
    }
    memcpy(c->family, name, n);
    c->family[n] = '\0';
    return MOX_OK;
}

static mox_status read_config(mox_config *c, const char *text, size_t n, mox_err *err)
{
    MOX_TRY(mox_json_load(&c->root, c->path, text, n, err));
    const mox_json_object root = {.label = c->path, .prefix = "", .object = c->root};
    json_t *nested = mox_json_get(&root, "text_config");
    if (nested && !json_is_object(nested)) return mox_json_fail_type(&root, "text_config", "an object", err);
    c->text = nested ? nested : c->root;
    MOX_TRY(read_family(c, err));
    MOX_TRY(mox_config_read_rope(c, err));
    MOX_TRY(mox_config_read_quantization(c, err));
    const mox_json_object inner = mox_config_text_object(c);
    MOX_TRY(mox_json_bool(&root, "tie_word_embeddings", &c->tied, err));
    return mox_json_bool(&inner, "tie_word_embeddings", &c->tied, err);
}

mox_status mox_config_parse(mox_config *out, const char *label, const char *text, size_t n, mox_err *err)
{
    *out = (mox_config){.path = mox_strdup(label)};
    if (!out->path) return mox_fail_memory(err, strlen(label) + 1, "a file name");
    const mox_status status = read_config(out, text, n, err);
    if (status == MOX_OK) return MOX_OK;
    mox_config named = {0};
    memcpy(named.family, out->family, sizeof named.family);
    mox_config_close(out);
    *out = named;
    return status;
}

mox_status mox_config_open(mox_config *out, const char *dir, mox_err *err)
{
    *out = (mox_config){0};
    char *path = mox_path_join(dir, "config.json");
    if (!path) return mox_fail_memory(err, strlen(dir) + sizeof "/config.json", "a file name");
    char *text = NULL;
    size_t n = 0;
    mox_status status = mox_file_slurp(path, MOX_JSON_MAX_BYTES, &text, &n, err);
    if (status == MOX_OK) status = mox_config_parse(out, path, text, n, err);
    mox_free(text);
    mox_free(path);
    return status;
}

void mox_config_close(mox_config *c)
{
    mox_config_free_quantization(&c->quant);
    json_decref(c->root);
    mox_free(c->path);
    *c = (mox_config){0};
}

bool mox_config_has(const mox_config *c, const char *key)
{
    const mox_json_object o = mox_config_text_object(c);
    return mox_json_get(&o, key) != NULL;
}

mox_status mox_config_int(const mox_config *c, const char *key, int64_t min, int64_t max, int64_t *out,
                          mox_err *err)
{
    const mox_json_object o = mox_config_text_object(c);
    MOX_TRY(mox_json_require(&o, key, err));
    return mox_json_int(&o, key, min, max, out, err);
}

mox_status mox_config_int_or(const mox_config *c, const char *key, int64_t min, int64_t max, int64_t fallback,
                             int64_t *out, mox_err *err)
{
    const mox_json_object o = mox_config_text_object(c);
    *out = fallback;
    return mox_json_int(&o, key, min, max, out, err);
}

mox_status mox_config_real_or(const mox_config *c, const char *key, double min, double max, double fallback,
                              double *out, mox_err *err)
{
    const mox_json_object o = mox_config_text_object(c);
    *out = fallback;
    return mox_json_real(&o, key, min, max, out, err);
}

mox_status mox_config_bool_or(const mox_config *c, const char *key, bool fallback, bool *out, mox_err *err)
{
    const mox_json_object o = mox_config_text_object(c);
    *out = fallback;
    return mox_json_bool(&o, key, out, err);
}

/* A value that makes it another model than the ones we run, not a damaged file. */
static mox_status fail_unsupported(const mox_json_object *o, const char *key, const char *expected, mox_err *err)
{
    char words[MOX_SHORT_BYTES];
    return mox_fail(err, MOX_E_UNSUPPORTED, "%s: %s%s is %s, this version supports %s only", o->label, o->prefix,
                    key, mox_json_describe(mox_json_get(o, key), words), expected);
}

mox_status mox_config_expect_string(const mox_config *c, const char *key, const char *value, mox_err *err)
{
    const mox_json_object o = mox_config_text_object(c);
    const char *found = value;
    MOX_TRY(mox_json_string(&o, key, &found, err));
    return strcmp(found, value) == 0 ? MOX_OK : fail_unsupported(&o, key, value, err);
}

mox_status mox_config_expect_bool(const mox_config *c, const char *key, bool value, mox_err *err)
{
    const mox_json_object o = mox_config_text_object(c);
    bool found = value;
    MOX_TRY(mox_json_bool(&o, key, &found, err));
    return found == value ? MOX_OK : fail_unsupported(&o, key, value ? "true" : "false", err);
}

mox_status mox_config_string_at(const mox_config *c, const char *key, int64_t i, int64_t length, const char **out,
                                mox_err *err)
{
    const mox_json_object o = mox_config_text_object(c);
    MOX_TRY(mox_json_require(&o, key, err));
    const json_t *array = mox_json_get(&o, key);
    if (!json_is_array(array)) return mox_json_fail_type(&o, key, "an array of strings", err);
    if ((int64_t)json_array_size(array) != length)
        return mox_fail(err, MOX_E_FORMAT, "%s: %s%s has %zu entries, expected %lld", o.label, o.prefix, key,
                        json_array_size(array), (long long)length);
    const json_t *value = json_array_get(array, (size_t)i);
    char words[MOX_SHORT_BYTES];
    if (!json_is_string(value))
        return mox_fail(err, MOX_E_FORMAT, "%s: %s%s[%lld] is %s, expected a string", o.label, o.prefix, key,
                        (long long)i, mox_json_describe(value, words));
    *out = json_string_value(value);
    return MOX_OK;
}

mox_status mox_config_int_array_has(const mox_config *c, const char *key, int64_t v, bool *out, mox_err *err)
{
    const mox_json_object o = mox_config_text_object(c);
    const json_t *array = mox_json_get(&o, key);
    *out = false;
    if (!array) return MOX_OK;
    if (!json_is_array(array)) return mox_json_fail_type(&o, key, "an array of integers", err);
    size_t i;
    json_t *value;
    json_array_foreach((json_t *)array, i, value) {
        char words[MOX_SHORT_BYTES];
        if (!json_is_integer(value))
            return mox_fail(err, MOX_E_FORMAT, "%s: %s%s[%zu] is %s, expected an integer", o.label, o.prefix, key,
                            i, mox_json_describe(value, words));
        if (json_integer_value(value) == v) *out = true;
    }
    return MOX_OK;
}
