/* base/writer.h -- a text that grows, plain or as JSON.  A zeroed mox_writer is empty; the
 * bytes are always followed by a NUL that does not count, once there are any. */
#ifndef MOX_BASE_WRITER_H
#define MOX_BASE_WRITER_H

#include "base/err.h"
#include "base/buffer.h"

typedef struct mox_writer {
    mox_buffer bytes;
    size_t n;
} mox_writer;

static inline const char *mox_writer_text(const mox_writer *w) { return w->bytes.data ? w->bytes.data : ""; }
static inline void mox_writer_deinit(mox_writer *w)
{
    mox_buffer_deinit(&w->bytes);
    w->n = 0;
}
/* The text, which the caller frees with mox_free; the writer is empty again. */
char *mox_writer_take(mox_writer *w);

mox_status mox_write(mox_writer *w, const char *text, size_t n, mox_err *err);
mox_status mox_write_text(mox_writer *w, const char *text, mox_err *err);
/* text[0, n), which is UTF-8, as a JSON string with its quotes. */
mox_status mox_write_json(mox_writer *w, const char *text, size_t n, mox_err *err);

#endif
