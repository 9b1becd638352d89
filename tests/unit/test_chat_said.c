/* What was sampled stands in the next prompt again: its bytes, where the template means the
 * same, and its ids.  The message that goes with it is what text/reply.h makes of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "chat_kit.h"
#include "text/chat_internal.h"

#include <jansson.h>

/* ---- bytes ------------------------------------------------------------------------------------ */

/* The reply as a message, and in out all of [user, reply, next]. */
static char *conversation(const mox_chat *c, const char *said, bool thinking, const char *next)
{
    const mox_reply_opts opts = {.format = c->format, .thinking = thinking, .tools = kit_json_text(CHAT_KIT_TOOLS)};
    mox_reply *r;
    mox_message m;
    mox_err err;
    assert_int_equal(mox_reply_create(&r, &opts, &err), MOX_OK);
    assert_int_equal(mox_reply_push(r, said, strlen(said), &err), MOX_OK);
    assert_int_equal(mox_reply_finish(r, true, &err), MOX_OK);
    mox_reply_get_message(r, &m);
    json_t *message = json_pack("{s:s, s:s}", "role", "assistant", "content", m.text);
    if (m.n_thinking > 0) json_object_set_new(message, "reasoning_content", json_string(m.thinking));
    json_t *calls = json_array();
    for (int32_t i = 0; i < m.n_calls; i++)
        json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", m.calls[i].id, "type", "function", "function",
                                               "name", m.calls[i].name, "arguments", m.calls[i].arguments));
    if (m.n_calls > 0) json_object_set(message, "tool_calls", calls);
    json_decref(calls);
    mox_reply_destroy(&r);
    json_t *all = json_pack("[{s:s, s:s}, o, {s:s, s:s}]", "role", "user", "content", "question", message, "role", next, "content", "NEXT");
    char *text = json_dumps(all, 0);
    json_decref(all);
    return text;
}

/* Bytes that are no special token's. */
static size_t plain_spans(const family *f, const char *text, mox_text_span *spans, size_t max)
{
    size_t n = 0;
    for (size_t i = 0, begin = 0; i <= strlen(text);) {
        size_t special = 0;
        for (int k = 0; f->special[k]; k++)
            if (strncmp(text + i, f->special[k], strlen(f->special[k])) == 0) special = strlen(f->special[k]);
        if ((special > 0 || text[i] == '\0') && i > begin) {
            assert_true(n < max);
            spans[n++] = (mox_text_span){begin, i};
        }
        i += special > 0 ? special : 1;
        if (special > 0) begin = i;
    }
    return n;
}

static const char *last_before(const char *text, const char *what, const char *before)
{
    const char *found = NULL;
    for (const char *p = text; (p = strstr(p, what)) && p < before; p++) found = p;
    return found;
}

typedef struct saying {
    const char *file;
    mox_think think;
    const char *next;   /* role of the next message */
    const char *ending; /* NULL: the family's */
    bool stands;        /* it stands in the next prompt as it was said */
    const char *text;
} saying;

static int special_tokens(const mox_tokenizer *t, const mox_prompt *p)
{
    mox_tokens tokens = {0};
    mox_err err;
    int n = 0;
    assert_int_equal(mox_prompt_encode(t, p, NULL, 0, &tokens, NULL, &err), MOX_OK);
    for (int64_t i = 0; i < tokens.n; i++) n += tokens.ids[i] >= KIT_SPECIAL_ID;
    mox_tokens_free(&tokens);
    return n;
}

