/* Chat templates beyond what the reference can tell: where bytes are from, errors and
 * their places, limits, variables, threads and failing allocations.  That templates
 * render as the reference renders them is in tests/text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "fail_nth.h"
#include "text/template.h"
#include "tokenizer_kit.h"

#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const mox_template_var usual[] = {
    {.json = "{\"u\":\"Uv\",\"w\":\"a\\n\\\"<\",\"d\":{\"key\":\"val\",\"n\":1},\"l\":[\"p\",\"q\"],\"n\":7,"
             "\"j\":\"{\\\"a\\\": \\\"b\\\"}\",\"users\":[{\"name\":\"bo\"},{\"name\":\"al\"}]}"}, /* n is filled in */
    {.name = "bos", .text = "<s>", .n = 3, .trusted = true},
};

static mox_status render_with(const char *text, const mox_template_var *vars, size_t n_vars,
                              const mox_template_opts *opts, mox_prompt *out, mox_err *err)
{
    mox_template *t;
    *out = (mox_prompt){0};
    mox_status status = mox_template_open(&t, "test", text, strlen(text), err);
    assert_true((status == MOX_OK) == (t != NULL));
    if (status == MOX_OK) status = mox_template_render(t, vars, n_vars, opts, out, err);
    if (status != MOX_OK) assert_null(out->text);
    mox_template_close(&t);
    return status;
}

static mox_status render(const char *text, mox_prompt *out, mox_err *err)
{
    mox_template_var vars[2] = {usual[0], usual[1]};
    vars[0].n = strlen(vars[0].json);
    return render_with(text, vars, 2, NULL, out, err);
}

/* ---- origin ----------------------------------------------------------------------------- */

/* The text with the user's parts in «». */
static void mark(const mox_prompt *p, char *out, size_t size)
{
    size_t n = 0, span = 0;
    for (size_t i = 0; i <= p->n; i++) {
        if (span < p->n_plain && p->plain[span].end == i) {
            n += (size_t)snprintf(out + n, size - n, "»");
            span++;
        }
        if (span < p->n_plain && p->plain[span].begin == i) n += (size_t)snprintf(out + n, size - n, "«");
        if (i < p->n) out[n++] = p->text[i];
    }
    out[n] = '\0';
}

