/* Split patterns: the scanners equal PCRE2, patterns are recognised by their
 * text, foreign patterns run on PCRE2 or are refused, stages feed each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "split_oracle.h"
#include "text/split.h"

#include <utf8proc.h>

static oracle the_oracle;

static int set_up(void **state)
{
    (void)state;
    return oracle_init(&the_oracle);
}

static int tear_down(void **state)
{
    (void)state;
    oracle_deinit(&the_oracle);
    return 0;
}

/* The table equals PCRE2's classes wherever both libraries know the character. */
static void test_classes(void **state)
{
    (void)state;
    int differ = 0;
    for (uint32_t cp = 0; cp < ORACLE_CODE_POINTS; cp++) {
        if (oracle_agrees(&the_oracle, cp)) continue;
        const unsigned bits = the_oracle.bits[cp] & 0x7Fu, ours = mox_unicode_class(&the_oracle.unicode, cp) & 0x7Fu;
        if (bits == 0 || ours == 0) continue; /* assigned in the newer version only */
        differ++;
    }
    assert_in_range(differ, 0, 32); /* a new version re-classes a handful of old characters at most */
    static const uint32_t spaces[] = {0x09,   0x0A,   0x0B,   0x0C,   0x0D,   0x20,   0x85,   0xA0,   0x1680,
                                      0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008,
                                      0x2009, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
    size_t next = 0;
    for (uint32_t cp = 0; cp < ORACLE_CODE_POINTS; cp++) {
        const int expected = next < sizeof spaces / sizeof *spaces && spaces[next] == cp;
        next += (size_t)expected;
        assert_int_equal(!!(mox_unicode_class(&the_oracle.unicode, cp) & MOX_CHAR_SPACE), expected);
        assert_int_equal(!!(the_oracle.bits[cp] & MOX_CHAR_SPACE),
                         expected); /* U+180E is none in PCRE2 either, translated */
    }
}

/* Code points by general category, the ones both sides agree on. */
typedef struct pool {
    uint32_t *cps[32];
    size_t n[32];
} pool;

static void pool_init(pool *p)
{
    memset(p, 0, sizeof *p);
    for (int pass = 0; pass < 2; pass++) {
        size_t n[32] = {0};
        for (uint32_t cp = 0; cp < ORACLE_CODE_POINTS; cp++) {
            const int category = (int)utf8proc_category((int32_t)cp);
            if ((cp >= 0xD800 && cp <= 0xDFFF) || !oracle_agrees(&the_oracle, cp)) continue;
            if (pass == 1) p->cps[category][n[category]] = cp;
            n[category]++;
        }
        for (int c = 0; c < 32 && pass == 0; c++) p->cps[c] = malloc((n[c] + 1) * sizeof(uint32_t));
        memcpy(p->n, n, sizeof n);
    }
}

static uint32_t any_of(mox_rng *rng, const char *ascii)
{
    return (unsigned char)ascii[mox_rng_u64(rng) % strlen(ascii)];
}

static uint32_t random_cp(mox_rng *rng, const pool *p, int flavour)
{
    static const uint32_t odd[] = {0x17F, 0x212A, 0x2019, 0x180E,   0x85,    0xA0,   0x2028, 0x3000,
                                   0x301, 0x308,  0x200D, 0xFE0F,   0x1F600, 0xAA,   0x1C5,  0x2B0,
                                   0x5D0, 0x4E00, 0x9FA5, 0x9FA6,   0x3040,  0x30FF, 0x303F, 0x3100,
                                   0xBD,  0x663,  0x2160, 0x10FFFF, 0xE000,  0,      0x7F};
    const uint64_t roll = mox_rng_u64(rng) % 100;
    if (flavour == 0 && roll < 80) return (uint32_t)(mox_rng_u64(rng) % 0x80);
    if (flavour == 1 && roll < 70) return any_of(rng, " \t\n\r\v\f  \n");
    if (flavour == 2 && roll < 70) return any_of(rng, "0123456789,. ");
    if (flavour == 3 && roll < 70) return any_of(rng, "'''sStTrReEvVmMlLdD aB'");
    if (flavour == 4 && roll < 50) return any_of(rng, "abcXYZ!/?.\n/ ");
    if (roll < 85 && flavour != 5) return odd[mox_rng_u64(rng) % (sizeof odd / sizeof *odd)];
    for (;;) { /* any category, all equally likely */
        const uint64_t c = mox_rng_u64(rng) % 32;
        if (p->n[c] > 0) return p->cps[c][mox_rng_u64(rng) % p->n[c]];
    }
}

static void test_scanners_equal_pcre2(void **state)
{
    (void)state;
    pool p;
    mox_rng rng;
    pool_init(&p);
    mox_rng_init(&rng, 20);
    size_t compared = 0;
    for (int round = 0; round < 30000; round++) {
        unsigned char text[256];
        size_t n = 0;
        const size_t length = 1 + mox_rng_u64(&rng) % 60;
        for (size_t i = 0; i < length; i++) n += mox_utf8_encode(random_cp(&rng, &p, round % 6), text + n);
        for (int s = 0; mox_scans[s].name; s++) {
            const long at = oracle_compare(&the_oracle, s, text, n);
            if (at >= 0) fail_msg("%s differs at byte %ld of \"%.*s\"", mox_scans[s].name, at, (int)n, text);
            compared += n;
        }
    }
    assert_true(compared > 1000000);
    for (int c = 0; c < 32; c++) free(p.cps[c]);
}

/* The comparison above can fail: a scanner under another's pattern is caught. */
static void test_comparison_can_fail(void **state)
{
    (void)state;
    const unsigned char text[] = "12345 a";
    mox_regex *own = the_oracle.regex[0];
    assert_int_equal(oracle_compare(&the_oracle, 0, text, sizeof text - 1), -1);
    the_oracle.regex[0] = the_oracle.regex[2]; /* llama3: digits by three */
    assert_int_equal(oracle_compare(&the_oracle, 0, text, sizeof text - 1), 0);
    the_oracle.regex[0] = own;
}

static void test_recognition(void **state)
{
    (void)state;
    for (const mox_scan *s = mox_scans; s->name; s++) {
        const size_t n = strlen(s->pattern);
        assert_ptr_equal(mox_scan_find(s->pattern, n), s->scan);
        assert_null(mox_scan_find(s->pattern, n - 1));
        char longer[512];
        snprintf(longer, sizeof longer, "%s|x", s->pattern);
        assert_null(mox_scan_find(longer, strlen(longer)));
    }
    /* as DeepSeek's own file spells it: line ends as themselves, and \" */
    static const char spelled[] = "[!\\\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
                                  "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|"
                                  "\\s+(?!\\S)|\\s+";
    assert_non_null(mox_scan_find(spelled, sizeof spelled - 1));
    assert_null(mox_scan_find("\\p{N}{1,4}", 10));
    assert_null(mox_scan_find("", 0));
}

/* Joins the pieces with '|'. */
typedef struct joined {
    char text[4096];
    size_t n;
} joined;

static mox_status join(void *user, const unsigned char *piece, size_t n, mox_err *err)
{
    (void)err;
    joined *j = user;
    assert_true(n > 0 && j->n + n + 1 < sizeof j->text);
    if (j->n) j->text[j->n++] = '|';
    memcpy(j->text + j->n, piece, n);
    j->n += n;
    j->text[j->n] = '\0';
    return MOX_OK;
}

static void expect_pieces(const mox_split *s, const char *text, const char *expected)
{
    joined j = {.n = 0};
    mox_split_scratch scratch = {0};
    mox_err err = {0};
    assert_int_equal(
        mox_split_run(s, &the_oracle.unicode, &scratch, (const unsigned char *)text, strlen(text), join, &j, &err),
        MOX_OK);
    assert_string_equal(j.text, expected);
    mox_split_scratch_deinit(&scratch);
}

static void test_stages(void **state)
{
    (void)state;
    mox_split s = {0};
    assert_int_equal(mox_split_add_pattern(&s, "x", "\\p{N}{1,3}", 10, NULL), MOX_OK);
    expect_pieces(&s, "ab12345c", "ab|123|45|c");
    assert_int_equal(mox_split_add_literal(&s, "x", "b", 1, NULL), MOX_OK);
    expect_pieces(&s, "ab12345c", "a|b|123|45|c");
    assert_int_equal(mox_split_add_pattern(&s, "x", "[35c]x*", 7, NULL), MOX_OK); /* PCRE2 */
    expect_pieces(&s, "ab12345cxx", "a|b|12|3|4|5|cxx");
    mox_split_deinit(&s);
    /* empty matches are borders */
    assert_int_equal(mox_split_add_pattern(&s, "x", "x*", 2, NULL), MOX_OK);
    expect_pieces(&s, "abxxc", "a|b|xx|c");
    expect_pieces(&s, "\xC3\xA9\xC3\xA9", "\xC3\xA9|\xC3\xA9");
    mox_split_deinit(&s);
    assert_int_equal(mox_split_add_prefix_space(&s, "x", NULL), MOX_OK);
    assert_int_equal(mox_split_add_pattern(&s, "x", mox_scan_gpt2_pattern, strlen(mox_scan_gpt2_pattern), NULL),
                     MOX_OK);
    expect_pieces(&s, "it's  IT'S 12", " it|'s| | IT|'|S| 12");
    expect_pieces(&s, " a\n b", " a|\n| b");
    assert_int_equal(mox_split_add_prefix_space(&s, "x", NULL), MOX_E_UNSUPPORTED);
    while (s.n < MOX_SPLIT_STAGES_MAX)
        assert_int_equal(mox_split_add_pattern(&s, "x", "\\p{N}{1,3}", 10, NULL), MOX_OK);
    assert_int_equal(mox_split_add_pattern(&s, "x", "\\p{N}{1,3}", 10, NULL), MOX_E_UNSUPPORTED);
    assert_int_equal(mox_split_add_literal(&s, "x", "a", 1, NULL), MOX_E_UNSUPPORTED);
    mox_split_deinit(&s);
    assert_int_equal(mox_split_add_literal(&s, "x", "", 0, NULL), MOX_E_FORMAT);
}

static void test_patterns_refused(void **state)
{
    (void)state;
    static const char *const refused[] = {"\\w+", "\\bfoo",     "[a&&b]", "[[:alpha:]]", "a{1,3}+", "a{,3}", "^a",
                                          "a$",   "(?<name>a)", "(?m:a)", "(*UTF)a",     "\\Qa\\E", "[]a]",  "\\h",
                                          "\\K",  "a\\",        "\\pL",   "\\1",         "[^]a]",  "a{1000}"};
    static const char *const malformed[] = {"(", "a)", "[a", "*", "\\p{Nonsense}", "a{2,1}", "\\x{110000}"};
    mox_regex *r;
    mox_err err;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(mox_regex_create(&r, "file", refused[i], strlen(refused[i]), &err), MOX_E_UNSUPPORTED);
        assert_null(r);
        assert_non_null(strstr(err.msg, "file: "));
    }
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        assert_int_equal(mox_regex_create(&r, "file", malformed[i], strlen(malformed[i]), &err), MOX_E_FORMAT);
        assert_non_null(strstr(err.msg, "does not compile"));
    }
    static const char *const fine[] = {
        "\\p{Han}+", "\\P{Lu}", "[\\p{^Lu}\\s\\S]", "(?i:k)(?=x)(?<!y)(?:z)", "\\x{4e00}", "\\x{2028}a{999}", "\\d\\D.", ""};
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        assert_int_equal(mox_regex_create(&r, "file", fine[i], strlen(fine[i]), &err), MOX_OK);
        mox_regex_destroy(&r);
    }
}

