/* text/template_methods.c -- methods of str, as Python has them.  Parts of a string
 * share its bytes; what is new is built with the origin of every byte. */
#include "text/template_internal.h"
#include "base/utf8.h"

#include <string.h>

/* ---- searching and testing ------------------------------------------------------------------------------ */

/* startswith and endswith: of one string, or any of a tuple. */
static mox_status method_with(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = c->self.u.s;
    const mox_tv *one = &c->arg[0];
    size_t n = 1;
    if (one->type == MOX_TV_TUPLE) {
        n = one->u.list->n;
        one = one->u.list->item;
    }
    bool found = false;
    for (size_t i = 0; i < n && !found; i++) {
        const mox_ts *part;
        MOX_TRY(mox_arg_string(r, &one[i], "what a str starts or ends with", &part));
        MOX_TRY(mox_render_bytes(r, part->n));
        found = part->n <= s->n && memcmp(c->code ? s->p + s->n - part->n : s->p, part->p, part->n) == 0;
    }
    *out = mox_tv_bool(found);
    return MOX_OK;
}

/* The last place of part in s that begins before byte end; SIZE_MAX when there is none. */
static size_t find_last(const mox_ts *s, const mox_ts *part, size_t end)
{
    if (part->n > end) return SIZE_MAX;
    for (size_t i = end - part->n + 1; i-- > 0;) {
        if (memcmp(s->p + i, part->p, part->n) == 0) return i;
    }
    return SIZE_MAX;
}

static size_t characters(const mox_ts *s, size_t bytes)
{
    mox_ts front = *s;
    front.n = bytes;
    return mox_ts_length(&front);
}

enum { FROM_END = 1, MUST_BE_THERE = 2 };

static mox_status method_find(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = c->self.u.s, *part;
    MOX_TRY(mox_arg_string(r, &c->arg[0], "what is looked for", &part));
    MOX_TRY(mox_render_bytes(r, c->code & FROM_END ? s->n * (part->n / 8 + 1) : s->n));
    const size_t at = c->code & FROM_END ? find_last(s, part, s->n) : mox_ts_find(s, part, 0);
    if (at == SIZE_MAX && c->code & MUST_BE_THERE) return mox_render_fail(r, "the part is not in the str");
    *out = mox_tv_int(at == SIZE_MAX ? -1 : (int64_t)characters(s, at));
    return MOX_OK;
}

static mox_status method_count(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = c->self.u.s, *part;
    int64_t n = 0;
    MOX_TRY(mox_arg_string(r, &c->arg[0], "what is counted", &part));
    MOX_TRY(mox_render_bytes(r, s->n));
    if (part->n == 0) {
        *out = mox_tv_int((int64_t)mox_ts_length(s) + 1);
        return MOX_OK;
    }
    for (size_t at = 0; (at = mox_ts_find(s, part, at)) != SIZE_MAX; at += part->n) n++;
    *out = mox_tv_int(n);
    return MOX_OK;
}

static mox_status method_is(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    MOX_TRY(mox_render_bytes(r, c->self.u.s->n));
    *out = mox_tv_bool(mox_ts_all(c->self.u.s, c->code));
    return MOX_OK;
}

/* ---- changing -------------------------------------------------------------------------------------------- */

static mox_status method_case(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    return mox_ts_case(r, c->self.u.s, c->code, out);
}

/* Bytes of the character that ends before `end`. */
static size_t last_char(const mox_ts *s, size_t end)
{
    size_t i = end - 1;
    while (((unsigned char)s->p[i] & 0xC0) == 0x80) i--;
    return end - i;
}

static bool strips(const mox_ts *s, size_t at, size_t length, const mox_ts *chars)
{
    uint32_t cp;
    const mox_ts one = {.p = s->p + at, .n = length};
    if (chars) return mox_ts_find(chars, &one, 0) != SIZE_MAX; /* UTF-8: no character is inside another */
    (void)mox_utf8_next((const unsigned char *)s->p + at, &cp);
    return mox_char_is_space(cp);
}

enum { LEFT = 1, RIGHT = 2 };

