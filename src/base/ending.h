/* base/ending.h -- how names end: files by their kind, tensors by their part of a module. */
#ifndef MOX_BASE_ENDING_H
#define MOX_BASE_ENDING_H

#include <stdbool.h>
#include <string.h>

static inline bool mox_ends_with(const char *name, const char *ending)
{
    const size_t n = strlen(name), m = strlen(ending);
    return n >= m && strcmp(name + n - m, ending) == 0;
}

#endif
