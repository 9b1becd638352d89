/* Replies taken apart: what the real templates write comes back as the message it was
 * made from, and what models get wrong is forgiven or comes out as text.  Everything is
 * fed whole and in every cut.  Texts that nobody would write are in test_reply_random. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "reply_check.h"
#include "text/template.h"

static void expect(const feed *f, const char *text, const char *line)
{
    notes whole;
    mox_rng rng;
    mox_rng_init(&rng, 7);
    take_apart(f, text, strlen(text), NULL, 0, &whole);
    if (strcmp(whole.line.text, line) != 0)
        fail_msg("format %d: %s\n   is  %s\n   not %s", (int)f->format, text, whole.line.text, line);
    check_cuts(f, text, strlen(text), &whole, &rng);
    notes_free(&whole);
}

/* ---- thinking ---------------------------------------------------------------------------- */

static void test_thinking(void **state)
{
    (void)state;
    static const struct {
        bool thinking;
        const char *text, *line;
    } cases[] = {
        {false, "", ""},
        {true, "", ""},
        {false, "Hello\n there \n", "T{Hello\n there \n}"},
        {false, " \n ", "T{ \n }"},
        {false, "<think>\nhm\n\nso\n</think>\n\nYes.", "K{hm\n\nso}T{Yes.}"},
        {false, "\n <think>a</think>b", "K{a}T{b}"},
        {false, "<think></think>b", "T{b}"},
        {false, "<think>\n\n</think>\n\nb", "T{b}"},
        {false, "<think>\n \n</think>\n b\n", "K{ }T{ b\n}"},
        {false, "<think>a</think>\n\n<think>b</think>", "K{a}T{<think>b</think>}"},
        {false, "a<think>b</think>", "T{a<think>b</think>}"},
        {false, "a</think>b", "T{a</think>b}"},
        {false, "</think>b", "T{</think>b}"},
        {false, "<thin", "T{<thin}"},
        {false, " <thinker>", "T{ <thinker>}"},
        {false, "<think>never\nclosed\n\n", "K{never\nclosed}"},
        {false, "<think>a</thin", "K{a</thin}"},
        {true, "\nhm\n</think>\n\nYes.", "K{hm}T{Yes.}"},
        {true, "</think>\nYes.", "T{Yes.}"},
        {true, "  <think>\nhm</think>Yes.", "K{hm}T{Yes.}"},
        {true, "a <think> b</think>c", "K{a <think> b}T{c}"},
        {true, "a < b <\n</ think></think>\n<tool_call>", "K{a < b <\n</ think>}T{<tool_call>}"},
        {true, "ünd 日本\n", "K{ünd 日本}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect(&(feed){MOX_CALLS_UNKNOWN, cases[i].thinking, false, false}, cases[i].text, cases[i].line);
    }
    /* With a format, a call may end thinking. */
    static const struct {
        const char *text, *line;
    } calls[] = {
        {"hm\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>\n", "K{hm}C{f}A{{}}"},
        {"hm <tool_call>{\"name\": \"f\"}</tool_call></think>\n\nok", "K{hm }C{f}A{{}}T{ok}"},
        {"I use <tool_call> now</think>ok", "K{I use <tool_call> now}T{ok}"},
        {"I use <tool_call>{\"name\": \"</think>ok", "K{I use <tool_call>{\"name\": \"}T{ok}"},
        {"a<tool_call>\n\n</think>\nb", "K{a<tool_call>}T{b}"},
        {"a<tool_call>{\"name\":\"f\"", "K{a<tool_call>{\"name\":\"f\"}"},
        {"a</think>b</think><tool_call>{\"name\":\"f\"}</think>", "K{a}T{b</think>}C{f}A{{}}T{</think>}"},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        expect(&(feed){MOX_CALLS_HERMES, true, false, false}, calls[i].text, calls[i].line);
    }
    expect(&(feed){MOX_CALLS_QWEN_XML, true, false, false}, "a<tool_call><function=f><parameter=s>b</think>c",
           "K{a<tool_call><function=f><parameter=s>b}T{c}");
}

/* ---- formats ------------------------------------------------------------------------------ */

#define DS_CALLS "<｜tool▁calls▁begin｜>"
#define DS_CALL "<｜tool▁call▁begin｜>"
#define DS_SEP "<｜tool▁sep｜>"
#define DS_END "<｜tool▁call▁end｜>"
#define DS_CALLS_END "<｜tool▁calls▁end｜>"
#define K2_CALLS "<|tool_calls_section_begin|>"
#define K2_CALL "<|tool_call_begin|>"
#define K2_ARG "<|tool_call_argument_begin|>"
#define K2_END "<|tool_call_end|>"
#define K2_CALLS_END "<|tool_calls_section_end|>"
#define XML(body) "<tool_call>\n<function=f>\n" body "</function>\n</tool_call>"
#define PARAM(name, value) "<parameter=" name ">\n" value "\n</parameter>\n"

typedef struct format_case {
    const char *text, *line; /* line may begin with one of these */
} format_case;
#define CUT_OFF "cut off: "
#define NO_TOOLS "no tools: "

static void expect_all(mox_call_format format, const format_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *line = cases[i].line;
        const bool cut_off = strncmp(line, CUT_OFF, strlen(CUT_OFF)) == 0;
        const bool no_tools = strncmp(line, NO_TOOLS, strlen(NO_TOOLS)) == 0;
        line += cut_off ? strlen(CUT_OFF) : no_tools ? strlen(NO_TOOLS) : 0;
        expect(&(feed){format, false, cut_off, no_tools}, cases[i].text, line);
    }
}
#define EXPECT_ALL(format, cases) expect_all(format, cases, sizeof(cases) / sizeof *(cases))

