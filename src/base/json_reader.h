/* base/json_reader.h -- reads JSON piece by piece, in the order of the file.
 *
 * For texts that are large (vocabularies) or where key order and the spelling of
 * numbers must survive (tool arguments).  Strict: RFC 8259, well-formed UTF-8,
 * surrogate escapes in pairs only, no byte order mark, at most
 * MOX_JSON_DEPTH_MAX containers inside each other.  Nothing is built: what a
 * token means, and whether a key may come twice, is the caller's business
 * (mox_json_field refuses doubles of the keys it looks for).
 *
 * Borrows: the text.   Owns: a buffer for strings with escapes.
 * Errors:  MOX_E_FORMAT with the reader's name and the byte. */
#ifndef MOX_BASE_JSON_READER_H
#define MOX_BASE_JSON_READER_H

#include "base/err.h"
#include "base/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOX_JSON_DEPTH_MAX = 64 };

typedef enum mox_json_type {
    MOX_JSON_NULL,
    MOX_JSON_FALSE,
    MOX_JSON_TRUE,
    MOX_JSON_NUMBER,
    MOX_JSON_STRING,
    MOX_JSON_KEY,
    MOX_JSON_OBJECT, /* its beginning */
    MOX_JSON_ARRAY,  /* its beginning */
    MOX_JSON_OBJECT_END,
    MOX_JSON_ARRAY_END,
    MOX_JSON_END /* of the text */
} mox_json_type;

typedef struct mox_json_token {
    mox_json_type type;
    const char *text; /* strings and keys without escapes, numbers as spelled; valid until the next token */
    size_t n;         /* strings may hold NUL bytes, so this is their length */
} mox_json_token;

/* A JSON text, or a value's own text inside one. */
typedef struct mox_json_span {
    const char *name; /* where it is from, for errors; borrowed */
    const char *text;
    size_t n;
    size_t at; /* bytes before it in the file */
} mox_json_span;

typedef struct mox_json_reader {
    mox_json_span in;
    size_t pos;
    mox_buffer unescaped;
    int depth, expect;
    bool in_object[MOX_JSON_DEPTH_MAX];
} mox_json_reader;

void mox_json_reader_init(mox_json_reader *r, mox_json_span text);
void mox_json_reader_deinit(mox_json_reader *r);

/* The next token.  After MOX_JSON_END it stays there. */
mox_status mox_json_next(mox_json_reader *r, mox_json_token *out, mox_err *err);
/* Where a value must come (at the start, or behind a key): reads over all of it
 * and says where it is.  out may be NULL. */
mox_status mox_json_skip(mox_json_reader *r, mox_json_span *out, mox_err *err);
/* Inside an array: the next element, or one without text at the array's end. */
mox_status mox_json_element(mox_json_reader *r, mox_json_span *out, mox_err *err);
/* Inside an object: the next key that is in names[0, n_names), n_names <= 32, as
 * its index, or -1 at the end of the object.  Other keys are skipped with their
 * values; a key of the list that comes twice is refused.  Start with *seen = 0. */
mox_status mox_json_field(mox_json_reader *r, const char *const *names, int n_names, uint32_t *seen, int *index,
                          mox_err *err);

bool mox_json_token_is(const mox_json_token *t, const char *text);
/* A number spelled as an integer that fits; false otherwise. */
bool mox_json_token_int(const mox_json_token *t, int64_t *out);

#endif
