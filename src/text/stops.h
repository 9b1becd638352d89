/* text/stops.h -- stop strings in a stream: what may be the beginning of one is held back.
 *
 * Borrows: nothing; the strings are copied.   A zeroed mox_stops has no strings. */
#ifndef MOX_TEXT_STOPS_H
#define MOX_TEXT_STOPS_H

#include "base/err.h"
#include "moxie/text.h"
#include "base/writer.h"

#include <stdbool.h>

typedef struct mox_stops {
    char **strings;
    int32_t n;
    mox_writer held;
    bool found;
    int32_t which; /* of the strings, when found */
} mox_stops;

/* Empty strings are refused, and those that are no UTF-8: they would cut characters. */
mox_status mox_stops_init(mox_stops *s, const char *const *strings, int32_t n, mox_err *err);
void mox_stops_deinit(mox_stops *s);

/* Calls emit with what can no longer be part of a stop string; nothing comes from the first
 * stop string on.  Whole characters in, whole characters out. */
mox_status mox_stops_push(mox_stops *s, const char *text, size_t n, mox_text_fn *emit, void *user, mox_err *err);
/* No more text comes: what was held back is text, but for a stop string inside of it. */
void mox_stops_end(mox_stops *s, mox_text_fn *emit, void *user);

#endif