/* Whether it stood there; fails when the prompt is neither with nor without it. */
static bool check_saying(const saying *s)
{
    const family *f = families;
    while (strcmp(f->file, s->file) != 0) f++;
    mox_tokenizer *t = kit_tokenizer(f);
    mox_chat *c = kit_chat(f, t);
    mox_prompt first, plain, with;
    mox_err err;
    mox_chat_request request = {.messages = kit_json_text("[{\"role\": \"user\", \"content\": \"question\"}]"), .think = s->think,
                                .tools = kit_json_text(CHAT_KIT_TOOLS)};
    assert_int_equal(mox_chat_render(c, &request, &first, &err), MOX_OK);
    char *messages = conversation(c, s->text, first.thinking, s->next);
    request.messages = kit_json_text(messages);
    if (mox_chat_render(c, &request, &plain, &err) != MOX_OK) fail_msg("%s: %s", s->file, err.msg);
    mox_text_span spans[16];
    const char *opening = first.text + first.generation_at;
    const mox_said said = {.message = 1, .opening = opening, .n_opening = first.n - first.generation_at,
                           .text = {s->text, strlen(s->text), spans, plain_spans(f, s->text, spans, 16)}};
    request.said = &said;
    request.n_said = 1;
    if (mox_chat_render(c, &request, &with, &err) != MOX_OK) fail_msg("%s: %s", s->file, err.msg);

    const char *at = last_before(plain.text, opening, strstr(plain.text, "NEXT"));
    const char *end = at ? strstr(at + strlen(opening), s->ending ? s->ending : f->ending) : NULL;
    bool stood = false;
    if (at && end) {
        const size_t size = plain.n + strlen(s->text) + 1;
        char *expected = malloc(size);
        assert_non_null(expected);
        snprintf(expected, size, "%.*s%s%s", (int)(at + strlen(opening) - plain.text), plain.text, s->text, end);
        stood = strcmp(with.text, expected) == 0;
        free(expected);
    }
    if (!stood && strcmp(with.text, plain.text) != 0) fail_msg("%s, %s:\n%s\nwithout it:\n%s", s->file, s->text, with.text, plain.text);
    assert_int_equal(with.n - with.generation_at, plain.n - plain.generation_at);
    assert_string_equal(with.text + with.generation_at, plain.text + plain.generation_at);
    assert_int_equal(with.thinking, plain.thinking);
    assert_int_equal(special_tokens(t, &with), special_tokens(t, &plain));
    free(messages);
    mox_prompt_free(&first);
    mox_prompt_free(&plain);
    mox_prompt_free(&with);
    mox_chat_close(&c);
    mox_tokenizer_close(&t);
    return stood;
}

#define QWEN3 "Qwen-Qwen3-0.6B"
#define V31 "deepseek-ai-DeepSeek-V3.1"
#define R1 "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"
#define OFF MOX_THINK_OFF
#define ON MOX_THINK_ON

