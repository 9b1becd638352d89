/* The tokenizer's rules on small vocabularies: merges, added tokens, whose text
 * is whose, what a file may say and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tokenizer_kit.h"

#define ADDED(id, text, more) "{\"id\":" #id ",\"content\":\"" text "\"" more "}"
#define SPECIAL ",\"special\":true"

static mox_tokenizer *open_kit(kit k, const char *config)
{
    mox_tokenizer *t;
    mox_err err = {0};
    if (kit_open(&t, &k, config, &err) != MOX_OK) fail_msg("%s", err.msg);
    return t;
}

/* The ids of a text as decimal numbers between blanks. */
static const char *ids_of(const mox_tokenizer *t, const char *text, size_t n, unsigned flags)
{
    static char out[8192];
    mox_tokens tokens = {0};
    mox_err err = {0};
    size_t used = 0;
    out[0] = '\0';
    if (mox_tokenizer_encode(t, text, n, flags, &tokens, &err) != MOX_OK) fail_msg("%s", err.msg);
    for (int64_t i = 0; i < tokens.n; i++) {
        used += (size_t)snprintf(out + used, sizeof out - used, "%s%d", i ? " " : "", (int)tokens.ids[i]);
    }
    mox_tokens_free(&tokens);
    return out;
}

static void expect(const mox_tokenizer *t, const char *text, unsigned flags, const char *ids)
{
    assert_string_equal(ids_of(t, text, strlen(text), flags), ids);
}

/* decode(encode(text)) */
static void expect_round_trip(const mox_tokenizer *t, const char *text, size_t n, unsigned flags)
{
    mox_tokens tokens = {0};
    size_t at = 0;
    assert_int_equal(mox_tokenizer_encode(t, text, n, flags, &tokens, NULL), MOX_OK);
    for (int64_t i = 0; i < tokens.n; i++) {
        size_t length;
        const char *bytes = mox_tokenizer_bytes(t, tokens.ids[i], &length);
        assert_non_null(bytes);
        assert_true(at + length <= n);
        assert_memory_equal(bytes, text + at, length);
        at += length;
    }
    assert_int_equal(at, n);
    mox_tokens_free(&tokens);
}

/* ---- merging ---------------------------------------------------------------- */

static void test_merges(void **state)
{
    (void)state;
    /* both spellings of a merge; rank decides, then the leftmost */
    const char *vocab = ",\"ab\":256,\"bc\":257,\"abc\":258,\"aa\":259,\"\xC4\xA0"
                        "a\":260";
    const char *const merges[] = {"[\"b\",\"c\"],[\"a\",\"b\"],[\"ab\",\"c\"],[\"a\",\"a\"],[\"\xC4\xA0\",\"a\"]",
                                  "\"#version: 0.2\",\"b c\",\"a b\",\"ab c\",\"a a\",\"\xC4\xA0 a\""};
    for (int i = 0; i < 2; i++) {
        mox_tokenizer *t = open_kit((kit){.vocab = vocab, .merges = merges[i]}, NULL);
        expect(t, "", 0, "");
        expect(t, "abc", 0, "97 257"); /* bc has the lower rank, though abc is a token */
        expect(t, "aaa", 0, "259 97");
        expect(t, "aaaab", 0, "259 97 256"); /* ab before aa */
        expect(t, " a", 0, "260");
        assert_int_equal(mox_tokenizer_size(t), 261);
        mox_tokenizer_close(&t);
        assert_null(t);
    }
    /* ignore_merges: a piece that is a token is that token */
    mox_tokenizer *t = open_kit((kit){.vocab = vocab, .merges = merges[0], .model = ",\"ignore_merges\":true"}, NULL);
    expect(t, "abc", 0, "258");
    expect(t, "abcc", 0, "97 257 99");
    mox_tokenizer_close(&t);
    /* a pair that comes twice has its last rank */
    t = open_kit((kit){.vocab = vocab, .merges = "[\"b\",\"c\"],[\"a\",\"b\"],[\"b\",\"c\"]"}, NULL);
    expect(t, "abc", 0, "256 99");
    mox_tokenizer_close(&t);
    mox_tokenizer_close(&t); /* NULL is fine */
}

