/* app/server/anthropic_read.c -- Anthropic's messages in OpenAI's shapes.
 *
 * A user's tool_result blocks become messages of role tool, in front of the rest of its text;
 * an assistant's thinking, text and tool_use blocks become one message.  Arguments are copied
 * as they are spelled.  One thing is changed: the stamp that Claude Code puts into its system
 * prompt and that differs with every request, which would keep prompts from beginning alike. */
#include "app/server/anthropic.h"

#include "app/server/structure.h"
#include "base/alloc.h"
#include "base/json_fields.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

typedef struct translation {
    mox_answer *answer;
    mox_put *out;
    size_t n_out, i; /* messages written; the message that is read */
} translation;

static mox_status wrong(const translation *t, mox_err *err, const char *words)
{
    return mox_fail(err, MOX_E_ARG, "messages[%zu]%s", t->i, words);
}

static void begin_message(translation *t, const char *role)
{
    mox_putf(t->out, "%s{\"role\":\"%s\",\"content\":", t->n_out++ > 0 ? "," : "", role);
}

/* ---- system -------------------------------------------------------------------------------------- */

/* "x-anthropic-billing-header: ... cch=1a2b3;": the digits become zeros. */
static void settle_stamp(char *text)
{
    char *stamp = strstr(text, "x-anthropic-billing-header:");
    char *value = stamp ? strstr(stamp, "cch=") : NULL;
    if (!value) return;
    for (value += 4; isxdigit((unsigned char)*value); value++) *value = '0';
}

static mox_status write_system(translation *t, mox_json_span content, mox_err *err)
{
    mox_put text = {0};
    if (mox_json_is_null(content)) return MOX_OK;
    mox_status status = mox_content_text(content, "system", &text, err);
    if (status == MOX_OK && text.w.n > 0) {
        settle_stamp(text.w.bytes.data);
        begin_message(t, "system");
        mox_put_json(t->out, mox_writer_text(&text.w), text.w.n);
        mox_putf(t->out, "}");
    }
    if (text.failed) t->out->failed = true;
    mox_put_deinit(&text);
    return status;
}

/* ---- blocks -------------------------------------------------------------------------------------- */

enum { TYPE, TEXT, THINKING, ID, NAME, INPUT, RESULT_OF, CONTENT, IS_ERROR, N_KEYS };
static const char *const keys[N_KEYS] = {"type",  "text",        "thinking", "id",      "name",
                                         "input", "tool_use_id", "content",  "is_error"};

typedef struct block_reader {
    translation *t;
    bool assistant;
    mox_put text, thinking, calls;
    bool any_text, any_result;
    int n_calls;
} block_reader;

/* The text in a block of the message that is read. */
static mox_status put_text(const translation *t, mox_json_span value, const char *field, mox_put *out, mox_err *err)
{
    char what[64];
    (void)snprintf(what, sizeof what, "messages[%zu].content: %s", t->i, field);
    return mox_content_text(value, what, out, err);
}

static mox_status add_text(const block_reader *b, mox_put *to, bool *any, mox_json_span value, const char *field,
                           mox_err *err)
{
    if (*any) mox_put_raw(to, "\n", 1);
    *any = true;
    return put_text(b->t, value, field, to, err);
}

static mox_status add_result(block_reader *b, const mox_json_span *v, mox_err *err)
{
    translation *t = b->t;
    mox_put text = {0};
    bool is_error = false;
    if (!mox_span_is_string(v[RESULT_OF])) return wrong(t, err, " has a tool_result without tool_use_id");
    mox_status status = mox_json_get_bool(v[IS_ERROR], "is_error", &is_error, err);
    if (is_error) mox_put_raw(&text, "Error: ", 7); /* templates have no other place for it */
    if (status == MOX_OK) status = put_text(t, v[CONTENT], "tool_result.content", &text, err);
    if (status == MOX_OK) {
        begin_message(t, "tool");
        mox_put_json(t->out, mox_writer_text(&text.w), text.w.n);
        mox_putf(t->out, ",\"tool_call_id\":");
        mox_put_raw(t->out, v[RESULT_OF].text, v[RESULT_OF].n);
        mox_putf(t->out, "}");
    }
    b->any_result = true;
    if (text.failed) t->out->failed = true;
    mox_put_deinit(&text);
    return status;
}

static mox_status add_call(block_reader *b, const mox_json_span *v, mox_err *err)
{
    if (!mox_span_is_string(v[NAME])) return wrong(b->t, err, " has a tool_use without a name");
    if (!mox_span_is_object(v[INPUT])) return wrong(b->t, err, " has a tool_use whose input is no object");
    mox_putf(&b->calls, "%s{\"id\":", b->n_calls++ > 0 ? "," : "");
    if (mox_span_is_string(v[ID])) mox_put_raw(&b->calls, v[ID].text, v[ID].n);
    else mox_putf(&b->calls, "\"\"");
    mox_putf(&b->calls, ",\"type\":\"function\",\"function\":{\"name\":");
    mox_put_raw(&b->calls, v[NAME].text, v[NAME].n);
    mox_putf(&b->calls, ",\"arguments\":");
    mox_put_raw(&b->calls, v[INPUT].text, v[INPUT].n);
    mox_putf(&b->calls, "}}");
    return MOX_OK;
}

