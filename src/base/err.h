/* base/err.h -- how functions say what went wrong.
 *
 * One convention in every layer: return a mox_status, and put one sentence for
 * the user into the caller's mox_err when there is one. */
#ifndef MOX_BASE_ERR_H
#define MOX_BASE_ERR_H

#include "moxie.h"

#include <stdarg.h>

/* Fills err (may be NULL) and returns status, so that failing is one line:
 *     return mox_fail(err, MOX_E_FORMAT, "%s: header is cut short", path); */
mox_status mox_fail(mox_err *err, mox_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The sentence for an allocation that failed. */
mox_status mox_fail_memory(mox_err *err, size_t bytes, const char *what);

#define MOX_TRY(expression)                        \
    do {                                           \
        mox_status mox_try_status_ = (expression); \
        if (mox_try_status_ != MOX_OK) return mox_try_status_; \
    } while (0)

#endif