static void test_hermes(void **state)
{
    (void)state;
    static const format_case cases[] = {
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\":  1.50, \"a\" : [ ]}}\n</tool_call>",
         "C{f}A{{\"s\":  1.50, \"a\" : [ ]}}"},
        {"Now.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", "
         "\"arguments\": {}}\n</tool_call>\n",
         "T{Now.}C{f}A{{}}C{g}A{{}}"},
        {"Now. \n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\nThen\n<tool_call>{\"name\":\"g\","
         "\"arguments\":{}}</tool_call> Done. \n",
         "T{Now. \n}C{f}A{{}}T{\nThen}C{g}A{{}}T{ Done. \n}"},
        {"<tool_call>{\"arguments\": {\"s\": \"</tool_call> }\\\"{ <tool_call>\"}, \"name\": \"f\"}</tool_call>",
         "C{f}A{{\"s\": \"</tool_call> }\\\"{ <tool_call>\"}}"},
        {"<tool_call>{\"name\":\"never_heard\",\"parameters\":{\"i\":1e5}}</tool_call>",
         "C{never_heard}A{{\"i\":1e5}}"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":\" {\\\"a\\\": \\\"\\\\u00e9\\\"}\"}</tool_call>",
         "C{f}A{ {\"a\": \"\\u00e9\"}}"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":\"\"}", "C{f}A{{}}"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":null}\n", "C{f}A{{}}"},
        {"<tool_call>{\"name\":\"f\"} <tool_call>{\"name\":\"g\"}", "C{f}A{{}}C{g}A{{}}"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{}}}</tool_call>", "C{f}A{{}}T{}</tool_call>}"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{}}", CUT_OFF "C{f}A{{}}"},
        {"<tool_call>{\"n\\u0061me\":\"\\u0066\"}", "C{f}A{{}}"},
        /* no calls */
        {"<tool_call>{\"name\":\"f\",\"arguments\":{}", "T{<tool_call>{\"name\":\"f\",\"arguments\":{}}"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":[]}", "T{<tool_call>{\"name\":\"f\",\"arguments\":[]}}"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":\"[]\"}", "T{<tool_call>{\"name\":\"f\",\"arguments\":\"[]\"}}"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":\"{\"}", "T{<tool_call>{\"name\":\"f\",\"arguments\":\"{\"}}"},
        {"<tool_call>{\"name\":\"f\",\"id\":3}", "T{<tool_call>{\"name\":\"f\",\"id\":3}}"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{},\"parameters\":{}}",
         "T{<tool_call>{\"name\":\"f\",\"arguments\":{},\"parameters\":{}}}"},
        {"<tool_call>{\"name\":\"f\",\"name\":\"g\"}", "T{<tool_call>{\"name\":\"f\",\"name\":\"g\"}}"},
        {"<tool_call>{\"name\":\"\"}", "T{<tool_call>{\"name\":\"\"}}"},
        {"<tool_call>{\"name\":\"\\u0000\"}", "T{<tool_call>{\"name\":\"\\u0000\"}}"},
        {"<tool_call>{\"name\":5}", "T{<tool_call>{\"name\":5}}"},
        {"<tool_call>{\"arguments\":{}}", "T{<tool_call>{\"arguments\":{}}}"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"\\ud800\"}}",
         "T{<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"\\ud800\"}}}"},
        {"<tool_call>{\"name\":\"a\nb\"}</tool_call>", "T{<tool_call>{\"name\":\"a\nb\"}</tool_call>}"},
        {"<tool_call>{'name':'f'}</tool_call>", "T{<tool_call>{'name':'f'}</tool_call>}"},
        {"<tool_call>[{\"name\":\"f\"}]", "T{<tool_call>[{\"name\":\"f\"}]}"},
        {"<tool_call>\n\n<tool_call>{\"name\":\"f\"}", "T{<tool_call>\n}C{f}A{{}}"},
        {"<tool_call>{\"name\":<tool_call>{\"name\":\"f\"}x", "T{<tool_call>{\"name\":}C{f}A{{}}T{x}"},
        {"a <tool_cal", "T{a <tool_cal}"},
        {"<tool_call>{\"name\":\"f\"}</tool_ca", "C{f}A{{}}T{</tool_ca}"},
        {"<function=f>\n</function>", "T{<function=f>\n</function>}"},
    };
    EXPECT_ALL(MOX_CALLS_HERMES, cases);
    expect(&(feed){MOX_CALLS_UNKNOWN, false, false, false}, "<tool_call>{\"name\":\"f\"}</tool_call>",
           "T{<tool_call>{\"name\":\"f\"}</tool_call>}");
}

