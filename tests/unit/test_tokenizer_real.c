/* The tokenizer on a real vocabulary of 151,669 tokens: ids that the reference
 * library gave, under the split patterns of four families; round trips; time.
 *
 *     test_tokenizer_real FOLDER-WITH-TOKENIZER.JSON FOLDER-WITH-CASES */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "text/tokenizer_internal.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

static const char *data_dir;
static mox_tokenizer *tokenizer;

static json_t *load_cases(const char *name)
{
    char path[1024];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s", data_dir, name);
    json_t *cases = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (!cases) fail_msg("%s: %s", path, error.text);
    return cases;
}

/* The number of the first case whose ids differ, or -1. */
static long first_difference(const mox_tokenizer *t, const json_t *cases)
{
    size_t i;
    json_t *one;
    json_array_foreach(cases, i, one)
    {
        const json_t *text = json_object_get(one, "text"), *ids = json_object_get(one, "ids");
        mox_tokens tokens = {0};
        bool same = mox_tokenizer_encode(t, json_string_value(text), json_string_length(text), MOX_ENCODE_SPECIAL,
                                         &tokens, NULL) == MOX_OK &&
                    (size_t)tokens.n == json_array_size(ids);
        for (int64_t k = 0; same && k < tokens.n; k++) {
            same = json_integer_value(json_array_get(ids, (size_t)k)) == tokens.ids[k];
        }
        mox_tokens_free(&tokens);
        if (!same) return (long)i;
    }
    return -1;
}

static void use_splits(const json_t *family)
{
    size_t i;
    json_t *pattern;
    mox_split_deinit(&tokenizer->split);
    json_array_foreach(json_object_get(family, "splits"), i, pattern)
    {
        assert_int_equal(mox_split_add_pattern(&tokenizer->split, "cases", json_string_value(pattern),
                                               json_string_length(pattern), NULL),
                         MOX_OK);
        assert_non_null(tokenizer->split.stage[i].scan); /* each has a scanner */
    }
}

static void test_cases(void **state)
{
    (void)state;
    json_t *cases = load_cases("qwen3_cases.json");
    assert_true(json_array_size(cases) >= 30);
    assert_int_equal(first_difference(tokenizer, cases), -1);
    json_decref(cases);
}

/* Each family twice: the second time whole pieces are known. */
static void test_families(void **state)
{
    (void)state;
    json_t *families = load_cases("family_cases.json"), *family;
    const char *name;
    int n = 0;
    json_object_foreach(families, name, family)
    {
        const json_t *cases = json_object_get(family, "cases");
        assert_true(json_array_size(cases) >= 300);
        use_splits(family);
        for (int pass = 0; pass < 2; pass++) {
            const long at = first_difference(tokenizer, cases);
            if (at >= 0) fail_msg("%s, case %ld, pass %d", name, at, pass);
        }
        n++;
    }
    assert_int_equal(n, 4);
    use_splits(json_object_get(families, "qwen2"));
    json_decref(families);
}

/* The same patterns on PCRE2 instead of the scanners. */
static void test_families_on_pcre2(void **state)
{
    (void)state;
    json_t *families = load_cases("family_cases.json"), *family, *pattern;
    const char *name;
    json_object_foreach(families, name, family)
    {
        size_t i;
        mox_split_deinit(&tokenizer->split);
        json_array_foreach(json_object_get(family, "splits"), i, pattern)
        {
            mox_split_stage *stage = &tokenizer->split.stage[tokenizer->split.n++];
            memset(stage, 0, sizeof *stage);
            assert_int_equal(
                mox_regex_create(&stage->regex, "cases", json_string_value(pattern), json_string_length(pattern), NULL),
                MOX_OK);
        }
        assert_int_equal(first_difference(tokenizer, json_object_get(family, "cases")), -1);
    }
    use_splits(json_object_get(families, "qwen2"));
    json_decref(families);
}

static void *thread_main(void *user)
{
    const json_t *cases = user;
    return first_difference(tokenizer, cases) == -1 ? NULL : user;
}

static void test_threads(void **state)
{
    (void)state;
    json_t *families = load_cases("family_cases.json");
    json_t *cases = json_object_get(json_object_get(families, "qwen2"), "cases");
    pthread_t threads[4];
    memset((void *)tokenizer->bpe.alone, 0, (size_t)tokenizer->vocab.n_ids); /* let them race for it */
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, thread_main, cases), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    json_decref(families);
}

