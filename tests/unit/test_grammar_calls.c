/* Tool calls that a grammar has written are tool calls to the parser of the same format: the name is one
 * of the tools, the arguments are an object with the required keys, and nothing is left as text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "grammar_kit.h"
#include "text/reply.h"

#include <jansson.h>

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": {\"type\": \"object\", \"properties\": {"
    "\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 14}, "
    "\"unit\": {\"enum\": [\"C\", \"F\"], \"type\": \"string\"}, \"flags\": {\"type\": \"array\", \"items\": {\"type\": \"boolean\"}, \"maxItems\": 3}}, "
    "\"required\": [\"city\", \"days\"]}}}, "
    "{\"type\": \"function\", \"function\": {\"name\": \"now\", \"parameters\": {\"type\": \"object\", \"properties\": {}}}}, "
    "{\"name\": \"bare\"}]";

static const struct {
    const char *name;
    mox_call_format format;
    const char *one, *two; /* as the family writes them */
} formats[] = {
    {"hermes", MOX_CALLS_HERMES,
     "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 3}}\n</tool_call>",
     "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"bare\", \"arguments\": {}}\n</tool_call>"},
    {"qwen-xml", MOX_CALLS_QWEN_XML,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome <b>\n\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=unit>\nF\n</parameter>\n</function>\n</tool_call>",
     "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=bare>\n</function>\n</tool_call>"},
    {"glm", MOX_CALLS_GLM,
     "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n<arg_value>14</arg_value>\n</tool_call>",
     "<tool_call>now\n</tool_call>\n<tool_call>bare\n</tool_call>"},
    {"deepseek-v3", MOX_CALLS_DEEPSEEK_V3,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Rome\", \"days\": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>bare\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {"deepseek-v3.1", MOX_CALLS_DEEPSEEK_V31,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Rome\", \"days\": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>bare<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {"kimi-k2", MOX_CALLS_KIMI,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Rome\", \"days\": 3}<|tool_call_end|><|tool_calls_section_end|>",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.bare:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"},
};

enum { N_FORMATS = sizeof formats / sizeof *formats };

static mox_grammar *make(size_t format, const char *name, bool parallel)
{
    const mox_calls_opts opts = {.format = formats[format].name, .tools = {tools, sizeof tools - 1}, .name = name, .parallel = parallel};
    mox_grammar *g;
    mox_err err;
    if (mox_grammar_create_calls(&g, &opts, &err) != MOX_OK) fail_msg("%s: %s", formats[format].name, err.msg);
    return g;
}

static void check_call(const mox_call *call)
{
    json_t *arguments = json_loads(call->arguments, 0, NULL);
    assert_true(json_is_object(arguments));
    if (strcmp(call->name, "get_weather") == 0) {
        const json_t *days = json_object_get(arguments, "days"), *unit = json_object_get(arguments, "unit");
        const json_t *flags = json_object_get(arguments, "flags");
        assert_true(json_is_string(json_object_get(arguments, "city")));
        assert_true(json_is_integer(days) && json_integer_value(days) >= 1 && json_integer_value(days) <= 14);
        assert_true(!unit || strcmp(json_string_value(unit), "C") == 0 || strcmp(json_string_value(unit), "F") == 0);
        assert_true(!flags || json_array_size(flags) <= 3);
    } else {
        assert_true(strcmp(call->name, "now") == 0 || strcmp(call->name, "bare") == 0);
        assert_int_equal(json_object_size(arguments), 0);
    }
    json_decref(arguments);
}

/* What the parser makes of a text: so many calls, and no text beside them. */
static int32_t parse(size_t format, const char *text, size_t n)
{
    const mox_reply_opts opts = {.format = formats[format].format, .tools = {tools, sizeof tools - 1}};
    mox_reply *r;
    mox_message m;
    mox_err err;
    assert_int_equal(mox_reply_create(&r, &opts, &err), MOX_OK);
    assert_int_equal(mox_reply_push(r, text, n, &err), MOX_OK);
    assert_int_equal(mox_reply_finish(r, true, &err), MOX_OK);
    mox_reply_get_message(r, &m);
    if (m.n_text > 0) fail_msg("%s: %.*s leaves %s", formats[format].name, (int)n, text, m.text);
    for (int32_t i = 0; i < m.n_calls; i++) check_call(&m.calls[i]);
    const int32_t n_calls = m.n_calls;
    mox_reply_destroy(&r);
    return n_calls;
}

static void test_layouts(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FORMATS; f++) {
        const char *one = formats[f].one, *two = formats[f].two;
        mox_grammar *several = make(f, NULL, true), *single = make(f, NULL, false), *named = make(f, "now", false);
        if (!kit_takes(several, one, strlen(one)) || !kit_takes(single, one, strlen(one))) fail_msg("%s: one call", formats[f].name);
        if (!kit_takes(several, two, strlen(two))) fail_msg("%s: two calls", formats[f].name);
        assert_false(kit_takes(single, two, strlen(two)));
        assert_false(kit_takes(named, one, strlen(one)));
        assert_false(kit_takes(several, "Hello", 5));
        assert_int_equal(parse(f, one, strlen(one)), 1);
        assert_int_equal(parse(f, two, strlen(two)), 2);
        mox_grammar_destroy(&several);
        mox_grammar_destroy(&single);
        mox_grammar_destroy(&named);
    }
}

