/* Grammars: what each keyword of a schema and each piece of GBNF allows and does not, what is
 * refused and with which words, how much is too much, and memory that runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fail_nth.h"
#include "grammar_kit.h"

#include <time.h>

static mox_grammar *from_schema(const char *schema)
{
    mox_grammar *g;
    mox_err err;
    if (mox_grammar_create_schema(&g, kit_json(schema), NULL, &err) != MOX_OK) fail_msg("%s: %s", schema, err.msg);
    return g;
}

static mox_grammar *from_gbnf(const char *text)
{
    mox_grammar *g;
    mox_err err;
    if (mox_grammar_create_gbnf(&g, text, strlen(text), &err) != MOX_OK) fail_msg("%s: %s", text, err.msg);
    return g;
}

/* ---- what is allowed ------------------------------------------------------------------ */

typedef struct text_case {
    const char *form;
    const char *yes[8], *no[10]; /* up to NULL */
} text_case;

static void check_texts(const text_case *cases, size_t n, mox_grammar *(*make)(const char *))
{
    for (size_t i = 0; i < n; i++) {
        mox_grammar *g = make(cases[i].form);
        for (const char *const *t = cases[i].yes; *t; t++)
            if (!kit_takes(g, *t, strlen(*t))) fail_msg("%s must allow %s", cases[i].form, *t);
        for (const char *const *t = cases[i].no; *t; t++)
            if (kit_takes(g, *t, strlen(*t))) fail_msg("%s must not allow %s", cases[i].form, *t);
        mox_grammar_destroy(&g);
    }
}

