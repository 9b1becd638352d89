/* The JSON reader: what it accepts is what jansson accepts, tokens keep their
 * order and spelling, errors say where. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/json_fields.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mox_json_span span_of(const char *text) { return (mox_json_span){"doc", text, strlen(text), 0}; }

/* Reads all of a text; every token as one letter, with its text, into out. */
static mox_status read_all(mox_json_span span, char *out, size_t size, mox_err *err)
{
    static const char letters[] = "nftNSK{[}]";
    mox_json_reader r;
    mox_json_token token = {MOX_JSON_NULL, NULL, 0};
    size_t n = 0;
    mox_json_reader_init(&r, span);
    mox_status status;
    while ((status = mox_json_next(&r, &token, err)) == MOX_OK && token.type != MOX_JSON_END) {
        if (!out) continue;
        const bool text = token.type == MOX_JSON_NUMBER || token.type == MOX_JSON_STRING || token.type == MOX_JSON_KEY;
        n += (size_t)snprintf(out + n, size - n, "%c%.*s ", letters[token.type], text ? (int)token.n : 0,
                              text ? token.text : "");
    }
    if (status == MOX_OK) { /* it stays at the end */
        assert_int_equal(mox_json_next(&r, &token, err), MOX_OK);
        assert_int_equal(token.type, MOX_JSON_END);
    }
    mox_json_reader_deinit(&r);
    return status;
}

static void test_tokens(void **state)
{
    (void)state;
    char out[512];
    assert_int_equal(read_all(span_of(" {\"b\":1.50e+03, \"a\" :[-0,true,false,null,{}, []],\n\"b\":\"x\"}\t"), out,
                              sizeof out, NULL),
                     MOX_OK);
    assert_string_equal(out, "{ Kb N1.50e+03 Ka [ N-0 t f n { } [ ] ] Kb Sx } ");
    assert_int_equal(
        read_all(span_of("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\uD83D\\ude00\xC3\xA9 end\""), out, sizeof out, NULL),
        MOX_OK);
    assert_string_equal(out, "S\"\\/\b\f\n\r\t\xC3\xA9\xF0\x9F\x98\x80\xC3\xA9 end ");
    mox_json_reader r;
    mox_json_token token;
    mox_json_reader_init(&r, span_of("\"a\\u0000b\""));
    assert_int_equal(mox_json_next(&r, &token, NULL), MOX_OK);
    assert_int_equal(token.n, 3);
    assert_memory_equal(token.text, "a\0b", 3);
    mox_json_reader_deinit(&r);
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "doc: byte 0: a value is missing"},
        {"[1,]", "doc: byte 3: a value is missing"},
        {"{\"a\":1,}", "doc: byte 7: a key in quotes is missing"},
        {"{\"a\" 1}", "doc: byte 5: ':' is missing"},
        {"[1 2]", "doc: byte 3: ',' or ']' is missing"},
        {"{\"a\":1]", "doc: byte 6: ',' or '}' is missing"},
        {"1 2", "doc: byte 2: there is text after"},
        {"\"a", "ends inside a string"},
        {"\"a\nb\"", "doc: byte 2: control character"},
        {"\"\\x\"", "unknown escape"},
        {"\"\\u12G4\"", "four hexadecimal digits"},
        {"\"\\ud800\"", "half a surrogate pair"},
        {"\"\\ud800\\u0041\"", "half a surrogate pair"},
        {"\"\\udc00\\ud800\"", "half a surrogate pair"},
        {"\"\xC0\x80\"", "invalid UTF-8"},
        {"\"\xED\xA0\x80\"", "invalid UTF-8"},
        {"\"\\n\xFF\"", "invalid UTF-8"},
        {"\xEF\xBB\xBF{}", "a value is missing"},
        {"01", "malformed number"},
        {"-", "malformed number"},
        {"1.", "malformed number"},
        {"1e", "malformed number"},
        {"nul", "a value is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_err err = {0};
        assert_int_equal(read_all(span_of(cases[i].text), NULL, 0, &err), MOX_E_FORMAT);
        if (!strstr(err.msg, cases[i].message)) fail_msg("%s: %s", cases[i].text, err.msg);
    }
}

static void test_depth(void **state)
{
    (void)state;
    char text[2 * MOX_JSON_DEPTH_MAX + 8];
    for (int depth = MOX_JSON_DEPTH_MAX; depth <= MOX_JSON_DEPTH_MAX + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        text[2 * depth] = '\0';
        assert_int_equal(read_all(span_of(text), NULL, 0, NULL), depth == MOX_JSON_DEPTH_MAX ? MOX_OK : MOX_E_FORMAT);
    }
}

static void test_integers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int fits;
        int64_t value;
    } cases[] = {{"0", 1, 0},
                 {"-0", 1, 0},
                 {"42", 1, 42},
                 {"-42", 1, -42},
                 {"9223372036854775807", 1, INT64_MAX},
                 {"9223372036854775808", 0, 0},
                 {"-9223372036854775808", 1, INT64_MIN},
                 {"-9223372036854775809", 0, 0},
                 {"1.0", 0, 0},
                 {"1e2", 0, 0},
                 {"99999999999999999999999", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mox_json_token token = {MOX_JSON_NUMBER, cases[i].text, strlen(cases[i].text)};
        int64_t value = 0;
        assert_int_equal(mox_json_token_int(&token, &value), cases[i].fits);
        assert_true(value == cases[i].value);
    }
    const mox_json_token text = {MOX_JSON_STRING, "1", 1};
    int64_t value;
    assert_false(mox_json_token_int(&text, &value));
}