/* Calls, or JSON instead of them; nothing that is part of both. */
static void test_calls_or_json(void **state)
{
    static const char schema[] = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": [\"a\"]}";
    static const char good[] = "{\"a\": 5}", other[] = "{\"b\": [1]}";
    (void)state;
    for (size_t f = 0; f < N_FORMATS; f++)
        for (int object = 0; object < 2; object++) {
            const mox_calls_opts opts = {.format = formats[f].name, .tools = {tools, sizeof tools - 1}, .parallel = true, .or_object = object,
                                         .or_schema = {object ? NULL : schema, object ? 0 : sizeof schema - 1}};
            const char *one = formats[f].one, *two = formats[f].two;
            char both[1000];
            mox_grammar *g;
            mox_err err;
            if (mox_grammar_create_calls(&g, &opts, &err) != MOX_OK) fail_msg("%s: %s", formats[f].name, err.msg);
            assert_true(kit_takes(g, one, strlen(one)) && kit_takes(g, two, strlen(two)) && kit_takes(g, good, sizeof good - 1));
            assert_int_equal(kit_takes(g, other, sizeof other - 1), object);
            assert_false(kit_takes(g, "Hello", 5) || kit_takes(g, "", 0));
            (void)snprintf(both, sizeof both, "%s\n%s", good, one);
            assert_false(kit_takes(g, both, strlen(both)));
            (void)snprintf(both, sizeof both, "%s\n%s", one, good);
            assert_false(kit_takes(g, both, strlen(both)));
            mox_grammar_destroy(&g);
        }
}

static void test_random_calls(void **state)
{
    static char text[1 << 16];
    int ended = 0;
    (void)state;
    for (size_t f = 0; f < N_FORMATS; f++) {
        mox_grammar *g = make(f, NULL, true);
        for (uint64_t seed = 0; seed < 20; seed++) {
            size_t n;
            if (!kit_walk(g, seed, text, sizeof text, &n)) continue;
            ended++;
            assert_true(parse(f, text, n) >= 1);
        }
        mox_grammar_destroy(&g);
    }
    assert_true(ended > 100);
}