static mox_status read_block(void *user, mox_json_span block, mox_err *err)
{
    block_reader *b = user;
    mox_json_span v[N_KEYS];
    if (!mox_span_is_object(block)) return wrong(b->t, err, ".content has a block that is no object");
    MOX_TRY(mox_json_fields(block, "a block of content", keys, N_KEYS, v, err));
    if (mox_span_is(v[TYPE], "text")) {
        if (!mox_span_is_string(v[TEXT])) return wrong(b->t, err, ".content has a text block without its text");
        return add_text(b, &b->text, &b->any_text, v[TEXT], "text", err);
    }
    if (!b->assistant && mox_span_is(v[TYPE], "tool_result")) return add_result(b, v, err);
    if (b->assistant && mox_span_is(v[TYPE], "thinking")) {
        bool any = b->thinking.w.n > 0;
        return add_text(b, &b->thinking, &any, v[THINKING], "thinking", err);
    }
    if (b->assistant && mox_span_is(v[TYPE], "redacted_thinking")) return MOX_OK; /* nobody can read it */
    if (b->assistant && mox_span_is(v[TYPE], "tool_use")) return add_call(b, v, err);
    return mox_fail(err, MOX_E_ARG,
                    "messages[%zu].content has a block of type %.*s, which this server does not take",
                    b->t->i, (int)(v[TYPE].n < 60 ? v[TYPE].n : 60), v[TYPE].text ? v[TYPE].text : "null");
}

static void write_blocks(block_reader *b, const char *role)
{
    mox_put *out = b->t->out;
    if (b->any_result && !b->any_text) return;
    begin_message(b->t, role);
    mox_put_json(out, mox_writer_text(&b->text.w), b->text.w.n);
    if (b->thinking.w.n > 0) {
        mox_putf(out, ",\"reasoning_content\":");
        mox_put_json(out, mox_writer_text(&b->thinking.w), b->thinking.w.n);
    }
    if (b->n_calls > 0) {
        mox_putf(out, ",\"tool_calls\":[");
        mox_put_raw(out, mox_writer_text(&b->calls.w), b->calls.w.n);
        mox_putf(out, "]");
    }
    mox_putf(out, "}");
}

static mox_status write_message(void *user, mox_json_span message, mox_err *err)
{
    static const char *const names[] = {"role", "content"};
    translation *t = user;
    mox_json_span v[2];
    if (!mox_span_is_object(message)) return wrong(t, err, " must be an object");
    MOX_TRY(mox_json_fields(message, "a message", names, 2, v, err));
    if (mox_span_is(v[0], "system")) {
        t->i++;
        return write_system(t, v[1], err);
    }
    const bool assistant = mox_span_is(v[0], "assistant");
    if (!assistant && !mox_span_is(v[0], "user"))
        return wrong(t, err, ".role must be user, assistant or system");
    if (!mox_span_is_string(v[1]) && !mox_span_is_array(v[1]))
        return wrong(t, err, ".content must be a string or an array of blocks");
    if (mox_span_is_string(v[1])) {
        begin_message(t, assistant ? "assistant" : "user");
        mox_put_raw(t->out, v[1].text, v[1].n);
        mox_putf(t->out, "}");
        t->i++;
        return MOX_OK;
    }
    block_reader b = {.t = t, .assistant = assistant};
    const mox_status status = mox_json_each(v[1], "content", read_block, &b, err);
    if (status == MOX_OK) write_blocks(&b, assistant ? "assistant" : "user");
    if (b.text.failed || b.thinking.failed || b.calls.failed) t->out->failed = true;
    mox_put_deinit(&b.text);
    mox_put_deinit(&b.thinking);
    mox_put_deinit(&b.calls);
    t->i++;
    return status;
}

/* ---- tools --------------------------------------------------------------------------------------- */

