/* text/template_filters.c -- filters on single values: text, numbers, JSON.  Those on
 * sequences are in template_sequence.c. */
#include "text/template_internal.h"
#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arguments ------------------------------------------------------------------------------------- */

mox_status mox_arg_string(mox_render *r, const mox_tv *arg, const char *what, const mox_ts **out)
{
    if (arg->type == MOX_TV_UNDEFINED) return mox_tv_fail_undefined(r, arg);
    if (arg->type != MOX_TV_STRING) return mox_render_fail(r, "%s must be a str, not %s", what, mox_tv_type_name(arg));
    *out = arg->u.s;
    return MOX_OK;
}

mox_status mox_arg_int(mox_render *r, const mox_tv *arg, int64_t otherwise, const char *what, int64_t *out)
{
    *out = otherwise;
    if (arg->type == MOX_TV_ABSENT || mox_tv_get_int(arg, out)) return MOX_OK;
    return mox_render_fail(r, "%s must be an integer, not %s", what, mox_tv_type_name(arg));
}

mox_status mox_arg_truth(mox_render *r, const mox_tv *arg, bool otherwise, bool *out)
{
    *out = otherwise;
    return arg->type == MOX_TV_ABSENT ? MOX_OK : mox_tv_truth(r, arg, out);
}

/* ---- text -------------------------------------------------------------------------------------------- */

static mox_status filter_case(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = NULL;
    MOX_TRY(mox_tv_str(r, &c->self, &s));
    return mox_ts_case(r, s, c->code, out);
}

/* Every character behind a blank, dash or opening bracket begins a word. */
static mox_status filter_title(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = NULL;
    mox_tb b = {0};
    bool begins = true;
    size_t length;
    MOX_TRY(mox_tv_str(r, &c->self, &s));
    for (size_t i = 0; i < s->n; i += length) {
        uint32_t cp;
        mox_tv one, changed;
        length = mox_utf8_next((const unsigned char *)s->p + i, &cp);
        MOX_TRY(mox_ts_part(r, s, i, i + length, &one));
        MOX_TRY(mox_ts_case(r, one.u.s, begins ? MOX_CASE_UPPER : MOX_CASE_LOWER, &changed));
        MOX_TRY(mox_tb_string(r, &b, changed.u.s));
        begins = mox_char_is_space(cp) || (cp < 0x80 && cp > 0 && strchr("-({[<", (int)cp));
    }
    return mox_tb_done(r, &b, out);
}

/* A method of str as a filter: its value is made a string first. */
static mox_status as_method(mox_render *r, const mox_tcall *c, const char *name, mox_tv *out)
{
    const mox_ts *s = NULL;
    MOX_TRY(mox_tv_str(r, &c->self, &s));
    const mox_tv self = mox_tv_string(s);
    return mox_fn_apply(r, mox_string_method_find(name, strlen(name)), &self, c->raw, out);
}

static mox_status filter_trim(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    mox_targs args = {.pos = c->arg, .n_pos = c->arg[0].type != MOX_TV_ABSENT};
    mox_tcall call = *c;
    call.raw = &args;
    return as_method(r, &call, "strip", out);
}

/* Arguments are made strings; the result is never markup. */
static mox_status filter_replace(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    mox_tv text[3];
    mox_ts plain[3];
    const mox_tv *from[3] = {&c->self, &c->arg[0], &c->arg[1]};
    for (int i = 0; i < 3; i++) {
        const mox_ts *s;
        MOX_TRY(mox_tv_str(r, from[i], &s));
        plain[i] = *s;
        plain[i].markup = false;
        text[i] = mox_tv_string(&plain[i]);
    }
    mox_tv args[3] = {text[1], text[2], c->arg[2]};
    const bool count = c->arg[2].type != MOX_TV_ABSENT && c->arg[2].type != MOX_TV_NONE;
    const mox_targs all = {.pos = args, .n_pos = count ? 3 : 2};
    return mox_fn_apply(r, mox_string_method_find("replace", 7), &text[0], &all, out); /* always a new string */
}