static void test_qwen_xml(void **state)
{
    (void)state;
    static const format_case cases[] = {
        {XML(PARAM("s", "a\nb \"q\" \\ \t<b>") PARAM("i", "5")),
         "C{f}A{{\"s\": \"a\\nb \\\"q\\\" \\\\ \\t<b>\", \"i\": 5}}"},
        {"Text \n\n" XML("") "\n" XML(PARAM("x", "-1.50")), "T{Text}C{f}A{{}}C{f}A{{\"x\": -1.50}}"},
        {XML(PARAM("s", "12") PARAM("unknown", "12") PARAM("odd", "{}") PARAM("none", "true")),
         "C{f}A{{\"s\": \"12\", \"unknown\": \"12\", \"odd\": \"{}\", \"none\": \"true\"}}"},
        {XML(PARAM("b", "True") PARAM("z", "None") PARAM("o", "{\"k\" : [1, 2.0]}") PARAM("l", " [\"x\"]\n")),
         "C{f}A{{\"b\": true, \"z\": null, \"o\": {\"k\" : [1, 2.0]}, \"l\": [\"x\"]}}"},
        {XML(PARAM("b", "yes") PARAM("z", "false") PARAM("o", "{'k': 1}") PARAM("i", "") PARAM("n", "null")),
         "C{f}A{{\"b\": \"yes\", \"z\": false, \"o\": \"{'k': 1}\", \"i\": \"\", \"n\": null}}"},
        {XML(PARAM("sn", "null") PARAM("so", "{\"a\": 1}") PARAM("any", "7") PARAM("i", "None") PARAM("b", "None")),
         "C{f}A{{\"sn\": null, \"so\": {\"a\": 1}, \"any\": \"7\", \"i\": \"None\", \"b\": \"None\"}}"},
        {XML(PARAM("sn", "5") PARAM("so", "[1]") PARAM("i", "01") PARAM("x", "1 2")),
         "C{f}A{{\"sn\": \"5\", \"so\": \"[1]\", \"i\": \"01\", \"x\": \"1 2\"}}"},
        {XML(PARAM("i", "5")), NO_TOOLS "C{f}A{{\"i\": \"5\"}}"},
        {"<function=bare><parameter=i>5</parameter></function>", "C{bare}A{{\"i\": 5}}"},
        {"See\n\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>",
         "T{See}C{f}A{{\"s\": \"x\"}}"},
        {"#include <functional> <function=h>x</function>", "T{#include <functional> <function=h>x</function>}"},
        {"<function=f></function>", NO_TOOLS "T{<function=f></function>}"},
        {"<tool_call><function=h></function></tool_call>", "C{h}A{{}}"},
        {"<tool_call>\n\n <function= f >\n\n</tool_call> x", "C{f}A{{}}T{ x}"},
        {"<tool_call><function=f>" PARAM("s", "x"), "C{f}A{{\"s\": \"x\"}}"},
        {"<tool_call><function=f>" PARAM("s", "x"),
         CUT_OFF "T{<tool_call><function=f><parameter=s>\nx\n</parameter>\n}"},
        {"<tool_call><function=f>" PARAM("s", "x") "</function>", CUT_OFF "C{f}A{{\"s\": \"x\"}}"},
        {"<tool_call><function=f><parameter=s>\nhalf", "T{<tool_call><function=f><parameter=s>\nhalf}"},
        {"<tool_call><function=f><parameter=s>\nx\n</function>\n</tool_call>", "C{f}A{{\"s\": \"x\"}}"},
        {"<tool_call><function=f><parameter=s>\nx\n</function>\n", "C{f}A{{\"s\": \"x\"}}"},
        {XML(PARAM("s", "\nx </parameter> y </function> z</parameter>\n</parameter>\n")),
         "C{f}A{{\"s\": \"\\nx </parameter> y </function> z</parameter>\\n</parameter>\\n\"}}"},
        {XML(PARAM("s", "<tool_call>\n<function=g>\n<parameter=i>\n1")),
         "C{f}A{{\"s\": \"<tool_call>\\n<function=g>\\n<parameter=i>\\n1\"}}"},
        {XML("<parameter=s></parameter><parameter=i>\n\n</parameter>"), "C{f}A{{\"s\": \"\", \"i\": \"\"}}"},
        {XML(PARAM("ключ", "日本\x01")), "C{f}A{{\"ключ\": \"日本\\u0001\"}}"},
        {XML(PARAM("i", "1") PARAM("i", "2")),
         "T{<tool_call>\n<function=f>\n" PARAM("i", "1") PARAM("i", "2") "</function>\n</tool_call>}"},
        {"<tool_call>\n<function=>\n</function>", "T{<tool_call>\n<function=>\n</function>}"},
        {"<tool_call>x" XML(""), "T{<tool_call>x}C{f}A{{}}"},
        {"<tool_call><function=f>x" XML(""), "T{<tool_call><function=f>x}C{f}A{{}}"},
        {"<tool_call><function=f><parameter=>", "T{<tool_call><function=f><parameter=>}"},
        {"<tool_call>{\"name\":\"f\"}</tool_call>", "T{<tool_call>{\"name\":\"f\"}</tool_call>}"},
    };
    EXPECT_ALL(MOX_CALLS_QWEN_XML, cases);
}

