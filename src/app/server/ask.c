/* app/server/ask.c -- see ask.h: fields to settings.  Prompts are made in prompt.c. */
#include "app/server/ask.h"

#include "app/server/server.h"
#include "base/alloc.h"
#include "base/json_fields.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BIAS_MAX = 1024 };

void mox_ask_deinit(mox_ask *a)
{
    mox_put_deinit(&a->messages);
    mox_put_deinit(&a->tools);
    mox_put_deinit(&a->kwargs);
    for (int i = 0; i < MOX_CHOICES; i++) mox_tokens_free(&a->prompts[i]);
    for (int i = 0; i < a->n_stops; i++) mox_free(a->stops[i]);
    mox_free(a->call_name);
    mox_grammar_destroy(&a->grammar);
    mox_buffer_deinit(&a->bias);
    *a = (mox_ask){0};
}

/* ---- stop strings ------------------------------------------------------------------------------- */

typedef struct stop_list {
    mox_ask *ask;
    const char *what;
} stop_list;

static mox_status add_stop(void *user, mox_json_span value, mox_err *err)
{
    stop_list *l = user;
    if (!mox_span_is_string(value)) return mox_fail(err, MOX_E_ARG, "%s must hold strings", l->what);
    if (l->ask->n_stops == MOX_ASK_STOPS)
        return mox_fail(err, MOX_E_ARG, "%s may hold %d strings at most", l->what, MOX_ASK_STOPS);
    char *text = NULL;
    MOX_TRY(mox_json_get_string(value, l->what, &text, NULL, err));
    if (!*text) {
        mox_free(text);
        return mox_fail(err, MOX_E_ARG, "%s has an empty string, before which every reply would end",
                        l->what);
    }
    l->ask->stops[l->ask->n_stops++] = text;
    return MOX_OK;
}

static mox_status read_stops(mox_ask *a, const mox_field_value *v, const char *what, mox_err *err)
{
    stop_list l = {a, what};
    if (!v->given) return MOX_OK;
    return v->type == IS_STRING ? add_stop(&l, v->raw, err) : mox_json_each(v->raw, what, add_stop, &l, err);
}

/* ---- settings ------------------------------------------------------------------------------------ */

static void take_real(float *to, const mox_field_value *v)
{
    if (v->given) *to = (float)v->real;
}

static void read_sampling(mox_ask *a, const mox_server *s, const mox_fields *f)
{
    a->sampling = s->settings.sampling;
    a->fixed_seed = s->settings.fixed_seed;
    take_real(&a->sampling.temperature, &f->v[FIELD_TEMPERATURE]);
    take_real(&a->sampling.top_p, &f->v[FIELD_TOP_P]);
    take_real(&a->sampling.min_p, &f->v[FIELD_MIN_P]);
    take_real(&a->sampling.repeat_penalty, &f->v[FIELD_REPETITION_PENALTY]);
    take_real(&a->sampling.repeat_penalty, &f->v[FIELD_REPEAT_PENALTY]);
    take_real(&a->sampling.presence_penalty, &f->v[FIELD_PRESENCE_PENALTY]);
    take_real(&a->sampling.frequency_penalty, &f->v[FIELD_FREQUENCY_PENALTY]);
    if (f->v[FIELD_TOP_K].given) a->sampling.top_k = (int32_t)f->v[FIELD_TOP_K].number;
    if (f->v[FIELD_SEED].given && f->v[FIELD_SEED].number >= 0) { /* -1: a new one each time */
        a->sampling.seed = (uint64_t)f->v[FIELD_SEED].number;
        a->fixed_seed = true;
    }
}

/* Of several names for a number the first that was given. */
static int64_t first_number(const mox_fields *f, int64_t otherwise, mox_field_id x, mox_field_id y,
                            mox_field_id z)
{
    if (f->v[x].given) return f->v[x].number;
    if (f->v[y].given) return f->v[y].number;
    return f->v[z].given ? f->v[z].number : otherwise;
}

static mox_status settle_thinking(mox_ask *a, bool on, const char *what, mox_err *err)
{
    const mox_think think = on ? MOX_THINK_ON : MOX_THINK_OFF;
    if (a->think_field && a->think != think)
        return mox_fail(err, MOX_E_ARG, "%s and %s contradict each other about thinking; leave one of them out",
                        what, a->think_field);
    a->think = think;
    a->think_field = what;
    return MOX_OK;
}

/* ---- logit_bias ---------------------------------------------------------------------------------- */

static bool read_real(mox_json_span v, double *out)
{
    char text[64];
    if (v.n >= sizeof text || !strchr("-0123456789", v.text[0])) return false;
    memcpy(text, v.text, v.n);
    text[v.n] = '\0';
    *out = strtod(text, NULL);
    return true;
}

