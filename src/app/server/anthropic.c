/* app/server/anthropic.c -- /v1/messages and /v1/messages/count_tokens: the answers.
 *
 * Content is a row of blocks, in a stream each begun and ended before the next: thinking, text,
 * tool_use, as the model writes them. */
#include "app/server/anthropic.h"

enum { NO_BLOCK = 0, THINKING_BLOCK, TEXT_BLOCK, TOOL_BLOCK };

/* What stands for the signature of a thought: there is nobody to check it. */
static const char signature[] = "moxie";

static void put_event(mox_put *p, const char *name)
{
    mox_putf(p, "event: %s\ndata: {\"type\":\"%s\"", name, name);
}

static void put_usage(mox_put *p, const mox_choice *c)
{
    mox_putf(p,
             "\"usage\":{\"input_tokens\":%lld,\"cache_read_input_tokens\":%lld,"
             "\"cache_creation_input_tokens\":0,\"output_tokens\":%lld}",
             (long long)(c->n_prompt - c->n_reused), (long long)c->n_reused, (long long)c->n_reply);
}

static void put_head(mox_put *p, const mox_answer *a)
{
    mox_putf(
        p, "{\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", mox_http_id(a->call));
    mox_put_string(p, a->server->model_name);
}

/* ---- streams ------------------------------------------------------------------------------------- */

