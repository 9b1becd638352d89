/* text/chat.c -- a model's chat template: where it is from, what it says about thinking
 * and tools, and prompts made with it.
 *
 * How a model writes tool calls and takes their arguments is asked of its template, never
 * of its name: the markers stand in the template's text, and for the rest it is made to
 * render a small conversation when it is opened. */
#include "text/chat_internal.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/json_fields.h"

#include <string.h>

enum { TEMPLATE_BYTES_MAX = 1 << 20, CONFIG_BYTES_MAX = 64 << 20, PROBE_STEPS_MAX = 100 * 1000 };

/* ---- where it is from ---------------------------------------------------------------------- */

static mox_status parse_template(mox_chat *c, const char *text, size_t n, mox_template **out, mox_err *err)
{
    if (*out) return mox_fail(err, MOX_E_FORMAT, "%s: two chat templates of one name", c->source);
    if (n > TEMPLATE_BYTES_MAX)
        return mox_fail(err, MOX_E_FORMAT, "%s: a chat template of %zu bytes; at most %d are taken", c->source, n,
                        TEMPLATE_BYTES_MAX);
    return mox_template_open(out, c->source, text, n, err);
}

static mox_status parse_string(mox_chat *c, mox_json_span value, mox_template **out, mox_err *err)
{
    char *text;
    size_t n;
    MOX_TRY(mox_json_get_string(value, "chat_template", &text, &n, err));
    const mox_status status = text ? parse_template(c, text, n, out, err) : MOX_OK;
    mox_free(text);
    return status;
}

static mox_status parse_named(void *user, mox_json_span element, mox_err *err)
{
    static const char *const names[] = {"name", "template"};
    mox_chat *c = user;
    mox_json_span f[2];
    char *name;
    MOX_TRY(mox_json_fields(element, "a chat template", names, 2, f, err));
    MOX_TRY(mox_json_get_string(f[0], "the name of a chat template", &name, NULL, err));
    mox_status status = MOX_OK;
    if (name && strcmp(name, "default") == 0) status = parse_string(c, f[1], &c->plain, err);
    if (name && strcmp(name, "tool_use") == 0) status = parse_string(c, f[1], &c->with_tools, err);
    mox_free(name);
    return status;
}

/* A JSON file with a chat_template, which is a string or a list of named ones. */
static mox_status parse_json(mox_chat *c, const char *text, size_t n, mox_err *err)
{
    static const char *const names[] = {"chat_template"};
    mox_json_span f;
    MOX_TRY(mox_json_fields((mox_json_span){c->source, text, n, 0}, "the file", names, 1, &f, err));
    if (mox_json_is_null(f)) return MOX_OK;
    if (f.text[0] != '[') return parse_string(c, f, &c->plain, err);
    return mox_json_each(f, "chat_template", parse_named, c, err);
}

static mox_status read_source(mox_chat *c, bool json, mox_err *err)
{
    char *text;
    size_t n;
    MOX_TRY(mox_file_slurp(c->source, json ? CONFIG_BYTES_MAX : TEMPLATE_BYTES_MAX, &text, &n, err));
    const mox_status status = json ? parse_json(c, text, n, err) : parse_template(c, text, n, &c->plain, err);
    mox_free(text);
    return status;
}

static mox_status find_template(mox_chat *c, const char *dir, const char *file, mox_err *err)
{
    static const struct {
        const char *name;
        bool json;
    } places[] = {{"chat_template.jinja", false}, {"chat_template.json", true}, {"tokenizer_config.json", true}};
    if (file) {
        c->source = mox_strdup(file);
        return c->source ? read_source(c, false, err) : mox_fail_memory(err, strlen(file), "a path");
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        mox_free(c->source);
        c->source = mox_path_join(dir, places[i].name);
        if (!c->source) return mox_fail_memory(err, strlen(dir), "a path");
        if (!mox_path_exists(c->source)) continue;
        MOX_TRY(read_source(c, places[i].json, err));
        if (c->plain) return MOX_OK;
    }
    return mox_fail(err, MOX_E_NOT_FOUND,
                    "%s: this model has no chat template; give one with --template FILE, or have a text continued as it "
                    "is with `moxie run --raw`",
                    dir);
}

/* ---- what it says -------------------------------------------------------------------------- */

static bool has(const mox_chat *c, const char *text)
{
    return mox_template_contains(c->plain, text) || (c->with_tools && mox_template_contains(c->with_tools, text));
}

static mox_call_format find_format(const mox_chat *c)
{
    if (has(c, "<|tool_calls_section_begin|>")) return MOX_CALLS_KIMI;
    if (has(c, "<arg_key>")) return MOX_CALLS_GLM;
    if (has(c, "<function=")) return MOX_CALLS_QWEN_XML;
    if (has(c, "<\xef\xbd\x9ctool\xe2\x96\x81" "calls\xe2\x96\x81" "begin\xef\xbd\x9c>"))
        return has(c, "```json") ? MOX_CALLS_DEEPSEEK_V3 : MOX_CALLS_DEEPSEEK_V31;
    return has(c, "<tool_call>") ? MOX_CALLS_HERMES : MOX_CALLS_UNKNOWN;
}

