/* text/chat_request.c -- a request's JSON, checked and brought into the shape that
 * templates are written for.
 *
 * Messages go through as they are, unknown fields and all, but for what templates do not
 * agree on: arguments of tool calls (an object, or its text), the content of a message that
 * is calls alone (null, or an empty text) or null without any (an empty text), content in
 * parts (for templates that only take a string), empty lists of calls (none).  Key order and
 * the spelling of values survive.
 *
 * Refuses: what is no JSON of the right type, tool calls without a name or whose arguments
 * are no object, tools whose parameters are none, parts that are not text, and kwargs that
 * would stand for the conversation itself. */
#include "text/chat_internal.h"
#include "base/plant.h"
#include "base/json_fields.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct place { /* where in the request, for errors */
    size_t message, call;
    bool in_call;
} place;

static mox_status wrong(const place *p, mox_err *err, const char *format, ...) __attribute__((format(printf, 3, 4)));
static mox_status wrong(const place *p, mox_err *err, const char *format, ...)
{
    char words[300], call[48] = "";
    va_list args;
    va_start(args, format);
    (void)vsnprintf(words, sizeof words, format, args);
    va_end(args);
    if (p->in_call) (void)snprintf(call, sizeof call, ".tool_calls[%zu]", p->call);
    return mox_fail(err, MOX_E_ARG, "messages[%zu]%s%s", p->message, call, words);
}

/* Whatever is wrong with a request is its sender's doing. */
static mox_status blame_request(mox_status status, mox_err *err)
{
    if (status != MOX_E_FORMAT) return status;
    if (err) err->status = MOX_E_ARG;
    return MOX_E_ARG;
}

static bool is_string(mox_json_span v) { return v.text && v.text[0] == '"'; }
static bool is_object(mox_json_span v) { return v.text && v.text[0] == '{'; }
static bool is_array(mox_json_span v) { return v.text && v.text[0] == '['; }

static bool is_empty_array(mox_json_span v)
{
    if (!is_array(v)) return false;
    for (size_t i = 1; i < v.n; i++)
        if (v.text[i] == ']') return true;
        else if (!strchr(" \t\r\n", v.text[i])) return false;
    return false;
}

static mox_status write_span(mox_writer *w, mox_json_span v, mox_err *err) { return mox_write(w, v.text, v.n, err); }

/* Cuts the blanks around a JSON text off, behind which nothing else may follow. */
static mox_status check_whole(mox_json_span *text, mox_err *err)
{
    mox_json_reader r;
    mox_json_token end;
    mox_json_reader_init(&r, *text);
    mox_status status = mox_json_skip(&r, text, err);
    if (status == MOX_OK) status = mox_json_next(&r, &end, err);
    mox_json_reader_deinit(&r);
    return status;
}

/* ---- going through an object ----------------------------------------------------------- */

typedef struct request_writer {
    const mox_chat *chat;
    mox_writer *out;
    mox_chat_vars *vars; /* of settings */
    place at;
    const char *lead; /* fields that the next object begins with, or NULL */
} request_writer;

/* Writes the value of a field, or leaves *drop set: then the field is not there. */
typedef mox_status write_field(request_writer *w, const char *key, mox_json_span value, bool *drop, mox_err *err);

static mox_status write_fields(request_writer *w, mox_json_reader *r, write_field *field, mox_err *err)
{
    mox_json_token token;
    bool any = w->lead != NULL;
    MOX_TRY(mox_json_next(r, &token, err)); /* the opening brace: the caller has looked */
    MOX_TRY(mox_write(w->out, "{", 1, err));
    if (w->lead) MOX_TRY(mox_write_text(w->out, w->lead, err));
    w->lead = NULL;
    for (;;) {
        MOX_TRY(mox_json_next(r, &token, err));
        if (token.type == MOX_JSON_OBJECT_END) return mox_write(w->out, "}", 1, err);
        char key[32] = ""; /* long enough for those that anybody asks for */
        if (token.n < sizeof key) memcpy(key, token.text, token.n);
        const size_t before = w->out->n;
        if (any) MOX_TRY(mox_write(w->out, ", ", 2, err));
        MOX_TRY(mox_write_json(w->out, token.text, token.n, err));
        MOX_TRY(mox_write(w->out, ": ", 2, err));
        mox_json_span value;
        bool drop = false;
        MOX_TRY(mox_json_skip(r, &value, err));
        MOX_TRY(field(w, key, value, &drop, err));
        if (drop) w->out->n = before;
        else any = true;
    }
}

static mox_status write_object(request_writer *w, mox_json_span object, write_field *field, mox_err *err)
{
    mox_json_reader r;
    mox_json_reader_init(&r, object);
    const mox_status status = write_fields(w, &r, field, err);
    mox_json_reader_deinit(&r);
    return status;
}

