/* text/template_ops.c -- operators, attributes, items and slices.
 *
 * Attributes are Jinja's: x.name is an attribute of the value if it has one, else the
 * item of that key; x['name'] the other way round.  What is not there is undefined,
 * and only using that fails. */
#include "text/template_internal.h"
#include "base/utf8.h"

#include <math.h>
#include <string.h>

/* ---- arithmetic ------------------------------------------------------------------------------ */

static mox_status fail_types(mox_render *r, const char *op, const mox_tv *a, const mox_tv *b)
{
    return mox_render_fail(r, "'%s' is not possible between %s and %s", op, mox_tv_type_name(a), mox_tv_type_name(b));
}

static mox_status too_large(mox_render *r)
{
    return mox_render_fail(r, "integers beyond 64 bits cannot be computed with");
}

/* Toward minus infinity, as Python divides. */
static mox_status divide_ints(mox_render *r, int64_t a, int64_t b, bool remainder, mox_tv *out)
{
    if (b == 0) return mox_render_fail(r, "division by zero");
    if (b == -1) {
        if (a == INT64_MIN && !remainder) return too_large(r);
        *out = mox_tv_int(remainder ? 0 : -a);
        return MOX_OK;
    }
    int64_t quotient = a / b, rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        quotient--;
        rest += b;
    }
    *out = mox_tv_int(remainder ? rest : quotient);
    return MOX_OK;
}

static mox_status power_ints(mox_render *r, int64_t a, int64_t b, mox_tv *out)
{
    if (b < 0) {
        if (a == 0) return mox_render_fail(r, "zero to a negative power");
        *out = mox_tv_float(pow((double)a, (double)b));
        return MOX_OK;
    }
    int64_t value = 1;
    while (b > 0) {
        if ((b & 1) && __builtin_mul_overflow(value, a, &value)) return too_large(r);
        b >>= 1;
        if (b > 0 && __builtin_mul_overflow(a, a, &a)) return too_large(r);
    }
    *out = mox_tv_int(value);
    return MOX_OK;
}

static mox_status binary_ints(mox_render *r, int op, int64_t a, int64_t b, mox_tv *out)
{
    int64_t value = 0;
    bool overflow;
    switch (op) {
    case '+': overflow = __builtin_add_overflow(a, b, &value); break;
    case '-': overflow = __builtin_sub_overflow(a, b, &value); break;
    case '*': overflow = __builtin_mul_overflow(a, b, &value); break;
    case '/':
        if (b == 0) return mox_render_fail(r, "division by zero");
        *out = mox_tv_float((double)a / (double)b);
        return MOX_OK;
    case MOX_OP2('*', '*'): return power_ints(r, a, b, out);
    default: return divide_ints(r, a, b, op == '%', out);
    }
    *out = mox_tv_int(value);
    return overflow ? too_large(r) : MOX_OK;
}

static mox_status binary_floats(mox_render *r, int op, double a, double b, mox_tv *out)
{
    double value;
    if (b == 0 && (op == '/' || op == '%' || op == MOX_OP2('/', '/'))) return mox_render_fail(r, "division by zero");
    switch (op) {
    case '+': value = a + b; break;
    case '-': value = a - b; break;
    case '*': value = a * b; break;
    case '/': value = a / b; break;
    case MOX_OP2('*', '*'):
        if (a == 0 && b < 0) return mox_render_fail(r, "zero to a negative power");
        if (a < 0 && b != floor(b)) return mox_render_fail(r, "a negative number to a broken power");
        value = pow(a, b);
        if (isinf(value) && !isinf(a) && !isinf(b)) return mox_render_fail(r, "the result is too large");
        break;
    default: {
        double rest = fmod(a, b);
        double quotient = (a - rest) / b;
        if (rest != 0 && (rest < 0) != (b < 0)) {
            rest += b;
            quotient -= 1;
        } else if (rest == 0) {
            rest = copysign(0, b);
        }
        if (quotient != 0) {
            const double down = floor(quotient);
            quotient = quotient - down > 0.5 ? down + 1 : down;
        } else {
            quotient = copysign(0, a / b);
        }
        value = op == '%' ? rest : quotient;
    }
    }
    *out = mox_tv_float(value);
    return MOX_OK;
}