static mox_status filter_string(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = NULL;
    MOX_TRY(mox_tv_str(r, &c->self, &s));
    *out = mox_tv_string(s);
    return MOX_OK;
}

static mox_status filter_safe(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    mox_tb b = {.markup = true};
    MOX_TRY(mox_tb_str(r, &b, &c->self));
    return mox_tb_done(r, &b, out);
}

static mox_status filter_escape(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = NULL;
    mox_tb b = {.markup = true};
    MOX_TRY(mox_tv_str(r, &c->self, &s));
    MOX_TRY(s->markup ? mox_tb_string(r, &b, s) : mox_tb_escaped(r, &b, s));
    return mox_tb_done(r, &b, out);
}

static mox_status filter_indent(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = NULL, *indent = NULL;
    int64_t width;
    bool first, blank;
    mox_tv lines;
    MOX_TRY(mox_arg_string(r, &c->self, "what is indented", &s));
    mox_tb b = {.markup = s->markup}, blanks = {0};
    MOX_TRY(mox_arg_truth(r, &c->arg[1], false, &first));
    MOX_TRY(mox_arg_truth(r, &c->arg[2], false, &blank));
    if (c->arg[0].type == MOX_TV_STRING) {
        indent = c->arg[0].u.s;
    } else {
        MOX_TRY(mox_arg_int(r, &c->arg[0], 4, "the width", &width));
        MOX_TRY(mox_tb_repeat(r, &blanks, " ", width));
        MOX_TRY(mox_tb_done(r, &blanks, &lines));
        indent = lines.u.s;
    }
    const mox_targs none = {0};
    mox_tb text = {.markup = s->markup};
    MOX_TRY(mox_tb_string(r, &text, s));
    MOX_TRY(mox_tb_text(r, &text, "\n"));
    MOX_TRY(mox_tb_done(r, &text, &lines));
    const mox_tv self = lines;
    MOX_TRY(mox_fn_apply(r, mox_string_method_find("splitlines", 10), &self, &none, &lines));
    if (first) MOX_TRY(mox_tb_string(r, &b, indent));
    for (size_t i = 0; i < lines.u.list->n; i++) {
        const mox_ts *line = lines.u.list->item[i].u.s;
        if (i > 0) MOX_TRY(mox_tb_text(r, &b, "\n"));
        if (i > 0 && (blank || line->n > 0)) MOX_TRY(mox_tb_string(r, &b, indent));
        MOX_TRY(mox_tb_string(r, &b, line));
    }
    return mox_tb_done(r, &b, out);
}

static mox_status filter_format(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_targs *a = c->raw;
    const mox_ts *s = NULL;
    mox_tv values;
    if (a->n_pos > 0 && a->n_kw > 0)
        return mox_render_fail(r, "format takes arguments with names or without, not both");
    MOX_TRY(mox_tv_str(r, &c->self, &s));
    if (a->n_kw > 0) {
        MOX_TRY(mox_tv_dict(r, &values));
        for (size_t i = 0; i < a->n_kw; i++) {
            const mox_tv key = mox_tv_string(a->kw_name[i]);
            MOX_TRY(mox_tdict_set(r, values.u.dict, &key, &a->kw[i]));
        }
    } else {
        MOX_TRY(mox_tv_list(r, MOX_TV_TUPLE, a->n_pos, &values));
        for (size_t i = 0; i < a->n_pos; i++) MOX_TRY(mox_tlist_push(r, values.u.list, &a->pos[i]));
    }
    return mox_format_percent(r, s, &values, out);
}

