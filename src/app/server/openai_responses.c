/* app/server/openai_responses.c -- /v1/responses: the answers.
 *
 * Output is a row of items: reasoning, message, function_call.  In a stream each is added,
 * filled and done before the next; finished ones collect in the choice's json for the response
 * as a whole, which the last event has. */
#include "app/server/responses.h"

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

/* whole: with its content, else as it begins. */
static void put_text_item(mox_put *p, const mox_answer *a, int kind, int index, bool whole, const char *text,
                          size_t n)
{
    mox_putf(p, "{\"id\":");
    put_item_id(p, a, kind, index);
    if (kind == REASONING) mox_putf(p, ",\"type\":\"reasoning\",\"summary\":[]");
    else mox_putf(p, ",\"type\":\"message\",\"role\":\"assistant\"");
    mox_putf(p, ",\"status\":\"%s\",\"content\":[", whole ? "completed" : "in_progress");
    if (whole) put_text_part(p, kind, text, n);
    mox_putf(p, "]}");
}

static void put_call_item(mox_put *p, const mox_answer *a, int index, const mox_call *call, bool whole)
{
    mox_putf(p, "{\"id\":");
    put_item_id(p, a, CALL, index);
    mox_putf(
        p, ",\"type\":\"function_call\",\"status\":\"%s\",\"call_id\":", whole ? "completed" : "in_progress");
    mox_put_string(p, call->id);
    mox_putf(p, ",\"name\":");
    mox_put_string(p, call->name);
    mox_putf(p, ",\"arguments\":");
    mox_put_string(p, whole ? call->arguments : "");
    mox_putf(p, "}");
}

/* ---- the response as a whole --------------------------------------------------------------------- */

static void put_response(mox_put *p, const mox_answer *a, bool over)
{
    const mox_choice *c = &a->choices[0];
    const mox_usage u = mox_answer_usage(a);
    const bool cut = over && c->stop == MOX_STOP_LENGTH;
    mox_putf(p,
             "{\"id\":\"resp_%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"error\":"
             "null,\"incomplete_details\":%s,"
             "\"instructions\":null,\"metadata\":{},\"model\":",
             mox_http_id(a->call), (long long)a->created,
             !over ? "in_progress"
             : cut ? "incomplete"
                   : "completed",
             cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    mox_put_string(p, a->server->model_name);
    mox_putf(p, ",\"output\":[");
    if (over) mox_put_raw(p, mox_writer_text(&c->json.w), c->json.w.n);
    if (c->json.failed) p->failed = true;
    mox_putf(p,
             "],\"parallel_tool_calls\":%s,\"previous_response_id\":null,\"reasoning\":{\"effort\":null,"
             "\"summary\":null},"
             "\"store\":false,\"temperature\":",
             a->ask.single_call ? "false" : "true");
    mox_put_real(p, (double)a->ask.sampling.temperature);
    mox_putf(p, ",\"top_p\":");
    mox_put_real(p, (double)a->ask.sampling.top_p);
    mox_putf(p, ",\"text\":{\"format\":{\"type\":\"text\"}},\"tool_choice\":\"auto\",\"tools\":");
    mox_put_raw(p, "[]", 2);
    mox_putf(p, ",\"truncation\":\"disabled\",\"max_output_tokens\":");
    if (a->ask.max_tokens >= 0) mox_putf(p, "%lld", (long long)a->ask.max_tokens);
    else mox_putf(p, "null");
    if (!over) {
        mox_putf(p, ",\"usage\":null}");
        return;
    }
    mox_putf(p,
             ",\"usage\":{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld},"
             "\"output_tokens\":%lld,"
             "\"output_tokens_details\":{\"reasoning_tokens\":%lld},\"total_tokens\":%lld}}",
             (long long)u.prompt, (long long)u.reused, (long long)u.reply, (long long)u.thinking,
             (long long)(u.prompt + u.reply));
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
        put_response(&a->out, a, false);
        mox_putf(&a->out, "}\n\n");
    }
}

static void begin_item(mox_answer *a, mox_choice *c, int kind, const mox_call *call)
{
    c->block = kind;
    put_event(a, "output_item.added");
    mox_putf(&a->out, ",\"output_index\":%d,\"item\":", c->n_blocks++);
    if (kind == CALL) put_call_item(&a->out, a, c->n_blocks - 1, call, false);
    else put_text_item(&a->out, a, kind, c->n_blocks - 1, false, NULL, 0);
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

static void end_item(mox_answer *a, mox_choice *c, const mox_turn *turn)
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
        put_call_item(&item, a, index, &m.calls[c->call], true);
    } else {
        end_text(a, c);
        put_text_item(&item, a, c->block, index, true, mox_writer_text(&c->pending.w), c->pending.w.n);
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
        end_item(a, c, e->turn);
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

static void put_items(mox_answer *a, mox_choice *c, const mox_message *m)
{
    mox_put *p = &c->json;
    if (m->n_thinking > 0) put_text_item(p, a, REASONING, c->n_blocks++, true, m->thinking, m->n_thinking);
    if (m->n_text > 0) {
        if (c->n_blocks > 0) mox_putf(p, ",");
        put_text_item(p, a, MESSAGE, c->n_blocks++, true, m->text, m->n_text);
    }
    for (int32_t i = 0; i < mox_answer_calls(a, m); i++) {
        if (c->n_blocks > 0) mox_putf(p, ",");
        put_call_item(p, a, c->n_blocks++, &m->calls[i], true);
    }
}

static void done(mox_answer *a, mox_choice *c, const mox_event *e)
{
    if (a->ask.stream) {
        end_item(a, c, e->turn);
        return;
    }
    mox_message m;
    mox_turn_get_message(e->turn, &m);
    put_items(a, c, &m);
}

static void end(mox_answer *a)
{
    if (!a->ask.stream) {
        put_response(&a->out, a, true);
        return;
    }
    put_event(a, a->choices[0].stop == MOX_STOP_LENGTH ? "incomplete" : "completed");
    mox_putf(&a->out, ",\"response\":");
    put_response(&a->out, a, true);
    mox_putf(&a->out, "}\n\n");
}

static void broken(mox_answer *a, const mox_problem *problem)
{
    put_event(a, "failed");
    mox_putf(&a->out,
             ",\"response\":{\"id\":\"resp_%s\",\"object\":\"response\",\"status\":\"failed\",\"output\":[],"
             "\"error\":{\"code\":\"server_error\",\"message\":",
             mox_http_id(a->call));
    mox_put_string(&a->out, problem->message);
    mox_putf(&a->out, "}}}\n\n");
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