/* The token of a key or a number, and what is added to its logit: a number, or false for never. */
static mox_status add_bias(mox_ask *a, int64_t id, mox_json_span bias, mox_err *err)
{
    const int32_t i = a->sampling.n_logit_bias;
    double value = -(double)INFINITY;
    if (id < 0 || id > INT32_MAX)
        return mox_fail(err, MOX_E_ARG,
                        "logit_bias must name tokens by their numbers, as /tokenize shows them");
    if (bias.text[0] != 'f' && !(read_real(bias, &value) && fabs(value) <= 100.0))
        return mox_fail(err, MOX_E_ARG, "logit_bias must hold numbers from -100 to 100, or false for never");
    if (i == BIAS_MAX) return mox_fail(err, MOX_E_ARG, "logit_bias may name %d tokens at most", BIAS_MAX);
    MOX_TRY(mox_buffer_reserve(&a->bias, (size_t)i + 1, sizeof(mox_logit_bias), "logit_bias", err));
    ((mox_logit_bias *)a->bias.data)[i] = (mox_logit_bias){(int32_t)id, (float)value};
    a->sampling.logit_bias = a->bias.data;
    a->sampling.n_logit_bias = i + 1;
    return MOX_OK;
}

/* -1: it is no token's number. */
static int64_t id_of(const char *text, size_t n)
{
    const mox_json_token t = {.type = MOX_JSON_NUMBER, .text = text, .n = n};
    int64_t id;
    return n > 0 && text[0] >= '0' && text[0] <= '9' && mox_json_token_int(&t, &id) ? id : -1;
}

typedef struct bias_pair {
    mox_json_span v[2];
    int n;
} bias_pair;

static mox_status add_to_pair(void *user, mox_json_span value, mox_err *err)
{
    bias_pair *p = user;
    (void)err;
    if (p->n < 2) p->v[p->n] = value;
    p->n++;
    return MOX_OK;
}

static mox_status read_bias_pair(void *user, mox_json_span value, mox_err *err)
{
    bias_pair p = {0};
    if (mox_span_is_array(value)) MOX_TRY(mox_json_each(value, "logit_bias", add_to_pair, &p, err));
    if (p.n != 2) return mox_fail(err, MOX_E_ARG, "logit_bias must be an object, or an array of pairs");
    return add_bias(user, id_of(p.v[0].text, p.v[0].n), p.v[1], err);
}

static mox_status read_bias_members(mox_ask *a, mox_json_reader *r, mox_err *err)
{
    mox_json_token t;
    mox_json_span value;
    MOX_TRY(mox_json_next(r, &t, err));
    for (;;) {
        MOX_TRY(mox_json_next(r, &t, err));
        if (t.type == MOX_JSON_OBJECT_END) return MOX_OK;
        const int64_t id = id_of(t.text, t.n);
        MOX_TRY(mox_json_skip(r, &value, err));
        MOX_TRY(add_bias(a, id, value, err));
    }
}

/* {"ID": NUMBER} as OpenAI has it, or [[ID, NUMBER]] as llama.cpp has it, too. */
static mox_status read_bias(mox_ask *a, const mox_field_value *v, mox_err *err)
{
    mox_json_reader r;
    if (!v->given) return MOX_OK;
    if (v->type == IS_ARRAY) return mox_json_each(v->raw, "logit_bias", read_bias_pair, a, err);
    mox_json_reader_init(&r, v->raw);
    const mox_status status = read_bias_members(a, &r, err);
    mox_json_reader_deinit(&r);
    return status;
}

static mox_status read_stream_options(mox_ask *a, const mox_fields *f, mox_err *err)
{
    static const char *const names[] = {"include_usage"};
    mox_json_span v;
    if (!f->v[FIELD_STREAM_OPTIONS].given) return MOX_OK;
    MOX_TRY(mox_json_fields(f->v[FIELD_STREAM_OPTIONS].raw, "stream_options", names, 1, &v, err));
    return mox_json_get_bool(v, "stream_options.include_usage", &a->usage, err);
}

mox_status mox_ask_read_common(mox_ask *a, const mox_server *s, const mox_fields *f, mox_err *err)
{
    char *model = NULL;
    read_sampling(a, s, f);
    a->max_tokens = first_number(f, s->settings.max_tokens, FIELD_MAX_COMPLETION_TOKENS, FIELD_MAX_TOKENS,
                                 FIELD_MAX_OUTPUT_TOKENS);
    a->think = s->settings.think;
    if (f->v[FIELD_ENABLE_THINKING].given)
        MOX_TRY(settle_thinking(a, f->v[FIELD_ENABLE_THINKING].on, "enable_thinking", err));
    a->think_budget = first_number(f, s->settings.think_budget, FIELD_THINKING_BUDGET, FIELD_REASONING_BUDGET,
                                   FIELD_REASONING_BUDGET);
    a->n = f->v[FIELD_N].given ? (int)f->v[FIELD_N].number : 1;
    a->n_logprobs = -1;
    a->stream = mox_field_on(f, FIELD_STREAM, false);
    a->progress = mox_field_on(f, FIELD_RETURN_PROGRESS, false);
    a->no_reuse = !mox_field_on(f, FIELD_CACHE_PROMPT, true);
    a->single_call = !mox_field_on(f, FIELD_PARALLEL_TOOL_CALLS, true);
    a->final_is_begun = mox_field_on(f, FIELD_CONTINUE_FINAL, false);
    a->final_is_whole = !mox_field_on(f, FIELD_CONTINUE_FINAL, true);
    a->no_generation_prompt = !mox_field_on(f, FIELD_GENERATION_PROMPT, true);
    if (f->v[FIELD_MODEL].given) {
        MOX_TRY(mox_json_get_string(f->v[FIELD_MODEL].raw, "model", &model, NULL, err));
        (void)strncpy(a->model, model, sizeof a->model - 1);
        mox_free(model);
    }
    a->ignore_end = mox_field_on(f, FIELD_IGNORE_EOS, false);
    MOX_TRY(read_bias(a, &f->v[FIELD_LOGIT_BIAS], err));
    MOX_TRY(read_stream_options(a, f, err));
    MOX_TRY(read_stops(a, &f->v[FIELD_STOP], "stop", err));
    return read_stops(a, &f->v[FIELD_STOP_SEQUENCES], "stop_sequences", err);
}

