/* text/grammar_schema_emit.c -- from what a value must be to the nodes that let it be written.
 *
 * A schema that is a reference, an allOf or a choice becomes a rule, once for each list of
 * schemas, which is how a schema may speak of itself.  Rules are made one after the other from
 * a list, not inside each other, so references cost no depth.  Everything else stands where it
 * is used.
 *
 * Properties come in the order in which they are named; those that need not be there may be
 * left out; those without a name of their own come last. */
#include "text/grammar_schema.h"

#include "base/utf8.h"

#include <string.h>

enum { EXPANDED_MAX = 4096, VALUES_BYTES_MAX = 256 << 10, NAMES_MAX = 2000, DROPPED_WORK = 1 << 16 };

static uint32_t emit(mox_gschema *s, const mox_glink *schemas, uint32_t next);

static uint32_t emit_one(mox_gschema *s, const mox_gjson *schema, uint32_t next)
{
    const mox_glink link = {.schema = schema};
    return emit(s, &link, next);
}

/* ---- strings ---------------------------------------------------------------------- */

/* The automaton of all patterns together, or NULL when there is none. */
static const mox_dfa *join_patterns(mox_gschema *s, const mox_gshape *o)
{
    mox_gb *b = s->b;
    const mox_dfa *all = NULL;
    for (const mox_glink *l = o->patterns; l && b->status == MOX_OK; l = l->next) {
        const mox_gjson *at = l->schema;
        const mox_dfa *one;
        mox_err local = {0};
        const bool format = at->n_key == 6 && memcmp(at->key, "format", 6) == 0;
        const char *pattern = format ? mox_gschema_format(at->text, at->n) : at->text;
        mox_status status =
            mox_dfa_pattern(&b->g->memory, pattern, format ? strlen(pattern) : at->n, &b->work, &one, &local);
        if (status == MOX_OK && all) status = mox_dfa_both(&b->g->memory, all, one, &b->work, &one, &local);
        if (status == MOX_E_ARG || status == MOX_E_LIMIT) {
            if (b->work.left < 0) b->work.left = DROPPED_WORK; /* its work does not count, or all that follows would fail */
            mox_gschema_refuse(s, at, status, local.msg);
        } else if (status != MOX_OK) {
            b->status = status;
            if (b->err) *b->err = local;
        } else {
            all = one;
        }
    }
    return all;
}

static const mox_dfa *join(mox_gschema *s, const mox_dfa *a, const mox_dfa *b)
{
    const mox_dfa *both = a;
    if (!a || !b) return a ? a : b;
    if (s->b->status == MOX_OK) s->b->status = mox_dfa_both(&s->b->g->memory, a, b, &s->b->work, &both, s->b->err);
    return both;
}

static uint32_t emit_string(mox_gschema *s, const mox_gshape *o, uint32_t next)
{
    const mox_dfa *dfa = join_patterns(s, o);
    if (!s->tagged) return mox_gb_json_string(s->b, dfa, o->min_length, o->max_length, next);
    const mox_gstring text = {.dfa = join(s, s->tagged, dfa), .min = o->min_length, .max = o->max_length, .raw = true};
    return mox_gb_string(s->b, &text, next);
}

/* ---- enum and const ------------------------------------------------------------------ */

static unsigned type_of(const mox_gjson *v, const mox_gbound *number)
{
    switch (v->type) {
    case MOX_JSON_NULL: return MOX_GT_NULL;
    case MOX_JSON_TRUE:
    case MOX_JSON_FALSE: return MOX_GT_BOOLEAN;
    case MOX_JSON_NUMBER: return number->n_all <= number->n_whole ? MOX_GT_WHOLE : MOX_GT_BROKEN;
    case MOX_JSON_STRING: return MOX_GT_STRING;
    case MOX_JSON_ARRAY: return MOX_GT_ARRAY;
    default: return MOX_GT_OBJECT;
    }
}

static bool string_fits(const mox_gshape *o, const mox_dfa *dfa, const mox_gjson *v)
{
    const unsigned char *p = (const unsigned char *)v->text, *end = p + v->n;
    uint32_t count = 0, c;
    uint16_t state = dfa ? dfa->start : 0;
    for (; p < end && state != MOX_DFA_DEAD; count++) {
        p += mox_utf8_next(p, &c);
        if (dfa) state = mox_dfa_step(dfa, state, c);
    }
    return p == end && state != MOX_DFA_DEAD && (!dfa || dfa->ends[state]) && count >= o->min_length &&
           count <= o->max_length;
}

