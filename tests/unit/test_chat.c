/* Chats: where templates are from, what they say about calls and thinking, requests that are
 * wrong or hostile, and what becomes of special tokens that somebody typed.  What was sampled
 * and comes back in the next prompt is in test_chat_said.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "chat_kit.h"
#include "fail_nth.h"

/* Sanitizers take their time. */
#if defined(__SANITIZE_ADDRESS__)
#define LIMIT_S 10.0
#else
#define LIMIT_S 1.0
#endif

#define USER(text) "[{\"role\": \"user\", \"content\": \"" text "\"}]"

static mox_tokenizer *tokenizer; /* of Qwen3 */

/* Of this process, whatever the machine does meanwhile. */
static double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

static int begin(void **state)
{
    if (kit_make_folder(state) != 0) return -1;
    tokenizer = kit_tokenizer(&families[0]);
    return 0;
}

static int end(void **state)
{
    mox_tokenizer_close(&tokenizer);
    return kit_remove_folder(state);
}

static mox_status render(const mox_chat *c, const mox_chat_request *request, mox_prompt *p, mox_err *err)
{
    *err = (mox_err){0};
    const mox_status status = mox_chat_render(c, request, p, err);
    assert_true((status == MOX_OK) == (p->text != NULL));
    if (status != MOX_OK) assert_int_equal(err->status, status);
    return status;
}

/* ---- where the template is from ------------------------------------------------------------- */

/* Opens the folder and returns what "Hi" becomes, or the error's words. */
static void open_and_render(const mox_chat_opts *opts, const char *tools, mox_status wanted, char *out, size_t size)
{
    mox_chat *c;
    mox_err err = {0};
    mox_prompt p = {0};
    const mox_chat_request request = {.messages = kit_json_text(USER("Hi")), .tools = kit_json_text(tools)};
    const mox_status status = mox_chat_open(&c, kit_folder, tokenizer, opts, &err);
    assert_true((status == MOX_OK) == (c != NULL));
    if (status != wanted) fail_msg("%d: %s", (int)status, err.msg);
    if (c && render(c, &request, &p, &err) != MOX_OK) fail_msg("%s", err.msg);
    snprintf(out, size, "%s", c ? p.text : err.msg);
    mox_prompt_free(&p);
    mox_chat_close(&c);
    assert_null(c);
}

static void put(const char *name, const char *text) { kit_write(name, text, strlen(text)); }

static void test_sources(void **state)
{
    (void)state;
    char out[600];
    kit_clear();
    open_and_render(NULL, NULL, MOX_E_NOT_FOUND, out, sizeof out);
    assert_non_null(strstr(out, "no chat template; give one with --template FILE, or"));
    assert_non_null(strstr(out, "`moxie run --raw`")); /* the only command that has it */
    put("tokenizer_config.json", "{\"x\": 1}");
    open_and_render(NULL, NULL, MOX_E_NOT_FOUND, out, sizeof out);
    put("tokenizer_config.json", "{\"x\": 1, \"chat_template\": null}");
    open_and_render(NULL, NULL, MOX_E_NOT_FOUND, out, sizeof out);
    put("tokenizer_config.json", "{\"chat_template\": \"config {{ messages[0].content }}\"}");
    open_and_render(NULL, NULL, MOX_OK, out, sizeof out);
    assert_string_equal(out, "config Hi");
    put("chat_template.json", "{\"chat_template\": \"json {{ messages[0].content }}\"}");
    open_and_render(NULL, NULL, MOX_OK, out, sizeof out);
    assert_string_equal(out, "json Hi");
    put("chat_template.jinja", "jinja {{ messages[0].content }}\n");
    open_and_render(NULL, NULL, MOX_OK, out, sizeof out);
    assert_string_equal(out, "jinja Hi");
    char path[512];
    put("given", "given {{ messages[0].content }}");
    kit_path(path, sizeof path, "given");
    const mox_chat_opts opts = {.template_file = path};
    open_and_render(&opts, NULL, MOX_OK, out, sizeof out);
    assert_string_equal(out, "given Hi");
    kit_path(path, sizeof path, "missing");
    open_and_render(&opts, NULL, MOX_E_NOT_FOUND, out, sizeof out);
    assert_non_null(strstr(out, "missing"));
}

static void test_named_sources(void **state)
{
    (void)state;
    char out[600];
    kit_clear();
    put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"tools\"}, {\"name\": \"rag\", "
                                 "\"template\": \"{{ broken\"}, {\"name\": \"default\", \"template\": \"plain\"}]}");
    open_and_render(NULL, NULL, MOX_OK, out, sizeof out);
    assert_string_equal(out, "plain");
    open_and_render(NULL, "[]", MOX_OK, out, sizeof out);
    assert_string_equal(out, "plain");
    open_and_render(NULL, CHAT_KIT_TOOLS, MOX_OK, out, sizeof out);
    assert_string_equal(out, "tools");
    put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"tools\"}]}");
    open_and_render(NULL, NULL, MOX_E_NOT_FOUND, out, sizeof out);
    put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\", \"template\": \"a\"}, {\"name\": \"default\", "
                                 "\"template\": \"b\"}]}");
    open_and_render(NULL, NULL, MOX_E_FORMAT, out, sizeof out);
    assert_non_null(strstr(out, "two chat templates"));
}