static void test_origin(void **state)
{
    (void)state;
    static const struct {
        const char *text, *marked;
    } cases[] = {
        {"a{{ u }}b", "a«Uv»b"},
        {"{{ bos }}{{ u }}", "<s>«Uv»"},
        {"{{ 5 }}{{ n }}{{ true }}{{ none }}", "57TrueNone"},
        {"{{ 'x' + u + 'y' }}", "x«Uv»y"},
        {"{{ 'x' ~ u ~ n }}", "x«Uv»7"},
        {"{{ u * 2 }}{{ 'x' * 2 }}", "«UvUv»xx"},
        {"{{ ('x' ~ u ~ 'y')[1:2] }}", "«U»"},
        {"{{ ('x' ~ u ~ 'y')[0:2] }}|{{ ('x' ~ u ~ 'y')[2:] }}", "x«U»|«v»y"},
        {"{{ ('x' ~ u ~ 'y')[1:][0:1] }}{{ ('x' ~ u ~ 'y')[-1] }}", "«U»y"},
        {"{{ ('x' ~ u)[::-1] }}", "«vU»x"},
        {"{{ ('x' ~ u) | reverse }}{{ ('x' ~ u) | first }}{{ ('x' ~ u) | last }}", "«vU»xx«v»"},
        {"{{ ('x' ~ u) | upper }}{{ ('X' ~ u).lower() }}{{ ('x' ~ u).title() }}", "X«UV»x«uv»X«uv»"},
        {"{{ ('x ' ~ u) | title }}{{ (u ~ 'X') | capitalize }}{{ u.swapcase() }}", "X «UvUv»x«uV»"},
        {"{{ (' ' ~ u ~ ' ').strip() }}{{ (u ~ 'x').rstrip('x') }}{{ ('x' ~ u).lstrip('x') }}", "«UvUvUv»"},
        {"{{ (u ~ ' ') | trim }}{{ ('  x' ~ u) | trim }}", "«Uv»x«Uv»"},
        {"{{ 'a-b'.replace('-', u) }}{{ u.replace('v', '-') }}", "a«Uv»b«U»-"},
        {"{{ 'a-b' | replace('-', u) }}{{ u | replace('', '-') }}", "a«Uv»b-«U»-«v»-"},
        {"{{ ('x,' ~ u).split(',') | join('|') }}{{ (u ~ ' x').split() | join }}", "x|«UvUv»x"},
        {"{{ ('x,' ~ u).rsplit(',', 1) | last }}{{ ('x-' ~ u).partition('-')[2] }}", "«UvUv»"},
        {"{{ ('x\n' ~ u).splitlines() | join(',') }}", "x,«Uv»"},
        {"{{ [u, 'k'] | join(u) }}{{ '-'.join([u, 'k']) }}", "«UvUv»k«Uv»-k"},
        {"{{ ('p' ~ u).removeprefix('p') }}{{ (u ~ 's').removesuffix('s') }}", "«UvUv»"},
        {"{{ u.center(6, '*') }}{{ 'x'.ljust(3, u[0]) }}{{ u.zfill(4) }}", "**«Uv»**x«UU»00«Uv»"},
        {"{{ {'k': u} | tojson }}", "{\"k\": \"«Uv»\"}"},
        {"{{ w | tojson }}", "\"«a\\n\\\"<»\""},
        {"{{ ('\n' ~ u ~ '\n') | tojson }}", "\"\\n«Uv»\\n\""},
        {"{{ d | tojson(indent=1) }}", "{\n \"«key»\": \"«val»\",\n \"«n»\": 1\n}"},
        {"{{ [u, 'x', n] }}{{ d }}", "['«Uv»', 'x', 7]{'«key»': '«val»', '«n»': 1}"},
        {"{{ [w] }}", "['«a\\n\"<»']"},
        {"{{ '%s-%4s|%r' % (u, u, u) }}", "«Uv»-  «Uv»|'«Uv»'"},
        {"{{ u % () }}{{ '%s' | format(u) }}", "«UvUv»"},
        {"{{ '{}:{:>4}:{}'.format(u, u, 1) }}{{ '{0[name]}'.format(users[0]) }}", "«Uv»:  «Uv»:1«bo»"},
        {"{% for k in d %}{{ k }},{% endfor %}", "«key»,«n»,"},
        {"{% for k, v in d.items() %}{{ k }}={{ v }} {% endfor %}", "«key»=«val» «n»=1 "},
        {"{% for c in 'x' ~ u %}{{ c }}.{% endfor %}", "x.«U».«v»."},
        {"{% macro m(x, y='lit') %}<{{ x }}{{ y }}>{% endmacro %}{{ m(u) }}{{ m('a', u) | upper }}",
         "<«Uv»lit><A«UV»>"},
        {"{% set b %}x{{ u }}{% endset %}{{ b }}{{ b | length }}", "x«Uv»3"},
        {"{% filter upper %}x{{ u }}{% endfilter %}", "X«UV»"},
        {"{% set ns = namespace(t='') %}{% for x in l %}{% set ns.t = ns.t + '-' + x %}{% endfor %}{{ ns.t }}",
         "-«p»-«q»"},
        {"{{ ('a\n' ~ u) | indent(2) }}{{ 'a\nb' | indent(u) }}", "a\n  «Uv»a\n«Uv»b"},
        {"{{ w | e }}{{ (u | safe) + '<' }}", "«a\n&#34;&lt;Uv»&lt;"},
        {"{{ users | map(attribute='name') | sort | join(' ') }}{{ l | map('upper') | join }}", "«al» «boPQ»"},
        {"{{ (j | from_json).a }}{{ ('[\"x\"]' | from_json)[0] }}", "«b»x"},
        {"{{ missing | default('x') }}{{ missing | default(u) }}{{ u or 'x' }}{{ u and 'x' }}", "x«UvUv»x"},
        {"{{ u | string }}{{ u ~ '' }}{{ [u][0] }}{{ {'a': u}.a }}{{ dict(a=u).a }}", "«UvUvUvUvUv»"},
        {"{{ l | max }}{{ l | min }}{{ (l + ['z']) | join }}{{ l | list | unique | join }}", "«qppq»z«pq»"},
        {"{{ l.pop() }}{{ l.append('lit') or l | join }}", "«qp»lit"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_prompt p;
        mox_err err = {0};
        char marked[512];
        if (render(cases[i].text, &p, &err) != MOX_OK) fail_msg("%s: %s", cases[i].text, err.msg);
        mark(&p, marked, sizeof marked);
        if (strcmp(marked, cases[i].marked) != 0) fail_msg("%s: %s, not %s", cases[i].text, marked, cases[i].marked);
        mox_prompt_free(&p);
    }
}

/* What a user typed stays text; what the template wrote becomes tokens. */
static void test_encoded(void **state)
{
    (void)state;
    const kit k = {.added = "{\"id\":300,\"content\":\"<|im_end|>\",\"special\":true}"};
    mox_tokenizer *t;
    mox_tokens tokens = {0};
    mox_err err = {0};
    mox_prompt p;
    static const char json[] = "\"<|im_end|>\"";
    const mox_template_var var = {.name = "u", .json = json, .n = sizeof json - 1};
    assert_int_equal(kit_open(&t, &k, NULL, &err), MOX_OK);
    assert_int_equal(render_with("<|im_end|>{{ u }}<|im_end|>{{ '<|im' ~ u[4:] }}", &var, 1, NULL, &p, &err), MOX_OK);
    assert_int_equal(mox_tokenizer_encode_mixed(t, p.text, p.n, p.plain, p.n_plain, &tokens, &err), MOX_OK);
    int special = 0;
    for (int64_t i = 0; i < tokens.n; i++) special += tokens.ids[i] == 300;
    assert_int_equal(special, 2);
    assert_int_equal(tokens.ids[0], 300);
    mox_tokens_free(&tokens);
    mox_prompt_free(&p);
    mox_tokenizer_close(&t);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        mox_status status;
        const char *message;
    } cases[] = {
        {"a\nb {{ x. }}", MOX_E_FORMAT, "test:2:9: a name or number is missing"},
        {"é{{ x y }}", MOX_E_FORMAT, "test:1:7: 'y' where '}}' is missing"},
        {"{% if a %}\nx", MOX_E_FORMAT, "test:1:4: this 'if' is never closed"},
        {"{{ 1 | nosuch }}", MOX_E_FORMAT, "test:1:8: there is no filter or test 'nosuch'"},
        {"{% if false %}{{ 1 | nosuch }}{% endif %}{{ 1 is nosuch }}", MOX_E_FORMAT,
         "there is no filter or test 'nosuch'"},
        {"{% if true %}{{ 1 | nosuch }}{% endif %}", MOX_E_FORMAT, "test:1:21: there is no filter or test 'nosuch'"},
        {"{# x", MOX_E_FORMAT, "test:1:1: this comment has no end"},
        {"{{ 'x }}", MOX_E_FORMAT, "test:1:4: this string has no end"},
        {"{{ (1] }}", MOX_E_FORMAT, "test:1:6: unexpected ']', expected ')'"},
        {"{{ ? }}", MOX_E_FORMAT, "test:1:4: unexpected character '?'"},
        {"{% include 'x' %}", MOX_E_FORMAT, "test:1:4: 'include' is no tag that is known here"},
        {"{% for x in l recursive %}{% endfor %}", MOX_E_FORMAT, "recursive loops are not supported"},
        {"\xFF", MOX_E_FORMAT, "test:1:1: the text is not UTF-8"},
        {"\n\n {{ nope.x }}", MOX_E_FORMAT, "test:3:10: 'nope' is undefined"},
        {"{{ d.zz.yy }}", MOX_E_FORMAT, "'dict object' has no attribute 'zz'"},
        {"{{ l[9].x }}", MOX_E_FORMAT, "list object has no element 9"},
        {"{{ 'a' + 1 }}", MOX_E_FORMAT, "'+' is not possible between str and int"},
        {"{{ 1 < 'a' }}", MOX_E_FORMAT, "'<' is not possible between int and str"},
        {"{{ 1 // 0 }}", MOX_E_FORMAT, "division by zero"},
        {"{{ 9223372036854775807 + 1 }}", MOX_E_FORMAT, "integers beyond 64 bits"},
        {"{% macro m(a) %}{% endmacro %}{{ m(b=1) }}", MOX_E_FORMAT, "a macro takes no argument 'b'"},
        {"{{ u | replace('a') }}", MOX_E_FORMAT, "'replace' needs at least 2 arguments"},
        {"{{ u | upper(1) }}", MOX_E_FORMAT, "'upper' takes at most 0 arguments"},
        {"{{ u | default(nope=1) }}", MOX_E_FORMAT, "'default' has no argument 'nope'"},
        {"{{ l | map('upper') }}", MOX_E_FORMAT, "a generator cannot be printed"},
        {"{{ missing | tojson }}", MOX_E_FORMAT, "a Undefined has no form in JSON"},
        {"{{ d.update(d) }}", MOX_E_FORMAT, "templates may not use this attribute"},
        {"{{ u | from_json }}", MOX_E_FORMAT, "from_json: byte 0"},
        {"{{ raise_exception('No: ' ~ u) }}", MOX_E_REFUSED, "No: Uv"},
        {"{{ raise_exception('') }}", MOX_E_REFUSED, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_prompt p;
        mox_err err = {0};
        const mox_status status = render(cases[i].text, &p, &err);
        mox_prompt_free(&p);
        if (status != cases[i].status || err.status != status)
            fail_msg("%s: %d, %s", cases[i].text, (int)status, err.msg);
        const bool exact = status == MOX_E_REFUSED;
        if (exact ? strcmp(err.msg, cases[i].message) != 0 : !strstr(err.msg, cases[i].message)) {
            fail_msg("%s: %s", cases[i].text, err.msg);
        }
    }
}

/* A message that is too long ends at a character. */
static void test_long_refusal(void **state)
{
    (void)state;
    mox_prompt p;
    mox_err err = {0};
    assert_int_equal(render("{{ raise_exception('a' ~ 'é' * 400) }}", &p, &err), MOX_E_REFUSED);
    const size_t n = strlen(err.msg);
    assert_true(n > 470 && n % 2 == 1);
    assert_memory_equal(err.msg + n - 2, "é", 2);
}

/* ---- limits ------------------------------------------------------------------------------------- */

static void test_limits(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set l = [1] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{% if true %}{% for x in [1] %}{{ a() }}{% endfor %}{% "
        "endif %}{% endmacro %}{{ a() }}",
        "{{ 'x' * 1000000000 }}",
        "{{ [1] * 1000000000 }}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(99999) %}{% set ns.s = ns.s + 'x' * 99 %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l | tojson "
        "}}",
        "{% set ns = namespace(l=[], k=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% set ns.k = [ns.k] "
        "%}{% endfor %}{{ ns.l == ns.k }}",
        "{% set l = [] %}{% set _ = l.append(l) %}{{ l }}",
        "{% set s = 'a' * 9999999 %}{% for i in range(99999) %}{{ s | replace('b', 'c') | length }}{% endfor %}",
        "{% set s = 'a' * 999999 %}{% for i in range(99999) %}{{ s.strip('b' * 999999 ~ 'a') }}{% endfor %}",
        "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
        "{{ 'a'.center(1000000000) }}",
        "{{ '%1000000s' * 1000 % (range(1000) | list) }}",
        "{{ range(99999) | list | map('string') | list | sort | join | list | sort | join | list | length }}{% for i "
        "in range(99999) %}{{ range(9999) | sort }}{% endfor %}",
        "{{ 'aaaaaaaaaaaaaaaa' * 99999 | replace('a', 'a' * 99999) }}",
        "{{ ('ab' * 99999).replace('a', 'b' * 99999) }}",
        "{% set d = dict() %}{% for i in range(99999) %}{{ dict(range(9999) | map('string') | map('list')) }}{% endfor "
        "%}",
        "{{ 2 ** 62 ** 1 * 'x' }}",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_prompt p;
        mox_err err = {0};
        const double begin = mox_clock_now();
        const mox_status status = render(cases[i], &p, &err);
        mox_prompt_free(&p);
        if (status != MOX_E_LIMIT && status != MOX_E_FORMAT) fail_msg("%s: %d %s", cases[i], (int)status, err.msg);
        if (mox_clock_now() - begin > 30) fail_msg("%s takes %g s", cases[i], mox_clock_now() - begin);
    }
}

static mox_status limited(const char *text, mox_template_opts opts)
{
    mox_prompt p;
    mox_err err = {0};
    const mox_status status = render_with(text, NULL, 0, &opts, &p, &err);
    if (status == MOX_E_LIMIT) assert_non_null(strstr(err.msg, "test:1:"));
    mox_prompt_free(&p);
    return status;
}

/* A pass over a long string, or over a long number's digits, costs more than the step that asks for it. */
static void test_steps_of_long_values(void **state)
{
#if defined(__SANITIZE_THREAD__)
    skip(); /* the thread sanitizer goes through all of a text each time that memmem finds something at its beginning */
#endif
    (void)state;
    static const char *const cases[] = {
        ("{% set d = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 8, 9: 9} %}{% set t = (s,) %}"
         "{% for i in r %}{% set x = d[t] %}{% endfor %}"),
        "{% set t = (1, 2) * 99999 %}{% set d = {1: 1} %}{% for i in r %}{% set x = d[t] %}{% endfor %}",
        "{% set a = s ~ 'b' %}{% set b = s ~ 'c' %}{% for i in r %}{% set x = a == b %}{% endfor %}",
        "{% for i in r %}{% set x = s | int %}{% endfor %}",
        "{% for i in r %}{% set x = s | float %}{% endfor %}",
        "{% set j = s ~ '1' %}{% for i in r %}{% set x = j | from_json %}{% endfor %}",
        "{% set z = s | replace(' ', '%z') %}{% for i in r %}{% set x = strftime_now(z) %}{% endfor %}",
        "{% set l = [{}] %}{% for i in r %}{% set x = l | map(attribute=s) | list %}{% endfor %}",
        "{% set l = [{}] %}{% for i in r %}{% set x = l | sort(attribute=s) %}{% endfor %}",
        "{% for i in r %}{% for c in s %}{% set x = loop.length %}{% break %}{% endfor %}{% endfor %}",
        "{% set f = '{0[' ~ s ~ ']}' %}{% for i in r %}{% set x = f.format({}) %}{% endfor %}",
        "{% set f = '%' ~ s ~ 'd' %}{% for i in r %}{% set x = f % 1 %}{% endfor %}",
        "{% set n = (s | replace(' ', '1')) | from_json %}{% for i in r %}{% set x = n == 0.5 %}{% endfor %}",
        "{% set n = (s | replace(' ', '1')) | from_json %}{% for i in r %}{% set x = n < 0.5 %}{% endfor %}",
        "{% set n = (s | replace(' ', '1')) | from_json %}{% for i in r %}{% set x = n * 0.5 %}{% endfor %}",
        "{% set n = (s | replace(' ', '1')) | from_json %}{% for i in r %}{% set x = '%e' % n %}{% endfor %}",
        "{% set n = (s | replace(' ', '1')) | from_json %}{% for i in r %}{% set x = '{:e}'.format(n) %}{% endfor %}",
        "{% set n = (s | replace(' ', '1')) | from_json %}{% for i in r %}{% set x = n | float %}{% endfor %}",
        "{% set f = [0.1] * 1000 %}{% for i in r %}{% set x = f | string %}{% endfor %}",
    };
    static const char begin[] = "{% set ns = namespace(s='                ') %}{% for i in range(16) %}"
                                "{% set ns.s = ns.s ~ ns.s %}{% endfor %}{% set s = ns.s %}{% set r = range(200) %}";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024];
        (void)snprintf(text, sizeof text, "%s%s", begin, cases[i]);
        const mox_template_opts opts = {.steps_max = 4 * 1000 * 1000};
        if (limited(text, opts) != MOX_E_LIMIT) fail_msg("%s: a long value is free", cases[i]);
    }
}

