/* text/template_format.c -- "%s" % x, "{}".format(x), and times.
 *
 * Of Python's format language: fields by position and name, with attributes and
 * items, !s and !r; fill, alignment, sign, zeros, width, commas, precision, and the
 * types s d i x X o b c f F e E g G %. */
#include "text/template_internal.h"
#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WIDTH_MAX = 1 << 20, PRECISION_MAX = 100 };

typedef struct spec {
    mox_ts fill; /* one character; empty: a blank */
    char align;  /* < > ^ =, or 0 */
    char sign;   /* + - or blank */
    bool alternate, comma;
    int width, precision; /* precision -1: none */
    char type;
} spec;

/* ---- writing a value as a specification says ---------------------------------------------------------------- */

static mox_status pad(mox_render *r, mox_tb *b, const spec *f, size_t sign, const mox_ts *text, char usual)
{
    const size_t length = mox_ts_length(text);
    const size_t missing = f->width > 0 && (size_t)f->width > length ? (size_t)f->width - length : 0;
    const char align = f->align ? f->align : usual;
    static const mox_ts blank = {.p = " ", .n = 1};
    const mox_ts *fill = f->fill.n > 0 ? &f->fill : &blank;
    const size_t before = align == '>' || align == '=' ? missing : align == '^' ? missing / 2 : 0;
    if (align == '=') MOX_TRY(mox_tb_part(r, b, text, 0, sign));
    for (size_t i = 0; i < before; i++) MOX_TRY(mox_tb_string(r, b, fill));
    MOX_TRY(mox_tb_part(r, b, text, align == '=' ? sign : 0, text->n));
    for (size_t i = before; i < missing; i++) MOX_TRY(mox_tb_string(r, b, fill));
    return MOX_OK;
}

/* Commas between groups of three digits in front of the point. */
static void add_commas(const char *digits, char *out)
{
    const size_t whole = strspn(digits, "0123456789");
    for (size_t i = 0; i < whole; i++) {
        *out++ = digits[i];
        if (i + 1 < whole && (whole - i - 1) % 3 == 0) *out++ = ',';
    }
    strcpy(out, digits + whole);
}

/* Digits without a sign, with sign and padding. */
static mox_status put_number(mox_render *r, mox_tb *b, const spec *f, bool negative, const char *digits)
{
    char text[640];
    size_t sign = 0;
    if (negative || f->sign == '+' || f->sign == ' ') text[sign++] = negative ? '-' : f->sign;
    if (f->comma) {
        add_commas(digits, text + sign);
    } else {
        (void)snprintf(text + sign, sizeof text - sign, "%s", digits);
    }
    const mox_ts s = {.p = text, .n = strlen(text)};
    return pad(r, b, f, sign, &s, '>');
}

/* An integer beyond 64 bits has any number of digits. */
static mox_status put_big(mox_render *r, mox_tb *b, const spec *f, const char *big)
{
    const bool negative = big[0] == '-';
    const char sign = negative ? '-' : f->sign;
    mox_tb text = {0};
    mox_tv s;
    if (sign) MOX_TRY(mox_tb_bytes(r, &text, &sign, 1, false));
    MOX_TRY(mox_tb_text(r, &text, big + negative));
    MOX_TRY(mox_tb_done(r, &text, &s));
    return pad(r, b, f, sign != '\0', s.u.s, '>');
}

static mox_status put_int(mox_render *r, mox_tb *b, const spec *f, int64_t value)
{
    char digits[80];
    const uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    switch (f->type) {
    case 'x': (void)snprintf(digits, sizeof digits, f->alternate ? "0x%llx" : "%llx", (unsigned long long)size); break;
    case 'X': (void)snprintf(digits, sizeof digits, f->alternate ? "0X%llX" : "%llX", (unsigned long long)size); break;
    case 'o': (void)snprintf(digits, sizeof digits, f->alternate ? "0o%llo" : "%llo", (unsigned long long)size); break;
    case 'b': {
        char *p = digits + sizeof digits - 1;
        uint64_t rest = size;
        *p = '\0';
        do {
            *--p = (char)('0' + (rest & 1));
        } while ((rest >>= 1) > 0);
        memmove(digits, p, strlen(p) + 1);
        break;
    }
    default: (void)snprintf(digits, sizeof digits, "%llu", (unsigned long long)size);
    }
    return put_number(r, b, f, value < 0, digits);
}