static void test_broken_sources(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text;
        mox_status status;
        const char *words;
    } cases[] = {
        {"chat_template.jinja", "line one\n  {{ x y }}", MOX_E_FORMAT, "chat_template.jinja:2:8"},
        {"chat_template.jinja", "{% if x %}", MOX_E_FORMAT, "chat_template.jinja:1:4"},
        {"chat_template.jinja", "{{ 'a' | nosuch }}", MOX_E_FORMAT, "chat_template.jinja:1:10: there is no filter"},
        {"chat_template.jinja", "\xFF", MOX_E_FORMAT, "chat_template.jinja:1:1"},
        {"chat_template.json", "{\"chat_template\": 5}", MOX_E_FORMAT, "chat_template.json"},
        {"chat_template.json", "{\"chat_template\": \"a\"", MOX_E_FORMAT, "chat_template.json"},
        {"chat_template.json", "[]", MOX_E_FORMAT, "chat_template.json"},
        {"tokenizer_config.json", "{\"chat_template\": [5]}", MOX_E_FORMAT, "tokenizer_config.json"},
        {"tokenizer_config.json", "{\"chat_template\": [{\"name\": 5, \"template\": \"a\"}]}", MOX_E_FORMAT, "name"},
        {"tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\", \"template\": {}}]}", MOX_E_FORMAT, "chat_template"},
        {"tokenizer_config.json", "{\"chat_template\": \"{% for x in y %}\"}", MOX_E_FORMAT, "tokenizer_config.json:1:4"},
        {"tokenizer_config.json", "{\"chat_template\": \"a\", \"chat_template\": \"b\"}", MOX_E_FORMAT, "twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[600];
        kit_clear();
        put(cases[i].name, cases[i].text);
        open_and_render(NULL, NULL, cases[i].status, out, sizeof out);
        if (!strstr(out, cases[i].words)) fail_msg("%s: %s", cases[i].text, out);
    }
}

/* 16 MB where a template should be, in the time of a glance. */
static void test_large_sources(void **state)
{
    (void)state;
    const size_t n = (size_t)16 << 20;
    char *text = malloc(n), out[600];
    assert_non_null(text);
    memset(text, 'x', n);
    kit_clear();
    kit_write("chat_template.jinja", text, n);
    double started = cpu_seconds();
    open_and_render(NULL, NULL, MOX_E_FORMAT, out, sizeof out);
    assert_true(cpu_seconds() - started < LIMIT_S);
    assert_non_null(strstr(out, "chat_template.jinja"));
    kit_clear();
    memcpy(text, "{\"chat_template\": \"", 19);
    memcpy(text + n - 2, "\"}", 2);
    kit_write("chat_template.json", text, n);
    started = cpu_seconds();
    open_and_render(NULL, NULL, MOX_E_FORMAT, out, sizeof out);
    assert_true(cpu_seconds() - started < LIMIT_S);
    assert_non_null(strstr(out, "chat_template.json"));
    free(text);
}

/* ---- what templates say ----------------------------------------------------------------------- */

static void test_families(void **state)
{
    (void)state;
    for (int i = 0; i < N_FAMILIES; i++) {
        const family *f = &families[i];
        mox_tokenizer *t = kit_tokenizer(f);
        mox_chat *c = kit_chat(f, t);
        mox_chat_info info;
        mox_chat_get_info(c, &info);
        assert_non_null(strstr(info.source, f->file));
        if (!f->format) assert_null(info.call_format);
        else assert_string_equal(info.call_format, f->format);
        assert_int_equal(info.thinks, f->thinks);
        static const mox_think thinks[3] = {MOX_THINK_DEFAULT, MOX_THINK_ON, MOX_THINK_OFF};
        for (int k = 0; k < 3; k++) {
            mox_chat_request request = {.messages = kit_json_text(USER("Is <think> a tag?")), .think = thinks[k]};
            mox_prompt p, without;
            mox_err err;
            if (render(c, &request, &p, &err) != MOX_OK) fail_msg("%s: %s", f->file, err.msg);
            request.no_generation_prompt = true;
            assert_int_equal(render(c, &request, &without, &err), MOX_OK);
            if (p.thinking != f->thinking[k]) fail_msg("%s: think %d: thinking is %d", f->file, k, p.thinking);
            assert_int_equal(p.generation_at, without.n); /* none of the nine takes anything back */
            assert_memory_equal(p.text, without.text, without.n);
            assert_true(p.n > without.n);
            assert_int_equal(without.generation_at, without.n);
            assert_false(without.thinking);
            mox_prompt_free(&p);
            mox_prompt_free(&without);
        }
        mox_chat_close(&c);
        mox_tokenizer_close(&t);
    }
}

/* Arguments may be an object or its text, the content of calls alone null, empty or missing:
 * each template gets what it renders as its model was trained. */