static void test_given_limits(void **state)
{
    (void)state;
    const char *loop = "{% for i in range(100) %}x{% endfor %}", *deep = "{{ ((((1 + 1) * 2) ~ 'x') | upper) }}";
    assert_int_equal(limited(loop, (mox_template_opts){.steps_max = 100}), MOX_E_LIMIT);
    assert_int_equal(limited(loop, (mox_template_opts){.steps_max = 2000}), MOX_OK);
    assert_int_equal(limited(loop, (mox_template_opts){.output_bytes_max = 99}), MOX_E_LIMIT);
    assert_int_equal(limited(loop, (mox_template_opts){.output_bytes_max = 100}), MOX_OK);
    assert_int_equal(limited(loop, (mox_template_opts){.memory_bytes_max = 4096}), MOX_OK);
    assert_int_equal(limited("{{ 'x' * 9999 }}", (mox_template_opts){.memory_bytes_max = 4096}), MOX_E_LIMIT);
    assert_int_equal(limited(deep, (mox_template_opts){.depth_max = 3}), MOX_E_LIMIT);
    assert_int_equal(limited(deep, (mox_template_opts){.depth_max = 10}), MOX_OK);
}

/* Text of n copies of a part, between a head and a tail. */
static char *repeated(const char *head, const char *part, size_t n, const char *tail)
{
    const size_t length = strlen(part);
    char *text = malloc(strlen(head) + n * length + strlen(tail) + 1);
    assert_non_null(text);
    strcpy(text, head);
    char *end = text + strlen(head);
    for (size_t i = 0; i < n; i++, end += length) memcpy(end, part, length);
    strcpy(end, tail);
    return text;
}