static mox_status put_float(mox_render *r, mox_tb *b, const spec *f, double value)
{
    char digits[480], form[8];
    const int precision = f->precision < 0 ? 6 : f->precision;
    const double size = f->type == '%' ? fabs(value) * 100 : fabs(value);
    const bool upper = f->type == 'F' || f->type == 'E' || f->type == 'G';
    if (!f->type && f->precision < 0) {
        MOX_TRY(mox_float_repr(r, fabs(value), digits));
    } else if (!isfinite(value)) {
        (void)snprintf(digits, sizeof digits, "%s%s", isnan(value) ? (upper ? "NAN" : "nan") : (upper ? "INF" : "inf"),
                       f->type == '%' ? "%" : "");
    } else {
        (void)snprintf(form, sizeof form, "%%.*%c", f->type == '%' ? 'f' : f->type ? f->type : 'g');
        (void)snprintf(digits, sizeof digits, form, precision, size);
        if (f->type == '%') strcat(digits, "%");
    }
    return put_number(r, b, f, signbit(value) && !isnan(value), digits);
}

static mox_status put_string(mox_render *r, mox_tb *b, const spec *f, const mox_ts *s)
{
    mox_tv part = mox_tv_string(s);
    if (f->precision >= 0) MOX_TRY(mox_ts_part(r, s, 0, mox_ts_offset(s, (size_t)f->precision), &part));
    return pad(r, b, f, 0, part.u.s, '<');
}

static mox_status put_char(mox_render *r, mox_tb *b, const spec *f, int64_t cp)
{
    unsigned char bytes[4];
    if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) return mox_render_fail(r, "%%c needs a character");
    const mox_ts s = {.p = (const char *)bytes, .n = mox_utf8_encode((uint32_t)cp, bytes)};
    return pad(r, b, f, 0, &s, '<');
}

/* ---- % ---------------------------------------------------------------------------------------------------------- */

typedef struct cursor { /* in a format */
    const mox_ts *s;
    size_t i;
} cursor;

static int peek(const cursor *c) { return c->i < c->s->n ? (unsigned char)c->s->p[c->i] : 0; }

static mox_status read_size(mox_render *r, cursor *c, int max, int *out)
{
    *out = 0;
    while (peek(c) >= '0' && peek(c) <= '9') {
        *out = *out * 10 + (peek(c) - '0');
        if (*out > max) return mox_render_fail(r, "a number in a format is larger than %d", max);
        c->i++;
    }
    return MOX_OK;
}

static mox_status read_percent(mox_render *r, cursor *c, spec *f)
{
    *f = (spec){.precision = -1};
    for (; peek(c) && strchr("-+ 0#", peek(c)); c->i++) {
        const int flag = peek(c);
        if (flag == '-') f->align = '<';
        if (flag == '0' && !f->align) f->align = '=';
        if (flag == '+' || (flag == ' ' && !f->sign)) f->sign = (char)flag;
        if (flag == '#') f->alternate = true;
    }
    if (f->align == '=') f->fill = (mox_ts){.p = "0", .n = 1};
    MOX_TRY(read_size(r, c, WIDTH_MAX, &f->width));
    if (peek(c) == '.') {
        c->i++;
        MOX_TRY(read_size(r, c, PRECISION_MAX, &f->precision));
    }
    while (peek(c) && strchr("hlL", peek(c))) c->i++;
    f->type = (char)peek(c);
    c->i++;
    return MOX_OK;
}

