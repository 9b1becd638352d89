/* text/json_follow.c -- the end of a JSON value, byte by byte.
 *
 * I1  depth is the number of open containers, never above MOX_JSON_DEPTH_MAX.
 * I2  a number ends at the first byte that is not its own, which is then taken as
 *     the byte behind a value; so numbers and words are not followed at the top. */
#include "text/json_follow.h"

#include <string.h>

enum {
    FOLLOW_TOP = 0,
    FOLLOW_VALUE,
    FOLLOW_FIRST_ITEM,
    FOLLOW_FIRST_KEY,
    FOLLOW_KEY,
    FOLLOW_COLON,
    FOLLOW_COMMA,
    FOLLOW_STRING,
    FOLLOW_ESCAPE,
    FOLLOW_HEX,
    FOLLOW_WORD,
    FOLLOW_MINUS, /* the numbers, in order, up to FOLLOW_EXPONENT */
    FOLLOW_ZERO,
    FOLLOW_WHOLE,
    FOLLOW_POINT,
    FOLLOW_FRACTION,
    FOLLOW_E,
    FOLLOW_E_SIGN,
    FOLLOW_EXPONENT
};

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static mox_follow go(mox_json_follow *f, int state)
{
    f->state = state;
    return MOX_FOLLOW_MORE;
}

static mox_follow value_done(mox_json_follow *f)
{
    f->state = FOLLOW_COMMA;
    return f->depth == 0 ? MOX_FOLLOW_END : MOX_FOLLOW_MORE;
}

static mox_follow open_container(mox_json_follow *f, bool object)
{
    if (f->depth == MOX_JSON_DEPTH_MAX) return MOX_FOLLOW_BAD;
    f->in_object[f->depth++] = object;
    return go(f, object ? FOLLOW_FIRST_KEY : FOLLOW_FIRST_ITEM);
}

static mox_follow close_container(mox_json_follow *f)
{
    f->depth--;
    return value_done(f);
}

static mox_follow open_string(mox_json_follow *f, bool key)
{
    f->key = key;
    return go(f, FOLLOW_STRING);
}

static mox_follow begin_value(mox_json_follow *f, char c)
{
    if (c == '{' || c == '[') return open_container(f, c == '{');
    if (c == '"') return open_string(f, false);
    if (f->state == FOLLOW_TOP) return MOX_FOLLOW_BAD;
    if (c == '-') return go(f, FOLLOW_MINUS);
    if (is_digit(c)) return go(f, c == '0' ? FOLLOW_ZERO : FOLLOW_WHOLE);
    f->word = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
    if (c != 't' && c != 'f' && c != 'n') return MOX_FOLLOW_BAD;
    return go(f, FOLLOW_WORD);
}

static mox_follow in_string(mox_json_follow *f, char c)
{
    switch (f->state) {
    case FOLLOW_ESCAPE:
        f->count = 4;
        if (c == 'u') return go(f, FOLLOW_HEX);
        return c != '\0' && strchr("\"\\/bfnrt", c) ? go(f, FOLLOW_STRING) : MOX_FOLLOW_BAD;
    case FOLLOW_HEX:
        if (!is_digit(c) && !(c >= 'a' && c <= 'f') && !(c >= 'A' && c <= 'F')) return MOX_FOLLOW_BAD;
        return --f->count == 0 ? go(f, FOLLOW_STRING) : MOX_FOLLOW_MORE;
    default:
        if (c == '"') return f->key ? go(f, FOLLOW_COLON) : value_done(f);
        if (c == '\\') return go(f, FOLLOW_ESCAPE);
        return (unsigned char)c < 0x20 ? MOX_FOLLOW_BAD : MOX_FOLLOW_MORE;
    }
}

/* Between values; blanks are already gone. */
static mox_follow in_structure(mox_json_follow *f, char c)
{
    switch (f->state) {
    case FOLLOW_FIRST_ITEM: return c == ']' ? close_container(f) : begin_value(f, c);
    case FOLLOW_FIRST_KEY:
        if (c == '}') return close_container(f);
        /* fall through */
    case FOLLOW_KEY: return c == '"' ? open_string(f, true) : MOX_FOLLOW_BAD;
    case FOLLOW_COLON: return c == ':' ? go(f, FOLLOW_VALUE) : MOX_FOLLOW_BAD;
    case FOLLOW_COMMA: {
        const bool object = f->in_object[f->depth - 1];
        if (c == (object ? '}' : ']')) return close_container(f);
        return c == ',' ? go(f, object ? FOLLOW_KEY : FOLLOW_VALUE) : MOX_FOLLOW_BAD;
    }
    default: return begin_value(f, c);
    }
}

static mox_follow behind_value(mox_json_follow *f, char c)
{
    f->state = FOLLOW_COMMA;
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t') return MOX_FOLLOW_MORE;
    return in_structure(f, c);
}

static mox_follow in_number(mox_json_follow *f, char c)
{
    const bool digit = is_digit(c), e = c == 'e' || c == 'E';
    switch (f->state) {
    case FOLLOW_MINUS: return digit ? go(f, c == '0' ? FOLLOW_ZERO : FOLLOW_WHOLE) : MOX_FOLLOW_BAD;
    case FOLLOW_POINT: return digit ? go(f, FOLLOW_FRACTION) : MOX_FOLLOW_BAD;
    case FOLLOW_E:
        if (c == '+' || c == '-') return go(f, FOLLOW_E_SIGN);
        /* fall through */
    case FOLLOW_E_SIGN: return digit ? go(f, FOLLOW_EXPONENT) : MOX_FOLLOW_BAD;
    default: break;
    }
    if (digit) return f->state == FOLLOW_ZERO ? MOX_FOLLOW_BAD : MOX_FOLLOW_MORE;
    if (c == '.' && f->state < FOLLOW_POINT) return go(f, FOLLOW_POINT);
    if (e && f->state < FOLLOW_E) return go(f, FOLLOW_E);
    return behind_value(f, c);
}

mox_follow mox_json_follow_byte(mox_json_follow *f, char c)
{
    if (f->state >= FOLLOW_MINUS) return in_number(f, c);
    if (f->state == FOLLOW_WORD) {
        if (c != *f->word) return MOX_FOLLOW_BAD;
        if (*++f->word == '\0') f->state = FOLLOW_COMMA;
        return MOX_FOLLOW_MORE;
    }
    if (f->state >= FOLLOW_STRING) return in_string(f, c);
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t') return MOX_FOLLOW_MORE;
    return in_structure(f, c);
}
