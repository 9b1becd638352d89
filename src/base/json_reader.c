/* base/json_reader.c -- a strict JSON pull reader.
 *
 * I1  depth is the number of open containers and never passes MOX_JSON_DEPTH_MAX,
 *     so no recursion and no stack to overflow.
 * I2  a string token is a view of the input unless it has escapes; then it is in
 *     `unescaped`, which the next string may overwrite.
 */
#include "base/json_reader.h"

#include "base/utf8.h"

#include <string.h>

enum { EXPECT_VALUE, EXPECT_FIRST_KEY, EXPECT_KEY, EXPECT_FIRST_ITEM, EXPECT_COMMA, EXPECT_NOTHING };

void mox_json_reader_init(mox_json_reader *r, mox_json_span text)
{
    memset(r, 0, sizeof *r);
    r->in = text;
    r->expect = EXPECT_VALUE;
}

void mox_json_reader_deinit(mox_json_reader *r) { mox_buffer_deinit(&r->unescaped); }

static mox_status bad(const mox_json_reader *r, const char *what, mox_err *err)
{
    return mox_fail(err, MOX_E_FORMAT, "%s: byte %zu: %s", r->in.name, r->in.at + r->pos, what);
}

static void skip_blanks(mox_json_reader *r)
{
    while (r->pos < r->in.n) {
        const char c = r->in.text[r->pos];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') break;
        r->pos++;
    }
}

static int peek(const mox_json_reader *r) { return r->pos < r->in.n ? (unsigned char)r->in.text[r->pos] : -1; }

static void value_done(mox_json_reader *r) { r->expect = r->depth == 0 ? EXPECT_NOTHING : EXPECT_COMMA; }

/* ---- strings --------------------------------------------------------------- */

