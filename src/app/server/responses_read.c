/* app/server/responses_read.c -- the Responses API's items as chat messages.
 *
 * Items of an assistant that follow each other (reasoning, message, function calls) are one
 * message.  Nothing is kept between requests, so an id of an earlier response is refused. */
#include "app/server/responses.h"

#include "app/server/structure.h"
#include "base/alloc.h"
#include "base/json_fields.h"

#include <stdio.h>

typedef struct item_reader {
    mox_answer *answer;
    mox_put *out;
    size_t n_out, i;
    mox_put text, thinking, calls; /* of the assistant's message that is being put together */
    bool open;
    int n_calls;
} item_reader;

enum { TYPE, ROLE, CONTENT, NAME, ARGUMENTS, CALL_ID, OUTPUT, N_KEYS };
static const char *const keys[N_KEYS] = {"type", "role", "content", "name", "arguments", "call_id", "output"};

static void begin_message(item_reader *r, const char *role)
{
    mox_putf(r->out, "%s{\"role\":\"%s\",\"content\":", r->n_out++ > 0 ? "," : "", role);
}

static void close_assistant(item_reader *r)
{
    if (!r->open) return;
    begin_message(r, "assistant");
    mox_put_json(r->out, mox_writer_text(&r->text.w), r->text.w.n);
    if (r->thinking.w.n > 0) {
        mox_putf(r->out, ",\"reasoning_content\":");
        mox_put_json(r->out, mox_writer_text(&r->thinking.w), r->thinking.w.n);
    }
    if (r->n_calls > 0) {
        mox_putf(r->out, ",\"tool_calls\":[");
        mox_put_raw(r->out, mox_writer_text(&r->calls.w), r->calls.w.n);
        mox_putf(r->out, "]");
    }
    mox_putf(r->out, "}");
    if (r->text.failed || r->thinking.failed || r->calls.failed) r->out->failed = true;
    mox_put_clear(&r->text);
    mox_put_clear(&r->thinking);
    mox_put_clear(&r->calls);
    r->n_calls = 0;
    r->open = false;
}

/* The text of a field of the item that is read. */
static mox_status put_text(const item_reader *r, mox_json_span value, const char *field, mox_put *out, mox_err *err)
{
    char what[64];
    (void)snprintf(what, sizeof what, "input[%zu].%s", r->i, field);
    return mox_content_text(value, what, out, err);
}

/* Messages that follow each other stay lines of their own. */
static mox_status add_said(item_reader *r, mox_json_span content, mox_err *err)
{
    const size_t before = r->text.w.n;
    if (before > 0) mox_put_raw(&r->text, "\n", 1);
    const size_t begin = r->text.w.n;
    MOX_TRY(put_text(r, content, "content", &r->text, err));
    if (r->text.w.n == begin) r->text.w.n = before;
    return MOX_OK;
}

static mox_status add_message(item_reader *r, const mox_json_span *v, mox_err *err)
{
    mox_put text = {0};
    if (mox_span_is(v[ROLE], "assistant")) {
        if (r->n_calls > 0) close_assistant(r);
        r->open = true;
        return add_said(r, v[CONTENT], err);
    }
    const bool user = mox_span_is(v[ROLE], "user");
    if (!user && !mox_span_is(v[ROLE], "system") && !mox_span_is(v[ROLE], "developer"))
        return mox_fail(err, MOX_E_ARG, "input[%zu].role must be user, assistant, system or developer", r->i);
    close_assistant(r);
    const mox_status status = put_text(r, v[CONTENT], "content", &text, err);
    begin_message(r, user ? "user" : "system");
    mox_put_json(r->out, mox_writer_text(&text.w), text.w.n);
    mox_putf(r->out, "}");
    if (text.failed) r->out->failed = true;
    mox_put_deinit(&text);
    return status;
}

/* The text of a JSON object, as what was said is rendered again. */
static mox_status check_arguments(const item_reader *r, mox_json_span arguments, mox_err *err)
{
    char *text = NULL;
    mox_json_span object = {.name = "arguments"};
    MOX_TRY(mox_json_get_string(arguments, "arguments", &text, &object.n, err));
    object.text = text;
    mox_status status = mox_json_fields(object, "arguments", NULL, 0, NULL, err);
    mox_free(text);
    if (status == MOX_E_FORMAT)
        status = mox_fail(err, MOX_E_ARG, "input[%zu].arguments must be a string with the text of a JSON object", r->i);
    return status;
}

