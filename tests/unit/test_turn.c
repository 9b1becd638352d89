/* Turns: tokens go in one by one, parts of a message come out.  The tokens are put into the
 * sampler's mouth: greedy, with logits that leave no choice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fail_nth.h"
#include "turn_kit.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define CALL "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>"

/* ---- driving --------------------------------------------------------------------------------- */

/* What came out: T(ext), K (thinking), N(ame), A(rguments), each with all that came in a row. */
typedef struct heard {
    char parts[1024];
    char last;
} heard;

static void hear(void *user, mox_part part, int32_t call, const char *text, size_t n)
{
    heard *h = user;
    const char kind = "TKNA"[part];
    const size_t at = strlen(h->parts);
    assert_int_equal(call >= 0, kind == 'N' || kind == 'A');
    assert_true(at + n + 8 < sizeof h->parts);
    sprintf(h->parts + at, "%s%.*s", kind == h->last ? "" : kind == 'T' ? "|T:" : kind == 'K' ? "|K:" : kind == 'N' ? "|N:" : "|A:", (int)n, text);
    h->last = kind;
}

static mox_turn_opts usual(heard *h)
{
    return (mox_turn_opts){.max_tokens = 1000, .think_budget = -1, .on_part = h ? hear : NULL, .on_part_user = h};
}

/* Makes the turn choose the id, unless it has its own will. */
static mox_status choose(mox_turn *t, int32_t id, int32_t *token, mox_stop *stop, mox_err *err)
{
    logits[id] = 1;
    const mox_status status = mox_turn_next(t, logits, token, stop, err);
    logits[id] = 0;
    return status;
}

static void say_ids(mox_turn *t, const int32_t *ids, int64_t n, mox_stop *stop)
{
    *stop = MOX_STOP_NOT;
    for (int64_t i = 0; i < n && *stop == MOX_STOP_NOT; i++) {
        int32_t token = -1;
        mox_err err;
        if (choose(t, ids[i], &token, stop, &err) != MOX_OK) fail_msg("%s", err.msg);
        if (token != ids[i] && *stop == MOX_STOP_NOT) i--; /* the turn's own */
    }
}

static void say(mox_turn *t, const char *text, size_t n, mox_stop *stop)
{
    mox_tokens tokens = {0};
    mox_err err;
    assert_int_equal(mox_tokenizer_encode(tokenizer, text, n, MOX_ENCODE_SPECIAL, &tokens, &err), MOX_OK);
    say_ids(t, tokens.ids, tokens.n, stop);
    mox_tokens_free(&tokens);
}

static void say_end(mox_turn *t, mox_stop *stop)
{
    if (*stop == MOX_STOP_NOT) say_ids(t, &eos, 1, stop);
}

static void assert_message(const mox_turn *t, const char *text, const char *thinking, int32_t n_calls)
{
    mox_message m;
    mox_turn_get_message(t, &m);
    assert_string_equal(m.text, text);
    assert_int_equal(m.n_text, strlen(text));
    assert_string_equal(m.thinking, thinking);
    assert_int_equal(m.n_calls, n_calls);
}

/* ---- stop strings ------------------------------------------------------------------------------- */

typedef struct stop_case {
    const char *text;
    const char *stops[4];
    const char *out;
    mox_stop stop;
    bool thinking;
    const char *parts; /* NULL: out alone */
} stop_case;

