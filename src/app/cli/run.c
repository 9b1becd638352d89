/* app/cli/run.c -- `moxie run`: one prompt in, one reply out.
 *
 * The reply streams to standard output as whole characters, or is kept for the
 * one object of --json; standard error gets everything else.  Generation ends at
 * a stop id, at -n, when the context is full, when the reader of standard output
 * is gone, or when a signal asks. */
#include "app/cli/commands.h"
#include "app/cli/input.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "app/cli/progress.h"
#include "app/cli/session.h"
#include "app/cli/stop.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/size.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

typedef struct reply {
    bool json;
    mox_utf8_stream stream;
    char *text; /* --json only */
    size_t n_text, text_capacity;
    bool out_of_memory;
    char last;        /* byte that went out; 0 when none did */
    int64_t n_prompt; /* tokens of the prompt that were computed */
    int32_t *tokens;  /* [max_tokens] every id the model chose, a stop id included */
    int64_t n_tokens, max_tokens;
    const char *stop_reason; /* "stop", "length" or "cancelled" */
    double started;          /* when the prompt went in */
    double load_s, prompt_s, first_token_s, generate_s;
} reply;

/* ---- settings -------------------------------------------------------------- */

static uint64_t choose_seed(const mox_cli_options *o)
{
    if (mox_cli_given(o, OPT_SEED)) return (uint64_t)o->v[OPT_SEED].number;
    uint32_t seed; /* 32 bits: short to type, and exact in every JSON reader */
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) seed = (uint32_t)(mox_clock_now() * 1e6);
    return seed;
}

static float choose_real(const mox_cli_options *o, option_id id, float model_default)
{
    return mox_cli_given(o, id) ? (float)o->v[id].real : model_default;
}

static mox_sampler_opts sampler_opts(const mox_cli_options *o, const mox_generation *g)
{
    return (mox_sampler_opts){
        .temperature = choose_real(o, OPT_TEMP, g->temperature),
        .top_k = mox_cli_given(o, OPT_TOP_K) ? (int32_t)o->v[OPT_TOP_K].number : g->top_k,
        .top_p = choose_real(o, OPT_TOP_P, g->top_p),
        .min_p = choose_real(o, OPT_MIN_P, g->min_p),
        .repeat_penalty = choose_real(o, OPT_REPEAT_PENALTY, g->repeat_penalty),
        .presence_penalty = (float)o->v[OPT_PRESENCE_PENALTY].real,
        .frequency_penalty = (float)o->v[OPT_FREQUENCY_PENALTY].real,
        .seed = choose_seed(o),
    };
}

/* ---- prompt ---------------------------------------------------------------- */

static int encode_prompt(const mox_cli_session *s, const mox_cli_options *o, const mox_cli_text *text,
                         mox_tokens *tokens)
{
    int code = mox_cli_session_begin(s, tokens);
    const int64_t begun = tokens->n;
    if (code == EXIT_OK) code = mox_cli_session_encode(s, o, text->bytes, text->n, tokens);
    if (code != EXIT_OK) return code;
    if (begun > 0 && tokens->n > begun && tokens->ids[begun] == tokens->ids[0]) /* the text brought its own */
        memmove(tokens->ids, tokens->ids + 1, (size_t)--tokens->n * sizeof *tokens->ids);
    if (tokens->n > 0) return EXIT_OK;
    mox_cli_say("the prompt is empty: there is nothing to continue");
    return EXIT_USAGE;
}

