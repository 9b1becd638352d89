/* tools/text.h -- a text that grows by printf.  Running out of memory is remembered
 * and told at the end, so that building one needs no checks in between. */
#ifndef MOX_TOOLS_TEXT_H
#define MOX_TOOLS_TEXT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct mox_text { /* zero-initialise */
    char *bytes;
    size_t n, capacity;
    bool failed;
} mox_text;

void mox_text_add(mox_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The text, which the caller frees with mox_free, or NULL when memory ran out. */
char *mox_text_end(mox_text *t);

#endif
