/* text/stops.c -- stop strings in a stream. */
#include "text/stops.h"

#include "base/alloc.h"

#include <string.h>

mox_status mox_stops_init(mox_stops *s, const char *const *strings, int32_t n, mox_err *err)
{
    *s = (mox_stops){0};
    if (n <= 0) return MOX_OK;
    s->strings = mox_alloc_array((size_t)n, sizeof *s->strings);
    if (!s->strings) return mox_fail_memory(err, (size_t)n * sizeof *s->strings, "stop strings");
    for (; s->n < n; s->n++) {
        const char *string = strings[s->n];
        const mox_status status = string[0] == '\0' ? mox_fail(err, MOX_E_ARG, "a stop string is empty: it would stop every reply at once") : MOX_OK;
        s->strings[s->n] = status == MOX_OK ? mox_strdup(string) : NULL;
        if (s->strings[s->n]) continue;
        mox_stops_deinit(s);
        return status == MOX_OK ? mox_fail_memory(err, strlen(string), "a stop string") : status;
    }
    return MOX_OK;
}

void mox_stops_deinit(mox_stops *s)
{
    for (int32_t i = 0; i < s->n; i++) mox_free(s->strings[i]);
    mox_free(s->strings);
    mox_writer_deinit(&s->held);
    *s = (mox_stops){0};
}

/* Whether a stop string is at p, or may be once more than n bytes are there. */
static bool may_stop(const mox_stops *s, const char *p, size_t n, bool *whole)
{
    bool may = false;
    *whole = false;
    for (int32_t i = 0; i < s->n; i++) {
        const size_t length = strlen(s->strings[i]);
        if (memcmp(s->strings[i], p, length < n ? length : n) != 0) continue;
        may = true;
        if (length <= n) *whole = true;
    }
    return may;
}

mox_status mox_stops_push(mox_stops *s, const char *text, size_t n, mox_text_fn *emit, void *user, mox_err *err)
{
    if (s->found || n == 0) return MOX_OK;
    if (s->n == 0) {
        emit(user, text, n);
        return MOX_OK;
    }
    MOX_TRY(mox_write(&s->held, text, n, err));
    char *held = s->held.bytes.data;
    size_t i = 0;
    while (i < s->held.n && !may_stop(s, held + i, s->held.n - i, &s->found)) i++;
    if (i > 0) emit(user, held, i);
    s->held.n -= i;
    if (s->found) s->held.n = 0;
    memmove(held, held + i, s->held.n);
    return MOX_OK;
}

void mox_stops_end(mox_stops *s, mox_text_fn *emit, void *user)
{
    if (!s->found && s->held.n > 0) emit(user, mox_writer_text(&s->held), s->held.n);
    s->held.n = 0;
}
