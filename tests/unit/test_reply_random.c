/* Replies that nobody would write: random mixtures of markers, JSON and text, in which every
 * cut must give the same, arguments must be JSON objects and no word may be lost; hostile
 * texts, whose time must grow like their length; and memory that runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fail_nth.h"
#include "reply_check.h"
#include "text/json_follow.h"

#include <time.h>

#define DS_CALLS "<｜tool▁calls▁begin｜>"
#define DS_CALL "<｜tool▁call▁begin｜>"
#define DS_SEP "<｜tool▁sep｜>"
#define K2_CALL "<|tool_call_begin|>"
#define K2_ARG "<|tool_call_argument_begin|>"

/* @ becomes a word that is nowhere else. */
static const char *const pieces[] = {
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=f>",
    "<function=@>",
    "</function>",
    "<parameter=s>",
    "<parameter=@>",
    "</parameter>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    DS_CALLS,
    DS_CALL,
    DS_SEP,
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<|tool_calls_section_begin|>",
    K2_CALL,
    K2_ARG,
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "```json",
    "```",
    "\n",
    "\n",
    " ",
    "\t",
    "@",
    "@",
    "@\n",
    "ü@日",
    "f",
    "function",
    "<",
    "{",
    "}",
    "\"",
    "[",
    "]",
    ":",
    ",",
    "\\",
    "{\"name\": \"@\", \"arguments\": {\"@\": 1}}",
    "{\"name\": \"f\"",
    "\"arguments\": ",
    "\"{\\\"@\\\": 2}\"",
    "{\"@\": [true, null, -1.5e3, \"</tool_call>\"]}",
    "{}",
    "null",
    "5",
    "\x01",
    "<tool_call>\n{\"name\": \"@\", \"arguments\": {\"s\": \"@\"}}\n</tool_call>",
    "<tool_call>\n<function=f>\n<parameter=s>\n@\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>@\n<arg_key>@</arg_key>\n<arg_value>@</arg_value>\n</tool_call>",
    DS_CALL "@" DS_SEP "{\"@\": 1}",
    DS_CALL "function" DS_SEP "@\n```json\n{\"@\": 1}\n```",
    K2_CALL "functions.@:0" K2_ARG "{\"@\": 1}<|tool_call_end|>",
};

/* One piece after another, some of them damaged; *n_words are in it. */
static string make_text(mox_rng *rng, int *n_words)
{
    string s = {0};
    const int n = 1 + (int)(mox_rng_u64(rng) % 12);
    *n_words = 0;
    string_puts(&s, "");
    for (int i = 0; i < n; i++) {
        const char *piece = pieces[mox_rng_u64(rng) % (sizeof pieces / sizeof *pieces)];
        const size_t length = strlen(piece);
        const size_t drop = mox_rng_u64(rng) % 8 == 0 ? mox_rng_u64(rng) % length : length;
        for (size_t k = 0; k < length; k++) {
            char word[32];
            if (piece[k] == '@') {
                snprintf(word, sizeof word, "w%dq", (*n_words)++);
                string_puts(&s, word);
            } else if (k != drop || (unsigned char)piece[k] >= 0x80) {
                string_add(&s, piece + k, 1);
            }
        }
    }
    return s;
}

static void test_random(void **state)
{
    (void)state;
    enum { ROUNDS = 4000 };
    mox_rng rng;
    mox_rng_init(&rng, 11);
    int n_calls[7] = {0}, n_thinking = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int n_words;
        string text = make_text(&rng, &n_words);
        const uint64_t bits = mox_rng_u64(&rng);
        const feed f = {(mox_call_format)(round % 7), bits & 1, bits & 2, bits & 4};
        notes whole;
        take_apart(&f, text.text, text.n, NULL, 0, &whole);
        for (int i = 0; i < n_words; i++) {
            char word[32];
            snprintf(word, sizeof word, "w%dq", i);
            if (!strstr(whole.line.text, word))
                fail_msg("format %d: %s is lost: %s\n   in %s", (int)f.format, word, text.text, whole.line.text);
        }
        check_cuts(&f, text.text, text.n, &whole, &rng);
        n_calls[round % 7] += whole.n_calls;
        n_thinking += whole.thinking.n > 0;
        notes_free(&whole);
        string_free(&text);
    }
    /* or the test would show nothing */
    for (int i = 1; i < 7; i++) assert_true(n_calls[i] > 20);
    assert_int_equal(n_calls[MOX_CALLS_UNKNOWN], 0);
    assert_true(n_thinking > 100);
}

