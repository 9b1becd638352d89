/* text/json_follow.h -- finds the end of a JSON value in text that is still coming.
 *
 * Follows strings, nesting and the grammar byte by byte, so that it knows at the first
 * wrong byte that this is no JSON, and at the last byte that the value is whole.  Only
 * values that show their own end: objects, arrays and strings.  What it does not look
 * at (well-formed UTF-8, surrogate pairs) is for mox_json_reader, which has the last
 * word on the whole text.
 *
 * Never holds more than its own struct; at most MOX_JSON_DEPTH_MAX containers inside
 * each other. */
#ifndef MOX_TEXT_JSON_FOLLOW_H
#define MOX_TEXT_JSON_FOLLOW_H

#include "base/json_reader.h"

typedef enum mox_follow { MOX_FOLLOW_MORE, MOX_FOLLOW_END, MOX_FOLLOW_BAD } mox_follow;

typedef struct mox_json_follow { /* zeroed: at the first byte */
    int state, depth, count;
    const char *word;
    bool key; /* the string is a key */
    bool in_object[MOX_JSON_DEPTH_MAX];
} mox_json_follow;

/* The next byte.  After another answer than MOX_FOLLOW_MORE, zero it to begin anew. */
mox_follow mox_json_follow_byte(mox_json_follow *f, char c);

#endif