static bool number_fits(const mox_gshape *o, const mox_gbound *n)
{
    const int low = o->low.set ? mox_gbound_compare(n, &o->low) : 1,
              high = o->high.set ? mox_gbound_compare(n, &o->high) : -1;
    return (low > 0 || (low == 0 && !o->low.exclusive)) && (high < 0 || (high == 0 && !o->high.exclusive));
}

static bool same_text(mox_gb *b, const mox_gjson *v, const char *text, size_t n)
{
    size_t n_other;
    const char *other = mox_gjson_text(b, v, &n_other);
    return other && n_other == n && memcmp(other, text, n) == 0;
}

/* Every enum and const of the shape has the value. */
static bool in_all(mox_gschema *s, const mox_gshape *o, const char *text, size_t n)
{
    for (const mox_glink *l = o->values->next; l; l = l->next) {
        const bool list = l->schema->n_key == 4 && memcmp(l->schema->key, "enum", 4) == 0;
        bool found = false;
        for (const mox_gjson *v = list ? l->schema->first : l->schema; v && !found; v = list ? v->next : NULL)
            found = same_text(s->b, v, text, n);
        if (!found) return false;
    }
    return true;
}

static bool value_fits(mox_gschema *s, const mox_gshape *o, const mox_dfa *dfa, const mox_gjson *v)
{
    mox_gbound number = {0};
    if (v->type == MOX_JSON_NUMBER && !mox_gbound_read(s->b, v->text, v->n, &number))
        return !o->low.set && !o->high.set;
    if (s->b->status != MOX_OK || !(type_of(v, &number) & o->types)) return false;
    if (v->type == MOX_JSON_NUMBER) return number_fits(o, &number);
    if (v->type == MOX_JSON_STRING) return string_fits(o, dfa, v);
    const bool checked = v->type == MOX_JSON_OBJECT ? o->objects != NULL : v->type == MOX_JSON_ARRAY && o->arrays;
    if (checked)
        mox_gschema_refuse(s, v, MOX_E_ARG, "is a value beside keywords that it would have to be held against");
    return true;
}

static uint32_t emit_values(mox_gschema *s, const mox_gshape *o, uint32_t next)
{
    mox_gb *b = s->b;
    const mox_gjson *first = o->values->schema;
    const bool list = first->n_key == 4 && memcmp(first->key, "enum", 4) == 0;
    const mox_dfa *dfa = join_patterns(s, o);
    size_t n = 0, bytes = 0;
    for (const mox_gjson *v = list ? first->first : first; v; v = list ? v->next : NULL) n++;
    mox_gtext *texts = mox_gb_take(b, (n + 1) * sizeof *texts);
    n = 0;
    for (const mox_gjson *v = list ? first->first : first; v && texts && b->status == MOX_OK;
         v = list ? v->next : NULL) {
        mox_gtext t;
        t.text = mox_gjson_text(b, v, &t.n);
        if (!t.text || !value_fits(s, o, dfa, v) || !in_all(s, o, t.text, t.n)) continue;
        if (s->tagged && v->type == MOX_JSON_STRING) {
            if (!string_fits(&(mox_gshape){.max_length = MOX_GRAMMAR_NO_MAX}, s->tagged, v)) continue;
            t = (mox_gtext){v->text, v->n};
        }
        bytes += t.n;
        texts[n++] = t;
    }
    if (bytes > VALUES_BYTES_MAX)
        return mox_gb_fail(b, MOX_E_LIMIT, "%s: an enum has more than 256 KiB of values", s->name);
    return mox_gb_texts(b, texts, n, next);
}

/* ---- arrays ---------------------------------------------------------------------------- */

/* Of one schema: what stands at a place behind those that it names, and how many these are. */
static const mox_gjson *rest_of(const mox_gjson *schema, const mox_gjson **prefix)
{
    const mox_gjson *items = mox_gjson_get(schema, "items");
    *prefix = mox_gjson_get(schema, "prefixItems");
    if (*prefix && (*prefix)->type != MOX_JSON_ARRAY) *prefix = NULL;
    if (!items || items->type != MOX_JSON_ARRAY) return items;
    *prefix = items; /* before draft 2020-12 */
    return mox_gjson_get(schema, "additionalItems");
}