static const stop_case stop_cases[] = {
    {"Hello STOP world", {"STOP"}, "Hello ", MOX_STOP_STRING, false, NULL},
    {"Hello STO", {"STOP"}, "Hello STO", MOX_STOP_END, false, NULL},
    {"STOP", {"STOP"}, "", MOX_STOP_STRING, false, ""},
    {"Hello world", {"STOP"}, "Hello world", MOX_STOP_END, false, NULL},
    {"one two three", {"three", "two"}, "one ", MOX_STOP_STRING, false, NULL},
    {"one two", {"two", "one two"}, "", MOX_STOP_STRING, false, ""},
    /* one that begins earlier and does not come, around one that does */
    {"xabcd", {"abcd", "bc"}, "x", MOX_STOP_STRING, false, NULL},
    {"xabce", {"abcd", "bc"}, "xa", MOX_STOP_STRING, false, NULL},
    {"xabc", {"abcd", "bc"}, "xa", MOX_STOP_STRING, false, NULL},
    {"aaab", {"aab"}, "a", MOX_STOP_STRING, false, NULL},
    {"abababac", {"ababac"}, "ab", MOX_STOP_STRING, false, NULL},
    {"caf\xC3\xA9 \xC3\xA9t\xC3\xA9", {"\xC3\xA9t"}, "caf\xC3\xA9 ", MOX_STOP_STRING, false, NULL},
    {"a\n\nb", {"\n\n"}, "a", MOX_STOP_STRING, false, NULL},
    /* thinking is not looked at */
    {"It says STOP\n</think>\n\nGo. STOP", {"STOP"}, "Go. ", MOX_STOP_STRING, true, "|K:It says STOP|T:Go. "},
    {"It says STOP\n</think>\n\nGo. END", {"STOP", "END"}, "Go. ", MOX_STOP_STRING, true, "|K:It says STOP|T:Go. "},
    {"It says STOP", {"STOP"}, "", MOX_STOP_END, true, "|K:It says STOP"},
    {"ST\n</think>\n\nOP", {"STOP"}, "OP", MOX_STOP_END, true, "|K:ST|T:OP"},
    /* nor are calls, and nothing stops across one */
    {"Now " CALL, {"add"}, "Now ", MOX_STOP_CALLS, false, "|T:Now |N:add|A:{\"a\": 1}"},
    {"STO\n" CALL "P", {"STOP"}, "STOP", MOX_STOP_CALLS, false, "|T:STO|N:add|A:{\"a\": 1}|T:P"},
    {"abc\n" CALL, {"abcd", "bc"}, "a", MOX_STOP_STRING, false, NULL},
};

/* The string that is named follows the text that came out. */
static void check_stop_string(const mox_turn *t, const stop_case *c, mox_stop stop)
{
    const char *which = mox_turn_stop_string(t);
    char end[256];
    assert_int_equal(which != NULL, stop == MOX_STOP_STRING);
    if (!which) return;
    snprintf(end, sizeof end, "%s%s", c->out, which);
    assert_non_null(strstr(c->text, end));
}

static void test_stop_strings(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof stop_cases / sizeof *stop_cases; i++) {
        const stop_case *c = &stop_cases[i];
        const size_t n = strlen(c->text);
        for (size_t cut = 0; cut <= n; cut++) { /* the last one: every byte for itself */
            heard h = {0};
            mox_turn_opts opts = usual(&h);
            opts.thinking = c->thinking;
            opts.stops = c->stops;
            while (opts.n_stops < 4 && c->stops[opts.n_stops]) opts.n_stops++;
            mox_turn *t = open_turn(&opts, chat);
            mox_stop stop = MOX_STOP_NOT;
            if (cut < n) {
                say(t, c->text, cut, &stop);
                if (stop == MOX_STOP_NOT) say(t, c->text + cut, n - cut, &stop);
            }
            for (size_t k = 0; cut == n && k < n && stop == MOX_STOP_NOT; k++) say(t, c->text + k, 1, &stop);
            say_end(t, &stop);
            char parts[256];
            snprintf(parts, sizeof parts, c->parts ? "%s" : "|T:%s", c->parts ? c->parts : c->out);
            if (stop != c->stop || strcmp(h.parts, parts) != 0) fail_msg("%s, cut at %zu: %d, %s", c->text, cut, (int)stop, h.parts);
            mox_message m;
            mox_turn_get_message(t, &m);
            assert_string_equal(m.text, c->out);
            check_stop_string(t, c, stop);
            assert_int_equal(m.n_calls > 0, strstr(parts, "|N:") != NULL);
            mox_turn_destroy(&t);
        }
    }
}

static void test_wrong_stop_strings(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"fine", ""}, {"fine", "\xC3"}, {"\xA9", "fine"}, {"a\xFF" "b", "fine"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_turn_opts opts = usual(NULL);
        mox_turn *t;
        mox_err err = {0};
        opts.stops = cases[i];
        opts.n_stops = 2;
        assert_int_equal(mox_turn_create(&t, model, tokenizer, chat, &opts, &err), MOX_E_ARG);
        assert_null(t);
        assert_non_null(strstr(err.msg, "a stop string is"));
    }
}