static const text_case schema_cases[] = {
    {"{\"type\": \"boolean\"}", {"true", "false"}, {"null", "True", "tru", "true ", ""}},
    {"{\"type\": \"null\"}", {"null"}, {"nul", "0"}},
    {"{\"type\": [\"integer\", \"null\"]}", {"1", "-3", "null"}, {"1.5", "\"1\"", "01", "-", "+1", "--1"}},
    {"{\"type\": \"integer\", \"nullable\": true}", {"1", "null"}, {"\"\""}},
    {"true", {"{}", "[]", "1", "\"a\"", "null"}, {"", "a"}},
    {"{\"type\": \"number\"}", {"0", "-0.5", "1e5", "1.25E-3", "0e+9"}, {"1.", ".5", "1e", "1e100", "00", "0x1", "1e05"}},
    {"{\"type\": \"number\", \"minimum\": -1.5, \"maximum\": 2.25}", {"-1.5", "-1.50", "0", "2.25", "2.2499", "2"},
     {"-1.51", "2.26", "3", "-2", "1e0", "2.2500001", "-0"}},
    {"{\"type\": \"number\", \"exclusiveMinimum\": 0, \"exclusiveMaximum\": 1}", {"0.5", "0.001", "0.9999"}, {"0", "1", "0.0", "1.0", "0.", "-0.5"}},
    {"{\"type\": \"number\", \"exclusiveMinimum\": 99.95, \"maximum\": 100.05}", {"99.951", "100", "100.05"}, {"99.95", "99.950", "100.051", "99"}},
    {"{\"type\": \"integer\", \"minimum\": 95, \"maximum\": 1002}", {"95", "100", "999", "1000", "1002"}, {"94", "1003", "9", "0", "2000", "100000"}},
    {"{\"type\": \"integer\", \"minimum\": -12, \"exclusiveMaximum\": -2}", {"-12", "-9", "-3"}, {"-13", "-2", "-1", "0", "12"}},
    {"{\"type\": \"integer\", \"minimum\": 1.5, \"maximum\": 3.5}", {"2", "3"}, {"1", "4", "2.0"}},
    {"{\"type\": \"integer\", \"minimum\": 5, \"exclusiveMinimum\": true}", {"6"}, {"5"}},
    {"{\"type\": \"integer\", \"minimum\": 1e2, \"maximum\": 1.2e2}", {"100", "120"}, {"99", "121"}},
    {"{\"type\": \"string\"}", {"\"\"", "\"a\\n\\u00e9\\ud83d\\ude00\\/\"", "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\"\x7f\""},
     {"\"", "\"\n\"", "\"\\x\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\xc3\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\\u12\""}},
    {"{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}", {"\"ab\"", "\"\xc3\xa9\\n\\ud83d\\ude00\""}, {"\"a\"", "\"abcd\"", "\"\""}},
    {"{\"type\": \"string\", \"pattern\": \"^a+b?$\"}", {"\"a\"", "\"aab\""}, {"\"b\"", "\"aabb\"", "\"\"", "\"\\u0061\""}},
    {"{\"type\": \"string\", \"pattern\": \"b\"}", {"\"b\"", "\"abc\"", "\"\\nb\\n\""}, {"\"\"", "\"ac\""}},
    {"{\"type\": \"string\", \"pattern\": \"^(a|bc)*$\", \"minLength\": 3, \"maxLength\": 3}", {"\"aaa\"", "\"abc\""}, {"\"bcbc\"", "\"aa\""}},
    {"{\"type\": \"string\", \"pattern\": \"^[^a-y]{2}\\\\.$\"}", {"\"zz.\"", "\"\xc3\xa9" "z.\""}, {"\"az.\"", "\"zzz\""}},
    {"{\"type\": \"string\", \"pattern\": \"^[\\\"\\\\\\\\]$\"}", {"\"\\\"\"", "\"\\\\\""}, {"\"\"\"", "\"a\"", "\"\\n\""}},
    {"{\"type\": \"string\", \"pattern\": \"^\\\\D\\\\W\\\\S$\"}", {"\"a-b\""}, {"\"1-b\"", "\"aab\"", "\"a- \""}},
    {"{\"type\": \"string\", \"format\": \"date\"}", {"\"2024-02-28\"", "\"1999-12-31\""}, {"\"2024-13-01\"", "\"2024-04-31\"", "\"24-01-01\""}},
    {"{\"type\": \"string\", \"format\": \"ipv6\"}", {"\"::1\"", "\"fe80::1:2\"", "\"1:2:3:4:5:6:7:8\""}, {"\"1:2:3\"", "\"12345::\"", "\"1::2::3\""}},
    {"{\"enum\": [\"a\", \"ab\", 1, null, {\"k\": [1]}]}", {"\"a\"", "\"ab\"", "1", "null", "{\"k\": [1]}"}, {"\"b\"", "2", "\"abc\"", "{\"k\":[1]}"}},
    {"{\"enum\": [1, 5, \"x\", 20], \"type\": \"integer\", \"maximum\": 9}", {"1", "5"}, {"20", "\"x\""}},
    {"{\"const\": \"\\u00e9\\n\"}", {"\"\xc3\xa9\\n\""}, {"\"\\u00e9\\n\"", "\"\""}},
    {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}}", {"[]", "[ ]", "[1]", "[1,2]", "[\n\t1, 2\n]"}, {"[1,]", "[,1]", "[a]", "[1 ,2]", "[  1]", "[1"}},
    {"{\"type\": \"array\", \"items\": {\"const\": 7}, \"minItems\": 2, \"maxItems\": 3}", {"[7,7]", "[7,7,7]"}, {"[]", "[7]", "[7,7,7,7]"}},
    {"{\"type\": \"array\", \"prefixItems\": [{\"const\": 1}, {\"const\": 2}], \"items\": {\"const\": 3}}", {"[]", "[1]", "[1,2]", "[1,2,3,3]"}, {"[2]", "[1,3]", "[1,2,2]"}},
    {"{\"type\": \"array\", \"prefixItems\": [{\"const\": 1}, {\"const\": 2}], \"minItems\": 2}", {"[1,2]"}, {"[1]", "[1,2,3]"}},
    {"{\"type\": \"array\", \"items\": [{\"const\": 1}], \"additionalItems\": {\"const\": 2}}", {"[]", "[1]", "[1,2,2]"}, {"[2]"}},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"const\": 1}, \"b\": {\"const\": 2}}, \"required\": [\"b\"]}",
     {"{\"b\":2}", "{\"a\":1,\"b\":2}", "{ \"a\": 1, \"b\": 2 }"}, {"{}", "{\"a\":1}", "{\"b\":2,\"a\":1}", "{\"b\":2,\"c\":3}", "{\"a\" :1}", "{\"b\":2,}"}},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"const\": 1}}, \"additionalProperties\": {\"const\": 2}}",
     {"{}", "{\"a\":1}", "{\"a\":1,\"b\":2,\"aa\":2}", "{\"\":2}"}, {"{\"a\":2}", "{\"b\":1}", "{\"b\":2,\"a\":2}", "{\"\\u0061\":2}"}},
    {"{\"type\": \"object\", \"additionalProperties\": {\"const\": 2}, \"minProperties\": 1, \"maxProperties\": 2}", {"{\"x\":2}", "{\"x\":2,\"y\":2}"},
     {"{}", "{\"x\":2,\"y\":2,\"z\":2}"}},
    {"{\"properties\": {\"a\": {\"type\": \"integer\"}}}", {"{}", "{\"a\":1}"}, {"1", "[]"}},
    {"{\"allOf\": [{\"properties\": {\"a\": {\"minimum\": 3}}, \"required\": [\"a\"]}, {\"properties\": {\"a\": {\"type\": \"integer\", \"maximum\": 4}}}]}",
     {"{\"a\":3}", "{\"a\":4}"}, {"{}", "{\"a\":5}", "{\"a\":2}"}},
    {"{\"oneOf\": [{\"const\": 1}, {\"type\": \"string\", \"maxLength\": 0}]}", {"1", "\"\""}, {"2", "\"a\""}},
    {"{\"type\": \"integer\", \"anyOf\": [{\"minimum\": 8}, {\"maximum\": 2}], \"maximum\": 9, \"minimum\": 1}", {"1", "2", "8", "9"}, {"3", "10", "0"}},
    {"{\"$defs\": {\"t\": {\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/t\"}}}, \"$ref\": \"#/$defs/t\"}", {"[]", "[[],[[]]]"}, {"[1]", "[[]"}},
    {"{\"type\": \"object\", \"properties\": {\"n\": {\"$ref\": \"#\"}}}", {"{}", "{\"n\":{\"n\":{}}}"}, {"{\"n\":1}"}},
};

