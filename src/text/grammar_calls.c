/* text/grammar_calls.c -- tool calls, in the ways in which models write them, or an answer in JSON.
 *
 * What text/reply_*.c reads, this has written: the markers, the name of one of the tools, and
 * arguments that its schema describes.  The layout is the one that the families' templates
 * write, without the liberties that the parsers forgive.
 *
 * Where values are tagged text, a string stands there as it is and ends at its closing tag,
 * which it must not contain; everything else is JSON.  Parameters come in the order of the
 * schema. */
#include "text/grammar.h"

#include "base/alloc.h"
#include "base/json_fields.h"

#include <stdio.h>
#include <string.h>

enum { TOOLS_MAX = 512, PARAMS_MAX = 256, NAME_MAX_BYTES = 256 };

typedef struct tool {
    char *name;
    size_t n;
    mox_gschema *schema; /* NULL: no parameters are described */
    uint32_t first_rule, end_rule; /* of the grammar's, those that are of the tool alone */
} tool;

typedef struct maker {
    mox_gb *b;
    const mox_calls_opts *opts;
    tool *tools; /* and their names outlive the grammar, for errors */
    uint32_t n_tools;
} maker;

/* ---- the tools ----------------------------------------------------------------------- */

static mox_status add_tool(void *user, mox_json_span element, mox_err *err)
{
    enum { FUNCTION, NAME, PARAMETERS, INPUT_SCHEMA, N_FIELDS };
    static const char *const names[N_FIELDS] = {"function", "name", "parameters", "input_schema"};
    maker *m = user;
    mox_json_span fields[N_FIELDS];
    MOX_TRY(mox_json_fields(element, "a tool", names, N_FIELDS, fields, err));
    if (fields[FUNCTION].text && fields[FUNCTION].text[0] == '{') {
        const mox_json_span function = fields[FUNCTION];
        MOX_TRY(mox_json_fields(function, "a tool's function", names, N_FIELDS, fields, err));
    }
    if (m->n_tools == TOOLS_MAX)
        return mox_fail(err, MOX_E_LIMIT, "tools: calls can be held to at most %d tools", TOOLS_MAX);
    tool *t = &m->tools[m->n_tools];
    MOX_TRY(mox_json_get_string(fields[NAME], "a tool's name", &t->name, &t->n, err));
    if (!t->name) return MOX_OK;
    if (m->opts->name && strcmp(t->name, m->opts->name) != 0) {
        mox_free(t->name);
        return MOX_OK;
    }
    m->n_tools++;
    const mox_json_span schema = fields[PARAMETERS].text ? fields[PARAMETERS] : fields[INPUT_SCHEMA];
    char *label = mox_gb_take(m->b, t->n + 16);
    if (!label) return m->b->status;
    snprintf(label, t->n + 16, "tool %s", t->name);
    const mox_schema_opts lenient = {.lenient = true, .warn = m->opts->warn, .warn_user = m->opts->warn_user};
    if (schema.text && schema.text[0] == '{')
        t->schema = mox_gschema_read(m->b, label, (mox_json_text){schema.text, schema.n}, &lenient);
    return m->b->status;
}

static void read_tools(maker *m)
{
    mox_gb *b = m->b;
    const mox_json_text tools = m->opts->tools;
    m->tools = mox_alloc_array(TOOLS_MAX, sizeof *m->tools);
    if (!m->tools && b->status == MOX_OK)
        b->status = mox_fail_memory(b->err, TOOLS_MAX * sizeof *m->tools, "a grammar");
    if (b->status == MOX_OK && tools.n > MOX_GRAMMAR_TEXT_MAX)
        mox_gb_fail(b, MOX_E_LIMIT, "tools: at most %d bytes, and these have %zu", MOX_GRAMMAR_TEXT_MAX, tools.n);
    if (b->status == MOX_OK && tools.text)
        b->status = mox_json_each((mox_json_span){.name = "tools", .text = tools.text, .n = tools.n}, "tools", add_tool,
                                  m, b->err);
    if (m->n_tools > 0) return;
    if (m->opts->name)
        mox_gb_fail(b, MOX_E_ARG, "tools: there is no tool named %.*s", 100, m->opts->name);
    else
        mox_gb_fail(b, MOX_E_ARG, "tools: there is none that could be called");
}

/* ---- arguments -------------------------------------------------------------------------- */

static uint32_t arguments(maker *m, const tool *t, uint32_t next)
{
    return t->schema ? mox_gschema_emit(t->schema, next) : mox_gb_word(m->b, "{}", next);
}

typedef struct tags {
    const char *key_open, *key_close, *value_close; /* around a key, and from there on */
    const char *words[2];                           /* that a value must not contain */
    size_t n_words;
} tags;

/* A name that cannot stand in a tag would not be read back. */
static void check_name(maker *m, const char *name, size_t n)
{
    if (n == 0 || n > NAME_MAX_BYTES || memchr(name, '<', n) || memchr(name, '>', n) || memchr(name, '\n', n))
        mox_gb_fail(m->b, MOX_E_ARG, "tools: the name %.*s cannot be written in this model's tool calls",
                    n > 100 ? 100 : (int)n, name);
}