static mox_status add_call(item_reader *r, const mox_json_span *v, mox_err *err)
{
    if (!mox_span_is_string(v[NAME]) || !mox_span_is_string(v[CALL_ID]) || !mox_span_is_string(v[ARGUMENTS]))
        return mox_fail(err, MOX_E_ARG, "input[%zu] is a function_call without name, call_id or arguments",
                        r->i);
    MOX_TRY(check_arguments(r, v[ARGUMENTS], err));
    r->open = true;
    mox_putf(&r->calls, "%s{\"id\":", r->n_calls++ > 0 ? "," : "");
    mox_put_raw(&r->calls, v[CALL_ID].text, v[CALL_ID].n);
    mox_putf(&r->calls, ",\"type\":\"function\",\"function\":{\"name\":");
    mox_put_raw(&r->calls, v[NAME].text, v[NAME].n);
    mox_putf(&r->calls, ",\"arguments\":");
    mox_put_raw(&r->calls, v[ARGUMENTS].text, v[ARGUMENTS].n);
    mox_putf(&r->calls, "}}");
    return MOX_OK;
}

static mox_status add_output(item_reader *r, const mox_json_span *v, mox_err *err)
{
    mox_put text = {0};
    if (!mox_span_is_string(v[CALL_ID]))
        return mox_fail(err, MOX_E_ARG, "input[%zu] is a function_call_output without call_id", r->i);
    close_assistant(r);
    const mox_status status = put_text(r, v[OUTPUT], "output", &text, err);
    begin_message(r, "tool");
    mox_put_json(r->out, mox_writer_text(&text.w), text.w.n);
    mox_putf(r->out, ",\"tool_call_id\":");
    mox_put_raw(r->out, v[CALL_ID].text, v[CALL_ID].n);
    mox_putf(r->out, "}");
    if (text.failed) r->out->failed = true;
    mox_put_deinit(&text);
    return status;
}

static mox_status add_thought(void *user, mox_json_span part, mox_err *err)
{
    static const char *const names[] = {"text"};
    item_reader *r = user;
    mox_json_span text;
    MOX_TRY(mox_json_fields(part, "reasoning", names, 1, &text, err));
    return put_text(r, text, "content", &r->thinking, err);
}

static mox_status add_item(void *user, mox_json_span item, mox_err *err)
{
    item_reader *r = user;
    mox_json_span v[N_KEYS];
    if (!mox_span_is_object(item)) return mox_fail(err, MOX_E_ARG, "input[%zu] must be an object", r->i);
    MOX_TRY(mox_json_fields(item, "an item of input", keys, N_KEYS, v, err));
    mox_status status;
    if (mox_json_is_null(v[TYPE]) || mox_span_is(v[TYPE], "message")) {
        status = add_message(r, v, err);
    } else if (mox_span_is(v[TYPE], "function_call")) {
        status = add_call(r, v, err);
    } else if (mox_span_is(v[TYPE], "function_call_output")) {
        status = add_output(r, v, err);
    } else if (mox_span_is(v[TYPE], "reasoning")) {
        if (r->open && (r->text.w.n > 0 || r->n_calls > 0)) close_assistant(r);
        r->open = true;
        status = mox_span_is_array(v[CONTENT]) ? mox_json_each(v[CONTENT], "reasoning", add_thought, r, err)
                                               : MOX_OK;
    } else {
        status = mox_fail(err, MOX_E_ARG, "input[%zu] is of type %.*s, which this server does not take", r->i,
                          (int)(v[TYPE].n < 60 ? v[TYPE].n : 60), v[TYPE].text);
    }
    r->i++;
    return status;
}

static mox_status read_input(mox_answer *a, const mox_fields *f, mox_err *err)
{
    item_reader r = {.answer = a, .out = &a->ask.messages};
    const mox_field_value *input = &f->v[FIELD_INPUT], *instructions = &f->v[FIELD_INSTRUCTIONS];
    mox_status status = MOX_OK;
    a->ask.messages_field = "input";
    mox_putf(r.out, "[");
    if (instructions->given && instructions->raw.n > 2) {
        begin_message(&r, "system");
        mox_put_raw(r.out, instructions->raw.text, instructions->raw.n);
        mox_putf(r.out, "}");
    }
    if (input->type == IS_STRING) {
        begin_message(&r, "user");
        mox_put_raw(r.out, input->raw.text, input->raw.n);
        mox_putf(r.out, "}");
    } else {
        status = mox_json_each(input->raw, "input", add_item, &r, err);
        close_assistant(&r);
    }
    mox_putf(r.out, "]");
    mox_put_deinit(&r.text);
    mox_put_deinit(&r.thinking);
    mox_put_deinit(&r.calls);
    return status;
}

