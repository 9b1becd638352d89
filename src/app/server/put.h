/* app/server/put.h -- a text that is put together piece by piece, most of it JSON.
 *
 * A failure sticks: later pieces are dropped, and who asks at the end (mox_put_ok) is told
 * once that memory ran out.  Zero-initialise. */
#ifndef MOX_APP_SERVER_PUT_H
#define MOX_APP_SERVER_PUT_H

#include "base/writer.h"

#include <stdbool.h>

typedef struct mox_put {
    mox_writer w;
    bool failed;
} mox_put;

static inline bool mox_put_ok(const mox_put *p) { return !p->failed; }
static inline void mox_put_clear(mox_put *p)
{
    p->w.n = 0;
    p->failed = false;
}
static inline void mox_put_deinit(mox_put *p) { mox_writer_deinit(&p->w); }

void mox_putf(mox_put *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void mox_put_raw(mox_put *p, const char *text, size_t n);
/* As a JSON string, with its quotes.  What is no UTF-8 in it becomes U+FFFD. */
void mox_put_json(mox_put *p, const char *text, size_t n);
void mox_put_string(mox_put *p, const char *text); /* the same of a terminated text; NULL is null */
/* A JSON number with the digits of a float, or null when it is not finite. */
void mox_put_real(mox_put *p, double x);

#endif
