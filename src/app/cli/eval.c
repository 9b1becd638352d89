/* app/cli/eval.c -- `moxie eval`: how well a model predicts a text, and how far
 * two ways of computing it differ.
 *
 * The text is cut into windows of the context's length that do not overlap; each
 * starts afresh (with the BOS of tokenizers that want one), and every token but
 * the first of a window is predicted.  With --against two contexts run through the
 * same tokens side by side, some rows at a time, and each pair of rows is compared
 * as distributions: KL(against || this). */
#include "app/cli/commands.h"
#include "app/cli/describe.h"
#include "app/cli/input.h"
#include "app/cli/memory.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "app/cli/progress.h"
#include "app/cli/session.h"
#include "app/cli/stop.h"
#include "base/alloc.h"
#include "base/err.h"
#include "base/size.h"

#include <math.h>
#include <string.h>

enum { COMPARED_ROWS = 64 }; /* 40 MB of logits for the largest vocabularies */

/* One way of computing, and how well it predicted. */
typedef struct contender {
    mox_context *context;
    mox_seq *seq;
    double sum, sum_squares; /* of -log p(next token) */
    int64_t n;
} contender;

typedef struct evaluation {
    contender run[2]; /* as the options say; as --against says */
    int n_runs;
    int64_t n_vocab, n_windows;
    float *rows; /* [COMPARED_ROWS, V] of run[0], waiting for those of run[1] */
    double kl_sum, kl_max;
    int64_t n_compared, n_same_top;
    /* the step that is running */
    int current;
    const int32_t *tokens; /* of the step, followed by those it predicts */
    int64_t n_predictable; /* rows that have a next token in their window */
    bool broken;           /* a row was not finite */
} evaluation;

/* ---- rows ------------------------------------------------------------------ */

static int64_t top_of(const float *row, int64_t n)
{
    int64_t top = 0;
    for (int64_t i = 1; i < n; i++)
        if (row[i] > row[top]) top = i;
    return top;
}

/* log(sum(exp(row))); NaN when a logit is NaN. */
static double log_sum(const float *row, int64_t n, int64_t top)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += exp((double)row[i] - (double)row[top]);
    return log(sum) + (double)row[top];
}

static void compare(evaluation *e, const float *q, const float *p, double log_q, double log_p, bool same_top)
{
    double kl = 0.0;
    for (int64_t i = 0; i < e->n_vocab; i++) {
        const double lp = (double)p[i] - log_p;
        if (lp > -700.0) kl += exp(lp) * (lp - ((double)q[i] - log_q));
    }
    e->kl_sum += kl;
    e->kl_max = fmax(e->kl_max, kl);
    e->n_same_top += same_top;
    e->n_compared++;
}

static void on_row(void *user, int32_t segment, int64_t row, const float *logits)
{
    evaluation *e = user;
    (void)segment;
    contender *c = &e->run[e->current];
    const int64_t top = top_of(logits, e->n_vocab);
    const double total = log_sum(logits, e->n_vocab, top);
    if (!isfinite(total)) e->broken = true;
    if (row < e->n_predictable) {
        const double nll = total - (double)logits[e->tokens[row + 1]];
        c->sum += nll;
        c->sum_squares += nll * nll;
        c->n++;
    }
    if (e->n_runs == 1) return;
    float *kept = e->rows + row * e->n_vocab;
    if (e->current == 0) {
        memcpy(kept, logits, (size_t)e->n_vocab * sizeof *logits);
        return;
    }
    const int64_t kept_top = top_of(kept, e->n_vocab);
    compare(e, kept, logits, log_sum(kept, e->n_vocab, kept_top), total, kept_top == top);
}

/* ---- windows --------------------------------------------------------------- */

static mox_status step(evaluation *e, const int32_t *tokens, int64_t n, int64_t n_predictable,
                       mox_cli_progress *progress, mox_err *err)
{
    e->tokens = tokens;
    e->n_predictable = n_predictable;
    for (e->current = 0; e->current < e->n_runs; e->current++) {
        const contender *c = &e->run[e->current];
        const mox_segment segment = {.seq = c->seq, .tokens = tokens, .n = n, .want = MOX_WANT_ALL};
        const mox_step_opts opts = {.cancel = mox_cli_stop_flag(), .on_logits = on_row, .on_logits_user = e,
                                    .progress = e->current == 0 ? mox_cli_progress_update : NULL,
                                    .progress_user = progress};
        MOX_TRY(mox_step(c->context, &segment, 1, &opts, err));
        if (e->broken) return mox_fail(err, MOX_E_NUMERIC, "the model produced logits that are not finite");
    }
    progress->before += n;
    return MOX_OK;
}