/* ---- the budget of thinking ----------------------------------------------------------------------- */

static void test_think_budget(void **state)
{
    (void)state;
    static const char thought[] = "one two three four five six seven eight nine ten"; /* more tokens than any budget here */
    static const struct {
        int64_t budget;
        bool open; /* by the prompt; else the model opens it */
        bool closes; /* the model does, after the thought */
    } cases[] = {{0, true, false}, {1, true, false}, {4, true, false}, {-1, true, true}, {1000, true, true},
                 {0, false, false}, {3, false, false}, {-1, false, true}};
    mox_tokens closing = {0}, words = {0};
    mox_err err;
    assert_int_equal(mox_tokenizer_encode(tokenizer, "\n</think>\n\n", 11, MOX_ENCODE_SPECIAL, &closing, &err), MOX_OK);
    assert_int_equal(mox_tokenizer_encode(tokenizer, thought, strlen(thought), MOX_ENCODE_SPECIAL, &words, &err), MOX_OK);
    assert_true(words.n > 5);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        heard h = {0};
        mox_turn_opts opts = usual(&h);
        opts.think_budget = cases[i].budget;
        opts.thinking = cases[i].open;
        mox_turn *t = open_turn(&opts, chat);
        mox_stop stop = MOX_STOP_NOT;
        const int64_t kept = cases[i].closes ? words.n : cases[i].budget;
        int32_t token;
        int64_t n;
        if (!cases[i].open) say(t, "<think>", 7, &stop);
        say_ids(t, words.ids, kept, &stop);
        if (cases[i].closes) {
            say_ids(t, closing.ids, closing.n, &stop);
        } else {
            for (int64_t k = 0; k < closing.n; k++) { /* whatever the model wants */
                assert_int_equal(choose(t, words.ids[kept], &token, &stop, &err), MOX_OK);
                assert_int_equal(token, closing.ids[k]);
            }
        }
        say(t, "Done.", 5, &stop);
        say_end(t, &stop);
        assert_int_equal(stop, MOX_STOP_END);
        mox_message m;
        mox_turn_get_message(t, &m);
        assert_string_equal(m.text, "Done.");
        if (cases[i].closes) assert_string_equal(m.thinking, thought);
        else assert_true(strncmp(m.thinking, thought, m.n_thinking) == 0 && (m.n_thinking > 0) == (cases[i].budget > 0));
        const int64_t spent = mox_turn_thinking_tokens(t);
        assert_true(spent > kept && spent <= kept + closing.n); /* the closing tag is part of it */
        const int32_t *ids = mox_turn_tokens(t, &n);
        assert_int_equal(ids[n - 1], eos);
        mox_turn_destroy(&t);
    }
    mox_tokens_free(&closing);
    mox_tokens_free(&words);
}

/* A budget is nothing to a reply without thinking. */
static void test_budget_without_thinking(void **state)
{
    (void)state;
    heard h = {0};
    mox_turn_opts opts = usual(&h);
    opts.think_budget = 0;
    mox_turn *t = open_turn(&opts, chat);
    mox_stop stop = MOX_STOP_NOT;
    say(t, "Text, then <think> as text.", 27, &stop);
    say_end(t, &stop);
    assert_string_equal(h.parts, "|T:Text, then <think> as text.");
    assert_int_equal(mox_turn_thinking_tokens(t), 0);
    mox_turn_destroy(&t);
}

/* ---- ends ------------------------------------------------------------------------------------------ */

