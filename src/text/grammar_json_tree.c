/* text/grammar_json_tree.c -- the JSON text of a schema as a tree.
 *
 * Order and spelling are kept.  The number of values is limited, because each takes more
 * memory than it takes text. */
#include "text/grammar_schema.h"

#include "base/writer.h"

#include <stdio.h>
#include <string.h>

enum { VALUES_MAX = 100000 };

static const char *copy(mox_gb *b, const char *text, size_t n)
{
    char *out = mox_gb_take(b, n + 1);
    if (out && n > 0) memcpy(out, text, n);
    return out;
}

static mox_gjson *add_value(mox_gb *b, mox_gjson *parent, const mox_json_token *token, const char *key, size_t n_key)
{
    mox_gjson *v = mox_gb_take(b, sizeof *v);
    if (!v) return NULL;
    *v = (mox_gjson){.type = token->type, .key = key, .n_key = n_key, .parent = parent, .text = "", .n = 0};
    if (token->type == MOX_JSON_STRING || token->type == MOX_JSON_NUMBER) {
        v->text = copy(b, token->text, token->n);
        v->n = token->n;
    }
    if (!parent) return v;
    if (parent->last)
        parent->last->next = v;
    else
        parent->first = v;
    parent->last = v;
    return v;
}

static mox_gjson *read_all(mox_gb *b, mox_json_reader *r)
{
    mox_gjson *root = NULL, *open = NULL;
    const char *key = NULL;
    size_t n_key = 0;
    for (uint32_t n = 0; b->status == MOX_OK; n++) {
        mox_json_token token;
        b->status = mox_json_next(r, &token, b->err);
        if (b->status != MOX_OK || token.type == MOX_JSON_END) break;
        if (n > VALUES_MAX)
            return (void)mox_gb_fail(b, MOX_E_LIMIT, "%s: a schema has at most %d values", r->in.name, VALUES_MAX),
                   NULL;
        if (token.type == MOX_JSON_KEY) {
            key = copy(b, token.text, token.n);
            n_key = token.n;
            continue;
        }
        if (token.type == MOX_JSON_OBJECT_END || token.type == MOX_JSON_ARRAY_END) {
            open = open->parent;
            continue;
        }
        mox_gjson *v = add_value(b, open, &token, open && open->type == MOX_JSON_OBJECT ? key : NULL, n_key);
        if (!root) root = v;
        if (token.type == MOX_JSON_OBJECT || token.type == MOX_JSON_ARRAY) open = v;
    }
    return b->status == MOX_OK ? root : NULL;
}

mox_gjson *mox_gjson_read(mox_gb *b, mox_json_span text)
{
    mox_json_reader r;
    if (b->status != MOX_OK) return NULL;
    if (text.n > MOX_GRAMMAR_TEXT_MAX)
        return (void)mox_gb_fail(b, MOX_E_LIMIT, "%s: a schema has at most %d bytes, and this has %zu", text.name,
                                 MOX_GRAMMAR_TEXT_MAX, text.n),
               NULL;
    mox_json_reader_init(&r, text);
    mox_gjson *root = read_all(b, &r);
    mox_json_reader_deinit(&r);
    return root;
}

const mox_gjson *mox_gjson_member(const mox_gjson *object, const char *key, size_t n)
{
    const mox_gjson *found = NULL; /* the last one counts, as with most readers */
    if (object->type != MOX_JSON_OBJECT) return NULL;
    for (const mox_gjson *m = object->first; m; m = m->next)
        if (m->n_key == n && memcmp(m->key, key, n) == 0) found = m;
    return found;
}

/* ---- and back -------------------------------------------------------------------- */

static mox_status write_value(mox_writer *w, const mox_gjson *v, mox_err *err)
{
    static const char *const words[] = {[MOX_JSON_NULL] = "null", [MOX_JSON_FALSE] = "false", [MOX_JSON_TRUE] = "true"};
    const bool object = v->type == MOX_JSON_OBJECT;
    switch (v->type) {
    case MOX_JSON_STRING: return mox_write_json(w, v->text, v->n, err);
    case MOX_JSON_NUMBER: return mox_write(w, v->text, v->n, err);
    case MOX_JSON_OBJECT:
    case MOX_JSON_ARRAY: break;
    default: return mox_write_text(w, words[v->type], err);
    }
    MOX_TRY(mox_write_text(w, object ? "{" : "[", err));
    for (const mox_gjson *c = v->first; c; c = c->next) { /* no deeper than the reader goes */
        if (c != v->first) MOX_TRY(mox_write_text(w, ", ", err));
        if (object) MOX_TRY(mox_write_json(w, c->key, c->n_key, err));
        if (object) MOX_TRY(mox_write_text(w, ": ", err));
        MOX_TRY(write_value(w, c, err));
    }
    return mox_write_text(w, object ? "}" : "]", err);
}

const char *mox_gjson_text(mox_gb *b, const mox_gjson *value, size_t *n)
{
    mox_writer w = {0};
    if (b->status == MOX_OK) b->status = write_value(&w, value, b->err);
    *n = w.n;
    const char *text = b->status == MOX_OK ? copy(b, mox_writer_text(&w), w.n) : NULL;
    mox_writer_deinit(&w);
    return text;
}

const char *mox_gjson_path(const mox_gjson *value, char out[MOX_GPATH])
{
    size_t at = MOX_GPATH - 1;
    out[at] = '\0';
    for (const mox_gjson *v = value; v->parent; v = v->parent) {
        char number[24];
        const char *name = v->key;
        size_t n = v->n_key, index = 0;
        if (v->parent->type == MOX_JSON_ARRAY) {
            for (const mox_gjson *c = v->parent->first; c != v; c = c->next) index++;
            n = (size_t)snprintf(number, sizeof number, "%zu", index);
            name = number;
        }
        if (n + 4 > at) {
            memcpy(out + at - 3, "...", 3);
            return out + at - 3;
        }
        at -= n;
        if (n > 0) memcpy(out + at, name, n);
        out[--at] = '/';
    }
    return out + at;
}
