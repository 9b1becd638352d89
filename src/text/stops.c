/* text/stops.c -- stop strings in a stream. */
#include "text/stops.h"

#include "base/alloc.h"
#include "base/utf8.h"

#include <string.h>

static mox_status check_string(const char *string, mox_err *err)
{
    const size_t n = strlen(string);
    if (n == 0) return mox_fail(err, MOX_E_ARG, "a stop string is empty: it would stop every reply at once");
    if (mox_utf8_valid_prefix((const unsigned char *)string, n) != n) return mox_fail(err, MOX_E_ARG, "a stop string is no UTF-8");
    return MOX_OK;
}

mox_status mox_stops_init(mox_stops *s, const char *const *strings, int32_t n, mox_err *err)
{
    *s = (mox_stops){0};
    if (n <= 0) return MOX_OK;
    s->strings = mox_alloc_array((size_t)n, sizeof *s->strings);
    if (!s->strings) return mox_fail_memory(err, (size_t)n * sizeof *s->strings, "stop strings");
    for (; s->n < n; s->n++) {
        const char *string = strings[s->n];
        const mox_status status = check_string(string, err);
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

/* Whether a stop string is at p, and which; *part: whether one may be, once more than n bytes are there. */
static bool stops_at(mox_stops *s, const char *p, size_t n, bool *part)
{
    *part = false;
    for (int32_t i = 0; i < s->n; i++) {
        const size_t length = strlen(s->strings[i]);
        if (memcmp(s->strings[i], p, length < n ? length : n) != 0) continue;
        if (length <= n) {
            s->which = i;
            return true;
        }
        *part = true;
    }
    return false;
}

/* Lets go what is before the first stop string, or before what may become one unless this is the end. */
static void let_go(mox_stops *s, bool end, mox_text_fn *emit, void *user)
{
    char *held = s->held.bytes.data;
    const size_t n = s->held.n;
    size_t i = 0;
    for (; i < n; i++) {
        bool part;
        s->found = stops_at(s, held + i, n - i, &part);
        if (s->found || (part && !end)) break;
    }
    if (i > 0) emit(user, held, i);
    s->held.n = s->found ? 0 : n - i;
    if (s->held.n > 0) memmove(held, held + i, s->held.n);
}

mox_status mox_stops_push(mox_stops *s, const char *text, size_t n, mox_text_fn *emit, void *user, mox_err *err)
{
    if (s->found || n == 0) return MOX_OK;
    if (s->n == 0) {
        emit(user, text, n);
        return MOX_OK;
    }
    MOX_TRY(mox_write(&s->held, text, n, err));
    let_go(s, false, emit, user);
    return MOX_OK;
}

void mox_stops_end(mox_stops *s, mox_text_fn *emit, void *user) { let_go(s, true, emit, user); }