/* Elements one by one, with the array's brackets. */
typedef mox_status write_element(request_writer *w, size_t i, mox_json_span element, mox_err *err);

static mox_status write_elements(request_writer *w, mox_json_reader *r, write_element *element, mox_err *err)
{
    mox_json_token token;
    MOX_TRY(mox_json_next(r, &token, err));
    MOX_TRY(mox_write(w->out, "[", 1, err));
    for (size_t i = 0;; i++) {
        mox_json_span v;
        MOX_TRY(mox_json_element(r, &v, err));
        if (!v.text) return mox_write(w->out, "]", 1, err);
        if (i > 0) MOX_TRY(mox_write(w->out, ", ", 2, err));
        MOX_TRY(element(w, i, v, err));
    }
}

static mox_status write_array(request_writer *w, mox_json_span array, write_element *element, mox_err *err)
{
    mox_json_reader r;
    mox_json_reader_init(&r, array);
    const mox_status status = write_elements(w, &r, element, err);
    mox_json_reader_deinit(&r);
    return status;
}

/* ---- tool calls ---------------------------------------------------------------------------- */

/* The text of an object inside a string; what is none is refused. */
static mox_status check_object_text(const request_writer *w, const char *text, size_t n, mox_err *err)
{
    mox_json_span v = {"arguments", text, n, 0};
    mox_err unused;
    const mox_status status = check_whole(&v, &unused);
    if (status == MOX_E_MEMORY) return mox_fail_memory(err, n, "a tool call's arguments");
    if (status == MOX_OK && is_object(v)) return MOX_OK;
    return wrong(&w->at, err, ".function.arguments must be a JSON object, or a string with the text of one");
}

static mox_status write_arguments(request_writer *w, mox_json_span value, mox_err *err)
{
    if (is_object(value))
        return w->chat->arguments_as_text ? mox_write_json(w->out, value.text, value.n, err) : write_span(w->out, value, err);
    char *text = NULL;
    size_t n = 0;
    if (is_string(value)) MOX_TRY(mox_json_get_string(value, "arguments", &text, &n, err));
    mox_status status = check_object_text(w, text ? text : "", n, err);
    if (status == MOX_OK)
        status = w->chat->arguments_as_text ? write_span(w->out, value, err) : mox_write(w->out, text, n, err);
    mox_free(text);
    return status;
}

static mox_status call_function_field(request_writer *w, const char *key, mox_json_span value, bool *drop, mox_err *err)
{
    (void)drop;
    if (strcmp(key, "name") == 0 && !is_string(value)) return wrong(&w->at, err, ".function.name must be a string");
    if (strcmp(key, "arguments") == 0) return write_arguments(w, value, err);
    return write_span(w->out, value, err);
}

/* A call is {"function": {...}}, or, as some write it, the function itself. */
static mox_status call_field(request_writer *w, const char *key, mox_json_span value, bool *drop, mox_err *err)
{
    if (strcmp(key, "function") != 0) return call_function_field(w, key, value, drop, err);
    if (!is_object(value)) return wrong(&w->at, err, ".function must be an object");
    return write_object(w, value, call_function_field, err);
}

static mox_status write_call(request_writer *w, size_t i, mox_json_span call, mox_err *err)
{
    static const char *const names[] = {"function", "name", "arguments"};
    mox_json_span f[3];
    MOX_PLANT(i == 2);
    w->at.call = i;
    w->at.in_call = true;
    if (!is_object(call)) return wrong(&w->at, err, " must be an object");
    MOX_TRY(write_object(w, call, call_field, err));
    MOX_TRY(mox_json_fields(call, "a tool call", names, 3, f, err));
    if (f[0].text) MOX_TRY(mox_json_fields(f[0], "a tool call's function", &names[1], 2, &f[1], err));
    if (!f[0].text && !f[1].text) return wrong(&w->at, err, " has no function");
    if (!f[1].text || !f[2].text) return wrong(&w->at, err, ".function has no %s", f[1].text ? "arguments" : "name");
    w->at.in_call = false;
    return MOX_OK;
}

/* ---- content ------------------------------------------------------------------------------ */

static mox_status part_text(request_writer *w, mox_json_span part, char **out, size_t *n, mox_err *err)
{
    static const char *const names[] = {"type", "text"};
    mox_json_span f[2];
    char *type;
    if (is_string(part)) return mox_json_get_string(part, "content", out, n, err);
    if (!is_object(part)) return wrong(&w->at, err, ".content has a part that is no object");
    MOX_TRY(mox_json_fields(part, "a part of content", names, 2, f, err));
    if (!is_string(f[0])) return wrong(&w->at, err, ".content has a part without a type");
    MOX_TRY(mox_json_get_string(f[0], "type", &type, NULL, err));
    const bool text = strcmp(type, "text") == 0;
    const mox_status status = text ? MOX_OK : wrong(&w->at, err, ".content has a part of type '%.40s'; this model takes text only", type);
    mox_free(type);
    MOX_TRY(status);
    if (!is_string(f[1])) return wrong(&w->at, err, ".content has a text part without its text");
    return mox_json_get_string(f[1], "text", out, n, err);
}