static mox_status method_strip(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = c->self.u.s, *chars = NULL;
    size_t begin = 0, end = s->n;
    if (c->arg[0].type != MOX_TV_ABSENT && c->arg[0].type != MOX_TV_NONE) {
        MOX_TRY(mox_arg_string(r, &c->arg[0], "what is stripped", &chars));
    }
    while (c->code & LEFT && begin < end) {
        uint32_t cp;
        const size_t length = mox_utf8_next((const unsigned char *)s->p + begin, &cp);
        if (!strips(s, begin, length, chars)) break;
        begin += length;
        if (chars) MOX_TRY(mox_render_bytes(r, chars->n));
    }
    while (c->code & RIGHT && begin < end) {
        const size_t length = last_char(s, end);
        if (!strips(s, end - length, length, chars)) break;
        end -= length;
        if (chars) MOX_TRY(mox_render_bytes(r, chars->n));
    }
    MOX_TRY(mox_render_bytes(r, s->n - (end - begin)));
    return mox_ts_part(r, s, begin, end, out);
}

static mox_status method_remove(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = c->self.u.s, *part;
    mox_tv there;
    MOX_TRY(mox_arg_string(r, &c->arg[0], "what is removed", &part));
    MOX_TRY(method_with(r, c, &there));
    const size_t n = there.u.b ? part->n : 0;
    return c->code ? mox_ts_part(r, s, 0, s->n - n, out) : mox_ts_part(r, s, n, s->n, out);
}

/* Always a new string. */
static mox_status method_replace(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = c->self.u.s, *from, *to;
    int64_t count;
    MOX_TRY(mox_arg_string(r, &c->arg[0], "what is replaced", &from));
    MOX_TRY(mox_arg_string(r, &c->arg[1], "what is put in", &to));
    MOX_TRY(mox_arg_int(r, &c->arg[2], -1, "the count", &count));
    mox_tb b = {.markup = s->markup};
    size_t done = 0, at = 0;
    MOX_TRY(mox_render_bytes(r, s->n));
    for (; count != 0 && (at = mox_ts_find(s, from, at)) != SIZE_MAX; count--) {
        MOX_TRY(mox_tb_part(r, &b, s, done, at));
        MOX_TRY(s->markup && !to->markup ? mox_tb_escaped(r, &b, to) : mox_tb_string(r, &b, to));
        done = at;
        if (from->n > 0) {
            at = done = at + from->n;
        } else if (at < s->n) { /* between all characters */
            uint32_t cp;
            at += mox_utf8_next((const unsigned char *)s->p + at, &cp);
        } else {
            break;
        }
        MOX_TRY(mox_render_step(r));
    }
    MOX_TRY(mox_tb_part(r, &b, s, done, s->n));
    return mox_tb_done(r, &b, out);
}

static mox_status method_join(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = c->self.u.s;
    mox_tb b = {.markup = s->markup};
    mox_titer it;
    mox_tv item;
    bool more;
    MOX_TRY(mox_titer_init(r, &c->arg[0], &it));
    for (size_t i = 0;; i++) {
        const mox_ts *part;
        MOX_TRY(mox_titer_next(r, &it, &item, &more));
        if (!more) return mox_tb_done(r, &b, out);
        if (s->markup) {
            MOX_TRY(mox_tv_str(r, &item, &part));
        } else {
            MOX_TRY(mox_arg_string(r, &item, "an item of join", &part));
        }
        if (i > 0) MOX_TRY(mox_tb_string(r, &b, s));
        MOX_TRY(s->markup && !part->markup ? mox_tb_escaped(r, &b, part) : mox_tb_string(r, &b, part));
    }
}

/* ljust, rjust, center and zfill. */
enum { LJUST, RJUST, CENTER, ZFILL };

static mox_status method_just(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = c->self.u.s, *fill = NULL;
    int64_t width, before = 0;
    MOX_TRY(mox_arg_int(r, &c->arg[0], 0, "the width", &width));
    if (c->arg[1].type != MOX_TV_ABSENT) {
        MOX_TRY(mox_arg_string(r, &c->arg[1], "the fill", &fill));
        if (mox_ts_length(fill) != 1) return mox_render_fail(r, "the fill must be one character");
    }
    static const mox_ts blank = {.p = " ", .n = 1}, zero = {.p = "0", .n = 1};
    if (!fill) fill = c->code == ZFILL ? &zero : &blank;
    MOX_TRY(mox_render_bytes(r, s->n));
    const int64_t length = (int64_t)mox_ts_length(s), missing = width > length ? width - length : 0;
    if (c->code == RJUST || c->code == ZFILL) before = missing;
    if (c->code == CENTER) before = missing / 2 + (missing & width & 1);
    const size_t sign = c->code == ZFILL && s->n > 0 && (s->p[0] == '-' || s->p[0] == '+');
    mox_tb b = {.markup = s->markup};
    MOX_TRY(mox_tb_part(r, &b, s, 0, sign));
    for (int64_t i = 0; i < missing; i++) {
        if (i == before) MOX_TRY(mox_tb_part(r, &b, s, sign, s->n));
        MOX_TRY(mox_tb_string(r, &b, fill));
    }
    if (before >= missing) MOX_TRY(mox_tb_part(r, &b, s, sign, s->n));
    return mox_tb_done(r, &b, out);
}

