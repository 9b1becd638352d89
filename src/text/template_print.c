/* text/template_print.c -- values as text: str(), repr() and json.dumps().
 *
 * What is written around strings (quotes, brackets, digits) is ours and trusted; the
 * bytes of strings, and escapes that stand for them, keep their origin. */
#include "text/template_internal.h"
#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ------------------------------------------------------------------------------ */

/* The shortest digits that read back as f, laid out as Python does: an exponent below
 * 1e-4 and from 1e16 on, and always a sign that it is a float. */
mox_status mox_float_repr(mox_render *r, double f, char out[MOX_FLOAT_TEXT])
{
    enum { TRIES = 4096 }; /* bytes of a string that would take as long as 17 times printing and reading */
    char digits[MOX_FLOAT_TEXT];
    MOX_TRY(mox_render_bytes(r, TRIES));
    if (isnan(f) || isinf(f)) {
        (void)snprintf(out, MOX_FLOAT_TEXT, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return MOX_OK;
    }
    int precision = 0;
    do {
        (void)snprintf(digits, sizeof digits, "%.*e", precision, f);
    } while (strtod(digits, NULL) != f && ++precision < 17);
    const int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent >= -4 && exponent < 16) {
        const int decimals = precision > exponent ? precision - exponent : 0;
        (void)snprintf(out, MOX_FLOAT_TEXT, "%.*f%s", decimals, f, decimals == 0 ? ".0" : "");
        return MOX_OK;
    }
    (void)snprintf(out, MOX_FLOAT_TEXT, "%s", digits); /* C writes exponents the same way */
    return MOX_OK;
}

static mox_status add_int(mox_render *r, mox_tb *b, int64_t i)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%lld", (long long)i);
    return mox_tb_text(r, b, text);
}

static mox_status add_float(mox_render *r, mox_tb *b, double f)
{
    char text[MOX_FLOAT_TEXT];
    MOX_TRY(mox_float_repr(r, f, text));
    return mox_tb_text(r, b, text);
}

/* ---- repr ----------------------------------------------------------------------------------- */

/* How repr writes a character that cannot stand for itself; 0 when it can. */
static int repr_escape(uint32_t cp, int quote, char *out)
{
    if (cp == '\n' || cp == '\r' || cp == '\t') {
        return snprintf(out, 16, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
    }
    if (cp == '\\' || cp == (unsigned char)quote) return snprintf(out, 16, "\\%c", (int)cp);
    if (mox_char_is_printable(cp)) return 0;
    return snprintf(out, 16, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
}

/* Writes what stands for a character that cannot stand for itself, and how long that is; 0: it can. */
typedef int escape_fn(uint32_t cp, int how, char *out);

/* The string with escapes in it, which come from where the characters did. */
static mox_status escaped_string(mox_render *r, mox_tb *b, const mox_ts *s, const char *mark, escape_fn *escape_of, int how)
{
    size_t done = 0, length;
    MOX_TRY(mox_tb_text(r, b, mark));
    for (size_t i = 0; i < s->n; i += length) {
        uint32_t cp;
        char escape[16];
        bool user;
        length = mox_utf8_next((const unsigned char *)s->p + i, &cp);
        const int n = escape_of(cp, how, escape);
        if (n == 0) continue;
        (void)mox_ts_stretch(s, i, &user);
        MOX_TRY(mox_tb_part(r, b, s, done, i));
        MOX_TRY(mox_tb_bytes(r, b, escape, (size_t)n, user));
        done = i + length;
    }
    MOX_TRY(mox_tb_part(r, b, s, done, s->n));
    return mox_tb_text(r, b, mark);
}

static mox_status repr_string(mox_render *r, mox_tb *b, const mox_ts *s)
{
    const bool single = memchr(s->p, '\'', s->n) != NULL, twice = memchr(s->p, '"', s->n) != NULL;
    const bool doubled = single && !twice;
    return escaped_string(r, b, s, doubled ? "\"" : "'", repr_escape, doubled ? '"' : '\'');
}

static mox_status repr_list(mox_render *r, mox_tb *b, const mox_tlist *l, bool tuple)
{
    MOX_TRY(mox_tb_text(r, b, tuple ? "(" : "["));
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0) MOX_TRY(mox_tb_text(r, b, ", "));
        MOX_TRY(mox_tb_repr(r, b, &l->item[i]));
    }
    return mox_tb_text(r, b, !tuple ? "]" : l->n == 1 ? ",)" : ")");
}

static mox_status repr_dict(mox_render *r, mox_tb *b, const mox_tdict *d)
{
    MOX_TRY(mox_tb_text(r, b, "{"));
    for (size_t i = 0; i < d->n; i++) {
        if (i > 0) MOX_TRY(mox_tb_text(r, b, ", "));
        MOX_TRY(mox_tb_repr(r, b, &d->key[i]));
        MOX_TRY(mox_tb_text(r, b, ": "));
        MOX_TRY(mox_tb_repr(r, b, &d->value[i]));
    }
    return mox_tb_text(r, b, "}");
}