typedef struct joined_parts {
    request_writer *w;
    mox_writer text;
    bool any;
} joined_parts;

static mox_status join_part(void *user, mox_json_span part, mox_err *err)
{
    joined_parts *j = user;
    char *text = NULL;
    size_t n = 0;
    MOX_TRY(part_text(j->w, part, &text, &n, err));
    mox_status status = j->any ? mox_write(&j->text, "\n", 1, err) : MOX_OK;
    if (status == MOX_OK) status = mox_write(&j->text, text, n, err);
    mox_free(text);
    j->any = true;
    return status;
}

/* Parts are checked in any case; they are joined by newlines for templates that know no parts. */
static mox_status write_parts(request_writer *w, mox_json_span parts, mox_err *err)
{
    joined_parts j = {.w = w};
    mox_status status = mox_json_each(parts, "content", join_part, &j, err);
    if (status == MOX_OK)
        status = w->chat->typed_content ? write_span(w->out, parts, err)
                                        : mox_write_json(w->out, mox_writer_text(&j.text), j.text.n, err);
    mox_writer_deinit(&j.text);
    return status;
}

/* ---- messages ------------------------------------------------------------------------------- */

static mox_status message_field(request_writer *w, const char *key, mox_json_span value, bool *drop, mox_err *err)
{
    if (strcmp(key, "content") == 0) {
        if (is_array(value)) return write_parts(w, value, err);
        if (mox_json_is_null(value)) return mox_write_text(w->out, "\"\"", err);
        if (!is_string(value))
            return wrong(&w->at, err, ".content must be a string, null or an array of parts");
    }
    if (strcmp(key, "tool_calls") == 0) {
        *drop = mox_json_is_null(value) || is_empty_array(value);
        if (*drop) return MOX_OK;
        if (!is_array(value)) return wrong(&w->at, err, ".tool_calls must be an array");
        return write_array(w, value, write_call, err);
    }
    return write_span(w->out, value, err);
}

/* The same, of a message that is calls alone: its content has been written. */
static mox_status calls_field(request_writer *w, const char *key, mox_json_span value, bool *drop, mox_err *err)
{
    *drop = strcmp(key, "content") == 0;
    return *drop ? MOX_OK : message_field(w, key, value, drop, err);
}

static bool is_empty_text(mox_json_span v) { return mox_json_is_null(v) || (v.n == 2 && v.text[0] == '"'); }

static mox_status write_message(request_writer *w, size_t i, mox_json_span message, mox_err *err)
{
    static const char *const names[] = {"role", "content", "tool_calls"};
    mox_json_span f[3];
    w->at = (place){.message = i};
    if (!is_object(message)) return wrong(&w->at, err, " must be an object");
    MOX_TRY(mox_json_fields(message, "a message", names, 3, f, err));
    if (!f[0].text) return wrong(&w->at, err, " has no role");
    if (!is_string(f[0]) || f[0].n == 2) return wrong(&w->at, err, ".role must be a string such as \"user\"");
    const bool calls_alone = is_array(f[2]) && !is_empty_array(f[2]) && is_empty_text(f[1]);
    if (calls_alone) w->lead = w->chat->null_content ? "\"content\": null" : "\"content\": \"\"";
    return write_object(w, message, calls_alone ? calls_field : message_field, err);
}

static mox_status check_messages(const mox_chat *c, mox_json_text messages, mox_chat_vars *v, mox_err *err)
{
    request_writer w = {.chat = c, .out = &v->messages};
    mox_json_span all = {"messages", messages.text, messages.n, 0};
    if (!all.text) return mox_fail(err, MOX_E_ARG, "messages: there are none");
    MOX_TRY(check_whole(&all, err));
    if (!is_array(all)) return mox_fail(err, MOX_E_ARG, "messages must be an array of messages");
    if (is_empty_array(all)) return mox_fail(err, MOX_E_ARG, "messages is empty: there is nothing to answer");
    MOX_TRY(write_array(&w, all, write_message, err));
    v->n_messages = w.at.message + 1;
    return MOX_OK;
}

/* ---- tools and settings ------------------------------------------------------------------------ */

typedef struct tool_check {
    size_t n;
} tool_check;

