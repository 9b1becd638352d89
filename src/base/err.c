/* base/err.c -- status names, error sentences and the cancel flag. */
#include "base/err.h"

#include <stdio.h>

const char *mox_status_text(mox_status status)
{
    switch (status) {
#define MOX_STATUS_CASE(name, value, text) \
    case name: return text;
        MOX_STATUS_LIST(MOX_STATUS_CASE)
#undef MOX_STATUS_CASE
    }
    return "unknown status";
}

void mox_cancel_raise(mox_cancel *c) { __atomic_store_n(&c->raised, 1, __ATOMIC_RELAXED); }

const char *mox_version(void) { return MOX_VERSION; }

mox_status mox_fail(mox_err *err, mox_status status, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        err->status = status;
        (void)vsnprintf(err->msg, sizeof err->msg, format, args);
        va_end(args);
    }
    return status;
}

mox_status mox_fail_memory(mox_err *err, size_t bytes, const char *what)
{
    return mox_fail(err, MOX_E_MEMORY, "out of memory: %zu bytes for %s", bytes, what);
}