static mox_status run_window(evaluation *e, const int32_t *tokens, int64_t n, mox_cli_progress *progress,
                             mox_err *err)
{
    const int64_t rows = e->n_runs == 1 ? n : COMPARED_ROWS;
    for (int i = 0; i < e->n_runs; i++) mox_seq_reset(e->run[i].seq);
    for (int64_t at = 0; at < n; at += rows) {
        const int64_t m = mox_min_i64(rows, n - at);
        MOX_TRY(step(e, tokens + at, m, mox_min_i64(m, n - at - 1), progress, err));
    }
    e->n_windows++;
    return MOX_OK;
}

/* window has room for n_ctx ids; n_begin, 0 or 1 and less than n_ctx, are there already
 * and start every window. */
static mox_status run_text(evaluation *e, const mox_tokens *text, int32_t *window, int64_t n_begin, int64_t n_ctx,
                           mox_cli_progress *progress, mox_err *err)
{
    for (int64_t at = 0; at < text->n;) {
        const int64_t skip = n_begin > 0 && text->ids[at] == window[0] ? 1 : 0; /* the text brought its own BOS */
        const int64_t n = mox_min_i64(n_ctx - n_begin + skip, text->n - at);
        memcpy(window + n_begin - skip, text->ids + at, (size_t)n * sizeof *window);
        if (n_begin - skip + n > 1) MOX_TRY(run_window(e, window, n_begin - skip + n, progress, err));
        at += n;
    }
    return MOX_OK;
}

/* ---- report ---------------------------------------------------------------- */

static double mean(const contender *c) { return c->sum / (double)c->n; }

static double standard_error(const contender *c)
{
    if (c->n < 2) return 0.0;
    const double n = (double)c->n, m = mean(c);
    return sqrt(fmax(0.0, (c->sum_squares / n - m * m) / (n - 1.0)));
}

static void json_real(const char *name, double x)
{
    mox_cli_putf(", \"%s\": ", name);
    mox_cli_put_json_real(x);
}

static void json_contender(const contender *c)
{
    json_real("nll", mean(c));
    json_real("nll_stderr", standard_error(c));
    json_real("perplexity", exp(mean(c)));
    json_real("perplexity_stderr", exp(mean(c)) * standard_error(c));
    mox_cli_putf(", \"kernels\": ");
    mox_cli_put_kernels_json(c->context);
}

static void print_json(const evaluation *e, int64_t n_tokens, int64_t n_ctx, const char *against)
{
    mox_cli_putf("{\"tokens\": %lld, \"predicted\": %lld, \"windows\": %lld, \"context\": %lld", (long long)n_tokens,
                 (long long)e->run[0].n, (long long)e->n_windows, (long long)n_ctx);
    json_contender(&e->run[0]);
    if (against) {
        mox_cli_putf(", \"against\": {\"setting\": \"%s\"", against);
        json_contender(&e->run[1]);
        json_real("kl_mean", e->kl_sum / (double)e->n_compared);
        json_real("kl_max", e->kl_max);
        json_real("top1_agreement", (double)e->n_same_top / (double)e->n_compared);
        mox_cli_putf("}");
    }
    mox_cli_putf("}\n");
}

static void print_contender(const contender *c)
{
    mox_cli_putf("nll         %.6f +- %.6f per token\n", mean(c), standard_error(c));
    mox_cli_putf("perplexity  %.4f +- %.4f\n", exp(mean(c)), exp(mean(c)) * standard_error(c));
}

static void print_kernels(const contender *c)
{
    char words[MOX_CLI_DESCRIPTION];
    mox_cli_describe_kernels(c->context, true, words);
    mox_cli_putf("computed by %s\n", words);
}

static void print_text(const evaluation *e, int64_t n_tokens, int64_t n_ctx, const char *against)
{
    mox_cli_putf("tokens      %lld, %lld predicted\n", (long long)n_tokens, (long long)e->run[0].n);
    mox_cli_putf("windows     %lld of %lld tokens\n", (long long)e->n_windows, (long long)n_ctx);
    print_kernels(&e->run[0]);
    print_contender(&e->run[0]);
    if (!against) return;
    mox_cli_putf("\nagainst %s\n", against);
    print_kernels(&e->run[1]);
    print_contender(&e->run[1]);
    mox_cli_putf("KL          mean %.3e, max %.3e per token\n", e->kl_sum / (double)e->n_compared, e->kl_max);
    mox_cli_putf("same top-1  %.3f %% of %lld tokens\n", 100.0 * (double)e->n_same_top / (double)e->n_compared,
                 (long long)e->n_compared);
}

/* ---- the command ----------------------------------------------------------- */

/* Makes the contexts: one as the options say and, with --against, the same with nothing but
 * its setting. */
