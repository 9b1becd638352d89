/* UTF-8, the streaming decoder, and NFC. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "moxie/text.h"
#include "text/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

static mox_unicode unicode;

static int set_up(void **state)
{
    (void)state;
    return mox_unicode_init(&unicode, NULL) == MOX_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    mox_unicode_deinit(&unicode);
    return 0;
}

static void test_code_points(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        unsigned char bytes[4], theirs[4];
        uint32_t back = 0, fast = 0;
        const size_t n = mox_utf8_encode(cp, bytes);
        if (cp >= 0xD800 && cp <= 0xDFFF) {
            assert_int_equal(mox_utf8_decode(bytes, n, &back), 0);
            continue;
        }
        assert_int_equal(utf8proc_encode_char((int32_t)cp, theirs), n);
        assert_memory_equal(bytes, theirs, n);
        assert_int_equal(mox_utf8_decode(bytes, n, &back), n);
        assert_int_equal(mox_utf8_next(bytes, &fast), n);
        assert_true(back == cp && fast == cp);
        for (size_t cut = 0; cut < n; cut++) assert_int_equal(mox_utf8_decode(bytes, cut, &back), 0);
    }
    uint32_t cp;
    assert_int_equal(mox_utf8_decode((const unsigned char *)"\xF4\x90\x80\x80", 4, &cp), 0);
    assert_int_equal(mox_utf8_decode((const unsigned char *)"\xE0\x9F\xBF", 3, &cp), 0);
    assert_int_equal(mox_utf8_decode((const unsigned char *)"\xC1\xBF", 2, &cp), 0);
    assert_int_equal(mox_utf8_valid_prefix((const unsigned char *)"0123456789abcdef\xC3\xA9\xC3", 19), 18);
    assert_int_equal(mox_utf8_valid_prefix((const unsigned char *)"0123456\x80", 8), 7);
}

typedef struct sink {
    char text[512];
    size_t n;
} sink;

/* Every call must bring whole characters. */
static void take(void *user, const char *text, size_t n)
{
    sink *s = user;
    assert_true(n > 0 && s->n + n < sizeof s->text);
    assert_int_equal(mox_utf8_valid_prefix((const unsigned char *)text, n), n);
    memcpy(s->text + s->n, text, n);
    s->n += n;
    s->text[s->n] = '\0';
}

static void decode_cut(const char *bytes, size_t n, size_t cut, size_t cut2, const char *expected)
{
    mox_utf8_stream stream = {0};
    sink s = {.n = 0};
    mox_utf8_stream_push(&stream, bytes, cut, take, &s);
    mox_utf8_stream_push(&stream, bytes + cut, cut2 - cut, take, &s);
    mox_utf8_stream_push(&stream, bytes + cut2, n - cut2, take, &s);
    mox_utf8_stream_end(&stream, take, &s);
    assert_string_equal(s.text, expected);
    assert_int_equal(stream.n_held, 0);
}

#define R "\xEF\xBF\xBD"

/* What bytes.decode("utf-8", errors="replace") gives, at every pair of cuts. */
static void test_stream(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *text;
    } cases[] = {{"", ""},
                 {"plain", "plain"},
                 {"a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80z", "a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80z"},
                 {"\xF0\x9F\x98", R},
                 {"\xF0\x9F\x98z", R "z"},
                 {"\xE2\x28\xA1", R "(" R},
                 {"\xED\xA0\x80", R R R},
                 {"\xF4\x90\x80\x80", R R R R},
                 {"\xF0\x80\x80\x80", R R R R},
                 {"\xE0\x80\x80", R R R},
                 {"\xC0\xAF", R R},
                 {"\xFF\xFE", R R},
                 {"\x80\x80x", R R "x"},
                 {"\xF1\x80\x80\xC3\xA9", R "\xC3\xA9"},
                 {"\xF1\x80\xF1\x80\x80\x80", R "\xF1\x80\x80\x80"},
                 {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", R R R R "A"},
                 {"\xC2", R},
                 {"\xC2\xC2\xA9", R "\xC2\xA9"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t n = strlen(cases[i].bytes);
        for (size_t cut = 0; cut <= n; cut++) {
            for (size_t cut2 = cut; cut2 <= n; cut2++) decode_cut(cases[i].bytes, n, cut, cut2, cases[i].text);
        }
    }
}

/* A character is let out with its last byte, not later. */
static void test_stream_is_prompt(void **state)
{
    (void)state;
    mox_utf8_stream stream = {0};
    sink s = {.n = 0};
    static const char text[] = "\xF0\x9F\x98\x80";
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(s.n, 0);
        mox_utf8_stream_push(&stream, text + i, 1, take, &s);
    }
    assert_int_equal(s.n, 4);
}

/* ---- NFC -------------------------------------------------------------------- */

