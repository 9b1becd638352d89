/* app/server/structure.c -- see structure.h. */
#include "app/server/structure.h"

#include "app/server/server.h"
#include "base/alloc.h"
#include "base/json_fields.h"

#include <string.h>

static bool has_tools(const mox_ask *a)
{
    const char *array = mox_writer_text(&a->tools.w);
    return a->tools.w.n > 0 && array[strspn(array, "[ \t\r\n")] != ']';
}

static mox_status set_form(mox_ask *a, mox_form form, mox_json_span text, const char *what, mox_err *err)
{
    if (a->form != MOX_FORM_FREE)
        return mox_fail(err, MOX_E_ARG, "%s and another form of the reply exclude each other", what);
    a->form = form;
    a->form_field = what;
    a->schema = text;
    return MOX_OK;
}

mox_status mox_structure_read_format(mox_ask *a, mox_json_span format, const char *what, mox_err *err)
{
    static const char *const names[] = {"type", "json_schema", "schema"}, *const inner[] = {"schema"};
    mox_json_span v[3];
    if (mox_json_is_null(format)) return MOX_OK;
    MOX_TRY(mox_json_fields(format, what, names, 3, v, err));
    if (mox_span_is(v[0], "text")) return MOX_OK;
    if (mox_span_is(v[0], "json_object") && !mox_span_is_object(v[2]))
        return set_form(a, MOX_FORM_OBJECT, v[2], what, err);
    if (!mox_span_is(v[0], "json_schema") && !mox_span_is(v[0], "json_object"))
        return mox_fail(err, MOX_E_ARG, "%s.type must be text, json_object or json_schema", what);
    if (mox_span_is_object(v[1])) MOX_TRY(mox_json_fields(v[1], what, inner, 1, &v[2], err));
    if (!mox_span_is_object(v[2])) return mox_fail(err, MOX_E_ARG, "%s has no schema", what);
    return set_form(a, MOX_FORM_SCHEMA, v[2], what, err);
}

mox_status mox_structure_choose(mox_ask *a, mox_tool_choice choice, mox_json_span name, mox_err *err)
{
    if (choice == MOX_TOOLS_NONE) mox_put_clear(&a->tools); /* the model is not told of them */
    if (choice != MOX_TOOLS_REQUIRED) return MOX_OK;
    if (!mox_put_ok(&a->tools)) return mox_fail_memory(err, a->tools.w.n, "tools");
    if (a->tools.w.n == 0)
        return mox_fail(err, MOX_E_ARG, "tool_choice asks for a call, but there are no tools");
    if (!mox_json_is_null(name)) MOX_TRY(mox_json_get_string(name, "tool_choice", &a->call_name, NULL, err));
    return set_form(a, MOX_FORM_CALL, (mox_json_span){0}, "tool_choice", err);
}

mox_status mox_structure_read_tool_choice(mox_ask *a, mox_json_span choice, mox_err *err)
{
    static const char *const names[] = {"type", "function", "name"}, *const inner[] = {"name"};
    mox_json_span v[3];
    const mox_json_span nobody = {0};
    if (mox_json_is_null(choice) || mox_span_is(choice, "auto")) return MOX_OK;
    if (mox_span_is(choice, "none")) return mox_structure_choose(a, MOX_TOOLS_NONE, nobody, err);
    if (mox_span_is(choice, "required")) return mox_structure_choose(a, MOX_TOOLS_REQUIRED, nobody, err);
    if (!mox_span_is_object(choice))
        return mox_fail(err, MOX_E_ARG, "tool_choice must be none, auto, required or name a function");
    MOX_TRY(mox_json_fields(choice, "tool_choice", names, 3, v, err));
    if (mox_span_is_object(v[1]))
        MOX_TRY(mox_json_fields(v[1], "tool_choice.function", inner, 1, &v[2], err));
    if (!mox_span_is_string(v[2])) return mox_fail(err, MOX_E_ARG, "tool_choice names no function");
    return mox_structure_choose(a, MOX_TOOLS_REQUIRED, v[2], err);
}

