/* text/grammar_schema.c -- reads JSON schemas: keywords, references, allOf.
 *
 * Every keyword is in one of three lists: understood here, a remark that says nothing about
 * values, or neither.  The last is refused with its name and place, because a reply that
 * ignores part of its schema is worse than none; a lenient reader drops it with a warning.
 *
 * Where a schema leaves open what else there may be, less is made than it allows: a schema
 * that lists properties and does not speak of others has none, and one whose keywords are all
 * about one type is of that type. */
#include "text/grammar_schema.h"

#include "base/plant.h"

#include <stdio.h>
#include <string.h>

enum { FOLD_DEPTH_MAX = 64, LENGTH_MAX = 1 << 22, FOLD_WORK = 32 };

/* ---- what is said to the caller ----------------------------------------------------- */

bool mox_gschema_refuse(mox_gschema *s, const mox_gjson *at, mox_status status, const char *why)
{
    char path[MOX_GPATH], sentence[400];
    const char *where = mox_gjson_path(at, path);
    if (s->b->status != MOX_OK) return false;
    const char *root = *where ? where : "the whole schema";
    if (!s->opts.lenient) {
        mox_gb_fail(s->b, status, "%s: %s %s", s->name, root, why);
        return false;
    }
    snprintf(sentence, sizeof sentence, "%s: %s %s; replies are not held to it", s->name, root, why);
    if (s->opts.warn) s->opts.warn(s->opts.warn_user, sentence);
    return true;
}

static bool is(const mox_gjson *v, mox_json_type type) { return v && v->type == type; }
static bool text_is(const mox_gjson *v, const char *text)
{
    return v->n == strlen(text) && memcmp(v->text, text, v->n) == 0;
}

static bool in_list(const char *const *list, const char *key, size_t n)
{
    for (; *list; list++)
        if (strlen(*list) == n && memcmp(*list, key, n) == 0) return true;
    return false;
}

bool mox_gschema_is_remark(const mox_gjson *m)
{
    static const char *const remarks[] = {"title",
                                          "description",
                                          "default",
                                          "examples",
                                          "example",
                                          "$schema",
                                          "$id",
                                          "id",
                                          "$comment",
                                          "$defs",
                                          "definitions",
                                          "$anchor",
                                          "$vocabulary",
                                          "deprecated",
                                          "readOnly",
                                          "writeOnly",
                                          "contentEncoding",
                                          "contentMediaType",
                                          "contentSchema",
                                          "discriminator",
                                          "xml",
                                          "externalDocs",
                                          "strict",
                                          "name",
                                          "markdownDescription",
                                          "enumDescriptions",
                                          "enumNames",
                                          "propertyOrdering",
                                          "$dynamicAnchor",
                                          NULL};
    return in_list(remarks, m->key, m->n_key) || (m->n_key > 1 && memcmp(m->key, "x-", 2) == 0);
}

static bool is_known(const mox_gjson *m)
{
    static const char *const known[] = {"type",
                                        "nullable",
                                        "enum",
                                        "const",
                                        "minLength",
                                        "maxLength",
                                        "pattern",
                                        "format",
                                        "minimum",
                                        "maximum",
                                        "exclusiveMinimum",
                                        "exclusiveMaximum",
                                        "properties",
                                        "required",
                                        "additionalProperties",
                                        "minProperties",
                                        "maxProperties",
                                        "items",
                                        "prefixItems",
                                        "additionalItems",
                                        "minItems",
                                        "maxItems",
                                        "anyOf",
                                        "oneOf",
                                        "allOf",
                                        "$ref",
                                        NULL};
    return in_list(known, m->key, m->n_key);
}

/* Keywords of JSON Schema that could only be held by looking at the finished value. */
static bool is_harmless(const mox_gjson *m)
{
    if (m->n_key == 11 && memcmp(m->key, "uniqueItems", 11) == 0) return m->type == MOX_JSON_FALSE;
    static const char *const when_true[] = {"unevaluatedProperties", "unevaluatedItems", NULL};
    return in_list(when_true, m->key, m->n_key) && m->type == MOX_JSON_TRUE;
}