static mox_status add_tool(void *user, mox_json_span tool, mox_err *err)
{
    static const char *const names[] = {"type", "name", "description", "parameters", "strict"};
    item_reader *r = user;
    mox_json_span v[5];
    if (!mox_span_is_object(tool)) return mox_fail(err, MOX_E_ARG, "tools[%zu] must be an object", r->i);
    MOX_TRY(mox_json_fields(tool, "a tool", names, 5, v, err));
    if (!mox_span_is(v[0], "function")) { /* one that the vendor's own servers run */
        char note[160];
        (void)snprintf(note, sizeof note, "left out a tool of type %.*s", (int)(v[0].n < 80 ? v[0].n : 80),
                       v[0].text ? v[0].text : "null");
        mox_log_note(&r->answer->server->log, mox_http_id(r->answer->call), note);
        r->i++;
        return MOX_OK;
    }
    if (!mox_span_is_string(v[1])) return mox_fail(err, MOX_E_ARG, "tools[%zu] has no name", r->i);
    if (!mox_json_is_null(v[3]) && !mox_span_is_object(v[3]))
        return mox_fail(err, MOX_E_ARG, "tools[%zu].parameters must be an object", r->i);
    mox_putf(r->out, "%s{\"type\":\"function\",\"function\":{", r->n_out++ > 0 ? "," : "");
    for (int k = 1, any = 0; k < 5; k++) {
        if (mox_json_is_null(v[k])) continue;
        mox_putf(r->out, "%s\"%s\":", any++ > 0 ? "," : "", names[k]);
        mox_put_raw(r->out, v[k].text, v[k].n);
    }
    mox_putf(r->out, "}}");
    r->i++;
    return MOX_OK;
}

static mox_status read_tools(mox_answer *a, const mox_fields *f, mox_err *err)
{
    item_reader r = {.answer = a, .out = &a->ask.tools};
    if (!f->v[FIELD_TOOLS].given) return MOX_OK;
    mox_putf(r.out, "[");
    MOX_TRY(mox_json_each(f->v[FIELD_TOOLS].raw, "tools", add_tool, &r, err));
    mox_putf(r.out, "]");
    if (r.n_out == 0) mox_put_clear(r.out);
    return MOX_OK;
}

static mox_status read_echo(mox_echo *e, const mox_fields *f, mox_err *err)
{
    static const char *const reasoning[] = {"effort", "summary"}, *const text[] = {"format", "verbosity"};
    mox_json_span v[2];
    e->instructions = f->v[FIELD_INSTRUCTIONS].raw;
    e->tools = f->v[FIELD_TOOLS].raw;
    e->tool_choice = f->v[FIELD_TOOL_CHOICE].raw;
    if (f->v[FIELD_REASONING].given) {
        MOX_TRY(mox_json_fields(f->v[FIELD_REASONING].raw, "reasoning", reasoning, 2, v, err));
        e->effort = v[0];
        e->summary = v[1];
    }
    if (!f->v[FIELD_TEXT].given) return MOX_OK;
    MOX_TRY(mox_json_fields(f->v[FIELD_TEXT].raw, "text", text, 2, v, err));
    e->format = v[0];
    e->verbosity = v[1];
    return MOX_OK;
}

/* A stream has all of it twice before its client can have read anything, and must not lose the client for that. */
static void limit_echo(mox_echo *e)
{
    const size_t n = e->instructions.n + e->tools.n + e->tool_choice.n + e->format.n + e->verbosity.n + e->effort.n + e->summary.n;
    if (n > MOX_HTTP_OUT_MAX / 4) *e = (mox_echo){0};
}

mox_status mox_responses_read(mox_answer *a, const mox_fields *f, mox_err *err)
{
    if (f->v[FIELD_PREVIOUS].given)
        return mox_fail(
            err, MOX_E_ARG,
            "previous_response_id: this server keeps nothing; send the whole conversation as input");
    if (f->v[FIELD_CONVERSATION].given)
        return mox_fail(err, MOX_E_ARG,
                        "conversation: this server keeps nothing; send the whole conversation as input");
    if (mox_field_on(f, FIELD_BACKGROUND, false))
        return mox_fail(err, MOX_E_ARG, "background is not supported; leave it out");
    if (!f->v[FIELD_INPUT].given) return mox_fail(err, MOX_E_ARG, "input is missing");
    MOX_TRY(read_input(a, f, err));
    MOX_TRY(read_tools(a, f, err));
    MOX_TRY(read_echo(&a->echo, f, err));
    if (f->v[FIELD_REASONING].given)
        MOX_TRY(mox_ask_read_effort(&a->ask, a->echo.effort, "reasoning.effort", err));
    if (f->v[FIELD_TOP_LOGPROBS].given && f->v[FIELD_TOP_LOGPROBS].number > 0)
        return mox_fail(err, MOX_E_ARG, "top_logprobs is not supported here; /v1/chat/completions has it");
    if (f->v[FIELD_TOOL_CHOICE].given)
        MOX_TRY(mox_structure_read_tool_choice(&a->ask, f->v[FIELD_TOOL_CHOICE].raw, err));
    if (f->v[FIELD_TEXT].given)
        MOX_TRY(mox_structure_read_format(&a->ask, a->echo.format, "text.format", err));
    limit_echo(&a->echo);
    return MOX_OK;
}
