/* Turns with a grammar: the reply keeps to it whatever the logits say, once thinking is over. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "fail_nth.h"
#include "moxie/grammar.h"
#include "turn_kit.h"

#include <stdio.h>
#include <string.h>

static mox_token_trie *trie;

static int begin_with_trie(void **state)
{
    mox_err err = {0};
    if (begin(state) != 0) return -1;
    if (mox_token_trie_create(&trie, tokenizer, &err) == MOX_OK) return 0;
    print_error("%s\n", err.msg);
    return -1;
}

static int end_with_trie(void **state)
{
    mox_token_trie_destroy(&trie);
    return end(state);
}

static mox_grammar *gbnf(const char *text)
{
    mox_grammar *g;
    mox_err err;
    if (mox_grammar_create_gbnf(&g, text, strlen(text), &err) != MOX_OK) fail_msg("%s", err.msg);
    return g;
}

static mox_turn_opts usual(const mox_grammar *g)
{
    return (mox_turn_opts){.max_tokens = 400, .think_budget = -1, .grammar = g, .trie = trie};
}

/* One token, with every wish that id be it. */
static int32_t wish(mox_turn *t, int32_t id, mox_stop *stop)
{
    int32_t token = -1;
    mox_err err;
    logits[id] = 50;
    if (mox_turn_next(t, logits, &token, stop, &err) != MOX_OK) fail_msg("%s", err.msg);
    logits[id] = 0;
    return token;
}

static void wish_text(mox_turn *t, const char *text, mox_stop *stop)
{
    mox_tokens tokens = {0};
    mox_err err;
    assert_int_equal(mox_tokenizer_encode(tokenizer, text, strlen(text), MOX_ENCODE_SPECIAL, &tokens, &err), MOX_OK);
    *stop = MOX_STOP_NOT;
    for (int64_t i = 0; i < tokens.n && *stop == MOX_STOP_NOT; i++) assert_int_equal(wish(t, tokens.ids[i], stop), tokens.ids[i]);
    mox_tokens_free(&tokens);
}

static void assert_text(const mox_turn *t, const char *text, const char *thinking)
{
    mox_message m;
    mox_turn_get_message(t, &m);
    assert_string_equal(m.text, text);
    assert_string_equal(m.thinking, thinking);
}

/* The end is not an option before the grammar says so, and comes by itself when nothing can follow. */
static void test_end(void **state)
{
    mox_stop stop;
    (void)state;
    mox_grammar *g = gbnf("root ::= \"yes\" \"!\"{0,2}");
    const mox_turn_opts opts = usual(g);
    for (int with_chat = 0; with_chat < 2; with_chat++) {
        mox_turn *t = open_turn(&opts, with_chat ? chat : NULL);
        assert_int_not_equal(wish(t, eos, &stop), eos);
        for (int i = 0; i < 10 && stop == MOX_STOP_NOT; i++) wish(t, mox_tokenizer_added_id(tokenizer, "</think>"), &stop);
        assert_int_equal(stop, MOX_STOP_END);
        mox_message m;
        mox_turn_get_message(t, &m);
        assert_true(strncmp(m.text, "yes", 3) == 0 && strspn(m.text + 3, "!") == strlen(m.text + 3));
        mox_turn_destroy(&t);
        t = open_turn(&opts, with_chat ? chat : NULL);
        wish_text(t, "yes!!", &stop);
        assert_int_equal(stop, MOX_STOP_END);
        assert_text(t, "yes!!", "");
        mox_turn_destroy(&t);
        t = open_turn(&opts, with_chat ? chat : NULL);
        wish_text(t, "yes", &stop);
        assert_int_equal(stop, MOX_STOP_NOT);
        assert_int_equal(wish(t, eos, &stop), eos);
        assert_int_equal(stop, MOX_STOP_END);
        mox_turn_destroy(&t);
    }
    mox_grammar_destroy(&g);
    g = gbnf("root ::= \"\""); /* satisfied at once */
    const mox_turn_opts empty = usual(g);
    mox_turn *t = open_turn(&empty, chat);
    assert_int_equal(wish(t, eos, &stop), -1);
    assert_int_equal(stop, MOX_STOP_END);
    mox_turn_destroy(&t);
    mox_grammar_destroy(&g);
}