static void test_deepseek(void **state)
{
    (void)state;
    static const format_case v3[] = {
        {DS_CALLS DS_CALL "function" DS_SEP "f\n```json\n{\"s\": \"```\"}\n```" DS_END "\n" DS_CALL "function" DS_SEP
                          "g\n```json\n{}\n```" DS_END DS_CALLS_END,
         "C{f}A{{\"s\": \"```\"}}C{g}A{{}}"},
        {"Hm\n" DS_CALLS DS_CALL "function" DS_SEP "f\n```json\n\"{\\\"a\\\": 1}\"\n```" DS_END,
         "T{Hm\n}C{f}A{{\"a\": 1}}"},
        {DS_CALL "function" DS_SEP "f {}", "C{f}A{{}}"},
        {DS_CALL "function" DS_SEP "f\n```\n{}```\n" DS_CALLS_END "\nok", "C{f}A{{}}T{\nok}"},
        {DS_CALL "f" DS_SEP "{}" DS_END, "T{" DS_CALL "f" DS_SEP "{}" DS_END "}"},
        {DS_CALL "function" DS_SEP "f\n```python\n{}", "T{" DS_CALL "function" DS_SEP "f\n```python\n{}}"},
    };
    static const format_case v31[] = {
        {"A " DS_CALLS DS_CALL "f" DS_SEP "{\"s\": 1}" DS_END DS_CALL "g" DS_SEP "{}" DS_END DS_CALLS_END,
         "T{A }C{f}A{{\"s\": 1}}C{g}A{{}}"},
        {DS_CALLS "\n" DS_CALL " f \n" DS_SEP " {} \n" DS_END " " DS_CALLS_END "\n", "C{f}A{{}}"},
        {DS_CALLS "x" DS_CALL "f" DS_SEP "{}", "T{" DS_CALLS "x}C{f}A{{}}"},
        {DS_CALLS DS_CALLS_END, "T{" DS_CALLS DS_CALLS_END "}"},
        {DS_CALLS DS_CALL DS_SEP "{}", "T{" DS_CALLS DS_CALL DS_SEP "{}}"},
        {DS_CALLS DS_CALL "f" DS_SEP "{]" DS_END, "T{" DS_CALLS DS_CALL "f" DS_SEP "{]" DS_END "}"},
        {DS_CALLS DS_CALL "f" DS_SEP "\"x\"" DS_END, "T{" DS_CALLS DS_CALL "f" DS_SEP "\"x\"" DS_END "}"},
        {DS_CALL "f", "T{" DS_CALL "f}"},
        {DS_CALL "f" DS_SEP "{\"a\":", "T{" DS_CALL "f" DS_SEP "{\"a\":}"},
    };
    EXPECT_ALL(MOX_CALLS_DEEPSEEK_V3, v3);
    EXPECT_ALL(MOX_CALLS_DEEPSEEK_V31, v31);
}

static void test_glm(void **state)
{
    (void)state;
#define ARG(k, v) "<arg_key>" k "</arg_key>\n<arg_value>" v "</arg_value>\n"
    static const format_case cases[] = {
        {"\n<tool_call>f\n" ARG("s", " 5 \n") ARG("i", "5") "</tool_call>", "C{f}A{{\"s\": \" 5 \\n\", \"i\": 5}}"},
        {"T\n\n<tool_call>f\n</tool_call>\n<tool_call>h<arg_key>q</arg_key><arg_value>[1]</arg_value></tool_call>",
         "T{T}C{f}A{{}}C{h}A{{\"q\": [1]}}"},
        {"<tool_call>h\n" ARG("a", "5") ARG("b", "\"q\"") ARG("c", "word") ARG("d", "null") "</tool_call>",
         NO_TOOLS "C{h}A{{\"a\": 5, \"b\": \"\\\"q\\\"\", \"c\": \"word\", \"d\": null}}"},
        {"<tool_call>f\n" ARG("s", "a</arg_value>b\n</arg_value>") "</tool_call>",
         "C{f}A{{\"s\": \"a</arg_value>b\\n</arg_value>\"}}"},
        {"<tool_call>h\n" ARG("a", "1"), "C{h}A{{\"a\": 1}}"},
        {"<tool_call>h\n" ARG("a", "1"), CUT_OFF "T{<tool_call>h\n" ARG("a", "1") "}"},
        {"<tool_call> f ", "C{f}A{{}}"},
        {"<tool_call>h", "T{<tool_call>h}"},
        {"<tool_call>h</tool_call>", "C{h}A{{}}"},
        {"<tool_call>f\n<arg_key>a</arg_key>x", "T{<tool_call>f\n<arg_key>a</arg_key>x}"},
        {"<tool_call>f\n<arg_key></arg_key>", "T{<tool_call>f\n<arg_key></arg_key>}"},
        {"<tool_call>f<arg_key>a</arg_key><arg_value>1", "T{<tool_call>f<arg_key>a</arg_key><arg_value>1}"},
        {"<tool_call>f\n" ARG("s", "1") ARG("s", "2") "</tool_call>",
         "T{<tool_call>f\n" ARG("s", "1") ARG("s", "2") "</tool_call>}"},
        {"a <tool_call> is a tag", "T{a <tool_call> is a tag}"},
        {"<tool_call>{\"name\":\"f\"}", "T{<tool_call>{\"name\":\"f\"}}"},
    };
    EXPECT_ALL(MOX_CALLS_GLM, cases);
}