static void test_calls(void **state)
{
    (void)state;
#define CALL_WITH(content, arguments)                                                                                 \
    "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", " content "\"tool_calls\": [{\"id\": "       \
    "\"call_1\", \"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"arguments\": " arguments "}}]}, " \
    "{\"role\": \"tool\", \"tool_call_id\": \"call_1\", \"content\": \"sunny\"}]"
#define OBJECT "{\"city\": \"Paris\", \"days\": 2}"
#define TEXT "\"{\\\"city\\\": \\\"Paris\\\", \\\"days\\\": 2}\""
    static const char *const variants[] = {
        CALL_WITH("\"content\": \"\", ", OBJECT), CALL_WITH("\"content\": \"\", ", TEXT), CALL_WITH("\"content\": null, ", OBJECT),
        CALL_WITH("\"content\": null, ", TEXT),   CALL_WITH("", OBJECT),
    };
    for (int i = 0; i < N_FAMILIES; i++) {
        const family *f = &families[i];
        mox_tokenizer *t = kit_tokenizer(f);
        mox_chat *c = kit_chat(f, t);
        mox_prompt first = {0};
        for (size_t k = 0; k < sizeof variants / sizeof *variants; k++) {
            const mox_chat_request request = {.messages = kit_json_text(variants[k]), .tools = kit_json_text(CHAT_KIT_TOOLS)};
            mox_prompt p;
            mox_err err;
            if (render(c, &request, &p, &err) != MOX_OK) fail_msg("%s, variant %zu: %s", f->file, k, err.msg);
            const char *call = strstr(p.text, f->call);
            if (!call || strstr(call + 1, f->call)) fail_msg("%s, variant %zu: %s", f->file, k, p.text);
            if (strstr(p.text, "None") || strstr(p.text, "<｜Assistant｜><｜end")) fail_msg("%s: %s", f->file, p.text);
            if (k > 0) assert_string_equal(p.text, first.text);
            if (k == 0) first = p;
            else mox_prompt_free(&p);
        }
        mox_prompt_free(&first);
        mox_chat_close(&c);
        mox_tokenizer_close(&t);
    }
}

