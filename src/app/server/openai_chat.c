/* app/server/openai_chat.c -- /v1/chat/completions, and the prompts that it makes: /apply-template. */
#include "app/server/answer.h"

#include "app/server/structure.h"
#include "base/clock.h"
#include "base/json_fields.h"

/* ---- the request --------------------------------------------------------------------------------- */

static mox_status read_logprobs(mox_ask *a, const mox_fields *f, mox_err *err)
{
    const mox_field_value *wanted = &f->v[FIELD_LOGPROBS], *top = &f->v[FIELD_TOP_LOGPROBS],
                          *n_probs = &f->v[FIELD_N_PROBS];
    if (wanted->given && wanted->type != IS_BOOL)
        return mox_fail(err, MOX_E_ARG, "logprobs must be true or false");
    if (n_probs->given && n_probs->number > 0) a->n_logprobs = (int)n_probs->number;
    if (wanted->given && wanted->on && a->n_logprobs < 0) a->n_logprobs = 0;
    if (!top->given) return MOX_OK;
    if (a->n_logprobs < 0 && top->number > 0)
        return mox_fail(err, MOX_E_ARG, "top_logprobs needs logprobs to be true");
    if (a->n_logprobs >= 0) a->n_logprobs = (int)top->number;
    return MOX_OK;
}

static mox_status read_chat(mox_answer *answer, const mox_fields *f, mox_err *err)
{
    static const char *const names[] = {"effort"};
    mox_ask *a = &answer->ask;
    mox_json_span effort = {0};
    if (!f->v[FIELD_MESSAGES].given) return mox_fail(err, MOX_E_ARG, "messages is missing");
    mox_put_raw(&a->messages, f->v[FIELD_MESSAGES].raw.text, f->v[FIELD_MESSAGES].raw.n);
    if (f->v[FIELD_TOOLS].given) mox_put_raw(&a->tools, f->v[FIELD_TOOLS].raw.text, f->v[FIELD_TOOLS].raw.n);
    if (f->v[FIELD_REASONING].given)
        MOX_TRY(mox_json_fields(f->v[FIELD_REASONING].raw, "reasoning", names, 1, &effort, err));
    MOX_TRY(mox_ask_read_effort(a, effort, "reasoning.effort", err));
    if (f->v[FIELD_REASONING_EFFORT].given)
        MOX_TRY(mox_ask_read_effort(a, f->v[FIELD_REASONING_EFFORT].raw, "reasoning_effort", err));
    if (f->v[FIELD_THINKING].given) MOX_TRY(mox_ask_read_thinking(a, f->v[FIELD_THINKING].raw, err));
    if (f->v[FIELD_TEMPLATE_KWARGS].given)
        MOX_TRY(mox_ask_read_kwargs(a, f->v[FIELD_TEMPLATE_KWARGS].raw, err));
    MOX_TRY(read_logprobs(a, f, err));
    return mox_structure_read_openai(a, f, err);
}

/* ---- the answer ---------------------------------------------------------------------------------- */

static void put_head(mox_put *p, const mox_answer *a, const char *object)
{
    mox_putf(p, "{\"id\":\"chatcmpl-%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", mox_http_id(a->call),
             object, (long long)a->created);
    mox_put_string(p, a->server->model_name);
    mox_putf(p, ",\"system_fingerprint\":\"moxie-%s\",\"choices\":[", mox_version());
}

static void put_usage(mox_put *p, const mox_answer *a)
{
    const mox_usage u = mox_answer_usage(a);
    mox_putf(p,
             "\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
             "\"prompt_tokens_details\":{\"cached_tokens\":%lld},"
             "\"completion_tokens_details\":{\"reasoning_tokens\":%lld}}",
             (long long)u.prompt, (long long)u.reply, (long long)(u.prompt + u.reply), (long long)u.reused,
             (long long)u.thinking);
}