static const struct {
    const char *head, *part, *tail;
    size_t n;
    bool fine;
} nestings[] = {
    {"{{ ", "(", "", 60000, false},
    {"{{ ", "-", "1 }}", 60000, false},
    {"{{ ", "not ", "1 }}", 60000, false},
    {"{{ ", "[", "", 60000, false},
    {"{{ ", "x if 1 else ", "1 }}", 60000, false},
    {"", "{% if 1 %}", "", 60000, false},
    {"", "{% for x in [1] %}", "", 60000, false},
    {"{% set ", "(", "", 60000, false},
    {"{{ 1", " + 1", " }}", 60000, true},
    {"{{ 1", " ~ 1", " }}", 60000, true},
    {"{{ 1", " and 1", " }}", 60000, true},
    {"{{ 1", " == 1", " }}", 60000, true},
    {"{% if 0 %}", "{% elif 0 %}", "{% endif %}", 30000, true},
    {"{{ 1", " | abs", " }}", 60000, false},
    {"{{ x", ".a", " }}", 60000, false},
    {"{{ 1", " is odd", " }}", 20000, false},
};

/* No template makes the stack grow without bounds: the deepest ones run on a small one. */
static void *run_nestings(void *unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof nestings / sizeof *nestings; i++) {
        char *text = repeated(nestings[i].head, nestings[i].part, nestings[i].n, nestings[i].tail);
        mox_prompt p;
        mox_err err = {0};
        const mox_status status = render(text, &p, &err);
        mox_prompt_free(&p);
        free(text);
        if ((status == MOX_OK) != nestings[i].fine) return (void *)nestings[i].part;
    }
    mox_prompt p;
    mox_err err = {0};
    static const char recursion[] = "{% macro m(i) %}{% if i %}{% for x in [1] %}{{ ((m(i + 1) ~ '') | upper | trim) "
                                    "}}{% endfor %}{% endif %}{% endmacro %}{{ m(1) }}";
    return render(recursion, &p, &err) == MOX_E_LIMIT ? NULL : (void *)recursion;
}