static uint32_t tagged_arguments(maker *m, const tool *t, const tags *k, uint32_t next)
{
    const mox_gparam *all[PARAMS_MAX];
    size_t n = 0;
    for (const mox_gparam *p = t->schema ? mox_gschema_params(t->schema) : NULL; p; p = p->next) {
        if (n == PARAMS_MAX)
            return mox_gb_fail(m->b, MOX_E_LIMIT, "tools: a tool has more than %d parameters", PARAMS_MAX);
        all[n++] = p;
    }
    while (n-- > 0 && m->b->status == MOX_OK) {
        const mox_gparam *p = all[n];
        check_name(m, p->name, p->n);
        const uint32_t close = mox_gb_word(m->b, k->value_close, next);
        const uint32_t value = mox_gschema_emit_tagged(t->schema, p, k->words, k->n_words, close);
        const uint32_t key = mox_gb_text(m->b, p->name, p->n, mox_gb_word(m->b, k->key_close, value));
        const uint32_t one = mox_gb_word(m->b, k->key_open, key);
        next = p->required ? one : mox_gb_either(m->b, one, next);
    }
    return next;
}

/* ---- formats ------------------------------------------------------------------------------ */

static uint32_t hermes(maker *m, const tool *t, uint32_t next)
{
    mox_gb *b = m->b;
    b->nest++; /* the call is an object, too */
    const uint32_t end = mox_gb_word(b, "}\n", mox_gb_marker(b, "</tool_call>", next));
    const uint32_t rest = mox_gb_word(b, ", \"arguments\": ", arguments(m, t, end));
    const uint32_t name = mox_gb_word(b, "{\"name\": ", mox_gb_json_literal(b, t->name, t->n, rest));
    b->nest--;
    return mox_gb_marker(b, "<tool_call>", mox_gb_byte(b, '\n', name));
}

static uint32_t qwen_xml(maker *m, const tool *t, uint32_t next)
{
    static const tags k = {"<parameter=", ">\n", "\n</parameter>\n", {"</parameter>", "</function>"}, 2};
    mox_gb *b = m->b;
    check_name(m, t->name, t->n);
    const uint32_t end = mox_gb_word(b, "</function>\n", mox_gb_marker(b, "</tool_call>", next));
    const uint32_t head = mox_gb_text(b, t->name, t->n, mox_gb_word(b, ">\n", tagged_arguments(m, t, &k, end)));
    return mox_gb_marker(b, "<tool_call>", mox_gb_word(b, "\n<function=", head));
}

static uint32_t glm(maker *m, const tool *t, uint32_t next)
{
    static const tags k = {"<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", {"</arg_value>"}, 1};
    mox_gb *b = m->b;
    check_name(m, t->name, t->n);
    const uint32_t body = mox_gb_byte(b, '\n', tagged_arguments(m, t, &k, mox_gb_marker(b, "</tool_call>", next)));
    return mox_gb_marker(b, "<tool_call>", mox_gb_text(b, t->name, t->n, body));
}

#define DEEPSEEK(word) "<\xef\xbd\x9ctool\xe2\x96\x81" word "\xef\xbd\x9c>"
#define DEEPSEEK_BEGIN                                                                                                 \
    DEEPSEEK("call\xe2\x96\x81"                                                                                        \
             "begin")
#define DEEPSEEK_SEP DEEPSEEK("sep")
#define DEEPSEEK_END                                                                                                   \
    DEEPSEEK("call\xe2\x96\x81"                                                                                        \
             "end")

static uint32_t deepseek_v3(maker *m, const tool *t, uint32_t next)
{
    mox_gb *b = m->b;
    const uint32_t end = mox_gb_word(b, "\n```", mox_gb_marker(b, DEEPSEEK_END, next));
    const uint32_t fence = mox_gb_word(b, "\n```json\n", arguments(m, t, end));
    const uint32_t name = mox_gb_marker(b, DEEPSEEK_SEP, mox_gb_text(b, t->name, t->n, fence));
    return mox_gb_marker(b, DEEPSEEK_BEGIN, mox_gb_word(b, "function", name));
}

static uint32_t deepseek_v31(maker *m, const tool *t, uint32_t next)
{
    mox_gb *b = m->b;
    const uint32_t rest = mox_gb_marker(b, DEEPSEEK_SEP, arguments(m, t, mox_gb_marker(b, DEEPSEEK_END, next)));
    return mox_gb_marker(b, DEEPSEEK_BEGIN, mox_gb_text(b, t->name, t->n, rest));
}

static uint32_t kimi(maker *m, const tool *t, uint32_t next)
{
    mox_gb *b = m->b;
    const uint32_t end = mox_gb_marker(b, "<|tool_call_end|>", next);
    const uint32_t rest = mox_gb_marker(b, "<|tool_call_argument_begin|>", arguments(m, t, end));
    const uint32_t more = mox_gb_repeat(b, mox_gb_set(b, "09", b->returns), 0, 3, rest);
    const uint32_t number = mox_gb_either(b, mox_gb_byte(b, '0', rest), mox_gb_set(b, "19", more));
    const uint32_t name = mox_gb_text(b, t->name, t->n, mox_gb_byte(b, ':', number));
    return mox_gb_marker(b, "<|tool_call_begin|>", mox_gb_word(b, "functions.", name));
}

