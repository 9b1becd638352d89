/* base/buffer.h -- arrays that grow.  A zeroed mox_buffer is empty; contents are
 * whatever the owner says, always of one element size. */
#ifndef MOX_BASE_BUFFER_H
#define MOX_BASE_BUFFER_H

#include "base/alloc.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct mox_buffer {
    void *data;
    size_t capacity; /* elements */
} mox_buffer;

/* Makes room for `need` elements of `size` bytes, at least doubling so that a
 * long series of small requests stays linear. */
static inline mox_status mox_buffer_reserve(mox_buffer *b, size_t need, size_t size, const char *what, mox_err *err)
{
    if (need <= b->capacity) return MOX_OK;
    size_t capacity = b->capacity < 16 ? 16 : b->capacity;
    while (capacity < need) capacity = capacity > SIZE_MAX / 2 ? need : capacity * 2;
    void *data = mox_realloc_array(b->data, capacity, size);
    if (!data) return mox_fail_memory(err, capacity > SIZE_MAX / size ? SIZE_MAX : capacity * size, what);
    b->data = data;
    b->capacity = capacity;
    return MOX_OK;
}

static inline void mox_buffer_deinit(mox_buffer *b)
{
    mox_free(b->data);
    b->data = NULL;
    b->capacity = 0;
}

#endif