static int check_fits(const mox_cli_session *s, int64_t n_prompt)
{
    const int64_t n_ctx = mox_context_n_ctx(s->context);
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

/* ---- reply ----------------------------------------------------------------- */

static bool keep(reply *r, const char *text, size_t n)
{
    if (r->n_text + n > r->text_capacity) {
        const size_t capacity = 2 * (r->n_text + n) + 256;
        char *bigger = mox_realloc_array(r->text, capacity, 1);
        if (!bigger) return false;
        r->text = bigger;
        r->text_capacity = capacity;
    }
    memcpy(r->text + r->n_text, text, n);
    r->n_text += n;
    return true;
}

static void emit(void *user, const char *text, size_t n)
{
    reply *r = user;
    if (n == 0) return;
    if (r->json) {
        if (!keep(r, text, n)) r->out_of_memory = true;
        return;
    }
    mox_cli_put_text(text, n);
    mox_cli_put_flush();
    r->last = text[n - 1];
}

static void emit_token(const mox_cli_session *s, reply *r, int32_t id)
{
    size_t n;
    const char *bytes = mox_tokenizer_bytes(s->tokenizer, id, &n);
    if (bytes && !mox_tokenizer_is_special(s->tokenizer, id)) mox_utf8_stream_push(&r->stream, bytes, n, emit, r);
}

/* ---- generation ------------------------------------------------------------ */

static mox_status prefill(const mox_cli_session *s, const mox_cli_options *o, const mox_tokens *prompt, reply *r,
                          mox_err *err)
{
    mox_cli_progress progress;
    mox_cli_progress_start(&progress, "prompt", prompt->n, o->v[OPT_QUIET].on);
    const mox_step_opts opts = {.cancel = mox_cli_stop_flag(), .progress = mox_cli_progress_update,
                                .progress_user = &progress};
    const mox_segment segment = {.seq = s->seq, .tokens = prompt->ids, .n = prompt->n, .want = MOX_WANT_LAST};
    const mox_status status = mox_step(s->context, &segment, 1, &opts, err);
    mox_cli_progress_end(&progress);
    r->n_prompt = status == MOX_OK ? prompt->n : progress.done;
    return status;
}

/* Samples and feeds back until something ends it; the logits of the prompt's last
 * token are there. */
static mox_status generate(const mox_cli_session *s, const mox_generation *g, mox_sampler *sampler, reply *r,
                           mox_err *err)
{
    const mox_step_opts opts = {.cancel = mox_cli_stop_flag()};
    r->stop_reason = "length";
    while (r->n_tokens < r->max_tokens) {
        int32_t *id = &r->tokens[r->n_tokens];
        MOX_TRY(mox_sampler_sample(sampler, mox_logits_row(s->context, 0), id, err));
        if (r->n_tokens++ == 0) r->first_token_s = mox_clock_now() - r->started;
        if (mox_is_stop(g, s->tokenizer, *id)) {
            r->stop_reason = "stop";
            return MOX_OK;
        }
        emit_token(s, r, *id);
        if (r->out_of_memory) return mox_fail(err, MOX_E_MEMORY, "out of memory for the reply");
        if (mox_cli_output_failed() || r->n_tokens == r->max_tokens) return MOX_OK;
        const mox_segment segment = {.seq = s->seq, .tokens = id, .n = 1, .want = MOX_WANT_LAST};
        MOX_TRY(mox_step(s->context, &segment, 1, &opts, err));
    }
    return MOX_OK;
}

/* Fills r; EXIT_OK also when a signal ended it early. */
static int answer(const mox_cli_session *s, const mox_cli_options *o, const mox_tokens *prompt,
                  const mox_generation *g, mox_sampler *sampler, reply *r)
{
    mox_err err;
    r->started = mox_clock_now();
    mox_status status = prefill(s, o, prompt, r, &err);
    r->prompt_s = mox_clock_now() - r->started;
    if (status == MOX_OK) {
        for (int64_t i = 0; i < prompt->n; i++) mox_sampler_accept(sampler, prompt->ids[i]);
        status = generate(s, g, sampler, r, &err);
        mox_utf8_stream_end(&r->stream, emit, r);
        r->generate_s = mox_clock_now() - r->started - r->prompt_s;
    }
    if (!r->json && r->last && r->last != '\n') mox_cli_put("\n", 1);
    mox_cli_put_flush();
    if (status == MOX_E_CANCELLED) {
        r->stop_reason = "cancelled";
        return EXIT_OK;
    }
    return status == MOX_OK ? EXIT_OK : mox_cli_fail_running(&err);
}

/* ---- report ---------------------------------------------------------------- */

static double rate(int64_t n, double seconds) { return n > 0 && seconds > 0.0 ? (double)n / seconds : 0.0; }

/* The first token comes with the prompt, so one less was computed afterwards. */
static double generate_rate(const reply *r) { return rate(r->n_tokens - 1, r->generate_s); }

static void print_json(const reply *r, int64_t n_prompt, uint64_t seed)
{
    mox_cli_putf("{\"text\": ");
    mox_cli_put_json(r->text ? r->text : "", r->n_text);
    mox_cli_putf(", \"tokens\": [");
    for (int64_t i = 0; i < r->n_tokens; i++) mox_cli_putf("%s%d", i == 0 ? "" : ", ", (int)r->tokens[i]);
    mox_cli_putf("], \"stop_reason\": \"%s\", \"prompt_tokens\": %lld, \"generated_tokens\": %lld, \"seed\": %llu",
                 r->stop_reason, (long long)n_prompt, (long long)r->n_tokens, (unsigned long long)seed);
    const struct {
        const char *name;
        double value;
    } timings[] = {
        {"load_s", r->load_s},
        {"prompt_s", r->prompt_s},
        {"prompt_tokens_per_s", rate(r->n_prompt, r->prompt_s)},
        {"generate_s", r->generate_s},
        {"generate_tokens_per_s", generate_rate(r)},
        {"ttft_s", r->first_token_s},
    };
    mox_cli_putf(", \"timings\": {");
    for (size_t i = 0; i < sizeof timings / sizeof *timings; i++) {
        mox_cli_putf("%s\"%s\": ", i == 0 ? "" : ", ", timings[i].name);
        mox_cli_put_json_real(timings[i].value);
    }
    mox_cli_putf("}}\n");
}

static void report(const mox_cli_options *o, const reply *r, int64_t n_prompt, uint64_t seed)
{
    if (r->json) print_json(r, n_prompt, seed);
    if (o->v[OPT_QUIET].on) return;
    if (r->n_prompt < n_prompt)
        mox_cli_say("prompt %lld of %lld tok %.2fs %.1f t/s", (long long)r->n_prompt, (long long)n_prompt,
                    r->prompt_s, rate(r->n_prompt, r->prompt_s));
    else
        mox_cli_say("prompt %lld tok %.2fs %.1f t/s | gen %lld tok %.2fs %.1f t/s | ttft %.2fs", (long long)n_prompt,
                    r->prompt_s, rate(n_prompt, r->prompt_s), (long long)r->n_tokens, r->generate_s,
                    generate_rate(r), r->first_token_s);
}

/* ---- the command ----------------------------------------------------------- */

static int reply_to(mox_cli_session *s, const mox_cli_options *o, const mox_tokens *prompt, reply *r)
{
    int code = check_fits(s, prompt->n);
    if (code != EXIT_OK) return code;
    const int64_t room = mox_context_n_ctx(s->context) - prompt->n + 1; /* the last token is not fed back */
    r->max_tokens = mox_cli_given(o, OPT_MAX_TOKENS) ? mox_min_i64(o->v[OPT_MAX_TOKENS].number, room) : room;
    r->tokens = mox_alloc_array((size_t)r->max_tokens, sizeof *r->tokens);

    mox_err err;
    mox_model_info info;
    mox_generation g;
    mox_sampler *sampler = NULL;
    mox_model_get_info(s->model, &info);
    mox_model_get_generation(s->model, &g);
    const mox_sampler_opts opts = sampler_opts(o, &g);
    if (!r->tokens) {
        mox_cli_say("out of memory for %lld tokens", (long long)r->max_tokens);
        code = EXIT_FULL;
    } else if (mox_sampler_create(&sampler, info.n_vocab, &opts, &err) != MOX_OK) {
        code = mox_cli_fail_running(&err);
    }
    if (code == EXIT_OK) code = answer(s, o, prompt, &g, sampler, r);
    if (code == EXIT_OK) report(o, r, prompt->n, opts.seed);
    mox_sampler_destroy(&sampler);
    return code == EXIT_OK && mox_cli_stop_signal() ? EXIT_SIGNAL + mox_cli_stop_signal() : code;
}

int mox_cli_run(const mox_cli_options *o)
{
    mox_cli_session s = {0};
    mox_cli_text text = {0};
    mox_tokens prompt = {0};
    reply r = {.json = o->v[OPT_JSON].on, .stop_reason = "cancelled"};
    int code = EXIT_OK;
    if (!o->v[OPT_RAW].on) {
        mox_cli_say("this version has no chat templates; use --raw to have the text continued as it is");
        code = EXIT_USAGE;
    }
    if (code == EXIT_OK) code = mox_cli_session_find(&s, o);
    if (code == EXIT_OK) code = mox_cli_read_text(o, &text);
    const double start = mox_clock_now();
    if (code == EXIT_OK) code = mox_cli_session_open_tokenizer(&s);
    if (code == EXIT_OK) code = encode_prompt(&s, o, &text, &prompt);
    if (code == EXIT_OK) code = mox_cli_session_open_model(&s, o);
    if (code == EXIT_OK) code = mox_cli_session_open_context(&s, o, 0);
    r.load_s = mox_clock_now() - start;
    if (code == EXIT_OK) code = reply_to(&s, o, &prompt, &r);
    mox_free(r.text);
    mox_free(r.tokens);
    mox_tokens_free(&prompt);
    mox_free(text.bytes);
    mox_cli_session_close(&s);
    return code;
}