/* Parts of text are text, to templates that know parts and to those that do not. */
static void test_parts(void **state)
{
    (void)state;
    for (int i = 0; i < N_FAMILIES; i++) {
        const family *f = &families[i];
        mox_tokenizer *t = kit_tokenizer(f);
        mox_chat *c = kit_chat(f, t);
        const mox_chat_request one = {.messages = kit_json_text(
            "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"Some words\"}]}]")};
        const mox_chat_request plain = {.messages = kit_json_text(USER("Some words"))};
        const mox_chat_request image = {.messages = kit_json_text(
            "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": {\"url\": \"x\"}}]}]")};
        mox_prompt a, b;
        mox_err err;
        assert_int_equal(render(c, &one, &a, &err), MOX_OK);
        assert_int_equal(render(c, &plain, &b, &err), MOX_OK);
        assert_string_equal(a.text, b.text);
        mox_prompt_free(&a);
        mox_prompt_free(&b);
        assert_int_equal(render(c, &image, &a, &err), MOX_E_ARG);
        assert_non_null(strstr(err.msg, "messages[0].content has a part of type 'image_url'"));
        mox_chat_close(&c);
        mox_tokenizer_close(&t);
    }
}

/* ---- special tokens that somebody typed --------------------------------------------------------- */

static int count_special(const mox_tokens *tokens)
{
    int n = 0;
    for (int64_t i = 0; i < tokens->n; i++) n += tokens->ids[i] >= KIT_SPECIAL_ID;
    return n;
}

/* Every special token in every place where a text can come from: the ids are as many special
 * ones as with harmless words, and their bytes are the prompt. */
static void test_injection(void **state)
{
    (void)state;
    for (int i = 0; i < N_FAMILIES; i++) {
        const family *f = &families[i];
        mox_tokenizer *t = kit_tokenizer(f);
        mox_chat *c = kit_chat(f, t);
        int special[2];
        for (int evil = 0; evil < 2; evil++) {
            char words[1024] = "", messages[8192], tools[4096];
            for (int k = 0; evil && f->special[k]; k++) strcat(strcat(words, f->special[k]), k % 2 ? "x" : "");
            if (!evil) strcpy(words, "harmless");
            snprintf(messages, sizeof messages,
                     "[{\"role\": \"system\", \"content\": \"S %s\"}, {\"role\": \"user\", \"content\": \"U %s\"}, {\"role\": "
                     "\"assistant\", \"content\": \"A %s\", \"tool_calls\": [{\"id\": \"%s\", \"type\": \"function\", \"function\": "
                     "{\"name\": \"n%s\", \"arguments\": {\"city\": \"%s\", \"k%s\": [\"%s\"]}}}]}, {\"role\": \"tool\", "
                     "\"content\": \"T %s\", \"name\": \"%s\"}]",
                     words, words, words, words, words, words, words, words, words, words);
            snprintf(tools, sizeof tools,
                     "[{\"type\": \"function\", \"function\": {\"name\": \"t%s\", \"description\": \"d%s\", \"parameters\": {\"type\": "
                     "\"object\", \"properties\": {\"p%s\": {\"type\": \"string\", \"description\": \"%s\"}}}}}]",
                     words, words, words, words);
            const mox_chat_request request = {.messages = kit_json_text(messages), .tools = kit_json_text(tools)};
            mox_prompt p;
            mox_err err;
            mox_tokens tokens = {0};
            if (render(c, &request, &p, &err) != MOX_OK) fail_msg("%s: %s", f->file, err.msg);
            if (evil) assert_non_null(strstr(p.text, words));
            assert_int_equal(mox_prompt_encode(t, &p, NULL, 0, &tokens, NULL, &err), MOX_OK);
            special[evil] = count_special(&tokens);
            size_t at = 0;
            for (int64_t k = 0; k < tokens.n; k++) {
                size_t n;
                const char *bytes = mox_tokenizer_bytes(t, tokens.ids[k], &n);
                assert_true(at + n <= p.n && memcmp(p.text + at, bytes, n) == 0);
                at += n;
            }
            assert_int_equal(at, p.n);
            mox_tokens_free(&tokens);
            mox_prompt_free(&p);
        }
        assert_true(special[0] > 2);
        if (special[0] != special[1]) fail_msg("%s: %d special tokens, %d with harmless words", f->file, special[1], special[0]);
        mox_chat_close(&c);
        mox_tokenizer_close(&t);
    }
}

/* ---- hostile templates -------------------------------------------------------------------------- */

static mox_chat *open_template(const char *text)
{
    mox_chat *c;
    mox_err err;
    kit_clear();
    put("chat_template.jinja", text);
    if (mox_chat_open(&c, kit_folder, tokenizer, NULL, &err) != MOX_OK) fail_msg("%s: %s", text, err.msg);
    return c;
}

static void test_limits(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        mox_status status;
        const char *words;
    } cases[] = {
        {"{% set l = [1] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}", MOX_E_LIMIT, NULL},
        {"{% for x in range(99999) %}{% for x in range(99999) %}{% endfor %}{% endfor %}", MOX_E_LIMIT, NULL},
        {"{{ 'x' * 1000000000 }}", MOX_E_LIMIT, NULL},
        {"{% for i in range(99999) %}{{ 'xxxxxxxxxx' * 1000 }}{% endfor %}", MOX_E_LIMIT, NULL},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", MOX_E_LIMIT, NULL},
        {"\n {{ messages.nosuch.x }}", MOX_E_FORMAT, "chat_template.jinja:2:21"},
        {"{{ raise_exception('Only ' ~ messages[0].role ~ 's, please') }}", MOX_E_REFUSED, "Only users, please"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double started = cpu_seconds();
        mox_chat *c = open_template(cases[i].text);
        mox_prompt p;
        mox_err err;
        const mox_chat_request request = {.messages = kit_json_text(USER("Hi"))};
        if (render(c, &request, &p, &err) != cases[i].status) fail_msg("%s: %s", cases[i].text, err.msg);
        if (cases[i].words && !strstr(err.msg, cases[i].words)) fail_msg("%s: %s", cases[i].text, err.msg);
        mox_chat_close(&c);
        const double took = cpu_seconds() - started;
        if (took > LIMIT_S) fail_msg("%s: %.1f s", cases[i].text, took);
    }
}

/* A prompt that cannot be made without its generation prompt still says where thinking begins,
 * and takes no user's word for it. */
static void test_no_prompt_without_generation(void **state)
{
    (void)state;
    static const struct {
        const char *tail;
        bool thinking;
    } cases[] = {{"A:", false}, {"A:<think>", true}, {"A:<think></think>", false}, {"A:<think></think><think>", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{%% if not add_generation_prompt %%}{{ raise_exception('no') }}{%% endif %%}{{ messages[0].content }}%s", cases[i].tail);
        mox_chat *c = open_template(text);
        mox_prompt p;
        mox_err err;
        const mox_chat_request request = {.messages = kit_json_text(USER("<think>"))};
        assert_int_equal(render(c, &request, &p, &err), MOX_OK);
        assert_int_equal(p.generation_at, 0);
        assert_int_equal(p.thinking, cases[i].thinking);
        mox_prompt_free(&p);
        mox_chat_close(&c);
    }
}

/* ---- requests that are wrong ----------------------------------------------------------------------- */

#define CALL_ARGUMENTS(x)                                                                                             \
    "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": " \
    "\"function\", \"function\": {\"name\": \"f\", \"arguments\": " x "}}]}]"

static void test_wrong_requests(void **state)
{
    (void)state;
    static const char arguments[] = "messages[1].tool_calls[0].function.arguments must be a JSON object";
    static const struct {
        const char *messages, *tools, *kwargs;
        const char *words; /* NULL: fine */
    } cases[] = {
        {NULL, NULL, NULL, "messages: there are none"},
        {"", NULL, NULL, "messages"},
        {"[]", NULL, NULL, "messages is empty"},
        {" [ \n] ", NULL, NULL, "messages is empty"},
        {"{}", NULL, NULL, "messages must be an array"},
        {"[5]", NULL, NULL, "messages[0] must be an object"},
        {"[{}]", NULL, NULL, "messages[0] has no role"},
        {"[{\"role\": \"user\", \"content\": \"a\"}, {\"content\": \"a\"}]", NULL, NULL, "messages[1] has no role"},
        {"[{\"role\": 5}]", NULL, NULL, "messages[0].role must be a string"},
        {"[{\"role\": null}]", NULL, NULL, "messages[0].role must be a string"},
        {"[{\"role\": \"\"}]", NULL, NULL, "messages[0].role must be a string"},
        {"[{\"role\": \"user\", \"role\": \"system\", \"content\": \"\"}]", NULL, NULL, "comes twice"},
        {"[{\"role\": \"user\", \"content\": \"a\", \"content\": \"b\"}]", NULL, NULL, "comes twice"},
        {"[{\"role\": \"user\", \"content\": 5}]", NULL, NULL, "messages[0].content must be"},
        {"[{\"role\": \"user\", \"content\": {}}]", NULL, NULL, "messages[0].content must be"},
        {"[{\"role\": \"user\", \"content\": [5]}]", NULL, NULL, "messages[0].content has a part that is no object"},
        {"[{\"role\": \"user\", \"content\": [{}]}]", NULL, NULL, "messages[0].content has a part without a type"},
        {"[{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]", NULL, NULL, "without its text"},
        {"[{\"role\": \"user\", \"content\": [\"a\", {\"type\": \"text\", \"text\": \"b\"}]}]", NULL, NULL, NULL},
        {"[{\"role\": \"user\", \"content\": \"a\"}", NULL, NULL, "messages"},
        {USER("a") " x", NULL, NULL, "messages"},
        {"[{\"role\": \"user\", \"content\": \"\xFF\"}]", NULL, NULL, "messages"},
        {"[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": 5}]", NULL, NULL, "messages[0].tool_calls must be an array"},
        {"[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [5]}]", NULL, NULL, "messages[0].tool_calls[0] must be an object"},
        {"[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": 5}]}]", NULL, NULL,
         "messages[0].tool_calls[0].function must be an object"},
        {"[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": 5}}]}]", NULL, NULL,
         "messages[0].tool_calls[0].function.name must be a string"},
        {"[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": \"f\"}}]}]", NULL, NULL,
         "messages[0].tool_calls[0].function has no arguments"},
        {"[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"name\": \"f\"}]}]", NULL, NULL, "has no arguments"},
        {"[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": {\"arguments\": {}}}]}]", NULL, NULL, "has no name"},
        {"[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"a\"}]}]", NULL, NULL,
         "messages[0].tool_calls[0] has no function"},
        {"[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"name\": \"f\", \"arguments\": {}}]}]", NULL, NULL, NULL},
        {"[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": []}]", NULL, NULL, NULL},
        {"[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": null}]", NULL, NULL, NULL},
        {CALL_ARGUMENTS("\"{\""), NULL, NULL, arguments},
        {CALL_ARGUMENTS("\"\""), NULL, NULL, arguments},
        {CALL_ARGUMENTS("null"), NULL, NULL, arguments},
        {CALL_ARGUMENTS("5"), NULL, NULL, arguments},
        {CALL_ARGUMENTS("[]"), NULL, NULL, arguments},
        {CALL_ARGUMENTS("\"[1]\""), NULL, NULL, arguments},
        {CALL_ARGUMENTS("\"{} {}\""), NULL, NULL, arguments},
        {CALL_ARGUMENTS("{}"), NULL, NULL, NULL},
        {CALL_ARGUMENTS("\" {\\\"a\\\": 1} \""), NULL, NULL, NULL},
        {USER("a"), "5", NULL, "tools"},
        {USER("a"), "[5]", NULL, "tools[0] must be an object"},
        {USER("a"), "[{}]", NULL, "tools[0] has no name"},
        {USER("a"), "[{\"function\": 5}]", NULL, "tools[0].function must be an object"},
        {USER("a"), "[{\"name\": \"a\"}, {\"function\": {\"name\": 5}}]", NULL, "tools[1] has no name"},
        {USER("a"), "[{\"name\": \"a\", \"parameters\": {}}, {\"function\": {\"name\": \"b\", \"parameters\": 5}}]", NULL,
         "tools[1]: the parameters must be an object"},
        {USER("a"), "[{\"name\": \"a\", \"parameters\": []}]", NULL, "tools[0]: the parameters must be an object"},
        {USER("a"), "[{\"function\": {\"name\": \"a\", \"parameters\": null}}]", NULL, NULL},
        {USER("a"), "[{\"name\": \"a\"}", NULL, "tools"},
        {USER("a"), "null", NULL, NULL},
        {USER("a"), "[ ]", NULL, NULL},
        {USER("a"), "[] x", NULL, "tools"},
        {USER("a"), NULL, "5", "kwargs must be a JSON object"},
        {USER("a"), NULL, "{\"a\": }", "kwargs"},
        {USER("a"), NULL, "{\"a\": 1, \"a\": 2}", "the key \"a\" comes twice"},
        {"[{\"role\": \"user\", \"content\": \"a\", \"x\": {\"y\": 1, \"y\": 2}}]", NULL, NULL, "the key \"y\" comes twice"},
        {USER("a"), NULL, "{\"messages\": []}", "kwargs cannot set 'messages'"},
        {USER("a"), NULL, "{\"\\u006dessages\": []}", "kwargs cannot set 'messages'"},
        {USER("a"), NULL, "{\"tools\": []}", "kwargs cannot set 'tools'"},
        {USER("a"), NULL, "{\"add_generation_prompt\": false}", "kwargs cannot set 'add_generation_prompt'"},
        {USER("a"), NULL, "{\"tokenize\": true}", "kwargs cannot set 'tokenize'"},
        {USER("a"), NULL, "{\"chat_template\": \"\"}", "kwargs cannot set 'chat_template'"},
        {USER("a"), NULL, "{\"bos_token\": 5}", "bos_token must be one string"},
        {USER("a"), NULL, "{\"bos_token\": \"a\", \"bos_token\": \"b\"}", "bos_token must be one string"},
        {USER("a"), NULL, "{\"bos_token\": \"a\", \"x\": [1, {\"y\": null}]}", NULL},
        {USER("a"), NULL, "{}", NULL},
    };
    mox_chat *c = kit_chat(&families[0], tokenizer);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mox_chat_request request = {.messages = kit_json_text(cases[i].messages), .tools = kit_json_text(cases[i].tools),
                                          .kwargs = kit_json_text(cases[i].kwargs)};
        mox_prompt p;
        mox_err err;
        const mox_status status = render(c, &request, &p, &err);
        mox_prompt_free(&p);
        if (status != (cases[i].words ? MOX_E_ARG : MOX_OK))
            fail_msg("case %zu, %s: %d, %s", i, cases[i].messages ? cases[i].messages : "", (int)status, err.msg);
        if (cases[i].words && !strstr(err.msg, cases[i].words)) fail_msg("case %zu: %s", i, err.msg);
    }
    mox_chat_close(&c);
}