static mox_status add_strings(mox_render *r, const mox_ts *a, const mox_ts *b, mox_tv *out)
{
    mox_tb text = {.markup = a->markup || b->markup};
    if (a->markup != b->markup) {
        MOX_TRY(a->markup ? mox_tb_string(r, &text, a) : mox_tb_escaped(r, &text, a));
        MOX_TRY(b->markup ? mox_tb_string(r, &text, b) : mox_tb_escaped(r, &text, b));
        return mox_tb_done(r, &text, out);
    }
    MOX_TRY(mox_tb_string(r, &text, a));
    MOX_TRY(mox_tb_string(r, &text, b));
    return mox_tb_done(r, &text, out);
}

static mox_status add_lists(mox_render *r, const mox_tv *a, const mox_tv *b, mox_tv *out)
{
    MOX_TRY(mox_tv_list(r, a->type, a->u.list->n + b->u.list->n, out));
    for (size_t i = 0; i < a->u.list->n; i++) MOX_TRY(mox_tlist_push(r, out->u.list, &a->u.list->item[i]));
    for (size_t i = 0; i < b->u.list->n; i++) MOX_TRY(mox_tlist_push(r, out->u.list, &b->u.list->item[i]));
    return MOX_OK;
}

static mox_status repeat(mox_render *r, const mox_tv *v, int64_t times, mox_tv *out)
{
    if (v->type == MOX_TV_STRING) {
        mox_tb text = {.markup = v->u.s->markup};
        for (int64_t i = 0; i < times && v->u.s->n > 0; i++) MOX_TRY(mox_tb_string(r, &text, v->u.s));
        return mox_tb_done(r, &text, out);
    }
    const mox_tlist *l = v->u.list;
    MOX_TRY(mox_tv_list(r, v->type, l->n, out));
    for (int64_t i = 0; i < times && l->n > 0; i++) {
        for (size_t j = 0; j < l->n; j++) MOX_TRY(mox_tlist_push(r, out->u.list, &l->item[j]));
    }
    return MOX_OK;
}

static bool is_sequence(const mox_tv *v)
{
    return v->type == MOX_TV_STRING || v->type == MOX_TV_LIST || v->type == MOX_TV_TUPLE;
}

mox_status mox_tv_binary(mox_render *r, int op, const mox_tv *a, const mox_tv *b, mox_tv *out)
{
    int64_t i, j;
    const char name[] = {(char)(op > 255 ? op >> 8 : op), (char)(op > 255 ? op & 255 : 0), '\0'};
    if (a->type == MOX_TV_UNDEFINED) return mox_tv_fail_undefined(r, a);
    if (op == '%' && a->type == MOX_TV_STRING) return mox_format_percent(r, a->u.s, b, out);
    if (b->type == MOX_TV_UNDEFINED) return mox_tv_fail_undefined(r, b);
    if (mox_tv_is_number(a) && mox_tv_is_number(b)) {
        MOX_TRY(mox_tv_pay(r, a));
        MOX_TRY(mox_tv_pay(r, b));
        if (mox_tv_get_int(a, &i) && mox_tv_get_int(b, &j)) return binary_ints(r, op, i, j, out);
        if (a->type != MOX_TV_FLOAT && b->type != MOX_TV_FLOAT) return too_large(r);
        return binary_floats(r, op, mox_tv_double(a), mox_tv_double(b), out);
    }
    if (op == '+' && a->type == MOX_TV_STRING && b->type == MOX_TV_STRING) return add_strings(r, a->u.s, b->u.s, out);
    if (op == '+' && a->type == b->type && is_sequence(a)) return add_lists(r, a, b, out);
    if (op == '*' && is_sequence(a) && mox_tv_get_int(b, &i)) return repeat(r, a, i, out);
    if (op == '*' && is_sequence(b) && mox_tv_get_int(a, &i)) return repeat(r, b, i, out);
    return fail_types(r, name, a, b);
}

static mox_status negate_big(mox_render *r, const char *big, mox_tv *out)
{
    const size_t n = strlen(big);
    void *text;
    if (big[0] == '-') return mox_tv_number(r, big + 1, n - 1, out);
    MOX_TRY(mox_render_take(r, n + 1, 1, &text));
    ((char *)text)[0] = '-';
    memcpy((char *)text + 1, big, n);
    return mox_tv_number(r, text, n + 1, out);
}

mox_status mox_tv_negate(mox_render *r, const mox_tv *v, mox_tv *out)
{
    int64_t i;
    if (v->type == MOX_TV_UNDEFINED) return mox_tv_fail_undefined(r, v);
    if (v->type == MOX_TV_FLOAT) {
        *out = mox_tv_float(-v->u.f);
        return MOX_OK;
    }
    if (v->type == MOX_TV_BIG) return negate_big(r, v->u.big, out);
    if (!mox_tv_get_int(v, &i)) return mox_render_fail(r, "a %s has no sign", mox_tv_type_name(v));
    return binary_ints(r, '-', 0, i, out);
}