/* Short and long pieces are merged by different code: the same text as one long
 * piece must give what the definition gives. */
static void test_long_pieces(void **state)
{
    (void)state;
    mox_tokenizer *t =
        open_kit((kit){.vocab = ",\"ab\":256,\"bc\":257,\"abc\":258,\"aa\":259,\"aaaa\":260,\"ca\":261",
                       .merges = "[\"b\",\"c\"],[\"a\",\"a\"],[\"a\",\"b\"],[\"aa\",\"aa\"],[\"a\",\"bc\"],"
                                 "[\"c\",\"a\"]"},
                 NULL);
    static const int32_t rules[][3] = {{98, 99, 257},   {97, 97, 259},  {97, 98, 256},
                                       {259, 259, 260}, {97, 257, 258}, {99, 97, 261}};
    mox_rng rng;
    mox_rng_init(&rng, 5);
    for (int round = 0; round < 400; round++) {
        char text[200];
        int32_t ids[200];
        const size_t n_text = 1 + mox_rng_u64(&rng) % sizeof text;
        size_t n = n_text;
        for (size_t i = 0; i < n; i++) ids[i] = text[i] = (char)('a' + mox_rng_u64(&rng) % 3);
        for (;;) { /* the definition */
            size_t best_rule = 6, at = 0;
            for (size_t i = 0; i + 1 < n; i++) {
                for (size_t r = 0; r < best_rule; r++) {
                    if (ids[i] == rules[r][0] && ids[i + 1] == rules[r][1]) best_rule = r, at = i;
                }
            }
            if (best_rule == 6) break;
            ids[at] = rules[best_rule][2];
            memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
            n--;
        }
        mox_tokens tokens = {0};
        assert_int_equal(mox_tokenizer_encode(t, text, n_text, 0, &tokens, NULL), MOX_OK);
        assert_int_equal(tokens.n, n);
        assert_memory_equal(tokens.ids, ids, n * sizeof *ids);
        mox_tokens_free(&tokens);
    }
    mox_tokenizer_close(&t);
}

/* ---- added tokens ----------------------------------------------------------- */

static void test_added_tokens(void **state)
{
    (void)state;
    mox_tokenizer *t = open_kit(
        (kit){.vocab = ",\"ab\":256",
              .merges = "\"a b\"",
              .added = ADDED(300, "<s>", SPECIAL) "," ADDED(301, "<s>>", SPECIAL) "," ADDED(302, "<t>", "") "," ADDED(
                  303, "<t", "") "," ADDED(256, "ab", "") "," ADDED(305, "\xEF\xBD\x9C", SPECIAL)},
        NULL);
    expect(t, "x<s>y", MOX_ENCODE_SPECIAL, "120 300 121");
    expect(t, "x<s>y", MOX_ENCODE_PLAIN, "120 60 115 62 121");
    expect(t, "<s>>", MOX_ENCODE_SPECIAL, "301"); /* the longest */
    expect(t, "<t>", MOX_ENCODE_PLAIN, "302");    /* plain ones always */
    expect(t, "<t<t>>", MOX_ENCODE_PLAIN, "303 302 62");
    expect(t, "ab\xEF\xBD\x9C", MOX_ENCODE_SPECIAL, "256 305");
    expect(t, "<", MOX_ENCODE_SPECIAL, "60");
    assert_int_equal(mox_tokenizer_size(t), 306);
    assert_int_equal(mox_tokenizer_added_id(t, "<s>"), 300);
    assert_int_equal(mox_tokenizer_added_id(t, "ab"), 256);
    assert_int_equal(mox_tokenizer_added_id(t, "a"), -1); /* a token, but not an added one */
    assert_int_equal(mox_tokenizer_added_id(t, "<"), -1);
    assert_int_equal(mox_tokenizer_added_id(t, "\xFF"), -1);
    assert_true(mox_tokenizer_is_special(t, 300));
    assert_false(mox_tokenizer_is_special(t, 302));
    assert_false(mox_tokenizer_is_special(t, 257)); /* a gap */
    assert_false(mox_tokenizer_is_special(t, -1));
    assert_false(mox_tokenizer_is_special(t, 306));
    size_t n;
    assert_null(mox_tokenizer_bytes(t, 257, &n));
    assert_null(mox_tokenizer_bytes(t, -1, &n));
    assert_null(mox_tokenizer_bytes(t, 306, &n));
    assert_int_equal(n, 0);
    assert_memory_equal(mox_tokenizer_bytes(t, 305, &n), "\xEF\xBD\x9C", 3);
    assert_int_equal(n, 3);
    expect_round_trip(t, "x<s>y<t>ab\xEF\xBD\x9C", 14, MOX_ENCODE_SPECIAL);
    expect_round_trip(t, "x<s>y<t>ab\xEF\xBD\x9C", 14, MOX_ENCODE_PLAIN);
    mox_tokenizer_close(&t);
}

