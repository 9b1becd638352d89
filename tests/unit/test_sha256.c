/* tests/unit/test_sha256.c -- SHA-256 against the examples that were published with the
 * standard, whole and in pieces. */
#include "base/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const char *digest(const void *bytes, size_t n, size_t piece)
{
    static char text[MOX_SHA256_HEX + 1];
    mox_sha256 s;
    mox_sha256_init(&s);
    for (size_t at = 0; at < n; at += piece) mox_sha256_add(&s, (const char *)bytes + at, n - at < piece ? n - at : piece);
    mox_sha256_end(&s, text);
    return text;
}

static void test_examples(void **state)
{
    (void)state;
    static const struct {
        const char *text, *sum;
    } examples[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++)
        for (size_t piece = 1; piece < 130; piece++)
            assert_string_equal(digest(examples[i].text, strlen(examples[i].text), piece), examples[i].sum);
}

static void test_a_million_letters(void **state)
{
    (void)state;
    static char letters[1000000];
    memset(letters, 'a', sizeof letters);
    static const char sum[] = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
    assert_string_equal(digest(letters, sizeof letters, sizeof letters), sum);
    assert_string_equal(digest(letters, sizeof letters, 1009), sum);
    letters[777777] = 'b'; /* the comparison would notice */
    assert_string_not_equal(digest(letters, sizeof letters, sizeof letters), sum);
}

/* Every length around the ends of blocks gives another sum, however it was cut. */
static void test_lengths(void **state)
{
    (void)state;
    static const char zeros[200];
    char before[MOX_SHA256_HEX + 1] = "";
    for (size_t n = 0; n <= sizeof zeros; n++) {
        char all[MOX_SHA256_HEX + 1];
        strcpy(all, digest(zeros, n, sizeof zeros));
        for (size_t piece = 1; piece < 70; piece++) assert_string_equal(digest(zeros, n, piece), all);
        assert_string_not_equal(all, before);
        strcpy(before, all);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_examples), cmocka_unit_test(test_a_million_letters),
                                       cmocka_unit_test(test_lengths)};
    return cmocka_run_group_tests_name("sha256", tests, NULL, NULL);
}