/* The beginning of a piece for a choice, up to what its delta holds. */
static void begin_delta(mox_answer *a, const mox_choice *c)
{
    mox_putf(&a->out, "data: ");
    put_head(&a->out, a, "chat.completion.chunk");
    mox_putf(&a->out, "{\"index\":%d,\"delta\":{", c->index);
}

static void end_delta(mox_answer *a, const char *finish)
{
    mox_putf(&a->out, ",\"finish_reason\":");
    mox_put_string(&a->out, finish);
    mox_putf(&a->out, "}]}\n\n");
}

static void begin(mox_answer *a)
{
    for (int i = 0; i < a->n_choices; i++) {
        begin_delta(a, &a->choices[i]);
        mox_putf(&a->out, "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null");
        end_delta(a, NULL);
    }
}

static void progress(mox_answer *a, mox_choice *c, const mox_event *e)
{
    mox_putf(&a->out, "data: ");
    put_head(&a->out, a, "chat.completion.chunk");
    mox_putf(&a->out,
             "],\"prompt_progress\":{\"total\":%lld,\"cache\":%lld,\"processed\":%lld,\"time_ms\":%.0f}}\n\n",
             (long long)e->n_prompt, (long long)c->n_reused, (long long)e->n_done,
             (mox_clock_now() - mox_http_started(a->call)) * 1e3);
}