static void test_added_token_flags(void **state)
{
    (void)state;
    mox_tokenizer *t = open_kit(
        (kit){.normalizer = "{\"type\":\"NFC\"}",
              .added = ADDED(300, "<l>", ",\"lstrip\":true") "," ADDED(301, "<r>", ",\"rstrip\":true") "," ADDED(
                  302, "caf\xC3\xA9", ",\"normalized\":true") "," ADDED(303, "th\xC3\xA9", "") "," ADDED(304, "", "")},
        NULL);
    expect(t, "x \xC2\xA0\n<l> y", 0, "120 300 32 121");
    expect(t, "x <r> \t\xE3\x80\x80y", 0, "120 32 301 121");
    expect(t, "<r>  <l>", 0, "301 300"); /* the spaces go to the first */
    expect(t, "\xFF <l>", 0, "255 300");
    expect(t, "<r> \xE3\x80", 0, "301 227 128");    /* half a space is none */
    expect(t, "cafe\xCC\x81", 0, "302");            /* found after normalization */
    expect(t, "the\xCC\x81", 0, "116 104 195 169"); /* looked for before it only */
    expect(t, "th\xC3\xA9", 0, "303");
    assert_int_equal(mox_tokenizer_size(t), 304); /* the empty one is none */
    mox_tokenizer_close(&t);
}

/* Parts of a text that are somebody else's. */
static void test_mixed(void **state)
{
    (void)state;
    mox_tokenizer *t = open_kit((kit){.vocab = ",\"ab\":256",
                                      .merges = "\"a b\"",
                                      .added = ADDED(300, "<s>", SPECIAL) "," ADDED(301, "<t>", "")},
                                NULL);
    static const char text[] = "<s>a<s>b<s><t>";
    const struct {
        mox_text_span spans[3];
        size_t n;
        const char *ids;
    } cases[] = {{{{0, 0}}, 0, "300 97 300 98 300 301"},
                 {{{4, 7}}, 1, "300 97 60 115 62 98 300 301"},
                 {{{0, 14}}, 1, "60 115 62 97 60 115 62 98 60 115 62 301"},
                 {{{0, 1}, {9, 10}}, 2, "60 115 62 97 300 98 60 115 62 301"},          /* touching is enough */
                 {{{2, 3}, {5, 5}, {10, 14}}, 3, "60 115 62 97 300 98 60 115 62 301"}, /* an empty span is nobody's */
                 {{{3, 4}, {7, 8}}, 2, "300 97 300 98 300 301"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_tokens tokens = {0};
        char out[256] = "";
        assert_int_equal(
            mox_tokenizer_encode_mixed(t, text, sizeof text - 1, cases[i].spans, cases[i].n, &tokens, NULL), MOX_OK);
        for (int64_t k = 0; k < tokens.n; k++) {
            snprintf(out + strlen(out), sizeof out - strlen(out), "%s%d", k ? " " : "", (int)tokens.ids[k]);
        }
        assert_string_equal(out, cases[i].ids);
        mox_tokens_free(&tokens);
    }
    /* merging runs across the border */
    mox_tokens tokens = {0};
    assert_int_equal(mox_tokenizer_encode_mixed(t, "ab", 2, (mox_text_span[]){{1, 2}}, 1, &tokens, NULL), MOX_OK);
    assert_int_equal(tokens.n, 1);
    /* spans that make no sense leave what was there */
    const mox_text_span wrong[][2] = {{{0, 3}, {1, 2}}, {{2, 1}, {2, 2}}, {{0, 1}, {1, 3}}};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(mox_tokenizer_encode_mixed(t, "ab", 2, wrong[i], 2, &tokens, NULL), MOX_E_ARG);
        assert_int_equal(tokens.n, 1);
    }
    mox_tokens_free(&tokens);
    mox_tokenizer_close(&t);
}