/* ---- attributes and items --------------------------------------------------------------------- */

/* Names that Python's containers have and that are not for templates: an item of that
 * name is not found by x.name either. */
static bool is_forbidden(mox_tv_type type, const mox_ts *name)
{
    static const char *const of_dict[] = {"clear", "fromkeys", "pop", "popitem", "setdefault", "update"};
    static const char *const of_list[] = {"clear", "extend", "insert", "remove", "reverse", "sort"};
    const char *const *names = type == MOX_TV_DICT ? of_dict : of_list;
    for (size_t i = 0; i < 6; i++) {
        if (mox_ts_is(name, names[i])) return true;
    }
    return false;
}

/* An attribute in the sense of Python; out is MOX_TV_ABSENT when there is none. */
static mox_status own_attribute(mox_render *r, const mox_tv *object, const mox_ts *name, mox_tv *out)
{
    const mox_tfn *fn = NULL;
    *out = (mox_tv){.type = MOX_TV_ABSENT};
    switch (object->type) {
    case MOX_TV_STRING: fn = mox_string_method_find(name->p, name->n); break;
    case MOX_TV_LIST:
    case MOX_TV_TUPLE:
    case MOX_TV_DICT: fn = mox_container_method_find(object->type, name->p, name->n); break;
    case MOX_TV_LOOP: return mox_loop_attr(r, object->u.loop, name, out);
    case MOX_TV_NAMESPACE: {
        const mox_tv key = mox_tv_string(name);
        size_t at;
        MOX_TRY(mox_tdict_find(r, object->u.dict, &key, &at));
        if (at < object->u.dict->n) *out = object->u.dict->value[at];
        return MOX_OK;
    }
    default: break;
    }
    if (fn) {
        void *method;
        MOX_TRY(mox_render_take(r, 1, sizeof(mox_tmethod), &method));
        *(mox_tmethod *)method = (mox_tmethod){*object, fn};
        *out = (mox_tv){.type = MOX_TV_METHOD, .u.method = method};
        return MOX_OK;
    }
    if ((object->type == MOX_TV_DICT || object->type == MOX_TV_LIST) && is_forbidden(object->type, name)) {
        return mox_tv_undefined(r, "templates may not use this attribute", out);
    }
    return MOX_OK;
}

/* object[key] in the sense of Python; MOX_TV_ABSENT when there is none. */
static mox_status own_item(mox_render *r, const mox_tv *object, const mox_tv *key, mox_tv *out)
{
    int64_t i;
    size_t n, at;
    *out = (mox_tv){.type = MOX_TV_ABSENT};
    if (object->type == MOX_TV_DICT) {
        MOX_TRY(mox_tdict_find(r, object->u.dict, key, &at));
        if (at < object->u.dict->n) *out = object->u.dict->value[at];
        return MOX_OK;
    }
    if ((!is_sequence(object) && object->type != MOX_TV_RANGE) || !mox_tv_get_int(key, &i)) return MOX_OK;
    if (object->type == MOX_TV_STRING) MOX_TRY(mox_render_bytes(r, object->u.s->n));
    (void)mox_tv_length(object, &n);
    if (i < 0) i += (int64_t)n;
    if (i < 0 || i >= (int64_t)n) return MOX_OK;
    if (object->type == MOX_TV_RANGE) {
        *out = mox_tv_int(object->u.range->start + i * object->u.range->step);
    } else if (object->type == MOX_TV_STRING) {
        const size_t begin = mox_ts_offset(object->u.s, (size_t)i);
        uint32_t cp;
        const size_t length = mox_utf8_next((const unsigned char *)object->u.s->p + begin, &cp);
        return mox_ts_part(r, object->u.s, begin, begin + length, out);
    } else {
        *out = object->u.list->item[i];
    }
    return MOX_OK;
}

mox_status mox_tv_attr(mox_render *r, const mox_tv *object, const mox_ts *name, mox_tv *out)
{
    const mox_tv key = mox_tv_string(name);
    if (object->type == MOX_TV_UNDEFINED) return mox_tv_fail_undefined(r, object);
    MOX_TRY(own_attribute(r, object, name, out));
    if (out->type == MOX_TV_ABSENT) MOX_TRY(own_item(r, object, &key, out));
    return out->type == MOX_TV_ABSENT ? mox_tv_missing(r, object->type, &key, out) : MOX_OK;
}