static void begin(mox_answer *a)
{
    mox_choice c = a->choices[0];
    c.n_prompt = a->asked.tokens.n; /* how much of it is reused is known later, and told at the end */
    put_event(&a->out, "message_start");
    mox_putf(&a->out, ",\"message\":");
    put_head(&a->out, a);
    mox_putf(&a->out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
    put_usage(&a->out, &c);
    mox_putf(&a->out, "}}\n\n");
    put_event(&a->out, "ping");
    mox_putf(&a->out, "}\n\n");
}

static void end_block(mox_answer *a, mox_choice *c)
{
    if (c->block == NO_BLOCK) return;
    if (c->block == THINKING_BLOCK) {
        put_event(&a->out, "content_block_delta");
        mox_putf(&a->out, ",\"index\":%d,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"%s\"}}\n\n",
                 c->n_blocks - 1, signature);
    }
    put_event(&a->out, "content_block_stop");
    mox_putf(&a->out, ",\"index\":%d}\n\n", c->n_blocks - 1);
    c->block = NO_BLOCK;
}

static void begin_block(mox_answer *a, mox_choice *c, int kind, const mox_event *e)
{
    mox_put *p = &a->out;
    end_block(a, c);
    c->block = kind;
    put_event(p, "content_block_start");
    mox_putf(p, ",\"index\":%d,\"content_block\":", c->n_blocks++);
    if (kind == THINKING_BLOCK)
        mox_putf(p, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n");
    if (kind == TEXT_BLOCK) mox_putf(p, "{\"type\":\"text\",\"text\":\"\"}}\n\n");
    if (kind != TOOL_BLOCK) return;
    mox_message m;
    mox_turn_get_message(e->turn, &m);
    mox_putf(p, "{\"type\":\"tool_use\",\"id\":");
    mox_put_string(p, m.calls[e->call].id);
    mox_putf(p, ",\"name\":");
    mox_put_json(p, e->text, e->n);
    mox_putf(p, ",\"input\":{}}}\n\n");
}

static void part(mox_answer *a, mox_choice *c, const mox_event *e)
{
    static const struct {
        int block;
        const char *delta, *field;
    } kinds[] = {
        [MOX_PART_TEXT] = {TEXT_BLOCK, "text_delta", "text"},
        [MOX_PART_THINKING] = {THINKING_BLOCK, "thinking_delta", "thinking"},
        [MOX_PART_CALL_NAME] = {TOOL_BLOCK, NULL, NULL},
        [MOX_PART_CALL_ARGUMENTS] = {TOOL_BLOCK, "input_json_delta", "partial_json"},
    };
    const int kind = kinds[e->part].block;
    if (e->part == MOX_PART_CALL_NAME || kind != c->block) begin_block(a, c, kind, e);
    if (!kinds[e->part].delta || e->n == 0) return;
    put_event(&a->out, "content_block_delta");
    mox_putf(&a->out, ",\"index\":%d,\"delta\":{\"type\":\"%s\",\"%s\":", c->n_blocks - 1,
             kinds[e->part].delta, kinds[e->part].field);
    mox_put_json(&a->out, e->text, e->n);
    mox_putf(&a->out, "}}\n\n");
}

/* ---- the end ------------------------------------------------------------------------------------- */

static void put_stop(mox_put *p, const mox_event *e)
{
    const char *why = e->stop == MOX_STOP_LENGTH   ? "max_tokens"
                      : e->stop == MOX_STOP_CALLS  ? "tool_use"
                      : e->stop == MOX_STOP_STRING ? "stop_sequence"
                                                   : "end_turn";
    mox_putf(p, "\"stop_reason\":\"%s\",\"stop_sequence\":", why);
    mox_put_string(p, e->stop == MOX_STOP_STRING ? mox_turn_stop_string(e->turn) : NULL);
}

static void put_content(mox_put *p, const mox_answer *a, const mox_message *m)
{
    bool any = false;
    mox_putf(p, "[");
    if (m->n_thinking > 0) {
        mox_putf(p, "{\"type\":\"thinking\",\"thinking\":");
        mox_put_json(p, m->thinking, m->n_thinking);
        mox_putf(p, ",\"signature\":\"%s\"}", signature);
        any = true;
    }
    if (m->n_text > 0) {
        mox_putf(p, "%s{\"type\":\"text\",\"text\":", any ? "," : "");
        mox_put_json(p, m->text, m->n_text);
        mox_putf(p, "}");
        any = true;
    }
    for (int32_t i = 0; i < mox_answer_calls(a, m); i++) {
        mox_putf(p, "%s{\"type\":\"tool_use\",\"id\":", any ? "," : "");
        mox_put_string(p, m->calls[i].id);
        mox_putf(p, ",\"name\":");
        mox_put_string(p, m->calls[i].name);
        mox_putf(p, ",\"input\":%s}", m->calls[i].arguments);
        any = true;
    }
    mox_putf(p, "]");
}

static void done(mox_answer *a, mox_choice *c, const mox_event *e)
{
    if (a->ask.stream) {
        end_block(a, c);
        put_event(&a->out, "message_delta");
        mox_putf(&a->out, ",\"delta\":{");
        put_stop(&a->out, e);
        mox_putf(&a->out, "},");
        put_usage(&a->out, c);
        mox_putf(&a->out, "}\n\n");
        return;
    }
    mox_message m;
    mox_turn_get_message(e->turn, &m);
    put_head(&c->json, a);
    mox_putf(&c->json, ",\"content\":");
    put_content(&c->json, a, &m);
    mox_putf(&c->json, ",");
    put_stop(&c->json, e);
    mox_putf(&c->json, ",");
    put_usage(&c->json, c);
    mox_putf(&c->json, "}");
}

static void end(mox_answer *a)
{
    const mox_put *json = &a->choices[0].json;
    if (a->ask.stream) {
        put_event(&a->out, "message_stop");
        mox_putf(&a->out, "}\n\n");
        return;
    }
    mox_put_raw(&a->out, mox_writer_text(&json->w), json->w.n);
    if (json->failed) a->out.failed = true;
}

static void broken(mox_answer *a, const mox_problem *problem)
{
    mox_putf(&a->out, "event: error\ndata: ");
    mox_problem_put(problem, MOX_VENDOR_ANTHROPIC, mox_http_id(a->call), &a->out);
    mox_putf(&a->out, "\n\n");
}

static const mox_api api = {.fields = API_MESSAGES,
                            .vendor = MOX_VENDOR_ANTHROPIC,
                            .ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                            .read = mox_anthropic_read,
                            .begin = begin,
                            .part = part,
                            .done = done,
                            .end = end,
                            .broken = broken};

void mox_handle_messages(mox_server *s, mox_http_call *c) { mox_answer_start(s, c, &api); }

static mox_status read_to_count(mox_answer *a, const mox_fields *f, mox_err *err)
{
    a->ask.only_counted = true;
    return mox_anthropic_read(a, f, err);
}

void mox_handle_count_tokens(mox_server *s, mox_http_call *c)
{
    static const mox_api counting = {.fields = API_MESSAGES, .vendor = MOX_VENDOR_ANTHROPIC, .read = read_to_count};
    const mox_answer *a = mox_answer_read(s, c, &counting);
    if (!a) return;
    mox_put p = {0};
    mox_putf(&p, "{\"input_tokens\":%lld}", (long long)a->asked.tokens.n);
    mox_http_answer(c, 200, "application/json", &p);
}