static void test_refusals(void **state)
{
#define A_TOOL "{\"name\": \"a\", \"parameters\": {\"properties\": {\"x\": {\"anyOf\": [{}, {\"type\": \"null\"}]}}}}"
#define CIRCLE "{\"anyOf\": [{\"$ref\": \"#\"}, {\"type\": \"object\"}]}"
    static const char circle[] = "[" A_TOOL ", {\"name\": \"b\", \"parameters\": " CIRCLE "}, {\"name\": \"c\"}]";
    static const char tagged[] = "[" A_TOOL ", {\"name\": \"b\", \"parameters\": {\"properties\": {\"y\": {\"$ref\": \"#/properties/y\"}}}}]";
#define NEVER "{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#\"}}, \"required\": [\"a\"]}"
    static const struct {
        mox_calls_opts opts;
        const char *words;
    } cases[] = {
        {{.format = NULL, .tools = {tools, sizeof tools - 1}}, "is not known"},
        {{.format = "none", .tools = {tools, sizeof tools - 1}}, "is not known"},
        {{.format = "hermes", .tools = {tools, sizeof tools - 1}, .name = "no"}, "there is no tool named no"},
        {{.format = "hermes", .tools = {"[]", 2}}, "there is none that could be called"},
        {{.format = "hermes"}, "there is none that could be called"},
        {{.format = "hermes", .tools = {"{}", 2}}, "tools"},
        {{.format = "glm", .tools = {"[{\"name\": \"a>b\"}]", 17}}, "cannot be written"},
        {{.format = "hermes", .tools = {tools, sizeof tools - 1}, .or_schema = {"{\"not\": {}}", 11}}, "not"},
        {{.format = "hermes", .tools = {tools, sizeof tools - 1}, .or_schema = {"{\"enum\": []}", 12}}, "no text can be like this"},
        {{.format = "hermes", .tools = {tools, sizeof tools - 1}, .or_schema = {"{\"$ref\": \"#\"}", 13}}, "begins with itself"},
        {{.format = "hermes", .tools = {tools, sizeof tools - 1}, .or_schema = {NEVER, sizeof NEVER - 1}}, "no text can be like this"},
        {{.format = "hermes", .tools = {circle, sizeof circle - 1}}, "tool b: what its parameters may be begins with itself"},
        {{.format = "hermes", .tools = {circle, sizeof circle - 1}, .or_object = true}, "tool b: "},
        {{.format = "hermes", .tools = {circle, sizeof circle - 1}, .or_schema = {"{}", 2}}, "tool b: "},
        {{.format = "glm", .tools = {tagged, sizeof tagged - 1}, .parallel = true}, "tool b: "},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_grammar *g;
        mox_err err = {0};
        assert_int_not_equal(mox_grammar_create_calls(&g, &cases[i].opts, &err), MOX_OK);
        assert_null(g);
        if (!strstr(err.msg, cases[i].words)) fail_msg("%zu: %s", i, err.msg);
    }
}

static void test_many_tools(void **state)
{
    char *all = malloc(1 << 20), *p = all;
    (void)state;
    for (int n = 300; n <= 1000; n += 700) {
        p = stpcpy(all, "[");
        for (int i = 0; i < n; i++) p += sprintf(p, "%s{\"name\": \"tool_%d\", \"parameters\": {\"properties\": {\"a\": {\"type\": \"string\"}}}}", i ? "," : "", i);
        p = stpcpy(p, "]");
        const mox_calls_opts opts = {.format = "hermes", .tools = {all, (size_t)(p - all)}};
        mox_grammar *g;
        mox_err err = {0};
        const mox_status status = mox_grammar_create_calls(&g, &opts, &err);
        assert_int_equal(status, n == 300 ? MOX_OK : MOX_E_LIMIT);
        static const char call[] = "<tool_call>\n{\"name\": \"tool_299\", \"arguments\": {\"a\": \"\"}}\n</tool_call>";
        if (g) assert_true(kit_takes(g, call, sizeof call - 1));
        mox_grammar_destroy(&g);
    }
    free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layouts), cmocka_unit_test(test_calls_or_json), cmocka_unit_test(test_random_calls), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_many_tools)};
    return cmocka_run_group_tests(tests, kit_begin, kit_finish);
}