typedef struct layout { /* of a reply that is calls */
    const char *name;   /* of the format */
    uint32_t (*call)(maker *m, const tool *t, uint32_t next);
    const char *begin, *between, *end; /* markers around all calls; text between two of them */
} layout;

static const layout layouts[] = {
    {"hermes", hermes, NULL, "\n", NULL},
    {"qwen-xml", qwen_xml, NULL, "\n", NULL},
    {"glm", glm, NULL, "\n", NULL},
    {"deepseek-v3", deepseek_v3,
     DEEPSEEK("calls\xe2\x96\x81"
              "begin"),
     "\n",
     DEEPSEEK("calls\xe2\x96\x81"
              "end")},
    {"deepseek-v3.1", deepseek_v31,
     DEEPSEEK("calls\xe2\x96\x81"
              "begin"),
     "",
     DEEPSEEK("calls\xe2\x96\x81"
              "end")},
    {"kimi-k2", kimi, "<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"},
};

static uint32_t any_call(maker *m, const layout *l, uint32_t next)
{
    uint32_t all = 0;
    for (uint32_t i = 0; i < m->n_tools && m->b->status == MOX_OK; i++) {
        m->tools[i].first_rule = m->b->g->n_rules;
        const uint32_t one = l->call(m, &m->tools[i], next);
        m->tools[i].end_rule = m->b->g->n_rules;
        all = i == 0 ? one : mox_gb_either(m->b, one, all);
    }
    return all;
}

static uint32_t make_reply(maker *m, const layout *l)
{
    mox_gb *b = m->b;
    uint32_t end = b->returns;
    if (l->end) end = mox_gb_marker(b, l->end, end);
    const uint32_t rule = mox_gb_rule(b); /* a call: made once, used for the first and for all that follow */
    mox_gb_define(b, rule, any_call(m, l, b->returns));
    if (m->opts->parallel) {
        const uint32_t more = mox_gb_word(b, l->between, mox_gb_call(b, rule, b->returns));
        end = mox_gb_repeat(b, more, 0, 127, end);
    }
    const uint32_t first = mox_gb_call(b, rule, end);
    return l->begin ? mox_gb_marker(b, l->begin, first) : first;
}

/* What the reply may be instead of calls. */
static uint32_t make_other(maker *m)
{
    mox_gb *b = m->b;
    if (m->opts->or_object) return mox_gb_json_object(b, b->returns);
    return mox_gschema_emit(mox_gschema_read(b, "schema", m->opts->or_schema, NULL), b->returns);
}

static mox_status finish_with_other(maker *m, uint32_t calls, mox_grammar **out, mox_err *err)
{
    const uint32_t other = make_other(m);
    MOX_TRY(mox_gb_finish(m->b, mox_gb_either(m->b, calls, other), out));
    if (mox_gnode_at(*out, other)->height != MOX_GRAMMAR_NEVER) return MOX_OK;
    mox_grammar_destroy(out); /* calls are possible, which must not hide that the other is not */
    return mox_fail(err, MOX_E_ARG, "no text can be like this: what is asked for contradicts itself, or never ends");
}

/* A rule that begins with itself is the form's, or that of a tool. */
static mox_status finish(maker *m, uint32_t calls, mox_grammar **out, mox_err *err)
{
    const bool other = m->opts->or_object || m->opts->or_schema.text;
    const mox_status status =
        m->b->status == MOX_OK && other ? finish_with_other(m, calls, out, err) : mox_gb_finish(m->b, calls, out);
    for (uint32_t i = 0; i < m->n_tools && status != MOX_OK; i++)
        if (m->b->bad_rule >= m->tools[i].first_rule && m->b->bad_rule < m->tools[i].end_rule)
            return mox_fail(err, status,
                            "tool %.100s: what its parameters may be begins with itself (left recursion), and would "
                            "never come to an end",
                            m->tools[i].name);
    return status;
}

mox_status mox_grammar_create_calls(mox_grammar **out, const mox_calls_opts *opts, mox_err *err)
{
    mox_gb b;
    const layout *l = NULL;
    *out = NULL;
    for (size_t i = 0; opts->format && i < sizeof layouts / sizeof *layouts; i++)
        if (strcmp(layouts[i].name, opts->format) == 0) l = &layouts[i];
    if (!l)
        return mox_fail(err, MOX_E_ARG,
                        "how this model writes tool calls is not known, so that none can be required of it");
    mox_gb_init(&b, MOX_GRAMMAR_JSON_DEPTH, err);
    maker m = {.b = &b, .opts = opts};
    read_tools(&m);
    const uint32_t calls = b.status == MOX_OK ? make_reply(&m, l) : 0;
    const mox_status status = finish(&m, calls, out, err);
    for (uint32_t i = 0; i < m.n_tools; i++) mox_free(m.tools[i].name);
    mox_free(m.tools);
    return status;
}