static mox_status collect(void *user, mox_json_span element, mox_err *err)
{
    (void)err;
    char *out = user;
    strncat(out, element.text, element.n);
    strcat(out, ";");
    return MOX_OK;
}

static void test_fields(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "b", "c"};
    mox_json_span f[3];
    mox_err err = {0};
    const char *text = "{\"x\":{\"a\":9},\"b\": [1, {\"c\":2} ,[]],\"a\":true,\"x\":1}";
    assert_int_equal(mox_json_fields(span_of(text), "doc", names, 3, f, &err), MOX_OK);
    assert_int_equal(f[1].n, strlen("[1, {\"c\":2} ,[]]"));
    assert_true(f[1].text == text + f[1].at);
    assert_true(mox_json_is_null(f[2]));
    bool flag = false;
    assert_int_equal(mox_json_get_bool(f[0], "a", &flag, &err), MOX_OK);
    assert_true(flag);
    assert_int_equal(mox_json_get_bool(f[2], "c", &flag, &err), MOX_OK); /* absent: as it was */
    assert_true(flag);
    assert_int_equal(mox_json_get_bool(f[1], "b", &flag, &err), MOX_E_FORMAT);
    assert_non_null(strstr(err.msg, "b must be true or false"));
    char elements[64] = "", *string;
    assert_int_equal(mox_json_each(f[1], "b", collect, elements, &err), MOX_OK);
    assert_string_equal(elements, "1;{\"c\":2};[];");
    assert_int_equal(mox_json_each(f[0], "a", collect, elements, &err), MOX_E_FORMAT);
    assert_int_equal(mox_json_each(f[2], "c", collect, elements, &err), MOX_E_FORMAT);
    assert_int_equal(mox_json_get_string(f[0], "a", &string, NULL, &err), MOX_E_FORMAT);
    assert_null(string);
    assert_int_equal(mox_json_get_string(span_of("\"q\\u0000\""), "a", &string, NULL, &err), MOX_E_FORMAT);
    assert_int_equal(mox_json_get_string(span_of("\"q\\n\""), "a", &string, NULL, &err), MOX_OK);
    assert_string_equal(string, "q\n");
    mox_free(string);
    assert_int_equal(mox_json_fields(span_of("{\"a\":1,\"b\":2,\"a\":3}"), "doc", names, 3, f, &err), MOX_E_FORMAT);
    assert_non_null(strstr(err.msg, "\"a\" comes twice"));
    assert_int_equal(mox_json_fields(span_of("[]"), "doc", names, 3, f, &err), MOX_E_FORMAT);
    assert_int_equal(mox_json_fields(span_of("{} x"), "doc", names, 3, f, &err), MOX_E_FORMAT);
}

/* Small edits of a document: accepted here exactly when jansson accepts. */
static void test_same_as_jansson(void **state)
{
    (void)state;
    static const char seed[] =
        "{\"a\": [1, -0.5e1, true, null, \"x\\n\\u00e9\xC3\xA9\"], \"b\": {\"c\": {}, \"d\": []}}";
    static const char alphabet[] = "{}[]:,\"\\u0d8ce1E.-+tfn \n\xC3\xA9\xED\x01";
    mox_rng rng;
    mox_rng_init(&rng, 3);
    int accepted = 0, refused = 0;
    for (int round = 0; round < 40000; round++) {
        char text[sizeof seed + 8];
        size_t n = sizeof seed - 1;
        memcpy(text, seed, sizeof seed);
        for (uint64_t edits = 1 + mox_rng_u64(&rng) % 3; edits > 0; edits--) {
            const size_t at = mox_rng_u64(&rng) % n;
            const char c = alphabet[mox_rng_u64(&rng) % (sizeof alphabet - 1)];
            switch (mox_rng_u64(&rng) % 3) {
            case 0: text[at] = c; break;
            case 1: memmove(text + at, text + at + 1, --n - at); break;
            default: memmove(text + at + 1, text + at, n++ - at); text[at] = c;
            }
        }
        json_error_t error;
        json_t *other = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
        if (!other && (strstr(error.text, "overflow") || strstr(error.text, "NUL byte"))) continue; /* its own limits */
        const mox_status status = read_all((mox_json_span){"doc", text, n, 0}, NULL, 0, NULL);
        if ((status == MOX_OK) != (other != NULL)) fail_msg("%.*s: %s", (int)n, text, other ? "accepted" : error.text);
        other ? accepted++ : refused++;
        json_decref(other);
    }
    assert_true(accepted > 1000 && refused > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),   cmocka_unit_test(test_errors), cmocka_unit_test(test_depth),
        cmocka_unit_test(test_integers), cmocka_unit_test(test_fields), cmocka_unit_test(test_same_as_jansson),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