static mox_status check_tool(void *user, mox_json_span tool, mox_err *err)
{
    static const char *const names[] = {"function", "name", "parameters"};
    tool_check *t = user;
    mox_json_span f[3];
    if (!is_object(tool)) return mox_fail(err, MOX_E_ARG, "tools[%zu] must be an object", t->n);
    MOX_TRY(mox_json_fields(tool, "a tool", names, 3, f, err));
    if (f[0].text) {
        if (!is_object(f[0])) return mox_fail(err, MOX_E_ARG, "tools[%zu].function must be an object", t->n);
        MOX_TRY(mox_json_fields(f[0], "a tool's function", &names[1], 2, &f[1], err));
    }
    if (!is_string(f[1])) return mox_fail(err, MOX_E_ARG, "tools[%zu] has no name", t->n);
    if (!mox_json_is_null(f[2]) && !is_object(f[2]))
        return mox_fail(err, MOX_E_ARG, "tools[%zu]: the parameters must be an object", t->n);
    t->n++;
    return MOX_OK;
}

static mox_status check_tools(mox_json_text tools, mox_chat_vars *v, mox_err *err)
{
    tool_check check = {0};
    mox_json_span all = {"tools", tools.text, tools.n, 0};
    if (!all.text) return MOX_OK;
    MOX_TRY(check_whole(&all, err));
    if (mox_json_is_null(all)) return MOX_OK;
    MOX_TRY(mox_json_each(all, "tools", check_tool, &check, err));
    v->tools = check.n > 0;
    return MOX_OK;
}

/* Two of the settings are the tokenizer's own to say, so they are trusted like it. */
static mox_status kwargs_field(request_writer *w, const char *key, mox_json_span value, bool *drop, mox_err *err)
{
    static const char *const reserved[] = {"messages", "tools", "add_generation_prompt", "tokenize", "chat_template",
                                           "continue_final_message"};
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (strcmp(key, reserved[i]) == 0)
            return mox_fail(err, MOX_E_ARG, "kwargs cannot set '%s': it is part of the request itself", reserved[i]);
    char **token = strcmp(key, "bos_token") == 0 ? &w->vars->bos : strcmp(key, "eos_token") == 0 ? &w->vars->eos : NULL;
    if (!token) return write_span(w->out, value, err);
    *drop = true;
    if (!is_string(value) || *token) return mox_fail(err, MOX_E_ARG, "kwargs: %s must be one string", key);
    return mox_json_get_string(value, key, token, NULL, err);
}

static mox_status check_kwargs(mox_json_text kwargs, mox_chat_vars *v, mox_err *err)
{
    request_writer w = {.vars = v, .out = &v->kwargs};
    mox_json_span all = {"kwargs", kwargs.text, kwargs.n, 0};
    MOX_TRY(check_whole(&all, err));
    if (!is_object(all)) return mox_fail(err, MOX_E_ARG, "kwargs must be a JSON object");
    return write_object(&w, all, kwargs_field, err);
}

mox_status mox_chat_check(const mox_chat *c, const mox_chat_request *request, mox_chat_vars *v, mox_err *err)
{
    mox_status status = check_messages(c, request->messages, v, err);
    if (status == MOX_OK) status = check_tools(request->tools, v, err);
    if (status == MOX_OK && request->kwargs.text) status = check_kwargs(request->kwargs, v, err);
    return blame_request(status, err);
}

void mox_chat_vars_deinit(mox_chat_vars *v)
{
    mox_writer_deinit(&v->messages);
    mox_writer_deinit(&v->kwargs);
    mox_free(v->bos);
    mox_free(v->eos);
}

/* ---- taking apart ------------------------------------------------------------------------------- */

typedef struct splitter {
    mox_message_fn *each;
    void *user;
    size_t n;
} splitter;

static mox_status split_message(void *user, mox_json_span message, mox_err *err)
{
    static const char *const names[] = {"role"};
    splitter *s = user;
    mox_json_span f;
    char *role;
    const place at = {.message = s->n++};
    if (!is_object(message)) return wrong(&at, err, " must be an object");
    MOX_TRY(mox_json_fields(message, "a message", names, 1, &f, err));
    if (!is_string(f)) return wrong(&at, err, " has no role");
    MOX_TRY(mox_json_get_string(f, "role", &role, NULL, err));
    const mox_status status = s->each(s->user, role, (mox_json_text){message.text, message.n}, err);
    mox_free(role);
    return status;
}

mox_status mox_messages_each(const char *name, mox_json_text messages, mox_message_fn *each, void *user, mox_err *err)
{
    static const char *const names[] = {"messages"};
    splitter s = {.each = each, .user = user};
    mox_json_span all = {name, messages.text, messages.n, 0};
    MOX_TRY(check_whole(&all, err));
    if (is_object(all)) MOX_TRY(mox_json_fields(all, "the file", names, 1, &all, err));
    if (!is_array(all)) return mox_fail(err, MOX_E_ARG, "%s: not an array of messages, and no object with one as \"messages\"", name);
    return mox_json_each(all, "messages", split_message, &s, err);
}