static void test_max_tokens(void **state)
{
    (void)state;
    mox_tokens words = {0};
    mox_err err;
    assert_int_equal(mox_tokenizer_encode(tokenizer, "one two three four five", 23, MOX_ENCODE_PLAIN, &words, &err), MOX_OK);
    for (int64_t max = 0; max < 4; max++) {
        mox_turn_opts opts = usual(NULL);
        opts.max_tokens = max;
        mox_turn *t = open_turn(&opts, chat);
        mox_stop stop;
        int64_t n;
        say_ids(t, words.ids, words.n, &stop);
        assert_int_equal(stop, MOX_STOP_LENGTH);
        assert_int_equal((mox_turn_tokens(t, &n), n), max);
        int32_t token = -5; /* and it stays over */
        assert_int_equal(choose(t, words.ids[0], &token, &stop, &err), MOX_OK);
        assert_int_equal(stop, MOX_STOP_LENGTH);
        assert_int_equal(token, -5);
        mox_turn_destroy(&t);
    }
    mox_turn_opts opts = usual(NULL); /* the last token that fits may be the one that ends it */
    opts.max_tokens = 2;
    mox_turn *t = open_turn(&opts, chat);
    mox_stop stop;
    say_ids(t, words.ids, 1, &stop);
    say_end(t, &stop);
    assert_int_equal(stop, MOX_STOP_END);
    mox_turn_destroy(&t);
    mox_tokens_free(&words);
}

/* No token that ends a reply is chosen, however likely, beside biases of the caller's own. */
static void test_ignore_end(void **state)
{
    (void)state;
    const mox_logit_bias bias = {5, -3};
    mox_generation g;
    mox_turn_opts opts = usual(NULL);
    mox_stop stop;
    mox_err err;
    int32_t token, id;
    mox_model_get_generation(model, &g);
    opts.ignore_end = true;
    opts.max_tokens = 4;
    opts.sampling.logit_bias = &bias;
    opts.sampling.n_logit_bias = 1;
    mox_turn *t = open_turn(&opts, chat);
    memset(logits, 0, (size_t)n_vocab * sizeof *logits);
    for (int32_t i = 0; (id = mox_stop_id(&g, tokenizer, i)) >= 0; i++) logits[id] = 9;
    logits[5] = 3;
    logits[6] = 1;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(mox_turn_next(t, logits, &token, &stop, &err), MOX_OK);
        assert_int_equal(token, 6);
        assert_int_equal(stop, i < 3 ? MOX_STOP_NOT : MOX_STOP_LENGTH);
    }
    memset(logits, 0, (size_t)n_vocab * sizeof *logits);
    mox_turn_destroy(&t);
}

/* Also where ends of the reply are added to them. */
static void test_biases_that_are_not_there(void **state)
{
    (void)state;
    for (int ignore_end = 0; ignore_end < 2; ignore_end++)
        for (int32_t n = -1; n < 2; n += 2) {
            const mox_turn_opts opts = {.sampling = {.n_logit_bias = n}, .max_tokens = 1, .think_budget = -1,
                                        .ignore_end = ignore_end};
            mox_turn *t;
            mox_err err;
            assert_int_equal(mox_turn_create(&t, model, tokenizer, NULL, &opts, &err), MOX_E_ARG);
            assert_null(t);
            assert_non_null(strstr(err.msg, "logit_bias"));
        }
}

/* What was held back comes out: half a marker, half a stop string, half a character, half a call. */
static void test_cancelled(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool thinking;
        const char *parts;
    } cases[] = {
        {"", false, ""},
        {"Hello STO", false, "|T:Hello STO"},
        {"Hello <tool_", false, "|T:Hello <tool_"},
        {"<tool_call>\n{\"name\": \"add\", \"argu", false, "|T:<tool_call>\n{\"name\": \"add\", \"argu"},
        {CALL, false, "|N:add|A:{\"a\": 1}"},
        {"Hm, </thi", true, "|K:Hm, </thi"},
        {"Caf\xC3", false, "|T:Caf\xEF\xBF\xBD"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char *const stops[] = {"STOP"};
        heard h = {0};
        mox_turn_opts opts = usual(&h);
        opts.thinking = cases[i].thinking;
        opts.stops = stops;
        opts.n_stops = 1;
        mox_turn *t = open_turn(&opts, chat);
        mox_stop stop = MOX_STOP_NOT;
        mox_err err;
        int32_t token;
        for (size_t k = 0; cases[i].text[k]; k++) say(t, cases[i].text + k, 1, &stop);
        assert_int_equal(mox_turn_end(t, MOX_STOP_CANCELLED, &err), MOX_OK);
        assert_string_equal(h.parts, cases[i].parts);
        assert_int_equal(mox_turn_end(t, MOX_STOP_LENGTH, &err), MOX_OK); /* too late */
        assert_int_equal(choose(t, eos, &token, &stop, &err), MOX_OK);
        assert_int_equal(stop, MOX_STOP_CANCELLED);
        assert_string_equal(h.parts, cases[i].parts);
        mox_turn_destroy(&t);
    }
}