static mox_status put_percent(mox_render *r, mox_tb *b, const spec *f, const mox_tv *v)
{
    int64_t i;
    mox_tb text = {0};
    mox_tv s;
    spec plain = *f;
    MOX_TRY(mox_tv_pay(r, v));
    switch (f->type) {
    case 'c':
        if (mox_tv_get_int(v, &i)) return put_char(r, b, f, i);
        if (v->type == MOX_TV_STRING && mox_ts_length(v->u.s) == 1) return put_string(r, b, f, v->u.s);
        return mox_render_fail(r, "%%c needs a character");
    case 's':
    case 'r':
        MOX_TRY(f->type == 's' ? mox_tb_str(r, &text, v) : mox_tb_repr(r, &text, v));
        MOX_TRY(mox_tb_done(r, &text, &s));
        if (!plain.align || plain.align == '=') plain.align = '>';
        plain.fill.n = 0;
        return put_string(r, b, &plain, s.u.s);
    case 'd':
    case 'i':
    case 'u':
        if (v->type == MOX_TV_BIG) return put_big(r, b, f, v->u.big);
        if (v->type == MOX_TV_FLOAT && fabs(v->u.f) < 9.2e18) return put_int(r, b, f, (int64_t)v->u.f);
        plain.type = 'd';
        break;
    case 'x':
    case 'X':
    case 'o': break;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (mox_tv_is_number(v)) return put_float(r, b, f, mox_tv_double(v));
        break;
    default: return mox_render_fail(r, "a format character after %% is not known");
    }
    if (!mox_tv_get_int(v, &i)) return mox_render_fail(r, "%%%c needs a number, not %s", f->type, mox_tv_type_name(v));
    return put_int(r, b, &plain, i);
}

/* The value for a field: by name out of a dict, or the next one. */
static mox_status percent_value(mox_render *r, cursor *c, const mox_tv *values, size_t *next, mox_tv *out)
{
    if (peek(c) == '(') {
        const size_t begin = ++c->i;
        mox_tv key;
        while (peek(c) && peek(c) != ')') c->i++;
        if (!peek(c) || values->type != MOX_TV_DICT) return mox_render_fail(r, "a format with names needs a mapping");
        MOX_TRY(mox_ts_part(r, c->s, begin, c->i++, &key));
        size_t at;
        MOX_TRY(mox_tdict_find(r, values->u.dict, &key, &at));
        if (at == values->u.dict->n) return mox_render_fail(r, "a name of the format is not in the mapping");
        *out = values->u.dict->value[at];
        *next = SIZE_MAX;
        return MOX_OK;
    }
    if (*next == SIZE_MAX || (values->type == MOX_TV_TUPLE ? *next >= values->u.list->n : *next > 0)) {
        return mox_render_fail(r, "not enough arguments for the format");
    }
    *out = values->type == MOX_TV_TUPLE ? values->u.list->item[*next] : *values;
    (*next)++;
    return MOX_OK;
}

mox_status mox_format_percent(mox_render *r, const mox_ts *format, const mox_tv *values, mox_tv *out)
{
    cursor c = {format, 0};
    mox_tb b = {.markup = format->markup};
    size_t next = 0, done = 0;
    MOX_TRY(mox_render_bytes(r, format->n));
    for (; c.i < format->n; done = c.i) {
        while (c.i < format->n && format->p[c.i] != '%') c.i++;
        MOX_TRY(mox_tb_part(r, &b, format, done, c.i));
        if (c.i++ == format->n) break;
        spec f;
        mox_tv v;
        if (peek(&c) == '%') {
            MOX_TRY(mox_tb_text(r, &b, "%"));
            c.i++;
            continue;
        }
        if (peek(&c) == 0) return mox_render_fail(r, "the format ends in a %%");
        cursor name = c; /* a name stands before the flags, a value without one is taken after them */
        if (peek(&c) == '(') {
            MOX_TRY(percent_value(r, &c, values, &next, &v));
            MOX_TRY(read_percent(r, &c, &f));
        } else {
            MOX_TRY(read_percent(r, &c, &f));
            MOX_TRY(percent_value(r, &name, values, &next, &v));
        }
        MOX_TRY(put_percent(r, &b, &f, &v));
    }
    const bool left = next != SIZE_MAX && (values->type == MOX_TV_TUPLE
                                               ? next < values->u.list->n
                                               : next == 0 && values->type != MOX_TV_DICT &&
                                                     values->type != MOX_TV_LIST && values->type != MOX_TV_UNDEFINED);
    if (left) return mox_render_fail(r, "not all arguments are used by the format");
    return mox_tb_done(r, &b, out);
}

/* ---- {} ------------------------------------------------------------------------------------------------------------ */