/* Thinking is free but for the end; then the grammar begins, line breaks aside. */
static void test_thinking(void **state)
{
    mox_stop stop;
    mox_grammar *g = gbnf("root ::= [0-9]+ \".\"");
    (void)state;
    for (int opened = 0; opened < 2; opened++) { /* by the prompt, or by the model */
        mox_turn_opts opts = usual(g);
        opts.thinking = opened == 0;
        mox_turn *t = open_turn(&opts, chat);
        if (opened == 1) wish_text(t, "<think>", &stop);
        wish_text(t, "Hm, so.", &stop);
        assert_int_not_equal(wish(t, eos, &stop), eos);
        assert_int_equal(stop, MOX_STOP_NOT);
        wish_text(t, "\n</think>\n\n", &stop);
        wish_text(t, "42.", &stop);
        assert_int_equal(stop, MOX_STOP_END);
        mox_message m;
        mox_turn_get_message(t, &m);
        assert_string_equal(m.text, "42.");
        assert_true(strncmp(m.thinking, "Hm, so.", 7) == 0);
        mox_turn_destroy(&t);
    }
    mox_turn_opts opts = usual(g); /* closed by the budget */
    opts.thinking = true;
    opts.think_budget = 2;
    mox_turn *t = open_turn(&opts, chat);
    stop = MOX_STOP_NOT;
    for (int i = 0; i < 30 && stop == MOX_STOP_NOT; i++) {
        int32_t dot = -1;
        mox_tokens tokens = {0};
        mox_err err;
        assert_int_equal(mox_tokenizer_encode(tokenizer, i % 2 ? "7" : ".", 1, 0, &tokens, &err), MOX_OK);
        dot = tokens.ids[0];
        mox_tokens_free(&tokens);
        wish(t, dot, &stop);
    }
    assert_int_equal(stop, MOX_STOP_END);
    mox_message m;
    mox_turn_get_message(t, &m);
    assert_true(m.n_text >= 2 && strspn(m.text, "0123456789") == m.n_text - 1 && m.text[m.n_text - 1] == '.');
    mox_turn_destroy(&t);
    mox_grammar_destroy(&g);
}

/* Random logits, every sampler setting: the text is one of the grammar; the same seed gives the same text. */
static void test_sampling(void **state)
{
    mox_grammar *g = gbnf("root ::= (\"ab\" | \"c\" [d-f]){3,5} \"\\n\"");
    (void)state;
    for (uint64_t seed = 0; seed < 30; seed++) {
        char texts[2][64];
        for (int round = 0; round < 2; round++) {
            mox_turn_opts opts = usual(g);
            mox_rng rng;
            mox_stop stop = MOX_STOP_NOT;
            mox_err err;
            mox_message m;
            opts.sampling = (mox_sampler_opts){.temperature = seed % 3 ? 1.0f : 0.0f, .top_k = seed % 2 ? 5 : 0, .top_p = seed % 4 ? 0.5f : 0.0f,
                                               .min_p = seed % 5 ? 0.2f : 0.0f, .repeat_penalty = 1.1f, .seed = seed};
            mox_turn *t = open_turn(&opts, NULL);
            mox_rng_init(&rng, seed);
            while (stop == MOX_STOP_NOT) {
                int32_t token;
                for (int64_t i = 0; i < n_vocab; i++) logits[i] = (float)(8.0 * mox_rng_unit(&rng));
                if (mox_turn_next(t, logits, &token, &stop, &err) != MOX_OK) fail_msg("%s", err.msg);
            }
            assert_int_equal(stop, MOX_STOP_END);
            mox_turn_get_message(t, &m);
            snprintf(texts[round], sizeof texts[round], "%s", m.text);
            const char *p = m.text;
            int n = 0;
            for (; p[0] == 'a' ? p[1] == 'b' : p[0] == 'c' && p[1] >= 'd' && p[1] <= 'f'; p += 2) n++;
            assert_true(n >= 3 && n <= 5 && strcmp(p, "\n") == 0);
            mox_turn_destroy(&t);
        }
        assert_string_equal(texts[0], texts[1]);
    }
    memset(logits, 0, (size_t)n_vocab * sizeof *logits);
    mox_grammar_destroy(&g);
}

