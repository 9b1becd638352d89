/* app/server/openai_responses.c -- /v1/responses: the answers.
 *
 * Output is a row of items: reasoning, message, function_call.  In a stream each is added,
 * filled and done before the next; finished ones collect in the choice's json for the response
 * as a whole, which the last event has. */
#include "app/server/responses.h"

#include "base/json_fields.h"

enum { NO_ITEM = 0, REASONING, MESSAGE, CALL };

/* ---- items --------------------------------------------------------------------------------------- */

static void put_item_id(mox_put *p, const mox_answer *a, int kind, int index)
{
    mox_putf(p, "\"%s_%s_%d\"",
             kind == REASONING ? "rs"
             : kind == MESSAGE ? "msg"
                               : "fc",
             mox_http_id(a->call), index);
}

static void put_text_part(mox_put *p, int kind, const char *text, size_t n)
{
    mox_putf(p, kind == REASONING ? "{\"type\":\"reasoning_text\",\"text\":"
                                  : "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":");
    mox_put_json(p, text, n);
    mox_putf(p, "}");
}

typedef enum item_state { BEGUN, CUT, WHOLE } item_state;

static const char *status_of(item_state state)
{
    return state == BEGUN ? "in_progress" : state == CUT ? "incomplete" : "completed";
}

/* With its content, unless it has just begun. */
static void put_text_item(mox_put *p, const mox_answer *a, int kind, int index, item_state state, const char *text,
                          size_t n)
{
    mox_putf(p, "{\"id\":");
    put_item_id(p, a, kind, index);
    if (kind == REASONING) mox_putf(p, ",\"type\":\"reasoning\",\"summary\":[]");
    else mox_putf(p, ",\"type\":\"message\",\"role\":\"assistant\"");
    mox_putf(p, ",\"status\":\"%s\",\"content\":[", status_of(state));
    if (state != BEGUN) put_text_part(p, kind, text, n);
    mox_putf(p, "]}");
}

static void put_call_item(mox_put *p, const mox_answer *a, int index, const mox_call *call, item_state state)
{
    mox_putf(p, "{\"id\":");
    put_item_id(p, a, CALL, index);
    mox_putf(p, ",\"type\":\"function_call\",\"status\":\"%s\",\"call_id\":", status_of(state));
    mox_put_string(p, call->id);
    mox_putf(p, ",\"name\":");
    mox_put_string(p, call->name);
    mox_putf(p, ",\"arguments\":");
    mox_put_string(p, state != BEGUN ? call->arguments : "");
    mox_putf(p, "}");
}

/* ---- the response as a whole --------------------------------------------------------------------- */

typedef enum response_state { RUNNING, OVER, FAILED } response_state;

/* As it was sent, but in one line, as the data of an event must be; in JSON a line ends between values only. */
static void put_span(mox_put *p, const char *before, mox_json_span v, const char *otherwise)
{
    mox_putf(p, "%s", before);
    if (mox_json_is_null(v)) mox_putf(p, "%s", otherwise);
    else
        for (size_t i = 0, n; i < v.n; i += n + 1) {
            for (n = 0; i + n < v.n && v.text[i + n] != '\n' && v.text[i + n] != '\r';) n++;
            mox_put_raw(p, v.text + i, n);
        }
}

/* One of the codes that OpenAI has for responses. */
static void put_error(mox_put *p, const mox_problem *problem)
{
    mox_putf(p, "{\"code\":\"%s\",\"message\":", problem->status < 500 ? "invalid_prompt" : "server_error");
    mox_put_string(p, problem->message);
    mox_putf(p, "}");
}

/* Its head, up to the output. */
static void put_head(mox_put *p, const mox_answer *a, response_state state)
{
    const bool cut = state == OVER && a->choices[0].stop == MOX_STOP_LENGTH;
    mox_putf(p, "{\"id\":\"resp_%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"error\":",
             mox_http_id(a->call), (long long)a->created,
             state == RUNNING  ? "in_progress"
             : state == FAILED ? "failed"
             : cut             ? "incomplete"
                               : "completed");
    if (state == FAILED) put_error(p, &a->problem);
    else mox_putf(p, "null");
    mox_putf(p, ",\"incomplete_details\":%s", cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    put_span(p, ",\"instructions\":", a->echo.instructions, "null");
    mox_putf(p, ",\"metadata\":{},\"model\":");
    mox_put_string(p, a->server->model_name);
}

/* How the reply was to be made. */
static void put_settings(mox_put *p, const mox_answer *a)
{
    const mox_echo *e = &a->echo;
    mox_putf(p, ",\"parallel_tool_calls\":%s,\"previous_response_id\":null", a->ask.single_call ? "false" : "true");
    put_span(p, ",\"reasoning\":{\"effort\":", e->effort, "null");
    put_span(p, ",\"summary\":", e->summary, "null");
    mox_putf(p, "},\"store\":false,\"temperature\":");
    mox_put_real(p, (double)a->ask.sampling.temperature);
    mox_putf(p, ",\"top_p\":");
    mox_put_real(p, (double)a->ask.sampling.top_p);
    put_span(p, ",\"text\":{\"format\":", e->format, "{\"type\":\"text\"}");
    if (!mox_json_is_null(e->verbosity)) put_span(p, ",\"verbosity\":", e->verbosity, "");
    put_span(p, "},\"tool_choice\":", e->tool_choice, "\"auto\"");
    put_span(p, ",\"tools\":", e->tools, "[]");
    mox_putf(p, ",\"truncation\":\"disabled\",\"max_output_tokens\":");
    if (a->ask.max_tokens >= 0) mox_putf(p, "%lld", (long long)a->ask.max_tokens);
    else mox_putf(p, "null");
}

static void put_usage(mox_put *p, const mox_answer *a)
{
    const mox_usage u = mox_answer_usage(a);
    mox_putf(p,
             "{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld},"
             "\"output_tokens\":%lld,"
             "\"output_tokens_details\":{\"reasoning_tokens\":%lld},\"total_tokens\":%lld}",
             (long long)u.prompt, (long long)u.reused, (long long)u.reply, (long long)u.thinking,
             (long long)(u.prompt + u.reply));
}

static void put_response(mox_put *p, const mox_answer *a, response_state state)
{
    const mox_choice *c = &a->choices[0];
    put_head(p, a, state);
    mox_putf(p, ",\"output\":[");
    if (state == OVER) mox_put_raw(p, mox_writer_text(&c->json.w), c->json.w.n);
    if (c->json.failed) p->failed = true;
    mox_putf(p, "]");
    put_settings(p, a);
    mox_putf(p, ",\"usage\":");
    if (state == OVER) put_usage(p, a);
    else mox_putf(p, "null");
    mox_putf(p, "}");
}

/* ---- streams ------------------------------------------------------------------------------------- */

static void put_event(mox_answer *a, const char *name)
{
    mox_putf(&a->out, "event: response.%s\ndata: {\"type\":\"response.%s\",\"sequence_number\":%lld", name,
             name, (long long)a->choices[0].n_events++);
}

static void put_place(mox_answer *a, const mox_choice *c, bool in_content)
{
    mox_putf(&a->out, ",\"item_id\":");
    put_item_id(&a->out, a, c->block, c->n_blocks - 1);
    mox_putf(&a->out, ",\"output_index\":%d", c->n_blocks - 1);
    if (in_content) mox_putf(&a->out, ",\"content_index\":0");
}

static void begin(mox_answer *a)
{
    static const char *const names[] = {"created", "in_progress"};
    for (int i = 0; i < 2; i++) {
        put_event(a, names[i]);
        mox_putf(&a->out, ",\"response\":");
        put_response(&a->out, a, RUNNING);
        mox_putf(&a->out, "}\n\n");
    }
}

static void begin_item(mox_answer *a, mox_choice *c, int kind, const mox_call *call)
{
    c->block = kind;
    put_event(a, "output_item.added");
    mox_putf(&a->out, ",\"output_index\":%d,\"item\":", c->n_blocks++);
    if (kind == CALL) put_call_item(&a->out, a, c->n_blocks - 1, call, BEGUN);
    else put_text_item(&a->out, a, kind, c->n_blocks - 1, BEGUN, NULL, 0);
    mox_putf(&a->out, "}\n\n");
    if (kind == CALL) return;
    put_event(a, "content_part.added");
    put_place(a, c, true);
    mox_putf(&a->out, ",\"part\":");
    put_text_part(&a->out, kind, "", 0);
    mox_putf(&a->out, "}\n\n");
}

static void end_text(mox_answer *a, mox_choice *c)
{
    const char *text = mox_writer_text(&c->pending.w);
    put_event(a, c->block == REASONING ? "reasoning_text.done" : "output_text.done");
    put_place(a, c, true);
    mox_putf(&a->out, c->block == REASONING ? ",\"text\":" : ",\"logprobs\":[],\"text\":");
    mox_put_json(&a->out, text, c->pending.w.n);
    mox_putf(&a->out, "}\n\n");
    put_event(a, "content_part.done");
    put_place(a, c, true);
    mox_putf(&a->out, ",\"part\":");
    put_text_part(&a->out, c->block, text, c->pending.w.n);
    mox_putf(&a->out, "}\n\n");
}

static void end_item(mox_answer *a, mox_choice *c, const mox_turn *turn, item_state state)
{
    mox_put item = {0};
    const int index = c->n_blocks - 1;
    if (c->block == NO_ITEM) return;
    if (c->block == CALL) {
        mox_message m;
        mox_turn_get_message(turn, &m);
        put_event(a, "function_call_arguments.done");
        put_place(a, c, false);
        mox_putf(&a->out, ",\"arguments\":");
        mox_put_string(&a->out, m.calls[c->call].arguments);
        mox_putf(&a->out, "}\n\n");
        put_call_item(&item, a, index, &m.calls[c->call], WHOLE); /* others are told as text */
    } else {
        end_text(a, c);
        put_text_item(&item, a, c->block, index, state, mox_writer_text(&c->pending.w), c->pending.w.n);
    }
    put_event(a, "output_item.done");
    mox_putf(&a->out, ",\"output_index\":%d,\"item\":", index);
    mox_put_raw(&a->out, mox_writer_text(&item.w), item.w.n);
    mox_putf(&a->out, "}\n\n");
    if (index > 0) mox_putf(&c->json, ",");
    mox_put_raw(&c->json, mox_writer_text(&item.w), item.w.n);
    if (item.failed || c->pending.failed) a->out.failed = true;
    mox_put_deinit(&item);
    mox_put_clear(&c->pending);
    c->block = NO_ITEM;
}

static void part(mox_answer *a, mox_choice *c, const mox_event *e)
{
    const int kind = e->part == MOX_PART_THINKING ? REASONING : e->part == MOX_PART_TEXT ? MESSAGE : CALL;
    if (kind != c->block || e->part == MOX_PART_CALL_NAME) {
        mox_message m;
        mox_turn_get_message(e->turn, &m);
        end_item(a, c, e->turn, WHOLE);
        c->call = e->call;
        begin_item(a, c, kind, kind == CALL ? &m.calls[e->call] : NULL);
    }
    if (e->part == MOX_PART_CALL_NAME || e->n == 0) return;
    put_event(a, kind == REASONING ? "reasoning_text.delta"
                 : kind == MESSAGE ? "output_text.delta"
                                   : "function_call_arguments.delta");
    put_place(a, c, kind != CALL);
    mox_putf(&a->out, kind == MESSAGE ? ",\"logprobs\":[],\"delta\":" : ",\"delta\":");
    mox_put_json(&a->out, e->text, e->n);
    mox_putf(&a->out, "}\n\n");
    if (kind != CALL) mox_put_raw(&c->pending, e->text, e->n);
}

/* ---- the end ------------------------------------------------------------------------------------- */

/* The limit of tokens cuts what the reply was in, unless that is a call, which is told when it is whole. */
static item_state last_state(const mox_choice *c, const mox_event *e, int kind)
{
    const int last = c->in_thinking ? REASONING : c->in_call ? CALL : MESSAGE;
    return e->stop == MOX_STOP_LENGTH && kind == last ? CUT : WHOLE;
}

static void put_items(mox_answer *a, mox_choice *c, const mox_message *m, const mox_event *e)
{
    mox_put *p = &c->json;
    const int32_t n_calls = mox_answer_calls(a, m);
    if (m->n_thinking > 0)
        put_text_item(p, a, REASONING, c->n_blocks++, last_state(c, e, REASONING), m->thinking, m->n_thinking);
    if (m->n_text > 0) {
        if (c->n_blocks > 0) mox_putf(p, ",");
        put_text_item(p, a, MESSAGE, c->n_blocks++, last_state(c, e, MESSAGE), m->text, m->n_text);
    }
    for (int32_t i = 0; i < n_calls; i++) {
        if (c->n_blocks > 0) mox_putf(p, ",");
        put_call_item(p, a, c->n_blocks++, &m->calls[i], WHOLE);
    }
}

static void done(mox_answer *a, mox_choice *c, const mox_event *e)
{
    if (a->ask.stream) {
        end_item(a, c, e->turn, last_state(c, e, c->block));
        return;
    }
    mox_message m;
    mox_turn_get_message(e->turn, &m);
    put_items(a, c, &m, e);
}

static void end(mox_answer *a)
{
    if (!a->ask.stream) {
        put_response(&a->out, a, OVER);
        return;
    }
    put_event(a, a->choices[0].stop == MOX_STOP_LENGTH ? "incomplete" : "completed");
    mox_putf(&a->out, ",\"response\":");
    put_response(&a->out, a, OVER);
    mox_putf(&a->out, "}\n\n");
}

static void broken(mox_answer *a, const mox_problem *problem)
{
    (void)problem; /* the answer's own */
    put_event(a, "failed");
    mox_putf(&a->out, ",\"response\":");
    put_response(&a->out, a, FAILED);
    mox_putf(&a->out, "}\n\n");
}

void mox_handle_responses(mox_server *s, mox_http_call *c)
{
    static const mox_api api = {.fields = API_RESPONSES,
                                .vendor = MOX_VENDOR_OPENAI,
                                .ping = ":\n\n",
                                .read = mox_responses_read,
                                .begin = begin,
                                .part = part,
                                .done = done,
                                .end = end,
                                .broken = broken};
    mox_answer_start(s, c, &api);
}