static void test_kimi(void **state)
{
    (void)state;
    static const format_case cases[] = {
        {"A\n" K2_CALLS K2_CALL "functions.f:0" K2_ARG "{\"s\": 1}" K2_END K2_CALL "functions.a.b:12" K2_ARG
         "{}" K2_END K2_CALLS_END,
         "T{A\n}C{f}A{{\"s\": 1}}C{a.b}A{{}}"},
        {K2_CALL " g7 " K2_ARG " \"{}\"", "C{g7}A{{}}"},
        {K2_CALL "functions." K2_ARG "{}", "C{functions.}A{{}}"},
        {K2_CALL "f:" K2_ARG "{}" K2_END " x", "C{f:}A{{}}T{ x}"},
        {K2_CALL ":3" K2_ARG "{}", "C{:3}A{{}}"},
        {K2_CALLS K2_CALL "functions.f:0{}", "T{" K2_CALLS K2_CALL "functions.f:0{}}"},
        {K2_CALLS K2_CALL "functions.f:0" K2_ARG "{", "T{" K2_CALLS K2_CALL "functions.f:0" K2_ARG "{}"},
    };
    EXPECT_ALL(MOX_CALLS_KIMI, cases);
}

static void test_ids(void **state)
{
    (void)state;
    static const char text[] = K2_CALL "functions.f:0" K2_ARG "{}" K2_END K2_CALL "functions.f:0" K2_ARG "{}" K2_END;
    static const char hermes[] = "<tool_call>{\"name\":\"f\"}<tool_call>{\"name\":\"f\"}";
    const mox_reply_opts opts = {.format = MOX_CALLS_KIMI, .id_seed = 0xAB},
                         other = {.format = MOX_CALLS_HERMES, .id_seed = ~UINT64_C(0)};
    mox_reply *r;
    mox_message m;
    assert_int_equal(mox_reply_create(&r, &opts, NULL), MOX_OK);
    assert_int_equal(mox_reply_push(r, text, strlen(text), NULL), MOX_OK);
    mox_reply_get_message(r, &m);
    assert_int_equal(m.n_calls, 2);
    assert_string_equal(m.calls[0].id, "functions.f:0");
    assert_string_equal(m.calls[1].id, "call_00000000000000ab_1");
    mox_reply_destroy(&r);
    assert_int_equal(mox_reply_create(&r, &other, NULL), MOX_OK);
    assert_int_equal(mox_reply_push(r, hermes, strlen(hermes), NULL), MOX_OK);
    mox_reply_get_message(r, &m);
    assert_string_equal(m.calls[0].id, "call_ffffffffffffffff_0");
    assert_string_equal(m.calls[1].id, "call_ffffffffffffffff_1");
    mox_reply_destroy(&r);
}

/* ---- streaming ---------------------------------------------------------------------------- */