static void check_keywords(mox_gschema *s, const mox_gjson *schema)
{
    for (const mox_gjson *m = schema->first; m; m = m->next) {
        if (is_known(m) || mox_gschema_is_remark(m) || is_harmless(m)) continue;
        if (!mox_gschema_refuse(s, m, MOX_E_ARG, "is a keyword that is not supported")) return;
    }
}

/* ---- lists --------------------------------------------------------------------------- */

void mox_glink_add(mox_gb *b, mox_glink **list, const mox_gjson *schema)
{
    for (; *list; list = &(*list)->next) {
        b->work.left--;
        if ((*list)->schema == schema) return;
    }
    mox_gb_check_work(b);
    mox_glink *link = mox_gb_take(b, sizeof *link);
    if (!link) return;
    link->schema = schema;
    *list = link;
}

/* ---- references ------------------------------------------------------------------------ */

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* One part of a JSON pointer, up to the next slash, without its escapes. */
static size_t read_part(const char *text, size_t n, size_t *at, char *out)
{
    size_t length = 0;
    for (; *at < n && text[*at] != '/'; ++*at) {
        char c = text[*at];
        if (c == '%' && *at + 2 < n && hex(text[*at + 1]) >= 0 && hex(text[*at + 2]) >= 0) {
            c = (char)(hex(text[*at + 1]) * 16 + hex(text[*at + 2]));
            *at += 2;
        }
        if (c == '~' && *at + 1 < n && (text[*at + 1] == '0' || text[*at + 1] == '1'))
            c = text[++*at] == '0' ? '~' : '/';
        out[length++] = c;
    }
    return length;
}

static const mox_gjson *child(const mox_gjson *v, const char *part, size_t n)
{
    if (v->type == MOX_JSON_OBJECT) return mox_gjson_member(v, part, n);
    if (v->type != MOX_JSON_ARRAY || n == 0 || n > 6) return NULL;
    size_t index = 0;
    for (size_t i = 0; i < n; i++) {
        if (part[i] < '0' || part[i] > '9') return NULL;
        index = index * 10 + (size_t)(part[i] - '0');
    }
    const mox_gjson *c = v->first;
    while (c && index-- > 0) c = c->next;
    return c;
}

const mox_gjson *mox_gschema_resolve(mox_gschema *s, const mox_gjson *ref)
{
    const mox_gjson *v = s->root;
    if (ref->type != MOX_JSON_STRING || ref->n == 0 || ref->text[0] != '#' || (ref->n > 1 && ref->text[1] != '/')) {
        mox_gschema_refuse(
            s, ref, MOX_E_ARG,
            "refers to something outside of this schema: only references such as #/$defs/name are followed");
        return NULL;
    }
    char *part = mox_gb_take(s->b, ref->n);
    for (size_t at = 1; part && v && at < ref->n;) {
        at++; /* the slash */
        const size_t n = read_part(ref->text, ref->n, &at, part);
        v = child(v, part, n);
    }
    MOX_PLANT(v && ref->n > 9 && ref->text[ref->n - 1] == '7');
    if (!v) mox_gschema_refuse(s, ref, MOX_E_ARG, "refers to something that is not there");
    return v;
}

/* ---- folding --------------------------------------------------------------------------- */

typedef struct fold {
    mox_gschema *s;
    mox_gshape *out;
    const uint32_t *choices;
    uint32_t n_choices;
    int depth;
} fold;

static void fold_schema(fold *f, const mox_gjson *schema);

