/* base/json_fields.c -- settings out of JSON. */
#include "base/json_fields.h"

#include <string.h>

static mox_status wrong_type(mox_json_span value, const char *what, const char *wanted, mox_err *err)
{
    return mox_fail(err, MOX_E_FORMAT, "%s: byte %zu: %s must be %s", value.name, value.at, what, wanted);
}

bool mox_json_is_null(mox_json_span value)
{
    return !value.text || (value.n == 4 && memcmp(value.text, "null", 4) == 0);
}

mox_status mox_json_read_fields(mox_json_reader *r, const char *what, const char *const *names, int n_names,
                                mox_json_span *spans, mox_err *err)
{
    const mox_json_span here = {.name = r->in.name, .at = r->in.at + r->pos};
    mox_json_token token;
    uint32_t seen = 0;
    int i = 0;
    for (int k = 0; k < n_names; k++) spans[k] = here;
    MOX_TRY(mox_json_next(r, &token, err));
    if (token.type != MOX_JSON_OBJECT) return wrong_type(here, what, "an object", err);
    for (;;) {
        MOX_TRY(mox_json_field(r, names, n_names, &seen, &i, err));
        if (i < 0) return MOX_OK;
        MOX_TRY(mox_json_skip(r, &spans[i], err));
    }
}

mox_status mox_json_fields(mox_json_span object, const char *what, const char *const *names, int n_names,
                           mox_json_span *spans, mox_err *err)
{
    if (!object.text) return wrong_type(object, what, "an object", err);
    mox_json_reader r;
    mox_json_token end;
    mox_json_reader_init(&r, object);
    mox_status status = mox_json_read_fields(&r, what, names, n_names, spans, err);
    if (status == MOX_OK) status = mox_json_next(&r, &end, err); /* nothing may follow */
    mox_json_reader_deinit(&r);
    return status;
}

mox_status mox_json_get_bool(mox_json_span value, const char *what, bool *out, mox_err *err)
{
    if (mox_json_is_null(value)) return MOX_OK;
    if (value.text[0] != 't' && value.text[0] != 'f') return wrong_type(value, what, "true or false", err);
    *out = value.text[0] == 't';
    return MOX_OK;
}

mox_status mox_json_get_string(mox_json_span value, const char *what, char **out, size_t *n, mox_err *err)
{
    *out = NULL;
    if (n) *n = 0;
    if (mox_json_is_null(value)) return MOX_OK;
    mox_json_reader r;
    mox_json_token token;
    mox_json_reader_init(&r, value);
    mox_status status = mox_json_next(&r, &token, err);
    if (status == MOX_OK && token.type != MOX_JSON_STRING) status = wrong_type(value, what, "a string", err);
    if (status == MOX_OK && !n && memchr(token.text, '\0', token.n)) {
        status = wrong_type(value, what, "a string without NUL", err);
    }
    if (status == MOX_OK) {
        *out = mox_strndup(token.text, token.n);
        if (n) *n = token.n;
        if (!*out) status = mox_fail_memory(err, token.n, what);
    }
    mox_json_reader_deinit(&r);
    return status;
}

mox_status mox_json_each(mox_json_span array, const char *what, mox_json_each_fn *each, void *user, mox_err *err)
{
    if (!array.text) return wrong_type(array, what, "an array", err);
    mox_json_reader r;
    mox_json_token token;
    mox_json_reader_init(&r, array);
    mox_status status = mox_json_next(&r, &token, err);
    if (status == MOX_OK && token.type != MOX_JSON_ARRAY) status = wrong_type(array, what, "an array", err);
    while (status == MOX_OK) {
        mox_json_span element;
        status = mox_json_element(&r, &element, err);
        if (status != MOX_OK || !element.text) break;
        status = each(user, element, err);
    }
    mox_json_reader_deinit(&r);
    return status;
}