/* What is out after each push: as much as is certain. */
static void test_at_once(void **state)
{
    (void)state;
    static const struct {
        const char *push, *line;
        bool thinking;
    } steps[] = {
        {"\n", "", false},
        {"<thi", "", false},
        {"nk>\nI", "K{I", true},
        {" am", "K{I am", true},
        {"\n", "K{I am", true},
        {"so\n</", "K{I am\nso", true},
        {"think", "K{I am\nso", true},
        {">", "K{I am\nso", false},
        {"\n\nHel", "K{I am\nso}T{Hel", false},
        {"lo  ", "K{I am\nso}T{Hello", false},
        {"a <", "K{I am\nso}T{Hello  a", false},
        {"b <tool_call", "K{I am\nso}T{Hello  a <b", false},
        {">{\"name\": \"f\", \"arguments\": {\"s\":", "K{I am\nso}T{Hello  a <b", false},
        {" 1}", "K{I am\nso}T{Hello  a <b", false},
        {"}", "K{I am\nso}T{Hello  a <b }C{f}A{{\"s\": 1}", false},
        {"\n</tool_call>\n", "K{I am\nso}T{Hello  a <b }C{f}A{{\"s\": 1}", false},
        {"!", "K{I am\nso}T{Hello  a <b }C{f}A{{\"s\": 1}}T{\n!", false},
    };
    notes w = {.open = -1};
    mox_reply *r;
    string_puts(&w.line, "");
    const mox_reply_opts opts = {.format = MOX_CALLS_HERMES, .on_part = note_part, .on_part_user = &w};
    assert_int_equal(mox_reply_create(&r, &opts, NULL), MOX_OK);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        assert_int_equal(mox_reply_push(r, steps[i].push, strlen(steps[i].push), NULL), MOX_OK);
        assert_string_equal(w.line.text, steps[i].line);
        assert_int_equal(mox_reply_is_thinking(r), steps[i].thinking);
    }
    mox_reply_destroy(&r);
    notes_free(&w);
    /* In what may be a call the reply is not thinking, and is again when it is none. */
    const mox_reply_opts open = {.format = MOX_CALLS_GLM, .thinking = true};
    assert_int_equal(mox_reply_create(&r, &open, NULL), MOX_OK);
    assert_true(mox_reply_is_thinking(r));
    assert_int_equal(mox_reply_push(r, "a <tool_call>f", 14, NULL), MOX_OK);
    assert_false(mox_reply_is_thinking(r));
    assert_int_equal(mox_reply_push(r, " b", 2, NULL), MOX_OK);
    assert_true(mox_reply_is_thinking(r));
    mox_reply_destroy(&r);
}

static void test_misuse(void **state)
{
    (void)state;
    static const char *const bad_tools[] = {
        "", "{}", "[", "[1]", "[{\"name\":1}]", "[{\"name\":\"a\",\"name\":\"b\"}]"};
    mox_reply *r;
    mox_err err = {0};
    mox_message m;
    for (size_t i = 0; i < sizeof bad_tools / sizeof *bad_tools; i++) {
        const mox_reply_opts opts = {.tools = {bad_tools[i], strlen(bad_tools[i])}};
        assert_int_equal(mox_reply_create(&r, &opts, &err), MOX_E_FORMAT);
        assert_null(r);
        assert_true(strstr(err.msg, "tools") != NULL);
    }
    const mox_reply_opts opts = {.format = MOX_CALLS_HERMES};
    assert_int_equal(mox_reply_create(&r, &opts, &err), MOX_OK);
    mox_reply_get_message(r, &m);
    assert_string_equal(m.text, "");
    assert_string_equal(m.thinking, "");
    assert_int_equal(mox_reply_push(r, "a\xC3", 2, &err), MOX_E_ARG);
    assert_int_equal(mox_reply_push(r, "b", 1, &err), MOX_OK);
    assert_int_equal(mox_reply_finish(r, true, &err), MOX_OK);
    assert_int_equal(mox_reply_push(r, "b", 1, &err), MOX_E_ARG);
    assert_int_equal(mox_reply_finish(r, true, &err), MOX_E_ARG);
    mox_reply_get_message(r, &m);
    assert_string_equal(m.text, "b");
    mox_reply_destroy(&r);
    mox_reply_destroy(&r);
}

static void test_limits(void **state)
{
    (void)state;
    enum { N = 1030 };
    const feed hermes = {MOX_CALLS_HERMES, false, false, false}, xml = {MOX_CALLS_QWEN_XML, false, false, false};
    string text = {0};
    notes w;
    for (int i = 0; i < N; i++) string_puts(&text, "<tool_call>{\"name\":\"f\"}");
    take_apart(&hermes, text.text, text.n, NULL, 0, &w);
    assert_int_equal(w.n_calls, 1024);
    assert_int_equal(w.text.n, (N - 1024) * strlen("<tool_call>{\"name\":\"f\"}"));
    notes_free(&w);
    string_free(&text);
    for (int deep = 63; deep <= 65; deep++) { /* containers in all; 64 are allowed */
        string_puts(&text, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":");
        for (int i = 2; i < deep; i++) string_puts(&text, "[");
        for (int i = 2; i < deep; i++) string_puts(&text, "]");
        string_puts(&text, "}}");
        take_apart(&hermes, text.text, text.n, NULL, 0, &w);
        assert_int_equal(w.n_calls, deep <= 64);
        notes_free(&w);
        string_free(&text);
        /* Tagged: what is too deep for JSON is a string. */
        string_puts(&text, "<tool_call><function=f><parameter=l>");
        for (int i = 1; i < deep; i++) string_puts(&text, "[");
        for (int i = 1; i < deep; i++) string_puts(&text, "]");
        string_puts(&text, "</parameter></function>");
        take_apart(&xml, text.text, text.n, NULL, 0, &w);
        assert_int_equal(w.n_calls, 1);
        assert_int_equal(strstr(w.line.text, "\"l\": [") != NULL, deep <= 64);
        notes_free(&w);
        string_free(&text);
    }
    for (int args = 256; args <= 257; args++) {
        string_puts(&text, "<tool_call><function=f>");
        for (int i = 0; i < args; i++) {
            char one[64];
            snprintf(one, sizeof one, "<parameter=p%d>x</parameter>", i);
            string_puts(&text, one);
        }
        string_puts(&text, "</function>");
        take_apart(&xml, text.text, text.n, NULL, 0, &w);
        assert_int_equal(w.n_calls, args == 256);
        notes_free(&w);
        string_free(&text);
    }
    for (int length = 256; length <= 257; length++) {
        string_puts(&text, "<tool_call>");
        for (int i = 0; i < length; i++) string_puts(&text, "n");
        string_puts(&text, "</tool_call>");
        take_apart(&(feed){MOX_CALLS_GLM, false, false, false}, text.text, text.n, NULL, 0, &w);
        assert_int_equal(w.n_calls, length == 256);
        notes_free(&w);
        string_free(&text);
    }
}