static void test_small_stack(void **state)
{
    (void)state;
    pthread_attr_t attr;
    pthread_t thread;
    void *failed;
    assert_int_equal(pthread_attr_init(&attr), 0);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* their frames are several times as large */
    assert_int_equal(pthread_attr_setstacksize(&attr, 4 << 20), 0);
#else
    assert_int_equal(pthread_attr_setstacksize(&attr, 512 << 10), 0);
#endif
    assert_int_equal(pthread_create(&thread, &attr, run_nestings, NULL), 0);
    assert_int_equal(pthread_join(thread, &failed), 0);
    pthread_attr_destroy(&attr);
    if (failed) fail_msg("%s", (const char *)failed);
}

static void test_large(void **state)
{
    (void)state;
    mox_template *t;
    mox_err err = {0};
    char *text = repeated("", "x", (1 << 20) + 1, "");
    assert_int_equal(mox_template_open(&t, "test", text, strlen(text), &err), MOX_E_LIMIT);
    free(text);
    text = malloc(1 << 20);
    size_t n = 0;
    for (int i = 0; i < 2000; i++) n += (size_t)sprintf(text + n, "{{ name%d }}", i);
    assert_int_equal(mox_template_open(&t, "test", text, n, &err), MOX_E_FORMAT);
    assert_non_null(strstr(err.msg, "different names"));
    free(text);
}