mox_status mox_tv_item(mox_render *r, const mox_tv *object, const mox_tv *key, mox_tv *out)
{
    if (object->type == MOX_TV_UNDEFINED) return mox_tv_fail_undefined(r, object);
    MOX_TRY(own_item(r, object, key, out));
    if (out->type == MOX_TV_ABSENT && key->type == MOX_TV_STRING) MOX_TRY(own_attribute(r, object, key->u.s, out));
    return out->type == MOX_TV_ABSENT ? mox_tv_missing(r, object->type, key, out) : MOX_OK;
}

/* ---- slices --------------------------------------------------------------------------------------- */

/* A bound as Python clips it: from low to high, counted from the end when negative. */
static mox_status clip(mox_render *r, const mox_tv *bound, int64_t n, int64_t low, int64_t high, int64_t otherwise,
                       int64_t *out)
{
    *out = otherwise;
    if (bound->type == MOX_TV_ABSENT || bound->type == MOX_TV_NONE) return MOX_OK;
    if (!mox_tv_get_int(bound, out))
        return mox_render_fail(r, "a slice needs integers, not %s", mox_tv_type_name(bound));
    if (*out < 0) *out += n;
    if (*out < low) *out = low;
    if (*out > high) *out = high;
    return MOX_OK;
}

static mox_status slice_string(mox_render *r, const mox_ts *s, int64_t start, int64_t step, int64_t count, mox_tv *out)
{
    MOX_TRY(mox_render_bytes(r, s->n));
    if (step == 1) {
        const size_t begin = mox_ts_offset(s, (size_t)start);
        mox_ts rest = *s;
        rest.p += begin;
        rest.n -= begin;
        return mox_ts_part(r, s, begin, begin + mox_ts_offset(&rest, (size_t)count), out);
    }
    size_t at = mox_ts_offset(s, (size_t)start);
    mox_tb b = {.markup = s->markup};
    for (int64_t i = 0; i < count; i++) {
        uint32_t cp;
        const size_t length = mox_utf8_next((const unsigned char *)s->p + at, &cp);
        MOX_TRY(mox_tb_part(r, &b, s, at, at + length));
        if (i + 1 == count) break; /* a step more might leave the string */
        for (int64_t k = step; k != 0; k += k > 0 ? -1 : 1) {
            do {
                at += k > 0 ? 1 : (size_t)-1;
            } while (((unsigned char)s->p[at] & 0xC0) == 0x80);
        }
    }
    return mox_tb_done(r, &b, out);
}

mox_status mox_tv_slice(mox_render *r, const mox_tv *v, const mox_tv bound[3], mox_tv *out)
{
    size_t length;
    int64_t step = 1, start, stop;
    if (v->type == MOX_TV_UNDEFINED) return mox_tv_fail_undefined(r, v);
    const bool range = v->type == MOX_TV_RANGE;
    if (!range && !is_sequence(v)) return mox_render_fail(r, "a %s cannot be sliced", mox_tv_type_name(v));
    (void)mox_tv_length(v, &length);
    const int64_t n = (int64_t)length;
    if (bound[2].type != MOX_TV_ABSENT && bound[2].type != MOX_TV_NONE && !mox_tv_get_int(&bound[2], &step)) {
        return mox_render_fail(r, "a slice needs integers, not %s", mox_tv_type_name(&bound[2]));
    }
    if (step == 0) return mox_render_fail(r, "the step of a slice is zero");
    if (step < -n - 1) step = -n - 1; /* as good as any */
    if (step > n + 1) step = n + 1;
    MOX_TRY(clip(r, &bound[0], n, step < 0 ? -1 : 0, step < 0 ? n - 1 : n, step < 0 ? n - 1 : 0, &start));
    MOX_TRY(clip(r, &bound[1], n, step < 0 ? -1 : 0, step < 0 ? n - 1 : n, step < 0 ? -1 : n, &stop));
    const int64_t distance = step > 0 ? stop - start : start - stop, size = step > 0 ? step : -step;
    const int64_t count = distance > 0 ? (distance - 1) / size + 1 : 0;
    if (v->type == MOX_TV_STRING) return slice_string(r, v->u.s, start, step, count, out);
    MOX_TRY(mox_tv_list(r, range ? MOX_TV_LIST : v->type, (size_t)count, out));
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = start + i * step;
        const mox_tv item = range ? mox_tv_int(v->u.range->start + at * v->u.range->step) : v->u.list->item[at];
        MOX_TRY(mox_tlist_push(r, out->u.list, &item));
    }
    return MOX_OK;
}