static void test_schemas(void **state)
{
    (void)state;
    check_texts(schema_cases, sizeof schema_cases / sizeof *schema_cases, from_schema);
}

static const text_case gbnf_cases[] = {
    {"root ::= \"a\" | \"b\"", {"a", "b"}, {"", "ab", "c"}},
    {"# one\nroot ::= item (\",\" item){0,2} # two\nitem ::= [a-c]+ |\n  [0-9]\n", {"abc", "a,1,c", "7"}, {"", "a,", "a,b,c,a", "12", "d"}},
    {"root ::= \"x\"?\n  | \"yy\"*\n", {"", "x", "yyyy"}, {"y", "xx"}},
    {"root ::= [^a\\n]{2}", {"bc", "\xc3\xa9\xf0\x9f\x98\x80"}, {"ab", "b", "b\n", "bcd"}},
    {"root ::= .", {"a", "\n", "\xe2\x82\xac"}, {"", "ab", "\xe2\x82"}},
    {"root ::= [\\u00e0-\\u00ff\\U0001F600\\]-]{1,}", {"\xc3\xa9", "\xf0\x9f\x98\x80]-"}, {"a", "\xc3"}},
    {"root ::= \"\\x41\\u00e9\\\"\\\\\\t\"", {"A\xc3\xa9\"\\\t"}, {"A"}},
    {"root ::= ws \"a\" ws\nws ::= \" \"*", {"a", "  a "}, {"", "b"}},
    {"root ::= (\"a\"? \"b\"?){3}", {"", "ab", "aab", "bbb", "ababab"}, {"aaaa", "c"}},
    {"root ::= (\"a\"*)*", {"", "aaa"}, {"b"}},
    {"root ::= e\ne ::= t (\"+\" t)*\nt ::= [0-9] | \"(\" e \")\"", {"1", "(1+2)+(3)", "((((4))))"}, {"(1", "1+", ")", "()"}},
    {"root ::= \"a\" root \"b\" | \"\"", {"", "ab", "aaabbb"}, {"aab", "abb", "ba"}},
    {"root ::= l\nl ::= \"x\" l | \"y\"", {"y", "xxxxxxxxxxxxxxxxxxxxy"}, {"x"}},
    {"root ::= \"ab\"{2,3}", {"abab", "ababab"}, {"ab", "abb", "abababab"}},
    {"root::=a-b\na-b ::=(\n\"q\"\n)", {"q"}, {""}},
};

static void test_gbnf(void **state)
{
    (void)state;
    check_texts(gbnf_cases, sizeof gbnf_cases / sizeof *gbnf_cases, from_gbnf);
}

static void test_object(void **state)
{
    (void)state;
    mox_grammar *g;
    mox_err err;
    assert_int_equal(mox_grammar_create_object(&g, &err), MOX_OK);
    static const char *const yes[] = {"{}", "{\"a\": [1, {\"b\": null}], \"c\":\"\"}", "{\n}"}, *const no[] = {"[]", "{", "{\"a\"}", "{} ", "1", "{\"a\":1 }x"};
    for (size_t i = 0; i < 3; i++) assert_true(kit_takes(g, yes[i], strlen(yes[i])));
    for (size_t i = 0; i < 6; i++) assert_false(kit_takes(g, no[i], strlen(no[i])));
    char deep[300];
    for (int n = 60; n < 66; n++) { /* no deeper than our own reader goes */
        memset(deep, 0, sizeof deep);
        strcpy(deep, "{\"a\":");
        memset(deep + 5, '[', (size_t)n - 1);
        memset(deep + 4 + n, ']', (size_t)n - 1);
        strcat(deep, "}");
        assert_int_equal(kit_takes(g, deep, strlen(deep)), n <= 62);
    }
    mox_grammar_destroy(&g);
}