static int hex_digit(int c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The four digits after \u; -1 when they are not four digits. */
static int32_t read_hex4(mox_json_reader *r)
{
    int32_t value = 0;
    if (r->in.n - r->pos < 4) return -1;
    for (int i = 0; i < 4; i++) {
        const int digit = hex_digit((unsigned char)r->in.text[r->pos + (size_t)i]);
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    r->pos += 4;
    return value;
}

static mox_status read_unicode_escape(mox_json_reader *r, uint32_t *cp, mox_err *err)
{
    const int32_t first = read_hex4(r);
    if (first < 0) return bad(r, "\\u needs four hexadecimal digits", err);
    if (first < 0xD800 || first > 0xDFFF) {
        *cp = (uint32_t)first;
        return MOX_OK;
    }
    int32_t second = -1;
    if (first < 0xDC00 && r->in.n - r->pos >= 2 && r->in.text[r->pos] == '\\' && r->in.text[r->pos + 1] == 'u') {
        r->pos += 2;
        second = read_hex4(r);
    }
    if (second < 0xDC00 || second > 0xDFFF) return bad(r, "half a surrogate pair is not a character", err);
    *cp = 0x10000 + ((uint32_t)(first - 0xD800) << 10) + (uint32_t)(second - 0xDC00);
    return MOX_OK;
}

static mox_status read_escape(mox_json_reader *r, unsigned char *dst, size_t *n, mox_err *err)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const int c = peek(r);
    const char *at = c > 0 ? strchr(from, c) : NULL;
    if (at) {
        r->pos++;
        dst[(*n)++] = (unsigned char)to[at - from];
        return MOX_OK;
    }
    if (c != 'u') return bad(r, "unknown escape in a string", err);
    r->pos++;
    uint32_t cp = 0;
    MOX_TRY(read_unicode_escape(r, &cp, err));
    *n += mox_utf8_encode(cp, dst + *n);
    return MOX_OK;
}

/* Bytes from pos on that stand for themselves; stops at a quote, a backslash or
 * something that may not be in a string. */
static size_t plain_length(const mox_json_reader *r)
{
    const unsigned char *p = (const unsigned char *)r->in.text + r->pos;
    const size_t n = r->in.n - r->pos;
    size_t i = 0;
    while (i < n && p[i] != '"' && p[i] != '\\' && p[i] >= 0x20) {
        uint32_t cp;
        size_t length = 1;
        if (p[i] >= 0xC2 && p[i] < 0xE0 && i + 1 < n && (p[i + 1] & 0xC0) == 0x80) {
            length = 2; /* every blank of a byte-level vocabulary is one of these */
        } else if (p[i] >= 0x80) {
            length = mox_utf8_decode(p + i, n - i, &cp);
        }
        if (length == 0) break;
        i += length;
    }
    return i;
}

static mox_status string_stopped(const mox_json_reader *r, mox_err *err)
{
    if (r->pos == r->in.n) return bad(r, "the text ends inside a string", err);
    if ((unsigned char)r->in.text[r->pos] < 0x20) return bad(r, "control character in a string", err);
    return bad(r, "invalid UTF-8 in a string", err);
}

/* pos is behind the opening quote. */
static mox_status read_string(mox_json_reader *r, mox_json_token *out, mox_err *err)
{
    size_t length = plain_length(r);
    if (r->pos + length < r->in.n && r->in.text[r->pos + length] == '"') {
        out->text = r->in.text + r->pos;
        out->n = length;
        r->pos += length + 1;
        return MOX_OK;
    }
    size_t n = 0;
    for (;;) {
        MOX_TRY(mox_buffer_reserve(&r->unescaped, n + length + 4, 1, "a JSON string", err));
        unsigned char *dst = r->unescaped.data;
        memcpy(dst + n, r->in.text + r->pos, length);
        n += length;
        r->pos += length;
        const int c = peek(r);
        if (c != '"' && c != '\\') return string_stopped(r, err);
        r->pos++;
        if (c == '"') break;
        MOX_TRY(read_escape(r, dst, &n, err));
        length = plain_length(r);
    }
    out->text = r->unescaped.data;
    out->n = n;
    return MOX_OK;
}

/* ---- numbers and words ------------------------------------------------------ */

static size_t digits(const mox_json_reader *r, size_t i)
{
    size_t count = 0;
    while (i + count < r->in.n && r->in.text[i + count] >= '0' && r->in.text[i + count] <= '9') count++;
    return count;
}

static mox_status read_number(mox_json_reader *r, mox_json_token *out, mox_err *err)
{
    size_t i = r->pos;
    if (r->in.text[i] == '-') i++;
    const size_t whole = digits(r, i);
    if (whole == 0 || (whole > 1 && r->in.text[i] == '0')) return bad(r, "malformed number", err);
    i += whole;
    if (i < r->in.n && r->in.text[i] == '.') {
        const size_t fraction = digits(r, ++i);
        if (fraction == 0) return bad(r, "malformed number", err);
        i += fraction;
    }
    if (i < r->in.n && (r->in.text[i] == 'e' || r->in.text[i] == 'E')) {
        i++;
        if (i < r->in.n && (r->in.text[i] == '+' || r->in.text[i] == '-')) i++;
        const size_t exponent = digits(r, i);
        if (exponent == 0) return bad(r, "malformed number", err);
        i += exponent;
    }
    *out = (mox_json_token){MOX_JSON_NUMBER, r->in.text + r->pos, i - r->pos};
    r->pos = i;
    return MOX_OK;
}

static mox_status read_word(mox_json_reader *r, mox_json_token *out, mox_err *err)
{
    static const struct {
        const char *word;
        mox_json_type type;
    } words[] = {{"null", MOX_JSON_NULL}, {"true", MOX_JSON_TRUE}, {"false", MOX_JSON_FALSE}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t length = strlen(words[i].word);
        if (r->in.n - r->pos < length || memcmp(r->in.text + r->pos, words[i].word, length) != 0) continue;
        *out = (mox_json_token){words[i].type, r->in.text + r->pos, length};
        r->pos += length;
        return MOX_OK;
    }
    return bad(r, "a value is missing or malformed", err);
}

/* ---- structure -------------------------------------------------------------- */

static mox_status open_container(mox_json_reader *r, bool object, mox_json_token *out, mox_err *err)
{
    if (r->depth == MOX_JSON_DEPTH_MAX) return bad(r, "more than 64 containers inside each other", err);
    r->in_object[r->depth++] = object;
    r->expect = object ? EXPECT_FIRST_KEY : EXPECT_FIRST_ITEM;
    r->pos++;
    *out = (mox_json_token){object ? MOX_JSON_OBJECT : MOX_JSON_ARRAY, NULL, 0};
    return MOX_OK;
}

static mox_status close_container(mox_json_reader *r, mox_json_token *out)
{
    *out = (mox_json_token){r->in_object[--r->depth] ? MOX_JSON_OBJECT_END : MOX_JSON_ARRAY_END, NULL, 0};
    r->pos++;
    value_done(r);
    return MOX_OK;
}

static mox_status read_key(mox_json_reader *r, mox_json_token *out, mox_err *err)
{
    if (peek(r) != '"') return bad(r, "a key in quotes is missing", err);
    r->pos++;
    out->type = MOX_JSON_KEY;
    MOX_TRY(read_string(r, out, err));
    skip_blanks(r);
    if (peek(r) != ':') return bad(r, "':' is missing after a key", err);
    r->pos++;
    r->expect = EXPECT_VALUE;
    return MOX_OK;
}

static mox_status read_value(mox_json_reader *r, mox_json_token *out, mox_err *err)
{
    const int c = peek(r);
    if (c == '{' || c == '[') return open_container(r, c == '{', out, err);
    mox_status status;
    if (c == '"') {
        r->pos++;
        out->type = MOX_JSON_STRING;
        status = read_string(r, out, err);
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        status = read_number(r, out, err);
    } else {
        status = read_word(r, out, err);
    }
    if (status == MOX_OK) value_done(r);
    return status;
}

mox_status mox_json_next(mox_json_reader *r, mox_json_token *out, mox_err *err)
{
    skip_blanks(r);
    const int c = peek(r);
    const bool object = r->depth > 0 && r->in_object[r->depth - 1];
    switch (r->expect) {
    case EXPECT_VALUE: return read_value(r, out, err);
    case EXPECT_FIRST_ITEM: return c == ']' ? close_container(r, out) : read_value(r, out, err);
    case EXPECT_FIRST_KEY: return c == '}' ? close_container(r, out) : read_key(r, out, err);
    case EXPECT_KEY: return read_key(r, out, err);
    case EXPECT_COMMA:
        if (c == (object ? '}' : ']')) return close_container(r, out);
        if (c != ',') return bad(r, object ? "',' or '}' is missing" : "',' or ']' is missing", err);
        r->pos++;
        skip_blanks(r);
        return object ? read_key(r, out, err) : read_value(r, out, err);
    default:
        if (c >= 0) return bad(r, "there is text after the end of the value", err);
        *out = (mox_json_token){MOX_JSON_END, NULL, 0};
        return MOX_OK;
    }
}

mox_status mox_json_skip(mox_json_reader *r, mox_json_span *out, mox_err *err)
{
    mox_json_token token;
    const int depth = r->depth;
    if (r->expect == EXPECT_VALUE) skip_blanks(r);
    const size_t begin = r->pos;
    do {
        MOX_TRY(mox_json_next(r, &token, err));
    } while (r->depth > depth);
    if (out) *out = (mox_json_span){r->in.name, r->in.text + begin, r->pos - begin, r->in.at + begin};
    return MOX_OK;
}

mox_status mox_json_element(mox_json_reader *r, mox_json_span *out, mox_err *err)
{
    skip_blanks(r);
    if (peek(r) == ']') {
        mox_json_token end;
        *out = (mox_json_span){0};
        return mox_json_next(r, &end, err);
    }
    if (r->expect == EXPECT_COMMA) {
        if (peek(r) != ',') return bad(r, "',' or ']' is missing", err);
        r->pos++;
    }
    r->expect = EXPECT_VALUE;
    return mox_json_skip(r, out, err);
}

mox_status mox_json_field(mox_json_reader *r, const char *const *names, int n_names, uint32_t *seen, int *index,
                          mox_err *err)
{
    for (;;) {
        mox_json_token key;
        MOX_TRY(mox_json_next(r, &key, err));
        *index = -1;
        if (key.type != MOX_JSON_KEY) return MOX_OK;
        for (int i = 0; i < n_names && *index < 0; i++) {
            if (mox_json_token_is(&key, names[i])) *index = i;
        }
        if (*index < 0) {
            MOX_TRY(mox_json_skip(r, NULL, err));
            continue;
        }
        if (*seen >> *index & 1) {
            return mox_fail(err, MOX_E_FORMAT, "%s: byte %zu: the key \"%s\" comes twice", r->in.name,
                            r->in.at + r->pos, names[*index]);
        }
        *seen |= UINT32_C(1) << *index;
        return MOX_OK;
    }
}

bool mox_json_token_is(const mox_json_token *t, const char *text)
{
    return strlen(text) == t->n && memcmp(t->text, text, t->n) == 0;
}

bool mox_json_token_int(const mox_json_token *t, int64_t *out)
{
    if (t->type != MOX_JSON_NUMBER) return false;
    const bool negative = t->text[0] == '-';
    int64_t value = 0; /* kept negative: there is one more negative number than positive ones */
    for (size_t i = negative; i < t->n; i++) {
        const char c = t->text[i];
        if (c < '0' || c > '9') return false; /* a fraction or an exponent */
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_sub_overflow(value, c - '0', &value)) {
            return false;
        }
    }
    if (!negative && value == INT64_MIN) return false;
    *out = negative ? value : -value;
    return true;
}