/* What templates think of odd conversations is theirs to say. */
static void test_odd_conversations(void **state)
{
    (void)state;
    static const struct {
        const char *file, *messages;
        mox_status status;
        const char *words; /* of the error or in the prompt */
    } cases[] = {
        {"Qwen3.5-4B", "[{\"role\": \"system\", \"content\": \"S\"}]", MOX_E_REFUSED, "No user query found in messages."},
        {"Qwen3.5-4B", USER("a"), MOX_OK, "<|im_start|>user\na<|im_end|>"},
        {"Qwen3.5-4B", "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"king\", \"content\": \"b\"}]", MOX_E_REFUSED,
         "Unexpected message role."},
        {"Qwen3.5-4B", "[{\"role\": \"user\", \"content\": null}]", MOX_OK, "<|im_start|>user\n<|im_end|>"},
        {"Qwen3.5-4B", "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"system\", \"content\": \"b\"}]", MOX_E_REFUSED,
         "System message must be at the beginning."},
        {"Qwen3-Coder", "[{\"role\": \"king\", \"content\": \"b\"}]", MOX_OK, "<|im_start|>king\nb<|im_end|>"},
        {"Qwen-Qwen3-0.6B", "[{\"role\": \"system\", \"content\": \"S\"}]", MOX_OK, "<|im_start|>system\nS<|im_end|>"},
        {"Qwen-Qwen3-0.6B", "[{\"role\": \"assistant\", \"content\": \"A\"}, {\"role\": \"user\", \"content\": \"B\"}]", MOX_OK,
         "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nB"},
        {"Qwen-Qwen3-0.6B", "[{\"role\": \"user\", \"content\": null}]", MOX_OK, "<|im_start|>user\n<|im_end|>"},
        {"Qwen-Qwen3-0.6B", "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"tool\", \"content\": null}]", MOX_OK,
         "<tool_response>\n\n</tool_response>"},
        {"openai-gpt-oss-120b", "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"tool\", \"content\": \"b\"}]", MOX_E_REFUSED,
         "Message has tool role, but there was no previous assistant message with a tool call!"},
        {"Kimi-K2-Instruct", "[{\"role\": \"tool\", \"content\": null}]", MOX_OK, "## Return of functions.unknown:0\n<"},
        {"Kimi-K2-Instruct", "[{\"role\": \"tool\", \"content\": \"b\"}]", MOX_OK, "## Return of functions.unknown:0\nb"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const family *f = families;
        while (strcmp(f->file, cases[i].file) != 0) f++;
        mox_tokenizer *t = kit_tokenizer(f);
        mox_chat *c = kit_chat(f, t);
        mox_prompt p;
        mox_err err;
        const mox_chat_request request = {.messages = kit_json_text(cases[i].messages)};
        const mox_status status = render(c, &request, &p, &err);
        if (status != cases[i].status) fail_msg("%s, %s: %d, %s", f->file, cases[i].messages, (int)status, err.msg);
        if (status == MOX_E_REFUSED) assert_string_equal(err.msg, cases[i].words);
        else if (!strstr(status == MOX_OK ? p.text : err.msg, cases[i].words)) fail_msg("%s", status == MOX_OK ? p.text : err.msg);
        mox_prompt_free(&p);
        mox_chat_close(&c);
        mox_tokenizer_close(&t);
    }
}

/* kwargs reach the template, bos_token as the tokenizer's own. */
static void test_kwargs(void **state)
{
    (void)state;
    mox_chat *c = open_template("{{ bos_token }}{{ eos_token }}{{ x }}{{ enable_thinking }}{{ strftime_now('%Y') }}");
    mox_chat_request request = {.messages = kit_json_text(USER("a")), .think = MOX_THINK_ON,
                                .kwargs = kit_json_text("{\"bos_token\": \"<|im_start|>\", \"x\": \"<|im_start|>\"}")};
    mox_prompt p;
    mox_err err;
    mox_tokens tokens = {0};
    assert_int_equal(render(c, &request, &p, &err), MOX_OK);
    assert_string_equal(p.text, "<|im_start|><|im_end|><|im_start|>True1970");
    assert_int_equal(mox_prompt_encode(tokenizer, &p, NULL, 0, &tokens, NULL, &err), MOX_OK);
    assert_int_equal(count_special(&tokens), 2);
    mox_tokens_free(&tokens);
    mox_prompt_free(&p);
    request.kwargs = kit_json_text("{\"enable_thinking\": false}"); /* and think says the opposite */
    assert_int_equal(render(c, &request, &p, &err), MOX_E_ARG);
    mox_chat_close(&c);
}

/* ---- size ------------------------------------------------------------------------------------------- */

static char *repeated(const char *first, const char *each, int n, const char *last)
{
    const size_t size = strlen(first) + (strlen(each) + 16) * (size_t)n + strlen(last) + 1;
    char *text = malloc(size);
    assert_non_null(text);
    size_t at = (size_t)snprintf(text, size, "%s", first);
    for (int i = 0; i < n; i++) {
        const char *number = strchr(each, '#'); /* replaced by i */
        at += (size_t)snprintf(text + at, size - at, "%.*s%d%s", (int)(number - each), each, i, number + 1);
    }
    snprintf(text + at, size - at, "%s", last);
    return text;
}

static void test_large_requests(void **state)
{
    (void)state;
    char *messages = repeated("[{\"role\": \"user\", \"content\": \"a\"}",
                              ", {\"role\": \"assistant\", \"content\": \"answer #\"}, {\"role\": \"user\", \"content\": \"more\"}", 5000, "]");
    char *kwargs = repeated("{\"last\": 1", ", \"variable_number_#\": \"some text of some length\"", 20000, "}");
    assert_true(strlen(kwargs) > 1000 * 1000);
    for (int i = 0; i < N_FAMILIES; i++) {
        mox_tokenizer *t = kit_tokenizer(&families[i]);
        mox_chat *c = kit_chat(&families[i], t);
        mox_prompt p;
        mox_err err;
        const double started = cpu_seconds();
        const mox_chat_request request = {.messages = kit_json_text(messages), .kwargs = kit_json_text(kwargs)};
        if (render(c, &request, &p, &err) != MOX_OK) fail_msg("%s: %s", families[i].file, err.msg);
        const double took = cpu_seconds() - started;
        assert_non_null(strstr(p.text, "answer 4999"));
        if (took > LIMIT_S) fail_msg("%s: %.1f s", families[i].file, took);
        mox_prompt_free(&p);
        mox_chat_close(&c);
        mox_tokenizer_close(&t);
    }
    free(messages);
    free(kwargs);
}

/* What was said is found in a long conversation with many calls, too. */
static void test_many_calls(void **state)
{
    (void)state;
    char *messages = repeated("[{\"role\": \"user\", \"content\": \"a\"}",
                              ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"c#\", \"type\": \"function\", "
                              "\"function\": {\"name\": \"get_weather\", \"arguments\": {}}}]}, {\"role\": \"tool\", \"content\": \"x\"}",
                              4500, "]");
    mox_chat *c = kit_chat(&families[0], tokenizer);
    mox_prompt p;
    mox_err err;
    const mox_said said = {.message = 8999, .opening = "<|im_start|>assistant\n", .n_opening = 22,
                           .text = {.text = "<tool_call>{\"name\":\"get_weather\"}</tool_call>", .n = 45}};
    const mox_chat_request request = {.messages = kit_json_text(messages), .said = &said, .n_said = 1};
    const double started = cpu_seconds();
    if (render(c, &request, &p, &err) != MOX_OK) fail_msg("%s", err.msg);
    assert_true(cpu_seconds() - started < LIMIT_S);
    assert_non_null(strstr(p.text, said.text.text));
    mox_prompt_free(&p);
    mox_chat_close(&c);
    free(messages);
}

/* ---- messages one by one ------------------------------------------------------------------------------ */

static mox_status collect(void *user, const char *role, mox_json_text message, mox_err *err)
{
    char *out = user;
    (void)err;
    sprintf(out + strlen(out), "%s=%.*s;", role, (int)message.n, message.text);
    return MOX_OK;
}

static mox_status refuse(void *user, const char *role, mox_json_text message, mox_err *err)
{
    (void)user, (void)role, (void)message;
    if (err) *err = (mox_err){.status = MOX_E_LIMIT};
    return MOX_E_LIMIT;
}

static void test_each(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        mox_status status;
        const char *out; /* or words of the error */
    } cases[] = {
        {"[{\"role\": \"a\", \"x\": 1}, {\"role\": \"b\"}]", MOX_OK, "a={\"role\": \"a\", \"x\": 1};b={\"role\": \"b\"};"},
        {"{\"y\": 1, \"messages\": [{\"role\": \"a\"}]} ", MOX_OK, "a={\"role\": \"a\"};"},
        {"[]", MOX_OK, ""},
        {"{}", MOX_E_ARG, "file.json: not an array of messages"},
        {"{\"messages\": 5}", MOX_E_ARG, "file.json: not an array of messages"},
        {"5", MOX_E_ARG, "file.json: not an array of messages"},
        {"[5]", MOX_E_ARG, "messages[0] must be an object"},
        {"[{}]", MOX_E_ARG, "messages[0] has no role"},
        {"[{\"role\": \"a\"}, {\"role\": 5}]", MOX_E_ARG, "messages[1] has no role"},
        {"[", MOX_E_FORMAT, "file.json"},
        {"[] []", MOX_E_FORMAT, "file.json"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[256] = "";
        mox_err err = {0};
        const mox_status status = mox_messages_each("file.json", kit_json_text(cases[i].text), collect, out, &err);
        if (status != cases[i].status) fail_msg("%s: %d, %s", cases[i].text, (int)status, err.msg);
        if (status == MOX_OK) assert_string_equal(out, cases[i].out);
        else if (!strstr(err.msg, cases[i].out)) fail_msg("%s: %s", cases[i].text, err.msg);
    }
    mox_err err;
    assert_int_equal(mox_messages_each("f", kit_json_text("[{\"role\": \"a\"}]"), refuse, NULL, &err), MOX_E_LIMIT);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static void test_fail_nth(void **state)
{
    (void)state;
    const mox_said said = {.message = 1, .opening = "<|im_start|>assistant\n", .n_opening = 22,
                           .text = {.text = "<tool_call>{\"name\":\"get_weather\"}</tool_call>", .n = 45}};
    const mox_chat_request request = {
        .messages = kit_json_text("[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": "
                                  "\"get_weather\", \"arguments\": {}}}]}, {\"role\": \"tool\", \"content\": [{\"type\": \"text\", "
                                  "\"text\": \"x\"}]}]"),
        .tools = kit_json_text(CHAT_KIT_TOOLS), .kwargs = kit_json_text("{\"a\": 1, \"bos_token\": \"x\"}"), .said = &said, .n_said = 1};
    char path[512];
    snprintf(path, sizeof path, "%s/tests/data/templates/%s.jinja", SOURCE_ROOT, families[0].file);
    const mox_chat_opts opts = {.template_file = path};
    bool done = false;
    int failed = 0;
    for (long at = 1; !done; at++) {
        nth n = {.at = at};
        mox_chat *c = NULL;
        mox_prompt p = {0};
        mox_tokens tokens = {0};
        int64_t n_before;
        mox_err err = {0};
        mox_alloc_set_hook(fail_nth_alloc, &n);
        mox_status status = mox_chat_open(&c, kit_folder, tokenizer, &opts, &err);
        if (status == MOX_OK) status = mox_chat_render(c, &request, &p, &err);
        if (status == MOX_OK) status = mox_prompt_encode(tokenizer, &p, NULL, 0, &tokens, &n_before, &err);
        mox_alloc_set_hook(NULL, NULL);
        done = n.count < at;
        if (done) {
            assert_int_equal(status, MOX_OK);
            assert_non_null(strstr(p.text, said.text.text));
        } else {
            if (status != MOX_E_MEMORY) fail_msg("allocation %ld: %d, %s", at, (int)status, err.msg);
            assert_int_equal(err.status, MOX_E_MEMORY);
            failed++;
        }
        mox_tokens_free(&tokens);
        mox_prompt_free(&p);
        mox_chat_close(&c);
    }
    assert_true(failed > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sources),
        cmocka_unit_test(test_named_sources),
        cmocka_unit_test(test_broken_sources),
        cmocka_unit_test(test_large_sources),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_injection),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_no_prompt_without_generation),
        cmocka_unit_test(test_wrong_requests),
        cmocka_unit_test(test_odd_conversations),
        cmocka_unit_test(test_kwargs),
        cmocka_unit_test(test_large_requests),
        cmocka_unit_test(test_many_calls),
        cmocka_unit_test(test_each),
        cmocka_unit_test(test_fail_nth),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