/* Drawing first and masking on a miss draws in proportion: two tokens, one three times as likely. */
static void test_proportions(void **state)
{
    mox_grammar *g = gbnf("root ::= \"0\" | \"1\"");
    mox_tokens tokens = {0};
    mox_err err;
    int ones = 0;
    enum { ROUNDS = 4000 };
    (void)state;
    assert_int_equal(mox_tokenizer_encode(tokenizer, "0", 1, 0, &tokens, &err), MOX_OK);
    assert_int_equal(mox_tokenizer_encode(tokenizer, "1", 1, 0, &tokens, &err), MOX_OK);
    logits[tokens.ids[1]] = 1.0986123f; /* ln 3 */
    for (uint64_t seed = 0; seed < ROUNDS; seed++) {
        mox_turn_opts opts = usual(g);
        opts.sampling = (mox_sampler_opts){.temperature = 1.0f, .seed = seed};
        mox_turn *t = open_turn(&opts, NULL);
        int32_t token;
        mox_stop stop;
        assert_int_equal(mox_turn_next(t, logits, &token, &stop, &err), MOX_OK);
        ones += token == tokens.ids[1];
        mox_turn_destroy(&t);
    }
    logits[tokens.ids[1]] = 0;
    mox_tokens_free(&tokens);
    mox_grammar_destroy(&g);
    assert_in_range(ones, ROUNDS * 3 / 4 - 137, ROUNDS * 3 / 4 + 137); /* five times the standard deviation of 27.4 */
}

/* Calls are parsed as calls although the grammar has written them. */
static void test_calls(void **state)
{
    static const char tools[] = "[{\"name\": \"add\", \"parameters\": {\"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": [\"a\"]}}]";
    mox_chat_info info;
    mox_grammar *g;
    mox_err err;
    mox_stop stop = MOX_STOP_NOT;
    (void)state;
    mox_chat_get_info(chat, &info);
    const mox_calls_opts calls = {.format = info.call_format, .tools = {tools, sizeof tools - 1}};
    if (mox_grammar_create_calls(&g, &calls, &err) != MOX_OK) fail_msg("%s", err.msg);
    mox_turn_opts opts = usual(g);
    opts.tools = calls.tools;
    mox_turn *t = open_turn(&opts, chat);
    for (int i = 0; i < 400 && stop == MOX_STOP_NOT; i++) wish(t, eos, &stop);
    assert_int_equal(stop, MOX_STOP_CALLS);
    mox_message m;
    mox_turn_get_message(t, &m);
    assert_int_equal(m.n_calls, 1);
    assert_string_equal(m.calls[0].name, "add");
    assert_int_equal(m.n_text, 0);
    mox_turn_destroy(&t);
    mox_grammar_destroy(&g);
}

static void test_refusals(void **state)
{
    mox_grammar *g = gbnf("root ::= \"a\"");
    mox_turn_opts opts = usual(g);
    mox_turn *t;
    mox_err err;
    (void)state;
    opts.trie = NULL;
    assert_int_equal(mox_turn_create(&t, model, tokenizer, NULL, &opts, &err), MOX_E_ARG);
    assert_null(t);
    opts.trie = trie;
    mox_status status = MOX_E_MEMORY;
    long i = 1;
    for (; status != MOX_OK; i++) {
        nth n = {.at = i};
        const int64_t live = mox_alloc_live();
        mox_alloc_set_hook(fail_nth_alloc, &n);
        status = mox_turn_create(&t, model, tokenizer, NULL, &opts, &err);
        mox_alloc_set_hook(NULL, NULL);
        assert_true(status == MOX_OK || status == MOX_E_MEMORY);
        mox_turn_destroy(&t);
        assert_int_equal(mox_alloc_live(), live);
    }
    assert_true(i > 8);
    mox_grammar_destroy(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_end),   cmocka_unit_test(test_thinking), cmocka_unit_test(test_sampling),
                                       cmocka_unit_test(test_proportions), cmocka_unit_test(test_calls), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, begin_with_trie, end_with_trie);
}