/* decode(encode(text)) into out; returns its length. */
static size_t round_trip(const char *text, size_t n, unsigned flags, char *out, size_t size, bool *special)
{
    mox_tokens tokens = {0};
    size_t used = 0;
    *special = false;
    assert_int_equal(mox_tokenizer_encode(tokenizer, text, n, flags, &tokens, NULL), MOX_OK);
    for (int64_t i = 0; i < tokens.n; i++) {
        size_t length;
        const char *bytes = mox_tokenizer_bytes(tokenizer, tokens.ids[i], &length);
        assert_true(bytes && used + length <= size);
        memcpy(out + used, bytes, length);
        used += length;
        *special = *special || mox_tokenizer_is_special(tokenizer, tokens.ids[i]);
    }
    mox_tokens_free(&tokens);
    return used;
}

/* Every code point alone and in a text; the vocabulary normalizes, so NFC comes back. */
static void test_code_points(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        if (cp >= 0xD800 && cp <= 0xDFFF) continue;
        for (int in_text = 0; in_text < 2; in_text++) {
            unsigned char text[32] = "The ";
            char out[64];
            bool special;
            size_t n = in_text ? 4 : 0;
            n += mox_utf8_encode(cp, text + n);
            if (in_text) n += (size_t)sprintf((char *)text + n, "e 12");
            utf8proc_uint8_t *expected = NULL;
            const utf8proc_ssize_t n_expected =
                utf8proc_map(text, (utf8proc_ssize_t)n, &expected, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
            assert_int_equal(round_trip((const char *)text, n, 0, out, sizeof out, &special), n_expected);
            assert_memory_equal(out, expected, (size_t)n_expected);
            free(expected);
        }
    }
}

/* Special tokens in a user's text are text, and come back as it. */
static void test_special_tokens_are_text(void **state)
{
    (void)state;
    int n_special = 0, n_added = 0;
    for (int32_t id = 0; id < mox_tokenizer_size(tokenizer); id++) {
        const mox_token_entry *entry = mox_vocab_entry(&tokenizer->vocab, id);
        if (!entry->added) continue;
        char text[128], out[128];
        bool special;
        size_t length;
        const char *content = mox_tokenizer_bytes(tokenizer, id, &length);
        const int n = snprintf(text, sizeof text, "a%.*s b", (int)length, content);
        assert_int_equal(round_trip(text, (size_t)n, MOX_ENCODE_PLAIN, out, sizeof out, &special), n);
        assert_memory_equal(out, text, (size_t)n);
        assert_false(special);
        assert_int_equal(round_trip(text, (size_t)n, MOX_ENCODE_SPECIAL, out, sizeof out, &special), n);
        assert_int_equal(special, entry->special);
        n_special += entry->special;
        n_added++;
    }
    assert_int_equal(n_special, 14);
    assert_int_equal(n_added, 26);
    assert_int_equal(mox_tokenizer_added_id(tokenizer, "<|im_end|>"), 151645);
    assert_int_equal(mox_tokenizer_size(tokenizer), 151669);
}

/* Long runs, where a merge that is not n log n would take minutes: 1 s per MiB. */
static void test_time(void **state)
{
#if defined(__SANITIZE_THREAD__)
    skip(); /* the thread sanitizer makes everything ten times as slow */
#endif
    (void)state;
    static const char *const units[] = {
        "Z",  "a", " ",  "\n",  "\xCC\x81", "\xCC\xA7\xCC\x81",        "0", "\xE4\xB8\xAD", "\xF0\x9F\x98\x80",
        "aB", "'", " a", "\t ", "\xFF",     "\xE1\x84\x80\xE1\x85\xA1"};
    json_t *families = load_cases("family_cases.json"), *family;
    const char *name;
    const size_t mib = 1 << 20;
    char *text = malloc(mib);
    assert_non_null(text);
    json_object_foreach(families, name, family)
    {
        use_splits(family);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            const size_t length = strlen(units[u]), count = (strcmp(name, "qwen2") ? mib / 16 : mib) / length;
            for (size_t i = 0; i < count; i++) memcpy(text + i * length, units[u], length);
            mox_tokens tokens = {0};
            const clock_t begin = clock();
            assert_int_equal(mox_tokenizer_encode(tokenizer, text, count * length, 0, &tokens, NULL), MOX_OK);
            const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
            if (seconds > (double)(count * length) / (double)mib) fail_msg("%s, unit %zu: %.2f s", name, u, seconds);
            assert_true(tokens.n > 0);
            mox_tokens_free(&tokens);
        }
    }
    use_splits(json_object_get(families, "qwen2"));
    json_decref(families);
    free(text);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_families_on_pcre2),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_code_points),
        cmocka_unit_test(test_special_tokens_are_text),
        cmocka_unit_test(test_time),
    };
    if (argc != 3) return 2;
    mox_err err;
    data_dir = argv[2];
    if (mox_tokenizer_open(&tokenizer, argv[1], &err) != MOX_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    mox_tokenizer_close(&tokenizer);
    return failed;
}