static mox_status read_spec(mox_render *r, const mox_ts *text, spec *f)
{
    cursor c = {text, 0};
    *f = (spec){.precision = -1};
    uint32_t cp;
    const size_t first = text->n > 0 ? mox_utf8_next((const unsigned char *)text->p, &cp) : 0;
    if (first > 0 && first < text->n && strchr("<>=^", text->p[first])) {
        f->fill = (mox_ts){.p = text->p, .n = first};
        f->align = text->p[first];
        c.i = first + 1;
    } else if (peek(&c) && strchr("<>=^", peek(&c))) {
        f->align = text->p[c.i++];
    }
    if (peek(&c) && strchr("+- ", peek(&c))) f->sign = text->p[c.i++];
    if (peek(&c) == '#') {
        f->alternate = true;
        c.i++;
    }
    if (peek(&c) == '0') {
        if (f->fill.n == 0) f->fill = (mox_ts){.p = "0", .n = 1};
        if (!f->align) f->align = '=';
        c.i++;
    }
    MOX_TRY(read_size(r, &c, WIDTH_MAX, &f->width));
    if (peek(&c) == ',') {
        f->comma = true;
        c.i++;
    }
    if (peek(&c) == '.') {
        c.i++;
        MOX_TRY(read_size(r, &c, PRECISION_MAX, &f->precision));
    }
    if (peek(&c)) f->type = text->p[c.i++];
    return c.i == text->n ? MOX_OK : mox_render_fail(r, "a format specification is malformed");
}

static mox_status put_braces(mox_render *r, mox_tb *b, const mox_ts *text, const mox_tv *v)
{
    spec f;
    int64_t i;
    if (text->n == 0) return mox_tb_str(r, b, v);
    MOX_TRY(mox_tv_pay(r, v));
    MOX_TRY(read_spec(r, text, &f));
    if (v->type == MOX_TV_STRING && (!f.type || f.type == 's')) {
        if (f.align == '=' && f.fill.n == 1 && f.fill.p[0] == '0') f.align = '<';
        if (f.align == '=' || f.sign || f.comma) return mox_render_fail(r, "this format is for numbers, not for str");
        return put_string(r, b, &f, v->u.s);
    }
    if (f.type && strchr("eEfFgG%", f.type) && mox_tv_is_number(v)) return put_float(r, b, &f, mox_tv_double(v));
    if (v->type == MOX_TV_FLOAT && !f.type) return put_float(r, b, &f, v->u.f);
    if (mox_tv_get_int(v, &i) && (!f.type || strchr("dxXob", f.type)) && f.precision < 0) return put_int(r, b, &f, i);
    if (mox_tv_get_int(v, &i) && f.type == 'c') return put_char(r, b, &f, i);
    return mox_render_fail(r, "this format is not possible for %s", mox_tv_type_name(v));
}

/* name[.attribute|[item]]* in field[0, n). */
static mox_status field_value(mox_render *r, const mox_ts *field, const mox_targs *args, int64_t *automatic,
                              mox_tv *out)
{
    size_t end = 0;
    while (end < field->n && field->p[end] != '.' && field->p[end] != '[') end++;
    bool digits = true;
    int64_t index = 0;
    for (size_t i = 0; i < end; i++) {
        digits = digits && field->p[i] >= '0' && field->p[i] <= '9' && i < 9;
        if (digits) index = index * 10 + (field->p[i] - '0');
    }
    if (digits) {
        if (end == 0 ? *automatic < 0 : *automatic > 0)
            return mox_render_fail(r, "a format counts fields by itself or names them");
        if (end == 0) index = (*automatic)++;
        if (end > 0) *automatic = -1;
        if ((size_t)index >= args->n_pos) return mox_render_fail(r, "not enough arguments for the format");
        *out = args->pos[index];
    } else {
        const mox_ts name = {.p = field->p, .n = end};
        size_t i = 0;
        while (i < args->n_kw && !mox_ts_equal(args->kw_name[i], &name)) i++;
        if (i == args->n_kw) return mox_render_fail(r, "a name of the format is not given");
        *out = args->kw[i];
    }
    while (end < field->n) {
        const bool item = field->p[end++] == '[';
        const size_t begin = end;
        while (end < field->n && (item ? field->p[end] != ']' : field->p[end] != '.' && field->p[end] != '[')) end++;
        mox_tv key, object = *out;
        MOX_TRY(mox_ts_part(r, field, begin, end, &key));
        if (item && end == field->n) return mox_render_fail(r, "a ']' is missing in the format");
        end += item;
        const bool number = item && key.u.s->n > 0 && key.u.s->n < 10 && strspn(key.u.s->p, "0123456789") >= key.u.s->n;
        if (number) key = mox_tv_int(strtoll(key.u.s->p, NULL, 10));
        MOX_TRY(item ? mox_tv_item(r, &object, &key, out) : mox_tv_attr(r, &object, key.u.s, out));
    }
    return MOX_OK;
}