/* ---- what is left ------------------------------------------------------------------------------------ */

static void assert_field(const json_t *object, const char *key, const char *value)
{
    const json_t *field = json_object_get(object, key);
    if (!value) assert_null(field);
    else assert_string_equal(json_string_value(field), value);
}

/* The message as JSON: jansson reads it, and it is a message for the next prompt. */
static void test_message_json(void **state)
{
    (void)state;
    static const struct {
        const char *reply;
        bool thinking;
        const char *content, *reasoning;
        int n_calls;
        const char *prompt; /* a part of the next one */
    } cases[] = {
        {"Say \"hi\"\\\n\t\x01 caf\xC3\xA9", false, "Say \"hi\"\\\n\t\x01 caf\xC3\xA9", NULL, 0, "Say \"hi\"\\\n\t\x01 caf\xC3\xA9<|im_end|>"},
        {"", false, "", NULL, 0, "assistant\n<|im_end|>"},
        {"Hm \"so\".\n</think>\n\nYes.", true, "Yes.", "Hm \"so\".", 0, "Yes.<|im_end|>"},
        {CALL, false, "", NULL, 1, CALL "<|im_end|>"},
        {"First.\n" CALL "\n" CALL, false, "First.", NULL, 2, "First.\n" CALL "\n" CALL "<|im_end|>"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_turn_opts opts = usual(NULL);
        opts.thinking = cases[i].thinking;
        mox_turn *t = open_turn(&opts, chat);
        mox_stop stop = MOX_STOP_NOT;
        mox_err err;
        char *json, messages[1024];
        say(t, cases[i].reply, strlen(cases[i].reply), &stop);
        say_end(t, &stop);
        assert_int_equal(stop, cases[i].n_calls ? MOX_STOP_CALLS : MOX_STOP_END);
        assert_int_equal(mox_turn_message_json(t, &json, &err), MOX_OK);
        json_t *m = json_loads(json, 0, NULL);
        assert_non_null(m);
        assert_field(m, "role", "assistant");
        assert_field(m, "content", cases[i].content);
        assert_field(m, "reasoning_content", cases[i].reasoning);
        const json_t *calls = json_object_get(m, "tool_calls");
        assert_int_equal(json_array_size(calls), cases[i].n_calls);
        for (int k = 0; k < cases[i].n_calls; k++) {
            const json_t *call = json_array_get(calls, (size_t)k), *function = json_object_get(call, "function");
            assert_field(call, "type", "function");
            assert_non_null(json_object_get(call, "id"));
            assert_field(function, "name", "add");
            assert_field(function, "arguments", "{\"a\": 1}");
            if (k > 0) assert_false(json_equal(json_object_get(call, "id"), json_object_get(json_array_get(calls, 0), "id")));
        }
        json_decref(m);
        snprintf(messages, sizeof messages, "[{\"role\": \"user\", \"content\": \"q\"}, %s, {\"role\": \"user\", \"content\": \"r\"}]", json);
        const mox_chat_request request = {.messages = {messages, strlen(messages)}};
        mox_prompt p;
        if (mox_chat_render(chat, &request, &p, &err) != MOX_OK) fail_msg("%s", err.msg);
        if (!strstr(p.text, cases[i].prompt)) fail_msg("%s is not in %s", cases[i].prompt, p.text);
        mox_prompt_free(&p);
        mox_text_free(&json);
        assert_null(json);
        mox_turn_destroy(&t);
    }
}

/* Bytes and ids of everything that was sampled; special tokens are in neither text nor thinking. */
static void test_said(void **state)
{
    (void)state;
    static const char text[] = "Hm.\n</think>\n\nWell<|im_start|>, yes. ";
    for (int with_chat = 0; with_chat < 2; with_chat++) {
        mox_turn_opts opts = usual(NULL);
        opts.thinking = true;
        mox_turn *t = open_turn(&opts, with_chat ? chat : NULL);
        mox_stop stop = MOX_STOP_NOT;
        mox_marked_text said;
        int64_t n;
        say(t, text, sizeof text - 1, &stop);
        say_end(t, &stop);
        mox_turn_get_said(t, &said);
        assert_int_equal(said.n, sizeof text - 1);
        assert_memory_equal(said.text, text, said.n);
        assert_int_equal(said.n_plain, 2);
        const size_t special = (size_t)(strstr(text, "<|im") - text);
        assert_int_equal(said.plain[0].begin, 0);
        assert_int_equal(said.plain[0].end, special);
        assert_int_equal(said.plain[1].begin, special + strlen("<|im_start|>"));
        assert_int_equal(said.plain[1].end, said.n);
        const int32_t *ids = mox_turn_tokens(t, &n);
        assert_int_equal(ids[n - 1], eos);
        if (with_chat) assert_message(t, "Well, yes. ", "Hm.", 0);
        else assert_message(t, "Hm.\n</think>\n\nWell, yes. ", "", 0);
        mox_turn_destroy(&t);
    }
}

static void test_penalties(void **state)
{
    (void)state;
    mox_turn_opts opts = usual(NULL);
    opts.sampling.presence_penalty = 2;
    mox_turn *t = open_turn(&opts, chat);
    int32_t token;
    mox_stop stop;
    mox_err err;
    mox_turn_accept(t, 70); /* as of the prompt */
    logits[71] = 0.5F;
    assert_int_equal(choose(t, 70, &token, &stop, &err), MOX_OK);
    logits[71] = 0;
    assert_int_equal(token, 71);
    mox_turn_destroy(&t);
}

/* ---- memory ------------------------------------------------------------------------------------------- */

static mox_status whole_turn(mox_err *err, char **json)
{
    static const char *const stops[] = {"never", "ever"};
    static const char text[] = "Thinking.\n</think>\n\nText, n" CALL;
    mox_turn_opts opts = usual(NULL);
    opts.thinking = true;
    opts.think_budget = 100;
    opts.stops = stops;
    opts.n_stops = 2;
    mox_turn *t = NULL;
    mox_tokens tokens = {0};
    mox_stop stop = MOX_STOP_NOT;
    int32_t token;
    mox_status status = mox_tokenizer_encode(tokenizer, text, sizeof text - 1, MOX_ENCODE_SPECIAL, &tokens, err);
    if (status == MOX_OK) status = mox_turn_create(&t, model, tokenizer, chat, &opts, err);
    for (int64_t i = 0; status == MOX_OK && i < tokens.n; i++) status = choose(t, tokens.ids[i], &token, &stop, err);
    if (status == MOX_OK) status = choose(t, eos, &token, &stop, err);
    if (status == MOX_OK) {
        assert_int_equal(stop, MOX_STOP_CALLS);
        status = mox_turn_message_json(t, json, err);
    } else if (t) { /* a turn that failed stays so, with words */
        mox_err again = {0};
        const mox_status repeated = choose(t, eos, &token, &stop, &again);
        assert_true(repeated == status && again.status == status && strlen(again.msg) > 0);
        assert_int_equal(mox_turn_end(t, MOX_STOP_CANCELLED, &again), status);
    }
    mox_turn_destroy(&t);
    mox_tokens_free(&tokens);
    return status;
}

static void test_fail_nth(void **state)
{
    (void)state;
    bool done = false;
    int failed = 0;
    for (long at = 1; !done; at++) {
        nth n = {.at = at};
        mox_err err = {0};
        char *json = NULL;
        mox_alloc_set_hook(fail_nth_alloc, &n);
        const mox_status status = whole_turn(&err, &json);
        mox_alloc_set_hook(NULL, NULL);
        done = n.count < at;
        if (status != (done ? MOX_OK : MOX_E_MEMORY) || (!done && err.status != MOX_E_MEMORY)) fail_msg("%ld: %s", at, err.msg);
        assert_true(done == (json != NULL));
        mox_text_free(&json);
        failed += !done;
    }
    assert_true(failed > 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_wrong_stop_strings),
        cmocka_unit_test(test_think_budget),
        cmocka_unit_test(test_budget_without_thinking),
        cmocka_unit_test(test_max_tokens),
        cmocka_unit_test(test_ignore_end),
        cmocka_unit_test(test_biases_that_are_not_there),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_message_json),
        cmocka_unit_test(test_said),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_fail_nth),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