/* ---- the end of JSON ---------------------------------------------------------------------- */

/* The follower finds the shortest front of a text that the reader takes for a value, or none. */
static void test_follow(void **state)
{
    (void)state;
    static const char *const parts[] = {"{",      "}",     "[",    "]",     ",",      ":",
                                        " ",      "\n",    "\"",   "\"a\"", "\"b\":", "\"\\u00e9\\n\"",
                                        "\\",     "\\u12", "-",    "0",     "1",      "12",
                                        ".",      "5e",    "+3",   "E-7",   "true",   "false",
                                        "null",   "nul",   "{}",   "[]",    "[1, 2]", "{\"k\": -0.5e+10}",
                                        "[-1.0]", "x",     "\x01", "ü"};
    mox_rng rng;
    mox_rng_init(&rng, 5);
    int found = 0;
    for (int round = 0; round < 100000; round++) {
        char text[256] = "";
        size_t n = 0, end = 0;
        mox_json_type type;
        const char first[] = "{[\""; /* what shows its own end */
        text[n++] = first[mox_rng_u64(&rng) % 3];
        for (int i = (int)(mox_rng_u64(&rng) % 10); i > 0; i--) {
            n += (size_t)snprintf(text + n, sizeof text - n, "%s",
                                  parts[mox_rng_u64(&rng) % (sizeof parts / sizeof *parts)]);
        }
        while (end < n && !is_json(text, end + 1, &type)) end++;
        mox_json_follow f = {0};
        mox_follow follow = MOX_FOLLOW_MORE;
        size_t at = 0;
        while (at < n && (follow = mox_json_follow_byte(&f, text[at])) == MOX_FOLLOW_MORE) at++;
        if ((follow == MOX_FOLLOW_END) != (end < n) || (end < n && at != end))
            fail_msg("%s: %zu, not %zu", text, at, end);
        found += end < n;
    }
    assert_true(found > 1000);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* The processor's time for head and then unit over and over, up to so many bytes. */
static double seconds_for(const feed *f, const char *head, const char *unit, size_t bytes)
{
    enum { PUSH = 16 };
    string text = {0};
    mox_reply *r;
    mox_reply_opts opts = opts_of(f, NULL);
    opts.on_part = NULL;
    string_puts(&text, head);
    while (text.n < bytes) string_puts(&text, unit);
    double best = 1e9;
    for (int i = 0; i < 2; i++) {
        const clock_t begin = clock();
        assert_int_equal(mox_reply_create(&r, &opts, NULL), MOX_OK);
        for (size_t at = 0; at < text.n;) {
            size_t n = text.n - at < PUSH ? text.n - at : PUSH;
            while (at + n < text.n && !is_boundary(text.text, at + n)) n++;
            assert_int_equal(mox_reply_push(r, text.text + at, n, NULL), MOX_OK);
            at += n;
        }
        assert_int_equal(mox_reply_finish(r, true, NULL), MOX_OK);
        mox_reply_destroy(&r);
        const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
        if (seconds < best) best = seconds;
    }
    string_free(&text);
    return best;
}

/* Eight times the text may take eight times as long; quadratic would be 64 times.  The limit
 * is half way between the two, as ratios go.  Below 50 ms the ratio is that of page faults;
 * looking at 1 MiB again with every push takes far longer than that. */
static void test_linear(void **state)
{
    (void)state;
    static const char *const units[] = {
        "a",
        "\n",
        "<",
        "</think",
        "<tool_call>\n",
        "<tool_call>{\"name\":\"",
        "<tool_call>{\"name\":\"f\"}",
        "<tool_call><function=f><parameter=s>",
        "<function=f><parameter=s>x</parameter>",
        "</parameter>\n",
        "</function>\n",
        "<parameter=s></parameter>",
        "<tool_call>f<arg_key>k</arg_key><arg_value>",
        "</arg_value> ",
        "<arg_key>k</arg_key><arg_value></arg_value>",
        DS_CALLS DS_CALL "f" DS_SEP "{\"",
        K2_CALL "f" K2_ARG "\"",
        "[",
        "\\\"",
    };
    static const struct {
        mox_call_format format;
        const char *head;
    } heads[] = {
        {MOX_CALLS_HERMES, ""},
        {MOX_CALLS_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\""},
        {MOX_CALLS_QWEN_XML, ""},
        {MOX_CALLS_QWEN_XML, "<tool_call><function=f><parameter=s>"},
        {MOX_CALLS_GLM, "<tool_call>f<arg_key>k</arg_key><arg_value>"},
        {MOX_CALLS_DEEPSEEK_V3, ""},
        {MOX_CALLS_KIMI, K2_CALL},
    };
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
            const feed f = {heads[i].format, k % 2 == 0, false, false};
            const double small = seconds_for(&f, heads[i].head, units[k], 1 << 17);
            const double large = seconds_for(&f, heads[i].head, units[k], 1 << 20);
            if (large < 0.05 || large < small * 22.6) continue;
            fail_msg("%s%s...: %f s for 128 KiB and %f s for 1 MiB", heads[i].head, units[k], small, large);
        }
    }
}

