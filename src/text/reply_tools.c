/* text/reply_tools.c -- which tools there are, and the types of their parameters.
 *
 * Reads what formats without types of their own need: names, and per parameter the
 * union of the JSON Schema types it may have (`type` as a word or a list, `nullable`,
 * and one level of `anyOf` and `oneOf`).  Everything else in a schema is somebody
 * else's business, and a parameter about which this says nothing has no type. */
#include "text/reply_internal.h"

#include "base/json_fields.h"

#include <string.h>

static const char what_tools[] = "a reply's tools";

/* ---- types ------------------------------------------------------------------ */

static unsigned type_of_word(const mox_json_token *token)
{
    static const char *const words[] = {"string", "integer", "number", "boolean", "object", "array", "null"};
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        if (token->type == MOX_JSON_STRING && mox_json_token_is(token, words[i])) return 1U << i;
    }
    return 0;
}

/* *types: of the field `type`, a word or a list of words. */
static mox_status read_type(mox_json_span type, unsigned *types, mox_err *err)
{
    mox_json_reader r;
    mox_json_token token;
    mox_status status = MOX_OK;
    *types = 0;
    if (!type.text) return MOX_OK;
    mox_json_reader_init(&r, type);
    do {
        status = mox_json_next(&r, &token, err);
        if (status == MOX_OK) *types |= type_of_word(&token);
    } while (status == MOX_OK && token.type != MOX_JSON_END);
    mox_json_reader_deinit(&r);
    return status;
}

static bool is_object(mox_json_span value) { return value.text && value.text[0] == '{'; }

typedef struct alternatives {
    unsigned types;
    bool any; /* one of them has no type */
} alternatives;

static mox_status add_alternative(void *user, mox_json_span schema, mox_err *err)
{
    static const char *const names[] = {"type"};
    alternatives *all = user;
    mox_json_span type = {0};
    unsigned types;
    if (is_object(schema)) MOX_TRY(mox_json_fields(schema, what_tools, names, 1, &type, err));
    MOX_TRY(read_type(type, &types, err));
    if (types == 0) all->any = true;
    all->types |= types;
    return MOX_OK;
}

static mox_status read_types(mox_json_span schema, unsigned *types, mox_err *err)
{
    enum { TYPE, NULLABLE, ANY_OF, ONE_OF, N_FIELDS };
    static const char *const names[N_FIELDS] = {"type", "nullable", "anyOf", "oneOf"};
    mox_json_span fields[N_FIELDS];
    *types = 0;
    if (!is_object(schema)) return MOX_OK;
    MOX_TRY(mox_json_fields(schema, what_tools, names, N_FIELDS, fields, err));
    alternatives all = {0};
    MOX_TRY(read_type(fields[TYPE], &all.types, err));
    for (int i = ANY_OF; i <= ONE_OF; i++) {
        if (!fields[i].text || fields[i].text[0] != '[') continue;
        MOX_TRY(mox_json_each(fields[i], what_tools, add_alternative, &all, err));
    }
    const bool nullable = fields[NULLABLE].text && fields[NULLABLE].text[0] == 't';
    if (nullable && all.types != 0) all.types |= MOX_TYPE_NULL;
    *types = all.any ? 0 : all.types;
    return MOX_OK;
}

/* ---- the list --------------------------------------------------------------- */

static mox_status copy_string(mox_reply_tools *t, const char *text, size_t n, const char **out, mox_err *err)
{
    void *copy;
    MOX_TRY(mox_region_take(&t->strings, n + 1, &copy, err));
    if (n > 0) memcpy(copy, text, n);
    *out = copy;
    return MOX_OK;
}