/* ---- what real templates write --------------------------------------------------------------- */

static char *read_file(const char *folder, const char *name, size_t *n)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s is missing", path);
    char *text = malloc(1 << 20);
    assert_non_null(text);
    *n = fread(text, 1, 1 << 20, f);
    fclose(f);
    return text;
}

typedef struct family {
    const char *file;
    mox_call_format format;
    const char *head, *end; /* the reply is what the template writes between these */
    bool head_thinks;       /* the prompt opens thinking */
    bool thinks;            /* the template writes thinking */
    bool text_and_calls;    /* the template can write both in one message */
} family;

static void put_json_string(string *s, const char *text, size_t n)
{
    string_puts(s, "\"");
    for (size_t i = 0; i < n; i++) {
        char escape[8];
        snprintf(escape, sizeof escape, "\\u%04x", (unsigned char)text[i]);
        const bool plain = (unsigned char)text[i] >= 0x20 && text[i] != '"' && text[i] != '\\';
        string_add(s, plain ? text + i : escape, plain ? 1 : 6);
    }
    string_puts(s, "\"");
}

/* The message as one of a conversation, its arguments as objects. */
static void put_message(string *s, const mox_message *m, bool null_content)
{
    string_puts(s, "{\"role\":\"assistant\",\"content\":");
    if (null_content && m->n_text == 0) {
        string_puts(s, "null");
    } else {
        put_json_string(s, m->text, m->n_text);
    }
    if (m->n_thinking > 0) {
        string_puts(s, ",\"reasoning_content\":");
        put_json_string(s, m->thinking, m->n_thinking);
    }
    for (int32_t i = 0; i < m->n_calls; i++) {
        string_puts(s, i == 0 ? ",\"tool_calls\":[" : ",");
        string_puts(s, "{\"type\":\"function\",\"id\":");
        put_json_string(s, m->calls[i].id, strlen(m->calls[i].id));
        string_puts(s, ",\"function\":{\"name\":");
        put_json_string(s, m->calls[i].name, strlen(m->calls[i].name));
        string_puts(s, ",\"arguments\":");
        string_puts(s, m->calls[i].arguments);
        string_puts(s, "}}");
        if (i == m->n_calls - 1) string_puts(s, "]");
    }
    string_puts(s, "}");
}

static void render(const mox_template *t, const family *f, const mox_message *m, mox_prompt *out)
{
    string json = {0};
    mox_err err = {0};
    string_puts(&json, "{\"messages\":[{\"role\":\"user\",\"content\":\"Q\"},");
    put_message(&json, m, !f->text_and_calls);
    string_puts(&json, "],\"add_generation_prompt\":false,\"tools\":");
    string_add(&json, tools_json, strlen(tools_json) - strlen(",{\"type\":\"other\"}]"));
    string_puts(&json, "]}");
    const mox_template_var vars[] = {{.json = json.text, .n = json.n}, {.name = "bos_token", .text = "<s>", .n = 3}};
    if (mox_template_render(t, vars, 2, NULL, out, &err) != MOX_OK) fail_msg("%s\n%s", err.msg, json.text);
    string_free(&json);
}

static const family families[] = {
    {"Qwen-Qwen3-0.6B.jinja", MOX_CALLS_HERMES, "<|im_start|>assistant\n", "<|im_end|>\n", false, true, true},
    {"Qwen3-Coder.jinja", MOX_CALLS_QWEN_XML, "<|im_start|>assistant\n", "<|im_end|>\n", false, false, true},
    {"Qwen3.5-4B.jinja", MOX_CALLS_QWEN_XML, "<|im_start|>assistant\n<think>\n", "<|im_end|>\n", true, true, true},
    {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja", MOX_CALLS_DEEPSEEK_V3, "<｜Assistant｜>",
     "<｜end▁of▁sentence｜>", false, false, false},
    {"deepseek-ai-DeepSeek-V3.1.jinja", MOX_CALLS_DEEPSEEK_V31, "<｜Assistant｜><think></think>",
     "<｜end▁of▁sentence｜>", false, false, true},
    {"GLM-4.6.jinja", MOX_CALLS_GLM, "<|assistant|>", "", false, true, true},
    {"Kimi-K2-Instruct.jinja", MOX_CALLS_KIMI, "<|im_assistant|>assistant<|im_middle|>", "<|im_end|>", false, false,
     true},
};