/* ---- variables ------------------------------------------------------------------------------------- */

static void test_variables(void **state)
{
    (void)state;
    mox_prompt p;
    mox_err err = {0};
    const char *text = "{{ a }}{{ b }}{{ messages }}";
    const mox_template_var object = {.json = "{\"a\":1,\"zz\":[],\"b\":2}", .n = 21};
    const mox_template_var twice[] = {{.name = "messages", .json = "[]", .n = 2},
                                      {.json = "{\"messages\":[1]}", .n = 16}};
    const mox_template_var broken[] = {{.name = "a", .json = "[1,]", .n = 4}};
    const mox_template_var list[] = {{.json = "[1]", .n = 3}};
    const mox_template_var binary[] = {{.name = "a", .text = "x\xFF", .n = 2}};
    assert_int_equal(render_with(text, &object, 1, NULL, &p, &err), MOX_OK);
    assert_string_equal(p.text, "12");
    mox_prompt_free(&p);
    assert_int_equal(render_with(text, twice, 2, NULL, &p, &err), MOX_E_ARG);
    assert_string_equal(err.msg, "the variable 'messages' is given twice");
    assert_int_equal(render_with(text, broken, 1, NULL, &p, &err), MOX_E_FORMAT);
    assert_non_null(strstr(err.msg, "a: byte 3"));
    assert_int_equal(render_with(text, list, 1, NULL, &p, &err), MOX_E_FORMAT);
    assert_int_equal(render_with(text, binary, 1, NULL, &p, &err), MOX_E_FORMAT);
    assert_int_equal(render_with("", NULL, 0, NULL, &p, NULL), MOX_OK); /* no text, no error wanted */
    assert_int_equal(p.n, 0);
    assert_string_equal(p.text, "");
    mox_prompt_free(&p);
    assert_int_equal(render_with("{{ x.y }}", NULL, 0, NULL, &p, NULL), MOX_E_FORMAT);
}

