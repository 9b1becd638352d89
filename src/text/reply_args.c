/* text/reply_args.c -- the arguments of a call, as the JSON text of an object.
 *
 * Two ways there.  A model that writes JSON is taken at its word: its own bytes are the
 * arguments, once the strict reader agrees.  A model that writes tagged values leaves
 * their types to the schema, so the object is composed here:
 *
 *   string                      the value, as a JSON string
 *   other types                 the value itself where it is JSON of any type, or True,
 *                               False, None as templates print them; else a string
 *   string or other types       the value itself where it is JSON of one of the other
 *                               types; else a string
 *   no type known               a string, or for a format whose template writes JSON for
 *                               what is no string, the value itself where it is that
 *
 * Invariant: found_arguments is a JSON object that mox_json_reader accepts. */
#include "text/reply_internal.h"

#include "base/plant.h"

#include <string.h>

static const char what_args[] = "a tool call's arguments";

/* ---- JSON as it is ---------------------------------------------------------- */

typedef struct json_kind {
    bool ok; /* it is one JSON value and nothing else */
    mox_json_type type;
    int depth;
} json_kind;

/* Reads text once; what is wrong with it is no error here. */
static mox_status look_at_json(const char *text, size_t n, json_kind *out, mox_err *err)
{
    mox_json_reader r;
    mox_json_token token;
    mox_status status;
    bool first = true;
    mox_err local = {0};
    *out = (json_kind){0};
    mox_json_reader_init(&r, (mox_json_span){.name = what_args, .text = text, .n = n});
    do {
        status = mox_json_next(&r, &token, &local);
        if (status != MOX_OK) break;
        if (first) out->type = token.type;
        if (r.depth > out->depth) out->depth = r.depth;
        first = false;
    } while (token.type != MOX_JSON_END);
    mox_json_reader_deinit(&r);
    out->ok = status == MOX_OK;
    if (status != MOX_E_MEMORY) return MOX_OK;
    if (err) *err = local;
    return status;
}

static bool is_blank_text(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && mox_is_blank(text[i])) i++;
    return i == n;
}

static mox_status copy_string(mox_scan *s, mox_json_span value, size_t *n, mox_err *err)
{
    mox_json_reader r;
    mox_json_token token;
    mox_json_reader_init(&r, value);
    mox_status status = mox_json_next(&r, &token, err);
    if (status == MOX_OK) status = mox_buffer_reserve(&s->work, token.n + 1, 1, what_args, err);
    if (status == MOX_OK) {
        if (token.n > 0) memcpy(s->work.data, token.text, token.n);
        *n = token.n;
    }
    mox_json_reader_deinit(&r);
    return status;
}

mox_status mox_scan_take_arguments(mox_scan *s, mox_json_span value, bool *ok, mox_err *err)
{
    json_kind kind = {.ok = true, .type = MOX_JSON_NULL};
    if (value.text) MOX_TRY(look_at_json(value.text, value.n, &kind, err));
    if (kind.ok && kind.type == MOX_JSON_STRING) {
        MOX_TRY(copy_string(s, value, &value.n, err));
        value.text = s->work.data;
        MOX_TRY(look_at_json(value.text, value.n, &kind, err));
        if (is_blank_text(value.text, value.n)) kind = (json_kind){.ok = true, .type = MOX_JSON_NULL};
    }
    *ok = kind.ok && (kind.type == MOX_JSON_OBJECT || kind.type == MOX_JSON_NULL);
    const bool none = kind.type == MOX_JSON_NULL;
    s->found_arguments = none ? "{}" : value.text;
    s->n_found_arguments = none ? 2 : value.n;
    return MOX_OK;
}

/* ---- composed --------------------------------------------------------------- */

mox_status mox_scan_add_arg(mox_scan *s, bool *ok, mox_err *err)
{
    const mox_span key = s->key;
    const char *text = s->in.text;
    const mox_reply_arg *args = s->args.data;
    *ok = s->n_args < MOX_REPLY_ARGS_MAX;
    for (size_t i = 0; i < s->n_args && *ok; i++) {
        const mox_span other = args[i].key;
        const size_t n = other.end - other.begin;
        if (n == key.end - key.begin && memcmp(text + other.begin, text + key.begin, n) == 0) *ok = false;
    }
    if (!*ok) return MOX_OK;
    MOX_TRY(mox_buffer_reserve(&s->args, s->n_args + 1, sizeof *args, what_args, err));
    ((mox_reply_arg *)s->args.data)[s->n_args++] = (mox_reply_arg){key, s->value};
    MOX_PLANT(key.end - key.begin > 40);
    return MOX_OK;
}

