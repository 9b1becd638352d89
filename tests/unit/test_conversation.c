/* Conversations with the demo models: what the second turn computes, and that it says what it
 * would have said without a first one in memory.
 *
 * Three templates: the model's own, which keeps the past unless a reply was thought about; one
 * that keeps all of it; and one that rewrites every reply. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "app/cli/commands.h"
#include "app/cli/conversation.h"
#include "base/alloc.h"
#include "moxie/tools.h"

#include <math.h>
#include <string.h>

static const char *const model_dirs[] = {SOURCE_ROOT "/models/demo", SOURCE_ROOT "/tests/data/models/demo-qwen3",
                                         SOURCE_ROOT "/tests/data/models/demo-qwen3-moe",
                                         SOURCE_ROOT "/tests/data/models/demo-deepseek-v3"};
enum { N_MODELS = sizeof model_dirs / sizeof *model_dirs, V = 2048 };
#define TOLERANCE 1e-5f

typedef struct way {
    const char *template_file; /* NULL: the model's */
    mox_think think;
    bool keeps; /* the second prompt begins with all of the first and its reply */
} way;

static const way ways[] = {
    {NULL, MOX_THINK_DEFAULT, true},
    {NULL, MOX_THINK_ON, false},
    {SOURCE_ROOT "/tests/data/chatml.jinja", MOX_THINK_DEFAULT, true},
    {SOURCE_ROOT "/tests/data/chatml.jinja", MOX_THINK_ON, true},
    {SOURCE_ROOT "/tests/data/templates/Qwen3.5-4B.jinja", MOX_THINK_DEFAULT, false},
    {SOURCE_ROOT "/tests/data/templates/Qwen3.5-4B.jinja", MOX_THINK_OFF, false},
};
enum { N_WAYS = sizeof ways / sizeof *ways };

static void open_session(mox_cli_session *s, const char *dir, const way *w)
{
    mox_err err;
    const mox_chat_opts chat = {.template_file = w->template_file};
    const mox_context_opts context = {.n_ctx = 512, .exact = true};
    *s = (mox_cli_session){.dir = mox_strdup(dir)};
    if (mox_model_open(&s->model, dir, NULL, &err) != MOX_OK || mox_tokenizer_open(&s->tokenizer, dir, &err) != MOX_OK ||
        mox_chat_open(&s->chat, dir, s->tokenizer, &chat, &err) != MOX_OK ||
        mox_context_create(&s->context, s->model, &context, &err) != MOX_OK || mox_seq_create(&s->seq, s->context, &err) != MOX_OK)
        fail_msg("%s: %s", dir, err.msg);
}

static void ask(mox_cli_conversation *c, const char *text)
{
    assert_int_equal(mox_cli_conversation_add(c, "user", text, strlen(text)), EXIT_OK);
}

/* Tokens that were computed for the prompt, by the engine's own count. */
static int64_t reply(mox_cli_conversation *c, mox_cli_session *s, const mox_cli_settings *settings, mox_turn **turn, mox_cli_stats *stats)
{
    const mox_cli_sink sink = {.quiet = true};
    mox_work before, after;
    mox_context_get_work(s->context, &before);
    assert_int_equal(mox_cli_conversation_reply(c, c->n, s, settings, &sink, turn, stats), EXIT_OK);
    mox_context_get_work(s->context, &after);
    int64_t n;
    (void)mox_turn_tokens(*turn, &n);
    return after.tokens - before.tokens - (n - 1); /* the last one is not fed back */
}

static int64_t ids_before(const mox_cli_conversation *c, const mox_cli_session *s, const way *w)
{
    mox_prompt p;
    mox_tokens tokens = {0};
    mox_err err;
    int64_t n;
    assert_int_equal(mox_cli_conversation_render(c, s, w->think, true, &p), EXIT_OK);
    assert_int_equal(mox_prompt_encode(s->tokenizer, &p, NULL, 0, &tokens, &n, &err), MOX_OK);
    assert_true(n > 0 && n < tokens.n);
    mox_tokens_free(&tokens);
    mox_prompt_free(&p);
    return n;
}