/* ---- what is refused ------------------------------------------------------------------- */

typedef struct refusal {
    const char *form, *words;
} refusal;

static void test_refused_schemas(void **state)
{
    static const refusal cases[] = {
        {"{\"not\": {}}", "/not is a keyword that is not supported"},
        {"{\"properties\": {\"a\": {\"if\": true}}}", "/properties/a/if is a keyword"},
        {"{\"uniqueItems\": true}", "/uniqueItems"},
        {"{\"contains\": {}}", "/contains"},
        {"{\"patternProperties\": {}}", "/patternProperties"},
        {"{\"type\": \"integer\", \"multipleOf\": 3}", "/multipleOf"},
        {"{\"maxLenght\": 3}", "/maxLenght"},
        {"{\"$ref\": \"http://example.com/x\"}", "/$ref refers to something outside"},
        {"{\"$ref\": \"#/$defs/no\"}", "refers to something that is not there"},
        {"{\"$ref\": \"#\"}", "begins with itself"},
        {"{\"allOf\": [{\"$ref\": \"#\"}, {\"type\": \"integer\"}]}", "leads back to itself"},
        {"{\"type\": \"int\"}", "/type is no type of JSON"},
        {"{\"type\": \"string\", \"pattern\": \"(?=a)\"}", "/pattern looks ahead"},
        {"{\"type\": \"string\", \"pattern\": \"a(b\"}", "/pattern has ( without )"},
        {"{\"type\": \"string\", \"pattern\": \"\\\\1\"}", "refers back"},
        {"{\"type\": \"string\", \"format\": \"regex\"}", "/format is a format that is not supported"},
        {"{\"type\": \"integer\", \"minimum\": 5, \"maximum\": 4}", "no text can be like this"},
        {"{\"type\": \"string\", \"pattern\": \"^a{5}$\", \"maxLength\": 3}", "no text can be like this"},
        {"false", "no text can be like this"},
        {"{\"type\": \"object\", \"properties\": {\"n\": {\"$ref\": \"#\"}}, \"required\": [\"n\"]}", "no text can be like this"},
        {"{\"required\": [\"a\"], \"additionalProperties\": false}", "no text can be like this"},
        {"{\"minLength\": -1}", "/minLength must be a whole number"},
        {"{\"minLength\": 99999999}", "/minLength is more than any reply has"},
        {"{\"minProperties\": 3, \"properties\": {\"a\": true}}", "/minProperties"},
        {"[1]", "must be a schema"},
        {"{\"anyOf\": []}", "/anyOf must be an array of schemas"},
        {"{", "schema: byte 1"},
        {"", "schema: byte 0"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_grammar *g;
        mox_err err = {0};
        const mox_status status = mox_grammar_create_schema(&g, kit_json(cases[i].form), NULL, &err);
        if (status == MOX_OK || g) fail_msg("%s must be refused", cases[i].form);
        if (!strstr(err.msg, cases[i].words)) fail_msg("%s: %s", cases[i].form, err.msg);
    }
}

static void test_refused_gbnf(void **state)
{
    static const refusal cases[] = {
        {"", "line 1, column 1: there is no rule"},
        {"# nothing\n\n", "line 3, column 1: there is no rule"},
        {"Root ::= \"a\"", "line 1, column 1: there is no rule `root`; the first one is `Root`"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: this rule is there already: `root`"},
        {"root ::= x\n", "line 1, column 10: there is no rule `x`"},
        {"root ::= x\nx ::= x \"a\" | \"b\"", "line 2, column 1: rule `x`: a rule begins with itself"},
        {"root ::= y \"a\"\ny ::= \"q\"? z\nz ::= root", "column 1: rule `"},
        {"root ::= \"a\"{0,1000000}", "line 1, column 16: something is repeated more than 100000 times"},
        {"root ::= \"a\"{3,2}", "column 17: a repetition has its numbers"},
        {"root ::= \"a\"{x}", "column 14: a number of repetitions is missing"},
        {"root ::= \"a\"{1", "column 15: a } is missing"},
        {"root ::= \"abc", "line 1, column 10: a text has no closing quote"},
        {"root ::=\n\n [abc", "line 3, column 2: a class has no closing bracket"},
        {"root ::= [z-a]", "column 14: a range runs backwards"},
        {"root ::= (\"a\"", "column 10: a ( is not closed"},
        {"root ::= \"a\")", "column 13: a ) was not opened"},
        {"root ::= *", "column 10: there is nothing to repeat"},
        {"root ::= \"\\q\"", "column 12: this escape is not known"},
        {"root ::= \"\\x4\"", "column 14: an escape has too few"},
        {"root ::= \"\\ud800\"", "column 17: an escape is no character"},
        {"root = \"a\"", "column 6: ::= is missing"},
        {"::= \"a\"", "column 1: a rule must begin with its name"},
        {"root ::= \"\xff\"", "column 11: this is no UTF-8"},
        {"root ::= $", "column 10: this is not understood"},
        {"root ::= \"a\" root", "no text can be like this"},
        {"root ::= (\"a\"?){0,1000}", "something that may be empty is repeated"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_grammar *g;
        mox_err err = {0};
        const mox_status status = mox_grammar_create_gbnf(&g, cases[i].form, strlen(cases[i].form), &err);
        if (status == MOX_OK || g) fail_msg("%s must be refused", cases[i].form);
        if (!strstr(err.msg, cases[i].words)) fail_msg("%s: %s", cases[i].form, err.msg);
    }
}

/* ---- how much is too much ------------------------------------------------------------------ */

static char *big; /* what the next functions make */

static char *repeated(const char *before, const char *part, size_t n, const char *behind)
{
    const size_t length = strlen(part);
    free(big);
    big = malloc(strlen(before) + n * length + strlen(behind) + 1);
    char *p = stpcpy(big, before);
    for (size_t i = 0; i < n; i++) p = stpcpy(p, part);
    strcpy(p, behind);
    return big;
}

static char *put_numbers(char *p, const char *text, size_t i)
{
    for (; *text; text++)
        if (*text == '@' || *text == '^') p += sprintf(p, "%zu", *text == '@' ? i : i + 1);
        else *p++ = *text;
    *p = '\0';
    return p;
}

/* The part n times, with its number for @ and the next one's for ^; behind it @ is n. */
static char *numbered(const char *before, const char *part, size_t n, const char *behind)
{
    free(big);
    big = malloc(strlen(before) + n * (strlen(part) + 40) + strlen(behind) + 40);
    char *p = stpcpy(big, before);
    for (size_t i = 0; i < n; i++) p = put_numbers(p, part, i);
    put_numbers(p, behind, n);
    return big;
}

static char *many_values(size_t n) { return numbered("{\"enum\": [0", ",\"v@\"", n, "]}"); }

static char *many_properties(size_t n)
{
    return numbered("{\"type\": \"object\", \"properties\": {\"p\": {}", ",\"p@\": {}", n, "}}");
}

static char *chained_refs(size_t n)
{
    return numbered("{\"$ref\": \"#/$defs/d0\", \"$defs\": {\"x\": {}", ",\"d@\": {\"$ref\": \"#/$defs/d^\"}", n,
                    ",\"d@\": {\"type\": \"null\"}}}");
}

/* Each definition asks for the next one twice, and the last for twenty thousand times nothing. */
static char *doubled_refs(size_t n)
{
    char *last = strdup(repeated("\"d@\": {\"allOf\": [{}", ",{}", 19999, "]}}}"));
    numbered("{\"$ref\": \"#/$defs/d0\", \"$defs\": {", "\"d@\": {\"allOf\": [{\"$ref\": \"#/$defs/d^\"}, {\"$ref\": \"#/$defs/d^\"}]},", n, last);
    free(last);
    return big;
}

/* Each rule ends with the next. */
static char *chained_rules(size_t n) { return numbered("root ::= r0\n", "r@ ::= [a] [b] r^\n", n, "r@ ::= [c]"); }

/* Seconds of the processor that it took to say yes or no. */
static double time_of(const char *form, bool gbnf, mox_status *status, mox_err *err)
{
    mox_grammar *g;
    const clock_t begin = clock();
    *status = gbnf ? mox_grammar_create_gbnf(&g, form, strlen(form), err) : mox_grammar_create_schema(&g, kit_json(form), NULL, err);
    const double s = (double)(clock() - begin) / CLOCKS_PER_SEC;
    if (*status == MOX_OK && !gbnf && strlen(form) < 1000) assert_false(kit_takes(g, "\x01", 1));
    mox_grammar_destroy(&g);
    return s;
}

typedef struct limit_case {
    const char *name;
    char *form;
    bool gbnf, refused;
} limit_case;

static void check_limit(const limit_case *c)
{
    mox_status status;
    mox_err err = {0};
    const double s = time_of(c->form, c->gbnf, &status, &err);
    if (s > (RUNS_SANITIZED ? 10.0 : 1.0)) fail_msg("%s took %.2f s", c->name, s);
    if ((status != MOX_OK) != c->refused) fail_msg("%s: %s", c->name, status == MOX_OK ? "is not refused" : err.msg);
}

static void test_limits(void **state)
{
    (void)state;
    check_limit(&(limit_case){"1 MB of enum", many_values(90000), false, true});
    check_limit(&(limit_case){"5000 values", many_values(5000), false, false});
    check_limit(&(limit_case){"1500 properties", many_properties(1500), false, false});
    check_limit(&(limit_case){"30000 properties", many_properties(30000), false, true});
    check_limit(&(limit_case){"3000 references", chained_refs(3000), false, false});
    check_limit(&(limit_case){"9000 references", chained_refs(9000), false, true});
    check_limit(&(limit_case){"depth 1000", repeated("", "{\"items\": ", 1000, "{}"), false, true});
    check_limit(&(limit_case){"30 array levels", repeated("{\"items\": ", "{\"items\": ", 29, "{}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}"), false, true});
    check_limit(&(limit_case){"nested quantifiers", repeated("", "{\"type\": \"string\", \"pattern\": \"(a+)+$\"}", 1, ""), false, false});
    check_limit(&(limit_case){"60k parentheses in a pattern", repeated("{\"pattern\": \"", "(", 60000, "\"}"), false, true});
    check_limit(&(limit_case){"a pattern of many states", repeated("", "{\"pattern\": \"(a|b)*a(a|b){20}$\"}", 1, ""), false, true});
    check_limit(&(limit_case){"a pattern counted three times", repeated("", "{\"pattern\": \"((a{1,99}){1,99}){1,99}\"}", 1, ""), false, true});
    check_limit(&(limit_case){"2^20 combinations", repeated("{\"allOf\": [", "{\"anyOf\": [{\"minimum\": 1}, {\"maximum\": 5}]},", 20, "true]}"), false, true});
    check_limit(&(limit_case){"20000 parts of allOf", repeated("{\"allOf\": [", "{\"properties\": {\"a\": {}}},", 20000, "true]}"), false, true});
    check_limit(&(limit_case){"nothing, 10^16 times", repeated("", "{\"pattern\": \"(((((){10000}){10000}){10000}){10000})\"}", 1, ""), false, true});
    check_limit(&(limit_case){"2^17 times nothing", doubled_refs(17), false, true});
    check_limit(&(limit_case){"4000 rules in a chain", chained_rules(4000), true, false});
    check_limit(&(limit_case){"130000 stars", repeated("root ::= \"a\"", "*", 130000, ""), true, true});
    check_limit(&(limit_case){"4000 texts", repeated("root ::= \"a\"", " | \"bcdefg\"", 4000, ""), true, false});
    check_limit(&(limit_case){"60k parentheses", repeated("root ::= ", "(", 60000, "\"a\""), true, true});
    check_limit(&(limit_case){"200 parentheses", repeated("root ::= ((((((((((", "(\"a\")", 200, "))))))))))"), true, false});
    check_limit(&(limit_case){"600 KB of grammar", repeated("root ::= \"a\"", " | [a-z] \"b\"", 50000, ""), true, true});
    check_limit(&(limit_case){"2 MB of grammar", repeated("root ::= \"a\"", " ", 2 << 20, ""), true, true});
    free(big);
    big = NULL;
}

/* Ambiguity costs states, not copies of stacks; what is beyond bounds is an error. */
static void test_ambiguity(void **state)
{
    mox_err err;
    (void)state;
    mox_grammar *g = from_gbnf("root ::= ((\"a\" | \"aa\" | \"a\"){0,12}){0,12} \"b\"");
    mox_constraint *c = kit_constraint(g);
    for (int i = 0; i < 200; i++)
        if (mox_constraint_accept_bytes(c, "a", 1, &err) != MOX_OK) fail_msg("%s", err.msg);
    mox_constraint_destroy(&c);
    mox_grammar_destroy(&g);
    g = from_gbnf("root ::= ((((\"a\"{0,90}){1,90}){1,90}){1,90}){1,90}");
    mox_status status = MOX_OK;
    if (mox_constraint_create(&c, g, kit_trie, &kit_end, 1, &err) != MOX_OK) status = err.status;
    for (int i = 0; i < 400 && status == MOX_OK; i++) status = mox_constraint_accept_bytes(c, "a", 1, &err);
    assert_int_equal(status, MOX_E_LIMIT);
    mox_constraint_destroy(&c);
    mox_grammar_destroy(&g);
}

/* ---- lenient ---------------------------------------------------------------------------------- */

static void count_warning(void *user, const char *sentence)
{
    ++*(int *)user;
    assert_non_null(strstr(sentence, "schema: /"));
}

static void test_lenient(void **state)
{
    int warnings = 0;
    const mox_schema_opts opts = {.lenient = true, .warn = count_warning, .warn_user = &warnings};
    static const char schema[] = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\", \"pattern\": \"(?!x)\", \"maxLength\": 3}, "
                                 "\"b\": {\"$ref\": \"other.json\"}, \"c\": {\"type\": \"integer\", \"multipleOf\": 2}}, \"not\": {}, "
                                 "\"required\": [\"a\", \"b\", \"c\"]}";
    mox_grammar *g;
    mox_err err;
    (void)state;
    if (mox_grammar_create_schema(&g, kit_json(schema), &opts, &err) != MOX_OK) fail_msg("%s", err.msg);
    assert_int_equal(warnings, 4);
    static const char good[] = "{\"a\":\"xyz\",\"b\":[],\"c\":3}", bad[] = "{\"a\":\"wxyz\",\"b\":[],\"c\":3}";
    assert_true(kit_takes(g, good, sizeof good - 1));
    assert_false(kit_takes(g, bad, sizeof bad - 1));
    mox_grammar_destroy(&g);
}

/* ---- tokens -------------------------------------------------------------------------------------- */

/* The mask has exactly the tokens that may come, asked one by one. */
static void test_masks(void **state)
{
    static const struct {
        const char *schema, *before;
    } cases[] = {
        {"{\"type\": \"string\"}", "\"ab"},           {"{\"type\": \"string\", \"maxLength\": 4}", "\"ab"}, {"{\"type\": \"string\", \"pattern\": \"^[^<]*x$\"}", "\"ab"},
        {"{\"type\": \"string\"}", "\"a\xc3"},         {"{\"type\": \"string\"}", "\"a\\"},                  {"{\"type\": \"string\", \"pattern\": \"^[a-z ]*$\"}", "\""},
        {"{\"type\": \"number\"}", "12"},             {"{\"properties\": {\"a\": {}, \"b\": {}}}", "{"},     {"{\"type\": \"string\", \"pattern\": \"b\"}", "\"b"},
        {"{\"enum\": [\"Paris\", \"Part\"]}", "\"Pa"}, {"{\"type\": \"string\", \"minLength\": 3}", "\"a"},   {"true", ""},
        {"{\"type\": \"string\", \"pattern\": \"^\\\\w+( \\\\w+)*$\"}", "\"ab"}, {"{\"type\": \"string\", \"pattern\": \"^[A-Za-z]+[0-9]$\"}", "\"ab"},
        {"{\"type\": \"string\", \"pattern\": \"^\\\\w+( \\\\w+)*$\", \"minLength\": 9}", "\"ab"}, {"{\"type\": \"string\", \"pattern\": \"^\\\\w+x$\", \"maxLength\": 7}", "\"ab"},
    };
    const int32_t n = mox_tokenizer_size(kit_tokenizer);
    unsigned char *mask = malloc((size_t)n + 3);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_grammar *g = from_schema(cases[i].schema);
        mox_constraint *c = kit_constraint(g);
        mox_err err;
        int64_t allowed = 0;
        assert_int_equal(mox_constraint_accept_bytes(c, cases[i].before, strlen(cases[i].before), &err), MOX_OK);
        assert_int_equal(mox_constraint_mask(c, mask, n + 3, &err), MOX_OK);
        for (int32_t id = 0; id < n + 3; id++) {
            bool yes;
            assert_int_equal(mox_constraint_allows(c, id, &yes, &err), MOX_OK);
            if (yes != mask[id]) fail_msg("%s after %s: token %d", cases[i].schema, cases[i].before, (int)id);
            if (yes) assert_int_equal(mox_constraint_accept_bytes(c, "", 0, &err), MOX_OK);
            allowed += yes;
        }
        assert_true(allowed > 0 && allowed < n);
        assert_int_equal(mask[kit_end], mox_constraint_may_end(c));
        assert_int_equal(mox_constraint_mask(c, mask, 5, &err) == MOX_E_STATE || mask[4] <= 1, 1); /* a shorter one is no overflow */
        mox_constraint_destroy(&c);
        mox_grammar_destroy(&g);
    }
    free(mask);
}

static void test_ends(void **state)
{
    mox_err err;
    bool yes;
    (void)state;
    mox_grammar *g = from_gbnf("root ::= \"a\" \"b\"?");
    mox_constraint *c = kit_constraint(g);
    assert_false(mox_constraint_may_end(c));
    assert_int_equal(mox_constraint_accept(c, kit_end, &err), MOX_E_ARG);
    assert_int_equal(mox_constraint_accept_bytes(c, "x", 1, &err), MOX_E_ARG);
    assert_int_equal(mox_constraint_accept_bytes(c, "a", 1, &err), MOX_OK);
    assert_true(mox_constraint_may_end(c) && !mox_constraint_must_end(c));
    assert_int_equal(mox_constraint_allows(c, kit_end, &yes, &err), MOX_OK);
    assert_true(yes);
    assert_int_equal(mox_constraint_accept_bytes(c, "b", 1, &err), MOX_OK);
    assert_true(mox_constraint_must_end(c));
    /* again, and with line breaks in front */
    assert_int_equal(mox_constraint_begin(c, true, &err), MOX_OK);
    assert_int_equal(mox_constraint_accept_bytes(c, "\n\na", 3, &err), MOX_OK);
    assert_int_equal(mox_constraint_begin(c, true, &err), MOX_OK);
    assert_int_equal(mox_constraint_accept_bytes(c, "\n\n\na", 4, &err), MOX_E_ARG);
    assert_int_equal(mox_constraint_begin(c, false, &err), MOX_OK);
    assert_int_equal(mox_constraint_accept_bytes(c, "\na", 2, &err), MOX_E_ARG);
    mox_constraint_destroy(&c);
    mox_grammar_destroy(&g);
    g = from_gbnf("root ::= \"\"");
    c = kit_constraint(g);
    assert_true(mox_constraint_must_end(c));
    mox_constraint_destroy(&c);
    mox_grammar_destroy(&g);
}

/* A mask that is too short for any token that could come. */
static void test_dead_end(void **state)
{
    unsigned char mask[1];
    mox_err err = {0};
    (void)state;
    mox_grammar *g = from_gbnf("root ::= \"\\U0001F600\"");
    mox_constraint *c = kit_constraint(g);
    assert_int_equal(mox_constraint_mask(c, mask, 1, &err), MOX_E_STATE);
    assert_non_null(strstr(err.msg, "grammar dead end"));
    mox_constraint_destroy(&c);
    mox_grammar_destroy(&g);
}

/* ---- memory ------------------------------------------------------------------------------------------ */

static mox_status make_all(void)
{
    static const char schema[] = "{\"type\": \"object\", \"properties\": {\"a\": {\"pattern\": \"^[a-f]{2,3}$\", \"maxLength\": 2}, \"b\": {\"enum\": [\"x\", 1]}, "
                                 "\"c\": {\"type\": \"number\", \"minimum\": 0.5}, \"d\": {\"$ref\": \"#/properties/b\"}}, \"additionalProperties\": true}";
    static const char gbnf[] = "root ::= [a-z]+ (\"b\" x){1,3}\nx ::= \"\\u00e9\" | \"y\"";
    static const char tools[] = "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"s\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\"}}}}]";
    const mox_calls_opts calls = {.format = "qwen-xml", .tools = {tools, sizeof tools - 1}, .parallel = true};
    mox_grammar *g = NULL;
    mox_token_trie *trie = NULL;
    mox_constraint *c = NULL;
    mox_err err = {0};
    mox_status status = mox_grammar_create_gbnf(&g, gbnf, sizeof gbnf - 1, &err);
    mox_grammar_destroy(&g);
    if (status == MOX_OK) status = mox_grammar_create_calls(&g, &calls, &err);
    mox_grammar_destroy(&g);
    if (status == MOX_OK) status = mox_token_trie_create(&trie, kit_tokenizer, &err);
    if (status == MOX_OK) status = mox_grammar_create_schema(&g, kit_json(schema), NULL, &err);
    if (status == MOX_OK) status = mox_constraint_create(&c, g, trie, &kit_end, 1, &err);
    mox_constraint_destroy(&c);
    mox_grammar_destroy(&g);
    mox_token_trie_destroy(&trie);
    assert_true(status == MOX_OK || (status == MOX_E_MEMORY && err.status == MOX_E_MEMORY));
    return status;
}

static void test_fail_nth(void **state)
{
    (void)state;
    mox_status status = MOX_E_MEMORY;
    long i = 1;
    for (; status != MOX_OK; i++) {
        nth n = {.at = i};
        const int64_t live = mox_alloc_live();
        mox_alloc_set_hook(fail_nth_alloc, &n);
        status = make_all();
        mox_alloc_set_hook(NULL, NULL);
        assert_int_equal(mox_alloc_live(), live);
    }
    assert_true(i > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemas),  cmocka_unit_test(test_gbnf),      cmocka_unit_test(test_object),   cmocka_unit_test(test_refused_schemas),
        cmocka_unit_test(test_refused_gbnf), cmocka_unit_test(test_limits), cmocka_unit_test(test_ambiguity), cmocka_unit_test(test_lenient),
        cmocka_unit_test(test_masks),    cmocka_unit_test(test_ends),      cmocka_unit_test(test_dead_end), cmocka_unit_test(test_fail_nth),
    };
    return cmocka_run_group_tests(tests, kit_begin, kit_finish);
}