static mox_status write_tool(void *user, mox_json_span tool, mox_err *err)
{
    static const char *const names[] = {"type", "name", "description", "input_schema"};
    translation *t = user;
    mox_json_span v[4];
    if (!mox_span_is_object(tool)) return mox_fail(err, MOX_E_ARG, "tools[%zu] must be an object", t->i);
    MOX_TRY(mox_json_fields(tool, "a tool", names, 4, v, err));
    if (!mox_json_is_null(v[0]) && !mox_span_is(v[0], "custom")) { /* one that the vendor's own servers run */
        char note[160];
        (void)snprintf(note, sizeof note, "left out a tool of type %.*s", (int)(v[0].n < 80 ? v[0].n : 80),
                       v[0].text);
        mox_log_note(&t->answer->server->log, mox_http_id(t->answer->call), note);
        t->i++;
        return MOX_OK;
    }
    if (!mox_span_is_string(v[1])) return mox_fail(err, MOX_E_ARG, "tools[%zu] has no name", t->i);
    if (!mox_json_is_null(v[3]) && !mox_span_is_object(v[3]))
        return mox_fail(err, MOX_E_ARG, "tools[%zu].input_schema must be an object", t->i);
    mox_putf(t->out, "%s{\"type\":\"function\",\"function\":{\"name\":", t->n_out++ > 0 ? "," : "");
    mox_put_raw(t->out, v[1].text, v[1].n);
    if (mox_span_is_string(v[2])) {
        mox_putf(t->out, ",\"description\":");
        mox_put_raw(t->out, v[2].text, v[2].n);
    }
    mox_putf(t->out, ",\"parameters\":");
    if (mox_span_is_object(v[3])) mox_put_raw(t->out, v[3].text, v[3].n);
    else mox_putf(t->out, "{\"type\":\"object\",\"properties\":{}}");
    mox_putf(t->out, "}}");
    t->i++;
    return MOX_OK;
}

static mox_status read_tools(mox_answer *a, const mox_fields *f, mox_err *err)
{
    translation t = {.answer = a, .out = &a->ask.tools};
    if (!f->v[FIELD_TOOLS].given) return MOX_OK;
    mox_putf(t.out, "[");
    MOX_TRY(mox_json_each(f->v[FIELD_TOOLS].raw, "tools", write_tool, &t, err));
    mox_putf(t.out, "]");
    if (t.n_out == 0) mox_put_clear(t.out);
    return MOX_OK;
}

static mox_status read_tool_choice(mox_ask *a, const mox_fields *f, mox_err *err)
{
    static const char *const names[] = {"type", "name", "disable_parallel_tool_use"};
    const mox_json_span nobody = {0};
    mox_json_span v[3];
    if (!f->v[FIELD_TOOL_CHOICE].given) return MOX_OK;
    if (f->v[FIELD_TOOL_CHOICE].type != IS_OBJECT)
        return mox_fail(err, MOX_E_ARG, "tool_choice must be an object");
    MOX_TRY(mox_json_fields(f->v[FIELD_TOOL_CHOICE].raw, "tool_choice", names, 3, v, err));
    MOX_TRY(mox_json_get_bool(v[2], "tool_choice.disable_parallel_tool_use", &a->single_call, err));
    if (mox_span_is(v[0], "auto")) return MOX_OK;
    if (mox_span_is(v[0], "none")) return mox_structure_choose(a, MOX_TOOLS_NONE, nobody, err);
    if (mox_span_is(v[0], "any")) return mox_structure_choose(a, MOX_TOOLS_REQUIRED, nobody, err);
    if (!mox_span_is(v[0], "tool") || !mox_span_is_string(v[1]))
        return mox_fail(err, MOX_E_ARG, "tool_choice.type must be auto, any, tool with a name, or none");
    return mox_structure_choose(a, MOX_TOOLS_REQUIRED, v[1], err);
}

/* ---- all of it ----------------------------------------------------------------------------------- */

mox_status mox_anthropic_read(mox_answer *a, const mox_fields *f, mox_err *err)
{
    static const char *const names[] = {"format", "effort"};
    mox_json_span output[2];
    translation t = {.answer = a, .out = &a->ask.messages};
    if (!f->v[FIELD_MESSAGES].given) return mox_fail(err, MOX_E_ARG, "messages is missing");
    mox_putf(t.out, "[");
    MOX_TRY(write_system(&t, f->v[FIELD_SYSTEM].given ? f->v[FIELD_SYSTEM].raw : (mox_json_span){0}, err));
    MOX_TRY(mox_json_each(f->v[FIELD_MESSAGES].raw, "messages", write_message, &t, err));
    mox_putf(t.out, "]");
    MOX_TRY(read_tools(a, f, err));
    if (f->v[FIELD_THINKING].given) MOX_TRY(mox_ask_read_thinking(&a->ask, f->v[FIELD_THINKING].raw, err));
    MOX_TRY(read_tool_choice(&a->ask, f, err));
    if (!f->v[FIELD_OUTPUT_CONFIG].given) return MOX_OK;
    MOX_TRY(mox_json_fields(f->v[FIELD_OUTPUT_CONFIG].raw, "output_config", names, 2, output, err));
    MOX_TRY(mox_ask_read_effort(&a->ask, output[1], "output_config.effort", err));
    return mox_structure_read_format(&a->ask, output[0], "output_config.format", err);
}