/* The schemas of the item at a place; *none: there cannot be one. */
static mox_glink *items_at(mox_gschema *s, const mox_gshape *o, uint32_t place, bool *none)
{
    mox_glink *all = NULL;
    bool open = true, named = false;
    for (const mox_glink *l = o->arrays; l; l = l->next) {
        const mox_gjson *prefix, *rest = rest_of(l->schema, &prefix), *at = prefix ? prefix->first : NULL;
        s->b->work.left -= place;
        mox_gb_check_work(s->b);
        for (uint32_t i = 0; at && i < place; i++) at = at->next;
        if (!at && prefix && !rest)
            open = false; /* not said: none, unless another schema names it */
        else
            named = true;
        if (!at) at = rest;
        if (at && at->type == MOX_JSON_FALSE) *none = true;
        if (at) mox_glink_add(s->b, &all, at);
    }
    if (!open && !named) *none = true;
    return all;
}

static uint32_t longest_prefix(const mox_gshape *o)
{
    uint32_t longest = 0;
    for (const mox_glink *l = o->arrays; l; l = l->next) {
        const mox_gjson *prefix;
        uint32_t n = 0;
        rest_of(l->schema, &prefix);
        for (const mox_gjson *at = prefix ? prefix->first : NULL; at; at = at->next) n++;
        if (n > longest) longest = n;
    }
    return longest;
}

static uint32_t emit_item(mox_gschema *s, const mox_glink *schemas, uint32_t next)
{
    return schemas ? emit(s, schemas, next) : mox_gb_json_value(s->b, next);
}

static uint32_t comma(mox_gb *b, uint32_t next) { return mox_gb_byte(b, ',', mox_gb_ws(b, next)); }

static uint32_t emit_array(mox_gschema *s, const mox_gshape *o, uint32_t next)
{
    mox_gb *b = s->b;
    const uint32_t min = o->min_items, max = o->max_items;
    if (max < min) return 0;
    if (!o->arrays && min == 0 && max == MOX_GRAMMAR_NO_MAX) return mox_gb_json_array(b, next);
    b->nest++;
    const uint32_t close = mox_gb_byte(b, ']', next), end = mox_gb_ws(b, close);
    uint32_t n = longest_prefix(o);
    bool none = false;
    if (n > max) n = max;
    const mox_glink *rest = items_at(s, o, n, &none);
    uint32_t after = end; /* what follows the items with a place of their own, when there were any */
    if (!none && n < max) {
        const uint32_t more = max == MOX_GRAMMAR_NO_MAX ? max : max - (n > 0 ? n : 1), least = n > 0 ? n : 1;
        const uint32_t body = comma(b, emit_item(s, rest, b->returns));
        after = mox_gb_repeat(b, body, min > least ? min - least : 0, more, end);
    } else if (min > n) {
        after = 0; /* there must be more, and there is none */
    }
    uint32_t first = !none && n == 0 && max > 0 ? emit_item(s, rest, after) : 0;
    for (uint32_t i = n; i-- > 0 && b->status == MOX_OK;) {
        bool no_item = false;
        const mox_glink *schemas = items_at(s, o, i, &no_item);
        first = no_item ? 0 : emit_item(s, schemas, after);
        if (i > 0) after = i >= min ? mox_gb_either(b, end, comma(b, first)) : comma(b, first);
    }
    const uint32_t inside = min > 0 ? first : mox_gb_either(b, close, first);
    const uint32_t open = mox_gb_byte(b, '[', mox_gb_ws(b, inside));
    b->nest--;
    return open;
}

/* ---- objects ----------------------------------------------------------------------------- */

static uint32_t emit_extra_pair(mox_gschema *s, const mox_gshape *o, uint32_t next)
{
    mox_gb *b = s->b;
    size_t n = 0;
    for (const mox_gproperty *p = o->properties; p; p = p->next) n++;
    const char **names = mox_gb_take(b, (n + 1) * sizeof *names);
    size_t *lengths = mox_gb_take(b, (n + 1) * sizeof *lengths);
    if (!names || !lengths) return 0;
    n = 0;
    for (const mox_gproperty *p = o->properties; p; p = p->next) {
        names[n] = p->param.name;
        lengths[n++] = p->param.n;
    }
    const mox_dfa *others = NULL;
    const mox_dfa_words words = {names, lengths, n};
    mox_err local = {0};
    const mox_status status = n > 0 ? mox_dfa_other_than(&b->g->memory, &words, &b->work, &others, &local) : MOX_OK;
    if (status != MOX_OK)
        return mox_gb_fail(b, status, "%s: an object %s: give it fewer properties or no additional ones", s->name,
                           local.msg);
    const uint32_t value = mox_gb_ws(b, emit_item(s, o->extra, next));
    return mox_gb_json_string(b, others, 0, MOX_GRAMMAR_NO_MAX, mox_gb_byte(b, ':', value));
}