static void test_time(void **state)
{
    (void)state;
    static const struct {
        int64_t time;
        int32_t offset;
        const char *format, *out;
    } cases[] = {
        {0, 0, "%Y-%m-%d %H:%M:%S", "1970-01-01 00:00:00"},
        {1709251199, 0, "%d %B %Y, %A %j", "29 February 2024, Thursday 060"},
        {1709251199, 3600, "%F %T", "2024-03-01 00:59:59"},
        {-1, 0, "%Y", "1969"},
        {0, 0, "%-d %e %5 %z%Z%f%% %", "1  1 %5 000000% %"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mox_template_opts opts = {.unix_time_s = cases[i].time, .utc_offset_s = cases[i].offset};
        const mox_template_var format = {.name = "f", .text = cases[i].format, .n = strlen(cases[i].format)};
        mox_prompt p;
        mox_err err = {0};
        assert_int_equal(render_with("{{ strftime_now(f) }}", &format, 1, &opts, &p, &err), MOX_OK);
        assert_string_equal(p.text, cases[i].out);
        mox_prompt_free(&p);
    }
}

/* ---- threads and memory ------------------------------------------------------------------------------- */

static const char busy[] =
    "{% macro m(x, y=2) %}[{{ x }}{{ y }}{{ caller() if caller is defined }}]{% endmacro %}{% set ns = namespace(s='') "
    "%}"
    "{% for k, v in d | dictsort %}{% set ns.s = ns.s ~ k ~ v %}{% endfor %}{{ ns.s | upper }}{{ d | tojson(indent=1) "
    "}}"
    "{% call m(1) %}c{% endcall %}{{ users | map(attribute='name') | sort | join(', ') }}{{ '%05.1f|{}' % 2.5 }}"
    "{% filter indent %}a\nb{% endfilter %}{{ u.replace('U', 'x') }}{{ u[::-1] }}{{ j | from_json }}{{ "
    "'{:>9}'.format(u) }}"
    "{% set t %}{% for x in l if x %}{{ loop.last }}{{ loop.length }}{% endfor %}{% endset %}{{ t }}{{ "
    "strftime_now('%Y') }}"
    "{{ {'a': 1, 'b': 2, 'c': 3, 'd': 4, 'e': 5, 'f': 6, 'g': 7, 'h': 8, 'i': 9, 'j': 10} | length }}{{ w | e }}";

typedef struct job {
    const mox_template *t;
    char *text;
} job;

static void *render_often(void *user)
{
    job *j = user;
    for (int i = 0; i < 200; i++) {
        mox_template_var var = usual[0];
        mox_prompt p;
        var.n = strlen(var.json);
        if (mox_template_render(j->t, &var, 1, NULL, &p, NULL) != MOX_OK) return NULL;
        if (i == 0) j->text = strdup(p.text);
        if (strcmp(p.text, j->text) != 0) j->text[0] = '\0';
        mox_prompt_free(&p);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    enum { N = 4 };
    mox_template *t;
    mox_err err;
    pthread_t thread[N];
    job jobs[N];
    assert_int_equal(mox_template_open(&t, "test", busy, sizeof busy - 1, &err), MOX_OK);
    for (int i = 0; i < N; i++) {
        jobs[i] = (job){t, NULL};
        assert_int_equal(pthread_create(&thread[i], NULL, render_often, &jobs[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
        assert_non_null(jobs[i].text);
        assert_string_equal(jobs[i].text, jobs[0].text);
        if (i > 0) free(jobs[i].text);
    }
    assert_true(strlen(jobs[0].text) > 100);
    free(jobs[0].text);
    mox_template_close(&t);
}

/* The N-th allocation fails, for every N. */
static void test_every_allocation(void **state)
{
    (void)state;
    mox_status status = MOX_E_MEMORY;
    nth n = {0};
    char *text = repeated(busy, "{{ 'x' * 9999 ~ u }}", 20, ""); /* so that the region has several blocks */
    for (n.at = 1; status != MOX_OK && n.at < 10000; n.at++) {
        mox_prompt p;
        mox_err err = {0};
        n.count = 0;
        mox_alloc_set_hook(fail_nth_alloc, &n);
        status = render(text, &p, &err);
        mox_alloc_set_hook(NULL, NULL);
        mox_prompt_free(&p);
        assert_true(status == MOX_OK || status == MOX_E_MEMORY);
        if (status != MOX_OK) assert_non_null(strstr(err.msg, "out of memory"));
    }
    free(text);
    assert_int_equal(status, MOX_OK);
    assert_true(n.at > 15);
}

/* ---- locale ------------------------------------------------------------------------------ */

/* A locale with a comma in its numbers, as localedef makes it in a folder of its own. */
static bool set_comma(char *folder)
{
    static const char source[] = "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \"\"\ngrouping -1\nEND LC_NUMERIC\n";
    char path[64], command[256];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/source", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(source, f) >= 0 && fclose(f) == 0);
    (void)snprintf(command, sizeof command, "localedef -c -i %s -f ANSI_X3.4-1968 %s/xx_XX >%s/log 2>&1", path, folder, folder);
    (void)!system(command); /* warns of what is missing */
    assert_int_equal(setenv("LOCPATH", folder, 1), 0);
    return setlocale(LC_NUMERIC, "xx_XX") != NULL;
}

static void test_long_numbers_are_whole(void **state)
{
    static const char template[] = "{% set n = ('-' ~ '1' * 700) | from_json %}{{ '%d' % n == n | string }} "
                                   "{{ '%+d' % -n == '+' ~ -n }} "
                                   "{{ ('%702d' % n)[:2] }} {{ ('%0703d' % n)[:3] }} {{ '%-702d' % n == n ~ ' ' }}";
    mox_prompt out;
    mox_err err;
    (void)state;
    if (render_with(template, NULL, 0, NULL, &out, &err) != MOX_OK) fail_msg("%s", err.msg);
    assert_string_equal(out.text, "True True  - -00 True");
    mox_prompt_free(&out);
}

static void test_numbers_in_another_locale(void **state)
{
    static const char template[] = "{{ 1.5 + d.x }} {{ d.x | tojson }} {{ '2.5' | float }} {{ 2.25 | round(1) }} {{ '%.2f' | format(0.5) }}";
    static const char json[] = "{\"d\": {\"x\": 0.5}}";
    const mox_template_var vars = {.json = json, .n = sizeof json - 1};
    char folder[] = "/tmp/moxie-locale-XXXXXX", command[64], written[16];
    mox_prompt out;
    mox_err err;
    (void)state;
    const bool set = set_comma(folder);
    (void)snprintf(written, sizeof written, "%.1f", 0.5);
    const mox_status status = render_with(template, &vars, 1, NULL, &out, &err);
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    (void)!system(command);
    (void)unsetenv("LOCPATH");
    if (!set) {
        if (status == MOX_OK) mox_prompt_free(&out);
        skip();
    }
    assert_string_equal(written, "0,5"); /* so the locale is in force */
    assert_int_equal(status, MOX_OK);
    assert_string_equal(out.text, "2.0 0.5 2.5 2.2 0.50");
    mox_prompt_free(&out);
    (void)snprintf(written, sizeof written, "%.1f", 0.5);
    assert_string_equal(written, "0,5"); /* and still is */
    (void)setlocale(LC_NUMERIC, "C");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_origin),       cmocka_unit_test(test_encoded), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_long_refusal), cmocka_unit_test(test_limits),  cmocka_unit_test(test_given_limits),
        cmocka_unit_test(test_steps_of_long_values),
        cmocka_unit_test(test_small_stack),  cmocka_unit_test(test_large),   cmocka_unit_test(test_variables),
        cmocka_unit_test(test_time),         cmocka_unit_test(test_threads), cmocka_unit_test(test_every_allocation),
        cmocka_unit_test(test_long_numbers_are_whole), cmocka_unit_test(test_numbers_in_another_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