static void expect_nfc(mox_nfc_scratch *s, const unsigned char *text, size_t n)
{
    const unsigned char *ours;
    size_t n_ours;
    utf8proc_uint8_t *theirs = NULL;
    const utf8proc_ssize_t n_theirs =
        utf8proc_map(text, (utf8proc_ssize_t)n, &theirs, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    assert_true(n_theirs >= 0);
    assert_int_equal(mox_nfc(&unicode, text, n, s, &ours, &n_ours, NULL), MOX_OK);
    if (n_ours != (size_t)n_theirs || memcmp(ours, theirs, n_ours) != 0) fail_msg("NFC of \"%.*s\"", (int)n, text);
    free(theirs);
}

static void test_nfc_code_points(void **state)
{
    (void)state;
    mox_nfc_scratch s = {0};
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        unsigned char text[16] = "a";
        if (cp >= 0xD800 && cp <= 0xDFFF) continue;
        size_t n = mox_utf8_encode(cp, text);
        expect_nfc(&s, text, n);
        n += mox_utf8_encode(0x301, text + n);
        expect_nfc(&s, text, n);
        text[0] = 'e';
        n = 1 + mox_utf8_encode(cp, text + 1);
        text[n++] = 'z';
        expect_nfc(&s, text, n);
    }
    mox_nfc_scratch_deinit(&s);
}

static uint32_t random_cp(mox_rng *rng, unsigned need)
{
    for (;;) {
        const uint32_t cp = (uint32_t)(mox_rng_u64(rng) % 0x20000);
        if ((cp < 0xD800 || cp > 0xDFFF) && (need == 0 || (mox_unicode_class(&unicode, cp) & need))) return cp;
    }
}

static void test_nfc_random(void **state)
{
    (void)state;
    mox_nfc_scratch s = {0};
    mox_rng rng;
    mox_rng_init(&rng, 11);
    for (int round = 0; round < 20000; round++) {
        unsigned char text[512];
        size_t n = 0;
        const uint64_t length = 1 + mox_rng_u64(&rng) % 60;
        for (uint64_t i = 0; i < length; i++) {
            const uint64_t kind = mox_rng_u64(&rng) % 6;
            uint32_t cp = kind < 3    ? random_cp(&rng, MOX_CHAR_NFC)
                          : kind == 3 ? random_cp(&rng, 0)
                                      : 'a' + (uint32_t)i % 26;
            if (kind == 5) cp = 0x1100 + (uint32_t)(mox_rng_u64(&rng) % 0x100); /* Hangul parts */
            n += mox_utf8_encode(cp, text + n);
        }
        expect_nfc(&s, text, n);
    }
    mox_nfc_scratch_deinit(&s);
}

static void test_nfc_invalid_bytes(void **state)
{
    (void)state;
    mox_nfc_scratch s = {0};
    const unsigned char *out;
    size_t n;
    static const unsigned char text[] = "e\xCC\x81\xFF\xCC\x81"
                                        "e\xFF\xCC\x81"
                                        "e\xCC"; /* nothing combines across */
    static const unsigned char expected[] = "\xC3\xA9\xFF\xCC\x81"
                                            "e\xFF\xCC\x81"
                                            "e\xCC";
    assert_int_equal(mox_nfc(&unicode, text, sizeof text - 1, &s, &out, &n, NULL), MOX_OK);
    assert_int_equal(n, sizeof expected - 1);
    assert_memory_equal(out, expected, n);
    static const unsigned char plain[] = "nothing to do \xFF \xE4\xB8\xAD \xC3\xA9";
    assert_int_equal(mox_nfc(&unicode, plain, sizeof plain - 1, &s, &out, &n, NULL), MOX_OK);
    assert_ptr_equal(out, plain);
    mox_nfc_scratch_deinit(&s);
}

/* Marks in falling order of their classes, where sorting neighbours is quadratic. */
static void test_nfc_linear(void **state)
{
    (void)state;
    const size_t count = 200000;
    unsigned char *text = malloc(2 * count);
    assert_non_null(text);
    for (size_t i = 0; i < count; i++)
        memcpy(text + 2 * i, i < count / 2 ? "\xCC\x81" : "\xCC\xA7", 2); /* 230, then 202 */
    mox_nfc_scratch s = {0};
    const unsigned char *out;
    size_t n;
    const clock_t begin = clock();
    assert_int_equal(mox_nfc(&unicode, text, 2 * count, &s, &out, &n, NULL), MOX_OK);
    assert_true(clock() - begin < CLOCKS_PER_SEC / 2);
    assert_int_equal(n, 2 * count);
    assert_memory_equal(out, "\xCC\xA7", 2);
    assert_memory_equal(out + n - 2, "\xCC\x81", 2);
    mox_nfc_scratch_deinit(&s);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_code_points),      cmocka_unit_test(test_stream),
        cmocka_unit_test(test_stream_is_prompt), cmocka_unit_test(test_nfc_code_points),
        cmocka_unit_test(test_nfc_random),       cmocka_unit_test(test_nfc_invalid_bytes),
        cmocka_unit_test(test_nfc_linear),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