static void check_count(mox_gschema *s, const mox_gshape *o)
{
    uint32_t n = 0, n_required = 0;
    for (const mox_gproperty *p = o->properties; p; p = p->next) {
        n++;
        n_required += p->param.required;
    }
    if (n > NAMES_MAX) mox_gb_fail(s->b, MOX_E_LIMIT, "%s: an object has more than %d properties", s->name, NAMES_MAX);
    const uint32_t least = n_required > 0 ? n_required : 1;
    if (o->min_properties > (n > 0 ? n_required : least)) {
        const char *why = "asks for more properties than are required, which is not supported";
        mox_gschema_refuse(s, o->min_properties_at, MOX_E_ARG, why);
    }
    if (o->max_properties != MOX_GRAMMAR_NO_MAX && n > 0 && (o->max_properties < n || !o->closed))
        mox_gschema_refuse(s, o->max_properties_at, MOX_E_ARG,
                           "limits properties that have names, which is not supported");
}

/* Properties that may come next: when one came before, and when none did. */
typedef struct tails {
    uint32_t after, first;
} tails;

static tails emit_pairs(mox_gschema *s, const mox_gproperty *p, tails rest)
{
    mox_gb *b = s->b;
    if (p->never) return p->param.required ? (tails){0, 0} : rest;
    const uint32_t value = mox_gb_ws(b, emit_item(s, p->schemas, rest.after));
    const uint32_t pair = mox_gb_json_literal(b, p->param.name, p->param.n, mox_gb_byte(b, ':', value));
    const uint32_t after = comma(b, pair);
    if (p->param.required) return (tails){after, pair};
    return (tails){mox_gb_either(b, after, rest.after), mox_gb_either(b, pair, rest.first)};
}

static uint32_t emit_object(mox_gschema *s, const mox_gshape *o, uint32_t next)
{
    mox_gb *b = s->b;
    if (!o->objects && o->min_properties == 0 && o->max_properties == MOX_GRAMMAR_NO_MAX)
        return mox_gb_json_object(b, next);
    check_count(s, o);
    size_t n = 0;
    for (const mox_gproperty *p = o->properties; p; p = p->next) n++;
    const mox_gproperty **all = mox_gb_take(b, (n + 1) * sizeof *all);
    if (!all) return 0;
    n = 0;
    for (const mox_gproperty *p = o->properties; p; p = p->next) all[n++] = p;
    b->nest++;
    const uint32_t close = mox_gb_byte(b, '}', next), end = mox_gb_ws(b, close);
    tails t = {end, o->min_properties > 0 && n == 0 ? 0 : close};
    if (!o->closed && o->max_properties > 0) {
        const uint32_t more = o->max_properties == MOX_GRAMMAR_NO_MAX ? o->max_properties : o->max_properties - 1;
        t.after = mox_gb_repeat(b, comma(b, emit_extra_pair(s, o, b->returns)), 0, more, end);
        t.first = mox_gb_either(b, emit_extra_pair(s, o, t.after), t.first);
    }
    while (n-- > 0 && b->status == MOX_OK) t = emit_pairs(s, all[n], t);
    const uint32_t open = mox_gb_byte(b, '{', mox_gb_ws(b, t.first));
    b->nest--;
    return open;
}

/* ---- shapes ------------------------------------------------------------------------------- */

static bool says_nothing(const mox_gshape *o) { return o->types == MOX_GT_ALL && o->hints == 0; }