mox_status mox_structure_read_openai(mox_ask *a, const mox_fields *f, mox_err *err)
{
    const mox_field_value *grammar = &f->v[FIELD_GRAMMAR], *schema = &f->v[FIELD_JSON_SCHEMA];
    if (f->v[FIELD_TOOL_CHOICE].given)
        MOX_TRY(mox_structure_read_tool_choice(a, f->v[FIELD_TOOL_CHOICE].raw, err));
    if (grammar->given && has_tools(a))
        return mox_fail(err, MOX_E_ARG, "grammar and tools exclude each other");
    if (f->v[FIELD_RESPONSE_FORMAT].given)
        MOX_TRY(mox_structure_read_format(a, f->v[FIELD_RESPONSE_FORMAT].raw, "response_format", err));
    if (schema->given) MOX_TRY(set_form(a, MOX_FORM_SCHEMA, schema->raw, "json_schema", err));
    if (grammar->given && grammar->raw.n > 2)
        MOX_TRY(set_form(a, MOX_FORM_GRAMMAR, grammar->raw, "grammar", err));
    return MOX_OK;
}

/* ---- grammars ------------------------------------------------------------------------------------ */

typedef struct warning_target {
    mox_log *log;
    const char *id;
} warning_target;

static void warn(void *user, const char *sentence)
{
    const warning_target *t = user;
    mox_log_note(t->log, t->id, sentence);
}

static mox_status compile_gbnf(mox_ask *a, mox_err *err)
{
    char *text = NULL;
    size_t n = 0;
    MOX_TRY(mox_json_get_string(a->schema, "grammar", &text, &n, err));
    const mox_status status = mox_grammar_create_gbnf(&a->grammar, text, n, err);
    mox_free(text);
    return status;
}

/* How the model writes calls, or NULL. */
static const char *call_format(const mox_server *s)
{
    mox_chat_info info = {0};
    if (s->session.chat) mox_chat_get_info(s->session.chat, &info);
    return info.call_format;
}

/* Calls, and where the form is one of JSON, that instead. */
static mox_status compile_calls(mox_ask *a, mox_server *s, const char *id, mox_err *err)
{
    warning_target target = {&s->log, id};
    const char *format = call_format(s);
    if (!mox_put_ok(&a->tools)) return mox_fail_memory(err, a->tools.w.n, "the tools");
    if (!format)
        return mox_fail(err, MOX_E_ARG, "this model has no form of tool calls that could be asked for");
    const mox_calls_opts opts = {.format = format,
                                 .tools = {mox_writer_text(&a->tools.w), a->tools.w.n},
                                 .name = a->call_name,
                                 .parallel = !a->single_call,
                                 .or_schema = {a->schema.text, a->schema.n},
                                 .or_object = a->form == MOX_FORM_OBJECT,
                                 .warn = warn,
                                 .warn_user = &target};
    return mox_grammar_create_calls(&a->grammar, &opts, err);
}

static mox_status compile(mox_ask *a, mox_server *s, const char *id, mox_err *err)
{
    const bool json = a->form == MOX_FORM_OBJECT || a->form == MOX_FORM_SCHEMA;
    a->or_calls = json && has_tools(a) && call_format(s);
    if (a->or_calls) return compile_calls(a, s, id, err);
    switch (a->form) {
    case MOX_FORM_FREE: return MOX_OK;
    case MOX_FORM_OBJECT: return mox_grammar_create_object(&a->grammar, err);
    case MOX_FORM_SCHEMA:
        return mox_grammar_create_schema(&a->grammar, (mox_json_text){a->schema.text, a->schema.n}, NULL,
                                         err);
    case MOX_FORM_GRAMMAR: return compile_gbnf(a, err);
    case MOX_FORM_CALL: return compile_calls(a, s, id, err);
    }
    return MOX_OK;
}

mox_status mox_structure_compile(mox_ask *a, mox_server *s, const char *id, mox_err *err)
{
    mox_err why;
    const mox_status status = compile(a, s, id, &why);
    if (status == MOX_OK) return MOX_OK;
    if (strncmp(why.msg, "tools", strlen("tools")) == 0) return mox_fail(err, status, "%.400s", why.msg); /* not the form's fault, */
    if (strncmp(why.msg, "tool ", strlen("tool ")) == 0) return mox_fail(err, status, "tools: %.400s", why.msg); /* nor is one of them */
    return mox_fail(err, status, "%s: %.400s", a->form_field, why.msg);
}

void mox_structure_put_note(const mox_ask *a, mox_put *out)
{
    if (a->form != MOX_FORM_SCHEMA) return;
    mox_putf(out, "%s with JSON that this schema describes, and nothing else:\n",
             a->or_calls ? "Call tools as you need them; then answer" : "Answer");
    mox_put_raw(out, a->schema.text, a->schema.n);
}