static void test_match_limit(void **state)
{
    (void)state;
    mox_regex *r;
    mox_regex_match *m;
    mox_err err;
    char text[64];
    size_t begin, end;
    memset(text, 'a', sizeof text);
    assert_int_equal(mox_regex_match_create(&m, &err), MOX_OK);
    assert_int_equal(mox_regex_create(&r, "file", "(?:a+)+b", 8, &err), MOX_OK);
    assert_int_equal(mox_regex_find(r, m, (unsigned char *)text, sizeof text, 0, &begin, &end, &err),
                     MOX_E_LIMIT);
    assert_non_null(strstr(err.msg, "too slow"));
    mox_regex_destroy(&r);
    mox_regex_match_destroy(&m);
}

static mox_status count(void *user, const unsigned char *piece, size_t n, mox_err *err)
{
    (void)piece, (void)n, (void)err;
    ++*(size_t *)user;
    return MOX_OK;
}

/* n times the same character through a pattern that only PCRE2 reads.  What it may
 * cost is known without a clock: the steps are counted. */
static mox_status split_run_of(const char *pattern, char c, size_t n, size_t *pieces, mox_err *err)
{
    mox_split s = {0};
    mox_split_scratch scratch = {0};
    char *text = malloc(n);
    *pieces = 0;
    assert_non_null(text);
    memset(text, c, n);
    assert_int_equal(mox_split_add_pattern(&s, "x", pattern, strlen(pattern), NULL), MOX_OK);
    assert_non_null(s.stage[0].regex);
    const mox_status status =
        mox_split_run(&s, &the_oracle.unicode, &scratch, (const unsigned char *)text, n, count, pieces, err);
    mox_split_scratch_deinit(&scratch);
    mox_split_deinit(&s);
    free(text);
    return status;
}