static void put_call_delta(mox_put *p, mox_choice *c, const mox_event *e)
{
    if (e->part == MOX_PART_CALL_ARGUMENTS) {
        mox_putf(p, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", (int)e->call);
        mox_put_json(p, e->text, e->n);
        mox_putf(p, "}}]");
        return;
    }
    mox_message m;
    mox_turn_get_message(e->turn, &m);
    c->call = e->call;
    mox_putf(p, "\"tool_calls\":[{\"index\":%d,\"id\":", (int)e->call);
    mox_put_string(p, m.calls[e->call].id);
    mox_putf(p, ",\"type\":\"function\",\"function\":{\"name\":");
    mox_put_json(p, e->text, e->n);
    mox_putf(p, ",\"arguments\":\"\"}}]");
}

/* Text that waited for logprobs, and those. */
static void flush_pending(mox_answer *a, mox_choice *c)
{
    if (c->pending.w.n == 0 && mox_put_ok(&c->pending)) return;
    begin_delta(a, c);
    mox_putf(&a->out, "\"content\":");
    mox_put_json(&a->out, mox_writer_text(&c->pending.w), c->pending.w.n);
    mox_putf(&a->out, "},\"logprobs\":{\"content\":[");
    mox_put_logprobs(&a->out, a, c, c->n_shown);
    mox_putf(&a->out, "],\"refusal\":null}");
    end_delta(a, NULL);
    c->n_shown = c->n_text;
    if (c->pending.failed) a->out.failed = true;
    mox_put_clear(&c->pending);
}

static void part(mox_answer *a, mox_choice *c, const mox_event *e)
{
    if (e->part == MOX_PART_TEXT && a->ask.n_logprobs >= 0) { /* goes out with its token */
        mox_put_raw(&c->pending, e->text, e->n);
        return;
    }
    flush_pending(a, c);
    begin_delta(a, c);
    if (e->part == MOX_PART_TEXT || e->part == MOX_PART_THINKING) {
        mox_putf(&a->out, e->part == MOX_PART_TEXT ? "\"content\":" : "\"reasoning_content\":");
        mox_put_json(&a->out, e->text, e->n);
    } else {
        put_call_delta(&a->out, c, e);
    }
    mox_putf(&a->out, "},\"logprobs\":null");
    end_delta(a, NULL);
}

static void token(mox_answer *a, mox_choice *c)
{
    flush_pending(a, c);
    mox_answer_send(a);
}

static void put_message(mox_put *p, const mox_answer *a, const mox_message *m)
{
    const int32_t n_calls = mox_answer_calls(a, m);
    mox_putf(p, "{\"role\":\"assistant\",\"content\":");
    if (m->n_text > 0 || n_calls == 0) mox_put_json(p, m->text, m->n_text);
    else mox_put_string(p, NULL);
    if (m->n_thinking > 0) {
        mox_putf(p, ",\"reasoning_content\":");
        mox_put_json(p, m->thinking, m->n_thinking);
    }
    for (int32_t i = 0; i < n_calls; i++) {
        mox_putf(p, "%s{\"id\":", i == 0 ? ",\"tool_calls\":[" : ",");
        mox_put_string(p, m->calls[i].id);
        mox_putf(p, ",\"type\":\"function\",\"function\":{\"name\":");
        mox_put_string(p, m->calls[i].name);
        mox_putf(p, ",\"arguments\":");
        mox_put_string(p, m->calls[i].arguments);
        mox_putf(p, "}}");
    }
    mox_putf(p, n_calls > 0 ? "]}" : "}");
}

static void done(mox_answer *a, mox_choice *c, const mox_event *e)
{
    if (a->ask.stream) {
        flush_pending(a, c);
        begin_delta(a, c);
        mox_putf(&a->out, "},\"logprobs\":null");
        end_delta(a, mox_finish_word(e->stop));
        return;
    }
    mox_message m;
    mox_turn_get_message(e->turn, &m);
    mox_putf(&c->json, "{\"index\":%d,\"message\":", c->index);
    put_message(&c->json, a, &m);
    if (a->ask.n_logprobs >= 0) {
        mox_putf(&c->json, ",\"logprobs\":{\"content\":[");
        mox_put_logprobs(&c->json, a, c, 0);
        mox_putf(&c->json, "],\"refusal\":null}");
    } else {
        mox_putf(&c->json, ",\"logprobs\":null");
    }
    mox_putf(&c->json, ",\"finish_reason\":\"%s\"}", mox_finish_word(e->stop));
}

static void end(mox_answer *a)
{
    mox_put *p = &a->out;
    if (!a->ask.stream) {
        put_head(p, a, "chat.completion");
        for (int i = 0; i < a->n_choices; i++) {
            if (i > 0) mox_putf(p, ",");
            mox_put_raw(p, mox_writer_text(&a->choices[i].json.w), a->choices[i].json.w.n);
            if (a->choices[i].json.failed) p->failed = true;
        }
        mox_putf(p, "],");
        put_usage(p, a);
        mox_putf(p, ",");
        mox_put_timings(p, a);
        mox_putf(p, "}");
        return;
    }
    if (a->ask.usage) {
        mox_putf(p, "data: ");
        put_head(p, a, "chat.completion.chunk");
        mox_putf(p, "],");
        put_usage(p, a);
        mox_putf(p, ",");
        mox_put_timings(p, a);
        mox_putf(p, "}\n\n");
    }
    mox_putf(p, "data: [DONE]\n\n");
}

static void broken(mox_answer *a, const mox_problem *problem)
{
    mox_putf(&a->out, "data: ");
    mox_problem_put(problem, MOX_VENDOR_OPENAI, mox_http_id(a->call), &a->out);
    mox_putf(&a->out, "\n\n");
}

static const mox_api api = {.fields = API_CHAT,
                            .vendor = MOX_VENDOR_OPENAI,
                            .ping = ":\n\n",
                            .read = read_chat,
                            .begin = begin,
                            .progress = progress,
                            .part = part,
                            .token = token,
                            .done = done,
                            .end = end,
                            .broken = broken};

void mox_handle_chat(mox_server *s, mox_http_call *c) { mox_answer_start(s, c, &api); }

void mox_handle_apply_template(mox_server *s, mox_http_call *c)
{
    const mox_answer *a = mox_answer_read(s, c, &api);
    if (!a) return;
    mox_put p = {0};
    mox_putf(&p, "{\"prompt\":");
    mox_put_json(&p, a->asked.prompt.text, a->asked.prompt.n);
    mox_putf(&p, ",\"n_tokens\":%lld}", (long long)a->asked.tokens.n);
    mox_http_answer(c, 200, "application/json", &p);
}