/* The same prompt in an empty sequence: the same ids, and logits behind the last of them that agree
 * to TOLERANCE of their range, as batches cut in different ways do. */
static void check_from_scratch(mox_cli_session *s, const mox_cli_settings *settings, const mox_tokens *prompt, bool thinking,
                               const mox_turn *turn)
{
    const mox_cli_sink sink = {.quiet = true};
    const mox_cli_prompt fresh = {.chat = s->chat, .tokens = *prompt, .thinking = thinking};
    mox_turn *again;
    mox_cli_stats stats;
    int64_t n, n_again;
    float logits[V], range = 0, worst = 0;
    memcpy(logits, mox_logits_row(s->context, 0), sizeof logits);
    mox_seq_reset(s->seq);
    assert_int_equal(mox_cli_reply(s, settings, &fresh, &sink, &again, &stats), EXIT_OK);
    assert_int_equal(stats.n_cached, 0);
    assert_int_equal(stats.n_computed, prompt->n);
    const int32_t *ids = mox_turn_tokens(turn, &n), *ids_again = mox_turn_tokens(again, &n_again);
    assert_int_equal(n, n_again);
    assert_memory_equal(ids, ids_again, (size_t)n * sizeof *ids);
    const float *fresh_logits = mox_logits_row(s->context, 0);
    for (int i = 0; i < V; i++) {
        range = fmaxf(range, fabsf(fresh_logits[i]));
        worst = fmaxf(worst, fabsf(fresh_logits[i] - logits[i]));
    }
    if (!(worst <= TOLERANCE * range)) fail_msg("logits differ by %g of %g", (double)worst, (double)range);
    mox_turn_destroy(&again);
}

static void check_second_turn(const char *dir, const way *w)
{
    mox_cli_session s;
    mox_cli_conversation c = {0};
    mox_cli_stats stats;
    mox_turn *turn;
    mox_model_info info;
    const mox_cli_settings settings = {.max_tokens = 40, .think = w->think, .think_budget = 24};
    open_session(&s, dir, w);
    mox_model_get_info(s.model, &info);
    ask(&c, w->think == MOX_THINK_ON ? "What is 31 + 44?" : "What is the capital of Spain?"); /* sums are thought about */
    const int64_t before = ids_before(&c, &s, w);
    int64_t computed = reply(&c, &s, &settings, &turn, &stats);
    assert_int_equal(computed, stats.n_prompt);
    assert_int_equal(stats.n_cached, 0);
    const bool ended = stats.stop == MOX_STOP_END;
    mox_turn_destroy(&turn);
    const int64_t length = mox_seq_length(s.seq);
    assert_int_equal(length, c.timeline.n - 1);
    int32_t first[512];
    memcpy(first, c.timeline.ids, (size_t)length * sizeof *first);
    ask(&c, "What is the capital of France?");
    computed = reply(&c, &s, &settings, &turn, &stats);
    int64_t same = 0; /* of the second prompt and what was in the sequence */
    while (same < length && same < stats.n_prompt && first[same] == c.timeline.ids[same]) same++;
    assert_int_equal(stats.n_cached + stats.n_computed, stats.n_prompt);
    assert_int_equal(computed, stats.n_computed);
    assert_true(same >= before);
    if (w->think != MOX_THINK_OFF) assert_true(ended); /* elsewhere models are at a loss with the template */
    if (ended && (same == length) != w->keeps) fail_msg("%s: %d of %d tokens stand", dir, (int)same, (int)length);
    if (!info.recurrent || same == length) assert_int_equal(stats.n_cached, same);
    else assert_true(stats.n_cached >= before && stats.n_cached <= same);
    const mox_tokens prompt = {c.timeline.ids, stats.n_prompt, stats.n_prompt};
    mox_prompt text;
    mox_cli_conversation_drop(&c, c.n - 1);
    assert_int_equal(mox_cli_conversation_render(&c, &s, w->think, true, &text), EXIT_OK);
    check_from_scratch(&s, &settings, &prompt, text.thinking, turn);
    mox_prompt_free(&text);
    mox_turn_destroy(&turn);
    mox_cli_conversation_free(&c);
    mox_cli_session_close(&s);
}