static void test_long_runs(void **state)
{
    (void)state;
    static const char slow[] = "[a-z]+(?=X)|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+|.";
    const size_t mib = 1 << 20;
    size_t pieces;
    mox_err err;
    assert_int_equal(split_run_of(slow, ' ', mib, &pieces, &err), MOX_OK);
    assert_int_equal(pieces, 1);
    assert_int_equal(split_run_of(slow, '7', mib, &pieces, &err), MOX_OK);
    assert_int_equal(pieces, mib);
    assert_int_equal(split_run_of(slow, 'a', 500, &pieces, &err), MOX_OK);
    assert_int_equal(pieces, 500);
    assert_int_equal(split_run_of(slow, 'a', 20000, &pieces, &err), MOX_E_LIMIT); /* every attempt runs to the end */
    assert_non_null(strstr(err.msg, "too slow"));
    /* nothing to go back to: only the characters that a repetition runs over */
    assert_int_equal(split_run_of("[a-z]++X|.", 'a', 20000, &pieces, &err), MOX_E_LIMIT);
    /* one search that tries every place itself */
    assert_int_equal(split_run_of("[a-z]++X", 'a', 20000, &pieces, &err), MOX_E_LIMIT);
    assert_int_equal(split_run_of("(?>[a-z]+)(?<=a)[A-Z]|[a-z]", 'a', 20000, &pieces, &err), MOX_E_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_scanners_equal_pcre2),
        cmocka_unit_test(test_comparison_can_fail),
        cmocka_unit_test(test_recognition),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_patterns_refused),
        cmocka_unit_test(test_match_limit),
        cmocka_unit_test(test_long_runs),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