static mox_status put(mox_scan *s, const char *text, size_t n, mox_err *err)
{
    MOX_TRY(mox_buffer_reserve(&s->work, s->n_found_arguments + n, 1, what_args, err));
    if (n > 0) memcpy((char *)s->work.data + s->n_found_arguments, text, n);
    s->n_found_arguments += n;
    return MOX_OK;
}

static mox_status put_string(mox_scan *s, const char *text, size_t n, mox_err *err)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt", hex[] = "0123456789abcdef";
    size_t plain = 0;
    MOX_TRY(put(s, "\"", 1, err));
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        const char *at = c ? strchr(from, c) : NULL;
        if (!at && c >= 0x20) continue;
        const char escape[6] = {'\\', at ? to[at - from] : 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        MOX_TRY(put(s, text + plain, i - plain, err));
        MOX_TRY(put(s, escape, at ? 2 : 6, err));
        plain = i + 1;
    }
    MOX_TRY(put(s, text + plain, n - plain, err));
    return put(s, "\"", 1, err);
}

static unsigned types_of(mox_json_type type)
{
    switch (type) {
    case MOX_JSON_NULL: return MOX_TYPE_NULL;
    case MOX_JSON_FALSE:
    case MOX_JSON_TRUE: return MOX_TYPE_BOOLEAN;
    case MOX_JSON_NUMBER: return MOX_TYPE_INTEGER | MOX_TYPE_NUMBER;
    case MOX_JSON_OBJECT: return MOX_TYPE_OBJECT;
    case MOX_JSON_ARRAY: return MOX_TYPE_ARRAY;
    default: return MOX_TYPE_STRING;
    }
}

/* What a template prints for these values when it does not use tojson. */
static const char *printed_word(const char *text, size_t n, unsigned types)
{
    static const struct {
        const char *printed, *json;
        unsigned type;
    } words[] = {
        {"True", "true", MOX_TYPE_BOOLEAN}, {"False", "false", MOX_TYPE_BOOLEAN}, {"None", "null", MOX_TYPE_NULL}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if ((types & words[i].type) && strlen(words[i].printed) == n && memcmp(words[i].printed, text, n) == 0) {
            return words[i].json;
        }
    }
    return NULL;
}

static mox_status put_value(mox_scan *s, mox_span value, unsigned types, bool untyped_json, mox_err *err)
{
    const char *text = s->in.text + value.begin;
    const size_t n = value.end - value.begin;
    const unsigned others = types & ~(unsigned)MOX_TYPE_STRING;
    if (types == 0 ? !untyped_json : others == 0) return put_string(s, text, n, err);
    json_kind kind;
    MOX_TRY(look_at_json(text, n, &kind, err));
    bool as_json = kind.ok && kind.depth < MOX_JSON_DEPTH_MAX; /* it stands one deeper */
    if (types == 0) {
        as_json = as_json && kind.type != MOX_JSON_STRING;
    } else if (types != others) {
        as_json = as_json && (types_of(kind.type) & others);
    }
    size_t begin = 0, end = n;
    while (begin < end && mox_is_blank(text[begin])) begin++;
    while (begin < end && mox_is_blank(text[end - 1])) end--;
    if (as_json) return put(s, text + begin, end - begin, err);
    const char *word = types == others ? printed_word(text + begin, end - begin, types) : NULL;
    return word ? put(s, word, strlen(word), err) : put_string(s, text, n, err);
}

mox_status mox_scan_compose_args(mox_scan *s, bool untyped_json, mox_err *err)
{
    const char *text = s->in.text;
    const mox_reply_arg *args = s->args.data;
    const mox_reply_tool *tool = mox_reply_tools_find(s->tools, text + s->name.begin, s->name.end - s->name.begin);
    s->n_found_arguments = 0;
    MOX_TRY(put(s, "{", 1, err));
    for (size_t i = 0; i < s->n_args; i++) {
        const char *key = text + args[i].key.begin;
        const size_t n_key = args[i].key.end - args[i].key.begin;
        if (i > 0) MOX_TRY(put(s, ", ", 2, err));
        MOX_TRY(put_string(s, key, n_key, err));
        MOX_TRY(put(s, ": ", 2, err));
        const unsigned types = mox_reply_tools_types(s->tools, tool, key, n_key);
        MOX_TRY(put_value(s, args[i].value, types, untyped_json, err));
    }
    MOX_TRY(put(s, "}", 1, err));
    s->found_arguments = s->work.data;
    s->found_name = text + s->name.begin;
    s->n_found_name = s->name.end - s->name.begin;
    return MOX_OK;
}