static mox_status filter_wordcount(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = NULL;
    int64_t n = 0;
    bool inside = false;
    size_t length;
    MOX_TRY(mox_tv_str(r, &c->self, &s));
    MOX_TRY(mox_render_bytes(r, s->n));
    for (size_t i = 0; i < s->n; i += length) {
        uint32_t cp;
        length = mox_utf8_next((const unsigned char *)s->p + i, &cp);
        const bool word = mox_char_is_word(cp);
        n += word && !inside;
        inside = word;
    }
    *out = mox_tv_int(n);
    return MOX_OK;
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static mox_status json_indent(mox_render *r, const mox_tv *arg, const mox_ts **out)
{
    int64_t width;
    mox_tb b = {0};
    mox_tv text;
    *out = NULL;
    if (arg->type == MOX_TV_ABSENT || arg->type == MOX_TV_NONE) return MOX_OK;
    if (arg->type == MOX_TV_STRING) {
        *out = arg->u.s;
        return MOX_OK;
    }
    MOX_TRY(mox_arg_int(r, arg, 0, "indent", &width));
    MOX_TRY(mox_tb_repeat(r, &b, " ", width));
    MOX_TRY(mox_tb_done(r, &b, &text));
    *out = text.u.s;
    return MOX_OK;
}

static mox_status filter_tojson(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    static const mox_ts comma = {.p = ",", .n = 1}, comma_blank = {.p = ", ", .n = 2}, colon = {.p = ": ", .n = 2};
    mox_tjson how = {.key_separator = &colon};
    mox_tb b = {0};
    const mox_tv *separators = &c->arg[2];
    MOX_TRY(mox_arg_truth(r, &c->arg[0], false, &how.ascii));
    MOX_TRY(json_indent(r, &c->arg[1], &how.indent));
    MOX_TRY(mox_arg_truth(r, &c->arg[3], false, &how.sort_keys));
    how.item_separator = how.indent ? &comma : &comma_blank;
    if (separators->type != MOX_TV_ABSENT && separators->type != MOX_TV_NONE) {
        if ((separators->type != MOX_TV_TUPLE && separators->type != MOX_TV_LIST) || separators->u.list->n != 2) {
            return mox_render_fail(r, "separators must be two strings");
        }
        MOX_TRY(mox_arg_string(r, &separators->u.list->item[0], "a separator", &how.item_separator));
        MOX_TRY(mox_arg_string(r, &separators->u.list->item[1], "a separator", &how.key_separator));
    }
    MOX_TRY(mox_tb_json(r, &b, &c->self, &how));
    return mox_tb_done(r, &b, out);
}

/* What comes out is as trusted as what went in; half of either is not trusted. */
static mox_status filter_from_json(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s = NULL;
    mox_err why = {0};
    MOX_TRY(mox_arg_string(r, &c->self, "JSON", &s));
    MOX_TRY(mox_tv_pay(r, &c->self));
    const mox_status status = mox_tv_from_json(r, "from_json", s->p, s->n, s->user || s->runs, out, &why);
    if (status == MOX_E_FORMAT && why.status == MOX_E_FORMAT) return mox_render_fail(r, "%s", why.msg);
    if (status != MOX_OK && why.status == status) *r->err = why;
    return status;
}

/* ---- numbers -------------------------------------------------------------------------------------------- */

static mox_status filter_abs(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_tv *v = &c->self;
    if (v->type == MOX_TV_UNDEFINED) return mox_tv_fail_undefined(r, v);
    if (!mox_tv_is_number(v)) return mox_render_fail(r, "abs of a %s", mox_tv_type_name(v));
    *out = v->type == MOX_TV_BOOL ? mox_tv_int(v->u.b) : *v;
    if (v->type == MOX_TV_BIG && v->u.big[0] == '-') out->u.big++;
    if (v->type == MOX_TV_FLOAT) out->u.f = fabs(v->u.f);
    return v->type == MOX_TV_INT && v->u.i < 0 ? mox_tv_negate(r, v, out) : MOX_OK;
}

/* Python's int() of text: blanks around it, a sign, digits with single underscores. */
static bool parse_int(const char *text, int base, int64_t *out)
{
    const bool negative = *text == '-';
    if (*text == '-' || *text == '+') text++;
    if (base == 16 && text[0] == '0' && (text[1] | 0x20) == 'x') text += 2;
    if (base == 8 && text[0] == '0' && (text[1] | 0x20) == 'o') text += 2;
    if (base == 2 && text[0] == '0' && (text[1] | 0x20) == 'b') text += 2;
    int64_t value = 0;
    bool digit_before = false;
    for (; *text; text++) {
        if (*text == '_' && digit_before && text[1] && text[1] != '_') {
            digit_before = false;
            continue;
        }
        const char c = (char)(*text | 0x20);
        const int digit = *text >= '0' && *text <= '9' ? *text - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
        if (digit >= base || __builtin_mul_overflow(value, base, &value) ||
            __builtin_sub_overflow(value, digit, &value))
            return false;
        digit_before = true;
    }
    if (!digit_before || (!negative && value == INT64_MIN)) return false;
    *out = negative ? value : -value;
    return true;
}

/* The text of s without blanks around it, terminated; NULL when it is too long for a number. */
static const char *number_text(const mox_ts *s, char out[128])
{
    const char *p = s->p, *end = s->p + s->n;
    while (p < end && mox_char_is_space((unsigned char)*p)) p++;
    while (end > p && mox_char_is_space((unsigned char)end[-1])) end--;
    if (end - p >= 128 || memchr(p, '\0', (size_t)(end - p))) return NULL;
    memcpy(out, p, (size_t)(end - p));
    out[end - p] = '\0';
    return out;
}

static bool parse_float(const mox_ts *s, double *out)
{
    char text[128];
    if (!number_text(s, text) || !*text || strpbrk(text, "xXpP(")) return false; /* C knows more forms */
    char *end;
    *out = strtod(text, &end);
    return *end == '\0';
}

/* Toward zero; what is not finite or does not fit has no integer. */
static bool float_to_int(double f, int64_t *out)
{
    if (!(f > -9.2e18 && f < 9.2e18)) return false;
    *out = (int64_t)f;
    return true;
}

static mox_status filter_int(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_tv *v = &c->self;
    int64_t base, value = 0;
    double f;
    char text[128];
    if (v->type == MOX_TV_UNDEFINED) return mox_tv_fail_undefined(r, v);
    MOX_TRY(mox_arg_int(r, &c->arg[1], 10, "the base", &base));
    if (base < 2 || base > 36) return mox_render_fail(r, "the base must be between 2 and 36");
    MOX_TRY(mox_tv_pay(r, v));
    *out = c->arg[0].type == MOX_TV_ABSENT ? mox_tv_int(0) : c->arg[0];
    if (v->type == MOX_TV_BIG) {
        *out = *v;
    } else if (mox_tv_get_int(v, &value) || (v->type == MOX_TV_FLOAT && float_to_int(v->u.f, &value))) {
        *out = mox_tv_int(value);
    } else if (v->type == MOX_TV_STRING && number_text(v->u.s, text) && parse_int(text, (int)base, &value)) {
        *out = mox_tv_int(value);
    } else if (v->type == MOX_TV_STRING && parse_float(v->u.s, &f) && float_to_int(f, &value)) {
        *out = mox_tv_int(value);
    }
    return MOX_OK;
}

static mox_status filter_float(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_tv *v = &c->self;
    double f;
    if (v->type == MOX_TV_UNDEFINED) return mox_tv_fail_undefined(r, v);
    MOX_TRY(mox_tv_pay(r, v));
    *out = c->arg[0].type == MOX_TV_ABSENT ? mox_tv_float(0) : c->arg[0];
    if (mox_tv_is_number(v)) *out = mox_tv_float(mox_tv_double(v));
    if (v->type == MOX_TV_STRING && parse_float(v->u.s, &f)) *out = mox_tv_float(f);
    return MOX_OK;
}

/* Half to even of the exact value: printing with that many decimals does just that. */
static double round_half_even(double f, int64_t precision)
{
    char text[400];
    if (!isfinite(f) || precision > 300) return f;
    if (precision < 0) {
        if (precision < -308) return 0 * f;
        const double unit = pow(10, (double)-precision);
        return nearbyint(f / unit) * unit;
    }
    (void)snprintf(text, sizeof text, "%.*f", (int)precision, f);
    return strtod(text, NULL);
}

static mox_status filter_round(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_tv *v = &c->self;
    int64_t precision, i;
    const mox_ts *method = NULL;
    if (v->type == MOX_TV_UNDEFINED) return mox_tv_fail_undefined(r, v);
    if (!mox_tv_is_number(v)) return mox_render_fail(r, "round of a %s", mox_tv_type_name(v));
    MOX_TRY(mox_arg_int(r, &c->arg[0], 0, "the precision", &precision));
    if (c->arg[1].type != MOX_TV_ABSENT) MOX_TRY(mox_arg_string(r, &c->arg[1], "the method", &method));
    if (!method || mox_ts_is(method, "common")) {
        if (v->type == MOX_TV_FLOAT) {
            *out = mox_tv_float(round_half_even(v->u.f, precision));
            return MOX_OK;
        }
        *out = mox_tv_get_int(v, &i) ? mox_tv_int(i) : *v;
        if (precision >= 0) return MOX_OK;
        return mox_render_fail(r, "an integer cannot be rounded to less than ones");
    }
    const bool up = mox_ts_is(method, "ceil");
    if (!up && !mox_ts_is(method, "floor")) return mox_render_fail(r, "the method must be common, ceil or floor");
    MOX_TRY(mox_tv_pay(r, v));
    const double unit = pow(10, (double)precision), f = mox_tv_double(v) * unit;
    *out = mox_tv_float((up ? ceil(f) : floor(f)) / unit);
    return isfinite(out->u.f) ? MOX_OK : mox_render_fail(r, "the result is too large");
}

/* ---- any value -------------------------------------------------------------------------------------------- */

static mox_status filter_default(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    bool boolean, truth = true;
    MOX_TRY(mox_arg_truth(r, &c->arg[1], false, &boolean));
    if (boolean) MOX_TRY(mox_tv_truth(r, &c->self, &truth));
    *out = c->self;
    if (c->self.type != MOX_TV_UNDEFINED && truth) return MOX_OK;
    if (c->arg[0].type == MOX_TV_ABSENT) return mox_tv_text(r, "", out);
    *out = c->arg[0];
    return MOX_OK;
}

/* Only true attributes: an item of that name is none. */
static mox_status filter_attr(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *name = NULL;
    MOX_TRY(mox_arg_string(r, &c->arg[0], "the name of an attribute", &name));
    if (c->self.type == MOX_TV_DICT && !mox_container_method_find(MOX_TV_DICT, name->p, name->n)) {
        return mox_tv_missing(r, MOX_TV_DICT, &c->arg[0], out);
    }
    return mox_tv_attr(r, &c->self, name, out);
}

const mox_tfn *mox_filter_find(const char *name, size_t n)
{
    static const mox_tfn filters[] = {
        {"abs", filter_abs, "", 0, 0},
        {"attr", filter_attr, "name", 1, 0},
        {"capitalize", filter_case, "", 0, MOX_CASE_CAPITALIZE},
        {"d", filter_default, "default_value boolean", 0, 0},
        {"default", filter_default, "default_value boolean", 0, 0},
        {"e", filter_escape, "", 0, 0},
        {"escape", filter_escape, "", 0, 0},
        {"float", filter_float, "default", 0, 0},
        {"format", filter_format, "*", 0, 0},
        {"from_json", filter_from_json, "", 0, 0},
        {"indent", filter_indent, "width first blank", 0, 0},
        {"int", filter_int, "default base", 0, 0},
        {"lower", filter_case, "", 0, MOX_CASE_LOWER},
        {"replace", filter_replace, "old new count", 2, 0},
        {"round", filter_round, "precision method", 0, 0},
        {"safe", filter_safe, "", 0, 0},
        {"string", filter_string, "", 0, 0},
        {"title", filter_title, "", 0, 0},
        {"tojson", filter_tojson, "ensure_ascii indent separators sort_keys", 0, 0},
        {"trim", filter_trim, "chars", 0, 0},
        {"upper", filter_case, "", 0, MOX_CASE_UPPER},
        {"wordcount", filter_wordcount, "", 0, 0},
    };
    const mox_tfn *fn = mox_fn_find(filters, sizeof filters / sizeof *filters, name, n);
    return fn ? fn : mox_sequence_filter_find(name, n);
}