/* ---- bytes ------------------------------------------------------------------ */

static void test_invalid_utf8(void **state)
{
    (void)state;
    mox_tokenizer *t =
        open_kit((kit){.vocab = ",\"ab\":256",
                       .merges = "\"a b\"",
                       .normalizer = "{\"type\":\"NFC\"}",
                       .pre = KIT_SEQUENCE(KIT_SPLIT("{\"Regex\":\"" KIT_QWEN2 "\"}") "," KIT_BYTE_LEVEL)},
                 NULL);
    expect(t,
           "a\xFF"
           "b",
           0, "97 255 98");
    expect(t,
           "\xED\xA0\x80"
           "ab",
           0, "237 160 128 256"); /* a surrogate */
    expect(t, "ab\xE4\xB8", 0, "256 228 184");
    assert_string_equal(ids_of(t, "a\0b", 3, 0), "97 0 98");
    mox_rng rng;
    mox_rng_init(&rng, 9);
    for (int round = 0; round < 3000; round++) { /* anything comes back as it was, when NFC has nothing to do */
        char text[64];
        const size_t n = mox_rng_u64(&rng) % sizeof text;
        for (size_t i = 0; i < n; i++) {
            const uint64_t r = mox_rng_u64(&rng);
            text[i] = (char)(r % 3 ? (r >> 8) & 0x7F : 0xE0 | ((r >> 8) & 0x1F));
        }
        expect_round_trip(t, text, n, 0);
    }
    mox_tokenizer_close(&t);
}

static void test_code_points_round_trip(void **state)
{
    (void)state;
    mox_tokenizer *t =
        open_kit((kit){.pre = KIT_SEQUENCE(KIT_SPLIT("{\"Regex\":\"" KIT_QWEN2 "\"}") "," KIT_BYTE_LEVEL)}, NULL);
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        unsigned char text[16] = " a";
        if (cp >= 0xD800 && cp <= 0xDFFF) continue;
        size_t n = mox_utf8_encode(cp, text + 2);
        expect_round_trip(t, (const char *)text + 2, n, 0);
        memcpy(text + 2 + n, "1 ", 2);
        expect_round_trip(t, (const char *)text, n + 4, 0);
    }
    mox_tokenizer_close(&t);
}

/* ---- what files say --------------------------------------------------------- */