static void test_sayings(void **state)
{
    (void)state;
    static const saying cases[] = {
        {QWEN3, 0, "user", NULL, true, "An answer."},
        {QWEN3, 0, "user", NULL, true, "An answer with blanks \n\n"},
        {QWEN3, 0, "user", NULL, true, ""},
        /* calls, spelled otherwise */
        {QWEN3, 0, "tool", NULL, true, "<tool_call>\n{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Paris\"}}\n</tool_call>"},
        {QWEN3, 0, "tool", NULL, true, "<tool_call>{ \"name\" : \"get_weather\", \"arguments\" : {\"city\" : \"Paris\"} }</tool_call>\n"},
        {QWEN3, 0, "tool", NULL, true, "One moment.\n\n<tool_call>\n{\"arguments\": {}, \"name\": \"get_weather\"}\n</tool_call>"},
        {QWEN3, 0, "tool", NULL, true, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"P\\u0061ris\", \"days\": 2.0}}\n</tool_call>"},
        {QWEN3, 0, "tool", NULL, true,
         "<tool_call>{\"name\": \"get_weather\"}</tool_call><tool_call>{\"name\": \"get_weather\",\n \"arguments\": {\"days\": 1}}</tool_call>"},
        {QWEN3, 0, "tool", NULL, true, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}"}, /* never closed */
        {QWEN3, 0, "user", NULL, true, "Not a <tool_call> at all"},
        /* thinking: kept within the turn, dropped from old ones */
        {QWEN3, 0, "tool", NULL, true, "<think>\nHm.\n</think>\n\n<tool_call>{\"name\": \"get_weather\"}</tool_call>"},
        {QWEN3, 0, "tool", NULL, true, "<think>Hm.</think><tool_call>{\"name\": \"get_weather\"}</tool_call>"},
        {QWEN3, 0, "user", NULL, false, "<think>\nHm.\n</think>\n\nAn answer."},
        {QWEN3, 0, "user", NULL, true, "<think>\n\n</think>\n\nAn answer."}, /* nothing to drop */
        {QWEN3, OFF, "user", NULL, false, "An answer."}, /* the old prompt ended in an empty block */
        {"Qwen3.5-4B", 0, "tool", NULL, true, "Hm.\n</think>\n\n<tool_call>\n<function=get_weather>\n</function>\n</tool_call>"},
        {"Qwen3.5-4B", 0, "tool", NULL, true,
         "Hm.</think>Well.<tool_call><function=get_weather><parameter=city>Paris</parameter></function></tool_call>"},
        {"Qwen3.5-4B", 0, "tool", NULL, false, "Hm, and then it was cut off"}, /* the template closes the block */
        {"Qwen3.5-4B", 0, "user", NULL, false, "Hm.\n</think>\n\nAn answer."},
        {"Qwen3.5-4B", OFF, "tool", NULL, true, "An answer. "},
        {"Qwen3-Coder", 0, "user", NULL, true, " An answer. "},
        {"Qwen3-Coder", 0, "tool", NULL, true, "<tool_call>\n<function=get_weather>\n<parameter=days>2</parameter>\n</function>\n</tool_call>"},
        {"Qwen3-Coder", 0, "tool", NULL, true, "<function=get_weather>\n<parameter=days>\n2\n</parameter>\n</function>"},
        {V31, 0, "user", NULL, true, "An answer.\n"},
        {V31, 0, "tool", NULL, true, DS_BEGIN("calls") DS_BEGIN("call") "get_weather<｜tool▁sep｜>{\"city\":\"Paris\"}" DS_END("call") DS_END("calls")},
        {V31, 0, "tool", NULL, true, "Yes." DS_BEGIN("calls") DS_BEGIN("call") "get_weather<｜tool▁sep｜>{}" DS_END("call") DS_END("calls")},
        {V31, ON, "user", NULL, false, "Hm.</think>An answer."},
        {R1, 0, "user", NULL, false, "An answer."},
        {"GLM-4.6", 0, "user", NULL, true, "\n<think></think>\nAn answer."},
        {"GLM-4.6", 0, "user", NULL, true, "\n<think></think>An answer. \n"},
        {"GLM-4.6", 0, "user", NULL, false, "\n<think>Hm.</think>\nAn answer."},
        {"GLM-4.6", 0, "tool", "<|observation|>", true,
         "\n<think>Hm.</think>\n<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"},
        {"GLM-4.6", 0, "tool", "<|observation|>", true,
         "\n<think>Hm.\n</think>\n<tool_call>get_weather\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"},
        {"Kimi-K2-Instruct", 0, "user", NULL, true, "An answer. "},
        {"Kimi-K2-Instruct", 0, "tool", NULL, true,
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\":\"Paris\"}"
         "<|tool_call_end|><|tool_calls_section_end|>"},
        {"MiniMax-M2", 0, "user", NULL, false, "Hm.\n</think>\n\nAn answer."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (check_saying(&cases[i]) != cases[i].stands)
            fail_msg("%s, %s: it stands there: %d", cases[i].file, cases[i].text, !cases[i].stands);
}

/* A template that writes its own blanks behind a message keeps them. */
static void test_own_blanks(void **state)
{
    (void)state;
    static const char text[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    mox_tokenizer *t = kit_tokenizer(&families[0]);
    mox_chat *c;
    mox_prompt p;
    mox_err err;
    kit_write("chat_template.jinja", text, strlen(text));
    assert_int_equal(mox_chat_open(&c, kit_folder, t, NULL, &err), MOX_OK);
    const mox_said said = {.message = 1, .opening = "[assistant]", .n_opening = 11, .text = {.text = " An answer", .n = 10}};
    mox_chat_request request = {.messages = kit_json_text("[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
                                                          "\"An answer\"}, {\"role\": \"user\", \"content\": \"b\"}]"),
                                .said = &said, .n_said = 1};
    assert_int_equal(mox_chat_render(c, &request, &p, &err), MOX_OK);
    assert_string_equal(p.text, "[user]a\n[assistant] An answer\n[user]b\n[assistant]");
    mox_prompt_free(&p);
    mox_chat_close(&c);
    kit_clear();
    mox_tokenizer_close(&t);
}

/* Sayings that belong to no message, or to one that is not where it was, change nothing; and where
 * the part of the last prompt alone begins inside of one, it begins with it. */
static void test_misplaced(void **state)
{
    (void)state;
    static const char text[] = "{% for m in messages %}<{{ m.role }}>{{ m.content if not (loop.last and add_generation_prompt) else m.content|trim }}"
                               "<|im_end|>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b     \"}]";
    mox_tokenizer *t = kit_tokenizer(&families[0]);
    mox_chat *c;
    mox_prompt p;
    mox_err err;
    kit_write("chat_template.jinja", text, strlen(text));
    assert_int_equal(mox_chat_open(&c, kit_folder, t, NULL, &err), MOX_OK);
    mox_said said[3] = {{.message = -1, .opening = "<user>", .n_opening = 6, .text = {.text = " a", .n = 2}},
                        {.message = 1, .opening = "<user>", .n_opening = 6, .text = {.text = " b", .n = 2}},
                        {.message = 9, .opening = "<assistant>", .n_opening = 11, .text = {.text = " b", .n = 2}}};
    mox_chat_request request = {.messages = kit_json_text(messages), .said = said, .n_said = 3};
    assert_int_equal(mox_chat_render(c, &request, &p, &err), MOX_OK);
    assert_string_equal(p.text, "<user>a<|im_end|><assistant>b<|im_end|><assistant>");
    assert_int_equal(p.generation_at, strlen("<user>a<|im_end|><assistant>b"));
    mox_prompt_free(&p);
    said[1] = (mox_said){.message = 1, .opening = "<assistant>", .n_opening = 11, .text = {.text = "b", .n = 1}};
    request.no_generation_prompt = true; /* "b     " is rendered, "b" stands */
    assert_int_equal(mox_chat_render(c, &request, &p, &err), MOX_OK);
    assert_string_equal(p.text, "<user>a<|im_end|><assistant>b<|im_end|>");
    assert_int_equal(p.generation_at, p.n);
    mox_prompt_free(&p);
    static const char cut[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ '' if add_generation_prompt else '!' }}{% endfor %}";
    mox_chat_close(&c);
    kit_write("chat_template.jinja", cut, strlen(cut));
    assert_int_equal(mox_chat_open(&c, kit_folder, t, NULL, &err), MOX_OK);
    request = (mox_chat_request){.messages = kit_json_text("[{\"role\": \"assistant\", \"content\": \"long  \"}]"), .said = said, .n_said = 1};
    said[0] = (mox_said){.message = 0, .opening = "<assistant>", .n_opening = 11, .text = {.text = "long", .n = 4}};
    assert_int_equal(mox_chat_render(c, &request, &p, &err), MOX_OK);
    assert_string_equal(p.text, "<assistant>long");
    assert_true(p.generation_at <= p.n);
    mox_prompt_free(&p);
    mox_chat_close(&c);
    kit_clear();
    mox_tokenizer_close(&t);
}

/* ---- ids ------------------------------------------------------------------------------------------ */

enum { AB = 256, ABC = 257, S = 300, E = 301 };

static mox_tokenizer *open_ids(const char *normalizer)
{
    const kit k = {.vocab = ",\"ab\":256,\"abc\":257", .merges = "[\"a\",\"b\"],[\"ab\",\"c\"]", .normalizer = normalizer,
                   .added = "{\"id\":300,\"content\":\"<S>\",\"special\":true},{\"id\":301,\"content\":\"<E>\",\"special\":true}"};
    mox_tokenizer *t;
    mox_err err;
    if (kit_open(&t, &k, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    return t;
}

typedef struct id_case {
    const char *text; /* plain between « and », the last prompt's own part from | on */
    int32_t known[12], ids[16];
    int64_t n_before;
} id_case; /* lists end at -1 */

static mox_prompt marked_prompt(const char *marked, char *text, mox_text_span *spans)
{
    mox_prompt p = {.text = text, .plain = spans, .generation_at = SIZE_MAX};
    for (const char *m = marked; *m; m++) {
        if (strncmp(m, "«", 2) == 0) spans[p.n_plain].begin = p.n, m++;
        else if (strncmp(m, "»", 2) == 0) spans[p.n_plain++].end = p.n, m++;
        else if (*m == '|') p.generation_at = p.n;
        else text[p.n++] = *m;
    }
    text[p.n] = '\0';
    if (p.generation_at == SIZE_MAX) p.generation_at = p.n;
    return p;
}

static int64_t length(const int32_t *ids)
{
    int64_t n = 0;
    while (ids[n] >= 0) n++;
    return n;
}

static void check_ids(const mox_tokenizer *t, const id_case *c)
{
    char text[256];
    mox_text_span spans[8];
    const mox_prompt p = marked_prompt(c->text, text, spans);
    mox_tokens out = {0};
    mox_err err;
    int64_t n_before = -7;
    assert_int_equal(mox_tokenizer_encode(t, "zz", 2, MOX_ENCODE_PLAIN, &out, &err), MOX_OK); /* something is there */
    assert_int_equal(mox_prompt_encode(t, &p, c->known, length(c->known), &out, &n_before, &err), MOX_OK);
    bool same = out.n - 2 == length(c->ids) && out.ids[0] == 'z' && out.ids[1] == 'z';
    for (int64_t i = 0; same && i < out.n - 2; i++) same = out.ids[2 + i] == c->ids[i];
    for (int64_t i = 2; !same && i < out.n; i++) print_error(" %d", (int)out.ids[i]);
    if (!same) fail_msg("%s", c->text);
    if (n_before != c->n_before) fail_msg("%s: %lld before", c->text, (long long)n_before);
    out.n = 0;
    assert_int_equal(mox_prompt_encode(t, &p, c->known, length(c->known), &out, NULL, &err), MOX_OK);
    assert_int_equal(out.n, length(c->ids));
    mox_tokens_free(&out);
}

static void test_ids(void **state)
{
    (void)state;
    static const id_case cases[] = {
        {"<S>«ab»<E>|<S>", {-1}, {S, AB, E, S, -1}, 3},
        /* a timeline that the encoder would not have chosen */
        {"<S>«ab»<E>|<S>", {S, 'a', 'b', E, -1}, {S, 'a', 'b', E, S, -1}, 4},
        {"<S>«ab»<E>|<S>", {S, 'a', 'b', E, S, 'x', -1}, {S, 'a', 'b', E, S, -1}, 4},
        {"<S>«ab»<E>|<S>", {S, 'a', 'b', -1}, {S, 'a', 'b', E, S, -1}, 4},
        {"<S>«abc»<E>ab<S>|", {S, AB, 'c', E, 'a', 'b', S, -1}, {S, AB, 'c', E, 'a', 'b', S, -1}, 7},
        /* something else before, behind, in the middle */
        {"<S>«cb»<E>ab|<S>", {S, 'a', 'b', E, 'a', 'b', S, -1}, {S, 'c', 'b', E, AB, S, -1}, 5},
        {"<S>«ab»<E>«abx»|<S>", {S, 'a', 'b', E, 'a', 'b', -1}, {S, 'a', 'b', E, AB, 'x', S, -1}, 6},
        {"<S>«ab»<E>«a»|<S>", {S, 'a', 'b', E, 'a', 'b', -1}, {S, 'a', 'b', E, 'a', S, -1}, 5},
        {"<S>«ab»|<S>", {S, 'a', 'b', E, 'a', -1}, {S, 'a', 'b', S, -1}, 3},
        {"«ab»<S>|", {E, 'a', 'b', S, -1}, {AB, S, -1}, 2},
        {"<S>|", {S, S, S, -1}, {S, -1}, 1},
        {"|", {S, 'a', -1}, {-1}, 0},
        /* special tokens as text are no special ids, nor the other way round */
        {"<S>«<E>»<E>|", {S, E, E, -1}, {S, '<', 'E', '>', E, -1}, 5},
        {"<S>«<E>»<E>|", {S, '<', 'E', '>', E, -1}, {S, '<', 'E', '>', E, -1}, 5},
        {"<S><E>ab|", {S, '<', 'E', '>', 'a', 'b', -1}, {S, E, AB, -1}, 3},
        {"«<S>ab»<E>|", {S, 'a', 'b', E, -1}, {'<', 'S', '>', AB, E, -1}, 5},
        /* the border inside an id */
        {"<S>ab|c", {-1}, {S, ABC, -1}, 1},
        {"<S>ab|c", {S, 'a', 'b', 'c', -1}, {S, 'a', 'b', 'c', -1}, 1},
        {"<S>«ab|c»<E>", {-1}, {S, ABC, E, -1}, 1},
        {"<S>«x»a|b<E>", {S, 'x', AB, E, -1}, {S, 'x', AB, E, -1}, 2},
        {"<S>«x»a|b<E>", {S, 'x', 'a', 'b', E, -1}, {S, 'x', 'a', 'b', E, -1}, 2},
        /* ids that are none */
        {"<S>«ab»|", {S, 9999, 'a', 'b', -1}, {S, 9999, 'a', 'b', -1}, 4},
    };
    mox_tokenizer *t = open_ids(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_ids(t, &cases[i]);
    mox_tokenizer_close(&t);
}

/* Where normalization shortens the text, ids still count as before the border. */
static void test_normalized_ids(void **state)
{
    (void)state;
    mox_tokenizer *t = open_ids("{\"type\":\"NFC\"}");
    check_ids(t, &(id_case){"<S>«e\xCC\x81»<E>|<S>ab", {-1}, {S, 0xC3, 0xA9, E, S, AB, -1}, 4});
    check_ids(t, &(id_case){"<S>«e\xCC\x81»<E>|<S>ab", {S, 0xC3, 0xA9, E, S, 'a', 'b', -1}, {S, 0xC3, 0xA9, E, S, 'a', 'b', -1}, 4});
    mox_tokenizer_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sayings),    cmocka_unit_test(test_own_blanks),      cmocka_unit_test(test_misplaced),
        cmocka_unit_test(test_ids),        cmocka_unit_test(test_normalized_ids),
    };
    return cmocka_run_group_tests(tests, kit_make_folder, kit_remove_folder);
}