static mox_status read_params(mox_reply_tools *t, mox_json_reader *r, mox_err *err)
{
    mox_json_token key;
    MOX_TRY(mox_json_next(r, &key, err)); /* the beginning of the object */
    for (;;) {
        mox_json_span schema;
        mox_reply_param p;
        MOX_TRY(mox_json_next(r, &key, err));
        if (key.type != MOX_JSON_KEY) return MOX_OK;
        p.n_name = key.n;
        MOX_TRY(copy_string(t, key.text, key.n, &p.name, err));
        MOX_TRY(mox_json_skip(r, &schema, err));
        MOX_TRY(read_types(schema, &p.types, err));
        MOX_TRY(mox_buffer_reserve(&t->params, t->n_params + 1, sizeof p, what_tools, err));
        ((mox_reply_param *)t->params.data)[t->n_params++] = p;
    }
}

static mox_status read_properties(mox_reply_tools *t, mox_json_span schema, mox_err *err)
{
    static const char *const names[] = {"properties"};
    mox_json_span properties = {0};
    if (!is_object(schema)) return MOX_OK;
    MOX_TRY(mox_json_fields(schema, what_tools, names, 1, &properties, err));
    if (!is_object(properties)) return MOX_OK;
    mox_json_reader r;
    mox_json_reader_init(&r, properties);
    const mox_status status = read_params(t, &r, err);
    mox_json_reader_deinit(&r);
    return status;
}

static mox_status add_tool(void *user, mox_json_span tool, mox_err *err)
{
    enum { FUNCTION, NAME, PARAMETERS, INPUT_SCHEMA, N_FIELDS };
    static const char *const names[N_FIELDS] = {"function", "name", "parameters", "input_schema"};
    mox_reply_tools *t = user;
    mox_json_span fields[N_FIELDS];
    MOX_TRY(mox_json_fields(tool, "a tool", names, N_FIELDS, fields, err));
    if (is_object(fields[FUNCTION])) {
        const mox_json_span function = fields[FUNCTION];
        MOX_TRY(mox_json_fields(function, "a tool's function", names, N_FIELDS, fields, err));
    }
    char *name;
    mox_reply_tool entry = {.first_param = t->n_params};
    MOX_TRY(mox_json_get_string(fields[NAME], "a tool's name", &name, &entry.n_name, err));
    if (!name) return MOX_OK;
    mox_status status = copy_string(t, name, entry.n_name, &entry.name, err);
    mox_free(name);
    MOX_TRY(status);
    MOX_TRY(read_properties(t, fields[PARAMETERS].text ? fields[PARAMETERS] : fields[INPUT_SCHEMA], err));
    entry.n_params = t->n_params - entry.first_param;
    MOX_TRY(mox_buffer_reserve(&t->tools, t->n_tools + 1, sizeof entry, what_tools, err));
    ((mox_reply_tool *)t->tools.data)[t->n_tools++] = entry;
    return MOX_OK;
}

mox_status mox_reply_tools_init(mox_reply_tools *t, mox_json_text json, mox_err *err)
{
    *t = (mox_reply_tools){0};
    if (!json.text) return MOX_OK;
    const mox_json_span array = {.name = "tools", .text = json.text, .n = json.n};
    const mox_status status = mox_json_each(array, "tools", add_tool, t, err);
    if (status != MOX_OK) mox_reply_tools_deinit(t);
    return status;
}

void mox_reply_tools_deinit(mox_reply_tools *t)
{
    mox_buffer_deinit(&t->tools);
    mox_buffer_deinit(&t->params);
    mox_region_deinit(&t->strings);
    *t = (mox_reply_tools){0};
}

const mox_reply_tool *mox_reply_tools_find(const mox_reply_tools *t, const char *name, size_t n)
{
    const mox_reply_tool *tools = t->tools.data;
    for (size_t i = 0; i < t->n_tools; i++) {
        if (tools[i].n_name == n && memcmp(tools[i].name, name, n) == 0) return &tools[i];
    }
    return NULL;
}

unsigned mox_reply_tools_types(const mox_reply_tools *t, const mox_reply_tool *tool, const char *param, size_t n)
{
    for (size_t i = 0; tool && i < tool->n_params; i++) {
        const mox_reply_param *p = (const mox_reply_param *)t->params.data + tool->first_param + i;
        if (p->n_name == n && memcmp(p->name, param, n) == 0) return p->types;
    }
    return 0;
}