static mox_status put_field(mox_render *r, mox_tb *b, const mox_ts *s, size_t begin, size_t end, const mox_targs *args,
                            int64_t *automatic)
{
    size_t colon = begin, bang;
    while (colon < end && s->p[colon] != ':' && s->p[colon] != '!') colon++;
    bang = colon;
    if (bang < end && s->p[bang] == '!') colon = bang + 2;
    if (colon > end || (colon < end && s->p[colon] != ':'))
        return mox_render_fail(r, "a conversion in a format is malformed");
    mox_tv field, text, v;
    MOX_TRY(mox_ts_part(r, s, begin, bang, &field));
    MOX_TRY(field_value(r, field.u.s, args, automatic, &v));
    if (bang < end && s->p[bang] == '!') {
        mox_tb converted = {0};
        if (s->p[bang + 1] != 's' && s->p[bang + 1] != 'r')
            return mox_render_fail(r, "only !s and !r are known in a format");
        MOX_TRY(s->p[bang + 1] == 's' ? mox_tb_str(r, &converted, &v) : mox_tb_repr(r, &converted, &v));
        MOX_TRY(mox_tb_done(r, &converted, &v));
    }
    MOX_TRY(mox_ts_part(r, s, colon < end ? colon + 1 : end, end, &text));
    return put_braces(r, b, text.u.s, &v);
}

mox_status mox_format_braces(mox_render *r, const mox_ts *s, const mox_targs *args, mox_tv *out)
{
    mox_tb b = {.markup = s->markup};
    int64_t automatic = 0;
    size_t done = 0;
    MOX_TRY(mox_render_bytes(r, s->n));
    for (size_t i = 0; i < s->n; i++) {
        if (s->p[i] != '{' && s->p[i] != '}') continue;
        MOX_TRY(mox_tb_part(r, &b, s, done, i));
        if (i + 1 < s->n && s->p[i + 1] == s->p[i]) {
            MOX_TRY(mox_tb_part(r, &b, s, i, i + 1));
            done = ++i + 1;
            continue;
        }
        size_t end = i + 1;
        while (end < s->n && s->p[end] != '}' && s->p[end] != '{') end++;
        if (s->p[i] == '}' || end == s->n || s->p[end] == '{')
            return mox_render_fail(r, "a brace in a format stands alone");
        MOX_TRY(put_field(r, &b, s, i + 1, end, args, &automatic));
        i = end;
        done = end + 1;
    }
    MOX_TRY(mox_tb_part(r, &b, s, done, s->n));
    return mox_tb_done(r, &b, out);
}

/* ---- times ------------------------------------------------------------------------------------------------------------ */

mox_status mox_format_time(mox_render *r, const mox_ts *format, mox_tv *out)
{
    int64_t seconds;
    int32_t offset;
    struct tm tm = {0};
    mox_tb b = {0};
    MOX_TRY(mox_render_bytes(r, format->n));
    mox_render_time(r, &seconds, &offset);
    const time_t local = (time_t)(seconds + offset);
    if (!gmtime_r(&local, &tm)) return mox_render_fail(r, "the time is too far away");
    for (size_t i = 0; i < format->n; i++) {
        char conversion[4] = "%", text[128];
        size_t n = 1, begin = i;
        if (format->p[i] == '%' && i + 1 < format->n && strchr("-_0^#", format->p[i + 1]))
            conversion[n++] = format->p[++i];
        const char c = format->p[begin] == '%' && i + 1 < format->n ? format->p[++i] : 0;
        conversion[n] = c;
        conversion[n + 1] = '\0';
        if (c == 'f') {
            MOX_TRY(mox_tb_text(r, &b, "000000"));
        } else if (c == 'z' || c == 'Z') {
            continue; /* as of a Python time without a zone */
        } else if (c && strchr("aAbBcCdDeFgGhHIjklmMnpPrRStTuUVwWxXyY%", c)) {
            MOX_TRY(mox_tb_bytes(r, &b, text, strftime(text, sizeof text, conversion, &tm), false));
        } else {
            MOX_TRY(mox_tb_part(r, &b, format, begin, i + 1));
        }
    }
    return mox_tb_done(r, &b, out);
}
