/* format/json.c -- loading JSON within limits and reading typed values.
 *
 * The depth of the text is measured before the parser sees it, so neither the
 * parser nor the walk over its result can recurse further than that. */
#include "format/json.h"

#include <stdio.h>
#include <string.h>

bool mox_is_lfs_pointer(const void *bytes, size_t n)
{
    static const char begin[] = "version https://git-lfs.github.com/spec";
    return n >= sizeof begin - 1 && memcmp(bytes, begin, sizeof begin - 1) == 0;
}

mox_status mox_fail_lfs_pointer(mox_err *err, const char *label)
{
    return mox_fail(err, MOX_E_FORMAT,
                    "%s: this is a Git LFS pointer, not the file itself; run `git lfs pull` in the model folder",
                    label);
}

const char *mox_short(const char *s, char out[MOX_SHORT_BYTES])
{
    static const char dots[] = "...";
    size_t n = strlen(s);
    const bool cut = n >= MOX_SHORT_BYTES;
    if (cut) {
        n = MOX_SHORT_BYTES - sizeof dots;
        while (n > 0 && ((unsigned char)s[n] & 0xC0) == 0x80) n--;
    }
    for (size_t i = 0; i < n; i++) out[i] = (unsigned char)s[i] < 0x20 || s[i] == 0x7F ? '?' : s[i];
    memcpy(out + n, dots, cut ? sizeof dots : 0);
    if (!cut) out[n] = '\0';
    return out;
}

const char *mox_json_describe(const json_t *value, char out[MOX_SHORT_BYTES])
{
    if (!value) return strcpy(out, "missing");
    switch (json_typeof(value)) {
    case JSON_OBJECT: return strcpy(out, "an object");
    case JSON_ARRAY: return strcpy(out, "an array");
    case JSON_INTEGER: snprintf(out, MOX_SHORT_BYTES, "%lld", (long long)json_integer_value(value)); break;
    case JSON_REAL: snprintf(out, MOX_SHORT_BYTES, "the real number %g", json_real_value(value)); break;
    case JSON_TRUE: return strcpy(out, "true");
    case JSON_FALSE: return strcpy(out, "false");
    case JSON_NULL: return strcpy(out, "null");
    case JSON_STRING: {
        char words[MOX_SHORT_BYTES];
        snprintf(out, MOX_SHORT_BYTES, "\"%.98s\"", mox_short(json_string_value(value), words));
        break;
    }
    }
    return out;
}

/* The deepest nesting of brackets outside strings. */
static size_t nesting(const char *text, size_t n)
{
    size_t depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > deepest) deepest = depth;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        }
    }
    return deepest;
}

mox_status mox_json_load(json_t **out, const char *label, const char *text, size_t n, mox_err *err)
{
    *out = NULL;
    if (mox_is_lfs_pointer(text, n)) return mox_fail_lfs_pointer(err, label);
    if (nesting(text, n) > MOX_JSON_MAX_DEPTH)
        return mox_fail(err, MOX_E_FORMAT, "%s: JSON nested more than %d deep", label, MOX_JSON_MAX_DEPTH);
    json_error_t why;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!root) {
        /* Only an allocation can fail without a word. */
        if (why.text[0] == '\0') return mox_fail_memory(err, n, label);
        char words[MOX_SHORT_BYTES];
        return mox_fail(err, MOX_E_FORMAT, "%s: not valid JSON: line %d, column %d: %s", label, why.line,
                        why.column, mox_short(why.text, words));
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return mox_fail(err, MOX_E_FORMAT, "%s: expected a JSON object", label);
    }
    *out = root;
    return MOX_OK;
}

json_t *mox_json_get(const mox_json_object *o, const char *key)
{
    json_t *value = json_object_get(o->object, key);
    return json_is_null(value) ? NULL : value;
}

mox_status mox_json_require(const mox_json_object *o, const char *key, mox_err *err)
{
    if (mox_json_get(o, key)) return MOX_OK;
    return mox_fail(err, MOX_E_FORMAT, "%s: %s%s is missing", o->label, o->prefix, key);
}

mox_status mox_json_fail_type(const mox_json_object *o, const char *key, const char *expected, mox_err *err)
{
    char words[MOX_SHORT_BYTES];
    return mox_fail(err, MOX_E_FORMAT, "%s: %s%s is %s, expected %s", o->label, o->prefix, key,
                    mox_json_describe(json_object_get(o->object, key), words), expected);
}

mox_status mox_json_int(const mox_json_object *o, const char *key, int64_t min, int64_t max, int64_t *out,
                        mox_err *err)
{
    const json_t *value = mox_json_get(o, key);
    if (!value) return MOX_OK;
    const int64_t v = json_integer_value(value);
    if (!json_is_integer(value) || v < min || v > max) {
        char range[MOX_SHORT_BYTES];
        snprintf(range, sizeof range, "an integer from %lld to %lld", (long long)min, (long long)max);
        return mox_json_fail_type(o, key, range, err);
    }
    *out = v;
    return MOX_OK;
}

mox_status mox_json_real(const mox_json_object *o, const char *key, double min, double max, double *out,
                         mox_err *err)
{
    const json_t *value = mox_json_get(o, key);
    if (!value) return MOX_OK;
    const double v = json_number_value(value);
    if (!json_is_number(value) || !(v >= min && v <= max)) {
        char range[MOX_SHORT_BYTES];
        snprintf(range, sizeof range, "a number from %g to %g", min, max);
        return mox_json_fail_type(o, key, range, err);
    }
    *out = v;
    return MOX_OK;
}

mox_status mox_json_bool(const mox_json_object *o, const char *key, bool *out, mox_err *err)
{
    const json_t *value = mox_json_get(o, key);
    if (!value) return MOX_OK;
    if (!json_is_boolean(value)) return mox_json_fail_type(o, key, "true or false", err);
    *out = json_is_true(value);
    return MOX_OK;
}

mox_status mox_json_string(const mox_json_object *o, const char *key, const char **out, mox_err *err)
{
    const json_t *value = mox_json_get(o, key);
    if (!value) return MOX_OK;
    if (!json_is_string(value)) return mox_json_fail_type(o, key, "a string", err);
    *out = json_string_value(value);
    return MOX_OK;
}