static void test_pre_tokenizers(void **state)
{
    (void)state;
    const char *vocab = ",\"ab\":256,\"\xC4\xA0"
                        "a\":257,\"12\":258",
               *merges = "\"a b\",\"\xC4\xA0 a\",\"1 2\"";
    const struct {
        const char *pre, *text, *ids;
    } cases[] = {
        {KIT_BYTE_LEVEL, "ab 12", "256 32 258"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}", "ab", "32 256"}, /* rank: ab first */
        {"{\"type\":\"ByteLevel\"}", "a12", "257 258"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":false}", "a12b", "97 258 98"},
        {KIT_SEQUENCE(KIT_SPLIT("{\"String\":\"b\"}") "," KIT_BYTE_LEVEL), "ab12", "97 98 258"},
        {KIT_SEQUENCE(KIT_SPLIT("{\"Regex\":\"\\\\p{N}\"}") "," KIT_BYTE_LEVEL), "ab12", "256 49 50"},
        {KIT_SEQUENCE(KIT_SEQUENCE(KIT_SPLIT("{\"Regex\":\"\\\\p{N}\"}")) "," KIT_BYTE_LEVEL), "ab12", "256 49 50"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_tokenizer *t = open_kit((kit){.vocab = vocab, .merges = merges, .pre = cases[i].pre}, NULL);
        expect(t, cases[i].text, 0, cases[i].ids);
        mox_tokenizer_close(&t);
    }
}

static void test_bos_and_eos(void **state)
{
    (void)state;
    const char *added = ADDED(300, "<s>", SPECIAL) "," ADDED(301, "</s>", SPECIAL);
    const char *post =
        "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":\"TemplateProcessing\","
        "\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\"}}]}]}";
    const struct {
        const char *post, *config;
        int32_t bos, eos;
        bool adds;
    } cases[] = {
        {NULL, NULL, -1, -1, false},
        {NULL, "{}", -1, -1, false},
        {NULL, "{\"eos_token\":\"</s>\",\"bos_token\":null,\"add_bos_token\":false}", -1, 301, false},
        {NULL, "{\"eos_token\":{\"content\":\"</s>\",\"special\":true},\"bos_token\":\"<s>\"}", 300, 301, false},
        {NULL, "{\"bos_token\":\"<s>\",\"add_bos_token\":true}", 300, -1, true},
        {NULL, "{\"bos_token\":\"<nothing>\",\"eos_token\":\"a\"}", -1, 97, false},
        {post, NULL, 300, -1, true},
        {post, "{\"bos_token\":\"</s>\"}", 300, -1, true},
        {post, "{\"bos_token\":\"<s>\",\"add_bos_token\":false}", 300, -1, false},
        {"{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}}]}", NULL, -1, -1, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_tokenizer *t = open_kit((kit){.added = added, .post = cases[i].post}, cases[i].config);
        assert_int_equal(mox_tokenizer_bos_id(t), cases[i].bos);
        assert_int_equal(mox_tokenizer_eos_id(t), cases[i].eos);
        assert_int_equal(mox_tokenizer_adds_bos(t), cases[i].adds);
        mox_tokenizer_close(&t);
    }
}

/* One fault per file: the status, and a word of the sentence. */
/* The model's stop ids and the tokenizer's own, each once. */
static void test_stop_ids(void **state)
{
    (void)state;
    static const int32_t ids[] = {7, 97};
    const mox_generation two = {.stop_ids = ids, .n_stop_ids = 2}, one = {.stop_ids = ids, .n_stop_ids = 1}, none = {0};
    mox_tokenizer *t = open_kit((kit){0}, "{\"eos_token\":\"a\"}"), *silent = open_kit((kit){0}, NULL);
    const struct {
        const mox_generation *g;
        const mox_tokenizer *t;
        int32_t n; /* of ids */
    } cases[] = {{&two, t, 2}, {&one, t, 2}, {&one, silent, 1}, {&one, NULL, 1}, {&none, silent, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int32_t j = 0; j < 4; j++)
            assert_int_equal(mox_stop_id(cases[i].g, cases[i].t, j), j < cases[i].n ? ids[j] : -1);
        for (int32_t id = -1; id < 300; id++)
            assert_int_equal(mox_is_stop(cases[i].g, cases[i].t, id),
                             (cases[i].n > 0 && id == ids[0]) || (cases[i].n > 1 && id == ids[1]));
    }
    assert_int_equal(mox_stop_id(&none, t, 0), 97);
    assert_int_equal(mox_stop_id(&none, t, 1), -1);
    mox_tokenizer_close(&t);
    mox_tokenizer_close(&silent);
}

static void test_refused(void **state)
{
    (void)state;
    char *megabyte = malloc(1 << 20), *deep = malloc(4096);
    assert_true(megabyte && deep);
    strcpy(megabyte, "{\"id\":300,\"content\":\"");
    memset(megabyte + strlen(megabyte), 'x', (1 << 20) - 64);
    strcpy(megabyte + (1 << 20) - 43, "\"}");
    megabyte[(1 << 20) - 41] = '\0';
    deep[0] = '\0';
    for (int i = 0; i < 80; i++) strcat(deep, "{\"type\":\"Sequence\",\"normalizers\":[");
    const struct {
        kit k;
        mox_status status;
        const char *word;
    } cases[] = {
        {{.vocab = ",\"ab\":256", .merges = "\"a c\""}, MOX_E_FORMAT, "what they join to"},
        {{.merges = "\"zz b\""}, MOX_E_FORMAT, "its left token"},
        {{.merges = "[\"b\",\"zz\"]"}, MOX_E_FORMAT, "its right token"},
        {{.merges = "\"ab\""}, MOX_E_FORMAT, "merges[0] is not two tokens"},
        {{.merges = "\"a b c\""}, MOX_E_FORMAT, "merges[0] is not two tokens"},
        {{.merges = "[\"a\"]"}, MOX_E_FORMAT, "merges[0] is not two tokens"},
        {{.merges = "[\"a\",\"b\",\"c\"]"}, MOX_E_FORMAT, "merges[0] is not two tokens"},
        {{.merges = "[\"a\",1]"}, MOX_E_FORMAT, "merges[0] is not two tokens"},
        {{.merges = "7"}, MOX_E_FORMAT, "merges[0] is not two tokens"},
        {{.vocab = ",\"ab\":255"}, MOX_E_FORMAT, "id 255 belongs to two tokens"},
        {{.vocab = ",\"a\":256"}, MOX_E_FORMAT, "comes twice"},
        {{.vocab = ",\"ab\":-1"}, MOX_E_FORMAT, "has id -1"},
        {{.vocab = ",\"ab\":4194304"}, MOX_E_FORMAT, "has id 4194304"},
        {{.vocab = ",\"ab\":99999999999"}, MOX_E_FORMAT, "has id 99999999999"},
        {{.vocab = ",\"ab\":99999999999999999999999"}, MOX_E_FORMAT, "not an integer"},
        {{.vocab = ",\"ab\":1.5"}, MOX_E_FORMAT, "not an integer"},
        {{.vocab = ",\"ab\":\"1\""}, MOX_E_FORMAT, "not an integer"},
        {{.vocab = ",\"\":256"}, MOX_E_FORMAT, "token of 0 bytes"},
        {{.added = megabyte}, MOX_E_FORMAT, "added token 300 has 1048"},
        {{.added = "{\"content\":\"x\"}"}, MOX_E_FORMAT, "no integer as its id"},
        {{.added = "{\"id\":\"1\",\"content\":\"x\"}"}, MOX_E_FORMAT, "no integer as its id"},
        {{.added = "{\"id\":300}"}, MOX_E_FORMAT, "added token 300 has 0 bytes"},
        {{.added = ADDED(-2, "zz", "")}, MOX_E_FORMAT, "has id -2"},
        {{.added = ADDED(97, "zz", "")}, MOX_E_FORMAT, "belongs to two tokens"},
        {{.added = ADDED(300, "a", "")}, MOX_E_FORMAT, "there already with id 97"},
        {{.added = ADDED(300, "zz", "") "," ADDED(301, "zz", "")}, MOX_E_FORMAT, "there already with id 300"},
        {{.added = ADDED(300, "zz", "") "," ADDED(300, "zz", "")}, MOX_E_FORMAT, "there already"},
        {{.added = ADDED(300, "zz", ",\"special\":1")}, MOX_E_FORMAT, "special must be true or false"},
        {{.added = ADDED(300, "zz", ",\"single_word\":true")}, MOX_E_UNSUPPORTED, "single_word"},
        {{.added = "3"}, MOX_E_FORMAT, "must be an object"},
        {{.normalizer = "{\"type\":\"NFKC\"}"}, MOX_E_UNSUPPORTED, "\"NFKC\""},
        {{.normalizer = "{}"}, MOX_E_FORMAT, "without a type"},
        {{.normalizer = "{\"type\":\"Sequence\"}"}, MOX_E_FORMAT, "must be an array"},
        {{.normalizer = "3"}, MOX_E_FORMAT, "must be an object"},
        {{.normalizer = deep}, MOX_E_FORMAT, "more than 64"},
        {{.pre = "null"}, MOX_E_UNSUPPORTED, "no ByteLevel step"},
        {{.pre = KIT_SEQUENCE("")}, MOX_E_UNSUPPORTED, "no ByteLevel step"},
        {{.pre = "{\"type\":\"Metaspace\"}"}, MOX_E_UNSUPPORTED, "\"Metaspace\""},
        {{.pre = KIT_SEQUENCE(KIT_BYTE_LEVEL "," KIT_BYTE_LEVEL)}, MOX_E_UNSUPPORTED, "after ByteLevel"},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Removed\"}"},
         MOX_E_UNSUPPORTED,
         "\"Removed\""},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Isolated\",\"invert\":true}"},
         MOX_E_UNSUPPORTED,
         "invert"},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{},\"behavior\":\"Isolated\"}"}, MOX_E_FORMAT, "no pattern"},
        {{.pre = KIT_SPLIT("{\"Regex\":\"(\"}")}, MOX_E_FORMAT, "does not compile"},
        {{.pre = KIT_SPLIT("{\"Regex\":\"\\\\w\"}")}, MOX_E_UNSUPPORTED, "\\w"},
        {{.post = "{\"type\":\"BertProcessing\"}"}, MOX_E_UNSUPPORTED, "\"BertProcessing\""},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{"
                  "\"id\":\"a\"}}]}"},
         MOX_E_UNSUPPORTED,
         "more than"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<q>\"}}]}"},
         MOX_E_FORMAT,
         "\"<q>\""},
        {{.decoder = "{\"type\":\"Metaspace\"}"}, MOX_E_UNSUPPORTED, "decoder \"Metaspace\""},
        {{.model = ",\"dropout\":0.1"}, MOX_E_UNSUPPORTED, "dropout"},
        {{.model = ",\"continuing_subword_prefix\":\"##\""}, MOX_E_UNSUPPORTED, "continuing_subword_prefix"},
        {{.model = ",\"end_of_word_suffix\":\"</w>\""}, MOX_E_UNSUPPORTED, "end_of_word_suffix"},
        {{.model = ",\"ignore_merges\":\"yes\""}, MOX_E_FORMAT, "ignore_merges must be true or false"},
        {{.model = ",\"type\":\"BPE\""}, MOX_E_FORMAT, "comes twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_tokenizer *t = (mox_tokenizer *)1;
        mox_err err = {0};
        const mox_status status = kit_open(&t, &cases[i].k, NULL, &err);
        if (status != cases[i].status || !strstr(err.msg, cases[i].word)) {
            fail_msg("case %zu (%s): status %d, %s", i, cases[i].word, (int)status, err.msg);
        }
        assert_non_null(strstr(err.msg, "tokenizer.json"));
        assert_null(t);
    }
    free(megabyte);
    free(deep);
}