static unsigned type_of_word(const mox_gjson *word)
{
    static const struct {
        const char *name;
        unsigned type;
    } names[] = {{"null", MOX_GT_NULL},     {"boolean", MOX_GT_BOOLEAN}, {"integer", MOX_GT_WHOLE},
                 {"number", MOX_GT_NUMBER}, {"string", MOX_GT_STRING},   {"array", MOX_GT_ARRAY},
                 {"object", MOX_GT_OBJECT}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (word->type == MOX_JSON_STRING && text_is(word, names[i].name)) return names[i].type;
    return 0;
}

static void fold_type(fold *f, const mox_gjson *schema)
{
    const mox_gjson *type = mox_gjson_get(schema, "type"), *nullable = mox_gjson_get(schema, "nullable");
    unsigned types = 0;
    if (!type) return;
    const bool list = type->type == MOX_JSON_ARRAY;
    for (const mox_gjson *t = list ? type->first : type; t; t = list ? t->next : NULL) {
        const unsigned one = type_of_word(t);
        if (one == 0 && !mox_gschema_refuse(f->s, t, MOX_E_ARG, "is no type of JSON")) return;
        if (one == 0) return; /* dropped: any type */
        types |= one;
    }
    if (is(nullable, MOX_JSON_TRUE)) types |= MOX_GT_NULL;
    f->out->types &= types;
}

/* A count, at most LENGTH_MAX; *huge: it is more.  False: it is none, or dropped. */
static bool read_count(fold *f, const mox_gjson *at, uint32_t *out, bool *huge)
{
    mox_gbound n = {0};
    *huge = false;
    const bool read = at->type == MOX_JSON_NUMBER && mox_gbound_read(f->s->b, at->text, at->n, &n);
    if (f->s->b->status != MOX_OK) return false;
    if (at->type != MOX_JSON_NUMBER || (read && (n.negative || n.n_all > n.n_whole))) {
        mox_gschema_refuse(f->s, at, MOX_E_ARG, "must be a whole number that is not negative");
        return false;
    }
    *out = 0;
    for (uint32_t i = 0; read && i < n.n_whole && *out <= LENGTH_MAX; i++)
        *out = *out * 10 + (uint32_t)(unsigned char)n.digits[i];
    *huge = !read || *out > LENGTH_MAX;
    return true;
}

static void fold_min(fold *f, const mox_gjson *schema, const char *key, unsigned type, uint32_t *min)
{
    const mox_gjson *at = mox_gjson_get(schema, key);
    uint32_t n;
    bool huge;
    if (!at) return;
    f->out->hints |= type;
    if (!read_count(f, at, &n, &huge)) return;
    if (huge)
        mox_gschema_refuse(f->s, at, MOX_E_LIMIT, "is more than any reply has");
    else if (n > *min)
        *min = n;
}

static void fold_max(fold *f, const mox_gjson *schema, const char *key, unsigned type, uint32_t *max)
{
    const mox_gjson *at = mox_gjson_get(schema, key);
    uint32_t n;
    bool huge;
    if (!at) return;
    f->out->hints |= type;
    if (read_count(f, at, &n, &huge) && !huge && n < *max) *max = n;
}

/* A least value far below, or a greatest far above, what is ever written. */
static bool is_far(const mox_gjson *at, bool lower)
{
    const char *e = memchr(at->text, 'e', at->n), *point = memchr(at->text, '.', at->n);
    if (!e) e = memchr(at->text, 'E', at->n);
    return (at->text[0] == '-') == lower && (e ? e[1] != '-' : !point);
}

/* lower: the bound is the least value, and the larger of two counts. */
static void fold_bound(fold *f, const mox_gjson *schema, const char *key, bool lower, bool exclusive)
{
    const mox_gjson *at = mox_gjson_get(schema, key);
    mox_gbound *bound = lower ? &f->out->low : &f->out->high, n;
    if (!at) return;
    f->out->hints |= MOX_GT_NUMBER;
    if (at->type != MOX_JSON_NUMBER) {
        mox_gschema_refuse(f->s, at, MOX_E_ARG, "must be a number");
        return;
    }
    if (!mox_gbound_read(f->s->b, at->text, at->n, &n)) {
        if (is_far(at, lower)) return;
        mox_gschema_refuse(f->s, at, MOX_E_LIMIT, "is a bound with more than 40 digits");
        return;
    }
    if (f->s->b->status != MOX_OK) return;
    n.exclusive = exclusive;
    const int order = bound->set ? mox_gbound_compare(&n, bound) : lower ? 1 : -1;
    if (lower ? order > 0 : order < 0)
        *bound = n;
    else if (order == 0)
        bound->exclusive = bound->exclusive || exclusive;
}

static void fold_numbers(fold *f, const mox_gjson *schema)
{
    const mox_gjson *low = mox_gjson_get(schema, "exclusiveMinimum"), *high = mox_gjson_get(schema, "exclusiveMaximum");
    const bool old_low = is(low, MOX_JSON_TRUE) || is(low, MOX_JSON_FALSE); /* draft 4: it speaks of minimum */
    const bool old_high = is(high, MOX_JSON_TRUE) || is(high, MOX_JSON_FALSE);
    fold_bound(f, schema, "minimum", true, is(low, MOX_JSON_TRUE));
    fold_bound(f, schema, "maximum", false, is(high, MOX_JSON_TRUE));
    if (!old_low) fold_bound(f, schema, "exclusiveMinimum", true, true);
    if (!old_high) fold_bound(f, schema, "exclusiveMaximum", false, true);
}

static void fold_strings(fold *f, const mox_gjson *schema)
{
    static const char *const keys[] = {"pattern", "format"};
    fold_min(f, schema, "minLength", MOX_GT_STRING, &f->out->min_length);
    fold_max(f, schema, "maxLength", MOX_GT_STRING, &f->out->max_length);
    for (int i = 0; i < 2; i++) {
        const mox_gjson *at = mox_gjson_get(schema, keys[i]);
        if (!at) continue;
        if (at->type != MOX_JSON_STRING) {
            mox_gschema_refuse(f->s, at, MOX_E_ARG, "must be a string");
            continue;
        }
        const char *format = i == 1 ? mox_gschema_format(at->text, at->n) : "x";
        if (!format) mox_gschema_refuse(f->s, at, MOX_E_ARG, "is a format that is not supported");
        if (!format || !*format) continue;
        f->out->hints |= MOX_GT_STRING;
        mox_glink_add(f->s->b, &f->out->patterns, at);
    }
}

static void fold_values(fold *f, const mox_gjson *schema)
{
    const mox_gjson *list = mox_gjson_get(schema, "enum"), *one = mox_gjson_get(schema, "const");
    if (list && list->type != MOX_JSON_ARRAY)
        mox_gschema_refuse(f->s, list, MOX_E_ARG, "must be an array of values");
    else if (list)
        mox_glink_add(f->s->b, &f->out->values, list);
    if (one) mox_glink_add(f->s->b, &f->out->values, one);
}

static void fold_objects(fold *f, const mox_gjson *schema)
{
    mox_gshape *o = f->out;
    const mox_gjson *properties = mox_gjson_get(schema, "properties"), *required = mox_gjson_get(schema, "required");
    const mox_gjson *extra = mox_gjson_get(schema, "additionalProperties");
    if (properties && properties->type != MOX_JSON_OBJECT)
        mox_gschema_refuse(f->s, properties, MOX_E_ARG, "must be an object of schemas");
    if (required && required->type != MOX_JSON_ARRAY)
        mox_gschema_refuse(f->s, required, MOX_E_ARG, "must be an array of names");
    for (const mox_gjson *r = is(required, MOX_JSON_ARRAY) ? required->first : NULL; r; r = r->next)
        if (r->type != MOX_JSON_STRING) mox_gschema_refuse(f->s, r, MOX_E_ARG, "must be a name");
    fold_min(f, schema, "minProperties", MOX_GT_OBJECT, &o->min_properties);
    fold_max(f, schema, "maxProperties", MOX_GT_OBJECT, &o->max_properties);
    if (mox_gjson_get(schema, "minProperties")) o->min_properties_at = mox_gjson_get(schema, "minProperties");
    if (mox_gjson_get(schema, "maxProperties")) o->max_properties_at = mox_gjson_get(schema, "maxProperties");
    if (!properties && !required && !extra) return;
    o->hints |= MOX_GT_OBJECT;
    mox_glink_add(f->s->b, &o->objects, schema);
}

static void fold_arrays(fold *f, const mox_gjson *schema)
{
    const mox_gjson *prefix = mox_gjson_get(schema, "prefixItems"), *items = mox_gjson_get(schema, "items");
    fold_min(f, schema, "minItems", MOX_GT_ARRAY, &f->out->min_items);
    fold_max(f, schema, "maxItems", MOX_GT_ARRAY, &f->out->max_items);
    if (prefix && prefix->type != MOX_JSON_ARRAY)
        mox_gschema_refuse(f->s, prefix, MOX_E_ARG, "must be an array of schemas");
    if (!prefix && !items) return;
    f->out->hints |= MOX_GT_ARRAY;
    mox_glink_add(f->s->b, &f->out->arrays, schema);
}

static void fold_groups(fold *f, const mox_gjson *schema)
{
    static const char *const keys[] = {"anyOf", "oneOf"};
    const mox_gjson *all = mox_gjson_get(schema, "allOf");
    if (all && all->type != MOX_JSON_ARRAY) mox_gschema_refuse(f->s, all, MOX_E_ARG, "must be an array of schemas");
    for (const mox_gjson *part = is(all, MOX_JSON_ARRAY) ? all->first : NULL; part; part = part->next)
        fold_schema(f, part);
    for (int i = 0; i < 2; i++) {
        const mox_gjson *group = mox_gjson_get(schema, keys[i]);
        if (!group) continue;
        if (group->type != MOX_JSON_ARRAY || !group->first) {
            mox_gschema_refuse(f->s, group, MOX_E_ARG, "must be an array of schemas");
            continue;
        }
        if (f->out->group) continue; /* one at a time */
        if (f->out->n_groups == f->n_choices) {
            f->out->group = group;
            continue;
        }
        const mox_gjson *choice = group->first;
        for (uint32_t k = f->choices[f->out->n_groups++]; k > 0 && choice->next; k--) choice = choice->next;
        fold_schema(f, choice);
    }
}

static void fold_schema(fold *f, const mox_gjson *schema)
{
    f->s->b->work.left -= FOLD_WORK;
    mox_gb_check_work(f->s->b);
    if (f->s->b->status != MOX_OK) return;
    if (schema->type == MOX_JSON_FALSE) f->out->never = true;
    if (schema->type == MOX_JSON_FALSE || schema->type == MOX_JSON_TRUE) return;
    if (schema->type != MOX_JSON_OBJECT) {
        mox_gschema_refuse(f->s, schema, MOX_E_ARG, "must be a schema: an object, true or false");
        return;
    }
    if (++f->depth > FOLD_DEPTH_MAX) {
        mox_gb_fail(f->s->b, MOX_E_ARG, "%s: a $ref leads back to itself and to nothing else", f->s->name);
        return;
    }
    check_keywords(f->s, schema);
    const mox_gjson *ref = mox_gjson_get(schema, "$ref");
    const mox_gjson *target = ref ? mox_gschema_resolve(f->s, ref) : NULL;
    if (target) fold_schema(f, target);
    fold_type(f, schema);
    fold_values(f, schema);
    fold_strings(f, schema);
    fold_numbers(f, schema);
    fold_objects(f, schema);
    fold_arrays(f, schema);
    fold_groups(f, schema);
    f->depth--;
}

/* ---- properties ------------------------------------------------------------------------- */

static mox_gproperty *find_property(mox_gschema *s, mox_gshape *o, const char *name, size_t n)
{
    for (mox_gproperty *p = o->properties; p; p = p->next) {
        s->b->work.left -= 4;
        if (p->param.n == n && memcmp(p->param.name, name, n) == 0) return p;
    }
    mox_gb_check_work(s->b);
    mox_gproperty *p = mox_gb_take(s->b, sizeof *p);
    if (!p) return NULL;
    p->param.name = name;
    p->param.n = n;
    if (o->last_property)
        o->last_property->next = p;
    else
        o->properties = p;
    o->last_property = p;
    return p;
}

static const mox_gjson *of_type(const mox_gjson *v, mox_json_type type) { return is(v, type) ? v : NULL; }

static void list_properties(mox_gschema *s, mox_gshape *o)
{
    for (const mox_glink *l = o->objects; l; l = l->next) {
        const mox_gjson *properties = of_type(mox_gjson_get(l->schema, "properties"), MOX_JSON_OBJECT);
        for (const mox_gjson *m = properties ? properties->first : NULL; m; m = m->next) {
            mox_gproperty *p = find_property(s, o, m->key, m->n_key);
            if (p) mox_glink_add(s->b, &p->schemas, m);
        }
        if (properties) o->has_properties = true;
    }
    for (const mox_glink *l = o->objects; l; l = l->next) {
        const mox_gjson *required = of_type(mox_gjson_get(l->schema, "required"), MOX_JSON_ARRAY);
        for (const mox_gjson *r = required ? required->first : NULL; r; r = r->next) {
            mox_gproperty *p = r->type == MOX_JSON_STRING ? find_property(s, o, r->text, r->n) : NULL;
            if (p) p->param.required = true;
        }
    }
}

/* What one schema says of properties that it does not name holds for those that others name. */
static void apply_extra(mox_gschema *s, mox_gshape *o)
{
    for (const mox_glink *l = o->objects; l; l = l->next) {
        const mox_gjson *properties = of_type(mox_gjson_get(l->schema, "properties"), MOX_JSON_OBJECT);
        const mox_gjson *extra = mox_gjson_get(l->schema, "additionalProperties");
        if (!extra) continue;
        o->extra_given = true;
        const bool closed = extra->type == MOX_JSON_FALSE;
        if (closed)
            o->closed = true;
        else
            mox_glink_add(s->b, &o->extra, extra);
        for (mox_gproperty *p = o->properties; p; p = p->next) {
            for (const mox_gjson *m = properties ? properties->first : NULL; m; m = m->next) s->b->work.left -= 4;
            mox_gb_check_work(s->b);
            if (s->b->status != MOX_OK) return;
            if (properties && mox_gjson_member(properties, p->param.name, p->param.n)) continue;
            if (closed)
                p->never = true;
            else
                mox_glink_add(s->b, &p->schemas, extra);
        }
    }
    if (!o->extra_given && o->has_properties) o->closed = true;
}

void mox_gshape_fold(mox_gschema *s, const mox_glink *schemas, const uint32_t *choices, uint32_t n_choices,
                     mox_gshape *out)
{
    *out = (mox_gshape){.types = MOX_GT_ALL,
                        .max_length = MOX_GRAMMAR_NO_MAX,
                        .max_items = MOX_GRAMMAR_NO_MAX,
                        .max_properties = MOX_GRAMMAR_NO_MAX};
    fold f = {.s = s, .out = out, .choices = choices, .n_choices = n_choices};
    for (; schemas; schemas = schemas->next) fold_schema(&f, schemas->schema);
    if (out->group || s->b->status != MOX_OK) return;
    list_properties(s, out);
    apply_extra(s, out);
    if (out->types == MOX_GT_ALL && out->hints != 0 && !out->values) out->types = out->hints;
}
