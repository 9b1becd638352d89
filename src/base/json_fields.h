/* base/json_fields.h -- settings out of JSON, field by field.
 *
 * For small objects whose layout is known: an object is taken apart into the
 * spans of its fields, and each is then read as what it should be.  A field that
 * is absent (a span without text) reads like null.  `what` names the field in
 * errors, which are MOX_E_FORMAT. */
#ifndef MOX_BASE_JSON_FIELDS_H
#define MOX_BASE_JSON_FIELDS_H

#include "base/json_reader.h"

/* The fields of an object, which may be a whole file: spans[i] for names[i],
 * n_names <= 32.  The other functions take values found this way. */
mox_status mox_json_fields(mox_json_span object, const char *what, const char *const *names, int n_names,
                           mox_json_span *spans, mox_err *err);

/* The same where r must have an object next, so that it is read only once. */
mox_status mox_json_read_fields(mox_json_reader *r, const char *what, const char *const *names, int n_names,
                                mox_json_span *spans, mox_err *err);

bool mox_json_is_null(mox_json_span value);

/* null leaves *out as it is. */
mox_status mox_json_get_bool(mox_json_span value, const char *what, bool *out, mox_err *err);
/* null gives NULL; otherwise a terminated copy that the caller frees with
 * mox_free.  n may be NULL, and then a string with a NUL byte is refused. */
mox_status mox_json_get_string(mox_json_span value, const char *what, char **out, size_t *n, mox_err *err);

/* Calls each with every element of an array. */
typedef mox_status mox_json_each_fn(void *user, mox_json_span element, mox_err *err);
mox_status mox_json_each(mox_json_span array, const char *what, mox_json_each_fn *each, void *user, mox_err *err);

#endif
