/* app/cli/reply.c -- one reply. */
#include "app/cli/reply.h"

#include "app/cli/commands.h"
#include "app/cli/describe.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "app/cli/progress.h"
#include "app/cli/stop.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/machine.h"

/* ---- the prompt ------------------------------------------------------------------------------- */

static int check_fits(const mox_cli_session *s, int64_t n_prompt)
{
    const int64_t n_ctx = mox_context_n_ctx(s->context);
    if (n_prompt == 0) {
        mox_cli_say("the prompt is empty: there is nothing to continue");
        return EXIT_USAGE;
    }
    if (n_prompt <= n_ctx) return EXIT_OK;
    mox_model_info info;
    mox_model_get_info(s->model, &info);
    if (n_prompt <= info.n_ctx_max)
        mox_cli_say("the prompt has %lld tokens but the context holds %lld; use -c %lld or more "
                    "(the model allows %lld)",
                    (long long)n_prompt, (long long)n_ctx, (long long)n_prompt, (long long)info.n_ctx_max);
    else
        mox_cli_say("the prompt has %lld tokens but the context holds %lld, and the model allows no more than %lld",
                    (long long)n_prompt, (long long)n_ctx, (long long)info.n_ctx_max);
    return EXIT_FULL;
}

/* Tokens up to n; those that the sequence has are left out. */
static mox_status compute_up_to(mox_cli_session *s, const mox_tokens *tokens, int64_t n, mox_cli_progress *progress, mox_err *err)
{
    const int64_t done = mox_seq_length(s->seq);
    if (n <= done) return MOX_OK;
    progress->before = progress->done;
    const mox_step_opts opts = {.cancel = mox_cli_stop_flag(), .progress = mox_cli_progress_update, .progress_user = progress};
    const mox_segment segment = {.seq = s->seq, .tokens = tokens->ids + done, .n = n - done,
                                 .want = n == tokens->n ? MOX_WANT_LAST : MOX_WANT_NONE};
    MOX_TRY(mox_step(s->context, &segment, 1, &opts, err));
    mox_seq_checkpoint(s->seq);
    progress->done = progress->before + segment.n;
    return MOX_OK;
}

static mox_status compute_prompt(mox_cli_session *s, const mox_cli_prompt *prompt, bool quiet, mox_cli_stats *stats, mox_err *err)
{
    mox_model_info info;
    mox_cli_progress progress;
    mox_status status = MOX_OK;
    mox_model_get_info(s->model, &info);
    stats->n_cached = mox_seq_reuse(s->seq, prompt->tokens.ids, prompt->tokens.n);
    mox_cli_progress_start(&progress, "prompt", prompt->tokens.n - stats->n_cached, quiet);
    mox_cli_progress_draw_soon(&progress);
    if (info.recurrent) status = compute_up_to(s, &prompt->tokens, prompt->n_before, &progress, err);
    if (status == MOX_OK) status = compute_up_to(s, &prompt->tokens, prompt->tokens.n, &progress, err);
    mox_cli_progress_end(&progress);
    stats->n_computed = progress.done;
    return status;
}

/* ---- the reply ---------------------------------------------------------------------------------- */

static mox_status generate(mox_cli_session *s, mox_turn *turn, double started, mox_cli_stats *stats, mox_err *err)
{
    const mox_step_opts opts = {.cancel = mox_cli_stop_flag()};
    for (;;) {
        int32_t token;
        MOX_TRY(mox_turn_next(turn, mox_logits_row(s->context, 0), &token, &stats->stop, err));
        if (stats->first_token_s == 0.0) stats->first_token_s = mox_clock_now() - started;
        if (stats->stop != MOX_STOP_NOT) return MOX_OK;
        if (mox_cli_output_failed()) return mox_fail(err, MOX_E_CANCELLED, "nobody reads the reply");
        const mox_segment segment = {.seq = s->seq, .tokens = &token, .n = 1, .want = MOX_WANT_LAST};
        MOX_TRY(mox_step(s->context, &segment, 1, &opts, err));
    }
}

static mox_status begin_turn(const mox_cli_session *s, const mox_cli_settings *settings, const mox_cli_prompt *prompt,
                             const mox_cli_sink *sink, mox_turn **turn, mox_err *err)
{
    const int64_t room = mox_context_n_ctx(s->context) - prompt->tokens.n + 1; /* the last token is not fed back */
    const mox_turn_opts opts = {
        .sampling = settings->sampling,
        .max_tokens = settings->max_tokens >= 0 && settings->max_tokens < room ? settings->max_tokens : room,
        .think_budget = settings->think_budget,
        .thinking = prompt->thinking,
        .tools = prompt->tools,
        .call_seed = mox_cli_random(),
        .stops = settings->stops,
        .n_stops = settings->n_stops,
        .on_part = sink->on_part,
        .on_part_user = sink->user,
        .grammar = settings->grammar,
        .trie = settings->trie,
    };
    MOX_TRY(mox_turn_create(turn, s->model, s->tokenizer, prompt->chat, &opts, err));
    for (int64_t i = 0; i < prompt->tokens.n; i++) mox_turn_accept(*turn, prompt->tokens.ids[i]);
    return MOX_OK;
}

int mox_cli_reply(mox_cli_session *s, const mox_cli_settings *settings, const mox_cli_prompt *prompt,
                  const mox_cli_sink *sink, mox_turn **turn, mox_cli_stats *stats)
{
    mox_err err;
    *turn = NULL;
    *stats = (mox_cli_stats){.n_prompt = prompt->tokens.n, .seed = settings->sampling.seed};
    const int code = check_fits(s, prompt->tokens.n);
    if (code != EXIT_OK) return code;
    mox_expert_stats before;
    mox_context_get_expert_stats(s->context, &before);
    const double started = mox_clock_now();
    mox_status status = compute_prompt(s, prompt, sink->quiet, stats, &err);
    stats->prompt_s = mox_clock_now() - started;
    if (status == MOX_OK) status = begin_turn(s, settings, prompt, sink, turn, &err);
    if (status == MOX_OK) status = generate(s, *turn, started, stats, &err);
    if (status == MOX_E_CANCELLED) {
        stats->stop = MOX_STOP_CANCELLED;
        status = *turn ? mox_turn_end(*turn, MOX_STOP_CANCELLED, &err) : MOX_OK;
    }
    stats->generate_s = mox_clock_now() - started - stats->prompt_s;
    mox_context_get_expert_stats(s->context, &stats->experts);
    stats->experts = mox_cli_experts_since(&stats->experts, &before);
    stats->own_bytes = mox_machine_own("");
    if (*turn) {
        (void)mox_turn_tokens(*turn, &stats->n_reply);
        stats->n_thinking = mox_turn_thinking_tokens(*turn);
    }
    return status == MOX_OK ? EXIT_OK : mox_cli_fail_running(&err);
}