static void test_whole_files(void **state)
{
    (void)state;
    const struct {
        const char *text;
        mox_status status;
        const char *word;
    } cases[] = {
        {"", MOX_E_FORMAT, "byte 0"},
        {"[]", MOX_E_FORMAT, "no model"},
        {"{}", MOX_E_FORMAT, "no model"},
        {"{\"model\":3}", MOX_E_FORMAT, "model must be an object"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", MOX_E_UNSUPPORTED, "\"Unigram\""},
        {"{\"model\":{\"type\":\"WordPiece\"},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}}", MOX_E_UNSUPPORTED,
         "\"WordPiece\""},
        {"{\"pre_tokenizer\":" KIT_BYTE_LEVEL ",\"model\":{}}", MOX_E_FORMAT, "model.vocab must be an object"},
        {"{\"pre_tokenizer\":" KIT_BYTE_LEVEL ",\"model\":{\"vocab\":[]}}", MOX_E_FORMAT,
         "model.vocab must be an object"},
        {"{\"pre_tokenizer\":" KIT_BYTE_LEVEL ",\"model\":{\"vocab\":{}}}", MOX_E_FORMAT,
         "model.merges must be an array"},
        {"{\"pre_tokenizer\":" KIT_BYTE_LEVEL ",\"model\":{\"vocab\":{},\"merges\":[]}}", MOX_E_FORMAT,
         "no token for byte 0x00"},
        {"{\"model\":{}} x", MOX_E_FORMAT, "text after the end"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_tokenizer *t;
        mox_err err = {0};
        const mox_status status =
            mox_tokenizer_open_memory(&t, "f", cases[i].text, strlen(cases[i].text), NULL, 0, &err);
        if (status != cases[i].status || !strstr(err.msg, cases[i].word))
            fail_msg("case %zu: %d, %s", i, (int)status, err.msg);
        assert_null(t);
    }
    mox_tokenizer *t;
    mox_err err = {0};
    static const char *const configs[] = {"[", "[]", "{\"eos_token\":3}", "{\"add_bos_token\":true}",
                                          "{\"add_bos_token\":1}"};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        assert_int_equal(kit_open(&t, &(kit){0}, configs[i], &err), MOX_E_FORMAT);
        assert_null(t);
    }
    assert_int_equal(mox_tokenizer_open(&t, "no/such/folder", &err), MOX_E_NOT_FOUND);
    assert_null(t);
}

