/* text/template_string.c -- strings whose bytes remember where they are from.
 *
 * A string is a view; parts share its bytes and its runs.  New strings come out of a
 * builder, which joins neighbouring runs of one origin.
 *
 * I1  runs of a builder end in rising order, the last one at its end; no two
 *     neighbours have the same origin.
 * I2  no string is longer than the output may be.
 */
#include "text/template_value.h"
#include "base/utf8.h"

#include <string.h>

mox_tv mox_tv_string(const mox_ts *s) { return (mox_tv){.type = MOX_TV_STRING, .u.s = s}; }

static mox_status take_string(mox_render *r, mox_ts value, mox_tv *out)
{
    void *memory;
    MOX_TRY(mox_render_take(r, 1, sizeof value, &memory));
    *(mox_ts *)memory = value;
    *out = mox_tv_string(memory);
    return MOX_OK;
}

mox_status mox_tv_text(mox_render *r, const char *text, mox_tv *out)
{
    return take_string(r, (mox_ts){.p = text, .n = strlen(text)}, out);
}

mox_status mox_ts_make(mox_render *r, const char *p, size_t n, bool user, const mox_ts **out)
{
    void *copy;
    mox_tv v;
    MOX_TRY(mox_render_bytes(r, n));
    MOX_TRY(mox_render_take(r, n, 1, &copy));
    memcpy(copy, p, n);
    MOX_TRY(take_string(r, (mox_ts){.p = copy, .n = n, .user = user}, &v));
    *out = v.u.s;
    return MOX_OK;
}

/* ---- views -------------------------------------------------------------------------------- */

/* The run that byte i is in. */
static const mox_ts_run *run_at(const mox_ts *s, size_t i)
{
    size_t low = 0, high = s->n_runs - 1;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (s->runs[middle].end > s->at + i) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return &s->runs[low];
}

size_t mox_ts_stretch(const mox_ts *s, size_t i, bool *user)
{
    *user = s->user;
    if (!s->runs) return s->n;
    const mox_ts_run *run = run_at(s, i);
    *user = run->user;
    return run->end - s->at < s->n ? run->end - s->at : s->n;
}

mox_status mox_ts_part(mox_render *r, const mox_ts *s, size_t begin, size_t end, mox_tv *out)
{
    if (begin == 0 && end == s->n) {
        *out = mox_tv_string(s);
        return MOX_OK;
    }
    mox_ts part = *s;
    part.p += begin;
    part.at += begin;
    part.n = end - begin;
    return take_string(r, part, out);
}

size_t mox_ts_length(const mox_ts *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) n += ((unsigned char)s->p[i] & 0xC0) != 0x80;
    return n;
}

size_t mox_ts_offset(const mox_ts *s, size_t i)
{
    size_t at = 0;
    for (; at < s->n; at++) {
        if (((unsigned char)s->p[at] & 0xC0) != 0x80 && i-- == 0) break;
    }
    return at;
}

bool mox_ts_is(const mox_ts *s, const char *text) { return s->n == strlen(text) && memcmp(s->p, text, s->n) == 0; }
bool mox_ts_equal(const mox_ts *a, const mox_ts *b) { return a->n == b->n && memcmp(a->p, b->p, a->n) == 0; }

size_t mox_ts_find(const mox_ts *s, const mox_ts *needle, size_t from)
{
    if (from > s->n) return SIZE_MAX;
    if (needle->n == 0) return from;
    const char *at = memmem(s->p + from, s->n - from, needle->p, needle->n);
    return at ? (size_t)(at - s->p) : SIZE_MAX;
}

/* ---- building -------------------------------------------------------------------------------- */

static mox_status add_run(mox_render *r, mox_tb *b, bool user)
{
    if (b->n_runs == b->runs_capacity) {
        const size_t capacity = b->runs_capacity ? b->runs_capacity * 2 : 4;
        void *runs = b->runs;
        MOX_TRY(mox_render_grow(r, &runs, b->runs_capacity, capacity, sizeof *b->runs));
        b->runs = runs;
        b->runs_capacity = capacity;
    }
    b->runs[b->n_runs++] = (mox_ts_run){b->n, user};
    return MOX_OK;
}

mox_status mox_tb_bytes(mox_render *r, mox_tb *b, const char *p, size_t n, bool user)
{
    if (n == 0) return MOX_OK;
    if (n > mox_render_output_max(r) - b->n) return mox_render_too_long(r); /* I2 */
    MOX_TRY(mox_render_bytes(r, n));
    if (b->n + n > b->capacity) {
        size_t capacity = b->capacity ? b->capacity * 2 : 64;
        if (capacity < b->n + n) capacity = b->n + n;
        void *larger = b->p;
        MOX_TRY(mox_render_grow(r, &larger, b->capacity, capacity, 1));
        b->p = larger;
        b->capacity = capacity;
    }
    if (b->n_runs == 0 || b->runs[b->n_runs - 1].user != user) MOX_TRY(add_run(r, b, user));
    memcpy(b->p + b->n, p, n);
    b->n += n;
    b->runs[b->n_runs - 1].end = b->n;
    return MOX_OK;
}

mox_status mox_tb_text(mox_render *r, mox_tb *b, const char *text)
{
    return mox_tb_bytes(r, b, text, strlen(text), false);
}

mox_status mox_tb_part(mox_render *r, mox_tb *b, const mox_ts *s, size_t begin, size_t end)
{
    while (begin < end) {
        bool user;
        size_t stretch = mox_ts_stretch(s, begin, &user);
        if (stretch > end) stretch = end;
        MOX_TRY(mox_tb_bytes(r, b, s->p + begin, stretch - begin, user));
        begin = stretch;
    }
    return MOX_OK;
}

mox_status mox_tb_string(mox_render *r, mox_tb *b, const mox_ts *s) { return mox_tb_part(r, b, s, 0, s->n); }

mox_status mox_tb_repeat(mox_render *r, mox_tb *b, const char *text, int64_t times)
{
    for (; times > 0; times--) MOX_TRY(mox_tb_text(r, b, text));
    return MOX_OK;
}

mox_status mox_tb_done(mox_render *r, mox_tb *b, mox_tv *out)
{
    mox_ts s = {.p = b->p ? b->p : "", .n = b->n, .markup = b->markup};
    if (b->n_runs == 1) s.user = b->runs[0].user;
    if (b->n_runs > 1) {
        s.runs = b->runs;
        s.n_runs = b->n_runs;
    }
    return take_string(r, s, out);
}

mox_status mox_tb_escaped(mox_render *r, mox_tb *b, const mox_ts *s)
{
    static const char from[] = "&<>\"'";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    size_t done = 0;
    for (size_t i = 0; i < s->n; i++) {
        const char *at = s->p[i] ? strchr(from, s->p[i]) : NULL;
        if (!at) continue;
        bool user;
        (void)mox_ts_stretch(s, i, &user);
        MOX_TRY(mox_tb_part(r, b, s, done, i));
        MOX_TRY(mox_tb_bytes(r, b, to[at - from], strlen(to[at - from]), user));
        done = i + 1;
    }
    return mox_tb_part(r, b, s, done, s->n);
}
