/* base/alloc.c -- heap memory with a hook for fault injection. */
#include "base/alloc.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

static mox_alloc_hook *alloc_hook;
static void *alloc_hook_user;

void mox_alloc_set_hook(mox_alloc_hook *hook, void *user)
{
    alloc_hook = hook;
    alloc_hook_user = user;
}

static int allowed(size_t bytes) { return !alloc_hook || alloc_hook(alloc_hook_user, bytes); }

void *mox_alloc(size_t bytes)
{
    if (bytes == 0) bytes = 1;
    return allowed(bytes) ? malloc(bytes) : NULL;
}

void *mox_alloc_array(size_t n, size_t size)
{
    size_t bytes;
    if (!mox_mul_size(n, size, &bytes)) return NULL;
    if (bytes == 0) bytes = 1;
    return allowed(bytes) ? calloc(1, bytes) : NULL;
}

void *mox_realloc_array(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (!mox_mul_size(n, size, &bytes)) return NULL;
    if (bytes == 0) bytes = 1;
    return allowed(bytes) ? realloc(p, bytes) : NULL;
}

void mox_free(void *p) { free(p); }

char *mox_strndup(const char *s, size_t n)
{
    char *copy = mox_alloc(n + 1);
    if (copy) {
        memcpy(copy, s, n);
        copy[n] = '\0';
    }
    return copy;
}

char *mox_strdup(const char *s) { return mox_strndup(s, strlen(s)); }