static uint32_t emit_shape(mox_gschema *s, const mox_gshape *o, uint32_t next)
{
    mox_gb *b = s->b;
    const mox_dfa *tagged = s->tagged;
    uint32_t ways[8], n = 0;
    if (o->never || b->status != MOX_OK) return 0;
    if (o->values) return emit_values(s, o, next);
    if (says_nothing(o) && tagged) return emit_string(s, o, next);
    s->tagged = NULL;
    if (says_nothing(o)) return mox_gb_json_value(b, next);
    if (o->types & MOX_GT_OBJECT) ways[n++] = emit_object(s, o, next);
    if (o->types & MOX_GT_ARRAY) ways[n++] = emit_array(s, o, next);
    if (o->types & MOX_GT_NUMBER) ways[n++] = mox_gb_number(b, !(o->types & MOX_GT_BROKEN), &o->low, &o->high, next);
    if (o->types & MOX_GT_BOOLEAN) ways[n++] = mox_gb_json_bool(b, next);
    if (o->types & MOX_GT_NULL) ways[n++] = mox_gb_word(b, "null", next);
    s->tagged = tagged;
    if (o->types & MOX_GT_STRING) ways[n++] = emit_string(s, o, next);
    return mox_gb_split(b, ways, n);
}

/* All choices of all groups, one after the other. */
static uint32_t expand(mox_gschema *s, const mox_glink *schemas, uint32_t *choices, uint32_t n_choices, uint32_t next)
{
    mox_gb *b = s->b;
    mox_gshape shape;
    if (++s->n_expanded > EXPANDED_MAX)
        return mox_gb_fail(b, MOX_E_LIMIT, "%s: there are too many combinations of anyOf, oneOf and allOf", s->name);
    mox_gshape_fold(s, schemas, choices, n_choices, &shape);
    if (b->status != MOX_OK) return 0;
    if (!shape.group) return emit_shape(s, &shape, next);
    if (n_choices == MOX_GCHOICES_MAX)
        return mox_gb_fail(b, MOX_E_LIMIT, "%s: more than %d anyOf or oneOf hold at once", s->name, MOX_GCHOICES_MAX);
    uint32_t all = 0, i = 0;
    for (const mox_gjson *alternative = shape.group->first; alternative && b->status == MOX_OK;
         alternative = alternative->next) {
        choices[n_choices] = i++;
        const uint32_t one = expand(s, schemas, choices, n_choices + 1, next);
        all = i == 1 ? one : mox_gb_either(b, all, one);
    }
    return all;
}

static uint32_t emit_expanded(mox_gschema *s, const mox_glink *schemas, uint32_t next)
{
    uint32_t choices[MOX_GCHOICES_MAX];
    return expand(s, schemas, choices, 0, next);
}

/* ---- rules ---------------------------------------------------------------------------------- */

static bool same_list(const mox_glink *a, const mox_glink *b)
{
    for (; a && b && a->schema == b->schema; a = a->next) b = b->next;
    return !a && !b;
}

static uint32_t call_rule(mox_gschema *s, const mox_glink *schemas, uint32_t next)
{
    mox_gb *b = s->b;
    mox_grule *r = s->rules;
    for (; r && !same_list(r->schemas, schemas); r = r->next) b->work.left -= 2;
    mox_gb_check_work(b);
    if (!r && (r = mox_gb_take(b, sizeof *r)) != NULL) {
        for (; schemas; schemas = schemas->next) mox_glink_add(b, &r->schemas, schemas->schema);
        r->rule = mox_gb_rule(b);
        if (s->pending_last)
            s->pending_last->next = r; /* in the order of making: pending is the first that is not made */
        else
            s->rules = r;
        s->pending_last = r;
        if (!s->pending) s->pending = r;
    }
    return r ? mox_gb_call(b, r->rule, next) : 0;
}

/* The one keyword that counts, when there is only one. */
static const mox_gjson *only_keyword(const mox_gjson *schema)
{
    const mox_gjson *only = NULL;
    for (const mox_gjson *m = schema->type == MOX_JSON_OBJECT ? schema->first : NULL; m; m = m->next) {
        if (mox_gschema_is_remark(m)) continue;
        if (only) return NULL;
        only = m;
    }
    return only;
}

static bool key_is(const mox_gjson *m, const char *key)
{
    return m->n_key == strlen(key) && memcmp(m->key, key, m->n_key) == 0;
}

static bool has_parts(const mox_gjson *schema)
{
    return mox_gjson_get(schema, "$ref") || mox_gjson_get(schema, "allOf") || mox_gjson_get(schema, "anyOf") ||
           mox_gjson_get(schema, "oneOf");
}

/* Nothing but a reference, an anyOf or a oneOf. */
static bool is_only_choice(const mox_gjson *schema)
{
    const mox_gjson *only = only_keyword(schema);
    return only && (key_is(only, "$ref") || key_is(only, "anyOf") || key_is(only, "oneOf"));
}