/* ---- splitting -------------------------------------------------------------------------------------------- */

static mox_status push_part(mox_render *r, const mox_ts *s, size_t begin, size_t end, mox_tv *list)
{
    mox_tv part;
    MOX_TRY(mox_ts_part(r, s, begin, end, &part));
    return mox_tlist_push(r, list->u.list, &part);
}

static size_t space_at(const mox_ts *s, size_t i)
{
    uint32_t cp;
    const size_t length = mox_utf8_next((const unsigned char *)s->p + i, &cp);
    return mox_char_is_space(cp) ? length : 0;
}

/* At runs of blanks, which are dropped at the front too; the last part keeps its own. */
static mox_status split_blanks(mox_render *r, const mox_ts *s, int64_t max, mox_tv *out)
{
    size_t i = 0, length;
    for (;; max--) {
        while (i < s->n && (length = space_at(s, i)) > 0) i += length;
        if (i == s->n) return MOX_OK;
        if (max == 0) return push_part(r, s, i, s->n, out);
        size_t end = i;
        while (end < s->n && space_at(s, end) == 0) {
            uint32_t cp;
            end += mox_utf8_next((const unsigned char *)s->p + end, &cp);
        }
        MOX_TRY(push_part(r, s, i, end, out));
        i = end;
    }
}

static mox_status rsplit_blanks(mox_render *r, const mox_ts *s, int64_t max, mox_tv *out)
{
    size_t end = s->n;
    for (;; max--) {
        while (end > 0 && space_at(s, end - last_char(s, end)) > 0) end -= last_char(s, end);
        if (end == 0) return MOX_OK;
        size_t begin = max == 0 ? 0 : end;
        while (begin > 0 && space_at(s, begin - last_char(s, begin)) == 0) begin -= last_char(s, begin);
        MOX_TRY(push_part(r, s, begin, end, out));
        end = begin;
    }
}

static mox_status split_at(mox_render *r, const mox_ts *s, const mox_ts *by, int64_t max, mox_tv *out)
{
    size_t begin = 0, at;
    for (; max != 0 && (at = mox_ts_find(s, by, begin)) != SIZE_MAX; max--) {
        MOX_TRY(push_part(r, s, begin, at, out));
        begin = at + by->n;
    }
    return push_part(r, s, begin, s->n, out);
}

static mox_status rsplit_at(mox_render *r, const mox_ts *s, const mox_ts *by, int64_t max, mox_tv *out)
{
    size_t end = s->n, at;
    for (; max != 0 && (at = find_last(s, by, end)) != SIZE_MAX; max--) {
        MOX_TRY(push_part(r, s, at + by->n, end, out));
        end = at;
    }
    return push_part(r, s, 0, end, out);
}

static void reverse_list(mox_tlist *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        const mox_tv swap = l->item[i];
        l->item[i] = l->item[l->n - 1 - i];
        l->item[l->n - 1 - i] = swap;
    }
}

static mox_status method_split(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = c->self.u.s, *by = NULL;
    int64_t max;
    MOX_TRY(mox_arg_int(r, &c->arg[1], -1, "maxsplit", &max));
    MOX_TRY(mox_tv_list(r, MOX_TV_LIST, 4, out));
    if (c->arg[0].type != MOX_TV_ABSENT && c->arg[0].type != MOX_TV_NONE) {
        MOX_TRY(mox_arg_string(r, &c->arg[0], "the separator", &by));
        if (by->n == 0) return mox_render_fail(r, "the separator is empty");
    }
    MOX_TRY(mox_render_bytes(r, c->code && by ? s->n * (by->n / 8 + 1) : s->n));
    if (!c->code) return by ? split_at(r, s, by, max, out) : split_blanks(r, s, max, out);
    MOX_TRY(by ? rsplit_at(r, s, by, max, out) : rsplit_blanks(r, s, max, out));
    reverse_list(out->u.list);
    return MOX_OK;
}

/* Bytes of the line end at i; Python knows more of them than \n. */
static size_t line_end(const mox_ts *s, size_t i)
{
    uint32_t cp;
    const size_t length = mox_utf8_next((const unsigned char *)s->p + i, &cp);
    if (cp == '\r' && i + 1 < s->n && s->p[i + 1] == '\n') return 2;
    const bool ends =
        (cp >= '\n' && cp <= '\r') || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
    return ends ? length : 0;
}