static void test_second_turn(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++)
        for (int i = 0; i < N_WAYS; i++) {
            print_message("%s, way %d\n", model_dirs[m] + strlen(SOURCE_ROOT) + 1, i);
            check_second_turn(model_dirs[m], &ways[i]);
        }
}

/* Changes in the middle of a conversation: another first question, no system prompt any more. */
static void test_changed_past(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        mox_cli_session s;
        mox_cli_conversation c = {0};
        mox_cli_stats stats;
        mox_turn *turn;
        const mox_cli_settings settings = {.max_tokens = 12, .think_budget = -1};
        open_session(&s, model_dirs[m], &ways[0]);
        assert_int_equal(mox_cli_conversation_set_system(&c, "Be brief.", 9), EXIT_OK);
        ask(&c, "Hello");
        assert_int_equal(c.n, 2);
        assert_string_equal(c.messages[0].role, "system");
        (void)reply(&c, &s, &settings, &turn, &stats);
        mox_turn_destroy(&turn);
        assert_int_equal(mox_cli_conversation_set_system(&c, "Be kind.", 8), EXIT_OK); /* one of its kind */
        assert_int_equal(c.n, 3);
        ask(&c, "Spell bread.");
        const int64_t computed = reply(&c, &s, &settings, &turn, &stats);
        assert_int_equal(computed, stats.n_prompt - stats.n_cached);
        assert_true(stats.n_cached < 12);
        const mox_tokens prompt = {c.timeline.ids, stats.n_prompt, stats.n_prompt};
        check_from_scratch(&s, &settings, &prompt, false, turn);
        mox_turn_destroy(&turn);
        assert_int_equal(mox_cli_conversation_set_system(&c, "Be \xff.", 5), EXIT_USAGE); /* the old one stays */
        assert_string_equal(c.messages[0].json, "{\"role\": \"system\", \"content\": \"Be kind.\"}");
        assert_int_equal(mox_cli_conversation_set_system(&c, "", 0), EXIT_OK);
        assert_int_equal(c.n, 4);
        assert_string_equal(c.messages[0].role, "user");
        mox_cli_conversation_drop(&c, 3);
        (void)reply(&c, &s, &settings, &turn, &stats);
        assert_int_equal(c.n, 4);
        mox_turn_destroy(&turn);
        mox_cli_conversation_free(&c);
        mox_cli_session_close(&s);
    }
}

/* A conversation is the same after it was written and read. */
static void test_saved(void **state)
{
    (void)state;
    mox_cli_conversation c = {0}, d = {0};
    char *json, *again;
    ask(&c, "Say \"hi\"\n\t\\ caf\xC3\xA9");
    assert_int_equal(mox_cli_conversation_set_system(&c, "S", 1), EXIT_OK);
    assert_int_equal(mox_cli_conversation_json(&c, &json), EXIT_OK);
    assert_int_equal(mox_cli_conversation_parse(&d, "saved", json, strlen(json)), EXIT_OK);
    assert_int_equal(d.n, 2);
    assert_int_equal(mox_cli_conversation_json(&d, &again), EXIT_OK);
    assert_string_equal(json, again);
    assert_int_equal(mox_cli_conversation_parse(&d, "saved", "[5]", 3), EXIT_USAGE);
    assert_int_equal(d.n, 2); /* as it was */
    mox_free(json);
    mox_free(again);
    mox_cli_conversation_free(&c);
    mox_cli_conversation_free(&d);
}

#undef main
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_second_turn),
        cmocka_unit_test(test_changed_past),
        cmocka_unit_test(test_saved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