/* ---- memory ------------------------------------------------------------------------------------ */

static void test_memory(void **state)
{
    (void)state;
    static const struct {
        mox_call_format format;
        const char *text;
    } replies[] = {
        {MOX_CALLS_HERMES, "<think>hm</think>T <tool_call>{\"name\":\"\\u0066\",\"arguments\":\"{\\\"a\\\": "
                           "\\\"\\\\n\\\"}\"}</tool_call>"},
        {MOX_CALLS_QWEN_XML,
         "<think>hm</think>T "
         "<tool_call><function=f><parameter=s>a\n\"b\"</parameter><parameter=l>[\"\\n\"]</parameter></function>"},
        {MOX_CALLS_GLM, "T<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value></tool_call>"},
        {MOX_CALLS_KIMI, K2_CALL "functions.f:0" K2_ARG "{\"a\": \"\\n\"}"},
        {MOX_CALLS_DEEPSEEK_V3, DS_CALL "function" DS_SEP "f {\"a\": 1}"},
    };
    for (size_t i = 0; i < sizeof replies / sizeof *replies; i++) {
        for (long at = 1;; at++) {
            nth n = {.at = at};
            mox_reply *r;
            mox_err err = {0};
            mox_message m;
            const mox_reply_opts opts = {.format = replies[i].format, .tools = {tools_json, sizeof tools_json - 1}};
            mox_alloc_set_hook(fail_nth_alloc, &n);
            mox_status status = mox_reply_create(&r, &opts, &err);
            for (const char *c = replies[i].text; status == MOX_OK && *c;) {
                size_t length = 1;
                while (!is_boundary(c, length)) length++;
                status = mox_reply_push(r, c, length, &err);
                c += length;
            }
            if (status == MOX_OK) status = mox_reply_finish(r, true, &err);
            mox_alloc_set_hook(NULL, NULL);
            if (r) mox_reply_get_message(r, &m);
            const bool reached = n.count >= at;
            assert_int_equal(status, reached ? MOX_E_MEMORY : MOX_OK);
            assert_int_equal(err.status, status);
            if (r && reached) assert_int_equal(mox_reply_push(r, "x", 1, &err), MOX_E_ARG);
            if (!reached) assert_int_equal(m.n_calls, 1);
            mox_reply_destroy(&r);
            if (!reached) break;
            assert_true(at < 1000);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_follow),
                                       cmocka_unit_test(test_linear), cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