/* Whether the template, given these messages, writes the word and nothing that shows that it
 * took it for something else.  Only running out of memory is an error. */
static mox_status probe(const mox_chat *c, const char *messages, const char *word, const char *not_word, bool *out, mox_err *err)
{
    static const char tools[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"probe\", \"description\": \"none\", \"parameters\": {\"type\": "
        "\"object\", \"properties\": {\"key\": {\"type\": \"string\"}}, \"required\": [\"key\"]}}}]";
    const mox_chat_request request = {.messages = {messages, strlen(messages)}, .tools = {tools, sizeof tools - 1}};
    mox_chat_vars v = {.steps_max = PROBE_STEPS_MAX};
    mox_prompt prompt = {0};
    mox_status status = mox_write_text(&v.messages, messages, err);
    v.tools = true;
    if (status == MOX_OK)
        status = mox_chat_apply(c, c->with_tools ? c->with_tools : c->plain, &request, &v, false, NULL, &prompt, err);
    *out = status == MOX_OK && strstr(prompt.text, word) && !strstr(prompt.text, not_word);
    mox_prompt_free(&prompt);
    mox_chat_vars_deinit(&v);
    return status == MOX_E_MEMORY ? status : MOX_OK;
}

/* A conversation that ends in a call. */
#define CALL(content, arguments)                                                                               \
    "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": " content               \
    ", \"tool_calls\": [{\"id\": \"functions.probe:0\", \"type\": \"function\", \"function\": {\"name\": "     \
    "\"probe\", \"arguments\": " arguments "}}]}]"
#define AS_OBJECT "{\"key\": \"needle\"}"
#define AS_TEXT "\"{\\\"key\\\": \\\"needle\\\"}\""

static mox_status ask_template(mox_chat *c, mox_err *err)
{
    static const char parts[] = "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"needle\"}]}]";
    bool object;
    c->format = find_format(c);
    c->thinks = mox_template_mentions(c->plain, "enable_thinking") || mox_template_mentions(c->plain, "thinking") ||
                has(c, "<think>");
    MOX_TRY(probe(c, CALL("\"\"", AS_OBJECT), "needle", "'needle'", &object, err)); /* so Python spells objects */
    c->arguments_as_text = !object;
    MOX_TRY(probe(c, object ? CALL("null", AS_OBJECT) : CALL("null", AS_TEXT), "needle", "None", &c->null_content, err));
    return probe(c, parts, "needle", "'needle'", &c->typed_content, err);
}

/* ---- opening ------------------------------------------------------------------------------- */

mox_status mox_chat_open(mox_chat **out, const char *dir, const mox_tokenizer *tokenizer, const mox_chat_opts *opts,
                         mox_err *err)
{
    *out = NULL;
    mox_chat *c = mox_alloc_array(1, sizeof *c);
    if (!c) return mox_fail_memory(err, sizeof *c, "a chat template");
    c->tokenizer = tokenizer;
    mox_status status = find_template(c, dir, opts ? opts->template_file : NULL, err);
    if (status == MOX_OK) status = ask_template(c, err);
    if (status != MOX_OK) mox_chat_close(&c);
    *out = c;
    return status;
}

void mox_chat_close(mox_chat **c)
{
    if (!*c) return;
    mox_template_close(&(*c)->plain);
    mox_template_close(&(*c)->with_tools);
    mox_free((*c)->source);
    mox_free(*c);
    *c = NULL;
}

void mox_chat_get_info(const mox_chat *c, mox_chat_info *out)
{
    static const char *const names[] = {
#define FORMAT_NAME(name, text) text,
        MOX_CALL_FORMATS(FORMAT_NAME)
#undef FORMAT_NAME
    };
    *out = (mox_chat_info){
        .source = c->source,
        .call_format = c->format == MOX_CALLS_UNKNOWN ? NULL : names[c->format],
        .thinks = c->thinks,
    };
}

/* ---- rendering ----------------------------------------------------------------------------- */

static mox_template_var text_var(const char *name, const char *text, size_t n)
{
    return (mox_template_var){.name = name, .text = text, .n = n, .trusted = true};
}

static mox_template_var bool_var(const char *name, bool on)
{
    return (mox_template_var){.name = name, .json = on ? "true" : "false", .n = on ? 4 : 5};
}

/* bos_token and the like: what the request says, else the tokenizer's. */
static void add_token(const mox_chat *c, mox_template_var *vars, size_t *n_vars, const char *name, const char *given, int32_t id)
{
    size_t n = given ? strlen(given) : 0;
    const char *text = given ? given : mox_tokenizer_bytes(c->tokenizer, id, &n);
    if (text) vars[(*n_vars)++] = text_var(name, text, n);
}

mox_status mox_chat_apply(const mox_chat *c, const mox_template *t, const mox_chat_request *request,
                          const mox_chat_vars *v, bool generation, mox_text_span *written, mox_prompt *out, mox_err *err)
{
    mox_template_var vars[8];
    size_t n = 0;
    vars[n++] = (mox_template_var){.name = "messages", .json = mox_writer_text(&v->messages), .n = v->messages.n};
    if (v->tools) vars[n++] = (mox_template_var){.name = "tools", .json = request->tools.text, .n = request->tools.n};
    else vars[n++] = (mox_template_var){.name = "tools", .json = "null", .n = 4};
    vars[n++] = bool_var("add_generation_prompt", generation);
    add_token(c, vars, &n, "bos_token", v->bos, mox_tokenizer_bos_id(c->tokenizer));
    add_token(c, vars, &n, "eos_token", v->eos, mox_tokenizer_eos_id(c->tokenizer));
    if (request->think != MOX_THINK_DEFAULT) { /* templates call it one or the other */
        vars[n++] = bool_var("enable_thinking", request->think == MOX_THINK_ON);
        vars[n++] = bool_var("thinking", request->think == MOX_THINK_ON);
    }
    if (v->kwargs.n > 0) vars[n++] = (mox_template_var){.json = mox_writer_text(&v->kwargs), .n = v->kwargs.n};
    const mox_template_opts opts = {
        .steps_max = v->steps_max,
        .unix_time_s = request->unix_time_s,
        .utc_offset_s = request->utc_offset_s,
        .written = written,
        .n_written = written ? v->n_messages : 0,
    };
    return mox_template_render(t, vars, n, &opts, out, err);
}

bool mox_chat_opens_thinking(const char *opening, size_t n)
{
    static const char open[] = "<think>", close[] = "</think>";
    for (size_t i = n; i >= sizeof open - 1; i--) {
        const char *at = opening + i - (sizeof open - 1);
        if (memcmp(at, open, sizeof open - 1) == 0) return true;
        if (at > opening && memcmp(at - 1, close, sizeof close - 1) == 0) return false;
    }
    return false;
}

/* Sets generation_at: a prompt that ends after the messages has everything before it. */
static mox_status find_generation(const mox_chat *c, const mox_template *t, const mox_chat_request *request,
                                  const mox_chat_vars *v, mox_prompt *p, mox_err *err)
{
    mox_prompt without = {0};
    mox_err unused;
    const mox_status status = mox_chat_apply(c, t, request, v, false, NULL, &without, &unused);
    if (status == MOX_E_MEMORY) return mox_fail_memory(err, p->n, "a prompt");
    size_t same = 0;
    while (same < p->n && same < without.n && p->text[same] == without.text[same]) same++;
    p->generation_at = same;
    mox_prompt_free(&without);
    return MOX_OK;
}

static mox_status render(const mox_chat *c, const mox_chat_request *request, const mox_chat_vars *v, mox_text_span *written,
                         mox_prompt *out, mox_err *err)
{
    const mox_template *t = v->tools && c->with_tools ? c->with_tools : c->plain;
    MOX_TRY(mox_chat_apply(c, t, request, v, !request->no_generation_prompt, written, out, err));
    out->generation_at = out->n;
    if (request->no_generation_prompt) return MOX_OK;
    MOX_TRY(find_generation(c, t, request, v, out, err));
    size_t own = out->generation_at; /* what somebody wrote in a message opens nothing */
    if (out->n_plain > 0 && out->plain[out->n_plain - 1].end > own) own = out->plain[out->n_plain - 1].end;
    out->thinking = mox_chat_opens_thinking(out->text + own, out->n - own);
    return MOX_OK;
}

mox_status mox_chat_render(const mox_chat *c, const mox_chat_request *request, mox_prompt *out, mox_err *err)
{
    mox_chat_vars v = {0};
    mox_text_span *written = NULL;
    *out = (mox_prompt){0};
    mox_status status = mox_chat_check(c, request, &v, err);
    if (status == MOX_OK && request->n_said > 0) {
        written = mox_alloc_array(v.n_messages, sizeof *written);
        if (!written) status = mox_fail_memory(err, v.n_messages * sizeof *written, "a prompt");
    }
    if (status == MOX_OK) status = render(c, request, &v, written, out, err);
    if (status == MOX_OK && written) status = mox_chat_replay(c, request, written, v.n_messages, out, err);
    if (status != MOX_OK) mox_prompt_free(out);
    mox_free(written);
    mox_chat_vars_deinit(&v);
    return status;
}