static const char *last_of(const char *text, const char *what)
{
    const char *found = NULL;
    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what)) found = at;
    return found;
}

/* Renders m, takes the reply out of it and apart, and renders that again. */
static void check_family(const family *f, const mox_template *t, const mox_message *m)
{
    const mox_prompt none = {0};
    mox_prompt first = none, second = none;
    render(t, f, m, &first);
    const char *head = last_of(first.text, f->head);
    assert_non_null(head);
    head += strlen(f->head);
    const size_t n = first.n - (size_t)(head - first.text) - strlen(f->end);
    assert_string_equal(head + n, f->end);
    char *reply = strndup(head, n);
    assert_non_null(reply);
    /* Through every cut, and once more to look at the message. */
    const feed how = {f->format, f->head_thinks, false, false};
    notes whole, w = {.open = -1};
    mox_rng rng;
    mox_rng_init(&rng, 3);
    take_apart(&how, reply, n, NULL, 0, &whole);
    check_cuts(&how, reply, n, &whole, &rng);
    notes_free(&whole);
    mox_reply *r;
    mox_message got;
    const mox_reply_opts opts = opts_of(&how, &w);
    assert_int_equal(mox_reply_create(&r, &opts, NULL), MOX_OK);
    assert_int_equal(mox_reply_push(r, reply, n, NULL), MOX_OK);
    assert_int_equal(mox_reply_finish(r, true, NULL), MOX_OK);
    mox_reply_get_message(r, &got);
    assert_string_equal(got.text, m->text);
    assert_string_equal(got.thinking, m->thinking);
    assert_int_equal(got.n_calls, m->n_calls);
    for (int32_t i = 0; i < m->n_calls; i++) {
        assert_string_equal(got.calls[i].name, m->calls[i].name);
        assert_string_equal(got.calls[i].arguments, m->calls[i].arguments);
    }
    render(t, f, &got, &second);
    assert_string_equal(second.text, first.text);
    mox_reply_destroy(&r);
    notes_free(&w);
    free(reply);
    mox_prompt_free(&first);
    mox_prompt_free(&second);
}

static void test_templates(void **state)
{
    static const mox_call calls[] = {
        {"a", "f",
         "{\"s\": \"line one\\nline \\\"two\\\" </tool_call> </parameter> <tool_call>\\n\", \"i\": -7, \"l\": [\"x\", "
         "1.5, null]}"},
        {"b", "f", "{}"},
        {"c", "f", "{\"b\": true, \"z\": null, \"o\": {\"k\": {\"v\": \"ü\"}}, \"s\": \"5\", \"x\": 0.25, \"n\": 3}"},
        {"d", "unknown.tool", "{\"q\": \"日本 \\\\ text\"}"},
    };
    const mox_message messages[] = {
        {.text = "Just text,\nin two lines.", .thinking = ""},
        {.text = "", .thinking = "", .calls = calls, .n_calls = 1},
        {.text = "", .thinking = "", .calls = calls, .n_calls = 4},
        {.text = "First I look.", .thinking = "", .calls = calls + 1, .n_calls = 2},
        {.text = "Answer.", .thinking = "Long\n\nthoughts <b>."},
        {.text = "", .thinking = "So I call.", .calls = calls, .n_calls = 2},
        {.text = "Both.", .thinking = "So I call.", .calls = calls + 2, .n_calls = 2},
    };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const family *f = &families[i];
        size_t n;
        mox_template *t;
        mox_err err = {0};
        char *source = read_file(*state, f->file, &n);
        if (mox_template_open(&t, f->file, source, n, &err) != MOX_OK) fail_msg("%s", err.msg);
        for (size_t k = 0; k < sizeof messages / sizeof *messages; k++) {
            mox_message m = messages[k];
            m.n_text = strlen(m.text);
            m.n_thinking = strlen(m.thinking);
            if (m.n_thinking > 0 && !f->thinks) continue;
            if (m.n_calls > 0 && m.n_text > 0 && !f->text_and_calls) continue;
            check_family(f, t, &m);
        }
        mox_template_close(&t);
        free(source);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) return 2; /* the folder of the templates */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_hermes),
        cmocka_unit_test(test_qwen_xml),
        cmocka_unit_test(test_deepseek),
        cmocka_unit_test(test_glm),
        cmocka_unit_test(test_kimi),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_limits),
        cmocka_unit_test_prestate(test_templates, argv[1]),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
