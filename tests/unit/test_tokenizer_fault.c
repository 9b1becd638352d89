/* The N-th allocation fails, for every N: opening and encoding answer
 * MOX_E_MEMORY, keep the caller's ids and leak nothing (run under a sanitizer). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "tokenizer_kit.h"

typedef struct countdown {
    long left;
} countdown;

static int allow(void *user, size_t bytes)
{
    (void)bytes;
    countdown *c = user;
    return c->left-- != 0;
}

static mox_status open_and_encode(const kit *k, const char *config, const char *text, size_t n)
{
    mox_tokenizer *t = NULL;
    mox_tokens tokens = {0};
    mox_err err = {0};
    mox_status status = kit_open(&t, k, config, &err);
    assert_true((status == MOX_OK) == (t != NULL));
    if (status == MOX_OK) {
        status = mox_tokenizer_encode(t, "ab", 2, MOX_ENCODE_SPECIAL, &tokens, &err);
        const int64_t before = tokens.n;
        if (status == MOX_OK) {
            status = mox_tokenizer_encode(t, text, n, MOX_ENCODE_SPECIAL, &tokens, &err);
            assert_true(status == MOX_OK ? tokens.n > before : tokens.n == before);
        }
    }
    if (status != MOX_OK) assert_non_null(strstr(err.msg, "out of memory"));
    mox_tokens_free(&tokens);
    mox_tokenizer_close(&t);
    return status;
}

static void test_every_allocation(void **state)
{
    (void)state;
    const kit kits[] = {
        {.vocab = ",\"ab\":256,\"a\\u0301\":257",
         .merges = "\"a b\"",
         .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}",
         .added = "{\"id\":300,\"content\":\"<s>\\n\",\"special\":true},{\"id\":301,\"content\":\"e\\u0301\","
                  "\"normalized\":true}",
         .post =
             "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\\n\"}},{\"Sequence\":{}}]}",
         .pre = KIT_SEQUENCE(KIT_SPLIT("{\"Regex\":\"[x-z]+|\\\\s\"}") "," KIT_SPLIT(
             "{\"String\":\"q\"}") ","
                                   "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}")},
        {.vocab = ",\"ab\":256", .merges = "[\"a\",\"b\"]"},
    };
    char text[600];
    size_t n = 0;
    memset(text, 'a', 200); /* one long piece */
    n = 200;
    n += (size_t)sprintf(text + n, " xyz q <s>\n e\xCC\x81 ");
    for (int i = 0; i < 40; i++) n += (size_t)sprintf(text + n, "\xCC\x81"); /* marks to sort */
    for (size_t i = 0; i < sizeof kits / sizeof *kits; i++) {
        countdown c;
        mox_status status = MOX_E_MEMORY;
        long fail_at = 0;
        for (; status != MOX_OK && fail_at < 10000; fail_at++) {
            c.left = fail_at;
            mox_alloc_set_hook(allow, &c);
            status = open_and_encode(&kits[i], "{\"eos_token\":\"<s>\\n\"}", text, n);
            mox_alloc_set_hook(NULL, NULL);
            assert_true(status == MOX_OK || status == MOX_E_MEMORY);
        }
        assert_int_equal(status, MOX_OK);
        assert_true(fail_at > 10);
        assert_true(c.left >= 0); /* none was refused in the last run */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