/* ---- thinking ------------------------------------------------------------------------------------ */

mox_status mox_ask_read_effort(mox_ask *a, mox_json_span effort, const char *what, mox_err *err)
{
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    if (mox_json_is_null(effort)) return MOX_OK;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (mox_span_is(effort, words[i]))
            return i == 0 ? settle_thinking(a, false, what, err) : MOX_OK; /* templates know on and off alone */
    return mox_fail(err, MOX_E_ARG, "%s must be none, minimal, low, medium, high, xhigh or max", what);
}

mox_status mox_ask_read_thinking(mox_ask *a, mox_json_span thinking, mox_err *err)
{
    static const char *const names[] = {"type", "budget_tokens"};
    mox_json_span v[2];
    mox_json_token t = {.type = MOX_JSON_NUMBER};
    if (mox_json_is_null(thinking)) return MOX_OK;
    MOX_TRY(mox_json_fields(thinking, "thinking", names, 2, v, err));
    const bool on = mox_span_is(v[0], "enabled");
    if (on || mox_span_is(v[0], "disabled")) MOX_TRY(settle_thinking(a, on, "thinking.type", err));
    else if (!mox_span_is(v[0], "adaptive"))
        return mox_fail(err, MOX_E_ARG, "thinking.type must be enabled, disabled or adaptive");
    if (mox_json_is_null(v[1])) return MOX_OK;
    t.text = v[1].text;
    t.n = v[1].n;
    if (!mox_json_token_int(&t, &a->think_budget) || a->think_budget < 0)
        return mox_fail(err, MOX_E_ARG, "thinking.budget_tokens must be a whole number that is not negative");
    return MOX_OK;
}

/* ---- variables of the template ------------------------------------------------------------------- */

static const char *const think_names[] = {"enable_thinking", "thinking"}; /* templates call it one or the other */
static const char *const think_fields[] = {"chat_template_kwargs.enable_thinking",
                                           "chat_template_kwargs.thinking"};

static bool is_about_thinking(const mox_json_token *key)
{
    return mox_json_token_is(key, think_names[0]) || mox_json_token_is(key, think_names[1]);
}

/* The object's other members, in their order. */
static mox_status write_others(mox_json_reader *r, mox_put *out, mox_err *err)
{
    mox_json_token t;
    mox_json_span value;
    bool any = false;
    MOX_TRY(mox_json_next(r, &t, err));
    mox_putf(out, "{");
    for (;;) {
        MOX_TRY(mox_json_next(r, &t, err));
        if (t.type == MOX_JSON_OBJECT_END) break;
        const bool wanted = !is_about_thinking(&t);
        if (wanted) {
            if (any) mox_putf(out, ",");
            mox_put_json(out, t.text, t.n);
            mox_putf(out, ":");
            any = true;
        }
        MOX_TRY(mox_json_skip(r, &value, err));
        if (wanted) mox_put_raw(out, value.text, value.n);
    }
    mox_putf(out, "}");
    return mox_put_ok(out) ? MOX_OK : mox_fail_memory(err, out->w.n, "chat_template_kwargs");
}

/* Thinking is the request's affair: the template would get its variables twice when something else
 * settles it, too. */
mox_status mox_ask_read_kwargs(mox_ask *a, mox_json_span kwargs, mox_err *err)
{
    mox_json_span v[2];
    mox_json_reader r;
    MOX_TRY(mox_json_fields(kwargs, "chat_template_kwargs", think_names, 2, v, err));
    for (int i = 0; i < 2; i++) {
        bool on = false;
        if (mox_json_is_null(v[i])) continue;
        if (mox_json_get_bool(v[i], think_fields[i], &on, NULL) != MOX_OK)
            return mox_fail(err, MOX_E_ARG, "%s must be true or false", think_fields[i]);
        MOX_TRY(settle_thinking(a, on, think_fields[i], err));
    }
    mox_json_reader_init(&r, kwargs);
    const mox_status status = write_others(&r, &a->kwargs, err);
    mox_json_reader_deinit(&r);
    return status;
}
