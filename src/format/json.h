/* format/json.h -- JSON files as checked values.
 *
 * Owns:    how a JSON file is read (limits, duplicate keys, depth) and how its
 *          values are named in error sentences: file, key path, what was found,
 *          what was expected.
 * Refuses: a root that is no object, nesting over 64, duplicate keys, text that
 *          is not UTF-8, anything after the closing brace but white space. */
#ifndef MOX_FORMAT_JSON_H
#define MOX_FORMAT_JSON_H

#include "base/err.h"

#include <jansson.h>

enum {
    MOX_JSON_MAX_DEPTH = 64,
    MOX_JSON_MAX_BYTES = 64 << 20, /* of a file read whole */
    MOX_SHORT_BYTES = 104
};

/* label names the file in errors.  The caller gives *out to json_decref. */
mox_status mox_json_load(json_t **out, const char *label, const char *text, size_t n, mox_err *err);

/* A repository cloned without Git LFS has small text files in place of the big ones. */
bool mox_is_lfs_pointer(const void *bytes, size_t n);
mox_status mox_fail_lfs_pointer(mox_err *err, const char *label);

/* A string of a file made fit for an error sentence: at most 103 bytes, cut
 * between characters, control characters replaced.  Returns out. */
const char *mox_short(const char *s, char out[MOX_SHORT_BYTES]);

/* The value in words, for "K is ..., expected ...".  Returns out. */
const char *mox_json_describe(const json_t *value, char out[MOX_SHORT_BYTES]);

/* An object and how to name it: keys are reported as prefix + key. */
typedef struct mox_json_object {
    const char *label, *prefix;
    const json_t *object;
} mox_json_object;

json_t *mox_json_get(const mox_json_object *o, const char *key); /* borrowed; NULL when missing or null */
mox_status mox_json_require(const mox_json_object *o, const char *key, mox_err *err);
mox_status mox_json_fail_type(const mox_json_object *o, const char *key, const char *expected, mox_err *err);

/* Each leaves *out alone when the key is missing or null. */
mox_status mox_json_int(const mox_json_object *o, const char *key, int64_t min, int64_t max, int64_t *out,
                        mox_err *err);
mox_status mox_json_real(const mox_json_object *o, const char *key, double min, double max, double *out,
                         mox_err *err);
mox_status mox_json_bool(const mox_json_object *o, const char *key, bool *out, mox_err *err);
mox_status mox_json_string(const mox_json_object *o, const char *key, const char **out, mox_err *err);

#endif