static mox_status repr_view(mox_render *r, mox_tb *b, const mox_tv *v)
{
    static const char *const names[] = {"dict_keys(", "dict_values(", "dict_items("};
    mox_tv list;
    MOX_TRY(mox_tv_to_list(r, v, &list));
    MOX_TRY(mox_tb_text(r, b, names[v->view]));
    MOX_TRY(repr_list(r, b, list.u.list, false));
    return mox_tb_text(r, b, ")");
}

static mox_status repr_range(mox_render *r, mox_tb *b, const mox_trange *g)
{
    MOX_TRY(mox_tb_text(r, b, "range("));
    MOX_TRY(add_int(r, b, g->start));
    MOX_TRY(mox_tb_text(r, b, ", "));
    MOX_TRY(add_int(r, b, g->stop));
    if (g->step != 1) {
        MOX_TRY(mox_tb_text(r, b, ", "));
        MOX_TRY(add_int(r, b, g->step));
    }
    return mox_tb_text(r, b, ")");
}

static mox_status repr_other(mox_render *r, mox_tb *b, const mox_tv *v)
{
    switch (v->type) {
    case MOX_TV_NAMESPACE:
        MOX_TRY(mox_tb_text(r, b, "<Namespace "));
        MOX_TRY(repr_dict(r, b, v->u.dict));
        return mox_tb_text(r, b, ">");
    case MOX_TV_MACRO:
        MOX_TRY(mox_tb_text(r, b, "<Macro "));
        MOX_TRY(repr_string(r, b, v->u.macro->name));
        return mox_tb_text(r, b, ">");
    default: return mox_render_fail(r, "a %s cannot be printed", mox_tv_type_name(v));
    }
}

mox_status mox_tb_repr(mox_render *r, mox_tb *b, const mox_tv *v)
{
    MOX_TRY(mox_render_enter(r));
    switch (v->type) {
    case MOX_TV_UNDEFINED: MOX_TRY(mox_tb_text(r, b, "Undefined")); break;
    case MOX_TV_NONE: MOX_TRY(mox_tb_text(r, b, "None")); break;
    case MOX_TV_BOOL: MOX_TRY(mox_tb_text(r, b, v->u.b ? "True" : "False")); break;
    case MOX_TV_INT: MOX_TRY(add_int(r, b, v->u.i)); break;
    case MOX_TV_BIG: MOX_TRY(mox_tb_text(r, b, v->u.big)); break;
    case MOX_TV_FLOAT: MOX_TRY(add_float(r, b, v->u.f)); break;
    case MOX_TV_STRING:
        if (v->u.s->markup) MOX_TRY(mox_tb_text(r, b, "Markup("));
        MOX_TRY(repr_string(r, b, v->u.s));
        if (v->u.s->markup) MOX_TRY(mox_tb_text(r, b, ")"));
        break;
    case MOX_TV_LIST:
    case MOX_TV_TUPLE: MOX_TRY(repr_list(r, b, v->u.list, v->type == MOX_TV_TUPLE)); break;
    case MOX_TV_DICT: MOX_TRY(repr_dict(r, b, v->u.dict)); break;
    case MOX_TV_RANGE: MOX_TRY(repr_range(r, b, v->u.range)); break;
    case MOX_TV_VIEW: MOX_TRY(repr_view(r, b, v)); break;
    default: MOX_TRY(repr_other(r, b, v));
    }
    mox_render_leave(r);
    return MOX_OK;
}

mox_status mox_tb_str(mox_render *r, mox_tb *b, const mox_tv *v)
{
    if (v->type == MOX_TV_STRING) return mox_tb_string(r, b, v->u.s);
    return v->type == MOX_TV_UNDEFINED ? MOX_OK : mox_tb_repr(r, b, v);
}

mox_status mox_tv_str(mox_render *r, const mox_tv *v, const mox_ts **out)
{
    if (v->type == MOX_TV_STRING) {
        *out = v->u.s;
        return MOX_OK;
    }
    mox_tb b = {0};
    mox_tv text;
    MOX_TRY(mox_tb_str(r, &b, v));
    MOX_TRY(mox_tb_done(r, &b, &text));
    *out = text.u.s;
    return MOX_OK;
}

/* ---- JSON --------------------------------------------------------------------------------------- */

static int json_escape(uint32_t cp, int ascii, char *out)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *at = cp > 0 && cp < 0x80 ? strchr(from, (int)cp) : NULL;
    if (at) return snprintf(out, 16, "\\%c", to[at - from]);
    if (cp >= 0x20 && (!ascii || cp < 0x7F)) return 0;
    if (cp < 0x10000) return snprintf(out, 16, "\\u%04x", cp);
    return snprintf(out, 16, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10), 0xDC00 + ((cp - 0x10000) & 0x3FF));
}