/* Every cut of a valid file is an error, not a crash. */
static void test_truncated(void **state)
{
    (void)state;
    char *text = kit_json(&(kit){.vocab = ",\"ab\":256", .merges = "\"a b\"", .added = ADDED(300, "<s>", SPECIAL)});
    const size_t n = strlen(text);
    for (size_t cut = 0; cut < n; cut++) {
        mox_tokenizer *t;
        assert_int_equal(mox_tokenizer_open_memory(&t, "f", text, cut, NULL, 0, NULL), MOX_E_FORMAT);
    }
    free(text);
}

/* A pattern that runs into its limit fails and leaves the caller's ids alone. */
static void test_failed_encode_keeps_ids(void **state)
{
    (void)state;
    mox_tokenizer *t =
        open_kit((kit){.pre = KIT_SEQUENCE(KIT_SPLIT("{\"Regex\":\"(?:a+)+b\"}") "," KIT_BYTE_LEVEL)}, NULL);
    mox_tokens tokens = {0};
    mox_err err;
    char text[64];
    memset(text, 'a', sizeof text);
    text[2] = 'b'; /* a match before the one that fails */
    text[40] = 'c';
    text[63] = 'b';
    assert_int_equal(mox_tokenizer_encode(t, "xaab", 4, 0, &tokens, &err), MOX_OK);
    assert_int_equal(tokens.n, 4);
    assert_int_equal(mox_tokenizer_encode(t, text, sizeof text, 0, &tokens, &err), MOX_E_LIMIT);
    assert_int_equal(tokens.n, 4);
    assert_int_equal(tokens.ids[0], 'x');
    mox_tokens_free(&tokens);
    mox_tokenizer_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges),
        cmocka_unit_test(test_long_pieces),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_added_token_flags),
        cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_code_points_round_trip),
        cmocka_unit_test(test_pre_tokenizers),
        cmocka_unit_test(test_bos_and_eos),
        cmocka_unit_test(test_stop_ids),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_whole_files),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_failed_encode_keeps_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