static int open_contenders(evaluation *e, mox_cli_session *s, const mox_cli_options *o)
{
    mox_err err;
    mox_context_opts opts, other;
    const char *against = o->v[OPT_AGAINST].text;
    const size_t row_bytes = (size_t)e->n_vocab * sizeof *e->rows;
    mox_cli_context_opts(o, 0, &opts);
    other = opts;
    other.exact = against && strcmp(against, "exact") == 0;
    other.fast = against && strcmp(against, "fast") == 0;
    other.kv_type = MOX_KV_DEFAULT;
    int code = mox_cli_session_trace(s, o, &opts);
    if (code == EXIT_OK)
        code = mox_cli_memory_settle(s, o, &opts, against ? &other : NULL, against ? (int64_t)row_bytes * COMPARED_ROWS : 0);
    if (code == EXIT_OK) code = mox_cli_session_make_context(s, &opts);
    if (code != EXIT_OK) return code;
    e->run[0].context = s->context;
    e->run[0].seq = s->seq;
    if (!against) return EXIT_OK;
    e->n_runs = 2;
    e->rows = mox_alloc_array(COMPARED_ROWS, row_bytes);
    if (!e->rows) {
        mox_cli_say("out of memory for %d rows of logits", COMPARED_ROWS);
        return EXIT_FULL;
    }
    if (mox_context_create(&e->run[1].context, s->model, &other, &err) != MOX_OK) return mox_cli_fail_opening(&err);
    return mox_seq_create(&e->run[1].seq, e->run[1].context, &err) == MOX_OK ? EXIT_OK : mox_cli_fail_opening(&err);
}

static int evaluate(evaluation *e, const mox_cli_session *s, const mox_cli_options *o, const mox_tokens *text)
{
    const int64_t n_ctx = mox_context_n_ctx(s->context);
    mox_tokens window = {0};
    int code = mox_cli_session_begin(s, &window);
    const int64_t n_begin = window.n;
    int32_t *ids = mox_alloc_array((size_t)n_ctx, sizeof *ids);
    if (code == EXIT_OK && !ids) {
        mox_cli_say("out of memory for %lld tokens", (long long)n_ctx);
        code = EXIT_FULL;
    }
    if (code == EXIT_OK && text->n + n_begin < 2) {
        mox_cli_say("the text has %lld token%s: there is nothing to predict", (long long)text->n, mox_cli_s(text->n));
        code = EXIT_USAGE;
    }
    if (code == EXIT_OK && n_ctx <= mox_max_i64(n_begin, 1)) {
        mox_cli_say("-c %lld: a window needs at least 2 tokens", (long long)n_ctx);
        code = EXIT_USAGE;
    }
    if (code == EXIT_OK) {
        mox_err err;
        mox_cli_progress progress;
        if (n_begin > 0) memcpy(ids, window.ids, (size_t)n_begin * sizeof *ids);
        mox_cli_progress_start(&progress, "eval", text->n, o->v[OPT_QUIET].on);
        const mox_status status = run_text(e, text, ids, n_begin, n_ctx, &progress, &err);
        mox_cli_progress_end(&progress);
        if (mox_cli_stop_signal()) code = EXIT_SIGNAL + mox_cli_stop_signal();
        else if (status != MOX_OK) code = mox_cli_fail_running(&err);
    }
    mox_free(ids);
    mox_tokens_free(&window);
    return code;
}

int mox_cli_eval(const mox_cli_options *o)
{
    mox_cli_session s = {0};
    mox_cli_text text = {0};
    mox_tokens tokens = {0};
    evaluation e = {.n_runs = 1};
    const char *against = o->v[OPT_AGAINST].text;
    int code = mox_cli_session_find(&s, o);
    if (code == EXIT_OK) code = mox_cli_read_text(o, &text);
    if (code == EXIT_OK) code = mox_cli_session_open_tokenizer(&s);
    if (code == EXIT_OK) code = mox_cli_session_encode(&s, o, text.bytes, text.n, &tokens);
    if (code == EXIT_OK) code = mox_cli_session_open_model(&s, o);
    if (code == EXIT_OK) {
        mox_model_info info;
        mox_model_get_info(s.model, &info);
        e.n_vocab = info.n_vocab;
        code = open_contenders(&e, &s, o);
    }
    if (code == EXIT_OK) code = evaluate(&e, &s, o, &tokens);
    if (code == EXIT_OK) {
        const int64_t n_ctx = mox_context_n_ctx(s.context);
        if (o->v[OPT_JSON].on) print_json(&e, tokens.n, n_ctx, against);
        else print_text(&e, tokens.n, n_ctx, against);
    }
    mox_seq_destroy(&e.run[1].seq);
    mox_context_destroy(&e.run[1].context);
    mox_free(e.rows);
    mox_tokens_free(&tokens);
    mox_free(text.bytes);
    return mox_cli_session_end(&s, code);
}