static mox_status json_string(mox_render *r, mox_tb *b, const mox_ts *s, bool ascii)
{
    return escaped_string(r, b, s, "\"", json_escape, ascii);
}

static mox_status json_value(mox_render *r, mox_tb *b, const mox_tv *v, const mox_tjson *how, int level);

static mox_status json_line(mox_render *r, mox_tb *b, const mox_tjson *how, int level)
{
    if (!how->indent) return MOX_OK;
    MOX_TRY(mox_tb_text(r, b, "\n"));
    for (int i = 0; i < level; i++) MOX_TRY(mox_tb_string(r, b, how->indent));
    return MOX_OK;
}

static mox_status json_float(mox_render *r, mox_tb *b, double f)
{
    if (isnan(f) || isinf(f)) return mox_tb_text(r, b, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
    return add_float(r, b, f);
}

static mox_status json_scalar(mox_render *r, mox_tb *b, const mox_tv *v, bool ascii)
{
    switch (v->type) {
    case MOX_TV_NONE: return mox_tb_text(r, b, "null");
    case MOX_TV_BOOL: return mox_tb_text(r, b, v->u.b ? "true" : "false");
    case MOX_TV_INT: return add_int(r, b, v->u.i);
    case MOX_TV_BIG: return mox_tb_text(r, b, v->u.big);
    case MOX_TV_FLOAT: return json_float(r, b, v->u.f);
    case MOX_TV_STRING: return json_string(r, b, v->u.s, ascii);
    default: return mox_render_fail(r, "a %s has no form in JSON", mox_tv_type_name(v));
    }
}

static mox_status json_list(mox_render *r, mox_tb *b, const mox_tlist *l, const mox_tjson *how, int level)
{
    if (l->n == 0) return mox_tb_text(r, b, "[]");
    MOX_TRY(mox_tb_text(r, b, "["));
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0) MOX_TRY(mox_tb_string(r, b, how->item_separator));
        MOX_TRY(json_line(r, b, how, level + 1));
        MOX_TRY(json_value(r, b, &l->item[i], how, level + 1));
    }
    MOX_TRY(json_line(r, b, how, level));
    return mox_tb_text(r, b, "]");
}

/* Keys are strings in JSON; numbers and words go into quotes. */
static mox_status json_key(mox_render *r, mox_tb *b, const mox_tv *key, const mox_tjson *how)
{
    const bool quotes = key->type != MOX_TV_STRING;
    if (quotes && key->type > MOX_TV_FLOAT) return mox_render_fail(r, "a %s is no key in JSON", mox_tv_type_name(key));
    if (quotes) MOX_TRY(mox_tb_text(r, b, "\""));
    MOX_TRY(json_scalar(r, b, key, how->ascii));
    return quotes ? mox_tb_text(r, b, "\"") : MOX_OK;
}

static mox_status json_dict(mox_render *r, mox_tb *b, const mox_tdict *d, const mox_tjson *how, int level)
{
    const size_t *order = NULL;
    if (d->n == 0) return mox_tb_text(r, b, "{}");
    if (how->sort_keys) MOX_TRY(mox_sorted(r, d->key, d->n, false, &order));
    MOX_TRY(mox_tb_text(r, b, "{"));
    for (size_t i = 0; i < d->n; i++) {
        const size_t at = order ? order[i] : i;
        if (i > 0) MOX_TRY(mox_tb_string(r, b, how->item_separator));
        MOX_TRY(json_line(r, b, how, level + 1));
        MOX_TRY(json_key(r, b, &d->key[at], how));
        MOX_TRY(mox_tb_string(r, b, how->key_separator));
        MOX_TRY(json_value(r, b, &d->value[at], how, level + 1));
    }
    MOX_TRY(json_line(r, b, how, level));
    return mox_tb_text(r, b, "}");
}

static mox_status json_value(mox_render *r, mox_tb *b, const mox_tv *v, const mox_tjson *how, int level)
{
    MOX_TRY(mox_render_enter(r));
    if (v->type == MOX_TV_LIST || v->type == MOX_TV_TUPLE) {
        MOX_TRY(json_list(r, b, v->u.list, how, level));
    } else if (v->type == MOX_TV_DICT) {
        MOX_TRY(json_dict(r, b, v->u.dict, how, level));
    } else {
        MOX_TRY(json_scalar(r, b, v, how->ascii));
    }
    mox_render_leave(r);
    return MOX_OK;
}

mox_status mox_tb_json(mox_render *r, mox_tb *b, const mox_tv *v, const mox_tjson *how)
{
    return json_value(r, b, v, how, 0);
}