static uint32_t emit(mox_gschema *s, const mox_glink *schemas, uint32_t next)
{
    mox_gb *b = s->b;
    if (b->status != MOX_OK) return 0;
    const mox_gjson *schema = schemas->schema, *only = schemas->next ? NULL : only_keyword(schema);
    if (schemas->next || (!only && schema->type == MOX_JSON_OBJECT && has_parts(schema)))
        return call_rule(s, schemas, next);
    if (only && key_is(only, "$ref")) {
        const mox_gjson *target = mox_gschema_resolve(s, only);
        const mox_glink link = {.schema = target};
        return target ? call_rule(s, &link, next) : mox_gb_json_value(b, next);
    }
    const bool parts = only && only->type == MOX_JSON_ARRAY && only->first;
    if (parts && key_is(only, "allOf") && !only->first->next) return emit_one(s, only->first, next);
    if (parts && key_is(only, "allOf")) return call_rule(s, schemas, next);
    if (parts && (key_is(only, "anyOf") || key_is(only, "oneOf"))) {
        uint32_t all = 0;
        for (const mox_gjson *one = only->first; one && b->status == MOX_OK; one = one->next) {
            const uint32_t node = emit_one(s, one, next);
            all = one == only->first ? node : mox_gb_either(b, all, node);
        }
        return all;
    }
    return emit_expanded(s, schemas, next);
}

static void make_pending(mox_gschema *s)
{
    mox_gb *b = s->b;
    while (s->pending && b->status == MOX_OK) {
        mox_grule *r = s->pending;
        const uint8_t nest = b->nest;
        b->nest = 0;
        const bool leads_on =
            !r->schemas->next && is_only_choice(r->schemas->schema); /* to other rules, without folding them in */
        mox_gb_define(b, r->rule,
                      leads_on ? emit(s, r->schemas, b->returns) : emit_expanded(s, r->schemas, b->returns));
        b->nest = nest;
        s->pending = r->next;
    }
}

/* ---- the interface --------------------------------------------------------------------------- */

mox_gschema *mox_gschema_read(mox_gb *b, const char *name, mox_json_text schema, const mox_schema_opts *opts)
{
    mox_gschema *s = mox_gb_take(b, sizeof *s);
    if (!s) return NULL;
    s->b = b;
    s->name = name;
    if (opts) s->opts = *opts;
    const mox_json_span text = {.name = name, .text = schema.text, .n = schema.n};
    s->root = mox_gjson_read(b, text);
    return s->root ? s : NULL;
}

uint32_t mox_gschema_emit(mox_gschema *s, uint32_t next)
{
    if (!s) return 0;
    const uint32_t node = emit_one(s, s->root, next);
    make_pending(s);
    return node;
}

/* Where the whole schema is a choice, its first alternative speaks for all. */
const mox_gparam *mox_gschema_params(mox_gschema *s)
{
    static const uint32_t choices[MOX_GCHOICES_MAX];
    if (!s || s->b->status != MOX_OK) return NULL;
    const mox_glink root = {.schema = s->root};
    mox_gshape *shape = mox_gb_take(s->b, sizeof *shape);
    if (!shape) return NULL;
    uint32_t n = 0;
    do mox_gshape_fold(s, &root, choices, n, shape);
    while (shape->group && ++n <= MOX_GCHOICES_MAX && s->b->status == MOX_OK);
    for (mox_gproperty *p = shape->properties; p; p = p->next) p->param.next = p->next ? &p->next->param : NULL;
    return shape->properties ? &shape->properties->param : NULL;
}

uint32_t mox_gschema_emit_tagged(mox_gschema *s, const mox_gparam *p, const char *const *words, size_t n_words,
                                 uint32_t next)
{
    mox_gb *b = s->b;
    size_t lengths[4];
    if (b->status != MOX_OK) return 0;
    for (size_t i = 0; i < n_words; i++) lengths[i] = strlen(words[i]);
    const mox_dfa_words all = {words, lengths, n_words};
    b->status = mox_dfa_without(&b->g->memory, &all, &b->work, &s->tagged, b->err);
    const mox_gproperty *property = (const mox_gproperty *)(const void *)p; /* param is its first field */
    static const mox_gjson anything = {.type = MOX_JSON_TRUE};
    const mox_glink any = {.schema = &anything};
    const uint32_t node = emit_expanded(s, p && property->schemas ? property->schemas : &any, next);
    s->tagged = NULL;
    make_pending(s);
    return node;
}