static mox_status method_splitlines(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = c->self.u.s;
    size_t begin = 0;
    bool keep;
    MOX_TRY(mox_arg_truth(r, &c->arg[0], false, &keep));
    MOX_TRY(mox_render_bytes(r, s->n));
    MOX_TRY(mox_tv_list(r, MOX_TV_LIST, 4, out));
    for (size_t i = 0; i < s->n;) {
        uint32_t cp;
        const size_t end = line_end(s, i);
        if (end > 0) MOX_TRY(push_part(r, s, begin, keep ? i + end : i, out));
        i += end > 0 ? end : mox_utf8_next((const unsigned char *)s->p + i, &cp);
        if (end > 0) begin = i;
    }
    return begin < s->n ? push_part(r, s, begin, s->n, out) : MOX_OK;
}

static mox_status method_partition(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = c->self.u.s, *by;
    MOX_TRY(mox_arg_string(r, &c->arg[0], "the separator", &by));
    if (by->n == 0) return mox_render_fail(r, "the separator is empty");
    MOX_TRY(mox_render_bytes(r, c->code ? s->n * (by->n / 8 + 1) : s->n));
    const size_t at = c->code ? find_last(s, by, s->n) : mox_ts_find(s, by, 0);
    const bool found = at != SIZE_MAX;
    const size_t first = found ? at : c->code ? 0 : s->n, last = found ? at + by->n : first;
    MOX_TRY(mox_tv_list(r, MOX_TV_TUPLE, 3, out));
    MOX_TRY(push_part(r, s, 0, first, out));
    MOX_TRY(push_part(r, s, first, last, out));
    return push_part(r, s, last, s->n, out);
}

static mox_status method_format(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    return mox_format_braces(r, c->self.u.s, c->raw, out);
}

const mox_tfn *mox_string_method_find(const char *name, size_t n)
{
    static const mox_tfn methods[] = {
        {"capitalize", method_case, "", 0, MOX_CASE_CAPITALIZE},
        {"center", method_just, "width fillchar", 1, CENTER},
        {"count", method_count, "sub", 1, 0},
        {"endswith", method_with, "suffix", 1, 1},
        {"find", method_find, "sub", 1, 0},
        {"format", method_format, "*", 0, 0},
        {"index", method_find, "sub", 1, MUST_BE_THERE},
        {"isalnum", method_is, "", 0, MOX_IS_ALNUM},
        {"isalpha", method_is, "", 0, MOX_IS_ALPHA},
        {"isdigit", method_is, "", 0, MOX_IS_DIGIT},
        {"islower", method_is, "", 0, MOX_IS_LOWER},
        {"isspace", method_is, "", 0, MOX_IS_SPACE},
        {"isupper", method_is, "", 0, MOX_IS_UPPER},
        {"join", method_join, "iterable", 1, 0},
        {"ljust", method_just, "width fillchar", 1, LJUST},
        {"lower", method_case, "", 0, MOX_CASE_LOWER},
        {"lstrip", method_strip, "chars", 0, LEFT},
        {"partition", method_partition, "sep", 1, 0},
        {"removeprefix", method_remove, "prefix", 1, 0},
        {"removesuffix", method_remove, "suffix", 1, 1},
        {"replace", method_replace, "old new count", 2, 0},
        {"rfind", method_find, "sub", 1, FROM_END},
        {"rindex", method_find, "sub", 1, FROM_END | MUST_BE_THERE},
        {"rjust", method_just, "width fillchar", 1, RJUST},
        {"rpartition", method_partition, "sep", 1, 1},
        {"rsplit", method_split, "sep maxsplit", 0, 1},
        {"rstrip", method_strip, "chars", 0, RIGHT},
        {"split", method_split, "sep maxsplit", 0, 0},
        {"splitlines", method_splitlines, "keepends", 0, 0},
        {"startswith", method_with, "prefix", 1, 0},
        {"strip", method_strip, "chars", 0, LEFT | RIGHT},
        {"swapcase", method_case, "", 0, MOX_CASE_SWAP},
        {"title", method_case, "", 0, MOX_CASE_TITLE},
        {"upper", method_case, "", 0, MOX_CASE_UPPER},
        {"zfill", method_just, "width", 1, ZFILL},
    };
    return mox_fn_find(methods, sizeof methods / sizeof *methods, name, n);
}
